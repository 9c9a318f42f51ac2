//! Events: what the supervisor of a run saw and did.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Cause, Cleanup, Enforcement, LimitHit, RunId, Termination, Usage};

/// One thing that the supervisor of a run saw or did.
///
/// An event is recorded after what it reports. `sequence` counts from 0 without a gap within a run;
/// events of different runs come in any order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The run.
    pub run: RunId,
    /// Position within the run, from 0.
    pub sequence: u64,
    /// The embedder's wall clock.
    #[serde(with = "humantime_serde")]
    pub time: SystemTime,
    /// Since the run started, by CLOCK_MONOTONIC.
    #[serde(with = "humantime_serde")]
    pub elapsed: Duration,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A run was accepted; nothing has been started yet.
    RunStarted {
        /// The resolved path of the program.
        program: String,
        /// The interpreter that the program's `#!` line names, where it has one.
        interpreter: Option<String>,
        /// How many arguments follow the program's name; their text is never in an event.
        arguments: usize,
        /// The policy's digest.
        policy: String,
        /// What is in force.
        enforcement: Enforcement,
    },
    /// The guest's program is running.
    GuestStarted {
        /// The first process, by the embedder's pid namespace.
        pid: u32,
    },
    /// A system call was denied.
    SyscallDenied(Denial),
    /// A limit was met.
    LimitHit(LimitHit),
    /// Captured output passed its bound; more of it is counted and thrown away.
    OutputTruncated {
        /// Which stream.
        stream: Stream,
        /// The bound, bytes.
        limit: u64,
    },
    /// VAREK killed the whole tree. At most one of a run has the cause that `Termination` names.
    KillIssued {
        /// Why.
        cause: Cause,
    },
    /// The first process ended.
    GuestExited {
        /// How.
        termination: Termination,
    },
    /// Processes that the guest had left behind when its first process ended were killed.
    DescendantsKilled {
        /// How many were counted just before.
        count: usize,
    },
    /// The run is over. Always the last event of a run.
    RunFinished {
        /// How it ended.
        termination: Termination,
        /// What it used.
        usage: Usage,
        /// Whether everything is gone.
        cleanup: Cleanup,
    },
    /// A queue had to drop events; it carries the run and sequence of the event that comes next.
    EventsDropped {
        /// How many.
        count: u64,
    },
    /// VAREK could not see something that it should have seen.
    MonitorFault {
        /// What, with the operation and the error.
        fault: String,
    },
}

/// An output stream of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// A denied system call, as the kernel reported it.
///
/// The numbers are the registers at the time of the call. Pointers among them are addresses in the
/// guest; what they point at is not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The name, where the table of the architecture knows the number.
    pub syscall: Option<String>,
    /// The number as the guest gave it.
    pub number: u32,
    /// The ABI: `x86_64`, `x32`, `i386`, `aarch64`, `arm`, or `unknown (0x…)`.
    pub abi: String,
    /// The six argument registers.
    pub arguments: [u64; 6],
    /// The thread that made the call, by the embedder's pid namespace; 0 where the kernel cannot say.
    pub thread: u32,
    /// What the guest got.
    pub answer: Answer,
}

impl Denial {
    /// The name, or the number where there is none.
    pub fn name(&self) -> String {
        self.syscall
            .clone()
            .unwrap_or_else(|| format!("{}:{}", self.abi, self.number))
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name())?;
        for (index, argument) in self.arguments.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{argument:#x}")?;
        }
        write!(f, ") {}", self.answer)
    }
}

/// What a guest got for a denied call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// The policy's errno.
    Errno(i32),
    /// ENOSYS, as an older kernel would answer: the call is newer than this build knows, or one that
    /// libraries probe for and do without (io_uring, the socket to a name service cache). A probe is a
    /// denial, but not a violation.
    Probe,
    /// The tree was killed and the call never answered.
    Kill,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(1) => f.write_str("= EPERM"),
            Self::Errno(errno) => write!(f, "= errno {errno}"),
            Self::Probe => f.write_str("= ENOSYS"),
            Self::Kill => f.write_str("killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layer, LayerStatus, Resource, Signal, UnknownReason};

    fn kinds() -> Vec<EventKind> {
        let mut enforcement = Enforcement::default();
        let detail = "5 bytes".into();
        enforcement.record(Layer::Memory, LayerStatus::Enforced { detail });
        enforcement.record(Layer::Cpu, LayerStatus::NotAsked);
        let reason = "the host has none".into();
        enforcement.record(Layer::DenialReports, LayerStatus::Missing { reason });
        let denial = |syscall: Option<&str>, answer| Denial {
            syscall: syscall.map(str::to_owned),
            number: u32::MAX,
            abi: "x86_64".into(),
            arguments: [0, 1, u64::MAX, 1 << 63, 4, 5],
            thread: 7,
            answer,
        };
        let limit = |limit| LimitHit {
            resource: Resource::CpuTime,
            limit,
            count: u64::MAX,
            evidence: "cpu.stat".into(),
        };
        let usage = Usage {
            wall_clock: Duration::new(3, 1),
            throttled: Some(Duration::from_millis(7)),
            memory_peak: Some(u64::MAX),
            ..Usage::default()
        };
        let name = "ptrace".to_owned();
        let step = "exec".to_owned();
        let causes = [
            Cause::WallClock,
            Cause::CpuTime,
            Cause::OutOfMemory,
            Cause::HostOutOfMemory,
            Cause::OutputLimit,
            Cause::Syscall { name },
            Cause::DenialBudget,
            Cause::SetupTimeout { step },
            Cause::Cancelled,
            Cause::Dropped,
            Cause::SupervisorFault,
        ];
        let terminations = [
            Termination::Exited(3),
            Termination::Signaled(Signal::KILL),
            Termination::Unknown {
                reason: UnknownReason::StillRunning,
            },
        ];
        let ends = terminations
            .into_iter()
            .chain(causes.clone().map(Termination::Killed));
        let cleanups = [
            Cleanup::Complete,
            Cleanup::Incomplete {
                pids: vec![1, 2],
                state: "stuck".into(),
            },
        ];
        let mut kinds = vec![
            EventKind::RunStarted {
                program: "/bin/true".into(),
                interpreter: None,
                arguments: 2,
                policy: "sha256:0".into(),
                enforcement,
            },
            EventKind::GuestStarted { pid: 9 },
            EventKind::SyscallDenied(denial(Some("execve"), Answer::Errno(1))),
            EventKind::SyscallDenied(denial(None, Answer::Probe)),
            EventKind::SyscallDenied(denial(None, Answer::Kill)),
            EventKind::LimitHit(limit(None)),
            EventKind::LimitHit(limit(Some(u64::MAX))),
            EventKind::OutputTruncated {
                stream: Stream::Stderr,
                limit: 5,
            },
            EventKind::DescendantsKilled { count: 3 },
            EventKind::EventsDropped { count: 4 },
            EventKind::MonitorFault { fault: "x".into() },
        ];
        kinds.extend(causes.map(|cause| EventKind::KillIssued { cause }));
        for termination in ends {
            let cleanup = cleanups[kinds.len() % 2].clone();
            kinds.push(EventKind::GuestExited {
                termination: termination.clone(),
            });
            kinds.push(EventKind::RunFinished {
                termination,
                usage,
                cleanup,
            });
        }
        kinds
    }

    #[test]
    fn every_event_reads_back_from_its_json_line_as_it_was() {
        for (sequence, kind) in (0..).zip(kinds()) {
            let event = Event {
                run: RunId::from_bits(0x00ff << 64),
                sequence,
                time: SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
                elapsed: Duration::new(1, 999_999_999),
                kind,
            };
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(
                serde_json::from_str::<Event>(&line).unwrap(),
                event,
                "{line}"
            );
            // And by way of a value, as log pipelines do it.
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!(value["event"].is_string(), "{line}");
            assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
        }
    }
}
