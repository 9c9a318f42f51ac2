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
    /// The oldest Rust that it compiles with, where it says so.
    rust_version: Option<String>,
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

    /// The members that this Rust is too old for, each with the reason. Cargo builds nothing at all where one of them is included.
    pub(crate) fn left_out(&self) -> Result<Vec<(&str, String)>> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .arg("--version")
            .current_dir(&self.root)
            .output()
            .context("cannot start rustc")?;
        let version = String::from_utf8_lossy(&output.stdout);
        let version = version.split_whitespace().nth(1).unwrap_or_default();
        Ok(self.too_new_for(version))
    }

    fn too_new_for(&self, version: &str) -> Vec<(&str, String)> {
        let members = self.packages.iter().filter_map(|package| {
            let needed = package.rust_version.as_deref()?;
            (numbers(needed) > numbers(version)).then(|| {
                let reason = format!("it needs Rust {needed}, and this is {version}");
                (&*package.name, reason)
            })
        });
        members.collect()
    }

    /// The whole workspace, but for the members that are left out, as arguments of cargo.
    pub(crate) fn whole(&self) -> Result<Vec<String>> {
        let mut arguments = vec!["--workspace".to_owned()];
        for (name, _) in self.left_out()? {
            arguments.extend(["--exclude".to_owned(), name.to_owned()]);
        }
        Ok(arguments)
    }

    /// The member of that name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// The libraries that others are to use.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.published)
    }

    /// The oldest Rust that all libraries promise to build with.
    pub(crate) fn oldest_rust(&self) -> Result<&str> {
        let versions = self
            .libraries()
            .filter_map(|library| library.rust_version.as_deref());
        versions
            .max_by_key(|version| numbers(version))
            .context("no library says which Rust it needs")
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
            rust_version: package
                .get("rust_version")
                .and_then(Value::as_str)
                .map(str::to_owned),
            // Null is everywhere; an empty list is nowhere.
            published: package.get("publish").is_none_or(Value::is_null),
        })
    }
}

/// `1.95.0-nightly` as 1, 95, 0.
pub(crate) fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split('-').next().unwrap_or_default();
    let mut numbers: Vec<u64> = plain
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect();
    numbers.resize(3, 0);
    numbers
}

/// The cargo that started this program, so that one toolchain does everything.
fn cargo_program() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_for_a_newer_rust_is_left_out_and_no_other() {
        let text = r#"{"workspace_root": "/w", "target_directory": "/w/target", "packages": [
            {"name": "old", "manifest_path": "/w/old/Cargo.toml", "rust_version": "1.88"},
            {"name": "any", "manifest_path": "/w/any/Cargo.toml", "rust_version": null},
            {"name": "new", "manifest_path": "/w/new/Cargo.toml", "rust_version": "1.95"}]}"#;
        let workspace = Workspace::from_metadata(&serde_json::from_str(text).unwrap()).unwrap();
        let left_out = workspace.too_new_for("1.88.0");
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0].0, "new");
        assert!(left_out[0].1.contains("1.95"), "{}", left_out[0].1);
        assert_eq!(workspace.too_new_for("1.95.0"), []);
        assert_eq!(workspace.too_new_for("1.100.0-nightly"), []);
    }

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
