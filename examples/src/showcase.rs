//! What becomes of real payloads under real Python: each row says what has to become of it, and why.

use std::path::{Path, PathBuf};
use std::time::Duration;

use varek_core::{
    Cause, Cleanup, Command, Error, Host, KIB, MIB, Outcome, Overflow, Policy, Resource, Sandbox,
    Signal, Termination,
};

use crate::evidence::{self, Judged};

/// Output that is kept of a payload that floods.
const OUTPUT: u64 = 64 * KIB;
/// What it writes.
const FLOOD: u64 = 8 * MIB;
/// Processes of the fork bomb.
const PIDS: u64 = 24;

/// One payload.
#[derive(Clone)]
pub struct Payload {
    /// Its name.
    pub name: &'static str,
    /// What it tries.
    pub tries: &'static str,
    source: String,
    policy: Policy,
    judge: fn(&Outcome) -> Judged,
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payload")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What became of a payload.
#[derive(Debug)]
pub struct Shown {
    /// The outcome.
    pub outcome: Outcome,
    /// The evidence that it is the expected one, or what is there instead.
    pub judged: Judged,
}

/// The policy of every row but what a row says itself.
pub fn policy() -> Policy {
    Policy::python()
        .wall_clock(Duration::from_secs(20))
        .memory(96 * MIB)
}

impl Payload {
    fn new(
        name: &'static str,
        tries: &'static str,
        source: impl Into<String>,
        judge: fn(&Outcome) -> Judged,
    ) -> Self {
        Self {
            name,
            tries,
            source: source.into(),
            policy: policy(),
            judge,
        }
    }

    fn under(mut self, change: impl FnOnce(Policy) -> Policy) -> Self {
        self.policy = change(self.policy);
        self
    }

    /// Runs it; the sandbox of [`policy`] serves every row that does not change the policy.
    ///
    /// # Errors
    ///
    /// When VAREK could not run it.
    pub fn run(&self, usual: &Sandbox, host: &Host) -> Result<Shown, Error> {
        let outcome = if self.policy == *usual.policy() {
            usual.run(Command::python(self.source.as_str()))?
        } else {
            let sandbox = Sandbox::builder(self.policy.clone())
                .host(host.clone())
                .build()?;
            sandbox.run(Command::python(self.source.as_str()))?
        };
        let judged = (self.judge)(&outcome).and_then(|evidence| match &outcome.cleanup {
            Cleanup::Complete => Ok(evidence),
            left => Err(format!("{evidence}; but clean-up is {left}")),
        });
        Ok(Shown { outcome, judged })
    }
}

/// A file of the embedder's that anybody on the machine may read, in a directory of its own.
#[derive(Debug)]
pub struct Secret {
    directory: tempfile::TempDir,
}

impl Secret {
    /// What is in it.
    const TEXT: &str = "a secret of the embedder";

    /// Makes it.
    ///
    /// # Errors
    ///
    /// When the host refuses.
    pub fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let open = std::fs::Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new()
            .prefix("varek-demo-")
            .permissions(open)
            .tempdir()?;
        std::fs::write(directory.path().join("key"), Self::TEXT)?;
        Ok(Self { directory })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("key")
    }
}

/// Every payload, in the order in which it is shown.
pub fn payloads(secret: &Secret) -> Vec<Payload> {
    let mut all = harmless();
    all.extend(refused(secret));
    all.extend(bounded());
    all.extend(left_behind());
    all.extend(honest());
    all
}

fn says(outcome: &Outcome, text: &str) -> Judged {
    let printed = evidence::printed(outcome, text)?;
    evidence::clean(outcome)?;
    Ok(format!("{printed}, no boundary event"))
}

fn harmless() -> Vec<Payload> {
    vec![
        Payload::new("arithmetic", "adds up", "print(sum(range(1000)))", |o| {
            says(o, "499500")
        }),
        Payload::new(
            "json",
            "parses and prints",
            "import json\nprint(json.dumps(json.loads('{\"b\": [1, 2], \"a\": null}'), sort_keys=True))",
            |o| says(o, r#"{"a": null, "b": [1, 2]}"#),
        ),
        Payload::new(
            "sqlite",
            "a data base in scratch",
            "import sqlite3\n\
             with sqlite3.connect('scratch.db') as db:\n    \
                 db.execute('create table t (n int)')\n    \
                 db.executemany('insert into t values (?)', [(n,) for n in range(100)])\n    \
                 print(db.execute('select sum(n) from t').fetchone()[0])",
            |o| says(o, "4950"),
        ),
        Payload::new(
            "threads",
            "eight threads",
            "from concurrent.futures import ThreadPoolExecutor\n\
             with ThreadPoolExecutor(8) as pool:\n    \
                 print(sum(pool.map(lambda n: n * n, range(100))))",
            |o| says(o, "328350"),
        ),
        Payload::new(
            "1 MB program",
            "a source of over a million bytes",
            format!(
                "x = 0\n{}print(x)\n",
                "x += 1  # one of many\n".repeat(50_000)
            ),
            |o| says(o, "50000"),
        )
        .under(|policy| policy.memory(512 * MIB)),
    ]
}

fn refused(secret: &Secret) -> Vec<Payload> {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/home".into());
    let paths = [PathBuf::from(home).join(".ssh"), secret.path()];
    let paths = paths.map(|path| literal(&path)).join(", ");
    vec![
        Payload::new(
            "subprocess",
            "starts /bin/echo",
            "import subprocess\nsubprocess.run(['/bin/echo', 'escaped'], check=True)",
            |o| {
                let evidence = evidence::denied(o, "execve")?;
                evidence::exited(o, 1)?;
                evidence::printed(o, "").map(|_| evidence)
            },
        ),
        Payload::new(
            "os.system, swallowed",
            "starts a shell, ignores the failure",
            "import os\nos.system('echo escaped')\nprint('all is well')",
            |o| {
                let evidence = evidence::denied(o, "execve")?;
                evidence::exited(o, 0)?;
                evidence::printed(o, "all is well").map(|_| evidence)
            },
        ),
        Payload::new(
            "socket",
            "opens a TCP socket",
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_STREAM)",
            |o| {
                let evidence = evidence::denied(o, "socket")?;
                evidence::exited(o, 1).map(|_| evidence)
            },
        ),
        Payload::new(
            "embedder's files",
            "reads ~/.ssh and a world-readable file",
            format!(
                "import os\n\
                 for path in [{paths}]:\n    \
                     try:\n        \
                         print('read', os.listdir(path) if os.path.isdir(path) else open(path).read())\n    \
                     except OSError as error:\n        \
                         print(error.errno)"
            ),
            // EACCES of Landlock, or of the uid where the home is closed; ENOENT where there is no ~/.ssh.
            |o| match o.stdout.to_text().lines().collect::<Vec<_>>().as_slice() {
                [first @ ("13" | "2"), "13"] => {
                    evidence::exited(o, 0).map(|_| format!("errno {first} and 13 (EACCES) by path"))
                }
                other => Err(format!("it printed {other:?}")),
            },
        ),
        Payload::new(
            "granted file",
            "reads that file where the policy grants it",
            format!("print(open({}).read())", literal(&secret.path())),
            |o| says(o, Secret::TEXT),
        )
        .under(|policy| policy.read(secret.path())),
    ]
}

/// A path as Python writes it, which is as JSON does.
fn literal(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

fn bounded() -> Vec<Payload> {
    vec![
        Payload::new(
            "busy loop",
            "never ends (limit 1 s)",
            "while True:\n    pass",
            evidence::wall_clock,
        )
        .under(|policy| policy.wall_clock(Duration::from_secs(1))),
        Payload::new(
            "memory hog",
            "takes all memory (limit 96 MiB)",
            "kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))",
            out_of_memory,
        ),
        Payload::new(
            "memory hog in a child",
            "the same in a fork; the parent stays",
            // The kernel's version 1 memory controller kills the child alone. The parent stays, so that what is
            // seen is the end of the tree, and not a parent that was faster.
            "import os, time\n\
             if os.fork() == 0:\n    \
                 kept = []\n    \
                 while True:\n        \
                     kept.append(bytearray(1 << 20))\n\
             os.wait()\n\
             time.sleep(600)",
            out_of_memory,
        ),
        Payload::new(
            "fork bomb",
            "forks for ever (limit 24 processes, 2 s)",
            "import os, time\n\
             while True:\n    \
                 try:\n        \
                     os.fork()\n    \
                 except OSError:\n        \
                     time.sleep(0.05)",
            |o| {
                let hit = evidence::limit_hit(o, Resource::Pids)?;
                evidence::killed(o, &Cause::WallClock)?;
                match o.usage.pids_peak {
                    Some(peak) if peak > PIDS => Err(format!("{peak} processes")),
                    _ => Ok(hit),
                }
            },
        )
        .under(|policy| {
            policy
                .pids(PIDS)
                .wall_clock(Duration::from_secs(2))
                .memory(256 * MIB)
        }),
        Payload::new(
            "stdout flood",
            "writes 8 MiB (64 KiB are kept)",
            format!(
                "import sys\nfor n in range({}):\n    sys.stdout.write('x' * 65536)",
                FLOOD / 65536
            ),
            |o| {
                let clean = evidence::clean(o)?;
                let (total, kept) = (o.stdout.total, o.stdout.bytes.len() as u64);
                if o.stdout.truncated() && total == FLOOD && kept <= OUTPUT {
                    Ok(format!("{total} bytes counted, {kept} kept, {clean}"))
                } else {
                    Err(format!("{total} bytes counted, {kept} kept"))
                }
            },
        )
        .under(|policy| policy.output(OUTPUT, Overflow::Truncate)),
    ]
}

fn out_of_memory(outcome: &Outcome) -> Judged {
    evidence::killed(outcome, &Cause::OutOfMemory)?;
    let hit = evidence::limit_hit(outcome, Resource::Memory)?;
    evidence::printed(outcome, "").map(|_| hit)
}

fn left_behind() -> Vec<Payload> {
    vec![
        Payload::new(
            "daemon",
            "double fork, setsid, then exits",
            // The daemon says that it is there before the first process ends.
            "import os, time\n\
             r, w = os.pipe()\n\
             if os.fork() == 0:\n    \
                 os.setsid()\n    \
                 if os.fork() == 0:\n        \
                     os.write(w, b'x')\n        \
                     time.sleep(600)\n    \
                 os._exit(0)\n\
             os.wait()\n\
             os.read(r, 1)\n\
             print('daemon is up')",
            |o| {
                says(o, "daemon is up")?;
                descendants(o)
            },
        ),
        Payload::new(
            "grandchild on stdout",
            "keeps the pipe open for 10 minutes",
            "import os, time\n\
             if os.fork() == 0:\n    \
                 time.sleep(600)\n    \
                 os._exit(0)\n\
             print('parent is done')",
            |o| {
                says(o, "parent is done")?;
                descendants(o)
            },
        ),
    ]
}

fn descendants(outcome: &Outcome) -> Judged {
    match outcome.descendants_killed {
        0 => Err("no left-over process was counted".into()),
        count => Ok(format!("{count} left-over killed at once")),
    }
}

fn honest() -> Vec<Payload> {
    vec![Payload::new(
        "kills itself",
        "SIGKILL to its own process",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        |o| match (&o.termination, o.violation()) {
            (Termination::Signaled(Signal::KILL), None) => {
                Ok("its own doing: no limit, no out of memory".into())
            }
            (other, violation) => Err(format!("{other}, violation {violation:?}")),
        },
    )]
}
