//! The reaper: the process that a run's namespaces are kept by, and the first one of its pid namespace.
//!
//! It is the program of the guardian ([`crate::guardian`]) with nothing to kill: it waits for the end of its lifeline,
//! and ends. A pid namespace whose first process ends is killed by the kernel, however the embedder went. Orphans of the
//! guest become its children, and since it ignores SIGCHLD they leave no zombies.
//!
//! The guest is not its child but the embedder's: the spawner enters the pid namespace for its clone alone, and the child
//! enters the others. So status and signals are exact, and the one vfork-style child of the run's group is the
//! guest. The reaper is in the embedder's group; it has no capability and no right that a guest could use, and nobody in the
//! namespace can signal it.
//!
//! What the reaper publishes on its way is a mount of procfs, which only the child attaches anywhere.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use crate::child::clone::sys::{Way, clone_reaper};
use crate::child::namespaces::sys::{
    CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS,
};
use crate::child::namespaces::{ReaperSetup, reaper_step};
use crate::child::sys::signal_mask;
use crate::creation::Creation;
use crate::error::Error;
use crate::guardian;
use crate::mounts;
use crate::namespaces::Namespace;
use crate::streams::above_stdio;
use crate::sys;

/// What is made once for the namespaces of all runs of a sandbox.
#[derive(Debug)]
pub(crate) struct Reapers {
    asked: BTreeSet<Namespace>,
    /// The program.
    image: OwnedFd,
    null: OwnedFd,
    way: Way,
    /// A new `/proc` shows processes alone: the embedder does not see the rest of its own.
    only_processes: bool,
}

/// The namespaces of one run. They go with their processes and this value.
#[derive(Debug)]
pub(crate) struct RunNamespaces {
    reaper: Option<Reaper>,
    /// Those that the child enters itself.
    kinds: u64,
    /// The procfs of the pid namespace, mounted nowhere.
    process_files: Option<OwnedFd>,
    /// What a ruleset grants there: a rule is gone when nobody holds its dentry.
    granted: Vec<OwnedFd>,
    groups: bool,
    user: Option<OwnedFd>,
}

impl Reapers {
    /// For these, of which there is at least one.
    pub(crate) fn new(asked: &BTreeSet<Namespace>, creation: Creation) -> Result<Self, Error> {
        let image =
            guardian::image_file().map_err(|e| Error::io("make the reaper's program", e))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let null = rustix::fs::openat(CWD, "/dev/null", flags, Mode::empty())
            .map_err(|e| Error::io_at("open", "/dev/null", e))?;
        Ok(Self {
            asked: asked.clone(),
            image,
            null: above_stdio(null)?,
            way: creation.outside(),
            only_processes: !mounts::sees_all_of_proc(),
        })
    }

    pub(crate) fn has(&self, namespace: Namespace) -> bool {
        self.asked.contains(&namespace)
    }

    /// Namespaces for a run whose guest has this uid and gid.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the step that the host refused.
    pub(crate) fn make(&self, owner: Option<(u32, u32)>) -> Result<RunNamespaces, Error> {
        let kind = |namespace, kind| if self.has(namespace) { kind } else { 0 };
        let entered = kind(Namespace::Ipc, CLONE_NEWIPC)
            | kind(Namespace::Uts, CLONE_NEWUTS)
            | kind(Namespace::Net, CLONE_NEWNET);
        let kinds = entered | kind(Namespace::Pid, CLONE_NEWPID);
        let (reaper, process_files) = if kinds == 0 {
            (None, None)
        } else {
            let (reaper, files) = self.start(kinds)?;
            (Some(reaper), files)
        };
        let user = owner
            .filter(|_| self.has(Namespace::User))
            .map(|(uid, gid)| self.user_namespace(uid, gid))
            .transpose()?;
        Ok(RunNamespaces {
            reaper,
            kinds: entered,
            process_files,
            granted: Vec::new(),
            groups: self.has(Namespace::Cgroup),
            user,
        })
    }

    /// A user namespace in which this uid and gid are themselves and nobody else exists; it has a process for as long as
    /// that is written down (user_namespaces(7)).
    fn user_namespace(&self, uid: u32, gid: u32) -> Result<OwnedFd, Error> {
        let (process, _) = self.start(CLONE_NEWUSER)?;
        for (file, id) in [("uid_map", uid), ("gid_map", gid)] {
            let path = format!("/proc/{}/{file}", process.pid);
            std::fs::write(&path, format!("{id} {id} 1\n"))
                .map_err(|e| Error::io_at("map the guest's uid and gid", path, e))?;
        }
        let path = format!("/proc/{}/ns/user", process.pid);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace = rustix::fs::openat(CWD, &path, flags, Mode::empty())
            .map_err(|e| Error::io_at("open the user namespace", path, e))?;
        above_stdio(namespace)
    }

    fn start(&self, kinds: u64) -> Result<(Reaper, Option<OwnedFd>), Error> {
        let failed = |e: io::Error| Error::io("start the reaper of a run's namespaces", e);
        let (read, lifeline) = UnixStream::pair().map_err(failed)?;
        let (read, lifeline) = (above_stdio(OwnedFd::from(read))?, OwnedFd::from(lifeline));
        let program = format!("/proc/self/fd/{}", self.image.as_raw_fd());
        let program = CString::new(program).map_err(|e| failed(e.into()))?;
        let name = [c"varek-reaper".to_owned()];
        let (arguments, environment) = (sys::ExecArray::new(&name), sys::ExecArray::new(&[]));
        let setup = ReaperSetup {
            kinds,
            only_processes: self.only_processes,
            lifeline: read.as_raw_fd(),
            null: self.null.as_raw_fd(),
            program: &program,
            arguments: arguments.pointers(),
            environment: environment.pointers(),
            step: AtomicI32::new(0),
            errno: AtomicI32::new(0),
            process_files: AtomicI32::new(-1),
        };
        let mut stack = sys::Stack::new().map_err(failed)?;
        let pidfd = AtomicI32::new(-1);
        let os = |errno| failed(io::Error::from_raw_os_error(errno));
        let mask = signal_mask(u64::MAX).map_err(os)?;
        let made = clone_reaper(stack.memory(), &pidfd, self.way, &setup);
        // The mask that this thread had a moment ago is valid.
        let _ = signal_mask(mask);
        let pid = made.map_err(os)?;
        let process_files = sys::adopt_descriptor(setup.process_files.load(Ordering::Acquire));
        let Some(pidfd) = sys::adopt_descriptor(pidfd.load(Ordering::Acquire)) else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        let reaper = Reaper {
            pid,
            pidfd,
            lifeline: Some(lifeline),
            embedder: std::process::id(),
        };
        match setup.errno.load(Ordering::Acquire) {
            0 => Ok((reaper, process_files.map(above_stdio).transpose()?)),
            errno => {
                let what = refused(setup.step.load(Ordering::Acquire));
                Err(Error::io(what, io::Error::from_raw_os_error(errno)))
            }
        }
    }
}

/// What could not be done.
fn refused(step: i32) -> &'static str {
    match step {
        reaper_step::SIGNALS => "prepare the reaper of a run's namespaces",
        reaper_step::HOST_NAME => "name the host in a namespace of its own",
        reaper_step::LOOPBACK => "raise the loopback device of a network namespace",
        reaper_step::PROCESS_FILES => "make the /proc of a pid namespace",
        reaper_step::CAPABILITIES => "take the capabilities of a reaper",
        reaper_step::DESCRIPTORS => "give a reaper its descriptors",
        reaper_step::EXEC => "execute the program of a reaper",
        _ => "start the reaper of a run's namespaces",
    }
}

impl RunNamespaces {
    /// The root of the run's `/proc`, where it has one of its own.
    pub(crate) fn process_files(&self) -> Option<BorrowedFd<'_>> {
        self.process_files.as_ref().map(AsFd::as_fd)
    }

    /// Whether they are still kept: somebody may have ended the reaper of a kit.
    pub(crate) fn last(&self) -> bool {
        self.reaper.as_ref().is_none_or(|reaper| {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(&reaper.pidfd, PollFlags::IN)];
            poll(&mut fds, Some(&now)) == Ok(0)
        })
    }

    /// Keeps what rules of the run are bound to.
    pub(crate) fn hold(&mut self, granted: Vec<OwnedFd>) {
        self.granted = granted;
    }

    /// Whether this number is what a rule of the run is bound to.
    pub(crate) fn holds(&self, number: RawFd) -> bool {
        self.granted.iter().any(|path| path.as_raw_fd() == number)
    }

    /// The pidfd of the reaper of a pid namespace.
    pub(crate) fn pid(&self) -> Option<BorrowedFd<'_>> {
        let reaper = self.reaper.as_ref()?;
        self.process_files.as_ref().map(|_| reaper.pidfd.as_fd())
    }

    pub(crate) fn for_child(&self) -> crate::child::namespaces::Namespaces {
        let reaper = self.reaper.as_ref();
        crate::child::namespaces::Namespaces {
            reaper: reaper.map(|reaper| (reaper.pidfd.as_raw_fd(), self.kinds)),
            groups: self.groups,
            user: self.user.as_ref().map(AsRawFd::as_raw_fd),
        }
    }
}

/// The pid namespace that the calling thread's children are born in.
///
/// # References
///
/// setns(2).
pub(crate) fn be_born_in(process: impl AsFd) -> io::Result<()> {
    let pid = ThreadNameSpaceType::PROCESS_ID;
    Ok(move_into_thread_name_spaces(process.as_fd(), pid)?)
}

/// A process that waits for the end of its lifeline.
#[derive(Debug)]
struct Reaper {
    pid: u32,
    pidfd: OwnedFd,
    lifeline: Option<OwnedFd>,
    /// The process that made it: a forked copy must leave it alone.
    embedder: u32,
}

impl Drop for Reaper {
    /// Ends it, and with a pid namespace everything in there.
    fn drop(&mut self) {
        self.lifeline = None;
        if self.embedder != std::process::id() {
            return;
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // By the pidfd: a thread of the embedder that reaps everything may take the status. A process of the namespace
        // that cannot be killed holds up the end of its first one.
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = poll(
            &mut [PollFd::new(&self.pidfd, PollFlags::IN)],
            Some(&second),
        );
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
    }
}
