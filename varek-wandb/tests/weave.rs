//! Runs in Weave: what the OTLP sink of `varek-telemetry` sends is taken by a server that has the service's three paths.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::server::{API_KEY, Server};
use varek_telemetry::{
    Answer, Arguments, Cause, Cleanup, Denial, Enforcement, Event, EventKind, Flushed, Otlp,
    OtlpBuilder, RunId, Sink, Termination, TraceParent, Usage,
};

const LONG: Duration = Duration::from_secs(60);
const TRACES: &str = "/otel/v1/traces";
const DEDICATED: &str = "/traces/otel/v1/traces";
const AGENTS: &str = "/agents/otel/v1/traces";

/// The status codes of a span (opentelemetry-proto, trace.proto).
const UNSET: u64 = 0;
const ERROR: u64 = 2;

fn event(run: u128, sequence: u64, kind: EventKind) -> Event {
    Event {
        run: RunId::from_bits(run),
        sequence,
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + sequence),
        elapsed: Duration::from_secs(sequence),
        kind,
    }
}

fn started(run: u128) -> Event {
    let kind = EventKind::RunStarted {
        program: "/usr/bin/python3".into(),
        interpreter: None,
        arguments: Arguments::None { count: 2 },
        policy: "sha256:0".into(),
        enforcement: Enforcement::default(),
        traceparent: None,
    };
    event(run, 0, kind)
}

fn finished(run: u128, termination: Termination) -> Event {
    let kind = EventKind::RunFinished {
        termination,
        usage: Usage::default(),
        cleanup: Cleanup::Complete,
    };
    event(run, 2, kind)
}

fn denied(run: u128) -> Event {
    let denial = Denial {
        syscall: Some("socket".into()),
        number: 41,
        abi: "x86_64".into(),
        arguments: [2, 1, 0, 0, 0, 0],
        thread: 7,
        answer: Answer::Kill,
        count: 1,
        unverified: Vec::new(),
    };
    event(run, 1, EventKind::SyscallDenied(denial))
}

/// A run that a denied call ended.
fn blocked(run: u128) -> [Event; 3] {
    let cause = Cause::Syscall {
        name: "socket".into(),
    };
    [
        started(run),
        denied(run),
        finished(run, Termination::Killed(cause)),
    ]
}

fn sink(server: &Server, path: &str) -> OtlpBuilder {
    Otlp::to(format!("{}{path}", server.url())).header("wandb-api-key", API_KEY)
}

fn of_project(builder: OtlpBuilder) -> OtlpBuilder {
    builder
        .resource("wandb.entity", "the-team")
        .resource("wandb.project", "the-project")
}

fn record(sink: &Otlp, events: impl IntoIterator<Item = Event>) {
    events.into_iter().for_each(|event| sink.record(&event));
}

fn spans(server: &Server) -> Vec<Value> {
    let document = server.everything();
    document["spans"].as_array().cloned().unwrap_or_default()
}

/// The statuses that requests were answered with, in order.
fn statuses(server: &Server) -> Vec<u64> {
    let events = server.events();
    let requests = events.iter().filter(|event| event["kind"] == "otlp");
    requests
        .map(|event| event["status"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_run_arrives_on_each_of_the_three_paths() {
    for (path, view) in [
        (TRACES, "traces"),
        (DEDICATED, "traces"),
        (AGENTS, "agents"),
    ] {
        let server = Server::start();
        let sink = of_project(sink(&server, path)).start().unwrap();
        record(&sink, [started(7), finished(7, Termination::Exited(0))]);
        assert_eq!(sink.flush(LONG), Flushed::Complete);
        assert_eq!(sink.fault(), None);
        let [span] = &spans(&server)[..] else {
            panic!("{:?}", spans(&server));
        };
        assert_eq!(span["view"], view);
        assert_eq!(span["project"], "the-team/the-project");
        assert_eq!(span["service"], "varek");
        assert_eq!(span["name"], "execute_tool varek.sandbox");
        assert_eq!(span["status"], UNSET);
        assert_eq!(span["parent"], Value::Null);
        let attributes = &span["attributes"];
        assert_eq!(attributes["gen_ai.operation.name"], "execute_tool");
        assert_eq!(attributes["gen_ai.tool.name"], "varek.sandbox");
        assert_eq!(attributes["process.exit.code"], 0);
        assert_eq!(server.violations(), [""; 0]);
    }
}

#[test]
fn the_project_is_that_of_the_header_where_the_resource_has_none_and_without_either_a_run_is_lost()
{
    let server = Server::start();
    let of_header = sink(&server, TRACES).header("project_id", "header-team/header-project");
    let of_both = of_project(sink(&server, TRACES)).header("project_id", "header-team/other");
    for builder in [of_header, of_both] {
        let sink = builder.start().unwrap();
        record(&sink, [finished(8, Termination::Exited(0))]);
        assert_eq!(sink.flush(LONG), Flushed::Complete);
        drop(sink);
        assert_eq!(server.violations(), [""; 0]);
    }
    // Both have one number, and only the first of a number is shown; the recording has both.
    assert_eq!(statuses(&server), [200, 200]);
    assert_eq!(spans(&server)[0]["project"], "header-team/header-project");

    let server = Server::start();
    let resource = of_project(sink(&server, TRACES)).header("project_id", "header-team/other");
    let sink = resource.start().unwrap();
    record(&sink, [finished(9, Termination::Exited(0))]);
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert_eq!(spans(&server)[0]["project"], "the-team/the-project");

    let server = Server::start();
    let sink = self::sink(&server, TRACES).start().unwrap();
    record(&sink, [finished(9, Termination::Exited(0))]);
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert!(spans(&server).is_empty());
    assert!(server.violations()[0].contains("has no project"));
}

#[test]
fn a_blocked_run_is_an_error_below_the_span_of_its_caller() {
    let server = Server::start();
    let parent: TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        .parse()
        .unwrap();
    let sink = of_project(sink(&server, AGENTS))
        .parent(move |_| Some(parent))
        .start()
        .unwrap();
    record(&sink, blocked(10));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    let span = &spans(&server)[0];
    assert_eq!(span["status"], ERROR);
    assert_ne!(span["message"], "");
    assert_eq!(span["trace"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(span["parent"], "<remote b7ad6b7169203331>");
    // The denied call alone is an event of the span: its beginning and end are the run's.
    assert_eq!(span["events"], 1);
    assert_eq!(span["attributes"]["varek.denied_calls"], 1);
}

/// After the fault the run is there, once, and nothing was done that a good client does not do.
fn survives(fault: &str, answers: &[u64]) {
    let server = Server::faulty(&[fault]);
    let sink = of_project(sink(&server, TRACES)).start().unwrap();
    record(&sink, blocked(11));
    assert_eq!(sink.flush(LONG), Flushed::Complete, "{fault}");
    assert_eq!(sink.fault(), None, "{fault}");
    assert_eq!(statuses(&server), answers, "{fault}");
    assert_eq!(spans(&server).len(), 1, "{fault}");
    assert_eq!(server.violations(), [""; 0], "{fault}");
    assert_eq!(server.faults()[0]["done"], 1, "{fault}");
}

#[test]
fn a_run_survives_a_service_that_is_busy_or_hangs_up() {
    survives("on=otlp,do=503", &[503, 200]);
    survives("on=otlp,do=drop", &[0, 200]);
    // Both were taken; the number of the span says that they are one.
    survives("on=otlp,do=drop-after", &[200, 200]);
}

#[test]
fn a_service_that_asks_to_wait_is_left_alone_for_as_long() {
    survives("on=otlp,do=429:2", &[429, 200]);
}

/// The fault where the run is lost; the key is in no message.
fn lost(fault: &str) -> (Server, String) {
    let server = Server::faulty(&[fault]);
    let sink = of_project(sink(&server, TRACES)).start().unwrap();
    record(&sink, blocked(12));
    assert_eq!(sink.flush(LONG), Flushed::Lost(1), "{fault}");
    let said = sink.fault().unwrap();
    assert!(!said.contains(API_KEY), "{said}");
    assert!(!format!("{sink:?}").contains(API_KEY));
    assert!(spans(&server).is_empty());
    // What comes after is not held up by what was lost.
    record(&sink, blocked(13));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert_eq!(spans(&server).len(), 1);
    assert_eq!(sink.fault(), None);
    assert_eq!(server.violations(), [""; 0]);
    (server, said)
}

#[test]
fn a_refusal_is_said_once_and_not_tried_again() {
    let (server, said) = lost("on=otlp,do=401");
    assert!(said.contains("401") && said.contains("key"), "{said}");
    assert_eq!(statuses(&server), [401, 200]);
    // OTLP: only what says that it is passing is tried again.
    let (server, said) = lost("on=otlp,do=500");
    assert!(said.contains("500"), "{said}");
    assert_eq!(statuses(&server), [500, 200]);
    let (server, said) = lost("on=otlp,do=429:3600");
    assert!(said.contains("429"), "{said}");
    assert_eq!(statuses(&server), [429, 200]);
}

#[test]
fn a_redirect_does_not_take_the_key_elsewhere() {
    let (server, said) = lost("on=otlp,do=redirect");
    assert!(said.contains("307"), "{said}");
    assert_eq!(statuses(&server), [307, 200]);
    let events = server.events();
    assert!(events.iter().all(|event| event["port"] != json!("other")));
}

#[test]
fn a_wrong_key_is_refused_and_shown_nowhere() {
    let server = Server::start();
    let wrong = "wr0ng-key-that-nobody-may-see";
    let sink = Otlp::to(format!("{}{TRACES}", server.url()))
        .header("wandb-api-key", wrong)
        .start()
        .unwrap();
    record(&sink, blocked(14));
    assert_eq!(sink.flush(LONG), Flushed::Lost(1));
    let said = sink.fault().unwrap();
    assert!(said.contains("401") && !said.contains(wrong), "{said}");
    assert!(!format!("{sink:?}").contains(wrong));
}

/// A run of the W&B client on this server.
#[cfg(feature = "weave")]
fn online(server: &Server, directory: &std::path::Path) -> varek_wandb::Run {
    varek_wandb::Run::builder()
        .environment(varek_wandb::Environment::default())
        .project("varek-demo")
        .id("weave001")
        .dir(directory)
        .mode(varek_wandb::Mode::Online)
        .base_url(server.url())
        .api_key(API_KEY)
        .start()
        .unwrap()
}

#[cfg(feature = "weave")]
#[test]
fn the_spans_of_a_run_are_in_its_project_and_linked_to_it() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let run = online(&server, directory.path());
    support::wait_for("the server's word", || run.url());
    let sink = run.weave().unwrap();
    record(&sink, blocked(21));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert!(run.finish(0, LONG).unwrap().is_complete());
    let spans = spans(&server);
    let [span] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(span["project"], "fake-team/varek-demo");
    assert_eq!(span["name"], "execute_tool varek.sandbox");
    assert_eq!(
        span["attributes"]["wandb.wb_run_id"],
        "fake-team/varek-demo/weave001"
    );
    assert_eq!(span["attributes"]["varek.policy"], "sha256:0");
    assert_eq!(span["status"], ERROR);
    assert_eq!(server.violations(), [""; 0]);
}

#[cfg(feature = "weave")]
#[test]
fn without_a_project_that_is_known_or_offline_there_is_no_such_sink() {
    let mut server = Server::start();
    server.interrupt();
    let directory = tempfile::tempdir().unwrap();
    let run = online(&server, directory.path());
    let refused = run.weave().unwrap_err().to_string();
    assert!(refused.contains("WANDB_ENTITY"), "{refused}");
    run.finish(0, Duration::ZERO).unwrap();
    let run = varek_wandb::Run::builder()
        .environment(varek_wandb::Environment::default())
        .entity("fake-team")
        .dir(directory.path())
        .mode(varek_wandb::Mode::Offline)
        .start()
        .unwrap();
    let refused = run.weave().unwrap_err().to_string();
    assert!(refused.contains("online"), "{refused}");
}
