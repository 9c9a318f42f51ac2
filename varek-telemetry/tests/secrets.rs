//! What the embedder keeps to itself is in no sink's output.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(all(
    target_os = "linux",
    feature = "metrics",
    feature = "otel",
    feature = "signing",
    feature = "tracing"
))]

#[path = "support/collector.rs"]
mod collector;
#[path = "support/facades.rs"]
mod facades;
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{denial, event, samples, started};
use varek_telemetry::{
    Answer, ArgumentDetail, Arguments, AuditLog, Denial, Event, EventKind, Fanout, Flushed,
    JsonLines, Metrics, Otlp, Queue, SigningKey, Sink, Tracing,
};

const ENVIRONMENT: &str = "planted-in-the-environment-5b1f";
const ARGUMENT: &str = "planted-in-an-argument-77c0";
const PATH: &str = "planted-behind-a-pointer-41d8";
const HEADER: &str = "planted-in-a-header-90ad";
const KEY: [u8; 32] = *b"planted-in-the-signing-key-3e21-";
const PLACE: &str = "VAREK_TEST_OUTPUT";
const LONG: Duration = Duration::from_secs(60);

fn found(text: &[u8], secret: &str) -> bool {
    text.windows(secret.len())
        .any(|part| part == secret.as_bytes())
}

#[test]
fn no_sink_tells_of_the_environment_and_of_arguments_only_as_much_as_was_asked_for() {
    if let Some(place) = std::env::var_os(PLACE) {
        return every_sink_writes(Path::new(&place));
    }
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("no_sink_tells_of_the_environment_and_of_arguments_only_as_much_as_was_asked_for")
        .env(PLACE, directory.path())
        .env("API_TOKEN", ENVIRONMENT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut files: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read(path).unwrap()))
        .collect();
    files.push(("output".into(), [output.stdout, output.stderr].concat()));
    let kinds = [
        "audit.jsonl",
        "audit.jsonl.head",
        "events.jsonl",
        "full.jsonl",
        "metrics",
    ];
    for kind in [&kinds[..], &["debug", "spans", "tracing"]].concat() {
        let (_, text) = files
            .iter()
            .find(|(name, _)| name.ends_with(&format!("/{kind}")))
            .unwrap_or_else(|| panic!("{kind}"));
        assert!(!text.is_empty(), "{kind}");
    }
    let key = String::from_utf8(KEY.to_vec()).unwrap();
    let key_digits: String = KEY.map(|byte| format!("{byte:02x}")).concat();
    for (name, text) in &files {
        for secret in [ENVIRONMENT, HEADER, &key, &key_digits] {
            assert!(!found(text, secret), "{secret} in {name}");
        }
        // The one that asked for it has it.
        let asked = name.ends_with("full.jsonl");
        assert_eq!(found(text, ARGUMENT), asked, "{name}");
        // Those that show calls show what their pointers led to, where that was asked for, and as unverified.
        let asked = ["full.jsonl", "full.tracing", "full.spans"];
        let asked = asked.iter().any(|kind| name.ends_with(kind));
        assert_eq!(found(text, PATH), asked, "{name}");
        if asked {
            let text = String::from_utf8_lossy(text).replace('\\', "");
            assert!(text.contains(&format!("unverified:\"{PATH}\"")), "{name}");
        }
    }
}

/// Denied calls whose pointers a guest has made lead to a secret, as the supervisor reads them under this detail.
fn denials(detail: ArgumentDetail) -> impl Iterator<Item = Event> {
    let path = format!("{PATH}\0").into_bytes();
    let local = [&1_u16.to_ne_bytes()[..], PATH.as_bytes(), &[0]].concat();
    let calls = [
        ("openat", [3, 1, 0, 0, 0, 0], path.clone()),
        ("fsetxattr", [3, 1, 0, 0, 0, 0], path),
        ("connect", [3, 1, local.len() as u64, 0, 0, 0], local),
    ];
    calls.into_iter().map(move |(name, arguments, memory)| {
        let abi = std::env::consts::ARCH.to_owned();
        let mut denied = Denial {
            abi,
            ..denial(Some(name), arguments, Answer::Errno(1))
        };
        let pointers = denied.pointers(detail).into_iter();
        denied.unverified = pointers
            .filter_map(|pointer| pointer.read(&memory))
            .collect();
        let full = detail == ArgumentDetail::Full;
        assert_eq!(denied.unverified.len(), usize::from(full), "{name}");
        event(0, EventKind::SyscallDenied(denied))
    })
}

/// The embedder, with secrets all around it.
fn every_sink_writes(place: &Path) {
    assert_eq!(std::env::var("API_TOKEN").as_deref(), Ok(ENVIRONMENT));
    let list = ["-c", ARGUMENT];
    let mut events: Vec<Event> = samples()
        .into_iter()
        .map(|(_, kind)| event(0, kind))
        .collect();
    for detail in [ArgumentDetail::None, ArgumentDetail::Digest] {
        events.insert(0, event(0, started(Arguments::of(detail, list))));
        for denied in denials(detail) {
            events.insert(1, denied);
        }
    }
    // A run has so many events in a span, at most, and these are to be among them.
    assert!(events.len() < 100);
    let full = event(0, started(Arguments::of(ArgumentDetail::Full, list)));

    let collector = collector::Collector::answering(&[200]);
    let audit = AuditLog::open(place.join("audit.jsonl"))
        .unwrap()
        .signed_by(SigningKey::from_seed(&KEY));
    let spans = Otlp::to(&collector.url).header("api-key", HEADER);
    let debug = format!("{audit:?} {spans:?} {events:?}");
    let files = Fanout::new()
        .with(JsonLines::open(place.join("events.jsonl")).unwrap())
        .with(audit.unwrap())
        .with(spans.start().unwrap());
    let files = Queue::new(Box::new(files), 1_024).unwrap();
    let debug = format!("{debug} {files:?}");
    let facades = Fanout::new().with(Metrics::new()).with(Tracing::new());
    let counts = facades::counts::Counts::default();
    let lines = facades::trace::Lines::default();
    metrics::with_local_recorder(&counts, || {
        tracing::subscriber::with_default(lines.clone(), || {
            for event in &events {
                files.record(event);
                facades.record(event);
            }
            // These never hand arguments on, however much detail there is.
            facades.record(&full);
        });
    });
    assert_eq!(files.flush(LONG), Flushed::Complete);
    let lines_of_full = JsonLines::open(place.join("full.jsonl")).unwrap();
    lines_of_full.record(&full);
    let counts_of_full = facades::counts::Counts::default();
    let trace_of_full = facades::trace::Lines::default();
    let collector_of_full = collector::Collector::answering(&[200]);
    let spans_of_full = Otlp::to(&collector_of_full.url).start().unwrap();
    let denials = denials(ArgumentDetail::Full).collect::<Vec<_>>();
    metrics::with_local_recorder(&counts_of_full, || {
        tracing::subscriber::with_default(trace_of_full.clone(), || {
            for event in &denials {
                lines_of_full.record(event);
                spans_of_full.record(event);
                facades.record(event);
            }
        });
    });
    spans_of_full.record(&event(
        9,
        support::finished(varek_telemetry::Termination::Exited(0)),
    ));

    let write = |name: &str, text: &[u8]| fs::write(place.join(name), text).unwrap();
    write("debug", debug.as_bytes());
    write("metrics", format!("{:?}", counts.all()).as_bytes());
    write("tracing", lines.0.lock().unwrap().join("\n").as_bytes());
    write("spans", &collector.next().body);
    // Counts are of calls, never of what was behind a pointer.
    write(
        "full.metrics",
        format!("{:?}", counts_of_full.all()).as_bytes(),
    );
    write(
        "full.tracing",
        trace_of_full.0.lock().unwrap().join("\n").as_bytes(),
    );
    write("full.spans", &collector_of_full.next().body);
}
