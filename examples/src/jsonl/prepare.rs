//! From a request to a command.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::TempDir;
use varek_core::{Command, Policy};

use super::request::{Input, Request};
use super::respond::{Refusal, Status};
use super::spill::{self, Place};

/// The file that holds a code argument that is too long to be one.
pub(super) fn spilled_name(line: u64) -> String {
    format!(".varek-code-{line}")
}

/// The name of a program that came with the request.
const PROGRAM: &str = "program";

/// A request on its way to a command.
pub(super) struct Prepare<'a> {
    pub(super) request: &'a Request,
    pub(super) policy: &'a Policy,
    pub(super) line: u64,
}

/// A command, and what has to be there until its run is over.
pub(super) struct Prepared {
    pub(super) command: Command,
    /// Holds a program that came with the request; goes with the value.
    pub(super) program: Option<TempDir>,
}

impl Prepare<'_> {
    pub(super) fn command(&self) -> Result<Prepared, Refusal> {
        let request = self.request;
        let mut sent = None;
        let mut arguments = request.arguments.clone().unwrap_or_default();
        let mut command = match (&request.program, &request.code) {
            (Some(program), None) => {
                let spilled = self.spill(program, &mut arguments)?;
                sent = self.sent_program(program)?;
                let command = match &sent {
                    Some(directory) => Command::new(directory.path().join(PROGRAM)),
                    None => Command::new(program),
                };
                match spilled {
                    Some(contents) => command.file(spilled_name(self.line), contents),
                    None => command,
                }
            }
            (program, Some(code)) => Command::new(program.as_deref().unwrap_or("python3"))
                .arg(self.source()?)
                .file(Request::SOURCE, code.as_bytes()),
            (None, None) => return Err(Refusal::invalid("neither `program` nor `code`")),
        };
        command = command
            .args(&arguments)
            .envs(request.environment.iter().flatten());
        for (path, contents) in request.files.iter().flatten() {
            let bytes = contents.bytes.clone();
            command = if contents.executable {
                command.executable(path, bytes)
            } else {
                command.file(path, bytes)
            };
        }
        if let Some(scratch) = &request.scratch {
            if !scratch.is_dir() {
                let reason = "is no directory; it must exist before";
                return Err(Refusal::spawn(format!(
                    "scratch {} {reason}",
                    scratch.display()
                )));
            }
            command = command.scratch(scratch);
        }
        if let Some(directory) = &request.working_directory {
            command = command.current_dir(directory);
        }
        match &request.stdin {
            None => {}
            Some(Input::Bytes(bytes)) => command = command.stdin(bytes.clone()),
            Some(Input::File(path)) => command = command.stdin(open(path)?),
        }
        Ok(Prepared {
            command,
            program: sent,
        })
    }

    /// A program that is one of the request's files. It must exist before the scratch directory does, so it
    /// gets a directory of its own, where the guest can read and execute it and nothing else.
    fn sent_program(&self, program: &str) -> Result<Option<TempDir>, Refusal> {
        let Some(name) = program.strip_prefix("./") else {
            return Ok(None);
        };
        let files = self.request.files.as_ref();
        let Some(contents) = files.and_then(|files| files.get(name)) else {
            return Ok(None);
        };
        let made = || {
            let open = Permissions::from_mode(0o755);
            let directory = tempfile::Builder::new()
                .prefix("varek-program-")
                .permissions(open.clone())
                .tempdir()?;
            let path = directory.path().join(PROGRAM);
            fs::write(&path, &contents.bytes)?;
            // Both regardless of the umask.
            fs::set_permissions(directory.path(), open)?;
            let mode = if contents.executable { 0o755 } else { 0o644 };
            fs::set_permissions(path, Permissions::from_mode(mode))?;
            Ok(directory)
        };
        made().map(Some).map_err(|error: std::io::Error| Refusal {
            status: Status::Error,
            reason: format!("cannot put the program {program} into a temporary directory: {error}"),
        })
    }

    /// Replaces an over-long code argument; gives what has to go into the file.
    fn spill(&self, program: &str, arguments: &mut [String]) -> Result<Option<String>, Refusal> {
        if arguments
            .iter()
            .all(|argument| argument.len() <= spill::LONGEST)
        {
            return Ok(None);
        }
        let Some(place) = self.place()? else {
            return Err(Refusal::spawn(format!(
                "an argument has over {} bytes, which the kernel does not take, and no variable tells the \
                 guest where its scratch directory is, to read the code from there: leave TMPDIR or HOME \
                 to VAREK, or leave working_directory out",
                spill::LONGEST
            )));
        };
        let spilled = spill::spill(program, arguments, &place, &spilled_name(self.line));
        Ok(spilled.map(|spilled| {
            if let Some(argument) = arguments.get_mut(spilled.index) {
                *argument = spilled.replacement;
            }
            spilled.contents
        }))
    }

    /// How the guest finds its scratch directory.
    fn place(&self) -> Result<Option<Place>, Refusal> {
        let request = self.request;
        if request.working_directory.is_none() {
            return Ok(Some(Place::Here));
        }
        if let Some(scratch) = &request.scratch {
            let path = std::path::absolute(scratch).map_err(|error| {
                Refusal::spawn(format!("scratch {}: {error}", scratch.display()))
            })?;
            return Ok(Some(Place::At(path)));
        }
        let named = |name: &str| {
            let over = request
                .environment
                .as_ref()
                .is_some_and(|names| names.contains_key(name));
            over || self.policy.environment.contains_key(name)
        };
        Ok(["TMPDIR", "HOME"]
            .into_iter()
            .find(|name| !named(name))
            .map(Place::Variable))
    }

    /// `main.py` as the guest finds it.
    fn source(&self) -> Result<String, Refusal> {
        match self.place()? {
            Some(Place::Here) => Ok(Request::SOURCE.to_owned()),
            Some(Place::At(scratch)) => {
                Ok(scratch.join(Request::SOURCE).to_string_lossy().into_owned())
            }
            _ => Err(Refusal::invalid(
                "`code` is a file of the scratch directory, whose path is not known beforehand: give \
                 `scratch` too, or leave `working_directory` out",
            )),
        }
    }
}

/// A file of the host as input. A FIFO would hold up the session until somebody writes to it.
fn open(path: &Path) -> Result<File, Refusal> {
    let cannot =
        |reason: String| Refusal::spawn(format!("stdin file {}: {reason}", path.display()));
    let kind = fs::metadata(path)
        .map_err(|error| cannot(error.to_string()))?
        .file_type();
    if !kind.is_file() && !kind.is_char_device() {
        return Err(cannot(
            "is neither a regular file nor a character device".into(),
        ));
    }
    File::open(path).map_err(|error| cannot(error.to_string()))
}
