//! The one system call of the tests that needs `unsafe`.
#![allow(unsafe_code, reason = "fork cannot be called otherwise")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

/// Runs `work` in a forked copy of this process and gives its exit status; the copy never returns from here.
pub(crate) fn in_a_copy(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc makes its allocator usable in the child of a process with threads; `work` takes no lock that a
    // test thread could hold, and the copy leaves by _exit without running anything of the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let status = work();
        // SAFETY: ends the copy; it has nothing to flush.
        unsafe { libc::_exit(status) };
    }
    let child = rustix::process::Pid::from_raw(pid).unwrap();
    let (_, status) = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap();
    status.exit_status().expect("the copy exits")
}
