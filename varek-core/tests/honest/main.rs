//! What people really run works under its preset as it does elsewhere, and meets no boundary: no denied call at all,
//! but for those that a test names and says why.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "../support/mod.rs"]
mod support;

mod compiled;
mod environment;
mod java;
mod node;
mod python;
mod shell;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::{assert_gone, not_run, seconds, text};
use varek_core::{Answer, Outcome, Policy, Termination};

/// A preset with time that suffices on a slow machine. Memory, pids and the rest are the preset's own.
fn patient(preset: Policy) -> Policy {
    preset.wall_clock(seconds(30)).grace(seconds(2))
}

/// A program that the presets look up, or `None`, which is said, where this host has none. What is a script that starts
/// another program counts as none: only a shell may.
fn program(test: &str, name: &str) -> Option<PathBuf> {
    let places = Policy::native().search_path;
    let found = places
        .iter()
        .map(|place| place.join(name))
        .find(|path| path.exists());
    let Some(path) = found else {
        not_run(
            test,
            &format!("there is no {name} in the presets' search_path"),
        );
        return None;
    };
    Some(path)
}

/// The name of the test around it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here).trim_end_matches("::here")
    }};
}

/// A program that the presets look up: `program_or_return!("node")` gives its path, or ends the test as not run.
#[macro_export]
macro_rules! program_or_return {
    ($name:expr) => {
        match $crate::program($crate::test_name!(), $name) {
            Some(path) => path,
            None => return,
        }
    };
}

/// Whether a guest with a uid of its own gets to this path.
fn reachable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let open = |directory: &Path| {
        let mode = std::fs::metadata(directory).map_or(0, |found| found.permissions().mode());
        mode & 0o1 != 0
    };
    !support::root() || path.ancestors().skip(1).all(open)
}

/// The guest exited with 0, wrote this, and of its calls only these were denied. A call that the library answers as a
/// probe is none.
#[track_caller]
fn assert_honest(outcome: &Outcome, expected: &str, denied: &[&str]) {
    let stderr = outcome.stderr.to_text();
    assert_eq!(
        outcome.termination,
        Termination::Exited(0),
        "{outcome}\n{}\n{stderr}",
        text(outcome)
    );
    assert_eq!(text(outcome), expected, "{outcome}\n{stderr}");
    let named: BTreeSet<_> = outcome
        .denials
        .iter()
        .filter(|(_, call)| call.first.answer != Answer::Probe)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(named, denied.iter().copied().collect(), "{outcome}");
    assert_eq!(
        outcome.violation().is_some(),
        !denied.is_empty(),
        "{outcome}"
    );
    assert_gone(outcome);
}
