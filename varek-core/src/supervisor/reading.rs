//! What the pointers of a denied call lead to, for its event.
//!
//! A call is decided by its registers. Where its event may show more (`Denial::pointers`), its answer waits for
//! another thread to read that (`readers.rs`), so that the thread that made the call still stands in it: what was read is
//! shown if the call still waits afterwards, because only then was it the memory of whoever made it. The wait is bounded, is
//! that of this run alone, and is over at once where the run ends. A storm is not read: only calls that have an event of
//! their own are, and of these so many in a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventFlags};
use varek_telemetry::{Answer, Cause, Denial, EventKind, Unverified};

use super::encode;
use super::run::{Run, Source};
use crate::sandbox::Sealed;
use crate::strays::Listener;
use crate::sys;
use crate::watchdog::Observation;

/// How long a refusal waits. A read takes some microseconds; this is for machines on which a thread waits for its turn.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a kill waits, since other threads of the guest go on meanwhile.
const PATIENCE_OF_KILLS: Duration = Duration::from_millis(10);

/// Calls of one run that are read in a moment, at most.
const MOST: u32 = 128;
const MOMENT: Duration = Duration::from_millis(100);

/// A denied call, and what becomes of it.
pub(super) struct Verdict {
    pub(super) call: sys::Notification,
    pub(super) denial: Denial,
    /// What the guest gets; nothing where the run is killed for it.
    pub(super) errno: Option<i32>,
}

/// A denied call whose pointers are being read.
pub(super) struct Reading {
    verdict: Verdict,
    listener: Arc<Listener>,
    until: Instant,
}

/// The reading of one run.
#[derive(Default)]
pub(super) struct Reader {
    /// The call that waits for it: until then no other call of this run is received.
    now: Option<Reading>,
    /// The call for which nobody waited any longer, and whose reading is not over.
    late: Option<u64>,
    moment: Option<Instant>,
    /// Calls that were read in it.
    read: u32,
}

impl Reader {
    pub(super) fn is_busy(&self) -> bool {
        self.now.is_some()
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.now.as_ref().map(|reading| reading.until)
    }

    /// Whether another call may be read in this moment.
    fn may(&mut self, now: Instant) -> bool {
        if self.moment.is_none_or(|began| now >= began + MOMENT) {
            (self.moment, self.read) = (Some(now), 0);
        }
        self.late.is_none() && self.read < MOST
    }
}

impl Run {
    /// Gives a call to a thread that reads what its pointers lead to, where that may be shown and one is free; gives it back
    /// where it is to be answered now.
    pub(super) fn read_first(
        &mut self,
        listener: &Arc<Listener>,
        verdict: Verdict,
        sealed: &Sealed,
    ) -> Option<Verdict> {
        let (denial, now) = (&verdict.denial, Instant::now());
        // In a storm this is the answer for nearly all.
        let shown = denial.answer == Answer::Kill || self.storm.shows(denial, now);
        // A thread that has no number here is nobody's whose memory could be asked for.
        if !shown || denial.thread == 0 || !self.reader.may(now) {
            return Some(verdict);
        }
        let pointers = denial.pointers(sealed.policy.record_arguments);
        if pointers.is_empty() {
            return Some(verdict);
        }
        let patience = match verdict.errno {
            Some(_) => PATIENCE,
            None => PATIENCE_OF_KILLS,
        };
        let (id, until) = (verdict.call.id, now + patience);
        #[cfg(feature = "test-hooks")]
        let held = self.plan.hold_reading;
        #[cfg(not(feature = "test-hooks"))]
        let held = false;
        if !self
            .undertaker
            .read(id, denial.thread, pointers, until, held)
        {
            return Some(verdict);
        }
        if let Some(fd) = listener.fd() {
            let _ = epoll::delete(&self.epoll, fd);
        }
        self.reader.read += 1;
        self.reader.now = Some(Reading {
            verdict,
            listener: listener.clone(),
            until,
        });
        None
    }

    /// What was read for a call.
    pub(super) fn on_read(&mut self, id: u64, found: Vec<Unverified>, sealed: &Sealed) {
        if self.reader.late == Some(id) {
            self.reader.late = None;
        } else if self
            .reader
            .now
            .as_ref()
            .is_some_and(|now| now.verdict.call.id == id)
        {
            self.settle_reading(Some(found), sealed);
        }
    }

    /// Goes on with a call that has waited long enough.
    pub(super) fn reading_passes(&mut self, now: Instant, sealed: &Sealed) {
        if self.reader.next_wake().is_some_and(|until| now >= until) {
            self.settle_reading(None, sealed);
        }
    }

    /// Answers the call that waits for its reader, if there is one, with what was read; nothing where it was not waited for.
    pub(super) fn settle_reading(&mut self, found: Option<Vec<Unverified>>, sealed: &Sealed) {
        let Some(Reading {
            mut verdict,
            listener,
            ..
        }) = self.reader.now.take()
        else {
            return;
        };
        if found.is_none() {
            self.reader.late = Some(verdict.call.id);
        }
        if let Some(found) = found.filter(|found| !found.is_empty())
            && let Some(fd) = listener.fd()
            && sys::call_waits(fd, verdict.call.id)
        {
            verdict.denial.unverified = found;
        }
        self.pronounce(&listener, verdict, true, sealed);
        self.watch_listener(sealed);
    }

    /// Refuses a call, or ends the run for it; whether the run goes on. One that has waited is recorded even if its thread was
    /// killed meanwhile: how long that was is the guest's choice.
    pub(super) fn pronounce(
        &mut self,
        listener: &Listener,
        verdict: Verdict,
        waited: bool,
        sealed: &Sealed,
    ) -> bool {
        let Verdict {
            call,
            denial,
            errno,
        } = verdict;
        let Some(errno) = errno else {
            // Never answered: the call cannot take effect, and the tree dies.
            let name = denial.name();
            self.emit(EventKind::SyscallDenied(denial), sealed);
            self.end(Cause::Syscall { name }, sealed);
            return false;
        };
        let Some(fd) = listener.fd() else {
            return false;
        };
        match sys::answer_call(fd, call.id, errno) {
            Ok(()) => {}
            // The guest was killed before it got the answer: no call was denied.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && !waited => return true,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => {
                self.fault("answer a denied call", &error, sealed);
                self.end(Cause::SupervisorFault, sealed);
                return false;
            }
        }
        self.denied(denial, sealed);
        self.observe(Observation::Denied, sealed);
        true
    }

    /// Receives calls again, unless one is in hand.
    pub(super) fn watch_listener(&mut self, sealed: &Sealed) {
        if self.in_hand.is_some() || self.reader.is_busy() {
            return;
        }
        let Some(listener) = self.listener.clone() else {
            return;
        };
        let source = encode(self.key, Source::Listener);
        let watched = match listener.fd() {
            Some(fd) => epoll::add(&self.epoll, fd, source, EventFlags::IN),
            None => Err(rustix::io::Errno::BADF),
        };
        self.check(
            watched.map_err(std::io::Error::from),
            "watch the listener",
            sealed,
        );
    }
}
