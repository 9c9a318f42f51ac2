//! The sink.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{END, Head, Link, MARK};
use crate::arguments::hex;
use crate::file::{LogError, LogFile, Losses};
use crate::owner::Owner;
use crate::{Event, EventKind, Flushed, Sink};

/// Appends each event to a file as a line of JSON that is chained to all lines before it.
///
/// A line is that of [`JsonLines`](crate::JsonLines) with two fields more at its end: `index`, which counts from 0, and
/// `chain`, the SHA-256 of the chain before it and of the line up to there. [`verify`](crate::verify) finds the first line
/// that was altered, removed, exchanged or put in. The chain has no secret in it: who can write to the file can write
/// all of it anew, or cut off its end, and what shows that is a [`Head`] that was kept elsewhere, or one that was signed
/// (`signed_by`, with the feature `signing`) with a key that the writer of the change does not have.
///
/// What survives, what fails and what is locked is as with [`JsonLines`](crate::JsonLines), with these differences: there
/// is no rotation; a log that is opened again goes on where it ended, with the hash of its last line as it is found
/// there; a torn last line, which was never part of the chain, is cut off when the log is opened.
///
/// Linux only.
#[derive(Debug)]
pub struct AuditLog {
    pub(super) path: PathBuf,
    owner: Owner,
    #[cfg(feature = "signing")]
    pub(super) key: Option<super::SigningKey>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: LogFile,
    head: Head,
    buffer: Vec<u8>,
    losses: Losses,
}

impl AuditLog {
    /// Opens the log and goes on with its chain, or makes it.
    ///
    /// # Errors
    ///
    /// [`LogError`] where it cannot be opened, locked or read, or does not end like an audit log.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, LogError> {
        let path = path.into();
        let mut file = LogFile::open(&path)?;
        let (last, whole) = file.last_line().map_err(LogError::io("read", &path))?;
        let head = if file.length == 0 {
            Head::empty()
        } else if let Some(link) = Link::parse(&last) {
            Head {
                lines: link.index.saturating_add(1),
                chain: link.chain,
            }
        } else if whole == 0 && torn_first_line(&file, &path)? {
            Head::empty()
        } else {
            return Err(LogError::NotAnAuditLog { path });
        };
        if whole < file.length {
            file.cut(whole).map_err(LogError::io("truncate", &path))?;
        }
        Ok(Self {
            path,
            owner: Owner::this(),
            #[cfg(feature = "signing")]
            key: None,
            state: Mutex::new(State {
                file,
                head,
                buffer: Vec::new(),
                losses: Losses::default(),
            }),
        })
    }

    /// The end of the log as it is now.
    pub fn head(&self) -> Head {
        self.state().head
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "signing")]
    fn sign(&self, head: &Head) -> Result<(), LogError> {
        match &self.key {
            Some(key) => super::signed::write(&self.path, &key.sign(head)),
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "signing"))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "with the feature there is a key, and a file to write"
    )]
    const fn sign(&self, _head: &Head) -> Result<(), LogError> {
        Ok(())
    }
}

/// Whether all that there is looks like the beginning of a first line: nothing else is cut off.
fn torn_first_line(file: &LogFile, path: &std::path::Path) -> Result<bool, LogError> {
    const BEGIN: &[u8] = b"{\"v\":";
    let start = file
        .beginning(BEGIN.len())
        .map_err(LogError::io("read", path))?;
    Ok(BEGIN.starts_with(&start))
}

impl State {
    /// The line of an event; the head that comes after it.
    fn add(&mut self, head: Head, event: &Event) -> Result<Head, serde_json::Error> {
        let begin = self.buffer.len();
        let written = serde_json::to_writer(&mut self.buffer, event);
        if written.is_err() || self.buffer.pop() != Some(b'}') {
            self.buffer.truncate(begin);
            return written.map(|()| head);
        }
        // A vector takes everything.
        let _ = write!(self.buffer, ",\"index\":{}", head.lines);
        let head = head.next(self.buffer.get(begin..).unwrap_or_default());
        self.buffer.extend_from_slice(MARK);
        self.buffer.extend_from_slice(hex(&head.chain).as_bytes());
        self.buffer.extend_from_slice(END);
        self.buffer.push(b'\n');
        Ok(head)
    }

    fn record_all(&mut self, events: &[Event]) {
        let Some(first) = events.first() else { return };
        self.buffer.clear();
        let mut head = self.head;
        let (mut count, mut reported) = (0, 0);
        let lost = self.losses.untold;
        if lost > 0 {
            let kind = EventKind::EventsDropped { count: lost };
            let gap = Event {
                kind,
                ..first.clone()
            };
            if let Ok(next) = self.add(head, &gap) {
                head = next;
                reported = lost;
            }
        }
        for event in events {
            match self.add(head, event) {
                Ok(next) => {
                    head = next;
                    count += 1;
                }
                Err(error) => self.losses.add(1, &error),
            }
        }
        match self.file.append(&self.buffer) {
            Ok(()) => {
                self.head = head;
                self.losses.written(reported, count);
            }
            Err(error) => self.losses.add(count, &error),
        }
    }
}

impl Sink for AuditLog {
    fn record(&self, event: &Event) {
        self.record_all(std::slice::from_ref(event));
    }

    fn record_all(&self, events: &[Event]) {
        if self.owner.is_here() {
            self.state().record_all(events);
        }
    }

    /// fdatasync(2), however long that takes; then the signed head, where there is a key.
    fn flush(&self, _within: Duration) -> Flushed {
        if !self.owner.is_here() {
            return Flushed::Complete;
        }
        let mut state = self.state();
        let done = state
            .file
            .sync()
            .map_err(LogError::io("sync", &self.path))
            .and_then(|()| self.sign(&state.head));
        if let Err(error) = done {
            state.losses.fault = Some(error.to_string());
            state.losses.unflushed = state.losses.unflushed.max(1);
        }
        match std::mem::take(&mut state.losses.unflushed) {
            0 => Flushed::Complete,
            lost => Flushed::Lost(lost),
        }
    }

    fn fault(&self) -> Option<String> {
        self.owner
            .is_here()
            .then(|| self.state().losses.fault.clone())?
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.flush(Duration::ZERO);
    }
}
