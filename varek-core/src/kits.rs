//! Kits: what a run needs that does not depend on its command, made while nobody waits for it.
//!
//! A group with its limits, a scratch directory, a uid and a ruleset together cost as much as the start
//! of a small program. A thread of the sandbox keeps a few of them ready; a run that finds none makes its
//! own. Every kit is used once.

use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use varek_cgroup::Group;
use varek_telemetry::RunId;

use crate::error::Error;
use crate::identity::{Lease, UidPool};
use crate::landlock::Access;
use crate::namespaces::{Namespace, TMP};
use crate::reaper::RunNamespaces;
use crate::sandbox::Sealed;
use crate::scratch::{PREFIX, Scratch};

/// One kit. The fields are dropped in their order: the uid goes back when nothing of it is left.
pub(crate) struct Kit {
    pub(crate) run: RunId,
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) scratch: Scratch,
    pub(crate) group: Group,
    pub(crate) namespaces: Option<Arc<RunNamespaces>>,
    pub(crate) lease: Option<Lease>,
}

impl Kit {
    fn make(sealed: &Sealed) -> Result<Self, Error> {
        let run = RunId::random().map_err(|e| Error::io("getrandom", e))?;
        let lease = sealed.uids.as_ref().map(UidPool::take).transpose()?;
        let owner = lease.as_ref().map(|lease| (lease.uid(), lease.gid()));
        let name = format!("{PREFIX}{run}");
        let mut scratch = Scratch::create(&sealed.scratch_base, &name, owner)?;
        if let Some(bound) = sealed.bound {
            scratch = scratch.bounded(bound)?;
        }
        if sealed.has_namespace(Namespace::Mount) {
            scratch = scratch.seen_at(TMP);
        }
        let reapers = sealed.reapers.as_ref();
        let mut namespaces = reapers.map(|reapers| reapers.make(owner)).transpose()?;
        let files = namespaces.as_ref().and_then(RunNamespaces::process_files);
        let in_proc = match (&sealed.grants, files) {
            (Some(grants), Some(files)) => grants.within(files)?,
            _ => Vec::new(),
        };
        let granted = Access::of_scratch(&sealed.policy.filesystem);
        let granted: Vec<_> = granted
            .iter()
            .map(|access| (scratch.directory(), *access))
            .chain(in_proc.iter().map(|(path, access)| (path.as_fd(), *access)))
            .collect();
        let ruleset = sealed
            .grants
            .as_ref()
            .map(|grants| grants.ruleset(&granted))
            .transpose()?;
        drop(granted);
        if let Some(namespaces) = &mut namespaces {
            namespaces.hold(in_proc.into_iter().map(|(path, _)| path).collect());
        }
        let group = sealed
            .subtree
            .create(&run.to_string(), &sealed.group_limits)?;
        Ok(Self {
            run,
            ruleset,
            scratch,
            group,
            namespaces: namespaces.map(Arc::new),
            lease,
        })
    }

    /// Whether what was made ahead is still there.
    fn is_whole(&self) -> bool {
        self.namespaces.as_ref().is_none_or(|made| made.last())
    }
}

#[derive(Default)]
struct State {
    ready: Vec<Kit>,
    making: bool,
    closed: bool,
}

/// The kits that are ready.
#[derive(Default)]
pub(crate) struct Kits {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How many kits are kept ready.
const READY: usize = 2;

impl Kits {
    /// Starts the thread that makes them.
    pub(crate) fn start(sealed: Arc<Sealed>) -> std::io::Result<Arc<Self>> {
        let kits = Arc::new(Self::default());
        let mine = kits.clone();
        let thread = std::thread::Builder::new()
            .name("varek-kits".into())
            .spawn(move || {
                crate::sys::block_signals();
                mine.work(&sealed);
            })?;
        *kits.thread() = Some(thread);
        Ok(kits)
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kit: a ready one, or one made now.
    pub(crate) fn take(&self, sealed: &Sealed) -> Result<Kit, Error> {
        let ready = self.state().ready.pop();
        match ready.filter(Kit::is_whole) {
            Some(kit) => Ok(kit),
            None => match Kit::make(sealed) {
                // The last uid of a small range can be in the kit that is being made.
                Err(error @ Error::NoFreeUid { .. }) => self.made().ok_or(error),
                made => made,
            },
        }
    }

    /// The kit that is being made, where one is.
    fn made(&self) -> Option<Kit> {
        let mut state = self.state();
        while state.making && state.ready.is_empty() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.ready.pop()
    }

    /// Makes what was taken anew. Called when a guest has started: before, it would be in the way of its start.
    pub(crate) fn refill(&self) {
        self.changed.notify_all();
    }

    fn work(&self, sealed: &Sealed) {
        let mut state = self.state();
        loop {
            while !state.closed && state.ready.len() >= READY {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.closed {
                return;
            }
            state.making = true;
            drop(state);
            let made = catch_unwind(AssertUnwindSafe(|| Kit::make(sealed)));
            state = self.state();
            state.making = false;
            // Before this thread waits itself: somebody may wait for what was being made.
            self.changed.notify_all();
            match made {
                // Runs make their own from here on, and whoever waits has been woken.
                Err(_) => return,
                Ok(Ok(kit)) if !state.closed => state.ready.push(kit),
                Ok(Ok(kit)) => drop(kit),
                // A run that finds no kit makes its own, and says what is wrong: until then, do not insist.
                Ok(Err(_)) if !state.closed => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Ok(Err(_)) => {}
            }
        }
    }

    /// Removes what is ready and waits for what is being made; no kit is made ahead any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.changed.notify_all();
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        // It makes at most one more, and drops that.
        if let Some(thread) = self.thread().take() {
            let _ = thread.join();
        }
    }
}
