//! The child, from its creation to the guest's exec.
//!
//! Rules of this module, which compiles as `#![no_std]` without `alloc` (the crate `varek-no-alloc` is
//! the proof):
//!
//! - The child shares the embedder's memory until execve, and the embedder's other threads go on: no
//!   allocation, no lock, no formatting, no panic, no thread-local storage.
//! - Nothing that acts on the memory map may be called: it is the embedder's.
//! - A child that was not cloned into its cgroup2 group joins it first. Only its parent-death signal is set before: no
//!   kill of a group reaches it yet.
//! - The descriptor table is the embedder's until [`sys::unshare_descriptors`]: before it, the only new
//!   descriptors are `/proc/self` and the listener, which are meant for the embedder.
//! - Once the filter is in, nobody answers a notification until the spawner runs again, so only calls of
//!   the floor follow it: close_range, dup3, prlimit64 on itself, execve with the permit, exit_group.
//! - Credentials clear the parent-death signal, so it is set after them; RLIMIT_NOFILE comes last because
//!   the listener gets a number in the embedder's table.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
pub(crate) mod sys;

pub(crate) mod namespaces;

/// The call that makes the child.
pub(crate) mod clone {
    #[expect(
        unsafe_code,
        reason = "the module of this name is where system calls are made"
    )]
    pub(crate) mod sys;
}

use namespaces::Namespaces;
use sys::{Errno, Pointers, Rlimit};

/// The steps by number, in order; `SetupStep` gives them names.
pub(crate) mod step {
    pub(crate) const GROUPS: u32 = 1;
    pub(crate) const NAMESPACES: u32 = 2;
    pub(crate) const MOUNTS: u32 = 3;
    pub(crate) const SESSION: u32 = 4;
    pub(crate) const SIGNALS: u32 = 5;
    pub(crate) const DIRECTORY: u32 = 6;
    pub(crate) const RLIMITS: u32 = 7;
    pub(crate) const USER_NAMESPACE: u32 = 8;
    pub(crate) const CAPABILITIES: u32 = 9;
    pub(crate) const IDENTITY: u32 = 10;
    pub(crate) const PARENT_DEATH: u32 = 11;
    pub(crate) const NO_NEW_PRIVILEGES: u32 = 12;
    pub(crate) const LANDLOCK: u32 = 13;
    pub(crate) const FILTER: u32 = 14;
    pub(crate) const DESCRIPTORS: u32 = 15;
    pub(crate) const STDIO: u32 = 16;
    pub(crate) const OPEN_FILES: u32 = 17;
    pub(crate) const EXEC: u32 = 18;
    /// For tests: the filter is in, and its listener not published yet.
    #[cfg(feature = "test-hooks")]
    pub(crate) const UNPUBLISHED: u32 = 100;
}

/// What the child reports, in memory that it shares with the embedder.
#[derive(Debug)]
pub(crate) struct Report {
    /// The step that the child is in.
    pub(crate) step: AtomicU32,
    /// The error of that step; 0 where there is none (yet).
    pub(crate) errno: AtomicI32,
    /// The child's pidfd, a number in the embedder's table. The kernel stores it before it is one; it is once the
    /// child is in its first step.
    pub(crate) pidfd: AtomicI32,
    /// The listener, a number in the embedder's table; -1 where there is none (yet).
    pub(crate) listener: AtomicI32,
    /// The child's `/proc` entry, a number in the embedder's table; -1 where there is none (yet).
    pub(crate) own_proc: AtomicI32,
}

impl Report {
    pub(crate) const fn new() -> Self {
        Self {
            step: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            pidfd: AtomicI32::new(-1),
            listener: AtomicI32::new(-1),
            own_proc: AtomicI32::new(-1),
        }
    }
}

/// Everything that the child needs, prepared before the clone. Descriptors are numbers of the
/// embedder's table, all over 2, kept open by the plan until the clone has returned.
pub(crate) struct Setup<'a> {
    pub(crate) report: &'a Report,
    /// `cgroup.procs` files to join, that of the cgroup2 group first where the child is not cloned into it.
    pub(crate) groups: &'a [i32],
    /// The lock that keeps everybody from moving the child while it is on its way into the groups.
    pub(crate) settling: Option<i32>,
    /// Namespaces of the run.
    pub(crate) namespaces: Namespaces,
    /// Mounts of the child's own.
    pub(crate) mounts: Option<Mounts<'a>>,
    pub(crate) directory: Directory<'a>,
    pub(crate) rlimits: &'a [Rlimit],
    /// Whether the embedder may drop bounding capabilities and groups, that is, has CAP_SETPCAP and CAP_SETGID.
    pub(crate) privileged: bool,
    /// uid and gid of the guest's own.
    pub(crate) identity: Option<(u32, u32)>,
    /// The embedder's pid as the child sees it: 0 from a pid namespace of its own.
    pub(crate) parent: u32,
    /// The ruleset, and the rights on the child's own `/proc` entry.
    pub(crate) ruleset: Option<(i32, u64)>,
    pub(crate) filter: &'a [sys::FilterInstruction],
    pub(crate) filter_flags: usize,
    pub(crate) stdio: [i32; 3],
    pub(crate) open_files: Rlimit,
    pub(crate) program: &'a CStr,
    pub(crate) arguments: Pointers<'a>,
    pub(crate) environment: Pointers<'a>,
    pub(crate) permit: [u64; 3],
    /// A step at which to wait for ever; 0 for none.
    #[cfg(feature = "test-hooks")]
    pub(crate) hold_at: u32,
}

/// What a child mounts, in a mount namespace of its own.
#[derive(Clone, Copy)]
pub(crate) struct Mounts<'a> {
    /// A mount that is nowhere, the scratch directory, and where it goes.
    pub(crate) scratch: Option<(i32, &'a CStr)>,
    /// Whether it takes the place of `/dev/shm`, too.
    pub(crate) shared_memory: bool,
    /// A mount that is nowhere, the procfs of the run's pid namespace.
    pub(crate) process_files: Option<i32>,
}

impl Mounts<'_> {
    /// Needs CAP_SYS_ADMIN.
    pub(crate) fn make(&self) -> Result<(), Errno> {
        sys::unshare_mounts()?;
        sys::receive_mounts_only()?;
        if let Some((scratch, path)) = self.scratch {
            sys::attach_mount(scratch, path)?;
            if self.shared_memory {
                sys::bind_mount(path, c"/dev/shm")?;
            }
        }
        self.process_files
            .map_or(Ok(()), |files| sys::attach_mount(files, c"/proc"))
    }
}

/// Where the guest starts.
#[derive(Clone, Copy)]
pub(crate) enum Directory<'a> {
    /// An open directory.
    Open(i32),
    /// A path, for a child with mounts of its own: what the embedder opened is in its own.
    Path(&'a CStr),
}

/// ECHILD of the parent check: the embedder is gone.
const ORPHANED: Errno = 10;
const EPERM: Errno = 1;
const ENOMEM: Errno = 12;
const EINVAL: Errno = 22;
const ENFILE: Errno = 23;
const EMFILE: Errno = 24;
const ETXTBSY: Errno = 26;

/// Runs every step; ends in the guest's program or in exit_group.
pub(crate) fn prepare(setup: &Setup<'_>) -> ! {
    let Err(errno) = steps(setup);
    setup.report.errno.store(errno, Ordering::Release);
    sys::exit(127)
}

fn enter(setup: &Setup<'_>, step: u32) {
    setup.report.step.store(step, Ordering::Release);
    #[cfg(feature = "test-hooks")]
    if setup.hold_at == step {
        loop {
            sys::hold();
        }
    }
}

fn steps(setup: &Setup<'_>) -> Result<core::convert::Infallible, Errno> {
    // For the steps before the credentials change, which clears it.
    sys::die_with_parent()?;
    // Nothing comes before the cgroup2 group.
    enter(setup, step::GROUPS);
    for procs in setup.groups {
        sys::join_group(*procs)?;
    }
    if let Some(lock) = setup.settling {
        sys::unlock(lock)?;
    }

    enter(setup, step::NAMESPACES);
    setup.namespaces.enter()?;

    enter(setup, step::MOUNTS);
    if let Some(mounts) = &setup.mounts {
        mounts.make()?;
    }

    enter(setup, step::SESSION);
    sys::setsid()?;

    enter(setup, step::SIGNALS);
    // A handler is the embedder's code: clone(2) leaves it in place, CLONE_CLEAR_SIGHAND of clone3 does not. An
    // ignored signal stays ignored through both and through exec.
    for signal in (1..=64).filter(|signal| !matches!(signal, 9 | 19)) {
        sys::default_disposition(signal)?;
    }
    sys::signal_mask(0)?;

    enter(setup, step::DIRECTORY);
    match setup.directory {
        Directory::Open(directory) => sys::fchdir(directory)?,
        Directory::Path(path) => sys::chdir(path)?,
    }
    sys::umask(0o077);

    enter(setup, step::RLIMITS);
    for limit in setup.rlimits {
        bound(limit)?;
    }

    // Here, since it takes what the steps above need, and gives what the next one gives up.
    enter(setup, step::USER_NAMESPACE);
    setup.namespaces.enter_user()?;

    // Bounding and ambient sets are inherited empty: see `shed_capabilities`.
    enter(setup, step::CAPABILITIES);
    if setup.privileged && sys::has_bounding_capability(0) {
        shed_capabilities()?;
    }

    enter(setup, step::IDENTITY);
    if setup.privileged {
        sys::clear_groups()?;
    }
    if let Some((uid, gid)) = setup.identity {
        sys::setresgid(gid)?;
        sys::setresuid(uid)?;
    }
    sys::clear_capabilities()?;
    sys::die_with_parent()?;

    // The parent may have died before the signal was set.
    enter(setup, step::PARENT_DEATH);
    if sys::getppid() != setup.parent {
        return Err(ORPHANED);
    }

    enter(setup, step::NO_NEW_PRIVILEGES);
    sys::no_new_privileges()?;

    enter(setup, step::LANDLOCK);
    if let Some((ruleset, own_proc_rights)) = setup.ruleset {
        match sys::open_directory(c"/proc/self") {
            Ok(own_proc) => {
                setup.report.own_proc.store(own_proc, Ordering::Release);
                sys::landlock_add_path(ruleset, own_proc_rights, own_proc)?;
            }
            Err(errno @ (ENFILE | EMFILE | ENOMEM)) => return Err(errno),
            // A host without /proc has nothing to grant there.
            Err(_) => {}
        }
        sys::landlock_restrict_self(ruleset)?;
    }

    enter(setup, step::FILTER);
    let listener = sys::install_filter(setup.filter, setup.filter_flags)?;
    #[cfg(feature = "test-hooks")]
    if setup.hold_at == step::UNPUBLISHED {
        loop {
            sys::hold();
        }
    }
    if setup.filter_flags & sys::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 {
        setup.report.listener.store(listener, Ordering::Release);
    }

    enter(setup, step::DESCRIPTORS);
    sys::unshare_descriptors()?;

    enter(setup, step::STDIO);
    let [stdin, stdout, stderr] = setup.stdio;
    sys::dup3(stdin, 0)?;
    sys::dup3(stdout, 1)?;
    sys::dup3(stderr, 2)?;

    enter(setup, step::OPEN_FILES);
    bound(&setup.open_files)?;

    enter(setup, step::EXEC);
    // A program that was written a moment ago may still be open for writing in a process that another
    // thread of the embedder has forked and that has not come to its exec yet.
    let mut tries = 0;
    loop {
        let errno = sys::execve(
            setup.program,
            setup.arguments,
            setup.environment,
            setup.permit,
        );
        tries += 1;
        if errno != ETXTBSY || tries == 2000 {
            return Err(errno);
        }
    }
}

/// Sets a limit. A lower one of the embedder's stays, where it may not be raised (CAP_SYS_RESOURCE).
fn bound(limit: &Rlimit) -> Result<(), Errno> {
    match sys::prlimit(limit) {
        Err(EPERM) => {
            let hard = sys::hard_limit(limit.resource)?.min(limit.hard);
            sys::prlimit(&Rlimit {
                soft: limit.soft.min(hard),
                hard,
                ..*limit
            })
        }
        done => done,
    }
}

/// Empties the ambient and the bounding set of the calling thread, for every child that it will create. The
/// spawner does so once, since 41 calls for each child cost as much as its clone; the thread keeps what
/// it is permitted, which the child gives up itself.
///
/// The first unknown capability ends the walk.
pub(crate) fn shed_capabilities() -> Result<(), Errno> {
    sys::clear_ambient_capabilities()?;
    for capability in 0..64 {
        match sys::drop_bounding_capability(capability) {
            Ok(()) => {}
            Err(EINVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
