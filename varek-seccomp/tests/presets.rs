//! What the presets allow and refuse, compiled for both architectures and with both ways of reporting.

mod support;

use support::{call, programs};
use varek_seccomp::{Action, SyscallPolicy};

const PRESETS: [fn() -> SyscallPolicy; 5] = [
    SyscallPolicy::python,
    SyscallPolicy::native,
    SyscallPolicy::node,
    SyscallPolicy::shell,
    SyscallPolicy::java,
];

#[test]
fn each_preset_has_what_its_guests_need_and_nothing_of_the_others() {
    let has = |call: &str| PRESETS.map(|preset| preset().allows(call));
    let [children, exec, pairs, placement, ids] =
        ["fork", "execve", "socketpair", "get_mempolicy", "setresuid"].map(has);
    // Python, native, Node, shells, the JVM.
    assert_eq!(children, [true, true, false, true, false]);
    assert_eq!(exec, [false, false, false, true, false]);
    assert_eq!(pairs, [true, true, false, true, true]);
    assert_eq!(placement, [true, true, false, true, false]);
    assert_eq!(ids, [false, false, false, true, false]);
    // Threads are made by everybody, and other children by those who may have any.
    for (preset, children) in PRESETS.into_iter().zip(children) {
        for program in programs(&preset()) {
            let clone = |flags| program.evaluate(&call(&program, "clone", [flags, 0, 0, 0, 0, 0]));
            assert_eq!(clone(0x003d_0f00), Action::Allow);
            assert_eq!(clone(0x0120_0011) == Action::Allow, children);
        }
    }
}

/// The kernel takes time to load a filter, most of it by the length.
#[test]
fn presets_stay_short() {
    for policy in PRESETS.map(|preset| preset()) {
        for program in programs(&policy) {
            let length = program.instructions().len();
            assert!(length <= 220, "{length} on {}", program.arch());
        }
    }
}

#[test]
fn presets_refuse_the_known_ways_to_reach_others() {
    for policy in PRESETS.map(|preset| preset()) {
        let [jobs, pairs, exec] =
            ["setresuid", "socketpair", "execveat"].map(|name| policy.allows(name));
        for program in programs(&policy) {
            let allowed =
                |name, args| program.evaluate(&call(&program, name, args)) == Action::Allow;
            let second = |value| [0, value, 0, 0, 0, 0];
            for command in [8, 10, 15, 1024, 1026] {
                assert!(!allowed("fcntl", second(command)), "fcntl {command}");
            }
            for request in [0x5412, 0x541c, 0x8901, 0x8902, 0x5402, 0x5404, 0x540e] {
                assert!(!allowed("ioctl", second(request)), "ioctl {request:#x}");
            }
            // TIOCSPGRP and TCSETSW, which a shell makes of the terminal that it does not have.
            for request in [0x5410, 0x5403] {
                assert_eq!(allowed("ioctl", second(request)), jobs, "{request:#x}");
            }
            assert!(!allowed("prctl", [1, 0, 0, 0, 0, 0]), "PR_SET_PDEATHSIG");
            assert!(!allowed("prctl", [4, 0, 0, 0, 0, 0]), "PR_SET_DUMPABLE");
            assert!(
                !allowed("personality", [0x0040_0000, 0, 0, 0, 0, 0]),
                "READ_IMPLIES_EXEC"
            );
            assert!(!allowed("prlimit64", [1, 0, 0, 0, 0, 0]));
            assert!(!allowed("setpriority", [0, 1, 0, 0, 0, 0]));
            assert!(!allowed("sched_setaffinity", [1, 0, 0, 0, 0, 0]));
            assert!(
                !allowed("socketpair", [1, 2, 0, 0, 0, 0]),
                "datagram pairs can be redirected"
            );
            assert!(!allowed("socketpair", [2, 1, 0, 0, 0, 0]));
            assert!(!allowed("sendto", [0, 0, 0, 0, 1, 16]), "an address");
            assert!(
                !allowed("mknodat", [0, 0, 0o060_600, 0, 0, 0]),
                "a block device"
            );
            for name in [
                "socket",
                "connect",
                "bind",
                "listen",
                "accept",
                "shmget",
                "inotify_init1",
                "move_pages",
                "setgroups",
                "setuid",
                "capset",
            ] {
                assert!(!allowed(name, [0; 6]), "{name}");
            }
            assert_eq!(allowed("execveat", [0; 6]), exec);
            // The same calls as honest programs make them.
            assert!(allowed("fcntl", second(1030)), "F_DUPFD_CLOEXEC");
            assert!(allowed("ioctl", second(0x5401)), "TCGETS");
            assert!(allowed("prctl", [15, 0, 0, 0, 0, 0]), "PR_SET_NAME");
            assert!(allowed("personality", [0xffff_ffff, 0, 0, 0, 0, 0]));
            assert_eq!(
                allowed("socketpair", [1, 0x8_0001, 0, 0, 0, 0]),
                pairs,
                "SOCK_STREAM | SOCK_CLOEXEC"
            );
            assert_eq!(allowed("sendto", [0; 6]), pairs);
            assert!(allowed("mknodat", [0, 0, 0o010_600, 0, 0, 0]), "a FIFO");
        }
    }
}
