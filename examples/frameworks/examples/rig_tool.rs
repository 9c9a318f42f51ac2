//! A Rig agent whose tool runs Python that nobody vouches for.
//!
//! ```console
//! $ cargo run -p varek-frameworks --example rig_tool
//! ```
//!
//! It runs offline and without a key: the model is a script, which asks for three programs (one that works, one that tries to
//! start another program, one that never ends), reads what became of each, and answers from that. To put a real model in its
//! place, give `AgentBuilder::new` another one; the tool stays as it is.
//!
//! Two kinds of failure must not be mixed up:
//!
//! - What the guest did (an exception, a refused call, a timeout) is the tool's *output*. A model can do something about it.
//! - That nothing could be run (no control groups here, no `python3`) is the tool's *error*. It is the operator's business, and the
//!   model learns no more than that the tool is out of order.

use std::time::Duration;

use futures::stream;
use rig_agent::AgentBuilder;
use rig_core::completion::{CompletionRequest, CompletionResponse, Usage};
use rig_core::driver::{Exchange, Model, Opened, Opening, Transport};
use rig_core::message::{AssistantContent, Message, Origin, ToolResultContent, UserContent};
use rig_core::test_utils::{MockFrame, MockScript};
use rig_core::tool::{Tool, ToolContext, ToolErrorKind, ToolExecutionError, tool_name};
use serde::Deserialize;
use serde_json::{Value, json};
use varek_core::{Command, Error, MIB, Policy, Sandbox};

// ---- The tool ----------------------------------------------------------------------------------------------------------------

/// Runs Python for a model. The sandbox is made once and shared by all calls; clones are handles of the same one.
#[derive(Clone)]
pub(crate) struct RunPython {
    sandbox: Sandbox,
}

/// What the model fills in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) stdin: String,
}

impl RunPython {
    /// Fails where this host cannot enforce the policy, so before the agent says a word.
    pub(crate) fn new(policy: Policy) -> Result<Self, Error> {
        let sandbox = Sandbox::new(policy)?;
        Ok(Self { sandbox })
    }
}

impl Tool for RunPython {
    const NAME: &'static str = "run_python";
    type Args = Program;
    type Output = String;
    type Error = Error;

    fn description(&self) -> String {
        let limits = &self.sandbox.policy().limits;
        format!(
            "Runs a Python 3 program and returns how it ended, and what it printed. It has no network, cannot start other programs, \
             can write to its working directory alone, and is stopped after {} s. Nothing is kept from one call to the next.",
            limits.wall_clock.as_secs_f64()
        )
    }

    fn parameters(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The program. What it prints is what you get back."},
                "stdin": {"type": "string", "description": "What it reads from standard input; nothing unless it is said."}
            },
            "required": ["code"],
            "additionalProperties": false
        })
    }

    /// `spawn` takes a millisecond, so it needs no thread of its own. The wait is a future that the sandbox's supervisor wakes; no
    /// runtime is involved. When the agent drops the call, because its user went away or its own time is over, `Child` is dropped
    /// with it, and that kills the guest with everything that it started.
    async fn call(&self, _: &mut ToolContext, program: Program) -> Result<String, Error> {
        let command = Command::python(program.code).stdin(program.stdin);
        let outcome = self.sandbox.spawn(command)?.await?;
        Ok(outcome.to_llm_text(BUDGET))
    }

    /// Rig tells the model nothing of an error's text, which may name paths of this host, but logs and hooks get all of it.
    fn map_error(&self, error: Error) -> ToolExecutionError {
        ToolExecutionError::new(ToolErrorKind::Other, error.to_string())
            .with_model_feedback(
                "the sandbox is out of order, and no program can be run now; do not try again",
            )
            .with_retryable(false)
            .with_source(error)
    }
}

/// Bytes of an answer: how the program ended and why, what was refused and what to do instead, and what it printed, cut in the middle.
const BUDGET: usize = 4_000;

// ---- A model that needs no network ---------------------------------------------------------------------------------------------

/// The programs that the scripted model asks for, one after the other.
const PROGRAMS: [&str; 3] = [
    "primes = [n for n in range(2, 300) if all(n % d for d in range(2, n))]\nprint(primes[49])",
    "import subprocess\nprint(subprocess.run(['id'], capture_output=True, text=True).stdout)",
    "while True:\n    pass",
];

/// In Rig a model is a wire (what is said) over a transport (who answers). The wire is Rig's own for scripts; the one who answers
/// is this, and it decides by what it is sent alone, as a real model would.
#[derive(Clone)]
struct Scripted;

impl Scripted {
    fn answer(request: &CompletionRequest) -> AssistantContent {
        let results: Vec<String> = request.chat_history.iter().flat_map(results).collect();
        match PROGRAMS.get(results.len()) {
            Some(code) => AssistantContent::tool_call(
                format!("call-{}", results.len() + 1),
                tool_name::<RunPython>(),
                json!({"code": code}),
            ),
            None => AssistantContent::text(format!(
                "This is what came back.\n\n1. The 50th prime:\n{}\n2. Another program:\n{}\n3. Without an end:\n{}",
                results.first().map_or("", String::as_str),
                results.get(1).map_or("", String::as_str),
                results.get(2).map_or("", String::as_str),
            )),
        }
    }
}

/// What tools answered in a message of the conversation.
fn results(message: &Message) -> Vec<String> {
    let Message::User { content } = message else {
        return Vec::new();
    };
    let text = |content: &UserContent| match content {
        UserContent::ToolResult(result) => {
            let parts = result.content.iter().filter_map(ToolResultContent::as_text);
            Some(parts.collect::<String>())
        }
        _ => None,
    };
    content.iter().filter_map(text).collect()
}

impl Transport<MockScript> for Scripted {
    fn send(&self, request: CompletionRequest, _: Exchange) -> Opening<MockFrame> {
        let origin = Origin::new("scripted", "scripted", "scripted-1");
        let answer = vec![Self::answer(&request)];
        let response = CompletionResponse::new(answer, Usage::new(), origin, Value::Null);
        let frame = MockFrame::Response(Box::new(response));
        Opening::ready(Opened::new(stream::iter([Ok(frame)])))
    }
}

// ---- The agent ----------------------------------------------------------------------------------------------------------------

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let policy = Policy::python()
        .memory(256 * MIB)
        .pids(16)
        .wall_clock(Duration::from_secs(2));
    let agent = AgentBuilder::new(Model::new(MockScript::new("scripted"), Scripted))
        .preamble("You may run Python to find things out.")
        .tool(RunPython::new(policy)?)
        .build();
    let answer = agent
        .prompt("Which is the 50th prime, who am I, and does `while True` ever end?")
        .max_turns(PROGRAMS.len() + 1)
        .await?;
    println!("{answer}");
    Ok(())
}
