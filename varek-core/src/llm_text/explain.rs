//! What the kernel and the supervisor say, in sentences for whoever wrote the program.

use std::fmt;
use std::time::Duration;

use varek_telemetry::{
    Answer, Cause, LimitHit, Resource, Signal, Termination, UnknownReason, Usage,
};

use super::meanings;
use crate::limits::{GIB, KIB, MIB};
use crate::outcome::{DeniedCall, Outcome};

/// A number of things, in words.
pub(super) struct Count(pub(super) usize, pub(super) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        let (what, rest) = what.split_once(' ').unwrap_or((what, ""));
        let plural = match (count, what) {
            (1, _) => "",
            (_, "process") => "es",
            _ => "s",
        };
        write!(f, "{} {what}{plural}", grouped(*count as u64))?;
        if rest.is_empty() {
            Ok(())
        } else {
            write!(f, " {rest}")
        }
    }
}

/// A number with commas.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit of which they are a whole number.
pub(super) fn size(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", grouped(bytes / unit));
        }
    }
    format!("{} bytes", grouped(bytes))
}

/// A time as people say it, rounded.
pub(super) fn time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{} ms", time.as_millis());
    }
    let text = format!("{:.1}", time.as_secs_f64());
    format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
}

/// How the run ended and why, after the program's name.
pub(super) fn ending(outcome: &Outcome) -> String {
    let after = after(&outcome.usage);
    match &outcome.termination {
        Termination::Exited(0) => format!("ended with exit code 0 (success){after}."),
        Termination::Exited(code) => format!("ended with exit code {code}{after}."),
        Termination::Signaled(signal) => {
            format!("was ended by {signal}{}{after}.", meaning(*signal))
        }
        Termination::Killed(cause) => {
            format!("was stopped by the sandbox{after}: {}", why(cause, outcome))
        }
        Termination::Unknown { reason } => {
            let why = match reason {
                UnknownReason::StatusTaken => "its exit status was lost to the program around it",
                _ => "the kernel has not ended it yet",
            };
            format!("ended in an unknown way{after}: {why}.")
        }
        _ => format!("ended{after}: {}.", outcome.termination),
    }
}

fn after(usage: &Usage) -> String {
    if usage.wall_clock.is_zero() {
        String::new()
    } else {
        format!(" after {}", time(usage.wall_clock))
    }
}

fn meaning(signal: Signal) -> &'static str {
    match signal.0 {
        4 => " (an instruction that the processor does not have)",
        6 => " (it aborted itself)",
        7 => " (memory that could not be had when it was touched)",
        8 => " (an arithmetic error, such as a division by zero)",
        9 => " (sent by the program itself or one of its own processes)",
        11 => " (an invalid memory access)",
        13 => " (it wrote to a pipe that nobody reads)",
        24 => " (its CPU time was used up)",
        25 => " (it wrote a file beyond the size that one may have)",
        31 => " (a system call that is not allowed)",
        _ => "",
    }
}

/// The hit that a cause rests on.
fn behind(cause: &Cause) -> Option<Resource> {
    Some(match cause {
        Cause::WallClock | Cause::SetupTimeout { .. } => Resource::WallClock,
        Cause::CpuTime => Resource::CpuTime,
        Cause::OutOfMemory | Cause::HostOutOfMemory => Resource::Memory,
        Cause::OutputLimit => Resource::Output,
        _ => return None,
    })
}

/// Whether the cause of the end says all about this limit.
pub(super) fn is_said(outcome: &Outcome, hit: &LimitHit) -> bool {
    match &outcome.termination {
        Termination::Killed(cause) => behind(cause) == Some(hit.resource),
        _ => false,
    }
}

fn why(cause: &Cause, outcome: &Outcome) -> String {
    let limit = behind(cause).and_then(|resource| {
        let of = |hit: &&LimitHit| hit.resource == resource;
        outcome.limits_hit.iter().find(of).and_then(|hit| hit.limit)
    });
    let micros = |limit: u64| time(Duration::from_micros(limit));
    let limit = match cause {
        Cause::OutOfMemory | Cause::OutputLimit => limit.map(size),
        _ => limit.map(micros),
    };
    let limit = limit
        .map(|limit| format!(" of {limit}"))
        .unwrap_or_default();
    match cause {
        Cause::WallClock => format!(
            "it was still running at its time limit{limit}; do less at a time, and do not wait for what does not come."
        ),
        Cause::CpuTime => {
            format!("it used up its CPU time{limit}; do less, or with a faster method.")
        }
        Cause::OutOfMemory => format!(
            "it needed more memory than its limit{limit}; work on smaller pieces of the data at a time."
        ),
        Cause::HostOutOfMemory => {
            "the machine ran out of memory, within the program's own limit; try again later.".into()
        }
        Cause::OutputLimit => {
            format!("it wrote more output than its limit{limit}; write less, or into a file.")
        }
        Cause::Syscall { name } => format!(
            "it made the system call {}, for which a run is ended at once; do without it.",
            super::one_line(name.as_bytes(), None, 64)
        ),
        Cause::DenialBudget => {
            "it went on making calls that are refused; do what the notes below say instead.".into()
        }
        Cause::SetupTimeout { .. } => format!(
            "it had not started when its time limit{limit} was over, which is not the program's doing; try again."
        ),
        Cause::Cancelled | Cause::Dropped => {
            "whoever asked for it did not want it any more.".into()
        }
        _ => "the sandbox could not go on watching it; try again.".into(),
    }
}

/// A limit that was met, with its numbers, in a sentence.
pub(super) fn limit(hit: &LimitHit) -> String {
    let LimitHit {
        resource,
        limit,
        count,
        ..
    } = hit;
    let micros = |micros: u64| time(Duration::from_micros(micros));
    let bytes = limit
        .map(|limit| format!(" of {}", size(limit)))
        .unwrap_or_default();
    let period = limit
        .map(|limit| format!(" of {}", micros(limit)))
        .unwrap_or_default();
    let number = limit
        .map(|limit| format!(" of {}", grouped(limit)))
        .unwrap_or_default();
    let times = match count {
        1 => "once".to_owned(),
        count => format!("{} times", grouped(*count)),
    };
    match resource {
        Resource::Memory if limit.is_none() => {
            "memory: the machine ran short of it, which is not the program's doing.".into()
        }
        Resource::Memory => format!(
            "memory: the limit{bytes} was reached and a process of the run ended for it; work on smaller pieces of data."
        ),
        Resource::Pids => format!(
            "processes and threads: the limit{number} was reached, and a start refused {times}; use fewer at a time."
        ),
        Resource::CpuShare => format!(
            "CPU share: it was held back for {} in all; it takes longer here than elsewhere.",
            micros(*count)
        ),
        Resource::CpuTime => format!(
            "CPU time: the limit{period} was reached at {}; do less.",
            micros(*count)
        ),
        Resource::WallClock => format!(
            "time: the limit{period} was reached at {}; do less at a time.",
            micros(*count)
        ),
        Resource::Output => {
            format!("output: the limit{bytes} was passed; write less, or into a file.")
        }
        Resource::FileSize => {
            format!("file size: no file may be larger than the limit{bytes}; write smaller files.")
        }
        Resource::Scratch => format!(
            "disk: the working directory was full at its limit{bytes}; remove what is not needed, and write less."
        ),
        Resource::ScratchFiles => format!(
            "disk: the working directory was at its limit{number} files; remove what is not needed, and make fewer."
        ),
        _ => format!("{resource}: the limit was reached."),
    }
}

/// A denied call in one sentence: what was refused, what that means, what to do instead.
pub(super) fn denial(name: &str, call: &DeniedCall) -> String {
    let name = super::one_line(name.as_bytes(), None, 64);
    let times = match call.count {
        1 => String::new(),
        count => format!(" {} times", grouped(count)),
    };
    let meanings::Meaning(what, means, instead) = meanings::of_call(&name, call.first.arguments);
    match call.first.answer {
        Answer::Probe => format!(
            "{what}: {name} was answered{times} as missing, as on an older kernel; programs expect that and go on without."
        ),
        Answer::Kill => {
            format!("{what}: {name} was called, {means}, and the run was ended for it; {instead}.")
        }
        _ => format!("{what}: {name} was refused{times}, since {means}; {instead}."),
    }
}
