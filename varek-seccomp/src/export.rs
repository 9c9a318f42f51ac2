//! The one use of libseccomp: a search tree over call numbers.

use std::fs::File;
use std::io::{Read as _, Seek as _};

use libseccomp::error::SeccompError;
use libseccomp::{ScmpAction, ScmpArch, ScmpFilterContext, ScmpSyscall};

use crate::bpf::Instruction;
use crate::emit::{BAD_ARCH, DEFAULT, Exported, Leaf};
use crate::{Arch, CompileError};

/// Binary search over the numbers, by libseccomp's `SCMP_FLTATR_CTL_OPTIMIZE`.
const BINARY_TREE: u32 = 2;

pub(crate) fn export(arch: Arch, leaves: &[Leaf]) -> Result<Exported, CompileError> {
    let failed = |operation| {
        move |error: SeccompError| CompileError::Libseccomp {
            operation,
            arch,
            message: error.to_string(),
        }
    };
    let mut filter =
        ScmpFilterContext::new(placeholder(DEFAULT)).map_err(failed("start a filter"))?;
    let scmp_arch = match arch {
        Arch::X86_64 => ScmpArch::X8664,
        Arch::Aarch64 => ScmpArch::Aarch64,
    };
    let native = Arch::native() == Some(arch);
    if !native {
        filter
            .remove_arch(ScmpArch::Native)
            .map_err(failed("leave the host's architecture"))?;
        filter
            .add_arch(scmp_arch)
            .map_err(failed("take the architecture"))?;
    }
    filter
        .set_act_badarch(placeholder(BAD_ARCH))
        .map_err(failed("name the foreign action"))?;
    filter
        .set_ctl_optimize(BINARY_TREE)
        .map_err(failed("balance the search"))?;

    let mut left = Vec::new();
    for leaf in leaves {
        // libseccomp takes numbers of the host's architecture and translates them by its own names. Numbers
        // of the host itself pass as they are, also those that it has no name for.
        let call = if native {
            i32::try_from(leaf.number)
                .ok()
                .map(ScmpSyscall::from_raw_syscall)
        } else {
            translated(leaf, scmp_arch)
        };
        let Some(call) = call else {
            left.push(*leaf);
            continue;
        };
        let action = leaf.placeholder.map_or(ScmpAction::Allow, placeholder);
        filter
            .add_rule_exact(action, call)
            .map_err(failed("add a rule"))?;
    }
    Ok(Exported {
        program: read_back(&filter, arch)?,
        left,
    })
}

/// The host's number of a call, where libseccomp knows the call on both sides and means the same by it.
fn translated(leaf: &Leaf, arch: ScmpArch) -> Option<ScmpSyscall> {
    let there = ScmpSyscall::from_name_by_arch(leaf.name, arch)
        .ok()?
        .as_raw_syscall();
    let here = ScmpSyscall::from_name(leaf.name).ok()?;
    (u32::try_from(there).ok()? == leaf.number).then_some(here)
}

fn placeholder(number: u16) -> ScmpAction {
    ScmpAction::Trace(number)
}

fn read_back(filter: &ScmpFilterContext, arch: Arch) -> Result<Vec<Instruction>, CompileError> {
    let failed = |operation| move |source| CompileError::Export { operation, source };
    let memory = rustix::fs::memfd_create("varek-seccomp", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|errno| CompileError::Export {
            operation: "create",
            source: errno.into(),
        })?;
    let mut memory = File::from(memory);
    filter
        .export_bpf(&memory)
        .map_err(|error| CompileError::Libseccomp {
            operation: "export the program",
            arch,
            message: error.to_string(),
        })?;
    let mut bytes = Vec::new();
    memory.rewind().map_err(failed("rewind"))?;
    memory.read_to_end(&mut bytes).map_err(failed("read"))?;
    let (instructions, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(CompileError::UnknownForm {
            reason: "part of an instruction",
            at: instructions.len(),
        });
    }
    let instruction = |&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| Instruction {
        code: u16::from_ne_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_ne_bytes([k0, k1, k2, k3]),
    };
    Ok(instructions.iter().map(instruction).collect())
}
