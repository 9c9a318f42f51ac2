//! What is changed of a file, and how.

use std::ffi::CString;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, Timestamps, XattrFlags, fstat};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::super::performer::Performed;
use super::call::{Change, Times};
use super::memory::Memory;
use super::{failed, own_link, same};

/// XATTR_NAME_MAX and XATTR_SIZE_MAX of Linux (limits.h), the final NUL of a name included.
const LONGEST_NAME: usize = 256;
const LONGEST_VALUE: usize = 65_536;

/// A change with everything that it takes.
pub(super) enum Value {
    Nothing,
    Mode(u32),
    Owner {
        uid: u32,
        gid: u32,
    },
    Times(Timestamps),
    /// `None` removes it.
    Attribute {
        name: CString,
        value: Option<(Vec<u8>, u32)>,
    },
}

impl Value {
    /// Takes the rest of what a call asks for from the caller's memory.
    pub(super) fn read(change: &Change, memory: &Memory) -> Result<Self, Performed> {
        let name = |address| memory.string(address, LONGEST_NAME, libc::ERANGE);
        Ok(match *change {
            Change::Mode(mode) => Self::Mode(mode),
            Change::Owner { uid, gid } => Self::Owner { uid, gid },
            Change::Times(times) => times_at(times, memory)?.map_or(Self::Nothing, Self::Times),
            Change::SetAttribute {
                name: at,
                value,
                size,
                flags,
            } => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if size > LONGEST_VALUE {
                    return Err(Performed::Done(libc::E2BIG));
                }
                Self::Attribute {
                    name: name(at)?,
                    value: Some((memory.bytes(value, size)?, flags)),
                }
            }
            Change::RemoveAttribute { name: at } => Self::Attribute {
                name: name(at)?,
                value: None,
            },
        })
    }

    /// Changes this very file, beneath scratch or scratch itself, as its owner may.
    pub(super) fn make(
        &self,
        file: BorrowedFd<'_>,
        scratch: BorrowedFd<'_>,
    ) -> Result<(), Performed> {
        let stat = fstat(file).map_err(failed)?;
        // An embedder with capabilities may more than its guest.
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Performed::Done(libc::EPERM));
        }
        let made = match self {
            Self::Nothing => Ok(()),
            Self::Mode(mode) => {
                let above = fstat(scratch).map_err(failed)?;
                return change_mode(file, &stat, same(&stat, &above), *mode);
            }
            Self::Owner { uid, gid } => {
                // No uid but this one, and no other group: the kernel's answer to most, and enough for cp -a.
                let same = |wanted: u32, is: u32| wanted == u32::MAX || wanted == is;
                if same(*uid, stat.st_uid) && same(*gid, stat.st_gid) {
                    Ok(())
                } else {
                    Err(Errno::PERM)
                }
            }
            Self::Times(times) => rustix::fs::utimensat(file, c"", times, AtFlags::EMPTY_PATH),
            // Access control lists and what belongs to the system: as on a file system that has none.
            Self::Attribute { name, .. } if !name.as_bytes().starts_with(b"user.") => {
                Err(Errno::OPNOTSUPP)
            }
            Self::Attribute {
                name,
                value: Some((value, flags)),
            } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                rustix::fs::setxattr(own_link(file), name.as_c_str(), value, flags)
            }
            Self::Attribute { name, value: None } => {
                rustix::fs::removexattr(own_link(file), name.as_c_str())
            }
        };
        made.map_err(failed)
    }
}

/// A program that runs as the embedder whoever starts it must not come out of a guest: set-uid and set-gid bits stay
/// refused, but for the one that a directory has already and hands on to those that are made in it.
///
/// A scratch directory stays open to the embedder, whose sweep locks what it finds, and is opened to nobody else: such
/// bits are kept and left out, as the kernel leaves out those that a caller may not set.
fn change_mode(
    file: BorrowedFd<'_>,
    stat: &Stat,
    is_scratch: bool,
    mode: u32,
) -> Result<(), Performed> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind.is_symlink() {
        return Err(Performed::Done(libc::EOPNOTSUPP));
    }
    let kept = if kind.is_dir() {
        stat.st_mode & SET_GID
    } else {
        0
    };
    if mode & (SET_UID | SET_GID) & !kept != 0 {
        return Err(Performed::No);
    }
    let (kept, most) = if is_scratch {
        (stat.st_mode & 0o500, 0o7700 | stat.st_mode & 0o77)
    } else {
        (0, 0o7777)
    };
    let mode = Mode::from_raw_mode(mode & most | kept);
    // fchmod(2) takes no O_PATH descriptor, and fchmodat2(2) came with Linux 6.6.
    rustix::fs::chmodat(CWD, own_link(file), mode, AtFlags::empty()).map_err(failed)
}

/// The two times; `None` where neither is to be changed.
fn times_at(times: Times, memory: &Memory) -> Result<Option<Timestamps>, Performed> {
    let address = match times {
        Times::Seconds(address) | Times::Micros(address) | Times::Nanos(address) => address,
    };
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    };
    if address == 0 {
        return Ok(Some(Timestamps {
            last_access: now,
            last_modification: now,
        }));
    }
    let words = if matches!(times, Times::Seconds(_)) {
        2
    } else {
        4
    };
    let bytes = memory.bytes(address, words * 8)?;
    let words: Vec<i64> = bytes
        .chunks_exact(8)
        .filter_map(|word| word.try_into().ok().map(i64::from_ne_bytes))
        .collect();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let [last_access, last_modification] = match (times, words.as_slice()) {
        (Times::Seconds(_), [accessed, modified]) => [time(*accessed, 0), time(*modified, 0)],
        (Times::Nanos(_), [seconds, nanos, and, more]) => {
            [time(*seconds, *nanos), time(*and, *more)]
        }
        (Times::Micros(_), [seconds, micros, and, more]) => {
            let valid = 0..1_000_000;
            if !valid.contains(micros) || !valid.contains(more) {
                return Err(Performed::Done(libc::EINVAL));
            }
            [time(*seconds, *micros * 1000), time(*and, *more * 1000)]
        }
        _ => return Err(Performed::No),
    };
    let kept = |time: &Timespec| time.tv_nsec == libc::UTIME_OMIT;
    let both = kept(&last_access) && kept(&last_modification);
    Ok((!both).then_some(Timestamps {
        last_access,
        last_modification,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::OFlags;

    use super::*;

    /// What comes of a mode for a file that has another one, and the mode that it has then.
    fn changed(path: &std::path::Path, is_scratch: bool, from: u32, to: u32) -> (bool, u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(from)).unwrap();
        let file = rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
        let stat = fstat(&file).unwrap();
        let made = change_mode(file.as_fd(), &stat, is_scratch, to);
        assert!(matches!(made, Ok(()) | Err(Performed::No)), "{made:?}");
        let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        (made.is_ok(), mode)
    }

    #[test]
    fn set_uid_and_set_gid_bits_are_gained_by_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (file, directory) = (base.path().join("file"), base.path().join("directory"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&directory).unwrap();
        for bits in [0o4755, 0o2755, 0o6777] {
            assert_eq!(changed(&file, false, 0o644, bits), (false, 0o644));
            assert_eq!(changed(&directory, false, 0o755, bits), (false, 0o755));
        }
        // A file loses its own, and gets them back from nobody; a directory keeps the one that is harmless there.
        assert_eq!(changed(&file, false, 0o2755, 0o755), (true, 0o755));
        assert_eq!(changed(&file, false, 0o2755, 0o2711), (false, 0o2755));
        assert_eq!(changed(&directory, false, 0o2755, 0o2700), (true, 0o2700));
        assert_eq!(changed(&directory, false, 0o2755, 0o6755), (false, 0o2755));
        // What the kernel takes beyond the bits of a mode it ignores, as libuv's whole st_mode.
        assert_eq!(changed(&file, false, 0o644, 0o100_600), (true, 0o600));
    }

    #[test]
    fn a_scratch_directory_stays_open_to_the_embedder_and_to_nobody_else() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path();
        assert_eq!(changed(path, true, 0o700, 0o1777), (true, 0o1700));
        assert_eq!(changed(path, true, 0o750, 0o777), (true, 0o750));
        assert_eq!(changed(path, true, 0o755, 0o711), (true, 0o711));
        assert_eq!(changed(path, true, 0o700, 0), (true, 0o500));
        assert_eq!(changed(path, true, 0o500, 0o300), (true, 0o700));
        assert_eq!(changed(path, false, 0o700, 0o777), (true, 0o777));
    }
}
