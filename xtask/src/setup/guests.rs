//! Guests that tests run: compilers and runtimes of the distribution, and packages from PyPI.
//!
//! They are worth having and nothing depends on them: where they cannot be had (no network, no right to install, no `venv`
//! module) the tests that want them report "not run", and the set-up goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::needs;
use crate::workspace::Workspace;
use crate::{process, ui};

/// What the tests import; what these need comes along.
const PACKAGES: [&str; 3] = ["numpy", "pandas", "matplotlib"];

/// The file that says which packages are there. It is written last, so that half an environment is none; the tests of
/// `varek-core` look for it.
const COMPLETE: &str = "complete";

/// Installs what is missing, each for itself, and makes the virtual environment `guests/python` in the target directory.
pub(crate) fn prepare(workspace: &Workspace) {
    for (need, error) in super::wish(workspace, needs::GUESTS) {
        ui::say(&format!(
            "Guests: there is no {need}; tests with it report \"not run\". {error:#}."
        ));
    }
    let place = workspace.target.join("guests").join("python");
    match environment(&place) {
        Ok(()) => ui::say(&format!(
            "Guests: {} are in {}.",
            PACKAGES.join(", "),
            place.display()
        )),
        Err(error) => ui::say(&format!(
            "Guests: {} are not there; tests with them report \"not run\". {error:#}.",
            PACKAGES.join(", ")
        )),
    }
}

fn environment(place: &Path) -> Result<()> {
    if is_complete(place) {
        return Ok(());
    }
    let python = needs::program("python3").context("there is no python3 in the search path")?;
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    ui::headline("Guests: packages from PyPI");
    let mut venv = readable_by_all(&python);
    venv.args(["-m", "venv"]).arg(place);
    process::run(venv)?;
    let mut pip = readable_by_all(&interpreter(place));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ])
    .args(["--only-binary=:all:", "--retries=1", "--timeout=15"])
    .args(PACKAGES);
    process::run(pip)?;
    fs::write(place.join(COMPLETE), PACKAGES.join("\n"))
        .with_context(|| format!("cannot write to {}", place.display()))
}

/// The interpreter is a link to one outside, which may have been removed since.
fn is_complete(place: &Path) -> bool {
    let packages = fs::read_to_string(place.join(COMPLETE));
    packages.is_ok_and(|packages| packages == PACKAGES.join("\n")) && interpreter(place).exists()
}

fn interpreter(place: &Path) -> PathBuf {
    place.join("bin/python")
}

/// A command whose files everybody may read, whatever the caller's umask: guests have a uid of their own.
fn readable_by_all(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 022 && exec \"$@\"", "sh"])
        .arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_environment_is_none_and_neither_is_one_of_other_packages() {
        let place = std::env::temp_dir().join(format!("xtask-guests-{}", std::process::id()));
        fs::create_dir_all(place.join("bin")).unwrap();
        assert!(!is_complete(&place));
        fs::write(interpreter(&place), "").unwrap();
        assert!(!is_complete(&place));
        fs::write(place.join(COMPLETE), "numpy").unwrap();
        assert!(!is_complete(&place));
        fs::write(place.join(COMPLETE), PACKAGES.join("\n")).unwrap();
        assert!(is_complete(&place));
        fs::remove_file(interpreter(&place)).unwrap();
        assert!(!is_complete(&place));
        fs::remove_dir_all(&place).unwrap();
    }
}
