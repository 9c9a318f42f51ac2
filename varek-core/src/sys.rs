//! System calls of the embedder's side that rustix does not have, one thin function each.

use std::ffi::{CString, c_char};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::child::sys::Pointers;

/// `struct seccomp_notif` with `struct seccomp_data` in it (seccomp_unotify(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notification {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    flags: u32,
    pub(crate) nr: i32,
    pub(crate) arch: u32,
    pub(crate) instruction_pointer: u64,
    pub(crate) args: [u64; 6],
}

/// `struct seccomp_notif_resp` (seccomp_unotify(2)).
#[repr(C)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

// _IOWR('!', 0, struct seccomp_notif) and _IOWR('!', 1, struct seccomp_notif_resp).
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xC050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xC018_2101;

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notification)`. Call it only after poll(2) said that
/// there is one, or it blocks.
///
/// # References
///
/// seccomp_unotify(2).
pub(crate) fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // The kernel refuses a buffer that is not zero.
    let mut notification = Notification::default();
    // SAFETY: `notification` has the size and layout that the request number names.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            SECCOMP_IOCTL_NOTIF_RECV as _,
            ptr::from_mut(&mut notification),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(notification)
    }
}

// _IOW('!', 2, __u64)
const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::c_ulong = 0x4008_2102;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response)`: the call fails with this error number, or for 0 succeeds
/// with the result 0, without having been made.
///
/// # References
///
/// seccomp_unotify(2).
pub(crate) fn answer_call(listener: BorrowedFd<'_>, id: u64, errno: i32) -> io::Result<()> {
    respond(
        listener,
        &Response {
            id,
            val: 0,
            error: -errno,
            flags: 0,
        },
    )
}

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response)` with the flag that lets the call go on. Only for calls that
/// are harmless whatever happens to memory between the look and the call.
///
/// # References
///
/// seccomp_unotify(2).
pub(crate) fn continue_call(listener: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    respond(
        listener,
        &Response {
            id,
            val: 0,
            error: 0,
            flags: SECCOMP_USER_NOTIF_FLAG_CONTINUE,
        },
    )
}

fn respond(listener: BorrowedFd<'_>, response: &Response) -> io::Result<()> {
    // SAFETY: `response` has the size and layout that the request number names.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            SECCOMP_IOCTL_NOTIF_SEND as _,
            ptr::from_ref(response),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id)`: whether the caller still waits for this answer.
///
/// # References
///
/// seccomp_unotify(2).
pub(crate) fn call_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads the eight bytes of `id`.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            SECCOMP_IOCTL_NOTIF_ID_VALID as _,
            ptr::from_ref(&id),
        )
    };
    result == 0
}

/// `close_range(fd + 1, ~0, CLOSE_RANGE_UNSHARE)` and `close_range(0, fd - 1, 0)`: gives the calling thread a table of
/// descriptors of its own, in which there is a copy of this one and nothing else.
///
/// The thread must not drop anything that owns a descriptor of the process after this: it would not be closed there.
///
/// # References
///
/// close_range(2), Linux 5.9.
pub(crate) fn keep_only(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let number = descriptor.as_raw_fd().cast_unsigned();
    let close = |first: u32, last: u32, flags: u32| {
        // SAFETY: takes numbers. The first of the calls gives this thread its own table, so that none of them closes a
        // descriptor of another thread's.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    close(number + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    // SAFETY: in the table that this thread has had since the line above nothing else owns this number.
    let kept = unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) };
    if let Some(last) = number.checked_sub(1) {
        close(0, last, 0)?;
    }
    Ok(kept)
}

/// `process_vm_readv(thread, &local, 1, remote, 2, 0)`: what is at this address in another process, as far as there is
/// memory that it may read itself. It can take as long as the file or the swap behind that memory.
///
/// # References
///
/// process_vm_readv(2). A part that ends at a page's end is read or not as a whole, so that each page is one.
pub(crate) fn read_memory(thread: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let fault = || io::Error::from_raw_os_error(libc::EFAULT);
    let start = usize::try_from(address).map_err(|_| fault())?;
    let page = crate::host::sys::page_size();
    let first = buffer.len().min(page - start % page);
    let next = start.checked_add(first).ok_or_else(fault)?;
    let part = |start, length| libc::iovec {
        iov_base: ptr::without_provenance_mut(start),
        iov_len: length,
    };
    let remote = [
        part(start, first),
        part(next, (buffer.len() - first).min(page)),
    ];
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: the kernel writes into `buffer` alone, at most its length; the other addresses are of another process and
    // only looked up there.
    let result = unsafe {
        libc::process_vm_readv(
            thread.cast_signed(),
            ptr::from_ref(&local),
            1,
            remote.as_ptr(),
            2,
            0,
        )
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// `pidfd_send_signal(pidfd, signal, NULL, 0)` with any number of a signal, 0 included.
///
/// # References
///
/// pidfd_send_signal(2).
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is what kill(2) would make of it; the kernel touches no memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `ioctl(pidfd, PIDFD_GET_INFO, &info)` with `PIDFD_INFO_EXIT` (Linux 6.15): the wait status of a
/// process that somebody else has reaped. `None` where the kernel does not tell.
///
/// # References
///
/// `include/uapi/linux/pidfd.h`.
pub(crate) fn reaped_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// `struct pidfd_info`, its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroupid: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    let mut info = Info {
        mask: PIDFD_INFO_EXIT,
        ..Info::default()
    };
    // SAFETY: `info` has the size and layout that the request number names.
    let result = unsafe {
        libc::ioctl(
            pidfd.as_raw_fd(),
            PIDFD_GET_INFO as _,
            ptr::from_mut(&mut info),
        )
    };
    (result >= 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// A descriptor that the child opened in the shared table for the embedder.
///
/// The caller passes each number that a child published exactly once.
pub(crate) fn adopt_descriptor(number: RawFd) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the child made this descriptor in the shared table and published its number; nothing
    // else owns it, and the spawner takes each number once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A descriptor by its number, for as long as a call takes.
///
/// The caller has just seen the number in this process's table; a number that is closed meanwhile gives
/// EBADF or POLLNVAL and no harm.
pub(crate) fn borrow_descriptor(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the number is of an open descriptor (not -1), and no call that is made with it touches memory.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Arguments or environment as execve takes them: an array of pointers, the last one null.
#[derive(Debug)]
pub(crate) struct ExecArray<'a> {
    pointers: Vec<*const c_char>,
    strings: PhantomData<&'a [CString]>,
}

impl<'a> ExecArray<'a> {
    pub(crate) fn new(strings: &'a [CString]) -> Self {
        let pointers = strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([ptr::null()])
            .collect();
        Self {
            pointers,
            strings: PhantomData,
        }
    }

    pub(crate) fn pointers(&self) -> Pointers<'_> {
        // SAFETY: `new` made the pointers from strings that are borrowed for as long as this value, and
        // put a null behind them.
        unsafe { Pointers::new(&self.pointers) }
    }
}

/// A stack for a child: anonymous memory with an inaccessible page below it.
#[derive(Debug)]
pub(crate) struct Stack {
    mapping: *mut libc::c_void,
    size: usize,
    guard: usize,
}

impl Stack {
    /// 64 KiB of stack.
    ///
    /// # References
    ///
    /// mmap(2).
    pub(crate) fn new() -> io::Result<Self> {
        let guard = crate::host::sys::page_size();
        let size = guard + 64 * 1024;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping touches no other memory.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self {
            mapping,
            size,
            guard,
        };
        // SAFETY: the first page of a mapping that this value owns.
        if unsafe { libc::mprotect(mapping, guard, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// The usable part.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        // SAFETY: the part behind the guard page, inside the mapping that this value owns.
        let start = unsafe { self.mapping.cast::<u8>().add(self.guard) };
        // SAFETY: initialized (zero) memory of this size, borrowed with the value.
        unsafe { std::slice::from_raw_parts_mut(start, self.size - self.guard) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping that this value owns, once.
        unsafe { libc::munmap(self.mapping, self.size) };
    }
}

/// Blocks every signal in this thread that the C library lets be blocked. It keeps two of its own open,
/// by which setuid(2) reaches every thread of the embedder.
///
/// # References
///
/// pthread_sigmask(3), nptl(7).
pub(crate) fn block_signals() -> SignalMask {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initializes the set it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: it was initialized a line above.
    let all = unsafe { all.assume_init() };
    set_signals(&SignalMask(all))
}

/// The signals that a thread blocks.
pub(crate) struct SignalMask(libc::sigset_t);

/// Blocks these signals in this thread, and no others; gives those that were blocked.
///
/// # References
///
/// pthread_sigmask(3).
pub(crate) fn set_signals(mask: &SignalMask) -> SignalMask {
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both are whole sets, the first initialized; the mask is this thread's own.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, old.as_mut_ptr()) };
    // SAFETY: all zeroes are a valid value of this plain struct, and the call fills it in.
    SignalMask(unsafe { old.assume_init() })
}

/// The CPUs of the machine, whether or not this process may use them now; at least 1.
///
/// # References
///
/// sysconf(3), `_SC_NPROCESSORS_CONF`.
pub(crate) fn configured_cpus() -> usize {
    // SAFETY: takes a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Bytes of [`guardian_entry`], its padding included.
const GUARDIAN_SIZE: usize = 192;

/// The guardian's program. It never runs in this process: its bytes become a program of its own.
///
/// It closes every descriptor but 0, 1 and 2, blocks every signal, so that what is sent to all processes of a service
/// does not end it before the embedder, takes its first argument for its name, reads a byte from 0, and if there is none
/// because the last writer is gone, writes `1` to 2 and then to 1.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn guardian_entry() -> ! {
    core::arch::naked_asm!(
        "2:",
        "mov eax, 436", // close_range(3, ~0, 0)
        "mov edi, 3",
        "mov esi, -1",
        "xor edx, edx",
        "syscall",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, all, NULL, 8)
        "mov edi, 2",
        "lea rsi, [rip + 6f]",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov eax, 157", // prctl(PR_SET_NAME, argv[0])
        "mov edi, 15",
        "mov rsi, [rsp + 8]",
        "syscall",
        "3:",
        "xor eax, eax", // read(0, stack, 1)
        "xor edi, edi",
        "lea rsi, [rsp - 8]",
        "mov edx, 1",
        "syscall",
        "test rax, rax",
        "jg 4f", // a byte: the sandbox was closed in good order
        "cmp rax, -4",
        "je 3b", // EINTR
        "mov eax, 1", // write(2, "1", 1)
        "mov edi, 2",
        "lea rsi, [rip + 5f]",
        "mov edx, 1",
        "syscall",
        "mov eax, 1", // write(1, "1", 1)
        "mov edi, 1",
        "syscall",
        "4:",
        "mov eax, 231", // exit_group(0)
        "xor edi, edi",
        "syscall",
        "ud2",
        "5:",
        ".ascii \"1\"",
        "6:",
        ".byte 255, 255, 255, 255, 255, 255, 255, 255",
        ".skip {size} - (. - 2b)",
        size = const GUARDIAN_SIZE,
    )
}

/// The guardian's program. It never runs in this process: its bytes become a program of its own.
///
/// It closes every descriptor but 0, 1 and 2, blocks every signal, so that what is sent to all processes of a service
/// does not end it before the embedder, takes its first argument for its name, reads a byte from 0, and if there is none
/// because the last writer is gone, writes `1` to 2 and then to 1.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn guardian_entry() -> ! {
    core::arch::naked_asm!(
        "2:",
        "mov x8, #436", // close_range(3, ~0, 0)
        "mov x0, #3",
        "mov w1, #-1",
        "mov x2, #0",
        "svc #0",
        "mov x8, #135", // rt_sigprocmask(SIG_SETMASK, all, NULL, 8)
        "mov x0, #2",
        "adr x1, 6f",
        "mov x2, #0",
        "mov x3, #8",
        "svc #0",
        "mov x8, #167", // prctl(PR_SET_NAME, argv[0])
        "mov x0, #15",
        "ldr x1, [sp, #8]",
        "svc #0",
        "3:",
        "mov x8, #63", // read(0, stack, 1)
        "mov x0, #0",
        "sub x1, sp, #16",
        "mov x2, #1",
        "svc #0",
        "cmp x0, #0",
        "b.gt 4f", // a byte: the sandbox was closed in good order
        "cmn x0, #4",
        "b.eq 3b", // EINTR
        "mov x8, #64", // write(2, "1", 1)
        "mov x0, #2",
        "adr x1, 5f",
        "mov x2, #1",
        "svc #0",
        "mov x0, #1", // write(1, "1", 1)
        "svc #0",
        "4:",
        "mov x8, #94", // exit_group(0)
        "mov x0, #0",
        "svc #0",
        "brk #1",
        "5:",
        ".ascii \"1\"",
        "6:",
        ".byte 255, 255, 255, 255, 255, 255, 255, 255",
        ".skip {size} - (. - 2b)",
        size = const GUARDIAN_SIZE,
    )
}

/// The bytes of the guardian's program; they run at any address.
pub(crate) fn guardian_code() -> &'static [u8] {
    let entry: unsafe extern "C" fn() -> ! = guardian_entry;
    // SAFETY: the naked function is exactly GUARDIAN_SIZE bytes of this program's text, which is
    // readable and never changes.
    unsafe { std::slice::from_raw_parts(entry as *const u8, GUARDIAN_SIZE) }
}
