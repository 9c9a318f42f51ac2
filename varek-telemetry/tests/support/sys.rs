//! fork(2), for tests of what a forked copy of the embedder does.
#![expect(unsafe_code, reason = "fork(2) has no other form")]
#![allow(unreachable_pub, reason = "it is shared by name")]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs this in a forked copy of the test, which ends with it; whether it came back without a panic.
pub fn in_a_fork(child: impl FnOnce()) -> bool {
    // SAFETY: the C library puts its own locks in order around fork. The child runs this closure alone, on the one
    // thread that it has, and leaves by _exit; the test that calls keeps other threads from holding locks that the
    // closure takes.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let done = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: _exit takes any status and does not return.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = -1;
    // SAFETY: `pid` is a child of this process that nobody else waits for; the status is written to a local.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid: {}", std::io::Error::last_os_error());
    status == 0
}
