//! Denied calls of one run: received, decided, answered, recorded.
//!
//! Nothing is decided from memory that the guest can change (what is read of it is for events alone: `reading.rs`), and no call is ever let through, but a signal to the
//! caller's own process: see `signals.rs`. What is performed in the guest's place is no denial: see `performer.rs`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, poll};
use varek_seccomp::{Decision, SeccompData};
use varek_telemetry::{Answer, Cause, Denial};

use super::attributes::{Call, Helper, Request};
use super::performer::Performed;
use super::reading::Verdict;
use super::run::Run;
use super::signals;
use crate::sandbox::Sealed;
use crate::strays::Listener;
use crate::sys;

/// Notifications of one run that are answered before the other runs have their turn.
const LISTENER_TURN: usize = 64;

/// How long that may take: a signal to all processes of a run (kill(-1)) costs as much as they are many.
const LONGEST_TURN: Duration = Duration::from_millis(2);

/// What has been made of a call, besides denying it.
enum Taken {
    Answered,
    /// The run's own thread makes it, and answers later.
    InHand,
}

impl Run {
    pub(super) fn on_listener(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        let until = Instant::now() + LONGEST_TURN;
        for _ in 0..LISTENER_TURN {
            if self.watchdog.dying() && self.decided.is_some() {
                // The tree is dead or dying: what it asks is not answered any more.
                self.drop_listener();
                return;
            }
            if self.in_hand.is_some() || self.reader.is_busy() {
                return;
            }
            let Some(listener) = self.listener.clone() else {
                return;
            };
            let Some(fd) = listener.fd() else { return };
            match waiting(fd) {
                Ok(Waiting::Call) => {}
                Ok(Waiting::Nothing) => return,
                Ok(Waiting::Nobody) => {
                    self.drop_listener();
                    return;
                }
                Err(error) => {
                    self.fault("watch the listener", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                    return;
                }
            }
            let call = match sys::receive_notification(fd) {
                Ok(call) => call,
                // The guest died between poll and here, or a signal came.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                    continue;
                }
                Err(error) => {
                    self.fault("receive a denied call", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                    return;
                }
            };
            match self.perform(&listener, &call, sealed) {
                Ok(Some(Taken::Answered)) if Instant::now() < until => continue,
                Ok(Some(Taken::Answered)) => return,
                Ok(Some(Taken::InHand)) => {
                    self.in_hand = Some(call);
                    let _ = epoll::delete(epoll, fd);
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    self.fault("answer a call that was performed", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                    return;
                }
            }
            if !self.deny(&listener, call, sealed) {
                return;
            }
        }
    }

    /// What came of the call in hand, and back to the others.
    pub(super) fn on_performed(&mut self, performed: Performed, sealed: &Sealed) {
        let Some(call) = self.in_hand.take() else {
            return;
        };
        if let Some(listener) = self.listener.clone()
            && let Some(fd) = listener.fd()
        {
            match answered(fd, &call, performed) {
                Ok(true) => {}
                Ok(false) => {
                    self.deny(&listener, call, sealed);
                }
                Err(error) => {
                    self.fault("answer a call that was performed", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                }
            }
            self.watch_listener(sealed);
        }
        self.check_empty(sealed);
    }

    /// Refuses a call, or ends the run for it, or leaves that to whoever reads its memory; whether the run goes on with the next.
    fn deny(&mut self, listener: &Arc<Listener>, call: sys::Notification, sealed: &Sealed) -> bool {
        let number = call.nr.cast_unsigned();
        let (abi, syscall) = varek_seccomp::describe(call.arch, number);
        let (errno, answer) = match sealed.program.decide(&data(&call)) {
            Decision::Refuse { errno } => (Some(errno), Answer::Errno(errno)),
            Decision::Probe => (Some(libc::ENOSYS), Answer::Probe),
            _ => (None, Answer::Kill),
        };
        let denial = Denial {
            syscall,
            number,
            abi,
            arguments: call.args,
            thread: call.pid,
            answer,
            count: 1,
            unverified: Vec::new(),
        };
        let verdict = Verdict {
            call,
            denial,
            errno,
        };
        match self.read_first(listener, verdict, sealed) {
            Some(verdict) => self.pronounce(listener, verdict, false, sealed),
            None => false,
        }
    }

    /// Performs a call that stays within the run; `None` if it is no such call.
    fn perform(
        &mut self,
        listener: &Arc<Listener>,
        call: &sys::Notification,
        sealed: &Sealed,
    ) -> io::Result<Option<Taken>> {
        let (Some(performer), Some(fd)) = (&sealed.performer, listener.fd()) else {
            return Ok(None);
        };
        let Some(name) = performer.name(&data(call)) else {
            return Ok(None);
        };
        if let Some(change) = Call::of(name, &call.args) {
            return Ok(self.hand_over(listener, call, change));
        }
        if !performer.signals {
            return Ok(None);
        }
        let valid = || sys::call_waits(fd, call.id);
        let group = &self.plan.group;
        let performed = signals::perform(name, &call.args, call.pid, group, valid);
        Ok(answered(fd, call, performed)?.then_some(Taken::Answered))
    }

    /// Gives the change of a file to the run's own thread, where that can be.
    fn hand_over(
        &mut self,
        listener: &Arc<Listener>,
        call: &sys::Notification,
        change: Call,
    ) -> Option<Taken> {
        let scratch = self.plan.scratch.as_ref()?;
        let request = Request {
            listener: listener.clone(),
            id: call.id,
            thread: call.pid,
            call: change,
            scratch: scratch.directory().try_clone_to_owned().ok()?,
            path: self.plan.scratch_path.clone(),
        };
        if self.helper.is_none() {
            self.helper = Helper::start(self.undertaker.performed()).ok();
        }
        let given = self.helper.as_ref()?.submit(request);
        given.then_some(Taken::InHand)
    }

    pub(super) fn drop_listener(&mut self) {
        if let Some(listener) = self.listener.take()
            && let Some(fd) = listener.fd()
        {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }
}

fn data(call: &sys::Notification) -> SeccompData {
    SeccompData {
        nr: call.nr,
        arch: call.arch,
        instruction_pointer: call.instruction_pointer,
        args: call.args,
    }
}

/// Answers a call with what came of it; whether there was anything.
fn answered(
    listener: BorrowedFd<'_>,
    call: &sys::Notification,
    performed: Performed,
) -> io::Result<bool> {
    let answered = match performed {
        Performed::No => return Ok(false),
        Performed::Continue => sys::continue_call(listener, call.id),
        Performed::Done(errno) => sys::answer_call(listener, call.id, errno),
    };
    match answered {
        // The guest was killed before it got the answer, by its own signal perhaps.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
        answered => answered.map(|()| true),
    }
}

/// What waits at a listener.
enum Waiting {
    Call,
    Nothing,
    /// Every process under the filter is gone.
    Nobody,
}

fn waiting(listener: BorrowedFd<'_>) -> io::Result<Waiting> {
    let mut fds = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let [fd] = fds;
    let ready = fd.revents();
    Ok(if ready.contains(PollFlags::IN) {
        Waiting::Call
    } else if ready.contains(PollFlags::HUP) {
        Waiting::Nobody
    } else {
        Waiting::Nothing
    })
}
