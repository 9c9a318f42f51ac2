//! Runs a request.

use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use varek_core::{Child, Command, Error, Event, Host, Outcome, Policy, Sandbox, Sink};

use super::events::{EventLog, Kept};
use super::request::{Input, Request};
use super::respond::{Refusal, Response, Seconds, Status};
use super::serve::{Answer, Line};
use super::settings;
use super::spill::{self, Place};

/// Sandboxes kept for requests to come. A session as a rule uses one or two policies.
const MOST_SANDBOXES: usize = 16;

/// How long a response waits for its last events.
const EVENTS_WITHIN: Duration = Duration::from_secs(5);

/// Answers requests, from any number of threads; sandboxes are made once for each policy.
#[derive(Debug)]
pub struct Executor {
    host: Host,
    /// The most recently used is the last.
    sandboxes: Mutex<Vec<Prepared>>,
    cancel: Cancel,
}

/// A sandbox, and where its events go, if anywhere.
#[derive(Clone, Debug)]
struct Prepared {
    digest: String,
    sandbox: Sandbox,
    log: Option<Arc<EventLog>>,
}

/// The sink of a sandbox: the log is shared with the executor.
struct Shared(Arc<EventLog>);

impl Sink for Shared {
    fn record(&self, event: &Event) {
        self.0.record(event);
    }
}

impl Executor {
    /// Answers on this host.
    pub fn new(host: Host) -> Self {
        Self {
            host,
            sandboxes: Mutex::default(),
            cancel: Cancel::default(),
        }
    }

    fn sandboxes(&self) -> MutexGuard<'_, Vec<Prepared>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox of a policy, with events or without.
    fn prepared(&self, policy: Policy, events: bool) -> Result<Prepared, Refusal> {
        let digest = policy.digest();
        let mut sandboxes = self.sandboxes();
        let same = |entry: &Prepared| entry.digest == digest && entry.log.is_some() == events;
        let entry = if let Some(found) = sandboxes.iter().position(same) {
            sandboxes.remove(found)
        } else {
            let log = events.then(Arc::<EventLog>::default);
            let mut builder = Sandbox::builder(policy).host(self.host.clone());
            if let Some(log) = &log {
                builder = builder.sink(Shared(log.clone()));
            }
            Prepared {
                digest,
                sandbox: builder.build().map_err(unbuilt)?,
                log,
            }
        };
        sandboxes.push(entry.clone());
        let oldest = (sandboxes.len() > MOST_SANDBOXES).then(|| sandboxes.remove(0));
        drop(sandboxes);
        // The end of a sandbox takes a moment, which nobody else has to wait for.
        drop(oldest);
        Ok(entry)
    }

    fn run(&self, line: u64, request: &Request) -> Result<Response, Refusal> {
        let policy = settings::policy(request)?;
        let command = Prepare {
            request,
            policy: &policy,
            line,
        }
        .command()?;
        let prepared = self.prepared(policy, request.events == Some(true))?;
        let ran = prepared
            .sandbox
            .spawn(command)
            .and_then(|child| self.cancel.wait(child));
        // A scratch directory of the request's own is given back as it was, but for what the guest did.
        if let Some(scratch) = &request.scratch {
            let _ = std::fs::remove_file(scratch.join(spilled_name(line)));
        }
        let outcome = ran?;
        let kept = prepared.log.as_ref().map(|log| {
            prepared.sandbox.flush(EVENTS_WITHIN);
            log.take(outcome.run)
        });
        let (events, omitted) = match kept {
            Some(Kept { events, omitted }) => (Some(events), Some(omitted)),
            None => (None, None),
        };
        Ok(Response {
            line,
            id: None,
            status: Status::Ok,
            reason: None,
            summary: Some(outcome.to_string()),
            seconds: Some(Seconds::from(&outcome.usage)),
            policy: Some(prepared.digest),
            outcome: Some(Box::new(outcome)),
            events,
            events_omitted: omitted,
        })
    }
}

impl Answer for Executor {
    fn answer(&self, number: u64, line: Line) -> Response {
        let request = match line {
            Line::Whole(bytes) => Request::parse(&bytes),
            Line::TooLong { bytes, limit } => Err((
                None,
                format!("the line has {bytes} bytes, and at most {limit} are taken"),
            )),
        };
        match request {
            Err((id, reason)) => Response::refused(number, id, Refusal::invalid(reason)),
            Ok(request) => match self.run(number, &request) {
                Ok(response) => Response {
                    id: request.id,
                    ..response
                },
                Err(refusal) => Response::refused(number, request.id, refusal),
            },
        }
    }

    fn stop(&self) {
        self.cancel.now();
    }

    fn close(&self) {
        let all = std::mem::take(&mut *self.sandboxes());
        drop(all);
    }
}

/// Groups that cannot be made are something that the host lacks, as long as nothing runs in them.
fn unbuilt(error: Error) -> Refusal {
    let groups = matches!(error, Error::Group { .. });
    let refusal = Refusal::from(error);
    if groups {
        Refusal::unsupported(refusal.reason)
    } else {
        refusal
    }
}

/// The file that holds a code argument that is too long to be one.
fn spilled_name(line: u64) -> String {
    format!(".varek-code-{line}")
}

/// A request on its way to a command.
struct Prepare<'a> {
    request: &'a Request,
    policy: &'a Policy,
    line: u64,
}

impl Prepare<'_> {
    fn command(&self) -> Result<Command, Refusal> {
        let request = self.request;
        let mut arguments = request.arguments.clone().unwrap_or_default();
        let mut command = match (&request.program, &request.code) {
            (Some(program), None) => {
                let spilled = self.spill(program, &mut arguments)?;
                let command = Command::new(program);
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
        Ok(command)
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
    let kind = std::fs::metadata(path)
        .map_err(|error| cannot(error.to_string()))?
        .file_type();
    if !kind.is_file() && !kind.is_char_device() {
        return Err(cannot(
            "is neither a regular file nor a character device".into(),
        ));
    }
    File::open(path).map_err(|error| cannot(error.to_string()))
}

/// Ends everything that runs when nobody is there any more to read the outcomes.
#[derive(Debug, Default)]
struct Cancel {
    set: AtomicBool,
    waiting: Mutex<Vec<Thread>>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Cancel {
    fn waiting(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) {
        self.set.store(true, Ordering::SeqCst);
        self.waiting().iter().for_each(Thread::unpark);
    }

    /// Waits for a guest, and kills it where that was asked for before or meanwhile.
    fn wait(&self, mut child: Child) -> Result<Outcome, Error> {
        let thread = std::thread::current();
        self.waiting().push(thread.clone());
        let waker = Waker::from(Arc::new(Unpark(thread.clone())));
        let mut killed = false;
        let result = loop {
            if let Poll::Ready(result) = Pin::new(&mut child).poll(&mut Context::from_waker(&waker))
            {
                break result;
            }
            if !killed && self.set.load(Ordering::SeqCst) {
                child.kill();
                killed = true;
            }
            std::thread::park();
        };
        self.waiting().retain(|other| other.id() != thread.id());
        result
    }
}
