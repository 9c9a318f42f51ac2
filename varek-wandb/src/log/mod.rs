//! The log of a run, `run-<id>.wandb`: records in the framing of LevelDB's log, with three differences.
//!
//! Seven bytes begin the file and count in the first block; checksums are those of zlib, over kind and data, not
//! masked; the bytes left at the end of a block are fewer than a chunk's header. Blocks are 32 KiB; a record is one
//! chunk, or a first, some middle and a last one. Source: the client's behaviour, version 0.26.1.
//!
//! One write a record, so that SIGKILL leaves whole records and at most one torn; a torn one is cut when the log is opened again,
//! and never written behind.

mod reader;
mod repair;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use reader::{LogReader, Next};
pub(crate) use repair::repair;
pub(crate) use writer::LogWriter;

/// How every log begins: `:W&B`, a magic number, version 0.
const HEADER: [u8; 7] = *b":W&B\xE1\xBE\x00";

/// Bytes in a block.
const BLOCK: usize = 32 * 1024;

/// Bytes before a chunk's data: checksum, length and kind.
const CHUNK_HEADER: usize = 7;

/// Bytes of a record, at most: what Protocol Buffers allow for a message.
const LARGEST: usize = i32::MAX as usize;

/// A chunk's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Chunk {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

impl Chunk {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Full),
            2 => Some(Self::First),
            3 => Some(Self::Middle),
            4 => Some(Self::Last),
            _ => None,
        }
    }
}

fn checksum(kind: u8, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(data);
    hasher.finalize()
}

/// Bytes since the block began.
fn in_block(position: u64) -> usize {
    // Less than a block, so that there is always such a number.
    usize::try_from(position % BLOCK as u64).unwrap_or_default()
}

/// Bytes until the next block begins, 1 to [`BLOCK`].
fn left_in_block(position: u64) -> usize {
    BLOCK - in_block(position)
}
