//! Calls that change modes, owners, times and extended attributes of files, from their registers. Pure.

/// Which file, and what is to become of it. Addresses are the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) file: File,
    pub(crate) change: Change,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// What is open under this number.
    Open(i32),
    /// A path, from the directory that is open at `at` (or `AT_FDCWD`), with flags of the kind `AT_`.
    Path { at: i32, address: u64, flags: i32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Mode(u32),
    Owner {
        uid: u32,
        gid: u32,
    },
    Times(Times),
    SetAttribute {
        name: u64,
        value: u64,
        size: u64,
        flags: u32,
    },
    RemoveAttribute {
        name: u64,
    },
}

/// Where two times are; at address 0 they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// `struct utimbuf`
    Seconds(u64),
    /// `struct timeval[2]`
    Micros(u64),
    /// `struct timespec[2]`
    Nanos(u64),
}

/// The flags that any of these calls knows.
pub(crate) const EITHER: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

impl Call {
    /// `None` for every other call.
    pub(crate) fn of(name: &str, args: &[u64; 6]) -> Option<Self> {
        // The kernel takes the lower halves of what is an int or an id.
        let number = |index: usize| args.get(index).map_or(0, |arg| (arg & 0xffff_ffff) as u32);
        let int = |index| number(index).cast_signed();
        let [first, second, third, fourth, ..] = *args;
        let here = |flags| File::Path {
            at: libc::AT_FDCWD,
            address: first,
            flags,
        };
        let at = |flags| File::Path {
            at: int(0),
            address: second,
            flags,
        };
        let open = File::Open(int(0));
        // Without a path it is about the descriptor itself.
        let at_or_open = |flags| match (int(0), second) {
            (libc::AT_FDCWD, _) | (_, 1..) => at(flags),
            (number, 0) => File::Open(number),
        };
        let link = libc::AT_SYMLINK_NOFOLLOW;
        let owner = |index| Change::Owner {
            uid: number(index),
            gid: number(index + 1),
        };
        let set = Change::SetAttribute {
            name: second,
            value: third,
            size: fourth,
            flags: number(4),
        };
        let remove = Change::RemoveAttribute { name: second };
        let (file, change) = match name {
            "chmod" => (here(0), Change::Mode(number(1))),
            "fchmod" => (open, Change::Mode(number(1))),
            "fchmodat" => (at(0), Change::Mode(number(2))),
            "fchmodat2" => (at(int(3)), Change::Mode(number(2))),
            "chown" => (here(0), owner(1)),
            "lchown" => (here(link), owner(1)),
            "fchown" => (open, owner(1)),
            "fchownat" => (at(int(4)), owner(2)),
            "utime" => (here(0), Change::Times(Times::Seconds(second))),
            "utimes" => (here(0), Change::Times(Times::Micros(second))),
            "futimesat" => (at_or_open(0), Change::Times(Times::Micros(third))),
            "utimensat" => (at_or_open(int(3)), Change::Times(Times::Nanos(third))),
            "setxattr" => (here(0), set),
            "lsetxattr" => (here(link), set),
            "fsetxattr" => (open, set),
            "removexattr" => (here(0), remove),
            "lremovexattr" => (here(link), remove),
            "fremovexattr" => (open, remove),
            _ => return None,
        };
        Some(Self { file, change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CWD: u64 = 0xffff_ff9c;

    fn call(name: &str, args: [u64; 6]) -> (File, Change) {
        let Call { file, change } = Call::of(name, &args).unwrap();
        (file, change)
    }

    #[test]
    fn a_call_is_read_as_the_kernel_reads_it() {
        let garbage = 0xdead_beef_0000_0000;
        let path = |at, address, flags| File::Path { at, address, flags };
        let cases = [
            (
                call("chmod", [7, garbage | 0o644, 9, 9, 9, 9]),
                (path(libc::AT_FDCWD, 7, 0), Change::Mode(0o644)),
            ),
            (
                call("fchmod", [garbage | 3, 0o600, 9, 9, 9, 9]),
                (File::Open(3), Change::Mode(0o600)),
            ),
            (
                call("fchmodat", [CWD, 7, 0o600, 0x100, 9, 9]),
                (path(libc::AT_FDCWD, 7, 0), Change::Mode(0o600)),
            ),
            (
                call("fchmodat2", [4, 7, 0o600, 0x100, 9, 9]),
                (path(4, 7, 0x100), Change::Mode(0o600)),
            ),
            (
                call("lchown", [7, garbage | 0x3e8, 0xffff_ffff, 9, 9, 9]),
                (
                    path(libc::AT_FDCWD, 7, 0x100),
                    Change::Owner {
                        uid: 0x3e8,
                        gid: u32::MAX,
                    },
                ),
            ),
            (
                call("utimensat", [4, 0, 8, 0, 9, 9]),
                (File::Open(4), Change::Times(Times::Nanos(8))),
            ),
            (
                call("utimensat", [CWD, 0, 8, 0x1000, 9, 9]),
                (
                    path(libc::AT_FDCWD, 0, 0x1000),
                    Change::Times(Times::Nanos(8)),
                ),
            ),
            (
                call("futimesat", [4, 7, 0, 9, 9, 9]),
                (path(4, 7, 0), Change::Times(Times::Micros(0))),
            ),
            (
                call("fremovexattr", [4, 7, 0, 9, 9, 9]),
                (File::Open(4), Change::RemoveAttribute { name: 7 }),
            ),
        ];
        for (found, meant) in cases {
            assert_eq!(found, meant);
        }
        for name in ["kill", "setxattrat", "file_setattr", "truncate", "statx"] {
            assert_eq!(Call::of(name, &[0; 6]), None, "{name}");
        }
    }
}
