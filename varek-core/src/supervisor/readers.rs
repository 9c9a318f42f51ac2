//! The threads that read what pointers of denied calls lead to.
//!
//! How long that takes is the guest's choice: its memory may be behind a file system that does not answer. Nothing is
//! decided from it, so nobody waits long for it either: whoever asks goes on without an answer after a bound of its own, and
//! a thread that is held up is left to it. There are few of them, and when all are held up nothing is read.
//!
//! A thread holds nothing of a run: a number and addresses. Whether it was the memory of the caller is for the run to find
//! out, afterwards, by the notification. Nor does it hold anything of the embedder's: it has a table of descriptors of its
//! own, with the one in it by which it wakes the supervisor. A thread that waits for a FUSE server's answer is not ended by
//! SIGKILL, and would otherwise keep the pipe open by whose end the guardian learns that the embedder is gone.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use varek_telemetry::{Pointer, Unverified};

use super::{Inbox, Key};
use crate::sys;

/// Threads of one sandbox, at most.
const MOST_THREADS: usize = 4;
/// Those of all sandboxes of this process together: one that is held up outlives its sandbox.
const MOST_OF_ALL: usize = 32;
/// Requests that wait for a thread, at most. Each run has one at a time.
const MOST_WAITING: usize = 64;
/// How long the end waits for threads that have just been started.
const STARTING: Duration = Duration::from_millis(500);

/// The threads of this process, those of sandboxes that are gone included.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What is to be read.
pub(super) struct Request {
    /// Which run wants to know, of which of its calls.
    pub(super) key: Key,
    pub(super) id: u64,
    /// By the embedder's pid namespace.
    pub(super) thread: u32,
    pub(super) pointers: Vec<Pointer>,
    /// Nobody wants to know after this.
    pub(super) until: Instant,
    /// For tests: as if the memory never came.
    pub(super) held: bool,
}

/// What was there.
pub(super) struct Found {
    pub(super) key: Key,
    pub(super) id: u64,
    pub(super) what: Vec<Unverified>,
}

/// Reads from the memory of a thread; see [`sys::read_memory`].
type Read = dyn Fn(u32, u64, &mut [u8]) -> io::Result<usize> + Send + Sync;

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    found: Vec<Found>,
    /// Threads that have not come as far as their own descriptors, and hold the supervisor's.
    starting: usize,
    idle: usize,
    threads: usize,
    /// By when those that read now are to be done.
    busy: Vec<Instant>,
    closed: bool,
}

/// See the module. It owns no descriptor: a thread of it may be the last to have it.
pub(super) struct Readers {
    state: Mutex<State>,
    work: Condvar,
    started: Condvar,
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
            started: Condvar::new(),
            read: Box::new(read),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread will look at this, unless it is held up, and wake whoever waits at `inbox` then. Never waits.
    pub(super) fn submit(self: &Arc<Self>, request: Request, inbox: &Arc<Inbox>) -> bool {
        let mut state = self.state();
        if state.closed || state.waiting.len() >= MOST_WAITING {
            return false;
        }
        if state.idle <= state.waiting.len() && !self.add_thread(&mut state, inbox) {
            let now = Instant::now();
            if state.idle == 0 && state.busy.iter().all(|until| *until < now) {
                return false;
            }
        }
        state.waiting.push_back(request);
        self.work.notify_one();
        true
    }

    /// What was read since this was asked last.
    pub(super) fn take(&self) -> Vec<Found> {
        std::mem::take(&mut self.state().found)
    }

    fn add_thread(self: &Arc<Self>, state: &mut State, inbox: &Arc<Inbox>) -> bool {
        if state.threads >= MOST_THREADS {
            return false;
        }
        let Some(place) = Place::take() else {
            return false;
        };
        let (readers, inbox) = (self.clone(), inbox.clone());
        let started = std::thread::Builder::new()
            .name("varek-reader".into())
            .spawn(move || {
                let _place = place;
                sys::block_signals();
                let wake = sys::keep_only(inbox.wake.as_fd());
                // Whoever closes these readers has it too, and waits for that: it is not closed here.
                drop(inbox);
                readers.work(wake);
            });
        if started.is_ok() {
            // It will look for work as soon as it can.
            state.threads += 1;
            state.starting += 1;
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
        drop(
            self.started
                .wait_timeout_while(state, STARTING, |state| state.starting > 0),
        );
    }

    fn work(&self, wake: io::Result<OwnedFd>) {
        let mut state = self.state();
        state.starting -= 1;
        self.started.notify_all();
        let Ok(wake) = wake else {
            // It holds what it must not hold: nothing is read by it.
            state.idle -= 1;
            return;
        };
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
            state.idle -= 1;
            state.busy.push(request.until);
            drop(state);
            let what = self.look(&request);
            state = self.state();
            // Which of them is the same: one of this instant.
            let mine = state.busy.iter().position(|busy| *busy == request.until);
            if let Some(mine) = mine {
                state.busy.swap_remove(mine);
            }
            state.idle += 1;
            let Request { key, id, .. } = request;
            state.found.push(Found { key, id, what });
            drop(state);
            // A counter that is full wakes just as well.
            let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
            state = self.state();
        }
    }

    fn look(&self, request: &Request) -> Vec<Unverified> {
        if request.held {
            loop {
                std::thread::park();
            }
        }
        if Instant::now() >= request.until {
            return Vec::new();
        }
        let of = |pointer: &Pointer| {
            let mut memory = vec![0; pointer.longest()];
            let length = (self.read)(request.thread, pointer.address(), &mut memory).ok()?;
            pointer.read(memory.get(..length)?)
        };
        request.pointers.iter().filter_map(of).collect()
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

    /// Readers, and where they say what they found.
    struct Desk {
        readers: Arc<Readers>,
        inbox: Arc<Inbox>,
        asked: u64,
    }

    impl Desk {
        fn of(readers: Arc<Readers>) -> Self {
            Self {
                readers,
                inbox: Inbox::new().unwrap(),
                asked: 0,
            }
        }

        /// Asks for a path; the number of the question, where it was accepted.
        fn ask(&mut self, thread: u32, address: u64, within: Duration) -> Option<u64> {
            self.asked += 1;
            let request = Request {
                key: 7,
                id: self.asked,
                thread,
                pointers: pointers(address),
                until: Instant::now() + within,
                held: false,
            };
            let accepted = self.readers.submit(request, &self.inbox);
            accepted.then_some(self.asked)
        }

        /// What was found for this question, when the supervisor has been woken for it.
        fn told(&self, question: u64) -> Vec<String> {
            let mut ready = [rustix::event::PollFd::new(
                &self.inbox.wake,
                rustix::event::PollFlags::IN,
            )];
            let end = Instant::now() + LONG;
            loop {
                assert!(Instant::now() < end, "nothing was found");
                let second = rustix::event::Timespec {
                    tv_sec: 1,
                    tv_nsec: 0,
                };
                rustix::event::poll(&mut ready, Some(&second)).unwrap();
                self.inbox.take();
                let found = self.readers.take();
                if let Some(found) = found.iter().find(|found| found.id == question) {
                    let texts = found.what.iter().map(|seen| seen.pointee.to_string());
                    return texts.collect();
                }
            }
        }
    }

    #[test]
    fn memory_is_read_up_to_the_last_page_that_is_there() {
        let own = std::process::id();
        let mut desk = Desk::of(Readers::new());
        let text = c"/some/path".to_owned();
        let address = text.as_ptr().addr() as u64;
        let question = desk.ask(own, address, LONG).unwrap();
        assert_eq!(desk.told(question), ["\"/some/path\""]);
        for address in [1, 1 << 63, u64::MAX] {
            let question = desk.ask(own, address, LONG).unwrap();
            assert_eq!(desk.told(question), Vec::<String>::new());
        }
        // No thread has this number.
        let question = desk.ask(u32::MAX >> 1, address, LONG).unwrap();
        assert_eq!(desk.told(question), Vec::<String>::new());
        let mut buffer = [0; 8];
        let there = sys::read_memory(own, address, &mut buffer);
        assert_eq!((there.unwrap(), &buffer), (8, b"/some/pa"));
    }

    #[test]
    fn a_reader_has_no_descriptor_but_the_one_that_wakes_the_supervisor() {
        let own = std::fs::File::open("/dev/null").unwrap();
        let (tell, told) = mpsc::channel();
        let readers = Readers::reading_by(move |_, _, _| {
            // Its own table, which /proc/self/fd is not.
            let open =
                |number: i32| rustix::io::fcntl_getfd(sys::borrow_descriptor(number)).is_ok();
            let _ = tell.send((0..4096).filter(|number| open(*number)).collect::<Vec<_>>());
            Err(io::ErrorKind::Other.into())
        });
        let mut desk = Desk::of(readers);
        let question = desk.ask(1, 1, LONG).unwrap();
        let wake = std::os::fd::AsRawFd::as_raw_fd(&desk.inbox.wake);
        assert_eq!(told.recv_timeout(LONG).unwrap(), [wake]);
        assert_eq!(desk.told(question), Vec::<String>::new());
        // And this thread has all of its own.
        assert!(own.metadata().is_ok());
        desk.readers.close();
        assert!(own.metadata().is_ok() && rustix::io::fcntl_getfd(&desk.inbox.wake).is_ok());
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
        let mut desk = Desk::of(readers);
        // What nobody waits for any more is not even begun.
        let question = desk.ask(7, 1, Duration::ZERO).unwrap();
        assert_eq!(desk.told(question), Vec::<String>::new());
        assert!(begun.try_recv().is_err());
        // On a machine where a thread comes later than this, it does not begin: asked again.
        let short = Duration::from_millis(200);
        let end = Instant::now() + LONG;
        let mut busy = 0;
        while busy < MOST_THREADS {
            assert!(Instant::now() < end, "{busy} have begun");
            desk.ask(7, 1, short).unwrap();
            if begun.recv_timeout(short * 2).is_ok() {
                busy += 1;
            }
        }
        let over = Instant::now() + short;
        while Instant::now() <= over {
            std::thread::yield_now();
        }
        assert_eq!(desk.ask(7, 1, LONG), None);
        let state = desk.readers.state();
        assert_eq!(
            (state.threads, state.busy.len()),
            (MOST_THREADS, MOST_THREADS)
        );
        drop(state);
        drop(go);
        loop {
            if let Some(question) = desk.ask(7, 1, LONG) {
                assert_eq!(desk.told(question), ["\"x\""]);
                break;
            }
            assert!(Instant::now() < end, "it accepts nothing any more");
            std::thread::yield_now();
        }
    }

    #[test]
    fn closed_readers_accept_nothing_and_end() {
        let (readers, go, begun) = held();
        let mut desk = Desk::of(readers);
        let question = desk.ask(7, 1, LONG).unwrap();
        begun.recv_timeout(LONG).unwrap();
        desk.readers.close();
        assert_eq!(desk.ask(7, 1, LONG), None);
        drop(go);
        assert_eq!(desk.told(question), ["\"x\""]);
        let end = Instant::now() + LONG;
        while Arc::strong_count(&desk.readers) > 1 {
            assert!(Instant::now() < end, "a thread goes on");
            std::thread::yield_now();
        }
    }
}
