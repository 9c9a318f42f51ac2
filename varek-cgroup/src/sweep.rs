//! Ends groups and removes their directories; finds those whose owner is gone.
//!
//! Ownership is a lock, not a process number: an embedder in another pid namespace cannot be seen, and numbers
//! come again. Whoever holds flock(2) on the cgroup2 directory owns the subtree; what can be locked by
//! another is nobody's. That directory is made and locked before the version 1 ones and removed after them, so
//! a version 1 directory without it is nobody's either.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::dir::{self, Dir};
use crate::error::Error;
use crate::parse;

/// How long a removal or a whole sweep waits for killed processes to be gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How deep groups that a guest made below its own are removed.
const DEPTH: usize = 32;

/// What a sweep found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Subtrees without an owner that were killed and removed.
    pub removed: Vec<PathBuf>,
    /// How many subtrees have an owner.
    pub live: usize,
    /// What could not be removed, and why.
    pub failed: Vec<Error>,
}

/// The first eight digits of the boot id, the inode of the pid namespace, the pid and a number: for people
/// and to be unique; nothing is decided by them.
pub(crate) fn name(boot: &str, namespace: u64, pid: u32, number: u64) -> String {
    let boot: String = boot
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(8)
        .collect();
    format!("varek-{boot:0>8}-{namespace}-{pid}-{number}")
}

/// Whether a directory is named as a subtree of ours.
fn is_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("varek-") else {
        return false;
    };
    let parts: Vec<&str> = rest.split('-').collect();
    let [boot, numbers @ ..] = parts.as_slice() else {
        return false;
    };
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    boot.len() == 8
        && boot.bytes().all(|byte| byte.is_ascii_hexdigit())
        && numbers.len() == 3
        && numbers.iter().all(digits)
}

/// The name of a subtree's directory in a version 1 hierarchy. It tells below which cgroup2 group the
/// subtree is: two embedders may share the version 1 group and not the other.
pub(crate) fn legacy_name(name: &str, parent: u64) -> String {
    format!("{name}.{parent:x}")
}

/// Kills and removes the subtrees below `parent` that nobody owns. `own` is the group of this process: what it is
/// itself in is never swept.
pub(crate) fn sweep(parent: &Dir, legacy: &[Dir], own: &Path) -> Swept {
    let mut swept = Swept::default();
    let deadline = Instant::now() + PATIENCE;
    let inode = match parent.inode() {
        Ok(inode) => inode,
        Err(error) => {
            swept.failed.push(error);
            return swept;
        }
    };
    // Listed before the cgroup2 directories: what is there now had its cgroup2 directory before.
    let mut leftovers = Vec::new();
    let suffix = legacy_name("", inode);
    for directory in legacy {
        match directory.directories() {
            Ok(names) => leftovers.extend(
                names
                    .into_iter()
                    .filter(|name| name.strip_suffix(&suffix).is_some_and(is_name))
                    .map(|name| (directory, name)),
            ),
            Err(error) => swept.failed.push(error),
        }
    }
    let names = parent.directories().unwrap_or_else(|error| {
        swept.failed.push(error);
        Vec::new()
    });
    for name in names.iter().filter(|name| is_name(name)) {
        let path = parent.path().join(name);
        if own.starts_with(&path) {
            swept.live += 1;
            continue;
        }
        match abandoned(parent, name) {
            Ok(Some(directory)) => {
                let legacy_name = legacy_name(name, inode);
                let trees: Vec<(&Dir, &str)> =
                    legacy.iter().map(|at| (at, legacy_name.as_str())).collect();
                match destroy(parent, name, &directory, &trees, deadline) {
                    Ok(()) => swept.removed.push(path),
                    Err(error) => swept.failed.push(error),
                }
            }
            Ok(None) => swept.live += 1,
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => swept.failed.push(error),
        }
    }
    for (directory, name) in leftovers {
        if parent.has(name.trim_end_matches(&suffix)) || !directory.has(&name) {
            continue;
        }
        let path = directory.path().join(&name);
        match remove_tree(directory, &name, DEPTH) {
            Ok(true) => swept.removed.push(path),
            Ok(false) => swept.failed.push(Error::StillPopulated {
                pids: processes_below(directory, &name),
                path,
            }),
            Err(error) => swept.failed.push(error),
        }
    }
    swept
}

/// The directory with its lock taken, if nobody owns it.
fn abandoned(parent: &Dir, name: &str) -> Result<Option<Dir>, Error> {
    let directory = parent.child(name)?;
    // Between open and lock another sweep may have removed it and somebody made it anew.
    Ok((directory.lock()? && directory.is_still(parent, name)).then_some(directory))
}

/// Kills everything in a subtree, waits until it is gone, and removes its directories, the cgroup2 one last.
pub(crate) fn destroy(
    parent: &Dir,
    name: &str,
    directory: &Dir,
    legacy: &[(&Dir, &str)],
    deadline: Instant,
) -> Result<(), Error> {
    let emptied = kill_and_wait(directory, deadline);
    match emptied {
        Ok(true) => {}
        Ok(false) => {
            return Err(Error::StillPopulated {
                path: directory.path().to_owned(),
                pids: processes(directory, DEPTH).into_iter().take(16).collect(),
            });
        }
        // Removed by somebody else; the version 1 directories may be there yet.
        Err(Error::Io { source, .. }) if !directory.is_still(parent, name) => drop(source),
        Err(error) => return Err(error),
    }
    loop {
        let mut done = true;
        for (at, name) in legacy {
            done &= remove_tree(at, name, DEPTH)?;
        }
        if done && remove_tree(parent, name, DEPTH)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::StillPopulated {
                path: directory.path().to_owned(),
                pids: processes(directory, DEPTH).into_iter().take(16).collect(),
            });
        }
        // The kernel tells the hierarchies one after the other that the last process is gone.
        pause(Duration::from_micros(200));
    }
}

/// How long after one kill the next one comes, where something is left.
const AGAIN: Duration = Duration::from_millis(10);

/// Kills everything in a group and below it and waits until it is gone; `false` at the deadline.
fn kill_and_wait(directory: &Dir, deadline: Instant) -> Result<bool, Error> {
    directory.write("cgroup.kill", "1")?;
    loop {
        if wait_until_empty(directory, deadline.min(Instant::now() + AGAIN))? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        kill_each(directory)?;
    }
}

/// Kills what `cgroup.kill` misses.
///
/// The kernel sends that signal to the first thread of each process, and does nothing where that one has ended while
/// others run on (`exit(2)` of the first thread). A signal to the process as a whole ends those too. The group is
/// frozen before, so that nothing in it can make more of its kind meanwhile; the frozen die as well.
pub(crate) fn kill_each(directory: &Dir) -> Result<(), Error> {
    directory.write("cgroup.freeze", "1")?;
    directory.write("cgroup.kill", "1")?;
    for some in processes(directory, DEPTH).chunks(AT_ONCE) {
        let opened: Vec<(u32, OwnedFd)> = some
            .iter()
            .filter_map(|number| {
                let pid = Pid::from_raw(i32::try_from(*number).ok()?)?;
                Some((*number, pidfd_open(pid, PidfdFlags::empty()).ok()?))
            })
            .collect();
        // A number that is listed after its descriptor was opened was not another process's then.
        let still = processes(directory, DEPTH);
        for (_, process) in opened.iter().filter(|(number, _)| still.contains(number)) {
            // It may be gone by now.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
    Ok(())
}

/// How many processes are held open at a time.
const AT_ONCE: usize = 16;

/// Waits until no live process is in a group or below it; `false` at the deadline.
fn wait_until_empty(directory: &Dir, deadline: Instant) -> Result<bool, Error> {
    let events = directory.open_file("read", "cgroup.events", OFlags::RDONLY)?;
    loop {
        let text = dir::read_at(&events, directory.path(), "cgroup.events")?;
        if parse::keyed(&text, "populated") == Some(0) {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut polled = [PollFd::new(&events, PollFlags::PRI)];
        // An interrupted poll is looked at again like any other.
        let _ = rustix::event::poll(&mut polled, Timespec::try_from(left).ok().as_ref());
    }
}

fn pause(time: Duration) {
    let _ = rustix::event::poll(&mut [], Timespec::try_from(time).ok().as_ref());
}

/// Removes a group and the groups below it; `false` where a process is in one of them.
pub(crate) fn remove_tree(parent: &Dir, name: &str, depth: usize) -> Result<bool, Error> {
    if parent.unmake(name)? {
        return Ok(true);
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Ok(false);
    };
    let directory = match parent.child(name) {
        Ok(directory) => directory,
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    for below in directory.directories()? {
        if !remove_tree(&directory, &below, depth)? {
            return Ok(false);
        }
    }
    parent.unmake(name)
}

/// The processes in a group and below it that this pid namespace can see. Groups that go away are passed over.
pub(crate) fn processes(directory: &Dir, depth: usize) -> Vec<u32> {
    let mut found: Vec<u32> = directory
        .read_all("cgroup.procs")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid != 0)
        .collect();
    if let Some(depth) = depth.checked_sub(1) {
        for name in directory.directories().unwrap_or_default() {
            found.extend(processes_in(directory, &name, depth));
        }
    }
    found
}

fn processes_in(parent: &Dir, name: &str, depth: usize) -> Vec<u32> {
    parent
        .child(name)
        .map(|directory| processes(&directory, depth))
        .unwrap_or_default()
}

fn processes_below(parent: &Dir, name: &str) -> Vec<u32> {
    processes_in(parent, name, DEPTH)
        .into_iter()
        .take(16)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_make_are_swept() {
        let made = name("ad093d5a-5594-471a-8bf6", 4_026_531_836, 77, 3);
        assert_eq!(made, "varek-ad093d5a-4026531836-77-3");
        assert!(is_name(&made));
        assert!(is_name(&name("", 0, 0, 0)));
        for other in [
            "varek-leaf",
            "varek-",
            "varek",
            "varek.slice",
            "varek-ad093d5a-1-2",
            "varek-ad093d5a-1-2-3-4",
            "varek-ad093d5a-1--3",
            "varek-ad093d5-1-2-3",
            "varek-zd093d5a-1-2-3",
            "varek-ad093d5a-1-2-+3",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn a_tree_without_processes_is_removed_and_a_full_one_is_kept() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("a/b/c")).unwrap();
        let parent = Dir::open(temporary.path()).unwrap();
        // An ordinary file system says ENOTEMPTY where a control group one says EBUSY.
        assert!(remove_tree(&parent, "a", 0).is_err());
        assert!(remove_tree(&parent, "absent", 3).unwrap());
        assert_eq!(processes(&parent, 3), [0_u32; 0]);
    }

    #[test]
    fn a_held_lock_is_an_owner_and_a_free_one_is_none() {
        let temporary = tempfile::tempdir().unwrap();
        let parent = Dir::open(temporary.path()).unwrap();
        let name = name("00000000", 1, 2, 3);
        assert!(parent.make(&name).unwrap());
        let owner = parent.child(&name).unwrap();
        assert!(owner.lock().unwrap());
        let swept = sweep(&parent, &[], Path::new("/"));
        assert_eq!(
            (swept.live, swept.removed.len(), swept.failed.len()),
            (1, 0, 0)
        );
        drop(owner);
        assert!(abandoned(&parent, &name).unwrap().is_some());
    }
}
