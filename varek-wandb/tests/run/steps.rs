//! Steps, keys and values: what is logged is there, or the call says that it is not.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::{Value as Json, json};
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Error, Mode, Run, SavePolicy, Table, Value,
};

use crate::support::server::{API_KEY, Server};
use crate::{BOUND, held, log_of, offline, offline_in, rows, tree};

/// Seconds that alerts wait here.
const MINUTE: Duration = Duration::from_secs(60);

/// The largest step that there is.
const LAST: u64 = i64::MAX.cast_unsigned();

#[test]
fn a_step_has_one_row_and_a_step_in_the_past_is_an_error() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let row = |number: i64| json!({ "number": number });
    assert_eq!(run.log(row(0)).unwrap(), 0);
    assert_eq!(run.log(row(1)).unwrap(), 1);
    run.log_at(5, row(2)).unwrap();
    // A row without a step goes behind the last one, and not to it.
    assert_eq!(run.log(row(3)).unwrap(), 6);
    let before = fs::read(log_of(&own)).unwrap();
    for step in [6, 5, 2, 0] {
        let refused = run.log_at(step, row(-1));
        let Err(Error::StepInPast {
            step: found,
            last: 6,
        }) = refused
        else {
            panic!("step {step}: {refused:?}");
        };
        assert_eq!(found, step);
    }
    for step in [LAST + 1, u64::MAX] {
        let refused = run.log_at(step, row(-1));
        assert!(matches!(refused, Err(Error::Name { .. })), "{refused:?}");
    }
    assert_eq!(fs::read(log_of(&own)).unwrap(), before);
    assert_eq!(run.log(row(4)).unwrap(), 7, "a refused row takes no step");
    // A table has a step of its own.
    let mut table = Table::new(["name"]).unwrap();
    table.row(("fork",)).unwrap();
    assert_eq!(run.log_table("table", &table).unwrap().step, 8);
    run.log_at(LAST, row(5)).unwrap();
    let refused = run.log(row(-1));
    assert!(matches!(refused, Err(Error::Name { .. })), "{refused:?}");
    assert!(run.log_table("table", &table).is_err());
    run.finish(0, BOUND).unwrap();

    let held = held(&own);
    let found: Vec<(u64, &Json)> = rows(&held)
        .iter()
        .map(|row| (row["_step"].as_u64().unwrap(), &row["number"]))
        .collect();
    let expected =
        [(0, 0), (1, 1), (5, 2), (6, 3), (7, 4)].map(|(step, number)| (step, json!(number)));
    assert_eq!(found.len(), expected.len() + 2, "{found:?}");
    for ((step, number), (found_step, found_number)) in expected.iter().zip(&found) {
        assert_eq!((step, number), (found_step, *found_number));
    }
    assert_eq!(found.last(), Some(&(LAST, &json!(5))));
    assert_eq!(held["runs"][0]["summary"]["number"], 5);
    assert_eq!(held["runs"][0]["summary"]["_step"], LAST);
}

#[test]
fn rows_of_many_threads_have_a_step_each_and_none_is_dropped() {
    const THREADS: u64 = 4;
    const ROWS: u64 = 150;
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let mut steps: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let run = &run;
                scope.spawn(move || {
                    let log = |row| {
                        let number = thread * ROWS + row;
                        (run.log(json!({ "number": number })).unwrap(), number)
                    };
                    (0..ROWS).map(log).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    run.finish(0, BOUND).unwrap();
    steps.sort_unstable();
    let held = held(&own);
    let found: Vec<(u64, u64)> = rows(&held)
        .iter()
        .map(|row| {
            (
                row["_step"].as_u64().unwrap(),
                row["number"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, steps);
    assert!(steps.iter().map(|(step, _)| *step).eq(0..THREADS * ROWS));
}

#[test]
fn keys_that_a_run_writes_itself_are_refused_wherever_they_are_given() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let before = fs::read(log_of(&own)).unwrap();
    for key in ["_step", "_timestamp", "_runtime", "_wandb"] {
        let row = BTreeMap::from([("good", 1), (key, 2)]);
        let refused = [
            run.log(&row).map(|_| ()),
            run.log_at(9, &row),
            run.summary(key, 1),
            run.summary_all(&row),
            run.config(&row),
            run.log_table(key, &Table::new(["a"]).unwrap()).map(|_| ()),
            Run::builder().config(&row).map(|_| ()),
        ];
        for (index, refused) in refused.into_iter().enumerate() {
            let Err(Error::ReservedKey { key: found }) = refused else {
                panic!("{key}, {index}: {refused:?}");
            };
            assert_eq!(found, key);
        }
    }
    let empty = BTreeMap::from([("", 1)]);
    assert!(matches!(run.log(&empty), Err(Error::Name { .. })));
    for nothing_named in [json!(3), json!([1]), json!("row")] {
        assert!(matches!(
            run.log(&nothing_named),
            Err(Error::NotAMap { .. })
        ));
        assert!(matches!(
            run.config(&nothing_named),
            Err(Error::NotAMap { .. })
        ));
    }
    assert_eq!(fs::read(log_of(&own)).unwrap(), before);
    // What only looks like them is a key like others.
    run.log(json!({ "_steps": 1, "a/_step": 2, "deep": { "_step": 3, "_wandb": 4 } }))
        .unwrap();
    run.config(json!({ "deep": { "_wandb": 5 } })).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    let row = &rows(&held)[0];
    assert_eq!(row["_step"], 0);
    assert_eq!((&row["_steps"], &row["a/_step"]), (&json!(1), &json!(2)));
    assert_eq!(row["deep"], json!({ "_step": 3, "_wandb": 4 }));
    assert_eq!(held["runs"][0]["config"]["deep"]["_wandb"], 5);
}

#[test]
fn values_arrive_as_they_were_given_and_what_cannot_be_sent_is_refused() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let row = BTreeMap::from([
        ("nan", Value::Float(f64::NAN)),
        ("up", Value::Float(f64::INFINITY)),
        ("down", Value::Float(f64::NEG_INFINITY)),
        (
            "list",
            Value::of(&(1, "x", [Some(2.5), None], f64::INFINITY)).unwrap(),
        ),
        (
            "nested",
            Value::of(&json!({ "a": { "b": [{ "c": true }], "d/e": -0.5 }, "f": {} })).unwrap(),
        ),
        ("large", Value::of(&u64::MAX).unwrap()),
        ("small", Value::of(&i64::MIN).unwrap()),
        ("text", Value::from("ü\u{2028}\"\\\n\u{0}😀")),
        ("key with \"quotes\"\n", Value::from(true)),
    ]);
    run.log(&row).unwrap();
    let before = fs::read(log_of(&own)).unwrap();
    let deep = |number: f64| BTreeMap::from([("a", BTreeMap::from([("b", vec![number])]))]);
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(matches!(
            run.config(deep(number)),
            Err(Error::NotFinite { .. })
        ));
        assert!(matches!(
            Artifact::new("a", "b").metadata(deep(number)),
            Err(Error::NotFinite { .. })
        ));
    }
    // A line as long as the service takes, and one byte more.
    let longest = 10 * 1024 * 1024 - 100 * 1024;
    let long = |length: usize| json!({ "blob": "z".repeat(length) });
    assert!(matches!(
        run.log(long(longest)),
        Err(Error::LineTooLong { .. })
    ));
    assert!(matches!(
        run.summary("blob", "z".repeat(longest)),
        Err(Error::LineTooLong { .. })
    ));
    assert!(matches!(
        run.console(Console::Stdout, &"z".repeat(longest + 1)),
        Err(Error::LineTooLong { .. })
    ));
    assert_eq!(fs::read(log_of(&own)).unwrap(), before);
    run.config(deep(1.5)).unwrap();
    run.log(long(longest - 200)).unwrap();
    // Objects replace what a key had in the summary.
    run.summary("nested", json!({ "only": 1 })).unwrap();
    run.finish(0, BOUND).unwrap();

    let held = held(&own);
    let found = &rows(&held)[0];
    let written = |key: &str| found[key].to_string();
    assert_eq!(written("large"), "18446744073709551615");
    assert_eq!(written("small"), "-9223372036854775808");
    assert_eq!(found["text"], "ü\u{2028}\"\\\n\u{0}😀");
    assert_eq!(found["key with \"quotes\"\n"], true);
    assert_eq!(
        found["nested"],
        json!({ "a": { "b": [{ "c": true }], "d/e": -0.5 }, "f": {} })
    );
    for (key, word) in [("nan", "NaN"), ("up", "Infinity"), ("down", "-Infinity")] {
        assert!(written(key).contains(word), "{key}: {}", written(key));
        assert_ne!(found[key], Json::Null);
    }
    assert_eq!(found["list"][2], json!([2.5, null]));
    assert_eq!(
        rows(&held)[1]["blob"].as_str().unwrap().len(),
        longest - 200
    );
    assert_eq!(held["runs"][0]["summary"]["nested"], json!({ "only": 1 }));
    assert_eq!(held["runs"][0]["config"]["a"], json!({ "b": [1.5] }));
}

/// Calls of every kind, good ones and bad ones.
fn calls(run: &Run) -> Vec<Result<(), String>> {
    let mut table = Table::new(["name"]).unwrap();
    table.row(("fork",)).unwrap();
    let artifact = || Artifact::new("a", "b");
    let alert = |title: &str| run.alert(title, "text", AlertLevel::Warn, MINUTE);
    let save = |name: &str| run.save_bytes(name, "bytes", SavePolicy::Now);
    let results = [
        run.log(json!({ "a": 1 })).map(|_| ()),
        run.log_at(7, json!({ "a": 1 })),
        run.log_at(7, json!({ "a": 1 })),
        run.log(json!({ "_step": 1 })).map(|_| ()),
        run.log(json!(1)).map(|_| ()),
        run.summary("a", 1),
        run.summary("", 1),
        run.config(json!({ "a": 1 })),
        run.config(json!([])),
        run.config(BTreeMap::from([("a", f64::NAN)])),
        run.log_table("t/x", &table).map(|_| ()),
        run.log_table("../t", &table).map(|_| ()),
        run.log_artifact(&artifact().bytes("x", "y")).map(|_| ()),
        run.log_artifact(&artifact().bytes("../x", "y")).map(|_| ()),
        run.log_artifact(&artifact().bytes("x", "y").bytes("x", "z"))
            .map(|_| ()),
        run.log_artifact(&artifact().bytes("x", "y").reference("x", "https://a/b"))
            .map(|_| ()),
        run.log_artifact(&artifact().file("x", "/dev/null"))
            .map(|_| ()),
        run.log_artifact(&artifact().file("x", "/no such file"))
            .map(|_| ()),
        run.log_artifact(&artifact().reference("x", "no uri"))
            .map(|_| ()),
        run.log_artifact(&Artifact::new("a b", "c")).map(|_| ()),
        alert("title"),
        alert(""),
        save("a/b.txt"),
        save("../b.txt"),
        save("output.log"),
        run.save_file("c.txt", "/dev/null", SavePolicy::End),
        run.console(Console::Stderr, "text"),
    ];
    results
        .into_iter()
        .map(|one| one.map_err(|error| error.to_string()))
        .collect()
}

#[test]
fn a_disabled_run_checks_what_it_is_given_and_writes_and_sends_nothing() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let run = Run::builder()
        .environment(Environment::default())
        .mode(Mode::Disabled)
        .base_url(server.url())
        .api_key(API_KEY)
        .dir(directory.path())
        .start()
        .unwrap();
    let found = calls(&run);
    let sink = run
        .sink()
        .policy("sha256:a", json!({ "a": 1 }))
        .start()
        .unwrap();
    drop(sink);
    assert_eq!(
        (run.directory(), run.url(), run.sync_command()),
        (None, None, None)
    );
    let report = run.finish(0, BOUND).unwrap();
    assert!(
        report.is_complete() && report.acknowledged == 0,
        "{report:?}"
    );
    drop(run);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(
        server.events().iter().all(|event| event["kind"] == "start"),
        "{:?}",
        server.events()
    );

    // The same calls of a run that writes: the same are refused, in the same words.
    let run = offline_in(directory.path());
    assert_eq!(calls(&run), found);
    let refused = found.iter().filter(|one| one.is_err()).count();
    assert_eq!((found.len(), refused), (27, 18));
    assert!(fs::read_dir(directory.path()).unwrap().count() > 0);
}

#[test]
fn a_finished_run_takes_nothing_more_from_any_clone() {
    let (_kept, run) = offline();
    let clone = run.clone();
    run.log(json!({ "a": 1 })).unwrap();
    run.finish(3, BOUND).unwrap();
    let own = clone.directory().unwrap().to_owned();
    let before = tree(&own);
    for (index, refused) in calls(&clone).into_iter().enumerate() {
        assert!(refused.is_err(), "call {index}");
    }
    assert!(matches!(clone.log(json!({ "a": 1 })), Err(Error::Finished)));
    assert!(matches!(clone.finish(0, BOUND), Err(Error::Finished)));
    assert!(matches!(
        clone.sink().start().map(|_| ()),
        Err(Error::Finished)
    ));
    drop((run, clone));
    assert_eq!(tree(&own), before);
    let held = held(&own);
    assert_eq!(held["runs"][0]["exit_code"], 3);
    assert_eq!(rows(&held).len(), 1);
}
