//! What a run used, and whether it is gone.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the whole tree of a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// From the start of the guest to the end of its tree.
    #[serde(with = "humantime_serde")]
    pub wall_clock: Duration,
    /// CPU time in user mode (cgroup `cpu.stat`: `user_usec`).
    #[serde(with = "humantime_serde")]
    pub cpu_user: Duration,
    /// CPU time in the kernel (cgroup `cpu.stat`: `system_usec`).
    #[serde(with = "humantime_serde")]
    pub cpu_system: Duration,
    /// Time for which the tree was held back by its CPU share; `None` without a share.
    #[serde(with = "humantime_serde")]
    pub throttled: Option<Duration>,
    /// Peak memory in bytes (`memory.peak`, Linux 5.19; `memory.max_usage_in_bytes` in v1); `None` where the kernel does not say.
    pub memory_peak: Option<u64>,
    /// Peak number of processes and threads (`pids.peak`); `None` where the kernel does not say.
    pub pids_peak: Option<u64>,
}

/// Whether everything that a run made is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cleanup {
    /// No process of the tree, no group and no scratch directory is left.
    #[default]
    Complete,
    /// Something was left when the grace was over. VAREK goes on trying while the `Sandbox` lives, and
    /// the next sweep after that.
    Incomplete {
        /// Processes of the tree that the kernel has not ended.
        pids: Vec<u32>,
        /// What is left, in words, with paths.
        state: String,
    },
}

impl fmt::Display for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Incomplete { pids, state } => {
                write!(f, "incomplete: {state}")?;
                if !pids.is_empty() {
                    write!(f, " (pids {pids:?})")?;
                }
                Ok(())
            }
        }
    }
}
