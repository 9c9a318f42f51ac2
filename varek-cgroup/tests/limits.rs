//! Limits hold, and the counters say which one was met.
#![cfg(target_os = "linux")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use common::{BOUND, MIB, directory_of, finish, line, prepared, ready, shell, until};
use varek_cgroup::{Controller, CpuQuota, Error, Layout, Limits, Subtree};

const EIGHT_CHILDREN: &str = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; exit 0";

#[test]
fn every_limit_is_in_the_kernel_as_it_was_asked() {
    let test = "every_limit_is_in_the_kernel_as_it_was_asked";
    let all = [Controller::Memory, Controller::Pids, Controller::Cpu];
    let Some(subtree) = prepared(test, &all, &Limits::default()) else {
        return;
    };
    let limits = Limits {
        memory: Some(100_000_001),
        pids: Some(17),
        cpu: Some(CpuQuota::percent(50).unwrap()),
    };
    let group = subtree.create("run", &limits).unwrap();
    let mut child = shell(&group, "echo in; exec sleep 1000");
    assert_eq!(line(&mut child), "in");

    let read = |controller: &str, old: &str, new: &str| {
        let (directory, version_1) = directory_of(child.id(), controller);
        assert!(
            directory.to_string_lossy().contains("/run"),
            "{}",
            directory.display()
        );
        let file = directory.join(if version_1 { old } else { new });
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    };
    let page = u64::try_from(rustix::param::page_size()).unwrap();
    let memory = 100_000_001 / page * page;
    assert_eq!(group.limits().memory, Some(memory));
    assert_eq!(
        read("memory", "memory.limit_in_bytes", "memory.max"),
        memory.to_string()
    );
    assert_eq!(read("pids", "pids.max", "pids.max"), "17");
    let quota = || read("cpu", "cpu.cfs_quota_us", "cpu.max");
    assert!(
        ["-1", "max 100000"].contains(&quota().as_str()),
        "not before apply_cpu"
    );
    group.apply_cpu().unwrap();
    assert!(["50000", "50000 100000"].contains(&quota().as_str()));
    finish(&group);
    child.wait().unwrap();
}

#[test]
fn more_processes_than_the_limit_are_refused_and_counted() {
    let test = "more_processes_than_the_limit_are_refused_and_counted";
    let Some(subtree) = prepared(test, &[Controller::Pids], &Limits::default()) else {
        return;
    };
    for (pids, refused) in [(4, true), (64, false)] {
        let limits = Limits {
            pids: Some(pids),
            ..Limits::default()
        };
        let group = subtree.create(&format!("run-{pids}"), &limits).unwrap();
        let mut child = shell(&group, EIGHT_CHILDREN);
        assert_eq!(child.wait().unwrap().success(), !refused);
        let counters = group.counters().unwrap();
        assert_eq!(counters.pids_refused > 0, refused, "{counters:?}");
        assert_eq!(counters.pids_refused_by_own_limit, refused, "{counters:?}");
        assert!(counters.pids_evidence.contains("pids.events"));
        assert_eq!(
            counters.oom_evidence, "",
            "no memory controller was asked for"
        );
        if let Some(peak) = group.usage().unwrap().pids_peak {
            assert_eq!(peak, if refused { 4 } else { 9 });
        }
        finish(&group);
    }
}

#[test]
fn a_refusal_by_a_limit_above_is_not_put_on_the_own_limit() {
    let test = "a_refusal_by_a_limit_above_is_not_put_on_the_own_limit";
    let aggregate = Limits {
        pids: Some(4),
        ..Limits::default()
    };
    let Some(subtree) = prepared(test, &[], &aggregate) else {
        return;
    };
    assert_eq!(*subtree.limits(), aggregate);
    let limits = Limits {
        pids: Some(64),
        ..Limits::default()
    };
    let group = subtree.create("run", &limits).unwrap();
    let mut child = shell(&group, EIGHT_CHILDREN);
    assert!(!child.wait().unwrap().success(), "the limit above holds");
    assert!(!group.counters().unwrap().pids_refused_by_own_limit);
    finish(&group);
}

#[test]
fn memory_over_the_limit_ends_in_an_oom_with_two_facts() {
    let test = "memory_over_the_limit_ends_in_an_oom_with_two_facts";
    let Some(subtree) = prepared(test, &[Controller::Memory], &Limits::default()) else {
        return;
    };
    let limits = Limits {
        memory: Some(24 * MIB),
        ..Limits::default()
    };
    // tail keeps a line until its end, which never comes.
    for (name, size, killed) in [("over", "200m", true), ("below", "1m", false)] {
        let group = subtree.create(name, &limits).unwrap();
        let mut child = shell(
            &group,
            &format!("head -c {size} /dev/zero | tail -n 1 > /dev/null"),
        );
        if killed && let Some(oom) = group.oom() {
            assert!(ready(oom, BOUND), "the descriptor tells of the OOM");
        }
        let status = child.wait().unwrap();
        assert_eq!(status.success(), !killed, "{status}");
        assert!(
            !killed || status.signal() == Some(9) || status.code() == Some(137),
            "{status}"
        );
        until("the kernel counted", || {
            (group.counters().unwrap().oom_kill > 0) == killed
        });
        let counters = group.counters().unwrap();
        assert_eq!(counters.memory_limit_reached > 0, killed, "{counters:?}");
        assert!(!counters.oom_evidence.is_empty() && !counters.memory_evidence.is_empty());
        if let Some(peak) = group.usage().unwrap().memory_peak {
            assert!(peak > 0 && peak <= 24 * MIB, "{peak}");
        }
        finish(&group);
    }
}

#[test]
fn a_cpu_quota_holds_from_apply_cpu_on_and_shows_as_throttling() {
    let test = "a_cpu_quota_holds_from_apply_cpu_on_and_shows_as_throttling";
    let Some(subtree) = prepared(test, &[Controller::Cpu], &Limits::default()) else {
        return;
    };
    let limits = Limits {
        cpu: Some(CpuQuota::percent(5).unwrap()),
        ..Limits::default()
    };
    let group = subtree.create("run", &limits).unwrap();
    let mut child = shell(&group, "while :; do :; done");
    until("the loop ran over the quota of a period", || {
        group.usage().unwrap().cpu_user > Duration::from_millis(20)
    });
    assert_eq!(
        group.usage().unwrap().throttled_periods,
        Some(0),
        "no quota yet"
    );
    group.apply_cpu().unwrap();
    until("the loop was throttled", || {
        let usage = group.usage().unwrap();
        usage.throttled_periods > Some(0) && usage.throttled > Some(Duration::ZERO)
    });
    finish(&group);
    child.wait().unwrap();
}

#[test]
fn a_limit_without_its_controller_or_out_of_range_makes_nothing() {
    let test = "a_limit_without_its_controller_or_out_of_range_makes_nothing";
    let Some(subtree) = prepared(test, &[Controller::Pids], &Limits::default()) else {
        return;
    };
    let before = common::traces(&common::name(&subtree));
    let memory = Limits {
        memory: Some(MIB),
        ..Limits::default()
    };
    let none = Limits {
        pids: Some(0),
        ..Limits::default()
    };
    assert!(matches!(
        subtree.create("run", &memory),
        Err(Error::ControllerNotPrepared { .. })
    ));
    assert!(matches!(
        subtree.create("run", &none),
        Err(Error::InvalidLimit { .. })
    ));
    assert!(matches!(
        subtree.create("../run", &Limits::default()),
        Err(Error::InvalidName { .. })
    ));
    assert_eq!(common::traces(&common::name(&subtree)), before);
    let layout = Layout::probe().unwrap();
    assert!(matches!(
        Subtree::prepare(&layout, &[], &none),
        Err(Error::InvalidLimit { .. })
    ));
}

#[test]
fn a_controller_that_the_host_lacks_is_an_error_that_says_what_it_has() {
    // The texts of a host without the memory controller; nothing is made before that is known.
    let mounts = "2 0 0:2 / /nowhere rw - cgroup2 none rw\n";
    let layout = Layout::parse("5:memory:/a\n0::/\n", mounts).unwrap();
    let error = Subtree::prepare(&layout, &[Controller::Memory], &Limits::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::ControllerUnavailable { .. }),
        "{text}"
    );
    assert!(
        text.contains("memory") && text.contains("pids, cpu"),
        "{text}"
    );
}

#[test]
fn a_read_only_mount_is_an_error_of_its_own() {
    let mounts = "2 0 0:2 / /nowhere ro - cgroup2 none rw\n";
    let layout = Layout::parse("0::/\n", mounts).unwrap();
    let error = Subtree::prepare(&layout, &[], &Limits::default()).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
}

#[test]
fn a_user_without_delegation_is_told_both_ways_to_get_it() {
    let test = "a_user_without_delegation_is_told_both_ways_to_get_it";
    let told = || {
        let layout = Layout::probe().unwrap();
        match Subtree::prepare(&layout, &[], &Limits::default()) {
            Ok(_) => 2,
            Err(Error::ReadOnly { .. }) => 3,
            Err(error) => {
                let text = error.to_string();
                let both = text.contains("Delegate=yes") && text.contains("with-cgroup.sh");
                i32::from(both && matches!(error, Error::NotDelegated { .. }))
            }
        }
    };
    if let Err(error) = Layout::probe() {
        return common::without_subject(test, &error.to_string());
    }
    if rustix::process::geteuid().is_root() {
        let nobody = 65_534;
        let found = common::sys::in_a_copy(|| {
            let gid = rustix::process::Gid::from_raw(nobody);
            let uid = rustix::process::Uid::from_raw(nobody);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            told()
        });
        if found == 3 {
            return common::without_subject(test, "the groups are mounted read-only");
        }
        assert_eq!(found, 1);
    } else if prepared(test, &[], &Limits::default()).is_some() {
        common::without_subject(test, "this user has a delegated group");
    }
}
