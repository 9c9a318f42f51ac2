//! Kernel events of three payloads in Weights & Biases: `cargo run -p varek-examples --bin telemetry_stream`.
//!
//! Two sinks take the same events. A closure collects them, and their rows have the names of the Python package's demo,
//! `telemetry/event` and its like; what the Python package could not see (denied calls, deadlines, kills) is in them. The run's own sink
//! logs everything that an event has, joins it to the policy that bounded the payload (the artifact `varek-execution-policy`), and
//! raises an alert where a payload met a boundary, and another where one should have and did not.
//!
//! Offline without a key: the run is then a directory, and the command that sends it is printed. Exits with 1 where a payload
//! ended in another way than it has to.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use serde_json::{Value, json};
use varek_core::telemetry::Fanout;
use varek_core::{Command, Event, Outcome, Policy, Sandbox};
use varek_examples::evidence::{self, Judged};
use varek_examples::wandb;
use varek_wandb::{Run, RunSink};

/// Runs three payloads, and logs the kernel events of each to Weights & Biases.
///
/// `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_API_KEY` and the like are read. Exits with 1 where a payload ended in another way.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

/// A payload, and what has to become of it.
struct Payload {
    name: &'static str,
    source: &'static str,
    wall_clock: Duration,
    contained: bool,
    judge: fn(&Outcome) -> Judged,
}

const PAYLOADS: [Payload; 3] = [
    Payload {
        name: "benign_compute",
        source: "print(sum(range(100)))",
        wall_clock: Duration::from_secs(10),
        contained: false,
        judge: evidence::clean,
    },
    Payload {
        name: "execve_attempt",
        source: "import subprocess\nsubprocess.run(['/bin/echo', 'escaped'], check=True)",
        wall_clock: Duration::from_secs(10),
        contained: true,
        judge: |outcome| evidence::denied(outcome, "execve"),
    },
    Payload {
        name: "wallclock_overrun",
        source: "while True: pass",
        wall_clock: Duration::from_secs(1),
        contained: true,
        judge: |outcome| {
            if outcome.timed_out() {
                Ok(outcome.termination.to_string())
            } else {
                Err(format!("it {}", outcome.termination))
            }
        },
    },
];

/// What the closure has collected.
type Collected = Arc<Mutex<Vec<Event>>>;

fn main() -> anyhow::Result<ExitCode> {
    Arguments::parse();
    let run = wandb::run("varek-guardrails-telemetry", "telemetry-demo")
        .config(json!({ "backend": "varek-core", "n_payloads": PAYLOADS.len() }))?
        .start()?;
    let mut sink = run.sink();
    for payload in &PAYLOADS {
        let policy = policy(payload);
        sink = sink.policy(policy.digest(), &policy);
    }
    let sink = sink.start()?;

    let mut failed = 0;
    for payload in &PAYLOADS {
        let outcome = observe(&run, &sink, payload)?;
        match (payload.judge)(&outcome) {
            Ok(evidence) => println!("as expected {}: {evidence}", payload.name),
            Err(instead) => {
                failed += 1;
                println!("DIFFERENT {}: {instead}", payload.name);
            }
        }
    }
    run.summary("telemetry/payloads_run", PAYLOADS.len())?;
    let whole = wandb::finish(&run, i32::from(failed > 0))?;
    Ok(if failed == 0 && whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn policy(payload: &Payload) -> Policy {
    Policy::python().wall_clock(payload.wall_clock)
}

/// Runs a payload, and logs its events and what became of it.
fn observe(run: &Run, sink: &RunSink, payload: &Payload) -> anyhow::Result<Outcome> {
    let collected = Collected::default();
    let collector = collected.clone();
    let collect = move |event: &Event| {
        let mut collected = collector.lock().unwrap_or_else(PoisonError::into_inner);
        collected.push(event.clone());
    };
    let sandbox = Sandbox::builder(policy(payload))
        .sink(Fanout::new().with(collect).with(sink.clone()))
        .build()
        .context("there is no sandbox here; the `doctor` example says what to do")?;
    let outcome = sandbox.run(Command::python(payload.source))?;
    // What is on its way to the sinks.
    sandbox.flush(Duration::from_secs(10));
    if payload.contained {
        sink.expect_contained(outcome.run);
    }

    let events = std::mem::take(&mut *collected.lock().unwrap_or_else(PoisonError::into_inner));
    for event in &events {
        run.log(json!({
            "telemetry/event": event.kind.name(),
            "telemetry/args_repr": serde_json::to_string(&event.kind)?,
            "telemetry/payload_label": payload.name,
        }))?;
    }
    let of_payload = |key: &str| format!("payload/{}/{key}", payload.name);
    let row: BTreeMap<String, Value> = [
        ("exit_code", json!(outcome.exit_code())),
        ("contained", json!(outcome.contained())),
        ("timed_out", json!(outcome.timed_out())),
        (
            "wall_clock_s",
            json!(outcome.usage.wall_clock.as_secs_f64()),
        ),
        ("killed_by_signal", json!(evidence::signal(&outcome))),
        ("n_telemetry_events", json!(events.len())),
    ]
    .map(|(key, value)| (of_payload(key), value))
    .into();
    run.log(row)?;
    Ok(outcome)
}
