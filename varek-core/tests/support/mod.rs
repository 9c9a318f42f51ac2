//! What the tests of this folder share.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    unreachable_pub,
    reason = "a module of test programs, which export nothing"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

pub mod bystander;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use varek_core::{
    Cause, Cleanup, Command, DeniedCall, Error, Event, Host, Layer, LayerStatus, LimitHit,
    NamespaceRefusal, Outcome, Policy, Resource, Sandbox, SandboxBuilder, Termination,
    UserNamespaces,
};

/// Says that a test cannot run on this host. Where the environment asks for all tests, that is a failure.
pub fn not_run(name: &str, reason: &str) {
    let line = format!("not run: {name}: {}", reason.replace('\n', " "));
    assert!(std::env::var_os("VAREK_TEST_REQUIRE").is_none(), "{line}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("VAREK_NOT_RUN_FILE") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        // In one write: tests run side by side.
        let line = line + "\n";
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Whether this embedder is root.
pub fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether guests have a scratch directory of their own file system, which takes mounts; it is in the presets.
pub fn bounded(sandbox: &Sandbox) -> bool {
    let status = sandbox.enforcement().status(Layer::Scratch);
    matches!(status, Some(LayerStatus::Enforced { .. }))
}

/// Whether this embedder is root, so that guests have a uid of their own; says so where it is not.
pub fn own_uids(test: &str) -> bool {
    if !root() {
        not_run(
            test,
            "guests have a uid of their own only where the embedder is root",
        );
    }
    root()
}

/// Whether a seccomp filter around this program refuses namespaces and mounts, as those of container runtimes do.
/// What it refuses does not come as far as the guest's own filter, and so is on no record.
pub fn filtered_outside(name: &str) -> bool {
    let host = Host::probe();
    let by = NamespaceRefusal::Filter;
    let filtered =
        matches!(host.user_namespaces, UserNamespaces::Refused { by: who, .. } if who == by);
    if filtered {
        not_run(
            name,
            "a seccomp filter around this program refuses it first",
        );
    }
    filtered
}

/// A sandbox for this policy, or `None` where the host cannot have one, which is said.
pub fn sandbox_or_not_run(name: &str, policy: Policy) -> Option<Sandbox> {
    built_or_not_run(name, Sandbox::builder(policy))
}

/// What a sink was given, whole when the sandbox is gone.
pub type Recorded = Arc<Mutex<Vec<Event>>>;

/// As [`sandbox_or_not_run`], of a sandbox whose events are recorded.
pub fn recording_or_not_run(name: &str, policy: Policy) -> Option<(Sandbox, Recorded)> {
    let events = Recorded::default();
    let seen = events.clone();
    let sink = move |event: &Event| seen.lock().unwrap().push(event.clone());
    let sandbox = built_or_not_run(name, Sandbox::builder(policy).sink(sink))?;
    Some((sandbox, events))
}

fn built_or_not_run(name: &str, builder: SandboxBuilder) -> Option<Sandbox> {
    match builder.build() {
        Ok(sandbox) => Some(sandbox),
        Err(error @ (Error::Unsupported { .. } | Error::Group { .. })) => {
            not_run(name, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The sandbox of a test: `sandbox!(policy)` gives it, or ends the test as not run.
#[macro_export]
macro_rules! sandbox {
    ($policy:expr) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        match support::sandbox_or_not_run(name, $policy) {
            Some(sandbox) => sandbox,
            None => return,
        }
    }};
}

/// How many times slower this machine is than one for which the bounds in these tests are generous, at least 1. Under
/// an emulated processor, or among many other programs, a start of Python takes a second.
pub fn pace() -> u32 {
    const QUICK: u128 = 40;
    static PACE: LazyLock<u32> = LazyLock::new(|| {
        let start = Instant::now();
        let python = std::process::Command::new("python3")
            .args(["-I", "-c", "pass"])
            .output();
        let took = start.elapsed().as_millis();
        python
            .map_or(1, |_| u32::try_from(took / QUICK).unwrap_or(u32::MAX))
            .clamp(1, 60)
    });
    *PACE
}

/// A bound of so many seconds on a quick machine.
pub fn seconds(count: u64) -> Duration {
    Duration::from_secs(count) * pace()
}

/// So many repetitions on a quick machine, and at least a tenth of them on any.
pub fn times(count: usize) -> usize {
    count / usize::try_from(pace().min(10)).unwrap()
}

/// The Python preset with ten seconds of wall clock, and two of grace, on a quick machine.
pub fn python() -> Policy {
    Policy::python().wall_clock(seconds(10)).grace(seconds(2))
}

/// Runs Python source, which the host must be able to start.
pub fn run(sandbox: &Sandbox, source: &str) -> Outcome {
    sandbox.run(Command::python(source)).unwrap()
}

/// What the guest wrote to its stdout.
pub fn text(outcome: &Outcome) -> String {
    outcome.stdout.to_text().into_owned()
}

/// Nothing is left of the run, and VAREK saw everything that it should have seen.
#[track_caller]
pub fn assert_gone(outcome: &Outcome) {
    assert_eq!(outcome.cleanup, Cleanup::Complete, "{outcome}");
    assert_eq!(outcome.faults, Vec::<String>::new(), "{outcome}");
}

/// The guest exited with 0 and met no boundary.
#[track_caller]
pub fn assert_clean(outcome: &Outcome) {
    let stderr = outcome.stderr.to_text();
    assert_eq!(
        outcome.termination,
        Termination::Exited(0),
        "{outcome}\n{stderr}"
    );
    assert_eq!(outcome.violation(), None, "{outcome}\n{stderr}");
    assert_gone(outcome);
}

/// VAREK killed the guest for this cause.
#[track_caller]
pub fn assert_killed(outcome: &Outcome, cause: &Cause) {
    let output = (outcome.stdout.to_text(), outcome.stderr.to_text());
    assert_eq!(
        outcome.termination,
        Termination::Killed(cause.clone()),
        "{outcome}\n{output:?}"
    );
    assert!(outcome.violation().is_some(), "{outcome}");
    assert_gone(outcome);
}

/// The record of a denied call.
#[track_caller]
pub fn denied<'a>(outcome: &'a Outcome, call: &str) -> &'a DeniedCall {
    let found = outcome.denials.iter().find(|(name, _)| *name == call);
    let stderr = outcome.stderr.to_text();
    found
        .unwrap_or_else(|| panic!("{call} is no denied call of: {outcome}\n{stderr}"))
        .1
}

/// The limits of this resource that the run met.
pub fn hits(outcome: &Outcome, resource: Resource) -> Vec<&LimitHit> {
    outcome
        .limits_hit
        .iter()
        .filter(|hit| hit.resource == resource)
        .collect()
}

/// The one limit of this resource that the run met.
#[track_caller]
pub fn hit(outcome: &Outcome, resource: Resource) -> &LimitHit {
    match hits(outcome, resource)[..] {
        [hit] => hit,
        _ => panic!("not one hit of {resource}: {outcome}"),
    }
}

/// Runs Python source without a sandbox, as the embedder, and gives its stdout: what the same source does
/// where nothing holds it back.
#[track_caller]
pub fn unconfined(source: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("python3")
        .args(["-c", source])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A directory that guests can walk through, whatever the umask of whoever runs the tests.
pub fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Compiles a static C program to `directory/name`; `None`, which is said, where this host has no compiler.
pub fn compiled(
    test: &str,
    directory: &Path,
    name: &str,
    source: &str,
    options: &[&str],
) -> Option<PathBuf> {
    let (text, program) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&text, source).unwrap();
    let compiler = std::process::Command::new("cc")
        .args(["-static", "-O1", "-w"])
        .args(options)
        .arg("-o")
        .args([&program, &text])
        .output();
    match compiler {
        Ok(output) if output.status.success() => {
            // Not left to the umask of whoever runs the tests.
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            Some(program)
        }
        Ok(output) => {
            not_run(
                test,
                &format!("cc -static: {}", String::from_utf8_lossy(&output.stderr)),
            );
            None
        }
        Err(error) => {
            not_run(test, &format!("cc: {error}"));
            None
        }
    }
}
