//! Seccomp policies for programs that nobody vouches for, compiled to BPF.
//!
//! # Words
//!
//! - A **policy** ([`SyscallPolicy`]) says which system calls a guest may make. It is plain data: names,
//!   groups and rules, the same on every host and architecture, in TOML or JSON if you like.
//! - A **group** ([`Group`]) names calls by purpose. A **rule** ([`Rule`]) allows a call under
//!   **conditions** ([`Condition`]) on its arguments.
//! - The **floor** ([`FLOOR`]) is part of every policy: what starting and ending a guest needs.
//! - A **program** ([`Program`]) is a policy compiled for one [`Arch`]: instructions for seccomp(2). This crate
//!   never installs one.
//! - An **action** ([`Action`]) is what a program answers to a call.
//! - A **permit** ([`Permit`]) is a random number that opens `execve` for the run's own start and for nothing
//!   after it.
//! - **Reporting** ([`Reporting`]) says whether denied calls go to a listener, which then answers as
//!   [`Program::decide`] says.
//!
//! ```
//! use varek_seccomp::{Action, Arch, Group, Permit, Reporting, Rule, SeccompData, SyscallPolicy};
//!
//! let policy = SyscallPolicy::python()
//!     .deny(["symlink", "symlinkat"])
//!     .allow_group(Group::FileWatch)
//!     .allow_when(Rule::on("socket").int(0, 16)); // AF_NETLINK
//!
//! let program = policy.compile(Arch::X86_64, Reporting::Errno)?;
//! let call = |nr, args| SeccompData { nr, arch: Arch::X86_64.audit(), instruction_pointer: 0, args };
//! assert_eq!(program.evaluate(&call(0, [0; 6])), Action::Allow); // read
//! assert_eq!(program.evaluate(&call(41, [16, 0, 0, 0, 0, 0])), Action::Allow); // socket(AF_NETLINK)
//! assert_eq!(program.evaluate(&call(41, [2, 0, 0, 0, 0, 0])), Action::Errno(1)); // socket(AF_INET)
//! assert_eq!(program.explain("openat")?.to_string(), "openat (257): allowed, group files");
//!
//! // One run: `execve` passes with the permit in its three unused registers, and never again.
//! let permit = Permit::random()?;
//! let [a, b, c] = permit.words();
//! let filter = program.with_permit(&permit);
//! let start = call(59, [0, 0, 0, a, b, c]);
//! assert_eq!(varek_seccomp::interpret(&filter, &start)?, Action::Allow);
//! assert_eq!(varek_seccomp::interpret(&filter, &call(59, [0; 6]))?, Action::Errno(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a program guarantees
//!
//! 1. The architecture is checked first. Calls through x32, i386 or 32-bit Arm never take effect.
//! 2. Numbers that this crate has no name for, newer than Linux 6.18 or in a gap, fail with `ENOSYS` (by the
//!    listener's answer or by the filter): libc tests for new calls by that errno and falls back.
//! 3. `execve` passes with the permit, or where the policy allows it; `execveat` only where the policy allows
//!    it.
//! 4. Everything else is denied but the floor and what the policy names; see [`SyscallPolicy`] for the calls
//!    and flags that no policy allows.
//!
//! # What a filter cannot see
//!
//! A filter compares registers. It cannot read memory, so it knows no paths, no socket addresses and no
//! `struct clone_args`; it does not know which file a descriptor is, and it does not see what a call does
//! later. On x86_64 recent kernels (seen on 6.18) pass `uretprobe` and `uprobe` by every filter; they do nothing for a
//! caller outside the kernel's own trampoline but kill it with `SIGILL`. Paths are Landlock's part, other processes are bounded by identity, and consumption by cgroups.
//!
//! # How it is compiled
//!
//! libseccomp compiles which call has which answer. What it exports is read as a function of the call's number
//! and written again as a search among ranges of numbers, which takes a third of the instructions; the checks
//! before it and the tests of arguments behind it are made here, with an own table of numbers, so that a policy
//! means the same with an old libseccomp. Every program is then run on an interpreter and compared with the
//! policy, number by number, before [`SyscallPolicy::compile`] returns it. Calls that are allowed with any
//! arguments pass through comparisons of the number alone, which is what the kernel's allow bitmap (Linux 5.11)
//! needs to skip the filter for them. A preset has at most some 200 instructions, and the kernel loads
//! it in half the time that it takes for libseccomp's own program.
//!
//! Sources: seccomp(2), seccomp_unotify(2), bpf(4)'s instruction set as in the kernel's
//! `Documentation/networking/filter.rst`, and `kernel/seccomp.c`.
//!
//! # Platforms
//!
//! Programs compile on Linux, for both architectures on either. Elsewhere the crate builds, and compiling is
//! [`CompileError::UnsupportedTarget`]. libseccomp 2.5.0 or later must be installed to link; its version
//! does not change the program.

mod arch;
mod assemble;
mod block;
mod bpf;
mod disassemble;
mod emit;
mod errno;
mod error;
mod explain;
#[cfg(target_os = "linux")]
mod export;
mod group;
mod permit;
mod policy;
mod presets;
mod program;
mod ranges;
mod resolve;
mod rule;
mod shared;
mod suggest;
mod table;
mod tcp;

pub use arch::{Arch, describe};
pub use bpf::{Action, Fault, Instruction, LONGEST, SeccompData, interpret};
pub use error::{CompileError, Place, Problem};
pub use explain::{Explanation, Ruling, UnknownCall};
pub use group::{Group, UnknownGroup};
pub use permit::Permit;
pub use policy::{Checked, FLOOR, Refusal, Reporting, SyscallPolicy};
pub use program::{Decision, Program};
pub use rule::{Condition, Op, Rule, Width};
pub use tcp::TcpRole;

/// The examples of the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
