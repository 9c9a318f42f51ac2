//! Whether this process may make groups where they would go, as far as the kernel says so beforehand.

use std::path::Path;

use rustix::fs::{Access, CWD, Stat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};

use crate::dir::accessible;
use crate::error::Error;
use crate::home::LEAF;
use crate::layout::{Controller, Home, Layout, Place};

const CREATE: &str = "create groups in";

impl Layout {
    /// Whether groups can be made in the cgroup2 tree. Makes nothing: it asks for the access to the own group,
    /// and to those above it up to the systemd unit, that making a group and moving a process into it take.
    ///
    /// What only shows when it is done (a security module, a seccomp filter, a bound on the number of groups)
    /// is an error of [`Subtree::prepare`](crate::Subtree::prepare).
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotDelegated`], [`Error::Barred`] or [`Error::Io`].
    pub fn writable(&self) -> Result<(), Error> {
        any_of(&self.unified, |group| {
            ask(group, Access::WRITE_OK | Access::EXEC_OK)?;
            // The process that is put into a group comes from here (cgroups(7), "Delegation containment").
            ask(&group.join("cgroup.procs"), Access::WRITE_OK)
        })
    }

    /// As [`Layout::writable`], for the groups that this controller is used in.
    ///
    /// # Errors
    /// Those of [`Layout::writable`], and [`Error::ControllerUnavailable`].
    pub fn writable_for(&self, controller: Controller) -> Result<(), Error> {
        match self.home(controller) {
            Some(Home::Unified) => self.writable(),
            Some(Home::Legacy(index)) => self.legacy.get(index).map_or(Ok(()), |legacy| {
                any_of(&legacy.place, |group| {
                    ask(group, Access::WRITE_OK | Access::EXEC_OK)
                })
            }),
            None => Err(crate::home::unavailable(
                controller,
                self.own_group(),
                &self.available(),
            )),
        }
    }
}

/// Success for the first group that has it, else what is said of the nearest.
fn any_of(place: &Place, allowed: impl Fn(&Path) -> Result<(), Error>) -> Result<(), Error> {
    let mut candidates = place.candidates();
    if candidates.len() > 1 && place.own.file_name().is_some_and(|name| name == LEAF) {
        candidates.remove(0);
    }
    let mut first = Ok(());
    for (index, group) in candidates.into_iter().enumerate() {
        match allowed(group) {
            Ok(()) => return Ok(()),
            Err(error) if index == 0 => first = Err(error),
            Err(_) => {}
        }
    }
    first
}

fn ask(path: &Path, access: Access) -> Result<(), Error> {
    match accessible(CWD, path, access) {
        // A kernel that cannot tell for split ids: the attempt will.
        Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) if permitted(path) => {
            Err(Error::barred(CREATE, path, errno.into()))
        }
        Err(errno) => Err(Error::io(CREATE, path, errno.into())),
    }
}

/// Whether owner and mode alone would allow this process to write.
fn permitted(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        let member = getegid().as_raw() == stat.st_gid
            || getgroups()
                .is_ok_and(|groups| groups.iter().any(|group| group.as_raw() == stat.st_gid));
        may_write(&stat, geteuid().as_raw(), member)
    })
}

fn may_write(stat: &Stat, uid: u32, member: bool) -> bool {
    let bit = match (stat.st_uid == uid, member) {
        (true, _) => 0o200,
        (false, true) => 0o020,
        (false, false) => 0o002,
    };
    stat.st_mode & bit != 0
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn owner_group_and_others_have_their_own_bits() {
        let mut stat = rustix::fs::stat("/").unwrap();
        stat.st_uid = 7;
        for (mode, expected) in [
            (0o755, [true, false, false]),
            (0o575, [false, true, false]),
            (0o557, [false, false, true]),
        ] {
            stat.st_mode = mode;
            let found = [
                may_write(&stat, 7, true),
                may_write(&stat, 8, true),
                may_write(&stat, 8, false),
            ];
            assert_eq!(found, expected, "{mode:o}");
        }
    }

    #[test]
    fn what_is_said_of_the_own_group_comes_first_and_any_above_it_is_enough() {
        let place = Place {
            mount: PathBuf::from("/m"),
            own: PathBuf::from("/m/a/b"),
            read_only: false,
        };
        let refuse = |group: &Path| {
            Err(Error::ReadOnly {
                operation: CREATE,
                path: group.to_owned(),
            })
        };
        let error = any_of(&place, refuse).unwrap_err();
        assert!(
            matches!(&error, Error::ReadOnly { path, .. } if path == Path::new("/m/a/b")),
            "{error}"
        );
        let above = |group: &Path| {
            if group == Path::new("/m") {
                Ok(())
            } else {
                refuse(group)
            }
        };
        assert!(any_of(&place, above).is_ok());
        let leaf = Place {
            own: PathBuf::from("/m/a/varek-leaf"),
            ..place
        };
        let error = any_of(&leaf, refuse).unwrap_err();
        assert!(
            matches!(&error, Error::ReadOnly { path, .. } if path == Path::new("/m/a")),
            "{error}"
        );
    }
}
