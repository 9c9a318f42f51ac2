//! The rulesets are put on a thread of their own, which they end with.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Pid, test_kill_process};

use super::*;
use crate::host::sys;

/// The ABI of the machine that the test runs on; without Landlock there is nothing to test, and it says so.
fn host_abi() -> Option<u32> {
    let abi = sys::landlock_abi();
    if abi.is_err() {
        eprintln!("not run: this kernel has no Landlock ({abi:?})");
    }
    abi.ok()
}

fn restricted<T: Send>(ruleset: &OwnedFd, check: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                sys::landlock_restrict_self(ruleset.as_fd()).unwrap();
                check()
            })
            .join()
            .unwrap()
    })
}

fn filesystem(read: &[&Path], write: &[&Path]) -> Filesystem {
    let owned = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
    Filesystem {
        read: owned(read),
        write: owned(write),
        execute: Vec::new(),
        ..Filesystem::default()
    }
}

#[test]
fn what_is_not_granted_cannot_be_opened_and_what_is_granted_can() {
    let Some(abi) = host_abi() else { return };
    let open = tempfile::tempdir().unwrap();
    let closed = tempfile::tempdir().unwrap();
    for directory in [&open, &closed] {
        fs::write(directory.path().join("file"), "text").unwrap();
    }
    let grants = Grants::open(&filesystem(&[open.path()], &[]), abi, &Network::Denied).unwrap();
    let ruleset = grants.ruleset(&[]).unwrap();
    let denied = closed.path().join("file");
    assert!(fs::read(&denied).is_ok());
    restricted(&ruleset, || {
        assert_eq!(fs::read(open.path().join("file")).unwrap(), b"text");
        assert_eq!(
            fs::read(&denied).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        assert_eq!(
            fs::read_dir(closed.path()).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        let write = fs::write(open.path().join("file"), "").unwrap_err();
        assert_eq!(write.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn write_lets_files_be_made_renamed_and_removed_beneath_and_nowhere_else() {
    let Some(abi) = host_abi() else { return };
    let (open, closed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let grants = Grants::open(&filesystem(&[], &[open.path()]), abi, &Network::Denied).unwrap();
    let ruleset = grants.ruleset(&[]).unwrap();
    restricted(&ruleset, || {
        let (one, two) = (open.path().join("one"), open.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        fs::write(one.join("file"), "text").unwrap();
        if abi >= 2 {
            fs::rename(one.join("file"), two.join("file")).unwrap();
            fs::remove_file(two.join("file")).unwrap();
        }
        let outside = closed.path().join("file");
        assert_eq!(
            fs::write(&outside, "").unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        assert_eq!(
            fs::create_dir(&outside).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
    });
}

#[test]
fn a_granted_file_opens_itself_and_not_its_neighbours() {
    let Some(abi) = host_abi() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (granted, neighbour) = (directory.path().join("a"), directory.path().join("b"));
    fs::write(&granted, "a").unwrap();
    fs::write(&neighbour, "b").unwrap();
    let grants = Grants::open(&filesystem(&[], &[&granted]), abi, &Network::Denied).unwrap();
    restricted(&grants.ruleset(&[]).unwrap(), || {
        fs::write(&granted, "changed").unwrap();
        assert!(fs::read(&granted).is_ok());
        assert_eq!(
            fs::read(&neighbour).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
    });
}

#[test]
fn an_extra_grant_holds_for_its_run_alone() {
    let Some(abi) = host_abi() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let directory = fs::File::open(scratch.path()).unwrap();
    let grants = Grants::open(&Filesystem::default(), abi, &Network::Denied).unwrap();
    let with = grants
        .ruleset(&[(directory.as_fd(), Access::Write)])
        .unwrap();
    let without = grants.ruleset(&[]).unwrap();
    let file = scratch.path().join("file");
    restricted(&with, || fs::write(&file, "text").unwrap());
    restricted(&without, || {
        assert_eq!(
            fs::read(&file).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
    });
}

#[test]
fn execute_is_a_right_of_its_own() {
    let Some(abi) = host_abi() else { return };
    let directories = ["/usr", "/lib", "/lib64"].map(Path::new);
    let mut policy = filesystem(&directories, &[]);
    let run = || {
        Command::new("/usr/bin/true")
            .status()
            .map(|status| status.success())
    };
    let readable = Grants::open(&policy, abi, &Network::Denied)
        .unwrap()
        .ruleset(&[])
        .unwrap();
    // The program's own exec fails, which std reports as the error of the spawn.
    let refused = restricted(&readable, run).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    policy.execute = std::mem::take(&mut policy.read);
    let executable = Grants::open(&policy, abi, &Network::Denied)
        .unwrap()
        .ruleset(&[])
        .unwrap();
    assert!(restricted(&executable, run).unwrap());
}

#[test]
fn tcp_is_denied_unless_the_policy_has_the_hosts_network() {
    let Some(abi @ 4..) = host_abi() else { return };
    let bind = || TcpListener::bind("127.0.0.1:0").map(drop);
    bind().unwrap();
    let ruleset = |network| {
        let grants = Grants::open(&Filesystem::default(), abi, &network).unwrap();
        grants.ruleset(&[]).unwrap()
    };
    let error = restricted(&ruleset(Network::Denied), bind).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    restricted(&ruleset(Network::Host), bind).unwrap();
}

#[test]
fn ports_are_bounded_one_by_one_and_each_for_what_it_is_named() {
    let Some(abi @ 4..) = host_abi() else { return };
    let listeners = ["127.0.0.1:0", "127.0.0.1:0"].map(|any| TcpListener::bind(any).unwrap());
    let [open, closed] = listeners.each_ref().map(|one| one.local_addr().unwrap());
    let ruleset = |network| {
        let grants = Grants::open(&Filesystem::default(), abi, &network).unwrap();
        grants.ruleset(&[]).unwrap()
    };
    let refused = Err(ErrorKind::PermissionDenied);
    let tried = |ruleset: &OwnedFd| {
        restricted(ruleset, || {
            let connect = |to| TcpStream::connect(to).map(drop).map_err(|e| e.kind());
            let bind = |at| TcpListener::bind(at).map(drop).map_err(|e| e.kind());
            let free = "127.0.0.1:0".parse().unwrap();
            [connect(open), connect(closed), bind(open), bind(free)]
        })
    };
    let client = ruleset(Network::tcp([open.port()], []));
    assert_eq!(tried(&client), [Ok(()), refused, refused, refused]);
    // The port is taken, which is what says that it was not refused.
    let taken = Err(ErrorKind::AddrInUse);
    let server = ruleset(Network::tcp([], [open.port(), 0]));
    assert_eq!(tried(&server), [refused, refused, taken, Ok(())]);
    let both = ruleset(Network::tcp([open.port()], [open.port()]));
    assert_eq!(tried(&both), [Ok(()), refused, taken, refused]);
}

#[test]
fn signals_do_not_leave_the_domain() {
    let Some(abi @ 6..) = host_abi() else { return };
    let mut outside = Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&outside);
    test_kill_process(pid).unwrap();
    let ruleset = Grants::open(&Filesystem::default(), abi, &Network::Host)
        .unwrap()
        .ruleset(&[])
        .unwrap();
    let error = restricted(&ruleset, || test_kill_process(pid)).unwrap_err();
    assert_eq!(error, Errno::PERM);
    drop(outside.stdin.take());
    assert!(outside.wait().unwrap().success());
}

#[test]
fn every_abi_up_to_the_hosts_makes_a_ruleset() {
    let Some(abi) = host_abi() else { return };
    for version in 1..=abi {
        let grants = Grants::open(&Filesystem::python(), version, &Network::Denied).unwrap();
        assert!(
            grants.ruleset(&[]).unwrap().as_raw_fd() >= 3,
            "ABI {version}"
        );
    }
}

#[test]
fn rights_are_only_what_the_abi_and_the_kind_of_file_have() {
    for version in 1..=10 {
        let abi = ABI::from(version);
        for access in [Access::Read, Access::Write, Access::Execute] {
            for directory in [false, true] {
                let rights = access.rights(directory, abi);
                assert!(AccessFs::from_all(abi).contains(rights));
                assert!(directory || AccessFs::from_file(abi).contains(rights));
                assert!(!rights.intersects(AccessFs::MakeChar | AccessFs::MakeBlock));
                assert_eq!(
                    rights.contains(AccessFs::Execute),
                    access == Access::Execute
                );
                assert_eq!(
                    rights.contains(AccessFs::WriteFile),
                    access == Access::Write
                );
            }
        }
        let directory = Access::Write.rights(true, abi);
        assert!(
            !directory.contains(AccessFs::IoctlDev),
            "devices beneath a directory take commands"
        );
        assert_eq!(
            Access::Write
                .rights(false, abi)
                .contains(AccessFs::IoctlDev),
            version >= 5
        );
        assert_eq!(directory.contains(AccessFs::Refer), version >= 2);
        assert_eq!(directory.contains(AccessFs::Truncate), version >= 3);
    }
}

#[test]
fn the_description_names_what_is_missing_and_leaves_the_presets_own_paths_out() {
    let mut filesystem = filesystem(
        &[Path::new("/etc/python3.9"), Path::new("/no-such-path")],
        &[],
    );
    filesystem.execute = vec!["/usr".into()];
    let old = Grants::open(&filesystem, 1, &Network::Denied).unwrap();
    assert_eq!(
        old.describe(),
        "Landlock ABI 1: 1 paths, TCP not covered (ABI 4), signals not scoped (ABI 6), no rename between \
         directories (ABI 2), truncate(2) not covered (ABI 3), ioctl on devices not covered (ABI 5); not on \
         this host: /no-such-path"
    );
    let new = Grants::open(&filesystem, 7, &Network::Denied).unwrap();
    assert_eq!(
        new.describe(),
        "Landlock ABI 7: 1 paths, TCP denied, signals and abstract sockets scoped; not on this host: /no-such-path"
    );
}

#[test]
fn the_own_proc_entry_is_neither_writable_nor_executable() {
    let grants = Grants::open(&Filesystem::default(), 7, &Network::Denied).unwrap();
    // LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR of linux/landlock.h.
    assert_eq!(grants.own_proc_rights(), 0b1100);
}
