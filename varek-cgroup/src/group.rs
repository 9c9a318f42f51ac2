//! The group of one run.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;

use crate::bounds::{self, Places};
use crate::dir::{self, Dir};
use crate::error::Error;
use crate::layout::Controller;
use crate::limits::Limits;
use crate::parse;
use crate::subtree::Inner;
use crate::sweep;

/// How deep groups that a guest made below its own are listed and removed.
const DEPTH: usize = 32;

/// How often a directory is tried again that is said to be busy though the group is empty.
const YIELDS: usize = 8;

/// What the kernel of this host cannot do of what was asked. Everything else was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unenforced {
    /// Swap is not accounted for, so that a memory limit does not bound it. Where the host has no swap,
    /// nothing is lost.
    Swap {
        /// The file that is missing.
        path: PathBuf,
    },
    /// No descriptor tells of an OOM as it happens; the counters tell afterwards.
    OomEvents {
        /// The file that is missing or refuses.
        path: PathBuf,
    },
    /// An OOM kills one process and not the group (version 1 has no `memory.oom.group`); whoever watches
    /// [`Group::oom`] must kill the rest.
    OomGroup {
        /// The directory of the group.
        path: PathBuf,
    },
}

impl fmt::Display for Unenforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Swap { path } => {
                write!(f, "swap is not bounded: {} does not exist", path.display())
            }
            Self::OomEvents { path } => {
                write!(
                    f,
                    "an OOM is seen in the counters alone: {} has no events",
                    path.display()
                )
            }
            Self::OomGroup { path } => {
                write!(
                    f,
                    "an OOM kills one process alone: {} has no memory.oom.group",
                    path.display()
                )
            }
        }
    }
}

/// What one try to remove a group did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Removal {
    /// It is gone from every hierarchy.
    Removed,
    /// A process is in it yet; try again when [`Group::events`] tells, or a moment later.
    Busy,
}

/// The group of one run: a directory in the cgroup2 tree and one in each version 1 hierarchy of the subtree.
///
/// Directories and files belong to the embedder's user, mode 0755 and 0644 less the umask, and are never given to
/// the guest. All descriptors are close-on-exec and not below 3.
///
/// Dropping it tries once to remove it; what still holds processes then is removed with the [`Subtree`].
///
/// [`Subtree`]: crate::Subtree
#[derive(Debug)]
pub struct Group {
    inner: Arc<Inner>,
    name: String,
    directory: Dir,
    pub(crate) legacy: Vec<Dir>,
    placements: Vec<OwnedFd>,
    events: OwnedFd,
    oom: Option<OwnedFd>,
    limits: Limits,
    unenforced: Vec<Unenforced>,
    removed: AtomicBool,
}

/// The directories made so far; removes them unless the group was finished.
struct Unfinished<'a> {
    inner: &'a Inner,
    name: &'a str,
    legacy: usize,
    finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.finished {
            for parent in self.inner.legacy.iter().take(self.legacy) {
                let _ = parent.unmake(self.name);
            }
            let _ = self.inner.directory.unmake(self.name);
        }
    }
}

impl Group {
    pub(crate) fn create(inner: Arc<Inner>, name: &str, limits: &Limits) -> Result<Self, Error> {
        let exists = |parent: &Dir| Error::Exists {
            path: parent.path().join(name),
        };
        if !inner.directory.make(name)? {
            return Err(exists(&inner.directory));
        }
        let mut unfinished = Unfinished {
            inner: &inner,
            name,
            legacy: 0,
            finished: false,
        };
        let directory = inner.directory.child(name)?;
        let mut legacy = Vec::with_capacity(inner.legacy.len());
        let mut placements = Vec::with_capacity(inner.legacy.len());
        for parent in &inner.legacy {
            if !parent.make(name)? {
                return Err(exists(parent));
            }
            unfinished.legacy += 1;
            let below = parent.child(name)?;
            placements.push(below.open_file("open", "cgroup.procs", OFlags::WRONLY)?);
            legacy.push(below);
        }
        let places = Places {
            homes: inner.homes,
            unified: &directory,
            legacy: &legacy,
        };
        let mut unenforced = Vec::new();
        let limits = Limits {
            cpu: limits.cpu,
            ..bounds::bound(places, limits, &mut unenforced)?
        };
        let oom = match places.of(Controller::Memory) {
            None => None,
            Some((memory, true)) => {
                memory.write("memory.oom.group", "1")?;
                Some(watched(memory, "memory.events")?)
            }
            Some((memory, false)) => {
                unenforced.push(Unenforced::OomGroup {
                    path: memory.path().to_owned(),
                });
                let events = oom_eventfd(memory);
                if events.is_err() {
                    unenforced.push(Unenforced::OomEvents {
                        path: memory.path().join("cgroup.event_control"),
                    });
                }
                events.ok()
            }
        };
        let events = watched(&directory, "cgroup.events")?;
        unfinished.finished = true;
        drop(unfinished);
        Ok(Self {
            inner,
            name: name.to_owned(),
            directory,
            legacy,
            placements,
            events,
            oom,
            limits,
            unenforced,
            removed: AtomicBool::new(false),
        })
    }

    /// The cgroup2 directory, for clone3(2) with `CLONE_INTO_CGROUP` (Linux 5.7). See [`Subtree::create`] for why
    /// only one vfork-style child may be put in.
    ///
    /// [`Subtree::create`]: crate::Subtree::create
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The path of the cgroup2 directory, for people and logs.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `cgroup.procs` of every version 1 group, open for writing. The child writes "0" into each before its exec,
    /// or is not bounded there. Empty on unified hosts.
    pub fn placements(&self) -> &[OwnedFd] {
        &self.placements
    }

    /// `cgroup.procs` of the cgroup2 group, opened for writing, for children that were not cloned into it.
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed.
    pub fn place_file(&self) -> Result<OwnedFd, Error> {
        self.directory
            .open_file("open", "cgroup.procs", OFlags::WRONLY)
    }

    /// `cgroup.events` of the cgroup2 group: ready for priority input (`EPOLLPRI`) when the group becomes empty or
    /// populated. It stays ready until [`Group::populated`] was called, which reads it.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Ready when the group meets its memory limit hard or the OOM killer was at work in it; `None` without the
    /// memory controller, or where [`Group::unenforced`] says so.
    ///
    /// Unified hosts: `memory.events`, ready for priority input (`EPOLLPRI`) until [`Group::counters`] was called; it
    /// changes for other events too. Version 1: an eventfd registered on `memory.oom_control`, non-blocking, ready
    /// for input (`EPOLLIN`) until read, also when the group is removed. Either way look at
    /// [`Group::counters`] before believing it.
    pub fn oom(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    /// Puts the CPU quota of the limits in force, and reads it back. Without one it does nothing.
    ///
    /// Creation leaves it out: the supervisor calls this a moment after exec (`cpu.max.burst` is no
    /// help, since a new group has no credit).
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::Io`] (EINVAL on version 1: more than a group above allows).
    pub fn apply_cpu(&self) -> Result<(), Error> {
        match self.limits.cpu {
            None => Ok(()),
            Some(quota) => bounds::cpu(self.places(), quota),
        }
    }

    /// Kills every process in the cgroup2 group and below it with SIGKILL, those that fork meanwhile included
    /// (`cgroup.kill`, Linux 5.14). Does not wait for them.
    ///
    /// # Errors
    /// [`Error::ForkedCopy`]; [`Error::Io`] where the group was removed.
    pub fn kill(&self) -> Result<(), Error> {
        self.inner.owned("kill")?;
        self.directory.write("cgroup.kill", "1")
    }

    /// Kills what [`Group::kill`] left: processes whose first thread has ended while others run on, which
    /// `cgroup.kill` does not reach. It freezes the group, for good, and sends SIGKILL to each process by its
    /// pidfd. To be called again, with a pause, for as long as the group is populated.
    ///
    /// # Errors
    /// [`Error::ForkedCopy`]; [`Error::Io`] where the group was removed.
    pub fn kill_each(&self) -> Result<(), Error> {
        self.inner.owned("kill")?;
        sweep::kill_each(&self.directory)
    }

    /// Whether a live process is in the group or below it; zombies do not count. Reads [`Group::events`], which is
    /// then ready at the next change.
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed; [`Error::Malformed`].
    pub fn populated(&self) -> Result<bool, Error> {
        let text = dir::read_at(&self.events, self.path(), "cgroup.events")?;
        match parse::keyed(&text, "populated") {
            Some(0) => Ok(false),
            Some(_) => Ok(true),
            None => Err(Error::malformed(
                &self.path().join("cgroup.events"),
                "no number after `populated`",
                &text,
            )),
        }
    }

    /// The processes in the group and in groups below it, as numbers of this pid namespace; those that it
    /// cannot see are left out. A snapshot: numbers are reused, so never send signals to them; use
    /// [`Group::kill`].
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed.
    pub fn processes(&self) -> Result<Vec<u32>, Error> {
        // The first read tells a group that is gone from an empty one.
        drop(
            self.directory
                .open_file("read", "cgroup.procs", OFlags::RDONLY)?,
        );
        Ok(sweep::processes(&self.directory, DEPTH))
    }

    /// Tasks that count against the task limit (`pids.current`). It falls when zombies are reaped, so
    /// that 0 means that nothing of the tree is left at all. `None` without the pids controller.
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed; [`Error::Malformed`].
    pub fn tasks_charged(&self) -> Result<Option<u64>, Error> {
        let Some((pids, _)) = self.places().of(Controller::Pids) else {
            return Ok(None);
        };
        let text = pids.read("pids.current")?;
        match text.trim().parse() {
            Ok(tasks) => Ok(Some(tasks)),
            Err(_) => Err(Error::malformed(
                &pids.path().join("pids.current"),
                "not a number",
                &text,
            )),
        }
    }

    /// The limits, memory and tasks as the kernel read them back; the CPU quota is in force once
    /// [`Group::apply_cpu`] returned.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the kernel of this host cannot do of it.
    pub fn unenforced(&self) -> &[Unenforced] {
        &self.unenforced
    }

    /// One try to remove the group, with groups that were made below it, from every hierarchy. It never blocks.
    /// Once it is removed, further calls do nothing and say so again.
    ///
    /// # Errors
    /// [`Error::ForkedCopy`], [`Error::NotDelegated`], [`Error::Io`].
    pub fn remove(&self) -> Result<Removal, Error> {
        self.inner.owned("remove")?;
        if self.removed.load(Ordering::Acquire) {
            return Ok(Removal::Removed);
        }
        // The version 1 groups may be empty while a child on its way into them is in the cgroup2 group: they
        // must be there when it arrives.
        match self.populated() {
            Ok(true) => return Ok(Removal::Busy),
            Ok(false) => {}
            Err(_) if !self.inner.directory.has(&self.name) => {}
            Err(error) => return Err(error),
        }
        for parent in self.inner.legacy.iter().chain([&self.inner.directory]) {
            if !removed(parent, &self.name)? {
                return Ok(Removal::Busy);
            }
        }
        self.removed.store(true, Ordering::Release);
        Ok(Removal::Removed)
    }

    pub(crate) fn places(&self) -> Places<'_> {
        Places {
            homes: self.inner.homes,
            unified: &self.directory,
            legacy: &self.legacy,
        }
    }

    /// Reads `memory.events` through the descriptor that is polled, where that is the one.
    pub(crate) fn memory_events(&self, memory: &Dir) -> Result<String, Error> {
        match &self.oom {
            Some(events) => dir::read_at(events, memory.path(), "memory.events"),
            None => memory.read("memory.events"),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.inner.is_owner() {
            let _ = self.remove();
        }
    }
}

/// Removes one directory of a group that is empty. The kernel tells the hierarchies one after the other
/// that the last process is gone, so that one may be busy a moment longer than the other.
fn removed(parent: &Dir, name: &str) -> Result<bool, Error> {
    for _ in 0..YIELDS {
        if sweep::remove_tree(parent, name, DEPTH)? {
            return Ok(true);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// Opens a file that can be polled, and reads it: until it was read once, the kernel says that it changed.
fn watched(directory: &Dir, file: &str) -> Result<OwnedFd, Error> {
    let fd = directory.open_file("open", file, OFlags::RDONLY)?;
    dir::read_at(&fd, directory.path(), file)?;
    Ok(fd)
}

/// An eventfd that the kernel signals when the version 1 group is out of memory
/// (Documentation/admin-guide/cgroup-v1/memory.rst, section 10).
fn oom_eventfd(memory: &Dir) -> Result<OwnedFd, Error> {
    use std::os::fd::AsRawFd;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let path = memory.path();
    let eventfd = rustix::event::eventfd(0, flags)
        .map_err(|errno| Error::io("make an eventfd for", path, errno.into()))?;
    let eventfd = dir::above_streams(eventfd, path)?;
    let control = memory.open_file("open", "memory.oom_control", OFlags::RDONLY)?;
    let line = format!("{} {}", eventfd.as_raw_fd(), control.as_raw_fd());
    memory.write("cgroup.event_control", &line)?;
    Ok(eventfd)
}
