//! The smallest policy that a trusted program needs: `cargo run -p varek-examples --bin learn -- PROGRAM ARGUMENTS`, or
//! `cargo run --example learn -- PROGRAM ARGUMENTS`.
//!
//! Exits as the program does: with its code, or with 128 and the number of the signal that ended it. 125 where nothing could be learnt.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context as _, bail};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use varek_core::{Filesystem, Host, Policy, SyscallPolicy};
use varek_examples::evidence;
use varek_examples::learn::{self, Run};

/// Runs a program that you TRUST, reports each of its system calls, and prints the smallest policy that it needs.
///
/// Nothing is confined: the program does what it does without this tool. Calls that no policy allows fail as they do for a guest (clone3,
/// io_uring, namespaces), so that the program's way without them is learnt. What is learnt is this one run: let it do everything that it
/// is to do.
///
/// The policy is TOML, on stderr after the program's end or in the file of --output; notes, and how it differs from a preset, are comments.
/// The program's own stdin, stdout and stderr are left alone.
///
/// The program's environment is that of a guest: the preset's, with HOME and TMPDIR naming a scratch directory, whose files need no
/// grant. Root's guests have uids of their own and take other ways than root does: say --uid there. What only root may do
/// is left out and named. Needs Linux 5.9.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Compare with this preset, and take its limits and environment [default: the one that lacks least].
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Policy::PRESETS))]
    preset: Option<String>,
    /// Start in this directory, and let it stand for the scratch directory.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// As root: run the program as this uid and gid, without other groups. Guests have one that nobody else has, and that has no name:
    /// 1900000000 is such a number. It must be able to use DIR.
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Put a variable into the program's environment, and into the policy's. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Grant a directory where at least so many of its entries are used.
    #[arg(long, value_name = "N", default_value_t = 8)]
    fold: usize,
    /// Name the calls that the preset allows and the program did not make.
    #[arg(long)]
    unused: bool,
    /// Write the policy to this file instead of stderr.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The program, a path or a name in the directories where guests are looked up, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not of the form NAME=VALUE".to_owned()),
    }
}

pub(crate) fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(status) => code(status),
        Err(error) => {
            eprintln!("learn: {}", evidence::chain(error.as_ref()));
            ExitCode::from(125)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitStatus> {
    let host = Host::probe();
    let arch = learn::supported(&host)?;
    let root = host.uid == 0;
    if arguments.uid.is_some() && !root {
        bail!("--uid takes root");
    }
    let preset = arguments.preset.as_deref();
    let preset = Policy::PRESETS
        .into_iter()
        .find(|name| Some(*name) == preset);
    let base = preset
        .and_then(Policy::preset)
        .unwrap_or_else(|| Policy::new(SyscallPolicy::new(), Filesystem::default()));
    let mut environment = base.environment;
    environment.extend(arguments.env.iter().cloned());

    let (name, rest) = arguments.command.split_first().context("no program")?;
    let own = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir()
        .context("cannot make a scratch directory")?;
    std::os::unix::fs::chown(own.path(), arguments.uid, arguments.uid)
        .context("cannot give the scratch directory to that uid")?;
    let scratch = arguments.scratch.as_deref().unwrap_or(own.path());
    let scratch = scratch
        .canonicalize()
        .with_context(|| format!("cannot use {} as scratch directory", scratch.display()))?;
    let directory = match &arguments.scratch {
        Some(_) => scratch.clone(),
        None => std::env::current_dir().context("there is no working directory")?,
    };
    let run = Run {
        program: find(Path::new(name), &directory, &base.search_path)?,
        arguments: rest.to_vec(),
        environment: environment.clone(),
        directory,
        scratch,
        uid: arguments.uid,
    };
    let trace = learn::trace(&run, arch)?;

    let mut learnt = learn::learnt(&trace.observed, preset, arch, arguments.fold, root)
        .context("there is no preset to compare with")?;
    learnt.policy.environment = environment;
    let mut summary = summary(&run, &trace);
    if root && run.uid.is_none_or(|uid| uid == 0) {
        summary.push_str(
            "# note: learnt as root; a guest has a uid of its own and may take other ways, which --uid shows\n",
        );
    }
    if host.outer_filter {
        summary.push_str(
            "# note: a seccomp filter around this program answers first; calls that it refuses are not seen\n",
        );
    }
    summary.push_str(&refused_to_users(&learnt.policy, &host));
    summary.push_str(&learnt.summary(arguments.unused));
    let toml = learnt.toml()?;
    match &arguments.output {
        Some(path) => {
            std::fs::write(path, format!("{summary}\n{toml}"))
                .with_context(|| format!("cannot write {}", path.display()))?;
            eprint!("{summary}");
        }
        None => eprint!("{summary}\n{toml}"),
    }
    Ok(trace.status)
}

/// The program's file, looked up as a sandbox does.
fn find(name: &Path, directory: &Path, search_path: &[PathBuf]) -> anyhow::Result<PathBuf> {
    if name.components().count() > 1 || name.is_absolute() {
        return Ok(directory.join(name));
    }
    let found = search_path.iter().map(|place| place.join(name));
    if let Some(program) = found.into_iter().find(|program| program.is_file()) {
        return Ok(program);
    }
    let places: Vec<_> = search_path
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    bail!(
        "there is no {} in {}, where guests' programs are looked up (not in PATH); say its path",
        name.display(),
        places.join(", ")
    )
}

fn summary(run: &Run, trace: &learn::Trace) -> String {
    let calls: BTreeMap<_, _> = trace.observed.calls.iter().collect();
    let made: u64 = calls.values().copied().sum();
    let mut text = format!(
        "# learnt from {}, which ended with {}: {made} calls of {} names\n",
        run.program.display(),
        trace.status,
        calls.len()
    );
    if trace.cut_short {
        text.push_str("# note: processes that it left were still running, and fail from here on; they are not learnt to their end\n");
    }
    text
}

/// What guests lack where they share this program's uid.
fn refused_to_users(policy: &Policy, host: &Host) -> String {
    if host.uid == 0 {
        return String::new();
    }
    let abi = host.landlock.version().unwrap_or(0);
    let shared = policy.syscalls.clone().sharing_uid(abi);
    let refused: Vec<_> = policy
        .syscalls
        .calls()
        .filter(|call| !shared.allows(call))
        .collect();
    if refused.is_empty() {
        return String::new();
    }
    let refused = refused.join(", ");
    format!(
        "# note: refused to guests that share the uid of an ordinary user, whatever the policy says: {refused}\n"
    )
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(125))
}
