//! Bad input is an error that says what to do, never a hang, and nothing of it is left.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use support::{assert_clean, assert_gone, compiled, open_directory, python, run, text};
use varek_core::{
    Cause, Command, Error, Identity, Input, KIB, MIB, Outcome, Policy, Sandbox, SetupStep,
    SyscallPolicy, Termination, UidRange,
};

/// One test at a time: they count what the process has.
static ALONE: Mutex<()> = Mutex::new(());

/// What a process has that a run could leave behind.
#[derive(Debug, PartialEq)]
struct Belongings {
    descriptors: usize,
    children: Vec<String>,
    groups: Vec<PathBuf>,
    scratch: Vec<PathBuf>,
}

impl Belongings {
    fn of(base: &Path) -> Self {
        let tasks = entries(Path::new("/proc/self/task"));
        let children = tasks
            .iter()
            .map(|task| fs::read_to_string(task.join("children")));
        let children = children.filter_map(Result::ok).collect::<String>();
        let mut groups = Vec::new();
        let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
        let mark = format!("-{}-", std::process::id());
        while let Some(directory) = left.pop() {
            let below = entries(&directory).into_iter().filter(|path| path.is_dir());
            for path in below {
                let name = path.file_name().unwrap().to_string_lossy();
                if name.starts_with("varek-") && name.contains(&mark) {
                    groups.push(path);
                } else {
                    left.push(path);
                }
            }
        }
        Self {
            descriptors: entries(Path::new("/proc/self/fd")).len(),
            children: children.split_whitespace().map(str::to_owned).collect(),
            groups,
            scratch: entries(base),
        }
    }
}

impl Belongings {
    /// Once nothing is going on any more: the same for a while.
    fn settled(base: &Path) -> Self {
        let mut now = Self::of(base);
        let (mut since, until) = (Instant::now(), Instant::now() + Duration::from_secs(20));
        while since.elapsed() < Duration::from_millis(100) && Instant::now() < until {
            std::thread::yield_now();
            let next = Self::of(base);
            if next != now {
                (now, since) = (next, Instant::now());
            }
        }
        now
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// A sandbox with a scratch base of its own. When it is dropped, nothing may be left of any run.
struct Bench {
    sandbox: Option<Sandbox>,
    base: tempfile::TempDir,
    before: Belongings,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(test: &str, policy: Policy) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // It starts a process once, which is none of this test's.
        let _ = support::pace();
        // Whatever a process makes once and keeps is there after the first run.
        let first = support::sandbox_or_not_run(test, Policy::native())?;
        assert_clean(&first.run(Command::new("true")).unwrap());
        drop(first);
        let base = open_directory();
        let before = Belongings::settled(base.path());
        let sandbox = Sandbox::builder(policy)
            .scratch_base(base.path())
            .build()
            .unwrap();
        Some(Self {
            sandbox: Some(sandbox),
            base,
            before,
            _alone: alone,
        })
    }

    fn run(&self, command: Command) -> Result<Outcome, Error> {
        self.sandbox.as_ref().unwrap().run(command)
    }

    /// The text of the error that a command is.
    #[track_caller]
    fn error(&self, command: Command) -> (Error, String) {
        let shown = format!("{command:?}");
        match self.run(command) {
            Ok(outcome) => panic!("{shown}: {outcome}"),
            Err(error) => {
                let text = error.to_string();
                (error, text)
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.sandbox = None;
        // Groups and directories are gone. Threads that are just ending may hold the last descriptors.
        let mut after = Belongings::of(self.base.path());
        assert_eq!(
            (&after.groups, &after.scratch),
            (&self.before.groups, &self.before.scratch)
        );
        let until = Instant::now() + Duration::from_secs(20);
        while after != self.before && Instant::now() < until {
            std::thread::yield_now();
            after = Belongings::of(self.base.path());
        }
        assert_eq!(after, self.before);
    }
}

macro_rules! bench {
    ($policy:expr) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        match Bench::new(name, $policy) {
            Some(bench) => bench,
            None => return,
        }
    }};
}

fn file(path: &Path, contents: &[u8], mode: u32) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

// ---- the program ----

#[test]
fn programs_that_cannot_be_started_are_errors_that_say_why() {
    let bench = bench!(python());
    let home = open_directory();
    let path = |name: &str| home.path().join(name);
    file(&path("text"), b"hello", 0o644);
    file(&path("orphan"), b"#!/no/such/interpreter -x\n", 0o755);
    file(&path("broken"), b"\x7fELF and no more", 0o755);
    fs::create_dir(path("directory")).unwrap();

    for (program, says) in [
        (PathBuf::from("/no/such/program"), "there is no such file"),
        (PathBuf::from("no/such/program"), "there is no such file"),
        (path("directory"), "no regular file"),
        (path("text"), "chmod +x"),
        (path("orphan"), "/no/such/interpreter"),
    ] {
        let (error, text) = bench.error(Command::new(&program));
        assert!(matches!(error, Error::Program { .. }), "{error:?}");
        assert!(text.contains(says), "{text}");
        assert!(
            text.contains(program.file_name().unwrap().to_str().unwrap()),
            "{text}"
        );
    }

    match bench.error(Command::new("no-such-program")) {
        (Error::ProgramNotFound { program, searched }, text) => {
            assert_eq!(program, "no-such-program");
            assert_eq!(searched.len(), 3);
            assert!(
                text.contains("/usr/bin") && text.contains("search_path"),
                "{text}"
            );
        }
        (error, _) => panic!("{error:?}"),
    }
    let (error, _) = bench.error(Command::new(""));
    assert!(matches!(error, Error::Command { .. }), "{error:?}");

    // Only the kernel knows that this is no program: it says so at the exec, behind the filter.
    for (program, errno) in [(path("broken"), 8)] {
        match bench.error(Command::new(&program)) {
            (
                Error::Setup {
                    step: SetupStep::Exec,
                    source,
                },
                text,
            ) => {
                assert_eq!(source.raw_os_error(), Some(errno));
                assert!(
                    text.contains("no program that this kernel can run"),
                    "{text}"
                );
            }
            (error, _) => panic!("{error:?}"),
        }
    }
    assert_clean(&bench.run(Command::new("true")).unwrap());
}

#[test]
fn a_script_runs_with_its_interpreter() {
    let bench = bench!(python());
    let home = open_directory();
    let script = home.path().join("script");
    file(&script, b"#!/usr/bin/env -S true\n", 0o755);
    // env(1) would have to exec again.
    let outcome = bench.run(Command::new(&script)).unwrap();
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("execve"),
        "{outcome}"
    );

    file(
        &script,
        b"#!/usr/bin/python3 -S\nimport sys; print(sys.argv[1:])\n",
        0o755,
    );
    drop(bench);
    let policy = python().read(home.path());
    let bench = bench!(policy);
    let outcome = bench
        .run(Command::new(&script).arg("a").arg("b c"))
        .unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "['a', 'b c']\n");
}

#[test]
fn a_program_behind_a_closed_directory_is_an_error_with_a_remedy() {
    if !support::own_uids("a_program_behind_a_closed_directory_is_an_error_with_a_remedy") {
        return;
    }
    let bench = bench!(python());
    let home = open_directory();
    let closed = home.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::copy("/bin/true", closed.join("true")).unwrap();
    fs::copy("/bin/true", closed.join("interpreter")).unwrap();
    let script = home.path().join("script");
    file(
        &script,
        format!("#!{}\n", closed.join("interpreter").display()).as_bytes(),
        0o755,
    );
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();

    for program in [closed.join("true"), script.clone()] {
        let (error, text) = bench.error(Command::new(&program));
        assert!(matches!(error, Error::Program { .. }), "{error:?}");
        assert!(
            text.contains("0700") && text.contains("chmod o+x"),
            "{text}"
        );
        assert!(text.contains(closed.to_str().unwrap()), "{text}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o711)).unwrap();
    for program in [closed.join("true"), script] {
        assert_clean(&bench.run(Command::new(&program)).unwrap());
    }
}

// ---- strings ----

#[test]
fn strings_that_the_kernel_cannot_take_are_errors_that_name_them() {
    let bench = bench!(python());
    let nul = || std::ffi::OsStr::from_bytes(b"a\0b");
    for (command, names) in [
        (Command::new(nul()), "program"),
        (Command::new("/bin/\0true"), "program"),
        (Command::new("true").arg("fine").arg(nul()), "argument 2"),
        (Command::new("true").env(nul(), "v"), "environment variable"),
        (Command::new("true").env("NAME", nul()), "NAME"),
        (Command::new("true").env("A=B", "v"), "A=B"),
        (Command::new("true").env("", "v"), "environment variable"),
    ] {
        let (error, text) = bench.error(command);
        assert!(matches!(error, Error::Command { .. }), "{error:?}");
        assert!(text.contains(names), "{text}");
    }
    // Everything else is passed on as it is, in UTF-8 or not.
    let odd = std::ffi::OsStr::from_bytes(b"\xff =\n'\"");
    let source = "import os, sys; print(os.fsencode(sys.argv[1]) == os.environb[b'ODD'] == b'\\xff =\\n\\'\"')";
    let command = Command::new("python3")
        .args(["-c", source])
        .arg(odd)
        .env("ODD", odd);
    let outcome = bench.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "True\n");
}

#[test]
fn text_that_is_too_long_for_the_kernel_is_an_error_with_a_remedy() {
    let bench = bench!(python());
    let length = |length: usize| {
        let source = "import sys; print(sum(map(len, sys.argv[1:])))";
        Command::new("python3")
            .args(["-c", source])
            .arg("x".repeat(length))
    };
    let outcome = bench.run(length(131_071)).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "131071\n");
    let (error, text_) = bench.error(length(131_072));
    assert!(matches!(error, Error::Command { .. }), "{error:?}");
    for word in ["argument 3", "131072", "Command::file", "stdin"] {
        assert!(text_.contains(word), "{text_}");
    }
    let (error, _) = bench.error(Command::new("true").env("LONG", "x".repeat(131_072)));
    assert!(matches!(error, Error::Command { .. }), "{error:?}");

    // One by one short enough, and too long together.
    let many = |count: usize| length(0).args(vec!["x".repeat(100_000); count]);
    let outcome = bench.run(many(10)).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "1000000\n");
    match bench.error(many(80)) {
        (
            Error::Setup {
                step: SetupStep::Exec,
                source,
            },
            text,
        ) => {
            assert_eq!(source.raw_os_error(), Some(7));
            assert!(
                text.contains("Command::file") && text.contains("stdin"),
                "{text}"
            );
        }
        (error, _) => panic!("{error:?}"),
    }
}

// ---- directories and files ----

#[test]
fn files_that_would_leave_scratch_are_errors_and_write_nothing() {
    let bench = bench!(python());
    let outside = bench.base.path().join("outside");
    for path in [
        "../outside",
        "a/../../outside",
        "a/../b",
        outside.to_str().unwrap(),
        "",
        ".",
        "..",
    ] {
        let (error, text) = bench.error(Command::new("true").file(path, "x"));
        assert!(
            matches!(error, Error::Command { .. }),
            "{path:?}: {error:?}"
        );
        assert!(text.contains("file"), "{text}");
    }
    assert!(!outside.exists());
    for (first, second) in [("twice", "twice"), ("f", "f/below"), ("d/f", "d")] {
        let (error, _) = bench.error(Command::new("true").file(first, "1").file(second, "2"));
        assert!(
            matches!(error, Error::Command { .. }),
            "{first} {second}: {error:?}"
        );
    }
    let (error, _) = bench.error(Command::new("true").file("n".repeat(300), "x"));
    assert!(
        matches!(error, Error::Io { .. } | Error::Command { .. }),
        "{error:?}"
    );
    let (error, _) = bench.error(Command::new("true").file("a\0b", "x"));
    assert!(
        matches!(error, Error::Io { .. } | Error::Command { .. }),
        "{error:?}"
    );

    let source = "print(open('a/b/c').read(), open('./d').read())";
    let command = Command::python(source)
        .file("a/b/c", "deep")
        .file("./d", "flat");
    let outcome = bench.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "deep flat\n");
}

#[test]
fn directories_that_are_none_are_errors_that_name_them() {
    let bench = bench!(python());
    let home = open_directory();
    let path = |name: &str| home.path().join(name);
    file(&path("file"), b"x", 0o644);
    fs::create_dir(path("real")).unwrap();
    std::os::unix::fs::symlink(path("real"), path("link")).unwrap();

    for name in ["file", "link", "missing"] {
        let (_, text) = bench.error(Command::new("true").scratch(path(name)));
        assert!(text.contains(path(name).to_str().unwrap()), "{text}");
    }
    for name in ["file", "missing"] {
        let (error, text) = bench.error(Command::new("true").current_dir(path(name)));
        assert!(matches!(error, Error::Command { .. }), "{error:?}");
        assert!(text.contains(path(name).to_str().unwrap()), "{text}");
    }
    for path in ["/", "/etc", "/usr/lib", "/tmp"] {
        let (error, text) = bench.error(Command::new("true").scratch(path));
        assert!(matches!(error, Error::Command { .. }), "{error:?}");
        assert!(text.contains("machine's"), "{text}");
    }
    assert_clean(
        &bench
            .run(Command::new("true").scratch(path("real")))
            .unwrap(),
    );
    assert_clean(
        &bench
            .run(Command::new("true").current_dir(path("real")))
            .unwrap(),
    );
    let outcome = bench.run(Command::new("pwd").current_dir("/usr")).unwrap();
    assert_eq!(text(&outcome), "/usr\n");
}

#[test]
fn a_directory_is_the_scratch_of_one_run_at_a_time() {
    let bench = bench!(python());
    let home = open_directory();
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let sandbox = bench.sandbox.as_ref().unwrap();
    let reads = Command::python("import sys; sys.stdin.read()").stdin(Input::piped());
    let mut first = sandbox.spawn(reads.scratch(&shared)).unwrap();
    let (_, text) = bench.error(Command::new("true").scratch(&shared));
    assert!(text.contains(shared.to_str().unwrap()), "{text}");
    drop(first.stdin.take());
    assert_clean(&first.wait().unwrap());
    drop(first);
    assert_clean(&bench.run(Command::new("true").scratch(&shared)).unwrap());
}

#[test]
fn a_scratch_base_that_guests_cannot_reach_is_an_error_with_a_remedy() {
    if !support::own_uids("a_scratch_base_that_guests_cannot_reach_is_an_error_with_a_remedy") {
        return;
    }
    let bench = bench!(python());
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let sandbox = |base: &Path| Sandbox::builder(python()).scratch_base(base).build();
    let try_run = |base: &Path| sandbox(base).and_then(|sandbox| sandbox.run(Command::new("true")));
    let text = try_run(closed.path()).unwrap_err().to_string();
    assert!(text.contains("700") && text.contains("TMPDIR"), "{text}");
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let text = try_run(closed.path()).unwrap_err().to_string();
    assert!(text.contains("sticky"), "{text}");
    let text = try_run(&closed.path().join("missing"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("missing"), "{text}");
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_clean(&try_run(closed.path()).unwrap());
    drop(bench);
}

// ---- policies ----

#[test]
fn limits_without_sense_are_errors_that_name_every_field() {
    let zero = |change: fn(&mut Policy)| {
        let mut policy = python();
        change(&mut policy);
        policy
    };
    for (field, policy) in [
        ("limits.memory", python().memory(0)),
        ("limits.memory", python().memory(MIB - 1)),
        ("limits.pids", python().pids(0)),
        ("limits.wall_clock", python().wall_clock(Duration::ZERO)),
        ("limits.wall_clock", python().wall_clock(Duration::MAX)),
        ("limits.cpu_time", python().cpu_time(Duration::ZERO)),
        ("limits.output", zero(|policy| policy.limits.output = 0)),
        (
            "limits.open_files",
            zero(|policy| policy.limits.open_files = 2),
        ),
        (
            "limits.file_size",
            zero(|policy| policy.limits.file_size = Some(0)),
        ),
        ("limits.scratch", python().scratch(4095)),
        (
            "limits.scratch_files",
            zero(|policy| policy.limits.scratch_files = 0),
        ),
        ("denials.total", zero(|policy| policy.denials.total = 0)),
        (
            "denials.per_second",
            zero(|policy| policy.denials.per_second = 0),
        ),
        ("grace", zero(|policy| policy.grace = Duration::ZERO)),
        (
            "search_path",
            zero(|policy| policy.search_path.push("bin".into())),
        ),
        ("environment", python().env("A=B", "v")),
        ("environment", python().env("A", "v\0")),
        ("filesystem.read", python().read("relative")),
        ("filesystem.write", python().write("/")),
        ("filesystem.execute", python().execute("/a/../b")),
        ("version", zero(|policy| policy.version = 2)),
    ] {
        match Sandbox::new(policy) {
            Err(Error::Policy { problems }) => {
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert_eq!(problems[0].field, field);
                assert!(problems[0].message.len() > 10, "{problems:?}");
            }
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn limits_that_the_kernel_takes_at_the_edge_work() {
    let bench = bench!(
        python()
            .pids(1)
            .wall_clock(Duration::from_secs(366 * 24 * 3600))
    );
    assert_clean(&run(bench.sandbox.as_ref().unwrap(), "print(1)"));
    drop(bench);
    let mut policy = python()
        .memory(1 << 50)
        .pids(4_000_000)
        .output(2, varek_core::Overflow::Truncate);
    policy.limits.open_files = 3;
    policy.limits.file_size = Some(1);
    let Some(bench) = Bench::new("limits_at_the_edge", policy) else {
        return;
    };
    // Three descriptors are enough for a static program, not for one that has to open its libraries.
    let outcome = bench.run(Command::new("true")).unwrap();
    assert!(
        matches!(outcome.termination, Termination::Exited(_)),
        "{outcome}"
    );
    assert_gone(&outcome);
}

#[test]
fn system_call_policies_that_contradict_themselves_are_errors() {
    drop(sandbox!(python()));
    for (policy, names) in [
        (SyscallPolicy::python().allow(["ptrace"]), "ptrace"),
        (SyscallPolicy::python().kill(["exit_group"]), "exit_group"),
        (SyscallPolicy::python().deny(["dup3"]), "dup3"),
        (
            SyscallPolicy::python().allow(["no_such_call"]),
            "no_such_call",
        ),
        (SyscallPolicy::python().allow(["opennat"]), "openat"),
        (SyscallPolicy::python().errno(0), "errno"),
    ] {
        match Sandbox::new(python().syscalls(|_| policy)) {
            Err(Error::Syscalls { source }) => {
                let text = source.to_string();
                assert!(text.contains(names), "{names}: {text}");
            }
            other => panic!("{names}: {other:?}"),
        }
    }
}

#[test]
fn a_policy_without_calls_neither_hangs_nor_hides_why_nothing_starts() {
    let home = open_directory();
    file(&home.path().join("broken"), b"\x7fELF and no more", 0o755);
    let policy = Policy::native()
        .syscalls(|_| SyscallPolicy::new())
        .wall_clock(Duration::from_secs(20));
    let bench = bench!(policy);
    let (error, _) = bench.error(Command::new("/no/such/program"));
    assert!(matches!(error, Error::Program { .. }), "{error:?}");
    // Behind the filter, where nobody answers before the child has ended.
    for (command, errno) in [
        (Command::new(home.path().join("broken")), 8),
        (Command::new("true").args(vec!["x".repeat(100_000); 80]), 7),
    ] {
        match bench.error(command) {
            (
                Error::Setup {
                    step: SetupStep::Exec,
                    source,
                },
                _,
            ) => {
                assert_eq!(source.raw_os_error(), Some(errno));
            }
            (error, _) => panic!("{error:?}"),
        }
    }
    // A dynamic program gets as far as its first calls, which are denied and named.
    let outcome = bench.run(Command::new("true")).unwrap();
    assert!(!outcome.success(), "{outcome}");
    assert!(!outcome.timed_out(), "{outcome}");
    assert!(
        outcome.violation().is_some_and(|v| v.syscall().is_some()),
        "{outcome}"
    );
    assert_gone(&outcome);

    // One that only ends needs nothing but the floor.
    let source = "void _start(void) { __asm__ volatile(\"syscall\" :: \"a\"(231), \"D\"(5)); }";
    let name = "a_policy_without_calls_neither_hangs_nor_hides_why_nothing_starts";
    if cfg!(target_arch = "x86_64")
        && let Some(program) = compiled(name, home.path(), "ends", source, &["-nostdlib"])
    {
        let outcome = bench.run(Command::new(program)).unwrap();
        assert_eq!(outcome.termination, Termination::Exited(5), "{outcome}");
        assert_eq!(outcome.violation(), None);
    }
}

#[test]
fn memory_that_is_too_small_to_start_in_is_said_and_never_a_hang() {
    for memory in [MIB, MIB + 512 * KIB, 2 * MIB, 3 * MIB, 4 * MIB] {
        let bench = bench!(python().memory(memory).wall_clock(Duration::from_secs(20)));
        match bench.run(Command::python("b = bytearray(64 << 20)")) {
            Ok(outcome) => {
                assert_eq!(
                    outcome.termination,
                    Termination::Killed(Cause::OutOfMemory),
                    "{outcome}"
                );
                assert_gone(&outcome);
            }
            Err(Error::Setup { step, source }) => {
                assert_eq!(source.raw_os_error(), Some(12), "{step}");
            }
            Err(error) => panic!("{memory} bytes: {error:?}"),
        }
    }
}

#[test]
fn a_range_of_one_uid_has_one_guest_at_a_time_and_says_so() {
    if !support::own_uids("a_range_of_one_uid_has_one_guest_at_a_time_and_says_so") {
        return;
    }
    let mut policy = python();
    policy.identity = Identity::Own(UidRange::new(0x7000_3000, 1));
    let bench = bench!(policy);
    let sandbox = bench.sandbox.as_ref().unwrap();
    let reads =
        || Command::python("import os, sys; print(os.getuid(), flush=True); sys.stdin.read()");
    let mut first = sandbox.spawn(reads().stdin(Input::piped())).unwrap();
    match bench.error(Command::new("true")) {
        (Error::NoFreeUid { first, count, .. }, text) => {
            assert_eq!((first, count), (0x7000_3000, 1));
            assert!(text.contains("no uid is free"), "{text}");
        }
        (error, _) => panic!("{error:?}"),
    }
    drop(first.stdin.take());
    let outcome = first.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), format!("{}\n", 0x7000_3000));
    drop(first);
    assert_clean(&bench.run(reads()).unwrap());
}
