//! Logs whose lines are chained, so that a change shows.

#[cfg(target_os = "linux")]
mod log;
#[cfg(feature = "signing")]
mod signed;

use std::fmt;
use std::io::{self, BufRead};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::arguments::{hex, unhex};
use crate::wire::{Line, Lines};

#[cfg(target_os = "linux")]
pub use log::AuditLog;
#[cfg(feature = "signing")]
pub use signed::{BadHead, BadKey, SignedHead, SigningKey, VerifyingKey};

/// What the chain of every log begins with.
const GENESIS: &[u8] = b"varek audit log 1";

/// `,"chain":"` and what follows it at the end of a line.
const MARK: &[u8] = b",\"chain\":\"";
const END: &[u8] = b"\"}";

/// The end of an audit log: how many lines it has, and the hash over all of them.
///
/// Its text is `LINES:HASH`. Kept where the writer of the log cannot reach, it shows whether lines were cut off later,
/// or the whole log was written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    lines: u64,
    chain: [u8; 32],
}

impl Head {
    /// The head of a log without lines.
    pub fn empty() -> Self {
        Self {
            lines: 0,
            chain: Sha256::digest(GENESIS).into(),
        }
    }

    /// How many lines the log has.
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The hash over all of them: SHA-256 of the hash before and the line up to `,"chain":`.
    pub const fn chain(&self) -> &[u8; 32] {
        &self.chain
    }

    /// The head after one line more.
    fn next(&self, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.chain);
        hash.update(body);
        Self {
            lines: self.lines.saturating_add(1),
            chain: hash.finalize().into(),
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.lines, hex(&self.chain))
    }
}

/// A text that is no [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a head of an audit log: LINES:HASH")]
pub struct NotAHead;

impl FromStr for Head {
    type Err = NotAHead;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (lines, chain) = text.split_once(':').ok_or(NotAHead)?;
        Ok(Self {
            lines: lines.parse().map_err(|_| NotAHead)?,
            chain: unhex(chain).ok_or(NotAHead)?,
        })
    }
}

/// A line of an audit log, taken apart: `{…,"index":N` and `,"chain":"HASH"}`.
struct Link<'a> {
    body: &'a [u8],
    index: u64,
    chain: [u8; 32],
}

impl<'a> Link<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_suffix(END)?;
        let (rest, chain) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
        let body = rest.strip_suffix(MARK)?;
        let digits = body.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        let (head, digits) = body.split_at_checked(body.len() - digits)?;
        head.strip_suffix(b",\"index\":")?;
        Some(Self {
            body,
            index: std::str::from_utf8(digits).ok()?.parse().ok()?,
            chain: unhex(std::str::from_utf8(chain).ok()?)?,
        })
    }
}

/// An audit log without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Its end.
    pub head: Head,
    /// Bytes of a last line without an end, which a killed writer leaves; not part of what was verified.
    pub torn: usize,
}

/// The first fault of an audit log.
///
/// Which of them it is can be a guess: a line whose number was altered reads like one that is out of place. That
/// everything before it is as it was written is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotVerified {
    /// The log could not be read.
    #[error("read line {line}: {source}")]
    Io {
        /// The line's number, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// No line of an audit log.
    #[error("line {line} is not one of an audit log")]
    NotALine {
        /// The line's number, from 1.
        line: u64,
    },
    /// The line, or its hash, is not what was written; or it was put in place of another.
    #[error("line {line} was altered")]
    Altered {
        /// The line's number, from 1.
        line: u64,
    },
    /// Lines before this one are gone.
    #[error("{count} lines are missing before line {line}")]
    Missing {
        /// The number of the line that comes instead, from 1.
        line: u64,
        /// How many.
        count: u64,
    },
    /// The line belongs elsewhere: lines were exchanged, repeated or put in.
    #[error("line {line} is out of place: it says that it is line {says}")]
    OutOfPlace {
        /// The line's number, from 1.
        line: u64,
        /// The number that the line gives itself, from 1.
        says: u64,
    },
    /// The log ends before the head that was kept.
    #[error("the log ends after {lines} lines; {expected} were there")]
    Shortened {
        /// Lines in the log.
        lines: u64,
        /// Lines in the head.
        expected: u64,
    },
    /// The log agrees with itself and not with the head that was kept: it was written anew.
    #[error("line {line} is not the line that the head was made of")]
    Rewritten {
        /// The last line of the head, from 1; 0 for the head of an empty log.
        line: u64,
    },
}

/// Checks an audit log from its first line to its last, and against a head that was kept or signed where there
/// is one. The log may have grown since then.
///
/// Without a head, lines cut off at the end do not show, nor does a log that somebody wrote anew from its beginning:
/// the chain has no secret in it.
///
/// # Errors
///
/// The first fault.
pub fn verify(log: impl BufRead, kept: Option<&Head>) -> Result<Verified, NotVerified> {
    let mut lines = Lines::new(log);
    let mut head = Head::empty();
    let mut torn = 0;
    loop {
        if let Some(kept) = kept
            && kept.lines == head.lines
            && kept.chain != head.chain
        {
            let line = head.lines;
            return Err(NotVerified::Rewritten { line });
        }
        let number = head.lines.saturating_add(1);
        let Line { text, whole, .. } = match lines.next() {
            None => break,
            Some(Ok(line)) => line,
            Some(Err(source)) => {
                return Err(NotVerified::Io {
                    line: number,
                    source,
                });
            }
        };
        if !whole {
            torn = text.len();
            break;
        }
        let link = Link::parse(text).ok_or(NotVerified::NotALine { line: number })?;
        if link.index > head.lines {
            let (line, count) = (number, link.index - head.lines);
            let says = link.index.saturating_add(1);
            // The one that should be here may come later.
            return Err(if comes_later(&mut lines, head.lines) {
                NotVerified::OutOfPlace { line, says }
            } else {
                NotVerified::Missing { line, count }
            });
        }
        if link.index < head.lines {
            let says = link.index.saturating_add(1);
            return Err(NotVerified::OutOfPlace { line: number, says });
        }
        let next = head.next(link.body);
        if next.chain != link.chain {
            return Err(NotVerified::Altered { line: number });
        }
        head = next;
    }
    match kept {
        Some(kept) if kept.lines > head.lines => Err(NotVerified::Shortened {
            lines: head.lines,
            expected: kept.lines,
        }),
        _ => Ok(Verified { head, torn }),
    }
}

fn comes_later<R: BufRead>(lines: &mut Lines<R>, index: u64) -> bool {
    while let Some(Ok(line)) = lines.next() {
        if Link::parse(line.text).is_some_and(|link| link.index == index) {
            return true;
        }
    }
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
