//! Files to directories: what a policy says in few words.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use varek_core::Filesystem;

use super::record::Uses;

/// Beneath these, what is one step down belongs to somebody or something of its own, and is not granted for what is in it.
const WIDE: [&str; 8] = [
    "/home", "/proc", "/sys", "/dev", "/run", "/var", "/mnt", "/media",
];

/// The grants that cover these uses. A directory stands for what is beneath it where at least `enough` of its entries lead to
/// something that is used.
pub(super) fn grants(paths: &BTreeMap<PathBuf, Uses>, enough: usize) -> Filesystem {
    let with = |used: fn(&Uses) -> bool| {
        let paths = paths.iter().filter(move |(_, uses)| used(uses));
        paths.map(|(path, _)| path.clone()).collect()
    };
    let write = fold(&with(|uses| uses.write), enough);
    let execute = fold(&with(|uses| uses.execute), enough);
    // Both of them grant reading too.
    let covered = |path: &Path| beneath_any(path, write.iter().chain(&execute));
    let mut read: BTreeSet<PathBuf> = with(|uses| uses.read);
    read.retain(|path| !covered(path));
    let mut read = fold(&read, enough);
    read.retain(|path| !covered(path));
    let mut filesystem = Filesystem::default();
    filesystem.read = read;
    filesystem.write = write;
    filesystem.execute = execute;
    filesystem
}

/// Whether one of these paths is this one or above it.
pub(super) fn beneath_any<'a>(path: &Path, mut grants: impl Iterator<Item = &'a PathBuf>) -> bool {
    grants.any(|grant| path.starts_with(grant))
}

fn fold(paths: &BTreeSet<PathBuf>, enough: usize) -> Vec<PathBuf> {
    let mut entries: BTreeMap<&Path, BTreeSet<&OsStr>> = BTreeMap::new();
    for path in paths {
        for (inner, outer) in path.ancestors().zip(path.ancestors().skip(1)) {
            if let Some(name) = inner.file_name() {
                entries.entry(outer).or_default().insert(name);
            }
        }
    }
    let full = |directory: &&Path| {
        let entries = entries.get(directory).map_or(0, BTreeSet::len);
        entries >= enough.max(1) && foldable(directory)
    };
    let folded: BTreeSet<&Path> = paths
        .iter()
        // The last of the ancestors is the outermost.
        .map(|path| path.ancestors().skip(1).filter(full).last().unwrap_or(path))
        .collect();
    // A directory stands before what is beneath it.
    let mut grants: Vec<PathBuf> = Vec::new();
    for path in folded {
        if !beneath_any(path, grants.iter()) {
            grants.push(path.to_owned());
        }
    }
    grants
}

/// Not the root, what is directly in it, or a home.
fn foldable(directory: &Path) -> bool {
    let least = if WIDE.iter().any(|wide| directory.starts_with(wide)) {
        4
    } else {
        3
    };
    // The root counts as one.
    directory.components().count() >= least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(paths: &[(&str, &str)]) -> BTreeMap<PathBuf, Uses> {
        let uses = |uses: &str| Uses {
            read: uses.contains('r'),
            write: uses.contains('w'),
            execute: uses.contains('x'),
        };
        let paths = paths
            .iter()
            .map(|(path, how)| (PathBuf::from(path), uses(how)));
        paths.collect()
    }

    fn lists(paths: &[(&str, &str)], enough: usize) -> [Vec<String>; 3] {
        let grants = grants(&used(paths), enough);
        let text = |paths: Vec<PathBuf>| {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        [text(grants.read), text(grants.write), text(grants.execute)]
    }

    #[test]
    fn enough_entries_make_a_directory_and_fewer_do_not() {
        let files = [
            ("/opt/a/1", "r"),
            ("/opt/a/2", "r"),
            ("/opt/a/3", "r"),
            ("/opt/b/1", "r"),
        ];
        let [read, ..] = lists(&files, 3);
        assert_eq!(read, ["/opt/a", "/opt/b/1"]);
        let [read, ..] = lists(&files, 4);
        assert_eq!(read, ["/opt/a/1", "/opt/a/2", "/opt/a/3", "/opt/b/1"]);
    }

    #[test]
    fn what_is_deep_within_one_entry_counts_once() {
        let files = [
            ("/opt/p/lib/a/1", "r"),
            ("/opt/p/lib/b/2", "r"),
            ("/opt/p/lib/c", "r"),
        ];
        let [read, ..] = lists(&files, 3);
        // Not /opt/p, of which one entry is used.
        assert_eq!(read, ["/opt/p/lib"]);
    }

    #[test]
    fn the_outermost_full_directory_stands_for_all() {
        let files = [("/opt/p/a/1", "r"), ("/opt/p/a/2", "r"), ("/opt/p/b", "r")];
        let [read, ..] = lists(&files, 2);
        assert_eq!(read, ["/opt/p"]);
    }

    #[test]
    fn the_root_its_entries_and_homes_are_never_granted_for_what_is_in_them() {
        for top in [
            "",
            "/etc",
            "/usr",
            "/home/ann",
            "/var/lib",
            "/proc/sys",
            "/dev/pts",
        ] {
            let files = ["a", "b", "c"].map(|name| format!("{top}/{name}"));
            let files = [0, 1, 2].map(|index: usize| (files[index].as_str(), "r"));
            let [read, ..] = lists(&files, 2);
            assert_eq!(read, files.map(|(path, _)| path), "{top}");
        }
        let [read, ..] = lists(&[("/home/ann/p/a", "r"), ("/home/ann/p/b", "r")], 2);
        assert_eq!(read, ["/home/ann/p"]);
    }

    #[test]
    fn what_the_program_itself_listed_is_granted_whatever_it_is() {
        let [read, ..] = lists(&[("/", "r"), ("/etc/passwd", "r")], 8);
        assert_eq!(read, ["/"]);
    }

    #[test]
    fn what_is_written_or_executed_needs_no_second_grant_to_be_read() {
        let files = [
            ("/opt/bin/p", "rx"),
            ("/srv/out", "w"),
            ("/srv/out/1", "r"),
            ("/srv/in", "r"),
            ("/srv/in/both", "rw"),
        ];
        let [read, write, execute] = lists(&files, 8);
        assert_eq!(read, ["/srv/in"]);
        assert_eq!(write, ["/srv/in/both", "/srv/out"]);
        assert_eq!(execute, ["/opt/bin/p"]);
    }
}
