//! What the examples that log to Weights & Biases share: how their runs begin and end.

use std::io::{self, Write as _};
use std::time::Duration;

use varek_wandb::{Mode, Run, RunBuilder};

/// How long the end of a run waits for the server.
const PATIENCE: Duration = Duration::from_secs(120);

/// A run of this kind, in the project that `WANDB_PROJECT` names, or in this one. Offline, unless there is a key.
pub fn run(project: &str, job_type: &str) -> RunBuilder {
    let builder = Run::builder().job_type(job_type);
    // What a builder is told wins over the environment.
    match std::env::var_os("WANDB_PROJECT") {
        Some(named) if !named.is_empty() => builder,
        _ => builder.project(project),
    }
}

/// Ends a run, and says on standard error where it is and how it gets to the server. Gives whether nothing was lost on the way.
///
/// # Errors
///
/// Where the log cannot be closed.
pub fn finish(run: &Run, exit_code: i32) -> anyhow::Result<bool> {
    let report = run.finish(exit_code, PATIENCE)?;
    let mut stderr = io::stderr().lock();
    if let Some(directory) = run.directory() {
        writeln!(stderr, "run: {}", directory.display())?;
    }
    if let Some(fault) = &report.fault {
        writeln!(stderr, "server: {fault}")?;
    }
    match (run.mode(), &report.url) {
        (Mode::Online, Some(url)) if report.is_complete() => writeln!(stderr, "page: {url}")?,
        _ => {
            if let Some(command) = run.sync_command() {
                writeln!(stderr, "to send it: {command}")?;
            }
        }
    }
    Ok(report.dropped == 0)
}
