//! System calls that tests need to be a difficult embedder, and that rustix does not have.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// `fork(2)`: 0 in the copy, the copy's pid in the original. The copy has this thread alone: it calls
/// what it tests and then [`exit`].
pub(crate) fn fork() -> io::Result<i32> {
    // SAFETY: glibc makes its allocator usable in the copy; the test takes no lock that another thread
    // could have held.
    let pid = unsafe { libc::fork() };
    check(pid.into()).map(|_| pid)
}

/// `_exit(2)`: without handlers and without flushing what a copy shares with the original.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// `unshare(CLONE_NEWNS)`: mounts of this thread's and of the threads that it starts.
pub(crate) fn own_mounts() -> io::Result<()> {
    // SAFETY: takes a number; no memory and no descriptor is unshared.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    check(result.into()).map(drop)
}

/// `close(2)` of a number that nothing in this program owns.
pub(crate) fn close(number: RawFd) {
    // SAFETY: the callers close stdio before anything uses it, and nothing owns those numbers.
    unsafe { libc::close(number) };
}

/// Clears close-on-exec: `fcntl(fd, F_SETFD, 0)`.
pub(crate) fn keep_over_exec(number: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor that the caller holds open.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    check(result.into()).map(drop)
}

/// What a signal does to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    Default,
    Ignore,
    /// The default action, without zombies: SA_NOCLDWAIT.
    DefaultNoWait,
}

/// `sigaction(2)` without a handler.
pub(crate) fn dispose(signal: i32, disposition: Disposition) -> io::Result<()> {
    // SAFETY: a sigaction of zeroes is the default action without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    match disposition {
        Disposition::Default => action.sa_sigaction = libc::SIG_DFL,
        Disposition::Ignore => action.sa_sigaction = libc::SIG_IGN,
        Disposition::DefaultNoWait => {
            action.sa_sigaction = libc::SIG_DFL;
            action.sa_flags = libc::SA_NOCLDWAIT;
        }
    }
    // SAFETY: `action` is initialized and names no handler.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(result.into()).map(drop)
}

/// Blocks a signal in this thread: `pthread_sigmask(3)`.
pub(crate) fn block(signal: i32) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialized by the line above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: `set` is initialized.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    // SAFETY: `set` is initialized; the mask is this thread's own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// An instruction of a filter: code, jump where true, jump where false, value (seccomp(2), `linux/filter.h`).
pub(crate) type Instruction = (u16, u8, u8, u32);

/// Installs a seccomp filter on this thread and those that it starts, and sets no_new_privs.
pub(crate) fn filter(instructions: &[Instruction]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: takes numbers; the attribute is this thread's.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    check(result.into())?;
    // SAFETY: `program` names live instructions, which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    check(result).map(drop)
}

/// What two processes may share (kcmp(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Shared {
    Memory = 1,
    Descriptors = 2,
    Directory = 3,
    Handlers = 4,
}

/// `kcmp(pid1, pid2, type, 0, 0) == 0`: whether two processes share this.
pub(crate) fn share(one: u32, other: u32, what: Shared) -> io::Result<bool> {
    // SAFETY: takes numbers only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.cast_signed(),
            other.cast_signed(),
            what as i32,
            0_usize,
            0_usize,
        )
    };
    check(result).map(|order| order == 0)
}

/// A call that an outer filter refuses, and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) call: libc::c_long,
    pub(crate) errno: i32,
    /// Only where the first argument has one of these bits; 0 refuses every such call.
    pub(crate) flags: u32,
}

impl Refused {
    pub(crate) const fn with(call: libc::c_long, errno: i32) -> Self {
        Self {
            call,
            errno,
            flags: 0,
        }
    }
}

/// Puts a filter around this thread and whatever it starts, as a container runtime does:
/// `seccomp(SECCOMP_SET_MODE_FILTER, 0, &program)`.
pub(crate) fn surround(refused: &[Refused]) -> io::Result<()> {
    // BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_JMP | BPF_JSET | BPF_K, BPF_RET | BPF_K.
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    // Offsets in struct seccomp_data: the number, the low half of the first argument.
    const NUMBER: u32 = 0;
    const FIRST: u32 = 16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = Vec::new();
    for Refused { call, errno, flags } in refused {
        let number = u32::try_from(*call).map_err(io::Error::other)?;
        let answer = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
        program.push(step(LOAD, 0, 0, NUMBER));
        program.push(step(EQUAL, 0, if *flags == 0 { 1 } else { 3 }, number));
        if *flags != 0 {
            program.push(step(LOAD, 0, 0, FIRST));
            program.push(step(ANY_BIT, 0, 1, *flags));
        }
        program.push(step(RETURN, 0, 0, answer));
    }
    program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes numbers; the attribute is this thread's.
    check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` names its live instructions, which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            0 as libc::c_ulong,
            &raw const program,
        )
    };
    check(result).map(drop)
}
