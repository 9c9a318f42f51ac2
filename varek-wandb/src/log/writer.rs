//! Appending to a log.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use prost::Message;

use super::{BLOCK, CHUNK_HEADER, Chunk, HEADER, LARGEST, checksum, left_in_block};
use crate::Error;
use crate::lock::Locked;
use crate::proto::{Kind, Record};

/// A log that this process alone appends to.
#[derive(Debug)]
pub(crate) struct LogWriter {
    file: Locked,
    path: PathBuf,
    /// Where the last whole record ends.
    length: u64,
    /// The last record's number.
    number: i64,
    /// Something beyond `length` was written and could not be taken back.
    dirty: bool,
    /// A record's frame, kept for its capacity.
    frame: Vec<u8>,
}

impl LogWriter {
    /// Makes a log, which must not be there, and writes its beginning and these records at once: a log is never seen
    /// without its first records, but torn. Readable and writable by its owner.
    pub(crate) fn create(path: &Path, first: Vec<Kind>) -> Result<Self, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(Error::io("create", path))?;
        let mut log = Self {
            file: Locked::take(file, path)?,
            path: path.to_owned(),
            length: 0,
            number: 0,
            dirty: false,
            frame: HEADER.to_vec(),
        };
        log.append_all(first)?;
        Ok(log)
    }

    /// Takes a log whose last record, with this number, ends at `length`.
    pub(super) fn behind(file: Locked, path: PathBuf, length: u64, number: i64) -> Self {
        Self {
            file,
            path,
            length,
            number,
            // Whatever is beyond is cut before anything is written.
            dirty: true,
            frame: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the last whole record ends, bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends records by one write, all of them or, as far as the file system allows, nothing.
    pub(crate) fn append_all(&mut self, kinds: Vec<Kind>) -> Result<(), Error> {
        let mut number = self.number;
        let mut at = self.length + self.frame.len() as u64;
        for kind in kinds {
            number += 1;
            let record = Record {
                num: number,
                control: control(&kind),
                kind: Some(kind),
            };
            let size = record.encoded_len();
            if size > LARGEST {
                self.frame.clear();
                let most = LARGEST;
                return Err(Error::RecordTooLarge { size, most });
            }
            at = frame(&mut self.frame, at, &record.encode_to_vec());
        }
        let written = self.write();
        self.frame.clear();
        written.map_err(Error::io("append to", &self.path))?;
        self.number = number;
        self.length = at;
        Ok(())
    }

    /// Brings what was appended to the disk.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.file.sync_data().map_err(Error::io("sync", &self.path))
    }

    fn write(&mut self) -> io::Result<()> {
        if self.dirty {
            self.cut()?;
        }
        let written = self.file.write_all(&self.frame);
        if written.is_err() {
            self.dirty = true;
            // Said again by the next append, if it does not work now.
            let _ = self.cut();
        }
        written
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        self.dirty = false;
        Ok(())
    }
}

/// `wandb beta sync` waits for ever for the answers to these records unless a slot for them is named.
fn control(kind: &Kind) -> Option<crate::proto::Control> {
    let slot = match kind {
        Kind::Run(_) => "run",
        Kind::Exit(_) => "exit",
        _ => return None,
    };
    Some(crate::proto::Control {
        mailbox_slot: slot.to_owned(),
    })
}

/// Puts a record's chunks, of which the first begins at `at`, behind `frame`, and says where they end.
fn frame(frame: &mut Vec<u8>, mut at: u64, data: &[u8]) -> u64 {
    let mut rest = data;
    let mut first = true;
    loop {
        let room = left_in_block(at) - CHUNK_HEADER;
        let (piece, after) = rest.split_at(rest.len().min(room));
        let kind = match (first, after.is_empty()) {
            (true, true) => Chunk::Full,
            (true, false) => Chunk::First,
            (false, false) => Chunk::Middle,
            (false, true) => Chunk::Last,
        } as u8;
        frame.extend_from_slice(&checksum(kind, piece).to_le_bytes());
        // A piece fits into a block, which is less than 64 KiB.
        let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
        frame.extend_from_slice(&length.to_le_bytes());
        frame.push(kind);
        frame.extend_from_slice(piece);
        at += (CHUNK_HEADER + piece.len()) as u64;
        // No chunk begins in the last bytes of a block. They are filled at once, not by the next record: a log must be
        // good at whatever record it ends.
        let left = left_in_block(at);
        if left < CHUNK_HEADER {
            frame.resize(frame.len() + left, 0);
            at += left as u64;
        }
        rest = after;
        first = false;
        if rest.is_empty() {
            return at;
        }
    }
}

const _: () = assert!(BLOCK <= u16::MAX as usize + 1);
const _: () = assert!(HEADER.len() + CHUNK_HEADER < BLOCK);
