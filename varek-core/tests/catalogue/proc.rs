//! What /proc, /sys and /dev show and change.

use varek_core::Policy;

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, under};
use crate::scene::{Scene, native, python};

/// With everything that could be named for reading.
fn showing(scene: &Scene) -> Policy {
    python(scene).read("/proc").read("/sys")
}

attacks! {
    Family::Proc;

    nothing_of_another_process_is_shown_even_where_proc_is_granted:
        program = Program::Python(r"
import glob
for pid in (VICTIM, EMBEDDER):
    base = f'/proc/{pid}/'
    for name in ('environ', 'mem', 'maps', 'smaps', 'numa_maps', 'auxv', 'pagemap', 'syscall', 'stack', 'io', 'map_files',
                 'fd', 'fdinfo', 'ns', 'root', 'cwd', 'exe', 'task'):
        path = base + name
        def look(path=path):
            if name in ('map_files', 'fdinfo'): return bool(os.listdir(path))
            # Which numbers are open the kernel shows to everybody of the same uid, once /proc is granted.
            if name == 'fd': return os.readlink(path + '/0')
            if name in ('root', 'cwd', 'exe'): return os.readlink(path)
            if name == 'ns': return os.readlink(path + '/mnt')
            if name == 'task': return read(f'{path}/{pid}/environ')
            if name == 'mem': return open(path, 'rb')
            return read(path)
        attempt(('victim ' if pid == VICTIM else 'embedder ') + name, look)
    attempt('through the root', read, base + 'root' + SECRET)
    attempt('through the directory', os.listdir, base + 'cwd/')
    attempt('through a descriptor', read, base + 'fd/0')
"),
        policy = showing,
        control = OUTSIDE.gains(&["victim environ", "victim maps", "victim fd", "victim exe", "victim ns", "through the root"]);

    nothing_of_another_process_is_changed_by_its_files:
        program = Program::Python(r"
for pid in (VICTIM, EMBEDDER, os.getppid() or EMBEDDER):
    for name in ('oom_score_adj', 'comm', 'clear_refs', 'coredump_filter', 'timerslack_ns', 'autogroup', 'sched', 'mem', 'uid_map',
                 'gid_map', 'setgroups', 'loginuid', 'attr/current', 'make-it-fail'):
        path = f'/proc/{pid}/{name}'
        if name not in ('attr/current', 'make-it-fail') or os.path.exists(path):
            attempt(name, write, path)
"),
        policy = showing,
        control = OUTSIDE.gains(&["oom_score_adj", "coredump_filter"]);

    the_kernels_settings_and_switches_are_written_by_nobody:
        program = Program::Python(r"
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/kernel/randomize_va_space', '/proc/sys/vm/drop_caches',
             '/proc/sys/fs/protected_symlinks', '/proc/sys/kernel/sysrq', '/proc/sysrq-trigger', '/proc/sys/fs/binfmt_misc/register',
             '/proc/sys/net/ipv4/ip_forward', '/proc/sys/kernel/ns_last_pid', '/proc/mtrr', '/proc/irq/default_smp_affinity',
             '/sys/power/state', '/sys/kernel/uevent_helper', '/sys/kernel/mm/ksm/run', '/sys/module/kernel/parameters/panic',
             '/dev/kmsg', '/dev/mem', '/dev/port', '/dev/cpu_dma_latency', '/dev/rtc0', '/dev/net/tun', '/dev/fuse', '/dev/kvm', '/dev/loop-control', '/dev/mapper/control',
             '/dev/console', '/dev/tty0', '/dev/vcs'):
    attempt(path, write, path)
"),
        policy = showing,
        control = OUTSIDE.gains(&["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/randomize_va_space"]).needs(Needs::Root);

    the_kernels_secrets_are_read_by_nobody:
        program = Program::Python(r"
for path in ('/proc/kallsyms', '/proc/modules', '/proc/kcore', '/proc/kmsg', '/proc/timer_list', '/proc/iomem', '/proc/ioports', '/proc/keys',
             '/proc/slabinfo', '/proc/vmallocinfo', '/proc/pagetypeinfo', '/proc/kpagecount', '/proc/kpageflags', '/proc/cmdline',
             '/proc/version', '/proc/partitions', '/proc/diskstats', '/proc/swaps', '/proc/locks', '/proc/mounts/../1/mountinfo',
             '/proc/loadavg', '/proc/uptime', '/proc/interrupts', '/proc/1/cmdline', '/proc/1/environ', '/proc/sys/kernel/random/boot_id', '/sys/kernel/notes', '/sys/kernel/vmcoreinfo',
             '/sys/kernel/debug/.', '/sys/kernel/tracing/trace', '/sys/fs/bpf/.', '/sys/firmware/acpi/tables/DSDT', '/dev/mem', '/dev/kmsg'):
    attempt(path, read, path)
"),
        control = OUTSIDE.gains(&["/proc/cmdline", "/proc/version", "/proc/loadavg", "/proc/1/cmdline"]);

    the_guests_own_entries_change_nothing_that_holds_it:
        program = Program::Python(r"
for base in ('/proc/self', '/proc/thread-self', f'/proc/{os.getpid()}', f'/proc/self/task/{os.getpid()}'):
    for name in ('mem', 'oom_score_adj', 'oom_adj', 'clear_refs', 'uid_map', 'gid_map', 'projid_map', 'setgroups', 'coredump_filter',
                 'timens_offsets', 'comm', 'sched', 'autogroup', 'timerslack_ns', 'attr/current', 'attr/exec', 'loginuid', 'cwd/../x'):
        if os.path.lexists(f'{base}/{name}'): attempt(name, write, f'{base}/{name}')
"),
        policy = showing,
        control = OUTSIDE.gains(&["mem", "oom_score_adj", "coredump_filter", "comm"]);

    magic_links_lead_to_no_closed_file:
        program = Program::Python(r"
for name, path in (('root', '/proc/self/root' + SECRET), ('directory', '/proc/self/cwd/../../../../..' + SECRET), ('thread', '/proc/thread-self/root' + SECRET),
                   ('task', f'/proc/self/task/{os.getpid()}/root' + SECRET)):
    attempt(name, read, path)
here = os.open('.', os.O_PATH)
attempt('descriptor', read, f'/proc/self/fd/{here}/../../../../..' + SECRET)
attempt('device', read, f'/dev/fd/{here}/../../../../..' + SECRET)
known = os.open(SECRET, os.O_PATH)
attempt('path only', read, f'/proc/self/fd/{known}')
attempt('path only, relative', lambda: os.open(f'{known}', os.O_RDONLY, dir_fd=os.open('/proc/self/fd', os.O_RDONLY)))
os.symlink(f'/proc/self/fd/{known}', 'link')
attempt('link to a link', read, 'link')
os.symlink('/proc/self/root', 'up')
attempt('link to the root', read, 'up' + SECRET)
"),
        answers = &[("root", "EACCES"), ("path only", "EACCES"), ("link to a link", "EACCES")],
        control = under(|scene| scene.reading_all(python(scene))).gains(&["root", "directory", "thread", "task", "descriptor", "path only", "link to a link", "link to the root"]);

    groups_are_neither_left_nor_made_nor_killed:
        program = Program::Python(r"
# Every group of this process, and the ones above them, wherever they are mounted.
groups = set()
for line in open('/proc/self/cgroup'):
    _, controllers, path = line.strip().split(':', 2)
    for name in [controllers.removeprefix('name='), 'unified', ''] + controllers.split(','):
        at = os.path.normpath('/sys/fs/cgroup/' + name + path)
        while at.startswith('/sys/fs/cgroup/'): groups.add(at); at = os.path.dirname(at)
for group in sorted(groups):
    for file in ('cgroup.procs', 'cgroup.threads', 'tasks', 'cgroup.kill', 'cgroup.freeze', 'memory.max', 'memory.limit_in_bytes', 'pids.max', 'release_agent', 'notify_on_release', 'cgroup.event_control'):
        path = f'{group}/{file}'
        if not os.path.exists(path): continue
        attempt(file, write, path)
        def again(path=path):
            fd = os.open(path, os.O_PATH)
            write(f'/proc/self/fd/{fd}')
        attempt(file + ' again', again)
attempt('tried', lambda: len(groups) == 0)
"),
        policy = showing,
        control = OUTSIDE.gains(&["cgroup.procs", "cgroup.procs again"]);

    the_program_that_runs_is_not_replaced_or_written:
        program = Program::C(r#"
static void attack(const char *run) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) { say("link", -errno); return; }
    path[length] = 0;
    say("written", tried(open("/proc/self/exe", O_WRONLY)));
    int known = open("/proc/self/exe", O_PATH);
    char again[64];
    snprintf(again, sizeof again, "/proc/self/fd/%d", known);
    say("written by a descriptor", tried(open(again, O_RDWR)));
    say("truncated", tried(truncate(path, 0)));
    char moved[4200];
    snprintf(moved, sizeof moved, "%s.moved", path);
    say("linked", tried(linkat(AT_FDCWD, "/proc/self/exe", AT_FDCWD, "copy", AT_SYMLINK_FOLLOW)));
    snprintf(again, sizeof again, "/proc/%ld/exe", number_of("EMBEDDER"));
    say("the embedder's", tried(open(again, O_WRONLY)) == -ETXTBSY ? 0 : -EACCES);
    say("renamed", tried(rename(path, moved)));
    say("removed", tried(unlink(path)));
}
"#),
        policy = native,
        control = OUTSIDE.gains(&["renamed"]);
}
