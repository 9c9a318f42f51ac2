//! Starting other programs: shown before they start, and never with a failure ignored.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use crate::ui;

/// Shows the command line, runs it to its end with no standard input, and returns how it ended.
pub(crate) fn status(mut command: Command) -> Result<ExitStatus> {
    let line = shown(&command);
    ui::command(&line);
    command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{line}`"))
}

/// Like [`status`], and anything but success is an error that names the command.
pub(crate) fn run(command: Command) -> Result<()> {
    let line = shown(&command);
    let status = status(command)?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Whether a program runs and succeeds; its output is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command line as one would type it, with the program by its file name.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args()).map(quoted);
    words.collect::<Vec<_>>().join(" ")
}

/// A word as a POSIX shell takes it.
pub(crate) fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The first regular file of that name in the directories of a search path.
pub(crate) fn look_up(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .map(|directory| directory.join(name))
        .find(|candidate| is_program(candidate))
}

/// The program of that name in the caller's own search path, or where administrators' programs are,
/// which is not in every user's path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    look_up(name, &path).or_else(|| look_up(name, OsStr::new("/usr/sbin:/sbin")))
}

/// Whether the caller's own search path holds a program of that name.
pub(crate) fn in_path(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| look_up(name, &path).is_some())
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("/usr/bin/printf");
        command.args(["%s", "it's", "", "--plain=1"]);
        assert_eq!(shown(&command), r"printf %s 'it'\''s' '' --plain=1");
    }

    #[test]
    fn a_directory_is_not_taken_for_a_program() {
        // `/` holds the directory `usr`, which has execute bits.
        assert_eq!(look_up("usr", OsStr::new("/")), None);
        assert!(look_up("sh", OsStr::new("/nonexistent:/bin")).is_some());
    }
}
