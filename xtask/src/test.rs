//! `cargo xtask test`: the whole workspace's tests, and a summary that does not flatter.

mod tally;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::{env, fs, io};

use anyhow::{Context, Result};

use self::tally::Tally;
use crate::groups::Groups;
use crate::workspace::Workspace;
use crate::{process, setup, ui};

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

/// The command. The last line on standard output is `N passed, N failed`, with `, N skipped`
/// behind it where tests were not run.
pub(crate) fn command(workspace: &Workspace, selection: &Selection) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    let groups = Groups::prepare(workspace);
    let require_all =
        selection.require_all || env::var_os(REQUIRE).is_some_and(|value| value == "all");
    let scope = scope(workspace, selection);
    let mut summary = Summary::default();

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
        return Ok(summary.print());
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
    if require_all {
        tests.env(REQUIRE, "all");
    }
    let (tally, status) = tee(tests)?;
    summary.tests(tally, status);
    summary.not_run = read_not_run(&not_run)?;
    summary.not_run_counted_as_passed = !require_all;
    Ok(summary.print())
}

/// The packages and features, as arguments of cargo.
fn scope(workspace: &Workspace, selection: &Selection) -> Vec<String> {
    let mut scope = Vec::new();
    for package in &selection.packages {
        scope.extend(["--package".to_owned(), package.clone()]);
    }
    if selection.packages.is_empty() {
        scope.push("--workspace".to_owned());
    }
    match workspace.test_hooks() {
        Some(feature) => {
            let owner = feature.split('/').next().unwrap_or_default();
            if selection.packages.is_empty() || selection.packages.iter().any(|name| name == owner)
            {
                scope.extend(["--features".to_owned(), feature]);
            }
        }
        None => ui::warn("varek-core has no feature `test-hooks`: the tests are built without it"),
    }
    scope
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

/// Everything that the last lines say.
#[derive(Debug, Default)]
struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// What failed, each in a line.
    failures: Vec<String>,
    not_run: BTreeMap<String, String>,
    /// A test that was not run returns like one that passed, unless it was required.
    not_run_counted_as_passed: bool,
}

impl Summary {
    /// A step that is no test counts only where it fails.
    fn step(&mut self, failure: &str, status: ExitStatus) {
        if !status.success() {
            self.failed += 1;
            self.failures.push(format!("{failure} ({status})"));
        }
    }

    fn tests(&mut self, tally: Tally, status: ExitStatus) {
        let silent = tally.unreported();
        self.passed += tally.passed;
        self.ignored += tally.ignored;
        self.failed += tally.failed + silent;
        if silent > 0 {
            self.failures.push(format!(
                "test programs that ended without a result: {silent}"
            ));
        }
        // Cargo's own word is the last one: a doc test that does not compile, for example, may
        // leave no line to count.
        if !status.success() && tally.failed + silent == 0 {
            self.step("cargo test failed without a failed test", status);
        }
        self.failures.extend(tally.failed_names);
    }

    fn counts(&self) -> (u64, u64, u64) {
        let not_run = self.not_run.len() as u64;
        let among_passed = if self.not_run_counted_as_passed {
            not_run
        } else {
            0
        };
        (
            self.passed.saturating_sub(among_passed),
            self.failed,
            self.ignored + among_passed.min(self.passed),
        )
    }

    fn print(&self) -> ExitCode {
        ui::headline("Summary");
        for failure in &self.failures {
            ui::say(&format!("failed: {failure}"));
        }
        for (name, reason) in &self.not_run {
            ui::say(&format!("not run: {name}: {reason}"));
        }
        if self.ignored > 0 {
            ui::say(&format!("ignored by an attribute: {}", self.ignored));
        }
        let (passed, failed, skipped) = self.counts();
        let tail = if skipped > 0 {
            format!(", {skipped} skipped")
        } else {
            String::new()
        };
        ui::say(&format!("{passed} passed, {failed} failed{tail}"));
        if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.line(line);
        }
        tally
    }

    #[test]
    fn a_reason_may_hold_colons_and_a_name_may_hold_paths() {
        let text = "not run: limits::memory::is_bounded: no controller: memory\n\nplain: why\nbare";
        let lines = not_run_lines(text);
        assert_eq!(lines["limits::memory::is_bounded"], "no controller: memory");
        assert_eq!(lines["plain"], "why");
        assert_eq!(lines["bare"], "no reason given");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_test_that_was_not_run_is_not_counted_as_passed() {
        let mut summary = Summary {
            not_run_counted_as_passed: true,
            ..Summary::default()
        };
        let result = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        summary.tests(tally(&["running 6 tests", result]), ExitStatus::from_raw(0));
        summary.not_run = not_run_lines("not run: a: no python3\nnot run: b: no node\n");
        assert_eq!(summary.counts(), (3, 0, 3));

        // Where all tests are required, it has failed already, and nothing is taken off.
        summary.not_run_counted_as_passed = false;
        assert_eq!(summary.counts(), (5, 0, 1));
    }

    #[test]
    fn a_failure_of_cargo_without_a_failed_test_is_a_failure() {
        let mut summary = Summary::default();
        let result = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        summary.tests(
            tally(&["running 2 tests", result]),
            ExitStatus::from_raw(101 << 8),
        );
        assert_eq!(summary.counts(), (2, 1, 0));
    }

    #[test]
    fn a_test_program_that_died_is_a_failure_even_where_others_passed() {
        let mut summary = Summary::default();
        let result = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let lines = ["running 3 tests", "running 2 tests", result];
        summary.tests(tally(&lines), ExitStatus::from_raw(101 << 8));
        assert_eq!(summary.counts(), (2, 1, 0));
    }
}
