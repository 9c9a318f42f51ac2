//! What the server has acknowledged, beside the log.
//!
//! One line of JSON an acknowledgement, brought to the disk before the next request: a line that was torn was not the whole of
//! an acknowledgement, and what it would have said is asked of the server again. What cannot be repeated without being seen
//! twice (alerts), and what tells this uploader's lines from those of others, is written down before it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::lock::Locked;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// The run is there.
    Run(Place),
    /// So many lines are about to be there.
    Sending(Lines),
    /// So many lines are there.
    Sent(Lines),
    /// The alert of this record is about to be sent, at this time (seconds since 1970).
    AlertSending { record: u64, time: u64 },
    /// It was taken.
    AlertSent { record: u64 },
    /// The artifact version of this client id is committed.
    Artifact { client_id: String },
    /// The file has this content there.
    File { path: String, md5: String },
    /// The run is about to be marked as ended: everything else is there.
    Completing,
    /// It is marked as ended.
    Complete,
}

/// Where the run is, by the server's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The server's base URL.
    pub(super) server: String,
    pub(super) entity: String,
    pub(super) project: String,
    pub(super) run: String,
}

/// Lines of the two streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lines {
    pub(super) history: u64,
    pub(super) console: u64,
}

/// The file, locked, and what it says.
#[derive(Debug)]
pub(super) struct Acknowledged {
    file: Locked,
    path: PathBuf,
    /// Where the last whole line ends.
    length: u64,
    /// Something beyond `length` may have been written.
    dirty: bool,
    pub(super) place: Option<Place>,
    pub(super) sending: Lines,
    pub(super) sent: Lines,
    /// When an alert was about to be sent, by record.
    pub(super) alerts_sending: BTreeMap<u64, u64>,
    pub(super) alerts_sent: BTreeSet<u64>,
    pub(super) artifacts: BTreeSet<String>,
    /// MD5 by path.
    pub(super) files: BTreeMap<String, String>,
    pub(super) completing: bool,
    pub(super) complete: bool,
}

impl Acknowledged {
    /// Opens or makes the file of the run that this log belongs to.
    pub(super) fn open(log: &Path) -> Result<Self, Error> {
        let directory = log.parent().unwrap_or(Path::new(".")).join("varek");
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        let path = directory.join("acknowledged.jsonl");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let mut file = Locked::take(file, &path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(Error::io("read", &path))?;
        let mut read = Self {
            file,
            path,
            length: 0,
            dirty: true,
            place: None,
            sending: Lines::default(),
            sent: Lines::default(),
            alerts_sending: BTreeMap::new(),
            alerts_sent: BTreeSet::new(),
            artifacts: BTreeSet::new(),
            files: BTreeMap::new(),
            completing: false,
            complete: false,
        };
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(entry) = whole(line) else { break };
            read.note(&entry);
            read.length += line.len() as u64;
        }
        read.cut().map_err(Error::io("cut", &read.path))?;
        Ok(read)
    }

    /// Writes an entry down, and knows it then.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), Error> {
        let mut line = serde_json::to_vec(entry)
            .map_err(|error| Error::io("write", &self.path)(error.into()))?;
        line.push(b'\n');
        let written = self.append(&line);
        written.map_err(Error::io("write", &self.path))?;
        self.note(entry);
        Ok(())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.dirty {
            self.cut()?;
        }
        let written = self
            .file
            .write_all(line)
            .and_then(|()| self.file.sync_data());
        if written.is_ok() {
            self.length += line.len() as u64;
        } else {
            self.dirty = true;
            // Tried again before the next line, if it does not work now.
            let _ = self.cut();
        }
        written
    }

    /// Takes a torn line away: nothing is appended behind one, since nothing behind it would be read.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        self.dirty = false;
        Ok(())
    }

    fn note(&mut self, entry: &Entry) {
        match entry.clone() {
            Entry::Run(place) => self.place = Some(place),
            Entry::Sending(lines) => self.sending = lines,
            Entry::Sent(lines) => self.sent = lines,
            Entry::AlertSending { record, time } => {
                self.alerts_sending.entry(record).or_insert(time);
            }
            Entry::AlertSent { record } => {
                self.alerts_sent.insert(record);
            }
            Entry::Artifact { client_id } => {
                self.artifacts.insert(client_id);
            }
            Entry::File { path, md5 } => {
                self.files.insert(path, md5);
            }
            Entry::Completing => self.completing = true,
            Entry::Complete => self.complete = true,
        }
    }
}

fn whole(line: &[u8]) -> Option<Entry> {
    let line = line.strip_suffix(b"\n")?;
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_acknowledgement_is_none_and_nothing_is_written_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("run-a.wandb");
        let lines = Lines {
            history: 7,
            console: 1,
        };
        let mut acknowledged = Acknowledged::open(&log).unwrap();
        acknowledged.add(&Entry::Sending(lines)).unwrap();
        acknowledged.add(&Entry::Sent(lines)).unwrap();
        acknowledged.add(&Entry::Complete).unwrap();
        let path = acknowledged.path.clone();
        assert!(matches!(Acknowledged::open(&log), Err(Error::InUse { .. })));
        drop(acknowledged);
        let whole = fs::read(&path).unwrap();
        let end_of_sent = whole.len() - "\"complete\"\n".len();
        for length in end_of_sent..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut acknowledged = Acknowledged::open(&log).unwrap();
            assert_eq!(acknowledged.sent, lines);
            assert!(!acknowledged.complete, "{length}");
            acknowledged.add(&Entry::Complete).unwrap();
            drop(acknowledged);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        assert!(Acknowledged::open(&log).unwrap().complete);
    }
}
