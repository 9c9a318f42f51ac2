//! Architectures, call numbers and the names of foreign ABIs.

use std::fmt;

use crate::table::{AARCH64, Runs, X86_64};

/// `AUDIT_ARCH_X86_64`; x32 calls carry it too, with [`X32_BIT`] in the number.
const AUDIT_X86_64: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`, little endian.
const AUDIT_AARCH64: u32 = 0xc000_00b7;
/// `AUDIT_ARCH_I386`: int 0x80 and 32-bit programs on x86_64.
const AUDIT_I386: u32 = 0x4000_0003;
/// `AUDIT_ARCH_ARM`: 32-bit programs on aarch64.
const AUDIT_ARM: u32 = 0x4000_0028;

/// Set in the number of every x32 call (`__X32_SYSCALL_BIT`).
pub(crate) const X32_BIT: u32 = 0x4000_0000;

/// An architecture that policies compile for.
///
/// Programs for either one compile on any Linux host: compiling is a pure computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Arch {
    /// 64-bit x86. The x32 ABI is not part of it and never takes effect.
    X86_64,
    /// 64-bit Arm, little endian.
    Aarch64,
}

impl Arch {
    /// Every architecture that compiles.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture that this build runs on, where it is one that compiles.
    pub const fn native() -> Option<Self> {
        if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
            Some(Self::X86_64)
        } else if cfg!(all(
            target_arch = "aarch64",
            target_pointer_width = "64",
            target_endian = "little"
        )) {
            Some(Self::Aarch64)
        } else {
            None
        }
    }

    /// The kernel's `AUDIT_ARCH_*` value, as in `seccomp_data.arch`.
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => AUDIT_X86_64,
            Self::Aarch64 => AUDIT_AARCH64,
        }
    }

    /// The number of the call with this name.
    pub fn number(self, name: &str) -> Option<u32> {
        self.calls()
            .find(|(_, known)| *known == name)
            .map(|(number, _)| number)
    }

    /// The name of the call with this number.
    pub fn name(self, number: u32) -> Option<&'static str> {
        self.runs().iter().find_map(|(first, names)| {
            names
                .get(usize::try_from(number.checked_sub(*first)?).ok()?)
                .copied()
        })
    }

    /// The highest number that this build has a name for (Linux 6.18).
    ///
    /// Numbers above it, and the gaps below it, are answered with `ENOSYS`, as a kernel without the call
    /// would: libc then falls back to older calls.
    pub const fn newest(self) -> u32 {
        match self {
            Self::X86_64 | Self::Aarch64 => 469,
        }
    }

    /// Every number and name, by number.
    pub fn calls(self) -> impl Iterator<Item = (u32, &'static str)> {
        self.runs()
            .iter()
            .flat_map(|(first, names)| (*first..).zip(names.iter().copied()))
    }

    /// Whether a number carries the mark of an ABI that shares the architecture's audit value.
    pub(crate) const fn is_foreign(self, number: u32) -> bool {
        matches!(self, Self::X86_64) && number >= X32_BIT
    }

    const fn runs(self) -> Runs {
        match self {
            Self::X86_64 => X86_64,
            Self::Aarch64 => AARCH64,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        })
    }
}

/// Names the ABI and the call of a `seccomp_data` (or a notification): `("i386", Some("execve"))`.
///
/// The ABI is `x86_64`, `x32`, `i386`, `aarch64`, `arm` or `unknown (0x..)`. Names of x32, i386 and arm
/// calls come from the installed libseccomp, and are missing where it does not know them.
pub fn describe(audit_arch: u32, number: u32) -> (String, Option<String>) {
    match audit_arch {
        AUDIT_X86_64 if number >= X32_BIT => {
            let shared = || Arch::X86_64.name(number & !X32_BIT).map(String::from);
            (
                "x32".into(),
                foreign::name(foreign::Abi::X32, number).or_else(shared),
            )
        }
        AUDIT_X86_64 => ("x86_64".into(), Arch::X86_64.name(number).map(String::from)),
        AUDIT_AARCH64 => (
            "aarch64".into(),
            Arch::Aarch64.name(number).map(String::from),
        ),
        AUDIT_I386 => ("i386".into(), foreign::name(foreign::Abi::I386, number)),
        AUDIT_ARM => ("arm".into(), foreign::name(foreign::Abi::Arm, number)),
        other => (format!("unknown ({other:#x})"), None),
    }
}

#[cfg(target_os = "linux")]
mod foreign {
    use libseccomp::{ScmpArch, ScmpSyscall};

    #[derive(Clone, Copy)]
    pub(super) enum Abi {
        X32,
        I386,
        Arm,
    }

    pub(super) fn name(abi: Abi, number: u32) -> Option<String> {
        let arch = match abi {
            Abi::X32 => ScmpArch::X32,
            Abi::I386 => ScmpArch::X86,
            Abi::Arm => ScmpArch::Arm,
        };
        // Negative values are libseccomp's own pseudo numbers, which no guest can mean.
        let number = i32::try_from(number).ok()?;
        ScmpSyscall::from_raw_syscall(number)
            .get_name_by_arch(arch)
            .ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod foreign {
    #[derive(Clone, Copy)]
    pub(super) enum Abi {
        X32,
        I386,
        Arm,
    }

    pub(super) fn name(_abi: Abi, _number: u32) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_inverse_and_unique() {
        for arch in Arch::ALL {
            let calls: Vec<_> = arch.calls().collect();
            for (number, name) in &calls {
                assert_eq!(arch.number(name), Some(*number), "{arch} {name}");
                assert_eq!(arch.name(*number), Some(*name), "{arch} {number}");
            }
            assert_eq!(calls.last().map(|(number, _)| *number), Some(arch.newest()));
            assert!(calls.len() > 300, "{arch}");
        }
    }

    #[test]
    fn the_gaps_between_named_numbers_are_the_known_ones() {
        for (arch, gaps) in [
            (Arch::X86_64, &[337..=423][..]),
            (Arch::Aarch64, &[244..=259, 295..=423]),
        ] {
            for number in 0..=arch.newest() {
                let gap = gaps.iter().any(|gap| gap.contains(&number));
                assert_eq!(arch.name(number).is_none(), gap, "{number}");
            }
            assert_eq!(arch.name(arch.newest() + 1), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn numbers_agree_with_libseccomp_where_it_knows_the_name() {
        use libseccomp::{ScmpArch, ScmpSyscall};
        for (arch, scmp) in [
            (Arch::X86_64, ScmpArch::X8664),
            (Arch::Aarch64, ScmpArch::Aarch64),
        ] {
            let mut known = 0;
            for (number, name) in arch.calls() {
                let Ok(call) = ScmpSyscall::from_name_by_arch(name, scmp) else {
                    continue;
                };
                known += 1;
                assert_eq!(
                    call.as_raw_syscall(),
                    i32::try_from(number).unwrap(),
                    "{arch} {name}"
                );
            }
            assert!(known > 300, "{arch}: libseccomp knew {known} names");
            // And the other way round: no call of libseccomp's is missing from the table.
            for number in 0..=450 {
                if let Ok(name) = ScmpSyscall::from_raw_syscall(number).get_name_by_arch(scmp) {
                    assert_eq!(
                        arch.name(number.unsigned_abs()),
                        Some(name.as_str()),
                        "{arch}"
                    );
                }
            }
        }
    }

    #[test]
    fn foreign_abis_are_named() {
        let named = |audit, number| {
            let (abi, name) = describe(audit, number);
            (abi, name.unwrap_or_default())
        };
        assert_eq!(named(AUDIT_I386, 11), ("i386".into(), "execve".into()));
        assert_eq!(named(AUDIT_ARM, 11), ("arm".into(), "execve".into()));
        assert_eq!(named(AUDIT_X86_64, 59), ("x86_64".into(), "execve".into()));
        assert_eq!(
            named(AUDIT_X86_64, X32_BIT + 520),
            ("x32".into(), "execve".into())
        );
        assert_eq!(
            named(AUDIT_X86_64, X32_BIT + 39),
            ("x32".into(), "getpid".into())
        );
        assert_eq!(
            named(AUDIT_AARCH64, 221),
            ("aarch64".into(), "execve".into())
        );
        assert_eq!(describe(7, 7), ("unknown (0x7)".into(), None));
        assert_eq!(describe(AUDIT_X86_64, 9999), ("x86_64".into(), None));
    }
}
