//! Five checks as a JSON manifest, for a gate:
//! `cargo run -p varek-examples --bin verification_battery`.
//!
//! Exits with 1 where a check did not pass.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use varek_examples::battery;
use varek_examples::terminal::{Cell, Column, Style, progress, table};

/// Checks whether this host keeps VAREK's promises, and prints the manifest as JSON.
///
/// A summary for people goes to standard error. Exits with 1 where a check did not pass.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Write the manifest to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const COLUMNS: [Column<'static>; 3] = [
    Column::whole("check"),
    Column::whole("result"),
    Column::text("detail"),
];

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let bar = progress(5);
    let manifest = battery::run(|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();

    let rows = manifest.checks.iter().map(|check| {
        let word = if check.passed { "passed" } else { "FAILED" };
        vec![
            Cell::new(check.name),
            Cell::verdict(check.passed, word),
            Cell::new(check.detail.clone()),
        ]
    });
    let summary = manifest.summary;
    eprintln!("{}", table(Style::stderr(), &COLUMNS, rows));
    eprintln!("{} of {} checks passed.", summary.passed, summary.total);

    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    match &arguments.output {
        Some(path) => {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    Ok(if manifest.all_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
