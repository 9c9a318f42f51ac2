//! From a resolved policy to BPF.
//!
//! ```text
//! prologue   architecture, x32, numbers newer than this build
//! search     by ranges of numbers with the same answer
//! blocks     tests of arguments, the exec permit
//! ```
//!
//! libseccomp compiles which call has which answer: it is given one rule a call, `ALLOW` or a placeholder
//! `TRACE(n)` for everything else, the default included. What it exports is read as a function of the number
//! and written again as a search among ranges, in which each placeholder is the return or the block that it
//! stands for. Three things follow from that: the search holds nothing but comparisons of the number, which
//! is the form that the kernel's allow bitmap caches; the default's `EPERM` and a refused condition's cannot
//! be confused; and compiling does not depend on which actions the kernel of the compiling host has, which
//! libseccomp would check.

use crate::assemble::{Assembler, Label};
use crate::block::{self, Block, Target};
use crate::bpf::{AT_ARCH, AT_NUMBER, Action, Instruction, JEQ, JGE, JGT, LD_ABS, LONGEST};
use crate::ranges::{self, Ranges};
use crate::resolve::{Entry, Outcome, Resolved, Verdict};
use crate::rule::Test;
use crate::{Arch, CompileError, Refusal, Reporting, errno};

/// Placeholder of the default action.
pub(crate) const DEFAULT: u16 = 0;
/// Placeholder of libseccomp's own architecture check, in whose place there is the prologue.
pub(crate) const BAD_ARCH: u16 = u16::MAX;

/// A finished program, and where a permit goes.
#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) permit: Option<PermitSlots>,
}

/// Positions that differ between a program with a permit and one without.
#[derive(Clone, Debug)]
pub(crate) struct PermitSlots {
    /// The constants of the six comparisons: low and high half of each word.
    pub(crate) constants: [usize; 6],
    /// The decision: a comparison in a program with a permit, a plain refusal in one without.
    pub(crate) decision: usize,
    pub(crate) compare: Instruction,
}

/// The returns of one compilation.
#[derive(Clone, Copy)]
pub(crate) struct Actions {
    reporting: Reporting,
    refusal: Refusal,
    errno: u16,
}

impl Actions {
    pub(crate) fn new(resolved: &Resolved, reporting: Reporting) -> Self {
        let errno = u16::try_from(resolved.errno).unwrap_or(1);
        Self {
            reporting,
            refusal: resolved.refusal,
            errno,
        }
    }

    pub(crate) fn of(self, outcome: Outcome) -> Action {
        match (outcome, self.reporting) {
            (Outcome::Allow, _) => Action::Allow,
            (_, Reporting::Notify) => Action::UserNotif,
            (Outcome::Refuse, Reporting::Errno) => Action::Errno(self.errno),
            (Outcome::Absent, Reporting::Errno) => absent(),
            (Outcome::Kill, Reporting::Errno) => Action::KillProcess,
        }
    }

    fn refuse(self) -> Action {
        self.of(match self.refusal {
            Refusal::Errno => Outcome::Refuse,
            Refusal::Kill => Outcome::Kill,
        })
    }
}

fn absent() -> Action {
    Action::Errno(u16::try_from(errno::ENOSYS).unwrap_or(38))
}

/// The action of a call, as the finished program must give it.
pub(crate) fn expected(
    resolved: &Resolved,
    actions: Actions,
    audit: u32,
    number: u32,
    args: &[u64; 6],
) -> Action {
    // The one answer that is never left to a supervisor: libc makes threads with it.
    if audit == resolved.arch.audit() && resolved.arch.name(number) == Some("clone3") {
        return absent();
    }
    actions.of(resolved.outcome(audit, number, args))
}

/// One call of the tree: its number and name, and its placeholder or `None` for `ALLOW`.
#[derive(Clone, Copy)]
pub(crate) struct Leaf {
    pub(crate) number: u32,
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "read by the export")
    )]
    pub(crate) name: &'static str,
    pub(crate) placeholder: Option<u16>,
}

/// What libseccomp exported, and the calls that it could not take.
pub(crate) struct Exported {
    pub(crate) program: Vec<Instruction>,
    pub(crate) left: Vec<Leaf>,
}

pub(crate) fn emit(resolved: &Resolved, reporting: Reporting) -> Result<Emitted, CompileError> {
    let arch = resolved.arch;
    let actions = Actions::new(resolved, reporting);
    let default = Target::Return(actions.refuse());
    let mut targets = vec![default];
    let mut leaves = Vec::new();
    for (number, entry) in &resolved.entries {
        let placeholder = match target(entry, actions) {
            Target::Return(Action::Allow) => None,
            target => Some(placeholder_of(target, &mut targets)),
        };
        // The search need not know a call that is answered like the default.
        if placeholder != Some(DEFAULT) {
            leaves.push(Leaf {
                number: *number,
                name: entry.name,
                placeholder,
            });
        }
    }

    let Exported { program, left } = export(arch, &leaves)?;
    let mut outcomes = ranges::outcomes(&program, arch)?;
    for leaf in left {
        let outcome = usize::try_from(leaf.number)
            .ok()
            .and_then(|number| outcomes.get_mut(number));
        if let Some(outcome) = outcome {
            *outcome = leaf.placeholder;
        }
    }
    assemble(arch, actions, &targets, &outcomes)
}

fn placeholder_of(target: Target, targets: &mut Vec<Target>) -> u16 {
    let known = targets.iter().position(|known| *known == target);
    let position = known.unwrap_or_else(|| {
        targets.push(target);
        targets.len() - 1
    });
    // There are fewer calls than placeholders.
    u16::try_from(position).unwrap_or(BAD_ARCH)
}

fn target(entry: &Entry, actions: Actions) -> Target {
    let block = |rules: &[Vec<Test>]| match Block::new(entry.guard, rules) {
        block if block.is_plain() => Target::Return(Action::Allow),
        block => Target::Arguments(block),
    };
    match &entry.verdict {
        Verdict::Allow => block(&[Vec::new()]),
        Verdict::When(rules) => block(rules),
        Verdict::Permit { kill: true } => Target::Permit(actions.of(Outcome::Kill)),
        Verdict::Permit { kill: false } => Target::Permit(actions.refuse()),
        Verdict::Absent(_) if entry.name == "clone3" => Target::Return(absent()),
        Verdict::Absent(_) => Target::Return(actions.of(Outcome::Absent)),
        Verdict::Kill => Target::Return(actions.of(Outcome::Kill)),
    }
}

/// Writes the program, blocks first: it is made from its end.
fn assemble(
    arch: Arch,
    actions: Actions,
    targets: &[Target],
    outcomes: &[Option<u16>],
) -> Result<Emitted, CompileError> {
    let mut code = Assembler::default();
    let mut permit = None;
    let mut labels = Vec::new();
    for target in targets {
        labels.push(match target {
            Target::Return(action) => Label::Return(*action),
            Target::Arguments(block) => block.write(Label::Return(actions.refuse()), &mut code),
            Target::Permit(refusal) => {
                let block = block::permit(*refusal, &mut code);
                let start = block.start;
                permit = Some(block);
                start
            }
        });
    }
    let search = search(arch, actions, &labels, outcomes, &mut code)?;
    prologue(arch, actions, search, &mut code);

    let permit = permit.map(|permit| PermitSlots {
        constants: permit.constants.map(|constant| code.index(constant)),
        decision: code.index(permit.decision),
        compare: permit.compare,
    });
    let instructions = code.finish();
    let length = instructions.len();
    if length > LONGEST {
        return Err(CompileError::TooLong {
            length,
            longest: LONGEST,
        });
    }
    Ok(Emitted {
        instructions,
        permit,
    })
}

/// The search for numbers up to the newest.
fn search(
    arch: Arch,
    actions: Actions,
    labels: &[Label],
    outcomes: &[Option<u16>],
    code: &mut Assembler,
) -> Result<Label, CompileError> {
    let mut ranges = Ranges::default();
    for (number, outcome) in (0..).zip(outcomes) {
        let label = match outcome {
            _ if arch.name(number).is_none() => Label::Return(actions.of(Outcome::Absent)),
            None => Label::Return(Action::Allow),
            Some(placeholder) => {
                let label = labels.get(usize::from(*placeholder));
                // The answer to foreign architectures is the only placeholder without a target.
                *label.ok_or(CompileError::UnknownForm {
                    reason: "a foreign answer to an own number",
                    at: 0,
                })?
            }
        };
        ranges.push(number, 1, label);
    }
    Ok(ranges.search(code))
}

/// Leaves calls of other architectures, and numbers above the newest that has a name here, to their answers,
/// and goes on at the search with the number in the accumulator.
fn prologue(arch: Arch, actions: Actions, search: Label, code: &mut Assembler) {
    let foreign = Label::Return(actions.of(Outcome::Kill));
    let absent = Label::Return(actions.of(Outcome::Absent));
    let newer = if arch == Arch::X86_64 && foreign != absent {
        Label::At(code.branch(JGE, crate::arch::X32_BIT, foreign, absent))
    } else {
        absent
    };
    code.branch(JGT, arch.newest(), newer, search);
    let number = Label::At(code.push(Instruction::new(LD_ABS, AT_NUMBER)));
    code.flow_to(foreign);
    code.branch(JEQ, arch.audit(), number, foreign);
    code.push(Instruction::new(LD_ABS, AT_ARCH));
}

#[cfg(target_os = "linux")]
use crate::export::export;

#[cfg(not(target_os = "linux"))]
fn export(_arch: Arch, _leaves: &[Leaf]) -> Result<Exported, CompileError> {
    Err(CompileError::UnsupportedTarget {
        os: std::env::consts::OS,
    })
}
