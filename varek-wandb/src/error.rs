//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be done. What the server answers is no error of a run: see [`Run::finish`](crate::Run::finish).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another process, or another part of this one, has the run's log open.
    #[error("{} is being written by another run; let that one finish first", path.display())]
    InUse {
        /// The log.
        path: PathBuf,
    },
    /// A log is damaged in its middle: there are good records behind the damage, which a cut would lose.
    #[error(
        "{} is damaged at byte {offset} ({reason}), and whole records follow; it was left as it is: keep a copy, and cut it there to \
         keep what is before", path.display()
    )]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// Where the damage begins, bytes from the start of the file.
        offset: u64,
        /// What is wrong there.
        reason: Damage,
    },
    /// The file does not begin like a log, or not with a run.
    #[error("{} is no log of a run: {reason}", path.display())]
    NotALog {
        /// The file.
        path: PathBuf,
        /// What is wrong with its beginning.
        reason: &'static str,
    },
    /// A record is larger than a log can hold.
    #[error("a record of {size} bytes is larger than {most}, the most that a log holds")]
    RecordTooLarge {
        /// Its size, bytes.
        size: usize,
        /// The bound, bytes.
        most: usize,
    },
    /// A setting that cannot be used, from the embedder or from the environment.
    #[error("{setting} is {found:?}; it can be: {allowed}")]
    Setting {
        /// The environment variable of that name; the builder has a method for it.
        setting: &'static str,
        /// What was found. Of a key, not its text.
        found: String,
        /// What it can be.
        allowed: &'static str,
    },
    /// The mode is online, and there is no key.
    #[error(
        "online mode needs a key for {base_url}: set WANDB_API_KEY, add the machine to ~/.netrc, or use the mode offline and sync later"
    )]
    NoKey {
        /// The server.
        base_url: String,
    },
    /// A netrc file is malformed.
    #[error("line {line} of {} is not understood; correct it, or set WANDB_API_KEY", path.display())]
    Netrc {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
    },
    /// A name, title or path that the service does not take, or that leads somewhere else.
    #[error("{what} {found:?} cannot be used; it can be: {allowed}")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        found: String,
        /// What it can be.
        allowed: &'static str,
    },
    /// The same name twice in one artifact or table.
    #[error("{what} {name:?} is there twice")]
    Twice {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Something that cannot be written as a value.
    #[error("no value can be made of it: {reason}")]
    Value {
        /// Why.
        reason: String,
    },
    /// A row, a summary, a config or metadata that has no keys.
    #[error("{what} must be a map with texts as keys, or a struct; this is {found}")]
    NotAMap {
        /// What it was given for.
        what: &'static str,
        /// What was found.
        found: &'static str,
    },
    /// A row or a summary with a key that the run writes itself.
    #[error("the key {key:?} is written by the run itself; choose another")]
    ReservedKey {
        /// The key.
        key: String,
    },
    /// NaN or an infinity where the service takes none.
    #[error(
        "{what} {key:?} holds NaN or an infinity, which the service takes in rows and summaries alone"
    )]
    NotFinite {
        /// Where.
        what: &'static str,
        /// The key.
        key: String,
    },
    /// A row for a step that has one already, or is behind it.
    #[error(
        "step {step} cannot be logged after step {last}: rows are never changed and never dropped; put what belongs to one step into one row"
    )]
    StepInPast {
        /// The step that was asked for.
        step: u64,
        /// The last one that was logged.
        last: u64,
    },
    /// More in one row, summary or config than the service takes in a line. Nothing of it was written.
    #[error(
        "{what} is {size} bytes, and the service takes {most} in a line; log it as a file of an artifact"
    )]
    LineTooLong {
        /// What.
        what: &'static str,
        /// Its size, bytes.
        size: u64,
        /// The bound, bytes.
        most: u64,
    },
    /// A table's row has more or fewer values than the table has columns.
    #[error("row {row} has {found} values, and the table has {columns} columns")]
    RowLength {
        /// The row's number, from 0.
        row: usize,
        /// Its values.
        found: usize,
        /// The table's columns.
        columns: usize,
    },
    /// A table's value that is not of its column's kind, which the first value other than null decides.
    #[error("row {row} has {found} in column {column:?}, which holds {expected}")]
    CellKind {
        /// The row's number, from 0.
        row: usize,
        /// The column.
        column: String,
        /// The kind of value.
        found: &'static str,
        /// What the column holds.
        expected: &'static str,
    },
    /// Something to be copied is no regular file: a directory, a device, a FIFO, a socket, or a link to a directory.
    #[error("{} is no regular file, and nothing else is copied", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A symbolic link in a directory that is being copied leads out of it, or there is one on the way to a file among the run's own.
    #[error("{} is a link that leads out of its directory; remove it, or add what it means as a file of its own", path.display())]
    LeadsOut {
        /// The link.
        path: PathBuf,
    },
    /// A run's beginning is on another server.
    #[error(
        "the run of {} was sent to {server} in part or whole; sync it there, or remove `varek/acknowledged.jsonl` beside it to send it anew",
        path.display()
    )]
    OtherServer {
        /// The log.
        path: PathBuf,
        /// The server's base URL.
        server: String,
    },
    /// The run is over.
    #[error("the run is finished, and takes nothing more")]
    Finished,
    /// This process is a copy of the one that started the run, made by fork(2), and has no part in it.
    #[error(
        "the run belongs to process {owner}, of which this one is a copy; start a run of its own here"
    )]
    Forked {
        /// The process that started the run.
        owner: u32,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

/// What is wrong at a place of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file ends within a record.
    #[error("the file ends within a record")]
    Cut,
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// A chunk of no known kind, longer than its block, or out of order.
    #[error("no chunk begins here")]
    Framing,
    /// The bytes are no record, though the checksum matches.
    #[error("the bytes are no record")]
    Record,
}
