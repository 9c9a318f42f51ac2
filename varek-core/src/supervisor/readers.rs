//! The threads that read what pointers of denied calls lead to.
//!
//! How long that takes is the guest's choice: its memory may be behind a file system that does not answer. Nothing is
//! decided from it, so nobody waits long for it either: whoever asks goes on without an answer after a bound of its own, and
//! a thread that is held up is left to it. There are few of them, and when all are held up nothing is read.
//!
//! A thread holds nothing of a run: a number and addresses. Whether it was the memory of the caller is for the run to find
//! out, afterwards, by the notification.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use varek_telemetry::{Pointer, Unverified};

use crate::sys;

/// Threads of one sandbox, at most.
const MOST_THREADS: usize = 4;
/// Those of all sandboxes of this process together: one that is held up outlives its sandbox.
const MOST_OF_ALL: usize = 32;
/// Requests that wait for a thread, at most. Each run has one at a time.
const MOST_WAITING: usize = 64;

/// The threads of this process, those of sandboxes that are gone included.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What is to be read.
pub(super) struct Request {
    /// By the embedder's pid namespace.
    pub(super) thread: u32,
    pub(super) pointers: Vec<Pointer>,
    /// Nobody wants to know after this.
    pub(super) until: Instant,
    /// For tests: as if the memory never came.
    pub(super) held: bool,
    /// Is told what was there.
    pub(super) done: Box<dyn FnOnce(Vec<Unverified>) + Send>,
}

/// Reads from the memory of a thread; see [`sys::read_memory`].
type Read = dyn Fn(u32, u64, &mut [u8]) -> io::Result<usize> + Send + Sync;

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    idle: usize,
    threads: usize,
    /// By when those that read now are to be done.
    busy: Vec<Instant>,
    closed: bool,
}

/// See the module.
pub(super) struct Readers {
    state: Mutex<State>,
    work: Condvar,
    read: Box<Read>,
}

impl Readers {
    /// Starts no thread yet.
    pub(super) fn new() -> Arc<Self> {
        Self::reading_by(sys::read_memory)
    }

    fn reading_by(
        read: impl Fn(u32, u64, &mut [u8]) -> io::Result<usize> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            work: Condvar::new(),
            read: Box::new(read),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread will look at this, unless it is held up. Never waits.
    pub(super) fn submit(self: &Arc<Self>, request: Request) -> bool {
        let mut state = self.state();
        if state.closed || state.waiting.len() >= MOST_WAITING {
            return false;
        }
        if state.idle <= state.waiting.len() && !self.add_thread(&mut state) {
            let now = Instant::now();
            if state.idle == 0 && state.busy.iter().all(|until| *until < now) {
                return false;
            }
        }
        state.waiting.push_back(request);
        self.work.notify_one();
        true
    }

    fn add_thread(self: &Arc<Self>, state: &mut State) -> bool {
        if state.threads >= MOST_THREADS {
            return false;
        }
        let Some(place) = Place::take() else {
            return false;
        };
        let readers = self.clone();
        let started = std::thread::Builder::new()
            .name("varek-reader".into())
            .spawn(move || {
                let _place = place;
                sys::block_signals();
                readers.work();
            });
        if started.is_ok() {
            // It will look for work as soon as the lock is free.
            state.threads += 1;
            state.idle += 1;
        }
        started.is_ok()
    }

    /// Ends the threads that are not held up.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        self.work.notify_all();
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            let Some(request) = state.waiting.pop_front() else {
                if state.closed {
                    return;
                }
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Request {
                thread,
                pointers,
                until,
                held,
                done,
            } = request;
            state.idle -= 1;
            state.busy.push(until);
            drop(state);
            if held {
                loop {
                    std::thread::park();
                }
            }
            let found = if Instant::now() < until {
                self.found(thread, &pointers)
            } else {
                Vec::new()
            };
            state = self.state();
            // Which of them is the same: one of this instant.
            if let Some(mine) = state.busy.iter().position(|busy| *busy == until) {
                state.busy.swap_remove(mine);
            }
            state.idle += 1;
            drop(state);
            done(found);
            state = self.state();
        }
    }

    fn found(&self, thread: u32, pointers: &[Pointer]) -> Vec<Unverified> {
        let of = |pointer: &Pointer| {
            let mut memory = vec![0; pointer.longest()];
            let length = (self.read)(thread, pointer.address(), &mut memory).ok()?;
            pointer.read(memory.get(..length)?)
        };
        pointers.iter().filter_map(of).collect()
    }
}

/// One of the threads that this process may have.
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let one_more = |threads: usize| (threads < MOST_OF_ALL).then_some(threads + 1);
        THREADS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()
            .map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use varek_telemetry::{Answer, ArgumentDetail, Denial};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pointers(address: u64) -> Vec<Pointer> {
        let denial = Denial {
            syscall: Some("chdir".into()),
            number: 0,
            abi: std::env::consts::ARCH.into(),
            arguments: [address, 0, 0, 0, 0, 0],
            thread: 0,
            answer: Answer::Errno(1),
            count: 1,
            unverified: Vec::new(),
        };
        denial.pointers(ArgumentDetail::Full)
    }

    /// Asks for a path, and tells what was read; whether that was accepted.
    fn ask(
        readers: &Arc<Readers>,
        thread: u32,
        address: u64,
        within: Duration,
    ) -> (bool, mpsc::Receiver<Vec<String>>) {
        let (tell, told) = mpsc::channel();
        let accepted = readers.submit(Request {
            thread,
            pointers: pointers(address),
            until: Instant::now() + within,
            held: false,
            done: Box::new(move |found| {
                let texts = found.iter().map(|seen| seen.pointee.to_string());
                drop(tell.send(texts.collect()));
            }),
        });
        (accepted, told)
    }

    #[test]
    fn memory_is_read_up_to_the_last_page_that_is_there() {
        let own = std::process::id();
        let readers = Readers::new();
        let text = c"/some/path".to_owned();
        let (accepted, told) = ask(&readers, own, text.as_ptr().addr() as u64, LONG);
        assert!(accepted);
        assert_eq!(told.recv_timeout(LONG).unwrap(), ["\"/some/path\""]);
        for address in [1, 1 << 63, u64::MAX] {
            let (_, told) = ask(&readers, own, address, LONG);
            assert_eq!(told.recv_timeout(LONG).unwrap(), Vec::<String>::new());
        }
        // No thread has this number.
        let (_, told) = ask(&readers, u32::MAX >> 1, text.as_ptr().addr() as u64, LONG);
        assert_eq!(told.recv_timeout(LONG).unwrap(), Vec::<String>::new());
        let mut buffer = [0; 8];
        let there = sys::read_memory(own, text.as_ptr().addr() as u64, &mut buffer);
        assert_eq!((there.unwrap(), &buffer), (8, b"/some/pa"));
    }

    /// Readers whose memory comes when the sender says so, or is gone.
    fn held() -> (Arc<Readers>, mpsc::Sender<()>, mpsc::Receiver<u32>) {
        let (go, wait) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let wait = Mutex::new(wait);
        let readers = Readers::reading_by(move |thread, _, memory| {
            let _ = begin.send(thread);
            // Held up one beside the other, not one by one.
            let still = || wait.lock().unwrap().try_recv() == Err(mpsc::TryRecvError::Empty);
            while still() {
                std::thread::yield_now();
            }
            memory[..2].copy_from_slice(b"x\0");
            Ok(2)
        });
        (readers, go, begun)
    }

    #[test]
    fn when_all_are_held_up_nothing_is_accepted_and_then_they_read_again() {
        let (readers, go, begun) = held();
        let stuck: Vec<_> = (0..MOST_THREADS)
            .map(|n| {
                let (accepted, told) = ask(&readers, u32::try_from(n).unwrap(), 1, Duration::ZERO);
                assert!(accepted, "{n}");
                (accepted, told)
            })
            .collect();
        // What nobody waits for any more is not even begun.
        for (_, told) in stuck {
            assert_eq!(told.recv_timeout(LONG).unwrap(), Vec::<String>::new());
        }
        // On a machine where a thread comes later than this, it does not begin: asked again.
        let short = Duration::from_millis(200);
        let end = Instant::now() + LONG;
        let mut busy = 0;
        while busy < MOST_THREADS {
            assert!(Instant::now() < end, "{busy} have begun");
            let (_, told) = ask(&readers, 7, 1, short);
            while busy < MOST_THREADS && told.try_recv().is_err() {
                if begun.try_recv().is_ok() {
                    busy += 1;
                    break;
                }
                std::thread::yield_now();
            }
        }
        let over = Instant::now() + short;
        while Instant::now() <= over {
            std::thread::yield_now();
        }
        assert!(!ask(&readers, 7, 1, LONG).0);
        let state = readers.state();
        assert_eq!(
            (state.threads, state.busy.len()),
            (MOST_THREADS, MOST_THREADS)
        );
        drop(state);
        drop(go);
        let end = Instant::now() + LONG;
        loop {
            let (accepted, told) = ask(&readers, 7, 1, LONG);
            if accepted {
                assert_eq!(told.recv_timeout(LONG).unwrap(), ["\"x\""]);
                break;
            }
            assert!(Instant::now() < end, "it accepts nothing any more");
            std::thread::yield_now();
        }
    }

    #[test]
    fn closed_readers_accept_nothing_and_end() {
        let (readers, go, begun) = held();
        let (_, told) = ask(&readers, 7, 1, LONG);
        begun.recv_timeout(LONG).unwrap();
        readers.close();
        assert!(!ask(&readers, 7, 1, LONG).0);
        drop(go);
        assert_eq!(told.recv_timeout(LONG).unwrap(), ["\"x\""]);
        let end = Instant::now() + LONG;
        while Arc::strong_count(&readers) > 1 {
            assert!(Instant::now() < end, "a thread goes on");
            std::thread::yield_now();
        }
    }
}
