//! What a person sees: headlines, plain sentences, and colour on a terminal only.

use std::io::{self, IsTerminal, Write};

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const RESET: &str = "\x1b[0m";

/// Whether colour may be written to a stream: only to a terminal that can show it, and never
/// against the user's word (NO_COLOR set to anything but the empty string).
fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|value| value != "dumb")
}

fn out(style: &str, text: &str) {
    let stdout = io::stdout();
    let coloured = !style.is_empty() && colour(&stdout);
    let mut lock = stdout.lock();
    // A reader that went away (`| head`) is no reason to fail what is being done.
    let _ = if coloured {
        writeln!(lock, "{style}{text}{RESET}")
    } else {
        writeln!(lock, "{text}")
    };
    let _ = lock.flush();
}

fn err(style: &str, label: &str, text: &str) {
    let stderr = io::stderr();
    let coloured = colour(&stderr);
    let mut lock = stderr.lock();
    let _ = if coloured {
        writeln!(lock, "{style}{label}{RESET} {text}")
    } else {
        writeln!(lock, "{label} {text}")
    };
}

/// Starts a part of the output.
pub(crate) fn headline(text: &str) {
    out("", "");
    out(BOLD, &format!("== {text} =="));
}

/// A sentence, or a line that another program printed.
pub(crate) fn say(text: &str) {
    out("", text);
}

/// A command line, as it is started.
pub(crate) fn command(line: &str) {
    out(DIM, &format!("$ {line}"));
}

/// Something that weakens what follows without stopping it.
pub(crate) fn warn(text: &str) {
    err(YELLOW, "warning:", text);
}

/// Something that stops what was asked for.
pub(crate) fn error(text: &str) {
    err(RED, "error:", text);
}
