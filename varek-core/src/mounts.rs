//! The scratch directory as a file system of its own, whose size the kernel bounds: a tmpfs that only the guest mounts.
//!
//! The embedder makes the file system (fsopen(2), fsmount(2)) and never mounts it anywhere: it reaches the files by the
//! descriptor. The child makes a mount namespace of its own and puts it onto an empty directory there, and onto
//! `/dev/shm`, which is otherwise everybody's. When the last process of the run and the descriptor are gone the kernel
//! frees it, however the embedder ended; nothing has to be unmounted.
//!
//! It takes CAP_SYS_ADMIN. The files are memory of the guest's group, and so count against the memory limit as well. What
//! gets round the bound: some kernel memory for each file that neither counts (locks, access control lists). What gets
//! round the missing right to execute: a memory file, which is on no mount (memfd_create(2)).

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, StatxFlags, fstatvfs};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, open_tree,
};

use crate::child::Mounts;
use crate::child::clone::sys::{MountTrial, clone_mounts};
use crate::creation::{self, Creation};
use crate::policy::Policy;
use crate::reaper::RunNamespaces;
use crate::sys;

/// Where POSIX shared memory and semaphores live (shm_overview(7)).
const SHARED_MEMORY: &str = "/dev/shm";

/// How much a scratch directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Bytes, a whole number of pages.
    pub(crate) bytes: u64,
    /// Files and directories.
    pub(crate) files: u64,
    /// Nothing in it can be executed or mapped executable: the guest may start programs, but none that it put there.
    pub(crate) no_exec: bool,
}

impl Bound {
    /// What the policy's limits come to where pages have this size; `None` where they do not bound it.
    ///
    /// Half of the memory at most: the files are memory of the group, and a guest that fills its scratch directory is to
    /// read ENOSPC instead of dying for want of memory.
    pub(crate) fn of(policy: &Policy, page: u64) -> Option<Self> {
        let limits = &policy.limits;
        let bytes = limits.scratch?;
        let memory = limits.memory.map_or(u64::MAX, |memory| memory / 2);
        let page = page.max(1);
        let pages = bytes.min(memory) / page;
        let starts = |call| policy.syscalls.allows(call);
        let strict = policy.filesystem.is_strict();
        Some(Self {
            bytes: pages.max(1) * page,
            files: limits.scratch_files,
            no_exec: strict
                || (starts("execve") || starts("execveat")) && !policy.filesystem.execute_scratch,
        })
    }
}

/// Whether this program may mount file systems of its own.
pub(crate) fn allowed() -> Result<(), Errno> {
    fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map(drop)
}

/// A fresh file system with one empty directory of mode 0700, for `owner` (uid and gid), as an O_PATH descriptor of that
/// directory at 3 or above.
///
/// # References
///
/// fsopen(2), tmpfs(5).
pub(crate) fn scratch(bound: Bound, owner: Option<(u32, u32)>) -> Result<OwnedFd, Errno> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |name: &str, value: String| fsconfig_set_string(context.as_fd(), name, value);
    set("size", bound.bytes.to_string())?;
    // The first is the directory itself.
    set("nr_inodes", bound.files.saturating_add(1).to_string())?;
    set("mode", "0700".into())?;
    if let Some((uid, gid)) = owner {
        set("uid", uid.to_string())?;
        set("gid", gid.to_string())?;
    }
    fsconfig_create(context.as_fd())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if bound.no_exec {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
    }
    let low = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let made = rustix::io::fcntl_dupfd_cloexec(&low, 3)?;
    // A limit that was not read back is none.
    let there = fstatvfs(&made)?;
    if there.f_blocks.saturating_mul(there.f_frsize) > bound.bytes || there.f_blocks == 0 {
        return Err(Errno::INVAL);
    }
    Ok(made)
}

/// Blocks and files that are left on the file system of this directory.
///
/// # References
///
/// statvfs(3).
pub(crate) fn left(directory: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let there = fstatvfs(directory)?;
    Ok((there.f_bfree, there.f_ffree))
}

/// The directory once more, as a mount that is nowhere, at 3 or above.
///
/// # References
///
/// open_tree(2).
pub(crate) fn copy_of(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let low = open_tree(directory, c"", flags)?;
    rustix::io::fcntl_dupfd_cloexec(&low, 3)
}

/// Whether a child can mount its scratch directory here, found out by one that ends at once. `base` stands for the
/// directory that is mounted on, in a namespace that goes with the child.
///
/// # Errors
///
/// The answer of the first call that is refused.
pub(crate) fn trial(base: &Path, bound: Bound, creation: Creation) -> io::Result<()> {
    let mount = scratch(bound, None)?;
    let path = CString::new(base.as_os_str().as_bytes())?;
    let mounts = Mounts {
        scratch: Some((mount.as_raw_fd(), &path)),
        shared_memory: is_directory(SHARED_MEMORY),
        process_files: None,
    };
    let trial = MountTrial {
        mounts,
        errno: AtomicI32::new(-1),
    };
    let mut stack = sys::Stack::new()?;
    creation::watch_trial(|pidfd| clone_mounts(stack.memory(), pidfd, creation.outside(), &trial))
        .map_err(io::Error::from_raw_os_error)?;
    match trial.errno.load(Ordering::Acquire) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.max(libc::EPERM))),
    }
}

/// Whether nothing on the file system at this path can be executed or mapped executable, by this path or by another mount of the
/// same place: a rule of Landlock's is bound to the file, and holds by every path. `false` where nobody knows.
pub(crate) fn is_noexec(path: &Path) -> bool {
    noexec(path, false).unwrap_or(false)
}

/// As [`is_noexec`], with whatever is mounted beneath this path, into which a rule of Landlock's goes on.
pub(crate) fn is_all_noexec(path: &Path) -> bool {
    noexec(path, true).unwrap_or(false)
}

/// # References
///
/// proc_pid_mountinfo(5).
fn noexec(path: &Path, beneath: bool) -> Option<bool> {
    let place = path.canonicalize().ok()?;
    let here = rustix::fs::statvfs(&place).ok()?.f_flag;
    if !here.contains(StatVfsMountFlags::NOEXEC) {
        return Some(false);
    }
    let number = rustix::fs::statx(CWD, &place, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let text = std::fs::read("/proc/thread-self/mountinfo").ok()?;
    let mounts: Vec<Mounted> = text
        .split(|byte| *byte == b'\n')
        .filter_map(Mounted::read)
        .collect();
    let of_place = mounts
        .iter()
        .find(|mount| mount.number == number.stx_mnt_id)?;
    let within = of_place.root.join(place.strip_prefix(&of_place.at).ok()?);
    let opens = |mount: &Mounted| {
        let same = mount.device == of_place.device
            && (within.starts_with(&mount.root) || mount.root.starts_with(&within));
        let below = beneath && mount.at.starts_with(&place) && mount.at != place;
        !mount.noexec && (same || below)
    };
    Some(!mounts.iter().any(opens))
}

/// Whether this program sees all of `/proc`. Container managers mount over parts of it, and services may see its processes
/// alone (`subset=pid`); what is mounted on directories that are there for it hides nothing. `false` where nobody knows.
///
/// # References
///
/// proc(5), user_namespaces(7).
pub(crate) fn sees_all_of_proc() -> bool {
    const PLACES: [&str; 4] = ["fs/nfsd", "openprom", "sys/fs/binfmt_misc", "xen"];
    let Ok(text) = std::fs::read("/proc/thread-self/mountinfo") else {
        return false;
    };
    let lines = text.split(|byte| *byte == b'\n');
    let mounts: Vec<Mounted> = lines.filter_map(Mounted::read).collect();
    let proc = |mount: &&Mounted| mount.at == Path::new("/proc");
    let Some(proc) = mounts.iter().rfind(proc) else {
        return false;
    };
    // Parts that cannot be written there are mounts of the same.
    let hides = |mount: &Mounted| {
        let within = mount.at.strip_prefix("/proc").ok();
        let within = within.filter(|within| !within.as_os_str().is_empty());
        mount.device != proc.device
            && within.is_some_and(|within| !PLACES.iter().any(|place| within == Path::new(place)))
    };
    !mounts.iter().any(hides) && Path::new("/proc/uptime").exists()
}

/// A line of the kernel's table of mounts.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    number: u64,
    device: Vec<u8>,
    /// What of the file system is mounted.
    root: PathBuf,
    at: PathBuf,
    noexec: bool,
}

impl Mounted {
    fn read(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ');
        let number = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let device = words.nth(1)?.to_vec();
        let (root, at) = (unescaped(words.next()?), unescaped(words.next()?));
        let noexec = words
            .next()?
            .split(|byte| *byte == b',')
            .any(|flag| flag == b"noexec");
        Some(Self {
            number,
            device,
            root,
            at,
            noexec,
        })
    }
}

/// A path of that table: a backslash and three octal digits are a byte.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, more)) = rest.split_first() {
        let code = more.get(..3).filter(|_| *byte == b'\\');
        let code =
            code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        path.push(code.unwrap_or(*byte));
        rest = if code.is_some() {
            more.get(3..).unwrap_or_default()
        } else {
            more
        };
    }
    PathBuf::from(OsString::from_vec(path))
}

fn is_directory(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether guests' `/dev/shm` can be their scratch directories: there is such a place, and nothing that they are to use
/// lies beneath.
pub(crate) fn own_shared_memory<'a>(used: impl Iterator<Item = &'a Path>) -> bool {
    is_directory(SHARED_MEMORY) && is_free(used)
}

/// Whether none of these lies in the host's `/dev/shm`.
pub(crate) fn is_free<'a>(mut used: impl Iterator<Item = &'a Path>) -> bool {
    let beneath = |path: &Path| {
        let place = path.canonicalize();
        place.is_ok_and(|place| place.starts_with(SHARED_MEMORY)) || path.starts_with(SHARED_MEMORY)
    };
    !used.any(beneath)
}

/// What the child mounts, kept by the plan until the clone has returned.
#[derive(Debug)]
pub(crate) struct MountPlan {
    /// A mount that is nowhere, and where it goes.
    pub(crate) scratch: Option<(OwnedFd, CString)>,
    pub(crate) shared_memory: bool,
    /// The procfs of this pid namespace.
    pub(crate) namespaces: Option<Arc<RunNamespaces>>,
}

impl MountPlan {
    pub(crate) fn for_child(&self) -> Mounts<'_> {
        Mounts {
            scratch: self
                .scratch
                .as_ref()
                .map(|(mount, path)| (mount.as_raw_fd(), path.as_c_str())),
            shared_memory: self.shared_memory,
            process_files: self
                .namespaces
                .as_ref()
                .and_then(|namespaces| namespaces.process_files())
                .map(|files| files.as_raw_fd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_of_mounts_is_read() {
        let mount = |root: &str, at: &str, noexec| {
            Some(Mounted {
                number: 30,
                device: b"0:22".to_vec(),
                root: root.into(),
                at: at.into(),
                noexec,
            })
        };
        for (line, read) in [
            (
                r"30 22 0:22 / / rw,noexec shared:1 - tmpfs none rw",
                mount("/", "/", true),
            ),
            (
                r"30 22 0:22 /r\011 /a\040b\134 rw - tmpfs none rw,noexec",
                mount("/r\t", r"/a b\", false),
            ),
            (r"30 22 0:22 / /a\04 rw,noexec", mount("/", r"/a\04", true)),
            ("30 22 0:22 / /a", None),
            ("", None),
        ] {
            assert_eq!(Mounted::read(line.as_bytes()), read, "{line}");
        }
    }
}
