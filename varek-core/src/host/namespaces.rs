//! Whether user namespaces can be used here: made, given ids, and mounted in. A child tries it.

use std::fmt;
use std::io;
use std::sync::Mutex;

use serde::Serialize;

use super::errno_name;

#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
mod sys;

use sys::{Ended, Trial};

/// What comes of making a user namespace (user_namespaces(7)), mapping one uid and gid into it and mounting a
/// file system there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserNamespaces {
    /// All of it works.
    Usable,
    /// One can be made, but whoever makes it has no capabilities there: a mount is refused with this error
    /// number. AppArmor does that on Ubuntu 24.04 to programs without a profile of their own.
    Powerless {
        /// The answer to mount(2).
        errno: i32,
    },
    /// One can be made and mounted in, but no id can be mapped there: `/proc` is not mounted, is read-only, or
    /// does not belong to this process (it changed its uid and is not dumpable).
    Unmapped {
        /// The answer for `/proc/self/uid_map`, `gid_map` or `setgroups`.
        errno: i32,
    },
    /// None can be made.
    Refused {
        /// The answer to clone(2).
        errno: i32,
        /// Who gives it, as far as the kernel lets that be told.
        by: NamespaceRefusal,
    },
    /// It could not be tried, because no child could be made or its end is not known.
    Unknown {
        /// Why; 0 where there is no number for it.
        errno: i32,
    },
}

/// Who refuses user namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NamespaceRefusal {
    /// The sysctl `user.max_user_namespaces` is 0 or used up (ENOSPC).
    Limit,
    /// The sysctl `kernel.unprivileged_userns_clone` of Debian's kernels is 0 (EPERM).
    Sysctl,
    /// A seccomp filter around this process, or what else answers before the kernel looks at the arguments.
    Filter,
    /// A security module (EACCES, Linux 6.1).
    SecurityModule,
    /// The kernel is built without CONFIG_USER_NS (EINVAL).
    NotBuilt,
    /// The kernel (EPERM), and it does not say why: a security module, or a changed root directory (chroot(2)).
    Kernel,
}

impl UserNamespaces {
    /// What to do, where they are not usable.
    pub(super) fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Usable => return None,
            Self::Powerless { .. } => {
                "give this program an AppArmor profile with `userns,` and `mount,`, or set \
                 kernel.apparmor_restrict_unprivileged_userns=0"
            }
            Self::Unmapped { .. } => "mount /proc read-write where this program runs",
            Self::Unknown { .. } => {
                "raise the process limit of this program (RLIMIT_NPROC, pids.max)"
            }
            Self::Refused { by, .. } => match by {
                NamespaceRefusal::Limit => "raise the sysctl user.max_user_namespaces",
                NamespaceRefusal::Sysctl => "set the sysctl kernel.unprivileged_userns_clone to 1",
                NamespaceRefusal::Filter => {
                    "allow clone(2) with CLONE_NEWUSER in the seccomp profile of the container or service"
                }
                NamespaceRefusal::SecurityModule => {
                    "allow user namespaces in the policy of the security module (SELinux: user_namespace create)"
                }
                NamespaceRefusal::NotBuilt => "use a kernel with CONFIG_USER_NS",
                NamespaceRefusal::Kernel => {
                    "run outside of chroot(2) (pivot_root(2) is no obstacle), and allow user namespaces in the \
                     policy of the security module"
                }
            },
        })
    }
}

impl fmt::Display for UserNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Usable => f.write_str("usable"),
            Self::Powerless { errno } => write!(
                f,
                "can be made, but without capabilities ({}), as AppArmor does it",
                errno_name(errno)
            ),
            Self::Unmapped { errno } => write!(
                f,
                "can be made, but /proc maps no id into them ({})",
                errno_name(errno)
            ),
            Self::Refused { errno, by } => {
                let errno = errno_name(errno);
                let by = match by {
                    NamespaceRefusal::Limit => "by user.max_user_namespaces",
                    NamespaceRefusal::Sysctl => "by kernel.unprivileged_userns_clone=0",
                    NamespaceRefusal::Filter => "by a seccomp filter around this program",
                    NamespaceRefusal::SecurityModule => "by a security module",
                    NamespaceRefusal::NotBuilt => "by a kernel without CONFIG_USER_NS",
                    NamespaceRefusal::Kernel => "by the kernel: a security module, or a chroot",
                };
                write!(f, "refused ({errno}) {by}")
            }
            Self::Unknown { errno: 0 } => {
                f.write_str("unknown: the child that tries them was lost")
            }
            Self::Unknown { errno } => write!(
                f,
                "unknown: the child that tries them cannot be made ({})",
                errno_name(errno)
            ),
        }
    }
}

/// The answer, and for whom: a forked copy, or the process after a change of its uid, asks again.
type Kept = Option<((u32, u32), UserNamespaces)>;
static KEPT: Mutex<Kept> = Mutex::new(None);

/// Tries it once in a process. `filtered`: a seccomp filter is around this process.
pub(super) fn user_namespaces(kernel: (u32, u32), filtered: bool) -> UserNamespaces {
    let asker = (std::process::id(), rustix::process::geteuid().as_raw());
    // Somebody asks just now, or did when this process was forked off: no reason to wait.
    let mut kept = KEPT.try_lock();
    if let Ok(kept) = &kept
        && let Some((whose, answer)) = **kept
        && whose == asker
    {
        return answer;
    }
    let answer = attempt(&Trial::new(copies_memory(kernel, filtered)));
    // What could not be tried now may be tried the next time.
    if let Ok(kept) = &mut kept
        && !matches!(answer, UserNamespaces::Unknown { .. })
    {
        **kept = Some((asker, answer));
    }
    answer
}

/// Before Linux 5.16 a signal that dumps core ends every process that shares the memory, and a filter may
/// answer with one (SECCOMP_RET_KILL_PROCESS): the child has a copy then.
const fn copies_memory(kernel: (u32, u32), filtered: bool) -> bool {
    filtered && (kernel.0 < 5 || kernel.0 == 5 && kernel.1 < 16)
}

fn attempt(trial: &Trial) -> UserNamespaces {
    match trial.run() {
        Ok(Ended::Done) => UserNamespaces::Usable,
        Ok(Ended::NoMount(errno)) => UserNamespaces::Powerless { errno },
        Ok(Ended::NoMap(errno)) => UserNamespaces::Unmapped { errno },
        // Killed by a filter that ends what it refuses.
        Ok(Ended::Killed) => UserNamespaces::Powerless { errno: libc::EPERM },
        Ok(Ended::Lost) => UserNamespaces::Unknown { errno: 0 },
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            match refusal(errno, kernel_answers(), unprivileged_clone()) {
                Some(by) => UserNamespaces::Refused { errno, by },
                None => UserNamespaces::Unknown { errno },
            }
        }
    }
}

/// Whether it is the kernel that answers clone(2) with CLONE_NEWUSER. It refuses that flag beside CLONE_FS with
/// EINVAL before it looks at anything else, so any other answer comes from in front of it.
fn kernel_answers() -> bool {
    let refused = sys::contradiction().map_err(|error| error.raw_os_error());
    refused == Err(Some(libc::EINVAL))
}

/// `kernel.unprivileged_userns_clone`, which only some kernels have.
fn unprivileged_clone() -> Option<bool> {
    let text = std::fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").ok()?;
    Some(text.trim() != "0")
}

/// Who gave this answer to clone(2); `None` where it is not about namespaces.
fn refusal(
    errno: i32,
    kernel_answers: bool,
    unprivileged_clone: Option<bool>,
) -> Option<NamespaceRefusal> {
    if !kernel_answers {
        return Some(NamespaceRefusal::Filter);
    }
    match errno {
        // EUSERS was the answer before Linux 4.9.
        libc::ENOSPC | libc::EUSERS => Some(NamespaceRefusal::Limit),
        libc::EINVAL | libc::ENOSYS => Some(NamespaceRefusal::NotBuilt),
        libc::EACCES => Some(NamespaceRefusal::SecurityModule),
        libc::EPERM if unprivileged_clone == Some(false) => Some(NamespaceRefusal::Sysctl),
        libc::EPERM => Some(NamespaceRefusal::Kernel),
        _ => None,
    }
}

/// As [`Host::probe`](super::Host::probe) would find it if the child lost its capabilities in the namespace that it
/// made, which is what AppArmor does. For tests.
#[cfg(any(test, feature = "test-hooks"))]
pub(super) fn without_capabilities() -> UserNamespaces {
    let mut trial = Trial::new(false);
    trial.drop_capabilities = true;
    attempt(&trial)
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}

impl Trial {
    fn new(copy: bool) -> Self {
        let one = |id: u32| format!("{id} {id} 1").into_bytes();
        Self {
            copy,
            uid_map: one(rustix::process::geteuid().as_raw()),
            gid_map: one(rustix::process::getegid().as_raw()),
            #[cfg(any(test, feature = "test-hooks"))]
            drop_capabilities: false,
        }
    }

    fn run(&self) -> io::Result<Ended> {
        let mut stack = crate::sys::Stack::new()?;
        let mask =
            crate::child::sys::signal_mask(u64::MAX).map_err(io::Error::from_raw_os_error)?;
        let child = sys::clone(self, stack.memory());
        let ended = child.map(sys::wait);
        // The mask that this thread had a moment ago is valid.
        let _ = crate::child::sys::signal_mask(mask);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_is_told_by_the_answer_and_by_who_gives_it() {
        for (errno, kernel, sysctl, expected) in [
            (libc::ENOSPC, true, None, Some(NamespaceRefusal::Limit)),
            (libc::ENOSPC, false, None, Some(NamespaceRefusal::Filter)),
            (
                libc::EPERM,
                true,
                Some(false),
                Some(NamespaceRefusal::Sysctl),
            ),
            (
                libc::EPERM,
                true,
                Some(true),
                Some(NamespaceRefusal::Kernel),
            ),
            (libc::EPERM, true, None, Some(NamespaceRefusal::Kernel)),
            (
                libc::EPERM,
                false,
                Some(false),
                Some(NamespaceRefusal::Filter),
            ),
            (libc::ENOSYS, false, None, Some(NamespaceRefusal::Filter)),
            (libc::EINVAL, true, None, Some(NamespaceRefusal::NotBuilt)),
            (
                libc::EACCES,
                true,
                None,
                Some(NamespaceRefusal::SecurityModule),
            ),
            (libc::EAGAIN, true, None, None),
            (libc::ENOMEM, true, Some(false), None),
        ] {
            assert_eq!(refusal(errno, kernel, sysctl), expected, "{errno}");
        }
    }

    #[test]
    fn every_state_but_usable_has_a_text_and_a_remedy_of_its_own() {
        let by = |errno, by| UserNamespaces::Refused { errno, by };
        let states = [
            UserNamespaces::Powerless {
                errno: libc::EACCES,
            },
            UserNamespaces::Unmapped {
                errno: libc::ENOENT,
            },
            UserNamespaces::Unknown {
                errno: libc::EAGAIN,
            },
            by(libc::ENOSPC, NamespaceRefusal::Limit),
            by(libc::EPERM, NamespaceRefusal::Sysctl),
            by(libc::EPERM, NamespaceRefusal::Filter),
            by(libc::EACCES, NamespaceRefusal::SecurityModule),
            by(libc::EINVAL, NamespaceRefusal::NotBuilt),
            by(libc::EPERM, NamespaceRefusal::Kernel),
        ];
        let mut texts: Vec<_> = states.iter().map(ToString::to_string).collect();
        let mut remedies: Vec<_> = states.iter().map(|state| state.remedy().unwrap()).collect();
        texts.sort();
        texts.dedup();
        remedies.sort_unstable();
        remedies.dedup();
        assert_eq!((texts.len(), remedies.len()), (states.len(), states.len()));
        assert_eq!(UserNamespaces::Usable.remedy(), None);
    }

    #[test]
    fn only_an_old_kernel_with_a_filter_costs_a_copy_of_the_memory() {
        assert!(copies_memory((5, 15), true));
        assert!(copies_memory((4, 19), true));
        for (kernel, filtered) in [((5, 15), false), ((5, 16), true), ((6, 1), true)] {
            assert!(!copies_memory(kernel, filtered), "{kernel:?}");
        }
    }

    #[test]
    fn the_contradiction_is_answered_by_the_kernel_here() {
        // A machine whose tests run under a filter of their own would say so.
        let mode = rustix::thread::secure_computing_mode();
        if matches!(mode, Ok(rustix::thread::SecureComputingMode::Disabled)) {
            assert!(kernel_answers());
        }
    }

    #[test]
    fn a_child_that_shares_the_memory_and_one_with_a_copy_find_the_same() {
        assert_eq!(attempt(&Trial::new(false)), attempt(&Trial::new(true)));
    }

    #[test]
    fn a_namespace_without_capabilities_is_told_from_a_usable_one() {
        // The control: where namespaces are refused there is nothing to tell.
        if attempt(&Trial::new(false)) == UserNamespaces::Usable {
            let found = without_capabilities();
            assert_eq!(found, UserNamespaces::Powerless { errno: libc::EPERM });
        }
    }

    #[test]
    fn the_trial_leaves_no_child_no_mount_and_no_descriptor() {
        let mounts = || std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let before = mounts();
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        for _ in 0..20 {
            let child = {
                let mut stack = crate::sys::Stack::new().unwrap();
                sys::clone(&Trial::new(false), stack.memory())
            };
            if let Ok(child) = child {
                sys::wait(child);
                // A second wait finds nothing.
                assert_eq!(sys::wait(child), Ended::Lost);
            }
        }
        assert_eq!(mounts(), before);
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), dumpable);
    }
}
