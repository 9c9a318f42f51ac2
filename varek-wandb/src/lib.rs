//! An audit trail of sandboxed runs in Weights & Biases.
//!
//! This crate is reserved for a native W&B sink of `varek-telemetry` events, and holds nothing yet: no
//! run, no sink and no network code. Until it does, give `varek-core` a sink of your own (any closure over
//! `&Event`), and log from there.
