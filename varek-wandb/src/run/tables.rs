//! Tables of a run.

use super::state::Prepared;
use super::{Run, files, own_directory};
use crate::proto::{FilePolicy, FileType, Kind, Summary};
use crate::staging::{Draft, Made};
use crate::table::{MOST_ROWS, MOST_SHOWN};
use crate::{Artifact, Error, Table, Value, names};

/// What became of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedTable {
    /// The step that it was logged at.
    pub step: u64,
    /// Rows that are in its artifact: 200,000 at most.
    pub kept: usize,
    /// Rows that the run's own page shows: 10,000 at most.
    pub shown: usize,
    /// Rows that were left out: those after the 200,000th.
    pub omitted: usize,
}

impl Run {
    /// Logs a table under a key, at a step of its own.
    ///
    /// As the official client does it, the table is an artifact (of the type `run_table`), a file of the run, and a value of the row and
    /// of the summary that names both.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] where the key would be a path that leads elsewhere, and those of [`Run::log`].
    pub fn log_table(&self, key: &str, table: &Table) -> Result<LoggedTable, Error> {
        names::key(key)?;
        names::relative("the table's key", key)?;
        let artifact = Artifact::of_run(names::table_artifact(self.id(), key)?);
        let number = self.shared.state()?.next_artifact();
        let inner = format!("{key}.table.json");
        let mut logged = LoggedTable {
            step: 0,
            kept: table.len().min(MOST_ROWS),
            shown: table.len().min(MOST_SHOWN),
            omitted: table.len().saturating_sub(MOST_ROWS),
        };
        let Some(run) = self.directory() else {
            logged.step = self.log(
                [(key, "a table")]
                    .into_iter()
                    .collect::<std::collections::BTreeMap<_, _>>(),
            )?;
            return Ok(logged);
        };
        let mut made = Made::default();
        let mut draft = Draft::begin(run)?;
        table.write_artifact(&mut draft)?;
        let whole = draft.finish()?;
        let mut draft = Draft::begin(run)?;
        table.write_shown(&mut draft)?;
        let shown = draft.finish()?;
        let own = own_directory(run, number);
        let staged = artifact
            .clone()
            .stage_draft(&inner, whole, (run, &own), &mut made)?;

        let mut state = self.shared.state()?;
        let record = artifact.record(staged, self.artifact_base(&mut state, artifact.name())?);
        let step = state.next_step();
        let start = shown.sha256.get(..20).unwrap_or_default();
        let path = format!("media/table/{key}_{step}_{start}.table.json");
        let count = |number: usize| Value::Integer(i128::try_from(number).unwrap_or(i128::MAX));
        let value = [
            ("_type", Value::from("table-file")),
            ("path", Value::from(path.as_str())),
            ("sha256", Value::from(shown.sha256.as_str())),
            ("size", Value::from(shown.size)),
            ("ncols", count(table.columns().len())),
            ("nrows", count(table.len())),
            ("log_mode", Value::from("IMMUTABLE")),
            (
                "artifact_path",
                Value::from(format!(
                    "wandb-client-artifact://{}/{inner}",
                    record.client_id
                )),
            ),
            (
                "_latest_artifact_path",
                Value::from(format!(
                    "wandb-client-artifact://{}:latest/{inner}",
                    record.sequence_client_id
                )),
            ),
        ];
        let value = Value::Map(value.map(|(name, value)| (name.to_owned(), value)).into());
        shown.keep_among_files(run, &path, &mut made)?;
        let Prepared {
            step,
            history,
            summary,
        } = state.prepare(&self.shared, None, vec![(key.to_owned(), value)])?;
        let kinds = vec![
            Kind::Artifact(Box::new(record)),
            files(&path, FilePolicy::Now, FileType::Media),
            history,
            Kind::Summary(Summary {
                update: summary,
                remove: Vec::new(),
            }),
        ];
        let logged = LoggedTable { step, ..logged };
        state.append_row(&self.shared, step, kinds, made)?;
        state.sync()?;
        Ok(logged)
    }
}
