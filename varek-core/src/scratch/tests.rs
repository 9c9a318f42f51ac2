use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::thread;

use rustix::fs::{FileType, IFlags, mknodat};
use rustix::process::geteuid;

use super::*;
use crate::filesystem::Filesystem;
use crate::network::Network;

const GUEST: (u32, u32) = (0x7000_0FFE, 0x7000_0FFE);

/// A base that every uid can walk through, and a canary beside it.
fn base() -> tempfile::TempDir {
    base_in(&std::env::temp_dir())
}

/// In memory where there is such a file system: for trees of thousands of directories.
fn quick_base() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    base_in(if memory.is_dir() {
        memory
    } else {
        Path::new("/tmp")
    })
}

fn base_in(directory: &Path) -> tempfile::TempDir {
    let base = tempfile::tempdir_in(directory).unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    base
}

fn root() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("not run: only root can give files away");
    }
    root
}

fn long() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

/// `depth` directories in one another, made without a path that grows.
fn chain(top: BorrowedFd<'_>, depth: usize, mode: Mode) {
    let mut here = rustix::io::fcntl_dupfd_cloexec(top, 3).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        let next = rustix::fs::openat(&here, "d", PLACE, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}", here.as_raw_fd());
        rustix::fs::chmod(path, mode).unwrap();
        here = next;
    }
}

fn descriptors_of(scratch: &Scratch) -> [i32; 2] {
    let End::Remove { base, .. } = &scratch.end else {
        panic!()
    };
    [base.as_raw_fd(), scratch.directory.as_raw_fd()]
}

#[test]
fn an_empty_directory_goes_with_one_call_and_a_full_one_does_not() {
    let base = base();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    assert!(descriptors_of(&scratch).iter().all(|number| *number >= 3));
    assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o7777, 0o700);
    fs::write(scratch.path().join("file"), "").unwrap();
    assert!(!scratch.try_remove_empty());
    fs::remove_file(scratch.path().join("file")).unwrap();
    assert!(scratch.try_remove_empty());
    assert!(scratch.remove(long()).unwrap());
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn a_hostile_tree_is_removed_and_nothing_outside_is_touched() {
    let base = base();
    let canary = base.path().join("canary");
    fs::create_dir(&canary).unwrap();
    fs::write(canary.join("file"), "text").unwrap();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    let top = scratch.path().to_owned();
    symlink(&canary, top.join("link")).unwrap();
    symlink("/", top.join("root")).unwrap();
    symlink("nowhere", top.join("dangling")).unwrap();
    fs::hard_link(canary.join("file"), top.join("hard")).unwrap();
    let _socket = UnixListener::bind(top.join("socket")).unwrap();
    mknodat(scratch.directory(), "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
    for name in [
        &b"\xff\xfe"[..],
        b"a\nb",
        b" ",
        b"-rf",
        b"...",
        &[b'n'; 255],
    ] {
        let name = std::ffi::OsStr::from_bytes(name);
        fs::create_dir_all(top.join(name).join("in").join(name)).unwrap();
        fs::write(top.join(name).join("file"), "").unwrap();
    }
    for name in ["wide", "wide/closed", "wide/closed/deep"] {
        fs::create_dir(top.join(name)).unwrap();
    }
    for number in 0..2000 {
        fs::write(top.join(format!("wide/{number}")), "").unwrap();
        fs::create_dir(top.join(format!("wide/closed/{number}"))).unwrap();
    }
    symlink(&canary, top.join("wide/closed/deep/link")).unwrap();
    fs::set_permissions(top.join("wide/closed"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&top, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(scratch.remove(long()).unwrap());
    assert!(!top.exists());
    assert_eq!(fs::read(canary.join("file")).unwrap(), b"text");
    assert_eq!(fs::metadata(canary.join("file")).unwrap().nlink(), 1);
}

/// `VAREK_TEST_DEPTH=100000` for the depth that a guest reaches within its file system.
fn depth() -> usize {
    std::env::var("VAREK_TEST_DEPTH")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5_000)
}

#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    let base = quick_base();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    chain(scratch.directory(), depth(), Mode::RWXU);
    assert!(scratch.remove(long()).unwrap());
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn removal_goes_on_where_it_was_cut_off() {
    let base = base();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    chain(scratch.directory(), 100, Mode::RWXU);
    for number in 0..100 {
        fs::write(scratch.path().join(number.to_string()), "").unwrap();
    }
    // Every call does at least one step, even when its time is over before it begins.
    let mut calls = 1;
    while !scratch.remove(Instant::now()).unwrap() {
        calls += 1;
    }
    assert!((50..=2000).contains(&calls), "{calls}");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn where_nothing_can_be_moved_the_tree_is_removed_from_below() {
    use crate::landlock::{Access, Grants};
    let Ok(_) = crate::host::sys::landlock_abi() else {
        eprintln!("not run: this kernel has no Landlock");
        return;
    };
    let base = quick_base();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    chain(scratch.directory(), 60, Mode::RWXU);
    for name in ["d/e/f", "d/d/e", "d/d/g/h", "i/j"] {
        fs::create_dir_all(scratch.path().join(name)).unwrap();
        fs::write(scratch.path().join(name).join("file"), "").unwrap();
    }
    // The first ABI refuses every move from one directory to another (EXDEV) and nothing else in a grant.
    let beneath = fs::File::open(base.path()).unwrap();
    let grants = Grants::open(&Filesystem::default(), 1, &Network::Host).unwrap();
    let ruleset = grants.ruleset(&[(beneath.as_fd(), Access::Write)]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            crate::host::sys::landlock_restrict_self(ruleset.as_fd()).unwrap();
            let (from, to) = (scratch.path().join("i/j"), base.path().join("j"));
            assert_eq!(
                fs::rename(from, to).unwrap_err().raw_os_error(),
                Some(libc::EXDEV)
            );
            let mut calls = 0;
            while !scratch.remove(Instant::now()).unwrap() {
                calls += 1;
                assert!(calls < 1_000);
            }
        });
    });
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn an_owner_without_privileges_removes_directories_without_permissions() {
    if !root() {
        return;
    }
    let base = base();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let uid = Uid::from_raw(GUEST.0);
    // The uid of this thread alone.
    thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
            chain(scratch.directory(), 300, Mode::empty());
            assert!(fs::read_dir(scratch.path()).is_err());
            assert!(scratch.remove(long()).unwrap());
        });
    });
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

/// Sets or takes away an attribute of a file or directory; `false` where this file system or program has none.
fn mark(path: &Path, flags: IFlags, set: bool) -> bool {
    let file = fs::File::open(path).unwrap();
    let Ok(before) = rustix::fs::ioctl_getflags(&file) else {
        return false;
    };
    let after = if set { before | flags } else { before - flags };
    rustix::fs::ioctl_setflags(&file, after).is_ok()
}

#[test]
fn files_that_may_not_be_changed_are_removed_and_nothing_outside_is_touched() {
    if !root() {
        return;
    }
    let (immutable, append) = (IFlags::IMMUTABLE, IFlags::APPEND);
    for base in [base(), quick_base()] {
        let canary = base.path().join("canary");
        fs::write(&canary, "text").unwrap();
        if !mark(&canary, immutable, true) {
            let place = base.path().display();
            eprintln!("not run: {place} has no immutable files, or this program may make none");
            continue;
        }
        let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
        let top = scratch.path().to_owned();
        for name in ["in/deep/er", "append/in", "empty", "closed/in"] {
            fs::create_dir_all(top.join(name)).unwrap();
            fs::write(top.join(name).join("file"), "").unwrap();
        }
        fs::remove_file(top.join("empty/file")).unwrap();
        mknodat(scratch.directory(), "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink(&canary, top.join("link")).unwrap();
        for (name, flags) in [
            ("in/deep/er/file", immutable),
            ("in/deep/er", immutable),
            ("in/deep", append),
            ("append/in/file", append),
            ("append", append),
            ("empty", immutable | append),
            ("closed/in", immutable),
        ] {
            assert!(mark(&top.join(name), flags, true), "{name}");
        }
        fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        assert!(mark(&top, immutable, true));
        // The control: without taking them away nothing goes.
        assert!(fs::remove_dir_all(&top).is_err());
        assert!(scratch.remove(long()).unwrap());
        assert!(!top.exists());
        // The file that the link led to has its attribute.
        assert!(fs::write(&canary, "").is_err());
        assert!(mark(&canary, immutable, false));
    }
}

#[test]
fn a_directory_with_files_that_may_not_be_changed_is_adopted_by_nobody_and_as_before() {
    if !root() {
        return;
    }
    let base = base();
    let top = workspace(base.path());
    let kept = top.join("a/two");
    if !mark(&kept, IFlags::IMMUTABLE, true) {
        eprintln!(
            "not run: this file system has no immutable files, or this program may make none"
        );
        return;
    }
    let before = owners(&top);
    let refused = Scratch::adopt(&top, Some(GUEST));
    let adopted = refused.is_ok();
    drop(refused);
    let after = owners(&top);
    assert!(mark(&kept, IFlags::IMMUTABLE, false));
    assert!(!adopted);
    assert_eq!(after, before);
    // The control.
    Scratch::adopt(&top, Some(GUEST)).unwrap();
}

#[test]
fn a_directory_that_the_guest_moved_away_is_not_called_removed() {
    let base = base();
    let mut scratch = Scratch::create(base.path(), "run", None).unwrap();
    fs::create_dir(scratch.path().join("in")).unwrap();
    fs::rename(scratch.path(), base.path().join("elsewhere")).unwrap();
    let error = scratch.remove(long()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Io {
                operation: "remove the scratch directory",
                ..
            }
        ),
        "{error}"
    );
    fs::create_dir(base.path().join("run")).unwrap();
    fs::write(base.path().join("run/file"), "").unwrap();
    assert!(scratch.remove(long()).is_err());
    assert!(base.path().join("run/file").exists());
}

#[test]
fn dropping_removes() {
    let base = base();
    let scratch = Scratch::create(base.path(), "run", None).unwrap();
    scratch.put(Path::new("a/b"), b"text", false).unwrap();
    drop(scratch);
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn a_name_that_is_too_long_is_the_command_s_fault_and_tells_no_path_of_the_host() {
    let base = base();
    let scratch = Scratch::create(base.path(), "s", None).unwrap();
    let name = "n".repeat(256);
    for path in [name.clone(), format!("{name}/below")] {
        let error = scratch.put(Path::new(&path), b"", false).unwrap_err();
        assert!(matches!(error, Error::Command { .. }), "{error}");
        let place = base.path().to_str().unwrap();
        assert!(!error.to_string().contains(place), "{error}");
    }
    scratch.put(Path::new(&name[1..]), b"", false).unwrap();
}

#[test]
fn files_that_are_put_are_the_guests_and_stay_beneath() {
    let base = base();
    let owner = geteuid().is_root().then_some(GUEST);
    let expected = owner.map_or(geteuid().as_raw(), |owner| owner.0);
    let scratch = Scratch::create(base.path(), "run", owner).unwrap();
    scratch
        .put(Path::new("./src/deep/main.py"), b"print()", false)
        .unwrap();
    scratch
        .put(Path::new("src/tool"), b"#!/bin/sh\n", true)
        .unwrap();
    for (name, mode) in [
        ("", 0o700),
        ("src", 0o700),
        ("src/deep/main.py", 0o600),
        ("src/tool", 0o700),
    ] {
        let found = fs::metadata(scratch.path().join(name)).unwrap();
        assert_eq!(
            (found.uid(), found.mode() & 0o7777),
            (expected, mode),
            "{name}"
        );
    }
    symlink("/tmp", scratch.path().join("link")).unwrap();
    for path in [
        "",
        ".",
        "..",
        "/etc/x",
        "a/../../x",
        "src/tool",
        "src/tool/x",
        "link/x",
        "link",
        "a\0b",
    ] {
        assert!(
            scratch.put(Path::new(path), b"", false).is_err(),
            "{path:?}"
        );
    }
    assert!(!Path::new("/tmp/x").exists());
}

#[test]
fn bases_that_others_could_meddle_with_or_the_guest_not_reach_are_refused() {
    let base = base();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Scratch::create(base.path(), "run", None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("sticky"), "{error}");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    drop(Scratch::create(base.path(), "run", None).unwrap());
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = Scratch::create(base.path(), "run", Some(GUEST))
        .unwrap_err()
        .to_string();
    assert!(error.contains("searchable"), "{error}");
    for name in ["", ".", "..", "a/b", "/a"] {
        assert!(
            Scratch::create(base.path(), name, None).is_err(),
            "{name:?}"
        );
    }
}

/// Path, uid and gid of everything in a tree, links not followed.
fn owners(top: &Path) -> Vec<(PathBuf, u32, u32)> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        found.push((path, stat.uid(), stat.gid()));
    }
    found.sort();
    found
}

fn workspace(base: &Path) -> PathBuf {
    let top = base.join("workspace");
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    for name in ["one", "a/two", "a/b/three", "a/b/c/four"] {
        fs::write(top.join(name), "text").unwrap();
    }
    let foreign = top.join("a/foreign");
    fs::write(&foreign, "").unwrap();
    std::os::unix::fs::chown(&foreign, Some(12345), Some(12345)).unwrap();
    fs::write(base.join("outside"), "").unwrap();
    fs::hard_link(base.join("outside"), top.join("hard")).unwrap();
    symlink(base.join("outside"), top.join("link")).unwrap();
    top
}

#[test]
fn an_adopted_directory_is_the_guests_and_then_its_owners_again() {
    if !root() {
        return;
    }
    let base = base();
    let top = workspace(base.path());
    let before = owners(&top);
    let outside = fs::metadata(base.path().join("outside")).unwrap();
    let mut scratch = Scratch::adopt(&top, Some(GUEST)).unwrap();
    for (path, uid, gid) in owners(&top) {
        let kept = ["hard", "foreign"].iter().any(|name| path.ends_with(name));
        assert_eq!(uid == GUEST.0, !kept, "{path:?}");
        assert_ne!(gid, GUEST.1, "{path:?}");
    }
    assert_eq!(
        fs::metadata(base.path().join("outside")).unwrap().uid(),
        outside.uid()
    );
    // What the guest makes meanwhile.
    let new = top.join("a/new");
    fs::write(&new, "").unwrap();
    std::os::unix::fs::chown(&new, Some(GUEST.0), Some(GUEST.1)).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o6755)).unwrap();
    while !scratch.remove(Instant::now()).unwrap() {}
    let stat = fs::metadata(&new).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o6000), (0, 0, 0));
    fs::remove_file(&new).unwrap();
    assert_eq!(owners(&top), before);
    drop(scratch);
    assert_eq!(owners(&top), before);
}

#[test]
fn an_adopted_directory_of_any_depth_is_given_back() {
    if !root() {
        return;
    }
    let base = quick_base();
    let top = base.path().join("workspace");
    fs::create_dir(&top).unwrap();
    let mut scratch = Scratch::adopt(&top, Some(GUEST)).unwrap();
    chain(scratch.directory(), 2_000, Mode::RWXU);
    Handover::over(Owners {
        former: (0, 0),
        guest: GUEST,
    })
    .walk(scratch.directory(), None)
    .unwrap();
    let deep = top.join("d/".repeat(1_000));
    assert_eq!(fs::metadata(&deep).unwrap().uid(), GUEST.0);
    assert!(scratch.remove(long()).unwrap());
    assert_eq!(fs::metadata(&deep).unwrap().uid(), 0);
    // Deeper than a path can say: the removal of a scratch directory does it.
    removal::empty(scratch.directory(), long()).unwrap();
}

#[test]
fn an_adopted_directory_stays_with_the_embedder_where_the_uid_is_shared() {
    let base = base();
    let top = base.path().join("workspace");
    fs::create_dir(&top).unwrap();
    let mut scratch = Scratch::adopt(&top, None).unwrap();
    scratch.put(Path::new("file"), b"", false).unwrap();
    assert!(scratch.remove(long()).unwrap());
    assert!(top.join("file").exists());
}

#[test]
fn a_directory_is_adopted_by_one_run_at_a_time() {
    let base = base();
    let top = base.path().join("workspace");
    fs::create_dir(&top).unwrap();
    let mut first = Scratch::adopt(&top, None).unwrap();
    let error = Scratch::adopt(&top, None).unwrap_err().to_string();
    assert!(
        error.contains("another run") && error.contains("workspace"),
        "{error}"
    );
    assert!(first.remove(long()).unwrap());
    drop(first);
    Scratch::adopt(&top, None).unwrap();
}

#[test]
fn links_files_and_the_machines_directories_are_not_adopted() {
    let base = base();
    let top = base.path().join("workspace");
    fs::create_dir(&top).unwrap();
    symlink(&top, base.path().join("link")).unwrap();
    fs::write(base.path().join("file"), "").unwrap();
    for name in ["link", "file", "absent"] {
        assert!(
            Scratch::adopt(&base.path().join(name), Some(GUEST)).is_err(),
            "{name}"
        );
    }
    for path in [
        "/",
        "/usr/share/doc",
        "/etc",
        "/root",
        "/usr",
        "/home",
        "/dev/shm",
    ] {
        let error = Scratch::adopt(Path::new(path), Some(GUEST)).unwrap_err();
        assert!(
            matches!(error, Error::Command { .. } | Error::Io { .. }),
            "{path}: {error}"
        );
        assert_ne!(
            fs::metadata(path).map_or(0, |stat| stat.uid()),
            GUEST.0,
            "{path}"
        );
    }
}

#[test]
fn only_scratch_directories_of_the_uid_itself_are_removed_as_left_over() {
    if !root() {
        return;
    }
    let base = base();
    let mine = base.path().join(format!("{PREFIX}{:032x}", 7));
    let other = base.path().join(format!("{PREFIX}{:032x}", 8));
    let named = base.path().join("varek-notes");
    for path in [&mine, &other, &named] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("file"), "text").unwrap();
    }
    let uid = 1_895_000_001;
    let chown = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    chown(&mine, uid);
    chown(&named, uid);
    chown(&other, uid + 1);
    // What the time does not allow stays, and is said to.
    for n in 0..100 {
        fs::write(mine.join(n.to_string()), "text").unwrap();
    }
    assert!(!remove_left_by(uid, base.path(), Instant::now()));
    assert!(mine.exists());
    assert!(remove_left_by(uid, base.path(), long()));
    assert!(!mine.exists());
    assert!(other.exists() && named.exists());
}

#[test]
fn a_sweep_removes_what_was_left_and_not_what_a_run_has() {
    let base = base();
    let own = rustix::process::geteuid().as_raw();
    let named = || format!("{PREFIX}{}", RunId::random().unwrap());
    let mut left = Scratch::create(base.path(), &named(), None).unwrap();
    let mut living = Scratch::create(base.path(), &named(), None).unwrap();
    for scratch in [&left, &living] {
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
    }
    // As the kernel leaves it when the embedder is killed.
    left.end = End::Nothing;
    left.lock = None;
    assert!(remove_left_by(own + 1, base.path(), long()));
    assert!(left.path().exists(), "of another uid");
    assert!(remove_left_by(own, base.path(), long()));
    assert!(!left.path().exists());
    assert!(living.path().join("a/b").exists());
    assert!(living.remove(long()).unwrap());
}

#[test]
fn a_sweep_leaves_what_only_resembles_a_scratch_directory() {
    let base = base();
    let own = rustix::process::geteuid().as_raw();
    let left = format!("{PREFIX}{:032x}", 0xabc);
    let others = [
        "varek-1".to_owned(),
        "varek-9f3a7f9".to_owned(),
        format!("{PREFIX}+{:031x}", 7),
        format!("{PREFIX}{:032X}", 0xabc),
        format!("{PREFIX}{:033x}", 7),
    ];
    for name in others.iter().chain([&left]) {
        fs::create_dir_all(base.path().join(name).join("work")).unwrap();
    }
    assert!(remove_left_by(own, base.path(), long()));
    for name in &others {
        assert!(base.path().join(name).join("work").exists(), "{name}");
    }
    // The control.
    assert!(!base.path().join(left).exists());
}

#[test]
fn a_sweep_stays_out_of_a_base_where_others_can_rename() {
    let base = base();
    let own = rustix::process::geteuid().as_raw();
    let path = base.path().join(format!("{PREFIX}{:032x}", 7));
    fs::create_dir_all(path.join("work")).unwrap();
    let mode = |mode| fs::set_permissions(base.path(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    remove_left_by(own, base.path(), long());
    assert!(path.join("work").exists());
    mode(0o1777);
    assert!(remove_left_by(own, base.path(), long()));
    assert!(!path.exists());
}

#[test]
fn what_another_sweep_has_removed_meanwhile_is_not_left_over() {
    let base = base();
    let path = base.path().join("name");
    fs::create_dir(&path).unwrap();
    let seen = open_place(CWD, &path, OFlags::NOFOLLOW).unwrap();
    assert!(abandoned(seen.as_fd()).is_ok());
    fs::remove_dir(&path).unwrap();
    // A run has the name now.
    fs::create_dir(&path).unwrap();
    assert_eq!(abandoned(seen.as_fd()).unwrap_err(), Errno::NOENT);
}

#[test]
fn directories_that_are_made_while_others_sweep_are_there() {
    let own = geteuid().as_raw();
    for owner in [None, Some(GUEST)] {
        if owner.is_some() && !root() {
            continue;
        }
        let base = base();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    remove_left_by(own, base.path(), long());
                }
            });
            for _ in 0..500 {
                let name = format!("{PREFIX}{}", RunId::random().unwrap());
                let mut scratch = Scratch::create(base.path(), &name, owner).unwrap();
                fs::write(scratch.path().join("file"), "").unwrap();
                assert!(scratch.remove(long()).unwrap());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_a_killed_embedder_had_not_given_to_its_guest_yet_is_removed() {
    if !root() {
        return;
    }
    let base = base();
    let named = || format!("{PREFIX}{}", RunId::random().unwrap());
    let given = Scratch::create(base.path(), &named(), Some(GUEST)).unwrap();
    // Of one that was killed between the two, and of one that is between the two.
    let place = open_place(CWD, base.path(), OFlags::empty()).unwrap();
    drop(new_directory(place.as_fd(), &named()).unwrap());
    let kept = new_directory(place.as_fd(), &named()).unwrap();
    assert!(remove_left_by(0, base.path(), long()));
    let names = fs::read_dir(base.path()).unwrap();
    assert_eq!(names.count(), 2);
    assert!(given.path().exists());
    assert_eq!(rustix::fs::fstat(&kept.0).unwrap().st_nlink, 2);
}
