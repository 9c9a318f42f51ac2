//! From observations to a policy. What is observed is tested beside the recorder, and on real programs in `tests/learn.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;

use varek_core::{Rule, SyscallGroup};
use varek_seccomp::Arch;

use super::*;

const READ: Uses = Uses {
    read: true,
    write: false,
    execute: false,
};
const WRITE: Uses = Uses {
    read: false,
    write: true,
    execute: false,
};
const EXECUTE: Uses = Uses {
    read: false,
    write: false,
    execute: true,
};

fn observed(calls: &[&str], paths: &[(&str, Uses)]) -> Observed {
    Observed {
        calls: calls.iter().map(|call| ((*call).to_owned(), 1)).collect(),
        plain: calls.iter().map(|call| (*call).to_owned()).collect(),
        paths: paths
            .iter()
            .map(|(path, uses)| (path.into(), *uses))
            .collect(),
        ..Observed::default()
    }
}

fn policy_of(observed: &Observed, preset: Option<&'static str>, root: bool) -> Learnt {
    learnt(observed, preset, Arch::X86_64, 8, root).unwrap()
}

#[test]
fn the_toml_reads_back_as_the_policy_and_a_sandbox_takes_it() {
    let mut seen = observed(
        &["read", "openat"],
        &[("/usr", READ), ("/dev/null", WRITE), ("/bin/sh", EXECUTE)],
    );
    seen.rules = vec![
        Rule::on("ioctl").int(1, 0xffff_ffff),
        Rule::on("fcntl").int(1, 2),
        Rule::on("setxattr").and(varek_seccomp::Condition::masked_equal(
            3,
            varek_seccomp::Width::Bits64,
            !0xff,
            0,
        )),
    ];
    seen.executes_scratch = true;
    let pair = Sockets {
        reach: Reach::Pairs,
        pairs: true,
        ..Sockets::default()
    };
    let tcp = Sockets {
        reach: Reach::Tcp,
        connect: BTreeSet::from([443]),
        listens: true,
        ..pair.clone()
    };
    let host = Sockets {
        reach: Reach::Host,
        ..tcp.clone()
    };
    for network in [Sockets::default(), pair, tcp, host] {
        seen.network = network;
        for preset in Policy::PRESETS.into_iter().map(Some).chain([None]) {
            let learnt = policy_of(&seen, preset, false);
            assert_eq!(learnt.policy.problems(), [], "{preset:?}");
            assert_eq!(
                learnt
                    .notes
                    .iter()
                    .filter(|note| note.contains("no sandbox"))
                    .count(),
                0
            );
            let text = format!("{}\n{}", learnt.summary(true), learnt.toml().unwrap());
            let back: Policy = toml::from_str(&text).unwrap();
            assert_eq!(back, learnt.policy, "{text}");
            assert!(
                back.syscalls
                    .compile(Arch::X86_64, varek_seccomp::Reporting::Notify)
                    .is_ok()
            );
        }
    }
}

#[test]
fn the_policy_allows_what_was_made_and_nothing_else() {
    let learnt = policy_of(&observed(&["read", "futex"], &[]), Some("python"), false);
    let allowed: Vec<_> = learnt.policy.syscalls.calls().collect();
    assert_eq!(
        allowed,
        ["futex", "read", "restart_syscall", "rt_sigreturn"]
    );
    assert_eq!(learnt.policy.syscalls.groups().count(), 0);
    assert!(learnt.difference.is_covered());
    let unused = learnt.difference.unused;
    assert!(
        unused.contains(&"write") && !unused.contains(&"read") && !unused.contains(&"exit_group")
    );
}

#[test]
fn what_a_preset_kills_for_is_killed_for_unless_it_was_made() {
    let killed = |calls: &[&str]| {
        let learnt = policy_of(&observed(calls, &[]), Some("python"), false);
        let killed = learnt.policy.syscalls.killed().map(str::to_owned);
        killed.collect::<BTreeSet<_>>()
    };
    let (all, fewer) = (killed(&["read"]), killed(&["read", "ptrace"]));
    assert!(all.contains("ptrace") && !fewer.contains("ptrace"));
    assert_eq!(all.len(), fewer.len() + 1);
}

#[test]
fn the_difference_names_what_the_preset_lacks() {
    let own = tempfile::tempdir().unwrap();
    let own = own.path().canonicalize().unwrap();
    let own = own.to_str().unwrap();
    let mut seen = observed(
        &["read", "mlockall"],
        &[
            (own, READ),
            ("/usr/lib", READ),
            ("/dev/null", WRITE),
            ("/usr/bin", WRITE),
        ],
    );
    seen.rules = vec![
        Rule::on("ioctl").int(1, 0x5401),
        Rule::on("ioctl").int(1, 0x5402),
    ];
    let learnt = policy_of(&seen, Some("native"), false);
    let difference = &learnt.difference;
    assert_eq!(
        difference.calls,
        ["mlockall", "ioctl where argument 1 is 0x5402"]
    );
    let [read, write, execute] = &difference.paths;
    assert_eq!(read, &[std::path::PathBuf::from(own)]);
    assert_eq!(write, &[std::path::PathBuf::from("/usr/bin")]);
    assert!(execute.is_empty() && !difference.network && !difference.is_covered());
    let text = learnt.summary(false);
    for line in [
        "# preset native lacks: mlockall".to_owned(),
        format!("# preset native does not read: {own}"),
        "# preset native does not write: /usr/bin".to_owned(),
    ] {
        assert!(text.lines().any(|written| written == line), "{text}");
    }
    assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
    assert!(!text.contains("epoll_wait") && learnt.summary(true).contains("epoll_wait"));
}

#[test]
fn the_nearest_preset_is_the_one_that_lacks_least() {
    let near = |calls: &[&str]| {
        policy_of(&observed(calls, &[]), None, false)
            .difference
            .preset
    };
    assert_eq!(near(&["read", "execve", "fork"]), "shell");
    assert_eq!(near(&["read"]), "node");
}

#[test]
fn what_only_root_may_do_is_left_out_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().canonicalize().unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let file = closed.join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let seen = observed(
        &["read"],
        &[(file, READ), ("/usr", WRITE), ("/dev/null", WRITE)],
    );
    let learnt = policy_of(&seen, Some("python"), true);
    // The directory is its owner's alone.
    assert!(learnt.policy.filesystem.read.is_empty());
    assert_eq!(
        learnt.policy.filesystem.write,
        [std::path::PathBuf::from("/dev/null")]
    );
    assert!(
        learnt
            .notes
            .iter()
            .any(|note| note.contains(file) && note.contains("/usr"))
    );
    let learnt = policy_of(&seen, Some("python"), false);
    assert_eq!(
        learnt.policy.filesystem.read,
        [std::path::PathBuf::from(file)]
    );
    assert_eq!(learnt.policy.filesystem.write.len(), 2);
}

#[test]
fn writing_that_no_policy_grants_is_a_note() {
    let seen = observed(
        &["read"],
        &[("/proc/sys/kernel", WRITE), ("/sys/kernel", WRITE)],
    );
    let learnt = policy_of(&seen, None, false);
    assert!(learnt.policy.filesystem.write.is_empty());
    let note = learnt
        .notes
        .iter()
        .find(|note| note.contains("no policy grants"));
    assert!(note.is_some_and(|note| note.contains("/proc/sys/kernel, /sys/kernel")));
}

#[test]
fn sockets_become_the_network_of_the_policy() {
    let network = |sockets: Sockets, calls: &[&str]| {
        let mut seen = observed(calls, &[]);
        // They are said in `network`, not among the calls.
        seen.plain = BTreeSet::new();
        seen.network = sockets;
        let learnt = policy_of(&seen, Some("java"), false);
        let pairs = learnt
            .policy
            .syscalls
            .groups()
            .any(|group| group == SyscallGroup::SocketPair);
        (learnt.policy.network, pairs, learnt.notes.len())
    };
    let sockets = |reach| Sockets {
        reach,
        ..Sockets::default()
    };
    let calls = &["socket", "sendto"];
    assert_eq!(
        network(sockets(Reach::Nothing), calls),
        (Network::Denied, false, 0)
    );
    assert_eq!(
        network(sockets(Reach::Pairs), calls),
        (Network::Denied, true, 0)
    );
    assert_eq!(
        network(sockets(Reach::Host), calls),
        (Network::Host, false, 1)
    );
    // Probes: sockets without a use.
    assert_eq!(
        network(sockets(Reach::Tcp), calls),
        (Network::Denied, false, 1)
    );
    assert_eq!(
        network(sockets(Reach::Host), &["socket"]),
        (Network::Denied, false, 1)
    );
    let both = Sockets {
        connect: BTreeSet::from([0, 443]),
        listens: true,
        pairs: true,
        ..sockets(Reach::Tcp)
    };
    assert_eq!(network(both, calls), (Network::tcp([443], [0]), true, 0));
}

#[test]
fn files_of_the_own_control_group_are_not_granted() {
    let learnt = policy_of(
        &observed(&["read"], &[("/sys/fs/cgroup", READ)]),
        None,
        false,
    );
    assert!(learnt.policy.filesystem.read.is_empty());
    assert!(
        learnt
            .notes
            .iter()
            .any(|note| note.contains("control group"))
    );
}

#[test]
fn calls_that_depend_on_timing_come_with_threads() {
    let mut seen = observed(&["read"], &[]);
    seen.calls = BTreeMap::new();
    assert!(
        !policy_of(&seen, None, false)
            .policy
            .syscalls
            .allows("futex")
    );
    let thread = SyscallGroup::Threads
        .rules()
        .into_iter()
        .find(|rule| rule.call() == "clone");
    seen.rules = vec![thread.unwrap()];
    let policy = policy_of(&seen, None, false).policy;
    assert!(policy.syscalls.allows("futex") && policy.syscalls.allows("clone"));
    assert!(!policy.syscalls.calls().any(|call| call == "clone"));
}
