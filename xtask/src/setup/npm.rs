//! Programs from npm that tests use. As with everything for guests, nothing depends on them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::guests::COMPLETE;
use super::needs;
use crate::workspace::Workspace;
use crate::{process, ui};

/// The official inspector of MCP servers, in one version: the directory below `guests`, the package, and its program.
const INSPECTOR: (&str, &str, &str) = (
    "mcp-inspector-2.12.0",
    "@modelcontextprotocol/inspector@2.12.0",
    "node_modules/.bin/mcp-inspector",
);

/// Installs what is missing.
pub(super) fn prepare(workspace: &Workspace) {
    let (name, package, program) = INSPECTOR;
    let place = workspace.target.join("guests").join(name);
    ui::say(&match install(&place, package, program) {
        Ok(()) => format!("Guests: {name} is in {}.", place.display()),
        Err(error) => {
            format!("Guests: {name} is not there; tests with it report \"not run\". {error:#}.")
        }
    });
}

fn install(place: &Path, package: &str, program: &str) -> Result<()> {
    if is_complete(place, package, program) {
        return Ok(());
    }
    let npm = needs::program("npm").context("there is no npm in the search path")?;
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    ui::headline("Guests: packages from npm");
    let mut install = Command::new(npm);
    // The version of Node.js that a package asks for is not always the one that it needs: what runs is tried below.
    install
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--engine-strict=false", "--loglevel=error", "--prefix"])
        .arg(place)
        .arg(package);
    process::run(install)?;
    let mut help = Command::new(place.join(program));
    help.args(["--cli", "--help"]);
    let works = process::succeeds(&mut help);
    anyhow::ensure!(
        works,
        "{package} does not run with the Node.js that is here"
    );
    fs::write(place.join(COMPLETE), package)
        .with_context(|| format!("cannot write to {}", place.display()))
}

fn is_complete(place: &Path, package: &str, program: &str) -> bool {
    let there = fs::read_to_string(place.join(COMPLETE));
    there.is_ok_and(|there| there == package) && place.join(program).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_installation_is_none_and_neither_is_one_of_another_version() {
        let place = directory();
        assert!(!is_complete(&place, "p@2", "program"));
        fs::write(place.join("program"), "").unwrap();
        assert!(!is_complete(&place, "p@2", "program"));
        fs::write(place.join(COMPLETE), "p@1").unwrap();
        assert!(!is_complete(&place, "p@2", "program"));
        fs::write(place.join(COMPLETE), "p@2").unwrap();
        assert!(is_complete(&place, "p@2", "program"));
        fs::remove_file(place.join("program")).unwrap();
        assert!(!is_complete(&place, "p@2", "program"));
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_package_has_one_version_and_its_directory_names_it() {
        let (name, package, _) = INSPECTOR;
        let (_, version) = package.rsplit_once('@').unwrap();
        assert!(name.ends_with(version));
    }

    fn directory() -> std::path::PathBuf {
        let place = std::env::temp_dir().join(format!("xtask-npm-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        place
    }
}
