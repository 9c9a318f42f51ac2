//! The run itself: its creation, history, summary, console and end.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::acknowledged::{Entry, Lines, Place};
use super::document::{Document, Need};
use super::generated;
use super::http::Failure;
use super::shared::Shared;
use super::transfers::{Job, refused};
use crate::log::{LogReader, Next};

/// Bytes of lines in a request, unless one line is longer.
const REQUEST: usize = 6 * 1024 * 1024;

/// Bytes of lines that wait, beyond which the log is not read on.
const WAITING: usize = 4 * REQUEST;

/// How often the server is told that the run goes on, where there is nothing else to say. Source: the client's behaviour.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Stands for the record of files that are no record's own, but made of the log: no log has as many.
const GENERATED: u64 = u64::MAX;

/// The thread that reads the log.
#[derive(Debug)]
pub(super) struct Stream {
    shared: Arc<Shared>,
    reader: LogReader,
    jobs: Sender<Job>,
    interval: Duration,
    log: PathBuf,
    document: Document,
    records: u64,
    created: bool,
    /// When the server was last told something.
    told: Option<Instant>,
    /// An uploader before has sent everything, and marked the run as ended or was about to: its streams take nothing more.
    closed: bool,
    /// The server has acknowledged the mark.
    complete: bool,
}

impl Stream {
    pub(super) fn new(
        shared: Arc<Shared>,
        reader: LogReader,
        jobs: Sender<Job>,
        interval: Duration,
        log: PathBuf,
    ) -> Self {
        Self {
            shared,
            reader,
            jobs,
            interval,
            log,
            document: Document::default(),
            records: 0,
            created: false,
            told: None,
            closed: false,
            complete: false,
        }
    }

    pub(super) fn run(mut self) {
        let result = self.send_all();
        if let Err(failure) = &result {
            self.shared.fail(failure);
        }
        self.shared.ledger().ended = true;
        self.shared.written.poke();
    }

    fn send_all(&mut self) -> Result<(), Failure> {
        let (known, files) = self.shared.acknowledged(|known| {
            self.closed = known.completing;
            self.complete = known.complete;
            let files: Vec<String> = known.files.keys().cloned().collect();
            (known.sent, files)
        })?;
        self.document.history.known = known.history;
        self.document.output.known = known.console;
        if !self.closed {
            // Whether the server was told of them is not known.
            self.shared.ledger().stored = files;
        }
        loop {
            self.shared.stop.check()?;
            let seen = self.shared.written.look();
            self.read(seen.end)?;
            if !self.created && self.document.run.is_some() {
                self.create()?;
            }
            if self.created {
                self.hand_over();
            }
            let all_read = self.reader.position() >= seen.end;
            let ended = self.document.exit.is_some() && all_read;
            let late = self.told.is_none_or(|told| told.elapsed() >= self.interval);
            if self.created && (ended || late || !all_read) {
                self.bring_up_to_date()?;
            }
            if ended {
                return self.finish();
            }
            if all_read {
                let wait = if self.has_news() {
                    self.interval
                } else {
                    HEARTBEAT
                };
                let now = Instant::now();
                let until = self.told.map_or(now + wait, |told| told + wait);
                self.shared.written.wait(seen, until);
                if self.created && Instant::now() >= until && !self.has_news() {
                    self.post(Map::new())?;
                } else if self.has_news() {
                    // Everything that comes within the interval goes with it.
                    self.settle(until)?;
                }
            }
        }
    }

    /// Lets news gather until then, unless the run ends.
    fn settle(&mut self, until: Instant) -> Result<(), Failure> {
        loop {
            self.shared.stop.check()?;
            let seen = self.shared.written.look();
            self.read(seen.end)?;
            self.hand_over();
            let full = self.document.history.bytes >= REQUEST;
            if full || self.document.exit.is_some() || Instant::now() >= until {
                return Ok(());
            }
            self.shared.written.wait(seen, until);
        }
    }

    /// Reads the log up to there, or as much as may wait.
    fn read(&mut self, end: u64) -> Result<(), Failure> {
        while self.reader.position() < end
            && self.document.history.bytes + self.document.output.bytes < WAITING
        {
            let at = self.reader.position();
            let record = match self.reader.next() {
                Ok(Next::Record(record)) => *record,
                Ok(Next::End) => return Ok(()),
                Ok(Next::Damaged(damage)) => {
                    return Err(refused(&format!(
                        "{} at byte {at}: {damage}",
                        self.log.display()
                    )));
                }
                Err(error) => return Err(refused(&error.to_string())),
            };
            let number = self.records;
            self.records += 1;
            let need = self.document.take(number, record);
            let mut ledger = self.shared.ledger();
            ledger.read = self.records;
            match need {
                Need::Sending => {
                    ledger.pending.insert(number);
                }
                Need::Nothing => {}
                Need::Unknown => ledger.skipped += 1,
            }
            drop(ledger);
            // The run is made before anything else is read: what comes may need its place.
            if !self.created && self.document.run.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the server lacks something that is no job.
    fn has_news(&self) -> bool {
        let document = &self.document;
        let streams = !document.history.waiting.is_empty()
            || !document.output.waiting.is_empty()
            || !document.summary_changes.is_empty()
            || !self.shared.ledger().stored.is_empty();
        (streams || !document.config_changes.is_empty()) && self.created
    }

    fn hand_over(&mut self) {
        for job in self.document.jobs.drain(..) {
            self.shared.ledger().jobs += 1;
            // The other thread is there for as long as nothing has failed.
            let _ = self.jobs.send(job);
        }
    }

    /// Makes the run, or finds it, and learns whose it is.
    fn create(&mut self) -> Result<(), Failure> {
        if self.closed {
            self.created = true;
            self.document.config_changes.drain(..).for_each(|record| {
                self.shared.ledger().pending.remove(&record);
            });
            return Ok(());
        }
        let (known, sent, sending) = self
            .shared
            .acknowledged(|known| (known.place.clone(), known.sent, known.sending))?;
        let ours = sent.history.max(sending.history);
        // Asked before anything is written: the id may be that of another run.
        let there = self.lines_there()?;
        self.compare(there, sent.history, ours)?;
        let answer = self.upsert()?;
        let bucket = answer
            .pointer("/upsertBucket/bucket")
            .unwrap_or(&Value::Null);
        let text = |pointer| bucket.pointer(pointer).and_then(Value::as_str);
        let place = text("/project/entity/name")
            .zip(text("/project/name"))
            .zip(text("/name"));
        let Some(((entity, project), run)) = place else {
            return Err(refused(
                "upsertBucket: the answer does not say where the run is",
            ));
        };
        let place = Place {
            server: self.shared.client.base_url().to_owned(),
            entity: entity.to_owned(),
            project: project.to_owned(),
            run: run.to_owned(),
        };
        if known.as_ref() != Some(&place) {
            self.shared.acknowledge(&Entry::Run(place))?;
        }
        self.created = true;
        Ok(())
    }

    /// How many rows the server has of a run with this id; none where it has no such run.
    fn lines_there(&self) -> Result<Option<u64>, Failure> {
        let variables = self.document.variables();
        let asked =
            ["name", "project", "entity"].map(|key| (key.to_owned(), variables.get(key).cloned()));
        let asked: Map<String, Value> = asked
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let answer = self.shared.client.graphql(
            "RunResumeStatus",
            "query RunResumeStatus($project: String, $entity: String, $name: String!) { \
             model(name: $project, entityName: $entity) { id name bucket(name: $name, missingOk: true) { id name historyLineCount } } }",
            &Value::Object(asked),
        )?;
        let run = answer.pointer("/model/bucket").filter(|run| !run.is_null());
        Ok(run.map(|run| {
            run.get("historyLineCount")
                .and_then(Value::as_u64)
                .unwrap_or(0)
        }))
    }

    /// Refuses to touch a run that is not this log's, or not any more.
    fn compare(&self, there: Option<u64>, sent: u64, ours: u64) -> Result<(), Failure> {
        let id = self
            .document
            .run
            .as_ref()
            .map_or("", |run| run.run_id.as_str());
        match there {
            Some(there) if there > ours => Err(refused(&format!(
                "run {id}: the server has {there} rows of a run with this id, and this log has sent {ours}: \
                 another run has the id; nothing was changed there"
            ))),
            there if there.unwrap_or(0) < sent => Err(refused(&format!(
                "run {id}: the server had acknowledged {sent} rows and has {}: the run was deleted there; to send it anew, \
                 remove `varek/acknowledged.jsonl` from the run's directory",
                there.unwrap_or(0)
            ))),
            _ => Ok(()),
        }
    }

    fn upsert(&mut self) -> Result<Value, Failure> {
        let answer = self.shared.client.graphql(
            "upsertBucket",
            "mutation UpsertBucket($name: String, $project: String, $entity: String, $groupName: String, \
             $displayName: String, $notes: String, $config: JSONString, $host: String, $program: String, \
             $jobType: String, $tags: [String!]) { upsertBucket(input: {name: $name, modelName: $project, \
             entityName: $entity, groupName: $groupName, displayName: $displayName, notes: $notes, config: $config, \
             host: $host, jobProgram: $program, jobType: $jobType, tags: $tags}) { bucket { id name displayName \
             project { name entity { name } } historyLineCount } inserted } }",
            &self.document.variables(),
        )?;
        let mut ledger = self.shared.ledger();
        for record in self.document.config_changes.drain(..) {
            ledger.pending.remove(&record);
        }
        Ok(answer)
    }

    /// Sends what waits.
    fn bring_up_to_date(&mut self) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        if !self.document.config_changes.is_empty() {
            self.upsert()?;
        }
        loop {
            let history = self.document.history.batch(REQUEST);
            let output = self.document.output.batch(REQUEST);
            let (rows, lines) = (history.len(), output.len());
            let stored: Vec<String> = self.shared.ledger().stored.clone();
            let summary = !self.document.summary_changes.is_empty();
            if rows == 0 && lines == 0 && stored.is_empty() && !summary {
                return Ok(());
            }
            let mut files = Map::new();
            if rows > 0 {
                let chunk = json!({ "offset": self.document.history.first, "content": history });
                files.insert("wandb-history.jsonl".into(), chunk);
            }
            if lines > 0 {
                let chunk = json!({ "offset": self.document.output.first, "content": output });
                files.insert("output.log".into(), chunk);
            }
            if summary {
                let chunk = json!({ "offset": 0, "content": [self.document.summary.json()] });
                files.insert("wandb-summary.json".into(), chunk);
            }
            let mut body = Map::new();
            if !files.is_empty() {
                body.insert("files".into(), Value::Object(files));
            }
            if !stored.is_empty() {
                body.insert("uploaded".into(), stored.clone().into());
            }
            let before = Lines {
                history: self.document.history.first,
                console: self.document.output.first,
            };
            let after = Lines {
                history: before.history + rows as u64,
                console: before.console + lines as u64,
            };
            if before != after {
                self.shared.acknowledge(&Entry::Sending(after))?;
            }
            self.post(body)?;
            if before != after {
                self.shared.acknowledge(&Entry::Sent(after))?;
            }
            let mut done = self.document.history.sent(rows);
            // A record whose lines did not all fit is done with its last one.
            let mut written = self.document.output.sent(lines);
            if let Some((next, _)) = self.document.output.waiting.front() {
                written.retain(|record| record != next);
            }
            done.append(&mut written);
            done.append(&mut self.document.summary_changes);
            let exit = self.document.exit.as_ref().map(|(record, _)| *record);
            let mut ledger = self.shared.ledger();
            for record in done.iter().filter(|record| Some(**record) != exit) {
                ledger.pending.remove(record);
            }
            ledger.stored.drain(..stored.len());
        }
    }

    fn post(&mut self, body: Map<String, Value>) -> Result<(), Failure> {
        let place = self.shared.place()?;
        let [entity, project, run] =
            [&place.entity, &place.project, &place.run].map(|part| crate::run::quoted(part));
        let path = format!("/files/{entity}/{project}/{run}/file_stream");
        let body = Value::Object(body).to_string();
        let answer = self.shared.client.stream(&path, body.as_bytes())?;
        if answer.get("stopped").and_then(Value::as_bool) == Some(true) {
            self.shared.ledger().stopped_by_user = true;
        }
        self.told = Some(Instant::now());
        Ok(())
    }

    /// The last files, and, when everything else is there, the end: who sees the run finished sees all of it.
    fn finish(&mut self) -> Result<(), Failure> {
        for (record, path) in std::mem::take(&mut self.document.at_end) {
            self.document.jobs.push(Job::File { record, path });
        }
        let exit = self.document.exit.take();
        if exit.is_some() && !self.closed {
            for path in generated::write(&self.document, &self.shared.directory) {
                self.document.jobs.push(Job::File {
                    record: GENERATED,
                    path,
                });
            }
        }
        self.hand_over();
        loop {
            self.shared.stop.check()?;
            let seen = self.shared.written.look();
            if self.shared.ledger().jobs == 0 {
                break;
            }
            let until = self.told.unwrap_or_else(Instant::now) + HEARTBEAT;
            self.shared.written.wait(seen, until);
            if Instant::now() >= until && !self.closed {
                self.post(Map::new())?;
            }
        }
        self.bring_up_to_date()?;
        let Some((record, exit)) = exit else {
            return Ok(());
        };
        if !self.complete && !exit.not_complete {
            self.shared.acknowledge(&Entry::Completing)?;
            let mut body = Map::new();
            body.insert("complete".into(), true.into());
            body.insert("exitcode".into(), exit.exit_code.into());
            self.post(body)?;
            self.shared.acknowledge(&Entry::Complete)?;
        }
        let mut ledger = self.shared.ledger();
        ledger.pending.remove(&record);
        ledger.refused.remove(&GENERATED);
        ledger.pending.clear();
        ledger.complete = true;
        let whole = ledger.refused.is_empty();
        drop(ledger);
        if whole {
            let mut synced = self.log.clone().into_os_string();
            synced.push(".synced");
            // It says to others what the acknowledgements say; nothing is lost without it.
            let _ = fs::write(synced, b"");
        }
        Ok(())
    }
}
