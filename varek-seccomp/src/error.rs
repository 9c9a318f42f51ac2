//! What can be wrong with a policy, and why compiling fails.

use thiserror::Error;

use crate::Arch;

/// The part of a policy that names a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The list of allowed calls.
    Calls,
    /// The rules.
    Rules,
    /// The list of calls that are taken out of groups.
    Deny,
    /// The kill list.
    Kill,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Calls => "calls",
            Self::Rules => "rules",
            Self::Deny => "deny",
            Self::Kill => "kill",
        })
    }
}

/// One thing that is wrong with a policy. [`SyscallPolicy::check`](crate::SyscallPolicy::check) reports all
/// of them at once.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// No architecture has a call of this name.
    #[error("{place} names the system call {name:?}, which does not exist{}", hint(*suggestion))]
    UnknownCall {
        /// The name as written.
        name: String,
        /// Where it is written.
        place: Place,
        /// A known name that is close to it.
        suggestion: Option<&'static str>,
    },
    /// A call is both allowed and on the kill list.
    #[error(
        "{name} is both allowed and on the kill list; spare it, or deny it to leave it to the kill list"
    )]
    AllowedAndKilled {
        /// The call.
        name: String,
    },
    /// A call of the floor is conditioned, denied or killed.
    #[error(
        "{place} names {name}, which is in the floor: the guest cannot start without it, so it stays allowed; \
         take it out of {place}"
    )]
    Floor {
        /// The call.
        name: String,
        /// Where it is written.
        place: Place,
    },
    /// A call that no policy can allow or kill.
    #[error(
        "{place} names {name}, which always fails with ENOSYS: {reason}; take it out of {place}"
    )]
    AlwaysAbsent {
        /// The call.
        name: String,
        /// Where it is written.
        place: Place,
        /// Why.
        reason: &'static str,
    },
    /// A rule without conditions.
    #[error(
        "a rule on {call} has no condition; to allow the call with any arguments, name it in calls"
    )]
    EmptyRule {
        /// The call.
        call: String,
    },
    /// A condition that cannot be meant.
    #[error("a rule on {call} has a meaningless condition on argument {index}: {reason}")]
    Condition {
        /// The call.
        call: String,
        /// The argument.
        index: u8,
        /// What is wrong.
        reason: &'static str,
    },
    /// Two conditions of one rule that exclude each other.
    #[error(
        "a rule on {call} can never match: its conditions on argument {index} exclude each other"
    )]
    Contradiction {
        /// The call.
        call: String,
        /// The argument.
        index: u8,
    },
    /// A rule on `execve`.
    #[error(
        "a rule on execve would compare addresses, which say nothing about the program; allow execve in \
         calls, or leave it to the permit of the run's own start"
    )]
    ExecRule,
    /// An errno outside 1 to 4095.
    #[error("refused calls cannot fail with errno {errno}: the kernel takes 1 to 4095")]
    Errno {
        /// The number as written.
        errno: i32,
    },
}

fn hint(suggestion: Option<&'static str>) -> String {
    suggestion
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default()
}

/// Why a policy did not become a program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The policy itself is wrong.
    #[error("the system call policy has {} problem(s): {}", .problems.len(), list(.problems))]
    Policy {
        /// Every problem.
        problems: Vec<Problem>,
    },
    /// The program was built for an operating system without seccomp.
    #[error("seccomp programs compile on Linux only, and this build is for {os}; run it on Linux")]
    UnsupportedTarget {
        /// The operating system of the build.
        os: &'static str,
    },
    /// libseccomp refused an operation.
    #[error("libseccomp could not {operation} for {arch}: {message}; 2.5.0 or later is needed")]
    Libseccomp {
        /// What was asked of it.
        operation: &'static str,
        /// The architecture.
        arch: Arch,
        /// Its answer.
        message: String,
    },
    /// The exported program could not be read back.
    #[error("cannot {operation} the memory file that libseccomp exports to")]
    Export {
        /// The operation.
        operation: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The exported program is not of the form that is completed and verified here.
    #[error(
        "libseccomp exported a program of unknown form: {reason} at instruction {at}; nothing was compiled"
    )]
    UnknownForm {
        /// What was found.
        reason: &'static str,
        /// Position in the exported program.
        at: usize,
    },
    /// The finished program does not do what the policy says; a fault in libseccomp or in this crate.
    #[error(
        "the program compiled for {arch} answers call number {number} other than the policy says; please \
         report this with the policy"
    )]
    Miscompiled {
        /// The architecture.
        arch: Arch,
        /// The call.
        number: u32,
    },
    /// The program is longer than the kernel takes.
    #[error(
        "the program has {length} instructions and the kernel takes {longest}; use fewer rules"
    )]
    TooLong {
        /// Its length.
        length: usize,
        /// The kernel's limit.
        longest: usize,
    },
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
