//! The rules that no other tool checks, and the exceptions to them.

use std::path::{Component, Path};

use super::source::{code_only, lines_with_word};
use super::tree::{SourceFile, Tree};

/// Where the exceptions are: one a line, `RULE PATH REASON`.
const EXCEPTIONS: &str = "xtask/lint-allow.txt";

/// The most lines that a Rust file may have.
const MOST_LINES: usize = 800;

// Put together from parts, so that this file does not break the rules that it states.
const MARKERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
const MACROS: [&str; 2] = [concat!("to", "do!"), concat!("unimpl", "emented!")];
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Breach {
    rule: &'static str,
    line: Option<usize>,
    message: String,
}

/// What was found, as lines to print; empty where all is well.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) findings: Vec<String>,
}

impl Rules {
    pub(crate) fn check(tree: &Tree) -> Self {
        let mut findings = Vec::new();
        let list = tree.files.iter().find(|file| file.path == EXCEPTIONS);
        let mut exceptions = Exceptions::parse(list.map_or("", |file| &file.text), &mut findings);
        for file in &tree.files {
            for breach in breaches(file) {
                if !exceptions.covers(breach.rule, &file.path) {
                    let line = breach.line.map_or(String::new(), |line| format!(":{line}"));
                    let Breach { rule, message, .. } = breach;
                    findings.push(format!("{}{line}: {message} [{rule}]", file.path));
                }
            }
        }
        findings.extend(exceptions.unused());
        Self { findings }
    }
}

fn breaches(file: &SourceFile) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut add = |rule, line, message: String| {
        found.push(Breach {
            rule,
            line,
            message,
        });
    };

    if file.is_rust() {
        let code = code_only(&file.text);
        if !may_be_unsafe(&file.path) {
            for line in lines_with_word(&code, "unsafe") {
                add(
                    "unsafe",
                    Some(line),
                    "`unsafe` outside of sys.rs".to_owned(),
                );
            }
        }
        let lines = file.text.lines().count();
        if lines > MOST_LINES {
            add(
                "length",
                None,
                format!("{lines} lines, of at most {MOST_LINES}"),
            );
        }
        for name in MACROS {
            for line in lines_holding(&code, name) {
                add("marker", Some(line), format!("`{name}` is unfinished work"));
            }
        }
    }
    for marker in MARKERS {
        for line in lines_with_word(&file.text, marker) {
            add(
                "marker",
                Some(line),
                format!("`{marker}` is unfinished work"),
            );
        }
    }
    for path in MACHINE_PATHS {
        for line in lines_with_path(&file.text, path) {
            add(
                "path",
                Some(line),
                format!("`{path}` is a path of one machine"),
            );
        }
    }
    if file.is_manifest() && is_package(&file.text) && !inherits_lints(&file.text) {
        add(
            "lints",
            None,
            "the package does not inherit the workspace's lints".to_owned(),
        );
    }
    found
}

/// Files named `sys.rs`, and files below a directory named `sys`.
fn may_be_unsafe(path: &str) -> bool {
    let path = Path::new(path);
    let below = |directory: &Path| {
        directory
            .components()
            .any(|c| c == Component::Normal("sys".as_ref()))
    };
    path.file_name().is_some_and(|name| name == "sys.rs") || path.parent().is_some_and(below)
}

fn lines_holding(text: &str, needle: &str) -> Vec<usize> {
    numbered(text)
        .filter(|(_, line)| line.contains(needle))
        .map(|(number, _)| number)
        .collect()
}

/// Lines where the path begins, rather than goes on from another directory.
fn lines_with_path(text: &str, path: &str) -> Vec<usize> {
    let begins = |line: &str| {
        line.match_indices(path).any(|(at, _)| {
            let before = line.get(..at).and_then(|head| head.chars().next_back());
            !before.is_some_and(|c| c.is_alphanumeric() || "_-.*~})]>$".contains(c))
        })
    };
    numbered(text)
        .filter(|(_, line)| begins(line))
        .map(|(number, _)| number)
        .collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Whether a manifest describes a package, and not a workspace alone.
fn is_package(manifest: &str) -> bool {
    manifest.lines().any(|line| line.trim() == "[package]")
}

/// `workspace = true` in the section `[lints]`, or `lints.workspace = true`.
fn inherits_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let setting: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        match section {
            "" => setting == "lints.workspace=true",
            "[lints]" => setting == "workspace=true",
            _ => false,
        }
    })
}

/// The exceptions that are written down, and whether each was needed.
#[derive(Debug)]
struct Exceptions {
    entries: Vec<Exception>,
}

#[derive(Debug)]
struct Exception {
    rule: String,
    path: String,
    used: bool,
}

impl Exceptions {
    /// Lines that are empty or start with `#` say nothing; one without a reason is a finding.
    fn parse(text: &str, findings: &mut Vec<String>) -> Self {
        let mut entries = Vec::new();
        for (number, line) in numbered(text) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, char::is_whitespace);
            if let (Some(rule), Some(path), Some(_reason)) =
                (words.next(), words.next(), words.next())
            {
                entries.push(Exception {
                    rule: rule.to_owned(),
                    path: path.to_owned(),
                    used: false,
                });
            } else {
                findings.push(format!(
                    "{EXCEPTIONS}:{number}: not of the form RULE PATH REASON"
                ));
            }
        }
        Self { entries }
    }

    fn covers(&mut self, rule: &str, path: &str) -> bool {
        let entry = self
            .entries
            .iter_mut()
            .find(|entry| entry.rule == rule && entry.path == path);
        entry.map(|entry| entry.used = true).is_some()
    }

    /// An exception that nothing needs any more would hide the next breach.
    fn unused(&self) -> impl Iterator<Item = String> {
        self.entries
            .iter()
            .filter(|entry| !entry.used)
            .map(|entry| {
                format!(
                    "{EXCEPTIONS}: nothing in {} needs the exception [{}]",
                    entry.path, entry.rule
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn rules_of(path: &str, text: &str) -> Vec<(&'static str, Option<usize>)> {
        breaches(&file(path, text))
            .into_iter()
            .map(|found| (found.rule, found.line))
            .collect()
    }

    #[test]
    fn unsafe_code_is_allowed_in_sys_files_only() {
        let code = "fn a() {\n    unsafe { b() }\n}\n";
        assert_eq!(
            rules_of("varek-core/src/spawn.rs", code),
            [("unsafe", Some(2))]
        );
        assert_eq!(
            rules_of("varek-core/src/mysys.rs", code),
            [("unsafe", Some(2))]
        );
        assert_eq!(rules_of("varek-core/src/sys.rs", code), []);
        assert_eq!(rules_of("varek-core/src/sys/clone.rs", code), []);
        assert_eq!(rules_of("docs/design.md", code), []);
    }

    #[test]
    fn a_rust_file_has_800_lines_at_most() {
        assert_eq!(rules_of("a.rs", &"\n".repeat(800)), []);
        assert_eq!(rules_of("a.rs", &"\n".repeat(801)), [("length", None)]);
        assert_eq!(rules_of("a.md", &"\n".repeat(801)), []);
    }

    #[test]
    fn unfinished_work_is_found_and_templates_are_not() {
        for marker in MARKERS {
            assert_eq!(
                rules_of("a.md", &format!("ok\n{marker}: later")),
                [("marker", Some(2))]
            );
        }
        for name in MACROS {
            assert_eq!(
                rules_of("a.rs", &format!("fn a() {{ {name}() }}")),
                [("marker", Some(1))]
            );
        }
        let template = format!("mktemp -d /tmp/varek.{0}{0}", MARKERS[2]);
        assert_eq!(rules_of("a.sh", &template), []);
    }

    #[test]
    fn a_path_of_a_machine_is_found_where_it_begins() {
        for path in MACHINE_PATHS {
            for before in ["", " ", "\"", "`", "=", ":", "(", "file://"] {
                let line = format!("{before}{path}x");
                assert_eq!(rules_of("a.md", &line), [("path", Some(1))], "{line}");
            }
            for before in ["/srv", "$HOME", "${HOME}", ".", "~", "crates"] {
                assert_eq!(
                    rules_of("a.md", &format!("{before}{path}x")),
                    [],
                    "{before}"
                );
            }
        }
    }

    #[test]
    fn every_package_inherits_the_lints() {
        let package = "[package]\nname = \"a\"\n";
        assert_eq!(rules_of("a/Cargo.toml", package), [("lints", None)]);
        assert_eq!(
            rules_of(
                "a/Cargo.toml",
                &format!("{package}\n[lints]\nworkspace = true\n")
            ),
            []
        );
        assert_eq!(
            rules_of(
                "a/Cargo.toml",
                &format!("lints.workspace = true\n{package}")
            ),
            []
        );
        // The same setting of another section is not enough.
        let other = format!("{package}\n[dependencies.serde]\nworkspace = true\n");
        assert_eq!(rules_of("a/Cargo.toml", &other), [("lints", None)]);
        assert_eq!(rules_of("Cargo.toml", "[workspace]\nmembers = []\n"), []);
    }

    #[test]
    fn an_exception_covers_one_rule_in_one_file_and_must_be_needed() {
        let tree = |list: &str| Tree {
            files: vec![
                file(EXCEPTIONS, list),
                file("a.rs", "unsafe {}"),
                file("b.rs", "unsafe {}"),
            ],
        };
        let findings = |list: &str| Rules::check(&tree(list)).findings;
        assert_eq!(findings("").len(), 2);

        let one = findings("# why\nunsafe a.rs a reason\n");
        assert_eq!(one, ["b.rs:1: `unsafe` outside of sys.rs [unsafe]"]);
        assert_eq!(findings("length a.rs a reason\n").len(), 3);
        assert!(findings("unsafe a.rs\n")[0].contains("RULE PATH REASON"));
    }
}
