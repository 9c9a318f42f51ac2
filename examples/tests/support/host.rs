//! What tests ask of the host; those of `varek-frameworks` use it as well.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use varek_core::{Error, Layer, Policy, Sandbox};

/// Says that a test cannot run on this host. Where the environment asks for all tests, that is a failure.
pub(crate) fn not_run(name: &str, reason: &str) {
    let line = format!("not run: {name}: {}", reason.replace('\n', " "));
    assert!(
        std::env::var_os("VAREK_TEST_REQUIRE").is_none_or(|value| value != "all"),
        "{line}"
    );
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

/// Whether guests can run here, and this program is where the presets look for it. If not, the test of this
/// name is said not to be run.
pub(crate) fn can_run(name: &str, program: &str) -> bool {
    match Sandbox::new(Policy::python()) {
        Ok(sandbox) => {
            let places = &sandbox.policy().search_path;
            let found = places.iter().any(|place| place.join(program).exists());
            if !found {
                not_run(name, &format!("no {program} in the policy's search_path"));
            }
            found
        }
        Err(error @ (Error::Unsupported { .. } | Error::Group { .. })) => {
            not_run(name, &error.to_string());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether denied calls are reported here. If not, the test of this name is said not to be run.
pub(crate) fn can_report(name: &str) -> bool {
    match Sandbox::new(Policy::python().require(Layer::DenialReports)) {
        Ok(_) => true,
        Err(error @ Error::Unsupported { .. }) => {
            not_run(name, &error.to_string());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Ends the test as not run where guests cannot run, or the named program (`python3` unless it is said) is
/// not there.
#[macro_export]
macro_rules! guests_or_return {
    () => {
        guests_or_return!("python3")
    };
    ($program:expr) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        if !support::can_run(name, $program) {
            return;
        }
    }};
}

/// Ends the test as not run where guests cannot run, or what they are denied is not reported.
#[macro_export]
macro_rules! reports_or_return {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        if !support::can_run(name, "python3") || !support::can_report(name) {
            return;
        }
    }};
}

/// An example of cargo's, built beside the test that asks for it. Cargo builds the two together where it tests a whole package, which
/// a test of one file alone has to be told.
pub(crate) fn example(source: &Path) -> PathBuf {
    let name = source.file_stem().unwrap();
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().with_file_name("examples").join(name);
    let changed = |path: &Path| fs::metadata(path).and_then(|facts| facts.modified());
    let built = changed(&program).is_ok_and(|built| built >= changed(source).unwrap());
    assert!(
        built,
        "{} is not there, or older than its source; test the whole package",
        program.display()
    );
    program
}

/// Something that `cargo xtask setup` installs for tests, where it is complete. If not, the test of this name is said not to be run.
pub(crate) fn installed(name: &str, what: &str) -> Option<PathBuf> {
    // The target directory is where this very program is: target/debug/deps/NAME.
    let test = std::env::current_exe().unwrap();
    let place = test.ancestors().nth(3).unwrap().join("guests").join(what);
    if place.join("complete").is_file() {
        return Some(place);
    }
    not_run(
        name,
        &format!("no {what}, which `cargo xtask setup` installs"),
    );
    None
}
