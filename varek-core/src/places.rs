//! The places that a sandbox has for guests.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::error::Error;

/// What a run does when as many guests run as the sandbox may have at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Wait for a place, in no particular order.
    #[default]
    Wait,
    /// Fail with [`Error::Full`].
    Refuse,
}

/// The places that a sandbox has for guests.
pub(crate) struct Places {
    limit: usize,
    when_full: WhenFull,
    taken: Mutex<usize>,
    freed: Condvar,
}

pub(crate) struct Place(Arc<Places>);

impl Places {
    pub(crate) fn new(limit: usize, when_full: WhenFull) -> Arc<Self> {
        Arc::new(Self {
            limit,
            when_full,
            taken: Mutex::new(0),
            freed: Condvar::new(),
        })
    }

    pub(crate) fn take(self: &Arc<Self>) -> Result<Place, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken >= self.limit {
            if self.when_full == WhenFull::Refuse {
                return Err(Error::Full { limit: self.limit });
            }
            taken = self
                .freed
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        Ok(Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}
