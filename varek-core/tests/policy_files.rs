//! A policy is data: what is written is what is read, a file can start from a preset, mistakes are named with their line, and a
//! difference is said in words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::time::Duration;

use proptest::prelude::*;
use varek_core::{
    ArgumentDetail, CpuShare, DenialBudget, GIB, Identity, Layer, Limits, MIB, Namespace, Network,
    Overflow, Policy, SyscallGroup, SyscallPolicy, UidRange,
};

fn toml(text: &str) -> Result<Policy, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn a_preset_by_name_is_the_preset() {
    for name in Policy::PRESETS {
        let preset = Policy::preset(name).unwrap();
        assert_eq!(toml(&format!("preset = {name:?}")).unwrap(), preset);
        let json = format!(r#"{{"preset": {name:?}}}"#);
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), preset);
    }
}

#[test]
fn what_a_file_says_beside_a_preset_adds_to_lists_and_replaces_settings() {
    let text = r#"
preset = "python"
namespaces = ["pid"]
grace = "5s"
overflow = "kill"
network = { tcp = { connect = [443] } }
require = ["denial_reports"]
[limits]
memory = 1073741824
cpu = "50%"
scratch = "unlimited"
[denials]
total = 7
[filesystem]
read = ["/srv/data", "/usr"]
write = ["/srv/out"]
[environment]
LANG = "de_DE.UTF-8"
TZ = "UTC"
[syscalls]
groups = ["file-watch"]
deny = ["fork"]
"#;
    let policy = toml(text).unwrap();
    let mut built = Policy::python()
        .memory(GIB)
        .cpu(CpuShare::percent(50).unwrap())
        .namespaces([Namespace::Pid])
        .grace(Duration::from_secs(5))
        .network(Network::tcp([443], []))
        .require(Layer::DenialReports)
        .read("/srv/data")
        .write("/srv/out")
        .env("LANG", "de_DE.UTF-8")
        .env("TZ", "UTC")
        .syscalls(|calls| calls.allow_group(SyscallGroup::FileWatch).deny(["fork"]));
    if !Policy::python().filesystem.read.contains(&"/usr".into()) {
        built = built.read("/usr");
    }
    built.overflow = Overflow::Kill;
    built.limits.scratch = None;
    built.denials.total = 7;
    assert_eq!(policy, built, "{:?}", built.diff(&policy));
    assert_eq!(policy.problems(), []);
}

#[test]
fn a_file_without_a_preset_has_what_it_says_and_nothing_of_a_preset() {
    let policy =
        toml("[syscalls]\ngroups = [\"runtime\"]\n[limits]\npids = \"unlimited\"").unwrap();
    assert_eq!(
        policy.syscalls,
        SyscallPolicy::new().allow_group(SyscallGroup::Runtime)
    );
    assert!(policy.environment.is_empty());
    assert!(policy.filesystem.read.is_empty());
    let mut limits = Limits::default();
    limits.pids = None;
    assert_eq!(policy.limits, limits);
    let neither = toml("grace = \"1s\"").unwrap_err();
    assert!(
        neither.contains("`preset` (python, native") && neither.contains("`syscalls`"),
        "{neither}"
    );
}

/// Files with a mistake, the line that it is in, and what the error says.
const MISTAKES: [(&str, usize, &str); 12] = [
    (
        "preset = \"python\"\n\nmemroy = 5",
        3,
        "unknown field `memroy`, expected one of `preset`",
    ),
    (
        "preset = \"python\"\n[limits]\nmemroy = 5",
        3,
        "unknown field `memroy`, expected one of `memory`",
    ),
    (
        "\npreset = \"pyton\"",
        2,
        "unknown variant `pyton`, expected one of `python`",
    ),
    (
        "preset = \"python\"\n[limits]\nmemory = \"lots\"",
        3,
        "neither a whole number nor \"unlimited\"",
    ),
    (
        "preset = \"python\"\n[limits]\nmemory = -1",
        3,
        "a whole number or \"unlimited\"",
    ),
    (
        "preset = \"python\"\n[limits]\ncpu = \"half\"",
        3,
        "is not a CPU share",
    ),
    (
        "preset = \"python\"\n[limits]\ncpu_time = \"5 parsecs\"",
        3,
        "no time such as \"5s\"",
    ),
    (
        "preset = \"python\"\n[filesystem]\nraed = []",
        3,
        "unknown field `raed`, expected one of `read`",
    ),
    (
        "preset = \"python\"\n[denials]\ntotl = 1",
        3,
        "unknown field `totl`",
    ),
    (
        "preset = \"python\"\nnetwork = \"hots\"",
        2,
        "unknown variant `hots`",
    ),
    (
        "preset = \"python\"\n[syscalls]\ngroups = [\"netwrok\"]",
        3,
        "did you mean network?",
    ),
    (
        "preset = \"python\"\nrequire = [\"landlok\"]",
        2,
        "`landlock`",
    ),
];

#[test]
fn mistakes_are_named_with_their_line_and_what_would_be_right() {
    for (text, line, words) in MISTAKES {
        let error = toml(text).unwrap_err();
        assert!(error.contains(&format!("line {line}")), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
    let json = "{\"preset\": \"python\",\n \"limits\": {\"memroy\": 5}}";
    let error = serde_json::from_str::<Policy>(json)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 2") && error.contains("`memory`"),
        "{error}"
    );
}

#[test]
fn a_digest_does_not_depend_on_the_order_or_the_format_of_a_file() {
    let one =
        toml("preset = \"python\"\ngrace = \"3s\"\n[limits]\nmemory = 1048576\npids = 9").unwrap();
    let two =
        toml("grace = \"3s\"\npreset = \"python\"\n[limits]\npids = 9\nmemory = 1048576").unwrap();
    let json =
        r#"{"limits": {"pids": 9, "memory": 1048576}, "grace": "3000ms", "preset": "python"}"#;
    let three: Policy = serde_json::from_str(json).unwrap();
    assert_eq!(one.digest(), two.digest());
    assert_eq!(one.digest(), three.digest());
    // Written whole, with fields in the order of their names instead of their own.
    let value = serde_json::to_value(&one).unwrap();
    let sorted: Policy = serde_json::from_str(&value.to_string()).unwrap();
    assert_eq!(sorted.digest(), one.digest());
    assert_ne!(one.clone().pids(10).digest(), one.digest());
}

#[test]
fn a_difference_is_said_in_words() {
    let before = Policy::python();
    let mut after = Policy::python()
        .memory(GIB)
        .cpu(CpuShare::percent(50).unwrap())
        .wall_clock(Duration::from_secs(90))
        .network(Network::tcp([443], []))
        .namespaces([Namespace::Pid])
        .best_effort(Layer::Landlock)
        .require(Layer::Scratch)
        .read("/srv/data")
        .env("TOKEN", "hush")
        .syscalls(|calls| {
            calls
                .allow_group(SyscallGroup::Exec)
                .deny(["fork"])
                .kill(["getppid"])
        });
    after.limits.scratch = None;
    after.environment.remove("LANG");
    assert_eq!(
        before.diff(&after),
        [
            "may now start programs",
            "may now make the calls of the group exec",
            "is now denied fork",
            "is now killed for getppid",
            "may now read /srv/data",
            "network: no sockets but connected local pairs -> TCP alone: connections to ports 443; no servers",
            "memory: 512 MiB -> 1 GiB",
            "scratch: 256 MiB -> unlimited",
            "wall clock: 30s -> 1m 30s",
            "CPU share: unlimited -> 50%",
            "has now a namespace of its own: pid",
            "starts now without this layer where the host lacks it: landlock",
            "starts no longer without this layer: scratch",
            "environment: without \"LANG\"",
            "environment: with \"TOKEN\"",
        ]
    );
    let back = after.diff(&before);
    assert_eq!(back.len(), before.diff(&after).len());
    assert!(
        back.contains(&"may no longer start programs".to_owned()),
        "{back:?}"
    );
    assert!(!back.concat().contains("hush"), "{back:?}");
    assert_eq!(before.diff(&Policy::python()), Vec::<String>::new());
}

fn schema() -> jsonschema::Validator {
    let schema = serde_json::from_str(&Policy::json_schema()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

#[test]
fn the_schema_takes_what_is_a_policy_and_refuses_mistakes() {
    let schema = schema();
    for text in [
        "preset = \"python\"",
        "preset = \"shell\"\nrequire = [\"landlock\"]\nnetwork = { tcp = { connect = [443] } }",
        "[syscalls]\ngroups = [\"runtime\"]\nerrno = \"EACCES\"\n[limits]\nmemory = \"unlimited\"\ncpu = \"50%\"\nwall_clock = \"1m 30s\"",
    ] {
        toml(text).unwrap();
        let value: serde_json::Value = toml::from_str(text).unwrap();
        assert!(schema.is_valid(&value), "{text}");
    }
    for (text, ..) in MISTAKES
        .iter()
        .filter(|(text, ..)| !text.contains("parsecs"))
    {
        let value: serde_json::Value = toml::from_str(text).unwrap();
        assert!(!schema.is_valid(&value), "{text}");
    }
    for name in Policy::PRESETS {
        let value = serde_json::to_value(Policy::preset(name).unwrap()).unwrap();
        let errors: Vec<_> = schema
            .iter_errors(&value)
            .map(|error| error.to_string())
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{name}");
    }
    assert!(!schema.is_valid(&serde_json::json!({"grace": "1s"})));
}

#[test]
fn the_schema_has_the_fields_and_the_layers_that_are_read() {
    let schema: serde_json::Value = serde_json::from_str(&Policy::json_schema()).unwrap();
    // What an error says would have been understood.
    let expected = |text: &str| -> Vec<String> {
        let error = toml(text).unwrap_err();
        let (_, list) = error.split_once("expected one of").unwrap();
        let mut words: Vec<_> = list
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        words.sort();
        words
    };
    let names = |value: &serde_json::Value| -> Vec<String> {
        let mut names: Vec<_> = match value {
            serde_json::Value::Object(map) => map.keys().cloned().collect(),
            value => value
                .as_array()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect(),
        };
        names.sort();
        names
    };
    let fields = &schema["properties"];
    assert_eq!(names(fields), expected("none = 1"));
    for field in ["limits", "filesystem", "syscalls"] {
        let text = format!("[{field}]\nnone = 1");
        assert_eq!(
            names(&fields[field]["properties"]),
            expected(&text),
            "{field}"
        );
    }
    for field in ["best_effort", "require", "namespaces"] {
        let text = format!("{field} = [\"none\"]");
        assert_eq!(
            names(&fields[field]["items"]["enum"]),
            expected(&text),
            "{field}"
        );
    }
    let words = &fields["record_arguments"]["enum"];
    assert_eq!(names(words), expected("record_arguments = \"such\""));
}

fn limits() -> impl Strategy<Value = Limits> {
    let bytes = || proptest::option::of(1_u64..1 << 40);
    let duration = || (1_u64..1 << 40).prop_map(Duration::from_millis);
    (
        bytes(),
        proptest::option::of(
            (1_u32..=100_000).prop_map(|percent| CpuShare::percent(percent).unwrap()),
        ),
        proptest::option::of(1_u64..9999),
        duration(),
        proptest::option::of(duration()),
        bytes(),
        bytes(),
        (2_u64..MIB, 1_u64..9999, 3_u64..9999),
    )
        .prop_map(
            |(memory, cpu, pids, wall_clock, cpu_time, scratch, file_size, rest)| {
                let mut limits = Limits::default();
                limits.memory = memory;
                limits.cpu = cpu;
                limits.pids = pids;
                limits.wall_clock = wall_clock;
                limits.cpu_time = cpu_time;
                limits.scratch = scratch;
                limits.file_size = file_size;
                (limits.output, limits.scratch_files, limits.open_files) = rest;
                limits
            },
        )
}

fn network() -> impl Strategy<Value = Network> {
    let ports = || proptest::collection::btree_set(any::<u16>(), 0..20);
    prop_oneof![
        Just(Network::Denied),
        Just(Network::Host),
        (ports(), ports()).prop_map(|(connect, bind)| Network::tcp(connect, bind)),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    let paths = || proptest::collection::vec("/[a-z ü]{1,6}".prop_map(Into::into), 0..3);
    let words = || {
        proptest::collection::vec(
            proptest::sample::select(vec!["fork", "ptrace", "kill", "bpf", "execve"]),
            0..3,
        )
    };
    let layers = proptest::sample::select(vec![
        Layer::Landlock,
        Layer::Scratch,
        Layer::Pids,
        Layer::DenialReports,
    ]);
    let arguments = proptest::sample::select(vec![
        ArgumentDetail::None,
        ArgumentDetail::Digest,
        ArgumentDetail::Full,
    ]);
    (
        proptest::sample::select(Policy::PRESETS.to_vec()),
        limits(),
        network(),
        (paths(), paths(), paths(), any::<bool>()),
        (
            words(),
            words(),
            words(),
            proptest::option::of(proptest::sample::select(SyscallGroup::ALL.to_vec())),
        ),
        proptest::collection::btree_map("[A-Z]{1,4}", "\\PC{0,6}", 0..3),
        (
            proptest::collection::btree_set(layers, 0..3),
            arguments,
            any::<bool>(),
            any::<bool>(),
        ),
        (
            1_u32..99,
            1_u64..99,
            1_u64..99,
            proptest::sample::subsequence(Namespace::ALL.to_vec(), 0..3),
        ),
    )
        .prop_map(
            |(preset, limits, network, paths, calls, environment, kinds, numbers)| {
                let mut policy = Policy::preset(preset).unwrap().network(network);
                policy.limits = limits;
                policy.filesystem.read.extend(paths.0);
                policy.filesystem.write.extend(paths.1);
                policy.filesystem.programs.extend(paths.2);
                policy.filesystem.execute_scratch = paths.3;
                let (allow, deny, kill, group) = calls;
                policy = policy.syscalls(|calls| {
                    let calls = calls.allow(allow).deny(deny).kill(kill);
                    group.into_iter().fold(calls, SyscallPolicy::allow_group)
                });
                policy.environment = environment;
                policy.best_effort = kinds.0;
                policy.record_arguments = kinds.1;
                if kinds.2 {
                    policy.overflow = Overflow::Kill;
                }
                if kinds.3 {
                    policy.identity = Identity::Own(UidRange::new(numbers.0, 7));
                }
                policy.grace = Duration::from_secs(u64::from(numbers.0));
                policy
                    .denials(DenialBudget::new(numbers.1, numbers.2))
                    .namespaces(numbers.3)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_what_is_read(policy in policies()) {
        let text = toml::to_string(&policy).unwrap();
        let read = toml(&text).unwrap();
        prop_assert_eq!(policy.diff(&read), Vec::<String>::new());
        prop_assert_eq!(&read, &policy, "{}", text);
        let text = serde_json::to_string(&policy).unwrap();
        let read: Policy = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read, &policy, "{}", text);
        prop_assert_eq!(read.digest(), policy.digest());
        prop_assert!(schema().is_valid(&serde_json::to_value(&policy).unwrap()), "{}", text);
    }

    #[test]
    fn policies_that_differ_have_a_difference_and_another_digest(one in policies(), two in policies()) {
        let changes = one.diff(&two);
        prop_assert_eq!(changes.is_empty(), one == two, "{:?}", changes);
        prop_assert_eq!(one.digest() == two.digest(), one == two);
        prop_assert_eq!(two.diff(&one).is_empty(), one == two);
        let values = one.environment.values().chain(two.environment.values());
        for value in values.filter(|value| value.chars().count() > 4) {
            prop_assert!(!changes.iter().any(|change| change.contains(value.as_str())), "{:?}", changes);
        }
    }
}
