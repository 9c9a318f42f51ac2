//! Files that lines are appended to, whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::owner::Owner;

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
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
    /// Another sink has the log open, in this process, in another one, or in a forked copy of one.
    #[error("{} is being written by another sink", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is a directory, a pipe or a device.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The last whole line is none of an audit log.
    #[error("{} does not end like an audit log", path.display())]
    NotAnAuditLog {
        /// The file.
        path: PathBuf,
    },
    /// The signed head beside an audit log cannot be read, or was not signed by this key.
    #[error("the signed head {} is not good: {reason}", path.display())]
    BadHead {
        /// The file of the head.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An audit log ends before the head that was signed for it, or with another line.
    #[error("{} has {lines} lines and is not the log of {signed} lines that was signed", path.display())]
    Altered {
        /// The log.
        path: PathBuf,
        /// Lines in the log.
        lines: u64,
        /// Lines in the signed head.
        signed: u64,
    },
}

impl LogError {
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

/// A file that this process alone appends to.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    pub(crate) length: u64,
    /// Something beyond `length` was written and could not be taken back.
    dirty: bool,
    owner: Owner,
}

impl LogFile {
    /// Opens or makes the file, readable and writable by its owner, and takes its lock. A symbolic link in the
    /// last component is refused: whoever may write to the directory could otherwise send the log elsewhere.
    pub(crate) fn open(path: &Path) -> Result<Self, LogError> {
        Self::with(path, OpenOptions::new().create(true))
    }

    /// Makes the file, which must not be there.
    pub(crate) fn create(path: &Path) -> Result<Self, LogError> {
        Self::with(path, OpenOptions::new().create_new(true))
    }

    fn with(path: &Path, options: &mut OpenOptions) -> Result<Self, LogError> {
        let file = options
            .read(true)
            .append(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(LogError::io("open", path))?;
        let metadata = file.metadata().map_err(LogError::io("stat", path))?;
        if !metadata.is_file() {
            let path = path.to_owned();
            return Err(LogError::NotAFile { path });
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let path = path.to_owned();
                return Err(LogError::InUse { path });
            }
            Err(errno) => return Err(LogError::io("lock", path)(errno.into())),
        }
        // After the lock: whoever held it may have written until then.
        let length = file.metadata().map_err(LogError::io("stat", path))?.len();
        Ok(Self {
            file,
            length,
            dirty: false,
            owner: Owner::this(),
        })
    }

    /// Appends all of it or, as far as the file system allows, nothing.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.dirty {
            self.cut(self.length)?;
            self.dirty = false;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match self.file.write(rest) {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
                done => done,
            };
            match written {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => {
                    self.dirty = rest.len() < bytes.len() && self.cut(self.length).is_err();
                    return Err(error);
                }
            }
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Cuts the file to this length.
    pub(crate) fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.length = length;
        Ok(())
    }

    /// Brings what was written to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The first bytes, this many at most.
    pub(crate) fn beginning(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        Read::take(file, count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The last line that has an end, without it, and where what comes after it begins.
    pub(crate) fn last_line(&self) -> io::Result<(Vec<u8>, u64)> {
        const STEP: u64 = 64 * 1024;
        let mut file = &self.file;
        let mut tail = Vec::new();
        let mut start = self.length;
        loop {
            let ends: Vec<usize> = tail
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'\n')
                .map(|(at, _)| at)
                .collect();
            let (from, end) = match ends.as_slice() {
                [.., before, end] => (before + 1, Some(*end)),
                [end] => (0, Some(*end)),
                [] => (0, None),
            };
            // Two ends bound the last line; the beginning of the file bounds it too.
            if ends.len() >= 2 || start == 0 {
                return Ok(match end {
                    Some(end) => {
                        let line = tail.get(from..end).unwrap_or_default().to_vec();
                        (line, start + end as u64 + 1)
                    }
                    None => (Vec::new(), 0),
                });
            }
            let step = STEP.max(tail.len() as u64).min(start);
            start -= step;
            file.seek(SeekFrom::Start(start))?;
            let mut before = Vec::new();
            Read::take(file, step).read_to_end(&mut before)?;
            before.append(&mut tail);
            tail = before;
        }
    }
}

impl Drop for LogFile {
    /// Gives the lock back by hand. Otherwise it would last as long as any copy of the descriptor, and whoever starts
    /// a program on another thread just now has one until that program's exec.
    fn drop(&mut self) {
        // To a forked copy the lock does not belong, and it could take it away from the embedder.
        if self.owner.is_here() {
            // What cannot be given back ends with the descriptor.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// What became of what a log was given.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Since the flush before.
    pub(crate) unflushed: u64,
    /// Since the last line that could be written.
    pub(crate) untold: u64,
    /// Why the last write failed, until one succeeds.
    pub(crate) fault: Option<String>,
}

impl Losses {
    pub(crate) fn add(&mut self, events: u64, error: &impl ToString) {
        self.unflushed += events;
        self.untold += events;
        self.fault = Some(error.to_string());
    }

    /// A write succeeded, of so many events and of a line that tells of so many lost ones.
    pub(crate) fn written(&mut self, told: u64, events: u64) {
        self.untold = self.untold.saturating_sub(told);
        if events > 0 {
            self.fault = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(content: &[u8]) -> (Vec<u8>, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, content).unwrap();
        LogFile::open(&path).unwrap().last_line().unwrap()
    }

    #[test]
    fn the_last_whole_line_is_found_in_files_of_any_shape() {
        assert_eq!(last(b""), (Vec::new(), 0));
        assert_eq!(last(b"torn"), (Vec::new(), 0));
        assert_eq!(last(b"one\n"), (b"one".to_vec(), 4));
        assert_eq!(last(b"one\ntwo\n"), (b"two".to_vec(), 8));
        assert_eq!(last(b"one\ntwo\nto"), (b"two".to_vec(), 8));
        let long = vec![b'x'; 200_000];
        let mut content = b"one\n".to_vec();
        content.extend_from_slice(&long);
        content.extend_from_slice(b"\ntorn");
        assert_eq!(last(&content), (long, 200_005));
    }

    #[test]
    fn a_log_is_no_link_no_directory_no_pipe_and_has_one_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(LogFile::open(&link), Err(LogError::Io { .. })));
        assert!(!path.exists());
        let device = LogFile::open(Path::new("/dev/null"));
        assert!(matches!(device, Err(LogError::NotAFile { .. })));

        let first = LogFile::open(&path).unwrap();
        assert!(matches!(LogFile::open(&path), Err(LogError::InUse { .. })));
        // As a program has it that is just being started on another thread.
        let copy = first.file.try_clone().unwrap();
        drop(first);
        LogFile::open(&path).unwrap();
        drop(copy);
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o077, 0);
    }
}
