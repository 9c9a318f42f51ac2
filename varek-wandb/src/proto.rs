//! The records of a run's log, in Protocol Buffers.
//!
//! Field numbers are those of the client's `wandb_internal.proto`; what this crate neither writes nor reads is left out,
//! and skipped when it is read.

#![expect(
    clippy::struct_field_names,
    reason = "fields have the names that they have in the client's own description"
)]

use prost::{Enumeration, Message, Oneof};

/// One record of the log.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    /// From 1, one more each.
    #[prost(int64, tag = "1")]
    pub(crate) num: i64,
    #[prost(oneof = "Kind", tags = "2, 3, 5, 6, 8, 10, 13, 17, 18, 20, 21, 22, 26")]
    pub(crate) kind: Option<Kind>,
    #[prost(message, optional, tag = "16")]
    pub(crate) control: Option<Control>,
}

/// What a record says.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(message, tag = "2")]
    History(History),
    #[prost(message, tag = "3")]
    Summary(Summary),
    #[prost(message, tag = "5")]
    Config(Config),
    #[prost(message, tag = "6")]
    Files(Files),
    #[prost(message, tag = "8")]
    Artifact(Box<Artifact>),
    #[prost(message, tag = "10")]
    Alert(Alert),
    #[prost(message, tag = "13")]
    OutputRaw(OutputRaw),
    #[prost(message, tag = "17")]
    Run(Box<Run>),
    #[prost(message, tag = "18")]
    Exit(Exit),
    #[prost(message, tag = "20")]
    Final(Final),
    #[prost(message, tag = "21")]
    Header(Header),
    #[prost(message, tag = "22")]
    Footer(Footer),
    #[prost(message, tag = "26")]
    Environment(Box<Environment>),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Control {
    #[prost(string, tag = "4")]
    pub(crate) mailbox_slot: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// A key, flat or as a path into nested objects (one of them), and its value as JSON text.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Item {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    pub(crate) value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(message, optional, tag = "1")]
    pub(crate) version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionInfo {
    #[prost(string, tag = "1")]
    pub(crate) producer: String,
    #[prost(string, tag = "2")]
    pub(crate) min_consumer: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Run {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    #[prost(string, tag = "2")]
    pub(crate) entity: String,
    #[prost(string, tag = "3")]
    pub(crate) project: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) config: Option<Config>,
    #[prost(message, optional, tag = "5")]
    pub(crate) summary: Option<Summary>,
    #[prost(string, tag = "6")]
    pub(crate) run_group: String,
    #[prost(string, tag = "7")]
    pub(crate) job_type: String,
    #[prost(string, tag = "8")]
    pub(crate) display_name: String,
    #[prost(string, tag = "9")]
    pub(crate) notes: String,
    #[prost(string, repeated, tag = "10")]
    pub(crate) tags: Vec<String>,
    #[prost(string, tag = "13")]
    pub(crate) host: String,
    #[prost(int64, tag = "14")]
    pub(crate) starting_step: i64,
    #[prost(message, optional, tag = "17")]
    pub(crate) start_time: Option<Timestamp>,
    #[prost(message, optional, tag = "19")]
    pub(crate) telemetry: Option<Telemetry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Telemetry {
    #[prost(string, tag = "5")]
    pub(crate) cli_version: String,
    #[prost(string, tag = "13")]
    pub(crate) platform: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Config {
    #[prost(message, repeated, tag = "1")]
    pub(crate) update: Vec<Item>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) remove: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) update: Vec<Item>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) remove: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct History {
    #[prost(message, repeated, tag = "1")]
    pub(crate) item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub(crate) step: Option<Step>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(int64, tag = "1")]
    pub(crate) num: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Files {
    #[prost(message, repeated, tag = "1")]
    pub(crate) files: Vec<FilesItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilesItem {
    /// Below the run's `files` directory.
    #[prost(string, tag = "1")]
    pub(crate) path: String,
    #[prost(enumeration = "FilePolicy", tag = "2")]
    pub(crate) policy: i32,
    #[prost(enumeration = "FileType", tag = "3")]
    pub(crate) r#type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum FilePolicy {
    Now = 0,
    End = 1,
    Live = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum FileType {
    Other = 0,
    Wandb = 1,
    Media = 2,
    Artifact = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Artifact {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    #[prost(string, tag = "2")]
    pub(crate) project: String,
    #[prost(string, tag = "3")]
    pub(crate) entity: String,
    #[prost(string, tag = "4")]
    pub(crate) r#type: String,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(string, tag = "6")]
    pub(crate) digest: String,
    #[prost(string, tag = "7")]
    pub(crate) description: String,
    /// JSON text.
    #[prost(string, tag = "8")]
    pub(crate) metadata: String,
    #[prost(bool, tag = "9")]
    pub(crate) user_created: bool,
    #[prost(bool, tag = "10")]
    pub(crate) use_after_commit: bool,
    #[prost(string, repeated, tag = "11")]
    pub(crate) aliases: Vec<String>,
    #[prost(message, optional, tag = "12")]
    pub(crate) manifest: Option<Manifest>,
    #[prost(string, tag = "13")]
    pub(crate) distributed_id: String,
    /// Always true: nothing commits an artifact that is not final.
    #[prost(bool, tag = "14")]
    pub(crate) finalize: bool,
    #[prost(string, tag = "15")]
    pub(crate) client_id: String,
    #[prost(string, tag = "16")]
    pub(crate) sequence_client_id: String,
    #[prost(string, tag = "17")]
    pub(crate) base_id: String,
    #[prost(int64, tag = "18")]
    pub(crate) ttl_duration_seconds: i64,
    #[prost(string, repeated, tag = "19")]
    pub(crate) tags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Manifest {
    #[prost(int32, tag = "1")]
    pub(crate) version: i32,
    #[prost(string, tag = "2")]
    pub(crate) storage_policy: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) storage_policy_config: Vec<Extra>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) contents: Vec<ManifestEntry>,
    /// A gzipped file of entries, one JSON object a line, instead of `contents`.
    #[prost(string, tag = "5")]
    pub(crate) manifest_file_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ManifestEntry {
    /// Within the artifact.
    #[prost(string, tag = "1")]
    pub(crate) path: String,
    /// Base64 of the MD5, or any text for a reference.
    #[prost(string, tag = "2")]
    pub(crate) digest: String,
    #[prost(string, tag = "3")]
    pub(crate) r#ref: String,
    #[prost(int64, tag = "4")]
    pub(crate) size: i64,
    #[prost(string, tag = "5")]
    pub(crate) mimetype: String,
    /// Absolute.
    #[prost(string, tag = "6")]
    pub(crate) local_path: String,
    #[prost(string, tag = "7")]
    pub(crate) birth_artifact_id: String,
    #[prost(bool, tag = "8")]
    pub(crate) skip_cache: bool,
    #[prost(message, repeated, tag = "16")]
    pub(crate) extra: Vec<Extra>,
}

/// A key and its value as JSON text, where the value has tag 2.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Extra {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Alert {
    #[prost(string, tag = "1")]
    pub(crate) title: String,
    #[prost(string, tag = "2")]
    pub(crate) text: String,
    /// `INFO`, `WARN` or `ERROR`.
    #[prost(string, tag = "3")]
    pub(crate) level: String,
    /// Milliseconds.
    #[prost(int64, tag = "4")]
    pub(crate) wait_duration: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OutputRaw {
    #[prost(enumeration = "OutputType", tag = "1")]
    pub(crate) output_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) timestamp: Option<Timestamp>,
    #[prost(string, tag = "3")]
    pub(crate) line: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum OutputType {
    Stderr = 0,
    Stdout = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Exit {
    #[prost(int32, tag = "1")]
    pub(crate) exit_code: i32,
    /// Seconds.
    #[prost(int32, tag = "2")]
    pub(crate) runtime: i32,
    #[prost(bool, tag = "3")]
    pub(crate) not_complete: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Final {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Footer {}

/// What the run's metadata file is made of.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Environment {
    #[prost(string, tag = "1")]
    pub(crate) os: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) started_at: Option<Timestamp>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) args: Vec<String>,
    #[prost(string, tag = "6")]
    pub(crate) program: String,
    #[prost(string, tag = "12")]
    pub(crate) host: String,
    #[prost(string, tag = "13")]
    pub(crate) username: String,
    #[prost(string, tag = "14")]
    pub(crate) executable: String,
    #[prost(uint32, tag = "16")]
    pub(crate) cpu_count: u32,
    #[prost(string, tag = "199")]
    pub(crate) writer_id: String,
}
