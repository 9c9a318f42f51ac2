//! What becomes of sandboxed runs' events in a W&B run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;
use varek_telemetry::{
    Answer, Arguments, Cause, Cleanup, Denial, Enforcement, Event, EventKind, LimitHit, Resource,
    RunId, Sink, Termination, Usage,
};
use varek_wandb::{Environment, Mode, Report, Run, SyncOptions, sync};

use support::server::{API_KEY, Server};

const BOUND: Duration = Duration::from_secs(60);

fn started() -> (TempDir, Run) {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .dir(directory.path())
        .mode(Mode::Offline)
        .start()
        .unwrap();
    (directory, run)
}

/// What a server holds of a finished run.
fn held(run: &Run) -> Value {
    let server = Server::start();
    let options = SyncOptions::new()
        .environment(Environment::default())
        .base_url(server.url())
        .api_key(API_KEY);
    let report = sync(run.directory().unwrap(), &options).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(server.violations(), [""; 0]);
    server.normalized()
}

fn event(run: u128, sequence: u64, kind: EventKind) -> Event {
    Event {
        run: RunId::from_bits(run),
        sequence,
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        elapsed: Duration::from_millis(sequence * 10),
        kind,
    }
}

fn begin(run: u128, policy: &str) -> Event {
    let kind = EventKind::RunStarted {
        program: "/usr/bin/python3".into(),
        interpreter: None,
        arguments: Arguments::None { count: 2 },
        policy: policy.into(),
        enforcement: Enforcement::default(),
        traceparent: None,
    };
    event(run, 0, kind)
}

fn denied(run: u128, answer: Answer) -> Event {
    let denial = Denial {
        syscall: Some("socket".into()),
        number: 41,
        abi: "x86_64".into(),
        arguments: [2, 1, 0, 0, 0, 0],
        thread: 7,
        answer,
        count: 3,
        unverified: Vec::new(),
    };
    event(run, 1, EventKind::SyscallDenied(denial))
}

fn end(run: u128, termination: Termination) -> Event {
    let mut usage = Usage::default();
    usage.wall_clock = Duration::from_millis(1500);
    usage.memory_peak = Some(4096);
    let kind = EventKind::RunFinished {
        termination,
        usage,
        cleanup: Cleanup::Complete,
    };
    event(run, 2, kind)
}

fn alerts(held: &Value) -> Vec<(String, String)> {
    let alerts = held["runs"][0]["alerts"].as_array().unwrap();
    alerts
        .iter()
        .map(|alert| {
            let text = |key: &str| alert[key].as_str().unwrap().to_owned();
            (text("severity"), text("title"))
        })
        .collect()
}

fn finish(run: &Run) -> Report {
    run.finish(0, BOUND).unwrap()
}

#[test]
fn events_are_rows_that_are_joined_to_the_policy_by_its_digest() {
    let (_kept, run) = started();
    let policy = json!({ "limits": { "memory": 1 } });
    let sink = run.sink().policy("sha256:abc", &policy).start().unwrap();
    sink.record(&begin(1, "sha256:abc"));
    sink.record(&denied(1, Answer::Errno(1)));
    sink.record(&end(1, Termination::Exited(3)));
    assert_eq!(finish(&run).dropped, 0);
    let held = held(&run);
    let rows = held["runs"][0]["history"].as_array().unwrap();
    let row = &rows[1];
    assert_eq!(row["varek/event"], "syscall_denied");
    assert_eq!(row["varek/syscall"], "socket");
    assert_eq!(row["varek/count"], 3);
    assert_eq!(row["varek/answer/errno"], 1);
    assert_eq!(row["varek/run"], RunId::from_bits(1).to_string());
    assert_eq!(row["varek/sequence"], 1);
    assert_eq!(row["varek/elapsed"], 0.01);
    let last = &rows[2];
    assert_eq!(last["varek/exit_code"], 3);
    assert_eq!(last["varek/denied_calls"], 3);
    assert_eq!(last["varek/usage/wall_clock"], 1.5);
    assert!(
        last["varek/violation"].as_str().unwrap().contains("socket"),
        "{last}"
    );
    for row in &rows[..3] {
        assert_eq!(row["varek/policy"], "sha256:abc", "{row}");
    }
    let artifacts = held["artifacts"].as_array().unwrap();
    let policy = artifacts
        .iter()
        .find(|one| one["name"] == "varek-execution-policy")
        .unwrap();
    assert_eq!(policy["type"], "policy");
    assert_eq!(policy["metadata"]["digest"], "sha256:abc");
    assert_eq!(
        policy["files"]["policy.json"]["text"],
        r#"{"limits":{"memory":1}}"#
    );
    // And the table of runs.
    let table = artifacts
        .iter()
        .find(|one| one["type"] == "run_table")
        .unwrap();
    let text = table["files"]["varek/runs.table.json"]["text"]
        .as_str()
        .unwrap();
    let table: Value = serde_json::from_str(text).unwrap();
    assert_eq!(table["data"].as_array().unwrap().len(), 1);
    assert_eq!(table["data"][0][3], "exited with 3");
    assert_eq!(held["runs"][0]["summary"]["varek/events_dropped"], 0);
}

#[test]
fn a_run_that_meets_a_boundary_raises_a_warning_and_one_that_does_not_raises_none() {
    let (_kept, run) = started();
    let sink = run.sink().start().unwrap();
    let limit = |run: u128, resource: Resource| {
        let hit = LimitHit {
            resource,
            limit: Some(1),
            count: 1,
            evidence: "memory.events: oom_kill".into(),
        };
        event(run, 1, EventKind::LimitHit(hit))
    };
    let kill = |run: u128, cause: Cause| event(run, 1, EventKind::KillIssued { cause });
    let cases = [
        (1, denied(1, Answer::Errno(1))),
        (2, denied(2, Answer::Probe)),
        (3, limit(3, Resource::Memory)),
        (4, limit(4, Resource::CpuShare)),
        (5, kill(5, Cause::DenialBudget)),
        (6, kill(6, Cause::Cancelled)),
    ];
    for (number, boundary) in cases {
        sink.record(&begin(number, "p"));
        sink.record(&boundary);
        sink.record(&end(number, Termination::Exited(0)));
    }
    finish(&run);
    let held = held(&run);
    let found = alerts(&held);
    assert!(found.iter().all(|(level, _)| level == "WARN"), "{found:?}");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].1.ends_with("socket") && found[1].1.contains("memory"),
        "{found:?}"
    );
}

#[test]
fn a_boundary_that_was_expected_and_not_met_is_an_error_whenever_it_was_said() {
    let (_kept, run) = started();
    let sink = run.sink().start().unwrap();
    let play = |number: u128, boundary: Option<Event>| {
        sink.record(&begin(number, "p"));
        if let Some(event) = &boundary {
            sink.record(event);
        }
        sink.record(&end(number, Termination::Exited(0)));
        sink.flush(BOUND);
    };
    sink.expect_contained(RunId::from_bits(1));
    play(1, None);
    finish_one_more(&run);
    play(2, Some(denied(2, Answer::Errno(1))));
    sink.expect_contained(RunId::from_bits(2));
    finish(&run);
    let found = alerts(&held(&run));
    let levels: Vec<&str> = found.iter().map(|(level, _)| level.as_str()).collect();
    assert_eq!(levels, ["ERROR", "WARN"], "{found:?}");

    let (_kept, run) = started();
    let sink = run.sink().start().unwrap();
    sink.record(&begin(3, "p"));
    sink.record(&end(3, Termination::Exited(0)));
    sink.flush(BOUND);
    sink.expect_contained(RunId::from_bits(3));
    finish(&run);
    assert_eq!(alerts(&held(&run))[0].0, "ERROR");
}

/// Something of the embedder's own between the runs.
fn finish_one_more(run: &Run) {
    run.log(json!({ "own": 1 })).unwrap();
}

#[test]
fn a_storm_of_contained_runs_raises_so_many_alerts_and_no_more() {
    let (_kept, run) = started();
    let sink = run.sink().alerts(2).start().unwrap();
    for number in 0..50 {
        sink.record(&begin(number, "p"));
        sink.record(&denied(number, Answer::Errno(1)));
        sink.record(&end(number, Termination::Exited(0)));
    }
    finish(&run);
    let log = std::fs::read(
        run.directory()
            .unwrap()
            .join(format!("run-{}.wandb", run.id())),
    )
    .unwrap();
    let title = b"Sandboxed run contained";
    let count = log
        .windows(title.len())
        .filter(|window| window == title)
        .count();
    assert_eq!(count, 2);
    assert_eq!(
        held(&run)["runs"][0]["summary"]["varek/alerts_left_out"],
        48
    );
}

#[test]
fn what_has_no_room_is_counted_and_holds_nobody_up() {
    let (_kept, run) = started();
    let sink = run.sink().capacity(1).start().unwrap();
    for number in 0..20_000 {
        sink.record(&event(1, number, EventKind::GuestStarted { pid: 9 }));
    }
    let report = finish(&run);
    let held = held(&run);
    let summary = held["runs"][0]["summary"]["varek/events_dropped"]
        .as_u64()
        .unwrap();
    let rows = held["runs"][0]["history"].as_array().unwrap();
    let started = rows
        .iter()
        .filter(|row| row["varek/event"] == "guest_started")
        .count();
    assert!(summary > 0, "nothing was dropped");
    assert_eq!(report.dropped, summary);
    assert_eq!(started as u64 + summary, 20_000);
}

#[test]
fn a_sink_that_outlives_its_run_and_one_that_does_not_lose_nothing() {
    for sink_first in [true, false] {
        let (_kept, run) = started();
        let sink = run.sink().start().unwrap();
        for number in 0..100 {
            sink.record(&begin(number, "p"));
            sink.record(&end(number, Termination::Exited(0)));
        }
        if sink_first {
            drop(sink);
            finish(&run);
        } else {
            finish(&run);
            // Too late for the log; nothing happens.
            sink.record(&begin(500, "p"));
            drop(sink);
        }
        let held = held(&run);
        // Two rows each, and the table's.
        assert_eq!(
            held["runs"][0]["history"].as_array().unwrap().len(),
            201,
            "{sink_first}"
        );
    }
}
