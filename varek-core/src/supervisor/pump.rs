//! The pipes of one run, from the supervisor's side. Nothing here waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::capture::{Buffer, Captured, Kept};
use crate::pipe::{ByteQueue, Drained, Filling};
use crate::streams::Capture;

/// How much of one stream is read before the other runs have their turn.
const TURN: usize = 64;
/// How long that may take, since a guest can make one read or write of its pipes last: everything that waits for the pipe
/// is woken in it, and a guest may have half a million epolls wait. At least one read or write is made.
const TURN_TIME: Duration = Duration::from_millis(2);
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
    Both { buffer: Buffer, queue: Filling },
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
            Capture::Both(pipe, queue, _) => {
                let buffer = Buffer::new(bound);
                (Some(pipe), To::Both { buffer, queue })
            }
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
    /// No more than that: somebody to whom the guest sent the pipe's other end may go on writing for ever. The
    /// pipe stays open: whoever closes it takes it out of the epoll first.
    pub(super) fn read(&mut self, to_the_end: bool) -> io::Result<Left> {
        let mut chunk = [0; CHUNK];
        let mut left = match &self.pipe {
            Some(pipe) if to_the_end => rustix::pipe::fcntl_getpipe_size(pipe)?,
            _ => TURN * CHUNK,
        };
        let began = Instant::now();
        while left > 0 {
            let Some(pipe) = &self.pipe else {
                return Ok(Left::Closed);
            };
            if !to_the_end && !self.has_room() {
                return Ok(Left::Full);
            }
            let room = chunk.get_mut(..left.min(CHUNK)).unwrap_or_default();
            match rustix::io::read(pipe, room) {
                Ok(0) => return Ok(Left::Closed),
                Ok(length) => {
                    left -= length;
                    self.take(chunk.get(..length).unwrap_or_default());
                    if !to_the_end && began.elapsed() > TURN_TIME {
                        return Ok(Left::Open);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Left::Open),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Left::Open)
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.to {
            To::Nobody => {}
            To::Buffer(buffer) => buffer.push(bytes),
            To::Stream { queue, total } => {
                *total += bytes.len() as u64;
                queue.push(bytes);
            }
            To::Both { buffer, queue } => {
                buffer.push(bytes);
                queue.0.push(bytes);
            }
        }
    }

    /// Whether captured output had to be thrown away.
    pub(super) fn over(&self) -> bool {
        matches!(&self.to, To::Buffer(buffer) | To::Both { buffer, .. } if buffer.over())
    }

    pub(super) fn has_room(&self) -> bool {
        match &self.to {
            To::Stream { queue, .. } => queue.has_room(),
            To::Both { queue, .. } => queue.0.has_room(),
            To::Nobody | To::Buffer(_) => true,
        }
    }

    pub(super) fn close(&mut self) {
        self.pipe = None;
        match &self.to {
            To::Stream { queue, .. } => queue.finish(),
            To::Both { queue, .. } => queue.0.finish(),
            To::Nobody | To::Buffer(_) => {}
        }
    }

    pub(super) fn finish(&mut self) -> Kept {
        self.close();
        match std::mem::replace(&mut self.to, To::Nobody) {
            To::Nobody => Kept::default(),
            To::Buffer(buffer) | To::Both { buffer, .. } => buffer.finish(),
            To::Stream { total, .. } => {
                let begin = Captured {
                    total,
                    ..Captured::default()
                };
                Kept {
                    begin,
                    ..Kept::default()
                }
            }
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.close();
    }
}

/// How far the stdin of a guest has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// There is more to write, when the pipe takes it.
    More,
    /// Everything is written that there is so far.
    All,
    /// Nothing more will be written.
    Over,
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

    /// Writes what there is, for one turn: a guest that reads as fast as this writes does not keep the others
    /// waiting. The pipe stays open: whoever closes it takes it out of the epoll first.
    ///
    /// This thread blocks SIGPIPE, so a guest that has closed its end is an error number and no more.
    pub(super) fn write(&mut self) -> Fed {
        let began = Instant::now();
        for written in 0..TURN {
            let Some(pipe) = &self.pipe else {
                return Fed::Over;
            };
            if written > 0 && began.elapsed() > TURN_TIME {
                break;
            }
            let drained = self.queue.drain_into(|bytes| {
                let bytes = bytes.get(..bytes.len().min(CHUNK)).unwrap_or_default();
                rustix::io::write(pipe, bytes).map_err(io::Error::from)
            });
            match drained {
                Ok(Drained::More) => {}
                Ok(Drained::Empty) => return Fed::All,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Fed::More,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // All is written, or the guest has closed its end.
                Ok(Drained::Finished) | Err(_) => return Fed::Over,
            }
        }
        Fed::More
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

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn a_guest_that_reads_as_fast_as_it_is_written_to_has_one_turn() {
        let sink = rustix::fs::open("/dev/null", OFlags::WRONLY, Mode::empty()).unwrap();
        let bytes = vec![0; 3 * TURN * CHUNK];
        let mut feed = Feed::new(sink, Arc::new(ByteQueue::filled(bytes)));
        // A slow machine has more turns, each of which gets on.
        let mut turns = 0;
        let over = loop {
            match feed.write() {
                Fed::More => turns += 1,
                over => break over,
            }
        };
        assert_eq!(over, Fed::Over);
        assert!((3..=3 * TURN).contains(&turns), "{turns}");
    }

    #[test]
    fn the_last_of_an_output_is_what_is_there_and_ends_though_somebody_writes_on() {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (read, write) = pipe_with(flags).unwrap();
        let mut pump = Pump::new(Capture::Buffer(read), 1 << 20);
        rustix::io::write(&write, &vec![7; 30_000]).unwrap();
        // The writer is still there: no end of file is needed.
        assert_eq!(pump.read(true).unwrap(), Left::Open);
        assert_eq!(pump.finish().begin.total, 30_000);

        let endless = rustix::fs::open("/dev/zero", OFlags::RDONLY, Mode::empty()).unwrap();
        let mut pump = Pump::new(Capture::Buffer(endless), 1 << 20);
        assert_eq!(pump.read(false).unwrap(), Left::Open);
        let total = pump.finish().begin.total;
        assert!(
            (CHUNK as u64..=(TURN * CHUNK) as u64).contains(&total),
            "{total}"
        );
    }
}
