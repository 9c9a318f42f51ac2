//! What a guest may do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use varek_seccomp::SyscallPolicy;
use varek_telemetry::{ArgumentDetail, Layer};

use crate::error::Problem;
use crate::filesystem::Filesystem;
use crate::identity::Identity;
use crate::limits::{CpuShare, DenialBudget, Limits, Overflow};
use crate::namespaces::{self, Namespace, TMP};
use crate::network::Network;

mod diff;
mod file;
mod schema;

/// What a guest may do: pure data, read from TOML or JSON, written back, compared and digested.
///
/// Start from a preset and change what differs:
///
/// ```
/// use std::time::Duration;
/// use varek_core::{MIB, Policy};
///
/// let policy = Policy::python().memory(256 * MIB).wall_clock(Duration::from_secs(5));
/// assert_eq!(policy.limits.memory, Some(256 * MIB));
/// ```
///
/// In a file, a field `preset` says where to start from, and the others what differs. What is listed there (`syscalls`, paths of
/// `filesystem`, `environment`, `namespaces`) comes beside what the preset has, single settings (each of `limits` and `denials` by itself)
/// take the place of the preset's, and `require` takes layers out of `best_effort`. Without a preset nothing is there but what is said, with defaults for
/// what is left out, and `syscalls` must be said.
///
/// ```
/// use varek_core::Policy;
///
/// let policy: Policy = toml::from_str(
///     r#"
///     preset = "python"
///     require = ["denial_reports"]
///     [limits]
///     memory = 268435456
///     scratch = "unlimited"
///     [filesystem]
///     read = ["/srv/questions"]
///     "#,
/// )?;
/// assert!(policy.filesystem.read.iter().any(|path| path.ends_with("questions")));
/// assert_eq!(policy.limits.scratch, None);
/// # Ok::<(), toml::de::Error>(())
/// ```
///
/// Unknown fields and unknown call names are errors, never ignored. Exec is not a field: a policy whose
/// `syscalls` allow `execve` lets the guest start programs; under every other policy the guest's own
/// start is the only exec that works.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Policy {
    /// Version of this format; 1.
    pub version: u32,
    /// System calls: seccomp-bpf. Sockets are not said here but in `network`.
    pub syscalls: SyscallPolicy,
    /// Paths: Landlock.
    pub filesystem: Filesystem,
    /// What the guest reaches over the network: seccomp-bpf, and Landlock for TCP ports.
    pub network: Network,
    /// Namespaces of the guest's own; none unless they are named.
    pub namespaces: BTreeSet<Namespace>,
    /// How much: cgroups, setrlimit(2), the watchdog.
    pub limits: Limits,
    /// What happens when captured output passes its limit.
    pub overflow: Overflow,
    /// Denied calls before the run is killed.
    pub denials: DenialBudget,
    /// The guest's environment. Nothing else of it exists but `HOME` and `TMPDIR`, which name the
    /// scratch directory unless they are named here.
    pub environment: BTreeMap<String, String>,
    /// Directories in which a bare program name is looked up, in order. Not the embedder's `PATH`.
    pub search_path: Vec<PathBuf>,
    /// The guest's uid and gid.
    pub identity: Identity,
    /// How much of a program's arguments the event of its start carries; their number alone unless it is said. With
    /// [`ArgumentDetail::Full`] denied calls also carry the paths and names that the guest passed to them, read from its memory
    /// and marked as unverified; a guest can put there what it knows, its environment included. Otherwise values of the
    /// environment are in no event.
    pub record_arguments: ArgumentDetail,
    /// How long after its kill a run may take to be gone before `wait` returns all the same.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Layers without which a run starts all the same, reported in `Outcome::enforcement`. Every other
    /// layer is required, and a host that lacks one is an error. Two are in it unless it is said: the bound of the scratch directory
    /// ([`Limits::scratch`]), which an ordinary user's program cannot have, and the reports of denied calls, which fail
    /// without one too: a gate that reads [`Outcome::violation`](crate::Outcome::violation) requires
    /// [`Layer::DenialReports`].
    pub best_effort: BTreeSet<Layer>,
}

impl Policy {
    /// The version of the format that this build writes and reads.
    pub const VERSION: u32 = 1;

    fn default_search_path() -> Vec<PathBuf> {
        ["/usr/local/bin", "/usr/bin", "/bin"]
            .map(PathBuf::from)
            .to_vec()
    }

    fn default_best_effort() -> BTreeSet<Layer> {
        BTreeSet::from([Layer::DenialReports, Layer::Scratch])
    }

    fn default_grace() -> Duration {
        Duration::from_secs(2)
    }

    /// A policy of one's own: these calls and these paths, and everything else as in the presets.
    ///
    /// ```
    /// use varek_core::{Filesystem, Policy, SyscallPolicy};
    ///
    /// let policy = Policy::new(SyscallPolicy::native(), Filesystem::native()).read("/srv/questions");
    /// assert_eq!(policy.problems(), []);
    /// ```
    pub fn new(syscalls: SyscallPolicy, filesystem: Filesystem) -> Self {
        let environment = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            version: Self::VERSION,
            syscalls,
            filesystem,
            network: Network::default(),
            namespaces: BTreeSet::new(),
            limits: Limits::default(),
            overflow: Overflow::default(),
            denials: DenialBudget::default(),
            environment: environment.into(),
            search_path: Self::default_search_path(),
            identity: Identity::default(),
            record_arguments: ArgumentDetail::default(),
            grace: Self::default_grace(),
            best_effort: Self::default_best_effort(),
        }
    }

    /// Bounds the memory of the tree, bytes.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.limits.memory = Some(bytes);
        self
    }

    /// Bounds the processes and threads of the tree.
    #[must_use]
    pub fn pids(mut self, count: u64) -> Self {
        self.limits.pids = Some(count);
        self
    }

    /// Bounds the CPU share of the tree.
    #[must_use]
    pub fn cpu(mut self, share: CpuShare) -> Self {
        self.limits.cpu = Some(share);
        self
    }

    /// Bounds the wall clock.
    #[must_use]
    pub fn wall_clock(mut self, limit: Duration) -> Self {
        self.limits.wall_clock = limit;
        self
    }

    /// Bounds the CPU time of the tree.
    #[must_use]
    pub fn cpu_time(mut self, limit: Duration) -> Self {
        self.limits.cpu_time = Some(limit);
        self
    }

    /// Bounds the bytes of all files in the scratch directory together.
    #[must_use]
    pub fn scratch(mut self, bytes: u64) -> Self {
        self.limits.scratch = Some(bytes);
        self
    }

    /// Bounds each captured stream, bytes, and says what happens beyond.
    #[must_use]
    pub fn output(mut self, bytes: u64, overflow: Overflow) -> Self {
        self.limits.output = bytes;
        self.overflow = overflow;
        self
    }

    /// Lets the guest read this path and everything beneath it.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.filesystem.read.push(path.into());
        self
    }

    /// Lets the guest read and write this path and everything beneath it.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.filesystem.write.push(path.into());
        self
    }

    /// Lets the kernel accept this path, and everything beneath it, as a program image. The guest can
    /// use that only where its `syscalls` allow `execve`.
    #[must_use]
    pub fn execute(mut self, path: impl Into<PathBuf>) -> Self {
        self.filesystem.execute.push(path.into());
        self
    }

    /// Puts a variable into the guest's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Changes the system call policy.
    #[must_use]
    pub fn syscalls(mut self, change: impl FnOnce(SyscallPolicy) -> SyscallPolicy) -> Self {
        self.syscalls = change(self.syscalls);
        self
    }

    /// Says what the guest reaches over the network.
    ///
    /// ```
    /// use varek_core::{Network, Policy};
    ///
    /// let policy = Policy::python().network(Network::tcp([443], []));
    /// assert_eq!(policy.problems(), []);
    /// ```
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Gives the guest namespaces of its own, besides those named before.
    ///
    /// ```
    /// use varek_core::{Namespace, Policy};
    ///
    /// let policy = Policy::python().namespaces(Namespace::ALL);
    /// assert_eq!(policy.namespaces.len(), 7);
    /// ```
    #[must_use]
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        self.namespaces.extend(namespaces);
        self
    }

    /// Bounds the denied calls.
    #[must_use]
    pub fn denials(mut self, budget: DenialBudget) -> Self {
        self.denials = budget;
        self
    }

    /// Says who the guest is.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Says how much of a program's arguments goes into events, and whether the paths and names that it passes to denied calls
    /// do.
    #[must_use]
    pub fn record_arguments(mut self, detail: ArgumentDetail) -> Self {
        self.record_arguments = detail;
        self
    }

    /// Says how long a run may take to be gone after its kill, 10 ms to one hour.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts without this layer where the host lacks it. `Outcome::enforcement` then says so.
    #[must_use]
    pub fn best_effort(mut self, layer: Layer) -> Self {
        self.best_effort.insert(layer);
        self
    }

    /// Does not start without this layer: takes back [`Policy::best_effort`].
    #[must_use]
    pub fn require(mut self, layer: Layer) -> Self {
        self.best_effort.remove(&layer);
        self
    }

    /// The digest of the policy, whatever the order and the format in which its fields were written: SHA-256 over its JSON form, `sha256:` and 64 hexadecimal digits.
    ///
    /// A path that is not UTF-8, which no file can say, is in it by its bytes.
    pub fn digest(&self) -> String {
        let mut text = String::from("sha256:");
        // JSON has strings, numbers and lists for everything in a policy but such paths.
        let json = serde_json::to_vec(self).or_else(|_| serde_json::to_vec(&self.in_words()));
        let json = json.unwrap_or_default();
        for byte in Sha256::digest(json) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The same with words for paths that are not UTF-8. They begin with NUL, as no path does.
    fn in_words(&self) -> Self {
        let mut policy = self.clone();
        let files = &mut policy.filesystem;
        let lists = [
            &mut files.read,
            &mut files.write,
            &mut files.execute,
            &mut files.programs,
            &mut policy.search_path,
        ];
        for path in lists.into_iter().flatten() {
            if path.to_str().is_none() {
                let bytes = path.as_os_str().as_encoded_bytes();
                *path = format!("\0{}", bytes.escape_ascii()).into();
            }
        }
        policy
    }

    /// Everything in the policy that contradicts itself or is out of range, whatever the host.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut need = |ok: bool, field: &'static str, message: String| {
            if !ok {
                problems.push(Problem { field, message });
            }
        };
        need(
            self.version == Self::VERSION,
            "version",
            format!(
                "is {}; this build reads version {}",
                self.version,
                Self::VERSION
            ),
        );
        need(
            self.grace >= Duration::from_millis(10) && self.grace <= Duration::from_secs(3600),
            "grace",
            "must be 10 ms to one hour".into(),
        );
        need(
            self.denials.total > 0,
            "denials.total",
            "is 0; the first denied call would kill".into(),
        );
        need(
            self.denials.per_second > 0,
            "denials.per_second",
            "is 0; the first denied call would kill".into(),
        );
        for path in self.search_path.iter().filter(|path| !path.is_absolute()) {
            need(
                false,
                "search_path",
                format!("has the relative path {}", path.display()),
            );
        }
        for (name, value) in &self.environment {
            need(
                !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'),
                "environment",
                format!(
                    "has the name {name:?}, which is empty or has '=' or NUL in it, or a value with NUL"
                ),
            );
        }
        let hidden = self
            .namespaces
            .contains(&Namespace::Mount)
            .then(|| namespaces::hidden(self.filesystem.paths()))
            .flatten();
        if let Some(path) = hidden {
            need(
                false,
                "namespaces",
                format!(
                    "has mount, with which the guest's {TMP} is its scratch directory and {} is out of its sight: grant \
                     paths elsewhere, or leave mount out",
                    path.display()
                ),
            );
        }
        problems.extend(self.limits.problems());
        problems.extend(self.filesystem.problems());
        problems.extend(self.ways_round_programs());
        problems.extend(self.network.problems(&self.syscalls));
        problems.extend(self.identity.problems());
        problems
    }

    /// What of the policy goes round its list of programs, where it has one.
    fn ways_round_programs(&self) -> Vec<Problem> {
        let memory = self.syscalls.allows("memfd_create").then(|| Problem {
            field: "syscalls",
            message: "allow memfd_create beside filesystem.programs: what is written into a memory file can be executed, \
                      and no rule of paths sees it; deny it"
                .into(),
        });
        let best_effort = self.best_effort.contains(&Layer::Landlock);
        let without = best_effort.then(|| Problem {
            field: "best_effort",
            message: "has landlock, without which nothing enforces filesystem.programs".into(),
        });
        let ways = memory.into_iter().chain(without);
        ways.filter(|_| self.filesystem.is_strict()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::limits::MIB;

    #[test]
    fn presets_have_no_problems_and_round_trip_through_toml_and_json() {
        for name in Policy::PRESETS {
            let policy = Policy::preset(name).unwrap();
            assert_eq!(policy.problems(), []);
            let toml = toml::to_string(&policy).unwrap();
            assert_eq!(toml::from_str::<Policy>(&toml).unwrap(), policy, "{toml}");
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
        }
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_it() {
        let mut json = serde_json::to_value(Policy::python()).unwrap();
        json["limits"]["memroy"] = 5.into();
        let error = serde_json::from_value::<Policy>(json)
            .unwrap_err()
            .to_string();
        assert!(error.contains("memroy"), "{error}");
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let mut policy = Policy::python()
            .memory(0)
            .pids(0)
            .wall_clock(Duration::ZERO);
        policy.limits.output = 0;
        policy.limits.open_files = 2;
        policy.version = 9;
        let fields: Vec<_> = policy
            .problems()
            .into_iter()
            .map(|problem| problem.field)
            .collect();
        assert_eq!(
            fields,
            [
                "version",
                "limits.memory",
                "limits.pids",
                "limits.wall_clock",
                "limits.output",
                "limits.open_files"
            ]
        );
    }

    #[test]
    fn what_goes_round_a_list_of_programs_is_a_problem_and_only_beside_one() {
        let policy = Policy::only(["/bin/true"]);
        assert_eq!(policy.problems(), []);
        let text = toml::to_string(&policy).unwrap();
        assert_eq!(toml::from_str::<Policy>(&text).unwrap(), policy);
        let fields = |policy: Policy| -> Vec<_> {
            let problems = policy.problems().into_iter();
            problems.map(|problem| problem.field).collect()
        };
        let loose = policy
            .syscalls(|_| SyscallPolicy::shell())
            .best_effort(Layer::Landlock);
        assert_eq!(fields(loose.clone()), ["syscalls", "best_effort"]);
        let mut unlisted = loose;
        unlisted.filesystem.programs.clear();
        assert_eq!(fields(unlisted), Vec::<&str>::new());
    }

    #[test]
    fn the_digest_follows_every_change_and_nothing_else() {
        let digest = Policy::python().digest();
        assert_eq!(digest, Policy::python().digest());
        assert_eq!(digest.len(), "sha256:".len() + 64);
        assert_ne!(digest, Policy::python().memory(MIB * 7).digest());
        assert_ne!(digest, Policy::native().digest());
    }

    #[test]
    fn policies_with_paths_that_are_no_text_have_digests_of_their_own() {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let odd = || Policy::python().read(path(b"/srv/\xff"));
        assert_eq!(odd().problems(), []);
        let mut searched = odd();
        searched.search_path.push(path(b"/opt/\xff"));
        let policies = [
            odd(),
            odd().memory(MIB * 7),
            Policy::native().read(path(b"/srv/\xff")),
            Policy::python().read(path(b"/srv/\xfe")),
            Policy::python().write(path(b"/srv/\xff")),
            Policy::python().execute(path(b"/srv/\xff")),
            // The words of one.
            Policy::python().read(r"/srv/\xff"),
            searched,
        ];
        let digests: BTreeSet<_> = policies.iter().map(Policy::digest).collect();
        assert_eq!(digests.len(), policies.len());
        assert_eq!(odd().digest(), odd().digest());
    }
}
