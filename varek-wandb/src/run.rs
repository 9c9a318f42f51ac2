//! A run: everything that is said of it becomes records of its log.

mod builder;
mod state;
mod tables;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use self::state::State;
use crate::log::LogWriter;
use crate::proto::{self, FilePolicy, FileType, FilesItem, Item, Kind, OutputType};
use crate::settings::{Settings, app_url};
use crate::sink::Recorder;
use crate::staging::{self, Draft, Drafted, Made, random};
use crate::upload::{Report, Server, Uploader, Written};
use crate::{Artifact, Error, Mode, Value, names};

pub use self::builder::RunBuilder;
pub use self::tables::LoggedTable;

/// Bytes of one line of the history, at most; the same bounds one update of the summary or of the config. Source: the client's behaviour.
pub(crate) const LONGEST_LINE: u64 = 10 * 1024 * 1024 - 100 * 1024;

/// How long a run that is dropped waits for what is still on its way.
const LAST: Duration = Duration::from_millis(500);

/// Files that the clients make themselves.
const GENERATED: [&str; 7] = [
    "config.yaml",
    "wandb-metadata.json",
    "wandb-summary.json",
    "wandb-history.jsonl",
    "wandb-events.jsonl",
    "output.log",
    "requirements.txt",
];

/// When a log is brought to the disk (fdatasync(2)).
///
/// Whatever this says, each record is with the kernel when its call returns: killing this program loses nothing. This is about what a
/// power loss, or a crash of the kernel, can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// With each alert, artifact and table, and at the end.
    #[default]
    Checkpoints,
    /// With each call. A row then takes as long as the disk does, some milliseconds.
    EveryRecord,
}

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AlertLevel {
    /// `INFO`
    #[default]
    Info,
    /// `WARN`
    Warn,
    /// `ERROR`
    Error,
}

impl AlertLevel {
    const fn word(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Error => "ERROR",
        }
    }
}

/// When a saved file is uploaded, by who follows the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SavePolicy {
    /// At once: `now`.
    #[default]
    Now,
    /// At the end of the run: `end`.
    End,
}

/// Which output a console line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Console {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A run: what was logged of one piece of work.
///
/// Each call appends to the run's log before it returns, and a call that fails has appended nothing; it can be made again, when a full disk
/// has room, say. One failure is another: [`Error::Io`] with the operation `sync` says that the call is in the log, and that the disk
/// did not confirm it. The methods can be called from any thread, and clones are the same run. The official client's names are `wandb.init` for
/// [`Run::builder`] and those of `wandb.Run` for the rest.
///
/// A run that is dropped without [`Run::finish`] has the exit code 1: nobody said that it succeeded.
///
/// In a copy of this process made by fork(2), every call is [`Error::Forked`], and dropping does nothing.
#[derive(Clone)]
pub struct Run {
    pub(crate) shared: Arc<Shared>,
}

/// What does not change while a run goes on.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) owner: u32,
    pub(crate) id: String,
    pub(crate) settings: Settings,
    /// None where the run is disabled.
    pub(crate) directory: Option<PathBuf>,
    began: Instant,
    durability: Durability,
}

pub(crate) struct Shared {
    pub(crate) facts: Facts,
    state: Mutex<State>,
    written: Arc<Written>,
    uploader: Mutex<Option<Uploader>>,
    sinks: Mutex<Vec<Weak<Recorder>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn item(key: String, value_json: String) -> Item {
    Item {
        key,
        nested_key: Vec::new(),
        value_json,
    }
}

fn timestamp(time: SystemTime) -> proto::Timestamp {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    proto::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        // Less than a thousand million.
        nanos: since.subsec_nanos().cast_signed(),
    }
}

impl Run {
    /// Says how a run is to be started.
    pub fn builder() -> RunBuilder {
        RunBuilder::new()
    }

    fn started(
        facts: Facts,
        log: Option<LogWriter>,
        server: Option<Server>,
    ) -> Result<Self, Error> {
        let written = Arc::new(Written::new(log.as_ref().map_or(0, LogWriter::length)));
        let uploader = match (&log, server) {
            (Some(log), Some(server)) => {
                Some(Uploader::start(log.path(), server, written.clone())?)
            }
            _ => None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                facts,
                state: Mutex::new(State::new(log)),
                written,
                uploader: Mutex::new(uploader),
                sinks: Mutex::default(),
            }),
        })
    }

    /// Logs a row at the next step: 0, or one more than the last. Returns the step.
    ///
    /// A row is a struct or a map; see [`Value`] for what its values can be. A key with slashes is one key. The row also gets `_step`,
    /// `_timestamp` (Unix seconds) and `_runtime` (seconds since the start), and all of it goes into the run's summary, as
    /// `wandb.Run.log` does it.
    ///
    /// # Errors
    ///
    /// [`Error::Value`], [`Error::NotAMap`], [`Error::ReservedKey`], [`Error::Name`] and [`Error::LineTooLong`] where the row cannot
    /// be logged, [`Error::Io`] where the log cannot be written; nothing is logged then.
    pub fn log(&self, row: impl Serialize) -> Result<u64, Error> {
        let row = row_of(&row)?;
        self.shared.state()?.row(&self.shared, None, row)
    }

    /// Logs a row at this step, which must be greater than the last.
    ///
    /// A step has one row, which is with the log when the call returns. The official client keeps a row back for later calls with the
    /// same step, and drops rows of steps before; here both are refused, so that nothing is lost unsaid.
    ///
    /// # Errors
    ///
    /// [`Error::StepInPast`], and those of [`Run::log`].
    pub fn log_at(&self, step: u64, row: impl Serialize) -> Result<(), Error> {
        let row = row_of(&row)?;
        self.shared
            .state()?
            .row(&self.shared, Some(step), row)
            .map(|_| ())
    }

    /// Logs several rows at the next steps by one write: what they have in common with the summary is written once.
    pub(crate) fn log_rows(&self, rows: Vec<Vec<(String, Value)>>) -> Result<(), Error> {
        self.shared.state()?.rows(&self.shared, rows)
    }

    /// Puts a value into the run's summary.
    ///
    /// # Errors
    ///
    /// Those of [`Run::log`].
    pub fn summary(&self, key: impl Into<String>, value: impl Serialize) -> Result<(), Error> {
        self.summary_of(vec![(key.into(), Value::of(&value)?)])
    }

    /// Puts all values of a struct or map into the run's summary. Objects replace what the key had; they are not merged with it.
    ///
    /// # Errors
    ///
    /// Those of [`Run::log`].
    pub fn summary_all(&self, values: impl Serialize) -> Result<(), Error> {
        self.summary_of(Value::map_of(&values, "a summary")?)
    }

    pub(crate) fn summary_of(&self, entries: Vec<(String, Value)>) -> Result<(), Error> {
        entries.iter().try_for_each(|(key, _)| names::key(key))?;
        let update = items(entries, "the summary")?;
        if update.is_empty() {
            return self.shared.state().map(|_| ());
        }
        self.append(
            vec![Kind::Summary(proto::Summary {
                update,
                remove: Vec::new(),
            })],
            false,
        )
    }

    /// Adds to the run's config, or changes what a key has there.
    ///
    /// # Errors
    ///
    /// Those of [`RunBuilder::config`], and [`Error::Io`].
    pub fn config(&self, values: impl Serialize) -> Result<(), Error> {
        let update = items(builder::config_entries(&values)?, "the config")?;
        if update.is_empty() {
            return self.shared.state().map(|_| ());
        }
        self.append(
            vec![Kind::Config(proto::Config {
                update,
                remove: Vec::new(),
            })],
            false,
        )
    }

    /// Logs a version of an artifact: copies its files, and brings them and the record to the disk. Returns the version's digest.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] and [`Error::Twice`] where the service would not take it, [`Error::NotAFile`], [`Error::LeadsOut`] and
    /// [`Error::Io`] where a file cannot be copied. No copy is left then.
    pub fn log_artifact(&self, artifact: &Artifact) -> Result<String, Error> {
        let number = self.shared.state()?.next_artifact();
        let mut made = Made::default();
        let own = self
            .directory()
            .map(|run| (run, own_directory(run, number)));
        let place = own.as_ref().map(|(run, own)| (*run, own.as_path()));
        let staged = artifact.stage(place, &mut made)?;
        let digest = staged.digest.clone();
        let mut state = self.shared.state()?;
        let record = artifact.record(staged, self.artifact_base(&mut state, artifact.name())?);
        let kinds = vec![Kind::Artifact(Box::new(record))];
        state.append_with(&self.shared, kinds, made)?;
        state.sync()?;
        Ok(digest)
    }

    /// What the records of all artifacts of this run have.
    fn artifact_base(&self, state: &mut State, name: &str) -> Result<proto::Artifact, Error> {
        let settings = &self.shared.facts.settings;
        Ok(proto::Artifact {
            run_id: self.shared.facts.id.clone(),
            project: settings.project.clone(),
            entity: settings.entity.clone().unwrap_or_default(),
            client_id: random(128)?,
            sequence_client_id: state.sequence(name)?,
            ..proto::Artifact::default()
        })
    }

    /// Sends an alert to those who follow the run, by mail or chat as they chose. `wait` is the time within which no second one of
    /// this title is sent, a minute in the official client; the server does the counting.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] where the title has no character or more than 63, [`Error::Io`].
    pub fn alert(
        &self,
        title: impl Into<String>,
        text: impl Into<String>,
        level: AlertLevel,
        wait: Duration,
    ) -> Result<(), Error> {
        let (title, text) = (title.into(), text.into());
        names::title(&title)?;
        let size = text.len() as u64;
        check_size("the alert", size)?;
        let alert = proto::Alert {
            title,
            text,
            level: level.word().into(),
            wait_duration: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
        };
        self.append(vec![Kind::Alert(alert)], true)
    }

    /// Copies a file of this host to the run's files, under `name`. The same name again replaces it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] and [`Error::LeadsOut`] where the name leads elsewhere, also by a link among the run's files; [`Error::Name`] where it
    /// is one of the clients' own; [`Error::NotAFile`], [`Error::Io`].
    pub fn save_file(
        &self,
        name: &str,
        path: impl AsRef<Path>,
        policy: SavePolicy,
    ) -> Result<(), Error> {
        check_saved(name)?;
        let path = path.as_ref();
        let file = staging::open(path)?;
        self.save(name, policy, |run| Draft::of_file(run, file, path))
    }

    /// Writes a file with these bytes to the run's files, under `name`. The same name again replaces it.
    ///
    /// # Errors
    ///
    /// Those of [`Run::save_file`].
    pub fn save_bytes(
        &self,
        name: &str,
        bytes: impl AsRef<[u8]>,
        policy: SavePolicy,
    ) -> Result<(), Error> {
        check_saved(name)?;
        self.save(name, policy, |run| Draft::of_bytes(run, bytes.as_ref()))
    }

    fn save(
        &self,
        name: &str,
        policy: SavePolicy,
        draft: impl FnOnce(&Path) -> Result<Drafted, Error>,
    ) -> Result<(), Error> {
        drop(self.shared.state()?);
        let Some(run) = self.directory() else {
            return Ok(());
        };
        let drafted = draft(run)?;
        let mut made = Made::default();
        let mut state = self.shared.state()?;
        drafted.keep_among_files(run, name, &mut made)?;
        let policy = match policy {
            SavePolicy::Now => FilePolicy::Now,
            SavePolicy::End => FilePolicy::End,
        };
        let kinds = vec![files(name, policy, FileType::Other)];
        state.append_with(&self.shared, kinds, made)
    }

    /// Adds a line, or several, to the run's console output (`output.log`).
    ///
    /// # Errors
    ///
    /// [`Error::LineTooLong`], [`Error::Io`].
    pub fn console(&self, stream: Console, text: &str) -> Result<(), Error> {
        check_size("the console line", text.len() as u64)?;
        let mut line = text.to_owned();
        if !line.ends_with('\n') {
            line.push('\n');
        }
        let output_type = match stream {
            Console::Stdout => OutputType::Stdout,
            Console::Stderr => OutputType::Stderr,
        };
        let raw = proto::OutputRaw {
            output_type: output_type.into(),
            timestamp: Some(timestamp(SystemTime::now())),
            line,
        };
        self.append(vec![Kind::OutputRaw(raw)], false)
    }

    /// Ends the run, and brings it to the disk. Waits for what is on its way to the server, at most so long; what is still pending
    /// then stays in the log for [`sync`](crate::sync).
    ///
    /// 0 is success. The log takes nothing more, from whichever clone.
    ///
    /// # Errors
    ///
    /// [`Error::Finished`] where that was done before, [`Error::Io`] where the log cannot be written: the run goes on then, but where the
    /// operation is `sync`, with which it has ended.
    pub fn finish(&self, exit_code: i32, within: Duration) -> Result<Report, Error> {
        let until = Instant::now() + within.min(Duration::from_secs(366 * 24 * 3600));
        drop(self.shared.state()?);
        let recorders: Vec<_> = lock(&self.shared.sinks)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let mut lost = 0;
        for recorder in recorders {
            lost += recorder.close(self, until.saturating_duration_since(Instant::now()))?;
        }
        let records = {
            let mut state = self.shared.state()?;
            state.end(&self.shared, exit_code)?;
            state.records()
        };
        let uploader = lock(&self.shared.uploader).take();
        let mut report = match uploader {
            Some(uploader) => uploader.finish(until.saturating_duration_since(Instant::now())),
            None => Report {
                pending: records,
                url: self.url(),
                ..Report::default()
            },
        };
        report.dropped += lost;
        Ok(report)
    }

    /// The run's page, where its entity is known: from the settings, or from the server once it was reached.
    pub fn url(&self) -> Option<String> {
        let facts = &self.shared.facts;
        if facts.is_forked() {
            return None;
        }
        let known = lock(&self.shared.uploader)
            .as_ref()
            .and_then(|uploader| uploader.status().url);
        if known.is_some() || facts.settings.mode == Mode::Disabled {
            return known;
        }
        let entity = facts.settings.entity.as_ref()?;
        let [entity, project, id] =
            [entity, &facts.settings.project, &facts.id].map(|part| quoted(part));
        Some(format!(
            "{}/{entity}/{project}/runs/{id}",
            app_url(&facts.settings.base_url)
        ))
    }

    /// Whose run it is: by the server's word, or by the settings'.
    #[cfg(feature = "weave")]
    pub(crate) fn place(&self) -> Option<(String, String)> {
        let facts = &self.shared.facts;
        if facts.is_forked() {
            return None;
        }
        let known = lock(&self.shared.uploader)
            .as_ref()
            .and_then(Uploader::place);
        known.or_else(|| {
            Some((
                facts.settings.entity.clone()?,
                facts.settings.project.clone(),
            ))
        })
    }

    /// The run's directory, absolute; `None` where the run is disabled.
    pub fn directory(&self) -> Option<&Path> {
        self.shared.facts.directory.as_deref()
    }

    /// The run's name in addresses and files.
    pub fn id(&self) -> &str {
        &self.shared.facts.id
    }

    /// The run's mode.
    pub fn mode(&self) -> Mode {
        self.shared.facts.settings.mode
    }

    /// What a person types to bring the run to the service with the official client; `None` where the run is disabled. What was
    /// acknowledged already is sent again by it, alerts included: [`sync`](crate::sync) does not.
    pub fn sync_command(&self) -> Option<String> {
        let directory = self.directory()?.to_str()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=@%,".contains(c);
        Some(if directory.chars().all(plain) {
            format!("wandb sync {directory}")
        } else {
            format!("wandb sync '{}'", directory.replace('\'', r"'\''"))
        })
    }

    pub(crate) fn append(&self, kinds: Vec<Kind>, sync: bool) -> Result<(), Error> {
        let mut state = self.shared.state()?;
        state.append(&self.shared, kinds)?;
        if sync { state.sync() } else { Ok(()) }
    }

    pub(crate) fn add_sink(&self, recorder: Weak<Recorder>) {
        lock(&self.shared.sinks).push(recorder);
    }
}

impl Facts {
    pub(crate) fn is_forked(&self) -> bool {
        self.owner != std::process::id()
    }
}

impl Shared {
    /// The state, where the run is this process's and not over. The process is compared before any lock is touched: a thread that
    /// is not in the copy may have held it.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.facts.is_forked() {
            return Err(Error::Forked {
                owner: self.facts.owner,
            });
        }
        let state = lock(&self.state);
        if state.is_over() {
            Err(Error::Finished)
        } else {
            Ok(state)
        }
    }

    /// The run, while somebody has it.
    pub(crate) fn run(shared: &Weak<Self>) -> Option<Run> {
        shared.upgrade().map(|shared| Run { shared })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody else has it, so no lock is taken: in a copy made by fork(2), a thread that is not there may have held it.
        let uploader = self
            .uploader
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if self.facts.is_forked() {
            // Its thread is not here.
            std::mem::forget(uploader);
            return;
        }
        if let Ok(mut state) = self.state() {
            // A log that cannot be written is closed by the next repair.
            let _ = state.end(self, 1);
        }
        if let Some(uploader) = uploader {
            uploader.finish(LAST);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("id", &self.id())
            .field("mode", &self.mode())
            .field("directory", &self.directory())
            .finish_non_exhaustive()
    }
}

fn row_of<T: Serialize + ?Sized>(row: &T) -> Result<Vec<(String, Value)>, Error> {
    let entries = Value::map_of(row, "a row")?;
    entries.iter().try_for_each(|(key, _)| names::key(key))?;
    Ok(entries)
}

/// Entries as items, where they fit into a line.
fn items(entries: Vec<(String, Value)>, what: &'static str) -> Result<Vec<Item>, Error> {
    let all: Vec<Item> = entries
        .into_iter()
        .map(|(key, value)| item(key, value.json()))
        .collect();
    check_size(what, line_size(&all))?;
    Ok(all)
}

/// Bytes of the line that the items become.
pub(crate) fn line_size(items: &[Item]) -> u64 {
    let escaped = |key: &str| {
        key.bytes()
            .filter(|byte| matches!(byte, b'"' | b'\\' | 0..=31))
            .count()
            * 5
    };
    let one = |item: &Item| item.key.len() + escaped(&item.key) + item.value_json.len() + 4;
    items.iter().map(|item| one(item) as u64).sum::<u64>() + 2
}

fn check_size(what: &'static str, size: u64) -> Result<(), Error> {
    let most = LONGEST_LINE;
    if size > most {
        Err(Error::LineTooLong { what, size, most })
    } else {
        Ok(())
    }
}

fn files(path: &str, policy: FilePolicy, kind: FileType) -> Kind {
    Kind::Files(proto::Files {
        files: vec![FilesItem {
            path: path.to_owned(),
            policy: policy.into(),
            r#type: kind.into(),
        }],
    })
}

fn check_saved(name: &str) -> Result<(), Error> {
    const WHAT: &str = "the name of a saved file";
    names::relative(WHAT, name)?;
    if GENERATED.contains(&name) || name.starts_with("media/") {
        let found = name.to_owned();
        let allowed = "none of the files that clients make themselves (config.yaml, output.log, wandb-*, media/...)";
        return Err(Error::Name {
            what: WHAT,
            found,
            allowed,
        });
    }
    Ok(())
}

/// Where an artifact's own names for its files are.
fn own_directory(run: &Path, number: u64) -> PathBuf {
    run.join("varek/artifacts").join(number.to_string())
}

/// A part of an address.
pub(crate) fn quoted(part: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // A string takes everything.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
