//! Copies of files in a run's directory, with their digests.
//!
//! What is uploaded later is what was copied: nothing of the original's later fate matters. Copies of one content are there once, at
//! `varek/content`, and each artifact has names of its own for them, so that a client that deletes what it has uploaded deletes a name.

mod place;
mod walk;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use rustix::fs::OFlags;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

pub(crate) use self::walk::walk;
use crate::Error;

/// Bytes copied at once.
const PIECE: usize = 256 * 1024;

/// A piece of a hole.
static ZEROS: &[u8] = &[0; PIECE];

/// A file that is being written. It is removed unless it is kept.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    path: Temporary,
    md5: Md5,
    sha256: Sha256,
    size: u64,
    /// Zeros at the end of it that were not written.
    hole: u64,
    pending: Vec<u8>,
}

/// A whole file, not yet at its place.
#[derive(Debug)]
pub(crate) struct Drafted {
    path: Temporary,
    /// Base64, as manifests have it.
    pub(crate) md5: String,
    /// Hexadecimal digits.
    pub(crate) sha256: String,
    pub(crate) size: u64,
}

/// A path that is removed when this is dropped.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl Draft {
    /// Begins a file in the run's directory.
    pub(crate) fn begin(run_directory: &Path) -> Result<Self, Error> {
        let directory = run_directory.join("varek/partial");
        make_directories(&directory)?;
        let path = directory.join(random(16)?);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        Ok(Self {
            file,
            path: Temporary(Some(path)),
            md5: Md5::new(),
            sha256: Sha256::new(),
            size: 0,
            hole: 0,
            pending: Vec::with_capacity(PIECE),
        })
    }

    /// A file with these bytes.
    pub(crate) fn of_bytes(run_directory: &Path, bytes: &[u8]) -> Result<Drafted, Error> {
        let mut draft = Self::begin(run_directory)?;
        draft.put(bytes)?;
        draft.finish()
    }

    /// A copy of a file: what it holds while it is read, streamed.
    pub(crate) fn of_file(
        run_directory: &Path,
        mut from: File,
        path: &Path,
    ) -> Result<Drafted, Error> {
        let mut draft = Self::begin(run_directory)?;
        let mut piece = vec![0; PIECE];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("read", path)(error)),
            };
            draft.put(piece.get(..read).unwrap_or_default())?;
        }
        draft.finish()
    }

    /// Adds bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let done = self.write_all(bytes);
        done.map_err(Error::io("write", self.path.path()))
    }

    fn write_piece(&mut self, piece: &[u8]) -> io::Result<()> {
        self.md5.update(piece);
        self.sha256.update(piece);
        // A sparse file stays one.
        if piece == ZEROS {
            self.hole += piece.len() as u64;
        } else {
            if self.hole > 0 {
                self.file.seek(SeekFrom::Start(self.size))?;
                self.hole = 0;
            }
            self.file.write_all(piece)?;
        }
        self.size += piece.len() as u64;
        Ok(())
    }

    /// Brings the file to the disk.
    pub(crate) fn finish(mut self) -> Result<Drafted, Error> {
        let done = self.flush().and_then(|()| {
            if self.hole > 0 {
                self.file.set_len(self.size)?;
            }
            self.file.sync_all()
        });
        done.map_err(Error::io("write", self.path.path()))?;
        let Self {
            path,
            md5,
            sha256,
            size,
            ..
        } = self;
        Ok(Drafted {
            path,
            md5: STANDARD.encode(md5.finalize()),
            sha256: hex(&sha256.finalize()),
            size,
        })
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.pending.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.pending.extend_from_slice(taken);
        if self.pending.len() == PIECE {
            let mut piece = std::mem::take(&mut self.pending);
            let done = self.write_piece(&piece);
            piece.clear();
            self.pending = piece;
            done?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.pending);
        if piece.is_empty() {
            Ok(())
        } else {
            self.write_piece(&piece)
        }
    }
}

impl Drafted {
    /// Puts the file at its place of this crate's own, where it takes the place of what was there.
    pub(crate) fn keep_at(mut self, path: &Path, made: &mut Made) -> Result<(), Error> {
        if let Some(parent) = path.parent() {
            make_directories(parent)?;
        }
        let is_new = !path.exists();
        fs::rename(self.path.path(), path).map_err(Error::io("rename to", path))?;
        self.path.keep();
        if is_new {
            made.files.push(path.to_owned());
        }
        Ok(())
    }

    /// Puts the file among the run's contents, unless it is there, and gives it another name.
    pub(crate) fn keep_as(
        self,
        run_directory: &Path,
        name: &Path,
        made: &mut Made,
    ) -> Result<(), Error> {
        let content = run_directory.join("varek/content").join(&self.sha256);
        let is_there = fs::symlink_metadata(&content)
            .is_ok_and(|known| known.is_file() && known.len() == self.size);
        if !is_there {
            self.keep_at(&content, made)?;
        }
        let linked = fs::hard_link(&content, name);
        let named = match linked {
            // File systems without links, and those that have too many of them.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                fs::copy(&content, name).map(|_| ())
            }
            linked => linked,
        };
        made.files.push(name.to_owned());
        named.map_err(Error::io("link to", name))
    }
}

/// Files that were made for something that is not in the log yet. They are removed unless it gets there.
#[derive(Debug, Default)]
pub(crate) struct Made {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    /// Files whose places were taken.
    replaced: Vec<place::Replaced>,
}

impl Made {
    /// A new directory of its own.
    pub(crate) fn directory(&mut self, path: &Path) -> Result<(), Error> {
        if let Some(parent) = path.parent() {
            make_directories(parent)?;
        }
        builder().create(path).map_err(Error::io("create", path))?;
        self.directories.push(path.to_owned());
        Ok(())
    }

    /// Everything stays.
    pub(crate) fn keep(mut self) {
        self.files.clear();
        self.directories.clear();
        self.replaced.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for file in self.files.iter().rev() {
            let _ = fs::remove_file(file);
        }
        for replaced in self.replaced.drain(..).rev() {
            replaced.put_back();
        }
        for directory in self.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Opens a file that the embedder named, following links, where it is a regular one. A FIFO is not waited for.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| match Errno::from_io_error(&error) {
            // A socket, or a device without a driver.
            Some(Errno::NXIO | Errno::NODEV) => Error::NotAFile {
                path: path.to_owned(),
            },
            _ => Error::io("open", path)(error),
        })?;
    let known = file.metadata().map_err(Error::io("stat", path))?;
    if !known.is_file() {
        let path = path.to_owned();
        return Err(Error::NotAFile { path });
    }
    Ok(file)
}

/// A directory and those above it, readable by the owner.
pub(crate) fn make_directories(path: &Path) -> Result<(), Error> {
    builder()
        .recursive(true)
        .create(path)
        .map_err(Error::io("create", path))
}

fn builder() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// So many random characters of `a-z0-9`.
pub(crate) fn random(length: usize) -> Result<String, Error> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(length);
    let mut bytes = [0; 64];
    while text.len() < length {
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::io("read", Path::new("the random number generator"))(error.into())
        })?;
        // What does not divide evenly is thrown away: every character is as likely as another.
        let even = bytes.iter().filter(|byte| **byte < 252);
        let letters = even.filter_map(|byte| LETTERS.get(usize::from(byte % 36)));
        text.extend(
            letters
                .take(length - text.len())
                .map(|byte| char::from(*byte)),
        );
    }
    Ok(text)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
