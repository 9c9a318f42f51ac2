//! One request, as it comes in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// One request. Every field but `program` may be left out or null, and `program` too where there is `code`;
/// a field that is not listed here makes the request invalid.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Any JSON value; it is in the response as it stands here.
    pub id: Option<Box<RawValue>>,
    /// What to run: a path, or a name that is looked up in the policy's `search_path`.
    pub program: Option<String>,
    /// Python source, which becomes the file `main.py` in the scratch directory.
    pub code: Option<String>,
    /// What follows the program's name, or `main.py` where there is `code`.
    pub arguments: Option<Vec<String>>,
    /// The name of a preset, or a whole policy. `python` where it is left out.
    pub policy: Option<Value>,
    /// What to change in the policy, as a JSON merge patch.
    pub overrides: Option<Map<String, Value>>,
    /// Variables over the policy's.
    pub environment: Option<BTreeMap<String, String>>,
    /// The guest's working directory; the scratch directory where it is left out.
    pub working_directory: Option<PathBuf>,
    /// An existing directory to be used as the scratch directory, and kept.
    pub scratch: Option<PathBuf>,
    /// Files to be put into the scratch directory, by relative path.
    pub files: Option<BTreeMap<String, FileContents>>,
    /// Paths that the guest may read, beside the policy's.
    pub read: Option<Vec<PathBuf>>,
    /// Paths that the guest may write, beside the policy's.
    pub write: Option<Vec<PathBuf>>,
    /// Paths that the kernel accepts as programs, beside the policy's.
    pub execute: Option<Vec<PathBuf>>,
    /// What the guest reads from descriptor 0.
    pub stdin: Option<Input>,
    /// The policy's `limits`, as far as they are to differ.
    pub limits: Option<Map<String, Value>>,
    /// The policy's `overflow`: `"truncate"` or `"kill"`.
    pub overflow: Option<Value>,
    /// The policy's `denials`, as far as they are to differ.
    pub denials: Option<Map<String, Value>>,
    /// The policy's `grace`.
    pub grace: Option<Value>,
    /// The policy's `identity`.
    pub identity: Option<Value>,
    /// The policy's `search_path`.
    pub search_path: Option<Vec<PathBuf>>,
    /// Layers without which the run may start, beside the policy's.
    pub best_effort: Option<Vec<String>>,
    /// The policy's `record_arguments`: `"none"`, `"digest"` or `"full"`.
    pub record_arguments: Option<Value>,
    /// Whether the response is to carry the run's events.
    pub events: Option<bool>,
    /// The policy's `network`; `false` and `"none"` mean `"denied"`.
    pub network: Option<Value>,
    /// The policy's `namespaces`; `true` and `"all"` are all of them, `false` and `"none"` none.
    pub namespaces: Option<Value>,
}

/// Only the id of a request, whatever else is in it.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    id: Option<Box<RawValue>>,
}

impl Request {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// What is wrong with it, with the id where that can be read all the same.
    pub fn parse(line: &[u8]) -> Result<Self, (Option<Box<RawValue>>, String)> {
        let request = serde_json::from_slice::<Self>(line).map_err(|error| {
            let id = serde_json::from_slice::<Named>(line)
                .ok()
                .and_then(|named| named.id);
            (id, format!("the line is no request: {error}"))
        })?;
        match request.contradiction() {
            Some(reason) => Err((request.id, reason)),
            None => Ok(request),
        }
    }

    fn contradiction(&self) -> Option<String> {
        if self.program.is_none() && self.code.is_none() {
            return Some("`program` and `code` are both missing; one says what to run".into());
        }
        let taken = |files: &BTreeMap<_, _>| files.contains_key(Self::SOURCE);
        if self.code.is_some() && self.files.as_ref().is_some_and(taken) {
            let name = Self::SOURCE;
            return Some(format!(
                "`code` and `files` both name {name}; give the source once"
            ));
        }
        None
    }

    /// The file that `code` becomes.
    pub const SOURCE: &str = "main.py";
}

/// What a file is to hold: a text, or `{"text": …}` or `{"base64": …}` with `"executable": true` if wanted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct FileContents {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

/// What descriptor 0 reads: a text, `{"base64": …}`, or `{"file": path}`, a file of the host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Input {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This file, opened by the embedder: the guest needs no grant for it.
    File(PathBuf),
}

/// The object form of both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    text: Option<String>,
    base64: Option<String>,
    file: Option<PathBuf>,
    executable: Option<bool>,
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD
        .decode(text)
        .map_err(|error| format!("`base64` cannot be decoded: {error}"))
}

impl TryFrom<Value> for FileContents {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        const FORMS: &str = "a file's contents are a text, {\"text\": …} or {\"base64\": …}";
        match value {
            Value::String(text) => Ok(Self {
                bytes: text.into_bytes(),
                executable: false,
            }),
            Value::Object(_) => {
                let source: Source =
                    serde_json::from_value(value).map_err(|error| format!("{error}; {FORMS}"))?;
                let executable = source.executable.unwrap_or(false);
                match (source.text, source.base64, source.file) {
                    (Some(text), None, None) => Ok(Self {
                        bytes: text.into_bytes(),
                        executable,
                    }),
                    (None, Some(text), None) => Ok(Self {
                        bytes: decode(&text)?,
                        executable,
                    }),
                    _ => Err(FORMS.into()),
                }
            }
            _ => Err(FORMS.into()),
        }
    }
}

impl TryFrom<Value> for Input {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        const FORMS: &str = "`stdin` is a text, {\"text\": …}, {\"base64\": …} or {\"file\": …}";
        match value {
            Value::String(text) => Ok(Self::Bytes(text.into_bytes())),
            Value::Object(_) => {
                let source: Source =
                    serde_json::from_value(value).map_err(|error| format!("{error}; {FORMS}"))?;
                match (source.text, source.base64, source.file, source.executable) {
                    (Some(text), None, None, None) => Ok(Self::Bytes(text.into_bytes())),
                    (None, Some(text), None, None) => Ok(Self::Bytes(decode(&text)?)),
                    (None, None, Some(path), None) => Ok(Self::File(path)),
                    _ => Err(FORMS.into()),
                }
            }
            _ => Err(FORMS.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Request {
        Request::parse(line.as_bytes()).unwrap()
    }

    fn refused(line: &[u8]) -> (Option<String>, String) {
        let (id, reason) = Request::parse(line).unwrap_err();
        (id.map(|id| id.get().to_owned()), reason)
    }

    #[test]
    fn an_unknown_field_is_refused_by_name_and_the_id_is_kept() {
        let (id, reason) = refused(br#"{"id": [1, {"a": 2}], "program": "true", "progam": "x"}"#);
        assert_eq!(id.as_deref(), Some(r#"[1, {"a": 2}]"#));
        assert!(reason.contains("progam"), "{reason}");
        let (_, reason) = refused(br#"{"code": "", "stdin": {"text": "a", "encoding": "x"}}"#);
        assert!(reason.contains("encoding"), "{reason}");
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        let (_, reason) =
            refused(br#"{"program": "true", "policy": "python", "policy": "native"}"#);
        assert!(reason.contains("duplicate field `policy`"), "{reason}");
    }

    #[test]
    fn an_id_is_kept_digit_by_digit() {
        for id in [
            "12345678901234567890123",
            "1.10",
            "null",
            "\"\\u00e9\"",
            "{\"b\":1,\"a\":2}",
        ] {
            let request = parsed(&format!("{{\"id\":{id},\"program\":\"true\"}}"));
            assert_eq!(
                request.id.map_or("null".into(), |id| id.get().to_owned()),
                id
            );
        }
    }

    #[test]
    fn lines_that_are_no_request_are_refused() {
        for line in [
            &b"{"[..],
            b"[]",
            b"3",
            b"{}",
            b"{\"id\":1}",
            b"{\"program\":\"a\xff\"}",
            b"\xff\xfe",
            b"{\"program\":\"true\"} {}",
            b"{\"program\":7}",
            b"{\"program\":\"true\",\"arguments\":\"one\"}",
            b"{\"code\":\"\",\"files\":{\"main.py\":\"\"}}",
        ] {
            let (_, reason) = refused(line);
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn null_is_the_same_as_left_out() {
        let request = parsed(r#"{"program":"true","arguments":null,"limits":null,"stdin":null}"#);
        assert_eq!(request.arguments, None);
        assert_eq!(request.limits, None);
        assert_eq!(request.stdin, None);
    }

    #[test]
    fn file_contents_and_input_take_their_forms_and_no_other() {
        let file =
            |text: &str| serde_json::from_str::<FileContents>(text).map_err(|e| e.to_string());
        assert_eq!(
            file(r#""a""#).unwrap(),
            FileContents {
                bytes: b"a".into(),
                executable: false
            }
        );
        assert_eq!(
            file(r#"{"base64":"/wA=","executable":true}"#).unwrap(),
            FileContents {
                bytes: vec![0xff, 0],
                executable: true
            }
        );
        for wrong in [
            "3",
            "{}",
            r#"{"text":"a","base64":""}"#,
            r#"{"file":"/x"}"#,
            r#"{"base64":"?"}"#,
        ] {
            assert!(file(wrong).is_err(), "{wrong}");
        }
        let input = |text: &str| serde_json::from_str::<Input>(text).map_err(|e| e.to_string());
        assert_eq!(
            input(r#"{"base64":"/wA="}"#).unwrap(),
            Input::Bytes(vec![0xff, 0])
        );
        assert_eq!(input(r#"{"file":"/x"}"#).unwrap(), Input::File("/x".into()));
        for wrong in [
            "3",
            "{}",
            r#"{"text":"a","file":"/x"}"#,
            r#"{"text":"a","executable":true}"#,
        ] {
            assert!(input(wrong).is_err(), "{wrong}");
        }
    }
}
