//! One run, prepared: the last place that can fail on what the embedder passed.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use varek_cgroup::Group;
use varek_seccomp::{Instruction, Permit};
use varek_telemetry::{Arguments, Layer, LayerStatus, RunId, TraceParent};

use crate::child::sys::{
    Rlimit, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
};
use crate::child::{Directory, Report};
use crate::command::{Command, Input, InputKind, Output, ScratchFile};
use crate::creation::Creation;
use crate::error::Error;
use crate::files::{self, Files, plain};
use crate::identity::Lease;
use crate::kits::{Kit, Kits};
use crate::landlock::{Access, Grants};
use crate::mounts::{self, Bound, MountPlan};
use crate::namespaces::{Namespace, TMP, hidden};
use crate::pipe::ByteQueue;
use crate::policy::Policy;
use crate::programs::first_line;
use crate::reaper::RunNamespaces;
use crate::removers::Collection;
use crate::sandbox::Sealed;
use crate::scratch::{PREFIX, Scratch};
use crate::streams::{Capture, Streams, above_stdio};
use crate::strict;

/// What the spawner needs of a run. Every descriptor is over 2 and closes at exec.
pub(crate) struct ChildPlan {
    pub(crate) report: Arc<Report>,
    pub(crate) creation: Creation,
    /// The directory of the cgroup2 group.
    pub(crate) group: OwnedFd,
    /// The `cgroup.procs` of the groups that the child joins, that of the cgroup2 group first where it is not cloned into
    /// that.
    pub(crate) placements: Vec<OwnedFd>,
    /// What a child that joins its cgroup2 group locks until it has.
    pub(crate) settling: Option<OwnedFd>,
    pub(crate) namespaces: Option<Arc<RunNamespaces>>,
    pub(crate) mounts: Option<MountPlan>,
    pub(crate) directory: StartDirectory,
    pub(crate) rlimits: Vec<Rlimit>,
    pub(crate) open_files: Rlimit,
    pub(crate) privileged: bool,
    pub(crate) identity: Option<(u32, u32)>,
    pub(crate) ruleset: Option<(OwnedFd, u64)>,
    pub(crate) filter: Vec<Instruction>,
    pub(crate) filter_flags: usize,
    pub(crate) stdio: [OwnedFd; 3],
    pub(crate) program: CString,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    pub(crate) permit: [u64; 3],
    #[cfg(feature = "test-hooks")]
    pub(crate) hold_at: u32,
}

/// Where the guest starts.
pub(crate) enum StartDirectory {
    Open(OwnedFd),
    /// Of a guest with mounts of its own.
    Path(CString),
}

impl StartDirectory {
    pub(crate) fn for_child(&self) -> Directory<'_> {
        match self {
            Self::Open(directory) => Directory::Open(directory.as_raw_fd()),
            Self::Path(path) => Directory::Path(path),
        }
    }
}

/// What the supervisor keeps of a run.
pub(crate) struct RunPlan {
    pub(crate) run: RunId,
    pub(crate) report: Arc<Report>,
    pub(crate) group: Group,
    /// Until it is handed over for its removal.
    pub(crate) scratch: Option<Scratch>,
    /// Its files, for the embedder.
    pub(crate) files: Files,
    /// What is to be read of it before.
    pub(crate) collection: Collection,
    pub(crate) scratch_path: PathBuf,
    /// What the scratch layer comes to in this run, where that is not what it comes to in the others.
    pub(crate) scratch_status: Option<LayerStatus>,
    /// Until they are handed over for their end.
    pub(crate) namespaces: Option<Arc<RunNamespaces>>,
    /// Given back after everything else that is of this uid.
    pub(crate) lease: Option<Lease>,
    pub(crate) stdin: Option<(OwnedFd, Arc<ByteQueue>)>,
    /// Whether the embedder writes to stdin itself.
    pub(crate) stdin_piped: bool,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
    pub(crate) program: PathBuf,
    pub(crate) interpreter: Option<PathBuf>,
    pub(crate) arguments: Arguments,
    pub(crate) traceparent: Option<TraceParent>,
    #[cfg(feature = "test-hooks")]
    pub(crate) hold_reading: bool,
}

/// Prepares a run. Everything that was made is removed again when this fails.
pub(crate) fn prepare(
    sealed: &Sealed,
    kits: &Kits,
    mut command: Command,
) -> Result<(ChildPlan, RunPlan), Error> {
    let policy = &sealed.policy;
    // What can be seen to be wrong is wrong before anything is made.
    let collection = command_allowed(sealed, &command)?;
    let stdin = std::mem::replace(&mut command.stdin, Input::null()).0;
    let stdout = std::mem::replace(&mut command.stdout, Output::null()).0;
    let stderr = std::mem::replace(&mut command.stderr, Output::null()).0;
    let stdin_piped = matches!(stdin, InputKind::Piped);
    let placed = placed_program(&command);
    let found = if placed.is_none() {
        let program = find_program(policy, &command.program)?;
        let own_uid = sealed.uids.is_some();
        let image = Image::open(CWD, &program.clone(), program, own_uid)?;
        if own_uid {
            reachable(&image.path)?;
        }
        Some(image)
    } else {
        None
    };

    in_sight(sealed, &command, found.as_ref())?;

    // Where this fails the last is dropped first: the uid goes back when nothing of it is left.
    let Kit {
        lease,
        run,
        ruleset,
        group,
        namespaces,
        scratch,
    } = kits.take(sealed)?;
    let identity = lease.as_ref().map(|lease| (lease.uid(), lease.gid()));
    let (scratch, of_kit) = choose_scratch(sealed, &command, run, identity, scratch)?;
    fill(&scratch, &command.files)?;
    let image = match (found, placed) {
        (Some(image), _) => image,
        (None, relative) => {
            let relative = relative.unwrap_or_default();
            let program = scratch.seen().join(&relative);
            Image::open(scratch.directory(), &relative, program, identity.is_some())?
        }
    };
    let (arguments, environment) = strings(policy, &command, scratch.seen())?;
    let ruleset = match (ruleset, &sealed.grants) {
        (Some(ruleset), Some(grants)) => {
            let scratch = (!of_kit).then_some(&scratch);
            grant(policy, grants, &ruleset, &image, scratch)?;
            Some((ruleset, grants.own_proc_rights()))
        }
        _ => None,
    };
    let streams = Streams::open(stdin, stdout, stderr, identity)?;
    let permit = Permit::random().map_err(|e| Error::io("getrandom", e))?;
    let mounts = mount_plan(sealed, &command, &scratch, &image, namespaces.as_ref())?;
    let directory = start_directory(&command, &scratch, mounts.is_some())?;
    let child = ChildPlan {
        report: Arc::new(Report::new()),
        creation: sealed.creation,
        group: above_stdio(group.directory())?,
        placements: placements(sealed.creation, &group)?,
        settling: settling(sealed)?,
        namespaces: namespaces.clone(),
        mounts,
        directory,
        rlimits: rlimits(policy, sealed.most_cpus),
        open_files: nofile(policy),
        privileged: sealed.privileged,
        identity,
        ruleset,
        filter: sealed.program.with_permit(&permit),
        filter_flags: filter_flags(sealed),
        stdio: streams.child,
        program: c_string("the program's path", image.path.as_os_str())?,
        arguments,
        environment,
        permit: permit.words(),
        #[cfg(feature = "test-hooks")]
        hold_at: command.hold_at,
    };
    let run = RunPlan {
        run,
        report: child.report.clone(),
        group,
        scratch_path: scratch.path().to_owned(),
        scratch_status: scratch_status(&command),
        files: scratch.files(),
        scratch: Some(scratch),
        collection,
        namespaces,
        lease,
        stdin: streams.stdin,
        stdin_piped,
        stdout: streams.stdout,
        stderr: streams.stderr,
        program: image.path,
        interpreter: image.interpreter,
        arguments: Arguments::of(policy.record_arguments, &command.arguments),
        traceparent: command.traceparent,
        #[cfg(feature = "test-hooks")]
        hold_reading: command.hold_reading,
    };
    Ok((child, run))
}

const fn filter_flags(sealed: &Sealed) -> usize {
    if sealed.reports_denials {
        SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    } else {
        0
    }
}

/// What the scratch layer comes to where the command brings the directory.
fn scratch_status(command: &Command) -> Option<LayerStatus> {
    let detail =
        "a directory of the embedder's, given back afterwards; nothing bounds its total size";
    let enforced = || LayerStatus::Enforced {
        detail: detail.into(),
    };
    command.scratch.is_some().then(enforced)
}

/// The files to be read at the end, by paths without what stands for nothing.
fn wanted(command: &Command) -> Result<Vec<(PathBuf, u64)>, Error> {
    let read = |(path, bound): &(PathBuf, u64)| {
        let refuse = |reason: &str| Error::Command {
            what: format!("the file to collect, {},", path.display()),
            reason: reason.to_owned(),
        };
        let plain = plain(path).filter(|plain| plain.file_name().is_some());
        let plain = plain.ok_or_else(|| {
            refuse("is not beneath the scratch directory: give a relative path without '..'")
        })?;
        if *bound > files::MOST {
            return Err(refuse(
                "has a bound over 4 GiB, all of which the embedder would have to keep in memory",
            ));
        }
        Ok((plain, *bound))
    };
    command.collect.iter().map(read).collect()
}

/// What the ruleset of a kit lacks: the program, and a scratch directory that is not the kit's.
fn grant(
    policy: &Policy,
    grants: &Grants,
    ruleset: &OwnedFd,
    image: &Image,
    scratch: Option<&Scratch>,
) -> Result<(), Error> {
    image.allow(grants, ruleset)?;
    if let Some(scratch) = scratch {
        for access in Access::of_scratch(&policy.filesystem) {
            grants.add_to(ruleset, scratch.directory(), *access)?;
        }
    }
    Ok(())
}

/// A directory of the embedder's has no bound, and is refused where the policy requires one. So is what brings programs where
/// the policy has a list of them.
fn command_allowed(sealed: &Sealed, command: &Command) -> Result<Collection, Error> {
    strict::command(&sealed.policy.filesystem, command)?;
    let required = !sealed.policy.best_effort.contains(&Layer::Scratch);
    match (&command.scratch, sealed.bound) {
        (Some(path), Some(_)) if required => Err(Error::Command {
            what: format!("the scratch directory {}", path.display()),
            reason: "has no bound, which the policy requires: leave limits.scratch out, or name scratch in \
                     best_effort"
                .into(),
        }),
        _ => Ok(Collection::of(wanted(command)?)),
    }
}

/// What the command names is where the guest sees it.
fn in_sight(sealed: &Sealed, command: &Command, image: Option<&Image>) -> Result<(), Error> {
    if !sealed.has_namespace(Namespace::Mount) {
        return Ok(());
    }
    let used = [
        image.map(|image| &image.path),
        image.and_then(|image| image.interpreter.as_ref()),
        command.directory.as_ref(),
    ];
    match hidden(used.into_iter().flatten().map(PathBuf::as_path)) {
        None => Ok(()),
        Some(path) => Err(Error::Command {
            what: path.display().to_string(),
            reason: format!(
                "is out of the guest's sight, whose {TMP} is its scratch directory: move it elsewhere, or leave mount \
                 out of the policy's namespaces"
            ),
        }),
    }
}

/// The scratch directory, and whether it is that of the kit.
fn choose_scratch(
    sealed: &Sealed,
    command: &Command,
    run: RunId,
    owner: Option<(u32, u32)>,
    of_kit: Scratch,
) -> Result<(Scratch, bool), Error> {
    let seen = |scratch: Scratch| {
        if sealed.has_namespace(Namespace::Mount) {
            scratch.seen_at(TMP)
        } else {
            scratch
        }
    };
    match (&command.scratch, sealed.bound) {
        (Some(path), _) => Ok((seen(Scratch::adopt(path, owner)?), false)),
        // What the command itself brings to be executed must be.
        (None, Some(bound)) if bound.no_exec && brings_programs(command) => {
            drop(of_kit);
            let bound = Bound {
                no_exec: false,
                ..bound
            };
            let name = format!("{PREFIX}{run}");
            let made = Scratch::create(&sealed.scratch_base, &name, owner)?;
            Ok((seen(made.bounded(bound)?), false))
        }
        (None, _) => Ok((of_kit, true)),
    }
}

/// Whether the command puts files into the scratch directory that can be executed.
fn brings_programs(command: &Command) -> bool {
    command.files.iter().any(|file| file.executable)
}

fn mount_plan(
    sealed: &Sealed,
    command: &Command,
    scratch: &Scratch,
    image: &Image,
    namespaces: Option<&Arc<RunNamespaces>>,
) -> Result<Option<MountPlan>, Error> {
    let used = [
        Some(&image.path),
        image.interpreter.as_ref(),
        command.directory.as_ref(),
    ];
    let used = || used.into_iter().flatten().map(PathBuf::as_path);
    let mount = if scratch.to_be_mounted() {
        Some(above_stdio(scratch.directory())?)
    } else if sealed.has_namespace(Namespace::Mount) {
        let copy = mounts::copy_of(scratch.directory());
        Some(copy.map_err(|e| Error::io("copy the mount of the scratch directory", e))?)
    } else {
        None
    };
    let namespaces = namespaces.filter(|namespaces| namespaces.process_files().is_some());
    if mount.is_none() && namespaces.is_none() {
        return Ok(None);
    }
    let place = || c_string("the scratch directory's path", scratch.seen().as_os_str());
    Ok(Some(MountPlan {
        shared_memory: mount.is_some() && sealed.own_shared_memory && mounts::is_free(used()),
        scratch: mount
            .map(|mount| Ok::<_, Error>((mount, place()?)))
            .transpose()?,
        namespaces: namespaces.cloned(),
    }))
}

/// An open file of its own for each run, since its lock is.
fn settling(sealed: &Sealed) -> Result<Option<OwnedFd>, Error> {
    let joins = sealed.creation.joins();
    Ok(joins.then(|| sealed.subtree.settling()).transpose()?)
}

/// The groups that the child joins, opened with the rights of the embedder, which count (Linux 5.17).
fn placements(creation: Creation, group: &Group) -> Result<Vec<OwnedFd>, Error> {
    let mut placements = Vec::with_capacity(1 + group.placements().len());
    if creation.joins() {
        placements.push(above_stdio(group.place_file()?)?);
    }
    for legacy in group.placements() {
        placements.push(above_stdio(legacy)?);
    }
    Ok(placements)
}

fn fill(scratch: &Scratch, files: &[ScratchFile]) -> Result<(), Error> {
    for file in files {
        scratch.put(&file.path, &file.contents, file.executable)?;
    }
    Ok(())
}

/// The program's path beneath the scratch directory, where it is one of the files that the command puts
/// there: a relative path with a slash in it, such as `./program`.
fn placed_program(command: &Command) -> Option<PathBuf> {
    let plain = |path: &Path| -> PathBuf {
        path.components()
            .filter(|part| *part != Component::CurDir)
            .collect()
    };
    let program = Path::new(&command.program);
    if !command.program.as_bytes().contains(&b'/') || program.is_absolute() {
        return None;
    }
    let program = plain(program);
    command
        .files
        .iter()
        .any(|file| plain(&file.path) == program)
        .then_some(program)
}

/// The program's path: as given where it has a slash, otherwise from the policy's search path.
fn find_program(policy: &Policy, program: &OsStr) -> Result<PathBuf, Error> {
    if program.is_empty() {
        let reason = "is empty; name a program".into();
        return Err(Error::Command {
            what: "the program".into(),
            reason,
        });
    }
    no_nul("the program's name", program)?;
    if program.as_bytes().contains(&b'/') {
        let program = std::path::absolute(program)
            .map_err(|e| Error::io_at("resolve", PathBuf::from(program), e))?;
        return strict::program(&policy.filesystem, program);
    }
    let found = policy
        .search_path
        .iter()
        .map(|directory| directory.join(program))
        .find(|path| {
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
        });
    let found = found.ok_or_else(|| Error::ProgramNotFound {
        program: program.to_string_lossy().into_owned(),
        searched: policy.search_path.clone(),
    })?;
    strict::program(&policy.filesystem, found)
}

/// The file that will be executed, and its interpreter.
struct Image {
    path: PathBuf,
    file: OwnedFd,
    interpreter: Option<PathBuf>,
    interpreter_file: Option<OwnedFd>,
}

impl Image {
    /// Lets the kernel execute the file and its interpreter.
    fn allow(&self, grants: &Grants, ruleset: &OwnedFd) -> Result<(), Error> {
        grants.add_to(ruleset, self.file.as_fd(), Access::Execute)?;
        match &self.interpreter_file {
            Some(interpreter) => grants.add_to(ruleset, interpreter.as_fd(), Access::Execute),
            None => Ok(()),
        }
    }

    /// Opens the file, which must be one that can be executed; its interpreter, too, must be within the reach
    /// of an own uid.
    ///
    /// `at` and `name` lead to the file for the embedder, `program` for the guest.
    fn open(
        at: BorrowedFd<'_>,
        name: &Path,
        program: PathBuf,
        own_uid: bool,
    ) -> Result<Self, Error> {
        let cannot = |reason: String| Error::Program {
            program: program.clone(),
            reason,
        };
        let meta = rustix::fs::statat(at, name, AtFlags::empty()).map_err(|errno| match errno {
            Errno::NOENT => cannot("there is no such file; check the path".into()),
            errno => {
                let error = io::Error::from(errno);
                cannot(format!("{error}; check the path and its permissions"))
            }
        })?;
        if !FileType::from_raw_mode(meta.st_mode).is_file() {
            return Err(cannot("it is no regular file".into()));
        }
        if meta.st_mode & 0o111 == 0 {
            return Err(cannot(
                "it is not executable; chmod +x it, or run it by its interpreter".into(),
            ));
        }
        let file = open_path(at, name)?;
        let interpreter = interpreter_of(at, name);
        let interpreter_file =
            match &interpreter {
                Some(path) => Some(open_path(CWD, path).map_err(|_| {
                    cannot(format!("its interpreter {} is not there", path.display()))
                })?),
                None => None,
            };
        if let Some(interpreter) = interpreter.as_ref().filter(|_| own_uid) {
            reachable(interpreter)?;
        }
        Ok(Self {
            path: program,
            file,
            interpreter,
            interpreter_file,
        })
    }
}

fn open_path(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Error> {
    let fd = rustix::fs::openat(at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::io_at("open", path, e))?;
    above_stdio(fd)
}

/// What the `#!` line of a script names.
fn interpreter_of(at: BorrowedFd<'_>, program: &Path) -> Option<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, program, flags, Mode::empty()).ok()?;
    first_line(File::from(file))
}

/// A guest with a uid of its own gets through a directory only where that is open to everybody.
fn reachable(program: &Path) -> Result<(), Error> {
    let program = program
        .canonicalize()
        .map_err(|e| Error::io_at("resolve", program, e))?;
    for directory in program.ancestors().skip(1) {
        let mode = std::fs::metadata(directory)
            .map_err(|e| Error::io_at("stat", directory, e))?
            .mode();
        if mode & 0o001 == 0 {
            return Err(Error::Program {
                program: program.clone(),
                reason: format!(
                    "the guest runs under a uid of its own, for which {} is closed (mode {:04o}); install \
                     the program outside of it (such as below /usr or /opt), or open that directory to \
                     others (chmod o+x)",
                    directory.display(),
                    mode & 0o7777
                ),
            });
        }
    }
    Ok(())
}

fn no_nul(what: &str, text: &OsStr) -> Result<(), Error> {
    if text.as_bytes().contains(&0) {
        let reason = "has a NUL byte in it, which the kernel takes for its end".into();
        return Err(Error::Command {
            what: what.to_owned(),
            reason,
        });
    }
    Ok(())
}

/// MAX_ARG_STRLEN of Linux is 32 pages of 4 KiB, the final NUL included (execve(2)).
const LONGEST: usize = 131_071;

fn c_string(what: &str, text: &OsStr) -> Result<CString, Error> {
    no_nul(what, text)?;
    if text.len() > LONGEST {
        return Err(Error::Command {
            what: what.to_owned(),
            reason: format!(
                "has {} bytes, and the kernel takes at most {LONGEST} in one string; pass the text as a \
                 file (Command::file, Command::python) or on stdin",
                text.len()
            ),
        });
    }
    CString::new(text.as_bytes()).map_err(|e| Error::io("make a C string", io::Error::other(e)))
}

/// argv and envp.
fn strings(
    policy: &Policy,
    command: &Command,
    scratch: &Path,
) -> Result<(Vec<CString>, Vec<CString>), Error> {
    let mut arguments = vec![c_string("the program's name", &command.program)?];
    for (index, argument) in command.arguments.iter().enumerate() {
        arguments.push(c_string(&format!("argument {}", index + 1), argument)?);
    }
    let mut variables = std::collections::BTreeMap::<OsString, OsString>::new();
    for name in ["HOME", "TMPDIR"] {
        variables.insert(name.into(), scratch.into());
    }
    variables.extend(policy.environment.iter().map(|(n, v)| (n.into(), v.into())));
    variables.extend(command.environment.clone());
    let mut environment = Vec::with_capacity(variables.len());
    for (name, value) in variables {
        let what = format!("environment variable {}", name.display());
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            let reason = "has an empty name or one with '=' in it".into();
            return Err(Error::Command { what, reason });
        }
        let mut pair = name.into_vec();
        pair.push(b'=');
        pair.extend(value.into_vec());
        environment.push(c_string(&what, OsStr::from_bytes(&pair))?);
    }
    Ok((arguments, environment))
}

fn start_directory(
    command: &Command,
    scratch: &Scratch,
    own_mounts: bool,
) -> Result<StartDirectory, Error> {
    let Some(path) = &command.directory else {
        if own_mounts && !scratch.to_be_mounted() {
            let path = c_string("the scratch directory's path", scratch.seen().as_os_str())?;
            return Ok(StartDirectory::Path(path));
        }
        // What is mounted is this very directory.
        return Ok(StartDirectory::Open(above_stdio(scratch.directory())?));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::Command {
        what: format!("the working directory {}", path.display()),
        reason: format!("cannot be opened: {}", io::Error::from(e)),
    })?;
    if own_mounts {
        let path = std::path::absolute(path)
            .map_err(|error| Error::io_at("resolve the working directory", path, error))?;
        let path = c_string("the working directory", path.as_os_str())?;
        return Ok(StartDirectory::Path(path));
    }
    Ok(StartDirectory::Open(above_stdio(fd)?))
}

fn rlimits(policy: &Policy, cpus: usize) -> Vec<Rlimit> {
    let limits = &policy.limits;
    let fixed = |resource, value| Rlimit {
        resource,
        soft: value,
        hard: value,
    };
    // A backstop where nobody watches any more: the CPU time that the tree could have used by its
    // deadline, in whole seconds and one more.
    let wall = limits.wall_clock.as_secs().saturating_add(1);
    let most = wall.saturating_mul(u64::try_from(cpus).unwrap_or(1).max(1));
    let cpu = limits
        .cpu_time
        .map_or(most, |time| time.as_secs().saturating_add(1))
        .min(most);
    let mut all = vec![
        fixed(libc::RLIMIT_CORE, 0),
        Rlimit {
            resource: libc::RLIMIT_CPU,
            soft: cpu,
            hard: cpu + 1,
        },
        fixed(libc::RLIMIT_MEMLOCK, 64 * 1024),
        fixed(libc::RLIMIT_MSGQUEUE, 0),
        fixed(libc::RLIMIT_NICE, 0),
        fixed(libc::RLIMIT_RTPRIO, 0),
        // Counted for a uid, which may be the embedder's: the rest is left to its own processes.
        fixed(libc::RLIMIT_SIGPENDING, 1024),
    ];
    if let Some(size) = limits.file_size {
        all.push(fixed(libc::RLIMIT_FSIZE, size));
    }
    all
}

fn nofile(policy: &Policy) -> Rlimit {
    let files = policy.limits.open_files;
    Rlimit {
        resource: libc::RLIMIT_NOFILE,
        soft: files,
        hard: files,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_backstop_of_cpu_time_is_never_below_what_the_policy_lets_the_tree_use() {
        let seconds = Duration::from_secs;
        let cpu = |policy: &Policy, cpus| {
            let all = rlimits(policy, cpus);
            all.into_iter()
                .find(|limit| limit.resource == libc::RLIMIT_CPU)
                .unwrap()
                .soft
        };
        let policy = Policy::native().wall_clock(seconds(10));
        assert_eq!(cpu(&policy, 4), 44);
        let policy = policy.cpu_time(Duration::from_millis(2500));
        assert_eq!(cpu(&policy, 4), 3);
        assert_eq!(cpu(&policy.cpu_time(Duration::MAX), 4), 44);
    }
}
