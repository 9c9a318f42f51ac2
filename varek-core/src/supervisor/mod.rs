//! The supervisor: one thread and one epoll for all runs of a sandbox.
//!
//! It watches pidfds, notification listeners, groups, pipes and deadlines, asks the watchdog of each run
//! what to do, does it, and folds what it saw into the outcome. It never waits for a single run, for the
//! embedder or for a sink.

mod account;
mod attributes;
mod denials;
mod ending;
mod orphans;
mod performer;
mod pump;
mod readers;
mod reading;
mod record;
mod run;
mod signals;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use varek_telemetry::{Cause, Pointer};

use crate::cell::Cell;
use crate::kits::Kits;
use crate::plan::RunPlan;
use crate::removers::{Remains, Removers, Stuck};
use crate::sandbox::Sealed;
use crate::spawn::{Born, Spawner};
use crate::sys;
use performer::Performed;
pub(crate) use performer::Performer;
use readers::{Found, Readers, Request};
use run::{Run, Source};

/// The number of a run within its supervisor.
pub(crate) type Key = u64;

/// What the supervisor is told from outside.
pub(crate) enum Message {
    /// A run is about to be created: from here on its deadline holds.
    Register {
        key: Key,
        plan: Box<RunPlan>,
        cell: Arc<Cell>,
        permit: Box<dyn Send>,
    },
    /// What came of a run's clone.
    Born { key: Key, born: Born },
    /// The embedder wants a run to end.
    End { key: Key, cause: Cause },
    /// What came of the removal of a run's scratch directory.
    Removed {
        key: Key,
        result: Result<(), Box<Stuck>>,
    },
    /// What came of the call that a run's thread made in the guest's place.
    Performed { key: Key, performed: Performed },
    /// A reader or writer of the embedder's has made room or filled it.
    Streams { key: Key },
    /// No new run will come: end when the last one is over.
    Close,
}

#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    /// The supervisor takes no message any more.
    ended: bool,
    /// And what it had made for runs to come is gone.
    cleaned: bool,
}

/// The way to the supervisor.
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    ended: Condvar,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            queue: Mutex::default(),
            wake,
            ended: Condvar::new(),
        }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a message over; gives it back when the supervisor has ended.
    pub(crate) fn send(&self, message: Message) -> Result<(), Box<Message>> {
        let mut queue = self.queue();
        if queue.ended {
            return Err(Box::new(message));
        }
        queue.messages.push(message);
        drop(queue);
        // A counter that is full wakes just as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    fn take(&self) -> Vec<Message> {
        let mut counter = [0; 8];
        // Nothing to read means that nothing has come since.
        let _ = rustix::io::read(&self.wake, &mut counter);
        std::mem::take(&mut self.queue().messages)
    }

    /// Waits until the supervisor has ended and has removed its groups, at most this long.
    pub(crate) fn wait_ended(&self, within: Duration) -> bool {
        let queue = self.queue();
        self.ended
            .wait_timeout_while(queue, within, |queue| !queue.cleaned)
            .is_ok_and(|(queue, _)| queue.cleaned)
    }
}

/// Starts the supervisor's thread.
pub(crate) fn start(
    sealed: Arc<Sealed>,
    inbox: Arc<Inbox>,
    spawner: Arc<Spawner>,
    kits: Arc<Kits>,
    removers: Arc<Removers>,
) -> io::Result<std::thread::ThreadId> {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    epoll::add(
        &epoll,
        &inbox.wake,
        EventData::new_u64(u64::MAX),
        EventFlags::IN,
    )?;
    let supervisor = Supervisor {
        sealed,
        inbox,
        spawner,
        kits,
        removers,
        readers: Readers::new(),
        epoll,
        runs: HashMap::new(),
        closing: false,
    };
    let thread = std::thread::Builder::new()
        .name("varek-supervisor".into())
        .spawn(move || {
            sys::block_signals();
            let _ended = Ended(supervisor.inbox.clone());
            supervisor.work();
        })?;
    Ok(thread.thread().id())
}

struct Supervisor {
    sealed: Arc<Sealed>,
    inbox: Arc<Inbox>,
    spawner: Arc<Spawner>,
    kits: Arc<Kits>,
    removers: Arc<Removers>,
    readers: Arc<Readers>,
    epoll: Arc<OwnedFd>,
    runs: HashMap<Key, Run>,
    closing: bool,
}

/// How long a spawner may be in one clone before another thread is started beside it.
const SPAWNER_PATIENCE: Duration = Duration::from_millis(100);

impl Supervisor {
    fn work(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let now = Instant::now();
            if self.closing && self.runs.values().all(Run::delivered) {
                return;
            }
            let timeout = self
                .next_wake()
                .map(|at| timespec(at.saturating_duration_since(now)));
            events.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            if let Err(error) = waited
                && error != rustix::io::Errno::INTR
            {
                // Without epoll nothing can be watched: the end of this value kills every run.
                return;
            }
            for message in self.inbox.take() {
                self.take_message(message);
            }
            for Found { key, id, what } in self.readers.take() {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.on_read(id, what, &self.sealed);
                }
            }
            // What a guest did comes before its end, so that nothing of it is lost.
            let mut ready: Vec<(Key, Source)> = events
                .iter()
                .filter_map(|event| decode(event.data.u64()))
                .collect();
            ready.sort_by_key(|(_, source)| *source);
            for (key, source) in ready {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.on_ready(source, &self.sealed, &self.epoll);
                }
            }
            let now = Instant::now();
            for run in self.runs.values_mut() {
                run.on_time(now, &self.sealed, &self.epoll);
            }
            if self
                .runs
                .values()
                .any(|run| run.waits_for_spawner(now, SPAWNER_PATIENCE))
            {
                self.spawner.relieve();
            }
            for (_, run) in self.runs.extract_if(|_, run| run.over()) {
                run.conclude();
            }
        }
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Register {
                key,
                plan,
                cell,
                permit,
            } => {
                let undertaker = Undertaker {
                    inbox: self.inbox.clone(),
                    removers: self.removers.clone(),
                    readers: self.readers.clone(),
                    key,
                };
                let run = Run::new(undertaker, *plan, cell, permit, &self.sealed, &self.epoll);
                self.runs.insert(key, run);
            }
            Message::Born { key, born } => match self.runs.get_mut(&key) {
                Some(run) => run.on_born(born, &self.sealed, &self.epoll),
                None => discard(born),
            },
            Message::End { key, cause } => {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.end(cause, &self.sealed);
                }
            }
            Message::Removed { key, result } => {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.on_removed(result, &self.sealed, &self.epoll);
                }
            }
            Message::Performed { key, performed } => {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.on_performed(performed, &self.sealed);
                }
            }
            Message::Streams { key } => {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.on_streams(&self.sealed, &self.epoll);
                }
            }
            Message::Close => self.closing = true,
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.runs
            .values()
            .filter_map(|run| run.next_wake(SPAWNER_PATIENCE))
            .min()
    }
}

impl Drop for Supervisor {
    /// The regular end, and the end by a panic or a lost epoll: then every tree is killed, since nobody
    /// watches it any more, and every handle learns of it.
    fn drop(&mut self) {
        for run in self.runs.values_mut() {
            run.abandon("it could not go on watching");
        }
        let left = {
            let mut queue = self.inbox.queue();
            queue.ended = true;
            std::mem::take(&mut queue.messages)
        };
        for message in left {
            match message {
                Message::Register { cell, .. } => cell.lose("it had ended before this run"),
                Message::Born { born, .. } => discard(born),
                _ => {}
            }
        }
        self.runs.clear();
        self.spawner.close();
        self.kits.close();
        self.readers.close();
        self.removers.close(REMOVAL_PATIENCE);
        // What cannot be removed now is left to the next sweep.
        let _ = self.sealed.subtree.remove();
        self.sealed.dismiss_guardian();
    }
}

/// Says that the supervisor is gone with everything it held, its descriptors included.
struct Ended(Arc<Inbox>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.queue().cleaned = true;
        self.0.ended.notify_all();
    }
}

/// How long the end waits for scratch directories whose removal takes longer than their runs' grace.
const REMOVAL_PATIENCE: Duration = Duration::from_millis(500);

/// The way of one run to other threads, of its remains above all.
struct Undertaker {
    inbox: Arc<Inbox>,
    removers: Arc<Removers>,
    readers: Arc<Readers>,
    key: Key,
}

impl Undertaker {
    /// Has the memory of the thread that made this call read; whether somebody will do it.
    fn read(
        &self,
        id: u64,
        thread: u32,
        pointers: Vec<Pointer>,
        until: Instant,
        held: bool,
    ) -> bool {
        let request = Request {
            key: self.key,
            id,
            thread,
            pointers,
            until,
            held,
        };
        self.readers.submit(request, &self.inbox)
    }

    /// The way on which the run's thread says what came of a call.
    fn performed(&self) -> impl Fn(Performed) + Send + 'static {
        let (inbox, key) = (self.inbox.clone(), self.key);
        move |performed| drop(inbox.send(Message::Performed { key, performed }))
    }

    fn take(&self, remains: Remains) {
        let (inbox, key) = (self.inbox.clone(), self.key);
        self.removers.submit(remains, move |result| {
            // A supervisor that has ended has said already that something was left.
            if let Err(message) = inbox.send(Message::Removed { key, result })
                && let Message::Removed {
                    result: Err(stuck), ..
                } = *message
            {
                stuck.remains.leave();
            }
        });
    }
}

/// Kills a child of which no run knows any more, and waits for it: it has come as far as its exec, so that nothing
/// holds it up.
pub(crate) fn discard(born: Born) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
    if let Some((_, pidfd)) = born.child {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let pidfd = WaitId::PidFd(pidfd.as_fd());
        let _ = rustix::io::retry_on_intr(|| waitid(pidfd.clone(), WaitIdOptions::EXITED));
    }
}

fn encode(key: Key, source: Source) -> EventData {
    EventData::new_u64(key << 4 | source as u64)
}

fn decode(data: u64) -> Option<(Key, Source)> {
    (data != u64::MAX).then_some(())?;
    Some((data >> 4, Source::from_number(data & 15)?))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
