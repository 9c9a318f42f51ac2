//! What a call of the program means: its memory, and which file a path leads to from where the program stands.
//!
//! The program waits for the answer meanwhile. Another of its threads could change what is looked at; it is trusted not to.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The thread that made a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracee(pub(super) u32);

/// A file that is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its path without symbolic links.
    pub(super) path: PathBuf,
    pub(super) kind: FileType,
}

impl Tracee {
    /// Up to so many bytes from this address, fewer where the memory ends.
    pub(super) fn memory(self, address: u64, length: usize) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.0)).ok()?;
        let mut bytes = vec![0; length];
        let read = memory.read_at(&mut bytes, address).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }

    /// The path at this address.
    pub(super) fn path(self, address: u64) -> Option<PathBuf> {
        const PATH_MAX: usize = 4096;
        let mut bytes = self.memory(address, PATH_MAX)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(PathBuf::from(OsStr::from_bytes(&bytes)))
    }

    /// The process that the thread is of.
    pub(super) fn process(self) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        line.and_then(|id| id.trim().parse().ok()).unwrap_or(self.0)
    }

    /// The file that a path leads to, from this directory descriptor (`AT_FDCWD` is the working directory).
    pub(super) fn file(self, directory: i32, path: &Path, follow: bool) -> Result<Place, Errno> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follow);
        let found = rustix::fs::openat(CWD, self.way_to(directory, path), flags, Mode::empty())?;
        let mode = rustix::fs::statat(&found, "", AtFlags::EMPTY_PATH)?.st_mode;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
        let path = std::fs::read_link(link).map_err(|_| Errno::NOENT)?;
        Ok(Place {
            path: self.own_process(&path),
            kind: FileType::from_raw_mode(mode),
        })
    }

    /// The directory that holds, or would hold, what the path names.
    pub(super) fn directory(self, directory: i32, path: &Path) -> Result<Place, Errno> {
        let parent = path.parent().unwrap_or(path);
        self.file(directory, parent, true)
    }

    /// The path as this program has to write it to get where the tracee would.
    fn way_to(self, directory: i32, path: &Path) -> PathBuf {
        let Self(thread) = self;
        if path.is_relative() {
            let base = match directory {
                libc::AT_FDCWD => format!("/proc/{thread}/cwd"),
                descriptor => format!("/proc/{thread}/fd/{descriptor}"),
            };
            return if path.as_os_str().is_empty() {
                base.into()
            } else {
                Path::new(&base).join(path)
            };
        }
        // Links that lead each process to itself.
        for (link, own) in [
            ("/proc/self", ""),
            ("/proc/thread-self", ""),
            ("/dev/fd", "fd"),
            ("/dev/stdin", "fd/0"),
            ("/dev/stdout", "fd/1"),
            ("/dev/stderr", "fd/2"),
        ] {
            if let Ok(rest) = path.strip_prefix(link) {
                let own = Path::new("/proc").join(thread.to_string()).join(own);
                return own.components().chain(rest.components()).collect();
            }
        }
        path.to_owned()
    }

    /// A path in this program's own entries of `/proc`, at which a link such as `/proc/mounts` has ended, or in those of a thread, as
    /// the path of the tracee's process.
    fn own_process(self, path: &Path) -> PathBuf {
        for id in [std::process::id(), self.0] {
            if let Ok(rest) = path.strip_prefix(format!("/proc/{id}")) {
                let own = Path::new("/proc").join(self.process().to_string());
                return own.components().chain(rest.components()).collect();
            }
        }
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Tracee {
        Tracee(std::process::id())
    }

    #[test]
    fn a_path_leads_to_the_file_without_links() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        let find = |name: &str, follow| here().file(libc::AT_FDCWD, &root.join(name), follow);
        let place = find("link", true).unwrap();
        assert_eq!(
            (place.path, place.kind),
            (root.join("file"), FileType::RegularFile)
        );
        let place = find("link", false).unwrap();
        assert_eq!(
            (place.path, place.kind),
            (root.join("link"), FileType::Symlink)
        );
        assert_eq!(find("none", true), Err(Errno::NOENT));
        let parent = here().directory(libc::AT_FDCWD, &root.join("none"));
        assert_eq!(parent.unwrap().path, root);
    }

    #[test]
    fn a_relative_path_starts_at_the_descriptor_or_the_working_directory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        let open = File::open(&root).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&open);
        let place = here().file(descriptor, Path::new("d"), true).unwrap();
        assert_eq!(place.path, root.join("d"));
        assert_eq!(
            here().file(descriptor, Path::new(""), true).unwrap().path,
            root
        );
        assert_eq!(
            here().directory(descriptor, Path::new("new")).unwrap().path,
            root
        );
        let working = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(
            here()
                .file(libc::AT_FDCWD, Path::new("."), true)
                .unwrap()
                .path,
            working
        );
    }

    #[test]
    fn links_of_proc_lead_to_the_process_that_asked() {
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        for link in ["/proc/self/status", "/proc/thread-self/status"] {
            let place = here().file(libc::AT_FDCWD, Path::new(link), true).unwrap();
            assert_eq!(place.path, own.join("status"), "{link}");
        }
        let mounts = here().file(libc::AT_FDCWD, Path::new("/proc/mounts"), true);
        assert_eq!(mounts.unwrap().path, own.join("mounts"));
    }

    #[test]
    fn memory_is_read_up_to_where_it_ends() {
        let text = c"/some/path";
        let address = u64::try_from(text.as_ptr().addr()).unwrap();
        assert_eq!(here().path(address), Some("/some/path".into()));
        assert_eq!(here().memory(address, 5), Some(b"/some".to_vec()));
        assert_eq!(here().memory(0, 1), None);
    }
}
