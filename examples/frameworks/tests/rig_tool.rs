//! The example of a Rig tool: the whole loop of its agent, and the tool by itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "../examples/rig_tool.rs"]
#[allow(dead_code, reason = "its `main` is run as a program")]
mod rig_tool;
#[path = "../../tests/support/host.rs"]
mod support;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rig_core::tool::{ErasedTool as _, Tool as _, ToolContext, tool_definition};
use rustix::fs::{FileType, Mode};
use serde_json::{Value, json};
use varek_core::{Error, Policy};

use self::rig_tool::RunPython;

fn tool() -> RunPython {
    RunPython::new(Policy::python().wall_clock(Duration::from_secs(20))).unwrap()
}

/// What Rig makes of a call with these arguments: the text for the model, and whether it counts as an error.
async fn called(tool: &RunPython, arguments: Value) -> (String, bool) {
    let result = tool
        .execute(arguments.to_string(), &mut ToolContext::new())
        .await;
    let text = result.output().as_text().unwrap_or_default().to_owned();
    (text, result.is_error())
}

#[test]
fn the_agent_s_answer_depends_on_what_became_of_three_programs() {
    reports_or_return!();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rig_tool.rs");
    let output = Command::new(support::example(&source))
        .stdin(Stdio::null())
        // No key, and no place to find one.
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let answer = String::from_utf8(output.stdout).unwrap();
    let (first, rest) = answer.split_once("2. ").unwrap();
    let (second, third) = rest.split_once("3. ").unwrap();
    assert!(
        first.contains("exit code 0 (success)") && first.contains("\n| 229\n"),
        "{answer}"
    );
    assert!(
        second.contains("no other programs: execve was refused"),
        "{answer}"
    );
    assert!(second.contains("PermissionError"), "{answer}");
    assert!(
        third.contains("still running at its time limit of 2 s"),
        "{answer}"
    );
}

#[tokio::test]
async fn what_a_guest_does_is_output_and_no_error() {
    guests_or_return!();
    let tool = tool();
    let code = json!({"code": "print(input())", "stdin": "hello\n"});
    let (text, error) = called(&tool, code).await;
    assert!(
        text.contains("exit code 0") && text.contains("| hello"),
        "{text}"
    );
    assert!(!error);
    let (text, error) = called(&tool, json!({"code": "1 / 0"})).await;
    assert!(
        text.contains("exit code 1") && text.contains("ZeroDivisionError"),
        "{text}"
    );
    assert!(!error);
}

#[tokio::test]
async fn that_nothing_can_be_run_is_an_error_whose_text_the_model_does_not_see() {
    guests_or_return!();
    let mut policy = Policy::python();
    policy.search_path = vec!["/nowhere".into()];
    let tool = RunPython::new(policy).unwrap();
    let arguments = serde_json::from_value(json!({"code": ""})).unwrap();
    let direct = tool.call(&mut ToolContext::new(), arguments).await;
    assert!(
        matches!(direct, Err(Error::ProgramNotFound { .. })),
        "{direct:?}"
    );
    let result = tool
        .execute(r#"{"code": ""}"#.into(), &mut ToolContext::new())
        .await;
    let error = result.error().unwrap();
    assert!(
        error.message().contains("/nowhere") && error.is::<Error>(),
        "{error}"
    );
    assert!(!result.output().as_text().unwrap().contains("/nowhere"));
}

#[tokio::test]
async fn arguments_that_the_schema_does_not_have_are_refused() {
    guests_or_return!();
    let tool = tool();
    let definition = tool_definition(&tool);
    assert_eq!(definition.name, "run_python");
    assert!(
        definition.description.contains("20 s"),
        "{}",
        definition.description
    );
    let (text, error) = called(&tool, json!({"code": "", "network": true})).await;
    assert!(error && text.contains("network"), "{text}");
    let (text, error) = called(&tool, json!({})).await;
    assert!(error && text.contains("code"), "{text}");
}

#[tokio::test]
async fn a_long_output_keeps_its_head_and_its_tail() {
    guests_or_return!();
    let code = "print('head')\nprint('ä' * 100_000)\nprint('tail')";
    let (text, _) = called(&tool(), json!({"code": code})).await;
    assert!(
        text.contains("| head\n") && text.contains("| tail"),
        "{text}"
    );
    assert!(text.contains("bytes left out"), "{text}");
    assert!(text.len() <= 4_000, "{}", text.len());
}

#[tokio::test]
async fn a_call_that_the_agent_drops_kills_its_guest() {
    guests_or_return!();
    // The guest holds a pipe open for writing; its reader sees the end when the guest is gone.
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let everybody = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(directory.path(), everybody(0o755)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    std::fs::set_permissions(&pipe, everybody(0o666)).unwrap();

    let tool = RunPython::new(Policy::python().write(directory.path())).unwrap();
    let code =
        format!("import time\nf = open({pipe:?}, 'w')\nf.write('x')\nf.flush()\ntime.sleep(3600)");
    let call = tokio::spawn(async move { called(&tool, json!({"code": code})).await });
    let reader = tokio::task::spawn_blocking(move || {
        let mut file = File::open(pipe).unwrap();
        let mut byte = [0];
        file.read_exact(&mut byte).unwrap();
        (file, byte)
    });
    let (mut file, byte) = reader.await.unwrap();
    assert_eq!(byte, *b"x");
    assert!(!call.is_finished());
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let rest = tokio::task::spawn_blocking(move || file.read(&mut [0]).unwrap());
    assert_eq!(rest.await.unwrap(), 0);
}
