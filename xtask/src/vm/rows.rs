//! The hosts that the tests are run on, as data.

/// A kernel that can be fetched, by the release of Debian that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Debian 12's Linux 6.1: Landlock ABI 2.
    Linux6_1,
    /// Debian 13's Linux 6.12: Landlock ABI 6.
    Linux6_12,
}

impl Kernel {
    pub(crate) const ALL: [Self; 2] = [Self::Linux6_1, Self::Linux6_12];

    /// The version, as the command line takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linux6_1 => "6.1",
            Self::Linux6_12 => "6.12",
        }
    }

    /// The release of Debian whose kernel it is. Backported kernels are not used: that of Debian
    /// 12-backports crashes under software emulation.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Linux6_1 => "bookworm",
            Self::Linux6_12 => "trixie",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name)
    }
}

/// Where the machine's root file system comes from; a tmpfs overlay is put above either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootDevice {
    /// The host's own, read-only.
    Host,
    /// A disk with systemd, which is process 1 there.
    Systemd,
}

impl RootDevice {
    /// As stage 1 takes it, from the kernel's command line.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Host => "vm.root=virtiofs",
            Self::Systemd => "vm.root=/dev/vda vm.init=/sbin/init",
        }
    }
}

/// Who runs the tests, in which surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Root, as on the host.
    Root,
    /// Uid 1000, in a scope that its service manager delegates to it.
    User,
    /// Uid 1000, in the scope of a login, which is root's.
    UserUndelegated,
    /// Root in nested pid, mount, ipc, uts and cgroup namespaces, with groups that are read-only.
    Container,
    /// The same with groups that can be written, behind a container runtime's seccomp filter and
    /// with its capabilities.
    ContainerWritable,
    /// Uid 1000, in the groups that a real service manager gives a login, a scope and services.
    Systemd,
}

impl Place {
    /// As stage 2 takes it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::User => "user",
            Self::UserUndelegated => "user-undelegated",
            Self::Container => "container",
            Self::ContainerWritable => "container-writable",
            Self::Systemd => "systemd",
        }
    }
}

/// One host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kernel: Kernel,
    /// Words for the kernel's command line.
    pub(crate) command_line: &'static str,
    pub(crate) root: RootDevice,
    pub(crate) place: Place,
    /// Whether the unified hierarchy is mounted.
    pub(crate) groups: bool,
    /// Kernel settings, as sysctl takes them.
    pub(crate) sysctls: &'static [&'static str],
}

const PLAIN: Row = Row {
    name: "",
    kernel: Kernel::Linux6_1,
    command_line: "",
    root: RootDevice::Host,
    place: Place::Root,
    groups: true,
    sysctls: &[],
};

/// Every order of modules but Landlock, which is one where this parameter does not name it.
const NO_LANDLOCK: &str = "lsm=lockdown,capability,yama";

/// No user namespaces, by Debian's own switch and by the number that may exist.
const NO_USER_NAMESPACES: &[&str] = &[
    "kernel.unprivileged_userns_clone=0",
    "user.max_user_namespaces=0",
];

/// All hosts, in the order of the table.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "6.1-root",
        ..PLAIN
    },
    Row {
        name: "6.12-root",
        kernel: Kernel::Linux6_12,
        ..PLAIN
    },
    Row {
        name: "6.1-user",
        place: Place::User,
        ..PLAIN
    },
    Row {
        name: "6.12-user",
        kernel: Kernel::Linux6_12,
        place: Place::User,
        ..PLAIN
    },
    Row {
        name: "6.1-user-undelegated",
        place: Place::UserUndelegated,
        ..PLAIN
    },
    Row {
        name: "6.1-user-no-userns",
        place: Place::User,
        sysctls: NO_USER_NAMESPACES,
        ..PLAIN
    },
    Row {
        name: "6.1-root-no-landlock",
        command_line: NO_LANDLOCK,
        ..PLAIN
    },
    Row {
        name: "6.1-user-no-landlock",
        place: Place::User,
        command_line: NO_LANDLOCK,
        ..PLAIN
    },
    Row {
        name: "6.1-container",
        place: Place::Container,
        ..PLAIN
    },
    Row {
        name: "6.1-container-writable",
        place: Place::ContainerWritable,
        ..PLAIN
    },
    Row {
        name: "6.1-no-cgroup2",
        groups: false,
        ..PLAIN
    },
    Row {
        name: "6.1-systemd",
        root: RootDevice::Systemd,
        place: Place::Systemd,
        ..PLAIN
    },
];

/// The rows of every change: root and an ordinary user, an old kernel and a new one.
pub(crate) const EVERY_CHANGE: &[&str] = &["6.1-root", "6.1-user", "6.12-root"];

impl Row {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_that_says_its_kernel() {
        let names: HashSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for row in ROWS {
            let rest = row.name.strip_prefix(row.kernel.name());
            assert!(rest.is_some_and(|rest| rest.starts_with('-')), "{row:?}");
        }
    }

    #[test]
    fn what_every_change_runs_on_exists() {
        for name in EVERY_CHANGE {
            assert!(Row::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn each_kernel_has_a_row_for_root_and_one_for_a_user() {
        for kernel in Kernel::ALL {
            for who in ["root", "user"] {
                let row = Row::named(&format!("{}-{who}", kernel.name())).unwrap();
                assert_eq!(row.kernel, kernel);
            }
        }
    }
}
