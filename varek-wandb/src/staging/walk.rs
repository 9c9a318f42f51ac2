//! The files of a directory.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::Error;

/// Directories within each other, at most.
const DEEPEST: usize = 128;

/// Calls `take` with each regular file of a directory and its path from there, in the order of the paths of each directory.
///
/// Links are followed to files as long as they stay beneath the directory; one that leads out, one to a directory, and whatever is no
/// file is an error. Nothing is opened by a path that is looked up from elsewhere than the directory itself, so that who can write
/// there meanwhile cannot lead this program out of it (openat2(2), Linux 5.6).
pub(crate) fn walk(
    root: &Path,
    mut take: impl FnMut(String, File) -> Result<(), Error>,
) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, Mode::empty())
        .map_err(|errno| Error::io("open", root)(errno.into()))?;
    let walk = Walk { root, top };
    let mut waiting = vec![(String::new(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let mut inner = Vec::new();
        for (name, is_directory) in walk.entries(&directory)? {
            let path = match directory.as_str() {
                "" => name,
                directory => format!("{directory}/{name}"),
            };
            if !is_directory {
                let file = walk.open(&path)?;
                take(path, file)?;
            } else if depth < DEEPEST {
                inner.push((path, depth + 1));
            } else {
                return Err(Error::NotAFile {
                    path: walk.whole(&path),
                });
            }
        }
        waiting.extend(inner.into_iter().rev());
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Path,
    top: OwnedFd,
}

impl Walk<'_> {
    fn whole(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn failed(&self, operation: &'static str, path: &str) -> impl FnOnce(Errno) -> Error {
        let path = self.whole(path);
        move |errno| match errno {
            Errno::XDEV => Error::LeadsOut { path },
            errno => Error::io(operation, &path)(errno.into()),
        }
    }

    /// What a directory holds, by name.
    fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = if directory.is_empty() { "." } else { directory };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = rustix::fs::openat2(&self.top, place, flags, Mode::empty(), resolve)
            .map_err(self.failed("open", directory))?;
        let entries = Dir::read_from(&opened).map_err(self.failed("list", directory))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(self.failed("list", directory))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => {
                    is_directory(&opened, name).map_err(self.failed("stat", directory))?
                }
                kind => kind == FileType::Directory,
            };
            if let Ok(name) = name.to_str() {
                names.push((name.to_owned(), is_directory));
            } else {
                let found = self.whole(directory).join(name.to_string_lossy().as_ref());
                let found = found.to_string_lossy().into_owned();
                return Err(Error::Name {
                    what: "the path",
                    found,
                    allowed: "UTF-8",
                });
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, path: &str) -> Result<File, Error> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file: File = rustix::fs::openat2(&self.top, path, flags, Mode::empty(), resolve)
            .map_err(|errno| match errno {
                // A socket, or a device without a driver.
                Errno::NXIO | Errno::NODEV => Error::NotAFile {
                    path: self.whole(path),
                },
                errno => self.failed("open", path)(errno),
            })?
            .into();
        let known = file
            .metadata()
            .map_err(Error::io("stat", &self.whole(path)))?;
        if known.is_file() {
            Ok(file)
        } else {
            Err(Error::NotAFile {
                path: self.whole(path),
            })
        }
    }
}

fn is_directory(place: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    let known = rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(known.st_mode) == FileType::Directory)
}
