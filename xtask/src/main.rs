//! The workspace's own commands, started as `cargo xtask COMMAND`.
//!
//! `setup` looks for what the workspace needs and installs what is missing, `demo` shows the
//! sandbox at work, `test` and `lint` are the two gates of CI, `vm` runs the tests on other kernels,
//! and `bench` measures. This program
//! itself needs only a Rust toolchain and a linker, so that it starts on a fresh machine.

mod api;
mod demo;
mod groups;
mod lint;
mod package;
mod process;
mod setup;
mod test;
mod ui;
mod vm;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::groups::Groups;
use crate::workspace::Workspace;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "VAREK's workspace commands"
)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Install what the workspace needs and this machine lacks, and prepare the cgroup subtree.
    Setup,
    /// Build the examples and run them one after the other, up to the first failure.
    Demo,
    /// Run every test of the workspace, doc tests included, here and in virtual machines, and sum up.
    Test {
        /// Leave out the virtual machines.
        #[arg(long)]
        host: bool,
        /// Make a test that this host cannot run a failure (VAREK_TEST_REQUIRE=all).
        #[arg(long)]
        require_all: bool,
        /// Test these packages only, not the whole workspace.
        #[arg(short, long = "package", value_name = "PACKAGE")]
        packages: Vec<String>,
        /// Arguments of the test programs: a part of a test's name, --nocapture, ...
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Run the tests on other kernels, in virtual machines.
    Vm {
        /// The kernel's version: 6.1 (which is the default) or 6.12.
        #[arg(long)]
        kernel: Option<String>,
        /// As uid 1000 in a delegated group, instead of root.
        #[arg(long)]
        user: bool,
        /// A row by its name; may be repeated.
        #[arg(long = "row", value_name = "NAME")]
        rows: Vec<String>,
        /// Print the names of all rows and do nothing else.
        #[arg(long)]
        list: bool,
        /// Run every row, or those that are named, this host as `host`, and write the table in
        /// docs/hosts.md.
        #[arg(long, conflicts_with_all = ["kernel", "user", "list", "packages", "args"])]
        matrix: bool,
        /// Make a test that a row cannot run a failure (VAREK_TEST_REQUIRE=all).
        #[arg(long)]
        require_all: bool,
        /// Test these packages only, not the whole workspace.
        #[arg(short, long = "package", value_name = "PACKAGE")]
        packages: Vec<String>,
        /// Arguments of the test programs: a part of a test's name, --nocapture, ...
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Check format, lints, documentation and the workspace's own rules.
    Lint,
    /// Compare the public items of the libraries with the lists in docs/api.
    Api {
        /// Write the lists instead.
        #[arg(long)]
        write: bool,
    },
    /// Pack the libraries as they would be published, and try the README in a new crate that is made of them.
    Package,
    /// Run the benches.
    Bench {
        /// Arguments of the bench programs: a part of a bench's name, --save-baseline, ...
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            ui::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Cmd) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    match command {
        Cmd::Setup => setup::command(&workspace),
        Cmd::Demo => demo::command(&workspace),
        Cmd::Test {
            host,
            require_all,
            packages,
            args,
        } => test::command(
            &workspace,
            &test::Selection {
                require_all,
                packages,
                args,
            },
            host,
        ),
        Cmd::Vm {
            kernel,
            user,
            rows,
            list,
            matrix,
            require_all,
            packages,
            args,
        } => vm::command(
            &workspace,
            &vm::Request {
                kernel,
                user,
                rows,
                list,
                matrix,
                selection: test::Selection {
                    require_all,
                    packages,
                    args,
                },
            },
        ),
        Cmd::Api { write } => api::command(&workspace, write),
        Cmd::Lint => lint::command(&workspace),
        Cmd::Package => package::command(&workspace),
        Cmd::Bench { args } => bench(&workspace, &args),
    }
}

fn bench(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    let groups = Groups::prepare(workspace);
    let package = &workspace.require_package_in("benches")?.name;
    // Built outside the groups: a limit on them must not slow down or stop the compiler.
    // `--bench *` leaves out the unit tests, whose harness knows none of the benches' arguments.
    let benches = ["bench", "--package", package, "--bench", "*"];
    let mut build = workspace.cargo(benches);
    build.arg("--no-run");
    process::run(build)?;
    ui::headline("Benches");
    let mut run = groups.cargo(workspace, benches);
    run.arg("--").args(args);
    process::run(run)?;
    Ok(ExitCode::SUCCESS)
}
