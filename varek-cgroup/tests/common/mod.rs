//! What the tests on a real host share.
#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

pub(crate) mod sys;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use varek_cgroup::{Controller, Error, Group, Layout, Limits, Removal, Subtree};

/// A bound for what should happen at once, so that a fault ends as a failure and not as a hang.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

pub(crate) const MIB: u64 = 1024 * 1024;

/// A subtree, or `None` with the reason on stderr where this host or user cannot have one.
pub(crate) fn prepared(test: &str, required: &[Controller], aggregate: &Limits) -> Option<Subtree> {
    let made = Layout::probe().and_then(|layout| Subtree::prepare(&layout, required, aggregate));
    match made {
        Ok(subtree) => Some(subtree),
        Err(
            error @ (Error::NoUnifiedMount { .. }
            | Error::NoKill { .. }
            | Error::OwnGroupHidden { .. }
            | Error::ControllerUnavailable { .. }
            | Error::NotDelegated { .. }
            | Error::ReadOnly { .. }
            | Error::InternalProcesses { .. }),
        ) => {
            not_run(test, &error.to_string());
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Says that a test did not run; a failure where all must run.
pub(crate) fn not_run(test: &str, reason: &str) {
    assert_ne!(
        std::env::var("VAREK_TEST_REQUIRE").as_deref(),
        Ok("all"),
        "not run: {test}: {reason}"
    );
    eprintln!("not run: {test}: {reason}");
}

/// Says that a guarantee has no subject on this host, so that there is nothing to test.
pub(crate) fn without_subject(test: &str, reason: &str) {
    eprintln!("nothing to test: {test}: {reason}");
}

/// A shell that is in the group before it does anything: it waits for a line first.
pub(crate) fn shell(group: &Group, script: &str) -> Child {
    let mut child = Command::new("/bin/sh")
        .args(["-c", &format!("read go\n{script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    place(group, child.id());
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    child
}

/// Moves a process into the group in every hierarchy.
pub(crate) fn place(group: &Group, pid: u32) {
    let pid = pid.to_string();
    rustix::io::write(group.place_file().unwrap(), pid.as_bytes()).unwrap();
    for file in group.placements() {
        rustix::io::write(file, pid.as_bytes()).unwrap();
    }
}

/// Waits for the next line of a child's output.
pub(crate) fn line(child: &mut Child) -> String {
    let mut text = Vec::new();
    let mut byte = [0_u8];
    let output = child.stdout.as_mut().unwrap();
    while output.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Whether the descriptor tells of a change, waiting at most so long.
pub(crate) fn ready(fd: impl AsFd, bound: Duration) -> bool {
    // Control files can be read at any time; only a change makes them ready with priority.
    let kind = if is_eventfd(&fd) {
        PollFlags::IN
    } else {
        PollFlags::PRI
    };
    let mut polled = [PollFd::new(&fd, kind)];
    let bound = Timespec::try_from(bound).unwrap();
    rustix::event::poll(&mut polled, Some(&bound)).unwrap();
    polled[0].revents().contains(kind)
}

fn is_eventfd(fd: impl AsFd) -> bool {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(link)
        .unwrap()
        .to_string_lossy()
        .contains("eventfd")
}

/// Waits by `events` until the group is empty.
pub(crate) fn wait_until_empty(group: &Group) {
    let start = Instant::now();
    while group.populated().unwrap() {
        assert!(start.elapsed() < BOUND, "{:?} live on", group.processes());
        ready(group.events(), BOUND);
    }
}

/// Kills, waits and removes.
pub(crate) fn finish(group: &Group) {
    group.kill().unwrap();
    wait_until_empty(group);
    until("the group is removed", || {
        group.remove().unwrap() == Removal::Removed
    });
}

/// Tries until it is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < BOUND, "not after {BOUND:?}: {what}");
        std::thread::yield_now();
    }
}

/// Every directory of a control group file system whose path has `name` in it.
pub(crate) fn traces(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &mut |path| {
        if path.to_string_lossy().contains(name) {
            found.push(path.to_owned());
        }
    });
    found.sort();
    found
}

fn walk(path: &Path, visit: &mut impl FnMut(&Path)) {
    visit(path);
    // Groups of others come and go meanwhile.
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
}

/// The last part of the subtree's path, which is in the names of all its directories.
pub(crate) fn name(subtree: &Subtree) -> String {
    subtree
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

/// The directory of a process in the hierarchy that has a controller, and whether that is version 1.
pub(crate) fn directory_of(pid: u32, controller: &str) -> (PathBuf, bool) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for text in text.lines() {
        let mut fields = text.splitn(3, ':');
        let (_, names, path) = (
            fields.next().unwrap(),
            fields.next().unwrap(),
            fields.next().unwrap(),
        );
        if names.split(',').any(|name| name == controller) {
            let mount = Path::new("/sys/fs/cgroup").join(controller);
            return (mount.join(path.trim_start_matches('/')), true);
        }
        if names.is_empty() {
            let mount = Layout::probe().unwrap().mount_point().to_owned();
            return (mount.join(path.trim_start_matches('/')), false);
        }
    }
    panic!("no group of {pid} for {controller}: {text}");
}

/// A descriptor is close-on-exec, and its number is not one of the standard streams.
pub(crate) fn assert_private(fd: &(impl AsFd + std::fmt::Debug)) {
    use std::os::fd::AsRawFd;
    assert!(fd.as_fd().as_raw_fd() > 2);
    let flags = rustix::io::fcntl_getfd(fd).unwrap();
    assert!(
        flags.contains(rustix::io::FdFlags::CLOEXEC),
        "{fd:?} is inherited"
    );
}
