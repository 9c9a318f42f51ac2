//! Running the program with every call reported.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};
use varek_core::Host;
use varek_seccomp::Arch;

use super::record::{Observed, Recorder};
use super::sys;

/// What to run, as a sandbox would.
#[derive(Clone, Debug)]
pub struct Run {
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<std::ffi::OsString>,
    /// Its environment, beside `HOME` and `TMPDIR`, which are the scratch directory unless they are named here.
    pub environment: BTreeMap<String, String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// The directory that stands for the scratch directory of a run. Its path has no links in it.
    pub scratch: PathBuf,
    /// The uid and gid that it has instead of this process's, without further groups. Takes root.
    pub uid: Option<u32>,
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What it did.
    pub observed: Observed,
    /// How its first process ended.
    pub status: ExitStatus,
    /// A signal came when the first process had ended and others had not: these are not in the record to their end.
    pub cut_short: bool,
}

/// Whether this host can report calls, and if not, why.
///
/// # Errors
///
/// A kernel before Linux 5.9, which does not say when the last process has ended (continuing calls takes 5.5), a seccomp filter around
/// this program with a listener of its own, of which there can be one only, or no notifications at all.
pub fn supported(host: &Host) -> anyhow::Result<Arch> {
    if host.outer_listener {
        bail!(
            "this program runs under a seccomp filter that has a listener, of which a process has one only; \
             run it outside of that container or tracer"
        );
    }
    if host.kernel_version < (5, 9) {
        bail!(
            "the host has Linux {}; calls are reported and continued from Linux 5.9 on",
            host.kernel
        );
    }
    if !host.user_notification {
        bail!(
            "the host has no seccomp notifications for this program; a filter around it may refuse seccomp(2)"
        );
    }
    Arch::native().context("there is no table of system calls for this architecture")
}

/// Runs a program to its end, with its own stdio, and the processes that it started to theirs.
///
/// Signals to this process are passed on to the program. Call it from a process that has no other children.
///
/// # Errors
///
/// Where the program cannot be started, or its calls cannot be followed.
pub fn trace(run: &Run, arch: Arch) -> anyhow::Result<Trace> {
    let recorder = Recorder::new(arch, &run.scratch)?;
    // What outlives the program becomes a child of this process, which so learns of its end, and may read its memory (Yama).
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the reaper of what the program starts")?;
    let (theirs, ours) = UnixStream::pair()?;
    let (running, stop) = UnixStream::pair()?;
    let supervisor = std::thread::Builder::new()
        .name("varek-learn".into())
        .spawn(move || supervise(&ours, &stop, recorder))?;
    let mut command = command(run);
    sys::report_calls(&mut command, theirs);
    let spawned = command.spawn();
    // With it goes this process's end of the channel, without which the supervisor would wait for a listener for ever.
    drop(command);
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            drop(running);
            let _ = finish(supervisor);
            let reason = match error.raw_os_error() {
                Some(libc::EBUSY) => " (a filter around this program has a listener already)",
                _ => "",
            };
            return Err(error)
                .with_context(|| format!("cannot start {}{reason}", run.program.display()));
        }
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    sys::forward_signals(pid)?;
    if let Some(pid) = Pid::from_raw(pid) {
        // Its number stays taken until no signal can be sent to it any more.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(
            rustix::process::waitid(WaitId::Pid(pid), look),
            Err(Errno::INTR)
        ) {}
    }
    sys::program_ended();
    let status = child.wait()?;
    let cut_short = !reap_the_rest();
    drop(running);
    let observed = finish(supervisor)?;
    Ok(Trace {
        observed,
        status,
        cut_short,
    })
}

fn command(run: &Run) -> Command {
    let mut command = Command::new(&run.program);
    command
        .args(&run.arguments)
        .env_clear()
        .env("HOME", &run.scratch)
        .env("TMPDIR", &run.scratch)
        .envs(&run.environment)
        .current_dir(&run.directory);
    if let Some(uid) = run.uid {
        command.uid(uid).gid(uid);
    }
    command
}

/// Waits for all that the program has left; whether that came to its end before a signal did.
fn reap_the_rest() -> bool {
    // A wait that blocks would miss the signal that comes right before it.
    const TURN: Duration = Duration::from_millis(20);
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) if sys::interrupted() => return false,
            Ok(None) => std::thread::sleep(TURN),
            Err(_) => return true,
        }
    }
}

fn finish(supervisor: JoinHandle<anyhow::Result<Observed>>) -> anyhow::Result<Observed> {
    let ended = supervisor.join();
    ended.unwrap_or_else(|_| bail!("the supervisor has panicked"))
}

/// Answers every call until no process is left under the filter, or `stop` is closed at its other end.
fn supervise(
    channel: &UnixStream,
    stop: &UnixStream,
    mut recorder: Recorder,
) -> anyhow::Result<Observed> {
    let Some(listener) = listener(channel).context("cannot receive the listener")? else {
        return Ok(recorder.finish());
    };
    loop {
        let mut fds = [
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(stop, PollFlags::empty()),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("cannot watch the listener"),
        }
        let [call, stop] = fds.map(|fd| fd.revents());
        if call.contains(PollFlags::IN) {
            let call = match sys::receive(listener.as_fd()) {
                Ok(call) => call,
                Err(error) if passing(&error) => continue,
                Err(error) => return Err(error).context("cannot receive a call"),
            };
            let reply = recorder.notified(&call);
            match sys::answer(listener.as_fd(), call.id, reply) {
                Ok(()) => {}
                Err(error) if passing(&error) => {}
                Err(error) => return Err(error).context("cannot answer a call"),
            }
        } else if !call.is_empty() || !stop.is_empty() {
            return Ok(recorder.finish());
        }
    }
}

/// The caller died meanwhile, or a signal came.
fn passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR))
}

/// The descriptor that the child sends; `None` where it ended without.
fn listener(channel: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(channel, &mut bytes, &mut control, flags) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(found)
}
