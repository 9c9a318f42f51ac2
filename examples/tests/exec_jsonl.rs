//! `exec_jsonl` as another language sees it: lines in, lines out.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{answer, entries, lines, reason, session, session_of, stdout};

/// A scratch directory that the guest's uid can reach.
fn directory() -> tempfile::TempDir {
    let open = std::fs::Permissions::from_mode(0o755);
    tempfile::Builder::new()
        .prefix("varek-test-")
        .permissions(open)
        .tempdir()
        .unwrap()
}

#[test]
fn a_bad_line_is_answered_and_the_session_goes_on() {
    let input = b"not json\n{\"id\":1}\n{\"id\":2,\"program\":\"true\",\"nonsense\":1}\n\xff\xfe\n\n\
                  {\"id\":3,\"program\":\"tr\xc3\"}\n[1,2]\n{\"id\":4,\"program\":\"true\",\"limits\":{\"memroy\":1}}\n\
                  {\"id\":5,\"program\":\"true\",\"namespaces\":[\"time\"]}";
    let responses = session_of(&[], &input[..]);
    let seen: Vec<_> = responses
        .iter()
        .map(|r| {
            (
                r["line"].as_u64().unwrap(),
                r["id"].clone(),
                r["status"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (1, Value::Null, "invalid"),
            (2, json!(1), "invalid"),
            (3, json!(2), "invalid"),
            (4, Value::Null, "invalid"),
            (6, json!(3), "invalid"),
            (7, Value::Null, "invalid"),
            (8, json!(4), "invalid"),
            (9, json!(5), "invalid"),
        ]
    );
    assert!(reason(&responses[2], "invalid").contains("nonsense"));
    assert!(reason(&responses[6], "invalid").contains("memroy"));
}

#[test]
fn a_policy_that_contradicts_itself_is_invalid_with_every_problem() {
    let response = answer(&json!({"program": "true", "limits": {"pids": 0, "open_files": 1}}));
    let reason = reason(&response, "invalid");
    assert!(
        reason.contains("limits.pids") && reason.contains("limits.open_files"),
        "{reason}"
    );
}

#[test]
fn sockets_named_beside_the_network_are_invalid_and_the_network_is_named() {
    let groups = json!({"syscalls": {"groups": ["network"]}});
    let responses = session(&[
        json!({"program": "true", "network": {"tcp": {}}}),
        json!({"program": "true", "overrides": groups}),
    ]);
    assert!(reason(&responses[0], "invalid").contains("choose denied"));
    assert!(reason(&responses[1], "invalid").contains("the group network"));
}

#[test]
fn a_line_over_the_bound_is_invalid_and_the_next_one_is_answered() {
    let long = json!({"id": "long", "code": "x".repeat(2 << 20)});
    let responses = session_of(&["--longest-line", "1"], format!("{long}\n{{}}\n"));
    assert!(reason(&responses[0], "invalid").contains("at most 1048576"));
    assert_eq!(responses[1]["line"], 2);
}

#[test]
fn namespaces_are_the_guests_own_or_refused() {
    guests_or_return!();
    let response = answer(&json!({
        "code": "import os; print(os.getpid())", "namespaces": ["pid"]
    }));
    // They take root with CAP_SYS_ADMIN.
    if response["status"] == "unsupported" {
        assert!(reason(&response, "unsupported").contains("namespaces"));
        return;
    }
    assert_eq!(response["outcome"]["stdout"]["text"], "2\n", "{response}");
}

#[test]
fn a_program_that_cannot_start_is_a_spawn_error_and_one_that_can_is_not() {
    guests_or_return!();
    let script = directory();
    let plain = script.path().join("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let responses = session(&[
        json!({"program": "no-such-program"}),
        json!({"program": "/no/such/program"}),
        json!({"program": plain}),
        json!({"program": "cat", "arguments": ["x".repeat(131_072)]}),
        json!({"program": "cat", "arguments": ["nul\u{0}"]}),
        json!({"program": "cat", "stdin": {"file": "/no/such/file"}}),
        json!({"program": "cat", "stdin": {"file": "/"}}),
        json!({"program": "cat", "scratch": "/no/such/directory"}),
        json!({"program": "cat", "working_directory": "/no/such/directory"}),
    ]);
    for response in &responses {
        assert!(!reason(response, "spawn_error").is_empty(), "{response}");
    }
    assert!(reason(&responses[3], "spawn_error").contains("131071"));
    assert_eq!(
        stdout(&answer(&json!({"program": "cat", "stdin": "in"}))),
        "in"
    );
}

#[test]
fn an_outcome_carries_the_id_the_evidence_and_the_figures() {
    guests_or_return!();
    let id = json!({"a": [1, "é"]});
    let response = answer(&json!({"id": id, "code": "import os; os.system('id')", "events": true}));
    assert_eq!(response["id"], id);
    assert_eq!(stdout(&response), "");
    let outcome = &response["outcome"];
    assert_eq!(outcome["violation"]["denied"]["syscall"], "execve");
    assert_eq!(outcome["denials"]["execve"]["count"], 1);
    assert_eq!(outcome["cleanup"], "complete");
    assert!(
        response["summary"]
            .as_str()
            .unwrap()
            .contains("denied execve")
    );
    assert!(response["seconds"]["wall_clock"].as_f64().unwrap() > 0.0);
    assert!(response["policy"].as_str().unwrap().starts_with("sha256:"));

    let events = response["events"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!(
        (of("run_started"), of("syscall_denied"), of("run_finished")),
        (1, 1, 1)
    );
    assert_eq!(response["events_omitted"], 0);
    assert!(events.iter().all(|event| event["run"] == outcome["run"]));
    assert_eq!(answer(&json!({"code": ""})).get("events"), None);
}

/// What `python3 -c`, outside of any sandbox, makes of the same code.
fn plain(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_a_guest_gives_to_denied_calls_is_in_a_response_where_full_arguments_were_asked_for() {
    const SECRET: &str = "planted-in-the-environment";
    guests_or_return!();
    let code = "import os, sys\ntry: os.execv(os.environ['TOKEN'], ['x'])\nexcept OSError: pass";
    let request = |detail: Option<&str>| {
        json!({
            "code": code,
            "arguments": ["an-argument"],
            "environment": {"TOKEN": SECRET},
            "events": true,
            "record_arguments": detail,
        })
    };
    let shown = format!(r#"execve(unverified:"{SECRET}", "#);
    let of = |detail| {
        let response = answer(&request(detail));
        let violation = response["outcome"]["violation"]["denied"]["decoded"].clone();
        (violation, response.to_string())
    };
    // A reader may come too late on a machine that does much else.
    let mut told = false;
    for _ in 0..10 {
        let (violation, response) = of(Some("full"));
        let Some(violation) = violation.as_str() else {
            return support::not_run(
                "what_a_guest_gives_to_denied_calls_is_in_a_response_where_full_arguments_were_asked_for",
                "denied calls are not reported",
            );
        };
        assert!(response.contains("an-argument"), "{response}");
        told = violation.starts_with(&shown);
        if told {
            break;
        }
    }
    assert!(told);
    for detail in [None, Some("none"), Some("digest")] {
        let (_, response) = of(detail);
        assert!(!response.contains(SECRET), "{response}");
        assert!(!response.contains("an-argument"), "{response}");
    }
}

#[test]
fn a_megabyte_of_python_behind_c_runs_as_a_short_one_would() {
    guests_or_return!();
    let short = "import sys\nfrom os import path\n\
                 def f(): return __name__, sys.argv, sorted(k for k in globals() if k[0] != '_')\n\
                 print(f(), __file__ if '__file__' in globals() else 'no file', f.__code__.co_filename)";
    let long = format!(
        "from __future__ import annotations\n{}{short}",
        "# padding, padding\n".repeat(60_000)
    );
    let short = format!("from __future__ import annotations\n{short}");
    assert!(long.len() > 1_000_000);
    let wanted = plain("python3", &["-c", &short, "one", "two"]);
    let directory = directory();
    let responses = session(&[
        json!({"program": "python3", "arguments": ["-c", short, "one", "two"]}),
        json!({"program": "python3", "arguments": ["-c", long, "one", "two"]}),
        json!({"program": "python3", "arguments": ["-I", "-X", "dev", "-c", long, "one", "two"]}),
        json!({"program": "/usr/bin/python3", "arguments": ["-c", long, "one", "two"], "working_directory": "/usr"}),
        json!({"program": "python3", "arguments": ["-c", long, "one", "two"], "working_directory": "/usr",
               "scratch": directory.path()}),
    ]);
    for response in &responses {
        assert_eq!(stdout(response), wanted);
        assert_eq!(response["outcome"]["stderr"]["total"], 0, "{response}");
        assert_eq!(response["outcome"]["violation"], Value::Null);
    }
    assert_eq!(entries(directory.path()), Vec::<String>::new());
}

#[test]
fn a_long_program_that_fails_fails_as_a_short_one_would() {
    guests_or_return!();
    let long = format!("{}raise SystemExit(7)", "# padding\n".repeat(20_000));
    let response = answer(&json!({"program": "python3", "arguments": ["-c", long]}));
    assert_eq!(
        response["outcome"]["termination"]["exited"], 7,
        "{response}"
    );
    let long = format!("{}1 // 0", "# padding\n".repeat(20_000));
    let response = answer(&json!({"program": "python3", "arguments": ["-c", long]}));
    assert_eq!(
        response["outcome"]["termination"]["exited"], 1,
        "{response}"
    );
    let stderr = response["outcome"]["stderr"]["text"].as_str().unwrap();
    assert!(stderr.contains("File \"<string>\", line 20001"), "{stderr}");
    assert!(
        stderr.ends_with("ZeroDivisionError: integer division or modulo by zero\n"),
        "{stderr}"
    );
}

#[test]
fn a_long_shell_script_behind_c_keeps_its_parameters() {
    guests_or_return!("bash");
    let script = "echo \"$0 $# $1\"; set -- x y; echo \"$@\"; exit 3";
    let long = format!("{}{script}", ": padding, padding\n".repeat(20_000));
    for (program, options) in [
        ("sh", vec!["-c"]),
        ("sh", vec!["-euc"]),
        ("bash", vec!["-o", "pipefail", "-c"]),
    ] {
        let arguments: Vec<&str> = options
            .into_iter()
            .chain([long.as_str(), "name", "one two"])
            .collect();
        let response = answer(&json!({"program": program, "arguments": arguments}));
        assert_eq!(
            response["outcome"]["termination"]["exited"], 3,
            "{response}"
        );
        assert_eq!(
            response["outcome"]["stdout"]["text"],
            "name 1 one two\nx y\n"
        );
    }
}

#[test]
fn a_long_node_program_behind_e_runs_as_a_short_one_would() {
    guests_or_return!("node");
    let short = "const os = require('os'); var v = 1; console.log(process.argv.length, __filename, typeof os.EOL)";
    let long = format!("{}{short}", "// padding, padding\n".repeat(10_000));
    let wide = json!({"limits": {"memory": null}});
    let responses = session(&[
        json!({"program": "node", "arguments": ["-e", short, "one"], "overrides": wide}),
        json!({"program": "node", "arguments": ["-e", long, "one"], "overrides": wide}),
        json!({"program": "node", "arguments": [format!("--eval={long}"), "one"], "overrides": wide}),
    ]);
    assert_eq!(stdout(&responses[0]), "2 [eval] string\n");
    assert_eq!(stdout(&responses[1]), stdout(&responses[0]));
    assert_eq!(stdout(&responses[2]), stdout(&responses[0]));
}

#[test]
fn arguments_may_be_over_a_megabyte_in_all() {
    guests_or_return!();
    let mut arguments = vec![
        "-c".to_owned(),
        "import sys; print(sum(map(len, sys.argv[1:])))".to_owned(),
    ];
    arguments.extend(std::iter::repeat_n("y".repeat(100_000), 15));
    let response = answer(&json!({"program": "python3", "arguments": arguments}));
    assert_eq!(stdout(&response), "1500000\n");
}

#[test]
fn stdin_is_a_text_bytes_a_file_or_nothing() {
    guests_or_return!();
    let directory = directory();
    let file = directory.path().join("input");
    std::fs::write(&file, "from a file").unwrap();
    let code = "import sys; print(sys.stdin.buffer.read())";
    let responses = session(&[
        json!({"code": code}),
        json!({"code": code, "stdin": "a text"}),
        json!({"code": code, "stdin": {"base64": "AP8K"}}),
        json!({"code": code, "stdin": {"file": file}}),
        json!({"code": "", "stdin": "x".repeat(1 << 20)}),
    ]);
    let read: Vec<_> = responses.iter().map(stdout).collect();
    assert_eq!(
        read,
        [
            "b''\n",
            "b'a text'\n",
            "b'\\x00\\xff\\n'\n",
            "b'from a file'\n",
            ""
        ]
    );
}

#[test]
fn files_and_code_are_in_the_scratch_directory_which_is_the_working_directory() {
    guests_or_return!();
    let response = answer(&json!({
        "code": "import os, sys\n\
                 print(sorted(os.listdir('.')), open('a/b').read(), open('c', 'rb').read(), sys.argv[1:])\n\
                 print(os.access('run', os.X_OK), os.access('c', os.X_OK), os.environ['A'])",
        "arguments": ["x"],
        "files": {"a/b": "text", "c": {"base64": "AP8="}, "run": {"text": "#!/bin/sh\n", "executable": true}},
        "environment": {"A": "b"},
    }));
    assert_eq!(
        stdout(&response),
        "['a', 'c', 'main.py', 'run'] text b'\\x00\\xff' ['x']\nTrue False b\n"
    );
}

#[test]
fn a_program_that_comes_with_the_request_runs() {
    guests_or_return!("sh");
    let script = "#!/bin/sh\necho \"ran $1\"; pwd; : > made\n";
    let responses = session(&[
        json!({"program": "./tools/run", "arguments": ["me"],
               "files": {"tools/run": {"text": script, "executable": true}}}),
        json!({"program": "./run", "files": {"run": script}}),
    ]);
    let text = stdout(&responses[0]);
    let directory = text.strip_prefix("ran me\n").unwrap().trim_end();
    // The scratch directory is the working directory here too, and gone.
    assert!(directory.starts_with('/') && !std::path::Path::new(directory).exists());
    assert!(reason(&responses[1], "spawn_error").contains("not executable"));
}

#[test]
fn a_scratch_directory_of_the_request_keeps_what_the_guest_wrote() {
    guests_or_return!();
    let directory = directory();
    std::fs::write(directory.path().join("given"), "given").unwrap();
    let response = answer(&json!({
        "program": "python3",
        "arguments": ["-c", "open('made', 'w').write(open('given').read() + ' and made')"],
        "scratch": directory.path(),
    }));
    assert_eq!(stdout(&response), "");
    assert_eq!(entries(directory.path()), ["given", "made"]);
    assert_eq!(
        std::fs::read_to_string(directory.path().join("made")).unwrap(),
        "given and made"
    );
}

#[test]
fn limits_and_grants_reach_the_kernel() {
    guests_or_return!();
    let open = directory();
    std::fs::write(open.path().join("file"), "granted").unwrap();
    let code = format!(
        "print(open({:?}).read())",
        open.path().join("file").to_str().unwrap()
    );
    let responses = session(&[
        json!({"code": code}),
        json!({"code": code, "read": [open.path()]}),
        json!({"code": "while True: pass", "limits": {"wall_clock": 0.5}}),
        json!({"code": "print('x' * 1000)", "limits": {"output": 10}}),
        json!({"code": "import time\nwhile True: print('x' * 1000)", "limits": {"output": 10}, "overflow": "kill"}),
        json!({"code": "x = bytearray(1 << 28)", "limits": {"memory": 33_554_432}}),
        json!({"code": "x = bytearray(1 << 28); print(len(x))", "limits": {"memory": null}}),
        json!({"code": "import subprocess; subprocess.run(['/bin/echo', 'ran'])",
               "overrides": {"syscalls": {"calls": ["execve"]}}}),
    ]);
    let termination = |index: usize| &responses[index]["outcome"]["termination"];
    assert_eq!(termination(0)["exited"], 1);
    assert_eq!(stdout(&responses[1]), "granted\n");
    assert_eq!(termination(2)["killed"], "wall_clock");
    assert_eq!(responses[3]["outcome"]["stdout"]["truncated"], true);
    assert_eq!(termination(4)["killed"], "output_limit");
    assert_eq!(termination(5)["killed"], "out_of_memory");
    assert_eq!(stdout(&responses[6]), "268435456\n");
    assert_eq!(stdout(&responses[7]), "ran\n");
}

#[test]
fn forty_requests_at_eight_jobs_each_get_their_own_answer() {
    guests_or_return!();
    // Three policies, so that sandboxes are made and shared while others run.
    let requests: Vec<_> = (0..40)
        .map(|n| {
            let code = format!("import sys; print({n} * {n}, sys.stdin.read()); sys.exit({n} % 5)");
            let pids = 40 + n % 3;
            json!({"id": n, "code": code, "stdin": n.to_string(), "limits": {"pids": pids}})
        })
        .collect();
    let responses = session_of(&["--jobs", "8"], lines(&requests));
    assert_eq!(responses.len(), 40);
    for (n, response) in responses.iter().enumerate() {
        assert_eq!(response["id"], n);
        assert_eq!(response["line"], n + 1);
        let outcome = &response["outcome"];
        assert_eq!(
            outcome["stdout"]["text"],
            format!("{} {n}\n", n * n),
            "{response}"
        );
        assert_eq!(outcome["termination"]["exited"], n % 5);
        assert_eq!(outcome["cleanup"], "complete");
    }
    let policies: std::collections::BTreeSet<_> = responses
        .iter()
        .map(|response| response["policy"].to_string())
        .collect();
    assert_eq!(policies.len(), 3);
}

#[test]
fn a_response_comes_while_another_request_still_runs() {
    guests_or_return!();
    let mut child = Command::new(env!("CARGO_BIN_EXE_exec_jsonl"))
        .args(["--jobs", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let directory = directory();
    let fifo = directory.path().join("go");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    // The first guest waits for a line that is written only after the second one's response.
    let first =
        json!({"id": "first", "code": "print(open('go').read())", "scratch": directory.path()});
    let second = json!({"id": "second", "code": "print(2)"});
    stdin
        .write_all(format!("{first}\n{second}\n").as_bytes())
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let response: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(response["id"], "second");
    std::fs::write(&fifo, "go").unwrap();
    let response: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&response["id"], stdout(&response)),
        (&json!("first"), "go\n")
    );
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_goes_away_ends_the_session_quietly_and_kills_what_runs() {
    guests_or_return!();
    let mut child = Command::new(env!("CARGO_BIN_EXE_exec_jsonl"))
        .args(["--jobs", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let forever = json!({"code": "while True: pass", "limits": {"wall_clock": "1h"}});
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin
        .write_all(format!("{forever}\n{{\"code\":\"\"}}\n").as_bytes())
        .unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("\"line\":2"), "{line}");
    drop(stdout);
    // Its answer finds nobody; stdin stays open, so that nothing else ends the session.
    stdin.write_all(b"{}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    drop(stdin);
}

/// The documentation of the format.
const PAGE: &str = include_str!("../../docs/exec-jsonl.md");

#[test]
fn the_examples_of_the_documentation_are_answered_as_it_says() {
    guests_or_return!();
    let block = PAGE.split("```json\n").nth(1).unwrap();
    let requests = block.split("```").next().unwrap();
    let responses = session_of(&[], requests);
    assert_eq!(responses.len(), requests.lines().count());
    for response in &responses {
        if response["id"] == "d" {
            assert_eq!(response["outcome"]["termination"]["killed"], "wall_clock");
        } else {
            assert!(!stdout(response).is_empty(), "{response}");
            assert_eq!(response["outcome"]["violation"], Value::Null, "{response}");
        }
    }
}

#[test]
fn every_field_is_in_the_help_and_in_the_documentation() {
    let help = support::run(env!("CARGO_BIN_EXE_exec_jsonl"), &["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let response = answer(&json!({"program": "true", "?": 1}));
    // The refusal lists every field there is.
    let (_, known) = reason(&response, "invalid")
        .split_once("expected one of")
        .unwrap();
    let fields: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    assert!(
        fields.len() > 20 && fields.contains(&"working_directory"),
        "{fields:?}"
    );
    for field in fields {
        assert!(help.contains(field), "{field}");
        assert!(PAGE.contains(&format!("`{field}`")), "{field}");
    }
}

#[test]
fn help_shows_the_format() {
    let output = support::run(env!("CARGO_BIN_EXE_exec_jsonl"), &["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "working_directory",
        "best_effort",
        "spawn_error",
        "{\"code\": \"print(2 + 2)\"}",
    ] {
        assert!(text.contains(word), "{word}");
    }
}
