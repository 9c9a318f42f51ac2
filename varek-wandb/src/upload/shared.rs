//! What the uploader's threads and the embedder share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use super::acknowledged::{Acknowledged, Entry, Place};
use super::http::{Client, Failure};
use super::stop::{Stop, Stopped, lock};
use super::{Report, Written};

/// Shared by the two threads and the handle.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) stop: Arc<Stop>,
    /// Wakes the thread that reads the log.
    pub(super) written: Arc<Written>,
    /// The run's directory.
    pub(super) directory: PathBuf,
    acknowledged: Mutex<Option<Acknowledged>>,
    ledger: Mutex<Ledger>,
}

/// What became of the log's records.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Records that were read.
    pub(super) read: u64,
    /// Records of kinds that this crate does not know.
    pub(super) skipped: u64,
    /// Records that were read, and are not acknowledged.
    pub(super) pending: BTreeSet<u64>,
    /// Records that were refused, and why.
    pub(super) refused: BTreeMap<u64, String>,
    /// Alerts of which nobody knows whether the server took them.
    pub(super) uncertain: BTreeSet<u64>,
    /// Files, artifacts and alerts that were handed over and are not done.
    pub(super) jobs: u64,
    /// Files that are stored, and that the server has not been told of.
    pub(super) stored: Vec<String>,
    /// What ended the upload before its time.
    pub(super) fault: Option<String>,
    /// Somebody pressed stop on the run's page.
    pub(super) stopped_by_user: bool,
    /// Everything is acknowledged.
    pub(super) complete: bool,
    /// The thread that reads the log has ended.
    pub(super) ended: bool,
}

impl Shared {
    pub(super) fn new(
        client: Client,
        stop: Arc<Stop>,
        written: Arc<Written>,
        directory: PathBuf,
        acknowledged: Acknowledged,
    ) -> Self {
        Self {
            client,
            stop,
            written,
            directory,
            acknowledged: Mutex::new(Some(acknowledged)),
            ledger: Mutex::default(),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Looks at what was acknowledged.
    pub(super) fn acknowledged<T>(
        &self,
        look: impl FnOnce(&Acknowledged) -> T,
    ) -> Result<T, Stopped> {
        lock(&self.acknowledged).as_ref().map(look).ok_or(Stopped)
    }

    /// Writes down what was acknowledged. Nothing is written any more once the embedder has stopped waiting: another uploader
    /// may have the file by then.
    pub(super) fn acknowledge(&self, entry: &Entry) -> Result<(), Failure> {
        let mut held = lock(&self.acknowledged);
        let acknowledged = held.as_mut().ok_or(Stopped)?;
        acknowledged.add(entry).map_err(|error| Failure::File {
            reason: error.to_string(),
        })
    }

    /// Gives the file of acknowledgements up.
    pub(super) fn release(&self) {
        *lock(&self.acknowledged) = None;
    }

    pub(super) fn place(&self) -> Result<Place, Failure> {
        self.acknowledged(|known| known.place.clone())?
            .ok_or(Failure::Stopped)
    }

    /// Notes that a record's work is done, or why it will not be.
    pub(super) fn done(&self, record: u64, result: &Result<(), Failure>) {
        let mut ledger = self.ledger();
        ledger.pending.remove(&record);
        if let Err(failure) = result {
            ledger.refused.insert(record, failure.reason());
        }
    }

    /// Ends the upload, and says why.
    pub(super) fn fail(&self, failure: &Failure) {
        if !matches!(failure, Failure::Stopped) {
            self.ledger().fault.get_or_insert(failure.reason());
        }
        self.stop.stop();
        self.written.poke();
    }

    pub(super) fn url(&self) -> Option<String> {
        let place = self.acknowledged(|known| known.place.clone()).ok()??;
        Some(page(self.client.base_url(), &place))
    }

    pub(super) fn report(&self) -> Report {
        let url = self.url();
        let trouble = self.client.trouble();
        let ledger = self.ledger();
        let refused = ledger.refused.values().next();
        let more = ledger.refused.len().saturating_sub(1);
        let refused = refused.map(|reason| match more {
            0 => reason.clone(),
            more => format!("{reason} (and {more} more)"),
        });
        let pending = ledger.pending.len() as u64;
        let dropped = ledger.refused.len() as u64;
        Report {
            acknowledged: ledger.read.saturating_sub(pending + dropped),
            pending,
            dropped,
            skipped: ledger.skipped,
            uncertain: ledger.uncertain.len() as u64,
            fault: ledger
                .fault
                .clone()
                .or(refused)
                .or(trouble.filter(|_| pending > 0)),
            stopped: ledger.stopped_by_user,
            url,
        }
    }
}

/// The run's page.
fn page(base_url: &str, place: &Place) -> String {
    let site = crate::settings::app_url(base_url);
    let [entity, project, run] =
        [&place.entity, &place.project, &place.run].map(|part| crate::run::quoted(part));
    format!("{site}/{entity}/{project}/runs/{run}")
}

pub(super) fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
