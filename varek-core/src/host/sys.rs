//! Questions to the kernel that rustix does not ask, and the removal of SysV IPC objects, one system
//! call a function. None of them changes the calling process, except what the tests use.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _};
use std::ptr;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// `seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &action)` (Linux 4.14)
///
/// # References
///
/// seccomp(2).
pub(crate) fn seccomp_action(action: u32) -> io::Result<()> {
    // SAFETY: the kernel reads the four bytes of `action`, which lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_GET_ACTION_AVAIL),
            0 as libc::c_ulong,
            ptr::from_ref(&action),
        )
    };
    check(result).map(drop)
}

/// `seccomp(SECCOMP_SET_MODE_FILTER, flags, NULL)`: never installs anything. `EFAULT` says that the
/// kernel knows the flags and went on to read the program.
///
/// # References
///
/// seccomp(2).
pub(crate) fn seccomp_flags(flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: a null program is a documented error (EFAULT) and nothing is read or installed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            ptr::null::<libc::c_void>(),
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// `seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &allow_everything)` with
/// no_new_privs, for the calling thread alone and for its life: `EBUSY` where an outer filter has a
/// listener already, of which a thread can have one only.
///
/// # References
///
/// seccomp_unotify(2).
pub(crate) fn claim_listener() -> io::Result<()> {
    let allow = libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: ptr::from_ref(&allow).cast_mut(),
    };
    // SAFETY: takes numbers; the attribute is this thread's.
    check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` is one live instruction, which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            ptr::from_ref(&program),
        )
    };
    let listener = check(result)?;
    let listener = i32::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: the descriptor was made a moment ago for this function alone.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(listener) });
    Ok(())
}

/// `setgroups(65537, NULL)`, by the kernel's call: never changes anything. The kernel looks at the permission first,
/// and then refuses a number above NGROUPS_MAX with `EINVAL`.
///
/// # References
///
/// setgroups(2).
pub(crate) fn setgroups_allowed() -> io::Result<()> {
    const ABOVE_NGROUPS_MAX: libc::size_t = 65_537;
    // SAFETY: the kernel refuses the number before it reads the null list.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setgroups,
            ABOVE_NGROUPS_MAX,
            ptr::null::<libc::c_void>(),
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// `landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION)`: the ABI version, from 1.
///
/// # References
///
/// landlock_create_ruleset(2).
pub(crate) fn landlock_abi() -> io::Result<u32> {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag a null attribute of size 0 is what the manual page demands.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<libc::c_void>(),
            0 as libc::size_t,
            VERSION,
        )
    };
    check(result).map(|version| u32::try_from(version).unwrap_or(0))
}

/// `landlock_restrict_self(ruleset, 0)`, of the calling thread and for good.
///
/// # References
///
/// landlock_restrict_self(2).
#[cfg(test)]
pub(crate) fn landlock_restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a borrowed descriptor is open, and the call takes no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_restrict_self,
            libc::c_long::from(ruleset.as_raw_fd()),
            0 as libc::c_ulong,
        )
    };
    check(result).map(drop)
}

/// `clone3(NULL, 0)`: never makes a process. `EINVAL` (the size is too small) says that the call exists
/// and that no outer filter refuses it.
///
/// # References
///
/// clone3(2).
pub(crate) fn clone3_exists() -> io::Result<()> {
    // SAFETY: the kernel refuses a size of 0 before it reads the pointer or makes a process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            ptr::null::<libc::c_void>(),
            0 as libc::size_t,
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// `ioctl(pidfd, PIDFD_GET_INFO, &info)` for the mask of what it knows (Linux 6.13); with the exit status
/// from 6.15.
///
/// # References
///
/// `include/uapi/linux/pidfd.h`.
pub(crate) fn pidfd_info(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    /// `struct pidfd_info`, its first version, 64 bytes.
    #[repr(C)]
    struct Info([u64; 8]);
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    let mut info = Info([0; 8]);
    // SAFETY: `info` has the size that the request number names, which is all that the kernel writes.
    let result = unsafe {
        libc::ioctl(
            pidfd.as_raw_fd(),
            PIDFD_GET_INFO as _,
            ptr::from_mut(&mut info),
        )
    };
    check(result.into()).map(drop)
}

/// `sigaction(SIGCHLD, NULL, &old)`: whether the kernel discards the status of every child, because the
/// signal is ignored or has `SA_NOCLDWAIT`.
///
/// # References
///
/// sigaction(2), wait(2) under NOTES.
pub(crate) fn sigchld_discards() -> io::Result<bool> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null `act` changes nothing, and `old` is writable and large enough.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), old.as_mut_ptr()) };
    check(result.into())?;
    // SAFETY: all zeroes are a valid value of this plain struct, and the kernel filled it in.
    let old = unsafe { old.assume_init() };
    Ok(old.sa_sigaction == libc::SIG_IGN || old.sa_flags & libc::SA_NOCLDWAIT != 0)
}

/// `sysconf(_SC_PAGESIZE)`: bytes of a page, as the kernel told the program at its start. rustix asks again, and
/// before Linux 6.4 cannot without `/proc`.
///
/// # References
///
/// sysconf(3).
pub(crate) fn page_size() -> usize {
    // SAFETY: takes a number and reads what the C library keeps.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// `shmctl(id, IPC_RMID, NULL)`
///
/// # References
///
/// shmctl(2).
pub(crate) fn remove_shared_memory(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID uses no buffer. Mappings of this process stay valid until they are detached.
    check(unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) }.into()).map(drop)
}

/// `semctl(id, 0, IPC_RMID)`
///
/// # References
///
/// semctl(2).
pub(crate) fn remove_semaphores(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no fourth argument and touches no memory.
    check(unsafe { libc::semctl(id, 0, libc::IPC_RMID) }.into()).map(drop)
}

/// `msgctl(id, IPC_RMID, NULL)`
///
/// # References
///
/// msgctl(2).
pub(crate) fn remove_messages(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID uses no buffer.
    check(unsafe { libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()) }.into()).map(drop)
}

/// `shmget(IPC_PRIVATE, 4096, 0600)`, for the tests.
#[cfg(test)]
pub(crate) fn make_shared_memory() -> io::Result<i32> {
    // SAFETY: the call takes no pointer and maps nothing.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) };
    check(id.into()).map(|_| id)
}

/// `shmctl(id, IPC_SET, &ds)` to the owner `uid`, for the tests.
#[cfg(test)]
pub(crate) fn give_shared_memory(id: i32, uid: u32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid value of this plain struct.
    let mut ds: libc::shmid_ds = unsafe { MaybeUninit::zeroed().assume_init() };
    ds.shm_perm.uid = uid;
    ds.shm_perm.gid = uid;
    ds.shm_perm.mode = 0o600;
    // SAFETY: `ds` is a whole `struct shmid_ds`, which the kernel only reads.
    check(unsafe { libc::shmctl(id, libc::IPC_SET, ptr::from_mut(&mut ds)) }.into()).map(drop)
}
