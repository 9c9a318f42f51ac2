//! The events of a run: which, in which order, with which counts, in every way in which runs end; and what is in none.
//!
//! That an outcome is the fold of its run's events is looked at in every run of every test: see `compare_with_events`.
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
use std::io::Read as _;
use std::time::Duration;

use support::{hits, not_run, python, recording_or_not_run, seconds};
use varek_core::telemetry::{AuditLog, Fanout, JsonLines, Record, records};
use varek_core::{
    Answer, ArgumentDetail, Arguments, Cause, Command, DenialBudget, Event, EventKind, Layer,
    LayerStatus, MIB, Outcome, Output, Overflow, Policy, Resource, Sandbox, Termination,
    TraceParent,
};

/// A kind, with what tells one apart from another.
fn name(kind: &EventKind) -> String {
    match kind {
        EventKind::SyscallDenied(denial) => format!("denied {}", denial.name()),
        EventKind::LimitHit(hit) => format!("limit {}", hit.resource),
        EventKind::KillIssued { cause } => format!("kill {cause:?}"),
        kind => kind.name().to_owned(),
    }
}

/// The events of one run, which the sandbox is dropped for, in words.
fn recorded(
    policy: Policy,
    test: &str,
    act: impl FnOnce(&Sandbox) -> Outcome,
) -> Option<(Outcome, Vec<Event>, Vec<String>)> {
    let (sandbox, events) = recording_or_not_run(test, policy)?;
    let outcome = act(&sandbox);
    drop(sandbox);
    let events = std::mem::take(&mut *events.lock().unwrap());
    for (sequence, event) in events.iter().enumerate() {
        assert_eq!(event.run, outcome.run);
        assert_eq!(event.sequence, sequence as u64, "{events:?}");
    }
    assert!(events.is_sorted_by_key(|event| event.elapsed), "{events:?}");
    let names = events.iter().map(|event| name(&event.kind)).collect();
    Some((outcome, events, names))
}

const BEGUN: [&str; 2] = ["run_started", "guest_started"];
const ENDED: [&str; 2] = ["guest_exited", "run_finished"];

fn whole(between: &[&str]) -> Vec<String> {
    let all = BEGUN.iter().chain(between).chain(&ENDED);
    all.map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_end_of_a_run_has_its_events_in_their_order() {
    let python_source = |source: &str| {
        let command = Command::python(source);
        move |sandbox: &Sandbox| sandbox.run(command).unwrap()
    };
    let cases: [(&str, Policy, &str, &[&str]); 7] = [
        ("an exit", python(), "pass", &[]),
        ("a failure", python(), "raise SystemExit(3)", &[]),
        (
            "a signal",
            python(),
            "import os\nos.kill(os.getpid(), 9)",
            &["guest_signaled"],
        ),
        (
            "denied calls",
            python(),
            "import socket\n\
             for family in (2, 10):\n\
             \x20   try: socket.socket(family)\n\
             \x20   except OSError: pass",
            &["denied socket", "denied socket"],
        ),
        (
            "output that is cut off",
            python().output(100, Overflow::Truncate),
            "print('x' * 1000)",
            &["output_truncated"],
        ),
        (
            "output that kills",
            python().output(100, Overflow::Kill),
            "import signal\nprint('x' * 1000, flush=True)\nsignal.pause()",
            &["limit output", "kill OutputLimit"],
        ),
        (
            "a wall clock",
            python().wall_clock(seconds(2)),
            "import signal\nsignal.pause()",
            &["deadline_passed", "limit wall clock", "kill WallClock"],
        ),
    ];
    let test = test_name!();
    for (case, policy, source, between) in cases {
        let Some((outcome, _, names)) = recorded(policy, test, python_source(source)) else {
            return;
        };
        if between.iter().any(|name| name.starts_with("denied")) && !reports(&outcome) {
            not_run(test, "denied calls are not reported");
            continue;
        }
        // One that was killed is seen to have ended when it has: before the kill was recorded or after.
        assert_eq!(names, whole(between), "{case}: {outcome}");
    }
}

fn reports(outcome: &Outcome) -> bool {
    let status = outcome.enforcement.status(Layer::DenialReports);
    matches!(status, Some(LayerStatus::Enforced { .. })) && !varek_core::Host::probe().outer_filter
}

#[test]
fn what_is_left_behind_cancelled_and_dropped_is_said() {
    let test = test_name!();
    let orphan = "import os, signal\n\
                  if os.fork() == 0:\n\
                  \x20   print('up', flush=True)\n\
                  \x20   signal.pause()\n\
                  os.read(0, 1)";
    let run = |sandbox: &Sandbox| {
        let input = varek_core::Input::piped();
        let command = Command::python(orphan).stdin(input).stdout(Output::piped());
        let mut child = sandbox.spawn(command).unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap()
    };
    let Some((outcome, events, names)) = recorded(python(), test, run) else {
        return;
    };
    let expected = ["guest_exited", "descendants_killed", "run_finished"];
    assert_eq!(names[2..], expected, "{outcome}");
    assert_eq!(
        events[3].kind,
        EventKind::DescendantsKilled { count: 1 },
        "{outcome}"
    );
    let cancelled = |sandbox: &Sandbox| {
        let mut child = sandbox.spawn(Command::python("while True: pass")).unwrap();
        child.kill();
        child.wait().unwrap()
    };
    let (outcome, _, names) = recorded(python(), test, cancelled).unwrap();
    assert_eq!(names, whole(&["kill Cancelled"]), "{outcome}");
}

#[test]
fn resources_that_are_used_up_are_events_with_their_limits() {
    let test = test_name!();
    let memory = |sandbox: &Sandbox| {
        sandbox
            .run(Command::python("x = bytearray(1 << 30)"))
            .unwrap()
    };
    let Some((outcome, events, names)) = recorded(python().memory(64 * MIB), test, memory) else {
        return;
    };
    assert!(names.contains(&"limit memory".into()), "{names:?}");
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::OutOfMemory),
        "{outcome}"
    );
    let limit = events.iter().find_map(|event| match &event.kind {
        EventKind::LimitHit(hit) if hit.resource == Resource::Memory => hit.limit,
        _ => None,
    });
    assert_eq!(limit, Some(64 * MIB));
    let forks = "import os\n\
                 for _ in range(20):\n\
                 \x20   try:\n\
                 \x20       if os.fork() == 0: os.read(0, 1); os._exit(0)\n\
                 \x20   except OSError: break";
    let pids = |sandbox: &Sandbox| {
        let command = Command::python(forks).stdin(varek_core::Input::piped());
        sandbox.spawn(command).unwrap().wait().unwrap()
    };
    let (outcome, _, names) = recorded(python().pids(6), test, pids).unwrap();
    assert!(names.contains(&"limit pids".into()), "{names:?}");
    assert_eq!(hits(&outcome, Resource::Pids).len(), 1, "{outcome}");
    let spin = |sandbox: &Sandbox| sandbox.run(Command::python("while True: pass")).unwrap();
    let policy = python().cpu_time(Duration::from_millis(300));
    let (outcome, _, names) = recorded(policy, test, spin).unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::CpuTime),
        "{outcome}"
    );
    assert!(names.contains(&"limit cpu time".into()), "{names:?}");
}

#[test]
fn a_storm_of_a_million_denied_calls_is_counted_in_few_events_and_ended_by_its_budget() {
    const STORM: u64 = 1_000_000;
    let test = test_name!();
    // On a slow machine as many as it makes in its time; the bound is the same.
    let storm = STORM / u64::from(support::pace());
    let policy = python()
        .wall_clock(Duration::from_secs(300))
        .denials(DenialBudget::new(storm, u64::MAX));
    let source = "import ctypes\n\
                  libc = ctypes.CDLL(None)\n\
                  while True: libc.socket(2, 1, 0)";
    let directory = support::open_directory();
    let c = "#include <sys/socket.h>\nint main(void) { for (;;) socket(2, 1, 0); }";
    let program = support::compiled(test, directory.path(), "storm", c, &[]);
    let run = |sandbox: &Sandbox| {
        let command = match &program {
            Some(program) => Command::new(program),
            None => Command::python(source),
        };
        sandbox.run(command).unwrap()
    };
    let policy = match &program {
        Some(program) => policy.execute(program),
        None => policy,
    };
    let Some((outcome, events, _)) = recorded(policy, test, run) else {
        return;
    };
    if !reports(&outcome) {
        return not_run(test, "denied calls are not reported");
    }
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::DenialBudget),
        "{outcome}"
    );
    assert_eq!(outcome.denials.count("socket"), storm + 1, "{outcome}");
    let counted = events.iter().filter_map(|event| match &event.kind {
        EventKind::SyscallDenied(denial) => Some(denial.count),
        _ => None,
    });
    assert_eq!(counted.sum::<u64>(), storm + 1);
    // 64 and one a tenth of a second, and nothing was dropped.
    let tenths = outcome.usage.wall_clock.as_millis() / 100 + 2;
    assert!(events.len() as u128 <= tenths * 65 + 8, "{}", events.len());
    assert!(
        events
            .iter()
            .all(|event| !matches!(event.kind, EventKind::EventsDropped { .. }))
    );
}

/// What both logs say of one run.
fn logged(policy: Policy, command: Command, test: &str) -> Option<[String; 2]> {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["lines", "audit"].map(|name| directory.path().join(name));
    let lines = JsonLines::open(&paths[0]).unwrap();
    let audit = AuditLog::open(&paths[1]).unwrap();
    let sink = Fanout::new().with(lines).with(audit);
    let sandbox = match Sandbox::builder(policy).sink(sink).build() {
        Ok(sandbox) => sandbox,
        Err(error) => {
            not_run(test, &error.to_string());
            return None;
        }
    };
    sandbox.run(command).unwrap();
    assert_eq!(sandbox.sink_fault(), None);
    drop(sandbox);
    Some(paths.map(|path| fs::read_to_string(path).unwrap()))
}

#[test]
fn secrets_of_the_embedder_are_in_no_log_and_arguments_as_the_policy_says() {
    const ENVIRONMENT: &str = "secret-of-the-environment";
    const ARGUMENT: &str = "secret-of-an-argument";
    const OUTPUT: &str = "secret-of-the-output";
    const FILE: &str = "secret-of-a-file";
    let command = || {
        Command::python(format!(
            "import socket, sys\nprint('{OUTPUT}')\ntry: socket.socket()\nexcept OSError: pass"
        ))
        .arg(ARGUMENT)
        .env("TOKEN", ENVIRONMENT)
        .file("file", FILE)
        .stdin(varek_core::Input::bytes(OUTPUT))
    };
    for (detail, shown) in [
        (ArgumentDetail::None, false),
        (ArgumentDetail::Digest, false),
        (ArgumentDetail::Full, true),
    ] {
        let policy = python()
            .env("POLICY_TOKEN", ENVIRONMENT)
            .record_arguments(detail);
        let Some(logs) = logged(policy, command(), test_name!()) else {
            return;
        };
        for log in &logs {
            for secret in [ENVIRONMENT, OUTPUT, FILE] {
                assert!(!log.contains(secret), "{secret}: {log}");
            }
            assert_eq!(log.contains(ARGUMENT), shown, "{detail:?}: {log}");
            let started = records(log.as_bytes()).find_map(|record| match record {
                Ok(Record::Known(event)) => match event.kind {
                    EventKind::RunStarted { arguments, .. } => Some(arguments),
                    _ => None,
                },
                _ => None,
            });
            // main.py and the argument.
            let started = started.unwrap();
            assert_eq!(started.count(), 2, "{started:?}");
            let form = matches!(
                (detail, &started),
                (ArgumentDetail::None, Arguments::None { .. })
                    | (ArgumentDetail::Digest, Arguments::Digest { .. })
                    | (ArgumentDetail::Full, Arguments::Full { .. })
            );
            assert!(form, "{detail:?}: {started:?}");
        }
    }
}

/// A guest that makes paths, names of sockets and attributes of the secrets that it was given: denied calls all of them.
const TELLS: &str = "\
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
for secret in (os.environb[b'TOKEN'], os.environb[b'POLICY_TOKEN'], sys.argv[1].encode()):
    libc.unlinkat(-100, secret, 0)
    libc.execve(secret, None, None)
    libc.connect(0, struct.pack('=H', 1) + secret, 2 + len(secret))
    libc.connect(0, struct.pack('=HB', 1, 0) + secret, 3 + len(secret))
    libc.lsetxattr(b'/', secret, b'', 0, 0)
";

#[test]
fn secrets_that_a_guest_makes_paths_of_are_in_no_log_unless_the_policy_records_arguments_in_full() {
    const SECRETS: [&str; 3] = [
        "secret-of-the-environment",
        "secret-of-the-policy",
        "secret-of-an-argument",
    ];
    let test = test_name!();
    let command = || {
        Command::python(TELLS)
            .arg(SECRETS[2])
            .env("TOKEN", SECRETS[0])
    };
    let logs_under = |detail| {
        let policy = python()
            .env("POLICY_TOKEN", SECRETS[1])
            .record_arguments(detail)
            .syscalls(|calls| calls.deny(["unlinkat", "lsetxattr"]));
        logged(policy, command(), test)
    };
    // Of a machine that does much else, a reader may come too late.
    for tried in 0..10 {
        let Some(logs) = logs_under(ArgumentDetail::Full) else {
            return;
        };
        if !logs[0].contains("syscall_denied") {
            return not_run(test, "denied calls are not reported");
        }
        let forms = |log: &String| {
            let forms = SECRETS.map(|secret| {
                let forms = [
                    format!(r#"unlinkat(AT_FDCWD, unverified:\"{secret}\", 0)"#),
                    format!(r#"execve(unverified:\"{secret}\", NULL, NULL)"#),
                    format!(r#"connect(0, unverified:unix:\"{secret}\", "#),
                    format!(r#"connect(0, unverified:unix:@\"{secret}\", "#),
                    format!(r#"lsetxattr(unverified:\"/\", unverified:\"{secret}\", "#),
                ];
                forms.iter().all(|form| log.contains(form))
            });
            forms == [true; 3]
        };
        if logs.iter().all(forms) {
            break;
        }
        assert!(tried < 9, "{}", logs[0]);
    }
    for detail in [ArgumentDetail::None, ArgumentDetail::Digest] {
        for log in logs_under(detail).unwrap() {
            assert_eq!(log.matches("syscall_denied").count(), 15, "{log}");
            for secret in SECRETS {
                assert!(!log.contains(secret), "{detail:?} {secret}: {log}");
            }
        }
    }
}

#[test]
fn the_span_that_a_command_names_is_in_the_event_of_its_start_and_is_not_the_guest_s_to_see() {
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let parent: TraceParent = text.parse().unwrap();
    let source = "import os, sys\nprint(sys.argv[1:], os.environ)";
    for named in [Some(parent), None] {
        let run = |sandbox: &Sandbox| {
            let command = Command::python(source);
            sandbox
                .run(match named {
                    Some(parent) => command.traceparent(parent),
                    None => command,
                })
                .unwrap()
        };
        let Some((outcome, events, _)) = recorded(python(), test_name!(), run) else {
            return;
        };
        let EventKind::RunStarted { traceparent, .. } = &events[0].kind else {
            panic!("{events:?}")
        };
        assert_eq!(*traceparent, named);
        assert!(!outcome.stdout.to_text().contains("b7ad6b7169203331"));
        let written = serde_json::to_string(&events[0]).unwrap();
        assert_eq!(written.contains(text), named.is_some(), "{written}");
    }
}

#[test]
fn a_sink_that_panics_is_reported() {
    let panics = |_: &Event| panic!("a sink of the tests, on purpose");
    let Ok(sandbox) = Sandbox::builder(python()).sink(panics).build() else {
        return not_run(test_name!(), "this host has no sandboxes");
    };
    assert!(sandbox.run(Command::python("pass")).unwrap().success());
    assert!(embedder::until(|| sandbox.sink_fault().is_some()));
}

#[test]
fn a_denied_call_is_decoded_with_its_flags() {
    let source = "import socket\n\
                  try: socket.socket(socket.AF_INET, socket.SOCK_STREAM)\n\
                  except OSError: pass";
    let run = |sandbox: &Sandbox| sandbox.run(Command::python(source)).unwrap();
    let Some((outcome, _, _)) = recorded(python(), test_name!(), run) else {
        return;
    };
    if !reports(&outcome) {
        return not_run(test_name!(), "denied calls are not reported");
    }
    let (_, call) = outcome.denials.iter().next().unwrap();
    assert_eq!(
        call.first.decoded(),
        "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, 0)"
    );
    assert!(matches!(call.first.answer, Answer::Errno(_)));
}
