//! Files go in and out of the scratch directory, before, during and after a run, and whatever the guest makes of their names
//! neither leads the embedder elsewhere nor holds it up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};

use support::{assert_clean, assert_gone, assert_killed, not_run, python, run, seconds, text};
use varek_core::{
    Cause, Child, Command, Error, FileError, FileKind, Input, KIB, MIB, Output, Policy, Sandbox,
};

/// With the files in a file system of the run's own where the host lets this program mount, and on the disk.
fn both(mut policy: Policy) -> [Policy; 2] {
    let bounded = policy.clone();
    policy.limits.scratch = None;
    [bounded, policy]
}

#[test]
fn a_file_that_was_named_beforehand_is_there_after_the_run() {
    for policy in both(python()) {
        let sandbox = sandbox!(policy);
        let source = "import os
os.mkdir('out'); open('out/plot.bin', 'wb').write(bytes(range(256)) * 1000)
open('exact', 'w').write('x' * 10); open('over', 'w').write('x' * 11)
print(open('in.txt').read())";
        let command = Command::python(source)
            .file("in.txt", "given")
            .collect("./out/plot.bin", MIB)
            .collect("exact", 10)
            .collect("over", 10)
            .collect("never", 10)
            .collect("out", 10)
            .collect("in.txt", 10);
        let outcome = sandbox.run(command).unwrap();
        assert_clean(&outcome);
        assert_eq!(text(&outcome), "given\n");
        let plot = outcome.file("out/plot.bin").unwrap();
        assert_eq!(plot.len(), 256_000);
        assert_eq!(plot[255..258], [255, 0, 1]);
        assert_eq!(outcome.file("exact").unwrap(), b"xxxxxxxxxx");
        let (size, bound) = (11, 10);
        assert_eq!(
            outcome.file("over"),
            Err(FileError::TooLarge { size, bound })
        );
        assert_eq!(outcome.file("never"), Err(FileError::NotFound));
        let (kind, wanted) = (FileKind::Directory, FileKind::File);
        assert_eq!(outcome.file("out"), Err(FileError::Kind { kind, wanted }));
        assert_eq!(outcome.file("in.txt").unwrap(), b"given");
        assert_eq!(outcome.file("main.py"), Err(FileError::NotAsked));
        assert_eq!(outcome.file("../main.py"), Err(FileError::Path));
        assert_eq!(outcome.files().count(), 6);
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["files"]["exact"]["text"], "xxxxxxxxxx");
        assert_eq!(json["files"]["never"]["error"], "is not there");
        assert!(json["files"]["out/plot.bin"]["base64"].is_string());
        let told = outcome.to_llm_text(4000);
        assert!(
            told.contains("- file exact: 10 bytes, handed over.\n"),
            "{told}"
        );
    }
}

#[test]
fn what_was_collected_is_held_once_however_many_ask_for_it() {
    let sandbox = sandbox!(python());
    let source = "open('large', 'w').write('x' * 1_000_000)";
    let mut child = sandbox
        .spawn(Command::python(source).collect("large", MIB))
        .unwrap();
    let [one, two] = [child.wait().unwrap(), child.wait().unwrap()];
    let large = one.file("large").unwrap();
    assert_eq!(large.len(), 1_000_000);
    // Otherwise the supervisor, with which all runs wait, copies as much as the guest likes.
    assert_eq!(large.as_ptr(), two.file("large").unwrap().as_ptr());
}

#[test]
fn files_are_collected_however_a_run_ends() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)));
    let source = "open('partial', 'w').write('so far')\nprint(flush=True)\nwhile True: pass";
    let outcome = sandbox
        .run(Command::python(source).collect("partial", KIB))
        .unwrap();
    assert_killed(&outcome, &Cause::WallClock);
    assert_eq!(outcome.file("partial").unwrap(), b"so far");
}

#[test]
fn files_to_collect_that_cannot_be_are_errors_before_anything_starts() {
    let sandbox = sandbox!(python());
    for (path, bound) in [
        ("../x", 1),
        ("/etc/passwd", 1),
        ("", 1),
        (".", 1),
        ("x", 5 << 30),
    ] {
        let error = sandbox
            .run(Command::python("").collect(path, bound))
            .unwrap_err();
        assert!(matches!(error, Error::Command { .. }), "{error}");
    }
}

/// Names that a guest makes of what is to be collected.
const PLANTED: &str = r"
import os, socket
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'linked')
os.symlink('/proc/self/environ', 'magic'); os.symlink('loop', 'loop')
os.mkfifo('fifo'); os.mkdir('directory')
with open('sparse', 'w') as f: f.truncate(200 << 20)
made = []
try: os.link('/etc/passwd', 'hard'); made.append('hard')
except OSError: pass
try: os.mknod('device', 0o20666, os.makedev(1, 5)); made.append('device')
except OSError: pass
os.remove('placed'); os.symlink('/etc/passwd', 'placed')
assert 'root' in open('link').read()
print(made)
";

#[test]
fn what_a_guest_plants_leads_the_embedder_nowhere_and_holds_it_up_by_nothing() {
    for policy in both(python()) {
        let sandbox = sandbox!(policy);
        let names = [
            "link",
            "linked/passwd",
            "magic",
            "loop",
            "fifo",
            "directory",
            "sparse",
            "hard",
            "device",
            "placed",
        ];
        let command = names
            .iter()
            .fold(Command::python(PLANTED), |command, name| {
                command.collect(name, KIB)
            })
            .file("placed", "mine");
        let outcome = sandbox.run(command).unwrap();
        let stderr = outcome.stderr.to_text();
        assert_eq!(text(&outcome), "[]\n", "{outcome} {stderr}");
        assert_gone(&outcome);
        for (path, file) in outcome.files() {
            assert!(file.is_err(), "{} {file:?}", path.display());
        }
        let kind = |kind| {
            Err(FileError::Kind {
                kind,
                wanted: FileKind::File,
            })
        };
        assert_eq!(outcome.file("link"), kind(FileKind::Link));
        assert_eq!(outcome.file("placed"), kind(FileKind::Link));
        assert_eq!(outcome.file("magic"), kind(FileKind::Link));
        assert_eq!(outcome.file("linked/passwd"), Err(FileError::Link));
        assert_eq!(outcome.file("fifo"), kind(FileKind::Other));
        assert!(matches!(
            outcome.file("sparse"),
            Err(FileError::TooLarge { .. })
        ));
    }
}

/// A guest that does what its stdin says, line by line, and answers each.
fn obedient(sandbox: &Sandbox) -> (Child, impl FnMut(&str) -> String + use<>) {
    let source = "import os, sys
for line in sys.stdin:
    try: print(eval(line), flush=True)
    except OSError as error: print(type(error).__name__, flush=True)";
    let command = Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let ask = move |line: &str| {
        writeln!(stdin, "{line}").unwrap();
        let mut answer = String::new();
        stdout.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    };
    (child, ask)
}

#[test]
fn files_go_in_and_out_while_a_guest_runs() {
    for policy in both(python()) {
        let sandbox = sandbox!(policy);
        let (mut child, mut ask) = obedient(&sandbox);
        let files = child.files();
        files.put("question", "6 * 7").unwrap();
        assert_eq!(ask("eval(open('question').read())"), "42");
        assert_eq!(ask("open('answer', 'w').write('42!')"), "3");
        assert_eq!(files.get("answer", KIB).unwrap(), b"42!");
        assert_eq!(ask("open('question', 'a').write('+ 1')"), "3");
        assert_eq!(files.get("question", KIB).unwrap(), b"6 * 7+ 1");
        let names: Vec<_> = files.list(".", 10).unwrap();
        let names: Vec<_> = names
            .iter()
            .map(|entry| (entry.name.to_str().unwrap(), entry.size))
            .collect();
        assert_eq!(names[..2], [("answer", 3), ("main.py", names[1].1)]);
        assert_eq!(names[2], ("question", 8));
        assert_eq!(files.put("no/such", "x"), Err(FileError::NotFound));
        drop(ask);
        let outcome = child.wait().unwrap();
        assert_clean(&outcome);
        assert_eq!(files.get("answer", KIB), Err(FileError::Gone));
        assert_eq!(files.put("answer", "x"), Err(FileError::Gone));
    }
}

#[test]
fn what_a_running_guest_plants_leads_nowhere() {
    for policy in both(python()) {
        let sandbox = sandbox!(policy);
        let (mut child, mut ask) = obedient(&sandbox);
        let files = child.files();
        let outside = support::open_directory();
        let target = outside.path().join("file");
        std::fs::write(&target, "untouched").unwrap();
        let target = target.display();
        for line in [
            format!("os.symlink('{target}', 'file')"),
            format!("os.symlink('{}', 'dir')", outside.path().display()),
            "os.mkfifo('fifo')".to_owned(),
        ] {
            assert_eq!(ask(&line), "None");
        }
        assert!(files.get("file", KIB).is_err());
        assert_eq!(files.get("dir/file", KIB), Err(FileError::Link));
        assert_eq!(files.put("dir/file", "x"), Err(FileError::Link));
        assert_eq!(files.put("dir/new", "x"), Err(FileError::Link));
        assert!(files.get("fifo", KIB).is_err());
        files.put("fifo", "x").unwrap();
        files.put("file", "replaced").unwrap();
        // The positive control: the guest sees what was put.
        assert_eq!(
            ask("open('file').read() + open('fifo').read()"),
            "replacedx"
        );
        assert_eq!(
            std::fs::read_to_string(outside.path().join("file")).unwrap(),
            "untouched"
        );
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        drop(ask);
        assert_clean(&child.wait().unwrap());
    }
}

#[test]
fn a_guest_s_lease_on_its_file_holds_nobody_up() {
    // No preset lets a guest have one.
    let sandbox = sandbox!(python().syscalls(|calls| calls.allow(["fcntl"])));
    let (mut child, mut ask) = obedient(&sandbox);
    let files = child.files();
    files.put("leased", "x").unwrap();
    // Ignored, SIGIO would not end the guest; F_SETLEASE with F_WRLCK. The kernel gives a holder 45 seconds.
    let signals = "__import__('signal').signal(29, __import__('signal').SIG_IGN) and None";
    ask(signals);
    let held =
        ask("__import__('fcntl').fcntl(globals().setdefault('f', open('leased', 'r+')), 1024, 1)");
    if held != "0" {
        let reason = format!("the guest can have no lease here: {held}");
        return not_run("a_guest_s_lease_on_its_file_holds_nobody_up", &reason);
    }
    assert_eq!(files.get("leased", KIB), Err(FileError::Io { errno: 11 }));
    assert_eq!(ask("globals().pop('f', None) and None"), "None");
    drop(ask);
    assert_clean(&child.wait().unwrap());
}

#[test]
fn a_put_into_a_full_directory_is_an_error_and_leaves_what_was_there() {
    let sandbox = sandbox!(python().scratch(64 * KIB));
    if !support::bounded(&sandbox) {
        return not_run(
            "a_put_into_a_full_directory_is_an_error_and_leaves_what_was_there",
            "guests have no scratch directory of a bounded size here",
        );
    }
    let (mut child, mut ask) = obedient(&sandbox);
    let files = child.files();
    files.put("kept", "before").unwrap();
    let full = files.put("kept", vec![0; 128 << 10]);
    assert_eq!(full, Err(FileError::Io { errno: 28 }));
    assert_eq!(ask("open('kept').read()"), "before");
    assert_eq!(files.list(".", 9).unwrap().len(), 2);
    drop(ask);
    assert_gone(&child.wait().unwrap());
}

#[test]
fn a_handle_that_outlives_the_run_keeps_nothing_of_it() {
    let sandbox = sandbox!(python());
    let mut child = sandbox
        .spawn(Command::python("open('a', 'wb').write(bytes(1 << 20))"))
        .unwrap();
    let files = child.files();
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(files.get("a", MIB), Err(FileError::Gone));
    // A busy embedder that asks all the time holds no removal up.
    let mut child = sandbox
        .spawn(Command::python("import time; time.sleep(0.2)"))
        .unwrap();
    let files = child.files();
    let busy = std::thread::spawn(move || {
        let mut puts = 0_u64;
        loop {
            match files.put("a", vec![7; 64 << 10]) {
                Ok(()) => puts += 1,
                Err(FileError::Gone) => return puts,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert!(busy.join().unwrap() > 0);
    assert_clean(&run(&sandbox, ""));
}

#[test]
fn a_directory_of_the_embedder_s_is_collected_from_and_kept() {
    let sandbox = sandbox!(python());
    let directory = support::open_directory();
    let scratch = directory.path().join("a/b");
    std::fs::create_dir_all(&scratch).unwrap();
    let command = Command::python("open('out', 'w').write('x')")
        .scratch(&scratch)
        .collect("out", KIB);
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(outcome.file("out").unwrap(), b"x");
    assert_eq!(std::fs::read_to_string(scratch.join("out")).unwrap(), "x");
}
