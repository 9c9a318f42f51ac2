//! In a private directory instead of `/run/varek`; they need root, as the pool does.

use std::fs;

use rustix::process::geteuid;

use super::*;

/// Numbers in the middle of the default range, one block a test, so that tests do not meet.
fn range(block: u32, count: u32) -> UidRange {
    UidRange::new(0x7000_0000 + 256 * block, count)
}

fn place() -> Option<(tempfile::TempDir, PathBuf)> {
    if !geteuid().is_root() {
        eprintln!("not run: only root can use uids of a range");
        return None;
    }
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("varek/uids");
    Some((top, path))
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn no_number_has_two_users_and_the_bound_of_the_range_is_an_error() {
    let Some((_top, path)) = place() else { return };
    let range = range(0, 4);
    let (one, two) = (
        UidPool::in_directory(range, true, &path, &path).unwrap(),
        UidPool::in_directory(range, true, &path, &path).unwrap(),
    );
    let leases: Vec<Lease> = [&one, &two, &one, &two]
        .into_iter()
        .map(|pool| pool.take().unwrap())
        .collect();
    let mut uids: Vec<u32> = leases.iter().map(Lease::uid).collect();
    uids.sort_unstable();
    assert_eq!(uids, (range.first..range.first + 4).collect::<Vec<_>>());
    assert!(leases.iter().all(|lease| lease.gid() == lease.uid()));
    let error = one.take().unwrap_err().to_string();
    assert!(
        error.contains("2 in use by this sandbox, 2 by others"),
        "{error}"
    );
    drop(leases);
    one.take().unwrap();
}

#[test]
fn a_number_that_was_given_back_is_taken_again_first() {
    let Some((_top, path)) = place() else { return };
    let pool = UidPool::in_directory(range(1, 200), true, &path, &path).unwrap();
    let first = pool.take().unwrap().uid();
    for _ in 0..20 {
        assert_eq!(pool.take().unwrap().uid(), first);
    }
}

#[test]
fn nothing_is_left_after_a_clean_end() {
    let Some((top, path)) = place() else { return };
    let pool = UidPool::in_directory(range(2, 8), true, &path, &path).unwrap();
    let leases: Vec<Lease> = (0..3).map(|_| pool.take().unwrap()).collect();
    assert_eq!(names(&path).len(), 3);
    // A lease keeps what it needs alive.
    drop(pool);
    assert_eq!(names(&path).len(), 3);
    drop(leases);
    assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
}

#[test]
fn the_directories_may_go_under_a_pool_that_is_open() {
    let Some((_top, path)) = place() else { return };
    let early = UidPool::in_directory(range(3, 8), true, &path, &path).unwrap();
    let other = UidPool::in_directory(range(3, 8), true, &path, &path).unwrap();
    drop(other.take().unwrap());
    drop(other);
    assert!(!path.exists());
    let lease = early.take().unwrap();
    assert_eq!(names(&path), [lease.uid().to_string()]);
}

#[test]
fn a_retired_number_stays_locked_and_marked() {
    let Some((_top, path)) = place() else { return };
    let pool = UidPool::in_directory(range(4, 1), true, &path, &path).unwrap();
    let lease = pool.take().unwrap();
    let name = lease.uid().to_string();
    lease.retire();
    assert!(pool.take().is_err());
    drop(pool);
    assert_eq!(names(&path), std::slice::from_ref(&name));
    assert!(fs::read(path.join(name)).unwrap().starts_with(DIRTY));
    assert!(
        UidPool::in_directory(range(4, 1), true, &path, &path)
            .unwrap()
            .take()
            .is_err()
    );
}

#[test]
fn a_number_left_dirty_is_taken_once_nothing_of_it_is_left() {
    let Some((_top, path)) = place() else { return };
    let range = range(5, 1);
    let pool = UidPool::in_directory(range, true, &path, &path).unwrap();
    fs::write(path.join(range.first.to_string()), DIRTY).unwrap();
    let segment = sys::make_shared_memory().unwrap();
    sys::give_shared_memory(segment, range.first).unwrap();
    assert_eq!(pool.take().unwrap().uid(), range.first);
    let gone = sys::remove_shared_memory(segment)
        .unwrap_err()
        .raw_os_error();
    assert_eq!(gone, Some(libc::EINVAL));
}

#[test]
fn the_scratch_of_a_killed_embedder_goes_wherever_it_was() {
    let Some((top, path)) = place() else { return };
    let base = top.path().join("elsewhere");
    let uid = range(7, 1).first;
    let [left, other] = [7_u32, 8].map(|run| base.join(format!("varek-{run:032x}")));
    for (directory, owner) in [(&left, uid), (&other, uid + 1)] {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("file"), "text").unwrap();
        std::os::unix::fs::chown(directory, Some(owner), None).unwrap();
    }
    // Somebody else's, so that the directory of the locks stays.
    let other_pool = UidPool::in_directory(range(10, 1), true, &path, &path).unwrap();
    let _other_lease = other_pool.take().unwrap();
    // What its pool wrote: the mark, and where its guests had their directories.
    let first = UidPool::in_directory(range(7, 1), true, &path, &base).unwrap();
    let lease = first.take().unwrap();
    let lock = path.join(uid.to_string());
    let mark = fs::read(&lock).unwrap();
    drop(lease);
    drop(first);
    fs::write(&lock, mark).unwrap();
    // The next pool has its own somewhere else.
    drop(UidPool::in_directory(range(7, 1), true, &path, &path).unwrap());
    assert!(!left.exists());
    assert!(other.exists());
    assert!(!lock.exists());
}

#[test]
fn what_a_killed_embedder_left_goes_with_the_next_pool_and_what_is_locked_stays() {
    let Some((_top, path)) = place() else { return };
    let live = UidPool::in_directory(range(9, 1), true, &path, &path).unwrap();
    let lease = live.take().unwrap();
    let left = range(9, 3).first + 2;
    fs::write(path.join(left.to_string()), DIRTY).unwrap();
    fs::write(path.join("note"), "").unwrap();
    let next = UidPool::in_directory(range(9, 1), true, &path, &path).unwrap();
    assert_eq!(names(&path), [lease.uid().to_string(), "note".to_owned()]);
    assert!(next.take().is_err());
}

#[test]
fn a_guests_ipc_objects_go_with_its_lease() {
    let Some((_top, path)) = place() else { return };
    let pool = UidPool::in_directory(range(6, 1), true, &path, &path).unwrap();
    let lease = pool.take().unwrap();
    let (theirs, ours) = (
        sys::make_shared_memory().unwrap(),
        sys::make_shared_memory().unwrap(),
    );
    sys::give_shared_memory(theirs, lease.uid()).unwrap();
    drop(lease);
    assert!(sys::remove_shared_memory(theirs).is_err());
    sys::remove_shared_memory(ours).unwrap();
}

#[test]
fn a_number_with_a_living_process_is_left_alone() {
    use std::os::unix::process::CommandExt as _;
    let Some((_top, path)) = place() else { return };
    let range = range(11, 1);
    let mut process = std::process::Command::new("/bin/cat");
    process
        .stdin(std::process::Stdio::piped())
        .uid(range.first)
        .gid(range.first);
    let mut process = process.spawn().unwrap();
    let pool = UidPool::in_directory(range, true, &path, &path).unwrap();
    let error = pool.take().unwrap_err().to_string();
    assert!(error.contains("1 have processes"), "{error}");
    assert_eq!(names(&path), [""; 0]);
    drop(process.stdin.take());
    process.wait().unwrap();
    assert_eq!(pool.take().unwrap().uid(), range.first);
}

#[test]
fn a_directory_that_others_could_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some((_top, path)) = place() else { return };
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let error = UidPool::in_directory(range(8, 1), true, &path, &path)
        .unwrap_err()
        .to_string();
    assert!(error.contains("mode 777"), "{error}");
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/tmp", &path).unwrap();
    assert!(UidPool::in_directory(range(8, 1), true, &path, &path).is_err());
}

#[test]
fn ipc_tables_are_read_by_their_titles() {
    let shm = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid\n\
               \n         0          5   600                  4096   100   100      0   7   7   0   0 \n\
                        0          6   600                  4096   100   100      0   0   0   7   7 \n\
                        0          8   600                  4096   100   100      0   9   7   9   7 \n";
    assert_eq!(objects_of(shm, 7), [5, 6]);
    let sem = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n 0 3 600 1 7 7 7 7 0 0\n";
    assert_eq!(objects_of(sem, 7), [3]);
    assert_eq!(objects_of(sem, 8), [0; 0]);
    assert_eq!(objects_of("", 7), [0; 0]);
}
