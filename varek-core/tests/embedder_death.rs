//! What happens to guests when the embedder is killed, and to set-ups that never end.
//!
//! An embedder that is a process of its own runs a guest that writes straight to the test's pipe, and is
//! killed with SIGKILL. What holds then, and by which mechanism, is in the names of the tests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use embedder::{Victim, again, groups_of, own_uids, pidfd, readable, until};
use support::sandbox_or_not_run;
use varek_core::{Command, Input, Namespace, Output, Policy, Sandbox};

const SCRATCH: &str = "VAREK_TEST_SCRATCH";

fn policy(policy: Policy) -> Policy {
    own_uids(policy).wall_clock(Duration::from_secs(300))
}

/// The sandbox of an embedder that will be killed, whose scratch directories the test takes away.
fn doomed(kind: Policy) -> Sandbox {
    let scratch = std::env::var_os(SCRATCH).unwrap();
    Sandbox::builder(policy(kind))
        .scratch_base(scratch)
        .build()
        .unwrap()
}

/// This process's stdout, for a guest.
fn stdout() -> Output {
    Output::file(File::from(
        std::io::stdout().as_fd().try_clone_to_owned().unwrap(),
    ))
}

/// An embedder in this part, which is killed at the end of the test at the latest.
struct Doomed {
    victim: Victim,
    scratch: tempfile::TempDir,
}

impl Doomed {
    fn start(test: &str, role: &str) -> Self {
        let scratch = embedder::scratch_base();
        let mut command: Process = again(test, role);
        command.env(SCRATCH, scratch.path());
        Self {
            victim: Victim::start(command),
            scratch,
        }
    }

    /// The embedder's guardians.
    fn guardians(&self) -> Vec<u32> {
        children_of(self.victim.id())
            .into_iter()
            .filter(|pid| {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                command.starts_with(b"varek-guardian")
            })
            .collect()
    }

    /// Takes the guardians away, so that what happens is not their doing.
    fn kill_guardians(&self) {
        for guardian in self.guardians() {
            let end = pidfd(guardian);
            rustix::process::pidfd_send_signal(&end, rustix::process::Signal::KILL).unwrap();
            readable(&end);
        }
    }

    /// What stays of a killed embedder until the next sandbox of its user: its groups, the lock files of its
    /// guests' uids, and their scratch directories.
    #[track_caller]
    fn leaves_nothing_after_a_sweep(self, name: &str) {
        let Self { victim, scratch } = self;
        let killed = victim.id();
        drop(victim);
        let uids = embedder::uid_range(killed);
        // A sweep of somebody else may be at it just now.
        let mut left = Vec::new();
        until(|| {
            let sweeps = Sandbox::builder(policy(Policy::native())).scratch_base(scratch.path());
            drop(sweeps.build().unwrap());
            left = groups_of(killed);
            left.extend(uids.map(embedder::uid_locks).unwrap_or_default());
            let directories = fs::read_dir(scratch.path()).unwrap().flatten();
            // One that was made a moment before the end and not given to its guest yet is nobody's: it is empty.
            left.extend(directories.map(|entry| entry.path()).filter(|path| {
                let mine = fs::metadata(path).is_ok_and(|meta| meta.uid() == 0);
                !(mine && fs::remove_dir(path).is_ok())
            }));
            left.is_empty()
        });
        assert_eq!(left, Vec::<PathBuf>::new(), "{name}");
        scratch.close().unwrap();
    }
}

fn children_of(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    children
}

fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().exists()
}

/// A first process with two descendants, one in a session of its own, whose parents are gone; each says its
/// pid and then waits for ever.
const TREE: &str = "
import os, signal
def wait(name):
    os.write(1, f'process={name} {os.getpid()}\\n'.encode())
    while True:
        signal.pause()
for own_session in (False, True):
    if os.fork() == 0:
        if own_session:
            os.setsid()
        if os.fork() == 0:
            wait('descendant')
        os._exit(0)
    os.wait()
wait('first')
";

/// The embedder with the tree; never returns.
fn run_a_tree() {
    let sandbox = doomed(Policy::python());
    let outcome = sandbox.run(Command::python(TREE).stdout(stdout())).unwrap();
    panic!("the tree ended: {outcome}");
}

/// The pidfds of the first process and of both descendants, which speak in any order.
fn tree_of(doomed: &mut Doomed) -> (OwnedFd, [OwnedFd; 2]) {
    let (mut first, mut descendants) = (None, Vec::new());
    while first.is_none() || descendants.len() < 2 {
        let line = doomed.victim.says("process=");
        let (name, pid) = line.split_once(' ').unwrap();
        let end = pidfd(pid.parse().unwrap());
        match name {
            "first" => first = Some(end),
            _ => descendants.push(end),
        }
    }
    (first.unwrap(), descendants.try_into().unwrap())
}

#[test]
fn the_first_process_dies_with_the_embedder_by_its_parent_death_signal() {
    let name = test_name!();
    if embedder::role().is_some() {
        return run_a_tree();
    }
    if sandbox_or_not_run(name, policy(Policy::python())).is_none() {
        return;
    }
    let mut doomed = Doomed::start(name, "embedder");
    let (first, _) = tree_of(&mut doomed);
    doomed.kill_guardians();
    // The control: it lives as long as the embedder does.
    assert!(!embedder::is_readable(&first));
    doomed.victim.kill();
    readable(&first);
    doomed.leaves_nothing_after_a_sweep(name);
}

#[test]
fn descendants_die_with_the_embedder_by_its_guardian() {
    let name = test_name!();
    if embedder::role().is_some() {
        return run_a_tree();
    }
    if sandbox_or_not_run(name, policy(Policy::python())).is_none() {
        return;
    }
    let mut doomed = Doomed::start(name, "embedder");
    let (first, descendants) = tree_of(&mut doomed);
    let guardians = doomed.guardians();
    assert_eq!(guardians.len(), 1, "{guardians:?}");
    let guardian = pidfd(guardians[0]);
    assert!(!descendants.iter().any(embedder::is_readable));
    doomed.victim.kill();
    // Nobody makes a sandbox here meanwhile, so no sweep of this test is at it.
    readable(&first);
    for descendant in &descendants {
        readable(descendant);
    }
    readable(&guardian);
    doomed.leaves_nothing_after_a_sweep(name);
}

#[test]
fn everything_in_a_pid_namespace_dies_with_the_embedder_without_a_guardian() {
    let name = test_name!();
    let kind = || Policy::python().namespaces([Namespace::Pid]);
    if embedder::role().is_some() {
        let command = Command::python(TREE).stdout(stdout());
        let outcome = doomed(kind()).run(command).unwrap();
        panic!("the tree ended: {outcome}");
    }
    if sandbox_or_not_run(name, policy(kind())).is_none() {
        return;
    }
    let mut doomed = Doomed::start(name, "embedder");
    // The pids that they say are those of the namespace.
    for _ in 0..3 {
        doomed.victim.says("process=");
    }
    let tree: Vec<_> = embedder::members_of(doomed.victim.id())
        .into_iter()
        .map(pidfd)
        .collect();
    assert_eq!(tree.len(), 3);
    doomed.kill_guardians();
    assert!(!tree.iter().any(embedder::is_readable));
    doomed.victim.kill();
    for process in &tree {
        readable(process);
    }
    doomed.leaves_nothing_after_a_sweep(name);
}

#[test]
fn without_the_guardian_descendants_die_by_the_next_sweep() {
    let name = test_name!();
    if embedder::role().is_some() {
        return run_a_tree();
    }
    if sandbox_or_not_run(name, policy(Policy::python())).is_none() {
        return;
    }
    let mut doomed = Doomed::start(name, "embedder");
    let (_, descendants) = tree_of(&mut doomed);
    doomed.kill_guardians();
    doomed.victim.kill();
    doomed.leaves_nothing_after_a_sweep(name);
    for descendant in &descendants {
        readable(descendant);
    }
}

#[test]
fn a_sweep_leaves_the_guests_of_a_living_embedder_alone() {
    let name = test_name!();
    if embedder::role().is_some() {
        return run_a_tree();
    }
    let Some(sweeper) = sandbox_or_not_run(name, policy(Policy::python())) else {
        return;
    };
    let mut doomed = Doomed::start(name, "embedder");
    let (first, descendants) = tree_of(&mut doomed);
    drop(Sandbox::new(policy(Policy::python())).unwrap());
    drop(sweeper);
    assert!(!embedder::is_readable(&first));
    assert!(!descendants.iter().any(embedder::is_readable));
    assert!(groups_of(doomed.victim.id()).iter().all(exists));
    // A sandbox that ends in good order ends its own runs only.
    doomed.victim.kill();
    doomed.leaves_nothing_after_a_sweep(name);
}

#[test]
fn an_embedder_killed_at_any_moment_leaves_no_first_process_running() {
    let name = test_name!();
    if embedder::role().is_some() {
        let sandbox = doomed(Policy::native());
        let mut guests = Vec::new();
        loop {
            println!("next=guest");
            let guest = Command::new("/bin/cat").stdin(Input::piped());
            guests.push(sandbox.spawn(guest).unwrap());
        }
    }
    if sandbox_or_not_run(name, policy(Policy::native())).is_none() {
        return;
    }
    for round in 0..16 {
        let mut doomed = Doomed::start(name, "embedder");
        for _ in 0..=round % 4 {
            doomed.victim.says("next=");
        }
        // Without a guardian: what ends the guests is the signal, or their own look at their parent.
        doomed.kill_guardians();
        doomed.victim.kill();
        let killed = doomed.victim.id();
        let mut left = Vec::new();
        let gone = until(|| {
            left = embedder::members_of(killed);
            left.is_empty()
        });
        assert!(gone, "round {round}: {left:?}");
        doomed.leaves_nothing_after_a_sweep(name);
    }
}

#[cfg(feature = "test-hooks")]
mod held {
    use std::thread;

    use varek_core::{Cause, Cleanup, SetupStep, Termination};

    use super::*;

    fn step(name: &str) -> SetupStep {
        SetupStep::ALL
            .into_iter()
            .find(|step| step.to_string() == name)
            .unwrap()
    }

    /// Every step but the clone, which comes before there is a child.
    fn steps() -> impl Iterator<Item = SetupStep> {
        SetupStep::ALL
            .into_iter()
            .filter(|step| *step != SetupStep::Clone)
    }

    fn kind() -> Policy {
        Policy::native()
    }

    fn apart() -> Policy {
        Policy::native().namespaces(Namespace::ALL)
    }

    fn hold(at: &str, kind: Policy) {
        let sandbox = doomed(kind);
        println!("ready=");
        let outcome = sandbox.run(Command::new("/bin/true").hold_at(step(at)));
        panic!("the set-up ended: {outcome:?}");
    }

    #[test]
    fn a_child_in_set_up_dies_with_the_embedder_at_every_step_without_a_guardian() {
        let name = test_name!();
        dies_at_every_step(name, kind);
    }

    #[test]
    fn a_child_in_set_up_of_namespaces_dies_with_the_embedder_at_every_step_without_a_guardian() {
        dies_at_every_step(test_name!(), apart);
    }

    fn dies_at_every_step(name: &str, kind: fn() -> Policy) {
        if let Some(role) = embedder::role() {
            return hold(&role, kind());
        }
        if sandbox_or_not_run(name, policy(kind())).is_none() {
            return;
        }
        for step in steps() {
            let mut doomed = Doomed::start(name, &step.to_string());
            doomed.victim.says("ready=");
            let child = embedder::held_child(doomed.victim.id());
            // It has the guardian's lifeline while it has the embedder's descriptors: only its own
            // parent-death signal can end it.
            doomed.kill_guardians();
            assert!(!embedder::is_readable(&child), "{step}");
            doomed.victim.kill();
            let died = embedder::becomes_readable(&child);
            if !died {
                let kill = rustix::process::Signal::KILL;
                rustix::process::pidfd_send_signal(&child, kill).unwrap();
            }
            doomed.leaves_nothing_after_a_sweep(name);
            assert!(died, "the child outlives the embedder at step {step}");
        }
    }

    #[test]
    fn a_set_up_that_is_stuck_ends_at_the_deadline_and_its_step_is_named() {
        alone!();
        let mut limited = policy(Policy::native()).wall_clock(Duration::from_secs(1));
        limited.grace = Duration::from_secs(30);
        let name = test_name!();
        if sandbox_or_not_run(name, limited.clone()).is_none() {
            return;
        }
        let scratch = embedder::scratch_base();
        let before = embedder::Census::settled(scratch.path());
        let sandbox = Sandbox::builder(limited)
            .scratch_base(scratch.path())
            .build()
            .unwrap();
        thread::scope(|scope| {
            for step in steps() {
                let sandbox = &sandbox;
                scope.spawn(move || {
                    let held = Command::new("/bin/true").hold_at(step);
                    let outcome = sandbox.run(held).unwrap();
                    let cause = Cause::SetupTimeout {
                        step: step.to_string(),
                    };
                    assert_eq!(outcome.termination, Termination::Killed(cause), "{outcome}");
                    assert!(outcome.timed_out(), "{outcome}");
                    assert_eq!(outcome.cleanup, Cleanup::Complete, "{outcome}");
                    assert_eq!(outcome.faults, Vec::<String>::new(), "{outcome}");
                });
            }
        });
        // The spawners that were stuck work on.
        assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
        drop(sandbox);
        before.becomes_again(scratch.path());
    }

    #[test]
    fn a_set_up_that_is_stuck_does_not_hold_up_other_runs() {
        alone!();
        let limited = policy(Policy::native()).wall_clock(Duration::from_secs(20));
        let Some(sandbox) = sandbox_or_not_run(test_name!(), limited) else {
            return;
        };
        thread::scope(|scope| {
            let held = || {
                sandbox
                    .run(Command::new("/bin/true").hold_at(SetupStep::Exec))
                    .unwrap()
            };
            let stuck = [scope.spawn(held), scope.spawn(held)];
            for _ in 0..5 {
                assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
            }
            // What was held is held still: the others did not wait for its deadline.
            for run in &stuck {
                assert!(!run.is_finished());
            }
            for run in stuck {
                let outcome = run.join().unwrap();
                assert!(outcome.timed_out(), "{outcome}");
            }
        });
    }
}

#[cfg(not(feature = "test-hooks"))]
#[test]
fn children_that_are_held_in_set_up() {
    support::not_run(
        test_name!(),
        "the crate is built without its feature test-hooks",
    );
}
