//! Events as counters and histograms of the `metrics` facade.

use metrics::{counter, histogram};

use crate::owner::Owner;
use crate::{Answer, Cause, Event, EventKind, Sink, Termination, Usage};

/// Counts events through the [`metrics`](https://docs.rs/metrics) facade, into whichever recorder the embedder
/// installed (Prometheus, StatsD, …).
///
/// | metric | labels | what |
/// |---|---|---|
/// | `varek_events_total` | `kind` | all events |
/// | `varek_denied_calls_total` | `call`, `answer` | denied calls; `call` is `unknown` where the number has no name |
/// | `varek_limits_hit_total` | `resource` | limits met |
/// | `varek_kills_total` | `cause` | kills |
/// | `varek_runs_finished_total` | `termination`, `cause` | runs; `cause` is empty where it was not killed |
/// | `varek_events_dropped_total` | | events that a queue or file lost |
/// | `varek_descendants_killed_total` | | processes left behind and killed |
/// | `varek_run_wall_clock_seconds` | | histogram |
/// | `varek_run_cpu_seconds` | `mode` | histogram, of `user` and `system` |
/// | `varek_run_throttled_seconds` | | histogram, of runs with a CPU share |
/// | `varek_run_memory_peak_bytes` | | histogram |
/// | `varek_run_pids_peak` | | histogram |
///
/// No label is a text that a guest can choose, so that it cannot make time series without end.
#[derive(Debug)]
pub struct Metrics {
    owner: Owner,
}

impl Metrics {
    /// A sink for this process.
    pub fn new() -> Self {
        Self {
            owner: Owner::this(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Metrics {
    fn record(&self, event: &Event) {
        if !self.owner.is_here() {
            return;
        }
        counter!("varek_events_total", "kind" => event.kind.name()).increment(1);
        match &event.kind {
            EventKind::SyscallDenied(denial) => {
                let call = denial.syscall.clone().unwrap_or_else(|| "unknown".into());
                let answer = match denial.answer {
                    Answer::Errno(_) => "errno",
                    Answer::Probe => "probe",
                    Answer::Kill => "kill",
                };
                counter!("varek_denied_calls_total", "call" => call, "answer" => answer)
                    .increment(denial.count);
            }
            EventKind::LimitHit(hit) => {
                let resource = hit.resource.to_string();
                counter!("varek_limits_hit_total", "resource" => resource).increment(1);
            }
            EventKind::KillIssued { cause } => {
                counter!("varek_kills_total", "cause" => name(cause)).increment(1);
            }
            EventKind::DescendantsKilled { count } => {
                counter!("varek_descendants_killed_total").increment(*count as u64);
            }
            EventKind::EventsDropped { count } => {
                counter!("varek_events_dropped_total").increment(*count);
            }
            EventKind::RunFinished {
                termination, usage, ..
            } => {
                let (termination, cause) = match termination {
                    Termination::Exited(0) => ("success", ""),
                    Termination::Exited(_) => ("exited", ""),
                    Termination::Signaled(_) => ("signaled", ""),
                    Termination::Killed(cause) => ("killed", name(cause)),
                    Termination::Unknown { .. } => ("unknown", ""),
                };
                counter!("varek_runs_finished_total", "termination" => termination, "cause" => cause)
                    .increment(1);
                used(usage);
            }
            _ => {}
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "histograms are of floating point numbers"
)]
fn used(usage: &Usage) {
    histogram!("varek_run_wall_clock_seconds").record(usage.wall_clock);
    histogram!("varek_run_cpu_seconds", "mode" => "user").record(usage.cpu_user);
    histogram!("varek_run_cpu_seconds", "mode" => "system").record(usage.cpu_system);
    if let Some(throttled) = usage.throttled {
        histogram!("varek_run_throttled_seconds").record(throttled);
    }
    if let Some(bytes) = usage.memory_peak {
        histogram!("varek_run_memory_peak_bytes").record(bytes as f64);
    }
    if let Some(count) = usage.pids_peak {
        histogram!("varek_run_pids_peak").record(count as f64);
    }
}

/// A cause without what is particular to the run.
const fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::WallClock => "wall_clock",
        Cause::CpuTime => "cpu_time",
        Cause::OutOfMemory => "out_of_memory",
        Cause::HostOutOfMemory => "host_out_of_memory",
        Cause::OutputLimit => "output_limit",
        Cause::Syscall { .. } => "syscall",
        Cause::DenialBudget => "denial_budget",
        Cause::SetupTimeout { .. } => "setup_timeout",
        Cause::Cancelled => "cancelled",
        Cause::Dropped => "dropped",
        Cause::SupervisorFault => "supervisor_fault",
    }
}
