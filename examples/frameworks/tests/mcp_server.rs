//! The example of an MCP server with its real peers: the official client in Python, and the official inspector on Node.js.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "../../tests/support/host.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn server() -> PathBuf {
    support::example(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mcp_server.rs"))
}

/// Seconds that nobody else sleeps: the argument by which a guest's processes are found.
fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("3600.{}{number:03}", std::process::id())
}

/// Processes that run `sleep MARKER`.
fn marked(marker: &str) -> usize {
    let wanted = format!("sleep\0{marker}\0");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| *line == wanted.as_bytes()).count()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// ---- The Python client --------------------------------------------------------------------------------------------------------

/// Runs a scenario of `peers/client.py`, which asserts.
fn scenario(test: &str, scenario: &str) {
    let Some(place) = support::installed(test, "mcp-2.3.0") else {
        return;
    };
    let marker = marker();
    let output = Command::new(place.join("bin/python"))
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/client.py"))
        .args([scenario, &marker])
        .arg(server())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(marked(&marker), 0);
}

macro_rules! scenarios {
    ($($(#[$attribute:meta])* $test:ident: $scenario:literal, $program:literal;)*) => {$(
        #[test]
        fn $test() {
            guests_or_return!($program);
            scenario(stringify!($test), $scenario);
        }
    )*};
}

scenarios! {
    tools_are_listed_with_schemas_of_what_goes_in_and_comes_out: "tools", "python3";
    programs_in_python_and_shell_run_and_answer: "languages", "python3";
    programs_in_node_run_and_answer: "node", "node";
    files_go_in_and_come_out_as_they_are: "files", "python3";
    what_a_guest_plants_in_place_of_a_file_is_not_followed: "planted", "python3";
    bad_arguments_are_errors_that_say_what_to_change: "arguments", "python3";
    a_client_that_asks_for_progress_hears_of_it: "progress", "python3";
    a_cancelled_call_kills_the_tree_of_its_guest_and_nothing_else: "cancellation", "python3";
    many_calls_at_once_get_their_own_answers: "together", "python3";
}

#[test]
fn what_a_guest_does_is_a_result_and_no_error() {
    reports_or_return!();
    scenario("what_a_guest_does_is_a_result_and_no_error", "failures");
}

// ---- The inspector ------------------------------------------------------------------------------------------------------------

fn inspect(place: &Path, arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(place.join("node_modules/.bin/mcp-inspector"))
        .arg("--cli")
        .arg(server())
        .args(arguments)
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn printed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("{error}: {}: {said}", output.status)
    })
}

#[test]
fn the_inspector_lists_the_tools_and_finds_no_error_in_their_schemas() {
    guests_or_return!();
    let name = "the_inspector_lists_the_tools_and_finds_no_error_in_their_schemas";
    let Some(place) = support::installed(name, "mcp-inspector-2.12.0") else {
        return;
    };
    let output = inspect(&place, &["--method", "tools/list", "--strict"]);
    // With --strict it exits with 6 where a schema has an error.
    assert!(output.status.success(), "{}", output.status);
    let tools = printed(&output)["tools"].as_array().unwrap().clone();
    let mut names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [Some("run_node"), Some("run_python"), Some("run_shell")]
    );
}

#[test]
fn the_inspector_calls_a_tool_and_sees_an_error_as_one() {
    guests_or_return!();
    let name = "the_inspector_calls_a_tool_and_sees_an_error_as_one";
    let Some(place) = support::installed(name, "mcp-inspector-2.12.0") else {
        return;
    };
    let call = |arguments: &[&str]| {
        let tool = ["--method", "tools/call", "--tool-name", "run_python"];
        inspect(&place, &[&tool, arguments].concat())
    };
    let output = call(&["--tool-arg", "code=print(6 * 7)"]);
    assert!(output.status.success(), "{}", output.status);
    let result = printed(&output);
    assert_eq!(result["structuredContent"]["stdout"], "42\n", "{result}");
    assert_eq!(result["isError"], false, "{result}");

    let output = call(&["--tool-arg", "code=pass", r#"limits={"memory": 1}"#]);
    assert_eq!(output.status.code(), Some(5));
    let text = printed(&output)["content"][0]["text"].to_string();
    assert!(text.contains("limits.memory is 1"), "{text}");
}

// ---- By hand --------------------------------------------------------------------------------------------------------------------

#[test]
fn the_end_of_stdin_ends_the_server_and_all_guests_and_stdout_had_nothing_but_the_protocol() {
    guests_or_return!();
    let marker = marker();
    let mut child = Command::new(server())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let code = format!("echo garbage; echo garbage >&2; sleep {marker} & sleep {marker} & wait");
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "run_shell", "arguments": {"code": code, "limits": {"wall_clock": 100}},
            "_meta": {"progressToken": "p"}}}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {
            "name": "run_shell", "arguments": {"code": code, "limits": {"wall_clock": 100}}}}),
    ] {
        writeln!(stdin, "{message}").unwrap();
    }
    until("two guests of two sleepers", || marked(&marker) == 4);
    drop(stdin);
    let mut answered = Vec::new();
    for line in lines.by_ref() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        if let Some(id) = message["id"].as_u64() {
            answered.push(id);
            let ended = &message["result"]["structuredContent"]["ended"];
            assert!(
                id == 1 || ended == "killed: cancelled by the embedder",
                "{message}"
            );
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    // It ends by itself, long before the guests would have.
    assert!(child.wait().unwrap().success());
    assert_eq!(marked(&marker), 0);
}

#[test]
fn a_client_that_asks_for_ever_other_limits_uses_up_no_descriptors() {
    guests_or_return!("python3");
    // What programs have unless somebody says otherwise.
    let limited = "ulimit -n 1024 && exec \"$0\"";
    let mut child = Command::new("sh")
        .args(["-c", limited])
        .arg(server())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
    writeln!(stdin, "{message}").unwrap();
    let message = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    writeln!(stdin, "{message}").unwrap();
    let calls = 40;
    for number in 0..calls {
        let arguments = json!({"code": "print(42)", "limits": {"output": 1000 + number}});
        let call = json!({"name": "run_python", "arguments": arguments});
        let message =
            json!({"jsonrpc": "2.0", "id": 2 + number, "method": "tools/call", "params": call});
        writeln!(stdin, "{message}").unwrap();
    }
    let answers = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    for answer in answers.filter(|answer| answer["id"] != 1).take(calls) {
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        let stdout = &answer["result"]["structuredContent"]["stdout"];
        assert_eq!(stdout, "42\n", "{answer}");
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn guests_do_not_outlive_a_server_that_is_killed() {
    guests_or_return!();
    let marker = marker();
    let mut child = Command::new(server())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let code = format!("sleep {marker} & sleep {marker} & wait");
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "run_shell", "arguments": {"code": code, "limits": {"wall_clock": 100}}}}),
    ] {
        writeln!(stdin, "{message}").unwrap();
    }
    until("a guest of two sleepers", || marked(&marker) == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the guest is gone", || marked(&marker) == 0);
}
