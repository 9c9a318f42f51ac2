//! Files of a run's scratch directory, in the embedder's hands.
//!
//! The directory is the guest's to fill: what has a file's name may be a link to elsewhere, a FIFO that nobody writes to, a
//! directory, or a file of any size, and may become another between two looks. So a name is looked up beneath the directory's own
//! descriptor by one openat2(2) that follows no link and crosses no mount, never waits (O_NONBLOCK), and is asked what it is
//! when it is open; reads are bounded; writes make a new file and rename(2) it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Uid, fchmod, fchown, fstat,
    openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::limits::GIB;

/// Bytes of one file that are read, whatever was asked for: the embedder has to hold them, and how many there are is the guest's
/// choice, who can make a file of terabytes with one call.
pub(crate) const MOST: u64 = 4 * GIB;
/// How often a look-up is made that the kernel could not be sure of, since names changed under it.
const TRIES: usize = 64;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The files of a running guest's scratch directory: [`Child::files`](crate::Child::files).
///
/// Paths are relative to the directory, without `..`. Whatever the guest has made of its names, nothing outside of the directory is read
/// or written, and nothing waits for the guest. Each call takes as long as reading or writing its bytes does.
///
/// The handle keeps nothing alive: when the tree is dead the directory goes, and calls fail with [`FileError::Gone`]. Files that are
/// wanted after that are named beforehand: [`Command::collect`](crate::Command::collect).
#[derive(Clone, Debug)]
pub struct Files {
    directory: Weak<OwnedFd>,
    gate: Arc<Gate>,
    owner: Option<(u32, u32)>,
    process: u32,
}

/// Closed before the directory is removed, by whom waits for what goes on in it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: RwLock<bool>,
}

impl Gate {
    pub(crate) fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl Files {
    pub(crate) fn new(
        directory: &Arc<OwnedFd>,
        gate: Arc<Gate>,
        owner: Option<(u32, u32)>,
    ) -> Self {
        Self {
            directory: Arc::downgrade(directory),
            gate,
            owner,
            process: std::process::id(),
        }
    }

    fn within<T>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let closed = self
            .gate
            .closed
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if *closed || self.process != std::process::id() {
            return Err(FileError::Gone);
        }
        let directory = self.directory.upgrade().ok_or(FileError::Gone)?;
        act(directory.as_fd())
    }

    /// What is in this file, which must have at most `bound` bytes, and no more than 4 GiB.
    ///
    /// The guest may be writing to it: what is read is what was there while it was read.
    ///
    /// # Errors
    ///
    /// Any [`FileError`]; one that is larger is [`FileError::TooLarge`], and none of it is given.
    pub fn get(&self, path: impl AsRef<Path>, bound: u64) -> Result<Vec<u8>, FileError> {
        self.within(|directory| get(directory, path.as_ref(), bound, self.owner))
    }

    /// Puts a file there, in the place of what has the name, all of it at once: the guest never sees a part. It belongs to the
    /// guest. The directory that it goes to must be there.
    ///
    /// # Errors
    ///
    /// Any [`FileError`]; a full scratch directory is [`FileError::Io`] with ENOSPC. What was there stays then.
    pub fn put(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<(), FileError> {
        self.within(|directory| put(directory, path.as_ref(), contents.as_ref(), self.owner))
    }

    /// What is in this directory, in the order of names; `.` is the scratch directory itself.
    ///
    /// # Errors
    ///
    /// Any [`FileError`]; one with more than `most` names is [`FileError::TooMany`].
    pub fn list(&self, path: impl AsRef<Path>, most: usize) -> Result<Vec<FileEntry>, FileError> {
        self.within(|directory| list(directory, path.as_ref(), most))
    }
}

/// A name in a directory of the guest's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct FileEntry {
    /// The name, of bytes that the guest chose.
    pub name: OsString,
    /// What has it.
    pub kind: FileKind,
    /// How many bytes it has, where it is a file.
    pub size: u64,
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, to wherever.
    Link,
    /// A FIFO, a socket or a device.
    Other,
}

impl FileKind {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Other => "a FIFO, socket or device",
        })
    }
}

/// Why a file of the scratch directory could not be had or put there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path leads out of the directory, or nowhere.
    #[error("is no path beneath the scratch directory: give a relative one without '..'")]
    Path,
    /// Nothing has the name.
    #[error("is not there")]
    NotFound,
    /// What has the name, or a part of the path, is something else.
    #[error("is {kind}, where {wanted} is wanted")]
    Kind {
        /// What it is.
        kind: FileKind,
        /// What was asked for.
        wanted: FileKind,
    },
    /// A part of the path is a link, or a mount.
    #[error("has a link or a mount on its way, which is not followed")]
    Link,
    /// The file belongs to somebody else and has more names than this one, so that it may be one of the machine's.
    #[error(
        "has another name elsewhere and another owner than the guest, and may not be the guest's to show"
    )]
    Foreign,
    /// There is more in it.
    #[error("has {size} bytes or more, of {bound} that are taken")]
    TooLarge {
        /// How many bytes were seen.
        size: u64,
        /// How many are taken.
        bound: u64,
    },
    /// There are more names in it.
    #[error("has more than {most} names")]
    TooMany {
        /// How many are taken.
        most: usize,
    },
    /// The run is over, and its directory gone.
    #[error("went with the run, which is over: name it beforehand (Command::collect)")]
    Gone,
    /// The grace was over before it was read.
    #[error("could not be read within the grace of the run")]
    NotInTime,
    /// It was not asked for.
    #[error("was not asked for: name it beforehand (Command::collect)")]
    NotAsked,
    /// The kernel's answer.
    #[error("could not be used: {}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// The error number: errno(3).
        errno: i32,
    },
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::LOOP | Errno::XDEV => Self::Link,
            errno => Self::Io {
                errno: errno.raw_os_error(),
            },
        }
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        errno.into()
    }
}

/// The path without what stands for nothing in it; `None` where it is not one beneath a directory.
pub(crate) fn plain(path: &Path) -> Option<PathBuf> {
    if path.as_os_str().as_bytes().contains(&0) {
        return None;
    }
    path.components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect()
}

/// Directories above the last name, and that.
fn parts(path: &Path) -> Result<(PathBuf, OsString), FileError> {
    let path = plain(path).ok_or(FileError::Path)?;
    let name = path.file_name().ok_or(FileError::Path)?.to_owned();
    let above = path.parent().map(Path::to_owned).unwrap_or_default();
    Ok((above, name))
}

/// Opens what has this name now; never waits for it.
fn open(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let mut tries = TRIES;
    loop {
        match openat2(directory, path, flags, Mode::empty(), BENEATH) {
            // Something was renamed meanwhile, or (which may be for long) the guest has a lease: fcntl(2).
            Err(Errno::AGAIN) if tries > 0 => tries -= 1,
            Err(Errno::INTR) => {}
            opened => return opened,
        }
    }
}

pub(crate) fn get(
    directory: BorrowedFd<'_>,
    path: &Path,
    bound: u64,
    owner: Option<(u32, u32)>,
) -> Result<Vec<u8>, FileError> {
    let path = plain(path).ok_or(FileError::Path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(directory, &path, flags).map_err(|errno| {
        let other = |kind| FileError::Kind {
            kind,
            wanted: FileKind::File,
        };
        match errno {
            // A socket.
            Errno::NXIO => other(FileKind::Other),
            // By itself it is a link, not on its way.
            Errno::LOOP if is_link(directory, &path) => other(FileKind::Link),
            errno => errno.into(),
        }
    })?;
    let stat = fstat(&file)?;
    let kind = FileKind::of(&stat);
    if kind != FileKind::File {
        let wanted = FileKind::File;
        return Err(FileError::Kind { kind, wanted });
    }
    // Where hard links are not restricted (protected_hardlinks in proc(5)) and Landlock is missing, a guest can give any file a
    // name here.
    if stat.st_nlink > 1 && owner.is_some_and(|(uid, _)| uid != stat.st_uid) {
        return Err(FileError::Foreign);
    }
    let bound = bound.min(MOST);
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > bound {
        return Err(FileError::TooLarge { size, bound });
    }
    let mut contents = Vec::new();
    let room = usize::try_from(size).unwrap_or(usize::MAX);
    // Memory that is not there is an answer like any other, not the embedder's end.
    if contents.try_reserve_exact(room).is_err() {
        return Err(Errno::NOMEM.into());
    }
    // It may grow while it is read.
    File::from(file)
        .take(bound + 1)
        .read_to_end(&mut contents)?;
    let size = contents.len() as u64;
    if size > bound {
        return Err(FileError::TooLarge { size, bound });
    }
    Ok(contents)
}

fn is_link(directory: BorrowedFd<'_>, path: &Path) -> bool {
    let Ok((above, name)) = parts(path) else {
        return false;
    };
    open(directory, &above, OFlags::PATH | OFlags::DIRECTORY)
        .and_then(|above| statat(&above, &name, AtFlags::SYMLINK_NOFOLLOW))
        .is_ok_and(|stat| FileKind::of(&stat) == FileKind::Link)
}

fn directory_of(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> Result<OwnedFd, FileError> {
    open(directory, path, flags | OFlags::DIRECTORY).map_err(|errno| match errno {
        Errno::NOTDIR => FileError::Kind {
            kind: FileKind::File,
            wanted: FileKind::Directory,
        },
        errno => errno.into(),
    })
}

fn put(
    directory: BorrowedFd<'_>,
    path: &Path,
    contents: &[u8],
    owner: Option<(u32, u32)>,
) -> Result<(), FileError> {
    let (above, name) = parts(path)?;
    let above = directory_of(directory, &above, OFlags::PATH)?;
    // A guest that guesses it has a file of its own there, and nothing else.
    let number = RandomState::new().hash_one(&name);
    let fresh = format!(".varek-put-{number:016x}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = openat2(&above, &fresh, flags, mode, BENEATH)?;
    let written = write(file, contents, owner).and_then(|()| {
        renameat(&above, &fresh, &above, &name).map_err(|errno| match errno {
            Errno::ISDIR => FileError::Kind {
                kind: FileKind::Directory,
                wanted: FileKind::File,
            },
            errno => errno.into(),
        })
    });
    if written.is_err() {
        // The guest may have renamed it: then it is a file of the guest's like any other.
        let _ = unlinkat(&above, &fresh, AtFlags::empty());
    }
    written
}

fn write(file: OwnedFd, contents: &[u8], owner: Option<(u32, u32)>) -> Result<(), FileError> {
    let mut file = File::from(file);
    file.write_all(contents)?;
    // Not left to the embedder's umask.
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    if let Some((uid, gid)) = owner {
        fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

fn list(directory: BorrowedFd<'_>, path: &Path, most: usize) -> Result<Vec<FileEntry>, FileError> {
    let path = plain(path).ok_or(FileError::Path)?;
    let directory = directory_of(directory, &path, OFlags::RDONLY)?;
    let mut entries = Vec::new();
    // Names that come and go as fast as they are read would never end.
    let mut left = most.saturating_mul(2).saturating_add(64);
    let mut room = vec![MaybeUninit::uninit(); 16 * 1024];
    let mut names = RawDir::new(&directory, &mut room);
    while let Some(name) = names.next() {
        let name = name?;
        let name = name.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone meanwhile.
            Err(Errno::NOENT) if left > 0 => {
                left -= 1;
                continue;
            }
            Err(Errno::NOENT) => return Err(FileError::TooMany { most }),
            Err(errno) => return Err(errno.into()),
        };
        if entries.len() == most {
            return Err(FileError::TooMany { most });
        }
        let kind = FileKind::of(&stat);
        let file = kind == FileKind::File;
        entries.push(FileEntry {
            name: OsStr::from_bytes(name.to_bytes()).to_owned(),
            kind,
            size: if file {
                u64::try_from(stat.st_size).unwrap_or_default()
            } else {
                0
            },
        });
    }
    entries.sort();
    Ok(entries)
}

/// What became of the files that a command names.
pub(crate) type Collected = BTreeMap<PathBuf, Result<Vec<u8>, FileError>>;

/// Reads the files that a command names, of a guest that is dead.
pub(crate) fn collect(
    directory: BorrowedFd<'_>,
    wanted: &[(PathBuf, u64)],
    owner: Option<(u32, u32)>,
) -> Collected {
    wanted
        .iter()
        .map(|(path, bound)| (path.clone(), get(directory, path, *bound, owner)))
        .collect()
}

#[cfg(test)]
mod tests;
