//! What becomes of log files when disks are full, writers are killed and logs grow.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{event, plain};
use varek_telemetry::{
    AuditLog, Event, EventKind, Flushed, JsonLines, Queue, ReadError, Record, Sink, records, verify,
};

const PLACE: &str = "VAREK_TEST_LOG";

/// Where this process writes, in a test that runs itself again; `None` in the first process.
fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

/// Runs a test of this file again, behind a shell's words, as the writer of a log.
fn writer(before: &str, test: &str, place: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("{before} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(PLACE, place);
    command
}

fn read(path: &Path) -> Vec<Result<Record, ReadError>> {
    records(std::io::BufReader::new(fs::File::open(path).unwrap())).collect()
}

fn events(path: &Path) -> Vec<Event> {
    read(path)
        .into_iter()
        .map(|record| match record {
            Ok(Record::Known(event)) => event,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn lines_are_appended_in_order_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    for round in 0..2 {
        let log = JsonLines::open(&path).unwrap();
        let all: Vec<_> = (0..3).map(|n| plain(round * 5 + n)).collect();
        log.record_all(&all);
        log.record(&plain(round * 5 + 3));
        log.record(&plain(round * 5 + 4));
        assert_eq!(log.flush(Duration::ZERO), Flushed::Complete);
    }
    let expected: Vec<_> = (0..10).map(plain).collect();
    assert_eq!(events(&path), expected);
}

#[test]
fn a_log_that_is_full_goes_on_in_a_new_file_and_keeps_so_many_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    let line = serde_json::to_string(&plain(0)).unwrap().len() as u64 + 1;
    let log = JsonLines::open(&path).unwrap().rotating(3 * line, 2);
    let all: Vec<_> = (0..10).map(plain).collect();
    log.record_all(&all[..7]);
    all[7..].iter().for_each(|event| log.record(event));
    assert_eq!(log.fault(), None);
    let of = |suffix: &str| {
        let path = directory.path().join(format!("log.jsonl{suffix}"));
        events(&path).iter().map(|e| e.sequence).collect::<Vec<_>>()
    };
    assert_eq!(
        (of(""), of(".1"), of(".2")),
        (vec![9], vec![6, 7, 8], vec![3, 4, 5])
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    // The new file has one writer as well.
    assert!(JsonLines::open(&path).is_err());
    drop(log);
    // A line that is longer than a file may be gets one of its own, and none is empty.
    let log = JsonLines::open(&path).unwrap().rotating(1, 1);
    log.record(&plain(10));
    log.record(&plain(11));
    assert_eq!((of(""), of(".1")), (vec![11], vec![10]));
}

#[test]
fn a_log_that_cannot_be_rotated_grows_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    fs::create_dir(directory.path().join("log.jsonl.new")).unwrap();
    let log = JsonLines::open(&path).unwrap().rotating(1, 1);
    log.record(&plain(0));
    assert_eq!(log.fault(), None);
    log.record(&plain(1));
    assert_eq!(events(&path).len(), 2);
    let fault = log.fault().unwrap();
    assert!(fault.contains("log.jsonl.new"), "{fault}");
    // And goes on once it can be.
    fs::remove_dir(directory.path().join("log.jsonl.new")).unwrap();
    log.record(&plain(2));
    assert_eq!((events(&path).len(), log.fault()), (1, None));
}

#[test]
fn a_torn_last_line_is_given_an_end_and_what_follows_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    JsonLines::open(&path).unwrap().record(&plain(0));
    let mut text = fs::read(&path).unwrap();
    text.extend_from_slice(br#"{"v":1,"run":"00"#);
    fs::write(&path, &text).unwrap();
    JsonLines::open(&path).unwrap().record(&plain(1));
    let read = read(&path);
    assert!(
        matches!(
            read[..],
            [
                Ok(Record::Known(_)),
                Err(ReadError::Malformed { line: 2, .. }),
                Ok(Record::Known(_))
            ]
        ),
        "{read:?}"
    );
}

/// Kills the writer in the middle of its work and returns what it left.
fn killed(test: &str, place: &Path) {
    let mut child = writer("", test, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = child.stdout.take().unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"writing") {
        let mut byte = [0];
        words.read_exact(&mut byte).unwrap();
        said.extend_from_slice(&byte);
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_writer_that_is_killed_leaves_at_most_its_last_line_torn() {
    if let Some(path) = place() {
        return write_without_end(&path);
    }
    let directory = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let path = directory.path().join(format!("log-{round}"));
        killed(
            "a_writer_that_is_killed_leaves_at_most_its_last_line_torn",
            &path,
        );
        let mut lines = read(&path);
        if matches!(lines.last(), Some(Err(ReadError::Torn { .. }))) {
            lines.pop();
        }
        assert!(lines.len() >= 1_000);
        for (expected, record) in (0..).zip(lines) {
            let Ok(Record::Known(event)) = record else {
                panic!("{record:?}")
            };
            assert_eq!(event.sequence, expected);
        }
    }
}

fn write_without_end(path: &Path) {
    let queue = Queue::new(Box::new(JsonLines::open(path).unwrap()), 512).unwrap();
    for sequence in 0.. {
        queue.record(&plain(sequence));
        // None is dropped, so that every gap is the log's fault.
        if sequence % 256 == 0 {
            queue.flush(Duration::from_secs(60));
        }
        if sequence == 1_024 {
            println!("writing");
        }
    }
}

#[test]
fn an_audited_writer_that_is_killed_leaves_a_log_that_verifies_and_goes_on() {
    if let Some(path) = place() {
        return audit_without_end(&path);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    killed(
        "an_audited_writer_that_is_killed_leaves_a_log_that_verifies_and_goes_on",
        &path,
    );
    let text = fs::read(&path).unwrap();
    let before = verify(&text[..], None).unwrap();
    assert!(before.head.lines() >= 1_000);
    let log = AuditLog::open(&path).unwrap();
    assert_eq!(log.head(), before.head);
    log.record(&plain(0));
    let text = fs::read(&path).unwrap();
    let after = verify(&text[..], Some(&before.head)).unwrap();
    assert_eq!((after.head, after.torn), (log.head(), 0));
}

fn audit_without_end(path: &Path) {
    let log = AuditLog::open(path).unwrap();
    for sequence in 0.. {
        log.record(&plain(sequence));
        if sequence == 1_024 {
            println!("writing");
        }
    }
}

/// Runs a test of this file again as a process whose files may not grow beyond some KiB: they refuse as a full disk
/// does, after a part of what was asked.
fn with_a_full_disk(test: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = writer(
        "trap '' XFSZ; ulimit -S -f 8;",
        test,
        &directory.path().join("log"),
    )
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // And it was not one of no tests.
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}

#[test]
fn what_a_full_disk_refuses_is_counted_and_told_once_there_is_room() {
    match place() {
        None => with_a_full_disk("what_a_full_disk_refuses_is_counted_and_told_once_there_is_room"),
        Some(path) => fill(&path, &JsonLines::open(&path).unwrap()),
    }
}

#[test]
fn an_audit_log_on_a_full_disk_stays_whole() {
    let Some(path) = place() else {
        return with_a_full_disk("an_audit_log_on_a_full_disk_stays_whole");
    };
    let log = AuditLog::open(&path).unwrap();
    fill(&path, &log);
    let text = fs::read(&path).unwrap();
    assert_eq!(verify(&text[..], Some(&log.head())).unwrap().torn, 0);
}

fn fill(path: &Path, log: &dyn Sink) {
    let mut sequence = 0;
    while log.fault().is_none() {
        assert!(sequence < 10_000, "the file is not limited");
        log.record(&plain(sequence));
        sequence += 1;
    }
    let fault = log.fault().unwrap();
    assert!(fault.contains("File too large"), "{fault}");
    log.record_all(&[plain(sequence), plain(sequence + 1)]);
    sequence += 2;
    assert_eq!(log.flush(Duration::ZERO), Flushed::Lost(3));
    assert_eq!(log.flush(Duration::ZERO), Flushed::Complete);
    let written = events(path);
    assert_eq!(written.len() as u64, sequence - 3);

    let limit = Rlimit {
        current: None,
        ..getrlimit(Resource::Fsize)
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    log.record(&plain(sequence));
    log.record(&plain(sequence + 1));
    assert_eq!(log.fault(), None);
    assert_eq!(log.flush(Duration::ZERO), Flushed::Complete);
    let told = event(sequence, EventKind::EventsDropped { count: 3 });
    let after = events(path).split_off(written.len());
    assert_eq!(after, [told, plain(sequence), plain(sequence + 1)]);
}
