//! What an event costs: handing it to a queue, and writing it to each kind of log. Criterion's throughput is events a
//! second.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot run has nothing to report"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use varek_telemetry::{
    Answer, AuditLog, Denial, Event, EventKind, Fanout, JsonLines, Queue, RunId, Sink,
};

/// Events handed over in one round: fewer than fit into the queue, which is that of a sandbox.
const ROUND: u64 = 32_768;
const CAPACITY: usize = 65_536;

/// Events that a queue hands to a sink in one call.
const BATCH: usize = 256;

/// A denied call: the event that a hostile guest can make most of.
fn denied(sequence: u64) -> Event {
    Event {
        run: RunId::from_bits(0xfeed_beef << 64 | 0xabcd),
        sequence,
        time: SystemTime::UNIX_EPOCH + Duration::new(1_764_547_200, 123_456_789),
        elapsed: Duration::from_nanos(1_234_567_891),
        kind: EventKind::SyscallDenied(Denial {
            syscall: Some("socket".into()),
            number: 41,
            abi: std::env::consts::ARCH.into(),
            arguments: [2, 0x8_0001, 0, 0x7fff_1234_5678, 0, 0],
            thread: 4_242,
            answer: Answer::Errno(1),
            count: 1,
            unverified: Vec::new(),
        }),
    }
}

/// The smallest event.
fn started(sequence: u64) -> Event {
    Event {
        kind: EventKind::GuestStarted { pid: 4_242 },
        ..denied(sequence)
    }
}

/// How long the embedder's side takes for a round; the queue is empty before the clock starts.
fn hand_over(queue: &dyn Sink, events: &[Event], rounds: u64) -> Duration {
    let mut taken = Duration::ZERO;
    for _ in 0..rounds {
        queue.flush(Duration::from_secs(60));
        let begin = Instant::now();
        for event in events {
            queue.record(event);
        }
        taken += begin.elapsed();
    }
    taken
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(ROUND));
    for (name, event) in [
        ("guest_started", started as fn(u64) -> Event),
        ("syscall_denied", denied),
    ] {
        let events: Vec<_> = (0..ROUND).map(event).collect();
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let sink = move |_: &Event| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let queue = Queue::new(Box::new(sink), CAPACITY).expect("a thread");
        group.bench_function(BenchmarkId::new("record", name), |bencher| {
            bencher.iter_custom(|rounds| hand_over(&queue, &events, rounds));
        });
        // And all the way through, with the sink's own thread.
        group.bench_function(BenchmarkId::new("record_and_deliver", name), |bencher| {
            bencher.iter(|| {
                for event in &events {
                    queue.record(event);
                }
                queue.flush(Duration::from_secs(60));
            });
        });
        assert_eq!(queue.dropped(), 0);
    }
    // A sink that does not come back: what a drop costs.
    let events: Vec<_> = (0..ROUND).map(denied).collect();
    let (_release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let stuck = move |_: &Event| {
        if let Ok(gate) = gate.lock() {
            let _ = gate.recv();
        }
    };
    let queue = Queue::new(Box::new(stuck), 16).expect("a thread");
    group.bench_function(BenchmarkId::new("drop", "syscall_denied"), |bencher| {
        bencher.iter(|| {
            for event in &events {
                queue.record(event);
            }
        });
    });
    group.finish();
}

fn files(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let events: Vec<_> = (0..ROUND).map(denied).collect();
    let mut group = criterion.benchmark_group("files");
    group.throughput(Throughput::Elements(ROUND));
    group.sample_size(10);

    let lines = JsonLines::open(place("lines")).expect("a log");
    let rotating = JsonLines::open(place("rotating"))
        .expect("a log")
        .rotating(64 << 20, 1);
    let audit = AuditLog::open(place("audit")).expect("a log");
    let sinks: [(&str, &dyn Sink); 3] = [
        ("json_lines", &lines),
        ("json_lines_rotating", &rotating),
        ("audit_log", &audit),
    ];
    for (name, sink) in sinks {
        group.bench_function(BenchmarkId::new(name, "one_by_one"), |bencher| {
            bencher.iter(|| {
                for event in &events {
                    sink.record(event);
                }
            });
        });
        group.bench_function(BenchmarkId::new(name, "as_a_queue_does"), |bencher| {
            bencher.iter(|| {
                for batch in events.chunks(BATCH) {
                    sink.record_all(batch);
                }
            });
        });
        assert_eq!(sink.fault(), None);
    }
    // All of it: queue, fan-out, both logs, and fdatasync at the end.
    let both = Fanout::new()
        .with(JsonLines::open(place("behind")).expect("a log"))
        .with(AuditLog::open(place("audit-behind")).expect("a log"));
    let queue = Queue::new(Box::new(both), CAPACITY).expect("a thread");
    group.bench_function("both_behind_a_queue_with_sync", |bencher| {
        bencher.iter(|| {
            for event in &events {
                queue.record(event);
            }
            queue.flush(Duration::from_secs(60));
        });
    });
    group.finish();
}

criterion_group! {
    name = telemetry;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = queue, files
}
criterion_main!(telemetry);
