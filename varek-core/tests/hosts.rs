//! Hosts that lack something: what a sandbox refuses there, what it does all the same, and what it says. The test
//! program runs itself again where it has taken something away, by namespaces of its own and by filters around
//! itself; each time the same program runs where nothing is taken away, too.
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
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command as Program;
use std::time::Duration;

use embedder::sys::{self, Refused};
use embedder::{own_uids, scratch_base};
use rustix::process::geteuid;
use support::{assert_clean, denied, not_run, open_directory, run, sandbox_or_not_run, text};
use varek_core::{
    Answer, Error, GroupAccess, Host, LandlockSupport, Layer, LayerStatus, Missing,
    NamespaceRefusal, Policy, Sandbox, UserNamespaces,
};

fn python() -> Policy {
    own_uids(Policy::python()).wall_clock(Duration::from_secs(60))
}

/// Every layer that can be is best effort.
fn lenient() -> Policy {
    let layers = [Layer::Memory, Layer::Pids, Layer::Cpu, Layer::Landlock];
    layers.into_iter().fold(python(), Policy::best_effort)
}

/// What the control of each test shows: a guest runs here.
#[track_caller]
fn works() {
    let sandbox = Sandbox::new(python()).unwrap();
    let outcome = run(&sandbox, "print(2 + 2)");
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "4\n");
}

/// Whether the test that is named here can be run at all: guests run where nothing is taken away.
fn guests_run(name: &str) -> bool {
    sandbox_or_not_run(name, python()).is_some()
}

/// As [`guests_run`], and this is root, who can make what the test needs.
fn root_runs_guests(name: &str) -> bool {
    if !geteuid().is_root() {
        not_run(name, "only root can mount, and become another user");
        return false;
    }
    // Root of a container may not.
    let unshare = in_namespaces("");
    let mut probe = Program::new(&unshare[0]);
    probe
        .args(&unshare[1..])
        .arg("true")
        .env("VAREK_TEST_MOUNTS", "another");
    let output = probe.output().unwrap();
    if !output.status.success() {
        not_run(name, &String::from_utf8_lossy(&output.stderr));
        return false;
    }
    guests_run(name)
}

/// What the policy requires and this host lacks.
#[track_caller]
fn refused(policy: Policy) -> Vec<Missing> {
    match Sandbox::new(policy) {
        Err(Error::Unsupported { missing }) => missing,
        other => panic!("no refusal for what the host lacks: {other:?}"),
    }
}

/// The layers that are missing, but for the identity, and the whole text.
fn layers_and_text(missing: &[Missing]) -> (Vec<Layer>, String) {
    let layers = missing.iter().map(|missing| missing.layer);
    let texts: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let layers = layers.filter(|layer| *layer != Layer::Identity).collect();
    (layers, texts.join("\n"))
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

// ---- taking something away ----

/// A shell script that runs in mount and pid namespaces of its own, all of whose mounts are private, and then starts
/// this program there. It ends with 99 if it is not in a mount namespace of its own.
fn in_namespaces(script: &str) -> Vec<String> {
    let guard = "[ \"$(readlink /proc/self/ns/mnt)\" != \"$VAREK_TEST_MOUNTS\" ] || exit 99\n";
    let script = format!("set -e\n{guard}{script}\nexec \"$@\"");
    let unshare = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
    ];
    let mut starter: Vec<String> = unshare.map(str::to_owned).into();
    starter.extend([script, "sh".to_owned()]);
    starter
}

/// This program again, started by these words.
fn again(starter: &[String], test: &str, role: &str) -> Program {
    let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
    let mut command = embedder::again_under(&starter, test, role);
    command.env(
        "VAREK_TEST_MOUNTS",
        fs::read_link("/proc/self/ns/mnt").unwrap(),
    );
    command
}

/// The mount points of control groups, for the scripts.
const GROUP_MOUNTS: &str = "points() { sed -n \"s/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .* - $1 .*/\\1/p\" \
                            /proc/self/mountinfo; }\n";

fn read_only_groups() -> String {
    format!(
        "{GROUP_MOUNTS}for point in $(points cgroup2) $(points cgroup); do mount -o remount,bind,ro \"$point\"; done"
    )
}

fn no_cgroup2() -> String {
    format!("{GROUP_MOUNTS}for point in $(points cgroup2); do umount -l \"$point\"; done")
}

// ---- groups ----

#[test]
fn in_a_container_with_read_only_groups_a_sandbox_is_refused_and_the_mount_is_named() {
    match embedder::role().as_deref() {
        None => {
            if root_runs_guests(test_name!()) {
                embedder::passes(again(&in_namespaces(""), test_name!(), "control"));
                let taken = in_namespaces(&read_only_groups());
                embedder::passes(again(&taken, test_name!(), "taken"));
            }
        }
        Some("control") => {
            assert!(Host::probe().init);
            works();
        }
        Some(_) => {
            let host = Host::probe();
            let GroupAccess::ReadOnly { path } = &host.groups.access else {
                panic!("{host}");
            };
            // What has no place is said of every layer that needs one, and best effort cannot do without.
            let (layers, said) = layers_and_text(&refused(python()));
            assert_eq!(layers, [Layer::Memory, Layer::Pids, Layer::Watchdog]);
            says(&said, &[path, "mounted read-only (EROFS)", "read-write"]);
            let (layers, said) = layers_and_text(&refused(lenient()));
            assert_eq!(layers, [Layer::Watchdog]);
            says(&said, &[path, "mounted read-only (EROFS)", "read-write"]);
            // And nothing was made on the way.
            assert_eq!(
                embedder::groups_of(std::process::id()),
                Vec::<PathBuf>::new()
            );
        }
    }
}

#[test]
fn without_a_cgroup2_mount_a_sandbox_is_refused_and_says_so() {
    match embedder::role().as_deref() {
        None => {
            if root_runs_guests(test_name!()) {
                embedder::passes(again(&in_namespaces(""), test_name!(), "control"));
                let taken = in_namespaces(&no_cgroup2());
                embedder::passes(again(&taken, test_name!(), "taken"));
                // Nothing of it was in the open.
                works();
            }
        }
        Some("control") => works(),
        Some(_) => {
            let host = Host::probe();
            assert!(
                matches!(host.groups.access, GroupAccess::NoMount { .. }),
                "{host}"
            );
            let (layers, said) = layers_and_text(&refused(python()));
            assert_eq!(layers, [Layer::Memory, Layer::Pids, Layer::Watchdog]);
            says(
                &said,
                &["no cgroup2 file system is mounted", "mount -t cgroup2"],
            );
            assert_eq!(layers_and_text(&refused(lenient())).0, [Layer::Watchdog]);
        }
    }
}

#[test]
fn an_ordinary_user_without_delegation_is_refused_and_told_both_ways_to_it() {
    match embedder::role().as_deref() {
        None => {
            if !root_runs_guests(test_name!()) {
                return;
            }
            // Where that user can start it.
            let directory = open_directory();
            let copy = directory.path().join("hosts");
            fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            let start = "shift; exec \"$VAREK_TEST_COPY\" \"$@\"";
            let as_root = ["sh", "-c", start, "sh"];
            let as_user: Vec<&str> = "setpriv --reuid 1000 --regid 1000 --clear-groups"
                .split(' ')
                .chain(as_root)
                .collect();
            for (starter, role) in [(as_root.to_vec(), "control"), (as_user, "taken")] {
                let mut command = embedder::again_under(&starter, test_name!(), role);
                command
                    .env("VAREK_TEST_COPY", &copy)
                    .current_dir(directory.path());
                embedder::passes(command);
            }
        }
        Some("control") => works(),
        Some(_) => {
            let host = Host::probe();
            assert_eq!((host.uid, host.gid), (1000, 1000));
            let GroupAccess::NotDelegated { path } = &host.groups.access else {
                panic!("{host}");
            };
            let (layers, said) = layers_and_text(&refused(python()));
            assert_eq!(layers, [Layer::Memory, Layer::Pids, Layer::Watchdog]);
            says(
                &said,
                &[
                    path,
                    "not delegated to this user",
                    "systemd-run --user --scope -p Delegate=yes COMMAND",
                    "unit that has `Delegate=yes`",
                ],
            );
        }
    }
}

#[test]
fn without_proc_every_other_fact_is_the_same_and_the_refusal_says_what_is_missing() {
    const FACTS: &str = "VAREK_TEST_FACTS";
    match embedder::role().as_deref() {
        None => {
            if !root_runs_guests(test_name!()) {
                return;
            }
            let directory = scratch_base();
            let facts = directory.path().join("facts");
            // A file system over it hides it; nothing is unmounted.
            for (script, role) in [("", "control"), ("mount -t tmpfs none /proc", "taken")] {
                let mut command = again(&in_namespaces(script), test_name!(), role);
                embedder::passes({
                    command.env(FACTS, &facts);
                    command
                });
            }
        }
        Some("control") => {
            let host = Host::probe();
            fs::write(std::env::var_os(FACTS).unwrap(), host.to_string()).unwrap();
            works();
        }
        Some(_) => {
            let host = Host::probe();
            assert_eq!(host.groups.access, GroupAccess::NoProc, "{host}");
            assert_eq!((&host.uids, &host.gids), (&None, &None));
            let (found, expected) = (
                host.to_string(),
                fs::read_to_string(std::env::var_os(FACTS).unwrap()).unwrap(),
            );
            let only_proc_tells = [
                "user namespaces",
                "groups",
                "groups can be made",
                "controllers",
                "uids mapped",
                "gids mapped",
            ];
            for (found, expected) in found.lines().zip(expected.lines()) {
                let name = found.split("  ").next().unwrap();
                if !only_proc_tells.contains(&name) {
                    assert_eq!(found, expected);
                }
            }
            assert_eq!(found.lines().count(), expected.lines().count());
            says(
                &found,
                &["uids mapped             unknown: /proc does not say"],
            );
            let (layers, said) = layers_and_text(&refused(python()));
            assert_eq!(layers, [Layer::Memory, Layer::Pids, Layer::Watchdog]);
            says(&said, &["/proc does not say", "mount -t proc"]);
        }
    }
}

// ---- outer filters ----

/// What the guest tries: a call that the outer filter refuses, and one that only the policy does.
const TRIES: &str = "import ctypes, platform, socket\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    number = {'x86_64': 250, 'aarch64': 219}[platform.machine()]\n\
    print('keyctl', libc.syscall(ctypes.c_long(number), ctypes.c_long(0), ctypes.c_long(-3), ctypes.c_long(0)),\n\
          ctypes.get_errno())\n\
    try:\n\
    \x20   socket.socket()\n\
    except PermissionError as error:\n\
    \x20   print('socket', error.errno)\n";

#[test]
fn below_an_outer_filter_guests_run_and_only_what_it_lets_through_is_reported() {
    match embedder::role().as_deref() {
        None => {
            if !guests_run(test_name!()) {
                return;
            }
            if Host::probe().outer_filter {
                return not_run(test_name!(), "a filter is around this program already");
            }
            for role in ["control", "taken"] {
                embedder::passes(embedder::again(test_name!(), role));
            }
            // As the first process of a container, too.
            if geteuid().is_root() {
                for role in ["control", "taken"] {
                    embedder::passes(again(&in_namespaces(""), test_name!(), role));
                }
            }
        }
        Some(role) => {
            let surrounded = role == "taken";
            if surrounded {
                let calls = [
                    libc::SYS_keyctl,
                    libc::SYS_bpf,
                    libc::SYS_unshare,
                    libc::SYS_mount,
                ];
                let calls = calls.map(|call| Refused::with(call, libc::EPERM));
                sys::surround(&calls).unwrap();
            }
            let host = Host::probe();
            assert_eq!(host.outer_filter, surrounded, "{host}");
            assert!(!host.outer_listener, "{host}");
            let policy = python().syscalls(|calls| calls.spare(["keyctl"]));
            let sandbox = Sandbox::new(policy).unwrap();
            let outcome = run(&sandbox, TRIES);
            assert_eq!(text(&outcome), "keyctl -1 1\nsocket 1\n", "{outcome}");
            let status = outcome.enforcement.status(Layer::DenialReports);
            if !host.killable_notification {
                assert!(matches!(status, Some(LayerStatus::Missing { .. })));
                return;
            }
            let Some(LayerStatus::Enforced { detail }) = status else {
                panic!("{status:?}");
            };
            let narrowed = detail.contains("what the embedder's own seccomp filter lets through");
            assert_eq!(narrowed, surrounded, "{detail}");
            assert_eq!(denied(&outcome, "socket").first.answer, Answer::Errno(1));
            let reported = outcome.denials.iter().any(|(name, _)| name == "keyctl");
            assert_eq!(reported, !surrounded, "{outcome}");
        }
    }
}

#[test]
fn what_refuses_groups_though_the_permissions_allow_them_is_named() {
    match embedder::role().as_deref() {
        None => {
            if guests_run(test_name!()) {
                for role in ["control", "EPERM", "EACCES"] {
                    embedder::passes(embedder::again(test_name!(), role));
                }
            }
        }
        Some("control") => works(),
        Some(role) => {
            // EACCES is what a security module answers; only who made the filter knows better here.
            let (errno, words) = match role {
                "EPERM" => (
                    libc::EPERM,
                    "a seccomp filter around this program refuses it",
                ),
                _ => (libc::EACCES, "a security module refuses it"),
            };
            sys::surround(&[Refused::with(libc::SYS_mkdirat, errno)]).unwrap();
            // The kernel does not say it beforehand.
            assert_eq!(Host::probe().groups.access, GroupAccess::Writable);
            match Sandbox::new(python()) {
                Err(error @ Error::Group { .. }) => {
                    let said = error.to_string();
                    says(&said, &[words, "its permissions allow it"]);
                    assert!(!said.contains("systemd-run"), "{said}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn where_an_outer_filter_refuses_a_newer_call_for_permissions_guests_run() {
    match embedder::role().as_deref() {
        None => {
            if guests_run(test_name!()) {
                for role in ["control", "refused"] {
                    embedder::passes(embedder::again(test_name!(), role));
                }
            }
        }
        Some("control") => works(),
        Some(_) => {
            // As older container runtimes answer to every call that they do not know.
            let refused = Refused::with(libc::SYS_faccessat2, libc::EPERM);
            sys::surround(&[refused]).unwrap();
            assert_eq!(Host::probe().groups.access, GroupAccess::Writable);
            works();
        }
    }
}

/// The landlock_* calls, refused with this.
fn without_landlock(errno: i32) -> [Refused; 3] {
    [
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
    ]
    .map(|call| Refused::with(call, errno))
}

/// Strict refuses, and best effort runs guests and lists it, except for a guest that would have the embedder's uid.
fn landlock_is_missing(words: &[&str]) {
    let (layers, said) = layers_and_text(&refused(python()));
    assert_eq!(layers, [Layer::Landlock]);
    says(&said, words);
    if !geteuid().is_root() {
        let missing = refused(lenient());
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].layer, Layer::Identity);
        return;
    }
    let sandbox = Sandbox::new(lenient()).unwrap();
    let outcome = run(&sandbox, "print(2 + 2)");
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "4\n");
    let missing = outcome.enforcement.missing();
    // Which is missing where nothing may be mounted.
    let missing: Vec<_> = missing
        .filter(|(layer, _)| *layer != Layer::Scratch)
        .collect();
    let [(Layer::Landlock, reason)] = missing[..] else {
        panic!("{outcome}");
    };
    says(reason, words);
}

/// Runs the test in the roles, where guests run and Landlock is there.
fn with_landlock(name: &str, roles: &[&str]) {
    if !guests_run(name) {
        return;
    }
    if Host::probe().landlock.version().is_none() {
        return not_run(name, "no Landlock to take away");
    }
    for role in roles {
        embedder::passes(embedder::again(name, role));
    }
}

#[test]
fn where_an_outer_filter_refuses_landlock_strict_refuses_and_best_effort_lists_it() {
    match embedder::role().as_deref() {
        None => with_landlock(test_name!(), &["control", "EPERM", "ENOSYS"]),
        Some("control") => works(),
        Some("EPERM") => {
            sys::surround(&without_landlock(libc::EPERM)).unwrap();
            assert_eq!(
                Host::probe().landlock,
                LandlockSupport::Refused(libc::EPERM)
            );
            landlock_is_missing(&[
                "refuses the landlock_* calls with EPERM, by the seccomp filter around this program",
                "in the seccomp profile of the container",
            ]);
        }
        Some(_) => {
            sys::surround(&without_landlock(libc::ENOSYS)).unwrap();
            assert_eq!(Host::probe().landlock, LandlockSupport::NotBuilt);
            landlock_is_missing(&[
                "answers ENOSYS to the landlock_* calls",
                "or the seccomp filter around this program answers for it",
                "CONFIG_SECURITY_LANDLOCK",
            ]);
        }
    }
}

#[test]
fn landlock_that_is_disabled_at_boot_is_told_from_one_that_is_refused() {
    match embedder::role().as_deref() {
        None => with_landlock(test_name!(), &["control", "taken"]),
        Some("control") => works(),
        Some(_) => {
            // The kernel's own answer then.
            sys::surround(&without_landlock(libc::EOPNOTSUPP)).unwrap();
            assert_eq!(Host::probe().landlock, LandlockSupport::Disabled);
            landlock_is_missing(&["disabled at boot", "lsm= parameter"]);
        }
    }
}

#[test]
fn where_an_outer_filter_refuses_seccomp_nothing_runs_and_the_filter_is_named() {
    match embedder::role().as_deref() {
        None => {
            if guests_run(test_name!()) {
                for role in ["control", "EPERM", "ENOSYS"] {
                    embedder::passes(embedder::again(test_name!(), role));
                }
            }
        }
        Some("control") => works(),
        Some(role) => {
            let (errno, words) = match role {
                "EPERM" => (
                    libc::EPERM,
                    "refuses seccomp(2) with EPERM, by the seccomp filter around this program",
                ),
                _ => (libc::ENOSYS, "answers ENOSYS to seccomp(2)"),
            };
            sys::surround(&[Refused::with(libc::SYS_seccomp, errno)]).unwrap();
            let host = Host::probe();
            assert!(!host.seccomp_filter && host.outer_filter, "{host}");
            assert_eq!(host.seccomp_error, Some(errno));
            for policy in [python(), lenient()] {
                let (layers, said) = layers_and_text(&refused(policy));
                assert_eq!(layers, [Layer::Seccomp]);
                says(&said, &[words, "allow seccomp(2) in the seccomp profile"]);
            }
        }
    }
}

// ---- user namespaces ----

/// Runs the test in the roles, where user namespaces are usable.
fn with_user_namespaces(name: &str, roles: &[&str]) {
    let found = Host::probe().user_namespaces;
    if found != UserNamespaces::Usable {
        return not_run(name, &format!("user namespaces: {found}"));
    }
    for role in roles {
        embedder::passes(embedder::again(name, role));
    }
}

#[test]
fn user_namespaces_that_a_filter_refuses_are_said_to_be_refused_by_it() {
    match embedder::role().as_deref() {
        None => with_user_namespaces(test_name!(), &["control", "EPERM", "ENOSYS", "ENOSPC"]),
        Some("control") => {
            assert_eq!(Host::probe().user_namespaces, UserNamespaces::Usable);
        }
        Some(role) => {
            let errno = match role {
                "EPERM" => libc::EPERM,
                "ENOSYS" => libc::ENOSYS,
                _ => libc::ENOSPC,
            };
            let refused = Refused {
                flags: libc::CLONE_NEWUSER.cast_unsigned(),
                ..Refused::with(libc::SYS_clone, errno)
            };
            sys::surround(&[refused]).unwrap();
            let by = NamespaceRefusal::Filter;
            let expected = UserNamespaces::Refused { errno, by };
            assert_eq!(Host::probe().user_namespaces, expected);
            says(&expected.to_string(), &[role, "by a seccomp filter"]);
        }
    }
}

#[test]
fn user_namespaces_above_the_limit_are_said_to_be_refused_by_it() {
    match embedder::role().as_deref() {
        None => {
            let found = Host::probe().user_namespaces;
            if found != UserNamespaces::Usable {
                return not_run(test_name!(), &format!("user namespaces: {found}"));
            }
            // The sysctl is one of the namespace in which it is written.
            for (script, role) in [
                ("", "control"),
                (
                    "echo 0 >/proc/sys/user/max_user_namespaces || exit 99\n",
                    "taken",
                ),
            ] {
                let script = format!("{script}exec \"$@\"");
                let starter = ["unshare", "--user", "--map-root-user", "sh", "-c"];
                let mut starter: Vec<String> = starter.map(str::to_owned).into();
                starter.extend([script, "sh".to_owned()]);
                embedder::passes(again(&starter, test_name!(), role));
            }
        }
        Some("control") => {
            assert_eq!(Host::probe().user_namespaces, UserNamespaces::Usable);
        }
        Some(_) => {
            let expected = UserNamespaces::Refused {
                errno: libc::ENOSPC,
                by: NamespaceRefusal::Limit,
            };
            assert_eq!(Host::probe().user_namespaces, expected);
            says(
                &expected.to_string(),
                &["ENOSPC", "user.max_user_namespaces"],
            );
        }
    }
}

#[test]
fn a_host_whose_settings_refuse_user_namespaces_names_the_setting() {
    let setting = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let switch = setting("/proc/sys/kernel/unprivileged_userns_clone");
    let most = setting("/proc/sys/user/max_user_namespaces");
    let (errno, by) = if switch == Some(0) && !geteuid().is_root() {
        (libc::EPERM, NamespaceRefusal::Sysctl)
    } else if most == Some(0) {
        (libc::ENOSPC, NamespaceRefusal::Limit)
    } else {
        return not_run(test_name!(), "no setting of this host refuses them");
    };
    let host = Host::probe();
    assert_eq!(
        host.user_namespaces,
        UserNamespaces::Refused { errno, by },
        "{host}"
    );
    // Guests need none.
    guests_run(test_name!()).then(works);
}

#[test]
fn user_namespaces_in_which_nothing_may_be_mounted_are_not_said_to_be_usable() {
    match embedder::role().as_deref() {
        None => with_user_namespaces(test_name!(), &["control", "taken"]),
        Some("control") => {
            assert_eq!(Host::probe().user_namespaces, UserNamespaces::Usable);
        }
        Some(_) => {
            sys::surround(&[Refused::with(libc::SYS_mount, libc::EACCES)]).unwrap();
            let errno = libc::EACCES;
            let expected = UserNamespaces::Powerless { errno };
            assert_eq!(Host::probe().user_namespaces, expected);
        }
    }
}

#[cfg(feature = "test-hooks")]
#[test]
fn user_namespaces_without_capabilities_are_not_said_to_be_usable() {
    let found = Host::probe().user_namespaces;
    if found != UserNamespaces::Usable {
        return not_run(test_name!(), &format!("user namespaces: {found}"));
    }
    let errno = libc::EPERM;
    let expected = UserNamespaces::Powerless { errno };
    assert_eq!(Host::user_namespaces_without_capabilities(), expected);
    says(&expected.to_string(), &["without capabilities", "AppArmor"]);
}

// ---- the embedder ----

#[test]
fn probing_leaves_the_embedder_as_it_was() {
    alone!();
    let base = scratch_base();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let groups = || fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = (embedder::Census::take(base.path()), mounts(), groups());
    // From several threads at once: the first of each asks by a child.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(Host::probe);
        }
    });
    let host = Host::probe();
    before.0.becomes_again(base.path());
    assert_eq!((mounts(), groups()), (before.1, before.2));
    // No status of a child is there to be taken, whoever waits for anything.
    let waited = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
    assert_eq!(waited.unwrap_err(), rustix::io::Errno::CHILD);
    // The answer is kept.
    assert_eq!(Host::probe(), host);
}

#[test]
fn an_embedder_that_reaps_and_ignores_everything_gets_the_same_facts() {
    match embedder::role().as_deref() {
        None => {
            let expected = Host::probe().user_namespaces.to_string();
            for role in ["ignores", "default"] {
                let mut command = embedder::again(test_name!(), role);
                command.env("VAREK_TEST_FACTS", &expected);
                embedder::passes(command);
            }
        }
        Some(role) => {
            if role == "ignores" {
                sys::dispose(libc::SIGCHLD, sys::Disposition::Ignore).unwrap();
            }
            let found = Host::probe().user_namespaces.to_string();
            assert_eq!(found, std::env::var("VAREK_TEST_FACTS").unwrap());
        }
    }
}
