//! What a log of events tells, run by run.
//!
//! Everything in a log that a guest had a say in (names of programs, numbers of calls) is text and nothing else, on the
//! page and in the terminal, and how much of it is kept has a bound.

mod page;

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::time::{Duration, SystemTime};

use varek_core::{Answer, Event, EventKind, LimitHit, RunId, Termination};
use varek_telemetry::{Record, records};

use crate::terminal::{Cell, Column, Style, table};

/// Events of one run on its timeline, at most.
const MOST_MARKS: usize = 400;

/// Different denied calls of one run, at most.
const MOST_CALLS: usize = 100;

/// Faults of the log that are told one by one, at most.
const MOST_FAULTS: usize = 50;

/// Runs, at most: what comes later is counted.
const MOST_RUNS: usize = 10_000;

/// A log, read.
#[derive(Debug, Default)]
pub struct Report {
    runs: Vec<Run>,
    places: HashMap<RunId, usize>,
    events: u64,
    unknown: u64,
    /// Events of runs beyond the bound.
    omitted: u64,
    faults: Vec<String>,
    more_faults: u64,
}

/// One run.
#[derive(Debug)]
struct Run {
    id: RunId,
    began: SystemTime,
    /// Since the run began, of the event seen last.
    elapsed: Duration,
    program: String,
    policy: String,
    missing: Vec<String>,
    termination: Option<Termination>,
    denied: u64,
    probes: u64,
    /// By what was called, as far as the bound goes.
    calls: BTreeMap<(String, &'static str), u64>,
    limits: Vec<LimitHit>,
    facts: Vec<(&'static str, String)>,
    dropped: u64,
    marks: Vec<Mark>,
    more_marks: u64,
}

/// One event on the timeline.
#[derive(Debug)]
struct Mark {
    at: Duration,
    kind: &'static str,
    text: String,
}

impl Report {
    /// Reads a log to its end. What cannot be read is told by [`Report::faults`].
    pub fn read(log: impl BufRead) -> Self {
        let mut report = Self::default();
        for record in records(log) {
            match record {
                Ok(Record::Known(event)) => report.add(&event),
                Ok(_) => report.unknown += 1,
                Err(error) if report.faults.len() < MOST_FAULTS => {
                    report.faults.push(error.to_string());
                }
                Err(_) => report.more_faults += 1,
            }
        }
        report
    }

    /// Lines that could not be read, 50 at most.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    fn add(&mut self, event: &Event) {
        self.events += 1;
        let place = match self.places.get(&event.run) {
            Some(place) => *place,
            None if self.runs.len() >= MOST_RUNS => {
                self.omitted += 1;
                return;
            }
            None => {
                self.places.insert(event.run, self.runs.len());
                self.runs.push(Run::new(event));
                self.runs.len() - 1
            }
        };
        if let Some(run) = self.runs.get_mut(place) {
            run.add(event);
        }
    }

    /// The counts of the whole log, in words.
    fn totals(&self) -> Vec<(&'static str, u64)> {
        let sum = |of: fn(&Run) -> u64| self.runs.iter().map(of).sum();
        vec![
            ("runs", self.runs.len() as u64),
            ("events", self.events),
            ("denied calls", sum(|run| run.denied)),
            ("probes", sum(|run| run.probes)),
            ("limits met", sum(|run| run.limits.len() as u64)),
            ("runs killed", sum(|run| u64::from(run.killed()))),
            (
                "runs without an end",
                sum(|run| u64::from(run.termination.is_none())),
            ),
            ("events dropped", sum(|run| run.dropped)),
            ("records of newer kinds", self.unknown),
            ("events of runs not shown", self.omitted),
            (
                "unreadable lines",
                self.faults.len() as u64 + self.more_faults,
            ),
        ]
    }

    /// The summary for a terminal.
    pub fn render(&self, style: Style) -> String {
        let columns = [
            Column::whole("run"),
            Column::text("program"),
            Column::whole("time"),
            Column::text("end"),
            Column::text("denied"),
            Column::text("limits"),
        ];
        let rows = self.runs.iter().map(|run| {
            let calls: Vec<_> = run
                .calls
                .iter()
                .map(|((call, answer), count)| format!("{count} × {call} {answer}"))
                .collect();
            let limits: Vec<_> = run.limits.iter().map(LimitHit::to_string).collect();
            let good = run.termination == Some(Termination::Exited(0));
            vec![
                Cell::new(run.short()),
                Cell::new(&run.program),
                Cell::new(milliseconds(run.elapsed)),
                Cell::verdict(good, run.end()),
                Cell::verdict(run.denied == 0, calls.join("\n")),
                Cell::verdict(limits.is_empty(), limits.join("\n")),
            ]
        });
        let totals = self.totals().into_iter().filter(|(_, count)| *count > 0);
        let totals = totals.map(|(what, count)| format!("{what}: {count}"));
        let faults = self.faults.iter().map(|fault| format!("{fault:?}"));
        let lines: Vec<_> = std::iter::once(table(style, &columns, rows))
            .chain(totals)
            .chain(faults)
            .collect();
        lines.join("\n")
    }
}

impl Run {
    fn new(event: &Event) -> Self {
        Self {
            id: event.run,
            began: event.time.checked_sub(event.elapsed).unwrap_or(event.time),
            elapsed: event.elapsed,
            program: String::new(),
            policy: String::new(),
            missing: Vec::new(),
            termination: None,
            denied: 0,
            probes: 0,
            calls: BTreeMap::new(),
            limits: Vec::new(),
            facts: Vec::new(),
            dropped: 0,
            marks: Vec::new(),
            more_marks: 0,
        }
    }

    /// The beginning of its name, which is enough to tell runs apart.
    fn short(&self) -> String {
        self.id.to_string().chars().take(8).collect()
    }

    fn end(&self) -> String {
        match &self.termination {
            Some(termination) => termination.to_string(),
            None => "no end in the log".into(),
        }
    }

    const fn killed(&self) -> bool {
        matches!(self.termination, Some(Termination::Killed(_)))
    }

    fn add(&mut self, event: &Event) {
        self.elapsed = self.elapsed.max(event.elapsed);
        let text = match &event.kind {
            EventKind::RunStarted {
                program,
                arguments,
                policy,
                enforcement,
                ..
            } => {
                self.program.clone_from(program);
                self.policy.clone_from(policy);
                self.missing = enforcement
                    .missing()
                    .map(|(layer, reason)| format!("{layer}: {reason}"))
                    .collect();
                format!("{program} with {} arguments", arguments.count())
            }
            EventKind::GuestStarted { pid } => format!("process {pid}"),
            EventKind::SyscallDenied(denial) => {
                let answer = match denial.answer {
                    Answer::Probe => "probe",
                    Answer::Kill => "killed",
                    _ => "refused",
                };
                if denial.answer == Answer::Probe {
                    self.probes += denial.count;
                } else {
                    self.denied += denial.count;
                }
                let key = (denial.name(), answer);
                if self.calls.len() < MOST_CALLS || self.calls.contains_key(&key) {
                    *self.calls.entry(key).or_default() += denial.count;
                } else {
                    *self.calls.entry(("others".into(), answer)).or_default() += denial.count;
                }
                denial.to_string()
            }
            EventKind::LimitHit(hit) => {
                self.limits.push(hit.clone());
                hit.to_string()
            }
            EventKind::OutputTruncated { stream, limit } => format!("{stream} at {limit} bytes"),
            EventKind::DeadlinePassed { limit } => milliseconds(*limit),
            EventKind::KillIssued { cause } => cause.to_string(),
            EventKind::GuestSignaled { signal } => signal.to_string(),
            EventKind::GuestExited { termination } => termination.to_string(),
            EventKind::DescendantsKilled { count } => format!("{count} processes"),
            EventKind::EventsDropped { count } => {
                self.dropped += count;
                format!("{count} events")
            }
            EventKind::MonitorFault { fault } => fault.clone(),
            EventKind::RunFinished {
                termination,
                usage,
                cleanup,
            } => {
                self.termination = Some(termination.clone());
                self.facts = vec![
                    ("wall clock", milliseconds(usage.wall_clock)),
                    ("CPU, user", milliseconds(usage.cpu_user)),
                    ("CPU, kernel", milliseconds(usage.cpu_system)),
                ];
                let memory = usage
                    .memory_peak
                    .map(|bytes| format!("{} KiB", bytes / 1024));
                let pids = usage.pids_peak.map(|count| count.to_string());
                self.facts.extend(memory.map(|text| ("peak memory", text)));
                self.facts.extend(pids.map(|text| ("peak processes", text)));
                let throttled = usage.throttled.map(milliseconds);
                self.facts.extend(throttled.map(|text| ("held back", text)));
                self.facts.push(("clean-up", cleanup.to_string()));
                termination.to_string()
            }
            _ => String::new(),
        };
        // The end of a run is always worth its place.
        let is_end = matches!(event.kind, EventKind::RunFinished { .. });
        if self.marks.len() < MOST_MARKS || is_end {
            self.marks.push(Mark {
                at: event.elapsed,
                kind: event.kind.name(),
                text,
            });
        } else {
            self.more_marks += 1;
        }
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}
