//! Changing the owner of a whole tree, and back.
//!
//! The tree may be what an earlier guest left: of any depth, with links to anywhere. The walk holds one
//! directory open and, for each level above, where it stopped reading: 24 bytes a level.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::removal::{is_dot, mount, room};
use super::{chown, same};

/// To whom a tree belongs before and after the run, and during it: uid and gid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owners {
    pub(super) former: (u32, u32),
    pub(super) guest: (u32, u32),
}

/// A walk that can be interrupted.
#[derive(Debug)]
pub(super) struct Handover {
    owners: Owners,
    to_guest: bool,
    levels: Vec<Level>,
    /// The directory being read; `None` before the start.
    current: Option<OwnedFd>,
    mount: u64,
    /// What the first file that could not be changed said.
    failure: Option<Errno>,
    room: Box<[MaybeUninit<u8>]>,
}

/// A directory above the current one.
#[derive(Clone, Copy, Debug)]
struct Level {
    device: u64,
    inode: u64,
    /// Where reading goes on.
    offset: u64,
}

/// What the walk does after an entry.
enum Step {
    Next,
    Down(OwnedFd),
}

impl Handover {
    /// From the former owner to the guest.
    pub(super) fn over(owners: Owners) -> Self {
        Self {
            owners,
            to_guest: true,
            levels: Vec::new(),
            current: None,
            mount: 0,
            failure: None,
            room: room(),
        }
    }

    /// From the guest to the former owner.
    pub(super) fn back(owners: Owners) -> Self {
        Self {
            to_guest: false,
            ..Self::over(owners)
        }
    }

    /// Goes on until the time, or to the end; whether it came there. After an error it starts anew.
    pub(super) fn walk(
        &mut self,
        top: BorrowedFd<'_>,
        until: Option<Instant>,
    ) -> Result<bool, Errno> {
        let done = self.advance(top, until);
        if !matches!(done, Ok(false)) {
            self.levels.clear();
            self.current = None;
        }
        match self.failure.take_if(|_| matches!(done, Ok(true))) {
            Some(errno) => Err(errno),
            None => done,
        }
    }

    fn advance(&mut self, top: BorrowedFd<'_>, until: Option<Instant>) -> Result<bool, Errno> {
        let mut current = if let Some(current) = self.current.take() {
            current
        } else {
            self.mount = mount(top)?;
            self.failure = None;
            self.change(top, &rustix::fs::fstat(top)?);
            open(top, c".")?
        };
        loop {
            let mut room = std::mem::take(&mut self.room);
            let next = self.read(&current, &mut room, until);
            self.room = room;
            match next? {
                Some((Step::Down(below), offset)) => {
                    let stat = rustix::fs::fstat(&current)?;
                    self.levels.push(Level {
                        device: stat.st_dev,
                        inode: stat.st_ino,
                        offset,
                    });
                    current = below;
                }
                // The time is over.
                Some((Step::Next, offset)) => {
                    rustix::fs::seek(&current, SeekFrom::Start(offset))?;
                    self.current = Some(current);
                    return Ok(false);
                }
                None => {
                    let Some(level) = self.levels.pop() else {
                        return Ok(true);
                    };
                    current = open(current.as_fd(), c"..")?;
                    let stat = rustix::fs::fstat(&current)?;
                    if (stat.st_dev, stat.st_ino) != (level.device, level.inode) {
                        // Somebody moved it while it was walked through.
                        return Err(Errno::STALE);
                    }
                    rustix::fs::seek(&current, SeekFrom::Start(level.offset))?;
                }
            }
        }
    }

    /// Reads on from where the directory stands: to the next directory in it, to the time, or to its end
    /// (`None`). With the offset of the entry that follows.
    fn read(
        &mut self,
        directory: &OwnedFd,
        room: &mut [MaybeUninit<u8>],
        until: Option<Instant>,
    ) -> Result<Option<(Step, u64)>, Errno> {
        let mut entries = RawDir::new(directory, room);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let offset = entry.next_entry_cookie();
            if is_dot(entry.file_name()) {
                continue;
            }
            let step = self.visit(directory.as_fd(), entry.file_name())?;
            if matches!(step, Step::Down(_)) || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Some((step, offset)));
            }
        }
        Ok(None)
    }

    fn visit(&mut self, at: BorrowedFd<'_>, name: &CStr) -> Result<Step, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(at, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Step::Next),
            Err(errno) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&file)?;
        if mount(file.as_fd())? != self.mount {
            return Ok(Step::Next);
        }
        self.change(file.as_fd(), &stat);
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Ok(Step::Next);
        }
        let below = open(file.as_fd(), c".")?;
        // What is walked through is what was looked at.
        if same(&rustix::fs::fstat(&below)?, &stat) {
            Ok(Step::Down(below))
        } else {
            Err(Errno::STALE)
        }
    }

    fn change(&mut self, file: BorrowedFd<'_>, stat: &Stat) {
        let Owners { former, guest } = self.owners;
        let directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        let changed = if self.to_guest {
            // The other names of a file may be anywhere; and what is not the former owner's is not given.
            if stat.st_uid != former.0 || (!directory && stat.st_nlink > 1) {
                return;
            }
            // The group stays, so that it need not be given back.
            chown(file, Some(guest.0), None)
        } else {
            if stat.st_uid != guest.0 {
                return;
            }
            chown(
                file,
                Some(former.0),
                (stat.st_gid == guest.1).then_some(former.1),
            )
        };
        if let Err(errno) = changed {
            self.failure.get_or_insert(errno);
        }
    }
}

fn open(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}
