//! Descriptors that a child left in the embedder's table without saying so.
//!
//! A child opens its `/proc` entry and its listener in the table that it shares with the embedder, and
//! then publishes their numbers. One that is killed between the two leaves a descriptor that nobody owns. This is
//! the one place that closes descriptors by number, and it does so only where nothing else can be meant.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::reaper::RunNamespaces;
use crate::sys;

/// A notification listener that a run owns.
#[derive(Debug)]
pub(crate) struct Listener(Option<OwnedFd>);

/// The listeners of this process that are owned by runs, by number: a table of descriptors belongs to the
/// process, and so does this one.
static OWNED: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

fn owned() -> MutexGuard<'static, BTreeSet<RawFd>> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    pub(crate) fn adopt(fd: OwnedFd) -> Self {
        owned().insert(fd.as_raw_fd());
        Self(Some(fd))
    }

    /// The descriptor; there always is one, but in a value that is being dropped.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In one step: a number that is free again must not be in the table.
        let mut owned = owned();
        if let Some(fd) = self.0.take() {
            owned.remove(&fd.as_raw_fd());
            drop(fd);
        }
    }
}

/// Closes the listeners that children left unpublished. The caller makes sure that no child is in set-up
/// now, in any sandbox of this process.
///
/// What is closed is a notification listener that no run owns and under whose filter no process lives
/// any more. An embedder that itself keeps such a dead listener would lose it.
pub(crate) fn close_listeners() {
    let owned = owned();
    for (number, target) in descriptors() {
        if target == "anon_inode:seccomp notify" && !owned.contains(&number) && nobody_left(number)
        {
            drop(sys::adopt_descriptor(number));
        }
    }
}

/// Closes the `/proc` entry that a child of this pid, now dead, left unpublished; of the run's own procfs, where it has
/// one, in which a process's entry is a number too, and what the policy grants there is kept.
pub(crate) fn close_own_proc(pid: u32, namespaces: Option<&RunNamespaces>) {
    let device = |fd| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev);
    let own = namespaces
        .and_then(RunNamespaces::process_files)
        .and_then(device);
    let held = |number| namespaces.is_some_and(|namespaces| namespaces.holds(number));
    let entry = format!("/proc/{pid}");
    for (number, target) in descriptors() {
        let left = match own {
            None => target == entry,
            Some(_) => {
                !held(number)
                    && is_a_process(&target)
                    && device(sys::borrow_descriptor(number)) == own
            }
        };
        if left {
            drop(sys::adopt_descriptor(number));
        }
    }
}

/// Whether the last part of the path is a number.
fn is_a_process(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    // A process that is gone is a path with more behind it.
    let name = name.split(' ').next().unwrap_or_default();
    name.parse::<u32>().is_ok()
}

fn descriptors() -> Vec<(RawFd, String)> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            Some((number, target.to_string_lossy().into_owned()))
        })
        .collect()
}

fn nobody_left(number: RawFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(
        sys::borrow_descriptor(number),
        PollFlags::IN,
    )];
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}
