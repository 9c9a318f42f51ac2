//! The kernel itself agrees with the interpreter: filters are installed in children, which then make the
//! calls. Errno mode, with an errno that no kernel code uses, so that an answer of the filter is known.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test: a panic is a failure"
)]
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

#[expect(unsafe_code, reason = "the calls under test")]
mod sys;

use std::ffi::{CStr, CString};
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sys::{End, Shared};
use varek_seccomp::{
    Action, Arch, Group, Instruction, Permit, Program, Reporting, SeccompData, SyscallPolicy,
};

/// Not an errno of any architecture.
const MARK: u16 = 3999;
const ENOSYS: i64 = -38;
const X32: i64 = 0x4000_0000;

fn arch() -> Arch {
    Arch::native().expect("the test is built for architectures that compile")
}

fn compile(policy: SyscallPolicy) -> Program {
    policy
        .errno(i32::from(MARK))
        .compile(arch(), Reporting::Errno)
        .unwrap()
}

/// Allowed calls that end, stop or signal the caller, whatever their arguments.
const NOT_SAFE: &[&str] = &[
    "clone",
    "exit",
    "exit_group",
    "fork",
    "kill",
    "pause",
    "pidfd_send_signal",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_tgsigqueueinfo",
    "seccomp",
    "setsid",
    "tgkill",
    "tkill",
    "vfork",
];

/// Conditional calls that are harmless with zeroes too.
const ZEROES: &[&str] = &[
    "fcntl",
    "ioctl",
    "mknodat",
    "personality",
    "prctl",
    "prlimit64",
    "sendto",
];

/// A call that a child makes, and its word in the shared memory.
struct Probe {
    number: u32,
    args: [u64; 6],
    expected: Action,
}

fn probes(program: &Program) -> Vec<Probe> {
    let mut probes = Vec::new();
    for number in 0..arch().newest() + 100 {
        let name = arch().name(number).unwrap_or("");
        // Recent kernels let these pass every filter: they work from the kernel's own trampoline only, and kill
        // any other caller.
        if ["uprobe", "uretprobe"].contains(&name) {
            continue;
        }
        for args in [[u64::MAX; 6], [0; 6]] {
            let nr = number.cast_signed();
            let data = SeccompData {
                nr,
                arch: arch().audit(),
                instruction_pointer: 0,
                args,
            };
            let expected = program.evaluate(&data);
            let harmless = expected != Action::Allow
                || (!NOT_SAFE.contains(&name) && (args[0] != 0 || ZEROES.contains(&name)));
            if harmless {
                probes.push(Probe {
                    number,
                    args,
                    expected,
                });
            }
        }
    }
    probes
}

/// Makes the calls in one child, with a filter or without; the results in order.
fn make(probes: &[&Probe], filter: Option<&[Instruction]>) -> (End, Vec<i64>) {
    let results = Shared::new(probes.len()).unwrap();
    let end = sys::in_child(|| {
        if filter.is_some_and(|filter| !sys::install(filter)) {
            return 100;
        }
        for (index, probe) in probes.iter().enumerate() {
            let result = sys::call(i64::from(probe.number), probe.args);
            sys::store(results.word(index), result);
        }
        0
    });
    let values = (0..probes.len()).map(|index| results.word(index).load(Ordering::Relaxed));
    (end.unwrap(), values.collect())
}

fn agree(policy: SyscallPolicy) {
    let program = compile(policy);
    let all = probes(&program);
    let (killed, answered): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|probe| probe.expected == Action::KillProcess);

    let (end, results) = make(&answered, Some(program.instructions()));
    assert_eq!(end, End::Exited(0));
    let allowed: Vec<_> = answered
        .iter()
        .copied()
        .filter(|probe| probe.expected == Action::Allow)
        .collect();
    let (end, without) = make(&allowed, None);
    assert_eq!(end, End::Exited(0));
    let mut without = without.into_iter();
    for (probe, result) in answered.iter().zip(results) {
        let Probe {
            number,
            args,
            expected,
        } = probe;
        let name = arch().name(*number).unwrap_or("unnamed");
        match expected {
            Action::Errno(errno) => {
                assert_eq!(result, -i64::from(*errno), "{name} ({number}) {args:x?}");
            }
            Action::Allow => {
                // The kernel may lack the call; then it does so without a filter too.
                let control = without.next().unwrap();
                assert_ne!(result, -i64::from(MARK), "{name} ({number}) {args:x?}");
                assert_eq!(
                    result == ENOSYS,
                    control == ENOSYS,
                    "{name} ({number}) {args:x?}"
                );
            }
            other => panic!("{name} ({number}): unexpected {other:?}"),
        }
    }
    for probe in killed {
        let (end, _) = make(&[probe], Some(program.instructions()));
        let name = arch().name(probe.number).unwrap_or("unnamed");
        assert_eq!(
            end,
            End::Signaled(libc::SIGSYS),
            "{name} ({})",
            probe.number
        );
    }
}

#[test]
fn the_kernel_answers_every_number_as_the_interpreter_does_for_the_python_preset() {
    agree(SyscallPolicy::python());
}

#[test]
fn the_kernel_answers_every_number_as_the_interpreter_does_for_the_empty_policy() {
    agree(SyscallPolicy::new());
}

#[test]
fn the_kernel_answers_every_number_as_the_interpreter_does_for_mixed_rules() {
    use varek_seccomp::{Condition, Rule, Width};
    agree(
        SyscallPolicy::new()
            .allow(["close", "mseal", "cachestat", "getpid", "ioctl"])
            .allow_when(
                Rule::on("lseek")
                    .and(Condition::equal(0, Width::Bits64, u64::MAX))
                    .int(2, 7),
            )
            .allow_when(Rule::on("lseek").and(Condition::equal(1, Width::Bits64, u64::MAX)))
            .allow_when(Rule::on("dup").and(Condition::masked_equal(0, Width::Bits64, 1 << 40, 0)))
            .kill(["read", "mount", "socket"]),
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_numbers_never_take_effect() {
    let program = compile(SyscallPolicy::python());
    // getpid, openat and execve by the x32 ABI, and the highest number of all.
    for number in [X32 + 39, X32 + 257, X32 + 520, -1] {
        let end = sys::in_child(|| {
            if !sys::install(program.instructions()) {
                return 100;
            }
            let _ = sys::call(number, [0; 6]);
            0
        });
        assert_eq!(end.unwrap(), End::Signaled(libc::SIGSYS), "{number:#x}");
        // Without a filter the process lives, whether the kernel has x32 or not.
        let control = sys::in_child(|| {
            let _ = sys::call(number, [0; 6]);
            0
        });
        assert_eq!(control.unwrap(), End::Exited(0), "{number:#x}");
    }
}

/// What a shell prints that is started through a filter, and the errno where it was not started.
fn shell(filter: &[Instruction], words: [u64; 3]) -> (End, String, i64) {
    let script = c"echo started; /bin/true && echo again || echo refused";
    start(filter, words, c"/bin/sh", &[c"sh", c"-c", script])
}

fn start(
    filter: &[Instruction],
    words: [u64; 3],
    path: &CStr,
    arguments: &[&CStr; 3],
) -> (End, String, i64) {
    let (mut output, write) = sys::pipe().unwrap();
    let failed = Shared::new(1).unwrap();
    let end = sys::in_child(|| {
        if !sys::redirect_output(&write) || !sys::install(filter) {
            return 100;
        }
        let result = sys::execve(path, arguments, words);
        sys::store(failed.word(0), result);
        101
    });
    drop(write);
    let mut text = String::new();
    let _ = output.read_to_string(&mut text).unwrap();
    (end.unwrap(), text, failed.word(0).load(Ordering::Relaxed))
}

#[test]
fn the_kernel_lets_a_permitted_program_start_once_and_refuses_every_further_exec() {
    let program = compile(SyscallPolicy::python());
    let permit = Permit::random().unwrap();
    let (end, output, _) = shell(&program.with_permit(&permit), permit.words());
    assert_eq!(end, End::Exited(0), "{output}");
    assert!(
        output.starts_with("started\n") && output.ends_with("refused\n"),
        "{output}"
    );

    // The same shell where the policy allows exec.
    let program = compile(SyscallPolicy::python().allow_group(Group::Exec));
    let (end, output, _) = shell(program.instructions(), [0; 3]);
    assert_eq!((end, output.as_str()), (End::Exited(0), "started\nagain\n"));
}

#[test]
fn the_kernel_refuses_execve_with_a_wrong_word_or_without_a_permit() {
    let program = compile(SyscallPolicy::python());
    let permit = Permit::random().unwrap();
    let [a, b, c] = permit.words();
    let filter = program.with_permit(&permit);
    let wrong = [
        [0; 3],
        [a ^ 1, b, c],
        [a, b ^ (1 << 63), c],
        [a, b, 0],
        [c, b, a],
    ];
    for words in wrong {
        let (end, output, errno) = shell(&filter, words);
        assert_eq!(
            (end, errno),
            (End::Exited(101), -i64::from(MARK)),
            "{output}"
        );
    }
    let (end, _, errno) = shell(program.instructions(), [a, b, c]);
    assert_eq!((end, errno), (End::Exited(101), -i64::from(MARK)));
}

#[test]
fn the_kernel_refuses_execveat_though_a_permit_is_installed() {
    let permit = Permit::random().unwrap();
    let run = |filter: &[Instruction]| {
        let failed = Shared::new(1).unwrap();
        let end = sys::in_child(|| {
            if !sys::install(filter) {
                return 100;
            }
            let [.., last] = permit.words();
            let result = sys::execveat(c"/bin/sh", &[c"sh", c"-c", c"exit 7"], last);
            sys::store(failed.word(0), result);
            101
        });
        (end.unwrap(), failed.word(0).load(Ordering::Relaxed))
    };
    let program = compile(SyscallPolicy::python());
    assert_eq!(
        run(&program.with_permit(&permit)),
        (End::Exited(101), -i64::from(MARK))
    );
    let program = compile(SyscallPolicy::python().allow_group(Group::Exec));
    assert_eq!(run(program.instructions()), (End::Exited(7), 0));
}

#[test]
fn cpython_works_under_its_preset_without_sockets_and_exec() {
    let found = [c"/usr/bin/python3", c"/usr/local/bin/python3"]
        .into_iter()
        .find(|path| path.to_str().is_ok_and(|path| Path::new(path).exists()));
    let Some(python) = found else {
        assert!(
            std::env::var_os("VAREK_TEST_REQUIRE").is_none(),
            "this test needs /usr/bin/python3"
        );
        eprintln!("not run: cpython_works_under_its_preset needs /usr/bin/python3");
        return;
    };
    let program = compile(SyscallPolicy::python());
    let permit = Permit::random().unwrap();
    let script = CString::new(include_str!("python.py")).unwrap();
    // Isolated mode, so that nothing of the host's Python environment is loaded.
    let arguments = [c"python3", c"-Ic", script.as_c_str()];
    let filter = program.with_permit(&permit);
    let (end, output, _) = start(&filter, permit.words(), python, &arguments);
    assert_eq!(end, End::Exited(0), "{output}");
    assert_eq!(output, format!("works; socket {MARK} exec {MARK}\n"));
}

/// Prints the median time of seccomp(2), to be read with `--release --nocapture`.
#[test]
fn the_kernel_loads_every_preset_for_both_reportings() {
    const LOADS: usize = 51;
    let allow_all = [Instruction {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: Action::Allow.to_return_value(),
    }];
    let program = |policy: SyscallPolicy, reporting| policy.compile(arch(), reporting).unwrap();
    let [native, node, shell, java, silent, python, clock] = [
        program(SyscallPolicy::native(), Reporting::Notify),
        program(SyscallPolicy::node(), Reporting::Notify),
        program(SyscallPolicy::shell(), Reporting::Notify),
        program(SyscallPolicy::java(), Reporting::Notify),
        program(SyscallPolicy::native(), Reporting::Errno),
        program(SyscallPolicy::python(), Reporting::Notify),
        // Where the clock cannot be read without the kernel, the child asks it behind the filter.
        program(
            SyscallPolicy::new().allow(["clock_gettime"]),
            Reporting::Notify,
        ),
    ];
    for (name, filter) in [
        ("one return", &allow_all[..]),
        ("one call", clock.instructions()),
        ("python", python.instructions()),
        ("native", native.instructions()),
        ("node", node.instructions()),
        ("shell", shell.instructions()),
        ("java", java.instructions()),
        ("native, errno", silent.instructions()),
    ] {
        let nanoseconds = Shared::new(1).unwrap();
        let mut times = Vec::new();
        for _ in 0..LOADS {
            let end = sys::in_child(|| {
                let begin = Instant::now();
                let installed = sys::install(filter);
                let elapsed = i64::try_from(begin.elapsed().as_nanos()).unwrap_or(i64::MAX);
                sys::store(nanoseconds.word(0), elapsed);
                i32::from(!installed)
            });
            assert_eq!(end.unwrap(), End::Exited(0), "{name}");
            times.push(nanoseconds.word(0).load(Ordering::Relaxed));
        }
        times.sort_unstable();
        let [fast, median] = [10, 50].map(|percent| times[LOADS * percent / 100] / 1000);
        let length = filter.len();
        println!("{name}: {length} instructions, {median} µs (fastest tenth {fast} µs)");
    }
}
