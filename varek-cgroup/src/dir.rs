//! One directory of a control group file system, held open. Everything below it is reached by its
//! descriptor, so that a path that changes meanwhile changes nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Dir as Entries, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::error::Error;

/// A directory descriptor and the path it was opened at, which only serves errors.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The kernel prints every control file into one page at a time; the flat ones fit.
const PAGE: usize = 4096;

impl Dir {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Error::io("open", path, errno.into()))?;
        Ok(Self {
            fd: lifted(fd, path)?,
            path: path.to_owned(),
        })
    }

    /// Opens a directory in this one. The name is one component and never a link.
    pub(crate) fn child(&self, name: &str) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(Self {
            fd: self.open_file("open", name, flags)?,
            path: self.path.join(name),
        })
    }

    /// Makes a directory in this one, mode 0755 less the umask. `Ok(false)`: the name is taken.
    pub(crate) fn make(&self, name: &str) -> Result<bool, Error> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // Not the permissions of this directory: they would allow it.
            Err(errno @ (Errno::ACCESS | Errno::PERM)) if self.writable().is_ok() => {
                Err(Error::barred("create", &self.path.join(name), errno.into()))
            }
            Err(errno) => Err(Error::io("create", &self.path.join(name), errno.into())),
        }
    }

    /// Removes a directory in this one. `Ok(false)`: it has processes or groups in it. One that is gone
    /// already is removed.
    pub(crate) fn unmake(&self, name: &str) -> Result<bool, Error> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(true),
            Err(Errno::BUSY) => Ok(false),
            Err(errno) => Err(Error::io("remove", &self.path.join(name), errno.into())),
        }
    }

    pub(crate) fn open_file(
        &self,
        operation: &'static str,
        name: &str,
        flags: OFlags,
    ) -> Result<OwnedFd, Error> {
        let path = || self.path.join(name);
        let fd = rustix::fs::openat(&self.fd, name, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::io(operation, &path(), errno.into()))?;
        // Making the path costs an allocation; only a descriptor below 3 needs it.
        if fd.as_raw_fd() > 2 {
            Ok(fd)
        } else {
            lifted(fd, &path())
        }
    }

    /// Reads a flat file, which is at most one page.
    pub(crate) fn read(&self, name: &str) -> Result<String, Error> {
        let fd = self.open_file("read", name, OFlags::RDONLY)?;
        read_at(&fd, &self.path, name)
    }

    /// Reads a flat file that not every kernel or group has.
    pub(crate) fn read_optional(&self, name: &str) -> Result<Option<String>, Error> {
        match self.read(name) {
            Ok(text) => Ok(Some(text)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file of any length.
    pub(crate) fn read_all(&self, name: &str) -> Result<String, Error> {
        let fd = self.open_file("read", name, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        let mut page = [0_u8; PAGE];
        loop {
            let count = retry_on_intr(|| rustix::io::read(&fd, &mut page[..]))
                .map_err(|errno| Error::io("read", &self.path.join(name), errno.into()))?;
            match page.get(..count) {
                Some(part) if !part.is_empty() => bytes.extend_from_slice(part),
                _ => break,
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn write(&self, name: &str, value: &str) -> Result<(), Error> {
        let fd = self.open_file("write", name, OFlags::WRONLY)?;
        retry_on_intr(|| rustix::io::write(&fd, value.as_bytes()))
            .map_err(|errno| Error::io("write", &self.path.join(name), errno.into()))?;
        Ok(())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        rustix::fs::accessat(&self.fd, name, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    /// Whether this user may make entries, so far as the kernel tells beforehand.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        match accessible(self.fd.as_fd(), Path::new("."), access) {
            // A kernel or a process with split ids that cannot tell: mkdir will.
            Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::io("create groups in", &self.path, errno.into())),
        }
    }

    /// The names of the directories in this one.
    pub(crate) fn directories(&self) -> Result<Vec<String>, Error> {
        let failed = |errno: Errno| Error::io("list", &self.path, errno.into());
        let mut found = Vec::new();
        for entry in Entries::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type() != FileType::Directory {
                continue;
            }
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                found.push(name.to_owned());
            }
        }
        Ok(found)
    }

    /// Takes the lock that says who owns this directory (flock(2)); `false` if another has it.
    pub(crate) fn lock(&self) -> Result<bool, Error> {
        match retry_on_intr(|| {
            rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive)
        }) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(Error::io("lock", &self.path, errno.into())),
        }
    }

    /// Whether `name` in `parent` still is this very directory.
    pub(crate) fn is_still(&self, parent: &Self, name: &str) -> bool {
        let here = rustix::fs::fstat(&self.fd);
        let there = rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((here, there), (Ok(here), Ok(there))
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// The inode number, which no other group of this file system has until the next boot.
    pub(crate) fn inode(&self) -> Result<u64, Error> {
        self.stat().map(|stat| stat.st_ino)
    }

    pub(crate) fn owner(&self) -> Result<u32, Error> {
        self.stat().map(|stat| stat.st_uid)
    }

    fn stat(&self) -> Result<rustix::fs::Stat, Error> {
        rustix::fs::fstat(&self.fd).map_err(|errno| Error::io("examine", &self.path, errno.into()))
    }

    /// Whether systemd marked this directory as delegated (systemd.resource-control(5), `Delegate=`).
    pub(crate) fn marked_as_delegated(&self) -> bool {
        ["user.delegate", "trusted.delegate"].iter().any(|name| {
            let mut value = [0_u8; 2];
            let length = rustix::fs::fgetxattr(&self.fd, *name, &mut value[..]);
            length == Ok(1) && value.first() == Some(&b'1')
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a flat file from its start through a descriptor that stays open. For files that can be polled this
/// also says "seen": the next poll waits for the next change.
pub(crate) fn read_at(fd: impl AsFd, directory: &Path, name: &str) -> Result<String, Error> {
    let mut page = [0_u8; PAGE];
    let count = retry_on_intr(|| rustix::io::pread(&fd, &mut page[..], 0))
        .map_err(|errno| Error::io("read", &directory.join(name), errno.into()))?;
    let text = page.get(..count).unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The same descriptor with a number that no standard stream has: a child that gets its streams by dup2
/// would lose it, or keep it (dup2 of a number to itself leaves close-on-exec alone).
fn lifted(fd: OwnedFd, path: &Path) -> Result<OwnedFd, Error> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, 3)
        .map_err(|errno| Error::io("keep a descriptor of", path, errno.into()))
}

/// As `lifted`, for descriptors that are no file of a group.
pub(crate) fn above_streams(fd: OwnedFd, what: &Path) -> Result<OwnedFd, Error> {
    lifted(fd, what)
}

/// access(2) for the effective ids. Container runtimes that do not know the call with flags (Linux 5.8) have it refused
/// with EPERM, which is no answer about the file: then the older call is asked, for the real ids.
pub(crate) fn accessible(at: BorrowedFd<'_>, path: &Path, access: Access) -> Result<(), Errno> {
    match rustix::fs::accessat(at, path, access, AtFlags::EACCESS) {
        Err(Errno::PERM) => rustix::fs::accessat(at, path, access, AtFlags::empty()),
        answer => answer,
    }
}
