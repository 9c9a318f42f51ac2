//! What names and paths the service takes.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::Error;

/// Characters of a name, at most.
const LONGEST: usize = 128;

/// Bytes of a path within an artifact or among a run's files, at most.
const LONGEST_PATH: usize = 1024;

/// Types of artifacts that the service keeps for itself, with the beginning of the names that it keeps; an empty one is all of them.
const RESERVED: [(&str, &str); 3] = [("job", ""), ("run_table", "run-"), ("code", "source-")];

fn refuse<T>(what: &'static str, found: &str, allowed: &'static str) -> Result<T, Error> {
    let found = found.to_owned();
    Err(Error::Name {
        what,
        found,
        allowed,
    })
}

/// An artifact's name.
pub(crate) fn artifact(name: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if (1..=LONGEST).contains(&name.len()) && name.chars().all(good) {
        return Ok(());
    }
    refuse("the artifact's name", name, "1 to 128 of A-Z a-z 0-9 _ . -")
}

/// An artifact's type, together with its name.
pub(crate) fn artifact_type(kind: &str, name: &str) -> Result<(), Error> {
    let taken = kind.starts_with("wandb-")
        || RESERVED
            .iter()
            .any(|(reserved, begin)| *reserved == kind && name.starts_with(begin));
    let well_formed = (1..=LONGEST).contains(&kind.chars().count())
        && !kind.chars().any(|c| "/:".contains(c) || c.is_control());
    if well_formed && !taken {
        return Ok(());
    }
    let allowed = "1 to 128 characters without / and :, and none of the service's own types (job, wandb-..., \
                   run_table for run-..., code for source-...)";
    refuse("the artifact's type", kind, allowed)
}

/// An alias of an artifact.
pub(crate) fn alias(alias: &str) -> Result<(), Error> {
    let well_formed = (1..=LONGEST).contains(&alias.chars().count())
        && !alias.chars().any(|c| "/:".contains(c) || c.is_control());
    if well_formed {
        return Ok(());
    }
    refuse("the alias", alias, "1 to 128 characters without / and :")
}

/// A tag of an artifact.
pub(crate) fn tag(tag: &str) -> Result<(), Error> {
    let word = |c: char| c.is_alphanumeric() || "_- ".contains(c);
    if !tag.is_empty() && tag.trim_matches(' ') == tag && tag.chars().all(word) {
        return Ok(());
    }
    refuse(
        "the tag",
        tag,
        "letters, digits, - and _, with spaces between them",
    )
}

/// A path within an artifact, or below the run's files.
pub(crate) fn relative(what: &'static str, path: &str) -> Result<(), Error> {
    let good = |part: &str| !matches!(part, "" | "." | "..");
    let well_formed = path.len() <= LONGEST_PATH
        && path.split('/').all(good)
        && !path.chars().any(|c| c == '\\' || c.is_control())
        // A drive, where the artifact is downloaded to Windows.
        && path.as_bytes().get(1) != Some(&b':');
    if well_formed {
        return Ok(());
    }
    let allowed = "a relative path of at most 1024 bytes without . and .. in it, \\, a drive or control characters";
    refuse(what, path, allowed)
}

/// A key of a row, a summary, a config or metadata.
pub(crate) fn key(key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return refuse("the key", key, "any text that is not empty");
    }
    if matches!(key, "_step" | "_timestamp" | "_runtime" | "_wandb") {
        let key = key.to_owned();
        return Err(Error::ReservedKey { key });
    }
    Ok(())
}

/// An alert's title.
pub(crate) fn title(title: &str) -> Result<(), Error> {
    if (1..64).contains(&title.chars().count()) {
        return Ok(());
    }
    refuse("the alert's title", title, "1 to 63 characters")
}

/// The name of the artifact that holds a run's table: what artifacts cannot have in their names is left out, and what that was is told
/// apart by a checksum. Source: the client's behaviour.
pub(crate) fn table_artifact(run: &str, key: &str) -> Result<String, Error> {
    let whole = format!("run-{run}-{key}");
    let good = |c: &char| c.is_ascii_alphanumeric() || "_.-".contains(*c);
    let mut name: String = whole.chars().filter(good).collect();
    if name != whole {
        let checksum = crc32fast::hash(whole.as_bytes()).to_be_bytes();
        name.push('-');
        name.push_str(&URL_SAFE_NO_PAD.encode(checksum));
    }
    if name.len() > LONGEST {
        return refuse(
            "the table's key",
            key,
            "a text with which the artifact's name, run-ID-KEY, has 128 characters at most",
        );
    }
    Ok(name)
}

/// A file's path as text.
pub(crate) fn text(path: &Path) -> Result<&str, Error> {
    match path.to_str() {
        Some(text) => Ok(text),
        None => refuse("the path", &path.to_string_lossy(), "UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_artifact_is_named_as_the_official_client_names_it() {
        let named = |key| table_artifact("abc12345", key).unwrap();
        assert_eq!(named("suite/results"), "run-abc12345-suiteresults-IkJ2Tw");
        assert_eq!(named("flags"), "run-abc12345-flags");
        assert!(table_artifact("abc12345", &"k".repeat(116)).is_err());
        assert!(table_artifact("abc12345", &"k".repeat(115)).is_ok());
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["a", "a/b.json", "ünï.txt", ".hidden", "a..b", "x:"] {
            assert_eq!(relative("path", path).is_ok(), path != "x:", "{path}");
        }
        for path in [
            "", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\\..\\b", "C:a", "a\nb", "a\0",
        ] {
            assert!(relative("path", path).is_err(), "{path:?}");
        }
        assert!(relative("path", &"p".repeat(1025)).is_err());
    }

    #[test]
    fn names_of_the_service_itself_are_refused() {
        for (kind, name) in [
            ("job", "x"),
            ("wandb-history", "x"),
            ("run_table", "run-x"),
            ("code", "source-x"),
            ("", "x"),
            ("a/b", "x"),
        ] {
            assert!(artifact_type(kind, name).is_err(), "{kind}");
        }
        for (kind, name) in [
            ("run_table", "x"),
            ("code", "x"),
            ("policy", "x"),
            ("verification report", "x"),
        ] {
            artifact_type(kind, name).unwrap();
        }
        for name in ["", "a b", "a/b", "a:v1", "ü"] {
            assert!(artifact(name).is_err(), "{name}");
        }
        for bad in ["", " a", "a,b", "a "] {
            assert!(tag(bad).is_err(), "{bad}");
        }
        tag("two words-x_ü").unwrap();
        assert!(alias("a:b").is_err() && alias("").is_err() && alias("v-ci").is_ok());
        assert!(
            title(&"t".repeat(64)).is_err() && title("").is_err() && title(&"t".repeat(63)).is_ok()
        );
    }
}
