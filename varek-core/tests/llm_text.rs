//! What a language model is told of real runs: golden files, in which times and counts of memory are left out.
//! `VAREK_BLESS=1` writes the ones that are missing.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::path::Path;

use support::{not_run, python, run, seconds};
use varek_core::{
    ArgumentDetail, Cause, Command, Layer, LayerStatus, MIB, Outcome, Sandbox, Termination,
};

/// The text without what differs from run to run.
fn settled(outcome: &Outcome, budget: usize) -> String {
    let text = outcome.to_llm_text(budget);
    assert!(text.len() <= budget, "{text}");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in lines.iter_mut().filter(|line| !line.starts_with("| ")) {
        let mut words: Vec<_> = line.split(' ').collect();
        if let Some(at) = words.iter().position(|word| *word == "after") {
            words[at + 1] = "SOME";
            words[at + 2] = if words[at + 2].ends_with(':') {
                "TIME:"
            } else {
                "TIME."
            };
        } else if ["stdout,", "stderr,"].contains(&words[0]) {
            // Where scratch is is in it.
            words[1] = "SOME";
        }
        *line = words.join(" ");
    }
    lines.join("\n") + "\n"
}

#[track_caller]
fn golden(name: &str, outcome: &Outcome) {
    let text = settled(outcome, 2000);
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/llm_text")
        .join(name);
    if std::env::var_os("VAREK_BLESS").is_some() && !path.exists() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(text, golden, "{name}: {outcome}");
}

fn reports(sandbox: &Sandbox, test: &str) -> bool {
    let status = sandbox.enforcement().status(Layer::DenialReports);
    let reported = matches!(status, Some(LayerStatus::Enforced { .. }));
    if !reported {
        not_run(test, "this host does not report denied calls");
    }
    reported
}

#[test]
fn a_refused_program_and_a_failure_are_told_with_what_to_do() {
    let sandbox = sandbox!(python().record_arguments(ArgumentDetail::Full));
    if !reports(
        &sandbox,
        "a_refused_program_and_a_failure_are_told_with_what_to_do",
    ) {
        return;
    }
    let source = "import os, socket, sys
print('status', os.system('id'))
try:
    socket.socket()
except OSError as error:
    print(type(error).__name__)
sys.stdout.flush()
sys.exit('cannot go on in ' + os.getcwd() + '/data')";
    let outcome = run(&sandbox, source);
    golden("run_refused.txt", &outcome);
    let host = outcome.to_llm_text(usize::MAX);
    assert!(!host.contains("varek-"), "{host}");
}

#[test]
fn a_run_that_takes_too_long_is_told_its_limit() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)));
    let outcome = run(&sandbox, "print('begun', flush=True)\nwhile True: pass");
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::WallClock),
        "{outcome}"
    );
    let text = outcome.to_llm_text(2000);
    assert!(
        text.contains("still running at its time limit of "),
        "{text}"
    );
    assert!(text.ends_with("stdout, 6 bytes:\n| begun\n"), "{text}");
}

#[test]
fn a_run_that_needs_too_much_memory_is_told_its_limit() {
    let sandbox = sandbox!(python().memory(64 * MIB));
    let outcome = run(&sandbox, "x = bytearray(10**9)");
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::OutOfMemory),
        "{outcome}"
    );
    golden("run_memory.txt", &outcome);
}

#[test]
fn a_flood_with_escapes_is_cut_and_harmless() {
    let sandbox = sandbox!(python());
    let source = "import sys\nfor n in range(5000): sys.stdout.buffer.write(b'\\x1b[31m%05d\\xff\\r\\n' % n)";
    let outcome = run(&sandbox, source);
    let text = outcome.to_llm_text(1000);
    assert!((900..=1000).contains(&text.len()), "{text}");
    let (head, tail) = text.split_once("\n[... ").unwrap();
    assert!(
        head.contains(
            "\nstdout, 65,000 bytes:\n| \\x1b[31m00000\u{fffd}\n| \\x1b[31m00001\u{fffd}\n"
        ),
        "{text}"
    );
    assert!(tail.contains(" bytes left out ...]\n| "), "{text}");
    assert!(tail.ends_with("\n| \\x1b[31m04999\u{fffd}\n"), "{text}");
}

#[test]
fn a_program_of_the_command_s_own_is_named_by_its_place_in_scratch() {
    let sandbox = sandbox!(support_shell());
    let command = Command::new("./bin/tool").executable("bin/tool", "#!/bin/sh\necho \"$0\"\n");
    let outcome = sandbox.run(command).unwrap();
    golden("run_own.txt", &outcome);
}

fn support_shell() -> varek_core::Policy {
    varek_core::Policy::shell()
        .wall_clock(seconds(10))
        .grace(seconds(2))
}
