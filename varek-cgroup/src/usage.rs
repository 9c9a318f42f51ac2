//! What the kernel counted.

use std::time::Duration;

/// Counters of one group that say which limits were met, each with the file that it was read from.
///
/// One counter is not a cause. `oom_kill` counts kills by *any* OOM killer, also the host's or that of a group
/// above; the own limit is the cause only where `memory_limit_reached` is not 0 as well. `pids_refused` may
/// count refusals of a group above (a container's task limit): [`Counters::pids_refused_by_own_limit`] tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Processes of this group, or of groups below it, killed by an OOM killer. Version 1 counts each
    /// process by itself: it has no group kill.
    pub oom_kill: u64,
    /// How often the group's own limit set off its OOM killer. Only version 2 tells; 0 on version 1.
    pub oom: u64,
    /// Where `oom_kill` was read; empty without the memory controller.
    pub oom_evidence: &'static str,
    /// How often an allocation met the group's own memory limit, reclaim of page cache included. Read only
    /// where `oom_kill` is not 0, and 0 otherwise.
    pub memory_limit_reached: u64,
    /// Where `memory_limit_reached` was read; empty without the memory controller.
    pub memory_evidence: &'static str,
    /// How often a fork or clone in the group was refused (EAGAIN) by a task limit. From Linux 6.11
    /// on unified hosts only refusals by this group's own limit count here.
    pub pids_refused: u64,
    /// Where `pids_refused` was read; empty without the pids controller.
    pub pids_evidence: &'static str,
    /// There were refusals, and the group had as many tasks as its own limit allows, so that the own limit
    /// refused. Needs `pids.peak` (Linux 6.1); before that, it is true only while the group is full.
    pub pids_refused_by_own_limit: bool,
}

/// What one group used so far, groups below it included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// CPU time in user mode.
    pub cpu_user: Duration,
    /// CPU time in kernel mode.
    pub cpu_system: Duration,
    /// The most memory at a time, in bytes; `None` without the controller, or before Linux 5.19 on unified hosts.
    pub memory_peak: Option<u64>,
    /// The most tasks at a time; `None` without the controller, or before Linux 6.1.
    pub pids_peak: Option<u64>,
    /// How long tasks waited because the CPU quota was used up, summed over CPUs; `None` without the controller.
    pub throttled: Option<Duration>,
    /// In how many periods the quota was used up; `None` without the controller.
    pub throttled_periods: Option<u64>,
}
