#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::*;
use crate::{Event, EventKind, LogError, Record, RunId, Sink, records};

fn event(sequence: u64) -> Event {
    Event {
        run: RunId::from_bits(1),
        sequence,
        time: SystemTime::UNIX_EPOCH,
        elapsed: Duration::ZERO,
        kind: EventKind::GuestStarted { pid: 7 },
    }
}

/// A log of so many lines, and its head.
fn written(path: &Path, lines: u64) -> Head {
    let log = AuditLog::open(path).unwrap();
    (0..lines).for_each(|n| log.record(&event(n)));
    log.head()
}

fn lines(log: &[u8]) -> Vec<&[u8]> {
    log.split_inclusive(|byte| *byte == b'\n').collect()
}

/// A log of four lines, its text and its head.
fn four() -> (Vec<u8>, Head) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let head = written(&path, 4);
    (fs::read(path).unwrap(), head)
}

#[test]
fn a_log_verifies_as_it_was_written_and_reads_as_events() {
    let (log, head) = four();
    assert_eq!(verify(&log[..], None).unwrap(), Verified { head, torn: 0 });
    assert_eq!(verify(&log[..], Some(&head)).unwrap().head, head);
    assert_eq!(head.lines(), 4);
    assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
    let read: Vec<_> = records(&log[..]).map(Result::unwrap).collect();
    let expected: Vec<_> = (0..4).map(|n| Record::Known(event(n))).collect();
    assert_eq!(read, expected);
}

#[test]
fn no_byte_of_a_log_can_be_changed_unseen() {
    let (log, head) = four();
    for at in 0..log.len() {
        let mut changed = log.clone();
        changed[at] ^= 1 << (at % 8);
        let result = verify(&changed[..], Some(&head));
        assert!(result.is_err(), "byte {at}");
    }
}

#[test]
fn an_altered_line_is_named() {
    let (log, _) = four();
    let text = String::from_utf8(log).unwrap();
    let changed = text.replacen(r#""sequence":2,"#, r#""sequence":9,"#, 1);
    assert_ne!(changed, text);
    let fault = verify(changed.as_bytes(), None).unwrap_err();
    assert!(matches!(fault, NotVerified::Altered { line: 3 }), "{fault}");
}

#[test]
fn missing_lines_are_named_and_counted() {
    let (log, head) = four();
    let all = lines(&log);
    for (gone, at) in [(0..1, 1), (1..2, 2), (1..3, 2), (0..3, 1)] {
        let count = gone.len() as u64;
        let rest = [&all[..gone.start], &all[gone.end..]].concat().concat();
        match verify(&rest[..], None) {
            Err(NotVerified::Missing { line, count: found }) => {
                assert_eq!((line, found), (at, count));
            }
            other => panic!("{other:?}"),
        }
    }
    // The end is only missed by who knows that it was there.
    let rest = all[..3].concat();
    assert_eq!(verify(&rest[..], None).unwrap().head.lines(), 3);
    let fault = verify(&rest[..], Some(&head)).unwrap_err();
    assert!(
        matches!(
            fault,
            NotVerified::Shortened {
                lines: 3,
                expected: 4
            }
        ),
        "{fault}"
    );
    let fault = verify(&b""[..], Some(&head)).unwrap_err();
    assert!(
        matches!(fault, NotVerified::Shortened { lines: 0, .. }),
        "{fault}"
    );
}

#[test]
fn exchanged_repeated_and_inserted_lines_are_named() {
    let (log, _) = four();
    let all = lines(&log);
    // The second line's own words and hash, made by one who knows how.
    let forged = {
        let first = Link::parse(all[0].strip_suffix(b"\n").unwrap()).unwrap();
        let body = br#"{"v":1,"event":"guest_started","index":1"#;
        let head = Head::empty().next(first.body).next(body);
        [body, MARK, hex(&head.chain).as_bytes(), END, b"\n"].concat()
    };
    for (changed, at, says) in [
        (vec![all[0], all[2], all[1], all[3]], 2, 3),
        (vec![all[0], all[1], all[1], all[2]], 3, 2),
        (vec![all[0], &forged, all[1], all[2]], 3, 2),
        (vec![all[3], all[0], all[1], all[2]], 1, 4),
    ] {
        match verify(&changed.concat()[..], None) {
            Err(NotVerified::OutOfPlace { line, says: found }) => {
                assert_eq!((line, found), (at, says));
            }
            other => panic!("{other:?}"),
        }
    }
    let replaced = [all[0], &forged, all[2], all[3]].concat();
    let fault = verify(&replaced[..], None).unwrap_err();
    assert!(matches!(fault, NotVerified::Altered { line: 3 }), "{fault}");
    let foreign = [all[0], b"nonsense\n", all[1]].concat();
    let fault = verify(&foreign[..], None).unwrap_err();
    assert!(
        matches!(fault, NotVerified::NotALine { line: 2 }),
        "{fault}"
    );
}

#[test]
fn numbers_that_no_log_reaches_are_faults_and_no_panic() {
    let (log, _) = four();
    let text = String::from_utf8(log).unwrap();
    for number in ["18446744073709551615", "18446744073709551616", ""] {
        let changed = text.replace(r#""index":3"#, &format!(r#""index":{number}"#));
        assert!(verify(changed.as_bytes(), None).is_err(), "{number}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        fs::write(&path, changed).unwrap();
        if let Ok(log) = AuditLog::open(&path) {
            log.record(&event(0));
        }
    }
}

#[test]
fn a_log_that_was_written_anew_is_not_the_one_that_the_head_was_made_of() {
    let (_, head) = four();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    (0..6).for_each(|n| log.record(&event(n + 1)));
    let text = fs::read(&path).unwrap();
    assert!(verify(&text[..], None).is_ok());
    let fault = verify(&text[..], Some(&head)).unwrap_err();
    assert!(
        matches!(fault, NotVerified::Rewritten { line: 4 }),
        "{fault}"
    );
}

#[test]
fn a_log_cut_anywhere_goes_on_with_its_whole_lines() {
    let (log, _) = four();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    for cut in 0..=log.len() {
        let whole = log[..cut].split(|byte| *byte == b'\n').count() as u64 - 1;
        fs::write(&path, &log[..cut]).unwrap();
        let head = written(&path, 2);
        assert_eq!(head.lines(), whole + 2, "cut at {cut}");
        let text = fs::read(&path).unwrap();
        let verified = verify(&text[..], Some(&head)).unwrap();
        assert_eq!(verified, Verified { head, torn: 0 }, "cut at {cut}");
    }
}

#[test]
fn a_torn_line_that_nobody_has_cut_off_yet_is_reported_and_no_fault() {
    let (log, _) = four();
    let verified = verify(&log[..log.len() - 10], None).unwrap();
    assert_eq!(verified.head.lines(), 3);
    assert!(verified.torn > 0);
}

#[test]
fn a_file_that_is_no_audit_log_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("passwords");
    for content in ["one\ntwo\nthree", "one\n", "no end", "{\"v\":1}\n"] {
        fs::write(&path, content).unwrap();
        let result = AuditLog::open(&path);
        assert!(
            matches!(result, Err(LogError::NotAnAuditLog { .. })),
            "{content:?}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[cfg(feature = "signing")]
mod signing {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn signed_head(log: &Path) -> SignedHead {
        let text = fs::read(log.with_extension("jsonl.head")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn a_signed_head_is_that_of_the_log_and_of_no_other_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let log = AuditLog::open(&path).unwrap().signed_by(key(1)).unwrap();
        log.record(&event(0));
        assert_eq!(log.flush(Duration::ZERO), crate::Flushed::Complete);
        let first = signed_head(&path).verify(&key(1).verifying_key()).unwrap();
        assert_eq!(first, log.head());
        log.record(&event(1));
        let head = log.head();
        drop(log);
        let signed = signed_head(&path);
        assert_eq!(signed.verify(&key(1).verifying_key()), Ok(head));
        assert_eq!(signed.verify(&key(2).verifying_key()), Err(BadHead));
        let text = fs::read(&path).unwrap();
        verify(&text[..], Some(&head)).unwrap();
        verify(&text[..], Some(&first)).unwrap();
    }

    #[test]
    fn no_digit_of_a_signed_head_can_be_changed_unseen() {
        let signed = key(1).sign(&Head::empty());
        let text = serde_json::to_string(&signed).unwrap();
        let public = key(1).verifying_key();
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
            // The key that is written there is for people; the one that counts is the reader's.
            let Ok(changed) = serde_json::from_slice::<SignedHead>(&changed) else {
                continue;
            };
            if changed.lines != signed.lines
                || changed.chain != signed.chain
                || changed.signature != signed.signature
            {
                assert_eq!(changed.verify(&public), Err(BadHead), "byte {at}");
            }
        }
    }

    #[test]
    fn a_log_that_lost_signed_lines_is_not_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let log = AuditLog::open(&path).unwrap().signed_by(key(1)).unwrap();
        (0..3).for_each(|n| log.record(&event(n)));
        drop(log);
        let text = fs::read(&path).unwrap();
        let all = super::lines(&text);

        fs::write(&path, all[..2].concat()).unwrap();
        let result = AuditLog::open(&path).unwrap().signed_by(key(1));
        assert!(matches!(
            result,
            Err(LogError::Altered {
                lines: 2,
                signed: 3,
                ..
            })
        ));

        fs::write(&path, &text).unwrap();
        let result = AuditLog::open(&path).unwrap().signed_by(key(2));
        assert!(matches!(result, Err(LogError::BadHead { .. })));

        // As it was, it goes on.
        let log = AuditLog::open(&path).unwrap().signed_by(key(1)).unwrap();
        log.record(&event(3));
        assert_eq!(log.head().lines(), 4);
    }

    #[test]
    fn a_signing_key_is_not_shown() {
        let shown = format!("{:?}", key(7));
        assert!(
            !shown.contains("0707") && !shown.contains("7, 7"),
            "{shown}"
        );
    }
}
