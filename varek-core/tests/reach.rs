//! What a guest cannot reach of the embedder and of the user's other processes and files: by whatever calls its policy
//! allows, and whether it has a uid of its own (a root embedder) or the embedder's (any other). What is asserted is
//! that nothing happened, not how a call failed: the kernel, Landlock, the filter or the supervisor may be what refuses.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, waitid};
use support::bystander::{Bystander, shown};
use support::{assert_clean, assert_gone, open_directory, python, root, run, text, unconfined};
use varek_core::{Network, Outcome, Policy, Sandbox, Signal, SyscallGroup, Termination};

/// Everything by which one process reaches another, allowed as far as a policy can.
fn wide() -> Policy {
    let reaching = [
        "fcntl",
        "ioctl",
        "prlimit64",
        "setpriority",
        "ioprio_set",
        "sched_setaffinity",
        "sched_setscheduler",
        "sched_setparam",
        "sched_setattr",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "kcmp",
        "process_madvise",
        "process_mrelease",
        "move_pages",
        "migrate_pages",
        "get_robust_list",
    ];
    python()
        .wall_clock(Duration::from_secs(30))
        .syscalls(|calls| calls.spare(reaching).allow(reaching))
}

/// Helpers of the guests: calls by number, which give the result or -errno; V is the process to reach.
const PRELUDE: &str = r"
import ctypes, os, platform, socket, struct, signal, sys, threading
NR = {
    'x86_64': dict(kill=62, tkill=200, tgkill=234, rt_sigqueueinfo=129, rt_tgsigqueueinfo=297, ptrace=101, prlimit64=302,
                   setpriority=141, ioprio_set=251, sched_setscheduler=144, sched_setaffinity=203,
                   process_vm_readv=310, process_vm_writev=311),
    'aarch64': dict(kill=129, tkill=130, tgkill=131, rt_sigqueueinfo=138, rt_tgsigqueueinfo=240, ptrace=117,
                    prlimit64=261, setpriority=140, ioprio_set=30, sched_setscheduler=119, sched_setaffinity=122,
                    process_vm_readv=270, process_vm_writev=271),
}[platform.machine()]
NR.update(pidfd_send_signal=424, pidfd_open=434, pidfd_getfd=438)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(name, *arguments):
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    got = libc.syscall(ctypes.c_long(NR[name]), *arguments)
    return -ctypes.get_errno() if got == -1 else got
def attempt(what, *arguments):
    try: return what(*arguments)
    except OSError as error: return -error.errno
";

fn attack(victim: u32, body: &str) -> String {
    format!("{PRELUDE}V = {victim}\n{body}\nprint('end')\n")
}

/// Runs a reaching guest, which comes to its end.
#[track_caller]
fn attacked(sandbox: &Sandbox, victim: u32, body: &str) -> Outcome {
    let outcome = run(sandbox, &attack(victim, body));
    let stderr = outcome.stderr.to_text();
    assert!(text(&outcome).ends_with("end\n"), "{outcome}\n{stderr}");
    assert_gone(&outcome);
    outcome
}

// ---- signals ----

/// Each sends SIGKILL; the second value says whether the bystander alone is meant, so that a control can be run.
/// The embedder's group and session read as 0 where their leader is in another pid namespace, and
/// to kill 0 is to kill the guest's own group.
const ROUTES: [(&str, bool, &str); 13] = [
    ("kill", true, "call('kill', V, 9)"),
    ("tgkill", true, "call('tgkill', V, V, 9)"),
    ("tkill", true, "call('tkill', V, 9)"),
    (
        "rt_sigqueueinfo",
        true,
        "call('rt_sigqueueinfo', V, 9, struct.pack('iii', 9, 0, -1) + bytes(116))",
    ),
    (
        "rt_tgsigqueueinfo",
        true,
        "call('rt_tgsigqueueinfo', V, V, 9, struct.pack('iii', 9, 0, -1) + bytes(116))",
    ),
    (
        "pidfd_send_signal",
        true,
        "call('pidfd_send_signal', call('pidfd_open', V, 0), 9, 0, 0)",
    ),
    (
        "kill of the process group",
        true,
        "os.getpgid(V) and call('kill', -os.getpgid(V), 9)",
    ),
    (
        "kill of the session's group",
        false,
        "os.getsid(V) and call('kill', -os.getsid(V), 9)",
    ),
    ("SIGSTOP", true, "call('kill', V, 19)"),
    ("F_SETOWN", true, "owned(lambda fd: fcntl.fcntl(fd, 8, V))"),
    (
        "F_SETOWN_EX",
        true,
        "owned(lambda fd: fcntl.fcntl(fd, 15, struct.pack('ii', 1, V)))",
    ),
    (
        "FIOSETOWN",
        true,
        "owned(lambda fd: fcntl.ioctl(fd, 0x8901, struct.pack('i', V)))",
    ),
    (
        "SIOCSPGRP",
        true,
        "owned(lambda fd: fcntl.ioctl(fd, 0x8902, struct.pack('i', V)))",
    ),
];

/// F_SETSIG and O_ASYNC: the kernel sends the signal when the socket becomes readable (fcntl(2)).
const OWNED: &str = r"
import fcntl
def owned(claim):
    one, other = socket.socketpair()
    attempt(claim, one.fileno())
    attempt(fcntl.fcntl, one.fileno(), 10, 9)
    attempt(fcntl.fcntl, one.fileno(), fcntl.F_SETFL, os.O_ASYNC)
    other.send(b'x')
";

#[test]
fn no_call_signals_the_users_other_processes() {
    let sandbox = sandbox!(wide());
    for (name, _, route) in ROUTES {
        let mut bystander = Bystander::start();
        let before = bystander.condition();
        attacked(&sandbox, bystander.id(), &format!("{OWNED}\n{route}"));
        assert_eq!(bystander.condition(), before, "{name}");
        // The embedder itself: this very process, which would be gone.
        attacked(&sandbox, std::process::id(), &format!("{OWNED}\n{route}"));
    }
    let mut bystander = Bystander::start();
    let before = bystander.condition();
    let outcome = run(
        &sandbox,
        &attack(1, "os.fork() or signal.pause()\ncall('kill', -1, 9)"),
    );
    assert_eq!(text(&outcome), "end\n", "{outcome}");
    assert_eq!(bystander.condition(), before);
}

#[test]
fn outside_of_a_sandbox_each_of_these_calls_signals() {
    for (name, alone, route) in ROUTES {
        if !alone {
            continue;
        }
        let mut bystander = Bystander::start();
        unconfined(&attack(bystander.id(), &format!("{OWNED}\n{route}")));
        if name == "SIGSTOP" {
            let pid = rustix::process::Pid::from_child(&bystander.process);
            let stopped = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
            assert!(stopped.is_some_and(|status| status.stopped()));
        } else {
            use std::os::unix::process::ExitStatusExt as _;
            assert_eq!(
                bystander.process.wait().unwrap().signal(),
                Some(9),
                "{name}"
            );
        }
    }
}

#[test]
fn signals_within_the_run_work() {
    let sandbox = sandbox!(python());
    let outcome = run(
        &sandbox,
        r"
import functools, os, signal, threading, time
print = functools.partial(print, flush=True)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append('self'))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
print(got)

def child(then):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        then()
        os.write(writer, b'x')
        # pause(2) would wait for ever where the signal has come just before it.
        while True: time.sleep(0.05)
    os.read(reader, 1)
    return pid

def ending(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

pid = child(lambda: None)
os.kill(pid, 0)
os.kill(pid, signal.SIGTERM)
print(ending(pid))

pid = child(lambda: os.setpgid(0, 0))
os.killpg(pid, signal.SIGINT)
print(ending(pid))
try: os.kill(pid, 0)
except ProcessLookupError: print('gone')

pid = child(lambda: signal.signal(signal.SIGUSR2, lambda *_: os._exit(7)))
os.kill(pid, signal.SIGSTOP)
os.kill(pid, signal.SIGCONT)
os.kill(pid, signal.SIGUSR2)
print(ending(pid))

pids = [child(lambda: None) for _ in range(3)]
signal.signal(signal.SIGHUP, lambda *_: got.append('group'))
os.killpg(0, signal.SIGHUP)
print([ending(pid) for pid in pids], got[-1])

pids = [child(lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)) for _ in range(2)]
os.kill(-1, signal.SIGKILL)
print([ending(pid) for pid in pids])
try: os.kill(os.getpid(), 99)
except OSError as error: print(error.errno)
",
    );
    assert_clean(&outcome);
    assert_eq!(
        text(&outcome),
        "['self', 'self', 'self']\n-15\n-2\ngone\n7\n[-1, -1, -1] group\n[-9, -9]\n22\n"
    );
    let outcome = run(&sandbox, "import os; os.abort()");
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal(6)),
        "{outcome}"
    );
    assert_eq!(outcome.violation(), None, "{outcome}");
    let outcome = run(&sandbox, "import os; os.kill(os.getpid(), 9)");
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal(9)),
        "{outcome}"
    );
    assert_gone(&outcome);
}

#[test]
fn a_signal_to_a_zombie_of_the_run_succeeds_as_everywhere() {
    let source = "import os, signal\n\
                  reader, writer = os.pipe()\n\
                  pid = os.fork()\n\
                  if pid == 0: os._exit(0)\n\
                  os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n\
                  print(os.kill(pid, 0), os.kill(pid, 9))\n";
    let outcome = run(&sandbox!(python()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), unconfined(source));
}

// ---- memory, descriptors, limits ----

const READING: &str = r"
seen = []
for name in ['environ', 'mem', 'maps', 'auxv', 'stack', 'cmdline', 'status', 'cwd/.', 'root/etc/hostname', 'fd', 'fdinfo', 'map_files']:
    try:
        path = f'/proc/{V}/{name}'
        os.listdir(path) if name in ('fd', 'fdinfo', 'map_files') else open(path, 'rb').read(1) if name != 'mem' else open(path, 'r+b')
        seen.append(name)
    except OSError: pass
for name in ['exe', 'cwd', 'root', 'fd/0', 'ns/mnt']:
    try: os.readlink(f'/proc/{V}/{name}'); seen.append('link ' + name)
    except OSError: pass
buffer = ctypes.create_string_buffer(8)
iov = struct.pack('QQ', ctypes.addressof(buffer), 8)
if call('process_vm_readv', V, iov, 1, iov, 1, 0) not in (-1, -3, -13): seen.append('process_vm_readv')
if call('process_vm_writev', V, iov, 1, iov, 1, 0) not in (-1, -3, -13): seen.append('process_vm_writev')
pidfd = call('pidfd_open', V, 0)
if call('pidfd_getfd', pidfd, 0, 0) >= 0: seen.append('pidfd_getfd')
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
for request in (PTRACE_ATTACH, PTRACE_SEIZE):
    if call('ptrace', request, V, 0, 0) == 0: seen.append('ptrace')
print(seen)
";

#[test]
fn nothing_of_the_users_other_processes_can_be_read_or_traced() {
    let sandbox = sandbox!(wide());
    let mut bystander = Bystander::start();
    let before = bystander.condition();
    for victim in [bystander.id(), std::process::id()] {
        let outcome = attacked(&sandbox, victim, READING);
        assert_eq!(text(&outcome), "[]\nend\n", "{outcome}");
    }
    assert_eq!(bystander.condition(), before);

    let seen = unconfined(&attack(bystander.id(), READING));
    for name in ["environ", "fd", "link exe", "link fd/0"] {
        assert!(seen.contains(&format!("'{name}'")), "{seen}");
    }
}

const LIMITING: &str = r"
call('prlimit64', V, 7, struct.pack('QQ', 5, 5), 0)
call('setpriority', 0, V, 7)
call('ioprio_set', 1, V, 3 << 13)
call('sched_setscheduler', V, 5, struct.pack('i', 0))
call('sched_setaffinity', V, 8, struct.pack('Q', 1))
";

#[test]
fn the_users_other_processes_cannot_be_limited_or_scheduled() {
    let sandbox = sandbox!(wide());
    let mut bystander = Bystander::start();
    let before = bystander.condition();
    attacked(&sandbox, bystander.id(), LIMITING);
    assert_eq!(bystander.condition(), before);
    unconfined(&attack(bystander.id(), LIMITING));
    assert_ne!(bystander.condition(), before);
}

#[test]
fn a_guest_may_lower_its_own_limits_and_priority() {
    let source = "import os, resource\n\
                  resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n\
                  print(resource.getrlimit(resource.RLIMIT_NOFILE))\n\
                  print(os.nice(3) >= 3)\n\
                  os.sched_setaffinity(0, os.sched_getaffinity(0))\n";
    let outcome = run(&sandbox!(python()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "(32, 32)\nTrue\n");
}

// ---- files ----

fn changing(path: &Path) -> String {
    format!(
        "P = '{}'\n{}",
        path.display(),
        r"
attempt(os.chmod, P, 0o777)
attempt(os.chown, P, os.getuid(), os.getgid())
attempt(os.utime, P, (1, 1))
attempt(os.setxattr, P, 'user.varek', b'x')
attempt(os.truncate, P, 0)
attempt(os.rename, P, P + '.moved')
attempt(os.link, P, P + '.linked')
attempt(os.unlink, P)
for flags in (os.O_RDONLY, os.O_PATH, os.O_WRONLY):
    fd = attempt(os.open, P, flags)
    if fd < 0: continue
    attempt(os.fchmod, fd, 0o777)
    attempt(os.chmod, f'/proc/self/fd/{fd}', 0o777)
    attempt(os.utime, fd, (1, 1))
    attempt(os.utime, f'/proc/self/fd/{fd}', (1, 1))
    attempt(os.setxattr, fd, 'user.varek', b'x')
    attempt(os.fchown, fd, os.getuid(), os.getgid())
    libc.ioctl(fd, 0x40086602, struct.pack('Q', 0x40))
"
    )
}

#[test]
fn modes_times_and_attributes_of_the_embedders_files_cannot_be_changed() {
    let directory = open_directory();
    let file = directory.path().join("owned");
    std::fs::write(&file, "content").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let before = shown(&file);
    for policy in [wide(), wide().read(directory.path())] {
        let sandbox = sandbox!(policy);
        attacked(&sandbox, 1, &changing(&file));
        assert_eq!(shown(&file), before);
    }
    unconfined(&attack(
        1,
        &changing(&file).replace("os.unlink, P", "len, P"),
    ));
    let moved = directory.path().join("owned.moved");
    assert_ne!(shown(&moved), before);
}

#[test]
fn a_guest_of_the_embedders_uid_has_changes_of_the_embedders_files_refused_by_name() {
    let directory = open_directory();
    let sandbox = sandbox!(python().read(directory.path()));
    let source = format!(
        "import os\ntry: os.chmod('{}', 0o600); print('done')\nexcept PermissionError: print('refused')\n",
        directory.path().display()
    );
    let outcome = run(&sandbox, &source);
    assert_eq!(text(&outcome), "refused\n");
    let denied = outcome
        .denials
        .iter()
        .any(|(name, _)| name.contains("chmod"));
    assert_eq!(denied, !root(), "{outcome}");
}

#[test]
fn with_sending_of_signals_denied_none_is_performed() {
    let policy = python().syscalls(|calls| calls.deny(SyscallGroup::SendSignals.calls()));
    let outcome = run(
        &sandbox!(policy),
        "import os\ntry: os.kill(os.getpid(), 9)\nexcept PermissionError: print('refused')\n",
    );
    assert_eq!(text(&outcome), "refused\n", "{outcome}");
    assert!(outcome.violation().is_some(), "{outcome}");
}

// ---- services ----

#[test]
fn the_users_services_do_not_answer_a_guest_that_has_the_network() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service");
    let service = std::os::unix::net::UnixListener::bind(&path).unwrap();
    service.set_nonblocking(true).unwrap();
    let source = format!(
        "import socket\nP = '{}'\n{}",
        path.display(),
        r"
def reach(make, *arguments):
    try: make().connect(*arguments)
    except OSError as error: print(error.errno)
    else: print('reached')
reach(lambda: socket.socket(socket.AF_UNIX), P)
reach(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0], P)
"
    );
    let outcome = run(&sandbox!(python().network(Network::Host)), &source);
    assert_eq!(outcome.exit_code(), Some(0), "{outcome}");
    assert!(!text(&outcome).contains("reached"), "{}", text(&outcome));
    assert!(service.accept().is_err());
    assert!(unconfined(&source).starts_with("reached"));
    assert!(service.accept().is_ok());
}
