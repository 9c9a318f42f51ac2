//! Puts limits on a group and reads every one of them back.

use crate::controllers::Writer;
use crate::dir::Dir;
use crate::error::Error;
use crate::group::Unenforced;
use crate::layout::{Controller, Home};
use crate::limits::{CpuQuota, Limits, micros};
use crate::parse;

/// Where the controllers of a subtree are; the index of a version 1 hierarchy counts those that the
/// subtree uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Homes {
    pub(crate) memory: Option<Home>,
    pub(crate) pids: Option<Home>,
    pub(crate) cpu: Option<Home>,
}

impl Homes {
    pub(crate) fn of(&self, controller: Controller) -> Option<Home> {
        match controller {
            Controller::Memory => self.memory,
            Controller::Pids => self.pids,
            Controller::Cpu => self.cpu,
        }
    }

    pub(crate) fn put(&mut self, controller: Controller, home: Home) {
        match controller {
            Controller::Memory => self.memory = Some(home),
            Controller::Pids => self.pids = Some(home),
            Controller::Cpu => self.cpu = Some(home),
        }
    }
}

/// The directories of one group: in the cgroup2 tree and in each version 1 hierarchy that is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub(crate) homes: Homes,
    pub(crate) unified: &'a Dir,
    pub(crate) legacy: &'a [Dir],
}

impl<'a> Places<'a> {
    /// The directory of a controller, and whether it is in the cgroup2 tree.
    pub(crate) fn of(&self, controller: Controller) -> Option<(&'a Dir, bool)> {
        match self.homes.of(controller)? {
            Home::Unified => Some((self.unified, true)),
            Home::Legacy(index) => self.legacy.get(index).map(|directory| (directory, false)),
        }
    }

    fn required(&self, controller: Controller) -> Result<(&'a Dir, bool), Error> {
        self.of(controller)
            .ok_or_else(|| Error::ControllerNotPrepared {
                controller,
                path: self.unified.path().to_owned(),
            })
    }
}

/// Memory and task limits, as read back, and what the kernel cannot do of it.
pub(crate) fn bound(
    places: Places<'_>,
    limits: &Limits,
    unenforced: &mut Vec<Unenforced>,
) -> Result<Limits, Error> {
    if let Some(bytes) = limits.memory {
        let (directory, unified) = places.required(Controller::Memory)?;
        memory(directory, unified, bytes, unenforced)?;
    }
    if let Some(tasks) = limits.pids {
        let (directory, unified) = places.required(Controller::Pids)?;
        Writer::new(directory, unified).pids("pids.max", tasks)?;
        kept(directory, "pids.max", tasks)?;
    }
    Ok(Limits {
        cpu: None,
        ..*limits
    })
}

fn memory(
    directory: &Dir,
    unified: bool,
    bytes: u64,
    unenforced: &mut Vec<Unenforced>,
) -> Result<(), Error> {
    let (limit, swap, swap_bytes) = if unified {
        ("memory.max", "memory.swap.max", 0)
    } else {
        // Memory and swap together are bounded by the same number, which leaves no swap.
        (
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            bytes,
        )
    };
    let writer = Writer::new(directory, unified);
    writer.memory(limit, bytes)?;
    kept(directory, limit, bytes)?;
    if directory.has(swap) {
        writer.swap(swap, swap_bytes)?;
        kept(directory, swap, swap_bytes)
    } else {
        unenforced.push(Unenforced::Swap {
            path: directory.path().join(swap),
        });
        Ok(())
    }
}

/// The CPU quota, read back.
pub(crate) fn cpu(places: Places<'_>, quota: CpuQuota) -> Result<(), Error> {
    let (directory, unified) = places.required(Controller::Cpu)?;
    let (time, period) = (micros(quota.quota()), micros(quota.period()));
    if unified {
        Writer::new(directory, true).cpu("cpu.max", quota)?;
        let asked = format!("{time} {period}");
        let found = directory.read("cpu.max")?;
        if found.trim() == asked {
            return Ok(());
        }
        return Err(not_kept(directory, "cpu.max", asked, &found));
    }
    Writer::new(directory, false).cpu("cpu.cfs_quota_us", quota)?;
    kept(directory, "cpu.cfs_period_us", period)?;
    kept(directory, "cpu.cfs_quota_us", time)
}

fn kept(directory: &Dir, file: &str, asked: u64) -> Result<(), Error> {
    let found = directory.read(file)?;
    if parse::number_or_max(&found) == Some(asked) {
        Ok(())
    } else {
        Err(not_kept(directory, file, asked.to_string(), &found))
    }
}

fn not_kept(directory: &Dir, file: &str, asked: String, found: &str) -> Error {
    Error::NotKept {
        path: directory.path().join(file),
        asked,
        found: found.trim().chars().take(128).collect(),
    }
}
