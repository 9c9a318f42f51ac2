//! What this host offers, what each preset gets of it, and what to do about the rest:
//! `cargo run -p varek-examples --bin doctor`.
//!
//! Exits with 1 where a preset cannot be used here.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use varek_examples::doctor::Diagnosis;
use varek_examples::terminal::Style;

/// Says what this host offers to sandboxes, what each preset gets of it, and what to do about the rest.
///
/// Exits with 1 where a preset cannot be used here.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let diagnosis = Diagnosis::examine();
    let text = if arguments.json {
        serde_json::to_string_pretty(&diagnosis)?
    } else {
        diagnosis.render(Style::stdout())
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(if diagnosis.healthy() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
