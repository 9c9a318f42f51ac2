//! A process and files of the user's, outside of any sandbox, and whether something came to them.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A process of the user's, outside of any sandbox.
pub struct Bystander {
    pub process: Child,
}

impl Bystander {
    pub fn start() -> Self {
        let mut command = std::process::Command::new("sleep");
        command
            .arg("1000")
            .env("BYSTANDER", "secret")
            .stdin(Stdio::null())
            // So that its group, too, may be signalled by a control.
            .process_group(0);
        Self {
            process: command.spawn().unwrap(),
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.id().to_string()).join(name)
    }

    /// What a reaching guest would change: state, limits, nice value, affinity, policy, I/O priority.
    pub fn condition(&mut self) -> Vec<String> {
        assert_eq!(
            self.process.try_wait().unwrap(),
            None,
            "the bystander is dead"
        );
        let stat = std::fs::read_to_string(self.file("stat")).unwrap();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        // Numbered as in proc_pid_stat(5): state is the third.
        let field = |number: usize| fields[number - 3].to_owned();
        let state = if fields[0] == "T" { "stopped" } else { "going" };
        let status = std::fs::read_to_string(self.file("status")).unwrap();
        let affinity = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        vec![
            state.to_owned(),
            std::fs::read_to_string(self.file("limits")).unwrap(),
            field(19),
            field(40),
            field(41),
            affinity.unwrap().to_owned(),
        ]
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Mode, times, links and contents of a file.
pub type Shown = (u32, i64, i64, i64, u64, String);

pub fn shown(path: &Path) -> Shown {
    let data = std::fs::metadata(path).unwrap();
    let ctime = data.ctime() * 1_000_000_000 + data.ctime_nsec();
    let content = std::fs::read_to_string(path).unwrap();
    (
        data.mode(),
        data.mtime(),
        data.mtime_nsec(),
        ctime,
        data.nlink(),
        content,
    )
}
