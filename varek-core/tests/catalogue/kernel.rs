//! The machine itself. No call here has arguments with which it would do anything, so that a hole shows and does no harm;
//! the control is that under a policy with the call the kernel is asked.

use varek_core::Policy;

use crate::attacks;
use crate::entry::{Ends, Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, distinct, with};

const MACHINE: [&str; 14] = [
    "reboot",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "bpf",
    "userfaultfd",
    "ioperm",
    "iopl",
];

const KEYS: [&str; 3] = ["keyctl", "add_key", "request_key"];

const SETTINGS: [&str; 12] = [
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "clock_adjtime",
    "sethostname",
    "setdomainname",
    "syslog",
    "vhangup",
    "personality",
    "sync",
    "syncfs",
    "quotactl_fd",
];

const ODD: [&str; 11] = [
    "memfd_secret",
    "mlockall",
    "munlockall",
    "vmsplice",
    "remap_file_pages",
    "io_setup",
    "process_madvise",
    "process_mrelease",
    "move_pages",
    "migrate_pages",
    "get_robust_list",
];

fn lacks_old_calls() -> Option<&'static str> {
    cfg!(not(target_arch = "x86_64")).then_some("these calls are of x86_64")
}

fn machine(_: &Scene) -> Policy {
    with(&MACHINE)
}

attacks! {
    Family::Kernel;

    asking_for_the_machine_kills:
        program = Program::Python(r"
try: call(ARG, *{'reboot': (0, 0, 0, 0), 'init_module': (0, 0, 0), 'finit_module': (-1, 0, 0), 'delete_module': (0, 0), 'kexec_load': (0, 0, 0, ~0),
                 'kexec_file_load': (-1, -1, 0, 0, ~0), 'ioperm': (0, 0, 0), 'iopl': (99,), 'bpf': (-1, 0, 0), 'userfaultfd': (-1,),
                 'quotactl': (-1, 0, 0, 0)}.get(ARG, (b'/nonexistent/varek',)))
except OSError: pass
"),
        runs = &MACHINE,
        ends = Ends::Forbidden,
        lacks = lacks_old_calls,
        control = under(machine).reached();

    the_machine_is_refused_where_asking_does_not_kill:
        program = Program::Python(r"
for name in ('reboot', 'init_module', 'finit_module', 'delete_module', 'swapon', 'swapoff', 'acct', 'quotactl', 'bpf'):
    reach(name, name, *{'reboot': (0, 0, 0, 0), 'init_module': (0, 0, 0), 'finit_module': (-1, 0, 0), 'delete_module': (0, 0), 'bpf': (-1, 0, 0),
                        'quotactl': (-1, 0, 0, 0)}.get(name, (b'/nonexistent/varek',)))
"),
        policy = |_| distinct(&MACHINE),
        refused = &[refused("reboot", 1), refused("init_module", 1), refused("finit_module", 1), refused("delete_module", 1), refused("swapon", 1),
            refused("swapoff", 1), refused("acct", 1), refused("quotactl", 1), refused("bpf", 1)],
        answers = &[("reboot", "EPROTO"), ("bpf", "EPROTO")],
        control = under(machine);

    the_kernels_keys_kill:
        program = Program::Python(r"
def asked():
    try: call(ARG, *{'keyctl': (0, -3, 0), 'add_key': (b'user', b'varek', b'x', 0, -999), 'request_key': (b'user', b'varek-nothing', 0, 0)}[ARG])
    except OSError as e:
        if e.errno in (errno.EPERM, errno.ENOSYS): raise
attempt(ARG, asked)
"),
        runs = &KEYS,
        ends = Ends::Forbidden,
        control = OUTSIDE.run();

    clocks_and_names_of_the_machine_are_not_set:
        program = Program::Python(r"
reach('settimeofday', 'settimeofday', 0, 0)
reach('clock_settime', 'clock_settime', 0, 0)
reach('adjtimex', 'adjtimex', 0)
reach('clock_adjtime', 'clock_adjtime', 0, 0)
reach('sethostname', 'sethostname', 0, -1)
reach('setdomainname', 'setdomainname', 0, -1)
reach('syslog', 'syslog', 99, 0, 0)
reach('vhangup', 'vhangup')
reach('personality', 'personality', 0x0040000)
reach('layout of read memory', 'personality', 0x0400000)
reach('sync', 'sync')
reach('syncfs', 'syncfs', -1)
reach('quotactl_fd', 'quotactl_fd', -1, -1, 0, 0)
"),
        policy = |_| distinct(&[]),
        refused = &[refused("settimeofday", 1), refused("clock_settime", 1), refused("adjtimex", 1), refused("clock_adjtime", 1), refused("sethostname", 1),
            refused("setdomainname", 1), refused("syslog", 1), refused("vhangup", 1), refused("personality", 2), refused("sync", 1), refused("syncfs", 1), refused("quotactl_fd", 1)],
        answers = &[("settimeofday", "EPROTO"), ("sethostname", "EPROTO"), ("personality", "EPROTO")],
        control = under(|_| with(&SETTINGS)).gains(&["settimeofday", "clock_settime", "sethostname", "syslog", "personality", "sync"]);

    calls_that_few_know_are_refused:
        program = Program::Python(r"
reach('memfd_secret', 'memfd_secret', -1)
reach('mlockall', 'mlockall', 0)
reach('munlockall', 'munlockall')
reach('vmsplice', 'vmsplice', -1, 0, 0, 0)
reach('remap_file_pages', 'remap_file_pages', 0, 0, 0, 0, 0)
reach('io_setup', 'io_setup', 0, 0)
reach('process_madvise', 'process_madvise', -1, 0, 0, 0, 0)
reach('process_mrelease', 'process_mrelease', -1, 0)
reach('move_pages', 'move_pages', VICTIM, 0, 0, 0, 0, 0)
reach('migrate_pages', 'migrate_pages', VICTIM, 0, 0, 0)
reach('get_robust_list', 'get_robust_list', VICTIM, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))
"),
        policy = |_| distinct(&[]),
        refused = &[refused("memfd_secret", 1), refused("mlockall", 1), refused("munlockall", 1), refused("vmsplice", 1), refused("remap_file_pages", 1),
            refused("io_setup", 1), refused("process_madvise", 1), refused("process_mrelease", 1), refused("move_pages", 1), refused("migrate_pages", 1),
            refused("get_robust_list", 1)],
        control = under(|_| with(&ODD)).needs(Needs::Root);

    ports_segments_and_old_calls_are_not_had:
        program = Program::Python(r"
reach('modify_ldt', 'modify_ldt', 99, 0, 0)
reach('ioperm', 'ioperm', 0, 0, 0)
reach('iopl', 'iopl', 99)
reach('uselib', 'uselib', b'/nonexistent/varek')
reach('ustat', 'ustat', 0, 0)
reach('sysfs', 'sysfs', 99, 0, 0)
reach('lookup_dcookie', 'lookup_dcookie', 0, 0, 0)
reach('set_thread_area', 'set_thread_area', 0)
"),
        policy = |_| distinct(&["ioperm", "iopl"]),
        refused = &[refused("modify_ldt", 1), refused("ioperm", 1), refused("iopl", 1), refused("uselib", 1), refused("ustat", 1), refused("sysfs", 1),
            refused("lookup_dcookie", 1), refused("set_thread_area", 1)],
        lacks = lacks_old_calls,
        control = under(|_| with(&["modify_ldt", "ioperm", "iopl", "uselib", "ustat", "sysfs", "lookup_dcookie", "set_thread_area"]));
}
