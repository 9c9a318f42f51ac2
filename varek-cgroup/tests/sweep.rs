//! What an embedder leaves when it is killed is removed by the next one, and what has an owner is not.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{directory_of, place, prepared, traces, until};
use varek_cgroup::{Controller, Limits};

const ROLE: &str = "VAREK_CGROUP_TEST_OWNER";
const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

/// Not a test of its own: the embedder that the tests below start and kill.
#[test]
fn owner() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let subtree = prepared("owner", &ALL, &Limits::default()).unwrap();
    let group = subtree.create("run", &Limits::default()).unwrap();
    let guest = Command::new("sleep").arg("1000").spawn().unwrap();
    place(&group, guest.id());
    println!("\n{} {}", guest.id(), subtree.path().display());
    let _ = std::io::stdin().read(&mut [0]);
    drop((guest, group, subtree));
}

struct Owner {
    process: Child,
    guest: u32,
    path: PathBuf,
}

fn start() -> Owner {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
    for line in lines {
        let line = line.unwrap();
        if let Some((guest, path)) = line.split_once(' ')
            && let Ok(guest) = guest.parse()
        {
            let path = PathBuf::from(path);
            return Owner {
                process,
                guest,
                path,
            };
        }
    }
    panic!("the owner ended: {:?}", process.wait());
}

/// Whether the process is there and not a zombie that nobody reaped yet.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| {
        !text
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    })
}

#[test]
fn a_killed_owners_subtree_is_removed_and_a_live_owners_is_not() {
    let test = "a_killed_owners_subtree_is_removed_and_a_live_owners_is_not";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let (mut dead, mut live) = (start(), start());
    let dead_name = dead
        .path
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    assert!(traces(&dead_name).len() >= 2);
    subtree.sweep();
    assert!(
        dead.path.exists() && live.path.exists(),
        "both have an owner"
    );

    dead.process.kill().unwrap();
    dead.process.wait().unwrap();
    assert!(alive(dead.guest), "the guest outlives its embedder");
    // A sweep of somebody else may be at it at the same time.
    until("swept", || {
        subtree.sweep();
        traces(&dead_name).is_empty()
    });
    assert!(!alive(dead.guest));
    assert!(live.path.exists() && alive(live.guest));

    drop(live.process.stdin.take());
    live.process.wait().unwrap();
    assert!(
        !live.path.exists() && !alive(live.guest),
        "an owner that ends cleans up itself"
    );
}

#[test]
fn prepare_sweeps_before_it_makes_anything() {
    let test = "prepare_sweeps_before_it_makes_anything";
    let Some(first) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let mut dead = start();
    dead.process.kill().unwrap();
    dead.process.wait().unwrap();
    until("swept", || {
        drop(prepared(test, &ALL, &Limits::default()));
        !dead.path.exists()
    });
    drop(first);
}

#[test]
fn a_version_1_leftover_goes_only_if_its_cgroup2_directory_is_gone() {
    let test = "a_version_1_leftover_goes_only_if_its_cgroup2_directory_is_gone";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let (own, version_1) = directory_of(std::process::id(), "pids");
    if !version_1 {
        return common::without_subject(test, "this host has no version 1 hierarchy");
    }
    let parent = subtree.path().parent().unwrap();
    let inode = std::fs::metadata(parent).unwrap().ino();
    let pid = std::process::id();
    let stem = format!("varek-00000000-1-{pid}-7");
    let make = |name: String| {
        let path = own.join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let orphan = make(format!("{stem}.{inode:x}"));
    let foreign = make(format!("{stem}.{:x}", inode + 1));
    let other = make(format!("varek-other-{pid}.{inode:x}"));
    subtree.sweep();
    assert!(!orphan.exists(), "its cgroup2 directory is gone");
    assert!(foreign.exists(), "it belongs below another cgroup2 group");
    assert!(other.exists(), "it is not named as ours");
    for path in [&foreign, &other] {
        std::fs::remove_dir(path as &Path).unwrap();
    }
}
