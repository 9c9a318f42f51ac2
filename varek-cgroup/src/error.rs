//! What can go wrong, in three parts: what was asked, what the host has, what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::layout::Controller;

/// The ways to get a group that this library may make groups in, as said in every error of permission: what to do
/// where the own group belongs to somebody else.
pub const DELEGATION: &str = "start the program with `systemd-run --user --scope -p Delegate=yes COMMAND`, or in a \
     unit that has `Delegate=yes`; without systemd let root give this user a group (cgroups(7), \"Delegation\"), or \
     start the program as root (scripts/with-cgroup.sh)";

/// An operation on control groups that could not be done.
///
/// Nothing that failed with one of these stays behind half made: what was created before is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Control groups are a Linux feature and this is another system.
    #[error(
        "asked for control groups; {target} has none; run on Linux 5.14 or newer, or in a virtual machine with it"
    )]
    UnsupportedTarget {
        /// The operating system that the crate was compiled for.
        target: &'static str,
    },

    /// /proc does not say where this process is: it is not mounted, or this process may not read it.
    #[error(
        "asked for the control group of this process; {} cannot be read ({source}); mount it \
         (`mount -t proc proc /proc`)",
        path.display()
    )]
    NoProc {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },

    /// No cgroup2 file system is mounted, or this process has no place in one.
    #[error(
        "asked for a control group to create, kill and watch runs in; this host has {found}; mount one \
         (`mount -t cgroup2 none /sys/fs/cgroup/unified`) or boot with systemd.unified_cgroup_hierarchy=1"
    )]
    NoUnifiedMount {
        /// What is there instead.
        found: String,
    },

    /// The kernel has no `cgroup.kill` (added in Linux 5.14).
    #[error(
        "asked for a group whose whole tree can be killed at once; {} does not exist; run Linux 5.14 or newer",
        path.display()
    )]
    NoKill {
        /// The file that is missing.
        path: PathBuf,
    },

    /// The own group of this process lies outside of every mount of its hierarchy that is visible here.
    #[error(
        "asked for groups below the own group {group} of the hierarchy {hierarchy}; no mount shows that group \
         (mounted: {mounts}); mount the hierarchy with that group below its root, or give this program its own \
         cgroup namespace"
    )]
    OwnGroupHidden {
        /// `cgroup2`, or the names of the version 1 controllers.
        hierarchy: String,
        /// The group as /proc/self/cgroup names it.
        group: String,
        /// The roots and mount points that were considered.
        mounts: String,
    },

    /// The controller exists nowhere that this process can use.
    #[error(
        "asked for the {controller} controller; {} offers {available}; enable it in cgroup.subtree_control of the \
         groups above (systemd: {}), or drop the limit",
        path.display(), controller.accounting()
    )]
    ControllerUnavailable {
        /// The controller that is missing.
        controller: Controller,
        /// Where it was looked for.
        path: PathBuf,
        /// The controllers that are there.
        available: String,
    },

    /// A group was asked to have a limit whose controller was not named when the subtree was prepared.
    #[error(
        "asked for a {controller} limit; the subtree {} was prepared without that controller; name it in `required` \
         of Subtree::prepare",
        path.display()
    )]
    ControllerNotPrepared {
        /// The controller of the limit.
        controller: Controller,
        /// The subtree.
        path: PathBuf,
    },

    /// This process may not make or change groups where it is.
    #[error("asked to {operation} {}; this user may not ({source}); {DELEGATION}", path.display())]
    NotDelegated {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The control group file system is mounted read-only, as container runtimes do by default.
    #[error(
        "asked to {operation} {}; the file system is mounted read-only; mount it read-write for this container \
         (a private cgroup namespace with a writable /sys/fs/cgroup), or run outside of it",
        path.display()
    )]
    ReadOnly {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
    },

    /// The permissions of the directory would allow it, and something else refuses it: a security module, which
    /// answers EACCES, or a seccomp filter around this process, which answers EPERM.
    #[error("asked to {operation} {}; its permissions allow it, and {}", path.display(), barrier(source))]
    Barred {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },

    /// The own group holds processes that stop it from having children with controllers, and they cannot
    /// be moved (cgroups(7), "no internal processes").
    #[error(
        "asked for controllers below {}; it holds processes {pids:?} which this process cannot or must not move \
         into a leaf ({reason}); {DELEGATION}",
        path.display()
    )]
    InternalProcesses {
        /// The group.
        path: PathBuf,
        /// Some of the processes in it, at most 16.
        pids: Vec<u32>,
        /// Why they stay.
        reason: String,
    },

    /// A limit that the kernel could not hold or that no program could start under.
    #[error(
        "asked for a {controller} limit of {asked}; {reason}; choose another value or leave the limit out"
    )]
    InvalidLimit {
        /// The controller of the limit.
        controller: Controller,
        /// The value.
        asked: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The kernel did not keep the value that was written.
    #[error(
        "asked for {asked} in {}; the kernel reads back {found}; nothing was left behind; another program may have \
         changed the group, or a group above forbids the value",
        path.display()
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// The value that was written.
        asked: String,
        /// The value that was read.
        found: String,
    },

    /// A group name that is empty, too long, reserved, or has characters other than `[A-Za-z0-9._-]`.
    #[error("asked for a group named {name:?}; {reason}; use 1 to 64 of A-Z a-z 0-9 . _ -")]
    InvalidName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// A group of this name is there already.
    #[error("asked to create {}; it exists; give every run its own name", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },

    /// The subtree or group belongs to the process that made it, and this is a forked copy of that process.
    #[error(
        "asked to {operation} {}; it belongs to process {owner} and this is a forked copy of it; prepare a subtree \
         of your own",
        path.display()
    )]
    ForkedCopy {
        /// What was tried.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The process that made it.
        owner: u32,
    },

    /// The groups could not be emptied in time: a process does not die (uninterruptible sleep).
    #[error(
        "asked to remove {}; processes {pids:?} are still in it after they were killed; the next sweep removes it \
         once the kernel lets them go",
        path.display()
    )]
    StillPopulated {
        /// The directory.
        path: PathBuf,
        /// Some of the processes, at most 16.
        pids: Vec<u32>,
    },

    /// A file of the kernel does not look as documented.
    #[error("asked to read {}; {reason}: {text:?}; report the kernel version with this text", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was expected.
        reason: &'static str,
        /// The beginning of what was found, at most 128 characters.
        text: String,
    },

    /// Any other refusal of the kernel.
    #[error("asked to {operation} {}; {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// Sorts an answer of the kernel: read-only mount, no permission, or anything else.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { operation, path },
            io::ErrorKind::PermissionDenied => Self::NotDelegated {
                operation,
                path,
                source,
            },
            _ => Self::Io {
                operation,
                path,
                source,
            },
        }
    }

    pub(crate) fn barred(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Barred {
            operation,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, reason: &'static str, text: &str) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            reason,
            text: text.chars().take(128).collect(),
        }
    }
}

/// Who refuses what the permissions allow, and what to do.
fn barrier(source: &io::Error) -> String {
    /// EPERM of every Linux.
    const EPERM: i32 = 1;
    if source.raw_os_error() == Some(EPERM) {
        format!(
            "a seccomp filter around this program refuses it ({source}); allow the call in the seccomp profile of \
             the container or service"
        )
    } else {
        format!(
            "a security module refuses it ({source}): SELinux, AppArmor, or a Landlock domain that this program is \
             in; allow it in the policy of that module (the kernel's log names it), or run outside of it"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_refusal_has_a_text_and_a_remedy_of_its_own() {
        let path = Path::new("/sys/fs/cgroup/own");
        let refusal = |errno| {
            Error::io(
                "create groups in",
                path,
                io::Error::from_raw_os_error(errno),
            )
        };
        let barred = |errno| Error::barred("create", path, io::Error::from_raw_os_error(errno));
        for (error, words) in [
            (refusal(30), ["mounted read-only", "mount it read-write"]),
            (
                refusal(13),
                [
                    "this user may not",
                    "systemd-run --user --scope -p Delegate=yes COMMAND",
                ],
            ),
            (
                refusal(13),
                ["this user may not", "unit that has `Delegate=yes`"],
            ),
            (refusal(1), ["this user may not", "scripts/with-cgroup.sh"]),
            (barred(1), ["seccomp filter", "seccomp profile"]),
            (barred(13), ["security module", "policy of that module"]),
        ] {
            let text = error.to_string();
            for word in words {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }
}
