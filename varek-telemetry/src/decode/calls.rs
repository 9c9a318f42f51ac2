//! Which argument of which call is what.

use super::Argument::{
    self, Address, Clone, Descriptor, Flags, Int, Mode, Name, Number, Path, Signal, Socket, Word,
    WordAndFlags,
};
use super::words as w;

const AT: Argument = Flags("0", w::AT);
const OPEN: Argument = WordAndFlags(3, w::ACCESS, w::OPEN);
const PROTECTION: Argument = Flags("PROT_NONE", w::PROTECTION);
const MESSAGES: Argument = Flags("0", w::MESSAGES);
const TYPE: Argument = WordAndFlags(0xf, w::SOCKET_TYPES, w::SOCKET_FLAGS);
const SOCKET_FLAGS: Argument = Flags("0", w::SOCKET_FLAGS);
const SCHEDULER: Argument = WordAndFlags(0xf, w::SCHEDULERS, w::SCHEDULER_FLAGS);
const NAMESPACES: Argument = Flags("0", w::CLONE);

/// The calls that read a mode only where they are told to create: the bits of O_CREAT and O_TMPFILE.
const CREATES: u64 =
    (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned() as u64;

macro_rules! calls {
    ($($($name:literal)|+ => [$($argument:expr),*];)*) => {
        /// The arguments of a call; `None` where there is no entry.
        fn entry(name: &str) -> Option<&'static [Argument]> {
            Some(match name {
                $($($name)|+ => const { &[$($argument),*] },)*
                _ => return None,
            })
        }

        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$($($name),+),*];
    };
}

/// The arguments of a call that its kind reads, given their values.
pub(super) fn arguments(name: &str, values: &[u64; 6]) -> Option<&'static [Argument]> {
    let all = entry(name)?;
    let [_, second, third, ..] = values;
    let unread = match name {
        "open" => second & CREATES == 0,
        "openat" => third & CREATES == 0,
        _ => false,
    };
    match all.split_last() {
        Some((_, read)) if unread => Some(read),
        _ => Some(all),
    }
}

calls! {
    // Sockets.
    "socket" => [Word(w::FAMILIES), TYPE, Int];
    "socketpair" => [Word(w::FAMILIES), TYPE, Int, Address];
    "connect" | "bind" => [Descriptor, Socket, Int];
    "listen" => [Descriptor, Int];
    "accept" => [Descriptor, Address, Address];
    "accept4" => [Descriptor, Address, Address, SOCKET_FLAGS];
    "getsockname" | "getpeername" => [Descriptor, Address, Address];
    "setsockopt" | "getsockopt" => [Descriptor, Word(w::SOCKET_LEVELS), Int, Address, Number];
    "sendto" => [Descriptor, Address, Number, MESSAGES, Socket, Int];
    "recvfrom" => [Descriptor, Address, Number, MESSAGES, Address, Address];
    "sendmsg" | "recvmsg" => [Descriptor, Address, MESSAGES];
    "sendmmsg" => [Descriptor, Address, Int, MESSAGES];
    "recvmmsg" => [Descriptor, Address, Int, MESSAGES, Address];
    "shutdown" => [Descriptor, Word(w::SHUTDOWN)];

    // Files by path.
    "open" => [Path, OPEN, Mode];
    "openat" => [Descriptor, Path, OPEN, Mode];
    "openat2" => [Descriptor, Path, Address, Number];
    "open_by_handle_at" => [Descriptor, Address, OPEN];
    "name_to_handle_at" => [Descriptor, Path, Address, Address, AT];
    "creat" | "chmod" | "mkdir" => [Path, Mode];
    "fchmod" => [Descriptor, Mode];
    "fchmodat" | "mkdirat" => [Descriptor, Path, Mode];
    "fchmodat2" => [Descriptor, Path, Mode, AT];
    "chown" | "lchown" => [Path, Int, Int];
    "fchown" => [Descriptor, Int, Int];
    "fchownat" => [Descriptor, Path, Int, Int, AT];
    "mknod" => [Path, WordAndFlags(0o170_000, w::FILE_TYPES, &[]), Number];
    "mknodat" => [Descriptor, Path, WordAndFlags(0o170_000, w::FILE_TYPES, &[]), Number];
    "unlink" | "rmdir" | "chdir" | "chroot" | "swapoff" | "acct" | "uselib" => [Path];
    "unlinkat" => [Descriptor, Path, AT];
    "rename" | "link" | "symlink" | "pivot_root" => [Path, Path];
    "renameat" => [Descriptor, Path, Descriptor, Path];
    "renameat2" => [Descriptor, Path, Descriptor, Path, Flags("0", w::RENAME)];
    "linkat" => [Descriptor, Path, Descriptor, Path, AT];
    "symlinkat" => [Path, Descriptor, Path];
    "readlink" => [Path, Address, Number];
    "readlinkat" => [Descriptor, Path, Address, Number];
    "truncate" => [Path, Number];
    "ftruncate" => [Descriptor, Number];
    "access" => [Path, Mode];
    "faccessat" => [Descriptor, Path, Mode];
    "faccessat2" => [Descriptor, Path, Mode, AT];
    "stat" | "lstat" | "statfs" | "utime" | "utimes" => [Path, Address];
    "newfstatat" => [Descriptor, Path, Address, AT];
    "statx" => [Descriptor, Path, AT, Number, Address];
    "utimensat" => [Descriptor, Path, Address, AT];
    "futimesat" => [Descriptor, Path, Address];
    "file_getattr" | "file_setattr" => [Descriptor, Path, Address, Number, AT];
    "inotify_init1" => [Flags("0", w::INOTIFY)];
    "inotify_add_watch" => [Descriptor, Path, Number];
    "fanotify_mark" => [Descriptor, Number, Number, Descriptor, Path];

    // Extended attributes.
    "setxattr" | "lsetxattr" => [Path, Name, Address, Number, Flags("0", w::XATTR)];
    "fsetxattr" => [Descriptor, Name, Address, Number, Flags("0", w::XATTR)];
    "getxattr" | "lgetxattr" => [Path, Name, Address, Number];
    "fgetxattr" => [Descriptor, Name, Address, Number];
    "listxattr" | "llistxattr" => [Path, Address, Number];
    "flistxattr" => [Descriptor, Address, Number];
    "removexattr" | "lremovexattr" => [Path, Name];
    "fremovexattr" => [Descriptor, Name];
    "setxattrat" | "getxattrat" => [Descriptor, Path, AT, Name, Address, Number];
    "listxattrat" => [Descriptor, Path, AT, Address, Number];
    "removexattrat" => [Descriptor, Path, AT, Name];

    // Mounts, disks.
    "mount" => [Path, Path, Name, Flags("0", w::MOUNT), Address];
    "umount2" => [Path, Flags("0", w::UNMOUNT)];
    "fsopen" => [Name, Number];
    // What a key is set to may be a password.
    "fsconfig" => [Descriptor, Int, Name, Address, Int];
    "fsmount" => [Descriptor, Number, Number];
    "fspick" => [Descriptor, Path, Number];
    "open_tree" => [Descriptor, Path, AT];
    "open_tree_attr" => [Descriptor, Path, AT, Address, Number];
    "move_mount" => [Descriptor, Path, Descriptor, Path, Number];
    "mount_setattr" => [Descriptor, Path, AT, Address, Number];
    "swapon" => [Path, Number];
    "quotactl" => [Number, Path, Int, Address];

    // Programs, processes, namespaces.
    "execve" => [Path, Address, Address];
    "execveat" => [Descriptor, Path, Address, Address, AT];
    "fork" | "vfork" | "setsid" | "vhangup" | "inotify_init" => [];
    "clone" => [Clone, Address, Address, Address, Address];
    "clone3" => [Address, Number];
    "unshare" => [NAMESPACES];
    "setns" => [Descriptor, NAMESPACES];
    "kill" | "tkill" => [Int, Signal];
    "tgkill" => [Int, Int, Signal];
    "rt_sigqueueinfo" => [Int, Signal, Address];
    "rt_tgsigqueueinfo" => [Int, Int, Signal, Address];
    "pidfd_open" => [Int, Number];
    "pidfd_send_signal" => [Descriptor, Signal, Address, Number];
    "pidfd_getfd" => [Descriptor, Int, Number];
    "ptrace" => [Word(w::PTRACE), Int, Address, Address];
    "process_vm_readv" | "process_vm_writev" => [Int, Address, Number, Address, Number, Number];
    "kcmp" => [Int, Int, Int, Number, Number];
    "prctl" => [Word(w::PRCTL), Number, Number, Number, Number];
    "seccomp" => [Word(w::SECCOMP), Flags("0", w::SECCOMP_FLAGS), Address];
    "setpgid" => [Int, Int];
    "prlimit64" => [Int, Word(w::RESOURCES), Address, Address];
    "setrlimit" | "getrlimit" => [Word(w::RESOURCES), Address];
    "setpriority" => [Word(w::PRIORITY), Int, Int];
    "getpriority" => [Word(w::PRIORITY), Int];
    "sched_setscheduler" => [Int, SCHEDULER, Address];
    "sched_setparam" | "sched_getparam" => [Int, Address];
    "sched_setattr" => [Int, Address, Number];
    "sched_setaffinity" | "sched_getaffinity" => [Int, Number, Address];
    "setuid" | "setgid" | "setfsuid" | "setfsgid" => [Int];
    "setreuid" | "setregid" => [Int, Int];
    "setresuid" | "setresgid" => [Int, Int, Int];
    "setgroups" => [Int, Address];
    "capset" | "capget" => [Address, Address];

    // Memory.
    "mmap" => [Address, Number, PROTECTION, Flags("0", w::MAP), Descriptor, Number];
    "mprotect" => [Address, Number, PROTECTION];
    "pkey_mprotect" => [Address, Number, PROTECTION, Int];
    "mremap" => [Address, Number, Number, Flags("0", w::REMAP), Address];
    "munmap" | "mlock" | "munlock" => [Address, Number];
    "mlockall" => [Flags("0", w::LOCK_ALL)];
    "madvise" => [Address, Number, Word(w::ADVICE)];
    "process_madvise" => [Descriptor, Address, Number, Word(w::ADVICE), Number];
    "memfd_create" => [Name, Flags("0", w::MEMFD)];
    "memfd_secret" | "userfaultfd" => [Flags("0", &[(libc::O_CLOEXEC.cast_unsigned() as u64, "O_CLOEXEC")])];
    "shmget" => [Int, Number, Flags("0", w::IPC_MAKE)];
    "msgget" => [Int, Flags("0", w::IPC_MAKE)];
    "semget" => [Int, Int, Flags("0", w::IPC_MAKE)];

    // Descriptors and devices.
    "ioctl" => [Descriptor, Word(w::IOCTL), Address];
    "fcntl" => [Descriptor, Word(w::FCNTL), Number];
    "eventfd2" => [Int, Flags("0", w::EVENTFD)];
    "timerfd_create" => [Word(w::CLOCKS), SOCKET_FLAGS];
    "clock_settime" | "clock_adjtime" => [Word(w::CLOCKS), Address];
    "getrandom" => [Address, Number, Flags("0", w::RANDOM)];

    // What no guest has a use for.
    "bpf" => [Word(w::BPF), Address, Number];
    "perf_event_open" => [Address, Int, Int, Descriptor, Number];
    "keyctl" => [Word(w::KEYCTL), Number, Number, Number, Number];
    "add_key" => [Name, Name, Address, Number, Int];
    "request_key" => [Name, Name, Address, Int];
    "io_uring_setup" => [Int, Address];
    "init_module" => [Address, Number, Address];
    "finit_module" => [Descriptor, Address, Int];
    "delete_module" => [Name, OPEN];
    "mq_open" => [Name, OPEN, Mode, Address];
    "mq_unlink" => [Name];
    "personality" => [Number];
    "iopl" => [Int];
    "ioperm" => [Number, Number, Int];
    "sethostname" | "setdomainname" => [Address, Number];
    "settimeofday" | "adjtimex" => [Address, Address];
}
