//! A full disk: the call says so, nothing of it is left, and what was acknowledged before and after is sent.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use varek_wandb::{
    AlertLevel, Artifact, Console, Durability, Environment, Error, Mode, Run, SavePolicy, Table,
    repair, sync,
};

use crate::log::{self, HISTORY};
use crate::support::server::{API_KEY, Server};
use crate::support::{not_run, succeeded, wait_for};
use crate::{
    BOUND, case, embedder, embedder_after, given, held, is_complete, judged, log_of, offline_in,
    options, passed, rows, sys, tree,
};

/// A file that would grow beyond its limit is an error, and no signal that ends the embedder.
const WITHOUT_SIGNAL: &str = r#"trap "" XFSZ; exec "$@""#;

/// A disk of its own for the embedder, which is there for nobody else.
const TINY_DISK: &str = r#"mount -t tmpfs -o size=256k none "$PLACE" && exec "$@""#;

fn limit_files(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: bytes.or(maximum),
            maximum,
        },
    )
    .unwrap();
}

/// Whether a call failed for the want of room.
fn is_full(result: &Result<(), Error>) -> bool {
    let full = [rustix::io::Errno::NOSPC, rustix::io::Errno::FBIG];
    let errno = |source: &std::io::Error| rustix::io::Errno::from_io_error(source);
    matches!(result, Err(Error::Io { source, .. }) if errno(source).is_some_and(|errno| full.contains(&errno)))
}

/// A copy of a run's directory that is no part of the disk that is full.
fn copied(own: &Path, to: &str) {
    succeeded(
        &Command::new("cp")
            .arg("-a")
            .arg(own)
            .arg(to)
            .output()
            .unwrap(),
    );
}

/// The directory of the run that an embedder left here.
fn left(place: &Path) -> std::path::PathBuf {
    crate::support::client::offline_run(place)
}

fn row(number: u64) -> Value {
    json!({ "number": number, "text": "x".repeat(100) })
}

/// Rows that arrived, by their numbers.
fn numbers(held: &Value) -> Vec<u64> {
    rows(held)
        .iter()
        .filter_map(|row| row["number"].as_u64())
        .collect()
}

/// Calls whose files have room, and whose records have none.
fn without_room_for_the_record(run: &Run) {
    limit_files(None);
    let own = run.directory().unwrap();
    let mut table = Table::new(["name"]).unwrap();
    table.row(("fork",)).unwrap();
    let artifact = |text: &str| Artifact::new("small", "verification").bytes("a", text);
    run.save_bytes("kept/a.txt", "kept", SavePolicy::Now)
        .unwrap();
    run.log_artifact(&artifact("first")).unwrap();
    let before = tree(own);
    limit_files(Some(fs::metadata(log_of(own)).unwrap().len()));
    let calls = [
        run.save_bytes("kept/a.txt", "other", SavePolicy::Now),
        run.save_file("kept/a.txt", "/proc/self/comm", SavePolicy::Now),
        run.save_bytes("new/deep/b.txt", "new", SavePolicy::Now),
        run.log_artifact(&artifact("first")).map(|_| ()),
        run.log_artifact(&artifact("second")).map(|_| ()),
        run.log_table("deep/table", &table).map(|_| ()),
        run.finish(0, BOUND).map(|_| ()),
    ];
    for (index, call) in calls.iter().enumerate() {
        assert!(is_full(call), "{index}: {call:?}");
    }
    assert_eq!(tree(own), before);
    limit_files(None);
}

fn embedder_with_a_limit() {
    let run = offline_in(Path::new(&given("PLACE")));
    let path = log_of(run.directory().unwrap());
    // Each limit ends within the next row: at every one of its bytes, all in all.
    let mut acknowledged = Vec::new();
    for number in 0..120 {
        let length = fs::metadata(&path).unwrap().len();
        limit_files(Some(length + 1 + number * 3));
        let refused = run.log(row(number)).map(|_| ());
        assert!(is_full(&refused), "{number}: {refused:?}");
        assert_eq!(
            fs::metadata(&path).unwrap().len(),
            length,
            "{number}: nothing of it is left"
        );
        let (records, end) = log::records(&fs::read(&path).unwrap());
        assert_eq!(
            (end as u64, log::count(&records, HISTORY)),
            (length, acknowledged.len())
        );
        if number % 3 == 0 {
            limit_files(None);
            assert_eq!(run.log(row(number)).unwrap(), acknowledged.len() as u64);
            acknowledged.push(number);
        }
    }
    without_room_for_the_record(&run);
    println!("say {}", json!(acknowledged));
    // Ended by nobody.
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_row_that_has_no_room_is_an_error_and_every_other_one_arrives() {
    if case().is_some() {
        return embedder_with_a_limit();
    }
    let place = tempfile::tempdir().unwrap();
    let name = "full::a_row_that_has_no_room_is_an_error_and_every_other_one_arrives";
    let output = embedder_after(WITHOUT_SIGNAL, name, "rows")
        .env("PLACE", place.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(9),
        "{text}{errors}"
    );
    let said = text
        .rsplit_once("say ")
        .unwrap_or_else(|| panic!("{text}"))
        .1;
    let acknowledged: Vec<u64> = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(acknowledged.len(), 40);
    let own = left(place.path());
    let repaired = repair(&own).unwrap();
    assert!(repaired.closed && repaired.cut == 0, "{repaired:?}");
    let held = held(&own);
    assert_eq!(numbers(&held), acknowledged);
    assert_eq!(held["runs"][0]["exit_code"], 1);
    assert_eq!(held["runs"][0]["files"]["kept/a.txt"]["text"], "kept");
    assert_eq!(held["artifacts"].as_array().unwrap().len(), 1);
}

/// Calls that need more room than there is, none of which may leave anything.
fn all_are_refused(run: &Run) {
    let mut table = Table::new(["text"]).unwrap();
    for _ in 0..300 {
        table.row(("x".repeat(1000),)).unwrap();
    }
    let large = "x".repeat(300_000);
    let artifact = Artifact::new("large", "verification")
        .bytes("a", "b")
        .bytes("large", large.as_str());
    let own = run.directory().unwrap();
    let before = tree(own);
    let calls = [
        run.log(json!({ "large": large })).map(|_| ()),
        run.summary("large", large.as_str()),
        run.config(json!({ "large": large })),
        run.alert("title", large.as_str(), AlertLevel::Warn, BOUND),
        run.console(Console::Stdout, &large),
        run.save_bytes("kept.txt", &large, SavePolicy::Now),
        run.save_bytes("other/large.txt", &large, SavePolicy::Now),
        run.log_artifact(&artifact).map(|_| ()),
        run.log_table("large", &table).map(|_| ()),
    ];
    for (index, call) in calls.iter().enumerate() {
        assert!(is_full(call), "{index}: {call:?}");
    }
    assert_eq!(tree(own), before);
}

fn embedder_with_a_tiny_disk() {
    let place = given("PLACE");
    let run = offline_in(Path::new(&place));
    let own = run.directory().unwrap().to_owned();
    run.save_bytes("kept.txt", "kept", SavePolicy::Now).unwrap();
    run.log_artifact(&Artifact::new("small", "verification").bytes("a", "b"))
        .unwrap();
    all_are_refused(&run);
    let mut acknowledged: Vec<u64> = Vec::new();
    let mut number = 0;
    // The last page, and not only the last large piece.
    while let Ok(step) = run.log(row(number)) {
        assert_eq!(step, number);
        acknowledged.push(number);
        number += 1;
    }
    assert!(number > 100, "{number}");
    // Down to the last bytes: the shortest record of all is longer than what is left.
    while run.console(Console::Stdout, "").is_ok() {}
    for again in 0..3 {
        let refused = run.log(row(number)).map(|_| ());
        assert!(is_full(&refused), "{again}: {refused:?}");
    }
    // No room for the words that replace the ones that are there.
    let refused = run.save_bytes("kept.txt", "other", SavePolicy::Now);
    assert!(is_full(&refused), "{refused:?}");
    assert_eq!(
        fs::read_to_string(own.join("files/kept.txt")).unwrap(),
        "kept"
    );
    let (records, end) = log::records(&fs::read(log_of(&own)).unwrap());
    assert_eq!(end as u64, fs::metadata(log_of(&own)).unwrap().len());
    assert_eq!(log::count(&records, HISTORY), acknowledged.len());
    // Another run finds no room at all, and leaves nothing that looks like one.
    let before = fs::read_dir(own.parent().unwrap()).unwrap().count();
    fs::write(Path::new(&place).join("filler"), "x".repeat(300_000)).unwrap_err();
    let other = Run::builder()
        .environment(Environment::default())
        .dir(&place)
        .mode(Mode::Offline)
        .start();
    assert!(is_full(&other.map(|_| ())));
    assert_eq!(fs::read_dir(own.parent().unwrap()).unwrap().count(), before);
    // As it would be found by who comes after a SIGKILL.
    copied(&own, &format!("{}/killed", given("OUT")));
    // There is no room for the end either: the run goes on.
    let refused = run.finish(0, BOUND).map(|_| ());
    assert!(is_full(&refused), "{refused:?}");
    let done = Command::new("mount")
        .args(["-o", "remount,size=4m"])
        .arg(&place)
        .status()
        .unwrap();
    assert!(done.success());
    assert_eq!(run.log(row(number)).unwrap(), number);
    acknowledged.push(number);
    run.save_bytes("kept.txt", "other", SavePolicy::Now)
        .unwrap();
    run.log_artifact(&Artifact::new("late", "verification").bytes("a", "c"))
        .unwrap();
    run.finish(0, BOUND).unwrap();
    copied(&own, &format!("{}/finished", given("OUT")));
    println!("say {}", json!(acknowledged));
}

#[test]
fn a_full_disk_takes_nothing_of_a_run_and_the_run_goes_on_when_there_is_room() {
    let name = "full::a_full_disk_takes_nothing_of_a_run_and_the_run_goes_on_when_there_is_room";
    if case().is_some() {
        return embedder_with_a_tiny_disk();
    }
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        return not_run(
            name,
            "a disk of a test's own needs a mount namespace of its own (unshare --mount), as root",
        );
    }
    let (place, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = embedder_after(TINY_DISK, name, "disk");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .arg(own.get_program())
        .args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let said = passed(command.env("PLACE", place.path()).env("OUT", out.path()));
    let mut acknowledged: Vec<u64> = serde_json::from_str(&said.concat()).unwrap();
    assert_eq!(
        fs::read_dir(place.path()).unwrap().count(),
        0,
        "the disk was the embedder's own"
    );

    let finished = held(&out.path().join("finished"));
    assert_eq!(numbers(&finished), acknowledged);
    assert_eq!(finished["runs"][0]["exit_code"], 0);
    assert_eq!(finished["runs"][0]["files"]["kept.txt"]["text"], "other");
    let names = |held: &Value| -> Vec<String> {
        let artifacts = held["artifacts"].as_array().unwrap().iter();
        artifacts
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&finished), ["late", "small"]);

    let killed = held(&out.path().join("killed"));
    acknowledged.pop();
    assert_eq!(numbers(&killed), acknowledged);
    assert_eq!(killed["runs"][0]["exit_code"], 1);
    assert_eq!(killed["runs"][0]["files"]["kept.txt"]["text"], "kept");
    assert_eq!(names(&killed), ["small"]);
}

/// Artifacts whose acknowledgements are more than a file of this size.
const ARTIFACTS: usize = 12;
const ACKNOWLEDGEMENTS: u64 = 1500;

fn embedder_that_syncs() {
    limit_files(Some(ACKNOWLEDGEMENTS));
    let options = varek_wandb::SyncOptions::new()
        .environment(Environment::default())
        .base_url(given("SERVER"))
        .api_key(API_KEY)
        .pauses(Duration::from_millis(20), Duration::from_millis(200))
        .within(BOUND);
    let report = sync(given("PLACE"), &options).unwrap();
    assert!(report.dropped > 0 && report.fault.is_some(), "{report:?}");
}

#[test]
fn acknowledgements_that_have_no_room_are_forgotten_and_none_behind_them_is() {
    let name = "full::acknowledgements_that_have_no_room_are_forgotten_and_none_behind_them_is";
    if case().is_some() {
        return embedder_that_syncs();
    }
    let place = tempfile::tempdir().unwrap();
    let run = offline_in(place.path());
    run.log(row(0)).unwrap();
    for number in 0..ARTIFACTS {
        run.log_artifact(
            &Artifact::new(format!("a{number}"), "verification").bytes("a", number.to_string()),
        )
        .unwrap();
    }
    run.alert("title", "text", AlertLevel::Warn, Duration::from_secs(1))
        .unwrap();
    run.finish(0, BOUND).unwrap();
    let own = run.directory().unwrap().to_owned();

    // The alert waits until there is room again.
    let server = Server::faulty(&["on=notifyScriptableRunAlert,do=503,times=inf"]);
    let acknowledged = own.join("varek/acknowledged.jsonl");
    let mut child = embedder_after(WITHOUT_SIGNAL, name, "sync")
        .env("PLACE", &own)
        .env("SERVER", server.url())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let artifacts = || {
        server
            .events()
            .iter()
            .filter(|event| event.to_string().contains("commitArtifact"))
            .count()
    };
    wait_for("the artifacts", || (artifacts() >= ARTIFACTS).then_some(()));
    // The alert itself has no room to be written down before it is sent, unless there is some by then.
    let pid = rustix::process::Pid::from_child(&child);
    let maximum = getrlimit(Resource::Fsize).maximum;
    rustix::process::prlimit(
        Some(pid),
        Resource::Fsize,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
    server.clear();
    assert!(child.wait().unwrap().success());
    let text = fs::read_to_string(&acknowledged).unwrap();
    for line in text.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    assert!(
        text.len() as u64 > ACKNOWLEDGEMENTS || text.contains("complete"),
        "{text}"
    );

    // Nothing is there twice after another one, which sends what is not known to be there.
    is_complete(&sync(&own, &options(&server)).unwrap());
    let held = judged(&server);
    assert_eq!(held["artifacts"].as_array().unwrap().len(), ARTIFACTS);
    assert_eq!(held["runs"][0]["alerts"].as_array().unwrap().len(), 1);
    assert_eq!(numbers(&held), [0]);
    assert!(own.join("run-run00001.wandb.synced").exists());
}

fn embedder_with_no_room_for_files() {
    let own = given("PLACE");
    limit_files(Some(4096));
    let options = varek_wandb::SyncOptions::new()
        .environment(Environment::default())
        .base_url(given("SERVER"))
        .api_key(API_KEY)
        .within(BOUND);
    is_complete(&sync(&own, &options).unwrap());
}

#[test]
fn a_file_that_is_made_for_the_run_is_sent_whole_or_not_at_all() {
    let name = "full::a_file_that_is_made_for_the_run_is_sent_whole_or_not_at_all";
    if case().is_some() {
        return embedder_with_no_room_for_files();
    }
    for limited in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let run = offline_in(place.path());
        run.summary("long", "x".repeat(10_000)).unwrap();
        run.finish(0, BOUND).unwrap();
        let own = run.directory().unwrap().to_owned();
        let server = Server::start();
        if limited {
            passed(
                embedder_after(WITHOUT_SIGNAL, name, "files")
                    .env("PLACE", &own)
                    .env("SERVER", server.url()),
            );
        } else {
            is_complete(&sync(&own, &options(&server)).unwrap());
        }
        let held = server.everything();
        let summary = &held["runs"][0]["generated"]["wandb-summary.json"];
        assert_eq!(summary.is_null(), limited, "{summary}");
        assert_eq!(own.join("files/wandb-summary.json").exists(), !limited);
        assert_eq!(
            held["runs"][0]["summary"]["long"].as_str().unwrap().len(),
            10_000
        );
    }
}

/// Every call, where the disk takes what is written and does not confirm it.
fn embedder_with_a_broken_disk() {
    let run = Run::builder()
        .environment(Environment::default())
        .id("run00001")
        .dir(given("PLACE"))
        .mode(Mode::Offline)
        .durability(Durability::EveryRecord)
        .start()
        .unwrap();
    run.log(row(0)).unwrap();
    sys::break_fdatasync();
    let mut table = Table::new(["name"]).unwrap();
    table.row(("fork",)).unwrap();
    let calls = [
        run.log(row(1)).map(|_| ()),
        run.log_artifact(&Artifact::new("a", "verification").bytes("a", "b"))
            .map(|_| ()),
        run.log_table("table", &table).map(|_| ()),
        run.save_bytes("saved.txt", "saved", SavePolicy::Now),
        run.alert("title", "text", AlertLevel::Warn, BOUND),
        run.log(row(2)).map(|_| ()),
        run.finish(0, BOUND).map(|_| ()),
    ];
    for (index, call) in calls.iter().enumerate() {
        assert!(
            matches!(
                call,
                Err(Error::Io {
                    operation: "sync",
                    ..
                })
            ),
            "{index}: {call:?}"
        );
    }
    assert!(matches!(run.log(row(3)), Err(Error::Finished)));
}

#[test]
fn what_the_disk_does_not_confirm_is_an_error_that_says_so_and_is_sent_all_the_same() {
    let name =
        "full::what_the_disk_does_not_confirm_is_an_error_that_says_so_and_is_sent_all_the_same";
    if case().is_some() {
        return embedder_with_a_broken_disk();
    }
    let place = tempfile::tempdir().unwrap();
    passed(embedder(name, "broken").env("PLACE", place.path()));
    let held = held(&left(place.path()));
    assert_eq!(numbers(&held), [0, 1, 2]);
    assert!(
        held["artifacts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["state"] == "COMMITTED")
    );
    assert_eq!(held["artifacts"].as_array().unwrap().len(), 2);
    assert_eq!(held["runs"][0]["files"]["saved.txt"]["text"], "saved");
    assert_eq!(held["runs"][0]["alerts"].as_array().unwrap().len(), 1);
    assert_eq!(held["runs"][0]["exit_code"], 0);
}
