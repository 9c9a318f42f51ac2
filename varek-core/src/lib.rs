//! Runs code that nobody vouches for (LLM-written Python, an eval payload, an agent's tool call) in a child
//! process that the Linux kernel bounds, and returns a typed outcome with the kernel's evidence.
//!
//! ```no_run
//! use varek_core::{Command, Policy, Sandbox};
//!
//! # fn main() -> Result<(), varek_core::Error> {
//! let sandbox = Sandbox::new(Policy::python())?;
//! let outcome = sandbox.run(Command::python("import os; print(os.system('id'))"))?;
//! println!("{outcome}");
//! assert_eq!(outcome.violation().and_then(|violation| violation.syscall()), Some("execve"));
//! # Ok(())
//! # }
//! ```
//!
//! # How the types relate
//!
//! A [`Policy`] says what a guest may do, and is pure data. [`Host`] holds what the kernel of this machine
//! offers. A [`Sandbox`] is a policy made ready for a host, once. A [`Command`] says what to run now.
//! [`Sandbox::run`] gives an [`Outcome`]; [`Sandbox::spawn`] gives a [`Child`]. [`Event`]s reach a [`Sink`]
//! while it runs.
//!
//! An [`Error`] means that VAREK failed. What the guest did (a timeout, an OOM kill, a denied call, an
//! exception) is never an error but part of the outcome.
//!
//! # What bounds a guest
//!
//! | layer | mechanism | needs |
//! |---|---|---|
//! | system calls | seccomp-bpf, default deny, exec once | Linux 3.17; reports of denied calls 5.19 |
//! | memory, pids, CPU share | cgroups, unified or hybrid | a cgroup2 mount, `cgroup.kill` (5.14) |
//! | files | Landlock | Linux 5.13 |
//! | network | no sockets but local pairs, or TCP alone: seccomp-bpf; TCP ports: Landlock | ports Linux 6.7; see [`Network`] |
//! | identity | as root a uid and gid of its own, no groups; otherwise the embedder's uid, behind Landlock and with calls refused; no capabilities | any; see [`Identity`] |
//! | each process | setrlimit(2) | any |
//! | wall clock, CPU time, output | the supervisor | any |
//!
//! Nothing weakens in silence: a layer that the policy requires and the host lacks is
//! [`Error::Unsupported`], unless the policy lists it in `best_effort`; then [`Outcome::enforcement`] says
//! that it is missing. [`Host::probe`] says what this host offers and what to do about the rest; an embedder that is
//! not root needs a delegated group (`systemd-run --user --scope -p Delegate=yes`, or a unit with `Delegate=yes`).
//!
//! # What a policy cannot take away
//!
//! The floor, the calls between the filter and the guest's first instruction, works under every policy: see
//! [`FLOOR`].

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "varek-core bounds guests with the Linux kernel and supports Linux on x86_64 and aarch64 only"
);

mod calls;
mod capture;
mod cell;
mod child;
mod command;
mod creation;
mod error;
mod files;
mod filesystem;
mod guardian;
mod handle;
mod host;
mod identity;
mod kits;
mod landlock;
mod layers;
mod limits;
mod llm_text;
mod mounts;
mod namespaces;
mod network;
mod outcome;
mod pipe;
mod places;
mod plan;
mod policy;
mod presets;
mod programs;
mod reaper;
mod removers;
mod sandbox;
mod scratch;
mod spawn;
mod strays;
mod streams;
mod strict;
mod supervisor;
#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
mod sys;
mod watchdog;

/// The child sees one type of the filter crate; the crate that proves it to be free of allocation has its own.
mod varek_filter {
    pub(crate) use varek_seccomp::Instruction;
}

pub use capture::Captured;
pub use command::{Command, Input, Output};
pub use error::{Error, Missing, Problem, SetupStep};
pub use files::{FileEntry, FileError, FileKind, Files};
pub use filesystem::Filesystem;
pub use handle::Child;
pub use host::{
    Fact, GroupAccess, GroupSupport, Host, IdRange, LandlockSupport, MountSupport,
    NamespaceRefusal, UserNamespaces,
};
pub use identity::{Identity, UidRange};
pub use limits::{CpuShare, DenialBudget, GIB, KIB, Limits, MIB, Overflow, ParseCpuShareError};
pub use namespaces::Namespace;
pub use network::Network;
pub use outcome::{Denials, DeniedCall, Outcome, Violation};
pub use pipe::{ChildInput, ChildOutput};
pub use places::WhenFull;
pub use policy::Policy;
pub use sandbox::{Sandbox, SandboxBuilder};
pub use varek_seccomp::{FLOOR, Group as SyscallGroup, Rule, SyscallPolicy};
pub use varek_telemetry::{
    Answer, ArgumentDetail, Arguments, Cause, Cleanup, Denial, Enforcement, Event, EventKind,
    Flushed, Layer, LayerStatus, LimitHit, Resource, RunId, Signal, Sink, Stream, Termination,
    TraceParent, UnknownReason, Usage,
};

/// Sinks, the written form of events, and everything else of the crate that the events are from.
pub use varek_telemetry as telemetry;

/// The examples of the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
