//! The end of one run: the last of its output, the accounts, and the removal of what it made.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use varek_cgroup::Removal;
use varek_telemetry::{
    Cause, Cleanup, EventKind, LimitHit, Resource, Signal, Stream, Termination, Usage,
};

use super::account::{self, Evidence, Exit};
use super::orphans;
use super::run::{LATE_RETRY, RETRY, Run, Stage, reap};
use crate::cell::Finish;
use crate::error::Error;
use crate::mounts;
use crate::outcome::Outcome;
use crate::removers::{Remains, Stuck};
use crate::sandbox::Sealed;
use crate::spawn;

/// However late a tree died, what it made is not said to be left before a removal had this long.
const LEAST_CLEANING: Duration = Duration::from_millis(20);

impl Run {
    /// The tree is dead: what it wrote and what the kernel counted is final.
    pub(super) fn begin_cleaning(&mut self, sealed: &Sealed) {
        self.settle(sealed);
        // The grace is one for the death of the tree and for the removal.
        let now = Instant::now();
        let grace_ends = self.watchdog.dying_since().unwrap_or(now) + sealed.policy.grace;
        let until = grace_ends.max(now + LEAST_CLEANING);
        self.stage = Stage::Cleaning { until };
        self.clean(until, sealed);
    }

    /// Takes the last of the output and of the counters into the account.
    pub(super) fn settle(&mut self, sealed: &Sealed) {
        let now = Instant::now();
        self.ended = Some(now);
        self.cpu_check = None;
        self.share_at = None;
        self.oom_check = None;
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Err(error) = self.pump(stream).read(true) {
                self.fault("read the last of an output", &error, sealed);
            }
            self.close_output(stream);
            self.check_output(stream, sealed);
        }
        let (out, err) = (self.stdout.finish(), self.stderr.finish());
        (self.outcome.stdout, self.outcome.stderr) = (out.begin, err.begin);
        self.tails = [out.tail, err.tail];
        self.close_stdin();
        let usage = self.usage(sealed);
        let counters = match self.plan.group.counters() {
            Ok(counters) => Some(counters),
            Err(error) => {
                self.fault("read the counters of the group", &error, sealed);
                None
            }
        };
        if let Some(counters) = &counters {
            for hit in account::limits_hit(counters, self.plan.group.limits(), &usage) {
                self.emit(EventKind::LimitHit(hit), sealed);
            }
        }
        if let (Some(Exit::Signaled(Signal::XFSZ)), Some(limit)) =
            (self.exit, sealed.policy.limits.file_size)
        {
            let evidence = "SIGXFSZ of the first process".into();
            let resource = Resource::FileSize;
            let hit = LimitHit {
                resource,
                limit: Some(limit),
                count: 1,
                evidence,
            };
            self.emit(EventKind::LimitHit(hit), sealed);
        }
        self.look_at_scratch(sealed);
        let evidence = Evidence {
            exit: self.exit,
            decided: self.decided.as_ref(),
            counters: counters.as_ref(),
            cpu: usage.cpu_user + usage.cpu_system,
            cpu_limit: sealed.policy.limits.cpu_time,
        };
        let termination = evidence.termination();
        // The kernel was there first (RLIMIT_CPU): the limit is the evidence, and the violation.
        if self.decided.is_none()
            && termination == Termination::Killed(Cause::CpuTime)
            && let Some(hit) = self.limit_behind(&Cause::CpuTime, sealed)
        {
            self.emit(EventKind::LimitHit(hit), sealed);
        }
        self.outcome.termination = termination;
        self.outcome.usage = usage;
    }

    /// A scratch directory without a free block or file is at its bound. One that was, and from which the guest has removed
    /// something since, leaves no evidence.
    fn look_at_scratch(&mut self, sealed: &Sealed) {
        let Some(bound) = sealed.bound else { return };
        let made = self
            .plan
            .scratch
            .as_ref()
            .filter(|made| made.to_be_mounted());
        let Some(left) = made.map(|made| mounts::left(made.directory())) else {
            return;
        };
        let (blocks, files) = match left {
            Ok(left) => left,
            Err(errno) => return self.fault("look at the scratch directory", &errno, sealed),
        };
        for (resource, limit, left, what) in [
            (Resource::Scratch, bound.bytes, blocks, "block"),
            (Resource::ScratchFiles, bound.files, files, "file"),
        ] {
            if left == 0 {
                let evidence =
                    format!("statfs of the scratch directory: no free {what} at the end");
                let hit = LimitHit {
                    resource,
                    limit: Some(limit),
                    count: limit,
                    evidence,
                };
                self.emit(EventKind::LimitHit(hit), sealed);
            }
        }
    }

    fn usage(&mut self, sealed: &Sealed) -> Usage {
        let mut usage = Usage::default();
        let since = self.started.unwrap_or(self.began);
        usage.wall_clock = since.elapsed();
        match self.plan.group.usage() {
            Ok(counted) => {
                usage.cpu_user = counted.cpu_user;
                usage.cpu_system = counted.cpu_system;
                usage.memory_peak = counted.memory_peak;
                usage.pids_peak = counted.pids_peak;
                usage.throttled = counted
                    .throttled
                    .filter(|_| sealed.group_limits.cpu.is_some());
            }
            Err(error) => self.fault("read the usage of the group", &error, sealed),
        }
        usage
    }

    /// Removes what the run made, as far as it goes without waiting.
    pub(super) fn clean(&mut self, until: Instant, sealed: &Sealed) {
        match self.remove_all(sealed) {
            Ok(true) => {
                self.deliver(Cleanup::Complete, sealed);
                self.stage = Stage::Over;
            }
            Ok(false) if Instant::now() < until => {
                self.retry_at = Some(if self.removing {
                    until
                } else {
                    Instant::now() + RETRY
                });
            }
            Ok(false) => self.leave("the group or the scratch directory is still in use", sealed),
            Err(reason) => self.leave(&reason, sealed),
        }
    }

    fn leave(&mut self, reason: &str, sealed: &Sealed) {
        let pids = self.plan.group.processes().unwrap_or_default();
        let state = format!(
            "{reason} (group {}, scratch {})",
            self.plan.group.path().display(),
            self.plan.scratch_path.display()
        );
        self.deliver(Cleanup::Incomplete { pids, state }, sealed);
        self.stage = Stage::Delivered;
        self.retry_at = Some(Instant::now() + LATE_RETRY);
    }

    /// One try; whether everything is gone.
    fn remove_all(&mut self, sealed: &Sealed) -> Result<bool, String> {
        if sealed.host.init || sealed.host.subreaper {
            let name = self.plan.run.to_string();
            let seen = orphans::reap(&name);
            let charged = match self.plan.group.tasks_charged() {
                Ok(charged) => charged.unwrap_or(seen as u64),
                // An earlier try removed the group from this hierarchy: nobody was left in it.
                Err(varek_cgroup::Error::Io { source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) =>
                {
                    0
                }
                Err(error) => return Err(error.to_string()),
            };
            if charged > 0 {
                return Ok(false);
            }
        }
        // The group goes last: as long as it is there, it says that the tree is dead.
        if let Some(scratch) = self.plan.scratch.take() {
            self.removing = true;
            self.undertaker.take(Remains {
                scratch,
                collection: self.plan.collection.clone(),
                namespaces: self.plan.namespaces.take(),
                lease: self.plan.lease.take(),
                sent_descriptors: sealed.sends_descriptors,
            });
        }
        if self.removing {
            return Ok(false);
        }
        match self.plan.group.remove() {
            Ok(removal) => Ok(removal == Removal::Removed),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What came of the removal of the scratch directory.
    pub(super) fn on_removed(
        &mut self,
        result: Result<(), Box<Stuck>>,
        sealed: &Sealed,
        epoll: &OwnedFd,
    ) {
        self.removing = false;
        let reason = match result {
            Ok(()) => None,
            Err(stuck) => {
                let Stuck { remains, reason } = *stuck;
                self.plan.scratch = Some(remains.scratch);
                self.plan.lease = remains.lease;
                Some(reason.to_string())
            }
        };
        match (&self.stage, reason) {
            (Stage::Cleaning { until }, None) => {
                let until = *until;
                self.clean(until, sealed);
            }
            (Stage::Cleaning { .. }, Some(reason)) => self.leave(&reason, sealed),
            (Stage::Delivered, None) => self.clean_late(sealed, epoll),
            _ => {}
        }
    }

    /// The outcome is out already; what was left may have gone meanwhile.
    pub(super) fn clean_late(&mut self, sealed: &Sealed, epoll: &OwnedFd) {
        self.retry_at = Some(Instant::now() + LATE_RETRY);
        if !self.born {
            self.kill_in_set_up();
            return;
        }
        let _ = self.plan.group.kill_each();
        if self.exit.is_none() && self.child.is_some() {
            self.on_pidfd_late(epoll);
        }
        let ended = (self.child.is_none() || self.exit.is_some()) && self.in_hand.is_none();
        if !ended || matches!(self.plan.group.populated(), Ok(true)) {
            return;
        }
        if matches!(self.remove_all(sealed), Ok(true)) {
            self.stage = Stage::Over;
        }
    }

    fn on_pidfd_late(&mut self, epoll: &OwnedFd) {
        let Some((_, pidfd)) = &self.child else {
            return;
        };
        if let Ok(Some(exit)) = reap(pidfd) {
            let _ = epoll::delete(epoll, pidfd);
            self.reaped(exit);
        }
    }

    /// Hands the outcome over.
    pub(super) fn deliver(&mut self, cleanup: Cleanup, sealed: &Sealed) {
        let complete = cleanup == Cleanup::Complete;
        let finish = if let Some(error) = self.not_started() {
            Finish::NotStarted(error)
        } else {
            let termination = self.outcome.termination.clone();
            let usage = self.outcome.usage;
            let finished = EventKind::RunFinished {
                termination,
                usage,
                cleanup,
            };
            self.emit(finished, sealed);
            #[cfg(feature = "test-hooks")]
            self.compare_with_events();
            self.outcome.scratch = Some(self.plan.scratch_path.clone());
            self.outcome.files = self.plan.collection.result();
            let empty = Outcome::new(self.plan.run);
            Finish::Outcome {
                outcome: Box::new(std::mem::replace(&mut self.outcome, empty)),
                tails: std::mem::take(&mut self.tails),
            }
        };
        // Everything of the run is gone before its end is known, its place included.
        self.drop_listener();
        self.helper = None;
        self.own_proc = None;
        if complete || self.exit.is_some() {
            self.child = None;
        }
        self.permit = None;
        if complete {
            self.finish = Some(finish);
        } else {
            self.cell.finish(finish);
        }
    }

    /// Makes the end of the run known, when its descriptors are closed too.
    pub(super) fn conclude(mut self) {
        let (cell, finish) = (self.cell.clone(), self.finish.take());
        self.drop_listener();
        self.forget_group();
        drop(self);
        if let Some(finish) = finish {
            cell.finish(finish);
        }
    }

    /// The error of a run whose program never ran, unless a limit or the embedder ended it in set-up.
    fn not_started(&mut self) -> Option<Error> {
        if self.started.is_some() || self.decided.is_some() {
            return None;
        }
        if let Some((step, source)) = self.setup_failure.take() {
            return Some(Error::Setup { step, source });
        }
        let how = match (self.exit, &self.outcome.termination) {
            (_, Termination::Killed(cause)) => cause.to_string(),
            (Some(exit), _) => exit.as_termination().to_string(),
            (None, _) => "it was never created".into(),
        };
        Some(Error::SetupDied {
            step: spawn::reached(&self.plan.report),
            how,
        })
    }

    /// The supervisor ends without having watched this run to its end.
    pub(super) fn abandon(&mut self, reason: &str) {
        self.cell.mark_unwanted();
        if !self.over() {
            self.kill_in_set_up();
            let _ = self.plan.group.kill();
            if let Some(lease) = self.plan.lease.take() {
                // Somebody may still run under this number.
                lease.retire();
            }
        }
        if let Some(finish) = self.finish.take() {
            self.cell.finish(finish);
        } else if !self.delivered() {
            self.cell.lose(reason);
        }
    }
}
