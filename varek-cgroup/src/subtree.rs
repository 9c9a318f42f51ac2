//! The parent group of one embedder.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::OFlags;

use crate::bounds::{self, Homes, Places};
use crate::dir::Dir;
use crate::error::Error;
use crate::group::{Group, Unenforced};
use crate::home;
use crate::layout::{Controller, Home, Layout};
use crate::limits::Limits;
use crate::sweep::{self, Swept};

/// The last part of subtree names: one process may have several.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// How many names are tried, where a sweep of somebody else is quicker than the lock.
const TRIES: usize = 64;

/// The parent group of one embedder, in which it makes one [`Group`] a run.
///
/// It is a directory `varek-<boot>-<pid namespace>-<pid>-<n>` in the cgroup2 tree, and one in each version 1
/// hierarchy whose controller was required. The embedder owns it for as long as it holds a lock on it (flock(2) on
/// the open directory; the descriptor is close-on-exec, but a forked copy of the process that does not exec keeps
/// it alive). When the process dies, however it dies, the lock is free, and the next [`Subtree::prepare`] or
/// [`Subtree::sweep`] in the same place kills and removes what was left.
///
/// It is removed, with everything in it killed, by [`Subtree::remove`] or when the value and all groups
/// made by it are dropped. In a forked copy of the process it does nothing.
#[derive(Debug)]
pub struct Subtree {
    inner: Arc<Inner>,
}

/// What a subtree and its groups share.
#[derive(Debug)]
pub(crate) struct Inner {
    name: String,
    parent: Dir,
    pub(crate) directory: Dir,
    /// The parents in all version 1 hierarchies that this process can use, for sweeping.
    legacy_parents: Vec<Dir>,
    legacy_name: String,
    /// The directories of this subtree in the version 1 hierarchies that it uses.
    pub(crate) legacy: Vec<Dir>,
    /// In which of `legacy_parents` each of them is.
    legacy_at: Vec<usize>,
    pub(crate) homes: Homes,
    limits: Limits,
    unenforced: Vec<Unenforced>,
    own: std::path::PathBuf,
    mount: std::path::PathBuf,
    owner: u32,
    removed: AtomicBool,
}

impl Subtree {
    /// Makes the subtree of this embedder, after a sweep of those in the same place whose owner is gone.
    ///
    /// It goes below the embedder's own group, or a group above it where the own one cannot have children, never
    /// beyond the systemd unit or the mount. On unified hosts a group with processes cannot have children with
    /// controllers: if nothing else will do, the processes of the own group are moved into a child `varek-leaf`,
    /// provided that they are this process alone or the group is delegated (it belongs to this unprivileged user,
    /// systemd marked it, or it is the root of a cgroup namespace). They stay there.
    ///
    /// `required` are the controllers that the groups of runs need; those of `aggregate`, which bounds all runs
    /// together, are added. A CPU quota in `aggregate` holds at once. `memory.oom.group` is not set here: an OOM
    /// of the aggregate kills one process, not all runs.
    ///
    /// # Errors
    /// [`Error::ControllerUnavailable`], [`Error::NotDelegated`], [`Error::ReadOnly`],
    /// [`Error::InternalProcesses`], [`Error::NoKill`] (before Linux 5.14), [`Error::InvalidLimit`],
    /// [`Error::NotKept`], [`Error::Io`]. Nothing of the subtree is left behind.
    pub fn prepare(
        layout: &Layout,
        required: &[Controller],
        aggregate: &Limits,
    ) -> Result<Self, Error> {
        let aggregate = aggregate.checked(page())?;
        let needed: BTreeSet<Controller> = required
            .iter()
            .copied()
            .chain(aggregate.controllers())
            .collect();
        let mut unified_needed = Vec::new();
        for controller in &needed {
            match layout.home(*controller) {
                Some(Home::Unified) => unified_needed.push(*controller),
                Some(Home::Legacy(_)) => {}
                None => {
                    let own = layout.own_group();
                    return Err(home::unavailable(*controller, own, &layout.available()));
                }
            }
        }
        let parent = home::unified_parent(layout, &unified_needed)?;
        let (mut legacy_parents, mut used) = (Vec::new(), Vec::new());
        for legacy in &layout.legacy {
            let ours: Vec<Controller> = legacy
                .controllers
                .iter()
                .copied()
                .filter(|controller| needed.contains(controller))
                .collect();
            match home::legacy_parent(legacy) {
                Ok(directory) => {
                    if !ours.is_empty() {
                        used.push((legacy_parents.len(), ours));
                    }
                    legacy_parents.push(directory);
                }
                Err(error) if !ours.is_empty() => return Err(error),
                // Not needed, and then only of use for sweeping.
                Err(_) => {}
            }
        }
        // What cannot be swept is no reason not to start; `sweep` says what it is.
        let _ = sweep::sweep(&parent, &legacy_parents, layout.own_group());

        let (name, directory) = claim(&parent)?;
        // From here on dropping `inner` removes what was made.
        let mut inner = Inner {
            legacy_name: sweep::legacy_name(&name, parent.inode()?),
            name,
            parent,
            directory,
            legacy_parents,
            legacy: Vec::new(),
            legacy_at: Vec::new(),
            homes: Homes::default(),
            limits: Limits::default(),
            unenforced: Vec::new(),
            own: layout.own_group().to_owned(),
            mount: layout.mount_point().to_owned(),
            owner: std::process::id(),
            removed: AtomicBool::new(false),
        };
        inner.populate(&unified_needed, used, &aggregate)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Makes the group of one run, with its memory and task limits in force and read back.
    ///
    /// The CPU quota of `limits` is not in force yet: [`Group::apply_cpu`] does that, a moment after the exec, so
    /// that the start of an interpreter is not throttled. All or nothing: on failure everything made so far
    /// is removed.
    ///
    /// On unified hosts with the memory controller `memory.oom.group` is set: an OOM kills the whole group. **One
    /// vfork-style child a group, ever**: a second child that still shares the embedder's memory while the group
    /// is out of memory would take the embedder with it.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidLimit`], [`Error::ControllerNotPrepared`], [`Error::Exists`],
    /// [`Error::NotKept`], [`Error::ForkedCopy`], [`Error::Io`] (EAGAIN: `cgroup.max.descendants` of a
    /// group above is used up).
    pub fn create(&self, name: &str, limits: &Limits) -> Result<Group, Error> {
        self.inner.owned("create groups in")?;
        check_name(name)?;
        let limits = limits.checked(page())?;
        for controller in limits.controllers() {
            if self.inner.homes.of(controller).is_none() {
                return Err(Error::ControllerNotPrepared {
                    controller,
                    path: self.path().to_owned(),
                });
            }
        }
        Group::create(Arc::clone(&self.inner), name, &limits)
    }

    /// Kills and removes the subtrees in the same place whose owner is gone. Waits at most two seconds for
    /// killed processes to go.
    pub fn sweep(&self) -> Swept {
        sweep::sweep(
            &self.inner.parent,
            &self.inner.legacy_parents,
            &self.inner.own,
        )
    }

    /// `cgroup.kill` of the subtree, opened for writing: whoever writes "1" to it kills every run. Meant for a
    /// guardian that outlives the embedder. The descriptor is close-on-exec.
    ///
    /// # Errors
    /// [`Error::Io`] where the subtree was removed.
    pub fn kill_file(&self) -> Result<OwnedFd, Error> {
        self.inner
            .directory
            .open_file("open", "cgroup.kill", OFlags::WRONLY)
    }

    /// The directory on which a child takes a shared lock (flock(2)) that is made in the embedder's own group and then
    /// joins its own: from before it is made until it has joined. [`Subtree::prepare`] of whatever process takes an
    /// exclusive one while it moves the processes of a group into a leaf. Without the lock it could have seen the
    /// child before, and would move it out of its group after that.
    ///
    /// It is the mount point of the cgroup2 tree, which every user may open and lock: who does so keeps guests from being
    /// started, and no more. The descriptor is close-on-exec, not below 3, and an open file of its own.
    ///
    /// # Errors
    /// [`Error::Io`] where the mount is gone.
    pub fn settling(&self) -> Result<OwnedFd, Error> {
        home::settling(&self.inner.mount)
    }

    /// `cgroup.freeze` of the subtree, opened for writing: whoever writes "1" to it stops every run. Meant to come
    /// before the kill, which does not reach processes whose first thread has ended: frozen, they do nothing until a
    /// sweep kills them one by one. The descriptor is close-on-exec.
    ///
    /// # Errors
    /// [`Error::Io`] where the subtree was removed.
    pub fn freeze_file(&self) -> Result<OwnedFd, Error> {
        self.inner
            .directory
            .open_file("open", "cgroup.freeze", OFlags::WRONLY)
    }

    /// The directory of the subtree in the cgroup2 tree.
    pub fn path(&self) -> &Path {
        self.inner.directory.path()
    }

    /// The aggregate limits as read back.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What the kernel cannot do of the aggregate limits.
    pub fn unenforced(&self) -> &[Unenforced] {
        &self.inner.unenforced
    }

    /// Kills every process in the subtree, waits at most two seconds until they are gone, and removes it in all
    /// hierarchies. Groups made by it do not work any more. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::StillPopulated`] where a process does not die, [`Error::ForkedCopy`], [`Error::Io`].
    pub fn remove(&self) -> Result<(), Error> {
        self.inner.owned("remove")?;
        self.inner.remove()
    }
}

impl Inner {
    fn populate(
        &mut self,
        unified: &[Controller],
        used: Vec<(usize, Vec<Controller>)>,
        aggregate: &Limits,
    ) -> Result<(), Error> {
        if !self.directory.has("cgroup.kill") {
            return Err(Error::NoKill {
                path: self.directory.path().join("cgroup.kill"),
            });
        }
        if !unified.is_empty() {
            home::enable(&self.directory, unified)?;
            let enabled = Controller::listed(&self.directory.read("cgroup.subtree_control")?);
            for controller in unified {
                if !enabled.contains(controller) {
                    return Err(home::unavailable(
                        *controller,
                        self.directory.path(),
                        &enabled,
                    ));
                }
                self.homes.put(*controller, Home::Unified);
            }
        }
        for (index, controllers) in used {
            let Some(parent) = self.legacy_parents.get(index) else {
                continue;
            };
            // A leftover of an embedder of the same number is gone by now, or cannot be removed.
            if !parent.make(&self.legacy_name)? {
                return Err(Error::Exists {
                    path: parent.path().join(&self.legacy_name),
                });
            }
            self.legacy_at.push(index);
            let home = Home::Legacy(self.legacy.len());
            self.legacy.push(parent.child(&self.legacy_name)?);
            for controller in controllers {
                self.homes.put(controller, home);
            }
        }
        let places = Places {
            homes: self.homes,
            unified: &self.directory,
            legacy: &self.legacy,
        };
        self.limits = bounds::bound(places, aggregate, &mut self.unenforced)?;
        if let Some(quota) = aggregate.cpu {
            bounds::cpu(places, quota)?;
            self.limits.cpu = Some(quota);
        }
        Ok(())
    }

    /// An error in a forked copy of the embedder.
    pub(crate) fn owned(&self, operation: &'static str) -> Result<(), Error> {
        if self.is_owner() {
            return Ok(());
        }
        Err(Error::ForkedCopy {
            operation,
            path: self.directory.path().to_owned(),
            owner: self.owner,
        })
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.owner == std::process::id()
    }

    fn remove(&self) -> Result<(), Error> {
        if self.removed.load(Ordering::Acquire) {
            return Ok(());
        }
        let trees: Vec<(&Dir, &str)> = self
            .legacy_at
            .iter()
            .filter_map(|index| self.legacy_parents.get(*index))
            .map(|parent| (parent, self.legacy_name.as_str()))
            .collect();
        let deadline = Instant::now() + sweep::PATIENCE;
        sweep::destroy(&self.parent, &self.name, &self.directory, &trees, deadline)?;
        self.removed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_owner() {
            // What is left has no owner from now on, and the next sweep takes it.
            let _ = self.remove();
        }
    }
}

/// Makes a directory of a new name and takes its lock before anything else is done.
fn claim(parent: &Dir) -> Result<(String, Dir), Error> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
    let pid = std::process::id();
    let mut name = String::new();
    for _ in 0..TRIES {
        name = sweep::name(
            &boot,
            namespace,
            pid,
            NUMBER.fetch_add(1, Ordering::Relaxed),
        );
        if !parent.make(&name)? {
            continue;
        }
        let directory = match parent.child(&name) {
            Ok(directory) => directory,
            // Swept before it could be opened; or this user may make directories and not open them.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                continue;
            }
            Err(error) => {
                let _ = parent.unmake(&name);
                return Err(error);
            }
        };
        // If a sweep has the lock, it removes the directory, and another name is tried.
        if directory.lock()? && directory.is_still(parent, &name) {
            return Ok((name, directory));
        }
    }
    Err(Error::Exists {
        path: parent.path().join(name),
    })
}

fn page() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

fn check_name(name: &str) -> Result<(), Error> {
    let reason = if name.is_empty() || name.len() > 64 {
        "it is empty or longer than 64 bytes"
    } else if name.starts_with('.') {
        "it starts with a dot"
    } else if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    {
        "it has other characters"
    } else if ["cgroup.", "memory.", "pids.", "cpu.", "cpuset.", "io."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || matches!(name, "tasks" | "notify_on_release" | "release_agent")
    {
        "it is or may become a file of the kernel"
    } else {
        return Ok(());
    };
    Err(Error::InvalidName {
        name: name.chars().take(80).collect(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_subtree_or_shadow_a_control_file() {
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "/a",
            "a b",
            "a\n",
            "é",
            "a\0",
            "memory.max",
            "tasks",
        ] {
            assert!(
                matches!(check_name(name), Err(Error::InvalidName { .. })),
                "{name:?}"
            );
        }
        assert!(check_name(&"a".repeat(65)).is_err());
        for name in ["a", "run-1", "A.b_c-9", "memory", "a..b"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        assert!(check_name(&"a".repeat(64)).is_ok());
    }

    #[test]
    fn a_fresh_directory_is_locked_and_never_shares_a_name() {
        let temporary = tempfile::tempdir().unwrap();
        let parent = Dir::open(temporary.path()).unwrap();
        let (first, held) = claim(&parent).unwrap();
        let (second, _other) = claim(&parent).unwrap();
        assert_ne!(first, second);
        assert!(held.is_still(&parent, &first));
        assert!(!parent.child(&first).unwrap().lock().unwrap());
    }
}
