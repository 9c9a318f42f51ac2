//! Guarantees that no other file of this folder has as its subject.
#![allow(missing_docs, reason = "a test program")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use embedder::{field, own_uids, sys, until};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use support::{assert_gone, sandbox_or_not_run, text};
use varek_core::{
    Child, Command, Error, Event, EventKind, Flushed, Host, Input, Outcome, Policy, Sandbox,
    SandboxBuilder, SetupStep, Termination,
};

fn native() -> Policy {
    own_uids(Policy::native()).wall_clock(Duration::from_secs(60))
}

fn cat() -> Command {
    Command::new("/bin/cat").stdin(Input::piped())
}

/// How many descriptors are in the epolls of this process.
fn watched() -> usize {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
        })
        .map(|entry| {
            let number = entry.file_name().into_string().unwrap();
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
            info.lines().filter(|line| line.starts_with("tfd:")).count()
        })
        .sum()
}

#[test]
fn a_run_that_is_over_is_not_watched_though_a_forked_copy_holds_its_descriptors() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let idle = watched();
    let mut child = sandbox.spawn(cat()).unwrap();
    assert!(watched() > idle);
    let copy = sys::fork().unwrap();
    if copy == 0 {
        loop {
            std::thread::park();
        }
    }
    // The copy has the guest's stdin open too.
    child.kill();
    assert_gone(&child.wait().unwrap());
    let left = watched();
    let copy = Pid::from_raw(copy).unwrap();
    kill_process(copy, Signal::KILL).unwrap();
    waitpid(Some(copy), WaitOptions::empty()).unwrap();
    assert_eq!(left, idle, "a level that nobody takes away is a busy loop");
}

#[test]
fn a_forked_copy_that_waits_for_the_original_s_guest_is_told_so() {
    alone!();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(cat()).unwrap();
    let copy = sys::fork().unwrap();
    if copy == 0 {
        let waited = matches!(child.wait(), Err(Error::ForkedCopy));
        let asked = matches!(child.try_wait(), Err(Error::ForkedCopy));
        sys::exit(if waited && asked { 7 } else { 8 });
    }
    let copy = Pid::from_raw(copy).unwrap();
    let mut status = None;
    let ended = until(|| {
        status = waitpid(Some(copy), WaitOptions::NOHANG).unwrap();
        status.is_some()
    });
    if !ended {
        kill_process(copy, Signal::KILL).unwrap();
        waitpid(Some(copy), WaitOptions::empty()).unwrap();
    }
    assert_eq!(status.and_then(|(_, status)| status.exit_status()), Some(7));
    child.stdin = None;
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_longest_times_there_are_neither_overflow_nor_end_the_supervisor() {
    let sandbox = sandbox!(native().cpu_time(Duration::from_secs(3_000_000_000)));
    let outcome = sandbox.run(Command::new("/bin/true")).unwrap();
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(sandbox.flush(Duration::MAX), Flushed::Complete);
    let problems = native().cpu_time(Duration::MAX).problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].field, "limits.cpu_time");
}

/// A waker that panics, as one of a runtime that is shutting down may.
struct Trap(AtomicBool);

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        panic!("a runtime's own fault");
    }
}

#[test]
fn a_waker_that_panics_harms_no_other_run() {
    let sandbox = sandbox!(native());
    let mut other = sandbox.spawn(cat()).unwrap();
    let mut child = sandbox.spawn(cat()).unwrap();
    let trap = Arc::new(Trap(AtomicBool::new(false)));
    let waker = Waker::from(trap.clone());
    let pending = std::pin::pin!(&mut child)
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending();
    assert!(pending);
    child.stdin = None;
    assert!(until(|| trap.0.load(Ordering::Acquire)));
    assert!(child.wait().unwrap().success());
    other.stdin = None;
    assert!(other.wait().unwrap().success());
    assert!(sandbox.run(Command::new("/bin/true")).unwrap().success());
}

#[test]
fn a_sink_has_its_events_and_its_thread_blocks_signals() {
    alone!();
    let events = Arc::new(Mutex::new(Vec::new()));
    let masks = Arc::new(Mutex::new(Vec::new()));
    let (seen, mask) = (events.clone(), masks.clone());
    let sink = move |event: &Event| {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        mask.lock()
            .unwrap()
            .push(u64::from_str_radix(field(&status, "SigBlk").unwrap(), 16).unwrap());
        seen.lock().unwrap().push(event.clone());
    };
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let sandbox = match Sandbox::builder(native()).sink(sink).build() {
        Ok(sandbox) => sandbox,
        Err(error) => return support::not_run(test_name!(), &error.to_string()),
    };
    let after = fs::read_to_string("/proc/thread-self/status").unwrap();
    assert_eq!(field(&own, "SigBlk"), field(&after, "SigBlk"));
    let outcome = sandbox.run(Command::new("/bin/true")).unwrap();
    // The last handle of all: what was recorded before it went has arrived when it is gone.
    drop(sandbox);
    let events = events.lock().unwrap();
    assert!(
        matches!(events.last().unwrap().kind, EventKind::RunFinished { .. }),
        "{events:?}"
    );
    assert!(events.iter().all(|event| event.run == outcome.run));
    // SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGALRM.
    for mask in masks.lock().unwrap().iter() {
        for signal in [15, 2, 10, 17, 14] {
            assert_ne!(mask & (1 << (signal - 1)), 0, "{signal} in {mask:x}");
        }
    }
    // What reached the sink reads back from JSON as it was.
    for event in events.iter() {
        let json = serde_json::to_string(event).unwrap();
        assert_eq!(
            &serde_json::from_str::<Event>(&json).unwrap(),
            event,
            "{json}"
        );
    }
}

#[test]
fn handles_can_be_sent_to_and_shared_by_threads() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn sent<T: Send + std::fmt::Debug>() {}
    fn future<T: Future<Output = Result<Outcome, Error>> + Unpin + Send + 'static>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    shared::<Sandbox>();
    shared::<Child>();
    shared::<Outcome>();
    shared::<Error>();
    shared::<Command>();
    shared::<Policy>();
    shared::<Host>();
    shared::<varek_core::ChildInput>();
    shared::<varek_core::ChildOutput>();
    sent::<SandboxBuilder>();
    future::<Child>();
    error::<Error>();
}

#[test]
fn a_failed_set_up_says_its_step_and_its_errno() {
    let sandbox = sandbox!(native());
    let command = Command::new("./none").executable("none", "\x7fELF, but not really");
    match sandbox.run(command) {
        Err(Error::Setup { step, source }) => {
            assert_eq!(step, SetupStep::Exec);
            assert_eq!(source.raw_os_error(), Some(libc::ENOEXEC));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_embedder_without_stdio_has_a_guardian_too() {
    alone!();
    sys::close(0);
    sys::close(2);
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let said = sandbox.enforcement().to_string();
    assert!(said.contains("by its guardian"), "{said}");
}

#[test]
fn an_embedder_with_limits_of_its_own_has_guests_that_keep_them() {
    alone!();
    // Below what the preset gives, and without the capability to raise it again.
    let most = Some(200);
    let lower = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, lower).unwrap();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets).unwrap();
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let shell = |script: &str| Command::new("/bin/sh").arg("-c").arg(script);
    let outcome = sandbox.run(shell("ulimit -Hn; ulimit -Sn")).unwrap();
    assert_eq!(text(&outcome), "200\n200\n", "{outcome}");
    // The control: what the policy asks below it is what the guest has.
    let mut policy = native();
    policy.limits.open_files = 100;
    let sandbox = Sandbox::new(policy).unwrap();
    let outcome = sandbox.run(shell("ulimit -Hn; ulimit -Sn")).unwrap();
    assert_eq!(text(&outcome), "100\n100\n", "{outcome}");
}
