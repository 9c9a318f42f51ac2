//! Writes a program from its end to its start, so that every target is known when a jump to it is made.
//!
//! A comparison jumps at most 255 instructions. Where a target is further away, a copy of the return or a
//! `JA` to the block is put behind the comparison, and serves every later one that reaches it.

use std::collections::HashMap;

use crate::bpf::{Action, Instruction, JA};

/// Where a comparison leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// The end of the program with this answer, shared by all that reach it.
    Return(Action),
    /// Code that is already written.
    At(Position),
}

/// An instruction of an unfinished program, counted from the program's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position(usize);

/// A program whose start is still missing.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    /// Last instruction first.
    reversed: Vec<Instruction>,
    /// The foremost copy of each return, and the foremost trampoline to each block.
    nearest: HashMap<Label, Position>,
}

impl Assembler {
    /// Puts one instruction before everything written so far.
    pub(crate) fn push(&mut self, instruction: Instruction) -> Position {
        let position = Position(self.reversed.len());
        self.reversed.push(instruction);
        position
    }

    /// Makes the next instruction pushed go on at the label.
    pub(crate) fn flow_to(&mut self, label: Label) {
        match label {
            Label::Return(action) => {
                let position = self.push(Instruction::ret(action));
                self.nearest.insert(label, position);
            }
            Label::At(Position(at)) if at + 1 == self.reversed.len() => {}
            Label::At(at) => {
                let skip = self.skip(at);
                self.push(Instruction::new(
                    JA,
                    u32::try_from(skip).unwrap_or(u32::MAX),
                ));
            }
        }
    }

    /// Puts a comparison before everything written so far.
    pub(crate) fn branch(&mut self, code: u16, k: u32, holds: Label, fails: Label) -> Position {
        let [holds, fails] = [holds, fails].map(|label| self.near(label));
        let [jt, jf] = [holds, fails].map(|at| u8::try_from(self.skip(at)).unwrap_or(u8::MAX));
        self.push(Instruction::jump(code, k, jt, jf))
    }

    /// A place that the next instruction but one can still jump to and that leads to the label.
    fn near(&mut self, label: Label) -> Position {
        // One more may be pushed before the comparison, so one less than the furthest.
        let reached = |at: &Position, length: usize| u8::try_from(length - at.0).is_ok();
        let length = self.reversed.len();
        if let Label::At(at) = label
            && reached(&at, length)
        {
            return at;
        }
        if let Some(at) = self.nearest.get(&label).filter(|at| reached(at, length)) {
            return *at;
        }
        let instruction = match label {
            Label::Return(action) => Instruction::ret(action),
            Label::At(at) => {
                let skip = u32::try_from(self.skip(at)).unwrap_or(u32::MAX);
                Instruction::new(JA, skip)
            }
        };
        let at = self.push(instruction);
        self.nearest.insert(label, at);
        at
    }

    /// Instructions between the next one pushed and this one.
    fn skip(&self, at: Position) -> usize {
        self.reversed.len() - at.0 - 1
    }

    /// Exchanges an instruction and hands back the old one.
    pub(crate) fn replace(&mut self, at: Position, new: Instruction) -> Instruction {
        match self.reversed.get_mut(at.0) {
            Some(old) => std::mem::replace(old, new),
            None => new,
        }
    }

    /// Index in the finished program, if nothing more is pushed.
    pub(crate) fn index(&self, at: Position) -> usize {
        self.skip(at)
    }

    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        self.reversed.reverse();
        self.reversed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{AT_NUMBER, JEQ, LD_ABS, SeccompData, interpret};

    fn number(nr: i32) -> SeccompData {
        SeccompData {
            nr,
            ..SeccompData::default()
        }
    }

    #[test]
    fn comparisons_reach_labels_of_any_distance() {
        for distance in [0, 1, 252, 253, 254, 255, 256, 257, 600] {
            let mut code = Assembler::default();
            let far = Label::At(code.push(Instruction::ret(Action::Trap(7))));
            let other = Label::At(code.push(Instruction::ret(Action::Trap(8))));
            for _ in 0..distance {
                code.push(Instruction::ret(Action::KillThread));
            }
            code.branch(JEQ, 2, far, Label::Return(Action::Allow));
            let second = Label::At(code.branch(JEQ, 1, far, other));
            code.branch(JEQ, 0, Label::Return(Action::Allow), second);
            code.push(Instruction::new(LD_ABS, AT_NUMBER));
            let program = code.finish();
            for (nr, answer) in [
                (0, Action::Allow),
                (1, Action::Trap(7)),
                (2, Action::Trap(8)),
            ] {
                assert_eq!(interpret(&program, &number(nr)), Ok(answer), "{distance}");
            }
        }
    }

    #[test]
    fn returns_and_trampolines_are_shared_while_they_are_in_reach() {
        let mut code = Assembler::default();
        let block = Label::At(code.push(Instruction::ret(Action::Trap(7))));
        for _ in 0..400 {
            code.push(Instruction::ret(Action::KillThread));
        }
        let mut next = Label::Return(Action::Allow);
        for value in 0..240 {
            next = Label::At(code.branch(JEQ, value, block, next));
        }
        let program = code.finish();
        let count = |code: u16| program.iter().filter(|one| one.code == code).count();
        assert_eq!(count(JA), 1);
        assert_eq!(program.len(), 1 + 400 + 240 + 2);
    }

    #[test]
    fn flow_goes_on_at_a_label_wherever_it_is() {
        for away in [false, true] {
            let mut code = Assembler::default();
            let target = Label::At(code.push(Instruction::ret(Action::Trap(7))));
            if away {
                code.push(Instruction::ret(Action::KillThread));
            }
            code.flow_to(target);
            code.push(Instruction::new(LD_ABS, AT_NUMBER));
            let program = code.finish();
            assert_eq!(program.len(), if away { 4 } else { 2 });
            assert_eq!(interpret(&program, &number(0)), Ok(Action::Trap(7)));
        }
    }
}
