//! The embedder as a process of its own: a test program that runs one of its tests again.
//!
//! What a whole process has (descriptors, threads, children, dispositions) can only be looked at where no
//! other test runs beside, and only a process of its own can be killed.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
pub(crate) mod sys;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open};
use varek_core::{Host, Identity, Policy, UidRange};

/// A bound for what should happen at once, so that a fault ends as a failure and not as a hang.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

const ROLE: &str = "VAREK_TEST_ROLE";
const OUTER: &str = "VAREK_TEST_OUTER";

/// The part that this process plays in a test that runs itself again; `None` in the first process.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This test program, which runs the test of this name alone, in this part.
pub(crate) fn again(test: &str, role: &str) -> Command {
    again_under(&[], test, role)
}

/// As [`again`], started by another program, which comes with its own arguments.
pub(crate) fn again_under(starter: &[&str], test: &str, role: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match starter {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    command.env(OUTER, std::process::id().to_string());
    command
}

/// Runs the process, whose output is shown if it fails.
#[track_caller]
pub(crate) fn passes(mut command: Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    // A name that selects no test passes too.
    assert!(
        text.contains("running 1 test"),
        "the test did not run itself again: {text}"
    );
    for line in errors.lines().filter(|line| line.starts_with("not run: ")) {
        eprintln!("{line}");
    }
}

/// The name of the function that this is written in, as the test harness wants it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here).trim_end_matches("::here");
        path.split_once("::").map_or(path, |(_, name)| name)
    }};
}

/// Runs the rest of the test in a process of its own: the first process waits for it and returns.
#[macro_export]
macro_rules! alone {
    () => {
        if embedder::role().is_none() {
            embedder::passes(embedder::again(test_name!(), "alone"));
            return;
        }
    };
}

/// The policy with uids that no other embedder on this machine uses, where the host has such uids.
///
/// 512 numbers for each process id, above the default range, so that whatever has such a uid belongs to
/// this test.
pub(crate) fn own_uids(mut policy: Policy) -> Policy {
    // Of the presets: a slow machine removes slowly, too.
    if policy.grace == Duration::from_secs(2) {
        policy.grace = crate::support::seconds(2);
    }
    if let Some(range) = uid_range(process()) {
        policy.identity = Identity::Separate(range);
    }
    policy
}

/// This process as the first process of a test sees it, which is not always the pid that it has in a pid
/// namespace of its own.
fn process() -> u32 {
    match (std::process::id(), std::env::var(OUTER)) {
        (1, Ok(outer)) => outer.parse().unwrap(),
        (own, _) => own,
    }
}

/// The uids of the tests of a process; `None` where they are not mapped.
pub(crate) fn uid_range(process: u32) -> Option<UidRange> {
    let first = 0x7100_0000 + (process % 32_768) * 512;
    let host = Host::probe();
    let mapped = host.uids.iter().flatten().any(|range| {
        range.first <= first
            && u64::from(first) + 512 <= u64::from(range.first) + u64::from(range.count)
    });
    mapped.then_some(UidRange::new(first, 512))
}

/// Processes with a uid of this range, except zombies: those wait for their parent, who may be process 1
/// of the machine.
pub(crate) fn processes_of(range: UidRange) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if field(&status, "State").is_none_or(|state| state.starts_with('Z')) {
            return false;
        }
        let uid =
            field(&status, "Uid").and_then(|uids| uids.split_whitespace().next()?.parse().ok());
        uid.is_some_and(|uid: u32| (range.first..range.first + range.count).contains(&uid))
    })
    .collect()
}

/// Lock files of uids of this range.
pub(crate) fn uid_locks(range: UidRange) -> Vec<PathBuf> {
    let files = fs::read_dir("/run/varek/uids")
        .into_iter()
        .flatten()
        .flatten();
    files
        .filter(|entry| {
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.parse::<u32>().ok());
            uid.is_some_and(|uid| (range.first..range.first + range.count).contains(&uid))
        })
        .map(|entry| entry.path())
        .collect()
}

/// A line `name: value` of a file of `/proc`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// The groups, in every hierarchy, that an embedder of this pid, in this pid namespace, has made: parent
/// groups and what is beneath them.
pub(crate) fn groups_of(process: u32) -> Vec<PathBuf> {
    let process = process.to_string();
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino().to_string();
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for mount in mounts.lines() {
        let mut words = mount.split(' ');
        let (Some(_), Some(at), Some("cgroup" | "cgroup2")) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        walk(Path::new(at), &mut |path| {
            // varek-<boot>-<pid namespace>-<pid>-<n>, with a suffix in version 1 hierarchies.
            let owned = path.iter().any(|part| {
                let mut parts = part.to_str().unwrap_or("").rsplit('-').skip(1);
                parts.next() == Some(&process) && parts.next() == Some(&namespace)
            });
            if owned {
                found.push(path.to_owned());
            }
        });
    }
    found
}

fn walk(directory: &Path, visit: &mut dyn FnMut(&Path)) {
    // A group may go while it is looked at.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path());
            walk(&entry.path(), visit);
        }
    }
}

/// Processes in the cgroup2 groups of an embedder of this pid.
pub(crate) fn members_of(process: u32) -> Vec<u32> {
    let mut members = Vec::new();
    for group in groups_of(process) {
        // Only cgroup2 has this file.
        if group.join("cgroup.events").exists() {
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            members.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
    }
    members
}

/// A child of an embedder that waits where its set-up is held, in its group or not.
pub(crate) fn held_child(process: u32) -> OwnedFd {
    let mut child = None;
    let there = until(|| {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        let children = tasks.into_iter().flatten().flatten().flat_map(|thread| {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let pids = text.split_whitespace().map(str::to_owned);
            pids.collect::<Vec<_>>()
        });
        child = children.into_iter().find(|pid| {
            let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
            if let Ok(call) = read("syscall") {
                return call.starts_with(&format!("{} ", libc::SYS_ppoll));
            }
            // Of a child with another uid it takes CAP_SYS_PTRACE: what sleeps there is held.
            let stat = read("stat").unwrap_or_default();
            stat.contains("(varek-spawner) S ")
        });
        child.is_some()
    });
    assert!(there, "no child is held");
    pidfd(child.unwrap().parse().unwrap())
}

/// Children of this process, zombies included, with their command names.
pub(crate) fn children() -> Vec<(u32, String)> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in text.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            children.push((pid, name.trim().to_owned()));
        }
    }
    children
}

/// Names of the threads of this process, with how many have each.
pub(crate) fn threads() -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").unwrap().flatten() {
        if let Ok(name) = fs::read_to_string(thread.path().join("comm")) {
            *names.entry(name.trim().to_owned()).or_default() += 1;
        }
    }
    names
}

/// Descriptors of this process by what they are, with how many there are of each. Locks of uids are left
/// out.
pub(crate) fn descriptors() -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        if target.starts_with("/run/varek/uids/") {
            continue;
        }
        // Pipes and sockets have a number of their own.
        let numbered = ["pipe", "socket"]
            .into_iter()
            .find(|name| target.starts_with(name));
        *kinds
            .entry(numbered.map_or_else(|| nameless(&target), str::to_owned))
            .or_default() += 1;
    }
    kinds
}

/// What an embedder has that runs must leave as it was. Names of runs and numbers are left out: what
/// counts is how many there are of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) children: usize,
    pub(crate) threads: BTreeMap<String, usize>,
    pub(crate) descriptors: BTreeMap<String, usize>,
    pub(crate) groups: BTreeMap<String, usize>,
    pub(crate) scratch: usize,
    pub(crate) guests: usize,
    pub(crate) dumpable: bool,
    /// Owner of `/proc/self`.
    pub(crate) owner: (u32, u32),
}

impl Census {
    /// Of this process, with the scratch directories in this place. Uids are counted by [`own_locks`].
    pub(crate) fn take(scratch_base: &Path) -> Self {
        let range = uid_range(process());
        let own = fs::metadata("/proc/self/stat").unwrap();
        let mut groups = BTreeMap::new();
        for group in groups_of(std::process::id()) {
            *groups
                .entry(nameless(&group.to_string_lossy()))
                .or_default() += 1;
        }
        Self {
            children: children().len(),
            threads: threads(),
            descriptors: descriptors(),
            groups,
            scratch: fs::read_dir(scratch_base).unwrap().count(),
            guests: range.map(processes_of).unwrap_or_default().len(),
            dumpable: dumpable(),
            owner: (own.uid(), own.gid()),
        }
    }

    /// Of an embedder that is doing nothing any more: a sandbox prepares its next runs by itself.
    pub(crate) fn settled(scratch_base: &Path) -> Self {
        // Both: a slow machine takes long over few looks, a fast one is through many in no time.
        const LOOKS: u32 = 20;
        const TIME: Duration = Duration::from_secs(1);
        let (mut last, mut same, mut since) = (Self::take(scratch_base), 0, Instant::now());
        let settled = until(|| {
            let now = Self::take(scratch_base);
            if now == last {
                same += 1;
            } else {
                (last, same, since) = (now, 0, Instant::now());
            }
            same >= LOOKS && since.elapsed() >= TIME
        });
        assert!(settled, "the embedder never comes to rest: {last:?}");
        last
    }

    /// Takes it until it is this one: a thread is in `/proc` for a moment after it has done its last work.
    #[track_caller]
    pub(crate) fn becomes_again(&self, scratch_base: &Path) {
        let mut now = Self::take(scratch_base);
        until(|| {
            now = Self::take(scratch_base);
            now == *self
        });
        assert_eq!(&now, self);
    }
}

/// Lock files of the uids of this process.
pub(crate) fn own_locks() -> Vec<PathBuf> {
    uid_range(process()).map(uid_locks).unwrap_or_default()
}

/// A path without the names of runs and without what counts up.
fn nameless(path: &str) -> String {
    let run = |part: &str| {
        let name = part.strip_prefix("varek-").unwrap_or(part);
        name.len() >= 32 && name.bytes().take(32).all(|byte| byte.is_ascii_hexdigit())
    };
    // A namespace is told by its number.
    let numbered =
        |(_, number): &(&str, &str)| number.starts_with(|first: char| first.is_ascii_digit());
    let path = path
        .split_once(":[")
        .filter(numbered)
        .map_or(path, |(kind, _)| kind);
    let parts = path
        .split('/')
        .map(|part| if run(part) { "RUN" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// PR_GET_DUMPABLE.
pub(crate) fn dumpable() -> bool {
    matches!(
        rustix::process::dumpable_behavior(),
        Ok(DumpableBehavior::Dumpable)
    )
}

/// Looks again until the condition holds or the bound is over; says whether it held. Only for what nothing
/// can be waited for by.
pub(crate) fn until(mut condition: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + BOUND;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= give_up {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pidfd of another process.
#[track_caller]
pub(crate) fn pidfd(process: u32) -> OwnedFd {
    let pid = Pid::from_raw(process.cast_signed()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Waits until the descriptor is readable: of a pidfd, until the process has ended.
#[track_caller]
pub(crate) fn readable(descriptor: impl AsFd) {
    assert!(
        becomes_readable(descriptor),
        "not readable within {BOUND:?}"
    );
}

/// As [`readable`]; says whether it came to that.
pub(crate) fn becomes_readable(descriptor: impl AsFd) -> bool {
    let bound = Timespec {
        tv_sec: BOUND.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&bound)) == Ok(1)
}

/// Whether the descriptor is readable now.
pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    ) == Ok(1)
}

/// A process that a test starts and kills: an embedder, whose lines are read from its stdout.
pub(crate) struct Victim {
    process: std::process::Child,
    unread: String,
}

impl Victim {
    pub(crate) fn start(mut command: Command) -> Self {
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            process,
            unread: String::new(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The rest of the next line that has this word in front; `None` at the end of the output.
    pub(crate) fn line(&mut self, word: &str) -> Option<String> {
        loop {
            while let Some((line, rest)) = self.unread.split_once('\n') {
                // The harness may have begun a line of its own before.
                let found = line
                    .split_once(word)
                    .map(|(_, rest)| rest.trim().to_owned());
                self.unread = rest.to_owned();
                if found.is_some() {
                    return found;
                }
            }
            let mut chunk = [0; 4096];
            let length = self.process.stdout.as_mut()?.read(&mut chunk).unwrap();
            if length == 0 {
                return None;
            }
            self.unread
                .push_str(std::str::from_utf8(&chunk[..length]).unwrap());
        }
    }

    /// As [`Victim::line`], of an embedder that must not have failed or ended.
    #[track_caller]
    pub(crate) fn says(&mut self, word: &str) -> String {
        self.line(word)
            .unwrap_or_else(|| panic!("the embedder ended before it said {word:?}"))
    }

    /// SIGKILL; returns when the process has ended.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "the embedder had ended before: {status}"
        );
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A scratch base of the test's own, through which guests can walk.
pub(crate) fn scratch_base() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    directory
}
