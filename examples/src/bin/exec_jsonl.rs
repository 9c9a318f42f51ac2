//! Requests as JSON lines on standard input, outcomes as JSON lines on standard output:
//! `cargo run -p varek-examples --bin exec_jsonl`. The format is in `--help` and docs/exec-jsonl.md.

use std::io::{self, BufReader};
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use varek_core::{Host, MIB};
use varek_examples::jsonl::{Executor, serve};

const FORMAT: &str = r#"A request is one line with a JSON object. Every field but `program` may be left out, and `program`
too where there is `code`. An unknown field makes the request invalid.

  id                 any JSON value; it comes back in the response
  program            a path, a name that is looked up in the policy's search_path, or ./NAME of `files`
  arguments          list of texts
  code               Python source; becomes main.py in the scratch directory, and python3 main.py is run
  policy             "python" (the default), "native", or a whole policy
  overrides          JSON merge patch of the policy: every setting of the library
  limits             {"memory": bytes, "pids": n, "cpu": "50%", "wall_clock": "5s", "cpu_time": "2s",
                     "output": bytes, "scratch": bytes, "scratch_files": n, "file_size": bytes,
                     "open_files": n}; durations also as seconds;
                     null lifts memory, pids, cpu, cpu_time, scratch, file_size
  overflow, denials, grace, identity, search_path
                     as in the policy
  read, write, execute
                     paths to grant beside the policy's
  best_effort        layers that may be missing, beside the policy's
  environment        {"NAME": "value"}
  working_directory  instead of the scratch directory
  scratch            an existing directory to be used as the scratch directory, and kept
  files              {"path": "text" or {"text" or "base64": …, "executable": true}} for the scratch
  stdin              "text", {"base64": …} or {"file": "path"}; else the guest reads /dev/null
  record_arguments   "none" (the default), "digest" or "full": how much of the arguments is in the events, and with
                     "full" what denied calls were given
  events             true: the response has the run's events
  network            "denied" (the default), "host", or {"tcp": {"connect": [443], "bind": []}}
  namespaces         ["pid", "mount", "ipc", "uts", "net", "cgroup", "user"], or "all"; none unless they are said

A response is one line with `line` (the request's line number), `id` and `status`:

  ok           the guest ran; `outcome` says how it ended, `summary` in one line
  unsupported  this host cannot enforce what was asked; see `reason`
  spawn_error  the program could not be started; see `reason`
  invalid      no request, or a policy that contradicts itself; see `reason`
  error        VAREK itself failed; see `reason`

Responses come in the order in which runs end. Blank lines are skipped.

Examples:
  {"code": "print(2 + 2)"}
  {"id": 1, "program": "python3", "arguments": ["-c", "print(input())"], "stdin": "hello\n"}
  {"id": "x", "program": "./tool", "policy": "native", "files": {"tool": {"base64": "…", "executable": true}},
   "limits": {"memory": 67108864, "wall_clock": "2s"}}   (on one line)
"#;

/// Runs what comes as JSON lines on standard input, and writes the outcomes as JSON lines to standard output.
#[derive(Parser)]
#[command(version, after_long_help = FORMAT, after_help = "--help says what a request is.")]
struct Arguments {
    /// How many requests run at a time, at most 1024 [default: the number of CPUs].
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// The longest line that is taken, in MiB; longer ones are skipped and answered as invalid.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    longest_line: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cpus = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = arguments.jobs.map_or_else(cpus, NonZeroUsize::get);
    let mib = usize::try_from(MIB).context("this machine has no 64-bit addresses")?;
    let executor = Arc::new(Executor::new(Host::probe()));
    let input = BufReader::with_capacity(256 * 1024, io::stdin());
    serve(
        input,
        io::stdout(),
        jobs,
        arguments.longest_line.saturating_mul(mib),
        &executor,
    )
    .context("the session ended early")?;
    Ok(())
}
