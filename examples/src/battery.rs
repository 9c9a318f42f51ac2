//! Five checks that tell whether a host keeps VAREK's promises, as a manifest for a gate.
//!
//! A denial passes with the kernel's evidence alone, and only where the same program succeeds under a wider
//! policy.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value, json};
use varek_core::{Command, Error, Host, LayerStatus, Outcome, Policy, Sandbox, SyscallGroup};

use crate::evidence::{self, Judged};

/// Version of the manifest's format.
pub const SCHEMA_VERSION: &str = "1";

/// Everything that the battery found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// [`SCHEMA_VERSION`].
    pub schema_version: &'static str,
    /// When, as ISO 8601 in UTC.
    pub generated_at: String,
    /// Where.
    pub host: Facts,
    /// The digest of the policy that was tried.
    pub policy: String,
    /// The figures.
    pub summary: Summary,
    /// Every check, in order.
    pub checks: Vec<Check>,
}

/// Where a battery ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The machine's name.
    pub hostname: String,
    /// Operating system, kernel and architecture.
    pub platform: String,
    /// The version of the Python that the guests run; empty where it did not run.
    pub python: String,
}

/// How many checks passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// All of them.
    pub total: usize,
    /// Those that passed.
    pub passed: usize,
    /// Those that did not.
    pub failed: usize,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Its name, kept from version to version.
    pub name: &'static str,
    /// Whether it passed.
    pub passed: bool,
    /// The evidence, or what is there instead.
    pub detail: String,
    /// What was measured.
    pub measurements: Map<String, Value>,
}

/// The policy that is tried.
pub fn policy() -> Policy {
    Policy::python().wall_clock(Duration::from_secs(10))
}

/// The wall clock of the program that never ends.
const LOOP_LIMIT: Duration = Duration::from_secs(1);

const EXECVE: &str =
    "import subprocess\nsubprocess.run(['/bin/echo', 'a program ran'], check=True)";

impl Manifest {
    /// Whether every check passed.
    pub fn all_green(&self) -> bool {
        self.summary.failed == 0
    }
}

/// Runs every check; `before` hears each name first. A host that cannot run guests fails checks, it is no
/// error.
pub fn run(mut before: impl FnMut(&str)) -> Manifest {
    let host = Host::probe();
    let mut checks = Vec::new();
    let mut check = |name: &'static str, result: (Judged, Map<String, Value>)| {
        let (judged, measurements) = result;
        let passed = judged.is_ok();
        let detail = judged.unwrap_or_else(|instead| instead);
        checks.push(Check {
            name,
            passed,
            detail,
            measurements,
        });
    };

    before("backend_available");
    check("backend_available", backend_available(&host));
    before("configure_succeeds");
    let (sandbox, configured) = configure_succeeds(&host);
    check("configure_succeeds", configured);
    let mut python = String::new();
    let tries: [(&'static str, Try); 3] = [
        ("benign_payload", benign_payload),
        ("execve_denied", execve_denied),
        ("wallclock_enforced", wallclock_enforced),
    ];
    if let Some(sandbox) = &sandbox {
        python = python_version(sandbox).unwrap_or_default();
    }
    for (name, check_of) in tries {
        before(name);
        let result = match &sandbox {
            None => (
                Err("there is no sandbox: see configure_succeeds".into()),
                Map::new(),
            ),
            Some(sandbox) => match check_of(sandbox) {
                Ok(result) => result,
                Err(error) => (Err(evidence::chain(&error)), Map::new()),
            },
        };
        check(name, result);
    }

    let passed = checks.iter().filter(|check| check.passed).count();
    Manifest {
        schema_version: SCHEMA_VERSION,
        generated_at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        host: Facts {
            hostname: hostname(),
            platform: platform(&host),
            python,
        },
        policy: policy().digest(),
        summary: Summary {
            total: checks.len(),
            passed,
            failed: checks.len() - passed,
        },
        checks,
    }
}

/// A check that runs a guest.
type Try = fn(&Sandbox) -> Tried;

/// A verdict and what was measured; an error where VAREK itself failed.
type Tried = Result<(Judged, Map<String, Value>), Error>;

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn platform(host: &Host) -> String {
    format!("Linux-{}-{}", host.kernel, host.architecture)
}

fn python_version(sandbox: &Sandbox) -> Option<String> {
    let outcome = sandbox
        .run(Command::python("import sys\nprint(sys.version.split()[0])"))
        .ok()?;
    outcome
        .success()
        .then(|| outcome.stdout.to_text().trim().to_owned())
}

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// The kernel offers what a filter, groups and Landlock need.
fn backend_available(host: &Host) -> (Judged, Map<String, Value>) {
    let needs = [
        (host.unsupported.is_none(), "a supported system"),
        (host.seccomp_filter, "seccomp filters"),
        (
            host.killable_notification,
            "killable seccomp notifications (Linux 5.19)",
        ),
        (host.landlock.version().is_some(), "Landlock"),
        (host.groups.usable(), "a writable cgroup2 tree"),
        (host.groups.kill, "cgroup.kill"),
    ];
    let lacking: Vec<_> = needs
        .iter()
        .filter(|(there, _)| !there)
        .map(|(_, name)| *name)
        .collect();
    let judged = if lacking.is_empty() {
        Ok(format!(
            "Linux {}: {}; {}",
            host.kernel, host.landlock, host.groups.description
        ))
    } else {
        Err(format!("the host has no {}", lacking.join(", no ")))
    };
    let measurements = map(json!({
        "kernel": host.kernel,
        "landlock_abi": host.landlock.version(),
        "controllers": host.groups.controllers,
        "uid": host.uid,
    }));
    (judged, measurements)
}

/// A sandbox is made, with every layer in force that the policy requires. What it wants where the host has it is named.
fn configure_succeeds(host: &Host) -> (Option<Sandbox>, (Judged, Map<String, Value>)) {
    let start = std::time::Instant::now();
    match Sandbox::builder(policy()).host(host.clone()).build() {
        Err(error) => (None, (Err(evidence::chain(&error)), Map::new())),
        Ok(sandbox) => {
            let enforcement = sandbox.enforcement();
            let best_effort = policy().best_effort;
            let (spared, missing): (Vec<_>, Vec<_>) = enforcement
                .missing()
                .partition(|(layer, _)| best_effort.contains(layer));
            let in_force = enforcement
                .layers()
                .filter(|(_, status)| matches!(status, LayerStatus::Enforced { .. }))
                .count();
            let judged = if missing.is_empty() {
                let mut told = format!("{in_force} layers in force");
                for (layer, _) in spared {
                    let _ = write!(told, "; {layer} is best effort and not there");
                }
                Ok(told)
            } else {
                let missing = missing.iter();
                let told = missing.map(|(layer, reason)| format!("{layer}: {reason}"));
                Err(told.collect::<Vec<_>>().join("; "))
            };
            let measurements = map(json!({
                "configure_s": start.elapsed().as_secs_f64(),
                "enforcement": enforcement,
            }));
            (Some(sandbox), (judged, measurements))
        }
    }
}

/// A program that does no harm is not hindered.
fn benign_payload(sandbox: &Sandbox) -> Tried {
    let outcome = sandbox.run(Command::python("print(sum(range(100)))"))?;
    let judged = evidence::printed(&outcome, "4950").and_then(|printed| {
        let clean = evidence::clean(&outcome)?;
        Ok(format!("{printed}, {}, {clean}", outcome.termination))
    });
    Ok((judged, measured(&outcome)))
}

/// No further program starts, and the filter is why: where the policy allows exec the same source works.
fn execve_denied(sandbox: &Sandbox) -> Tried {
    let outcome = sandbox.run(Command::python(EXECVE))?;
    let wider = policy().syscalls(|syscalls| syscalls.allow_group(SyscallGroup::Exec));
    let control = Sandbox::builder(wider)
        .host(sandbox.host().clone())
        .build()?;
    let control = control.run(Command::python(EXECVE))?;
    let judged = evidence::denied(&outcome, "execve").and_then(|denied| {
        evidence::exited(&outcome, 1)?;
        evidence::printed(&outcome, "")?;
        let succeeds = evidence::exited(&control, 0)
            .and_then(|_| evidence::printed(&control, "a program ran"))
            .and_then(|_| evidence::clean(&control));
        match succeeds {
            Ok(_) => Ok(format!(
                "{denied}; where the policy allows exec, the same program succeeds"
            )),
            Err(instead) => Err(format!(
                "{denied}; but where the policy allows exec: {instead}"
            )),
        }
    });
    let mut measurements = measured(&outcome);
    measurements.insert(
        "execve_count".into(),
        outcome.denials.count("execve").into(),
    );
    measurements.insert("control".into(), Value::Object(measured(&control)));
    Ok((judged, measurements))
}

/// A program that never ends is ended, tree and all.
fn wallclock_enforced(sandbox: &Sandbox) -> Tried {
    let hurried = policy().wall_clock(LOOP_LIMIT);
    let hurried = Sandbox::builder(hurried)
        .host(sandbox.host().clone())
        .build()?;
    let outcome = hurried.run(Command::python("while True:\n    pass"))?;
    let judged = evidence::wall_clock(&outcome);
    let mut measurements = measured(&outcome);
    measurements.insert("limit_s".into(), LOOP_LIMIT.as_secs_f64().into());
    Ok((judged, measurements))
}

fn measured(outcome: &Outcome) -> Map<String, Value> {
    let usage = &outcome.usage;
    map(json!({
        "exit_code": outcome.exit_code(),
        "termination": outcome.termination,
        "violation": outcome.violation(),
        "wall_clock_s": usage.wall_clock.as_secs_f64(),
        "cpu_s": (usage.cpu_user + usage.cpu_system).as_secs_f64(),
        "memory_peak": usage.memory_peak,
        "cleanup": outcome.cleanup,
    }))
}

#[cfg(test)]
mod tests {
    use varek_core::LandlockSupport;

    use super::*;

    #[test]
    fn a_host_without_a_mechanism_is_named_for_it() {
        let mut host = Host::probe();
        host.groups.kill = false;
        host.landlock = LandlockSupport::NotBuilt;
        let (judged, _) = backend_available(&host);
        let reason = judged.unwrap_err();
        assert!(
            reason.contains("no Landlock, no ") && reason.contains("no cgroup.kill"),
            "{reason}"
        );
    }
}
