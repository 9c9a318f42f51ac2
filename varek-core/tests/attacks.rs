//! Attacks that were tried on a running sandbox: what a guest or a careless embedder does to outlive a run, to hold
//! up others, to hide what it did or to leave something behind. Each has a control that the attack itself works.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use support::{
    assert_clean, assert_gone, assert_killed, compiled, denied, hit, open_directory, python, root,
    run, seconds, text, unconfined,
};
use varek_core::{
    Cause, Child, Cleanup, Command, Event, EventKind, Identity, Input, MIB, Output, Policy,
    Resource, Sandbox, Signal, Termination, UidRange,
};

/// Whether a thread of the process lives; a zombie has none that does.
fn lives(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks.flatten().any(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix("State:\t"))
            .is_some_and(|state| !state.starts_with(['Z', 'X']))
    })
}

/// A static C program, in a directory that lives as long as the second value.
fn program(test: &str, source: &str) -> Option<(PathBuf, tempfile::TempDir)> {
    let directory = open_directory();
    let program = compiled(test, directory.path(), "attack", source, &["-pthread"])?;
    Some((program, directory))
}

fn native(count: u64) -> Policy {
    Policy::native().wall_clock(seconds(count))
}

// ---- outliving the run ----

const HEADLESS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
static void *on(void *x) { for (;;) { printf("%d\n", getpid()); fflush(stdout); sleep(100); } }
static void headless(void) { pthread_t t; pthread_create(&t, 0, on, 0); syscall(SYS_exit, 0); }
int main(int n, char **v) {
    if (n == 1) headless();
    if (fork() == 0) headless();
    sleep(100);
}"#;

/// A guest whose process prints its pid from its second thread when the first has ended.
fn headless(sandbox: &Sandbox, program: &PathBuf, arguments: &[&str]) -> (Child, u32) {
    let command = Command::new(program).args(arguments);
    let mut child = sandbox.spawn(command.stdout(Output::piped())).unwrap();
    let mut line = [0; 16];
    let length = child.stdout.as_mut().unwrap().read(&mut line).unwrap();
    let pid = String::from_utf8_lossy(&line[..length]).trim().parse();
    (child, pid.unwrap())
}

#[test]
fn a_process_whose_first_thread_has_ended_dies_with_the_run() {
    let Some((program, _directory)) = program("headless", HEADLESS) else {
        return;
    };
    let sandbox = sandbox!(native(60));
    for arguments in [&[][..], &["child"]] {
        let (mut child, pid) = headless(&sandbox, &program, arguments);
        assert!(lives(pid));
        child.kill();
        let outcome = child.wait().unwrap();
        assert_eq!(outcome.termination, Termination::Killed(Cause::Cancelled));
        assert_gone(&outcome);
        assert!(!lives(pid), "{outcome}");
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_dies_with_its_sandbox() {
    let Some((program, _directory)) = program("headless", HEADLESS) else {
        return;
    };
    let sandbox = sandbox!(native(60));
    let (child, pid) = headless(&sandbox, &program, &["child"]);
    assert!(lives(pid));
    drop(sandbox);
    drop(child);
    assert!(!lives(pid));
}

#[test]
fn processes_without_first_threads_that_go_on_forking_die_with_the_run() {
    let source = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
#include <sys/syscall.h>
static void *on(void *);
static void headless(void) {
    if (fork() == 0) { pthread_t t; if (pthread_create(&t, 0, on, 0)) _exit(1); syscall(SYS_exit, 0); }
}
static void *on(void *x) { for (;;) { headless(); usleep(100); } }
int main(void) { write(1, "on\n", 3); on(0); }"#;
    let Some((program, _directory)) = program("hydra", source) else {
        return;
    };
    let outcome = sandbox!(native(1)).run(Command::new(program)).unwrap();
    // They leak a stack each time, so that memory may end them before the clock does.
    let cause = match outcome.termination {
        Termination::Killed(Cause::OutOfMemory) => Cause::OutOfMemory,
        _ => Cause::WallClock,
    };
    assert_killed(&outcome, &cause);
    assert_eq!(text(&outcome), "on\n");
    // The control: they were as many as could be.
    assert!(hit(&outcome, Resource::Pids).count > 0);
}

#[test]
fn a_vfork_that_never_ends_and_a_sharer_of_memory_die_with_the_run() {
    let source = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <unistd.h>
static char stack[65536];
static volatile int begun;
static int on(void *x) { write(1, "shares\n", 7); begun = 1; for (;;) pause(); }
int main(int n, char **v) {
    if (n == 1) { if (vfork() == 0) { write(1, "vforked\n", 8); for (;;) pause(); } }
    clone(on, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, 0);
    while (!begun) usleep(1000);
    _exit(0);
}"#;
    let Some((program, _directory)) = program("vfork", source) else {
        return;
    };
    let sandbox = sandbox!(native(1));
    let outcome = sandbox.run(Command::new(&program)).unwrap();
    assert_killed(&outcome, &Cause::WallClock);
    assert_eq!(text(&outcome), "vforked\n");
    let outcome = sandbox.run(Command::new(&program).arg("share")).unwrap();
    assert_eq!(outcome.termination, Termination::Exited(0));
    assert_eq!(
        (text(&outcome).as_str(), outcome.descendants_killed),
        ("shares\n", 1)
    );
    assert_gone(&outcome);
}

#[test]
fn a_tree_that_stops_itself_dies_with_the_run() {
    let source = "import os, signal\nfor _ in range(5):\n    if os.fork() == 0: break\nprint('x', flush=True)\nos.kill(0, signal.SIGSTOP)";
    let outcome = run(&sandbox!(python().wall_clock(seconds(2))), source);
    assert_killed(&outcome, &Cause::WallClock);
    assert!(outcome.stdout.total >= 2, "{outcome}");
}

#[test]
fn names_made_to_look_like_other_files_change_no_outcome() {
    let source = r#"
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>
static void *on(void *x) { prctl(PR_SET_NAME, "a) Z 1 1\n0::/"); return x; }
int main(void) {
    prctl(PR_SET_NAME, "\xff\xfe) R 0\n\n");
    for (int i = 0; i < 20; i++) if (fork() == 0) { on(0); pause(); }
    for (int i = 0; i < 2000; i++) { pthread_t t; if (pthread_create(&t, 0, on, 0)) return 1; pthread_join(t, 0); }
    return 7;
}"#;
    let Some((program, _directory)) = program("names", source) else {
        return;
    };
    let outcome = sandbox!(native(20)).run(Command::new(program)).unwrap();
    assert_eq!(outcome.termination, Termination::Exited(7), "{outcome}");
    assert_eq!(outcome.descendants_killed, 20);
    assert_gone(&outcome);
}

#[test]
fn a_flood_of_zombies_is_bounded_and_goes_with_the_run() {
    let source = "import os\nn = 0\nwhile n < 500:\n    try:\n        if os.fork() == 0: os._exit(0)\n    except BlockingIOError: n += 1\nprint(n)";
    let outcome = run(&sandbox!(python().pids(16)), source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "500\n");
    assert_eq!(hit(&outcome, Resource::Pids).limit, Some(16));
    assert_gone(&outcome);
}

// ---- leaving something behind ----

/// Sends its own stdout, and memory, through sockets that are kept by each other's messages alone.
const IN_FLIGHT: &str = "
import array, os, socket
memory = os.memfd_create('m')
os.write(memory, b'x' * (1 << 20))
for _ in range(4):
    a, b = socket.socketpair()
    for at, what in [(a, b), (b, a)]:
        rights = array.array('i', [what.fileno(), memory, 1])
        at.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    a.close()
    b.close()
os.write(2, b'sent')
";

/// Whether every write end of the pipe is closed, or is so within ten seconds.
fn ends(pipe: &OwnedFd) -> bool {
    let wait = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut fds, Some(&wait)).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

#[test]
fn what_is_in_flight_between_sockets_ends_with_the_run() {
    let sandbox = sandbox!(python());
    let (read, write) = rustix::pipe::pipe().unwrap();
    let outcome = sandbox
        .run(Command::python(IN_FLIGHT).stdout(Output::file(File::from(write))))
        .unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stderr.to_text(), "sent");
    assert!(ends(&read), "the guest's descriptors outlive it");
}

#[test]
fn a_directory_that_takes_long_to_remove_gives_uid_and_descriptors_back() {
    let mut policy = python().wall_clock(seconds(60));
    policy.grace = Duration::from_millis(10);
    policy.identity = Identity::Own(UidRange::new(0x7100_0000, 1));
    let sandbox = sandbox!(policy);
    let outcome = run(
        &sandbox,
        "for n in range(30000): open(f'{n:05}', 'x').close()\nprint('made')",
    );
    assert_eq!(text(&outcome), "made\n");
    // The control: it did take longer than the grace.
    assert!(
        matches!(outcome.cleanup, Cleanup::Incomplete { .. }),
        "{outcome}"
    );
    let until = Instant::now() + Duration::from_secs(60);
    let next = loop {
        match sandbox.run(Command::new("/bin/true")) {
            Ok(outcome) => break outcome,
            Err(error) => assert!(
                Instant::now() < until,
                "the one uid is not given back: {error}"
            ),
        }
        std::thread::yield_now();
    };
    assert!(next.success(), "{next}");
}

#[test]
fn sandboxes_that_come_and_go_leave_no_thread_and_no_descriptor() {
    // In a process of its own, where no other test has any.
    let name = "sandboxes_that_come_and_go_leave_no_thread_and_no_descriptor";
    if std::env::var_os("VAREK_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env("VAREK_TEST_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    let before = (count("fd"), count("task"));
    for n in 0..50 {
        let sandbox = sandbox!(native(10));
        if n % 5 == 0 {
            assert_clean(&sandbox.run(Command::new("/bin/true")).unwrap());
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    // A thread is in the list for a moment after its last instruction.
    while (count("fd"), count("task")) != before {
        assert!(
            Instant::now() < until,
            "{before:?} {:?}",
            (count("fd"), count("task"))
        );
        std::thread::yield_now();
    }
}

// ---- holding up others ----

#[test]
fn a_stream_that_somebody_else_goes_on_writing_to_ends_with_the_run() {
    let sandbox = sandbox!(python());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let source = "import array, socket\ns = socket.socket(fileno=0)\ns.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))])\ns.recv(1)";
    let stdin = Input::file(File::from(OwnedFd::from(theirs)));
    let mut child = sandbox.spawn(Command::python(source).stdin(stdin)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let mut stream = File::from(descriptor.unwrap());
    let (began, begun) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let block = vec![b'w'; 65536];
        while stream.write_all(&block).is_ok() {
            let _ = began.send(());
        }
    });
    // The control: it is the guest's stream that is written to.
    begun.recv().unwrap();
    drop(ours);
    let outcome = child.wait().unwrap();
    assert!(outcome.stdout.total >= 65536, "{outcome}");
    assert_gone(&outcome);
    // Its reader is gone.
    writer.join().unwrap();
}

#[test]
fn storms_of_denied_calls_from_many_threads_and_runs_are_counted_to_the_last() {
    let source = r"
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
#include <sys/syscall.h>
static void *on(void *x) { for (int i = 0; i < 100; i++) if (syscall(SYS_personality, 8) != -1) _exit(9); return x; }
int main(void) {
    pthread_t t[20];
    for (int i = 0; i < 20; i++) if (pthread_create(t + i, 0, on, 0)) return 8;
    for (int i = 0; i < 20; i++) pthread_join(t[i], 0);
    return 0;
}";
    let Some((program, _directory)) = program("storm", source) else {
        return;
    };
    let sandbox = sandbox!(native(60));
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| sandbox.run(Command::new(&program)).unwrap()))
            .collect();
        for run in runs {
            let outcome = run.join().unwrap();
            assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
            assert_eq!(denied(&outcome, "personality").count, 2000);
            assert_gone(&outcome);
        }
    });
}

// ---- memory ----

#[test]
fn memory_in_pipes_and_sockets_counts() {
    let source = "
import fcntl, os, socket
kept, filled = [], 0
for _ in range(20):
    read, write = os.pipe()
    fcntl.fcntl(write, 1031, 1 << 20)
    a, b = socket.socketpair()
    a.setblocking(False)
    os.set_blocking(write, False)
    kept += [read, write, a, b]
    for send in [lambda: os.write(write, b'x' * 65536), lambda: a.send(b'x' * 65536)]:
        try:
            while True: filled += send()
        except BlockingIOError: pass
print(filled)
";
    let outcome = run(&sandbox!(python()), source);
    assert_clean(&outcome);
    let filled: u64 = text(&outcome).trim().parse().unwrap();
    assert!(filled >= 20 * MIB, "{filled}");
    let peak = outcome.usage.memory_peak;
    assert!(peak.is_none_or(|peak| peak >= filled), "{filled} {outcome}");
    let outcome = run(&sandbox!(python().memory(16 * MIB)), source);
    // Hybrid hosts refuse a call that needs more, and kill at the next page that the guest touches itself.
    let refused = outcome.stderr.to_text().contains("Cannot allocate memory");
    let killed = outcome.termination == Termination::Killed(Cause::OutOfMemory);
    assert!(refused || killed, "{outcome}");
    let peak = outcome.usage.memory_peak;
    assert!(peak.is_none_or(|peak| peak <= 16 * MIB), "{outcome}");
    assert_gone(&outcome);
}

#[test]
fn a_guest_that_meets_its_memory_limit_inside_calls_gets_no_more() {
    let source = r#"
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
static char block[65536];
int main(void) {
    memset(block, 1, sizeof block);
    int file = memfd_create("m", 0);
    for (int i = 0; i < 100000 && write(file, block, sizeof block) > 0; i++);
    return 3;
}"#;
    let Some((program, _directory)) = program("inside", source) else {
        return;
    };
    let outcome = sandbox!(native(20).memory(64 * MIB))
        .run(Command::new(program))
        .unwrap();
    // Hybrid hosts refuse the call, unified ones kill.
    let ended = &outcome.termination;
    let expected = [
        Termination::Exited(3),
        Termination::Killed(Cause::OutOfMemory),
    ];
    assert!(expected.contains(ended), "{outcome}");
    let peak = outcome.usage.memory_peak;
    assert!(
        peak.is_none_or(|peak| (48 * MIB..=64 * MIB).contains(&peak)),
        "{outcome}"
    );
    assert_gone(&outcome);
}

// ---- reaching others ----

#[test]
fn a_signal_to_everybody_reaches_nobody_else() {
    let sandbox = sandbox!(python());
    let mut own = std::process::Command::new("sleep")
        .arg("100")
        .spawn()
        .unwrap();
    let mut other = sandbox
        .spawn(Command::python("input()\nprint('lives')").stdin(Input::piped()))
        .unwrap();
    let outcome = run(
        &sandbox,
        "import os, signal\nif os.fork() == 0: signal.pause()\nos.kill(-1, signal.SIGKILL)\nprint(os.wait()[1])",
    );
    // The control: it did reach the guest's own child. The caller itself is left out (kill(2)).
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "9\n");
    assert!(own.try_wait().unwrap().is_none());
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(text(&other.wait().unwrap()), "lives\n");
    own.kill().unwrap();
    own.wait().unwrap();
}

/// Each attempt on a line of its own: the number of the error, or `done`.
fn tried(attempts: &[&str]) -> String {
    let mut source = String::from(
        "import ctypes, fcntl, os, resource, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*a):\n    if libc.syscall(*a) < 0: raise OSError(ctypes.get_errno(), '')\n",
    );
    for attempt in attempts {
        for line in [
            "try:",
            "    ",
            "    print('done')",
            "except OSError as e: print(e.errno)",
            "except ValueError: print(1)",
        ] {
            source += line;
            if line == "    " {
                source += attempt;
            }
            source.push('\n');
        }
    }
    source
}

#[test]
fn files_that_are_only_read_get_no_new_name_mode_or_time() {
    let directory = open_directory();
    let file = directory.path().join("granted");
    std::fs::write(&file, "granted").unwrap();
    let path = file.display().to_string();
    let attempts = [
        format!("os.link('{path}', 'name')"),
        format!("os.chmod('{path}', 0o777)"),
        format!("os.fchmod(os.open('{path}', os.O_RDONLY), 0o777)"),
        format!("os.symlink('{path}', 'link'); os.chmod('link', 0o777)"),
        format!("os.utime('{path}', (1, 1))"),
        format!("os.setxattr('{path}', 'user.attack', b'1')"),
        format!("os.open('{path}', os.O_RDONLY | os.O_TRUNC)"),
        // Neither for reading nor for writing.
        format!("os.open('{path}', os.O_ACCMODE | os.O_TRUNC)"),
        format!("f = os.open('{path}', os.O_RDONLY); os.open(f'/proc/self/fd/{{f}}', os.O_RDWR)"),
        format!("os.rename('{path}', 'moved')"),
    ];
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    let before = std::fs::metadata(&file).unwrap();
    let outcome = run(&sandbox!(python().read(&file)), &tried(&attempts));
    // Under the embedder's uid the filter refuses some of it, which is a violation.
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert!(outcome.violation().is_none() || !root(), "{outcome}");
    assert_gone(&outcome);
    let answers = text(&outcome);
    assert_eq!(answers.lines().count(), attempts.len(), "{answers}");
    assert!(
        answers
            .lines()
            .all(|line| ["1", "13", "18"].contains(&line)),
        "{answers}"
    );
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    // The control: all of it works on a file of one's own, where the filter does not refuse it.
    let attempts: Vec<String> = attempts.iter().map(|a| a.replace(&path, "own")).collect();
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    let source = format!("open('own', 'w').close()\n{}", tried(&attempts));
    let answers = if root() {
        text(&run(&sandbox!(python()), &source))
    } else {
        unconfined(&source)
    };
    let done = answers.lines().filter(|line| *line == "done").count();
    assert!(done >= attempts.len() - 1, "{answers}");
}

#[test]
fn a_guest_cannot_raise_what_it_has() {
    let attempts = [
        "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        "open('/proc/self/timens_offsets', 'w').write('0 1 0')",
        "open('/proc/self/coredump_filter', 'w').write('255')",
        "open('/proc/self/mem', 'r+b')",
        "open('/proc/self/root/etc/shadow')",
        "os.listdir('/proc/self/cwd/..')",
        "os.nice(-5)",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))",
        "resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)",
        "call(251, 1, 0, 1 << 13)",
        "fcntl.fcntl(1, 8, os.getppid())",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "call(149, id(libc) & ~4095, 1 << 20)",
    ];
    let outcome = run(&sandbox!(python()), &tried(&attempts));
    let answers = text(&outcome);
    assert_eq!(answers.lines().count(), attempts.len(), "{answers}");
    assert!(
        answers
            .lines()
            .all(|line| ["1", "12", "13"].contains(&line)),
        "{answers}"
    );
    // The control: they are real to whoever may do them.
    let real = unconfined(&tried(&[
        "os.listdir('/proc/self/cwd/..')",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "fcntl.fcntl(1, 8, os.getpid())",
    ]));
    assert_eq!(real, "done\ndone\ndone\n");
}

#[test]
fn a_memory_file_that_is_given_for_reading_is_not_written() {
    let memory = |seals| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("input", flags).unwrap();
        rustix::io::write(&memory, b"kept").unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let again =
        |memory: &OwnedFd| File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
    let attack = "os.write(os.open('/proc/self/fd/0', os.O_RDWR), b'lost')";
    let sandbox = sandbox!(python());

    // It could be opened for writing by anybody whom it was passed to.
    let open = memory(SealFlags::empty());
    let command = Command::python(tried(&[attack])).stdin(again(&open));
    let error = sandbox.run(command).unwrap_err().to_string();
    assert!(error.contains("F_SEAL_WRITE"), "{error}");

    let sealed = memory(SealFlags::WRITE);
    let command = Command::python(tried(&["print(os.read(0, 9))", attack])).stdin(again(&sealed));
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "b'kept'\ndone\n1\n");

    // The control: one that is open for both is written.
    let shared = File::from(open.try_clone().unwrap());
    let outcome = sandbox
        .run(Command::python(tried(&[attack])).stdin(shared))
        .unwrap();
    assert_eq!(text(&outcome), "done\n");
    let mut contents = String::new();
    again(&open).read_to_string(&mut contents).unwrap();
    assert_eq!(contents, "lost");
}

// ---- sinks that do what they should not ----

#[test]
fn a_sink_can_run_guests_and_drop_the_last_handle() {
    let slot: Arc<Mutex<Option<Sandbox>>> = Arc::default();
    let (said, heard) = mpsc::channel();
    let (said, inner) = (Mutex::new(said), slot.clone());
    let sink = move |event: &Event| {
        if matches!(event.kind, EventKind::RunFinished { .. })
            && let Some(sandbox) = inner.lock().unwrap().take()
        {
            let outcome = sandbox.run(Command::new("/bin/true")).unwrap();
            drop(sandbox);
            said.lock().unwrap().send(outcome).unwrap();
        }
    };
    let builder = Sandbox::builder(native(20)).sink(sink);
    let Ok(sandbox) = builder.build() else {
        drop(sandbox!(native(20)));
        return;
    };
    let mut child = sandbox
        .spawn(Command::new("cat").stdin(Input::piped()))
        .unwrap();
    *slot.lock().unwrap() = Some(sandbox);
    // The sink gets the last handle of both.
    child.stdin.take();
    assert!(child.wait().unwrap().success());
    drop(child);
    let outcome = heard.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_clean(&outcome);
}

#[test]
fn a_sink_that_drops_a_running_child_kills_it() {
    let slot: Arc<Mutex<Option<Child>>> = Arc::default();
    let (said, heard) = mpsc::channel();
    let (said, inner) = (Mutex::new(said), slot.clone());
    let sink = move |event: &Event| match &event.kind {
        EventKind::GuestStarted { .. } => drop(inner.lock().unwrap().take()),
        EventKind::RunFinished { termination, .. } => {
            said.lock().unwrap().send(termination.clone()).unwrap();
        }
        _ => {}
    };
    let Ok(sandbox) = Sandbox::builder(native(60)).sink(sink).build() else {
        drop(sandbox!(native(60)));
        return;
    };
    // Held until the handle is there to be dropped.
    let mut held = slot.lock().unwrap();
    *held = Some(sandbox.spawn(Command::new("sleep").arg("100")).unwrap());
    drop(held);
    let termination = heard.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(termination, Termination::Killed(Cause::Dropped));
}

#[test]
fn a_sink_that_panics_or_hangs_changes_no_outcome() {
    let (_release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let hangs = move |_: &Event| {
        let _ = gate.lock().unwrap().recv();
    };
    let panics = |_: &Event| panic!("a sink of the tests, on purpose");
    let builders = [
        Sandbox::builder(native(20)).sink(hangs),
        Sandbox::builder(native(20)).sink(panics),
    ];
    for builder in builders {
        let Ok(sandbox) = builder.build() else {
            drop(sandbox!(native(20)));
            return;
        };
        for _ in 0..3 {
            assert_clean(&sandbox.run(Command::new("/bin/true")).unwrap());
        }
        let outcome = sandbox
            .run(Command::python("import os\nos.kill(os.getpid(), 9)"))
            .unwrap();
        assert_eq!(outcome.termination, Termination::Signaled(Signal::KILL));
    }
}

// ---- kernel memory that no limit counts ----

#[test]
fn access_control_lists_of_files_are_short_and_memory_has_no_policies() {
    let sandbox = sandbox!(python());
    // A list of three entries has 28 bytes, which cp(1) and tar(1) set. One of the most entries has 64 KiB, kept by tmpfs in
    // memory that is counted nowhere.
    let source = r"
import ctypes, errno, os, platform, struct
def attempt(f):
    try: f(); print('ok')
    except OSError as e: print(errno.errorcode[e.errno])
open('file', 'w').close()
least = struct.pack('<I' + 'HHI' * 3, 2, 1, 6, 0xffffffff, 4, 4, 0xffffffff, 32, 4, 0xffffffff)
entries = [(1, 6, 0xffffffff), *((2, 4, n) for n in range(40)), (4, 4, 0xffffffff), (16, 4, 0xffffffff), (32, 4, 0xffffffff)]
most = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in entries)
file = os.open('file', os.O_RDWR)
for where in ['file', file]:
    attempt(lambda: os.setxattr(where, 'system.posix_acl_access', least))
    attempt(lambda: os.setxattr(where, 'system.posix_acl_access', most))
libc = ctypes.CDLL(None, use_errno=True)
mbind, set_mempolicy = {'x86_64': (237, 238), 'aarch64': (235, 237)}[platform.machine()]
for number in mbind, set_mempolicy:
    libc.syscall(ctypes.c_long(number), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
    print(errno.errorcode.get(ctypes.get_errno(), 'made'))
";
    let outcome = run(&sandbox, source);
    let output = text(&outcome);
    let answers: Vec<_> = output.lines().collect();
    // Under the embedder's uid there are none, as on a file system without them.
    let short = if support::root() {
        ["ok", "EPERM"]
    } else {
        ["ENOTSUP", "EPERM"]
    };
    let expected = [short, short, ["ENOSYS"; 2]].concat();
    assert_eq!(answers, expected, "{outcome}{}", outcome.stderr.to_text());
    assert!(outcome.violation().is_some(), "{outcome}");
    // The control: the long list is one that the kernel takes.
    let home = support::open_directory();
    let list = format!("import os\nos.chdir({:?})\n{source}", home.path());
    let free = unconfined(&list);
    let free: Vec<_> = free.lines().take(4).collect();
    if free.contains(&"EOPNOTSUPP") {
        support::not_run(
            "access_control_lists_of_files_are_short_and_memory_has_no_policies",
            "the control: this file system has no access control lists",
        );
    } else {
        assert_eq!(free, ["ok"; 4]);
    }
}
