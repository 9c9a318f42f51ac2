//! Typed events of the kernel boundary.
//!
//! One [`Event`] is one thing that the supervisor of a sandboxed run saw or did: a denied system call,
//! a limit that was hit, a kill and its [`Cause`]. Events reach the embedder through a [`Sink`]; any
//! closure `Fn(&Event)` is one. A [`Queue`] puts a slow sink behind a bounded buffer and its own thread,
//! so that it can never hold up enforcement; what it had to drop is itself an event.
//!
//! This crate knows no kernel: it holds the words that `varek-core` reports with.
//!
//! # Sinks
//!
//! | sink | what becomes of an event | feature |
//! |---|---|---|
//! | a closure | whatever it does | |
//! | [`Fanout`] | goes to several sinks, each kept from the faults of the others | |
//! | [`Queue`] | goes to another thread | |
//! | `JsonLines` | one line of JSON in a file, with rotation by size | |
//! | `AuditLog` | the same, in a hash chain that [`verify`] checks | |
//! | its signed head | an Ed25519 signature, so that a log cannot be cut short or written anew unseen | `signing` |
//! | `Tracing` | an event of the `tracing` facade | `tracing` |
//! | `Metrics` | counters and histograms of the `metrics` facade | `metrics` |
//! | `Otlp` | one OpenTelemetry span a run, by OTLP over HTTP | `otel` |
//!
//! No feature is on by default. The file sinks exist on Linux alone. [`Record`] says what stays as it is in the
//! written form, and [`records`] reads it.
//!
//! # Embedders that fork
//!
//! Sinks note the process that made them. A copy of the embedder made by fork(2) without exec holds the same
//! files and none of the threads: there every sink of this crate does nothing, neither on `record` and `flush` nor
//! when it is dropped. A closure is called there like any other function of the embedder; behind a [`Queue`] or
//! in a [`Fanout`] it is not. What tells the processes apart is getpid(2): a copy that is PID 1 of a PID
//! namespace, made by an embedder that is itself PID 1 of another, is not told apart.

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
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod owner;
mod parent;
mod pointee;
mod queue;
mod run;
mod sink;
#[cfg(feature = "tracing")]
mod tracing;
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
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "otel")]
pub use otel::{Otlp, OtlpBuilder, OtlpError};
pub use parent::{NotATraceParent, TraceParent};
pub use pointee::{GuestText, Pointee, Pointer, Unverified};
pub use queue::Queue;
pub use run::RunId;
pub use sink::{Flushed, Sink};
#[cfg(feature = "tracing")]
pub use tracing::Tracing;
pub use usage::{Cleanup, Usage};
pub use wire::{ReadError, Record, Records, UnknownRecord, WIRE_VERSION, records};

/// The examples of the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
