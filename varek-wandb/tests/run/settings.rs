//! Settings: what the embedder says, what the environment says, and which of them wins.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr as _;

use serde_json::{Value, json};
use tempfile::TempDir;
use varek_wandb::{Environment, Error, Mode, Run, RunBuilder, SyncOptions, sync};

use crate::log::{self, RUN};
use crate::support::client::Client;
use crate::support::server::{API_KEY, Server};
use crate::support::succeeded;
use crate::{BOUND, case, embedder, is_complete, passed, rows};

/// A key that no server of these tests takes.
const OTHER_KEY: &str = "0th3r0th3r0th3r0th3r0th3r0th3r0th3r0th3r0";

/// The fields of a run's record, by their numbers.
const ENTITY: u64 = 2;
const PROJECT: u64 = 3;
const GROUP: u64 = 6;
const JOB_TYPE: u64 = 7;
const NAME: u64 = 8;
const NOTES: u64 = 9;
const TAGS: u64 = 10;

/// What an embedder of one line does: a run with what its environment says, and with what its builder is told.
fn an_embedder() {
    let mut builder = Run::builder();
    if std::env::var_os("TOLD").is_some() {
        builder = builder
            .project("told-project")
            .entity("told-entity")
            .name("told name")
            .group("told group")
            .job_type("told kind")
            .notes("told notes")
            .tags(["told", "a,b"])
            .id("told0001");
        if let Some(directory) = std::env::var_os("TOLD_DIR") {
            builder = builder.dir(directory);
        }
        if let Ok(mode) = std::env::var("TOLD_MODE") {
            builder = builder.mode(Mode::from_str(&mode).unwrap());
        }
        if let Ok(url) = std::env::var("TOLD_URL") {
            builder = builder.base_url(url).api_key(API_KEY);
        }
    }
    match builder.start() {
        Ok(run) => {
            run.log(json!({ "number": 1 })).unwrap();
            let report = run.finish(0, BOUND).unwrap();
            let directory = run.directory().map(|path| path.display().to_string());
            let url = report.url.clone().or_else(|| run.url());
            let said = json!({
                "id": run.id(), "mode": format!("{:?}", run.mode()), "directory": directory,
                "complete": report.is_complete(), "url": url,
            });
            println!("say {said}");
        }
        Err(error) => println!("say {}", json!({ "error": error.to_string() })),
    }
}

/// An embedder in an empty directory, which is its home and where it works.
fn started(test: &str, place: &Path, variables: &[(&str, &str)]) -> Value {
    let mut command = embedder(test, "start");
    command
        .current_dir(place)
        .env("HOME", place)
        .stdin(Stdio::null());
    command.envs(variables.iter().copied());
    let said = passed(&mut command);
    serde_json::from_str(&said.concat()).unwrap()
}

/// The record of the run that this directory holds.
fn record(directory: &Path) -> Vec<u8> {
    let log = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|end| end == "wandb"));
    let (records, _) = log::records(&fs::read(log.unwrap()).unwrap());
    let found = records
        .iter()
        .find_map(|record| record.of_kind(RUN).map(<[u8]>::to_vec));
    found.unwrap()
}

fn text(record: &[u8], field: u64) -> String {
    log::texts(record, field).concat()
}

const ALL: [(&str, &str); 9] = [
    ("WANDB_PROJECT", "said-project"),
    ("WANDB_ENTITY", "said-entity"),
    ("WANDB_NAME", "said name"),
    ("WANDB_RUN_GROUP", "said group"),
    ("WANDB_JOB_TYPE", "said kind"),
    ("WANDB_NOTES", "said notes"),
    ("WANDB_TAGS", "said, b,c d"),
    ("WANDB_RUN_ID", "said0001"),
    ("WANDB_MODE", "offline"),
];

#[test]
fn every_variable_is_read_and_the_builder_wins_over_each() {
    if case().is_some() {
        return an_embedder();
    }
    let test = "settings::every_variable_is_read_and_the_builder_wins_over_each";
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    let own = place.join("of the environment");
    fs::create_dir(&own).unwrap();
    let (said_dir, server) = (own.to_str().unwrap(), Server::start());
    let url = server.url();
    let mut variables = ALL.to_vec();
    variables.extend([
        ("WANDB_DIR", said_dir),
        ("WANDB_BASE_URL", "https://api.wandb.test/"),
        ("WANDB_API_KEY", OTHER_KEY),
    ]);
    let said = started(test, &place, &variables);
    assert_eq!(
        (&said["id"], &said["mode"]),
        (&json!("said0001"), &json!("Offline"))
    );
    // Where people look, by the address of the API.
    assert_eq!(
        said["url"],
        "https://app.wandb.test/said-entity/said-project/runs/said0001"
    );
    let directory = PathBuf::from(said["directory"].as_str().unwrap());
    assert!(
        directory.starts_with(own.join("wandb")),
        "{}",
        directory.display()
    );
    let found = record(&directory);
    let fields = [ENTITY, PROJECT, GROUP, JOB_TYPE, NAME, NOTES].map(|field| text(&found, field));
    assert_eq!(
        fields,
        [
            "said-entity",
            "said-project",
            "said group",
            "said kind",
            "said name",
            "said notes"
        ]
    );
    // As the official client has them: what is between the commas.
    assert_eq!(log::texts(&found, TAGS), ["said", " b", "c d"]);

    let told_dir = place.join("of the embedder");
    fs::create_dir(&told_dir).unwrap();
    variables.retain(|(name, _)| *name != "WANDB_MODE");
    variables.extend([
        ("WANDB_MODE", "disabled"),
        ("TOLD", "yes"),
        ("TOLD_DIR", told_dir.to_str().unwrap()),
        ("TOLD_MODE", "online"),
        ("TOLD_URL", &url),
    ]);
    let said = started(test, &place, &variables);
    assert_eq!(
        (&said["id"], &said["mode"], &said["complete"]),
        (&json!("told0001"), &json!("Online"), &json!(true))
    );
    let directory = PathBuf::from(said["directory"].as_str().unwrap());
    assert!(
        directory.starts_with(told_dir.join("wandb")),
        "{}",
        directory.display()
    );
    assert!(
        !directory
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("offline")
    );
    let held = server.normalized();
    assert_eq!(held["violations"], json!([]));
    let run = &held["runs"][0];
    for (key, value) in [
        ("entity", "told-entity"),
        ("project", "told-project"),
        ("id", "told0001"),
        ("display_name", "told name"),
        ("group", "told group"),
        ("job_type", "told kind"),
        ("notes", "told notes"),
    ] {
        assert_eq!(run[key], value, "{key}");
    }
    assert_eq!(run["tags"], json!(["told", "a,b"]));
    assert_eq!(rows(&held).len(), 1);
}

#[test]
fn without_a_key_a_run_is_offline_and_with_one_it_is_online() {
    if case().is_some() {
        return an_embedder();
    }
    let test = "settings::without_a_key_a_run_is_offline_and_with_one_it_is_online";
    let (place, server) = (tempfile::tempdir().unwrap(), Server::start());
    let url = server.url();
    // An empty variable is as good as none.
    let said = started(
        test,
        place.path(),
        &[
            ("WANDB_BASE_URL", &url),
            ("WANDB_API_KEY", ""),
            ("WANDB_MODE", ""),
        ],
    );
    assert_eq!(
        (&said["mode"], &said["complete"]),
        (&json!("Offline"), &json!(false))
    );
    assert_eq!(said["id"].as_str().unwrap().len(), 8);
    let directory = PathBuf::from(said["directory"].as_str().unwrap());
    assert_eq!(text(&record(&directory), PROJECT), "uncategorized");
    let said = started(
        test,
        place.path(),
        &[("WANDB_BASE_URL", &url), ("WANDB_MODE", "online")],
    );
    let error = said["error"].as_str().unwrap();
    assert!(
        error.contains(&url) && error.contains("WANDB_API_KEY"),
        "{error}"
    );
    assert!(server.events().iter().all(|event| event["kind"] == "start"));
    // With slashes at the end, as people write them.
    let said = started(
        test,
        place.path(),
        &[
            ("WANDB_BASE_URL", &format!("{url}//")),
            ("WANDB_API_KEY", API_KEY),
        ],
    );
    assert_eq!(
        (&said["mode"], &said["complete"]),
        (&json!("Online"), &json!(true))
    );
    // `.wandb` where it is there.
    fs::create_dir(place.path().join(".wandb")).unwrap();
    let said = started(
        test,
        place.path(),
        &[("WANDB_MODE", "dryrun"), ("WANDB_API_KEY", API_KEY)],
    );
    assert_eq!(said["mode"], "Offline");
    assert!(
        said["directory"]
            .as_str()
            .unwrap()
            .contains("/.wandb/offline-run-")
    );
    let held = server.normalized();
    assert_eq!(
        (held["runs"].as_array().unwrap().len(), &held["violations"]),
        (1, &json!([]))
    );
}

#[test]
fn disabled_by_the_environment_nothing_is_written_anywhere() {
    if case().is_some() {
        return an_embedder();
    }
    let test = "settings::disabled_by_the_environment_nothing_is_written_anywhere";
    let (place, server) = (tempfile::tempdir().unwrap(), Server::start());
    let variables = [
        ("WANDB_MODE", "disabled"),
        ("WANDB_BASE_URL", &server.url()),
        ("WANDB_API_KEY", API_KEY),
    ];
    let said = started(test, place.path(), &variables);
    assert_eq!(
        (&said["mode"], &said["directory"], &said["url"]),
        (&json!("Disabled"), &Value::Null, &Value::Null)
    );
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert!(server.events().iter().all(|event| event["kind"] == "start"));
    let said = started(test, place.path(), &variables[1..]);
    assert_eq!(said["complete"], true);
    assert!(fs::read_dir(place.path()).unwrap().count() > 0);
}

#[test]
fn the_key_is_the_one_of_the_servers_machine_in_netrc() {
    if case().is_some() {
        return an_embedder();
    }
    let test = "settings::the_key_is_the_one_of_the_servers_machine_in_netrc";
    let (place, server) = (tempfile::tempdir().unwrap(), Server::start());
    let url = server.url();
    let machine = url.strip_prefix("http://").unwrap();
    let netrc = format!(
        "machine api.wandb.ai\n  login user\n  password {OTHER_KEY}\n\
         machine {machine}\n  login user\n  password {API_KEY}\n"
    );
    fs::write(place.path().join(".netrc"), &netrc).unwrap();
    let online = |variables: &[(&str, &str)]| {
        let mut all = vec![("WANDB_BASE_URL", url.as_str())];
        all.extend(variables);
        let said = started(test, place.path(), &all);
        (
            said["mode"].as_str().unwrap_or("").to_owned(),
            said["complete"] == true,
        )
    };
    let whole = ("Online".to_owned(), true);
    assert_eq!(online(&[]), whole, "~/.netrc");
    // The variable's key wins, and is another's.
    let (mode, complete) = online(&[("WANDB_API_KEY", OTHER_KEY)]);
    assert!(mode == "Online" && !complete);
    // The file that NETRC names wins over the one at home.
    fs::write(
        place.path().join("other"),
        format!("default login user password {OTHER_KEY}"),
    )
    .unwrap();
    let (mode, complete) = online(&[("NETRC", "~/other")]);
    assert!(mode == "Online" && !complete);
    fs::rename(place.path().join(".netrc"), place.path().join("_netrc")).unwrap();
    assert_eq!(online(&[]), whole, "~/_netrc");
    fs::rename(place.path().join("_netrc"), place.path().join("named")).unwrap();
    assert_eq!(online(&[]).0, "Offline");
    assert_eq!(
        online(&[("NETRC", place.path().join("named").to_str().unwrap())]),
        whole,
        "NETRC"
    );
    let held = server.normalized();
    assert_eq!(
        (held["runs"].as_array().unwrap().len(), &held["violations"]),
        (3, &json!([]))
    );

    // What waits is sent with the same key.
    let offline = started(test, place.path(), &[("WANDB_MODE", "offline")]);
    let directory = offline["directory"].as_str().unwrap();
    let environment: Environment = [("NETRC", place.path().join("named").into_os_string())]
        .into_iter()
        .collect();
    let options = SyncOptions::new()
        .environment(environment)
        .base_url(&url)
        .within(BOUND);
    is_complete(&sync(directory, &options).unwrap());
}

#[test]
fn settings_that_cannot_be_used_are_refused_by_name_and_leave_nothing() {
    let place = tempfile::tempdir().unwrap();
    let long = |length: usize| "x".repeat(length);
    // Nobody is waited for.
    let key = [
        ("WANDB_API_KEY", OsString::from(API_KEY)),
        ("WANDB_MODE", "offline".into()),
    ];
    let start = |name: &'static str, value: OsString| {
        let variables = key.clone().into_iter().filter(|(other, _)| *other != name);
        let environment: Environment = variables
            .chain([(name, value), ("WANDB_DIR", place.path().into())])
            .collect();
        Run::builder().environment(environment).start()
    };
    let bad: [(&str, &[&str]); 7] = [
        (
            "WANDB_PROJECT",
            &["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "a\nb"],
        ),
        ("WANDB_ENTITY", &["a/b", "a:b", "a\0b"]),
        (
            "WANDB_RUN_ID",
            &["..", ".", " a", "a/b", "a:b", "a'b", "a\tb"],
        ),
        ("WANDB_MODE", &["on", "Online", "offline "]),
        ("WANDB_TAGS", &["a,,b", ",", "a,"]),
        (
            "WANDB_BASE_URL",
            &[
                "ftp://a",
                "a",
                "http://",
                "https://wandb.ai",
                "http://api.wandb.ai",
                "https://u:p@a",
                "https://a?b",
            ],
        ),
        (
            "WANDB_API_KEY",
            &["short", "k3y k3y k3y k3y k3y k3y k3y k3y k3y k3y k3y"],
        ),
    ];
    let mut cases: Vec<(&'static str, OsString)> = bad
        .into_iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| (name, OsString::from(value)))
        })
        .collect();
    cases.extend([
        ("WANDB_PROJECT", long(129).into()),
        ("WANDB_RUN_ID", long(129).into()),
        ("WANDB_TAGS", long(65).into()),
        (
            "WANDB_PROJECT",
            std::os::unix::ffi::OsStringExt::from_vec(vec![b'a', 0xFF]),
        ),
    ]);
    for (name, value) in cases {
        let refused = start(name, value.clone());
        let Err(Error::Setting { setting, .. }) = refused else {
            panic!("{name} {value:?}: {refused:?}");
        };
        assert_eq!(setting, name, "{value:?}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    let netrc = place.path().join("netrc");
    fs::write(&netrc, "machine a\n  password b\n  what is this").unwrap();
    let environment: Environment = [("NETRC", netrc)].into_iter().collect();
    let refused = Run::builder()
        .environment(environment)
        .dir(place.path())
        .start();
    assert!(
        matches!(refused, Err(Error::Netrc { line: 3, .. })),
        "{refused:?}"
    );
    for (name, value) in [
        ("WANDB_PROJECT", long(128)),
        ("WANDB_ENTITY", "a b".into()),
        ("WANDB_RUN_ID", "a b.c_d-ü".into()),
        ("WANDB_MODE", "offline".into()),
        ("WANDB_TAGS", long(64)),
        ("WANDB_BASE_URL", "http://127.0.0.1:9/path".into()),
        ("WANDB_API_KEY", format!("local-{API_KEY}")),
    ] {
        let run = start(name, value.clone().into())
            .unwrap_or_else(|error| panic!("{name} {value}: {error}"));
        drop(run);
    }
}

/// Asks the settings of the official client, and its netrc, for every case at once.
const OFFICIAL: &str = r"
import json, os, sys
from wandb.sdk.lib.wbauth import wbnetrc
from wandb.sdk.wandb_settings import Settings
answers = []
for case in json.load(sys.stdin):
    settings = Settings()
    answer = {}
    try:
        settings.update_from_env_vars(case['environment'])
        answer['tags'] = list(settings.run_tags or ())
        answer['url'] = settings.run_url
        answer['base'] = settings.base_url
    except Exception:
        answer['refused'] = True
    if 'netrc' in case:
        os.environ['NETRC'] = case['netrc']
        try:
            answer['key'] = wbnetrc.read_netrc_auth(host=settings.base_url)
        except Exception as error:
            answer['key'] = 'refused'
    answers.append(answer)
print('say ' + json.dumps(answers))
";

/// The key that a run would use: the server sees it, nobody else.
fn key_of(variables: &Environment, directory: &Path) -> Value {
    let builder: RunBuilder = Run::builder().environment(variables.clone()).dir(directory);
    match builder.start() {
        Ok(run) if run.mode() == Mode::Online => json!(true),
        Ok(_) => Value::Null,
        Err(_) => json!("refused"),
    }
}

/// Settings that the official client is asked about: an environment, and a netrc file where it is about that.
fn cases(place: &Path) -> Vec<Value> {
    let tags = [
        "a",
        "a,b",
        "a, b",
        " a ,b ",
        "a,,b",
        ",a",
        "a,",
        "a b,ü",
        "\"a,b\"",
        "a;b",
        &"x".repeat(64),
        &"x".repeat(65),
    ];
    let urls = [
        "http://127.0.0.1:8080",
        "http://127.0.0.1:8080/",
        "https://host.example.com/path",
        "https://host.example.com/path/",
        "https://host.example.com/path//",
        "https://host.example.com///",
        "https://api.host.example.com",
        "https://api.wandb.ai/",
        "https://api.wandb.test",
        "https://wandb.ai",
        "http://api.wandb.ai",
        "ftp://host.example.com",
        "host.example.com",
    ];
    let keyed =
        |machine: &str, key: &str| format!("machine {machine}\n  login user\n  password {key}\n");
    let files = [
        keyed("127.0.0.1", API_KEY),
        keyed("127.0.0.1:9", API_KEY),
        keyed("127.0.0.2:9", "short") + &keyed("127.0.0.1:9", API_KEY),
        keyed("127.0.0.1:9", API_KEY) + &keyed("127.0.0.2:9", "short"),
        keyed("127.0.0.1:9", API_KEY) + &keyed("127.0.0.1:9", "short"),
        keyed("127.0.0.1:9", "short"),
        format!("default login user password {API_KEY}\n"),
        format!("default login user password {API_KEY}\n") + &keyed("127.0.0.1:9", "short"),
        keyed("127.0.0.2:9", OTHER_KEY),
        String::new(),
    ];
    let case = |name: &str, value: &str| json!({ "environment": { "WANDB_ENTITY": "e", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "r", name: value } });
    let mut cases: Vec<Value> = Vec::new();
    cases.extend(tags.iter().map(|value| case("WANDB_TAGS", value)));
    cases.extend(urls.iter().map(|value| case("WANDB_BASE_URL", value)));
    for (number, file) in files.iter().enumerate() {
        let path = place.join(format!("netrc-{number}"));
        fs::write(&path, file).unwrap();
        // Nobody is there.
        let mut case = case("WANDB_BASE_URL", "http://127.0.0.1:9/path/");
        case["netrc"] = json!(path);
        cases.push(case);
    }
    cases
}

#[test]
fn tags_addresses_and_netrc_mean_what_they_mean_to_the_official_client() {
    let test = "settings::tags_addresses_and_netrc_mean_what_they_mean_to_the_official_client";
    let Some(client) = Client::pinned(test) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let cases = cases(place.path());
    let input = place.path().join("cases.json");
    fs::write(&input, Value::from(cases.clone()).to_string()).unwrap();
    let output = client
        .command("python", place.path())
        .args(["-c", OFFICIAL])
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let text = succeeded(&output);
    let answers: Vec<Value> = serde_json::from_str(text.rsplit_once("say ").unwrap().1).unwrap();
    assert_eq!(answers.len(), cases.len());
    let (mut refused, mut keys) = (0, 0);
    for (case, official) in cases.iter().zip(&answers) {
        let own = TempDir::new_in(place.path()).unwrap();
        let variables = case["environment"].as_object().unwrap().iter();
        let mut variables: Vec<(String, OsString)> = variables
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().into()))
            .collect();
        if let Some(netrc) = case["netrc"].as_str() {
            variables.push(("NETRC".to_owned(), netrc.into()));
            let expected = match official["key"].as_str() {
                Some("refused") => json!("refused"),
                Some(key) => {
                    assert_eq!(key, API_KEY, "{case}");
                    keys += 1;
                    json!(true)
                }
                None => Value::Null,
            };
            assert_eq!(
                key_of(&variables.into_iter().collect(), own.path()),
                expected,
                "{case}"
            );
            continue;
        }
        let environment: Environment = variables.into_iter().collect();
        let started = Run::builder()
            .environment(environment)
            .dir(own.path())
            .mode(Mode::Offline)
            .start();
        assert_eq!(
            started.is_err(),
            official["refused"] == true,
            "{case}: {started:?}"
        );
        let Ok(run) = started else {
            refused += 1;
            continue;
        };
        let found = record(run.directory().unwrap());
        assert_eq!(json!(log::texts(&found, TAGS)), official["tags"], "{case}");
        assert_eq!(json!(run.url()), official["url"], "{case}");
    }
    // Each kind of answer was there.
    assert!(refused >= 5 && keys >= 4, "{refused}, {keys}");
}
