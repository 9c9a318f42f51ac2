//! The pipes of one run, from the supervisor's side. Nothing here waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::capture::{Buffer, Captured};
use crate::pipe::{ByteQueue, Drained};
use crate::plan::Capture;

/// How much of one stream is read before the other runs have their turn.
const TURN: usize = 64;
const CHUNK: usize = 16 * 1024;

/// An output stream of a guest.
pub(super) struct Pump {
    pipe: Option<OwnedFd>,
    to: To,
    /// Whether the reader has no room, so that the pipe is left alone.
    pub(super) paused: bool,
    /// Whether the pipe is in the epoll now.
    pub(super) armed: bool,
    /// Whether it was said that output is cut.
    pub(super) cut_reported: bool,
}

enum To {
    Nobody,
    Buffer(Buffer),
    Stream { queue: Arc<ByteQueue>, total: u64 },
}

/// How a pipe was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// More may come.
    Open,
    /// The reader has no room.
    Full,
    /// End of file.
    Closed,
}

impl Pump {
    pub(super) fn new(capture: Capture, bound: u64) -> Self {
        let (pipe, to) = match capture {
            Capture::None => (None, To::Nobody),
            Capture::Buffer(pipe) => (Some(pipe), To::Buffer(Buffer::new(bound))),
            Capture::Stream(pipe, queue) => (Some(pipe), To::Stream { queue, total: 0 }),
        };
        Self {
            pipe,
            to,
            paused: false,
            armed: false,
            cut_reported: false,
        }
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads what is there, for one turn, or (`to_the_end`) all that the dead tree can have left in the pipe.
    ///
    /// No more than that: somebody to whom the guest sent the pipe's other end may go on writing for ever.
    pub(super) fn read(&mut self, to_the_end: bool) -> io::Result<Left> {
        let mut chunk = [0; CHUNK];
        let mut left = match &self.pipe {
            Some(pipe) if to_the_end => rustix::pipe::fcntl_getpipe_size(pipe)?,
            _ => TURN * CHUNK,
        };
        while let Some(pipe) = &self.pipe {
            if left == 0 {
                return Ok(Left::Open);
            }
            if !to_the_end
                && let To::Stream { queue, .. } = &self.to
                && !queue.has_room()
            {
                return Ok(Left::Full);
            }
            let room = chunk.get_mut(..left.min(CHUNK)).unwrap_or_default();
            match rustix::io::read(pipe, room) {
                Ok(0) => break,
                Ok(length) => {
                    left -= length;
                    self.take(chunk.get(..length).unwrap_or_default());
                }
                Err(Errno::AGAIN) => return Ok(Left::Open),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.close();
                    return Err(error.into());
                }
            }
        }
        self.close();
        Ok(Left::Closed)
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.to {
            To::Nobody => {}
            To::Buffer(buffer) => buffer.push(bytes),
            To::Stream { queue, total } => {
                *total += bytes.len() as u64;
                queue.push(bytes);
            }
        }
    }

    /// Whether captured output had to be thrown away.
    pub(super) fn over(&self) -> bool {
        matches!(&self.to, To::Buffer(buffer) if buffer.over())
    }

    pub(super) fn has_room(&self) -> bool {
        !matches!(&self.to, To::Stream { queue, .. } if !queue.has_room())
    }

    pub(super) fn close(&mut self) {
        self.pipe = None;
        if let To::Stream { queue, .. } = &self.to {
            queue.finish();
        }
    }

    pub(super) fn finish(&mut self) -> Captured {
        self.close();
        match std::mem::replace(&mut self.to, To::Nobody) {
            To::Nobody => Captured::default(),
            To::Buffer(buffer) => buffer.finish(),
            To::Stream { total, .. } => Captured {
                total,
                ..Captured::default()
            },
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.close();
    }
}

/// The stdin of a guest.
pub(super) struct Feed {
    pipe: Option<OwnedFd>,
    queue: Arc<ByteQueue>,
    pub(super) armed: bool,
}

impl Feed {
    pub(super) fn new(pipe: OwnedFd, queue: Arc<ByteQueue>) -> Self {
        Self {
            pipe: Some(pipe),
            queue,
            armed: false,
        }
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Writes what there is, for one turn; says whether there may be more than the pipe took.
    ///
    /// This thread blocks SIGPIPE, so a guest that has closed its end is an error number and no more.
    pub(super) fn write(&mut self) -> bool {
        for _ in 0..TURN {
            let Some(pipe) = &self.pipe else {
                return false;
            };
            let drained = self.queue.drain_into(|bytes| {
                let bytes = bytes.get(..bytes.len().min(CHUNK)).unwrap_or_default();
                rustix::io::write(pipe, bytes).map_err(io::Error::from)
            });
            match drained {
                Ok(Drained::More) => {}
                Ok(Drained::Empty) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // All is written, or the guest has closed its end.
                Ok(Drained::Finished) | Err(_) => self.close(),
            }
        }
        self.pipe.is_some()
    }

    pub(super) fn close(&mut self) {
        self.pipe = None;
        self.queue.abandon();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.close();
    }
}
