//! The policy: which system calls a guest may make.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{CompileError, Problem};
use crate::program::Program;
use crate::resolve::{self, Resolved};
use crate::{Arch, Group, Rule, errno};

/// Calls that are part of every program, since the guest cannot be started or end without them.
///
/// Between the moment the filter is in force and the guest's first instruction nobody answers a
/// notification, so every call that the start makes there, also when it fails, is allowed by every policy.
/// No policy can deny, condition or kill one of them. `prlimit64` is allowed for the caller itself (a pid
/// argument of 0) unless a policy names it plainly.
pub const FLOOR: [&str; 6] = [
    "close_range",
    "dup3",
    "prlimit64",
    "rt_sigprocmask",
    "exit",
    "exit_group",
];

/// What a call gets that the policy does not allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// It fails with the policy's errno.
    #[default]
    Errno,
    /// The guest is killed, as for the kill list.
    Kill,
}

/// Whether denied calls are reported to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reporting {
    /// Every denied call becomes a notification (`SECCOMP_RET_USER_NOTIF`, Linux 5.0), which a supervisor
    /// answers as [`Program::decide`] says. Use it with `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (5.19):
    /// without the flag every signal restarts the call and its notification.
    Notify,
    /// The filter answers by itself with an errno, or kills the process. Nothing is reported.
    Errno,
}

/// Which system calls a guest may make; a value, with the same meaning on every host.
///
/// Everything is denied but what is named: by [`Group`], by name, or by [`Rule`] under conditions. The
/// default policy allows the [`FLOOR`] only. Precedence, strongest first: floor, kill list, `deny`, then
/// what is allowed. Whatever a policy says,
///
/// - `clone3` fails with `ENOSYS`, since its flags are behind a pointer where no filter can look; libc then
///   uses `clone`,
/// - `clone` is allowed only without namespace flags, `CLONE_PARENT` and `CLONE_PTRACE`
///   (flags & 0x7e02_a000 is 0),
/// - `ioctl` is never allowed with `TIOCSTI` or `TIOCLINUX`, which type into a terminal,
/// - the three io_uring calls fail with `ENOSYS`: a ring makes calls that no filter sees,
/// - `mbind`, `set_mempolicy` and `set_mempolicy_home_node` fail with `ENOSYS`, as where the kernel knows no nodes:
///   placement of shared memory is kept in kernel memory that no limit counts,
/// - calls through another ABI (x32, i386, 32-bit Arm) are on the kill list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyscallPolicy {
    pub(crate) default: Refusal,
    #[serde(with = "errno")]
    pub(crate) errno: i32,
    pub(crate) groups: BTreeSet<Group>,
    pub(crate) calls: BTreeSet<String>,
    pub(crate) deny: BTreeSet<String>,
    pub(crate) kill: BTreeSet<String>,
    pub(crate) rules: Vec<Rule>,
}

impl Default for SyscallPolicy {
    fn default() -> Self {
        Self {
            default: Refusal::Errno,
            errno: errno::EPERM,
            groups: BTreeSet::new(),
            calls: BTreeSet::new(),
            deny: BTreeSet::new(),
            kill: BTreeSet::new(),
            rules: Vec::new(),
        }
    }
}

impl SyscallPolicy {
    /// A policy that allows the [`FLOOR`] only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows these calls with any arguments (but see the type's list of what no policy allows).
    #[must_use]
    pub fn allow(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.calls.extend(owned(names));
        self
    }

    /// Allows the calls of a group.
    #[must_use]
    pub fn allow_group(mut self, group: Group) -> Self {
        self.groups.insert(group);
        self
    }

    /// Allows a call under conditions. Several rules on one call are alternatives; a call that is allowed
    /// plainly as well is allowed plainly.
    #[must_use]
    pub fn allow_when(mut self, rule: Rule) -> Self {
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
        self
    }

    /// Denies these calls, whatever group, name or rule allows them, before or after.
    #[must_use]
    pub fn deny(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.deny.extend(owned(names));
        self
    }

    /// Kills the guest when it makes one of these calls.
    #[must_use]
    pub fn kill(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.kill.extend(owned(names));
        self
    }

    /// Takes these calls off the kill list: they are then refused like any other, or can be allowed.
    #[must_use]
    pub fn spare(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for name in names {
            self.kill.remove(name.as_ref());
        }
        self
    }

    /// Refused calls fail with this errno, from 1 to 4095. The default is `EPERM`.
    ///
    /// Calls that the kernel does not have fail with `ENOSYS` all the same, so that libc falls back.
    #[must_use]
    pub fn errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    /// What a call gets that the policy does not allow.
    #[must_use]
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.default = refusal;
        self
    }

    /// Whether the policy allows this call, with any arguments or with some.
    ///
    /// True for the floor. False for `execve` where only a [`Permit`](crate::Permit) opens it.
    pub fn allows(&self, name: &str) -> bool {
        if FLOOR.contains(&name) {
            return true;
        }
        let named = self.calls.contains(name)
            || self.rules.iter().any(|rule| rule.call() == name)
            || self.groups.iter().any(|group| {
                group.calls().contains(&name)
                    || group.rules().iter().any(|rule| rule.call() == name)
            });
        named && !self.deny.contains(name) && resolve::always_absent(name).is_none()
    }

    /// The errno of refused calls.
    pub const fn refusal_errno(&self) -> i32 {
        self.errno
    }

    /// What a call gets that the policy does not allow.
    pub const fn unnamed(&self) -> Refusal {
        self.default
    }

    /// The allowed groups.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        self.groups.iter().copied()
    }

    /// The calls that are allowed by name.
    pub fn calls(&self) -> impl Iterator<Item = &str> {
        self.calls.iter().map(String::as_str)
    }

    /// The policy's own rules, without those of its groups.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The calls that are denied whatever allows them.
    pub fn denied(&self) -> impl Iterator<Item = &str> {
        self.deny.iter().map(String::as_str)
    }

    /// The kill list.
    pub fn killed(&self) -> impl Iterator<Item = &str> {
        self.kill.iter().map(String::as_str)
    }

    /// Checks the policy for an architecture, without compiling it.
    ///
    /// # Errors
    ///
    /// Every [`Problem`], not only the first.
    pub fn check(&self, arch: Arch) -> Result<Checked, Vec<Problem>> {
        let Resolved { skipped, .. } = Resolved::new(self, arch)?;
        Ok(Checked { skipped })
    }

    /// Compiles the policy. Pure but for libseccomp, whose program is read through a memory file: nothing
    /// of the calling process changes, and the result is the same on every host.
    ///
    /// # Errors
    ///
    /// [`CompileError`]; the finished program is compared with the policy for every call number, so a fault
    /// in libseccomp is an error, not a wider filter.
    pub fn compile(&self, arch: Arch, reporting: Reporting) -> Result<Program, CompileError> {
        let resolved =
            Resolved::new(self, arch).map_err(|problems| CompileError::Policy { problems })?;
        Program::new(resolved, reporting)
    }
}

/// What [`SyscallPolicy::check`] found in a policy without problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    skipped: Vec<String>,
}

impl Checked {
    /// Names that another architecture has and this one lacks, such as `open` on aarch64. They have no
    /// effect there.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }
}

fn owned(names: impl IntoIterator<Item = impl AsRef<str>>) -> impl Iterator<Item = String> {
    names.into_iter().map(|name| name.as_ref().to_owned())
}
