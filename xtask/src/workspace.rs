//! The workspace as Cargo describes it: where it is, its packages and their targets.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A member of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) features: Vec<String>,
    directory: PathBuf,
    /// It is a library that others are to use.
    published: bool,
}

/// The workspace that this program belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    packages: Vec<Package>,
}

impl Workspace {
    /// Asks Cargo, without resolving dependencies: this must work before anything is installed.
    pub(crate) fn load() -> Result<Self> {
        // Cargo names the directory at run time; the compiled-in one serves a copied binary.
        let own = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let output = cargo_program()
            .args([
                "metadata",
                "--no-deps",
                "--format-version",
                "1",
                "--manifest-path",
            ])
            .arg(own.join("Cargo.toml"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed: {}", output.status);
        }
        let metadata = serde_json::from_slice(&output.stdout)
            .context("`cargo metadata` printed something that is not JSON")?;
        Self::from_metadata(&metadata).context("`cargo metadata` lacks a field that is needed")
    }

    fn from_metadata(metadata: &Value) -> Option<Self> {
        let packages = metadata.get("packages")?.as_array()?;
        Some(Self {
            root: PathBuf::from(metadata.get("workspace_root")?.as_str()?),
            target: PathBuf::from(metadata.get("target_directory")?.as_str()?),
            packages: packages
                .iter()
                .map(Package::from_metadata)
                .collect::<Option<_>>()?,
        })
    }

    /// A cargo command in the workspace's root.
    pub(crate) fn cargo<I>(&self, args: I) -> Command
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = cargo_program();
        command.current_dir(&self.root).args(args);
        command
    }

    /// The member of that name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// The libraries that others are to use.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.published)
    }

    /// The member in that directory of the root; found by place, since its name is its own affair.
    pub(crate) fn require_package_in(&self, directory: &str) -> Result<&Package> {
        let wanted = self.root.join(directory);
        self.packages
            .iter()
            .find(|package| package.directory == wanted)
            .with_context(|| format!("the workspace has no package in `{directory}/`"))
    }
}

impl Package {
    fn from_metadata(package: &Value) -> Option<Self> {
        let manifest = Path::new(package.get("manifest_path")?.as_str()?);
        Some(Self {
            name: package.get("name")?.as_str()?.to_owned(),
            features: package
                .get("features")
                .and_then(Value::as_object)
                .map(|features| features.keys().cloned().collect())
                .unwrap_or_default(),
            directory: manifest.parent()?.to_owned(),
            // Null is everywhere; an empty list is nowhere.
            published: package.get("publish").is_none_or(Value::is_null),
        })
    }
}

/// The cargo that started this program, so that one toolchain does everything.
fn cargo_program() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_found_by_its_directory() {
        let text = r#"{"workspace_root": "/w", "target_directory": "/w/target", "packages": [
            {"name": "varek-core", "manifest_path": "/w/varek-core/Cargo.toml"}]}"#;
        let workspace = Workspace::from_metadata(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(
            workspace.require_package_in("varek-core").unwrap().name,
            "varek-core"
        );
        assert!(workspace.require_package_in("benches").is_err());
    }

    #[test]
    fn this_workspace_can_be_read() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.package("xtask").is_some());
        assert!(workspace.root.join("Cargo.toml").is_file());
    }
}
