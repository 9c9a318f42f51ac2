//! Events as lines of JSON in a file.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::file::{LogError, LogFile, Losses};
use crate::owner::Owner;
use crate::{Event, EventKind, Flushed, Sink};

/// Appends each event to a file as one line of JSON, in the form that [`Record`](crate::Record) describes.
///
/// # What survives
/// A line is written as soon as it is recorded, by one write(2); behind a [`Queue`](crate::Queue), those lines that were
/// waiting there go out in one write(2) together. The writer's death by SIGKILL leaves at most the last line torn, and
/// takes the events that were still in the queue. Against the host's own crash only [`Sink::flush`] helps, which is
/// fdatasync(2). On opening, a torn last line is given an end and left as it is; [`records`](crate::records)
/// calls it malformed and goes on.
///
/// # What fails
/// Where a line cannot be written (no space, no quota, an I/O error), what was written of it is taken back, the event is
/// counted, [`Sink::fault`] says why, and the first line that can be written again is an
/// [`EventKind::EventsDropped`]. A process with a file size limit (RLIMIT_FSIZE) has to block or ignore SIGXFSZ,
/// as the threads of `varek-core` do.
///
/// A log that cannot be rotated grows, and [`Sink::fault`] says so.
///
/// # The file
/// It is made with mode 0600 and locked (flock(2)): one sink at a time, in all processes. Where the
/// embedder ends without dropping the sink, a copy of it that fork(2) made without exec holds the lock until it ends too. A symbolic link as the last component of the path is
/// refused. The directory must be the embedder's own, out of the guest's reach.
///
/// Linux only.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    rotation: Option<Rotation>,
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Rotation {
    bytes: u64,
    kept: usize,
}

#[derive(Debug)]
struct State {
    file: LogFile,
    /// Lines on their way into the file, and of how many events.
    buffer: Vec<u8>,
    buffered: u64,
    /// How many lost events the lines on their way tell of.
    reported: u64,
    losses: Losses,
    /// Why no new file could be started, until one is.
    stays: Option<String>,
}

impl JsonLines {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// [`LogError`] where it cannot be opened, locked, or given an end to its last line.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, LogError> {
        let path = path.into();
        let mut file = LogFile::open(&path)?;
        let (_, whole) = file.last_line().map_err(LogError::io("read", &path))?;
        if whole < file.length {
            file.append(b"\n").map_err(LogError::io("write", &path))?;
        }
        Ok(Self {
            path,
            rotation: None,
            owner: Owner::this(),
            state: Mutex::new(State {
                file,
                buffer: Vec::new(),
                buffered: 0,
                reported: 0,
                losses: Losses::default(),
                stays: None,
            }),
        })
    }

    /// Starts a new file before a line that would make this one longer than `bytes`, and keeps this many old ones:
    /// `PATH.1` is the youngest, `PATH.2` the one before it. A single line longer than that gets a file of its own.
    #[must_use]
    pub const fn rotating(mut self, bytes: u64, kept: usize) -> Self {
        self.rotation = Some(Rotation { bytes, kept });
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, state: &mut State, event: &Event) {
        let begin = state.buffer.len();
        if let Err(error) = serde_json::to_writer(&mut state.buffer, event) {
            state.buffer.truncate(begin);
            state.losses.add(1, &error);
            return;
        }
        state.buffer.push(b'\n');
        state.buffered += 1;
        let Some(rotation) = self.rotation else {
            return;
        };
        let end = state.file.length + state.buffer.len() as u64;
        if end > rotation.bytes && end > (state.buffer.len() - begin) as u64 {
            let line = state.buffer.split_off(begin);
            state.buffered -= 1;
            Self::write(state);
            // Where no file can be started the old one grows: a longer file is better than a lost event.
            state.stays = self
                .rotate(state, rotation.kept)
                .err()
                .map(|error| format!("the log is not rotated: {error}"));
            state.buffer = line;
            state.buffered = 1;
        }
    }

    fn write(state: &mut State) {
        match state.file.append(&state.buffer) {
            Ok(()) => state.losses.written(state.reported, state.buffered),
            Err(error) => state.losses.add(state.buffered, &error),
        }
        state.buffer.clear();
        state.buffered = 0;
        state.reported = 0;
    }

    fn rotate(&self, state: &mut State, kept: usize) -> Result<(), LogError> {
        let fresh = self.numbered("new");
        let io = |operation| LogError::io(operation, &self.path);
        // What a writer left that was killed here.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(LogError::io("remove", &fresh)(error));
            }
            _ => {}
        }
        let file = LogFile::create(&fresh)?;
        state.file.sync().map_err(io("sync"))?;
        for number in (1..kept).rev() {
            let (from, to) = (self.numbered(number), self.numbered(number + 1));
            missing_is_fine(fs::rename(&from, &to)).map_err(LogError::io("rename", &from))?;
        }
        if kept > 0 {
            missing_is_fine(fs::rename(&self.path, self.numbered(1))).map_err(io("rename"))?;
        }
        fs::rename(&fresh, &self.path).map_err(LogError::io("rename", &fresh))?;
        state.file = file;
        Ok(())
    }

    fn numbered(&self, suffix: impl fmt::Display) -> PathBuf {
        numbered(&self.path, suffix)
    }
}

/// `PATH.SUFFIX`.
pub(crate) fn numbered(path: &Path, suffix: impl fmt::Display) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{suffix}"));
    name.into()
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Sink for JsonLines {
    fn record(&self, event: &Event) {
        self.record_all(std::slice::from_ref(event));
    }

    fn record_all(&self, events: &[Event]) {
        let (true, Some(first)) = (self.owner.is_here(), events.first()) else {
            return;
        };
        let mut state = self.state();
        let state = &mut *state;
        let count = state.losses.untold;
        if count > 0 {
            self.add(
                state,
                &Event {
                    kind: EventKind::EventsDropped { count },
                    ..first.clone()
                },
            );
            // The report of a loss is none of the events that were recorded, and is not counted as one.
            state.reported = std::mem::take(&mut state.buffered) * count;
        }
        for event in events {
            self.add(state, event);
        }
        Self::write(state);
    }

    /// fdatasync(2), however long that takes.
    fn flush(&self, _within: Duration) -> Flushed {
        if !self.owner.is_here() {
            return Flushed::Complete;
        }
        let mut state = self.state();
        if let Err(error) = state.file.sync() {
            state.losses.fault = Some(format!("sync {}: {error}", self.path.display()));
            state.losses.unflushed = state.losses.unflushed.max(1);
        }
        match std::mem::take(&mut state.losses.unflushed) {
            0 => Flushed::Complete,
            lost => Flushed::Lost(lost),
        }
    }

    fn fault(&self) -> Option<String> {
        if !self.owner.is_here() {
            return None;
        }
        let state = self.state();
        state.losses.fault.clone().or_else(|| state.stays.clone())
    }
}
