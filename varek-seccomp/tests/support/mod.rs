//! Calls and programs, for the tests of what programs decide.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a module of test programs, where a panic is a failure"
)]

use varek_seccomp::{Arch, Program, Reporting, SeccompData, SyscallPolicy};

pub const REPORTINGS: [Reporting; 2] = [Reporting::Notify, Reporting::Errno];

/// This call, as the program's architecture has it.
pub fn call(program: &Program, name: &str, args: [u64; 6]) -> SeccompData {
    let arch = program.arch();
    let nr = arch.number(name).unwrap().cast_signed();
    SeccompData {
        nr,
        arch: arch.audit(),
        instruction_pointer: 0,
        args,
    }
}

/// The policy compiled for every architecture and way of reporting.
pub fn programs(policy: &SyscallPolicy) -> impl Iterator<Item = Program> {
    let all = Arch::ALL
        .into_iter()
        .flat_map(|arch| REPORTINGS.map(|reporting| (arch, reporting)));
    all.map(|(arch, reporting)| policy.compile(arch, reporting).unwrap())
}
