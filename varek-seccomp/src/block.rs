//! Code for the calls that their number alone does not decide: tests of arguments, and the exec permit.

use std::collections::BTreeMap;

use crate::assemble::{Assembler, Label, Position};
use crate::bpf::{AND_K, Action, Instruction, JEQ, JSET, LD_ABS, OR_X, TAX, XOR_K, low_half};
use crate::ranges::Ranges;
use crate::resolve::Guard;
use crate::rule::{Half, Test};

/// What a number leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Return(Action),
    Arguments(Block),
    /// The comparison with the permit, and the answer to a call without it.
    Permit(Action),
}

/// A call is allowed where the guard lets it pass and every half of one alternative is met.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    guard: Option<Guard>,
    alternatives: Vec<Vec<Half>>,
}

/// The permit's places in an unfinished program.
pub(crate) struct PermitCode {
    /// The constants of the six comparisons: low and high half of each word.
    pub(crate) constants: [Position; 6],
    /// The decision, a plain refusal so far.
    pub(crate) decision: Position,
    /// What the decision is in a program with a permit.
    pub(crate) compare: Instruction,
    pub(crate) start: Label,
}

impl Block {
    pub(crate) fn new(guard: Option<Guard>, rules: &[Vec<Test>]) -> Self {
        let needed = |guard: &Guard| !rules.iter().all(|rule| excludes(rule, *guard));
        let halves = |rule: &Vec<Test>| {
            let mut halves: Vec<Half> = rule.iter().flat_map(|test| test.halves()).collect();
            halves.sort_unstable();
            halves
        };
        Self {
            guard: guard.filter(needed),
            alternatives: rules.iter().map(halves).collect(),
        }
    }

    /// Whether the call is allowed with any arguments.
    pub(crate) fn is_plain(&self) -> bool {
        self.guard.is_none() && self.alternatives.iter().any(Vec::is_empty)
    }

    pub(crate) fn write(&self, refuse: Label, code: &mut Assembler) -> Label {
        let alternatives = self.alternatives.iter().map(Vec::as_slice).collect();
        let pass = any(alternatives, refuse, code);
        let (index, test) = match self.guard {
            None => return pass,
            Some(Guard::Bits { index, bits }) => {
                (index, Label::At(code.branch(JSET, bits, refuse, pass)))
            }
            Some(Guard::Values { index, values }) => {
                let refused: BTreeMap<u32, Label> =
                    values.iter().map(|value| (*value, refuse)).collect();
                (index, Ranges::of_values(refused, pass).search(code))
            }
        };
        code.flow_to(test);
        Label::At(code.push(Instruction::new(LD_ABS, low_half(index))))
    }
}

/// Whether arguments that meet the rule pass the guard by that alone.
fn excludes(rule: &[Test], guard: Guard) -> bool {
    let mut tests = rule.iter();
    match guard {
        Guard::Bits { index, bits } => {
            let bits = u64::from(bits);
            tests.any(|test| {
                test.index == index && bits & test.mask == bits && bits & test.value == 0
            })
        }
        Guard::Values { index, values } => values.iter().all(|value| {
            rule.iter().any(|test| {
                let mask = test.mask & 0xffff_ffff;
                test.index == index && (test.value ^ u64::from(*value)) & mask != 0
            })
        }),
    }
}

/// Allows where all halves of one alternative are met, and goes on at `miss` where none are.
///
/// Alternatives that start with a test of the same half share its load and one search of its value.
fn any(alternatives: Vec<&[Half]>, miss: Label, code: &mut Assembler) -> Label {
    type Values<'a> = BTreeMap<u32, Vec<&'a [Half]>>;
    let mut places: BTreeMap<(u8, bool, u32), Values> = BTreeMap::new();
    for alternative in alternatives {
        let Some((half, rest)) = alternative.split_first() else {
            return Label::Return(Action::Allow);
        };
        let place = (half.index, half.high, half.mask);
        let values = places.entry(place).or_default();
        values.entry(half.value).or_default().push(rest);
    }
    // From the last one on, since each goes on at the next.
    places
        .into_iter()
        .rev()
        .fold(miss, |miss, ((index, high, mask), values)| {
            let mut known: BTreeMap<Vec<&[Half]>, Label> = BTreeMap::new();
            let values: Vec<(u32, Label)> = values
                .into_iter()
                .map(|(value, rest)| {
                    let label = known
                        .entry(rest)
                        .or_insert_with_key(|rest| any(rest.clone(), miss, code));
                    (value, *label)
                })
                .collect();
            let search = Ranges::of_values(values, miss).search(code);
            code.flow_to(search);
            if mask != u32::MAX {
                code.push(Instruction::new(AND_K, mask));
            }
            let offset = low_half(index) + if high { 4 } else { 0 };
            Label::At(code.push(Instruction::new(LD_ABS, offset)))
        })
}

/// Compares the last three argument registers with the permit in constant time: the differences of all six
/// halves are collected in the index register, and one test at the end decides. A comparison word by word
/// would let a guest find the permit half by half, from the time that a refusal takes.
///
/// The decision is made as a refusal; [`PermitCode::compare`] takes its place where there is a permit.
pub(crate) fn permit(refusal: Action, code: &mut Assembler) -> PermitCode {
    let [allow, refuse] = [Action::Allow, refusal].map(Label::Return);
    let decision = code.branch(JEQ, 0, allow, refuse);
    let compare = code.replace(decision, Instruction::ret(refusal));
    let mut constants = [decision; 6];
    let mut start = decision;
    for (half, constant) in constants.iter_mut().enumerate().rev() {
        if half < 5 {
            code.push(Instruction::new(TAX, 0));
        }
        if half > 0 {
            code.push(Instruction::new(OR_X, 0));
        }
        *constant = code.push(Instruction::new(XOR_K, 0));
        let index = u8::try_from(3 + half / 2).unwrap_or(5);
        let offset = low_half(index) + if half % 2 == 1 { 4 } else { 0 };
        start = code.push(Instruction::new(LD_ABS, offset));
    }
    PermitCode {
        constants,
        decision,
        compare,
        start: Label::At(start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{RET, SeccompData, interpret};

    const BITS: Guard = Guard::Bits {
        index: 0,
        bits: 0b1100,
    };
    const VALUES: Guard = Guard::Values {
        index: 1,
        values: &[7, 9],
    };

    fn rule(index: u8, mask: u64, value: u64) -> Vec<Test> {
        vec![Test { index, mask, value }]
    }

    fn program(block: &Block) -> Vec<Instruction> {
        let mut code = Assembler::default();
        let start = block.write(Label::Return(Action::Errno(1)), &mut code);
        code.flow_to(start);
        code.finish()
    }

    fn answer(program: &[Instruction], args: [u64; 6]) -> Action {
        let data = SeccompData {
            args,
            ..SeccompData::default()
        };
        interpret(program, &data).expect("a program without faults")
    }

    #[test]
    fn a_guard_is_left_out_only_where_every_rule_excludes_what_it_refuses() {
        let guarded = |guard, rules: &[Vec<Test>]| Block::new(Some(guard), rules).guard.is_some();
        let all = u64::from(u32::MAX);
        assert!(guarded(BITS, &[vec![]]));
        assert!(!guarded(BITS, &[rule(0, 0b1100, 0)]));
        assert!(!guarded(BITS, &[rule(0, all, 0b0011)]));
        assert!(guarded(BITS, &[rule(0, 0b0100, 0)]), "one bit is open");
        assert!(guarded(BITS, &[rule(0, 0b1100, 0b0100)]));
        assert!(guarded(BITS, &[rule(1, 0b1100, 0)]), "another argument");
        assert!(guarded(BITS, &[rule(0, 0b1100, 0), rule(1, 1, 1)]));

        assert!(guarded(VALUES, &[vec![]]));
        assert!(!guarded(VALUES, &[rule(1, all, 8)]));
        assert!(!guarded(VALUES, &[rule(1, 1, 0)]));
        assert!(guarded(VALUES, &[rule(1, all, 7)]));
        assert!(guarded(VALUES, &[rule(1, 0b10, 0)]), "9 is open");
        assert!(guarded(VALUES, &[rule(1, u64::MAX << 32, 1 << 32)]));
        assert!(guarded(VALUES, &[rule(0, all, 8)]), "another argument");
        assert!(guarded(VALUES, &[rule(1, all, 8), rule(0, 1, 1)]));
    }

    #[test]
    fn a_guard_refuses_though_a_rule_is_met() {
        let bits = program(&Block::new(Some(BITS), &[rule(0, 0b0100, 0)]));
        let values = program(&Block::new(Some(VALUES), &[vec![]]));
        for argument in 0..16 {
            let first = answer(&bits, [argument, 0, 0, 0, 0, 0]);
            assert_eq!(first == Action::Allow, argument & 0b1100 == 0, "{argument}");
            let second = answer(&values, [0, argument, 0, 0, 0, 0]);
            assert_eq!(
                second == Action::Allow,
                ![7, 9].contains(&argument),
                "{argument}"
            );
        }
    }

    #[test]
    fn alternatives_share_loads_and_keep_their_meaning() {
        let test = |index, mask, value| Test { index, mask, value };
        // The order of the tests in a rule is of no account.
        let rules = [
            vec![test(0, 0xffff_ffff, 1), test(1, 0xf, 1)],
            vec![test(1, 0xf, 5), test(0, 0xffff_ffff, 1)],
            vec![test(0, 0xffff_ffff, 2), test(1, 0xf, 5)],
            vec![test(2, u64::MAX, 1 << 32 | 3)],
        ];
        let program = program(&Block::new(None, &rules));
        let loads = program.iter().filter(|one| one.code == LD_ABS).count();
        // The first argument, the second for each of its two values, both halves of the third.
        assert_eq!(loads, 5);
        for first in 0..4 {
            for second in 0..32 {
                for third in [0, 3, 1 << 32, 1 << 32 | 3] {
                    let args = [first, second, third, 0, 0, 0];
                    let met = |rule: &Vec<Test>| {
                        let mut tests = rule.iter();
                        tests.all(|test| {
                            args.get(usize::from(test.index))
                                .is_some_and(|argument| argument & test.mask == test.value)
                        })
                    };
                    let allowed = answer(&program, args) == Action::Allow;
                    assert_eq!(allowed, rules.iter().any(met), "{args:x?}");
                }
            }
        }
    }

    #[test]
    fn the_permit_is_compared_without_a_branch_before_the_end() {
        let mut code = Assembler::default();
        let permit = permit(Action::Errno(1), &mut code);
        let decision = code.index(permit.decision);
        let constants = permit.constants.map(|constant| code.index(constant));
        let program = code.finish();
        let before: Vec<u16> = program.iter().take(decision).map(|one| one.code).collect();
        assert!(
            before
                .iter()
                .all(|code| [LD_ABS, XOR_K, OR_X, TAX].contains(code))
        );
        assert_eq!(before.iter().filter(|code| **code == XOR_K).count(), 6);
        assert!(constants.is_sorted());
        for constant in constants {
            assert_eq!(program.get(constant), Some(&Instruction::new(XOR_K, 0)));
        }
        assert_eq!(program.get(decision).map(|one| one.code), Some(RET));
        assert_eq!(permit.compare.code, JEQ);
    }
}
