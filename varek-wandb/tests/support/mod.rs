//! What the tests of this folder share: the server of `tests/server`, and the official client.
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

pub mod client;
pub mod scenario;
pub mod server;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

/// Below `varek-wandb/tests`, from the tests of any package beside it.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../varek-wandb/tests")
        .join(path)
}

/// Polls until there is something, for at most a minute.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that writes no bytecode beside what it imports.
pub fn python(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command
}

/// Fails with what was printed.
pub fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    text
}
