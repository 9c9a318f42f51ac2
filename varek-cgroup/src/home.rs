//! Where a subtree can be: the own group if it can have children with the controllers, else one above it.
//! On unified hosts this is where processes are moved into a leaf, if they must and may be.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::Error;
use crate::layout::{Controller, Layout, Legacy};
use crate::sweep;

/// The leaf that the processes of the own group are moved into. A process that is in it counts as in the
/// group above.
pub(crate) const LEAF: &str = "varek-leaf";

/// How often a group is emptied again into the leaf while its processes fork.
const ROUNDS: usize = 16;

/// The group of the cgroup2 tree in which the subtree can be made, with `needed` enabled for its children.
pub(crate) fn unified_parent(layout: &Layout, needed: &[Controller]) -> Result<Dir, Error> {
    let place = &layout.unified;
    if place.read_only {
        return Err(Error::ReadOnly {
            operation: "create groups in",
            path: place.own.clone(),
        });
    }
    let mut candidates = place.candidates();
    if candidates.len() > 1 && place.own.file_name().is_some_and(|name| name == LEAF) {
        candidates.remove(0);
    }
    let mut first = None;
    for (index, path) in candidates.into_iter().enumerate() {
        match usable(path, needed, index == 0, &place.mount) {
            Ok(directory) => return Ok(directory),
            // What is said of the own group is more use than what is said of the root.
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| Error::NoUnifiedMount {
        found: "no own group".to_owned(),
    }))
}

/// The group of a version 1 hierarchy in which the subtree can be made.
pub(crate) fn legacy_parent(legacy: &Legacy) -> Result<Dir, Error> {
    if legacy.place.read_only {
        return Err(Error::ReadOnly {
            operation: "create groups in",
            path: legacy.place.own.clone(),
        });
    }
    let mut first = None;
    for path in legacy.place.candidates() {
        let found = Dir::open(path).and_then(|directory| {
            directory.writable()?;
            Ok(directory)
        });
        match found {
            Ok(directory) => return Ok(directory),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        Error::io("open", &legacy.place.own, missing)
    }))
}

fn usable(path: &Path, needed: &[Controller], own: bool, mount: &Path) -> Result<Dir, Error> {
    let directory = Dir::open(path)?;
    directory.writable()?;
    if !is_domain(&directory)? {
        // Children of such a group cannot hold processes, only threads.
        let refused = io::Error::from(Errno::OPNOTSUPP);
        return Err(Error::io("create groups for processes in", path, refused));
    }
    let enabled = Controller::listed(&directory.read("cgroup.subtree_control")?);
    let missing: Vec<Controller> = needed
        .iter()
        .copied()
        .filter(|controller| !enabled.contains(controller))
        .collect();
    let Some(first) = missing.first() else {
        return Ok(directory);
    };
    // Groups above are used as they are: what they enable is the decision of whoever owns them.
    let offered = if own {
        Controller::listed(&directory.read("cgroup.controllers")?)
    } else {
        enabled
    };
    if let Some(controller) = missing
        .iter()
        .find(|controller| !offered.contains(controller))
    {
        return Err(unavailable(*controller, path, &offered));
    }
    // The root of all is exempt from the rule of no internal processes; it has no cgroup.type.
    let occupied = directory.has("cgroup.type") && !processes(&directory)?.is_empty();
    if occupied || !enable_for_processes(&directory, &missing)? {
        shuffle(&directory, &missing, mount)?;
    }
    let enabled = Controller::listed(&directory.read("cgroup.subtree_control")?);
    if missing
        .iter()
        .all(|controller| enabled.contains(controller))
    {
        Ok(directory)
    } else {
        Err(unavailable(*first, path, &enabled))
    }
}

pub(crate) fn unavailable(controller: Controller, path: &Path, found: &[Controller]) -> Error {
    let names: Vec<&str> = found.iter().map(|controller| controller.name()).collect();
    Error::ControllerUnavailable {
        controller,
        path: path.to_owned(),
        available: if names.is_empty() {
            "no controller".to_owned()
        } else {
            names.join(", ")
        },
    }
}

/// Enables controllers for the children of a group. The kernel takes all of one write or none.
pub(crate) fn enable(directory: &Dir, controllers: &[Controller]) -> Result<(), Error> {
    let words: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    directory.write("cgroup.subtree_control", &words.join(" "))
}

/// As `enable`; `false` if processes in the group are in the way.
///
/// For memory and io the kernel then refuses (EBUSY). Pids and cpu can be given to threads, so that it accepts them,
/// turns the group into the root of a threaded subtree, and makes its children invalid for processes: that is undone.
fn enable_for_processes(directory: &Dir, controllers: &[Controller]) -> Result<bool, Error> {
    match enable(directory, controllers) {
        Ok(()) => {}
        Err(error) if is(&error, Errno::BUSY) => return Ok(false),
        Err(error) => return Err(error),
    }
    if is_domain(directory)? {
        return Ok(true);
    }
    let words: Vec<String> = controllers.iter().map(|name| format!("-{name}")).collect();
    directory.write("cgroup.subtree_control", &words.join(" "))?;
    Ok(false)
}

/// Whether children of the group can hold processes (cgroups(7), "thread mode").
fn is_domain(directory: &Dir) -> Result<bool, Error> {
    let kind = directory.read_optional("cgroup.type")?;
    Ok(kind.is_none_or(|kind| kind.trim() == "domain"))
}

fn is(error: &Error, errno: Errno) -> bool {
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(errno.raw_os_error()))
}

/// Moves all processes of a group into a leaf below it and enables the controllers: a group with both
/// processes and controllers for children is not allowed ("no internal processes", cgroups(7)). On failure
/// they are moved back. No child on its way into its own group can be among them: see `Subtree::settling`.
fn shuffle(directory: &Dir, controllers: &[Controller], mount: &Path) -> Result<(), Error> {
    let stuck = |pids: Vec<u32>, reason: String| Error::InternalProcesses {
        path: directory.path().to_owned(),
        pids: pids.into_iter().take(16).collect(),
        reason,
    };
    let lock = settling(mount)?;
    let until = Instant::now() + sweep::PATIENCE;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            let reason = format!(
                "guests are being started, or somebody else locks {}",
                mount.display()
            );
            return Err(stuck(Vec::new(), reason));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let there = processes(directory)?;
    if there.contains(&0) {
        let reason = "those shown as 0 are of another pid namespace, and can only be moved from there: start this \
                      container in a group of its own"
            .to_owned();
        return Err(stuck(there, reason));
    }
    let mine = std::process::id();
    if !there.iter().all(|pid| *pid == mine) && !delegated(directory, mount)? {
        let others = there.into_iter().filter(|pid| *pid != mine).collect();
        let reason = "they are not this program's, and the group is not delegated to it".to_owned();
        return Err(stuck(others, reason));
    }
    let made = directory.make(LEAF)?;
    let mut moved = Vec::new();
    let done = directory.child(LEAF).and_then(|leaf| {
        for _ in 0..ROUNDS {
            for pid in processes(directory)? {
                match leaf.write("cgroup.procs", &pid.to_string()) {
                    Ok(()) => moved.push(pid),
                    // It ended meanwhile.
                    Err(error) if is(&error, Errno::SRCH) => {}
                    Err(error) => return Err(stuck(vec![pid], error.to_string())),
                }
            }
            if enable_for_processes(directory, controllers)? {
                return Ok(());
            }
        }
        let left = processes(directory)?;
        Err(stuck(
            left,
            "new ones appear faster than they can be moved".to_owned(),
        ))
    });
    if done.is_err() {
        for pid in moved {
            // A process that cannot go back stays in the leaf, below the same limits.
            let _ = directory.write("cgroup.procs", &pid.to_string());
        }
        if made {
            let _ = directory.unmake(LEAF);
        }
    }
    done
}

/// See [`Subtree::settling`](crate::Subtree::settling).
pub(crate) fn settling(mount: &Path) -> Result<OwnedFd, Error> {
    Dir::open(mount)?.open_file("open", ".", OFlags::RDONLY | OFlags::DIRECTORY)
}

fn processes(directory: &Dir) -> Result<Vec<u32>, Error> {
    let text = directory.read_all("cgroup.procs")?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Whether the group was handed to this user or container as a whole, strangers' processes included.
fn delegated(directory: &Dir, mount: &Path) -> Result<bool, Error> {
    let user = rustix::process::geteuid();
    let owned = !user.is_root() && directory.owner()? == user.as_raw();
    // The root of a cgroup namespace; the root of the whole hierarchy has no cgroup.type.
    let namespace_root = directory.path() == mount && directory.has("cgroup.type");
    Ok(owned || namespace_root || directory.marked_as_delegated())
}
