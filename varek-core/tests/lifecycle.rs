//! Nothing is left behind: after runs of every kind an embedder has what it had before.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;

use embedder::{Census, own_uids, scratch_base, until};
use rustix::process::{Pid, getpid, set_child_subreaper};
use support::{assert_gone, not_run, sandbox_or_not_run, seconds};
use varek_core::{
    Cause, Cleanup, Command, Error, Event, EventKind, Host, Input, MIB, Policy, Sandbox, SetupStep,
    Termination,
};

fn policy(policy: Policy) -> Policy {
    // What is left after the grace is a fault here, however slow the machine is.
    own_uids(policy).wall_clock(seconds(60)).grace(seconds(30))
}

/// A sandbox that notes every run after which it could not clean up: nobody reads the outcome of a
/// dropped one.
fn build(policy: Policy, scratch: &Path) -> Sandbox {
    Sandbox::builder(policy)
        .scratch_base(scratch)
        .sink(|event: &Event| {
            if let EventKind::RunFinished { cleanup, .. } = &event.kind
                && *cleanup != Cleanup::Complete
            {
                UNCLEAN.lock().unwrap().push(cleanup.to_string());
            }
        })
        .build()
        .unwrap()
}

static UNCLEAN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Leaves two processes behind whose parents are dead, one of them in a session of its own, and waits for
/// both to say so.
const DOUBLE_FORK: &str = "
import os, signal
ends = os.pipe()
for own_session in (False, True):
    if os.fork() == 0:
        if own_session:
            os.setsid()
        if os.fork() == 0:
            os.write(ends[1], b'x')
            signal.pause()
        os._exit(0)
os.wait(), os.wait()
while len(os.read(ends[0], 1)) and not globals().update(seen=globals().get('seen', 0) + 1) and seen < 2:
    pass
";

const OOM: &str = "
blocks = []
while True:
    blocks.append(bytearray(4 << 20))
";

const DENIED: &str = "
import socket
try:
    socket.socket()
except OSError as error:
    print(type(error).__name__)
";

/// The sandboxes of one embedder, and one run of each kind.
struct Runs {
    native: Sandbox,
    python: Sandbox,
    /// A program that its policy lets be started and that the kernel does not take for one.
    broken: std::path::PathBuf,
}

impl Runs {
    fn new(scratch: &Path, files: &Path) -> Self {
        let broken = files.join("broken");
        fs::write(&broken, b"\x7fELF, and nothing that follows from it").unwrap();
        fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
        let native = policy(Policy::native()).execute(&broken).read(&broken);
        Self {
            native: build(native, scratch),
            python: build(policy(Policy::python()).memory(64 * MIB), scratch),
            broken,
        }
    }

    fn succeeds(&self) {
        let outcome = self.native.run(Command::new("/bin/true")).unwrap();
        assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
        assert_gone(&outcome);
    }

    fn runs_out_of_memory(&self) {
        let outcome = self.python.run(Command::python(OOM)).unwrap();
        assert_eq!(
            outcome.termination,
            Termination::Killed(Cause::OutOfMemory),
            "{outcome}"
        );
        assert_gone(&outcome);
    }

    fn is_denied(&self) {
        let outcome = self.python.run(Command::python(DENIED)).unwrap();
        assert_eq!(outcome.stdout.to_text(), "PermissionError\n", "{outcome}");
        assert_gone(&outcome);
    }

    fn leaves_descendants(&self) {
        let outcome = self.python.run(Command::python(DOUBLE_FORK)).unwrap();
        assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
        assert_eq!(outcome.descendants_killed, 2, "{outcome}");
        assert_gone(&outcome);
    }

    fn is_killed(&self) {
        let mut child = self
            .native
            .spawn(Command::new("/bin/cat").stdin(Input::piped()))
            .unwrap();
        child.kill();
        let outcome = child.wait().unwrap();
        assert_eq!(
            outcome.termination,
            Termination::Killed(Cause::Cancelled),
            "{outcome}"
        );
        assert_gone(&outcome);
    }

    fn is_dropped(&self) {
        drop(
            self.native
                .spawn(Command::new("/bin/cat").stdin(Input::piped()))
                .unwrap(),
        );
    }

    fn cannot_be_set_up(&self) {
        let error = self.native.run(Command::new(&self.broken)).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Setup {
                    step: SetupStep::Exec,
                    ..
                }
            ),
            "{error}"
        );
    }

    fn cannot_be_planned(&self) {
        let error = self
            .native
            .run(Command::new("/nonexistent/program"))
            .unwrap_err();
        assert!(matches!(error, Error::Program { .. }), "{error}");
        let error = self
            .native
            .run(Command::new("/bin/true").file("../out", ""))
            .unwrap_err();
        assert!(matches!(error, Error::Command { .. }), "{error}");
    }

    /// One of each kind whose end can be waited for.
    fn every_kind(&self) {
        self.succeeds();
        self.runs_out_of_memory();
        self.is_denied();
        self.leaves_descendants();
        self.is_killed();
        self.cannot_be_set_up();
        self.cannot_be_planned();
    }

    fn mixed(&self, runs: usize) {
        for run in 0..runs {
            match (run % 100, run % 25) {
                (50, _) => self.runs_out_of_memory(),
                (_, 1) => self.is_denied(),
                (_, 2) => self.leaves_descendants(),
                (_, 3) => self.is_killed(),
                (_, 4) => self.is_dropped(),
                (_, 5) => self.cannot_be_set_up(),
                (_, 6) => self.cannot_be_planned(),
                _ => self.succeeds(),
            }
        }
    }
}

/// After so many runs of every kind the embedder is as it was after the first few; after its sandboxes it
/// is as it was before them.
fn leave_nothing(name: &str, runs: usize) {
    let (scratch, files) = (scratch_base(), support::open_directory());
    let before = Census::settled(scratch.path());
    assert!(before.dumpable);
    if sandbox_or_not_run(name, policy(Policy::python())).is_none() {
        return;
    }
    let sandboxes = Runs::new(scratch.path(), files.path());
    // A sandbox keeps some things for its next runs, such as a group and a uid.
    sandboxes.every_kind();
    let warm = Census::settled(scratch.path());
    assert!(
        warm.groups.len() > before.groups.len(),
        "the census sees groups"
    );
    assert!(
        warm.threads.len() > before.threads.len(),
        "the census sees threads"
    );
    assert!(
        warm.descriptors.len() > before.descriptors.len(),
        "the census sees descriptors"
    );
    sandboxes.mixed(runs);
    warm.becomes_again(scratch.path());
    // As many as there were runs at a time in the two sandboxes, with what they prepare.
    assert!(
        embedder::own_locks().len() <= 16,
        "{:?}",
        embedder::own_locks()
    );
    drop(sandboxes);
    before.becomes_again(scratch.path());
    assert!(
        until(|| embedder::own_locks().is_empty()),
        "{:?}",
        embedder::own_locks()
    );
}

/// A thousand runs, where that takes no quarter of an hour.
#[test]
fn runs_leave_nothing_in_the_embedder_or_on_the_machine() {
    alone!();
    leave_nothing(test_name!(), support::times(1000));
}

#[test]
fn an_embedder_that_is_process_1_keeps_no_zombie_of_its_guests() {
    let name = test_name!();
    if embedder::role().is_none() {
        let starter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        // May this user have a pid namespace?
        match std::process::Command::new(starter[0])
            .args(&starter[1..])
            .arg("true")
            .output()
        {
            Ok(output) if output.status.success() => {
                embedder::passes(embedder::again_under(&starter, name, "process 1"));
            }
            Ok(output) => not_run(name, &String::from_utf8_lossy(&output.stderr)),
            Err(error) => not_run(name, &format!("unshare of util-linux: {error}")),
        }
        return;
    }
    assert_eq!(getpid(), Pid::INIT);
    assert!(Host::probe().init);
    own_children_stay_the_embedder_s(name);
    leave_nothing(name, 200);
}

#[test]
fn an_embedder_that_is_a_child_subreaper_keeps_no_zombie_of_its_guests() {
    alone!();
    let name = test_name!();
    set_child_subreaper(Some(getpid())).unwrap();
    assert!(Host::probe().subreaper);
    own_children_stay_the_embedder_s(name);
    leave_nothing(name, 200);
}

/// Orphans of guests fall to such an embedder, and the end of a run reaps them before it is known; the
/// embedder's own zombies, and orphans of its own, are left alone.
fn own_children_stay_the_embedder_s(name: &str) {
    let Some(sandbox) = sandbox_or_not_run(name, policy(Policy::python())) else {
        return;
    };
    let mut own = std::process::Command::new("sh")
        .args(["-c", "exit 7"])
        .spawn()
        .unwrap();
    // An orphan that is no guest's: its parent says its pid and ends, then it ends.
    let mut parent = std::process::Command::new("sh")
        .args(["-c", "exec 3<&0; cat <&3 >/dev/null & echo $!"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = parent.stdin.take();
    let mut orphan = String::new();
    parent
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut orphan)
        .unwrap();
    assert!(parent.wait().unwrap().success());
    let orphan: u32 = orphan.trim().parse().unwrap();
    let end = embedder::pidfd(orphan);
    assert!(embedder::children().iter().any(|(pid, _)| *pid == orphan));
    drop(stdin);
    embedder::readable(&end);

    let before = embedder::children();
    let outcome = sandbox.run(Command::python(DOUBLE_FORK)).unwrap();
    assert_eq!(outcome.descendants_killed, 2, "{outcome}");
    assert_eq!(embedder::children(), before, "{outcome}");

    assert_eq!(own.wait().unwrap().code(), Some(7));
    let orphan = Pid::from_raw(orphan.cast_signed());
    let options = rustix::process::WaitOptions::empty();
    assert!(rustix::process::waitpid(orphan, options).unwrap().is_some());
    drop(sandbox);
    assert_eq!(embedder::children(), []);
}

#[test]
fn dropping_a_sandbox_with_running_guests_ends_with_them() {
    alone!();
    let scratch = scratch_base();
    let before = Census::take(scratch.path());
    if sandbox_or_not_run(test_name!(), policy(Policy::native())).is_none() {
        return;
    }
    let sandbox = build(policy(Policy::native()), scratch.path());
    let spawn = || {
        sandbox
            .spawn(Command::new("/bin/cat").stdin(Input::piped()))
            .unwrap()
    };
    let guests = [spawn(), spawn(), spawn()];
    let children = embedder::children();
    for guest in &guests {
        assert!(
            children.iter().any(|(pid, _)| *pid == guest.id()),
            "{children:?}"
        );
    }
    drop(sandbox);
    drop(guests);
    before.becomes_again(scratch.path());
}

#[test]
fn an_embedder_that_is_not_dumpable_stays_so() {
    alone!();
    let name = test_name!();
    let Some(sandbox) = sandbox_or_not_run(name, policy(Policy::native())) else {
        return;
    };
    let set = rustix::process::set_dumpable_behavior;
    set(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
    assert!(!embedder::dumpable());
    set(rustix::process::DumpableBehavior::Dumpable).unwrap();
    assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
    assert!(embedder::dumpable());
}
