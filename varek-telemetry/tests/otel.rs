//! Spans, as a collector gets them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(feature = "otel")]

#[path = "support/collector.rs"]
mod collector;
mod support;

use std::time::Duration;

use collector::{Collector, attributes};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use support::{denial, event, finished, started};
use varek_telemetry::{
    Answer, Arguments, Cause, Event, EventKind, Flushed, Otlp, RunId, Sink, Termination,
    TraceParent,
};

const LONG: Duration = Duration::from_secs(60);

/// The events of a run that was killed for a denied call.
fn run() -> Vec<Event> {
    [
        started(Arguments::None { count: 2 }),
        EventKind::GuestStarted { pid: 9 },
        EventKind::SyscallDenied(denial(Some("socket"), [2, 1, 0, 0, 0, 0], Answer::Errno(1))),
        EventKind::SyscallDenied(denial(None, [0; 6], Answer::Probe)),
        EventKind::KillIssued {
            cause: Cause::WallClock,
        },
        finished(Termination::Killed(Cause::WallClock)),
    ]
    .into_iter()
    .zip(0..)
    .map(|(kind, sequence)| event(sequence, kind))
    .collect()
}

#[test]
fn a_run_is_one_span_with_its_events_and_goes_where_the_embedder_said() {
    let collector = Collector::answering(&[200]);
    let sink = Otlp::to(&collector.url)
        .header("wandb-api-key", "the-key")
        .resource("wandb.entity", "the-entity")
        .start()
        .unwrap();
    for event in run() {
        sink.record(&event);
    }
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert_eq!(sink.fault(), None);

    let request = collector.next();
    assert_eq!(request.path, "/otel/v1/traces");
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    assert_eq!(request.headers["wandb-api-key"], "the-key");
    let resource = request.decoded().resource_spans[0]
        .resource
        .clone()
        .unwrap();
    let resource = attributes(&resource.attributes);
    assert_eq!(resource["wandb.entity"], "the-entity");
    assert_eq!(resource["service.name"], "varek");

    let [span] = &request.spans()[..] else {
        panic!("{request:?}")
    };
    let bits = run()[0].run.to_bits();
    assert_eq!(span.trace_id, bits.to_be_bytes());
    assert_eq!(span.span_id, bits.to_be_bytes()[8..]);
    assert!(span.parent_span_id.is_empty());
    assert_eq!(span.name, "execute_tool varek.sandbox");
    assert_eq!(span.end_time_unix_nano, 1_700_000_000_123_456_789);
    assert_eq!(
        span.end_time_unix_nano - span.start_time_unix_nano,
        1_999_999_999
    );
    let names: Vec<_> = span
        .events
        .iter()
        .map(|event| event.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "guest_started",
            "syscall_denied",
            "syscall_denied",
            "kill_issued"
        ]
    );
    let denied = attributes(&span.events[1].attributes);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(denied["varek.call"], "socket(AF_INET, SOCK_STREAM, 0)");
    }
    let all = attributes(&span.attributes);
    assert_eq!(all["gen_ai.operation.name"], "execute_tool");
    assert_eq!(all["process.executable.path"], "/bin/true");
    assert_eq!(all["varek.termination"], "killed: wall clock limit");
    assert_eq!(all["varek.denied_calls"], "1");
    assert_eq!(all["varek.memory.peak"], i64::MAX.to_string());
    assert_eq!(all["varek.missing.denial_reports"], "the host has none");
    let status = span.status.as_ref().unwrap();
    assert_eq!(status.code, i32::from(StatusCode::Error));
}

#[test]
fn a_run_that_did_nothing_wrong_is_no_error() {
    let collector = Collector::answering(&[200]);
    let sink = Otlp::to(&collector.url).start().unwrap();
    sink.record(&event(0, finished(Termination::Exited(0))));
    let spans = collector.next().spans();
    let status = spans[0].status.as_ref().unwrap();
    assert_eq!(status.code, i32::from(StatusCode::Unset));
    assert_eq!(attributes(&spans[0].attributes)["process.exit.code"], "0");
}

#[test]
fn a_run_belongs_to_the_span_that_the_embedder_says_it_does() {
    let collector = Collector::answering(&[200]);
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let parent: TraceParent = text.parse().unwrap();
    let unsampled: TraceParent = text.replace("-01", "-00").parse().unwrap();
    let ours = RunId::from_bits(7);
    let sink = Otlp::to(&collector.url)
        .parent(move |run| Some(if run == ours { parent } else { unsampled }))
        .start()
        .unwrap();
    let end = |run| Event {
        run,
        ..event(0, finished(Termination::Exited(0)))
    };
    // The embedder does not record this one's trace.
    sink.record(&end(RunId::from_bits(8)));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert!(collector.is_quiet());
    sink.record(&end(ours));
    let spans = collector.next().spans();
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].trace_id, parent.trace());
    assert_eq!(spans[0].parent_span_id, parent.span());
    assert_eq!(spans[0].span_id, 7_u64.to_be_bytes());
}

#[test]
fn a_run_belongs_to_the_span_that_its_command_names_unless_the_sink_is_told_another() {
    let collector = Collector::answering(&[200]);
    let ours: TraceParent = support::PARENT.parse().unwrap();
    let text = "00-11111111111111111111111111111111-2222222222222222-01";
    let other: TraceParent = text.parse().unwrap();
    let told = RunId::from_bits(8);
    let sink = Otlp::to(&collector.url)
        .parent(move |run| (run == told).then_some(other))
        .start()
        .unwrap();
    let run = |run, parent: &str| {
        for kind in [
            support::started_beneath(parent),
            finished(Termination::Exited(0)),
        ] {
            sink.record(&Event {
                run,
                ..event(0, kind)
            });
        }
    };
    // Its trace is not recorded, and so it has no span.
    run(RunId::from_bits(6), &support::PARENT.replace("-01", "-00"));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    assert!(collector.is_quiet());
    for (id, parent) in [(RunId::from_bits(7), ours), (told, other)] {
        run(id, support::PARENT);
        let spans = collector.next().spans();
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].trace_id, parent.trace());
        assert_eq!(spans[0].parent_span_id, parent.span());
        assert_eq!(spans[0].flags, 1);
    }
}

#[test]
fn a_storm_of_events_is_cut_and_what_was_cut_is_counted() {
    let collector = Collector::answering(&[200]);
    let sink = Otlp::to(&collector.url).start().unwrap();
    (0..1_000).for_each(|n| sink.record(&support::plain(n)));
    sink.record(&event(1_000, finished(Termination::Exited(0))));
    let spans = collector.next().spans();
    assert_eq!(spans[0].events.len(), 128);
    assert_eq!(spans[0].dropped_events_count, 1_000 - 128);
}

#[test]
fn a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let collector = Collector::answering(&[503, 429, 200, 401]);
    let sink = Otlp::to(&collector.url).start().unwrap();
    sink.record(&event(0, finished(Termination::Exited(0))));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
    let bodies = [
        collector.next().body,
        collector.next().body,
        collector.next().body,
    ];
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2]);
    assert!(collector.is_quiet());

    sink.record(&event(0, finished(Termination::Exited(0))));
    assert_eq!(sink.flush(LONG), Flushed::Lost(1));
    collector.next();
    assert!(collector.is_quiet());
    let fault = sink.fault().unwrap();
    assert!(fault.starts_with("the collector answered 401: "), "{fault}");
}

#[test]
fn a_collector_that_does_not_speak_tls_gets_nothing_by_https() {
    let collector = Collector::answering(&[200]);
    let url = collector.url.replace("http://", "https://");
    let sink = Otlp::to(url).header("api-key", "the-key").start().unwrap();
    sink.record(&event(0, finished(Termination::Exited(0))));
    assert_eq!(sink.flush(LONG), Flushed::Lost(1));
    let fault = sink.fault().unwrap();
    assert!(
        fault.starts_with("the collector cannot be reached"),
        "{fault}"
    );
    assert!(collector.is_quiet());
}

#[test]
fn a_redirect_is_not_followed_with_the_key() {
    let collector = Collector::answering(&[307]);
    let sink = Otlp::to(&collector.url)
        .header("wandb-api-key", "the-key")
        .start()
        .unwrap();
    sink.record(&event(0, finished(Termination::Exited(0))));
    assert_eq!(sink.flush(LONG), Flushed::Lost(1));
    collector.next();
    assert!(collector.is_quiet());
}

#[test]
fn what_cannot_be_used_is_said_at_the_start_and_keys_are_not_shown() {
    for endpoint in ["", "nowhere", "ftp://127.0.0.1/", "/v1/traces"] {
        assert!(Otlp::to(endpoint).start().is_err(), "{endpoint}");
    }
    let builder = Otlp::to("https://127.0.0.1/v1/traces").header("api-key", "a\nsecret");
    assert!(!format!("{builder:?}").contains("secret"));
    let error = builder.start().unwrap_err();
    assert!(!format!("{error:?} {error}").contains("secret"));
}
