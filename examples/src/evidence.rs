//! Reading an outcome for a gate: what must be there, and where it says so.
//!
//! Every function gives the evidence in words where the outcome has it, and what it has instead where it
//! has not. None of them reads [`Outcome::contained`]: an exit code says nothing about confinement.

use std::error::Error;
use std::fmt::Write as _;

use varek_core::{Answer, Cause, LimitHit, Outcome, Resource, Termination, Violation};

/// The evidence in words, or what is there instead.
pub type Judged = Result<String, String>;

/// The first boundary event is a denial of this call with an errno, and the guest got nowhere by it.
///
/// # Errors
///
/// What the first boundary event is instead.
pub fn denied(outcome: &Outcome, call: &str) -> Judged {
    match outcome.violation() {
        Some(Violation::Denied(denial))
            if denial.syscall.as_deref() == Some(call)
                && matches!(denial.answer, Answer::Errno(_)) =>
        {
            let count = outcome.denials.count(call);
            Ok(format!("{} ×{count}", brief(outcome.violation())))
        }
        Some(other) => Err(format!("the first boundary event is another: {other}")),
        None => Err(format!(
            "no boundary event at all; the guest {}",
            outcome.termination
        )),
    }
}

/// The run met no boundary and its first process exited with 0.
///
/// # Errors
///
/// How it ended instead, or which boundary it met.
pub fn clean(outcome: &Outcome) -> Judged {
    exited(outcome, 0)?;
    match outcome.violation() {
        None => Ok("no boundary event".into()),
        Some(violation) => Err(format!("a boundary event: {violation}")),
    }
}

/// The first process exited with this code.
///
/// # Errors
///
/// How it ended instead, with the end of what it wrote to stderr.
pub fn exited(outcome: &Outcome, code: i32) -> Judged {
    if outcome.termination == Termination::Exited(code) {
        return Ok(outcome.termination.to_string());
    }
    let stderr = outcome.stderr.to_text();
    let last = stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    Err(format!(
        "the guest {} (last on stderr: {last})",
        outcome.termination
    ))
}

/// VAREK or the kernel killed the run for this cause.
///
/// # Errors
///
/// How it ended instead.
pub fn killed(outcome: &Outcome, cause: &Cause) -> Judged {
    match &outcome.termination {
        Termination::Killed(found) if found == cause => Ok(outcome.termination.to_string()),
        other => Err(format!("the guest {other}")),
    }
}

/// The run met its own limit of this resource, and a counter proves it.
///
/// # Errors
///
/// Which limits it met instead.
pub fn limit_hit(outcome: &Outcome, resource: Resource) -> Judged {
    let proves = |hit: &&LimitHit| hit.resource == resource && hit.limit.is_some() && hit.count > 0;
    match outcome.limits_hit.iter().find(proves) {
        Some(hit) => Ok(hit.to_string()),
        None => Err(format!(
            "no counter of {resource}; limits met: {}",
            list(&outcome.limits_hit)
        )),
    }
}

/// The wall clock ended the run, and is its first boundary event.
///
/// # Errors
///
/// How it ended instead, or what came first.
pub fn wall_clock(outcome: &Outcome) -> Judged {
    killed(outcome, &Cause::WallClock)?;
    match outcome.violation() {
        Some(violation @ Violation::Killed(Cause::WallClock)) => Ok(violation.to_string()),
        Some(violation @ Violation::Limit(hit)) if hit.resource == Resource::WallClock => {
            Ok(violation.to_string())
        }
        Some(other) => Err(format!("the first boundary event is another: {other}")),
        None => Err("a kill without a boundary event".into()),
    }
}

/// The guest wrote exactly this to stdout, up to white space at both ends.
///
/// # Errors
///
/// What it wrote instead.
pub fn printed(outcome: &Outcome, text: &str) -> Judged {
    let stdout = outcome.stdout.to_text();
    if stdout.trim() == text {
        return Ok(format!("stdout {text:?}"));
    }
    let shown: String = stdout.chars().take(200).collect();
    Err(format!("stdout is {shown:?}, not {text:?}"))
}

/// A boundary event for a table, without registers and counters; empty where there is none.
pub fn brief(violation: Option<&Violation>) -> String {
    match violation {
        Some(Violation::Denied(denial)) => format!("denied {} {}", denial.name(), denial.answer),
        Some(Violation::Limit(hit)) => format!("{} limit met", hit.resource),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// The first boundary event in words; empty where there is none.
pub fn violation(outcome: &Outcome) -> String {
    outcome
        .violation()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// The number of the signal that ended the first process; -1 where none did. A kill by VAREK is SIGKILL.
pub fn signal(outcome: &Outcome) -> i32 {
    match &outcome.termination {
        Termination::Signaled(signal) => signal.0,
        Termination::Killed(_) => varek_core::Signal::KILL.0,
        _ => -1,
    }
}

/// An error with its causes, in one line, each said once.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            let _ = write!(text, ": {more}");
        }
        cause = error.source();
    }
    text
}

fn list(hits: &[LimitHit]) -> String {
    match hits {
        [] => "none".into(),
        hits => hits
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_cause_that_the_message_has_already_is_not_said_twice() {
        #[derive(Debug)]
        struct Outer(&'static str, io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.1)
            }
        }
        assert_eq!(
            chain(&Outer("it broke", io::Error::other("of age"))),
            "it broke: of age"
        );
        assert_eq!(
            chain(&Outer("it broke of age", io::Error::other("of age"))),
            "it broke of age"
        );
    }
}
