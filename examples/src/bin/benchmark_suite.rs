//! The regression suite as a table in Weights & Biases: `cargo run -p varek-examples --bin benchmark_suite`.
//!
//! Offline without a key: the run is then a directory, and the command that sends it is printed. Exits with 1 where a payload ended
//! in another way than it has to.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use serde_json::json;
use varek_examples::suite::{self, PAYLOADS, Row};
use varek_examples::terminal::{Style, progress, table};
use varek_examples::wandb;
use varek_wandb::{Run, Table};

/// Runs eight payloads with known ends, and logs what became of them to Weights & Biases.
///
/// `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_API_KEY` and the like are read. Exits with 1 where a payload ended in another way.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() -> anyhow::Result<ExitCode> {
    Arguments::parse();
    let categories: BTreeSet<&str> = PAYLOADS.iter().map(|payload| payload.category).collect();
    let config = json!({
        "n_payloads": PAYLOADS.len(),
        "categories": categories,
        "backend": "varek-core",
    });
    let run = wandb::run("varek-guardrails-benchmarks", "benchmark")
        .config(config)?
        .start()?;
    let bar = progress(PAYLOADS.len());
    let report = suite::run(|payload| {
        bar.set_message(payload.name);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let report =
        report.context("the suite cannot be run here; the `doctor` example says what to do")?;
    log(&run, &report)?;

    let rows = report.rows.iter().map(Row::cells);
    println!("{}", table(Style::stdout(), &Row::COLUMNS, rows));
    let whole = wandb::finish(&run, i32::from(!report.all_matched))?;
    Ok(if report.all_matched && whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The columns have the names and the meaning of the Python package's.
fn log(run: &Run, report: &suite::Report) -> anyhow::Result<()> {
    let mut table = Table::new([
        "name",
        "category",
        "expected",
        "matched",
        "exit_code",
        "contained",
        "timed_out",
        "killed_by_signal",
        "violation",
        "wall_clock_s",
    ])?;
    for row in &report.rows {
        table.row((
            row.name,
            row.category,
            row.expected,
            row.matched,
            row.exit_code,
            row.contained,
            row.timed_out,
            row.killed_by_signal,
            &row.violation,
            row.wall_clock_s,
        ))?;
    }
    run.log_table("benchmark/results", &table)?;
    run.summary("benchmark/match_rate", report.match_rate)?;
    run.summary("benchmark/divergences", report.divergences)?;
    run.summary("benchmark/all_matched", report.all_matched)?;
    Ok(())
}
