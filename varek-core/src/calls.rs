//! Output that is handed to the embedder's own code as it comes.
//!
//! Each stream has a thread of its own, between the guest and the code: code that is slow holds the guest back, as a reader does that
//! falls behind, code that blocks holds up nobody else, and code that panics is not called again. None of it is on the
//! supervisor's thread.

use std::io::{self, Read as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cell::harmless;
use crate::pipe::ChildOutput;
use crate::sys;

/// What is called with the bytes of a stream, as they come.
pub(crate) type Callback = Box<dyn FnMut(&[u8]) + Send>;

/// Bytes that are handed over at a time, at most.
const CHUNK: usize = 64 * 1024;

/// The streams of a run that are not handed over to the end yet.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    state: Arc<(Mutex<usize>, Condvar)>,
}

impl Calls {
    fn left(&self) -> MutexGuard<'_, usize> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of one stream.
    pub(crate) fn start(&self, output: ChildOutput, mut callback: Callback) -> io::Result<()> {
        *self.left() += 1;
        let ends = Ends(self.clone());
        std::thread::Builder::new()
            .name("varek-output".into())
            .spawn(move || {
                sys::block_signals();
                let _ends = ends;
                // It goes with the output, which nobody reads then and which is thrown away.
                harmless(|| hand_over(output, &mut callback));
                // What it holds may panic too.
                harmless(|| drop(callback));
            })
            .map(drop)
    }

    /// Waits until everything is handed over, at most this long.
    pub(crate) fn wait(&self, within: Duration) {
        let left = self.left();
        drop(
            self.state
                .1
                .wait_timeout_while(left, within, |left| *left > 0),
        );
    }
}

struct Ends(Calls);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.left() -= 1;
        self.0.state.1.notify_all();
    }
}

fn hand_over(mut output: ChildOutput, callback: &mut Callback) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = output.read(&mut chunk) {
        callback(chunk.get(..length).unwrap_or_default());
    }
    // The end, which only what puts lines together hears of.
    callback(&[]);
}

/// What calls `callback` with chunks.
pub(crate) fn by_chunk(mut callback: impl FnMut(&[u8]) + Send + 'static) -> Callback {
    Box::new(move |chunk: &[u8]| {
        if !chunk.is_empty() {
            callback(chunk);
        }
    })
}

/// What calls `callback` with lines, each with its newline, the last without where it has none; and with pieces of a line
/// that is longer than `longest`.
pub(crate) fn by_line(
    longest: usize,
    mut callback: impl FnMut(&[u8]) + Send + 'static,
) -> Callback {
    let longest = longest.max(1);
    let mut begun = Vec::new();
    Box::new(move |chunk: &[u8]| {
        if chunk.is_empty() && !begun.is_empty() {
            callback(&std::mem::take(&mut begun));
        }
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            let mut rest = line;
            while !rest.is_empty() {
                let (piece, more) = rest.split_at((longest - begun.len()).min(rest.len()));
                rest = more;
                if begun.is_empty() && (piece.ends_with(b"\n") || piece.len() == longest) {
                    callback(piece);
                    continue;
                }
                begun.extend_from_slice(piece);
                if begun.ends_with(b"\n") || begun.len() == longest {
                    callback(&begun);
                    begun.clear();
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(longest: usize, chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        let mut callback = by_line(longest, move |line| {
            into.lock().unwrap().push(line.to_vec());
        });
        for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
            callback(chunk);
        }
        callback(&[]);
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    #[test]
    fn lines_come_whole_and_long_ones_in_pieces() {
        let chunks: [&[u8]; 4] = [b"on", b"e\ntwo\n\nlong", b"er than that", b"\nend"];
        let seen = lines(6, &chunks);
        let wanted: [&[u8]; 7] = [
            b"one\n", b"two\n", b"\n", b"longer", b" than ", b"that\n", b"end",
        ];
        assert_eq!(seen, wanted);
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_lines(
            text in "[ab\n]{0,80}", cuts in proptest::collection::vec(0_usize..80, 0..6), longest in 1_usize..12,
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut from = 0;
            let chunks: Vec<_> = cuts.iter().map(|cut| &bytes[std::mem::replace(&mut from, *cut)..*cut]).collect();
            let seen = lines(longest, &chunks);
            prop_assert_eq!(&seen, &lines(longest, &[bytes]));
            prop_assert_eq!(seen.concat(), bytes);
            for piece in &seen {
                prop_assert!((1..=longest).contains(&piece.len()));
                prop_assert!(!piece[..piece.len() - 1].contains(&b'\n'));
            }
        }
    }
}
