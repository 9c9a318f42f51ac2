//! The form of a policy file, for editors and for programs that write one: JSON Schema.

use serde_json::{Value, json};
use varek_seccomp::Group;

use super::Policy;
use crate::namespaces::Namespace;

/// The layers, as files name them.
const LAYERS: [&str; 12] = [
    "seccomp",
    "denial_reports",
    "memory",
    "pids",
    "cpu",
    "landlock",
    "network",
    "identity",
    "scratch",
    "namespaces",
    "rlimits",
    "watchdog",
];

impl Policy {
    /// The JSON Schema (draft 2020-12) of a policy in a file, TOML or JSON, as text. It holds for the form alone:
    /// [`Policy::problems`] says what contradicts itself, and a schema does not know the names of system calls.
    ///
    /// `cargo run -p varek-core --example policy_schema` writes it.
    pub fn json_schema() -> String {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "VAREK policy",
            "description": "What a guest may do: whole, or a preset and what differs from it.",
            "type": "object",
            "additionalProperties": false,
            "anyOf": [{"required": ["preset"]}, {"required": ["syscalls"]}],
            "properties": {
                "preset": {"enum": Self::PRESETS, "description": "Where to start from."},
                "version": {"const": Self::VERSION},
                "syscalls": syscalls(),
                "filesystem": filesystem(),
                "network": network(),
                "namespaces": set_of(&json!(Namespace::ALL)),
                "limits": limits(),
                "overflow": {"enum": ["truncate", "kill"]},
                "denials": object(&json!({"total": whole(), "per_second": whole()})),
                "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                "search_path": paths(),
                "identity": identity(),
                "record_arguments": {"enum": ["none", "digest", "full"]},
                "grace": time(),
                "best_effort": set_of(&json!(LAYERS)),
                "require": set_of(&json!(LAYERS)),
            },
        });
        // The order is the same in every build: keys are sorted.
        format!("{schema:#}")
    }
}

fn object(properties: &Value) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn set_of(words: &Value) -> Value {
    json!({"type": "array", "items": {"enum": words}})
}

fn strings() -> Value {
    json!({"type": "array", "items": {"type": "string"}})
}

fn paths() -> Value {
    json!({"type": "array", "items": {"type": "string", "pattern": "^/"}})
}

fn whole() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// humantime's: numbers with units, one after the other.
fn time() -> Value {
    json!({"type": "string", "pattern": "^\\s*([0-9]+\\s*[a-zA-Zµ]+\\s*)+$|^0$"})
}

fn unlimited(limit: &Value) -> Value {
    json!({"anyOf": [limit, {"enum": ["unlimited", null]}]})
}

fn limits() -> Value {
    let share = json!({"type": "string", "pattern": "^[0-9]+%$"});
    object(&json!({
        "memory": unlimited(&whole()),
        "cpu": unlimited(&share),
        "pids": unlimited(&whole()),
        "wall_clock": time(),
        "cpu_time": unlimited(&time()),
        "output": whole(),
        "scratch": unlimited(&whole()),
        "scratch_files": whole(),
        "file_size": unlimited(&whole()),
        "open_files": whole(),
    }))
}

fn filesystem() -> Value {
    object(&json!({
        "read": paths(),
        "write": paths(),
        "execute": paths(),
        "execute_scratch": {"type": "boolean"},
        "programs": paths(),
    }))
}

fn network() -> Value {
    let port = json!({"type": "integer", "minimum": 0, "maximum": u16::MAX});
    let ports = json!({"type": "array", "items": port});
    let tcp = object(&json!({"connect": ports, "bind": ports}));
    let tcp = json!({
        "type": "object", "additionalProperties": false, "required": ["tcp"], "properties": {"tcp": tcp},
    });
    json!({"anyOf": [{"enum": ["denied", "host"]}, tcp]})
}

fn identity() -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let range = json!({
        "type": "object", "additionalProperties": false, "required": ["first", "count"],
        "properties": {"first": number, "count": number},
    });
    json!({
        "type": "object", "additionalProperties": false, "minProperties": 1, "maxProperties": 1,
        "properties": {"separate": range, "own": range},
    })
}

fn syscalls() -> Value {
    let word = json!({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^0x[0-9a-fA-F]+$"}]});
    let condition = json!({
        "type": "object", "additionalProperties": false, "required": ["index", "width", "op", "value"],
        "properties": {
            "index": {"type": "integer", "minimum": 0, "maximum": 5},
            "width": {"enum": [32, 64]},
            "op": {"enum": ["equal", "masked_equal"]},
            "mask": word,
            "value": word,
        },
    });
    let rule = json!({
        "type": "object", "additionalProperties": false, "required": ["call", "arguments"],
        "properties": {"call": {"type": "string"}, "arguments": {"type": "array", "items": condition}},
    });
    let groups: Vec<_> = Group::ALL.iter().map(|group| group.name()).collect();
    object(&json!({
        "default": {"enum": ["errno", "kill"]},
        "errno": {"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 4095}, {"type": "string", "pattern": "^E[A-Z0-9]+$"},
        ]},
        "groups": set_of(&json!(groups)),
        "calls": strings(),
        "deny": strings(),
        "kill": strings(),
        "rules": {"type": "array", "items": rule},
    }))
}
