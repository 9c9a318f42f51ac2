//! A [`Host`] as a table of facts, each with what to do where it stands in the way.

use std::fmt;

use serde::Serialize;

use super::{Host, IdRange, LandlockSupport, MountSupport, errno_name};

/// One fact of a [`Host`], for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fact {
    /// Its name.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// What to do, where it takes something away from sandboxes.
    pub remedy: Option<String>,
}

/// What keeps seccomp(2) or the landlock_* calls from this program: what the host does, and what to do.
pub(crate) struct Refusal {
    pub(crate) has: String,
    pub(crate) remedy: String,
}

impl Refusal {
    /// Of calls that came with `since` and `option`. ENOSYS is the kernel's own answer unless a filter gives it;
    /// EPERM and EACCES are never the kernel's for these calls.
    fn new(host: &Host, errno: i32, calls: &str, since: (u32, u32), option: &str) -> Self {
        let answer = errno_name(errno);
        let (major, minor) = since;
        let allow = format!("allow {calls} in the seccomp profile of the container or service");
        let newer = format!("use Linux {major}.{minor} or newer with {option}");
        let kernel = &host.kernel;
        let (has, remedy) = match (errno, host.outer_filter) {
            (libc::ENOSYS | libc::EINVAL, false) => (
                format!(
                    "has Linux {kernel} without {calls} ({answer}: too old, or built without {option})"
                ),
                newer,
            ),
            (libc::ENOSYS | libc::EINVAL, true) => (
                format!(
                    "answers {answer} to {calls}: Linux {kernel} was built without {option}, or the seccomp filter \
                     around this program answers for it"
                ),
                format!("{allow}, and {newer}"),
            ),
            (_, true) => (
                format!("refuses {calls} with {answer}, by the seccomp filter around this program"),
                allow,
            ),
            (_, false) => (
                format!(
                    "refuses {calls} with {answer}, which is not the kernel's answer: something stands in front of it \
                     (gVisor, a tracer)"
                ),
                format!(
                    "run this program directly on Linux, or let what is in front of it pass {calls}"
                ),
            ),
        };
        Self { has, remedy }
    }
}

impl Host {
    /// Why seccomp(2) takes no filter programs; `None` where it does.
    pub(crate) fn seccomp_refusal(&self) -> Option<Refusal> {
        if self.seccomp_filter {
            return None;
        }
        let errno = self.seccomp_error.unwrap_or(libc::ENOSYS);
        Some(Refusal::new(
            self,
            errno,
            "seccomp(2)",
            (3, 17),
            "CONFIG_SECCOMP_FILTER",
        ))
    }

    /// Why there is no Landlock; `None` where there is.
    pub(crate) fn landlock_refusal(&self) -> Option<Refusal> {
        let refusal = |errno| {
            let calls = "the landlock_* calls";
            Refusal::new(self, errno, calls, (5, 13), "CONFIG_SECURITY_LANDLOCK")
        };
        match self.landlock {
            LandlockSupport::Version(_) => None,
            LandlockSupport::NotBuilt => Some(refusal(libc::ENOSYS)),
            LandlockSupport::Refused(errno) => Some(refusal(errno)),
            LandlockSupport::Disabled => Some(Refusal {
                has: "has Landlock built in, but disabled at boot (EOPNOTSUPP)".into(),
                remedy: "add landlock to the lsm= parameter of the kernel's command line".into(),
            }),
        }
    }

    /// Every fact, in a fixed order, each with a remedy where it takes something away.
    pub fn facts(&self) -> Vec<Fact> {
        let yes = |there: bool| if there { "yes" } else { "no" }.to_owned();
        let fact = |name, value, remedy: Option<String>| Fact {
            name,
            value,
            remedy,
        };
        if let Some(reason) = &self.unsupported {
            return vec![fact("supported", format!("no: {reason}"), None)];
        }
        let unless = |there: bool, remedy: &str| (!there).then(|| remedy.to_owned());
        let kernel = format!("{} ({})", self.kernel, self.architecture);
        let seccomp = self.seccomp_refusal();
        let landlock = self.landlock_refusal();
        let groups = &self.groups;
        vec![
            fact("kernel", kernel, None),
            match seccomp {
                None => fact("seccomp filter", yes(true), None),
                Some(Refusal { has, remedy }) => fact(
                    "seccomp filter",
                    format!("no: the host {has}"),
                    Some(remedy),
                ),
            },
            self.denial_reports(),
            fact(
                "outer seccomp filter",
                match (self.outer_filter, self.outer_listener) {
                    (_, true) => "yes, with a listener".to_owned(),
                    (filter, false) => yes(filter),
                },
                None,
            ),
            match landlock {
                None => fact("landlock", self.landlock.to_string(), None),
                Some(Refusal { has, remedy }) => {
                    fact("landlock", format!("no: the host {has}"), Some(remedy))
                }
            },
            fact("clone3", yes(self.clone3), None),
            fact("clone3 into group", yes(self.clone_into_group), None),
            fact("user namespaces", self.user_namespaces.to_string(), {
                let remedy = self.user_namespaces.remedy();
                remedy
                    .map(|remedy| format!("nothing: no preset needs them (to have them, {remedy})"))
            }),
            self.mounts_fact(),
            fact("groups", groups.description.clone(), None),
            fact(
                "groups can be made",
                if groups.usable() {
                    yes(true)
                } else {
                    format!("no: {}", groups.access)
                },
                groups.access.remedy(),
            ),
            fact(
                "controllers",
                if groups.controllers.is_empty() {
                    "none".to_owned()
                } else {
                    groups.controllers.join(", ")
                },
                groups.controllers_remedy().filter(|_| groups.usable()),
            ),
            fact(
                "groups can be killed",
                yes(groups.kill),
                unless(groups.kill, "use Linux 5.14 or newer"),
            ),
            fact("uid, gid", format!("{}, {}", self.uid, self.gid), None),
            self.capabilities(),
            fact("uids mapped", ranges(self.uids.as_deref()), None),
            fact("gids mapped", ranges(self.gids.as_deref()), None),
            fact(
                "setgroups",
                yes(self.setgroups),
                unless(
                    self.setgroups || self.uid != 0,
                    "map its gids with newgidmap(1), which leaves setgroups allowed",
                ),
            ),
            fact("process 1", yes(self.init), None),
            fact("child subreaper", yes(self.subreaper), None),
            fact(
                "discards child status",
                yes(self.discards_status),
                unless(
                    !self.discards_status || self.status_after_reap,
                    "leave SIGCHLD at its default in this program, or use Linux 6.15 or newer",
                ),
            ),
            fact("status after reaping", yes(self.status_after_reap), None),
            fact("page size", format!("{} bytes", self.page_size), None),
            fact("CPUs", self.cpus.to_string(), None),
        ]
    }

    fn denial_reports(&self) -> Fact {
        let (value, remedy) = match (
            self.outer_listener,
            self.killable_notification,
            self.user_notification,
        ) {
            (true, _, _) => (
                "no: the outer filter has the one listener that a process can have",
                Some("run this program without the outer listener"),
            ),
            (false, true, _) => ("yes (killable notification)", None),
            (false, false, true) => (
                "no: notification is not killable before Linux 5.19",
                Some("use Linux 5.19 or newer"),
            ),
            (false, false, false) => ("no: no notification", Some("use Linux 5.19 or newer")),
        };
        // Where there is no filter, that is what to see to first.
        let remedy = remedy.filter(|_| self.seccomp_filter).map(str::to_owned);
        Fact {
            name: "denials reported",
            value: value.to_owned(),
            remedy,
        }
    }

    fn mounts_fact(&self) -> Fact {
        let remedy = self.mounts.remedy().map(|remedy| {
            format!(
                "nothing: no preset needs them (to bound the size of scratch directories, {remedy})"
            )
        });
        Fact {
            name: "mounts",
            value: match self.mounts {
                MountSupport::Allowed => "yes".to_owned(),
                MountSupport::Refused(errno) => format!("no ({})", errno_name(errno)),
            },
            remedy,
        }
    }

    fn capabilities(&self) -> Fact {
        let (value, remedy) = match self.missing_capabilities.as_slice() {
            [] => ("all that are needed".to_owned(), None),
            missing => {
                let missing = missing.join(", ");
                let remedy = (self.uid == 0).then(|| format!("give the container {missing}"));
                (format!("missing {missing}"), remedy)
            }
        };
        Fact {
            name: "capabilities",
            value,
            remedy,
        }
    }
}

/// A table, one fact a line.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Fact { name, value, .. }) in self.facts().iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{name:<24}{value}")?;
        }
        Ok(())
    }
}

fn ranges(ranges: Option<&[IdRange]>) -> String {
    let Some(ranges) = ranges else {
        return "unknown: /proc does not say".to_owned();
    };
    let shown = ranges.iter().map(|range| {
        let last = u64::from(range.first) + u64::from(range.count).saturating_sub(1);
        format!("{} to {last}", range.first)
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() {
        "none".to_owned()
    } else {
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GroupAccess, NamespaceRefusal, UserNamespaces};
    use super::*;

    fn remedies(host: &Host) -> Vec<&'static str> {
        let facts = host.facts().into_iter();
        facts
            .filter(|fact| fact.remedy.is_some())
            .map(|fact| fact.name)
            .collect()
    }

    #[test]
    fn an_unsupported_host_says_so_and_nothing_else() {
        let host = Host::nothing(Some("no Linux".into()));
        assert_eq!(host.to_string(), "supported               no: no Linux");
    }

    #[test]
    fn the_table_has_one_line_for_each_fact() {
        let mut host = Host::full();
        host.missing_capabilities = vec!["CAP_SETUID".into()];
        host.landlock = LandlockSupport::Disabled;
        let table = host.to_string();
        assert_eq!(table.lines().count(), host.facts().len());
        assert!(
            table.contains("capabilities            missing CAP_SETUID"),
            "{table}"
        );
        assert!(table.contains("disabled at boot"), "{table}");
    }

    #[test]
    fn what_is_missing_has_a_remedy_and_what_is_there_has_none() {
        assert_eq!(remedies(&Host::full()), Vec::<&str>::new());
        let mut host = Host::full();
        host.landlock = LandlockSupport::NotBuilt;
        host.killable_notification = false;
        host.user_namespaces = UserNamespaces::Refused {
            errno: libc::ENOSPC,
            by: NamespaceRefusal::Limit,
        };
        host.groups.access = GroupAccess::NoProc;
        host.groups.controllers.clear();
        host.groups.kill = false;
        host.missing_capabilities = vec!["CAP_SETUID".into()];
        assert_eq!(
            remedies(&host),
            [
                "denials reported",
                "landlock",
                "user namespaces",
                "groups can be made",
                "groups can be killed",
                "capabilities"
            ]
        );
    }

    #[test]
    fn ids_that_proc_does_not_tell_are_unknown_and_not_none() {
        let mut host = Host::full();
        host.uids = None;
        host.gids = Some(Vec::new());
        let table = host.to_string();
        assert!(
            table.contains("uids mapped             unknown: /proc"),
            "{table}"
        );
        assert!(table.contains("gids mapped             none"), "{table}");
    }

    #[test]
    fn a_call_that_is_refused_says_by_whom() {
        let mut host = Host::full();
        host.seccomp_filter = false;
        let mut texts = Vec::new();
        for (errno, filter, has, remedy) in [
            (
                libc::ENOSYS,
                false,
                "too old, or built without",
                "or newer with CONFIG_",
            ),
            (libc::ENOSYS, true, "answers for it", "seccomp profile"),
            (
                libc::EPERM,
                true,
                "by the seccomp filter around",
                "seccomp profile",
            ),
            (
                libc::EPERM,
                false,
                "not the kernel's answer",
                "directly on Linux",
            ),
        ] {
            host.outer_filter = filter;
            host.seccomp_error = Some(errno);
            host.landlock = match errno {
                libc::ENOSYS => LandlockSupport::NotBuilt,
                errno => LandlockSupport::Refused(errno),
            };
            for refusal in [host.seccomp_refusal(), host.landlock_refusal()] {
                let refusal = refusal.unwrap();
                assert!(refusal.has.contains(has), "{}", refusal.has);
                assert!(refusal.has.contains(&errno_name(errno)), "{}", refusal.has);
                assert!(refusal.remedy.contains(remedy), "{}", refusal.remedy);
                texts.push(refusal.has);
            }
        }
        host.landlock = LandlockSupport::Disabled;
        texts.push(host.landlock_refusal().unwrap().has);
        let count = texts.len();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), count, "{texts:?}");
    }
}
