//! Captured output: head and tail of what a guest wrote, in bounded memory.

use std::borrow::Cow;
use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

/// What a guest wrote to stdout or stderr, up to the policy's bound.
///
/// Over the bound, the first half of the bound and the last half are kept, and what was between is
/// counted and gone. In JSON: `text` (UTF-8, with replacement characters), `base64` only where the bytes
/// are not UTF-8, `total` and `truncated`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// What was kept: the head, then the tail.
    pub bytes: Vec<u8>,
    /// How many bytes the guest wrote in all.
    pub total: u64,
    /// Where in `bytes` the middle is missing; `None` where nothing is.
    pub cut: Option<usize>,
}

impl Captured {
    /// Whether anything is missing.
    pub fn truncated(&self) -> bool {
        self.cut.is_some()
    }

    /// How many bytes are missing.
    pub fn omitted(&self) -> u64 {
        self.total.saturating_sub(self.bytes.len() as u64)
    }

    /// The text for people and language models, with a marker where the middle is missing.
    pub fn to_text(&self) -> Cow<'_, str> {
        match self.cut.and_then(|cut| self.bytes.split_at_checked(cut)) {
            None => String::from_utf8_lossy(&self.bytes),
            Some((head, tail)) => Cow::Owned(format!(
                "{}\n[{} bytes omitted]\n{}",
                String::from_utf8_lossy(head),
                self.omitted(),
                String::from_utf8_lossy(tail)
            )),
        }
    }
}

impl Serialize for Captured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = self.cut.is_none() && std::str::from_utf8(&self.bytes).is_ok();
        let mut map = serializer.serialize_struct("Captured", 4)?;
        map.serialize_field("text", &self.to_text())?;
        if plain {
            map.skip_field("base64")?;
        } else {
            map.serialize_field("base64", &STANDARD.encode(&self.bytes))?;
        }
        map.serialize_field("total", &self.total)?;
        map.serialize_field("truncated", &self.truncated())?;
        map.end()
    }
}

/// Takes output as it comes and keeps head and tail of it.
#[derive(Debug)]
pub(crate) struct Buffer {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_bound: usize,
    tail_bound: usize,
    total: u64,
}

impl Buffer {
    /// Keeps at most `bound` bytes.
    pub(crate) fn new(bound: u64) -> Self {
        let bound = usize::try_from(bound).unwrap_or(usize::MAX);
        let tail_bound = bound / 2;
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_bound: bound - tail_bound,
            tail_bound,
            total: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.head_bound - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let rest = rest
            .get(rest.len().saturating_sub(self.tail_bound)..)
            .unwrap_or_default();
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_bound);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Whether anything had to be thrown away.
    pub(crate) fn over(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// What was kept, in two parts: putting them together copies as much as the guest wrote, which is not for every thread.
    pub(crate) fn finish(self) -> Kept {
        let cut = self.over().then_some(self.head.len());
        Kept {
            begin: Captured {
                bytes: self.head,
                total: self.total,
                cut,
            },
            tail: self.tail,
        }
    }
}

/// What was kept of a stream.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Without the bytes of the tail.
    pub(crate) begin: Captured,
    pub(crate) tail: Tail,
}

/// Bytes that go behind those of a [`Captured`].
pub(crate) type Tail = VecDeque<u8>;

impl Captured {
    /// Puts these behind the bytes that are there; none are left.
    pub(crate) fn append(&mut self, tail: &mut Tail) {
        let tail = std::mem::take(tail);
        let (front, back) = tail.as_slices();
        self.bytes.reserve_exact(tail.len());
        self.bytes.extend_from_slice(front);
        self.bytes.extend_from_slice(back);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(buffer: Buffer) -> Captured {
        let Kept {
            mut begin,
            mut tail,
        } = buffer.finish();
        begin.append(&mut tail);
        begin
    }

    #[test]
    fn the_end_of_a_stream_copies_none_of_it() {
        let mut buffer = Buffer::new(1 << 20);
        buffer.push(&vec![1; 3 << 20]);
        let (head, tail) = (buffer.head.as_ptr(), buffer.tail.as_slices().0.as_ptr());
        let kept = buffer.finish();
        assert_eq!(kept.begin.bytes.as_ptr(), head);
        assert_eq!(kept.tail.as_slices().0.as_ptr(), tail);
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let mut buffer = Buffer::new(4);
        buffer.push(b"abc");
        assert!(!buffer.over());
        buffer.push(b"defgh");
        let captured = whole(buffer);
        assert_eq!(captured.bytes, b"abgh");
        assert_eq!(
            (captured.total, captured.omitted(), captured.cut),
            (8, 4, Some(2))
        );
        assert_eq!(captured.to_text(), "ab\n[4 bytes omitted]\ngh");
    }

    #[test]
    fn bytes_that_are_no_text_are_not_lost_in_json() {
        let mut buffer = Buffer::new(4);
        buffer.push(&[0xff, 0x00]);
        let json = serde_json::to_value(whole(buffer)).unwrap();
        assert_eq!(json["base64"], "/wA=");
        assert_eq!(json["truncated"], false);
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_capture(
            data in proptest::collection::vec(any::<u8>(), 0..300),
            bound in 2_u64..64,
            cuts in proptest::collection::vec(0_usize..300, 0..8),
        ) {
            let mut all = Buffer::new(bound);
            all.push(&data);
            let all = whole(all);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.sort_unstable();
            let mut parts = Buffer::new(bound);
            let mut from = 0;
            for cut in cuts.into_iter().chain([data.len()]) {
                parts.push(&data[from..cut]);
                from = cut;
            }
            prop_assert_eq!(&whole(parts), &all);
            prop_assert!(all.bytes.len() as u64 <= bound);
            prop_assert_eq!(all.truncated(), data.len() as u64 > bound);
            let keep = all.cut.unwrap_or(data.len());
            prop_assert_eq!(&all.bytes[..keep], &data[..keep]);
            prop_assert!(data.ends_with(&all.bytes[keep..]));
        }
    }
}
