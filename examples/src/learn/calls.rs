//! Which calls take paths, and what each needs of them from Landlock (landlock(7)).
//!
//! Left out are the calls that Landlock does not decide about: stat(2), access(2), readlink(2), chdir(2), chmod(2), chown(2),
//! utimensat(2), setxattr(2) and their like need no grant.

/// One path of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// The argument with the directory that a relative path starts at; the working directory where there is none.
    pub(super) directory: Option<usize>,
    /// The argument with the path.
    pub(super) path: usize,
    /// What happens there.
    pub(super) needs: Needs,
}

/// What a call does with a path. Whatever is made, moved or removed is a change of the directory that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Opens, by the flags in this argument.
    Open(usize),
    /// Opens, by the flags in the structure that this argument points to.
    OpenHow(usize),
    /// Opens as creat(2).
    Create,
    /// Starts it.
    Execute,
    /// Changes what is there.
    Write,
    /// Makes it, where there is nothing.
    Make,
    /// Makes it, whether or not there is something.
    Replace,
    /// Takes it away, where it is there; otherwise the call fails.
    Take,
}

const fn plain(path: usize, needs: Needs) -> Operand {
    Operand {
        directory: None,
        path,
        needs,
    }
}

const fn at(directory: usize, path: usize, needs: Needs) -> Operand {
    Operand {
        directory: Some(directory),
        path,
        needs,
    }
}

/// The paths of a call, in the order in which they are looked at.
pub(super) fn operands(call: &str) -> &'static [Operand] {
    match call {
        "open" => &const { [plain(0, Needs::Open(1))] },
        "openat" => &const { [at(0, 1, Needs::Open(2))] },
        "openat2" => &const { [at(0, 1, Needs::OpenHow(2))] },
        "creat" => &const { [plain(0, Needs::Create)] },
        "execve" => &const { [plain(0, Needs::Execute)] },
        "execveat" => &const { [at(0, 1, Needs::Execute)] },
        "truncate" => &const { [plain(0, Needs::Write)] },
        "mkdir" | "mknod" => &const { [plain(0, Needs::Make)] },
        "mkdirat" | "mknodat" => &const { [at(0, 1, Needs::Make)] },
        "symlink" => &const { [plain(1, Needs::Make)] },
        "symlinkat" => &const { [at(1, 2, Needs::Make)] },
        "unlink" | "rmdir" => &const { [plain(0, Needs::Take)] },
        "unlinkat" => &const { [at(0, 1, Needs::Take)] },
        "link" => &const { [plain(0, Needs::Take), plain(1, Needs::Make)] },
        "linkat" => &const { [at(0, 1, Needs::Take), at(2, 3, Needs::Make)] },
        "rename" => &const { [plain(0, Needs::Take), plain(1, Needs::Replace)] },
        "renameat" | "renameat2" => &const { [at(0, 1, Needs::Take), at(2, 3, Needs::Replace)] },
        _ => &[],
    }
}

/// The argument by which a call says what it is to do. Such calls are allowed for what was asked, not as a whole.
pub(super) fn command(call: &str) -> Option<u8> {
    match call {
        "ioctl" | "fcntl" => Some(1),
        "prctl" | "personality" => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use varek_seccomp::Arch;

    use super::*;

    #[test]
    fn every_path_is_within_the_arguments_of_a_call_that_exists() {
        let mut with_paths = 0;
        for (_, call) in Arch::X86_64.calls() {
            for operand in operands(call) {
                with_paths += 1;
                assert!(operand.path < 4, "{call}");
                // The descriptor stands right before its path.
                let before = operand.directory.map(|directory| directory + 1);
                let at = call.contains("at") && !["creat", "truncate"].contains(&call);
                assert_eq!(before.is_some(), at, "{call}");
                assert!(before.is_none_or(|path| path == operand.path), "{call}");
            }
        }
        assert!(with_paths > 20);
        for call in ["ioctl", "fcntl", "prctl", "personality"] {
            assert!(command(call).is_some() && Arch::X86_64.number(call).is_some());
        }
    }
}
