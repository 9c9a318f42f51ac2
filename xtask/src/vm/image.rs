//! A root file system with systemd, for rows whose process 1 it is. It is made from the packages of
//! the release that this machine runs, since the test programs were linked here, and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::kernel::{Cache, remove};
use super::programs::{Program, Programs};
use crate::{process, ui};

/// What the tests need, with what it depends on; nothing that is only recommended.
const PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "dbus",
    "dbus-user-session",
    "grep",
    "libc-bin",
    "libpam-systemd",
    "libseccomp2",
    "login",
    "mount",
    "python3",
    "sed",
    "systemd",
    "systemd-sysv",
    "usr-is-merged",
    "util-linux",
];

/// The ways to a group, as `xtask/vm/systemd` knows them, with the test programs that go each.
const WAYS: &[(&str, &[&str])] = &[
    ("session", &["delegation"]),
    ("scope", &["delegation", "guests", "limits"]),
    ("user-unit", &["delegation"]),
    ("system-unit", &["delegation", "guests", "limits"]),
];

impl Cache {
    /// The file system, made where the cache lacks it or has one of another recipe. `script` makes it.
    pub(crate) fn systemd(&self, script: &Path) -> Result<PathBuf> {
        let release = apt::release()?;
        let text = fs::read_to_string(script)
            .with_context(|| format!("cannot read {}", script.display()))?;
        let recipe = format!("{release}\n{}\n{text}", PACKAGES.join(" "));
        let at = |end: &str| self.directory.join(format!("systemd-{release}.{end}"));
        let (image, noted) = (at("ext4"), at("recipe"));
        // Held until the end of this function: one makes it, the others find it there.
        let _lock = self.lock()?;
        if image.is_file() && fs::read_to_string(&noted).is_ok_and(|found| found == recipe) {
            return Ok(image);
        }
        ensure!(
            rustix::process::geteuid().is_root(),
            "making a file system with files of several owners needs root"
        );
        for tool in ["dpkg-deb", "tar", "mkfs.ext4"] {
            ensure!(process::in_path(tool), "there is no {tool} here");
        }
        let parts = at("part");
        remove(&parts)?;
        let made = make(&parts, &release, script);
        if made.is_ok() {
            fs::rename(parts.join("image"), &image)
                .and_then(|()| fs::write(&noted, recipe))
                .with_context(|| format!("cannot keep {}", image.display()))?;
        }
        remove(&parts)?;
        made.context("cannot make a file system with systemd")?;
        Ok(image)
    }
}

/// Leaves the file system in `parts/image`.
fn make(parts: &Path, release: &str, script: &Path) -> Result<()> {
    fs::create_dir_all(parts).with_context(|| format!("cannot create {}", parts.display()))?;
    let apt = Apt::prepare(parts, release)?;
    ui::say(&format!(
        "Fetching Debian's systemd and python3 (about 40 MB) into {}.",
        parts.display()
    ));
    let words = "-q -y --no-install-recommends --download-only install".split(' ');
    let words: Vec<&str> = words.chain(PACKAGES.iter().copied()).collect();
    apt.run("apt-get", &words)?;
    let mut image = Command::new("sh");
    image.arg(script).arg(parts).arg(parts.join("image"));
    process::run(image)
}

/// The programs that such a row runs, once for each way.
pub(crate) fn by_every_way(programs: &Programs) -> Programs {
    let mut tests = Vec::new();
    for (way, names) in WAYS {
        for name in *names {
            let label = format!("varek-core/tests/{name}.rs");
            let found = programs.tests.iter().filter(|test| test.label == label);
            tests.extend(found.map(|test| Program {
                label: format!("{} by {way}", test.label),
                ..test.clone()
            }));
        }
    }
    Programs {
        tests,
        doctor: programs.doctor.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_run_once_for_each_way_and_its_label_ends_with_the_way() {
        let programs = ["delegation", "guests", "other"].map(|name| Program {
            label: format!("varek-core/tests/{name}.rs"),
            directory: "/w/varek-core".into(),
            path: format!("/t/{name}").into(),
        });
        let doctor = Some(PathBuf::from("/t/doctor"));
        let found = by_every_way(&Programs {
            tests: programs.to_vec(),
            doctor: doctor.clone(),
        });
        let labels: Vec<_> = found.tests.iter().map(|test| &*test.label).collect();
        assert_eq!(
            labels,
            [
                "varek-core/tests/delegation.rs by session",
                "varek-core/tests/delegation.rs by scope",
                "varek-core/tests/guests.rs by scope",
                "varek-core/tests/delegation.rs by user-unit",
                "varek-core/tests/delegation.rs by system-unit",
                "varek-core/tests/guests.rs by system-unit",
            ]
        );
        assert_eq!(found.doctor, doctor);
    }
}
