//! What it means that a call is refused, and what to do instead.

/// What there is none of, why, and what to do instead.
#[derive(Clone, Copy)]
pub(super) struct Meaning(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static str,
);

const NAMESPACES: Meaning = Meaning(
    "no mounts and namespaces",
    "the view of files and processes is fixed here",
    "use the working directory as it is",
);

const LOCAL: Meaning = Meaning(
    "no local sockets",
    "services of the machine cannot be reached",
    "work with the input and the files that are there",
);

const OTHER: Meaning = Meaning(
    "not offered",
    "this sandbox has no use of that call",
    "find a way without it",
);

/// Flags of clone(2) that make namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0080;
/// The domain of local sockets: unix(7).
const AF_UNIX: u64 = 1;

/// Calls by what a program wants of them.
const MEANINGS: &[(&[&str], Meaning)] = &[
    (
        &["execve", "execveat"],
        Meaning(
            "no other programs",
            "nothing but the given program runs here",
            "do the work in its own code, without subprocesses or a shell",
        ),
    ),
    (
        &[
            "socket",
            "connect",
            "bind",
            "listen",
            "accept",
            "accept4",
            "sendto",
            "sendmsg",
            "sendmmsg",
            "recvfrom",
            "recvmsg",
            "recvmmsg",
            "getsockopt",
            "setsockopt",
            "getsockname",
            "getpeername",
            "shutdown",
        ],
        Meaning(
            "no network",
            "such connections are not allowed here",
            "download nothing, and work with the input and the files that are there",
        ),
    ),
    (
        &["socketpair"],
        Meaning(
            "no socket pairs",
            "sockets are not allowed here",
            "use pipes, or one process",
        ),
    ),
    (
        &["fork", "vfork", "clone", "clone3"],
        Meaning(
            "no further processes",
            "the program runs alone here",
            "do one step after the other in one process",
        ),
    ),
    (
        &[
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "move_mount",
            "open_tree",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
            "unshare",
            "setns",
        ],
        NAMESPACES,
    ),
    (
        &[
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "process_madvise",
            "process_mrelease",
            "kcmp",
            "pidfd_open",
            "pidfd_getfd",
        ],
        Meaning(
            "no hold of other processes",
            "processes may not be looked into or steered here",
            "find out what you need within the program",
        ),
    ),
    (
        &[
            "kill",
            "tkill",
            "tgkill",
            "rt_sigqueueinfo",
            "rt_tgsigqueueinfo",
            "pidfd_send_signal",
        ],
        Meaning(
            "no such signals",
            "signals to these processes are not allowed here",
            "let processes end by themselves",
        ),
    ),
    (
        &[
            "setuid",
            "setgid",
            "setreuid",
            "setregid",
            "setresuid",
            "setresgid",
            "setfsuid",
            "setfsgid",
            "setgroups",
            "capset",
        ],
        Meaning(
            "no other user",
            "the program keeps the rights that it has",
            "do without root and without what needs it",
        ),
    ),
    (
        &[
            "chmod",
            "fchmod",
            "fchmodat",
            "fchmodat2",
            "chown",
            "fchown",
            "lchown",
            "fchownat",
            "utime",
            "utimes",
            "utimensat",
            "futimesat",
            "setxattr",
            "lsetxattr",
            "fsetxattr",
            "removexattr",
            "lremovexattr",
            "fremovexattr",
            "setxattrat",
            "removexattrat",
            "file_setattr",
        ],
        Meaning(
            "no change of owners, modes and times",
            "files keep theirs here",
            "leave them as they are",
        ),
    ),
    (
        &["mknod", "mknodat"],
        Meaning(
            "no devices",
            "special files may not be made here",
            "use ordinary files and pipes",
        ),
    ),
    (
        &["io_uring_setup", "io_uring_enter", "io_uring_register"],
        Meaning(
            "no io_uring",
            "it goes round the sandbox's checks",
            "use ordinary reads and writes",
        ),
    ),
    (
        &[
            "shmget",
            "shmat",
            "shmctl",
            "shmdt",
            "semget",
            "semop",
            "semctl",
            "semtimedop",
            "msgget",
            "msgsnd",
            "msgrcv",
            "msgctl",
            "mq_open",
            "mq_unlink",
            "mq_timedsend",
            "mq_timedreceive",
        ],
        Meaning(
            "no shared memory and queues of System V or POSIX kind",
            "they outlive a run",
            "use threads, pipes or files",
        ),
    ),
    (
        &["memfd_create", "memfd_secret"],
        Meaning(
            "no files in memory",
            "only files with a place are allowed here",
            "use a file in the working directory",
        ),
    ),
    (
        &[
            "inotify_init",
            "inotify_init1",
            "inotify_add_watch",
            "fanotify_init",
            "fanotify_mark",
        ],
        Meaning(
            "no watching of files",
            "notices of changes are not allowed here",
            "look at the files again instead",
        ),
    ),
    (
        &[
            "sched_setscheduler",
            "sched_setparam",
            "sched_setattr",
            "setpriority",
            "ioprio_set",
            "sched_setaffinity",
        ],
        Meaning(
            "no other priority",
            "a run keeps its share of the processors",
            "leave it as it is",
        ),
    ),
    (
        &[
            "mbind",
            "set_mempolicy",
            "set_mempolicy_home_node",
            "migrate_pages",
            "move_pages",
        ],
        Meaning(
            "no choice of memory nodes",
            "the placement of memory is the machine's",
            "leave it as it is",
        ),
    ),
    (
        &[
            "bpf",
            "perf_event_open",
            "userfaultfd",
            "init_module",
            "finit_module",
            "delete_module",
            "kexec_load",
            "kexec_file_load",
            "syslog",
            "add_key",
            "request_key",
            "keyctl",
            "open_by_handle_at",
            "name_to_handle_at",
            "quotactl",
        ],
        Meaning(
            "no way into the kernel",
            "its inner workings are closed here",
            "do without",
        ),
    ),
    (
        &[
            "reboot",
            "swapon",
            "swapoff",
            "settimeofday",
            "clock_settime",
            "clock_adjtime",
            "adjtimex",
            "sethostname",
            "setdomainname",
            "acct",
            "iopl",
            "ioperm",
            "vhangup",
        ],
        Meaning(
            "no administration",
            "the machine is not the program's to change",
            "do without",
        ),
    ),
];

pub(super) fn of_call(name: &str, arguments: [u64; 6]) -> Meaning {
    match (name, arguments) {
        ("socket", [AF_UNIX, ..]) => LOCAL,
        ("clone", [flags, ..]) if flags & NAMESPACE_FLAGS != 0 => NAMESPACES,
        _ => MEANINGS
            .iter()
            .find(|(names, _)| names.contains(&name))
            .map_or(OTHER, |(_, meaning)| *meaning),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_has_two_meanings() {
        let mut names: Vec<_> = MEANINGS.iter().flat_map(|(names, _)| *names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all > 100, "{all}");
    }
}
