//! What the tests of this folder share.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod host;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) use self::host::*;

/// Runs a program of this package to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A session of `exec_jsonl`: these bytes in, its responses out, by line number. It has to exit with 0.
pub(crate) fn session_of(arguments: &[&str], input: impl Into<Vec<u8>>) -> Vec<Value> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_exec_jsonl"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.into();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut responses: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    responses.sort_by_key(|response| response["line"].as_u64());
    responses
}

/// Requests as the text of a session.
pub(crate) fn lines(requests: &[Value]) -> String {
    let lines: Vec<String> = requests.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The responses to these requests, in their order.
pub(crate) fn session(requests: &[Value]) -> Vec<Value> {
    let responses = session_of(&[], lines(requests));
    let lines: Vec<_> = responses
        .iter()
        .map(|response| response["line"].clone())
        .collect();
    assert_eq!(
        lines,
        (1..=requests.len()).map(Value::from).collect::<Vec<_>>()
    );
    responses
}

/// The response to one request.
pub(crate) fn answer(request: &Value) -> Value {
    session(std::slice::from_ref(request)).remove(0)
}

/// What the guest of an `ok` response wrote to stdout. It exited with 0.
#[track_caller]
pub(crate) fn stdout(response: &Value) -> &str {
    assert_eq!(response["status"], "ok", "{response}");
    assert_eq!(
        response["outcome"]["termination"]["exited"], 0,
        "{response}"
    );
    response["outcome"]["stdout"]["text"].as_str().unwrap()
}

/// The reason of a response that is not `ok`.
#[track_caller]
pub(crate) fn reason<'a>(response: &'a Value, status: &str) -> &'a str {
    assert_eq!(response["status"], status, "{response}");
    assert_eq!(response.get("outcome"), None, "{response}");
    response["reason"].as_str().unwrap()
}

/// Every entry of a directory, for a look before and after.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
