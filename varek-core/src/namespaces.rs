//! Namespaces of a run's own: a hardening layer that a policy asks for.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A namespace that every run of a sandbox gets for itself: namespaces(7).
///
/// Every other layer holds without them, and none of them makes up for one; they take away what a guest sees and could
/// name. They need root with CAP_SYS_ADMIN, and cost the start of a small process for each run, most of it while
/// nobody waits. Where they cannot be had the sandbox is refused, unless
/// [`Layer::Namespaces`](crate::Layer::Namespaces) is in `best_effort`.
///
/// ```
/// use varek_core::{Namespace, Policy};
///
/// let policy = Policy::python().namespaces([Namespace::Pid, Namespace::Ipc]);
/// assert_eq!(policy.problems(), []);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Namespace {
    /// Process ids, and a `/proc` that shows the run alone: pid_namespaces(7).
    ///
    /// Process 1 is a reaper, a static program that does nothing but take in orphans; the guest is process 2, and its
    /// signals and exit codes are what they are without. When the embedder ends, however it ends, the reaper does, and
    /// the kernel kills everything in the namespace. Paths beneath `/proc` that the policy grants are those of the new `/proc`:
    /// `read("/proc")` opens the run's processes to one another, and of the machine what everybody may read there.
    /// Where parts of `/proc` are hidden from the embedder (container managers mount over them), the new one has the run's
    /// processes and nothing else.
    /// What gets round it: a forked copy of the embedder that never execs keeps the reaper, and what is left of the run, for as long
    /// as the copy lives. It does not hide the machine's load, clocks and memory.
    Pid,
    /// Mounts, with the scratch directory at `/tmp`: mount_namespaces(7).
    ///
    /// `HOME`, `TMPDIR` and the working directory are `/tmp` then, and nothing else that is there can be granted. Guests have a mount
    /// namespace without this as well wherever their scratch directory is one of a bounded size.
    Mount,
    /// System V objects and POSIX message queues: ipc_namespaces(7).
    Ipc,
    /// The host name, which is `varek`: uts_namespaces(7).
    Uts,
    /// Network devices, addresses, ports and abstract sockets: network_namespaces(7).
    ///
    /// There is nothing but a loopback device, so that with [`Network::Host`](crate::Network::Host) processes of the run
    /// reach one another and nobody else. Sockets with a path are files, and not in it.
    Net,
    /// The view of control groups, which begins with the run's: cgroup_namespaces(7).
    Cgroup,
    /// Users: only the guest's own uid and gid exist, and capabilities over nothing else could be had:
    /// user_namespaces(7). Files of others belong to `nobody` then, which some programs complain of.
    User,
}

impl Namespace {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Pid,
        Self::Mount,
        Self::Ipc,
        Self::Uts,
        Self::Net,
        Self::Cgroup,
        Self::User,
    ];
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pid => "pid",
            Self::Mount => "mount",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Net => "net",
            Self::Cgroup => "cgroup",
            Self::User => "user",
        })
    }
}

/// The guest's `/tmp`, with [`Namespace::Mount`].
pub(crate) const TMP: &str = "/tmp";

/// The names, for people.
pub(crate) fn names(namespaces: &BTreeSet<Namespace>) -> String {
    let names: Vec<_> = namespaces.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// What lies at or beneath the host's `/tmp`, which a guest with [`Namespace::Mount`] does not see.
pub(crate) fn hidden<'a>(mut used: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let hidden = |path: &Path| {
        let place = path.canonicalize();
        place.is_ok_and(|place| place.starts_with(TMP)) || path.starts_with(TMP)
    };
    used.find(|path| hidden(path)).map(Path::to_owned)
}
