//! What pointers of denied calls led to: read for events alone, shown as unverified, bounded in every way.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
#[path = "support/stalled.rs"]
mod stalled;
mod support;

use stalled::Stalled;
use support::{
    assert_killed, denied, not_run, open_directory, python, recording_or_not_run, root, seconds,
};
use varek_core::{
    ArgumentDetail, Cause, Command, Denial, Event, EventKind, Host, Layer, LayerStatus, Namespace,
    Outcome, Policy, Rule, Sandbox,
};

/// What sources of guests begin with: each call of libc ends in a denied system call, which the guest swallows.
const BEGIN: &str = "\
import ctypes, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
def inet(address, port):
    return struct.pack('=H', socket.AF_INET) + struct.pack('!H', port) + socket.inet_aton(address) + bytes(8)
def inet6(address, port):
    return struct.pack('=H', socket.AF_INET6) + struct.pack('!HI', port, 0) + socket.inet_pton(socket.AF_INET6, address) + bytes(4)
def local(path):
    return struct.pack('=H', socket.AF_UNIX) + path
def pages(count):
    memory = mmap.mmap(-1, count * mmap.PAGESIZE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))
";

/// The preset, without calls that it allows by path.
fn policy(detail: ArgumentDetail) -> Policy {
    python()
        .record_arguments(detail)
        .syscalls(|calls| calls.deny(["unlinkat", "renameat2", "symlinkat", "mkdirat"]))
}

fn source(lines: &str) -> Command {
    Command::python(format!("{BEGIN}{lines}"))
}

fn reports(outcome: &Outcome, test: &str) -> bool {
    let status = outcome.enforcement.status(Layer::DenialReports);
    let reports =
        matches!(status, Some(LayerStatus::Enforced { .. })) && !Host::probe().outer_filter;
    if !reports {
        not_run(test, "denied calls are not reported");
    }
    reports
}

/// The denied calls of one run, each as it is written, and its outcome.
fn calls_of(
    test: &str,
    policy: Policy,
    act: impl FnOnce(&Sandbox) -> Outcome,
) -> Option<(Outcome, Vec<Denial>)> {
    let (sandbox, events) = recording_or_not_run(test, policy)?;
    let outcome = act(&sandbox);
    drop(sandbox);
    if !reports(&outcome, test) {
        return None;
    }
    let events = std::mem::take(&mut *events.lock().unwrap());
    let calls = events
        .into_iter()
        .filter_map(|event: Event| match event.kind {
            EventKind::SyscallDenied(denial) => Some(denial),
            _ => None,
        });
    Some((outcome, calls.collect()))
}

/// As [`calls_of`], again where a reader came too late, which a machine that does much else may bring about.
fn read_of(
    test: &str,
    policy: &Policy,
    act: impl Fn(&Sandbox) -> Outcome,
    all: usize,
) -> Option<(Outcome, Vec<Denial>)> {
    let mut last = None;
    for _ in 0..10 {
        let (outcome, calls) = calls_of(test, policy.clone(), &act)?;
        let read = calls.iter().filter(|call| !call.unverified.is_empty());
        let read = read.count() >= all;
        last = Some((outcome, calls));
        if read {
            break;
        }
    }
    last
}

fn decoded(calls: &[Denial]) -> Vec<String> {
    calls.iter().map(Denial::decoded).collect()
}

const PATHS: &str = r"
libc.unlinkat(AT_FDCWD, b'/etc/shadow', 0)
libc.renameat2(AT_FDCWD, b'a', AT_FDCWD, b'/b', 1)
libc.symlinkat(b'/etc/passwd', AT_FDCWD, b'link')
libc.mkdirat(AT_FDCWD, b'', 0o755)
libc.mkdirat(AT_FDCWD, 'größe\n\x1b[2J<b>\u202e'.encode() + b'\xff', 0o755)
libc.mkdirat(AT_FDCWD, b'x' * 300, 0o755)
libc.execve(b'/bin/sh', None, None)
libc.connect(0, local(b'/run/x.sock\0'), 14)
libc.bind(0, local(b'\0name'), 7)
";

#[test]
fn paths_of_denied_calls_are_shown_unverified_where_arguments_are_recorded_in_full() {
    let test = test_name!();
    let run = |sandbox: &Sandbox| sandbox.run(source(PATHS)).unwrap();
    let Some((outcome, calls)) = read_of(test, &policy(ArgumentDetail::Full), run, 9) else {
        return;
    };
    assert!(outcome.success(), "{}", outcome.stderr.to_text());
    let expected = [
        r#"unlinkat(AT_FDCWD, unverified:"/etc/shadow", 0)"#,
        r#"renameat2(AT_FDCWD, unverified:"a", AT_FDCWD, unverified:"/b", RENAME_NOREPLACE)"#,
        r#"symlinkat(unverified:"/etc/passwd", AT_FDCWD, unverified:"link")"#,
        r#"mkdirat(AT_FDCWD, unverified:"", 0o755)"#,
        r#"mkdirat(AT_FDCWD, unverified:"größe\n\u{1b}[2J\x3cb\x3e\u{202e}\xff", 0o755)"#,
        &format!(
            r#"mkdirat(AT_FDCWD, unverified:"{}…", 0o755)"#,
            "x".repeat(256)
        ),
        r#"execve(unverified:"/bin/sh", NULL, NULL)"#,
        r#"connect(0, unverified:unix:"/run/x.sock", 14)"#,
        r#"bind(0, unverified:unix:@"name", 7)"#,
    ];
    assert_eq!(decoded(&calls), expected);
    // The outcome has the same, and no sink is needed for it.
    let first = &denied(&outcome, "unlinkat").first;
    assert_eq!(first.decoded(), expected[0]);
    assert!(
        outcome
            .violation()
            .unwrap()
            .to_string()
            .contains("/etc/shadow"),
        "{outcome}"
    );
}

#[test]
fn without_that_texts_are_addresses_alone() {
    let run = |sandbox: &Sandbox| sandbox.run(source(PATHS)).unwrap();
    for detail in [ArgumentDetail::None, ArgumentDetail::Digest] {
        let Some((outcome, calls)) = calls_of(test_name!(), policy(detail), run) else {
            return;
        };
        assert!(outcome.success(), "{}", outcome.stderr.to_text());
        assert_eq!(calls.len(), 9, "{calls:?}");
        for call in calls {
            assert_eq!(call.unverified, [], "{call}");
            assert!(call.decoded().contains("unverified:0x"), "{call}");
        }
    }
}

#[test]
fn addresses_of_internet_sockets_are_shown_under_every_policy() {
    let lines = "\
libc.connect(0, inet('127.0.0.1', 80), 16)
libc.bind(0, inet6('::1', 443), 28)
libc.sendto(0, b'', 0, 0, inet('192.0.2.1', 53), 16)
libc.connect(0, inet('127.0.0.1', 80), 4)
libc.connect(0, inet('127.0.0.1', 80), -1)
";
    let run = |sandbox: &Sandbox| sandbox.run(source(lines)).unwrap();
    for detail in [ArgumentDetail::None, ArgumentDetail::Full] {
        let Some((_, calls)) = read_of(test_name!(), &policy(detail), run, 3) else {
            return;
        };
        let calls = decoded(&calls);
        assert_eq!(calls[0], "connect(0, unverified:127.0.0.1:80, 16)");
        assert_eq!(calls[1], "bind(0, unverified:[::1]:443, 28)");
        let sent = "sendto(0, unverified:0x";
        assert!(calls[2].starts_with(sent), "{calls:?}");
        assert!(
            calls[2].ends_with(", 0, 0, unverified:192.0.2.1:53, 16)"),
            "{calls:?}"
        );
        assert!(
            calls[3].starts_with("connect(0, unverified:0x"),
            "{calls:?}"
        );
        // The bytes behind the address are whatever is there.
        assert!(calls[4].starts_with("connect(0, unverified:"), "{calls:?}");
    }
}

#[test]
fn pointers_that_lead_nowhere_are_addresses_and_the_call_is_refused_as_ever() {
    let lines = "\
memory, address = pages(2)
end = address + mmap.PAGESIZE
memory[mmap.PAGESIZE - 2:mmap.PAGESIZE + 1] = b'ab\\0'
libc.unlinkat(AT_FDCWD, ctypes.c_void_p(end - 2), 0)
libc.mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0)
for pointer in (end - 2, end, 1, 1 << 63, (1 << 64) - 1):
    assert libc.unlinkat(AT_FDCWD, ctypes.c_void_p(pointer), 0) == -1
    assert ctypes.get_errno() == 1
libc.mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 3)
";
    let run = |sandbox: &Sandbox| sandbox.run(source(lines)).unwrap();
    let policy = policy(ArgumentDetail::Full);
    let Some((outcome, calls)) = read_of(test_name!(), &policy, run, 1) else {
        return;
    };
    assert!(outcome.success(), "{}", outcome.stderr.to_text());
    assert_eq!(outcome.faults, Vec::<String>::new());
    // The control: across the end of a page.
    assert_eq!(
        calls[0].decoded(),
        r#"unlinkat(AT_FDCWD, unverified:"ab", 0)"#
    );
    assert_eq!(calls.len(), 6);
    for call in &calls[1..] {
        assert_eq!(call.unverified, [], "{call}");
    }
}

#[test]
fn threads_children_and_guests_in_namespaces_are_read_alike() {
    let lines = "\
import threading
def act(name): libc.unlinkat(AT_FDCWD, name, 0)
thread = threading.Thread(target=act, args=(b'of a thread',))
thread.start()
thread.join()
if os.fork() == 0:
    act(b'of a child')
    os._exit(0)
os.wait()
";
    let mut policies = vec![policy(ArgumentDetail::Full)];
    if root() {
        policies.push(policy(ArgumentDetail::Full).namespaces(Namespace::ALL));
    }
    for policy in policies {
        let run = |sandbox: &Sandbox| sandbox.run(source(lines)).unwrap();
        let Some((outcome, calls)) = read_of(test_name!(), &policy, run, 2) else {
            return;
        };
        assert!(outcome.success(), "{}", outcome.stderr.to_text());
        let expected = ["of a thread", "of a child"]
            .map(|name| format!(r#"unlinkat(AT_FDCWD, unverified:"{name}", 0)"#));
        assert_eq!(decoded(&calls), expected);
    }
}

#[test]
fn a_call_that_kills_is_read_before_the_kill() {
    let lines = "libc.mount(b'/dev/sda', b'/mnt', b'ext4', 0, b'secret')";
    let run = |sandbox: &Sandbox| sandbox.run(source(lines)).unwrap();
    let policy = policy(ArgumentDetail::Full);
    let Some((outcome, calls)) = read_of(test_name!(), &policy, run, 1) else {
        return;
    };
    let name = "mount".into();
    assert_killed(&outcome, &Cause::Syscall { name });
    let text =
        r#"mount(unverified:"/dev/sda", unverified:"/mnt", unverified:"ext4", 0, unverified:0x"#;
    assert_eq!(calls.len(), 1);
    assert!(calls[0].decoded().starts_with(text), "{calls:?}");
}

#[test]
fn a_storm_is_read_now_and_then_and_ended_by_its_budget() {
    const STORM: u64 = 200_000;
    let test = test_name!();
    // On a slow machine as many as it makes in its time; the bound is the same.
    let storm = STORM / u64::from(support::pace());
    let directory = open_directory();
    let c = "#include <fcntl.h>\n#include <unistd.h>\nint main(void) { for (;;) unlinkat(AT_FDCWD, \"/etc/shadow\", 0); }";
    let Some(program) = support::compiled(test, directory.path(), "storm", c, &[]) else {
        return;
    };
    let policy = policy(ArgumentDetail::Full)
        .wall_clock(seconds(300))
        .denials(varek_core::DenialBudget::new(storm, u64::MAX))
        .execute(&program);
    let run = |sandbox: &Sandbox| sandbox.run(Command::new(&program)).unwrap();
    let Some((outcome, calls)) = calls_of(test, policy, run) else {
        return;
    };
    assert_killed(&outcome, &Cause::DenialBudget);
    assert_eq!(outcome.denials.count("unlinkat"), storm + 1, "{outcome}");
    assert_eq!(calls.iter().map(|call| call.count).sum::<u64>(), storm + 1);
    let tenths = outcome.usage.wall_clock.as_millis() / 100 + 2;
    assert!(calls.len() as u128 <= tenths * 65, "{}", calls.len());
    // Each of the few that are recorded is read, unless this machine is busy with something else.
    let read = calls.iter().filter(|call| !call.unverified.is_empty());
    assert!(read.count() > 0, "{}", calls.len());
}

#[test]
fn memory_behind_a_file_system_that_does_not_answer_delays_one_call_and_nothing_else() {
    let test = test_name!();
    alone!();
    let directory = open_directory();
    let stalled = match Stalled::mount(directory.path()) {
        Ok(stalled) => stalled,
        Err(error) => return not_run(test, &format!("mount a FUSE file system: {error}")),
    };
    let file = directory.path().join(stalled::FILE);
    let lines = format!(
        "\
libc.mmap.restype = ctypes.c_void_p
file = os.open({file:?}, os.O_RDONLY)
address = libc.mmap(None, mmap.PAGESIZE, 1, 1, file, 0)
for n in range(3):
    print(libc.unlinkat(AT_FDCWD, ctypes.c_void_p(address), 0), ctypes.get_errno(), flush=True)
print(libc.mount(ctypes.c_void_p(address), b'/', b'x', 0, None))
"
    );
    let policy = embedder::own_uids(policy(ArgumentDetail::Full)).read(&file);
    let run = |sandbox: &Sandbox| {
        let outcome = sandbox.run(source(&lines)).unwrap();
        assert_eq!(support::text(&outcome), "-1 1\n".repeat(3), "{outcome}");
        let name = "mount".into();
        assert_killed(&outcome, &Cause::Syscall { name });
        assert!(stalled.withholds());
        // The reader is still held up, and the sandbox goes on, with another.
        sandbox
            .run(source("libc.unlinkat(AT_FDCWD, b'/etc/shadow', 0)"))
            .unwrap()
    };
    let Some((_, calls)) = calls_of(test, policy, run) else {
        return;
    };
    assert_eq!(calls.len(), 5, "{calls:?}");
    assert!(
        calls[..4].iter().all(|call| call.unverified.is_empty()),
        "{calls:?}"
    );
    // Unless this machine is too busy for a reader in time.
    let last = calls[4].decoded();
    let known = [
        r#"unlinkat(AT_FDCWD, unverified:"/etc/shadow", 0)"#,
        "unlinkat(AT_FDCWD, unverified:0x",
    ];
    assert!(known.iter().any(|known| last.starts_with(known)), "{last}");
}

#[test]
fn memory_that_may_not_be_read_is_an_address() {
    if root() {
        return not_run(test_name!(), "root may read it all the same");
    }
    let lines = "\
libc.unlinkat(AT_FDCWD, b'before', 0)
print(libc.prctl(4, 0, 0, 0, 0))
libc.unlinkat(AT_FDCWD, b'after', 0)
print(libc.prctl(4, 1, 0, 0, 0))
libc.unlinkat(AT_FDCWD, b'again', 0)
";
    let run = |sandbox: &Sandbox| sandbox.run(source(lines)).unwrap();
    // PR_SET_DUMPABLE
    let policy = policy(ArgumentDetail::Full)
        .syscalls(|calls| calls.allow_when(Rule::on("prctl").int(0, 4)));
    let Some((outcome, calls)) = read_of(test_name!(), &policy, run, 2) else {
        return;
    };
    assert_eq!(support::text(&outcome), "0\n0\n", "{outcome}");
    support::assert_gone(&outcome);
    let read = calls.iter().map(|call| !call.unverified.is_empty());
    assert_eq!(read.collect::<Vec<_>>(), [true, false, true], "{calls:?}");
}

#[cfg(feature = "test-hooks")]
mod held {
    use std::io::Read as _;

    use varek_core::{Output, Termination};

    use super::support::text;
    use super::*;

    /// Denied calls, of which the guest says how they went.
    const LINES: &str = "\
for n in range(5):
    result = libc.unlinkat(AT_FDCWD, b'/etc/shadow', 0)
    print(result, ctypes.get_errno(), flush=True)
";

    #[test]
    fn a_reader_that_never_comes_back_delays_one_call_and_no_end() {
        let test = test_name!();
        let run = |sandbox: &Sandbox| {
            // As many as there are readers, and more.
            for _ in 0..6 {
                let outcome = sandbox.run(source(LINES).hold_reading()).unwrap();
                assert_eq!(text(&outcome), "-1 1\n".repeat(5), "{outcome}");
                assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
                support::assert_gone(&outcome);
                if reports(&outcome, test) {
                    assert_eq!(outcome.denials.count("unlinkat"), 5, "{outcome}");
                }
            }
            sandbox.run(source(LINES)).unwrap()
        };
        let Some((outcome, calls)) = calls_of(test_name!(), policy(ArgumentDetail::Full), run)
        else {
            return;
        };
        // All are held up: nothing is read for anybody, and nothing fails.
        assert_eq!(outcome.denials.count("unlinkat"), 5, "{outcome}");
        assert_eq!(calls.len(), 7 * 5);
        assert!(
            calls.iter().all(|call| call.unverified.is_empty()),
            "{calls:?}"
        );
    }

    #[test]
    fn one_run_s_reader_that_is_held_up_is_nothing_to_another_run() {
        let run = |sandbox: &Sandbox| {
            sandbox.run(source(LINES).hold_reading()).unwrap();
            sandbox.run(source(LINES)).unwrap()
        };
        let policy = policy(ArgumentDetail::Full);
        let Some((_, calls)) = read_of(test_name!(), &policy, run, 5) else {
            return;
        };
        let read = |calls: &[Denial]| calls.iter().all(|call| call.unverified.len() == 1);
        assert!(
            calls[..5].iter().all(|call| call.unverified.is_empty()),
            "{calls:?}"
        );
        assert!(calls.len() == 10 && read(&calls[5..]), "{calls:?}");
    }

    #[test]
    fn a_kill_does_not_wait_for_a_reader_nor_does_a_deadline_or_the_embedder() {
        let kill = |sandbox: &Sandbox| {
            let lines = "libc.mount(b'/dev/sda', b'/mnt', b'ext4', 0, None)";
            sandbox.run(source(lines).hold_reading()).unwrap()
        };
        let Some((outcome, calls)) = calls_of(test_name!(), policy(ArgumentDetail::Full), kill)
        else {
            return;
        };
        let name = "mount".into();
        assert_killed(&outcome, &Cause::Syscall { name });
        assert_eq!(calls[0].unverified, []);
        // The first process ends while a call of its child is being read: both are known.
        let ends = |sandbox: &Sandbox| {
            let lines = "\
if os.fork() == 0:
    print('up', flush=True)
    libc.mount(b'/dev/sda', b'/mnt', b'ext4', 0, None)
    os._exit(0)
os.read(0, 1)
";
            let input = varek_core::Input::piped();
            let command = source(lines).stdin(input).stdout(Output::piped());
            let mut child = sandbox.spawn(command.hold_reading()).unwrap();
            let mut up = [0; 3];
            child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap()
        };
        for _ in 0..5 {
            let (outcome, calls) =
                calls_of(test_name!(), policy(ArgumentDetail::Full), ends).unwrap();
            support::assert_gone(&outcome);
            // If the child came as far as its call, that is known, whoever ended first.
            let killed = calls
                .iter()
                .any(|call| call.answer == varek_core::Answer::Kill);
            let outlived = outcome.descendants_killed > 0;
            assert!(killed || outlived, "{outcome}");
            assert_eq!(
                outcome.violation().is_some(),
                killed || outcome.denials.total() > 0
            );
        }
    }
}
