//! SIGKILL and power loss at every byte of a log: what is whole before it is kept, whatever is torn is cut, and the rest is sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use varek_wandb::{AlertLevel, Artifact, Console, Error, SavePolicy, Table, repair, sync};

use crate::log::{self, ARTIFACT, EXIT, FINAL, HISTORY, RUN, Record};
use crate::support::server::Server;
use crate::{BOUND, is_complete, judged, log_of, offline, options, rows};

/// The log's beginning.
const HEADER: usize = 7;

const ALERT: u64 = 10;

/// A finished run with records of every kind, one of which is longer than a block.
fn finished() -> (TempDir, PathBuf) {
    let (kept, run) = offline();
    for number in 0..6 {
        run.log(json!({ "number": number, "nested": { "a": [number] } }))
            .unwrap();
        run.console(Console::Stdout, &format!("line {number}"))
            .unwrap();
    }
    run.config(json!({ "late": true })).unwrap();
    run.log_artifact(&Artifact::new("manifest", "verification").bytes("a.json", "{}"))
        .unwrap();
    let mut table = Table::new(["name"]).unwrap();
    table.row(("fork",)).unwrap();
    run.log_table("results", &table).unwrap();
    run.alert("title", "text", AlertLevel::Warn, Duration::from_secs(60))
        .unwrap();
    run.save_bytes("notes.txt", "text", SavePolicy::End)
        .unwrap();
    run.summary("verdict", "pass").unwrap();
    run.log(json!({ "number": 6 })).unwrap();
    run.log(json!({ "blob": "z".repeat(70_000) })).unwrap();
    run.finish(0, BOUND).unwrap();
    let own = run.directory().unwrap().to_owned();
    (kept, own)
}

/// Puts the beginning of a log into a file, so many bytes of it, and repairs that; whether there was a run in it.
fn repaired(path: &Path, whole: &[u8], records: &[Record], at: usize) -> bool {
    fs::write(path, &whole[..at]).unwrap();
    let before = &records[..records.partition_point(|record| record.end <= at)];
    let end = before.last().map_or(HEADER, |record| record.end);
    let has = |kind| before.iter().any(|record| record.of_kind(kind).is_some());
    let done = match repair(path) {
        Ok(done) => done,
        Err(Error::NotALog { .. }) => {
            assert!(!has(RUN), "{at}");
            assert_eq!(fs::read(path).unwrap(), &whole[..at], "{at}");
            return false;
        }
        Err(other) => panic!("{at}: {other}"),
    };
    assert!(has(RUN), "{at}");
    assert_eq!(done.cut, (at - end) as u64, "{at}");
    assert_eq!(done.closed, !has(EXIT), "{at}");
    let mended = fs::read(path).unwrap();
    assert!(mended[..end] == whole[..end], "{at}");
    let (added, last) = log::records_from(&mended, end);
    assert_eq!(last, mended.len(), "{at}");
    let counts = [(EXIT, has(EXIT)), (FINAL, has(FINAL))]
        .map(|(kind, had)| (log::count(&added, kind), usize::from(!had)));
    assert!(
        counts.iter().all(|(found, expected)| found == expected),
        "{at}: {counts:?}"
    );
    assert_eq!(added.len(), counts[0].0 + counts[1].0, "{at}");
    assert_eq!(done.records, (before.len() + added.len()) as u64, "{at}");
    let again = repair(path).unwrap();
    assert_eq!(
        (again.cut, again.closed, again.records),
        (0, false, done.records),
        "{at}"
    );
    assert!(fs::read(path).unwrap() == mended, "{at}");
    true
}

#[test]
fn a_log_that_is_torn_anywhere_is_repaired_to_its_last_whole_record() {
    let (_kept, own) = finished();
    let whole = fs::read(log_of(&own)).unwrap();
    let (records, end) = log::records(&whole);
    assert_eq!(end, whole.len());
    assert!(
        records.len() > 30 && whole.len() > 75_000,
        "{} in {}",
        records.len(),
        whole.len()
    );
    // All that is near the ends of records and of blocks, and of the rest every so many bytes, more where records are short.
    let near = |at: usize, place: usize| at.abs_diff(place) < 9;
    let block = |at: usize| {
        let inner = at % (32 * 1024);
        near(inner, 0) || near(inner, 32 * 1024)
    };
    let mut places: Vec<usize> = Vec::new();
    let mut begin = HEADER;
    for record in &records {
        let every = if record.end - begin < 2000 { 5 } else { 1009 };
        let takes = |at: &usize| {
            near(*at, begin) || near(*at, record.end) || block(*at) || at.is_multiple_of(every)
        };
        places.extend((begin..=record.end).filter(takes));
        begin = record.end;
    }
    places.dedup();
    assert!(places.len() > 1500, "{}", places.len());
    // A copy without anything else, which a repair needs nothing of; in memory, where that is possible.
    let memory = Path::new("/dev/shm");
    let copy = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap();
    let path = copy.path().join("run-run00001.wandb");
    let mended = places
        .iter()
        .filter(|at| repaired(&path, &whole, &records, **at))
        .count();
    assert!(mended > 1000 && mended < places.len(), "{mended}");
    // The beginning itself, and nothing.
    for at in 0..HEADER {
        fs::write(&path, &whole[..at]).unwrap();
        assert!(matches!(repair(&path), Err(Error::NotALog { .. })), "{at}");
        assert_eq!(fs::read(&path).unwrap(), &whole[..at]);
    }
}

/// What the whole records before a tear say, as the server should hold it.
fn expected(records: &[Record]) -> (usize, usize, usize, Value) {
    let ended = records.iter().any(|record| record.of_kind(EXIT).is_some());
    (
        log::count(records, HISTORY),
        log::count(records, ARTIFACT),
        log::count(records, ALERT),
        json!(i32::from(!ended)),
    )
}

#[test]
fn what_is_left_of_a_torn_log_is_sent_once_and_whole() {
    let (_kept, own) = finished();
    let whole = fs::read(log_of(&own)).unwrap();
    let (records, _) = log::records(&whole);
    let first = records
        .iter()
        .position(|record| record.of_kind(RUN).is_some())
        .unwrap();
    // A log is never seen before its run's record is in it, but torn.
    let boundaries: Vec<usize> = records[first..].iter().map(|record| record.end).collect();
    let mut places: Vec<usize> = boundaries.iter().copied().step_by(8).collect();
    let within = boundaries.windows(2).skip(3).step_by(11);
    places.extend(within.map(|pair| usize::midpoint(pair[0], pair[1])));
    places.extend(boundaries.iter().rev().take(3));
    places.sort_unstable();
    places.dedup();
    assert!(places.len() > 8, "{places:?}");
    for at in places {
        let server = Server::start();
        let copy = tempfile::tempdir().unwrap();
        let run = copy.path().join("run");
        let done = Command::new("cp")
            .arg("-a")
            .arg(&own)
            .arg(&run)
            .status()
            .unwrap();
        assert!(done.success());
        fs::write(log_of(&run), &whole[..at]).unwrap();
        is_complete(&sync(&run, &options(&server)).unwrap());
        let before: Vec<Record> = records
            .iter()
            .filter(|record| record.end <= at)
            .cloned()
            .collect();
        let (history, artifacts, alerts, exit_code) = expected(&before);
        let held = judged(&server);
        let found = &held["runs"][0];
        assert_eq!(rows(&held).len(), history, "{at}");
        let numbers = rows(&held).iter().map(|row| row["_step"].as_u64().unwrap());
        assert!(numbers.eq(0..history as u64), "{at}");
        assert_eq!(
            held["artifacts"].as_array().unwrap().len(),
            artifacts,
            "{at}"
        );
        assert!(
            held["artifacts"]
                .as_array()
                .unwrap()
                .iter()
                .all(|one| one["state"] == "COMMITTED"),
            "{at}"
        );
        assert_eq!(found["alerts"].as_array().unwrap().len(), alerts, "{at}");
        assert_eq!(found["exit_code"], exit_code, "{at}");
        assert!(run.join("run-run00001.wandb.synced").exists(), "{at}");
    }
}
