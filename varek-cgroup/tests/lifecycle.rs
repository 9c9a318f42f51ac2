//! Groups begin and end as they say, and leave nothing behind.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{
    BOUND, assert_private, finish, line, name, prepared, ready, shell, traces, until,
    wait_until_empty,
};
use varek_cgroup::{Controller, Error, Layout, Limits, Removal, Subtree};

const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

#[test]
fn kill_ends_a_tree_that_left_its_session_and_its_parent() {
    let test = "kill_ends_a_tree_that_left_its_session_and_its_parent";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    let script = "(setsid sh -c 'sleep 1000 & echo deep; exec sleep 1000' &)";
    let mut child = shell(&group, script);
    assert_eq!(line(&mut child), "deep");
    child.wait().unwrap();
    assert!(
        group.populated().unwrap(),
        "the descendants outlive the first process"
    );
    assert_eq!(group.processes().unwrap().len(), 2);
    assert!(group.tasks_charged().unwrap() >= Some(2));
    group.kill().unwrap();
    wait_until_empty(&group);
    assert_eq!(group.processes().unwrap(), [0_u32; 0]);
    until("removed", || group.remove().unwrap() == Removal::Removed);
}

#[test]
fn events_tell_of_the_first_and_the_last_process() {
    let test = "events_tell_of_the_first_and_the_last_process";
    let Some(subtree) = prepared(test, &[], &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    assert!(!group.populated().unwrap());
    assert!(
        !ready(group.events(), Duration::ZERO),
        "nothing happened yet"
    );
    let mut child = shell(&group, "exec sleep 1000");
    assert!(ready(group.events(), BOUND));
    assert!(group.populated().unwrap());
    assert!(!ready(group.events(), Duration::ZERO), "seen");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready(group.events(), BOUND));
    assert!(!group.populated().unwrap());
    finish(&group);
}

#[test]
fn an_oom_descriptor_is_quiet_until_there_is_one() {
    let test = "an_oom_descriptor_is_quiet_until_there_is_one";
    let Some(subtree) = prepared(test, &[Controller::Memory], &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    if let Some(oom) = group.oom() {
        assert!(!ready(oom, Duration::ZERO));
    }
    let without = prepared(test, &[], &Limits::default()).unwrap();
    let group = without.create("run", &Limits::default()).unwrap();
    assert!(group.oom().is_none() && group.tasks_charged().unwrap().is_none());
}

#[test]
fn remove_says_busy_while_a_process_is_in_it_and_removed_ever_after() {
    let test = "remove_says_busy_while_a_process_is_in_it_and_removed_ever_after";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    let full = traces(&name(&subtree));
    let mut child = shell(&group, "exec sleep 1000");
    assert_eq!(group.remove().unwrap(), Removal::Busy);
    assert_eq!(
        traces(&name(&subtree)),
        full,
        "no part of a busy group is removed"
    );
    group.kill().unwrap();
    child.wait().unwrap();
    wait_until_empty(&group);
    until("removed", || group.remove().unwrap() == Removal::Removed);
    assert_eq!(group.remove().unwrap(), Removal::Removed);
    // A group that is gone does not remove the next one of its name.
    let next = subtree.create("run", &Limits::default()).unwrap();
    assert_eq!(group.remove().unwrap(), Removal::Removed);
    drop(group);
    assert!(!next.populated().unwrap() && next.path().exists());
    assert!(matches!(
        subtree.create("run", &Limits::default()),
        Err(Error::Exists { .. })
    ));
}

#[test]
fn groups_that_a_guest_made_below_its_own_go_with_it() {
    let test = "groups_that_a_guest_made_below_its_own_go_with_it";
    let Some(subtree) = prepared(test, &[], &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    std::fs::create_dir_all(group.path().join("a/b/c")).unwrap();
    std::fs::create_dir(group.path().join("d")).unwrap();
    let mut child = shell(&group, "exec sleep 1000");
    let deep = group.path().join("a/b/c/cgroup.procs");
    std::fs::write(deep, child.id().to_string()).unwrap();
    assert_eq!(group.processes().unwrap(), [child.id()]);
    assert_eq!(group.remove().unwrap(), Removal::Busy);
    group.kill().unwrap();
    child.wait().unwrap();
    wait_until_empty(&group);
    until("removed", || group.remove().unwrap() == Removal::Removed);
    assert!(!group.path().exists());
}

#[test]
fn two_hundred_groups_leave_the_host_as_it_was() {
    let test = "two_hundred_groups_leave_the_host_as_it_was";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let own = name(&subtree);
    let before = traces(&own);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let limits = Limits {
        memory: Some(64 * common::MIB),
        pids: Some(8),
        cpu: None,
    };
    for number in 0..200 {
        let group = subtree.create(&format!("run-{number}"), &limits).unwrap();
        assert_eq!(group.remove().unwrap(), Removal::Removed);
    }
    assert_eq!(traces(&own), before);
    let groups: Vec<_> = (0..20)
        .map(|number| subtree.create(&format!("run-{number}"), &limits).unwrap())
        .collect();
    assert!(traces(&own).len() >= before.len() + 20 && descriptors() > 0);
    drop(groups);
    assert_eq!(traces(&own), before, "dropping removes them too");
    subtree.remove().unwrap();
    subtree.remove().unwrap();
    assert_eq!(traces(&own), Vec::<std::path::PathBuf>::new());
}

#[test]
fn two_subtrees_of_one_process_do_not_collide() {
    let test = "two_subtrees_of_one_process_do_not_collide";
    let Some(first) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let second = prepared(test, &ALL, &Limits::default()).unwrap();
    assert_ne!(first.path(), second.path());
    let kept = first.create("run", &Limits::default()).unwrap();
    let other = second.create("run", &Limits::default()).unwrap();
    let swept = first.sweep();
    assert!(swept.live >= 2, "{swept:?}");
    drop(other);
    second.remove().unwrap();
    assert!(kept.path().exists() && !second.path().exists());
}

#[test]
fn dropping_a_subtree_with_its_groups_kills_what_is_in_them() {
    let test = "dropping_a_subtree_with_its_groups_kills_what_is_in_them";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let own = name(&subtree);
    let group = subtree.create("run", &Limits::default()).unwrap();
    let mut child = shell(&group, "exec sleep 1000");
    drop(subtree);
    assert!(group.populated().unwrap(), "a group keeps its subtree");
    drop(group);
    assert!(!child.wait().unwrap().success());
    assert_eq!(traces(&own), Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_kill_file_ends_every_run_of_the_subtree() {
    let test = "the_kill_file_ends_every_run_of_the_subtree";
    let Some(subtree) = prepared(test, &[], &Limits::default()) else {
        return;
    };
    let file = subtree.kill_file().unwrap();
    assert_private(&file);
    let groups = ["a", "b"].map(|name| subtree.create(name, &Limits::default()).unwrap());
    let children = groups
        .each_ref()
        .map(|group| shell(group, "exec sleep 1000"));
    assert!(groups.iter().all(|group| group.populated().unwrap()));
    rustix::io::write(&file, b"1").unwrap();
    for mut child in children {
        assert!(!child.wait().unwrap().success());
    }
}

#[test]
fn descriptors_are_close_on_exec_and_no_standard_streams() {
    let test = "descriptors_are_close_on_exec_and_no_standard_streams";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    for file in group.placements() {
        assert_private(file);
    }
    assert_private(&group.place_file().unwrap());
    let borrowed = [Some(group.directory()), Some(group.events()), group.oom()];
    for fd in borrowed.into_iter().flatten() {
        assert_private(&fd);
    }
}

#[test]
fn nobody_else_may_write_into_a_group() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let test = "nobody_else_may_write_into_a_group";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    for directory in traces(&name(&subtree)) {
        let about = std::fs::metadata(&directory).unwrap();
        assert_eq!(about.uid(), rustix::process::geteuid().as_raw());
        assert_eq!(
            about.permissions().mode() & 0o7022,
            0,
            "{}",
            directory.display()
        );
        let procs = std::fs::metadata(directory.join("cgroup.procs")).unwrap();
        assert_eq!(procs.permissions().mode() & 0o022, 0);
    }
    drop(group);
}

#[test]
fn a_forked_copy_can_do_nothing_to_the_groups() {
    let test = "a_forked_copy_can_do_nothing_to_the_groups";
    let Some(subtree) = prepared(test, &ALL, &Limits::default()) else {
        return;
    };
    let group = subtree.create("run", &Limits::default()).unwrap();
    let before = traces(&name(&subtree));
    let mut child = shell(&group, "exec sleep 1000");
    let path = subtree.path().to_owned();
    let (mut given, mut lent) = (Some(subtree), Some(group));
    let refused = common::sys::in_a_copy(|| {
        let (subtree, group) = (given.take().unwrap(), lent.take().unwrap());
        let copy = |error: Result<(), Error>| matches!(error, Err(Error::ForkedCopy { .. }));
        let refused = copy(subtree.remove())
            && copy(group.kill())
            && copy(group.remove().map(drop))
            && copy(subtree.create("other", &Limits::default()).map(drop));
        drop(group);
        drop(subtree);
        i32::from(refused)
    });
    assert_eq!(refused, 1);
    assert_eq!(traces(&path.file_name().unwrap().to_string_lossy()), before);
    let group = lent.take().unwrap();
    assert!(group.populated().unwrap(), "the copy's drop killed nothing");
    finish(&group);
    child.wait().unwrap();
}

#[test]
fn an_empty_layout_of_another_place_makes_nothing() {
    let layout =
        Layout::parse("0::/\n", "2 0 0:2 / /nowhere/at/all rw - cgroup2 none rw\n").unwrap();
    let error = Subtree::prepare(&layout, &[], &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}
