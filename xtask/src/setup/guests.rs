//! Guests that tests run: compilers and runtimes of the distribution, and packages from PyPI.
//!
//! They are worth having and nothing depends on them: where they cannot be had (no network, no right to install, no `venv`
//! module) the tests that want them report "not run", and the set-up goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{needs, npm};
use crate::workspace::Workspace;
use crate::{process, ui};

/// The file that says which packages are there. It is written last, so that half an environment is none; the tests of
/// other packages look for it.
pub(super) const COMPLETE: &str = "complete";

/// A virtual environment in the target directory.
struct Environment {
    /// Its directory below `guests`.
    name: &'static str,
    packages: Packages,
}

/// What is in an environment.
enum Packages {
    /// These, in any version, and what they need.
    Named(&'static [&'static str]),
    /// What this file of the workspace lists, each in one version, and nothing else.
    Listed(&'static str),
}

/// Every environment. `python` has what guests import, the others have official clients: of the service that `varek-wandb` talks to,
/// and of the server that is an example.
const ENVIRONMENTS: [Environment; 4] = [
    Environment {
        name: "python",
        packages: Packages::Named(&["numpy", "pandas", "matplotlib"]),
    },
    Environment {
        name: "wandb-0.26.1",
        packages: Packages::Listed("varek-wandb/tests/reference/wandb-0.26.1.txt"),
    },
    Environment {
        name: "wandb-0.31.0",
        packages: Packages::Listed("varek-wandb/tests/reference/wandb-0.31.0.txt"),
    },
    Environment {
        name: "mcp-2.3.0",
        packages: Packages::Listed("examples/frameworks/tests/peers/mcp-2.3.0.txt"),
    },
];

/// Installs what is missing, each for itself, and makes the virtual environments.
pub(crate) fn prepare(workspace: &Workspace) {
    for (need, error) in super::wish(workspace, needs::GUESTS) {
        ui::say(&format!(
            "Guests: there is no {need}; tests with it report \"not run\". {error:#}."
        ));
    }
    for environment in &ENVIRONMENTS {
        let place = workspace.target.join("guests").join(environment.name);
        let made = environment
            .packages(workspace)
            .and_then(|packages| make(&place, &packages));
        ui::say(&match made {
            Ok(()) => format!("Guests: {} is in {}.", environment.name, place.display()),
            Err(error) => format!(
                "Guests: {} is not there; tests with it report \"not run\". {error:#}.",
                environment.name
            ),
        });
    }
    npm::prepare(workspace);
}

impl Environment {
    fn packages(&self, workspace: &Workspace) -> Result<Vec<String>> {
        match self.packages {
            Packages::Named(names) => Ok(names.iter().map(ToString::to_string).collect()),
            Packages::Listed(file) => {
                let path = workspace.root.join(file);
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let lines = text.lines().map(str::trim);
                // What is listed is all that is needed.
                let all = lines.filter(|line| !line.is_empty()).chain(["--no-deps"]);
                Ok(all.map(str::to_owned).collect())
            }
        }
    }
}

fn make(place: &Path, packages: &[String]) -> Result<()> {
    if is_complete(place, packages) {
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
    .args(packages);
    process::run(pip)?;
    fs::write(place.join(COMPLETE), packages.join("\n"))
        .with_context(|| format!("cannot write to {}", place.display()))
}

/// The interpreter is a link to one outside, which may have been removed since.
fn is_complete(place: &Path, packages: &[String]) -> bool {
    let there = fs::read_to_string(place.join(COMPLETE));
    there.is_ok_and(|there| there == packages.join("\n")) && interpreter(place).exists()
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
        let packages = ["numpy".to_owned(), "pandas".to_owned()];
        fs::create_dir_all(place.join("bin")).unwrap();
        assert!(!is_complete(&place, &packages));
        fs::write(interpreter(&place), "").unwrap();
        assert!(!is_complete(&place, &packages));
        fs::write(place.join(COMPLETE), "numpy").unwrap();
        assert!(!is_complete(&place, &packages));
        fs::write(place.join(COMPLETE), packages.join("\n")).unwrap();
        assert!(is_complete(&place, &packages));
        fs::remove_file(interpreter(&place)).unwrap();
        assert!(!is_complete(&place, &packages));
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn every_listed_package_has_one_version_and_the_client_the_one_it_is_named_for() {
        let workspace = Workspace::load().unwrap();
        for environment in &ENVIRONMENTS {
            let Packages::Listed(_) = environment.packages else {
                continue;
            };
            let packages = environment.packages(&workspace).unwrap();
            let (last, pinned) = packages.split_last().unwrap();
            assert_eq!(last, "--no-deps");
            assert!(pinned.iter().all(|package| package.contains("==")));
            assert!(pinned.contains(&environment.name.replace('-', "==")));
        }
    }
}
