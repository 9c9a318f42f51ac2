//! Honest programs run as they do elsewhere, and what is forbidden never takes effect and is named.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use support::{
    assert_clean, assert_gone, assert_killed, denied, hit, python, run, seconds, text, unconfined,
};
use varek_core::{
    Answer, Cause, Command, Network, Outcome, Policy, Resource, Signal, SyscallGroup, Termination,
};

/// The Python preset with further programs allowed.
fn python_with_exec() -> Policy {
    python().syscalls(|calls| calls.allow_group(SyscallGroup::Exec))
}

/// The calls by number, for sources that make them with `syscall(NR[name], ...)`, which gives -errno.
const CALLS: &str = r"
import ctypes, os, platform
NR = {
    'x86_64': {'clone': 56, 'unshare': 272, 'execveat': 322, 'clone3': 435, 'getpid': 39},
    'aarch64': {'clone': 220, 'unshare': 97, 'execveat': 281, 'clone3': 435, 'getpid': 172},
}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(number, *arguments):
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    got = libc.syscall(ctypes.c_long(number), *arguments)
    return -ctypes.get_errno() if got == -1 else got
";

fn with_calls(source: &str) -> String {
    format!("{CALLS}{source}")
}

#[track_caller]
fn prints(source: &str, expected: &str) {
    let sandbox = sandbox!(python());
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), expected);
    assert_eq!(outcome.stderr.to_text(), "");
}

// ---- what honest programs do ----

#[test]
fn python_adds() {
    prints("print(2 + 2)", "4\n");
}

#[test]
fn the_standard_library_is_there() {
    prints(
        "import json, re, hashlib, decimal, zlib, datetime, collections, itertools, unicodedata\n\
         print(json.dumps({'a': [1, None, 'ü']}, sort_keys=True), hashlib.sha256(b'').hexdigest()[:8])\n\
         print(zlib.decompress(zlib.compress(b'x' * 9)).decode(), decimal.Decimal('0.1') + 1)",
        "{\"a\": [1, null, \"\\u00fc\"]} e3b0c442\nxxxxxxxxx 1.1\n",
    );
}

#[test]
fn sqlite_works_in_scratch_with_a_journal_and_with_a_write_ahead_log() {
    prints(
        "import sqlite3\n\
         for mode in ['delete', 'wal']:\n\
         \x20   db = sqlite3.connect(mode + '.db')\n\
         \x20   print(db.execute('pragma journal_mode=' + mode).fetchone()[0])\n\
         \x20   db.execute('create table t (n)')\n\
         \x20   db.executemany('insert into t values (?)', [(n,) for n in range(100)])\n\
         \x20   db.commit()\n\
         \x20   other = sqlite3.connect(mode + '.db')\n\
         \x20   print(other.execute('select sum(n) from t').fetchone()[0])\n\
         \x20   other.close(); db.close()",
        "delete\n4950\nwal\n4950\n",
    );
}

#[test]
fn temporary_files_land_in_scratch() {
    prints(
        "import os, tempfile\n\
         with tempfile.NamedTemporaryFile() as f:\n\
         \x20   f.write(b'x'); f.flush()\n\
         \x20   print(os.path.dirname(f.name) == os.getcwd(), os.stat(f.name).st_size)",
        "True 1\n",
    );
}

#[test]
fn threads_and_locks_work() {
    prints(
        "import threading, queue\n\
         from concurrent.futures import ThreadPoolExecutor\n\
         with ThreadPoolExecutor(8) as pool: print(sum(pool.map(lambda n: n * n, range(100))))\n\
         q = queue.Queue()\n\
         t = threading.Thread(target=lambda: q.put(q is not None)); t.start(); t.join()\n\
         print(q.get())",
        "328350\nTrue\n",
    );
}

#[test]
fn asyncio_works_over_a_socket_pair() {
    prints(
        "import asyncio, socket\n\
         async def main():\n\
         \x20   a, b = socket.socketpair()\n\
         \x20   a.setblocking(False); b.setblocking(False)\n\
         \x20   loop = asyncio.get_running_loop()\n\
         \x20   reader = asyncio.create_task(loop.sock_recv(b, 100))\n\
         \x20   await loop.sock_sendall(a, b'over')\n\
         \x20   print((await reader).decode(), sum(await asyncio.gather(*[asyncio.sleep(0, n) for n in range(10)])))\n\
         \x20   print(await asyncio.to_thread(lambda: 'thread'))\n\
         asyncio.run(main())",
        "over 45\nthread\n",
    );
}

#[test]
fn forked_children_work_and_can_be_waited_for() {
    prints(
        "import os\n\
         read, write = os.pipe()\n\
         children = []\n\
         for n in range(4):\n\
         \x20   child = os.fork()\n\
         \x20   if child == 0:\n\
         \x20       os.write(write, b'%d' % n); os._exit(n)\n\
         \x20   children.append(child)\n\
         codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]\n\
         print(codes, sorted(os.read(read, 4)) == sorted(b'0123'))",
        "[0, 1, 2, 3] True\n",
    );
}

#[test]
fn multiprocessing_pipes_work() {
    prints(
        "import multiprocessing\n\
         def work(pipe): pipe.send([n * n for n in range(5)])\n\
         context = multiprocessing.get_context('fork')\n\
         here, there = context.Pipe()\n\
         child = context.Process(target=work, args=(there,)); child.start()\n\
         print(here.recv()); child.join(); print(child.exitcode)",
        "[0, 1, 4, 9, 16]\n0\n",
    );
}

#[test]
fn signal_handlers_run_and_timers_fire() {
    prints(
        "import os, signal\n\
         signal.signal(signal.SIGUSR1, lambda s, f: print('got', s))\n\
         os.kill(os.getpid(), signal.SIGUSR1)\n\
         class Rang(Exception): pass\n\
         def ring(s, f): raise Rang\n\
         signal.signal(signal.SIGALRM, ring)\n\
         signal.setitimer(signal.ITIMER_REAL, 0.01)\n\
         try:\n\
         \x20   while True: signal.pause()\n\
         except Rang: print('rang')\n\
         try: os.kill(os.getpid(), signal.SIGINT)\n\
         except KeyboardInterrupt: print('interrupted')",
        "got 10\nrang\ninterrupted\n",
    );
}

#[test]
fn future_imports_come_first() {
    prints(
        "from __future__ import annotations\n\
         def f(x: not_defined) -> nor_this: return 5\n\
         print(f.__annotations__['x'], f(1))",
        "not_defined 5\n",
    );
}

#[test]
fn a_program_of_a_megabyte_keeps_its_own_line_numbers() {
    let sandbox = sandbox!(python());
    let mut source = format!("x = '{}'\n", "a".repeat(93)).repeat(10_500);
    assert!(source.len() > 1024 * 1024);
    source.push_str("raise ValueError('the last line')\n");
    let outcome = run(&sandbox, &source);
    assert_eq!(outcome.termination, Termination::Exited(1), "{outcome}");
    let stderr = outcome.stderr.to_text();
    assert!(
        stderr.contains("main.py\", line 10501, in <module>"),
        "{stderr}"
    );
    assert!(stderr.contains("ValueError: the last line"), "{stderr}");
    assert_eq!(outcome.violation(), None);
    assert_gone(&outcome);
}

// ---- what an end is read as ----

#[test]
fn a_signal_that_the_guest_sends_to_itself_is_no_kill_of_ours() {
    let sandbox = sandbox!(python());
    let outcome = run(&sandbox, "import os; os.kill(os.getpid(), 9)");
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal::KILL),
        "{outcome}"
    );
    assert_eq!(outcome.violation(), None);
    assert!(outcome.limits_hit.is_empty(), "{outcome}");
    assert_gone(&outcome);

    // SIGXCPU and SIGXFSZ are not proof of a limit either: the first because no time was used up.
    let outcome = run(&sandbox, "import os; os.kill(os.getpid(), 24)");
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal::XCPU),
        "{outcome}"
    );
    let outcome = run(&sandbox, "import os; os.abort()");
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal(6)),
        "{outcome}"
    );
    assert_gone(&outcome);
}

#[test]
fn exit_codes_that_look_like_kills_are_exit_codes() {
    let sandbox = sandbox!(python());
    for code in [0, 1, 2, 124, 126, 127, 128, 137, 139, 143, 152, 159, 255] {
        let outcome = run(&sandbox, &format!("import sys; sys.exit({code})"));
        assert_eq!(outcome.termination, Termination::Exited(code), "{outcome}");
        assert_eq!(outcome.violation(), None, "{outcome}");
        assert!(!outcome.timed_out(), "{outcome}");
        assert_gone(&outcome);
    }
}

#[test]
fn a_syntax_error_is_no_violation() {
    let sandbox = sandbox!(python());
    let outcome = run(&sandbox, "print('never'\n");
    assert_eq!(outcome.termination, Termination::Exited(1), "{outcome}");
    assert!(outcome.stderr.to_text().contains("SyntaxError"));
    assert_eq!(outcome.stdout.total, 0);
    assert_eq!(outcome.violation(), None);
    assert!(outcome.denials.is_empty(), "{outcome}");
    assert!(
        outcome.contained(),
        "the reference's column counts every exit code but 0"
    );
}

#[test]
fn a_guest_that_stops_itself_is_ended_by_the_wall_clock() {
    let source = |signal| format!("import os; os.kill(os.getpid(), {signal}); print('went on')");
    let sandbox = sandbox!(python());
    // SIGCONT.
    let outcome = run(&sandbox, &source(18));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "went on\n");

    let sandbox = sandbox!(python().wall_clock(seconds(2)));
    let outcome = run(&sandbox, &source(19));
    assert_killed(&outcome, &Cause::WallClock);
    assert!(outcome.timed_out());
    let limit = u64::try_from(seconds(2).as_micros()).unwrap();
    assert_eq!(hit(&outcome, Resource::WallClock).limit, Some(limit));
    assert_eq!(outcome.stdout.total, 0);
}

// ---- what is refused ----

#[test]
fn subprocesses_are_refused_by_name() {
    let source = "import subprocess\n\
                  try: print(subprocess.run(['/bin/echo', 'ran'], capture_output=True).stdout.decode(), end='')\n\
                  except PermissionError as e: print('refused', e.errno)";
    let sandbox = sandbox!(python());
    let outcome = run(&sandbox, source);
    assert_eq!(text(&outcome), "refused 1\n", "{outcome}");
    assert_eq!(outcome.termination, Termination::Exited(0));
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("execve")
    );
    assert_eq!(denied(&outcome, "execve").count, 1);
    assert_eq!(denied(&outcome, "execve").first.answer, Answer::Errno(1));
    assert_gone(&outcome);

    let outcome = run(&sandbox!(python_with_exec()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "ran\n");
}

#[test]
fn a_refused_exec_that_the_guest_swallows_is_still_a_violation() {
    let source = "import os; print(os.system('echo ran') == 0)";
    let outcome = run(&sandbox!(python()), source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "False\n");
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("execve")
    );
    assert_eq!(denied(&outcome, "execve").count, 1);

    let outcome = run(&sandbox!(python_with_exec()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "ran\nTrue\n");
}

#[test]
fn sockets_are_refused_by_name_and_with_their_family() {
    // AF_INET, AF_INET6, AF_UNIX, AF_NETLINK: one call each.
    let source = "import socket\n\
                  for family in [2, 10, 1, 16]:\n\
                  \x20   try: socket.socket(family, socket.SOCK_DGRAM).close(); print('made')\n\
                  \x20   except PermissionError as e: print('refused', e.errno)";
    let outcome = run(&sandbox!(python()), source);
    assert_eq!(text(&outcome), "refused 1\n".repeat(4), "{outcome}");
    assert_eq!(outcome.termination, Termination::Exited(0));
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("socket")
    );
    assert_eq!(denied(&outcome, "socket").count, 4);
    assert_eq!(denied(&outcome, "socket").first.arguments[0], 2);
    assert_gone(&outcome);

    let outcome = run(&sandbox!(python().network(Network::Host)), source);
    if support::root() {
        assert_clean(&outcome);
        assert_eq!(text(&outcome), "made\n".repeat(4));
    } else {
        // Under the embedder's uid the user's services would answer at AF_UNIX.
        assert_gone(&outcome);
        assert_eq!(text(&outcome), "made\nmade\nrefused 1\nmade\n");
    }
}

#[test]
fn a_forbidden_call_of_a_grandchild_kills_the_tree_and_is_named() {
    if support::filtered_outside("a_forbidden_call_of_a_grandchild_kills_the_tree_and_is_named") {
        return;
    }
    let source = with_calls(
        "child = os.fork()\n\
         if child == 0:\n\
         \x20   if os.fork() == 0:\n\
         \x20       print(syscall(NR['unshare'], 0), flush=True)\n\
         \x20       os._exit(0)\n\
         \x20   os.wait(); os._exit(0)\n\
         os.waitpid(child, 0)\n",
    );
    let outcome = run(&sandbox!(python()), &source);
    assert_killed(
        &outcome,
        &Cause::Syscall {
            name: "unshare".into(),
        },
    );
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("unshare")
    );
    assert_eq!(denied(&outcome, "unshare").count, 1);
    assert_eq!(denied(&outcome, "unshare").first.answer, Answer::Kill);
    assert_ne!(denied(&outcome, "unshare").first.thread, 0);
    assert_eq!(outcome.stdout.total, 0, "{outcome}");

    // Only refused: the tree lives, and the first process exits with 0.
    let spared = python().syscalls(|calls| calls.spare(["unshare"]));
    let outcome = run(&sandbox!(spared), &source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "-1\n");
    assert_eq!(denied(&outcome, "unshare").first.answer, Answer::Errno(1));

    // Allowed: it is made, of nothing.
    let allowed = python().syscalls(|calls| calls.spare(["unshare"]).allow(["unshare"]));
    let outcome = run(&sandbox!(allowed), &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "0\n");
}

/// Makes a directory through the system call table that the argument names.
#[cfg(target_arch = "x86_64")]
const FOREIGN: &str = r#"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
/* Static and not position independent, so that the address fits into 32 bits. */
static char proof[] = "proof";
int main(int argc, char **argv) {
    long result;
    switch (argv[1][0]) {
    case 'n': /* mkdir of x86_64 */
        __asm__ volatile("syscall" : "=a"(result) : "a"(83L), "D"(proof), "S"(0700L) : "rcx", "r11", "memory");
        break;
    case 'x': /* the same with the bit of x32 */
        __asm__ volatile("syscall" : "=a"(result) : "a"(83L | 0x40000000L), "D"(proof), "S"(0700L)
                         : "rcx", "r11", "memory");
        break;
    default: /* mkdir of i386 */
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(39L), "b"(proof), "c"(0700L) : "memory");
    }
    return result == 0 ? 0 : 1;
}
"#;

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_through_other_tables_never_take_effect_and_kill() {
    let test = "calls_through_other_tables_never_take_effect_and_kill";
    let sandbox = sandbox!(Policy::native());
    let home = support::open_directory();
    let Some(program) = support::compiled(test, home.path(), "foreign", FOREIGN, &[]) else {
        return;
    };

    let scratch = |table: &str| {
        let directory = home.path().join(format!("scratch-{table}"));
        std::fs::create_dir(&directory).unwrap();
        directory
    };
    // The native table works under the same policy.
    let native = scratch("native");
    let outcome = sandbox
        .run(Command::new(&program).arg("native").scratch(&native))
        .unwrap();
    assert_clean(&outcome);
    assert!(native.join("proof").is_dir());

    let outer_filter = varek_core::Host::probe().outer_filter;
    for abi in ["i386", "x32"] {
        let table = abi;
        let directory = scratch(table);
        let outcome = sandbox
            .run(Command::new(&program).arg(table).scratch(&directory))
            .unwrap();
        assert!(!directory.join("proof").exists(), "{outcome}");
        if outer_filter && outcome.denials.is_empty() {
            support::not_run(
                test,
                &format!("a seccomp filter around this program answers for {abi} first"),
            );
            continue;
        }
        let name = outcome
            .denials
            .iter()
            .next()
            .map(|(name, _)| name.to_owned());
        let name = name.unwrap_or_else(|| panic!("{table}: {outcome}"));
        assert_killed(&outcome, &Cause::Syscall { name: name.clone() });
        assert_eq!(denied(&outcome, &name).first.abi, abi);
        assert_eq!(denied(&outcome, &name).first.answer, Answer::Kill);
        assert!(name.contains("mkdir"), "{name}");
    }

    // The 32-bit table works on this host, unless its kernel was built without it.
    let free = scratch("unconfined");
    let made = std::process::Command::new(&program)
        .arg("i386")
        .current_dir(&free)
        .status();
    if made.unwrap().success() {
        assert!(free.join("proof").is_dir());
    } else {
        support::not_run(
            test,
            "this kernel has no 32-bit calls, so there is no positive control",
        );
    }
}

// ---- clone ----

/// What a fork's clone has beside its flags.
const SIGCHLD: u64 = 0x11;

/// Clones with these flags in a child, and prints 0 or the error number.
fn clone_source(flags: u64) -> String {
    with_calls(&format!(
        "child = os.fork()\n\
         if child == 0:\n\
         \x20   made = syscall(NR['clone'], {flags} | {SIGCHLD}, 0, 0, 0, 0)\n\
         \x20   if made <= 0: os._exit(-made)\n\
         \x20   if not {flags} & 0x8000: os.waitpid(made, 0)\n\
         \x20   os._exit(0)\n\
         print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n\
         try:\n\
         \x20   while True: os.wait()\n\
         except ChildProcessError: pass\n"
    ))
}

fn clone_is_refused(test: &str, flags: u64) {
    const NAMESPACES: u64 = 0x7e02_0000;
    let source = clone_source(flags);
    if flags & NAMESPACES != 0 && support::filtered_outside(test) {
        return;
    }
    // Namespaces are root's to make where nothing holds it back; below, the record says who refused.
    if rustix::process::geteuid().is_root() {
        assert_eq!(
            unconfined(&source),
            "0\n",
            "this host does not know the flag"
        );
    }
    let Some(sandbox) = support::sandbox_or_not_run(test, python()) else {
        return;
    };
    let outcome = run(&sandbox, &source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "1\n");
    assert_eq!(outcome.violation().and_then(|v| v.syscall()), Some("clone"));
    assert_eq!(denied(&outcome, "clone").count, 1);
    assert_eq!(
        denied(&outcome, "clone").first.arguments[0],
        flags | SIGCHLD
    );
    assert_gone(&outcome);
}

macro_rules! refused_clone_flags {
    ($($test:ident: $flags:expr;)*) => {$(
        #[test]
        fn $test() {
            clone_is_refused(stringify!($test), $flags);
        }
    )*};
}

refused_clone_flags! {
    clone_newns_is_refused: 0x0002_0000;
    clone_newcgroup_is_refused: 0x0200_0000;
    clone_newuts_is_refused: 0x0400_0000;
    clone_newipc_is_refused: 0x0800_0000;
    clone_newuser_is_refused: 0x1000_0000;
    clone_newpid_is_refused: 0x2000_0000;
    clone_newnet_is_refused: 0x4000_0000;
    clone_parent_is_refused: 0x0000_8000;
    clone_ptrace_is_refused: 0x0000_2000;
    clone_of_all_namespaces_is_refused: 0x7e02_0000;
}

#[test]
fn clone_without_flags_works_as_fork() {
    let outcome = run(&sandbox!(python()), &clone_source(0));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "0\n");
}

#[test]
fn clone3_does_not_exist_for_guests() {
    // struct clone_args of 64 bytes, the fifth of its words being the exit signal.
    let source = with_calls(
        "arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17, 0, 0, 0)\n\
         made = syscall(NR['clone3'], ctypes.byref(arguments), 64)\n\
         if made == 0: os._exit(0)\n\
         if made > 0: made = os.waitpid(made, 0)[1]\n\
         print(made)",
    );
    if varek_core::Host::probe().clone3 {
        assert_eq!(unconfined(&source), "0\n");
    } else {
        support::not_run(
            "clone3_does_not_exist_for_guests",
            "the control: this host has no clone3",
        );
    }
    let outcome = run(&sandbox!(python()), &source);
    assert_clean(&outcome);
    // ENOSYS, so that libc falls back to clone. The filter itself says so: every start of a thread asks.
    assert_eq!(text(&outcome), "-38\n");
    assert!(outcome.denials.is_empty(), "{outcome}");
}

// ---- exec once ----

/// A second exec by this route is refused, and works where further programs are allowed.
fn exec_is_refused(test: &str, call: &str, route: &str) {
    let source = with_calls(&format!(
        "import sys, threading\n\
         def attempt():\n\
         \x20   try: {route}\n\
         \x20   except OSError as e: return -e.errno\n\
         HOLD"
    ))
    .replace(
        "HOLD",
        if test.contains("thread") {
            "result = []\n\
             thread = threading.Thread(target=lambda: result.append(attempt()))\n\
             thread.start(); thread.join()\n\
             print(*result)"
        } else if test.contains("child") {
            "child = os.fork()\n\
             if child == 0: os._exit(-(attempt() or 0))\n\
             status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n\
             if status: print(-status)"
        } else {
            "print(attempt())"
        },
    );
    let narrow = support::sandbox_or_not_run(test, python());
    let wide = support::sandbox_or_not_run(test, python_with_exec());
    let (Some(narrow), Some(wide)) = (narrow, wide) else {
        return;
    };

    let outcome = run(&narrow, &source);
    assert_eq!(
        outcome.termination,
        Termination::Exited(0),
        "{outcome} {}",
        outcome.stderr.to_text()
    );
    assert_eq!(text(&outcome), "-1\n", "{outcome}");
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some(call),
        "{outcome}"
    );
    assert_eq!(denied(&outcome, call).count, 1, "{outcome}");
    assert_eq!(outcome.denials.total(), 1, "{outcome}");
    assert_gone(&outcome);

    let outcome = run(&wide, &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "ran\n");
}

macro_rules! refused_execs {
    ($($test:ident: $call:expr, $route:expr;)*) => {$(
        #[test]
        fn $test() {
            exec_is_refused(stringify!($test), $call, $route);
        }
    )*};
}

refused_execs! {
    exec_by_path_is_refused: "execve", "os.execv('/bin/echo', ['echo', 'ran'])";
    exec_by_search_path_is_refused: "execve", "os.execve('/usr/bin/env', ['env', 'echo', 'ran'], {'PATH': '/bin'})";
    exec_of_the_own_image_is_refused: "execve",
        "os.execv('/proc/self/exe', ['python3', '-c', 'print(\"ran\")'])";
    exec_of_a_descriptor_is_refused: "execveat",
        "os.execve(os.open('/bin/echo', os.O_RDONLY), ['echo', 'ran'], {})";
    exec_of_a_memory_file_is_refused: "execveat",
        "m = os.memfd_create('m'); os.write(m, open('/bin/echo', 'rb').read()); \
         os.execve(m, ['echo', 'ran'], {})";
    exec_by_a_bare_execveat_is_refused: "execveat",
        "return syscall(NR['execveat'], -100, ctypes.c_char_p(b'/bin/echo'), \
         (ctypes.c_char_p * 3)(b'echo', b'ran', None), None, 0)";
    exec_from_a_thread_is_refused: "execve", "os.execv('/bin/echo', ['echo', 'ran'])";
    exec_in_a_forked_child_is_refused: "execve", "os.execv('/bin/echo', ['echo', 'ran'])";
}

#[cfg(target_arch = "x86_64")]
refused_execs! {
    exec_through_the_loader_is_refused: "execve",
        "os.execv('/lib64/ld-linux-x86-64.so.2', ['ld.so', '/bin/echo', 'ran'])";
}

#[test]
fn guessed_permits_open_nothing() {
    // execve with all six registers: what opened the guest's own start was in the last three.
    let source = with_calls(
        "import random\n\
         execve = {'x86_64': 59, 'aarch64': 221}[platform.machine()]\n\
         path = ctypes.c_char_p(b'/bin/echo')\n\
         argv = (ctypes.c_char_p * 3)(b'echo', b'ran', None)\n\
         words = lambda: [ctypes.c_long(random.getrandbits(63)) for _ in range(3)]\n\
         tries = [[0, 0, 0], [-1, -1, -1]] + [words() for _ in range(98)]\n\
         print({syscall(execve, path, argv, None, *words) for words in tries})",
    );
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(
        text(&outcome),
        "{-1}\n",
        "{outcome} {}",
        outcome.stderr.to_text()
    );
    assert_eq!(denied(&outcome, "execve").count, 100);
    assert_eq!(outcome.termination, Termination::Exited(0));

    let outcome = run(&sandbox!(python_with_exec()), &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "ran\n");
}

#[test]
fn every_run_of_a_sandbox_starts_its_own_program_again() {
    let sandbox = sandbox!(python());
    let outcomes: Vec<Outcome> = (0..5)
        .map(|n| run(&sandbox, &format!("print({n})")))
        .collect();
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_clean(outcome);
        assert_eq!(text(outcome), format!("{n}\n"));
    }
    let mut names: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.run.to_string())
        .collect();
    names.dedup();
    assert_eq!(names.len(), 5);
}
