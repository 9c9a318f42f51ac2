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
