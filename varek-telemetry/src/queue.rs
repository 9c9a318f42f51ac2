//! A bounded queue in front of a sink, with a thread of its own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Event, EventKind, Flushed, Sink};

enum Message {
    Event(Box<Event>),
    Flush(SyncSender<Flushed>, Instant),
}

/// A bounded queue in front of a sink.
///
/// `record` never blocks: when the queue is full the event is dropped and counted, and the count reaches
/// the sink as [`EventKind::EventsDropped`] before the next event that fits. A sink that panics is not
/// called again; what follows is counted as dropped.
///
/// Dropping the queue gives the sink half a second to take what is queued, and then leaves its thread
/// to finish alone: a sink that hangs cannot hold up the embedder.
pub struct Queue {
    sender: Option<SyncSender<Message>>,
    dropped: Arc<AtomicU64>,
    done: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
    process: u32,
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
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = dropped.clone();
        let thread = std::thread::Builder::new()
            .name("varek-telemetry".into())
            .spawn(move || {
                deliver(sink.as_ref(), &receiver, &counter);
                let _ = finished.try_send(());
            })?;
        Ok(Self {
            sender: Some(sender),
            dropped,
            done: Mutex::new(done),
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// Whether the sink itself is calling, which would wait for its own return.
    fn is_own_thread(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(std::thread::current().id())
    }

    /// Events dropped since the last one that the sink was told about.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Sink for Queue {
    fn record(&self, event: &Event) {
        // A forked copy of the embedder has no thread behind the queue: it stays silent.
        if self.process != std::process::id() {
            return;
        }
        let Some(sender) = &self.sender else { return };
        match sender.try_send(Message::Event(Box::new(event.clone()))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn flush(&self, within: Duration) -> Flushed {
        // Long enough for ever, and no overflow of a clock.
        let until = Instant::now() + within.min(Duration::from_secs(366 * 24 * 3600));
        if self.process != std::process::id() || self.is_own_thread() {
            return Flushed::Pending(0);
        }
        let Some(sender) = &self.sender else {
            return Flushed::Complete;
        };
        let (reply, answer) = sync_channel(1);
        let mut message = Message::Flush(reply, until);
        loop {
            match sender.try_send(message) {
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
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.sender.take());
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.process != std::process::id() {
            return;
        }
        let Ok(done) = self.done.get_mut() else {
            return;
        };
        if thread.thread().id() != std::thread::current().id()
            && done.recv_timeout(Duration::from_millis(500)).is_ok()
        {
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

fn deliver(sink: &dyn Sink, receiver: &Receiver<Message>, dropped: &AtomicU64) {
    let mut poisoned = false;
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Event(_) if poisoned => {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
            Message::Event(event) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    if lost > 0 {
                        let kind = EventKind::EventsDropped { count: lost };
                        sink.record(&Event {
                            kind,
                            ..Event::clone(&event)
                        });
                    }
                    sink.record(&event);
                }));
                poisoned = outcome.is_err();
            }
            Message::Flush(reply, until) => {
                let left = until.saturating_duration_since(Instant::now());
                let flushed = if poisoned {
                    Flushed::Pending(dropped.load(Ordering::Relaxed))
                } else {
                    catch_unwind(AssertUnwindSafe(|| sink.flush(left)))
                        .unwrap_or(Flushed::Pending(1))
                };
                let _ = reply.try_send(flushed);
            }
        }
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
            Flushed::Pending(_)
        ));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
