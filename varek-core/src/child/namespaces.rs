//! Namespaces of a run: what its reaper makes, and what the child enters.
//!
//! The rules of [`super`] hold here too. The reaper's start has no filter and no group of the run: what it publishes
//! is a mount of procfs, for a moment it has two descriptors more in the embedder's table.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering};

use super::sys::{self as calls, Errno, Pointers};

#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
pub(crate) mod sys;

/// What a child enters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Namespaces {
    /// The reaper's pidfd, and those of its namespaces (`CLONE_NEW*`) that the child enters itself.
    pub(crate) reaper: Option<(i32, u64)>,
    /// A view of groups of its own.
    pub(crate) groups: bool,
    /// The descriptor of a user namespace.
    pub(crate) user: Option<i32>,
}

impl Namespaces {
    /// All but the user namespace, in which the child could not do the rest of its set-up.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        if let Some((reaper, kinds)) = self.reaper
            && kinds != 0
        {
            sys::enter(reaper, kinds)?;
        }
        if self.groups {
            sys::unshare_groups()?;
        }
        Ok(())
    }

    /// The user namespace: with every capability in it, to be given up next.
    pub(super) fn enter_user(&self) -> Result<(), Errno> {
        self.user
            .map_or(Ok(()), |user| sys::enter(user, sys::CLONE_NEWUSER))
    }
}

/// The steps of a reaper's start by number.
pub(crate) mod reaper_step {
    pub(crate) const SIGNALS: i32 = 1;
    pub(crate) const HOST_NAME: i32 = 2;
    pub(crate) const LOOPBACK: i32 = 3;
    pub(crate) const PROCESS_FILES: i32 = 4;
    pub(crate) const CAPABILITIES: i32 = 5;
    pub(crate) const DESCRIPTORS: i32 = 6;
    pub(crate) const EXEC: i32 = 7;
}

/// What a reaper's start needs and reports. Descriptors are numbers of the embedder's table, all over 2.
pub(crate) struct ReaperSetup<'a> {
    /// `CLONE_NEW*` of the clone.
    pub(crate) kinds: u64,
    /// The new procfs shows processes alone.
    pub(crate) only_processes: bool,
    /// The end that the reaper reads.
    pub(crate) lifeline: i32,
    pub(crate) null: i32,
    pub(crate) program: &'a CStr,
    pub(crate) arguments: Pointers<'a>,
    pub(crate) environment: Pointers<'a>,
    /// The step that failed, 0 where none did, and its error.
    pub(crate) step: AtomicI32,
    pub(crate) errno: AtomicI32,
    /// The mount of procfs, a number in the embedder's table; -1 where there is none (yet).
    pub(crate) process_files: AtomicI32,
}

/// Runs every step; ends in the reaper's program or in exit_group. All signals stay blocked.
pub(crate) fn prepare_reaper(setup: &ReaperSetup<'_>) -> ! {
    let Err(errno) = steps(setup);
    setup.errno.store(errno, Ordering::Release);
    calls::exit(127)
}

fn steps(setup: &ReaperSetup<'_>) -> Result<core::convert::Infallible, Errno> {
    use reaper_step as step;
    let enter = |step| setup.step.store(step, Ordering::Release);
    let has = |kind: u64| setup.kinds & kind != 0;
    enter(step::SIGNALS);
    for signal in (1..=64).filter(|signal| !matches!(signal, 9 | 19)) {
        calls::default_disposition(signal)?;
    }
    sys::ignore_children()?;
    calls::setsid()?;
    calls::chdir(c"/")?;
    if has(sys::CLONE_NEWUTS) {
        enter(step::HOST_NAME);
        sys::set_host_name(c"varek")?;
    }
    if has(sys::CLONE_NEWNET) {
        enter(step::LOOPBACK);
        sys::raise_loopback()?;
    }
    if has(sys::CLONE_NEWPID) {
        enter(step::PROCESS_FILES);
        let made = sys::process_files(setup.only_processes)?;
        setup.process_files.store(made, Ordering::Release);
    }
    // It has every right there is in namespaces that a guest is in, and needs none.
    enter(step::CAPABILITIES);
    super::shed_capabilities()?;
    if !has(sys::CLONE_NEWUSER) {
        // There are no groups in a user namespace without a map.
        calls::clear_groups()?;
    }
    calls::clear_capabilities()?;
    calls::no_new_privileges()?;

    enter(step::DESCRIPTORS);
    calls::unshare_descriptors()?;
    calls::dup3(setup.lifeline, 0)?;
    calls::dup3(setup.null, 1)?;
    calls::dup3(setup.null, 2)?;

    enter(step::EXEC);
    // As in a guest's set-up: somebody may still have the program open for writing for a moment.
    let mut tries = 0;
    loop {
        let errno = calls::execve(setup.program, setup.arguments, setup.environment, [0; 3]);
        tries += 1;
        if errno != super::ETXTBSY || tries == 2000 {
            return Err(errno);
        }
    }
}
