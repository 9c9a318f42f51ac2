//! Every limit holds for the whole tree, and the outcome says which one was met, by the kernel's own counters.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::time::Duration;

use support::{
    assert_clean, assert_gone, assert_killed, denied, hit, hits, open_directory, pace, python, run,
    seconds, text,
};
use varek_core::{
    Cause, Command, CpuShare, Error, Input, MIB, Output, Policy, Resource, Sandbox, Signal,
    Termination, Violation, WhenFull,
};

/// Touches this many MiB, then says so.
fn touches(mebibytes: u64) -> String {
    format!(
        "b = bytearray({mebibytes} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('touched')\n"
    )
}

/// Whether the process lives. Guests have no pid namespace, so they know their pids as we do. A dead one
/// may be a zombie for as long as the machine's init takes to reap it.
fn alive(pid: &str) -> bool {
    assert!(pid.parse::<u32>().is_ok(), "{pid:?}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

// ---- memory ----

#[test]
fn a_guest_over_its_memory_is_killed_with_the_kernels_evidence() {
    let outcome = run(&sandbox!(python().memory(64 * MIB)), &touches(200));
    assert_killed(&outcome, &Cause::OutOfMemory);
    let memory = hit(&outcome, Resource::Memory);
    assert_eq!(memory.limit, Some(64 * MIB));
    assert!(memory.count >= 1);
    assert!(memory.evidence.contains("oom_kill"), "{memory}");
    assert!(
        outcome
            .usage
            .memory_peak
            .is_none_or(|peak| peak <= 64 * MIB),
        "{outcome}"
    );
    assert_eq!(outcome.stdout.total, 0);

    let outcome = run(&sandbox!(python().memory(400 * MIB)), &touches(200));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "touched\n");
    assert!(hits(&outcome, Resource::Memory).is_empty());
    assert!(
        outcome
            .usage
            .memory_peak
            .is_none_or(|peak| peak >= 200 * MIB),
        "{outcome}"
    );
}

/// A child touches memory; the first process waits for it and does `then`.
fn child_touches(mebibytes: u64, then: &str) -> String {
    let touch = touches(mebibytes).replace('\n', "\n    ");
    format!(
        "import os, signal\nchild = os.fork()\nif child == 0:\n    {touch}\n    os._exit(0)\n\
         status = os.waitpid(child, 0)[1]\n{then}\n"
    )
}

#[test]
fn a_child_over_the_memory_takes_the_whole_tree_with_it() {
    // The first process would go on for ever, having nothing to do with it.
    let hog = child_touches(200, "if status: signal.pause()\nprint('went on')");
    let outcome = run(&sandbox!(python().memory(64 * MIB)), &hog);
    assert_killed(&outcome, &Cause::OutOfMemory);
    let memory = hit(&outcome, Resource::Memory);
    assert_eq!(memory.limit, Some(64 * MIB));
    assert!(
        memory.count >= 1 && memory.evidence.contains("oom_kill"),
        "{memory}"
    );
    assert_eq!(outcome.stdout.total, 0, "{outcome}");

    let outcome = run(&sandbox!(python().memory(400 * MIB)), &hog);
    assert_clean(&outcome);
    assert!(text(&outcome).ends_with("went on\n"));
}

#[test]
fn an_oom_kill_of_a_child_is_never_invisible_however_soon_the_guest_exits() {
    let sandbox = sandbox!(python().memory(64 * MIB));
    for _ in 0..5 {
        let outcome = run(&sandbox, &child_touches(200, "os._exit(0)"));
        // Where the kernel kills one process of the group only, the first can be faster than its killer.
        assert!(
            matches!(
                outcome.termination,
                Termination::Killed(Cause::OutOfMemory) | Termination::Exited(0)
            ),
            "{outcome}"
        );
        let memory = hit(&outcome, Resource::Memory);
        assert_eq!(memory.limit, Some(64 * MIB));
        assert!(outcome.violation().is_some(), "{outcome}");
        assert_gone(&outcome);
    }
}

#[test]
fn memory_of_the_tree_is_counted_together() {
    // Four children, none of which is over the limit by itself.
    let source = "import os, signal\n\
                  read, write = os.pipe()\n\
                  for n in range(4):\n\
                  \x20   if os.fork() == 0:\n\
                  \x20       b = bytearray(40 << 20)\n\
                  \x20       for i in range(0, len(b), 4096): b[i] = 1\n\
                  \x20       os.write(write, b'x'); signal.pause()\n\
                  for n in range(4): os.read(read, 1)\n\
                  print('all')";
    let outcome = run(&sandbox!(python().memory(96 * MIB)), source);
    assert_killed(&outcome, &Cause::OutOfMemory);
    let outcome = run(&sandbox!(python().memory(400 * MIB)), source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "all\n");
    assert_eq!(outcome.descendants_killed, 4);
}

#[test]
fn memory_that_a_call_fills_counts() {
    // The pages are touched by the kernel, inside read(2).
    let source = "print(len(open('/dev/zero', 'rb').read(200 << 20)))";
    let outcome = run(&sandbox!(python().memory(64 * MIB)), source);
    assert_killed(&outcome, &Cause::OutOfMemory);
    let outcome = run(&sandbox!(python().memory(400 * MIB)), source);
    assert_clean(&outcome);
}

#[test]
fn memory_of_files_in_memory_counts() {
    let source = "import os\nm = os.memfd_create('m')\nfor _ in range(200): os.write(m, b'x' * (1 << 20))\nprint('written')";
    let outcome = run(&sandbox!(python().memory(64 * MIB)), source);
    assert_killed(&outcome, &Cause::OutOfMemory);
    let outcome = run(&sandbox!(python().memory(400 * MIB)), source);
    assert_clean(&outcome);
}

#[test]
fn a_kill_by_the_bound_of_all_guests_is_not_blamed_on_the_guest() {
    let build = |total| {
        Sandbox::builder(python().memory(400 * MIB))
            .total_memory(total)
            .build()
    };
    drop(sandbox!(python().memory(400 * MIB)));
    let outcome = run(&build(64 * MIB).unwrap(), &touches(200));
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::HostOutOfMemory),
        "{outcome}"
    );
    let memory = hit(&outcome, Resource::Memory);
    assert_eq!(memory.limit, None, "{memory}");
    assert!(memory.count >= 1);
    assert_eq!(outcome.violation(), None, "the guest kept to its own limit");
    assert_gone(&outcome);

    let outcome = run(&build(400 * MIB).unwrap(), &touches(200));
    assert_clean(&outcome);
}

// ---- processes ----

/// Forks until it is refused or has `most` children, and prints how many it has.
fn forks(most: u32) -> String {
    format!(
        "import os, signal\n\
         made = 0\n\
         try:\n\
         \x20   while made < {most}:\n\
         \x20       if os.fork() == 0: signal.pause()\n\
         \x20       made += 1\n\
         \x20   print(made)\n\
         except BlockingIOError: print(made, 'refused')"
    )
}

#[test]
fn forks_over_the_limit_are_refused_and_counted() {
    let outcome = run(&sandbox!(python().pids(16)), &forks(40));
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(text(&outcome), "15 refused\n");
    let pids = hit(&outcome, Resource::Pids);
    assert_eq!(pids.limit, Some(16));
    assert_eq!(pids.count, 1);
    assert!(pids.evidence.contains("pids.events"), "{pids}");
    assert!(
        matches!(outcome.violation(), Some(Violation::Limit(_))),
        "{outcome}"
    );
    assert_eq!(outcome.usage.pids_peak.unwrap_or(16), 16);
    assert_eq!(outcome.descendants_killed, 15);
    assert_gone(&outcome);

    let outcome = run(&sandbox!(python().pids(64)), &forks(40));
    assert_eq!(text(&outcome), "40\n");
    assert!(hits(&outcome, Resource::Pids).is_empty(), "{outcome}");
    assert_eq!(outcome.violation(), None);
    assert_eq!(outcome.descendants_killed, 40);
    assert_gone(&outcome);
}

#[test]
fn a_fork_bomb_ends_with_its_wall_clock() {
    let bomb = "import os\nwhile True:\n\x20   try: os.fork()\n\x20   except OSError: pass";
    let outcome = run(&sandbox!(python().pids(24).wall_clock(seconds(2))), bomb);
    assert_killed(&outcome, &Cause::WallClock);
    assert_eq!(hit(&outcome, Resource::Pids).limit, Some(24));
    assert!(hit(&outcome, Resource::Pids).count > 24);
}

#[test]
fn threads_count_as_processes_do() {
    let source = "import threading\n\
                  stop, made = threading.Event(), []\n\
                  try:\n\
                  \x20   for n in range(30):\n\
                  \x20       t = threading.Thread(target=stop.wait, daemon=True); t.start(); made.append(t)\n\
                  except RuntimeError: pass\n\
                  print(len(made))";
    let outcome = run(&sandbox!(python().pids(8)), source);
    assert_eq!(text(&outcome), "7\n", "{outcome}");
    assert_eq!(hit(&outcome, Resource::Pids).limit, Some(8));
    let outcome = run(&sandbox!(python().pids(64)), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "30\n");
}

#[test]
fn a_bound_of_all_guests_that_refuses_a_fork_is_not_blamed_on_the_guest() {
    drop(sandbox!(python()));
    let sandbox = Sandbox::builder(python().pids(64))
        .total_pids(10)
        .build()
        .unwrap();
    let outcome = run(&sandbox, &forks(40));
    assert_eq!(text(&outcome), "9 refused\n", "{outcome}");
    for pids in hits(&outcome, Resource::Pids) {
        assert_eq!(pids.limit, None, "{pids}");
    }
    assert_eq!(outcome.violation(), None, "{outcome}");
    assert_gone(&outcome);
}

// ---- time ----

#[test]
fn a_busy_loop_ends_with_its_wall_clock() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)));
    let outcome = run(&sandbox, "print('begun', flush=True)\nwhile True: pass");
    assert_killed(&outcome, &Cause::WallClock);
    assert!(outcome.timed_out());
    assert_eq!(text(&outcome), "begun\n");
    let clock = hit(&outcome, Resource::WallClock);
    let limit = u64::try_from(seconds(1).as_micros()).unwrap();
    assert_eq!(clock.limit, Some(limit));
    assert!(clock.count >= limit, "{clock}");
    assert_eq!(outcome.violation(), Some(&Violation::Limit(clock.clone())));

    let outcome = run(
        &sandbox!(python()),
        "for _ in range(1_000_000): pass\nprint('done')",
    );
    assert_clean(&outcome);
    assert!(!outcome.timed_out());
}

#[test]
fn a_guest_that_ignores_every_signal_ends_with_its_wall_clock() {
    let source = "import signal\n\
                  for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                  print('deaf', flush=True)\n\
                  while True: pass";
    let outcome = run(&sandbox!(python().wall_clock(seconds(1))), source);
    assert_killed(&outcome, &Cause::WallClock);
    assert_eq!(text(&outcome), "deaf\n");
}

#[test]
fn the_wall_clock_ends_the_children_of_a_first_process_that_waits() {
    let source = "import os, signal\n\
                  child = os.fork()\n\
                  if child == 0:\n\
                  \x20   os.setsid()\n\
                  \x20   while True: signal.pause()\n\
                  print(child, flush=True)\n\
                  os.waitpid(child, 0)";
    let outcome = run(&sandbox!(python().wall_clock(seconds(1))), source);
    assert_killed(&outcome, &Cause::WallClock);
    assert!(!alive(text(&outcome).trim()), "{outcome}");
}

/// Two children that each use this much CPU time while the first process waits.
fn two_burn(seconds: f64) -> String {
    format!(
        "import os, time\n\
         for _ in range(2):\n\
         \x20   if os.fork() == 0:\n\
         \x20       while time.process_time() < {seconds}: pass\n\
         \x20       os._exit(0)\n\
         for _ in range(2): os.wait()\n\
         print('burnt')"
    )
}

#[test]
fn cpu_time_is_bounded_for_the_tree_and_not_for_each_process() {
    // Each child alone stays below the limit; RLIMIT_CPU, in whole seconds, would not act before 3 s.
    let bound = seconds(3) / 2;
    let burn = |seconds: f64| two_burn(seconds * f64::from(pace()));
    let policy = python().cpu_time(bound).wall_clock(seconds(60));
    let outcome = run(&sandbox!(policy.clone()), &burn(1.2));
    assert_killed(&outcome, &Cause::CpuTime);
    let time = hit(&outcome, Resource::CpuTime);
    let limit = u64::try_from(bound.as_micros()).unwrap();
    assert_eq!(time.limit, Some(limit));
    assert!(time.count >= limit, "{time}");
    assert!(outcome.usage.cpu_user + outcome.usage.cpu_system >= bound);
    assert_eq!(outcome.stdout.total, 0);

    let outcome = run(&sandbox!(policy), &burn(0.3));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "burnt\n");
    assert!(outcome.usage.cpu_user + outcome.usage.cpu_system >= seconds(3) / 5);
}

#[test]
fn a_cpu_share_holds_a_long_loop_back_and_says_for_how_long() {
    let share = CpuShare::percent(20).unwrap();
    let source =
        "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass";
    let outcome = run(
        &sandbox!(python().cpu(share).wall_clock(seconds(60))),
        source,
    );
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    let throttled = hit(&outcome, Resource::CpuShare);
    assert!(
        throttled.limit.is_some() && throttled.count > 0,
        "{throttled}"
    );
    assert!(throttled.evidence.contains("cpu.stat"), "{throttled}");
    let micros = outcome.usage.throttled.unwrap().as_micros();
    assert_eq!(u128::from(throttled.count), micros);
    assert_eq!(
        outcome.violation(),
        None,
        "a share that holds back is no boundary"
    );
    assert_gone(&outcome);

    // Over before the share is in force, and with little CPU time in any case.
    let sandbox = sandbox!(Policy::native().cpu(share));
    let outcome = sandbox.run(Command::new("true")).unwrap();
    assert_clean(&outcome);
    let held_back = outcome.usage.throttled != Some(Duration::ZERO);
    assert_eq!(hits(&outcome, Resource::CpuShare).is_empty(), !held_back);
    // Where even this program takes longer than a period, nothing can be said.
    let used = outcome.usage.cpu_user + outcome.usage.cpu_system;
    assert!(!held_back || used > Duration::from_millis(20), "{outcome}");
}

// ---- files and descriptors ----

#[test]
fn a_file_over_its_limit_is_cut_and_the_signal_is_evidence() {
    let write = "import os, signal\n\
                 signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n\
                 f = os.open('f', os.O_WRONLY | os.O_CREAT)\n\
                 for n in range(4): os.write(f, b'x' * (1 << 20))\n\
                 print(os.fstat(f).st_size)";
    let limited = |bytes| {
        let mut policy = python();
        policy.limits.file_size = Some(bytes);
        policy
    };
    let outcome = run(&sandbox!(limited(2 * MIB)), write);
    assert_eq!(
        outcome.termination,
        Termination::Signaled(Signal::XFSZ),
        "{outcome}"
    );
    let size = hit(&outcome, Resource::FileSize);
    assert_eq!(size.limit, Some(2 * MIB));
    assert!(size.evidence.contains("SIGXFSZ"), "{size}");
    assert!(
        matches!(outcome.violation(), Some(Violation::Limit(_))),
        "{outcome}"
    );
    assert_gone(&outcome);

    // Python itself ignores the signal and sees EFBIG, of which the kernel keeps no record.
    let python_way = write.replace("signal.signal", "#").replace(
        "for n in range(4): os.write(f, b'x' * (1 << 20))",
        "try:\n\x20   for n in range(4): os.write(f, b'x' * (1 << 20))\nexcept OSError as e: print(e.errno)",
    );
    let outcome = run(&sandbox!(limited(2 * MIB)), &python_way);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), format!("27\n{}\n", 2 * MIB));
    assert!(outcome.limits_hit.is_empty(), "{outcome}");

    let outcome = run(&sandbox!(limited(8 * MIB)), write);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), format!("{}\n", 4 * MIB));
}

#[test]
fn descriptors_end_at_the_limit() {
    let source = "import os\n\
                  last = 0\n\
                  try:\n\
                  \x20   while last < 100: last = os.dup(0)\n\
                  except OSError as e: print(e.errno)\n\
                  print(last)";
    let limited = |count| {
        let mut policy = python();
        policy.limits.open_files = count;
        policy
    };
    let outcome = run(&sandbox!(limited(32)), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "24\n31\n");
    let outcome = run(&sandbox!(limited(256)), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "100\n");
}

#[test]
fn limits_of_processes_cannot_be_raised_again() {
    let source = "import resource as r\n\
                  for limit in [r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_CPU]:\n\
                  \x20   soft, hard = r.getrlimit(limit)\n\
                  \x20   try: r.setrlimit(limit, (hard + 1, hard + 1)); print('raised')\n\
                  \x20   except (ValueError, PermissionError): print('kept')\n\
                  \x20   r.setrlimit(limit, (soft, soft))";
    let outcome = run(&sandbox!(python()), source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "kept\n".repeat(4));
}

// ---- denials ----

#[test]
fn a_guest_that_hammers_denied_calls_is_killed_by_its_budget() {
    let hammer = |times: u32| {
        format!(
            "import socket\n\
             for n in range({times}):\n\
             \x20   try: socket.socket()\n\
             \x20   except PermissionError: pass\n\
             print('through')"
        )
    };
    let mut policy = python();
    policy.denials.total = 100;
    let sandbox = sandbox!(policy);
    let outcome = run(&sandbox, &hammer(1_000_000));
    assert_killed(&outcome, &Cause::DenialBudget);
    assert_eq!(denied(&outcome, "socket").count, 101);
    assert_eq!(outcome.stdout.total, 0);

    let outcome = run(&sandbox, &hammer(100));
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(denied(&outcome, "socket").count, 100);
    assert_eq!(text(&outcome), "through\n");

    let mut policy = python();
    policy.denials.per_second = 20;
    let outcome = run(&sandbox!(policy), &hammer(1_000_000));
    assert_killed(&outcome, &Cause::DenialBudget);
    assert!(denied(&outcome, "socket").count > 20);
}

// ---- what outlives the first process ----

/// Starts a daemon that survives everything but a kill, and exits with 0.
const DAEMON: &str = "import os, signal\n\
                      read, write = os.pipe()\n\
                      if os.fork() == 0:\n\
                      \x20   os.setsid()\n\
                      \x20   if os.fork(): os._exit(0)\n\
                      \x20   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                      \x20   # CLOSE\n\
                      \x20   os.write(write, b'%d' % os.getpid())\n\
                      \x20   while True: signal.sigwait([signal.SIGUSR1])\n\
                      os.wait()\n\
                      print(os.read(read, 20).decode())\n";

#[test]
fn a_daemon_dies_with_the_run() {
    let source = DAEMON.replace("# CLOSE", "for fd in [0, 1, 2]: os.close(fd)");
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(outcome.descendants_killed, 1, "{outcome}");
    assert!(!alive(text(&outcome).trim()), "{outcome}");
    assert_gone(&outcome);

    // It lives as long as the run goes on: the first process can signal it.
    let checked = source
        .replace("print(", "pid = int(")
        .replace(".decode())", ")");
    let outcome = run(
        &sandbox!(python()),
        &(checked + "os.kill(pid, 0)\nprint('alive')\n"),
    );
    assert_eq!(text(&outcome), "alive\n", "{outcome}");
    assert_eq!(outcome.descendants_killed, 1, "{outcome}");
}

#[test]
fn a_grandchild_that_holds_stdout_does_not_hold_the_caller() {
    let outcome = run(&sandbox!(python()), DAEMON);
    assert_eq!(outcome.termination, Termination::Exited(0), "{outcome}");
    assert_eq!(outcome.descendants_killed, 1);
    assert!(!outcome.timed_out());
    assert!(!alive(text(&outcome).trim()), "{outcome}");
    assert_gone(&outcome);
}

#[test]
fn cancelled_and_dropped_guests_are_dead_with_their_trees() {
    let sandbox = sandbox!(python());
    let source = format!("{DAEMON}import sys\nsys.stdout.flush()\nsignal.pause()\n");
    let start = || {
        let mut child = sandbox
            .spawn(Command::python(source.as_str()).stdout(Output::piped()))
            .unwrap();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let daemon = line.trim().to_owned();
        assert!(alive(&daemon));
        (child, daemon)
    };
    let (mut child, daemon) = start();
    child.kill();
    let outcome = child.wait().unwrap();
    assert_eq!(
        outcome.termination,
        Termination::Killed(Cause::Cancelled),
        "{outcome}"
    );
    assert_eq!(outcome.violation(), None);
    assert!(!alive(&daemon));
    assert_gone(&outcome);
    drop(child);

    let (child, daemon) = start();
    drop(child);
    drop(sandbox);
    assert!(!alive(&daemon), "the last handle and the sandbox are gone");
}

// ---- concurrency ----

#[test]
fn a_full_sandbox_refuses_where_it_is_told_to() {
    drop(sandbox!(python()));
    let sandbox = Sandbox::builder(python())
        .concurrency(1, WhenFull::Refuse)
        .build()
        .unwrap();
    let reads = Command::python("import sys; sys.stdin.read()").stdin(Input::piped());
    let mut first = sandbox.spawn(reads).unwrap();
    match sandbox.run(Command::python("print('second')")) {
        Err(Error::Full { limit: 1 }) => {}
        other => panic!("{other:?}"),
    }
    drop(first.stdin.take());
    assert_clean(&first.wait().unwrap());
    // Its place is free when its end is known.
    let outcome = sandbox.run(Command::python("print('second')")).unwrap();
    assert_clean(&outcome);
}

#[test]
fn a_full_sandbox_queues_where_it_is_told_to() {
    drop(sandbox!(python()));
    let shared = open_directory();
    let log = shared.path().join("log");
    std::fs::write(&log, "").unwrap();
    std::os::unix::fs::chown(&log, None, None).unwrap();
    std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let source = format!(
        "import os\n\
         log = os.open({log:?}, os.O_WRONLY | os.O_APPEND)\n\
         os.write(log, b'in\\n'); sum(range(200_000)); os.write(log, b'out\\n')"
    );
    let sandbox = Sandbox::builder(python().write(&log))
        .concurrency(1, WhenFull::Wait)
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_clean(&run(&sandbox, &source));
                }
            });
        }
    });
    assert_eq!(
        std::fs::read_to_string(&log).unwrap(),
        "in\nout\n".repeat(12)
    );
}

#[test]
fn guests_of_an_unbounded_sandbox_run_at_the_same_time() {
    let sandbox = sandbox!(python());
    let reads = || {
        let command = Command::python("import sys; print('in', flush=True); sys.stdin.read()");
        let mut child = sandbox
            .spawn(command.stdin(Input::piped()).stdout(Output::piped()))
            .unwrap();
        let mut first = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        child
    };
    // Each has said that it runs before any may end.
    let guests: Vec<_> = (0..8).map(|_| reads()).collect();
    for mut guest in guests {
        drop(guest.stdin.take());
        assert_clean(&guest.wait().unwrap());
    }
}
