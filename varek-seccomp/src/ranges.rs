//! Searches a word among ranges of values that lead to the same place.
//!
//! libseccomp's search ends in one comparison for each call. Most calls of a policy are neighbours of calls
//! with the same answer, so a search for the ends of ranges takes a third of the comparisons for the same
//! function of the number. [`outcomes`] reads the function from what libseccomp exported, and
//! [`Ranges::search`] writes it again.

use crate::assemble::{Assembler, Label};
use crate::bpf::{
    AT_ARCH, AT_NUMBER, Action, Instruction, JA, JEQ, JGE, JGT, LD_ABS, RET, SeccompData, interpret,
};
use crate::{Arch, CompileError};

/// What one more instruction costs when a program is loaded, in steps of the kernel's walk over all call
/// numbers: about 0.1 µs to check, convert and compile it, where a step takes 4 to 5 ns.
const INSTRUCTION: u64 = 24;

/// The most ranges that are searched in the best way; longer lists are halved until they are this short. The
/// time to find that way grows with the third power, and from here on the program gains next to nothing.
const EXACT: usize = 24;

/// The most values that are compared one after the other.
const CHAIN: usize = 8;

/// Neighbouring values that lead to the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
    weight: u64,
    label: Label,
}

/// Ranges without a gap between them, in order.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

/// A search, as a tree of comparisons.
#[derive(Debug)]
enum Node {
    Leaf(Label),
    /// One comparison with the first value of a range.
    From {
        first: u32,
        there: Box<Self>,
        below: Box<Self>,
    },
    /// Single values, then everything else.
    Values {
        values: Vec<(u32, Label)>,
        else_: Label,
    },
}

/// The best search of a part of the list, and what it costs.
#[derive(Clone, Copy)]
struct Best {
    cost: u64,
    /// Where to split; nothing where values are compared one after the other.
    split: Option<usize>,
}

impl Ranges {
    /// Adds the values up to `last`, `weight` of which are worth a short search.
    pub(crate) fn push(&mut self, last: u32, weight: u64, label: Label) {
        let first = match self.0.last_mut() {
            Some(range) if range.label == label => {
                range.last = last;
                range.weight += weight;
                return;
            }
            Some(range) => range.last.saturating_add(1),
            None => 0,
        };
        self.0.push(Range {
            first,
            last,
            weight,
            label,
        });
    }

    /// Single values in order, and what every other value leads to.
    pub(crate) fn of_values(values: impl IntoIterator<Item = (u32, Label)>, others: Label) -> Self {
        let mut ranges = Self::default();
        for (value, label) in values {
            let next = ranges
                .0
                .last()
                .map_or(Some(0), |range| range.last.checked_add(1));
            if let Some(before) = value.checked_sub(1).filter(|_| next != Some(value)) {
                ranges.push(before, 1, others);
            }
            ranges.push(value, 1, label);
        }
        if ranges.0.last().is_none_or(|range| range.last < u32::MAX) {
            ranges.push(u32::MAX, 1, others);
        }
        ranges
    }

    /// Writes the search for the value in the accumulator. Only comparisons of that value are used. Values
    /// above the last range get its answer.
    ///
    /// Without any range this is the end of the process, which no caller asks for.
    pub(crate) fn search(&self, code: &mut Assembler) -> Label {
        plan(&self.0).map_or(Label::Return(Action::KillProcess), |node| {
            write(&node, code)
        })
    }
}

fn weight(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.weight).sum()
}

/// A cheap search: one of the best where the list is short, else one that halves the weight.
fn plan(ranges: &[Range]) -> Option<Node> {
    if ranges.len() <= EXACT {
        return exact(ranges);
    }
    let total = weight(ranges);
    let mut before = 0;
    let splits = ranges.iter().enumerate().map(|(at, range)| {
        before += range.weight;
        ((2 * before).abs_diff(total), at + 1)
    });
    let (_, middle) = splits.take(ranges.len() - 1).min()?;
    let (below, there) = ranges.split_at_checked(middle)?;
    Some(Node::From {
        first: there.first()?.first,
        there: Box::new(plan(there)?),
        below: Box::new(plan(below)?),
    })
}

/// The cheapest search: the best one of each part of the list is put together from those of shorter parts.
fn exact(ranges: &[Range]) -> Option<Node> {
    // Rows by length, less one, and in them by first range.
    let mut rows: Vec<Vec<Best>> = Vec::new();
    for length in 1..=ranges.len() {
        let row = ranges.windows(length).enumerate().map(|(start, part)| {
            let cost = |length: usize, start: usize| Some(rows.get(length - 1)?.get(start)?.cost);
            let every = INSTRUCTION + weight(part);
            let splits = (1..length).filter_map(|at| {
                let parts = cost(at, start)?.checked_add(cost(length - at, start + at)?)?;
                Some(Best {
                    cost: every.checked_add(parts)?,
                    split: Some(at),
                })
            });
            let chain = chain(part).map(|chain| Best {
                cost: chain.cost,
                split: None,
            });
            let worst = Best {
                cost: u64::MAX,
                split: Some(length / 2),
            };
            chain
                .into_iter()
                .chain(splits)
                .min_by_key(|best| best.cost)
                .unwrap_or(worst)
        });
        let row = row.collect();
        rows.push(row);
    }
    follow(ranges, 0, &rows)
}

fn follow(part: &[Range], start: usize, rows: &[Vec<Best>]) -> Option<Node> {
    let best = rows.get(part.len().checked_sub(1)?)?.get(start)?;
    let Some(at) = best.split else {
        let Chain { values, else_, .. } = chain(part)?;
        return Some(if values.is_empty() {
            Node::Leaf(else_)
        } else {
            Node::Values { values, else_ }
        });
    };
    let (below, there) = part.split_at_checked(at)?;
    Some(Node::From {
        first: there.first()?.first,
        there: Box::new(follow(there, start + at, rows)?),
        below: Box::new(follow(below, start, rows)?),
    })
}

struct Chain {
    values: Vec<(u32, Label)>,
    else_: Label,
    cost: u64,
}

/// Compares single values one after the other, where all else leads to one place.
fn chain(part: &[Range]) -> Option<Chain> {
    if part.len() > 2 * CHAIN + 1 {
        return None;
    }
    let wide = part.iter().find(|range| range.first != range.last);
    let elsewhere = |label: Label| part.iter().filter(move |range| range.label != label);
    let heaviest = || {
        let labels = part.iter().map(|range| range.label);
        labels.min_by_key(|label| elsewhere(*label).map(|range| range.weight).sum::<u64>())
    };
    let else_ = wide.map(|range| range.label).or_else(heaviest)?;
    let mut single: Vec<&Range> = elsewhere(else_).collect();
    if single.len() > CHAIN || single.iter().any(|range| range.first != range.last) {
        return None;
    }
    single.sort_by_key(|range| std::cmp::Reverse(range.weight));
    let mut cost = 0;
    let mut left = weight(part);
    for range in &single {
        cost += INSTRUCTION + left;
        left -= range.weight;
    }
    Some(Chain {
        values: single
            .iter()
            .map(|range| (range.first, range.label))
            .collect(),
        else_,
        cost,
    })
}

fn write(node: &Node, code: &mut Assembler) -> Label {
    match node {
        Node::Leaf(label) => *label,
        Node::From {
            first,
            there,
            below,
        } => {
            let there = write(there, code);
            let below = write(below, code);
            Label::At(code.branch(JGE, *first, there, below))
        }
        Node::Values { values, else_ } => {
            values.iter().rev().fold(*else_, |next, (value, label)| {
                Label::At(code.branch(JEQ, *value, *label, next))
            })
        }
    }
}

/// The placeholder that libseccomp's program returns for each number up to the newest, or `None` where it
/// allows the call.
///
/// The program must be a search for the number behind checks of the architecture. Anything else is an error,
/// so that nothing that a later libseccomp may test can be lost here.
pub(crate) fn outcomes(
    program: &[Instruction],
    arch: Arch,
) -> Result<Vec<Option<u16>>, CompileError> {
    let unknown = |reason, at| CompileError::UnknownForm { reason, at };
    let mut loaded = None;
    for (at, instruction) in program.iter().enumerate() {
        let Instruction { code, k, .. } = *instruction;
        match code {
            LD_ABS if k == AT_ARCH || k == AT_NUMBER => loaded = Some(k),
            JEQ | JGT | JGE | JA if loaded.is_some() => {}
            RET => match Action::from_return_value(k) {
                Action::Allow | Action::Trace(_) => {}
                _ => return Err(unknown("a return that is no placeholder", at)),
            },
            _ => return Err(unknown("an operation that is no search for the number", at)),
        }
    }
    let outcome = |number: u32| {
        let data = SeccompData {
            nr: number.cast_signed(),
            arch: arch.audit(),
            ..SeccompData::default()
        };
        match interpret(program, &data) {
            Ok(Action::Allow) => Ok(None),
            Ok(Action::Trace(placeholder)) => Ok(Some(placeholder)),
            _ => Err(unknown("a search that does not end", program.len())),
        }
    };
    (0..=arch.newest()).map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranges(assigned: &[(u32, u16)]) -> Ranges {
        let mut ranges = Ranges::default();
        let mut last = None;
        for (length, answer) in assigned {
            let end = last.map_or(length - 1, |last| last + length);
            ranges.push(
                end,
                u64::from(*length),
                Label::Return(Action::Trap(*answer)),
            );
            last = Some(end);
        }
        ranges
    }

    fn program(ranges: &Ranges) -> Vec<Instruction> {
        let mut code = Assembler::default();
        let label = ranges.search(&mut code);
        code.flow_to(label);
        code.push(Instruction::new(LD_ABS, AT_NUMBER));
        code.finish()
    }

    fn answer(program: &[Instruction], number: u32) -> Action {
        let data = SeccompData {
            nr: number.cast_signed(),
            ..SeccompData::default()
        };
        interpret(program, &data).expect("a program without faults")
    }

    /// Numbers in order: how many, and their answer.
    fn assignments() -> impl Strategy<Value = Vec<(u32, u16)>> {
        let length = prop_oneof![3 => Just(1_u32), 1 => 1..40_u32];
        prop_oneof![2 => 2..4_u16, 1 => 4..40_u16].prop_flat_map(move |answers| {
            prop::collection::vec((length.clone(), 0..answers), 1..500)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: ProptestConfig::default().cases.min(100),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn any_assignment_of_answers_to_numbers_is_reproduced_exactly(assigned in assignments()) {
            let ranges = ranges(&assigned);
            let program = program(&ranges);
            let mut number = 0;
            for (length, expected) in &assigned {
                for _ in 0..*length {
                    prop_assert_eq!(answer(&program, number), Action::Trap(*expected), "{}", number);
                    number += 1;
                }
            }

            let inside = |at: usize| at < program.len();
            for (at, one) in program.iter().enumerate() {
                let targets = [one.jt, one.jf].map(|skip| at + 1 + usize::from(skip));
                prop_assert!(one.code == RET || targets.into_iter().all(inside));
                let plain = [LD_ABS, JEQ, JGE, JA, RET].contains(&one.code);
                prop_assert!(plain, "{:#x} is not in the kernel's short list", one.code);
            }
        }

        #[test]
        fn a_search_has_at_most_one_comparison_for_each_boundary(assigned in assignments()) {
            let ranges = ranges(&assigned);
            let program = program(&ranges);
            let comparisons = program.iter().filter(|one| [JEQ, JGE].contains(&one.code)).count();
            prop_assert!(comparisons < ranges.0.len());
            // Returns are written again, and subtrees reached by a jump, once in 255 instructions.
            let answers = assigned.iter().map(|(_, answer)| answer).collect::<BTreeSet<_>>().len();
            let rounds = 1 + comparisons / 100;
            prop_assert!(program.len() <= 1 + comparisons + rounds * (answers + 8));
        }

        #[test]
        fn single_values_are_found_and_no_others(
            values in prop::collection::btree_set(
                prop_oneof![0..300_u32, any::<u32>(), u32::MAX - 3..=u32::MAX],
                0..300,
            ),
            noise in prop::collection::vec(any::<u32>(), 20),
        ) {
            let [hit, miss] = [Action::Allow, Action::Trap(1)];
            let labels = values.iter().map(|value| (*value, Label::Return(hit)));
            let program = program(&Ranges::of_values(labels, Label::Return(miss)));
            let near = values.iter().flat_map(|value| {
                [value.wrapping_sub(1), *value, value.wrapping_add(1)]
            });
            for value in near.chain(noise).chain([0, u32::MAX]) {
                let expected = if values.contains(&value) { hit } else { miss };
                prop_assert_eq!(answer(&program, value), expected, "{:#x}", value);
            }
        }
    }

    #[test]
    fn neighbours_with_one_answer_take_no_comparison() {
        let one = [(1, 7), (1, 7), (400, 7)];
        assert_eq!(program(&ranges(&one)).len(), 2);
        let run = [(100, 1), (1, 2), (1, 2), (1, 2), (300, 1)];
        let comparisons = |program: &[Instruction]| {
            program
                .iter()
                .filter(|one| [JEQ, JGE].contains(&one.code))
                .count()
        };
        assert_eq!(comparisons(&program(&ranges(&run))), 2);
        let exception = [(100, 1), (1, 2), (300, 1)];
        assert_eq!(comparisons(&program(&ranges(&exception))), 1);

        let hit = Label::Return(Action::Allow);
        let values = (0..8).chain(36..39).map(|value| (value, hit));
        let values = Ranges::of_values(values, Label::Return(Action::Trap(1)));
        assert_eq!(comparisons(&program(&values)), 3);
    }

    #[test]
    fn wide_ranges_are_found_first() {
        let mut assigned: Vec<(u32, u16)> = (0..60).map(|step| (1, step % 2)).collect();
        assigned.push((400, 7));
        let program = program(&ranges(&assigned));
        let first = Instruction {
            jt: 0,
            jf: 0,
            ..*program.get(1).expect("a comparison")
        };
        assert_eq!(first, Instruction::new(JGE, 60));
    }

    fn trace(placeholder: u16) -> Instruction {
        Instruction::ret(Action::Trace(placeholder))
    }

    #[test]
    fn an_exported_search_is_read_as_a_function_of_the_number() {
        let program = [
            Instruction::new(LD_ABS, AT_ARCH),
            Instruction::jump(JEQ, Arch::X86_64.audit(), 0, 4),
            Instruction::new(LD_ABS, AT_NUMBER),
            Instruction::jump(JGT, 9, 0, 1),
            trace(3),
            Instruction::ret(Action::Allow),
            trace(u16::MAX),
        ];
        let found = outcomes(&program, Arch::X86_64).expect("a known form");
        assert_eq!(found.len(), 470);
        assert!(found.iter().take(10).all(Option::is_none));
        assert!(found.iter().skip(10).all(|outcome| *outcome == Some(3)));
        let foreign = outcomes(&program, Arch::Aarch64).expect("a known form");
        assert!(foreign.iter().all(|outcome| *outcome == Some(u16::MAX)));
    }

    #[test]
    fn an_exported_program_that_is_more_than_a_search_is_refused() {
        let number = Instruction::new(LD_ABS, AT_NUMBER);
        let allow = Instruction::ret(Action::Allow);
        let argument = Instruction::new(LD_ABS, crate::bpf::low_half(0));
        let mask = Instruction::new(crate::bpf::AND_K, 1);
        let early = Instruction::jump(JEQ, 0, 0, 0);
        let log = Instruction::ret(Action::Log);
        assert!(outcomes(&[number, allow], Arch::X86_64).is_ok());
        for (program, place) in [
            (vec![number, argument, allow], 1),
            (vec![number, mask, allow], 1),
            (vec![early, number, allow], 0),
            (vec![number, log], 1),
            (vec![number], 1),
            (vec![], 0),
        ] {
            match outcomes(&program, Arch::X86_64) {
                Err(CompileError::UnknownForm { at, .. }) => assert_eq!(at, place),
                other => panic!("{program:?} was read as {other:?}"),
            }
        }
    }
}
