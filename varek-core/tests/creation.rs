//! However the host lets a child be made, the guest is in its group before it runs, and everything holds.
//!
//! The embedder is a process of its own under a seccomp filter of its own, as in a container, or is told
//! what its host lacks.
#![cfg(target_os = "linux")]
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

use embedder::sys::{Instruction, filter};
use embedder::{Census, again, own_uids, passes};
use support::{assert_gone, assert_killed, denied, hit, not_run, run, seconds, text};
use varek_core::{
    Cause, Command, Error, Host, Input, Layer, LayerStatus, MIB, Output, Policy, Resource, Sandbox,
    SetupStep, Termination,
};

/// A wall clock that is waited for: a start takes a part of it on any machine, under load too.
fn short() -> std::time::Duration {
    seconds(1).max(std::time::Duration::from_secs(4))
}

/// How the embedder's host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As it is.
    Plain,
    /// It is said to have no CLONE_INTO_CGROUP.
    Known,
    /// clone3 is there, and CLONE_INTO_CGROUP turns out to be refused.
    FlagRefused,
    /// clone3 is answered with ENOSYS, as by older default profiles of containers.
    NoClone3,
    /// clone3 turns out to be refused with EPERM.
    Clone3Refused,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Plain,
        Self::Known,
        Self::FlagRefused,
        Self::NoClone3,
        Self::Clone3Refused,
    ];

    /// Those that a host without clone3 can be in: a filter around this test may refuse it.
    fn here() -> impl Iterator<Item = Self> {
        let clone3 = Host::probe().clone3;
        Self::ALL
            .into_iter()
            .filter(move |way| clone3 || !matches!(way, Self::Known | Self::FlagRefused))
    }

    fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|way| format!("{way:?}") == name).unwrap()
    }

    /// Makes the host of this process like that.
    fn enter(self) {
        // The size tells the version of clone3's arguments: 88 has a group. The C library, too, starts threads
        // by clone3, of that size, and does without on ENOSYS alone.
        let clone3 = libc::SYS_clone3;
        match self {
            Self::Plain | Self::Known => {}
            Self::FlagRefused => refuse(clone3, Some((1, 88)), libc::EOPNOTSUPP, true),
            Self::NoClone3 => refuse(clone3, None, libc::ENOSYS, false),
            Self::Clone3Refused => refuse(clone3, None, libc::EPERM, true),
        }
    }

    fn host(self) -> Host {
        let mut host = Host::probe();
        if self == Self::Known {
            host.clone_into_group = false;
        }
        host
    }

    /// What the enforcement says of it.
    fn words(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Known | Self::FlagRefused => "(clone3; the host refuses CLONE_INTO_CGROUP)",
            Self::NoClone3 | Self::Clone3Refused => "(clone; the host refuses clone3)",
        }
    }

    /// A sandbox whose children are made this way; `None` where the host cannot have one, which is said.
    fn sandbox(self, name: &str, policy: Policy) -> Option<Sandbox> {
        let sandbox = Sandbox::builder(own_uids(policy)).host(self.host()).build();
        match sandbox {
            Ok(sandbox) => {
                let status = sandbox.enforcement().status(Layer::Watchdog);
                let Some(LayerStatus::Enforced { detail }) = status else {
                    panic!("{status:?}");
                };
                assert!(detail.contains(self.words()), "{self:?}: {detail}");
                Some(sandbox)
            }
            Err(error @ (Error::Unsupported { .. } | Error::Group { .. })) => {
                not_run(name, &error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Refuses a call of this thread and those that it starts, where the argument of this index has this value;
/// `here`: where this program makes it, and not a library.
fn refuse(call: libc::c_long, argument: Option<(u32, u32)>, errno: i32, here: bool) {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let mut program: Vec<Instruction> = Vec::new();
    let ranges = if here { text_of_this_program() } else { vec![] };
    let condition = |program: &mut Vec<Instruction>| {
        // Each block ends in the refusal, which every condition that does not hold passes by.
        let start = program.len();
        program.push((LOAD, 0, 0, 0));
        program.push((EQUAL, 0, 1, u32::try_from(call).unwrap()));
        if let Some((index, value)) = argument {
            program.push((LOAD, 0, 0, 16 + 8 * index));
            program.push((EQUAL, 0, 1, value));
        }
        program.push((
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
        ));
        let end = program.len();
        for (at, instruction) in program.iter_mut().enumerate().skip(start) {
            if instruction.0 == EQUAL {
                instruction.2 = u8::try_from(end - at - 1).unwrap();
            }
        }
    };
    if here {
        for (high, low, behind) in ranges {
            let start = program.len();
            program.push((LOAD, 0, 0, 12));
            program.push((EQUAL, 0, 0, high));
            program.push((LOAD, 0, 0, 8));
            program.push((AT_LEAST, 0, 0, low));
            program.push((AT_LEAST, 0, 0, behind));
            condition(&mut program);
            let end = program.len();
            let over = |at: usize| u8::try_from(end - (start + at) - 1).unwrap();
            program[start + 1].2 = over(1);
            program[start + 3].2 = over(3);
            program[start + 4].1 = over(4);
        }
    } else {
        condition(&mut program);
    }
    program.push((RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter(&program).unwrap();
}

/// The code of this program: the upper half of its addresses, and the lower ones of its start and end. Two parts
/// where it lies over a border of 4 GiB.
fn text_of_this_program() -> Vec<(u32, u32, u32)> {
    let own = std::env::current_exe().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let text = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with(own.to_str().unwrap()))
        .unwrap();
    let (start, rest) = text.split_once('-').unwrap();
    let end = rest.split_once(' ').unwrap().0;
    let address = |text| u64::from_str_radix(text, 16).unwrap();
    let (start, last) = (address(start), address(end) - 1);
    let half = |address: u64| ((address >> 32) as u32, (address & 0xFFFF_FFFF) as u32);
    let ((high, low), (high_last, low_last)) = (half(start), half(last));
    if high == high_last {
        vec![(high, low, low_last)]
    } else {
        vec![(high, low, u32::MAX), (high_last, 0, low_last)]
    }
}

/// Runs the rest of a test in a process for each way.
fn in_every_way(test: &str, body: impl Fn(Way)) {
    if let Some(role) = embedder::role() {
        let way = Way::named(&role);
        way.enter();
        return body(way);
    }
    if support::sandbox_or_not_run(test, python()).is_none() {
        return;
    }
    for way in Way::here() {
        passes(again(test, &format!("{way:?}")));
    }
}

fn python() -> Policy {
    Policy::python().wall_clock(seconds(60))
}

#[test]
fn the_guest_starts_in_its_group_in_every_hierarchy_that_bounds_it() {
    let name = test_name!();
    in_every_way(name, |way| {
        let Some(sandbox) = way.sandbox(name, Policy::native()) else {
            return;
        };
        let command = || Command::new("/bin/cat").arg("/proc/self/cgroup");
        let outcome = sandbox.run(command()).unwrap();
        assert!(outcome.success(), "{outcome}");
        let run = outcome.run.to_string();
        let groups = text(&outcome);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let mut bounded = 0;
        for line in groups.lines() {
            let hierarchy = line.split(':').nth(1).unwrap();
            if ["", "memory", "pids"].contains(&hierarchy) {
                assert!(line.ends_with(&format!("/{run}")), "{way:?}: {line}");
                bounded += 1;
            }
        }
        assert!(bounded >= 1, "{groups}");
        // The control: the embedder is in none of them, and so would be a child that moved nowhere.
        assert!(!own.contains(&run), "{own}");
        let status = outcome.enforcement.status(Layer::Watchdog);
        let Some(LayerStatus::Enforced { detail }) = status else {
            panic!("{outcome}");
        };
        assert!(detail.contains("guests "), "{detail}");
        assert!(detail.contains(way.words()), "{detail}");
    });
}

#[test]
fn limits_and_reports_are_the_same_in_every_way() {
    let name = test_name!();
    in_every_way(name, |way| {
        let limited = python().memory(64 * MIB).pids(8);
        let Some(sandbox) = way.sandbox(name, limited) else {
            return;
        };
        let hog = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
        let outcome = run(&sandbox, hog);
        assert_killed(&outcome, &Cause::OutOfMemory);
        assert_eq!(hit(&outcome, Resource::Memory).limit, Some(64 * MIB));

        let forks = "import os, signal\nmade = 0\n\
                     try:\n\
                     \x20   while True:\n\
                     \x20       if os.fork() == 0: signal.pause()\n\
                     \x20       made += 1\n\
                     except BlockingIOError: print(made)";
        let outcome = run(&sandbox, forks);
        assert_eq!(text(&outcome), "7\n", "{outcome}");
        assert_eq!(hit(&outcome, Resource::Pids).limit, Some(8));
        assert_eq!(outcome.descendants_killed, 7, "{outcome}");
        assert_gone(&outcome);

        let outcome = run(&sandbox, "import socket\nsocket.socket()");
        if way.host().killable_notification {
            assert_eq!(denied(&outcome, "socket").count, 1);
        }
        assert_gone(&outcome);
    });
}

#[test]
fn a_tree_ends_by_its_deadline_a_kill_or_a_drop_in_every_way() {
    let name = test_name!();
    in_every_way(name, |way| {
        let tree = "import os, signal\n\
                    if os.fork() == 0:\n\
                    \x20   os.setsid()\n\
                    \x20   while True: signal.pause()\n\
                    print('up', flush=True)\n\
                    signal.pause()";
        let Some(short) = way.sandbox(name, python().wall_clock(short())) else {
            return;
        };
        let outcome = run(&short, "while True: pass");
        assert_killed(&outcome, &Cause::WallClock);
        let long = way.sandbox(name, python()).unwrap();
        let up = || {
            let command = Command::python(tree).stdout(Output::piped());
            let mut child = long.spawn(command).unwrap();
            let mut line = [0; 3];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            child
        };
        let mut child = up();
        child.kill();
        let outcome = child.wait().unwrap();
        assert_eq!(
            outcome.termination,
            Termination::Killed(Cause::Cancelled),
            "{outcome}"
        );
        assert_gone(&outcome);
        drop(child);
        // The last handle waits for what it ends.
        drop(up());
        drop(long);
        drop(short);
        let left = embedder::members_of(std::process::id());
        assert_eq!(left, Vec::<u32>::new());
    });
}

#[test]
fn runs_leave_nothing_in_every_way() {
    let name = test_name!();
    in_every_way(name, |way| {
        let scratch = embedder::scratch_base();
        let before = Census::settled(scratch.path());
        let policy = own_uids(Policy::native().wall_clock(seconds(60)));
        let built = Sandbox::builder(policy)
            .host(way.host())
            .scratch_base(scratch.path())
            .build();
        let sandbox = match built {
            Ok(sandbox) => sandbox,
            Err(error) => return not_run(name, &error.to_string()),
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..10 {
                        if round % 5 == 0 {
                            // Dropped at whatever point it is.
                            let waits = Command::new("/bin/cat").stdin(Input::piped());
                            drop(sandbox.spawn(waits).unwrap());
                            continue;
                        }
                        let outcome = sandbox.run(Command::new("/bin/true")).unwrap();
                        assert!(outcome.success(), "{outcome}");
                        assert_gone(&outcome);
                    }
                });
            }
        });
        drop(sandbox);
        before.becomes_again(scratch.path());
    });
}

#[test]
fn a_child_that_cannot_join_its_group_runs_nothing() {
    let name = test_name!();
    if embedder::role().is_none() {
        return passes(again(name, "alone"));
    }
    let way = Way::here().find(|way| *way != Way::Plain).unwrap();
    way.enter();
    let mut policy = Policy::native();
    // Of what is written to groups, what the child writes is one byte, and nothing else then.
    policy.limits.memory = None;
    let Some(control) = way.sandbox(name, policy.clone()) else {
        return;
    };
    let outcome = control.run(Command::new("/bin/true")).unwrap();
    assert!(outcome.success(), "{outcome}");
    drop(control);
    refuse(libc::SYS_write, Some((2, 1)), libc::EACCES, true);
    let sandbox = way.sandbox(name, policy).unwrap();
    match sandbox.run(Command::new("/bin/true")) {
        Err(
            error @ Error::Setup {
                step: SetupStep::Groups,
                ..
            },
        ) => {
            let said = error.to_string();
            assert!(said.contains("must be writable to it"), "{said}");
        }
        other => panic!("{other:?}"),
    }
}

#[cfg(feature = "test-hooks")]
mod held {
    use embedder::{Victim, held_child, readable, until};

    use super::*;

    #[test]
    fn a_child_that_is_stuck_before_it_has_joined_its_group_ends_at_the_deadline() {
        let name = test_name!();
        in_every_way(name, |way| {
            let scratch = embedder::scratch_base();
            let before = Census::settled(scratch.path());
            let mut policy = Policy::native().wall_clock(short());
            policy.grace = seconds(30);
            let built = Sandbox::builder(own_uids(policy))
                .host(way.host())
                .scratch_base(scratch.path())
                .build();
            let sandbox = match built {
                Ok(sandbox) => sandbox,
                Err(error) => return not_run(name, &error.to_string()),
            };
            std::thread::scope(|scope| {
                for step in [SetupStep::Groups, SetupStep::Session, SetupStep::Exec] {
                    let sandbox = &sandbox;
                    scope.spawn(move || {
                        let held = Command::new("/bin/true").hold_at(step);
                        let outcome = sandbox.run(held).unwrap();
                        let step = step.to_string();
                        assert_eq!(
                            outcome.termination,
                            Termination::Killed(Cause::SetupTimeout { step }),
                            "{way:?}: {outcome}"
                        );
                        assert_gone(&outcome);
                    });
                }
            });
            assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
            drop(sandbox);
            before.becomes_again(scratch.path());
        });
    }

    #[test]
    fn a_child_that_has_not_joined_its_group_dies_with_the_embedder_without_a_guardian() {
        const SCRATCH: &str = "VAREK_TEST_SCRATCH";
        let name = test_name!();
        let policy = || own_uids(Policy::native().wall_clock(std::time::Duration::from_secs(300)));
        if let Some(role) = embedder::role() {
            let way = Way::named(&role);
            way.enter();
            let sandbox = Sandbox::builder(policy())
                .host(way.host())
                .scratch_base(std::env::var_os(SCRATCH).unwrap())
                .build()
                .unwrap();
            println!("ready=");
            let outcome = sandbox.run(Command::new("/bin/true").hold_at(SetupStep::Groups));
            panic!("the set-up ended: {outcome:?}");
        }
        if support::sandbox_or_not_run(name, policy()).is_none() {
            return;
        }
        let born_in_it = Host::probe().clone3;
        for way in Way::here() {
            let scratch = embedder::scratch_base();
            let mut command = again(name, &format!("{way:?}"));
            command.env(SCRATCH, scratch.path());
            let mut victim = Victim::start(command);
            victim.says("ready=");
            let child = held_child(victim.id());
            // In a group or not yet: no guardian's kill would come to it, which has the lifeline itself.
            let members = embedder::members_of(victim.id());
            let joins = way != Way::Plain || !born_in_it;
            assert_eq!(members.is_empty(), joins, "{way:?}");
            assert!(!embedder::is_readable(&child), "{way:?}");
            victim.kill();
            readable(&child);
            let killed = victim.id();
            drop(victim);
            // A sweep of somebody else may be at it just now.
            let mut left = Vec::new();
            until(|| {
                let sweeps = Sandbox::builder(policy()).scratch_base(scratch.path());
                drop(sweeps.build().unwrap());
                left = embedder::groups_of(killed);
                left.is_empty()
            });
            assert_eq!(left, Vec::<std::path::PathBuf>::new(), "{way:?}");
        }
    }
}

#[cfg(not(feature = "test-hooks"))]
#[test]
fn children_that_are_held_before_they_have_joined() {
    not_run(
        test_name!(),
        "the crate is built without its feature test-hooks",
    );
}
