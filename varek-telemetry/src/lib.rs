//! Typed events of the kernel boundary.
//!
//! One [`Event`] is one thing that the supervisor of a sandboxed run saw or did: a denied system call,
//! a limit that was hit, a kill and its [`Cause`]. Events reach the embedder through a [`Sink`]; any
//! closure `Fn(&Event)` is one. A [`Queue`] puts a slow sink behind a bounded buffer and its own thread,
//! so that it can never hold up enforcement; what it had to drop is itself an event.
//!
//! This crate knows no kernel: it holds the words that `varek-core` reports with.

mod arguments;
mod cause;
mod decode;
mod event;
mod fanout;
mod layer;
mod owner;
mod queue;
mod run;
mod sink;
mod usage;
mod wire;

pub use arguments::{ArgumentDetail, Arguments};
pub use cause::{Cause, LimitHit, Resource, Signal, Termination, UnknownReason};
pub use event::{Answer, Denial, Event, EventKind, Stream};
pub use fanout::Fanout;
pub use layer::{Enforcement, Layer, LayerStatus};
pub use queue::Queue;
pub use run::RunId;
pub use sink::{Flushed, Sink};
pub use usage::{Cleanup, Usage};
pub use wire::{ReadError, Record, Records, UnknownRecord, WIRE_VERSION, records};
