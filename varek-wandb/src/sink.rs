//! Events of sandboxed runs as rows of a W&B run.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use varek_telemetry::{
    Answer, Cause, Event, EventKind, Flushed, Queue, Resource, RunId, Sink, Termination,
};

use crate::run::{AlertLevel, Run, Shared, lock};
use crate::{Artifact, Error, Table, Value};

/// Events that wait, at most, unless it is said.
const CAPACITY: usize = 65_536;

/// Alerts of one run, at most, unless it is said.
const ALERTS: u64 = 20;

/// Runs that are remembered after their end, for those who say late what they expected of them.
const REMEMBERED: usize = 10_000;

/// The time within which the service sends one alert of a title.
const ALERT_WAIT: Duration = Duration::from_secs(60);

/// How long a sink that is dropped waits for what is queued.
const LAST: Duration = Duration::from_millis(500);

/// The columns of the table `varek/runs`.
const COLUMNS: [&str; 11] = [
    "run",
    "program",
    "policy",
    "termination",
    "exit_code",
    "violation",
    "denied_calls",
    "wall_clock",
    "cpu",
    "memory_peak",
    "pids_peak",
];

/// How a run takes events; made by [`Run::sink`].
#[must_use]
pub struct SinkBuilder {
    run: Run,
    capacity: usize,
    alerts: u64,
    policies: Vec<(String, Result<Vec<u8>, Error>)>,
}

/// A sink that writes to a W&B run. Clones are the same sink.
///
/// Each event is a row with flat keys, `varek/event` and those of its written form
/// ([`Record`](varek_telemetry::Record)) beneath `varek/`, times in seconds, and `varek/policy`, the digest of the policy that bounded
/// the run. A run's end has what it came to (`varek/exit_code`, `varek/violation`, `varek/denied_calls`), and a row of the table `varek/runs`,
/// which is logged when the W&B run is finished. What had no room in the queue is counted in the summary, `varek/events_dropped`.
///
/// A sandboxed run that met a boundary raises an alert (WARN); one that met none, though
/// [`RunSink::expect_contained`] said that it would, raises another (ERROR).
#[derive(Clone)]
pub struct RunSink {
    recorder: Arc<Recorder>,
}

impl Run {
    /// Takes events of sandboxed runs into this run.
    pub fn sink(&self) -> SinkBuilder {
        SinkBuilder {
            run: self.clone(),
            capacity: CAPACITY,
            alerts: ALERTS,
            policies: Vec::new(),
        }
    }
}

impl SinkBuilder {
    /// Events that wait for the log, at most; 65,536 where it is not said. What comes while so many wait is dropped and counted: an
    /// embedder is never held up.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events;
        self
    }

    /// Alerts that are raised, at most; 20 where it is not said. The rest are counted in the summary, `varek/alerts_left_out`.
    pub fn alerts(mut self, most: u64) -> Self {
        self.alerts = most;
        self
    }

    /// Logs a policy as a version of the artifact `varek-execution-policy` (type `policy`, file `policy.json`), to which rows are joined by this
    /// digest: `varek_core::Policy` is [`Serialize`], and has `digest`. Called again, it adds another policy.
    ///
    /// All of the policy is logged, values of its environment too: what is secret belongs to the command, of which no environment is
    /// recorded.
    pub fn policy(mut self, digest: impl Into<String>, policy: impl Serialize) -> Self {
        let json = Value::of(&policy).map(|value| value.json().into_bytes());
        self.policies.push((digest.into(), json));
        self
    }

    /// Logs the policies, and starts the sink's thread.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] where a policy cannot be written, [`Error::Finished`], [`Error::Forked`], those of [`Run::log_artifact`], and
    /// [`Error::Io`] where the host refuses a thread.
    pub fn start(self) -> Result<RunSink, Error> {
        drop(self.run.shared.state()?);
        for (digest, json) in self.policies {
            let artifact = Artifact::new("varek-execution-policy", "policy")
                .description("What bounded the runs whose rows have its digest as varek/policy.")
                .metadata(HashMap::from([("digest", digest)]))?
                .bytes("policy.json", json?);
            self.run.log_artifact(&artifact)?;
        }
        let table = Table::new(COLUMNS)?;
        let inner = Arc::new(Inner {
            run: Arc::downgrade(&self.run.shared),
            state: Mutex::new(Recording {
                open: HashMap::new(),
                ended: HashMap::new(),
                expected: HashSet::new(),
                table,
                alerts_left: self.alerts,
                alerts_left_out: 0,
                dropped: 0,
                fault: None,
                closed: false,
            }),
        });
        let queue =
            Queue::new(Box::new(Delivery(inner.clone())), self.capacity).map_err(|source| {
                Error::Io {
                    operation: "start a thread for",
                    path: self.run.directory().unwrap_or("a run".as_ref()).to_owned(),
                    source,
                }
            })?;
        let recorder = Arc::new(Recorder {
            inner,
            queue,
            owner: std::process::id(),
        });
        self.run.add_sink(Arc::downgrade(&recorder));
        Ok(RunSink { recorder })
    }
}

impl RunSink {
    /// Says that this sandboxed run has to meet a boundary: an attack, say. It may be said before or after its end. If it meets none, an
    /// alert (ERROR) says so, and `varek/not_contained` counts it in the summary.
    pub fn expect_contained(&self, run: RunId) {
        if !self.recorder.is_here() {
            return;
        }
        let inner = &self.recorder.inner;
        let mut state = lock(&inner.state);
        match state.ended.get(&run).cloned() {
            None => {
                state.expected.insert(run);
            }
            Some(End {
                contained: false,
                program,
            }) => {
                let alert = state.not_contained(run, &program);
                drop(state);
                inner.raise(alert);
            }
            Some(_) => {}
        }
    }
}

impl Sink for RunSink {
    fn record(&self, event: &Event) {
        self.recorder.queue.record(event);
    }

    fn record_all(&self, events: &[Event]) {
        self.recorder.queue.record_all(events);
    }

    fn flush(&self, within: Duration) -> Flushed {
        self.recorder.queue.flush(within)
    }

    fn fault(&self) -> Option<String> {
        self.recorder.queue.fault()
    }
}

impl fmt::Debug for SinkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkBuilder")
            .field("run", &self.run)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RunSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunSink").finish_non_exhaustive()
    }
}

/// The queue, and what is behind it.
pub(crate) struct Recorder {
    inner: Arc<Inner>,
    queue: Queue,
    owner: u32,
}

impl Recorder {
    /// A copy of this process made by fork(2) does nothing: a thread that is not in it may have held the locks.
    fn is_here(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Writes what is queued, the table and the counts, and gives how many events were lost.
    pub(crate) fn close(&self, run: &Run, within: Duration) -> Result<u64, Error> {
        if !self.is_here() {
            return Ok(0);
        }
        let until = Instant::now() + within;
        let pending = match self.queue.flush(within) {
            Flushed::Pending(count) => count,
            _ => 0,
        };
        let late = until.saturating_duration_since(Instant::now());
        self.inner.close(run, self.queue.dropped() + pending, late)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_here()
            && let Some(run) = Shared::run(&self.inner.run)
        {
            // A log that cannot be written has said so to the run's other calls.
            let _ = self.close(&run, LAST);
        }
    }
}

struct Inner {
    run: Weak<Shared>,
    state: Mutex<Recording>,
}

/// What is known of the sandboxed runs.
struct Recording {
    open: HashMap<RunId, Open>,
    ended: HashMap<RunId, End>,
    expected: HashSet<RunId>,
    table: Table,
    alerts_left: u64,
    alerts_left_out: u64,
    /// Events that the W&B run did not take.
    dropped: u64,
    fault: Option<String>,
    closed: bool,
}

/// A sandboxed run that goes on.
#[derive(Default)]
struct Open {
    program: String,
    policy: String,
    violation: Option<Violation>,
    denied: u64,
}

/// What became of one.
#[derive(Clone)]
struct End {
    contained: bool,
    program: String,
}

/// The first boundary that a run met.
struct Violation {
    /// In a word or two: a call, a resource, a cause.
    brief: String,
    text: String,
}

struct Alert {
    title: String,
    text: String,
    level: AlertLevel,
}

struct Delivery(Arc<Inner>);

impl Sink for Delivery {
    fn record(&self, event: &Event) {
        self.record_all(std::slice::from_ref(event));
    }

    fn record_all(&self, events: &[Event]) {
        let Some(run) = Shared::run(&self.0.run) else {
            lock(&self.0.state).dropped += events.len() as u64;
            return;
        };
        let mut alerts = Vec::new();
        let mut state = lock(&self.0.state);
        let rows = events
            .iter()
            .map(|event| state.row(event, &mut alerts))
            .collect();
        drop(state);
        let written = run.log_rows(rows);
        let mut state = lock(&self.0.state);
        state.fault = written.as_ref().err().map(ToString::to_string);
        if written.is_err() {
            state.dropped += events.len() as u64;
        }
        drop(state);
        for alert in alerts {
            self.0.raise(Some(alert));
        }
    }

    fn fault(&self) -> Option<String> {
        lock(&self.0.state).fault.clone()
    }
}

impl Inner {
    fn raise(&self, alert: Option<Alert>) {
        let Some((alert, run)) = alert.zip(Shared::run(&self.run)) else {
            return;
        };
        if let Err(error) = run.alert(alert.title, alert.text, alert.level, ALERT_WAIT) {
            lock(&self.state).fault = Some(error.to_string());
        }
    }

    fn close(&self, run: &Run, lost: u64, _within: Duration) -> Result<u64, Error> {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.closed, true) {
            return Ok(0);
        }
        let lost = lost + state.dropped;
        let left_out = state.alerts_left_out;
        let table = std::mem::replace(&mut state.table, Table::new(COLUMNS)?);
        drop(state);
        if !table.is_empty() {
            run.log_table("varek/runs", &table)?;
        }
        run.summary("varek/events_dropped", lost)?;
        run.summary("varek/alerts_left_out", left_out)?;
        Ok(lost)
    }
}

impl Recording {
    /// An event as a row. What it means for alerts and the table is noted.
    fn row(&mut self, event: &Event, alerts: &mut Vec<Alert>) -> Vec<(String, Value)> {
        let open = self.open.entry(event.run).or_default();
        let violation = violation(&event.kind);
        if open.violation.is_none() {
            open.violation = violation;
        }
        match &event.kind {
            EventKind::RunStarted {
                program, policy, ..
            } => {
                open.program.clone_from(program);
                open.policy.clone_from(policy);
            }
            EventKind::SyscallDenied(denial) if denial.answer != Answer::Probe => {
                open.denied += denial.count;
            }
            _ => {}
        }
        let since = event
            .time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let mut row = vec![
            ("varek/event".to_owned(), Value::from(event.kind.name())),
            ("varek/run".to_owned(), Value::from(event.run.to_string())),
            ("varek/sequence".to_owned(), Value::from(event.sequence)),
            ("varek/time".to_owned(), Value::Float(since.as_secs_f64())),
            ("varek/elapsed".to_owned(), seconds(event.elapsed)),
        ];
        if !open.policy.is_empty() {
            row.push(("varek/policy".to_owned(), Value::from(open.policy.as_str())));
        }
        let fields = match Value::of(&event.kind) {
            Ok(Value::Map(fields)) => fields,
            _ => Vec::new(),
        };
        for (key, value) in fields {
            // Above already, and the policy's digest with all other rows.
            if key != "event" && key != "policy" {
                flatten(&format!("varek/{key}"), value, &mut row);
            }
        }
        match &event.kind {
            EventKind::RunFinished { .. } => self.end(event, &mut row, alerts),
            // Of a run whose end was seen, or that nothing else is known of.
            EventKind::EventsDropped { count } => {
                self.dropped += count;
                if self
                    .open
                    .get(&event.run)
                    .is_some_and(|open| open.program.is_empty())
                {
                    self.open.remove(&event.run);
                }
            }
            _ => {}
        }
        row
    }

    fn end(&mut self, event: &Event, row: &mut Vec<(String, Value)>, alerts: &mut Vec<Alert>) {
        let EventKind::RunFinished {
            termination, usage, ..
        } = &event.kind
        else {
            return;
        };
        let open = self.open.remove(&event.run).unwrap_or_default();
        let exit_code = match termination {
            Termination::Exited(code) => Value::from(i64::from(*code)),
            _ => Value::Null,
        };
        let whole = |number: Option<u64>| number.map_or(Value::Null, Value::from);
        let violation = open.violation.as_ref();
        let violation = violation.map_or(Value::Null, |one| Value::from(one.text.as_str()));
        let cpu = usage.cpu_user + usage.cpu_system;
        let numbers = [
            ("varek/usage/wall_clock", seconds(usage.wall_clock)),
            ("varek/usage/cpu_user", seconds(usage.cpu_user)),
            ("varek/usage/cpu_system", seconds(usage.cpu_system)),
            (
                "varek/usage/throttled",
                usage.throttled.map_or(Value::Null, seconds),
            ),
            ("varek/exit_code", exit_code.clone()),
            ("varek/violation", violation.clone()),
            ("varek/denied_calls", Value::from(open.denied)),
        ];
        row.retain(|(key, _)| numbers.iter().all(|(other, _)| key != other));
        row.extend(numbers.map(|(key, value)| (key.to_owned(), value)));
        let cells = vec![
            Value::from(event.run.to_string()),
            Value::from(open.program.as_str()),
            Value::from(open.policy.as_str()),
            Value::from(termination.to_string()),
            exit_code,
            violation,
            Value::from(open.denied),
            seconds(usage.wall_clock),
            seconds(cpu),
            whole(usage.memory_peak),
            whole(usage.pids_peak),
        ];
        // Each cell is of its column's kind.
        let _ = self.table.row(cells);
        let expected = self.expected.remove(&event.run);
        let alert = match &open.violation {
            Some(violation) => self.alert(Alert {
                // One title for all would have the service leave out the second within a minute, whatever it is about.
                title: format!("Sandboxed run contained: {}", violation.brief),
                text: format!("run {} of {}: {}", event.run, open.program, violation.text),
                level: AlertLevel::Warn,
            }),
            None if expected => self.not_contained(event.run, &open.program),
            None => None,
        };
        alerts.extend(alert);
        if self.ended.len() >= REMEMBERED {
            self.ended.clear();
        }
        let end = End {
            contained: open.violation.is_some(),
            program: open.program,
        };
        self.ended.insert(event.run, end);
    }

    fn not_contained(&mut self, run: RunId, program: &str) -> Option<Alert> {
        self.alert(Alert {
            title: "Sandboxed run not contained".into(),
            text: format!("run {run} of {program} was expected to meet a boundary, and met none"),
            level: AlertLevel::Error,
        })
    }

    /// The alert, where there may be another.
    fn alert(&mut self, alert: Alert) -> Option<Alert> {
        // What was expected and did not happen is never left out.
        if self.alerts_left == 0 && alert.level != AlertLevel::Error {
            self.alerts_left_out += 1;
            return None;
        }
        self.alerts_left = self.alerts_left.saturating_sub(1);
        Some(alert)
    }
}

/// The boundary that an event is about, with the meaning of `varek_core::Outcome::violation`.
fn violation(kind: &EventKind) -> Option<Violation> {
    let (brief, text) = match kind {
        EventKind::SyscallDenied(denial) if denial.answer != Answer::Probe => {
            (denial.name(), format!("denied {denial}"))
        }
        EventKind::LimitHit(hit) if hit.limit.is_some() && hit.resource != Resource::CpuShare => {
            (hit.resource.to_string(), format!("limit met: {hit}"))
        }
        EventKind::KillIssued { cause } => match cause {
            Cause::Cancelled
            | Cause::Dropped
            | Cause::SupervisorFault
            | Cause::SetupTimeout { .. }
            | Cause::HostOutOfMemory => return None,
            cause => (cause.to_string(), format!("killed: {cause}")),
        },
        _ => return None,
    };
    // The service takes titles of 63 characters.
    let brief = brief.chars().take(38).collect();
    Some(Violation { brief, text })
}

fn seconds(duration: Duration) -> Value {
    Value::Float(duration.as_secs_f64())
}

/// Puts a value's leaves into the row: objects become keys with slashes, lists stay lists.
fn flatten(key: &str, value: Value, row: &mut Vec<(String, Value)>) {
    match value {
        Value::Null => {}
        Value::Map(entries) => {
            for (name, value) in entries {
                flatten(&format!("{key}/{name}"), value, row);
            }
        }
        value => row.push((key.to_owned(), value)),
    }
}
