//! `cargo xtask setup`: look first, say what will be done, then do it.
//!
//! Everything is found out by trying it (a program is compiled, linked, run), never by asking a
//! package manager what it believes to be installed. Where nothing is missing no package manager
//! is called at all, so every other command begins with this one.

pub(crate) mod guests;
mod needs;
mod npm;
mod packages;

use std::io::IsTerminal;
use std::process::{Command, ExitCode};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use self::needs::{FILE_SERVER, MACHINES, NEEDS, Need, OPTIONAL, Probe};
pub(crate) use self::needs::{QEMU, virtiofsd};
use self::packages::{Manager, Privilege};
use crate::groups::Groups;
use crate::workspace::Workspace;
use crate::{process, ui};

/// The whole command: the needs, what is optional, guests for the tests, and the cgroup subtree.
pub(crate) fn command(workspace: &Workspace) -> Result<ExitCode> {
    ui::headline("Setup");
    ensure(workspace)?;
    for (name, use_) in OPTIONAL {
        match needs::program(name) {
            Some(path) => ui::say(&format!("{name} is at {}.", path.display())),
            None => ui::say(&format!(
                "{name} is not in {}; it is optional: {use_}.",
                needs::SEARCH_PATH
            )),
        }
    }
    guests::prepare(workspace);
    let groups = Groups::prepare(workspace);
    if groups.prepared() {
        ui::say("Setup is complete.");
    } else {
        ui::say("Setup is complete, but for the cgroup subtree.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes sure that everything that the workspace needs is there, or fails and names what is not.
pub(crate) fn ensure(workspace: &Workspace) -> Result<()> {
    meet(workspace, NEEDS, "the workspace needs")
}

/// Makes sure that a virtual machine can be run. Nothing but the tests in machines needs this.
pub(crate) fn ensure_vm(workspace: &Workspace) -> Result<()> {
    meet(workspace, MACHINES, "virtual machines need")?;
    // Only now, since the package is asked for where qemu's own does not bring it.
    meet(workspace, FILE_SERVER, "virtual machines share files with")
}

fn meet(workspace: &Workspace, needs: &[Need], what: &str) -> Result<()> {
    let scratch = workspace.target.join("xtask-setup");
    fs::create_dir_all(&scratch)
        .with_context(|| format!("cannot create the directory {}", scratch.display()))?;
    let probe = Probe { scratch };

    let missing = probe.missing(needs);
    if missing.is_empty() {
        ui::say(&format!("Everything that {what} is installed."));
        return Ok(());
    }
    for (need, reason) in &missing {
        ui::say(&format!(
            "Missing: {} ({}). {reason}",
            need.name, need.purpose
        ));
    }
    install(&missing.iter().map(|(need, _)| *need).collect::<Vec<_>>())?;

    let missing = probe.missing(needs);
    if missing.is_empty() {
        ui::say(&format!("Everything that {what} is now installed."));
        return Ok(());
    }
    let left = missing
        .iter()
        .map(|(need, reason)| format!("{}: {reason}", need.name));
    bail!(
        "the packages were installed, and still this is missing:\n  {}",
        left.collect::<Vec<_>>().join("\n  ")
    );
}

/// Installs each of these that is missing, and gives what could not be had.
fn wish<'a>(workspace: &Workspace, needs: &'a [Need]) -> Vec<(&'a str, anyhow::Error)> {
    let probe = Probe {
        scratch: workspace.target.join("xtask-setup"),
    };
    let missing = probe.missing(needs);
    let tried = missing.into_iter().map(|(need, _)| {
        let had = meet(workspace, std::slice::from_ref(need), "guests of tests use");
        (need.name, had)
    });
    tried
        .filter_map(|(name, had)| Some((name, had.err()?)))
        .collect()
}

fn install(missing: &[&Need]) -> Result<()> {
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(manager) = Manager::choose(&os_release, process::in_path) else {
        let packages = missing
            .iter()
            .map(|need| format!("{}: {}", need.name, need.anywhere()));
        bail!(
            "no package manager that is known here (apt-get, dnf, pacman, apk, zypper) was \
             found. Install these by hand, then run this again:\n  {}",
            packages.collect::<Vec<_>>().join("\n  ")
        );
    };
    let packages = needs::packages(missing, manager);
    if packages.is_empty() {
        let names: Vec<_> = missing.iter().map(|need| need.name).collect();
        bail!(
            "{} cannot be installed from here with {}",
            names.join(" and "),
            manager.program()
        );
    }
    let by_hand = manager.install(&packages).join(" ");

    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let root = effective_uid(&status).context("/proc/self/status has no user id")? == 0;
    let silent = || process::succeeds(Command::new("sudo").args(["-n", "true"]));
    let privilege = Privilege::choose(
        root,
        process::in_path("sudo"),
        silent,
        io::stdin().is_terminal(),
    )
    .with_context(|| format!("packages are missing; as root, run `{by_hand}`"))?;

    ui::say(&format!(
        "This will install {} with {}{}.",
        packages.join(", "),
        manager.program(),
        privilege.explanation()
    ));
    if let Some(refresh) = manager.refresh() {
        // One broken third-party list makes the refresh fail and often not the installation.
        if let Err(error) = call(privilege, &refresh) {
            ui::warn(&format!(
                "{error:#}; trying with the package lists that are there"
            ));
        }
    }
    call(privilege, &manager.install(&packages))
        .with_context(|| format!("the packages could not be installed by `{by_hand}`"))
}

fn call(privilege: Privilege, words: &[&str]) -> Result<()> {
    // Through env(1), since sudo does not keep the caller's variables.
    // sudo asks on the terminal itself, so none of this reads standard input.
    let mut command = match privilege {
        Privilege::Root => Command::new("env"),
        Privilege::SilentSudo | Privilege::AskingSudo => {
            let mut sudo = Command::new("sudo");
            if privilege == Privilege::SilentSudo {
                sudo.arg("-n");
            }
            sudo.arg("env");
            sudo
        }
    };
    command.arg("DEBIAN_FRONTEND=noninteractive").args(words);
    process::run(command)
}

/// The second number of the line `Uid:` (proc_pid_status(5): real, effective, saved, filesystem).
/// The owner of the directory /proc/self would not do: it is root for a process that may not be
/// dumped.
fn effective_uid(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_decides_and_not_the_real_one() {
        let status = "Name:\tx\nUid:\t1000\t0\t1000\t1000\nGid:\t7\t7\t7\t7\n";
        assert_eq!(effective_uid(status), Some(0));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }
}
