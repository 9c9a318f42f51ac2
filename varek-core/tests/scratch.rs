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

use support::{assert_clean, assert_gone, open_directory, python, run, seconds, text};
use varek_core::{Cleanup, Command, Outcome, Sandbox};

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
    let sandbox = Sandbox::builder(policy)
        .scratch_base(base.path())
        .build()
        .unwrap();
    let source = HOSTILE.replace("KEEP", &format!("{:?}", keep.path()));
    for _ in 0..2 {
        let outcome = run(&sandbox, &source);
        assert_gone(&outcome);
        assert_eq!(text(&outcome), "filled\n", "{outcome}");
        assert_eq!(of_run(base.path(), &outcome), Vec::<String>::new());
    }
    drop(sandbox);
    assert_eq!(names(base.path()), Vec::<String>::new());
    assert!(keep.path().join("kept").exists());
}

#[test]
fn what_could_not_be_removed_in_time_is_said_and_removed_later() {
    let base = open_directory();
    let mut policy = python();
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
        let outcome = run(
            &sandbox,
            &format!("import os\nopen('f', 'w').close()\n{end}"),
        );
        assert_gone(&outcome);
        assert_eq!(of_run(base.path(), &outcome), Vec::<String>::new(), "{end}");
    }
    drop(sandbox);
    assert_eq!(names(base.path()), Vec::<String>::new());
}

#[test]
fn scratch_cannot_be_moved_or_replaced_by_the_guest() {
    let base = open_directory();
    mode(base.path(), 0o777 | 0o1000);
    drop(sandbox!(python()));
    let sandbox = Sandbox::builder(python())
        .scratch_base(base.path())
        .build()
        .unwrap();
    let source = "import os\n\
                  def attempt(f, *arguments):\n\
                  \x20   try: f(*arguments); print('ok')\n\
                  \x20   except OSError as e: print(e.errno)\n\
                  home = os.getcwd()\n\
                  attempt(os.rename, home, home + '-moved')\n\
                  attempt(os.rmdir, home)\n\
                  attempt(os.mkdir, home + '-beside')\n\
                  attempt(os.mkdir, home + '/beneath')";
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    let output = text(&outcome);
    let answers: Vec<_> = output.lines().collect();
    assert!(
        answers[..3].iter().all(|answer| *answer != "ok"),
        "{answers:?}"
    );
    assert_eq!(answers[3], "ok");
    drop(sandbox);
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
