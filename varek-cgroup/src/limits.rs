//! What a group may use.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::layout::Controller;

/// The largest number of tasks that `pids.max` takes as a number: PID_MAX_LIMIT on 64-bit kernels.
const PIDS_MOST: u64 = 4 * 1024 * 1024;

/// The limits of one group. `None` leaves a resource unlimited by this group (groups above still bound it).
///
/// ```
/// use varek_cgroup::{CpuQuota, Limits};
///
/// # fn main() -> Result<(), varek_cgroup::Error> {
/// let limits = Limits {
///     memory: Some(256 * 1024 * 1024),
///     pids: Some(64),
///     cpu: Some(CpuQuota::percent(50)?),
/// };
/// assert_ne!(limits, Limits::default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, page cache and kernel memory included; at least one page. It is rounded down to whole
    /// pages, as the kernel does. Swap is off below a limit: what does not fit is killed, never paged out.
    pub memory: Option<u64>,
    /// Tasks (processes and threads) at a time; 1 to 4,194,304. A task counts until it is reaped.
    pub pids: Option<u64>,
    /// CPU time per period, of all tasks together.
    pub cpu: Option<CpuQuota>,
}

impl Limits {
    /// The controllers that these limits need.
    pub fn controllers(&self) -> Vec<Controller> {
        let mut needed = Vec::new();
        if self.memory.is_some() {
            needed.push(Controller::Memory);
        }
        if self.pids.is_some() {
            needed.push(Controller::Pids);
        }
        if self.cpu.is_some() {
            needed.push(Controller::Cpu);
        }
        needed
    }

    /// The limits as the kernel can hold them, or why it cannot. `page` is the page size in bytes.
    pub(crate) fn checked(&self, page: u64) -> Result<Self, Error> {
        let mut checked = *self;
        if let Some(bytes) = self.memory {
            let refuse = |reason| Error::InvalidLimit {
                controller: Controller::Memory,
                asked: format!("{bytes} bytes"),
                reason,
            };
            if bytes < page {
                return Err(refuse("that is less than one page"));
            }
            if i64::try_from(bytes).is_err() {
                return Err(refuse("the kernel counts up to 2^63 - 1 bytes"));
            }
            checked.memory = Some(bytes - bytes % page);
        }
        if let Some(tasks) = self.pids {
            let refuse = |reason| Error::InvalidLimit {
                controller: Controller::Pids,
                asked: format!("{tasks} tasks"),
                reason,
            };
            if tasks == 0 {
                return Err(refuse("no program can start without a task"));
            }
            if tasks > PIDS_MOST {
                return Err(refuse("the kernel has at most 4194304 tasks"));
            }
        }
        Ok(checked)
    }
}

/// CPU time that a group may use in each period, over all CPUs (Linux CFS bandwidth control).
///
/// A group that used its quota waits for the next period; it is never killed. A quota over the period
/// lets it use more than one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    quota: Duration,
    period: Duration,
}

impl CpuQuota {
    /// A quota in every period. Both are whole microseconds; finer parts are cut off.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] where the period is not 1 ms to 1 s, or the quota is under 1 ms or not under
    /// 2^44 µs (the kernel's own bounds, Documentation/scheduler/sched-bwc.rst).
    pub fn new(quota: Duration, period: Duration) -> Result<Self, Error> {
        let refuse = |reason| Error::InvalidLimit {
            controller: Controller::Cpu,
            asked: format!("{quota:?} in {period:?}"),
            reason,
        };
        if period < Duration::from_millis(1) || period > Duration::from_secs(1) {
            return Err(refuse("the period must be 1 ms to 1 s"));
        }
        if quota < Duration::from_millis(1) {
            return Err(refuse("the quota must be at least 1 ms"));
        }
        if micros(quota) >= 1 << 44 {
            return Err(refuse("the quota must be less than 2^44 microseconds"));
        }
        Ok(Self {
            quota: Duration::from_micros(micros(quota)),
            period: Duration::from_micros(micros(period)),
        })
    }

    /// A part of one CPU in percent, in periods of 100 ms: 50 is half a CPU, 200 is two CPUs.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for 0.
    pub fn percent(percent: u32) -> Result<Self, Error> {
        Self::new(
            Duration::from_millis(u64::from(percent)),
            Duration::from_millis(100),
        )
    }

    /// The CPU time in each period.
    pub fn quota(&self) -> Duration {
        self.quota
    }

    /// The length of a period.
    pub fn period(&self) -> Duration {
        self.period
    }
}

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of CPU in every {:?}", self.quota, self.period)
    }
}

/// Whole microseconds. The bounds of [`CpuQuota::new`] keep them far below `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_down_to_a_page() {
        let limits = Limits {
            memory: Some(500_000_000),
            ..Limits::default()
        };
        assert_eq!(limits.checked(4096).unwrap().memory, Some(499_998_720));
    }

    #[test]
    fn limits_that_nothing_can_run_under_are_refused() {
        for limits in [
            Limits {
                memory: Some(0),
                ..Limits::default()
            },
            Limits {
                memory: Some(4095),
                ..Limits::default()
            },
            Limits {
                memory: Some(u64::MAX),
                ..Limits::default()
            },
            Limits {
                pids: Some(0),
                ..Limits::default()
            },
            Limits {
                pids: Some(PIDS_MOST + 1),
                ..Limits::default()
            },
        ] {
            assert!(
                matches!(limits.checked(4096), Err(Error::InvalidLimit { .. })),
                "{limits:?}"
            );
        }
        let least = Limits {
            memory: Some(4096),
            pids: Some(1),
            cpu: None,
        };
        assert_eq!(least.checked(4096).unwrap(), least);
    }

    #[test]
    fn cpu_quotas_outside_of_the_kernels_bounds_are_refused() {
        let ms = Duration::from_millis;
        assert!(CpuQuota::percent(0).is_err());
        assert!(CpuQuota::new(ms(1), Duration::from_micros(999)).is_err());
        assert!(CpuQuota::new(ms(1), ms(1001)).is_err());
        assert!(CpuQuota::new(Duration::from_micros(999), ms(100)).is_err());
        assert!(CpuQuota::new(Duration::from_micros(1 << 44), ms(100)).is_err());
        let half = CpuQuota::percent(50).unwrap();
        assert_eq!((half.quota(), half.period()), (ms(50), ms(100)));
        assert_eq!(CpuQuota::percent(1).unwrap().quota(), ms(1));
    }
}
