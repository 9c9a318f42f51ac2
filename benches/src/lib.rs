//! What the benches share: a tiny static guest, and both ways to run it.

use std::path::PathBuf;
use std::process::Command as Plain;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use varek_core::{Command, Policy, Sandbox};

/// A static program that exits at once, in a directory that every uid can search.
#[derive(Debug)]
pub struct Tiny {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Tiny {
    /// Compiles it with the host's C compiler.
    ///
    /// # Errors
    ///
    /// Where there is no C compiler or no static C library.
    pub fn build() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir()?;
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))?;
        let source = directory.path().join("tiny.c");
        std::fs::write(&source, "int main(void) { return 0; }\n")?;
        let path = directory.path().join("tiny");
        let mut compiler = Plain::new("cc");
        compiler
            .args(["-O2", "-static", "-o"])
            .arg(&path)
            .arg(&source);
        ensure!(
            compiler.status().context("run cc")?.success(),
            "cc -static failed"
        );
        Ok(Self {
            path,
            _directory: directory,
        })
    }

    /// By `std::process::Command::output`.
    ///
    /// # Errors
    ///
    /// Where it does not start or not exit with 0.
    pub fn plain(&self) -> Result<()> {
        ensure!(Plain::new(&self.path).output()?.status.success());
        Ok(())
    }

    /// By `Sandbox::run`.
    ///
    /// # Errors
    ///
    /// Where it does not start or not exit with 0.
    pub fn sandboxed(&self, sandbox: &Sandbox) -> Result<()> {
        let outcome = sandbox.run(Command::new(&self.path))?;
        ensure!(outcome.success(), "{outcome}");
        Ok(())
    }
}

/// The native preset, with a wall clock that no bench meets.
///
/// # Errors
///
/// Where the host cannot have the sandbox.
pub fn native() -> Result<Sandbox> {
    Ok(Sandbox::new(
        Policy::native().wall_clock(Duration::from_secs(60)),
    )?)
}
