//! What a run guarantees: steps and values, settings, files, forked copies, full disks, torn logs, and secrets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod files;
mod forked;
mod full;
mod log;
mod secrets;
mod settings;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod sys;
mod torn;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use varek_wandb::{Environment, Mode, Report, Run, SyncOptions, sync};

use support::server::{API_KEY, Server};

/// Long enough that only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

/// What a child process is to do, in a test that is an embedder of its own.
const CASE: &str = "VAREK_TEST_CASE";

/// A run on disk alone.
fn offline() -> (TempDir, Run) {
    let directory = tempfile::tempdir().unwrap();
    let run = offline_in(directory.path());
    (directory, run)
}

fn offline_in(directory: &Path) -> Run {
    Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .id("run00001")
        .dir(directory)
        .mode(Mode::Offline)
        .start()
        .unwrap()
}

fn log_of(run: &Path) -> PathBuf {
    run.join("run-run00001.wandb")
}

fn options(server: &Server) -> SyncOptions {
    SyncOptions::new()
        .environment(Environment::default())
        .base_url(server.url())
        .api_key(API_KEY)
        .pauses(Duration::from_millis(20), Duration::from_millis(200))
        .within(BOUND)
}

fn is_complete(report: &Report) {
    assert!(report.is_complete() && report.fault.is_none(), "{report:?}");
    assert_eq!((report.uncertain, report.skipped), (0, 0), "{report:?}");
}

/// What a server holds of a run's directory, all of which it took without a complaint.
fn held(run: &Path) -> Value {
    let server = Server::start();
    is_complete(&sync(run, &options(&server)).unwrap());
    judged(&server)
}

/// What a server holds that has nothing to complain of.
fn judged(server: &Server) -> Value {
    let held = server.normalized();
    assert_eq!(held["violations"], serde_json::json!([]));
    held
}

fn rows(held: &Value) -> &[Value] {
    held["runs"][0]["history"]
        .as_array()
        .map_or(&[], |rows| rows)
}

/// Everything in a directory: files with what they hold, links with where they lead, and directories.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let content = if kind.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else if kind.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            found.insert(path, content);
        }
    }
    found
}

/// This test program again, for one test, as an embedder of its own that knows nothing of the caller's W&B.
fn embedder(test: &str, case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments(test));
    alone(&mut command, case);
    command
}

/// The same, started by a shell that has done something before: `"$@"` is the program.
fn embedder_after(script: &str, test: &str, case: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(script)
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(arguments(test));
    alone(&mut command, case);
    command
}

fn arguments(test: &str) -> [&str; 4] {
    ["--exact", test, "--nocapture", "--test-threads=1"]
}

fn alone(command: &mut Command, case: &str) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("WANDB_") || text == "NETRC" || text == "HOME" {
            command.env_remove(name);
        }
    }
    command.env(CASE, case);
}

/// The case that this process was started for.
fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// What an embedder's test is given in a variable.
fn given(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Runs an embedder, which has to pass, and gives what it said on lines that begin with `say `.
fn passed(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    let text = support::succeeded(&output);
    let said = text
        .lines()
        .filter_map(|line| Some(line.split_once("say ")?.1.to_owned()));
    said.collect()
}

/// Whether some bytes are in others.
fn holds(all: &[u8], part: impl AsRef<OsStr>) -> bool {
    let part = part.as_ref().as_encoded_bytes();
    all.windows(part.len()).any(|window| window == part)
}
