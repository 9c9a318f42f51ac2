//! A child that dies between making a descriptor in the shared table and publishing it leaves nothing.
#![cfg(feature = "test-hooks")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

mod support;

use std::time::Duration;

use varek_core::{Cause, Command, SetupStep, Termination};

fn listeners() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy() == "anon_inode:seccomp notify")
        .count()
}

#[test]
fn an_unpublished_listener_is_closed() {
    let sandbox = sandbox!(support::python().wall_clock(Duration::from_millis(300)));
    let command = Command::new("python3").hold_with_unpublished_listener();
    let outcome = sandbox.run(command).unwrap();
    let step = SetupStep::Filter.to_string();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::SetupTimeout { step })
    );
    assert_eq!(listeners(), 0);
    // The control: a published one is a live guest's, and is left to it.
    let patient = sandbox!(support::python().wall_clock(Duration::from_secs(60)));
    let guest = Command::new("python3").args(["-c", "import time; time.sleep(60)"]);
    let child = patient.spawn(guest).unwrap();
    let command = Command::new("python3").hold_with_unpublished_listener();
    assert!(sandbox.run(command).unwrap().timed_out());
    assert_eq!(listeners(), 1);
    drop(child);
}
