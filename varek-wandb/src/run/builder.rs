//! How a run is started.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use jiff::Zoned;
use serde::Serialize;

use super::{Durability, Facts, Run, timestamp};
use crate::log::LogWriter;
use crate::proto::{self, Item, Kind};
use crate::settings::{Address, Asked, Key, Settings};
use crate::staging::random;
use crate::upload::Server;
use crate::{Environment, Error, Mode, Value, names};

/// The version of the official client whose formats these are; the service asks for one.
pub(crate) const CLIENT_VERSION: &str = "0.26.1";

/// What a run is started with; made by [`Run::builder`](crate::Run::builder).
///
/// Each setting has the name that `wandb.init` has for it, but where its own text says otherwise. What is not said here comes from the
/// environment variable that is named with it, and what is said here wins. Settings files of the official client
/// (`wandb/settings`, `~/.config/wandb/settings`) are not read.
#[derive(Debug)]
#[must_use]
pub struct RunBuilder {
    asked: Asked,
    config: Vec<(String, Value)>,
    durability: Durability,
    environment: Option<Environment>,
    roots: Option<PathBuf>,
}

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: impl Into<String>) -> Self {
            self.asked.$name = Some($name.into());
            self
        }
    )*};
}

impl RunBuilder {
    pub(super) fn new() -> Self {
        Self {
            asked: Asked::default(),
            config: Vec::new(),
            durability: Durability::default(),
            environment: None,
            roots: None,
        }
    }

    texts! {
        /// The user or team whose project it is: `WANDB_ENTITY`. Where nobody says it, the server takes the key's own.
        entity
        /// The project: `WANDB_PROJECT`; `uncategorized` where nobody says it. 1 to 128 characters, none of `/\#?%:`.
        project
        /// The name that people see: `WANDB_NAME`. The server makes one up where nobody says it.
        name
        /// The group that the run belongs to: `WANDB_RUN_GROUP`.
        group
        /// The kind of work in the group: `WANDB_JOB_TYPE`.
        job_type
        /// A longer text: `WANDB_NOTES`.
        notes
        /// The run's name in addresses and files, unique within the project: `WANDB_RUN_ID`. Eight random characters of `a-z0-9` where
        /// nobody says it.
        id
    }

    /// Where the API is: `WANDB_BASE_URL`; the hosted service where nobody says it.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.asked.base_url = Some(Address(base_url.into()));
        self
    }

    /// Tags of 1 to 64 characters each: `WANDB_TAGS`, separated by commas there.
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.asked.tags = Some(tags.into_iter().map(Into::into).collect());
        self
    }

    /// Where the directory `wandb` is made, or `.wandb` where that is there: `WANDB_DIR`; the working directory where nobody says it.
    pub fn dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.asked.directory = Some(directory.into());
        self
    }

    /// What the run was configured with: a struct or map. Called again, it adds to what there is.
    ///
    /// # Errors
    ///
    /// [`Error::Value`], [`Error::NotAMap`], [`Error::NotFinite`], [`Error::ReservedKey`] or [`Error::Name`] where the service would
    /// not take it.
    pub fn config(mut self, config: impl Serialize) -> Result<Self, Error> {
        for (key, value) in config_entries(&config)? {
            self.config.retain(|(other, _)| *other != key);
            self.config.push((key, value));
        }
        Ok(self)
    }

    /// Where records go: `WANDB_MODE`. Where nobody says it, online if there is a key, and offline otherwise (the official client would ask
    /// for a login then).
    pub fn mode(mut self, mode: Mode) -> Self {
        self.asked.mode = Some(mode);
        self
    }

    /// The key of the service: `WANDB_API_KEY`, and after that netrc (the file that `NETRC` names, `~/.netrc`, `~/_netrc`). It is sent
    /// to the API alone, and written nowhere.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.asked.api_key = Some(Key(key.into()));
        self
    }

    /// Certificates (PEM) that are trusted instead of the host's own. The official client has `REQUESTS_CA_BUNDLE` for it, which is
    /// not read.
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.roots = Some(file.into());
        self
    }

    /// When the log is brought to the disk. The official client has no such setting.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The environment variables that are read, instead of those of this process.
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Starts the run: makes its directory and its log. No server is asked or waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`], [`Error::NoKey`] and [`Error::Netrc`] where a setting cannot be used, [`Error::Io`] where the directory
    /// or the log cannot be made. A log is never made over another.
    pub fn start(self) -> Result<Run, Error> {
        let environment = self.environment.unwrap_or_else(Environment::of_process);
        let settings = Settings::resolve(self.asked, &environment)?;
        let id = match &settings.id {
            Some(id) => id.clone(),
            None => random(8)?,
        };
        let started = SystemTime::now();
        let mut facts = Facts {
            owner: std::process::id(),
            id,
            settings,
            directory: None,
            began: Instant::now(),
            durability: self.durability,
        };
        if facts.settings.mode == Mode::Disabled {
            return Run::started(facts, None, None);
        }
        let directory = make_directory(&facts.settings, &facts.id)?;
        facts.directory = Some(directory.clone());
        let first = vec![
            header(),
            run_record(&facts, self.config, started),
            Kind::Environment(Box::new(surroundings(started)?)),
        ];
        let path = directory.join(format!("run-{}.wandb", facts.id));
        let made = fs::create_dir(directory.join("files"))
            .map_err(Error::io("create", &directory.join("files")))
            .and_then(|()| LogWriter::create(&path, first))
            .and_then(|log| match &facts.settings.api_key {
                Some(key) if facts.settings.mode == Mode::Online => {
                    let server =
                        Server::new(&facts.settings.base_url, &key.0, self.roots.as_deref())?;
                    Ok((log, Some(server)))
                }
                _ => Ok((log, None)),
            });
        match made {
            Ok((log, server)) => {
                point_latest(&directory);
                Run::started(facts, Some(log), server)
            }
            Err(error) => {
                // Nothing that looks like a run is left.
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir(directory.join("files"));
                let _ = fs::remove_dir(&directory);
                Err(error)
            }
        }
    }
}

/// A config's top keys, checked.
pub(super) fn config_entries<T: Serialize + ?Sized>(
    config: &T,
) -> Result<Vec<(String, Value)>, Error> {
    let entries = Value::map_of(config, "a config")?;
    for (key, value) in &entries {
        names::key(key)?;
        if value.lacks_json() {
            return Err(Error::NotFinite {
                what: "the config's",
                key: key.clone(),
            });
        }
    }
    Ok(entries)
}

/// `wandb/[offline-]run-YYYYMMDD_HHMMSS-ID`, by the host's own clock, as the official client names it.
fn make_directory(settings: &Settings, id: &str) -> Result<PathBuf, Error> {
    let root = std::path::absolute(&settings.root).map_err(Error::io("find", &settings.root))?;
    if root.to_str().is_none() {
        return Err(Error::Setting {
            setting: "WANDB_DIR",
            found: root.to_string_lossy().into_owned(),
            allowed: "a path in UTF-8",
        });
    }
    let dotted = root.join(".wandb");
    let parent = if dotted.is_dir() {
        dotted
    } else {
        root.join("wandb")
    };
    fs::create_dir_all(&parent).map_err(Error::io("create", &parent))?;
    let time = Zoned::now().strftime("%Y%m%d_%H%M%S").to_string();
    let prefix = if settings.mode == Mode::Online {
        "run"
    } else {
        "offline-run"
    };
    let directory = parent.join(format!("{prefix}-{time}-{id}"));
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .map_err(Error::io("create", &directory))?;
    Ok(directory)
}

/// Has `latest-run` name this run. It is a convenience: where it cannot be made, the run goes on without.
fn point_latest(directory: &Path) {
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return;
    };
    let Ok(salt) = random(8) else { return };
    let fresh = parent.join(format!(".latest-run.{salt}"));
    if symlink(name, &fresh).is_ok() && fs::rename(&fresh, parent.join("latest-run")).is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

fn header() -> Kind {
    Kind::Header(proto::Header {
        version_info: Some(proto::VersionInfo {
            producer: format!("varek-wandb/{}", env!("CARGO_PKG_VERSION")),
            min_consumer: "0.40.0".into(),
        }),
    })
}

fn run_record(facts: &Facts, config: Vec<(String, Value)>, started: SystemTime) -> Kind {
    let settings = &facts.settings;
    let mut update: Vec<Item> = config
        .into_iter()
        .map(|(key, value)| super::item(key, value.json()))
        .collect();
    // Without it the old sync uploads no `_wandb` at all, and the run cannot be resumed.
    update.push(super::item("_wandb".into(), "{}".into()));
    let text = |setting: &Option<String>| setting.clone().unwrap_or_default();
    Kind::Run(Box::new(proto::Run {
        run_id: facts.id.clone(),
        entity: text(&settings.entity),
        project: settings.project.clone(),
        config: Some(proto::Config {
            update,
            remove: Vec::new(),
        }),
        run_group: text(&settings.group),
        job_type: text(&settings.job_type),
        display_name: text(&settings.name),
        notes: text(&settings.notes),
        tags: settings.tags.clone(),
        host: host(),
        start_time: Some(timestamp(started)),
        telemetry: Some(proto::Telemetry {
            cli_version: CLIENT_VERSION.into(),
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        }),
        ..proto::Run::default()
    }))
}

fn host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// What the run's metadata is made of: nothing of the arguments and of the user, which may be secrets.
fn surroundings(started: SystemTime) -> Result<proto::Environment, Error> {
    let names = rustix::system::uname();
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.to_string_lossy().into_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Ok(proto::Environment {
        os: format!(
            "{}-{}-{}",
            names.sysname().to_string_lossy(),
            names.release().to_string_lossy(),
            names.machine().to_string_lossy()
        ),
        started_at: Some(timestamp(started)),
        program: program.clone(),
        host: host(),
        executable: program,
        cpu_count: u32::try_from(cores).unwrap_or(u32::MAX),
        writer_id: random(32)?,
        ..proto::Environment::default()
    })
}
