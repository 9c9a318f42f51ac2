//! What the machine and the embedding process offer.

use std::fmt;

use serde::Serialize;

mod facts;
mod groups;
mod namespaces;
mod probe;
#[expect(
    unsafe_code,
    reason = "system calls that rustix does not have; one per function"
)]
pub(crate) mod sys;

pub use facts::Fact;
pub(crate) use facts::Refusal;
pub use groups::{GroupAccess, GroupSupport};
pub use namespaces::{NamespaceRefusal, UserNamespaces};

/// What the machine and the embedding process offer to a sandbox: probed facts, as a value.
///
/// Probing asks the kernel by system call where it can, because a container, an outer seccomp filter or a
/// boot parameter take away what the kernel's version promises. Two things only `/proc` can tell: the own
/// control group, and which ids are mapped. Where it is not mounted they are unknown, and said to be.
///
/// A filter around this process that kills instead of refusing (systemd's `SystemCallFilter=` does, unless
/// `SystemCallErrorNumber=EPERM` is set) kills it for asking.
///
/// It changes nothing. The first time in a process it makes a child that tries a user namespace and is gone when
/// probing returns; its answer is kept for the life of the process, or until the process changes its uid. Everything
/// else is asked every time. That takes less than a millisecond; where an outer filter is, it takes a thread for a
/// moment, which asks for a listener.
///
/// ```
/// # use varek_core::Host;
/// println!("{}", Host::probe());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Why nothing can be sandboxed here at all: an architecture without a system call table. `None` where
    /// it can.
    pub unsupported: Option<String>,
    /// The kernel's release, such as `6.1.0-18-amd64` (uname(2)).
    pub kernel: String,
    /// Major and minor of the release; (0, 0) where it cannot be read.
    pub kernel_version: (u32, u32),
    /// The architecture that this program was compiled for.
    pub architecture: String,
    /// seccomp(2) takes filter programs (Linux 3.17, CONFIG_SECCOMP_FILTER).
    pub seccomp_filter: bool,
    /// The error number of seccomp(2) where it takes none.
    pub seccomp_error: Option<i32>,
    /// Filters can notify a supervisor (Linux 5.0).
    pub user_notification: bool,
    /// Only a fatal signal interrupts a notified call (Linux 5.19). Denied calls are reported only then:
    /// without it every signal to the guest would report its call once more.
    pub killable_notification: bool,
    /// The embedder itself runs under a seccomp filter, as in most containers. What that filter refuses
    /// never reaches a filter of VAREK.
    pub outer_filter: bool,
    /// That filter has a listener of its own. A process can have one only, so denied calls are not reported.
    pub outer_listener: bool,
    /// Landlock.
    pub landlock: LandlockSupport,
    /// clone3(2) exists and nothing refuses it (Linux 5.3).
    pub clone3: bool,
    /// clone3(2) can put a child into its group from the start (Linux 5.7).
    pub clone_into_group: bool,
    /// The exit status of a child is known even when somebody else reaped it (Linux 6.15).
    pub status_after_reap: bool,
    /// Whether user namespaces can be made and used.
    pub user_namespaces: UserNamespaces,
    /// Whether this program may mount file systems in a namespace of its own.
    pub mounts: MountSupport,
    /// Control groups.
    pub groups: GroupSupport,
    /// The embedder's effective uid, in its own user namespace.
    pub uid: u32,
    /// The embedder's effective gid.
    pub gid: u32,
    /// Capabilities that running guests under uids of their own needs and the embedder lacks, such as
    /// `CAP_SETUID`.
    pub missing_capabilities: Vec<String>,
    /// Uids that exist in the embedder's user namespace (`/proc/self/uid_map`); `None` where `/proc` does not say.
    pub uids: Option<Vec<IdRange>>,
    /// Gids that exist in the embedder's user namespace (`/proc/self/gid_map`); `None` where `/proc` does not say.
    pub gids: Option<Vec<IdRange>>,
    /// The embedder may call setgroups(2): it has CAP_SETGID, and its user namespace does not deny it
    /// (`/proc/self/setgroups`).
    pub setgroups: bool,
    /// The embedder is process 1 of its pid namespace: what guests leave behind becomes its child.
    pub init: bool,
    /// The embedder is a child subreaper (PR_SET_CHILD_SUBREAPER), with the same effect.
    pub subreaper: bool,
    /// The embedder ignores SIGCHLD or has it with SA_NOCLDWAIT, so that the kernel discards the status of
    /// its children; see [`status_after_reap`](Self::status_after_reap).
    pub discards_status: bool,
    /// Bytes of a page of memory, to which memory limits are rounded down.
    pub page_size: u64,
    /// CPUs that the embedder may use: those of its affinity (sched_getaffinity(2)).
    pub cpus: usize,
}

/// Whether and how Landlock is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LandlockSupport {
    /// The version of its interface, at least 1. 2 (Linux 5.19) adds renames between directories, 3 (6.2)
    /// truncation, 4 (6.7) TCP, 5 (6.10) commands to devices, 6 (6.12) scopes of signals and of abstract
    /// sockets, 7 (6.15) logging.
    Version(u32),
    /// The kernel is older than 5.13 or built without it (ENOSYS).
    NotBuilt,
    /// Built in, but not among the security modules chosen at boot (EOPNOTSUPP).
    Disabled,
    /// Something, an outer seccomp filter as a rule, refuses to answer with this error number.
    Refused(i32),
}

impl LandlockSupport {
    /// The version, where there is one.
    pub const fn version(self) -> Option<u32> {
        match self {
            Self::Version(version) => Some(version),
            _ => None,
        }
    }
}

impl fmt::Display for LandlockSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "Landlock ABI {version}"),
            Self::NotBuilt => f.write_str("no Landlock (kernel before 5.13, or built without it)"),
            Self::Disabled => f.write_str("Landlock built in, but disabled at boot"),
            Self::Refused(errno) => write!(f, "Landlock refused ({})", errno_name(*errno)),
        }
    }
}

/// Whether the embedder may make file systems and mount them in a mount namespace, found by fsopen(2) of a tmpfs
/// (Linux 5.2). It takes CAP_SYS_ADMIN in the user namespace that its mounts belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MountSupport {
    /// It may.
    Allowed,
    /// It may not, with this error number.
    Refused(i32),
}

impl MountSupport {
    /// What to do, where it may not.
    pub(crate) fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Allowed => None,
            Self::Refused(libc::ENOSYS) => Some(
                "use Linux 5.2 or newer, and allow fsopen, fsconfig, fsmount and move_mount in the seccomp profile of the \
                 container or service",
            ),
            // Mounts are made private from the root directory on, which has to be one (mount_namespaces(7)).
            Self::Refused(libc::EINVAL) => Some(
                "have the root directory of this program be a mount (a chroot into a plain directory has none: `mount \
                 --bind` the directory onto itself before, or use pivot_root)",
            ),
            Self::Refused(libc::ENOSPC) => {
                Some("raise the sysctl user.max_mnt_namespaces or fs.mount-max, which is used up")
            }
            Self::Refused(_) => Some(
                "run this program as root with CAP_SYS_ADMIN, and let the profile of the container or service (seccomp, \
                 AppArmor) allow mounts",
            ),
        }
    }
}

impl fmt::Display for MountSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("lets this program mount file systems"),
            Self::Refused(errno) => write!(
                f,
                "lets this program mount nothing ({})",
                errno_name(*errno)
            ),
        }
    }
}

/// A run of ids that exist in a user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IdRange {
    /// The first, inside the namespace.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    /// The first column and the third of `/proc/self/uid_map` (user_namespaces(7)).
    pub(crate) fn parse(map: &str) -> Vec<Self> {
        map.lines()
            .filter_map(|line| {
                let mut columns = line.split_whitespace().map(str::parse);
                let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
                    (columns.next(), columns.next(), columns.next())
                else {
                    return None;
                };
                Some(Self { first, count })
            })
            .collect()
    }

    /// Whether `first..first + count` lies in the union of the ranges.
    pub(crate) fn cover(ranges: &[Self], first: u32, count: u32) -> bool {
        let (mut next, end) = (u64::from(first), u64::from(first) + u64::from(count));
        while next < end {
            let holder = ranges.iter().map(|range| {
                let start = u64::from(range.first);
                start..start + u64::from(range.count)
            });
            match holder.into_iter().find(|range| range.contains(&next)) {
                Some(range) => next = range.end,
                None => return false,
            }
        }
        true
    }
}

impl Host {
    /// Asks the kernel. Never fails: what cannot be found out counts as not there, or as unknown.
    pub fn probe() -> Self {
        probe::probe()
    }

    /// What [`Host::user_namespaces`] is where the maker of a namespace has no capabilities in it, found by a child
    /// that gives them up.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn user_namespaces_without_capabilities() -> UserNamespaces {
        namespaces::without_capabilities()
    }

    /// A host without anything.
    fn nothing(unsupported: Option<String>) -> Self {
        Self {
            unsupported,
            kernel: String::new(),
            kernel_version: (0, 0),
            architecture: std::env::consts::ARCH.to_owned(),
            seccomp_filter: false,
            seccomp_error: None,
            user_notification: false,
            killable_notification: false,
            outer_filter: false,
            outer_listener: false,
            landlock: LandlockSupport::NotBuilt,
            clone3: false,
            clone_into_group: false,
            status_after_reap: false,
            user_namespaces: UserNamespaces::Unknown { errno: 0 },
            mounts: MountSupport::Refused(libc::ENOSYS),
            groups: GroupSupport {
                description: "none".into(),
                access: GroupAccess::NoProc,
                kill: false,
                controllers: Vec::new(),
            },
            uid: u32::MAX,
            gid: u32::MAX,
            missing_capabilities: Vec::new(),
            uids: None,
            gids: None,
            setgroups: false,
            init: false,
            subreaper: false,
            discards_status: false,
            page_size: 4096,
            cpus: 1,
        }
    }

    /// Root with everything, on a hybrid host of Linux 6.18: the tests take away from it.
    #[cfg(test)]
    pub(crate) fn full() -> Self {
        let all = IdRange {
            first: 0,
            count: u32::MAX,
        };
        Self {
            kernel: "6.18.0".into(),
            kernel_version: (6, 18),
            architecture: "x86_64".into(),
            seccomp_filter: true,
            user_notification: true,
            killable_notification: true,
            landlock: LandlockSupport::Version(7),
            clone3: true,
            clone_into_group: true,
            status_after_reap: true,
            user_namespaces: UserNamespaces::Usable,
            mounts: MountSupport::Allowed,
            groups: GroupSupport {
                description: "hybrid: groups below /sys/fs/cgroup/unified".into(),
                access: GroupAccess::Writable,
                kill: true,
                controllers: ["memory", "pids", "cpu"].map(String::from).to_vec(),
            },
            uid: 0,
            gid: 0,
            uids: Some(vec![all]),
            gids: Some(vec![all]),
            setgroups: true,
            cpus: 2,
            ..Self::nothing(None)
        }
    }
}

/// `EPERM`, or `error 200` where there is no name here. The numbers are the same on both architectures.
fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::EUSERS => "EUSERS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        other => return format!("error {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_read_and_joined() {
        let ranges =
            IdRange::parse("         0       1000          1\n         1     100000      65536\n");
        assert_eq!(
            ranges,
            [
                IdRange { first: 0, count: 1 },
                IdRange {
                    first: 1,
                    count: 65536
                }
            ]
        );
        assert!(IdRange::cover(&ranges, 0, 65537));
        assert!(!IdRange::cover(&ranges, 0, 65538));
        assert!(!IdRange::cover(&ranges, 1_879_048_192, 1));
        let all = IdRange::parse("0 0 4294967295\n");
        assert!(IdRange::cover(&all, 1_879_048_192, 4096));
        assert!(!IdRange::cover(&all, u32::MAX, 1));
        assert_eq!(IdRange::parse("0 0\nx y z\n"), []);
    }
}
