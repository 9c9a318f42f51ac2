//! A policy as people write it: whole, or a preset and what differs from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use varek_seccomp::SyscallPolicy;
use varek_telemetry::{ArgumentDetail, Layer};

use super::Policy;
use crate::filesystem::Filesystem;
use crate::identity::Identity;
use crate::limits::{CpuShare, DenialBudget, Limits, Overflow, unlimited};
use crate::namespaces::Namespace;
use crate::network::Network;

/// Everything may be left out but `syscalls`, and that too where there is a preset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(expecting = "a policy")]
struct PolicyFile {
    preset: Option<Preset>,
    version: Option<u32>,
    syscalls: Option<SyscallPolicy>,
    filesystem: Option<FilesystemFile>,
    network: Option<Network>,
    #[serde(default)]
    namespaces: BTreeSet<Namespace>,
    limits: Option<LimitsFile>,
    overflow: Option<Overflow>,
    denials: Option<DenialsFile>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    search_path: Option<Vec<PathBuf>>,
    identity: Option<Identity>,
    record_arguments: Option<ArgumentDetail>,
    #[serde(with = "humantime_serde", default)]
    grace: Option<Duration>,
    best_effort: Option<BTreeSet<Layer>>,
    #[serde(default)]
    require: BTreeSet<Layer>,
}

/// A preset by its name.
struct Preset(Policy);

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Preset;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "the name of a preset: {}", Policy::PRESETS.join(", "))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Preset, E> {
                Policy::preset(name)
                    .map(Preset)
                    .ok_or_else(|| E::unknown_variant(name, &Policy::PRESETS))
            }
        }

        deserializer.deserialize_str(Visitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesystemFile {
    #[serde(default)]
    read: Vec<PathBuf>,
    #[serde(default)]
    write: Vec<PathBuf>,
    #[serde(default)]
    execute: Vec<PathBuf>,
    execute_scratch: Option<bool>,
    #[serde(default)]
    programs: Vec<PathBuf>,
}

impl FilesystemFile {
    fn over(self, base: &mut Filesystem) {
        let add = |to: &mut Vec<PathBuf>, paths: Vec<PathBuf>| {
            for path in paths {
                if !to.contains(&path) {
                    to.push(path);
                }
            }
        };
        add(&mut base.read, self.read);
        add(&mut base.write, self.write);
        add(&mut base.execute, self.execute);
        add(&mut base.programs, self.programs);
        if let Some(execute) = self.execute_scratch {
            base.execute_scratch = execute;
        }
    }

    fn alone(self) -> Filesystem {
        Filesystem {
            read: self.read,
            write: self.write,
            execute: self.execute,
            execute_scratch: self.execute_scratch.unwrap_or_default(),
            programs: self.programs,
        }
    }
}

/// A limit that is said, though it may be said to be none.
type Said<T> = Option<Option<T>>;

fn said<'de, D: Deserializer<'de>, T: unlimited::Bound>(
    deserializer: D,
) -> Result<Said<T>, D::Error> {
    unlimited::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    #[serde(default, deserialize_with = "said")]
    memory: Said<u64>,
    #[serde(default, deserialize_with = "said")]
    cpu: Said<CpuShare>,
    #[serde(default, deserialize_with = "said")]
    pids: Said<u64>,
    #[serde(with = "humantime_serde", default)]
    wall_clock: Option<Duration>,
    #[serde(default, deserialize_with = "said")]
    cpu_time: Said<Duration>,
    output: Option<u64>,
    #[serde(default, deserialize_with = "said")]
    scratch: Said<u64>,
    scratch_files: Option<u64>,
    #[serde(default, deserialize_with = "said")]
    file_size: Said<u64>,
    open_files: Option<u64>,
}

impl LimitsFile {
    fn over(self, base: &mut Limits) {
        fn put<T>(to: &mut T, said: Option<T>) {
            if let Some(said) = said {
                *to = said;
            }
        }
        put(&mut base.memory, self.memory);
        put(&mut base.cpu, self.cpu);
        put(&mut base.pids, self.pids);
        put(&mut base.wall_clock, self.wall_clock);
        put(&mut base.cpu_time, self.cpu_time);
        put(&mut base.output, self.output);
        put(&mut base.scratch, self.scratch);
        put(&mut base.scratch_files, self.scratch_files);
        put(&mut base.file_size, self.file_size);
        put(&mut base.open_files, self.open_files);
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DenialsFile {
    total: Option<u64>,
    per_second: Option<u64>,
}

impl DenialsFile {
    fn over(self, base: &mut DenialBudget) {
        base.total = self.total.unwrap_or(base.total);
        base.per_second = self.per_second.unwrap_or(base.per_second);
    }
}

/// What either allows, denies and kills for.
fn both(base: SyscallPolicy, more: &SyscallPolicy) -> SyscallPolicy {
    let plain = SyscallPolicy::new();
    let mut both = base
        .allow(more.calls())
        .deny(more.denied())
        .kill(more.killed());
    for group in more.groups() {
        both = both.allow_group(group);
    }
    for rule in more.rules() {
        both = both.allow_when(rule.clone());
    }
    if more.refusal_errno() != plain.refusal_errno() {
        both = both.errno(more.refusal_errno());
    }
    if more.unnamed() != plain.unnamed() {
        both = both.refusal(more.unnamed());
    }
    both
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = PolicyFile::deserialize(deserializer)?;
        let mut policy = match (file.preset, file.syscalls) {
            (Some(Preset(base)), None) => base,
            (Some(Preset(base)), Some(more)) => base.syscalls(|calls| both(calls, &more)),
            (None, Some(calls)) => {
                let mut policy = Self::new(calls, Filesystem::default());
                policy.environment.clear();
                policy
            }
            (None, None) => {
                return Err(de::Error::custom(format!(
                    "a policy has a field `preset` ({}) or a field `syscalls`",
                    Self::PRESETS.join(", ")
                )));
            }
        };
        match file.filesystem {
            // What a policy of one's own says is taken as it is.
            Some(paths) if policy.filesystem == Filesystem::default() => {
                policy.filesystem = paths.alone();
            }
            Some(paths) => paths.over(&mut policy.filesystem),
            None => {}
        }
        if let Some(limits) = file.limits {
            limits.over(&mut policy.limits);
        }
        if let Some(denials) = file.denials {
            denials.over(&mut policy.denials);
        }
        policy.namespaces.extend(file.namespaces);
        policy.environment.extend(file.environment);
        policy.version = file.version.unwrap_or(policy.version);
        policy.network = file.network.unwrap_or(policy.network);
        policy.overflow = file.overflow.unwrap_or(policy.overflow);
        policy.search_path = file.search_path.unwrap_or(policy.search_path);
        policy.identity = file.identity.unwrap_or(policy.identity);
        policy.record_arguments = file.record_arguments.unwrap_or(policy.record_arguments);
        policy.grace = file.grace.unwrap_or(policy.grace);
        policy.best_effort = file.best_effort.unwrap_or(policy.best_effort);
        for layer in file.require {
            policy.best_effort.remove(&layer);
        }
        Ok(policy)
    }
}
