//! What a bad network, a bad server and SIGKILL do to an upload: nothing is lost, and nothing is there twice.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Error, Mode, Report, Run, SavePolicy, SyncOptions,
    Table, sync,
};

use support::server::{API_KEY, Options, Server, diff};
use support::{succeeded, wait_for};

/// The directory that a child process syncs, and where.
const CHILD: &str = "VAREK_TEST_SYNC";

/// Long enough that only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

/// A run with something of everything.
fn logged(directory: &Path, mode: Mode, server: Option<&Server>) -> Run {
    let mut builder = Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .id("faults01")
        .name("sandbox-run")
        .tags(["a", "b"])
        .dir(directory)
        .mode(mode)
        .config(json!({ "lr": 0.1, "policy": { "net": "deny" } }))
        .unwrap();
    if let Some(server) = server {
        builder = builder.base_url(server.url()).api_key(API_KEY);
    }
    let run = builder.start().unwrap();
    for step in 0..20 {
        let row = BTreeMap::from([
            ("loss", 1.0 / f64::from(step + 1)),
            ("bad", if step == 3 { f64::NAN } else { 1.0 }),
        ]);
        run.log(row).unwrap();
        run.console(Console::Stdout, &format!("step {step}"))
            .unwrap();
    }
    run.config(json!({ "late": true })).unwrap();
    let artifact = Artifact::new("manifest", "verification")
        .bytes("a.json", r#"{"ok":true}"#)
        .bytes("sub/b.bin", vec![7; 100_000]);
    run.log_artifact(&artifact).unwrap();
    let mut table = Table::new(["name", "ms"]).unwrap();
    table.row(("fork", 1.5)).unwrap();
    run.log_table("suite/results", &table).unwrap();
    run.alert(
        "Escape attempt",
        "fork was refused",
        AlertLevel::Warn,
        Duration::from_secs(60),
    )
    .unwrap();
    run.save_bytes("notes/readme.txt", "text", SavePolicy::Now)
        .unwrap();
    run.save_bytes("last.txt", "text", SavePolicy::End).unwrap();
    run.summary("verdict", "pass").unwrap();
    run
}

/// The run's directory, of a run that was logged offline.
fn offline() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let run = logged(directory.path(), Mode::Offline, None);
    run.finish(3, BOUND).unwrap();
    let own = run.directory().unwrap().to_owned();
    (directory, own)
}

/// The same directory in another place, as it would be on another machine.
fn moved(from: &Path) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("run");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(&to)
        .output()
        .unwrap();
    succeeded(&copied);
    (directory, to)
}

fn options(server: &Server) -> SyncOptions {
    SyncOptions::new()
        .environment(Environment::default())
        .base_url(server.url())
        .api_key(API_KEY)
        .pauses(Duration::from_millis(20), Duration::from_millis(200))
        .within(BOUND)
}

fn complete(report: &Report) {
    assert!(report.is_complete() && report.fault.is_none(), "{report:?}");
    assert_eq!((report.uncertain, report.skipped), (0, 0), "{report:?}");
}

/// What an undisturbed server holds of the run.
fn undisturbed(run: &Path) -> Server {
    let server = Server::start();
    let (_kept, run) = moved(run);
    complete(&sync(&run, &options(&server)).unwrap());
    assert_eq!(server.violations(), [""; 0]);
    let held = server.normalized();
    assert_eq!(held["runs"][0]["history"].as_array().unwrap().len(), 21);
    assert_eq!(held["runs"][0]["alerts"].as_array().unwrap().len(), 1);
    assert_eq!(held["runs"][0]["exit_code"], 3);
    assert_eq!(held["artifacts"].as_array().unwrap().len(), 2);
    server
}

fn same(expected: &Server, server: &Server, case: &str) {
    diff(expected, server).unwrap_or_else(|lines| panic!("{case}:\n{lines}"));
    assert_eq!(server.violations(), [""; 0], "{case}");
}

#[test]
fn no_fault_loses_anything_or_sends_anything_twice() {
    const CASES: &[&[&str]] = &[
        &["on=file_stream,do=500,times=2", "on=file_stream,do=429:0.3"],
        &["on=file_stream,do=drop-after", "on=file_stream,do=truncate"],
        &["on=file_stream,do=429:date:1"],
        &["on=createArtifact,do=drop-after"],
        &["on=createArtifactFiles,do=502"],
        &["on=createArtifactManifest,do=500,skip=1"],
        &["on=commitArtifact,do=drop-after"],
        &["on=commitArtifact,do=truncate"],
        &[
            "on=upload,do=500",
            "on=upload,do=drop",
            "on=upload,do=429:0.2",
            "on=upload,do=drop-after",
        ],
        &["on=upload,do=drop-midway,times=3"],
        &["on=upload.artifact,do=expire,times=2"],
        &["on=upload.manifest,do=expire"],
        &["on=upload.run,do=expire"],
        &["on=upload,do=403,times=2"],
        &["on=upload,do=redirect,times=3"],
        &[
            "on=upsertBucket,do=drop-after",
            "on=upsertBucket,do=500",
            "on=upsertBucket,do=409",
        ],
        &["on=notifyScriptableRunAlert,do=drop-after"],
        &["on=notifyScriptableRunAlert,do=500,times=3"],
        &["on=createRunFiles,do=truncate"],
        &["on=any,do=drop,times=5"],
        &["on=graphql,do=ratelimit:0:0.2,times=4"],
        &["on=any,do=slow:0.2,times=4"],
    ];
    let (_kept, run) = offline();
    let expected = undisturbed(&run);
    for faults in CASES {
        let case = faults.join(" ");
        let server = Server::faulty(faults);
        let (_kept, run) = moved(&run);
        complete(&sync(&run, &options(&server)).unwrap());
        same(&expected, &server, &case);
        let done = server.faults();
        for rule in done.as_array().unwrap() {
            assert_eq!(rule["left"], 0, "{case}: the fault was never done: {rule}");
        }
    }
}

#[test]
fn combinations_of_faults_lose_nothing_either() {
    const TARGETS: [&str; 8] = [
        "any",
        "graphql",
        "file_stream",
        "upload",
        "upsertBucket",
        "createArtifactFiles",
        "commitArtifact",
        "createRunFiles",
    ];
    const ACTIONS: [&str; 7] = [
        "500",
        "503:0.1",
        "429:0.1",
        "drop",
        "drop-after",
        "truncate",
        "slow:0.1",
    ];
    let (_kept, run) = offline();
    let expected = undisturbed(&run);
    let mut state = 0x9E37_79B9_u32;
    let mut pick = |count: usize| {
        // Xorshift: the same cases on every host.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as usize % count
    };
    for _ in 0..10 {
        let faults: Vec<String> = (0..4)
            .map(|_| {
                let (target, action) = (TARGETS[pick(TARGETS.len())], ACTIONS[pick(ACTIONS.len())]);
                format!(
                    "on={target},do={action},skip={},times={}",
                    pick(4),
                    1 + pick(3)
                )
            })
            .collect();
        let server = Server::faulty(&faults.iter().map(String::as_str).collect::<Vec<_>>());
        let (_kept, run) = moved(&run);
        complete(&sync(&run, &options(&server)).unwrap());
        same(&expected, &server, &faults.join(" "));
    }
}

#[test]
fn a_sync_that_is_killed_after_any_request_is_completed_by_the_next() {
    if let Some(run) = std::env::var_os(CHILD) {
        let url = std::env::var("VAREK_TEST_URL").unwrap();
        let options = SyncOptions::new()
            .environment(Environment::default())
            .base_url(url)
            .api_key(API_KEY)
            // It waits in the pause after the fault until it is killed.
            .pauses(BOUND, BOUND);
        sync(&run, &options).unwrap();
        return;
    }
    let (_kept, run) = offline();
    let expected = undisturbed(&run);
    let requests = expected
        .events()
        .iter()
        .filter(|event| event["kind"] != "start")
        .count();
    assert!(requests > 15, "{requests}");
    for number in 0..requests {
        let server = Server::faulty(&[&format!("on=any,do=drop-after,skip={number}")]);
        let (_kept, run) = moved(&run);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_sync_that_is_killed_after_any_request_is_completed_by_the_next",
            ])
            .env(CHILD, &run)
            .env("VAREK_TEST_URL", server.url())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the request", || {
            (server.faults()[0]["left"] == 0).then_some(())
        });
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        complete(&sync(&run, &options(&server)).unwrap());
        same(&expected, &server, &format!("killed at request {number}"));
    }
}

#[test]
fn a_server_that_is_away_for_the_whole_run_costs_nothing_but_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    server.interrupt();
    let run = logged(directory.path(), Mode::Online, Some(&server));
    let report = run.finish(3, Duration::from_millis(300)).unwrap();
    assert_eq!(report.acknowledged + report.pending, records(&run));
    assert!(report.pending > 20 && report.fault.is_some(), "{report:?}");
    let own = run.directory().unwrap().to_owned();
    server.resume();
    complete(&sync(&own, &options(&server)).unwrap());
    let (_kept, offline) = offline();
    same(&undisturbed(&offline), &server, "away");
}

fn records(run: &Run) -> u64 {
    varek_wandb::repair(run.directory().unwrap())
        .unwrap()
        .records
}

#[test]
fn an_online_run_is_there_when_finish_returns_and_survives_restarts_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let run = logged(directory.path(), Mode::Online, Some(&server));
    wait_for("the run's page", || run.url());
    server.interrupt();
    server.resume();
    let report = run.finish(3, BOUND).unwrap();
    complete(&report);
    assert_eq!(report.acknowledged, records(&run));
    let own = run.directory().unwrap();
    assert!(own.join("run-faults01.wandb.synced").exists());
    let (_kept, offline) = offline();
    same(&undisturbed(&offline), &server, "online");
    // A second time, nothing is sent.
    let before = server.events().len();
    complete(&sync(own, &options(&server)).unwrap());
    assert_eq!(server.events().len(), before);
}

#[test]
fn a_run_that_goes_on_is_not_synced() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    let run = logged(directory.path(), Mode::Offline, None);
    let refused = sync(run.directory().unwrap(), &options(&server));
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    run.finish(0, BOUND).unwrap();
    complete(&sync(run.directory().unwrap(), &options(&server)).unwrap());
}

#[test]
fn a_key_that_is_not_taken_stops_the_upload_keeps_the_log_and_is_in_no_text() {
    let (_kept, run) = offline();
    for fault in ["on=any,do=401,times=inf", "on=file_stream,do=403,times=inf"] {
        let server = Server::faulty(&[fault]);
        let (_kept, run) = moved(&run);
        let report = sync(&run, &options(&server)).unwrap();
        let text = report.fault.clone().unwrap();
        assert!(text.contains("key") && report.pending > 20, "{report:?}");
        assert!(!text.contains(API_KEY));
        assert!(!run.join("run-faults01.wandb.synced").exists());
        server.clear();
        complete(&sync(&run, &options(&server)).unwrap());
        same(
            &undisturbed(&run_without_acknowledgements(&run)),
            &server,
            fault,
        );
    }
}

/// A copy that knows of no server.
fn run_without_acknowledgements(run: &Path) -> PathBuf {
    fs::remove_file(run.join("varek/acknowledged.jsonl")).unwrap();
    run.to_owned()
}

#[test]
fn what_the_server_refuses_is_told_and_holds_up_nothing_else() {
    let (_kept, run) = offline();
    let server = Server::faulty(&["on=createArtifact,do=gqlerr:no room,times=1"]);
    let (_kept, run) = moved(&run);
    let report = sync(&run, &options(&server)).unwrap();
    assert_eq!((report.dropped, report.pending), (1, 0), "{report:?}");
    assert!(
        report.fault.clone().unwrap().contains("no room"),
        "{report:?}"
    );
    assert!(!run.join("run-faults01.wandb.synced").exists());
    let held = server.normalized();
    assert_eq!(held["runs"][0]["exit_code"], 3);
    assert_eq!(held["artifacts"].as_array().unwrap().len(), 1);
    // And is tried again by the next.
    complete(&sync(&run, &options(&server)).unwrap());
    same(
        &undisturbed(&run_without_acknowledgements(&run)),
        &server,
        "refused",
    );
}

#[test]
fn the_run_of_another_log_with_the_same_id_is_left_alone() {
    let (_kept, run) = offline();
    let server = Server::start();
    let (_kept, first) = moved(&run);
    complete(&sync(&first, &options(&server)).unwrap());
    let held = server.normalized();
    let (_kept, second) = moved(&run);
    let report = sync(&second, &options(&server)).unwrap();
    assert!(
        report
            .fault
            .clone()
            .unwrap()
            .contains("another run has the id"),
        "{report:?}"
    );
    assert_eq!(server.normalized(), held);
}

#[test]
fn a_directory_is_never_sent_to_two_servers_half_and_half() {
    let (_kept, run) = offline();
    let (first, second) = (Server::start(), Server::start());
    complete(&sync(&run, &options(&first)).unwrap());
    let refused = sync(&run, &options(&second));
    assert!(
        matches!(refused, Err(Error::OtherServer { .. })),
        "{refused:?}"
    );
    assert_eq!(second.events().len(), 1);
}

#[test]
fn a_server_that_never_answers_does_not_hold_the_embedder() {
    let (_kept, run) = offline();
    let server = Server::faulty(&["on=any,do=slow:30,times=1"]);
    let short = options(&server).within(Duration::from_millis(300));
    let report = sync(&run, &short).unwrap();
    assert!(report.pending > 20, "{report:?}");
    // The request is still under way; the acknowledgements are free all the same.
    complete(&sync(&run, &options(&server)).unwrap());
}

#[test]
fn a_certificate_of_ones_own_is_trusted_where_it_is_named_and_nowhere_else() {
    let (_kept, run) = offline();
    let server = Server::with(Options {
        tls: true,
        ..Options::default()
    });
    let (_kept, unknown) = moved(&run);
    let report = sync(
        &unknown,
        &options(&server).within(Duration::from_millis(500)),
    )
    .unwrap();
    assert_eq!(report.acknowledged, 1, "{report:?}");
    complete(
        &sync(
            &run,
            &options(&server).root_certificates(server.certificate()),
        )
        .unwrap(),
    );
    assert_eq!(server.violations(), [""; 0]);
}

#[test]
fn an_upload_of_gigabytes_needs_little_memory() {
    const SIZE: u64 = 3 << 30;
    if let Some(run) = std::env::var_os(CHILD) {
        let url = std::env::var("VAREK_TEST_URL").unwrap();
        let options = SyncOptions::new()
            .environment(Environment::default())
            .base_url(url)
            .api_key(API_KEY);
        complete(&sync(&run, &options).unwrap());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 96 * 1024, "{kib} KiB");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let big = directory.path().join("big.bin");
    fs::File::create(&big).unwrap().set_len(SIZE).unwrap();
    let run = Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .id("big00001")
        .dir(directory.path())
        .mode(Mode::Offline)
        .start()
        .unwrap();
    run.log_artifact(&Artifact::new("big", "dataset").file("big.bin", &big))
        .unwrap();
    run.finish(0, BOUND).unwrap();
    let server = Server::start();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_upload_of_gigabytes_needs_little_memory"])
        .env(CHILD, run.directory().unwrap())
        .env("VAREK_TEST_URL", server.url())
        .output()
        .unwrap();
    succeeded(&child);
    assert_eq!(server.violations(), [""; 0]);
    let held = server.normalized();
    assert_eq!(
        held["artifacts"][0]["manifest"]["contents"]["big.bin"]["size"],
        json!(SIZE)
    );
    let parts = server
        .events()
        .iter()
        .filter(|event| event["kind"] == "upload")
        .count();
    assert!(parts >= 30, "{parts}");
}
