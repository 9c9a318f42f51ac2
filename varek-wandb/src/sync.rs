//! Bringing a run's directory to the server after the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::log;
use crate::settings::{Asked, Settings};
use crate::upload::{Pace, Pauses, Report, Server, Uploader, Written};
use crate::{Environment, Error, Mode};

/// How a directory is synced.
///
/// What is not said here comes from the environment, as for a [`Run`](crate::Run): `WANDB_BASE_URL`, `WANDB_API_KEY`, netrc.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SyncOptions {
    base_url: Option<crate::settings::Address>,
    api_key: Option<crate::settings::Key>,
    roots: Option<PathBuf>,
    within: Option<Duration>,
    environment: Option<Environment>,
    pauses: Option<(Duration, Duration)>,
}

impl SyncOptions {
    /// What the environment says, and no bound of time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the API is: `WANDB_BASE_URL`.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = Some(crate::settings::Address(base_url.into()));
        self
    }

    /// The key: `WANDB_API_KEY`, and after that netrc.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(crate::settings::Key(key.into()));
        self
    }

    /// Certificates (PEM) that are trusted instead of the host's own.
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.roots = Some(file.into());
        self
    }

    /// How long is waited for the server; without it, for as long as it takes. What is not there by then stays pending.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// The environment variables that are read, instead of those of this process.
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// The first and the longest pause between tries; 2 s and 60 s where this is not said, as the official client has them. Shorter
    /// ones are for servers of one's own.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.pauses = Some((first, longest));
        self
    }
}

/// What was done to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Whole records, those that were added included.
    pub records: u64,
    /// Bytes of a torn record that were cut.
    pub cut: u64,
    /// The run had not ended: that it failed, with exit code 1, was added.
    pub closed: bool,
}

/// Brings the log of a run's directory, or the log itself, into a state in which it can be sent: cuts a torn record at its end, and,
/// where the run did not end, ends it with exit code 1. A log that is whole is not written to.
///
/// # Errors
///
/// [`Error::InUse`] where the run goes on, [`Error::Corrupt`] where the log is damaged before good records, [`Error::NotALog`]
/// where there is none. Nothing was changed then.
pub fn repair(directory: impl AsRef<Path>) -> Result<Repaired, Error> {
    let repaired = log::repair(&find_log(directory.as_ref())?)?;
    Ok(Repaired {
        records: repaired.records,
        cut: repaired.cut,
        closed: repaired.closed,
    })
}

/// Repairs a run's directory, and sends what the server has not acknowledged yet.
///
/// A run that is acknowledged already is not sent again: neither its rows nor its alerts. The server being away is no error; it is
/// waited for, as long as [`SyncOptions::within`] says.
///
/// A log names the files of its artifacts by their paths on this host: sync logs of your own, or from whom may read what you may read.
///
/// # Errors
///
/// Those of [`repair`]; [`Error::NoKey`], [`Error::Setting`] and [`Error::Netrc`] where the server or the key cannot be used;
/// [`Error::OtherServer`] where another server has the run's beginning. What the server refuses is in the [`Report`].
pub fn sync(directory: impl AsRef<Path>, options: &SyncOptions) -> Result<Report, Error> {
    let log = find_log(directory.as_ref())?;
    let environment = options
        .environment
        .clone()
        .unwrap_or_else(Environment::of_process);
    let asked = Asked {
        base_url: options.base_url.clone(),
        api_key: options.api_key.clone(),
        mode: Some(Mode::Online),
        ..Asked::default()
    };
    let settings = Settings::resolve(asked, &environment)?;
    let Some(key) = &settings.api_key else {
        return Err(Error::NoKey {
            base_url: settings.base_url,
        });
    };
    let server = Server::new(&settings.base_url, &key.0, options.roots.as_deref())?;
    log::repair(&log)?;
    let length = fs::metadata(&log).map_err(Error::io("stat", &log))?.len();
    let mut pace = Pace {
        interval: Duration::ZERO,
        ..Pace::default()
    };
    if let Some((first, longest)) = options.pauses {
        pace.pauses = Pauses { first, longest };
    }
    let uploader = Uploader::paced(&log, server, Arc::new(Written::new(length)), pace)?;
    Ok(uploader.finish(options.within.unwrap_or(Duration::MAX)))
}

/// The log of a directory, or the path itself where it is a file.
fn find_log(path: &Path) -> Result<PathBuf, Error> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let mut found: Vec<PathBuf> = fs::read_dir(path)
        .map_err(Error::io("read", path))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "wandb")
        })
        .collect();
    found.sort();
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(log), None) => Ok(log),
        (None, _) => Err(Error::NotALog {
            path: path.to_owned(),
            reason: "no file in it ends with `.wandb`",
        }),
        (Some(_), Some(_)) => Err(Error::NotALog {
            path: path.to_owned(),
            reason: "more than one file in it ends with `.wandb`; name one",
        }),
    }
}
