//! What a guest cannot reach: files, kernel settings, its own limits, its embedder, other guests; and what
//! it starts with. Each attempt is made a second time where it is allowed, so that it is known to be one.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use support::{
    assert_clean, assert_gone, assert_killed, bounded, denied, open_directory, own_uids, python,
    root, run, text, unconfined,
};
use varek_core::{Cause, Child, Command, Input, Outcome, Output, Policy, Sandbox};

/// `attempt(f, ...)` prints `ok` or the name of the error.
const ATTEMPT: &str = r"
import ctypes, errno, os, signal
def attempt(f, *arguments):
    try: f(*arguments); print('ok')
    except OSError as e: print(errno.errorcode[e.errno])
def read(path):
    with open(path, 'rb') as f: f.read(1)
def write(path):
    os.close(os.open(path, os.O_WRONLY))
def make(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)); os.unlink(path)
";

fn attempts(lines: &str) -> String {
    format!("{ATTEMPT}{lines}")
}

/// The answers to the attempts of a source, of a guest that exited with 0.
#[track_caller]
fn answers(outcome: &Outcome) -> Vec<String> {
    assert_eq!(
        outcome.exit_code(),
        Some(0),
        "{outcome}\n{}",
        outcome.stderr.to_text()
    );
    assert_gone(outcome);
    text(outcome).lines().map(str::to_owned).collect()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

// ---- files ----

#[test]
fn files_that_everybody_can_read_are_closed_unless_they_are_granted() {
    let directory = open_directory();
    let file = directory.path().join("public");
    fs::write(&file, "x").unwrap();
    mode(&file, 0o644);
    let source = attempts(&format!(
        "attempt(read, {file:?})\nattempt(os.listdir, {0:?})\nattempt(write, {file:?})\nattempt(make, {0:?} + '/new')",
        directory.path()
    ));
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(answers(&outcome), ["EACCES"; 4]);

    // Granted for reading, and no more than that.
    let outcome = run(&sandbox!(python().read(directory.path())), &source);
    assert_eq!(answers(&outcome), ["ok", "ok", "EACCES", "EACCES"]);

    mode(directory.path(), 0o777);
    mode(&file, 0o666);
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(answers(&outcome), ["EACCES"; 4]);
    let outcome = run(&sandbox!(python().write(directory.path())), &source);
    assert_eq!(answers(&outcome), ["ok"; 4]);
}

#[test]
fn a_grant_opens_nothing_that_the_guests_uid_may_not_have() {
    if !own_uids("a_grant_opens_nothing_that_the_guests_uid_may_not_have") {
        return;
    }
    let directory = open_directory();
    let file = directory.path().join("private");
    fs::write(&file, "x").unwrap();
    mode(&file, 0o600);
    let source = attempts(&format!(
        "attempt(read, {file:?})\nattempt(write, {file:?})\nattempt(os.chmod, {file:?}, 0o600)\n\
         attempt(os.utime, {file:?})\nattempt(os.chown, {file:?}, os.getuid(), -1)\n\
         attempt(os.link, {file:?}, 'link')\nattempt(os.rename, {file:?}, {file:?} + '.old')"
    ));
    let outcome = run(&sandbox!(python().write(directory.path())), &source);
    let answers = answers(&outcome);
    assert_eq!(
        answers[..5],
        ["EACCES", "EACCES", "EPERM", "EACCES", "EPERM"],
        "{answers:?}"
    );
    assert!(
        answers[5..].iter().all(|answer| answer != "ok"),
        "{answers:?}"
    );
    // Without a sandbox all of it works, but for the link to another file system perhaps.
    let free = unconfined(&source);
    assert!(free.starts_with(&"ok\n".repeat(5)), "{free}");
    assert!(free.ends_with("ok\n"), "{free}");
}

#[test]
fn the_embedders_home_and_the_machines_secrets_are_closed() {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    let source = attempts(&format!(
        "attempt(os.listdir, {home:?})\nattempt(read, '/etc/shadow')\nattempt(read, '/etc/passwd')\n\
         attempt(os.listdir, '/')\nattempt(os.listdir, '/etc')\nattempt(os.listdir, '/tmp')\n\
         attempt(os.listdir, '/var')\nattempt(os.listdir, '/run')\nattempt(os.listdir, '/proc')\n\
         attempt(os.listdir, '/sys')\nattempt(os.listdir, '/dev')"
    ));
    let outcome = run(&sandbox!(python()), &source);
    let closed = answers(&outcome);
    // The presets grant what names users to libc, and nothing else of this.
    assert_eq!(closed[2], if closed[2] == "ok" { "ok" } else { "EACCES" });
    for (index, answer) in closed.iter().enumerate().filter(|(index, _)| *index != 2) {
        assert_eq!(answer, "EACCES", "attempt {index}");
    }
    if own_uids("the_embedders_home_and_the_machines_secrets_are_closed") {
        assert_eq!(unconfined(&source), "ok\n".repeat(11));
    }
}

#[test]
fn the_machines_files_cannot_be_changed() {
    let source = attempts(
        "attempt(write, '/etc/hosts')\nattempt(make, '/etc/varek-test')\nattempt(os.chmod, '/etc/hosts', 0o644)\n\
         attempt(os.utime, '/etc/hosts')\nattempt(make, '/usr/varek-test')\nattempt(make, '/dev/varek-test')\n\
         attempt(make, '/tmp/varek-test')\n\
         attempt(os.mkdir, '/varek-test')\nattempt(os.symlink, 'x', '/etc/varek-test')",
    );
    let outcome = run(&sandbox!(python()), &source);
    for (index, answer) in answers(&outcome).iter().enumerate() {
        assert!(
            matches!(answer.as_str(), "EACCES" | "EPERM"),
            "attempt {index}: {answer}"
        );
    }
    assert_eq!(text(&outcome).lines().count(), 9);

    // The same words on a directory that stands for the machine.
    let machine = open_directory();
    mode(machine.path(), 0o777);
    let shared = machine.path().display();
    let source = attempts(&format!(
        "attempt(make, '{shared}/varek-test')\nattempt(os.symlink, 'x', '{shared}/link')\n\
         attempt(os.mkdir, '{shared}/dir')\nattempt(os.chmod, '{shared}/dir', 0o700)\nattempt(os.utime, '{shared}/dir')"
    ));
    let outcome = run(&sandbox!(python().write(machine.path())), &source);
    // Under the embedder's uid nothing has its mode or times changed, wherever it is.
    let changed = if root() { "ok" } else { "EPERM" };
    assert_eq!(answers(&outcome), ["ok", "ok", "ok", changed, changed]);
}

#[test]
fn shared_memory_of_the_host_is_closed_unless_it_is_granted() {
    let name = format!("/dev/shm/varek-test-{}", std::process::id());
    let source = attempts(&format!(
        "attempt(make, {name:?})\nattempt(os.listdir, '/dev/shm')"
    ));
    let mut policy = python();
    policy.limits.scratch = None;
    let outcome = run(&sandbox!(policy), &source);
    assert_eq!(answers(&outcome), ["EACCES"; 2]);
    let outcome = run(&sandbox!(python().write("/dev/shm")), &source);
    assert_eq!(answers(&outcome), ["ok"; 2]);
    // With mounts of its own a guest has its own, in which nothing is but what it made.
    let sandbox = sandbox!(python());
    let source = attempts(&format!(
        "attempt(os.mkdir, {name:?})\nattempt(lambda: print(sorted(os.listdir('/dev/shm'))))"
    ));
    let outcome = run(&sandbox, &source);
    if bounded(&sandbox) {
        let own = Path::new(&name).file_name().unwrap().to_str().unwrap();
        let listed = format!("['main.py', '{own}']");
        assert_eq!(answers(&outcome), ["ok", &listed, "ok"]);
    } else {
        assert_eq!(answers(&outcome), ["EACCES"; 2]);
    }
    assert!(!Path::new(&name).exists());
}

#[test]
fn the_kernels_settings_cannot_be_written() {
    let settings: Vec<_> = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/self/oom_score_adj",
        "/proc/self/mem",
        "/proc/self/uid_map",
    ]
    .into_iter()
    .filter(|setting| Path::new(setting).exists())
    .collect();
    assert!(settings.len() >= 4, "{settings:?}");
    let tries: Vec<_> = settings
        .iter()
        .map(|setting| format!("attempt(write, {setting:?})"))
        .collect();
    let source = attempts(&tries.join("\n"));
    // Even where reading is granted.
    for policy in [python(), python().read("/proc")] {
        let outcome = run(&sandbox!(policy), &source);
        for (setting, answer) in settings.iter().zip(answers(&outcome)) {
            assert!(
                matches!(answer.as_str(), "EACCES" | "EPERM"),
                "{setting}: {answer}"
            );
        }
    }
    if own_uids("the_kernels_settings_cannot_be_written") {
        let free = unconfined(&source);
        assert_eq!(free, "ok\n".repeat(settings.len()));
    }
}

// ---- its own limits ----

/// Tries to open for writing every file of the groups that it is in, and of their parents.
const GROUPS: &str = r"
tried, opened = 0, []
for line in open('/proc/self/cgroup'):
    _, controllers, path = line.strip().split(':', 2)
    names = [controllers.removeprefix('name='), 'unified', ''] + controllers.split(',')
    for name in names:
        group = os.path.normpath('/sys/fs/cgroup/' + name + path)
        for group in [group, os.path.dirname(group)]:
            for file in ['cgroup.procs', 'memory.max', 'memory.limit_in_bytes', 'pids.max', 'cpu.max',
                         'cpu.cfs_quota_us', 'cgroup.kill', 'cgroup.freeze', 'tasks']:
                path = os.path.join(group, file)
                if not os.path.exists(path): continue
                tried += 1
                try: os.close(os.open(path, os.O_WRONLY)); opened.append(path)
                except OSError as e: assert e.errno in (errno.EACCES, errno.EPERM), e
print(tried > 0, len(opened))
";

#[test]
fn a_guest_can_neither_change_its_limits_nor_leave_its_group() {
    let source = attempts(GROUPS);
    for policy in [python(), python().read("/sys/fs/cgroup")] {
        let outcome = run(&sandbox!(policy), &source);
        assert_eq!(
            answers(&outcome),
            ["True 0"],
            "{}",
            outcome.stderr.to_text()
        );
    }
    if own_uids("a_guest_can_neither_change_its_limits_nor_leave_its_group") {
        let free = unconfined(&source);
        assert!(free.starts_with("True ") && free != "True 0\n", "{free}");
    }
}

// ---- the embedder and its other processes ----

#[test]
fn the_embedders_process_files_are_closed() {
    let pid = std::process::id();
    let files = [
        "environ", "mem", "maps", "auxv", "stack", "syscall", "fd", "root", "cwd", "exe",
    ];
    let mut tries: Vec<_> = files
        .iter()
        .map(|file| {
            let verb = match *file {
                "fd" => "os.listdir",
                "root" | "cwd" | "exe" => "os.readlink",
                _ => "read",
            };
            format!("attempt({verb}, '/proc/{pid}/{file}')")
        })
        .collect();
    // Everybody may read these, where Landlock lets them.
    tries.extend(["cmdline", "status"].map(|file| format!("attempt(read, '/proc/{pid}/{file}')")));
    let source = attempts(&tries.join("\n"));
    let outcome = run(&sandbox!(python()), &source);
    let closed = answers(&outcome);
    for (file, answer) in files.iter().zip(&closed) {
        assert!(
            matches!(answer.as_str(), "EACCES" | "EPERM"),
            "{file}: {answer}"
        );
    }
    assert_eq!(closed[files.len()..], ["EACCES"; 2]);

    // With /proc granted its uid or Landlock still keeps it out, and what everybody can read is open; under the
    // embedder's uid the numbers of its descriptors are, and no descriptor.
    let outcome = run(&sandbox!(python().read("/proc")), &source);
    let closed = answers(&outcome);
    for (file, answer) in files.iter().zip(&closed) {
        let listed = *file == "fd" && !root();
        assert!(
            matches!(answer.as_str(), "EACCES" | "EPERM") || listed,
            "{file}: {answer}"
        );
    }
    assert_eq!(closed[files.len()..], ["ok"; 2]);
    let opened = format!(
        "for fd in range(64): attempt(read, f'/proc/{pid}/fd/{{fd}}'); attempt(os.readlink, f'/proc/{pid}/fd/{{fd}}')"
    );
    let outcome = run(&sandbox!(python().read("/proc")), &attempts(&opened));
    assert!(!text(&outcome).contains("ok"), "{outcome}");
    if own_uids("the_embedders_process_files_are_closed") {
        // The first byte of its memory is not mapped, for anybody; the kernel's stack takes CAP_SYS_ADMIN.
        let free = unconfined(&source.replace(
            &format!("attempt(read, '/proc/{pid}/mem')\n"),
            "print('ok')\n",
        ));
        let capabilities = rustix::thread::capabilities(None).unwrap().effective;
        let admin = capabilities.contains(rustix::thread::CapabilitySet::SYS_ADMIN);
        let stack = if admin { "ok" } else { "EACCES" };
        let open: Vec<_> = free.lines().collect();
        assert_eq!(open.len(), files.len() + 2);
        for (file, answer) in files.iter().chain(&["cmdline", "status"]).zip(open) {
            let expected = if *file == "stack" { stack } else { "ok" };
            assert_eq!(answer, expected, "{file}");
        }
    }

    let own = attempts(
        "for f in ['environ', 'maps', 'status', 'cmdline']: attempt(read, '/proc/self/' + f)",
    );
    assert_eq!(answers(&run(&sandbox!(python()), &own)), ["ok"; 4]);
}

/// Everything short of a killed call that one process can do to another.
fn attacks(pid: u32) -> String {
    attempts(&format!(
        "import resource\npid = {pid}\n\
         attempt(os.kill, pid, 0)\nattempt(os.kill, pid, signal.SIGCONT)\n\
         attempt(resource.prlimit, pid, resource.RLIMIT_NOFILE, (64, 64))\n\
         attempt(os.setpriority, os.PRIO_PROCESS, pid, 5)\n\
         attempt(os.sched_setaffinity, pid, os.sched_getaffinity(0))\n\
         attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT))\n\
         attempt(write, f'/proc/{{pid}}/oom_score_adj')\n\
         attempt(os.kill, pid, signal.SIGTERM)"
    ))
}

/// A process of the embedder's, which ends with the value.
struct Victim(std::process::Child);

impl Victim {
    fn new() -> Self {
        Self(
            std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_embedders_processes_can_be_neither_signalled_nor_changed() {
    let mut victim = Victim::new();
    let source = attacks(victim.0.id());
    for policy in [python(), python().read("/proc")] {
        let outcome = run(&sandbox!(policy), &source);
        let answers = answers(&outcome);
        assert_eq!(answers.len(), 8);
        for (index, answer) in answers.iter().enumerate() {
            assert!(
                matches!(answer.as_str(), "EPERM" | "EACCES"),
                "attempt {index}: {answer}"
            );
        }
        // Those that need no uid to be refused are named.
        for call in ["prlimit64", "setpriority", "sched_setaffinity"] {
            assert_eq!(denied(&outcome, call).count, 1, "{outcome}");
        }
    }
    assert!(victim.0.try_wait().unwrap().is_none());
    let limits = fs::read_to_string(format!("/proc/{}/limits", victim.0.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    assert!(!files.contains(" 64 "), "{files}");
    // Outside of a sandbox each of them works, and the last one ends the victim.
    assert_eq!(unconfined(&source), "ok\n".repeat(8));
    assert!(!victim.0.wait().unwrap().success());
}

#[test]
fn reaching_into_another_process_kills_the_guest() {
    let victim = Victim::new();
    let numbers = "import platform\nNR = {'x86_64': (101, 310, 311, 438), 'aarch64': (117, 270, 271, 438)}[platform.machine()]\n\
                   libc = ctypes.CDLL(None)\n";
    let sandbox = sandbox!(python());
    for (index, call, arguments) in [
        (0, "ptrace", "16, PID, 0, 0"),
        (1, "process_vm_readv", "PID, 0, 0, 0, 0, 0"),
        (2, "process_vm_writev", "PID, 0, 0, 0, 0, 0"),
        (3, "pidfd_getfd", "0, 0, 0"),
    ] {
        let arguments = arguments.replace("PID", &victim.0.id().to_string());
        let source = attempts(&format!(
            "{numbers}libc.syscall(NR[{index}], {arguments})\nprint('went on')"
        ));
        let outcome = run(&sandbox, &source);
        assert_killed(&outcome, &Cause::Syscall { name: call.into() });
        assert_eq!(denied(&outcome, call).count, 1);
        assert_eq!(outcome.stdout.total, 0, "{outcome}");
    }
    let spared = python().syscalls(|calls| calls.spare(["pidfd_getfd"]));
    let source = attempts(&format!(
        "{numbers}libc.syscall(NR[3], 0, 0, 0)\nprint('went on')"
    ));
    let outcome = run(&sandbox!(spared), &source);
    assert_eq!(
        text(&outcome),
        "went on\n",
        "{outcome} {}",
        outcome.stderr.to_text()
    );
    assert_eq!(denied(&outcome, "pidfd_getfd").count, 1);
}

#[test]
fn the_signal_of_a_descriptors_owner_does_not_reach_the_embedder() {
    let mut victim = Victim::new();
    // F_SETOWN, F_SETSIG with SIGKILL and O_ASYNC on a pair of sockets: a kill without a kill call.
    let source = attempts(&format!(
        "import fcntl, socket\na, b = socket.socketpair()\n\
         attempt(fcntl.fcntl, a, fcntl.F_SETOWN, {})\nattempt(fcntl.fcntl, a, 10, 9)\n\
         attempt(fcntl.fcntl, a, fcntl.F_SETFL, os.O_ASYNC)\nb.send(b'x')",
        victim.0.id()
    ));
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(answers(&outcome)[..2], ["EPERM"; 2]);
    assert_eq!(denied(&outcome, "fcntl").count, 2);
    assert!(victim.0.try_wait().unwrap().is_none());
    assert_eq!(unconfined(&source), "ok\n".repeat(3));
    assert!(!victim.0.wait().unwrap().success());
}

// ---- other guests ----

/// A guest that has printed its pid and its scratch directory and waits for the end of its input.
fn waiting(sandbox: &Sandbox) -> (Child, u32, String) {
    let source = "import os, sys\nos.umask(0)\nopen('mine', 'w').write('x')\n\
                  if os.getuid() >= 0x70000000: os.chmod('.', 0o777)\n\
                  print(os.getpid(), os.getcwd(), flush=True)\nsys.stdin.read()\nprint(os.listdir('.'))";
    let command = Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (pid, scratch) = line.trim().split_once(' ').unwrap();
    (child, pid.parse().unwrap(), scratch.to_owned())
}

#[test]
fn guests_that_run_at_the_same_time_cannot_reach_each_other() {
    let sandbox = sandbox!(python());
    let (mut first, pid, scratch) = waiting(&sandbox);
    assert_eq!(pid, first.id());
    let source = attacks(pid)
        + &format!(
            "\nattempt(os.listdir, {scratch:?})\nattempt(read, {scratch:?} + '/mine')\n\
             attempt(make, {scratch:?} + '/yours')\nattempt(os.unlink, {scratch:?} + '/mine')\n\
             attempt(read, '/proc/{pid}/environ')\nattempt(read, '/proc/{pid}/cmdline')"
        );
    // The last of the attacks is a kill: the first guest would be gone.
    let outcome = run(&sandbox, &source);
    let answers = answers(&outcome);
    assert_eq!(answers.len(), 14);
    for (index, answer) in answers.iter().enumerate() {
        assert!(
            matches!(answer.as_str(), "EPERM" | "EACCES" | "ESRCH"),
            "attempt {index}: {answer}"
        );
    }
    assert!(first.try_wait().unwrap().is_none());
    // As the guest sees it, which may have it in a mount namespace of its own; that takes CAP_SYS_PTRACE to look into.
    let seen = Path::new("/proc").join(pid.to_string()).join("root");
    let seen = [seen.join(&scratch[1..]), Path::new(&scratch).to_owned()];
    assert!(seen.iter().any(|scratch| scratch.join("mine").exists()));
    drop(first.stdin.take());
    assert_clean(&first.wait().unwrap());
    assert!(!Path::new(&scratch).exists());
}

#[test]
fn a_readable_base_does_not_open_the_scratch_of_another_guest_that_keeps_it_closed() {
    let test = "a_readable_base_does_not_open_the_scratch_of_another_guest_that_keeps_it_closed";
    if !own_uids(test) {
        return;
    }
    let base = open_directory();
    let policy = python().read(base.path());
    drop(sandbox!(policy.clone()));
    let sandbox = Sandbox::builder(policy)
        .scratch_base(base.path())
        .build()
        .unwrap();
    let source = "import os, sys\nopen('mine', 'w').write('x')\nprint(os.getcwd(), flush=True)\nsys.stdin.read()";
    let command = Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped());
    let mut first = sandbox.spawn(command).unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let scratch = line.trim();
    let source = attempts(&format!(
        "attempt(os.listdir, {:?})\nattempt(os.listdir, {scratch:?})\nattempt(read, {scratch:?} + '/mine')\n\
         attempt(os.listdir, '.')",
        base.path()
    ));
    let outcome = run(&sandbox, &source);
    assert_eq!(answers(&outcome), ["ok", "EACCES", "EACCES", "ok"]);
    drop(first.stdin.take());
    assert_clean(&first.wait().unwrap());
}

// ---- what a guest starts with ----

/// `/proc/self/status` of a guest that changes nothing of it.
fn status(policy: Policy) -> Option<(BTreeMap<String, String>, Outcome)> {
    let sandbox = support::sandbox_or_not_run("status", policy)?;
    let outcome = sandbox
        .run(Command::new("cat").arg("/proc/self/status"))
        .unwrap();
    assert_clean(&outcome);
    let fields = text(&outcome)
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    Some((fields, outcome))
}

#[test]
fn a_guest_has_an_identity_of_its_own_and_no_privilege() {
    if !own_uids("a_guest_has_an_identity_of_its_own_and_no_privilege") {
        return;
    }
    let Some((status, _)) = status(Policy::native()) else {
        return;
    };
    let uid = status["Uid"].split_whitespace().next().unwrap().to_owned();
    let number: u32 = uid.parse().unwrap();
    assert!((0x7000_0000..0x7000_1000).contains(&number), "{uid}");
    for ids in ["Uid", "Gid"] {
        assert_eq!(
            status[ids].split_whitespace().collect::<Vec<_>>(),
            [uid.as_str(); 4]
        );
    }
    assert_eq!(status["Groups"], "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["Seccomp"], "2");
    assert_eq!(status["TracerPid"], "0");
    // The embedder, from which all of it would have come, has capabilities.
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert!(!own.contains("CapBnd:\t0000000000000000"), "{own}");
}

#[test]
fn signals_start_with_default_actions_and_unblocked() {
    let Some((status, _)) = status(Policy::native()) else {
        return;
    };
    for set in ["SigIgn", "SigBlk", "SigCgt", "SigPnd", "ShdPnd"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    // Rust programs, of which the embedder is one, ignore SIGPIPE: bit 12.
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = own
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    assert_ne!(
        u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << 12,
        0,
        "{ignored}"
    );
}

#[test]
fn a_guest_leads_a_session_of_its_own_without_a_terminal() {
    let source = attempts(
        "import resource\n\
         print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())\n\
         print(resource.getrlimit(resource.RLIMIT_CORE))\n\
         print(oct(os.umask(0)))\n\
         attempt(read, '/dev/tty')",
    );
    let outcome = run(&sandbox!(python()), &source);
    let answers = answers(&outcome);
    assert_eq!(answers[..3], ["True True", "(0, 0)", "0o77"]);
    assert!(
        matches!(answers[3].as_str(), "ENXIO" | "EACCES"),
        "{answers:?}"
    );
}

#[test]
fn the_environment_is_what_the_policy_and_the_command_name() {
    let sandbox = sandbox!(
        Policy::native()
            .env("FROM_POLICY", "p")
            .env("BOTH", "policy")
    );
    let command = Command::new("env")
        .env("FROM_COMMAND", "ü=\n")
        .env("BOTH", "command")
        .arg("-0");
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    let output = text(&outcome);
    let mut variables: BTreeMap<_, _> = output
        .split_terminator('\0')
        .map(|pair| pair.split_once('=').unwrap())
        .collect();
    let scratch = variables.remove("HOME").unwrap();
    assert!(scratch.contains(&outcome.run.to_string()), "{scratch}");
    assert_eq!(variables.remove("TMPDIR"), Some(scratch));
    let expected = [
        ("BOTH", "command"),
        ("FROM_COMMAND", "ü=\n"),
        ("FROM_POLICY", "p"),
        ("LANG", "C.UTF-8"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ];
    assert_eq!(variables.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_guest_starts_in_its_scratch_directory() {
    let source = "import os, stat\n\
                  here = os.stat('.')\n\
                  print(os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR'], here.st_uid == os.getuid(),\n\
                  \x20     oct(stat.S_IMODE(here.st_mode)), os.listdir('.'))";
    let outcome = run(&sandbox!(python()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "True True 0o700 ['main.py']\n");
}

#[test]
fn a_guest_has_descriptors_0_1_and_2_whatever_the_embedder_leaks() {
    let sandbox = sandbox!(python());
    // Not close-on-exec: std::process::Command would pass these on.
    let secret = fs::File::open("/etc/passwd").unwrap();
    let leaks: Vec<_> = (0..200)
        .map(|_| rustix::io::dup(&secret).unwrap())
        .collect();
    let highest = leaks
        .iter()
        .map(std::os::fd::AsRawFd::as_raw_fd)
        .max()
        .unwrap();
    let source = format!(
        "import os\nopen_ = []\nfor fd in range({highest} + 2000):\n\
         \x20   try: os.fstat(fd); open_.append(fd)\n\
         \x20   except OSError: pass\nprint(open_)"
    );
    let outcome = run(&sandbox, &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "[0, 1, 2]\n");
    let free = std::process::Command::new("python3")
        .args(["-c", &source])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(free.stdout)
            .unwrap()
            .contains(&highest.to_string())
    );
}
