//! Signals of a guest whose uid is the embedder's, on hosts where Landlock does not scope them.
//!
//! The filter refuses every call that sends signals, since it cannot tell whom they reach. Of what the policy allows,
//! the supervisor performs what stays within the run: through a pidfd, whose process cannot become another between the
//! check and the signal. Only numbers from registers are looked at, no memory.
//!
//! What a process sends to itself goes on in the kernel instead. Thread-directed signals (raise, abort, preemption of
//! threads) have no other exact form before Linux 6.9, and this one is exact: the target is named by the process's own
//! id, which nothing else can have while one of its threads is in the call, and the kernel takes the thread of that
//! process or fails.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpgid, pidfd_open};
use varek_cgroup::Group;

use super::performer::Performed;
use crate::sys;

/// A call that sends a signal, from its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Process {
        pid: i32,
        signal: i32,
    },
    Thread {
        process: Option<i32>,
        thread: i32,
        signal: i32,
    },
}

impl Call {
    fn of(name: &str, args: &[u64; 6]) -> Option<Self> {
        // The kernel takes the lower halves, as int.
        let [first, second, third, ..] = args
            .map(|arg| (arg & 0xffff_ffff) as u32)
            .map(u32::cast_signed);
        match name {
            "kill" => Some(Self::Process {
                pid: first,
                signal: second,
            }),
            "tgkill" => Some(Self::Thread {
                process: Some(first),
                thread: second,
                signal: third,
            }),
            "tkill" => Some(Self::Thread {
                process: None,
                thread: first,
                signal: second,
            }),
            _ => None,
        }
    }
}

/// Decides a notified call of the thread `caller`, which the policy allows, and performs it where that is the decision.
/// `valid` says whether the caller still waits, so that what was read about its id was about it.
pub(super) fn perform(
    name: &str,
    args: &[u64; 6],
    caller: u32,
    group: &Group,
    valid: impl Fn() -> bool,
) -> Performed {
    let Some(call) = Call::of(name, args) else {
        return Performed::No;
    };
    let Some(own) = process_of(caller).filter(|_| valid()) else {
        return Performed::No;
    };
    match call {
        Call::Process { pid, .. } if pid == own => Performed::Continue,
        Call::Process { pid, signal } if pid > 0 => process(pid, signal, group),
        Call::Process { pid, signal } => many(pid, own, signal, group),
        Call::Thread {
            process: Some(process),
            ..
        } if process == own => Performed::Continue,
        Call::Thread {
            process: None,
            thread,
            ..
        } if u32::try_from(thread) == Ok(caller) => Performed::Continue,
        Call::Thread {
            process,
            thread,
            signal,
        } => other_thread(process, thread, signal, group),
    }
}

/// PIDFD_THREAD (Linux 6.9): the descriptor is of a thread, and what is sent goes to that thread.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);

/// kill(2) of another process.
fn process(pid: i32, signal: i32, group: &Group) -> Performed {
    match Member::find(pid, PidfdFlags::empty(), group) {
        Ok(member) => member.send(signal),
        Err(not) => not,
    }
}

/// kill(2) of a process group (0 is the caller's own), or of everything (-1), which leaves out the caller.
fn many(pid: i32, own: i32, signal: i32, group: &Group) -> Performed {
    let wanted = match pid {
        -1 => None,
        0 => match Pid::from_raw(own).map(|own| getpgid(Some(own))) {
            Some(Ok(process_group)) => Some(process_group),
            _ => return Performed::No,
        },
        _ => match pid.checked_neg().and_then(Pid::from_raw) {
            Some(process_group) => Some(process_group),
            None => return Performed::Done(libc::ESRCH),
        },
    };
    let Ok(mut processes) = group.processes() else {
        return Performed::No;
    };
    // The caller last: it may be what ends it.
    processes.sort_by_key(|process| u32::try_from(own) == Ok(*process));
    let mut answer = Performed::Done(libc::ESRCH);
    for process in processes
        .into_iter()
        .filter_map(|process| i32::try_from(process).ok())
    {
        let of_group = Pid::from_raw(process).map(|process| getpgid(Some(process)));
        let meant = match wanted {
            None => process != own,
            Some(wanted) => matches!(of_group, Some(Ok(found)) if found == wanted),
        };
        if meant && let Ok(member) = Member::find(process, PidfdFlags::empty(), group) {
            // As in the kernel, one success is success.
            match member.send(signal) {
                Performed::Done(0) => answer = Performed::Done(0),
                failed if answer != Performed::Done(0) => answer = failed,
                _ => {}
            }
        }
    }
    answer
}

/// tgkill(2) and tkill(2) of a thread that is not the caller's own.
fn other_thread(process: Option<i32>, thread: i32, signal: i32, group: &Group) -> Performed {
    if thread <= 0 || process.is_some_and(|process| process <= 0) {
        return Performed::Done(libc::EINVAL);
    }
    let member = match Member::find(thread, THREAD, group) {
        Ok(member) => member,
        Err(not) => return not,
    };
    // Read while the descriptor holds: where the id has become another's meanwhile, sending fails.
    let found = u32::try_from(thread).ok().and_then(process_of);
    match process {
        Some(process) if found != Some(process) => Performed::Done(libc::ESRCH),
        _ => member.send(signal),
    }
}

/// A process or thread that is in the group of the run.
struct Member(OwnedFd);

impl Member {
    /// The descriptor first, then the check: whoever has the id when it is checked, the signal goes to what the
    /// descriptor was opened for, or fails where that is gone.
    fn find(id: i32, flags: PidfdFlags, group: &Group) -> Result<Self, Performed> {
        let Some(pid) = Pid::from_raw(id) else {
            return Err(Performed::Done(libc::ESRCH));
        };
        let pidfd = match pidfd_open(pid, flags) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Err(Performed::Done(libc::ESRCH)),
            // A kernel without descriptors of threads, or the id of a thread where a process's is needed.
            Err(_) => return Err(Performed::No),
        };
        let membership = fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap_or_default();
        if is_member(&membership, group.path()) {
            Ok(Self(pidfd))
        } else {
            Err(Performed::No)
        }
    }

    fn send(&self, signal: i32) -> Performed {
        let sent = sys::pidfd_send_signal(self.0.as_fd(), signal);
        Performed::Done(sent.map_or_else(|error| errno(&error), |()| 0))
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EPERM)
}

/// Whether `/proc/PID/cgroup` names this group of the cgroup2 hierarchy. The path in there may begin elsewhere than the
/// mount; the last two names, of which the first is unique on the machine, tell the group.
fn is_member(membership: &str, group: &Path) -> bool {
    let mut names = group.iter().rev();
    let (Some(name), Some(parent)) = (names.next(), names.next()) else {
        return false;
    };
    let tail = Path::new(parent).join(name);
    membership
        .lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .any(|path| Path::new(path).ends_with(&tail))
}

/// The process that a thread belongs to (the line `Tgid:` of proc_pid_status(5)).
fn process_of(thread: u32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_the_kernel_reads_it() {
        let garbage = 0xdead_beef_0000_0000;
        let minus_one = garbage | 0xffff_ffff;
        assert_eq!(
            Call::of("kill", &[minus_one, garbage | 9, 5, 0, 0, 0]),
            Some(Call::Process { pid: -1, signal: 9 })
        );
        assert_eq!(
            Call::of("tgkill", &[7, 8, 9, 0, 0, 0]),
            Some(Call::Thread {
                process: Some(7),
                thread: 8,
                signal: 9
            })
        );
        assert_eq!(
            Call::of("tkill", &[8, 9, 1, 0, 0, 0]),
            Some(Call::Thread {
                process: None,
                thread: 8,
                signal: 9
            })
        );
        assert_eq!(Call::of("rt_sigqueueinfo", &[0; 6]), None);
        assert_eq!(Call::of("chmod", &[0; 6]), None);
    }

    #[test]
    fn membership_is_of_the_whole_name_and_of_the_unified_hierarchy() {
        let group = Path::new("/sys/fs/cgroup/user.slice/varek-1-2-3/run-4");
        assert!(is_member("0::/user.slice/varek-1-2-3/run-4\n", group));
        assert!(is_member("12:cpu:/\n0::/../varek-1-2-3/run-4\n", group));
        for other in [
            "0::/user.slice/varek-1-2-3\n",
            "0::/user.slice/varek-1-2-3/run-44\n",
            "0::/user.slice/varek-1-2-4/run-4\n",
            "0::/run-4\n",
            "0::/varek-1-2-3/run-4/below\n",
            "3:memory:/varek-1-2-3/run-4\n",
            "",
        ] {
            assert!(!is_member(other, group), "{other}");
        }
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let other = std::thread::spawn(|| {
            process_of(
                rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned(),
            )
        });
        assert_eq!(process_of(std::process::id()), Some(own));
        assert_eq!(other.join().unwrap(), Some(own));
        assert_eq!(process_of(u32::MAX), None);
    }
}
