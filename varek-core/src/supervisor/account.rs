//! What the evidence says: from counters and the exit status to causes. Pure.
//!
//! One counter alone is never enough where it counts too much: the OOM killer's count includes kills by
//! the host's or an ancestor's shortage, so the run's own limit must have been reached as well; refused
//! forks count the limits above the run, so the peak must have been at the run's own.

use std::time::Duration;

use varek_cgroup::{Counters, Limits as GroupLimits};
use varek_telemetry::{Cause, LimitHit, Resource, Signal, Termination, UnknownReason, Usage};

/// How the kernel says that the first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Exited(i32),
    Signaled(Signal),
    /// The embedder took the status, or has it discarded.
    Taken,
}

impl Exit {
    /// What the status alone says.
    pub(super) fn as_termination(self) -> Termination {
        match self {
            Self::Exited(code) => Termination::Exited(code),
            Self::Signaled(signal) => Termination::Signaled(signal),
            Self::Taken => Termination::Unknown {
                reason: UnknownReason::StatusTaken,
            },
        }
    }
}

/// Everything that names a cause.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) exit: Option<Exit>,
    /// What VAREK killed the tree for, if it did so before it saw the first process end.
    pub(super) decided: Option<&'a Cause>,
    pub(super) counters: Option<&'a Counters>,
    /// CPU time of the tree.
    pub(super) cpu: Duration,
    pub(super) cpu_limit: Option<Duration>,
}

impl Evidence<'_> {
    /// The memory cause, where the OOM killer acted in the run's group.
    fn out_of_memory(&self) -> Option<Cause> {
        self.counters.and_then(memory_cause)
    }

    pub(super) fn termination(&self) -> Termination {
        match self.exit {
            Some(Exit::Exited(code)) => Termination::Exited(code),
            Some(Exit::Signaled(Signal::KILL)) => match (self.decided, self.out_of_memory()) {
                (Some(cause), _) => Termination::Killed(cause.clone()),
                (None, Some(cause)) => Termination::Killed(cause),
                (None, None) if self.cpu_used_up() => Termination::Killed(Cause::CpuTime),
                (None, None) => Termination::Signaled(Signal::KILL),
            },
            // RLIMIT_CPU sends SIGXCPU, and so can the guest itself: the time must have been used too.
            Some(Exit::Signaled(Signal::XCPU)) if self.cpu_used_up() => {
                Termination::Killed(Cause::CpuTime)
            }
            Some(Exit::Signaled(signal)) => Termination::Signaled(signal),
            Some(Exit::Taken) => match self.decided {
                // The tree is dead, and VAREK's own record says by whose hand.
                Some(cause) => Termination::Killed(cause.clone()),
                None => Termination::Unknown {
                    reason: UnknownReason::StatusTaken,
                },
            },
            None => match self.decided {
                Some(cause) => Termination::Killed(cause.clone()),
                None => Termination::Unknown {
                    reason: UnknownReason::StillRunning,
                },
            },
        }
    }

    fn cpu_used_up(&self) -> bool {
        self.cpu_limit.is_some_and(|limit| self.cpu >= limit)
    }
}

/// The memory cause that the counters prove, if they prove one.
pub(super) fn memory_cause(counters: &Counters) -> Option<Cause> {
    match (counters.oom_kill, counters.memory_limit_reached) {
        (0, _) => None,
        (_, 0) => Some(Cause::HostOutOfMemory),
        _ => Some(Cause::OutOfMemory),
    }
}

/// The limits of the groups that the counters prove to have been met.
pub(super) fn limits_hit(
    counters: &Counters,
    limits: &GroupLimits,
    usage: &Usage,
) -> Vec<LimitHit> {
    let mut hits = Vec::new();
    if counters.oom_kill > 0 {
        let own = memory_cause(counters) == Some(Cause::OutOfMemory);
        hits.push(LimitHit {
            resource: Resource::Memory,
            limit: limits.memory.filter(|_| own),
            count: counters.oom_kill,
            evidence: if own {
                format!(
                    "{}, with {} = {}",
                    counters.oom_evidence, counters.memory_evidence, counters.memory_limit_reached
                )
            } else {
                counters.oom_evidence.to_owned()
            },
        });
    }
    if counters.pids_refused > 0 {
        hits.push(LimitHit {
            resource: Resource::Pids,
            limit: limits.pids.filter(|_| counters.pids_refused_by_own_limit),
            count: counters.pids_refused,
            evidence: counters.pids_evidence.to_owned(),
        });
    }
    let throttled = usage.throttled.unwrap_or_default();
    if let Some(cpu) = &limits.cpu
        && !throttled.is_zero()
    {
        hits.push(LimitHit {
            resource: Resource::CpuShare,
            limit: Some(micros(cpu.quota())),
            count: micros(throttled),
            evidence: "cpu.stat: throttled time".into(),
        });
    }
    hits
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
