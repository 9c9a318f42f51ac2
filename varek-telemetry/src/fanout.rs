//! Several sinks behind one.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::owner::Owner;
use crate::sink::panic_message;
use crate::{Event, EventKind, Flushed, Sink};

/// Several sinks behind one: each gets every event, in the order in which they were added.
///
/// A sink that panics is not called again and keeps nothing from the others, who are told by an
/// [`EventKind::MonitorFault`] with the run and sequence of the event at hand; they are also told when
/// [`Sink::fault`] of another begins to say something. A sink that *hangs* holds up the ones after it: put what can
/// hang behind a [`Queue`](crate::Queue) of its own.
///
/// ```
/// use varek_telemetry::{Event, Fanout, Queue};
///
/// # fn main() -> std::io::Result<()> {
/// let slow = |event: &Event| eprintln!("{event:?}");
/// let sinks = Fanout::new()
///     .with(|event: &Event| println!("{}", event.kind.name()))
///     .with(Queue::new(Box::new(slow), 1_024)?);
/// # drop(sinks);
/// # Ok(())
/// # }
/// ```
pub struct Fanout {
    sinks: Vec<Branch>,
    owner: Owner,
}

struct Branch {
    sink: Box<dyn Sink>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the sink said when it panicked.
    panicked: Option<String>,
    /// Whether the others know of its fault.
    told: bool,
    /// Events that it did not get, or may not have got, since the flush before.
    lost: u64,
}

impl Fanout {
    /// No sink yet.
    pub fn new() -> Self {
        Self {
            sinks: Vec::new(),
            owner: Owner::this(),
        }
    }

    /// One sink more.
    #[must_use]
    pub fn with(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Branch {
            sink: Box::new(sink),
            state: Mutex::default(),
        });
        self
    }

    /// Tells the others of faults that have just begun.
    fn tell(&self, beside: &Event) {
        for (index, branch) in self.sinks.iter().enumerate() {
            let Some(fault) = branch.news() else { continue };
            let event = Event {
                kind: EventKind::MonitorFault {
                    fault: format!("sink {index}: {fault}"),
                },
                ..beside.clone()
            };
            for (other, branch) in self.sinks.iter().enumerate() {
                if other != index {
                    branch.record_all(std::slice::from_ref(&event));
                }
            }
        }
    }
}

impl Branch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_all(&self, events: &[Event]) {
        let count = events.len() as u64;
        if self.state().panicked.is_some() {
            self.state().lost += count;
            return;
        }
        let done = catch_unwind(AssertUnwindSafe(|| self.sink.record_all(events)));
        if let Err(payload) = done {
            self.panicked(payload.as_ref(), count);
        }
    }

    fn panicked(&self, payload: &(dyn std::any::Any + Send), lost: u64) {
        let mut state = self.state();
        state.panicked = Some(format!("panicked: {}", panic_message(payload)));
        state.lost += lost;
    }

    fn fault(&self) -> Option<String> {
        if let Some(fault) = &self.state().panicked {
            return Some(fault.clone());
        }
        match catch_unwind(AssertUnwindSafe(|| self.sink.fault())) {
            Ok(fault) => fault,
            Err(payload) => {
                self.panicked(payload.as_ref(), 0);
                self.state().panicked.clone()
            }
        }
    }

    /// A fault that the others do not know of. One that goes away and comes back is news again.
    fn news(&self) -> Option<String> {
        let fault = self.fault();
        let told = std::mem::replace(&mut self.state().told, fault.is_some());
        fault.filter(|_| !told)
    }

    fn flush(&self, within: Duration) -> Flushed {
        let flushed = if self.state().panicked.is_some() {
            Flushed::Complete
        } else {
            match catch_unwind(AssertUnwindSafe(|| self.sink.flush(within))) {
                Ok(flushed) => flushed,
                Err(payload) => {
                    self.panicked(payload.as_ref(), 0);
                    Flushed::Pending(1)
                }
            }
        };
        match std::mem::take(&mut self.state().lost) {
            0 => flushed,
            lost => flushed.and(Flushed::Lost(lost)),
        }
    }
}

impl Sink for Fanout {
    fn record(&self, event: &Event) {
        self.record_all(std::slice::from_ref(event));
    }

    fn record_all(&self, events: &[Event]) {
        let (true, Some(last)) = (self.owner.is_here(), events.last()) else {
            return;
        };
        for branch in &self.sinks {
            branch.record_all(events);
        }
        self.tell(last);
    }

    /// Flushes one sink after the other, each with what is left of the time.
    fn flush(&self, within: Duration) -> Flushed {
        if !self.owner.is_here() {
            return Flushed::Complete;
        }
        let begin = Instant::now();
        self.sinks.iter().fold(Flushed::Complete, |all, branch| {
            all.and(branch.flush(within.saturating_sub(begin.elapsed())))
        })
    }

    /// The first fault among the sinks, with the sink's position.
    fn fault(&self) -> Option<String> {
        if !self.owner.is_here() {
            return None;
        }
        self.sinks
            .iter()
            .enumerate()
            .find_map(|(index, branch)| Some(format!("sink {index}: {}", branch.fault()?)))
    }
}

impl Drop for Fanout {
    /// A sink's own panic ends with it: the sinks after it are dropped all the same.
    fn drop(&mut self) {
        for branch in self.sinks.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(branch)));
        }
    }
}

impl Default for Fanout {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fanout")
            .field("sinks", &self.sinks.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
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

    fn keeping() -> (impl Sink + 'static, Arc<Mutex<Vec<Event>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let copy = seen.clone();
        (
            move |event: &Event| copy.lock().unwrap().push(event.clone()),
            seen,
        )
    }

    #[test]
    fn a_sink_that_panics_keeps_no_event_from_the_others_and_they_are_told_once() {
        let (before, seen_before) = keeping();
        let (after, seen_after) = keeping();
        let calls = Arc::new(Mutex::new(0));
        let counted = calls.clone();
        let faulty = move |_: &Event| {
            *counted.lock().unwrap() += 1;
            panic!("out of luck");
        };
        let sinks = Fanout::new().with(before).with(faulty).with(after);
        (0..3).for_each(|n| sinks.record(&event(n)));
        assert_eq!(*calls.lock().unwrap(), 1);
        for seen in [seen_before, seen_after] {
            let seen = seen.lock().unwrap();
            let kinds: Vec<_> = seen.iter().map(|e| (e.sequence, e.kind.name())).collect();
            let started = |n| (n, "guest_started");
            assert_eq!(
                kinds,
                [started(0), (0, "monitor_fault"), started(1), started(2)]
            );
            let EventKind::MonitorFault { fault } = &seen[1].kind else {
                panic!()
            };
            assert_eq!(fault, "sink 1: panicked: out of luck");
        }
        assert_eq!(sinks.flush(Duration::ZERO), Flushed::Lost(3));
        assert_eq!(sinks.flush(Duration::ZERO), Flushed::Complete);
        assert!(sinks.fault().unwrap().contains("out of luck"));
    }

    #[test]
    fn sinks_without_faults_have_none_and_flush_completely() {
        let (one, seen) = keeping();
        let sinks = Fanout::new().with(one).with(|_: &Event| {});
        sinks.record(&event(0));
        assert_eq!(sinks.flush(Duration::ZERO), Flushed::Complete);
        assert_eq!(sinks.fault(), None);
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}
