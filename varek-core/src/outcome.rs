//! Everything that is known about a run when it is over.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use varek_telemetry::{
    Answer, Arguments, Cause, Cleanup, Denial, Enforcement, EventKind, LimitHit, Resource, RunId,
    Termination, Usage,
};

use crate::capture::Captured;
use crate::files::{self, Collected, FileError};
use crate::llm_text;

/// Everything that is known about a run when it is over: a fold over what the supervisor observed, taken
/// before any queue or sampling, so that it never disagrees with the telemetry.
///
/// `Display` renders it in one line for people; serde gives stable JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The run's name.
    pub run: RunId,
    /// How the first process ended, and why.
    pub termination: Termination,
    /// The first boundary event; see [`Outcome::violation`].
    #[serde(rename = "violation")]
    first_violation: Option<Violation>,
    /// What the guest wrote to descriptor 1, where it was captured.
    pub stdout: Captured,
    /// What the guest wrote to descriptor 2, where it was captured.
    pub stderr: Captured,
    /// What the tree used.
    pub usage: Usage,
    /// Denied system calls, those answered as probes included.
    pub denials: Denials,
    /// Limits that were met, with their evidence.
    pub limits_hit: Vec<LimitHit>,
    /// Processes that the first one had left behind, and that were killed.
    pub descendants_killed: usize,
    /// What was in force, layer by layer.
    pub enforcement: Enforcement,
    /// Whether everything that the run made is gone.
    pub cleanup: Cleanup,
    /// What VAREK could not see though it should have.
    pub faults: Vec<String>,
    /// What became of the files that the command names.
    #[serde(
        skip_serializing_if = "Collected::is_empty",
        serialize_with = "files_as_json"
    )]
    pub(crate) files: Arc<Collected>,
    /// The program and its arguments, as in the first event.
    #[serde(skip)]
    pub(crate) ran: Option<(String, Arguments)>,
    /// Where the scratch directory was.
    #[serde(skip)]
    pub(crate) scratch: Option<PathBuf>,
}

impl Outcome {
    pub(crate) fn new(run: RunId) -> Self {
        Self {
            run,
            termination: Termination::Unknown {
                reason: varek_telemetry::UnknownReason::StillRunning,
            },
            first_violation: None,
            stdout: Captured::default(),
            stderr: Captured::default(),
            usage: Usage::default(),
            denials: Denials::default(),
            limits_hit: Vec::new(),
            descendants_killed: 0,
            enforcement: Enforcement::default(),
            cleanup: Cleanup::Complete,
            faults: Vec::new(),
            files: Arc::default(),
            ran: None,
            scratch: None,
        }
    }

    /// Takes one event into the account.
    pub(crate) fn apply(&mut self, event: &EventKind) {
        if self.first_violation.is_none() {
            self.first_violation = Violation::of(event);
        }
        match event {
            EventKind::RunStarted {
                program,
                arguments,
                enforcement,
                ..
            } => {
                self.enforcement = enforcement.clone();
                self.ran = Some((program.clone(), arguments.clone()));
            }
            EventKind::SyscallDenied(denial) => self.denials.add(denial),
            EventKind::LimitHit(hit) => self.limits_hit.push(hit.clone()),
            EventKind::DescendantsKilled { count } => self.descendants_killed = *count,
            EventKind::MonitorFault { fault } => self.faults.push(fault.clone()),
            EventKind::RunFinished {
                termination,
                usage,
                cleanup,
            } => {
                self.termination = termination.clone();
                self.usage = *usage;
                self.cleanup = cleanup.clone();
            }
            _ => {}
        }
    }

    /// Whether the first process exited with 0.
    pub fn success(&self) -> bool {
        self.termination == Termination::Exited(0)
    }

    /// The exit code, where the first process exited.
    pub fn exit_code(&self) -> Option<i32> {
        match self.termination {
            Termination::Exited(code) => Some(code),
            _ => None,
        }
    }

    /// Whether the wall clock limit ended the run, in its set-up or later.
    pub fn timed_out(&self) -> bool {
        matches!(
            self.termination,
            Termination::Killed(Cause::WallClock | Cause::SetupTimeout { .. })
        )
    }

    /// The first boundary event of the run, with its evidence: a denied call, a limit that was met, a
    /// kill. This is what a gate should read.
    ///
    /// `None` means that no call was denied, no limit reached and nothing killed, whatever the exit code. What Landlock
    /// and the kernel's own permissions refuse is not reported to anybody, and is not in here; nor is a denied call where
    /// the host cannot report any, which [`Outcome::enforcement`] says, and which a policy that requires
    /// [`Layer::DenialReports`](varek_telemetry::Layer::DenialReports) rules out. Calls answered with ENOSYS
    /// as probes ([`Answer::Probe`]), output that was truncated as the policy says, a CPU share that
    /// held the guest back, a limit above the run, a set-up that took too long, a fault of the supervisor, memory that the host lacked
    /// and a kill that the embedder asked for are no violations.
    pub fn violation(&self) -> Option<&Violation> {
        self.first_violation.as_ref()
    }

    /// What this file of the scratch directory held when the tree was dead, where
    /// [`Command::collect`](crate::Command::collect) named it.
    ///
    /// # Errors
    ///
    /// Any [`FileError`]: it was not there, was something else, was too large, or was not asked for.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<&[u8], FileError> {
        let path = files::plain(path.as_ref()).ok_or(FileError::Path)?;
        match self.files.get(&path) {
            Some(Ok(contents)) => Ok(contents),
            Some(Err(error)) => Err(error.clone()),
            None => Err(FileError::NotAsked),
        }
    }

    /// Every file that [`Command::collect`](crate::Command::collect) named, by its path beneath the scratch directory.
    pub fn files(&self) -> impl Iterator<Item = (&Path, Result<&[u8], &FileError>)> {
        let each = |(path, file): (_, _)| -> (&Path, Result<&[u8], &FileError>) {
            let (path, file): (&PathBuf, &Result<Vec<u8>, FileError>) = (path, file);
            (path, file.as_deref())
        };
        self.files.iter().map(each)
    }

    /// What a language model needs to know of the run, as text of at most `budget` bytes of UTF-8: what ran, how it ended and why; each
    /// denied call in a sentence, with what to do instead; limits that were met, with their numbers; and stdout and stderr, cut in
    /// the middle where they do not fit, with the cut marked. Where the budget is too small for all, what comes last in this order goes first;
    /// the streams have at least half of what the first line leaves.
    ///
    /// Every line of the guest's begins with `| ` and none of the library's does, so that nothing a guest writes can be taken for what
    /// VAREK says. Control characters, terminal escapes, marks that turn the direction of text and characters that
    /// cannot be seen are escaped (`\x1b`, `\u{202e}`; those that belong to an emoji or to the letters of a script stay, one at a
    /// time), bytes that are not UTF-8 replaced by U+FFFD. What the guest says is
    /// still the guest's: it may ask the model for anything.
    ///
    /// The scratch directory is `.` in it, also where the guest names it. No other path of the host is in the library's own words; the
    /// guest's may name what it can see. Arguments of the program are shown as far as
    /// [`Policy::record_arguments`](crate::Policy::record_arguments) says.
    ///
    /// ```no_run
    /// # use varek_core::{Command, Policy, Sandbox};
    /// # fn main() -> Result<(), varek_core::Error> {
    /// let outcome = Sandbox::new(Policy::python())?.run(Command::python("import os; os.system('ls')"))?;
    /// print!("{}", outcome.to_llm_text(4000));
    /// // python3 (with 1 argument) ended with exit code 0 (success) after 14 ms.
    /// // - no other programs: execve was refused, since nothing but the given program runs here; do the work in …
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_llm_text(&self, budget: usize) -> String {
        llm_text::render(self, budget)
    }

    /// The column of that name of the Python package: an exit code other than 0, or a signal, or a
    /// violation. A `SyntaxError` makes it true, so it says nothing about confinement: read
    /// [`Outcome::violation`] instead.
    pub fn contained(&self) -> bool {
        !self.success() || self.first_violation.is_some()
    }
}

/// By path: `text` or, of what is not UTF-8, `base64`; or `error`.
fn files_as_json<S: Serializer>(files: &Collected, serializer: S) -> Result<S::Ok, S::Error> {
    let json = |file: &Result<Vec<u8>, FileError>| match file {
        Ok(contents) => match std::str::from_utf8(contents) {
            Ok(text) => ("text", text.to_owned()),
            Err(_) => ("base64", STANDARD.encode(contents)),
        },
        Err(error) => ("error", error.to_string()),
    };
    serializer.collect_map(files.iter().map(|(path, file)| {
        let file: BTreeMap<_, _> = [json(file)].into();
        (path.to_string_lossy(), file)
    }))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = &self.usage;
        write!(f, "{} after {}", self.termination, Millis(usage.wall_clock))?;
        write!(f, ", cpu {}", Millis(usage.cpu_user + usage.cpu_system))?;
        if let Some(peak) = usage.memory_peak {
            write!(f, ", memory {} KiB", peak / 1024)?;
        }
        if self.denials.total() > 0 {
            write!(f, "; denied {}", self.denials)?;
        }
        for hit in &self.limits_hit {
            write!(f, "; {hit}")?;
        }
        if self.descendants_killed > 0 {
            write!(
                f,
                "; {} left-over processes killed",
                self.descendants_killed
            )?;
        }
        for (name, captured) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if captured.truncated() {
                write!(f, "; {name} truncated ({} bytes in all)", captured.total)?;
            }
        }
        for (layer, _) in self.enforcement.missing() {
            write!(f, "; {layer} NOT ENFORCED")?;
        }
        if self.cleanup != Cleanup::Complete {
            write!(f, "; clean-up {}", self.cleanup)?;
        }
        for fault in &self.faults {
            write!(f, "; fault: {fault}")?;
        }
        Ok(())
    }
}

struct Millis(std::time::Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
    }
}

/// A boundary that a guest met, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Violation {
    /// A denied system call.
    Denied(Denial),
    /// A limit.
    Limit(LimitHit),
    /// A kill.
    Killed(Cause),
}

impl Violation {
    fn of(event: &EventKind) -> Option<Self> {
        match event {
            EventKind::SyscallDenied(denial) if denial.answer != Answer::Probe => {
                Some(Self::Denied(denial.clone()))
            }
            // A limit above the run is the host's matter, and a share that holds back is no boundary.
            EventKind::LimitHit(hit)
                if hit.limit.is_some() && hit.resource != Resource::CpuShare =>
            {
                Some(Self::Limit(hit.clone()))
            }
            EventKind::KillIssued { cause } => match cause {
                Cause::Cancelled
                | Cause::Dropped
                | Cause::SupervisorFault
                | Cause::SetupTimeout { .. }
                | Cause::HostOutOfMemory => None,
                cause => Some(Self::Killed(cause.clone())),
            },
            _ => None,
        }
    }

    /// The denied call's name, where it is a denied call.
    pub fn syscall(&self) -> Option<&str> {
        match self {
            Self::Denied(denial) => denial.syscall.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => write!(f, "denied {denial}"),
            Self::Limit(hit) => write!(f, "limit met: {hit}"),
            Self::Killed(cause) => write!(f, "killed: {cause}"),
        }
    }
}

/// Denied system calls of a run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Denials {
    calls: BTreeMap<String, DeniedCall>,
}

impl Denials {
    fn add(&mut self, denial: &Denial) {
        self.calls
            .entry(denial.name())
            .and_modify(|call| call.count += denial.count)
            .or_insert_with(|| DeniedCall {
                count: denial.count,
                first: Denial {
                    count: 1,
                    ..denial.clone()
                },
            });
    }

    /// How many denied calls were made in all.
    pub fn total(&self) -> u64 {
        self.calls.values().map(|call| call.count).sum()
    }

    /// How often the call of this name was denied.
    pub fn count(&self, name: &str) -> u64 {
        self.calls.get(name).map_or(0, |call| call.count)
    }

    /// Every denied call, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DeniedCall)> {
        self.calls.iter().map(|(name, call)| (name.as_str(), call))
    }

    /// Whether no call was denied.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl fmt::Display for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, call)) in self.calls.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{name} ×{}", call.count)?;
        }
        Ok(())
    }
}

/// One denied call of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeniedCall {
    /// How often.
    pub count: u64,
    /// The first time.
    pub first: Denial,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(name: &str, answer: Answer) -> EventKind {
        EventKind::SyscallDenied(Denial {
            syscall: Some(name.into()),
            number: 1,
            abi: "x86_64".into(),
            arguments: [0; 6],
            thread: 7,
            answer,
            count: 1,
            unverified: Vec::new(),
        })
    }

    fn finished(termination: Termination) -> EventKind {
        EventKind::RunFinished {
            termination,
            usage: Usage::default(),
            cleanup: Cleanup::Complete,
        }
    }

    #[test]
    fn a_swallowed_denial_is_a_violation_even_with_exit_0() {
        let mut outcome = Outcome::new(RunId::from_bits(1));
        outcome.apply(&denial("execve", Answer::Errno(1)));
        outcome.apply(&denial("execve", Answer::Errno(1)));
        outcome.apply(&finished(Termination::Exited(0)));
        assert!(outcome.success());
        assert_eq!(
            outcome.violation().and_then(Violation::syscall),
            Some("execve")
        );
        assert_eq!(outcome.denials.count("execve"), 2);
    }

    #[test]
    fn an_exception_is_contained_in_the_old_sense_and_no_violation() {
        let mut outcome = Outcome::new(RunId::from_bits(1));
        outcome.apply(&finished(Termination::Exited(1)));
        assert!(outcome.contained());
        assert_eq!(outcome.violation(), None);
    }

    #[test]
    fn probes_and_the_embedder_s_own_kills_are_no_violations() {
        let mut outcome = Outcome::new(RunId::from_bits(1));
        outcome.apply(&denial("io_uring_setup", Answer::Probe));
        outcome.apply(&EventKind::KillIssued {
            cause: Cause::Cancelled,
        });
        assert_eq!(outcome.violation(), None);
        outcome.apply(&EventKind::KillIssued {
            cause: Cause::WallClock,
        });
        assert_eq!(
            outcome.violation(),
            Some(&Violation::Killed(Cause::WallClock))
        );
    }
}
