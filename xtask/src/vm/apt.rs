//! Debian's packages, fetched with an apt of its own: it neither changes what is installed nor needs
//! to be root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Package lists of one release, and everything that apt writes, below one directory.
#[derive(Debug)]
pub(crate) struct Apt {
    parts: PathBuf,
}

impl Apt {
    /// Fetches the lists of a release from this machine's own mirror. `parts/files` is there for what
    /// is unpacked, `parts/archives` for what is fetched.
    pub(crate) fn prepare(parts: &Path, suite: &str) -> Result<Self> {
        for tool in ["apt-get", "apt-cache", "dpkg"] {
            ensure!(process::in_path(tool), "there is no {tool} here");
        }
        let mirror = mirror()?;
        for directory in ["lists/partial", "archives/partial", "files"] {
            fs::create_dir_all(parts.join(directory))
                .with_context(|| format!("cannot create {directory} in {}", parts.display()))?;
        }
        let write = |name: &str, text: &str| {
            fs::write(parts.join(name), text)
                .with_context(|| format!("cannot write {name} in {}", parts.display()))
        };
        let signed = if Path::new(KEYRING).is_file() {
            format!(" signed-by={KEYRING}")
        } else {
            String::new()
        };
        write(
            "sources.list",
            &format!("deb [arch=amd64{signed}] {mirror} {suite} main\n"),
        )?;
        write("status", "")?;
        write("apt.conf", &configuration(parts))?;
        let apt = Self {
            parts: parts.to_owned(),
        };
        apt.run("apt-get", &["-q", "update"])?;
        Ok(apt)
    }

    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Result<()> {
        process::run(self.command(program, words))
    }

    pub(crate) fn output(&self, program: &str, words: &[&str]) -> Result<String> {
        output(self.command(program, words))
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.parts);
        command
            .env("APT_CONFIG", self.parts.join("apt.conf"))
            .env("LC_ALL", "C.UTF-8");
        command
    }
}

/// The release that this machine runs.
pub(crate) fn release() -> Result<String> {
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    ensure!(
        os_release.lines().any(|line| line == "ID=debian"),
        "packages are fetched from Debian's mirror, and this is another distribution"
    );
    Ok(os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .unwrap_or("stable")
        .to_owned())
}

/// Read after the machine's own settings (proxies and the like); moves everything that apt writes.
fn configuration(parts: &Path) -> String {
    let parts = parts.display();
    format!(
        "Dir::Etc::sourcelist \"{parts}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State \"{parts}\";\n\
         Dir::State::lists \"{parts}/lists\";\n\
         Dir::State::status \"{parts}/status\";\n\
         Dir::Cache \"{parts}\";\n\
         Dir::Cache::archives \"{parts}/archives\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; }};\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         APT::Update::Error-Mode \"any\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n"
    )
}

/// The address that this machine fetches its own distribution from.
fn mirror() -> Result<String> {
    let release = release()?;
    let mut apt = Command::new("apt-get");
    apt.args([
        "indextargets",
        "--no-release-info",
        "--format",
        "$(CREATED_BY) $(COMPONENT) $(RELEASE) $(REPO_URI)",
    ]);
    mirror_of(&output(apt)?, &release).with_context(|| format!("apt names no mirror of {release}"))
}

/// The mirror of a release itself: security updates and the like are elsewhere.
fn mirror_of(targets: &str, codename: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mirror = line.strip_prefix("Packages main ")?;
        let (release, address) = mirror.split_once(' ')?;
        ([codename, "stable"].contains(&release)).then(|| address.to_owned())
    })
}

fn output(mut command: Command) -> Result<String> {
    let line = process::shown(&command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}: {}", output.status, why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_the_release_is_taken_and_not_that_of_its_updates() {
        let targets = "\
Packages main bookworm-security http://mirror.invalid/security/
DEP-11 main bookworm http://mirror.invalid/wrong/
Packages contrib bookworm http://mirror.invalid/wrong/
Packages main bookworm http://mirror.invalid/debian/
";
        assert_eq!(
            mirror_of(targets, "bookworm").as_deref(),
            Some("http://mirror.invalid/debian/")
        );
        assert_eq!(mirror_of(targets, "trixie"), None);
    }
}
