//! Which package manager this machine has, how it is called, and with whose rights.

use std::fs;

use anyhow::{Result, bail};

/// A package manager that the needs are named for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    Apt,
    Dnf,
    Pacman,
    Apk,
    Zypper,
}

impl Manager {
    pub(crate) const ALL: [Self; 5] = [Self::Apt, Self::Dnf, Self::Pacman, Self::Apk, Self::Zypper];

    /// The manager of this distribution by its `os-release` file (os-release(5): ID, then ID_LIKE
    /// from the nearest relative on), else the first one that is installed. The file goes first
    /// because a foreign manager can be installed too, and must not be used.
    pub(crate) fn choose(os_release: &str, installed: impl Fn(&str) -> bool) -> Option<Self> {
        let field = |key: &str| {
            os_release
                .lines()
                .filter_map(|line| line.split_once('='))
                .find(|(name, _)| *name == key)
                .map_or("", |(_, value)| value.trim().trim_matches(['"', '\'']))
        };
        field("ID")
            .split_whitespace()
            .chain(field("ID_LIKE").split_whitespace())
            .filter_map(Self::of_distribution)
            .chain(Self::ALL)
            .find(|manager| installed(manager.program()))
    }

    fn of_distribution(id: &str) -> Option<Self> {
        match id {
            "debian" | "ubuntu" => Some(Self::Apt),
            "fedora" | "rhel" | "centos" => Some(Self::Dnf),
            "arch" => Some(Self::Pacman),
            "alpine" => Some(Self::Apk),
            "suse" | "opensuse" => Some(Self::Zypper),
            _ => None,
        }
    }

    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Pacman => "pacman",
            Self::Apk => "apk",
            Self::Zypper => "zypper",
        }
    }

    /// The command that fetches the package lists, where installing does not do so by itself.
    pub(crate) fn refresh(self) -> Option<Vec<&'static str>> {
        match self {
            Self::Apt => Some(vec!["apt-get", "update"]),
            // New lists beside old packages is a partial upgrade, which Arch does not support:
            // the lists are fetched only where there are none at all.
            Self::Pacman => fs::read_dir("/var/lib/pacman/sync")
                .is_ok_and(|mut lists| lists.next().is_none())
                .then(|| vec!["pacman", "-Sy", "--noconfirm"]),
            Self::Dnf | Self::Apk | Self::Zypper => None,
        }
    }

    /// The command that installs packages without a question.
    pub(crate) fn install(self, packages: &[&'static str]) -> Vec<&'static str> {
        let head: &[&str] = match self {
            Self::Apt => &["apt-get", "install", "-y", "--no-install-recommends"],
            Self::Dnf => &["dnf", "install", "-y"],
            Self::Pacman => &["pacman", "-S", "--needed", "--noconfirm"],
            Self::Apk => &["apk", "add", "--no-cache"],
            Self::Zypper => &["zypper", "--non-interactive", "install"],
        };
        [head, packages].concat()
    }
}

/// How the rights to install packages are had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    Root,
    SilentSudo,
    AskingSudo,
}

impl Privilege {
    /// Chooses; `silent_sudo` is asked only where it matters, since it starts a program.
    pub(crate) fn choose(
        root: bool,
        sudo_installed: bool,
        silent_sudo: impl FnOnce() -> bool,
        terminal: bool,
    ) -> Result<Self> {
        if root {
            return Ok(Self::Root);
        }
        if !sudo_installed {
            bail!("this user is not root, and sudo is not installed");
        }
        if silent_sudo() {
            return Ok(Self::SilentSudo);
        }
        if !terminal {
            bail!("sudo needs a password, and standard input is no terminal to ask for it on");
        }
        Ok(Self::AskingSudo)
    }

    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::Root => "",
            Self::SilentSudo => ", through sudo",
            Self::AskingSudo => ", through sudo, which will ask for your password",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(os_release: &str, installed: &[&str]) -> Option<Manager> {
        Manager::choose(os_release, |program| installed.contains(&program))
    }

    #[test]
    fn the_distribution_decides_before_what_else_is_installed() {
        let fedora = "NAME=\"Fedora Linux\"\nID=fedora\n";
        assert_eq!(choose(fedora, &["apt-get", "dnf"]), Some(Manager::Dnf));
        let debian = "ID=debian\n";
        assert_eq!(choose(debian, &["apt-get", "dnf"]), Some(Manager::Apt));
    }

    #[test]
    fn a_relative_decides_for_a_distribution_that_is_not_known() {
        let mint = "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
        assert_eq!(choose(mint, &["dnf", "apt-get"]), Some(Manager::Apt));
        let rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
        assert_eq!(choose(rocky, &["apt-get", "dnf"]), Some(Manager::Dnf));
        let leap = "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n";
        assert_eq!(choose(leap, &["apt-get", "zypper"]), Some(Manager::Zypper));
    }

    #[test]
    fn an_installed_manager_serves_where_the_file_says_nothing() {
        assert_eq!(choose("", &["apk"]), Some(Manager::Apk));
        assert_eq!(choose("ID=plan9\n", &["pacman"]), Some(Manager::Pacman));
    }

    #[test]
    fn a_manager_that_is_not_installed_is_never_chosen() {
        assert_eq!(choose("ID=debian\n", &[]), None);
        assert_eq!(choose("ID=debian\n", &["dnf"]), Some(Manager::Dnf));
    }

    #[test]
    fn sudo_is_not_waited_for_without_a_terminal() {
        let never = || panic!("root does not need sudo");
        assert_eq!(
            Privilege::choose(true, true, never, true).unwrap(),
            Privilege::Root
        );
        let choose = |sudo, silent, terminal| Privilege::choose(false, sudo, || silent, terminal);
        assert_eq!(choose(true, true, false).unwrap(), Privilege::SilentSudo);
        assert_eq!(choose(true, false, true).unwrap(), Privilege::AskingSudo);
        assert!(
            choose(true, false, false)
                .unwrap_err()
                .to_string()
                .contains("password")
        );
        assert!(
            choose(false, true, true)
                .unwrap_err()
                .to_string()
                .contains("not installed")
        );
    }
}
