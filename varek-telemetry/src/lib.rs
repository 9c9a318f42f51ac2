//! Typed events of the kernel boundary.
//!
//! One [`Event`] is one thing that the supervisor of a sandboxed run saw or did: a denied system call,
//! a limit that was hit, a kill and its [`Cause`]. Events reach the embedder through a [`Sink`]; any
//! closure `Fn(&Event)` is one. A [`Queue`] puts a slow sink behind a bounded buffer and its own thread,
//! so that it can never hold up enforcement; what it had to drop is itself an event.
//!
//! This crate knows no kernel: it holds the words that `varek-core` reports with.

mod arguments;
mod audit;
mod cause;
mod decode;
mod event;
mod fanout;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod json_lines;
mod layer;
mod owner;
mod queue;
mod run;
mod sink;
mod usage;
mod wire;

pub use arguments::{ArgumentDetail, Arguments};
#[cfg(target_os = "linux")]
pub use audit::AuditLog;
#[cfg(feature = "signing")]
pub use audit::{BadHead, BadKey, SignedHead, SigningKey, VerifyingKey};
pub use audit::{Head, NotAHead, NotVerified, Verified, verify};
pub use cause::{Cause, LimitHit, Resource, Signal, Termination, UnknownReason};
pub use event::{Answer, Denial, Event, EventKind, Stream};
pub use fanout::Fanout;
#[cfg(target_os = "linux")]
pub use file::LogError;
#[cfg(target_os = "linux")]
pub use json_lines::JsonLines;
pub use layer::{Enforcement, Layer, LayerStatus};
pub use queue::Queue;
pub use run::RunId;
pub use sink::{Flushed, Sink};
pub use usage::{Cleanup, Usage};
pub use wire::{ReadError, Record, Records, UnknownRecord, WIRE_VERSION, records};
