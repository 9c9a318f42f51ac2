//! The child that tries a user namespace.
//!
//! It shares the memory of the calling thread, which is suspended until it has ended (CLONE_VFORK), or has a copy. It
//! makes raw system calls only: no allocation, no lock, no panic, and nothing that acts on the memory
//! map. The C library's `errno` that it writes to is that of the suspended thread. The answer is its exit code.

use std::ffi::CStr;
use std::io;
use std::ptr;

use crate::child::sys::Rlimit;

/// What the child needs, prepared before the clone.
pub(super) struct Trial {
    /// The child has a copy of the memory.
    pub(super) copy: bool,
    pub(super) uid_map: Vec<u8>,
    pub(super) gid_map: Vec<u8>,
    #[cfg(any(test, feature = "test-hooks"))]
    pub(super) drop_capabilities: bool,
}

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// No mount: the answer.
    NoMount(i32),
    /// A mount, and no map: the answer.
    NoMap(i32),
    /// By a signal.
    Killed,
    /// Somebody else has waited for it.
    Lost,
}

/// Added to the exit code where the map failed; error numbers above are cut, of which the calls have none.
const MAP: i32 = 0x80;

/// `clone(entry, stack, CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | CLONE_NEWNS, trial)`: the child's pid, when it has
/// ended and waits to be waited for. It sends no signal at its end.
///
/// The caller has blocked all signals, so that no handler runs in the child.
///
/// # References
///
/// clone(2), vfork(2), user_namespaces(7).
pub(super) fn clone(trial: &Trial, stack: &mut [u8]) -> io::Result<i32> {
    let shared = if trial.copy { 0 } else { libc::CLONE_VM };
    let flags = shared | libc::CLONE_VFORK | libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    spawn(trial, stack, flags)
}

/// `clone(2)` with CLONE_NEWUSER and CLONE_FS, which exclude each other: makes nothing. `EINVAL` is the kernel's
/// answer.
///
/// # References
///
/// clone(2) under ERRORS.
pub(super) fn contradiction() -> io::Result<()> {
    let trial = Trial {
        copy: false,
        uid_map: Vec::new(),
        gid_map: Vec::new(),
        #[cfg(any(test, feature = "test-hooks"))]
        drop_capabilities: false,
    };
    let mut stack = crate::sys::Stack::new()?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_NEWUSER | libc::CLONE_FS;
    // What is no Linux might make it all the same.
    spawn(&trial, stack.memory(), flags).map(|child| {
        wait(child);
    })
}

fn spawn(trial: &Trial, stack: &mut [u8], flags: i32) -> io::Result<i32> {
    let end = stack.as_mut_ptr_range().end;
    // The ABI wants the end on 16 bytes.
    let end = end.wrapping_sub(end.addr() % 16);
    // SAFETY: CLONE_VFORK suspends this thread until the child has ended, so stack and trial outlive its use of
    // them, and nothing else uses the stack. The child only reads the trial.
    let pid = unsafe {
        libc::clone(
            entry,
            end.cast(),
            flags,
            ptr::from_ref(trial).cast_mut().cast(),
        )
    };
    if pid < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(pid)
    }
}

/// `wait4(pid, &status, __WALL, NULL)`, of a child that has ended.
///
/// # References
///
/// wait(2), wait4(2).
pub(super) fn wait(pid: i32) -> Ended {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the write; a null usage is allowed.
        let result = unsafe { libc::wait4(pid, &raw mut status, libc::__WALL, ptr::null_mut()) };
        if result == pid {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Ended::Lost;
        }
    }
    if !libc::WIFEXITED(status) {
        return Ended::Killed;
    }
    match libc::WEXITSTATUS(status) {
        0 => Ended::Done,
        code if code & MAP != 0 => Ended::NoMap(code & !MAP),
        code => Ended::NoMount(code),
    }
}

const NO_DUMP: Rlimit = Rlimit {
    resource: libc::RLIMIT_CORE,
    soft: 1,
    hard: 1,
};

/// The child. Its return value is its exit code.
extern "C" fn entry(trial: *mut libc::c_void) -> i32 {
    // SAFETY: `spawn` passes a trial that lives until this child has ended, and that nothing changes.
    let trial = unsafe { &*trial.cast_const().cast::<Trial>() };
    // A filter may kill what calls mount(2), and the dump would be of the embedder's memory. A limit of 1 byte prevents
    // files and, unlike 0, pipes to a handler (core(5)); the limits are the child's own (no CLONE_THREAD).
    let _ = crate::child::sys::prlimit(&NO_DUMP);
    #[cfg(any(test, feature = "test-hooks"))]
    if trial.drop_capabilities && crate::child::sys::clear_capabilities().is_err() {
        return 127;
    }
    let mapped = map(trial);
    let mounted = mount();
    match (mounted, mapped) {
        (Err(errno), _) => errno & 0x7f,
        (Ok(()), Err(errno)) => MAP | errno & 0x7f,
        (Ok(()), Ok(())) => 0,
    }
}

fn map(trial: &Trial) -> Result<(), i32> {
    write(c"/proc/self/setgroups", b"deny")?;
    write(c"/proc/self/uid_map", &trial.uid_map)?;
    write(c"/proc/self/gid_map", &trial.gid_map)
}

/// A file system that nobody sees: nothing mounted in a mount namespace of another user namespace reaches the one
/// it was copied from (mount_namespaces(7)), and the first call says so once more.
fn mount() -> Result<(), i32> {
    mount_call(c"none", None, libc::MS_REC | libc::MS_PRIVATE)?;
    mount_call(c"tmpfs", Some(c"tmpfs"), 0)
}

fn mount_call(source: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> Result<(), i32> {
    // SAFETY: the strings are terminated and live; a null type and null data are allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount,
            source.as_ptr(),
            c"/".as_ptr(),
            kind.map_or(ptr::null(), CStr::as_ptr),
            flags,
            ptr::null::<libc::c_void>(),
        )
    };
    answer(result).map(drop)
}

fn write(path: &CStr, text: &[u8]) -> Result<(), i32> {
    // SAFETY: `path` is terminated and live.
    let file = answer(unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        )
    })?;
    // The descriptor table is the child's own copy and goes with it.
    // SAFETY: `text` is live for its length.
    answer(unsafe { libc::syscall(libc::SYS_write, file, text.as_ptr(), text.len()) }).map(drop)
}

fn answer(result: libc::c_long) -> Result<libc::c_long, i32> {
    if result < 0 {
        // A number that is kept inline: nothing is allocated.
        Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO))
    } else {
        Ok(result)
    }
}
