//! Why a call is allowed or not, in words.

use std::fmt;

use thiserror::Error;

use crate::resolve::{Entry, Guard, Resolved, Source, Verdict};
use crate::{Arch, Refusal, Reporting, errno, suggest};

/// What a program does with one call, and why. `Display` is one line:
///
/// ```text
/// openat (257): allowed, group files
/// socket (41): denied with EPERM, reported
/// close_range (436): allowed, floor
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    name: String,
    number: Option<u32>,
    ruling: Ruling,
    text: String,
}

/// The kinds of answer that a program gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ruling {
    /// Allowed with any arguments, or with any but a few values that no policy allows.
    Allowed,
    /// Allowed where its arguments meet a condition.
    Conditional,
    /// Allowed once, for the run's own start.
    Permit,
    /// Fails with the policy's errno.
    Denied,
    /// Fails with `ENOSYS`.
    Absent,
    /// Ends the guest.
    Killed,
    /// The architecture does not have the call.
    OtherArchitecture,
}

impl Explanation {
    /// The call.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number, where the architecture has it.
    pub const fn number(&self) -> Option<u32> {
        self.number
    }

    /// What happens to it.
    pub const fn ruling(&self) -> Ruling {
        self.ruling
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{} ({number}): {}", self.name, self.text),
            None => write!(f, "{}: {}", self.name, self.text),
        }
    }
}

/// A name that no architecture has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no system call {name:?}{}", .suggestion.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
pub struct UnknownCall {
    /// The name as written.
    pub name: String,
    /// A known name that is close to it.
    pub suggestion: Option<&'static str>,
}

pub(crate) fn explain(
    resolved: &Resolved,
    reporting: Reporting,
    name: &str,
) -> Result<Explanation, UnknownCall> {
    let Some(number) = resolved.arch.number(name) else {
        let other = Arch::ALL
            .into_iter()
            .find(|arch| arch.number(name).is_some());
        let Some(other) = other else {
            let known = Arch::ALL
                .iter()
                .flat_map(|arch| arch.calls())
                .map(|(_, known)| known);
            return Err(UnknownCall {
                name: name.to_owned(),
                suggestion: suggest::nearest(name, known),
            });
        };
        return Ok(Explanation {
            name: name.to_owned(),
            number: None,
            ruling: Ruling::OtherArchitecture,
            text: format!("not a call of {}, only of {other}", resolved.arch),
        });
    };
    let entry = resolved.entries.get(&number);
    let (ruling, text) = match entry {
        Some(entry) => ruling(entry, resolved, reporting),
        None => refused(resolved, reporting),
    };
    Ok(Explanation {
        name: name.to_owned(),
        number: Some(number),
        ruling,
        text,
    })
}

fn ruling(entry: &Entry, resolved: &Resolved, reporting: Reporting) -> (Ruling, String) {
    let source = source(&entry.source);
    let guard = entry.guard.map(guard).unwrap_or_default();
    match &entry.verdict {
        Verdict::Allow => (Ruling::Allowed, format!("allowed{guard}, {source}")),
        Verdict::When(rules) => {
            let alternatives: Vec<String> = rules
                .iter()
                .map(|rule| {
                    let tests: Vec<String> = rule.iter().map(ToString::to_string).collect();
                    tests.join(" and ")
                })
                .collect();
            let conditions = alternatives.join(", or ");
            (
                Ruling::Conditional,
                format!("allowed where {conditions}{guard}, {source}"),
            )
        }
        Verdict::Permit { kill } => {
            let (_, after) = if *kill {
                killed(reporting)
            } else {
                refused(resolved, reporting)
            };
            (
                Ruling::Permit,
                format!("allowed once with the permit of the run's start, then {after}"),
            )
        }
        Verdict::Absent(reason) => (Ruling::Absent, format!("fails with ENOSYS: {reason}")),
        Verdict::Kill => killed(reporting),
    }
}

fn refused(resolved: &Resolved, reporting: Reporting) -> (Ruling, String) {
    match resolved.refusal {
        Refusal::Kill => killed(reporting),
        Refusal::Errno => {
            let reported = if reporting == Reporting::Notify {
                ", reported"
            } else {
                ""
            };
            let errno = errno::display(resolved.errno);
            (Ruling::Denied, format!("denied with {errno}{reported}"))
        }
    }
}

fn killed(reporting: Reporting) -> (Ruling, String) {
    let text = match reporting {
        Reporting::Notify => "kills the guest, reported",
        Reporting::Errno => "kills the process",
    };
    (Ruling::Killed, text.into())
}

fn guard(guard: Guard) -> String {
    match guard {
        Guard::Bits { index, bits } => format!(" where argument {index} & {bits:#x} is 0x0"),
        Guard::Values { index, values } => {
            let values: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
            format!(" unless argument {index} is {}", values.join(" or "))
        }
    }
}

fn source(source: &Source) -> String {
    let mut parts = Vec::new();
    if source.floor {
        parts.push("floor".to_owned());
    }
    parts.extend(source.groups.iter().map(|group| format!("group {group}")));
    if source.named {
        parts.push("by name".to_owned());
    }
    if source.ruled {
        parts.push("by rule".to_owned());
    }
    parts.join(", ")
}
