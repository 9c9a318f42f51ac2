//! System calls that enter, make and furnish namespaces; the rules of [`super::super::sys`] hold here too.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "registers carry numbers of every width; both architectures have 64-bit ones"
)]

use core::ffi::CStr;
use core::ptr;

use super::super::sys::{Errno, as_word, outcome, syscall};

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const CLOSE: usize = 3;
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const IOCTL: usize = 16;
    pub(super) const SOCKET: usize = 41;
    pub(super) const SETHOSTNAME: usize = 170;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const SETNS: usize = 308;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const CLOSE: usize = 57;
    pub(super) const RT_SIGACTION: usize = 134;
    pub(super) const IOCTL: usize = 29;
    pub(super) const SOCKET: usize = 198;
    pub(super) const SETHOSTNAME: usize = 161;
    pub(super) const UNSHARE: usize = 97;
    pub(super) const SETNS: usize = 268;
}

// The same on both architectures.
const FSOPEN: usize = 430;
const FSCONFIG: usize = 431;
const FSMOUNT: usize = 432;

pub(crate) const CLONE_NEWCGROUP: u64 = 0x200_0000;
pub(crate) const CLONE_NEWUTS: u64 = 0x400_0000;
pub(crate) const CLONE_NEWIPC: u64 = 0x800_0000;
pub(crate) const CLONE_NEWUSER: u64 = 0x1000_0000;
pub(crate) const CLONE_NEWPID: u64 = 0x2000_0000;
pub(crate) const CLONE_NEWNET: u64 = 0x4000_0000;

/// `int setns(int fd, int nstype)`: enters namespaces of the process of a pidfd (Linux 5.8), or the one that an nsfs
/// descriptor is.
///
/// # References
///
/// setns(2).
pub(crate) fn enter(fd: i32, kinds: u64) -> Result<(), Errno> {
    // SAFETY: takes no pointer. The child shares neither its root nor its working directory, nor any namespace
    // that is entered here, with the embedder's threads: what it enters is its own matter.
    outcome(unsafe { syscall(number::SETNS, [as_word(fd), kinds as usize, 0, 0, 0, 0]) }).map(drop)
}

/// `unshare(CLONE_NEWCGROUP)`: the groups of this process become the roots of what it sees.
///
/// # References
///
/// unshare(2), cgroup_namespaces(7).
pub(crate) fn unshare_groups() -> Result<(), Errno> {
    let flags = CLONE_NEWCGROUP as usize;
    // SAFETY: takes no pointer.
    outcome(unsafe { syscall(number::UNSHARE, [flags, 0, 0, 0, 0, 0]) }).map(drop)
}

/// `rt_sigaction(SIGCHLD, &SIG_IGN, NULL, 8)`: children that end leave no zombie; exec keeps it so.
///
/// # References
///
/// sigaction(2).
pub(crate) fn ignore_children() -> Result<(), Errno> {
    const SIGCHLD: usize = 17;
    const SIG_IGN: u64 = 1;
    let action = [SIG_IGN, 0, 0, 0];
    let arguments = [SIGCHLD, action.as_ptr().expose_provenance(), 0, 8, 0, 0];
    // SAFETY: the kernel reads at most 32 bytes of `action`; the child has dispositions of its own (no
    // CLONE_SIGHAND).
    outcome(unsafe { syscall(number::RT_SIGACTION, arguments) }).map(drop)
}

/// `int sethostname(name, len)`.
///
/// # References
///
/// sethostname(2).
pub(crate) fn set_host_name(name: &CStr) -> Result<(), Errno> {
    let length = name.count_bytes();
    let name = name.as_ptr().expose_provenance();
    // SAFETY: `name` has `length` live bytes.
    outcome(unsafe { syscall(number::SETHOSTNAME, [name, length, 0, 0, 0, 0]) }).map(drop)
}

fn close(fd: i32) {
    // SAFETY: only descriptors that were made here are closed.
    let _ = unsafe { syscall(number::CLOSE, [as_word(fd), 0, 0, 0, 0, 0]) };
}

/// The loopback interface of this network namespace goes up: `ioctl(socket, SIOCSIFFLAGS, "lo")`.
///
/// # References
///
/// netdevice(7).
pub(crate) fn raise_loopback() -> Result<(), Errno> {
    const AF_INET: usize = 2;
    const SOCK_DGRAM_CLOEXEC: usize = 2 | 0o2_000_000;
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: u16 = 1;
    /// `struct ifreq`: a name, and a union of 24 bytes.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let mut request = Request {
        name: [0; 16],
        flags: IFF_UP,
        rest: [0; 22],
    };
    let [first, second, ..] = &mut request.name;
    (*first, *second) = (b'l', b'o');
    let arguments = [AF_INET, SOCK_DGRAM_CLOEXEC, 0, 0, 0, 0];
    // SAFETY: takes no pointer.
    let socket = outcome(unsafe { syscall(number::SOCKET, arguments) })? as i32;
    let arguments = [
        as_word(socket),
        SIOCSIFFLAGS,
        ptr::from_ref(&request).expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: `request` is a live struct ifreq, which this command reads.
    let done = outcome(unsafe { syscall(number::IOCTL, arguments) });
    close(socket);
    done.map(drop)
}

/// A mount of a fresh procfs of this pid namespace that is nowhere yet: `fsopen("proc")`, `fsconfig(CMD_CREATE)`,
/// `fsmount`; with `subset=pid` (Linux 5.8) where it shows processes alone.
///
/// # References
///
/// fsopen(2), fsmount(2), proc(5).
pub(crate) fn process_files(only_processes: bool) -> Result<i32, Errno> {
    const CLOEXEC: usize = 1;
    const FSCONFIG_SET_STRING: usize = 1;
    const FSCONFIG_CMD_CREATE: usize = 6;
    const NOSUID_NODEV_NOEXEC: usize = 2 | 4 | 8;
    let name = c"proc".as_ptr().expose_provenance();
    // SAFETY: `name` is a live C string.
    let context = outcome(unsafe { syscall(FSOPEN, [name, CLOEXEC, 0, 0, 0, 0]) })? as i32;
    let subset = [c"subset", c"pid"].map(|text| text.as_ptr().expose_provenance());
    let subset = [
        as_word(context),
        FSCONFIG_SET_STRING,
        subset[0],
        subset[1],
        0,
        0,
    ];
    let create = [as_word(context), FSCONFIG_CMD_CREATE, 0, 0, 0, 0];
    let mount = [as_word(context), CLOEXEC, NOSUID_NODEV_NOEXEC, 0, 0, 0];
    let narrowed = if only_processes {
        // SAFETY: name and value are live C strings.
        outcome(unsafe { syscall(FSCONFIG, subset) }).map(drop)
    } else {
        Ok(())
    };
    let made = narrowed
        // SAFETY: this command takes no pointer.
        .and_then(|()| outcome(unsafe { syscall(FSCONFIG, create) }))
        // SAFETY: takes no pointer.
        .and_then(|_| outcome(unsafe { syscall(FSMOUNT, mount) }));
    close(context);
    made.map(|fd| fd as i32)
}
