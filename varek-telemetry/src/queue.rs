//! A bounded queue in front of a sink, with a thread of its own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::owner::Owner;
use crate::sink::panic_message;
use crate::{Event, EventKind, Flushed, Sink};

/// Events handed to a sink in one call, at most.
const BATCH: usize = 256;

/// How long a sink may take over one call before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(5);

enum Message {
    Event(Box<Event>),
    Flush(SyncSender<Flushed>, Instant),
}

/// A bounded queue in front of a sink.
///
/// `record` never blocks: when the queue is full the event is dropped and counted, and the count reaches
/// the sink as [`EventKind::EventsDropped`] before the next event that fits, or when the queue is empty again.
///
/// A sink that panics is not called again; what follows is counted as dropped. A sink that has not come back from a
/// call for five seconds is stuck; it is called again once it comes back. Both are told by [`Sink::fault`] of the
/// queue, which needs no word from the sink, and by a [`Fanout`](crate::Fanout) around it to its other sinks.
///
/// Dropping the queue gives the sink half a second to take what is queued, and then leaves its thread
/// to finish alone: a sink that hangs cannot hold up the embedder.
pub struct Queue {
    inner: Option<Inner>,
    shared: Arc<Shared>,
    owner: Owner,
}

/// What a forked copy of the embedder must not touch, not even to drop it: a thread that is not there any more may
/// have held its locks.
struct Inner {
    sender: SyncSender<Message>,
    done: Mutex<Receiver<()>>,
    thread: JoinHandle<()>,
}

/// What the queue and its thread both see.
#[derive(Debug)]
struct Shared {
    dropped: AtomicU64,
    /// What the sink said when it panicked.
    panicked: OnceLock<String>,
    /// When the sink was called, in microseconds since `began` and one more; 0 while it is not being called.
    called: AtomicU64,
    began: Instant,
    /// The sink's own fault, as it was after the last call.
    fault: Mutex<Option<String>>,
}

impl Queue {
    /// A queue of `capacity` events (at least 1) in front of `sink`.
    ///
    /// # Errors
    ///
    /// When the host refuses another thread.
    pub fn new(sink: Box<dyn Sink>, capacity: usize) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(capacity.max(1));
        let (finished, done) = sync_channel(1);
        let shared = Arc::new(Shared {
            dropped: AtomicU64::new(0),
            panicked: OnceLock::new(),
            called: AtomicU64::new(0),
            began: Instant::now(),
            fault: Mutex::new(None),
        });
        let delivery = Delivery {
            sink,
            shared: shared.clone(),
            batch: Vec::with_capacity(BATCH),
            last: None,
        };
        let thread = std::thread::Builder::new()
            .name("varek-telemetry".into())
            .spawn(move || {
                delivery.run(&receiver);
                let _ = finished.try_send(());
            })?;
        Ok(Self {
            inner: Some(Inner {
                sender,
                done: Mutex::new(done),
                thread,
            }),
            shared,
            owner: Owner::this(),
        })
    }

    /// Events dropped since the last one that the sink was told about.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Whether the sink itself is calling, which would wait for its own return.
    fn is_own_thread(&self) -> bool {
        self.thread.thread().id() == std::thread::current().id()
    }
}

impl Shared {
    fn drop_events(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// How long the sink has been in its present call.
    fn in_call(&self) -> Duration {
        match self.called.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            called => Duration::from_micros(self.now().saturating_sub(called - 1)),
        }
    }

    fn fault(&self, patience: Duration) -> Option<String> {
        if let Some(message) = self.panicked.get() {
            return Some(format!("panicked: {message}"));
        }
        let stuck = self.in_call();
        if stuck >= patience {
            return Some(format!("stuck for {} s", stuck.as_secs()));
        }
        // Held for a moment at a time; the caller is never made to wait for it.
        self.fault.try_lock().ok()?.clone()
    }
}

impl Sink for Queue {
    fn record(&self, event: &Event) {
        // A forked copy of the embedder has no thread behind the queue: it stays silent.
        if !self.owner.is_here() {
            return;
        }
        let Some(inner) = &self.inner else { return };
        match inner
            .sender
            .try_send(Message::Event(Box::new(event.clone())))
        {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.drop_events(1);
            }
        }
    }

    fn flush(&self, within: Duration) -> Flushed {
        // Long enough for ever, and no overflow of a clock.
        let until = Instant::now() + within.min(Duration::from_secs(366 * 24 * 3600));
        let Some(inner) = &self.inner else {
            return Flushed::Complete;
        };
        if !self.owner.is_here() || inner.is_own_thread() {
            return Flushed::Pending(0);
        }
        let (reply, answer) = sync_channel(1);
        let mut message = Message::Flush(reply, until);
        loop {
            match inner.sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return Flushed::Pending(self.dropped()),
                Err(TrySendError::Full(back)) => {
                    if Instant::now() >= until {
                        return Flushed::Pending(1);
                    }
                    message = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(flushed) => flushed,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Flushed::Pending(1),
        }
    }

    /// That the sink panicked, that it is stuck, or what it says of itself.
    fn fault(&self) -> Option<String> {
        self.shared.fault(PATIENCE)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        if !self.owner.is_here() {
            std::mem::forget(inner);
            return;
        }
        let is_own_thread = inner.is_own_thread();
        let Inner {
            sender,
            done,
            thread,
        } = inner;
        drop(sender);
        let Ok(done) = done.into_inner() else {
            return;
        };
        if !is_own_thread && done.recv_timeout(Duration::from_millis(500)).is_ok() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

/// The queue's thread.
struct Delivery {
    sink: Box<dyn Sink>,
    shared: Arc<Shared>,
    batch: Vec<Event>,
    /// The event that the sink got last.
    last: Option<Event>,
}

impl Delivery {
    fn run(mut self, receiver: &Receiver<Message>) {
        while let Some(message) = self.next(receiver) {
            let mut after = Some(message);
            while let Some(Message::Event(event)) = after {
                self.batch.push(*event);
                // What is there already goes to the sink in one call; a flush ends the batch.
                after = (self.batch.len() < BATCH)
                    .then(|| receiver.try_recv().ok())
                    .flatten();
            }
            self.deliver();
            if let Some(Message::Flush(reply, until)) = after {
                self.report_trailing();
                let _ = reply.try_send(self.flush(until));
            }
        }
        let Self { sink, shared, .. } = self;
        let _ = shared.call(|| drop(sink));
    }

    fn next(&self, receiver: &Receiver<Message>) -> Option<Message> {
        receiver.try_recv().ok().or_else(|| {
            self.report_trailing();
            receiver.recv().ok()
        })
    }

    fn deliver(&mut self) {
        let Some(first) = self.batch.first() else {
            return;
        };
        if self.shared.panicked.get().is_some() {
            self.shared.drop_events(self.batch.len());
            self.batch.clear();
            return;
        }
        let lost = self.shared.dropped.swap(0, Ordering::Relaxed);
        let gap = (lost > 0).then(|| dropped(first, lost));
        let sink = self.sink.as_ref();
        let done = self.shared.call(|| {
            if let Some(gap) = &gap {
                sink.record(gap);
            }
            sink.record_all(&self.batch);
            sink.fault()
        });
        match done {
            Some(fault) => {
                if let Ok(mut known) = self.shared.fault.lock() {
                    *known = fault;
                }
            }
            None => self.shared.drop_events(self.batch.len()),
        }
        self.last = self.batch.pop();
        self.batch.clear();
    }

    /// Tells the sink of what was dropped, where no event follows that could be told along.
    fn report_trailing(&self) {
        let Some(last) = &self.last else { return };
        if self.shared.panicked.get().is_some() {
            return;
        }
        let lost = self.shared.dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.shared.call(|| self.sink.record(&dropped(last, lost)));
        }
    }

    fn flush(&self, until: Instant) -> Flushed {
        if self.shared.panicked.get().is_some() {
            return Flushed::Lost(self.shared.dropped.swap(0, Ordering::Relaxed).max(1));
        }
        let left = until.saturating_duration_since(Instant::now());
        self.shared
            .call(|| self.sink.flush(left))
            .unwrap_or(Flushed::Lost(1))
    }
}

impl Shared {
    /// Calls the sink; `None` where it panicked.
    fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        self.called
            .store(self.now().saturating_add(1), Ordering::Relaxed);
        let done = catch_unwind(AssertUnwindSafe(call));
        self.called.store(0, Ordering::Relaxed);
        done.map_err(|payload| {
            let _ = self
                .panicked
                .set(panic_message(payload.as_ref()).to_owned());
        })
        .ok()
    }
}

fn dropped(beside: &Event, count: u64) -> Event {
    Event {
        kind: EventKind::EventsDropped { count },
        ..beside.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::SystemTime;

    use super::*;
    use crate::RunId;

    fn event(sequence: u64) -> Event {
        Event {
            run: RunId::from_bits(1),
            sequence,
            time: SystemTime::UNIX_EPOCH,
            elapsed: Duration::ZERO,
            kind: EventKind::GuestStarted { pid: 7 },
        }
    }

    #[test]
    fn events_reach_the_sink_in_order_and_flush_waits_for_them() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let copy = seen.clone();
        let sink = move |event: &Event| copy.lock().unwrap().push(event.sequence);
        let queue = Queue::new(Box::new(sink), 64).unwrap();
        (0..50).for_each(|n| queue.record(&event(n)));
        assert_eq!(queue.flush(Duration::from_secs(10)), Flushed::Complete);
        assert_eq!(*seen.lock().unwrap(), (0..50).collect::<Vec<_>>());
        assert_eq!(queue.flush(Duration::MAX), Flushed::Complete);
    }

    #[test]
    fn a_stuck_sink_blocks_nobody_and_its_losses_are_counted_and_reported() {
        let (release, gate) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let copy = seen.clone();
        let sink = move |event: &Event| {
            copy.lock().unwrap().push(event.clone());
            if event.sequence == 0 {
                started.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
            }
        };
        let queue = Queue::new(Box::new(sink), 2).unwrap();
        queue.record(&event(0));
        running.recv().unwrap();
        (1..11).for_each(|n| queue.record(&event(n)));
        assert_eq!(queue.dropped(), 8);
        release.send(()).unwrap();
        assert_eq!(queue.flush(Duration::from_secs(10)), Flushed::Complete);
        let seen = seen.lock().unwrap();
        assert!(
            seen.iter()
                .any(|e| e.kind == EventKind::EventsDropped { count: 8 })
        );
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_panicking_sink_is_not_called_again() {
        let calls = Arc::new(AtomicU64::new(0));
        let copy = calls.clone();
        let sink = move |_: &Event| {
            copy.fetch_add(1, Ordering::Relaxed);
            panic!("a sink's own fault");
        };
        let queue = Queue::new(Box::new(sink), 8).unwrap();
        queue.record(&event(0));
        queue.record(&event(1));
        assert!(matches!(
            queue.flush(Duration::from_secs(10)),
            Flushed::Lost(_)
        ));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(
            queue.fault().as_deref(),
            Some("panicked: a sink's own fault")
        );
    }

    #[test]
    fn a_sink_that_does_not_come_back_is_told_without_a_word_from_it() {
        let (release, gate) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let sink = move |_: &Event| {
            started.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
        };
        let queue = Queue::new(Box::new(sink), 2).unwrap();
        assert_eq!(queue.shared.fault(Duration::from_micros(1)), None);
        queue.record(&event(0));
        running.recv().unwrap();
        while queue.shared.in_call().is_zero() {
            std::thread::yield_now();
        }
        let fault = queue.shared.fault(Duration::ZERO);
        assert_eq!(fault.as_deref(), Some("stuck for 0 s"));
        release.send(()).unwrap();
        assert_eq!(queue.flush(Duration::from_secs(10)), Flushed::Complete);
        assert_eq!(queue.shared.fault(Duration::from_micros(1)), None);
    }

    #[test]
    fn what_was_dropped_last_is_told_although_no_event_follows() {
        let (release, gate) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        let (told, count) = mpsc::channel::<u64>();
        let gate = Mutex::new(gate);
        let sink = move |event: &Event| match event.kind {
            EventKind::EventsDropped { count } => told.send(count).unwrap(),
            _ if event.sequence == 0 => {
                started.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
            }
            _ => {}
        };
        let queue = Queue::new(Box::new(sink), 1).unwrap();
        queue.record(&event(0));
        running.recv().unwrap();
        (1..4).for_each(|n| queue.record(&event(n)));
        release.send(()).unwrap();
        assert_eq!(count.recv().unwrap(), 2);
    }

    #[test]
    fn what_a_sink_says_of_itself_is_what_its_queue_says() {
        struct Full;
        impl Sink for Full {
            fn record(&self, _: &Event) {}
            fn fault(&self) -> Option<String> {
                Some("disk full".into())
            }
        }
        let queue = Queue::new(Box::new(Full), 4).unwrap();
        queue.record(&event(0));
        assert_eq!(queue.flush(Duration::from_secs(10)), Flushed::Complete);
        assert_eq!(queue.fault().as_deref(), Some("disk full"));
    }
}
