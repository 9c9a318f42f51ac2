//! `cargo xtask test`: the whole workspace's tests, and a summary that does not flatter.

pub(crate) mod summary;
pub(crate) mod tally;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::{env, fs, io};

use anyhow::{Context, Result};

use self::summary::Summary;
use self::tally::Tally;
use crate::groups::Groups;
use crate::workspace::Workspace;
use crate::{package, process, setup, ui, vm};

/// Set to `all`, it makes a test fail that the host cannot run.
const REQUIRE: &str = "VAREK_TEST_REQUIRE";
/// Names the file that such a test appends a line to: the harness hides what passing tests print.
const NOT_RUN_FILE: &str = "VAREK_NOT_RUN_FILE";

/// Which tests, and how strictly.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) require_all: bool,
    pub(crate) packages: Vec<String>,
    pub(crate) args: Vec<OsString>,
}

impl Selection {
    /// Whether a test that cannot be run here is a failure.
    pub(crate) fn requires_all(&self) -> bool {
        self.require_all || env::var_os(REQUIRE).is_some_and(|value| value == "all")
    }
}

/// The command: the tests on this host, and then, unless that is left out, in virtual machines. The
/// last line on standard output is `N passed, N failed`, with `, N skipped` behind it where tests
/// were not run.
pub(crate) fn command(
    workspace: &Workspace,
    selection: &Selection,
    host_only: bool,
) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    setup::guests::prepare(workspace);
    let groups = Groups::prepare(workspace);
    let mut summary = Summary::new(selection.requires_all());
    let built = host(workspace, &groups, selection, &mut summary)?;
    if built && !host_only {
        vm::every_change(workspace, selection, &mut summary)?;
    }
    Ok(summary.print())
}

/// The tests on this host. Says whether they compile.
pub(crate) fn host(
    workspace: &Workspace,
    groups: &Groups,
    selection: &Selection,
    summary: &mut Summary,
) -> Result<bool> {
    let scope = scope(workspace, selection)?;
    if selection.packages.is_empty() {
        for (name, reason) in workspace.left_out()? {
            summary.part_not_run(&format!("tests of {name}"), &reason);
        }
    }
    ui::headline("Benches: compile check");
    let mut benches = workspace.cargo(["check", "--benches"]);
    benches.args(&scope);
    summary.step("the benches do not compile", process::status(benches)?);

    // Built outside the groups: a limit on them must not slow down or stop the compiler.
    ui::headline("Tests: build");
    let mut build = workspace.cargo(["test", "--no-run", "--no-fail-fast"]);
    build.args(&scope);
    let built = process::status(build)?;
    summary.step("the tests do not compile", built);
    if !built.success() {
        return Ok(false);
    }

    ui::headline("Tests: run");
    let not_run = workspace.target.join("not-run.txt");
    forget(&not_run)?;
    let mut tests = groups.cargo(workspace, ["test", "--no-fail-fast"]);
    tests
        .args(&scope)
        .arg("--")
        .args(&selection.args)
        .env(NOT_RUN_FILE, &not_run);
    if selection.requires_all() {
        tests.env(REQUIRE, "all");
    }
    let (tally, status) = tee(tests)?;
    summary.tests(tally, status);
    summary.not_run = read_not_run(&not_run)?;
    if selection.packages.is_empty() && selection.args.is_empty() {
        let what = "packages, and the README's programs in a new crate";
        if groups.prepared() {
            summary.checked(what, package::check(workspace, groups));
        } else {
            summary.part_not_run(what, "no guest can be run without control groups");
        }
    }
    Ok(true)
}

/// The packages and features, as arguments of cargo.
pub(crate) fn scope(workspace: &Workspace, selection: &Selection) -> Result<Vec<String>> {
    let mut scope = Vec::new();
    for package in &selection.packages {
        scope.extend(["--package".to_owned(), package.clone()]);
    }
    if selection.packages.is_empty() {
        scope.extend(workspace.whole()?);
    }
    // The sinks of other crates, and the hidden feature that opens what only tests may reach.
    scope.push("--all-features".to_owned());
    Ok(scope)
}

/// Runs a command, shows its standard output line by line as it comes, and counts.
fn tee(mut command: Command) -> Result<(Tally, ExitStatus)> {
    let line = process::shown(&command);
    ui::command(&line);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        // Split by bytes, not by `lines`: what a guest prints need not be UTF-8.
        for bytes in BufReader::new(stdout).split(b'\n') {
            let bytes = bytes.with_context(|| format!("cannot read the output of `{line}`"))?;
            let text = String::from_utf8_lossy(&bytes);
            ui::say(&text);
            tally.line(&text);
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("cannot wait for `{line}`"))?;
    Ok((tally, status))
}

fn forget(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn read_not_run(path: &Path) -> Result<BTreeMap<String, String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(not_run_lines(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Lines `not run: NAME: REASON`, by name: a test that says it twice was still not run once.
fn not_run_lines(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.strip_prefix("not run: ").unwrap_or(line))
        .map(|line| line.split_once(": ").unwrap_or((line, "no reason given")))
        .map(|(name, reason)| (name.to_owned(), reason.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_may_hold_colons_and_a_name_may_hold_paths() {
        let text = "not run: limits::memory::is_bounded: no controller: memory\n\nplain: why\nbare";
        let lines = not_run_lines(text);
        assert_eq!(lines["limits::memory::is_bounded"], "no controller: memory");
        assert_eq!(lines["plain"], "why");
        assert_eq!(lines["bare"], "no reason given");
        assert_eq!(lines.len(), 3);
    }
}
