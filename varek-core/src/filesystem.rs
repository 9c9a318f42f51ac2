//! Which paths a guest may use: the policy's side. The kernel's side is [`crate::landlock`].

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Problem;
use crate::mounts;

/// Which paths a guest may use. What no path covers cannot be opened, made, renamed or removed.
///
/// A path covers itself and, where it is a directory, everything beneath it, on whatever file system.
/// Paths are absolute and may be symbolic links: what they lead to when the `Sandbox` is made is
/// granted. Paths that a host does not have are left out there, and its enforcement report says so. A
/// grant adds to the others; there is none that takes away from what another gives.
///
/// The run's own scratch directory and `/proc/<pid>` of its first process are granted without being named. By the latter a
/// guest also reads what that process shares with others: the machine's mounts (`mountinfo`) and its tables of connections and routes
/// (`net`), under every [`Network`](crate::Network).
///
/// The mechanism is Landlock (Linux 5.13, landlock(7)). It does not decide about chmod(2), chown(2),
/// utimensat(2), setxattr(2), stat(2) or access(2): the guest's own uid does, and a path that is not
/// granted can still be seen to exist. A grant of a file holds for that file, not for another that
/// later takes its name, as `/etc/passwd` after a user is added: make a new `Sandbox` then.
///
/// ```
/// use varek_core::Filesystem;
///
/// let mut filesystem = Filesystem::python();
/// filesystem.read.push("/srv/questions".into());
/// assert!(filesystem.write.iter().all(|path| path.starts_with("/dev")));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Filesystem {
    /// Files may be read and directories listed.
    ///
    /// What may be read may also be locked (flock(2)) for as long as the run lasts, which holds up whoever waits for such a
    /// lock. On `/sys/fs/cgroup` that is every embedder that is about to start a guest.
    pub read: Vec<PathBuf>,
    /// As `read`; and files may be written, truncated, made, renamed and removed, as may directories,
    /// symbolic links, sockets and FIFOs. A device that is named itself (not a directory above it) may
    /// be given ioctl(2) commands too.
    ///
    /// Renames and hard links between two directories need Linux 5.19, and truncate(2) of a file that is
    /// only readable is refused from Linux 6.2.
    ///
    /// Where guests share the embedder's uid, no path may have the base of the scratch directories beneath it.
    pub write: Vec<PathBuf>,
    /// As `read`; and the kernel accepts the files as program images. The guest's own start needs it for
    /// the program, for the interpreter that its first line names, and for the dynamic loader.
    ///
    /// This does not bound what code runs: a dynamic loader or an interpreter that may be executed runs
    /// whatever it can read. What keeps the guest from starting programs is a policy without `execve`.
    pub execute: Vec<PathBuf>,
    /// The kernel accepts files of the run's scratch directory as program images: scripts and programs that the guest
    /// made itself, as `./configure` and `cc` do. Like `execute` it matters only where `syscalls` allow `execve`, and there it is a
    /// convenience, not a boundary: what can be read can be run through an interpreter or a loader. On a file system that is mounted `noexec`
    /// the kernel refuses all the same.
    pub execute_scratch: bool,
    /// The programs that the guest may start, and no other: files, with what each needs to be started, by file too. Each is
    /// granted as by `execute`, as are the interpreter that its first line names and the loader of either; the libraries that it
    /// is linked with, and theirs, are granted as by `read`. A script puts its interpreter on the list with it. A name that is a link is the file that it leads to: `busybox` is all of its
    /// commands. What a program opens by itself (plug-ins, modules, data) it does not get without a grant.
    ///
    /// A policy with such a list is a strict one ([`Policy::only`](crate::Policy::only)), and refused where something goes round the list:
    /// `execute` and `execute_scratch` say something else, `memfd_create` makes programs that no rule of paths sees, and without Landlock
    /// there are no rules. The sandbox is refused where what the guest writes could be executed: its scratch directory and every
    /// file and directory in `write` must be on a file system without the right to execute (`noexec`), by every mount of it, with what is mounted beneath; mounts that are made later are not seen. Runs are refused whose command is not
    /// on the list, brings programs, or has a memory file as a stream.
    ///
    /// What it bounds: which files become programs. A file that is neither on the list nor readable cannot be run by any route: not
    /// by its name, not through the loader, not from a copy. What gets round it: the loader of a listed program runs any program that is
    /// readable and not on a `noexec` mount, so grant `read` of data, not of directories with programs in them, and not of a file that the guest writes as its output. And code is more than
    /// programs: an interpreter on the list (a shell, Python, awk) runs the scripts that it is given, and a program that its input
    /// takes over does what the attacker likes, within everything else that the policy bounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<PathBuf>,
}

/// Programs and libraries. On merged-/usr systems the last four are links into the first.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What the C library reads, by file: the loader's cache and preload list, time zone, user and group
/// names with the order of their look-up, locale names, and the name of the distribution.
const C_LIBRARY: [&str; 12] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/host.conf",
    "/etc/locale.alias",
    "/etc/os-release",
    "/etc/ld-musl-aarch64.path",
    "/etc/ld-musl-x86_64.path",
];

/// What runtimes read to size themselves: CPU count and features (glibc, OpenBLAS, Go), memory size (JVM,
/// Node), overcommit mode (glibc, jemalloc), huge page size (Go, jemalloc). They describe the machine, not
/// what runs on it; /proc/stat, /proc/loadavg and other processes stay closed.
const MACHINE: [&str; 5] = [
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/kernel/mm/transparent_hugepage",
];

const RANDOM: [&str; 2] = ["/dev/random", "/dev/urandom"];

const SINKS: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// What CPython reads beside its library: the distribution's site customization, and types of files (`mimetypes`).
const PYTHON: [&str; 10] = [
    "/etc/python3",
    "/etc/python3.9",
    "/etc/python3.10",
    "/etc/python3.11",
    "/etc/python3.12",
    "/etc/python3.13",
    "/etc/python3.14",
    "/etc/python3.15",
    "/etc/mime.types",
    "/etc/apache2/mime.types",
];

/// What OpenSSL reads (Python's `ssl` and `hashlib`, Node at its start): its settings. Without them it ends Node with exit code 13.
const OPENSSL: [&str; 2] = ["/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf"];

/// The public certificates, never `/etc/ssl/private`, and the distribution's choice of algorithms: OpenSSL and the JVM, whose
/// `cacerts` is among them.
const CERTIFICATES: [&str; 8] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/java",
    "/etc/pki/ca-trust/extracted",
    "/etc/crypto-policies/back-ends",
    "/etc/crypto-policies/config",
];

/// CPU times and interrupts of the machine: without it `os.cpus()` is empty in Node, and programs that start a worker for each
/// of them start none.
const NODE: [&str; 1] = ["/proc/stat"];

/// What shells read at a login (`bash -l`) and interactively (`bash -i`), key bindings (readline), and file(1)'s own types. Not
/// `/etc/profile.d`, `/etc/environment` or `/etc/gitconfig`, in which proxies and their passwords are kept.
const SHELL: [&str; 5] = [
    "/etc/profile",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/inputrc",
    "/etc/magic",
];

/// The settings of a JVM, which Debian's and Fedora's packages keep outside of `/usr`: `jvm.cfg` for its launcher, `java.security` for
/// every random number and temporary file, `net.properties`; and the machine's preferences (`java.util.prefs`).
const JAVA: [&str; 7] = [
    "/etc/java",
    "/etc/java-8-openjdk",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/java-25-openjdk",
    "/etc/.java",
];

/// What the C library reads when a locale or a time zone is asked for: data alone.
const LOCALES: [&str; 2] = ["/usr/lib/locale", "/usr/share/zoneinfo"];

/// Everything that a preset names.
const PRESETS: [&[&str]; 12] = [
    &PROGRAMS,
    &C_LIBRARY,
    &MACHINE,
    &RANDOM,
    &SINKS,
    &PYTHON,
    &OPENSSL,
    &CERTIFICATES,
    &NODE,
    &SHELL,
    &JAVA,
    &LOCALES,
];

impl Filesystem {
    /// For CPython: `/usr`, `/bin` and `/lib*` as read and execute; of `/etc` the files that the C
    /// library, CPython and OpenSSL read; what describes the machine's CPUs and memory; `/dev/null`,
    /// `/dev/zero`, `/dev/full`, `/dev/random` and `/dev/urandom`.
    ///
    /// Not in it: homes, `/opt`, `/var`, `/run`, `/tmp`, other processes in `/proc`, and `/dev/shm`, which
    /// all users of the machine share. `multiprocessing`'s locks, queues and pools keep their semaphores in
    /// `/dev/shm`: they work where guests have one of their own ([`Limits::scratch`](crate::Limits::scratch)), and
    /// fail with `PermissionError` elsewhere; `multiprocessing.Pipe`, `os.fork` and
    /// threads work. An interpreter elsewhere (`/opt`, a home) needs an [`execute`](Self::execute) grant.
    pub fn python() -> Self {
        Self::native().and_read([&PYTHON, &OPENSSL, &CERTIFICATES])
    }

    /// For compiled programs: as [`Filesystem::python`] without what is CPython's and OpenSSL's. The
    /// program itself needs an [`execute`](Self::execute) grant where it is not beneath `/usr` or `/bin`
    /// and not put into the scratch directory.
    pub fn native() -> Self {
        let read = C_LIBRARY.into_iter().chain(MACHINE).chain(RANDOM);
        Self {
            read: read.map(PathBuf::from).collect(),
            write: SINKS.map(PathBuf::from).to_vec(),
            execute: PROGRAMS.map(PathBuf::from).to_vec(),
            execute_scratch: false,
            programs: Vec::new(),
        }
    }

    /// These programs and no other ([`programs`](Self::programs)), each with what it is linked with: beside them what
    /// [`Filesystem::native`] has without `/usr`, `/bin` and `/lib*`, and the C library's locales and time zones.
    pub fn only(programs: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        let mut filesystem = Self::native().and_read([&LOCALES]);
        filesystem.execute.clear();
        filesystem.programs = programs.into_iter().map(Into::into).collect();
        filesystem
    }

    /// For Node: as [`Filesystem::native`], with OpenSSL's settings and the public certificates, and `/proc/stat`, from which `os.cpus()`
    /// counts. That file shows how busy the whole machine is.
    ///
    /// A Node elsewhere (a version manager's, in a home) needs an [`execute`](Self::execute) grant.
    pub fn node() -> Self {
        Self::native().and_read([&OPENSSL, &CERTIFICATES, &NODE])
    }

    /// For shells: as [`Filesystem::python`], so that the interpreters that scripts start find what they need, with the shells' own start-up
    /// files, and programs in the scratch directory.
    ///
    /// What `execute` bounds here is which files the kernel starts as programs: those beneath `/usr`, `/bin` and `/lib*`, and the run's
    /// own. It does not bound which code runs: `sh`, `python3` and the dynamic loader run whatever they can read. A file that is
    /// granted by no list cannot be run by any route.
    ///
    /// `/dev/stdin`, `/dev/stdout`, `/dev/stderr`, `/dev/fd/N` and process substitution (`<(...)`) work in every program of a script: for
    /// pipes, and for files that are granted. They are links through `/proc`, which take no grant.
    ///
    /// Not in it, and missed by commands: what is read from `/proc`, but for the first process's own entries. `ps`, `uptime`, `free`, and in every
    /// started program `/proc/self/...`, are refused with EACCES; `df` leaves out where things are mounted. A rule for each started program's own
    /// entry cannot be made: Landlock's rules are of inodes, and the entry of a process is made with it. Grant [`read`](Self::read) on
    /// `/proc` to have them, where other people's processes may be seen: the guest then reads of every process of the machine the name, the
    /// command line, the state, the sizes and times (`comm`, `cmdline`, `stat`, `status`), as every user does where `/proc` is not mounted with
    /// `hidepid`, and the settings in `/proc/sys`. Environment, memory and open files of others stay closed, by the guest's uid or by
    /// Landlock.
    pub fn shell() -> Self {
        let mut filesystem = Self::python().and_read([&SHELL]);
        filesystem.execute_scratch = true;
        filesystem
    }

    /// For the JVM: as [`Filesystem::native`], with the settings of distributions' OpenJDK packages and the public certificates.
    ///
    /// Not in it: the files of control groups. The JVM does not see the run's limits by itself; see
    /// [`Policy::java`](crate::Policy::java). A JDK elsewhere (`/opt`, a home) needs an [`execute`](Self::execute) grant.
    pub fn java() -> Self {
        Self::native().and_read([&JAVA, &CERTIFICATES])
    }

    fn and_read<const N: usize>(mut self, lists: [&[&str]; N]) -> Self {
        let paths = lists.into_iter().flatten();
        self.read.extend(paths.map(PathBuf::from));
        self
    }

    /// Whether a preset names this path; such a path may be absent without anybody having mistyped it.
    pub(crate) fn is_preset(path: &Path) -> bool {
        let mut names = PRESETS.into_iter().flatten();
        names.any(|name| Path::new(name) == path)
    }

    /// Whether the guest may start the programs of a list alone.
    pub(crate) fn is_strict(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Every path that is granted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let lists = [&self.read, &self.write, &self.execute, &self.programs];
        lists.into_iter().flatten().map(PathBuf::as_path)
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, paths) in [
            ("filesystem.read", &self.read),
            ("filesystem.write", &self.write),
            ("filesystem.execute", &self.execute),
            ("filesystem.programs", &self.programs),
        ] {
            for path in paths {
                if let Some(message) = unusable(path) {
                    problems.push(Problem { field, message });
                }
            }
        }
        for path in &self.write {
            if let Some(message) = unsafe_to_write(path) {
                problems.push(Problem {
                    field: "filesystem.write",
                    message,
                });
            }
        }
        for (field, other) in [
            ("filesystem.execute", !self.execute.is_empty()),
            ("filesystem.execute_scratch", self.execute_scratch),
        ] {
            if other && self.is_strict() {
                let message =
                    "is set beside filesystem.programs, which alone says what may be started"
                        .into();
                problems.push(Problem { field, message });
            }
        }
        problems
    }

    /// Files and directories that the guest may write and the kernel lets it execute, where the policy has a list of programs.
    pub(crate) fn opens_programs(&self) -> Vec<Problem> {
        let written = self.write.iter().filter(|_| self.is_strict());
        let holds_programs = |path: &PathBuf| path.is_dir() || path.is_file();
        let opening = written.filter(|path| holds_programs(path) && !mounts::is_all_noexec(path));
        let problem = |path: &PathBuf| Problem {
            field: "filesystem.write",
            message: format!(
                "has the path {}, from which the guest could run what it wrote, beside filesystem.programs: mount it \
                 with noexec, and what is mounted beneath it, or have the guest write into its scratch directory",
                path.display()
            ),
        };
        opening.map(problem).collect()
    }

    /// Grants that open every scratch directory in `base`: that of another run where a uid of its own keeps it shut, but
    /// not where all runs have one uid, in which case a guest could leave code for the next.
    pub(crate) fn opens_scratch(&self, base: &Path) -> Vec<Problem> {
        let opening = |path: &&PathBuf| match (path.canonicalize(), base.canonicalize()) {
            (Ok(path), Ok(base)) => base.starts_with(path),
            _ => false,
        };
        let problem = |path: &PathBuf| Problem {
            field: "filesystem.write",
            message: format!(
                "has the path {}, with the scratch directories of all runs in {}: guests share this program's uid here, \
                 and could write into each other's; grant a directory beside them, or set another base \
                 (SandboxBuilder::scratch_base, TMPDIR)",
                path.display(),
                base.display()
            ),
        };
        self.write.iter().filter(opening).map(problem).collect()
    }
}

fn unusable(path: &Path) -> Option<String> {
    let shown = path.display();
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        Some(format!(
            "has the path {}, which has NUL in it",
            shown.to_string().escape_default()
        ))
    } else if !path.has_root() {
        Some(format!(
            "has the relative path {shown:?}; write it from the root"
        ))
    } else if path.components().any(|part| part == Component::ParentDir) {
        Some(format!(
            "has the path {shown} with '..' in it; write the path that it leads to"
        ))
    } else {
        None
    }
}

/// Writing there is control over the machine, or over processes that are not the guest's.
fn unsafe_to_write(path: &Path) -> Option<String> {
    let shown = path.display();
    let mut names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    match names.next().map(OsStr::as_encoded_bytes) {
        None if path.has_root() => Some(
            "has the path /, with which nothing is kept from the guest; name directories".into(),
        ),
        Some(top @ (b"proc" | b"sys")) => Some(format!(
            "has the path {shown}; /{} controls the machine and other processes: grant read",
            String::from_utf8_lossy(top)
        )),
        Some(b"dev") if names.next().is_none() => {
            Some("has the path /dev, which holds every disk and terminal; name devices".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &str) -> Vec<Problem> {
        Filesystem {
            write: vec![path.into()],
            ..Filesystem::default()
        }
        .problems()
    }

    fn presets() -> [Filesystem; 5] {
        [
            Filesystem::python(),
            Filesystem::native(),
            Filesystem::node(),
            Filesystem::shell(),
            Filesystem::java(),
        ]
    }

    #[test]
    fn a_list_of_programs_stands_alone() {
        let fields = |filesystem: &Filesystem| -> Vec<_> {
            let problems = filesystem.problems().into_iter();
            problems.map(|problem| problem.field).collect()
        };
        let mut filesystem = Filesystem::only(["/bin/true", "/bin/false"]);
        assert_eq!(fields(&filesystem), Vec::<&str>::new());
        assert!(filesystem.is_strict() && !Filesystem::native().is_strict());
        for path in filesystem.read.iter().chain(&filesystem.write) {
            assert!(Filesystem::is_preset(path), "{path:?}");
            assert!(
                PROGRAMS
                    .iter()
                    .all(|programs| !Path::new(programs).starts_with(path))
            );
        }
        filesystem.execute.push("/usr".into());
        filesystem.execute_scratch = true;
        filesystem.programs.push("true".into());
        assert_eq!(
            fields(&filesystem),
            [
                "filesystem.programs",
                "filesystem.execute",
                "filesystem.execute_scratch"
            ]
        );
        filesystem.programs.clear();
        assert_eq!(fields(&filesystem), Vec::<&str>::new());
    }

    #[test]
    fn presets_have_no_problems_and_only_write_to_sinks() {
        for filesystem in presets() {
            assert_eq!(filesystem.problems(), []);
            assert_eq!(filesystem.write, SINKS.map(PathBuf::from));
            for path in filesystem
                .read
                .iter()
                .chain(&filesystem.write)
                .chain(&filesystem.execute)
            {
                assert!(Filesystem::is_preset(path), "{path:?}");
            }
        }
        assert!(!Filesystem::is_preset(Path::new("/srv")));
    }

    #[test]
    fn presets_open_no_home_no_socket_directory_no_secret_and_no_other_process() {
        let closed = [
            "/",
            "/home",
            "/root",
            "/run",
            "/var",
            "/tmp",
            "/proc",
            "/proc/1",
            "/dev",
            "/dev/shm",
            "/etc",
            "/etc/ssl/private",
            "/etc/profile.d",
            "/etc/environment",
            "/sys/fs/cgroup",
        ];
        for filesystem in presets() {
            let granted = filesystem.read.iter().chain(&filesystem.write);
            for granted in granted.chain(&filesystem.execute) {
                for closed in closed {
                    assert!(
                        !Path::new(closed).starts_with(granted),
                        "{granted:?} opens {closed}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_unusable_path_is_a_problem_that_names_its_field() {
        let filesystem = Filesystem {
            read: vec!["data".into(), "/srv/../root".into(), "/srv".into()],
            write: vec!["/a\0b".into(), "/srv".into()],
            execute: vec!["".into()],
            ..Filesystem::default()
        };
        let fields: Vec<_> = filesystem
            .problems()
            .into_iter()
            .map(|problem| problem.field)
            .collect();
        assert_eq!(
            fields,
            [
                "filesystem.read",
                "filesystem.read",
                "filesystem.write",
                "filesystem.execute"
            ]
        );
    }

    #[test]
    fn write_grants_that_give_the_machine_away_are_problems() {
        for path in [
            "/",
            "//",
            "/proc",
            "/proc/self/mem",
            "/sys/fs/cgroup",
            "/dev",
            "/dev/",
        ] {
            assert_eq!(written(path).len(), 1, "{path}");
        }
        for path in ["/srv", "/dev/null", "/process", "/dev/shm/mine"] {
            assert_eq!(written(path), [], "{path}");
        }
    }

    #[test]
    fn a_write_grant_that_opens_other_runs_scratch_is_a_problem() {
        let base = tempfile::tempdir().unwrap();
        let inside = base.path().join("inside");
        let link = base.path().join("link");
        std::fs::create_dir(&inside).unwrap();
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        let problems = |path: &Path| {
            let filesystem = Filesystem {
                write: vec![path.to_owned()],
                ..Filesystem::python()
            };
            filesystem.opens_scratch(base.path())
        };
        for opening in [base.path(), base.path().parent().unwrap(), &link] {
            let found = problems(opening);
            assert_eq!(found.len(), 1, "{opening:?}");
            assert_eq!(found[0].field, "filesystem.write");
        }
        for other in [&inside, Path::new("/dev/null"), Path::new("/no/such")] {
            assert_eq!(problems(other), [], "{other:?}");
        }
    }

    #[test]
    fn an_unknown_field_is_an_error() {
        let error = toml::from_str::<Filesystem>("raed = [\"/srv\"]")
            .unwrap_err()
            .to_string();
        assert!(error.contains("raed"), "{error}");
        let filesystem: Filesystem = toml::from_str("read = [\"/srv\"]").unwrap();
        assert_eq!(filesystem.read, [PathBuf::from("/srv")]);
    }
}
