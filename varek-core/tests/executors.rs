//! A guest can be awaited under any executor: tokio's, smol's, one written by hand, and one that is stuck.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::future::Future;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use embedder::{own_uids, readable};
use support::{assert_clean, assert_gone, assert_killed, seconds, text};
use varek_core::{Cause, Command, Error, Outcome, Policy, Sandbox};

fn native() -> Policy {
    own_uids(Policy::native()).wall_clock(seconds(60))
}

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").arg("-c").arg(script)
}

/// Two processes that never end.
const ENDLESS: &str = "while :; do :; done & while :; do :; done";

fn echo(word: impl std::fmt::Display) -> Command {
    Command::new("/bin/echo").arg(word.to_string())
}

async fn awaited(sandbox: Sandbox, command: Command) -> Result<Outcome, Error> {
    sandbox.spawn(command)?.await
}

/// Starts guests, awaits them together, and one that fails.
async fn a_few(sandbox: Sandbox) {
    let children: Vec<_> = (0..4).map(|n| sandbox.spawn(echo(n)).unwrap()).collect();
    for (n, child) in children.into_iter().enumerate() {
        let outcome = child.await.unwrap();
        assert_clean(&outcome);
        assert_eq!(text(&outcome), format!("{n}\n"));
    }
    let outcome = awaited(sandbox.clone(), shell("exit 3")).await.unwrap();
    assert_eq!(outcome.exit_code(), Some(3));
    let missing = awaited(sandbox, Command::new("/nowhere/at/all")).await;
    assert!(missing.is_err());
}

/// The smallest executor there is: one future, on this thread, which sleeps between polls.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
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

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
}

#[test]
fn guests_are_awaited_under_tokio_on_one_thread() {
    let sandbox = sandbox!(native());
    current_thread().block_on(a_few(sandbox));
}

#[test]
fn guests_are_awaited_under_tokio_on_many_threads() {
    let sandbox = sandbox!(native());
    let runtime = multi_thread();
    runtime.block_on(async move { tokio::spawn(a_few(sandbox)).await.unwrap() });
}

#[test]
fn guests_are_awaited_under_smol() {
    let sandbox = sandbox!(native());
    smol::block_on(async move { smol::spawn(a_few(sandbox)).await });
}

#[test]
fn guests_are_awaited_under_an_executor_written_by_hand() {
    let sandbox = sandbox!(native());
    block_on(a_few(sandbox));
}

#[test]
fn a_timeout_of_the_embedder_s_drops_the_future_and_kills_the_tree() {
    let sandbox = sandbox!(native());
    current_thread().block_on(async {
        let child = sandbox.spawn(shell(ENDLESS)).unwrap();
        let end = child.as_fd().try_clone_to_owned().unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), child).await;
        waited.unwrap_err();
        readable(&end);
    });
    // The sandbox is free of it: its groups go with it.
    assert_clean(&sandbox.run(echo("next")).unwrap());
}

#[test]
fn an_aborted_task_kills_the_tree_of_its_guest() {
    let sandbox = sandbox!(native());
    let (said, heard) = channel();
    multi_thread().block_on(async {
        let child = sandbox.spawn(shell(ENDLESS)).unwrap();
        said.send(child.as_fd().try_clone_to_owned().unwrap())
            .unwrap();
        let task = tokio::spawn(child);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
    readable(heard.recv().unwrap());
}

#[test]
fn a_blocked_executor_delays_no_deadline() {
    let sandbox = sandbox!(own_uids(Policy::native()).wall_clock(seconds(1)));
    current_thread().block_on(async {
        let child = sandbox.spawn(shell("while :; do :; done")).unwrap();
        let end = child.as_fd().try_clone_to_owned().unwrap();
        let task = tokio::spawn(child);
        tokio::task::yield_now().await;
        // The only thread that could poll waits for the kill, which nobody but the supervisor can bring about.
        readable(&end);
        let outcome = task.await.unwrap().unwrap();
        assert_killed(&outcome, &Cause::WallClock);
    });
}

#[test]
fn thousands_of_futures_wait_at_the_same_time() {
    const FUTURES: usize = 2000;
    let sandbox = sandbox!(native());
    let count = support::times(FUTURES);
    // Sixteen guests at a time, and the futures of all of them.
    let places = Arc::new(tokio::sync::Semaphore::new(16));
    let outcomes = multi_thread().block_on(async {
        let tasks: Vec<_> = (0..count)
            .map(|n| {
                let (sandbox, places) = (sandbox.clone(), places.clone());
                tokio::spawn(async move {
                    let _place = places.acquire().await.unwrap();
                    (n, awaited(sandbox, echo(n)).await.unwrap())
                })
            })
            .collect();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        outcomes
    });
    assert_eq!(outcomes.len(), count);
    for (n, outcome) in outcomes {
        assert_clean(&outcome);
        assert_eq!(text(&outcome), format!("{n}\n"));
    }
}

#[test]
fn many_guests_that_run_at_the_same_time_end_with_their_futures() {
    let sandbox = sandbox!(native());
    let children: Vec<_> = (0..100)
        .map(|_| sandbox.spawn(shell("read line")).unwrap())
        .collect();
    // stdin is empty: they end by themselves, and all are awaited by one thread.
    smol::block_on(async {
        for child in children {
            assert_gone(&child.await.unwrap());
        }
    });
}
