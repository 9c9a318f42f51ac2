//! The one directory that a run may write: made for it and removed with everything in it, or one of the
//! embedder's that the guest owns for as long as the run lasts.
//!
//! What is made is a file system of a bounded size where the host allows mounts ([`crate::mounts`]), and then an empty
//! directory on disk to mount it on, in the guest's own mount namespace. Elsewhere it is that directory.
//!
//! What a guest leaves there is hostile: trees of any depth, directories without permissions, links to
//! elsewhere. Everything is done through descriptors, one name at a time, without following links, without
//! crossing a mount, with a handful of descriptors and in bounded memory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use varek_telemetry::RunId;

use crate::error::Error;
use crate::files::{self, Collected, Files, Gate};
use crate::mounts::{self, Bound};

mod handover;
mod removal;

use handover::{Handover, Owners};

/// A directory as a place, not to be read, never through a link at its end.
const PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The guest's own directory.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Where the guest has it, where that is another place.
    seen: Option<PathBuf>,
    directory: Arc<OwnedFd>,
    /// Closed before anything is removed.
    gate: Arc<Gate>,
    /// Uid and gid of the guest, where they are not the embedder's.
    owner: Option<(u32, u32)>,
    /// The process that made it; a forked copy leaves it alone.
    process: u32,
    /// Keeps an adopted directory from other runs, and one without an owner of its own from a sweep.
    lock: Option<OwnedFd>,
    end: End,
}

/// What becomes of the directory when the run is over.
#[derive(Debug)]
enum End {
    Remove {
        base: OwnedFd,
        name: OsString,
    },
    /// The same with nothing in it: what the guest wrote goes with the descriptor of its file system.
    Unmounted {
        base: OwnedFd,
        name: OsString,
    },
    GiveBack(Box<Handover>),
    Nothing,
}

impl Scratch {
    /// Makes the directory `name` in `base`, with mode 0700, for `owner` (uid and gid).
    pub(crate) fn create(
        base: &Path,
        name: &str,
        owner: Option<(u32, u32)>,
    ) -> Result<Self, Error> {
        let failed = |what, errno: Errno| Error::io_at(what, base.join(name), errno);
        let resolved = std::fs::canonicalize(base)
            .map_err(|error| Error::io_at("use as the base of scratch directories", base, error))?;
        reachable(&resolved, owner)?;
        let base =
            open_place(CWD, &resolved, OFlags::empty()).map_err(|errno| failed("open", errno))?;
        exclusive(&base, &resolved)?;
        if Path::new(name)
            .components()
            .ne([Component::Normal(name.as_ref())])
        {
            return Err(failed("make the scratch directory", Errno::INVAL));
        }
        // From here on the directory goes with the value, whatever fails.
        // Until it is the guest's a sweep knows it by the lock alone.
        let (directory, lock) = new_directory(base.as_fd(), name)
            .map_err(|errno| failed("make the scratch directory", errno))?;
        let mut scratch = Self {
            path: resolved.join(name),
            seen: None,
            directory: Arc::new(directory),
            gate: Arc::default(),
            owner,
            process: std::process::id(),
            lock,
            end: End::Remove {
                base,
                name: name.into(),
            },
        };
        if let Some(owner) = owner {
            chown(scratch.directory.as_fd(), Some(owner.0), Some(owner.1))
                .map_err(|errno| failed("give the scratch directory to the guest's uid", errno))?;
            scratch.lock = None;
        }
        Ok(scratch)
    }

    /// The same as a file system of its own, to be mounted on what was made.
    pub(crate) fn bounded(mut self, bound: Bound) -> Result<Self, Error> {
        let made = mounts::scratch(bound, self.owner).map_err(|errno| {
            let what = "make the file system of the scratch directory";
            Error::io_at(what, &self.path, errno)
        })?;
        self.directory = Arc::new(made);
        self.end = match std::mem::replace(&mut self.end, End::Nothing) {
            End::Remove { base, name } => End::Unmounted { base, name },
            end => end,
        };
        Ok(self)
    }

    /// Whether the directory is a file system that has to be mounted at its path.
    pub(crate) fn to_be_mounted(&self) -> bool {
        matches!(self.end, End::Unmounted { .. })
    }

    /// Takes an existing directory, which `owner` gets for the time of the run, with every file in it that
    /// belongs to the directory's own owner. Files with more names than one and files of others stay whose they
    /// are, and so does everything on another mount. Nothing is removed at the end.
    ///
    /// Both ways walk the whole tree, and a change of owner takes set-uid and set-gid bits away (chown(2)). Where
    /// the embedder is killed the files stay the guest's.
    pub(crate) fn adopt(path: &Path, owner: Option<(u32, u32)>) -> Result<Self, Error> {
        let failed = |what, errno: Errno| Error::io_at(what, path, errno);
        let directory = open_place(CWD, path, OFlags::NOFOLLOW)
            .map_err(|errno| failed("use as the scratch directory", errno))?;
        let resolved = std::fs::canonicalize(path)
            .map_err(|error| Error::io_at("use as the scratch directory", path, error))?;
        let lock = match lock(directory.as_fd()) {
            Ok(lock) => Some(lock),
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Command {
                    what: format!("the scratch directory {}", path.display()),
                    reason: "is in use by another run, or locked by another program (flock): wait for its end, or \
                             give each run a directory of its own"
                        .into(),
                });
            }
            Err(errno) => return Err(failed("lock the scratch directory", errno)),
        };
        givable(&resolved)?;
        let mut end = End::Nothing;
        if let Some((uid, gid)) = owner {
            reachable(resolved.parent().unwrap_or(&resolved), owner)?;
            let stat = rustix::fs::fstat(&directory).map_err(|errno| failed("stat", errno))?;
            if (stat.st_uid, stat.st_gid) == (uid, gid) {
                return Err(Error::Command {
                    what: format!("the scratch directory {}", path.display()),
                    reason: "belongs to the guest's uid already, left from a run that was cut short: change its \
                             owner back first"
                        .into(),
                });
            }
            let owners = Owners {
                former: (stat.st_uid, stat.st_gid),
                guest: (uid, gid),
            };
            end = End::GiveBack(Box::new(Handover::back(owners)));
            // Where it fails half way, dropping the value gives back what had been given.
            let given = Self {
                path: resolved,
                seen: None,
                directory: Arc::new(directory),
                gate: Arc::default(),
                owner,
                process: std::process::id(),
                lock,
                end,
            };
            Handover::over(owners)
                .walk(given.directory.as_fd(), None)
                .map_err(|errno| failed("give the directory to the guest's uid", errno))?;
            return Ok(given);
        }
        Ok(Self {
            path: resolved,
            seen: None,
            directory: Arc::new(directory),
            gate: Arc::default(),
            owner,
            process: std::process::id(),
            lock,
            end,
        })
    }

    /// Its path, without links in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same, for a guest in whose mounts it is there.
    pub(crate) fn seen_at(mut self, path: &str) -> Self {
        self.seen = Some(path.into());
        self
    }

    /// The path by which the guest reaches it.
    pub(crate) fn seen(&self) -> &Path {
        self.seen.as_ref().unwrap_or(&self.path)
    }

    /// O_PATH, 3 or above, close-on-exec.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Its files, for the embedder while the run goes on.
    pub(crate) fn files(&self) -> Files {
        Files::new(&self.directory, self.gate.clone(), self.owner)
    }

    /// What these files hold, each up to its bound. The tree is dead, and from here on nobody else is in the directory: waits for
    /// what the embedder is doing there.
    pub(crate) fn collect(&self, wanted: &[(PathBuf, u64)]) -> Collected {
        self.gate.close();
        files::collect(self.directory.as_fd(), wanted, self.owner)
    }

    /// Writes a new file for the guest, which must not be running yet, with the directories above it that
    /// are not there. The path is relative, without `..`; links on the way are refused.
    pub(crate) fn put(&self, path: &Path, contents: &[u8], executable: bool) -> Result<(), Error> {
        let refuse = |reason: &str| Error::Command {
            what: format!("the file {}", path.display()),
            reason: reason.to_owned(),
        };
        let plain = files::plain(path).ok_or_else(|| {
            refuse("is not beneath the scratch directory: give a relative path without '..'")
        })?;
        let parts: Vec<_> = plain.iter().collect();
        let Some((name, parents)) = parts.split_last() else {
            return Err(refuse("has no name"));
        };
        let failed = |what, errno: Errno| match errno {
            Errno::EXIST => refuse("exists in the scratch directory already"),
            Errno::LOOP | Errno::NOTDIR => {
                refuse("has a file or a link where its path needs a directory")
            }
            Errno::NAMETOOLONG => refuse("has a longer name than a file can have"),
            Errno::NOSPC if self.to_be_mounted() => refuse(
                "does not fit into the scratch directory, which holds what limits.scratch and scratch_files say, and no \
                 more than half of the memory limit",
            ),
            errno => Error::io_at(what, self.path.join(path), errno),
        };

        let mut above: Option<OwnedFd> = None;
        for parent in parents {
            let here = above.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
            let made = match rustix::fs::mkdirat(here, *parent, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(failed("make the directories of", errno)),
            };
            let next = rustix::fs::openat(here, *parent, PLACE, Mode::empty())
                .map_err(|errno| failed("open the directories of", errno))?;
            if made {
                self.hand(next.as_fd())
                    .map_err(|errno| failed("give the guest's uid", errno))?;
            }
            above = Some(next);
        }
        let here = above.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if executable {
            Mode::RWXU
        } else {
            Mode::RUSR | Mode::WUSR
        };
        let file =
            rustix::fs::openat(here, *name, flags, mode).map_err(|errno| failed("make", errno))?;
        let mut file = File::from(file);
        file.write_all(contents)
            .map_err(|error| match Errno::from_io_error(&error) {
                Some(errno) => failed("write", errno),
                None => Error::io_at("write", self.path.join(path), error),
            })?;
        // Not left to the embedder's umask.
        rustix::fs::fchmod(&file, mode).map_err(|errno| failed("set the mode of", errno))?;
        self.hand(file.as_fd())
            .map_err(|errno| failed("give the guest's uid", errno))
    }

    fn hand(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => chown(file, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Removes the directory where that takes one system call, because it is empty; whether it did.
    pub(crate) fn try_remove_empty(&mut self) -> bool {
        let (End::Remove { base, name } | End::Unmounted { base, name }) = &self.end else {
            return matches!(self.end, End::Nothing);
        };
        let gone = rustix::fs::unlinkat(base, name.as_os_str(), AtFlags::REMOVEDIR).is_ok();
        if gone {
            self.end = End::Nothing;
        }
        gone
    }

    /// Removes what was made, or gives back what was adopted, for as long as `until`; whether all of it is
    /// done. `Ok(false)` asks for another call, which goes on; every call gets on by something.
    ///
    /// No process of the run may be left. An error says what stands in the way; another call tries again.
    pub(crate) fn remove(&mut self, until: Instant) -> Result<bool, Error> {
        if self.process != std::process::id() {
            return Err(Error::ForkedCopy);
        }
        if self.try_remove_empty() {
            return Ok(true);
        }
        let failed = |errno: Errno| Error::io_at("remove the scratch directory", &self.path, errno);
        match &mut self.end {
            End::Nothing => {}
            End::Unmounted { base, name } => {
                match rustix::fs::unlinkat(&*base, name.as_os_str(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
            End::GiveBack(handover) => {
                let done = handover.walk(self.directory.as_fd(), Some(until));
                if !done
                    .map_err(|errno| Error::io_at("take back the directory", &self.path, errno))?
                {
                    return Ok(false);
                }
            }
            End::Remove { base, name } => {
                if !removal::empty(self.directory.as_fd(), until).map_err(failed)? {
                    return Ok(false);
                }
                let own = rustix::fs::fstat(&self.directory).map_err(failed)?;
                match rustix::fs::statat(&*base, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(named) if same(&named, &own) => {
                        rustix::fs::unlinkat(&*base, name.as_os_str(), AtFlags::REMOVEDIR)
                            .map_err(failed)?;
                    }
                    // Without Landlock a guest can move its own directory elsewhere.
                    Ok(_) => return Err(failed(Errno::STALE)),
                    Err(Errno::NOENT) if own.st_nlink > 0 => return Err(failed(Errno::STALE)),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
        }
        self.end = End::Nothing;
        self.lock = None;
        Ok(true)
    }
}

impl Drop for Scratch {
    /// For runs that never started, and as the last resort of others: half a second, then what is left stays.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = self.remove(Instant::now() + Duration::from_millis(500));
        }
    }
}

/// How long a sweep removes what killed embedders left, and somebody waits for it who needs the name.
pub(crate) const SWEEP_PATIENCE: Duration = Duration::from_secs(1);

/// What scratch directories are called: this, and the name of the run.
pub(crate) const PREFIX: &str = "varek-";

/// Removes the scratch directories of this uid that an embedder left in `base` when it was killed, until the time;
/// whether none is left. Those of living runs are locked, or the caller holds the uid's lock and there are none.
pub(crate) fn remove_left_by(uid: u32, base: &Path, until: Instant) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // Where others can rename, what has the name need not have been made here; no run makes its directory there.
    let place = open_place(CWD, base, OFlags::empty());
    if uid == own && place.is_ok_and(|place| exclusive(&place, base).is_err()) {
        return true;
    }
    let Ok(entries) = std::fs::read_dir(base) else {
        return true;
    };
    let mut clean = true;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !is_of_a_run(&name) {
            continue;
        }
        let Ok(base) = open_place(CWD, base, OFlags::empty()) else {
            return false;
        };
        let Ok(directory) = open_place(base.as_fd(), &name, OFlags::NOFOLLOW) else {
            continue;
        };
        let left_by = || rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_uid == uid);
        if !left_by() {
            continue;
        }
        let lock = match abandoned(directory.as_fd()) {
            Ok(lock) => Some(lock),
            Err(Errno::WOULDBLOCK | Errno::NOENT) => continue,
            // Nothing but the lock tells what living runs have: out of descriptors, say, it does not.
            Err(_) if uid == own => {
                clean = false;
                continue;
            }
            // A guest with a uid of its own may have taken all rights from it.
            Err(_) => None,
        };
        // One that was being made has been given to its guest before its lock was.
        if !left_by() {
            continue;
        }
        let mut scratch = Scratch {
            path: entry.path(),
            seen: None,
            directory: Arc::new(directory),
            gate: Arc::default(),
            owner: None,
            process: std::process::id(),
            lock,
            end: End::Remove { base, name },
        };
        if !matches!(scratch.remove(until), Ok(true)) {
            // Left to the next sweep, not tried once more when the value is dropped.
            scratch.end = End::Nothing;
            clean = false;
        }
    }
    clean
}

/// Whether a scratch directory is called so, exactly: people give their own directories names that begin alike.
fn is_of_a_run(name: &OsStr) -> bool {
    let run = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    run.is_some_and(|run| run.parse::<RunId>().is_ok_and(|id| id.to_string() == run))
}

/// Makes a directory, opens it and locks it (see [`lock`]).
///
/// A sweep that sees the directory before it is locked takes it for one that was left, and removes it: then it is made
/// again.
fn new_directory(base: BorrowedFd<'_>, name: &str) -> Result<(OwnedFd, Option<OwnedFd>), Errno> {
    let made = || -> Result<_, Errno> {
        let directory = open_place(base, name, OFlags::NOFOLLOW)?;
        let lock = lock(directory.as_fd())?;
        let there = rustix::fs::fstat(&directory)?.st_nlink > 0;
        Ok((directory, lock, there))
    };
    let until = Instant::now() + SWEEP_PATIENCE;
    loop {
        match rustix::fs::mkdirat(base, name, Mode::RWXU) {
            Ok(()) => {}
            // Not gone yet: whoever else has the name keeps it.
            Err(Errno::EXIST) if Instant::now() < until => {
                std::thread::yield_now();
                continue;
            }
            Err(errno) => return Err(errno),
        }
        match made() {
            Ok((directory, lock, true)) => return Ok((directory, Some(lock))),
            Ok((_, _, false)) | Err(Errno::NOENT | Errno::WOULDBLOCK) => {}
            Err(errno) => {
                let _ = rustix::fs::unlinkat(base, name, AtFlags::REMOVEDIR);
                return Err(errno);
            }
        }
        if Instant::now() >= until {
            return Err(Errno::AGAIN);
        }
    }
}

/// Opens a directory as a place at descriptor 3 or above.
fn open_place(
    at: BorrowedFd<'_>,
    path: impl rustix::path::Arg,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let low = rustix::fs::openat(
        at,
        path,
        PLACE.difference(OFlags::NOFOLLOW) | flags,
        Mode::empty(),
    )?;
    rustix::io::fcntl_dupfd_cloexec(&low, 3)
}

/// Holds a directory against other runs, of this embedder and of others: flock(2), which ends with the
/// embedder however that ends. Two runs in one directory would have each other's files.
fn lock(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // A place (O_PATH) cannot be locked.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let low = rustix::fs::openat(directory, c".", flags, Mode::empty())?;
    let lock = rustix::io::fcntl_dupfd_cloexec(&low, 3)?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// As [`lock`], of a directory that was found under its name: nobody else removes it from here on. Where another sweep
/// has done so before (`NOENT`), a run may have made one of the same name.
fn abandoned(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let lock = lock(directory)?;
    if rustix::fs::fstat(directory)?.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    Ok(lock)
}

/// Changes the owner of what the descriptor is, a link itself included (`None` leaves an id as it is).
fn chown(file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    rustix::fs::chownat(
        file,
        c"",
        uid.map(Uid::from_raw),
        gid.map(Gid::from_raw),
        AtFlags::EMPTY_PATH,
    )
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The machine's own directories are not given away, whatever is asked for: their files would be the
/// guest's to change.
fn givable(path: &Path) -> Result<(), Error> {
    const SYSTEM: [&str; 11] = [
        "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys",
        "/usr",
    ];
    let depth = path.components().count();
    if depth > 3 && path.starts_with("/dev/shm") {
        return Ok(());
    }
    if depth < 3 || SYSTEM.iter().any(|system| path.starts_with(system)) {
        return Err(Error::Command {
            what: format!("the scratch directory {}", path.display()),
            reason: "is the machine's, and everything in it would be the guest's for the run: give a directory \
                     that was made for this"
                .into(),
        });
    }
    Ok(())
}

/// The guest must be able to walk to its directory, or nothing in it has a path.
fn reachable(path: &Path, owner: Option<(u32, u32)>) -> Result<(), Error> {
    if owner.is_none() {
        return Ok(());
    }
    for directory in path.ancestors() {
        let stat =
            rustix::fs::stat(directory).map_err(|errno| Error::io_at("stat", directory, errno))?;
        if stat.st_mode & 0o001 == 0 {
            return Err(Error::Command {
                what: format!("the scratch directory's parent {}", directory.display()),
                reason: format!(
                    "has mode {:o}, which does not let the guest's uid through: use a directory whose parents \
                     are all searchable by others, such as /var/tmp (TMPDIR chooses the default)",
                    stat.st_mode & 0o7777
                ),
            });
        }
    }
    Ok(())
}

/// Others who can rename what is in the base could put a directory of theirs in the place of ours.
fn exclusive(base: &OwnedFd, path: &Path) -> Result<(), Error> {
    let stat = rustix::fs::fstat(base).map_err(|errno| Error::io_at("stat", path, errno))?;
    let (mode, own) = (stat.st_mode, rustix::process::geteuid().as_raw());
    let trusted = stat.st_uid == 0 || stat.st_uid == own;
    if trusted && (mode & 0o022 == 0 || mode & 0o1000 != 0) {
        return Ok(());
    }
    Err(Error::Command {
        what: format!("the scratch directory's base {}", path.display()),
        reason: format!(
            "belongs to uid {} with mode {:o}, so that others could replace what is made there: use a directory of \
             this user or one with the sticky bit, such as /var/tmp (TMPDIR chooses the default)",
            stat.st_uid,
            mode & 0o7777
        ),
    })
}

#[cfg(test)]
mod tests;
