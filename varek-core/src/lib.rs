//! Placeholder while the crate is being put together.

mod error;
#[cfg(target_os = "linux")]
mod filesystem;
mod host;
mod identity;
mod landlock;
mod limits;
mod policy;
mod scratch;
mod sys;
