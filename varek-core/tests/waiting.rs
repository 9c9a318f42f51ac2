//! The end of a run: however it is waited for, or not, it comes in time and says the same.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::collections::BTreeMap;
use std::future::Future as _;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use embedder::{is_readable, own_uids, pidfd, readable, until};
use support::{assert_gone, sandbox_or_not_run, text};
use varek_core::{
    Cause, Child, Command, Event, EventKind, Flushed, Input, Outcome, Output, Policy, RunId,
    Sandbox, Termination,
};

fn native() -> Policy {
    own_uids(Policy::native()).wall_clock(Duration::from_secs(120))
}

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").arg("-c").arg(script)
}

fn wait_for_input() -> Command {
    Command::new("/bin/cat").stdin(Input::piped())
}

fn end_of(child: &Child) -> OwnedFd {
    child.as_fd().try_clone_to_owned().unwrap()
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Counts its wakes, which can be waited for.
#[derive(Default)]
struct Count {
    wakes: Mutex<usize>,
    changed: Condvar,
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        *self.wakes.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl Count {
    fn wait_for_one(&self) {
        let wakes = self.wakes.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(wakes, embedder::BOUND, |wakes| *wakes == 0);
        assert!(!waited.unwrap().1.timed_out(), "nobody was woken");
    }
}

#[test]
fn waiting_twice_gives_the_same_outcome() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(shell("echo once; exit 4")).unwrap();
    let first = child.wait().unwrap();
    assert_eq!(first.termination, Termination::Exited(4), "{first}");
    assert_eq!(text(&first), "once\n");
    assert_gone(&first);
    assert_eq!(child.wait().unwrap(), first);
    assert_eq!(child.try_wait().unwrap(), Some(first.clone()));
    assert_eq!(child.run(), first.run);
    assert_eq!(block_on(&mut child).unwrap(), first);
    assert_eq!(block_on(child).unwrap(), first);
}

#[test]
fn try_wait_has_an_outcome_from_the_end_on() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    assert_eq!(child.try_wait().unwrap(), None);
    drop(child.stdin.take());
    let mut ended = None;
    assert!(until(|| {
        ended = child.try_wait().unwrap();
        ended.is_some()
    }));
    assert!(ended.unwrap().success());
}

#[test]
fn any_executor_can_await_a_guest() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    let stdin = child.stdin.take();
    let awaiting = thread::spawn(move || block_on(child).unwrap());
    stdin.unwrap().write_all(b"awaited").unwrap();
    let outcome = awaiting.join().unwrap();
    assert!(outcome.success(), "{outcome}");
    assert_eq!(text(&outcome), "awaited");
}

#[test]
fn who_polled_last_is_woken_once() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    let stdin = child.stdin.take();
    let counts: [Arc<Count>; 3] = Default::default();
    for count in &counts {
        let waker = Waker::from(count.clone());
        let poll = Pin::new(&mut child).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
    }
    // The task has gone to another thread, as tasks do.
    let last = counts[2].clone();
    let task = thread::spawn(move || {
        last.wait_for_one();
        let waker = Waker::noop();
        match Pin::new(&mut child).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(outcome) => outcome.unwrap(),
            Poll::Pending => panic!("woken before the end"),
        }
    });
    assert_eq!(*counts[2].wakes.lock().unwrap(), 0);
    drop(stdin);
    assert!(task.join().unwrap().success());
    assert_eq!(*counts[2].wakes.lock().unwrap(), 1);
}

/// Panics when it is woken, with what panics again when it is dropped.
struct Rash;

struct Again;

impl Wake for Rash {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(Again);
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        panic!("once more");
    }
}

#[test]
fn a_waker_that_panics_twice_ends_no_run() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut beside = sandbox.spawn(wait_for_input()).unwrap();
    let mut awaited = sandbox.spawn(wait_for_input()).unwrap();
    let read = shell("read line; echo $line").stdin(Input::piped());
    let mut polled = sandbox.spawn(read.stdout(Output::piped())).unwrap();
    let waker = Waker::from(Arc::new(Rash));
    let context = &mut Context::from_waker(&waker);
    assert!(Pin::new(&mut awaited).poll(context).is_pending());
    let mut output = polled.stdout.take().unwrap();
    let read = Pin::new(&mut output).poll_read(context, &mut [0; 9]);
    assert!(read.is_pending());

    polled.stdin.take().unwrap().write_all(b"woken\n").unwrap();
    assert!(polled.wait().unwrap().success());
    drop(awaited.stdin.take());
    assert!(awaited.wait().unwrap().success());
    drop(beside.stdin.take());
    assert!(beside.wait().unwrap().success());
}

/// Is not dropped before somebody lets it.
struct Lingering {
    let_go: Mutex<mpsc::Receiver<()>>,
    was_let: Arc<AtomicBool>,
}

impl Wake for Lingering {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let let_go = self.let_go.lock().unwrap();
        let was_let = let_go.recv_timeout(Duration::from_secs(20)).is_ok();
        self.was_let.store(was_let, Ordering::Relaxed);
    }
}

#[test]
fn a_waker_that_is_not_done_with_its_drop_delays_no_deadline() {
    let policy = native().wall_clock(Duration::from_secs(1));
    let Some(sandbox) = sandbox_or_not_run(test_name!(), policy) else {
        return;
    };
    let command = wait_for_input().stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut output = child.stdout.take().unwrap();
    let (let_go, held) = mpsc::channel();
    let was_let = Arc::new(AtomicBool::new(false));
    let lingering = Lingering {
        let_go: Mutex::new(held),
        was_let: was_let.clone(),
    };
    let task = thread::spawn(move || {
        let mut poll = |waker: &Waker| {
            let context = &mut Context::from_waker(waker);
            Pin::new(&mut output).poll_read(context, &mut [0; 9])
        };
        let pending = poll(&Waker::from(Arc::new(lingering))).is_pending();
        // Takes its place.
        let _ = poll(Waker::noop());
        pending
    });
    let outcome = child.wait().unwrap();
    assert_eq!(outcome.termination, Termination::Killed(Cause::WallClock));
    let _ = let_go.send(());
    assert!(task.join().unwrap());
    assert!(was_let.load(Ordering::Relaxed));
}

#[test]
fn the_deadline_holds_though_nobody_waits() {
    let name = test_name!();
    let limited = native().wall_clock(Duration::from_secs(1));
    let Some(sandbox) = sandbox_or_not_run(name, limited) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    let end = end_of(&child);
    // Only the kernel is asked.
    readable(&end);
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::WallClock),
        "{outcome}"
    );
    assert_gone(&outcome);
}

#[test]
fn the_descriptor_of_a_child_is_readable_from_its_end_on() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    assert!(!is_readable(&child));
    assert!(
        !is_readable(pidfd(child.id())),
        "{} is the guest",
        child.id()
    );
    drop(child.stdin.take());
    readable(&child);
    assert!(child.wait().unwrap().success());
    assert!(is_readable(&child));
}

/// A guest of two processes: says `up` when the second one runs.
const TWO: &str = "
import os, signal
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
signal.pause()
";

#[test]
fn dropping_a_child_kills_its_whole_tree() {
    let python = own_uids(Policy::python()).wall_clock(Duration::from_secs(120));
    let Some(sandbox) = sandbox_or_not_run(test_name!(), python) else {
        return;
    };
    let mut child = sandbox
        .spawn(Command::python(TWO).stdout(Output::piped()))
        .unwrap();
    let mut pid = String::new();
    let mut byte = [0];
    let stdout = child.stdout.as_mut().unwrap();
    while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        pid.push(byte[0].into());
    }
    let (first, second) = (end_of(&child), pidfd(pid.parse().unwrap()));
    assert!(!is_readable(&first) && !is_readable(&second));
    drop(child);
    readable(&first);
    readable(&second);
}

#[test]
fn a_killed_guest_is_cancelled_and_a_kill_after_the_end_changes_nothing() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    child.kill();
    child.kill();
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::Cancelled),
        "{outcome}"
    );
    assert_eq!(
        outcome.violation(),
        None,
        "the embedder's own kill is no violation"
    );
    assert_gone(&outcome);

    let mut child = sandbox.spawn(shell("exit 5")).unwrap();
    let outcome = child.wait().unwrap();
    child.kill();
    assert_eq!(outcome.termination, Termination::Exited(5), "{outcome}");
    assert_eq!(child.wait().unwrap(), outcome);
}

#[test]
fn a_kill_from_another_thread_ends_a_wait() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let child = sandbox.spawn(wait_for_input()).unwrap();
    let end = end_of(&child);
    let child = Arc::new(Mutex::new(child));
    // Killing needs no exclusive handle, and the one who awaits gets the outcome.
    let waiting = {
        let child = child.clone();
        thread::spawn(move || {
            readable(&end);
            child.lock().unwrap().wait().unwrap()
        })
    };
    child.lock().unwrap().kill();
    let outcome = waiting.join().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::Cancelled),
        "{outcome}"
    );
}

#[test]
fn a_child_outlives_its_sandbox() {
    let Some(sandbox) = sandbox_or_not_run(test_name!(), native()) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    let clone = sandbox.clone();
    drop(sandbox);
    drop(clone);
    assert!(!is_readable(&child), "the guest ended with its sandbox");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"still here")
        .unwrap();
    let outcome = child.wait().unwrap();
    assert!(outcome.success(), "{outcome}");
    assert_eq!(text(&outcome), "still here");
    assert_gone(&outcome);
}

#[test]
fn the_deadline_of_a_child_holds_without_its_sandbox() {
    let limited = native().wall_clock(Duration::from_secs(1));
    let Some(sandbox) = sandbox_or_not_run(test_name!(), limited) else {
        return;
    };
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    drop(sandbox);
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::WallClock),
        "{outcome}"
    );
    assert_gone(&outcome);
}

// ---- events ----

fn with_sink(sink: impl Fn(&Event) + Send + Sync + 'static) -> Sandbox {
    Sandbox::builder(native()).sink(sink).build().unwrap()
}

fn denied_thrice() -> Command {
    shell("/bin/true; /bin/true; /bin/true; echo done")
}

#[test]
fn events_have_no_gap_and_agree_with_the_outcome() {
    if sandbox_or_not_run(test_name!(), native()).is_none() {
        return;
    }
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let sandbox = with_sink(move |event| seen.lock().unwrap().push(event.clone()));
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let run = || sandbox.run(denied_thrice()).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut cancelled = sandbox.spawn(wait_for_input()).unwrap();
    cancelled.kill();
    let cancelled = cancelled.wait().unwrap();
    assert_eq!(sandbox.flush(embedder::BOUND), Flushed::Complete);

    let mut runs: BTreeMap<RunId, Vec<Event>> = BTreeMap::new();
    for event in events.lock().unwrap().drain(..) {
        runs.entry(event.run).or_default().push(event);
    }
    assert_eq!(runs.len(), 9);
    for outcome in outcomes.iter().chain([&cancelled]) {
        let events = &runs[&outcome.run];
        for (index, event) in events.iter().enumerate() {
            assert_eq!(event.sequence, index as u64, "{events:?}");
        }
        assert!(
            matches!(events[0].kind, EventKind::RunStarted { .. }),
            "{events:?}"
        );
        let last = &events.last().unwrap().kind;
        let EventKind::RunFinished {
            termination,
            usage,
            cleanup,
        } = last
        else {
            panic!("{last:?} is the last event");
        };
        assert_eq!(termination, &outcome.termination);
        assert_eq!((usage, cleanup), (&outcome.usage, &outcome.cleanup));
        let count = |of: fn(&EventKind) -> bool| events.iter().filter(|e| of(&e.kind)).count();
        assert_eq!(
            count(|kind| matches!(kind, EventKind::RunStarted { .. })),
            1
        );
        assert_eq!(
            count(|kind| matches!(kind, EventKind::RunFinished { .. })),
            1
        );
        assert_eq!(
            count(|kind| matches!(kind, EventKind::GuestStarted { .. })),
            1
        );
        let denied = events.iter().filter_map(|event| match &event.kind {
            EventKind::SyscallDenied(denial) => Some(denial.name()),
            _ => None,
        });
        let denied: Vec<String> = denied.collect();
        assert_eq!(denied.len() as u64, outcome.denials.total(), "{outcome}");
        for name in &denied {
            let of_name = denied.iter().filter(|other| *other == name).count() as u64;
            assert_eq!(outcome.denials.count(name), of_name, "{outcome}");
        }
    }
    for outcome in &outcomes {
        assert_eq!(outcome.denials.count("execve"), 3, "{outcome}");
    }
    let kill = |event: &Event| {
        matches!(
            &event.kind,
            EventKind::KillIssued {
                cause: Cause::Cancelled
            }
        )
    };
    assert_eq!(
        runs[&cancelled.run]
            .iter()
            .filter(|event| kill(event))
            .count(),
        1
    );
}

#[test]
fn a_sink_that_panics_changes_no_outcome() {
    if sandbox_or_not_run(test_name!(), native()).is_none() {
        return;
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let sandbox = with_sink(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        // Not `panic!`, which would write about it.
        std::panic::resume_unwind(Box::new("the sink is broken"));
    });
    for _ in 0..10 {
        let outcome = sandbox.run(denied_thrice()).unwrap();
        assert!(outcome.success(), "{outcome}");
        assert_eq!(outcome.denials.count("execve"), 3, "{outcome}");
        assert_eq!(outcome.faults, Vec::<String>::new());
        assert_gone(&outcome);
    }
    assert!(until(|| calls.load(Ordering::Relaxed) > 0));
}

#[test]
fn a_sink_that_blocks_for_ever_changes_and_holds_up_no_outcome() {
    if sandbox_or_not_run(test_name!(), native()).is_none() {
        return;
    }
    let (entered, blocked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
    // Held until the end of the test: whoever records an event waits that long.
    let held = blocked.lock().unwrap();
    let (counted, lock) = (entered.clone(), blocked.clone());
    let sandbox = with_sink(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        drop(lock.lock());
    });
    for _ in 0..10 {
        let outcome = sandbox.run(denied_thrice()).unwrap();
        assert!(outcome.success(), "{outcome}");
        assert_eq!(outcome.denials.count("execve"), 3, "{outcome}");
        assert_gone(&outcome);
    }
    let mut child = sandbox.spawn(wait_for_input()).unwrap();
    child.kill();
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::Cancelled),
        "{outcome}"
    );
    assert!(until(|| entered.load(Ordering::Relaxed) == 1));
    assert!(matches!(
        sandbox.flush(Duration::from_millis(10)),
        Flushed::Pending(_)
    ));
    // Neither does it keep the sandbox from ending.
    drop((child, sandbox));
    assert_eq!(entered.load(Ordering::Relaxed), 1);
    drop(held);
}
