//! Writing an initramfs: a cpio archive in the format `newc`, which the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive that grows by one entry at a time; directories come before what is in them.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// A regular file that everybody may read, and execute where that is asked for.
    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) {
        let mode = if executable { 0o100_755 } else { 0o100_644 };
        self.entry(path, mode, content);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let name = length(path.as_bytes()) + 1;
        // Number, mode, uid, gid, links, time, size, device, device of a node, name, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length(content),
            0,
            0,
            0,
            0,
            name,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/x", true, b"abcde");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);

        let directory = &bytes[..116];
        assert!(directory.starts_with(b"07070100000001000041ed"));
        // The header has 110 bytes; the name follows with its zero.
        assert_eq!(&directory[110..], b"bin\0\0\0");

        let file = &bytes[116..];
        assert!(file.starts_with(b"07070100000002000081ed"));
        assert_eq!(&file[54..62], b"00000005");
        assert_eq!(&file[94..102], b"00000006");
        assert_eq!(&file[110..124], b"bin/x\0abcde\0\0\0");
        assert!(file[124..].starts_with(b"070701"));
    }
}
