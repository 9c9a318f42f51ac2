//! Events as events of the `tracing` facade.

use tracing::{debug, error, info, warn};

use crate::owner::Owner;
use crate::{Answer, Event, EventKind, Sink};

/// Hands events to the [`tracing`](https://docs.rs/tracing) facade, with the target `varek` and a message that is the
/// kind's name.
///
/// Denied calls, limits, kills and signals are warnings; faults of the monitor and dropped events are errors; the start and
/// the end of a run are for information; all else, probes included, is for debugging. Every event has the fields `run`,
/// `sequence` and `elapsed` (seconds). What a guest can choose, such as the program's name, is a string field, which
/// subscribers show with quotes and escapes. A run's arguments are not handed on; a denied call is, as
/// [`Denial::decoded`](crate::Denial::decoded) writes it, with what its pointers led to where the policy has that read.
#[derive(Debug)]
pub struct Tracing {
    owner: Owner,
}

impl Tracing {
    /// A sink for this process.
    pub fn new() -> Self {
        Self {
            owner: Owner::this(),
        }
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self::new()
    }
}

/// One event, with the fields that all have.
macro_rules! say {
    ($level:ident, $event:ident $(, $name:ident = $value:expr)*) => {
        $level!(
            target: "varek",
            run = %$event.run,
            sequence = $event.sequence,
            elapsed = $event.elapsed.as_secs_f64(),
            $($name = $value,)*
            "{}", $event.kind.name()
        )
    };
}

impl Sink for Tracing {
    fn record(&self, event: &Event) {
        if !self.owner.is_here() {
            return;
        }
        match &event.kind {
            EventKind::RunStarted {
                program,
                interpreter,
                arguments,
                policy,
                enforcement,
                traceparent,
            } => {
                let parent = traceparent.map(|parent| parent.to_string());
                say!(
                    info,
                    event,
                    program = program.as_str(),
                    interpreter = interpreter.as_deref(),
                    arguments = arguments.count(),
                    policy = policy.as_str(),
                    missing = enforcement.missing().count(),
                    traceparent = parent.as_deref()
                );
            }
            EventKind::GuestStarted { pid } => say!(debug, event, pid = *pid),
            EventKind::SyscallDenied(denial) => {
                let (call, thread, count) = (denial.decoded(), denial.thread, denial.count);
                if denial.answer == Answer::Probe {
                    say!(
                        debug,
                        event,
                        call = call.as_str(),
                        thread = thread,
                        count = count
                    );
                } else {
                    let name = denial.name();
                    say!(
                        warn,
                        event,
                        syscall = name.as_str(),
                        call = call.as_str(),
                        thread = thread,
                        count = count
                    );
                }
            }
            EventKind::LimitHit(hit) => {
                let resource = hit.resource.to_string();
                say!(
                    warn,
                    event,
                    resource = resource.as_str(),
                    limit = hit.limit,
                    count = hit.count,
                    evidence = hit.evidence.as_str()
                );
            }
            EventKind::OutputTruncated { stream, limit } => {
                let stream = stream.to_string();
                say!(warn, event, stream = stream.as_str(), limit = *limit);
            }
            EventKind::DeadlinePassed { limit } => {
                say!(warn, event, limit = limit.as_secs_f64());
            }
            EventKind::KillIssued { cause } => {
                let cause = cause.to_string();
                say!(warn, event, cause = cause.as_str());
            }
            EventKind::GuestSignaled { signal } => say!(warn, event, signal = signal.0),
            EventKind::GuestExited { termination } => {
                let termination = termination.to_string();
                say!(debug, event, termination = termination.as_str());
            }
            EventKind::DescendantsKilled { count } => say!(warn, event, count = *count),
            EventKind::RunFinished {
                termination,
                usage,
                cleanup,
            } => {
                let (termination, cleanup) = (termination.to_string(), cleanup.to_string());
                say!(
                    info,
                    event,
                    termination = termination.as_str(),
                    wall_clock = usage.wall_clock.as_secs_f64(),
                    cpu_user = usage.cpu_user.as_secs_f64(),
                    cpu_system = usage.cpu_system.as_secs_f64(),
                    memory_peak = usage.memory_peak,
                    pids_peak = usage.pids_peak,
                    cleanup = cleanup.as_str()
                );
            }
            EventKind::EventsDropped { count } => say!(error, event, count = *count),
            EventKind::MonitorFault { fault } => say!(error, event, fault = fault.as_str()),
        }
    }
}
