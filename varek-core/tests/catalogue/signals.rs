//! Signals to others, and reaching into them.

use varek_core::Policy;

use crate::attacks;
use crate::entry::{Ends, Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, distinct, python, with};

/// Calls of the kill list that act on another process, or watch one.
const REACHING: [&str; 7] = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    "perf_event_open",
    "userfaultfd",
];

/// Calls that are refused, for others at least.
const LIMITING: [&str; 8] = [
    "prlimit64",
    "setpriority",
    "ioprio_set",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "process_madvise",
];

fn patient(scene: &Scene) -> Policy {
    python(scene)
}

attacks! {
    Family::Signals;

    reaching_into_another_process_kills:
        program = Program::Python(r"
local = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(local), 8)
arguments = {
    'ptrace': (0x4206, VICTIM, 0, 0), 'process_vm_readv': (VICTIM, vector, 1, vector, 1, 0), 'process_vm_writev': (VICTIM, vector, 0, vector, 0, 0),
    'pidfd_getfd': (-1, 0, 0), 'kcmp': (VICTIM, VICTIM, 0, 0, 0),
    'perf_event_open': (bytes(128), VICTIM, -1, -1, 0), 'userfaultfd': (1,),
}[ARG]
def made():
    try: call(ARG, *arguments)
    except OSError as e:
        # The kernel's own answer to what has no sense: the call was made.
        if e.errno in (errno.EPERM, errno.ENOSYS): raise
attempt(ARG, made)
"),
        runs = &REACHING,
        ends = Ends::Forbidden,
        control = OUTSIDE.run().needs(Needs::Root);

    tracing_in_any_direction_kills:
        program = Program::Python(r"
def traced():
    if ARG == 'ptrace': call('ptrace', 0, 0, 0, 0)
attempt(ARG, in_child, traced)
"),
        runs = &["ptrace"],
        ends = Ends::Forbidden,
        control = OUTSIDE.run();

    reaching_into_another_process_is_refused_where_it_does_not_kill:
        program = Program::Python(r"
buffer = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(buffer), 8)
for pid, whose in ((VICTIM, 'victim'), (EMBEDDER, 'embedder')):
    for name, *arguments in [('ptrace', 0x4206, pid), ('process_vm_readv', pid, vector, 1, vector, 1), ('process_vm_writev', pid, vector, 0, vector, 0),
                             ('pidfd_getfd', call('pidfd_open', pid, 0), 0, 0), ('kcmp', pid, pid, 0, 0, 0), ('perf_event_open', bytes(128), pid, -1, -1)]:
        reach(f'{name} {whose}', name, *arguments)
reach('userfaultfd', 'userfaultfd', 0)
"),
        policy = |_| distinct(&REACHING),
        refused = &[refused("ptrace", 2), refused("process_vm_readv", 2), refused("process_vm_writev", 2), refused("pidfd_getfd", 2), refused("kcmp", 2),
            refused("perf_event_open", 2), refused("userfaultfd", 1)],
        control = under(|_| with(&REACHING)).needs(Needs::Root);

    others_are_neither_limited_nor_slowed_down:
        program = Program::Python(r"
CPUS = struct.pack('Q', 1)
for pid in (VICTIM, EMBEDDER):
    reach('limit', 'prlimit64', pid, 7, struct.pack('QQ', 64, 64), 0)
    reach('look', 'prlimit64', pid, 7, 0, ctypes.create_string_buffer(16))
    reach('nice', 'setpriority', 0, pid, 10)
    reach('ioprio_set', 'ioprio_set', 1, pid, 3 << 13)
    reach('affinity', 'sched_setaffinity', pid, 8, CPUS)
    reach('scheduler', 'sched_setscheduler', pid, 5, bytes(4))
    reach('parameter', 'sched_setparam', pid, bytes(4))
    reach('attributes', 'sched_setattr', pid, struct.pack('IIQiIQQQ', 48, 5, 0, 19, 0, 0, 0, 0), 0)
reach('advice', 'process_madvise', call('pidfd_open', VICTIM, 0), 0, 0, 20, 0)
reach('nice of a user', 'setpriority', 2, os.getuid() + 1, 10)
reach('nice of a group', 'setpriority', 1, VICTIM, 10)
"),
        policy = |_| distinct(&[]),
        refused = &[refused("prlimit64", 4), refused("setpriority", 4), refused("ioprio_set", 2), refused("sched_setaffinity", 2), refused("sched_setscheduler", 2),
            refused("sched_setparam", 2), refused("sched_setattr", 2), refused("process_madvise", 1)],
        answers = &[("limit", "EPROTO"), ("nice", "EPROTO"), ("affinity", "EPROTO")],
        control = under(|_| with(&LIMITING)).needs(Needs::Root);

    even_with_every_such_call_others_are_not_changed:
        program = Program::Python(r"
CPUS = struct.pack('Q', 1)
# The victim alone: outside it does work.
attempt('limit', call, 'prlimit64', VICTIM, 7, struct.pack('QQ', 64, 64), 0)
attempt('nice', call, 'setpriority', 0, VICTIM, 10)
attempt('nice of its group', call, 'setpriority', 1, VICTIM, 11)
attempt('affinity', call, 'sched_setaffinity', VICTIM, 8, CPUS)
attempt('scheduler', call, 'sched_setscheduler', VICTIM, 3, bytes(4))
attempt('input and output', call, 'ioprio_set', 1, VICTIM, 3 << 13)
"),
        policy = |_| python_with_limiting(),
        refused = &[refused("prlimit64", 1).sharing(), refused("setpriority", 2).sharing()],
        control = OUTSIDE.gains(&["limit", "nice", "affinity", "input and output"]);

    no_odd_number_of_a_process_or_signal_reaches_another:
        program = Program::Python(r"
# SIGURG, which does nothing unless it is asked for.
URG = 23
for name, pid in (('process', VICTIM), ('group', -VICTIM), ('embedder', EMBEDDER), ('group of the embedder', -os.getpgid(EMBEDDER) or 2**31 - 1),
                  ('init', 1), ('high bits', VICTIM | 1 << 32), ('high bits of a group', -VICTIM & 0xffffffff | 0xdead << 32)):
    attempt('kill ' + name, call, 'kill', pid, URG)
for name, group, thread in (('one', VICTIM, VICTIM), ('other', os.getpid(), VICTIM), ('negative', -1, VICTIM)):
    attempt('tgkill ' + name, call, 'tgkill', group, thread, URG)
attempt('tkill', call, 'tkill', VICTIM, URG)
for thread in range(1, 24): attempt('thread of the embedder', call, 'tgkill', EMBEDDER, EMBEDDER + thread, URG)
for number in (0, 64, 65, -1, 2**31 - 1): attempt(f'signal {number}', call, 'kill', VICTIM, number)
attempt('least', call, 'kill', -2**31, URG)
"),
        policy = patient,
        answers = &[("kill process", "EPERM"), ("kill group", "EPERM"), ("tgkill one", "EPERM"), ("tkill", "EPERM")],
        control = OUTSIDE.gains(&["kill process", "kill group", "tgkill one", "tkill", "signal 0"]);

    forged_signals_reach_nobody:
        program = Program::Python(r"
def info(code): return struct.pack('iii', 23, 0, code) + struct.pack('4xii', EMBEDDER, 0) + bytes(104)
for name, code in (('queue', -1), ('timer', -2), ('message', -3), ('thread', -6), ('kernel', 0x80), ('user', 0), ('least', -2**31)):
    attempt(f'{name} to a process', call, 'rt_sigqueueinfo', VICTIM, 23, info(code))
    attempt(f'{name} to a thread', call, 'rt_tgsigqueueinfo', VICTIM, VICTIM, 23, info(code))
    attempt(f'{name} to the embedder', call, 'rt_sigqueueinfo', EMBEDDER, 23, info(code))
pidfd = call('pidfd_open', VICTIM, 0)
attempt('by a descriptor', call, 'pidfd_send_signal', pidfd, 23, 0, 0)
attempt('by a descriptor, forged', call, 'pidfd_send_signal', pidfd, 23, info(-1), 0)
attempt('to a group by a descriptor', call, 'pidfd_send_signal', pidfd, 23, 0, 4)
attempt('by a directory', lambda: call('pidfd_send_signal', os.open(f'/proc/{VICTIM}', os.O_RDONLY | os.O_DIRECTORY), 23, 0, 0))
"),
        policy = |scene| patient(scene).read("/proc"),
        control = OUTSIDE.gains(&["queue to a process", "queue to a thread", "by a descriptor", "by a directory"]);

    a_descriptor_of_a_process_opens_none_of_its_namespaces:
        program = Program::Python(r"
# PIDFD_GET_..._NAMESPACE of Linux 6.11, and its other commands; NS_GET_USERNS and NS_GET_PARENT of a namespace.
victim = call('pidfd_open', VICTIM, 0)
for command in range(1, 11): attempt(f'namespace {command}', call, 'ioctl', victim, 0xff00 + command, 0)
attempt('facts', call, 'ioctl', victim, 0xc050ff0b, ctypes.create_string_buffer(80))
own = os.open('/proc/self/ns/uts', os.O_RDONLY)
attempt('owner', call, 'ioctl', own, 0xb701, 0)
attempt('parent', call, 'ioctl', own, 0xb702, 0)
attempt('waited for', lambda: call('waitid', 3, victim, 0, 4 | 1, 0))
"),
        refused = &[refused("ioctl", 13)],
        answers = &[("namespace 1", "EPERM"), ("owner", "EPERM"), ("waited for", "ECHILD")],
        control = OUTSIDE.gains(&["owner"]);

    timers_and_deaths_signal_nobody_else:
        program = Program::Python(r"
def timer(notify, thread):
    # struct sigevent: value, signal, notify, thread.
    event = struct.pack('QiiI', 0, 9, notify, thread) + bytes(44)
    call('timer_create', 1, event, ctypes.create_string_buffer(8))
attempt('a thread of another', timer, 4, VICTIM)
attempt('a thread of the embedder', timer, 4, EMBEDDER)
attempt('a thread of one made up', timer, 4, 2**31 - 1)
attempt('death of the parent', lambda: call('prctl', 1, 9))
attempt('reaper of others', lambda: call('prctl', 36, 1))
attempt('tracer', lambda: call('prctl', 0x59616d61, VICTIM) and False)
def sibling():
    made = call('clone', 0x8000 | 17, 0, 0, 0, 0)
    if made == 0: os._exit(0)
attempt('child of the embedder', in_child, sibling)
"),
        refused = &[refused("prctl", 3), refused("clone", 1)],
        answers = &[("a thread of another", "EINVAL"), ("death of the parent", "EPERM"), ("reaper of others", "EPERM"), ("child of the embedder", "EPERM")],
        control = OUTSIDE.gains(&["death of the parent", "reaper of others", "child of the embedder"]);
}

fn python_with_limiting() -> Policy {
    crate::support::python().syscalls(|calls| calls.allow(LIMITING))
}
