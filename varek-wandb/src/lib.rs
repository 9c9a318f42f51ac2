//! An audit trail of sandboxed runs in [Weights & Biases](https://docs.wandb.ai), natively: no Python, no Go binary, nothing lost.
//!
//! A [`Run`] writes everything that it is told into a log on disk, in the format of the official client, before anything is sent: one
//! write a call, so that SIGKILL at any point leaves a log that can be sent. [`Mode::Online`] is the same log with a thread that sends it
//! and keeps what the server has acknowledged beside it; [`Mode::Offline`] is the log alone, which [`sync`] sends later, as `wandb sync` of
//! the official client does. Starting a run never waits for a server.
//!
//! ```
//! use std::time::Duration;
//! use varek_wandb::{Artifact, Environment, Mode, Run};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! #[derive(serde::Serialize)]
//! struct Row {
//!     loss: f64,
//! }
//!
//! let run = Run::builder()
//!     .project("sandboxed-evals")
//!     .job_type("verification")
//!     .dir(directory)
//!     .environment(Environment::default()) // not needed: WANDB_* and netrc are read where this is left out
//!     .mode(Mode::Offline)
//!     .start()?;
//! run.log(Row { loss: 0.5 })?;
//! run.summary("verdict", "pass")?;
//! run.log_artifact(&Artifact::new("report", "verification-report").bytes("report.json", "{}"))?;
//! let report = run.finish(0, Duration::from_secs(10))?;
//! // Offline, all of it waits for a sync.
//! assert!(report.pending > 0);
//! println!("{}", run.sync_command().unwrap_or_default());
//! # Ok(())
//! # }
//! ```
//!
//! - [`Run::log`], [`Run::summary`], [`Run::config`], [`Run::log_table`], [`Run::log_artifact`], [`Run::alert`], [`Run::save_file`],
//!   [`Run::console`]: what a run can be told. [`Value`] says what values can be; NaN and the infinities stay what they are.
//! - [`Run::sink`] takes the events of sandboxed runs ([`varek_telemetry::Sink`]).
//! - `Run::weave`, with the feature `weave`, sends them to W&B Weave as well.
//! - [`sync`] and [`repair`] work on directories of runs that have ended, were killed, or were offline.
//! - [`Report`] says what arrived, what waits, and what was refused.
//!
//! Nothing here is decided by the server: a run whose server is down, slow or hostile ends in time, with the log kept. The key is sent to the API's
//! own host alone, is in no log, and is shown by no `Debug`.

mod artifact;
mod error;
mod lock;
mod log;
mod names;
mod proto;
mod run;
mod settings;
mod sink;
mod staging;
mod sync;
mod table;
mod upload;
mod value;
#[cfg(feature = "weave")]
mod weave;

pub use artifact::Artifact;
pub use error::{Damage, Error};
pub use run::{AlertLevel, Console, Durability, LoggedTable, Run, RunBuilder, SavePolicy};
pub use settings::{Environment, Mode};
pub use sink::{RunSink, SinkBuilder};
pub use sync::{Repaired, SyncOptions, repair, sync};
pub use table::Table;
pub use upload::Report;
pub use value::Value;

/// The examples of the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
