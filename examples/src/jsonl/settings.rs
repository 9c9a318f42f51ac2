//! The policy of a request: a preset or a whole policy, changed by the request's other fields.

use serde_json::{Map, Value, json};
use varek_core::{Namespace, Policy};

use super::request::Request;
use super::respond::Refusal;

/// Limits that can be absent: null takes them away, and does not bring back the default.
const NULLABLE: [&str; 6] = ["memory", "cpu", "pids", "cpu_time", "scratch", "file_size"];

/// The policy that a request asks for: base, then `overrides`, then the fields for single settings.
///
/// # Errors
///
/// A refusal for what is no policy.
pub fn policy(request: &Request) -> Result<Policy, Refusal> {
    let mut value = base(request.policy.as_ref())?;
    if let Some(overrides) = &request.overrides {
        apply(&mut value, overrides.clone());
    }
    apply(&mut value, shorthand(request)?);
    for (field, paths) in [
        ("read", &request.read),
        ("write", &request.write),
        ("execute", &request.execute),
    ] {
        append(
            &mut value,
            &["filesystem", field],
            paths.iter().flatten().map(|path| json!(path)),
        );
    }
    append(
        &mut value,
        &["best_effort"],
        request.best_effort.iter().flatten().map(|name| json!(name)),
    );
    durations(&mut value)?;
    typed(value)
}

fn typed(value: Value) -> Result<Policy, Refusal> {
    serde_json::from_value(value).map_err(|error| Refusal::invalid(format!("policy: {error}")))
}

fn base(source: Option<&Value>) -> Result<Value, Refusal> {
    let policy = match source {
        None => Policy::python(),
        Some(Value::String(name)) => Policy::preset(name).ok_or_else(|| {
            let known = Policy::PRESETS.join(", ");
            Refusal::invalid(format!(
                "policy: there is no preset {name:?}; the presets are {known}"
            ))
        })?,
        Some(Value::Object(whole)) => {
            let mut value = Value::Object(whole.clone());
            durations(&mut value)?;
            typed(value)?
        }
        Some(_) => {
            return Err(Refusal::invalid(
                "policy: is the name of a preset or an object",
            ));
        }
    };
    // Through the typed policy, so that a merge meets every field with its default.
    serde_json::to_value(policy).map_err(|error| Refusal::invalid(format!("policy: {error}")))
}

/// The request's fields for single settings, as a patch of the policy.
fn shorthand(request: &Request) -> Result<Map<String, Value>, Refusal> {
    let fields = [
        ("limits", request.limits.clone().map(Value::Object)),
        ("overflow", request.overflow.clone()),
        ("denials", request.denials.clone().map(Value::Object)),
        ("grace", request.grace.clone()),
        ("identity", request.identity.clone()),
        ("record_arguments", request.record_arguments.clone()),
        ("network", network(request.network.as_ref())?),
        ("namespaces", namespaces(request.namespaces.as_ref())),
        (
            "search_path",
            request.search_path.as_ref().map(|paths| json!(paths)),
        ),
    ];
    let fields = fields.into_iter();
    let named = fields.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(named.collect())
}

/// `false` and `"none"` are what `"denied"` is in a policy.
fn network(asked: Option<&Value>) -> Result<Option<Value>, Refusal> {
    match asked {
        Some(Value::Bool(false)) => Ok(Some(json!("denied"))),
        Some(Value::String(text)) if text == "none" => Ok(Some(json!("denied"))),
        Some(Value::Bool(true)) => Err(Refusal::invalid(
            "network: true does not say how much; it is \"denied\", \"host\" or \
             {\"tcp\": {\"connect\": [PORT, …], \"bind\": [PORT, …]}}",
        )),
        other => Ok(other.cloned()),
    }
}

/// `false` and `"none"` are none, `true` and `"all"` are all.
fn namespaces(asked: Option<&Value>) -> Option<Value> {
    let named = |word: &str| match asked {
        Some(Value::Bool(all)) => *all == (word == "all"),
        Some(Value::String(text)) => text == word,
        _ => false,
    };
    if named("none") {
        Some(json!([]))
    } else if named("all") {
        Some(json!(Namespace::ALL))
    } else {
        asked.cloned()
    }
}

/// A JSON merge patch (RFC 7396), but that null for a limit that can be absent takes the limit away.
fn apply(policy: &mut Value, patch: Map<String, Value>) {
    let lifted: Vec<&str> = match patch.get("limits") {
        Some(Value::Object(limits)) => NULLABLE
            .into_iter()
            .filter(|name| limits.get(*name) == Some(&Value::Null))
            .collect(),
        _ => Vec::new(),
    };
    // One of several forms: merged into another, it would be both.
    for name in ["identity", "network"] {
        if let (Some(policy), true) = (policy.as_object_mut(), patch.contains_key(name)) {
            policy.remove(name);
        }
    }
    merge(policy, Value::Object(patch));
    if let Some(limits) = policy.get_mut("limits").and_then(Value::as_object_mut) {
        limits.extend(
            lifted
                .into_iter()
                .map(|name| (name.to_owned(), Value::Null)),
        );
    }
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(&name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}

fn append(policy: &mut Value, path: &[&str], more: impl Iterator<Item = Value>) {
    let more: Vec<Value> = more.collect();
    if more.is_empty() {
        return;
    }
    let mut place = policy;
    for name in path {
        if !place.is_object() {
            return;
        }
        place = &mut place[*name];
    }
    match place {
        Value::Array(list) => list.extend(
            more.into_iter()
                .filter(|item| !list.contains(item))
                .collect::<Vec<_>>(),
        ),
        Value::Null => *place = Value::Array(more),
        // No list: the typed policy says so.
        _ => {}
    }
}

/// Durations may be numbers of seconds; the policy writes them as text.
fn durations(policy: &mut Value) -> Result<(), Refusal> {
    for path in ["/limits/wall_clock", "/limits/cpu_time", "/grace"] {
        let Some(place) = policy.pointer_mut(path) else {
            continue;
        };
        let Value::Number(number) = &*place else {
            continue;
        };
        let name = path.trim_start_matches('/').replace('/', ".");
        let duration = number
            .as_f64()
            .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| {
                Refusal::invalid(format!("policy: {name}: {number} is no number of seconds"))
            })?;
        *place = Value::String(humantime::format_duration(duration).to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use varek_core::{ArgumentDetail, CpuShare, Identity, Layer, MIB, Network, Overflow, UidRange};

    use super::super::respond::Status;
    use super::*;

    fn of(fields: &str) -> Result<Policy, Refusal> {
        let line = format!("{{\"program\":\"true\"{fields}}}");
        policy(&Request::parse(line.as_bytes()).unwrap())
    }

    fn refused(fields: &str) -> (Status, String) {
        let refusal = of(fields).unwrap_err();
        (refusal.status, refusal.reason)
    }

    #[test]
    fn the_default_and_the_names_are_the_library_s_presets() {
        assert_eq!(of("").unwrap(), Policy::python());
        assert_eq!(of(r#","policy":"native""#).unwrap(), Policy::native());
        let (status, reason) = refused(r#","policy":"ruby""#);
        assert_eq!(status, Status::Invalid);
        assert!(reason.contains("python, native"), "{reason}");
    }

    #[test]
    fn a_whole_policy_is_taken_as_it_is() {
        let whole = Policy::native()
            .memory(64 * MIB)
            .read("/srv")
            .best_effort(Layer::Cpu);
        let json = serde_json::to_string(&whole).unwrap();
        assert_eq!(of(&format!(",\"policy\":{json}")).unwrap(), whole);
    }

    #[test]
    fn an_identity_takes_the_place_of_another() {
        let range = UidRange::new(70_000, 8);
        let fields = r#""identity":{"own":{"first":70000,"count":8}}"#;
        for fields in [format!(",{fields}"), format!(",\"overrides\":{{{fields}}}")] {
            assert_eq!(of(&fields).unwrap().identity, Identity::Own(range));
        }
        let separate = r#","identity":{"separate":{"first":70000,"count":8}}"#;
        assert_eq!(of(separate).unwrap().identity, Identity::Separate(range));
    }

    #[test]
    fn single_settings_go_over_overrides_and_those_over_the_base() {
        let policy = of(
            r#","overrides":{"limits":{"pids":8,"memory":1048576},"overflow":"kill"},
            "limits":{"pids":9,"cpu":"50%"},"denials":{"total":5},"search_path":["/opt/bin"]"#,
        )
        .unwrap();
        assert_eq!(policy.limits.pids, Some(9));
        assert_eq!(policy.limits.memory, Some(MIB));
        assert_eq!(policy.limits.cpu.map(CpuShare::as_percent), Some(50));
        assert_eq!(policy.overflow, Overflow::Kill);
        assert_eq!(
            (policy.denials.total, policy.denials.per_second),
            (5, 5_000)
        );
        assert_eq!(policy.search_path, [PathBuf::from("/opt/bin")]);
        assert_eq!(policy.limits.open_files, Policy::python().limits.open_files);
    }

    #[test]
    fn null_lifts_a_limit_removes_a_variable_and_restores_another_default() {
        let policy = of(r#","limits":{"memory":null,"pids":null}"#).unwrap();
        assert_eq!((policy.limits.memory, policy.limits.pids), (None, None));
        let policy =
            of(r#","overrides":{"limits":{"memory":null},"environment":{"LANG":null,"A":"b"}}"#)
                .unwrap();
        assert_eq!(policy.limits.memory, None);
        assert_eq!(policy.environment.get("LANG"), None);
        assert_eq!(policy.environment.get("A").map(String::as_str), Some("b"));
        let policy = of(r#","limits":{"output":null,"open_files":null}"#).unwrap();
        assert_eq!(policy.limits, Policy::python().limits);
    }

    #[test]
    fn durations_are_texts_or_seconds() {
        let policy = of(r#","limits":{"wall_clock":1.5,"cpu_time":"200ms"},"grace":3"#).unwrap();
        assert_eq!(policy.limits.wall_clock, Duration::from_millis(1500));
        assert_eq!(policy.limits.cpu_time, Some(Duration::from_millis(200)));
        assert_eq!(policy.grace, Duration::from_secs(3));
        let mut whole = serde_json::to_value(Policy::python()).unwrap();
        whole["limits"]["wall_clock"] = json!(2);
        assert_eq!(
            of(&format!(",\"policy\":{whole}"))
                .unwrap()
                .limits
                .wall_clock,
            Duration::from_secs(2)
        );
        for wrong in ["-1", "1e300", "\"soon\"", "true"] {
            let (status, reason) = refused(&format!(",\"limits\":{{\"wall_clock\":{wrong}}}"));
            assert_eq!(status, Status::Invalid, "{wrong}: {reason}");
        }
    }

    #[test]
    fn grants_and_best_effort_add_to_the_policy_s() {
        let policy = of(
            r#","read":["/srv/a"],"write":["/srv/b"],"execute":["/srv/c"],"best_effort":["cpu"]"#,
        );
        let wanted = Policy::python()
            .read("/srv/a")
            .write("/srv/b")
            .execute("/srv/c")
            .best_effort(Layer::Cpu);
        assert_eq!(policy.unwrap(), wanted);
        let policy = of(r#","overrides":{"filesystem":{"read":[]}},"read":["/srv/a"]"#).unwrap();
        assert_eq!(policy.filesystem.read, [PathBuf::from("/srv/a")]);
    }

    #[test]
    fn a_misspelt_setting_is_invalid_and_named_wherever_it_stands() {
        for (fields, name) in [
            (r#","limits":{"memroy":5}"#, "memroy"),
            (r#","overrides":{"filesytem":{}}"#, "filesytem"),
            (r#","policy":{"syscalls":{},"grase":"1s"}"#, "grase"),
            (r#","best_effort":["cpuu"]"#, "cpuu"),
            (
                r#","overrides":{"filesystem":3},"read":["/x"]"#,
                "filesystem",
            ),
            (r#","overrides":{"best_effort":{"a":1}}"#, "best_effort"),
        ] {
            let (status, reason) = refused(fields);
            assert_eq!(status, Status::Invalid, "{reason}");
            assert!(
                reason.contains(name) || reason.contains("invalid type"),
                "{reason}"
            );
        }
    }

    #[test]
    fn how_much_of_arguments_is_recorded_is_one_of_three_words() {
        let with = |detail| Policy::python().record_arguments(detail);
        for (fields, detail) in [
            ("", ArgumentDetail::None),
            (r#","record_arguments":"none""#, ArgumentDetail::None),
            (r#","record_arguments":"digest""#, ArgumentDetail::Digest),
            (r#","record_arguments":"full""#, ArgumentDetail::Full),
            (
                r#","overrides":{"record_arguments":"full"}"#,
                ArgumentDetail::Full,
            ),
            (
                r#","overrides":{"record_arguments":"full"},"record_arguments":"digest""#,
                ArgumentDetail::Digest,
            ),
        ] {
            assert_eq!(of(fields).unwrap(), with(detail), "{fields}");
        }
        for word in [r#""some""#, "true", "3"] {
            let (status, reason) = refused(&format!(",\"record_arguments\":{word}"));
            assert_eq!(status, Status::Invalid, "{word}: {reason}");
        }
    }

    #[test]
    fn namespaces_are_named_or_all_or_none() {
        let with = |named: &[Namespace]| Policy::python().namespaces(named.iter().copied());
        let two = [Namespace::Pid, Namespace::Net];
        for (fields, policy) in [
            (r#","namespaces":["pid","net"]"#, with(&two)),
            (r#","overrides":{"namespaces":["net","pid"]}"#, with(&two)),
            (r#","namespaces":true"#, with(&Namespace::ALL)),
            (r#","namespaces":"all""#, with(&Namespace::ALL)),
            (r#","namespaces":false"#, with(&[])),
            (r#","namespaces":"none""#, with(&[])),
            (r#","namespaces":[]"#, with(&[])),
            (
                r#","overrides":{"namespaces":["pid"]},"namespaces":[]"#,
                with(&[]),
            ),
            (
                r#","best_effort":["namespaces"]"#,
                Policy::python().best_effort(Layer::Namespaces),
            ),
        ] {
            assert_eq!(of(fields).unwrap(), policy, "{fields}");
        }
        for fields in [
            r#","namespaces":["time"]"#,
            r#","namespaces":"some""#,
            r#","namespaces":3"#,
        ] {
            let (status, reason) = refused(fields);
            assert_eq!(status, Status::Invalid, "{fields}: {reason}");
        }
    }

    #[test]
    fn a_network_takes_the_place_of_another() {
        let wide = || Policy::python().network(Network::Host);
        let tcp = || Policy::python().network(Network::tcp([443], [0]));
        for (fields, policy) in [
            (r#","network":false"#, Policy::python()),
            (r#","network":"none""#, Policy::python()),
            (r#","network":"denied""#, Policy::python()),
            (r#","network":"host""#, wide()),
            (r#","network":{"tcp":{"connect":[443],"bind":[0]}}"#, tcp()),
            (
                r#","overrides":{"network":{"tcp":{"connect":[443],"bind":[0]}}}"#,
                tcp(),
            ),
            (
                r#","overrides":{"network":{"tcp":{"connect":[80]}}},"network":"host""#,
                wide(),
            ),
            (r#","overrides":{"network":"host"},"network":null"#, wide()),
            (
                r#","best_effort":["network"]"#,
                Policy::python().best_effort(Layer::Network),
            ),
        ] {
            assert_eq!(of(fields).unwrap(), policy, "{fields}");
        }
        for fields in [
            r#","network":true"#,
            r#","network":{"allow":["192.0.2.1:80"]}"#,
            r#","network":{"tcp":{"connect":["443"]}}"#,
            r#","overrides":{"network":{}}"#,
        ] {
            let (status, reason) = refused(fields);
            assert_eq!(status, Status::Invalid, "{fields}: {reason}");
        }
    }
}
