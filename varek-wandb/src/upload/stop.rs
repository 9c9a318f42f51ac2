//! Waits that end when the embedder wants it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Said to the uploader's threads.
#[derive(Debug, Default)]
pub(super) struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// How often somebody was in a hurry.
    hurries: u64,
}

/// The embedder waits no longer.
#[derive(Debug)]
pub(super) struct Stopped;

impl Stop {
    /// Ends all waits, and those to come.
    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }

    /// Ends the waits between tries, once: somebody waits for the end.
    pub(super) fn hurry(&self) {
        lock(&self.state).hurries += 1;
        self.changed.notify_all();
    }

    pub(super) fn check(&self) -> Result<(), Stopped> {
        if lock(&self.state).stopped {
            return Err(Stopped);
        }
        Ok(())
    }

    /// Waits until then. `asked` is for waits that the server asked for, which no hurry ends.
    pub(super) fn pause(&self, until: Instant, asked: bool) -> Result<(), Stopped> {
        let mut state = lock(&self.state);
        let hurries = state.hurries;
        loop {
            if state.stopped {
                return Err(Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (!asked && state.hurries != hurries) {
                return Ok(());
            }
            let left = left.min(Duration::from_secs(3600));
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
