//! What sinks do in a copy of the embedder that fork(2) made: nothing.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(target_os = "linux")]

#[cfg(feature = "otel")]
#[path = "support/collector.rs"]
mod collector;
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[path = "support/facades.rs"]
mod facades;
mod support;
#[path = "support/sys.rs"]
mod sys;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use support::{event, finished, plain};
use varek_telemetry::{
    AuditLog, Event, Fanout, Flushed, JsonLines, Queue, Sink, Termination, verify,
};

const LONG: Duration = Duration::from_secs(60);

/// Everything that a sink is asked to do, in a forked copy, where it is dropped too.
fn in_a_copy(sink: impl Sink) {
    let mut sink = Some(sink);
    let done = sys::in_a_fork(|| {
        let sink = sink.take().unwrap();
        sink.record(&plain(100));
        sink.record_all(&[plain(101), event(102, finished(Termination::Exited(0)))]);
        sink.flush(LONG);
        let _ = sink.fault();
        drop(sink);
    });
    assert!(done);
    let sink = sink.unwrap();
    sink.record(&event(1, finished(Termination::Exited(0))));
    assert_eq!(sink.flush(LONG), Flushed::Complete);
}

#[test]
fn files_get_nothing_from_a_forked_copy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    let log = JsonLines::open(&path).unwrap();
    log.record(&plain(0));
    in_a_copy(log);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(!text.contains(r#""sequence":10"#), "{text}");

    let path = directory.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    #[cfg(feature = "signing")]
    let log = log
        .signed_by(varek_telemetry::SigningKey::from_seed(&[1; 32]))
        .unwrap();
    log.record(&plain(0));
    in_a_copy(log);
    let text = fs::read(&path).unwrap();
    assert_eq!(verify(&text[..], None).unwrap().head.lines(), 2);
}

#[test]
fn a_forked_copy_does_not_take_the_lock_of_a_log_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    let mut log = Some(JsonLines::open(&path).unwrap());
    assert!(sys::in_a_fork(|| drop(log.take())));
    assert!(JsonLines::open(&path).is_err());
    drop(log);
    JsonLines::open(&path).unwrap();
}

#[test]
fn a_queue_and_a_fan_out_give_nothing_of_a_forked_copy_to_their_sinks() {
    let (seen, events) = mpsc::channel();
    let sink = move |event: &Event| seen.send(event.sequence).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let pid = std::process::id();
    let direct = move |_: &Event| {
        if std::process::id() != pid {
            // A panic would be the fan-out's to catch.
            std::process::abort();
        }
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let fanout = Fanout::new()
        .with(Queue::new(Box::new(sink), 16).unwrap())
        .with(direct);
    fanout.record(&plain(0));
    in_a_copy(fanout);
    assert_eq!(events.iter().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_copy_made_while_a_queue_is_busy_is_not_held_up_by_it() {
    let queue = Queue::new(Box::new(|_: &Event| {}), 16).unwrap();
    for round in 0..50 {
        (0..200).for_each(|n| queue.record(&plain(n)));
        let done = sys::in_a_fork(|| {
            queue.record(&plain(0));
            queue.flush(LONG);
            let _ = queue.fault();
        });
        assert!(done, "round {round}");
    }
    // And one that drops it.
    let mut queue = Some(queue);
    queue.as_ref().unwrap().record(&plain(0));
    assert!(sys::in_a_fork(|| drop(queue.take())));
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_count_nothing_of_a_forked_copy() {
    let counts = facades::counts::Counts::default();
    metrics::with_local_recorder(&counts, || {
        let sink = varek_telemetry::Metrics::new();
        assert!(sys::in_a_fork(|| {
            sink.record(&plain(0));
            assert!(counts.all().is_empty());
        }));
        sink.record(&plain(0));
    });
    assert_eq!(counts.all().len(), 1);
}

#[cfg(feature = "tracing")]
#[test]
fn tracing_says_nothing_of_a_forked_copy() {
    let lines = facades::trace::Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let sink = varek_telemetry::Tracing::new();
        assert!(sys::in_a_fork(|| {
            sink.record(&plain(0));
            assert!(lines.0.lock().unwrap().is_empty());
        }));
        sink.record(&plain(0));
    });
    assert_eq!(lines.0.lock().unwrap().len(), 1);
}

#[cfg(feature = "otel")]
#[test]
fn no_span_is_sent_by_a_forked_copy() {
    let collector = collector::Collector::answering(&[200]);
    let sink = varek_telemetry::Otlp::to(&collector.url).start().unwrap();
    in_a_copy(sink);
    assert_eq!(collector.next().spans().len(), 1);
    assert!(collector.is_quiet());
}
