//! One user of a uid at a time, among all embedders of a machine.
//!
//! A number is held by flock(2) on a file of its name in `/run/varek/uids`, a directory of root's alone.
//! The kernel drops the lock with its last holder, so that nothing is left locked by an embedder that was
//! killed; its files stay, with the word `dirty` in them, and tell the next owner that the number was not
//! given back. A copy of the embedder that forked and did not exec holds the locks too, and with
//! them the numbers, as long as it lives.
//!
//! Embedders see each other where they share `/run`. Containers with a `/run` of their own that share
//! the user namespace of the host need ranges that differ.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::UidRange;
use crate::error::Error;
use crate::host::{IdRange, sys};
use crate::scratch::{self, SWEEP_PATIENCE};

const DIRECTORY: &str = "/run/varek/uids";

/// In a lock file while its number is in use, with the directory of the scratch directories behind it; left there
/// by an owner that did not give it back.
const DIRTY: &[u8] = b"dirty\n";

/// The uids of a `Sandbox`.
#[derive(Clone, Debug)]
pub(crate) struct UidPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    range: UidRange,
    makes_objects: bool,
    /// Where guests of this pool have their scratch directories.
    scratch_base: PathBuf,
    path: PathBuf,
    /// The process that made the pool; a forked copy must neither take nor give back.
    process: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    directory: OwnedFd,
    free: Vec<Held>,
    taken: u32,
}

/// A number whose lock this process has.
#[derive(Debug)]
struct Held {
    uid: u32,
    lock: OwnedFd,
}

/// A uid, and the gid of the same number, for one run.
#[derive(Debug)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    held: Option<Held>,
    uid: u32,
}

/// Why a number cannot be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Another embedder, or this pool itself, has its lock.
    Locked,
    /// A process of that uid lives, whoever started it.
    Processes,
    /// SysV IPC objects of that uid cannot be removed.
    Objects,
    /// Scratch directories of a killed embedder's guests cannot be removed, or not in the time that there is.
    Files,
}

impl UidPool {
    /// Opens, and makes where it is not there, the directory of the locks; checks that the range is
    /// mapped. No number is taken yet.
    ///
    /// `makes_objects` says whether guests can make SysV IPC objects, which are then removed after each run.
    /// Scratch directories that killed embedders left in `scratch_base` are removed.
    pub(crate) fn new(
        range: UidRange,
        makes_objects: bool,
        scratch_base: &Path,
    ) -> Result<Self, Error> {
        Self::in_directory(range, makes_objects, Path::new(DIRECTORY), scratch_base)
    }

    fn in_directory(
        range: UidRange,
        makes_objects: bool,
        path: &Path,
        scratch_base: &Path,
    ) -> Result<Self, Error> {
        for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
            let text =
                std::fs::read_to_string(map).map_err(|error| Error::io_at("read", map, error))?;
            if !IdRange::cover(&IdRange::parse(&text), range.first, range.count) {
                return Err(exhausted(
                    range,
                    format!("{map} does not map all of it; choose a range that it maps"),
                ));
            }
        }
        let directory = open_directory(path)?;
        let state = State {
            directory,
            free: Vec::new(),
            taken: 0,
        };
        let shared = Shared {
            range,
            makes_objects,
            scratch_base: scratch_base.to_owned(),
            path: path.to_owned(),
            process: std::process::id(),
            state: Mutex::new(state),
        };
        shared.sweep();
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// A number that no process has and that nobody else gets until the lease is over.
    pub(crate) fn take(&self) -> Result<Lease, Error> {
        let shared = &self.shared;
        if shared.process != std::process::id() {
            return Err(Error::ForkedCopy);
        }
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let held = match state.free.pop() {
            Some(held) => held,
            None => shared.find(&mut state)?,
        };
        state.taken += 1;
        Ok(Lease {
            shared: shared.clone(),
            uid: held.uid,
            held: Some(held),
        })
    }
}

impl Shared {
    /// Removes the files of embedders that were killed, where no process of the number is left, and the
    /// scratch directories of their guests. What cannot be looked at or removed stays, as it would without.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else {
            return;
        };
        // What killed guests left may take long to remove, and nobody may wait for all of it.
        let until = Instant::now() + SWEEP_PATIENCE;
        for entry in entries.flatten().take_while(|_| Instant::now() < until) {
            let Some(uid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(Ok(held)) = self.lock(&mut state.directory, uid) {
                let _ = rustix::fs::unlinkat(&state.directory, uid.to_string(), AtFlags::empty());
                let _ = rustix::fs::flock(&held.lock, FlockOperation::Unlock);
            }
        }
    }

    /// Locks a number that this pool does not have yet, from a random start, so that embedders do not
    /// all try the same ones.
    fn find(&self, state: &mut State) -> Result<Held, Error> {
        let UidRange { first, count } = self.range;
        let (mut locked, mut busy, mut objects, mut files) = (0_u32, 0_u32, 0_u32, 0_u32);
        let start = RandomState::new().build_hasher().finish();
        for step in 0..u64::from(count) {
            let offset = (start.wrapping_add(step)) % u64::from(count);
            let uid = first.saturating_add(u32::try_from(offset).unwrap_or(0));
            match self.lock(&mut state.directory, uid)? {
                Ok(held) => return Ok(held),
                Err(Refusal::Locked) => locked += 1,
                Err(Refusal::Processes) => busy += 1,
                Err(Refusal::Objects) => objects += 1,
                Err(Refusal::Files) => files += 1,
            }
        }
        let (own, mut reason) = (state.taken, String::new());
        let _ = write!(
            reason,
            "{own} in use by this sandbox, {} by others, {busy} have processes of another origin, {objects} have \
             SysV IPC objects and {files} scratch directories that cannot be removed; wait for a run, or give identity.own a larger range",
            locked.saturating_sub(own)
        );
        Err(exhausted(self.range, reason))
    }

    fn lock(&self, directory: &mut OwnedFd, uid: u32) -> Result<Result<Held, Refusal>, Error> {
        let name = uid.to_string();
        let failed = |what, errno: Errno| Error::io_at(what, self.path.join(&name), errno);
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = match rustix::fs::openat(&*directory, &name, flags, Mode::RUSR | Mode::WUSR)
            {
                Ok(lock) => lock,
                // Another embedder removed the empty directory when it was done.
                Err(Errno::NOENT) => {
                    *directory = open_directory(&self.path)?;
                    continue;
                }
                Err(errno) => return Err(failed("open the lock of a uid", errno)),
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Err(Refusal::Locked)),
                Err(errno) => return Err(failed("lock a uid", errno)),
            }
            // The file that was locked may have been removed by its last owner before it was locked here,
            // and the name belong to another one by now.
            let own = rustix::fs::fstat(&lock)
                .map_err(|errno| failed("stat the lock of a uid", errno))?;
            match rustix::fs::statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) => {}
                Ok(_) | Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed("stat the lock of a uid", errno)),
            }
            let refusal = if process_exists(uid) {
                Some(Refusal::Processes)
            } else if own.st_size > 0 && !nothing_left(&lock, uid) {
                Some(Refusal::Files)
            } else if remove_objects(uid) {
                None
            } else {
                Some(Refusal::Objects)
            };
            if let Some(refusal) = refusal {
                // No file is left where there was none before; it goes while its lock is held. A child that
                // the embedder is just forking has the descriptor too: unlocking does not wait for its exec.
                if own.st_size == 0 {
                    let _ = rustix::fs::unlinkat(&*directory, &name, AtFlags::empty());
                }
                let _ = rustix::fs::flock(&lock, FlockOperation::Unlock);
                return Ok(Err(refusal));
            }
            let mut mark = DIRTY.to_vec();
            mark.extend(self.scratch_base.as_os_str().as_bytes());
            rustix::fs::ftruncate(&lock, 0)
                .and_then(|()| rustix::io::pwrite(&lock, &mark, 0))
                .map_err(|errno| failed("mark a uid as used", errno))?;
            return Ok(Ok(Held { uid, lock }));
        }
    }
}

impl Drop for Shared {
    /// Gives every number back and removes its file, and the directories where nobody else has one in
    /// them. The locks go last, with the descriptors.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for held in &state.free {
            let _ = rustix::fs::unlinkat(&state.directory, held.uid.to_string(), AtFlags::empty());
        }
        if std::fs::remove_dir(&self.path).is_ok()
            && let Some(parent) = self.path.parent()
        {
            let _ = std::fs::remove_dir(parent);
        }
    }
}

impl Lease {
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn gid(&self) -> u32 {
        self.uid
    }

    /// For a run that is not quite gone: nobody, this process included, gets the number before this
    /// process has ended and whatever has the uid is gone.
    pub(crate) fn retire(mut self) {
        if let Some(held) = self.held.take() {
            // The descriptor stays open until the process ends, and with it the lock; the file stays dirty.
            std::mem::forget(held.lock);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            return;
        }
        let Some(held) = self.held.take() else { return };
        // What the guest left behind would meet the next run of this number. The lock of a number whose
        // objects stay is dropped here: its file stays dirty, and whoever locks it next tries again.
        let clean = !self.shared.makes_objects || remove_objects(held.uid);
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.taken = state.taken.saturating_sub(1);
        if clean {
            state.free.push(held);
        }
    }
}

fn exhausted(range: UidRange, reason: String) -> Error {
    Error::NoFreeUid {
        first: range.first,
        count: range.count,
        reason,
    }
}

/// Removes the scratch directories that the last owner of this lock left when it was killed; whether none is
/// left. The file says where they were.
fn nothing_left(lock: &OwnedFd, uid: u32) -> bool {
    let mut mark = [0; 4096 + DIRTY.len()];
    let Ok(length) = rustix::io::pread(lock, &mut mark, 0) else {
        return false;
    };
    let base = mark
        .get(..length)
        .and_then(|mark| mark.strip_prefix(DIRTY))
        .unwrap_or_default();
    let base = Path::new(OsStr::from_bytes(base));
    let until = Instant::now() + SWEEP_PATIENCE;
    base.as_os_str().is_empty() || scratch::remove_left_by(uid, base, until)
}

/// Whether any process of this pid namespace has the real uid: one system call, which finds no process
/// of an unused uid without a walk over `/proc` (getpriority(2), ESRCH).
fn process_exists(uid: u32) -> bool {
    rustix::process::getpriority_user(Uid::from_raw(uid)) != Err(Errno::SRCH)
}

/// Removes the SysV IPC objects that the uid owns or made in this IPC namespace; whether none is left.
fn remove_objects(uid: u32) -> bool {
    type Remove = fn(i32) -> std::io::Result<()>;
    let kinds: [(&str, Remove); 3] = [
        ("/proc/sysvipc/shm", sys::remove_shared_memory),
        ("/proc/sysvipc/sem", sys::remove_semaphores),
        ("/proc/sysvipc/msg", sys::remove_messages),
    ];
    kinds.into_iter().all(|(table, remove)| {
        // A kernel without SysV IPC has no such table.
        let Ok(text) = std::fs::read_to_string(table) else {
            return true;
        };
        objects_of(&text, uid).into_iter().all(|id| {
            let gone = [libc::EINVAL, libc::EIDRM];
            remove(id).map_or_else(
                |error| {
                    error
                        .raw_os_error()
                        .is_some_and(|errno| gone.contains(&errno))
                },
                |()| true,
            )
        })
    })
}

/// The ids of the objects of a table of `/proc/sysvipc` whose owner or maker is the uid. The columns
/// differ between the tables and are named by the first line.
fn objects_of(table: &str, uid: u32) -> Vec<i32> {
    let mut lines = table.lines();
    let titles: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let column = |name: &str| titles.iter().position(|title| *title == name);
    let ids = ["shmid", "semid", "msqid"].into_iter().find_map(column);
    let (Some(id), Some(owner), Some(maker)) = (ids, column("uid"), column("cuid")) else {
        return Vec::new();
    };
    lines
        .filter_map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let is =
                |column: usize| cells.get(column).and_then(|cell| cell.parse().ok()) == Some(uid);
            (is(owner) || is(maker))
                .then(|| cells.get(id)?.parse().ok())
                .flatten()
        })
        .collect()
}

/// Opens the directory of the locks, and makes it and its parent where they are not there. Whoever could
/// write there could hand one number to two embedders, so it must be this user's alone.
fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::io_at("open the locks of uids", path, Errno::INVAL));
    };
    let (Some(top), Some(parent_name)) = (parent.parent(), parent.file_name()) else {
        return Err(Error::io_at("open the locks of uids", path, Errno::INVAL));
    };
    // The directories may be removed by another embedder between the steps: then once more.
    let mut attempts = 0;
    loop {
        let opened = rustix::fs::openat(
            CWD,
            top,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| Error::io_at("open", top, errno))
        .and_then(|top| private(&top, parent_name.as_ref(), parent, 0o711))
        .and_then(|parent| private(&parent, name.as_ref(), path, 0o700));
        attempts += 1;
        match opened {
            Err(Error::Io { source, .. })
                if attempts < 16 && source.raw_os_error() == Some(libc::ENOENT) => {}
            other => return other,
        }
    }
}

fn private(parent: &OwnedFd, name: &Path, path: &Path, mode: u32) -> Result<OwnedFd, Error> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => {
            return Err(Error::io_at(
                "make the directory of the locks of uids",
                path,
                errno,
            ));
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let low = rustix::fs::openat(parent, name, flags, Mode::empty())
        .map_err(|errno| Error::io_at("open the directory of the locks of uids", path, errno))?;
    let stat = rustix::fs::fstat(&low).map_err(|errno| Error::io_at("stat", path, errno))?;
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    if !own || stat.st_mode & 0o022 != 0 || !FileType::from_raw_mode(stat.st_mode).is_dir() {
        let reason = format!(
            "belongs to uid {} with mode {:o}; it must be this user's and writable by nobody else: remove it",
            stat.st_uid,
            stat.st_mode & 0o7777
        );
        return Err(Error::io_at(
            "trust the directory of the locks of uids",
            path,
            std::io::Error::other(reason),
        ));
    }
    rustix::io::fcntl_dupfd_cloexec(low.as_fd(), 3)
        .map_err(|errno| Error::io_at("duplicate the descriptor of", path, errno))
}

#[cfg(test)]
mod tests;
