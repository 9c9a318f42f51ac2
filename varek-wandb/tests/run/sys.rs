//! fork(2), and a filter of seccomp(2), for embedders that are tests.
#![expect(unsafe_code, reason = "fork(2) and prctl(2) have no other form")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seconds after which a forked copy that hangs is killed.
const HANGS: u32 = 30;

/// Runs this in a forked copy of the embedder, which ends with it; whether it came back without a panic, and in time.
pub(crate) fn in_a_fork(child: impl FnOnce()) -> bool {
    let pid = fork(child);
    let mut status = -1;
    // SAFETY: `pid` is a child of this process that nobody else waits for; the status is written to a local.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid: {}", io::Error::last_os_error());
    status == 0
}

/// The same, where the copy drops what its parent only looks at.
pub(crate) fn in_a_fork_that_drops<T>(value: &T) -> bool {
    in_a_fork(|| {
        // SAFETY: it is valid, and this copy, which has no thread but this one, ends without looking at it again; the parent's
        // own is in the parent's memory.
        drop(unsafe { std::ptr::read(value) });
    })
}

fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the C library puts its own locks in order around fork. The child runs this closure alone, on the one thread
    // that it has, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: alarm takes any number.
        unsafe { libc::alarm(HANGS) };
        let done = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: _exit takes any status and does not return.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    pid
}

/// Has every fdatasync(2) of this thread fail with EIO from here on, as a broken disk would.
pub(crate) fn break_fdatasync() {
    let number = u32::try_from(libc::SYS_fdatasync).unwrap();
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let give = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let mut program = [
        // The number is the first word of seccomp_data.
        load(0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        give(libc::SECCOMP_RET_ERRNO | libc::EIO.cast_unsigned()),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: it takes no pointer; the thread can gain no privileges from here on.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    // SAFETY: `filter` names four instructions that live until the call returns; the kernel copies them.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    }
}
