//! Files that are not the guest's.

use rustix::fs::{Mode, OFlags};
use varek_core::{DenialBudget, Policy};

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, python};
use crate::support::seconds;

fn reading(scene: &Scene) -> Policy {
    scene.reading(python(scene))
}

fn reading_all(scene: &Scene) -> Policy {
    scene.reading_all(python(scene))
}

/// An overlay has them from Linux 6.3 on.
fn lacks_nameless() -> Option<&'static str> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let made = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    made.is_err()
        .then_some("files without a name cannot be made for temporary files here")
}

fn writing(scene: &Scene) -> Policy {
    scene.writing(python(scene))
}

attacks! {
    Family::Filesystem;

    a_link_that_changes_while_it_is_opened_opens_nothing_else:
        program = Program::Python(r"
import random, threading
os.mkdir('good'); os.close(os.open('good/secret', os.O_WRONLY | os.O_CREAT))
stop = False
sys.setswitchinterval(1e-4)
def swap():
    while not stop:
        # Not in step with the other thread.
        target = random.choice((SCENE, 'good'))
        os.symlink(target, 'next'); os.rename('next', 'now')
        os.symlink(target + '/secret', 'next'); os.rename('next', 'file')
os.symlink('good', 'now'); os.symlink('good/secret', 'file')
thread = threading.Thread(target=swap); thread.start()
def race(what):
    changes, last = 0, None
    # Until it was seen to change often.
    while changes < 50:
        now = os.readlink('now')
        changes, last = changes + (now != last), now
        try:
            if what(): return True
        except OSError: pass
    raise PermissionError(errno.EACCES, '')
def through_a_descriptor():
    at = os.open('now', os.O_PATH)
    try: fd = os.open('secret', os.O_RDONLY, dir_fd=at)
    finally: os.close(at)
    try: return os.read(fd, 9)
    finally: os.close(fd)
attempt('directory', race, lambda: read('now/secret'))
attempt('file', race, lambda: read('file'))
attempt('descriptor', race, through_a_descriptor)
stop = True
thread.join()
"),
        policy = |scene| python(scene).wall_clock(seconds(60)),
        control = under(|scene| reading_all(scene).wall_clock(seconds(60)));

    a_directory_that_moves_leads_to_no_closed_file:
        program = Program::Python(r"
os.makedirs('a/b/c/d')
deep = os.open('a/b/c/d', os.O_RDONLY)
# Between two directories, which Landlock allows from ABI 2 on.
try: os.rename('a/b/c/d', 'd')
except OSError: pass
up = '../' * 40
attempt('moved', lambda: os.open(up + SECRET[1:], os.O_RDONLY, dir_fd=deep))
os.fchdir(deep)
attempt('moved and entered', read, up + SECRET[1:])
attempt('entered', lambda: (os.chdir(SCENE), read('secret')))
attempt('listed', lambda: (os.chdir(SCENE), os.listdir('.')))
attempt('resolved beneath the root', lambda: call('openat2', os.open('/', os.O_PATH), SECRET[1:].encode(), struct.pack('QQQ', 0, 0, 0x10), 24))
attempt('path of a path', lambda: os.open('secret', os.O_RDONLY, dir_fd=os.open(SCENE, os.O_PATH | os.O_DIRECTORY)))
"),
        refused = &[refused("openat2", 0).sharing()],
        answers = &[("moved", "EACCES"), ("moved and entered", "EACCES"), ("entered", "EACCES"), ("listed", "EACCES"), ("path of a path", "EACCES")],
        control = under(reading_all).gains(&["moved", "moved and entered", "entered", "listed", "path of a path"]);

    files_change_places_with_none_that_are_only_read:
        program = Program::Python(r"
os.close(os.open('own', os.O_WRONLY | os.O_CREAT)); os.mkdir('directory')
file = GRANTED + '/file'
rename = lambda a, b, flags: call('renameat2', -100, a.encode(), -100, b.encode(), flags)
attempt('exchange', rename, 'own', file, 2)
if os.path.exists('own'): attempt('exchange back', rename, 'own', file, 2)
attempt('whiteout', rename, file, 'taken', 4)
attempt('put', os.rename, 'own', GRANTED + '/put')
attempt('taken', os.rename, file, 'taken')
attempt('directory', os.rename, 'directory', GRANTED + '/directory')
attempt('linked in', os.link, 'taken' if os.path.exists('taken') else file, GRANTED + '/linked')
attempt('linked out', os.link, GRANTED + '/linked' if os.path.exists(GRANTED + '/linked') else file, 'linked')
attempt('link made', os.symlink, '/etc/passwd', GRANTED + '/link')
attempt('fifo made', os.mkfifo, GRANTED + '/fifo')
attempt('directory made', os.mkdir, GRANTED + '/made')
attempt('nameless', lambda: os.open(GRANTED, os.O_TMPFILE | os.O_RDWR, 0o600))
attempt('removed', os.unlink, GRANTED + '/linked' if os.path.exists(GRANTED + '/linked') else file)
"),
        policy = reading,
        control = OUTSIDE.gains(&["exchange", "exchange back", "taken", "directory", "linked in", "linked out", "link made", "fifo made", "directory made", "removed"]);

    a_nameless_file_gets_no_name_where_none_may_be_made:
        program = Program::Python(r"
fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)
def name(path): return call('linkat', -100, f'/proc/self/fd/{fd}'.encode(), -100, path.encode(), 0x400)
attempt('granted for reading', name, GRANTED + '/named')
attempt('not granted', name, SCENE + '/named')
attempt('by the descriptor', call, 'linkat', fd, b'', -100, (GRANTED + '/named2').encode(), 0x1000)
known = os.open(GRANTED + '/file', os.O_RDONLY)
def own(path): return call('linkat', -100, f'/proc/self/fd/{known}'.encode(), -100, path.encode(), 0x400)
attempt('of a file that is read', own, 'file')
"),
        policy = reading,
        lacks = lacks_nameless,
        control = OUTSIDE.gains(&["granted for reading", "not granted", "of a file that is read"]);

    a_file_that_is_only_read_is_changed_by_no_call:
        program = Program::Python(r"
import mmap
path = GRANTED + '/file'
try: fd = os.open(path, os.O_RDWR)
except OSError: fd = os.open(path, os.O_RDONLY)
own = os.open('own', os.O_RDWR | os.O_CREAT); os.write(own, b'own')
attempt('write', os.pwrite, fd, b'lost', 0)
attempt('truncate', os.truncate, path, 3)
attempt('truncate by descriptor', os.ftruncate, fd, 3)
attempt('truncate by link', os.truncate, f'/proc/self/fd/{fd}', 3)
attempt('open to truncate', lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
attempt('open to create', lambda: os.open(path, os.O_WRONLY | os.O_CREAT))
attempt('open to append', lambda: os.open(path, os.O_WRONLY | os.O_APPEND))
attempt('open again', lambda: os.open(f'/proc/self/fd/{fd}', os.O_RDWR))
attempt('open by path', lambda: os.open(f'/proc/self/fd/{os.open(path, os.O_PATH)}', os.O_WRONLY))
attempt('allocate', call, 'fallocate', fd, 0, 0, 4096)
attempt('punch', call, 'fallocate', fd, 3, 0, 4096)
attempt('copy', call, 'copy_file_range', own, 0, fd, 0, 3, 0)
attempt('send', lambda: os.sendfile(fd, own, 0, 3))
def spliced():
    r, w = os.pipe(); os.write(w, b'x'); return os.splice(r, fd, 1)
attempt('splice', spliced)
attempt('map', mmap.mmap, fd, 4096 if os.fstat(fd).st_size >= 4096 else os.fstat(fd).st_size or 1, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
def upgraded():
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
    if libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3) != 0: raise OSError(ctypes.get_errno(), '')
attempt('map and upgrade', upgraded)
"),
        policy = reading,
        refused = &[refused("truncate", 0).sharing()],
        control = OUTSIDE.gains(&["write", "truncate", "truncate by descriptor", "open again", "open by path", "allocate", "send", "splice", "map", "map and upgrade"]);

    devices_and_sockets_are_made_nowhere:
        program = Program::Python(r"
import stat
attempt('memory', os.mknod, 'memory', stat.S_IFCHR | 0o600, os.makedev(1, 1))
attempt('null', os.mknod, 'null', stat.S_IFCHR | 0o600, os.makedev(1, 3))
attempt('disk', os.mknod, 'disk', stat.S_IFBLK | 0o600, os.makedev(8, 0))
attempt('socket', os.mknod, 'socket', stat.S_IFSOCK | 0o600)
attempt('by the old call', call, 'mknod' if 'mknod' in NR else 'mknodat', *([b'old', stat.S_IFCHR | 0o600, 0x103] if 'mknod' in NR else [-100, b'old', stat.S_IFCHR | 0o600, 0x103]))
"),
        refused = &[refused("mknodat", 4), refused("mknod", 1)],
        answers = &[("memory", "EPERM"), ("null", "EPERM"), ("socket", "EPERM")],
        lacks = || cfg!(not(target_arch = "x86_64")).then_some("there is one call alone"),
        control = OUTSIDE.gains(&["null", "socket", "by the old call"]).needs(Needs::Root);

    a_file_is_opened_by_no_handle:
        program = Program::Python(r"
handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
identity = ctypes.create_string_buffer(8)
# A tmpfs, as a rule: an overlay has no handles.
place = '/dev/shm' if os.path.isdir('/dev/shm') else '/dev'
attempt('name', call, 'name_to_handle_at', -100, place.encode(), handle, identity, 0)
attempt('open', call, 'open_by_handle_at', -100, handle, os.O_RDONLY)
"),
        policy = |scene| python(scene).syscalls(|calls| calls.spare(["open_by_handle_at"])),
        refused = &[refused("name_to_handle_at", 1), refused("open_by_handle_at", 1)],
        answers = &[("name", "EPERM"), ("open", "EPERM")],
        control = OUTSIDE.gains(&["name"]);

    leases_and_notices_of_files_hold_up_nobody:
        program = Program::Python(r"
import fcntl
path = GRANTED + '/file'
for name, file in (('granted', path), ('own', 'own')):
    fd = os.open(file, os.O_RDONLY | os.O_CREAT if file == 'own' else os.O_RDONLY)
    attempt('lease of ' + name, fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
attempt('delegation', fcntl.fcntl, fd, 1040, struct.pack('IHH', 0, 0, 0))
attempt('notice', fcntl.fcntl, os.open(GRANTED, os.O_RDONLY), fcntl.F_NOTIFY, 0x8000003f)
attempt('signal', fcntl.fcntl, fd, 10, 9)
attempt('hint', fcntl.fcntl, fd, 1036, struct.pack('Q', 1))
"),
        policy = reading,
        refused = &[refused("fcntl", 6)],
        answers = &[("lease of granted", "EPERM"), ("notice", "EPERM")],
        control = OUTSIDE.gains(&["notice", "signal"]);

    what_belongs_to_the_embedder_keeps_its_mode_owner_and_times:
        program = Program::Python(r"
path = GRANTED + '/file'
fd, known = os.open(path, os.O_RDONLY), os.open(path, os.O_PATH)
for name, target in (('path', path), ('link', f'/proc/self/fd/{fd}'), ('known', f'/proc/self/fd/{known}'), ('directory', GRANTED)):
    attempt('mode by ' + name, os.chmod, target, 0o777)
    attempt('owner by ' + name, os.chown, target, os.getuid(), os.getgid())
    attempt('times by ' + name, os.utime, target, (1, 1))
attempt('attribute', os.setxattr, SECRET, 'user.varek', b'x')
attempt('mode by descriptor', os.fchmod, fd, 0o777)
attempt('mode by flags', lambda: call('fchmodat2', known, b'', 0o777, 0x1000))
attempt('times by descriptor', os.utime, fd, (1, 1))
attempt('times by flags', lambda: call('utimensat', known, b'', struct.pack('QQQQ', 1, 0, 1, 0), 0x1000))
attempt('flags', call, 'ioctl', fd, 0x40086602, struct.pack('Q', 0x40))
"),
        policy = reading,
        refused = &[refused("ioctl", 1), refused("fchmodat", 0), refused("chmod", 0).sharing()],
        control = OUTSIDE.gains(&["mode by path", "times by path", "mode by link", "mode by descriptor", "times by descriptor"]);

    a_link_that_changes_while_a_mode_is_changed_changes_nothing_else:
        program = Program::Python(r"
# The embedder may change modes and times in the guest's place: what it finds must be the guest's.
import random, threading
os.mkdir('good'); os.close(os.open('good/secret', os.O_WRONLY | os.O_CREAT, 0o600))
UP = '../' * 40 + SCENE[1:]
stop = False
sys.setswitchinterval(1e-4)
def swap():
    while not stop:
        target = random.choice((SCENE, UP, 'good', 'good'))
        os.symlink(target, 'next'); os.rename('next', 'now')
        os.symlink(target + '/secret', 'next'); os.rename('next', 'file')
os.symlink('good', 'now'); os.symlink('good/secret', 'file')
thread = threading.Thread(target=swap); thread.start()
def race(what, changed):
    changes, last = 0, None
    while changes < 50:
        now = os.readlink('now')
        changes, last = changes + (now != last), now
        try: what()
        except OSError: pass
        if changed(os.stat(SECRET)): return True
    raise PermissionError(errno.EACCES, '')
mode = lambda number: lambda found: found.st_mode & 0o777 == number
time = lambda number: lambda found: int(found.st_mtime) == number
def beneath(path, what):
    at = os.open(path, os.O_PATH)
    try: what(at)
    finally: os.close(at)
attempt('mode by directory', race, lambda: os.chmod('now/secret', 0o701), mode(0o701))
attempt('mode by link', race, lambda: os.chmod('file', 0o702), mode(0o702))
attempt('mode beneath a descriptor', race, lambda: beneath('now', lambda at: os.chmod('secret', 0o703, dir_fd=at)), mode(0o703))
attempt('mode by descriptor', race, lambda: beneath('file', lambda at: os.chmod(f'/proc/self/fd/{at}', 0o704)), mode(0o704))
attempt('times by directory', race, lambda: os.utime('now/secret', (11, 11)), time(11))
attempt('times by link', race, lambda: os.utime('file', (12, 12)), time(12))
attempt('times beneath a descriptor', race, lambda: beneath('now', lambda at: os.utime('secret', (13, 13), dir_fd=at)), time(13))
attempt('of a link itself', lambda: (os.utime('now', (14, 14), follow_symlinks=False), int(os.stat(SCENE).st_mtime) == 14)[1])
attempt('attribute', race, lambda: os.setxattr('now/secret', 'user.varek', b'x'), lambda found: 'user.varek' in os.listxattr(SECRET))
stop = True
thread.join()
"),
        // Each attempt at what is not the guest's is a denied call.
        policy = |scene| python(scene).wall_clock(seconds(60)).denials(DenialBudget::new(1_000_000, 1_000_000)),
        control = OUTSIDE.gains(&["mode by directory", "mode by link", "mode beneath a descriptor", "times by directory", "times by link", "times beneath a descriptor"]);

    what_is_moved_out_of_scratch_or_named_there_twice_is_not_changed_for_others:
        program = Program::Python(r"
own = os.open('own', os.O_RDWR | os.O_CREAT, 0o600)
os.mkdir('d'); os.close(os.open('d/f', os.O_WRONLY | os.O_CREAT, 0o600))
held = os.open('d', os.O_RDONLY)
file = GRANTED + '/file'
mode = lambda: os.stat(file).st_mode & 0o777
def changed(what):
    try: what()
    except OSError: pass
    if mode() == 0o701: return True
    raise PermissionError(errno.EACCES, '')
attempt('moved in', lambda: changed(lambda: (os.rename(file, 'moved'), os.chmod('moved', 0o701), os.rename('moved', file))))
attempt('linked in', lambda: changed(lambda: (os.link(file, 'linked'), os.chmod('linked', 0o701))))
attempt('exchanged', lambda: changed(lambda: (call('renameat2', -100, b'own', -100, file.encode(), 2), os.chmod('own', 0o701), call('renameat2', -100, b'own', -100, file.encode(), 2))))
attempt('up from a descriptor', lambda: changed(lambda: os.chmod('../' * 40 + file[1:], 0o701, dir_fd=held)))
os.rename('d', 'e'); os.symlink(GRANTED, 'd')
attempt('through a link', lambda: changed(lambda: os.chmod('d/file', 0o701)))
attempt('a name of a descriptor', lambda: changed(lambda: os.chmod(f'/proc/self/fd/{os.open(file, os.O_PATH)}', 0o701)))
attempt('a name of the root', lambda: changed(lambda: os.chmod('/proc/self/root' + file, 0o701)))
attempt('a name of the directory', lambda: changed(lambda: os.chmod('/proc/self/cwd/d/file', 0o701)))
attempt('by a child', lambda: changed(lambda: in_child(os.chmod, file, 0o701)))
"),
        policy = reading,
        control = OUTSIDE.gains(&["moved in", "linked in", "exchanged", "up from a descriptor", "through a link", "a name of a descriptor", "by a child"]);

    locks_on_files_that_are_read_end_with_the_run:
        program = Program::Python(r"
import fcntl
path = GRANTED + '/file'
fd = os.open(path, os.O_RDONLY)
attempt('for writing', fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
attempt('of the file itself', lambda: fcntl.fcntl(fd, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0)))
attempt('to create', lambda: os.open(GRANTED + '/lock', os.O_RDWR | os.O_CREAT))
fcntl.flock(fd, fcntl.LOCK_EX)
if os.fork() == 0: signal.pause()
"),
        policy = reading,
        control = under(writing).gains(&["to create"]);

    a_mode_that_hands_on_rights_is_of_no_use_outside:
        program = Program::Python(r"
fd = os.open('program', os.O_WRONLY | os.O_CREAT, 0o6777); os.close(fd)
attempt('owner', lambda: (os.chown('program', 0, 0), os.stat('program').st_uid == 0 and os.getuid() != 0))
attempt('capability', os.setxattr, 'program', 'security.capability', struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0, 0))
attempt('trusted', os.setxattr, 'program', 'trusted.varek', b'x')
# Where it can be set it is taken back, or the file would stay.
fd = os.open('program', os.O_RDONLY)
attempt('immutable', lambda: [call('ioctl', fd, 0x40086602, struct.pack('Q', flags)) for flags in (0x10, 0)])
attempt('for a group', lambda: os.chown('program', -1, 0) and os.getgid() != 0)
"),
        refused = &[refused("ioctl", 1)],
        control = OUTSIDE.gains(&["capability", "trusted"]).needs(Needs::Root);

    a_tree_of_any_shape_goes_with_the_run:
        program = Program::Python(r"
here = os.open('.', os.O_RDONLY)
made = 0
try:
    for made in range(500):
        os.mkdir('d' * 200); os.chdir('d' * 200)
except OSError: pass
os.fchdir(here)
for n in range(200): os.symlink('/', f'root{n}')
for n in range(50):
    os.mkdir(f'closed{n}', 0); 
    os.close(os.open(f'\xff{n}\n'.encode('latin1'), os.O_WRONLY | os.O_CREAT, 0))
try: held = [os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600) for _ in range(50)]
except OSError: pass
attempt('outside', os.mkdir, GRANTED + '/tree')
if os.fork() == 0: signal.pause()
"),
        // On a disk a tree takes its time.
        policy = |scene| reading(scene).grace(seconds(60)),
        control = under(|scene| writing(scene).grace(seconds(60)));
}
