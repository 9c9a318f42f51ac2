use super::*;
use crate::SyscallPolicy;
use crate::host::{GroupAccess, LandlockSupport, MountSupport};
use crate::limits::CpuShare;
use crate::namespaces::Namespace;

mod rows;

fn missing_of(policy: &Policy, host: &Host) -> Vec<Layer> {
    layers(policy, host)
        .unwrap_err()
        .into_iter()
        .map(|missing| missing.layer)
        .collect()
}

fn reason(layers: &Layers, layer: Layer) -> String {
    match layers.enforcement.status(layer) {
        Some(LayerStatus::Missing { reason }) => reason.clone(),
        other => panic!("{layer} is {other:?}"),
    }
}

fn detail(layers: &Layers, layer: Layer) -> String {
    match layers.enforcement.status(layer) {
        Some(LayerStatus::Enforced { detail }) => detail.clone(),
        other => panic!("{layer} is {other:?}"),
    }
}

fn unprivileged() -> Host {
    let mut host = Host::full();
    host.uid = 1000;
    host.gid = 1000;
    host.missing_capabilities = vec!["CAP_SETUID".into()];
    host
}

#[test]
fn root_on_a_full_host_has_every_layer_that_the_preset_asks_for() {
    let found = layers(
        &Policy::python().cpu(CpuShare::percent(50).unwrap()),
        &Host::full(),
    )
    .unwrap();
    assert!(found.notify && found.memory && found.pids && found.cpu);
    assert_eq!((found.landlock, found.uid), (Some(7), Uid::Own));
    assert_eq!(found.enforcement.missing().count(), 0);
    assert_eq!(found.enforcement.layers().count(), 12);
    assert_eq!(detail(&found, Layer::Cpu), "50% of one CPU");
    assert!(detail(&found, Layer::Identity).contains("1879048192 to 1879052287"));
}

#[test]
fn limits_that_are_not_asked_for_need_no_controller() {
    let mut policy = Policy::python();
    policy.limits.memory = None;
    policy.limits.pids = None;
    let mut host = Host::full();
    host.groups.controllers.clear();
    let found = layers(&policy, &host).unwrap();
    assert!(!found.memory && !found.pids && !found.cpu);
    for layer in [Layer::Memory, Layer::Pids, Layer::Cpu] {
        assert_eq!(
            found.enforcement.status(layer),
            Some(&LayerStatus::NotAsked)
        );
    }
}

#[test]
fn everything_that_is_missing_is_said_at_once_and_in_three_parts() {
    let mut host = unprivileged();
    host.groups.controllers.clear();
    host.landlock = LandlockSupport::Disabled;
    host.seccomp_filter = false;
    let policy = Policy::python().cpu(CpuShare::percent(50).unwrap());
    let missing = layers(&policy, &host).unwrap_err();
    let found: Vec<Layer> = missing.iter().map(|missing| missing.layer).collect();
    assert_eq!(
        found,
        [
            Layer::Seccomp,
            Layer::Memory,
            Layer::Pids,
            Layer::Cpu,
            Layer::Landlock,
            Layer::Identity
        ]
    );
    for missing in missing {
        assert!(!missing.asked.is_empty() && !missing.has.is_empty() && !missing.remedy.is_empty());
    }
}

#[test]
fn a_controller_is_required_unless_it_is_best_effort() {
    for (layer, name) in [
        (Layer::Memory, "memory"),
        (Layer::Pids, "pids"),
        (Layer::Cpu, "cpu"),
    ] {
        let policy = Policy::python().cpu(CpuShare::percent(50).unwrap());
        let mut host = Host::full();
        host.groups
            .controllers
            .retain(|controller| controller != name);
        assert_eq!(missing_of(&policy, &host), [layer]);
        let found = layers(&policy.best_effort(layer), &host).unwrap();
        assert!(reason(&found, layer).contains(&format!("no {name} controller")));
        assert_eq!(
            [found.memory, found.pids, found.cpu]
                .iter()
                .filter(|there| **there)
                .count(),
            2
        );
    }
}

#[test]
fn landlock_is_required_unless_it_is_best_effort() {
    for (support, answer) in [
        (LandlockSupport::NotBuilt, "ENOSYS"),
        (LandlockSupport::Disabled, "EOPNOTSUPP"),
        (LandlockSupport::Refused(1), "EPERM"),
    ] {
        let mut host = Host::full();
        host.landlock = support;
        assert_eq!(missing_of(&Policy::native(), &host), [Layer::Landlock]);
        let found = layers(&Policy::native().best_effort(Layer::Landlock), &host).unwrap();
        assert_eq!(found.landlock, None);
        assert!(reason(&found, Layer::Landlock).contains(answer));
    }
}

#[test]
fn no_network_needs_nothing_of_the_host() {
    let mut host = Host::full();
    host.landlock = LandlockSupport::Disabled;
    let policy = Policy::python().best_effort(Layer::Landlock);
    let found = layers(&policy, &host).unwrap();
    assert_eq!(
        detail(&found, Layer::Network),
        "no sockets but connected local pairs"
    );
    let found = layers(&policy.network(Network::Host), &host).unwrap();
    assert_eq!(
        found.enforcement.status(Layer::Network),
        Some(&LayerStatus::NotAsked)
    );
}

#[test]
fn tcp_ports_are_never_opened_in_silence() {
    let policy = || Policy::python().network(Network::tcp([443], [0]));
    let bounded = "TCP alone: connections to ports 443; servers at ports 0 (a free one)";
    for mut host in [Host::full(), unprivileged()] {
        for abi in 1..=10 {
            host.landlock = LandlockSupport::Version(abi);
            let found = layers(&policy(), &host);
            if abi >= 4 {
                assert_eq!(detail(&found.unwrap(), Layer::Network), bounded);
                continue;
            }
            let [missing] = &found.unwrap_err()[..] else {
                panic!("not one layer");
            };
            assert_eq!((missing.layer, &*missing.asked), (Layer::Network, bounded));
            assert!(missing.has.contains(&format!("ABI {abi}")), "{missing}");
            for remedy in ["Linux 6.7", "denied or host", "best_effort"] {
                assert!(missing.remedy.contains(remedy), "{missing}");
            }
            // Best effort for paths is none for ports.
            let other = policy().best_effort(Layer::Landlock);
            assert_eq!(missing_of(&other, &host), [Layer::Network]);
            let found = layers(&policy().best_effort(Layer::Network), &host).unwrap();
            assert_eq!(found.landlock, Some(abi));
            assert!(reason(&found, Layer::Network).contains("TCP at every port"));
        }
    }
    let mut host = Host::full();
    host.landlock = LandlockSupport::Disabled;
    let both = [Layer::Landlock, Layer::Network];
    assert_eq!(missing_of(&policy(), &host), both);
    let lenient = policy().best_effort(Layer::Landlock);
    assert_eq!(missing_of(&lenient, &host), [Layer::Network]);
    let found = layers(&lenient.best_effort(Layer::Network), &host).unwrap();
    assert!(reason(&found, Layer::Network).contains("nothing bounds ports"));
}

#[test]
fn a_bounded_scratch_directory_is_required_where_the_policy_says_so() {
    let mut host = Host::full();
    let mut policy = Policy::python().memory(100 * 4096).scratch(4096 * 20 + 1);
    let found = layers(&policy, &host).unwrap();
    let bound = found.scratch.unwrap();
    assert_eq!((bound.bytes, bound.files), (4096 * 20, 65_536));
    assert!(!bound.no_exec);
    // Half of the memory, and without the right to execute where programs may be started.
    policy = policy.scratch(1 << 40);
    policy.syscalls = policy.syscalls.allow(["execve"]);
    let bound = layers(&policy, &host).unwrap().scratch.unwrap();
    assert_eq!((bound.bytes, bound.no_exec), (4096 * 50, true));
    // By whichever call.
    let calls = SyscallPolicy::python().allow(["execveat"]);
    let other = Policy::python().syscalls(|_| calls);
    assert!(layers(&other, &host).unwrap().scratch.unwrap().no_exec);
    // A host that does not say how large a page is bounds all the same.
    host.page_size = 0;
    assert!(layers(&policy, &host).unwrap().scratch.is_some());
    host.page_size = 4096;

    // Each refusal has the remedy of its own.
    for (errno, remedy) in [
        (libc::EPERM, "CAP_SYS_ADMIN"),
        (libc::ENOSYS, "Linux 5.2"),
        (libc::EINVAL, "chroot"),
        (libc::ENOSPC, "max_mnt_namespaces"),
    ] {
        let refused = MountSupport::Refused(errno);
        let missing = unbounded_scratch(bound, &refused.to_string(), refused.remedy().unwrap());
        assert!(missing.remedy.contains(remedy), "{missing}");
    }
    host.mounts = MountSupport::Refused(libc::EPERM);
    let found = layers(&policy, &host).unwrap();
    assert_eq!(found.scratch, None);
    assert!(reason(&found, Layer::Scratch).contains("EPERM"));
    let missing = layers(&policy.clone().require(Layer::Scratch), &host).unwrap_err();
    let said = missing.iter().map(ToString::to_string).collect::<String>();
    assert!(said.contains("204800 bytes"), "{said}");
    assert!(said.contains("CAP_SYS_ADMIN"), "{said}");
    // What is not asked for is not missed.
    policy.limits.scratch = None;
    let found = layers(&policy.require(Layer::Scratch), &host).unwrap();
    assert_eq!(found.scratch, None);
    assert_eq!(found.enforcement.missing().count(), 0);
}

#[test]
fn the_filter_is_never_best_effort() {
    let policy = Policy::python().best_effort(Layer::Seccomp);
    let mut host = Host::full();
    host.seccomp_filter = false;
    assert_eq!(missing_of(&policy, &host), [Layer::Seccomp]);
}

#[test]
fn a_host_without_clone3_has_every_layer_all_the_same() {
    let mut host = Host::full();
    host.clone_into_group = false;
    layers(&Policy::python(), &host).unwrap();
    host.clone3 = false;
    layers(&Policy::python(), &host).unwrap();
}

#[test]
fn a_tree_that_cannot_be_killed_at_once_is_never_started() {
    let policy = Policy::python().best_effort(Layer::Watchdog);
    let mut old = Host::full();
    old.kernel_version = (5, 10);
    old.groups.kill = false;
    assert_eq!(missing_of(&policy, &old), [Layer::Watchdog]);
    let mut bare = Host::full();
    bare.groups.access = GroupAccess::NotDelegated {
        path: "/sys/fs/cgroup/own".into(),
    };
    assert_eq!(missing_of(&policy, &bare), [Layer::Watchdog]);
}

#[test]
fn missing_denial_reports_are_said_and_an_error_only_where_they_are_required() {
    let mut host = Host::full();
    host.killable_notification = false;
    let found = layers(&Policy::python(), &host).unwrap();
    assert!(!found.notify);
    assert!(reason(&found, Layer::DenialReports).contains("without a report"));
    let gated = Policy::python().require(Layer::DenialReports);
    assert_eq!(missing_of(&gated, &host), [Layer::DenialReports]);
    assert!(layers(&gated, &Host::full()).unwrap().notify);
}

#[test]
fn what_the_filter_comes_to_says_whether_guests_may_start_programs() {
    let says =
        |policy: &Policy| detail(&layers(policy, &Host::full()).unwrap(), Layer::Seccomp).clone();
    assert!(says(&Policy::python()).contains("one exec"));
    assert!(says(&Policy::only(["/bin/true"])).contains("Landlock grants"));
    // A list of nothing is not the absence of one.
    assert!(says(&Policy::only(Vec::<String>::new())).contains("one exec"));
}

#[test]
fn an_outer_listener_leaves_none_for_a_sandbox() {
    let mut host = Host::full();
    host.outer_filter = true;
    host.outer_listener = true;
    let found = layers(&Policy::python(), &host).unwrap();
    assert!(!found.notify);
    assert!(reason(&found, Layer::DenialReports).contains("one only"));
}

#[test]
fn an_outer_filter_narrows_what_is_reported() {
    let mut host = Host::full();
    let plain = layers(&Policy::python(), &host).unwrap();
    assert_eq!(
        detail(&plain, Layer::DenialReports),
        "every denied call but clone3, which libc does without"
    );
    host.outer_filter = true;
    let outer = layers(&Policy::python(), &host).unwrap();
    assert!(outer.notify);
    assert!(detail(&outer, Layer::DenialReports).contains("own seccomp filter"));
}

#[test]
fn a_guest_is_never_run_as_root() {
    let policy = Policy::python().best_effort(Layer::Identity);
    let small = || {
        Some(vec![IdRange {
            first: 0,
            count: 65_536,
        }])
    };
    let mut hosts: [Host; 4] = std::array::from_fn(|_| Host::full());
    hosts[0].missing_capabilities = vec!["CAP_SETUID".into()];
    hosts[1].uids = small();
    hosts[2].gids = small();
    hosts[3].setgroups = false;
    for host in hosts {
        let missing = layers(&policy, &host).unwrap_err();
        assert_eq!(missing.len(), 1);
        assert!(
            missing[0].remedy.contains("never run as root"),
            "{}",
            missing[0]
        );
    }
}

#[test]
fn a_range_within_a_small_user_namespace_is_enough() {
    let mut host = Host::full();
    host.uids = Some(vec![IdRange {
        first: 0,
        count: 65_536,
    }]);
    host.gids = host.uids.clone();
    let mut policy = Policy::python();
    policy.identity = Identity::Own(UidRange::new(60_000, 64));
    assert_eq!(layers(&policy, &host).unwrap().uid, Uid::Own);
}

#[test]
fn an_embedder_that_is_not_root_shares_its_uid_and_the_outcome_says_how_it_is_kept_apart() {
    for (abi, reports, said) in [
        (7, true, "scoped by Landlock"),
        (6, false, "scoped by Landlock"),
        (5, true, "performed by the supervisor"),
        (1, false, "signals refused"),
    ] {
        let mut host = unprivileged();
        host.landlock = LandlockSupport::Version(abi);
        host.killable_notification = reports;
        let found = layers(&Policy::python(), &host).unwrap();
        assert_eq!(found.uid, Uid::Shared { landlock: abi });
        let detail = detail(&found, Layer::Identity);
        assert!(
            detail.contains("uid 1000") && detail.contains(said),
            "{detail}"
        );
        let changes = if reports {
            "files changed beneath scratch alone"
        } else {
            "calls refused that change modes, owners, times"
        };
        assert!(detail.contains(changes), "{detail}");
    }
}

#[test]
fn a_shared_uid_without_landlock_is_refused_whatever_is_best_effort() {
    let identities = [Identity::default(), Identity::Own(UidRange::default())];
    for identity in identities {
        let policy = Policy::python()
            .identity(identity)
            .best_effort(Layer::Identity)
            .best_effort(Layer::Landlock);
        let mut host = unprivileged();
        host.landlock = LandlockSupport::Disabled;
        let missing = layers(&policy, &host).unwrap_err();
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].layer, Layer::Identity);
        assert!(
            missing[0].has.contains("disabled at boot"),
            "{}",
            missing[0]
        );
    }
}

#[test]
fn an_own_uid_is_never_replaced_in_silence() {
    let policy = Policy::python().identity(Identity::Own(UidRange::default()));
    let missing = layers(&policy, &unprivileged()).unwrap_err();
    assert_eq!(missing.len(), 1);
    assert!(
        missing[0].remedy.contains("name identity in best_effort"),
        "{}",
        missing[0]
    );
    let found = layers(&policy.best_effort(Layer::Identity), &unprivileged()).unwrap();
    assert!(matches!(found.uid, Uid::Shared { .. }));
    assert!(reason(&found, Layer::Identity).contains("uid 1000"));
}

#[test]
fn an_unsupported_host_is_one_error_with_its_reason() {
    let mut host = Host::full();
    host.unsupported = Some("run on Linux".into());
    let missing = layers(&Policy::python(), &host).unwrap_err();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].remedy, "run on Linux");
}

#[test]
fn namespaces_need_mounts_and_uids_of_the_runs_own() {
    let policy = Policy::python().namespaces([Namespace::Pid, Namespace::Net]);
    let mut host = Host::full();
    let found = layers(&policy, &host).unwrap();
    assert!(found.namespaces);
    assert_eq!(detail(&found, Layer::Namespaces), "pid, net");
    let found = layers(&Policy::python(), &host).unwrap();
    assert!(!found.namespaces);
    let status = found.enforcement.status(Layer::Namespaces);
    assert_eq!(status, Some(&LayerStatus::NotAsked));

    let lenient = policy.clone().best_effort(Layer::Namespaces);
    host.mounts = MountSupport::Refused(libc::EPERM);
    assert_eq!(missing_of(&policy, &host), [Layer::Namespaces]);
    let found = layers(&lenient, &host).unwrap();
    assert!(!found.namespaces);
    assert!(reason(&found, Layer::Namespaces).contains("EPERM"));

    let mut user = Host::full();
    user.uid = 1000;
    assert_eq!(missing_of(&policy, &user), [Layer::Namespaces]);
    let found = layers(&lenient, &user).unwrap();
    assert!(reason(&found, Layer::Namespaces).contains("as root"));
}
