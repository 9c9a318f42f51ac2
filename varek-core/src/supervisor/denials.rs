//! Denied calls of one run: received, decided, answered, recorded.
//!
//! Nothing is decided from memory that the guest can change, and no call is ever let through, but a signal to the
//! caller's own process: see `signals.rs`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, poll};
use varek_seccomp::{Decision, SeccompData};
use varek_telemetry::{Answer, Cause, Denial, EventKind};

use super::run::Run;
use super::signals::Performed;
use crate::sandbox::Sealed;
use crate::strays::Listener;
use crate::sys;
use crate::watchdog::Observation;

/// Notifications of one run that are answered before the other runs have their turn.
const LISTENER_TURN: usize = 64;

/// How long that may take: a signal to all processes of a run (kill(-1)) costs as much as they are many.
const LONGEST_TURN: Duration = Duration::from_millis(2);

impl Run {
    pub(super) fn on_listener(&mut self, sealed: &Sealed) {
        let until = Instant::now() + LONGEST_TURN;
        for _ in 0..LISTENER_TURN {
            if self.watchdog.dying() && self.decided.is_some() {
                // The tree is dead or dying: what it asks is not answered any more.
                self.drop_listener();
                return;
            }
            let Some(listener) = self.listener.as_ref().and_then(Listener::fd) else {
                return;
            };
            match waiting(listener) {
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
            let call = match sys::receive_notification(listener) {
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
            let data = SeccompData {
                nr: call.nr,
                arch: call.arch,
                instruction_pointer: call.instruction_pointer,
                args: call.args,
            };
            match self.signal(listener, &call, &data, sealed) {
                Ok(true) if Instant::now() < until => continue,
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    self.fault("answer a signal", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                    return;
                }
            }
            let number = call.nr.cast_unsigned();
            let (abi, name) = varek_seccomp::describe(call.arch, number);
            let denial = |answer| Denial {
                syscall: name.clone(),
                number,
                abi: abi.clone(),
                arguments: call.args,
                thread: call.pid,
                answer,
            };
            let (errno, answer) = match sealed.program.decide(&data) {
                Decision::Refuse { errno } => (errno, Answer::Errno(errno)),
                Decision::Probe => (libc::ENOSYS, Answer::Probe),
                // Never answered: the call cannot take effect, and the tree dies.
                _ => {
                    let denial = denial(Answer::Kill);
                    let name = denial.name();
                    self.emit(EventKind::SyscallDenied(denial), sealed);
                    self.end(Cause::Syscall { name }, sealed);
                    return;
                }
            };
            match sys::answer_call(listener, call.id, errno) {
                Ok(()) => {
                    self.emit(EventKind::SyscallDenied(denial(answer)), sealed);
                    self.observe(Observation::Denied, sealed);
                }
                // The guest was killed before it got the answer: no call was denied.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => {
                    self.fault("answer a denied call", &error, sealed);
                    self.end(Cause::SupervisorFault, sealed);
                    return;
                }
            }
        }
    }

    /// Performs a signal that stays within the run; whether that was the call.
    fn signal(
        &self,
        listener: BorrowedFd<'_>,
        call: &sys::Notification,
        data: &SeccompData,
        sealed: &Sealed,
    ) -> io::Result<bool> {
        let Some(signals) = &sealed.signals else {
            return Ok(false);
        };
        let valid = || sys::call_waits(listener, call.id);
        let answered = match signals.perform(data, call.pid, &self.plan.group, valid) {
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

    pub(super) fn drop_listener(&mut self) {
        if let Some(listener) = self.listener.take()
            && let Some(fd) = listener.fd()
        {
            let _ = epoll::delete(&self.epoll, fd);
        }
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
