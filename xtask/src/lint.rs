//! `cargo xtask lint`: every check is made, and all that failed is named at the end.

mod features;
mod oldest_rust;
mod rules;
mod source;
mod tree;

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use self::rules::Rules;
use self::tree::Tree;
use crate::api::{self, Compared};
use crate::workspace::Workspace;
use crate::{process, setup, ui};

/// The package that compiles the code between clone and exec without an allocator.
const NO_ALLOC: &str = "varek-no-alloc";

/// The command.
pub(crate) fn command(workspace: &Workspace) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    components(workspace)?;
    let tree = Tree::load(&workspace.root)?;
    let mut report = Report::default();

    own_rules(&tree, &mut report);
    scripts(workspace, &tree, &mut report)?;
    cargo(workspace, &mut report)?;
    no_alloc(workspace, &mut report)?;
    public_items(workspace, &mut report)?;
    features::check(workspace, &mut report)?;
    oldest_rust::check(workspace, &mut report)?;
    if process::succeeds(&mut workspace.cargo(["deny", "--version"])) {
        report.command("cargo deny", workspace.cargo(["deny", "check"]))?;
    } else {
        report.not_run("cargo deny", "it is not installed");
    }
    Ok(report.print())
}

fn own_rules(tree: &Tree, report: &mut Report) {
    ui::headline("The workspace's own rules");
    let rules = Rules::check(tree);
    for finding in &rules.findings {
        ui::say(finding);
    }
    ui::say(&format!(
        "{} files checked, {} findings.",
        tree.files.len(),
        rules.findings.len()
    ));
    report.record("own rules", rules.findings.is_empty());
}

fn scripts(workspace: &Workspace, tree: &Tree, report: &mut Report) -> Result<()> {
    let scripts: Vec<_> = tree.scripts().collect();
    if scripts.is_empty() {
        report.not_run("bash -n", "there are no scripts");
        return Ok(());
    }
    ui::headline("Scripts");
    if process::in_path("bash") {
        for script in &scripts {
            let mut syntax = Command::new("bash");
            syntax.arg("-n").arg(script).current_dir(&workspace.root);
            report.command(&format!("bash -n {script}"), syntax)?;
        }
    } else {
        report.not_run("bash -n", "bash is not installed");
    }
    if process::in_path("shellcheck") {
        let mut check = Command::new("shellcheck");
        check.args(&scripts).current_dir(&workspace.root);
        report.command("shellcheck", check)?;
    } else {
        report.not_run("shellcheck", "it is not installed");
    }
    Ok(())
}

fn cargo(workspace: &Workspace, report: &mut Report) -> Result<()> {
    ui::headline("Format");
    report.command("cargo fmt", workspace.cargo(["fmt", "--all", "--check"]))?;

    for (name, reason) in workspace.left_out()? {
        report.not_run(&format!("clippy and documentation of {name}"), &reason);
    }
    let members = workspace.whole()?;
    let deny = ["--", "-D", "warnings"];
    ui::headline("Clippy");
    let mut plain = workspace.cargo(["clippy", "--all-targets"]);
    plain.args(&members).args(deny);
    report.command("cargo clippy", plain)?;
    let mut whole = workspace.cargo(["clippy", "--all-targets", "--all-features"]);
    whole.args(&members).args(deny);
    report.command("cargo clippy with every feature", whole)?;

    ui::headline("Documentation");
    let mut doc = workspace.cargo(["doc", "--no-deps", "--all-features"]);
    doc.args(&members).env("RUSTDOCFLAGS", "-D warnings");
    report.command("cargo doc", doc)
}

fn no_alloc(workspace: &Workspace, report: &mut Report) -> Result<()> {
    let name = "no allocation between clone and exec";
    if workspace.package(NO_ALLOC).is_none() {
        report.not_run(name, "the workspace has no package `varek-no-alloc`");
        return Ok(());
    }
    ui::headline("No allocation between clone and exec");
    report.command(name, workspace.cargo(["check", "--package", NO_ALLOC]))
}

fn public_items(workspace: &Workspace, report: &mut Report) -> Result<()> {
    let name = "public items are those of docs/api";
    ui::headline("Public items");
    match api::compare(workspace, false)? {
        Compared::Same => report.record(name, true),
        Compared::Changed(differences) => {
            for difference in &differences {
                ui::say(difference);
            }
            report.record(name, false);
        }
        Compared::NotMade(reason) => report.not_run(name, &reason),
    }
    Ok(())
}

/// A toolchain of the minimal profile lacks the two components that the checks are made with.
fn components(workspace: &Workspace) -> Result<()> {
    let missing: Vec<&str> = [("clippy", "clippy"), ("fmt", "rustfmt")]
        .into_iter()
        .filter(|(command, _)| !process::succeeds(&mut workspace.cargo([command, "--version"])))
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" and ");
    if !process::in_path("rustup") {
        bail!("the Rust toolchain lacks {names}, and there is no rustup to add it with");
    }
    ui::say(&format!(
        "The Rust toolchain lacks {names}; rustup will add it."
    ));
    let mut add = Command::new("rustup");
    add.args(["component", "add"])
        .args(&missing)
        .current_dir(&workspace.root);
    process::run(add)
}

/// What was checked, and what came of it.
#[derive(Debug, Default)]
struct Report {
    passed: usize,
    failed: Vec<String>,
    not_run: Vec<String>,
}

impl Report {
    fn record(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed.push(name.to_owned());
        }
    }

    fn command(&mut self, name: &str, command: Command) -> Result<()> {
        let status = process::status(command)?;
        self.record(name, status.success());
        Ok(())
    }

    fn not_run(&mut self, name: &str, reason: &str) {
        self.not_run.push(format!("{name}: {reason}"));
    }

    fn print(&self) -> ExitCode {
        ui::headline("Lint");
        for name in &self.not_run {
            ui::say(&format!("not run: {name}"));
        }
        for name in &self.failed {
            ui::say(&format!("failed: {name}"));
        }
        ui::say(&format!(
            "{} checks passed, {} failed, {} not run",
            self.passed,
            self.failed.len(),
            self.not_run.len()
        ));
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
