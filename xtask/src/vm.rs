//! `cargo xtask vm`: the workspace's tests on other kernels, as other users and in other
//! surroundings, each in a virtual machine of its own that shares the host's files read-only.
//!
//! A row of the table in [`rows`] is one boot: stage 1 (`xtask/vm/init`) mounts the host's root
//! under an overlay, stage 2 makes the row's surroundings, and the test programs run one after the
//! other. Nothing is installed into the machine and nothing that it writes is kept.

mod apt;
mod cpio;
mod image;
mod kernel;
mod machine;
mod matrix;
mod modules;
mod programs;
pub(crate) mod report;
mod rows;
mod tier;

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

use self::kernel::Cache;
use self::machine::Rig;
use self::matrix::Table;
use self::report::Outcome;
use self::rows::{EVERY_CHANGE, Kernel, ROWS, Row};
use self::tier::Pace;
use crate::groups::Groups;
use crate::test::summary::Summary;
use crate::workspace::Workspace;
use crate::{process, setup, test, ui};

/// What was asked for on the command line.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kernel: Option<String>,
    pub(crate) user: bool,
    pub(crate) rows: Vec<String>,
    pub(crate) list: bool,
    pub(crate) matrix: bool,
    pub(crate) selection: test::Selection,
}

/// The command. The last line on standard output is that of `cargo xtask test`.
pub(crate) fn command(workspace: &Workspace, request: &Request) -> Result<ExitCode> {
    if request.list {
        for row in ROWS {
            ui::say(row.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if request.matrix {
        return matrix(workspace, request);
    }
    let rows = choose(request)?;
    setup::ensure(workspace)?;
    let mut summary = Summary::new(request.selection.requires_all());
    tier::run(
        workspace,
        &request.selection,
        &rows,
        Pace::OneByOne,
        &mut summary,
    )?;
    Ok(summary.print())
}

/// The rows of every change, for `cargo xtask test`.
pub(crate) fn every_change(
    workspace: &Workspace,
    selection: &test::Selection,
    summary: &mut Summary,
) -> Result<()> {
    let rows: Vec<_> = EVERY_CHANGE
        .iter()
        .filter_map(|name| Row::named(name))
        .collect();
    tier::run(workspace, selection, &rows, Pace::SideBySide, summary)?;
    Ok(())
}

/// Runs rows, all where none is named, and writes what came of each into the table.
fn matrix(workspace: &Workspace, request: &Request) -> Result<ExitCode> {
    let chosen = |name: &str| request.rows.is_empty() || request.rows.iter().any(|row| row == name);
    for name in &request.rows {
        ensure!(
            name == matrix::HOST || Row::named(name).is_some(),
            "there is no row {name}"
        );
    }
    setup::ensure(workspace)?;
    let selection = &request.selection;
    let mut summary = Summary::new(selection.requires_all());
    let mut table = Table::default();
    if chosen(matrix::HOST) {
        let groups = Groups::prepare(workspace);
        test::host(workspace, &groups, selection, &mut summary)?;
        let programs = programs::build(workspace, &test::scope(workspace, selection)?)?;
        let doctor = programs.doctor.context("the workspace has no doctor")?;
        let said = groups
            .program(doctor)
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start the doctor")?;
        let said = String::from_utf8_lossy(&said.stdout);
        let counts = summary.counts();
        table.row(matrix::HOST, Some(&said), counts, &Outcome::default());
    }
    let rows: Vec<_> = ROWS.iter().filter(|row| chosen(row.name)).collect();
    let outcomes = tier::run(workspace, selection, &rows, Pace::SideBySide, &mut summary)?;
    for (row, outcome) in &outcomes {
        let mut alone = Summary::new(selection.requires_all());
        alone.row(row.name, outcome);
        table.row(row.name, outcome.doctor.as_deref(), alone.counts(), outcome);
    }
    for row in rows {
        if !outcomes.iter().any(|(run, _)| run.name == row.name) {
            table.not_run(row.name, "there was no machine for it");
        }
    }
    table.write(&workspace.root)?;
    Ok(summary.print())
}

fn choose(request: &Request) -> Result<Vec<&'static Row>> {
    let mut names = request.rows.clone();
    if names.is_empty() || request.kernel.is_some() || request.user {
        let kernel = request.kernel.as_deref().unwrap_or("6.1");
        if Kernel::named(kernel).is_none() {
            let known = Kernel::ALL.map(Kernel::name).join(", ");
            bail!("there is no kernel {kernel}; there are {known}");
        }
        let who = if request.user { "user" } else { "root" };
        names.push(format!("{kernel}-{who}"));
    }
    let find = |name: &String| {
        Row::named(name).with_context(|| {
            let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            format!("there is no row {name}; there are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// The test programs' arguments, which the guest's scripts take as text.
fn words(selection: &test::Selection) -> Result<Vec<String>> {
    let word = |word: &std::ffi::OsString| {
        let text = word.clone().into_string();
        text.map_err(|word| anyhow::anyhow!("{} is no UTF-8", word.display()))
    };
    selection.args.iter().map(word).collect()
}

impl Rig {
    /// Everything that a machine needs, installed where it is missing and this can be done here.
    fn find(workspace: &Workspace) -> Result<Self> {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "the kernels are for x86_64, and this machine is {}",
            env::consts::ARCH
        );
        // Before anything is installed for it.
        apt::release()?;
        setup::ensure_vm(workspace)?;
        let cache = Cache::open()?;
        let root = rustix::process::geteuid().is_root();
        let virtiofsd = setup::virtiofsd().context("there is no virtiofsd")?;
        if !root {
            ensure!(
                serves_users(&virtiofsd),
                "{} needs root; the one written in Rust would do without",
                virtiofsd.display()
            );
        }
        let found = |name| process::find(name).with_context(|| format!("there is no {name}"));
        let rig = Self {
            qemu: found(setup::QEMU)?,
            busybox: found("busybox")?,
            virtiofsd,
            sandbox: if root { "chroot" } else { "none" },
            cache,
            acceleration: OnceLock::new(),
        };
        Ok(rig)
    }
}

/// Whether this file server is the one that an ordinary user can start. The older one, in C, names
/// the library it was made with.
fn serves_users(virtiofsd: &PathBuf) -> bool {
    let output = Command::new(virtiofsd)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        output.status.success()
            && !String::from_utf8_lossy(&output.stdout).contains("FUSE kernel interface")
    })
}
