//! Looks for the libseccomp development files before the linker does, so that a host without them gets
//! one sentence with the package's name and not a page of linker output. Nothing is built here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const MISSING: &str = "libseccomp's development files were not found, and varek-seccomp links against \
libseccomp. Install libseccomp-dev (Debian, Ubuntu), libseccomp-devel (Fedora, RHEL), libseccomp (Arch), \
libseccomp-dev (Alpine; also libseccomp-static for a static link) or libseccomp-devel (openSUSE), or set \
LIBSECCOMP_LIB_PATH to the directory that holds libseccomp.so (with LIBSECCOMP_LINK_TYPE=static: libseccomp.a).";

fn main() {
    for name in [
        "LIBSECCOMP_LIB_PATH",
        "LIBSECCOMP_LINK_TYPE",
        "CC",
        "RUSTC_LINKER",
        "DOCS_RS",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");

    let linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    let cross = env::var("TARGET").ok() != env::var("HOST").ok();
    // docs.rs does not link; a cross linker's search path is not the host's, so it has to speak itself.
    if !linux || cross || env::var_os("DOCS_RS").is_some() {
        return;
    }
    let library = match env::var("LIBSECCOMP_LINK_TYPE").as_deref() {
        Ok("static") => "libseccomp.a",
        _ => "libseccomp.so",
    };
    if !(in_named_directory(library) || compiler_finds(library) || in_usual_directory(library)) {
        println!("cargo::error={MISSING}");
    }
}

fn in_named_directory(library: &str) -> bool {
    env::var_os("LIBSECCOMP_LIB_PATH").is_some_and(|path| Path::new(&path).join(library).exists())
}

/// A C compiler prints the full path of a library that it would link, and the bare name of one that it
/// would not. rustc links through the same compiler, so its answer is the one that counts.
fn compiler_finds(library: &str) -> bool {
    let named = ["RUSTC_LINKER", "CC"]
        .into_iter()
        .filter_map(|name| env::var(name).ok());
    let usual = ["cc", "gcc", "clang"].into_iter().map(String::from);
    named.chain(usual).any(|compiler| {
        Command::new(compiler)
            .arg(format!("-print-file-name={library}"))
            .output()
            .is_ok_and(|out| {
                let path = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
                out.status.success() && path.is_absolute() && path.exists()
            })
    })
}

fn in_usual_directory(library: &str) -> bool {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    [
        "/usr/lib".into(),
        "/usr/lib64".into(),
        "/lib".into(),
        "/lib64".into(),
        "/usr/local/lib".into(),
        format!("/usr/lib/{arch}-linux-gnu"),
    ]
    .iter()
    .any(|directory: &String| Path::new(directory).join(library).exists())
}
