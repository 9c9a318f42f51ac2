//! System calls that rustix does not have: the reporting filter, its notifications, and the handler that passes signals on.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use varek_seccomp::{Action, Instruction, Permit};

/// `struct seccomp_notif` with `struct seccomp_data` in it (seccomp_unotify(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notification {
    pub(super) id: u64,
    pub(super) pid: u32,
    pub(super) flags: u32,
    pub(super) nr: i32,
    pub(super) arch: u32,
    pub(super) instruction_pointer: u64,
    pub(super) args: [u64; 6],
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
const NOTIF_RECV: libc::c_ulong = 0xC050_2100;
const NOTIF_SEND: libc::c_ulong = 0xC018_2101;

const FLAG_CONTINUE: u32 = 1;
/// Only a fatal signal interrupts a call that was received (Linux 5.19). Without it a call is made once more after each signal.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is made (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`, Linux 5.5). What was looked at may have changed by then, so this is no
    /// boundary: it is right here alone, where the program is trusted.
    Continue,
    /// It is not made and fails with this error number.
    Errno(i32),
}

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notification)`; it waits for a notification.
pub(super) fn receive(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // The kernel refuses a buffer that is not zero.
    let mut notification = Notification::default();
    // SAFETY: `notification` has the size and layout that the request number names.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            NOTIF_RECV as _,
            ptr::from_mut(&mut notification),
        )
    };
    check(result.into()).map(|_| notification)
}

/// `ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response)`.
pub(super) fn answer(listener: BorrowedFd<'_>, id: u64, reply: Reply) -> io::Result<()> {
    let (error, flags) = match reply {
        Reply::Continue => (0, FLAG_CONTINUE),
        Reply::Errno(errno) => (-errno, 0),
    };
    let response = Response {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: `response` has the size and layout that the request number names.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            NOTIF_SEND as _,
            ptr::from_ref(&response),
        )
    };
    check(result.into()).map(drop)
}

/// Makes the command's process report every call from its own exec on, and send the listener through `channel` before that.
pub(super) fn report_calls(command: &mut Command, channel: std::os::unix::net::UnixStream) {
    let permit = Permit::random();
    let body = move || {
        let words = match &permit {
            Ok(permit) => permit.words(),
            Err(error) => return Err(error.kind().into()),
        };
        let listener = install(&filter(words))?;
        send(channel.as_raw_fd(), listener, words)
    };
    // SAFETY: after fork `body` makes system calls and keeps what it needs on the stack; it allocates and locks nothing.
    unsafe { command.pre_exec(body) };
}

/// Every call is notified but the one `sendmsg` that has the permit in the registers that it does not use: until the listener has
/// been sent nobody can answer.
fn filter([first, second, third]: [u64; 3]) -> [Instruction; 10] {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, k, jf| Instruction { code, jt: 0, jf, k };
    // Offsets in struct seccomp_data: the number, and the low halves of the fourth to the sixth argument.
    let low = |word: u64| (word & 0xffff_ffff).try_into().unwrap_or(u32::MAX);
    let sendmsg = u32::try_from(libc::SYS_sendmsg).unwrap_or(u32::MAX);
    [
        step(LOAD, 0, 0),
        step(EQUAL, sendmsg, 7),
        step(LOAD, 40, 0),
        step(EQUAL, low(first), 5),
        step(LOAD, 48, 0),
        step(EQUAL, low(second), 3),
        step(LOAD, 56, 0),
        step(EQUAL, low(third), 1),
        step(RETURN, Action::Allow.to_return_value(), 0),
        step(RETURN, Action::UserNotif.to_return_value(), 0),
    ]
}

/// `prctl(PR_SET_NO_NEW_PRIVS, 1)` and `seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER)`; gives the listener.
fn install(filter: &[Instruction; 10]) -> io::Result<RawFd> {
    // SAFETY: changes an attribute of the calling thread; no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    let program = libc::sock_fprog {
        len: 10,
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let with = |flags: libc::c_ulong| {
        // SAFETY: `program` names live instructions in the layout of `sock_filter`, which the kernel copies.
        check(unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                flags,
                &raw const program,
            )
        })
    };
    let listener = with(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE).or_else(
        |error| match error.raw_os_error() {
            Some(libc::EINVAL) => with(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER),
            _ => Err(error),
        },
    )?;
    RawFd::try_from(listener).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// `struct cmsghdr` with one descriptor, as `SCM_RIGHTS` has it (cmsg(3), unix(7)).
#[repr(C)]
struct Passed {
    length: usize,
    level: i32,
    kind: i32,
    descriptor: RawFd,
    padding: i32,
}

/// The kernel's `struct user_msghdr`.
#[repr(C)]
struct Message {
    name: *const u8,
    name_length: i32,
    vector: *const libc::iovec,
    vector_length: usize,
    control: *const Passed,
    control_length: usize,
    flags: u32,
}

/// `sendmsg(channel, &message, 0)` with the permit.
fn send(channel: RawFd, descriptor: RawFd, words: [u64; 3]) -> io::Result<()> {
    let byte = 0_u8;
    let vector = libc::iovec {
        iov_base: ptr::from_ref(&byte).cast_mut().cast(),
        iov_len: 1,
    };
    let passed = Passed {
        length: size_of::<Passed>() - size_of::<i32>(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptor,
        padding: 0,
    };
    let message = Message {
        name: ptr::null(),
        name_length: 0,
        vector: &raw const vector,
        vector_length: 1,
        control: &raw const passed,
        control_length: size_of::<Passed>(),
        flags: 0,
    };
    let [first, second, third] = words;
    // SAFETY: the message and what it points to live on this stack and have the kernel's layout.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sendmsg,
            libc::c_long::from(channel),
            &raw const message,
            0 as libc::c_long,
            first,
            second,
            third,
        )
    };
    check(result).map(drop)
}

/// The program that signals are passed on to; 0 before it has started and after it has ended.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Passes the signals that end a program on to this one. What a terminal sends the program gets by itself.
pub(super) fn forward_signals(program: i32) -> io::Result<()> {
    PROGRAM.store(program, Ordering::SeqCst);
    let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
    signals.into_iter().try_for_each(handle)
}

/// The program has ended: from here on a signal is for this process.
pub(super) fn program_ended() {
    PROGRAM.store(0, Ordering::SeqCst);
}

/// Whether a signal came after the program had ended.
pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// `sigaction(2)` without `SA_RESTART`; what is ignored stays ignored (nohup(1)).
fn handle(signal: i32) -> io::Result<()> {
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer changes nothing, and `old` is valid for the write.
    let result = unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) };
    check(result.into())?;
    // SAFETY: zeroes are a valid sigaction, which the call above has overwritten.
    let mut action = unsafe { old.assume_init() };
    if action.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    let handler: extern "C" fn(i32, *const libc::siginfo_t, *const libc::c_void) = on_signal;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes one system call and touches atomics alone.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(result.into()).map(drop)
}

extern "C" fn on_signal(signal: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
    let program = PROGRAM.load(Ordering::SeqCst);
    if program == 0 {
        INTERRUPTED.store(true, Ordering::SeqCst);
        return;
    }
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // What the kernel sends for a terminal has a positive code, and went to the whole foreground.
    if code <= 0 {
        // SAFETY: takes numbers; the pid is that of a child that has not been waited for.
        unsafe { libc::kill(program, signal) };
    }
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
