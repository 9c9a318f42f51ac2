//! Groups: calls by purpose.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::rule::{Condition, Rule, Width};
use crate::suggest;

/// Calls that belong together by purpose, some of them with conditions.
///
/// What a group holds may grow in later releases, when libc or the kernel gains a call for the same
/// purpose; it never gains one for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Group {
    /// Start-up and identity of every process.
    Runtime,
    /// Reading and writing of open descriptors.
    BasicIo,
    /// Opening, listing and changing files.
    Files,
    /// Modes, owners, times and extended attributes of files.
    FileMetadata,
    /// Watching files for changes.
    FileWatch,
    /// Mapping and advising of own memory.
    Memory,
    /// Asking where own memory is placed.
    Numa,
    /// Threads and what they wait on.
    Threads,
    /// Children, sessions and process groups.
    Processes,
    /// Handling of signals.
    Signals,
    /// Sending of signals.
    SendSignals,
    /// Clocks and timers.
    Time,
    /// Waiting for descriptors.
    Events,
    /// Connected pairs of local sockets.
    SocketPair,
    /// Sockets of every kind.
    Network,
    /// Further programs.
    Exec,
    /// Modes of a terminal.
    Terminal,
    /// Changing the own user, groups and capabilities.
    Credentials,
    /// Own Landlock and seccomp layers.
    Confinement,
    /// System V shared memory, semaphores and queues.
    SysvIpc,
    /// POSIX message queues.
    MessageQueues,
    /// Linux's older asynchronous file I/O.
    AsyncIo,
}

impl Group {
    /// Every group.
    pub const ALL: [Self; 22] = [
        Self::Runtime,
        Self::BasicIo,
        Self::Files,
        Self::FileMetadata,
        Self::FileWatch,
        Self::Memory,
        Self::Numa,
        Self::Threads,
        Self::Processes,
        Self::Signals,
        Self::SendSignals,
        Self::Time,
        Self::Events,
        Self::SocketPair,
        Self::Network,
        Self::Exec,
        Self::Terminal,
        Self::Credentials,
        Self::Confinement,
        Self::SysvIpc,
        Self::MessageQueues,
        Self::AsyncIo,
    ];

    /// The name in a policy file: `basic-io`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::BasicIo => "basic-io",
            Self::Files => "files",
            Self::FileMetadata => "file-metadata",
            Self::FileWatch => "file-watch",
            Self::Memory => "memory",
            Self::Numa => "numa",
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Signals => "signals",
            Self::SendSignals => "send-signals",
            Self::Time => "time",
            Self::Events => "events",
            Self::SocketPair => "socket-pair",
            Self::Network => "network",
            Self::Exec => "exec",
            Self::Terminal => "terminal",
            Self::Credentials => "credentials",
            Self::Confinement => "confinement",
            Self::SysvIpc => "sysv-ipc",
            Self::MessageQueues => "message-queues",
            Self::AsyncIo => "async-io",
        }
    }

    /// One line on who needs the group, and what it reaches.
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Runtime => "every program: start of libc, own ids and limits, random numbers",
            Self::BasicIo => {
                "every program: read, write, pipes, duplicates; fcntl without the commands that send \
                 signals to an owner, ioctl for descriptor flags and terminal queries"
            }
            Self::Files => {
                "programs that use files; paths are bounded by Landlock and permissions, not here"
            }
            Self::FileMetadata => {
                "cp -p, tar, tempfile; Landlock does not mediate these, so the guest's user bounds them"
            }
            Self::FileWatch => "reloaders; counts against the user's inotify limits",
            Self::Memory => "every program: allocation, mapped files, memory protection keys",
            Self::Numa => {
                "what asks whether memory is placed on nodes; no policy lets it be placed"
            }
            Self::Threads => "threads and their locks, affinity of the calling thread",
            Self::Processes => "fork, multiprocessing, daemons; runs no other program",
            Self::Signals => "handlers, masks and waiting for signals",
            Self::SendSignals => {
                "abort, raise and supervision; reaches what the guest's user can signal"
            }
            Self::Time => "clocks, sleeps, interval timers",
            Self::Events => "event loops: epoll, poll, select, eventfd",
            Self::SocketPair => {
                "asyncio, tokio, multiprocessing pipes; connected local stream pairs, which reach nobody else"
            }
            Self::Network => {
                "network clients and servers, and local sockets; reaches whatever the host reaches"
            }
            Self::Exec => "programs that start programs; the filter holds for those too",
            Self::Terminal => "programs that switch a terminal to raw mode; not typing into it",
            Self::Credentials => "su-like tools; the kernel asks for capabilities",
            Self::Confinement => {
                "programs that sandbox themselves; layers only ever add restrictions"
            }
            Self::SysvIpc => "old databases; objects outlive the run and are shared by user",
            Self::MessageQueues => "users of mq_open; queues outlive the run",
            Self::AsyncIo => "databases that use io_submit on files",
        }
    }

    /// The calls that are allowed with any arguments. Some exist on one architecture only.
    pub const fn calls(self) -> &'static [&'static str] {
        match self {
            Self::Runtime => RUNTIME,
            Self::BasicIo => BASIC_IO,
            Self::Files => FILES,
            Self::FileMetadata => FILE_METADATA,
            Self::FileWatch => &[
                "inotify_init",
                "inotify_init1",
                "inotify_add_watch",
                "inotify_rm_watch",
            ],
            Self::Memory => MEMORY,
            Self::Numa => &["get_mempolicy"],
            Self::Threads => THREADS,
            Self::Processes => PROCESSES,
            Self::Signals => SIGNALS,
            Self::SendSignals => SEND_SIGNALS,
            Self::Time => TIME,
            Self::Events => EVENTS,
            Self::SocketPair => SOCKET_PAIR,
            Self::Network => NETWORK,
            Self::Exec => &["execve", "execveat"],
            Self::Terminal => &[],
            Self::Credentials => CREDENTIALS,
            Self::Confinement => &[
                "landlock_create_ruleset",
                "landlock_add_rule",
                "landlock_restrict_self",
                "seccomp",
            ],
            Self::SysvIpc => SYSV_IPC,
            Self::MessageQueues => &[
                "mq_open",
                "mq_unlink",
                "mq_timedsend",
                "mq_timedreceive",
                "mq_notify",
                "mq_getsetattr",
            ],
            Self::AsyncIo => &[
                "io_setup",
                "io_destroy",
                "io_submit",
                "io_cancel",
                "io_getevents",
                "io_pgetevents",
            ],
        }
    }

    /// The calls that are allowed under conditions.
    pub fn rules(self) -> Vec<Rule> {
        match self {
            Self::Runtime => {
                let prctl = PRCTL_OPTIONS
                    .iter()
                    .map(|option| Rule::on("prctl").int(0, *option));
                // The query only: everything else changes how memory is laid out or executed.
                prctl
                    .chain([Rule::on("personality").int(0, u32::MAX)])
                    .collect()
            }
            Self::BasicIo => {
                let fcntl = FCNTL_COMMANDS
                    .iter()
                    .map(|command| Rule::on("fcntl").int(1, *command));
                let ioctl = IOCTL_REQUESTS
                    .iter()
                    .map(|request| Rule::on("ioctl").int(1, *request));
                fcntl.chain(ioctl).collect()
            }
            Self::Files => file_nodes(),
            Self::FileMetadata => short_attributes(),
            // A thread may change itself. Others of the same user would be the embedder, where it shares it.
            Self::Threads => {
                let own = ["sched_setaffinity", "sched_setscheduler", "sched_setparam"];
                let own = own.into_iter().map(|call| Rule::on(call).int(0, 0));
                // CLONE_THREAD: without the group Processes there are threads and no children.
                own.chain([bits("clone", 0, 0x0001_0000, 0x0001_0000)])
                    .collect()
            }
            // PRIO_PROCESS of the caller: nice(2).
            Self::Processes => vec![Rule::on("setpriority").int(0, 0).int(1, 0)],
            Self::SocketPair => socket_pair(),
            Self::Terminal => TERMINAL_REQUESTS
                .iter()
                .map(|request| Rule::on("ioctl").int(1, *request))
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Argument `index` of `call` under `mask` is `value`, at 32 bits.
fn bits(call: &str, index: u8, mask: u64, value: u64) -> Rule {
    Rule::on(call).and(Condition::masked_equal(index, Width::Bits32, mask, value))
}

/// Regular files and FIFOs; devices and sockets are left out.
fn file_nodes() -> Vec<Rule> {
    const S_IFMT: u64 = 0o170_000;
    let kinds = [0, 0o010_000, 0o100_000];
    let at = kinds.map(|kind| bits("mknodat", 2, S_IFMT, kind));
    let plain = kinds.map(|kind| bits("mknod", 1, S_IFMT, kind));
    at.into_iter().chain(plain).collect()
}

/// Extended attributes of at most 255 bytes: cp, tar, install and sed set access control lists of 28. tmpfs keeps such lists in
/// kernel memory that no limit counts, up to 64 KiB for each file. `setxattrat` has the size behind a pointer.
fn short_attributes() -> Vec<Rule> {
    let size = Condition::masked_equal(3, Width::Bits64, !0xff, 0);
    let calls = ["setxattr", "lsetxattr", "fsetxattr"];
    calls.map(|call| Rule::on(call).and(size.clone())).into()
}

/// Pairs that stay pairs: a stream or sequenced pair cannot be pointed at another address, a datagram pair
/// can (by `connect` or by an address in `sendto`), and would reach any socket file that its user may write.
fn socket_pair() -> Vec<Rule> {
    const AF_UNIX: u32 = 1;
    const SOL_SOCKET: u32 = 1;
    const TYPE_MASK: u64 = 0xf;
    let pair = |kind| {
        let kind = Condition::masked_equal(1, Width::Bits32, TYPE_MASK, kind);
        Rule::on("socketpair").int(0, AF_UNIX).and(kind)
    };
    let [stream, sequenced] = [pair(1), pair(5)];
    // send(3) is sendto without an address: refusing it would stall event loops.
    let send = Rule::on("sendto").and(Condition::equal(4, Width::Bits64, 0));
    vec![
        stream,
        sequenced,
        send,
        Rule::on("getsockopt").int(1, SOL_SOCKET),
    ]
}

const RUNTIME: &[&str] = &[
    "arch_prctl",
    "brk",
    "capget",
    "get_thread_area",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "getuid",
    "restart_syscall",
    "rseq",
    "rt_sigreturn",
    "set_robust_list",
    "set_tid_address",
    "setrlimit",
    "sysinfo",
    "uname",
];

const BASIC_IO: &[&str] = &[
    "close", "dup", "dup2", "fstat", "lseek", "pipe", "pipe2", "pread64", "preadv", "preadv2",
    "pwrite64", "pwritev", "pwritev2", "read", "readv", "sendfile", "splice", "tee", "write",
    "writev",
];

const FILES: &[&str] = &[
    "access",
    "cachestat",
    "chdir",
    "copy_file_range",
    "creat",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fdatasync",
    "fgetxattr",
    "file_getattr",
    "flistxattr",
    "flock",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getcwd",
    "getdents",
    "getdents64",
    "getxattr",
    "getxattrat",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "listxattrat",
    "llistxattr",
    "lstat",
    "mkdir",
    "mkdirat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "readahead",
    "readlink",
    "readlinkat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "sync_file_range",
    "truncate",
    "umask",
    "unlink",
    "unlinkat",
];

const FILE_METADATA: &[&str] = &[
    "chmod",
    "chown",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fremovexattr",
    "futimesat",
    "lchown",
    "lremovexattr",
    "removexattr",
    "removexattrat",
    "utime",
    "utimensat",
    "utimes",
];

/// Locked memory is bounded by `RLIMIT_MEMLOCK` and the memory limit; `mlockall` is left out.
const MEMORY: &[&str] = &[
    "brk",
    "madvise",
    "map_shadow_stack",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mmap",
    "mprotect",
    "mremap",
    "mseal",
    "msync",
    "munlock",
    "munmap",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
];

const THREADS: &[&str] = &[
    "futex",
    "futex_requeue",
    "futex_wait",
    "futex_waitv",
    "futex_wake",
    "membarrier",
    "rseq",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
];

const PROCESSES: &[&str] = &[
    "clone",
    "fork",
    "pidfd_open",
    "setpgid",
    "setsid",
    "vfork",
    "wait4",
    "waitid",
];

const SIGNALS: &[&str] = &[
    "pause",
    "restart_syscall",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "sigaltstack",
    "signalfd",
    "signalfd4",
];

const SEND_SIGNALS: &[&str] = &[
    "kill",
    "pidfd_send_signal",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "tgkill",
    "tkill",
];

const TIME: &[&str] = &[
    "alarm",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "getitimer",
    "gettimeofday",
    "nanosleep",
    "setitimer",
    "time",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    "times",
];

const EVENTS: &[&str] = &[
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "poll",
    "ppoll",
    "pselect6",
    "select",
];

/// Without `setsockopt`: packet filters can be attached through it.
const SOCKET_PAIR: &[&str] = &[
    "getpeername",
    "getsockname",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "shutdown",
];

const NETWORK: &[&str] = &[
    "accept",
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "socketpair",
];

const CREDENTIALS: &[&str] = &[
    "capset",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setuid",
];

const SYSV_IPC: &[&str] = &[
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "shmat",
    "shmctl",
    "shmdt",
    "shmget",
];

/// Descriptor flags, status flags, locks, pipe sizes and seals. Left out: `F_SETOWN`, `F_SETOWN_EX` and
/// `F_SETSIG`, which make the kernel send any signal to any process of the user, leases and `F_NOTIFY`.
const FCNTL_COMMANDS: &[u32] = &[
    0,    // F_DUPFD
    1,    // F_GETFD
    2,    // F_SETFD
    3,    // F_GETFL
    4,    // F_SETFL
    5,    // F_GETLK
    6,    // F_SETLK
    7,    // F_SETLKW
    36,   // F_OFD_GETLK
    37,   // F_OFD_SETLK
    38,   // F_OFD_SETLKW
    1027, // F_DUPFD_QUERY
    1030, // F_DUPFD_CLOEXEC
    1031, // F_SETPIPE_SZ
    1032, // F_GETPIPE_SZ
    1033, // F_ADD_SEALS
    1034, // F_GET_SEALS
];

/// Left out: `FIOSETOWN` and `SIOCSPGRP` (signals to others, as `F_SETOWN`), and everything that changes a
/// terminal.
const IOCTL_REQUESTS: &[u32] = &[
    0x5401,      // TCGETS
    0x540f,      // TIOCGPGRP
    0x5413,      // TIOCGWINSZ
    0x541b,      // FIONREAD
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x802c_542a, // TCGETS2
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
];

const TERMINAL_REQUESTS: &[u32] = &[
    0x5402,      // TCSETS
    0x5403,      // TCSETSW
    0x5404,      // TCSETSF
    0x5409,      // TCSBRK
    0x540a,      // TCXONC
    0x540b,      // TCFLSH
    0x540e,      // TIOCSCTTY
    0x5410,      // TIOCSPGRP
    0x5411,      // TIOCOUTQ
    0x5414,      // TIOCSWINSZ
    0x5422,      // TIOCNOTTY
    0x5425,      // TCSBRKP
    0x5429,      // TIOCGSID
    0x402c_542b, // TCSETS2
    0x402c_542c, // TCSETSW2
    0x402c_542d, // TCSETSF2
    0x4004_5431, // TIOCSPTLCK
    0x8004_5430, // TIOCGPTN
    0x5441,      // TIOCGPTPEER
];

/// Names, queries, and what can only narrow. Left out: `PR_SET_PDEATHSIG` (it would undo the one that ends
/// the guest with its embedder), `PR_SET_DUMPABLE` (it would hide the guest from an unprivileged
/// supervisor), `PR_SET_CHILD_SUBREAPER`, `PR_SET_MM`, `PR_SET_PTRACER`, `PR_SET_SECCOMP`.
const PRCTL_OPTIONS: &[u32] = &[
    2,           // PR_GET_PDEATHSIG
    3,           // PR_GET_DUMPABLE
    15,          // PR_SET_NAME
    16,          // PR_GET_NAME
    21,          // PR_GET_SECCOMP
    23,          // PR_CAPBSET_READ
    29,          // PR_SET_TIMERSLACK
    30,          // PR_GET_TIMERSLACK
    38,          // PR_SET_NO_NEW_PRIVS
    39,          // PR_GET_NO_NEW_PRIVS
    42,          // PR_GET_THP_DISABLE
    51,          // PR_SVE_GET_VL
    56,          // PR_GET_TAGGED_ADDR_CTRL
    0x5356_4d41, // PR_SET_VMA: names of anonymous mappings
];

/// A group name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no system call group {name:?}{}", .suggestion.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
pub struct UnknownGroup {
    /// The name as written.
    pub name: String,
    /// A group's name that is close to it.
    pub suggestion: Option<&'static str>,
}

impl FromStr for Group {
    type Err = UnknownGroup;

    fn from_str(name: &str) -> Result<Self, UnknownGroup> {
        Self::ALL
            .into_iter()
            .find(|group| group.name() == name)
            .ok_or_else(|| UnknownGroup {
                name: name.to_owned(),
                suggestion: suggest::nearest(name, Self::ALL.map(Self::name)),
            })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arch;

    #[test]
    fn every_call_of_a_group_exists_and_is_listed_once_in_order() {
        for group in Group::ALL {
            let calls = group.calls();
            for call in calls {
                assert!(
                    Arch::ALL.iter().any(|arch| arch.number(call).is_some()),
                    "{group}: {call}"
                );
                assert_eq!(
                    calls.iter().filter(|other| *other == call).count(),
                    1,
                    "{group}: {call}"
                );
            }
            for rule in group.rules() {
                assert!(
                    !calls.contains(&rule.call()),
                    "{group}: {} has a rule in vain",
                    rule.call()
                );
                assert!(Arch::X86_64.number(rule.call()).is_some());
                assert!(
                    rule.arguments()
                        .iter()
                        .all(|condition| condition.fault().is_none())
                );
            }
            assert!(!calls.is_empty() || !group.rules().is_empty());
            assert!(!group.purpose().is_empty());
        }
    }

    #[test]
    fn names_are_unique_and_parse_back() {
        for group in Group::ALL {
            assert_eq!(group.name().parse(), Ok(group));
        }
        let unknown = "basicio".parse::<Group>().unwrap_err();
        assert_eq!(unknown.suggestion, Some("basic-io"));
        assert!(unknown.to_string().contains("did you mean basic-io?"));
    }
}
