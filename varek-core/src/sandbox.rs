//! A policy made ready for a host.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use varek_cgroup::{Controller, CpuQuota, Layout, Limits as GroupLimits, Subtree, Unenforced};
use varek_seccomp::{Arch, CompileError, Program, Reporting, SyscallPolicy};
use varek_telemetry::{Enforcement, Layer, LayerStatus, Queue, Sink};

use crate::calls::Calls;
use crate::cell::Cell;
use crate::command::{Command, Output, OutputKind};
use crate::creation::Creation;
use crate::error::{Error, Missing, Problem};
use crate::files::Files;
use crate::guardian::Guardian;
use crate::handle::Child;
use crate::host::{Host, MountSupport};
use crate::identity::UidPool;
use crate::kits::Kits;
use crate::landlock::Grants;
use crate::layers::{SIGNAL_SCOPE, Uid, absent, layers, no_namespaces, unbounded_scratch};
use crate::limits::CpuShare;
use crate::mounts::{self, Bound};
use crate::namespaces::Namespace;
use crate::outcome::Outcome;
use crate::pipe::{ByteQueue, ChildInput, ChildOutput, Notify};
use crate::places::{Places, WhenFull};
use crate::plan;
use crate::policy::Policy;
use crate::reaper::Reapers;
use crate::removers::Removers;
use crate::scratch::{self, SWEEP_PATIENCE};
use crate::spawn::{Job, Spawner};
use crate::streams::Capture;
use crate::strict;
use crate::supervisor::{self, Inbox, Key, Message, Performer};
use crate::sys;

/// A policy made ready for a host: checked, compiled, with a parent group, a supervisor thread and a
/// spawner thread. Make one for each policy and use it for many runs, from any number of threads; clones
/// share it.
///
/// ```no_run
/// use varek_core::{Command, Policy, Sandbox};
///
/// # fn main() -> Result<(), varek_core::Error> {
/// let sandbox = Sandbox::new(Policy::python())?;
/// let outcome = sandbox.run(Command::python("print(2 + 2)"))?;
/// assert_eq!(outcome.stdout.to_text(), "4\n");
/// # Ok(())
/// # }
/// ```
///
/// When the last clone and the last [`Child`] are dropped, the threads end and the groups are removed.
#[derive(Clone)]
pub struct Sandbox {
    engine: Arc<Engine>,
}

/// Everything that does not change from run to run.
pub(crate) struct Sealed {
    pub(crate) policy: Policy,
    pub(crate) digest: String,
    pub(crate) host: Host,
    pub(crate) program: Program,
    /// Where denied calls are performed that stay within a run.
    pub(crate) performer: Option<Performer>,
    pub(crate) reports_denials: bool,
    pub(crate) grants: Option<Grants>,
    pub(crate) uids: Option<UidPool>,
    pub(crate) privileged: bool,
    /// Guests can send descriptors, and so hold a file that no descriptor table shows.
    pub(crate) sends_descriptors: bool,
    pub(crate) subtree: Subtree,
    pub(crate) creation: Creation,
    guardian: Mutex<Option<Guardian>>,
    pub(crate) group_limits: GroupLimits,
    /// CPUs that a guest could use at most: it may widen its affinity, and a quota of the embedder's group is not
    /// one of whole CPUs.
    pub(crate) most_cpus: usize,
    /// Whether the supervisor has to do what `memory.oom.group` does on unified hosts.
    pub(crate) watches_oom: bool,
    pub(crate) enforcement: Enforcement,
    pub(crate) scratch_base: PathBuf,
    /// What a scratch directory holds, where that is bounded.
    pub(crate) bound: Option<Bound>,
    /// What makes the namespaces of the runs, where they have some.
    pub(crate) reapers: Option<Reapers>,
    /// The policy grants nothing beneath `/dev/shm`, so that each guest can have one of its own.
    pub(crate) own_shared_memory: bool,
    pub(crate) sink: Option<Queue>,
}

impl Sealed {
    /// Whether runs have such a namespace of their own, asked for and to be had.
    pub(crate) fn has_namespace(&self, namespace: Namespace) -> bool {
        let reapers = self.reapers.as_ref();
        reapers.is_some_and(|reapers| reapers.has(namespace))
    }

    /// Ends the guardian once there is nothing left to guard.
    pub(crate) fn dismiss_guardian(&self) {
        let guardian = self
            .guardian
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(guardian);
    }
}

/// The living part of a sandbox.
pub(crate) struct Engine {
    pub(crate) sealed: Arc<Sealed>,
    pub(crate) inbox: Arc<Inbox>,
    spawner: Arc<Spawner>,
    kits: Arc<Kits>,
    places: Arc<Places>,
    next: AtomicU64,
    process: u32,
    supervisor: ThreadId,
}

impl Engine {
    /// Whether this is the process that made the sandbox, not a forked copy.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        let _ = self.inbox.send(Message::Close);
        // Normally a matter of a few milliseconds. Not from the supervisor's own thread, and never for
        // ever: what cannot be removed is left to the sweep.
        if std::thread::current().id() != self.supervisor {
            let most = self.sealed.policy.grace + Duration::from_secs(1);
            self.inbox.wait_ended(most.min(Duration::from_secs(5)));
        }
    }
}

/// Makes a [`Sandbox`] with more than a policy.
#[must_use]
pub struct SandboxBuilder {
    policy: Policy,
    host: Option<Host>,
    limit: usize,
    when_full: WhenFull,
    aggregate: GroupLimits,
    scratch_base: Option<PathBuf>,
    sink: Option<Box<dyn Sink>>,
    queue: usize,
}

impl SandboxBuilder {
    /// Uses these facts of the host instead of probing it again.
    pub fn host(mut self, host: Host) -> Self {
        self.host = Some(host);
        self
    }

    /// At most this many guests at a time (at least 1), and what a run does when there are as many.
    /// Unbounded unless it is said.
    pub fn concurrency(mut self, limit: usize, when_full: WhenFull) -> Self {
        self.limit = limit.max(1);
        self.when_full = when_full;
        self
    }

    /// Bounds the memory of all guests together, bytes: a limit on the parent group. A guest that dies
    /// of it reads [`Cause::HostOutOfMemory`](crate::Cause::HostOutOfMemory): it did not reach its own limit.
    pub fn total_memory(mut self, bytes: u64) -> Self {
        self.aggregate.memory = Some(bytes);
        self
    }

    /// Bounds the processes and threads of all guests together: a limit on the parent group.
    pub fn total_pids(mut self, count: u64) -> Self {
        self.aggregate.pids = Some(count);
        self
    }

    /// Where scratch directories are made; the embedder's directory for temporary files unless it is
    /// said. The guest's uid must be able to search it (mode o+x up to the root).
    pub fn scratch_base(mut self, directory: impl Into<PathBuf>) -> Self {
        self.scratch_base = Some(directory.into());
        self
    }

    /// Where events go, from a thread of the sink's own behind a queue of 65,536 events. A sink can slow
    /// down nothing but itself; what did not fit is counted and said
    /// ([`EventKind::EventsDropped`](crate::EventKind::EventsDropped)).
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Checks the policy against the host, compiles it and starts the threads.
    ///
    /// # Errors
    ///
    /// [`Error::Policy`] with every problem of the policy; [`Error::Unsupported`] with everything that it
    /// requires and the host lacks; [`Error::Syscalls`], [`Error::Group`] or [`Error::Io`] where the host fails.
    pub fn build(self) -> Result<Sandbox, Error> {
        let places = Places::new(self.limit, self.when_full);
        let sealed = Arc::new(self.seal()?);
        let inbox = Inbox::new().map_err(|e| Error::io("eventfd", e))?;
        let spawner = Spawner::start().map_err(|e| Error::io("start the spawner thread", e))?;
        let kits = Kits::start(sealed.clone()).map_err(|e| {
            spawner.close();
            Error::io("start the kits thread", e)
        })?;
        let removers = Removers::start().map_err(|e| {
            spawner.close();
            kits.close();
            Error::io("start the removal thread", e)
        })?;
        let supervisor = supervisor::start(
            sealed.clone(),
            inbox.clone(),
            spawner.clone(),
            kits.clone(),
            removers.clone(),
        )
        .map_err(|e| {
            spawner.close();
            kits.close();
            removers.close(Duration::ZERO);
            Error::io("start the supervisor thread", e)
        })?;
        let next = AtomicU64::new(0);
        let process = std::process::id();
        let engine = Engine {
            sealed,
            inbox,
            spawner,
            kits,
            places,
            next,
            process,
            supervisor,
        };
        Ok(Sandbox {
            engine: Arc::new(engine),
        })
    }

    /// Everything that is done once: checks first, then what the host has to give.
    fn seal(self) -> Result<Sealed, Error> {
        let policy = self.policy;
        let problems = policy.problems();
        if !problems.is_empty() {
            return Err(Error::Policy { problems });
        }
        let host = self.host.unwrap_or_else(Host::probe);
        let scratch_base = self.scratch_base.unwrap_or_else(std::env::temp_dir);
        let asked = layers(&policy, &host).map_err(|missing| Error::Unsupported { missing })?;
        let mut problems = policy.filesystem.opens_programs();
        if asked.uid != Uid::Own {
            problems.extend(policy.filesystem.opens_scratch(&scratch_base));
        }
        if !problems.is_empty() {
            return Err(Error::Policy { problems });
        }
        let (mut enforcement, bound) = (asked.enforcement, asked.scratch);
        let syscalls = policy.network.filter(policy.syscalls.clone());
        let (program, performer) = programs(&syscalls, asked.uid, asked.notify)?;

        let grants = asked
            .landlock
            .map(|abi| Grants::open(&policy.filesystem, abi, &policy.network))
            .transpose()?;
        if let Some(grants) = &grants {
            let detail = grants.describe();
            enforcement.record(Layer::Landlock, LayerStatus::Enforced { detail });
        }
        let group_limits = group_limits(&policy, asked.memory, asked.pids, asked.cpu)?;
        let layout = Layout::probe()?;
        let mut required = group_limits.controllers();
        required.extend(self.aggregate.controllers());
        required.sort_unstable();
        required.dedup();
        let subtree = Subtree::prepare(&layout, &required, &self.aggregate)?;
        let watches_oom = layout.hierarchy() == varek_cgroup::Hierarchy::Hybrid
            && required.contains(&Controller::Memory);
        // What the kernel does not do of the limits of a run is known before the first one.
        let trial = subtree.create("trial", &group_limits)?;
        let unenforced = trial.unenforced().iter().chain(subtree.unenforced());
        note_unenforced(unenforced, &mut enforcement);
        let creation = creation(&host, trial.directory(), &mut enforcement)?;
        drop(trial);
        let bound = bounded_scratch(bound, &policy, &scratch_base, creation, &mut enforcement)?;
        strict::scratch(&policy.filesystem, bound, &scratch_base)?;
        let reapers = namespaces(asked.namespaces, &policy, creation, &mut enforcement)?;
        // Behind the sweep of the groups, whose processes may have had these uids. What is left stays for the next sweep:
        // nobody meets it, since every run has a directory of its own.
        let _ = scratch::remove_left_by(host.uid, &scratch_base, Instant::now() + SWEEP_PATIENCE);
        let uids = (asked.uid == Uid::Own)
            .then(|| {
                UidPool::new(
                    policy.identity.range(),
                    makes_objects(&policy),
                    &scratch_base,
                )
            })
            .transpose()?;
        let guardian = Mutex::new(start_guardian(&subtree, &mut enforcement));

        // Its thread has the mask of this one.
        let mask = sys::block_signals();
        let sink = self
            .sink
            .map(|sink| Queue::new(sink, self.queue))
            .transpose();
        sys::set_signals(&mask);
        let sink = sink.map_err(|e| Error::io("start the telemetry thread", e))?;
        Ok(Sealed {
            digest: policy.digest(),
            reports_denials: asked.notify,
            sends_descriptors: syscalls.allows("sendmsg") || syscalls.allows("sendmmsg"),
            privileged: host.missing_capabilities.is_empty(),
            program,
            performer,
            grants,
            uids,
            subtree,
            creation,
            guardian,
            group_limits,
            most_cpus: sys::configured_cpus().max(host.cpus),
            watches_oom,
            enforcement,
            own_shared_memory: mounts::own_shared_memory(
                policy.filesystem.paths().chain([scratch_base.as_path()]),
            ),
            scratch_base,
            bound,
            reapers,
            sink,
            host,
            policy,
        })
    }
}

/// What the scratch directories of the runs hold, where a child can mount them here: something else than what
/// [`Host::probe`] asks may refuse that.
fn bounded_scratch(
    bound: Option<Bound>,
    policy: &Policy,
    base: &Path,
    creation: Creation,
    enforcement: &mut Enforcement,
) -> Result<Option<Bound>, Error> {
    let Some(bound) = bound else { return Ok(None) };
    let Err(error) = mounts::trial(base, bound, creation) else {
        return Ok(Some(bound));
    };
    let refused = MountSupport::Refused(error.raw_os_error().unwrap_or(0));
    let remedy = refused.remedy().unwrap_or_default();
    let missing = unbounded_scratch(bound, &refused.to_string(), remedy);
    if policy.best_effort.contains(&Layer::Scratch) {
        enforcement.record(Layer::Scratch, absent(&missing));
        return Ok(None);
    }
    Err(Error::Unsupported {
        missing: vec![missing],
    })
}

/// What makes the namespaces of the runs, where they can be had here: something else than what [`Host::probe`] asks may
/// refuse them.
fn namespaces(
    asked: bool,
    policy: &Policy,
    creation: Creation,
    enforcement: &mut Enforcement,
) -> Result<Option<Reapers>, Error> {
    if !asked {
        return Ok(None);
    }
    let reapers = Reapers::new(&policy.namespaces, creation)?;
    let first = policy.identity.range().first;
    let Err(error) = reapers.make(Some((first, first))) else {
        return Ok(Some(reapers));
    };
    let has = format!("refuses this program to {error}");
    let remedy = "let the profile of the container or service (seccomp, AppArmor) allow namespaces";
    let missing = no_namespaces(policy, &has, remedy);
    if policy.best_effort.contains(&Layer::Namespaces) {
        enforcement.record(Layer::Namespaces, absent(&missing));
        return Ok(None);
    }
    Err(Error::Unsupported {
        missing: vec![missing],
    })
}

/// The program of the runs; and where it refuses calls only because their targets cannot be told, what performs
/// those that are harmless.
fn programs(
    syscalls: &SyscallPolicy,
    uid: Uid,
    notify: bool,
) -> Result<(Program, Option<Performer>), Error> {
    let Uid::Shared { landlock } = uid else {
        return Ok((compile(syscalls, notify)?, None));
    };
    // What is taken from a policy can hide what is wrong with it.
    if let Some(arch) = Arch::native() {
        let checked = syscalls.check(arch);
        checked.map_err(|problems| CompileError::Policy { problems })?;
    }
    let program = compile(&syscalls.clone().sharing_uid(landlock), notify)?;
    let performer = if notify {
        let allowed = compile(syscalls, notify)?;
        Some(Performer::new(allowed, landlock < SIGNAL_SCOPE))
    } else {
        None
    };
    Ok((program, performer))
}

fn compile(syscalls: &SyscallPolicy, notify: bool) -> Result<Program, Error> {
    let arch = Arch::native().ok_or_else(|| Error::Unsupported {
        missing: vec![Missing {
            layer: Layer::Seccomp,
            asked: "a system call filter".into(),
            has: "is of an architecture without a table of system calls".into(),
            remedy: "use x86_64 or aarch64".into(),
        }],
    })?;
    let reporting = if notify {
        Reporting::Notify
    } else {
        Reporting::Errno
    };
    Ok(syscalls.compile(arch, reporting)?)
}

impl fmt::Debug for SandboxBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxBuilder")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Whether guests can make SysV IPC objects, which outlive them and would meet the next holder of their uid.
fn makes_objects(policy: &Policy) -> bool {
    ["shmget", "semget", "msgget"]
        .iter()
        .any(|call| policy.syscalls.allows(call))
}

fn group_limits(
    policy: &Policy,
    memory: bool,
    pids: bool,
    cpu: bool,
) -> Result<GroupLimits, Error> {
    let limits = &policy.limits;
    let quota = |share: CpuShare| {
        CpuQuota::percent(share.as_percent()).map_err(|error| {
            let message = error.to_string();
            Error::Policy {
                problems: vec![Problem {
                    field: "limits.cpu",
                    message,
                }],
            }
        })
    };
    Ok(GroupLimits {
        memory: limits.memory.filter(|_| memory),
        pids: limits.pids.filter(|_| pids),
        cpu: limits.cpu.filter(|_| cpu).map(quota).transpose()?,
    })
}

/// How children are made and come into their group, tried in this one.
fn creation(
    host: &Host,
    group: BorrowedFd<'_>,
    enforcement: &mut Enforcement,
) -> Result<Creation, Error> {
    let creation = Creation::tried(host, group).map_err(|error| Error::Unsupported {
        missing: vec![Missing {
            layer: Layer::Watchdog,
            asked: "a child in a group of its own".into(),
            has: format!("refuses clone3 and clone with a pidfd to this program ({error})"),
            remedy: "allow clone3 or clone in the seccomp profile of the container".into(),
        }],
    })?;
    if let Some(LayerStatus::Enforced { detail }) = enforcement.status(Layer::Watchdog) {
        let detail = format!("{detail}; {creation}");
        enforcement.record(Layer::Watchdog, LayerStatus::Enforced { detail });
    }
    Ok(creation)
}

/// Who kills the tree when the embedder is killed: the guardian, or where it cannot be started the next sweep.
fn start_guardian(subtree: &Subtree, enforcement: &mut Enforcement) -> Option<Guardian> {
    let guardian = subtree
        .kill_file()
        .and_then(|kill| Ok((kill, subtree.freeze_file()?)))
        .map_err(|error| error.to_string())
        .and_then(|(kill, freeze)| {
            Guardian::start(kill, freeze).map_err(|error| error.to_string())
        });
    let (guardian, after) = match guardian {
        Ok(guardian) => (Some(guardian), "by its guardian".to_owned()),
        Err(error) => (None, format!("by the next sweep (no guardian: {error})")),
    };
    if let Some(LayerStatus::Enforced { detail }) = enforcement.status(Layer::Watchdog) {
        let detail = format!("{detail}; after the embedder's death the tree is killed {after}");
        enforcement.record(Layer::Watchdog, LayerStatus::Enforced { detail });
    }
    guardian
}

/// What the kernel of this host does not do of the memory limit; the rest is made up for by the supervisor.
fn note_unenforced<'a>(
    unenforced: impl IntoIterator<Item = &'a Unenforced>,
    enforcement: &mut Enforcement,
) {
    let swap = unenforced.into_iter().find_map(|what| match what {
        Unenforced::Swap { path } => path.file_name(),
        _ => None,
    });
    if let Some(file) = swap
        && let Some(LayerStatus::Enforced { detail }) = enforcement.status(Layer::Memory)
    {
        let file = file.display();
        let detail = format!("{detail}; swap is not bounded: this kernel has no {file}");
        enforcement.record(Layer::Memory, LayerStatus::Enforced { detail });
    }
}

impl Sandbox {
    /// Makes a policy ready for this host.
    ///
    /// # Errors
    ///
    /// As [`SandboxBuilder::build`].
    pub fn new(policy: Policy) -> Result<Self, Error> {
        Self::builder(policy).build()
    }

    /// Starts from a policy, to say more than that.
    pub fn builder(policy: Policy) -> SandboxBuilder {
        SandboxBuilder {
            policy,
            host: None,
            limit: usize::MAX,
            when_full: WhenFull::default(),
            aggregate: GroupLimits::default(),
            scratch_base: None,
            sink: None,
            queue: 65_536,
        }
    }

    /// What is wrong with the sink, where something is: it panicked, or has held up one event for seconds. Its events are
    /// counted as dropped from then on; no run is affected.
    pub fn sink_fault(&self) -> Option<String> {
        self.engine.sealed.sink.as_ref().and_then(Sink::fault)
    }

    /// Runs a command to its end.
    ///
    /// It returns by the deadline of the policy and its grace at the latest, counted from when the run has a place
    /// (see [`SandboxBuilder::concurrency`]) and is prepared. Whatever the guest did is in the outcome.
    ///
    /// # Errors
    ///
    /// When the guest could not be started; nothing is left of it then.
    pub fn run(&self, command: Command) -> Result<Outcome, Error> {
        let (_, cell, ends) = self.launch(command)?;
        let outcome = cell.wait_finished()?;
        ends.calls.wait(self.policy().grace);
        Ok(outcome)
    }

    /// Runs a command to its end and captures both of its output streams, wherever the command sends them.
    ///
    /// # Errors
    ///
    /// As [`Sandbox::run`].
    pub fn output(&self, mut command: Command) -> Result<Outcome, Error> {
        for output in [&mut command.stdout, &mut command.stderr] {
            // What is called with it is captured too.
            if !matches!(output.0, OutputKind::Called(_)) {
                *output = Output::captured();
            }
        }
        self.run(command)
    }

    /// Starts a command and returns when its program runs.
    ///
    /// # Errors
    ///
    /// As [`Sandbox::run`].
    pub fn spawn(&self, command: Command) -> Result<Child, Error> {
        let (key, cell, ends) = self.launch(command)?;
        let started = cell.wait_started()?;
        let (pid, pidfd) = match started {
            Some(started) => started,
            // A limit ended it in set-up: the outcome says so, and there is no process to point to.
            None => (
                0,
                rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC)
                    .map_err(|e| Error::io("eventfd", e))?,
            ),
        };
        let Ends {
            run,
            files,
            calls,
            stdin,
            stdout,
            stderr,
        } = ends;
        let engine = self.engine.clone();
        Ok(Child {
            stdin,
            stdout,
            stderr,
            files,
            calls,
            run,
            key,
            pid,
            pidfd,
            cell,
            engine,
        })
    }

    fn launch(&self, command: Command) -> Result<(Key, Arc<Cell>, Ends), Error> {
        let engine = &self.engine;
        if !engine.is_here() {
            return Err(Error::ForkedCopy);
        }
        let place = engine.places.take()?;
        // What could not be prepared has used up a kit too.
        let (child, mut run) = plan::prepare(&engine.sealed, &engine.kits, command)
            .inspect_err(|_| engine.kits.refill())?;
        let key = engine.next.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::new(Cell::default());
        let ends = Ends::of(&mut run, key, &engine.inbox)?;
        let register = Message::Register {
            key,
            plan: Box::new(run),
            cell: cell.clone(),
            permit: Box::new(place),
        };
        engine
            .inbox
            .send(register)
            .map_err(|_| Error::SupervisorGone {
                reason: "it could not go on; see the fault in the last outcomes".into(),
            })?;
        let inbox = engine.inbox.clone();
        let kits = engine.kits.clone();
        let asked = cell.clone();
        engine.spawner.submit(Job {
            plan: child,
            wanted: Box::new(move || asked.wanted()),
            done: Box::new(move |born| {
                if let Err(message) = inbox.send(Message::Born { key, born })
                    && let Message::Born { born, .. } = *message
                {
                    // It may have been born after the supervisor had killed everything.
                    supervisor::discard(born);
                }
                kits.refill();
            }),
        });
        Ok((key, cell, ends))
    }

    /// The host's facts that the sandbox was made for.
    pub fn host(&self) -> &Host {
        &self.engine.sealed.host
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.engine.sealed.policy
    }

    /// What is in force for every run.
    pub fn enforcement(&self) -> &Enforcement {
        &self.engine.sealed.enforcement
    }

    /// Waits until the sink has taken the events so far, at most this long. Without a sink there is
    /// nothing to wait for.
    pub fn flush(&self, within: Duration) -> varek_telemetry::Flushed {
        match &self.engine.sealed.sink {
            Some(sink) => sink.flush(within),
            None => varek_telemetry::Flushed::Complete,
        }
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("policy", &self.engine.sealed.digest)
            .finish_non_exhaustive()
    }
}

/// The embedder's ends of a run's streams.
struct Ends {
    run: varek_telemetry::RunId,
    files: Files,
    calls: Calls,
    stdin: Option<ChildInput>,
    stdout: Option<ChildOutput>,
    stderr: Option<ChildOutput>,
}

impl Ends {
    fn of(run: &mut plan::RunPlan, key: Key, inbox: &Arc<Inbox>) -> Result<Self, Error> {
        let notify: Notify = {
            let inbox = Arc::downgrade(inbox);
            Arc::new(move || {
                if let Some(inbox) = inbox.upgrade() {
                    let _ = inbox.send(Message::Streams { key });
                }
            })
        };
        let output = |capture: &Capture| match capture {
            Capture::Stream(_, queue) => Some(ChildOutput {
                queue: queue.clone(),
                notify: notify.clone(),
            }),
            _ => None,
        };
        let input = |queue: &Arc<ByteQueue>| ChildInput {
            queue: queue.clone(),
            notify: notify.clone(),
        };
        let calls = Calls::default();
        for capture in [&mut run.stdout, &mut run.stderr] {
            if let Capture::Both(_, queue, callback) = capture
                && let Some(callback) = callback.take()
            {
                let output = ChildOutput {
                    queue: queue.0.clone(),
                    notify: notify.clone(),
                };
                calls
                    .start(output, callback)
                    .map_err(|e| Error::io("start a thread for an output", e))?;
            }
        }
        Ok(Self {
            run: run.run,
            calls,
            files: run.files.clone(),
            stdin: run
                .stdin
                .as_ref()
                .filter(|_| run.stdin_piped)
                .map(|(_, queue)| input(queue)),
            stdout: output(&run.stdout),
            stderr: output(&run.stderr),
        })
    }
}

#[cfg(test)]
mod tests;
