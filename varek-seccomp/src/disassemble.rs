//! A program as text.

use std::fmt;

use crate::Arch;
use crate::bpf::{
    AND_K, AT_ARCH, AT_NUMBER, Action, Instruction, JA, JEQ, JGE, JGT, JSET, LD_ABS, OR_X, RET,
    TAX, XOR_K, low_half,
};

pub(crate) struct Disassembly<'a> {
    pub(crate) instructions: &'a [Instruction],
    pub(crate) arch: Arch,
}

impl fmt::Display for Disassembly<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every block starts with its own load, so the last load above tells what a comparison is about.
        let mut loaded = AT_ARCH;
        for (at, instruction) in self.instructions.iter().enumerate() {
            if instruction.code == LD_ABS {
                loaded = instruction.k;
            }
            write!(
                f,
                "{at:4}: {}",
                Line {
                    at,
                    instruction: *instruction
                }
            )?;
            let name = self
                .arch
                .name(instruction.k)
                .filter(|_| loaded == AT_NUMBER);
            match (name, instruction.code) {
                (Some(name), JEQ) => write!(f, "  ; {name}")?,
                (Some(name), JGE) => write!(f, "  ; {name} and above")?,
                (Some(name), JGT) => write!(f, "  ; above {name}")?,
                _ => {}
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

struct Line {
    at: usize,
    instruction: Instruction,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            instruction: Instruction { code, jt, jf, k },
        } = *self;
        let to = |skip: u32| at + 1 + usize::try_from(skip).unwrap_or(0);
        let mut branch = |word: &str| {
            write!(
                f,
                "{word:<5}{k:#x} -> {} else {}",
                to(jt.into()),
                to(jf.into())
            )
        };
        match code {
            JEQ => branch("jeq"),
            JGT => branch("jgt"),
            JGE => branch("jge"),
            JSET => branch("jset"),
            JA => write!(f, "ja   -> {}", to(k)),
            LD_ABS => write!(f, "ld   {}", field(k)),
            AND_K => write!(f, "and  {k:#x}"),
            // The constants are a permit's halves; a program without one has zeroes here.
            XOR_K => write!(f, "xor  {k:#x}"),
            OR_X => f.write_str("or   x"),
            TAX => f.write_str("tax"),
            RET => match Action::from_return_value(k) {
                Action::Errno(errno) => {
                    write!(f, "ret  ERRNO({})", crate::errno::display(errno.into()))
                }
                Action::Allow => f.write_str("ret  ALLOW"),
                Action::UserNotif => f.write_str("ret  USER_NOTIF"),
                Action::KillProcess => f.write_str("ret  KILL_PROCESS"),
                other => write!(f, "ret  {other:?}"),
            },
            _ => write!(f, "{code:#04x} {k:#x} {jt} {jf}"),
        }
    }
}

fn field(offset: u32) -> String {
    match offset {
        AT_NUMBER => "nr".into(),
        AT_ARCH => "arch".into(),
        _ => {
            let index = offset.saturating_sub(low_half(0)) / 8;
            let half = if offset.is_multiple_of(8) {
                "low"
            } else {
                "high"
            };
            format!("args[{index}].{half}")
        }
    }
}
