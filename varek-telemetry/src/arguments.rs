//! What an event says of a program's arguments.

use std::ffi::OsStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes of text in [`Arguments::Full`], at most: an event is kept in queues, and an argument list can be megabytes.
const LONGEST: usize = 64 * 1024;

/// How much of a program's arguments goes into events, and of what the guest passes to denied calls.
///
/// A guest knows its arguments and its environment, and can make a path, the name of a socket or that of an attribute of
/// them. So such texts are read from denied calls with [`ArgumentDetail::Full`] alone
/// ([`Denial::pointers`](crate::Denial::pointers)). Numbers are not held back: the registers of a denied call and the addresses
/// of internet sockets are in its event whatever this says, and a guest that wants to write a secret there as numbers can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ArgumentDetail {
    /// Their number alone; of denied calls no text.
    #[default]
    None,
    /// Their number and a digest, by which equal commands are found. It hides nothing that can be guessed:
    /// who can enumerate the candidates can find the one that was used. Of denied calls no text.
    Digest,
    /// Their text; and of denied calls the paths, the names of local sockets and other names that they were given, marked as
    /// unverified. Values of the environment can be among those, where a guest puts them there.
    Full,
}

/// A program's arguments after its name, in the detail that the embedder asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arguments {
    /// Their number alone.
    None {
        /// How many.
        count: usize,
    },
    /// Their number and a digest.
    Digest {
        /// How many.
        count: usize,
        /// `sha256:` and the SHA-256 of the arguments, each followed by a zero byte.
        digest: String,
    },
    /// Their text.
    Full {
        /// The first of them, 64 KiB of text at most; what is not UTF-8 is replaced by U+FFFD.
        text: Vec<String>,
        /// How many more there are.
        omitted: usize,
    },
}

impl Arguments {
    /// These arguments, in this detail.
    pub fn of<A: AsRef<OsStr>>(
        detail: ArgumentDetail,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let arguments = arguments.into_iter();
        match detail {
            ArgumentDetail::None => Self::None {
                count: arguments.count(),
            },
            ArgumentDetail::Digest => {
                let mut count = 0;
                let mut hash = Sha256::new();
                for argument in arguments {
                    count += 1;
                    hash.update(argument.as_ref().as_encoded_bytes());
                    hash.update([0]);
                }
                let digest = format!("sha256:{}", hex(&hash.finalize()));
                Self::Digest { count, digest }
            }
            ArgumentDetail::Full => {
                let (mut text, mut omitted, mut length) = (Vec::new(), 0, 0);
                for argument in arguments {
                    length += argument.as_ref().len();
                    if length > LONGEST {
                        omitted += 1;
                    } else {
                        text.push(argument.as_ref().to_string_lossy().into_owned());
                    }
                }
                Self::Full { text, omitted }
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::None { count } | Self::Digest { count, .. } => *count,
            Self::Full { text, omitted } => text.len() + omitted,
        }
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| {
        char::from(if value < 10 {
            b'0' + value
        } else {
            b'a' + value - 10
        })
    };
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
    text
}

/// What [`hex`] wrote, of this many bytes; `None` for all else, upper case included.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_told_in_the_detail_asked_for_and_no_more() {
        let list = ["-c", "the secret"];
        let none = Arguments::of(ArgumentDetail::None, list);
        assert_eq!(none, Arguments::None { count: 2 });
        let digest = Arguments::of(ArgumentDetail::Digest, list);
        assert_eq!(digest.count(), 2);
        assert!(!format!("{digest:?}").contains("secret"));
        let full = Arguments::of(ArgumentDetail::Full, list);
        assert!(format!("{full:?}").contains("secret"));
    }

    #[test]
    fn moving_a_boundary_between_arguments_changes_the_digest() {
        let of = |list: &[&str]| Arguments::of(ArgumentDetail::Digest, list);
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    }

    #[test]
    fn a_long_list_is_cut_and_what_was_cut_is_counted() {
        let list = vec!["x".repeat(40_000); 3];
        let Arguments::Full { text, omitted } = Arguments::of(ArgumentDetail::Full, &list) else {
            panic!()
        };
        assert_eq!((text.len(), omitted), (1, 2));
    }

    #[test]
    fn hexadecimal_digits_read_back_and_nothing_else_does() {
        assert_eq!(unhex::<2>(&hex(&[0, 0xaf])), Some([0, 0xaf]));
        for wrong in ["00a", "00aff", "00AF", "00ag", ""] {
            assert_eq!(unhex::<2>(wrong), None, "{wrong}");
        }
    }
}
