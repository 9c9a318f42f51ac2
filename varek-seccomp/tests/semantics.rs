//! The compiled program is the policy: an independent reading of the policy, written without the crate's
//! internals, must agree with the interpreter on every number, ABI and argument.

#![expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    reason = "a test: a panic is a failure, and halves of words are its subject"
)]

mod support;

use proptest::prelude::*;
use support::{REPORTINGS, call, programs};
use varek_seccomp::{
    Action, Arch, Condition, Decision, FLOOR, Group, Instruction, Permit, Program, Refusal,
    Reporting, Rule, SeccompData, SyscallPolicy, TcpRole, Width, interpret,
};

const FOREIGN: [u32; 4] = [0x4000_0003, 0x4000_0028, 0, 0xdead_beef];
const X32: u32 = 0x4000_0000;
/// Always absent, as is clone3.
const ABSENT: [&str; 6] = [
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "mbind",
    "set_mempolicy",
    "set_mempolicy_home_node",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Allowed,
    Refused,
    Absent,
    Killed,
}

/// What a policy means for one call, read from its public parts.
fn meaning(policy: &SyscallPolicy, arch: Arch, data: &SeccompData) -> Meaning {
    let number = data.nr.cast_unsigned();
    if data.arch != arch.audit() || (arch == Arch::X86_64 && number >= X32) {
        return Meaning::Killed;
    }
    let Some(name) = arch.name(number) else {
        return Meaning::Absent;
    };
    if name == "clone3" || ABSENT.contains(&name) {
        return Meaning::Absent;
    }
    let refused = match policy.unnamed() {
        Refusal::Kill => Meaning::Killed,
        _ => Meaning::Refused,
    };
    let denied = policy.denied().any(|denied| denied == name);
    let plain = policy.calls().any(|call| call == name)
        || policy.groups().any(|group| group.calls().contains(&name));
    if FLOOR.contains(&name) {
        let own = data.args[0].cast_signed() as i32 == 0;
        return if name != "prlimit64" || own || plain {
            Meaning::Allowed
        } else {
            refused
        };
    }
    if policy.killed().any(|killed| killed == name) {
        return Meaning::Killed;
    }
    let low = |index: usize| data.args[index] as u32;
    let forbidden = match name {
        "clone" => low(0) & 0x7e02_a000 != 0,
        "ioctl" => low(1) == 0x5412 || low(1) == 0x541c,
        _ => false,
    };
    let rules = policy.rules().iter().cloned();
    let mut rules = rules.chain(policy.groups().flat_map(Group::rules));
    let ruled = rules.any(|rule| {
        rule.call() == name
            && rule
                .arguments()
                .iter()
                .all(|condition| met(condition, &data.args))
    });
    if !denied && !forbidden && (plain || ruled) {
        Meaning::Allowed
    } else {
        refused
    }
}

fn met(condition: &Condition, args: &[u64; 6]) -> bool {
    let argument = args[usize::from(condition.index())];
    let mask = condition.mask().unwrap_or(u64::MAX);
    match condition.width() {
        Width::Bits32 => (argument as u32) & (mask as u32) == condition.value() as u32,
        Width::Bits64 => argument & mask == condition.value(),
    }
}

fn action(meaning: Meaning, name: Option<&str>, errno: i32, reporting: Reporting) -> Action {
    match (meaning, reporting) {
        (Meaning::Allowed, _) => Action::Allow,
        (Meaning::Absent, _) if name == Some("clone3") => Action::Errno(38),
        (_, Reporting::Notify) => Action::UserNotif,
        (Meaning::Absent, _) => Action::Errno(38),
        (Meaning::Refused, _) => Action::Errno(errno as u16),
        (Meaning::Killed, _) => Action::KillProcess,
    }
}

fn agree(policy: &SyscallPolicy, program: &Program, data: &SeccompData) -> Result<(), String> {
    let arch = program.arch();
    let meaning = meaning(policy, arch, data);
    let name = arch
        .name(data.nr.cast_unsigned())
        .filter(|_| data.arch == arch.audit());
    let expected = action(meaning, name, policy.refusal_errno(), program.reporting());
    let found = program.evaluate(data);
    if found != expected {
        return Err(format!(
            "{name:?} {data:x?}: {found:?}, the policy says {expected:?}"
        ));
    }
    let decision = match meaning {
        Meaning::Absent => Decision::Probe,
        Meaning::Killed => Decision::Kill,
        _ => Decision::Refuse {
            errno: policy.refusal_errno(),
        },
    };
    if program.decide(data) != decision {
        return Err(format!(
            "{name:?} {data:x?}: decided {:?}",
            program.decide(data)
        ));
    }
    Ok(())
}

/// Every number of 0..1024, of the x32 range and beside, through every ABI.
fn agree_everywhere(
    policy: &SyscallPolicy,
    program: &Program,
    mut args: impl FnMut() -> [u64; 6],
) -> Result<(), String> {
    let numbers = (0..1024)
        .chain(X32..X32 + 1024)
        .chain([u32::MAX, 1 << 31, X32 - 1]);
    for number in numbers {
        for arch in FOREIGN.into_iter().chain(Arch::ALL.map(Arch::audit)) {
            // An unlike architecture is decided by its value; the own one deserves the draws.
            let draws = if arch == program.arch().audit() { 4 } else { 1 };
            for _ in 0..draws {
                let nr = number.cast_signed();
                let data = SeccompData {
                    nr,
                    arch,
                    instruction_pointer: 0x1234,
                    args: args(),
                };
                agree(policy, program, &data)?;
            }
        }
    }
    Ok(())
}

/// Values that rules and guards compare with, and noise.
const WORDS: [u64; 20] = [
    0,
    1,
    2,
    3,
    5,
    9,
    0x10,
    0x5401,
    0x5412,
    0x541c,
    0x0001_0000,
    0x0002_0000,
    0x8000,
    0x2000,
    0x7e02_a000,
    0xffff_ffff,
    0x1_0000_0000,
    0x8000_0000_0000_0000,
    0xdead_beef_0000_0001,
    u64::MAX,
];

/// A small generator for arguments, so that one proptest case draws thousands of them.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> u64 {
        let known = WORDS[(self.next() % 20) as usize];
        match self.next() % 4 {
            0 => self.next(),
            // Garbage in the upper half.
            1 => (known & 0xffff_ffff) | (self.next() << 32),
            _ => known,
        }
    }

    fn args(&mut self) -> [u64; 6] {
        std::array::from_fn(|_| self.word())
    }
}

fn conditions() -> impl Strategy<Value = Condition> {
    let word = prop_oneof![prop::sample::select(&WORDS[..]), any::<u64>()];
    (0..6_u8, any::<bool>(), prop::option::of(word.clone()), word).prop_map(
        |(index, wide, mask, value)| {
            let (width, all) = if wide {
                (Width::Bits64, u64::MAX)
            } else {
                (Width::Bits32, 0xffff_ffff)
            };
            match mask.map(|mask| mask & all).filter(|mask| *mask != 0) {
                Some(mask) => Condition::masked_equal(index, width, mask, value & mask),
                None => Condition::equal(index, width, value & all),
            }
        },
    )
}

fn calls() -> impl Strategy<Value = &'static str> {
    let own = [&ABSENT[..], &["clone3", "execve"]].concat();
    let names: Vec<&str> = Arch::ALL
        .iter()
        .flat_map(|arch| arch.calls())
        .map(|(_, name)| name)
        .filter(|name| !FLOOR.contains(name) && !own.contains(name))
        .collect();
    // The calls with tests of their own come up often enough to meet rules, groups and the kill list.
    prop_oneof![
        4 => prop::sample::select(names),
        1 => prop::sample::select(vec!["clone", "ioctl", "fcntl", "socketpair", "sendto", "mseal"]),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    (calls(), prop::collection::vec(conditions(), 1..4)).prop_map(|(call, conditions)| {
        // One condition an argument: two on the same one may exclude each other, which is a problem.
        let mut rule = Rule::on(call);
        for condition in conditions {
            if rule
                .arguments()
                .iter()
                .all(|known| known.index() != condition.index())
            {
                rule = rule.and(condition);
            }
        }
        rule
    })
}

const TCP_ROLES: [TcpRole; 3] = [TcpRole::Client, TcpRole::Server, TcpRole::Both];

fn policies() -> impl Strategy<Value = SyscallPolicy> {
    (
        prop::collection::vec(prop::sample::select(&Group::ALL[..]), 0..8),
        prop::collection::vec(calls(), 0..120),
        prop::collection::vec(calls(), 0..8),
        prop::collection::vec(calls(), 0..20),
        prop::collection::vec(rules(), 0..30),
        1..4096_i32,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.3, prop::sample::select(&TCP_ROLES[..])),
    )
        .prop_map(
            |(groups, allowed, denied, killed, rules, errno, kill, any_pid, tcp)| {
                let mut policy = SyscallPolicy::new()
                    .allow(allowed)
                    .deny(denied)
                    .errno(errno);
                for group in groups {
                    policy = policy.allow_group(group);
                }
                for rule in rules {
                    policy = policy.allow_when(rule);
                }
                if kill {
                    policy = policy.refusal(Refusal::Kill);
                }
                if any_pid {
                    policy = policy.allow(["prlimit64"]);
                }
                if let Some(role) = tcp {
                    policy = policy.with_tcp(role);
                }
                // What is allowed cannot be killed as well.
                let killed: Vec<_> = killed
                    .into_iter()
                    .filter(|name| !policy.allows(name))
                    .collect();
                policy.kill(killed)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.min(40),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_policy_compiles_to_what_it_says(policy in policies(), seed in 1..u64::MAX) {
        for arch in Arch::ALL {
            for reporting in REPORTINGS {
                let program = policy.compile(arch, reporting).map_err(|error| {
                    TestCaseError::fail(error.to_string())
                })?;
                prop_assert!(program.instructions().len() < 4096);
                let mut draw = Draw(seed);
                agree_everywhere(&policy, &program, || draw.args()).map_err(TestCaseError::fail)?;
            }
        }
    }

    /// Rules alone, with arguments that meet them or miss them by a bit.
    #[test]
    fn rules_compile_to_what_they_say(
        rules in prop::collection::vec(rules(), 1..12),
        seed in 1..u64::MAX,
    ) {
        let mut policy = SyscallPolicy::new();
        for rule in &rules {
            policy = policy.allow_when(rule.clone());
        }
        let mut draw = Draw(seed);
        for arch in Arch::ALL {
            let program = policy.compile(arch, Reporting::Errno).map_err(|error| {
                TestCaseError::fail(error.to_string())
            })?;
            for rule in &rules {
                let Some(number) = arch.number(rule.call()) else { continue };
                for step in 0..200 {
                    let mut args = draw.args();
                    for condition in rule.arguments() {
                        let all = if condition.width() == Width::Bits32 { 0xffff_ffff } else { u64::MAX };
                        let mask = condition.mask().unwrap_or(all);
                        let argument = &mut args[usize::from(condition.index())];
                        *argument = (*argument & !mask) | condition.value();
                        if step % 2 == 1 && draw.next().is_multiple_of(2) {
                            *argument ^= 1 << (draw.next() % 64);
                        }
                    }
                    let nr = number.cast_signed();
                    let data = SeccompData { nr, arch: arch.audit(), instruction_pointer: 0, args };
                    agree(&policy, &program, &data).map_err(TestCaseError::fail)?;
                }
            }
        }
    }
}

#[test]
fn presets_and_the_empty_policy_compile_to_what_they_say() {
    let every_group = Group::ALL
        .into_iter()
        .fold(SyscallPolicy::new(), SyscallPolicy::allow_group);
    let policies = [
        ("empty", SyscallPolicy::new()),
        ("empty, kill", SyscallPolicy::new().refusal(Refusal::Kill)),
        ("python", SyscallPolicy::python()),
        ("native", SyscallPolicy::native()),
        ("node", SyscallPolicy::node()),
        ("shell", SyscallPolicy::shell()),
        ("java", SyscallPolicy::java()),
        (
            "python with exec",
            SyscallPolicy::python().allow_group(Group::Exec),
        ),
        (
            "python, exec kills",
            SyscallPolicy::python().kill(["execveat"]),
        ),
        ("every group", every_group),
    ];
    for (name, policy) in policies {
        for arch in Arch::ALL {
            for reporting in REPORTINGS {
                let program = policy.compile(arch, reporting).unwrap();
                let length = program.instructions().len();
                println!("{name} on {arch}, {reporting:?}: {length} instructions");
                assert!(length < 4096);
                let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
                for _ in 0..4 {
                    agree_everywhere(&policy, &program, || draw.args()).unwrap();
                }
            }
        }
    }
}

#[test]
fn the_floor_holds_for_the_empty_policy() {
    for program in programs(&SyscallPolicy::new()) {
        for name in FLOOR {
            assert_eq!(
                program.evaluate(&call(&program, name, [0; 6])),
                Action::Allow,
                "{name}"
            );
        }
        let others = |pid| program.evaluate(&call(&program, "prlimit64", [pid, 0, 0, 0, 0, 0]));
        assert_ne!(others(1), Action::Allow);
        assert_eq!(
            others(0xffff_ffff_0000_0000),
            Action::Allow,
            "the kernel sees pid 0"
        );
        assert_ne!(
            program.evaluate(&call(&program, "read", [0; 6])),
            Action::Allow
        );
    }
    let widened = SyscallPolicy::new().allow(["prlimit64"]);
    for program in programs(&widened) {
        assert_eq!(
            program.evaluate(&call(&program, "prlimit64", [1; 6])),
            Action::Allow
        );
    }
}

#[test]
fn garbage_in_the_upper_half_neither_helps_nor_hurts_a_32_bit_condition() {
    let policy = SyscallPolicy::new()
        .allow(["ioctl", "clone"])
        .allow_when(Rule::on("socket").int(0, 1))
        .allow_when(Rule::on("lseek").and(Condition::equal(1, Width::Bits64, 1)));
    for program in programs(&policy) {
        let allowed = |name, args| program.evaluate(&call(&program, name, args)) == Action::Allow;
        for garbage in [0, 1 << 32, 0xffff_ffff << 32] {
            assert!(allowed("socket", [garbage | 1, 0, 0, 0, 0, 0]));
            assert!(!allowed("socket", [garbage | 2, 0, 0, 0, 0, 0]));
            assert!(
                !allowed("ioctl", [0, garbage | 0x5412, 0, 0, 0, 0]),
                "TIOCSTI"
            );
            assert!(
                !allowed("ioctl", [0, garbage | 0x541c, 0, 0, 0, 0]),
                "TIOCLINUX"
            );
            assert!(allowed("ioctl", [0, garbage | 0x5413, 0, 0, 0, 0]));
            assert!(allowed("clone", [garbage | 0x11, 0, 0, 0, 0, 0]));
            assert_eq!(allowed("lseek", [0, garbage | 1, 0, 0, 0, 0]), garbage == 0);
        }
    }
}

#[test]
fn each_namespace_and_parent_flag_of_clone_is_refused_though_clone_is_named() {
    let flags = [
        0x80, // CLONE_NEWTIME, a signal number for clone: only clone3 takes it as a flag
        0x0002_0000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
        0x8000,
        0x2000,
    ];
    for program in programs(&SyscallPolicy::python().allow(["clone"])) {
        let clone = |flags| program.evaluate(&call(&program, "clone", [flags, 0, 0, 0, 0, 0]));
        assert_eq!(clone(0x0120_0011), Action::Allow, "fork");
        assert_eq!(clone(0x003d_0f00), Action::Allow, "pthread_create");
        for flag in &flags[1..] {
            assert_ne!(clone(0x11 | flag), Action::Allow, "{flag:#x}");
            assert_ne!(
                clone(0xffff_ffff_0000_0011 | flag),
                Action::Allow,
                "{flag:#x}"
            );
        }
        assert_eq!(clone(flags[0] | 0x11), Action::Allow);
        assert_eq!(
            program.evaluate(&call(&program, "clone3", [0; 6])),
            Action::Errno(38)
        );
    }
}

#[test]
fn threads_alone_do_not_allow_children() {
    for program in programs(&SyscallPolicy::new().allow_group(Group::Threads)) {
        let clone = |flags| program.evaluate(&call(&program, "clone", [flags, 0, 0, 0, 0, 0]));
        assert_eq!(clone(0x003d_0f00), Action::Allow, "pthread_create");
        assert_ne!(clone(0x0120_0011), Action::Allow, "fork");
    }
}

#[test]
fn a_permit_opens_execve_and_nothing_less_than_the_whole_of_it_does() {
    for program in programs(&SyscallPolicy::python()) {
        assert!(!program.allows_exec());
        let permit = Permit::random().unwrap();
        let [a, b, c] = permit.words();
        let filter = program.with_permit(&permit);
        let run = |filter: &[Instruction], name, words: [u64; 3]| {
            let [d, e, f] = words;
            interpret(filter, &call(&program, name, [1, 2, 3, d, e, f])).unwrap()
        };
        let refused = program.evaluate(&call(&program, "execve", [0; 6]));
        assert_ne!(refused, Action::Allow);

        assert_eq!(run(&filter, "execve", [a, b, c]), Action::Allow);
        assert_eq!(run(&filter, "execveat", [a, b, c]), refused);
        for words in [
            [a, 0, 0],
            [0, b, 0],
            [0, 0, c],
            [a, b, 0],
            [a, 0, c],
            [0, b, c],
            [c, b, a],
        ] {
            assert_eq!(run(&filter, "execve", words), refused);
        }
        for bit in 0..192 {
            let mut words = [a, b, c];
            words[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(
                run(&filter, "execve", words),
                refused,
                "bit {bit} is not compared"
            );
        }
        for half in 0..6 {
            let keep = 0xffff_ffff_u64 << (32 * (half % 2));
            let mut words = [a, b, c];
            words[half / 2] &= keep;
            assert_eq!(run(&filter, "execve", words), refused, "five of six halves");
            let mut words = [0; 3];
            words[half / 2] = [a, b, c][half / 2] & keep;
            assert_eq!(run(&filter, "execve", words), refused, "one of six halves");
        }
        // Another run's permit, no permit, and the program that has none.
        let [d, e, f] = Permit::random().unwrap().words();
        assert_eq!(run(&filter, "execve", [d, e, f]), refused);
        assert_eq!(run(&filter, "execve", [0; 3]), refused);
        for words in [[a, b, c], [0; 3], [u64::MAX; 3]] {
            assert_eq!(run(program.instructions(), "execve", words), refused);
        }
    }
}

#[test]
fn a_permit_changes_nothing_but_execve() {
    for program in programs(&SyscallPolicy::python()) {
        let filter = program.with_permit(&Permit::random().unwrap());
        let changed = filter
            .iter()
            .zip(program.instructions())
            .filter(|(a, b)| a != b)
            .count();
        assert!((2..=7).contains(&changed), "{changed} instructions differ");
        let mut draw = Draw(77);
        for number in 0..1024 {
            let args = draw.args();
            let arch = program.arch().audit();
            let data = SeccompData {
                nr: number,
                arch,
                instruction_pointer: 0,
                args,
            };
            assert_eq!(interpret(&filter, &data), Ok(program.evaluate(&data)));
        }
    }
}

#[test]
fn where_execve_is_allowed_no_permit_is_needed() {
    for program in programs(&SyscallPolicy::python().allow_group(Group::Exec)) {
        assert!(program.allows_exec());
        assert_eq!(
            program.evaluate(&call(&program, "execve", [0; 6])),
            Action::Allow
        );
        let permit = Permit::random().unwrap();
        assert_eq!(program.with_permit(&permit), program.instructions());
    }
}

#[test]
fn a_killed_execve_still_takes_the_permit_and_kills_without() {
    for program in programs(&SyscallPolicy::python().kill(["execve"])) {
        let permit = Permit::random().unwrap();
        let [a, b, c] = permit.words();
        let start = call(&program, "execve", [0, 0, 0, a, b, c]);
        assert_eq!(
            interpret(&program.with_permit(&permit), &start),
            Ok(Action::Allow)
        );
        let expected = match program.reporting() {
            Reporting::Notify => Action::UserNotif,
            _ => Action::KillProcess,
        };
        let again = call(&program, "execve", [0; 6]);
        assert_eq!(
            interpret(&program.with_permit(&permit), &again),
            Ok(expected)
        );
        assert_eq!(program.decide(&again), Decision::Kill);
    }
}

#[test]
fn denying_wins_over_groups_names_and_rules_in_any_order() {
    let policy = SyscallPolicy::python()
        .deny(["openat", "fcntl", "getpid"])
        .allow(["openat", "getpid"])
        .allow_when(Rule::on("fcntl").int(1, 0));
    assert!(!policy.allows("openat"));
    for program in programs(&policy) {
        for name in ["openat", "fcntl", "getpid"] {
            assert_ne!(
                program.evaluate(&call(&program, name, [0; 6])),
                Action::Allow,
                "{name}"
            );
        }
        assert_eq!(
            program.evaluate(&call(&program, "getuid", [0; 6])),
            Action::Allow
        );
    }
}

/// The kernel's `seccomp_is_const_allow`: a call is cached as allowed if a run that knows only its number and
/// architecture, and a few operations, ends in `ALLOW`.
fn cached(program: &[Instruction], number: u32, arch: u32) -> bool {
    let (mut a, mut at) = (0, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        let mut skip = 0;
        let mut branch = |holds: bool| skip = usize::from(if holds { jt } else { jf });
        match code {
            0x20 if k == 0 => a = number,
            0x20 if k == 4 => a = arch,
            0x05 => skip = k as usize,
            0x15 => branch(a == k),
            0x35 => branch(a >= k),
            0x25 => branch(a > k),
            0x45 => branch(a & k != 0),
            0x54 => a &= k,
            0x06 => return k == 0x7fff_0000,
            _ => return false,
        }
        at += 1 + skip;
    }
}

#[test]
fn calls_that_are_allowed_with_any_arguments_are_decided_by_their_number_alone() {
    let policy = SyscallPolicy::python().allow(["mseal", "cachestat"]);
    for program in programs(&policy) {
        let arch = program.arch();
        let filter = program.with_permit(&Permit::random().unwrap());
        let mut plain = 0;
        for (number, name) in arch.calls() {
            let any = policy.calls().any(|call| call == name)
                || policy.groups().any(|group| group.calls().contains(&name))
                || FLOOR.contains(&name);
            let expected = any && !["prlimit64", "clone"].contains(&name);
            assert_eq!(cached(&filter, number, arch.audit()), expected, "{name}");
            plain += u32::from(expected);
        }
        assert!(plain > 150, "{plain} calls are cached");
    }
}
