//! `cargo xtask demo`: the examples, one after the other, each under a headline.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::groups::Groups;
use crate::workspace::Workspace;
use crate::{process, setup, ui};

/// The examples that are run as they are, in this order.
const STAGES: &[(&str, &str)] = &[
    (
        "demo",
        "What this host offers, what is enforced, and real payloads",
    ),
    (
        "quick_start",
        "Quick start: one untrusted program, one typed outcome",
    ),
    (
        "verification_battery",
        "Verification battery: every claim of the boundary, tried",
    ),
    (
        "regression_suite",
        "Regression suite: attacks that must stay contained",
    ),
    (
        "telemetry_stream",
        "Telemetry stream: the kernel's events as a run for Weights & Biases, offline",
    ),
];

/// The example that reads requests from standard input, and what it is asked: one harmless
/// program, and one that reaches for the network.
const SESSION: &str = "exec_jsonl";
const REQUESTS: [&str; 2] = [
    r#"{"id":"harmless","code":"print(2 + 2)"}"#,
    r#"{"id":"network","code":"import socket; socket.create_connection((\"127.0.0.1\", 9))"}"#,
];

/// The command: builds everything first, then stops at the first stage that fails.
pub(crate) fn command(workspace: &Workspace) -> Result<ExitCode> {
    ui::headline("Setup");
    setup::ensure(workspace)?;
    let groups = Groups::prepare(workspace);

    ui::headline("Build");
    let programs = build(workspace)?;
    let names = STAGES.iter().map(|(name, _)| *name).chain([SESSION]);
    let absent: Vec<_> = names.filter(|name| !programs.contains_key(*name)).collect();
    if !absent.is_empty() {
        bail!(
            "the examples package has no program named {}",
            absent.join(", ")
        );
    }

    for (name, title) in STAGES {
        ui::headline(title);
        let program = programs.get(*name).context("this example was not built")?;
        let mut stage = groups.program(program);
        stage.current_dir(&workspace.root);
        // Whoever has an account there did not ask for a run in it.
        stage.env("WANDB_MODE", "offline");
        stage.env("WANDB_DIR", &workspace.target);
        process::run(stage).with_context(|| stopped(name))?;
    }
    ui::headline("Requests as JSON lines, outcomes as JSON lines");
    let program = programs
        .get(SESSION)
        .context("this example was not built")?;
    session(workspace, &groups, program).with_context(|| stopped(SESSION))?;

    ui::headline("Demo");
    ui::say(&format!("All {} examples passed.", STAGES.len() + 1));
    Ok(ExitCode::SUCCESS)
}

fn stopped(name: &str) -> String {
    format!("the demo stopped at `{name}`")
}

/// Builds the examples and returns where each program is. Unoptimized: almost all of a run is
/// the kernel's work and the guest's, and building takes longer than running.
fn build(workspace: &Workspace) -> Result<HashMap<String, PathBuf>> {
    let package = &workspace.require_package_in("examples")?.name;
    let mut cargo = workspace.cargo(["build", "--package", package, "--bins", "--examples"]);
    ui::command(&process::shown(&cargo));
    // The places come from Cargo: they depend on settings that are not this program's.
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the examples do not build: {}", output.status);
    }
    Ok(executables(&String::from_utf8_lossy(&output.stdout)))
}

/// The programs named in Cargo's messages, by target.
fn executables(messages: &str) -> HashMap<String, PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| {
            let path = message.get("executable")?.as_str()?;
            let name = message.get("target")?.get("name")?.as_str()?;
            Some((name.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

/// Feeds the requests, shows the outcomes, and wants one for each.
fn session(workspace: &Workspace, groups: &Groups, program: &PathBuf) -> Result<()> {
    let mut command = groups.program(program);
    command.current_dir(&workspace.root);
    ui::command(&process::shown(&command));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start it")?;
    if let Some(mut stdin) = child.stdin.take() {
        // Both requests fit into the pipe, so that nothing waits for a reader here.
        for request in REQUESTS {
            ui::say(&format!("> {request}"));
            writeln!(stdin, "{request}").context("cannot write a request")?;
        }
    }
    let output = child.wait_with_output().context("cannot read its output")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().for_each(|line| ui::say(&format!("< {line}")));
    if !output.status.success() {
        bail!("it failed: {}", output.status);
    }
    let outcomes = outcomes(&text);
    if outcomes != REQUESTS.len() {
        bail!(
            "it was given {} requests and printed {outcomes} outcomes",
            REQUESTS.len()
        );
    }
    Ok(())
}

fn outcomes(text: &str) -> usize {
    text.lines()
        .filter(|line| serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_taken_from_cargo_and_libraries_are_not() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"varek_core"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"demo"},"executable":"/t/debug/examples/demo"}
not json
{"reason":"build-finished","success":true}"#;
        let programs = executables(messages);
        assert_eq!(programs.len(), 1);
        assert_eq!(programs["demo"], PathBuf::from("/t/debug/examples/demo"));
    }

    #[test]
    fn only_objects_count_as_outcomes() {
        assert_eq!(outcomes("{\"a\":1}\nstarting\n4\n{\"b\":2}\n"), 2);
    }

    #[test]
    fn every_request_is_one_line_of_json() {
        for request in REQUESTS {
            assert!(serde_json::from_str::<Value>(request).unwrap().is_object());
            assert!(!request.contains('\n'));
        }
    }
}
