//! Runs a request.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use varek_core::{Child, Error, Event, Host, Outcome, Policy, Sandbox, Sink};

use super::events::{EventLog, Kept};
use super::prepare::{Prepare, Prepared, spilled_name};
use super::request::Request;
use super::respond::{Refusal, Response, Seconds, Status};
use super::serve::{Answer, Line};
use super::settings;

/// Sandboxes kept for requests to come. A session as a rule uses one or two policies.
const MOST_SANDBOXES: usize = 16;

/// How long a response waits for its last events.
const EVENTS_WITHIN: Duration = Duration::from_secs(5);

/// Answers requests, from any number of threads; sandboxes are made once for each policy.
#[derive(Debug)]
pub struct Executor {
    host: Host,
    /// The most recently used is the last.
    sandboxes: Mutex<Vec<Ready>>,
    cancel: Cancel,
}

/// A sandbox, and where its events go, if anywhere.
#[derive(Clone, Debug)]
struct Ready {
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

    fn sandboxes(&self) -> MutexGuard<'_, Vec<Ready>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox of a policy, with events or without.
    fn ready(&self, policy: Policy, events: bool) -> Result<Ready, Refusal> {
        let digest = policy.digest();
        let mut sandboxes = self.sandboxes();
        let same = |entry: &Ready| entry.digest == digest && entry.log.is_some() == events;
        let entry = if let Some(found) = sandboxes.iter().position(same) {
            sandboxes.remove(found)
        } else {
            let log = events.then(Arc::<EventLog>::default);
            let mut builder = Sandbox::builder(policy).host(self.host.clone());
            if let Some(log) = &log {
                builder = builder.sink(Shared(log.clone()));
            }
            Ready {
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
        let made = Prepare {
            request,
            policy: &policy,
            line,
        };
        let Prepared { command, program } = made.command()?;
        let ready = self.ready(policy, request.events == Some(true))?;
        let ran = ready
            .sandbox
            .spawn(command)
            .and_then(|child| self.cancel.wait(child));
        // A scratch directory of the request's own is given back as it was, but for what the guest did.
        if let Some(scratch) = &request.scratch {
            let _ = std::fs::remove_file(scratch.join(spilled_name(line)));
        }
        drop(program);
        let outcome = ran?;
        let kept = ready.log.as_ref().map(|log| {
            ready.sandbox.flush(EVENTS_WITHIN);
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
            policy: Some(ready.digest),
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
