//! The scratch directory of a run is its own, cannot be moved away, and is gone afterwards with everything in
//! it, however it was filled.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{
    assert_clean, assert_gone, open_directory, python, run, sandbox_or_not_run, seconds, text,
};
use varek_core::{
    Cleanup, Command, Error, KIB, Layer, LayerStatus, MIB, Outcome, Policy, Resource, Sandbox,
    SyscallGroup,
};

/// What is in a directory.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// What is in a directory and named after the run. A sandbox keeps directories for later runs ready there.
fn of_run(directory: &Path, outcome: &Outcome) -> Vec<String> {
    let run = outcome.run.to_string();
    names(directory)
        .into_iter()
        .filter(|name| name.contains(&run))
        .collect()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The same with its files on the disk, as on hosts that let nobody mount.
fn on_disk(mut policy: Policy) -> Policy {
    policy.limits.scratch = None;
    policy
}

/// A sandbox whose scratch directories are bounded, or `None` and a line that says why not.
fn bounded(test: &str, policy: Policy) -> Option<Sandbox> {
    sandbox_or_not_run(test, policy.require(Layer::Scratch))
}

/// Fills a directory with what is hard to remove, and prints what it could make.
const HOSTILE: &str = r"
import os, socket
def chmod(path, mode):
    try: os.chmod(path, mode)
    except PermissionError: pass # under the embedder's uid
os.mkdir('shut', 0)
os.makedirs('closed/inner/more'); open('closed/inner/file', 'w').close()
for n in range(300):
    os.mkdir('d'); os.chdir('d')
open('at the bottom', 'w').close()
os.chdir(os.environ['HOME'])
os.symlink('/', 'root'); os.symlink(KEEP, 'elsewhere'); os.symlink('loop', 'loop')
os.mkfifo('fifo')
for n in range(500): open('many-%d' % n, 'w').close()
os.link('many-0', 'closed/inner/link')
open(os.path.join(b'.', b'\xff\n ' + b'n' * 200), 'w').close()
os.mkdir('sticky'); open('sticky/file', 'w').close(); chmod('sticky', 0o1000)
chmod('many-1', 0)
for path in ['closed/inner/more', 'closed/inner', 'closed', '.']: chmod(path, 0)
print('filled')
";

#[test]
fn hostile_trees_are_removed_and_nothing_that_they_point_to() {
    let base = open_directory();
    let keep = open_directory();
    fs::write(keep.path().join("kept"), "x").unwrap();
    mode(keep.path(), 0o777);
    drop(sandbox!(python()));
    // Some thousand steps on the disk, for which a busy machine may need its time.
    let mut policy = python();
    policy.grace = seconds(60);
    let source = HOSTILE.replace("KEEP", &format!("{:?}", keep.path()));
    for policy in [policy.clone(), on_disk(policy)] {
        let sandbox = Sandbox::builder(policy)
            .scratch_base(base.path())
            .build()
            .unwrap();
        for _ in 0..2 {
            let outcome = run(&sandbox, &source);
            assert_gone(&outcome);
            assert_eq!(text(&outcome), "filled\n", "{outcome}");
            assert_eq!(of_run(base.path(), &outcome), Vec::<String>::new());
        }
    }
    assert_eq!(names(base.path()), Vec::<String>::new());
    assert!(keep.path().join("kept").exists());
}

#[test]
fn what_could_not_be_removed_in_time_is_said_and_removed_later() {
    let base = open_directory();
    let mut policy = on_disk(python());
    policy.grace = Duration::from_millis(10);
    drop(sandbox!(policy.clone()));
    let sandbox = Sandbox::builder(policy)
        .scratch_base(base.path())
        .build()
        .unwrap();
    let source = "import os\n\
                  for n in range(300):\n\
                  \x20   os.mkdir('d'); os.chdir('d')\n\
                  \x20   for n in range(5): open(str(n), 'w').close()";
    let outcome = run(&sandbox, source);
    assert_eq!(outcome.exit_code(), Some(0), "{outcome}");
    // A disk that removes 1,800 files within the grace leaves nothing to say.
    if let Cleanup::Incomplete { pids, state } = &outcome.cleanup {
        assert!(pids.is_empty(), "{pids:?} {state}");
        assert!(state.contains(base.path().to_str().unwrap()), "{state}");
    }
    let until = Instant::now() + seconds(60);
    while !of_run(base.path(), &outcome).is_empty() && Instant::now() < until {
        // Other runs go on in the meantime.
        assert_eq!(run(&sandbox, "").exit_code(), Some(0));
    }
    assert_eq!(of_run(base.path(), &outcome), Vec::<String>::new());
    drop(sandbox);
    assert_eq!(names(base.path()), Vec::<String>::new());
}

#[test]
fn scratch_is_removed_after_every_kind_of_end() {
    let base = open_directory();
    let policy = python().wall_clock(seconds(2));
    drop(sandbox!(policy.clone()));
    for policy in [policy.clone(), on_disk(policy)] {
        let sandbox = Sandbox::builder(policy)
            .scratch_base(base.path())
            .build()
            .unwrap();
        for end in [
            "",
            "raise SystemExit(3)",
            "os.kill(os.getpid(), 9)",
            "while True: pass",
            "os.rename('f', 'g')",
        ] {
            let source = format!("import os\nopen('f', 'w').close()\n{end}");
            let outcome = run(&sandbox, &source);
            assert_gone(&outcome);
            assert_eq!(of_run(base.path(), &outcome), Vec::<String>::new(), "{end}");
        }
    }
    assert_eq!(names(base.path()), Vec::<String>::new());
}

#[test]
fn scratch_cannot_be_moved_or_replaced_by_the_guest() {
    let base = open_directory();
    mode(base.path(), 0o777 | 0o1000);
    drop(sandbox!(python()));
    let source = "import os\n\
                  def attempt(f, *arguments):\n\
                  \x20   try: f(*arguments); print('ok')\n\
                  \x20   except OSError as e: print(e.errno)\n\
                  home = os.getcwd()\n\
                  attempt(os.rename, home, home + '-moved')\n\
                  attempt(os.rmdir, home)\n\
                  attempt(os.mkdir, home + '-beside')\n\
                  attempt(os.mkdir, home + '/beneath')";
    for policy in [python(), on_disk(python())] {
        let sandbox = Sandbox::builder(policy)
            .scratch_base(base.path())
            .build()
            .unwrap();
        let outcome = run(&sandbox, source);
        assert_clean(&outcome);
        let output = text(&outcome);
        let answers: Vec<_> = output.lines().collect();
        assert!(
            answers[..3].iter().all(|answer| *answer != "ok"),
            "{answers:?}"
        );
        assert_eq!(answers[3], "ok");
    }
    assert_eq!(names(base.path()), Vec::<String>::new());
}

#[test]
fn a_directory_of_the_embedders_is_the_guests_for_the_run_and_given_back() {
    let home = open_directory();
    let given = home.path().join("given");
    fs::create_dir(&given).unwrap();
    fs::write(given.join("input"), "in").unwrap();
    mode(&given.join("input"), 0o600);
    let sandbox = sandbox!(python());
    let source = "open('output', 'w').write(open('input').read() + 'out')";
    let outcome = sandbox
        .run(Command::python(source).scratch(&given))
        .unwrap();
    assert_clean(&outcome);
    assert_eq!(fs::read_to_string(given.join("output")).unwrap(), "inout");
    let own = std::os::unix::fs::MetadataExt::uid(&fs::metadata(home.path()).unwrap());
    for path in [given.clone(), given.join("input"), given.join("output")] {
        assert_eq!(
            std::os::unix::fs::MetadataExt::uid(&fs::metadata(&path).unwrap()),
            own,
            "{path:?}"
        );
    }
}

/// Writes blocks of 64 KiB until it cannot, in many files, and prints how many and what stopped it.
const FILL: &str = r"
import errno, os
written = 0
try:
    for name in range(100000):
        with open('%s-%d' % (WHERE, name), 'wb', 0) as f:
            for block in range(16):
                written += f.write(b'x' * 65536)
                if written >= MOST: raise SystemExit(print('most'))
except OSError as e: print(written // 65536, errno.errorcode[e.errno])
";

fn fill(place: &str, most: u64) -> String {
    let place = format!("{place:?}");
    FILL.replace("WHERE", &place)
        .replace("MOST", &most.to_string())
}

/// The run ended by itself, and its outcome says which bound of its scratch directory it met.
#[track_caller]
fn assert_full(outcome: &Outcome, resource: Resource, limit: u64) {
    assert!(outcome.success(), "{outcome}");
    assert_gone(outcome);
    let found: Vec<_> = outcome.limits_hit.iter().collect();
    assert!(
        matches!(&found[..], [hit] if hit.resource == resource && hit.limit == Some(limit)),
        "{outcome}"
    );
    assert!(outcome.violation().is_some(), "{outcome}");
}

#[test]
fn all_files_of_a_guest_together_have_a_bound() {
    let test = "all_files_of_a_guest_together_have_a_bound";
    let Some(sandbox) = bounded(test, python().scratch(4 * MIB)) else {
        return;
    };
    for place in ["f", "/dev/shm/f"] {
        let outcome = run(&sandbox, &fill(place, 8 * MIB));
        assert_full(&outcome, Resource::Scratch, 4 * MIB);
        let output = text(&outcome);
        let (blocks, error) = output.trim().split_once(' ').unwrap();
        assert_eq!(error, "ENOSPC");
        // Directories and names take pages too.
        let blocks: u64 = blocks.parse().unwrap();
        assert!((48..=64).contains(&blocks), "{blocks}");
    }
    // The control.
    let Some(sandbox) = bounded(test, python().scratch(32 * MIB)) else {
        return;
    };
    let outcome = run(&sandbox, &fill("f", 8 * MIB));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "most\n");
}

#[test]
fn the_files_of_a_guest_have_a_number() {
    let test = "the_files_of_a_guest_have_a_number";
    let mut policy = python();
    policy.limits.scratch_files = 100;
    let Some(sandbox) = bounded(test, policy) else {
        return;
    };
    let source = "import errno\n\
                  try:\n\
                  \x20   for n in range(1000): open(str(n), 'w').close()\n\
                  except OSError as e: print(n, errno.errorcode[e.errno])";
    let outcome = run(&sandbox, source);
    assert_full(&outcome, Resource::ScratchFiles, 100);
    assert_eq!(text(&outcome), "99 ENOSPC\n");
    let Some(sandbox) = bounded(test, python()) else {
        return;
    };
    assert_eq!(text(&run(&sandbox, source)), "");
}

#[test]
fn a_full_scratch_directory_is_no_end_for_want_of_memory() {
    let test = "a_full_scratch_directory_is_no_end_for_want_of_memory";
    // The bound is over the memory limit, of which the files take half at most.
    let policy = python().memory(64 * MIB).scratch(256 * MIB);
    let Some(sandbox) = bounded(test, policy) else {
        return;
    };
    let outcome = run(&sandbox, &fill("f", 128 * MIB));
    assert_full(&outcome, Resource::Scratch, 32 * MIB);
    assert!(text(&outcome).ends_with(" ENOSPC\n"), "{outcome}");
}

#[test]
fn files_that_the_command_brings_are_within_the_bound_and_said_where_they_are_not() {
    let test = "files_that_the_command_brings_are_within_the_bound_and_said_where_they_are_not";
    let Some(sandbox) = bounded(test, python().scratch(64 * KIB)) else {
        return;
    };
    let read = "print(len(open('data/given').read()))";
    let command = Command::python(read).file("data/given", vec![b'x'; 1000]);
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "1000\n");
    let command = Command::python(read).file("data/given", vec![b'x'; 100_000]);
    let error = sandbox.run(command).unwrap_err().to_string();
    assert!(error.contains("data/given"), "{error}");
    assert!(error.contains("limits.scratch"), "{error}");
}

#[test]
fn semaphores_queues_and_pools_of_multiprocessing_work_and_are_the_guests_own() {
    let test = "semaphores_queues_and_pools_of_multiprocessing_work_and_are_the_guests_own";
    let Some(sandbox) = bounded(test, python()) else {
        return;
    };
    let source = r"
import _posixshmem, multiprocessing, os
context = multiprocessing.get_context('fork')
def double(n): return 2 * n
def put(queue, lock):
    with lock: queue.put(os.getpid() != PARENT)
PARENT = os.getpid()
queue, lock = context.Queue(), context.Lock()
child = context.Process(target=put, args=(queue, lock))
child.start(); print(queue.get()); child.join()
with context.Pool(2) as pool: print(pool.map(double, range(4)))
array = context.Array('i', 3)
child = context.Process(target=array.__setitem__, args=(1, 5))
child.start(); child.join(); print(array[:])
memory = _posixshmem.shm_open('/varek', os.O_CREAT | os.O_RDWR, mode=0o600)
os.write(memory, b'abc')
print(open('/dev/shm/varek').read(), sorted(os.listdir('/dev/shm')))
";
    let outcome = run(&sandbox, source);
    assert_eq!(
        text(&outcome),
        "True\n[0, 2, 4, 6]\n[0, 5, 0]\nabc ['main.py', 'varek']\n",
        "{outcome}\n{}",
        outcome.stderr.to_text()
    );
    assert!(!names(Path::new("/dev/shm")).contains(&"varek".to_owned()));
}

#[test]
fn what_a_guest_mounts_is_seen_by_nobody_else() {
    let test = "what_a_guest_mounts_is_seen_by_nobody_else";
    let Some(sandbox) = bounded(test, python()) else {
        return;
    };
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let source = "import os\nhome = os.environ['HOME']\n\
                  print(sum(home in line for line in open('/proc/self/mountinfo')), os.getcwd() == home)\n\
                  import sys; sys.stdout.flush(); sys.stdin.read()";
    let command = Command::python(source)
        .stdin(varek_core::Input::piped())
        .stdout(varek_core::Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line, "1 True\n");
    assert_eq!(mounts(), before);
    drop(child.stdin.take());
    assert_clean(&child.wait().unwrap());
    assert_eq!(mounts(), before);
}

#[test]
fn a_guest_that_may_start_programs_cannot_start_or_map_what_it_wrote() {
    let test = "a_guest_that_may_start_programs_cannot_start_or_map_what_it_wrote";
    // The loader is among the files that may be executed, and runs whatever it can read and map.
    let source = r"
import mmap, os, shutil, subprocess, glob
shutil.copyfile('/bin/true', 'copy')
try: os.chmod('copy', 0o755)
except PermissionError: pass
loader = (glob.glob('/lib64/ld-linux*') + glob.glob('/lib/ld-linux*'))[0]
print(subprocess.run([loader, '/bin/true']).returncode)
print(subprocess.run([loader, './copy'], stderr=subprocess.DEVNULL).returncode != 0)
with open('copy', 'rb') as f:
    try: mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE); print('mapped')
    except PermissionError: print('not mapped')
";
    let policy = python().syscalls(|calls| calls.allow_group(SyscallGroup::Exec));
    let Some(sandbox) = bounded(test, policy.clone()) else {
        return;
    };
    assert_eq!(text(&run(&sandbox, source)), "0\nTrue\nnot mapped\n");
    // The control: on the disk the loader starts the copy.
    let sandbox = sandbox!(on_disk(policy.clone()));
    assert_eq!(text(&run(&sandbox, source)), "0\nFalse\nmapped\n");
    // What the command itself brings can be started.
    let Some(sandbox) = bounded(test, policy) else {
        return;
    };
    let command = Command::new("./brought").executable("brought", fs::read("/bin/true").unwrap());
    assert_clean(&sandbox.run(command).unwrap());
}

#[test]
fn a_directory_to_work_in_is_the_one_that_the_guest_sees() {
    let test = "a_directory_to_work_in_is_the_one_that_the_guest_sees";
    let Some(sandbox) = bounded(test, python().read("/usr")) else {
        return;
    };
    let source = "import os\nprint(os.getcwd(), os.stat('..').st_ino == os.stat('/').st_ino)";
    let outcome = sandbox
        .run(
            Command::new("python3")
                .args(["-c", source])
                .current_dir("/usr"),
        )
        .unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "/usr True\n");
}

#[test]
fn a_policy_that_requires_the_bound_is_refused_where_it_cannot_be_had() {
    let host = varek_core::Host::probe();
    if host.mounts == varek_core::MountSupport::Allowed {
        // The control: it starts.
        drop(sandbox!(python().require(Layer::Scratch)));
        return;
    }
    // Without the requirement it starts, and says so.
    let sandbox = sandbox!(python());
    let missing: Vec<_> = sandbox.enforcement().missing().collect();
    assert!(missing.iter().any(|(layer, _)| *layer == Layer::Scratch));
    let error = Sandbox::new(python().require(Layer::Scratch)).unwrap_err();
    assert!(error.to_string().contains("limits.scratch"), "{error}");
}

#[test]
fn a_directory_of_the_embedders_is_said_to_have_no_bound_and_refused_where_one_is_required() {
    let test =
        "a_directory_of_the_embedders_is_said_to_have_no_bound_and_refused_where_one_is_required";
    let given = open_directory();
    let outcome = sandbox!(python())
        .run(Command::python("").scratch(given.path()))
        .unwrap();
    assert_clean(&outcome);
    match outcome.enforcement.status(Layer::Scratch) {
        Some(LayerStatus::Enforced { detail }) => {
            assert!(detail.contains("nothing bounds its total size"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    let Some(strict) = bounded(test, python()) else {
        return;
    };
    // The control: a directory of its own.
    assert_clean(&run(&strict, ""));
    match strict.run(Command::python("").scratch(given.path())) {
        Err(error @ Error::Command { .. }) => {
            assert!(error.to_string().contains("limits.scratch"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_granted_in_the_hosts_shared_memory_is_there_by_whatever_path_it_is_named() {
    let test = "what_is_granted_in_the_hosts_shared_memory_is_there_by_whatever_path_it_is_named";
    let Ok(shared) = tempfile::tempdir_in("/dev/shm") else {
        support::not_run(test, "this host has no /dev/shm");
        return;
    };
    mode(shared.path(), 0o755);
    fs::write(shared.path().join("file"), "there").unwrap();
    mode(&shared.path().join("file"), 0o644);
    let elsewhere = open_directory();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(shared.path(), &link).unwrap();
    let source = format!("print(open('{}/file').read())", link.display());
    for granted in [shared.path(), &link] {
        // The way there is the guest's to walk.
        let policy = python().read(granted).read(elsewhere.path());
        assert_eq!(
            text(&run(&sandbox!(policy), &source)),
            "there\n",
            "{granted:?}"
        );
    }
    // Without a grant it is another directory, or closed.
    let outcome = run(&sandbox!(python().read(elsewhere.path())), &source);
    assert_eq!(outcome.exit_code(), Some(1), "{outcome}");
}

#[test]
fn a_guest_cannot_make_files_that_nobody_may_change() {
    // FS_IOC_SETFLAGS with FS_IMMUTABLE_FL and with FS_APPEND_FL, FS_IOC_FSSETXATTR with both, file_setattr.
    let source = r"
import ctypes, errno, fcntl, os, struct
open('file', 'w').close()
file = os.open('file', os.O_RDONLY)
def attempt(request, argument):
    try: fcntl.ioctl(file, request, argument); print('ok')
    except OSError as e: print(errno.errorcode[e.errno])
for flag in 0x10, 0x20: attempt(0x40086602, struct.pack('l', flag))
attempt(0x401c5820, struct.pack('7I', 0x18, 0, 0, 0, 0, 0, 0))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(ctypes.c_long(469), file, b'', ctypes.c_char_p(struct.pack('Q4I', 0x18, 0, 0, 0, 0)), ctypes.c_long(24), 0x1000)
print('ok' if ctypes.get_errno() == 0 else 'refused')
try: open('file', 'w').close(); print('changed')
except PermissionError: print('kept')
";
    for policy in [python(), on_disk(python())] {
        let outcome = run(&sandbox!(policy), source);
        assert_gone(&outcome);
        assert_eq!(
            text(&outcome),
            "EPERM\nEPERM\nEPERM\nrefused\nchanged\n",
            "{outcome}"
        );
        assert_eq!(support::denied(&outcome, "ioctl").count, 3);
    }
    // Nor where the calls are allowed: it has no capability.
    let policy = python().syscalls(|calls| calls.allow(["ioctl"]));
    let outcome = run(&sandbox!(on_disk(policy)), source);
    let output = text(&outcome);
    assert!(!output.contains("ok\n"), "{output}");
    assert!(output.ends_with("changed\n"), "{output}");
    // The control: whoever has the capability makes them, where the file system can.
    let free = format!(
        "{source}\ntry: fcntl.ioctl(file, 0x40086602, struct.pack('l', 0))\nexcept OSError: pass\n"
    );
    let free = support::unconfined(&free);
    if free.starts_with("ok\nok\n") {
        assert!(free.ends_with("kept\n"), "{free}");
    } else {
        support::not_run(
            "a_guest_cannot_make_files_that_nobody_may_change",
            "the control: this file system has no such files, or this program may make none",
        );
    }
}

#[test]
fn a_root_directory_that_is_no_mount_is_said_to_be_what_keeps_scratch_unbounded() {
    const INSIDE: &str = "VAREK_TEST_CHROOT";
    let test = "a_root_directory_that_is_no_mount_is_said_to_be_what_keeps_scratch_unbounded";
    let strict = || Sandbox::new(python().require(Layer::Scratch));
    if std::env::var_os(INSIDE).is_none() {
        // The control: outside it is bounded.
        if let Err(error) = strict() {
            return support::not_run(test, &error.to_string());
        }
        let place = tempfile::tempdir().unwrap();
        let script = "cd \"$0\" && for d in /*; do [ -L $d ] && cp -d $d . || { [ -d $d ] && mkdir .$d && mount --rbind $d .$d; }; done; \
                      exec chroot . \"$@\"";
        let status = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(place.path())
            .arg(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    match strict() {
        Err(Error::Unsupported { missing }) => {
            let said = missing[0].to_string();
            assert!(said.contains("EINVAL") && said.contains("chroot"), "{said}");
        }
        other => panic!("{other:?}"),
    }
    // With best effort it runs, and says so.
    let outcome = run(&sandbox!(python()), "");
    assert_clean(&outcome);
    assert!(matches!(
        outcome.enforcement.status(Layer::Scratch),
        Some(LayerStatus::Missing { .. })
    ));
}
