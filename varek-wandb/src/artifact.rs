//! Artifacts: named, versioned sets of files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use md5::Md5;
use serde::Serialize;
use sha2::Digest as _;

use crate::proto::{self, Extra, Manifest, ManifestEntry};
use crate::staging::{self, Draft, Made};
use crate::{Error, Value, names};

/// Keys of an artifact's metadata, at most. Source: the client's behaviour.
const MOST_METADATA: usize = 100;

/// A named set of files, of which each content is a version. The official client's name for it is `wandb.Artifact`.
///
/// Files are copied into the run's directory when the artifact is logged, and what was copied is what is uploaded, whatever becomes of
/// the originals. A content that the run has already is not stored again. The digest of a version is over the paths and contents
/// alone: metadata, aliases and tags do not count.
///
/// ```no_run
/// # fn main() -> Result<(), varek_wandb::Error> {
/// # let run = varek_wandb::Run::builder().start()?;
/// let report = varek_wandb::Artifact::new("verification", "verification-report")
///     .bytes("manifest.json", *b"{\"passed\": 5}")
///     .file("report.html", "target/report.html")
///     .reference("image", "https://example.com/image.png")
///     .alias("latest")
///     .alias("nightly");
/// run.log_artifact(&report)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Artifact {
    name: String,
    kind: String,
    description: String,
    metadata: Option<Value>,
    aliases: Vec<String>,
    tags: Vec<String>,
    ttl: Option<Duration>,
    contents: Vec<(String, Source)>,
    /// A table of the run, whose type is the service's own.
    of_run: bool,
}

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Directory(PathBuf),
    Bytes(Vec<u8>),
    Reference { uri: String, digest: String },
}

impl Artifact {
    /// An artifact without files. The name has 1 to 128 of the characters `A-Z a-z 0-9 _ . -`; the type is any word that the service
    /// does not use itself, such as `dataset` or `policy`.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            description: String::new(),
            metadata: None,
            aliases: Vec::new(),
            tags: Vec::new(),
            ttl: None,
            contents: Vec::new(),
            of_run: false,
        }
    }

    /// One of a run's tables.
    pub(crate) fn of_run(name: String) -> Self {
        Self {
            of_run: true,
            ..Self::new(name, "run_table")
        }
    }

    /// What people read about it.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// A map of at most 100 keys, without NaN and infinities.
    ///
    /// # Errors
    ///
    /// [`Error::Value`], [`Error::NotAMap`], [`Error::NotFinite`] or [`Error::Name`] where it is none.
    pub fn metadata(mut self, metadata: impl Serialize) -> Result<Self, Error> {
        let entries = Value::map_of(&metadata, "metadata")?;
        if let Some((key, _)) = entries.iter().find(|(_, value)| value.lacks_json()) {
            return Err(Error::NotFinite {
                what: "the metadata",
                key: key.clone(),
            });
        }
        if entries.len() > MOST_METADATA {
            let found = format!("{} keys", entries.len());
            return Err(Error::Name {
                what: "metadata with",
                found,
                allowed: "100 keys at most",
            });
        }
        self.metadata = Some(Value::Map(entries));
        Ok(self)
    }

    /// One of the names by which this version is found. The server moves it here from the version that had it. Without any, the
    /// version gets `latest`.
    pub fn alias(mut self, alias: impl Into<String>) -> Self {
        self.aliases.push(alias.into());
        self
    }

    /// A tag: letters, digits, `-`, `_` and spaces.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// How long the server keeps the version, in whole seconds; as long as the project says, where this is not given.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.ttl = Some(time);
        self
    }

    /// A file of this host. A link is followed, as it was named by the embedder; what is no regular file is refused.
    pub fn file(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.contents.push((name.into(), Source::File(path.into())));
        self
    }

    /// All files of a directory of this host, beneath `prefix`, which may be empty.
    ///
    /// Links are followed to files of the directory itself. A link that leads out of it or to a directory, a device, a FIFO or a socket
    /// is an error, so nothing is left out unsaid, and nobody who can write there can have other files of this host copied.
    pub fn directory(mut self, prefix: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.contents
            .push((prefix.into(), Source::Directory(path.into())));
        self
    }

    /// A file with these bytes.
    pub fn bytes(mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        self.contents
            .push((name.into(), Source::Bytes(bytes.into())));
        self
    }

    /// Something elsewhere, by its URI. Its digest is the URI itself, as the official client has it without a checksum: the version stays
    /// the same as long as the URI does.
    pub fn reference(self, name: impl Into<String>, uri: impl Into<String>) -> Self {
        let uri = uri.into();
        self.reference_with_digest(name, uri.clone(), uri)
    }

    /// Something elsewhere, with a digest that changes when it does, such as its ETag.
    pub fn reference_with_digest(
        mut self,
        name: impl Into<String>,
        uri: impl Into<String>,
        digest: impl Into<String>,
    ) -> Self {
        let (uri, digest) = (uri.into(), digest.into());
        self.contents
            .push((name.into(), Source::Reference { uri, digest }));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), Error> {
        names::artifact(&self.name)?;
        if !self.of_run {
            names::artifact_type(&self.kind, &self.name)?;
        }
        self.aliases
            .iter()
            .try_for_each(|alias| names::alias(alias))?;
        self.tags.iter().try_for_each(|tag| names::tag(tag))?;
        if let Some(time) = self.ttl
            && i64::try_from(time.as_secs()).map_or(true, |seconds| seconds < 1)
        {
            let found = format!("{time:?}");
            return Err(Error::Name {
                what: "the time to live",
                found,
                allowed: "1 second or more",
            });
        }
        for (name, source) in &self.contents {
            if !(matches!(source, Source::Directory(_)) && name.is_empty()) {
                names::relative("the path in the artifact", name)?;
            }
            if let Source::Reference { uri, digest } = source {
                let has_scheme = uri.split_once(':').is_some_and(|(scheme, rest)| {
                    !rest.is_empty()
                        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                        && scheme
                            .chars()
                            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                });
                if !has_scheme || uri.chars().any(char::is_control) {
                    let found = uri.clone();
                    return Err(Error::Name {
                        what: "the reference",
                        found,
                        allowed: "a URI with a scheme",
                    });
                }
                if digest.is_empty() {
                    let found = digest.clone();
                    return Err(Error::Name {
                        what: "the digest",
                        found,
                        allowed: "any text that is not empty",
                    });
                }
            }
        }
        Ok(())
    }

    /// Copies the files into the run's directory, below `own`, which is made; or only reads them, where there is no such directory.
    pub(crate) fn stage(
        &self,
        place: Option<(&Path, &Path)>,
        made: &mut Made,
    ) -> Result<Staged, Error> {
        self.check()?;
        let mut staging = Staging {
            place,
            made,
            number: 0,
            entries: BTreeMap::new(),
        };
        if let Some((_, own)) = place {
            staging.made.directory(own)?;
        }
        for (name, source) in &self.contents {
            match source {
                Source::Bytes(bytes) => staging.add(name, |run| Draft::of_bytes(run, bytes))?,
                Source::File(path) => {
                    let file = staging::open(path)?;
                    staging.add(name, |run| Draft::of_file(run, file, path))?;
                }
                Source::Directory(path) => staging::walk(path, |inner, file| {
                    let whole = if name.is_empty() {
                        inner.clone()
                    } else {
                        format!("{name}/{inner}")
                    };
                    names::relative("the path in the artifact", &whole)?;
                    staging.add(&whole, |run| Draft::of_file(run, file, &path.join(&inner)))
                })?,
                Source::Reference { uri, digest } => staging.put(ManifestEntry {
                    path: name.clone(),
                    digest: digest.clone(),
                    r#ref: uri.clone(),
                    ..ManifestEntry::default()
                })?,
            }
        }
        let contents: Vec<ManifestEntry> = staging.entries.into_values().collect();
        Ok(Staged {
            digest: digest(&contents),
            contents,
        })
    }

    /// Whether all that `stage` would be given has been given as this.
    pub(crate) fn stage_draft(
        self,
        name: &str,
        draft: staging::Drafted,
        place: (&Path, &Path),
        made: &mut Made,
    ) -> Result<Staged, Error> {
        self.check()?;
        let mut staging = Staging {
            place: Some(place),
            made,
            number: 0,
            entries: BTreeMap::new(),
        };
        staging.made.directory(place.1)?;
        staging.add(name, |_| Ok(draft))?;
        let contents: Vec<ManifestEntry> = staging.entries.into_values().collect();
        Ok(Staged {
            digest: digest(&contents),
            contents,
        })
    }

    /// The record of the artifact.
    pub(crate) fn record(&self, staged: Staged, run: proto::Artifact) -> proto::Artifact {
        let metadata = self.metadata.as_ref();
        let mut aliases = self.aliases.clone();
        if aliases.is_empty() {
            aliases.push("latest".into());
        }
        let unique = |mut all: Vec<String>| {
            let mut seen = std::collections::HashSet::new();
            all.retain(|one| seen.insert(one.clone()));
            all
        };
        proto::Artifact {
            r#type: self.kind.clone(),
            name: self.name.clone(),
            digest: staged.digest,
            description: self.description.clone(),
            metadata: metadata.map(Value::json).unwrap_or_default(),
            // Else the official client's sync does not say which run it is of.
            user_created: false,
            aliases: unique(aliases),
            manifest: Some(Manifest {
                version: 1,
                storage_policy: "wandb-storage-policy-v1".into(),
                storage_policy_config: vec![Extra {
                    key: "storageLayout".into(),
                    value_json: "\"V2\"".into(),
                }],
                contents: staged.contents,
                manifest_file_path: String::new(),
            }),
            finalize: true,
            ttl_duration_seconds: self
                .ttl
                .and_then(|time| i64::try_from(time.as_secs()).ok())
                .unwrap_or(0),
            tags: unique(self.tags.clone()),
            ..run
        }
    }
}

impl fmt::Debug for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Artifact")
            .field("name", &self.name)
            .field("type", &self.kind)
            .field(
                "contents",
                &self
                    .contents
                    .iter()
                    .map(|(name, _)| name)
                    .collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

/// An artifact's files, copied.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) digest: String,
    contents: Vec<ManifestEntry>,
}

struct Staging<'a> {
    place: Option<(&'a Path, &'a Path)>,
    made: &'a mut Made,
    number: u64,
    entries: BTreeMap<String, ManifestEntry>,
}

impl Staging<'_> {
    fn add(
        &mut self,
        name: &str,
        draft: impl FnOnce(&Path) -> Result<staging::Drafted, Error>,
    ) -> Result<(), Error> {
        self.vacant(name)?;
        let Some((run, own)) = self.place else {
            return self.put(ManifestEntry {
                path: name.to_owned(),
                ..ManifestEntry::default()
            });
        };
        let drafted = draft(run)?;
        let local = own.join(self.number.to_string());
        self.number += 1;
        let entry = ManifestEntry {
            path: name.to_owned(),
            digest: drafted.md5.clone(),
            size: i64::try_from(drafted.size).unwrap_or(i64::MAX),
            local_path: names::text(&local)?.to_owned(),
            ..ManifestEntry::default()
        };
        drafted.keep_as(run, &local, self.made)?;
        self.put(entry)
    }

    fn put(&mut self, entry: ManifestEntry) -> Result<(), Error> {
        self.vacant(&entry.path)?;
        self.entries.insert(entry.path.clone(), entry);
        Ok(())
    }

    fn vacant(&self, name: &str) -> Result<(), Error> {
        if !self.entries.contains_key(name) {
            return Ok(());
        }
        let name = name.to_owned();
        Err(Error::Twice {
            what: "the path in the artifact",
            name,
        })
    }
}

/// The digest of a version. Source: the client's behaviour.
fn digest(sorted: &[ManifestEntry]) -> String {
    let mut hash = Md5::new();
    hash.update(b"wandb-artifact-manifest-v1\n");
    for entry in sorted {
        hash.update(format!("{}:{}\n", entry.path, entry.digest));
    }
    staging::hex(&hash.finalize())
}
