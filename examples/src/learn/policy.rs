//! From what a program did to the smallest policy for it, and how that differs from a preset.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use varek_core::{FLOOR, Filesystem, Network, Policy, Rule, SyscallGroup, SyscallPolicy};
use varek_seccomp::Arch;

use super::fold::{beneath_any, grants};
use super::record::{Observed, Reach};

/// What every program may have to call, depending on signals: the kernel makes it do so.
const ALWAYS: [&str; 2] = ["restart_syscall", "rt_sigreturn"];
/// What threads call where they meet, and what the C library does for them, depending on who comes first.
const THREADS: [&str; 5] = ["futex", "madvise", "mprotect", "munmap", "sched_yield"];

/// Calls without which a socket that was made has no effect.
const USING: [&str; 6] = ["connect", "bind", "listen", "sendto", "sendmsg", "sendmmsg"];

/// A learnt policy.
#[derive(Clone, Debug)]
pub struct Learnt {
    /// The smallest policy; what is neither call, path nor network is the preset's.
    pub policy: Policy,
    /// How it differs from the preset.
    pub difference: Difference,
    /// What the policy does not say, and whoever uses it should know.
    pub notes: Vec<String>,
}

/// What a preset lacks for a program, and what it has beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The preset's name.
    pub preset: &'static str,
    /// Calls, with arguments where only these are missing.
    pub calls: Vec<String>,
    /// Paths that it does not let read, write or execute, in that order.
    pub paths: [Vec<PathBuf>; 3],
    /// Sockets are needed that it does not have.
    pub network: bool,
    /// Calls that it allows and the program did not make.
    pub unused: Vec<&'static str>,
}

/// Makes the policy, with the preset of this name or the one that lacks least. As root, guests have uids of their own: what only root may do
/// is left out then.
pub fn learnt(
    observed: &Observed,
    preset: Option<&'static str>,
    arch: Arch,
    fold: usize,
    root: bool,
) -> Option<Learnt> {
    let mut notes = Vec::new();
    let network = network(observed, &mut notes);
    let filesystem = filesystem(observed, fold, root, &mut notes);
    let syscalls = syscalls(observed, &network);
    let compare = |name: &&'static str| {
        let preset = Policy::preset(name)?;
        let difference = Difference::of(
            &syscalls,
            &filesystem,
            &network,
            &preset,
            name,
            observed,
            arch,
        );
        Some((difference, preset))
    };
    let (difference, preset) = match preset {
        Some(name) => compare(&name)?,
        None => Policy::PRESETS
            .iter()
            .filter_map(compare)
            .min_by_key(|(difference, _)| difference.distance())?,
    };
    let killed = preset
        .syscalls
        .killed()
        .filter(|name| !syscalls.allows(name));
    let killed: Vec<_> = killed.map(str::to_owned).collect();
    notes.extend(remarks(observed));
    let mut policy = preset;
    policy.syscalls = syscalls.kill(killed);
    policy.filesystem = filesystem;
    policy.network = network;
    let problems = policy.problems().into_iter();
    notes.extend(problems.map(|problem| format!("no sandbox takes this policy: {problem}")));
    Some(Learnt {
        policy,
        difference,
        notes,
    })
}

fn network(observed: &Observed, notes: &mut Vec<String>) -> Network {
    let sockets = &observed.network;
    let connect = sockets.connect.iter().copied().filter(|port| *port != 0);
    let mut bind = sockets.bind.clone();
    if sockets.listens && bind.is_empty() {
        bind.insert(0);
    }
    let unused = |call: &&str| !observed.calls.contains_key(*call);
    match (sockets.reach, Network::tcp(connect, bind)) {
        (Reach::Nothing | Reach::Pairs, _) => Network::Denied,
        (reach, Network::Tcp { connect, bind })
            if connect.is_empty()
                && bind.is_empty()
                && (reach == Reach::Tcp || USING.iter().all(unused)) =>
        {
            notes.push(
                "it makes sockets and does not use them; network is \"denied\", under which that is a denied call, and most \
                 programs go on"
                    .into(),
            );
            Network::Denied
        }
        (Reach::Tcp, tcp) => tcp,
        (Reach::Host, _) => {
            notes.push(format!(
                "network is \"host\", which bounds nothing, for: {}",
                listed(&sockets.beyond)
            ));
            Network::Host
        }
    }
}

fn filesystem(observed: &Observed, fold: usize, root: bool, notes: &mut Vec<String>) -> Filesystem {
    let mut paths = observed.paths.clone();
    // What is gone cannot be granted; what was made and removed is granted with its directory.
    paths.retain(|path, _| path.exists());
    let groups = paths.len();
    paths.retain(|path, _| !path.starts_with("/sys/fs/cgroup"));
    if paths.len() < groups {
        notes.push(
            "it reads its control group; a guest is in one of its own, whose files are not granted"
                .into(),
        );
    }
    let mut closed = BTreeSet::new();
    let mut ungrantable = observed.ungrantable.clone();
    for (path, uses) in &mut paths {
        if uses.write && !writable(path) {
            ungrantable.insert(path.clone());
            uses.write = false;
        }
        if root {
            let wanted = [
                (4, &mut uses.read),
                (2, &mut uses.write),
                (1, &mut uses.execute),
            ];
            for (right, used) in wanted {
                if *used && !open_to_others(path, right) {
                    *used = false;
                    closed.insert(path.clone());
                }
            }
        }
    }
    if !closed.is_empty() {
        notes.push(format!(
            "left out, since a guest with a uid of its own could not use them as root did here, whatever is granted: {}",
            listed(closed.iter().map(|path| path.display()))
        ));
    }
    if !ungrantable.is_empty() {
        notes.push(format!(
            "no policy grants writing to: {}",
            listed(ungrantable.iter().map(|path| path.display()))
        ));
    }
    if paths.contains_key(Path::new("/proc")) {
        notes.push(
            "/proc is read for processes that the program starts: guests with it see the command lines of others".into(),
        );
    }
    let temporary = |path: &Path| ["/tmp", "/var/tmp"].iter().any(|top| path.starts_with(top));
    if paths
        .iter()
        .any(|(path, uses)| uses.write && temporary(path))
    {
        notes.push(
            "it writes to a directory for temporary files without asking TMPDIR, which names the scratch directory; that \
             directory is everybody's, and where guests share this program's uid such a policy is refused"
                .into(),
        );
    }
    let mut filesystem = grants(&paths, fold);
    filesystem.execute_scratch = observed.executes_scratch;
    filesystem
}

/// Whether a policy with this path to write to is without problems.
fn writable(path: &Path) -> bool {
    let mut filesystem = Filesystem::default();
    filesystem.write.push(path.to_owned());
    Policy::new(SyscallPolicy::new(), filesystem)
        .problems()
        .is_empty()
}

/// Whether a user to whom nothing here belongs has this right (of mode bits), and may get there.
fn open_to_others(path: &Path, right: u32) -> bool {
    let has = |path: &Path, right| {
        std::fs::metadata(path).is_ok_and(|found| found.mode() & right == right)
    };
    let enter = |directory: &Path| has(directory, 1);
    has(path, right) && path.ancestors().skip(1).all(enter)
}

fn syscalls(observed: &Observed, network: &Network) -> SyscallPolicy {
    let threads = observed.rules.iter().any(|rule| rule.call() == "clone");
    let threads = if threads { &THREADS[..] } else { &[] };
    let timing = ALWAYS.iter().chain(threads).copied();
    let plain = observed.plain.iter().map(String::as_str).chain(timing);
    let mut policy = SyscallPolicy::new().allow(plain);
    // Not in the order in which threads came by, so that one program has one policy.
    let mut rules: Vec<_> = observed.rules.iter().collect();
    rules.sort_by_cached_key(|rule| described(rule));
    rules.retain(|rule| !observed.plain.contains(rule.call()));
    for rule in rules {
        policy = policy.allow_when(rule.clone());
    }
    let sockets = &observed.network;
    let pairs = sockets.pairs || sockets.reach == Reach::Pairs;
    if pairs && *network != Network::Host {
        policy = policy.allow_group(SyscallGroup::SocketPair);
    }
    policy
}

fn remarks(observed: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    if observed.shared_memory {
        notes.push(
            "it uses /dev/shm, which guests have where their scratch directory is bounded (limits.scratch, CAP_SYS_ADMIN), \
             and not elsewhere"
                .into(),
        );
    }
    if !observed.refused.is_empty() {
        let refused = listed(&observed.refused);
        notes.push(format!("refused here as under every policy: {refused}"));
    }
    if !observed.foreign.is_empty() {
        let foreign = listed(&observed.foreign);
        notes.push(format!("calls for which every guest is killed: {foreign}"));
    }
    if observed.unread > 0 {
        notes.push(format!(
            "{} paths or addresses could not be read from the program and are missing",
            observed.unread
        ));
    }
    notes
}

impl Difference {
    fn of(
        syscalls: &SyscallPolicy,
        filesystem: &Filesystem,
        network: &Network,
        preset: &Policy,
        name: &'static str,
        observed: &Observed,
        arch: Arch,
    ) -> Self {
        let theirs = &preset.syscalls;
        let plainly = |call: &str| {
            theirs.calls().any(|name| name == call)
                || theirs.groups().any(|group| group.calls().contains(&call))
        };
        let ruled = |rule: &Rule| {
            theirs.rules().contains(rule)
                || theirs.groups().any(|group| group.rules().contains(rule))
        };
        let plain = syscalls
            .calls()
            .filter(|call| !plainly(call))
            .map(String::from);
        let rules = syscalls.rules().iter();
        let rules = rules.filter(|rule| !plainly(rule.call()) && !ruled(rule));
        let groups = syscalls
            .groups()
            .filter(|group| !theirs.groups().any(|other| other == *group));
        let calls = plain
            .chain(rules.map(described))
            .chain(groups.map(|group| format!("the group {group}")));
        let lists = |filesystem: &Filesystem| {
            let lists = [&filesystem.read, &filesystem.write, &filesystem.execute];
            lists.map(|paths| paths.iter().map(|path| resolved(path)).collect::<Vec<_>>())
        };
        let [read, write, execute] = lists(&preset.filesystem);
        let everything: Vec<_> = [&read, &write, &execute]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let mut paths = lists(filesystem);
        for (wanted, granted) in paths.iter_mut().zip([&everything, &write, &execute]) {
            wanted.retain(|path| !beneath_any(path, granted.iter()));
        }
        let made = |call: &str| observed.calls.contains_key(call) || FLOOR.contains(&call);
        let names = arch.calls().map(|(_, call)| call);
        Self {
            preset: name,
            calls: calls.collect(),
            paths,
            network: *network != Network::Denied && *network != preset.network,
            unused: names
                .filter(|call| theirs.allows(call) && !made(call))
                .collect(),
        }
    }

    /// The order of presets: what they lack, and then what they have in vain.
    fn distance(&self) -> (usize, usize, usize) {
        let paths = self.paths.iter().map(Vec::len).sum();
        (self.calls.len(), paths, self.unused.len())
    }

    /// Whether the preset is enough.
    pub fn is_covered(&self) -> bool {
        self.calls.is_empty() && self.paths.iter().all(Vec::is_empty) && !self.network
    }
}

/// What a grant leads to, as the paths that were seen are without links.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A rule for people.
fn described(rule: &Rule) -> String {
    let tests = rule.arguments().iter().map(|test| {
        let mask = test.mask().map(|mask| format!(" & {mask:#x}"));
        let mask = mask.unwrap_or_default();
        format!("argument {}{mask} is {:#x}", test.index(), test.value())
    });
    let tests: Vec<_> = tests.collect();
    format!("{} where {}", rule.call(), tests.join(" and "))
}

fn listed<T: ToString>(things: impl IntoIterator<Item = T>) -> String {
    let things: Vec<_> = things.into_iter().map(|thing| thing.to_string()).collect();
    things.join(", ")
}
