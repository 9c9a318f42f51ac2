//! Reading a log from any record on.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;

use super::{BLOCK, CHUNK_HEADER, Chunk, HEADER, LARGEST, checksum, in_block, left_in_block};
use crate::proto::Record;
use crate::{Damage, Error};

/// A reader of a log, which may still be written.
#[derive(Debug)]
pub(crate) struct LogReader {
    file: File,
    path: PathBuf,
    position: u64,
    /// The block at hand: where it begins in the file, and as much of it as was read.
    block: Vec<u8>,
    block_start: u64,
}

/// What is at the reader's position.
#[derive(Debug)]
pub(crate) enum Next {
    Record(Box<Record>),
    /// The log ends here, after a whole record.
    End,
    /// No record is here. While the log is being written, it may be one later.
    Damaged(Damage),
}

impl LogReader {
    /// Reads a log from its first record on.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        Self::new(file, path)
    }

    pub(super) fn new(file: File, path: &Path) -> Result<Self, Error> {
        let mut start = [0; HEADER.len()];
        let read = read_at(&file, &mut start, 0).map_err(Error::io("read", path))?;
        if read < HEADER.len() || start != HEADER {
            let reason = if HEADER.starts_with(start.get(..read).unwrap_or_default()) {
                "it ends before its first record"
            } else {
                "it does not begin with `:W&B` and version 0"
            };
            let path = path.to_owned();
            return Err(Error::NotALog { path, reason });
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            position: HEADER.len() as u64,
            block: Vec::new(),
            block_start: 0,
        })
    }

    /// Where the next record begins, bytes.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes to where a record begins or ends.
    pub(crate) fn seek(&mut self, position: u64) {
        self.position = position.max(HEADER.len() as u64);
        self.block.clear();
    }

    /// Reads the record at the position and goes behind it. Stays where it is at the end and at damage, and reads what
    /// has been written since when it is asked again.
    pub(crate) fn next(&mut self) -> Result<Next, Error> {
        let begin = self.position;
        let next = self.record().map_err(Error::io("read", &self.path))?;
        if !matches!(next, Next::Record(_)) {
            self.position = begin;
            self.block.clear();
        }
        Ok(next)
    }

    fn record(&mut self) -> io::Result<Next> {
        let mut data = Vec::new();
        let mut expected_first = true;
        loop {
            let (kind, piece) = match self.chunk()? {
                Ok(chunk) => chunk,
                Err(Damage::Cut) if expected_first && self.at_end()? => return Ok(Next::End),
                Err(damage) => return Ok(Next::Damaged(damage)),
            };
            let is_first = matches!(kind, Chunk::Full | Chunk::First);
            if is_first != expected_first || data.len() + piece.len() > LARGEST {
                return Ok(Next::Damaged(Damage::Framing));
            }
            expected_first = false;
            if matches!(kind, Chunk::Full | Chunk::Last) {
                let record = if data.is_empty() {
                    Record::decode(piece.as_slice())
                } else {
                    data.extend_from_slice(&piece);
                    Record::decode(data.as_slice())
                };
                return Ok(match record {
                    Ok(record) => Next::Record(Box::new(record)),
                    Err(_) => Next::Damaged(Damage::Record),
                });
            }
            data.extend_from_slice(&piece);
        }
    }

    /// Reads the chunk at the position and goes behind it and what fills its block.
    fn chunk(&mut self) -> io::Result<Result<(Chunk, Vec<u8>), Damage>> {
        let left = left_in_block(self.position);
        if left < CHUNK_HEADER {
            // What fills a block up is zeros; it is read with the chunk before it, if it was written by then.
            let filler = self.bytes(left)?;
            if filler.len() < left {
                return Ok(Err(Damage::Cut));
            }
            if filler.iter().any(|byte| *byte != 0) {
                return Ok(Err(Damage::Framing));
            }
            self.position += left as u64;
        }
        let left = left_in_block(self.position);
        let bytes = self.bytes(left)?;
        let Some((header, rest)) = bytes.split_first_chunk::<CHUNK_HEADER>() else {
            return Ok(Err(Damage::Cut));
        };
        let [c0, c1, c2, c3, l0, l1, kind] = *header;
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        let Some(chunk) = Chunk::of(kind) else {
            return Ok(Err(Damage::Framing));
        };
        if CHUNK_HEADER + length > left {
            return Ok(Err(Damage::Framing));
        }
        let Some(piece) = rest.get(..length) else {
            return Ok(Err(Damage::Cut));
        };
        if checksum(kind, piece) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Ok(Err(Damage::Checksum));
        }
        let piece = piece.to_vec();
        self.position += (CHUNK_HEADER + length) as u64;
        Ok(Ok((chunk, piece)))
    }

    /// Whether nothing is in the file from the position on.
    fn at_end(&mut self) -> io::Result<bool> {
        Ok(self.bytes(1)?.is_empty())
    }

    /// The bytes from the position on, `wanted` of them within one block, or as many as the file has.
    fn bytes(&mut self, wanted: usize) -> io::Result<&[u8]> {
        let inside = in_block(self.position);
        let start = self.position - inside as u64;
        // What was written since the block was read is found by the next call of `next`, which reads it anew.
        if self.block.is_empty() || start != self.block_start {
            self.block.resize(BLOCK, 0);
            let read = read_at(&self.file, &mut self.block, start)?;
            self.block.truncate(read);
            self.block_start = start;
        }
        let end = self.block.len().min(inside + wanted);
        Ok(self.block.get(inside..end).unwrap_or_default())
    }

    /// Whether another record begins behind the damaged one at the position, which a cut there would lose.
    ///
    /// What a record holds may look like records, and whoever wrote it may have wished so. Behind a chunk that the file's end cuts
    /// off, which is all that a killed writer leaves, only what leads to that very end counts.
    pub(super) fn follows(&mut self, damage: Damage) -> Result<bool, Error> {
        let damaged = self.position;
        let found = self.search(damage).map_err(Error::io("read", &self.path))?;
        self.seek(damaged);
        Ok(found)
    }

    fn search(&mut self, damage: Damage) -> io::Result<bool> {
        let begin = self.position;
        let mut bad = begin;
        // The first chunks of the record itself may be whole.
        while let Ok((kind, _)) = self.chunk()? {
            if bad != begin && matches!(kind, Chunk::Full | Chunk::First) {
                return Ok(true);
            }
            bad = self.position;
        }
        let block_end = bad + left_in_block(bad) as u64;
        for at in bad + 1..block_end.saturating_sub(CHUNK_HEADER as u64) {
            self.position = at;
            if self.begins_record()? && (damage != Damage::Cut || self.leads_to_end()?) {
                return Ok(true);
            }
        }
        let mut block = block_end;
        loop {
            self.position = block;
            if self.at_end()? {
                return Ok(false);
            }
            if self.begins_record()? {
                return Ok(true);
            }
            block += BLOCK as u64;
        }
    }

    /// Whether a whole first chunk of a record is at the position, or behind whole chunks there, within its block.
    fn begins_record(&mut self) -> io::Result<bool> {
        let block = self.position / BLOCK as u64;
        while self.position / BLOCK as u64 == block && left_in_block(self.position) >= CHUNK_HEADER
        {
            match self.chunk()? {
                Ok((Chunk::Full | Chunk::First, _)) => return Ok(true),
                Ok(_) => {}
                Err(_) => return Ok(false),
            }
        }
        Ok(false)
    }

    fn leads_to_end(&mut self) -> io::Result<bool> {
        while self.chunk()?.is_ok() {}
        self.at_end()
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
