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

use support::{event, samples, started};
use varek_telemetry::{
    ArgumentDetail, Arguments, AuditLog, Event, Fanout, Flushed, JsonLines, Metrics, Otlp, Queue,
    SigningKey, Sink, Tracing,
};

const ENVIRONMENT: &str = "planted-in-the-environment-5b1f";
const ARGUMENT: &str = "planted-in-an-argument-77c0";
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
    }
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
    }
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
    JsonLines::open(place.join("full.jsonl"))
        .unwrap()
        .record(&full);

    let write = |name: &str, text: &[u8]| fs::write(place.join(name), text).unwrap();
    write("debug", debug.as_bytes());
    write("metrics", format!("{:?}", counts.all()).as_bytes());
    write("tracing", lines.0.lock().unwrap().join("\n").as_bytes());
    write("spans", &collector.next().body);
}
