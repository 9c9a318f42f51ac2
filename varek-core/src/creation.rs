//! How children are made and come into their cgroup2 group.
//!
//! The best way is clone3(2) with `CLONE_INTO_CGROUP`: the child is born in its group. Outer seccomp filters
//! refuse clone3 (older default profiles of container runtimes do), and security modules and other kernels the flag;
//! then the child is born in the embedder's group and moves itself before it does anything else. Either
//! way the guest has never run outside of its group. Which way the host takes is tried once for a sandbox.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::child::clone::sys::{Way, clone_trial};
use crate::child::sys::{Errno, signal_mask};
use crate::host::Host;
use crate::sys;

/// See the module. In the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creation {
    /// clone3(2) with `CLONE_INTO_CGROUP`.
    IntoGroup,
    /// clone3(2), and the child joins the group.
    Clone3,
    /// clone(2), and the child joins the group.
    Clone,
}

impl Creation {
    /// Whether the child has to join its cgroup2 group.
    pub(crate) fn joins(self) -> bool {
        self != Self::IntoGroup
    }

    /// The call, for a child of this group.
    pub(crate) fn way(self, group: BorrowedFd<'_>) -> Way {
        match self {
            Self::IntoGroup => Way::IntoGroup(group.as_raw_fd()),
            Self::Clone3 => Way::Clone3,
            Self::Clone => Way::Clone,
        }
    }

    /// The call, for a child of no group.
    pub(crate) fn outside(self) -> Way {
        match self {
            Self::IntoGroup | Self::Clone3 => Way::Clone3,
            Self::Clone => Way::Clone,
        }
    }

    fn next(self) -> Option<Self> {
        match self {
            Self::IntoGroup => Some(Self::Clone3),
            Self::Clone3 => Some(Self::Clone),
            Self::Clone => None,
        }
    }

    /// The best way by what is known of the host.
    fn known(host: &Host) -> Self {
        match (host.clone3, host.clone_into_group) {
            (true, true) => Self::IntoGroup,
            (true, false) => Self::Clone3,
            (false, _) => Self::Clone,
        }
    }

    /// The best way that works, found out by children that end at once. The first that is made, and no other,
    /// may have been in `group`.
    ///
    /// # Errors
    ///
    /// The answer to clone(2), where that is refused too.
    pub(crate) fn tried(host: &Host, group: BorrowedFd<'_>) -> io::Result<Self> {
        let mut stack = sys::Stack::new()?;
        let mut creation = Self::known(host);
        loop {
            match trial(&mut stack, creation.way(group)) {
                Err(errno) if refused(errno) => match creation.next() {
                    Some(next) => creation = next,
                    None => return Err(io::Error::from_raw_os_error(errno)),
                },
                // What is short now may be there when a guest is started; if not, that fails by name.
                _ => return Ok(creation),
            }
        }
    }
}

/// For people; a part of what [`Layer::Watchdog`](varek_telemetry::Layer::Watchdog) comes to.
impl fmt::Display for Creation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IntoGroup => "guests are born in their group (clone3, CLONE_INTO_CGROUP)",
            Self::Clone3 => {
                "guests join their group before anything else (clone3; the host refuses CLONE_INTO_CGROUP)"
            }
            Self::Clone => {
                "guests join their group before anything else (clone; the host refuses clone3)"
            }
        })
    }
}

/// Whether the answer means that the call or its flags are refused here, by the kernel, a filter or a security
/// module. Everything else (EAGAIN, ENOMEM, EMFILE) is a matter of the moment.
fn refused(errno: Errno) -> bool {
    matches!(
        errno,
        libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL | libc::EOPNOTSUPP | libc::E2BIG
    )
}

fn trial(stack: &mut sys::Stack, way: Way) -> Result<(), Errno> {
    watch_trial(|pidfd| clone_trial(stack.memory(), pidfd, way))
}

/// Makes a child that ends at once by `make`, which is given the place for its pidfd, with all signals blocked, and
/// waits for it.
pub(crate) fn watch_trial(
    make: impl FnOnce(&AtomicI32) -> Result<u32, Errno>,
) -> Result<(), Errno> {
    let pidfd = AtomicI32::new(-1);
    let mask = signal_mask(u64::MAX)?;
    let made = make(&pidfd);
    // The mask that this thread had a moment ago is valid.
    let _ = signal_mask(mask);
    made?;
    if let Some(pidfd) = sys::adopt_descriptor(pidfd.load(Ordering::Acquire)) {
        // A child that nobody is sent a signal for. An embedder that waits for every kind of child may be first.
        let all = WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
        let options = WaitIdOptions::EXITED | all;
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(pidfd.as_fd()), options));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_decides_where_the_trial_begins() {
        let mut host = Host::full();
        assert_eq!(Creation::known(&host), Creation::IntoGroup);
        host.clone_into_group = false;
        assert_eq!(Creation::known(&host), Creation::Clone3);
        host.clone3 = false;
        assert_eq!(Creation::known(&host), Creation::Clone);
        host.clone_into_group = true;
        assert_eq!(Creation::known(&host), Creation::Clone);
    }

    #[test]
    fn what_is_short_for_a_moment_does_not_change_the_way() {
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert!(!refused(errno), "{errno}");
        }
    }

    #[test]
    fn a_trial_finds_every_way_that_needs_no_group() {
        let no_group = std::fs::File::open("/").unwrap();
        let mut host = Host::full();
        host.clone_into_group = false;
        for known in [Creation::Clone3, Creation::Clone] {
            host.clone3 = known == Creation::Clone3;
            // An outer filter may refuse clone3.
            let found = Creation::tried(&host, no_group.as_fd()).unwrap();
            assert!(found == known || found == Creation::Clone, "{found:?}");
        }
    }
}
