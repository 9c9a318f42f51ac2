//! Eight payloads with known ends: a change of policy or of VAREK that moves one is a divergence.
//!
//! A malicious payload matches only where the first boundary event names the call that it must not make, with
//! the kernel's evidence: a guest that fails for another reason (a missing interpreter, a typing error) is
//! a divergence.

use std::time::Duration;

use serde::Serialize;
use varek_core::{Command, Error, Outcome, Policy, Sandbox};

use crate::evidence::{self, Judged};
use crate::terminal::{Cell, Column};

/// The policy of every row but what a row says itself.
pub fn policy() -> Policy {
    Policy::python().wall_clock(Duration::from_secs(10))
}

/// The wall clock of the payload that never ends.
const LOOP_LIMIT: Duration = Duration::from_secs(1);

/// One payload.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    /// Its name, kept from version to version.
    pub name: &'static str,
    /// What kind it is.
    pub category: &'static str,
    /// What has to become of it, in words.
    pub expected: &'static str,
    source: &'static str,
    judge: fn(&Outcome) -> Judged,
}

/// Every payload, in order.
pub const PAYLOADS: [Payload; 8] = [
    Payload {
        name: "benign_arithmetic",
        category: "benign",
        expected: "exit 0, 4950, no boundary event",
        source: "print(sum(range(100)))",
        judge: |outcome| evidence::printed(outcome, "4950").and_then(|_| evidence::clean(outcome)),
    },
    Payload {
        name: "benign_dict_ops",
        category: "benign",
        expected: "exit 0, no boundary event",
        source: "d = {n: n * n for n in range(50)}\nprint(sorted(d.values())[-1], len(d))",
        judge: |outcome| {
            evidence::printed(outcome, "2401 50").and_then(|_| evidence::clean(outcome))
        },
    },
    Payload {
        name: "malicious_subprocess_run",
        category: "malicious",
        expected: "execve denied, exit 1, nothing ran",
        source: "import subprocess\nsubprocess.run(['/bin/echo', 'escaped'], check=True)",
        judge: |outcome| {
            let evidence = evidence::denied(outcome, "execve")?;
            evidence::exited(outcome, 1)?;
            evidence::printed(outcome, "")?;
            Ok(evidence)
        },
    },
    Payload {
        name: "documented_os_system_passthrough",
        category: "known_allowance",
        expected: "exit 0 though the execve inside os.system was denied",
        source: "import os\nstatus = os.system('echo escaped')\nprint('went on', status != 0)",
        judge: |outcome| {
            let evidence = evidence::denied(outcome, "execve")?;
            evidence::exited(outcome, 0)?;
            evidence::printed(outcome, "went on True")?;
            Ok(evidence)
        },
    },
    Payload {
        name: "malicious_socket_connect",
        category: "malicious",
        expected: "socket denied, exit 1",
        source: "import socket\n\
                 with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:\n    \
                     s.settimeout(1)\n    \
                     s.connect(('192.0.2.1', 80))",
        judge: |outcome| {
            let evidence = evidence::denied(outcome, "socket")?;
            evidence::exited(outcome, 1)?;
            Ok(evidence)
        },
    },
    Payload {
        name: "resource_infinite_loop",
        category: "resource",
        expected: "killed by the wall clock",
        source: "while True:\n    pass",
        judge: evidence::wall_clock,
    },
    Payload {
        name: "edge_syntax_error",
        category: "edge",
        expected: "exit 1, SyntaxError, no boundary event",
        source: "def broken(:\n    pass",
        judge: |outcome| raised(outcome, "SyntaxError"),
    },
    Payload {
        name: "edge_runtime_exception",
        category: "edge",
        expected: "exit 1, ZeroDivisionError, no boundary event",
        source: "print(1 // 0)",
        judge: |outcome| raised(outcome, "ZeroDivisionError"),
    },
];

fn raised(outcome: &Outcome, exception: &str) -> Judged {
    evidence::exited(outcome, 1)?;
    let stderr = outcome.stderr.to_text();
    if !stderr.contains(exception) {
        return Err(format!("no {exception} on stderr"));
    }
    match outcome.violation() {
        None => Ok(format!("{exception}, no boundary event")),
        Some(violation) => Err(format!("a boundary event: {violation}")),
    }
}

impl Payload {
    /// What the payload runs.
    pub fn command(&self) -> Command {
        Command::python(self.source)
    }

    /// Whether an outcome is the expected one, with the evidence or what is there instead.
    ///
    /// # Errors
    ///
    /// What is there instead.
    pub fn judge(&self, outcome: &Outcome) -> Judged {
        (self.judge)(outcome)
    }

    fn row(&self, outcome: &Outcome) -> Row {
        let judged = self.judge(outcome);
        Row {
            name: self.name,
            category: self.category,
            expected: self.expected,
            matched: judged.is_ok(),
            exit_code: outcome.exit_code(),
            contained: outcome.contained(),
            timed_out: outcome.timed_out(),
            killed_by_signal: evidence::signal(outcome),
            violation: evidence::violation(outcome),
            brief: evidence::brief(outcome.violation()),
            wall_clock_s: outcome.usage.wall_clock.as_secs_f64(),
            evidence: judged.unwrap_or_else(|instead| instead),
        }
    }
}

/// What became of one payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The payload's name.
    pub name: &'static str,
    /// Its category.
    pub category: &'static str,
    /// What should become of it.
    pub expected: &'static str,
    /// Whether it did.
    pub matched: bool,
    /// The exit code, where the first process exited.
    pub exit_code: Option<i32>,
    /// The column of that name of the Python package. Nothing here decides by it.
    pub contained: bool,
    /// Whether the wall clock ended it.
    pub timed_out: bool,
    /// The signal that ended the first process, -1 where none did.
    pub killed_by_signal: i32,
    /// The first boundary event; empty where there is none.
    pub violation: String,
    #[serde(skip)]
    brief: String,
    /// Seconds.
    pub wall_clock_s: f64,
    /// What the verdict stands on.
    pub evidence: String,
}

impl Row {
    /// The columns of [`Row::cells`].
    pub const COLUMNS: [Column<'static>; 10] = [
        Column::whole("name"),
        Column::whole("category"),
        Column::text("expected"),
        Column::text("matched"),
        Column::text("exit_code"),
        Column::text("contained"),
        Column::text("timed_out"),
        Column::text("killed_by_signal"),
        Column::text("violation"),
        Column::whole("wall_clock_s"),
    ];

    /// The row of a table.
    pub fn cells(&self) -> Vec<Cell> {
        let matched = if self.matched {
            Cell::verdict(true, "true")
        } else {
            Cell::verdict(false, format!("false: {}", self.evidence))
        };
        vec![
            Cell::new(self.name),
            Cell::new(self.category),
            Cell::new(self.expected),
            matched,
            Cell::new(
                self.exit_code
                    .map(|code| code.to_string())
                    .unwrap_or_default(),
            ),
            Cell::new(self.contained.to_string()),
            Cell::new(self.timed_out.to_string()),
            Cell::new(self.killed_by_signal.to_string()),
            Cell::new(self.brief.clone()),
            Cell::new(format!("{:.3}", self.wall_clock_s)),
        ]
    }
}

/// Everything that the suite found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The digest of the policy.
    pub policy: String,
    /// Rows that matched, of all.
    pub match_rate: f64,
    /// Rows that did not.
    pub divergences: usize,
    /// Whether all did.
    pub all_matched: bool,
    /// Every row, in order.
    pub rows: Vec<Row>,
}

/// Runs every payload, one after the other; `before` hears each name first.
///
/// # Errors
///
/// When VAREK cannot run one: a host without what the policy requires, or without python3.
pub fn run(mut before: impl FnMut(&Payload)) -> Result<Report, Error> {
    let sandbox = Sandbox::new(policy())?;
    let hurried = Sandbox::builder(policy().wall_clock(LOOP_LIMIT))
        .host(sandbox.host().clone())
        .build()?;
    let mut rows = Vec::with_capacity(PAYLOADS.len());
    for payload in &PAYLOADS {
        before(payload);
        let sandbox = if payload.category == "resource" {
            &hurried
        } else {
            &sandbox
        };
        rows.push(payload.row(&sandbox.run(payload.command())?));
    }
    let divergences = rows.iter().filter(|row| !row.matched).count();
    #[expect(clippy::cast_precision_loss, reason = "eight rows")]
    let match_rate = (rows.len() - divergences) as f64 / rows.len() as f64;
    Ok(Report {
        policy: sandbox.policy().digest(),
        match_rate,
        divergences,
        all_matched: divergences == 0,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_categories_are_those_that_runs_are_compared_by() {
        let names = PAYLOADS.map(|payload| (payload.name, payload.category));
        assert_eq!(
            names,
            [
                ("benign_arithmetic", "benign"),
                ("benign_dict_ops", "benign"),
                ("malicious_subprocess_run", "malicious"),
                ("documented_os_system_passthrough", "known_allowance"),
                ("malicious_socket_connect", "malicious"),
                ("resource_infinite_loop", "resource"),
                ("edge_syntax_error", "edge"),
                ("edge_runtime_exception", "edge"),
            ]
        );
    }
}
