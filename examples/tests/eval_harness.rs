//! The example of an evaluation harness: its verdicts over honest and hostile samples, and its estimator.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "../examples/eval_harness.rs"]
#[allow(dead_code, reason = "its `main` is run as a program")]
mod eval_harness;
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use varek_core::{Policy, Sandbox};

use self::eval_harness::{Verdict, grade, pass_at_k, same};

/// What becomes of each sample of the set whose label does not begin with "right" or "wrong".
const OTHERS: [(&str, &str); 18] = [
    ("a loop without an end", "killed"),
    ("always true", "wrong"),
    ("an object that equals everything", "raised"),
    ("exits with 0 at the first call", "incomplete"),
    ("finds the stream of answers and forges them", "wrong"),
    ("forks without an end", "killed"),
    ("memory without an end", "killed"),
    ("no Python at all", "incomplete"),
    ("not a number", "raised"),
    ("opens a socket", "violation"),
    ("os._exit(0) at import", "incomplete"),
    ("patches the encoder", "garbled"),
    ("prints a marker of success", "wrong"),
    ("raises", "raised"),
    ("reads a file of the host", "raised"),
    ("recursion without an end", "raised"),
    ("starts a program", "violation"),
    ("writes without an end", "killed"),
];

fn package(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn harness(problems: &Path, samples: &Path, output: &Path) -> Output {
    Command::new(support::example(&package("examples/eval_harness.rs")))
        .args([problems, samples])
        .arg("--output")
        .arg(output)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn rows(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn right_samples_pass_and_no_hostile_one_does() {
    reports_or_return!();
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results.jsonl");
    let set = package("data/eval");
    let ran = harness(
        &set.join("problems.jsonl"),
        &set.join("samples.jsonl"),
        &results,
    );
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {said}", ran.status);

    let others: BTreeMap<_, _> = OTHERS.into_iter().collect();
    let rows = rows(&results);
    assert_eq!(rows.len(), 40);
    let mut met = BTreeMap::new();
    for row in &rows {
        let label = row["label"].as_str().unwrap();
        let expected = match label {
            "right, and exits with 3" => "incomplete",
            right if right.starts_with("right") => "passed",
            wrong if wrong.starts_with("wrong") => "wrong",
            other => others[other],
        };
        assert_eq!(row["verdict"], expected, "{row}");
        *met.entry(label).or_insert(0) += 1;
    }
    assert!(others.keys().all(|label| met[label] == 1), "{met:?}");
    let cause = |label: &str| {
        let row = rows.iter().find(|row| row["label"] == label).unwrap();
        row["cause"].as_str().unwrap().to_owned()
    };
    for (label, words) in [
        ("a loop without an end", "CPU time limit"),
        ("memory without an end", "out of memory"),
        ("opens a socket", "socket"),
        ("starts a program", "execve"),
        ("writes without an end", "output limit"),
        ("reads a file of the host", "PermissionError"),
        (
            "exits with 0 at the first call",
            "exited with 0 after 0 of 4 answers",
        ),
        ("no Python at all", "SyntaxError"),
    ] {
        assert!(cause(label).contains(words), "{label}: {}", cause(label));
    }

    let table = String::from_utf8(ran.stdout).unwrap();
    let line = |name: &str| {
        table
            .lines()
            .find(|line| line.contains(name))
            .unwrap()
            .to_owned()
    };
    // Two of four pass, then one of four.
    assert!(
        line("own/0").contains("0.500") && line("own/0").contains("1.000"),
        "{table}"
    );
    assert!(
        line("own/1").contains("0.250") && line("own/1").contains("0.750"),
        "{table}"
    );
    assert!(
        line("mean").contains("0.325") && line("mean").contains("0.825"),
        "{table}"
    );
}

#[test]
fn a_sample_of_no_problem_counts_for_nothing_and_the_exit_status_says_so() {
    reports_or_return!();
    let directory = tempfile::tempdir().unwrap();
    let (samples, results) = (directory.path().join("s"), directory.path().join("r"));
    let lines = [
        json!({"task_id": "own/3", "completion": "    return [d for d in range(1, n + 1) if n % d == 0]\n"}),
        json!({"task_id": "nowhere/1", "completion": ""}),
    ];
    std::fs::write(&samples, format!("{}\n\n{}\n", lines[0], lines[1])).unwrap();
    let ran = harness(&package("data/eval/problems.jsonl"), &samples, &results);
    assert_eq!(ran.status.code(), Some(1));
    let verdicts: Vec<_> = rows(&results)
        .iter()
        .map(|row| row["verdict"].clone())
        .collect();
    assert_eq!(verdicts, ["passed", "not_run"]);
    let table = String::from_utf8(ran.stdout).unwrap();
    let line = table.lines().find(|line| line.contains("mean")).unwrap();
    assert!(line.contains("1.000"), "{table}");
}

#[test]
fn the_expected_values_are_nowhere_in_the_memory_of_the_guest() {
    guests_or_return!();
    let problem = json!({
        "task_id": "t", "prompt": "def look_for_it():\n", "entry_point": "look_for_it",
        "cases": [{"arguments": ["argument-and-told"], "expected": "expected-and-never-told"}],
    });
    let problem = serde_json::from_value(problem).unwrap();
    // The patterns do not match themselves.
    let completion = r"
    pass

def look_for_it(argument):
    import re
    found = [False, False]
    memory = open('/proc/self/mem', 'rb', buffering=0)
    for line in open('/proc/self/maps'):
        begin, end, rights = re.match('([0-9a-f]+)-([0-9a-f]+) (....)', line).groups()
        if rights.startswith('rw'):
            memory.seek(int(begin, 16))
            bytes = memory.read(int(end, 16) - int(begin, 16))
            found[0] |= bool(re.search(rb'expected[-]and[-]never', bytes))
            found[1] |= bool(re.search(rb'argument[-]and[-]told', bytes))
    return found
";
    let sample = serde_json::from_value(json!({"task_id": "t", "completion": completion}));
    let sandbox = Sandbox::new(Policy::python()).unwrap();
    let (verdict, cause) = grade(&sandbox, &problem, &sample.unwrap());
    assert_eq!(verdict, Verdict::Wrong, "{cause}");
    assert!(cause.contains("[false, true]"), "{cause}");
}

#[test]
fn the_estimator_is_that_of_the_definition() {
    // C(n, k) as whole numbers, which these are small enough for.
    let choose =
        |n: u64, k: u64| (0..k).fold(1_u128, |c, i| c * u128::from(n - i) / u128::from(i + 1));
    for n in 0..=30 {
        for c in 0..=n {
            for k in 1..=n {
                let missed = if n - c < k { 0 } else { choose(n - c, k) };
                #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
                let exact = 1.0 - missed as f64 / choose(n, k) as f64;
                let estimated = pass_at_k(n, c, k).unwrap();
                assert!(
                    (estimated - exact).abs() < 1e-12,
                    "{n} {c} {k}: {estimated} {exact}"
                );
            }
        }
    }
    // Known values: one in k=1 is c/n; 1 - C(7,5)/C(10,5) is 11/12.
    assert_eq!(pass_at_k(5, 1, 1).map(|p| (p * 10.0).round()), Some(2.0));
    assert!((pass_at_k(10, 3, 5).unwrap() - 11.0 / 12.0).abs() < 1e-12);
}

#[test]
fn the_estimator_holds_where_binomials_overflow_and_says_nothing_without_enough_samples() {
    let half = pass_at_k(100_000, 50_000, 10).unwrap();
    assert!((half - (1.0 - 0.5_f64.powi(10))).abs() < 1e-4, "{half}");
    let rare = pass_at_k(100_000, 1, 50_000).unwrap();
    assert!((rare - 0.5).abs() < 1e-9, "{rare}");
    assert_eq!(pass_at_k(200, 0, 100), Some(0.0));
    assert_eq!(pass_at_k(200, 150, 100), Some(1.0));
    assert_eq!(pass_at_k(3, 1, 4), None);
    assert_eq!(pass_at_k(3, 1, 0), None);
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

#[test]
fn whole_numbers_are_compared_to_their_last_digit() {
    // As Binet's formula has the 100th Fibonacci number, and the 91st, and as they are.
    for (near, exact) in [
        ("354224848179263100000", "354224848179261915075"),
        ("3.542248481792631e+20", "354224848179261915075"),
        ("4660046610375544832.0", "4660046610375530309"),
        ("18446744073709551614", "18446744073709551615"),
        ("-354224848179261915075", "354224848179261915075"),
        ("1e400", "1e400"),
    ] {
        for (a, b) in [(near, exact), (exact, near)] {
            let (a, b) = (a.to_owned(), b.to_owned());
            let [a, b] = [a, b].map(|text| RawValue::from_string(text).unwrap());
            assert!(!same(&a, &b), "{a} {b}");
        }
    }
    for (a, b) in [
        ("354224848179261915075", "354224848179261915075"),
        ("[-0, 1]", "[0, 1.0]"),
        ("9007199254740992", "9007199254740992.0"),
        ("1e25", "1.0000000001e25"),
    ] {
        let [a, b] = [a, b].map(|text| RawValue::from_string(text.to_owned()).unwrap());
        assert!(same(&a, &b), "{a} {b}");
    }
}

#[test]
fn a_large_whole_number_goes_in_and_comes_out_as_it_is() {
    guests_or_return!();
    let problem = r#"{"task_id": "t", "prompt": "def next(n):\n", "entry_point": "next",
        "cases": [{"arguments": [354224848179261915075], "expected": 354224848179261915076}]}"#;
    let problem = serde_json::from_str(problem).unwrap();
    let sandbox = Sandbox::new(Policy::python()).unwrap();
    for (completion, verdict) in [
        ("    return n + 1", Verdict::Passed),
        ("    return n", Verdict::Wrong),
        ("    return float(n)", Verdict::Wrong),
    ] {
        let sample = json!({"task_id": "t", "completion": completion});
        let sample = serde_json::from_value(sample).unwrap();
        let (given, cause) = grade(&sandbox, &problem, &sample);
        assert_eq!(given, verdict, "{completion}: {cause}");
    }
}

#[test]
fn values_are_compared_as_python_compares_them_and_fractions_to_nine_digits() {
    for (a, b) in [
        (json!(2), json!(2.0)),
        (json!(0.1 + 0.2), json!(0.3)),
        (json!([1, {"a": [null]}]), json!([1.0, {"a": [null]}])),
        (json!(0), json!(-0.0)),
    ] {
        assert!(same(&raw(&a), &raw(&b)), "{a} {b}");
    }
    for (a, b) in [
        (json!(1), json!(true)),
        (json!(1), json!("1")),
        (json!(1.0), json!(1.000_001)),
        (
            json!(9_007_199_254_740_993_i64),
            json!(9_007_199_254_740_992_i64),
        ),
        (json!([1, 2]), json!([1])),
        (json!({"a": 1}), json!({"a": 1, "b": 2})),
        (json!(null), json!(false)),
        (json!(0), json!(1e-12)),
    ] {
        assert!(!same(&raw(&a), &raw(&b)), "{a} {b}");
    }
}
