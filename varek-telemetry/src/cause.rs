//! Why a run ended, and which limits it met.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the guest's first process ended.
///
/// `Killed` is said only where VAREK's own decision record or a kernel counter names the cause. An exit
/// code is never read as a kill or a timeout: `Exited(137)` and `Exited(124)` are exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Termination {
    /// The first process called exit(2) with this status, 0 to 255.
    Exited(i32),
    /// The first process died of a signal that neither VAREK nor the kernel's memory limit sent.
    Signaled(Signal),
    /// A limit or a decision of VAREK ended the run.
    Killed(Cause),
    /// The status cannot be known; it is never reported as `Exited(0)`.
    Unknown {
        /// Why it cannot be known.
        reason: UnknownReason,
    },
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Signaled(signal) => write!(f, "ended by {signal}"),
            Self::Killed(cause) => write!(f, "killed: {cause}"),
            Self::Unknown { reason } => write!(f, "ended in an unknown way: {reason}"),
        }
    }
}

/// Why the status of the first process cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnknownReason {
    /// The embedder reaped the child itself (`waitpid(-1)`) or has SIGCHLD ignored, and the kernel is
    /// older than 6.15, which is the first to tell the status through the pidfd all the same.
    StatusTaken,
    /// The process could not be killed before the deadline and its grace were over (uninterruptible sleep).
    StillRunning,
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StatusTaken => {
                "the embedder's own SIGCHLD handling took the status before VAREK could read it"
            }
            Self::StillRunning => "the kernel has not ended the process yet",
        })
    }
}

/// Why VAREK or the kernel killed a run.
///
/// A first process that exits in the instant between the decision and the kill is reported as
/// [`Termination::Exited`], which is what it did; the limit and the violation name the cause all the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The wall clock limit passed (CLOCK_MONOTONIC; time in suspend does not count).
    WallClock,
    /// The CPU time of the whole tree passed its limit (cgroup CPU usage, RLIMIT_CPU as a backstop).
    CpuTime,
    /// The run's own memory limit was reached and the kernel's OOM killer acted in the run's group.
    OutOfMemory,
    /// The OOM killer acted in the run's group though the run was below its own limit: the host, or a
    /// group above, ran out of memory.
    HostOutOfMemory,
    /// Captured output passed its limit and the policy says kill.
    OutputLimit,
    /// A system call of the kill list, or one through a foreign ABI (i386, x32).
    Syscall {
        /// The call's name where the table of its architecture knows it, otherwise its number.
        name: String,
    },
    /// The guest made more denied calls than the denial budget allows.
    DenialBudget,
    /// The child did not reach its exec before the wall clock limit.
    SetupTimeout {
        /// The set-up step in which it was stuck.
        step: String,
    },
    /// The embedder called `kill`.
    Cancelled,
    /// The embedder dropped the handle.
    Dropped,
    /// VAREK itself failed while the run was going on, and killed it rather than let it run unwatched.
    SupervisorFault,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WallClock => f.write_str("wall clock limit"),
            Self::CpuTime => f.write_str("CPU time limit"),
            Self::OutOfMemory => f.write_str("out of memory (the run's own limit)"),
            Self::HostOutOfMemory => f.write_str("out of memory (the host or a group above)"),
            Self::OutputLimit => f.write_str("output limit"),
            Self::Syscall { name } => write!(f, "forbidden system call {name}"),
            Self::DenialBudget => f.write_str("too many denied system calls"),
            Self::SetupTimeout { step } => write!(f, "set-up timed out at step {step}"),
            Self::Cancelled => f.write_str("cancelled by the embedder"),
            Self::Dropped => f.write_str("handle dropped by the embedder"),
            Self::SupervisorFault => f.write_str("supervisor fault"),
        }
    }
}

/// A signal by number, with its name where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signal(pub i32);

impl Signal {
    /// `SIGKILL`, 9 on every Linux architecture.
    pub const KILL: Self = Self(9);
    /// `SIGXCPU`, 24 on x86_64 and aarch64: RLIMIT_CPU was reached.
    pub const XCPU: Self = Self(24);
    /// `SIGXFSZ`, 25 on x86_64 and aarch64: RLIMIT_FSIZE was reached.
    pub const XFSZ: Self = Self(25);

    /// The name, such as `SIGKILL`, of signals 1 to 31 on x86_64 and aarch64 (signal(7)).
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "SIGHUP",
            2 => "SIGINT",
            3 => "SIGQUIT",
            4 => "SIGILL",
            5 => "SIGTRAP",
            6 => "SIGABRT",
            7 => "SIGBUS",
            8 => "SIGFPE",
            9 => "SIGKILL",
            10 => "SIGUSR1",
            11 => "SIGSEGV",
            12 => "SIGUSR2",
            13 => "SIGPIPE",
            14 => "SIGALRM",
            15 => "SIGTERM",
            16 => "SIGSTKFLT",
            17 => "SIGCHLD",
            18 => "SIGCONT",
            19 => "SIGSTOP",
            20 => "SIGTSTP",
            21 => "SIGTTIN",
            22 => "SIGTTOU",
            23 => "SIGURG",
            24 => "SIGXCPU",
            25 => "SIGXFSZ",
            26 => "SIGVTALRM",
            27 => "SIGPROF",
            28 => "SIGWINCH",
            29 => "SIGIO",
            30 => "SIGPWR",
            31 => "SIGSYS",
            _ => return None,
        })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

/// What a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resource {
    /// Memory of the whole tree, bytes.
    Memory,
    /// Processes and threads of the whole tree.
    Pids,
    /// Time for which the tree was held back by its CPU share, microseconds.
    CpuShare,
    /// CPU time of the whole tree, microseconds.
    CpuTime,
    /// Wall clock, microseconds.
    WallClock,
    /// Output, bytes.
    Output,
    /// File size, bytes. Listed only where the first process died of SIGXFSZ: a guest that ignores the
    /// signal sees EFBIG and the kernel leaves no other trace.
    FileSize,
    /// All files in the scratch directory together, bytes. Listed where it was full at the end; one that the guest has
    /// made room in again leaves no trace.
    Scratch,
    /// Number of files in the scratch directory, in the same way.
    ScratchFiles,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::CpuShare => "cpu share",
            Self::CpuTime => "cpu time",
            Self::WallClock => "wall clock",
            Self::Output => "output",
            Self::FileSize => "file size",
            Self::Scratch => "scratch",
            Self::ScratchFiles => "scratch files",
        })
    }
}

/// One limit that a run met, with the counter that proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHit {
    /// What was bounded.
    pub resource: Resource,
    /// The limit in the resource's unit (see [`Resource`]); `None` where the limit that was met is not
    /// the run's own (a group above).
    pub limit: Option<u64>,
    /// How often, or for how long: the value of the counter named in `evidence`.
    pub count: u64,
    /// The kernel file and key, or VAREK's own count, that proves it, such as `memory.events: oom_kill`.
    pub evidence: String,
}

impl fmt::Display for LimitHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource)?;
        match self.limit {
            Some(limit) => write!(f, " limit {limit}")?,
            None => f.write_str(" limit above the run")?,
        }
        write!(f, ": {} ({})", self.count, self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_137_and_124_read_as_exit_codes() {
        assert_eq!(Termination::Exited(137).to_string(), "exited with 137");
        assert_eq!(Termination::Exited(124).to_string(), "exited with 124");
    }

    #[test]
    fn terminations_round_trip_through_json() {
        for termination in [
            Termination::Exited(3),
            Termination::Signaled(Signal::KILL),
            Termination::Killed(Cause::Syscall {
                name: "ptrace".into(),
            }),
            Termination::Unknown {
                reason: UnknownReason::StatusTaken,
            },
        ] {
            let json = serde_json::to_string(&termination).unwrap();
            assert_eq!(
                serde_json::from_str::<Termination>(&json).unwrap(),
                termination
            );
        }
        assert_eq!(
            serde_json::to_string(&Termination::Killed(Cause::WallClock)).unwrap(),
            r#"{"killed":"wall_clock"}"#
        );
    }
}
