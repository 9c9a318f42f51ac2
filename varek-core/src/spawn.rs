//! The spawner: long-lived threads that create children.
//!
//! The parent-death signal of a child follows the thread that cloned it, so children are cloned by
//! threads that live as long as any run. A thread is suspended from its clone until the child's exec;
//! another one is started where that takes long.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, PidfdFlags, pidfd_open};

use crate::child::clone::sys::clone_vfork;
use crate::child::sys as child_sys;
use crate::child::{Report, Setup, step};
use crate::error::SetupStep;
use crate::mounts::MountPlan;
use crate::plan::ChildPlan;
use crate::reaper;
use crate::strays::{self, Listener};
use crate::sys;

/// What came of a clone.
pub(crate) struct Born {
    /// The child and its pidfd; `None` where the clone itself failed.
    pub(crate) child: Option<(u32, OwnedFd)>,
    /// The notification listener.
    pub(crate) listener: Option<Listener>,
    /// The child's `/proc` entry, which keeps its Landlock rule alive.
    pub(crate) own_proc: Option<OwnedFd>,
    /// The child may have left a listener that nobody knows.
    pub(crate) stray: bool,
    /// The step that failed, where one did.
    pub(crate) failure: Option<(SetupStep, io::Error)>,
}

impl Born {
    fn stillborn(error: io::Error) -> Self {
        let failure = Some((SetupStep::Clone, error));
        Self {
            child: None,
            listener: None,
            own_proc: None,
            stray: false,
            failure,
        }
    }

    /// Nothing was made, because the child could not have gone through with this step.
    fn unmade(step: SetupStep, error: io::Error) -> Self {
        Self {
            failure: Some((step, error)),
            ..Self::stillborn(io::ErrorKind::Other.into())
        }
    }
}

/// One child to make, and whom to tell.
pub(crate) struct Job {
    pub(crate) plan: ChildPlan,
    /// Whether the run is still wanted; asked just before the clone.
    pub(crate) wanted: Box<dyn Fn() -> bool + Send>,
    pub(crate) done: Box<dyn FnOnce(Born) + Send>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Started, and not at work yet.
    coming: usize,
    threads: usize,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Spawner {
    state: Mutex<State>,
    work: Condvar,
}

/// How long a child waits for somebody who moves processes between groups, a matter of a few milliseconds.
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);

/// More threads than this are never started: each is stuck in a program start that the host does not finish.
const MOST_THREADS: usize = 32;

impl Spawner {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let spawner = Arc::new(Self::default());
        spawner.add_thread()?;
        Ok(spawner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let spawner = self.clone();
        {
            let mut state = self.state();
            state.threads += 1;
            state.coming += 1;
        }
        let started = std::thread::Builder::new()
            .name("varek-spawner".into())
            .spawn(move || {
                sys::block_signals();
                // Where this fails each child tries for itself, and fails by name.
                let _ = crate::child::shed_capabilities();
                let stack = sys::Stack::new();
                spawner.state().coming -= 1;
                match stack {
                    Ok(stack) => spawner.work(stack),
                    Err(_) => spawner.state().threads -= 1,
                }
            });
        if started.is_err() {
            let mut state = self.state();
            state.threads -= 1;
            state.coming -= 1;
        }
        started.map(drop)
    }

    /// Hands a job over. It is never lost: where it cannot be done, `done` says so.
    pub(crate) fn submit(&self, job: Job) {
        self.state().jobs.push_back(job);
        self.work.notify_one();
    }

    /// Starts another thread if jobs wait and every thread is busy.
    pub(crate) fn relieve(self: &Arc<Self>) {
        let stuck = {
            let state = self.state();
            let busy = state.idle == 0 && state.coming == 0;
            busy && !state.jobs.is_empty() && state.threads < MOST_THREADS
        };
        if stuck {
            // Without another thread the jobs wait for the first; their deadlines hold all the same.
            let _ = self.add_thread();
        }
    }

    /// Ends the threads once their jobs are done. The parent-death signal of every child of theirs
    /// would follow, so this is called when no run is left.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
    }

    fn work(&self, mut stack: sys::Stack) {
        loop {
            let mut state = self.state();
            state.idle += 1;
            while state.jobs.is_empty() && !state.closed {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            state.idle -= 1;
            let Some(job) = state.jobs.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let Job { plan, wanted, done } = job;
            let born = if wanted() {
                create(&plan, &mut stack)
            } else {
                Born::stillborn(io::ErrorKind::Interrupted.into())
            };
            // The child's ends of the pipes close before anybody waits for their end of file.
            drop(plan);
            done(born);
        }
    }
}

/// Waits until nobody moves processes between groups, and keeps everybody from it: see
/// [`varek_cgroup::Subtree::settling`].
fn settle(lock: &OwnedFd) -> io::Result<()> {
    let until = Instant::now() + SETTLE_PATIENCE;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return Ok(done?),
        }
    }
}

/// Creates one child; returns when its program runs or its set-up has failed.
fn create(plan: &ChildPlan, stack: &mut sys::Stack) -> Born {
    let report = &plan.report;
    let groups: Vec<RawFd> = plan.placements.iter().map(AsRawFd::as_raw_fd).collect();
    let arguments = sys::ExecArray::new(&plan.arguments);
    let environment = sys::ExecArray::new(&plan.environment);
    if let Err(error) = plan.settling.as_ref().map_or(Ok(()), settle) {
        return Born::unmade(SetupStep::Groups, error);
    }
    let own_pids = plan
        .namespaces
        .as_ref()
        .is_some_and(|namespaces| namespaces.pid().is_some());
    let setup = Setup {
        report,
        groups: &groups,
        settling: plan.settling.as_ref().map(AsRawFd::as_raw_fd),
        namespaces: plan
            .namespaces
            .as_ref()
            .map(|namespaces| namespaces.for_child())
            .unwrap_or_default(),
        mounts: plan.mounts.as_ref().map(MountPlan::for_child),
        directory: plan.directory.for_child(),
        rlimits: &plan.rlimits,
        privileged: plan.privileged,
        identity: plan.identity,
        parent: if own_pids { 0 } else { std::process::id() },
        ruleset: plan
            .ruleset
            .as_ref()
            .map(|(fd, rights)| (fd.as_raw_fd(), *rights)),
        filter: &plan.filter,
        filter_flags: plan.filter_flags,
        stdio: [
            plan.stdio[0].as_raw_fd(),
            plan.stdio[1].as_raw_fd(),
            plan.stdio[2].as_raw_fd(),
        ],
        open_files: plan.open_files,
        program: &plan.program,
        arguments: arguments.pointers(),
        environment: environment.pointers(),
        permit: plan.permit,
        #[cfg(feature = "test-hooks")]
        hold_at: plan.hold_at,
    };
    let way = plan.creation.way(plan.group.as_fd());
    // The thread itself stays where it is, and so do its children when it has come back.
    let pids = plan
        .namespaces
        .as_ref()
        .and_then(|namespaces| namespaces.pid());
    if let Some(reaper) = pids
        && let Err(error) = reaper::be_born_in(reaper)
    {
        return Born::unmade(SetupStep::Namespaces, error);
    }
    let in_set_up = SetupWindow::enter();
    let cloned = match child_sys::signal_mask(u64::MAX) {
        Err(errno) => Err(errno),
        Ok(mask) => {
            let cloned = clone_vfork(stack.memory(), &report.pidfd, way, &setup);
            // The mask that this thread had a moment ago is valid.
            let _ = child_sys::signal_mask(mask);
            cloned
        }
    };
    if pids.is_some() {
        // Where this fails the next clone of this thread enters another one first: they are of one sandbox.
        let _ = come_back();
    }
    let pid = match cloned {
        Ok(pid) => pid,
        Err(errno) => return Born::stillborn(io::Error::from_raw_os_error(errno)),
    };
    // The child has let go of it where it came to that.
    if let Some(lock) = &plan.settling {
        let _ = flock(lock, FlockOperation::Unlock);
    }
    let Some(pidfd) = sys::adopt_descriptor(report.pidfd.load(Ordering::Acquire)) else {
        return Born::stillborn(io::ErrorKind::NotFound.into());
    };
    // Inside the window, so that nobody takes what is about to be adopted for a stray.
    let listener =
        sys::adopt_descriptor(report.listener.load(Ordering::Acquire)).map(Listener::adopt);
    let own_proc = sys::adopt_descriptor(report.own_proc.load(Ordering::Acquire));
    let last_step = report.step.load(Ordering::Acquire);
    if last_step == step::LANDLOCK && own_proc.is_none() {
        strays::close_own_proc(pid, plan.namespaces.as_deref());
    }
    let stray = last_step == step::FILTER && listener.is_none() && plan.filter_flags != 0;
    drop(in_set_up);
    let errno = report.errno.load(Ordering::Acquire);
    let failure = (errno != 0).then(|| (reached(report), io::Error::from_raw_os_error(errno)));
    Born {
        child: Some((pid, pidfd)),
        listener,
        own_proc,
        stray,
        failure,
    }
}

/// Children of this thread are born in its own pid namespace again.
fn come_back() -> io::Result<()> {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    reaper::be_born_in(own)
}

/// Closes listeners that children left, now or when no child is in set-up any more. To be called when the
/// suspected child has been reaped: before, its listener does not tell that nobody is left (Linux up to 6.10).
pub(crate) fn close_strays() {
    let mut window = window();
    window.strays = window.children > 0;
    if !window.strays {
        strays::close_listeners();
    }
}

/// Kills a child that is in set-up, in its group or not: before it has joined, no kill of the group reaches it. To be
/// called by the supervisor alone, until it has taken over what the spawner says of the child, and again after a moment:
/// the child may not be there yet.
pub(crate) fn kill_in_set_up(report: &Report) {
    if report.step.load(Ordering::Acquire) == 0 {
        // Before its first step the number may not be a pidfd yet, and may stay none.
        return;
    }
    let pidfd = report.pidfd.load(Ordering::Acquire);
    if pidfd >= 0 {
        // The spawner owns it, or the message on its way to the supervisor does.
        let pidfd = sys::borrow_descriptor(pidfd);
        let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    }
}

/// The set-up step that a child has reached.
pub(crate) fn reached(report: &Report) -> SetupStep {
    SetupStep::from_number(report.step.load(Ordering::Acquire))
}

/// The time in which a child shares the embedder's memory map and descriptor table.
///
/// A child's setresuid clears the dumpable flag of the map, which keeps other processes of that uid from
/// attaching to it. The flag is restored when the last such child has got a map of its own, and not
/// before. Then, too, no child can be about to publish a descriptor, and strays can be told.
///
/// Map and table belong to the process, hence the process-wide state. A forked copy has a map and a table of its own,
/// and none of the children.
struct SetupWindow;

#[derive(Clone, Copy)]
struct Window {
    process: u32,
    children: usize,
    dumpable: bool,
    strays: bool,
}

static WINDOW: Mutex<Window> = Mutex::new(Window {
    process: 0,
    children: 0,
    dumpable: false,
    strays: false,
});

fn window() -> MutexGuard<'static, Window> {
    WINDOW.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SetupWindow {
    fn enter() -> Self {
        let mut window = window();
        let process = std::process::id();
        if window.process != process {
            window.process = process;
            window.children = 0;
            window.strays = false;
        }
        if window.children == 0 {
            let behavior = rustix::process::dumpable_behavior();
            window.dumpable = matches!(behavior, Ok(DumpableBehavior::Dumpable));
        }
        window.children += 1;
        Self
    }
}

impl Drop for SetupWindow {
    fn drop(&mut self) {
        let mut window = window();
        window.children -= 1;
        if window.children > 0 {
            return;
        }
        if window.dumpable {
            // Only a process without a memory map could fail here.
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
        if std::mem::take(&mut window.strays) {
            strays::close_listeners();
        }
    }
}
