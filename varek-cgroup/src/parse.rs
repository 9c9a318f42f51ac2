//! Texts of the kernel: /proc/self/cgroup, /proc/self/mountinfo, and flat keyed files. Pure and total: a
//! line that is not as documented is left out, never a panic.

use std::path::PathBuf;

/// One line of /proc/PID/cgroup: `ID:CONTROLLERS:PATH` (cgroups(7)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Empty for cgroup2; a named hierarchy is `name=...`.
    pub(crate) controllers: Vec<String>,
    /// Relative to the root of the hierarchy as the cgroup namespace shows it.
    pub(crate) path: String,
    /// The line of cgroup2, `0::PATH`.
    pub(crate) unified: bool,
}

/// The lines of /proc/PID/cgroup.
pub(crate) fn memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            id.parse::<u32>().ok()?;
            if !path.starts_with('/') {
                return None;
            }
            Some(Membership {
                controllers: controllers
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect(),
                path: path.to_owned(),
                unified: id == "0" && controllers.is_empty(),
            })
        })
        .collect()
}

/// One mount of a control group file system (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Which part of the hierarchy is mounted (field 4); `/` unless it is a bind mount or the mount was made
    /// in another cgroup namespace.
    pub(crate) root: PathBuf,
    /// Where it is mounted (field 5).
    pub(crate) point: PathBuf,
    /// The mount or the file system is read-only.
    pub(crate) read_only: bool,
    /// cgroup2 rather than version 1.
    pub(crate) unified: bool,
    /// The options of the file system: for version 1 the controllers are among them.
    pub(crate) options: Vec<String>,
}

/// The control group mounts in mountinfo, without those that a later mount on the same point hides.
pub(crate) fn mounts(text: &str) -> Vec<Mount> {
    let mut found: Vec<(PathBuf, Option<Mount>)> = Vec::new();
    for line in text.lines() {
        if let Some((point, mount)) = mount(line) {
            found.retain(|(earlier, _)| *earlier != point);
            found.push((point, mount));
        }
    }
    found.into_iter().filter_map(|(_, mount)| mount).collect()
}

/// One line: the mount point, and the mount where it is a control group one.
fn mount(line: &str) -> Option<(PathBuf, Option<Mount>)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point, options) = (left.next()?, left.next()?, left.next()?);
    let (mut right, point) = (right.split(' '), path(point));
    let kind = right.next()?;
    if kind != "cgroup" && kind != "cgroup2" {
        return Some((point, None));
    }
    let super_options: Vec<String> = right
        .nth(1)
        .unwrap_or_default()
        .split(',')
        .map(str::to_owned)
        .collect();
    let mount = Mount {
        root: path(root),
        point: point.clone(),
        read_only: options.split(',').any(|option| option == "ro")
            || super_options.iter().any(|option| option == "ro"),
        unified: kind == "cgroup2",
        options: super_options,
    };
    Some((point, Some(mount)))
}

/// A path of mountinfo, with its octal escapes undone.
fn path(text: &str) -> PathBuf {
    let bytes = unescape(text);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec(bytes).into()
    }
    #[cfg(not(unix))]
    {
        String::from_utf8_lossy(&bytes).into_owned().into()
    }
}

/// `\ooo`, three octal digits of one byte, as the kernel writes space, tab, newline and backslash.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                Some((((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), tail))
            }
            _ => None,
        };
        let (byte, tail) = escaped.unwrap_or((first, after));
        bytes.push(byte);
        rest = tail;
    }
    bytes
}

/// The number after `key` in a flat keyed file (`key number` a line), such as memory.events or cpu.stat.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok()).flatten()
    })
}

/// A single number; `max`, which is no limit, is the largest one.
pub(crate) fn number_or_max(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_undone_and_other_backslashes_kept() {
        assert_eq!(unescape(r"/a\040b\134c\011"), b"/a b\\c\t");
        assert_eq!(unescape(r"/a\04"), br"/a\04");
        assert_eq!(unescape(r"\777\8"), br"\777\8");
        assert_eq!(unescape("\\"), b"\\");
    }

    #[test]
    fn optional_fields_and_empty_sources_are_stepped_over() {
        let text =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:2 - cgroup2  rw,nsdelegate\n";
        let found = mounts(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].options, ["rw", "nsdelegate"]);
        assert!(found[0].unified && !found[0].read_only);
    }

    #[test]
    fn a_mount_hidden_by_a_later_one_is_left_out() {
        let text = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                    31 30 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                    32 31 0:26 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n";
        let found = mounts(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].point, PathBuf::from("/sys/fs/cgroup/unified"));
        assert!(found[0].read_only);
    }

    #[test]
    fn group_paths_may_hold_colons() {
        let found = memberships("4:memory:/a:b\n0::/c:d:e\nx:y:/z\n7:cpu,cpuacct:relative\n");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].path, "/a:b");
        assert_eq!(found[1].path, "/c:d:e");
        assert!(found[1].unified && !found[0].unified);
    }

    /// What the kernel does to a path before it prints it (seq_escape with " \t\n\\").
    fn escape(path: &str) -> String {
        path.chars().fold(String::new(), |mut out, c| {
            match c {
                ' ' => out.push_str("\\040"),
                '\t' => out.push_str("\\011"),
                '\n' => out.push_str("\\012"),
                '\\' => out.push_str("\\134"),
                other => out.push(other),
            }
            out
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC*|([a-z0-9:/ \\\\,.\n-]{0,200})", key in "[a-z_.]{0,9}") {
            let _ = memberships(&text);
            let _ = mounts(&text);
            let _ = keyed(&text, &key);
            let _ = number_or_max(&text);
        }

        #[test]
        fn a_written_mount_is_read_back(
            root in "/[a-z \\\\\t\n]{0,12}", point in "/[a-zé \\\\\t\n-]{1,12}", read_only: bool,
        ) {
            let line = format!(
                "31 23 0:28 {} {} {},relatime shared:7 - cgroup cgroup rw,cpu,cpuacct",
                escape(&root), escape(&point), if read_only { "ro" } else { "rw" },
            );
            let found = mounts(&line);
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].root, &PathBuf::from(root));
            prop_assert_eq!(&found[0].point, &PathBuf::from(point));
            prop_assert_eq!(found[0].read_only, read_only);
            prop_assert_eq!(&found[0].options, &["rw", "cpu", "cpuacct"]);
        }

        #[test]
        fn written_memberships_are_read_back(
            lines in prop::collection::vec((1..40_u32, "[a-z]{1,8}", "/[a-z:/.-]{0,20}"), 0..8), own in "/[a-z:/]{0,20}",
        ) {
            let mut text = String::new();
            for (id, name, path) in &lines {
                writeln!(text, "{id}:{name}:{path}").unwrap();
            }
            text.push_str("0::");
            text.push_str(&own);
            text.push('\n');
            let found = memberships(&text);
            prop_assert_eq!(found.len(), lines.len() + 1);
            for (member, (_, name, path)) in found.iter().zip(&lines) {
                prop_assert_eq!(&member.controllers, std::slice::from_ref(name));
                prop_assert_eq!(&member.path, path);
                prop_assert!(!member.unified);
            }
            let last = &found[lines.len()];
            prop_assert!(last.unified && last.controllers.is_empty());
            prop_assert_eq!(&last.path, &own);
        }

        #[test]
        fn written_events_are_read_back(values in prop::collection::vec(any::<u64>(), 6)) {
            let keys = ["low", "high", "max", "oom", "oom_kill", "oom_group_kill"];
            let mut text = String::new();
            for (key, value) in keys.iter().zip(&values) {
                writeln!(text, "{key} {value}").unwrap();
            }
            for (key, value) in keys.iter().zip(&values) {
                prop_assert_eq!(keyed(&text, key), Some(*value));
            }
            prop_assert_eq!(keyed(&text, "oom_kil"), None);
        }

        #[test]
        fn written_limits_are_read_back(value in prop::option::of(any::<u64>())) {
            let text = value.map_or("max\n".to_owned(), |value| format!("{value}\n"));
            prop_assert_eq!(number_or_max(&text), Some(value.unwrap_or(u64::MAX)));
        }
    }
}
