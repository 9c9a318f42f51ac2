//! Changes of modes, times and attributes that a guest under the embedder's uid makes beneath its scratch directory.
//!
//! Landlock mediates none of them, so that the filter refuses them all. Those that concern a file beneath scratch are made
//! here in the guest's place, and every other one stays refused. What a call names is read once from the guest's memory,
//! is looked up beneath the embedder's own descriptor of the directory without leaving it (openat2(2),
//! `RESOLVE_BENEATH`), and from then on is a descriptor, which nothing that the guest does can turn into another file.
//!
//! How long that takes is the guest's choice: the lock of a file is held by a long write(2), and its memory may be behind a
//! slow disk. So no call is made on the supervisor's thread; each run has a thread of its own for these calls, and makes
//! one at a time.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, openat2,
    readlinkat, statx,
};
use rustix::io::Errno;

use super::performer::Performed;
use crate::strays::Listener;
use crate::sys;

mod call;
mod change;
mod memory;

pub(super) use call::Call;
use call::{EITHER, File};
use change::Value;
use memory::Memory;

/// A call that waits for its answer.
pub(super) struct Request {
    pub(super) listener: Arc<Listener>,
    pub(super) id: u64,
    pub(super) thread: u32,
    pub(super) call: Call,
    /// The run's directory, O_PATH.
    pub(super) scratch: OwnedFd,
    /// Its path for the guest.
    pub(super) path: PathBuf,
}

/// The thread that makes the calls of one run. It ends with this value, when a call that it is in is over.
pub(super) struct Helper(mpsc::Sender<Request>);

impl Helper {
    /// `done` is told, on that thread, what came of each call.
    pub(super) fn start(done: impl Fn(Performed) + Send + 'static) -> io::Result<Self> {
        let (requests, waiting) = mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("varek-attributes".into())
            .spawn(move || {
                sys::block_signals();
                for request in waiting {
                    let performed = request.perform();
                    // Nothing of the run is held when the supervisor learns that nothing goes on.
                    drop(request);
                    done(performed);
                }
            })?;
        Ok(Self(requests))
    }

    /// Whether the thread has it.
    pub(super) fn submit(&self, request: Request) -> bool {
        self.0.send(request).is_ok()
    }
}

/// Beneath scratch: not up out of it, not through `/proc` links, not onto another mount.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// How often a lookup is repeated that others' renames disturb.
const TRIES: usize = 16;

/// PATH_MAX of Linux (limits.h), the final NUL included.
const LONGEST_PATH: usize = 4096;

impl Request {
    fn perform(&self) -> Performed {
        self.made().map_or_else(|not| not, |()| Performed::Done(0))
    }

    /// The order of the errors is the kernel's, roughly.
    fn made(&self) -> Result<(), Performed> {
        let Call { file, change } = &self.call;
        let memory = Memory(self.thread);
        let change = Value::read(change, &memory)?;
        if matches!(change, Value::Nothing) {
            return Ok(());
        }
        let found = self.find(*file, &memory)?;
        // All that was read was the caller's.
        let listener = self.listener.fd().ok_or(Performed::No)?;
        if !sys::call_waits(listener, self.id) {
            return Err(Performed::No);
        }
        change.make(found.as_fd(), self.scratch.as_fd())
    }

    // ---- which file ----

    /// The file that the call is about, O_PATH, beneath scratch or scratch itself.
    fn find(&self, file: File, memory: &Memory) -> Result<OwnedFd, Performed> {
        let (at, address, flags) = match file {
            File::Open(number) => {
                if self.is_place(number)? {
                    return Err(Performed::Done(libc::EBADF));
                }
                return self.verified(self.open(&format!("fd/{number}"))?);
            }
            File::Path { at, address, flags } => (at, address, flags),
        };
        if flags & !EITHER != 0 {
            return Err(Performed::Done(libc::EINVAL));
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let path = memory.string(address, LONGEST_PATH, libc::ENAMETOOLONG)?;
        let path = path.as_bytes();
        let base = match at {
            libc::AT_FDCWD => "cwd".to_owned(),
            number => format!("fd/{number}"),
        };
        if path.is_empty() {
            if flags & libc::AT_EMPTY_PATH == 0 {
                return Err(Performed::Done(libc::ENOENT));
            }
            return self.verified(self.open(&base)?);
        }
        if path.starts_with(b"/") {
            if let Some(number) = descriptor(path).filter(|_| follow) {
                let open = self.open(&format!("fd/{number}"));
                // There a number that is not open is a name that is not there.
                return self.verified(open.map_err(|not| match not {
                    Performed::Done(_) => Performed::Done(libc::ENOENT),
                    not => not,
                })?);
            }
            let scratch = self.path.as_os_str().as_encoded_bytes();
            let relative = beneath(path, scratch).ok_or(Performed::No)?;
            return lookup(self.scratch.as_fd(), relative, follow);
        }
        let directory = self.open(&base)?;
        let stat = fstat(&directory).map_err(failed)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(Performed::Done(libc::ENOTDIR));
        }
        // A path may go up from there, and must not go up from scratch.
        let mut whole = self.place(directory.as_fd())?;
        whole.push(b'/');
        whole.extend_from_slice(path);
        lookup(
            self.scratch.as_fd(),
            beneath(&whole, b"").unwrap_or(&whole),
            follow,
        )
    }

    /// What the caller has open (`fd/N`), or where it is (`cwd`), O_PATH. Nothing is opened: a device or a FIFO does not
    /// learn of it.
    fn open(&self, name: &str) -> Result<OwnedFd, Performed> {
        let link = format!("/proc/{}/{name}", self.thread);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(link, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => Performed::Done(libc::EBADF),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => failed(errno),
            // A process that let nobody look into it.
            _ => Performed::No,
        })
    }

    /// Whether the caller has this number open with O_PATH, which is no file to most calls.
    fn is_place(&self, number: i32) -> Result<bool, Performed> {
        let path = format!("/proc/{}/fdinfo/{number}", self.thread);
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Performed::Done(libc::EBADF),
            _ => Performed::No,
        })?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        Ok(flags.ok_or(Performed::No)? & libc::O_PATH != 0)
    }

    fn verified(&self, object: OwnedFd) -> Result<OwnedFd, Performed> {
        self.place(object.as_fd()).map(|_| object)
    }

    /// Where something open is beneath scratch, from there.
    ///
    /// What the kernel says of its place is text, and only a hint: what is there beneath scratch has to be this very file.
    /// One that has no name any more is known by its mount and by the directory that it was in.
    fn place(&self, object: BorrowedFd<'_>) -> Result<Vec<u8>, Performed> {
        let own = fstat(object).map_err(failed)?;
        for _ in 0..TRIES {
            let scratch = link(self.scratch.as_fd())?;
            let text = link(object)?;
            let Some(relative) = beneath(&text, &scratch) else {
                break;
            };
            let there = lookup(self.scratch.as_fd(), relative, false)
                .and_then(|found| Ok(same(&fstat(found).map_err(failed)?, &own)));
            let nameless = own.st_nlink == 0 && text.ends_with(b" (deleted)");
            if there == Ok(true) || (nameless && self.same_mount(object)?) {
                return Ok(relative.to_vec());
            }
        }
        Err(Performed::No)
    }

    fn same_mount(&self, object: BorrowedFd<'_>) -> Result<bool, Performed> {
        Ok(mount(object)? == mount(self.scratch.as_fd())?)
    }
}

/// Finds what is beneath a directory, O_PATH.
fn lookup(scratch: BorrowedFd<'_>, relative: &[u8], follow: bool) -> Result<OwnedFd, Performed> {
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    let relative = if relative.is_empty() { b"." } else { relative };
    for _ in 0..TRIES {
        match openat2(scratch, relative, flags, Mode::empty(), BENEATH) {
            // Something was renamed meanwhile, on this machine.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(found) => return Ok(found),
            Err(errno) => return Err(unless_kernel(errno)),
        }
    }
    Err(Performed::No)
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The number of a mount (`STATX_MNT_ID`, Linux 5.8).
fn mount(file: BorrowedFd<'_>) -> Result<u64, Performed> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(failed)?;
    let said = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    said.then_some(found.stx_mnt_id).ok_or(Performed::No)
}

/// The path of something open, as the kernel has it.
fn link(file: BorrowedFd<'_>) -> Result<Vec<u8>, Performed> {
    let text = readlinkat(CWD, own_link(file), Vec::new()).map_err(|_| Performed::No)?;
    Ok(text.into_bytes())
}

/// The way to what is open here for calls that take no O_PATH descriptor.
fn own_link(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// What follows a directory's path, without slashes before it.
fn beneath<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    let rest = path.strip_prefix(directory)?;
    if !rest.is_empty() && !rest.starts_with(b"/") {
        return None;
    }
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    rest.get(slashes..)
}

/// The number in a path by which programs name what they have open: before Linux 6.6 and in libraries that know of no
/// fchmodat2(2), the only way to change the mode of a file that is no link.
fn descriptor(path: &[u8]) -> Option<u32> {
    let ways: [&[u8]; 3] = [b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/"];
    let number = ways.iter().find_map(|way| path.strip_prefix(*way))?;
    let number = std::str::from_utf8(number).ok()?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| digits)
}

/// An error of a lookup that the guest's own would have met; others say that it was not a lookup beneath scratch.
fn unless_kernel(errno: Errno) -> Performed {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG => {
            failed(errno)
        }
        // The embedder's want is not the guest's deed.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => failed(errno),
        _ => Performed::No,
    }
}

fn failed(errno: Errno) -> Performed {
    Performed::Done(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_name_that_begins_alike_is_not_beneath() {
        let cases: [(&str, Option<&str>); 9] = [
            ("/tmp/run", Some("")),
            ("/tmp/run/", Some("")),
            ("/tmp/run/a/b", Some("a/b")),
            ("/tmp/run//a/../b/", Some("a/../b/")),
            ("/tmp/runs", None),
            ("/tmp/ru", None),
            ("/tmp/../tmp/run/a", None),
            ("tmp/run/a", None),
            ("", None),
        ];
        for (path, rest) in cases {
            let found = beneath(path.as_bytes(), b"/tmp/run");
            assert_eq!(found, rest.map(str::as_bytes), "{path}");
        }
        // The root of a file system that is mounted nowhere here.
        assert_eq!(beneath(b"/a", b"/"), Some(&b"a"[..]));
    }

    #[test]
    fn only_a_number_names_a_descriptor() {
        for (path, number) in [
            ("/proc/self/fd/7", Some(7)),
            ("/proc/thread-self/fd/0", Some(0)),
            ("/dev/fd/12", Some(12)),
            ("/proc/self/fd/", None),
            ("/proc/self/fd/+7", None),
            ("/proc/self/fd/7/", None),
            ("/proc/self/fd/7/a", None),
            ("/proc/self/fd/99999999999", None),
            ("/proc/1/fd/7", None),
            ("proc/self/fd/7", None),
        ] {
            assert_eq!(descriptor(path.as_bytes()), number, "{path}");
        }
    }

    #[test]
    fn a_lookup_leaves_neither_the_directory_nor_its_mount() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir_all(path.join("run/inner")).unwrap();
        for file in ["outside", "run/file", "run/inner/file"] {
            std::fs::write(path.join(file), "").unwrap();
        }
        for (target, link) in [
            ("../outside", "up"),
            ("inner/../file", "within"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, path.join("run").join(link)).unwrap();
        }
        std::os::unix::fs::symlink(path.join("run/file"), path.join("run/whole")).unwrap();
        let run = place(path.join("run").to_str().unwrap());
        let find = |relative: &str, follow| lookup(run.as_fd(), relative.as_bytes(), follow);
        for inside in ["file", "", ".", "inner/../file", "within", "inner//file"] {
            assert!(find(inside, true).is_ok(), "{inside}");
        }
        for outside in ["..", "../outside", "inner/../../outside", "up", "whole"] {
            let found = find(outside, true).map(drop);
            assert_eq!(found, Err(Performed::No), "{outside}");
        }
        // A link itself is in there, wherever it leads.
        assert!(find("up", false).is_ok());
        let absent = find("none", true).map(drop);
        assert_eq!(absent, Err(Performed::Done(libc::ENOENT)));
        let circle = find("loop", true).map(drop);
        assert_eq!(circle, Err(Performed::Done(libc::ELOOP)));

        // Mounts and links of /proc that are there on every host.
        let root = place("/");
        let mounted = lookup(root.as_fd(), b"proc/uptime", true).map(drop);
        assert_eq!(mounted, Err(Performed::No));
        let proc = place("/proc");
        assert!(lookup(proc.as_fd(), b"uptime", true).is_ok());
        let magic = lookup(proc.as_fd(), b"self/root", true).map(drop);
        assert!(magic.is_err());
    }
}
