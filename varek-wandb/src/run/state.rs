//! What changes while a run goes on.

use std::collections::HashMap;
use std::time::SystemTime;

use super::{Durability, Shared, check_size, item, items, line_size};
use crate::log::LogWriter;
use crate::proto::{Exit, Final, History, Item, Kind, Step, Summary};
use crate::staging::{Made, random};
use crate::{Error, Value};

/// Keeps one order of all records: whoever holds it appends.
#[derive(Debug)]
pub(crate) struct State {
    /// None where the run is disabled.
    log: Option<LogWriter>,
    over: bool,
    last_step: Option<u64>,
    records: u64,
    /// Records of the log, once it is closed.
    ended_with: u64,
    artifacts: u64,
    /// By the artifact's name, what its versions in this run have in common.
    sequences: HashMap<String, String>,
}

/// A row that is not in the log yet.
pub(super) struct Prepared {
    pub(super) step: u64,
    pub(super) history: Kind,
    pub(super) summary: Vec<Item>,
}

impl State {
    pub(super) fn new(log: Option<LogWriter>) -> Self {
        Self {
            log,
            over: false,
            last_step: None,
            // Header, run and environment.
            records: 3,
            ended_with: 0,
            artifacts: 0,
            sequences: HashMap::new(),
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    pub(super) const fn records(&self) -> u64 {
        match self.log {
            Some(_) => self.records,
            None => self.ended_with,
        }
    }

    pub(super) fn next_artifact(&mut self) -> u64 {
        self.artifacts += 1;
        self.artifacts
    }

    pub(super) fn sequence(&mut self, name: &str) -> Result<String, Error> {
        if let Some(known) = self.sequences.get(name) {
            return Ok(known.clone());
        }
        let fresh = random(128)?;
        self.sequences.insert(name.to_owned(), fresh.clone());
        Ok(fresh)
    }

    /// Appends records by one write.
    pub(super) fn append(&mut self, shared: &Shared, kinds: Vec<Kind>) -> Result<(), Error> {
        let count = kinds.len() as u64;
        if let Some(log) = &mut self.log {
            log.append_all(kinds)?;
            self.records += count;
            shared.written.advance(log.length());
            if shared.facts.durability == Durability::EveryRecord {
                log.sync()?;
            }
        }
        Ok(())
    }

    /// The same for records that name files, which stay if the records are in the log, whether or not they could be brought to the disk.
    pub(super) fn append_with(
        &mut self,
        shared: &Shared,
        kinds: Vec<Kind>,
        made: Made,
    ) -> Result<(), Error> {
        let before = self.records;
        let done = self.append(shared, kinds);
        if done.is_ok() || self.records > before {
            made.keep();
        }
        done
    }

    /// Brings the log to the disk.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.log.as_mut().map_or(Ok(()), LogWriter::sync)
    }

    /// The step that a row without one gets.
    pub(super) fn next_step(&self) -> u64 {
        self.last_step.map_or(0, |last| last.saturating_add(1))
    }

    /// Makes a row's records: what it was given, and `_step`, `_timestamp` and `_runtime`.
    pub(super) fn prepare(
        &self,
        shared: &Shared,
        step: Option<u64>,
        row: Vec<(String, Value)>,
    ) -> Result<Prepared, Error> {
        let step = match (step, self.last_step) {
            (Some(step), Some(last)) if step <= last => {
                return Err(Error::StepInPast { step, last });
            }
            (Some(step), _) => step,
            (None, _) => self.next_step(),
        };
        let Ok(number) = i64::try_from(step) else {
            let found = step.to_string();
            return Err(Error::Name {
                what: "the step",
                found,
                allowed: "at most 2^63 - 1",
            });
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let runtime = shared.facts.began.elapsed();
        let mut items = items(row, "the row")?;
        items.push(item("_step".into(), step.to_string()));
        items.push(item(
            "_timestamp".into(),
            Value::Float(now.as_secs_f64()).json(),
        ));
        items.push(item(
            "_runtime".into(),
            Value::Float(runtime.as_secs_f64()).json(),
        ));
        check_size("the row", line_size(&items))?;
        Ok(Prepared {
            step,
            summary: items.clone(),
            history: Kind::History(History {
                item: items,
                step: Some(Step { num: number }),
            }),
        })
    }

    /// Logs a row, and returns its step.
    pub(super) fn row(
        &mut self,
        shared: &Shared,
        step: Option<u64>,
        row: Vec<(String, Value)>,
    ) -> Result<u64, Error> {
        let Prepared {
            step,
            history,
            summary,
        } = self.prepare(shared, step, row)?;
        let summary = Kind::Summary(Summary {
            update: summary,
            remove: Vec::new(),
        });
        self.append_row(shared, step, vec![history, summary], Made::default())?;
        Ok(step)
    }

    /// Appends what a step's row consists of.
    pub(super) fn append_row(
        &mut self,
        shared: &Shared,
        step: u64,
        kinds: Vec<Kind>,
        made: Made,
    ) -> Result<(), Error> {
        let before = self.records;
        let done = self.append_with(shared, kinds, made);
        // A row that is in the log, and could not be brought to the disk, has had its step.
        if done.is_ok() || self.records > before {
            self.last_step = Some(step);
        }
        done
    }

    /// Logs rows at the next steps by one write, and the last value of each of their keys in the summary.
    pub(super) fn rows(
        &mut self,
        shared: &Shared,
        rows: Vec<Vec<(String, Value)>>,
    ) -> Result<(), Error> {
        let before = self.last_step;
        let mut kinds = Vec::with_capacity(rows.len() + 1);
        let mut places = HashMap::new();
        let mut update: Vec<Item> = Vec::new();
        let mut prepared = Ok(());
        for row in rows {
            match self.prepare(shared, None, row) {
                Ok(Prepared {
                    step,
                    history,
                    summary,
                }) => {
                    self.last_step = Some(step);
                    kinds.push(history);
                    for item in summary {
                        let place = *places.entry(item.key.clone()).or_insert(update.len());
                        match update.get_mut(place) {
                            Some(known) => *known = item,
                            None => update.push(item),
                        }
                    }
                }
                Err(error) => prepared = Err(error),
            }
        }
        let last = self.last_step;
        self.last_step = before;
        if let Some(last) = last.filter(|_| !kinds.is_empty()) {
            kinds.push(Kind::Summary(Summary {
                update,
                remove: Vec::new(),
            }));
            self.append_row(shared, last, kinds, Made::default())?;
        }
        prepared
    }

    /// Ends the log, and brings it to the disk.
    pub(super) fn end(&mut self, shared: &Shared, exit_code: i32) -> Result<(), Error> {
        let seconds = i32::try_from(shared.facts.began.elapsed().as_secs()).unwrap_or(i32::MAX);
        let runtime = Item {
            key: String::new(),
            nested_key: vec!["_wandb".into(), "runtime".into()],
            value_json: seconds.to_string(),
        };
        let exit = Exit {
            exit_code,
            runtime: seconds,
            not_complete: false,
        };
        let before = self.records;
        let done = self.append(
            shared,
            vec![
                Kind::Summary(Summary {
                    update: vec![runtime],
                    remove: Vec::new(),
                }),
                Kind::Exit(exit),
                Kind::Final(Final {}),
            ],
        );
        // What is in the log has ended it, whether or not it could be brought to the disk.
        self.over = done.is_ok() || self.records > before;
        let synced = done.and_then(|()| self.sync());
        if self.over && self.log.take().is_some() {
            // Closed, its lock is free: the directory can be synced.
            self.ended_with = self.records;
        }
        synced
    }
}
