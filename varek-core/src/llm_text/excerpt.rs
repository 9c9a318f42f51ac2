//! What a guest wrote, made harmless, and cut in the middle.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::explain::grouped;
use crate::capture::Captured;

/// What every line of a guest's begins with.
const BAR: &str = "| ";
/// What stands for what is left out, at its longest.
const MARK: usize = "[... 18,446,744,073,709,551,615 bytes left out ...]\n".len();

/// A part of what was written that is shown or left out as a whole.
struct Unit<'a> {
    /// Bytes of the guest's.
    source: usize,
    shown: Cow<'a, str>,
}

impl Unit<'_> {
    fn ends_line(&self) -> bool {
        self.shown == "\n"
    }
}

/// The units of some bytes.
struct Units<'a> {
    rest: &'a [u8],
    scratch: Option<&'a [u8]>,
    /// The character before, where it is one that is shown as it is.
    before: Option<char>,
}

impl<'a> Units<'a> {
    fn of(bytes: &'a [u8], scratch: Option<&'a Path>) -> Self {
        Self {
            rest: bytes,
            scratch: scratch.map(|path| path.as_os_str().as_bytes()),
            before: None,
        }
    }

    /// The scratch directory's path, which is nobody's business, is `.`.
    fn place(&self) -> Option<(usize, &'static str)> {
        let scratch = self.scratch.filter(|path| path.len() > 1)?;
        let after = self.rest.strip_prefix(scratch)?;
        match after.first() {
            Some(b'/') => Some((scratch.len() + 1, "./")),
            Some(next) if next.is_ascii_alphanumeric() || b"-_.".contains(next) => None,
            _ => Some((scratch.len(), ".")),
        }
    }
}

impl<'a> Iterator for Units<'a> {
    type Item = Unit<'a>;

    fn next(&mut self) -> Option<Unit<'a>> {
        self.rest.first()?;
        let before = self.before.take();
        let (source, shown) = if let Some((length, shown)) = self.place() {
            (length, shown.into())
        } else if self.rest.starts_with(b"\r\n") {
            (2, "\n".into())
        } else {
            match character(self.rest) {
                Ok(character) => {
                    let joins = before.is_some_and(|before| joins(before, character));
                    self.before = (joins || !is_hidden(character)).then_some(character);
                    let shown = if joins {
                        character.to_string().into()
                    } else {
                        shown(character)
                    };
                    (character.len_utf8(), shown)
                }
                Err(length) => (length, "\u{fffd}".into()),
            }
        };
        self.rest = self.rest.get(source..).unwrap_or_default();
        Some(Unit { source, shown })
    }
}

/// The first character, or how many bytes are none.
fn character(bytes: &[u8]) -> Result<char, usize> {
    let begin = bytes.get(..bytes.len().min(4)).unwrap_or_default();
    let valid = match std::str::from_utf8(begin) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() == 0 => {
            return Err(error.error_len().unwrap_or(begin.len()).max(1));
        }
        Err(error) => begin
            .get(..error.valid_up_to())
            .and_then(|valid| std::str::from_utf8(valid).ok())
            .unwrap_or_default(),
    };
    valid.chars().next().ok_or(1)
}

/// Whether nothing is drawn for a character by itself, or it turns the direction of text: Unicode's Default_Ignorable_Code_Point,
/// with marks of layout and what is no character. A whole message can be written in them.
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fdd0}'..='\u{fdef}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
        || u32::from(character) & 0xfffe == 0xfffe
}

/// Whether a hidden character has its use behind this one: the look of an emoji or a keycap, and what joins or parts the letters
/// of many scripts. One at a time, and none behind Latin letters, where they hide something.
fn joins(before: char, character: char) -> bool {
    let look = |character| matches!(character, '\u{fe0e}' | '\u{fe0f}');
    match character {
        '\u{fe0e}' | '\u{fe0f}' if before.is_ascii() => matches!(before, '0'..='9' | '#' | '*'),
        '\u{fe0e}' | '\u{fe0f}' => !is_hidden(before) && !before.is_whitespace(),
        '\u{200c}' | '\u{200d}' => {
            look(before) || !(before.is_ascii() || is_hidden(before) || before.is_whitespace())
        }
        _ => false,
    }
}

/// A character as it may be shown: nothing moves a cursor, begins a line, turns the direction of text, or is there without
/// being seen.
fn shown(character: char) -> Cow<'static, str> {
    match character {
        '\n' | '\t' => character.to_string().into(),
        '\r' => "\\r".into(),
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => format!("\\x{:02x}", u32::from(character)).into(),
        _ if is_hidden(character) => format!("\\u{{{:x}}}", u32::from(character)).into(),
        _ => character.to_string().into(),
    }
}

/// These bytes in one line of at most so many bytes.
pub(super) fn one_line(bytes: &[u8], scratch: Option<&Path>, most: usize) -> String {
    const CUT: &str = "…";
    let mut text = String::new();
    for unit in Units::of(bytes, scratch) {
        let shown = if unit.ends_line() {
            "\\n"
        } else {
            unit.shown.as_ref()
        };
        if text.len() + shown.len() + CUT.len() > most {
            text.push_str(CUT);
            break;
        }
        text.push_str(shown);
    }
    text
}

/// One captured stream, of which as much is looked at as can be shown.
pub(super) struct Excerpt<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    total: u64,
    scratch: Option<&'a Path>,
    /// What all of it takes, where nothing is missing and all of it was looked at.
    whole: Option<usize>,
    window: usize,
}

impl<'a> Excerpt<'a> {
    pub(super) fn of(captured: &'a Captured, scratch: Option<&'a Path>, budget: usize) -> Self {
        let cut = captured.cut.unwrap_or(captured.bytes.len());
        let (head, tail) = captured.bytes.split_at_checked(cut).unwrap_or_default();
        // The capture is cut at any byte.
        let (head, tail) = match captured.cut {
            Some(_) => (whole_end(head), whole_begin(tail)),
            None => (head, tail),
        };
        let window = budget.saturating_mul(2).saturating_add(1024);
        let whole = (captured.cut.is_none() && head.len() <= window).then(|| {
            let mut room = Room::default();
            for unit in Units::of(head, scratch) {
                room.add(&unit);
            }
            room.closed()
        });
        Self {
            head,
            tail,
            total: captured.total,
            scratch,
            whole,
            window,
        }
    }

    /// How much room all of it takes, as far as that can be had.
    pub(super) fn wanted(&self) -> usize {
        self.whole.unwrap_or(usize::MAX)
    }

    /// Its head and its tail in this room, with what is between them marked; `None` where nothing of it would be seen.
    pub(super) fn within(&self, room: usize) -> Option<String> {
        if self.whole.is_some_and(|whole| whole <= room) {
            let mut text = Lines::default();
            for unit in Units::of(self.head, self.scratch) {
                text.push(&unit);
            }
            return Some(text.close());
        }
        let room = room.checked_sub(MARK)?;
        let end = if self.tail.is_empty() {
            self.head
        } else {
            self.tail
        };
        // Where one of them is short, the other has the rest.
        let head_takes = self.takes_of_head(room - room / 2);
        let tail = self.last(end, room.saturating_sub(head_takes));
        let mut tail_room = Room::default();
        for unit in &tail {
            tail_room.add(unit);
        }
        let tail_source: usize = tail.iter().map(|unit| unit.source).sum();
        let before = if self.tail.is_empty() {
            self.head.len().saturating_sub(tail_source)
        } else {
            self.head.len()
        };
        let head = self.first(before, room.saturating_sub(tail_room.closed()));
        let head_source: usize = head.iter().map(|unit| unit.source).sum();
        let kept = (head_source + tail_source) as u64;
        if kept == 0 {
            return None;
        }
        let mut text = Lines::default();
        for unit in &head {
            text.push(unit);
        }
        let mut text = text.close();
        let omitted = self.total.saturating_sub(kept);
        // A string takes everything.
        let _ = writeln!(text, "[... {} bytes left out ...]", grouped(omitted));
        let mut end = Lines::default();
        for unit in &tail {
            end.push(unit);
        }
        Some(text + &end.close())
    }

    /// What the head takes, up to this.
    fn takes_of_head(&self, most: usize) -> usize {
        let mut room = Room::default();
        for unit in Units::of(self.head, self.scratch) {
            room.add(&unit);
            if room.closed() > most {
                return most;
            }
        }
        room.closed()
    }

    /// As many units from the first so many bytes as there is room for.
    fn first(&self, before: usize, most: usize) -> Vec<Unit<'a>> {
        let (mut room, mut units) = (Room::default(), Vec::new());
        let head = self.head.get(..before).unwrap_or_default();
        for unit in Units::of(whole_end(head), self.scratch) {
            room.add(&unit);
            if room.closed() > most {
                break;
            }
            units.push(unit);
        }
        units
    }

    /// The same from the end.
    fn last(&self, end: &'a [u8], most: usize) -> VecDeque<Unit<'a>> {
        let from = end.len().saturating_sub(self.window);
        let end = end.get(from..).unwrap_or_default();
        let end = if from > 0 { whole_begin(end) } else { end };
        let mut units: VecDeque<_> = Units::of(end, self.scratch).collect();
        // From the front, until what is left fits: what a unit costs depends on those before it only by the line's mark.
        let mut cost: usize = units.iter().map(cost).sum();
        let edges = BAR.len() + 1;
        while cost + edges > most {
            let Some(unit) = units.pop_front() else { break };
            cost -= self::cost(&unit);
        }
        units
    }
}

/// What a unit takes, with the mark of the line that it begins.
fn cost(unit: &Unit<'_>) -> usize {
    unit.shown.len() + if unit.ends_line() { BAR.len() } else { 0 }
}

/// The room that units take one after the other.
#[derive(Default)]
struct Room {
    taken: usize,
    in_line: bool,
}

impl Room {
    fn add(&mut self, unit: &Unit<'_>) {
        // A unit can be of no length, and is in a line all the same.
        if !self.in_line {
            self.taken += BAR.len();
        }
        self.taken += unit.shown.len();
        self.in_line = !unit.ends_line();
    }

    /// With the end of the last line.
    fn closed(&self) -> usize {
        self.taken + usize::from(self.in_line)
    }
}

/// The text of units.
#[derive(Default)]
struct Lines {
    text: String,
    in_line: bool,
}

impl Lines {
    fn push(&mut self, unit: &Unit<'_>) {
        if !self.in_line {
            self.text.push_str(BAR);
        }
        self.text.push_str(&unit.shown);
        self.in_line = !unit.ends_line();
    }

    fn close(mut self) -> String {
        if self.in_line {
            self.text.push('\n');
        }
        self.text
    }
}

/// Without a character at the end that is not all there.
fn whole_end(bytes: &[u8]) -> &[u8] {
    for back in 1..=3.min(bytes.len()) {
        let at = bytes.len() - back;
        let Some(end) = bytes.get(at..) else { break };
        match std::str::from_utf8(end) {
            Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => {
                return bytes.get(..at).unwrap_or_default();
            }
            Ok(_) => break,
            Err(_) => {}
        }
    }
    bytes
}

/// Without the end of a character whose beginning is not there.
fn whole_begin(bytes: &[u8]) -> &[u8] {
    let broken = bytes
        .iter()
        .take(3)
        .take_while(|byte| **byte & 0xc0 == 0x80)
        .count();
    bytes.get(broken..).unwrap_or_default()
}
