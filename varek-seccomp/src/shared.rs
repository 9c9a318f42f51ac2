//! What a guest may not do where it runs under a uid that other processes have as well.
//!
//! Between processes of one uid the kernel allows nearly everything, and Landlock mediates neither the modes,
//! owners, times and attributes of files nor most of what one process does to another; its first versions neither
//! truncate(2) nor signals. What is left is to refuse the calls.

use crate::Group;
use crate::policy::SyscallPolicy;
use crate::rule::{Condition, Rule, Width};

/// Calls that read, write, stop, trace or re-limit another process of the same uid, or that reach objects which a uid
/// has in common: the user keyring, System V objects, POSIX message queues, what happens to its files.
const REACH: &[&str] = &[
    "add_key",
    "fanotify_init",
    "fanotify_mark",
    "get_robust_list",
    "inotify_add_watch",
    "kcmp",
    "keyctl",
    "migrate_pages",
    "move_pages",
    "mq_open",
    "mq_unlink",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "perf_event_open",
    "pidfd_getfd",
    "process_madvise",
    "process_mrelease",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "request_key",
    "sched_setattr",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "shmat",
    "shmctl",
    "shmget",
];

/// Further calls that change what stat(2) shows of a file.
const METADATA: &[&str] = &["file_setattr", "setxattrat"];

/// Commands of ioctl(2) that send signals to an owner (`FIOSETOWN`, `SIOCSPGRP`) or change attributes of a file that
/// is open for reading (`FS_IOC_SETFLAGS`, `FS_IOC_FSSETXATTR`) are in none of these groups.
const REQUESTS: [Group; 2] = [Group::BasicIo, Group::Terminal];

/// The version of Landlock's ABI with a right to truncate (Linux 6.2).
const TRUNCATION: u32 = 3;
/// The version of Landlock's ABI with a right to device commands (Linux 6.10).
const DEVICES: u32 = 5;
/// The version of Landlock's ABI that scopes signals (Linux 6.12).
const SCOPES: u32 = 6;

impl SyscallPolicy {
    /// The policy for a guest whose uid other processes have as well, such as an embedder that is not root: as this
    /// one, without what reaches those processes and changes their files.
    ///
    /// Refused, whatever the policy allows: changes of modes, owners, times and extended attributes of files
    /// ([`Group::FileMetadata`]), of which a supervisor can perform those of the guest's own files; tracing, reading,
    /// writing and re-limiting of other processes; keyrings, System V objects and POSIX message queues, which belong to a
    /// uid; watching of files; local sockets but for connected pairs, since the user's services answer at them (a service
    /// manager would start a program for the guest), and every family but IPv4, IPv6 and netlink. Left for the caller
    /// itself only: `prlimit64`, `setpriority`, `ioprio_set`, `sched_setaffinity`, `sched_setparam` and
    /// `sched_setscheduler`. Left without the commands that send signals to an owner, hold up other users of a file, or
    /// change its attributes: `fcntl` and `ioctl`.
    ///
    /// `landlock` is the ABI version of the Landlock ruleset around the guest (0 for none), which covers more from
    /// version to version: before 3, `truncate` is refused, which empties files by path, and so is `O_TRUNC` without a way to
    /// write; before 5, files are opened by `open` and `openat` for reading, writing or both, and `openat2`, whose flags
    /// no filter sees, is refused: the fourth way (`O_ACCMODE`, open(2)) asks Landlock for no right, and `O_TRUNC` and
    /// commands to devices come with it; before 6, every call of [`Group::SendSignals`], of which a supervisor can
    /// perform what is harmless.
    ///
    /// Not covered: what a policy allows by path or by network address, which is the same for every uid, and what stat(2),
    /// readlink(2) and getxattr(2) say of paths that are not granted.
    #[must_use]
    pub fn sharing_uid(mut self, landlock: u32) -> Self {
        let signals = (landlock < SCOPES).then_some(Group::SendSignals);
        let groups = [Group::FileMetadata].into_iter().chain(signals);
        for group in groups {
            let plain = group.calls().iter().map(|name| (*name).to_owned());
            self.deny.extend(plain);
            // What a group allows under conditions is of the group as well.
            let ruled = group.rules().into_iter();
            self.deny.extend(ruled.map(|rule| rule.call().to_owned()));
        }
        let truncate = (landlock < TRUNCATION).then_some(&"truncate");
        let refused = REACH.iter().chain(METADATA).chain(truncate);
        self.deny.extend(refused.map(|name| (*name).to_owned()));

        self.calls.remove("prlimit64");
        let ids = ["sched_setaffinity", "sched_setparam", "sched_setscheduler"];
        for call in ids {
            self.narrow(call, &[Rule::on(call).int(0, 0)]);
        }
        // PRIO_PROCESS and IOPRIO_WHO_PROCESS of the caller.
        self.narrow(
            "setpriority",
            &[Rule::on("setpriority").int(0, 0).int(1, 0)],
        );
        self.narrow("ioprio_set", &[Rule::on("ioprio_set").int(0, 1).int(1, 0)]);
        for call in ["fcntl", "ioctl"] {
            let harmless = REQUESTS.into_iter().flat_map(Group::rules);
            let harmless: Vec<_> = harmless.filter(|rule| rule.call() == call).collect();
            self.narrow(call, &harmless);
        }
        if landlock < DEVICES {
            self.narrow_open(landlock);
        }
        self.narrow_sockets();
        self
    }

    /// A group's calls can only be taken back one by one.
    pub(crate) fn spell_out(&mut self, group: Group) {
        if self.groups.remove(&group) {
            let calls = group.calls().iter();
            self.calls.extend(calls.map(|name| (*name).to_owned()));
            self.rules.extend(group.rules());
        }
    }

    /// Leaves of sockets those that reach none of the user's services. Landlock does not mediate connections to a path.
    fn narrow_sockets(&mut self) {
        const FAMILIES: [u32; 3] = [2, 10, 16];
        self.spell_out(Group::Network);
        self.narrow(
            "socket",
            &FAMILIES.map(|family| Rule::on("socket").int(0, family)),
        );
        let pairs = Group::SocketPair.rules();
        let pairs: Vec<_> = pairs
            .into_iter()
            .filter(|rule| rule.call() == "socketpair")
            .collect();
        self.narrow("socketpair", &pairs);
    }

    /// Leaves of the calls that open files what asks Landlock for a right to all that it does.
    fn narrow_open(&mut self, landlock: u32) {
        const O_ACCMODE: u64 = 0o3;
        const O_TRUNC: u64 = 0o1000;
        self.spell_out(Group::Files);
        let read = if landlock < TRUNCATION {
            O_ACCMODE | O_TRUNC
        } else {
            O_ACCMODE
        };
        for (call, flags) in [("open", 1), ("openat", 2)] {
            let [read, write, both] = [(read, 0), (O_ACCMODE, 1), (O_ACCMODE, 2)]
                .map(|(mask, way)| Condition::masked_equal(flags, Width::Bits32, mask, way))
                .map(|condition| Rule::on(call).and(condition));
            self.narrow(call, &[read, write, both]);
        }
        self.deny.insert("openat2".to_owned());
    }

    /// Leaves of a call what these rules allow: all of them where it was allowed plainly, and of the policy's own
    /// rules those that ask for no less than one of them.
    pub(crate) fn narrow(&mut self, call: &str, to: &[Rule]) {
        if self.calls.remove(call) {
            self.rules.retain(|rule| rule.call() != call);
            self.rules.extend(to.iter().cloned());
            return;
        }
        let within = |rule: &Rule| to.iter().any(|bound| asks_no_less(rule, bound));
        self.rules
            .retain(|rule| rule.call() != call || within(rule));
    }
}

/// Whether every call that meets `rule` meets `bound`.
fn asks_no_less(rule: &Rule, bound: &Rule) -> bool {
    bound.arguments().iter().map(Condition::test).all(|needed| {
        rule.arguments().iter().map(Condition::test).any(|asked| {
            asked.index == needed.index
                && needed.mask & !asked.mask == 0
                && asked.value & needed.mask == needed.value
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Action, Arch, Program, Reporting, SeccompData};

    /// Whether the call is allowed with these arguments.
    pub(crate) fn allowed(program: &Program, name: &str, args: [u64; 6]) -> bool {
        let arch = program.arch();
        let data = SeccompData {
            nr: arch.number(name).unwrap().cast_signed(),
            arch: arch.audit(),
            instruction_pointer: 0,
            args,
        };
        program.evaluate(&data) == Action::Allow
    }

    fn compiled(policy: &SyscallPolicy, arch: Arch) -> Program {
        policy.compile(arch, Reporting::Notify).unwrap()
    }

    /// Everything that a policy can name, plainly.
    fn everything(arch: Arch) -> SyscallPolicy {
        let absent = [
            "clone3",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "mbind",
            "set_mempolicy",
            "set_mempolicy_home_node",
        ];
        let names = arch.calls().map(|(_, name)| name);
        SyscallPolicy::new().allow(names.filter(|name| !absent.contains(name)))
    }

    #[test]
    fn no_policy_lets_a_guest_of_a_shared_uid_reach_its_other_processes() {
        for arch in Arch::ALL {
            let wide = compiled(&everything(arch), arch);
            let narrow = compiled(&everything(arch).sharing_uid(2), arch);
            let other = 4711;
            let reaching = [
                ("prlimit64", [other, 7, 1, 0, 0, 0]),
                ("setpriority", [0, other, 19, 0, 0, 0]),
                ("setpriority", [2, 1000, 19, 0, 0, 0]),
                ("ioprio_set", [1, other, 0, 0, 0, 0]),
                ("ioprio_set", [3, 1000, 0, 0, 0, 0]),
                ("sched_setaffinity", [other, 8, 1, 0, 0, 0]),
                ("sched_setscheduler", [other, 0, 1, 0, 0, 0]),
                ("sched_setparam", [other, 1, 0, 0, 0, 0]),
                ("sched_setattr", [0; 6]),
                // F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE
                ("fcntl", [3, 8, other, 0, 0, 0]),
                ("fcntl", [3, 10, 9, 0, 0, 0]),
                ("fcntl", [3, 15, 1, 0, 0, 0]),
                ("fcntl", [3, 1024, 1, 0, 0, 0]),
                // FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
                ("ioctl", [3, 0x8901, 1, 0, 0, 0]),
                ("ioctl", [3, 0x8902, 1, 0, 0, 0]),
                ("ioctl", [3, 0x4008_6602, 1, 0, 0, 0]),
                ("ioctl", [3, 0x401c_5820, 1, 0, 0, 0]),
            ];
            for (name, args) in reaching {
                assert!(allowed(&wide, name, args), "{arch:?} {name} {args:?}");
                assert!(!allowed(&narrow, name, args), "{arch:?} {name} {args:?}");
            }
            let groups = [Group::FileMetadata, Group::SendSignals];
            let refused = groups.into_iter().flat_map(Group::calls);
            // A call that a group allows under conditions is refused as well.
            let ruled = groups.into_iter().flat_map(Group::rules);
            for rule in ruled.filter(|rule| arch.number(rule.call()).is_some()) {
                let preset = compiled(&SyscallPolicy::python().sharing_uid(2), arch);
                for program in [&narrow, &preset] {
                    assert!(!allowed(program, rule.call(), [0; 6]), "{arch:?} {rule:?}");
                }
            }
            for name in refused.chain(REACH).chain(METADATA).chain(&["truncate"]) {
                if arch.number(name).is_some() {
                    assert!(allowed(&wide, name, [0; 6]), "{arch:?} {name}");
                    assert!(!allowed(&narrow, name, [0; 6]), "{arch:?} {name}");
                }
            }
            for (name, args) in [
                ("prlimit64", [0, 7, 1, 0, 0, 0]),
                ("setpriority", [0, 0, 19, 0, 0, 0]),
                ("ioprio_set", [1, 0, 0, 0, 0, 0]),
                ("sched_setaffinity", [0, 8, 1, 0, 0, 0]),
                ("fcntl", [3, 1030, 0, 0, 0, 0]),
                ("ioctl", [1, 0x5401, 1, 0, 0, 0]),
                ("openat", [0; 6]),
            ] {
                assert!(allowed(&narrow, name, args), "{arch:?} {name} {args:?}");
            }
        }
    }

    #[test]
    fn own_rules_stay_where_they_reach_nobody_else() {
        let rule = |command| Rule::on("fcntl").int(1, command);
        let own = |pid| Rule::on("sched_setscheduler").int(0, pid).int(1, 3);
        let policy = SyscallPolicy::new()
            .allow_when(rule(1024))
            .allow_when(rule(3))
            .allow_when(rule(8))
            .allow_when(own(4711))
            .allow_when(own(0))
            .allow_when(Rule::on("socket").int(0, 16))
            .allow_when(Rule::on("socket").int(0, 1))
            .sharing_uid(7);
        assert_eq!(
            policy.rules(),
            [rule(3), own(0), Rule::on("socket").int(0, 16)]
        );
    }

    #[test]
    fn what_landlock_covers_stays_allowed() {
        let arch = Arch::X86_64;
        for abi in 0..8 {
            let program = compiled(&SyscallPolicy::python().sharing_uid(abi), arch);
            assert_eq!(allowed(&program, "tgkill", [1, 1, 9, 0, 0, 0]), abi >= 6);
            assert_eq!(allowed(&program, "truncate", [0; 6]), abi >= 3);
            assert!(allowed(&program, "ftruncate", [0; 6]));
            assert!(!allowed(&program, "chmod", [0; 6]));
        }
    }

    #[test]
    fn what_landlock_does_not_see_is_not_opened() {
        const TRUNC: u64 = 0o1000;
        let arch = Arch::X86_64;
        let openat = |flags| ("openat", [0, 0, flags, 0, 0, 0]);
        let open = |flags| ("open", [0, flags, 0, 0, 0, 0]);
        let named = SyscallPolicy::new().allow(["open", "openat", "openat2"]);
        for policy in [SyscallPolicy::python(), named] {
            for abi in 0..8 {
                let program = compiled(&policy.clone().sharing_uid(abi), arch);
                // O_ACCMODE opens a file neither for reading nor for writing, which is no right of Landlock's.
                for (name, args) in [openat(3), open(3), openat(3 | TRUNC), open(3 | TRUNC)] {
                    assert_eq!(allowed(&program, name, args), abi >= 5, "{name} {args:?}");
                }
                assert_eq!(allowed(&program, "openat2", [0; 6]), abi >= 5);
                // O_RDONLY | O_TRUNC empties what may only be read.
                for (name, args) in [openat(TRUNC), open(TRUNC)] {
                    assert_eq!(allowed(&program, name, args), abi >= 3, "{name} {args:?}");
                }
                for flags in [0, 1, 2, 1 | TRUNC, 2 | TRUNC, 0o2_000_000, 0o102] {
                    for (name, args) in [openat(flags), open(flags)] {
                        assert!(allowed(&program, name, args), "{name} {args:?}");
                    }
                }
            }
        }
        let rule = |flags| Rule::on("openat").int(2, flags);
        let own = SyscallPolicy::new()
            .allow_when(rule(0))
            .allow_when(rule(3))
            .allow_when(rule(0o1000));
        assert_eq!(own.sharing_uid(2).rules(), [rule(0)]);
    }

    #[test]
    fn the_users_services_are_not_reached_by_local_sockets() {
        const STREAM: u64 = 1;
        const DATAGRAM: u64 = 2;
        let arch = Arch::X86_64;
        let named = SyscallPolicy::new().allow(["socket", "socketpair", "connect"]);
        let network = SyscallPolicy::python().allow_group(Group::Network);
        for policy in [named, network] {
            let wide = compiled(&policy, arch);
            let narrow = compiled(&policy.sharing_uid(7), arch);
            // AF_UNIX, AF_VSOCK, AF_ALG; a pair of datagram sockets can be connected to any address.
            for (name, args) in [
                ("socket", [1, STREAM, 0, 0, 0, 0]),
                ("socket", [40, STREAM, 0, 0, 0, 0]),
                ("socket", [38, 5, 0, 0, 0, 0]),
                ("socketpair", [1, DATAGRAM, 0, 0, 0, 0]),
            ] {
                assert!(allowed(&wide, name, args), "{name} {args:?}");
                assert!(!allowed(&narrow, name, args), "{name} {args:?}");
            }
            for (name, args) in [
                ("socket", [2, STREAM, 0, 0, 0, 0]),
                ("socket", [10, DATAGRAM, 0, 0, 0, 0]),
                ("socketpair", [1, STREAM, 0, 0, 0, 0]),
                ("connect", [0; 6]),
            ] {
                assert!(allowed(&narrow, name, args), "{name} {args:?}");
            }
        }
    }

    #[test]
    fn the_kill_list_still_kills() {
        let policy = SyscallPolicy::python().sharing_uid(0);
        assert!(policy.check(Arch::X86_64).is_ok());
        let program = compiled(&policy, Arch::X86_64);
        let explained = program.explain("ptrace").unwrap();
        assert_eq!(explained.ruling(), crate::Ruling::Killed, "{explained:?}");
    }
}
