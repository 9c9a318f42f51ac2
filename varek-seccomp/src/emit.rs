//! From a resolved policy to BPF.
//!
//! ```text
//! prologue   architecture, x32, numbers that the kernel may not have      by hand
//! tree       balanced search for the number                               exported by libseccomp
//! blocks     tests of arguments, the exec permit, the default             by hand
//! ```
//!
//! libseccomp is given one rule a call: `ALLOW`, or a placeholder `TRACE(n)` for everything else, the
//! default included. Each placeholder in the exported program is then replaced in place by the return or by
//! a jump to the block it stands for, so that no jump of the tree moves. Three things follow from that:
//! the tree holds nothing but comparisons of the number, which is the form that the kernel's allow bitmap
//! caches; the default's `EPERM` and a refused condition's cannot be confused; and compiling does not
//! depend on which actions the kernel of the compiling host has, which libseccomp would check.

use crate::bpf::{
    AND_K, AT_ARCH, AT_NUMBER, Action, Instruction, JA, JEQ, JGE, JGT, JSET, LD_ABS, LDX_MEM,
    LONGEST, OR_X, RET, ST, XOR_K, low_half,
};
use crate::resolve::{Entry, Guard, Outcome, Resolved, Verdict};
use crate::rule::{Half, Test};
use crate::{Arch, CompileError, Refusal, Reporting, errno};

/// Placeholder of the default action.
pub(crate) const DEFAULT: u16 = 0;
/// Placeholder of libseccomp's own architecture check, which the prologue has made unreachable.
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

/// What a placeholder stands for.
struct Target {
    code: Vec<Instruction>,
    permit: Option<PermitSlots>,
}

impl Target {
    fn ret(action: Action) -> Self {
        Self {
            code: vec![Instruction::ret(action)],
            permit: None,
        }
    }
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
    let actions = Actions::new(resolved, reporting);
    let mut targets = vec![Target::ret(actions.refuse())];
    let mut leaves = Vec::new();
    for (number, entry) in &resolved.entries {
        let placeholder = match target(entry, actions) {
            None => None,
            // Like the default: the tree need not know the call.
            Some(target) if target.code == [Instruction::ret(actions.refuse())] => continue,
            // Plain returns are shared, so that the tree ends in few leaves.
            Some(target) => Some(placeholder_of(target, &mut targets)),
        };
        leaves.push(Leaf {
            number: *number,
            name: entry.name,
            placeholder,
        });
    }

    let Exported { program, left } = export(resolved.arch, &leaves)?;
    let tree = tree_of(&program, resolved.arch)?;
    let mut instructions = prologue(resolved.arch, actions);
    instructions.extend_from_slice(tree);
    link(instructions, &targets, &left)
}

fn placeholder_of(target: Target, targets: &mut Vec<Target>) -> u16 {
    let shared = targets.iter().position(|known| known.code == target.code);
    let position = shared
        .filter(|_| target.permit.is_none())
        .unwrap_or(targets.len());
    if position == targets.len() {
        targets.push(target);
    }
    // There are fewer calls than placeholders.
    u16::try_from(position).unwrap_or(BAD_ARCH)
}

/// The program for calls that are more than allowed.
fn target(entry: &Entry, actions: Actions) -> Option<Target> {
    let refuse = Instruction::ret(actions.refuse());
    let mut code = Vec::new();
    match entry.guard {
        Some(Guard::Bits { index, bits }) => code.extend([
            Instruction::new(LD_ABS, low_half(index)),
            Instruction::jump(JSET, bits, 0, 1),
            refuse,
        ]),
        Some(Guard::Values { index, values }) => {
            code.push(Instruction::new(LD_ABS, low_half(index)));
            for value in values {
                code.extend([Instruction::jump(JEQ, *value, 0, 1), refuse]);
            }
        }
        None => {}
    }
    match &entry.verdict {
        Verdict::Allow if code.is_empty() => return None,
        Verdict::Allow => code.push(Instruction::ret(Action::Allow)),
        Verdict::When(rules) => {
            alternatives(rules, &mut code);
            code.push(refuse);
        }
        Verdict::Permit { kill } => {
            let refuse = if *kill {
                Instruction::ret(actions.of(Outcome::Kill))
            } else {
                refuse
            };
            return Some(permit(refuse));
        }
        Verdict::Absent(_) if entry.name == "clone3" => return Some(Target::ret(absent())),
        Verdict::Absent(_) => return Some(Target::ret(actions.of(Outcome::Absent))),
        Verdict::Kill => return Some(Target::ret(actions.of(Outcome::Kill))),
    }
    Some(Target { code, permit: None })
}

/// Code that returns `ALLOW` where one alternative holds, and runs on past its end where none does.
fn alternatives(rules: &[Vec<Test>], code: &mut Vec<Instruction>) {
    let halves = |rule: &[Test]| {
        rule.iter()
            .flat_map(|test| test.halves())
            .collect::<Vec<Half>>()
    };
    let mut rest = rules;
    while let Some((first, others)) = rest.split_first() {
        let first = halves(first);
        // Alternatives that each test the same half once share one load: a list of commands.
        let [half] = first.as_slice() else {
            every(&first, code);
            rest = others;
            continue;
        };
        let place = (half.index, half.high, half.mask);
        let mut values = vec![half.value];
        rest = others;
        while let Some((next, others)) = rest.split_first() {
            match halves(next).as_slice() {
                [next] if (next.index, next.high, next.mask) == place && values.len() < 100 => {
                    values.push(next.value);
                    rest = others;
                }
                _ => break,
            }
        }
        load(*half, code);
        let count = values.len();
        for (value, after) in values.into_iter().zip((0..count).rev()) {
            let to_allow = u8::try_from(after).unwrap_or(u8::MAX);
            code.push(Instruction::jump(
                JEQ,
                value,
                to_allow,
                u8::from(after == 0),
            ));
        }
        code.push(Instruction::ret(Action::Allow));
    }
}

/// Code that returns `ALLOW` where all of these hold.
fn every(halves: &[Half], code: &mut Vec<Instruction>) {
    let length = |half: &Half| if half.mask == u32::MAX { 2 } else { 3 };
    let mut left: usize = halves.iter().map(length).sum();
    for half in halves {
        left -= length(half);
        load(*half, code);
        // At most 36 instructions in one alternative, so the distance fits.
        let past_allow = u8::try_from(left + 1).unwrap_or(u8::MAX);
        code.push(Instruction::jump(JEQ, half.value, 0, past_allow));
    }
    code.push(Instruction::ret(Action::Allow));
}

fn load(half: Half, code: &mut Vec<Instruction>) {
    let offset = low_half(half.index) + if half.high { 4 } else { 0 };
    code.push(Instruction::new(LD_ABS, offset));
    if half.mask != u32::MAX {
        code.push(Instruction::new(AND_K, half.mask));
    }
}

/// Compares the last three argument registers with the permit in constant time: the differences of all six
/// halves are collected in scratch memory, and one test at the end decides. A comparison word by word would
/// let a guest find the permit half by half, from the time that a refusal takes.
///
/// The decision is made as a refusal; [`PermitSlots::compare`] takes its place where there is a permit.
fn permit(refuse: Instruction) -> Target {
    let mut code = Vec::new();
    let mut constants = [0; 6];
    for (half, slot) in constants.iter_mut().enumerate() {
        let index = u8::try_from(3 + half / 2).unwrap_or(5);
        let offset = low_half(index) + if half % 2 == 1 { 4 } else { 0 };
        code.push(Instruction::new(LD_ABS, offset));
        *slot = code.len();
        code.push(Instruction::new(XOR_K, 0));
        if half > 0 {
            code.extend([Instruction::new(LDX_MEM, 0), Instruction::new(OR_X, 0)]);
        }
        if half < 5 {
            code.push(Instruction::new(ST, 0));
        }
    }
    let decision = code.len();
    code.extend([refuse, Instruction::ret(Action::Allow), refuse]);
    let compare = Instruction::jump(JEQ, 0, 0, 1);
    Target {
        code,
        permit: Some(PermitSlots {
            constants,
            decision,
            compare,
        }),
    }
}

/// Leaves calls of other architectures, and numbers that have no name here, to their answers, and goes on
/// with the number in the accumulator.
fn prologue(arch: Arch, actions: Actions) -> Vec<Instruction> {
    let foreign = Instruction::ret(actions.of(Outcome::Kill));
    let absent = Instruction::ret(actions.of(Outcome::Absent));
    let mut code = vec![
        Instruction::new(LD_ABS, AT_ARCH),
        Instruction::jump(JEQ, arch.audit(), 1, 0),
        foreign,
        Instruction::new(LD_ABS, AT_NUMBER),
    ];
    let newer = if arch == Arch::X86_64 && foreign != absent {
        let x32 = Instruction::jump(JGE, crate::arch::X32_BIT, 0, 1);
        vec![x32, foreign, absent]
    } else {
        vec![absent]
    };
    let past = u8::try_from(newer.len()).unwrap_or(u8::MAX);
    code.push(Instruction::jump(JGT, arch.newest(), 0, past));
    code.extend(newer);
    // A notification answers gaps like any other refusal, so only the filter's own answer needs them.
    if absent != Instruction::ret(actions.refuse()) {
        for (low, high) in arch.gaps() {
            code.extend([
                Instruction::jump(JGE, low, 0, 2),
                Instruction::jump(JGT, high, 1, 0),
                absent,
            ]);
        }
    }
    code
}

/// libseccomp's program without its checks of the architecture, which the prologue makes.
///
/// What is cut must be those checks and what stays must be a search for the number; anything else is an
/// error, so that a later libseccomp with another layout cannot lose a check here.
fn tree_of(program: &[Instruction], arch: Arch) -> Result<&[Instruction], CompileError> {
    let unknown = |reason, at| CompileError::UnknownForm { reason, at };
    let last_load = program
        .iter()
        .rposition(|instruction| instruction.code == LD_ABS);
    let start = last_load.map_or(0, |at| at + 1);
    let (checks, tree) = program
        .split_at_checked(start)
        .ok_or(unknown("no instructions", start))?;
    for (at, instruction) in checks.iter().enumerate() {
        let compared = [arch.audit(), crate::arch::X32_BIT, u32::MAX];
        let known = match instruction.code {
            LD_ABS => instruction.k == AT_ARCH || instruction.k == AT_NUMBER,
            JEQ | JGE => compared.contains(&instruction.k),
            JA => true,
            RET => Action::from_return_value(instruction.k) == Action::Trace(BAD_ARCH),
            _ => false,
        };
        if !known {
            return Err(unknown("an unexpected check before the search", at));
        }
    }
    match checks.last() {
        Some(Instruction { k: AT_NUMBER, .. }) => {}
        _ => return Err(unknown("no load of the call number", start)),
    }
    for (at, instruction) in tree.iter().enumerate() {
        if !matches!(instruction.code, JEQ | JGT | JGE | JA | RET) {
            return Err(unknown(
                "an operation that is no search for the number",
                start + at,
            ));
        }
    }
    Ok(tree)
}

/// Puts the targets behind the tree and their positions into it.
fn link(
    mut instructions: Vec<Instruction>,
    targets: &[Target],
    left: &[Leaf],
) -> Result<Emitted, CompileError> {
    let tree_end = instructions.len();
    // Calls that this libseccomp has no name for are compared before the default.
    for leaf in left {
        let action = leaf.placeholder.map_or(Action::Allow, Action::Trace);
        instructions.extend([
            Instruction::jump(JEQ, leaf.number, 0, 1),
            Instruction::ret(action),
        ]);
    }
    if !left.is_empty() {
        instructions.push(Instruction::ret(Action::Trace(DEFAULT)));
    }
    let search_end = instructions.len();

    let mut permit = None;
    let mut places = Vec::new();
    for target in targets {
        places.push(match target.code.as_slice() {
            [only] => Placed::Return(*only),
            code => {
                let at = instructions.len();
                instructions.extend_from_slice(code);
                if let Some(slots) = &target.permit {
                    permit = Some(PermitSlots {
                        constants: slots.constants.map(|slot| at + slot),
                        decision: at + slots.decision,
                        compare: slots.compare,
                    });
                }
                Placed::Block(at)
            }
        });
    }

    let unknown = |reason, at| CompileError::UnknownForm { reason, at };
    for (at, instruction) in instructions.iter_mut().enumerate().take(search_end) {
        if instruction.code != RET {
            continue;
        }
        let Action::Trace(placeholder) = Action::from_return_value(instruction.k) else {
            continue;
        };
        let target = match placeholder {
            DEFAULT if at < tree_end && !left.is_empty() => Some(Placed::Block(tree_end)),
            BAD_ARCH => Some(Placed::Return(Instruction::ret(Action::KillProcess))),
            _ => places.get(usize::from(placeholder)).copied(),
        };
        *instruction = match target.ok_or(unknown("a return of no known meaning", at))? {
            Placed::Return(ret) => ret,
            Placed::Block(to) => {
                let distance = u32::try_from(to - at - 1);
                Instruction::new(JA, distance.map_err(|_| unknown("a jump too far", at))?)
            }
        };
    }
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

#[derive(Clone, Copy)]
enum Placed {
    Return(Instruction),
    Block(usize),
}

#[cfg(target_os = "linux")]
use crate::export::export;

#[cfg(not(target_os = "linux"))]
fn export(_arch: Arch, _leaves: &[Leaf]) -> Result<Exported, CompileError> {
    Err(CompileError::UnsupportedTarget {
        os: std::env::consts::OS,
    })
}
