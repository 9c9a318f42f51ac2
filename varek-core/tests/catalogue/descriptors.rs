//! What the embedder has open, and what it hands over.

use varek_core::Policy;

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, Stdin, refused, under};
use crate::scene::{Scene, native, python, shell};

fn wide_ioctl(scene: &Scene) -> Policy {
    python(scene).syscalls(|calls| calls.allow(["ioctl"]))
}

attacks! {
    Family::Descriptors;

    what_the_embedder_leaks_is_not_open:
        program = Program::Python(r"
def found():
    for fd in range(3, 4096):
        try:
            if os.pread(fd, 64, 0).startswith(b'the secret'): return True
        except OSError: pass
    raise FileNotFoundError(errno.ENOENT, '')
attempt('read', found)
def linked():
    for fd in range(3, 4096):
        try:
            if os.readlink(f'/proc/self/fd/{fd}') == SECRET: return True
        except OSError: pass
    raise FileNotFoundError(errno.ENOENT, '')
attempt('seen', linked)
own = os.open('.', os.O_RDONLY)
attempt('lowest', lambda: own > 3)
"),
        answers = &[("read", "ENOENT"), ("seen", "ENOENT")],
        control = OUTSIDE.gains(&["read", "seen"]);

    what_programs_of_a_shell_inherit_is_what_the_shell_has:
        program = Program::Shell(r"
python3 - <<'END'
import os
won = False
for fd in range(3, 4096):
    try: won = won or os.pread(fd, 64, 0).startswith(b'the secret')
    except OSError: pass
print('read: ' + ('won' if won else 'nothing'))
END
"),
        policy = shell,
        control = OUTSIDE;

    a_file_that_is_given_for_reading_is_only_read:
        program = Program::Python(r"
import fcntl, mmap
attempt('write', os.write, 0, b'lost')
attempt('again', lambda: os.open('/proc/self/fd/0', os.O_RDWR))
attempt('by the device', lambda: os.open('/dev/stdin', os.O_WRONLY))
attempt('truncate', os.ftruncate, 0, 0)
attempt('truncate by link', lambda: os.truncate('/proc/self/fd/0', 0))
attempt('mode', os.fchmod, 0, 0o777)
attempt('times', os.utime, 0, (1, 1))
attempt('map', mmap.mmap, 0, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
attempt('link', call, 'linkat', -100, b'/proc/self/fd/0', -100, b'link', 0x400)
attempt('flags', call, 'ioctl', 0, 0x40086602, struct.pack('Q', 0x40))
attempt('lease', fcntl.fcntl, 0, fcntl.F_SETLEASE, fcntl.F_RDLCK)
attempt('owner', fcntl.fcntl, 0, 8, VICTIM)
attempt('neighbour', lambda: os.open(os.path.dirname(os.readlink('/proc/self/fd/0')) + '/../secret', os.O_RDONLY))
"),
        stdin = Stdin::File,
        refused = &[refused("ioctl", 1), refused("fcntl", 2)],
        control = OUTSIDE.gains(&["again", "truncate by link", "mode", "times", "link", "neighbour"]);

    a_directory_as_input_leads_nowhere:
        program = Program::C(r#"
static void attack(const char *run) {
    char up[4200];
    snprintf(up, sizeof up, "../../../../../../../..%s", getenv("SECRET"));
    say("list", tried(open("/proc/self/fd/0", O_RDONLY | O_DIRECTORY)));
    say("relative", tried(openat(0, "secret", O_RDONLY)));
    say("up", tried(openat(0, up, O_RDONLY)));
    say("by link", tried(open("/proc/self/fd/0/secret", O_RDONLY)));
    say("make", tried(mkdirat(0, "made", 0700)));
    say("move", tried(renameat(0, "secret", 0, "taken")));
    fchdir(0);
    say("enter", tried(open("secret", O_RDONLY)));
}
"#),
        stdin = Stdin::Directory,
        answers = &[("relative", "EACCES"), ("up", "EACCES"), ("enter", "EACCES"), ("make", "EACCES"), ("by link", "EACCES")],
        policy = native,
        control = under(|scene| scene.reading_all(native(scene))).gains(&["list", "relative", "up", "enter", "by link"]);

    a_terminal_is_not_typed_into_taken_over_or_changed:
        program = Program::Python(r"
import fcntl, termios
attempt('type', fcntl.ioctl, 0, termios.TIOCSTI, b'x')
attempt('type on a console', fcntl.ioctl, 0, 0x541c, b'\x02')
attempt('take over', fcntl.ioctl, 0, termios.TIOCSCTTY, 1)
attempt('exclusive', fcntl.ioctl, 0, termios.TIOCEXCL, 0)
attempt('discipline', fcntl.ioctl, 0, termios.TIOCSETD, struct.pack('i', 0))
attempt('size', fcntl.ioctl, 0, termios.TIOCSWINSZ, struct.pack('HHHH', 1, 1, 0, 0))
attempt('modes', fcntl.ioctl, 0, termios.TCSETS, fcntl.ioctl(0, termios.TCGETS, bytes(64)))
attempt('hang up', fcntl.ioctl, 0, 0x5437, 0)
attempt('group', fcntl.ioctl, 0, termios.TIOCSPGRP, struct.pack('i', os.getpgrp()))
attempt('packets', fcntl.ioctl, 0, termios.TIOCPKT, struct.pack('i', 1))
attempt('owner', fcntl.ioctl, 0, 0x8901, struct.pack('i', VICTIM))
"),
        stdin = Stdin::Terminal,
        refused = &[refused("ioctl", 10)],
        answers = &[("type", "EPERM"), ("take over", "EPERM"), ("modes", "EPERM"), ("size", "EPERM"), ("hang up", "EPERM")],
        control = OUTSIDE.gains(&["exclusive", "size"]);

    typing_into_a_terminal_is_refused_whatever_a_policy_allows:
        program = Program::Python(r"
import fcntl, termios
attempt('type', fcntl.ioctl, 0, termios.TIOCSTI, b'x')
attempt('type on a console', fcntl.ioctl, 0, 0x541c, b'\x02')
def reached(request):
    try: fcntl.ioctl(0, request, b'x' * 8)
    except OSError as e:
        if e.errno == errno.EPERM: raise
attempt('high bits', lambda: call('ioctl', 0, termios.TIOCSTI | 1 << 40, b'x'))
size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
"),
        stdin = Stdin::Terminal,
        policy = wide_ioctl,
        refused = &[refused("ioctl", 3)],
        answers = &[("type", "EPERM"), ("type on a console", "EPERM"), ("high bits", "EPERM")],
        lacks = || {
            // dev.tty.legacy_tiocsti of Linux 6.2: whether anybody may type.
            let legacy = std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti");
            (!crate::support::root() || legacy.is_ok_and(|text| text.trim() == "0") && !crate::support::root())
                .then_some("the control: typing takes root")
        },
        control = OUTSIDE.gains(&["type"]).needs(Needs::Root);

    pipes_of_the_embedders_are_no_way_back:
        program = Program::Python(r"
import fcntl
attempt('read of output', os.read, 1, 1)
def again(fd, flags):
    os.set_blocking(fd, True)
    return os.open(f'/proc/self/fd/{fd}', flags | os.O_NONBLOCK)
attempt('owner', fcntl.fcntl, 1, 8, EMBEDDER)
attempt('signal', fcntl.fcntl, 1, 10, 9)
attempt('owner by ioctl', fcntl.ioctl, 2, 0x8901, struct.pack('i', EMBEDDER))
attempt('watch', call, 'ioctl', 1, 0x5760, 0)
attempt('input', os.write, 0, b'x')
# What may be changed loses nothing: the answers still come.
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 16)
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
"),
        refused = &[refused("fcntl", 2), refused("ioctl", 2)],
        answers = &[("read of output", "EBADF"), ("owner", "EPERM"), ("signal", "EPERM"), ("owner by ioctl", "EPERM"), ("input", "EBADF")],
        control = OUTSIDE.gains(&["owner", "signal"]);
}
