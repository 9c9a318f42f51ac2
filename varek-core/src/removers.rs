//! The threads that remove scratch directories.
//!
//! How long one unlink(2) takes is the guest's choice: a file in tens of thousands of pieces takes seconds, and a
//! disk that is kept busy holds up every removal. The supervisor must never wait for that, since every other run
//! would wait with it, its deadline included. So no directory is removed on its thread, and one that holds up its
//! own thread here is left to that: another thread is started for those that come after it.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::Error;
use crate::files::{Collected, FileError};
use crate::identity::Lease;
use crate::reaper::RunNamespaces;
use crate::scratch::Scratch;
use crate::sys;

/// The files that are to be read before their directory goes, and what came of it.
#[derive(Clone, Default)]
pub(crate) struct Collection {
    wanted: Arc<[(PathBuf, u64)]>,
    collected: Arc<OnceLock<Arc<Collected>>>,
}

impl Collection {
    pub(crate) fn of(wanted: Vec<(PathBuf, u64)>) -> Self {
        Self {
            wanted: wanted.into(),
            collected: Arc::default(),
        }
    }

    /// Once, however often a removal is tried.
    fn make(&self, scratch: &Scratch) {
        self.collected
            .get_or_init(|| scratch.collect(&self.wanted).into());
    }

    /// What was read so far, and of the rest that it was not. It is shared, not copied: the supervisor asks for it, and how
    /// much there is is the guest's choice.
    pub(crate) fn result(&self) -> Arc<Collected> {
        let late = || {
            let late = |(path, _): &(PathBuf, u64)| (path.clone(), Err(FileError::NotInTime));
            Arc::new(self.wanted.iter().map(late).collect())
        };
        self.collected.get().cloned().unwrap_or_else(late)
    }
}

/// A scratch directory, and the uid whose files are in it. The tree of that uid is dead.
pub(crate) struct Remains {
    pub(crate) scratch: Scratch,
    pub(crate) collection: Collection,
    pub(crate) namespaces: Option<Arc<RunNamespaces>>,
    /// Given back when the directory is gone.
    pub(crate) lease: Option<Lease>,
    /// The guest could send descriptors through sockets.
    pub(crate) sent_descriptors: bool,
}

impl Remains {
    /// Nobody tries again in this process: the uid stays taken, and its lock file tells the next one to sweep.
    pub(crate) fn leave(self) {
        if let Some(lease) = self.lease {
            lease.retire();
        }
    }
}

/// What could not be removed, and why. Another try may go further.
pub(crate) struct Stuck {
    pub(crate) remains: Remains,
    pub(crate) reason: Error,
}

struct Job {
    remains: Remains,
    done: Box<dyn FnOnce(Result<(), Box<Stuck>>) + Send>,
}

#[derive(Default)]
struct State {
    /// Not looked at yet.
    fresh: VecDeque<Job>,
    /// Begun and put back; they come after the fresh ones.
    begun: VecDeque<Job>,
    /// Not done yet, those in hand included.
    left: usize,
    idle: usize,
    threads: usize,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Removers {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

/// How much of one directory is removed before others have their turn on the same thread.
const TURN: Duration = Duration::from_millis(20);
/// More threads than this are never started: each is held up by the file system.
const MOST_THREADS: usize = 32;
/// How long a thread beyond the first waits for more to do.
const LINGER: Duration = Duration::from_secs(2);

impl Removers {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let removers = Arc::new(Self::default());
        removers.add_thread()?;
        Ok(removers)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let removers = self.clone();
        self.state().threads += 1;
        let started = std::thread::Builder::new()
            .name("varek-removal".into())
            .spawn(move || {
                sys::block_signals();
                removers.work();
            });
        if started.is_err() {
            self.state().threads -= 1;
        }
        started.map(drop)
    }

    /// Hands a directory over; `done` is told what came of it, on another thread.
    pub(crate) fn submit(
        self: &Arc<Self>,
        remains: Remains,
        done: impl FnOnce(Result<(), Box<Stuck>>) + Send + 'static,
    ) {
        let done = Box::new(done);
        let busy = {
            let mut state = self.state();
            state.left += 1;
            state.fresh.push_back(Job { remains, done });
            state.idle < state.fresh.len() && state.threads < MOST_THREADS
        };
        self.work.notify_one();
        if busy {
            // Without another thread it waits for the first.
            let _ = self.add_thread();
        }
    }

    /// Waits until everything is removed, at most this long. What is left then is still worked on for as long as
    /// the process lives.
    pub(crate) fn close(&self, within: Duration) {
        let mut state = self.state();
        state.closed = true;
        self.work.notify_all();
        drop(
            self.done
                .wait_timeout_while(state, within, |state| state.left > 0),
        );
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let Job { mut remains, done } = job;
            // Nobody is left in them, and nobody of their uid before it is given back.
            remains.namespaces = None;
            remains.collection.make(&remains.scratch);
            let result = match remains.scratch.remove(Instant::now() + TURN) {
                Ok(false) => {
                    self.state().begun.push_back(Job { remains, done });
                    continue;
                }
                Ok(true) => {
                    if remains.sent_descriptors {
                        collect_sockets();
                    }
                    drop(remains);
                    Ok(())
                }
                Err(reason) => Err(Box::new(Stuck { remains, reason })),
            };
            done(result);
            self.state().left -= 1;
            self.done.notify_all();
        }
    }

    /// The next job; `None` when this thread is to end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        state.idle += 1;
        let deadline = Instant::now() + LINGER;
        loop {
            if let Some(job) = state.fresh.pop_front() {
                state.idle -= 1;
                return Some(job);
            }
            if let Some(job) = state.begun.pop_front() {
                state.idle -= 1;
                return Some(job);
            }
            let spare = state.threads > 1 && Instant::now() >= deadline;
            if state.closed || spare {
                state.idle -= 1;
                state.threads -= 1;
                return None;
            }
            state = if state.threads > 1 {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = self.work.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner)
            };
        }
    }
}

/// Lets the kernel free sockets that are kept alive by nothing but messages to each other, with everything else
/// that is in such messages: unix(7), SCM_RIGHTS.
///
/// It looks for them when a socket of the family is closed, of whichever process, and not when a process ends. Until
/// then a guest's memory files stay in memory, outside of every group, its pipes open and its uid's count of
/// descriptors in flight high.
fn collect_sockets() {
    // Without a free descriptor it is left to whoever closes the next socket.
    let _ = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;

    fn remains(base: &Path, name: &str, files: usize) -> Remains {
        let scratch = Scratch::create(base, name, None).unwrap();
        for n in 0..files {
            std::fs::File::create(base.join(name).join(n.to_string())).unwrap();
        }
        Remains {
            scratch,
            collection: Collection::default(),
            namespaces: None,
            lease: None,
            sent_descriptors: true,
        }
    }

    fn private() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_directory_that_takes_long_gives_way_to_one_that_has_just_come() {
        let (base, (said, heard)) = (private(), mpsc::channel());
        let removers = Removers::start().unwrap();
        let submit = |name: &'static str, files| {
            let said = said.clone();
            removers.submit(remains(base.path(), name, files), move |result| {
                said.send((name, result.is_ok())).unwrap();
            });
        };
        let small = remains(base.path(), "small", 0);
        submit("large", 10_000);
        let other = said.clone();
        removers.submit(small, move |result| {
            other.send(("small", result.is_ok())).unwrap();
        });
        assert_eq!(heard.recv().unwrap(), ("small", true));
        assert_eq!(heard.recv().unwrap(), ("large", true));
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
        removers.close(Duration::from_secs(60));
    }

    #[test]
    fn closing_waits_for_what_is_left() {
        let base = private();
        let removers = Removers::start().unwrap();
        for name in ["a", "b", "c"] {
            removers.submit(remains(base.path(), name, 2000), |result| {
                assert!(result.is_ok());
            });
        }
        removers.close(Duration::from_secs(60));
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_removed_comes_back_with_the_reason() {
        let (base, (said, heard)) = (private(), mpsc::channel());
        let removers = Removers::start().unwrap();
        let stuck = remains(base.path(), "moved", 1);
        std::fs::rename(base.path().join("moved"), base.path().join("elsewhere")).unwrap();
        removers.submit(stuck, move |result| said.send(result).unwrap());
        let stuck = heard.recv().unwrap().unwrap_err();
        assert!(
            stuck.reason.to_string().contains("moved"),
            "{}",
            stuck.reason
        );
        removers.close(Duration::from_secs(60));
    }
}
