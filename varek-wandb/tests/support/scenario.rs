//! Scenarios of `tests/scenarios`, logged through this crate.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value as Json;
use varek_wandb::{
    AlertLevel, Artifact, Console, Environment, Mode, Run, SavePolicy, Table, Value,
};

use super::server::{API_KEY, Server};

/// Logs an expanded scenario, up to its end but for `finish`.
pub fn log(scenario: &Json, directory: &Path, online: Option<&Server>) -> Run {
    let text = |key: &str| scenario[key].as_str();
    let mut builder = Run::builder()
        .environment(Environment::default())
        .project(text("project").unwrap())
        .id(text("id").unwrap())
        .dir(directory)
        .mode(Mode::Offline);
    if let Some(server) = online {
        builder = builder
            .mode(Mode::Online)
            .base_url(server.url())
            .api_key(API_KEY);
    }
    if let Some(name) = text("name") {
        builder = builder.name(name);
    }
    if let Some(group) = text("group") {
        builder = builder.group(group);
    }
    if let Some(kind) = text("job_type") {
        builder = builder.job_type(kind);
    }
    if let Some(notes) = text("notes") {
        builder = builder.notes(notes);
    }
    if let Some(tags) = scenario["tags"].as_array() {
        builder = builder.tags(tags.iter().map(|tag| tag.as_str().unwrap()));
    }
    if scenario["config"].is_object() {
        builder = builder.config(&scenario["config"]).unwrap();
    }
    let run = builder.start().unwrap();
    // What the official client is told for one step in several calls is one row here.
    let mut open: Option<(u64, Vec<(String, Value)>)> = None;
    for action in scenario["actions"].as_array().unwrap() {
        let step = action["step"].as_u64();
        if let Some((at, row)) = &mut open {
            if step == Some(*at) {
                row.extend(map(&action["log"]));
                continue;
            }
            run.log_at(*at, Value::Map(row.clone())).unwrap();
            open = None;
        }
        match step {
            Some(step) => open = Some((step, map(&action["log"]))),
            None => act(&run, action),
        }
    }
    if let Some((at, row)) = open {
        run.log_at(at, Value::Map(row)).unwrap();
    }
    run
}

fn act(run: &Run, action: &Json) {
    let (kind, given) = action.as_object().unwrap().iter().next().unwrap();
    let text = |key: &str| given[key].as_str();
    match kind.as_str() {
        "log" => {
            run.log(value(given)).unwrap();
        }
        "summary" => run.summary_all(value(given)).unwrap(),
        "table" => {
            let columns = given["columns"].as_array().unwrap();
            let mut table = Table::new(columns.iter().map(|name| name.as_str().unwrap())).unwrap();
            for row in given["rows"].as_array().unwrap() {
                table.row(value(row)).unwrap();
            }
            run.log_table(text("key").unwrap(), &table).unwrap();
        }
        "artifact" => {
            run.log_artifact(&artifact(given)).unwrap();
        }
        "alert" => {
            let level = match text("level") {
                Some("WARN") => AlertLevel::Warn,
                Some("ERROR") => AlertLevel::Error,
                _ => AlertLevel::Info,
            };
            let wait = Duration::from_secs(given["wait_seconds"].as_u64().unwrap_or(60));
            run.alert(text("title").unwrap(), text("text").unwrap(), level, wait)
                .unwrap();
        }
        "save" => {
            for (path, inner) in given.as_object().unwrap() {
                run.save_bytes(path, content(inner), SavePolicy::End)
                    .unwrap();
            }
        }
        "console" => {
            let stream = match text("stream") {
                Some("stderr") => Console::Stderr,
                _ => Console::Stdout,
            };
            run.console(stream, text("text").unwrap()).unwrap();
        }
        other => panic!("unknown action {other}"),
    }
}

fn artifact(given: &Json) -> Artifact {
    let text = |key: &str| given[key].as_str();
    let mut artifact = Artifact::new(text("name").unwrap(), text("type").unwrap());
    if let Some(description) = text("description") {
        artifact = artifact.description(description);
    }
    if given["metadata"].is_object() {
        artifact = artifact.metadata(&given["metadata"]).unwrap();
    }
    let list = |key: &str| given[key].as_array().cloned().unwrap_or_default();
    for alias in list("aliases") {
        artifact = artifact.alias(alias.as_str().unwrap());
    }
    for tag in list("tags") {
        artifact = artifact.tag(tag.as_str().unwrap());
    }
    let entries = |key: &str| given[key].as_object().cloned().unwrap_or_default();
    for (path, inner) in entries("files") {
        artifact = artifact.bytes(path, content(&inner));
    }
    for (path, uri) in entries("references") {
        artifact = artifact.reference(path, uri.as_str().unwrap());
    }
    artifact
}

fn content(given: &Json) -> Vec<u8> {
    if let Some(text) = given["text"].as_str() {
        return text.into();
    }
    if let Some(text) = given["base64"].as_str() {
        return base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap();
    }
    let times = usize::try_from(given["times"].as_u64().unwrap()).unwrap();
    given["repeat"].as_str().unwrap().repeat(times).into()
}

fn map(given: &Json) -> Vec<(String, Value)> {
    let entries = given.as_object().unwrap().iter();
    entries
        .map(|(key, inner)| (key.clone(), value(inner)))
        .collect()
}

/// A value, with the numbers that JSON lacks.
fn value(given: &Json) -> Value {
    match given {
        Json::Object(entries) => match entries.get("$float").and_then(Json::as_str) {
            Some(text) => Value::Float(text.parse().unwrap()),
            None => Value::Map(map(given)),
        },
        Json::Array(items) => Value::List(items.iter().map(value).collect()),
        other => Value::of(other).unwrap(),
    }
}
