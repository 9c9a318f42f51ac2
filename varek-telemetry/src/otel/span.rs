//! A run as a span.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span};

use crate::{Answer, Event, EventKind, Termination, TraceParent, Usage};

/// Events of one span, at most: OpenTelemetry's own limit. What comes later is counted.
const MOST_EVENTS: usize = 128;

/// The tool's name in the generative AI conventions.
const TOOL: &str = "varek.sandbox";

/// The span of a run that is not over.
pub(super) struct Draft {
    begin: SystemTime,
    /// As the run's command names it.
    parent: Option<TraceParent>,
    attributes: Vec<KeyValue>,
    events: Vec<span::Event>,
    omitted: u32,
    /// Denied calls that are no probes.
    denied: i64,
}

impl Draft {
    /// The span of this event's run.
    pub(super) fn new(event: &Event) -> Self {
        Self {
            begin: event
                .time
                .checked_sub(event.elapsed)
                .unwrap_or(SystemTime::UNIX_EPOCH),
            parent: None,
            attributes: vec![
                text("gen_ai.operation.name", "execute_tool"),
                text("gen_ai.tool.name", TOOL),
                text("varek.run", event.run.to_string()),
            ],
            events: Vec::new(),
            omitted: 0,
            denied: 0,
        }
    }

    pub(super) const fn begin(&self) -> SystemTime {
        self.begin
    }

    pub(super) const fn parent(&self) -> Option<TraceParent> {
        self.parent
    }

    /// Takes an event of the run.
    pub(super) fn add(&mut self, event: &Event) {
        let attributes = match &event.kind {
            EventKind::RunStarted {
                program,
                interpreter,
                arguments,
                policy,
                enforcement,
                traceparent,
            } => {
                self.parent = *traceparent;
                self.attributes.extend([
                    text("process.executable.path", program.clone()),
                    number("process.args_count", arguments.count()),
                    text("varek.policy", policy.clone()),
                ]);
                if let Some(interpreter) = interpreter {
                    self.attributes
                        .push(text("varek.interpreter", interpreter.clone()));
                }
                for (layer, reason) in enforcement.missing() {
                    let key = format!("varek.missing.{}", layer.to_string().replace(' ', "_"));
                    self.attributes.push(text(key, reason));
                }
                return;
            }
            EventKind::GuestStarted { pid } => vec![number("process.pid", *pid)],
            EventKind::SyscallDenied(denial) => {
                if denial.answer != Answer::Probe {
                    let count = i64::try_from(denial.count).unwrap_or(i64::MAX);
                    self.denied = self.denied.saturating_add(count);
                }
                vec![
                    text("varek.syscall", denial.name()),
                    text("varek.call", denial.decoded()),
                    number("thread.id", denial.thread),
                    number("varek.count", denial.count),
                ]
            }
            EventKind::LimitHit(hit) => {
                let mut all = vec![
                    text("varek.resource", hit.resource.to_string()),
                    number("varek.count", hit.count),
                    text("varek.evidence", hit.evidence.clone()),
                ];
                all.extend(hit.limit.map(|limit| number("varek.limit", limit)));
                all
            }
            EventKind::OutputTruncated { stream, limit } => vec![
                text("varek.stream", stream.to_string()),
                number("varek.limit", *limit),
            ],
            EventKind::DeadlinePassed { limit } => vec![seconds("varek.limit", *limit)],
            EventKind::KillIssued { cause } => vec![text("varek.cause", cause.to_string())],
            EventKind::GuestSignaled { signal } => vec![text("varek.signal", signal.to_string())],
            EventKind::GuestExited { termination } => {
                vec![text("varek.termination", termination.to_string())]
            }
            EventKind::DescendantsKilled { count } => vec![number("varek.count", *count)],
            EventKind::EventsDropped { count } => vec![number("varek.count", *count)],
            EventKind::MonitorFault { fault } => vec![text("varek.fault", fault.clone())],
            // It is the span's own end.
            EventKind::RunFinished { .. } => return,
        };
        if self.events.len() >= MOST_EVENTS {
            self.omitted = self.omitted.saturating_add(1);
            return;
        }
        self.events.push(span::Event {
            time_unix_nano: nanoseconds(event.time),
            name: event.kind.name().into(),
            attributes,
            dropped_attributes_count: 0,
        });
    }

    /// The span, given the run's last event and the embedder's own span.
    pub(super) fn finish(mut self, last: &Event, parent: Option<TraceParent>) -> Span {
        let mut status = Status::default();
        if let EventKind::RunFinished {
            termination, usage, ..
        } = &last.kind
        {
            self.attributes
                .push(text("varek.termination", termination.to_string()));
            if let Termination::Exited(code) = termination {
                self.attributes.push(number("process.exit.code", *code));
            }
            self.used(usage);
            if self.denied > 0 || *termination != Termination::Exited(0) {
                status.code = StatusCode::Error.into();
                status.message = match self.denied {
                    0 => termination.to_string(),
                    count => format!("{termination}; {count} denied calls"),
                };
            }
        }
        self.attributes
            .push(number("varek.denied_calls", self.denied));
        let run = last.run.to_bits().to_be_bytes();
        // The lower half of the run's name: random, and zero once in 2^64 runs, which no collector takes.
        let (_, id) = run.split_at(8);
        Span {
            trace_id: parent.map_or_else(|| run.to_vec(), |parent| parent.trace().to_vec()),
            span_id: id.to_vec(),
            trace_state: String::new(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span().to_vec()),
            flags: parent.map_or(1, |parent| parent.flags().into()),
            name: format!("execute_tool {TOOL}"),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: nanoseconds(self.begin),
            end_time_unix_nano: nanoseconds(last.time),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: self.events,
            dropped_events_count: self.omitted,
            links: Vec::new(),
            dropped_links_count: 0,
            status: Some(status),
        }
    }

    fn used(&mut self, usage: &Usage) {
        self.attributes.extend([
            seconds("varek.wall_clock", usage.wall_clock),
            seconds("varek.cpu.user", usage.cpu_user),
            seconds("varek.cpu.system", usage.cpu_system),
        ]);
        let throttled = usage.throttled.map(|time| seconds("varek.throttled", time));
        let memory = usage.memory_peak.map(|b| number("varek.memory.peak", b));
        let pids = usage.pids_peak.map(|n| number("varek.pids.peak", n));
        self.attributes
            .extend([throttled, memory, pids].into_iter().flatten());
    }
}

/// What is sent.
pub(super) fn request(
    resource: &[(String, String)],
    spans: Vec<Span>,
) -> ExportTraceServiceRequest {
    let attributes = resource
        .iter()
        .map(|(key, value)| text(key.clone(), value.clone()))
        .collect();
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes,
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute that the embedder gives to every span.
pub(super) fn attribute_of((key, value): &(String, String)) -> KeyValue {
    text(key.as_str(), value.as_str())
}

/// Numbers are signed in OTLP; what does not fit is the largest that does.
fn number(key: impl Into<String>, value: impl TryInto<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
}

fn seconds(key: impl Into<String>, value: Duration) -> KeyValue {
    attribute(key, Value::DoubleValue(value.as_secs_f64()))
}
