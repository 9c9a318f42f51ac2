//! The hosts that people have, row by row: what a strict policy refuses or enforces there, and what one with every
//! layer as best effort lists as missing.

use super::*;
use crate::host::{LandlockSupport, MountSupport, NamespaceRefusal, UserNamespaces};

/// What comes of a policy on a host.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// An error that names exactly these layers.
    Refuses(&'static [Layer]),
    /// A sandbox in which exactly these layers are missing, and every other one is enforced.
    Runs(&'static [Layer]),
}
use Expected::{Refuses, Runs};

struct Row {
    name: &'static str,
    host: Host,
    strict: Expected,
    best_effort: Expected,
    /// Words of the error of the strict policy.
    says: &'static [&'static str],
}

fn host(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::full();
    change(&mut host);
    host
}

fn unified(host: &mut Host, kernel: (u32, u32), landlock: u32) {
    host.kernel_version = kernel;
    host.kernel = format!("{}.{}.0", kernel.0, kernel.1);
    host.landlock = LandlockSupport::Version(landlock);
    host.status_after_reap = false;
    host.groups.description = "unified: groups below /sys/fs/cgroup/own".into();
}

fn user(host: &mut Host) {
    host.uid = 1000;
    host.gid = 1000;
    host.setgroups = false;
    host.missing_capabilities = vec!["CAP_SETUID".into()];
    host.mounts = MountSupport::Refused(libc::EPERM);
}

fn no_groups(host: &mut Host, access: GroupAccess) {
    host.groups.access = access;
    host.groups.controllers.clear();
}

const GROUPLESS: &[Layer] = &[Layer::Memory, Layer::Pids, Layer::Cpu, Layer::Watchdog];

#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<Row> {
    let row = |name, host, strict, best_effort, says| Row {
        name,
        host,
        strict,
        best_effort,
        says,
    };
    let own = || "/sys/fs/cgroup/own".to_owned();
    vec![
        row(
            "hybrid, root, 6.18",
            host(|_| ()),
            Runs(&[]),
            Runs(&[]),
            &[],
        ),
        row(
            "unified, root, 6.1",
            host(|host| unified(host, (6, 1), 2)),
            Runs(&[]),
            Runs(&[]),
            &[],
        ),
        row(
            "unified, root, 6.12",
            host(|host| unified(host, (6, 12), 6)),
            Runs(&[]),
            Runs(&[]),
            &[],
        ),
        row(
            "unified, root, 5.15, whose notifications are not killable",
            host(|host| {
                unified(host, (5, 15), 1);
                host.killable_notification = false;
            }),
            Runs(&[Layer::DenialReports]),
            Runs(&[Layer::DenialReports]),
            &[],
        ),
        row(
            "unified, user with delegation, 6.1",
            host(|host| {
                unified(host, (6, 1), 2);
                user(host);
            }),
            Runs(&[Layer::Scratch]),
            Runs(&[Layer::Scratch]),
            &[],
        ),
        row(
            "unified, user with delegation of no controllers, 6.12",
            host(|host| {
                unified(host, (6, 12), 6);
                user(host);
                host.groups.controllers.clear();
            }),
            Refuses(&[Layer::Memory, Layer::Pids, Layer::Cpu]),
            Runs(&[Layer::Memory, Layer::Pids, Layer::Cpu, Layer::Scratch]),
            &[
                "offers no memory controller",
                "systemd-run --user",
                "best_effort",
            ],
        ),
        row(
            "unified, user without delegation, 6.12",
            host(|host| {
                unified(host, (6, 12), 6);
                user(host);
                no_groups(host, GroupAccess::NotDelegated { path: own() });
            }),
            Refuses(GROUPLESS),
            Refuses(&[Layer::Watchdog]),
            &[
                "/sys/fs/cgroup/own is not delegated to this user",
                "systemd-run --user --scope -p Delegate=yes COMMAND",
                "unit that has `Delegate=yes`",
            ],
        ),
        row(
            "user namespaces refused",
            host(|host| {
                host.user_namespaces = UserNamespaces::Refused {
                    errno: libc::ENOSPC,
                    by: NamespaceRefusal::Limit,
                };
            }),
            Runs(&[]),
            Runs(&[]),
            &[],
        ),
        row(
            "user namespaces without capabilities, user with delegation",
            host(|host| {
                unified(host, (6, 8), 4);
                user(host);
                host.user_namespaces = UserNamespaces::Powerless {
                    errno: libc::EACCES,
                };
            }),
            Runs(&[Layer::Scratch]),
            Runs(&[Layer::Scratch]),
            &[],
        ),
        row(
            "Landlock disabled at boot, root",
            host(|host| host.landlock = LandlockSupport::Disabled),
            Refuses(&[Layer::Landlock]),
            Runs(&[Layer::Landlock]),
            &["disabled at boot", "lsm="],
        ),
        row(
            "Landlock disabled at boot, user with delegation",
            host(|host| {
                unified(host, (6, 1), 2);
                user(host);
                host.landlock = LandlockSupport::Disabled;
            }),
            Refuses(&[Layer::Landlock, Layer::Identity]),
            Refuses(&[Layer::Identity]),
            &["disabled at boot", "lsm="],
        ),
        row(
            "Landlock refused by an outer filter",
            host(|host| {
                host.outer_filter = true;
                host.landlock = LandlockSupport::Refused(libc::EPERM);
            }),
            Refuses(&[Layer::Landlock]),
            Runs(&[Layer::Landlock]),
            &["EPERM, by the seccomp filter around", "seccomp profile"],
        ),
        row(
            "seccomp(2) refused by an outer filter",
            host(|host| {
                host.outer_filter = true;
                host.seccomp_filter = false;
                host.seccomp_error = Some(libc::EPERM);
                host.user_notification = false;
                host.killable_notification = false;
            }),
            Refuses(&[Layer::Seccomp]),
            Refuses(&[Layer::Seccomp]),
            &["seccomp(2) with EPERM, by the seccomp filter around"],
        ),
        row(
            "container: read-only groups, outer filter",
            host(|host| {
                unified(host, (6, 12), 6);
                host.outer_filter = true;
                no_groups(host, GroupAccess::ReadOnly { path: own() });
            }),
            Refuses(GROUPLESS),
            Refuses(&[Layer::Watchdog]),
            &["/sys/fs/cgroup/own is mounted read-only", "read-write"],
        ),
        row(
            "container: writable groups, outer filter with a listener",
            host(|host| {
                host.outer_filter = true;
                host.outer_listener = true;
            }),
            Runs(&[Layer::DenialReports]),
            Runs(&[Layer::DenialReports]),
            &[],
        ),
        row(
            "container: writable groups, a filter that knows no clone3",
            host(|host| {
                host.outer_filter = true;
                host.clone3 = false;
                host.clone_into_group = false;
                host.mounts = MountSupport::Refused(libc::EPERM);
            }),
            Runs(&[Layer::Scratch]),
            Runs(&[Layer::Scratch]),
            &[],
        ),
        row(
            "groups refused by a security module",
            host(|host| {
                no_groups(
                    host,
                    GroupAccess::Barred {
                        path: own(),
                        errno: libc::EACCES,
                    },
                );
            }),
            Refuses(GROUPLESS),
            Refuses(&[Layer::Watchdog]),
            &["a security module refuses", "policy of the security module"],
        ),
        row(
            "no cgroup2 mount",
            host(|host| {
                let found = "5 version 1 hierarchies mounted, and no cgroup2 one".into();
                no_groups(host, GroupAccess::NoMount { found });
            }),
            Refuses(GROUPLESS),
            Refuses(&[Layer::Watchdog]),
            &["no cgroup2 file system is mounted", "mount -t cgroup2"],
        ),
        row(
            "no /proc",
            host(|host| {
                no_groups(host, GroupAccess::NoProc);
                host.uids = None;
                host.gids = None;
            }),
            Refuses(GROUPLESS),
            Refuses(&[Layer::Watchdog]),
            &["/proc does not say", "mount -t proc"],
        ),
    ]
}

/// Every layer asked for.
fn policy() -> Policy {
    Policy::python().cpu(CpuShare::percent(50).unwrap())
}

fn all_best_effort() -> Policy {
    let layers = layers(&policy(), &Host::full()).unwrap();
    let names = layers.enforcement.layers();
    names.fold(policy(), |policy, (layer, _)| policy.best_effort(layer))
}

#[track_caller]
fn comes_to(row: &str, policy: &Policy, host: &Host, expected: Expected) -> String {
    match (layers(policy, host), expected) {
        (Err(missing), Refuses(layers)) => {
            let found: Vec<Layer> = missing.iter().map(|missing| missing.layer).collect();
            assert_eq!(found, layers, "{row}");
            let texts: Vec<String> = missing.iter().map(ToString::to_string).collect();
            texts.join("\n")
        }
        (Ok(found), Runs(absent)) => {
            for (layer, status) in found.enforcement.layers() {
                let right = match status {
                    LayerStatus::Enforced { .. } => !absent.contains(&layer),
                    LayerStatus::Missing { .. } => absent.contains(&layer),
                    LayerStatus::NotAsked => layer == Layer::Namespaces,
                    _ => false,
                };
                assert!(right, "{row}: {layer} is {status:?}");
            }
            assert_eq!(found.enforcement.layers().count(), 12, "{row}");
            for layer in [Layer::Memory, Layer::Pids, Layer::Cpu] {
                let there = match layer {
                    Layer::Memory => found.memory,
                    Layer::Pids => found.pids,
                    _ => found.cpu,
                };
                assert_eq!(there, !absent.contains(&layer), "{row}: {layer}");
            }
            assert_eq!(
                found.notify,
                !absent.contains(&Layer::DenialReports),
                "{row}"
            );
            let landlock = found.landlock.is_some();
            assert_eq!(landlock, !absent.contains(&Layer::Landlock), "{row}");
            found.enforcement.to_string()
        }
        (found, expected) => panic!("{row}: {expected:?} and not {found:?}"),
    }
}

#[test]
fn strict_refuses_or_enforces_exactly_these_layers_and_says_why() {
    for row in rows() {
        let text = comes_to(row.name, &policy(), &row.host, row.strict);
        for words in row.says {
            assert!(text.contains(words), "{}: {words}\n{text}", row.name);
        }
    }
}

#[test]
fn best_effort_lists_exactly_these_layers_as_missing() {
    for row in rows() {
        comes_to(row.name, &all_best_effort(), &row.host, row.best_effort);
    }
}

#[test]
fn no_two_rows_that_refuse_are_refused_in_the_same_words() {
    let mut texts: Vec<String> = rows()
        .iter()
        .filter(|row| matches!(row.strict, Refuses(_)))
        .map(|row| comes_to(row.name, &policy(), &row.host, row.strict))
        .collect();
    let count = texts.len();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), count);
}

#[test]
fn an_ordinary_users_guests_are_said_to_have_its_uid() {
    for row in rows() {
        if row.host.uid == 0 {
            continue;
        }
        if let Ok(found) = layers(&policy(), &row.host) {
            let identity = detail(&found, Layer::Identity);
            assert!(identity.contains("uid 1000"), "{}: {identity}", row.name);
            assert!(matches!(found.uid, Uid::Shared { .. }), "{}", row.name);
        }
    }
}
