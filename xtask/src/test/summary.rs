//! What the last lines of `cargo xtask test` and `cargo xtask vm` say.

use std::collections::BTreeMap;
use std::process::{ExitCode, ExitStatus};

use super::tally::Tally;
use crate::ui;
use crate::vm::report::Outcome;

/// Everything that the last lines say.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// What failed, each in a line.
    failures: Vec<String>,
    /// Tests in virtual machines that passed when they were tried again.
    second_attempts: Vec<String>,
    pub(crate) not_run: BTreeMap<String, String>,
    /// A test that was not run returns like one that passed, unless it was required.
    not_run_counted_as_passed: bool,
    /// Rows that could not be started, each with the reason: one skipped each.
    parts_not_run: Vec<(String, String)>,
}

impl Summary {
    pub(crate) fn new(require_all: bool) -> Self {
        Self {
            not_run_counted_as_passed: !require_all,
            ..Self::default()
        }
    }

    /// A step that is no test counts only where it fails.
    pub(crate) fn step(&mut self, failure: &str, status: ExitStatus) {
        if !status.success() {
            self.failed += 1;
            self.failures.push(format!("{failure} ({status})"));
        }
    }

    /// The same of a step that tells by itself what is wrong.
    pub(crate) fn checked(&mut self, what: &str, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.failed += 1;
            self.failures.push(format!("{what}: {error:#}"));
        }
    }

    pub(crate) fn tests(&mut self, tally: Tally, status: ExitStatus) {
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

    /// What came of a row of the virtual machine.
    pub(crate) fn row(&mut self, name: &str, outcome: &Outcome) {
        self.passed += outcome.passed;
        self.failed += outcome.failed;
        self.ignored += outcome.ignored;
        let failures = outcome.failures.iter();
        self.failures
            .extend(failures.map(|failure| format!("{name}: {failure}")));
        let second = outcome.second_attempts.iter();
        self.second_attempts
            .extend(second.map(|test| format!("{name}: {test}")));
        let not_run = outcome.not_run.iter();
        self.not_run
            .extend(not_run.map(|(test, reason)| (format!("{name}: {test}"), reason.clone())));
    }

    /// A row for which there is no machine. Where all tests are required that is a failure.
    pub(crate) fn row_not_run(&mut self, name: &str, reason: &str) {
        self.part_not_run(&format!("vm {name}"), reason);
    }

    /// Tests that were not even built; judged like a row.
    pub(crate) fn part_not_run(&mut self, name: &str, reason: &str) {
        if self.not_run_counted_as_passed {
            self.parts_not_run
                .push((name.to_owned(), reason.to_owned()));
        } else {
            self.failed += 1;
            self.failures.push(format!("{name}: {reason}"));
        }
    }

    /// How many passed, failed and were not run.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let not_run = self.not_run.len() as u64;
        let among_passed = if self.not_run_counted_as_passed {
            not_run
        } else {
            0
        };
        (
            self.passed.saturating_sub(among_passed),
            self.failed,
            self.ignored + among_passed.min(self.passed) + self.parts_not_run.len() as u64,
        )
    }

    pub(crate) fn print(&self) -> ExitCode {
        ui::headline("Summary");
        for failure in &self.failures {
            ui::say(&format!("failed: {failure}"));
        }
        for test in &self.second_attempts {
            ui::say(&format!("passed at the second attempt: {test}"));
        }
        let parts = self
            .parts_not_run
            .iter()
            .map(|(name, reason)| (name, reason));
        for (name, reason) in self.not_run.iter().chain(parts) {
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

    use super::super::not_run_lines;
    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.line(line);
        }
        tally
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

    #[test]
    fn a_row_without_a_machine_is_skipped_and_where_all_is_required_a_failure() {
        let mut summary = Summary {
            not_run_counted_as_passed: true,
            ..Summary::default()
        };
        let outcome = Outcome {
            passed: 4,
            failed: 1,
            failures: vec!["a: t".to_owned()],
            not_run: [("a: u".to_owned(), "why".to_owned())].into(),
            ..Outcome::default()
        };
        summary.row("6.1-root", &outcome);
        summary.row_not_run("6.1-user", "there is no qemu");
        assert_eq!(summary.counts(), (3, 1, 2));
        assert_eq!(summary.failures, ["6.1-root: a: t"]);

        let mut strict = Summary::default();
        strict.row_not_run("6.1-user", "there is no qemu");
        assert_eq!(strict.counts(), (0, 1, 0));
    }
}
