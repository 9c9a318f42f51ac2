//! Opening a log that its writer left, and closing it.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use super::{LogReader, LogWriter, Next};
use crate::Error;
use crate::lock::Locked;
use crate::proto::{Exit, Final, Kind};

/// What was wrong with a log, and was mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// Whole records, those that were added included.
    pub(crate) records: u64,
    /// Bytes of a torn record that were cut.
    pub(crate) cut: u64,
    /// The run had not ended: that it failed was added.
    pub(crate) closed: bool,
}

/// Brings a log into a state in which it can be sent: cuts a torn record at its end, and, where the run did not end, ends
/// it with exit code 1. A log that is whole is not written to.
///
/// Fails where the log is being written, is damaged in its middle, or has no run: then nothing was changed.
pub(crate) fn repair(path: &Path) -> Result<Repaired, Error> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(Error::io("open", path))?;
    let file = Locked::take(file, path)?;
    let length = file.metadata().map_err(Error::io("stat", path))?.len();
    let reading = file.try_clone().map_err(Error::io("open", path))?;
    let mut reader = LogReader::new(reading, path)?;
    let mut seen = Seen::default();
    let damage = loop {
        match reader.next()? {
            Next::Record(record) => seen.note(&record),
            Next::End => break None,
            Next::Damaged(damage) => break Some(damage),
        }
    };
    let end = reader.position();
    if let Some(reason) = damage
        && reader.follows(reason)?
    {
        return Err(Error::Corrupt {
            path: path.to_owned(),
            offset: end,
            reason,
        });
    }
    if !seen.run {
        return Err(Error::NotALog {
            path: path.to_owned(),
            reason: "it ends before its run's record",
        });
    }
    let mut missing = Vec::new();
    if !seen.exit {
        missing.push(Kind::Exit(Exit {
            exit_code: 1,
            runtime: seen.runtime,
            not_complete: false,
        }));
    }
    if !seen.last {
        missing.push(Kind::Final(Final {}));
    }
    let repaired = Repaired {
        records: seen.records + missing.len() as u64,
        cut: length - end,
        closed: !seen.exit,
    };
    if repaired.cut > 0 || !missing.is_empty() {
        let mut log = LogWriter::behind(file, path.to_owned(), end, seen.number);
        log.append_all(missing)?;
        log.sync()?;
    }
    Ok(repaired)
}

/// What the records of a log amount to.
#[derive(Default)]
struct Seen {
    records: u64,
    number: i64,
    run: bool,
    exit: bool,
    last: bool,
    /// Seconds, as the last row had it.
    runtime: i32,
}

impl Seen {
    fn note(&mut self, record: &crate::proto::Record) {
        self.records += 1;
        self.number = record.num;
        match &record.kind {
            Some(Kind::History(row)) => {
                let runtime = row.item.iter().find(|item| item.key == "_runtime");
                if let Some(seconds) = runtime.and_then(|item| item.value_json.parse::<f64>().ok())
                {
                    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                    self.runtime = i32::try_from(seconds.as_secs()).unwrap_or(i32::MAX);
                }
            }
            Some(Kind::Run(_)) => self.run = true,
            Some(Kind::Exit(_)) => self.exit = true,
            Some(Kind::Final(_)) => self.last = true,
            _ => {}
        }
    }
}
