//! The table of hosts: what each offers, what each preset gets there, and how the tests went.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::Outcome;
use super::rows::ROWS;

/// The page that holds the table, between these two lines.
const PAGE: &str = "docs/hosts.md";
const BEGIN: &str = "<!-- matrix:begin -->";
const END: &str = "<!-- matrix:end -->";

/// What the page is where there is none yet.
const EMPTY_PAGE: &str = "# Hosts\n\n<!-- matrix:begin -->\n<!-- matrix:end -->\n";

/// This machine itself, as a row.
pub(crate) const HOST: &str = "host";

/// How many tests passed, failed and were not run.
pub(crate) type Counts = (u64, u64, u64);

/// The lines of some rows, by name.
#[derive(Debug, Default)]
pub(crate) struct Table {
    lines: BTreeMap<String, String>,
}

impl Table {
    /// Adds a row by what `doctor --json` printed there, and by what the machine said of itself where
    /// the doctor did not.
    pub(crate) fn row(&mut self, name: &str, doctor: Option<&str>, counts: Counts, said: &Outcome) {
        let doctor = doctor.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let host = doctor.as_ref().and_then(|found| found.get("host"));
        let fact = |field: &str| host.and_then(|host| host.get(field));
        let known = |field: &str, spare: &str| {
            let value = fact(field).map(word);
            value
                .or_else(|| said.facts.get(spare).map(str::to_owned))
                .unwrap_or_else(|| "?".to_owned())
        };
        let landlock = fact("landlock").map_or("?".to_owned(), |found| {
            let version = found
                .get("version")
                .map(|version| format!("ABI {}", word(version)));
            version.unwrap_or_else(|| word(found))
        });
        let presets = doctor
            .as_ref()
            .and_then(|found| found.get("presets")?.as_array())
            .map_or("?".to_owned(), |all| presets(all));
        let (passed, failed, not_run) = counts;
        let cells = [
            known("kernel", "kernel"),
            fact("groups").map_or("?".to_owned(), groups),
            known("uid", "uid"),
            landlock,
            known("user_namespaces", ""),
            presets,
            format!("{passed} / {failed} / {not_run}"),
        ];
        self.add(name, &cells.join(" | "));
    }

    /// Adds a row for which there was no machine.
    pub(crate) fn not_run(&mut self, name: &str, reason: &str) {
        self.add(name, &format!("| | | | | | not run: {}", plain(reason)));
    }

    fn add(&mut self, name: &str, cells: &str) {
        let _ = self
            .lines
            .insert(name.to_owned(), format!("| {name} | {cells} |"));
    }

    /// Writes the table into its page; the lines of rows that it lacks stay as they are.
    pub(crate) fn write(self, root: &Path) -> Result<()> {
        let place = root.join(PAGE);
        let page = match fs::read_to_string(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => EMPTY_PAGE.to_owned(),
            read => read.with_context(|| format!("cannot read {PAGE}"))?,
        };
        fs::write(&place, self.within(&page)?).with_context(|| format!("cannot write {PAGE}"))
    }

    fn within(mut self, page: &str) -> Result<String> {
        let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
            let (old, after) = rest.split_once(END)?;
            Some((before, old, after))
        });
        let Some((before, old, after)) = parts else {
            bail!("{PAGE} has no lines `{BEGIN}` and `{END}` to put the table between");
        };
        for line in old.lines() {
            if let Some((name, _)) = line.trim_start_matches("| ").split_once(" |") {
                let _ = self
                    .lines
                    .entry(name.to_owned())
                    .or_insert_with(|| line.to_owned());
            }
        }
        let mut text = format!(
            "{before}{BEGIN}\n\
             | row | Linux | groups | uid | Landlock | user namespaces | presets | passed / failed / not run |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        for name in [HOST].into_iter().chain(ROWS.iter().map(|row| row.name)) {
            if let Some(line) = self.lines.get(name) {
                text.push_str(line);
                text.push('\n');
            }
        }
        Ok(format!("{text}{END}{after}"))
    }
}

/// `hybrid`, `unified`, or why there are none.
fn groups(found: &Value) -> String {
    let description = found.get("description").map_or_else(|| word(found), word);
    let kind = description.split([':', ';']).next().unwrap_or_default();
    match found.get("access").map(word) {
        Some(access) if access != "writable" => format!("{kind}, {access}"),
        _ => kind.to_owned(),
    }
}

/// `python, native: ready`, or the layers for which they are not, with what the host has instead.
fn presets(all: &[Value]) -> String {
    let mut by_answer: Vec<(String, Vec<String>)> = Vec::new();
    for found in all {
        let (name, answer) = (text(found, "name"), answer(found));
        match by_answer.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, names)) => names.push(name),
            None => by_answer.push((answer, vec![name])),
        }
    }
    let one = |(answer, names): &(String, Vec<String>)| format!("{}: {answer}", names.join(", "));
    by_answer.iter().map(one).collect::<Vec<_>>().join("<br>")
}

fn answer(found: &Value) -> String {
    if found.get("ready").and_then(Value::as_bool) == Some(true) {
        return "ready".to_owned();
    }
    let missing = found.get("missing").and_then(Value::as_array);
    let lack = |lack| format!("{} ({})", text(lack, "layer"), few(&text(lack, "has")));
    let reasons: Vec<_> = missing.into_iter().flatten().map(lack).collect();
    if reasons.is_empty() {
        few(&text(found, "error"))
    } else {
        reasons.join("; ")
    }
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).map(word).unwrap_or_default()
}

/// The first clause of a sentence.
fn few(text: &str) -> String {
    let end = text.find([';', '.', ':', '(']).unwrap_or(text.len());
    text.get(..end).unwrap_or(text).trim().to_owned()
}

/// A value as a few words: a text as it is, an object by its first field's name, and by its value
/// where that is no object again, or says who did it.
fn word(value: &Value) -> String {
    let spaced = |name: &str| name.replace('_', " ");
    let text = match value {
        Value::String(text) => spaced(text),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, Value::Object(inner))) => match inner.get("by").and_then(Value::as_str) {
                Some(by) => format!("{} by {}", spaced(name), spaced(by)),
                None => spaced(name),
            },
            Some((name, Value::Array(_) | Value::Null)) => spaced(name),
            Some((name, inner)) => format!("{}: {}", spaced(name), word(inner)),
            None => String::new(),
        },
        other => other.to_string(),
    };
    plain(&text)
}

/// Without what would end a cell.
fn plain(text: &str) -> String {
    text.replace('|', "/")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCTOR: &str = r#"{"host": {"kernel": "6.1.0-50", "uid": 1000, "landlock": {"version": 2},
        "user_namespaces": {"refused": {"errno": 28, "by": "limit"}},
        "groups": {"description": "unified: groups below /x; memory",
            "access": {"not_delegated": {"path": "/x"}}}},
        "presets": [{"name": "python", "ready": true}, {"name": "native", "ready": true},
            {"name": "other", "ready": false, "missing": [
                {"layer": "identity", "has": "is not root (EPERM)", "asked": "a", "remedy": "b"}]}]}"#;

    #[test]
    fn a_row_says_what_the_doctor_said_in_a_few_words() {
        let mut table = Table::default();
        table.row("6.1-user", Some(DOCTOR), (5, 1, 2), &Outcome::default());
        assert_eq!(
            table.lines["6.1-user"],
            "| 6.1-user | 6.1.0-50 | unified, not delegated | 1000 | ABI 2 | refused by limit | \
             python, native: ready<br>other: identity (is not root) | 5 / 1 / 2 |"
        );
    }

    #[test]
    fn a_doctor_that_said_nothing_useful_leaves_question_marks() {
        let mut table = Table::default();
        table.row("host", Some("error: no"), (1, 0, 0), &Outcome::default());
        let line = &table.lines["host"];
        assert!(
            line.starts_with("| host | ? | ? | ? | ? | ? | ? | 1"),
            "{line}"
        );
    }

    #[test]
    fn rows_that_were_not_run_now_keep_their_line_and_the_order_is_that_of_the_rows() {
        let page = "# Hosts\nabove\n<!-- matrix:begin -->\n| row | x |\n|---|---|\n\
                    | 6.12-root | old |\n| host | old |\n| gone | old |\n<!-- matrix:end -->\nbelow\n";
        let mut table = Table::default();
        table.not_run("6.1-root", "no | qemu");
        let page = table.within(page).unwrap();
        assert!(page.starts_with("# Hosts\nabove\n<!-- matrix:begin -->\n| row | Linux"));
        let end = "| host | old |\n| 6.1-root | | | | | | | not run: no / qemu |\n\
                   | 6.12-root | old |\n<!-- matrix:end -->\nbelow\n";
        assert!(page.ends_with(end), "{page}");
    }

    #[test]
    fn a_page_without_the_two_lines_is_left_alone() {
        assert!(Table::default().within("# Hosts\n").is_err());
        assert!(Table::default().within(EMPTY_PAGE).is_ok());
    }
}
