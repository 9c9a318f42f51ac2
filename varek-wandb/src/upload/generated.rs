//! Files that clients make for a run, beside those that it saved.

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::document::Document;
use crate::Error;
use crate::proto::Environment;
use crate::staging::{Draft, Made};

/// Writes them into the run's `files`, and gives the names of those that are there. A file that is there is left as it is, and one that
/// cannot be written is left out: nothing is in them that is not in the log.
pub(super) fn write(document: &Document, run: &Path) -> Vec<String> {
    let files = run.join("files");
    let mut written = Vec::new();
    let mut put = |name: &str, text: String| {
        // Whole or not at all: what is there is sent as it is.
        let made = files.join(name).exists() || make(run, name, &text).is_ok();
        if made {
            written.push(name.to_owned());
        }
    };
    if let Some(environment) = &document.environment {
        put("wandb-metadata.json", metadata(environment));
    }
    if !document.config.is_empty() {
        put("config.yaml", config(document));
    }
    if !document.summary.is_empty() {
        put("wandb-summary.json", document.summary.json());
    }
    written
}

fn make(run: &Path, name: &str, text: &str) -> Result<(), Error> {
    let mut made = Made::default();
    let draft = Draft::of_bytes(run, text.as_bytes())?;
    draft.keep_among_files(run, name, &mut made)?;
    made.keep();
    Ok(())
}

/// JSON is YAML.
fn config(document: &Document) -> String {
    let mut text = String::new();
    for (key, value) in document
        .config
        .entries()
        .filter(|(key, _)| *key != "_wandb")
    {
        let key = Value::from(key.as_str());
        // A string takes everything.
        let _ = writeln!(text, "{key}:\n    value: {}", value.json());
    }
    text
}

fn metadata(environment: &Environment) -> String {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    let texts = [
        ("os", &environment.os),
        ("program", &environment.program),
        ("host", &environment.host),
        ("username", &environment.username),
        ("executable", &environment.executable),
        ("writerId", &environment.writer_id),
    ];
    for (key, text) in texts {
        if !text.is_empty() {
            put(key, text.as_str().into());
        }
    }
    if !environment.args.is_empty() {
        put("args", environment.args.clone().into());
    }
    if environment.cpu_count > 0 {
        put("cpu_count", environment.cpu_count.into());
    }
    let started = environment
        .started_at
        .as_ref()
        .and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    if let Some(started) = started {
        put("startedAt", started.to_string().into());
    }
    Value::Object(object).to_string()
}
