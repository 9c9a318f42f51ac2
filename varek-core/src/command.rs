//! What to run now, in the words of `std::process::Command`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::calls::{Callback, by_chunk, by_line};

use varek_telemetry::TraceParent;

/// What to run now: a program, its arguments and where its streams go. A [`Policy`](crate::Policy) says
/// what it may do.
///
/// ```
/// use varek_core::Command;
///
/// let command = Command::new("python3").arg("-c").arg("print(2 + 2)").stdin("some text");
/// ```
///
/// `Debug` shows no argument, no environment value and no input.
#[must_use]
pub struct Command {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    pub(crate) stdin: Input,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    pub(crate) files: Vec<ScratchFile>,
    pub(crate) collect: Vec<(PathBuf, u64)>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) traceparent: Option<TraceParent>,
    #[cfg(feature = "test-hooks")]
    pub(crate) hold_at: u32,
    #[cfg(feature = "test-hooks")]
    pub(crate) hold_reading: bool,
}

pub(crate) struct ScratchFile {
    pub(crate) path: PathBuf,
    pub(crate) contents: Vec<u8>,
    pub(crate) executable: bool,
}

impl Command {
    /// A command for this program: a path with a slash in it, or a bare name that is looked up in the
    /// policy's `search_path` (never in the embedder's `PATH`). A relative path names a file that the command
    /// itself puts into the scratch directory ([`Command::executable`]), and otherwise one in the embedder's
    /// working directory.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            stdin: Input::null(),
            stdout: Output::captured(),
            stderr: Output::captured(),
            files: Vec::new(),
            collect: Vec::new(),
            scratch: None,
            directory: None,
            traceparent: None,
            #[cfg(feature = "test-hooks")]
            hold_at: 0,
            #[cfg(feature = "test-hooks")]
            hold_reading: false,
        }
    }

    /// `python3 FILE`, with this source in a file `main.py` of the scratch directory: of any length, with
    /// its own line numbers, and with `from __future__` working.
    ///
    /// ```
    /// # use varek_core::Command;
    /// let command = Command::python("from __future__ import annotations\nprint('hello')");
    /// ```
    pub fn python(source: impl Into<Vec<u8>>) -> Self {
        Self::new("python3").arg("main.py").file("main.py", source)
    }

    /// Adds an argument. One argument can have at most 131,071 bytes (the kernel's MAX_ARG_STRLEN): pass
    /// longer text with [`Command::file`] or [`Command::stdin`].
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Puts a variable into the guest's environment, over the policy's of that name.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Puts variables into the guest's environment, over the policy's of those names.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        for (name, value) in variables {
            self = self.env(name, value);
        }
        self
    }

    /// Where the guest's descriptor 0 reads from; `/dev/null` unless it is said. Strings and byte
    /// vectors are taken as its contents.
    pub fn stdin(mut self, input: impl Into<Input>) -> Self {
        self.stdin = input.into();
        self
    }

    /// Where the guest's descriptor 1 goes; captured unless it is said.
    pub fn stdout(mut self, output: impl Into<Output>) -> Self {
        self.stdout = output.into();
        self
    }

    /// Where the guest's descriptor 2 goes; captured unless it is said.
    pub fn stderr(mut self, output: impl Into<Output>) -> Self {
        self.stderr = output.into();
        self
    }

    /// Captures stdout, and calls this with what comes, as it comes: 1 byte to 64 KiB at a time. `run` and
    /// [`Child::wait`](crate::Child::wait) return when everything has been handed over, or after the policy's
    /// [`grace`](crate::Policy::grace); `try_wait` and the future do not wait for that.
    ///
    /// The calls come from a thread of their own. Code that is slow holds the guest back when it is 256 KiB behind, never the
    /// supervisor, a deadline or another stream; code that panics is not called again, and the run goes on.
    ///
    /// ```no_run
    /// # use varek_core::{Command, Policy, Sandbox};
    /// # use std::io::Write as _;
    /// # fn main() -> Result<(), varek_core::Error> {
    /// let command = Command::python("print('now')").on_stdout(|bytes| {
    ///     let _ = std::io::stdout().write_all(bytes);
    /// });
    /// let outcome = Sandbox::new(Policy::python())?.run(command)?;
    /// assert_eq!(outcome.stdout.to_text(), "now\n");
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_stdout(self, callback: impl FnMut(&[u8]) + Send + 'static) -> Self {
        self.stdout(Output(OutputKind::Called(Mutex::new(by_chunk(callback)))))
    }

    /// As [`Command::on_stdout`], of stderr.
    pub fn on_stderr(self, callback: impl FnMut(&[u8]) + Send + 'static) -> Self {
        self.stderr(Output(OutputKind::Called(Mutex::new(by_chunk(callback)))))
    }

    /// As [`Command::on_stdout`], by line: each with its newline, the last without where it has none. A line of more than `longest`
    /// bytes (at least 1) comes in pieces, all but the last of which have no newline.
    pub fn on_stdout_lines(
        self,
        longest: usize,
        callback: impl FnMut(&[u8]) + Send + 'static,
    ) -> Self {
        self.stdout(Output(OutputKind::Called(Mutex::new(by_line(
            longest, callback,
        )))))
    }

    /// As [`Command::on_stdout_lines`], of stderr.
    pub fn on_stderr_lines(
        self,
        longest: usize,
        callback: impl FnMut(&[u8]) + Send + 'static,
    ) -> Self {
        self.stderr(Output(OutputKind::Called(Mutex::new(by_line(
            longest, callback,
        )))))
    }

    /// Puts a file into the scratch directory before the guest starts. The path is relative to it; its
    /// directories are made. This is the way for payloads of any size.
    pub fn file(mut self, path: impl Into<PathBuf>, contents: impl Into<Vec<u8>>) -> Self {
        let (path, contents) = (path.into(), contents.into());
        self.files.push(ScratchFile {
            path,
            contents,
            executable: false,
        });
        self
    }

    /// Puts an executable file into the scratch directory before the guest starts.
    pub fn executable(mut self, path: impl Into<PathBuf>, contents: impl Into<Vec<u8>>) -> Self {
        let (path, contents) = (path.into(), contents.into());
        self.files.push(ScratchFile {
            path,
            contents,
            executable: true,
        });
        self
    }

    /// Reads this file of the scratch directory when the tree is dead, before the directory goes, for
    /// [`Outcome::file`](crate::Outcome::file): `bound` bytes at most, and no more than 4 GiB. What the guest has made of the
    /// name otherwise (a link, a FIFO, a directory) is said there, and never followed.
    ///
    /// The embedder keeps what was read in memory as long as the outcome. Reading is part of the run's
    /// [`grace`](crate::Policy::grace). While the run goes on, [`Child::files`](crate::Child::files) reads and writes.
    ///
    /// ```no_run
    /// # use varek_core::{Command, MIB, Policy, Sandbox};
    /// # fn main() -> Result<(), varek_core::Error> {
    /// let command = Command::python("open('answer.txt', 'w').write('42')").collect("answer.txt", MIB);
    /// let outcome = Sandbox::new(Policy::python())?.run(command)?;
    /// assert_eq!(outcome.file("answer.txt"), Ok(b"42".as_slice()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn collect(mut self, path: impl Into<PathBuf>, bound: u64) -> Self {
        self.collect.push((path.into(), bound));
        self
    }

    /// Uses this existing directory as the scratch directory instead of a fresh one. It and what is in
    /// it belong to the guest's uid while the run goes on, and are given back, not removed, at its end.
    /// One run at a time can use a directory: it is held with flock(2), and a second run is refused.
    pub fn scratch(mut self, directory: impl AsRef<Path>) -> Self {
        self.scratch = Some(directory.as_ref().to_owned());
        self
    }

    /// The guest's working directory instead of the scratch directory. The policy must grant what the
    /// guest is to do there.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Says which span of the embedder's the run belongs to: the event of its start carries it, and the `Otlp` sink puts the
    /// run's span beneath it. Nothing of it reaches the guest.
    ///
    /// ```
    /// use varek_core::{Command, TraceParent};
    ///
    /// // As a request brought it, in the header of that name.
    /// let parent: TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse()?;
    /// let command = Command::python("print(2 + 2)").traceparent(parent);
    /// # drop(command);
    /// # Ok::<(), varek_core::telemetry::NotATraceParent>(())
    /// ```
    pub fn traceparent(mut self, parent: TraceParent) -> Self {
        self.traceparent = Some(parent);
        self
    }

    /// Holds the child for ever when its filter is in and its listener is not published yet.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn hold_with_unpublished_listener(mut self) -> Self {
        self.hold_at = crate::child::step::UNPUBLISHED;
        self
    }

    /// Holds whoever reads the memory of this guest's denied calls for ever, as a file system does that does not answer.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn hold_reading(mut self) -> Self {
        self.hold_reading = true;
        self
    }

    /// Holds the child for ever at this set-up step, for tests of what happens then.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn hold_at(mut self, step: crate::SetupStep) -> Self {
        self.hold_at = step as u32;
        self
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("arguments", &self.arguments.len())
            .field("environment", &self.environment.keys().collect::<Vec<_>>())
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .field(
                "files",
                &self.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
            )
            .field("collect", &self.collect)
            .field("scratch", &self.scratch)
            .field("directory", &self.directory)
            .field("traceparent", &self.traceparent)
            .finish_non_exhaustive()
    }
}

/// Where a guest's descriptor 0 reads from.
pub struct Input(pub(crate) InputKind);

pub(crate) enum InputKind {
    Null,
    Bytes(Vec<u8>),
    File(File),
    Piped,
}

impl Input {
    /// `/dev/null`: end of file at once.
    pub fn null() -> Self {
        Self(InputKind::Null)
    }

    /// These bytes, then end of file. A guest that never reads them is not held up, nor is the embedder.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(InputKind::Bytes(bytes.into()))
    }

    /// An open file. The guest shares its offset and status flags, and can do with it whatever it was opened for.
    /// A memory file (memfd_create(2)) that is open for reading alone is refused unless it is sealed against writing
    /// or its mode has no write permission: the guest could open it for writing.
    pub fn file(file: File) -> Self {
        Self(InputKind::File(file))
    }

    /// A pipe, whose other end is [`Child::stdin`](crate::Child::stdin).
    pub fn piped() -> Self {
        Self(InputKind::Piped)
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            InputKind::Null => f.write_str("null"),
            InputKind::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            InputKind::File(file) => file.fmt(f),
            InputKind::Piped => f.write_str("piped"),
        }
    }
}

impl From<Vec<u8>> for Input {
    fn from(bytes: Vec<u8>) -> Self {
        Self::bytes(bytes)
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::bytes(text)
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::bytes(text)
    }
}

impl From<File> for Input {
    fn from(file: File) -> Self {
        Self::file(file)
    }
}

/// Where a guest's descriptor 1 or 2 goes.
#[derive(Debug)]
pub struct Output(pub(crate) OutputKind);

pub(crate) enum OutputKind {
    Captured,
    Null,
    File(File),
    Piped,
    /// Behind a lock because a command can be shared, and a callback need not be.
    Called(Mutex<Callback>),
}

impl fmt::Debug for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Captured => f.write_str("captured"),
            Self::Null => f.write_str("null"),
            Self::File(file) => file.fmt(f),
            Self::Piped => f.write_str("piped"),
            Self::Called(_) => f.write_str("called"),
        }
    }
}

impl Output {
    /// Into [`Outcome`](crate::Outcome), up to the policy's bound; what is over it is read and counted.
    pub fn captured() -> Self {
        Self(OutputKind::Captured)
    }

    /// `/dev/null`.
    pub fn null() -> Self {
        Self(OutputKind::Null)
    }

    /// An open file. VAREK does not see what is written, and bounds it by `limits.file_size` alone.
    pub fn file(file: File) -> Self {
        Self(OutputKind::File(file))
    }

    /// A pipe, read through [`Child::stdout`](crate::Child::stdout) or
    /// [`Child::stderr`](crate::Child::stderr). A reader that falls behind holds the guest back, never
    /// the supervisor; without a reader the output is thrown away.
    pub fn piped() -> Self {
        Self(OutputKind::Piped)
    }
}

impl From<File> for Output {
    fn from(file: File) -> Self {
        Self::file(file)
    }
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn debug_shows_neither_arguments_nor_values_nor_input() {
        let command = Command::new("p")
            .arg("hush1")
            .env("TOKEN", "hush2")
            .stdin("hush3");
        let text = format!("{command:?}");
        assert!(text.contains("TOKEN"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
}
