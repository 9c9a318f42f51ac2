//! What the workspace needs from a machine, and how each need is tried.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::packages::Manager;
use crate::process;

/// Where the sandbox looks up a guest's program. The caller's own PATH does not count: what it
/// finds first may be a shim, that is a script that starts another program, which the sandbox
/// refuses.
pub(crate) const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Programs that only some tests use, and what happens without them.
pub(crate) const OPTIONAL: &[(&str, &str)] = &[
    ("bash", "tests with a bash guest report \"not run\""),
    ("git", "tests with a git guest report \"not run\""),
];

/// One thing that has to be there.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    /// In the order of [`Manager::ALL`].
    packages: [&'static [&'static str]; 5],
    check: fn(&Probe) -> Result<(), String>,
}

/// Everything without which the workspace does not build or its tests do not start. A later need
/// may rely on an earlier one.
pub(crate) const NEEDS: &[Need] = &[
    Need {
        name: "a C compiler",
        purpose: "links Rust programs, and builds the C guests of the tests",
        packages: [
            &["gcc", "libc6-dev"],
            &["gcc"],
            &["gcc"],
            &["gcc", "musl-dev"],
            &["gcc"],
        ],
        check: Probe::c_compiler,
    },
    Need {
        name: "static C libraries and the kernel's headers",
        purpose: "tests build guests that need no loader",
        packages: [
            &["libc6-dev", "linux-libc-dev"],
            &["glibc-static", "kernel-headers"],
            &["glibc", "linux-api-headers"],
            &["musl-dev", "linux-headers"],
            &["glibc-devel-static", "linux-glibc-devel"],
        ],
        check: Probe::static_c,
    },
    Need {
        name: "libseccomp's development files, 2.5 or later",
        purpose: "varek-seccomp compiles policies with this library",
        packages: [
            &["libseccomp-dev"],
            &["libseccomp-devel"],
            &["libseccomp"],
            &["libseccomp-dev"],
            &["libseccomp-devel"],
        ],
        check: Probe::libseccomp,
    },
    Need {
        name: "python3 as an interpreter in the sandbox's search path",
        purpose: "most guests of tests and examples are Python programs",
        packages: [
            &["python3"],
            &["python3"],
            &["python"],
            &["python3"],
            &["python3"],
        ],
        check: Probe::python,
    },
];

/// What the guests of some tests are made with or run by. They are worth having and nothing depends on them.
pub(crate) const GUESTS: &[Need] = &[
    Need {
        name: "node",
        purpose: "runs guests of tests",
        packages: [
            &["nodejs"],
            &["nodejs"],
            &["nodejs"],
            &["nodejs"],
            &["nodejs"],
        ],
        check: |_| listed("node"),
    },
    Need {
        name: "a JDK",
        purpose: "builds and runs guests of tests",
        packages: [
            &["default-jdk-headless"],
            &["java-latest-openjdk-devel"],
            &["jdk-openjdk"],
            &["openjdk21"],
            &["java-21-openjdk-devel"],
        ],
        check: |_| listed("java").and_then(|()| listed("javac")),
    },
    Need {
        name: "go",
        purpose: "builds guests of tests",
        packages: [&["golang-go"], &["golang"], &["go"], &["go"], &["go"]],
        check: |_| listed("go"),
    },
    Need {
        name: "musl-gcc",
        purpose: "builds guests of tests with another C library",
        // Where musl is the C library there is no such command.
        packages: [&["musl-tools"], &["musl-gcc"], &["musl"], &[], &[]],
        check: |_| listed("musl-gcc"),
    },
    Need {
        name: "chromium with its driver",
        purpose: "tests look at pages in a browser",
        packages: [
            &["chromium", "chromium-driver"],
            &["chromium", "chromedriver"],
            &["chromium"],
            &["chromium", "chromium-chromedriver"],
            &["chromium", "chromedriver"],
        ],
        check: |_| listed("chromium").and_then(|()| listed("chromedriver")),
    },
    Need {
        name: "npm",
        purpose: "installs a client that a server of the examples is tested with",
        packages: [&["npm"], &["nodejs-npm"], &["npm"], &["npm"], &["npm"]],
        check: |_| listed("npm"),
    },
];

/// Whether the sandbox finds the program.
fn listed(name: &str) -> Result<(), String> {
    program(name)
        .map(drop)
        .ok_or_else(|| format!("There is no {name} in {SEARCH_PATH}."))
}

/// What virtual machines are run with. Only Debian's packages are named: the kernels are Debian's.
pub(crate) const MACHINES: &[Need] = &[
    Need {
        name: "qemu for x86_64",
        purpose: "runs the tests on other kernels",
        packages: [&["qemu-system-x86"], &[], &[], &[], &[]],
        check: |_| found(QEMU),
    },
    Need {
        name: "a static busybox",
        purpose: "is what a machine boots into",
        packages: [&["busybox-static"], &[], &[], &[], &[]],
        check: |_| static_busybox(),
    },
    Need {
        name: "depmod",
        purpose: "lists what a kernel's modules depend on",
        packages: [&["kmod"], &[], &[], &[], &[]],
        check: |_| found("depmod"),
    },
];

/// Part of qemu's packages up to Debian 12, and a package of its own since.
pub(crate) const FILE_SERVER: &[Need] = &[Need {
    name: "virtiofsd",
    purpose: "shows a machine the host's files",
    packages: [&["virtiofsd"], &[], &[], &[], &[]],
    check: |_| {
        virtiofsd()
            .map(|_| ())
            .ok_or_else(|| "There is no virtiofsd.".to_owned())
    },
}];

/// The program that runs a machine.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// The file server, which distributions keep in different places outside of the search path.
pub(crate) fn virtiofsd() -> Option<PathBuf> {
    let places = "/usr/libexec:/usr/lib/qemu:/usr/lib/virtiofsd:/usr/lib:/usr/local/libexec";
    process::look_up("virtiofsd", OsStr::new(places)).or_else(|| process::find("virtiofsd"))
}

fn found(name: &str) -> Result<(), String> {
    process::find(name)
        .map(|_| ())
        .ok_or_else(|| format!("There is no {name}."))
}

/// One that needs no loader, and has what stage 1 and the unpacking of modules use.
fn static_busybox() -> Result<(), String> {
    let path = process::find("busybox").ok_or("There is no busybox.")?;
    let bytes = std::fs::read(&path).map_err(|error| format!("busybox: {error}."))?;
    let loader = b"/ld-linux";
    if bytes.windows(loader.len()).any(|window| window == loader) {
        return Err("The busybox that is installed is not static.".to_owned());
    }
    Ok(())
}

impl Need {
    fn packages(&self, manager: Manager) -> &'static [&'static str] {
        let named = Manager::ALL.into_iter().zip(self.packages);
        named
            .into_iter()
            .find(|(of, _)| *of == manager)
            .map_or(&[], |(_, packages)| packages)
    }

    /// The package under each manager's name for it, for a machine that has none of them.
    pub(crate) fn anywhere(&self) -> String {
        let named = Manager::ALL.into_iter().zip(self.packages);
        let named =
            named.map(|(of, packages)| format!("{} ({})", packages.join(" "), of.program()));
        named.collect::<Vec<_>>().join(", ")
    }
}

/// The packages of several needs, each once.
pub(crate) fn packages(needs: &[&Need], manager: Manager) -> Vec<&'static str> {
    let mut all = Vec::new();
    for package in needs.iter().flat_map(|need| need.packages(manager)) {
        if !all.contains(package) {
            all.push(*package);
        }
    }
    all
}

/// The program that the sandbox would start under that name.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    process::look_up(name, OsStr::new(SEARCH_PATH))
}

/// Tries needs, with a directory for what is compiled on the way.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) scratch: PathBuf,
}

impl Probe {
    /// The needs that are not met, each with what was seen.
    pub(crate) fn missing<'n>(&self, needs: &'n [Need]) -> Vec<(&'n Need, String)> {
        needs
            .iter()
            .filter_map(|need| (need.check)(self).err().map(|reason| (need, reason)))
            .collect()
    }

    fn c_compiler(&self) -> Result<(), String> {
        self.compile(
            "plain",
            "#include <stdio.h>\nint main(void) { return 0; }\n",
            &[],
        )
    }

    fn static_c(&self) -> Result<(), String> {
        let source = "#include <stdio.h>\n#include <linux/seccomp.h>\n#include <sys/syscall.h>\n\
                      int main(void) { return 0; }\n";
        self.compile("static", source, &["-static"])
    }

    fn libseccomp(&self) -> Result<(), String> {
        let source = "#include <seccomp.h>\n\
                      #if SCMP_VER_MAJOR * 100 + SCMP_VER_MINOR < 205\n\
                      #error libseccomp is older than 2.5\n\
                      #endif\n\
                      int main(void) { return seccomp_version() == 0; }\n";
        // The binding's own variable for a library outside the compiler's search path.
        let library = std::env::var("LIBSECCOMP_LIB_PATH").ok();
        let search = library.map(|directory| format!("-L{directory}"));
        if search.is_none() {
            let found = Command::new("cc")
                .arg("-print-file-name=libseccomp.so")
                .stdin(Stdio::null())
                .output()
                .map_err(|error| format!("cc cannot be started: {error}."))?;
            // A compiler that does not find the library repeats the bare name.
            if !found.stdout.starts_with(b"/") {
                return Err("The compiler finds no libseccomp.so.".to_owned());
            }
        }
        let arguments: Vec<&str> = search.as_deref().into_iter().chain(["-lseccomp"]).collect();
        self.compile("seccomp", source, &arguments)
    }

    fn python(&self) -> Result<(), String> {
        let Some(path) = program("python3") else {
            return Err(format!("There is no python3 in {SEARCH_PATH}."));
        };
        let shown = path.display();
        let mut magic = [0; 4];
        File::open(&path)
            .and_then(|mut file| file.read_exact(&mut magic))
            .map_err(|error| format!("{shown} cannot be read: {error}."))?;
        if &magic != b"\x7fELF" {
            return Err(format!(
                "{shown} is a script that starts the interpreter, not the interpreter; a guest \
                 may start a program only once."
            ));
        }
        let output = Command::new(&path)
            .args(["-I", "-c", "print(2 + 2)"])
            .current_dir(&self.scratch)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{shown} cannot be started: {error}."))?;
        if output.stdout.trim_ascii() != b"4" {
            return Err(format!(
                "{shown} does not run a Python program: {}.",
                output.status
            ));
        }
        Ok(())
    }

    /// Compiles and links a program; the reason for a failure is the compiler's first error.
    fn compile(&self, name: &str, source: &str, arguments: &[&str]) -> Result<(), String> {
        let start = |error| format!("cc cannot be started: {error}.");
        let mut compiler = Command::new("cc")
            .args(["-x", "c", "-", "-o"])
            .arg(self.scratch.join(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        if let Some(mut stdin) = compiler.stdin.take() {
            // A compiler that stopped early says why itself, below.
            let _ = stdin.write_all(source.as_bytes());
        }
        let output = compiler.wait_with_output().map_err(start)?;
        if output.status.success() {
            return Ok(());
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        let first = messages
            .lines()
            .find(|line| line.contains("error") || line.contains("cannot"));
        Err(format!(
            "cc says: {}.",
            first
                .or(messages.lines().next())
                .unwrap_or("nothing")
                .trim()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_two_needs_share_is_named_once() {
        let all: Vec<&Need> = NEEDS.iter().collect();
        assert_eq!(
            packages(&all, Manager::Apt),
            [
                "gcc",
                "libc6-dev",
                "linux-libc-dev",
                "libseccomp-dev",
                "python3"
            ]
        );
        assert_eq!(
            packages(&all, Manager::Apk),
            [
                "gcc",
                "musl-dev",
                "linux-headers",
                "libseccomp-dev",
                "python3"
            ]
        );
    }

    #[test]
    fn every_need_has_a_package_under_every_manager() {
        for need in NEEDS {
            for manager in Manager::ALL {
                assert!(
                    !need.packages(manager).is_empty(),
                    "{} under {manager:?}",
                    need.name
                );
            }
        }
    }

    #[test]
    fn a_header_that_is_not_there_is_seen_and_named() {
        let scratch = std::env::temp_dir();
        let probe = Probe {
            scratch: scratch.clone(),
        };
        let name = format!("xtask-probe-{}", std::process::id());
        let source = "#include <no_such_header_of_varek.h>\nint main(void) { return 0; }\n";
        let reason = probe.compile(&name, source, &[]).unwrap_err();
        assert!(reason.contains("no_such_header_of_varek.h"), "{reason}");

        // The same program without the header compiles, so it was the header.
        probe
            .compile(&name, "int main(void) { return 0; }\n", &[])
            .unwrap();
        std::fs::remove_file(scratch.join(name)).unwrap();
    }
}
