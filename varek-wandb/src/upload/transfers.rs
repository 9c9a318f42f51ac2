//! Files, artifacts and alerts, one after the other, on a thread of their own: history does not wait for them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use serde_json::json;

use super::acknowledged::Entry;
use super::artifact;
use super::http::{Failure, Part, Stored, headers};
use super::shared::{Shared, seconds_now};
use crate::proto::{Alert, Artifact};

/// Addresses that are asked for, at most, for one file.
pub(super) const ADDRESSES: usize = 4;

/// How long an alert whose answer was lost is sent again, where its own wait is not longer: the service does not deliver two of
/// one title within their wait.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Work for the thread.
#[derive(Debug)]
pub(super) enum Job {
    /// A file of the run, by its path beneath `files`.
    File {
        record: u64,
        path: String,
    },
    Artifact {
        record: u64,
        artifact: Box<Artifact>,
    },
    Alert {
        record: u64,
        alert: Alert,
    },
}

/// Does jobs until there are no more to come, or the embedder waits no longer.
pub(super) fn run(shared: &Arc<Shared>, jobs: &Receiver<Job>) {
    for job in jobs {
        let (record, result) = match &job {
            Job::File { record, path } => (*record, file(shared, path)),
            Job::Artifact { record, artifact } => (*record, artifact::send(shared, artifact)),
            Job::Alert { record, alert } => (*record, send_alert(shared, *record, alert)),
        };
        match &result {
            Err(failure @ (Failure::Stopped | Failure::Key { .. })) => {
                // Not the record's fault: it stays pending.
                shared.fail(failure);
                return;
            }
            done => shared.done(record, done),
        }
        shared.ledger().jobs -= 1;
        shared.written.poke();
    }
}

fn file(shared: &Shared, path: &str) -> Result<(), Failure> {
    let inside = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(refused(&format!("{path}: it leads out of the run's files")));
    }
    let whole = shared.directory.join("files").join(path);
    let (opened, size, md5) = digest(&whole)?;
    let known = shared.acknowledged(|known| known.files.get(path).cloned())?;
    if known.as_deref() == Some(md5.as_str()) {
        return Ok(());
    }
    let place = shared.place()?;
    for _ in 0..ADDRESSES {
        let answer = shared.client.graphql(
            "createRunFiles",
            "mutation CreateRunFiles($entity: String!, $project: String!, $run: String!, $files: [String!]!) { \
             createRunFiles(input: {entityName: $entity, projectName: $project, runName: $run, files: $files}) { \
             runID uploadHeaders files { name uploadUrl } } }",
            &json!({ "entity": place.entity, "project": place.project, "run": place.run, "files": [path] }),
        )?;
        let made = answer.get("createRunFiles");
        let url = made
            .and_then(|made| made.pointer("/files/0/uploadUrl"))
            .and_then(|url| url.as_str())
            .ok_or_else(|| refused("createRunFiles: the answer has no address"))?;
        let headers = headers(made.and_then(|made| made.get("uploadHeaders")));
        let part = Part {
            offset: 0,
            length: size,
        };
        if let Stored::Done(_) = shared.client.store(url, &headers, &opened, part)? {
            let path = path.to_owned();
            shared.ledger().stored.push(path.clone());
            return shared.acknowledge(&Entry::File { path, md5 });
        }
    }
    Err(refused(&format!(
        "{path}: the storage took none of {ADDRESSES} addresses that the server gave for it"
    )))
}

fn send_alert(shared: &Shared, record: u64, alert: &Alert) -> Result<(), Failure> {
    let (sent, sending) = shared.acknowledged(|known| {
        let sending = known.alerts_sending.get(&record).copied();
        (known.alerts_sent.contains(&record), sending)
    })?;
    if sent {
        return Ok(());
    }
    let wait = Duration::from_millis(u64::try_from(alert.wait_duration).unwrap_or(0));
    if let Some(began) = sending {
        let age = Duration::from_secs(seconds_now().saturating_sub(began));
        if age >= wait.max(SHORTEST_WAIT) {
            // It may have been delivered. Two are worse than one that is counted.
            shared.ledger().uncertain.insert(record);
            return Ok(());
        }
    }
    let place = shared.place()?;
    let time = seconds_now();
    shared.acknowledge(&Entry::AlertSending { record, time })?;
    shared.client.graphql(
        "notifyScriptableRunAlert",
        "mutation NotifyScriptableRunAlert($entityName: String!, $projectName: String!, $runName: String!, \
         $title: String!, $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) { \
         notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName, runName: $runName, \
         title: $title, text: $text, severity: $severity, waitDuration: $waitDuration}) { success } }",
        &json!({
            "entityName": place.entity,
            "projectName": place.project,
            "runName": place.run,
            "title": alert.title,
            "text": alert.text,
            "severity": if alert.level.is_empty() { "INFO" } else { &alert.level },
            "waitDuration": alert.wait_duration,
        }),
    )?;
    shared.acknowledge(&Entry::AlertSent { record })
}

/// Opens a file, and gives its size and the base64 of its MD5.
pub(super) fn digest(path: &Path) -> Result<(File, u64, String), Failure> {
    let mut file = open(path)?;
    let (size, md5) = hashed(&mut file).map_err(|error| Failure::File {
        reason: format!("{}: {error}", path.display()),
    })?;
    Ok((file, size, md5))
}

/// Opens a regular file. Whatever else has the name, a FIFO for one, is neither waited for nor sent.
pub(super) fn open(path: &Path) -> Result<File, Failure> {
    crate::staging::open(path).map_err(|error| Failure::File {
        reason: error.to_string(),
    })
}

fn hashed(file: &mut File) -> io::Result<(u64, String)> {
    let mut hasher = Md5::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
        size += read as u64;
    }
    Ok((size, STANDARD.encode(hasher.finalize())))
}

/// A file of an artifact: where the log says, or, where the run's directory was moved, in the same place beneath it.
pub(super) fn find(directory: &Path, local: &str) -> PathBuf {
    let local = PathBuf::from(local);
    if local.exists() {
        return local;
    }
    let parts: Vec<_> = local.components().collect();
    for index in 1..parts.len() {
        let tail: PathBuf = parts.iter().skip(index).collect();
        let there = directory.join(&tail);
        if there.is_file() {
            return there;
        }
    }
    local
}

pub(super) fn refused(reason: &str) -> Failure {
    Failure::Refused {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_neither_sent_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (file, fifo) = (directory.path().join("file"), directory.path().join("fifo"));
        std::fs::write(&file, "text").unwrap();
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (_, size, md5) = digest(&file).unwrap();
        assert_eq!((size, md5.as_str()), (4, "HLJR7A1WjeapKbUgxK7Y0Q=="));
        for other in [fifo.as_path(), directory.path(), Path::new("/dev/null")] {
            let Err(Failure::File { reason }) = digest(other) else {
                panic!("{} was read", other.display());
            };
            assert!(reason.contains("is no regular file"), "{reason}");
        }
    }
}
