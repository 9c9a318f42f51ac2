//! Tables.

use std::collections::HashSet;

use serde::Serialize;

use crate::staging::Draft;
use crate::value::Style;
use crate::{Error, Value};

/// Rows of a table that the service keeps, at most. Source: the client's behaviour.
pub(crate) const MOST_ROWS: usize = 200_000;

/// Rows of the copy that the run's own page shows, at most. Source: the client's behaviour.
pub(crate) const MOST_SHOWN: usize = 10_000;

/// A table: named columns, and rows of texts, numbers, booleans and nulls.
///
/// A column holds one kind of value, which its first value other than null decides; NaN counts as null. The
/// official client's name for it is `wandb.Table`. What the service takes is bounded to 200,000 rows, of which the run's own page shows
/// 10,000; [`Run::log_table`](crate::Run::log_table) says what was left out.
///
/// ```
/// # fn main() -> Result<(), varek_wandb::Error> {
/// let mut table = varek_wandb::Table::new(["payload", "blocked", "seconds"])?;
/// table.row(("fork_bomb", true, 1.5))?;
/// table.row(("benign", false, None::<f64>))?;
/// assert!(table.row(("benign", "no", 1)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    columns: Vec<String>,
    kinds: Vec<Option<Kind>>,
    rows: Vec<Vec<Value>>,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
}

impl Kind {
    /// Of a value that is not null; `None` for what a table cannot hold.
    const fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Text(_) => Some(Self::Text),
            Value::Integer(_) | Value::Float(_) => Some(Self::Number),
            Value::Bool(_) => Some(Self::Boolean),
            _ => None,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Text => "texts",
            Self::Number => "numbers",
            Self::Boolean => "booleans",
        }
    }
}

impl Table {
    /// A table without rows.
    ///
    /// # Errors
    ///
    /// [`Error::Twice`] where two columns have one name.
    pub fn new<C: Into<String>>(columns: impl IntoIterator<Item = C>) -> Result<Self, Error> {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        let mut seen = HashSet::new();
        if let Some(name) = columns.iter().find(|name| !seen.insert(name.as_str())) {
            let name = name.clone();
            return Err(Error::Twice {
                what: "the column",
                name,
            });
        }
        Ok(Self {
            kinds: vec![None; columns.len()],
            columns,
            rows: Vec::new(),
        })
    }

    /// Adds a row: a tuple, an array or a list with one value a column.
    ///
    /// # Errors
    ///
    /// [`Error::RowLength`] and [`Error::CellKind`] where it does not fit, [`Error::Value`] where something in it is no value. The
    /// table is then as it was.
    pub fn row(&mut self, values: impl Serialize) -> Result<(), Error> {
        let row = self.rows.len();
        let values = match Value::of(&values)? {
            Value::List(values) => values,
            other => vec![other],
        };
        if values.len() != self.columns.len() {
            let (found, columns) = (values.len(), self.columns.len());
            return Err(Error::RowLength {
                row,
                found,
                columns,
            });
        }
        let mut kinds = self.kinds.clone();
        for ((value, kind), column) in values.iter().zip(&mut kinds).zip(&self.columns) {
            let is_null = matches!(value, Value::Null)
                || matches!(value, Value::Float(number) if number.is_nan());
            if is_null {
                continue;
            }
            let found = Kind::of(value);
            if found.is_none() || kind.is_some() && *kind != found {
                return Err(Error::CellKind {
                    row,
                    column: column.clone(),
                    found: value.kind(),
                    expected: kind.map_or("texts, numbers, booleans or nulls", Kind::words),
                });
            }
            *kind = found;
        }
        self.kinds = kinds;
        self.rows.push(values);
        Ok(())
    }

    /// The columns' names.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes what the artifact holds, byte by byte as the official client would: the artifact's digest is over it.
    pub(crate) fn write_artifact(&self, draft: &mut Draft) -> Result<(), Error> {
        let types = self.types();
        let mut text = String::from("{\"_type\": \"table\", \"column_types\": ");
        types.write(&mut text, Style::Python);
        self.write_columns(&mut text, ", \"columns\": ");
        draft.put(text.as_bytes())?;
        let rows = self.write_rows(draft, MOST_ROWS, true)?;
        let end = format!(
            ", \"log_mode\": \"IMMUTABLE\", \"ncols\": {}, \"nrows\": {rows}}}",
            self.columns.len()
        );
        draft.put(end.as_bytes())
    }

    /// Writes what the run's own page shows.
    pub(crate) fn write_shown(&self, draft: &mut Draft) -> Result<(), Error> {
        let mut text = String::new();
        self.write_columns(&mut text, "{\"columns\": ");
        draft.put(text.as_bytes())?;
        self.write_rows(draft, MOST_SHOWN, false)?;
        draft.put(b"}")
    }

    fn write_columns(&self, text: &mut String, before: &str) {
        text.push_str(before);
        let names = self.columns.iter().map(|name| Value::from(name.as_str()));
        Value::List(names.collect()).write(text, Style::Python);
        text.push_str(", \"data\": [");
    }

    fn write_rows(
        &self,
        draft: &mut Draft,
        most: usize,
        nan_is_null: bool,
    ) -> Result<usize, Error> {
        let mut text = String::new();
        for (index, row) in self.rows.iter().take(most).enumerate() {
            text.push_str(if index > 0 { ", [" } else { "[" });
            for (index, value) in row.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                match value {
                    Value::Float(number) if nan_is_null && number.is_nan() => text.push_str("null"),
                    value => value.write(&mut text, Style::Python),
                }
            }
            text.push(']');
            if text.len() > 64 * 1024 {
                draft.put(text.as_bytes())?;
                text.clear();
            }
        }
        text.push(']');
        draft.put(text.as_bytes())?;
        Ok(self.rows.len().min(most))
    }

    /// The columns' types, with keys in order.
    fn types(&self) -> Value {
        let named = |name: &str| map([("wb_type", Value::from(name))]);
        let mut columns: Vec<(String, Value)> = self
            .columns
            .iter()
            .zip(&self.kinds)
            .map(|(column, kind)| {
                let allowed = match kind {
                    Some(Kind::Boolean) => ["boolean", "none"],
                    Some(Kind::Number) => ["none", "number"],
                    Some(Kind::Text) => ["none", "string"],
                    None => ["none", "unknown"],
                };
                let allowed = Value::List(allowed.map(named).into());
                let union = map([
                    ("params", map([("allowed_types", allowed)])),
                    ("wb_type", Value::from("union")),
                ]);
                (column.clone(), union)
            })
            .collect();
        columns.sort_by(|(a, _), (b, _)| a.cmp(b));
        map([
            ("params", map([("type_map", Value::Map(columns))])),
            ("wb_type", Value::from("typedDict")),
        ])
    }
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(table: &Table) -> String {
        let directory = tempfile::tempdir().unwrap();
        let mut draft = Draft::begin(directory.path()).unwrap();
        table.write_artifact(&mut draft).unwrap();
        let mut made = crate::staging::Made::default();
        let path = directory.path().join("table");
        draft.finish().unwrap().keep_at(&path, &mut made).unwrap();
        made.keep();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_tables_artifact_is_what_the_official_client_writes() {
        let mut table = Table::new(["ü", "b", "a", "n"]).unwrap();
        table.row(("2020", (), true, f64::NAN)).unwrap();
        table.row(((), (), (), f64::INFINITY)).unwrap();
        assert_eq!(
            artifact(&table),
            "{\"_type\": \"table\", \"column_types\": {\"params\": {\"type_map\": {\"a\": {\"params\": {\"allowed_types\": \
             [{\"wb_type\": \"boolean\"}, {\"wb_type\": \"none\"}]}, \"wb_type\": \"union\"}, \"b\": {\"params\": \
             {\"allowed_types\": [{\"wb_type\": \"none\"}, {\"wb_type\": \"unknown\"}]}, \"wb_type\": \"union\"}, \"n\": \
             {\"params\": {\"allowed_types\": [{\"wb_type\": \"none\"}, {\"wb_type\": \"number\"}]}, \"wb_type\": \
             \"union\"}, \"\\u00fc\": {\"params\": {\"allowed_types\": [{\"wb_type\": \"none\"}, {\"wb_type\": \"string\"}]}, \
             \"wb_type\": \"union\"}}}, \"wb_type\": \"typedDict\"}, \"columns\": [\"\\u00fc\", \"b\", \"a\", \"n\"], \"data\": \
             [[\"2020\", null, true, null], [null, null, null, Infinity]], \"log_mode\": \"IMMUTABLE\", \"ncols\": 4, \
             \"nrows\": 2}"
        );
    }

    #[test]
    fn rows_that_do_not_fit_are_refused_and_change_nothing() {
        let mut table = Table::new(["a", "b"]).unwrap();
        table.row((1, ())).unwrap();
        assert!(matches!(
            table.row((1, 2, 3)),
            Err(Error::RowLength {
                row: 1,
                found: 3,
                columns: 2
            })
        ));
        assert!(matches!(
            table.row((2, [1])),
            Err(Error::CellKind {
                row: 1,
                found: "a list",
                ..
            })
        ));
        assert!(matches!(
            table.row(("x", 1)),
            Err(Error::CellKind {
                found: "a text",
                expected: "numbers",
                ..
            })
        ));
        assert!(matches!(
            table.row((true, "x")),
            Err(Error::CellKind { .. })
        ));
        table.row((2.5, "x")).unwrap();
        assert_eq!(table.len(), 2);
        assert!(matches!(Table::new(["a", "a"]), Err(Error::Twice { .. })));
    }
}
