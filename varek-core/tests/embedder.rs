//! Whatever the embedder is like (its handling of SIGCHLD, its descriptors, its threads, its forks), guests
//! run as they should, and it stays as it is.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::AssertUnwindSafe;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use embedder::sys::{self, Disposition, Shared};
use embedder::{field, own_uids, until};
use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit, wait, waitpid};
use support::{assert_gone, not_run, sandbox_or_not_run, text};
use varek_core::{
    Cause, Command, Error, Host, Input, Outcome, Output, Policy, Sandbox, Termination,
    UnknownReason,
};

fn native() -> Policy {
    own_uids(Policy::native()).wall_clock(Duration::from_secs(60))
}

fn python() -> Policy {
    own_uids(Policy::python()).wall_clock(Duration::from_secs(60))
}

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").arg("-c").arg(script)
}

fn wait_for_input() -> Command {
    Command::new("/bin/cat").stdin(Input::piped())
}

// ---- SIGCHLD ----

/// What is expected of a guest that ends like this while the embedder takes or discards its status.
fn as_known(host: &Host, ended: Termination) -> Termination {
    if host.status_after_reap {
        ended
    } else {
        Termination::Unknown {
            reason: UnknownReason::StatusTaken,
        }
    }
}

fn ends_are_right_or_unknown(sandbox: &Sandbox) {
    let host = Host::probe();
    let outcome = sandbox.run(shell("exit 3")).unwrap();
    assert_eq!(
        outcome.termination,
        as_known(&host, Termination::Exited(3)),
        "{outcome}"
    );
    assert!(outcome.contained(), "{outcome}");
    assert_gone(&outcome);
    let outcome = sandbox.run(shell("exit 0")).unwrap();
    assert_eq!(
        outcome.termination,
        as_known(&host, Termination::Exited(0)),
        "{outcome}"
    );
    assert_eq!(text(&sandbox.run(shell("echo out")).unwrap()), "out\n");
    let outcome = sandbox.run(shell("kill -SEGV $$")).unwrap();
    let signal = Termination::Signaled(varek_core::Signal(11));
    assert_eq!(outcome.termination, as_known(&host, signal), "{outcome}");
    // What VAREK itself decided needs nobody's status.
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    child.kill();
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::Cancelled),
        "{outcome}"
    );
    assert_gone(&outcome);
}

#[test]
fn an_embedder_that_ignores_sigchld_never_reads_a_false_exit_0() {
    alone!();
    sys::dispose(libc::SIGCHLD, Disposition::Ignore).unwrap();
    assert!(Host::probe().discards_status);
    // The control: the status of an ordinary child is lost.
    let mut child = std::process::Command::new("sh")
        .args(["-c", "exit 3"])
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap_err().raw_os_error(), Some(libc::ECHILD));
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    ends_are_right_or_unknown(&sandbox);
}

#[test]
fn an_embedder_with_sa_nocldwait_never_reads_a_false_exit_0() {
    alone!();
    sys::dispose(libc::SIGCHLD, Disposition::DefaultNoWait).unwrap();
    assert!(Host::probe().discards_status);
    let mut child = std::process::Command::new("sh")
        .args(["-c", "exit 3"])
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap_err().raw_os_error(), Some(libc::ECHILD));
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    ends_are_right_or_unknown(&sandbox);
}

/// Runs this beside a thread that takes the status of every child it can get, as process 1 of many
/// containers and some runtimes do.
#[expect(clippy::zombie_processes, reason = "the reaper takes the last child")]
fn beside_a_reaper(work: impl FnOnce(&AtomicUsize)) {
    let (reaped, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match wait(WaitOptions::empty()) {
                    Ok(_) => {
                        reaped.fetch_add(1, Ordering::Relaxed);
                    }
                    // Nothing to reap just now.
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| work(&reaped)));
        done.store(true, Ordering::Relaxed);
        // Something to reap, for a reaper that waits while nothing is left.
        std::process::Command::new("true").spawn().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn an_embedder_that_reaps_everything_never_reads_a_false_exit_0() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let status_after_reap = Host::probe().status_after_reap;
    beside_a_reaper(|reaped| {
        let mut runs = 0;
        let enough = until(|| {
            let outcome = sandbox.run(shell("exit 3")).unwrap();
            match outcome.termination {
                Termination::Exited(3) => {}
                Termination::Unknown {
                    reason: UnknownReason::StatusTaken,
                } => {
                    assert!(!status_after_reap, "{outcome}");
                }
                _ => panic!("{outcome}"),
            }
            assert_gone(&outcome);
            runs += 1;
            runs >= 50 && reaped.load(Ordering::Relaxed) >= 10
        });
        assert!(enough, "the reaper took {reaped:?} of {runs} guests");
    });
}

#[test]
fn a_sandbox_of_an_embedder_that_reaps_everything_ends_with_all_its_threads() {
    alone!();
    if sandbox_or_not_run(test_name!(), native()).is_none() {
        return;
    }
    beside_a_reaper(|reaped| {
        let enough = until(|| {
            drop(Sandbox::new(native()).unwrap());
            let threads = || {
                embedder::threads()
                    .into_keys()
                    .filter(|name| name.starts_with("varek"))
            };
            let ended = until(|| threads().next().is_none());
            assert!(ended, "{:?}", threads().collect::<Vec<_>>());
            reaped.load(Ordering::Relaxed) >= 20
        });
        assert!(enough, "the reaper took {reaped:?} guardians");
    });
}

// ---- descriptors ----

#[test]
fn guests_have_their_streams_whatever_stdio_the_embedder_has() {
    let name = test_name!();
    if let Some(role) = embedder::role() {
        without_stdio(name, role.parse().unwrap());
    }
    for closed in 0..8 {
        let report = tempfile::NamedTempFile::new().unwrap();
        let mut command = embedder::again(name, &closed.to_string());
        // The harness in it would write its own words to whatever has these numbers.
        command.env("VAREK_TEST_REPORT", report.path());
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let text = fs::read_to_string(report.path()).unwrap();
        if let Some(reason) = text.strip_prefix("not run: ") {
            not_run(name, reason);
            return;
        }
        assert_eq!(text, "good", "with the stdio {closed:03b} closed: {status}");
    }
}

/// Closes the descriptors of this bit mask; reports into a file, since there is nowhere else.
fn without_stdio(name: &str, mask: u8) -> ! {
    let report = std::env::var_os("VAREK_TEST_REPORT").unwrap();
    for number in (0..3).filter(|number| mask & (1 << number) != 0) {
        sys::close(number);
    }
    let said = std::sync::Mutex::new(String::from("panicked"));
    let result = std::panic::catch_unwind(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let sandbox = match Sandbox::new(python()) {
            Ok(sandbox) => sandbox,
            Err(error) => {
                *said.lock().unwrap() = format!("not run: {name}: {error}");
                return;
            }
        };
        let source = "
import os, sys
sys.stdout.write(sys.stdin.read() + 'out')
sys.stderr.write('err')
sys.stdout.flush()
print([fd for fd in range(300) if os.path.lexists(f'/proc/self/fd/{fd}')])
";
        let outcome = sandbox.run(Command::python(source).stdin("in-")).unwrap();
        let (stdout, stderr) = (outcome.stdout.to_text(), outcome.stderr.to_text());
        let right = stdout == "in-out[0, 1, 2]\n" && stderr == "err" && outcome.success();
        let mut word = if right {
            "good".to_owned()
        } else {
            format!("{outcome} {stdout:?} {stderr:?}")
        };
        let mut child = sandbox
            .spawn(
                Command::new("/bin/cat")
                    .stdin(Input::piped())
                    .stdout(Output::piped()),
            )
            .unwrap();
        child.stdin.take().unwrap().write_all(b"piped").unwrap();
        let mut piped = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut piped)
            .unwrap();
        if piped != "piped" || !child.wait().unwrap().success() {
            word.push_str(" and pipes do not work");
        }
        *said.lock().unwrap() = word;
    });
    let word = said.into_inner().unwrap();
    fs::write(report, word).unwrap();
    sys::exit(i32::from(result.is_err()))
}

#[test]
fn a_guest_s_small_table_of_descriptors_is_no_matter_of_the_embedder_s_large_one() {
    alone!();
    let limit = getrlimit(Resource::Nofile);
    let wanted = 2_500;
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        not_run(
            test_name!(),
            &format!("RLIMIT_NOFILE is at most {:?}", limit.maximum),
        );
        return;
    }
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                ..limit
            },
        )
        .unwrap();
    }
    let mut policy = python();
    policy.limits.open_files = 64;
    let Some(sandbox) = sandbox_or_not_run(test_name!(), policy) else {
        return;
    };
    let held: Vec<File> = (0..2_000)
        .map(|_| File::open("/dev/null").unwrap())
        .collect();
    assert!(held.iter().any(|file| file.as_raw_fd() > 2_000));
    let source = "
import os, resource, socket
print([fd for fd in range(3000) if os.path.lexists(f'/proc/self/fd/{fd}')])
print(resource.getrlimit(resource.RLIMIT_NOFILE))
files = []
try:
    while True:
        files.append(open('/dev/null'))
except OSError as error:
    print(len(files), os.strerror(error.errno))
try:
    socket.socket()
except PermissionError:
    print('denied')
";
    let outcome = sandbox.run(Command::python(source)).unwrap();
    let expected = "[0, 1, 2]\n(64, 64)\n61 Too many open files\ndenied\n";
    assert_eq!(
        text(&outcome),
        expected,
        "{outcome}\n{}",
        outcome.stderr.to_text()
    );
    assert_eq!(outcome.denials.count("socket"), 1, "{outcome}");
    assert_gone(&outcome);
}

/// The guest's descriptors, as the shell sees them without opening one of its own.
const LIST_DESCRIPTORS: &str =
    "n=0; while [ $n -lt 400 ]; do [ -e /proc/self/fd/$n ] && echo $n; n=$((n+1)); done; true";

#[test]
fn guests_and_other_children_of_a_busy_embedder_get_no_descriptor_of_each_other() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    // The control: a descriptor that is meant to be inherited is seen in both ways of looking.
    let shown = File::open("/dev/zero").unwrap();
    sys::keep_over_exec(shown.as_raw_fd()).unwrap();
    assert!(list_of_a_child().contains("/dev/zero"));
    drop(shown);

    let done = AtomicBool::new(false);
    let (opened, executed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let files: Vec<_> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
                    opened.fetch_add(files.len(), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let list = list_of_a_child();
                for word in [
                    "seccomp",
                    "pidfd",
                    "eventpoll",
                    "eventfd",
                    "cgroup",
                    "varek",
                ] {
                    if list.contains(word) {
                        done.store(true, Ordering::Relaxed);
                        panic!("an ordinary child has {word}:\n{list}");
                    }
                }
                executed.fetch_add(1, Ordering::Relaxed);
            }
        });
        let runs: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..support::times(250) {
                        let outcome = sandbox.run(shell(LIST_DESCRIPTORS)).unwrap();
                        assert_eq!(text(&outcome), "0\n1\n2\n", "{outcome}");
                    }
                })
            })
            .collect();
        let results: Vec<_> = runs
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    assert!(opened.into_inner() > 0 && executed.into_inner() > 0);
}

/// The descriptors of an ordinary child of this process.
fn list_of_a_child() -> String {
    let listed = std::process::Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

// ---- signals ----

/// `SigBlk`, `SigIgn` and `SigCgt` of every thread of this process, by its id.
fn signals_of_threads() -> BTreeMap<String, Vec<String>> {
    let mut threads = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap();
        let fields =
            ["SigBlk", "SigIgn", "SigCgt"].map(|name| field(&status, name).unwrap().to_owned());
        threads.insert(
            thread.file_name().to_string_lossy().into_owned(),
            fields.to_vec(),
        );
    }
    threads
}

#[test]
fn signal_masks_and_dispositions_stay_the_embedder_s_and_do_not_reach_guests() {
    alone!();
    sys::dispose(libc::SIGUSR1, Disposition::Ignore).unwrap();
    sys::block(libc::SIGTERM);
    // The thread that started this one may still be about that, with its signals blocked.
    let settled = || {
        !signals_of_threads()
            .values()
            .any(|fields| fields[0].starts_with("ffff"))
    };
    assert!(until(settled));
    let before = signals_of_threads();
    assert!(
        before
            .values()
            .any(|fields| fields[0] != "0000000000000000"),
        "{before:?}"
    );
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let show = "while read -r name value; do case $name in SigBlk:|SigIgn:) echo $name $value;; esac; \
                done < /proc/self/status";
    let clean = "SigBlk: 0000000000000000
SigIgn: 0000000000000000
";
    for _ in 0..20 {
        let outcome = sandbox.run(shell(show)).unwrap();
        assert_eq!(text(&outcome), clean, "{outcome}");
        let after = signals_of_threads();
        for (thread, fields) in &before {
            assert_eq!(after.get(thread), Some(fields), "thread {thread}");
        }
    }
    // The control: an ordinary child inherits both.
    let own = std::process::Command::new("sh")
        .args(["-c", show])
        .output()
        .unwrap();
    assert_ne!(String::from_utf8_lossy(&own.stdout), clean);
}

#[test]
fn a_guest_that_closes_its_stdin_does_not_end_an_embedder_with_the_default_sigpipe() {
    alone!();
    sys::dispose(libc::SIGPIPE, Disposition::Default).unwrap();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let much = vec![b'x'; 4 << 20];
    for script in ["exec 0<&-; echo closed", "true"] {
        let outcome = sandbox.run(shell(script).stdin(much.clone())).unwrap();
        assert!(outcome.success(), "{outcome}");
        let piped = shell(script).stdin(Input::piped());
        let mut child = sandbox.spawn(piped).unwrap();
        let error = child.stdin.take().unwrap().write_all(&much).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        assert!(child.wait().unwrap().success());
    }
    // The control: the same disposition ends a process that writes into a broken pipe itself.
    let mut broken = std::process::Command::new("sh")
        .args(["-c", "read line; echo $line; echo $line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(broken.stdout.take());
    broken.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let status = broken.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGPIPE)
    );
}

// ---- memory ----

#[test]
fn a_running_guest_shares_nothing_with_the_embedder() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let child = sandbox.spawn(wait_for_input()).unwrap();
    let own = std::process::id();
    for what in [
        Shared::Memory,
        Shared::Descriptors,
        Shared::Directory,
        Shared::Handlers,
    ] {
        match sys::share(own, own, what) {
            Ok(true) => {}
            Ok(false) => panic!("a process shares {what:?} with itself"),
            Err(error) => {
                not_run(test_name!(), &format!("kcmp(2): {error}"));
                return;
            }
        }
        match sys::share(own, child.id(), what) {
            Ok(shared) => assert!(!shared, "{what:?}"),
            // The guest has another uid: comparing with it takes CAP_SYS_PTRACE.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                not_run(test_name!(), &format!("kcmp(2) with a guest: {error}"));
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let program = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap();
    assert_eq!(program, fs::canonicalize("/bin/cat").unwrap());
}

#[test]
fn the_embedder_is_dumpable_when_no_set_up_is_going_on() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    assert!(embedder::dumpable());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
                }
            });
        }
    });
    // The last set-up was over before the last run was.
    assert!(embedder::dumpable());
}

// ---- forks ----

#[test]
fn a_forked_copy_of_the_embedder_can_do_nothing_and_harms_nothing() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox
        .spawn(wait_for_input().stdout(Output::captured()))
        .unwrap();
    let clone = sandbox.clone();
    let alive = child.as_fd().try_clone_to_owned().unwrap();
    let groups = embedder::groups_of(std::process::id());
    assert!(!groups.is_empty());

    let copy = sys::fork().unwrap();
    if copy == 0 {
        let refused = matches!(clone.run(Command::new("/bin/true")), Err(Error::ForkedCopy));
        let refused_too = matches!(
            clone.spawn(Command::new("/bin/true")),
            Err(Error::ForkedCopy)
        );
        child.kill();
        drop(child);
        drop(clone);
        drop(sandbox);
        sys::exit(if refused && refused_too { 7 } else { 8 });
    }
    let (_, status) = waitpid(rustix::process::Pid::from_raw(copy), WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(7), "{status:?}");

    assert!(!embedder::is_readable(&alive), "the guest has ended");
    // The run that the copy tried to kill and to drop ends as it would have.
    child.stdin.take().unwrap().write_all(b"on we go").unwrap();
    let outcome = child.wait().unwrap();
    assert!(outcome.success(), "{outcome}");
    assert_eq!(text(&outcome), "on we go");
    for group in embedder::groups_of(std::process::id()) {
        assert!(group.exists());
    }
    drop(clone);
    // And so does the next.
    let outcome: Outcome = sandbox.run(shell("echo next")).unwrap();
    assert_eq!(text(&outcome), "next\n");
    drop((child, sandbox));
    assert!(until(|| embedder::groups_of(std::process::id()).is_empty()));
    assert!(until(|| embedder::own_locks().is_empty()));
}

#[test]
fn a_sandbox_can_be_made_in_a_forked_copy_of_an_embedder_that_has_one() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let copy = sys::fork().unwrap();
    if copy == 0 {
        let made = Sandbox::new(native());
        let ran = made
            .as_ref()
            .ok()
            .and_then(|own| own.run(shell("echo copy")).ok());
        let right = ran.is_some_and(|outcome| text(&outcome) == "copy\n");
        drop(made);
        sys::exit(if right { 7 } else { 8 });
    }
    let (_, status) = waitpid(rustix::process::Pid::from_raw(copy), WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(7), "{status:?}");
    assert_eq!(
        text(&sandbox.run(shell("echo original")).unwrap()),
        "original\n"
    );
    let left = embedder::groups_of(copy.cast_unsigned());
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}
