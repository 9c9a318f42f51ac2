//! Sends runs that were logged offline, or did not get to the server: `cargo run --example wandb_sync -- DIRECTORY...`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use varek_wandb::{SyncOptions, sync};

/// Sends the runs of these directories to Weights & Biases: what was acknowledged before is not sent again.
///
/// The server and the key are those of WANDB_BASE_URL, WANDB_API_KEY or netrc. A run that was killed is closed first, with exit code 1. Exits
/// with 1 where something is not there in the end.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Directories of runs, or their logs.
    #[arg(required_unless_present = "all")]
    directories: Vec<PathBuf>,
    /// All runs beneath this directory, which is called `wandb` as a rule.
    #[arg(long, value_name = "DIRECTORY")]
    all: Option<PathBuf>,
    /// Where the API is, instead of what the environment says.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// How long to wait for the server for each run, such as 10m; for as long as it takes where it is not said.
    #[arg(long, value_name = "TIME")]
    within: Option<humantime::Duration>,
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut options = SyncOptions::new();
    if let Some(url) = &arguments.base_url {
        options = options.base_url(url);
    }
    if let Some(within) = arguments.within {
        options = options.within(within.into());
    }
    let mut directories = arguments.directories;
    if let Some(all) = &arguments.all {
        directories.extend(runs(all)?);
    }
    let mut whole = true;
    for directory in &directories {
        let shown = directory.display();
        match sync(directory, &options) {
            Ok(report) => {
                whole &= report.is_complete();
                let url = report.url.unwrap_or_default();
                println!(
                    "{shown}: {} acknowledged, {} pending, {} dropped {url}",
                    report.acknowledged, report.pending, report.dropped
                );
                if report.uncertain > 0 {
                    println!("  alerts that may have arrived: {}", report.uncertain);
                }
                if let Some(fault) = report.fault {
                    println!("  {fault}");
                }
            }
            Err(error) => {
                whole = false;
                println!("{shown}: {error}");
            }
        }
    }
    Ok(if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The directories of runs beneath a directory, oldest first.
fn runs(all: &PathBuf) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(all).with_context(|| format!("cannot read {}", all.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if (name.starts_with("run-") || name.starts_with("offline-run-")) && path.is_dir() {
            found.push(path);
        }
    }
    found.sort_by_key(|path| {
        path.file_name()
            .map(|name| name.to_string_lossy().replace("offline-", ""))
    });
    Ok(found)
}
