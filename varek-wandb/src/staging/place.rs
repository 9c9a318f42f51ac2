//! Places among a run's files.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Drafted, Made, Temporary, make_directories, random};
use crate::Error;

/// A file that another one took the place of.
#[derive(Debug)]
pub(super) struct Replaced {
    /// Where it is now; it is removed unless it is put back.
    aside: Temporary,
    directory: OwnedFd,
    name: String,
}

impl Replaced {
    pub(super) fn put_back(mut self) {
        let back = rustix::fs::renameat(CWD, self.aside.path(), &self.directory, &self.name);
        // Where that was done, nothing but a second name of the same file can be left there.
        if back.is_err() {
            self.aside.keep();
        }
    }
}

impl Drafted {
    /// Puts the file at its place beneath the run's `files`, where it takes the place of what was there.
    ///
    /// No link is followed on the way, so that nobody who can make one there has this program write elsewhere. A link in the file's own
    /// place is replaced.
    pub(crate) fn keep_among_files(
        mut self,
        run: &Path,
        name: &str,
        made: &mut Made,
    ) -> Result<(), Error> {
        let mut path = run.join("files");
        let mut directory = open(CWD, &path, &path)?;
        let (parents, last) = name.rsplit_once('/').unwrap_or(("", name));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            path.push(part);
            match rustix::fs::mkdirat(&directory, part, Mode::RWXU) {
                Ok(()) => made.directories.push(path.clone()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(Error::io("create", &path)(errno.into())),
            }
            directory = open(&directory, Path::new(part), &path)?;
        }
        path.push(last);
        let replaced = aside(run, &directory, last, &path)?;
        let renamed = rustix::fs::renameat(CWD, self.path.path(), &directory, last);
        match (renamed, replaced) {
            (Ok(()), None) => made.files.push(path),
            (Ok(()), Some(aside)) => made.replaced.push(Replaced {
                aside,
                directory,
                name: last.to_owned(),
            }),
            (Err(errno), replaced) => {
                if let Some(aside) = replaced {
                    let name = last.to_owned();
                    Replaced {
                        aside,
                        directory,
                        name,
                    }
                    .put_back();
                }
                return Err(Error::io("rename to", &path)(errno.into()));
            }
        }
        self.path.keep();
        Ok(())
    }
}

/// Opens a directory that is no link.
fn open(above: impl std::os::fd::AsFd, name: &Path, whole: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&above, name, flags, Mode::empty()).map_err(|errno| {
        let known = rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW);
        if known.is_ok_and(|known| FileType::from_raw_mode(known.st_mode) == FileType::Symlink) {
            let path = whole.to_owned();
            return Error::LeadsOut { path };
        }
        Error::io("open", whole)(errno.into())
    })
}

/// Gives what is at a place another name as well, or instead where the file system has no links; none where there is nothing.
fn aside(
    run: &Path,
    directory: &OwnedFd,
    name: &str,
    whole: &Path,
) -> Result<Option<Temporary>, Error> {
    let known = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(known) => FileType::from_raw_mode(known.st_mode),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(Error::io("stat", whole)(errno.into())),
    };
    // No file takes the place of a directory.
    if known == FileType::Directory {
        return Ok(None);
    }
    let partial = run.join("varek/partial");
    make_directories(&partial)?;
    let other: PathBuf = partial.join(random(16)?);
    rustix::fs::linkat(directory, name, CWD, &other, AtFlags::empty())
        .or_else(|_| rustix::fs::renameat(directory, name, CWD, &other))
        .map_err(|errno| Error::io("rename to", &other)(errno.into()))?;
    Ok(Some(Temporary(Some(other))))
}
