//! Policies as data: files, problems and explanations.
#![expect(clippy::unwrap_used, reason = "a test: a panic is a failure")]

use varek_seccomp::{
    Arch, CompileError, Condition, Group, Place, Problem, Program, Refusal, Reporting, Rule,
    Ruling, SyscallPolicy, Width,
};

fn problems(policy: &SyscallPolicy) -> Vec<Problem> {
    policy.check(Arch::X86_64).err().unwrap_or_default()
}

fn compiled(policy: &SyscallPolicy, reporting: Reporting) -> Program {
    policy.compile(Arch::X86_64, reporting).unwrap()
}

fn rich() -> SyscallPolicy {
    SyscallPolicy::native()
        .errno(13)
        .refusal(Refusal::Kill)
        .deny(["symlink"])
        .allow(["socket"])
        .kill(["acct"])
        .allow_when(
            Rule::on("connect")
                .int(0, 7)
                .and(Condition::equal(1, Width::Bits64, u64::MAX)),
        )
        .allow_when(Rule::on("bind").and(Condition::masked_equal(
            2,
            Width::Bits64,
            1 << 63 | 1,
            1 << 63,
        )))
}

#[test]
fn policies_survive_json_and_toml() {
    for policy in [SyscallPolicy::new(), SyscallPolicy::python(), rich()] {
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(
            serde_json::from_str::<SyscallPolicy>(&json).unwrap(),
            policy,
            "{json}"
        );
        let text = toml::to_string(&policy).unwrap();
        assert_eq!(
            toml::from_str::<SyscallPolicy>(&text).unwrap(),
            policy,
            "{text}"
        );
    }
}

#[test]
fn a_policy_file_reads_as_documented() {
    let text = r#"
        default = "errno"
        errno = "EACCES"
        groups = ["runtime", "basic-io"]
        calls = ["getcwd"]
        deny = ["pipe"]
        kill = ["ptrace"]

        [[rules]]
        call = "socket"
        arguments = [
            { index = 0, width = 32, op = "equal", value = 1 },
            { index = 1, width = 32, op = "masked_equal", mask = 0xf, value = 1 },
        ]
    "#;
    let policy: SyscallPolicy = toml::from_str(text).unwrap();
    let same = SyscallPolicy::new()
        .errno(13)
        .allow_group(Group::Runtime)
        .allow_group(Group::BasicIo)
        .allow(["getcwd"])
        .deny(["pipe"])
        .kill(["ptrace"])
        .allow_when(Rule::on("socket").int(0, 1).and(Condition::masked_equal(
            1,
            Width::Bits32,
            0xf,
            1,
        )));
    assert_eq!(policy, same);
    assert!(policy.check(Arch::X86_64).is_ok());
    assert_eq!(
        toml::from_str::<SyscallPolicy>("").unwrap(),
        SyscallPolicy::new()
    );
}

#[test]
fn unknown_fields_groups_errnos_and_actions_are_errors_with_a_hint() {
    let error = |text: &str| {
        toml::from_str::<SyscallPolicy>(text)
            .unwrap_err()
            .to_string()
    };
    assert!(error("allowed = []").contains("unknown field `allowed`"));
    assert!(error("groups = [\"file\"]").contains("did you mean files?"));
    assert!(error("errno = \"EPREM\"").contains("did you mean EPERM?"));
    assert!(error("default = \"allow\"").contains("unknown variant `allow`"));
    let rule = |argument: &str| {
        error(&format!(
            "[[rules]]\ncall = \"socket\"\narguments = [{{ {argument} }}]"
        ))
    };
    assert!(rule("index = 0, width = 16, op = \"equal\", value = 1").contains("32 or 64 bits"));
    assert!(rule("index = 0, width = 32, op = \"equal\", value = -1").contains("negative"));
    assert!(rule("index = 0, width = 32, op = \"less\", value = 1").contains("less"));
    assert!(rule("index = 0, width = 32, op = \"equal\", value = 1, x = 1").contains("`x`"));
}

#[test]
fn every_problem_is_reported_at_once() {
    let policy = SyscallPolicy::python()
        .errno(0)
        .allow(["opnat", "ptrace", "io_uring_setup", "clone3"])
        .deny(["exit_group"])
        .kill(["close_range", "frobnicate_widgets", "openat"])
        .allow_when(Rule::on("prlimit64").int(0, 1))
        .allow_when(Rule::on("socket"))
        .allow_when(Rule::on("socket").int(6, 1))
        .allow_when(Rule::on("socket").int(0, 1).int(0, 2))
        .allow_when(Rule::on("execve").int(0, 1));
    let found = problems(&policy);
    let has = |problem: &Problem| found.contains(problem);
    let name = String::from;
    assert!(has(&Problem::Errno { errno: 0 }));
    assert!(has(&Problem::UnknownCall {
        name: name("opnat"),
        place: Place::Calls,
        suggestion: Some("openat"),
    }));
    assert!(has(&Problem::UnknownCall {
        name: name("frobnicate_widgets"),
        place: Place::Kill,
        suggestion: None,
    }));
    for (call, place) in [
        ("exit_group", Place::Deny),
        ("close_range", Place::Kill),
        ("prlimit64", Place::Rules),
    ] {
        assert!(
            has(&Problem::Floor {
                name: name(call),
                place
            }),
            "{call}"
        );
    }
    for call in ["ptrace", "openat"] {
        assert!(
            has(&Problem::AllowedAndKilled { name: name(call) }),
            "{call}"
        );
    }
    for call in ["io_uring_setup", "clone3"] {
        let absent = |problem: &Problem| matches!(problem, Problem::AlwaysAbsent { name, .. } if name == call);
        assert!(found.iter().any(absent), "{call}");
    }
    assert!(has(&Problem::EmptyRule {
        call: name("socket")
    }));
    assert!(has(&Problem::Contradiction {
        call: name("socket"),
        index: 0
    }));
    assert!(has(&Problem::ExecRule));
    assert!(
        found
            .iter()
            .any(|problem| matches!(problem, Problem::Condition { index: 6, .. }))
    );
    assert_eq!(found.len(), 14, "{found:#?}");

    let error = policy.compile(Arch::X86_64, Reporting::Errno).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("did you mean openat?"), "{text}");
    let CompileError::Policy { problems } = error else {
        unreachable!("{text}")
    };
    assert_eq!(problems, found);
}

#[test]
fn a_floor_call_may_be_named_but_not_taken_away() {
    assert_eq!(
        problems(&SyscallPolicy::new().allow(varek_seccomp::FLOOR)),
        []
    );
    for call in varek_seccomp::FLOOR {
        assert_eq!(
            problems(&SyscallPolicy::new().deny([call])).len(),
            1,
            "{call}"
        );
        assert_eq!(
            problems(&SyscallPolicy::new().kill([call])).len(),
            1,
            "{call}"
        );
        assert!(SyscallPolicy::new().allows(call));
    }
}

#[test]
fn sparing_a_killed_call_makes_it_allowable() {
    let policy = SyscallPolicy::python().allow(["ptrace"]);
    assert_eq!(problems(&policy).len(), 1);
    let policy = policy.spare(["ptrace"]);
    assert_eq!(problems(&policy), []);
    assert!(policy.allows("ptrace"));
}

#[test]
fn names_of_another_architecture_are_skipped_and_reported() {
    let policy = SyscallPolicy::new().allow(["open", "fork", "openat", "arch_prctl"]);
    assert_eq!(policy.check(Arch::X86_64).unwrap().skipped().len(), 0);
    let skipped = policy.check(Arch::Aarch64).unwrap();
    assert_eq!(skipped.skipped(), ["arch_prctl", "fork", "open"]);
    let program = policy.compile(Arch::Aarch64, Reporting::Notify).unwrap();
    assert_eq!(program.skipped(), skipped.skipped());
    let open = program.explain("open").unwrap();
    assert_eq!(open.ruling(), Ruling::OtherArchitecture);
    assert_eq!(
        open.to_string(),
        "open: not a call of aarch64, only of x86_64"
    );
}

#[test]
fn explanations_say_what_happens_and_why() {
    let program = compiled(&SyscallPolicy::python(), Reporting::Notify);
    let line = |name: &str| program.explain(name).unwrap().to_string();
    assert_eq!(line("openat"), "openat (257): allowed, group files");
    assert_eq!(line("socket"), "socket (41): denied with EPERM, reported");
    assert_eq!(line("close_range"), "close_range (436): allowed, floor");
    assert_eq!(
        line("prlimit64"),
        "prlimit64 (302): allowed where argument 0 is 0x0 (32 bits), floor"
    );
    assert_eq!(line("ptrace"), "ptrace (101): kills the guest, reported");
    assert_eq!(
        line("execve"),
        "execve (59): allowed once with the permit of the run's start, then denied with EPERM, reported"
    );
    assert!(line("clone").contains("where argument 0 & 0x7e02a000 is 0x0, group processes"));
    assert!(line("ioctl").contains(" unless argument 1 is 0x5412 or 0x541c, group basic-io"));
    assert!(line("io_uring_setup").starts_with("io_uring_setup (425): fails with ENOSYS: "));
    assert!(line("clone3").starts_with("clone3 (435): fails with ENOSYS: "));

    let silent = compiled(&rich(), Reporting::Errno);
    let line = |name: &str| silent.explain(name).unwrap().to_string();
    assert_eq!(line("symlink"), "symlink (88): kills the process");
    assert_eq!(line("socket"), "socket (41): allowed, by name");
    assert!(line("connect").starts_with(
        "connect (42): allowed where argument 0 is 0x7 (32 bits) and argument 1 is 0xffffffffffffffff, by rule"
    ));

    let unknown = program.explain("opnat").unwrap_err();
    assert_eq!(unknown.suggestion, Some("openat"));
}

#[test]
fn explanations_agree_with_the_policy() {
    for policy in [SyscallPolicy::python(), SyscallPolicy::new(), rich()] {
        let program = compiled(&policy, Reporting::Notify);
        for (_, name) in Arch::X86_64.calls() {
            let ruling = program.explain(name).unwrap().ruling();
            let allowed = matches!(ruling, Ruling::Allowed | Ruling::Conditional);
            assert_eq!(allowed, policy.allows(name), "{name}");
        }
    }
}

#[test]
fn a_printed_program_has_names_and_targets() {
    let program = compiled(&SyscallPolicy::python(), Reporting::Errno);
    let text = program.to_string();
    assert_eq!(text.lines().count(), program.instructions().len());
    assert!(
        text.starts_with("   0: ld   arch\n   1: jeq  0xc000003e -> 3 else 2\n"),
        "{text}"
    );
    for part in [
        "; openat",
        "ret  ERRNO(EPERM)",
        "ret  ERRNO(ENOSYS)",
        "ld   args[3].low",
        "ld   nr",
    ] {
        assert!(text.contains(part), "{part} is missing");
    }
}

#[test]
fn programs_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    shared(&compiled(&SyscallPolicy::python(), Reporting::Notify));
}

#[test]
fn compiling_twice_gives_the_same_program() {
    let [one, two] = [0; 2].map(|_| compiled(&SyscallPolicy::python(), Reporting::Notify));
    assert_eq!(one.instructions(), two.instructions());
}
