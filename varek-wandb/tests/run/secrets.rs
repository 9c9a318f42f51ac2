//! Secrets of the embedder: they are in no file of the run, in nothing that is sent, in no `Debug` and in no message.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::json;
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Error, Mode, Run, RunBuilder, SavePolicy,
    SyncOptions, Table, sync,
};

use crate::support::server::{API_KEY, Server};
use crate::{BOUND, case, embedder, given, holds, offline, options, passed, tree};

/// Planted in the embedder's environment, its arguments and its address.
const IN_ENVIRONMENT: &str = "planted-in-the-environment";
const IN_ARGUMENTS: &str = "planted-in-the-arguments";
const PASSWORD: &str = "planted-password";
/// Said to the run.
const SAID: &str = "said-to-the-run";

fn embedder_with_secrets() {
    let run = Run::builder()
        .project("varek-demo")
        .id("run00001")
        .start()
        .unwrap();
    assert_eq!(
        run.mode(),
        if given("WHERE") == "online" {
            Mode::Online
        } else {
            Mode::Offline
        }
    );
    run.log(json!({ "text": SAID })).unwrap();
    run.config(json!({ "text": SAID })).unwrap();
    let mut table = Table::new(["name"]).unwrap();
    table.row((SAID,)).unwrap();
    run.log_table("table", &table).unwrap();
    run.log_artifact(&Artifact::new("a", "b").bytes("x", SAID))
        .unwrap();
    run.alert("title", SAID, AlertLevel::Warn, BOUND).unwrap();
    run.save_bytes("x", SAID, SavePolicy::Now).unwrap();
    run.console(Console::Stdout, SAID).unwrap();
    // What is printed is nobody's but the terminal's.
    println!("{IN_ARGUMENTS}");
    let sink = run
        .sink()
        .policy("sha256:a", json!({ "text": SAID }))
        .start()
        .unwrap();
    let report = run.finish(0, BOUND).unwrap();
    println!("say {}", report.is_complete());
    for shown in [
        format!("{run:?}"),
        format!("{sink:?}"),
        format!("{report:?}"),
        format!("{:?}", Environment::of_process()),
    ] {
        assert!(
            !shown.contains(IN_ENVIRONMENT) && !shown.contains(API_KEY),
            "{shown}"
        );
    }
}

#[test]
fn nothing_of_the_embedders_environment_arguments_and_output_is_kept_or_sent() {
    let name = "secrets::nothing_of_the_embedders_environment_arguments_and_output_is_kept_or_sent";
    if case().is_some() {
        return embedder_with_secrets();
    }
    for mode in ["online", "offline"] {
        let (place, server) = (tempfile::tempdir().unwrap(), Server::start());
        let mut command = embedder(name, "secrets");
        command
            .arg("--skip")
            .arg(IN_ARGUMENTS)
            .current_dir(place.path())
            .env("HOME", place.path())
            .env("WHERE", mode)
            .env("WANDB_MODE", mode)
            .env("WANDB_BASE_URL", server.url())
            .env("WANDB_API_KEY", API_KEY)
            .env("DATABASE_PASSWORD", IN_ENVIRONMENT)
            .env("WANDB_SOMETHING", IN_ENVIRONMENT)
            .env("WF_SOMETHING", IN_ENVIRONMENT);
        let said = passed(&mut command);
        assert_eq!(said, [(mode == "online").to_string()]);
        let own = fs::canonicalize(place.path().join("wandb/latest-run")).unwrap();
        if mode == "offline" {
            sync(&own, &options(&server)).unwrap();
        }
        let mut places = tree(place.path());
        assert!(places.len() > 8, "{:?}", places.keys());
        places.insert(
            "what the server was sent".into(),
            fs::read(server.record()).unwrap(),
        );
        for (path, bytes) in &places {
            for secret in [IN_ENVIRONMENT, IN_ARGUMENTS, API_KEY] {
                assert!(!holds(bytes, secret), "{secret} in {}", path.display());
            }
        }
        // What was said would be found, in the log and at the server.
        let found = |end: &str| {
            places
                .iter()
                .any(|(path, bytes)| path.to_string_lossy().ends_with(end) && holds(bytes, SAID))
        };
        assert!(found(".wandb") && found("what the server was sent"));
        assert_eq!(server.violations(), [""; 0]);
    }
}

/// Everything that a message says, and what is behind it.
fn all_of(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        let _ = write!(text, " {inner} {inner:?}");
        source = inner.source();
    }
    text
}

#[test]
fn neither_debug_nor_a_message_shows_a_key_or_a_password() {
    let place = tempfile::tempdir().unwrap();
    let address =
        format!("https://user:{PASSWORD}@host.example.com/path?token={PASSWORD}#{PASSWORD}");
    let netrc = place.path().join("netrc");
    fs::write(
        &netrc,
        format!("machine 127.0.0.1:9 login user password {API_KEY}\n  {PASSWORD}"),
    )
    .unwrap();
    let environment =
        |variables: &[(&str, &str)]| variables.iter().copied().collect::<Environment>();
    let full = environment(&[
        ("WANDB_API_KEY", API_KEY),
        ("WANDB_BASE_URL", &address),
        ("HOME", PASSWORD),
    ]);
    let builder = |environment: Environment| {
        Run::builder()
            .environment(environment)
            .dir(place.path())
            .mode(Mode::Online)
    };
    let mut shown = vec![
        format!("{full:?}"),
        format!(
            "{:?}",
            builder(full.clone()).api_key(API_KEY).base_url(&address)
        ),
        format!(
            "{:?}",
            SyncOptions::new()
                .environment(full.clone())
                .api_key(API_KEY)
                .base_url(&address)
        ),
        format!(
            "{:?}",
            Artifact::new("a", "b")
                .bytes("x", PASSWORD)
                .description(PASSWORD)
        ),
    ];
    let short = &API_KEY[..20];
    let spaced = format!("{API_KEY} ");
    let addresses = [
        address.clone(),
        format!("http://{PASSWORD}@127.0.0.1:9"),
        format!("user:{PASSWORD}@127.0.0.1"),
        format!("http://user:{PASSWORD}/{PASSWORD}@127.0.0.1"),
        format!("http://user:{PASSWORD}?{PASSWORD}@127.0.0.1"),
        format!("http://127.0.0.1/?{PASSWORD}"),
        format!("ftp://127.0.0.1/?{PASSWORD}"),
    ];
    let mut builders: Vec<RunBuilder> = vec![
        builder(environment(&[("WANDB_API_KEY", short)])),
        builder(environment(&[("WANDB_API_KEY", &spaced)])),
        builder(Environment::default()).api_key(short),
        builder(environment(&[("NETRC", netrc.to_str().unwrap())])).base_url("http://127.0.0.1:9"),
    ];
    builders.extend(addresses.iter().map(|address| {
        builder(Environment::default())
            .base_url(address)
            .api_key(API_KEY)
    }));
    builders.push(builder(environment(&[
        ("WANDB_BASE_URL", &address),
        ("WANDB_API_KEY", API_KEY),
    ])));
    for builder in builders {
        shown.push(format!("{builder:?}"));
        shown.push(all_of(&builder.start().unwrap_err()));
    }
    let (_kept, run) = offline();
    run.finish(0, BOUND).unwrap();
    let options = SyncOptions::new()
        .environment(full)
        .api_key(API_KEY)
        .base_url(&address);
    shown.push(all_of(
        &sync(run.directory().unwrap(), &options).unwrap_err(),
    ));
    for text in &shown {
        assert!(!text.contains(PASSWORD) && !text.contains(short), "{text}");
    }
    // What is no secret is still said.
    let said = |text: &str| shown.iter().filter(|shown| shown.contains(text)).count();
    assert!(
        said("host.example.com/path") >= 4
            && said("WANDB_API_KEY") >= 3
            && said("20 characters") == 2,
        "{shown:#?}"
    );
}

#[test]
fn what_a_server_that_refuses_says_is_told_without_the_key() {
    for fault in [
        "on=graphql,do=401,times=inf",
        "on=graphql,do=403,times=inf",
        "on=upload,do=403,times=inf",
        "on=file_stream,do=400,times=inf",
    ] {
        let server = Server::faulty(&[fault]);
        let place = tempfile::tempdir().unwrap();
        let run = Run::builder()
            .environment(Environment::default())
            .dir(place.path())
            .base_url(server.url())
            .api_key(API_KEY)
            .mode(Mode::Online)
            .start()
            .unwrap();
        run.log(BTreeMap::from([("a", 1)])).unwrap();
        run.log_artifact(&Artifact::new("a", "b").bytes("x", "y"))
            .unwrap();
        let report = run.finish(0, Duration::from_secs(20)).unwrap();
        assert!(
            !report.is_complete() && report.fault.is_some(),
            "{fault}: {report:?}"
        );
        assert!(
            !format!("{report:?}").contains(API_KEY),
            "{fault}: {report:?}"
        );
        for (path, bytes) in tree(place.path()) {
            assert!(!holds(&bytes, API_KEY), "{}", path.display());
        }
    }
}
