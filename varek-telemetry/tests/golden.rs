//! The written form of every kind, byte by byte. `VAREK_BLESS=1` writes the golden files that are missing; one that
//! is there is changed by hand, because a change of it is a change of the written form.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(target_arch = "x86_64")]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::{event, samples};
use varek_telemetry::{Event, Record};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The words that a serde error says would have been understood.
fn expected_words(json: &str) -> BTreeSet<String> {
    let error = serde_json::from_str::<Event>(json).unwrap_err().to_string();
    let (_, list) = error.split_once("expected one of").expect(&error);
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn head() -> String {
    let line = serde_json::to_string(&support::plain(3)).unwrap();
    line.split_once(r#""event""#).unwrap().0.to_owned()
}

fn golden_names() -> BTreeSet<String> {
    std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| {
            name.strip_suffix(".json")
                .expect("a golden file")
                .to_owned()
        })
        .collect()
}

#[test]
fn the_written_form_of_every_kind_is_its_golden_file_and_reads_back() {
    for (name, kind) in samples() {
        let event = event(3, kind);
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'), "{line}");
        let path = directory().join(format!("{name}.json"));
        if std::env::var_os("VAREK_BLESS").is_some() && !path.exists() {
            std::fs::write(&path, format!("{line}\n")).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(format!("{line}\n"), golden, "{name}");
        assert_eq!(
            Record::parse(golden.as_bytes()).unwrap(),
            Record::Known(event.clone()),
            "{name}"
        );
        // And by way of a value, as log pipelines do it.
        let value: serde_json::Value = serde_json::from_str(&golden).unwrap();
        assert_eq!(value["event"], event.kind.name());
        assert_eq!(name.split('.').next(), Some(event.kind.name()));
        assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
    }
}

#[test]
fn a_kind_without_a_golden_file_and_a_golden_file_without_a_kind_are_found() {
    let kinds = expected_words(&format!(r#"{}"event":"none such"}}"#, head()));
    assert!(kinds.contains("run_started"), "{kinds:?}");
    let with_golden: BTreeSet<String> = golden_names()
        .iter()
        .map(|name| name.split('.').next().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, with_golden);
    let samples: BTreeSet<String> = samples().into_iter().map(|(name, _)| name).collect();
    assert_eq!(samples, golden_names());
}

#[test]
fn every_resource_and_every_cause_has_a_golden_file() {
    let head = head();
    for (kind, json) in [
        (
            "limit_hit",
            format!(
                r#"{head}"event":"limit_hit","resource":"none such","limit":1,"count":1,"evidence":""}}"#
            ),
        ),
        (
            "kill_issued",
            format!(r#"{head}"event":"kill_issued","cause":"none such"}}"#),
        ),
    ] {
        let words = expected_words(&json);
        assert!(words.contains("wall_clock"), "{words:?}");
        for word in words {
            assert!(
                golden_names().contains(&format!("{kind}.{word}")),
                "{kind}.{word}"
            );
        }
    }
}
