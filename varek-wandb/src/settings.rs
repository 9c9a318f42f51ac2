//! Where settings come from: what the embedder says, the environment, and netrc.

mod netrc;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Error;

/// The service that is meant where nothing else is said.
const HOSTED: &str = "https://api.wandb.ai";

/// Characters of a key of the service, at least. Source: the client's behaviour.
const KEY_LENGTH: usize = 40;

/// Where a run's records go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Into the log on disk alone; [`Run::sync_command`](crate::Run::sync_command) says how they get to the service.
    Offline,
    /// Into the log, and from there to the service, on a thread of its own.
    Online,
    /// Nowhere: every call checks what it is given, and does nothing.
    Disabled,
}

impl FromStr for Mode {
    type Err = ();

    /// The words of `WANDB_MODE`: `online` (`run`), `offline` (`dryrun`) and `disabled`.
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "online" | "run" => Ok(Self::Online),
            "offline" | "dryrun" => Ok(Self::Offline),
            "disabled" => Ok(Self::Disabled),
            _ => Err(()),
        }
    }
}

/// Environment variables, as they were at one moment.
///
/// A run reads those of its process when it is started, unless it is given others. An empty variable is as good as none. Keys are
/// among the values, so they are not shown by `Debug`.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
}

impl Environment {
    /// The variables of this process: `HOME`, `NETRC` and those whose names begin with `WANDB_` or `WF_`.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| {
                name.starts_with("WANDB_")
                    || name.starts_with("WF_")
                    || name == "HOME"
                    || name == "NETRC"
            })
            .collect()
    }

    pub(crate) fn raw(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(name)
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// A variable's text.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, Error> {
        let Some(value) = self.raw(name) else {
            return Ok(None);
        };
        match value.to_str() {
            Some(text) => Ok(Some(text)),
            None => Err(Error::Setting {
                setting: name,
                found: value.to_string_lossy().into_owned(),
                allowed: "UTF-8",
            }),
        }
    }

    /// `~` and what is beneath it, as shells write it.
    fn expanded(&self, path: &OsStr) -> PathBuf {
        let path = Path::new(path);
        match (path.strip_prefix("~"), self.raw("HOME")) {
            (Ok(rest), Some(home)) => Path::new(home).join(rest),
            _ => path.to_owned(),
        }
    }
}

impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter();
        Self {
            variables: variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// What the embedder said; everything else comes from the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) entity: Option<String>,
    pub(crate) project: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) job_type: Option<String>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) notes: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) mode: Option<Mode>,
    pub(crate) base_url: Option<Address>,
    pub(crate) api_key: Option<Key>,
}

/// A key of the service, which `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// An address that was given, which may have a password in it; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) String);

impl Address {
    /// The address for people: without what is before an `@` and behind a `?` or `#`, where passwords and keys are.
    fn shown(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let (user, rest) = rest
            .rsplit_once('@')
            .map_or(("", rest), |(_, rest)| ("..@", rest));
        let (rest, query) = match rest.find(['?', '#']) {
            Some(at) => (rest.get(..at).unwrap_or_default(), "?.."),
            None => (rest, ""),
        };
        let separator = if scheme.is_empty() { "" } else { "://" };
        format!("{scheme}{separator}{user}{rest}{query}")
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown(), f)
    }
}

/// What a run is started with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) entity: Option<String>,
    pub(crate) project: String,
    pub(crate) name: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) job_type: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) notes: Option<String>,
    pub(crate) id: Option<String>,
    /// Above the `wandb` directory.
    pub(crate) root: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) base_url: String,
    pub(crate) api_key: Option<Key>,
}

impl Settings {
    /// Puts together what was asked for and what the environment says, and checks it.
    pub(crate) fn resolve(asked: Asked, environment: &Environment) -> Result<Self, Error> {
        let either = |asked: Option<String>, name: &'static str| match asked {
            Some(value) => Ok(Some(value)),
            None => environment.text(name).map(|text| text.map(str::to_owned)),
        };
        let base_url = base_url(asked.base_url, environment)?;
        let api_key = match asked.api_key {
            Some(key) => Some(key),
            None => environment
                .text("WANDB_API_KEY")?
                .map(|key| Key(key.to_owned())),
        };
        let api_key = match api_key {
            Some(key) => Some(key),
            None => netrc_key(environment, &base_url)?,
        };
        if let Some(key) = &api_key {
            check_key(key)?;
        }
        let mode = match asked.mode {
            Some(mode) => Some(mode),
            None => mode_of(environment)?,
        };
        let mode = match (mode, &api_key) {
            (None, None) => Mode::Offline,
            (None, Some(_)) => Mode::Online,
            (Some(Mode::Online), None) => {
                return Err(Error::NoKey { base_url });
            }
            (Some(mode), _) => mode,
        };
        let tags = match asked.tags {
            Some(tags) => tags,
            None => match environment.text("WANDB_TAGS")? {
                Some(text) => text.split(',').map(str::to_owned).collect(),
                None => Vec::new(),
            },
        };
        let settings = Self {
            entity: either(asked.entity, "WANDB_ENTITY")?,
            project: either(asked.project, "WANDB_PROJECT")?
                .unwrap_or_else(|| "uncategorized".into()),
            name: either(asked.name, "WANDB_NAME")?,
            group: either(asked.group, "WANDB_RUN_GROUP")?,
            job_type: either(asked.job_type, "WANDB_JOB_TYPE")?,
            notes: either(asked.notes, "WANDB_NOTES")?,
            id: either(asked.id, "WANDB_RUN_ID")?,
            root: root(asked.directory, environment),
            tags,
            mode,
            base_url,
            api_key,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |setting, found: &str, allowed| {
            let found = found.to_owned();
            Err(Error::Setting {
                setting,
                found,
                allowed,
            })
        };
        let project = &self.project;
        if !(1..=128).contains(&project.chars().count())
            || project
                .chars()
                .any(|c| "/\\#?%:".contains(c) || c.is_control())
        {
            let allowed = "1 to 128 characters, none of / \\ # ? % : or a control character";
            return refuse("WANDB_PROJECT", project, allowed);
        }
        if let Some(id) = &self.id
            && (!(1..=128).contains(&id.len())
                || id.trim() != id
                || matches!(id.as_str(), "." | "..")
                || id
                    .chars()
                    .any(|c| ":;,#?/'\\".contains(c) || c.is_control()))
        {
            let allowed = "1 to 128 bytes, no space around them, none of : ; , # ? / ' \\ or a control character";
            return refuse("WANDB_RUN_ID", id, allowed);
        }
        if let Some(entity) = &self.entity
            && (entity.is_empty()
                || entity
                    .chars()
                    .any(|c| "/\\#?%:".contains(c) || c.is_control()))
        {
            let allowed = "the name of a user or team: none of / \\ # ? % : or a control character";
            return refuse("WANDB_ENTITY", entity, allowed);
        }
        for tag in &self.tags {
            if !(1..=64).contains(&tag.chars().count()) {
                return refuse(
                    "WANDB_TAGS",
                    tag,
                    "tags of 1 to 64 characters each, separated by commas",
                );
            }
        }
        Ok(())
    }
}

fn root(asked: Option<PathBuf>, environment: &Environment) -> PathBuf {
    match (asked, environment.raw("WANDB_DIR")) {
        (Some(directory), _) => directory,
        (None, Some(directory)) => environment.expanded(directory),
        (None, None) => PathBuf::from("."),
    }
}

fn mode_of(environment: &Environment) -> Result<Option<Mode>, Error> {
    let Some(text) = environment.text("WANDB_MODE")? else {
        return Ok(None);
    };
    match text.parse() {
        Ok(mode) => Ok(Some(mode)),
        Err(()) => Err(Error::Setting {
            setting: "WANDB_MODE",
            found: text.to_owned(),
            allowed: "online, offline or disabled",
        }),
    }
}

fn base_url(asked: Option<Address>, environment: &Environment) -> Result<String, Error> {
    let address = match asked {
        Some(address) => address,
        None => Address(
            environment
                .text("WANDB_BASE_URL")?
                .unwrap_or(HOSTED)
                .to_owned(),
        ),
    };
    let url = &address.0;
    let allowed = if url.contains("wandb.ai") && !url.contains("api.") {
        Some("the API's own address; for the hosted service that is https://api.wandb.ai")
    } else if url.contains("wandb.ai") && url.starts_with("http:") {
        Some("https for the hosted service: the key would be readable on its way")
    } else {
        let usable = url.parse::<ureq::http::Uri>().is_ok_and(|uri| {
            uri.host().is_some_and(|host| !host.is_empty())
                && matches!(uri.scheme_str(), Some("http" | "https"))
                // Wherever one is: what looks like a path to one parser is a password to another.
                && !url.contains(['@', '?', '#'])
        });
        (!usable).then_some("an http or https URL without a name, a password or a query in it")
    };
    match allowed {
        None => Ok(url.trim_end_matches('/').to_owned()),
        Some(allowed) => Err(Error::Setting {
            setting: "WANDB_BASE_URL",
            found: address.shown(),
            allowed,
        }),
    }
}

/// The key for this server in netrc: in the file that `NETRC` names, `~/.netrc`, or `~/_netrc`.
fn netrc_key(environment: &Environment, base_url: &str) -> Result<Option<Key>, Error> {
    let paths: Vec<PathBuf> = match environment.raw("NETRC") {
        Some(path) => vec![environment.expanded(path)],
        None => match environment.raw("HOME") {
            Some(home) => [".netrc", "_netrc"]
                .map(|name| Path::new(home).join(name))
                .into(),
            None => Vec::new(),
        },
    };
    let machine = base_url
        .split_once("://")
        .map_or(base_url, |(_, rest)| rest);
    let machine = machine.split('/').next().unwrap_or_default();
    for path in paths {
        match std::fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                return match netrc::password(&text, machine) {
                    Ok(key) => Ok(key.map(Key)),
                    Err(line) => Err(Error::Netrc { path, line }),
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    Ok(None)
}

fn check_key(key: &Key) -> Result<(), Error> {
    let well_formed = key.0.chars().all(|c| c.is_ascii_graphic());
    if well_formed && key.0.len() >= KEY_LENGTH {
        return Ok(());
    }
    // What was found is a key, or nearly one: it is not shown.
    let found = if well_formed {
        format!("{} characters", key.0.len())
    } else {
        "spaces or other characters that no key has".to_owned()
    };
    Err(Error::Setting {
        setting: "WANDB_API_KEY",
        found,
        allowed: "a key of 40 or more letters, digits and dashes, from the environment or from netrc",
    })
}

/// Where people look at runs, given where the API is. Source: the client's behaviour.
pub(crate) fn app_url(base_url: &str) -> String {
    for (from, to) in [
        ("://api.wandb.test", "://app.wandb.test"),
        ("://api.wandb.", "://wandb."),
        ("://api.", "://app."),
    ] {
        if base_url.contains(from) {
            return base_url.replacen(from, to, 1);
        }
    }
    base_url.to_owned()
}
