//! Many guests at a time: each has its own outcome, and one supervisor watches them all.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use embedder::{own_uids, readable, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{assert_gone, not_run, sandbox_or_not_run, text};
use varek_core::{
    Cause, Child, Command, Error, Input, Outcome, Policy, Sandbox, Termination, WhenFull,
};

fn native() -> Policy {
    own_uids(Policy::native()).wall_clock(Duration::from_secs(120))
}

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").arg("-c").arg(script)
}

fn wait_for_input() -> Command {
    Command::new("/bin/cat").stdin(Input::piped())
}

/// Room for so many guests, each of which takes some descriptors of the embedder; says so where there is none.
fn room_for_descriptors(name: &str, wanted: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        not_run(
            name,
            &format!("RLIMIT_NOFILE is at most {:?}", limit.maximum),
        );
        return false;
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
    true
}

/// What a guest of this number does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prints,
    Fails,
    IsDenied,
    OutlastsItsDeadline,
    IsCancelled,
}

fn kind(number: usize) -> Kind {
    match number % 8 {
        0 => Kind::IsDenied,
        1 => Kind::OutlastsItsDeadline,
        2 => Kind::Fails,
        3 => Kind::IsCancelled,
        _ => Kind::Prints,
    }
}

fn command(number: usize) -> Command {
    let script = match kind(number) {
        Kind::Prints => format!("echo {number}"),
        Kind::Fails => format!("echo {number}; exit {}", number % 100 + 1),
        // The shell cannot start a program, says so on stderr, and goes on.
        Kind::IsDenied => format!("/bin/true; echo {number}"),
        Kind::OutlastsItsDeadline | Kind::IsCancelled => format!("echo {number}; read line"),
    };
    shell(&script).stdin(Input::piped())
}

#[track_caller]
fn is_right(number: usize, outcome: &Outcome) {
    assert_gone(outcome);
    if kind(number) != Kind::IsCancelled {
        assert_eq!(text(outcome), format!("{number}\n"), "{outcome}");
    }
    let (termination, denied) = match kind(number) {
        Kind::Prints => (Termination::Exited(0), 0),
        Kind::Fails => (
            Termination::Exited(i32::try_from(number % 100 + 1).unwrap()),
            0,
        ),
        Kind::IsDenied => (Termination::Exited(0), 1),
        Kind::OutlastsItsDeadline => (Termination::Killed(Cause::WallClock), 0),
        Kind::IsCancelled => (Termination::Killed(Cause::Cancelled), 0),
    };
    assert_eq!(outcome.termination, termination, "{number}: {outcome}");
    assert_eq!(
        outcome.denials.count("execve"),
        denied,
        "{number}: {outcome}"
    );
}

#[test]
fn two_hundred_guests_at_once_have_their_own_outcomes_and_one_supervisor() {
    alone!();
    let name = test_name!();
    if !room_for_descriptors(name, 8_192) {
        return;
    }
    let limited = native().wall_clock(Duration::from_secs(20));
    let Some(sandbox) = sandbox_or_not_run(name, limited) else {
        return;
    };
    let all_run = Barrier::new(8);
    let runs = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for thread in 0..8 {
            // Clones share it.
            let sandbox = sandbox.clone();
            let (all_run, runs) = (&all_run, &runs);
            scope.spawn(move || {
                let numbers = (0..25).map(|index| thread * 25 + index);
                let mut children: Vec<(usize, Child)> = numbers
                    .map(|number| (number, sandbox.spawn(command(number)).unwrap()))
                    .collect();
                all_run.wait();
                if thread == 0 {
                    assert_eq!(embedder::threads().get("varek-superviso"), Some(&1));
                }
                for (number, child) in &children {
                    if kind(*number) == Kind::IsCancelled {
                        child.kill();
                    }
                }
                for (number, child) in &mut children {
                    let outcome = child.wait().unwrap();
                    is_right(*number, &outcome);
                    runs.lock().unwrap().insert(outcome.run);
                }
            });
        }
    });
    assert_eq!(
        runs.lock().unwrap().len(),
        200,
        "every run has a name of its own"
    );
}

#[test]
fn runs_from_many_threads_are_as_right_as_one_at_a_time() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    thread::scope(|scope| {
        for thread in 0..8 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let numbers = (0..40).map(|index| thread * 40 + index);
                for number in numbers {
                    let denied = kind(number) == Kind::IsDenied;
                    let script = if denied {
                        format!("/bin/true; echo {number}")
                    } else {
                        format!("echo {number}")
                    };
                    let outcome = sandbox.run(shell(&script)).unwrap();
                    assert_eq!(text(&outcome), format!("{number}\n"), "{outcome}");
                    assert_eq!(
                        outcome.denials.count("execve"),
                        u64::from(denied),
                        "{outcome}"
                    );
                    assert!(outcome.success(), "{outcome}");
                    assert_gone(&outcome);
                }
            });
        }
    });
}

#[test]
fn sandboxes_with_different_policies_keep_to_their_own_at_the_same_time() {
    alone!();
    let strict = native();
    let wide = native().syscalls(|calls| calls.allow(["execve"]));
    let (Some(strict), Some(wide)) = (
        sandbox_or_not_run(test_name!(), strict),
        sandbox_or_not_run(test_name!(), wide),
    ) else {
        return;
    };
    let start = || shell("/bin/echo started; true");
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let outcome = strict.run(start()).unwrap();
                    assert_eq!(text(&outcome), "", "{outcome}");
                    assert_eq!(outcome.denials.count("execve"), 1, "{outcome}");
                }
            });
            scope.spawn(|| {
                for _ in 0..40 {
                    let outcome = wide.run(start()).unwrap();
                    assert_eq!(text(&outcome), "started\n", "{outcome}");
                    assert_eq!(outcome.violation(), None, "{outcome}");
                }
            });
        }
    });
    assert_eq!(embedder::threads().get("varek-superviso"), Some(&2));
}

#[test]
fn of_a_hundred_guests_each_ends_as_its_own_handle_says() {
    alone!();
    let name = test_name!();
    if !room_for_descriptors(name, 4_096) {
        return;
    }
    let Some(sandbox) = sandbox_or_not_run(name, native()) else {
        return;
    };
    let mut children: Vec<Child> = (0..100)
        .map(|_| sandbox.spawn(wait_for_input()).unwrap())
        .collect();
    let mut waited = children.split_off(75);
    let mut killed = children.split_off(50);
    let ends: Vec<_> = children
        .iter()
        .map(|c| c.as_fd().try_clone_to_owned().unwrap())
        .collect();
    drop(children);
    for child in &killed {
        child.kill();
    }
    for end in &ends {
        readable(end);
    }
    for child in &mut killed {
        let outcome = child.wait().unwrap();
        assert_eq!(
            outcome.termination,
            Termination::Killed(Cause::Cancelled),
            "{outcome}"
        );
        assert_gone(&outcome);
    }
    // Those whom nobody killed run on, and end by themselves.
    for (number, child) in waited.iter_mut().enumerate() {
        assert!(child.try_wait().unwrap().is_none());
        child
            .stdin
            .take()
            .unwrap()
            .write_all(number.to_string().as_bytes())
            .unwrap();
    }
    for (number, child) in waited.iter_mut().enumerate() {
        let outcome = child.wait().unwrap();
        assert!(outcome.success(), "{outcome}");
        assert_eq!(text(&outcome), number.to_string());
        assert_gone(&outcome);
    }
    drop((killed, waited, sandbox));
    assert!(until(|| embedder::groups_of(std::process::id()).is_empty()));
    assert!(until(|| embedder::own_locks().is_empty()));
}

#[test]
fn a_full_sandbox_refuses_or_waits_as_it_was_told() {
    alone!();
    let name = test_name!();
    if sandbox_or_not_run(name, native()).is_none() {
        return;
    }
    let refusing = Sandbox::builder(native())
        .concurrency(2, WhenFull::Refuse)
        .build()
        .unwrap();
    let (first, mut second) = (
        refusing.spawn(wait_for_input()).unwrap(),
        refusing.spawn(wait_for_input()).unwrap(),
    );
    let error = refusing.run(Command::new("/bin/true")).unwrap_err();
    assert!(matches!(error, Error::Full { limit: 2, .. }), "{error}");
    second.kill();
    second.wait().unwrap();
    // A place is free before the end of its run is known.
    assert!(refusing.run(Command::new("/bin/true")).unwrap().success());
    drop(first);

    let waiting = Sandbox::builder(native())
        .concurrency(2, WhenFull::Wait)
        .build()
        .unwrap();
    let most = Mutex::new((0, 0));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let mut child = waiting.spawn(wait_for_input()).unwrap();
                    {
                        let mut most = most.lock().unwrap();
                        most.0 += 1;
                        most.1 = most.1.max(most.0);
                    }
                    thread::yield_now();
                    // It runs until here at least.
                    most.lock().unwrap().0 -= 1;
                    drop(child.stdin.take());
                    assert!(child.wait().unwrap().success());
                }
            });
        }
    });
    assert!((1..=2).contains(&most.into_inner().unwrap().1));
}
