//! SIGKILL of the embedder at any point of a run, and what is left of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Mode, Run, SavePolicy, SyncOptions, Table, repair,
    sync,
};

use support::client::{Client, Sync, offline_run};
use support::server::{API_KEY, Server};

const CHILD: &str = "VAREK_TEST_KILL";
const NAME: &str = "sigkill_after_any_call_loses_no_call_that_had_returned";

/// Calls of one run, of every kind.
const CALLS: usize = 14;

fn call(run: &Run, number: usize) {
    match number {
        3 => run.summary("verdict", "pass").unwrap(),
        4 => run.config(json!({ "late": true })).unwrap(),
        5 => {
            let artifact = Artifact::new("manifest", "verification").bytes("a.json", "{}");
            run.log_artifact(&artifact).unwrap();
        }
        6 => {
            let mut table = Table::new(["name"]).unwrap();
            table.row(("fork",)).unwrap();
            run.log_table("results", &table).unwrap();
        }
        7 => run
            .alert(
                "Escape attempt",
                "text",
                AlertLevel::Warn,
                Duration::from_secs(60),
            )
            .unwrap(),
        8 => run
            .save_bytes("notes.txt", "text", SavePolicy::End)
            .unwrap(),
        9 => run.console(Console::Stdout, "a line").unwrap(),
        // Larger than a block of the log.
        10 => {
            run.log(json!({ "blob": "z".repeat(100_000) })).unwrap();
        }
        number => {
            run.log(json!({ "number": number })).unwrap();
        }
    }
}

fn start(directory: &Path) -> Run {
    Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .id("killed01")
        .dir(directory)
        .mode(Mode::Offline)
        .start()
        .unwrap()
}

/// The directory of a run whose process was killed after so many calls.
fn killed(directory: &Path, calls: usize) -> PathBuf {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .env(CHILD, directory)
        .env("VAREK_TEST_CALLS", calls.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    offline_run(directory)
}

/// Whether what the calls said is on the server, and nothing else.
fn complete(held: &Value, calls: usize) {
    let run = &held["runs"][0];
    let has = |number: usize| calls > number;
    let rows = (0..calls)
        .filter(|number| !matches!(number, 3 | 4 | 5 | 7 | 8 | 9))
        .count();
    assert_eq!(
        run["history"].as_array().map_or(0, Vec::len),
        rows,
        "{calls}"
    );
    assert_eq!(run["summary"]["verdict"] == "pass", has(3), "{calls}");
    assert_eq!(run["config"]["late"] == true, has(4), "{calls}");
    let artifacts = held["artifacts"].as_array().unwrap();
    assert_eq!(
        artifacts.len(),
        usize::from(has(5)) + usize::from(has(6)),
        "{calls}"
    );
    assert!(artifacts.iter().all(|one| one["state"] == "COMMITTED"));
    assert_eq!(
        run["alerts"].as_array().unwrap().len(),
        usize::from(has(7)),
        "{calls}"
    );
    assert_eq!(run["files"].get("notes.txt").is_some(), has(8), "{calls}");
    assert_eq!(
        (&run["exit_code"], &run["state"]),
        (&json!(1), &json!("failed"))
    );
}

#[test]
fn sigkill_after_any_call_loses_no_call_that_had_returned() {
    if let Some(directory) = std::env::var_os(CHILD) {
        let calls: usize = std::env::var("VAREK_TEST_CALLS").unwrap().parse().unwrap();
        let run = start(Path::new(&directory));
        (0..calls).for_each(|number| call(&run, number));
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        return;
    }
    for calls in 0..=CALLS {
        let directory = tempfile::tempdir().unwrap();
        let run = killed(directory.path(), calls);
        let server = Server::start();
        let options = SyncOptions::new()
            .environment(Environment::default())
            .base_url(server.url())
            .api_key(API_KEY);
        let report = sync(&run, &options).unwrap();
        assert!(report.is_complete() && report.fault.is_none(), "{report:?}");
        complete(&server.normalized(), calls);
        assert_eq!(server.violations(), [""; 0]);
    }
}

#[test]
fn the_official_client_takes_what_a_killed_run_left_once_it_is_repaired() {
    let test = "the_official_client_takes_what_a_killed_run_left_once_it_is_repaired";
    let Some(client) = Client::pinned(test) else {
        return;
    };
    for calls in [1, 7, CALLS] {
        let directory = tempfile::tempdir().unwrap();
        let run = killed(directory.path(), calls);
        let repaired = repair(&run).unwrap();
        assert!(repaired.closed && repaired.cut == 0, "{repaired:?}");
        let server = Server::start();
        client.sync(&run, Sync::Beta, &server).success();
        complete(&server.normalized(), calls);
        assert_eq!(server.violations(), [""; 0]);
    }
}

#[test]
fn a_run_that_nobody_finished_has_failed() {
    let directory = tempfile::tempdir().unwrap();
    let run = start(directory.path());
    let own = run.directory().unwrap().to_owned();
    (0..CALLS).for_each(|number| call(&run, number));
    drop(run);
    assert!(
        !repair(&own).unwrap().closed,
        "it was closed when it was dropped"
    );
    let server = Server::start();
    let options = SyncOptions::new()
        .environment(Environment::default())
        .base_url(server.url())
        .api_key(API_KEY);
    sync(&own, &options).unwrap();
    complete(&server.normalized(), CALLS);
}
