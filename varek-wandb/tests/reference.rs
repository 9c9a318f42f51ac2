//! The judge itself: the official client online and its upload of an offline run lead to the same, and what differs is
//! seen. What other clients log is compared in the same way.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::client::{CURRENT, Client, Mode, Sync, expanded, offline_run, scenario};
use support::server::{Server, diff};

fn online(client: &Client, scenario: &Path) -> Server {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let ran = client.reference(scenario, Mode::Online(&server), directory.path());
    ran.success();
    server
}

fn synced(client: &Client, scenario: &Path, how: Sync) -> Server {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let ran = client.reference(scenario, Mode::Offline, directory.path());
    ran.success();
    let run = offline_run(directory.path());
    client.sync(&run, how, &server).success();
    server
}

/// The fewest of each kind of thing that a recording of the scenario must have, so that no two empty ones are compared.
fn holds_what_was_logged(scenario: &Path, server: &Server) {
    let document = server.normalized();
    let actions = expanded(scenario)["actions"].take();
    let count = |kind: &str| {
        let actions = actions.as_array().unwrap().iter();
        actions.filter(|action| action.get(kind).is_some()).count()
    };
    let len = |value: &Value| value.as_array().unwrap().len();
    let [run] = &document["runs"].as_array().unwrap()[..] else {
        panic!("{document}");
    };
    // What is logged at one step is one row.
    let mut steps: Vec<_> = actions.as_array().unwrap().iter().collect();
    steps.retain(|action| action.get("step").is_some());
    let with_step = steps.len();
    steps.dedup_by_key(|action| action["step"].as_u64());
    let twice = with_step - steps.len();
    assert_eq!(len(&run["history"]), count("log") + count("table") - twice);
    assert_eq!(len(&run["alerts"]), count("alert"));
    assert_eq!(len(&run["console"]), count("console"));
    assert_eq!(
        len(&document["artifacts"]),
        count("artifact") + count("table")
    );
    let artifacts = document["artifacts"].as_array().unwrap();
    assert!(artifacts.iter().all(|one| one["state"] == "COMMITTED"));
    assert_eq!(server.violations(), [""; 0]);
}

#[test]
fn the_official_client_and_its_sync_of_an_offline_run_lead_to_the_same() {
    let Some(client) =
        Client::pinned("the_official_client_and_its_sync_of_an_offline_run_lead_to_the_same")
    else {
        return;
    };
    // The long ones are compared in `official.rs`.
    for name in ["basic", "values", "artifacts", "tables", "console"] {
        let path = scenario(name);
        let first = online(&client, &path);
        holds_what_was_logged(&path, &first);
        let second = synced(&client, &path, Sync::Beta);
        if let Err(difference) = diff(&first, &second) {
            panic!("{name}:\n{difference}");
        }
    }
}

#[test]
fn the_current_client_syncs_what_the_pinned_one_logs() {
    let name = "the_current_client_syncs_what_the_pinned_one_logs";
    let (Some(client), Some(current)) = (Client::pinned(name), Client::of_version(CURRENT, name))
    else {
        return;
    };
    for name in ["basic", "values", "artifacts", "tables", "console"] {
        let path = scenario(name);
        let first = online(&client, &path);
        let directory = tempfile::tempdir().unwrap();
        let ran = client.reference(&path, Mode::Offline, directory.path());
        ran.success();
        let second = Server::start();
        let run = offline_run(directory.path());
        current.sync(&run, Sync::Classic, &second).success();
        if let Err(difference) = diff(&first, &second) {
            panic!("{name}:\n{difference}");
        }
    }
}

/// What the README says of the old sync: no exit code, no `_wandb` in the summary, and nothing else here.
#[test]
fn the_old_sync_loses_the_exit_code_and_the_judge_sees_it() {
    let Some(client) = Client::pinned("the_old_sync_loses_the_exit_code_and_the_judge_sees_it")
    else {
        return;
    };
    let path = scenario("basic");
    let first = online(&client, &path);
    let second = synced(&client, &path, Sync::Classic);
    assert!(diff(&first, &second).is_err());
    let (mut first, mut second) = (first.normalized(), second.normalized());
    assert_eq!(first["runs"][0]["exit_code"], 1);
    assert_eq!(second["runs"][0]["exit_code"], 0);
    for document in [&mut first, &mut second] {
        let run = document["runs"][0].as_object_mut().unwrap();
        run.remove("exit_code");
        run.remove("state");
        run["summary"].as_object_mut().unwrap().remove("_wandb");
    }
    assert_eq!(first["runs"], second["runs"]);
    assert_eq!(first["artifacts"], second["artifacts"]);
}

#[test]
fn one_other_value_alias_or_exit_code_is_a_difference() {
    let Some(client) = Client::pinned("one_other_value_alias_or_exit_code_is_a_difference") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let base = json!({
        "project": "varek-demo", "id": "control1", "exit_code": 1, "actions": [
            {"log": {"loss": 0.5}},
            {"artifact": {"name": "a", "type": "t", "files": {"x": {"text": "x"}}, "aliases": ["latest", "one"]}},
        ],
    });
    let write = |name: &str, scenario: &Value| {
        let path = directory.path().join(name);
        fs::write(&path, scenario.to_string()).unwrap();
        path
    };
    let path = write("base.json", &base);
    let first = online(&client, &path);
    diff(&first, &online(&client, &path)).unwrap();

    let mut row = base.clone();
    row["actions"][0]["log"]["loss"] = json!(0.25);
    let mut alias = base.clone();
    alias["actions"][1]["artifact"]["aliases"][1] = json!("two");
    let mut code = base.clone();
    code["exit_code"] = json!(2);
    for (name, scenario, word) in [
        ("row.json", row, "loss"),
        ("alias.json", alias, "two"),
        ("code.json", code, "exit_code"),
    ] {
        let second = online(&client, &write(name, &scenario));
        let difference = diff(&first, &second).unwrap_err();
        assert!(difference.contains(word), "{difference}");
    }
    // Two that did nothing are not the same: there is nothing to compare.
    let difference = diff(&Server::start(), &Server::start()).unwrap_err();
    assert!(
        difference.contains("nothing that could be compared"),
        "{difference}"
    );
}
