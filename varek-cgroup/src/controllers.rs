//! The one place that knows cgroups-rs: it writes limits, on version 1 and 2 alike. See
//! docs/adr/0002-cgroups.md for what it is trusted with and what not.
//!
//! Its controllers take a path. They get `/proc/thread-self/fd/N` of a directory that is held open, so that
//! what they write goes into that very group. Nothing here is believed: the caller reads every limit back.

use std::error::Error as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use cgroups_rs::MaxValue;
use cgroups_rs::cpu::CpuController;
use cgroups_rs::memory::MemController;
use cgroups_rs::pid::PidController;

use crate::dir::Dir;
use crate::error::Error;
use crate::limits::{CpuQuota, micros};

/// Writes limits into one group of one hierarchy.
pub(crate) struct Writer<'a> {
    directory: &'a Dir,
    unified: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(directory: &'a Dir, unified: bool) -> Self {
        Self { directory, unified }
    }

    fn root(&self) -> PathBuf {
        format!(
            "/proc/thread-self/fd/{}",
            self.directory.as_fd().as_raw_fd()
        )
        .into()
    }

    fn failed(&self, file: &str, error: &cgroups_rs::error::Error) -> Error {
        let source = error
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>())
            .and_then(io::Error::raw_os_error)
            .map_or_else(
                || io::Error::other(error.to_string()),
                io::Error::from_raw_os_error,
            );
        Error::io("write", &self.directory.path().join(file), source)
    }

    pub(crate) fn memory(&self, file: &str, bytes: u64) -> Result<(), Error> {
        MemController::new(self.root(), self.unified)
            .set_limit(i64::try_from(bytes).unwrap_or(i64::MAX))
            .map_err(|error| self.failed(file, &error))
    }

    /// Version 1: memory and swap together; version 2: swap alone.
    pub(crate) fn swap(&self, file: &str, bytes: u64) -> Result<(), Error> {
        MemController::new(self.root(), self.unified)
            .set_memswap_limit(i64::try_from(bytes).unwrap_or(i64::MAX))
            .map_err(|error| self.failed(file, &error))
    }

    pub(crate) fn pids(&self, file: &str, tasks: u64) -> Result<(), Error> {
        PidController::new(self.root(), self.unified)
            .set_pid_max(MaxValue::Value(i64::try_from(tasks).unwrap_or(i64::MAX)))
            .map_err(|error| self.failed(file, &error))
    }

    pub(crate) fn cpu(&self, file: &str, quota: CpuQuota) -> Result<(), Error> {
        let controller = CpuController::new(self.root(), self.unified);
        let period = micros(quota.period());
        let quota = i64::try_from(micros(quota.quota())).unwrap_or(i64::MAX);
        if self.unified {
            controller.set_cfs_quota_and_period(Some(quota), Some(period))
        } else {
            // The kernel checks each write against what is there: the period first, while there is no quota.
            controller
                .set_cfs_period(period)
                .and_then(|()| controller.set_cfs_quota(quota))
        }
        .map_err(|error| self.failed(file, &error))
    }
}
