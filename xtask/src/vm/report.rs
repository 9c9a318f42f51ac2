//! What came of a row: the output of its test programs and the lines of the guest's own report.

use std::collections::BTreeMap;
use std::fmt;

use super::programs::Program;
use crate::test::tally::Tally;

/// The line that the guest prints before each program: `     Running LABEL (PATH)`.
const RUNNING: &str = "     Running ";

/// What `timeout` exits with when it had to end a program, and when that needed SIGKILL.
const TIMED_OUT: [i32; 2] = [124, 137];
/// What a test program exits with when a test failed.
const TESTS_FAILED: i32 = 101;

/// What the guest says about itself.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// One word or line each: `kernel`, `uid`, `group`, `lsm`, `up`, `end`.
    values: BTreeMap<String, String>,
}

impl Facts {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, value): (&String, &String)| format!("{name} {value}");
        let all: Vec<_> = self.values.iter().map(one).collect();
        to.write_str(&all.join(", "))
    }
}

/// A row's result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// What failed, each in a line.
    pub(crate) failures: Vec<String>,
    /// Programs in which nothing but tests failed.
    pub(crate) failed_tests: Vec<FailedTests>,
    /// How many tests of each program passed, by its label.
    pub(crate) passed_of: BTreeMap<String, u64>,
    /// Tests that failed at first and passed when they were tried again.
    pub(crate) second_attempts: Vec<String>,
    /// Names and reasons.
    pub(crate) not_run: BTreeMap<String, String>,
    pub(crate) facts: Facts,
    /// What `doctor --json` printed.
    pub(crate) doctor: Option<String>,
}

/// The tests of one program that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FailedTests {
    /// The program's label.
    pub(crate) label: String,
    pub(crate) names: Vec<String>,
    count: u64,
}

impl FailedTests {
    /// Whether each of them is known by its name.
    pub(crate) fn are_named(&self) -> bool {
        let named = self.names.iter().filter(|name| !name.contains(' '));
        u64::try_from(named.count()) == Ok(self.count)
    }
}

/// Puts a row's result together.
#[derive(Debug)]
pub(crate) struct Collector<'p> {
    programs: &'p [Program],
    tallies: Vec<Tally>,
}

impl<'p> Collector<'p> {
    pub(crate) fn new(programs: &'p [Program]) -> Self {
        Self {
            programs,
            tallies: Vec::new(),
        }
    }

    /// Takes the next line of the output. Programs come in the order in which they were given.
    pub(crate) fn line(&mut self, line: &str) {
        let next = self.programs.get(self.tallies.len());
        let begins = |program: &Program| {
            line.strip_prefix(RUNNING)
                .and_then(|rest| rest.strip_prefix(&*program.label))
                .is_some_and(|rest| rest.starts_with(" ("))
        };
        if next.is_some_and(begins) {
            self.tallies.push(Tally::default());
        } else if let Some(tally) = self.tallies.last_mut() {
            tally.line(line);
        }
    }

    /// Takes the guest's report; `ended` says why the machine did not come to the end by itself.
    pub(crate) fn finish(self, report: &str, ended: Option<&str>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut exits = BTreeMap::new();
        for line in report.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "exit" => exits.extend(exit(rest)),
                "skip" => outcome.not_run.extend(self.skip(rest)),
                "doctor" => outcome.doctor = Some(rest.to_owned()),
                "broken" => outcome.fail(rest.to_owned()),
                _ => {
                    let _ = outcome
                        .facts
                        .values
                        .insert(word.to_owned(), rest.to_owned());
                }
            }
        }
        // Where the machine did not even begin, one sentence says it.
        let programs = if self.tallies.is_empty() && ended.is_some() {
            &[]
        } else {
            self.programs
        };
        for (number, program) in programs.iter().enumerate() {
            let label = &program.label;
            let exit = exits.get(&number).copied();
            let Some(tally) = self.tallies.get(number) else {
                outcome.fail(format!("{label}: was not started"));
                continue;
            };
            outcome.passed += tally.passed;
            let _ = outcome.passed_of.insert(label.clone(), tally.passed);
            outcome.failed += tally.failed;
            outcome.ignored += tally.ignored;
            let names = tally.failed_names.iter();
            outcome
                .failures
                .extend(names.map(|name| format!("{label}: {name}")));
            match exit {
                Some(0) if tally.unreported() == 0 => {}
                Some(TESTS_FAILED) if tally.failed > 0 => outcome.failed_tests.push(FailedTests {
                    label: label.clone(),
                    names: tally.failed_names.clone(),
                    count: tally.failed,
                }),
                Some(status) if TIMED_OUT.contains(&status) => {
                    outcome.fail(format!("{label}: was ended at its time limit"));
                }
                Some(status) => {
                    outcome.fail(format!("{label}: ended without a result, status {status}"));
                }
                None => outcome.fail(format!("{label}: did not end")),
            }
        }
        if let Some(why) = ended {
            outcome.fail(why.to_owned());
        }
        outcome
    }

    /// `NUMBER not run: NAME: REASON`
    fn skip(&self, text: &str) -> Option<(String, String)> {
        let (number, line) = text.split_once(' ')?;
        let label = &self.programs.get(number.parse::<usize>().ok()?)?.label;
        let line = line.strip_prefix("not run: ").unwrap_or(line);
        let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
        Some((format!("{label}: {name}"), reason.to_owned()))
    }
}

/// `NUMBER STATUS`, and for people the seconds since the boot.
fn exit(text: &str) -> Option<(usize, i32)> {
    let mut words = text.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

impl Outcome {
    /// That of a machine that could not be started.
    pub(crate) fn failure(line: String) -> Self {
        let mut outcome = Self::default();
        outcome.fail(line);
        outcome
    }

    /// Whether the machine came as far as to say anything of itself or its tests.
    pub(crate) fn began(&self) -> bool {
        !self.facts.values.is_empty() || !self.passed_of.is_empty()
    }

    /// Adds another part of the same row.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
        self.failed_tests.extend(other.failed_tests);
        self.second_attempts.extend(other.second_attempts);
        self.not_run.extend(other.not_run);
        self.facts.values.extend(other.facts.values);
        self.doctor = self.doctor.take().or(other.doctor);
    }

    /// Takes what came of trying the failed tests again, by themselves: what passed then has passed, and is named.
    pub(crate) fn settle(&mut self, again: &Self) {
        let still = |label: &str| {
            let of_program = |line: &String| line.strip_prefix(label).is_some();
            again.failures.iter().any(of_program)
        };
        // A machine that did not come to its end has settled nothing.
        let broken = again.failed > again.failed_tests.iter().map(|tests| tests.count).sum();
        for tests in std::mem::take(&mut self.failed_tests) {
            let passed = again.passed_of.get(&tests.label).copied().unwrap_or(0);
            if broken || passed < tests.count || still(&format!("{}: ", tests.label)) {
                continue;
            }
            let line = |name: &String| format!("{}: {name}", tests.label);
            let lines: Vec<_> = tests.names.iter().map(line).collect();
            self.failures.retain(|failure| !lines.contains(failure));
            self.failed = self.failed.saturating_sub(tests.count);
            self.passed += tests.count;
            self.second_attempts.extend(lines);
        }
    }

    fn fail(&mut self, line: String) {
        self.failed += 1;
        self.failures.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(labels: &[&str]) -> Vec<Program> {
        let program = |label: &&str| Program {
            label: (*label).to_owned(),
            directory: "/w".into(),
            path: "/t/x".into(),
        };
        labels.iter().map(program).collect()
    }

    #[test]
    fn what_passes_at_a_second_attempt_is_named_and_what_fails_twice_has_failed() {
        let labels = ["p/a.rs", "p/b.rs"];
        let failing = |name: &str| {
            format!(
                "running 2 tests\ntest {name} ... FAILED\ntest fine ... ok\n\
                 test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out"
            )
        };
        let output = |a: &str, b: &str| {
            format!("     Running p/a.rs (/a)\n{a}\n     Running p/b.rs (/b)\n{b}\n")
        };
        let fine = "running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        let both = output(&failing("x"), &failing("y"));
        let first = || outcome(&labels, &both, "exit 0 101 1\nexit 1 101 2\n", None);
        assert_eq!((first().passed, first().failed), (2, 2));

        let mut settled = first();
        let again = output(fine, &failing("y"));
        settled.settle(&outcome(
            &labels,
            &again,
            "exit 0 0 1\nexit 1 101 2\n",
            None,
        ));
        assert_eq!((settled.passed, settled.failed), (3, 1));
        assert_eq!(settled.failures, ["p/b.rs: y"]);
        assert_eq!(settled.second_attempts, ["p/a.rs: x"]);

        // Nothing is settled by a test that was not found again.
        let mut lost = first();
        let none = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored";
        let nothing = output(none, none);
        lost.settle(&outcome(
            &labels,
            &nothing,
            "exit 0 0 1\nexit 1 0 2\n",
            None,
        ));
        assert_eq!((lost.passed, lost.failed), (2, 2));

        // Or by a machine that broke down.
        let mut broken = first();
        broken.settle(&outcome(&labels, "", "", Some("no boot")));
        assert_eq!((broken.passed, broken.failed), (2, 2));
        let mut hung = first();
        let output = output(fine, "running 1 test\n");
        hung.settle(&outcome(
            &labels,
            &output,
            "exit 0 0 1\nexit 1 124 2\n",
            None,
        ));
        assert_eq!((hung.passed, hung.failed), (2, 2));
    }

    fn outcome(labels: &[&str], output: &str, report: &str, ended: Option<&str>) -> Outcome {
        let programs = programs(labels);
        let mut collector = Collector::new(&programs);
        output.lines().for_each(|line| collector.line(line));
        collector.finish(report, ended)
    }

    const PASSED: &str = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored;\n";

    #[test]
    fn programs_are_counted_and_what_failed_is_named_with_its_program() {
        let output = format!(
            "     Running a (/t/x)\n{PASSED}     Running b (/t/x)\nrunning 1 test\n\
             test m::t ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored;\n"
        );
        let report = "kernel 6.1.0\nexit 0 0\nexit 1 101\nend 9.5\n";
        let outcome = outcome(&["a", "b"], &output, report, None);
        assert_eq!((outcome.passed, outcome.failed), (2, 1));
        assert_eq!(outcome.failures, ["b: m::t"]);
        assert_eq!(outcome.facts.get("kernel"), Some("6.1.0"));
    }

    #[test]
    fn a_program_that_hangs_dies_or_never_starts_is_one_failure_each_and_by_name() {
        let output = format!(
            "     Running a (/t/x)\nrunning 2 tests\n     Running b (/t/x)\nrunning 1 test\n     Running c (/t/x)\n{PASSED}"
        );
        let report = "exit 0 124 9.1\nexit 1 139 9.5\nexit 2 0\n";
        let outcome = outcome(&["a", "b", "c", "d"], &output, report, None);
        assert_eq!((outcome.passed, outcome.failed), (2, 3));
        assert_eq!(
            outcome.failures,
            [
                "a: was ended at its time limit",
                "b: ended without a result, status 139",
                "d: was not started"
            ]
        );
    }

    #[test]
    fn a_machine_that_stopped_is_a_failure_and_what_was_running_did_not_end() {
        let output = "     Running a (/t/x)\nrunning 2 tests\n";
        let outcome = outcome(&["a"], output, "", Some("its time limit passed"));
        assert_eq!(
            outcome.failures,
            ["a: did not end", "its time limit passed"]
        );
    }

    #[test]
    fn a_machine_that_did_not_boot_is_one_failure() {
        let silent = outcome(&["a", "b"], "", "", Some("it stopped"));
        assert_eq!((silent.failed, silent.failures.len()), (1, 1));
        assert!(!silent.began());
        // One that said what it is had begun, whatever came of its tests.
        let stopped = outcome(&["a"], "", "kernel 6.1", Some("it stopped"));
        assert!(stopped.began());
    }

    #[test]
    fn a_program_that_exits_well_without_a_result_is_a_failure() {
        let output = "     Running a (/t/x)\nrunning 2 tests\n";
        assert_eq!(outcome(&["a"], output, "exit 0 0\n", None).failed, 1);
    }

    #[test]
    fn a_test_that_was_not_run_has_its_program_in_its_name() {
        let output = format!("     Running a (/t/x)\n{PASSED}");
        let report = "skip 0 not run: m::t: no node: nowhere\nexit 0 0\n";
        let outcome = outcome(&["a"], &output, report, None);
        assert_eq!(outcome.not_run["a: m::t"], "no node: nowhere");
    }

    #[test]
    fn a_guest_that_prints_the_marker_of_another_program_moves_nothing() {
        let output = format!("     Running a (/t/x)\n     Running z (/t/x)\n{PASSED}");
        assert_eq!(outcome(&["a"], &output, "exit 0 0\n", None).passed, 2);
    }
}
