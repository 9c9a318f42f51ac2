//! Events: what the supervisor of a run saw and did.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    ArgumentDetail, Arguments, Cause, Cleanup, Enforcement, LimitHit, Pointer, RunId, Signal,
    Termination, TraceParent, Unverified, Usage, decode,
};

/// One thing that the supervisor of a run saw or did.
///
/// An event is recorded after what it reports. `sequence` counts from 0 without a gap within a run;
/// events of different runs come in any order. What a queue or a fan-out says of itself (dropped events, a sink's
/// fault) has the run and the sequence of the event beside it. VAREK puts no value of the environment into an event; a guest can pass one to
/// a denied call as a path, which is read with [`ArgumentDetail::Full`] alone. Its
/// written form is described at [`Record`](crate::Record).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The run.
    pub run: RunId,
    /// Position within the run, from 0.
    pub sequence: u64,
    /// The embedder's wall clock.
    pub time: SystemTime,
    /// Since the run started, by CLOCK_MONOTONIC.
    pub elapsed: Duration,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
///
/// In the written form a kind's fields stand beside those of the [`Event`], so no kind has a field called
/// `v`, `run`, `sequence`, `time`, `elapsed`, `event`, `index` or `chain`.
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
        /// The arguments that follow the program's name, in as much detail as the embedder asked for.
        arguments: Arguments,
        /// The policy's digest.
        policy: String,
        /// What is in force.
        enforcement: Enforcement,
        /// The embedder's own span that the run belongs to, where its command names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<TraceParent>,
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
    /// The wall clock limit passed; the kill that follows is an event of its own.
    DeadlinePassed {
        /// The limit.
        #[serde(with = "humantime_serde")]
        limit: Duration,
    },
    /// VAREK killed the whole tree. At most one of a run has the cause that `Termination` names.
    KillIssued {
        /// Why.
        cause: Cause,
    },
    /// The first process was ended by a signal that VAREK did not send; before `GuestExited`.
    GuestSignaled {
        /// Which.
        signal: Signal,
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
    /// The run is over: the last event of a run, but for what a queue reports as dropped after it.
    RunFinished {
        /// How it ended.
        termination: Termination,
        /// What it used.
        usage: Usage,
        /// Whether everything is gone.
        cleanup: Cleanup,
    },
    /// Events did not fit into a queue, or their destination refused them. It carries the run and sequence
    /// of the event beside the gap: the next one, or the last one before where none follows.
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

impl EventKind {
    /// The kind's name in the written form, such as `syscall_denied`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::GuestStarted { .. } => "guest_started",
            Self::SyscallDenied(_) => "syscall_denied",
            Self::LimitHit(_) => "limit_hit",
            Self::OutputTruncated { .. } => "output_truncated",
            Self::DeadlinePassed { .. } => "deadline_passed",
            Self::KillIssued { .. } => "kill_issued",
            Self::GuestSignaled { .. } => "guest_signaled",
            Self::GuestExited { .. } => "guest_exited",
            Self::DescendantsKilled { .. } => "descendants_killed",
            Self::RunFinished { .. } => "run_finished",
            Self::EventsDropped { .. } => "events_dropped",
            Self::MonitorFault { .. } => "monitor_fault",
        }
    }
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

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        })
    }
}

/// A denied system call, as the kernel reported it.
///
/// The numbers are the registers at the time of the call, and the call was denied for them alone. Pointers among them are
/// addresses in the guest; `unverified` has what some of them led to, where that could be read.
///
/// The written form has one field more, `decoded`, the text of [`Denial::decoded`] for those who read logs
/// without this crate; it is not read back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
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
    /// How many calls this stands for: more than 1 where a storm of one call is recorded together, with the registers and
    /// the thread of the first.
    #[serde(default = "one")]
    pub count: u64,
    /// What pointers among the arguments led to, of the first of these calls: the addresses of internet sockets, and where the
    /// policy records arguments in full, paths and names. Empty where nothing was read, for whatever reason: an address
    /// that is not shown may still be one of a path.
    #[serde(default)]
    pub unverified: Vec<Unverified>,
}

fn one() -> u64 {
    1
}

impl Denial {
    /// The name, or the number where there is none.
    pub fn name(&self) -> String {
        self.syscall
            .clone()
            .unwrap_or_else(|| format!("{}:{}", self.abi, self.number))
    }

    /// The call as a person would write it, such as `socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, 0)`.
    ///
    /// Scalar arguments are named by tables, on Linux and for the ABIs of the architecture that this crate
    /// was built for; all else are numbers. Addresses read `unverified:0x…`, and those of which it is known what was there
    /// `unverified:"/etc/shadow"` or `unverified:127.0.0.1:80`: nothing was decided from that, and the guest can change it.
    pub fn decoded(&self) -> String {
        let mut text = String::new();
        // A string takes everything.
        let _ = decode::write(&mut text, self);
        text
    }

    /// The pointers among the arguments whose memory an event may show, for whoever can read it: none of a call of another
    /// ABI than that of this build, whose structures may be others.
    ///
    /// Texts are among them with [`ArgumentDetail::Full`] alone, because a guest can make a path of whatever it knows, its
    /// environment and its own arguments included. Addresses of sockets always are, but one of a local socket comes to nothing
    /// without that ([`Pointer::read`]).
    pub fn pointers(&self, detail: ArgumentDetail) -> Vec<Pointer> {
        decode::pointers(self, detail)
    }
}

impl Serialize for Denial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (many, seen) = (self.count != 1, !self.unverified.is_empty());
        let fields = 7 + usize::from(many) + usize::from(seen);
        let mut written = serializer.serialize_struct("Denial", fields)?;
        written.serialize_field("syscall", &self.syscall)?;
        written.serialize_field("number", &self.number)?;
        written.serialize_field("abi", &self.abi)?;
        written.serialize_field("arguments", &self.arguments)?;
        written.serialize_field("decoded", &self.decoded())?;
        written.serialize_field("thread", &self.thread)?;
        written.serialize_field("answer", &self.answer)?;
        // Left out where there is nothing to say, which is nearly always.
        if many {
            written.serialize_field("count", &self.count)?;
        }
        if seen {
            written.serialize_field("unverified", &self.unverified)?;
        }
        written.end()
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decode::write(f, self)?;
        write!(f, " {}", self.answer)?;
        if self.count == 1 {
            return Ok(());
        }
        write!(f, " ×{}", self.count)
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
