//! What this crate logs is what the official client would have logged: the server holds the same, whichever of them
//! logged it and whichever sent it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use varek_wandb::{Environment, SyncOptions, sync};

use support::client::{CURRENT, Client, Mode, Sync, expanded, scenario, scenarios};
use support::scenario::log;
use support::server::{API_KEY, Server, diff};

const BOUND: Duration = Duration::from_secs(120);

fn exit_code(scenario: &Value) -> i32 {
    i32::try_from(scenario["exit_code"].as_i64().unwrap_or(0)).unwrap()
}

/// What the official client leaves on the server when it logs a scenario online.
fn reference(client: &Client, path: &Path) -> Server {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    client
        .reference(path, Mode::Online(&server), directory.path())
        .success();
    server
}

/// The directory of a run that this crate logged offline.
fn offline(scenario: &Value) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let run = log(scenario, directory.path(), None);
    run.finish(exit_code(scenario), BOUND).unwrap();
    let own = run.directory().unwrap().to_owned();
    (directory, own)
}

fn same(first: &Server, second: &Server, case: &str) {
    diff(first, second).unwrap_or_else(|lines| panic!("{case}:\n{lines}"));
    assert_eq!(second.violations(), [""; 0], "{case}");
}

#[test]
fn what_is_logged_here_is_what_the_official_client_logs_whoever_sends_it() {
    let test = "what_is_logged_here_is_what_the_official_client_logs_whoever_sends_it";
    let Some(client) = Client::pinned(test) else {
        return;
    };
    for name in scenarios() {
        let path = scenario(&name);
        let given = expanded(&path);
        let expected = reference(&client, &path);

        let server = Server::start();
        let directory = tempfile::tempdir().unwrap();
        let run = log(&given, directory.path(), Some(&server));
        let report = run.finish(exit_code(&given), BOUND).unwrap();
        assert!(report.is_complete() && report.fault.is_none(), "{report:?}");
        same(&expected, &server, &format!("{name}, online"));

        let server = Server::start();
        let (_kept, run) = offline(&given);
        let options = SyncOptions::new()
            .environment(Environment::default())
            .base_url(server.url())
            .api_key(API_KEY);
        let report = sync(&run, &options).unwrap();
        assert!(report.is_complete() && report.fault.is_none(), "{report:?}");
        same(&expected, &server, &format!("{name}, offline and synced"));

        let server = Server::start();
        let (_kept, run) = offline(&given);
        client.sync(&run, Sync::Beta, &server).success();
        same(&expected, &server, &format!("{name}, wandb beta sync"));
    }
}

/// The old sync keeps config values that are empty objects, which the official client online does not, and orders console lines
/// in its own way; what it makes of everything else is the same, the exit code included, which it loses of the official client's
/// own logs.
#[test]
fn the_old_sync_of_the_official_client_takes_the_logs_too() {
    let test = "the_old_sync_of_the_official_client_takes_the_logs_too";
    let Some(client) = Client::pinned(test) else {
        return;
    };
    for name in ["basic", "artifacts", "tables"] {
        let path = scenario(name);
        let expected = reference(&client, &path);
        let server = Server::start();
        let (_kept, run) = offline(&expanded(&path));
        client.sync(&run, Sync::Classic, &server).success();
        same(&expected, &server, &format!("{name}, wandb sync"));
    }
}

#[test]
fn the_sync_of_the_current_official_client_takes_the_logs_too() {
    let test = "the_sync_of_the_current_official_client_takes_the_logs_too";
    let (Some(client), Some(current)) = (Client::pinned(test), Client::of_version(CURRENT, test))
    else {
        return;
    };
    for name in ["basic", "values", "artifacts", "tables", "console"] {
        let path = scenario(name);
        let expected = reference(&client, &path);
        let server = Server::start();
        let (_kept, run) = offline(&expanded(&path));
        current.sync(&run, Sync::Classic, &server).success();
        same(
            &expected,
            &server,
            &format!("{name}, wandb sync of {CURRENT}"),
        );
    }
}
