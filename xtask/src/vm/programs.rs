//! The workspace's test programs, as Cargo builds them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;
use crate::{process, ui};

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// The package and the source: `varek-core/tests/limits.rs`.
    pub(crate) label: String,
    /// The package's directory, in which Cargo starts its tests.
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
}

/// What a build made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) tests: Vec<Program>,
    /// The program that says what a host offers, where its package was built.
    pub(crate) doctor: Option<PathBuf>,
}

/// Test programs that are run on the host alone, each with what a machine would not add to it.
pub(crate) const HOST_ONLY: &[(&str, &str)] = &[
    (
        "varek-wandb/tests/server.rs",
        "tests the server that other tests use, which is a Python program",
    ),
    (
        "varek-wandb/tests/reference.rs",
        "compares recordings of the official client, which takes minutes in a machine",
    ),
    (
        "varek-wandb/tests/weave.rs",
        "sends spans to a server on loopback, which no kernel does differently",
    ),
    (
        "varek-wandb/tests/faults.rs",
        "uploads to a server on loopback, gigabytes among it, which no kernel does differently",
    ),
    (
        "varek-wandb/tests/hostile.rs",
        "uploads to servers on loopback, which no kernel does differently",
    ),
    (
        "varek-wandb/tests/official.rs",
        "runs the official client, which takes minutes in a machine",
    ),
    (
        "varek-wandb/tests/kill.rs",
        "uploads to a server on loopback, which no kernel does differently",
    ),
    (
        "varek-wandb/tests/run/main.rs",
        "uploads to a server on loopback, and what it does to files and processes is the same on every kernel",
    ),
    (
        "varek-wandb/tests/sink.rs",
        "uploads to a server on loopback, which no kernel does differently",
    ),
    (
        "examples/tests/wandb.rs",
        "uploads to a server on loopback what other tests run in a machine",
    ),
    (
        "examples/tests/report_page.rs",
        "looks at a page in a browser, which no kernel shows differently",
    ),
    (
        "examples/frameworks/tests/mcp_server.rs",
        "talks to clients in Python and JavaScript, which take minutes to start in a machine",
    ),
    (
        "examples/tests/eval_harness.rs",
        "grades forty programs, with nothing that the tests of the library do not run there",
    ),
];

impl Programs {
    /// Without those of the host alone.
    pub(crate) fn in_machines(mut self) -> Self {
        let here = |test: &Program| HOST_ONLY.iter().all(|(label, _)| *label != test.label);
        self.tests.retain(here);
        self
    }
}

/// Builds the tests of these packages and features (arguments of cargo), and finds the programs.
pub(crate) fn build(workspace: &Workspace, scope: &[String]) -> Result<Programs> {
    let mut cargo = workspace.cargo(["test", "--no-run"]);
    cargo.args(scope);
    ui::command(&process::shown(&cargo));
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile: {}", output.status);
    }
    Ok(of_messages(
        &String::from_utf8_lossy(&output.stdout),
        &workspace.root,
    ))
}

fn of_messages(messages: &str, root: &Path) -> Programs {
    let mut programs = Programs::default();
    for message in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(message) else {
            continue;
        };
        let Some(path) = message.get("executable").and_then(Value::as_str) else {
            continue;
        };
        if tests_of(&message) {
            programs.tests.extend(program(&message, path, root));
        } else if target(&message, "name") == Some("doctor") {
            programs.doctor = Some(PathBuf::from(path));
        }
    }
    programs.tests.sort();
    programs
}

fn tests_of(message: &Value) -> bool {
    let profile = message.get("profile").and_then(|found| found.get("test"));
    profile.and_then(Value::as_bool) == Some(true)
}

fn target<'m>(message: &'m Value, field: &str) -> Option<&'m str> {
    message.get("target")?.get(field)?.as_str()
}

fn program(message: &Value, path: &str, root: &Path) -> Option<Program> {
    let directory = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    let source = Path::new(target(message, "src_path")?);
    let shown = source.strip_prefix(root).unwrap_or(source);
    Some(Program {
        label: shown.display().to_string(),
        directory: directory.to_owned(),
        path: PathBuf::from(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","manifest_path":"/w/varek-core/Cargo.toml","target":{"name":"limits","kind":["test"],"src_path":"/w/varek-core/tests/limits.rs"},"profile":{"test":true},"executable":"/t/debug/deps/limits-1"}
{"reason":"compiler-artifact","manifest_path":"/w/varek-core/Cargo.toml","target":{"name":"varek_core","kind":["lib"],"src_path":"/w/varek-core/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/varek-core/Cargo.toml","target":{"name":"varek_core","kind":["lib"],"src_path":"/w/varek-core/src/lib.rs"},"profile":{"test":true},"executable":"/t/debug/deps/varek_core-2"}
{"reason":"compiler-artifact","manifest_path":"/w/examples/Cargo.toml","target":{"name":"doctor","kind":["bin"],"src_path":"/w/examples/src/bin/doctor.rs"},"profile":{"test":true},"executable":"/t/debug/deps/doctor-3"}
{"reason":"compiler-artifact","manifest_path":"/w/examples/Cargo.toml","target":{"name":"doctor","kind":["bin"],"src_path":"/w/examples/src/bin/doctor.rs"},"profile":{"test":false},"executable":"/t/debug/doctor"}
not json
{"reason":"build-finished","success":true}"#;

    #[test]
    fn test_programs_are_taken_with_the_directory_that_cargo_would_start_them_in() {
        let programs = of_messages(MESSAGES, Path::new("/w"));
        let labels: Vec<_> = programs.tests.iter().map(|test| &*test.label).collect();
        assert_eq!(
            labels,
            [
                "examples/src/bin/doctor.rs",
                "varek-core/src/lib.rs",
                "varek-core/tests/limits.rs"
            ]
        );
        let limits = &programs.tests[2];
        assert_eq!(limits.directory, Path::new("/w/varek-core"));
        assert_eq!(limits.path, Path::new("/t/debug/deps/limits-1"));
    }

    #[test]
    fn what_is_for_the_host_alone_is_there_and_stays_out_of_machines() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (label, reason) in HOST_ONLY {
            assert!(root.join(label).is_file(), "{label}");
            assert!(!reason.is_empty());
        }
        let program = |label: &str| Program {
            label: label.to_owned(),
            directory: "/w".into(),
            path: "/t".into(),
        };
        let programs = Programs {
            tests: vec![
                program(HOST_ONLY[0].0),
                program("varek-core/tests/limits.rs"),
            ],
            doctor: None,
        };
        let left = programs.in_machines().tests;
        assert_eq!(left, [program("varek-core/tests/limits.rs")]);
    }

    #[test]
    fn the_doctor_is_the_program_and_not_its_tests() {
        let programs = of_messages(MESSAGES, Path::new("/w"));
        assert_eq!(programs.doctor, Some(PathBuf::from("/t/debug/doctor")));
    }
}
