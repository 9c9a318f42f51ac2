//! What can fail in VAREK itself. What a guest does is never an error: see [`Outcome`](crate::Outcome).

use std::fmt;
use std::io;
use std::path::PathBuf;

use varek_telemetry::Layer;

/// VAREK failed; nothing was started, or everything that was started is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy contradicts itself or is out of range.
    #[error("the policy has {}", list(problems))]
    Policy {
        /// Every problem.
        problems: Vec<Problem>,
    },
    /// The host lacks what the policy requires.
    #[error(
        "the host lacks what the policy requires:\n  {}",
        joined(missing, "\n  ")
    )]
    Unsupported {
        /// Everything that is missing.
        missing: Vec<Missing>,
    },
    /// The system call policy does not compile.
    #[error("the system call policy cannot be compiled")]
    Syscalls {
        /// Why.
        #[from]
        source: varek_seccomp::CompileError,
    },
    /// A group could not be made, limited or removed.
    #[error(transparent)]
    Group {
        /// Why.
        #[from]
        source: varek_cgroup::Error,
    },
    /// The program is in none of the directories of the policy's search path.
    #[error(
        "program {program:?} was not found in {}; give a path, or add its directory to the policy's search_path",
        paths(searched)
    )]
    ProgramNotFound {
        /// The bare name.
        program: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// The program cannot be started.
    #[error("program {} cannot be started: {reason}", program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Something in the command cannot be passed on.
    #[error("{what} {reason}")]
    Command {
        /// Which part of the command.
        what: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A set-up step in the child failed before the guest's program started.
    #[error("set-up failed at step {step}: {source}{}", remedy(*step, source))]
    Setup {
        /// The step.
        step: SetupStep,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The child died before the guest's program started, without a report.
    #[error("the child died at set-up step {step} ({how})")]
    SetupDied {
        /// The step that it had reached.
        step: SetupStep,
        /// How it ended.
        how: String,
    },
    /// The sandbox runs as many guests as it may.
    #[error("{limit} guests are running, which is the sandbox's bound; wait for one, or queue")]
    Full {
        /// The bound.
        limit: usize,
    },
    /// The sandbox was made before the embedder forked; the copy has no supervisor.
    #[error(
        "this process is a forked copy of the one that made the sandbox, which alone has its guests; make a new sandbox in it"
    )]
    ForkedCopy,
    /// Every uid of the range is taken by a running guest or a leftover.
    #[error("no uid is free in {first}..{}: {reason}", u64::from(*first) + u64::from(*count))]
    NoFreeUid {
        /// First uid of the range.
        first: u32,
        /// How many.
        count: u32,
        /// What stands in the way.
        reason: String,
    },
    /// An operation of the host failed.
    #[error("{operation}{}: {source}{}", at(path.as_ref()), shortage(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: Option<PathBuf>,
        /// The host's answer.
        source: io::Error,
    },
    /// The supervisor has ended, by its own fault; the run is dead.
    #[error("the supervisor has ended: {reason}")]
    SupervisorGone {
        /// What is known.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            operation,
            path: None,
            source: source.into(),
        }
    }

    pub(crate) fn io_at(
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            operation,
            path: Some(path.into()),
            source: source.into(),
        }
    }
}

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The field, with dots.
    pub field: &'static str,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.message)
    }
}

/// One layer that a policy requires and the host lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The layer.
    pub layer: Layer,
    /// What the policy asked.
    pub asked: String,
    /// What the host has.
    pub has: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: asked {}; the host {}; {}",
            self.layer, self.asked, self.has, self.remedy
        )
    }
}

/// A step of the child between its creation and the guest's exec, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum SetupStep {
    /// clone3(2), or clone(2) where the host refuses that.
    Clone = 0,
    /// Placement in the groups.
    Groups = 1,
    /// setns(2) into the namespaces of the run, all but its user namespace, and unshare(2) of the cgroup namespace.
    Namespaces = 2,
    /// A mount namespace, and in it the scratch directory, and `/proc` of the run's pid namespace.
    Mounts = 3,
    /// setsid(2).
    Session = 4,
    /// Signal dispositions and mask.
    Signals = 5,
    /// fchdir(2) and umask(2).
    Directory = 6,
    /// prlimit(2), except RLIMIT_NOFILE.
    Rlimits = 7,
    /// setns(2) into the user namespace of the run.
    UserNamespace = 8,
    /// Capability sets.
    Capabilities = 9,
    /// setgroups(2), setresgid(2), setresuid(2).
    Identity = 10,
    /// PR_SET_PDEATHSIG and the check that the embedder still lives.
    ParentDeath = 11,
    /// PR_SET_NO_NEW_PRIVS.
    NoNewPrivileges = 12,
    /// landlock_restrict_self(2).
    Landlock = 13,
    /// seccomp(2).
    Filter = 14,
    /// close_range(2) with an own descriptor table.
    Descriptors = 15,
    /// dup3(2) of stdin, stdout and stderr.
    Stdio = 16,
    /// RLIMIT_NOFILE.
    OpenFiles = 17,
    /// execve(2) of the guest's program.
    Exec = 18,
}

impl SetupStep {
    /// Every step, in order.
    pub const ALL: [Self; 19] = [
        Self::Clone,
        Self::Groups,
        Self::Namespaces,
        Self::Mounts,
        Self::Session,
        Self::Signals,
        Self::Directory,
        Self::Rlimits,
        Self::UserNamespace,
        Self::Capabilities,
        Self::Identity,
        Self::ParentDeath,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::Filter,
        Self::Descriptors,
        Self::Stdio,
        Self::OpenFiles,
        Self::Exec,
    ];

    pub(crate) fn from_number(number: u32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|n| Self::ALL.get(n))
            .copied()
            .unwrap_or(Self::Clone)
    }
}

impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clone => "clone",
            Self::Groups => "groups",
            Self::Namespaces => "namespaces",
            Self::Mounts => "mounts",
            Self::Session => "setsid",
            Self::Signals => "signals",
            Self::Directory => "working directory",
            Self::Rlimits => "rlimits",
            Self::UserNamespace => "user namespace",
            Self::Capabilities => "capabilities",
            Self::Identity => "identity",
            Self::ParentDeath => "parent death signal",
            Self::NoNewPrivileges => "no_new_privs",
            Self::Landlock => "landlock",
            Self::Filter => "seccomp filter",
            Self::Descriptors => "descriptors",
            Self::Stdio => "stdio",
            Self::OpenFiles => "open files",
            Self::Exec => "exec",
        })
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    joined(items, "; ")
}

fn joined<T: fmt::Display>(items: &[T], between: &str) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(between)
}

fn paths(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(":")
}

fn at(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" {}", path.display()))
        .unwrap_or_default()
}

/// What to do where the embedder has run out of something.
fn shortage(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(24) => {
            "; the embedder has no free descriptor: raise its RLIMIT_NOFILE (a running guest holds about a \
             dozen), or bound the sandbox's concurrency"
        }
        Some(28) => "; the file system is full, or has no room for another file",
        _ => "",
    }
}

/// What to do about the set-up failures that an embedder can do something about.
fn remedy(step: SetupStep, source: &io::Error) -> &'static str {
    match (step, source.raw_os_error()) {
        (SetupStep::Exec, Some(7)) => {
            "; the arguments and the environment together are too long for the kernel: pass the text as a file (Command::file) or on stdin"
        }
        (SetupStep::Exec, Some(8)) => "; the file is no program that this kernel can run",
        (SetupStep::Exec, Some(12)) => "; the memory limit is too small for the program to start",
        (SetupStep::Exec, Some(13)) => {
            "; the guest's uid or the policy's filesystem.execute does not let it start there, or its loader"
        }
        (SetupStep::Exec, Some(2)) => "; the program's interpreter or loader is missing",
        (SetupStep::Clone, Some(11)) => "; the embedder's own process limit is reached",
        (SetupStep::Clone | SetupStep::Groups, Some(13)) => {
            "; the group above both this program's and the guest's must be writable to it (delegated)"
        }
        (SetupStep::Mounts, Some(28)) => {
            "; the sysctl user.max_mnt_namespaces or fs.mount-max is used up: raise it, or leave limits.scratch out"
        }
        (SetupStep::Groups, Some(11)) => "; somebody locks the root of the cgroup2 tree (flock)",
        (SetupStep::Clone | SetupStep::Landlock | SetupStep::Filter, Some(24)) => {
            "; the embedder has no free descriptor: raise its RLIMIT_NOFILE"
        }
        (SetupStep::Directory, Some(_)) => "; the working directory must exist and be a directory",
        _ => "",
    }
}
