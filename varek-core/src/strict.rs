//! What a sandbox and a run must not have where the policy lists the programs that may be started
//! ([`Filesystem::programs`]): each would let the guest start another.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use varek_telemetry::Layer;

use crate::command::{Command, InputKind, OutputKind};
use crate::error::{Error, Missing};
use crate::filesystem::Filesystem;
use crate::mounts::{self, Bound};
use crate::streams::is_memory;

/// Refuses a host on which the guest could run what it writes into its scratch directory, whether or not the policy requires
/// that directory to have a bound.
pub(crate) fn scratch(
    filesystem: &Filesystem,
    bound: Option<Bound>,
    base: &Path,
) -> Result<(), Error> {
    let without_exec = bound.map_or_else(|| mounts::is_noexec(base), |bound| bound.no_exec);
    if without_exec || !filesystem.is_strict() {
        return Ok(());
    }
    Err(Error::Unsupported {
        missing: vec![Missing {
            layer: Layer::Scratch,
            asked: "the programs of filesystem.programs and no other".into(),
            has: format!(
                "lets programs be executed from {}, so that the loader would run what the guest writes into its scratch \
                 directory",
                base.display()
            ),
            remedy: "set limits.scratch and run this program with CAP_SYS_ADMIN, so that guests have a file system of \
                     their own, or choose a base for scratch directories that is mounted noexec \
                     (SandboxBuilder::scratch_base, TMPDIR)"
                .into(),
        }],
    })
}

/// Refuses a command that brings programs along, or a place to make them.
pub(crate) fn command(filesystem: &Filesystem, command: &Command) -> Result<(), Error> {
    if !filesystem.is_strict() {
        return Ok(());
    }
    let refuse = |what: String, reason: &str| {
        Err(Error::Command {
            what,
            reason: reason.to_owned(),
        })
    };
    if let Some(file) = command.files.iter().find(|file| file.executable) {
        return refuse(
            format!("the file {}", file.path.display()),
            "is to be executed, and the policy lists the programs that may be: put it where the guest cannot write, and \
             name it in filesystem.programs",
        );
    }
    if let Some(path) = command
        .scratch
        .as_ref()
        .filter(|path| !mounts::is_all_noexec(path))
    {
        return refuse(
            format!("the scratch directory {}", path.display()),
            "is on a file system, or has one mounted beneath it, from which the guest could run what it writes, and the \
             policy lists the programs that may be started: mount all of them with noexec",
        );
    }
    let streams = [
        match &command.stdin.0 {
            InputKind::File(file) => Some(file),
            _ => None,
        },
        written(&command.stdout.0),
        written(&command.stderr.0),
    ];
    if streams.into_iter().flatten().any(is_memory) {
        return refuse(
            "a memory file as a stream".into(),
            "can be executed, and the policy lists the programs that may be: pass a file that has a path, or a pipe",
        );
    }
    Ok(())
}

fn written(output: &OutputKind) -> Option<&std::fs::File> {
    match output {
        OutputKind::File(file) => Some(file),
        _ => None,
    }
}

/// The program, unless the policy has a list and it is not on that.
pub(crate) fn program(filesystem: &Filesystem, program: PathBuf) -> Result<PathBuf, Error> {
    let file = |path: &Path| {
        let found = path.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    let this = file(&program);
    let mut listed = filesystem.programs.iter().map(|path| file(path));
    // What is not there is said to be so by whoever opens it.
    if !filesystem.is_strict() || this.is_none() || listed.any(|other| other == this) {
        return Ok(program);
    }
    Err(Error::Program {
        program,
        reason:
            "it is not among the programs that the policy lists; name it in filesystem.programs"
                .into(),
    })
}
