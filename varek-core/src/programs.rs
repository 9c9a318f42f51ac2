//! What a program consists of: the files without which the kernel and its loader cannot start it.
//!
//! Its interpreter where it is a script, the loader that it names (`PT_INTERP`), and the libraries that it is linked with,
//! theirs included (`DT_NEEDED`). A library's name is looked up wherever a loader would look; every file of that name is
//! taken, since which one a loader chooses depends on its cache and the processor.
//!
//! Files are read and never executed, unlike with ldd(1). They are the embedder's choice, not the guest's.
//!
//! # References
//!
//! elf(5), ld.so(8), execve(2) on interpreter scripts.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{ElfFile, FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};

/// The files of one program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// What the kernel executes: the program, its interpreter, their loaders.
    pub(crate) executed: BTreeSet<PathBuf>,
    /// What a loader maps.
    pub(crate) libraries: BTreeSet<PathBuf>,
}

/// A script's interpreter may be a script, four times (execve(2)).
const SCRIPTS: usize = 5;

/// More libraries than any program has; the files of a broken one could go round in a circle.
const MOST_LIBRARIES: usize = 4096;

/// Where loaders look for libraries without being told: glibc's and musl's directories, with Debian's for each architecture.
const LIBRARIES: [&str; 9] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Where administrators name further ones: glibc's and musl's files.
const SETTINGS: [&str; 3] = [
    "/etc/ld.so.conf",
    "/etc/ld-musl-x86_64.path",
    "/etc/ld-musl-aarch64.path",
];

impl Parts {
    /// The parts of the program at `path`, which must be there. What it needs and this host has not is left out.
    pub(crate) fn of(path: &Path) -> Self {
        let mut parts = Self::default();
        let mut places = Vec::new();
        let mut next = Some(path.to_owned());
        for _ in 0..SCRIPTS {
            let Some(program) = next.take() else { break };
            next = File::open(&program).ok().and_then(first_line);
            if next.is_none() {
                parts.add_linked(&program, &mut places);
            }
            parts.executed.insert(program);
        }
        parts
    }

    /// The loader and the libraries of an ELF file.
    fn add_linked(&mut self, program: &Path, places: &mut Vec<PathBuf>) {
        let Some(linked) = Linked::read(program) else {
            return;
        };
        if places.is_empty() {
            *places = standard_places();
        }
        self.executed
            .extend(linked.loader.clone().filter(|loader| loader.exists()));
        // By RPATH the program says where the libraries of its libraries are, too.
        let of_program = linked.places.clone();
        let mut left = vec![linked];
        while let Some(linked) = left.pop() {
            for name in &linked.needed {
                let own = linked.places.iter().chain(&of_program);
                let found: Vec<_> = if name.is_absolute() {
                    vec![name.clone()]
                } else {
                    own.chain(&*places).map(|place| place.join(name)).collect()
                };
                for library in found.into_iter().filter(|library| library.is_file()) {
                    if self.libraries.len() < MOST_LIBRARIES
                        && self.libraries.insert(library.clone())
                    {
                        left.extend(Linked::read(&library));
                    }
                }
            }
        }
    }
}

/// What an ELF file of 64 bits says of others.
#[derive(Debug)]
struct Linked {
    loader: Option<PathBuf>,
    needed: Vec<PathBuf>,
    /// Its RPATH and RUNPATH.
    places: Vec<PathBuf>,
}

impl Linked {
    /// `None` where the file is not one, or cannot be read.
    fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = ElfFile::<FileHeader64<Endianness>, _>::parse(&cache).ok()?;
        let endian = file.endian();
        let segments = file.elf_header().program_headers(endian, &cache).ok()?;
        let mut loaders = segments
            .iter()
            .filter_map(|segment| segment.interpreter(endian, &cache).ok().flatten());
        let loader = loaders.next().map(to_path);
        let mut linked = Self {
            loader,
            needed: Vec::new(),
            places: Vec::new(),
        };
        let table = file.elf_dynamic_table().ok()?;
        let real = path.canonicalize().ok()?;
        let origin = real.parent()?.to_str();
        for entry in &table {
            let Ok(text) = table.string(entry) else {
                continue;
            };
            match entry.tag {
                DT_NEEDED => linked.needed.push(to_path(text)),
                DT_RPATH | DT_RUNPATH => {
                    let text = String::from_utf8_lossy(text);
                    let places = text.split(':').filter_map(|place| {
                        let origin = origin.unwrap_or_default();
                        let place = place
                            .replace("${ORIGIN}", origin)
                            .replace("$ORIGIN", origin);
                        Some(PathBuf::from(place)).filter(|place| place.is_absolute())
                    });
                    linked.places.extend(places);
                }
                _ => {}
            }
        }
        Some(linked)
    }
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// What the `#!` line of a script names.
pub(crate) fn first_line(mut file: File) -> Option<PathBuf> {
    let mut start = [0; 256];
    let length = file.read(&mut start).ok()?;
    let line = start.get(..length)?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
    let path = line.split(|byte| matches!(byte, b' ' | b'\t')).next()?;
    (!path.is_empty()).then(|| to_path(path))
}

/// Every directory in which a loader looks, with glibc's for processors of one level each.
fn standard_places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = LIBRARIES.map(PathBuf::from).to_vec();
    for settings in SETTINGS {
        add_settings(Path::new(settings), &mut places, 0);
    }
    let levels = places.iter().flat_map(|place| {
        let levels = std::fs::read_dir(place.join("glibc-hwcaps"));
        levels.into_iter().flatten().flatten()
    });
    let levels: Vec<_> = levels.map(|level| level.path()).collect();
    places.extend(levels);
    places
}

/// The directories of `ld.so.conf`, and of the files that it includes by a `*` in their names; of musl's file, whose lines
/// are directories too.
fn add_settings(file: &Path, places: &mut Vec<PathBuf>, depth: usize) {
    const DEEPEST: usize = 3;
    let Ok(text) = std::fs::read_to_string(file) else {
        return;
    };
    for line in text.split(['\n', ':', ',']).map(str::trim) {
        match line.strip_prefix("include ") {
            Some(pattern) if depth < DEEPEST => {
                // Absolute, or beside the file.
                let above = file.parent().unwrap_or(Path::new("/"));
                for included in matching(&above.join(pattern.trim())) {
                    add_settings(&included, places, depth + 1);
                }
            }
            _ if line.starts_with('/') => places.push(PathBuf::from(line)),
            _ => {}
        }
    }
}

/// The files whose last name matches one with at most one `*` in it.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(OsStr::to_str);
    let Some((start, end)) = name.and_then(|name| name.split_once('*')) else {
        return vec![pattern.to_owned()];
    };
    let above = pattern.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    let matches = entries.filter(|entry| {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(start));
        rest.is_some_and(|rest| rest.ends_with(end))
    });
    matches.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_has_its_loader_and_every_library_that_the_loader_maps() {
        let program = Path::new("/bin/ls");
        let parts = Parts::of(program);
        assert!(parts.executed.contains(program));
        let ldd = Command::new("ldd").arg(program).output();
        let Some(ldd) = ldd.ok().filter(|ldd| ldd.status.success()) else {
            eprintln!("not run: this host has no ldd, or its programs are static");
            return;
        };
        let real = |paths: &BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
            paths
                .iter()
                .map(|path| path.canonicalize().unwrap())
                .collect()
        };
        let all = [real(&parts.executed), real(&parts.libraries)];
        let mut mapped = 0;
        for path in String::from_utf8(ldd.stdout).unwrap().split_whitespace() {
            if path.starts_with('/') {
                let path = Path::new(path).canonicalize().unwrap();
                assert!(
                    all.iter().any(|paths| paths.contains(&path)),
                    "{path:?} {parts:?}"
                );
                mapped += 1;
            }
        }
        assert!(mapped >= 2, "a loader and a library");
        assert!(parts.executed.len() >= 2, "{parts:?}");
    }

    #[test]
    fn a_script_has_its_interpreter_with_what_that_is_linked_with() {
        let place = tempfile::tempdir().unwrap();
        let [outer, inner, circle] =
            ["outer", "inner", "circle"].map(|name| place.path().join(name));
        std::fs::write(&inner, "#! /bin/sh -e\n").unwrap();
        std::fs::write(&outer, format!("#!{}\n", inner.display())).unwrap();
        std::fs::write(&circle, format!("#!{}", circle.display())).unwrap();
        let parts = Parts::of(&outer);
        let shell = Parts::of(Path::new("/bin/sh"));
        assert!(parts.executed.is_superset(&shell.executed), "{parts:?}");
        assert_eq!(parts.executed.len(), shell.executed.len() + 2);
        assert_eq!(parts.libraries, shell.libraries);
        assert_eq!(Parts::of(&circle).executed, BTreeSet::from([circle]));
    }

    #[test]
    fn what_is_no_program_has_no_parts_but_itself() {
        let place = tempfile::tempdir().unwrap();
        for contents in [
            &b""[..],
            b"#!",
            b"#! \n",
            b"\x7fELF",
            b"\x7fELF\x02\x01\x01 truncated",
            &[0xff; 4096],
        ] {
            let file = place.path().join("file");
            std::fs::write(&file, contents).unwrap();
            let parts = Parts::of(&file);
            assert_eq!(parts.executed, BTreeSet::from([file]), "{contents:?}");
            assert_eq!(parts.libraries, BTreeSet::new());
        }
    }

    #[test]
    fn settings_of_loaders_are_read_with_what_they_include() {
        let place = tempfile::tempdir().unwrap();
        let main = place.path().join("ld.so.conf");
        std::fs::create_dir(place.path().join("d")).unwrap();
        std::fs::write(
            &main,
            "# a comment\n/opt/one\ninclude d/*.conf\ninclude ld.so.conf\nrelative\n",
        )
        .unwrap();
        std::fs::write(place.path().join("d/a.conf"), "/opt/two\n").unwrap();
        std::fs::write(place.path().join("d/a.other"), "/opt/three\n").unwrap();
        symlink("nowhere", place.path().join("d/b.conf")).unwrap();
        let mut places = Vec::new();
        add_settings(&main, &mut places, 0);
        places.sort();
        places.dedup();
        assert_eq!(places, ["/opt/one", "/opt/two"].map(PathBuf::from));
    }
}
