//! The files that the rules are about: text that is, or is about to be, under version control.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::{Context, Result};

/// One text file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Relative to the root, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    pub(crate) fn is_manifest(&self) -> bool {
        Path::new(&self.path)
            .file_name()
            .is_some_and(|name| name == "Cargo.toml")
    }

    fn is_script(&self) -> bool {
        let first = self.text.lines().next().unwrap_or_default();
        let shell = first.starts_with("#!") && (first.ends_with("sh") || first.contains("bash"));
        shell || self.has_extension("sh")
    }

    fn has_extension(&self, wanted: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == wanted)
    }
}

/// All text files of the workspace.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
}

impl Tree {
    /// Asks git, new files included; where this is no git checkout, or git refuses it because it
    /// belongs to somebody else, the directories are walked.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let mut paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            match fs::read(root.join(&path)) {
                Ok(bytes) => {
                    if let Some(text) = text(bytes) {
                        files.push(SourceFile { path, text });
                    }
                }
                // Removed and not committed yet; or a symbolic link to a directory.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
            }
        }
        Ok(Self { files })
    }

    /// The shell scripts, by their path.
    pub(crate) fn scripts(&self) -> impl Iterator<Item = &str> {
        self.files
            .iter()
            .filter(|file| file.is_script())
            .map(|file| file.path.as_str())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory
    )
}

/// The content, where it is text.
fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let paths: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", directory.display()))?;
            let kind = entry.file_type().context("cannot read a file's type")?;
            if kind.is_dir() && entry.file_name() != ".git" && entry.file_name() != "target" {
                open.push(entry.path());
            } else if kind.is_file()
                && let Ok(path) = entry.path().strip_prefix(root)
            {
                paths.push(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(paths)
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

    #[test]
    fn a_script_is_known_by_its_first_line_or_its_name() {
        assert!(file(".ci/run", "#!/usr/bin/env bash\n").is_script());
        assert!(file("x", "#!/bin/sh\n").is_script());
        assert!(file("scripts/x.sh", "true\n").is_script());
        assert!(!file("x.py", "#!/usr/bin/env python3\n").is_script());
        assert!(!file("README.md", "how to use sh\n").is_script());
    }

    #[test]
    fn what_is_not_text_is_left_out() {
        assert_eq!(text(vec![0x7f, b'E', 0]), None);
        assert_eq!(text(vec![0xff, 0xfe]), None);
        assert_eq!(text(b"plain".to_vec()).as_deref(), Some("plain"));
    }

    #[test]
    fn a_walk_finds_what_git_lists_of_this_package() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(
            walked(root)
                .unwrap()
                .contains(&"src/lint/tree.rs".to_owned())
        );
    }
}
