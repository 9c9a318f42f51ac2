//! Eight payloads with known ends, for a gate: `cargo run -p varek-examples --bin regression_suite`.
//!
//! Exits with 1 where one ended in another way.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use varek_examples::suite::{self, PAYLOADS, Row};
use varek_examples::terminal::{Style, progress, table};

/// Runs eight payloads and compares how each ends with how it has to end.
///
/// Exits with 1 where one ended in another way.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let bar = progress(PAYLOADS.len());
    let report = suite::run(|payload| {
        bar.set_message(payload.name);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let report =
        report.context("the suite cannot be run here; the `doctor` example says what to do")?;

    let mut stdout = std::io::stdout();
    if arguments.json {
        writeln!(stdout, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        let rows = report.rows.iter().map(Row::cells);
        writeln!(stdout, "{}", table(Style::stdout(), &Row::COLUMNS, rows))?;
        let matched = report.rows.len() - report.divergences;
        writeln!(
            stdout,
            "\n{matched} of {} payloads ended as expected.",
            report.rows.len()
        )?;
    }
    Ok(if report.all_matched {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
