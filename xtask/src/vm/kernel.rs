//! Debian's kernels, unpacked from the distribution's own mirror into a cache, never installed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::FlockOperation;

use super::apt::Apt;
use super::rows::Kernel;
use crate::{process, ui};

/// The package that depends on the current kernel of a release, of the small flavour for machines
/// like these.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    /// The directory of `modules.dep`.
    pub(crate) modules: PathBuf,
}

/// Where kernels are kept between runs.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) directory: PathBuf,
}

impl Cache {
    /// `VAREK_VM_CACHE`, else a directory of its own in the user's cache.
    pub(crate) fn open() -> Result<Self> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let directory = match (set("VAREK_VM_CACHE"), set("XDG_CACHE_HOME"), set("HOME")) {
            (Some(own), _, _) => PathBuf::from(own),
            (None, Some(cache), _) => Path::new(&cache).join("varek-vm"),
            (None, None, Some(home)) => Path::new(&home).join(".cache/varek-vm"),
            (None, None, None) => bail!("neither VAREK_VM_CACHE nor HOME says where to keep it"),
        };
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let directory = directory
            .canonicalize()
            .with_context(|| format!("cannot find {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// The kernel, fetched where the cache lacks it; without a network where it does not.
    pub(crate) fn kernel(&self, kernel: Kernel) -> Result<Image> {
        let place = self.directory.join(format!("kernel-{}", kernel.name()));
        // Held until the end of this function: one fetches, the others find it there.
        let _lock = self.lock()?;
        if !place.is_dir() {
            let parts = self
                .directory
                .join(format!("kernel-{}.part", kernel.name()));
            remove(&parts)?;
            fs::create_dir_all(&parts)
                .with_context(|| format!("cannot create {}", parts.display()))?;
            let fetched = fetch(kernel, &parts);
            if fetched.is_ok() {
                fs::rename(parts.join("files"), &place)
                    .with_context(|| format!("cannot rename to {}", place.display()))?;
            }
            remove(&parts)?;
            fetched.with_context(|| format!("cannot fetch Linux {}", kernel.name()))?;
        }
        find(&place).with_context(|| {
            format!(
                "{} holds no complete kernel; remove it to have it fetched again",
                place.display()
            )
        })
    }

    pub(super) fn lock(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

pub(super) fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Fetches the package, and leaves its files in `parts/files`.
fn fetch(kernel: Kernel, parts: &Path) -> Result<()> {
    ensure!(process::in_path("depmod"), "there is no depmod here");
    let apt = Apt::prepare(parts, kernel.suite())?;
    ui::say(&format!(
        "Fetching Debian's Linux {} (about 40 MB) into {}.",
        kernel.name(),
        parts.display()
    ));
    let depends = apt.output("apt-cache", &["depends", "--important", PACKAGE])?;
    let package = dependency(&depends)
        .with_context(|| format!("{PACKAGE} of {} depends on no kernel", kernel.suite()))?;
    apt.run("apt-get", &["-q", "download", package])?;

    let archive = fs::read_dir(parts)
        .context("cannot list what was fetched")?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|found| found == "deb"))
        .context("apt-get fetched no package")?;
    let files = parts.join("files");
    let mut unpack = Command::new("dpkg");
    unpack.arg("-x").arg(archive).arg(&files);
    process::run(unpack)?;
    let image = find(&files).context("the package holds no kernel")?;
    // The package makes this list when it is installed.
    let (version, base) = modules_base(&image.modules).context("no place for modules")?;
    let mut list = Command::new("depmod");
    list.arg("-b").arg(base).arg(version);
    process::run(list)
}

/// The first `Depends: linux-image-...` of `apt-cache depends`.
fn dependency(depends: &str) -> Option<&str> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
}

/// The kernel and its modules in an unpacked package.
fn find(files: &Path) -> Option<Image> {
    let kernel = fs::read_dir(files.join("boot"))
        .ok()?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("vmlinuz-")
        })?;
    // Merged into /usr since Debian 13.
    let modules = ["lib/modules", "usr/lib/modules"]
        .into_iter()
        .find_map(|place| fs::read_dir(files.join(place)).ok()?.next()?.ok())?
        .path();
    Some(Image { kernel, modules })
}

/// What depmod takes: the version, and the directory above `lib/modules`.
fn modules_base(modules: &Path) -> Option<(&std::ffi::OsStr, &Path)> {
    Some((modules.file_name()?, modules.ancestors().nth(3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_package_of_the_flavour_depends_on() {
        let depends =
            "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-9-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(depends), Some("linux-image-6.1.0-9-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
    }

    #[test]
    fn an_empty_directory_is_no_kernel() {
        assert!(find(Path::new("/nonexistent")).is_none());
        let base = modules_base(Path::new("/c/usr/lib/modules/6.12")).unwrap();
        assert_eq!(base, ("6.12".as_ref(), Path::new("/c/usr")));
    }
}
