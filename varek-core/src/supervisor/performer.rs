//! Denied calls that VAREK makes in the guest's place, where the guest has the embedder's uid.
//!
//! The filter of such a guest refuses more than its policy does, since it cannot tell what a call reaches
//! ([`varek_seccomp::SyscallPolicy::sharing_uid`]). What the policy itself allows and stays within the run is performed:
//! signals (`signals.rs`) and changes of files beneath scratch (`attributes.rs`). None of these is a denial.

use std::fs;
use std::path::Path;

use varek_seccomp::{Action, Program, SeccompData};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Performed {
    /// The kernel may go on with it.
    Continue,
    /// It was done, or failed as it would have in the kernel: 0 or an error number.
    Done(i32),
    /// It is no such call, or it reaches beyond the run: refused as every other denied call.
    No,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Performer {
    /// The policy's own program, before anything was taken out of it.
    allowed: Program,
    /// `/proc` is of the pid namespace that the kernel's numbers are of.
    own_proc: bool,
    /// Landlock does not keep signals within the run.
    pub(super) signals: bool,
}

impl Performer {
    pub(crate) fn new(allowed: Program, signals: bool) -> Self {
        let own = std::process::id().to_string();
        let own_proc = fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own));
        Self {
            allowed,
            own_proc,
            signals,
        }
    }

    /// The name of a call that the policy allows, with these arguments.
    pub(super) fn name(&self, data: &SeccompData) -> Option<&str> {
        let name = self.allowed.syscall_name(data.nr.cast_unsigned())?;
        let meant = self.own_proc
            && data.arch == self.allowed.arch().audit()
            && self.allowed.evaluate(data) == Action::Allow;
        meant.then_some(name)
    }
}
