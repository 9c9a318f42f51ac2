//! What the kernel executes beside a program: the interpreters that scripts name, and the dynamic loader.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};

/// How many interpreters the kernel goes through (`linux/binfmts.h`).
const DEEPEST: usize = 5;
/// Bytes of a script that the kernel looks at (BINPRM_BUF_SIZE).
const FIRST_LINE: usize = 256;

/// The images that a start of this program needs beside the program itself.
pub(super) fn interpreters(program: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for _ in 0..DEEPEST {
        let image = found.last().map_or(program, PathBuf::as_path);
        let Ok(file) = File::open(image) else {
            break;
        };
        if let Some(interpreter) = script(&file) {
            found.push(interpreter);
        } else {
            found.extend(loader(file));
            break;
        }
    }
    found
}

/// The first word of the line after `#!`.
fn script(file: &File) -> Option<PathBuf> {
    let mut line = [0; FIRST_LINE];
    let read = file.read_at(&mut line, 0).ok()?;
    let line = line.get(..read)?.strip_prefix(b"#!")?;
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte))?;
    let word = line.get(start..)?;
    let end = word.iter().position(|byte| blank(byte) || *byte == b'\n');
    let word = word.get(..end.unwrap_or(word.len()))?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// `PT_INTERP` of an ELF file.
fn loader(file: File) -> Option<PathBuf> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?;
    let mut names = segments
        .iter()
        .filter_map(|segment| segment.interpreter(endian, &cache).ok().flatten());
    names
        .next()
        .map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_lead_to_their_interpreters_and_those_to_the_loader() {
        let directory = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let loader = interpreters(&own);
        assert!(loader.len() <= 1, "{loader:?}");
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let inner = write("inner", format!("#! \t{} -x\nrest", own.display()));
        let outer = write("outer", format!("#!{}", inner.display()));
        let expected: Vec<_> = [inner, own].into_iter().chain(loader).collect();
        assert_eq!(interpreters(&outer), expected);
        assert!(interpreters(&write("text", "no program".into())).is_empty());
        assert!(interpreters(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_script_that_names_itself_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("loop");
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert_eq!(interpreters(&path).len(), DEEPEST);
    }
}
