//! Reads what the kernel counted in a group.

use std::time::Duration;

use crate::error::Error;
use crate::group::Group;
use crate::layout::Controller;
use crate::parse::{keyed, number_or_max};
use crate::usage::{Counters, Usage};

impl Group {
    /// What the kernel counted. Read it before the group is removed, and after the run's last process is
    /// gone for final numbers.
    ///
    /// On unified hosts this reads [`Group::oom`], which is then ready at the next change.
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed.
    pub fn counters(&self) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        match self.places().of(Controller::Memory) {
            None => {}
            Some((memory, true)) => {
                let events = self.memory_events(memory)?;
                counters.oom_kill = keyed(&events, "oom_kill").unwrap_or(0);
                counters.oom_evidence = "memory.events oom_kill";
                counters.memory_evidence = "memory.events max, oom";
                // Every run's end passes here: without a kill there is nothing to attribute.
                if counters.oom_kill > 0 {
                    // The local file leaves out what limits of groups below the run's own did.
                    let (local, evidence) = match memory.read_optional("memory.events.local")? {
                        Some(local) => (local, "memory.events.local max, oom"),
                        None => (events, "memory.events max, oom"),
                    };
                    counters.oom = keyed(&local, "oom").unwrap_or(0);
                    let reached = keyed(&local, "max").unwrap_or(0);
                    counters.memory_limit_reached = reached.saturating_add(counters.oom);
                    counters.memory_evidence = evidence;
                }
            }
            Some((memory, false)) => {
                let control = memory.read("memory.oom_control")?;
                counters.oom_kill = keyed(&control, "oom_kill").unwrap_or(0);
                counters.oom_evidence = "memory.oom_control oom_kill";
                counters.memory_evidence = "memory.failcnt + memory.memsw.failcnt";
                if counters.oom_kill > 0 {
                    let number = |text: Option<String>| {
                        text.and_then(|text| number_or_max(&text)).unwrap_or(0)
                    };
                    // With equal limits the charge for memory and swap together is tried first and fails first.
                    let failed = number(memory.read_optional("memory.failcnt")?)
                        .saturating_add(number(memory.read_optional("memory.memsw.failcnt")?));
                    counters.memory_limit_reached = failed;
                    if failed == 0
                        && let Some(limit) = self.limits().memory
                        && number(memory.read_optional("memory.max_usage_in_bytes")?) >= limit
                    {
                        counters.memory_limit_reached = 1;
                        counters.memory_evidence = "memory.max_usage_in_bytes at the limit";
                    }
                }
            }
        }
        if let Some((pids, _)) = self.places().of(Controller::Pids) {
            let events = pids.read("pids.events")?;
            counters.pids_refused = keyed(&events, "max").unwrap_or(0);
            let peak = match counters.pids_refused {
                0 => None,
                _ => pids.read_optional("pids.peak")?,
            };
            counters.pids_evidence = if peak.is_some() || counters.pids_refused == 0 {
                "pids.events max, pids.peak"
            } else {
                "pids.events max, pids.current"
            };
            if counters.pids_refused > 0
                && let Some(limit) = self.limits().pids
            {
                let most = match peak {
                    Some(peak) => peak,
                    None => pids.read("pids.current")?,
                };
                counters.pids_refused_by_own_limit =
                    number_or_max(&most).is_some_and(|most| most >= limit);
            }
        }
        Ok(counters)
    }

    /// What the group used so far. CPU times come from the cgroup2 group, which has them without any controller.
    ///
    /// # Errors
    /// [`Error::Io`] where the group was removed.
    pub fn usage(&self) -> Result<Usage, Error> {
        let places = self.places();
        let stat = places.unified.read("cpu.stat")?;
        let mut usage = Usage {
            cpu_user: Duration::from_micros(keyed(&stat, "user_usec").unwrap_or(0)),
            cpu_system: Duration::from_micros(keyed(&stat, "system_usec").unwrap_or(0)),
            ..Usage::default()
        };
        match places.of(Controller::Cpu) {
            None => {}
            Some((_, true)) => {
                usage.throttled = keyed(&stat, "throttled_usec").map(Duration::from_micros);
                usage.throttled_periods = keyed(&stat, "nr_throttled");
            }
            Some((cpu, false)) => {
                let stat = cpu.read("cpu.stat")?;
                usage.throttled = keyed(&stat, "throttled_time").map(Duration::from_nanos);
                usage.throttled_periods = keyed(&stat, "nr_throttled");
            }
        }
        if let Some((memory, unified)) = places.of(Controller::Memory) {
            let file = if unified {
                "memory.peak"
            } else {
                "memory.max_usage_in_bytes"
            };
            let text = memory.read_optional(file)?;
            usage.memory_peak = text.and_then(|text| number_or_max(&text));
        }
        if let Some((pids, _)) = places.of(Controller::Pids) {
            let text = pids.read_optional("pids.peak")?;
            usage.pids_peak = text.and_then(|text| number_or_max(&text));
        }
        Ok(usage)
    }
}
