//! One run, as the supervisor sees it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventFlags};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use varek_telemetry::{Cause, Cleanup, EventKind, Layer, LimitHit, Resource, Signal, Stream};

use super::account::{self, Exit, micros};
use super::attributes::Helper;
use super::pump::{Fed, Feed, Left, Pump};
use super::reading::Reader;
use super::record::Storm;
use super::{Key, Undertaker, encode};
use crate::capture::Tail;
use crate::cell::{Cell, Finish};
use crate::error::SetupStep;
use crate::limits::{Limits, Overflow};
use crate::outcome::Outcome;
use crate::plan::RunPlan;
use crate::sandbox::Sealed;
use crate::spawn::{self, Born};
use crate::strays::Listener;
use crate::sys;
use crate::watchdog::{Action, Bounds, Observation, Watchdog};

/// What of a run has become ready. In the order in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Listener = 0,
    Oom = 1,
    Stdin = 2,
    Stdout = 3,
    Stderr = 4,
    Pidfd = 5,
    Group = 6,
}

impl Source {
    pub(super) fn from_number(number: u64) -> Option<Self> {
        use Source::{Group, Listener, Oom, Pidfd, Stderr, Stdin, Stdout};
        [Listener, Oom, Stdin, Stdout, Stderr, Pidfd, Group]
            .into_iter()
            .find(|source| *source as u64 == number)
    }
}

/// Where a run is on its way to its end.
pub(super) enum Stage {
    /// Its tree lives, or is being killed.
    Alive,
    /// Its tree is dead: groups, scratch and orphans are being removed until this instant.
    Cleaning { until: Instant },
    /// Its outcome is handed over, though something is left that is still being removed.
    Delivered,
    /// Nothing is left.
    Over,
}

pub(super) struct Run {
    pub(super) key: Key,
    pub(super) undertaker: Undertaker,
    /// The scratch directory is being removed.
    pub(super) removing: bool,
    pub(super) plan: RunPlan,
    pub(super) cell: Arc<Cell>,
    /// Its place among the runs that the sandbox may have at a time.
    pub(super) permit: Option<Box<dyn Send>>,
    pub(super) watchdog: Watchdog,
    pub(super) outcome: Outcome,
    pub(super) sequence: u64,
    pub(super) began: Instant,
    pub(super) started: Option<Instant>,
    pub(super) ended: Option<Instant>,
    pub(super) born: bool,
    pub(super) child: Option<(u32, OwnedFd)>,
    pub(super) listener: Option<Arc<Listener>>,
    /// Makes calls in the guest's place.
    pub(super) helper: Option<Helper>,
    /// The call that it makes: until then no other call of this run is received.
    pub(super) in_hand: Option<sys::Notification>,
    /// Has the memory of denied calls read for their events.
    pub(super) reader: Reader,
    /// Held until the end: the kernel drops the Landlock rule of a `/proc` entry that nobody holds.
    pub(super) own_proc: Option<OwnedFd>,
    /// The child may have left a listener.
    stray: bool,
    pub(super) exit: Option<Exit>,
    pub(super) decided: Option<Cause>,
    pub(super) setup_failure: Option<(SetupStep, io::Error)>,
    pub(super) stdin: Option<Feed>,
    pub(super) stdout: Pump,
    pub(super) stderr: Pump,
    /// What goes behind the outcome's stdout and stderr.
    pub(super) tails: [Tail; 2],
    pub(super) cpu_check: Option<Instant>,
    pub(super) share_at: Option<Instant>,
    pub(super) oom_check: Option<(Instant, u32)>,
    pub(super) retry_at: Option<Instant>,
    pub(super) stage: Stage,
    /// The outcome of a run of which nothing is left but this value.
    pub(super) finish: Option<Finish>,
    /// The last event is out.
    pub(super) told: bool,
    /// Denied calls that are recorded together.
    pub(super) storm: Storm,
    /// What was recorded.
    #[cfg(feature = "test-hooks")]
    pub(super) events: Vec<EventKind>,
    pub(super) epoll: Arc<OwnedFd>,
}

/// How often the memory counters are looked at after a notice of the v1 controller, which comes before
/// the kill that it announces.
const OOM_CHECKS: u32 = 200;
/// How long after a kill the next one comes, where something is left.
const KILL_RETRY: Duration = Duration::from_millis(10);
pub(super) const RETRY: Duration = Duration::from_millis(1);
pub(super) const LATE_RETRY: Duration = Duration::from_millis(100);

impl Run {
    pub(super) fn new(
        undertaker: Undertaker,
        mut plan: RunPlan,
        cell: Arc<Cell>,
        permit: Box<dyn Send>,
        sealed: &Sealed,
        epoll: &Arc<OwnedFd>,
    ) -> Self {
        let key = undertaker.key;
        let policy = &sealed.policy;
        let now = Instant::now();
        let bounds = Bounds {
            wall_clock: policy.limits.wall_clock,
            cpu_time: policy.limits.cpu_time,
            grace: policy.grace,
            denials_total: policy.denials.total,
            denials_per_second: policy.denials.per_second,
        };
        let none = || crate::streams::Capture::None;
        let stdout = Pump::new(
            std::mem::replace(&mut plan.stdout, none()),
            policy.limits.output,
        );
        let stderr = Pump::new(
            std::mem::replace(&mut plan.stderr, none()),
            policy.limits.output,
        );
        let stdin = plan
            .stdin
            .take()
            .map(|(pipe, queue)| Feed::new(pipe, queue));
        let mut run = Self {
            key,
            undertaker,
            removing: false,
            outcome: Outcome::new(plan.run),
            plan,
            cell,
            permit: Some(permit),
            watchdog: Watchdog::new(now, bounds),
            sequence: 0,
            began: now,
            started: None,
            ended: None,
            born: false,
            child: None,
            listener: None,
            helper: None,
            in_hand: None,
            reader: Reader::default(),
            own_proc: None,
            stray: false,
            exit: None,
            decided: None,
            setup_failure: None,
            stdin,
            stdout,
            stderr,
            tails: <[Tail; 2]>::default(),
            cpu_check: None,
            share_at: None,
            oom_check: None,
            retry_at: None,
            stage: Stage::Alive,
            finish: None,
            told: false,
            storm: Storm::default(),
            #[cfg(feature = "test-hooks")]
            events: Vec::new(),
            epoll: epoll.clone(),
        };
        let event = EventKind::RunStarted {
            program: run.plan.program.to_string_lossy().into_owned(),
            interpreter: run
                .plan
                .interpreter
                .as_ref()
                .map(|p| p.to_string_lossy().into_owned()),
            arguments: run.plan.arguments.clone(),
            policy: sealed.digest.clone(),
            enforcement: match run.plan.scratch_status.take() {
                Some(status) => {
                    let mut enforcement = sealed.enforcement.clone();
                    enforcement.record(Layer::Scratch, status);
                    enforcement
                }
                None => sealed.enforcement.clone(),
            },
            traceparent: run.plan.traceparent,
        };
        run.emit(event, sealed);
        let group = &run.plan.group;
        let flags = EventFlags::PRI | EventFlags::ET;
        let watched = epoll::add(epoll, group.events(), encode(key, Source::Group), flags);
        run.check(watched.map_err(io::Error::from), "watch the group", sealed);
        if sealed.watches_oom
            && let Some(oom) = run.plan.group.oom()
        {
            let flags = EventFlags::IN | EventFlags::PRI | EventFlags::ET;
            let watched = epoll::add(epoll, oom, encode(key, Source::Oom), flags);
            run.check(
                watched.map_err(io::Error::from),
                "watch the memory of the group",
                sealed,
            );
        }
        run.arm_streams(sealed, epoll);
        run
    }

    pub(super) fn delivered(&self) -> bool {
        matches!(self.stage, Stage::Delivered | Stage::Over)
    }

    pub(super) fn over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub(super) fn waits_for_spawner(&self, now: Instant, patience: Duration) -> bool {
        !self.born && now >= self.began + patience
    }

    pub(super) fn next_wake(&self, patience: Duration) -> Option<Instant> {
        // Again and again: the thread that was started for this run may have got stuck with another one.
        let patience = (!self.born).then(|| {
            let now = Instant::now();
            let first = self.began + patience;
            if now < first { first } else { now + patience }
        });
        [
            self.watchdog.next_tick(),
            self.storm.next_wake(),
            self.reader.next_wake(),
            self.cpu_check,
            self.share_at,
            self.oom_check.map(|(at, _)| at),
            self.retry_at,
            patience,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// A run that cannot be watched is not left running.
    pub(super) fn check(&mut self, result: io::Result<()>, what: &str, sealed: &Sealed) {
        if let Err(error) = result {
            self.fault(what, &error, sealed);
            self.end(Cause::SupervisorFault, sealed);
        }
    }

    pub(super) fn observe(&mut self, observation: Observation, sealed: &Sealed) {
        let action = self.watchdog.on(Instant::now(), observation);
        self.act(action, sealed);
    }

    /// Ends the run for this cause, unless it is ending already.
    pub(super) fn end(&mut self, cause: Cause, sealed: &Sealed) {
        self.observe(Observation::Fatal(cause), sealed);
    }

    pub(super) fn act(&mut self, action: Action, sealed: &Sealed) {
        if matches!(action, Action::Kill(_) | Action::KillRest) {
            // It was made before that.
            self.settle_reading(None, sealed);
        }
        match action {
            Action::None => {}
            Action::Kill(cause) => {
                let cause = match cause {
                    Cause::SetupTimeout { .. } => Cause::SetupTimeout {
                        step: spawn::reached(&self.plan.report).to_string(),
                    },
                    cause => cause,
                };
                self.cell.mark_unwanted();
                if matches!(cause, Cause::WallClock | Cause::SetupTimeout { .. }) {
                    let limit = sealed.policy.limits.wall_clock;
                    self.emit(EventKind::DeadlinePassed { limit }, sealed);
                }
                self.kill_tree(sealed);
                if let Some(hit) = self.limit_behind(&cause, sealed) {
                    self.emit(EventKind::LimitHit(hit), sealed);
                }
                self.decided = Some(cause.clone());
                self.emit(EventKind::KillIssued { cause }, sealed);
                self.check_empty(sealed);
            }
            Action::KillRest => {
                if matches!(self.plan.group.populated(), Ok(false)) {
                    self.check_empty(sealed);
                    return;
                }
                let left = self.plan.group.processes();
                // Whether or not they can be seen and counted.
                self.kill_tree(sealed);
                match left {
                    Ok(left) if left.is_empty() => {}
                    Ok(left) => {
                        self.emit(EventKind::DescendantsKilled { count: left.len() }, sealed);
                    }
                    Err(error) => {
                        self.fault("count what the first process left", &error, sealed);
                    }
                }
                self.check_empty(sealed);
            }
            Action::Finish => self.begin_cleaning(sealed),
            Action::GiveUp => {
                self.settle(sealed);
                let pids = self.plan.group.processes().unwrap_or_default();
                let state = if self.in_hand.is_some() && pids.is_empty() {
                    "a change of a file that the file system does not end".to_owned()
                } else if self.born {
                    "processes that the kernel does not end".to_owned()
                } else {
                    format!("set-up stuck at step {}", spawn::reached(&self.plan.report))
                };
                self.deliver(Cleanup::Incomplete { pids, state }, sealed);
                self.stage = Stage::Delivered;
                self.retry_at = Some(Instant::now() + LATE_RETRY);
            }
        }
    }

    pub(super) fn kill_tree(&mut self, sealed: &Sealed) {
        self.retry_at = Some(Instant::now() + KILL_RETRY);
        self.kill_in_set_up();
        if let Err(error) = self.plan.group.kill() {
            self.fault("kill the tree", &error, sealed);
            if let Some((_, pidfd)) = &self.child {
                let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
            }
        }
    }

    /// A child that has to join its group is not in it from the start, and a kill of the group misses it.
    pub(super) fn kill_in_set_up(&self) {
        if !self.born {
            spawn::kill_in_set_up(&self.plan.report);
        }
    }

    /// A guest can make processes that the kernel's kill of a group does not reach.
    fn kill_again(&mut self, sealed: &Sealed) {
        self.kill_in_set_up();
        match self.plan.group.populated() {
            Ok(false) if self.born => return self.check_empty(sealed),
            Ok(false) => {
                self.retry_at = Some(Instant::now() + KILL_RETRY);
                return;
            }
            Ok(true) => {}
            Err(error) => self.fault("see whether the group is empty", &error, sealed),
        }
        if let Err(error) = self.plan.group.kill_each() {
            self.fault("kill what is left of the tree", &error, sealed);
        }
        self.retry_at = Some(Instant::now() + KILL_RETRY);
    }

    /// The limit that a kill enforces, with VAREK's own evidence.
    pub(super) fn limit_behind(&self, cause: &Cause, sealed: &Sealed) -> Option<LimitHit> {
        let limits = &sealed.policy.limits;
        Some(match cause {
            Cause::WallClock | Cause::SetupTimeout { .. } => LimitHit {
                resource: Resource::WallClock,
                limit: Some(micros(limits.wall_clock)),
                count: micros(self.began.elapsed()),
                evidence: "CLOCK_MONOTONIC: microseconds since the start".into(),
            },
            Cause::CpuTime => LimitHit {
                resource: Resource::CpuTime,
                limit: limits.cpu_time.map(micros),
                count: self.cpu_time().map(micros)?,
                evidence: "cpu.stat: user_usec + system_usec".into(),
            },
            Cause::OutputLimit => LimitHit {
                resource: Resource::Output,
                limit: Some(limits.output),
                count: limits.output.saturating_add(1),
                evidence: "bytes read from one stream, at least".into(),
            },
            _ => return None,
        })
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.plan
            .group
            .usage()
            .ok()
            .map(|usage| usage.cpu_user + usage.cpu_system)
    }

    // ---- what the spawner says ----

    pub(super) fn on_born(&mut self, born: Born, sealed: &Sealed, epoll: &OwnedFd) {
        self.born = true;
        self.own_proc = born.own_proc;
        self.stray = born.stray;
        self.setup_failure = born.failure;
        let Some((pid, pidfd)) = born.child else {
            self.exit = None;
            self.observe(Observation::FirstProcessEnded, sealed);
            self.check_empty(sealed);
            return;
        };
        let watched = epoll::add(
            epoll,
            &pidfd,
            encode(self.key, Source::Pidfd),
            EventFlags::IN,
        );
        let handle = pidfd.try_clone();
        self.child = Some((pid, pidfd));
        self.check(
            watched.map_err(io::Error::from),
            "watch the first process",
            sealed,
        );
        if let Some(listener) = born.listener {
            self.listener = Some(Arc::new(listener));
            self.watch_listener(sealed);
        }
        if self.watchdog.dying() {
            // It was born into a group that had been killed before.
            self.kill_tree(sealed);
        }
        if self.told {
            return;
        }
        let at_exec = spawn::reached(&self.plan.report) == SetupStep::Exec;
        if self.setup_failure.is_some() || !at_exec {
            return;
        }
        let now = Instant::now();
        self.started = Some(now);
        self.emit(EventKind::GuestStarted { pid }, sealed);
        match handle {
            Ok(handle) => self.cell.start(pid, handle),
            // Whoever waits for the start would wait for the end.
            Err(error) => self.check(Err(error), "duplicate the pidfd", sealed),
        }
        if sealed.group_limits.cpu.is_some() {
            self.share_at = Some(now + Limits::CPU_SHARE_DELAY);
        }
        if sealed.policy.limits.cpu_time.is_some() {
            self.cpu_check = Some(now);
        }
        self.observe(Observation::Started, sealed);
    }

    // ---- what epoll says ----

    pub(super) fn on_ready(&mut self, source: Source, sealed: &Sealed, epoll: &OwnedFd) {
        match source {
            Source::Listener => self.on_listener(sealed, epoll),
            Source::Oom => self.on_oom(0, sealed),
            Source::Stdin => self.on_stdin(sealed, epoll),
            Source::Stdout => self.on_output(Stream::Stdout, sealed, epoll),
            Source::Stderr => self.on_output(Stream::Stderr, sealed, epoll),
            Source::Pidfd => self.on_pidfd(sealed, epoll),
            Source::Group => self.check_empty(sealed),
        }
    }

    /// The v1 memory controller kills one process where v2 kills the group: VAREK does the rest.
    fn on_oom(&mut self, checks: u32, sealed: &Sealed) {
        self.oom_check = None;
        if !matches!(self.stage, Stage::Alive) {
            // The counters were read when the tree was dead. The removal of the group is a notice too.
            return;
        }
        match self.plan.group.counters() {
            Ok(counters) => {
                if let Some(cause) = account::memory_cause(&counters) {
                    if !self.watchdog.dying() {
                        self.end(cause, sealed);
                    }
                } else if checks < OOM_CHECKS && !self.watchdog.dying() {
                    self.oom_check = Some((Instant::now() + RETRY, checks + 1));
                }
            }
            Err(error) => self.fault("read the memory counters", &error, sealed),
        }
    }

    fn on_pidfd(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        let Some((_, pidfd)) = &self.child else {
            return;
        };
        if self.exit.is_some() {
            return;
        }
        let reaped = reap(pidfd);
        if !matches!(reaped, Ok(None)) {
            let _ = epoll::delete(epoll, pidfd);
        }
        let exit = match reaped {
            Ok(Some(exit)) => exit,
            Ok(None) => return,
            Err(error) => {
                self.fault("read the status of the first process", &error, sealed);
                Exit::Taken
            }
        };
        // What it did comes before its end.
        self.settle_reading(None, sealed);
        self.reaped(exit);
        if self.started.is_some() {
            let termination = exit.as_termination();
            if let Exit::Signaled(signal) = exit
                && self.decided.is_none()
            {
                self.emit(EventKind::GuestSignaled { signal }, sealed);
            }
            self.emit(EventKind::GuestExited { termination }, sealed);
        }
        self.observe(Observation::FirstProcessEnded, sealed);
        self.check_empty(sealed);
    }

    pub(super) fn reaped(&mut self, exit: Exit) {
        self.exit = Some(exit);
        if std::mem::take(&mut self.stray) {
            spawn::close_strays();
        }
    }

    pub(super) fn check_empty(&mut self, sealed: &Sealed) {
        if !matches!(self.stage, Stage::Alive | Stage::Delivered) || !self.born {
            return;
        }
        if self.child.is_some() && self.exit.is_none() {
            return;
        }
        // Nothing is changed after the end.
        if self.in_hand.is_some() {
            return;
        }
        match self.plan.group.populated() {
            Ok(false) if matches!(self.stage, Stage::Alive) => {
                self.observe(Observation::Empty, sealed);
            }
            Ok(_) => {}
            Err(error) => self.fault("see whether the group is empty", &error, sealed),
        }
    }

    // ---- streams ----

    pub(super) fn on_streams(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        self.on_stdin(sealed, epoll);
        for stream in [Stream::Stdout, Stream::Stderr] {
            if self.pump(stream).paused && self.pump(stream).has_room() {
                self.pump(stream).paused = false;
            }
        }
        self.arm_streams(sealed, epoll);
    }

    pub(super) fn pump(&mut self, stream: Stream) -> &mut Pump {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn arm_streams(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        for (stream, source) in [
            (Stream::Stdout, Source::Stdout),
            (Stream::Stderr, Source::Stderr),
        ] {
            let data = encode(self.key, source);
            let pump = self.pump(stream);
            let wanted = pump.pipe().is_some() && !pump.paused;
            let result = match (pump.pipe(), pump.armed, wanted) {
                (Some(pipe), false, true) => epoll::add(epoll, pipe, data, EventFlags::IN),
                (Some(pipe), true, false) => epoll::delete(epoll, pipe),
                _ => Ok(()),
            };
            pump.armed = wanted;
            self.check(result.map_err(io::Error::from), "watch an output", sealed);
        }
        self.on_stdin(sealed, epoll);
    }

    fn on_stdin(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        let data = encode(self.key, Source::Stdin);
        let Some(feed) = &mut self.stdin else { return };
        let was_armed = feed.armed;
        let fed = feed.write();
        if fed == Fed::Over {
            self.close_stdin();
            return;
        }
        let more = fed == Fed::More;
        feed.armed = more;
        let result = match (feed.pipe(), was_armed, more) {
            (Some(pipe), false, true) => epoll::add(epoll, pipe, data, EventFlags::OUT),
            (Some(pipe), true, false) => epoll::delete(epoll, pipe),
            _ => Ok(()),
        };
        self.check(result.map_err(io::Error::from), "watch the input", sealed);
    }

    fn on_output(&mut self, stream: Stream, sealed: &Sealed, epoll: &OwnedFd) {
        match self.pump(stream).read(false) {
            Ok(Left::Open) => {}
            Ok(Left::Full) => {
                self.pump(stream).paused = true;
                self.arm_streams(sealed, epoll);
            }
            Ok(Left::Closed) => self.close_output(stream),
            Err(error) => {
                self.close_output(stream);
                self.fault("read an output", &error, sealed);
            }
        }
        self.check_output(stream, sealed);
    }

    // A file leaves the epoll by itself only when its last descriptor is closed (epoll(7)). Children on their
    // way to their exec and forked copies of the embedder have descriptors of the same files, and what is
    // ready for ever would then be told for ever: everything is taken out by hand before it is closed.

    pub(super) fn close_output(&mut self, stream: Stream) {
        let epoll = self.epoll.clone();
        let pump = self.pump(stream);
        if let Some(pipe) = pump.pipe().filter(|_| pump.armed) {
            let _ = epoll::delete(epoll, pipe);
        }
        pump.armed = false;
        pump.close();
    }

    pub(super) fn close_stdin(&mut self) {
        if let Some(feed) = self.stdin.take()
            && let Some(pipe) = feed.pipe().filter(|_| feed.armed)
        {
            let _ = epoll::delete(&self.epoll, pipe);
        }
    }

    pub(super) fn forget_group(&self) {
        let group = &self.plan.group;
        let _ = epoll::delete(&self.epoll, group.events());
        // It may not have been put in.
        if let Some(oom) = group.oom() {
            let _ = epoll::delete(&self.epoll, oom);
        }
    }

    pub(super) fn check_output(&mut self, stream: Stream, sealed: &Sealed) {
        let pump = self.pump(stream);
        if !pump.over() || pump.cut_reported {
            return;
        }
        pump.cut_reported = true;
        match sealed.policy.overflow {
            Overflow::Kill => self.end(Cause::OutputLimit, sealed),
            Overflow::Truncate => {
                let limit = sealed.policy.limits.output;
                self.emit(EventKind::OutputTruncated { stream, limit }, sealed);
            }
        }
    }

    // ---- what the clock says ----

    pub(super) fn on_time(&mut self, now: Instant, sealed: &Sealed, epoll: &OwnedFd) {
        if self.watchdog.next_tick().is_some_and(|at| now >= at) {
            self.observe(Observation::Tick, sealed);
        }
        if self.share_at.is_some_and(|at| now >= at) {
            self.share_at = None;
            if !self.watchdog.dying()
                && let Err(error) = self.plan.group.apply_cpu()
            {
                self.fault("set the CPU share", &error, sealed);
                self.end(Cause::SupervisorFault, sealed);
            }
        }
        if self.storm.next_wake().is_some_and(|at| now >= at) {
            self.storm_passes(now, sealed);
        }
        self.reading_passes(now, sealed);
        if self.cpu_check.is_some_and(|at| now >= at) {
            self.check_cpu(now, sealed);
        }
        if let Some((_, checks)) = self.oom_check.filter(|(at, _)| now >= *at) {
            self.on_oom(checks, sealed);
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            match self.stage {
                Stage::Alive => self.kill_again(sealed),
                Stage::Cleaning { until } => self.clean(until, sealed),
                Stage::Delivered => self.clean_late(sealed, epoll),
                Stage::Over => {}
            }
        }
    }

    /// Looks again when the limit could have been used up at the earliest.
    fn check_cpu(&mut self, now: Instant, sealed: &Sealed) {
        self.cpu_check = None;
        if self.watchdog.dying() {
            return;
        }
        match (self.cpu_time(), sealed.policy.limits.cpu_time) {
            (Some(used), Some(limit)) => {
                self.observe(Observation::CpuTime(used), sealed);
                let cpus = u32::try_from(sealed.most_cpus.max(1)).unwrap_or(u32::MAX);
                let earliest = limit.saturating_sub(used) / cpus;
                self.cpu_check = Some(now + earliest.max(Duration::from_millis(10)));
            }
            (None, Some(_)) => {
                self.fault("read the CPU time", &"cpu.stat cannot be read", sealed);
                self.end(Cause::SupervisorFault, sealed);
            }
            _ => {}
        }
    }
}

/// The status of a child that has ended; `None` while it has not.
pub(super) fn reap(pidfd: &OwnedFd) -> io::Result<Option<Exit>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(None) | Err(rustix::io::Errno::INTR) => Ok(None),
        Ok(Some(status)) => Ok(Some(
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Exited(code),
                (None, Some(signal)) => Exit::Signaled(Signal(signal)),
                (None, None) => Exit::Taken,
            },
        )),
        // Somebody else took the status. From Linux 6.15 on the pidfd tells it all the same.
        Err(rustix::io::Errno::CHILD) => Ok(Some(match sys::reaped_status(pidfd.as_fd()) {
            Some(status) if libc::WIFEXITED(status) => Exit::Exited(libc::WEXITSTATUS(status)),
            Some(status) if libc::WIFSIGNALED(status) => {
                Exit::Signaled(Signal(libc::WTERMSIG(status)))
            }
            _ => Exit::Taken,
        })),
        Err(error) => Err(error.into()),
    }
}
