//! What a guest writes is bounded, complete up to the bound, and never in the embedder's way; what it is
//! given to read arrives, and holds nobody up where it is not read.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};

use support::{assert_clean, assert_gone, assert_killed, hit, hits, python, run, seconds, text};
use varek_core::{
    Cause, Command, Input, MIB, Output, Overflow, Policy, Resource, Termination, Violation,
};

/// The numbers from 0 on, six digits and a newline each, `count` of them.
fn numbers(count: usize) -> String {
    (0..count).fold(String::new(), |text, n| text + &format!("{n:06}\n"))
}

fn write_numbers(count: usize) -> String {
    format!("import sys\nsys.stdout.write(''.join('%06d\\n' % n for n in range({count})))")
}

/// Memory of this process in bytes, by the key of /proc/self/status.
fn memory(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    let number: u64 = line
        .trim_matches([':', ' ', '\t'])
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    number * 1024
}

// ---- capture ----

#[test]
fn both_streams_are_captured_apart_and_whole() {
    let sandbox = sandbox!(python());
    let source = "import os\nos.write(1, b'out'); os.write(2, b'err'); os.write(1, b'put'); os.write(2, b'or')";
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.bytes, b"output");
    assert_eq!(outcome.stderr.bytes, b"error");
    assert_eq!((outcome.stdout.total, outcome.stdout.cut), (6, None));
    assert_eq!((outcome.stderr.total, outcome.stderr.cut), (5, None));

    let outcome = run(&sandbox, "");
    assert_clean(&outcome);
    assert_eq!((outcome.stdout.total, outcome.stderr.total), (0, 0));
}

#[test]
fn output_up_to_the_bound_is_whole_and_one_byte_more_is_cut() {
    let sandbox = sandbox!(python().output(7000, Overflow::Truncate));
    let outcome = run(&sandbox, &write_numbers(1000));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), numbers(1000));
    assert!(!outcome.stdout.truncated());

    let outcome = run(&sandbox, &(write_numbers(1000) + "\nprint()"));
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.total, 7001);
    assert_eq!(outcome.stdout.omitted(), 1);
    assert_eq!(outcome.stdout.cut, Some(3500));
    assert_eq!(outcome.stdout.bytes[..3500], numbers(500).as_bytes()[..]);
}

#[test]
fn truncated_output_has_its_head_and_its_tail_and_is_no_violation() {
    let sandbox = sandbox!(python().output(1400, Overflow::Truncate));
    let outcome = run(&sandbox, &write_numbers(100_000));
    assert_clean(&outcome);
    let whole = numbers(100_000);
    let captured = &outcome.stdout;
    assert_eq!(captured.total, whole.len() as u64);
    assert_eq!(captured.bytes.len(), 1400);
    assert_eq!(captured.omitted(), whole.len() as u64 - 1400);
    assert_eq!(captured.cut, Some(700));
    assert_eq!(captured.bytes[..700], whole.as_bytes()[..700]);
    assert_eq!(captured.bytes[700..], whole.as_bytes()[whole.len() - 700..]);
    assert!(
        captured
            .to_text()
            .contains(&format!("[{} bytes omitted]", captured.omitted()))
    );
    assert!(hits(&outcome, Resource::Output).is_empty(), "{outcome}");
    // The bound is one of each stream.
    assert!(!outcome.stderr.truncated());
}

#[test]
fn output_over_the_bound_kills_where_the_policy_says_so() {
    let sandbox = sandbox!(python().output(MIB, Overflow::Kill));
    for stream in ["stdout", "stderr"] {
        let source = format!("import sys\nwhile True: sys.{stream}.write('x' * 65536)");
        let outcome = run(&sandbox, &source);
        assert_killed(&outcome, &Cause::OutputLimit);
        let output = hit(&outcome, Resource::Output);
        assert_eq!(output.limit, Some(MIB));
        assert!(output.count > MIB, "{output}");
        let captured = if stream == "stdout" {
            &outcome.stdout
        } else {
            &outcome.stderr
        };
        assert!(captured.total > MIB);
        assert_eq!(captured.bytes.len() as u64, MIB);
    }
    let outcome = run(
        &sandbox,
        "import sys\nsys.stdout.write('x' * (1 << 20)); sys.stderr.write('x' * (1 << 20))",
    );
    assert_clean(&outcome);
}

#[test]
fn output_over_the_bound_is_a_violation_however_soon_the_guest_exits() {
    let sandbox = sandbox!(python().output(1000, Overflow::Kill));
    for _ in 0..10 {
        let outcome = run(&sandbox, "import os\nos.write(1, b'x' * 1001)\nos._exit(0)");
        // Its exit can be faster than its killer; the verdict cannot miss it.
        assert!(
            matches!(
                outcome.termination,
                Termination::Killed(Cause::OutputLimit) | Termination::Exited(0)
            ),
            "{outcome}"
        );
        assert_eq!(hit(&outcome, Resource::Output).limit, Some(1000));
        assert!(
            matches!(outcome.violation(), Some(Violation::Limit(_))),
            "{outcome}"
        );
        assert_gone(&outcome);
    }
}

#[test]
fn a_flood_of_output_costs_the_embedder_no_memory() {
    let sandbox = sandbox!(python().wall_clock(seconds(120)));
    let flood = "import os\nb = b'x' * (1 << 20)\nfor n in range(200):\n\x20   v = memoryview(b)\n\x20   while v: v = v[os.write(1, v):]";
    assert_clean(&run(&sandbox, "print()"));
    let before = memory("VmHWM");
    let outcome = run(&sandbox, flood);
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.total, 200 * MIB);
    assert_eq!(outcome.stdout.bytes.len() as u64, MIB);
    // Other tests run in this process at the same time, none of which needs as much by far.
    let grown = memory("VmHWM") - before;
    assert!(grown < 64 * MIB, "{grown} bytes");
}

#[test]
fn bytes_that_are_no_text_arrive_as_they_are() {
    let outcome = run(
        &sandbox!(python()),
        "import os\nos.write(1, bytes(range(256)) * 4)",
    );
    assert_clean(&outcome);
    let expected: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(4);
    assert_eq!(outcome.stdout.bytes, expected);
    let json = serde_json::to_value(&outcome).unwrap();
    assert!(json["stdout"]["base64"].is_string(), "{json}");
    assert_eq!(json["stdout"]["total"], 1024);
}

#[test]
fn a_guest_that_closes_its_streams_runs_on() {
    let source = "import os\nos.write(1, b'before')\nfor fd in [0, 1, 2]: os.close(fd)\n\
                  open('ran', 'w').close()\nos._exit(7 if os.path.exists('ran') else 8)";
    let outcome = run(&sandbox!(python()), source);
    assert_eq!(outcome.termination, Termination::Exited(7), "{outcome}");
    assert_eq!(text(&outcome), "before");
    assert_gone(&outcome);
}

// ---- files and nothing ----

#[test]
fn output_goes_to_a_file_and_to_nothing() {
    let sandbox = sandbox!(python());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let source = "import os, sys\nprint('to the file', os.path.basename(os.readlink('/proc/self/fd/2')))\n\
                  print('lost', file=sys.stderr)";
    let command = Command::python(source)
        .stdout(File::create(&path).unwrap())
        .stderr(Output::null());
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "to the file null\n"
    );
    assert_eq!((outcome.stdout.total, outcome.stderr.total), (0, 0));

    // `output` captures wherever the command sends its streams.
    let command = Command::python(source)
        .stdout(File::create(&path).unwrap())
        .stderr(Output::null());
    let outcome = sandbox.output(command).unwrap();
    assert!(text(&outcome).starts_with("to the file"));
    assert_eq!(outcome.stderr.to_text(), "lost\n");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn a_file_as_output_is_bounded_by_the_file_size() {
    let mut policy = python();
    policy.limits.file_size = Some(MIB);
    let path = tempfile::NamedTempFile::new().unwrap();
    let source = "import os\ntry:\n\x20   while True: os.write(1, b'x' * 65536)\nexcept OSError as e: os._exit(e.errno)";
    let command = Command::python(source).stdout(path.reopen().unwrap());
    let outcome = sandbox!(policy).run(command).unwrap();
    // EFBIG.
    assert_eq!(outcome.termination, Termination::Exited(27), "{outcome}");
    assert_eq!(path.as_file().metadata().unwrap().len(), MIB);
}

// ---- stdin ----

const ECHO: &str = "import sys, shutil\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)";

#[test]
fn stdin_is_empty_unless_it_is_said() {
    let sandbox = sandbox!(python());
    let source = "import os, sys\nprint(repr(sys.stdin.read()), os.path.basename(os.readlink('/proc/self/fd/0')))";
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "'' null\n");
    let outcome = sandbox.run(Command::python(ECHO).stdin("")).unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.total, 0);
}

#[test]
fn input_larger_than_a_pipe_comes_back_whole() {
    let sandbox = sandbox!(python().output(8 * MIB, Overflow::Kill));
    for size in [1, 65_536, 65_537, 1 << 20, 5 << 20] {
        let bytes: Vec<u8> = (0..=250).cycle().take(size).collect();
        let outcome = sandbox
            .run(Command::python(ECHO).stdin(bytes.clone()))
            .unwrap();
        assert_clean(&outcome);
        assert!(outcome.stdout.bytes == bytes, "{size} bytes");
    }
}

#[test]
fn input_that_is_never_read_holds_nobody_up() {
    let sandbox = sandbox!(python());
    for source in [
        "print('done')",
        "import os\nos.close(0)\nprint('done')",
        "import sys\nsys.stdin.read(10)\nprint('done')",
    ] {
        let outcome = sandbox
            .run(Command::python(source).stdin(vec![b'x'; 4 << 20]))
            .unwrap();
        assert_clean(&outcome);
        assert_eq!(text(&outcome), "done\n");
    }
}

#[test]
fn a_file_as_input_is_read_from_where_it_is() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"skipped, then read").unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(9)).unwrap();
    let outcome = sandbox!(python())
        .run(Command::python(ECHO).stdin(file))
        .unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "then read");
}

#[test]
fn a_guest_and_its_embedder_can_talk_line_by_line() {
    let sandbox = sandbox!(python());
    let source =
        "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)\nprint('end')";
    let command = Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for n in 0..50 {
        writeln!(stdin, "{n}").unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("got {n}\n"));
    }
    stdin.flush().unwrap();
    drop(stdin);
    line.clear();
    stdout.read_to_string(&mut line).unwrap();
    assert_eq!(line, "end\n");
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(
        outcome.stdout.bytes, b"",
        "streamed output is not captured as well"
    );
    assert!(outcome.stdout.total > 0);
}

#[test]
fn writing_to_a_guest_that_is_gone_is_a_broken_pipe() {
    let sandbox = sandbox!(python());
    let mut child = sandbox
        .spawn(Command::python("").stdin(Input::piped()))
        .unwrap();
    assert_clean(&child.wait().unwrap());
    let mut stdin = child.stdin.take().unwrap();
    let error = stdin.write_all(&vec![0; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn more_than_a_pipe_of_input_is_written_as_the_guest_reads_it() {
    let sandbox = sandbox!(python());
    let source = "import sys, hashlib\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())";
    let mut child = sandbox
        .spawn(Command::python(source).stdin(Input::piped()))
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..64 {
        stdin.write_all(&vec![b'v'; 65_536]).unwrap();
    }
    drop(stdin);
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    let expected =
        support::unconfined("import hashlib\nprint(hashlib.sha256(b'v' * (64 << 16)).hexdigest())");
    assert_eq!(text(&outcome), expected);
}

// ---- streams ----

#[test]
fn a_slow_reader_gets_everything_in_order() {
    let sandbox = sandbox!(python().wall_clock(seconds(60)));
    let count = 400_000;
    let command = Command::python(write_numbers(count)).stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut read, mut chunk) = (Vec::new(), [0; 1013]);
    loop {
        let length = stdout.read(&mut chunk).unwrap();
        if length == 0 {
            break;
        }
        read.extend_from_slice(&chunk[..length]);
        std::thread::yield_now();
    }
    assert!(read == numbers(count).into_bytes(), "{} bytes", read.len());
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.total, read.len() as u64);
}

#[test]
fn a_reader_that_does_not_read_holds_the_guest_back_and_nobody_else() {
    let sandbox = sandbox!(python());
    let source = "import os, sys\nb = b'x' * 65536\nfor n in range(160):\n\x20   os.write(1, b)\nopen('through', 'w')";
    let mut child = sandbox
        .spawn(Command::python(source).stdout(Output::piped()))
        .unwrap();
    // Another guest of the same supervisor runs from start to end.
    assert_clean(&run(&sandbox, "print(1)"));
    assert!(
        child.try_wait().unwrap().is_none(),
        "10 MiB are more than any buffer on the way"
    );
    let mut read = 0;
    let mut stdout = child.stdout.take().unwrap();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match stdout.read(&mut chunk).unwrap() {
            0 => break,
            length => read += length as u64,
        }
    }
    assert_eq!(read, 10 * MIB);
    assert_clean(&child.wait().unwrap());
}

#[test]
fn a_guest_held_back_by_its_reader_still_meets_its_deadline() {
    let sandbox = sandbox!(python().wall_clock(seconds(2)));
    let source = "import os\nwhile True: os.write(1, b'x' * 65536)";
    let mut child = sandbox
        .spawn(Command::python(source).stdout(Output::piped()))
        .unwrap();
    let outcome = child.wait().unwrap();
    assert_killed(&outcome, &Cause::WallClock);
    // What was in the buffers can still be read, to its end.
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() as u64, outcome.stdout.total);
}

#[test]
fn output_without_a_reader_is_thrown_away_and_the_guest_goes_on() {
    let sandbox = sandbox!(python());
    let source =
        "import os\nfor n in range(320): os.write(1, b'x' * 65536)\nos.write(2, b'through')";
    let mut child = sandbox
        .spawn(Command::python(source).stdout(Output::piped()))
        .unwrap();
    // From the start, and in the middle.
    drop(child.stdout.take());
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stderr.to_text(), "through");
    assert_eq!(outcome.stdout.total, 20 * MIB);

    let mut child = sandbox
        .spawn(Command::python(source).stdout(Output::piped()))
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut vec![0; 1 << 20]).unwrap();
    drop(stdout);
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stderr.to_text(), "through");
}

#[test]
fn both_streams_can_be_read_at_the_same_time() {
    let sandbox = sandbox!(python());
    let source = "import os\nfor n in range(64):\n\x20   os.write(1, b'o' * 65536); os.write(2, b'e' * 65536)";
    let command = Command::python(source)
        .stdout(Output::piped())
        .stderr(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    std::thread::scope(|scope| {
        let out = scope.spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() == 4 << 20 && bytes.iter().all(|byte| *byte == b'e'));
        let bytes = out.join().unwrap().unwrap();
        assert!(bytes.len() == 4 << 20 && bytes.iter().all(|byte| *byte == b'o'));
    });
    assert_clean(&child.wait().unwrap());
}

#[test]
fn a_reader_that_goes_away_sends_the_guest_no_sigpipe() {
    // yes(1) would die of it; VAREK reads on, so that it runs until its deadline.
    let policy = Policy::native().wall_clock(seconds(1));
    let mut child = sandbox!(policy)
        .spawn(Command::new("yes").stdout(Output::piped()))
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 2]).unwrap();
    drop(stdout);
    assert_killed(&child.wait().unwrap(), &Cause::WallClock);
}
