//! Where a run's handle and its supervisor meet.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::capture::Tail;
use crate::error::Error;
use crate::outcome::Outcome;

/// What a run came to.
pub(crate) enum Finish {
    /// The guest was started, or could have been but for a limit.
    Outcome {
        outcome: Box<Outcome>,
        /// Of stdout and of stderr. They are put in their place by whoever asks for the outcome, not by the supervisor, on
        /// whose thread all runs would wait for gigabytes to be copied.
        tails: [Tail; 2],
    },
    /// The guest could not be started.
    NotStarted(Error),
}

#[derive(Default)]
struct State {
    started: Option<(u32, OwnedFd)>,
    finish: Option<Finish>,
    /// The outcome was handed over; waiting again gives it again.
    gone: Option<String>,
    waker: Option<Waker>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cell {
    state: Mutex<State>,
    changed: Condvar,
    unwanted: AtomicBool,
}

impl Cell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run is to end before it starts.
    pub(crate) fn mark_unwanted(&self) {
        self.unwanted.store(true, Ordering::Release);
    }

    pub(crate) fn wanted(&self) -> bool {
        !self.unwanted.load(Ordering::Acquire)
    }

    pub(crate) fn start(&self, pid: u32, pidfd: OwnedFd) {
        self.state().started = Some((pid, pidfd));
        self.changed.notify_all();
    }

    pub(crate) fn finish(&self, finish: Finish) {
        let waker = {
            let mut state = self.state();
            state.finish = Some(finish);
            state.waker.take()
        };
        self.changed.notify_all();
        wake(waker);
    }

    /// The supervisor has ended without an outcome.
    pub(crate) fn lose(&self, reason: &str) {
        let waker = {
            let mut state = self.state();
            if state.finish.is_some() {
                return;
            }
            state.gone = Some(reason.to_owned());
            state.waker.take()
        };
        self.changed.notify_all();
        wake(waker);
    }

    /// Waits until the guest runs; gives its pid and a pidfd. A run that ended before counts as started.
    pub(crate) fn wait_started(&self) -> Result<Option<(u32, OwnedFd)>, Error> {
        let mut state = self.state();
        loop {
            if let Some(started) = state.started.take() {
                return Ok(Some(started));
            }
            if let Some(Finish::NotStarted(_)) = state.finish {
                return match state.finish.take() {
                    Some(Finish::NotStarted(error)) => Err(error),
                    _ => Err(gone("its end was read twice")),
                };
            }
            if state.finish.is_some() {
                return Ok(None);
            }
            if let Some(reason) = &state.gone {
                return Err(gone(reason));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the run is over.
    pub(crate) fn wait_finished(&self) -> Result<Outcome, Error> {
        let mut state = self.state();
        loop {
            if let Some(result) = take_finish(&mut state) {
                return result;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The outcome, if the run is over; otherwise `waker` is woken when it is.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> Option<Result<Outcome, Error>> {
        // Its clone, and the drop of the one before it, are the embedder's code, for which nobody is to wait.
        let waker = waker.cloned();
        let mut state = self.state();
        let result = take_finish(&mut state);
        let unneeded = match waker {
            Some(waker) if result.is_none() => state.waker.replace(waker),
            waker => waker,
        };
        drop(state);
        drop(unneeded);
        result
    }
}

/// Wakers are the embedder's code, on the supervisor's thread: what one of them does to itself is no matter of
/// the other runs.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        harmless(|| waker.wake());
    }
}

/// Calls code of the embedder's that may panic, and with something that panics again when it is dropped: then it is not.
pub(crate) fn harmless(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call))
        && let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        std::mem::forget(worse);
    }
}

fn take_finish(state: &mut State) -> Option<Result<Outcome, Error>> {
    match &mut state.finish {
        Some(Finish::Outcome {
            outcome,
            tails: [out, err],
        }) => {
            outcome.stdout.append(out);
            outcome.stderr.append(err);
            return Some(Ok(outcome.as_ref().clone()));
        }
        Some(Finish::NotStarted(_)) => {
            state.gone = Some("the run could not be started, as was said before".into());
            if let Some(Finish::NotStarted(error)) = state.finish.take() {
                return Some(Err(error));
            }
        }
        None => {}
    }
    state.gone.as_deref().map(|reason| Err(gone(reason)))
}

fn gone(reason: &str) -> Error {
    Error::SupervisorGone {
        reason: reason.to_owned(),
    }
}
