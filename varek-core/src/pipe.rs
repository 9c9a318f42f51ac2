//! Bounded byte queues between the embedder's threads and the supervisor.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::cell::wake;

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
    /// Of the embedder's side, where it awaits a change.
    waker: Option<Waker>,
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
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks `ready` for an answer, or has the task woken when something has changed. What the embedder's waker does when it is
    /// cloned or dropped, it does while nobody waits for the queue: the supervisor would, and all runs with it.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        ready: impl FnOnce(MutexGuard<'_, State>) -> Result<T, MutexGuard<'_, State>>,
    ) -> Poll<T> {
        let waker = context.waker().clone();
        let (former, answer) = match ready(self.state()) {
            Ok(answer) => (Some(waker), Poll::Ready(answer)),
            Err(mut state) => (state.waker.replace(waker), Poll::Pending),
        };
        drop(former);
        answer
    }

    /// Puts bytes in, whatever the capacity; says whether there is room for more.
    pub(crate) fn push(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        if !state.abandoned {
            state.bytes.extend(bytes);
        }
        let room = state.bytes.len() < CAPACITY;
        self.tell(state);
        room
    }

    /// Wakes the embedder's side, however it waits.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        wake(waker);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.state().bytes.len() < CAPACITY
    }

    /// Nothing more will be put in.
    pub(crate) fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        self.tell(state);
    }

    /// Nothing more will be taken out.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.bytes.clear();
        self.tell(state);
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
        self.tell(state);
        Ok(Drained::More)
    }
}

/// A queue that is finished when nobody is left who could fill it.
#[derive(Default)]
pub(crate) struct Filling(pub(crate) Arc<ByteQueue>);

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.finish();
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
/// Reading ends with 0 bytes when every process of the guest has closed it or the tree is dead. It waits, unless it is
/// polled ([`ChildOutput::poll_read`]); with the feature `tokio` it is an `AsyncRead`. Up to 256 KiB and what the pipe has is kept for
/// a reader, then the guest is held back.
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
        take(state, &self.notify, buffer)
    }
}

/// Takes what is there.
fn take(mut state: MutexGuard<'_, State>, notify: &Notify, buffer: &mut [u8]) -> io::Result<usize> {
    let was_full = state.bytes.len() >= CAPACITY;
    let read = state.bytes.read(buffer)?;
    let resume = was_full && state.bytes.len() < CAPACITY;
    drop(state);
    if resume {
        notify();
    }
    Ok(read)
}

impl ChildOutput {
    /// Reads what is there, or has the task woken when there is something: for executors of any kind. The supervisor wakes it, so
    /// the waker must not block.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.queue.poll(context, |state| {
            if state.bytes.is_empty() && !state.finished {
                return Err(state);
            }
            Ok(take(state, &self.notify, buffer))
        })
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
/// guest end of file, and leaves its output open.
///
/// Writing takes up to 256 KiB at once, and blocks while the guest does not read and the buffer is full; when the guest has closed its
/// end or is gone, it fails with [`io::ErrorKind::BrokenPipe`]: at the run's deadline at the latest. No SIGPIPE is ever raised.
/// It can be polled instead ([`ChildInput::poll_write`]); with the feature `tokio` it is an `AsyncWrite`, whose shutdown gives end of file.
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
        give(state, &self.notify, bytes)
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

/// Puts in what there is room for.
fn give(mut state: MutexGuard<'_, State>, notify: &Notify, bytes: &[u8]) -> io::Result<usize> {
    if state.abandoned || state.finished {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let taken = bytes.len().min(CAPACITY - state.bytes.len());
    state.bytes.extend(bytes.iter().take(taken));
    drop(state);
    notify();
    Ok(taken)
}

impl ChildInput {
    /// Writes what there is room for, or has the task woken when there is room: for executors of any kind. The supervisor wakes
    /// it, so the waker must not block.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::BrokenPipe`] when the guest has closed its end or is gone, and after [`ChildInput::poll_shutdown`].
    pub fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.queue.poll(context, |state| {
            if state.bytes.len() >= CAPACITY && !state.abandoned && !state.finished {
                return Err(state);
            }
            Ok(give(state, &self.notify, bytes))
        })
    }

    /// Ready when the guest's pipe has everything that was written.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::BrokenPipe`] when the guest has closed its end or is gone.
    pub fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll(context, |state| {
            if state.abandoned {
                return Ok(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if state.bytes.is_empty() {
                return Ok(Ok(()));
            }
            Err(state)
        })
    }

    /// Gives the guest end of file after what was written, without waiting for that.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.finish();
        (self.notify)();
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio")]
mod tokio;

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
