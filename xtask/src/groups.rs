//! Running programs where control groups can be made.
//!
//! `scripts/with-cgroup.sh COMMAND` starts a command in a place of the hierarchy that it may
//! divide further. Where the script cannot do that, the command is run as it is, and what needs
//! groups says so itself: the sandbox by an error, a test by "not run".

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::ui;
use crate::workspace::Workspace;

const SCRIPT: &str = "scripts/with-cgroup.sh";

/// How programs are started: through the script, or directly.
#[derive(Debug)]
pub(crate) struct Groups {
    script: Option<PathBuf>,
}

impl Groups {
    /// Tries the script with a command that does nothing, and says what came of it.
    pub(crate) fn prepare(workspace: &Workspace) -> Self {
        let script = workspace.root.join(SCRIPT);
        if !script.is_file() {
            ui::warn(&format!(
                "there is no {SCRIPT}: programs are run without a cgroup subtree"
            ));
            return Self { script: None };
        }
        let mut trial = Command::new(&script);
        trial
            .arg("true")
            .current_dir(&workspace.root)
            .stdin(Stdio::null());
        match trial.output() {
            Ok(output) if output.status.success() => {
                ui::say("Control groups can be made here, through scripts/with-cgroup.sh.");
                Self {
                    script: Some(script),
                }
            }
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                ui::warn(&format!(
                    "{SCRIPT} could not prepare a cgroup subtree ({}): programs are run without \
                     one, and what needs groups will say so. {}",
                    output.status,
                    why.trim()
                ));
                Self { script: None }
            }
            Err(error) => {
                ui::warn(&format!(
                    "{SCRIPT} cannot be started ({error}): running without it"
                ));
                Self { script: None }
            }
        }
    }

    /// Whether programs are run in a subtree of their own.
    pub(crate) fn prepared(&self) -> bool {
        self.script.is_some()
    }

    /// A command that starts a program in the subtree.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.script {
            Some(script) => {
                let mut command = Command::new(script);
                command.arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    /// A cargo command in the workspace's root, in the subtree.
    pub(crate) fn cargo<I>(&self, workspace: &Workspace, args: I) -> Command
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let plain = workspace.cargo(args);
        let mut command = self.program(plain.get_program());
        command.args(plain.get_args()).current_dir(&workspace.root);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_its_arguments_behind_the_script() {
        let groups = Groups {
            script: Some(PathBuf::from("/w/with-cgroup.sh")),
        };
        let mut command = groups.program("/w/demo");
        command.arg("--all");
        assert_eq!(
            crate::process::shown(&command),
            "with-cgroup.sh /w/demo --all"
        );

        let direct = Groups { script: None }.program("/w/demo");
        assert_eq!(direct.get_program(), "/w/demo");
        assert_eq!(direct.get_args().count(), 0);
    }
}
