//! Refused calls by which libraries find out what there is.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

use varek_seccomp::{Arch, Decision, Reporting, SeccompData, SyscallPolicy};

fn call(arch: Arch, name: &str, arguments: [u64; 3]) -> SeccompData {
    let [first, second, third] = arguments;
    SeccompData {
        nr: arch.number(name).unwrap().cast_signed(),
        arch: arch.audit(),
        instruction_pointer: 0,
        args: [first, second, third, 0, 0, 0],
    }
}

#[test]
fn the_name_service_probe_of_libc_is_a_probe_and_every_other_socket_is_refused() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let program = SyscallPolicy::python()
            .compile(arch, Reporting::Notify)
            .unwrap();
        let decide = |arguments| program.decide(&call(arch, "socket", arguments));
        let probe = [1, 0x8_0801, 0];
        assert_eq!(decide(probe), Decision::Probe);
        for other in [
            [2, 1, 0],
            [1, 1, 0],
            [1, 0x8_0802, 0],
            [1, 0x8_0801, 1],
            [16, 0x8_0801, 0],
        ] {
            assert_eq!(decide(other), Decision::Refuse { errno: 1 }, "{other:?}");
        }
        // A policy that kills for it still does.
        let strict = SyscallPolicy::python().kill(["socket"]);
        let program = strict.compile(arch, Reporting::Notify).unwrap();
        assert_eq!(program.decide(&call(arch, "socket", probe)), Decision::Kill);
    }
}

#[test]
fn io_uring_and_numbers_without_a_name_are_probes() {
    let arch = Arch::X86_64;
    let program = SyscallPolicy::native()
        .compile(arch, Reporting::Notify)
        .unwrap();
    let io_uring = program.decide(&call(arch, "io_uring_setup", [0; 3]));
    assert_eq!(io_uring, Decision::Probe);
    let nr = arch.newest().cast_signed() + 7;
    let unknown = SeccompData {
        nr,
        arch: arch.audit(),
        instruction_pointer: 0,
        args: [0; 6],
    };
    assert_eq!(program.decide(&unknown), Decision::Probe);
}
