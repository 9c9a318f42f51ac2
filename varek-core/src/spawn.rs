//! The spawner: long-lived threads that create children.
//!
//! The parent-death signal of a child follows the thread that cloned it, so children are cloned by
//! threads that live as long as any run. A thread is suspended from its clone until the child's exec;
//! another one is started where that takes long.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::DumpableBehavior;

use crate::child::sys as child_sys;
use crate::child::{Report, Setup, step};
use crate::error::SetupStep;
use crate::plan::ChildPlan;
use crate::sys;

/// What came of a clone.
pub(crate) struct Born {
    /// The child and its pidfd; `None` where the clone itself failed.
    pub(crate) child: Option<(u32, OwnedFd)>,
    /// The notification listener.
    pub(crate) listener: Option<OwnedFd>,
    /// The child's `/proc` entry, which keeps its Landlock rule alive.
    pub(crate) own_proc: Option<OwnedFd>,
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
            failure,
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
    threads: usize,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Spawner {
    state: Mutex<State>,
    work: Condvar,
}

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
        self.state().threads += 1;
        let started = std::thread::Builder::new()
            .name("varek-spawner".into())
            .spawn(move || {
                sys::block_signals();
                // Where this fails each child tries for itself, and fails by name.
                let _ = crate::child::shed_capabilities();
                match sys::Stack::new() {
                    Ok(stack) => spawner.work(stack),
                    Err(_) => spawner.state().threads -= 1,
                }
            });
        if started.is_err() {
            self.state().threads -= 1;
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
            !state.jobs.is_empty() && state.idle == 0 && state.threads < MOST_THREADS
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

/// Creates one child; returns when its program runs or its set-up has failed.
fn create(plan: &ChildPlan, stack: &mut sys::Stack) -> Born {
    let report = &plan.report;
    let groups: Vec<RawFd> = plan.placements.iter().map(AsRawFd::as_raw_fd).collect();
    let arguments = sys::ExecArray::new(&plan.arguments);
    let environment = sys::ExecArray::new(&plan.environment);
    let setup = Setup {
        report,
        groups: &groups,
        directory: plan.directory.as_raw_fd(),
        rlimits: &plan.rlimits,
        privileged: plan.privileged,
        identity: plan.identity,
        parent: std::process::id(),
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
    let mut pidfd: RawFd = -1;
    let window = CredentialWindow::enter();
    let cloned = match child_sys::signal_mask(u64::MAX) {
        Err(errno) => Err(errno),
        Ok(mask) => {
            let group = Some(plan.group.as_raw_fd());
            let cloned = child_sys::clone_vfork(stack.memory(), &mut pidfd, group, &setup);
            // The mask that this thread had a moment ago is valid.
            let _ = child_sys::signal_mask(mask);
            cloned
        }
    };
    drop(window);
    let pid = match cloned {
        Ok(pid) => pid,
        Err(errno) => return Born::stillborn(io::Error::from_raw_os_error(errno)),
    };
    let Some(pidfd) = sys::adopt_descriptor(pidfd) else {
        return Born::stillborn(io::ErrorKind::NotFound.into());
    };
    let listener = sys::adopt_descriptor(report.listener.load(Ordering::Acquire));
    let own_proc = sys::adopt_descriptor(report.own_proc.load(Ordering::Acquire));
    let errno = report.errno.load(Ordering::Acquire);
    let failure = (errno != 0).then(|| (reached(report), io::Error::from_raw_os_error(errno)));
    Born {
        child: Some((pid, pidfd)),
        listener,
        own_proc,
        failure,
    }
}

/// The set-up step that a child has reached.
pub(crate) fn reached(report: &Report) -> SetupStep {
    SetupStep::from_number(report.step.load(Ordering::Acquire))
}

/// While a child with a uid of its own is in set-up it shares the embedder's memory map, and its
/// setresuid has cleared the map's dumpable flag, which keeps other processes of that uid from attaching
/// to it. The flag is restored when the last such child has got a map of its own, and not before.
///
/// The flag belongs to the process, hence the one piece of process-wide state.
struct CredentialWindow;

static WINDOW: Mutex<(usize, bool)> = Mutex::new((0, false));

impl CredentialWindow {
    fn enter() -> Self {
        let mut window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
        if window.0 == 0 {
            window.1 = matches!(
                rustix::process::dumpable_behavior(),
                Ok(DumpableBehavior::Dumpable)
            );
        }
        window.0 += 1;
        Self
    }
}

impl Drop for CredentialWindow {
    fn drop(&mut self) {
        let mut window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
        window.0 -= 1;
        if window.0 == 0 && window.1 {
            // Only a process without a memory map could fail here.
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
    }
}

/// Whether a child that ended in this step without a report may have left its listener in the
/// embedder's table.
pub(crate) fn may_have_left_a_listener(report: &Report) -> bool {
    report.step.load(Ordering::Acquire) == step::FILTER
        && report.listener.load(Ordering::Acquire) < 0
}
