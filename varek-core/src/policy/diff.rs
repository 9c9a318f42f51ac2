//! What one policy gives that another does not, in words.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use varek_seccomp::SyscallPolicy;

use super::Policy;
use crate::limits::{GIB, KIB, MIB};

impl Policy {
    /// What changes from this policy to `other`, a sentence for each change; none where they are the same.
    ///
    /// Values of the environment are not shown.
    ///
    /// ```
    /// use varek_core::{GIB, Policy};
    ///
    /// let changes = Policy::python().diff(&Policy::python().memory(GIB).read("/srv/data"));
    /// assert_eq!(changes, ["may now read /srv/data", "memory: 512 MiB -> 1 GiB"]);
    /// ```
    pub fn diff(&self, other: &Self) -> Vec<String> {
        let mut changes = Changes(Vec::new());
        self.calls(other, &mut changes);
        self.paths(other, &mut changes);
        let network = (self.network.describe(), other.network.describe());
        if self.network != other.network && network.0 == network.1 {
            // Long lists of ports are cut in what is said of them.
            changes.say("network: other ports".into());
        }
        changes.value("network", &network.0, &network.1);
        self.bounds(other, &mut changes);

        let names = |policy: &Self| -> BTreeSet<_> {
            policy.namespaces.iter().map(ToString::to_string).collect()
        };
        changes.sets(
            &names(self),
            &names(other),
            "has now a namespace of its own:",
            "has no longer a namespace of its own:",
        );
        let layers = |policy: &Self| -> BTreeSet<_> {
            policy.best_effort.iter().map(ToString::to_string).collect()
        };
        changes.sets(
            &layers(self),
            &layers(other),
            "starts now without this layer where the host lacks it:",
            "starts no longer without this layer:",
        );
        self.variables(other, &mut changes);
        let path = |policy: &Self| {
            let paths = policy.search_path.iter();
            let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
            paths.join(":")
        };
        changes.value("search path", &path(self), &path(other));
        for (name, one, two) in [
            ("overflow", word(&self.overflow), word(&other.overflow)),
            ("identity", word(&self.identity), word(&other.identity)),
            (
                "recorded arguments",
                word(&self.record_arguments),
                word(&other.record_arguments),
            ),
        ] {
            changes.value(name, &one, &two);
        }
        changes.value("version", &self.version, &other.version);
        changes.0
    }

    fn calls(&self, other: &Self, changes: &mut Changes) {
        let (one, two) = (&self.syscalls, &other.syscalls);
        let starts = |calls: &SyscallPolicy| calls.allows("execve") || calls.allows("execveat");
        match (starts(one), starts(two)) {
            (false, true) => changes.say("may now start programs".into()),
            (true, false) => changes.say("may no longer start programs".into()),
            _ => {}
        }
        let groups = |calls: &SyscallPolicy| -> BTreeSet<String> {
            calls.groups().map(|group| group.to_string()).collect()
        };
        let (now, before) = (
            "may now make the calls of the group",
            "may no longer make those of the group",
        );
        changes.sets(&groups(one), &groups(two), now, before);
        let named = |names: &mut dyn Iterator<Item = &str>| -> BTreeSet<String> {
            names.map(str::to_owned).collect()
        };
        for (one, two, now, before) in [
            (
                named(&mut one.calls()),
                named(&mut two.calls()),
                "may now call",
                "has no longer by name the call",
            ),
            (
                named(&mut one.denied()),
                named(&mut two.denied()),
                "is now denied",
                "is no longer denied",
            ),
            (
                named(&mut one.killed()),
                named(&mut two.killed()),
                "is now killed for",
                "is no longer killed for",
            ),
        ] {
            changes.sets(&one, &two, now, before);
        }
        let rules =
            |calls: &SyscallPolicy| -> Vec<String> { calls.rules().iter().map(word).collect() };
        let (rules_one, rules_two) = (rules(one), rules(two));
        let set = |rules: &[String]| rules.iter().cloned().collect::<BTreeSet<_>>();
        let (set_one, set_two) = (set(&rules_one), set(&rules_two));
        let (now, before) = ("may now call by the rule", "has no longer the rule");
        changes.sets(&set_one, &set_two, now, before);
        if set_one == set_two && rules_one != rules_two {
            changes.say("rules: in another order".into());
        }
        changes.value(
            "errno of refused calls",
            &one.refusal_errno(),
            &two.refusal_errno(),
        );
        changes.value(
            "calls that are not named",
            &word(&one.unnamed()),
            &word(&two.unnamed()),
        );
    }

    fn paths(&self, other: &Self, changes: &mut Changes) {
        let (one, two) = (&self.filesystem, &other.filesystem);
        for (one, two, what) in [
            (&one.read, &two.read, "read"),
            (&one.write, &two.write, "write to"),
            (&one.execute, &two.execute, "take programs from"),
            (&one.programs, &two.programs, "start"),
        ] {
            let set = |paths: &[PathBuf]| -> BTreeSet<String> {
                paths.iter().map(|path| shown(path)).collect()
            };
            let (set_one, set_two) = (set(one), set(two));
            let (now, before) = (format!("may now {what}"), format!("may no longer {what}"));
            changes.sets(&set_one, &set_two, &now, &before);
            if set_one == set_two && one != two {
                changes.say(format!("paths to {what}: in another order"));
            }
        }
        match (one.execute_scratch, two.execute_scratch) {
            (false, true) => changes.say("may now take programs from its scratch directory".into()),
            (true, false) => {
                changes.say("may no longer take programs from its scratch directory".into());
            }
            _ => {}
        }
    }

    fn bounds(&self, other: &Self, changes: &mut Changes) {
        let (one, two) = (&self.limits, &other.limits);
        for (name, one, two) in [
            ("memory", one.memory, two.memory),
            ("scratch", one.scratch, two.scratch),
            ("file size", one.file_size, two.file_size),
            ("output", Some(one.output), Some(two.output)),
        ] {
            changes.value(name, &limit(one.map(size)), &limit(two.map(size)));
        }
        for (name, one, two) in [
            ("pids", one.pids, two.pids),
            (
                "files in scratch",
                Some(one.scratch_files),
                Some(two.scratch_files),
            ),
            ("open files", Some(one.open_files), Some(two.open_files)),
            (
                "denied calls",
                Some(self.denials.total),
                Some(other.denials.total),
            ),
            (
                "denied calls in a second",
                Some(self.denials.per_second),
                Some(other.denials.per_second),
            ),
        ] {
            changes.value(name, &limit(one), &limit(two));
        }
        for (name, one, two) in [
            ("wall clock", Some(one.wall_clock), Some(two.wall_clock)),
            ("CPU time", one.cpu_time, two.cpu_time),
            ("grace", Some(self.grace), Some(other.grace)),
        ] {
            changes.value(name, &limit(one.map(time)), &limit(two.map(time)));
        }
        changes.value("CPU share", &limit(one.cpu), &limit(two.cpu));
    }

    fn variables(&self, other: &Self, changes: &mut Changes) {
        for (name, value) in &self.environment {
            match other.environment.get(name) {
                None => changes.say(format!("environment: without {name:?}")),
                Some(new) if new != value => {
                    changes.say(format!("environment: {name:?} has another value"));
                }
                Some(_) => {}
            }
        }
        for name in other.environment.keys() {
            if !self.environment.contains_key(name) {
                changes.say(format!("environment: with {name:?}"));
            }
        }
    }
}

struct Changes(Vec<String>);

impl Changes {
    fn say(&mut self, change: String) {
        self.0.push(change);
    }

    fn value<T: PartialEq + Display>(&mut self, name: &str, one: &T, two: &T) {
        if one != two {
            self.say(format!("{name}: {one} -> {two}"));
        }
    }

    fn sets(&mut self, one: &BTreeSet<String>, two: &BTreeSet<String>, now: &str, before: &str) {
        for gained in two.difference(one) {
            self.say(format!("{now} {gained}"));
        }
        for lost in one.difference(two) {
            self.say(format!("{before} {lost}"));
        }
    }
}

fn limit(limit: Option<impl Display>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

fn size(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}

fn time(time: Duration) -> String {
    humantime_serde::re::humantime::format_duration(time).to_string()
}

fn shown(path: &Path) -> String {
    // With what is not UTF-8 in it, so that two paths are two.
    path.to_str().map_or_else(
        || {
            path.as_os_str()
                .as_encoded_bytes()
                .escape_ascii()
                .to_string()
        },
        str::to_owned,
    )
}

/// As in a policy file.
fn word<T: serde::Serialize + std::fmt::Debug>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(value) => value.to_string(),
        Err(_) => format!("{value:?}"),
    }
}
