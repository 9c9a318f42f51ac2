//! The compiled program, and what a supervisor needs to know about it.

use std::fmt;

use crate::bpf::{Action, Instruction, SeccompData, interpret};
use crate::disassemble::Disassembly;
use crate::emit::{self, Actions, Emitted};
use crate::explain::{self, Explanation, UnknownCall};
use crate::resolve::{Entry, Guard, Outcome, Resolved, Verdict};
use crate::rule::Test;
use crate::{Arch, CompileError, Permit, Reporting};

/// What a supervisor answers to a notification of a program compiled with [`Reporting::Notify`].
///
/// A notified call is never continued: its arguments may have changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Answer with this errno.
    Refuse {
        /// The policy's errno.
        errno: i32,
    },
    /// Answer with `ENOSYS`: a call that this build has no name for, io_uring, or the socket by which the C
    /// library asks for a name service cache. Programs probe for these and go on without, so it is no sign
    /// of an attack.
    Probe,
    /// Kill the guest without an answer: the kill list, another ABI, or any refused call where the policy
    /// says so.
    Kill,
}

/// A compiled policy for one architecture.
///
/// `Display` prints the program, one instruction a line, with jump targets and call names.
#[derive(Clone, Debug)]
pub struct Program {
    resolved: Resolved,
    reporting: Reporting,
    emitted: Emitted,
}

impl Program {
    pub(crate) fn new(resolved: Resolved, reporting: Reporting) -> Result<Self, CompileError> {
        let emitted = emit::emit(&resolved, reporting)?;
        let program = Self {
            resolved,
            reporting,
            emitted,
        };
        program.verify()?;
        Ok(program)
    }

    /// The program without a permit: `execve` is refused, with any arguments, unless the policy allows it.
    ///
    /// `struct sock_fprog` takes a pointer to these and their number.
    pub fn instructions(&self) -> &[Instruction] {
        &self.emitted.instructions
    }

    /// The program of one run, in which `execve` with this permit is allowed.
    ///
    /// A copy with seven instructions replaced; nothing is compiled. Where [`Self::allows_exec`] holds the
    /// permit has no effect.
    pub fn with_permit(&self, permit: &Permit) -> Vec<Instruction> {
        let mut instructions = self.emitted.instructions.clone();
        let Some(slots) = &self.emitted.permit else {
            return instructions;
        };
        let halves = permit
            .words()
            .into_iter()
            .flat_map(|word| [word & 0xffff_ffff, word >> 32]);
        for (slot, half) in slots.constants.iter().zip(halves) {
            if let Some(instruction) = instructions.get_mut(*slot) {
                instruction.k = u32::try_from(half).unwrap_or_default();
            }
        }
        if let Some(instruction) = instructions.get_mut(slots.decision) {
            *instruction = slots.compare;
        }
        instructions
    }

    /// Whether the policy allows `execve`, so that no permit is needed.
    pub fn allows_exec(&self) -> bool {
        self.emitted.permit.is_none()
    }

    /// What [`Self::instructions`] answer to a call.
    pub fn evaluate(&self, data: &SeccompData) -> Action {
        // Compiling has run the program for every number, and a fault does not depend on arguments.
        interpret(&self.emitted.instructions, data).unwrap_or(Action::KillProcess)
    }

    /// What a supervisor answers to the notification of a call.
    pub fn decide(&self, data: &SeccompData) -> Decision {
        match self.resolved.outcome(data.arch, data.number(), &data.args) {
            Outcome::Absent => Decision::Probe,
            Outcome::Refuse if self.asks_name_service(data) => Decision::Probe,
            Outcome::Kill => Decision::Kill,
            // The filter allows it by itself; a notification of it did not come from this program.
            Outcome::Allow | Outcome::Refuse => Decision::Refuse {
                errno: self.resolved.errno,
            },
        }
    }

    /// Whether a call is the one by which the C library looks for a name service cache: `socket(AF_UNIX,
    /// SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)` (glibc, before it reads `/etc/passwd`; nscd(8)). Every shell
    /// and every look-up of a user makes it, and goes on without.
    fn asks_name_service(&self, data: &SeccompData) -> bool {
        const AF_UNIX: u64 = 1;
        const STREAM_CLOEXEC_NONBLOCK: u64 = 0x8_0801;
        let [family, kind, protocol, ..] = data.args;
        self.resolved.arch.name(data.number()) == Some("socket")
            && (family, kind, protocol) == (AF_UNIX, STREAM_CLOEXEC_NONBLOCK, 0)
    }

    /// What happens to a call, by name, and why.
    ///
    /// # Errors
    ///
    /// [`UnknownCall`] with a suggestion, where no architecture has the call.
    pub fn explain(&self, name: &str) -> Result<Explanation, UnknownCall> {
        explain::explain(&self.resolved, self.reporting, name)
    }

    /// The name of a call of this program's architecture.
    pub fn syscall_name(&self, number: u32) -> Option<&'static str> {
        self.resolved.arch.name(number)
    }

    /// Names the ABI and the call of a notification; see [`describe`](crate::describe).
    pub fn describe(audit_arch: u32, number: u32) -> (String, Option<String>) {
        crate::describe(audit_arch, number)
    }

    /// The architecture that the program is for.
    pub const fn arch(&self) -> Arch {
        self.resolved.arch
    }

    /// Whether denied calls are notified.
    pub const fn reporting(&self) -> Reporting {
        self.reporting
    }

    /// Names in the policy that this architecture lacks, such as `open` on aarch64.
    pub fn skipped(&self) -> &[String] {
        &self.resolved.skipped
    }

    /// Holds the finished program against the policy: every number, with arguments that meet each rule and
    /// that miss it, with none and all bits set. This is what makes libseccomp's part, and the search that is
    /// made of it, trustworthy without reading them.
    fn verify(&self) -> Result<(), CompileError> {
        let arch = self.resolved.arch;
        let actions = Actions::new(&self.resolved, self.reporting);
        let foreign = crate::arch::X32_BIT;
        for number in (0..=arch.newest() + 1).chain([foreign, foreign + 59, u32::MAX]) {
            let samples = samples(self.resolved.entries.get(&number));
            // A foreign call is decided by its architecture.
            let count = [(arch.audit(), samples.len()), (!arch.audit(), 2)];
            for (audit, count) in count {
                for args in samples.iter().take(count) {
                    let data = SeccompData {
                        nr: number.cast_signed(),
                        arch: audit,
                        instruction_pointer: 0,
                        args: *args,
                    };
                    let expected = emit::expected(&self.resolved, actions, audit, number, args);
                    if interpret(&self.emitted.instructions, &data) != Ok(expected) {
                        return Err(CompileError::Miscompiled { arch, number });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Arguments of all zeroes and all ones; such that meet each rule, with zeroes and ones in the bits that
/// the rule leaves open, and miss it by a neighbouring value; and each of them with what the guard refuses.
fn samples(entry: Option<&Entry>) -> Vec<[u64; 6]> {
    let mut samples = vec![[0; 6], [u64::MAX; 6]];
    let Some(entry) = entry else {
        return samples;
    };
    if let Verdict::When(rules) = &entry.verdict {
        for rule in rules {
            for mut args in [[0; 6], [u64::MAX; 6]] {
                for test in rule {
                    replace(&mut args, test.index, test.mask, test.value);
                }
                samples.push(args);
                for Test { index, mask, value } in rule {
                    // The next and the previous value of the bits under the mask, and one of the high half.
                    let next = (value | !mask).wrapping_add(1);
                    for missed in [next, value.wrapping_sub(1), value ^ (1 << 32)] {
                        let mut args = args;
                        replace(&mut args, *index, *mask, missed);
                        samples.push(args);
                    }
                }
            }
        }
    }
    let (index, refused): (u8, Vec<u32>) = match entry.guard {
        None => return samples,
        Some(Guard::Bits { index, bits }) => {
            let single = (0..u32::BITS).map(|bit| 1 << bit);
            (index, single.filter(|bit| bits & bit != 0).collect())
        }
        Some(Guard::Values { index, values }) => {
            let near = |value: &u32| [value.wrapping_sub(1), *value, value.wrapping_add(1)];
            (index, values.iter().flat_map(near).collect())
        }
    };
    let guarded = samples.iter().flat_map(|args| {
        refused.iter().map(|value| {
            let mut args = *args;
            replace(&mut args, index, u64::from(u32::MAX), u64::from(*value));
            args
        })
    });
    let guarded: Vec<_> = guarded.collect();
    samples.extend(guarded);
    samples
}

/// Sets the bits under the mask in one argument.
fn replace(args: &mut [u64; 6], index: u8, mask: u64, value: u64) {
    if let Some(argument) = args.get_mut(usize::from(index)) {
        *argument = (*argument & !mask) | (value & mask);
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Disassembly {
            instructions: &self.emitted.instructions,
            arch: self.resolved.arch,
        }
        .fmt(f)
    }
}
