//! The way of an ordinary user to groups: without one the refusal names two ways to it, and both lead there.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Output};
use std::time::Duration;

use rustix::process::geteuid;
use support::{assert_clean, assert_killed, hit, not_run, python, run, text};
use varek_cgroup::{Controller, DELEGATION, Hierarchy, Layout, Limits, Subtree};
use varek_core::{Cause, MIB, Policy, Resource, Sandbox};

/// The test that the ways lead to: it is run again by each of them, and must not be "not run" then.
const ARRIVED: &str = "in_a_delegated_group_the_embedder_moves_aside_and_guests_are_bounded";

/// Where the library puts the embedder's processes when they are in the way.
const LEAF: &str = "varek-leaf";

/// The first way, as people are told it: a command that is put before one's own.
fn command_before_ones_own() -> Vec<String> {
    let quoted = DELEGATION
        .split('`')
        .find(|text| text.starts_with("systemd-run "))
        .unwrap();
    let words = quoted.strip_suffix(" COMMAND").unwrap();
    words.split(' ').map(str::to_owned).collect()
}

/// The second way, as people are told it: a setting of the unit that runs the program.
fn setting_of_a_unit() -> String {
    let (_, quoted) = DELEGATION.split_once("unit that has `").unwrap();
    quoted.split_once('`').unwrap().0.to_owned()
}

/// Where the service manager of this user listens, or why there is none.
fn service_manager() -> Result<PathBuf, String> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Err("systemd is not process 1 here".to_owned());
    }
    let uid = geteuid();
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(
        || format!("/run/user/{}", uid.as_raw()).into(),
        PathBuf::from,
    );
    if directory.join("systemd/private").exists() {
        Ok(directory)
    } else {
        Err(format!("no service manager runs for uid {}", uid.as_raw()))
    }
}

/// The group of an ordinary user on a unified host, if it is that user's to divide.
fn delegated() -> Result<PathBuf, String> {
    if geteuid().is_root() {
        return Err("root needs no delegation".to_owned());
    }
    let layout = Layout::probe().map_err(|error| error.to_string())?;
    if layout.hierarchy() != Hierarchy::Unified {
        return Err("the hierarchy is not unified".to_owned());
    }
    layout.writable().map_err(|error| error.to_string())?;
    Ok(layout.own_group().to_owned())
}

/// Runs the test that the way leads to, by the way.
fn arrives_by(way: &[String]) -> Output {
    let directory = service_manager().unwrap();
    let (first, rest) = way.split_first().unwrap();
    Program::new(first)
        .args(rest)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", ARRIVED])
        .env("XDG_RUNTIME_DIR", directory)
        .env("VAREK_TEST_REQUIRE", "all")
        .output()
        .unwrap()
}

#[track_caller]
fn assert_arrived(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{}\n{stdout}\n{stderr}",
        output.status
    );
}

#[test]
fn without_delegation_the_refusal_names_two_ways() {
    const TEST: &str = "without_delegation_the_refusal_names_two_ways";
    if geteuid().is_root() {
        return not_run(TEST, "root needs no delegation");
    }
    if let Ok(group) = delegated() {
        let group = group.display();
        return not_run(TEST, &format!("this user may divide {group}"));
    }
    let Ok(layout) = Layout::probe() else {
        return not_run(TEST, "there is no cgroup2 mount");
    };

    // Of the presets, and of the crate that makes the groups.
    let mut refusals: Vec<String> = Policy::PRESETS
        .iter()
        .map(|name| Sandbox::new(Policy::preset(name).unwrap()).unwrap_err())
        .map(|error| error.to_string())
        .collect();
    let refused = Subtree::prepare(&layout, &Controller::ALL, &Limits::default());
    refusals.push(refused.unwrap_err().to_string());
    for text in refusals {
        let command = command_before_ones_own().join(" ");
        assert!(text.contains(&command), "{command}: {text}");
        let setting = setting_of_a_unit();
        assert!(
            text.matches(&setting).count() > command.matches(&setting).count(),
            "{setting} of a unit: {text}"
        );
    }
}

#[test]
fn the_command_that_the_refusal_names_leads_to_groups() {
    const TEST: &str = "the_command_that_the_refusal_names_leads_to_groups";
    if let Err(reason) = service_manager() {
        return not_run(TEST, &reason);
    }
    if geteuid().is_root() {
        return not_run(TEST, "root needs no delegation");
    }
    assert_arrived(&arrives_by(&command_before_ones_own()));
}

#[test]
fn a_unit_with_the_setting_that_the_refusal_names_leads_to_groups() {
    const TEST: &str = "a_unit_with_the_setting_that_the_refusal_names_leads_to_groups";
    if let Err(reason) = service_manager() {
        return not_run(TEST, &reason);
    }
    if geteuid().is_root() {
        return not_run(TEST, "root needs no delegation");
    }
    // A service gets nothing of this environment by itself.
    let unit = "systemd-run --user --wait --pipe --setenv=VAREK_TEST_REQUIRE=all -p";
    let mut way: Vec<String> = unit.split(' ').map(str::to_owned).collect();
    way.push(setting_of_a_unit());
    assert_arrived(&arrives_by(&way));
}

#[test]
fn in_a_delegated_group_the_embedder_moves_aside_and_guests_are_bounded() {
    let group = match delegated() {
        Ok(group) => group,
        Err(reason) => return not_run(ARRIVED, &reason),
    };
    // A process of the leaf counts as one of the group above.
    let group = match group.file_name() {
        Some(name) if name == LEAF => group.parent().unwrap().to_owned(),
        _ => group,
    };
    let divided = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap();

    // A bound for hosts that are slow, not a part of what is tested.
    let policy = python().wall_clock(Duration::from_secs(120));
    let sandbox = sandbox!(policy.memory(64 * MIB).pids(8));
    let outcome = run(&sandbox, "print(2 + 2)");
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "4\n");
    let outcome = run(&sandbox, "b = b'x' * (200 << 20)");
    assert_killed(&outcome, &Cause::OutOfMemory);
    assert_eq!(hit(&outcome, Resource::Memory).limit, Some(64 * MIB));
    let outcome = run(
        &sandbox,
        "import os, signal\n\
         try:\n    for _ in range(20):\n        if os.fork() == 0: signal.pause()\n\
         except BlockingIOError: print('refused')",
    );
    assert_eq!(text(&outcome), "refused\n", "{outcome}");
    assert_eq!(hit(&outcome, Resource::Pids).limit, Some(8));

    // The embedder made room: a group with processes can have no children with controllers.
    let own = Layout::probe().unwrap().own_group().to_owned();
    if divided.trim().is_empty() {
        assert_eq!(own, group.join(LEAF));
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), "");
    }
    drop(sandbox);
    let mut left = Vec::new();
    for entry in fs::read_dir(&group).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let ours = format!("-{}-", std::process::id());
        if name.starts_with("varek-") && name.contains(&ours) {
            left.push(name);
        }
    }
    assert_eq!(left, Vec::<String>::new());
}
