//! What is kept of each call of the program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use varek_core::{FLOOR, Rule, SyscallGroup, SyscallPolicy};
use varek_seccomp::{Action, Arch, Decision, Program, Reporting, SeccompData, TcpRole};

use super::calls::{self, Needs, Operand};
use super::image;
use super::sys::{Notification, Reply};
use super::tracee::{Place, Tracee};

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Calls by name, and how often each was made. Without the floor.
    pub calls: BTreeMap<String, u64>,
    /// Of these, what is allowed with any arguments.
    pub plain: BTreeSet<String>,
    /// Of these, what is allowed with these arguments: as groups have it, or for the commands that were given.
    pub rules: Vec<Rule>,
    /// Paths without links, and what they are used for.
    pub paths: BTreeMap<PathBuf, Uses>,
    /// Sockets.
    pub network: Sockets,
    /// A program in the scratch directory was started.
    pub executes_scratch: bool,
    /// Files of `/dev/shm` were used.
    pub shared_memory: bool,
    /// Calls, with what they asked, that no policy allows; they failed as they do under VAREK.
    pub refused: BTreeSet<String>,
    /// Calls through another ABI, upon which a guest is killed.
    pub foreign: BTreeSet<String>,
    /// Writing that no policy grants.
    pub ungrantable: BTreeSet<PathBuf>,
    /// Paths or addresses that could not be read from the program.
    pub unread: u64,
}

/// What a path is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// It is read or listed.
    pub read: bool,
    /// It is written; of a directory: things are made, moved or removed there.
    pub write: bool,
    /// It is started, or what a start needs.
    pub execute: bool,
}

/// What a program did with sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// The least that all of it takes.
    pub reach: Reach,
    /// Connected pairs were made.
    pub pairs: bool,
    /// TCP ports that were connected to.
    pub connect: BTreeSet<u16>,
    /// TCP ports that sockets were bound to.
    pub bind: BTreeSet<u16>,
    /// Something listened.
    pub listens: bool,
    /// Calls for which TCP and pairs are not enough.
    pub beyond: BTreeSet<String>,
}

/// How far sockets reach, each including the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// There are none.
    #[default]
    Nothing,
    /// Pairs, and sockets that the program was started with.
    Pairs,
    /// TCP.
    Tcp,
    /// Anything else.
    Host,
}

/// The answers that VAREK gives under every policy, and what the program was seen to do.
#[derive(Debug)]
pub(super) struct Recorder {
    arch: Arch,
    /// Allows nothing: tells probes, and calls through other ABIs.
    bare: Program,
    /// Allows everything that a policy can.
    wide: Program,
    pairs: Program,
    tcp: Program,
    rules: BTreeMap<String, Vec<Rule>>,
    scratch: PathBuf,
    /// The first process, once its own start was seen. What was called before is not the program's.
    first: Option<u32>,
    observed: Observed,
}

impl Recorder {
    /// A recorder for this architecture. What is beneath `scratch` needs no grant.
    pub(super) fn new(arch: Arch, scratch: &Path) -> anyhow::Result<Self> {
        let compile = |policy: SyscallPolicy| policy.compile(arch, Reporting::Notify);
        let pairs = || SyscallPolicy::new().allow_group(SyscallGroup::SocketPair);
        let possible = |name: &&str| SyscallPolicy::new().allow([name]).allows(name);
        let names = arch.calls().map(|(_, name)| name);
        let mut rules: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
        for rule in SyscallGroup::ALL.into_iter().flat_map(SyscallGroup::rules) {
            rules.entry(rule.call().to_owned()).or_default().push(rule);
        }
        Ok(Self {
            arch,
            bare: compile(SyscallPolicy::new())?,
            wide: compile(SyscallPolicy::new().allow(names.filter(possible)))?,
            pairs: compile(pairs())?,
            tcp: compile(pairs().with_tcp(TcpRole::Both))?,
            rules,
            scratch: scratch.to_owned(),
            first: None,
            observed: Observed::default(),
        })
    }

    pub(super) fn finish(self) -> Observed {
        self.observed
    }

    /// Records a call, and says what becomes of it.
    pub(super) fn notified(&mut self, call: &Notification) -> Reply {
        let data = SeccompData {
            nr: call.nr,
            arch: call.arch,
            instruction_pointer: call.instruction_pointer,
            args: call.args,
        };
        let tracee = Tracee(call.pid);
        let Some(first) = self.first else {
            self.before(tracee, &data);
            return Reply::Continue;
        };
        let number = call.nr.cast_unsigned();
        match self.bare.decide(&data) {
            Decision::Kill => {
                let (abi, name) = varek_seccomp::describe(call.arch, number);
                let name = name.unwrap_or_else(|| number.to_string());
                self.observed.foreign.insert(format!("{name} ({abi})"));
                return Reply::Continue;
            }
            Decision::Probe => return Reply::Errno(libc::ENOSYS),
            _ => {}
        }
        let Some(name) = self.arch.name(number) else {
            return Reply::Errno(libc::ENOSYS);
        };
        let [one, two, ..] = data.args;
        if self.wide.evaluate(&data) != Action::Allow {
            let asked = format!("{name}({one:#x}, {two:#x})");
            self.observed.refused.insert(asked);
            return Reply::Errno(libc::EPERM);
        }
        // Of the floor only what acts on another process is a policy's to allow.
        if !FLOOR.contains(&name) || name == "prlimit64" && low(one) != 0 {
            *self.observed.calls.entry(name.to_owned()).or_default() += 1;
            if SyscallGroup::Network.calls().contains(&name) {
                self.socket(tracee, name, &data, first);
            } else {
                self.allow(name, &data.args);
            }
        }
        for operand in calls::operands(name) {
            if !self.operand(tracee, *operand, &data.args, first) {
                break;
            }
        }
        if name == "ioctl" {
            self.device(tracee, one, two);
        }
        Reply::Continue
    }

    /// The program's own start: VAREK starts it without the policy's leave, but Landlock looks at the images.
    fn before(&mut self, tracee: Tracee, data: &SeccompData) {
        if self.arch.name(data.nr.cast_unsigned()) == Some("execve") {
            self.first = Some(tracee.0);
            for operand in calls::operands("execve") {
                self.operand(tracee, *operand, &data.args, tracee.0);
            }
        }
    }

    fn allow(&mut self, name: &str, args: &[u64; 6]) {
        let met = |rule: &&Rule| rule.arguments().iter().all(|test| test.holds(args));
        let known = self
            .rules
            .get(name)
            .and_then(|rules| rules.iter().find(met));
        let rule = known.cloned().or_else(|| {
            let index = calls::command(name)?;
            let command = args.get(usize::from(index))?;
            Some(Rule::on(name).int(index, low(*command)))
        });
        match rule {
            Some(rule) if self.observed.rules.contains(&rule) => {}
            Some(rule) => self.observed.rules.push(rule),
            None => {
                self.observed.plain.insert(name.to_owned());
            }
        }
    }

    fn socket(&mut self, tracee: Tracee, name: &str, data: &SeccompData, first: u32) {
        let [one, two, three, ..] = data.args;
        let sockets = &mut self.observed.network;
        let reach = if self.pairs.evaluate(data) == Action::Allow {
            Reach::Pairs
        } else if self.tcp.evaluate(data) == Action::Allow {
            Reach::Tcp
        } else {
            let asked = format!("{name}({one:#x}, {two:#x}, {three:#x})");
            sockets.beyond.insert(match name {
                "socket" | "socketpair" => asked,
                _ => name.to_owned(),
            });
            Reach::Host
        };
        sockets.reach = sockets.reach.max(reach);
        sockets.pairs |= name == "socketpair";
        sockets.listens |= name == "listen";
        if matches!(name, "connect" | "bind") {
            self.address(tracee, name, two, three, first);
        }
    }

    /// A `struct sockaddr` (ip(7), ipv6(7), unix(7)): its family, and a port or a path.
    fn address(&mut self, tracee: Tracee, name: &str, address: u64, length: u64, first: u32) {
        const LONGEST: u64 = 128;
        let length = usize::try_from(length.min(LONGEST)).unwrap_or(0);
        let Some(bytes) = tracee.memory(address, length) else {
            self.observed.unread += 1;
            return;
        };
        let [low, high, rest @ ..] = bytes.as_slice() else {
            return;
        };
        match (i32::from(u16::from_ne_bytes([*low, *high])), rest) {
            (libc::AF_INET | libc::AF_INET6, [high, low, ..]) => {
                let port = u16::from_be_bytes([*high, *low]);
                let sockets = &mut self.observed.network;
                if name == "bind" {
                    sockets.bind.insert(port);
                } else {
                    sockets.connect.insert(port);
                }
            }
            // A name that starts with NUL is in no file system.
            (libc::AF_UNIX, [1..=255, ..]) if name == "bind" => {
                let end = rest.iter().position(|byte| *byte == 0);
                let path = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
                let found = tracee.directory(libc::AT_FDCWD, Path::new(OsStr::from_bytes(path)));
                self.found(found, Uses::WRITE, first);
            }
            _ => {}
        }
    }

    /// Records one path of a call; whether the call goes on to its next.
    fn operand(&mut self, tracee: Tracee, operand: Operand, args: &[u64; 6], first: u32) -> bool {
        let argument = |index: usize| args.get(index).copied().unwrap_or(0);
        let Some(path) = tracee.path(argument(operand.path)) else {
            self.observed.unread += 1;
            return false;
        };
        let directory = operand
            .directory
            .map_or(libc::AT_FDCWD, |index| low(argument(index)).cast_signed());
        let file = |follow| tracee.file(directory, &path, follow);
        let (found, uses) = match operand.needs {
            Needs::Open(_) | Needs::OpenHow(_) | Needs::Create => {
                let flags = match operand.needs {
                    Needs::Open(flags) => Some(u64::from(low(argument(flags)))),
                    // The first member of struct open_how.
                    Needs::OpenHow(how) => tracee
                        .memory(argument(how), size_of::<u64>())
                        .and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))),
                    _ => Some(O_WRONLY | O_CREAT | O_TRUNC),
                };
                let Some(flags) = flags else {
                    self.observed.unread += 1;
                    return false;
                };
                let Some(uses) = opening(flags) else {
                    return true;
                };
                match file(flags & O_NOFOLLOW == 0) {
                    Err(Errno::NOENT) if flags & O_CREAT != 0 => {
                        (tracee.directory(directory, &path), Uses::WRITE)
                    }
                    found => (found, uses),
                }
            }
            Needs::Execute => {
                let found = file(true);
                let place = found.as_ref().ok();
                let image = place.filter(|place| place.kind == FileType::RegularFile);
                for interpreter in image
                    .map(|place| image::interpreters(&place.path))
                    .unwrap_or_default()
                {
                    let found = tracee.file(libc::AT_FDCWD, &interpreter, true);
                    self.found(found, Uses::EXECUTE, first);
                }
                (found, Uses::EXECUTE)
            }
            Needs::Write => (file(true), Uses::WRITE),
            Needs::Make if file(false).is_ok() => return false,
            Needs::Take if file(false).is_err() => return false,
            Needs::Make | Needs::Replace | Needs::Take => {
                (tracee.directory(directory, &path), Uses::WRITE)
            }
        };
        self.found(found, uses, first)
    }

    /// Records the use of a file; whether it is there.
    fn found(&mut self, found: Result<Place, Errno>, uses: Uses, first: u32) -> bool {
        match found {
            Ok(Place { path, kind }) => {
                // Only files are started; a directory in a search path is not.
                if !uses.execute || kind == FileType::RegularFile {
                    self.used(path, uses, first);
                }
                true
            }
            // What the program may not enter itself is like what is not there.
            Err(
                Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP | Errno::NAMETOOLONG,
            ) => false,
            Err(_) => {
                self.observed.unread += 1;
                false
            }
        }
    }

    fn used(&mut self, path: PathBuf, uses: Uses, first: u32) {
        // Pipes and sockets have no path, nor have memory files and what was deleted.
        let text = path.as_os_str().as_encoded_bytes();
        if path.is_relative() || text.ends_with(b" (deleted)") {
            return;
        }
        if path.starts_with(&self.scratch) {
            self.observed.executes_scratch |= uses.execute;
            return;
        }
        if path.starts_with("/dev/shm") {
            self.observed.shared_memory = true;
            return;
        }
        let path = match process_entry(&path) {
            Some(_) if uses.write => {
                let entry = path.iter().skip(3).collect::<PathBuf>();
                let entry = Path::new("/proc/PID").join(entry);
                self.observed.ungrantable.insert(entry);
                return;
            }
            Some(process) if process == first => return,
            // The numbers of other processes change from run to run.
            Some(_) => PathBuf::from("/proc"),
            None => path,
        };
        let known = self.observed.paths.entry(path).or_default();
        known.read |= uses.read;
        known.write |= uses.write;
        known.execute |= uses.execute;
    }

    /// A command to a device that the program has opened takes the grant to write to it (Landlock ABI 5, Linux 6.10). The question whether
    /// it is a terminal, which every language's `open` asks, may fail.
    fn device(&mut self, tracee: Tracee, descriptor: u64, command: u64) {
        const TCGETS: u32 = 0x5401;
        if low(command) == TCGETS {
            return;
        }
        let found = tracee.file(low(descriptor).cast_signed(), Path::new(""), true);
        if let Ok(Place {
            path,
            kind: FileType::CharacterDevice | FileType::BlockDevice,
        }) = found
            && let Some(uses) = self.observed.paths.get_mut(&path)
        {
            uses.write = true;
        }
    }
}

impl Uses {
    const READ: Self = Self {
        read: true,
        write: false,
        execute: false,
    };
    const WRITE: Self = Self {
        read: false,
        write: true,
        execute: false,
    };
    const EXECUTE: Self = Self {
        read: false,
        write: false,
        execute: true,
    };
}

const O_WRONLY: u64 = libc::O_WRONLY as u64;
const O_CREAT: u64 = libc::O_CREAT as u64;
const O_TRUNC: u64 = libc::O_TRUNC as u64;
const O_NOFOLLOW: u64 = libc::O_NOFOLLOW as u64;

/// What opening with these flags needs; nothing with `O_PATH`, about which Landlock does not decide.
fn opening(flags: u64) -> Option<Uses> {
    const O_ACCMODE: u64 = libc::O_ACCMODE as u64;
    const O_PATH: u64 = libc::O_PATH as u64;
    if flags & O_PATH != 0 {
        None
    } else if flags & (O_ACCMODE | O_TRUNC) == 0 {
        Some(Uses::READ)
    } else {
        Some(Uses::WRITE)
    }
}

/// The process whose entries of `/proc` a path is in.
fn process_entry(path: &Path) -> Option<u32> {
    let rest = path.strip_prefix("/proc").ok()?;
    rest.iter().next()?.to_str()?.parse().ok()
}

/// The low half of a register, which is all that the kernel takes of an `int`.
fn low(argument: u64) -> u32 {
    u32::try_from(argument & 0xffff_ffff).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_opening_needs() {
        let flags = |flags: i32| opening(u64::try_from(flags).unwrap());
        assert_eq!(flags(libc::O_RDONLY | libc::O_CLOEXEC), Some(Uses::READ));
        assert_eq!(flags(libc::O_RDONLY | libc::O_DIRECTORY), Some(Uses::READ));
        assert_eq!(flags(libc::O_RDWR), Some(Uses::WRITE));
        assert_eq!(flags(libc::O_RDONLY | libc::O_TRUNC), Some(Uses::WRITE));
        assert_eq!(flags(libc::O_PATH | libc::O_DIRECTORY), None);
    }

    #[test]
    fn only_numbers_in_proc_are_processes() {
        assert_eq!(process_entry(Path::new("/proc/71/fd/0")), Some(71));
        for path in ["/proc/cpuinfo", "/proc", "/process/71", "/sys/71"] {
            assert_eq!(process_entry(Path::new(path)), None, "{path}");
        }
    }

    fn recorder() -> Recorder {
        let mut recorder = Recorder::new(Arch::X86_64, Path::new("/scratch")).unwrap();
        recorder.first = Some(1);
        recorder
    }

    fn call(recorder: &mut Recorder, name: &str, args: [u64; 6]) -> Reply {
        let nr = Arch::X86_64.number(name).unwrap().cast_signed();
        recorder.notified(&Notification {
            nr,
            arch: Arch::X86_64.audit(),
            args,
            ..Notification::default()
        })
    }

    #[test]
    fn what_every_policy_refuses_is_refused_so_that_the_way_without_is_learnt() {
        let mut recorder = recorder();
        for probe in ["clone3", "io_uring_setup", "set_mempolicy"] {
            assert_eq!(
                call(&mut recorder, probe, [0; 6]),
                Reply::Errno(libc::ENOSYS)
            );
        }
        // nscd's socket, and a namespace.
        let nscd = call(&mut recorder, "socket", [1, 0x8_0801, 0, 0, 0, 0]);
        assert_eq!(nscd, Reply::Errno(libc::ENOSYS));
        let space = call(&mut recorder, "clone", [0x1000_0011, 0, 0, 0, 0, 0]);
        assert_eq!(space, Reply::Errno(libc::EPERM));
        let observed = recorder.finish();
        assert_eq!(observed.calls, BTreeMap::new());
        assert_eq!(
            observed.refused,
            BTreeSet::from(["clone(0x10000011, 0x0)".into()])
        );
    }

    #[test]
    fn calls_are_as_narrow_as_the_groups_have_them() {
        let mut recorder = recorder();
        for (name, args) in [
            ("read", [0; 6]),
            ("exit_group", [0; 6]),
            ("prlimit64", [0, 7, 0, 0, 0, 0]),
            ("clone", [0x003d_0f00, 0, 0, 0, 0, 0]),
            ("fcntl", [3, 1030, 0, 0, 0, 0]),
            ("fcntl", [3, 1030, 4, 0, 0, 0]),
            ("ioctl", [3, 0x4711, 0, 0, 0, 0]),
            ("setxattr", [0, 0, 0, 28, 0, 0]),
        ] {
            assert_eq!(call(&mut recorder, name, args), Reply::Continue, "{name}");
        }
        let observed = recorder.finish();
        assert_eq!(observed.plain, BTreeSet::from(["read".into()]));
        let calls: Vec<_> = observed.rules.iter().map(Rule::call).collect();
        assert_eq!(calls, ["clone", "fcntl", "ioctl", "setxattr"]);
        assert!(observed.rules.contains(&Rule::on("ioctl").int(1, 0x4711)));
        assert_eq!(observed.calls.get("fcntl"), Some(&2));
        assert!(!observed.calls.contains_key("prlimit64"));
    }

    #[test]
    fn sockets_reach_as_far_as_their_calls() {
        let reach = |calls: &[(&str, [u64; 6])]| {
            let mut recorder = recorder();
            for (name, args) in calls {
                call(&mut recorder, name, *args);
            }
            recorder.finish().network.reach
        };
        let pair = ("socketpair", [1, 1, 0, 0, 0, 0]);
        let stream = ("socket", [2, 1, 0, 0, 0, 0]);
        let datagram = ("socket", [2, 2, 0, 0, 0, 0]);
        assert_eq!(reach(&[("read", [0; 6])]), Reach::Nothing);
        assert_eq!(reach(&[pair]), Reach::Pairs);
        assert_eq!(reach(&[pair, stream]), Reach::Tcp);
        assert_eq!(reach(&[datagram, stream, pair]), Reach::Host);
    }

    #[test]
    fn what_a_run_has_of_its_own_needs_no_grant() {
        let mut recorder = recorder();
        for (path, uses) in [
            ("/scratch/a/b", Uses::WRITE),
            ("/scratch/program", Uses::EXECUTE),
            ("/dev/shm/sem", Uses::WRITE),
            ("/proc/1/status", Uses::READ),
            ("/proc/1/oom_score_adj", Uses::WRITE),
            ("/proc/7/status", Uses::READ),
            ("/srv/gone (deleted)", Uses::READ),
            ("pipe:[7]", Uses::READ),
            ("/srv/data", Uses::READ),
        ] {
            recorder.used(path.into(), uses, 1);
        }
        let observed = recorder.finish();
        assert!(observed.executes_scratch && observed.shared_memory);
        assert_eq!(
            observed.ungrantable,
            BTreeSet::from(["/proc/PID/oom_score_adj".into()])
        );
        let read = ["/proc", "/srv/data"].map(|path| (PathBuf::from(path), Uses::READ));
        assert_eq!(observed.paths, BTreeMap::from(read));
    }
}
