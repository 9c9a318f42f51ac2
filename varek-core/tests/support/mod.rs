//! What the tests of this folder share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::Write as _;
use std::time::Duration;

use varek_core::{Command, Error, Outcome, Policy, Sandbox};

/// Says that a test cannot run on this host. Where the environment asks for all tests, that is a failure.
pub fn not_run(name: &str, reason: &str) {
    let line = format!("not run: {name}: {}", reason.replace('\n', " "));
    assert!(std::env::var_os("VAREK_TEST_REQUIRE").is_none(), "{line}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("VAREK_NOT_RUN_FILE") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        writeln!(file.unwrap(), "{line}").unwrap();
    }
}

/// A sandbox for this policy, or `None` where the host cannot have one, which is said.
pub fn sandbox_or_not_run(name: &str, policy: Policy) -> Option<Sandbox> {
    match Sandbox::new(policy) {
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

/// The Python preset with ten seconds of wall clock.
pub fn python() -> Policy {
    Policy::python().wall_clock(Duration::from_secs(10))
}

/// Runs Python source, which the host must be able to start.
pub fn run(sandbox: &Sandbox, source: &str) -> Outcome {
    sandbox.run(Command::python(source)).unwrap()
}
