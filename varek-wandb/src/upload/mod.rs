//! From the log to the server.
//!
//! A thread reads the log as it grows and keeps the run, its history, summary and console there up to date; another sends files,
//! artifacts and alerts. What was acknowledged is kept beside the log, so that a later uploader goes on where this one ended.

mod acknowledged;
mod artifact;
mod console;
mod document;
mod generated;
mod http;
mod server;
mod shared;
mod stop;
mod stream;
mod transfers;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::acknowledged::Acknowledged;
use self::http::Client;
use self::shared::Shared;
use self::stop::{Stop, lock};
use self::stream::Stream;
use crate::Error;
use crate::log::{LogReader, Next};

pub(crate) use self::http::Pauses;
pub(crate) use self::server::Server;

/// What became of a run's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Records of the log that the server has, or that have nothing for it.
    pub acknowledged: u64,
    /// Records that it does not have yet: they are in the log, and [`sync`](crate::sync) sends them.
    pub pending: u64,
    /// What will not arrive: records that the server refused or whose files could not be read, which a sync tries
    /// again, and events that a sink's queue had no room for.
    pub dropped: u64,
    /// Records of kinds that this crate does not send, which other clients write.
    pub skipped: u64,
    /// Alerts that were sent once, whose answers were lost, and that were not sent again since they may have arrived.
    pub uncertain: u64,
    /// What was in the way, in words for people.
    pub fault: Option<String>,
    /// Somebody pressed stop on the run's page.
    pub stopped: bool,
    /// The run's page, where the server has told whose it is.
    pub url: Option<String>,
}

impl Report {
    /// Whether the server has everything.
    pub fn is_complete(&self) -> bool {
        self.pending == 0 && self.dropped == 0
    }
}

/// How far the log is written: the run tells, the uploader waits.
#[derive(Debug)]
pub(crate) struct Written {
    state: Mutex<WrittenState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct WrittenState {
    end: u64,
    /// Counts what else there is to look at.
    pokes: u64,
}

impl Written {
    /// A log that is written up to here, bytes.
    pub(crate) fn new(end: u64) -> Self {
        Self {
            state: Mutex::new(WrittenState { end, pokes: 0 }),
            changed: Condvar::new(),
        }
    }

    /// The log is written up to here now.
    pub(crate) fn advance(&self, end: u64) {
        lock(&self.state).end = end;
        self.changed.notify_all();
    }

    fn poke(&self) {
        let mut state = lock(&self.state);
        state.pokes = state.pokes.wrapping_add(1);
        self.changed.notify_all();
    }

    fn look(&self) -> WrittenState {
        *lock(&self.state)
    }

    /// Waits until something is not as it was seen, or until then.
    fn wait(&self, seen: WrittenState, until: Instant) {
        let mut state = lock(&self.state);
        while state.end == seen.end && state.pokes == seen.pokes {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// How fast an uploader goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) pauses: Pauses,
    /// Between two requests with new lines, while the run goes on.
    pub(crate) interval: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pauses: Pauses::default(),
            // The official client's.
            interval: Duration::from_secs(15),
        }
    }
}

/// The threads that send a run.
#[derive(Debug)]
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    log: PathBuf,
    owner: u32,
}

/// What is known of an upload while it goes on.
#[derive(Debug)]
pub(crate) struct Status {
    /// The run's page.
    pub(crate) url: Option<String>,
}

impl Uploader {
    /// Starts to send what is in the log, and what will be. The server is not waited for.
    pub(crate) fn start(log: &Path, server: Server, written: Arc<Written>) -> Result<Self, Error> {
        Self::paced(log, server, written, Pace::default())
    }

    pub(crate) fn paced(
        log: &Path,
        server: Server,
        written: Arc<Written>,
        pace: Pace,
    ) -> Result<Self, Error> {
        let acknowledged = Acknowledged::open(log)?;
        if let Some(place) = &acknowledged.place
            && place.server != server.base_url
        {
            return Err(Error::OtherServer {
                path: log.to_owned(),
                server: place.server.clone(),
            });
        }
        let reader = LogReader::open(log)?;
        let stop = Arc::new(Stop::default());
        let client = Client::new(server, pace.pauses, stop.clone());
        let directory = log.parent().unwrap_or(Path::new(".")).to_owned();
        let shared = Arc::new(Shared::new(client, stop, written, directory, acknowledged));
        let (jobs, to_do) = channel();
        let stream = Stream::new(shared.clone(), reader, jobs, pace.interval, log.to_owned());
        let transfers = shared.clone();
        let started = thread::Builder::new()
            .name("varek-wandb-files".into())
            .spawn(move || transfers::run(&transfers, &to_do))
            .and_then(|_| {
                thread::Builder::new()
                    .name("varek-wandb".into())
                    .spawn(move || stream.run())
            });
        started.map_err(Error::io("start a thread for", log))?;
        Ok(Self {
            shared,
            log: log.to_owned(),
            owner: std::process::id(),
        })
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            url: self.shared.url(),
        }
    }

    /// Entity and project, where the server has said them.
    #[cfg(feature = "weave")]
    pub(crate) fn place(&self) -> Option<(String, String)> {
        let place = self.shared.place().ok()?;
        Some((place.entity, place.project))
    }

    /// Waits until everything is acknowledged, the upload cannot go on, or the time is over; the log is closed. The threads
    /// end by themselves, at the latest when the request that they are at is over.
    pub(crate) fn finish(self, within: Duration) -> Report {
        // A copy made by fork(2) has none of the threads.
        if self.owner != std::process::id() {
            return Report::default();
        }
        let until = Instant::now() + within.min(Duration::from_secs(366 * 24 * 3600));
        self.shared.stop.hurry();
        loop {
            let seen = self.shared.written.look();
            if self.shared.ledger().ended || Instant::now() >= until {
                break;
            }
            self.shared.written.wait(seen, until);
        }
        // In this order: what is acknowledged after the report would be missing in it.
        self.shared.stop.stop();
        let mut report = self.shared.report();
        self.shared.release();
        self.shared.written.poke();
        if report.pending > 0 || !self.shared.ledger().complete {
            let done = report.acknowledged + report.dropped;
            report.pending = records(&self.log).saturating_sub(done);
        }
        report
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        // Its threads are not in a copy made by fork(2), and may have held these locks.
        if self.owner == std::process::id() {
            self.shared.stop.stop();
            self.shared.release();
            self.shared.written.poke();
        }
    }
}

/// How many records a log has.
fn records(log: &Path) -> u64 {
    let Ok(mut reader) = LogReader::open(log) else {
        return 0;
    };
    let mut count = 0;
    while let Ok(Next::Record(_)) = reader.next() {
        count += 1;
    }
    count
}
