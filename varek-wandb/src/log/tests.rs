#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers of tests"
)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::proto::{Kind, OutputRaw, Record, Run};
use crate::{Damage, Error};

fn line(text: String) -> Kind {
    Kind::OutputRaw(OutputRaw {
        line: text,
        ..OutputRaw::default()
    })
}

fn run() -> Kind {
    Kind::Run(Box::new(Run {
        run_id: "abc".into(),
        ..Run::default()
    }))
}

/// A log with a line of each of these sizes, and where its records end.
fn written(sizes: &[usize]) -> (TempDir, PathBuf, Vec<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run-abc.wandb");
    let mut log = LogWriter::create(&path, vec![run()]).unwrap();
    let mut ends = vec![log.length()];
    for size in sizes {
        log.append_all(vec![line("x".repeat(*size))]).unwrap();
        ends.push(log.length());
    }
    (directory, path, ends)
}

fn read(path: &Path) -> Result<(Vec<Record>, Option<Damage>), Error> {
    let mut reader = LogReader::open(path)?;
    let mut records = Vec::new();
    loop {
        match reader.next()? {
            Next::Record(record) => records.push(*record),
            Next::End => return Ok((records, None)),
            Next::Damaged(damage) => return Ok((records, Some(damage))),
        }
    }
}

fn lines(records: &[Record]) -> Vec<usize> {
    records
        .iter()
        .filter_map(|record| match &record.kind {
            Some(Kind::OutputRaw(output)) => Some(output.line.len()),
            _ => None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read_back(sizes in prop::collection::vec(0_usize..90_000, 0..12)) {
        let (_directory, path, ends) = written(&sizes);
        let (records, damage) = read(&path).unwrap();
        prop_assert_eq!(damage, None);
        prop_assert_eq!(lines(&records), sizes);
        let numbers: Vec<i64> = records.iter().map(|record| record.num).collect();
        prop_assert_eq!(numbers, (1..=ends.len() as i64).collect::<Vec<_>>());
        prop_assert_eq!(fs::metadata(&path).unwrap().len(), *ends.last().unwrap());
    }

    #[test]
    fn a_damaged_log_never_panics_and_is_repaired_or_refused(
        sizes in prop::collection::vec(0_usize..40_000, 0..6),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (_directory, path, _) = written(&sizes);
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let most = bytes.len() + 1;
        bytes.truncate(cut.index(most));
        bytes.extend(tail);
        fs::write(&path, &bytes).unwrap();
        match repair(&path) {
            Ok(_) => {
                let (_, damage) = read(&path).unwrap();
                prop_assert_eq!(damage, None);
                let again = repair(&path).unwrap();
                prop_assert_eq!(again.cut, 0);
                prop_assert!(!again.closed);
            }
            Err(Error::Corrupt { .. } | Error::NotALog { .. }) => {
                prop_assert_eq!(fs::read(&path).unwrap(), bytes);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn records_that_end_around_the_end_of_a_block_are_read_back() {
    for size in BLOCK - 80..BLOCK + 20 {
        let (_directory, path, ends) = written(&[size, 0, 1]);
        let (records, damage) = read(&path).unwrap();
        assert_eq!(damage, None, "{size}");
        assert_eq!(lines(&records), [size, 0, 1]);
        for end in ends {
            // A chunk's header fits, or nothing is left of the block.
            assert!(left_in_block(end) >= CHUNK_HEADER, "{size}");
        }
    }
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_record_wherever_it_was_torn() {
    let (_directory, path, ends) = written(&[10, 40_000, 3]);
    let whole = fs::read(&path).unwrap();
    let mut places: Vec<usize> = (0..whole.len()).step_by(97).collect();
    places.extend(
        ends.iter()
            .flat_map(|end| (end - 9..end + 9).map(|at| at as usize)),
    );
    for at in places.into_iter().filter(|at| *at <= whole.len()) {
        fs::write(&path, &whole[..at]).unwrap();
        let before = ends.iter().filter(|end| **end <= at as u64).count();
        let repaired = match repair(&path) {
            Ok(repaired) => repaired,
            Err(Error::NotALog { .. }) => {
                assert_eq!(before, 0, "{at}");
                assert_eq!(fs::read(&path).unwrap(), &whole[..at]);
                continue;
            }
            Err(other) => panic!("{at}: {other}"),
        };
        assert_eq!(repaired.records as usize, before + 2, "{at}");
        assert!(repaired.closed);
        assert_eq!(repaired.cut, at as u64 - ends[before - 1], "{at}");
        let (records, damage) = read(&path).unwrap();
        assert_eq!(damage, None, "{at}");
        assert!(matches!(&records[before].kind, Some(Kind::Exit(exit)) if exit.exit_code == 1));
        assert!(matches!(&records[before + 1].kind, Some(Kind::Final(_))));
        assert_eq!(records[before].num as usize, before + 1);
    }
}

#[test]
fn damage_before_good_records_is_refused_with_its_offset_and_nothing_is_changed() {
    let (_directory, path, ends) = written(&[10, 40_000, 50, 20]);
    let whole = fs::read(&path).unwrap();
    for (index, end) in ends.iter().enumerate().take(ends.len() - 1) {
        let begin = if index == 0 {
            HEADER.len() as u64
        } else {
            ends[index - 1]
        };
        for at in [begin + 1, begin + 4, begin + 6, begin + 8, end - 1] {
            let mut bytes = whole.clone();
            bytes[at as usize] ^= 0x44;
            fs::write(&path, &bytes).unwrap();
            let refused = repair(&path);
            assert!(
                matches!(refused, Err(Error::Corrupt { offset, .. }) if offset == begin),
                "record {index}, byte {at}: {refused:?}"
            );
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
}

#[test]
fn records_appended_behind_a_torn_one_are_never_cut() {
    let (_directory, path, ends) = written(&[10, 40_000, 20]);
    let whole = fs::read(&path).unwrap();
    // A first chunk that fills its block, and then another record instead of its rest.
    let mut bytes = whole[..BLOCK].to_vec();
    let other = written(&[5]);
    let single = fs::read(&other.1).unwrap();
    bytes.extend_from_slice(&single[HEADER.len()..]);
    fs::write(&path, &bytes).unwrap();
    let refused = repair(&path);
    assert!(
        matches!(refused, Err(Error::Corrupt { offset, .. }) if offset == ends[1]),
        "{refused:?}"
    );
}

#[test]
fn a_torn_record_whose_text_looks_like_a_record_is_cut_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run-abc.wandb");
    let mut log = LogWriter::create(&path, vec![run()]).unwrap();
    let end = log.length();
    // The bytes of a whole chunk with this text, found by trying until its checksum is text too.
    let planted = (0_u32..)
        .map(|salt| format!("{salt:08}"))
        .find_map(|text| {
            let mut chunk = checksum(1, text.as_bytes()).to_le_bytes().to_vec();
            chunk.extend_from_slice(&[8, 0, 1]);
            chunk.extend_from_slice(text.as_bytes());
            String::from_utf8(chunk).ok()
        })
        .unwrap();
    log.append_all(vec![line(format!(
        "{}{}",
        planted.repeat(3),
        "y".repeat(100)
    ))])
    .unwrap();
    drop(log);
    let whole = fs::read(&path).unwrap();
    let text = planted.as_bytes();
    for at in end as usize + 1..whole.len() {
        fs::write(&path, &whole[..at]).unwrap();
        if whole[..at].ends_with(text) {
            // Torn just where the text's own record ends, which who wrote the text cannot bring about: not to be told from
            // a record, so nothing is lost.
            assert!(matches!(repair(&path), Err(Error::Corrupt { .. })), "{at}");
            assert_eq!(fs::read(&path).unwrap(), &whole[..at]);
        } else {
            assert_eq!(repair(&path).unwrap().cut, at as u64 - end, "{at}");
        }
    }
}

#[test]
fn zeros_that_a_power_loss_left_are_cut() {
    let (_directory, path, ends) = written(&[10]);
    let mut bytes = fs::read(&path).unwrap();
    bytes.resize(bytes.len() + 3 * BLOCK, 0);
    fs::write(&path, &bytes).unwrap();
    let repaired = repair(&path).unwrap();
    assert_eq!(repaired.cut, bytes.len() as u64 - ends[1]);
    assert_eq!(read(&path).unwrap().1, None);
}

#[test]
fn a_log_that_is_being_written_is_not_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run-abc.wandb");
    let log = LogWriter::create(&path, vec![run()]).unwrap();
    assert!(matches!(repair(&path), Err(Error::InUse { .. })));
    drop(log);
    assert!(repair(&path).unwrap().closed);
}

#[test]
fn a_log_is_never_made_over_another_file() {
    let (_directory, path, _) = written(&[10]);
    let before = fs::read(&path).unwrap();
    assert!(matches!(
        LogWriter::create(&path, vec![run()]),
        Err(Error::Io { .. })
    ));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_reader_at_the_end_reads_what_is_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run-abc.wandb");
    let mut log = LogWriter::create(&path, vec![run()]).unwrap();
    let mut reader = LogReader::open(&path).unwrap();
    assert!(matches!(reader.next().unwrap(), Next::Record(_)));
    for size in [3, 70_000, 0] {
        assert!(matches!(reader.next().unwrap(), Next::End));
        log.append_all(vec![line("z".repeat(size))]).unwrap();
        let at = reader.position();
        for _ in 0..2 {
            reader.seek(at);
            let Next::Record(record) = reader.next().unwrap() else {
                panic!("no record of {size}")
            };
            assert_eq!(lines(&[*record]), [size]);
        }
    }
}

#[test]
fn other_files_are_no_logs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.wandb");
    for bytes in [&b""[..], b":W&", b":W&B\xE1\xBE\x01abc", b"hello, world"] {
        fs::write(&path, bytes).unwrap();
        assert!(
            matches!(repair(&path), Err(Error::NotALog { .. })),
            "{bytes:?}"
        );
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}
