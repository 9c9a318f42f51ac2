//! How each fact of a [`Host`] is found out.

use std::fs;
use std::io;

use rustix::process::{PidfdFlags, getegid, geteuid, getpid};
use rustix::thread::{CapabilitySet, SecureComputingMode, capabilities, secure_computing_mode};

use super::{GroupSupport, Host, IdRange, LandlockSupport, MountSupport, namespaces, sys};

/// What it takes to start guests under uids of their own, and to clean up after them: change to the uid
/// and its gid, empty the bounding set, kill them, and own, enter and remove their files.
const NEEDED: [(CapabilitySet, &str); 6] = [
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::SETPCAP, "CAP_SETPCAP"),
    (CapabilitySet::KILL, "CAP_KILL"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
];

pub(super) fn probe() -> Host {
    let kernel = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let kernel_version = version(&kernel);
    let since = |major, minor| kernel_version >= (major, minor);
    let clone3 = sys::clone3_exists().is_ok();
    let outer_filter = filtered(secure_computing_mode());
    let seccomp = sys::seccomp_flags(0);
    Host {
        kernel_version,
        seccomp_filter: seccomp.is_ok(),
        seccomp_error: seccomp.err().and_then(|error| error.raw_os_error()),
        user_notification: sys::seccomp_action(libc::SECCOMP_RET_USER_NOTIF).is_ok(),
        // The kernel takes the second flag only together with the first.
        killable_notification: sys::seccomp_flags(
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        )
        .is_ok(),
        outer_filter,
        outer_listener: outer_filter && has_outer_listener(),
        landlock: landlock(sys::landlock_abi()),
        clone3,
        clone_into_group: clone3 && since(5, 7),
        // The request is older (6.13) than its exit status, and only the version tells them apart.
        status_after_reap: since(6, 15) && own_pidfd_info(),
        user_namespaces: namespaces::user_namespaces(kernel_version, outer_filter),
        mounts: match crate::mounts::allowed() {
            Ok(()) => MountSupport::Allowed,
            Err(errno) => MountSupport::Refused(errno.raw_os_error()),
        },
        groups: GroupSupport::probe(since(5, 14)),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        missing_capabilities: missing_capabilities(),
        uids: mapped("/proc/self/uid_map"),
        gids: mapped("/proc/self/gid_map"),
        setgroups: sys::setgroups_allowed().is_ok(),
        init: getpid().is_init(),
        subreaper: rustix::process::child_subreaper().is_ok_and(|reaper| reaper.is_some()),
        discards_status: sys::sigchld_discards().unwrap_or(false),
        page_size: u64::try_from(sys::page_size()).unwrap_or(4096),
        cpus: rustix::thread::sched_getaffinity(None)
            .map_or(1, |set| usize::try_from(set.count()).unwrap_or(1).max(1)),
        kernel,
        ..Host::nothing(unsupported())
    }
}

/// Whether an outer filter of this thread has a listener. Asked by a thread that ends at once, since the
/// answer costs it a filter.
fn has_outer_listener() -> bool {
    let asked = std::thread::Builder::new().spawn(sys::claim_listener);
    let answer = asked.map(std::thread::JoinHandle::join);
    matches!(answer, Ok(Ok(Err(error))) if error.raw_os_error() == Some(libc::EBUSY))
}

fn unsupported() -> Option<String> {
    let known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && cfg!(target_pointer_width = "64");
    (!known).then(|| {
        format!(
            "no system call table for {}; build for 64-bit x86_64 or aarch64",
            std::env::consts::ARCH
        )
    })
}

/// The first two numbers of a release such as `6.1.0-18-amd64`.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether a seccomp filter is around this thread. Where even this question is refused there is one; `EINVAL` is
/// a kernel without seccomp.
fn filtered(mode: rustix::io::Result<SecureComputingMode>) -> bool {
    !matches!(
        mode,
        Ok(SecureComputingMode::Disabled) | Err(rustix::io::Errno::INVAL)
    )
}

/// The ids of a map. A kernel without user namespaces has no such file, and every id.
fn mapped(path: &str) -> Option<Vec<IdRange>> {
    match fs::read_to_string(path) {
        Ok(map) => Some(IdRange::parse(&map)),
        Err(_) if fs::exists("/proc/self/stat").unwrap_or(false) => Some(vec![IdRange {
            first: 0,
            count: u32::MAX,
        }]),
        Err(_) => None,
    }
}

fn landlock(answer: io::Result<u32>) -> LandlockSupport {
    match answer.map_err(|error| error.raw_os_error()) {
        Ok(0) | Err(None | Some(libc::ENOSYS)) => LandlockSupport::NotBuilt,
        Ok(version) => LandlockSupport::Version(version),
        Err(Some(libc::EOPNOTSUPP)) => LandlockSupport::Disabled,
        Err(Some(errno)) => LandlockSupport::Refused(errno),
    }
}

fn own_pidfd_info() -> bool {
    rustix::process::pidfd_open(getpid(), PidfdFlags::empty())
        .is_ok_and(|pidfd| sys::pidfd_info(std::os::fd::AsFd::as_fd(&pidfd)).is_ok())
}

fn missing_capabilities() -> Vec<String> {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    NEEDED
        .iter()
        .filter(|(capability, _)| !held.contains(*capability))
        .map(|(_, name)| (*name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_by_their_first_two_numbers() {
        for (release, expected) in [
            ("6.1.0-18-amd64", (6, 1)),
            ("5.15.0", (5, 15)),
            ("6.18-rc3+", (6, 18)),
            ("4.18.0-553.el8.x86_64", (4, 18)),
            ("", (0, 0)),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn landlock_answers_are_told_apart() {
        let answer = |errno| landlock(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(landlock(Ok(4)), LandlockSupport::Version(4));
        assert_eq!(answer(libc::ENOSYS), LandlockSupport::NotBuilt);
        assert_eq!(answer(libc::EOPNOTSUPP), LandlockSupport::Disabled);
        assert_eq!(answer(libc::EPERM), LandlockSupport::Refused(libc::EPERM));
    }

    #[test]
    fn probing_twice_gives_the_same_facts() {
        let host = Host::probe();
        assert_eq!(host, Host::probe());
        assert!(host.kernel_version >= (4, 0), "{host}");
        assert!(host.seccomp_filter, "{host}");
    }

    #[test]
    fn a_question_that_is_refused_is_the_work_of_a_filter() {
        use rustix::io::Errno;
        assert!(!filtered(Ok(SecureComputingMode::Disabled)));
        assert!(!filtered(Err(Errno::INVAL)));
        assert!(filtered(Ok(SecureComputingMode::Filter)));
        for errno in [Errno::PERM, Errno::NOSYS, Errno::ACCESS] {
            assert!(filtered(Err(errno)), "{errno}");
        }
    }

    #[test]
    fn a_map_that_is_not_there_is_unknown_only_without_proc() {
        // The control: a process of a user namespace that has one reads it.
        assert!(!mapped("/proc/self/uid_map").unwrap().is_empty());
        let all = mapped("/proc/self/no-such-map").unwrap();
        assert!(IdRange::cover(&all, 1_879_048_192, 4096));
    }

    #[test]
    fn flags_that_no_kernel_has_are_told_from_flags_that_it_has() {
        assert!(sys::seccomp_flags(0).is_ok());
        assert_eq!(
            sys::seccomp_flags(1 << 31).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        assert!(sys::seccomp_action(libc::SECCOMP_RET_ERRNO).is_ok());
        assert!(sys::seccomp_action(0x1234_0000).is_err());
    }

    #[test]
    fn what_the_probe_says_of_this_process_is_what_proc_says() {
        let host = Host::probe();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |status: &'static str, name: &str| {
            let mut lines = status.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let status: &'static str = status.leak();
        let effective = u64::from_str_radix(field(status, "CapEff:").unwrap(), 16).unwrap();
        for (capability, name) in NEEDED {
            let held = effective & capability.bits() != 0;
            assert_eq!(
                held,
                !host
                    .missing_capabilities
                    .iter()
                    .any(|missing| missing == name),
                "{name}"
            );
        }
        assert_eq!(field(status, "Seccomp:").unwrap() != "0", host.outer_filter);
        let denied = fs::read_to_string("/proc/self/setgroups").unwrap().trim() == "deny";
        let setgid = !host
            .missing_capabilities
            .iter()
            .any(|name| name == "CAP_SETGID");
        assert_eq!(host.setgroups, setgid && !denied);
        let uids: Vec<&str> = field(status, "Uid:").unwrap().split_whitespace().collect();
        assert_eq!(uids[1], host.uid.to_string());
    }
}
