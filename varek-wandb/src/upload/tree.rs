//! JSON objects whose values stay as they were written: numbers digit by digit, NaN and infinities bare.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::value::RawValue;

use crate::proto::Item;

/// A value: text, or an object whose keys can be changed one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Text(String),
    Object(BTreeMap<String, Tree>),
}

impl Default for Tree {
    fn default() -> Self {
        Self::Object(BTreeMap::new())
    }
}

impl Tree {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Object(entries) if entries.is_empty())
    }

    /// Puts a value where the item says.
    pub(super) fn update(&mut self, item: &Item) {
        let value = Self::Text(item.value_json.clone());
        if let Some(place) = self.place(path(item)) {
            *place = value;
        }
    }

    /// Takes away what is where the item says.
    pub(super) fn remove(&mut self, item: &Item) {
        let Some((last, parents)) = path(item).split_last() else {
            return;
        };
        if let Some(Self::Object(entries)) = self.place(parents) {
            entries.remove(last);
        }
    }

    pub(super) fn entry(&mut self, key: &str) -> Option<&mut Self> {
        self.place(&[key.to_owned()])
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, &Self)> {
        match self {
            Self::Object(entries) => Some(entries.iter()),
            Self::Text(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// What is at a path, made where it is not there.
    fn place(&mut self, path: &[String]) -> Option<&mut Self> {
        let mut at = self;
        for key in path {
            at.open();
            let Self::Object(entries) = at else {
                return None;
            };
            at = entries.entry(key.clone()).or_default();
        }
        Some(at)
    }

    /// Makes text an object: the one that it is, or an empty one.
    fn open(&mut self) {
        if let Self::Text(text) = self {
            let parsed: BTreeMap<String, Box<RawValue>> =
                serde_json::from_str(text).unwrap_or_default();
            let entries = parsed
                .into_iter()
                .map(|(key, value)| (key, Self::Text(value.get().to_owned())));
            *self = Self::Object(entries.collect());
        }
    }

    /// The same without objects that are empty, or have nothing but empty ones; none where nothing is left. The official client knows
    /// no empty objects in a config.
    pub(super) fn pruned(&self) -> Option<Self> {
        let mut own = self.clone();
        if matches!(self, Self::Text(text) if text.starts_with('{')) {
            own.open();
        }
        let Self::Object(entries) = own else {
            return Some(own);
        };
        let left: BTreeMap<String, Self> = entries
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.pruned()?)))
            .collect();
        (!left.is_empty()).then_some(Self::Object(left))
    }

    /// As JSON, on one line.
    pub(super) fn json(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) {
        match self {
            Self::Text(own) => text.push_str(own),
            Self::Object(entries) => {
                let mut separator = '{';
                for (key, value) in entries {
                    text.push(separator);
                    write_key(text, key);
                    value.write(text);
                    separator = ',';
                }
                if separator == '{' {
                    text.push('{');
                }
                text.push('}');
            }
        }
    }
}

/// A row as a line of the history, keys in the order in which they were logged.
pub(super) fn line(items: &[Item]) -> String {
    let mut nested = Tree::default();
    let mut flat: Vec<&Item> = Vec::new();
    for item in items {
        match item.nested_key.as_slice() {
            [] => flat.push(item),
            _ => nested.update(item),
        }
    }
    let mut text = String::from("{");
    let mut separator = "";
    for item in flat {
        text.push_str(separator);
        write_key(&mut text, &item.key);
        text.push_str(&item.value_json);
        separator = ",";
    }
    for (key, value) in nested.entries() {
        text.push_str(separator);
        write_key(&mut text, key);
        value.write(&mut text);
        separator = ",";
    }
    text.push('}');
    text
}

fn write_key(text: &mut String, key: &str) {
    // A string takes everything, and is JSON itself.
    let _ = write!(text, "{}:", serde_json::Value::from(key));
}

fn path(item: &Item) -> &[String] {
    match item.nested_key.as_slice() {
        [] => std::slice::from_ref(&item.key),
        nested => nested,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &[&str], value: &str) -> Item {
        let mut path: Vec<String> = path.iter().map(ToString::to_string).collect();
        Item {
            key: if path.len() == 1 {
                path.remove(0)
            } else {
                String::new()
            },
            nested_key: path,
            value_json: value.into(),
        }
    }

    #[test]
    fn values_stay_as_they_were_written() {
        let row = [
            item(&["a/b"], "18446744073709551615"),
            item(&["x"], "NaN"),
            item(&["n", "a"], "1.10"),
            item(&["n", "b", "c"], "-Infinity"),
            item(&["quote\"d"], "\"\\u00e9\""),
        ];
        assert_eq!(
            line(&row),
            r#"{"a/b":18446744073709551615,"x":NaN,"quote\"d":"\u00e9","n":{"a":1.10,"b":{"c":-Infinity}}}"#
        );
        assert_eq!(line(&[]), "{}");
    }

    #[test]
    fn nested_keys_change_objects_that_came_whole() {
        let mut tree = Tree::default();
        tree.update(&item(&["_wandb"], r#"{"runtime":3,"t":{"x":1.0}}"#));
        tree.update(&item(&["_wandb", "runtime"], "9"));
        tree.update(&item(&["other"], "null"));
        tree.remove(&item(&["other"], ""));
        tree.remove(&item(&["not", "there"], ""));
        tree.remove(&item(&["not"], ""));
        assert_eq!(tree.json(), r#"{"_wandb":{"runtime":9,"t":{"x":1.0}}}"#);
        assert_eq!(Tree::default().json(), "{}");
        tree.update(&item(&["a"], r#"{"b":{"c":{}},"d":{"e":[{}],"f":{}}}"#));
        tree.update(&item(&["g"], "{}"));
        let pruned = tree.pruned().unwrap();
        assert_eq!(
            pruned.json(),
            r#"{"_wandb":{"runtime":9,"t":{"x":1.0}},"a":{"d":{"e":[{}]}}}"#
        );
        assert_eq!(Tree::default().pruned(), None);
    }
}
