//! The kernel's side of [`Filesystem`] and of the ports of [`Network`]: Landlock rulesets (landlock(7)).
//!
//! The paths are opened once per `Sandbox`; every run gets a ruleset of its own from those descriptors,
//! because a ruleset that runs share would collect the `/proc` entry of each. The descriptors stay open
//! as long as rulesets are made and used: a rule is bound to an inode, and /proc gives a file a new one
//! when its dentry was reclaimed and nobody held it.

use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::child::sys as child_sys;
use crate::error::{Error, Problem};
use crate::filesystem::Filesystem;
use crate::network::Network;
use crate::programs::Parts;

/// What a path is granted for; each is one list of [`Filesystem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Execute,
}

impl Access {
    /// What a run's scratch directory is granted for.
    pub(crate) const fn of_scratch(filesystem: &Filesystem) -> &'static [Self] {
        if filesystem.execute_scratch {
            &[Self::Write, Self::Execute]
        } else {
            &[Self::Write]
        }
    }

    /// The rights among those that the ABI has. Device nodes are never made; commands to devices only
    /// come with a device that is named itself.
    fn rights(self, directory: bool, abi: ABI) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let wanted = match self {
            Self::Read => read,
            Self::Execute => read | AccessFs::Execute,
            Self::Write => {
                let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
                let change = AccessFs::from_write(abi) & !devices;
                read | change
                    | if directory {
                        BitFlags::EMPTY
                    } else {
                        AccessFs::IoctlDev.into()
                    }
            }
        };
        let valid = if directory {
            AccessFs::from_all(abi)
        } else {
            AccessFs::from_file(abi)
        };
        wanted & valid
    }
}

/// An open path and what it is granted for.
#[derive(Debug)]
struct Grant {
    path: OwnedFd,
    access: Access,
    directory: bool,
    /// Its path beneath `/proc`, where it is there.
    in_proc: Option<PathBuf>,
}

/// The paths of a policy, open, and which of them this host does not have.
#[derive(Debug)]
pub(crate) struct Grants {
    open: Vec<Grant>,
    /// Paths that do not exist here, or that the embedder itself cannot reach.
    pub(crate) skipped: Vec<PathBuf>,
    version: u32,
    abi: ABI,
    network: Network,
    /// Whether what may be executed is a list of programs.
    strict: bool,
}

impl Grants {
    /// Opens every path (O_PATH, at descriptor 3 or above), for rulesets of this ABI version, at least 1.
    /// Where the ABI can (4), TCP is bounded to the ports of `network` unless that is [`Network::Host`]; and from ABI 10
    /// on UDP is denied then.
    pub(crate) fn open(
        filesystem: &Filesystem,
        abi: u32,
        network: &Network,
    ) -> Result<Self, Error> {
        let mut opened = Self {
            open: Vec::new(),
            skipped: Vec::new(),
            version: abi,
            abi: ABI::from(i32::try_from(abi).unwrap_or(i32::MAX)),
            network: network.clone(),
            strict: filesystem.is_strict(),
        };
        for (access, paths) in [
            (Access::Read, &filesystem.read),
            (Access::Write, &filesystem.write),
            (Access::Execute, &filesystem.execute),
        ] {
            for path in paths {
                opened.add(path, access)?;
            }
        }
        opened.add_programs(filesystem)?;
        Ok(opened)
    }

    /// Each program of a list, with what it needs to be started. The parts of one that is not there are not looked for.
    fn add_programs(&mut self, filesystem: &Filesystem) -> Result<(), Error> {
        for path in &filesystem.programs {
            if path.metadata().is_ok_and(|found| !found.is_file()) {
                return Err(Error::Policy {
                    problems: vec![Problem {
                        field: "filesystem.programs",
                        message: format!(
                            "has {}, which is no file; name each program",
                            path.display()
                        ),
                    }],
                });
            }
            self.add(path, Access::Execute)?;
            if self.skipped.last() == Some(path) {
                continue;
            }
            let Parts {
                executed,
                libraries,
            } = Parts::of(path);
            for part in executed.iter().filter(|part| *part != path) {
                self.add(part, Access::Execute)?;
            }
            for library in &libraries {
                self.add(library, Access::Read)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, access: Access) -> Result<(), Error> {
        let failed = |source: Errno| Error::io_at("open the granted path", path, source);
        match rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(low) => {
                let directory = is_directory(low.as_fd()).map_err(failed)?;
                let in_proc = path.strip_prefix("/proc").ok().map(Path::to_owned);
                let named = |path: &PathBuf| {
                    let mut parts = path.components();
                    parts.all(|part| matches!(part, Component::Normal(_)))
                };
                self.open.push(Grant {
                    path: above_stdio(low).map_err(failed)?,
                    access,
                    directory,
                    in_proc: in_proc.filter(named),
                });
            }
            // A path that the embedder cannot reach cannot be granted either: a narrower sandbox, reported.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => self.skipped.push(path.to_owned()),
            Err(source) => return Err(failed(source)),
        }
        Ok(())
    }

    /// A fresh ruleset (descriptor 3 or above, close-on-exec) with these grants and `extra` ones.
    pub(crate) fn ruleset(&self, extra: &[(BorrowedFd<'_>, Access)]) -> Result<OwnedFd, Error> {
        let mut ruleset = self.empty().map_err(|error| failed(&error))?;
        for grant in &self.open {
            let rights = grant.access.rights(grant.directory, self.abi);
            ruleset = allow(ruleset, grant.path.as_fd(), rights)?;
        }
        for &(path, access) in extra {
            let directory = is_directory(path).map_err(|errno| Error::io("fstat", errno))?;
            ruleset = allow(ruleset, path, access.rights(directory, self.abi))?;
        }
        for (ports, right) in [
            (self.network.connect(), AccessNet::ConnectTcp),
            (self.network.bind(), AccessNet::BindTcp),
        ] {
            for &port in ports.iter().filter(|_| self.bounds_ports()) {
                let rule = NetPort::new(port, right);
                ruleset = ruleset.add_rule(rule).map_err(|error| failed(&error))?;
            }
        }
        let made: Option<OwnedFd> = ruleset.into();
        let made = made.ok_or_else(|| Error::io("landlock_create_ruleset", Errno::NOSYS))?;
        above_stdio(made).map_err(|errno| Error::io("duplicate the Landlock ruleset", errno))
    }

    /// What is granted beneath `/proc`, in this other procfs; what is not there is left out.
    pub(crate) fn within(&self, proc: BorrowedFd<'_>) -> Result<Vec<(OwnedFd, Access)>, Error> {
        let mut found = Vec::new();
        for grant in &self.open {
            let Some(path) = &grant.in_proc else { continue };
            let failed = |errno: Errno| {
                Error::io_at(
                    "open the granted path",
                    Path::new("/proc").join(path),
                    errno,
                )
            };
            // The root itself is the empty path.
            let relative = Path::new(".").join(path);
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            match rustix::fs::openat(proc, &relative, flags, Mode::empty()) {
                Ok(low) => {
                    let open = above_stdio(low).map_err(failed)?;
                    found.push((open, grant.access));
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(found)
    }

    /// Adds one more grant to a ruleset that was made here.
    ///
    /// # References
    ///
    /// landlock_add_rule(2).
    pub(crate) fn add_to(
        &self,
        ruleset: &OwnedFd,
        path: BorrowedFd<'_>,
        access: Access,
    ) -> Result<(), Error> {
        let directory = is_directory(path).map_err(|errno| Error::io("fstat", errno))?;
        let rights = access.rights(directory, self.abi).bits();
        child_sys::landlock_add_path(ruleset.as_raw_fd(), rights, path.as_raw_fd())
            .map_err(|errno| Error::io("landlock_add_rule", Errno::from_raw_os_error(errno)))
    }

    fn empty(&self) -> Result<RulesetCreated, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(self.abi))?;
        if self.bounds_ports() {
            ruleset = ruleset.handle_access(AccessNet::from_all(self.abi))?;
        }
        let scopes = Scope::from_all(self.abi);
        if !scopes.is_empty() {
            ruleset = ruleset.scope(scopes)?;
        }
        ruleset.create()
    }

    fn bounds_ports(&self) -> bool {
        self.network != Network::Host && !AccessNet::from_all(self.abi).is_empty()
    }

    /// `allowed_access` of the rule that the child adds for its own `/proc/<pid>`: read files and list
    /// directories, no write (`/proc/<pid>/mem`) and no execute (`/proc/<pid>/exe`).
    #[expect(
        clippy::unused_self,
        reason = "part of what a ruleset of these grants handles"
    )]
    pub(crate) fn own_proc_rights(&self) -> u64 {
        (AccessFs::ReadFile | AccessFs::ReadDir).bits()
    }

    /// What is in force, for people.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("Landlock ABI {}: {} paths", self.version, self.open.len());
        if self.strict {
            text.push_str(", no programs but those listed");
        }
        let network = AccessNet::from_all(self.abi);
        text.push_str(match (&self.network, network.is_empty()) {
            (Network::Host, _) => ", network not bounded",
            (_, true) => ", TCP not covered (ABI 4)",
            (Network::Tcp { .. }, false) => ", TCP ports bounded",
            (Network::Denied, false) if network.contains(AccessNet::BindUdp) => {
                ", TCP and UDP denied"
            }
            (Network::Denied, false) => ", TCP denied",
        });
        let scopes = Scope::from_all(self.abi);
        text.push_str(if scopes.is_empty() {
            ", signals not scoped (ABI 6)"
        } else {
            ", signals and abstract sockets scoped"
        });
        if self.version < 2 {
            text.push_str(", no rename between directories (ABI 2)");
        }
        if self.version < 3 {
            text.push_str(", truncate(2) not covered (ABI 3)");
        }
        if self.version < 5 {
            text.push_str(", ioctl on devices not covered (ABI 5)");
        }
        let mut separator = "; not on this host: ";
        for path in self
            .skipped
            .iter()
            .filter(|path| !Filesystem::is_preset(path))
        {
            let _ = write!(text, "{separator}{}", path.display());
            separator = ", ";
        }
        text
    }
}

fn allow(
    ruleset: RulesetCreated,
    path: BorrowedFd<'_>,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Error> {
    // A list-only right on a file leaves nothing to allow, and the kernel refuses a rule without rights.
    if rights.is_empty() {
        return Ok(ruleset);
    }
    ruleset
        .add_rule(PathBeneath::new(path, rights))
        .map_err(|error| failed(&error))
}

fn failed(error: &RulesetError) -> Error {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if let Some(system) = cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
        {
            return Error::io(
                "make the Landlock ruleset",
                std::io::Error::from_raw_os_error(system),
            );
        }
        source = cause.source();
    }
    Error::io(
        "make the Landlock ruleset",
        std::io::Error::other(error.to_string()),
    )
}

fn is_directory(path: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mode = rustix::fs::fstat(path)?.st_mode;
    Ok(FileType::from_raw_mode(mode).is_dir())
}

/// Where the embedder closed its stdio, new descriptors are 0, 1 and 2, and the child's dup3 of the
/// guest's stdio would overwrite them.
fn above_stdio(low: OwnedFd) -> Result<OwnedFd, Errno> {
    if low.as_raw_fd() >= 3 {
        Ok(low)
    } else {
        rustix::io::fcntl_dupfd_cloexec(&low, 3)
    }
}

#[cfg(test)]
mod tests;
