//! What a row costs in a run's log, and what a run's start does, beside the official client in Python: both offline, in turns, medians.
//!
//! The official client is the one of the tests' virtual environment (`cargo xtask setup`); without it this crate's figures stand alone.
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot run has nothing to report"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use varek_wandb::{Environment, Mode, Run};

const ROUNDS: usize = 5;
const ROWS: u32 = 10_000;
const STARTS: usize = 50;

/// One row of both.
#[derive(Serialize)]
struct Row {
    index: u32,
    score: f64,
    #[serde(rename = "verdict/blocked")]
    blocked: bool,
    name: String,
}

/// The same in Python. Times are of the calls, and of what it takes until the log is whole.
const OFFICIAL: &str = r#"
import os, sys, time
begin = time.perf_counter()
import wandb
run = wandb.init(project="bench", mode="offline", settings=wandb.Settings(silent=True, x_disable_stats=True, save_code=False, disable_git=True, console="off"))
started = time.perf_counter()
for i in range(int(sys.argv[1])):
    run.log({"index": i, "score": (i % 400) / 4, "verdict/blocked": i % 7 == 0, "name": f"payload {i % 13}"})
logged = time.perf_counter()
run.finish()
done = time.perf_counter()
log = [os.path.join(d, f) for d, _, fs in os.walk("wandb") for f in fs if f.endswith(".wandb")][0]
print(started - begin, logged - started, done - started, os.path.getsize(log))
"#;

/// Seconds and bytes of one round.
struct Round {
    start: f64,
    calls: f64,
    whole: f64,
    bytes: f64,
}

fn ours() -> Round {
    let directory = tempfile::tempdir().expect("a directory");
    let begin = Instant::now();
    let run = start(directory.path());
    let start = begin.elapsed();
    let begin = Instant::now();
    for index in 0..ROWS {
        run.log(Row {
            index,
            score: f64::from(index % 400) / 4.0,
            blocked: index % 7 == 0,
            name: format!("payload {}", index % 13),
        })
        .expect("a row");
    }
    let calls = begin.elapsed();
    run.finish(0, Duration::ZERO).expect("the end");
    let whole = begin.elapsed();
    let log = run
        .directory()
        .expect("a directory")
        .join(format!("run-{}.wandb", run.id()));
    #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
    let bytes = log.metadata().expect("the log").len() as f64;
    Round {
        start: start.as_secs_f64(),
        calls: calls.as_secs_f64(),
        whole: whole.as_secs_f64(),
        bytes,
    }
}

fn start(directory: &Path) -> Run {
    Run::builder()
        .environment(Environment::default())
        .project("bench")
        .dir(directory)
        .mode(Mode::Offline)
        .start()
        .expect("a run")
}

fn official(python: &Path) -> Option<Round> {
    let directory = tempfile::tempdir().ok()?;
    let output = Command::new(python)
        .args(["-c", OFFICIAL, &ROWS.to_string()])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", directory.path())
        .env("WANDB_ERROR_REPORTING", "false")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [start, calls, whole, bytes] = numbers[..] else {
        return None;
    };
    Some(Round {
        start,
        calls,
        whole,
        bytes,
    })
}

fn median(rounds: &[Round], of: fn(&Round) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    // `cargo test --benches` only wants to know that it starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let python = environment();
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(ours());
        theirs.extend(python.as_deref().and_then(official));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut starts: Vec<Duration> = (0..STARTS)
        .map(|_| {
            let begin = Instant::now();
            let run = start(directory.path());
            let taken = begin.elapsed();
            drop(run);
            taken
        })
        .collect();
    starts.sort();

    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "{:<28} {:>12} {:>12} {:>8}",
        "", "ours", "official", "ratio"
    );
    let mut line = |name: &str, mine: f64, theirs: f64, unit: &str| {
        let _ = writeln!(
            out,
            "{name:<28} {mine:>12.1} {theirs:>12.1} {:>8.2}  {unit}",
            mine / theirs
        );
    };
    let rows = f64::from(ROWS);
    let of = |rounds: &[Round], what: fn(&Round) -> f64| median(rounds, what);
    line(
        "calls",
        rows / of(&mine, |r| r.calls),
        rows / of(&theirs, |r| r.calls),
        "rows/s",
    );
    line(
        "until the log is whole",
        rows / of(&mine, |r| r.whole),
        rows / of(&theirs, |r| r.whole),
        "rows/s",
    );
    line(
        "log",
        of(&mine, |r| r.bytes) / rows,
        of(&theirs, |r| r.bytes) / rows,
        "bytes/row",
    );
    line(
        "first start",
        of(&mine, |r| r.start) * 1e3,
        of(&theirs, |r| r.start) * 1e3,
        "ms",
    );
    let again = starts.get(STARTS / 2).copied().unwrap_or_default();
    line("start", again.as_secs_f64() * 1e3, f64::NAN, "ms");
}

/// The interpreter of the environment, in the target directory that this program is in.
fn environment() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let found = own
        .ancestors()
        .map(|above| above.join("guests/wandb-0.26.1/bin/python"))
        .find(|python| python.exists());
    if found.is_none() {
        eprintln!(
            "not compared: there is no environment with the official client; `cargo xtask setup` makes it"
        );
    }
    found
}
