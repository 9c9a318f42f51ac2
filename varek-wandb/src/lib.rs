//! An audit trail of sandboxed runs in Weights & Biases.

mod error;
mod log;
mod proto;

pub use error::{Damage, Error};
