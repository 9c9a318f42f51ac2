//! Files that one process alone writes to.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// A file with its lock (flock(2)), which is given up when this is dropped.
///
/// Closing the file alone would not do: the lock is that of every copy of the descriptor. A copy of this process made by fork(2) may keep one
/// for as long as it lives, and each process that is being started has one until its execve(2).
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    owner: u32,
}

impl Locked {
    /// Takes the lock, unless somebody has it.
    pub(crate) fn take(file: File, path: &Path) -> Result<Self, Error> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                file,
                owner: std::process::id(),
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse {
                path: path.to_owned(),
            }),
            Err(errno) => Err(Error::io("lock", path)(errno.into())),
        }
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // In a copy of the process that took it, the lock is not this one's to give up.
        if self.owner == std::process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}
