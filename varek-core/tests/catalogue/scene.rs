//! What an attack is after: files, a process, services and a terminal of the embedder's, and whether anything came to them.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use varek_core::{Host, MIB, Policy};

use crate::entry::Stdin;
use crate::support::bystander::{Bystander, Shown, shown};
use crate::support::{self, open_directory, seconds};

pub(crate) struct Scene {
    directory: tempfile::TempDir,
    /// In a directory that no policy grants, for everybody to read.
    secret: PathBuf,
    /// In a directory that some policies grant for reading, and which everybody may write as far as modes go.
    granted: PathBuf,
    victim: Bystander,
    condition: Vec<String>,
    files: Vec<(PathBuf, Shown)>,
    tcp: TcpListener,
    service: UnixListener,
    abstract_service: UnixListener,
    abstract_name: String,
    /// The other side of the terminal that was handed over.
    terminal: OnceLock<OwnedFd>,
    /// The secret once more, open as an embedder leaks it: over an exec.
    _leak: OwnedFd,
}

impl Scene {
    pub(crate) fn set() -> Self {
        let directory = open_directory();
        let secret = directory.path().join("secret");
        fs::write(&secret, "the secret\n").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        let granted = directory.path().join("granted");
        fs::create_dir(&granted).unwrap();
        fs::set_permissions(&granted, fs::Permissions::from_mode(0o777)).unwrap();
        let file = granted.join("file");
        fs::write(&file, "granted\n").unwrap();
        // Landlock has no right to truncate before ABI 3: a guest with a uid of its own is held by the mode there.
        let truncation = landlock() >= Some(3);
        let mode = if truncation { 0o666 } else { 0o644 };
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();

        let owned = directory.path().join("owned");
        // By a process of its own: a descriptor for writing, in a child of another test, keeps a file from being started.
        let copied = std::process::Command::new("cp")
            .arg("/usr/bin/id")
            .arg(&owned)
            .status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&owned, fs::Permissions::from_mode(0o4755)).unwrap();

        let at = directory.path().join("service");
        let service = UnixListener::bind(&at).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        let abstract_name = format!("varek-{}", directory.path().display());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let abstract_service = UnixListener::bind_addr(&address).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        for listener in [&service, &abstract_service] {
            listener.set_nonblocking(true).unwrap();
        }

        let mut victim = Bystander::start();
        let files = [&secret, &file];
        let files = files.map(|path| (path.clone(), shown(path))).to_vec();
        Self {
            condition: victim.condition(),
            files,
            _leak: rustix::io::dup(File::open(&secret).unwrap()).unwrap(),
            directory,
            secret,
            granted,
            victim,
            tcp,
            service,
            abstract_service,
            abstract_name,
            terminal: OnceLock::new(),
        }
    }

    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let path = |path: &std::path::Path| path.display().to_string();
        vec![
            ("SCENE", path(self.directory.path())),
            ("SECRET", path(&self.secret)),
            ("GRANTED", path(&self.granted)),
            ("SERVICE", path(&self.directory.path().join("service"))),
            ("ABSTRACT", self.abstract_name.clone()),
            ("PORT", self.tcp.local_addr().unwrap().port().to_string()),
            ("VICTIM", self.victim.id().to_string()),
            ("EMBEDDER", std::process::id().to_string()),
            // Seconds that are long for this machine.
            ("PACE", support::pace().to_string()),
        ]
    }

    pub(crate) fn stdin(&self, stdin: Stdin) -> Option<File> {
        match stdin {
            Stdin::Null => None,
            Stdin::File => Some(File::open(self.granted.join("file")).unwrap()),
            Stdin::Directory => Some(File::open(self.directory.path()).unwrap()),
            Stdin::Terminal => {
                let terminal = self.terminal.get_or_init(|| {
                    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
                    grantpt(&terminal).unwrap();
                    unlockpt(&terminal).unwrap();
                    terminal
                });
                let name = ptsname(terminal, Vec::new()).unwrap();
                let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
                let slave = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
                Some(File::from(slave))
            }
        }
    }

    /// Nothing came to any of it.
    #[track_caller]
    pub(crate) fn assert_untouched(&mut self, attack: &str) {
        assert_eq!(self.victim.condition(), self.condition, "{attack}");
        for (path, before) in &self.files {
            assert_eq!(shown(path), *before, "{attack}: {}", path.display());
        }
        let names = |path: &std::path::Path| {
            let mut names: Vec<_> = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let listed = names(self.directory.path());
        assert_eq!(
            listed,
            ["granted", "owned", "secret", "service"],
            "{attack}"
        );
        assert_eq!(names(&self.granted), ["file"], "{attack}");
        assert!(self.tcp.accept().is_err(), "{attack}: a connection");
        for service in [&self.service, &self.abstract_service] {
            assert!(service.accept().is_err(), "{attack}: a local connection");
        }
    }

    /// A policy that grants the directory `granted` for reading.
    pub(crate) fn reading(&self, policy: Policy) -> Policy {
        policy.read(&self.granted)
    }

    /// A policy that grants all of the scene for reading.
    pub(crate) fn reading_all(&self, policy: Policy) -> Policy {
        policy.read(self.directory.path())
    }

    /// A policy that lets the guest start a copy of id(1) that belongs to the embedder and runs with its owner's rights.
    pub(crate) fn owned(&self, policy: Policy) -> Policy {
        policy.execute(self.directory.path().join("owned"))
    }

    /// A policy that grants the directory `granted` for writing.
    pub(crate) fn writing(&self, policy: Policy) -> Policy {
        policy.write(&self.granted)
    }
}

/// The version of Landlock's interface.
pub(crate) fn landlock() -> Option<u32> {
    Host::probe().landlock.version()
}

/// The preset for Python.
pub(crate) fn python(_: &Scene) -> Policy {
    support::python()
}

/// The preset for compiled programs.
pub(crate) fn native(_: &Scene) -> Policy {
    Policy::native().wall_clock(seconds(10)).grace(seconds(2))
}

/// The preset for shells.
pub(crate) fn shell(_: &Scene) -> Policy {
    Policy::shell().wall_clock(seconds(10)).grace(seconds(2))
}

/// The preset for Python, in which these calls do not kill and are refused with EPROTO, which the kernel has no reason
/// to answer.
pub(crate) fn distinct(calls: &[&str]) -> Policy {
    const EPROTO: i32 = 71;
    let spared = |policy: varek_core::SyscallPolicy| policy.spare(calls).errno(EPROTO);
    support::python().syscalls(spared)
}

/// The preset for Python, with these calls.
pub(crate) fn with(calls: &[&str]) -> Policy {
    distinct(calls).syscalls(|policy| policy.allow(calls))
}

/// Little memory.
pub(crate) fn tight(policy: Policy) -> Policy {
    policy.memory(64 * MIB)
}
