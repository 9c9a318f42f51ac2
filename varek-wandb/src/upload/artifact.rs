//! A version of an artifact, from its record to its commit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use serde_json::{Map, Value, json};

use super::acknowledged::{Entry, Place};
use super::http::{Failure, Part, Stored, headers};
use super::shared::Shared;
use super::transfers::{ADDRESSES, find, open, refused};
use crate::proto::{Artifact, Extra, Manifest, ManifestEntry};

/// Files whose addresses are asked for in one request.
const BATCH: usize = 100;

/// Files of this size and more are sent in parts. This and the sizes of parts are the official client's.
const SINGLE: u64 = 2 << 30;
const PART: u64 = 100 << 20;
const PARTS: u64 = 10_000;

/// Brings an artifact to the server, or finds that it is there.
pub(super) fn send(shared: &Shared, artifact: &Artifact) -> Result<(), Failure> {
    let client_id = artifact.client_id.clone();
    if shared.acknowledged(|known| known.artifacts.contains(&client_id))? {
        return Ok(());
    }
    let manifest = artifact
        .manifest
        .as_ref()
        .filter(|manifest| manifest.manifest_file_path.is_empty())
        .ok_or_else(|| {
            refused(&format!(
                "artifact {}: its record has no list of files",
                artifact.name
            ))
        })?;
    let place = shared.place()?;
    let sending = Sending {
        shared,
        artifact,
        place,
    };
    let (id, state) = sending.create()?;
    if state != "COMMITTED" {
        sending.fill(&id, manifest)?;
    }
    shared.acknowledge(&Entry::Artifact { client_id })
}

struct Sending<'a> {
    shared: &'a Shared,
    artifact: &'a Artifact,
    place: Place,
}

impl Sending<'_> {
    fn refused(&self, reason: &str) -> Failure {
        refused(&format!("artifact {}: {reason}", self.artifact.name))
    }

    fn create(&self) -> Result<(String, String), Failure> {
        let artifact = self.artifact;
        let aliases: Vec<Value> = artifact
            .aliases
            .iter()
            .map(|alias| json!({ "artifactCollectionName": artifact.name, "alias": alias }))
            .collect();
        let mut input = json!({
            "entityName": self.place.entity,
            "projectName": self.place.project,
            "runName": self.place.run,
            "artifactTypeName": artifact.r#type,
            "artifactCollectionName": artifact.name,
            "digest": artifact.digest,
            "digestAlgorithm": "MANIFEST_MD5",
            "aliases": aliases,
            "clientID": artifact.client_id,
            "sequenceClientID": artifact.sequence_client_id,
            "enableDigestDeduplication": true,
        });
        if let Some(input) = input.as_object_mut() {
            let mut put = |key: &str, value: Option<Value>| {
                if let Some(value) = value {
                    input.insert(key.to_owned(), value);
                }
            };
            let text = |text: &String| (!text.is_empty()).then(|| Value::from(text.as_str()));
            put("description", text(&artifact.description));
            put("metadata", text(&artifact.metadata));
            let ttl = artifact.ttl_duration_seconds;
            put("ttlDurationSeconds", (ttl > 0).then(|| ttl.into()));
            let tags: Vec<Value> = artifact
                .tags
                .iter()
                .map(|tag| json!({ "tagName": tag }))
                .collect();
            put("tags", (!tags.is_empty()).then_some(Value::Array(tags)));
        }
        let answer = self.shared.client.graphql(
            "createArtifact",
            "mutation CreateArtifact($input: CreateArtifactInput!) { createArtifact(input: $input) { \
             artifact { id state artifactSequence { latestArtifact { id } } } } }",
            &json!({ "input": input }),
        )?;
        let text = |pointer| {
            answer
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        text("/createArtifact/artifact/id")
            .zip(text("/createArtifact/artifact/state"))
            .ok_or_else(|| self.refused("the server gave it no id"))
    }

    fn fill(&self, id: &str, manifest: &Manifest) -> Result<(), Failure> {
        // The files refer to a manifest, whose own text is known when all of them are there.
        let (draft, _) = self.create_manifest(id, "", false)?;
        let mut births = BTreeMap::new();
        let stored: Vec<&ManifestEntry> = manifest
            .contents
            .iter()
            .filter(|entry| entry.r#ref.is_empty())
            .collect();
        for entries in stored.chunks(BATCH) {
            self.files(id, &draft, entries, &mut births)?;
        }
        let text = manifest_json(manifest, id, &births);
        let md5 = STANDARD.encode(Md5::digest(&text));
        let mut file = temporary(&text).map_err(|error| Failure::File {
            reason: format!("a temporary file for a manifest: {error}"),
        })?;
        let mut taken = false;
        for _ in 0..ADDRESSES {
            let (_, upload) = self.create_manifest(id, &md5, true)?;
            let (url, headers) = upload
                .ok_or_else(|| self.refused("the server gave no address for its manifest"))?;
            let _ = file.seek(SeekFrom::Start(0));
            let part = Part {
                offset: 0,
                length: text.len() as u64,
            };
            if let Stored::Done(_) = self.shared.client.store(&url, &headers, &file, part)? {
                taken = true;
                break;
            }
        }
        if !taken {
            return Err(self.refused("the storage did not take its manifest"));
        }
        self.shared
            .client
            .graphql(
                "commitArtifact",
                "mutation CommitArtifact($artifactID: ID!) { commitArtifact(input: {artifactID: $artifactID}) { \
                 artifact { id digest } } }",
                &json!({ "artifactID": id }),
            )
            .map(|_| ())
    }

    #[expect(clippy::type_complexity, reason = "an address and its headers, once")]
    fn create_manifest(
        &self,
        id: &str,
        digest: &str,
        upload: bool,
    ) -> Result<(String, Option<(String, Vec<(String, String)>)>), Failure> {
        let answer = self.shared.client.graphql(
            "createArtifactManifest",
            "mutation CreateArtifactManifest($artifactID: ID!, $baseArtifactID: ID, $name: String!, $digest: String!, \
             $entityName: String!, $projectName: String!, $runName: String!, $manifestType: ArtifactManifestType!, \
             $includeUpload: Boolean!) { createArtifactManifest(input: {artifactID: $artifactID, \
             baseArtifactID: $baseArtifactID, name: $name, digest: $digest, entityName: $entityName, \
             projectName: $projectName, runName: $runName, type: $manifestType}) { artifactManifest { id file { id \
             uploadUrl @include(if: $includeUpload) uploadHeaders @include(if: $includeUpload) } } } }",
            &json!({
                "artifactID": id,
                "name": "wandb_manifest.json",
                "digest": digest,
                "entityName": self.place.entity,
                "projectName": self.place.project,
                "runName": self.place.run,
                "manifestType": "FULL",
                "includeUpload": upload,
            }),
        )?;
        let made = answer.pointer("/createArtifactManifest/artifactManifest");
        let manifest = made
            .and_then(|made| made.get("id")?.as_str())
            .ok_or_else(|| self.refused("the server gave its manifest no id"))?;
        let file = made.and_then(|made| made.get("file"));
        let url = file.and_then(|file| file.get("uploadUrl")?.as_str());
        let headers = headers(file.and_then(|file| file.get("uploadHeaders")));
        Ok((
            manifest.to_owned(),
            url.map(|url| (url.to_owned(), headers)),
        ))
    }

    /// Sends what the server does not have of these files, and notes in which artifact each was born.
    fn files(
        &self,
        id: &str,
        manifest: &str,
        entries: &[&ManifestEntry],
        births: &mut BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let mut left: Vec<&ManifestEntry> = entries.to_vec();
        for _ in 0..ADDRESSES {
            let mut specs = Vec::with_capacity(left.len());
            for entry in &left {
                specs.push(self.spec(id, manifest, entry)?);
            }
            let answer = self.shared.client.graphql(
                "createArtifactFiles",
                "mutation CreateArtifactFiles($artifactFiles: [CreateArtifactFileSpecInput!]!, \
                 $storageLayout: ArtifactStorageLayout!) { createArtifactFiles(input: {artifactFiles: $artifactFiles, \
                 storageLayout: $storageLayout}) { files { edges { node { storagePath uploadUrl uploadHeaders \
                 uploadMultipartUrls { uploadID uploadUrlParts { partNumber uploadUrl } } artifact { id } } } } } }",
                &json!({ "artifactFiles": specs, "storageLayout": "V2" }),
            )?;
            let edges = answer
                .pointer("/createArtifactFiles/files/edges")
                .and_then(Value::as_array)
                .filter(|edges| edges.len() == left.len())
                .ok_or_else(|| {
                    self.refused("the server answered for other files than it was asked")
                })?;
            let mut again = Vec::new();
            for ((entry, spec), edge) in left.iter().zip(&specs).zip(edges) {
                let node = edge.get("node").unwrap_or(&Value::Null);
                if let Some(birth) = node.pointer("/artifact/id").and_then(Value::as_str) {
                    births.insert(entry.path.clone(), birth.to_owned());
                }
                if !self.file(entry, spec, node)? {
                    again.push(*entry);
                }
            }
            if again.is_empty() {
                return Ok(());
            }
            left = again;
        }
        let path = left.first().map_or("", |entry| entry.path.as_str());
        Err(self.refused(&format!(
            "the storage took none of {ADDRESSES} addresses that the server gave for {path:?}"
        )))
    }

    fn open(&self, entry: &ManifestEntry) -> Result<(File, u64), Failure> {
        let path = find(&self.shared.directory, &entry.local_path);
        let failed = |error: &dyn std::fmt::Display| Failure::File {
            reason: format!(
                "artifact {}: {}: {error}",
                self.artifact.name,
                path.display()
            ),
        };
        let file = open(&path)?;
        let size = file.metadata().map_err(|error| failed(&error))?.len();
        if i64::try_from(size) != Ok(entry.size) {
            return Err(failed(&format!(
                "it has {size} bytes, and had {}",
                entry.size
            )));
        }
        Ok((file, size))
    }

    fn spec(&self, id: &str, manifest: &str, entry: &ManifestEntry) -> Result<Value, Failure> {
        let mut spec = Map::new();
        spec.insert("artifactID".into(), id.into());
        spec.insert("artifactManifestID".into(), manifest.into());
        spec.insert("name".into(), entry.path.as_str().into());
        spec.insert("md5".into(), entry.digest.as_str().into());
        if !entry.mimetype.is_empty() {
            spec.insert("mimetype".into(), entry.mimetype.as_str().into());
        }
        if entry.size.unsigned_abs() >= SINGLE {
            let (file, size) = self.open(entry)?;
            let mut parts = Vec::new();
            for (number, part) in (1_u64..).zip(parts_of(size)) {
                self.shared.stop.check()?;
                let md5 = hex_md5(&file, part).map_err(|error| Failure::File {
                    reason: format!("artifact {}: {:?}: {error}", self.artifact.name, entry.path),
                })?;
                parts.push(json!({ "partNumber": number, "hexMD5": md5 }));
            }
            spec.insert("uploadPartsInput".into(), Value::Array(parts));
        }
        Ok(Value::Object(spec))
    }

    /// Sends a file, unless the server has it. Says whether it is there then.
    fn file(&self, entry: &ManifestEntry, spec: &Value, node: &Value) -> Result<bool, Failure> {
        let headers = headers(node.get("uploadHeaders"));
        if let Some(multipart) = node
            .get("uploadMultipartUrls")
            .filter(|urls| !urls.is_null())
        {
            return self.parts(entry, spec, node, multipart, &headers);
        }
        let Some(url) = node.get("uploadUrl").and_then(Value::as_str) else {
            return Ok(true);
        };
        let (file, length) = self.open(entry)?;
        let part = Part { offset: 0, length };
        let stored = self.shared.client.store(url, &headers, &file, part)?;
        Ok(matches!(stored, Stored::Done(_)))
    }

    fn parts(
        &self,
        entry: &ManifestEntry,
        spec: &Value,
        node: &Value,
        multipart: &Value,
        headers: &[(String, String)],
    ) -> Result<bool, Failure> {
        let (file, size) = self.open(entry)?;
        let urls: BTreeMap<u64, &str> = multipart
            .get("uploadUrlParts")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|part| {
                Some((
                    part.get("partNumber")?.as_u64()?,
                    part.get("uploadUrl")?.as_str()?,
                ))
            })
            .collect();
        let content_type: Vec<(String, String)> = headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            .cloned()
            .collect();
        let mut completed = Vec::new();
        for (number, part) in (1_u64..).zip(parts_of(size)) {
            let url = urls
                .get(&number)
                .ok_or_else(|| self.refused("the server gave no address for a part of a file"))?;
            let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let hex = spec
                .pointer(&format!("/uploadPartsInput/{index}/hexMD5"))
                .and_then(Value::as_str)
                .unwrap_or_default();
            let mut headers = content_type.clone();
            headers.push(("Content-MD5".into(), base64_of_hex(hex)));
            match self.shared.client.store(url, &headers, &file, part)? {
                Stored::Done(tag) => completed.push(json!({
                    "partNumber": number,
                    "hexMD5": tag.unwrap_or_else(|| hex.to_owned()),
                })),
                Stored::Address => return Ok(false),
            }
        }
        let text =
            |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        self.shared.client.graphql(
            "completeMultipartUploadArtifact",
            "mutation CompleteMultipartUploadArtifact($completeMultipartAction: CompleteMultipartAction!, \
             $completedParts: [UploadPartsInput!]!, $artifactID: ID!, $storagePath: String!, $uploadID: String!) { \
             completeMultipartUploadArtifact(input: {completeMultipartAction: $completeMultipartAction, \
             completedParts: $completedParts, artifactID: $artifactID, storagePath: $storagePath, \
             uploadID: $uploadID}) { digest } }",
            &json!({
                "completeMultipartAction": "Complete",
                "completedParts": completed,
                "artifactID": text(node.pointer("/artifact/id")),
                "storagePath": text(node.get("storagePath")),
                "uploadID": text(multipart.get("uploadID")),
            }),
        )?;
        Ok(true)
    }
}

/// The parts of a file of this size.
fn parts_of(size: u64) -> impl Iterator<Item = Part> {
    let length = if size < PART * PARTS {
        PART
    } else {
        size.div_ceil(PARTS).next_multiple_of(4096)
    };
    (0..size.div_ceil(length)).map(move |index| {
        let offset = index * length;
        Part {
            offset,
            length: length.min(size - offset),
        }
    })
}

fn hex_md5(file: &File, part: Part) -> std::io::Result<String> {
    use std::fmt::Write as _;
    let mut hasher = Md5::new();
    let mut buffer = vec![0; 256 * 1024];
    let (mut offset, mut left) = (part.offset, part.length);
    while left > 0 {
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let room = buffer.get_mut(..most).unwrap_or_default();
        let read = file.read_at(room, offset)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(room.get(..read).unwrap_or_default());
        offset += read as u64;
        left -= read as u64;
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

fn base64_of_hex(hex: &str) -> String {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .filter_map(|index| u8::from_str_radix(hex.get(index * 2..index * 2 + 2)?, 16).ok())
        .collect();
    STANDARD.encode(bytes)
}

/// The manifest, without what belongs to this host.
fn manifest_json(manifest: &Manifest, id: &str, births: &BTreeMap<String, String>) -> Vec<u8> {
    let extras = |items: &[Extra]| -> Map<String, Value> {
        items
            .iter()
            .filter_map(|item| {
                let value = serde_json::from_str(&item.value_json).ok()?;
                Some((item.key.clone(), value))
            })
            .collect()
    };
    let contents: Map<String, Value> = manifest
        .contents
        .iter()
        .map(|entry| {
            let mut written = Map::new();
            written.insert("digest".into(), entry.digest.as_str().into());
            if entry.r#ref.is_empty() {
                let birth = births.get(&entry.path).map_or(id, String::as_str);
                written.insert("birthArtifactID".into(), birth.into());
            } else {
                written.insert("ref".into(), entry.r#ref.as_str().into());
            }
            written.insert("size".into(), entry.size.into());
            if !entry.extra.is_empty() {
                written.insert("extra".into(), Value::Object(extras(&entry.extra)));
            }
            (entry.path.clone(), Value::Object(written))
        })
        .collect();
    json!({
        "version": manifest.version,
        "storagePolicy": manifest.storage_policy,
        "storagePolicyConfig": extras(&manifest.storage_policy_config),
        "contents": contents,
    })
    .to_string()
    .into_bytes()
}

/// A file that has no name, with these bytes.
fn temporary(bytes: &[u8]) -> std::io::Result<File> {
    let memory = rustix::fs::memfd_create("varek-wandb-manifest", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_parts_cover_it_and_are_no_more_than_storage_takes() {
        for size in [SINGLE, SINGLE + 1, PART * PARTS - 1, PART * PARTS, 5 << 40] {
            let parts: Vec<Part> = parts_of(size).collect();
            assert!(parts.len() as u64 <= PARTS, "{size}");
            let mut at = 0;
            for part in &parts {
                assert_eq!(part.offset, at);
                at += part.length;
            }
            assert_eq!(at, size);
        }
    }

    #[test]
    fn digests_are_written_both_ways() {
        assert_eq!(
            base64_of_hex("d41d8cd98f00b204e9800998ecf8427e"),
            "1B2M2Y8AsgTpgAmY7PhCfg=="
        );
    }
}
