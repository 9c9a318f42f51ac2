//! An MCP server over stdio, with which any MCP client can run Python, JavaScript and shell scripts that nobody vouches for.
//!
//! ```console
//! $ cargo build -p varek-frameworks --example mcp_server
//! $ npx @modelcontextprotocol/inspector --cli target/debug/examples/mcp_server --method tools/call --tool-name run_python \
//!       --tool-arg 'code=print(2 + 2)'
//! ```
//!
//! A client's configuration names the program and nothing else: `{"command": ".../mcp_server"}`, with `scripts/with-cgroup.sh` before
//! it where the host needs that.
//!
//! - Results are structured, by a schema that clients get with the list of tools, and also a text for the model.
//! - What the guest did is a result. Only what keeps it from being run is marked as an error, and says what to change.
//! - Calls run side by side, [`AT_ONCE`] of them; more wait. With a progress token, the client hears twice a second that a run goes on.
//! - A cancelled call kills its guest with everything that it started, and so does the end of stdin, with which the server ends.
//! - A message of over 16 MiB is dropped by `rmcp`, and never answered: larger inputs go in by other ways.
//! - Standard output carries the protocol and nothing else; what the server has to say goes to stderr.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock, ProgressNotificationParam};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServiceExt as _, tool, tool_handler, tool_router};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Semaphore, watch};
use varek_core::{Command, FileError, GIB, KIB, MIB, Outcome, Overflow, Policy, Sandbox};

/// Guests that run at a time.
const AT_ONCE: usize = 8;
/// Sandboxes that are kept for the next call. Each has a supervisor of its own and some 70 descriptors, of which a program has 1,024
/// unless somebody says otherwise: a client that asks for ever other limits must not use them up. Those of guests that run
/// are there besides.
const KEPT: usize = 4;
/// Bytes of each file that comes back, and of all of a call's together.
const FILES_BACK: u64 = 4 * MIB;
/// Files that a call may ask for: each is in memory at the end, before the sum is known.
const OUTPUTS: usize = 16;
/// Bytes of the text for the model. Programs find all of it in the structure.
const TEXT: usize = 16_000;
/// How often a client hears of a run.
const PROGRESS: Duration = Duration::from_millis(500);

// ---- What a client sends ------------------------------------------------------------------------------------------------------

/// The arguments of every tool. Doc comments become the schema's descriptions, which is what a model reads.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Program {
    /// The source text.
    code: String,
    /// What the program reads from standard input; nothing unless it is said.
    #[serde(default)]
    stdin: String,
    /// Files for its working directory, by relative path.
    #[serde(default)]
    files: BTreeMap<String, Contents>,
    /// Paths, relative to the working directory, of files that the program makes and that are to come back.
    #[serde(default)]
    outputs: Vec<String>,
    /// What it may use.
    #[serde(default)]
    limits: Limits,
}

/// What is in a file: a text as it is, or bytes as `{"base64": "..."}`.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(crate = "rmcp::schemars")]
enum Contents {
    Text(String),
    Bytes { base64: String },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "rmcp::schemars")]
struct Limits {
    /// Seconds until it is killed.
    #[schemars(range(min = 0.1, max = 120.0))]
    wall_clock: f64,
    /// Bytes of memory that all its processes have together, 8 MiB to 2 GiB.
    #[schemars(range(min = 8_388_608, max = 2_147_483_648_u64))]
    memory: u64,
    /// Processes and threads.
    #[schemars(range(min = 1, max = 256))]
    pids: u64,
    /// Bytes that are kept of stdout, and of stderr: head and tail of what is longer.
    #[schemars(range(min = 2, max = 1_048_576))]
    output: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall_clock: 10.0,
            memory: 512 * MIB,
            pids: 64,
            output: 64 * KIB,
        }
    }
}

impl Limits {
    /// The preset with the client's limits, none of which goes beyond the server's.
    fn policy(&self, preset: Policy) -> Result<Policy, String> {
        let seconds = within("wall_clock", self.wall_clock, 0.1, 120.0)?;
        Ok(preset
            .wall_clock(Duration::from_secs_f64(seconds))
            .memory(within("memory", self.memory, 8 * MIB, 2 * GIB)?)
            .pids(within("pids", self.pids, 1, 256)?)
            .output(within("output", self.output, 2, MIB)?, Overflow::Truncate))
    }
}

/// The schema says the same; a client need not have read it.
fn within<T: Copy + PartialOrd + Display>(
    name: &str,
    value: T,
    least: T,
    most: T,
) -> Result<T, String> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(format!(
        "limits.{name} is {value}; it can be {least} to {most}"
    ))
}

// ---- What it gets back --------------------------------------------------------------------------------------------------------

/// What became of a program.
#[derive(Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Report {
    /// Whether it exited with 0 and met no limit and no refusal.
    success: bool,
    /// How it ended, in words.
    ended: String,
    /// Its exit code, where it exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    exit_code: Option<i32>,
    /// The first boundary that it met, if any: a refused system call, a limit, a kill.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    violation: Option<String>,
    stdout: String,
    stderr: String,
    /// Whether the middle of stdout or stderr was left out.
    truncated: bool,
    /// Seconds from start to end.
    wall_clock: f64,
    /// The files of `outputs` that were there.
    files: BTreeMap<String, Contents>,
    /// The files of `outputs` that could not be had, and why.
    missing: BTreeMap<String, String>,
}

impl Report {
    fn new(outcome: &Outcome) -> Self {
        let usage = &outcome.usage;
        let mut report = Self {
            success: outcome.success() && outcome.violation().is_none(),
            ended: outcome.termination.to_string(),
            exit_code: outcome.exit_code(),
            violation: outcome.violation().map(ToString::to_string),
            stdout: outcome.stdout.to_text().into_owned(),
            stderr: outcome.stderr.to_text().into_owned(),
            truncated: outcome.stdout.truncated() || outcome.stderr.truncated(),
            wall_clock: usage.wall_clock.as_secs_f64(),
            files: BTreeMap::new(),
            missing: BTreeMap::new(),
        };
        let mut room = FILES_BACK;
        for (path, file) in outcome.files() {
            let path = path.display().to_string();
            let taken = file.map_err(FileError::to_string).and_then(|bytes| {
                let left = room.checked_sub(bytes.len() as u64);
                room = left.ok_or_else(|| {
                    let size = bytes.len();
                    format!("has {size} bytes; {room} of {FILES_BACK} are left for this call")
                })?;
                Ok(contents(bytes))
            });
            match taken {
                Ok(contents) => drop(report.files.insert(path, contents)),
                Err(reason) => drop(report.missing.insert(path, reason)),
            }
        }
        report
    }
}

// ---- The server ---------------------------------------------------------------------------------------------------------------

/// What is known of a call beside its arguments: its cancellation, its progress token, the client.
type Call = RequestContext<RoleServer>;
/// An error is one for the model to read, as rmcp makes it of a text.
type Answer = Result<CallToolResult, String>;

#[derive(Clone)]
struct Server {
    /// By the digest of their policy: calls with the same limits share one.
    sandboxes: Arc<Mutex<HashMap<String, Sandbox>>>,
    places: Arc<Semaphore>,
    /// Whether the client has closed stdin.
    closed: watch::Receiver<bool>,
}

#[tool_router]
impl Server {
    /// Run a Python 3 program. It has no network, starts no other programs, and writes to its working directory alone.
    #[tool(output_schema = schema_for_output::<Report>(), annotations(destructive_hint = false, open_world_hint = false))]
    async fn run_python(&self, program: Parameters<Program>, call: Call) -> Answer {
        self.run(Policy::python(), "python3", "main.py", program.0, call)
            .await
    }

    /// Run a JavaScript program (CommonJS) with Node.js. It has no network, starts no other programs, and writes to its working directory alone.
    #[tool(output_schema = schema_for_output::<Report>(), annotations(destructive_hint = false, open_world_hint = false))]
    async fn run_node(&self, program: Parameters<Program>, call: Call) -> Answer {
        self.run(Policy::node(), "node", "main.js", program.0, call)
            .await
    }

    /// Run a POSIX shell script. It may start installed programs, all under the same limits; it has no network, and writes to its
    /// working directory alone.
    #[tool(output_schema = schema_for_output::<Report>(), annotations(destructive_hint = false, open_world_hint = false))]
    async fn run_shell(&self, program: Parameters<Program>, call: Call) -> Answer {
        self.run(Policy::shell(), "sh", "main.sh", program.0, call)
            .await
    }
}

#[tool_handler(
    name = "varek",
    instructions = "Runs programs in a sandbox. Nothing is kept from one call to the next."
)]
impl rmcp::ServerHandler for Server {}

impl Server {
    async fn run(
        &self,
        preset: Policy,
        interpreter: &str,
        file: &str,
        program: Program,
        call: Call,
    ) -> Answer {
        let policy = program.limits.policy(preset)?;
        let limit = policy.limits.wall_clock;
        let mut command = Command::new(interpreter)
            .arg(file)
            .stdin(program.stdin)
            .file(file, program.code);
        for (path, contents) in program.files {
            let bytes = bytes(contents).map_err(|reason| format!("files: {path}: {reason}"))?;
            command = command.file(path, bytes);
        }
        if program.outputs.len() > OUTPUTS {
            return Err(format!("outputs: at most {OUTPUTS} files can come back"));
        }
        // Read by the sandbox when the tree is dead. What the guest has made of a name (a link, a pipe) is said and never followed.
        for path in program.outputs {
            command = command.collect(path, FILES_BACK);
        }

        let mut closed = self.closed.clone();
        let ended = async {
            tokio::select! { () = call.ct.cancelled() => {}, _ = closed.wait_for(|closed| *closed) => {} }
        };
        tokio::pin!(ended);
        let place = tokio::select! {
            place = self.places.acquire() => place.map_err(text)?,
            () = &mut ended => return Err("cancelled before it was started".into()),
        };
        // A new sandbox takes some milliseconds of work, which is not for the runtime's own threads.
        let server = self.clone();
        let spawned = tokio::task::spawn_blocking(move || server.sandbox(policy)?.spawn(command));
        let mut child = spawned.await.map_err(text)?.map_err(text)?;

        // Beside the wait and not within it: a client that does not read must not keep a guest from being killed.
        let reports = progress(&call, limit);
        tokio::pin!(reports);
        let mut killed = false;
        let outcome = loop {
            tokio::select! {
                outcome = &mut child => break outcome.map_err(text)?,
                // The end of the whole tree is waited for like any other.
                () = &mut ended, if !killed => {
                    child.kill();
                    killed = true;
                }
                () = &mut reports => {}
            }
        };
        drop(place);

        let shown = ContentBlock::text(outcome.to_llm_text(TEXT));
        let report = serde_json::to_value(Report::new(&outcome)).map_err(text)?;
        let mut result = CallToolResult::structured(report);
        result.content = vec![shown];
        Ok(result)
    }

    fn sandbox(&self, policy: Policy) -> Result<Sandbox, varek_core::Error> {
        let mut sandboxes = self
            .sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let digest = policy.digest();
        if let Some(sandbox) = sandboxes.get(&digest) {
            return Ok(sandbox.clone());
        }
        if sandboxes.len() >= KEPT {
            sandboxes.clear();
        }
        let sandbox = Sandbox::new(policy)?;
        sandboxes.insert(digest, sandbox.clone());
        Ok(sandbox)
    }
}

/// Tells the client again and again that a run goes on, where it asked for that. It never ends by itself.
async fn progress(call: &Call, limit: Duration) {
    let Some(token) = call.meta.get_progress_token() else {
        return std::future::pending().await;
    };
    let begin = Instant::now();
    let mut ticks = tokio::time::interval(PROGRESS);
    loop {
        ticks.tick().await;
        let seconds = begin.elapsed().as_secs_f64();
        let progress = ProgressNotificationParam::new(token.clone(), seconds)
            .with_total(limit.as_secs_f64())
            .with_message(format!("running for {seconds:.1} s"));
        // That the client is gone is noticed elsewhere.
        let _ = call.peer.notify_progress(progress).await;
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn bytes(contents: Contents) -> Result<Vec<u8>, String> {
    match contents {
        Contents::Text(text) => Ok(text.into_bytes()),
        Contents::Bytes { base64 } => STANDARD
            .decode(base64)
            .map_err(|e| format!("is no base64: {e}")),
    }
}

/// A file as the client gets it.
fn contents(bytes: &[u8]) -> Contents {
    match str::from_utf8(bytes) {
        Ok(text) => Contents::Text(text.to_owned()),
        Err(_) => Contents::Bytes {
            base64: STANDARD.encode(bytes),
        },
    }
}

/// Standard input, which tells when it has ended. `rmcp` lets calls go on for seconds then; clients do not wait for that.
struct Watched {
    input: tokio::io::Stdin,
    closed: watch::Sender<bool>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.input).poll_read(context, buffer);
        if polled.is_ready() && buffer.filled().len() == before {
            self.closed.send_replace(true);
        }
        polled
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (sender, closed) = watch::channel(false);
    let server = Server {
        sandboxes: Arc::default(),
        places: Arc::new(Semaphore::new(AT_ONCE)),
        closed,
    };
    // A host that cannot enforce the policy is said now, on stderr, and not with every call.
    let policy = Limits::default().policy(Policy::python());
    server.sandbox(policy.map_err(anyhow::Error::msg)?)?;
    let input = Watched {
        input: tokio::io::stdin(),
        closed: sender,
    };
    let serving = server.serve((input, tokio::io::stdout())).await?;
    serving.waiting().await?;
    Ok(())
}
