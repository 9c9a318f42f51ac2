//! The examples that log to Weights & Biases, as a person or a gate runs them: offline without an account, and online.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;
#[path = "../../varek-wandb/tests/support/mod.rs"]
mod wandb;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use varek_core::{ArgumentDetail, Command as GuestCommand, Policy, Sandbox};
use varek_wandb::{Environment, Mode, Run};
use wandb::client::offline_run;
use wandb::server::{API_KEY, Server};

/// The columns that runs are compared by, from version to version.
const COLUMNS: [&str; 10] = [
    "name",
    "category",
    "expected",
    "matched",
    "exit_code",
    "contained",
    "timed_out",
    "killed_by_signal",
    "violation",
    "wall_clock_s",
];

/// A program of this package in a directory of its own, with nothing of the user's W&B.
fn program(path: &str, directory: &Path) -> Command {
    let mut command = Command::new(path);
    command.current_dir(directory).env("HOME", directory);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WANDB_") || name == "NETRC" {
            command.env_remove(name);
        }
    }
    command
}

fn passed(output: &Output) -> String {
    wandb::succeeded(output);
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    [stdout, stderr]
        .map(|said| String::from_utf8_lossy(said))
        .concat()
}

/// What a server holds of a program's run: online, and offline and sent by `wandb_sync`. Both have to be whole.
fn held(path: &str) -> [Value; 2] {
    held_with(path, &[])
}

fn held_with(path: &str, arguments: &[&str]) -> [Value; 2] {
    let directory = tempfile::tempdir().unwrap();
    let online = Server::start();
    let output = program(path, directory.path())
        .args(arguments)
        .env("WANDB_API_KEY", API_KEY)
        .env("WANDB_BASE_URL", online.url())
        .output()
        .unwrap();
    let said = passed(&output).to_lowercase();
    let page = said.split_once("http").unwrap_or_default().1;
    assert!(page.contains("/runs/"), "{said}");

    let directory = tempfile::tempdir().unwrap();
    let output = program(path, directory.path()).args(arguments).output();
    let said = passed(&output.unwrap());
    let run = offline_run(directory.path());
    assert!(
        said.contains(&format!("wandb sync {}", run.display())),
        "{said}"
    );
    let synced = Server::start();
    let output = program(env!("CARGO_BIN_EXE_wandb_sync"), directory.path())
        .env("WANDB_API_KEY", API_KEY)
        .arg("--base-url")
        .arg(synced.url())
        .args(["--all", "wandb"])
        .output()
        .unwrap();
    let said = wandb::succeeded(&output);
    assert!(said.contains(" 0 pending, 0 dropped"), "{said}");

    [online, synced].map(|server| {
        assert_eq!(server.violations(), [""; 0]);
        server.normalized()
    })
}

fn artifact<'a>(held: &'a Value, kind: &str) -> &'a Value {
    let artifacts = held["artifacts"].as_array().unwrap();
    artifacts.iter().find(|one| one["type"] == kind).unwrap()
}

#[test]
fn the_verification_artifact_has_the_manifest_and_its_figures() {
    guests_or_return!();
    for held in held(env!("CARGO_BIN_EXE_verification_artifact")) {
        let run = &held["runs"][0];
        assert_eq!(run["project"], "varek-guardrails-verification");
        assert_eq!(
            (&run["job_type"], &run["exit_code"]),
            (&"verification".into(), &0.into())
        );
        assert_eq!(run["config"], serde_json::json!({ "manifest_schema": "1" }));
        assert_eq!(run["summary"]["verification/passed"], 5);
        assert_eq!(run["summary"]["verification/failed"], 0);
        assert_eq!(run["summary"]["verification/all_green"], true);
        let report = artifact(&held, "verification-report");
        assert_eq!(report["name"], "varek-guardrails-verification");
        assert_eq!(
            report["metadata"],
            serde_json::json!({ "total": 5, "passed": 5, "failed": 0 })
        );
        let manifest = report["files"]["manifest.json"]["text"].as_str().unwrap();
        let manifest: Value = serde_json::from_str(manifest).unwrap();
        let names: Vec<_> = manifest["checks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|check| &check["name"])
            .collect();
        let expected = [
            "backend_available",
            "configure_succeeds",
            "benign_payload",
            "execve_denied",
            "wallclock_enforced",
        ];
        assert_eq!(names, expected);
    }
}

#[test]
fn the_telemetry_stream_has_the_kernels_events_the_policy_and_alerts() {
    guests_or_return!();
    for held in held(env!("CARGO_BIN_EXE_telemetry_stream")) {
        let run = &held["runs"][0];
        assert_eq!(run["project"], "varek-guardrails-telemetry");
        assert_eq!(
            (&run["job_type"], &run["exit_code"]),
            (&"telemetry-demo".into(), &0.into())
        );
        assert_eq!(run["config"]["n_payloads"], 3);
        assert_eq!(run["summary"]["telemetry/payloads_run"], 3);
        let rows = run["history"].as_array().unwrap();
        let events = |label: &str| -> Vec<&str> {
            let of = rows
                .iter()
                .filter(|row| row["telemetry/payload_label"] == label);
            of.map(|row| row["telemetry/event"].as_str().unwrap())
                .collect()
        };
        assert!(
            events("execve_attempt").contains(&"syscall_denied"),
            "{rows:?}"
        );
        let overrun = events("wallclock_overrun");
        assert!(
            overrun.contains(&"deadline_passed") && overrun.contains(&"kill_issued"),
            "{overrun:?}"
        );
        assert!(!events("benign_compute").contains(&"syscall_denied"));
        for name in ["benign_compute", "execve_attempt", "wallclock_overrun"] {
            let key = |key: &str| format!("payload/{name}/{key}");
            let row = rows
                .iter()
                .find(|row| row.get(key("contained")).is_some())
                .unwrap();
            let count = row[key("n_telemetry_events")].as_u64().unwrap();
            assert_eq!(count, events(name).len() as u64);
            assert_eq!(row[key("timed_out")], name == "wallclock_overrun");
            assert_eq!(row[key("contained")], name != "benign_compute");
            assert!(
                row.get(key("wall_clock_s")).is_some()
                    && row.get(key("killed_by_signal")).is_some()
            );
        }
        // The run's own sink: joined to the policy by its digest.
        let policy = artifact(&held, "policy");
        assert_eq!(policy["name"], "varek-execution-policy");
        let digest = &policy["metadata"]["digest"];
        assert!(
            rows.iter()
                .any(|row| row.get("varek/policy") == Some(digest))
        );
        let alerts = run["alerts"].as_array().unwrap();
        assert!(
            alerts.iter().all(|alert| alert["severity"] == "WARN"),
            "{alerts:?}"
        );
        assert_eq!(alerts.len(), 2, "{alerts:?}");
    }
}

#[test]
fn the_benchmark_suite_is_a_table_with_the_columns_that_runs_are_compared_by() {
    guests_or_return!();
    for held in held(env!("CARGO_BIN_EXE_benchmark_suite")) {
        let run = &held["runs"][0];
        assert_eq!(run["project"], "varek-guardrails-benchmarks");
        assert_eq!(
            (&run["job_type"], &run["exit_code"]),
            (&"benchmark".into(), &0.into())
        );
        assert_eq!(run["config"]["n_payloads"], 8);
        assert_eq!(run["summary"]["benchmark/match_rate"], 1);
        assert_eq!(run["summary"]["benchmark/divergences"], 0);
        assert_eq!(run["summary"]["benchmark/all_matched"], true);
        let table = artifact(&held, "run_table");
        let text = table["files"]["benchmark/results.table.json"]["text"]
            .as_str()
            .unwrap();
        let table: Value = serde_json::from_str(text).unwrap();
        assert_eq!(table["columns"], serde_json::json!(COLUMNS));
        let rows = table["data"].as_array().unwrap();
        assert_eq!(rows.len(), 8);
        let allowance = rows
            .iter()
            .find(|row| row[0] == "documented_os_system_passthrough")
            .unwrap();
        assert_eq!(
            (&allowance[1], &allowance[4]),
            (&"known_allowance".into(), &0.into())
        );
        assert!(
            allowance[8].as_str().unwrap().contains("execve"),
            "{allowance}"
        );
    }
}

/// Prints what it was given, and is denied a call that it passes it to.
const LEAK: &str = "import os, sys, socket\n\
    print(sys.argv[1], os.environ['SECRET'], flush=True)\n\
    print(os.environ['SECRET'], file=sys.stderr, flush=True)\n\
    for call in (lambda: socket.socket(socket.AF_INET), lambda: os.execv('/' + os.environ['SECRET'], [os.environ['SECRET']])):\n    \
        try: call()\n    \
        except OSError: pass\n";

#[test]
fn what_a_sandboxed_run_was_given_and_printed_is_in_no_log_unless_its_policy_says_so() {
    const IN_ARGUMENTS: &str = "planted-in-the-arguments";
    const IN_ENVIRONMENT: &str = "planted-in-the-environment";
    guests_or_return!();
    for detail in [
        ArgumentDetail::None,
        ArgumentDetail::Digest,
        ArgumentDetail::Full,
    ] {
        let (directory, server) = (tempfile::tempdir().unwrap(), Server::start());
        let run = Run::builder()
            .environment(Environment::default())
            .dir(directory.path())
            .mode(Mode::Online)
            .base_url(server.url())
            .api_key(API_KEY)
            .start()
            .unwrap();
        let policy = Policy::python().record_arguments(detail);
        let sink = run.sink().policy(policy.digest(), &policy).start().unwrap();
        let sandbox = Sandbox::builder(policy).sink(sink).build().unwrap();
        let guest = GuestCommand::python(LEAK)
            .arg(IN_ARGUMENTS)
            .env("SECRET", IN_ENVIRONMENT);
        let outcome = sandbox.run(guest).unwrap();
        sandbox.flush(Duration::from_secs(60));
        let printed = String::from_utf8_lossy(&outcome.stdout.bytes).into_owned();
        assert_eq!(printed, format!("{IN_ARGUMENTS} {IN_ENVIRONMENT}\n"));
        let report = run.finish(0, Duration::from_secs(60)).unwrap();
        assert!(report.is_complete(), "{report:?}");

        let held = server.normalized();
        assert_eq!(held["violations"], serde_json::json!([]));
        let rows = held["runs"][0]["history"].as_array().unwrap();
        let denied = rows
            .iter()
            .filter(|row| row["varek/event"] == "syscall_denied");
        let calls: Vec<_> = denied.map(|row| row["varek/syscall"].clone()).collect();
        assert!(calls.contains(&"execve".into()), "{calls:?}");
        let mut kept = vec![std::fs::read(server.record()).unwrap()];
        let mut waiting = vec![directory.path().to_owned()];
        while let Some(path) = waiting.pop() {
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                let inner = std::fs::read_dir(path).unwrap();
                waiting.extend(inner.map(|entry| entry.unwrap().path()));
            } else {
                kept.push(std::fs::read(path).unwrap());
            }
        }
        assert!(kept.len() > 4);
        let is_there = |secret: &str| {
            let secret = secret.as_bytes();
            let holds = |bytes: &Vec<u8>| bytes.windows(secret.len()).any(|part| part == secret);
            kept.iter().any(holds)
        };
        // Where the policy asks for them, they would be found.
        let asked = detail == ArgumentDetail::Full;
        assert_eq!(is_there(IN_ARGUMENTS), asked, "{detail:?}");
        if !asked {
            assert!(!is_there(IN_ENVIRONMENT), "{detail:?}");
        }
        assert!(!is_there(API_KEY), "{detail:?}");
    }
}

#[test]
fn the_results_of_an_evaluation_are_a_table_and_pass_at_k_is_in_the_summary() {
    guests_or_return!();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = support::example(&package.join("examples/eval_harness.rs"));
    let set = tempfile::tempdir().unwrap();
    let samples = set.path().join("samples.jsonl");
    let line = |task: &str, label: &str, code: &str| serde_json::json!({ "task_id": task, "label": label, "completion": code });
    let lines = [
        line(
            "own/3",
            "right",
            "    return [d for d in range(1, n + 1) if n % d == 0]\n",
        ),
        line("own/3", "wrong", "    return []\n"),
    ];
    std::fs::write(&samples, format!("{}\n{}\n", lines[0], lines[1])).unwrap();
    let problems = package.join("data/eval/problems.jsonl");
    let arguments = [
        problems.to_str().unwrap(),
        samples.to_str().unwrap(),
        "--wandb-project",
        "evals",
    ];
    for held in held_with(program.to_str().unwrap(), &arguments) {
        let run = &held["runs"][0];
        assert_eq!(
            (&run["project"], &run["job_type"]),
            (&"evals".into(), &"evaluation".into())
        );
        assert_eq!(run["config"]["k"], serde_json::json!([1, 3]));
        assert_eq!(run["summary"]["pass@1"], 0.5);
        // Two samples say nothing about three.
        assert_eq!(run["summary"]["pass@3"], Value::Null);
        let table = artifact(&held, "run_table");
        let text = table["files"]["samples.table.json"]["text"]
            .as_str()
            .unwrap();
        let table: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            table["columns"],
            serde_json::json!(["task_id", "label", "verdict", "cause"])
        );
        let rows = table["data"].as_array().unwrap();
        assert_eq!(rows[0], serde_json::json!(["own/3", "right", "passed", ""]));
        assert_eq!((rows.len(), &rows[1][2]), (2, &"wrong".into()));
    }
}

#[test]
fn wandb_sync_says_what_is_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let sync = |arguments: &[&str]| {
        let output = program(env!("CARGO_BIN_EXE_wandb_sync"), directory.path())
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    std::fs::create_dir(directory.path().join("empty")).unwrap();
    assert!(sync(&["empty"]).contains("no file in it ends with `.wandb`"));
    std::fs::write(directory.path().join("run-x.wandb"), b"something else").unwrap();
    assert!(sync(&["run-x.wandb"]).contains("WANDB_API_KEY"));
}
