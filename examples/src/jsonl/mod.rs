//! Requests as JSON lines, outcomes as JSON lines: how a program in another language uses VAREK.
//!
//! A line goes through [`Request::parse`], [`settings::policy`] and [`Executor::answer`], and comes
//! back as a [`Response`]; [`serve()`] does that for a whole stream, several lines at a time. Nothing here
//! confines anything: what a guest may do is the [`Policy`](varek_core::Policy) that comes out of the
//! request, and VAREK enforces it.

mod events;
mod execute;
mod prepare;
mod request;
mod respond;
mod serve;
pub mod settings;
mod spill;

pub use execute::Executor;
pub use request::{FileContents, Input, Request};
pub use respond::{Refusal, Response, Seconds, Status};
pub use serve::{Answer, Line, Served, serve};
