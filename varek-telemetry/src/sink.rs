//! Where events go.

use std::any::Any;
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

    /// Takes several events, in order: what a [`Queue`](crate::Queue) has at hand. Files write them at once.
    fn record_all(&self, events: &[Event]) {
        for event in events {
            self.record(event);
        }
    }

    /// Brings everything recorded so far to its destination, for at most this long.
    fn flush(&self, _within: Duration) -> Flushed {
        Flushed::Complete
    }

    /// What keeps this sink from doing its work, in words for people; `None` while all is well. Asked for often,
    /// so it must be quick.
    fn fault(&self) -> Option<String> {
        None
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
    /// The destination refused this many events since the flush before; they are lost.
    Lost(u64),
}

impl Flushed {
    /// Both at once: what is lost weighs more than what is pending.
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Lost(a), Self::Lost(b)) => Self::Lost(a.saturating_add(b)),
            (Self::Lost(lost), _) | (_, Self::Lost(lost)) => Self::Lost(lost),
            (Self::Pending(a), Self::Pending(b)) => Self::Pending(a.saturating_add(b)),
            (Self::Pending(count), Self::Complete) | (Self::Complete, Self::Pending(count)) => {
                Self::Pending(count)
            }
            (Self::Complete, Self::Complete) => Self::Complete,
        }
    }
}

impl<F: Fn(&Event) + Send + Sync> Sink for F {
    fn record(&self, event: &Event) {
        self(event);
    }
}

macro_rules! forward {
    ($($to:ty),*) => {$(
        impl Sink for $to {
            fn record(&self, event: &Event) {
                self.as_ref().record(event);
            }

            fn record_all(&self, events: &[Event]) {
                self.as_ref().record_all(events);
            }

            fn flush(&self, within: Duration) -> Flushed {
                self.as_ref().flush(within)
            }

            fn fault(&self) -> Option<String> {
                self.as_ref().fault()
            }
        }
    )*};
}

forward!(Arc<dyn Sink>, Box<dyn Sink>);

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
