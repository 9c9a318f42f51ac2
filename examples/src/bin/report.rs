//! A log of events as a page for a browser and a summary for the terminal:
//! `cargo run -p varek-examples --bin report -- FILE.jsonl`.
//!
//! Exits with 1 where a line of the log could not be read.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use varek_examples::report::Report;
use varek_examples::terminal::Style;

/// Turns a log of events into a page that needs nothing but a browser, and prints a summary.
///
/// Exits with 1 where a line of the log could not be read; the rest is shown all the same.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The log, as `JsonLines` or `AuditLog` wrote it.
    log: PathBuf,
    /// Where the page goes; beside the log, with `.html` at its end, unless it is said.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let log = File::open(&arguments.log)
        .with_context(|| format!("cannot open {}", arguments.log.display()))?;
    let report = Report::read(BufReader::new(log));
    let output = arguments.output.unwrap_or_else(|| {
        let mut name = arguments.log.clone().into_os_string();
        name.push(".html");
        name.into()
    });
    // A log is its owner's alone, and so is what is made of it.
    let mut private = OpenOptions::new();
    private.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut private, 0o600);
    let page = private
        .open(&output)
        .with_context(|| format!("cannot make {}", output.display()))?;
    let mut page = BufWriter::new(page);
    report
        .page(&mut page)
        .and_then(|()| page.flush())
        .with_context(|| format!("cannot write {}", output.display()))?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", report.render(Style::stdout()))?;
    writeln!(out, "The page: {}", output.display())?;
    Ok(if report.faults().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
