//! The programs as a person or a gate runs them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use serde_json::Value;
use support::run;
use varek_core::{Command, Sandbox};
use varek_examples::suite::{self, PAYLOADS, Payload};

#[test]
fn the_battery_passes_and_its_manifest_has_the_evidence() {
    guests_or_return!();
    let output = run(env!("CARGO_BIN_EXE_verification_battery"), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("5 of 5 checks passed."), "{stderr}");
    let manifest: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(manifest["schema_version"], "1");
    let time = manifest["generated_at"].as_str().unwrap();
    assert!(
        humantime::parse_rfc3339(time).is_ok() && time.ends_with('Z'),
        "{time}"
    );
    assert_eq!(
        manifest["summary"],
        serde_json::json!({"total": 5, "passed": 5, "failed": 0})
    );
    for fact in ["hostname", "platform", "python"] {
        assert!(
            !manifest["host"][fact].as_str().unwrap().is_empty(),
            "{fact}"
        );
    }
    let checks = manifest["checks"].as_array().unwrap();
    let names: Vec<_> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "backend_available",
            "configure_succeeds",
            "benign_payload",
            "execve_denied",
            "wallclock_enforced"
        ]
    );
    let execve = &checks[3]["measurements"];
    assert_eq!(execve["violation"]["denied"]["syscall"], "execve");
    assert_eq!(execve["execve_count"], 1);
    assert_eq!(execve["control"]["exit_code"], 0);
    assert_eq!(
        checks[4]["measurements"]["termination"]["killed"],
        "wall_clock"
    );
}

#[test]
fn the_battery_writes_its_manifest_to_a_file() {
    guests_or_return!();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifest.json");
    let output = run(
        env!("CARGO_BIN_EXE_verification_battery"),
        &["--output", path.to_str().unwrap()],
    );
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
    let manifest: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(manifest["summary"]["failed"], 0);
}

#[test]
fn the_suite_matches_and_its_malicious_rows_name_the_call() {
    guests_or_return!();
    let output = run(env!("CARGO_BIN_EXE_regression_suite"), &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    assert_eq!(
        (&report["all_matched"], &report["divergences"]),
        (&true.into(), &0.into())
    );
    let row = |name: &str| {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    let passthrough = row("documented_os_system_passthrough");
    assert_eq!(passthrough["exit_code"], 0);
    assert!(
        passthrough["violation"]
            .as_str()
            .unwrap()
            .starts_with("denied execve(")
    );
    assert!(
        row("malicious_socket_connect")["violation"]
            .as_str()
            .unwrap()
            .starts_with("denied socket(")
    );
    let endless = row("resource_infinite_loop");
    assert_eq!(
        (&endless["timed_out"], &endless["killed_by_signal"]),
        (&true.into(), &9.into())
    );
    let table = run(env!("CARGO_BIN_EXE_regression_suite"), &[]);
    assert!(
        String::from_utf8(table.stdout)
            .unwrap()
            .contains("8 of 8 payloads ended as expected.")
    );
}

fn payload(name: &str) -> &'static Payload {
    PAYLOADS
        .iter()
        .find(|payload| payload.name == name)
        .unwrap()
}

#[test]
fn a_guest_that_fails_for_another_reason_does_not_pass_for_a_denied_one() {
    guests_or_return!();
    let sandbox = Sandbox::new(suite::policy()).unwrap();
    let outcome = sandbox.run(Command::python("this is no Python")).unwrap();
    // The gates of the Python package would have taken this for a containment.
    assert!(outcome.contained());
    for name in [
        "malicious_subprocess_run",
        "malicious_socket_connect",
        "documented_os_system_passthrough",
    ] {
        let instead = payload(name).judge(&outcome).unwrap_err();
        assert!(instead.contains("no boundary event"), "{name}: {instead}");
    }
    // Nor does one denied call pass for another.
    let outcome = sandbox
        .run(payload("malicious_socket_connect").command())
        .unwrap();
    let instead = payload("malicious_subprocess_run")
        .judge(&outcome)
        .unwrap_err();
    assert!(instead.contains("denied socket"), "{instead}");
    // Nor does an exit code of 124 for a timeout.
    let outcome = sandbox
        .run(Command::python("raise SystemExit(124)"))
        .unwrap();
    assert!(payload("resource_infinite_loop").judge(&outcome).is_err());
}

#[test]
fn a_wider_policy_is_a_divergence() {
    guests_or_return!();
    let wider = suite::policy().syscalls(|calls| calls.allow_group(varek_core::SyscallGroup::Exec));
    let sandbox = Sandbox::new(wider).unwrap();
    for name in [
        "malicious_subprocess_run",
        "documented_os_system_passthrough",
    ] {
        let payload = payload(name);
        let outcome = sandbox.run(payload.command()).unwrap();
        assert!(payload.judge(&outcome).is_err(), "{name}: {outcome}");
    }
}

#[test]
fn the_quick_start_shows_an_answer_and_a_denial() {
    guests_or_return!();
    let output = run(env!("CARGO_BIN_EXE_quick_start"), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("stdout: 4\n"), "{text}");
    assert!(text.contains("violation: denied execve("), "{text}");
}

#[test]
fn the_demo_ends_with_every_row_as_expected_and_without_escapes() {
    guests_or_return!();
    let output = run(env!("CARGO_BIN_EXE_demo"), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("18 of 18 payloads ended as expected"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_doctor_reports_every_preset_and_its_exit_code_says_whether_all_can_be_used() {
    let output = run(env!("CARGO_BIN_EXE_doctor"), &["--json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    let presets = diagnosis["presets"].as_array().unwrap();
    let names: Vec<_> = presets
        .iter()
        .map(|preset| preset["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, varek_core::Policy::PRESETS);
    assert!(!diagnosis["host"]["kernel"].as_str().unwrap().is_empty());
    let mut all = true;
    for preset in presets {
        let ready = preset["ready"] == true;
        all &= ready;
        // Either what is in force or what is wrong, and never neither.
        assert_eq!(
            ready,
            preset["enforcement"] != serde_json::json!({}),
            "{preset}"
        );
        let wrong = preset["missing"] != serde_json::json!([]) || preset["error"] != Value::Null;
        assert_eq!(ready, !wrong, "{preset}");
    }
    assert_eq!(output.status.code(), Some(i32::from(!all)));
    let table = run(env!("CARGO_BIN_EXE_doctor"), &[]);
    assert!(
        String::from_utf8(table.stdout)
            .unwrap()
            .contains("preset python")
    );
}
