//! `cargo xtask api`: the public items of each library, as a checked list, so that a change of them shows in review.
//!
//! rustdoc's JSON is unstable, and its reader follows it version by version: a toolchain whose format the reader does not know is
//! told, and the lists stay as they are.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::workspace::{Package, Workspace};
use crate::{process, setup, ui};

/// Where the lists are.
const DIRECTORY: &str = "docs/api";

/// What is not part of the public interface.
const HIDDEN_FEATURES: [&str; 2] = ["default", "test-hooks"];

/// What came of the comparison.
#[derive(Debug)]
pub(crate) enum Compared {
    Same,
    /// The lists that differ, with their differences.
    Changed(Vec<String>),
    /// This toolchain cannot make them.
    NotMade(String),
}

/// The command: compares the lists, or writes them.
pub(crate) fn command(workspace: &Workspace, write: bool) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    match compare(workspace, write)? {
        Compared::Same => ui::say("The public items are those of docs/api."),
        Compared::Changed(_) if write => ui::say("The lists in docs/api were written."),
        Compared::Changed(differences) => {
            for difference in &differences {
                ui::say(difference);
            }
            ui::say("`cargo xtask api --write` writes the lists anew.");
            return Ok(ExitCode::FAILURE);
        }
        Compared::NotMade(reason) => bail!("{reason}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the lists, and compares them with those that are there, or replaces them.
pub(crate) fn compare(workspace: &Workspace, write: bool) -> Result<Compared> {
    let mut differences = Vec::new();
    for package in workspace.libraries() {
        let json = document(workspace, package)?;
        let items = public_api::Builder::from_rustdoc_json(&json)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build();
        let items = match items {
            Ok(items) => items,
            Err(error) => {
                let reason = format!("rustdoc's JSON cannot be read with this toolchain: {error}");
                return Ok(Compared::NotMade(reason));
            }
        };
        let mut list = String::new();
        for item in items.items() {
            list.push_str(&item.to_string());
            list.push('\n');
        }
        let path = workspace
            .root
            .join(DIRECTORY)
            .join(format!("{}.txt", package.name));
        let known = fs::read_to_string(&path).unwrap_or_default();
        if known == list {
            continue;
        }
        differences.push(difference(&package.name, &known, &list));
        if write {
            fs::create_dir_all(workspace.root.join(DIRECTORY))
                .and_then(|()| fs::write(&path, list))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(if differences.is_empty() {
        Compared::Same
    } else {
        Compared::Changed(differences)
    })
}

/// Has rustdoc describe a library with all its features.
fn document(workspace: &Workspace, package: &Package) -> Result<PathBuf> {
    let features: Vec<&str> = package
        .features
        .iter()
        .map(String::as_str)
        .filter(|feature| !HIDDEN_FEATURES.contains(feature))
        .collect();
    let mut rustdoc = workspace.cargo(["rustdoc", "--quiet", "--lib", "--package", &package.name]);
    rustdoc
        .args(["--features", &features.join(",")])
        // Beside the documentation that people read, whose folder this would otherwise share.
        .arg("--target-dir")
        .arg(workspace.target.join("api"))
        .args([
            "--",
            "-Z",
            "unstable-options",
            "--output-format",
            "json",
            "--cap-lints",
            "allow",
        ])
        // The JSON is not to be had from a stable toolchain otherwise.
        .env("RUSTC_BOOTSTRAP", "1");
    process::run(rustdoc)?;
    let name = package.name.replace('-', "_");
    Ok(workspace
        .target
        .join("api/doc")
        .join(format!("{name}.json")))
}

/// The lines of the one that the other lacks, both ways.
fn difference(name: &str, known: &str, list: &str) -> String {
    let only = |from: &str, other: &str, sign: char| -> Vec<String> {
        let other: std::collections::HashSet<&str> = other.lines().collect();
        from.lines()
            .filter(|line| !other.contains(line))
            .map(|line| format!("{sign} {line}"))
            .collect()
    };
    let mut lines = vec![format!("{name}:")];
    lines.extend(only(known, list, '-'));
    lines.extend(only(list, known, '+'));
    if lines.len() == 1 {
        lines.push("the same items in another order".into());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_went_and_what_came() {
        let text = difference("c", "a\nb\n", "b\nd\n");
        assert_eq!(text, "c:\n- a\n+ d");
        assert!(difference("c", "a\nb\n", "b\na\n").contains("another order"));
    }
}
