//! Runs as OpenTelemetry spans, by OTLP over HTTP.

mod span;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use ureq::Agent;
use ureq::http::HeaderValue;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use self::span::Draft;
use crate::{Event, EventKind, Flushed, Queue, RunId, Sink, TraceParent};

/// Runs whose end has not been seen, at most; the oldest is forgotten for a new one.
const MOST_RUNS: usize = 4_096;

/// Events waiting for the exporter's thread, at most.
const CAPACITY: usize = 16_384;

/// Times that one export is tried, and how long to wait before the second.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// The longest wait that a collector may ask for by Retry-After; what asks for more loses the spans.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// For one request, from connecting to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends one OpenTelemetry span a run, by OTLP over HTTP with protobuf, from a thread of its own and without a runtime.
///
/// The span begins and ends with the run and is sent when the run is over. Its events are those of the run, 128 at
/// most, and its status is an error where the run was killed, a call was denied that is no probe, or the program failed.
/// Its trace is that of the run's [`TraceParent`], where the command names one or [`OtlpBuilder::parent`] gives one, otherwise one whose number is the run's
/// own [`RunId`]. An embedder whose trace is not sampled gets no span.
///
/// # What fails
/// An export is tried four times where the collector says that it may be (429, 502, 503, 504) or cannot be reached, and not
/// before a Retry-After of ten seconds at most has passed; then its spans are counted as lost and [`Sink::fault`] says why. A collector that hangs slows down this sink alone. When it is
/// dropped it has half a second to send what is over: call [`Sink::flush`] before, with the time that there is.
///
/// # W&B Weave
/// ```no_run
/// use varek_telemetry::Otlp;
///
/// # fn main() -> Result<(), varek_telemetry::OtlpError> {
/// let key = std::env::var("WANDB_API_KEY").unwrap_or_default();
/// let sink = Otlp::to("https://trace.wandb.ai/otel/v1/traces")
///     .header("wandb-api-key", &key)
///     .resource("wandb.entity", "the-entity")
///     .resource("wandb.project", "the-project")
///     .start()?;
/// # drop(sink);
/// # Ok(())
/// # }
/// ```
/// The span is an `execute_tool` of the generative AI conventions, so the agents' endpoint takes it as well.
#[derive(Debug)]
pub struct Otlp {
    queue: Queue,
}

/// Why an [`Otlp`] sink could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The host refused a thread.
    #[error("start the thread of the exporter: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
    /// The endpoint is no URL with `http` or `https`.
    #[error("the endpoint {endpoint:?} is no http or https URL")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// A header cannot be sent. Its value is not shown: it may be a key.
    #[error(
        "the header {name:?} cannot be sent: its name or value has characters that headers cannot have"
    )]
    Header {
        /// The header's name.
        name: String,
    },
}

/// Asks for the parent of a run.
type Parents = Arc<dyn Fn(RunId) -> Option<TraceParent> + Send + Sync>;

/// How to reach a collector; made by [`Otlp::to`].
pub struct OtlpBuilder {
    endpoint: String,
    headers: Vec<(String, String)>,
    resource: Vec<(String, String)>,
    attributes: Vec<(String, String)>,
    parents: Option<Parents>,
}

impl Otlp {
    /// A collector's full URL, such as `http://127.0.0.1:4318/v1/traces`; nothing is put behind it.
    pub fn to(endpoint: impl Into<String>) -> OtlpBuilder {
        OtlpBuilder {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            resource: vec![("service.name".into(), "varek".into())],
            attributes: Vec::new(),
            parents: None,
        }
    }
}

impl OtlpBuilder {
    /// A header of every request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// An attribute of the resource; `service.name` is `varek` unless it is said here.
    #[must_use]
    pub fn resource(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let key = key.into();
        self.resource.retain(|(other, _)| *other != key);
        self.resource.push((key, value.into()));
        self
    }

    /// An attribute of every span.
    #[must_use]
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((key.into(), value.into()));
        self
    }

    /// Which span of the embedder a run belongs to, for embedders whose commands do not say it themselves (the
    /// `traceparent` of [`EventKind::RunStarted`]). It is asked once a run, when the run is over, on the exporter's
    /// thread; where it gives none, what the command said holds.
    #[must_use]
    pub fn parent(
        mut self,
        of: impl Fn(RunId) -> Option<TraceParent> + Send + Sync + 'static,
    ) -> Self {
        self.parents = Some(Arc::new(of));
        self
    }

    /// Starts the exporter's thread. Nothing is sent before a run is over.
    ///
    /// # Errors
    ///
    /// [`OtlpError`] where the endpoint or a header cannot be used, or the host refuses a thread.
    pub fn start(self) -> Result<Otlp, OtlpError> {
        let exporter = Exporter {
            agent: agent(),
            runs: Mutex::default(),
            builder: self.checked()?,
        };
        let queue = Queue::new(Box::new(exporter), CAPACITY)
            .map_err(|source| OtlpError::Thread { source })?;
        Ok(Otlp { queue })
    }

    fn checked(self) -> Result<Self, OtlpError> {
        let endpoint = self.endpoint.clone();
        let uri: Result<ureq::http::Uri, _> = endpoint.parse();
        let usable = uri.is_ok_and(|uri| {
            uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"))
        });
        if !usable {
            return Err(OtlpError::Endpoint { endpoint });
        }
        for (name, value) in &self.headers {
            let good = ureq::http::HeaderName::from_bytes(name.as_bytes()).is_ok()
                && HeaderValue::from_str(value).is_ok();
            if !good {
                let name = name.clone();
                return Err(OtlpError::Header { name });
            }
        }
        Ok(self)
    }
}

impl fmt::Debug for OtlpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers are keys.
        f.debug_struct("OtlpBuilder")
            .field("endpoint", &self.endpoint)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

/// A client that trusts what the host trusts, and follows no redirect: it would carry the key elsewhere.
fn agent() -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .http_status_as_error(false)
        .build()
        .into()
}

/// The sink behind the queue.
struct Exporter {
    agent: Agent,
    builder: OtlpBuilder,
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    open: HashMap<RunId, Draft>,
    /// Spans since the flush before.
    lost: u64,
    fault: Option<String>,
}

impl Exporter {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The span of a run that is over, unless the embedder's trace is not sampled.
    fn finish(&self, draft: Draft, last: &Event) -> Option<Span> {
        let asked = self.builder.parents.as_ref().and_then(|of| of(last.run));
        match asked.or(draft.parent()) {
            Some(parent) if !parent.sampled() => None,
            parent => {
                let mut span = draft.finish(last, parent);
                let own = self.builder.attributes.iter();
                span.attributes.extend(own.map(span::attribute_of));
                Some(span)
            }
        }
    }

    fn export(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let body = span::request(&self.builder.resource, spans);
        let result = self.send(&body);
        let mut runs = self.runs();
        match result {
            Ok(()) => runs.fault = None,
            Err(reason) => {
                runs.lost += count;
                runs.fault = Some(reason);
            }
        }
    }

    fn send(&self, request: &ExportTraceServiceRequest) -> Result<(), String> {
        let body = request.encode_to_vec();
        let mut pause = PAUSE;
        let mut tries = 1;
        loop {
            let (reason, again, asked) = match self.post(&body) {
                Ok((status, _)) if (200..300).contains(&status) => return Ok(()),
                Ok((status, asked)) => {
                    let why = match status {
                        401 | 403 => {
                            ": it does not take the key that it was sent, or was sent none"
                        }
                        _ => "",
                    };
                    let again = matches!(status, 429 | 502 | 503 | 504);
                    let reason = format!("the collector answered {status}{why}");
                    (reason, again, asked.unwrap_or_default())
                }
                Err(error) => {
                    let reason = format!("the collector cannot be reached: {error}");
                    (reason, true, Duration::ZERO)
                }
            };
            if !again || tries == TRIES || asked > LONGEST_WAIT {
                return Err(reason);
            }
            tries += 1;
            std::thread::sleep(pause.max(asked));
            pause *= 2;
        }
    }

    /// The status, and how long the collector asks to be left alone (RFC 9110, 10.2.3; as seconds, which is what OTLP
    /// over HTTP is specified with).
    fn post(&self, body: &[u8]) -> Result<(u16, Option<Duration>), ureq::Error> {
        let mut request = self
            .agent
            .post(&self.builder.endpoint)
            .content_type("application/x-protobuf");
        for (name, value) in &self.builder.headers {
            request = request.header(name, value);
        }
        let answer = request.send(body)?;
        let asked = answer.headers().get("retry-after");
        let seconds = asked.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Ok((answer.status().as_u16(), seconds.map(Duration::from_secs)))
    }
}

impl Sink for Exporter {
    fn record(&self, event: &Event) {
        self.record_all(std::slice::from_ref(event));
    }

    fn record_all(&self, events: &[Event]) {
        let mut spans = Vec::new();
        for event in events {
            let mut runs = self.runs();
            if matches!(event.kind, EventKind::RunFinished { .. }) {
                let draft = runs.open.remove(&event.run);
                drop(runs);
                let draft = draft.unwrap_or_else(|| Draft::new(event));
                spans.extend(self.finish(draft, event));
                continue;
            }
            let known = runs.open.contains_key(&event.run);
            // A gap that a queue reports may be that of a run whose end has been seen.
            if !known && matches!(event.kind, EventKind::EventsDropped { .. }) {
                continue;
            }
            if !known && runs.open.len() >= MOST_RUNS {
                let oldest = runs.open.iter().min_by_key(|(_, draft)| draft.begin());
                if let Some(oldest) = oldest.map(|(run, _)| *run) {
                    runs.open.remove(&oldest);
                    runs.lost += 1;
                }
            }
            runs.open
                .entry(event.run)
                .or_insert_with(|| Draft::new(event))
                .add(event);
        }
        if !spans.is_empty() {
            self.export(spans);
        }
    }

    fn flush(&self, _within: Duration) -> Flushed {
        match std::mem::take(&mut self.runs().lost) {
            0 => Flushed::Complete,
            lost => Flushed::Lost(lost),
        }
    }

    fn fault(&self) -> Option<String> {
        self.runs().fault.clone()
    }
}

impl Sink for Otlp {
    fn record(&self, event: &Event) {
        self.queue.record(event);
    }

    /// Waits until what was recorded has been sent. Spans of runs that are not over stay.
    fn flush(&self, within: Duration) -> Flushed {
        self.queue.flush(within)
    }

    fn fault(&self) -> Option<String> {
        self.queue.fault()
    }
}
