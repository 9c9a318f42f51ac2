//! System calls of the child, one thin function each.
//!
//! `#![no_std]` without `alloc`: the child shares its memory with the suspended embedder, so nothing here
//! allocates, locks, formats, panics or touches thread-local storage (`errno` included: results come
//! straight from the register). Numbers and structures are from the kernel's UAPI headers.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "registers carry numbers of every width; both architectures have 64-bit ones"
)]

use core::ffi::{CStr, c_char};
use core::ptr;

/// A kernel error number, positive.
pub(crate) type Errno = i32;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const EXECVE: usize = 59;
    pub(super) const FLOCK: usize = 73;
    pub(super) const FCHDIR: usize = 81;
    pub(super) const UMASK: usize = 95;
    pub(super) const GETPPID: usize = 110;
    pub(super) const SETSID: usize = 112;
    pub(super) const SETGROUPS: usize = 116;
    pub(super) const SETRESUID: usize = 117;
    pub(super) const SETRESGID: usize = 119;
    pub(super) const CAPSET: usize = 126;
    pub(super) const PRCTL: usize = 157;
    pub(super) const MOUNT: usize = 165;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    #[cfg(feature = "test-hooks")]
    pub(super) const PPOLL: usize = 271;
    pub(super) const DUP3: usize = 292;
    pub(super) const PRLIMIT64: usize = 302;
    pub(super) const SECCOMP: usize = 317;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const CHDIR: usize = 80;
    pub(super) const WRITE: usize = 1;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const RT_SIGACTION: usize = 134;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const EXECVE: usize = 221;
    pub(super) const FLOCK: usize = 32;
    pub(super) const FCHDIR: usize = 50;
    pub(super) const UMASK: usize = 166;
    pub(super) const GETPPID: usize = 173;
    pub(super) const SETSID: usize = 157;
    pub(super) const SETGROUPS: usize = 159;
    pub(super) const SETRESUID: usize = 147;
    pub(super) const SETRESGID: usize = 149;
    pub(super) const CAPSET: usize = 91;
    pub(super) const PRCTL: usize = 167;
    pub(super) const MOUNT: usize = 40;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const OPENAT: usize = 56;
    #[cfg(feature = "test-hooks")]
    pub(super) const PPOLL: usize = 73;
    pub(super) const DUP3: usize = 24;
    pub(super) const PRLIMIT64: usize = 261;
    pub(super) const SECCOMP: usize = 277;
    pub(super) const UNSHARE: usize = 97;
    pub(super) const CHDIR: usize = 49;
    pub(super) const WRITE: usize = 64;
}

// The same on both architectures.
const MOVE_MOUNT: usize = 429;
const CLOSE_RANGE: usize = 436;
const LANDLOCK_ADD_RULE: usize = 445;
const LANDLOCK_RESTRICT_SELF: usize = 446;

/// One system call, its result straight from the register.
///
/// Pointers are passed as numbers, whose provenance must be exposed: to the compiler, memory behind any other number
/// is neither read nor written here.
///
/// # Safety
///
/// The arguments must be valid for this call, pointers above all.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn syscall(number: usize, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: isize;
    // SAFETY: the x86_64 call convention; rcx and r11 are clobbered, memory may be. The caller vouches
    // for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// One system call, its result straight from the register.
///
/// # Safety
///
/// The arguments must be valid for this call, pointers above all.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn syscall(number: usize, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: isize;
    // SAFETY: the aarch64 call convention; only x0 is clobbered, memory may be. The caller vouches for
    // the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first as isize => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    result
}

pub(super) fn outcome(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(result.wrapping_neg() as Errno),
    }
}

/// Paths start at the working directory.
const AT_FDCWD: i32 = -100;

pub(super) fn as_word(value: i32) -> usize {
    // Sign-extended, as the kernel takes an int or a descriptor.
    value as isize as usize
}

/// `long rt_sigprocmask(SIG_SETMASK, &set, &old, 8)`: sets this thread's mask, every signal included
/// (the C library keeps two of its own open), and gives the former one.
///
/// # References
///
/// sigprocmask(2).
pub(crate) fn signal_mask(set: u64) -> Result<u64, Errno> {
    const SIG_SETMASK: usize = 2;
    let mut old = 0_u64;
    let arguments = [
        SIG_SETMASK,
        ptr::from_ref(&set).expose_provenance(),
        ptr::from_mut(&mut old).expose_provenance(),
        8,
        0,
        0,
    ];
    // SAFETY: both pointers are to live 8-byte sets.
    outcome(unsafe { syscall(number::RT_SIGPROCMASK, arguments) }).map(|_| old)
}

/// `long rt_sigaction(signal, &SIG_DFL, NULL, 8)`: the default disposition.
///
/// # References
///
/// sigaction(2), signal(7).
pub(crate) fn default_disposition(signal: usize) -> Result<(), Errno> {
    // handler, flags, restorer (x86_64) or mask, mask: all zero is SIG_DFL on both architectures.
    let action = [0_u64; 4];
    let arguments = [signal, action.as_ptr().expose_provenance(), 0, 8, 0, 0];
    // SAFETY: the kernel reads at most 32 bytes of `action`; the child has dispositions of its own
    // (no CLONE_SIGHAND).
    outcome(unsafe { syscall(number::RT_SIGACTION, arguments) }).map(drop)
}

/// `ssize_t write(fd, "0", 1)`: into a `cgroup.procs`, moves the calling process into that group.
///
/// # References
///
/// cgroups(7).
pub(crate) fn join_group(procs: i32) -> Result<(), Errno> {
    let text = b"0";
    let arguments = [
        as_word(procs),
        text.as_ptr().expose_provenance(),
        text.len(),
        0,
        0,
        0,
    ];
    // SAFETY: `text` is a live byte.
    outcome(unsafe { syscall(number::WRITE, arguments) }).map(drop)
}

/// `int flock(fd, LOCK_UN)`.
///
/// # References
///
/// flock(2).
pub(crate) fn unlock(lock: i32) -> Result<(), Errno> {
    const LOCK_UN: usize = 8;
    // SAFETY: takes no pointer.
    outcome(unsafe { syscall(number::FLOCK, [as_word(lock), LOCK_UN, 0, 0, 0, 0]) }).map(drop)
}

/// `pid_t setsid(void)`.
///
/// # References
///
/// setsid(2).
pub(crate) fn setsid() -> Result<(), Errno> {
    // SAFETY: takes no argument.
    outcome(unsafe { syscall(number::SETSID, [0; 6]) }).map(drop)
}

/// `unshare(CLONE_NEWNS)`: a copy of the mounts, of this process alone. The root and the working directory move into it.
///
/// # References
///
/// unshare(2), mount_namespaces(7).
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    const CLONE_NEWNS: usize = 0x2_0000;
    // SAFETY: takes no pointer; without CLONE_FS the child's root and working directory are its own.
    outcome(unsafe { syscall(number::UNSHARE, [CLONE_NEWNS, 0, 0, 0, 0, 0]) }).map(drop)
}

/// `mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)`: nothing that is mounted from here on is seen outside; what is
/// unmounted outside goes here too.
///
/// # References
///
/// mount(2), mount_namespaces(7).
pub(crate) fn receive_mounts_only() -> Result<(), Errno> {
    const MS_REC: usize = 0x4000;
    const MS_SLAVE: usize = 0x8_0000;
    let root = c"/".as_ptr().expose_provenance();
    // SAFETY: one pointer to a C string, the others null, which this operation does not look at.
    outcome(unsafe { syscall(number::MOUNT, [0, root, 0, MS_REC | MS_SLAVE, 0, 0]) }).map(drop)
}

/// `move_mount(mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH)`: puts a mount that is nowhere onto a directory. A
/// link at the end of the path is not followed.
///
/// # References
///
/// move_mount(2).
pub(crate) fn attach_mount(mount: i32, path: &CStr) -> Result<(), Errno> {
    const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
    let arguments = [
        as_word(mount),
        c"".as_ptr().expose_provenance(),
        as_word(AT_FDCWD),
        path.as_ptr().expose_provenance(),
        MOVE_MOUNT_F_EMPTY_PATH,
        0,
    ];
    // SAFETY: both pointers are to live C strings.
    outcome(unsafe { syscall(MOVE_MOUNT, arguments) }).map(drop)
}

/// `mount(from, to, NULL, MS_BIND, NULL)`: the directory in a second place.
///
/// # References
///
/// mount(2).
pub(crate) fn bind_mount(from: &CStr, to: &CStr) -> Result<(), Errno> {
    const MS_BIND: usize = 0x1000;
    let arguments = [
        from.as_ptr().expose_provenance(),
        to.as_ptr().expose_provenance(),
        0,
        MS_BIND,
        0,
        0,
    ];
    // SAFETY: both pointers are to live C strings, the others null, which this operation does not look at.
    outcome(unsafe { syscall(number::MOUNT, arguments) }).map(drop)
}

/// `int chdir(path)`.
///
/// # References
///
/// chdir(2).
pub(crate) fn chdir(path: &CStr) -> Result<(), Errno> {
    let path = path.as_ptr().expose_provenance();
    // SAFETY: the pointer is to a live C string.
    outcome(unsafe { syscall(number::CHDIR, [path, 0, 0, 0, 0, 0]) }).map(drop)
}

/// `int fchdir(int fd)`.
///
/// # References
///
/// chdir(2).
pub(crate) fn fchdir(directory: i32) -> Result<(), Errno> {
    // SAFETY: takes no pointer.
    outcome(unsafe { syscall(number::FCHDIR, [as_word(directory), 0, 0, 0, 0, 0]) }).map(drop)
}

/// `mode_t umask(mode_t mask)`; cannot fail.
///
/// # References
///
/// umask(2).
pub(crate) fn umask(mask: u32) {
    // SAFETY: takes no pointer; without CLONE_FS the mask is the child's own.
    let _ = unsafe { syscall(number::UMASK, [mask as usize, 0, 0, 0, 0, 0]) };
}

/// One limit of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rlimit {
    /// `RLIMIT_*`.
    pub(crate) resource: u32,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// `int prlimit64(0, resource, &new, NULL)`.
///
/// # References
///
/// prlimit(2).
pub(crate) fn prlimit(limit: &Rlimit) -> Result<(), Errno> {
    let pair = [limit.soft, limit.hard];
    let arguments = [
        0,
        limit.resource as usize,
        pair.as_ptr().expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: `pair` has the layout of struct rlimit64; pid 0 is the caller, whose limits are its own
    // (no CLONE_THREAD).
    outcome(unsafe { syscall(number::PRLIMIT64, arguments) }).map(drop)
}

/// `int prlimit64(0, resource, NULL, &old)`: the hard limit.
///
/// # References
///
/// prlimit(2).
pub(crate) fn hard_limit(resource: u32) -> Result<u64, Errno> {
    let mut pair = [0_u64; 2];
    let old = pair.as_mut_ptr().expose_provenance();
    // SAFETY: `pair` has the layout of struct rlimit64; pid 0 is the caller.
    outcome(unsafe { syscall(number::PRLIMIT64, [0, resource as usize, 0, old, 0, 0]) })?;
    let [_, hard] = pair;
    Ok(hard)
}

fn prctl(option: usize, second: usize, third: usize) -> Result<usize, Errno> {
    // SAFETY: only options that take numbers are called, and none that acts on the shared memory map.
    outcome(unsafe { syscall(number::PRCTL, [option, second, third, 0, 0, 0]) })
}

/// `prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)`.
///
/// # References
///
/// PR_CAP_AMBIENT(2const), capabilities(7).
pub(crate) fn clear_ambient_capabilities() -> Result<(), Errno> {
    const PR_CAP_AMBIENT: usize = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0).map(drop)
}

/// `prctl(PR_CAPBSET_DROP, capability)`.
///
/// # References
///
/// PR_CAPBSET_DROP(2const).
pub(crate) fn drop_bounding_capability(capability: usize) -> Result<(), Errno> {
    const PR_CAPBSET_DROP: usize = 24;
    prctl(PR_CAPBSET_DROP, capability, 0).map(drop)
}

/// `prctl(PR_CAPBSET_READ, capability)`.
///
/// # References
///
/// PR_CAPBSET_READ(2const).
pub(crate) fn has_bounding_capability(capability: usize) -> bool {
    const PR_CAPBSET_READ: usize = 23;
    prctl(PR_CAPBSET_READ, capability, 0) != Ok(0)
}

/// `int capset(...)` with every set empty.
///
/// # References
///
/// capset(2).
pub(crate) fn clear_capabilities() -> Result<(), Errno> {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let header = [LINUX_CAPABILITY_VERSION_3, 0];
    let data = [0_u32; 6];
    let arguments = [
        header.as_ptr().expose_provenance(),
        data.as_ptr().expose_provenance(),
        0,
        0,
        0,
        0,
    ];
    // SAFETY: `header` and `data` have the layout of version 3.
    outcome(unsafe { syscall(number::CAPSET, arguments) }).map(drop)
}

/// `int setgroups(0, NULL)`, by the kernel's call: the C library's would signal the embedder's threads.
///
/// # References
///
/// setgroups(2), nptl(7).
pub(crate) fn clear_groups() -> Result<(), Errno> {
    // SAFETY: a count of 0 reads no memory.
    outcome(unsafe { syscall(number::SETGROUPS, [0; 6]) }).map(drop)
}

/// `int setresgid(gid, gid, gid)`, by the kernel's call.
///
/// # References
///
/// setresgid(2).
pub(crate) fn setresgid(gid: u32) -> Result<(), Errno> {
    let gid = gid as usize;
    // SAFETY: takes no pointer.
    outcome(unsafe { syscall(number::SETRESGID, [gid, gid, gid, 0, 0, 0]) }).map(drop)
}

/// `int setresuid(uid, uid, uid)`, by the kernel's call.
///
/// # References
///
/// setresuid(2).
pub(crate) fn setresuid(uid: u32) -> Result<(), Errno> {
    let uid = uid as usize;
    // SAFETY: takes no pointer. It clears the dumpable flag of the shared memory map, which the spawner
    // restores.
    outcome(unsafe { syscall(number::SETRESUID, [uid, uid, uid, 0, 0, 0]) }).map(drop)
}

/// `prctl(PR_SET_PDEATHSIG, SIGKILL)`.
///
/// # References
///
/// PR_SET_PDEATHSIG(2const).
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    const PR_SET_PDEATHSIG: usize = 1;
    prctl(PR_SET_PDEATHSIG, 9, 0).map(drop)
}

/// `pid_t getppid(void)`.
///
/// # References
///
/// getppid(2).
pub(crate) fn getppid() -> u32 {
    // SAFETY: takes no argument; cannot fail.
    let result = unsafe { syscall(number::GETPPID, [0; 6]) };
    result as u32
}

/// `prctl(PR_SET_NO_NEW_PRIVS, 1)`.
///
/// # References
///
/// PR_SET_NO_NEW_PRIVS(2const).
pub(crate) fn no_new_privileges() -> Result<(), Errno> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// `openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC)`.
///
/// # References
///
/// open(2).
pub(crate) fn open_directory(path: &CStr) -> Result<i32, Errno> {
    const O_PATH: usize = 0o10_000_000;
    const O_CLOEXEC: usize = 0o2_000_000;
    #[cfg(target_arch = "x86_64")]
    const O_DIRECTORY: usize = 0o200_000;
    #[cfg(target_arch = "aarch64")]
    const O_DIRECTORY: usize = 0o40_000;
    let arguments = [
        as_word(AT_FDCWD),
        path.as_ptr().expose_provenance(),
        O_PATH | O_CLOEXEC | O_DIRECTORY,
        0,
        0,
        0,
    ];
    // SAFETY: `path` is a live C string.
    outcome(unsafe { syscall(number::OPENAT, arguments) }).map(|fd| fd as i32)
}

/// `landlock_add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &attr, 0)`.
///
/// # References
///
/// landlock_add_rule(2).
pub(crate) fn landlock_add_path(ruleset: i32, access: u64, path: i32) -> Result<(), Errno> {
    const LANDLOCK_RULE_PATH_BENEATH: usize = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    let rule = PathBeneath {
        allowed_access: access,
        parent_fd: path,
    };
    let arguments = [
        as_word(ruleset),
        LANDLOCK_RULE_PATH_BENEATH,
        ptr::from_ref(&rule).expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: `rule` has the layout of struct landlock_path_beneath_attr.
    outcome(unsafe { syscall(LANDLOCK_ADD_RULE, arguments) }).map(drop)
}

/// `landlock_restrict_self(ruleset, 0)`.
///
/// # References
///
/// landlock_restrict_self(2).
pub(crate) fn landlock_restrict_self(ruleset: i32) -> Result<(), Errno> {
    // SAFETY: takes no pointer.
    outcome(unsafe { syscall(LANDLOCK_RESTRICT_SELF, [as_word(ruleset), 0, 0, 0, 0, 0]) }).map(drop)
}

/// One instruction of a filter, `struct sock_filter`.
pub(crate) type FilterInstruction = crate::varek_filter::Instruction;

pub(crate) const SECCOMP_FILTER_FLAG_NEW_LISTENER: usize = 1 << 3;
pub(crate) const SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: usize = 1 << 5;

/// `seccomp(SECCOMP_SET_MODE_FILTER, flags, &program)`; gives the listener where `flags` ask for one.
///
/// # References
///
/// seccomp(2), seccomp_unotify(2).
pub(crate) fn install_filter(filter: &[FilterInstruction], flags: usize) -> Result<i32, Errno> {
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const FilterInstruction,
    }
    let Ok(len) = u16::try_from(filter.len()) else {
        return Err(22);
    };
    let program = Program {
        len,
        filter: filter.as_ptr(),
    };
    let arguments = [
        SECCOMP_SET_MODE_FILTER,
        flags,
        ptr::from_ref(&program).expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: `program` has the layout of struct sock_fprog and names `len` live instructions.
    outcome(unsafe { syscall(number::SECCOMP, arguments) }).map(|fd| fd as i32)
}

/// `close_range(3, ~0U, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)`: a descriptor table of the child's
/// own, in which everything over 2 closes at exec.
///
/// # References
///
/// close_range(2).
pub(crate) fn unshare_descriptors() -> Result<(), Errno> {
    const UNSHARE_AND_CLOEXEC: usize = (1 << 1) | (1 << 2);
    let arguments = [3, u32::MAX as usize, UNSHARE_AND_CLOEXEC, 0, 0, 0];
    // SAFETY: takes no pointer; with UNSHARE it acts on a copy of the table.
    outcome(unsafe { syscall(CLOSE_RANGE, arguments) }).map(drop)
}

/// `int dup3(from, to, 0)`.
///
/// # References
///
/// dup(2).
pub(crate) fn dup3(from: i32, to: i32) -> Result<(), Errno> {
    // SAFETY: takes no pointer; the table is the child's own by now.
    outcome(unsafe { syscall(number::DUP3, [as_word(from), as_word(to), 0, 0, 0, 0]) }).map(drop)
}

/// Arguments or environment of execve: pointers to C strings, the last one null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointers<'a>(&'a [*const c_char]);

impl<'a> Pointers<'a> {
    /// # Safety
    ///
    /// Every pointer but the last is to a C string that lives for `'a`; the last is null.
    pub(crate) unsafe fn new(pointers: &'a [*const c_char]) -> Self {
        Self(pointers)
    }
}

/// `int execve(path, argv, envp)` with the permit in the three registers that it does not use. Returns
/// only the error.
///
/// # References
///
/// execve(2).
pub(crate) fn execve(
    path: &CStr,
    arguments: Pointers<'_>,
    environment: Pointers<'_>,
    permit: [u64; 3],
) -> Errno {
    let [first, second, third] = permit;
    let arguments = [
        path.as_ptr().expose_provenance(),
        arguments.0.as_ptr().expose_provenance(),
        environment.0.as_ptr().expose_provenance(),
        first as usize,
        second as usize,
        third as usize,
    ];
    // SAFETY: `path` is a live C string, and `Pointers` vouches for both arrays.
    let result = unsafe { syscall(number::EXECVE, arguments) };
    result.wrapping_neg() as Errno
}

/// `void exit_group(int status)`.
///
/// # References
///
/// _exit(2).
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: takes no pointer; ends this process, which shares no thread group with the embedder.
        let _ = unsafe { syscall(number::EXIT_GROUP, [as_word(status), 0, 0, 0, 0, 0]) };
    }
}

/// Waits for a signal that ends the process: `ppoll(NULL, 0, NULL, NULL)`.
#[cfg(feature = "test-hooks")]
pub(crate) fn hold() {
    // SAFETY: no descriptor and no pointer is passed.
    let _ = unsafe { syscall(number::PPOLL, [0; 6]) };
}
