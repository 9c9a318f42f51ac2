//! The oldest Rust that the libraries promise to build with.
//!
//! Clippy knows which items of the standard library are newer (`incompatible_msrv`). Left to this file are the dependencies, and the build itself,
//! which takes that toolchain.

use std::collections::{HashMap, HashSet};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Report;
use crate::workspace::{Workspace, numbers};
use crate::{process, ui};

pub(super) fn check(workspace: &Workspace, report: &mut Report) -> Result<()> {
    ui::headline("The oldest Rust");
    let mut metadata = workspace.cargo(["metadata", "--format-version", "1", "--all-features"]);
    metadata.args(["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    ui::command(&process::shown(&metadata));
    let output = metadata
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "`cargo metadata` failed: {}",
        output.status
    );
    let metadata = serde_json::from_slice(&output.stdout)?;
    let libraries: Vec<&str> = workspace
        .libraries()
        .map(|library| library.name.as_str())
        .collect();
    let oldest = workspace.oldest_rust()?;
    let newer = newer(&metadata, &libraries, oldest).context("`cargo metadata` lacks a field")?;
    for line in &newer {
        ui::say(line);
    }
    let name = "no dependency of the libraries wants a newer Rust";
    report.record(name, newer.is_empty());

    let name = format!("the libraries build with Rust {oldest}");
    let toolchain = |program: &str| {
        let mut command = Command::new("rustup");
        command
            .args(["run", oldest, program])
            .current_dir(&workspace.root);
        command
    };
    if !process::succeeds(toolchain("rustc").arg("--version")) {
        report.not_run(&name, "rustup has no such toolchain");
        return Ok(());
    }
    let mut build = toolchain("cargo");
    build.args(["check", "--all-features", "--lib", "--target-dir"]);
    build.arg(workspace.target.join("oldest-rust"));
    for library in libraries {
        build.args(["--package", library]);
    }
    report.command(&name, build)
}

/// What the libraries are built with that asks for a newer Rust than they do.
fn newer(metadata: &Value, libraries: &[&str], oldest: &str) -> Option<Vec<String>> {
    let mut packages = HashMap::new();
    for package in metadata.get("packages")?.as_array()? {
        packages.insert(package.get("id")?.as_str()?, package);
    }
    let mut nodes = HashMap::new();
    for node in metadata.get("resolve")?.get("nodes")?.as_array()? {
        nodes.insert(node.get("id")?.as_str()?, node);
    }
    let field = |id: &str, field: &str| packages.get(id)?.get(field)?.as_str();
    let is_library = |id: &&str| field(id, "name").is_some_and(|name| libraries.contains(&name));
    let mut waiting: Vec<&str> = nodes.keys().copied().filter(is_library).collect();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Some(wanted) = field(id, "rust_version")
            && numbers(wanted) > numbers(oldest)
        {
            let (name, version) = (field(id, "name")?, field(id, "version")?);
            found.push(format!(
                "{name} {version} wants Rust {wanted}; the libraries promise {oldest}"
            ));
        }
        for dependency in nodes.get(id)?.get("deps")?.as_array()? {
            // What is for tests alone is nobody else's matter.
            let kinds = dependency.get("dep_kinds")?.as_array()?;
            if kinds
                .iter()
                .any(|kind| kind.get("kind").and_then(Value::as_str) != Some("dev"))
            {
                waiting.push(dependency.get("pkg")?.as_str()?);
            }
        }
    }
    found.sort();
    Some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_libraries_are_built_with_counts_and_what_their_tests_use_does_not() {
        let package = |name: &str, rust: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "rust_version": rust});
        let dependency =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("lib", Some("1.88")), package("near", None), package("far", Some("1.90")), package("build", Some("1.88.1")),
                package("test", Some("1.99")), package("other", Some("1.99"))],
            "resolve": {"nodes": [
                {"id": "lib", "deps": [dependency("near", None), dependency("test", Some("dev")), dependency("build", Some("build"))]},
                {"id": "near", "deps": [dependency("far", None)]},
                {"id": "far", "deps": []}, {"id": "build", "deps": []}, {"id": "test", "deps": []}, {"id": "other", "deps": []},
            ]},
        });
        let found = newer(&metadata, &["lib"], "1.88").unwrap();
        assert_eq!(
            found,
            [
                "build 1.0.0 wants Rust 1.88.1; the libraries promise 1.88",
                "far 1.0.0 wants Rust 1.90; the libraries promise 1.88",
            ]
        );
        assert_eq!(newer(&metadata, &["lib"], "1.90").unwrap(), [""; 0]);
    }
}
