//! The system calls of the kernel test, one a function. Children are made by `fork` from a process with
//! threads, so between fork and end they make raw calls only: no allocation, no lock, no panic.

use std::ffi::{CStr, c_long, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

use varek_seccomp::Instruction;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Signaled(i32),
}

/// Words that a child shares with its parent.
pub(crate) struct Shared {
    words: *mut AtomicI64,
    length: usize,
}

impl Shared {
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let bytes = length * size_of::<AtomicI64>();
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            words: address.cast(),
            length,
        })
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicI64 {
        assert!(index < self.length);
        // SAFETY: in bounds by the assertion, so the address stays inside the mapping.
        let word = unsafe { self.words.add(index) };
        // SAFETY: the mapping lives as long as `self`, zeroes are a valid value, and all access is atomic.
        unsafe { &*word }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bytes = self.length * size_of::<AtomicI64>();
        // SAFETY: the mapping is this object's own, and no reference into it outlives it.
        let _ = unsafe { libc::munmap(self.words.cast(), bytes) };
    }
}

/// Runs `body` in a child and waits for it. The body makes raw calls only and ends by its return value.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> io::Result<End> {
    // SAFETY: the child runs `body`, which the callers in this test keep free of allocation and locks, and
    // leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = body();
            // SAFETY: ends the child at once, without destructors.
            unsafe { libc::_exit(code) }
        }
        _ => wait(pid),
    }
}

fn wait(pid: i32) -> io::Result<End> {
    let mut status = 0;
    // SAFETY: `status` is valid for the write; `pid` is the caller's own unreaped child.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(io::Error::last_os_error());
    }
    Ok(if libc::WIFSIGNALED(status) {
        End::Signaled(libc::WTERMSIG(status))
    } else {
        End::Exited(libc::WEXITSTATUS(status))
    })
}

/// Sets no_new_privs and installs the filter on the calling thread; true where both worked.
pub(crate) fn install(filter: &[Instruction]) -> bool {
    no_new_privs() && seccomp(filter)
}

fn no_new_privs() -> bool {
    // SAFETY: changes an attribute of the calling thread; no pointers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 }
}

fn seccomp(filter: &[Instruction]) -> bool {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `program` points to `len` instructions in the layout of `sock_filter`, which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    result == 0
}

/// A raw call; the negated errno where it failed.
pub(crate) fn call(number: i64, args: [u64; 6]) -> i64 {
    // SAFETY: the callers pass descriptors, flags and addresses that are invalid by choice (all bits or none),
    // so that no memory of the process is reached, and leave out numbers that would end or stop it.
    let result = unsafe {
        libc::syscall(
            number as c_long,
            args[0],
            args[1],
            args[2],
            args[3],
            args[4],
            args[5],
        )
    };
    if result == -1 {
        -i64::from(errno())
    } else {
        result as i64
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// `execve` with three more registers; returns only where it failed, with the negated errno.
pub(crate) fn execve(path: &CStr, arguments: &[&CStr; 3], permit: [u64; 3]) -> i64 {
    let [first, second, third] = arguments.map(CStr::as_ptr);
    let argv = [first, second, third, ptr::null()];
    let envp = [ptr::null::<c_void>()];
    let [a, b, c] = permit;
    // SAFETY: path and vectors are terminated and live until the call returns; the last three registers are
    // unused by the kernel.
    let result = unsafe {
        libc::syscall(
            libc::SYS_execve,
            path.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            a,
            b,
            c,
        )
    };
    if result == -1 {
        -i64::from(errno())
    } else {
        result as i64
    }
}

/// `execveat` on an absolute path, with the permit's last word where a register is left.
pub(crate) fn execveat(path: &CStr, arguments: &[&CStr; 3], last: u64) -> i64 {
    let [first, second, third] = arguments.map(CStr::as_ptr);
    let argv = [first, second, third, ptr::null()];
    let envp = [ptr::null::<c_void>()];
    // SAFETY: as for `execve`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            libc::AT_FDCWD,
            path.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            0,
            last,
        )
    };
    if result == -1 {
        -i64::from(errno())
    } else {
        result as i64
    }
}

/// A close-on-exec pipe, read end first.
pub(crate) fn pipe() -> io::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let [read, write] = ends;
    // SAFETY: the descriptor is new and owned by nobody else.
    let read = unsafe { OwnedFd::from_raw_fd(read) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(write) };
    Ok((read.into(), write))
}

/// Makes `from` the child's standard output and error.
pub(crate) fn redirect_output(from: &OwnedFd) -> bool {
    duplicate(from, 1) && duplicate(from, 2)
}

fn duplicate(from: &OwnedFd, to: i32) -> bool {
    // SAFETY: called in a child, whose table is its own.
    unsafe { libc::dup2(from.as_raw_fd(), to) == to }
}

/// Stores a result for the parent.
pub(crate) fn store(word: &AtomicI64, value: i64) {
    word.store(value, Ordering::Relaxed);
}
