//! An outcome as text for a language model: [`Outcome::to_llm_text`](crate::Outcome::to_llm_text).
//!
//! Two voices speak in it, the library's and the guest's, and a guest may want to be taken for the other: every line of the
//! guest's begins with `| `, none of the library's does, and whatever could begin a line is escaped.

mod excerpt;
mod explain;
mod meanings;

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use varek_telemetry::{Arguments, Cause, Cleanup};

use crate::capture::Captured;
use crate::outcome::Outcome;
use excerpt::{Excerpt, one_line};
use explain::Count;

/// Bytes of a program's name and arguments that are shown, at most.
const COMMAND: usize = 300;
/// Room for the line that says how many notes were left out.
const MORE: usize = 48;

/// The text, of `budget` bytes at most.
pub(crate) fn render(outcome: &Outcome, budget: usize) -> String {
    let mut text = title(outcome);
    if text.len() >= budget {
        return clipped(&text, budget);
    }
    let scratch = outcome.scratch.as_deref();
    let streams = [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)]
        .map(|(name, captured)| Section::of(name, captured, scratch, budget));
    let wanted = |section: &Option<Section<'_>>| section.as_ref().map_or(0, Section::wanted);
    let [out, err] = [wanted(&streams[0]), wanted(&streams[1])];

    let left = budget - text.len();
    let notes_room = (left / 2).max(left.saturating_sub(out.saturating_add(err)));
    text.push_str(&fitting(&notes(outcome), notes_room));

    let left = budget - text.len();
    let half = left / 2;
    let rooms = match (out <= half, err <= half) {
        (true, _) => [out, left - out],
        (_, true) => [left - err, err],
        _ => [half, left - half],
    };
    for (section, room) in streams.iter().zip(rooms) {
        if let Some(section) = section {
            text.push_str(&section.within(room));
        }
    }
    if streams.iter().all(Option::is_none) {
        let nothing = "No output was captured.\n";
        if text.len() + nothing.len() <= budget {
            text.push_str(nothing);
        }
    }
    text
}

/// What ran, and how it ended.
fn title(outcome: &Outcome) -> String {
    let how = explain::ending(outcome);
    format!("{} {how}\n", command(outcome))
}

/// The program by its name alone, or by its path beneath the scratch directory, and its arguments as far as the policy
/// lets them be recorded.
fn command(outcome: &Outcome) -> String {
    let Some((program, arguments)) = &outcome.ran else {
        return "The program".into();
    };
    let scratch = outcome.scratch.as_deref();
    let path = Path::new(program);
    let beneath = scratch.and_then(|scratch| path.strip_prefix(scratch).ok());
    let name = match beneath {
        Some(relative) => format!("./{}", relative.display()),
        None => path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned(),
    };
    // Whoever wrote them is not to end them and go on in the library's voice.
    let word = |word: &String| {
        if word.is_empty() || word.contains(char::is_whitespace) {
            format!("{word:?}")
        } else {
            word.clone()
        }
    };
    let mut words = vec![word(&name)];
    let mut unsaid = arguments.count();
    if let Arguments::Full { text, omitted } = arguments {
        unsaid = *omitted;
        words.extend(text.iter().map(word));
    }
    let shown = one_line(words.join(" ").as_bytes(), scratch, COMMAND);
    match (arguments, unsaid) {
        (_, 0) => shown,
        (Arguments::Full { .. }, count) => format!("{shown} (and {})", Count(count, "argument")),
        (_, count) => format!("{shown} (with {})", Count(count, "argument")),
    }
}

/// Everything else that is worth knowing, most important first, one line each.
fn notes(outcome: &Outcome) -> Vec<String> {
    let denials = outcome
        .denials
        .iter()
        .map(|(name, call)| explain::denial(name, call));
    let mut notes: Vec<String> = denials.collect();
    notes.extend(
        outcome
            .limits_hit
            .iter()
            .filter(|hit| !explain::is_said(outcome, hit))
            .map(explain::limit),
    );
    for (path, file) in outcome.files() {
        let path = one_line(path.as_os_str().as_bytes(), None, COMMAND);
        notes.push(match file {
            Ok(contents) => format!(
                "file {path}: {}, handed over.",
                bytes(contents.len() as u64)
            ),
            Err(error) => format!("file {path}: {error}."),
        });
    }
    if outcome.descendants_killed > 0 {
        let count = outcome.descendants_killed;
        notes.push(format!(
            "{} that it had left running {} stopped when it ended.",
            Count(count, "process"),
            if count == 1 { "was" } else { "were" }
        ));
    }
    let own_fault = Cause::SupervisorFault;
    let killed = matches!(&outcome.termination, varek_telemetry::Termination::Killed(cause) if *cause == own_fault);
    if !outcome.faults.is_empty() || outcome.cleanup != Cleanup::Complete || killed {
        notes.push(
            "The sandbox had trouble of its own, which is not the program's doing; whoever runs it finds the details \
             in its records."
                .into(),
        );
    }
    notes
}

/// As many of the notes as there is room for.
fn fitting(notes: &[String], room: usize) -> String {
    let length = |note: &String| "- \n".len() + note.len();
    let whole = notes.iter().map(length).sum::<usize>() <= room;
    let mut text = String::new();
    let mut shown = 0;
    for note in notes {
        let reserved = if whole { 0 } else { MORE };
        if text.len() + length(note) + reserved > room {
            break;
        }
        text.push_str("- ");
        text.push_str(note);
        text.push('\n');
        shown += 1;
    }
    let more = notes.len() - shown;
    if more > 0 && text.len() + MORE <= room {
        // A string takes everything.
        let _ = writeln!(text, "- and {}", Count(more, "note left out"));
    }
    text
}

/// One stream of the guest's.
struct Section<'a> {
    name: &'static str,
    captured: &'a Captured,
    excerpt: Excerpt<'a>,
}

impl<'a> Section<'a> {
    /// `None` where the guest wrote nothing that VAREK saw.
    fn of(
        name: &'static str,
        captured: &'a Captured,
        scratch: Option<&'a Path>,
        budget: usize,
    ) -> Option<Self> {
        (captured.total > 0).then(|| Self {
            name,
            captured,
            excerpt: Excerpt::of(captured, scratch, budget),
        })
    }

    fn head(&self) -> String {
        format!("{}, {}:\n", self.name, bytes(self.captured.total))
    }

    fn absent(&self) -> String {
        let why = if self.captured.bytes.is_empty() {
            "handed to the embedder, not in here"
        } else {
            "left out"
        };
        format!("{}, {}: {why}\n", self.name, bytes(self.captured.total))
    }

    /// How much room the whole of it takes.
    fn wanted(&self) -> usize {
        if self.captured.bytes.is_empty() {
            return self.absent().len();
        }
        self.head().len().saturating_add(self.excerpt.wanted())
    }

    fn within(&self, room: usize) -> String {
        let head = self.head();
        if !self.captured.bytes.is_empty()
            && let Some(body) = room
                .checked_sub(head.len())
                .and_then(|room| self.excerpt.within(room))
        {
            return head + &body;
        }
        let absent = self.absent();
        if absent.len() <= room {
            absent
        } else {
            String::new()
        }
    }
}

fn bytes(count: u64) -> String {
    if count == 1 {
        "1 byte".into()
    } else {
        format!("{} bytes", explain::grouped(count))
    }
}

/// The beginning of a text, of whole characters.
fn clipped(text: &str, budget: usize) -> String {
    const MARK: &str = "…";
    let end = |most: usize| {
        (0..=most.min(text.len()))
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .and_then(|end| text.get(..end))
            .unwrap_or_default()
    };
    match budget.checked_sub(MARK.len()) {
        _ if text.len() <= budget => text.to_owned(),
        Some(room) => end(room).to_owned() + MARK,
        None => end(budget).to_owned(),
    }
}

#[cfg(test)]
mod tests;
