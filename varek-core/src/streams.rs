//! The guest's stdin, stdout and stderr, and the embedder's ends of them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, Gid, Mode, OFlags, SealFlags, Uid};
use rustix::pipe::PipeFlags;

use crate::calls::Callback;
use crate::command::{InputKind, OutputKind};
use crate::error::Error;
use crate::pipe::{ByteQueue, Filling};

/// One output stream on the embedder's side.
pub(crate) enum Capture {
    /// Not seen by VAREK.
    None,
    /// Into a bounded buffer.
    Buffer(OwnedFd),
    /// To a reader of the embedder's.
    Stream(OwnedFd, Arc<ByteQueue>),
    /// Into a bounded buffer, and to a reader that calls code of the embedder's.
    Both(OwnedFd, Filling, Option<Callback>),
}

/// The guest's three descriptors, and the embedder's ends of their pipes.
pub(crate) struct Streams {
    pub(crate) child: [OwnedFd; 3],
    pub(crate) stdin: Option<(OwnedFd, Arc<ByteQueue>)>,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
}

impl Streams {
    /// Pipes belong to `owner`, so that the guest can open them once more: `/dev/stderr`, `/dev/stdin`.
    pub(crate) fn open(
        stdin: InputKind,
        stdout: OutputKind,
        stderr: OutputKind,
        owner: Option<(u32, u32)>,
    ) -> Result<Self, Error> {
        let pipe = || pipe(owner);
        let (child_in, stdin) = match stdin {
            InputKind::Null => (null(OFlags::RDONLY)?, None),
            InputKind::File(file) => (given(file, "stdin")?, None),
            InputKind::Bytes(bytes) if bytes.is_empty() => (null(OFlags::RDONLY)?, None),
            InputKind::Bytes(bytes) => {
                let (read, write) = pipe()?;
                nonblocking(&write)?;
                (read, Some((write, Arc::new(ByteQueue::filled(bytes)))))
            }
            InputKind::Piped => {
                let (read, write) = pipe()?;
                nonblocking(&write)?;
                (read, Some((write, Arc::new(ByteQueue::default()))))
            }
        };
        let (child_out, stdout) = output(stdout, "stdout", pipe)?;
        let (child_err, stderr) = output(stderr, "stderr", pipe)?;
        Ok(Self {
            child: [child_in, child_out, child_err],
            stdin,
            stdout,
            stderr,
        })
    }
}

fn output(
    kind: OutputKind,
    stream: &str,
    pipe: impl FnOnce() -> Result<(OwnedFd, OwnedFd), Error>,
) -> Result<(OwnedFd, Capture), Error> {
    Ok(match kind {
        OutputKind::Null => (null(OFlags::WRONLY)?, Capture::None),
        OutputKind::File(file) => (given(file, stream)?, Capture::None),
        OutputKind::Captured => {
            let (read, write) = pipe()?;
            nonblocking(&read)?;
            (write, Capture::Buffer(read))
        }
        OutputKind::Called(callback) => {
            let (read, write) = pipe()?;
            nonblocking(&read)?;
            (
                write,
                Capture::Both(read, Filling::default(), Some(unlocked(callback))),
            )
        }
        OutputKind::Piped => {
            let (read, write) = pipe()?;
            nonblocking(&read)?;
            (write, Capture::Stream(read, Arc::new(ByteQueue::default())))
        }
    })
}

/// A file of the embedder's as a stream of the guest.
///
/// A guest can open what its descriptors lead to once more, through `/proc/self/fd`. A file that has a path is then
/// held by Landlock and its mode. A memory file has none, Landlock lets it pass, and memfd_create(2) gives it all
/// permissions: only its mode and its seals keep a guest to the way in which it was opened.
fn given(file: File, stream: &str) -> Result<OwnedFd, Error> {
    let refuse = |reason: &str| Error::Command {
        what: format!("the file for {stream}"),
        reason: reason.to_owned(),
    };
    let failed = |errno| Error::io("look at a file that was passed", errno);
    if is_memory(&file) {
        let access = rustix::fs::fcntl_getfl(&file).map_err(failed)? & OFlags::RWMODE;
        let mode = rustix::fs::fstat(&file).map_err(failed)?.st_mode;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(failed)?;
        let sealed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        if access == OFlags::RDONLY && mode & 0o222 != 0 && !sealed {
            return Err(refuse(
                "is a memory file that is open for reading alone, and that the guest could open for writing: seal it \
                 (F_SEAL_WRITE or F_SEAL_FUTURE_WRITE), or take the write permissions from its mode",
            ));
        }
        if access == OFlags::WRONLY && mode & 0o444 != 0 {
            return Err(refuse(
                "is a memory file that is open for writing alone, and that the guest could open for reading: take \
                 the read permissions from its mode",
            ));
        }
    }
    above_stdio(file)
}

/// Whether this is a file of memfd_create(2). Files of tmpfs can have seals too, and a path; without `/proc` they count as ones
/// that have none.
pub(crate) fn is_memory(file: &File) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = rustix::fs::readlinkat(CWD, link, Vec::new());
    let placed = target.is_ok_and(|target| !target.to_bytes().starts_with(b"/memfd:"));
    rustix::fs::fcntl_get_seals(file).is_ok() && !placed
}

fn unlocked(callback: Mutex<Callback>) -> Callback {
    callback
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn null(mode: OFlags) -> Result<OwnedFd, Error> {
    let fd = rustix::fs::open("/dev/null", mode | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::io_at("open", "/dev/null", e))?;
    above_stdio(fd)
}

/// A pipe, which has one inode for both ends, of this owner, or of the embedder.
fn pipe(owner: Option<(u32, u32)>) -> Result<(OwnedFd, OwnedFd), Error> {
    let (read, write) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::io("pipe2", e))?;
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::fchown(&read, Some(uid), Some(gid))
            .map_err(|e| Error::io("give the guest its pipe", e))?;
    }
    Ok((above_stdio(read)?, above_stdio(write)?))
}

fn nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|e| Error::io("make a pipe non-blocking", e))
}

/// A close-on-exec descriptor over 2 for the same file: the child's dup3 to 0, 1 and 2 must not meet its
/// own sources, whatever the embedder has closed.
pub(crate) trait AboveStdio {
    fn above_stdio(self) -> Result<OwnedFd, Error>;
}

pub(crate) fn above_stdio(fd: impl AboveStdio) -> Result<OwnedFd, Error> {
    fd.above_stdio()
}

fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Error> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| Error::io("fcntl F_DUPFD_CLOEXEC", e))
}

impl AboveStdio for OwnedFd {
    fn above_stdio(self) -> Result<OwnedFd, Error> {
        if self.as_raw_fd() > 2 {
            Ok(self)
        } else {
            duplicate(self)
        }
    }
}

impl AboveStdio for File {
    fn above_stdio(self) -> Result<OwnedFd, Error> {
        OwnedFd::from(self).above_stdio()
    }
}

impl AboveStdio for &OwnedFd {
    fn above_stdio(self) -> Result<OwnedFd, Error> {
        duplicate(self)
    }
}

impl AboveStdio for std::os::fd::BorrowedFd<'_> {
    fn above_stdio(self) -> Result<OwnedFd, Error> {
        duplicate(self)
    }
}
