//! Classic BPF as seccomp uses it: instructions, actions, and an interpreter.
//!
//! Source: `linux/filter.h`, `linux/seccomp.h`, and the kernel's `seccomp_check_filter`, whose list of
//! permitted operations is the list that [`interpret`] knows.

use thiserror::Error;

// Operation codes, each the sum of a class, a mode or operation, and a source.
pub(crate) const LD_ABS: u16 = 0x20;
pub(crate) const LD_IMM: u16 = 0x00;
pub(crate) const LD_LEN: u16 = 0x80;
pub(crate) const LD_MEM: u16 = 0x60;
pub(crate) const LDX_IMM: u16 = 0x01;
pub(crate) const LDX_LEN: u16 = 0x81;
pub(crate) const LDX_MEM: u16 = 0x61;
pub(crate) const ST: u16 = 0x02;
pub(crate) const STX: u16 = 0x03;
pub(crate) const AND_K: u16 = 0x54;
pub(crate) const XOR_K: u16 = 0xa4;
pub(crate) const OR_X: u16 = 0x4c;
pub(crate) const NEG: u16 = 0x84;
pub(crate) const JA: u16 = 0x05;
pub(crate) const JEQ: u16 = 0x15;
pub(crate) const JGT: u16 = 0x25;
pub(crate) const JGE: u16 = 0x35;
pub(crate) const JSET: u16 = 0x45;
pub(crate) const RET: u16 = 0x06;
pub(crate) const RET_A: u16 = 0x16;
pub(crate) const TAX: u16 = 0x07;
pub(crate) const TXA: u16 = 0x87;

const SOURCE_X: u16 = 0x08;
const CLASS: u16 = 0x07;
const CLASS_ALU: u16 = 0x04;
const CLASS_JMP: u16 = 0x05;

/// Offsets in `struct seccomp_data`.
pub(crate) const AT_NUMBER: u32 = 0;
pub(crate) const AT_ARCH: u32 = 4;
const AT_ARGUMENTS: u32 = 16;
const DATA_SIZE: u32 = 64;

/// The most instructions that the kernel takes in one program (`BPF_MAXINSNS`).
pub const LONGEST: usize = 4096;

/// Offset of the low half of an argument; the high half is 4 further (little endian).
pub(crate) const fn low_half(index: u8) -> u32 {
    AT_ARGUMENTS + 8 * index as u32
}

/// One classic BPF instruction, in the layout of the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Operation code.
    pub code: u16,
    /// Instructions to skip where a comparison holds.
    pub jt: u8,
    /// Instructions to skip where it does not.
    pub jf: u8,
    /// Constant, offset or distance.
    pub k: u32,
}

impl Instruction {
    pub(crate) const fn new(code: u16, k: u32) -> Self {
        Self {
            code,
            jt: 0,
            jf: 0,
            k,
        }
    }

    pub(crate) const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Self {
        Self { code, jt, jf, k }
    }

    pub(crate) const fn ret(action: Action) -> Self {
        Self::new(RET, action.to_return_value())
    }
}

/// What a filter sees of a system call: `struct seccomp_data`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeccompData {
    /// Number of the call.
    pub nr: i32,
    /// `AUDIT_ARCH_*` of the ABI that the call came through.
    pub arch: u32,
    /// Address of the instruction that made the call.
    pub instruction_pointer: u64,
    /// The argument registers; a call with fewer arguments leaves the rest as the caller had them.
    pub args: [u64; 6],
}

impl SeccompData {
    /// The number as the filter compares it.
    pub(crate) const fn number(&self) -> u32 {
        self.nr.cast_unsigned()
    }

    fn word(&self, offset: u32) -> Option<u32> {
        if !offset.is_multiple_of(4) || offset >= DATA_SIZE {
            return None;
        }
        let halves = |value: u64, high: bool| {
            let value = if high { value >> 32 } else { value };
            u32::try_from(value & 0xffff_ffff).ok()
        };
        let high = offset % 8 == 4;
        match offset {
            AT_NUMBER => Some(self.number()),
            AT_ARCH => Some(self.arch),
            8 | 12 => halves(self.instruction_pointer, high),
            _ => {
                let index = usize::try_from((offset - AT_ARGUMENTS) / 8).ok()?;
                halves(*self.args.get(index)?, high)
            }
        }
    }
}

/// What a filter answers; the kernel's `SECCOMP_RET_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// The call is made.
    Allow,
    /// The call is not made and fails with this errno.
    Errno(u16),
    /// The call waits for the answer of the listener (Linux 5.0).
    UserNotif,
    /// The whole process dies of `SIGSYS` (Linux 4.14).
    KillProcess,
    /// The calling thread dies of `SIGSYS`.
    KillThread,
    /// The thread gets `SIGSYS`, with this value in `si_errno`.
    Trap(u16),
    /// A tracer decides; without one the call fails with `ENOSYS`.
    Trace(u16),
    /// The call is made and logged.
    Log,
}

impl Action {
    /// The 32-bit value that a program returns for this action.
    pub const fn to_return_value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Errno(errno) => 0x0005_0000 | errno as u32,
            Self::UserNotif => 0x7fc0_0000,
            Self::KillProcess => 0x8000_0000,
            Self::KillThread => 0,
            Self::Trap(data) => 0x0003_0000 | data as u32,
            Self::Trace(data) => 0x7ff0_0000 | data as u32,
            Self::Log => 0x7ffc_0000,
        }
    }

    /// The action that the kernel takes for a returned value; an unknown one kills the process.
    pub const fn from_return_value(value: u32) -> Self {
        let [high, low] = [value & 0xffff_0000, value & 0xffff];
        #[expect(clippy::cast_possible_truncation, reason = "masked to 16 bits above")]
        let data = low as u16;
        match high {
            0x7fff_0000 => Self::Allow,
            0x0005_0000 => Self::Errno(data),
            0x7fc0_0000 => Self::UserNotif,
            0 => Self::KillThread,
            0x0003_0000 => Self::Trap(data),
            0x7ff0_0000 => Self::Trace(data),
            0x7ffc_0000 => Self::Log,
            _ => Self::KillProcess,
        }
    }
}

/// Why [`interpret`] could not run a program; the kernel refuses such a program when it is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The program ran past its last instruction.
    #[error("the program runs past its end, at instruction {at}")]
    End {
        /// Position of the instruction.
        at: usize,
    },
    /// An operation that seccomp does not permit.
    #[error("operation {code:#x} at instruction {at} is not permitted in a seccomp filter")]
    Operation {
        /// Position of the instruction.
        at: usize,
        /// Its operation code.
        code: u16,
    },
    /// A load or store outside `seccomp_data` or the sixteen words of scratch memory.
    #[error("instruction {at} reaches outside the data or the scratch memory: {k:#x}")]
    Address {
        /// Position of the instruction.
        at: usize,
        /// The offset or index.
        k: u32,
    },
    /// Division by the index register while it is zero; the kernel ends the program with 0 there.
    #[error("instruction {at} divides by zero or shifts by more than 31")]
    Arithmetic {
        /// Position of the instruction.
        at: usize,
    },
}

/// Runs a program on a call, as the kernel would.
///
/// # Errors
///
/// [`Fault`] where the kernel would refuse the program. Compiled programs never fault.
pub fn interpret(program: &[Instruction], data: &SeccompData) -> Result<Action, Fault> {
    let (mut a, mut x) = (0_u32, 0_u32);
    let mut memory = [0_u32; 16];
    let mut at = 0_usize;
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at).ok_or(Fault::End { at })?;
        let address = Fault::Address { at, k };
        let slot = usize::try_from(k).unwrap_or(usize::MAX);
        let mut skip = 0;
        match code {
            LD_ABS => a = data.word(k).ok_or(address)?,
            LD_IMM => a = k,
            LDX_IMM => x = k,
            LD_LEN => a = DATA_SIZE,
            LDX_LEN => x = DATA_SIZE,
            LD_MEM => a = *memory.get(slot).ok_or(address)?,
            LDX_MEM => x = *memory.get(slot).ok_or(address)?,
            ST => *memory.get_mut(slot).ok_or(address)? = a,
            STX => *memory.get_mut(slot).ok_or(address)? = x,
            TAX => x = a,
            TXA => a = x,
            NEG => a = a.wrapping_neg(),
            RET => return Ok(Action::from_return_value(k)),
            RET_A => return Ok(Action::from_return_value(a)),
            JA => skip = k,
            _ => {
                let operand = if code & SOURCE_X == 0 { k } else { x };
                match code & CLASS {
                    CLASS_ALU => a = arithmetic(at, code, a, operand)?,
                    CLASS_JMP => {
                        let holds = comparison(at, code, a, operand)?;
                        skip = u32::from(if holds { jt } else { jf });
                    }
                    _ => return Err(Fault::Operation { at, code }),
                }
            }
        }
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        at = at.saturating_add(1).saturating_add(skip);
    }
}

fn arithmetic(at: usize, code: u16, a: u32, operand: u32) -> Result<u32, Fault> {
    let fault = Fault::Arithmetic { at };
    Ok(match code & !(SOURCE_X | CLASS) {
        0x00 => a.wrapping_add(operand),
        0x10 => a.wrapping_sub(operand),
        0x20 => a.wrapping_mul(operand),
        0x30 => a.checked_div(operand).ok_or(fault)?,
        0x40 => a | operand,
        0x50 => a & operand,
        0x60 => a.checked_shl(operand).ok_or(fault)?,
        0x70 => a.checked_shr(operand).ok_or(fault)?,
        0xa0 => a ^ operand,
        _ => return Err(Fault::Operation { at, code }),
    })
}

fn comparison(at: usize, code: u16, a: u32, operand: u32) -> Result<bool, Fault> {
    Ok(match code & !(SOURCE_X | CLASS) {
        0x10 => a == operand,
        0x20 => a > operand,
        0x30 => a >= operand,
        0x40 => a & operand != 0,
        _ => return Err(Fault::Operation { at, code }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_survive_the_return_value() {
        let all = [
            Action::Allow,
            Action::Errno(1),
            Action::Errno(38),
            Action::UserNotif,
            Action::KillProcess,
            Action::KillThread,
            Action::Trap(7),
            Action::Trace(9),
            Action::Log,
        ];
        for action in all {
            assert_eq!(Action::from_return_value(action.to_return_value()), action);
        }
        assert_eq!(Action::from_return_value(0x1234_0000), Action::KillProcess);
    }

    #[test]
    fn an_instruction_has_the_layout_of_sock_filter() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(std::mem::offset_of!(Instruction, jt), 2);
        assert_eq!(std::mem::offset_of!(Instruction, jf), 3);
        assert_eq!(std::mem::offset_of!(Instruction, k), 4);
    }

    #[test]
    fn every_word_of_the_data_can_be_loaded_and_no_other() {
        let data = SeccompData {
            nr: 1,
            arch: 2,
            instruction_pointer: 0x4_0000_0003,
            args: [
                0x6_0000_0005,
                0x8_0000_0007,
                0xa_0000_0009,
                0xc_0000_000b,
                0xe_0000_000d,
                0x10_0000_000f,
            ],
        };
        for word in 0..16 {
            assert_eq!(data.word(word * 4), Some(word + 1));
        }
        assert_eq!(data.word(64), None);
        assert_eq!(data.word(2), None);
    }

    #[test]
    fn malformed_programs_fault() {
        let data = SeccompData::default();
        let run = |program: &[Instruction]| interpret(program, &data);
        assert_eq!(run(&[]), Err(Fault::End { at: 0 }));
        assert_eq!(
            run(&[Instruction::new(JA, u32::MAX)]).map_err(|_| ()),
            Err(())
        );
        assert_eq!(
            run(&[Instruction::new(LD_ABS, 64)]),
            Err(Fault::Address { at: 0, k: 64 })
        );
        assert_eq!(
            run(&[Instruction::new(ST, 16)]),
            Err(Fault::Address { at: 0, k: 16 })
        );
        assert_eq!(
            run(&[Instruction::new(0x28, 0)]),
            Err(Fault::Operation { at: 0, code: 0x28 })
        );
    }

    #[test]
    fn arithmetic_and_scratch_memory_work_as_in_the_kernel() {
        let program = [
            Instruction::new(LD_IMM, 0b1100),
            Instruction::new(XOR_K, 0b1010),
            Instruction::new(ST, 3),
            Instruction::new(LDX_MEM, 3),
            Instruction::new(LD_IMM, 1),
            Instruction::new(OR_X, 0),
            Instruction::jump(JEQ, 0b0111, 0, 1),
            Instruction::ret(Action::Allow),
            Instruction::ret(Action::KillProcess),
        ];
        assert_eq!(
            interpret(&program, &SeccompData::default()),
            Ok(Action::Allow)
        );
    }
}
