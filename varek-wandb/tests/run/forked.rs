//! Copies of the embedder that fork(2) makes, and programs that it starts: the run is the one process's that started it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use varek_telemetry::{Arguments, Enforcement, Event, EventKind, RunId, Sink};
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Error, Mode, Run, SavePolicy, Table, repair, sync,
};

use crate::support::server::{API_KEY, Server};
use crate::{
    BOUND, case, embedder, given, held, holds, is_complete, log_of, offline, offline_in, options,
    passed, rows, sys, tree,
};

/// Planted by the copy with everything that it does.
const PLANTED: &str = "planted-by-the-copy";

fn event(program: &str) -> Event {
    Event {
        run: RunId::from_bits(7),
        sequence: 0,
        time: SystemTime::UNIX_EPOCH,
        elapsed: Duration::ZERO,
        kind: EventKind::RunStarted {
            program: program.into(),
            interpreter: None,
            arguments: Arguments::None { count: 0 },
            policy: "sha256:a".into(),
            enforcement: Enforcement::default(),
            traceparent: None,
        },
    }
}

/// Everything that can be said to a run.
fn everything(run: &Run, text: &str) -> Vec<Result<(), Error>> {
    let mut table = Table::new(["name"]).unwrap();
    table.row((text,)).unwrap();
    let row = json!({ "text": text });
    vec![
        run.log(&row).map(|_| ()),
        run.log_at(100, &row),
        run.summary("text", text),
        run.summary_all(&row),
        run.config(&row),
        run.log_table("table", &table).map(|_| ()),
        run.log_artifact(&Artifact::new("a", "b").bytes("x", text))
            .map(|_| ()),
        run.alert(text, text, AlertLevel::Warn, BOUND),
        run.save_bytes("x", text, SavePolicy::Now),
        run.save_file("y", "/proc/self/status", SavePolicy::End),
        run.console(Console::Stdout, text),
        run.sink().start().map(|_| ()),
        #[cfg(feature = "weave")]
        run.weave().map(|_| ()),
    ]
}

/// What the embedder of the next test does.
fn embedder_that_forks() {
    let directory = given("PLACE");
    let mut run = Some(
        Run::builder()
            .environment(Environment::default())
            .project("varek-demo")
            .id("run00001")
            .dir(&directory)
            .mode(Mode::Online)
            .base_url(given("SERVER"))
            .api_key(API_KEY)
            .start()
            .unwrap(),
    );
    run.as_ref().unwrap().log(json!({ "number": 0 })).unwrap();
    let mut sink = Some(run.as_ref().unwrap().sink().start().unwrap());
    let done = sys::in_a_fork(|| {
        let (run, sink) = (run.take().unwrap(), sink.take().unwrap());
        let before = tree(run.directory().unwrap());
        for (index, call) in everything(&run, PLANTED).into_iter().enumerate() {
            assert!(
                matches!(call, Err(Error::Forked { .. })),
                "{index}: {call:?}"
            );
        }
        sink.record(&event(PLANTED));
        sink.expect_contained(RunId::from_bits(7));
        sink.flush(BOUND);
        let _ = (
            run.id(),
            run.mode(),
            run.url(),
            run.sync_command(),
            format!("{run:?}"),
        );
        assert!(matches!(run.finish(9, BOUND), Err(Error::Forked { .. })));
        drop((sink, run));
        // Other files are the uploader's, which goes on.
        let log = |tree: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>| {
            tree.iter()
                .find(|(path, _)| path.extension().is_some_and(|end| end == "wandb"))
                .map(|(_, bytes)| bytes.clone())
        };
        assert_eq!(log(&tree(Path::new(&given("PLACE")))), log(&before));
        // A run of its own is another matter.
        let own = tempfile::tempdir().unwrap();
        let run = offline_in(own.path());
        run.log(json!({ "number": 1 })).unwrap();
        run.finish(0, BOUND).unwrap();
        assert!(!repair(run.directory().unwrap()).unwrap().closed);
    });
    assert!(done, "the copy panicked, or hung");
    let (run, sink) = (run.unwrap(), sink.unwrap());
    sink.record(&event("/bin/true"));
    run.log(json!({ "number": 1 })).unwrap();
    run.save_bytes("notes.txt", "text", SavePolicy::Now)
        .unwrap();
    // In a copy that ends without a word, too.
    assert!(sys::in_a_fork(|| {}));
    is_complete(&run.finish(0, BOUND).unwrap());
}

#[test]
fn a_forked_copy_adds_nothing_to_the_run_and_takes_nothing_from_it() {
    if case().is_some() {
        return embedder_that_forks();
    }
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let name = "forked::a_forked_copy_adds_nothing_to_the_run_and_takes_nothing_from_it";
    passed(
        embedder(name, "fork")
            .env("PLACE", directory.path())
            .env("SERVER", server.url()),
    );
    let mut held = server.normalized();
    assert_eq!(held["violations"].take(), json!([]));
    let run = &held["runs"][0];
    assert_eq!(held["runs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&run["exit_code"], &run["state"]),
        (&json!(0), &json!("finished"))
    );
    let numbers: Vec<_> = rows(&held)
        .iter()
        .filter(|row| !row["number"].is_null())
        .map(|row| &row["number"])
        .collect();
    assert_eq!(numbers, [0, 1]);
    let programs: Vec<_> = rows(&held)
        .iter()
        .filter(|row| !row["varek/program"].is_null())
        .map(|row| &row["varek/program"])
        .collect();
    assert_eq!(programs, ["/bin/true"]);
    assert_eq!(run["files"]["notes.txt"]["text"], "text");
    for (path, bytes) in tree(directory.path()) {
        assert!(!holds(&bytes, PLANTED), "{}", path.display());
    }
    let record = fs::read(server.record()).unwrap();
    assert!(!holds(&record, PLANTED));
    assert!(
        holds(&record, "notes.txt"),
        "what is looked for would be found"
    );
}

/// An embedder whose other threads are within the run while it forks.
fn embedder_that_forks_while_it_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::builder()
        .environment(Environment::default())
        .dir(directory.path())
        .id("run00001")
        .mode(Mode::Online)
        // Nobody is there, and nobody is waited for.
        .base_url("http://127.0.0.1:9")
        .api_key(API_KEY)
        .start()
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        let _ = run.url();
                    }
                    run.log(json!({ "number": 1 })).unwrap();
                }
            });
        }
        let all = (0..100).all(|_| {
            sys::in_a_fork_that_drops(&run)
                && sys::in_a_fork(|| {
                    assert!(run.url().is_none());
                    for call in everything(&run, PLANTED) {
                        assert!(matches!(call, Err(Error::Forked { .. })), "{call:?}");
                    }
                })
        });
        done.store(true, Ordering::Relaxed);
        assert!(all, "a copy panicked, or hung");
    });
    run.log(json!({ "number": 2 })).unwrap();
    let own = run.directory().unwrap().to_owned();
    run.finish(0, Duration::ZERO).unwrap();
    drop(run);
    assert!(!repair(&own).unwrap().closed);
    for bytes in tree(&own).values() {
        assert!(!holds(bytes, PLANTED));
    }
}

#[test]
fn a_copy_made_while_a_run_is_busy_never_waits_for_threads_that_it_does_not_have() {
    if case().is_some() {
        return embedder_that_forks_while_it_is_busy();
    }
    let name =
        "forked::a_copy_made_while_a_run_is_busy_never_waits_for_threads_that_it_does_not_have";
    passed(&mut embedder(name, "busy"));
}

/// An embedder with a forked copy that lives on.
fn embedder_with_a_copy_that_stays() {
    let place = given("PLACE");
    let run = offline_in(Path::new(&place));
    run.log(json!({ "number": 0 })).unwrap();
    let own = run.directory().unwrap().to_owned();
    let (finished, wait) = std::io::pipe().unwrap();
    let (told, ready) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let run = &run;
        let copy = scope.spawn(move || {
            sys::in_a_fork(|| {
                (&ready).write_all(b"x").unwrap();
                // Until the embedder is done with the run.
                (&finished).read_exact(&mut [0]).unwrap();
                // The copy's end gives up nothing either.
                let _ = run.id();
            })
        });
        (&told).read_exact(&mut [0]).unwrap();
        assert!(
            matches!(repair(&own), Err(Error::InUse { .. })),
            "the run goes on"
        );
        run.finish(0, BOUND).unwrap();
        assert!(
            !repair(&own).unwrap().closed,
            "the copy still has the log open"
        );
        (&wait).write_all(b"x").unwrap();
        assert!(copy.join().unwrap());
    });
}

#[test]
fn a_finished_run_is_free_for_a_sync_whatever_copies_of_the_embedder_live_on() {
    if case().is_some() {
        return embedder_with_a_copy_that_stays();
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "forked::a_finished_run_is_free_for_a_sync_whatever_copies_of_the_embedder_live_on";
    passed(embedder(name, "stays").env("PLACE", directory.path()));
}

#[test]
fn a_copy_that_ends_does_not_give_up_the_lock_of_a_run_that_goes_on() {
    if case().is_some() {
        let run = offline_in(Path::new(&given("PLACE")));
        let own = run.directory().unwrap().to_owned();
        assert!(sys::in_a_fork_that_drops(&run));
        assert!(matches!(repair(&own), Err(Error::InUse { .. })));
        run.log(json!({ "number": 0 })).unwrap();
        run.finish(0, BOUND).unwrap();
        repair(&own).unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "forked::a_copy_that_ends_does_not_give_up_the_lock_of_a_run_that_goes_on";
    passed(embedder(name, "lock").env("PLACE", directory.path()));
}

#[test]
fn a_finished_run_is_free_for_a_sync_while_the_embedder_starts_other_programs() {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let all = (0..150).all(|_| {
            let (_kept, run) = offline();
            let own = run.directory().unwrap().to_owned();
            run.finish(0, BOUND).unwrap();
            (0..20).all(|_| repair(&own).is_ok())
        });
        done.store(true, Ordering::Relaxed);
        assert!(all);
    });
    let (_kept, run) = offline();
    run.log(json!({ "number": 0 })).unwrap();
    let own = run.directory().unwrap().to_owned();
    // And one that was dropped by nobody's hand but the last clone's.
    drop(run);
    assert!(log_of(&own).exists());
    assert_eq!(held(&own)["runs"][0]["exit_code"], 1);
    let server = Server::start();
    assert!(
        sync(&own, &options(&server)).is_err(),
        "another server has it"
    );
}
