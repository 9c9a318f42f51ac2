//! Emptying a directory that a guest has filled.
//!
//! Directories that are not empty are moved up into the top one, one level a step, until there is none left: no
//! recursion, no path that grows with the depth, and the same few descriptors for any tree. What was done stays
//! done, so that the work can be cut off and taken up again at any point.
//!
//! Files that may not be changed or only grow (chattr(1) `+i`, `+a`) keep themselves, and directories what is in them. Guests cannot
//! make such: it takes CAP_LINUX_IMMUTABLE, and no preset has the calls. An embedder that has the capability can, and its
//! removal takes both attributes away, of regular files and directories.

use std::ffi::CStr;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Mode, OFlags, RawDir, SeekFrom, StatxFlags};
use rustix::io::Errno;

/// Room for directory entries, bytes; at least one entry of 280 must fit.
const BUFFER: usize = 16 * 1024;

/// What became of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Gone,
    /// A directory with something in it.
    Full,
    /// It stays, for this reason.
    Stuck(Errno),
}

/// Removes everything beneath `top`, until the time; whether it is empty.
pub(super) fn empty(top: BorrowedFd<'_>, until: Instant) -> Result<bool, Errno> {
    let removal = Removal {
        mount: mount(top)?,
        top: readable(top)?,
        until,
        // A guest cannot have taken the names that are going to be used.
        prefix: RandomState::new().build_hasher().finish(),
    };
    removal.run()
}

struct Removal {
    top: OwnedFd,
    mount: u64,
    until: Instant,
    prefix: u64,
}

impl Removal {
    fn run(&self) -> Result<bool, Errno> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut inner = Vec::with_capacity(BUFFER);
        let mut moved = 0;
        // Entries that come or go under a reader may be missed by it (readdir(3)): only a pass that sees
        // nothing at all says that the directory is empty.
        loop {
            let (mut seen, mut gone, mut stuck) = (false, false, Errno::NOTEMPTY);
            rustix::fs::seek(&self.top, SeekFrom::Start(0))?;
            let mut entries = RawDir::new(&self.top, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name();
                if is_dot(name) {
                    continue;
                }
                seen = true;
                let fate = match discard(self.top.as_fd(), name, entry.file_type()) {
                    Fate::Full => self.dismantle(name, &mut inner, &mut moved),
                    fate => fate,
                };
                match fate {
                    Fate::Gone | Fate::Full => gone = true,
                    Fate::Stuck(errno) => stuck = errno,
                }
                if Instant::now() >= self.until {
                    return Ok(false);
                }
            }
            if !seen {
                return Ok(true);
            }
            if !gone {
                return Err(stuck);
            }
        }
    }

    /// Removes a directory of the top one: what is not empty in it is moved up. Where that cannot be (no
    /// space for the name, too many links), the way goes down instead, to something that can be removed.
    /// `Gone` or `Full`: the tree has become smaller, or flatter.
    fn dismantle(&self, name: &CStr, buffer: &mut Vec<u8>, moved: &mut u64) -> Fate {
        let mut directory = match self.enter(self.top.as_fd(), name) {
            Ok(directory) => directory,
            Err(errno) => return Fate::Stuck(errno),
        };
        let (mut below, mut progress) = (false, false);
        'directory: loop {
            let (mut seen, mut gone, mut stuck) = (false, false, Errno::NOTEMPTY);
            if let Err(errno) = rustix::fs::seek(&directory, SeekFrom::Start(0)) {
                return Fate::Stuck(errno);
            }
            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(errno) => return Fate::Stuck(errno),
                };
                let child = entry.file_name();
                if is_dot(child) {
                    continue;
                }
                seen = true;
                match discard(directory.as_fd(), child, entry.file_type()) {
                    Fate::Gone => gone = true,
                    Fate::Stuck(errno) => stuck = errno,
                    Fate::Full if self.raise(directory.as_fd(), child, moved) => gone = true,
                    Fate::Full => match self.enter(directory.as_fd(), child) {
                        Ok(next) => {
                            progress |= gone;
                            below = true;
                            directory = next;
                            continue 'directory;
                        }
                        Err(errno) => stuck = errno,
                    },
                }
                progress |= gone;
                if Instant::now() >= self.until {
                    return Fate::Full;
                }
            }
            match (seen, gone) {
                (true, true) => {}
                (true, false) if progress => return Fate::Full,
                (true, false) => return Fate::Stuck(stuck),
                (false, _) if below => return Fate::Full,
                (false, _) => return discard(self.top.as_fd(), name, FileType::Directory),
            }
        }
    }

    /// Moves a directory into the top one; whether it could.
    fn raise(&self, from: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> bool {
        *moved += 1;
        let new = format!(".{:016x}-{moved}", self.prefix);
        let rename = || rustix::fs::renameat(from, name, &self.top, &new);
        match rename() {
            Ok(()) => true,
            // Moving a directory changes its `..`, for which its owner needs to be able to write it.
            Err(Errno::ACCESS | Errno::PERM) => self.enter(from, name).is_ok() && rename().is_ok(),
            Err(_) => false,
        }
    }

    /// Opens a directory for reading, with all rights for its owner, where it is on the same mount.
    fn enter(&self, at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        let place = rustix::fs::openat(at, name, super::PLACE, Mode::empty())?;
        if mount(place.as_fd())? != self.mount {
            return Err(Errno::BUSY);
        }
        readable(place.as_fd())
    }
}

/// Unlinks a name of any kind. Some file systems do not say the kind of their entries.
fn unlinked(at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Fate {
    let unlink = |flags| match rustix::fs::unlinkat(at, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Fate::Gone,
        Err(errno) => Fate::Stuck(errno),
    };
    let mut first = None;
    if kind != FileType::Directory {
        match unlink(AtFlags::empty()) {
            // unlink(2) of a directory: EISDIR on Linux, EPERM by POSIX and for some reasons of Linux too.
            Fate::Stuck(errno @ (Errno::ISDIR | Errno::PERM)) => first = Some(errno),
            fate => return fate,
        }
    }
    match unlink(AtFlags::REMOVEDIR) {
        Fate::Stuck(Errno::NOTEMPTY | Errno::EXIST) => Fate::Full,
        Fate::Stuck(errno) => Fate::Stuck(first.unwrap_or(errno)),
        fate => fate,
    }
}

/// As [`unlinked`], once more without what keeps the file there.
fn discard(at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Fate {
    match unlinked(at, name, kind) {
        Fate::Stuck(Errno::PERM) if release_name(at, name).unwrap_or(false) => {
            unlinked(at, name, kind)
        }
        fate => fate,
    }
}

/// Takes from a regular file or a directory what keeps it from being changed; whether there was something. What is opened is what
/// was looked at: a link is not followed, and nothing that does more when it is opened (a FIFO, a device) is opened.
fn release_name(at: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(at, name, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    if !kind.is_file() && !kind.is_dir() {
        return Ok(false);
    }
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    release(&rustix::fs::openat(CWD, link, flags, Mode::empty())?)
}

/// Takes away the attributes that keep an open file or directory from being changed; whether it had one. A file system
/// that has none of them answers ENOTTY.
///
/// # References
///
/// ioctl_iflags(2).
fn release(file: &OwnedFd) -> Result<bool, Errno> {
    const KEPT: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);
    let flags = rustix::fs::ioctl_getflags(file)?;
    if !flags.intersects(KEPT) {
        return Ok(false);
    }
    rustix::fs::ioctl_setflags(file, flags.difference(KEPT))?;
    Ok(true)
}

/// A descriptor to read the entries with. A guest may have taken every permission from its directory; an
/// embedder without privileges, who then is its owner, gives them back first. What keeps its entries there is taken away.
fn readable(place: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    if rustix::fs::fstat(place)?.st_mode & 0o700 != 0o700 {
        // chmod(2) has no form for O_PATH before Linux 6.6; this link leads to the very directory. Where it
        // fails, opening says why.
        let _ = rustix::fs::chmodat(
            CWD,
            format!("/proc/self/fd/{}", place.as_raw_fd()),
            Mode::RWXU,
            AtFlags::empty(),
        );
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(place, c".", flags, Mode::empty())?;
    // Where that fails, changing something says why.
    let _ = release(&directory);
    Ok(directory)
}

/// The mount that a file is seen through, which tells bind mounts of the same file system apart
/// (statx(2), Linux 5.8).
pub(super) fn mount(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

pub(super) fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Room for the entries of a directory that a walk reads.
pub(super) fn room() -> Box<[MaybeUninit<u8>]> {
    Box::new_uninit_slice(BUFFER)
}
