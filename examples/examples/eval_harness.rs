//! Grades candidate programs as benchmarks of the HumanEval kind do: many samples a problem, pass@k, and a verdict with its cause
//! for each sample.
//!
//! ```console
//! $ cargo run -p varek-examples --example eval_harness -- examples/data/eval/problems.jsonl examples/data/eval/samples.jsonl \
//!       --output target/results.jsonl --wandb-project evals
//! ```
//!
//! With `--wandb-project` the results are a table in Weights & Biases as well, and pass@k is in the run's summary: sent where there is a
//! key, kept in `wandb/` until `wandb sync` where there is none.
//!
//! # What a verdict can mean
//!
//! A candidate runs in the interpreter that calls it. Whatever is in there with it (assertions, expected values, a flag "all
//! passed") it can patch, read or forge: `sys.exit(0)` after the first line, an object that equals everything, a printed marker. So nothing
//! of the kind is in there. The guest gets the *arguments* of a test case and writes the *result*; the expected value never enters the
//! sandbox, and the comparison is made out here. All that a candidate can forge is a result, and a forged result that is right for
//! arguments it had never seen is a right result.
//!
//! `passed` therefore means: for each case the program wrote the value that is expected, within its limits, and no system call was
//! refused. It does not mean that the value was computed: a model that has seen the cases can answer from memory, so cases
//! should be other than the examples in the prompt. Nor does it say anything about arguments that no case has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use varek_core::{Cause, Command, Layer, MIB, Outcome, Overflow, Policy, Sandbox, Termination};
use varek_wandb::{Run, Table};

/// Grades candidate programs in a sandbox.
#[derive(Parser)]
struct Arguments {
    /// JSON lines: `task_id`, `prompt`, `entry_point`, and `cases` with `arguments` and `expected`.
    problems: PathBuf,
    /// JSON lines: `task_id`, `completion` (what follows the prompt), and a `label` if wanted.
    samples: PathBuf,
    /// One JSON line a sample, in the order of the samples.
    #[arg(long, default_value = "results.jsonl")]
    output: PathBuf,
    /// The values of k; one that has more than a problem's samples is left out.
    #[arg(short, value_delimiter = ',', default_values_t = [1, 3])]
    k: Vec<u64>,
    /// Log the results to this project of Weights & Biases.
    #[arg(long)]
    wandb_project: Option<String>,
    /// Seconds that a sample may take.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

#[derive(Deserialize)]
pub(crate) struct Problem {
    pub(crate) task_id: String,
    pub(crate) prompt: String,
    pub(crate) entry_point: String,
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    /// As they are written: a whole number of Python's has any number of digits, and a [`Value`] has not.
    pub(crate) arguments: Vec<Box<RawValue>>,
    pub(crate) expected: Box<RawValue>,
}

#[derive(Deserialize)]
pub(crate) struct Sample {
    pub(crate) task_id: String,
    pub(crate) completion: String,
    #[serde(default)]
    pub(crate) label: String,
}

// ---- One sample ---------------------------------------------------------------------------------------------------------------

/// What is run: it calls the candidate with arguments from stdin, and writes one line a case. The stream that these lines go to is
/// taken away first, so that what a candidate prints is no answer. A hostile one finds it all the same; see the top for what that gains it.
const RUNNER: &str = r#"
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
entry, cases = json.loads(sys.stdin.readline())
sys.stdin.close()
import candidate
function = getattr(candidate, entry)
for number, arguments in enumerate(cases):
    try:
        answer = {"case": number, "value": function(*arguments)}
        line = json.dumps(answer, allow_nan=False)
    except Exception as error:
        line = json.dumps({"case": number, "error": f"{type(error).__name__}: {error}"[:200]})
    print(line, file=answers, flush=True)
"#;

/// What became of a sample; beside it stands why, in words. The first that holds, from the kernel's evidence to the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Passed,
    /// A limit of the run ended it.
    Killed,
    /// It met a boundary and went on; as a rule, a system call was refused.
    Violation,
    /// It ended before it had answered all cases, with 0 or not.
    Incomplete,
    /// What it wrote are no answers.
    Garbled,
    Raised,
    Wrong,
    /// The sandbox failed, so that nothing is known. It counts as no sample at all.
    NotRun,
}

/// Runs a sample and says what became of it, and why.
pub(crate) fn grade(sandbox: &Sandbox, problem: &Problem, sample: &Sample) -> (Verdict, String) {
    let arguments: Vec<_> = problem.cases.iter().map(|case| &case.arguments).collect();
    let input = match serde_json::to_string(&(&problem.entry_point, arguments)) {
        Ok(input) => input,
        Err(error) => return (Verdict::NotRun, error.to_string()),
    };
    let source = format!("{}{}", problem.prompt, sample.completion);
    let command = Command::python(RUNNER).file("candidate.py", source);
    match sandbox.run(command.stdin(format!("{input}\n"))) {
        Ok(outcome) => verdict(problem, &outcome),
        Err(error) => (Verdict::NotRun, error.to_string()),
    }
}

fn verdict(problem: &Problem, outcome: &Outcome) -> (Verdict, String) {
    use Cause::{HostOutOfMemory, SetupTimeout, SupervisorFault};
    let ended = &outcome.termination;
    match ended {
        Termination::Killed(SetupTimeout { .. } | HostOutOfMemory | SupervisorFault)
        | Termination::Unknown { .. } => return (Verdict::NotRun, ended.to_string()),
        Termination::Killed(cause) => return (Verdict::Killed, cause.to_string()),
        _ => {}
    }
    if let Some(violation) = outcome.violation() {
        return (Verdict::Violation, violation.to_string());
    }
    let text = outcome.stdout.to_text();
    let mut lines = text.lines();
    for (number, case) in problem.cases.iter().enumerate() {
        let Some(line) = lines.next() else {
            let of = problem.cases.len();
            let last = outcome
                .stderr
                .to_text()
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned();
            return (
                Verdict::Incomplete,
                format!("{ended} after {number} of {of} answers; {last}"),
            );
        };
        // A line of the guest's is as hostile as the guest.
        let answer: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(line).unwrap_or_default();
        let verdict = match (answer.get("case"), answer.get("value"), answer.get("error")) {
            (Some(said), ..) if said.get() != number.to_string() => Verdict::Garbled,
            (Some(_), Some(value), None) if same(value, &case.expected) => continue,
            (Some(_), Some(_), None) => Verdict::Wrong,
            (Some(_), None, Some(_)) => Verdict::Raised,
            _ => Verdict::Garbled,
        };
        return (verdict, line.chars().take(200).collect());
    }
    match lines.next() {
        Some(_) => (Verdict::Garbled, "more answers than cases".into()),
        None if outcome.success() => (Verdict::Passed, String::new()),
        None => (
            Verdict::Incomplete,
            format!("{ended} after the last answer"),
        ),
    }
}

/// Whether two values are the same to Python's `==`, with fractions compared to nine digits. Whole numbers are compared digit by
/// digit, however many there are: one that was computed in fractions is near, and wrong.
pub(crate) fn same(a: &RawValue, b: &RawValue) -> bool {
    match (Form::of(a), Form::of(b)) {
        (Some(Form::Number(a)), Some(Form::Number(b))) => same_number(a, b),
        (Some(Form::List(a)), Some(Form::List(b))) => {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(a, b))
        }
        (Some(Form::Object(a)), Some(Form::Object(b))) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (Some(Form::Other(a)), Some(Form::Other(b))) => a == b,
        _ => false,
    }
}

fn same_number(a: &str, b: &str) -> bool {
    let whole = |text: &str| !text.contains(['.', 'e', 'E']);
    let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) else {
        return false;
    };
    // From here on a fraction does not say every whole number.
    let large = |number: f64| number.abs() >= 9_007_199_254_740_992.0;
    match (whole(a), whole(b)) {
        (true, true) => a == b || (x == 0.0 && y == 0.0),
        (true, false) if large(x) => format!("{y:.0}") == a,
        (false, true) if large(y) => format!("{x:.0}") == b,
        _ => (x - y).abs() <= 1e-9 * x.abs().max(y.abs()),
    }
}

/// A value, one level of it.
enum Form<'a> {
    Number(&'a str),
    List(Vec<Box<RawValue>>),
    Object(BTreeMap<String, Box<RawValue>>),
    Other(Value),
}

impl<'a> Form<'a> {
    /// None where it is none after all, such as half of a surrogate pair.
    fn of(value: &'a RawValue) -> Option<Self> {
        let text = value.get();
        Some(match text.as_bytes().first()? {
            b'-' | b'0'..=b'9' => Self::Number(text),
            b'[' => Self::List(serde_json::from_str(text).ok()?),
            b'{' => Self::Object(serde_json::from_str(text).ok()?),
            _ => Self::Other(serde_json::from_str(text).ok()?),
        })
    }
}

// ---- All of them --------------------------------------------------------------------------------------------------------------

/// How likely at least one of k samples passes, when c of n did: `1 - C(n-c, k) / C(n, k)`, without bias, and as a product, since
/// the binomials of a few hundred samples are larger than any number here. None where there are fewer than k samples.
pub(crate) fn pass_at_k(n: u64, c: u64, k: u64) -> Option<f64> {
    if k == 0 || n < k || n < c {
        return None;
    }
    if n - c < k {
        return Some(1.0);
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of samples are far below 2^53"
    )]
    let missed: f64 = (n - c + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - missed)
}

/// A line of the results.
#[derive(Serialize)]
struct Row<'a> {
    task_id: &'a str,
    label: &'a str,
    verdict: Verdict,
    cause: String,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let problems: Vec<Problem> = read(&arguments.problems)?;
    let samples: Vec<Sample> = read(&arguments.samples)?;
    let problems: BTreeMap<_, _> = problems
        .iter()
        .map(|problem| (&*problem.task_id, problem))
        .collect();

    // CPU time is the bound that means the same on a busy machine; the wall clock ends what sleeps. What is refused must be
    // reported, or a verdict would not know.
    let limit = Duration::try_from_secs_f64(arguments.seconds).context("--seconds")?;
    let policy = Policy::python()
        .memory(256 * MIB)
        .pids(16)
        .cpu_time(limit)
        .wall_clock(limit * 5)
        .output(MIB, Overflow::Kill)
        .require(Layer::DenialReports);
    let sandbox = Sandbox::new(policy)?;

    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} samples, {elapsed}")?;
    let bar = ProgressBar::new(samples.len() as u64).with_style(style);
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(sample) = samples.get(number) else {
                return;
            };
            let (verdict, cause) = match problems.get(&*sample.task_id) {
                Some(problem) => grade(&sandbox, problem, sample),
                None => (Verdict::NotRun, "no problem has this task_id".into()),
            };
            let (task_id, label) = (&*sample.task_id, &*sample.label);
            let row = Row {
                task_id,
                label,
                verdict,
                cause,
            };
            rows.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(number, row);
            bar.inc(1);
        }
    };
    // One sandbox serves all threads: it is made once, and a run is a call.
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..processors).for_each(|_| drop(scope.spawn(worker)));
    });
    bar.finish_and_clear();
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    let rows: Vec<Row<'_>> = rows.into_values().collect();

    let lines = rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<Vec<_>, _>>()?;
    let output = &arguments.output;
    fs::write(output, lines.join("\n") + "\n").with_context(|| output.display().to_string())?;

    let problems = tally(&rows, &arguments.k);
    println!("{}", table(&problems, &arguments.k));
    println!("{} samples are in {}.", rows.len(), output.display());
    if let Some(project) = &arguments.wandb_project {
        let said = track(project, &arguments.k, &sandbox, &rows, &problems)?;
        println!("{said}");
    }
    let not_run = rows
        .iter()
        .filter(|row| row.verdict == Verdict::NotRun)
        .count();
    anyhow::ensure!(
        not_run == 0,
        "{not_run} samples could not be run, and count for nothing"
    );
    Ok(())
}

/// What became of a problem's samples.
struct Tally<'a> {
    task_id: &'a str,
    verdicts: BTreeMap<Verdict, u64>,
    /// By k, in the order of the arguments.
    pass_at: Vec<Option<f64>>,
}

fn tally<'a>(rows: &[Row<'a>], ks: &[u64]) -> Vec<Tally<'a>> {
    let mut tasks: BTreeMap<&str, BTreeMap<Verdict, u64>> = BTreeMap::new();
    for row in rows {
        let verdicts = tasks.entry(row.task_id).or_default();
        *verdicts.entry(row.verdict).or_default() += 1;
    }
    let problem = |(task_id, verdicts): (_, BTreeMap<Verdict, u64>)| {
        let counted = verdicts
            .iter()
            .filter(|(verdict, _)| **verdict != Verdict::NotRun);
        let n = counted.map(|(_, count)| count).sum();
        let c = verdicts.get(&Verdict::Passed).copied().unwrap_or(0);
        Tally {
            task_id,
            verdicts,
            pass_at: ks.iter().map(|k| pass_at_k(n, c, *k)).collect(),
        }
    };
    tasks.into_iter().map(problem).collect()
}

/// The mean over the problems that have enough samples for the k of this number.
fn mean(problems: &[Tally<'_>], k: usize) -> Option<f64> {
    let values = problems
        .iter()
        .filter_map(|problem| problem.pass_at.get(k).copied().flatten());
    let values: Vec<f64> = values.collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of problems")]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)
}

/// A line for each problem, and their mean.
fn table(problems: &[Tally<'_>], ks: &[u64]) -> comfy_table::Table {
    let shown = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let mut table = comfy_table::Table::new();
    let header = ["problem", "samples", "verdicts"].map(str::to_owned);
    let columns = ks.iter().map(|k| format!("pass@{k}"));
    table.set_header(header.into_iter().chain(columns));
    for problem in problems {
        let words = problem.verdicts.iter();
        let words: Vec<_> = words
            .map(|(verdict, count)| format!("{verdict:?} {count}"))
            .collect();
        let run = problem.verdicts.iter();
        let run: u64 = run
            .filter(|(verdict, _)| **verdict != Verdict::NotRun)
            .map(|(_, count)| count)
            .sum();
        let cells = [
            problem.task_id.to_owned(),
            run.to_string(),
            words.join(", "),
        ];
        let values = problem.pass_at.iter().map(|value| shown(*value));
        table.add_row(cells.into_iter().chain(values));
    }
    let cells = ["mean".to_owned(), String::new(), String::new()];
    let values = (0..ks.len()).map(|k| shown(mean(problems, k)));
    table.add_row(cells.into_iter().chain(values));
    table
}

/// Logs the results to Weights & Biases. What could not be sent is in the run's directory, and nothing of it is lost; so this fails
/// where that directory cannot be written, and not where the server is away.
fn track(
    project: &str,
    ks: &[u64],
    sandbox: &Sandbox,
    rows: &[Row<'_>],
    problems: &[Tally<'_>],
) -> anyhow::Result<String> {
    let policy = sandbox.policy().digest();
    let run = Run::builder()
        .project(project)
        .job_type("evaluation")
        .config(serde_json::json!({ "k": ks, "policy": policy }))?
        .start()?;
    let mut samples = Table::new(["task_id", "label", "verdict", "cause"])?;
    for row in rows {
        samples.row((row.task_id, row.label, row.verdict, &row.cause))?;
    }
    run.log_table("samples", &samples)?;
    for (number, k) in ks.iter().enumerate() {
        run.summary(format!("pass@{k}"), mean(problems, number))?;
    }
    let report = run.finish(0, Duration::from_secs(60))?;
    Ok(
        match (report.is_complete(), report.url, run.sync_command()) {
            (true, Some(url), _) => format!("They are at {url}."),
            (_, _, Some(command)) => format!("To send them: {command}"),
            _ => "Nothing was logged: the mode is `disabled`.".to_owned(),
        },
    )
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let item = |(number, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("{}, line {}", path.display(), number + 1))
    };
    lines.map(item).collect()
}
