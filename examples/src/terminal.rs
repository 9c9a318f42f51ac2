//! Tables for people: colour only on a terminal, as wide as it is.

use std::ffi::OsStr;
use std::io::IsTerminal;

use comfy_table::{
    Attribute, Cell as TableCell, Color, ColumnConstraint, ContentArrangement, Table, presets,
};
use indicatif::{ProgressBar, ProgressStyle};

/// How wide a table is where there is no terminal and no `COLUMNS`.
const WIDTH: u16 = 160;

/// From this width on, a table has room for columns that stay in one piece.
const ROOMY: u16 = 120;

/// How a stream shows text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether colour is wanted.
    pub colour: bool,
    /// Columns; `None` leaves it to the terminal.
    pub width: Option<u16>,
}

impl Style {
    /// For standard output as it is now.
    pub fn stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    /// For standard error as it is now.
    pub fn stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    fn of(stream: &impl IsTerminal) -> Self {
        let variable = |name| std::env::var_os(name);
        Self::choose(
            stream.is_terminal(),
            variable("NO_COLOR").as_deref(),
            variable("TERM").as_deref(),
            variable("COLUMNS").as_deref(),
        )
    }

    /// `NO_COLOR` counts where it is not empty (<https://no-color.org>).
    fn choose(
        terminal: bool,
        no_colour: Option<&OsStr>,
        kind: Option<&OsStr>,
        columns: Option<&OsStr>,
    ) -> Self {
        let refused = no_colour.is_some_and(|value| !value.is_empty());
        let dumb = kind.is_some_and(|kind| kind == "dumb");
        let columns = columns
            .and_then(OsStr::to_str)
            .and_then(|text| text.parse().ok());
        Self {
            colour: terminal && !refused && !dumb,
            width: if terminal {
                columns
            } else {
                Some(columns.unwrap_or(WIDTH))
            },
        }
    }
}

/// How a cell is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A fact.
    Plain,
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
        }
    }

    /// A cell that says whether something is as it should be.
    pub fn verdict(good: bool, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: if good { Tone::Good } else { Tone::Bad },
        }
    }
}

/// One column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column<'a> {
    name: &'a str,
    whole: bool,
}

impl<'a> Column<'a> {
    /// A column whose text is broken into lines where the table needs the room.
    pub const fn text(name: &'a str) -> Self {
        Self { name, whole: false }
    }

    /// A column of names or figures, which stay in one piece on a terminal that is wide enough.
    pub const fn whole(name: &'a str) -> Self {
        Self { name, whole: true }
    }
}

/// A table with these columns.
pub fn table(
    style: Style,
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if let Some(width) = style.width {
        table.set_width(width);
    } else if let Some(width) = Table::new().width() {
        // What the terminal says, which `force_no_tty` would forget.
        table.set_width(width);
    }
    table.set_header(
        columns
            .iter()
            .map(|column| TableCell::new(column.name).add_attribute(Attribute::Bold)),
    );
    for row in rows {
        table.add_row(row.into_iter().map(|cell| {
            let shown = TableCell::new(printable(&cell.text));
            match cell.tone {
                Tone::Plain => shown,
                Tone::Good => shown.fg(Color::Green),
                Tone::Bad => shown.fg(Color::Red).add_attribute(Attribute::Bold),
            }
        }));
    }
    if table.width().is_none_or(|width| width >= ROOMY) {
        for (shown, column) in table.column_iter_mut().zip(columns) {
            if column.whole {
                shown.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
    }
    // The last column needs no white space behind it.
    table.trim_fmt()
}

/// What a guest wrote must not move the cursor, change colours or turn the direction of what stands after it: control
/// characters become their escapes, and so does what cannot be seen.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter != '\n' && (letter.is_control() || is_unseen(letter)) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Characters without a shape, and those that turn the direction of text (Unicode's default ignorable ones that occur
/// in such tricks).
pub(crate) const fn is_unseen(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A line on standard error that says what is going on; on a terminal alone.
pub fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        terminal: bool,
        no_colour: Option<&str>,
        kind: Option<&str>,
        columns: Option<&str>,
    ) -> Style {
        Style::choose(
            terminal,
            no_colour.map(OsStr::new),
            kind.map(OsStr::new),
            columns.map(OsStr::new),
        )
    }

    #[test]
    fn colour_needs_a_terminal_that_can_and_a_user_who_wants() {
        assert!(choose(true, None, Some("xterm"), None).colour);
        assert!(choose(true, Some(""), None, None).colour);
        assert!(!choose(true, Some("1"), Some("xterm"), None).colour);
        assert!(!choose(true, None, Some("dumb"), None).colour);
        assert!(!choose(false, None, Some("xterm"), None).colour);
    }

    #[test]
    fn the_width_is_the_terminal_s_or_said_or_fixed() {
        assert_eq!(choose(true, None, None, None).width, None);
        assert_eq!(choose(false, None, None, None).width, Some(WIDTH));
        assert_eq!(choose(false, None, None, Some("60")).width, Some(60));
        assert_eq!(choose(false, None, None, Some("wide")).width, Some(WIDTH));
    }

    #[test]
    fn a_table_keeps_to_its_width_and_has_escapes_with_colour_alone() {
        let rows = || {
            vec![vec![
                Cell::new("a b ".repeat(60)),
                Cell::verdict(false, "no\u{1b}[31m"),
            ]]
        };
        let plain = table(
            Style {
                colour: false,
                width: Some(50),
            },
            &[Column::text("what"), Column::text("ok")],
            rows(),
        );
        assert!(
            plain.lines().all(|line| line.chars().count() <= 50),
            "{plain}"
        );
        assert!(!plain.contains('\u{1b}'), "{plain}");
        let colour = table(
            Style {
                colour: true,
                width: Some(50),
            },
            &[Column::text("what"), Column::text("ok")],
            rows(),
        );
        assert!(colour.contains('\u{1b}'));
        // The guest's own escape is a text in both.
        assert!(plain.contains(r"no\u{1b}"), "{plain}");
    }
}
