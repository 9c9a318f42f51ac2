//! Where this process may make groups.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::error::Error;
use crate::parse::{self, Membership, Mount};

/// A resource controller that limits are put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Controller {
    /// Memory, page cache and kernel memory (`memory.max`; version 1 `memory.limit_in_bytes`).
    Memory,
    /// Number of tasks (`pids.max` in both versions).
    Pids,
    /// CPU time per period (`cpu.max`; version 1 `cpu.cfs_quota_us`).
    Cpu,
}

impl Controller {
    /// All controllers that this library knows.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's name of it, as in `cgroup.controllers`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// The unit setting that makes systemd enable it.
    pub(crate) const fn accounting(self) -> &'static str {
        match self {
            Self::Memory => "MemoryAccounting=yes",
            Self::Pids => "TasksAccounting=yes",
            Self::Cpu => "CPUAccounting=yes",
        }
    }

    /// The controllers that `cgroup.controllers` or `cgroup.subtree_control` lists.
    pub(crate) fn listed(text: &str) -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|controller| {
                text.split_whitespace()
                    .any(|name| name == controller.name())
            })
            .collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the host has its controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hierarchy {
    /// All in one cgroup2 tree.
    Unified,
    /// At least one in a version 1 hierarchy of its own; the life of groups is in a cgroup2 tree all the same.
    Hybrid,
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unified => "unified",
            Self::Hybrid => "hybrid",
        })
    }
}

/// One hierarchy as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The mount point.
    pub(crate) mount: PathBuf,
    /// The own group of this process, a directory at or below `mount`.
    pub(crate) own: PathBuf,
    /// The mount is read-only.
    pub(crate) read_only: bool,
}

impl Place {
    /// The groups in which this process may look for room, nearest first: the own group, then those above
    /// up to the mount point, but never beyond a systemd unit, whose parent belongs to systemd
    /// (<https://systemd.io/CGROUP_DELEGATION>, "single-writer rule").
    pub(crate) fn candidates(&self) -> Vec<&Path> {
        let mut found = Vec::new();
        for group in self.own.ancestors() {
            found.push(group);
            let unit = group
                .extension()
                .is_some_and(|kind| kind == "scope" || kind == "service");
            if unit || group == self.mount {
                break;
            }
        }
        found
    }
}

/// A version 1 hierarchy and those of our controllers that are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Legacy {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) place: Place,
}

/// Where a controller is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the cgroup2 tree.
    Unified,
    /// In the version 1 hierarchy of this index.
    Legacy(usize),
}

/// Where this process may make groups: the mount, version and own group of each controller, and of the
/// cgroup2 tree in which groups are created into, killed and watched.
///
/// A value without descriptors: it says how things were when it was probed. [`Subtree::prepare`] checks
/// everything again that it relies on.
///
#[cfg_attr(
    target_os = "linux",
    doc = "[`Subtree::prepare`]: crate::Subtree::prepare"
)]
#[cfg_attr(not(target_os = "linux"), doc = "[`Subtree::prepare`]: Layout")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) unified: Place,
    pub(crate) unified_controllers: Vec<Controller>,
    pub(crate) legacy: Vec<Legacy>,
}

impl Layout {
    /// Reads /proc/self/cgroup, /proc/self/mountinfo and `cgroup.controllers` of this process's groups.
    ///
    /// # Errors
    /// [`Error::UnsupportedTarget`] off Linux, [`Error::NoProc`], [`Error::NoUnifiedMount`],
    /// [`Error::OwnGroupHidden`], or [`Error::Io`] where a file of the own group is not readable.
    pub fn probe() -> Result<Self, Error> {
        #[cfg(target_os = "linux")]
        {
            let read = |path: &str| {
                read_whole(path).map_err(|source| Error::NoProc {
                    path: path.into(),
                    source,
                })
            };
            let mut layout =
                Self::parse(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)?;
            // A group lists what the groups above enabled for it; where the own group is a leaf without any,
            // one above may still have room for siblings.
            let mut offered = Vec::new();
            for group in layout.unified.candidates() {
                let file = group.join("cgroup.controllers");
                match std::fs::read_to_string(&file) {
                    Ok(text) => offered.extend(Controller::listed(&text)),
                    Err(source) if group == layout.unified.own => {
                        return Err(Error::io("read", &file, source));
                    }
                    Err(_) => {}
                }
            }
            layout
                .unified_controllers
                .retain(|controller| offered.contains(controller));
            Ok(layout)
        }
        #[cfg(not(target_os = "linux"))]
        {
            Err(Error::UnsupportedTarget {
                target: std::env::consts::OS,
            })
        }
    }

    /// What the two texts alone say, /proc/PID/cgroup and /proc/PID/mountinfo. Controllers that no
    /// version 1 hierarchy has are taken to be in the cgroup2 tree; only [`Layout::probe`] can tell.
    ///
    /// Octal escapes, bind mounts of a part of a hierarchy, cgroup namespaces and mounts hidden by later ones
    /// are taken into account (cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5)).
    ///
    /// # Errors
    /// [`Error::NoUnifiedMount`] and [`Error::OwnGroupHidden`].
    ///
    /// ```
    /// use varek_cgroup::{Hierarchy, Layout};
    ///
    /// # fn main() -> Result<(), varek_cgroup::Error> {
    /// let layout = Layout::parse(
    ///     "0::/user.slice/run.scope\n",
    ///     "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    /// )?;
    /// assert_eq!(layout.hierarchy(), Hierarchy::Unified);
    /// assert!(layout.own_group().ends_with("user.slice/run.scope"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse(cgroup: &str, mountinfo: &str) -> Result<Self, Error> {
        let members = parse::memberships(cgroup);
        let mounts = parse::mounts(mountinfo);
        let versions = mounts.iter().filter(|mount| !mount.unified).count();
        let own = members.iter().find(|member| member.unified);
        let (Some(own), true) = (own, mounts.iter().any(|mount| mount.unified)) else {
            let found = match (own.is_some(), versions) {
                (false, _) => "no cgroup2 hierarchy in /proc/self/cgroup".to_owned(),
                (true, 0) => "no control group file system mounted".to_owned(),
                (true, count) => {
                    format!("{count} version 1 hierarchies mounted, and no cgroup2 one")
                }
            };
            return Err(Error::NoUnifiedMount { found });
        };
        let unified = place(own, mounts.iter().filter(|mount| mount.unified))?;

        let mut legacy = Vec::new();
        for member in members.iter().filter(|member| !member.unified) {
            let controllers = Controller::listed(&member.controllers.join(" "));
            let Some(first) = controllers.first() else {
                continue;
            };
            let here = mounts.iter().filter(|mount| {
                !mount.unified && mount.options.iter().any(|name| name == first.name())
            });
            // A hierarchy of which nothing, or only foreign parts are mounted cannot be used; its controllers
            // are not available, which is an error for whoever requires them.
            if let Ok(place) = place(member, here) {
                legacy.push(Legacy { controllers, place });
            }
        }
        let on_version_1: Vec<Controller> = members
            .iter()
            .filter(|member| !member.unified)
            .flat_map(|member| Controller::listed(&member.controllers.join(" ")))
            .collect();
        let unified_controllers = Controller::ALL
            .into_iter()
            .filter(|controller| !on_version_1.contains(controller))
            .collect();
        Ok(Self {
            unified,
            unified_controllers,
            legacy,
        })
    }

    /// Whether the controllers are all in the cgroup2 tree.
    pub fn hierarchy(&self) -> Hierarchy {
        if self.legacy.is_empty() {
            Hierarchy::Unified
        } else {
            Hierarchy::Hybrid
        }
    }

    /// The controllers that this process's groups can have.
    pub fn available(&self) -> Vec<Controller> {
        Controller::ALL
            .into_iter()
            .filter(|controller| self.home(*controller).is_some())
            .collect()
    }

    /// The own group of this process in the cgroup2 tree, as a directory.
    pub fn own_group(&self) -> &Path {
        &self.unified.own
    }

    /// The mount point of the cgroup2 tree.
    pub fn mount_point(&self) -> &Path {
        &self.unified.mount
    }

    pub(crate) fn home(&self, controller: Controller) -> Option<Home> {
        let legacy = self
            .legacy
            .iter()
            .position(|legacy| legacy.controllers.contains(&controller))
            .map(Home::Legacy);
        let unified = self
            .unified_controllers
            .contains(&controller)
            .then_some(Home::Unified);
        legacy.or(unified)
    }
}

/// One line for people: the hierarchy, then where the life of groups and each controller are.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read_only = |place: &Place| if place.read_only { " (read-only)" } else { "" };
        let unified = &self.unified;
        write!(
            f,
            "{}: groups below {}{}",
            self.hierarchy(),
            unified.own.display(),
            read_only(unified)
        )?;
        for controller in Controller::ALL {
            match self.home(controller) {
                None => write!(f, "; {controller}: not available")?,
                Some(Home::Unified) => write!(f, "; {controller}: version 2")?,
                Some(Home::Legacy(index)) => {
                    if let Some(Legacy { place, .. }) = self.legacy.get(index) {
                        let own = place.own.display();
                        write!(f, "; {controller}: version 1, {own}{}", read_only(place))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A file of /proc, in few calls: its size is not known beforehand, and mounts may change between two.
#[cfg(target_os = "linux")]
fn read_whole(path: &str) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::with_capacity(64 * 1024);
    std::fs::File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first mount that shows the own group, writable ones before read-only ones.
fn place<'a>(member: &Membership, mounts: impl Iterator<Item = &'a Mount>) -> Result<Place, Error> {
    let (mut seen, mut visible) = (Vec::new(), Vec::new());
    for mount in mounts {
        seen.push(format!(
            "{} at {}",
            mount.root.display(),
            mount.point.display()
        ));
        if let Some(below) = below(Path::new(&member.path), &mount.root) {
            // Path::join("") would add a slash at the end.
            let own = if below.as_os_str().is_empty() {
                mount.point.clone()
            } else {
                mount.point.join(below)
            };
            visible.push(Place {
                mount: mount.point.clone(),
                own,
                read_only: mount.read_only,
            });
        }
    }
    visible.sort_by_key(|place| place.read_only);
    visible
        .into_iter()
        .next()
        .ok_or_else(|| Error::OwnGroupHidden {
            hierarchy: if member.unified {
                "cgroup2".to_owned()
            } else {
                member.controllers.join(",")
            },
            group: member.path.clone(),
            mounts: seen.join(", "),
        })
}

/// The part of `group` below `root`, where it is below and neither leaves the namespace (`/..`).
fn below<'a>(group: &'a Path, root: &Path) -> Option<&'a Path> {
    let inside = |path: &Path| {
        path.components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
    };
    (inside(group) && inside(root))
        .then(|| group.strip_prefix(root).ok())
        .flatten()
}

#[cfg(test)]
mod tests;
