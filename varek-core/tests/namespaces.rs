//! Namespaces of a run's own: what a guest sees in them, that status and signals stay exact, and that they go with
//! the run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "support/embedder.rs"]
mod embedder;
mod support;

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use embedder::{Census, again, passes};
use support::{assert_clean, assert_killed, not_run, python, run, sandbox_or_not_run, text};
use varek_core::{
    Cause, Command, Error, Layer, LayerStatus, MIB, Namespace, Network, Policy, Sandbox, Signal,
    Termination,
};

fn all() -> Policy {
    python().namespaces(Namespace::ALL)
}

/// The name of each namespace beneath `/proc/<pid>/ns`.
fn file(namespace: Namespace) -> &'static str {
    match namespace {
        Namespace::Pid => "pid",
        Namespace::Mount => "mnt",
        Namespace::Ipc => "ipc",
        Namespace::Uts => "uts",
        Namespace::Net => "net",
        Namespace::Cgroup => "cgroup",
        Namespace::User => "user",
        other => panic!("{other}"),
    }
}

/// The kinds of namespaces that the guest does not share with this program.
fn own(sandbox: &Sandbox) -> Vec<Namespace> {
    let source = "import os\n\
                  for name in os.listdir('/proc/self/ns'): print(name, os.readlink('/proc/self/ns/' + name))";
    let outcome = run(sandbox, source);
    assert_clean(&outcome);
    let text = text(&outcome);
    let of_guest = |name: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    let differs = |namespace: &Namespace| {
        let name = file(*namespace);
        let mine = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        mine.to_string_lossy() != of_guest(name)
    };
    Namespace::ALL.into_iter().filter(differs).collect()
}

#[test]
fn a_guest_has_the_namespaces_that_its_policy_names() {
    let everything = sandbox!(all());
    assert_eq!(own(&everything), Namespace::ALL);
    let detail = everything.enforcement().status(Layer::Namespaces).cloned();
    assert_eq!(
        detail,
        Some(LayerStatus::Enforced {
            detail: "pid, mount, ipc, uts, net, cgroup, user".into()
        })
    );
    for namespace in Namespace::ALL {
        let sandbox = sandbox!(python().namespaces([namespace]));
        let found = own(&sandbox);
        assert!(found.contains(&namespace), "{namespace}: {found:?}");
        // The scratch directory is mounted in one of the guest's own, whatever is asked.
        let others = found.iter().filter(|other| **other != Namespace::Mount);
        let asked = usize::from(namespace != Namespace::Mount);
        assert_eq!(others.count(), asked, "{namespace}: {found:?}");
    }
    // The control.
    let none = sandbox!(python());
    let found = own(&none);
    assert!(found.is_empty() || found == [Namespace::Mount], "{found:?}");
    let status = none.enforcement().status(Layer::Namespaces);
    assert_eq!(status, Some(&LayerStatus::NotAsked));
}

#[test]
fn the_guest_of_a_pid_namespace_is_not_process_1_and_ends_exactly() {
    let sandbox = sandbox!(all());
    let outcome = run(&sandbox, "import os; print(os.getpid(), os.getppid())");
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "2 0\n");
    for code in [0, 1, 7, 255] {
        let outcome = run(&sandbox, &format!("import os; os._exit({code})"));
        assert_eq!(outcome.termination, Termination::Exited(code), "{outcome}");
    }
    // Process 1 of a namespace would not die of any of these.
    for number in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let source = format!("import os; os.kill(os.getpid(), {number})");
        let outcome = run(&sandbox, &source);
        assert_eq!(
            outcome.termination,
            Termination::Signaled(Signal(number)),
            "{outcome}"
        );
    }
}

#[test]
fn limits_hold_and_denials_are_named_in_every_namespace() {
    let sandbox = sandbox!(
        all()
            .memory(128 * MIB)
            .wall_clock(support::seconds(2))
            .pids(8)
    );
    let outcome = run(&sandbox, "x = bytearray(1 << 30)");
    assert_killed(&outcome, &Cause::OutOfMemory);
    let outcome = run(&sandbox, "while True: pass");
    assert_killed(&outcome, &Cause::WallClock);
    let outcome = run(&sandbox, "import socket\nsocket.socket()");
    let reports = sandbox.enforcement().status(Layer::DenialReports);
    if matches!(reports, Some(LayerStatus::Enforced { .. })) {
        assert_eq!(support::denied(&outcome, "socket").count, 1, "{outcome}");
    } else {
        not_run(test_name!(), "denied calls are not reported");
    }
    // The reaper is not in the guest's group.
    let source = "import os\n\
                  for _ in range(7):\n\
                  \x20   if os.fork() == 0:\n\
                  \x20       os.read(0, 1)\n\
                  \x20       os._exit(0)\n\
                  print('seven')";
    let input = varek_core::Input::piped();
    let mut child = sandbox.spawn(Command::python(source).stdin(input)).unwrap();
    drop(child.stdin.take());
    let outcome = child.wait().unwrap();
    assert_eq!(text(&outcome), "seven\n", "{outcome}");
}

#[test]
fn a_run_sees_no_process_but_its_own_and_keeps_no_zombie() {
    let shown = "import os\n\
                 def pids(): return sorted(int(name) for name in os.listdir('/proc') if name.isdigit())\n\
                 print(*pids())\n\
                 read, write = os.pipe()\n\
                 if os.fork() == 0:\n\
                 \x20   if os.fork() == 0:\n\
                 \x20       os.close(read)\n\
                 \x20       while os.getppid() != 1: os.sched_yield()\n\
                 \x20       os.write(write, b'o')\n\
                 \x20       os._exit(0)\n\
                 \x20   os._exit(0)\n\
                 os.close(write)\n\
                 os.wait()\n\
                 while os.read(read, 1): pass\n\
                 while len(pids()) > 2: os.sched_yield()\n\
                 print(*pids())\n\
                 print(open('/proc/1/comm').read(), end='')";
    let sandbox = sandbox!(all().read("/proc"));
    let outcome = run(&sandbox, shown);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "1 2\n1 2\nvarek-reaper\n");
    // The control: without one everybody is there.
    let wide = sandbox!(python().read("/proc"));
    let outcome = run(
        &wide,
        "import os; print(len([n for n in os.listdir('/proc') if n.isdigit()]))",
    );
    assert!(
        text(&outcome).trim().parse::<u32>().unwrap() > 2,
        "{outcome}"
    );
}

#[test]
fn the_reaper_is_out_of_the_guests_reach() {
    let attack = "import os, signal\n\
                  def tried(name, act):\n\
                  \x20   try: print(name, 'done', act())\n\
                  \x20   except OSError as error: print(name, error.strerror)\n\
                  tried('kill', lambda: os.kill(1, signal.SIGKILL))\n\
                  tried('term', lambda: os.kill(1, signal.SIGTERM))\n\
                  for name in ('mem', 'environ', 'fd', 'cwd', 'root', 'exe'):\n\
                  \x20   path = '/proc/1/' + name\n\
                  \x20   tried(name, lambda: os.listdir(path) if name == 'fd' else \
                  os.readlink(path) if name in ('cwd', 'root', 'exe') else open(path, 'rb').read(8))\n\
                  tried('limits', lambda: open('/proc/1/oom_score_adj', 'w').write('0'))\n\
                  print(open('/proc/1/status').read().split('CapEff:')[1].split()[0])";
    let sandbox = sandbox!(all().read("/proc"));
    let outcome = run(&sandbox, attack);
    let text = text(&outcome);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 10, "{outcome}\n{text}");
    for line in &lines[..9] {
        assert!(
            line.ends_with("denied") || line.ends_with("not permitted"),
            "{line}"
        );
    }
    assert_eq!(lines[9], "0000000000000000");
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
}

#[test]
fn what_the_policy_grants_beneath_proc_is_the_new_one_and_stays_under_memory_pressure() {
    // A rule is bound to an inode, of which procfs makes a new one where memory is short and nobody holds the old.
    let source = "import os, mmap\n\
                  first = open('/proc/meminfo').read(3), open('/proc/self/stat').read(1)\n\
                  for _ in range(40):\n\
                  \x20   mapped = mmap.mmap(-1, 48 << 20)\n\
                  \x20   for page in range(0, 48 << 20, 4096): mapped[page] = 1\n\
                  \x20   mapped.close()\n\
                  \x20   with open('file', 'wb') as file: file.write(bytes(16 << 20))\n\
                  \x20   os.unlink('file')\n\
                  assert first == (open('/proc/meminfo').read(3), open('/proc/self/stat').read(1))\n\
                  print(*first)\n\
                  try: open('/proc/version').read()\n\
                  except PermissionError: print('closed')";
    let sandbox = sandbox!(all().memory(96 * MIB).read("/proc/meminfo"));
    let outcome = run(&sandbox, source);
    assert_eq!(text(&outcome), "Mem 2\nclosed\n", "{outcome}");
    let open = sandbox!(all().read("/proc/version"));
    let outcome = run(&open, "print(open('/proc/version').read(5))");
    assert_eq!(text(&outcome), "Linux\n", "{outcome}");
}

#[test]
fn the_scratch_directory_is_at_tmp_and_nothing_else_is() {
    let directory = support::open_directory();
    let path = directory.path().join("file");
    fs::write(&path, "host").unwrap();
    let source = format!(
        "import os, tempfile\n\
         print(os.getcwd(), os.environ['HOME'], os.environ['TMPDIR'], tempfile.gettempdir())\n\
         open('/tmp/mine', 'w').write('x')\n\
         print(sorted(os.listdir('/tmp')), os.path.exists({:?}))\n\
         os.unlink('/tmp/mine')",
        path.to_str().unwrap()
    );
    let mount = || python().namespaces([Namespace::Mount]);
    let mut unbounded = mount();
    unbounded.limits.scratch = None;
    for policy in [mount(), unbounded, all()] {
        let sandbox = sandbox!(policy);
        let outcome = run(&sandbox, &source);
        assert_clean(&outcome);
        assert_eq!(
            text(&outcome),
            "/tmp /tmp /tmp /tmp\n['main.py', 'mine'] False\n"
        );
    }
    // A directory of the embedder's is there too, and at no other place.
    let sandbox = sandbox!(mount());
    let mine = support::open_directory();
    let command = Command::python("open('/tmp/out', 'w').write('done')").scratch(mine.path());
    let outcome = sandbox.run(command).unwrap();
    assert_clean(&outcome);
    assert_eq!(fs::read_to_string(mine.path().join("out")).unwrap(), "done");
    // A program that the command brings along.
    let script = Command::new("./script").executable("script", "#!/usr/bin/python3\nprint('ran')");
    let outcome = sandbox.run(script).unwrap();
    assert_eq!(text(&outcome), "ran\n", "{outcome}");
}

#[test]
fn what_a_guest_could_not_see_is_refused_by_name() {
    let hidden = tempfile::tempdir_in("/tmp").unwrap();
    let policy = python().namespaces([Namespace::Mount]);
    let problems = policy.clone().read(hidden.path()).problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].field, "namespaces");
    assert!(
        problems[0]
            .message
            .contains(hidden.path().to_str().unwrap()),
        "{}",
        problems[0]
    );
    // The control: where it stays in sight it can be granted.
    assert_eq!(python().read(hidden.path()).problems(), []);
    let sandbox = sandbox!(policy);
    let error = sandbox
        .run(Command::python("pass").current_dir(hidden.path()))
        .unwrap_err();
    assert!(matches!(error, Error::Command { .. }), "{error}");
    assert!(error.to_string().contains("/tmp"), "{error}");
}

/// Processes of the run reach one another.
const LOOPBACK: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b'hello')).start()
print(socket.create_connection(server.getsockname()).recv(5).decode())
";

#[test]
fn a_network_namespace_has_a_loopback_device_and_nobody_elses_sockets() {
    let network = || python().network(Network::Host);
    let sandbox = sandbox!(network().namespaces([Namespace::Net]));
    let outcome = run(&sandbox, LOOPBACK);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "hello\n");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("varek-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let source = format!(
        "import socket\n\
         def tried(family, address):\n\
         \x20   try: socket.socket(family).connect(address); print('connected')\n\
         \x20   except OSError as error: print(error.strerror)\n\
         tried(socket.AF_INET, ('127.0.0.1', {}))\n\
         tried(socket.AF_UNIX, '\\0{name}')\n\
         print(socket.if_nameindex())",
        tcp.local_addr().unwrap().port()
    );
    let outcome = run(&sandbox, &source);
    assert_eq!(
        text(&outcome),
        "Connection refused\nConnection refused\n[(1, 'lo')]\n",
        "{outcome}"
    );
    // The control.
    let wide = sandbox!(network());
    let outcome = run(&wide, &source);
    let text = text(&outcome);
    assert!(text.starts_with("connected\n"), "{text}");
    let scoped = wide.host().landlock.version().is_some_and(|abi| abi >= 6);
    assert_eq!(
        text.starts_with("connected\nconnected\n"),
        !scoped,
        "{text}"
    );
}

#[test]
fn names_ids_and_groups_are_the_namespaces_own() {
    let source = "import os, socket\n\
                  print(os.uname().nodename)\n\
                  print(open('/proc/self/cgroup').read().strip().split(':')[-1])\n\
                  print(os.getuid() == os.stat('/tmp').st_uid, len(open('/proc/self/uid_map').readlines()))\n\
                  print(os.stat('/usr').st_uid)";
    let sandbox = sandbox!(all());
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "varek\n/\nTrue 1\n65534\n");
}

#[test]
fn honest_programs_work_in_every_namespace() {
    let source = "import multiprocessing, concurrent.futures, asyncio, sqlite3, tempfile, subprocess, threading\n\
                  def double(x): return 2 * x\n\
                  if __name__ == '__main__':\n\
                  \x20   with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(double, range(10))))\n\
                  \x20   with multiprocessing.get_context('fork').Pool(2) as pool: print(sum(pool.map(double, range(10))))\n\
                  \x20   db = sqlite3.connect('file.db'); db.execute('pragma journal_mode=wal')\n\
                  \x20   db.execute('create table t (x)'); db.execute('insert into t values (1)'); db.commit()\n\
                  \x20   print(db.execute('select x from t').fetchall())\n\
                  \x20   with tempfile.NamedTemporaryFile() as file: file.write(b'x')\n\
                  \x20   async def later(): await asyncio.sleep(0.001); return 'later'\n\
                  \x20   print(asyncio.run(later()))";
    let sandbox = sandbox!(all().pids(32));
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "90\n90\n[(1,)]\nlater\n");
}

#[test]
fn runs_with_namespaces_leave_nothing() {
    let name = test_name!();
    if embedder::role().is_none() {
        if sandbox_or_not_run(name, all()).is_some() {
            passes(again(name, "embedder"));
        }
        return;
    }
    let scratch = embedder::scratch_base();
    let before = Census::settled(scratch.path());
    let sandbox = Sandbox::builder(embedder::own_uids(all()))
        .scratch_base(scratch.path())
        .build()
        .unwrap();
    let warm_up = || {
        // First, so that its run is over when the others are.
        drop(sandbox.spawn(Command::python("while True: pass")).unwrap());
        assert!(run(&sandbox, "pass").success());
        let orphans = "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        os.read(os.pipe()[0], 1)";
        assert!(run(&sandbox, orphans).success());
        let missing = sandbox.run(Command::new("/nothing/there"));
        assert!(missing.is_err());
        let no_image = Command::new("./text").executable("text", "\x7fELF");
        assert!(sandbox.run(no_image).is_err());
    };
    warm_up();
    let warm = Census::settled(scratch.path());
    assert!(
        warm.children > before.children,
        "the census sees the reapers that wait for runs"
    );
    (0..support::times(10)).for_each(|_| warm_up());
    warm.becomes_again(scratch.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..support::times(10)).for_each(|_| warm_up()));
        }
    });
    drop(sandbox);
    before.becomes_again(scratch.path());
}

#[test]
fn a_kit_whose_reaper_is_gone_is_not_used() {
    let name = test_name!();
    if embedder::role().is_none() {
        if sandbox_or_not_run(name, all()).is_some() {
            passes(again(name, "embedder"));
        }
        return;
    }
    let scratch = embedder::scratch_base();
    let sandbox = Sandbox::builder(embedder::own_uids(all()))
        .scratch_base(scratch.path())
        .build()
        .unwrap();
    assert!(run(&sandbox, "pass").success());
    drop(Census::settled(scratch.path()));
    // Those of the kits that wait for runs.
    let mut ended = 0;
    for (pid, _) in embedder::children() {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm == "varek-reaper\n" {
            let end = embedder::pidfd(pid);
            rustix::process::pidfd_send_signal(&end, rustix::process::Signal::KILL).unwrap();
            embedder::readable(&end);
            ended += 1;
        }
    }
    assert_eq!(ended, 2);
    for _ in 0..3 {
        assert!(run(&sandbox, "pass").success());
    }
}

#[test]
fn where_namespaces_cannot_be_had_the_policy_decides() {
    let mut host = varek_core::Host::probe();
    host.mounts = varek_core::MountSupport::Refused(1);
    let build = |policy: Policy| Sandbox::builder(policy).host(host.clone()).build();
    if build(python()).is_err() {
        return not_run(test_name!(), "this host has no sandboxes");
    }
    let Err(Error::Unsupported { missing }) = build(all()) else {
        panic!("it was built");
    };
    assert!(
        missing
            .iter()
            .any(|missing| missing.layer == Layer::Namespaces),
        "{missing:?}"
    );
    let lenient = all().best_effort(Layer::Namespaces);
    let sandbox = build(lenient.best_effort(Layer::Identity)).unwrap();
    let status = sandbox.enforcement().status(Layer::Namespaces);
    assert!(
        matches!(status, Some(LayerStatus::Missing { .. })),
        "{status:?}"
    );
    let found = own(&sandbox);
    assert_eq!(found, [], "{found:?}");
}

#[test]
fn what_is_hidden_of_the_embedders_proc_is_not_shown_by_a_new_one() {
    let test = test_name!();
    let Some(role) = embedder::role() else {
        // Again, with places of /proc that only that process sees: one that hides a file, and one that hides nothing.
        let hide = |place: &str| {
            let from = if place == "/proc/version" {
                "/dev/null"
            } else {
                "/dev"
            };
            let mount = format!("mount --bind {from} {place} && exec \"$@\"");
            let starter = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
            embedder::again_under(&starter, test, place)
        };
        for place in ["/proc/version", "/proc/sys/fs/binfmt_misc"] {
            let free = hide(place).arg("--list").output().unwrap();
            if !free.status.success() {
                return not_run(test, &format!("this program may not mount at {place}"));
            }
            passes(hide(place));
        }
        return;
    };
    let source = "import os\nprint(os.listdir('/proc/self/task'), os.path.exists('/proc/version'), os.path.exists('/proc/uptime'))";
    let sandbox = sandbox!(python().namespaces([Namespace::Pid]).read("/proc"));
    let outcome = run(&sandbox, source);
    assert_clean(&outcome);
    let all = role != "/proc/version";
    let shown = if all { "True True" } else { "False False" };
    assert_eq!(text(&outcome), format!("['2'] {shown}\n"));
}

/// The descriptors of this program whose path ends so.
#[cfg(feature = "test-hooks")]
fn descriptors(end: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = entries.filter(|entry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.to_string_lossy().ends_with(end))
    });
    named
        .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

#[test]
#[cfg(feature = "test-hooks")]
fn a_set_up_that_is_cut_short_closes_nothing_that_is_granted_of_process_1() {
    use std::collections::BTreeSet;
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    let policy = python()
        .namespaces([Namespace::Pid])
        .read("/proc/1")
        .wall_clock(std::time::Duration::from_millis(300));
    let sandbox = sandbox!(policy);
    let done = AtomicBool::new(false);
    // Takes every number that was granted and gets free, so that a second close of it closes what is here.
    let (granted, taken) = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let null = fs::File::open("/dev/null").unwrap();
            let (mut granted, mut taken) = (BTreeSet::new(), Vec::new());
            while !done.load(Ordering::Acquire) {
                granted.extend(descriptors("/1"));
                let free = null.try_clone().unwrap();
                if granted.contains(&free.as_raw_fd()) {
                    taken.push(free.into_raw_fd());
                }
            }
            (granted, taken)
        });
        let held = Command::new("/bin/true").hold_at(varek_core::SetupStep::Landlock);
        let outcome = sandbox.run(held).unwrap();
        assert!(outcome.timed_out(), "{outcome}");
        drop(sandbox);
        done.store(true, Ordering::Release);
        taker.join().unwrap()
    });
    assert!(!granted.is_empty());
    let null = descriptors("/dev/null");
    assert!(
        taken.iter().all(|number| null.contains(number)),
        "{taken:?} {null:?}"
    );
}
