//! The handle of a running guest.

use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use varek_telemetry::{Cause, RunId};

use crate::calls::Calls;
use crate::cell::Cell;
use crate::error::Error;
use crate::files::Files;
use crate::outcome::Outcome;
use crate::pipe::{ChildInput, ChildOutput};
use crate::sandbox::Engine;
use crate::supervisor::{Key, Message};

/// A running guest, with its whole tree of processes.
///
/// Its limits hold whether or not anybody waits. Dropping the handle kills the tree, without waiting for
/// it, unless it is the last of a [`Sandbox`](crate::Sandbox) that is dropped already: then for the sandbox's end. It can be waited for (blocking), asked, or awaited: it is a `Future` that any executor can poll,
/// woken by the supervisor, on whose thread the waker is called and must not block. However often its end is asked for, the answer is the same outcome.
#[must_use = "dropping the handle kills the guest"]
pub struct Child {
    /// The write end of the guest's stdin, where it was [`Input::piped`](crate::Input::piped). `wait`
    /// does not close it: take it, or drop it, if the guest reads to the end.
    pub stdin: Option<ChildInput>,
    /// The read end of the guest's stdout, where it was [`Output::piped`](crate::Output::piped).
    pub stdout: Option<ChildOutput>,
    /// The read end of the guest's stderr, where it was [`Output::piped`](crate::Output::piped).
    pub stderr: Option<ChildOutput>,
    pub(crate) files: Files,
    pub(crate) calls: Calls,
    pub(crate) run: RunId,
    pub(crate) key: Key,
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) cell: Arc<Cell>,
    /// Keeps the supervisor and the spawner alive as long as the guest.
    pub(crate) engine: Arc<Engine>,
}

impl Child {
    /// The process id of the guest's first process, in the embedder's pid namespace; 0 where a limit ended the run
    /// before there was one. It may be reused by
    /// another process once the guest has ended: prefer [`Child::as_fd`] for everything but display.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// The run's name, as in its events.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The files of the guest's scratch directory, for as long as its tree lives. What is wanted after that is named in
    /// [`Command::collect`](crate::Command::collect).
    pub fn files(&self) -> Files {
        self.files.clone()
    }

    /// Waits until the whole tree is gone: by the deadline of the policy and its grace at the latest.
    ///
    /// # Errors
    ///
    /// [`Error::SupervisorGone`] when the supervisor has failed, and the tree is dead then; [`Error::ForkedCopy`] in
    /// a forked copy of the embedder, in which nobody watches the guest.
    pub fn wait(&mut self) -> Result<Outcome, Error> {
        self.here()?;
        let outcome = self.cell.wait_finished()?;
        // What a callback has not been given yet.
        self.calls.wait(self.engine.sealed.policy.grace);
        Ok(outcome)
    }

    /// The outcome if the run is over, `None` if it is not.
    ///
    /// # Errors
    ///
    /// As [`Child::wait`].
    pub fn try_wait(&mut self) -> Result<Option<Outcome>, Error> {
        self.here()?;
        self.cell.poll(None).transpose()
    }

    fn here(&self) -> Result<(), Error> {
        if self.engine.is_here() {
            Ok(())
        } else {
            Err(Error::ForkedCopy)
        }
    }

    /// Kills the whole tree; the outcome says [`Cause::Cancelled`], unless the run had ended or was ending for
    /// another cause. Does not wait.
    pub fn kill(&self) {
        self.end(Cause::Cancelled);
    }

    fn end(&self, cause: Cause) {
        // A supervisor that has ended has killed everything.
        let _ = self.engine.inbox.send(Message::End {
            key: self.key,
            cause,
        });
    }
}

impl AsFd for Child {
    /// A pidfd of the guest's first process (pidfd_open(2)): becomes readable when that ends, which may be
    /// a moment before the tree is gone and [`Child::try_wait`] says so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Future for Child {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.here() {
            return Poll::Ready(Err(error));
        }
        match self.cell.poll(Some(context.waker())) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A forked copy of the embedder must not kill what the original runs.
        if self.engine.is_here() {
            self.end(Cause::Dropped);
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("run", &self.run)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}
