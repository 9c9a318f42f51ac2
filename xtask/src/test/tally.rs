//! Counting what the test harness prints.

/// Running sums over the output of `cargo test`, fed line by line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    pub(crate) failed_names: Vec<String>,
    begun: u64,
    ended: u64,
}

impl Tally {
    pub(crate) fn line(&mut self, line: &str) {
        if begins(line) {
            self.begun += 1;
        } else if let Some([passed, failed, ignored]) = result(line) {
            self.ended += 1;
            self.passed += passed;
            self.failed += failed;
            self.ignored += ignored;
        } else if let Some(name) = failed_name(line) {
            self.failed_names.push(name.to_owned());
        }
    }

    /// Test programs that began and never printed a result: killed, aborted, or exited under the
    /// harness.
    pub(crate) fn unreported(&self) -> u64 {
        self.begun.saturating_sub(self.ended)
    }
}

/// `running 3 tests`
fn begins(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next() == Some("running")
        && words
            .next()
            .is_some_and(|count| count.parse::<u64>().is_ok())
        && matches!(words.next(), Some("test" | "tests"))
        && words.next().is_none()
}

/// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn result(line: &str) -> Option<[u64; 3]> {
    let counts = line.strip_prefix("test result: ")?;
    let (_, counts) = counts.split_once(". ")?;
    let count = |label: &str| {
        counts
            .split(';')
            .filter_map(|part| part.trim().split_once(' '))
            .find(|(_, found)| *found == label)
            .and_then(|(number, _)| number.parse().ok())
    };
    Some([count("passed")?, count("failed")?, count("ignored")?])
}

/// `test some::name ... FAILED`
fn failed_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
    name.trim_end().strip_suffix("...").map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test filter::x32_is_refused ... ok
test filter::exec_works_once ... FAILED
test filter::slow ... ignored, needs a day

failures:
    filter::exec_works_once

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s

running 1 test
test src/lib.rs - Policy (line 12) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.20s
";

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn results_are_summed_over_programs() {
        let tally = tally(OUTPUT);
        assert_eq!((tally.passed, tally.failed, tally.ignored), (2, 1, 1));
        assert_eq!(tally.failed_names, ["filter::exec_works_once"]);
        assert_eq!(tally.unreported(), 0);
    }

    #[test]
    fn a_program_that_dies_is_noticed() {
        let tally = tally("running 2 tests\ntest a ... ok\n");
        assert_eq!((tally.passed, tally.unreported()), (0, 1));
    }

    #[test]
    fn other_lines_that_look_alike_are_not_counted() {
        let tally = tally(
            "running away from 3 tests\nrunning 3 tests in a row\ntest result: unknown\n\
             test result: ok. many passed; 0 failed; 0 ignored\nthe test result: ok. 9 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(tally, Tally::default());
    }
}
