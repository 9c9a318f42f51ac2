//! The clone that makes the child, by the calls that hosts have for it.
//!
//! The rules of [`super::super::sys`] hold here too. The C library has no such call: it cannot come back on
//! a stack of the child's own.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "registers carry numbers of every width; both architectures have 64-bit ones"
)]

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};

use super::super::namespaces::{ReaperSetup, prepare_reaper};
use super::super::sys::{Errno, exit, outcome};
use super::super::{Mounts, Setup};

// The same on both architectures.
const CLONE3: usize = 435;
#[cfg(target_arch = "x86_64")]
const CLONE: usize = 56;
#[cfg(target_arch = "aarch64")]
const CLONE: usize = 220;

/// `struct clone_args` (clone(2)), the version of Linux 5.7 with `cgroup`.
#[repr(C, align(8))]
#[derive(Debug, Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The size of the first version, which ends with `tls`.
const CLONE_ARGS_SIZE_VER0: usize = 64;

const CLONE_VM: u64 = 0x100;
const CLONE_FILES: u64 = 0x400;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: u64 = 17;

/// The call by which a child is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// clone3(2) into the cgroup2 group of this directory.
    IntoGroup(i32),
    /// clone3(2); the child joins its group.
    Clone3,
    /// clone(2); the child joins its group. Handlers are inherited, but no signal is let in before
    /// they are reset.
    Clone,
}

/// Makes the child, which runs [`super::super::prepare`] on a stack of its own and never returns here. Gives its pid;
/// the kernel stores its pidfd before it runs.
///
/// The calling thread is suspended until the child has called execve or is gone. It has blocked all signals.
///
/// # References
///
/// clone(2), vfork(2).
pub(crate) fn clone_vfork(
    stack: &mut [u8],
    pidfd: &AtomicI32,
    way: Way,
    setup: &Setup<'_>,
) -> Result<u32, Errno> {
    // SAFETY: `entry` takes a pointer to a `Setup`, and this one outlives the call.
    unsafe {
        create(
            stack,
            pidfd,
            way,
            (0, SIGCHLD),
            entry,
            ptr::from_ref(setup).cast(),
        )
    }
}

/// As [`clone_vfork`], of a child that ends at once, and that nobody is sent a signal for: to be waited for
/// with `__WALL`.
pub(crate) fn clone_trial(stack: &mut [u8], pidfd: &AtomicI32, way: Way) -> Result<u32, Errno> {
    // SAFETY: `end` does not look at its argument.
    unsafe { create(stack, pidfd, way, (0, 0), end, ptr::null()) }
}

/// Mounts to try, and what comes of it.
pub(crate) struct MountTrial<'a> {
    pub(crate) mounts: Mounts<'a>,
    /// 0 where all of it works; -1 before it was tried.
    pub(crate) errno: AtomicI32,
}

/// As [`clone_trial`], of a child that makes these mounts before it ends.
pub(crate) fn clone_mounts(
    stack: &mut [u8],
    pidfd: &AtomicI32,
    way: Way,
    trial: &MountTrial<'_>,
) -> Result<u32, Errno> {
    // SAFETY: `mount` takes a pointer to a `MountTrial`, and this one outlives the call.
    unsafe {
        create(
            stack,
            pidfd,
            way,
            (0, 0),
            mount,
            ptr::from_ref(trial).cast(),
        )
    }
}

/// As [`clone_vfork`], of a child that runs [`prepare_reaper`] in namespaces of its own.
pub(crate) fn clone_reaper(
    stack: &mut [u8],
    pidfd: &AtomicI32,
    way: Way,
    setup: &ReaperSetup<'_>,
) -> Result<u32, Errno> {
    // SAFETY: `reaper` takes a pointer to a `ReaperSetup`, and this one outlives the call.
    unsafe {
        create(
            stack,
            pidfd,
            way,
            (setup.kinds, SIGCHLD),
            reaper,
            ptr::from_ref(setup).cast(),
        )
    }
}

/// `CLONE_VM | CLONE_VFORK`, by the call of `way`, with more flags and with this signal at the child's end.
///
/// # Safety
///
/// `argument` is what `entry` takes, and lives until the call returns.
unsafe fn create(
    stack: &mut [u8],
    pidfd: &AtomicI32,
    way: Way,
    (more, exit_signal): (u64, u64),
    entry: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> Result<u32, Errno> {
    // The ABI wants the stack's end on 16 bytes; clone3 puts the pointer to stack + stack_size.
    let start = stack.as_mut_ptr().expose_provenance();
    let end = (start + stack.len()) & !15;
    let pidfd = pidfd.as_ptr().expose_provenance();
    let flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_PIDFD | more;
    let mut arguments = CloneArguments {
        flags: flags | CLONE_CLEAR_SIGHAND,
        pidfd: pidfd as u64,
        exit_signal,
        stack: start as u64,
        stack_size: (end - start) as u64,
        ..CloneArguments::default()
    };
    // What takes no group is told the size of the first version: an outer filter can tell the two apart.
    let mut size = CLONE_ARGS_SIZE_VER0;
    if let Way::IntoGroup(directory) = way {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(directory.unsigned_abs());
        size = size_of::<CloneArguments>();
    }
    let (number, registers) = match way {
        Way::IntoGroup(_) | Way::Clone3 => {
            let arguments = ptr::from_ref(&arguments).expose_provenance();
            (CLONE3, [arguments, size, 0, 0, 0])
        }
        // The signal is in the low byte, and the pidfd is stored where parent_tid points to. The last two
        // (child_tid and tls) are in another order on aarch64; both are unused.
        Way::Clone => {
            let flags = (flags | exit_signal) as usize;
            (CLONE, [flags, end, pidfd, 0, 0])
        }
    };
    // SAFETY: the registers describe a live stack that nobody else uses; CLONE_VFORK suspends this thread until
    // the child no longer shares the memory, so `stack`, `pidfd` and `argument` outlive the child's use of
    // them. The caller has blocked all signals, so no handler runs on the child's stack.
    let result = unsafe { clone(number, registers, entry, argument) };
    outcome(result).map(|pid| pid as u32)
}

/// clone3(2) or clone(2): parent and child come out of the same call.
///
/// # Safety
///
/// The registers are valid for the call, ask for a child on a stack of its own, and `entry` takes `argument`.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(
    number: usize,
    registers: [usize; 5],
    entry: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let [first, second, third, fourth, fifth] = registers;
    let result: isize;
    // SAFETY: parent and child leave the instruction with the same registers but for rax and rsp. The
    // child never reaches the end of the block: `entry` does not return. r12 and r13 survive the call.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// clone3(2) or clone(2): parent and child come out of the same call.
///
/// # Safety
///
/// The registers are valid for the call, ask for a child on a stack of its own, and `entry` takes `argument`.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(
    number: usize,
    registers: [usize; 5],
    entry: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let [first, second, third, fourth, fifth] = registers;
    let result: isize;
    // SAFETY: parent and child leave the instruction with the same registers but for x0 and sp. The
    // child never reaches the end of the block: `entry` does not return. x20 and x21 survive the call.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            in("x8") number,
            inlateout("x0") first as isize => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x20") entry,
            in("x21") argument,
            lateout("x30") _,
        );
    }
    result
}

/// The first and last instructions of a child that is made to see whether it can be.
extern "C" fn end(_: *const c_void) -> ! {
    exit(0)
}

extern "C" fn mount(trial: *const c_void) -> ! {
    // SAFETY: `clone_mounts` passes a pointer to a `MountTrial` that lives until this child is gone.
    let trial = unsafe { &*trial.cast::<MountTrial<'_>>() };
    let errno = trial.mounts.make().err().unwrap_or(0);
    trial.errno.store(errno, Ordering::Release);
    exit(0)
}

extern "C" fn reaper(setup: *const c_void) -> ! {
    // SAFETY: `clone_reaper` passes a pointer to a `ReaperSetup` that lives until this child has called execve or is
    // gone.
    let setup = unsafe { &*setup.cast::<ReaperSetup<'_>>() };
    prepare_reaper(setup)
}

/// The child's first instruction in Rust.
extern "C" fn entry(setup: *const c_void) -> ! {
    // SAFETY: `clone_vfork` passes a pointer to a `Setup` that lives until this child has called execve
    // or is gone, and only reads it meanwhile.
    let setup = unsafe { &*setup.cast::<Setup<'_>>() };
    super::super::prepare(setup)
}
