//! The official client, in the virtual environments that `cargo xtask setup` makes.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::server::{API_KEY, Server};
use super::{here, not_run, python, succeeded};

/// A logged run of 200,000 table rows takes a quarter of a minute on a quiet machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The version that the protocol was taken from.
pub const PINNED: &str = "0.26.1";
/// A current release, whose `wandb sync` is what the pinned one calls `wandb beta sync`.
pub const CURRENT: &str = "0.31.0";

/// Where a reference script logs to.
#[derive(Debug, Clone, Copy)]
pub enum Mode<'s> {
    Online(&'s Server),
    Offline,
}

/// Which of its two programs uploads a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// `wandb sync`
    Classic,
    /// `wandb beta sync`
    Beta,
}

/// What a program did.
#[derive(Debug)]
pub struct Ran {
    /// None where it was stopped, since it took too long.
    pub status: Option<ExitStatus>,
    /// Both streams.
    pub output: String,
}

impl Ran {
    /// Fails with what was printed.
    pub fn success(self) -> String {
        let done = self.status.is_some_and(|status| status.success());
        assert!(done, "{:?}\n{}", self.status, self.output);
        self.output
    }
}

/// The official client of one version, with a home directory of its own.
#[derive(Debug)]
pub struct Client {
    place: PathBuf,
    home: TempDir,
}

impl Client {
    /// The client, or `None`, which is said, where it is not installed.
    pub fn of_version(version: &str, test: &str) -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
        let place = target.join("guests").join(format!("wandb-{version}"));
        if !place.join("complete").exists() || !place.join("bin/python").exists() {
            let reason = format!(
                "there is no environment in {}: run `cargo xtask setup`",
                place.display()
            );
            not_run(test, &reason);
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        Some(Self { place, home })
    }

    /// The version that all is compared with.
    pub fn pinned(test: &str) -> Option<Self> {
        Self::of_version(PINNED, test)
    }

    /// Logs a scenario. What it writes, an offline run among it, is in `directory`.
    pub fn reference(&self, scenario: &Path, mode: Mode<'_>, directory: &Path) -> Ran {
        let mut command = self.command("python", directory);
        command
            .arg(here("reference/reference.py"))
            .arg("run")
            .arg(scenario);
        match mode {
            Mode::Online(server) => with_server(&mut command, server),
            Mode::Offline => {
                command.env("WANDB_MODE", "offline");
            }
        }
        run(command, &directory.join("reference.txt"), LIMIT)
    }

    /// Uploads an offline run: the directory that its log is in.
    pub fn sync(&self, run_directory: &Path, how: Sync, server: &Server) -> Ran {
        self.sync_within(run_directory, how, server, LIMIT)
    }

    /// The same, with another time limit.
    pub fn sync_within(
        &self,
        directory: &Path,
        how: Sync,
        server: &Server,
        limit: Duration,
    ) -> Ran {
        let output = tempfile::tempdir().unwrap();
        let mut command = self.command("wandb", output.path());
        if how == Sync::Beta {
            command.arg("beta");
        }
        command.arg("sync").arg(directory);
        with_server(&mut command, server);
        run(command, &output.path().join("sync.txt"), limit)
    }

    /// One of the environment's programs; nothing of the caller's own surroundings gets to it.
    pub fn command(&self, program: &str, directory: &Path) -> Command {
        let mut command = python(&self.place.join("bin").join(program));
        let home = self.home.path();
        command
            .current_dir(directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("NETRC", home.join("no-netrc"))
            .env("WANDB_CACHE_DIR", home.join("cache"))
            .env("WANDB_CONFIG_DIR", home.join("config"))
            .env("WANDB_DATA_DIR", home.join("data"))
            .env("WANDB_DIR", directory)
            .env("WANDB_ERROR_REPORTING", "false")
            .env("WANDB_API_KEY", API_KEY);
        command
    }
}

fn with_server(command: &mut Command, server: &Server) {
    command.env("WANDB_MODE", "online");
    command.env("WANDB_BASE_URL", server.url());
}

/// Runs a program until its end or the limit; then it is killed, with what it started.
fn run(mut command: Command, output: &Path, limit: Duration) -> Ran {
    let file = File::create(output).unwrap();
    let mut child = command
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .process_group(0)
        .spawn()
        .unwrap();
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            let group = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let output = String::from_utf8_lossy(&fs::read(output).unwrap()).into_owned();
    Ran { status, output }
}

/// A scenario of `tests/scenarios`, by its name.
pub fn scenario(name: &str) -> PathBuf {
    let path = here("scenarios").join(format!("{name}.json"));
    assert!(path.is_file(), "there is no scenario {name}");
    path
}

/// The names of all scenarios.
pub fn scenarios() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(here("scenarios"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// A scenario with everything that is generated, so that it can be logged through another client.
pub fn expanded(path: &Path) -> Value {
    let mut script = python("python3".as_ref());
    script
        .arg(here("reference/reference.py"))
        .arg("expand")
        .arg(path);
    serde_json::from_str(&succeeded(&script.output().unwrap())).unwrap()
}

/// The one offline run below a directory that [`Client::reference`] wrote to.
pub fn offline_run(directory: &Path) -> PathBuf {
    let runs: Vec<_> = fs::read_dir(directory.join("wandb"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("offline-run-")
        })
        .collect();
    let [run] = &runs[..] else {
        panic!("{} offline runs: {runs:?}", runs.len());
    };
    run.clone()
}
