//! The presets: which calls each kind of guest needs, and who needs them.

use crate::policy::SyscallPolicy;
use crate::{Group, Rule};

/// What every runtime needs: [`Group::purpose`] says who needs each.
const RUNTIME: [Group; 10] = [
    Group::Runtime,
    Group::BasicIo,
    Group::Files,
    Group::FileMetadata,
    Group::Memory,
    Group::Threads,
    Group::Signals,
    Group::SendSignals,
    Group::Time,
    Group::Events,
];

/// What bash does to its terminal under job control (`set -m`), whether or not there is one: it gives it to a job (`TIOCSPGRP`)
/// and, when a job was ended by a signal, sets its modes back (`TCSETSW`). Guests have no controlling terminal, so the first always fails with
/// `ENOTTY`. The second works on a terminal that the embedder handed over as a stream.
const JOB_CONTROL: [u32; 2] = [0x5410, 0x5403];

/// GNU make sets its effective ids to what they are, before each command. Without capabilities a process can only exchange its
/// own ids, all three of which are the same in a guest.
const OWN_IDS: [&str; 2] = ["setresgid", "setresuid"];

impl SyscallPolicy {
    /// For CPython 3.11 to 3.13 under glibc and musl, with packages such as NumPy, pandas and Matplotlib: files, threads,
    /// `fork`, multiprocessing, sqlite3, asyncio (with a socket pair, and no other socket), no exec, no network.
    ///
    /// Calls that only an attack makes kill: see [`Self::killed`]. Beyond the kill list, a refused call fails
    /// with `EPERM`, upon which libraries go on without. Three look for something at their start that no preset has, and the
    /// refusal is a denied call of an honest program:
    ///
    /// - urllib3 (pip, requests) tries whether IPv6 sockets can be made (`socket`),
    /// - Matplotlib, when it first lists fonts, and `ctypes.util.find_library` try to start programs (`execve`),
    /// - `uuid.uuid1` looks for uuidd, a service for time-based UUIDs (`socket`).
    pub fn python() -> Self {
        Self::native()
    }

    /// For programs in C, C++, Rust or Go, linked statically or dynamically: files, threads, `fork`, timers,
    /// epoll, a socket pair, no exec, no network.
    ///
    /// A program with musl asks nscd(8) for users that are not in `/etc/passwd`, by a call that cannot be told from any other
    /// attempt at a local socket: it is refused, and named. glibc's is known and answered as a probe.
    ///
    /// The same calls as [`Self::python`] in this release. They are two presets since what each language's
    /// runtime needs moves on its own.
    pub fn native() -> Self {
        Self::runtime()
            .allow_group(Group::Processes)
            .allow_group(Group::SocketPair)
            .allow_group(Group::Numa)
    }

    /// For Node.js: files, workers, WebAssembly, timers, signals to itself; no children, no sockets, no exec, no network.
    ///
    /// Of [`Self::native`] it lacks what Node only uses to start programs: [`Group::Processes`] and
    /// [`Group::SocketPair`], and what nothing in it asks: where memory is placed ([`Group::Numa`]). For `child_process` take the calls
    /// of [`Self::shell`] instead. `child_process` fails with `EPERM` at `socketpair` or `clone`, `listen` and `connect` at `socket`, and
    /// `fs.watch` at `inotify_init1` ([`Group::FileWatch`] shows names in directories that Landlock closes); `fs.watchFile` works.
    /// `os.networkInterfaces` fails at `socket`, and where guests have a uid of their own `os.userInfo` finds no name for it.
    pub fn node() -> Self {
        Self::runtime()
    }

    /// For bash and other shells, with coreutils and whatever else they start: as [`Self::native`], with further programs
    /// ([`Group::Exec`]) and job control.
    ///
    /// The filter holds for every program that is started, and so does everything else of the sandbox. Which programs can be
    /// started is Landlock's to say; the two together do not bound which code runs, since a shell runs what it can read.
    ///
    /// Beyond [`Self::native`]:
    ///
    /// - `execve`, `execveat`: every command that is not built in,
    /// - `setresuid`, `setresgid`: GNU make, which gives up rights that it does not have,
    /// - `ioctl` with `TIOCSPGRP` and `TCSETSW`: bash, when job control is on (`set -m`). Where the embedder hands its own terminal to the
    ///   guest as a stream, the guest can change its modes by the second; it cannot take it over or type into it.
    ///
    /// `tail -f` is refused `inotify_init`, says so and polls.
    pub fn shell() -> Self {
        let jobs = JOB_CONTROL.map(|request| Rule::on("ioctl").int(1, request));
        let starting = Self::native().allow_group(Group::Exec).allow(OWN_IDS);
        jobs.into_iter().fold(starting, Self::allow_when)
    }

    /// For the JVM (HotSpot; tried with OpenJDK 17): files, threads, timers, a socket pair; no children, no exec, no network.
    ///
    /// Of [`Self::native`] it lacks [`Group::Processes`], which the JVM only uses to start programs, and
    /// [`Group::Numa`] (`-XX:+UseNUMA`, which is off unless it is asked for). [`Group::SocketPair`] is what `java.nio` closes descriptors
    /// with that other threads use.
    ///
    /// The JVM's network library, which `java.nio` loads too, tries at its start whether IPv4 and IPv6 sockets can be made: three
    /// refused calls of `socket`, without consequence, in the outcome of nearly every honest program.
    pub fn java() -> Self {
        Self::runtime().allow_group(Group::SocketPair)
    }

    fn runtime() -> Self {
        RUNTIME
            .into_iter()
            .fold(Self::default(), Self::allow_group)
            .kill(HOSTILE)
    }
}

/// Calls that no honest guest of the presets makes, not even as a probe: reaching into other processes,
/// namespaces and mounts, the kernel's keys, modules, tracing and ports.
///
/// Left out on purpose, so that they are only refused: io_uring (event loops probe for it), `seccomp` and
/// `landlock_*` (programs confine themselves), `process_madvise` (allocators purge with it),
/// `name_to_handle_at` (libmount asks for mount ids).
const HOSTILE: [&str; 38] = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "open_tree_attr",
    "move_mount",
    "mount_setattr",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "open_by_handle_at",
    "unshare",
    "setns",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "reboot",
    "kexec_load",
    "kexec_file_load",
    "swapon",
    "swapoff",
    "ioperm",
    "iopl",
    "acct",
    "quotactl",
];
