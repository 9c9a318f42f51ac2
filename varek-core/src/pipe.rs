//! Bounded byte queues between the embedder's threads and the supervisor.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How much a queue holds before its producer has to wait.
pub(crate) const CAPACITY: usize = 256 * 1024;

/// What the supervisor is told when the embedder's side of a queue has changed.
pub(crate) type Notify = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Nothing more will be put in.
    finished: bool,
    /// Nothing more will be taken out.
    abandoned: bool,
}

/// A queue with one side in the supervisor, which never waits, and one in the embedder, which may.
#[derive(Default)]
pub(crate) struct ByteQueue {
    state: Mutex<State>,
    changed: Condvar,
}

impl ByteQueue {
    /// A queue that is full of these bytes and gets no more.
    pub(crate) fn filled(bytes: Vec<u8>) -> Self {
        let state = State {
            bytes: bytes.into(),
            finished: true,
            abandoned: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts bytes in, whatever the capacity; says whether there is room for more.
    pub(crate) fn push(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        if !state.abandoned {
            state.bytes.extend(bytes);
        }
        self.changed.notify_all();
        state.bytes.len() < CAPACITY
    }

    pub(crate) fn has_room(&self) -> bool {
        self.state().bytes.len() < CAPACITY
    }

    /// Nothing more will be put in.
    pub(crate) fn finish(&self) {
        self.state().finished = true;
        self.changed.notify_all();
    }

    /// Nothing more will be taken out.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.bytes.clear();
        self.changed.notify_all();
    }

    /// Lets `write` take bytes from the front; it says how many it took.
    pub(crate) fn drain_into(
        &self,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<Drained> {
        let mut state = self.state();
        if state.bytes.is_empty() {
            return Ok(if state.finished {
                Drained::Finished
            } else {
                Drained::Empty
            });
        }
        let taken = write(state.bytes.as_slices().0)?.min(state.bytes.len());
        state.bytes.drain(..taken);
        self.changed.notify_all();
        Ok(Drained::More)
    }
}

/// What is left in a queue.
pub(crate) enum Drained {
    /// Perhaps more.
    More,
    /// Nothing now.
    Empty,
    /// Nothing ever again.
    Finished,
}

/// The read end of a guest's stdout or stderr, for [`Output::piped`](crate::Output::piped).
///
/// Reading ends with 0 bytes when every process of the guest has closed it or the tree is dead.
pub struct ChildOutput {
    pub(crate) queue: Arc<ByteQueue>,
    pub(crate) notify: Notify,
}

impl Read for ChildOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.queue.state();
        while state.bytes.is_empty() && !state.finished {
            state = self
                .queue
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let was_full = state.bytes.len() >= CAPACITY;
        let read = state.bytes.read(buffer)?;
        let resume = was_full && state.bytes.len() < CAPACITY;
        drop(state);
        if resume {
            (self.notify)();
        }
        Ok(read)
    }
}

impl Drop for ChildOutput {
    fn drop(&mut self) {
        self.queue.abandon();
        (self.notify)();
    }
}

impl fmt::Debug for ChildOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildOutput").finish_non_exhaustive()
    }
}

/// The write end of a guest's stdin, for [`Input::piped`](crate::Input::piped). Dropping it gives the
/// guest end of file.
///
/// Writing blocks while the guest does not read and the buffer is full; when the guest has closed its
/// end or is gone, it fails with [`io::ErrorKind::BrokenPipe`]. No SIGPIPE is ever raised.
pub struct ChildInput {
    pub(crate) queue: Arc<ByteQueue>,
    pub(crate) notify: Notify,
}

impl Write for ChildInput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.queue.state();
        while state.bytes.len() >= CAPACITY && !state.abandoned {
            state = self
                .queue
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = bytes.len().min(CAPACITY - state.bytes.len());
        state.bytes.extend(bytes.iter().take(taken));
        drop(state);
        (self.notify)();
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut state = self.queue.state();
        while !state.bytes.is_empty() && !state.abandoned {
            state = self
                .queue
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }
}

impl Drop for ChildInput {
    fn drop(&mut self) {
        self.queue.finish();
        (self.notify)();
    }
}

impl fmt::Debug for ChildInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildInput").finish_non_exhaustive()
    }
}
