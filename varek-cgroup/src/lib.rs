//! Control groups for runs of untrusted programs: one group a run, its limits read back, its counters as
//! evidence, its whole tree killed at once, nothing left behind.
//!
//! [`Layout`] says where this process may make groups. A [`Subtree`] is the parent group of one embedder, owned
//! by a lock; it makes one [`Group`] a run. [`Limits`] go in; [`Counters`] and [`Usage`] come out.
//!
//! ```no_run
//! use varek_cgroup::{Controller, Layout, Limits, Removal, Subtree};
//!
//! # fn main() -> Result<(), varek_cgroup::Error> {
//! let subtree = Subtree::prepare(&Layout::probe()?, &[Controller::Pids], &Limits::default())?;
//! let group = subtree.create("run-1", &Limits { pids: Some(16), ..Limits::default() })?;
//! // Put a process in: clone3 with CLONE_INTO_CGROUP and `group.directory()`, then `group.placements()`.
//! group.kill()?;
//! while group.remove()? == Removal::Busy {
//!     // Wait on `group.events()` until `group.populated()` is false.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Unified and hybrid hosts
//! The life of a group (create into, kill, watch) is in a cgroup2 tree, which hybrid hosts also mount. Each
//! controller is used where the host has it: in the same tree, or in its own version 1 hierarchy, where the group
//! gets a second directory. Without a cgroup2 mount, or before Linux 5.14 (`cgroup.kill`), everything is an error.
//!
//! # What holds, and what gets round it
//! The kernel enforces the limits on every task that was put into the group before it ran foreign code, and on all
//! its descendants. A guest that may write to the control group file system could leave; groups belong to the
//! embedder's user, so a guest of another user cannot, and one of the same user must be kept from
//! the files by Landlock. On a version 1 hierarchy membership is per hierarchy: the child must write itself
//! into every one of [`Group::placements`] before its exec.
//!
//! Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel.
#![cfg_attr(
    not(target_os = "linux"),
    doc = "\n`Subtree` and `Group` exist on Linux only."
)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        rustdoc::broken_intra_doc_links,
        reason = "the parts that use and name them are for Linux"
    )
)]

mod error;
mod layout;
mod limits;
mod parse;
mod usage;

#[cfg(target_os = "linux")]
mod access;
#[cfg(target_os = "linux")]
mod bounds;
#[cfg(target_os = "linux")]
mod controllers;
#[cfg(target_os = "linux")]
mod counters;
#[cfg(target_os = "linux")]
mod dir;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod home;
#[cfg(target_os = "linux")]
mod subtree;
#[cfg(target_os = "linux")]
mod sweep;

pub use error::{DELEGATION, Error};
#[cfg(target_os = "linux")]
pub use group::{Group, Removal, Unenforced};
pub use layout::{Controller, Hierarchy, Layout};
pub use limits::{CpuQuota, Limits};
#[cfg(target_os = "linux")]
pub use subtree::Subtree;
#[cfg(target_os = "linux")]
pub use sweep::Swept;
pub use usage::{Counters, Usage};

/// The examples of the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
