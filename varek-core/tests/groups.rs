//! A guest has no way to what bounds it: it cannot change its limits, leave its group, make another, or reach those
//! of others. As root the groups belong to somebody else; an ordinary user's belong to the very uid that the
//! guest has, and Landlock is what refuses.
//!
//! The control is the same source outside of a sandbox, in a group of the test with limits, in private mount and pid
//! namespaces.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use rustix::process::geteuid;
use support::{
    assert_clean, assert_gone, assert_killed, hit, hits, not_run, python, run, seconds, text,
};
use varek_cgroup::{Controller, Group, Hierarchy, Layout, Limits, Subtree};
use varek_core::{
    Cause, Child, Command, Input, MIB, Output, Policy, Resource, RunId, Sandbox, Signal,
    Termination,
};

/// What a guest can try. `SIBLING` is the name of a group beside its own, `OTHER` a process in it (0 for one that the
/// source puts there), and `EMPTY` one that can be removed.
const ATTACKS: &str = r"
import errno, os, signal

def places():
    member = {}
    for line in open('/proc/self/cgroup'):
        _, names, path = line.rstrip('\n').split(':', 2)
        for name in names.split(','): member[name] = path
    for line in open('/proc/self/mountinfo'):
        left, right = line.split(' - ')
        root, point = left.split()[3:5]
        kind, options = right.split()[0], right.split()[2]
        if kind not in ('cgroup', 'cgroup2'): continue
        names = [''] if kind == 'cgroup2' else options.split(',')
        path = next((member[name] for name in names if name in member), None)
        root = root.rstrip('/')
        if path is not None and path.startswith(root):
            yield (point + path[len(root):]).rstrip('/'), point, kind == 'cgroup2'

def attempt(name, act):
    try:
        act()
        answer = 'ok'
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(name, answer, sep='=', flush=True)

def write(path, text):
    file = os.open(path, os.O_WRONLY)
    try: os.write(file, text)
    finally: os.close(file)

def open_file(path, **more):
    os.close(os.open(path, os.O_WRONLY, **more))

LIMITS = {
    'memory.max': b'max', 'memory.high': b'max', 'memory.swap.max': b'max', 'memory.oom.group': b'0',
    'pids.max': b'max', 'cpu.max': b'max', 'cpu.weight': b'100', 'cgroup.max.depth': b'max', 'cgroup.freeze': b'0',
    'memory.memsw.limit_in_bytes': b'-1', 'memory.limit_in_bytes': b'-1', 'cpu.cfs_quota_us': b'-1',
}
MORE = ['cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control', 'cgroup.type', 'cgroup.kill', 'tasks',
        'cgroup.event_control', 'cgroup.clone_children', 'notify_on_release', 'release_agent', 'memory.oom_control']

here = [place for place in places() if os.path.basename(os.path.dirname(place[0])).startswith('varek-')]
unified = next(own for own, _, version_2 in here if version_2)
above, beside = os.path.dirname(unified), os.path.join(os.path.dirname(unified), SIBLING)

for own, _, _ in here:
    for group, name in ((own, 'limits'), (os.path.dirname(own), 'limits above')):
        for file, value in LIMITS.items():
            path = os.path.join(group, file)
            if os.path.exists(path): attempt(name, lambda: write(path, value))

# Every group on the way to the root, and every one that can be listed.
directories = set()
for own, point, _ in places():
    while own.startswith(point):
        directories.add(own)
        own = os.path.dirname(own)
    for directory, _, _ in os.walk(point): directories.add(directory)
for directory in sorted(directories):
    for file in [*LIMITS, *MORE]:
        path = os.path.join(directory, file)
        if os.path.exists(path): attempt('open', lambda: open_file(path))
handle = os.open(unified, os.O_PATH)
attempt('open by descriptor', lambda: open_file('cgroup.procs', dir_fd=handle))
attempt('open by /proc', lambda: open_file('/proc/self/root' + unified + '/cgroup.procs'))

attempt('make', lambda: os.mkdir(unified + '/made'))
attempt('make above', lambda: os.mkdir(above + '/made'))
for group in (unified, above):
    try: os.rmdir(group + '/made')
    except OSError: pass
attempt('remove', lambda: os.rmdir(os.path.join(above, EMPTY)))
attempt('mode', lambda: os.chmod(unified + '/cgroup.procs', 0o666))
attempt('owner', lambda: os.chown(unified + '/cgroup.procs', os.getuid(), os.getgid()))
attempt('times', lambda: os.utime(unified + '/cgroup.procs'))
attempt('attribute', lambda: os.setxattr(unified, 'user.varek', b'x'))

child = os.fork()
if child == 0:
    while True: signal.pause()
attempt('move a child', lambda: write(beside + '/cgroup.procs', b'%d' % child))
attempt('move another', lambda: write(unified + '/cgroup.procs', b'%d' % (OTHER or child)))
attempt('move up', lambda: write(above + '/cgroup.procs', b'0'))
attempt('move', lambda: write(beside + '/cgroup.procs', b'0'))
attempt('move back', lambda: write(unified + '/cgroup.procs', b'0'))
try: write(beside + '/cgroup.procs', b'%d' % child)
except OSError: pass
attempt('kill another', lambda: write(beside + '/cgroup.kill', b'1'))
os.kill(child, 9)
os.waitpid(child, 0)

print('through', flush=True)
# Itself included.
attempt('kill above', lambda: write(above + '/cgroup.kill', b'1'))
";

/// The attacks, for a guest or process beside groups of these names.
fn attacks(sibling: &str, empty: &str, other: u32) -> String {
    format!("SIBLING, EMPTY, OTHER = {sibling:?}, {empty:?}, {other}\n{ATTACKS}")
}

/// What came of the attacks: their names, with an answer each.
fn answers(output: &str) -> Vec<(&str, &str)> {
    output
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect()
}

/// A guest that has said that it runs, and waits for the end of its input.
fn waiting(sandbox: &Sandbox) -> Child {
    let command = Command::python("import sys; print('up', flush=True); sys.stdin.read()");
    let mut child = sandbox
        .spawn(command.stdin(Input::piped()).stdout(Output::piped()))
        .unwrap();
    let mut up = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
    child
}

fn limited() -> Policy {
    python().memory(64 * MIB).pids(8).wall_clock(seconds(60))
}

#[test]
fn a_guest_cannot_change_leave_or_reach_any_group() {
    let mut names = BTreeSet::new();
    for policy in [limited(), limited().read("/sys/fs/cgroup")] {
        let sandbox = sandbox!(policy);
        let mut other = waiting(&sandbox);
        let sibling = other.run().to_string();
        // Behind the attacks, the limits are what they were.
        let then = "made = 0\n\
                    try:\n\
                    \x20   while True:\n\
                    \x20       if os.fork() == 0: signal.pause()\n\
                    \x20       made += 1\n\
                    except BlockingIOError: print('children', made, flush=True)\n\
                    b = bytearray(200 << 20)\n\
                    for i in range(0, len(b), 4096): b[i] = 1\n";
        let source = attacks(&sibling, &sibling, other.id()) + then;
        let outcome = run(&sandbox, &source);
        let output = text(&outcome);
        let stderr = outcome.stderr.to_text();
        assert!(
            output.contains("through\n"),
            "{outcome}\n{output}\n{stderr}"
        );
        for (name, answer) in answers(&output) {
            // An answer such as ENOENT would be a fault of the test.
            assert!(["EACCES", "EPERM"].contains(&answer), "{name}: {answer}");
            names.insert(name.to_owned());
        }
        assert!(output.contains("children 7\n"), "{output}");
        assert_killed(&outcome, &Cause::OutOfMemory);
        assert_eq!(hit(&outcome, Resource::Memory).limit, Some(64 * MIB));
        assert_eq!(hit(&outcome, Resource::Pids).limit, Some(8));
        assert!(other.try_wait().unwrap().is_none(), "another guest is gone");
        drop(other.stdin.take());
        assert_clean(&other.wait().unwrap());
    }
    let Some(possible) = control("a_guest_cannot_change_leave_or_reach_any_group") else {
        return;
    };
    // Whatever the guest tried works where nothing refuses it, but what no kernel allows: a process in a group that
    // has children with controllers. The last kills the control, which has been seen.
    names.remove("move up");
    names.remove("kill above");
    assert!(names.len() >= 15, "{names:?}");
    let missing: Vec<_> = names.difference(&possible).collect();
    assert!(missing.is_empty(), "{missing:?} of {possible:?}");
}

/// Runs the attacks outside of a sandbox, in a group of this test, and gives the names of those that worked. `None`,
/// which is said, where the host has no private namespaces for it.
fn control(test: &str) -> Option<BTreeSet<String>> {
    let limits = Limits {
        memory: Some(64 * MIB),
        pids: Some(16),
        ..Limits::default()
    };
    let needed = [Controller::Memory, Controller::Pids];
    let subtree = Subtree::prepare(&Layout::probe().unwrap(), &needed, &Limits::default()).unwrap();
    let own = subtree.create("own", &limits).unwrap();
    let sibling = subtree.create("sibling", &limits).unwrap();
    let empty = subtree.create("empty", &limits).unwrap();

    let (output, errors, killed) = in_group(&own, &attacks("sibling", "empty", 0), &[]);
    if errors.contains("unshare: ") {
        not_run(test, &format!("the control: {errors}"));
        return None;
    }
    assert!(output.contains("through\n"), "{output}\n{errors}");
    assert!(killed, "the group above was not killed: {output}\n{errors}");
    drop((own, sibling, empty));
    subtree.remove().unwrap();
    let worked = answers(&output).into_iter();
    let worked = worked.filter(|(_, answer)| *answer == "ok");
    Some(worked.map(|(name, _)| name.to_owned()).collect())
}

/// Runs Python source in this group and in private mount and pid namespaces (and those of these options of
/// unshare(1)): what it wrote, and whether it was killed.
fn in_group(group: &Group, source: &str, options: &[&str]) -> (String, String, bool) {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("attacks.py");
    fs::write(&script, source).unwrap();
    let user: &[&str] = if geteuid().is_root() {
        &[]
    } else {
        &["--user", "--map-current-user"]
    };
    // The shell waits until it is in the group, before anything is unshared.
    let mut child = Process::new("sh")
        .args(["-c", "read go && exec \"$@\"", "sh", "unshare"])
        .args(if options.is_empty() { user } else { options })
        .args(["--mount", "--pid", "--fork", "--kill-child", "python3"])
        .arg(&script)
        .current_dir(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    rustix::io::write(group.place_file().unwrap(), pid.as_bytes()).unwrap();
    for file in group.placements() {
        rustix::io::write(file, pid.as_bytes()).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
        output.status.signal() == Some(9),
    )
}

/// Mounts a control group file system of its own, by the old interface or the new one, and opens it for writing.
fn mounts(how: &str) -> String {
    format!(
        "import ctypes, os\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def check(answer):\n\
         \x20   if answer < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n\
         \x20   return answer\n\
         here = os.getcwd().encode()\n\
         {how}\n\
         os.close(os.open('cgroup.procs', os.O_WRONLY, dir_fd=tree))\n\
         print('mounted')\n"
    )
}

#[test]
fn a_guest_that_mounts_a_control_group_file_system_is_killed() {
    let name = "a_guest_that_mounts_a_control_group_file_system_is_killed";
    if support::filtered_outside(name) {
        return;
    }
    let sandbox = sandbox!(limited());
    let old = "check(libc.mount(b'none', here, b'cgroup2', 0, None))\n\
               tree = os.open(here, os.O_RDONLY)";
    // fsopen, fsconfig(FSCONFIG_CMD_CREATE) and fsmount, which have these numbers everywhere.
    let new = "context = check(libc.syscall(430, b'cgroup2', 0))\n\
               check(libc.syscall(431, context, 6, None, None, 0))\n\
               tree = check(libc.syscall(432, context, 0, 0))";
    for (call, how) in [("mount", old), ("fsopen", new)] {
        let source = mounts(how);
        let outcome = run(&sandbox, &source);
        assert_killed(&outcome, &Cause::Syscall { name: call.into() });
        assert!(!text(&outcome).contains("mounted"), "{outcome}");

        // An ordinary user can in a user namespace of its own, which has a namespace of groups too.
        let subtree = Subtree::prepare(&Layout::probe().unwrap(), &[], &Limits::default()).unwrap();
        let group = subtree.create("own", &Limits::default()).unwrap();
        let options: &[&str] = if geteuid().is_root() {
            &[]
        } else {
            &["--user", "--map-root-user", "--cgroup"]
        };
        let (output, errors, _) = in_group(&group, &source, options);
        if errors.contains("unshare: ") {
            not_run(name, &format!("the control: {errors}"));
            return;
        }
        assert_eq!(output, "mounted\n", "{call}: {errors}");
        drop(group);
        subtree.remove().unwrap();
    }
}

// ---- what the kernel does and says ----

/// The directories of a run's group, in every hierarchy.
fn directories(run: RunId) -> Vec<PathBuf> {
    let mut found = embedder::groups_of(std::process::id());
    found.retain(|path| path.ends_with(run.to_string()));
    assert!(!found.is_empty(), "{run}");
    found
}

/// What is in the file of this name of the group.
fn value(directories: &[PathBuf], name: &str) -> Option<String> {
    let mut files = directories.iter().map(|directory| directory.join(name));
    let text = fs::read_to_string(files.find(|file| file.exists())?).unwrap();
    Some(text.trim().to_owned())
}

#[test]
fn limits_are_in_the_files_of_the_version_that_the_host_has() {
    let sandbox = sandbox!(limited());
    let mut child = waiting(&sandbox);
    let group = directories(child.run());
    let is = |name: &str, expected: &str| {
        assert_eq!(value(&group, name).as_deref(), Some(expected), "{name}");
    };
    let bytes = (64 * MIB).to_string();
    is("pids.max", "8");
    match hierarchy() {
        Hierarchy::Unified => {
            assert_eq!(group.len(), 1);
            is("memory.max", &bytes);
            is("memory.oom.group", "1");
            // None, where the kernel accounts for swap.
            assert_ne!(value(&group, "memory.swap.max").as_deref(), Some("max"));
        }
        _ => is("memory.limit_in_bytes", &bytes),
    }
    drop(child.stdin.take());
    assert_clean(&child.wait().unwrap());
}

fn hierarchy() -> Hierarchy {
    Layout::probe().unwrap().hierarchy()
}

#[test]
fn what_the_kernel_counted_is_named_by_the_files_that_it_is_in() {
    let sandbox = sandbox!(limited());
    // A child alone is over the limit; the first process would wait for ever.
    let hog = "import os, signal\n\
               if os.fork() == 0:\n\
               \x20   b = bytearray(200 << 20)\n\
               \x20   for i in range(0, len(b), 4096): b[i] = 1\n\
               \x20   os._exit(0)\n\
               while True: signal.pause()\n";
    let outcome = run(&sandbox, hog);
    assert_killed(&outcome, &Cause::OutOfMemory);
    let unified = hierarchy() == Hierarchy::Unified;
    let evidence = &hit(&outcome, Resource::Memory).evidence;
    let expected = if unified {
        "memory.events oom_kill, with memory.events.local max, oom = "
    } else {
        "memory.oom_control oom_kill, with "
    };
    assert!(evidence.starts_with(expected), "{evidence}");
    if unified {
        // The kernel killed both for one shortage: `memory.oom.group`.
        assert!(hit(&outcome, Resource::Memory).count >= 2, "{outcome}");
    }

    let forks = "import os, signal\n\
                 try:\n\
                 \x20   while True:\n\
                 \x20       if os.fork() == 0: signal.pause()\n\
                 except BlockingIOError: pass\n";
    let outcome = run(&sandbox, forks);
    let evidence = &hit(&outcome, Resource::Pids).evidence;
    assert!(evidence.starts_with("pids.events max, "), "{evidence}");
    assert_gone(&outcome);
}

#[test]
fn a_kill_of_its_group_by_somebody_else_ends_the_whole_tree_and_is_not_blamed_on_the_guest() {
    let sandbox = sandbox!(limited());
    let tree = "import os, signal\n\
                if os.fork() == 0:\n\
                \x20   os.setsid()\n\
                \x20   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                \x20   os.write(1, b'%d\\n' % os.getpid())\n\
                \x20   while True: signal.sigwait([signal.SIGUSR1])\n\
                while True: signal.pause()\n";
    let command = Command::python(tree).stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let descendant = embedder::pidfd(line.trim().parse().unwrap());
    let kill = directories(child.run())
        .into_iter()
        .map(|group| group.join("cgroup.kill"))
        .find(|file| file.exists());
    fs::write(kill.unwrap(), "1").unwrap();
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal::KILL),
        "{outcome}"
    );
    assert_eq!(outcome.violation(), None, "{outcome}");
    assert!(hits(&outcome, Resource::Memory).is_empty(), "{outcome}");
    assert_gone(&outcome);
    assert!(embedder::is_readable(&descendant));
}
