//! Where events go.

use std::sync::Arc;
use std::time::Duration;

use crate::Event;

/// A receiver of events.
///
/// `record` is called once an event, in sequence within a run. `varek-core` calls sinks from a thread of
/// their own behind a bounded [`Queue`](crate::Queue), so that a slow or panicking sink never touches
/// enforcement. Any `Fn(&Event) + Send + Sync` is a sink.
pub trait Sink: Send + Sync {
    /// Takes one event.
    fn record(&self, event: &Event);

    /// Brings everything recorded so far to its destination, for at most this long.
    fn flush(&self, _within: Duration) -> Flushed {
        Flushed::Complete
    }
}

/// What a flush achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flushed {
    /// Everything recorded before the call has reached its destination.
    Complete,
    /// The time was over first; this many events are still on their way.
    Pending(u64),
}

impl<F: Fn(&Event) + Send + Sync> Sink for F {
    fn record(&self, event: &Event) {
        self(event);
    }
}

impl Sink for Arc<dyn Sink> {
    fn record(&self, event: &Event) {
        self.as_ref().record(event);
    }

    fn flush(&self, within: Duration) -> Flushed {
        self.as_ref().flush(within)
    }
}
