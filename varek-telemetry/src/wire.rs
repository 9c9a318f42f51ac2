//! The written form of events, and what reads it.

use std::io::{self, BufRead, Read};
use std::time::{Duration, SystemTime};

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Event, EventKind, RunId};

/// The version of the written form that this crate writes.
pub const WIRE_VERSION: u64 = 1;

/// Bytes of one line, at most; a longer one is malformed.
const LONGEST: u64 = 16 * 1024 * 1024;

#[derive(Serialize)]
struct Written<'a> {
    v: u64,
    run: RunId,
    sequence: u64,
    #[serde(with = "humantime_serde")]
    time: SystemTime,
    #[serde(with = "humantime_serde")]
    elapsed: Duration,
    #[serde(flatten)]
    kind: &'a EventKind,
}

#[derive(Deserialize)]
struct ReadBack {
    v: u64,
    run: RunId,
    sequence: u64,
    #[serde(with = "humantime_serde")]
    time: SystemTime,
    #[serde(with = "humantime_serde")]
    elapsed: Duration,
    #[serde(flatten)]
    kind: EventKind,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.time < SystemTime::UNIX_EPOCH {
            return Err(S::Error::custom("a time before 1970 has no written form"));
        }
        Written {
            v: WIRE_VERSION,
            run: self.run,
            sequence: self.sequence,
            time: self.time,
            elapsed: self.elapsed,
            kind: &self.kind,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ReadBack::deserialize(deserializer)?;
        if read.v != WIRE_VERSION {
            let version = read.v;
            return Err(de::Error::custom(format_args!(
                "version {version} of the written form; this reader knows {WIRE_VERSION}"
            )));
        }
        Ok(Self {
            run: read.run,
            sequence: read.sequence,
            time: read.time,
            elapsed: read.elapsed,
            kind: read.kind,
        })
    }
}

/// One line of a log, as far as this reader knows it.
///
/// # The written form
/// An event is one JSON object on one line: `v`, `run`, `sequence`, `time` (RFC 3339, UTC), `elapsed` (as
/// humantime writes durations), `event` (the kind's name), and the kind's own fields. An
/// [`AuditLog`](crate::AuditLog) adds `index` and `chain`.
///
/// # What stays as it is
/// Within one value of `v`, a field that is there keeps its name, type, unit and meaning, and no field that
/// was always there goes away. New kinds, new fields, and new words where a field holds one of
/// several (a cause, a resource, a layer) can come with any release. `v` is raised for everything else. A reader
/// skips fields that it does not know, and takes what it cannot understand as [`Record::Unknown`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Record {
    /// An event that this reader knows.
    Known(Event),
    /// An event of a newer kind, with a newer word in it, or in a newer version of the written form.
    Unknown(UnknownRecord),
}

/// What can be said of an event that this reader does not know.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct UnknownRecord {
    /// The version of the written form.
    #[serde(rename = "v")]
    pub version: u64,
    /// The kind's name.
    pub event: String,
    /// The run, where there is one that this reader can read.
    #[serde(default, deserialize_with = "lenient")]
    pub run: Option<RunId>,
    /// The position within the run, likewise.
    #[serde(default, deserialize_with = "lenient")]
    pub sequence: Option<u64>,
    /// What this reader did not understand.
    #[serde(skip)]
    pub reason: String,
}

fn lenient<'de, D: Deserializer<'de>, T: de::DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

impl Record {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// When it is no record of any version: not a JSON object with `v` and `event`.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let reason = match serde_json::from_slice(line) {
            Ok(event) => return Ok(Self::Known(event)),
            Err(error) => error.to_string(),
        };
        let record: UnknownRecord = serde_json::from_slice(line)?;
        Ok(Self::Unknown(UnknownRecord { reason, ..record }))
    }
}

/// Why a line of a log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The log could not be read. Nothing follows.
    #[error("read line {line}: {source}")]
    Io {
        /// The line's number, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line is no record. What follows can be read.
    #[error("line {line} is no record: {reason}")]
    Malformed {
        /// The line's number, from 1.
        line: u64,
        /// Why.
        reason: String,
    },
    /// The last line has no end: its writer was killed while it wrote, or is still writing.
    #[error("line {line}, the last, is torn")]
    Torn {
        /// The line's number, from 1.
        line: u64,
    },
}

/// The records of a log, line by line; made by [`records`].
#[derive(Debug)]
pub struct Records<R> {
    lines: Lines<R>,
}

/// Reads a log that [`JsonLines`](crate::JsonLines) or [`AuditLog`](crate::AuditLog) wrote. Empty lines are
/// skipped. What an [`AuditLog`](crate::AuditLog) proves is for [`verify`](crate::verify) to say, not for this reader.
pub const fn records<R: BufRead>(reader: R) -> Records<R> {
    Records {
        lines: Lines::new(reader),
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.lines.next()? {
                Ok(line) => line,
                Err(source) => {
                    let line = self.lines.number;
                    return Some(Err(ReadError::Io { line, source }));
                }
            };
            let Line {
                text,
                whole,
                number,
            } = line;
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if !whole {
                return Some(Err(ReadError::Torn { line: number }));
            }
            return Some(Record::parse(text).map_err(|error| ReadError::Malformed {
                line: number,
                reason: error.to_string(),
            }));
        }
    }
}

/// Lines of bounded length.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Of the line that was read last, from 1.
    number: u64,
    failed: bool,
}

/// One line, without its end.
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    /// Whether it has an end.
    pub(crate) whole: bool,
    /// From 1.
    pub(crate) number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            number: 0,
            failed: false,
        }
    }

    /// The next line; nothing after an error.
    pub(crate) fn next(&mut self) -> Option<io::Result<Line<'_>>> {
        if self.failed {
            return None;
        }
        self.number += 1;
        match self.read() {
            Ok(false) => None,
            Ok(true) => {
                let whole = self.buffer.last() == Some(&b'\n');
                let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
                Some(Ok(Line {
                    text,
                    whole,
                    number: self.number,
                }))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }

    fn read(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let mut bounded = (&mut self.reader).take(LONGEST);
        bounded.read_until(b'\n', &mut self.buffer)?;
        if bounded.limit() == 0 && self.buffer.last() != Some(&b'\n') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a line of more than 16 MiB",
            ));
        }
        Ok(!self.buffer.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"v":1,"run":"000000000000000000000000000000ab","sequence":3,"time":"2023-11-14T22:13:20Z","elapsed":"1s","#;

    fn line(rest: &str) -> String {
        format!("{HEAD}{rest}}}")
    }

    #[test]
    fn fields_that_a_reader_does_not_know_are_skipped() {
        let text = line(r#""event":"guest_started","pid":9,"colour":{"a":[1]}"#);
        let Record::Known(event) = Record::parse(text.as_bytes()).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(event.kind, EventKind::GuestStarted { pid: 9 });
    }

    #[test]
    fn kinds_and_words_that_a_reader_does_not_know_are_records_of_their_run() {
        for rest in [
            r#""event":"guest_teleported","where":[1,2]"#,
            r#""event":"kill_issued","cause":"boredom""#,
            r#""event":"kill_issued","cause":{"boredom":{"seconds":3}}"#,
        ] {
            let text = line(rest);
            let Record::Unknown(record) = Record::parse(text.as_bytes()).unwrap() else {
                panic!("{text}")
            };
            assert_eq!(record.run, Some(RunId::from_bits(0xab)));
            assert_eq!(record.sequence, Some(3));
            assert!(!record.reason.is_empty());
        }
    }

    #[test]
    fn a_newer_version_is_never_read_as_this_one() {
        let text = line(r#""event":"guest_started","pid":9"#).replace(r#""v":1"#, r#""v":2"#);
        assert!(serde_json::from_str::<Event>(&text).is_err());
        let Record::Unknown(record) = Record::parse(text.as_bytes()).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(
            (record.version, record.event.as_str()),
            (2, "guest_started")
        );
        // Even where the words of all events are others.
        let text = r#"{"v":3,"event":"x","run":7,"sequence":"many"}"#;
        let Record::Unknown(record) = Record::parse(text.as_bytes()).unwrap() else {
            panic!("{text}")
        };
        assert_eq!((record.run, record.sequence), (None, None));
    }

    #[test]
    fn what_is_no_record_is_an_error_and_the_rest_of_the_log_is_read() {
        let good = line(r#""event":"guest_started","pid":9"#);
        let log = format!("{good}\nnonsense\n\n{good}\n{}", &good[..40]);
        let read: Vec<_> = records(log.as_bytes()).collect();
        assert_eq!(read.len(), 4);
        assert!(matches!(read[0], Ok(Record::Known(_))));
        assert!(matches!(read[1], Err(ReadError::Malformed { line: 2, .. })));
        assert!(matches!(read[2], Ok(Record::Known(_))));
        assert!(matches!(read[3], Err(ReadError::Torn { line: 5 })));
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let read: Vec<_> = records(endless).collect();
        assert!(matches!(read[..], [Err(ReadError::Io { .. })]), "{read:?}");
    }

    #[test]
    fn a_time_before_1970_is_an_error_and_no_panic() {
        let event = Event {
            run: RunId::from_bits(1),
            sequence: 0,
            time: SystemTime::UNIX_EPOCH - Duration::from_secs(1),
            elapsed: Duration::ZERO,
            kind: EventKind::GuestStarted { pid: 1 },
        };
        assert!(serde_json::to_string(&event).is_err());
    }
}
