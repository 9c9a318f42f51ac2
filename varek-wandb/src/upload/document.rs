//! What the records of a log amount to.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::console::Console;
use super::transfers::Job;
use super::tree::{Tree, line};
use crate::proto::{Environment, Exit, FilePolicy, Kind, Record, Run};

/// A run, as far as its log was read.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) run: Option<Run>,
    pub(super) environment: Option<Environment>,
    pub(super) config: Tree,
    pub(super) summary: Tree,
    /// Records whose config the server does not have.
    pub(super) config_changes: Vec<u64>,
    /// Records whose summary it does not have.
    pub(super) summary_changes: Vec<u64>,
    pub(super) history: Lines,
    pub(super) output: Lines,
    console: Console,
    /// Jobs that were not handed over yet.
    pub(super) jobs: Vec<Job>,
    /// Files that are sent when the run ends: record and path.
    pub(super) at_end: Vec<(u64, String)>,
    pub(super) exit: Option<(u64, Exit)>,
}

/// Lines that the server does not have, each with its record.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) waiting: VecDeque<(u64, String)>,
    /// The number of the first that waits.
    pub(super) first: u64,
    /// Bytes that wait.
    pub(super) bytes: usize,
    /// Lines before this number were acknowledged to an uploader before.
    pub(super) known: u64,
}

impl Lines {
    /// Takes a line. Says whether it has to be sent.
    fn push(&mut self, record: u64, line: String) -> bool {
        if self.first < self.known {
            self.first += 1;
            return false;
        }
        self.bytes += line.len();
        self.waiting.push_back((record, line));
        true
    }

    /// The lines of one request: as many as fit.
    pub(super) fn batch(&self, most: usize) -> Vec<&str> {
        let mut bytes = 0;
        self.waiting
            .iter()
            .map(|(_, line)| line.as_str())
            .take_while(|line| {
                let fits = bytes == 0 || bytes + line.len() <= most;
                bytes += line.len();
                fits
            })
            .collect()
    }

    /// Takes so many lines away, and gives their records.
    pub(super) fn sent(&mut self, count: usize) -> Vec<u64> {
        let gone: Vec<_> = self
            .waiting
            .drain(..count.min(self.waiting.len()))
            .collect();
        self.first += gone.len() as u64;
        self.bytes -= gone.iter().map(|(_, line)| line.len()).sum::<usize>();
        gone.into_iter().map(|(record, _)| record).collect()
    }
}

/// What a record needs.
pub(super) enum Need {
    /// Something that the server has to acknowledge.
    Sending,
    Nothing,
    /// It is of a kind that is not sent.
    Unknown,
}

impl Document {
    /// Takes the next record, whose number in the log this is.
    pub(super) fn take(&mut self, number: u64, record: Record) -> Need {
        let Some(kind) = record.kind else {
            return Need::Unknown;
        };
        match kind {
            Kind::Run(run) => {
                for item in run.config.iter().flat_map(|config| &config.update) {
                    self.config.update(item);
                }
                for item in run.summary.iter().flat_map(|summary| &summary.update) {
                    self.summary.update(item);
                }
                self.config_changes.push(number);
                self.run.get_or_insert(*run);
            }
            Kind::Config(config) => {
                config
                    .update
                    .iter()
                    .for_each(|item| self.config.update(item));
                config
                    .remove
                    .iter()
                    .for_each(|item| self.config.remove(item));
                self.config_changes.push(number);
            }
            Kind::Summary(summary) => {
                for item in &summary.update {
                    // As the official client has it: null in a row is no value for the summary.
                    if item.value_json == "null" {
                        self.summary.remove(item);
                    } else {
                        self.summary.update(item);
                    }
                }
                summary
                    .remove
                    .iter()
                    .for_each(|item| self.summary.remove(item));
                self.summary_changes.push(number);
            }
            Kind::History(row) => {
                if !self.history.push(number, line(&row.item)) {
                    return Need::Nothing;
                }
            }
            Kind::OutputRaw(output) => {
                let mut waits = false;
                for line in self.console.take(&output) {
                    waits |= self.output.push(number, line);
                }
                if !waits {
                    return Need::Nothing;
                }
            }
            Kind::Files(files) => {
                let mut waits = false;
                for file in files.files {
                    waits = true;
                    let now = file.policy != FilePolicy::End as i32;
                    if now {
                        self.jobs.push(Job::File {
                            record: number,
                            path: file.path.clone(),
                        });
                    }
                    if file.policy != FilePolicy::Now as i32 {
                        self.at_end.push((number, file.path));
                    }
                }
                if !waits {
                    return Need::Nothing;
                }
            }
            Kind::Artifact(artifact) => self.jobs.push(Job::Artifact {
                record: number,
                artifact,
            }),
            Kind::Alert(alert) => self.jobs.push(Job::Alert {
                record: number,
                alert,
            }),
            Kind::Exit(exit) => {
                for line in self.console.rest() {
                    self.output.push(number, line);
                }
                self.exit = Some((number, exit));
            }
            Kind::Environment(environment) => {
                self.environment = Some(*environment);
                return Need::Nothing;
            }
            Kind::Final(_) | Kind::Header(_) | Kind::Footer(_) => return Need::Nothing,
        }
        Need::Sending
    }

    /// The config as the service keeps it: each value in an object of its own, and `_wandb` with what makes a run one that can be
    /// resumed.
    pub(super) fn config_json(&self) -> String {
        let mut whole = Tree::default();
        for (key, value) in self.config.entries() {
            if let Some(value) = value.pruned()
                && let Some(place) = whole.entry(key).and_then(|own| own.entry("value"))
            {
                *place = value;
            }
        }
        let telemetry = self.run.as_ref().and_then(|run| run.telemetry.as_ref());
        let version = telemetry.map_or("", |telemetry| telemetry.cli_version.as_str());
        let platform = telemetry.map_or("", |telemetry| telemetry.platform.as_str());
        let own = [
            ("t", json!({ "12": version, "13": platform })),
            ("m", json!([])),
        ];
        for (key, value) in own {
            let place = whole
                .entry("_wandb")
                .and_then(|own| own.entry("value"))
                .and_then(|value| value.entry(key));
            if let Some(place) = place {
                *place = Tree::Text(value.to_string());
            }
        }
        whole.json()
    }

    /// What `upsertBucket` is told of the run.
    pub(super) fn variables(&self) -> Value {
        let Some(run) = &self.run else {
            return Value::Null;
        };
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        let environment = self.environment.as_ref();
        let host = text(&run.host).or_else(|| environment.and_then(|own| text(&own.host)));
        json!({
            "name": run.run_id,
            "project": text(&run.project),
            "entity": text(&run.entity),
            "groupName": text(&run.run_group),
            "displayName": text(&run.display_name),
            "notes": text(&run.notes),
            "jobType": text(&run.job_type),
            "tags": run.tags,
            "host": host,
            "program": environment.and_then(|own| text(&own.program)),
            "config": self.config_json(),
        })
    }
}
