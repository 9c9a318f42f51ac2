//! The doctor, on this host as it is and where something is taken away.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{not_run, run};
use varek_core::{GroupAccess, Host, LandlockSupport, Layer, LayerStatus, Policy};
use varek_examples::doctor::Preset;

const DOCTOR: &str = env!("CARGO_BIN_EXE_doctor");

#[track_caller]
fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

fn strings(values: &Value) -> Vec<&str> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_str().unwrap()).collect()
}

/// What to do, with what it is for.
fn remedies(diagnosis: &Value) -> Vec<(&str, Vec<&str>)> {
    let remedies = diagnosis["remedies"].as_array().unwrap().iter();
    remedies
        .map(|remedy| {
            let text = remedy["remedy"].as_str().unwrap();
            (text, strings(&remedy["concerns"]))
        })
        .collect()
}

/// Every remedy of a fact or a preset is among those at the end, and each of those is there once.
#[track_caller]
fn assert_complete(diagnosis: &Value) {
    let remedies = remedies(diagnosis);
    let texts: Vec<_> = remedies.iter().map(|(text, _)| *text).collect();
    for (index, text) in texts.iter().enumerate() {
        assert!(!texts[..index].contains(text), "twice: {text}");
    }
    let has = |wanted: &Value, concern: &Value| {
        let found = remedies.iter().any(|(text, concerns)| {
            wanted.as_str().unwrap().contains(text) && concerns.contains(&concern.as_str().unwrap())
        });
        assert!(found, "{wanted} for {concern} is not in {remedies:?}");
    };
    for fact in diagnosis["facts"].as_array().unwrap() {
        assert!(!fact["value"].as_str().unwrap().is_empty(), "{fact}");
        if !fact["remedy"].is_null() {
            has(&fact["remedy"], &fact["name"]);
        }
    }
    for preset in diagnosis["presets"].as_array().unwrap() {
        for lack in preset["missing"].as_array().unwrap() {
            has(&lack["remedy"], &lack["layer"]);
        }
    }
}

/// The doctor, by a shell script, for a user to whom it is not given where this package is built.
struct Elsewhere(tempfile::TempDir);

impl Elsewhere {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let open = || std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open()).unwrap();
        let copy = directory.path().join("doctor");
        std::fs::copy(DOCTOR, &copy).unwrap();
        std::fs::set_permissions(copy, open()).unwrap();
        Self(directory)
    }

    fn run(&self, starter: &str, script: &str) -> Output {
        let mut words = starter.split(' ');
        Command::new(words.next().unwrap())
            .args(words)
            .args(["sh", "-c", script])
            .env("COLUMNS", "1000")
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

/// Whether this is root, who can become another user and mount, which root of a container cannot.
fn can_take_away(name: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        not_run(name, "only root can mount, and become another user");
        return false;
    }
    let unshare = Elsewhere::new().run("unshare --mount --propagation private", "true");
    if !unshare.status.success() {
        not_run(name, &String::from_utf8_lossy(&unshare.stderr));
        return false;
    }
    true
}

#[test]
fn the_table_and_the_json_have_every_fact_and_each_remedy_once() {
    let diagnosis = json(&run(DOCTOR, &["--json"]));
    assert_complete(&diagnosis);
    let table = Command::new(DOCTOR)
        .env("COLUMNS", "1000")
        .output()
        .unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    for fact in diagnosis["facts"].as_array().unwrap() {
        for text in [&fact["name"], &fact["value"]] {
            assert!(table.contains(text.as_str().unwrap()), "{fact}\n{table}");
        }
    }
    for (remedy, _) in remedies(&diagnosis) {
        assert!(table.contains(remedy), "{remedy}\n{table}");
    }
}

#[test]
fn without_delegation_the_two_ways_to_it_are_the_remedy_for_all_that_needs_it() {
    let name = "without_delegation_the_two_ways_to_it_are_the_remedy_for_all_that_needs_it";
    if !can_take_away(name) {
        return;
    }
    let groups = Host::probe().groups;
    if !matches!(groups.access, GroupAccess::Writable) {
        return not_run(name, &groups.description);
    }
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups";
    let output = Elsewhere::new().run(user, "./doctor --json");
    assert_eq!(output.status.code(), Some(1));
    let diagnosis = json(&output);
    assert_complete(&diagnosis);
    let remedies = remedies(&diagnosis);
    let found = remedies
        .iter()
        .find(|(text, _)| text.contains("systemd-run --user --scope -p Delegate=yes COMMAND"));
    let (text, concerns) = found.unwrap_or_else(|| panic!("{remedies:?}"));
    assert!(text.contains("unit that has `Delegate=yes`"), "{text}");
    for concern in ["groups can be made", "memory", "pids", "watchdog"] {
        assert!(concerns.contains(&concern), "{concern}: {concerns:?}");
    }
}

#[test]
fn it_works_where_nothing_works() {
    let name = "it_works_where_nothing_works";
    if !can_take_away(name) {
        return;
    }
    // In a mount namespace of its own, whose mounts are all private.
    let unshare = "unshare --mount --propagation private";
    let own = format!(
        "[ \"$(readlink /proc/self/ns/mnt)\" != '{}' ] || exit 99\n",
        std::fs::read_link("/proc/self/ns/mnt").unwrap().display()
    );
    let take = "mount -t tmpfs none /sys && mount -t tmpfs none /proc || exit 98\n\
                exec setpriv --reuid 1000 --regid 1000 --clear-groups ./doctor ";
    let elsewhere = Elsewhere::new();
    let output = elsewhere.run(unshare, &format!("{own}{take}--json"));
    assert_eq!(output.status.code(), Some(1));
    let diagnosis = json(&output);
    assert_complete(&diagnosis);
    assert_eq!(diagnosis["host"]["groups"]["access"], "no_proc");
    assert_eq!(diagnosis["host"]["uids"], Value::Null);
    assert!(!diagnosis["host"]["kernel"].as_str().unwrap().is_empty());
    for preset in diagnosis["presets"].as_array().unwrap() {
        assert_eq!(preset["ready"], false, "{preset}");
    }
    let table = elsewhere.run(unshare, &format!("{own}{take}"));
    assert_eq!(table.status.code(), Some(1));
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("mount -t proc proc /proc"), "{table}");
    assert!(table.contains("unknown: /proc does not say"), "{table}");
}

#[test]
fn a_preset_that_best_effort_would_help_shows_what_would_be_in_force() {
    guests_or_return!();
    let name = "a_preset_that_best_effort_would_help_shows_what_would_be_in_force";
    let mut host = Host::probe();
    if host.uid != 0 || host.landlock.version().is_none() {
        return not_run(name, "Landlock keeps this user's guests apart from it");
    }
    let policy = Policy::python();
    let whole = Preset::examine("python", &policy, &host);
    assert!(whole.ready && whole.best_effort.is_none());
    host.landlock = LandlockSupport::Disabled;
    let without = Preset::examine("python", &policy, &host);
    assert!(!without.ready);
    let lenient = without.best_effort.unwrap();
    assert_eq!(lenient.layers, [Layer::Landlock]);
    assert!(matches!(
        lenient.enforcement.status(Layer::Landlock),
        Some(LayerStatus::Missing { .. })
    ));
    assert!(matches!(
        lenient.enforcement.status(Layer::Memory),
        Some(LayerStatus::Enforced { .. })
    ));
    // Where a sandbox cannot be made whatever is best effort, there is nothing to show.
    host.seccomp_filter = false;
    let never = Preset::examine("python", &policy, &host);
    assert!(!never.ready && never.best_effort.is_none());
}
