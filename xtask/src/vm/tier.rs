//! Several rows, one after the other or side by side.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Result;

use super::image;
use super::kernel::Image;
use super::machine::{Job, Rig, memory};
use super::programs::{self, Programs};
use super::report::{FailedTests, Outcome};
use super::rows::{RootDevice, Row};
use crate::test::summary::Summary;
use crate::test::{self, Selection};
use crate::ui;
use crate::workspace::Workspace;

/// What makes the disk with systemd.
const IMAGE: &str = "xtask/vm/image";

/// For one test program; under software emulation the longest takes a few minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15 * 60);
/// For a whole row.
const ROW_LIMIT: Duration = Duration::from_secs(60 * 60);

/// More processors than this are not worth their emulation.
const MOST_PROCESSORS: usize = 2;

/// How rows follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Each with its output as it comes.
    OneByOne,
    /// As many at a time as the machine has processors and memory for, each with its output in one
    /// piece when it is over.
    SideBySide,
}

/// A row with everything that it boots from.
#[derive(Debug)]
struct Boot {
    row: &'static Row,
    image: Image,
    disk: Option<PathBuf>,
    programs: Programs,
    /// Which part of the row it is, and of how many.
    part: (usize, usize),
}

/// Runs the tests on these rows, adds what came of them to the summary, and gives it row by row. A
/// row for which there is no machine is in the summary alone.
pub(crate) fn run(
    workspace: &Workspace,
    selection: &Selection,
    rows: &[&'static Row],
    pace: Pace,
    summary: &mut Summary,
) -> Result<Vec<(&'static Row, Outcome)>> {
    let rig = match Rig::find(workspace) {
        Ok(rig) => rig,
        Err(error) => {
            for row in rows {
                summary.row_not_run(row.name, &format!("{error:#}"));
            }
            return Ok(Vec::new());
        }
    };
    ui::headline("Tests in virtual machines: build");
    let programs = programs::build(workspace, &test::scope(workspace, selection)?)?.in_machines();
    let mut boots = Vec::new();
    for row in rows {
        match prepare(&rig, row, &programs, workspace) {
            Ok(boot) => boots.push(boot),
            Err(error) => summary.row_not_run(row.name, &format!("{error:#}")),
        }
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let at_once = match pace {
        Pace::OneByOne => 1,
        Pace::SideBySide => at_once(boots.len(), processors, available_memory()),
    };
    let arguments = super::words(selection)?;
    let job = Job {
        workspace,
        programs: &programs,
        disk: None,
        arguments: &arguments,
        require_all: selection.requires_all(),
        processors: (processors / at_once).clamp(1, MOST_PROCESSORS),
        program_limit: PROGRAM_LIMIT,
        limit: ROW_LIMIT,
    };
    let parts = if at_once == 1 {
        one_by_one(&rig, &boots, &job)
    } else {
        if boots.len() % at_once != 0 {
            // Else processors would stand idle at the end.
            boots = boots.iter().flat_map(|boot| boot.split(at_once)).collect();
        }
        side_by_side(&rig, &boots, &job, at_once)
    };
    let outcomes = together(parts);
    for (row, outcome) in &outcomes {
        ui::say(&format!("{}: {}", row.name, outcome.facts));
        summary.row(row.name, outcome);
    }
    Ok(outcomes)
}

/// Fetches and makes what is missing.
fn prepare(
    rig: &Rig,
    row: &'static Row,
    programs: &Programs,
    workspace: &Workspace,
) -> Result<Boot> {
    let image = rig.cache.kernel(row.kernel)?;
    let (disk, programs) = match row.root {
        RootDevice::Host => (None, programs.clone()),
        RootDevice::Systemd => (
            Some(rig.cache.systemd(&workspace.root.join(IMAGE))?),
            image::by_every_way(programs),
        ),
    };
    Ok(Boot {
        row,
        image,
        disk,
        programs,
        part: (1, 1),
    })
}

fn one_by_one(rig: &Rig, boots: &[Boot], job: &Job<'_>) -> Vec<(&'static Row, Outcome)> {
    let one = |boot: &Boot| {
        ui::headline(&format!("Tests: {}", boot.name()));
        (boot.row, boot.run(rig, job, ui::say))
    };
    boots.iter().map(one).collect()
}

fn side_by_side(
    rig: &Rig,
    boots: &[Boot],
    job: &Job<'_>,
    at_once: usize,
) -> Vec<(&'static Row, Outcome)> {
    let next = AtomicUsize::new(0);
    // Held while a row's output is printed, so that two do not mix.
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(boot) = boots.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = boot.name();
                    ui::say(&format!(
                        "{name}: started; its output comes when it is over."
                    ));
                    let begin = Instant::now();
                    let mut lines = Vec::new();
                    let outcome = boot.run(rig, job, |line| lines.push(line.to_owned()));
                    let Ok(mut outcomes) = outcomes.lock() else {
                        return;
                    };
                    ui::headline(&format!("Tests: {name}"));
                    for line in lines {
                        ui::say(&line);
                    }
                    ui::say(&format!("{name}: took {} s.", begin.elapsed().as_secs()));
                    outcomes.push((boot.row, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_default();
    let place = |row: &Row| boots.iter().position(|boot| boot.row.name == row.name);
    outcomes.sort_by_key(|(row, _)| place(row));
    outcomes
}

/// One outcome for each row; the parts of a row stand behind each other.
fn together(parts: Vec<(&'static Row, Outcome)>) -> Vec<(&'static Row, Outcome)> {
    let mut whole: Vec<(&'static Row, Outcome)> = Vec::new();
    for (row, outcome) in parts {
        match whole.last_mut() {
            Some((last, sum)) if last.name == row.name => sum.add(outcome),
            _ => whole.push((row, outcome)),
        }
    }
    whole
}

impl Boot {
    fn name(&self) -> String {
        let name = self.row.name;
        match self.part {
            (_, 1) => name.to_owned(),
            (part, of) => format!("{name}, part {part} of {of}"),
        }
    }

    /// As many boots of the same row, with every n-th program each.
    fn split(&self, of: usize) -> Vec<Self> {
        let part = |part: usize| {
            let tests = self.programs.tests.iter().skip(part).step_by(of);
            Self {
                row: self.row,
                image: self.image.clone(),
                disk: self.disk.clone(),
                programs: Programs {
                    tests: tests.cloned().collect(),
                    doctor: self.programs.doctor.clone(),
                },
                part: (part + 1, of),
            }
        };
        (0..of).map(part).collect()
    }

    /// Boots; what keeps the machine from starting is a failure of the row like any other.
    ///
    /// An emulated processor is slow by nature, and among other programs at times by a hundred times. Tests that
    /// failed are therefore tried once more, by themselves in a new machine, and so is a boot that came to nothing.
    fn run(&self, rig: &Rig, job: &Job<'_>, mut line: impl FnMut(&str)) -> Outcome {
        let mut boot = |programs: &Programs, arguments: &[String]| {
            let job = Job {
                disk: self.disk.as_deref(),
                programs,
                arguments,
                ..*job
            };
            rig.run(self.row, &self.image, &job, &mut line)
                .unwrap_or_else(|error| Outcome::failure(format!("{error:#}")))
        };
        let mut outcome = boot(&self.programs, job.arguments);
        // A kernel that dies as it boots has tested nothing yet.
        if !outcome.began() {
            outcome = boot(&self.programs, job.arguments);
        }
        let failed = &outcome.failed_tests;
        let tests = self.programs.tests.iter();
        let again: Vec<_> = tests
            .filter(|test| failed.iter().any(|tests| tests.label == test.label))
            .cloned()
            .collect();
        if again.is_empty() || !job.arguments.is_empty() {
            return outcome;
        }
        let names: Vec<_> = failed
            .iter()
            .flat_map(|tests| &tests.names)
            .cloned()
            .collect();
        // What a test's own child prints in between can hide a name: then the whole programs are tried.
        let known = failed.iter().all(FailedTests::are_named);
        let exact = std::iter::once("--exact".to_owned());
        let arguments: Vec<_> = names.into_iter().chain(exact).filter(|_| known).collect();
        let programs = Programs {
            tests: again,
            doctor: None,
        };
        let second = boot(&programs, &arguments);
        outcome.settle(&second);
        outcome
    }
}

/// How many machines run at a time: each wants a processor, and its memory twice, since the file
/// server and the emulator's own translations are not small.
fn at_once(rows: usize, processors: usize, memory_mib: u64) -> usize {
    let each = 2 * u64::from(memory(1));
    let fit = usize::try_from(memory_mib / each).unwrap_or(usize::MAX);
    rows.min(processors).min(fit).max(1)
}

/// In MiB; none where the kernel does not say.
fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_wants_a_processor_and_memory() {
        assert_eq!(at_once(3, 2, 16_000), 2);
        assert_eq!(at_once(1, 2, 16_000), 1);
        assert_eq!(at_once(3, 1, 16_000), 1);
        assert_eq!(at_once(3, 8, 4_000), 1);
        assert_eq!(at_once(0, 8, 0), 1);
    }

    #[test]
    fn the_parts_of_a_row_are_all_of_it_and_count_as_one() {
        let program = |label: &str| programs::Program {
            label: label.to_owned(),
            directory: "/w".into(),
            path: "/t".into(),
        };
        let boot = Boot {
            row: &super::super::rows::ROWS[0],
            image: Image {
                kernel: "/k".into(),
                modules: "/m".into(),
            },
            disk: None,
            programs: Programs {
                tests: ["a", "b", "c"].map(program).into(),
                doctor: None,
            },
            part: (1, 1),
        };
        let parts = boot.split(2);
        let labels = |boot: &Boot| -> Vec<_> {
            let tests = boot.programs.tests.iter();
            tests.map(|test| test.label.clone()).collect()
        };
        assert_eq!(labels(&parts[0]), ["a", "c"]);
        assert_eq!(labels(&parts[1]), ["b"]);
        assert!(parts[1].name().ends_with(", part 2 of 2"));

        let outcome = |boot: &Boot| (boot.row, Outcome::failure("x".to_owned()));
        let whole = together(parts.iter().map(outcome).collect());
        assert_eq!(whole.len(), 1);
        assert_eq!((whole[0].1.failed, whole[0].1.failures.len()), (2, 2));
    }

    #[test]
    fn this_machine_says_how_much_memory_it_has() {
        assert!(available_memory() > 0);
    }
}
