//! `cargo xtask vm`: the workspace's tests on other kernels, as other users and in other
//! surroundings, each in a virtual machine of its own that shares the host's files read-only.
//!
//! A row of the table in [`rows`] is one boot: stage 1 (`xtask/vm/init`) mounts the host's root
//! under an overlay, stage 2 makes the row's surroundings, and the test programs run one after the
//! other. Nothing is installed into the machine and nothing that it writes is kept.

mod cpio;
mod kernel;
mod machine;
mod modules;
mod programs;
pub(crate) mod report;
mod rows;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};

use self::kernel::Cache;
use self::machine::{Job, Rig};
use self::rows::{Kernel, ROWS, Row};
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
    pub(crate) selection: test::Selection,
}

/// For one test program; under software emulation the longest takes a few minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15 * 60);
/// For a whole row.
const ROW_LIMIT: Duration = Duration::from_secs(45 * 60);

/// The command. The last line on standard output is that of `cargo xtask test`.
pub(crate) fn command(workspace: &Workspace, request: &Request) -> Result<ExitCode> {
    if request.list {
        for row in ROWS {
            ui::say(row.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rows = choose(request)?;
    setup::ensure(workspace)?;
    let require_all = request.selection.requires_all();
    let mut summary = Summary::new(require_all);
    let rig = match Rig::find(workspace) {
        Ok(rig) => rig,
        Err(error) => {
            for row in rows {
                summary.row_not_run(row.name, &format!("{error:#}"));
            }
            return Ok(summary.print());
        }
    };
    ui::headline("Tests: build");
    let programs = programs::build(workspace, &test::scope(workspace, &request.selection))?;
    let arguments = words(&request.selection)?;
    let job = Job {
        workspace,
        programs: &programs,
        arguments: &arguments,
        require_all,
        processors: thread::available_parallelism().map_or(1, |count| count.get().min(2)),
        program_limit: PROGRAM_LIMIT,
        limit: ROW_LIMIT,
    };
    for row in rows {
        ui::headline(&format!("Tests: {}", row.name));
        match rig.cache.kernel(row.kernel) {
            Ok(image) => {
                let outcome = rig.run(row, &image, &job, ui::say)?;
                summary.row(row.name, &outcome);
            }
            Err(error) => summary.row_not_run(row.name, &format!("{error:#}")),
        }
    }
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
