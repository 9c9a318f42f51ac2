//! Output reaches the embedder's code as it comes, input goes in while a guest runs, and neither code that is slow, blocks or
//! panics, nor a guest that does not read, holds up anything but itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use support::{assert_clean, assert_gone, assert_killed, python, run, seconds, text};
use varek_core::{Cause, Command, Input, KIB, Output, Overflow, Policy};

type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

fn seen() -> (Seen, impl FnMut(&[u8]) + Send + 'static) {
    let seen = Seen::default();
    let into = seen.clone();
    (seen, move |bytes: &[u8]| {
        into.lock().unwrap().push(bytes.to_vec());
    })
}

fn concat(seen: &Seen) -> Vec<u8> {
    seen.lock().unwrap().concat()
}

/// Blocks for as long as the other end is there.
fn wait_for_end(end: &Receiver<()>) {
    end.recv().unwrap_err();
}

#[test]
fn a_callback_has_everything_when_run_returns_and_so_has_the_outcome() {
    let sandbox = sandbox!(python().output(4 * KIB, Overflow::Truncate));
    let (out, on_out) = seen();
    let (err, on_err) = seen();
    let source = "import sys
for n in range(20000): sys.stdout.write('%06d\\n' % n)
sys.stderr.write('done')";
    let command = Command::python(source).on_stdout(on_out).on_stderr(on_err);
    let outcome = sandbox.output(command).unwrap();
    assert_clean(&outcome);
    let whole: Vec<_> = (0..20_000).map(|n| format!("{n:06}\n")).collect();
    assert_eq!(concat(&out), whole.concat().as_bytes());
    assert_eq!(concat(&err), b"done");
    assert!(
        out.lock()
            .unwrap()
            .iter()
            .all(|chunk| (1..=64 << 10).contains(&chunk.len()))
    );
    // The capture has its bound all the same.
    assert_eq!(
        (outcome.stdout.total, outcome.stdout.bytes.len()),
        (140_000, 4096)
    );
    assert_eq!(outcome.stderr.bytes, b"done");
}

#[test]
fn output_comes_while_the_guest_runs() {
    let sandbox = sandbox!(python());
    let (said, heard) = channel();
    let command = Command::python("print('ready', flush=True)\nprint(input())")
        .stdin(Input::piped())
        .on_stdout_lines(100, move |line| said.send(line.to_vec()).unwrap());
    let mut child = sandbox.spawn(command).unwrap();
    assert_eq!(heard.recv_timeout(seconds(10)).unwrap(), b"ready\n");
    assert_eq!(child.try_wait().unwrap(), None);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(heard.recv_timeout(seconds(10)).unwrap(), b"go\n");
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "ready\ngo\n");
    // And nothing more: the callback is gone.
    heard.recv().unwrap_err();
}

#[test]
fn lines_come_one_by_one_and_one_that_is_too_long_in_pieces() {
    let sandbox = sandbox!(python());
    let (lines, on_line) = seen();
    let source = "import os\nfor part in [b'a', b'b\\n\\n', b'x' * 25, b'\\n\\xff', b'end']: os.write(1, part)";
    let outcome = sandbox
        .run(Command::python(source).on_stdout_lines(10, on_line))
        .unwrap();
    assert_clean(&outcome);
    let wanted: [&[u8]; 6] = [
        b"ab\n",
        b"\n",
        b"xxxxxxxxxx",
        b"xxxxxxxxxx",
        b"xxxxx\n",
        b"\xffend",
    ];
    assert_eq!(*lines.lock().unwrap(), wanted);
}

#[test]
fn a_callback_that_panics_is_not_called_again_and_changes_no_outcome() {
    let sandbox = sandbox!(python());
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let source = "import sys\nfor n in range(100000): print('%09d' % n)\nsys.stderr.write('after')";
    let (err, on_err) = seen();
    let command = Command::python(source)
        .on_stdout(move |_| {
            *counted.lock().unwrap() += 1;
            panic!("made by this test");
        })
        .on_stderr(on_err);
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.stdout.total, 1_000_000);
    assert_eq!(*calls.lock().unwrap(), 1);
    assert_eq!(concat(&err), b"after");
    assert_clean(&run(&sandbox, "print('and on')"));
}

#[test]
fn a_callback_that_blocks_holds_up_neither_the_deadline_nor_another_run_nor_the_end() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)).grace(seconds(1)));
    let (_end, ends) = channel::<()>();
    let ends = Mutex::new(ends);
    let source = "while True: print('x' * 1000)";
    let command = Command::python(source).on_stdout(move |_| wait_for_end(&ends.lock().unwrap()));
    let mut child = sandbox.spawn(command).unwrap();
    // The same supervisor, meanwhile.
    let (out, on_out) = seen();
    let other = sandbox
        .run(Command::python("print('other')").on_stdout(on_out))
        .unwrap();
    assert_clean(&other);
    assert_eq!(concat(&out), b"other\n");
    let outcome = child.wait().unwrap();
    assert_killed(&outcome, &Cause::WallClock);
    // It was held back: what was taken is what is kept for a callback, and what was captured.
    assert!(outcome.stdout.total < 2 << 20, "{outcome}");
    assert_eq!(child.wait().unwrap(), outcome);
}

#[test]
fn a_callback_may_run_guests_and_kill_its_own() {
    let sandbox = sandbox!(python());
    let within = sandbox.clone();
    let (said, heard) = channel();
    let command =
        Command::python("print('start', flush=True)\nwhile True: pass").on_stdout(move |_| {
            let outcome = within.run(Command::python("print('inner')")).unwrap();
            said.send(text(&outcome)).unwrap();
        });
    let mut child = sandbox.spawn(command).unwrap();
    assert_eq!(heard.recv_timeout(seconds(30)).unwrap(), "inner\n");
    child.kill();
    let outcome = child.wait().unwrap();
    assert_gone(&outcome);
}

#[test]
fn output_over_its_limit_kills_with_a_callback_too() {
    let sandbox = sandbox!(python().output(KIB, Overflow::Kill));
    let (out, on_out) = seen();
    let command = Command::python("while True: print('x' * 1000)").on_stdout(on_out);
    let outcome = sandbox.run(command).unwrap();
    assert_killed(&outcome, &Cause::OutputLimit);
    assert!(concat(&out).len() as u64 > KIB);
}

#[test]
fn a_callback_is_dropped_where_nothing_could_be_started() {
    let sandbox = sandbox!(python());
    let (said, heard) = channel::<()>();
    let command = Command::new("/nowhere/at/all").on_stdout(move |_| said.send(()).unwrap());
    sandbox.run(command).unwrap_err();
    heard.recv().unwrap_err();
    // Its loader is missing: the set-up fails when the thread is there.
    let (said, heard) = channel::<()>();
    let command = Command::new("./broken")
        .executable("broken", "#!/nowhere/at/all\n")
        .on_stdout(move |_| said.send(()).unwrap());
    sandbox.run(command).unwrap_err();
    heard.recv().unwrap_err();
}

// ---- input ----

#[test]
fn a_guest_that_never_reads_lets_its_writer_go_at_the_deadline() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)));
    let command = Command::python("while True: pass").stdin(Input::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than the pipe and the queue hold, from the thread that is to wait: it is not alone in it.
    let written = stdin.write_all(&vec![b'x'; 4 << 20]);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_killed(&child.wait().unwrap(), &Cause::WallClock);
}

#[test]
fn dropping_stdin_is_end_of_file_and_the_output_goes_on() {
    let sandbox = sandbox!(python());
    let source =
        "import sys\ndata = sys.stdin.read()\nprint(len(data), flush=True)\nprint('still here')";
    let command = Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 1 << 20]).unwrap();
    drop(stdin);
    let mut output = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    assert_eq!(output, "1048576\nstill here\n");
    assert_clean(&child.wait().unwrap());
}

#[test]
fn a_guest_that_writes_before_it_reads_cannot_deadlock_an_embedder_that_writes_before_it_reads() {
    let sandbox = sandbox!(Policy::python().wall_clock(seconds(20)));
    // Both have more to say than any pipe holds; the callback takes the output meanwhile.
    let source = "import sys\nsys.stdout.write('o' * (1 << 21)); sys.stdout.flush()\nprint(len(sys.stdin.read()))";
    let (out, on_out) = seen();
    let command = Command::python(source)
        .stdin(Input::piped())
        .on_stdout(on_out);
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 1 << 21]).unwrap();
    drop(stdin);
    assert_clean(&child.wait().unwrap());
    assert!(concat(&out).ends_with(b"o2097152\n"));
}
