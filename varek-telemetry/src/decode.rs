//! Denied calls as people write them.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod words;

use std::fmt;

use crate::pointee::PointerKind;
use crate::{ArgumentDetail, Denial, Pointer, Signal, Unverified};

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
    /// An address in the guest. What is there is not looked at.
    Address,
    /// The address of a path, which ends with a NUL.
    Path,
    /// The address of another text that ends with a NUL.
    Name,
    /// The address of a `struct sockaddr`, of as many bytes as the next argument says.
    Socket,
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
    write!(f, "{}(", denial.name())?;
    match known(denial) {
        Some(kinds) => {
            for (index, (kind, value)) in kinds.iter().zip(denial.arguments).enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                let seen = denial.unverified.iter().find(|seen| seen.argument == index);
                one(f, *kind, value, seen)?;
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

/// The arguments of this call, where there is a table that holds for it.
fn known(denial: &Denial) -> Option<&'static [Argument]> {
    match &denial.syscall {
        Some(name) if tables_hold(&denial.abi) => table(name, &denial.arguments),
        _ => None,
    }
}

/// The pointers of a call that lead to what an event may show.
pub(crate) fn pointers(denial: &Denial, detail: ArgumentDetail) -> Vec<Pointer> {
    // x32 has the numbers of x86_64, and structures of its own.
    if denial.abi == "x32" {
        return Vec::new();
    }
    let arguments = known(denial).unwrap_or_default().iter().enumerate();
    let of = |(index, argument): (usize, &Argument)| {
        let value = |index: usize| denial.arguments.get(index).copied();
        let kind = match argument {
            Argument::Path => PointerKind::Path,
            Argument::Name => PointerKind::Name,
            // An int, of which the kernel takes the lower half; a negative one is refused.
            Argument::Socket => PointerKind::SocketAddress(low(value(index + 1)?)),
            _ => return None,
        };
        Pointer::new(index, value(index)?, kind, detail)
    };
    arguments.filter_map(of).collect()
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

fn one(
    f: &mut dyn fmt::Write,
    kind: Argument,
    value: u64,
    seen: Option<&Unverified>,
) -> fmt::Result {
    use Argument::{Address, Name, Path, Socket};
    match kind {
        Argument::Int => write!(f, "{}", int(value)),
        Argument::Number => write!(f, "{value}"),
        Argument::Descriptor => match int(value) {
            -100 => f.write_str("AT_FDCWD"),
            number => write!(f, "{number}"),
        },
        Address | Path | Name | Socket if value == 0 => f.write_str("NULL"),
        Address | Path | Name | Socket => match seen.filter(|_| !matches!(kind, Address)) {
            Some(seen) => write!(f, "unverified:{}", seen.pointee),
            None => write!(f, "unverified:{value:#x}"),
        },
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
    use super::PointerKind;
    use crate::{Answer, ArgumentDetail, Denial, GuestText, Pointee, Unverified};

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
            unverified: Vec::new(),
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

    /// What pointers of this call lead to, by the kind of each, where everything may be shown.
    fn pointers(name: &str, arguments: [u64; 6]) -> Vec<(usize, PointerKind)> {
        let denial = denial(name, std::env::consts::ARCH.to_owned(), arguments);
        let all = denial.pointers(ArgumentDetail::Full);
        let right = |p: &crate::Pointer| arguments.get(p.argument()) == Some(&p.address());
        assert!(all.iter().all(right));
        all.iter().map(|p| (p.argument(), p.kind)).collect()
    }

    #[test]
    fn paths_names_and_addresses_of_sockets_are_found_where_each_call_has_them() {
        use PointerKind::{Name, Path, SocketAddress};
        let arguments = [0x1001, 0x1002, 0x1003, 0x1004, 0x1005, 0x1006];
        let address = |argument: usize| SocketAddress(arguments[argument + 1]);
        for (calls, kinds) in [
            (
                "open creat chmod mkdir chown lchown mknod unlink rmdir chdir chroot acct swapon swapoff umount2 truncate \
                 access stat lstat statfs utime utimes readlink execve uselib listxattr llistxattr",
                &[(0, Path)][..],
            ),
            (
                "openat openat2 fchmodat fchmodat2 mkdirat fchownat mknodat unlinkat readlinkat faccessat faccessat2 \
                 newfstatat statx utimensat futimesat name_to_handle_at inotify_add_watch execveat open_tree open_tree_attr \
                 mount_setattr fspick quotactl listxattrat file_getattr file_setattr",
                &[(1, Path)],
            ),
            ("rename link symlink pivot_root", &[(0, Path), (1, Path)]),
            (
                "renameat renameat2 linkat move_mount",
                &[(1, Path), (3, Path)],
            ),
            ("symlinkat", &[(0, Path), (2, Path)]),
            ("fanotify_mark", &[(4, Path)]),
            ("mount", &[(0, Path), (1, Path), (2, Name)]),
            (
                "setxattr lsetxattr getxattr lgetxattr removexattr lremovexattr",
                &[(0, Path), (1, Name)],
            ),
            ("fsetxattr fgetxattr fremovexattr", &[(1, Name)]),
            (
                "setxattrat getxattrat removexattrat",
                &[(1, Path), (3, Name)],
            ),
            (
                "fsopen memfd_create delete_module mq_open mq_unlink",
                &[(0, Name)],
            ),
            ("fsconfig", &[(2, Name)]),
            ("add_key request_key", &[(0, Name), (1, Name)]),
            ("connect bind", &[(1, address(1))]),
            ("sendto", &[(4, address(4))]),
            // What the kernel writes to, and what may be a secret.
            (
                "accept4 getsockname recvfrom sendmsg write init_module brand_new",
                &[],
            ),
        ] {
            for name in calls.split_whitespace() {
                assert_eq!(pointers(name, arguments), kinds, "{name}");
            }
        }
        // A null pointer leads nowhere.
        assert_eq!(pointers("utimensat", [3, 0, 0, 0, 0, 0]), []);
        // The kernel takes the lower half of a length.
        let garbage = 0xdead_beef_0000_0010;
        assert_eq!(
            pointers("connect", [3, 0x1000, garbage, 0, 0, 0]),
            [(1, SocketAddress(16))]
        );
        for abi in ["x32", "i386", "arm", "unknown (0x1)"] {
            let foreign = denial("openat", abi.into(), arguments);
            assert_eq!(foreign.pointers(ArgumentDetail::Full), [], "{abi}");
        }
    }

    #[test]
    fn what_pointers_led_to_stands_in_their_place_marked_as_unverified() {
        let path = |argument, text: &str| Unverified {
            argument,
            pointee: Pointee::Path(GuestText::new(text.as_bytes())),
        };
        let internet = |text: &str| Unverified {
            argument: 1,
            pointee: Pointee::Internet(text.parse().unwrap()),
        };
        let local = Unverified {
            argument: 1,
            pointee: Pointee::Unix(GuestText::new(b"/run/x.sock")),
        };
        let address = 0x7fff_0000_1000;
        for (name, arguments, unverified, text) in [
            (
                "openat",
                [wide(-100), address, 0, 0, 0, 0],
                vec![path(1, "/etc/shadow")],
                r#"openat(AT_FDCWD, unverified:"/etc/shadow", O_RDONLY)"#,
            ),
            (
                "connect",
                [3, address, 16, 0, 0, 0],
                vec![internet("127.0.0.1:80")],
                "connect(3, unverified:127.0.0.1:80, 16)",
            ),
            (
                "connect",
                [3, address, 110, 0, 0, 0],
                vec![local],
                r#"connect(3, unverified:unix:"/run/x.sock", 110)"#,
            ),
            (
                "execve",
                [address, 1, 2, 0, 0, 0],
                vec![path(0, "/bin/sh")],
                r#"execve(unverified:"/bin/sh", unverified:0x1, unverified:0x2)"#,
            ),
            (
                "rename",
                [address, 0x10, 0, 0, 0, 0],
                vec![path(0, "a\n\"b")],
                r#"rename(unverified:"a\n\"b", unverified:0x10)"#,
            ),
            // A log that is not VAREK's can say what it wants of arguments that are no such pointers.
            (
                "mkdirat",
                [3, 0, 0o755, 0, 0, 0],
                vec![path(0, "x"), path(1, "y"), path(2, "z"), path(9, "w")],
                "mkdirat(3, NULL, 0o755)",
            ),
        ] {
            let abi = std::env::consts::ARCH.to_owned();
            let mut denial = denial(name, abi, arguments);
            denial.unverified = unverified;
            assert_eq!(denial.decoded(), text);
            assert_eq!(denial.to_string(), format!("{text} = EPERM"));
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
