//! What control groups this process can use.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use varek_cgroup::{Controller, DELEGATION, Error, Layout};

use super::errno_name;

/// What control groups this process can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupSupport {
    /// One line: hierarchy, own group and controllers; or why there is none.
    pub description: String,
    /// Whether groups can be made, as far as the kernel says so beforehand.
    pub access: GroupAccess,
    /// A group's whole tree can be killed at once (`cgroup.kill`, Linux 5.14).
    pub kill: bool,
    /// The controllers that limits can use, where groups can be made: `memory`, `pids`, `cpu`.
    pub controllers: Vec<String>,
}

/// Whether this process may make groups, and if not, why: asked of the directories in which they would be made,
/// without making one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupAccess {
    /// A cgroup2 tree shows the own group, and the permissions there allow it. A security module or a seccomp filter
    /// may still refuse, which shows when a `Sandbox` is made.
    Writable,
    /// The tree is mounted read-only, as container runtimes do by default (EROFS).
    ReadOnly {
        /// The own group's directory.
        path: String,
    },
    /// The own group belongs to another user: it was not delegated to this one (EACCES).
    NotDelegated {
        /// The own group's directory, or the file in it.
        path: String,
    },
    /// The permissions allow it, and a security module (EACCES) or a seccomp filter (EPERM) refuses.
    Barred {
        /// The own group's directory, or the file in it.
        path: String,
        /// The answer.
        errno: i32,
    },
    /// A cgroup2 tree is mounted, and the own group is in no part of it that shows here.
    OwnGroupHidden {
        /// The group as `/proc/self/cgroup` names it.
        group: String,
    },
    /// No cgroup2 file system is mounted.
    NoMount {
        /// What is there instead.
        found: String,
    },
    /// `/proc` does not say what the own group is: it is not mounted, or not for this process.
    NoProc,
    /// Something else.
    Unknown {
        /// What is known.
        reason: String,
    },
}

impl GroupSupport {
    /// Whether groups can be made.
    pub fn usable(&self) -> bool {
        self.access == GroupAccess::Writable
    }

    pub(crate) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    pub(super) fn probe(kill: bool) -> Self {
        let layout = match Layout::probe() {
            Ok(layout) => layout,
            Err(error) => {
                let access = GroupAccess::of(&error);
                return Self {
                    description: format!("none: {access}"),
                    access,
                    kill,
                    controllers: Vec::new(),
                };
            }
        };
        let mut description = layout.to_string();
        let mut controllers = Vec::new();
        let access = match layout.writable() {
            Ok(()) => GroupAccess::Writable,
            Err(error) => GroupAccess::of(&error),
        };
        if access == GroupAccess::Writable {
            for controller in layout.available() {
                match layout.writable_for(controller) {
                    Ok(()) => controllers.push(controller.to_string()),
                    Err(error) => {
                        let why = GroupAccess::of(&error);
                        description = format!("{description}; {controller}: not usable, {why}");
                    }
                }
            }
        }
        Self {
            description,
            access,
            kill,
            controllers,
        }
    }

    /// What to do about controllers that limits cannot use, where groups can be made.
    pub(crate) fn controllers_remedy(&self) -> Option<String> {
        let all = Controller::ALL
            .iter()
            .all(|controller| self.has(controller.name()));
        (!all).then(|| {
            format!(
                "enable the controller for the group of this program: {DELEGATION}; and boot without \
                 cgroup_disable="
            )
        })
    }
}

impl GroupAccess {
    /// What this answer to [`Layout::probe`] or [`Layout::writable`] comes to.
    fn of(error: &Error) -> Self {
        let text = |path: &Path| path.display().to_string();
        match error {
            Error::ReadOnly { path, .. } => Self::ReadOnly { path: text(path) },
            Error::NotDelegated { path, .. } => Self::NotDelegated { path: text(path) },
            Error::Barred { path, source, .. } => Self::Barred {
                path: text(path),
                errno: source.raw_os_error().unwrap_or(0),
            },
            Error::OwnGroupHidden { group, .. } => Self::OwnGroupHidden {
                group: group.clone(),
            },
            Error::NoUnifiedMount { found } => Self::NoMount {
                found: found.clone(),
            },
            Error::NoProc { .. } => Self::NoProc,
            other => Self::Unknown {
                reason: other.to_string(),
            },
        }
    }

    /// What to do, where no groups can be made.
    pub(crate) fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Writable => return None,
            Self::ReadOnly { .. } => {
                "mount the control groups read-write for this container (a private cgroup namespace with a writable \
                 /sys/fs/cgroup), or run outside of it"
                    .into()
            }
            Self::NotDelegated { .. } => DELEGATION.into(),
            Self::Barred {
                errno: libc::EPERM, ..
            } => "allow mkdir(2) in the seccomp profile of the container or service".into(),
            Self::Barred { .. } => {
                "allow this program to write to the control groups in the policy of the security module, whose name \
                 is in the kernel's log"
                    .into()
            }
            Self::OwnGroupHidden { .. } => {
                "give this program a cgroup namespace of its own, or mount the hierarchy with its group in it".into()
            }
            Self::NoMount { .. } => {
                "mount one (mount -t cgroup2 none /sys/fs/cgroup, or /sys/fs/cgroup/unified beside version 1), or \
                 boot with systemd.unified_cgroup_hierarchy=1"
                    .into()
            }
            Self::NoProc => "mount /proc (mount -t proc proc /proc)".into(),
            Self::Unknown { .. } => "see the reason; Linux 5.14 or newer with a cgroup2 mount is needed".into(),
        })
    }
}

impl fmt::Display for GroupAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writable => f.write_str("writable"),
            Self::ReadOnly { path } => write!(f, "{path} is mounted read-only (EROFS)"),
            Self::NotDelegated { path } => {
                write!(f, "{path} is not delegated to this user (EACCES)")
            }
            Self::Barred { path, errno } => {
                let who = if *errno == libc::EPERM {
                    "a seccomp filter around this program"
                } else {
                    "a security module"
                };
                let errno = errno_name(*errno);
                write!(
                    f,
                    "{who} refuses to write to {path} ({errno}), whose permissions allow it"
                )
            }
            Self::OwnGroupHidden { group } => {
                write!(f, "no mount shows the own group {group} of this program")
            }
            Self::NoMount { found } => write!(f, "no cgroup2 file system is mounted: {found}"),
            Self::NoProc => f.write_str("/proc does not say which group this program is in"),
            Self::Unknown { reason } => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_answer_has_a_text_and_a_remedy_of_its_own() {
        let (path, operation) = (|| "/own".into(), "create groups in");
        let source = |errno| io::Error::from_raw_os_error(errno);
        let barred = |errno| Error::Barred {
            operation,
            path: path(),
            source: source(errno),
        };
        let errors = [
            Error::ReadOnly {
                operation,
                path: path(),
            },
            Error::NotDelegated {
                operation,
                path: path(),
                source: source(libc::EACCES),
            },
            barred(libc::EPERM),
            barred(libc::EACCES),
            Error::OwnGroupHidden {
                hierarchy: "cgroup2".into(),
                group: "/own".into(),
                mounts: "/other at /sys/fs/cgroup".into(),
            },
            Error::NoUnifiedMount {
                found: "nothing".into(),
            },
            Error::NoProc {
                path: "/proc/self/cgroup".into(),
                source: source(libc::ENOENT),
            },
            Error::Io {
                operation: "read",
                path: path(),
                source: source(libc::EIO),
            },
        ];
        let found: Vec<_> = errors.iter().map(GroupAccess::of).collect();
        let mut texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        let mut remedies: Vec<_> = found
            .iter()
            .map(|access| access.remedy().unwrap())
            .collect();
        for list in [&mut texts, &mut remedies] {
            list.sort();
            list.dedup();
            assert_eq!(list.len(), errors.len(), "{list:?}");
        }
        assert_eq!(GroupAccess::Writable.remedy(), None);
    }

    #[test]
    fn missing_delegation_names_both_ways_to_get_it() {
        let access = GroupAccess::NotDelegated {
            path: "/own".into(),
        };
        let remedy = access.remedy().unwrap();
        for way in [
            "systemd-run --user --scope -p Delegate=yes COMMAND",
            "unit that has `Delegate=yes`",
            "scripts/with-cgroup.sh",
        ] {
            assert!(remedy.contains(way), "{remedy}");
        }
    }
}
