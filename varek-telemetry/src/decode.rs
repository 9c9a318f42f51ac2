//! Denied calls as people write them.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod words;

use std::fmt;

use crate::{Denial, Signal};

/// What the bits of an argument mean.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no tables"))]
#[derive(Clone, Copy, Debug)]
enum Argument {
    /// A signed number of 32 bits: most `int`s.
    Int,
    /// A number of the register's width: sizes, offsets.
    Number,
    /// A descriptor, with AT_FDCWD by name.
    Descriptor,
    /// An address in the guest. What is there is not known.
    Address,
    /// Permission bits, in octal.
    Mode,
    /// A signal's number.
    Signal,
    /// One of these words.
    Word(&'static [(u64, &'static str)]),
    /// One of the words under the mask, and any of the flags beside it.
    WordAndFlags(
        u64,
        &'static [(u64, &'static str)],
        &'static [(u64, &'static str)],
    ),
    /// Any of these flags, with the word that says there is none of them.
    Flags(&'static str, &'static [(u64, &'static str)]),
    /// clone(2)'s first: flags, and a signal in the lowest byte.
    Clone,
}

/// Writes a call: its name, and its arguments as far as there is a table.
pub(crate) fn write(f: &mut dyn fmt::Write, denial: &Denial) -> fmt::Result {
    let known = match &denial.syscall {
        Some(name) if tables_hold(&denial.abi) => table(name, &denial.arguments),
        _ => None,
    };
    write!(f, "{}(", denial.name())?;
    match known {
        Some(kinds) => {
            for (index, (kind, value)) in kinds.iter().zip(denial.arguments).enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                one(f, *kind, value)?;
            }
        }
        None => {
            for (index, value) in denial.arguments.iter().enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                write!(f, "{value:#x}")?;
            }
        }
    }
    f.write_str(")")
}

/// Whether numbers mean under this ABI what they mean in this build's own constants. 32-bit ABIs have calls
/// of the same name with other arguments (mmap takes one address there).
fn tables_hold(abi: &str) -> bool {
    if cfg!(target_arch = "x86_64") {
        matches!(abi, "x86_64" | "x32")
    } else if cfg!(target_arch = "aarch64") {
        abi == "aarch64"
    } else {
        false
    }
}

#[cfg(target_os = "linux")]
fn table(name: &str, arguments: &[u64; 6]) -> Option<&'static [Argument]> {
    calls::arguments(name, arguments)
}

#[cfg(not(target_os = "linux"))]
fn table(_name: &str, _arguments: &[u64; 6]) -> Option<&'static [Argument]> {
    None
}

fn one(f: &mut dyn fmt::Write, kind: Argument, value: u64) -> fmt::Result {
    match kind {
        Argument::Int => write!(f, "{}", int(value)),
        Argument::Number => write!(f, "{value}"),
        Argument::Descriptor => match int(value) {
            -100 => f.write_str("AT_FDCWD"),
            number => write!(f, "{number}"),
        },
        Argument::Address if value == 0 => f.write_str("NULL"),
        Argument::Address => write!(f, "unverified:{value:#x}"),
        Argument::Mode => write!(f, "{:#o}", low(value)),
        Argument::Signal => signal(f, int(value)),
        Argument::Word(words) => word(f, words, low(value)),
        Argument::WordAndFlags(mask, words, list) => {
            let value = low(value);
            word(f, words, value & mask)?;
            flags(f, list, value & !mask, true)
        }
        Argument::Flags(none, _) if value == 0 => f.write_str(none),
        Argument::Flags(_, list) => flags(f, list, value, false),
        Argument::Clone => {
            let list = clone_flags();
            flags(f, list, value & !0xff, false)?;
            let sent = int(value & 0xff);
            if sent != 0 || value & !0xff == 0 {
                f.write_str(if value & !0xff == 0 { "" } else { "|" })?;
                signal(f, sent)?;
            }
            Ok(())
        }
    }
}

#[cfg(target_os = "linux")]
fn clone_flags() -> &'static [(u64, &'static str)] {
    words::CLONE
}

#[cfg(not(target_os = "linux"))]
fn clone_flags() -> &'static [(u64, &'static str)] {
    &[]
}

/// The kernel reads most arguments as 32 bits wide.
#[expect(clippy::cast_possible_truncation, reason = "this is what it is for")]
const fn int(value: u64) -> i32 {
    (value as u32).cast_signed()
}

const fn low(value: u64) -> u64 {
    value & 0xffff_ffff
}

fn signal(f: &mut dyn fmt::Write, number: i32) -> fmt::Result {
    match Signal(number).name() {
        Some(name) => f.write_str(name),
        None => write!(f, "{number}"),
    }
}

fn word(f: &mut dyn fmt::Write, words: &[(u64, &str)], value: u64) -> fmt::Result {
    match words.iter().find(|(number, _)| low(*number) == value) {
        Some((_, name)) => f.write_str(name),
        None if value < 1 << 16 => write!(f, "{value}"),
        None => write!(f, "{value:#x}"),
    }
}

/// Names joined by `|`, and what no name is known for as one number. A name that covers several bits comes
/// before those of its bits in the table.
fn flags(
    f: &mut dyn fmt::Write,
    list: &[(u64, &str)],
    mut value: u64,
    mut joined: bool,
) -> fmt::Result {
    for (bits, name) in list {
        if *bits != 0 && value & bits == *bits {
            f.write_str(if joined { "|" } else { "" })?;
            f.write_str(name)?;
            joined = true;
            value &= !bits;
        }
    }
    if value != 0 {
        f.write_str(if joined { "|" } else { "" })?;
        write!(f, "{value:#x}")?;
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use crate::{Answer, Denial};

    fn decoded(name: &str, arguments: [u64; 6]) -> String {
        let abi = std::env::consts::ARCH.to_owned();
        denial(name, abi, arguments).decoded()
    }

    fn denial(name: &str, abi: String, arguments: [u64; 6]) -> Denial {
        Denial {
            syscall: Some(name.to_owned()),
            number: 1,
            abi,
            arguments,
            thread: 1,
            answer: Answer::Errno(1),
            count: 1,
        }
    }

    fn wide(number: i32) -> u64 {
        i64::from(number).cast_unsigned()
    }

    #[test]
    fn arguments_of_denied_calls_read_as_people_write_them() {
        let address = 0x7fff_0000_1000;
        for (name, arguments, text) in [
            (
                "socket",
                [2, 0x8_0001, 0, 9, 9, 9],
                "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, 0)",
            ),
            (
                "socket",
                [16, 3, 77, 0, 0, 0],
                "socket(AF_NETLINK, SOCK_RAW, 77)",
            ),
            (
                "openat",
                [wide(-100), address, 0x8_0241, 0o644, 0, 0],
                "openat(AT_FDCWD, unverified:0x7fff00001000, O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0o644)",
            ),
            (
                "mmap",
                [0, 4096, 7, 0x22, wide(-1), 0],
                "mmap(NULL, 4096, PROT_READ|PROT_WRITE|PROT_EXEC, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0)",
            ),
            (
                "mprotect",
                [address, 4096, 0, 0, 0, 0],
                "mprotect(unverified:0x7fff00001000, 4096, PROT_NONE)",
            ),
            (
                "clone",
                [0x1000_0011, 0, 0, 0, 0, 0],
                "clone(CLONE_NEWUSER|SIGCHLD, NULL, NULL, ",
            ),
            ("clone", [17, 0, 0, 0, 0, 0], "clone(SIGCHLD, "),
            (
                "unshare",
                [0x1002_0000, 0, 0, 0, 0, 0],
                "unshare(CLONE_NEWNS|CLONE_NEWUSER)",
            ),
            (
                "ioctl",
                [1, 0x5412, address, 0, 0, 0],
                "ioctl(1, TIOCSTI, unverified:",
            ),
            (
                "ioctl",
                [1, 0xdead_beef, 3, 0, 0, 0],
                "ioctl(1, 0xdeadbeef, unverified:0x3)",
            ),
            (
                "prctl",
                [4, 1, 0, 0, 0, 0],
                "prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)",
            ),
            ("fcntl", [3, 8, wide(-5), 0, 0, 0], "fcntl(3, F_SETOWN, "),
            ("kill", [wide(-1), 9, 0, 0, 0, 0], "kill(-1, SIGKILL)"),
            ("kill", [12, 0, 0, 0, 0, 0], "kill(12, 0)"),
            ("tgkill", [1, 2, 64, 0, 0, 0], "tgkill(1, 2, 64)"),
            ("ptrace", [16, 5, 0, 0, 0, 0], "ptrace(PTRACE_ATTACH, 5, "),
            (
                "chmod",
                [address, 0o4755, 0, 0, 0, 0],
                "chmod(unverified:0x7fff00001000, 0o4755)",
            ),
            ("fork", [1, 2, 3, 4, 5, 6], "fork()"),
        ] {
            let got = decoded(name, arguments);
            assert!(got.starts_with(text), "{got}\n{text}");
        }
    }

    #[test]
    fn bits_without_a_name_are_never_left_out() {
        let got = decoded("mmap", [0, 1, 1 << 40 | 1, 1 << 50 | 2, 0, 0]);
        assert!(got.contains("PROT_READ|0x10000000000"), "{got}");
        assert!(got.contains("MAP_PRIVATE|0x4000000000000"), "{got}");
        let got = decoded("socket", [2, 1 | 1 << 30, 0, 0, 0, 0]);
        assert!(got.contains("SOCK_STREAM|0x40000000"), "{got}");
    }

    #[test]
    fn calls_without_a_table_and_foreign_architectures_show_their_registers() {
        let registers = "(0x1, 0x2, 0x3, 0x4, 0x5, 0x6)";
        let arguments = [1, 2, 3, 4, 5, 6];
        assert_eq!(
            decoded("brand_new", arguments),
            format!("brand_new{registers}")
        );
        let foreign = denial("socket", "unknown (0x1)".into(), arguments);
        assert_eq!(foreign.decoded(), format!("socket{registers}"));
        let unnamed = Denial {
            syscall: None,
            ..foreign
        };
        assert_eq!(unnamed.decoded(), format!("unknown (0x1):1{registers}"));
    }

    #[test]
    fn every_call_of_the_table_decodes_registers_of_any_value() {
        for name in super::calls::NAMES {
            for value in [0, 1, u64::MAX, 1 << 31, 1 << 63] {
                let text = decoded(name, [value; 6]);
                assert!(
                    text.starts_with(&format!("{name}(")) && text.ends_with(')'),
                    "{text}"
                );
            }
        }
    }
}
