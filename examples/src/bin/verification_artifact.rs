//! The verification battery as evidence in Weights & Biases: `cargo run -p varek-examples --bin verification_artifact`.
//!
//! The manifest is an artifact, and its figures are the run's summary. Offline without a key: the run is then a directory, and the command
//! that sends it is printed. Exits with 1 where a check did not pass.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use varek_examples::terminal::progress;
use varek_examples::{battery, wandb};
use varek_wandb::Artifact;

/// Checks whether this host keeps VAREK's promises, and logs the manifest to Weights & Biases.
///
/// `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_API_KEY` and the like are read. Exits with 1 where a check did not pass.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() -> anyhow::Result<ExitCode> {
    Arguments::parse();
    let config = BTreeMap::from([("manifest_schema", battery::SCHEMA_VERSION)]);
    let run = wandb::run("varek-guardrails-verification", "verification")
        .config(config)?
        .start()?;
    let bar = progress(5);
    let manifest = battery::run(|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();

    let summary = manifest.summary;
    let artifact = Artifact::new("varek-guardrails-verification", "verification-report")
        .metadata(summary)?
        .bytes("manifest.json", serde_json::to_vec_pretty(&manifest)?);
    run.log_artifact(&artifact)?;
    run.summary("verification/passed", summary.passed)?;
    run.summary("verification/failed", summary.failed)?;
    run.summary("verification/all_green", manifest.all_green())?;

    for check in &manifest.checks {
        let word = if check.passed { "passed" } else { "FAILED" };
        println!("{word} {}: {}", check.name, check.detail);
    }
    let whole = wandb::finish(&run, i32::from(!manifest.all_green()))?;
    Ok(if manifest.all_green() && whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
