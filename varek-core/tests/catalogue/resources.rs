//! More than the limits give.

use std::path::Path;
use std::time::Duration;

use varek_core::{
    Cause, CpuShare, Host, Limits, MIB, MountSupport, Overflow, Policy, Resource, SyscallGroup,
};

use crate::attacks;
use crate::entry::{Ends, Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, distinct, native, python, tight, with};
use crate::support::seconds;

const OBJECTS: [&str; 6] = [
    "shmget",
    "semget",
    "msgget",
    "mq_open",
    "io_setup",
    "memfd_secret",
];

fn limited(scene: &Scene, change: fn(&mut Limits)) -> Policy {
    let mut policy = python(scene);
    change(&mut policy.limits);
    policy
}

fn lacks_shared_memory() -> Option<&'static str> {
    let mounts = Host::probe().mounts == MountSupport::Allowed;
    let there = mounts && Path::new("/dev/shm").is_dir();
    (!there).then_some("guests have shared memory of their own only where they have mounts, and the host has /dev/shm")
}

fn briefly(scene: &Scene) -> Policy {
    native(scene)
        .cpu_time(Duration::from_millis(400))
        .wall_clock(seconds(20))
}

attacks! {
    Family::Resources;

    memory_that_no_program_has_a_name_for_counts:
        program = Program::C(r#"
static void fill(const char *name, size_t size) {
    /* Tables of pages alone: a page that is read and never written is the one of zeroes. */
    if (!strcmp(name, "tables")) {
        size_t length = (size_t)96 << 30;
        char *at = mmap(0, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) { say(name, -ENOMEM); return; }
        madvise(at, length, MADV_NOHUGEPAGE);
        volatile char sum = 0;
        for (size_t n = 0; n < length; n += 2 << 20) sum += at[n];
        say(name, 0);
    }
    if (!strcmp(name, "shared")) {
        char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memset(at, 1, size);
        say(name, 0);
    }
    if (!strcmp(name, "copies")) {
        size_t part = 8 << 20;
        char *at = malloc(part);
        memset(at, 1, part);
        int ready[2]; pipe(ready);
        for (int i = 0; i < 24; i++) if (fork() == 0) { memset(at, 2, part); write(ready[1], "x", 1); pause(); }
        char byte;
        for (int i = 0; i < 24; i++) if (read(ready[0], &byte, 1) != 1) return;
        say(name, 0);
    }
}
static void attack(const char *run) {
    fill(run, (size_t)160 << 20);
    kill(0, SIGKILL);
}
"#),
        runs = &["tables", "shared", "copies"],
        policy = |scene| tight(native(scene)),
        ends = Ends::Killed(&[Cause::OutOfMemory]),
        control = under(|scene| native(scene).memory(512 * MIB)).run();

    files_in_memory_count_wherever_they_are:
        program = Program::Python(r"
block = b'x' * (1 << 20)
def fill(path):
    with open(path, 'wb', buffering=0) as f:
        for _ in range(96): f.write(block)
def memory():
    fd = os.memfd_create('m')
    for _ in range(96): os.write(fd, block)
if ARG == 'memory file': attempt(ARG, memory)
if ARG == 'scratch': attempt(ARG, fill, 'file')
if ARG == 'shared memory': attempt(ARG, fill, '/dev/shm/file')
if ARG == 'many files': attempt(ARG, lambda: [fill(f'f{n}') for n in range(3)])
"),
        runs = &["memory file", "shared memory"],
        policy = |scene| tight(python(scene)),
        ends = Ends::Limited(&[Cause::OutOfMemory]),
        lacks = lacks_shared_memory,
        control = under(|scene| python(scene).memory(512 * MIB)).run();

    threads_and_processes_end_at_the_limit_of_both:
        program = Program::C(r#"
static void *wait_for_ever(void *unused) { for (;;) pause(); }
static void attack(const char *run) {
    int made = 0;
    pthread_t thread;
    for (int i = 0; i < 8; i++) if (fork() == 0) {
        for (int n = 0; n < 8; n++) if (pthread_create(&thread, 0, wait_for_ever, 0) != 0) _exit(11);
        _exit(0);
    }
    int status, failed = 0;
    while (wait(&status) > 0) failed |= WEXITSTATUS(status);
    for (; made < 64; made++) if (pthread_create(&thread, 0, wait_for_ever, 0) != 0) break;
    say("threads", made == 64 ? 0 : -EAGAIN);
}
"#),
        policy = |scene| native(scene).pids(24),
        ends = Ends::Met(Resource::Pids),
        control = under(native);

    a_flood_of_output_ends_where_the_policy_says:
        program = Program::Python(r"
block = b'x' * 65536
def flood():
    for n in range(128):
        os.write(1 + n % 2, block)
    os.write(1, b'\n'); os.write(2, b'\n')
attempt('flood', flood)
"),
        policy = |scene| python(scene).output(MIB, Overflow::Kill),
        ends = Ends::Killed(&[Cause::OutputLimit]),
        control = under(|scene| python(scene).output(16 * MIB, Overflow::Kill)).gains(&["flood"]);

    processor_time_of_many_short_children_counts:
        program = Program::C(r#"
#include <sys/resource.h>
#include <time.h>
static double used(void) {
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
static void attack(const char *run) {
    while (used() < 3) {
        int child = fork();
        if (child == 0) { struct timespec now; do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); while (!now.tv_sec && now.tv_nsec < 20000000); _exit(0); }
        waitpid(child, 0, 0);
    }
    say("three seconds", 0);
}
"#),
        policy = briefly,
        ends = Ends::Killed(&[Cause::CpuTime]),
        control = under(|scene| native(scene).cpu_time(Duration::from_secs(60)).wall_clock(seconds(30)));

    a_file_is_not_larger_than_its_limit_however_it_grows:
        program = Program::Python(r"
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open('file', os.O_RDWR | os.O_CREAT)
LARGE = 8 << 20
attempt('truncate', os.ftruncate, fd, LARGE)
attempt('write far', os.pwrite, fd, b'x', LARGE)
attempt('allocate', os.posix_fallocate, fd, 0, LARGE)
attempt('by path', os.truncate, 'file', LARGE)
def copied():
    os.lseek(fd, LARGE, 0)
    return os.sendfile(fd, os.open('/usr/bin/env', os.O_RDONLY), 0, 4096)
attempt('sent', copied)
attempt('nameless', lambda: os.ftruncate(os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600), LARGE))
"),
        policy = |scene| limited(scene, |limits| limits.file_size = Some(MIB)),
        refused = &[refused("truncate", 0).sharing()],
        answers = &[("truncate", "EFBIG"), ("write far", "EFBIG"), ("by path", "EFBIG")],
        control = under(python).gains(&["truncate", "write far", "sent"]);

    descriptors_end_at_their_limit_and_no_limit_is_raised:
        program = Program::Python(r"
import resource
def dups():
    for _ in range(200): os.dup(0)
attempt('many', dups)
attempt('high', os.dup2, 0, 150)
for name in ('NOFILE', 'FSIZE', 'CORE', 'CPU', 'MEMLOCK', 'MSGQUEUE', 'NICE', 'RTPRIO', 'SIGPENDING'):
    number = getattr(resource, 'RLIMIT_' + name)
    soft, hard = resource.getrlimit(number)
    attempt('raise ' + name, lambda: hard == -1 and False or resource.setrlimit(number, (-1, -1)))
"),
        policy = |scene| limited(scene, |limits| limits.open_files = 64),
        answers = &[("many", "EMFILE"), ("high", "EBADF"), ("raise NOFILE", "ValueError"), ("raise CORE", "ValueError"), ("raise SIGPENDING", "ValueError")],
        control = under(python).gains(&["many", "high"]);

    no_priority_and_no_locked_memory_is_gained:
        program = Program::Python(r"
import mmap
attempt('nice', os.nice, -5)
attempt('priority', os.setpriority, os.PRIO_PROCESS, 0, -10)
attempt('first in', os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
attempt('round robin', os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(50))
attempt('deadline', call, 'sched_setattr', 0, struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10**7, 10**8, 10**8), 0)
attempt('input and output', call, 'ioprio_set', 1, 0, 1 << 13)
block = mmap.mmap(-1, 4 << 20)
at = ctypes.addressof(ctypes.c_char.from_buffer(block))
attempt('locked', call, 'mlock', at, 4 << 20)
attempt('locked on fault', call, 'mlock2', at, 4 << 20, 1)
attempt('all locked', call, 'mlockall', 3)
attempt('huge', lambda: mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
"),
        refused = &[refused("sched_setattr", 1), refused("ioprio_set", 1), refused("mlockall", 1), refused("setpriority", 0)],
        answers = &[("first in", "EPERM"), ("deadline", "EPERM"), ("all locked", "EPERM")],
        control = OUTSIDE.gains(&["nice", "first in", "locked"]).needs(Needs::Root);

    objects_that_outlive_their_maker_are_not_made:
        program = Program::Python(r"
def made(name, *arguments):
    try: got = call(name, *arguments)
    except OSError as e:
        if e.errno in (errno.EPROTO, errno.ENOSYS): raise
        return True
    if name == 'shmget': call('shmctl', got, 0, 0)
    if name == 'semget': call('semctl', got, 0, 0, 0)
    if name == 'msgget': call('msgctl', got, 0, 0)
    if name == 'mq_open': call('mq_unlink', b'varek-catalogue')
attempt('shmget', made, 'shmget', 0, 4096, 0o1600)
attempt('semget', made, 'semget', 0, 1, 0o1600)
attempt('msgget', made, 'msgget', 0, 0o1600)
attempt('mq_open', made, 'mq_open', b'varek-catalogue', 0o102, 0o600, 0)
attempt('io_setup', made, 'io_setup', 8, ctypes.create_string_buffer(8))
"),
        policy = |_| distinct(&[]),
        refused = &[refused("shmget", 1), refused("semget", 1), refused("msgget", 1), refused("mq_open", 1), refused("io_setup", 1)],
        answers = &[("shmget", "EPROTO"), ("semget", "EPROTO"), ("msgget", "EPROTO"), ("mq_open", "EPROTO")],
        control = under(|_| with(&OBJECTS).syscalls(|calls| calls.allow_group(SyscallGroup::SysvIpc).allow_group(SyscallGroup::MessageQueues))).needs(Needs::Root);

    timers_and_queued_signals_end_at_a_limit_of_the_run:
        program = Program::C(r#"
#include <time.h>
static void attack(const char *run) {
    int made = 0;
    timer_t timer;
    for (; made < 2048; made++) if (timer_create(CLOCK_MONOTONIC, 0, &timer) != 0) break;
    say("timers", made == 2048 ? 0 : -errno);
}
"#),
        policy = native,
        answers = &[("timers", "EAGAIN")],
        control = OUTSIDE;

    a_loop_of_denied_calls_ends_at_its_budget:
        program = Program::C(r#"
static void attack(const char *run) {
    for (int i = 0; i < 5000; i++) syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
    say("went on", 0);
}
"#),
        policy = |scene| native(scene).denials(varek_core::DenialBudget::new(1000, 100_000)),
        ends = Ends::Killed(&[Cause::DenialBudget]),
        refused = &[refused("socket", 1000)],
        control = under(|scene| native(scene).denials(varek_core::DenialBudget::new(100_000, 100_000)));

    a_guest_that_burns_its_share_is_ended_by_its_clock:
        program = Program::C(r#"
static void *burn(void *unused) { for (;;) sched_yield(); }
static void attack(const char *run) {
    pthread_t thread;
    for (int n = 1; n < 65; n++) if (n != SIGKILL && n != SIGSTOP) signal(n, SIG_IGN);
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, burn, 0);
    setsid();
    if (fork() > 0) burn(0);
    sleep(number_of("PACE"));
    say("outlived", 0);
    kill(getppid(), SIGKILL);
    _exit(0);
}
"#),
        policy = |scene| native(scene).cpu(CpuShare::percent(50).unwrap()).wall_clock(seconds(1) / 2),
        ends = Ends::Killed(&[Cause::WallClock]),
        control = under(|scene| native(scene).wall_clock(seconds(60))).gains(&["outlived"]);
}
