//! Modes, times and attributes of files: a guest changes those of its own files, and of no other. With a uid of its own (a
//! root embedder) the kernel sees to both. With the embedder's uid (any other) the supervisor makes the calls in the guest's
//! place, and every test here must come to the same.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use support::{
    assert_clean, assert_gone, assert_killed, not_run, open_directory, python, root, run, seconds,
    text, times, unconfined,
};
use varek_core::{Answer, Cause, Command, Outcome, Policy, Rule, Sandbox, SyscallGroup};

/// Whether guests have the embedder's uid, and what is tested is the supervisor; says so where they have not.
fn shared_uid(test: &str) -> bool {
    if root() {
        not_run(
            test,
            "guests have the embedder's uid only where that is not root",
        );
    }
    !root()
}

/// The calls that were denied, without those that libc is to do without.
fn denied(outcome: &Outcome) -> Vec<&str> {
    let denials = outcome.denials.iter();
    let named = denials.filter(|(_, call)| call.first.answer != Answer::Probe);
    named.map(|(name, _)| name).collect()
}

/// Helpers of the guests. `call` gives the result or the name of the error.
const PRELUDE: &str = r"
import ctypes, errno, mmap, os, platform, shutil, stat, struct, sys, tarfile, tempfile, threading
NR = {
    'x86_64': dict(chmod=90, fchmod=91, fchmodat=268, fchownat=260, utime=132, utimes=235, futimesat=261, utimensat=280,
                   setxattr=188, fsetxattr=190, removexattr=197),
    'aarch64': dict(fchmod=52, fchmodat=53, fchownat=54, utimensat=88, setxattr=5, fsetxattr=7, removexattr=14),
}[platform.machine()]
NR.update(fchmodat2=452)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
CWD, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
def call(name, *arguments):
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    got = libc.syscall(ctypes.c_long(NR[name]), *arguments)
    return errno.errorcode[ctypes.get_errno()] if got == -1 else got
def attempt(what, *arguments, **more):
    try: return what(*arguments, **more)
    except OSError as error: return errno.errorcode[error.errno]
def make(path, text='x'):
    with open(path, 'w') as file: file.write(text)
    os.chmod(path, 0o644)
    return path
def mode(path): return oct(stat.S_IMODE(os.lstat(path).st_mode))
def when(path):
    found = os.lstat(path)
    return found.st_atime_ns, found.st_mtime_ns
";

fn guest(body: &str) -> String {
    format!("{PRELUDE}\n{body}")
}

/// The guest prints this in the sandbox and without one, and meets no boundary.
#[track_caller]
fn prints(sandbox: &Sandbox, body: &str, expected: &str) {
    let source = guest(body);
    let outcome = run(sandbox, &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), expected, "{outcome}");
    assert_eq!(unconfined(&source), expected);
}

// ---- one's own files ----

#[test]
fn modes_of_own_files_are_changed_however_they_are_named() {
    prints(
        &sandbox!(python()),
        r"
make('file'); os.mkdir('dir'); make('dir/inner'); os.symlink('../file', 'dir/link'); os.symlink('dir', 'way')
os.chmod('file', 0o600); print(mode('file'))
os.chmod(os.path.abspath('file'), 0o601); print(mode('file'))
os.chmod(b'//'.join([os.getcwd().encode(), b'./dir/../file']), 0o602); print(mode('file'))
os.chmod('dir/link', 0o603); print(mode('file'))
os.chmod('way/inner', 0o604); print(mode('dir/inner'))
with open('file') as file: os.fchmod(file.fileno(), 0o605)
print(mode('file'))
at = os.open('dir', os.O_RDONLY); os.chmod('inner', 0o606, dir_fd=at); print(mode('dir/inner'))
os.chmod('../file', 0o607, dir_fd=at); print(mode('file'))
os.chdir('dir'); os.chmod('inner', 0o610); os.chmod('../file', 0o611); print(mode('inner'), mode('../file')); os.chdir('..')
place = os.open('file', os.O_PATH); os.chmod(f'/proc/self/fd/{place}', 0o612); print(mode('file'))
os.chmod(f'/dev/fd/{place}', 0o613); print(mode('file'))
os.chmod('dir/', 0o700); os.chmod('.', 0o500); print(mode('dir'), mode('.')); os.chmod(os.getcwd(), 0o700)
os.chmod('dir', 0o1777); print(mode('dir'))
os.mkfifo('fifo'); os.chmod('fifo', 0o614); print(mode('fifo'))
os.chmod('file', 0); os.chmod('file', 0o644); print(mode('file'))
os.link('file', 'name'); os.chmod('name', 0o640); print(mode('file'))
",
        "0o600\n0o601\n0o602\n0o603\n0o604\n0o605\n0o606\n0o607\n0o610 0o611\n0o612\n0o613\n0o700 0o500\n0o1777\n\
         0o614\n0o644\n0o640\n",
    );
}

#[test]
fn a_link_itself_and_what_it_leads_to_are_two_files() {
    prints(
        &sandbox!(python()),
        r"
make('file'); os.utime('file', (5, 5)); os.symlink('file', 'link'); os.symlink('nowhere', 'broken')
os.utime('link', (1, 2), follow_symlinks=False); os.utime('broken', (3, 4), follow_symlinks=False)
print(when('link'), when('broken'), when('file'))
os.utime('link', (6, 7)); print(when('link')[1], when('file'))
print(attempt(os.utime, 'broken', (1, 1)))
# libc asks for the mode of what is no link.
libc.fchmodat.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_int]
def nofollow(path, bits): return libc.fchmodat(CWD, path, bits, NOFOLLOW) and errno.errorcode[ctypes.get_errno()]
print(nofollow(b'file', 0o600), mode('file'), nofollow(b'link', 0o601) == errno.errorcode[errno.EOPNOTSUPP], mode('file'))
",
        "(1000000000, 2000000000) (3000000000, 4000000000) (5000000000, 5000000000)\n\
         2000000000 (6000000000, 7000000000)\nENOENT\n0 0o600 True 0o600\n",
    );
}

#[test]
fn times_of_own_files_are_changed_by_every_call_that_sets_them() {
    prints(
        &sandbox!(python()),
        r"
make('file'); os.mkdir('dir'); make('dir/inner')
os.utime('file', ns=(1_000_000_001, 2_000_000_002)); print(when('file'))
with open('file') as file: os.utime(file.fileno(), (3, 4))
print(when('file'))
at = os.open('dir', os.O_RDONLY); os.utime('inner', (5, 6), dir_fd=at); print(when('dir/inner'))
os.utime('dir', (7, 8)); print(when('dir'))
path, now = b'file\0', 0x3fffffff
before = when('file')
os.utime('file'); print(when('file') > before)
omit = struct.pack('qqqq', 9, 9, 0, 0x3ffffffe)
call('utimensat', CWD, path, omit, 0); print(when('file')[0], when('file')[1] > before[1])
print(call('utimensat', CWD, path, struct.pack('qqqq', 0, 0x3ffffffe, 0, 0x3ffffffe), 0))
place = os.open('file', os.O_PATH)
print(call('utimensat', place, b'\0', struct.pack('qqqq', 1, 0, 2, 0), EMPTY), when('file'))
if 'utimes' in NR:
    seconds, micros = struct.pack('qq', 11, 12), struct.pack('qqqq', 13, 1, 14, 999_999)
    call('utime', path, seconds); print(when('file'))
    call('utimes', path, micros); print(when('file'))
    call('utime', path, seconds); call('futimesat', CWD, path, micros); print(when('file'))
    call('utime', path, seconds); call('futimesat', os.open('file', os.O_RDONLY), 0, micros); print(when('file'))
else:
    print('(11000000000, 12000000000)\n' + '(13000001000, 14999999000)\n' * 3, end='')
",
        "(1000000001, 2000000002)\n(3000000000, 4000000000)\n(5000000000, 6000000000)\n(7000000000, 8000000000)\n\
         True\n9000000009 True\n0\n0 (1000000000, 2000000000)\n(11000000000, 12000000000)\n(13000001000, 14999999000)\n\
         (13000001000, 14999999000)\n(13000001000, 14999999000)\n",
    );
}

#[test]
fn attributes_of_own_files_are_set_and_removed() {
    let body = r"
make('file')
print(attempt(os.setxattr, 'file', 'user.a', b'value', os.XATTR_CREATE), attempt(os.setxattr, 'file', 'user.a', b'', os.XATTR_CREATE))
with open('file') as file: os.setxattr(file.fileno(), 'user.b', b'')
print(sorted(os.listxattr('file')), os.getxattr('file', 'user.a'), os.getxattr('file', 'user.b'))
os.symlink('file', 'link'); print(attempt(os.setxattr, 'link', 'user.c', b'', follow_symlinks=False))
os.removexattr('link', 'user.a'); print(os.listxattr('file'), attempt(os.removexattr, 'file', 'user.a'))
";
    let test = "attributes_of_own_files_are_set_and_removed";
    let supported = "make('file'); print(attempt(os.setxattr, 'file', 'user.a', b''))";
    let sandbox = sandbox!(python());
    for free in [
        unconfined(&guest(supported)),
        text(&run(&sandbox, &guest(supported))),
    ] {
        if free != "None\n" {
            return not_run(
                test,
                "a file system here has no attributes of the user's own",
            );
        }
    }
    prints(
        &sandbox,
        body,
        "None EEXIST\n['user.a', 'user.b'] b'value' b''\nEPERM\n['user.b'] ENODATA\n",
    );
}

#[test]
fn temporary_files_have_their_modes_changed_with_and_without_a_name() {
    prints(
        &sandbox!(python()),
        r"
def bits(fd): return oct(stat.S_IMODE(os.fstat(fd).st_mode))
with tempfile.NamedTemporaryFile() as named: os.fchmod(named.fileno(), 0o644); print(bits(named.fileno()))
with tempfile.TemporaryFile() as unnamed:
    os.fchmod(unnamed.fileno(), 0o640); os.utime(unnamed.fileno(), (1, 1)); print(bits(unnamed.fileno()))
os.mkdir('dir')
with open(make('dir/file (deleted)')) as file:
    os.fchmod(file.fileno(), 0o604); print(bits(file.fileno()))
    os.unlink(file.name); os.fchmod(file.fileno(), 0o600); print(bits(file.fileno()))
    make('dir/file (deleted)'); os.fchmod(file.fileno(), 0o601); print(bits(file.fileno()), mode('dir/file (deleted)'))
",
        "0o644\n0o640\n0o604\n0o600\n0o601 0o644\n",
    );
}

#[test]
fn what_cannot_be_done_fails_as_it_does_in_the_kernel() {
    let body = r"
make('file'); os.mkdir('closed'); make('closed/inner'); os.symlink('loop', 'loop')
print(*[attempt(os.chmod, path, 0o600) for path in ('none', 'none/inner', 'file/inner', 'file/', 'loop', '', 'n' * 256)])
print(*[attempt(os.utime, path) for path in ('none', 'file/', 'a/' * 2048)])
os.chmod('closed', 0o600); print(attempt(os.chmod, 'closed/inner', 0o600)); os.chmod('closed', 0o700)
place = os.open('file', os.O_PATH); file = os.open('file', os.O_RDONLY)
print(attempt(os.fchmod, place, 0o600), attempt(os.fchmod, 99, 0o600), call('utimensat', place, 0, 0, 0))
print(call('fchmodat', 99, b'file\0', 0o600), call('fchmodat', file, b'file\0', 0o600), attempt(os.chmod, '/proc/self/fd/99', 0))
print(call('fchmodat', CWD, 0, 0o600), call('fchmodat', CWD, 8, 0o600), call('utimensat', CWD, b'file\0', 8, 0))
print(call('utimensat', CWD, b'file\0', 0, 0x8000), call('utimensat', CWD, b'file\0', struct.pack('qqqq', 0, -1, 0, 0), 0))
print(call('utimensat', CWD, b'\0', 0, 0), call('fchownat', CWD, b'file\0', 0, 0, 0), call('fchownat', CWD, b'file\0', -1, -1, 0))
print(call('fchownat', CWD, b'file\0', os.getuid(), os.getgid(), 0))
pages = mmap.mmap(-1, 2 * mmap.PAGESIZE); start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc.munmap(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE); end = mmap.PAGESIZE
pages[end - 5:end] = b'file\0'; print(call('fchmodat', CWD, start + end - 5, 0o600), mode('file'))
pages[end - 5:end] = b'files'; print(call('fchmodat', CWD, start + end - 5, 0o600), flush=True)
os._exit(0)
";
    // What may be denied everywhere ignores the modes of directories.
    let expected = "ENOENT ENOENT ENOTDIR ENOTDIR ELOOP ENOENT ENAMETOOLONG\nENOENT ENOTDIR ENAMETOOLONG\nEACCES\n\
                    EBADF EBADF EBADF\nEBADF ENOTDIR ENOENT\nEFAULT EFAULT EFAULT\nEINVAL EINVAL\nENOENT EPERM 0\n0\n0 0o600\nEFAULT\n";
    let outcome = run(&sandbox!(python()), &guest(body));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), expected, "{outcome}");
    if !root() {
        assert_eq!(unconfined(&guest(body)), expected);
    }
}

// ---- programs ----

#[test]
fn shutil_copies_files_and_trees_with_their_modes_and_times() {
    prints(
        &sandbox!(python()),
        r"
os.makedirs('tree/inner'); make('tree/a'); make('tree/inner/b'); os.symlink('a', 'tree/link'); os.chmod('tree/a', 0o750)
os.utime('tree/a', (1, 2)); os.utime('tree/inner', (3, 4))
print(shutil.copy('tree/a', 'copy'), mode('copy')); print(shutil.copy2('tree/a', 'copy2'), mode('copy2'), when('copy2')[1])
shutil.copytree('tree', 'other', symlinks=True)
print(sorted(os.listdir('other')), mode('other/a'), when('other/inner')[1], os.readlink('other/link'))
shutil.copymode('copy', 'tree/inner/b'); print(mode('tree/inner/b')); shutil.copystat('tree/a', 'copy'); print(when('copy')[1])
with tarfile.open('archive.tar', 'w') as archive:
    info = tarfile.TarInfo('a'); info.mode, info.mtime = 0o750, 2; archive.addfile(info)
shutil.unpack_archive('archive.tar', 'unpacked')
print(mode('unpacked/a'), when('unpacked/a')[1])
",
        "copy 0o750\ncopy2 0o750 2000000000\n['a', 'inner', 'link'] 0o750 4000000000 a\n0o750\n2000000000\n0o750 2000000000\n",
    );
}

#[test]
fn a_virtual_environment_can_be_made() {
    prints(
        &sandbox!(python()),
        "import venv; venv.EnvBuilder(symlinks=True).create('env'); print(os.path.exists('env/bin/activate'), mode('env/bin/activate'))",
        "True 0o644\n",
    );
}

#[test]
fn programs_that_copy_unpack_and_stamp_files_succeed() {
    let cases = [
        (
            "cp",
            "cp -p a b && cp -a dir other && cp -a link newlink && stat -c '%a %Y' b other/in newlink",
            "640 1\n604 2\n777 3\n",
        ),
        (
            "tar",
            "tar --numeric-owner --exclude=./t.tar -cf t.tar . && mkdir out && tar -xpf t.tar -C out && stat -c '%a %Y' out/a out/dir/in out/link",
            "640 1\n604 2\n777 3\n",
        ),
        (
            "touch",
            "touch new && touch -d @5 a && touch -h -d @6 link && stat -c %Y a link && touch -r a new && stat -c %Y new",
            "5\n6\n5\n",
        ),
        (
            "install",
            "install -m 711 -p a i && stat -c '%a %Y' i",
            "711 1\n",
        ),
        (
            "gzip",
            "gzip a && stat -c '%a %Y' a.gz && gzip -d a.gz && stat -c '%a %Y' a",
            "640 1\n640 1\n",
        ),
        (
            "chmod",
            "chmod -R u+x,go-rwx dir && stat -c %a dir/in",
            "700\n",
        ),
        (
            "mv",
            "mv a moved && sed -i s/x/y/ moved && stat -c %a moved && cat moved",
            "640\ny",
        ),
        (
            "git",
            "git config --global user.name n && git config --global user.email e && git init -q repo && cd repo && cp ../a . && \
                 git add a && git commit -qm c && git log --format=%s && git clone -q . ../clone && ls ../clone",
            "c\na\n",
        ),
    ];
    let policy = Policy::shell().wall_clock(seconds(30)).grace(seconds(2));
    let sandbox = sandbox!(policy);
    let prepare = "set -e; printf x > a; mkdir dir; printf x > dir/in; ln -s a link; chmod 640 a; chmod 604 dir/in\n\
                   touch -d @1 a; touch -d @2 dir/in; touch -h -d @3 link\n";
    for (program, script, expected) in cases {
        let places = Policy::shell().search_path;
        if !places.iter().any(|place| place.join(program).exists()) {
            let name = "programs_that_copy_unpack_and_stamp_files_succeed";
            not_run(name, &format!("there is no {program} for guests"));
            continue;
        }
        let command = Command::new("sh").args(["-c", &format!("{prepare}{script}")]);
        let outcome = sandbox.run(command).unwrap();
        assert_eq!(text(&outcome), expected, "{program}: {outcome}");
        assert_eq!(outcome.stderr.to_text(), "", "{program}: {outcome}");
        assert_clean(&outcome);
    }
}

#[test]
fn a_directory_of_the_embedders_is_as_good_as_one_of_the_runs() {
    let base = open_directory();
    let directory = base.path().join("given");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outside = base.path().join("outside");
    std::fs::write(&outside, "outside").unwrap();
    std::os::unix::fs::symlink("../outside", directory.join("link")).unwrap();
    let before = shown(&outside);
    let mut policy = python();
    policy.best_effort.insert(varek_core::Layer::Scratch);
    let source = guest(
        "make('file'); os.chmod('file', 0o750); os.utime(os.path.abspath('file'), (1, 2)); print(mode('file'), when('file')[1])\n\
         print(attempt(os.chmod, 'link', 0o777))",
    );
    let command = Command::python(source).scratch(&directory);
    let outcome = sandbox!(policy).run(command).unwrap();
    assert_eq!(
        text(&outcome),
        "0o750 2000000000\nEPERM\n",
        "{outcome}{}",
        outcome.stderr.to_text()
    );
    assert_gone(&outcome);
    assert_eq!(outcome.violation().is_some(), !root(), "{outcome}");
    assert_eq!(shown(&outside), before);
}

// ---- anybody else's ----

type Shown = (u32, i64, i64, i64, u64, Vec<String>);

fn shown(path: &Path) -> Shown {
    let data = std::fs::symlink_metadata(path).unwrap();
    let mut names = Vec::new();
    let mut buffer = vec![0_u8; 4096];
    if let Ok(length) = rustix::fs::llistxattr(path, &mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]);
        names.extend(text.split_terminator('\0').map(str::to_owned));
    }
    (
        data.mode(),
        data.mtime(),
        data.ctime(),
        data.ctime_nsec(),
        data.nlink(),
        names,
    )
}

/// A file of the embedder's, in a directory that guests may read.
struct Outside {
    directory: tempfile::TempDir,
    file: PathBuf,
}

impl Outside {
    fn new() -> Self {
        let directory = open_directory();
        let file = directory.path().join("outside");
        std::fs::write(&file, "content").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::open(&file)
            .unwrap()
            .set_modified(old)
            .unwrap();
        Self { directory, file }
    }

    fn attack(&self, body: &str) -> String {
        guest(&format!(
            "D, P = '{}', '{}'\nSCRATCH = os.getcwd()\n{}\n{body}\nprint('end')",
            self.directory.path().display(),
            self.file.display(),
            r"
def all(path, **more):
    attempt(os.chmod, path, 0o777, **more); attempt(os.utime, path, (1, 1), **more)
    if not more: attempt(os.setxattr, path, 'user.varek', b'x'); attempt(os.chown, path, os.getuid(), os.getgid())
def descriptor(fd):
    attempt(os.fchmod, fd, 0o777); attempt(os.utime, fd, (1, 1)); attempt(os.setxattr, fd, 'user.varek', b'x')
    for way in ('/proc/self/fd/', '/proc/thread-self/fd/', '/dev/fd/', f'/proc/{os.getpid()}/fd/'): all(f'{way}{fd}')
    call('fchmodat2', fd, b'\0', 0o777, EMPTY); call('utimensat', fd, b'\0', 0, EMPTY); call('utimensat', fd, 0, 0, 0)
"
        ))
    }
}

/// Each changes the file where nothing holds it back.
const WAYS: [(&str, &str); 16] = [
    ("its path", "all(P)"),
    (
        "a relative path",
        "all(os.path.relpath(P)); all('../' * 20 + P[1:])",
    ),
    (
        "a path through scratch",
        "all(f'{SCRATCH}/../{os.path.relpath(P, os.path.dirname(SCRATCH))}')",
    ),
    ("a link", "os.symlink(P, 'link'); all('link')"),
    (
        "a relative link",
        "os.symlink(os.path.relpath(P), 'link'); all(f'{SCRATCH}/link')",
    ),
    (
        "a link to its directory",
        "os.symlink(D, 'way'); all('way/outside')",
    ),
    (
        "a link of /proc",
        "os.symlink('/proc/self/root', 'root'); all('root' + P)",
    ),
    (
        "a link to a descriptor",
        "fd = os.open(P, os.O_RDONLY); os.symlink(f'/proc/self/fd/{fd}', 'link'); all('link')",
    ),
    ("a descriptor", "descriptor(os.open(P, os.O_RDONLY))"),
    ("a place", "descriptor(os.open(P, os.O_PATH))"),
    (
        "a descriptor of its directory",
        "all('outside', dir_fd=os.open(D, os.O_RDONLY))",
    ),
    (
        "a place of its directory",
        "all('outside', dir_fd=os.open(D, os.O_PATH))",
    ),
    ("its directory", "os.chdir(D); all('outside')"),
    (
        "above scratch",
        "attempt(os.chdir, '..'); all(os.path.relpath(P, os.path.dirname(SCRATCH)))",
    ),
    (
        "another name",
        "attempt(os.link, P, 'name'); all('name') if os.path.exists('name') else all(P)",
    ),
    (
        "a descriptor of another thread",
        "t = threading.Thread(target=lambda: descriptor(os.open(P, os.O_RDONLY))); t.start(); t.join()",
    ),
];

#[test]
fn no_way_leads_to_a_file_outside_of_scratch() {
    let outside = Outside::new();
    let before = shown(&outside.file);
    let sandbox = sandbox!(python().read(outside.directory.path()));
    for (way, body) in WAYS {
        let outcome = run(&sandbox, &outside.attack(body));
        let stderr = outcome.stderr.to_text();
        assert_eq!(text(&outcome), "end\n", "{way}: {outcome}{stderr}");
        assert_gone(&outcome);
        assert_eq!(shown(&outside.file), before, "{way}");
        if !root() {
            assert!(!denied(&outcome).is_empty(), "{way}: {outcome}");
        }
    }
}

#[test]
fn outside_of_a_sandbox_each_of_these_ways_leads_to_it() {
    for (way, body) in WAYS {
        let outside = Outside::new();
        let before = shown(&outside.file);
        unconfined(&outside.attack(body));
        let after = shown(&outside.file);
        assert_eq!(after.0 & 0o777, 0o777, "{way}");
        assert!(after.1 != before.1, "{way}: {before:?}");
    }
}

#[test]
fn what_the_embedder_removed_is_still_not_the_guests() {
    let outside = Outside::new();
    let held = std::fs::File::open(&outside.file).unwrap();
    let sandbox = sandbox!(python().read(outside.directory.path()));
    let body = "fd = os.open(P, os.O_RDONLY); print('open', flush=True); sys.stdin.readline(); descriptor(fd)";
    let mut command = Command::python(outside.attack(body));
    command = command
        .stdin(varek_core::Input::piped())
        .stdout(varek_core::Output::piped());
    let mut child = sandbox.spawn(command).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut line = [0; 5];
    std::io::Read::read_exact(&mut stdout, &mut line).unwrap();
    std::fs::remove_file(&outside.file).unwrap();
    let before = held.metadata().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    let outcome = child.wait().unwrap();
    assert_gone(&outcome);
    assert_eq!(outcome.exit_code(), Some(0), "{outcome}");
    let after = held.metadata().unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
}

/// One thread turns a path in memory, links and a descriptor into ones that lead outside and back, all the time, and the
/// other makes the calls, until each of them has met both.
const SWAPPING: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static char path[4096], paths[2][4096], whole[4096], wholes[2][4096];
static volatile int going = 1;
static int files[2], number = 100;
static const char *links[2], *ways[2];
static void aim(const char *to, const char *name) {
    unlink("new");
    if (symlink(to, "new") || rename("new", name)) _exit(3);
}
static void *swap(void *arg) {
    while (going)
        for (int i = 1; i >= 0; i--) {
            memcpy(path, paths[i], sizeof path);
            memcpy(whole, wholes[i], sizeof whole);
            dup2(files[i], number);
            aim(links[i], "link");
            aim(ways[i], "way");
        }
    return 0;
}
int main(int argc, char **argv) {
    char *directory = argv[1], *file = argv[2];
    mkdir("real", 0700);
    int real = open("real/outside", O_CREAT | O_RDWR, 0600);
    files[0] = open("own", O_CREAT | O_RDWR, 0600), files[1] = open(file, O_RDONLY);
    if (real < 0 || files[0] < 0 || files[1] < 0) return 4;
    strcpy(paths[0], "own"), strcpy(paths[1], file), strcpy(wholes[1], file);
    strcat(getcwd(wholes[0], 4000), "/own");
    /* Up to the root, and down. */
    char up[2][4096] = {"../../../../../../../../../../../..", "../../../../../../../../../../../.."};
    strcat(up[0], file), strcat(up[1], directory);
    links[0] = "own", links[1] = up[0], ways[0] = "real", ways[1] = up[1];
    aim("own", "link"), aim("real", "way"), dup2(files[0], number);
    pthread_t thread;
    if (pthread_create(&thread, 0, swap, 0)) return 5;
    struct timespec times[2] = {{1, 0}, {1, 0}};
    enum { CALLS = 7 };
    long done[CALLS] = {0}, refused[CALLS] = {0}, least = atol(argv[3]);
    for (long n = 0, all = 0; n < least || !all; n++) {
        long got[CALLS] = {
            syscall(SYS_fchmodat, AT_FDCWD, path, 0640),
            syscall(SYS_utimensat, AT_FDCWD, path, times, 0),
            syscall(SYS_fchmodat, AT_FDCWD, whole, 0640),
            syscall(SYS_fchmod, number, 0640),
            syscall(SYS_fchmodat, AT_FDCWD, "link", 0640),
            syscall(SYS_fchmodat, AT_FDCWD, "way/outside", 0640),
            syscall(SYS_utimensat, AT_FDCWD, "way/outside", times, 0),
        };
        all = 1;
        for (int i = 0; i < CALLS; i++) {
            done[i] += got[i] == 0, refused[i] += got[i] != 0;
            if (!done[i] || (!refused[i] && argc == 4)) all = 0;
        }
    }
    going = 0;
    pthread_join(thread, 0);
    puts("met");
}
"#;

#[test]
fn a_path_that_is_swapped_while_it_is_looked_at_never_leads_outside() {
    let test = "a_path_that_is_swapped_while_it_is_looked_at_never_leads_outside";
    let outside = Outside::new();
    let place = open_directory();
    let Some(program) = support::compiled(test, place.path(), "swap", SWAPPING, &["-pthread"])
    else {
        return;
    };
    let before = shown(&outside.file);
    let mut policy = Policy::native().wall_clock(seconds(60));
    policy = policy.read(outside.directory.path()).execute(place.path());
    policy.denials.total = u64::MAX;
    policy.denials.per_second = u64::MAX;
    let arguments = [
        outside.directory.path().display().to_string(),
        outside.file.display().to_string(),
        times(4000).to_string(),
    ];
    let command = Command::new(&program).args(&arguments);
    let outcome = sandbox!(policy).run(command).unwrap();
    assert_eq!(
        text(&outcome),
        "met\n",
        "{outcome}{}",
        outcome.stderr.to_text()
    );
    assert_gone(&outcome);
    assert_eq!(shown(&outside.file), before);
    assert_eq!(denied(&outcome).is_empty(), root(), "{outcome}");
    // The control: without a sandbox it is met, and nothing is refused.
    let home = open_directory();
    let mut free = std::process::Command::new(&program);
    let free = free.args(&arguments).arg("free").current_dir(home.path());
    assert!(free.output().unwrap().status.success());
    assert_eq!(shown(&outside.file).0 & 0o777, 0o640);
}

#[test]
fn a_guest_of_the_embedders_uid_makes_no_program_that_runs_as_the_embedder() {
    let test = "a_guest_of_the_embedders_uid_makes_no_program_that_runs_as_the_embedder";
    if !shared_uid(test) {
        return;
    }
    let body = r"
make('file'); os.mkdir('dir')
for bits in (0o4755, 0o2755, 0o6777):
    with open('file') as file: print(attempt(os.fchmod, file.fileno(), bits), attempt(os.chmod, 'file', bits), attempt(os.chmod, 'dir', bits))
print(mode('file'), attempt(os.chmod, 'file', 0o1755), mode('file'))
";
    let outcome = run(&sandbox!(python()), &guest(body));
    let refused = "EPERM EPERM EPERM\n".repeat(3);
    assert_eq!(
        text(&outcome),
        format!("{refused}0o644 None 0o1755\n"),
        "{outcome}"
    );
    assert_eq!(denied(&outcome), ["chmod", "fchmod"], "{outcome}");
    let free = unconfined(&guest(body));
    assert_eq!(free.lines().next(), Some("None None None"));
}

#[test]
fn a_guest_of_the_embedders_uid_opens_its_scratch_directory_to_nobody_else() {
    let test = "a_guest_of_the_embedders_uid_opens_its_scratch_directory_to_nobody_else";
    if !shared_uid(test) {
        return;
    }
    let body = "print(mode('.'))\nos.chmod('.', 0o1755); print(mode('.'))\n\
                os.fchmod(os.open('.', os.O_RDONLY), 0o577); print(mode('.'))\n\
                os.chmod('.', 0); print(mode(os.getcwd()))";
    let outcome = run(&sandbox!(python()), &guest(body));
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "0o700\n0o1700\n0o500\n0o500\n");
    assert!(unconfined(&guest(body)).ends_with("0o577\n0o0\n"));
}

#[test]
fn a_process_of_the_embedders_uid_that_nobody_can_look_into_changes_nothing() {
    let test = "a_process_of_the_embedders_uid_that_nobody_can_look_into_changes_nothing";
    if !shared_uid(test) {
        return;
    }
    // PR_SET_DUMPABLE
    let policy = python().syscalls(|calls| calls.allow_when(Rule::on("prctl").int(0, 4)));
    let body = r"
make('file'); file = os.open('file', os.O_RDONLY)
def tried(): print(attempt(os.chmod, 'file', 0o600), attempt(os.fchmod, file, 0o601), attempt(os.utime, file), mode('file'))
tried(); libc.prctl(4, 0, 0, 0, 0); tried()
";
    let outcome = run(&sandbox!(policy), &guest(body));
    assert_eq!(
        text(&outcome),
        "None None None 0o601\nEPERM EPERM EPERM 0o601\n",
        "{outcome}"
    );
    assert_eq!(denied(&outcome), ["chmod", "fchmod", "utimensat"]);
    assert_gone(&outcome);
}

#[test]
fn what_the_policy_denies_is_not_performed() {
    let policy = python().syscalls(|calls| calls.deny(SyscallGroup::FileMetadata.calls()));
    let source = "import os\nopen('a', 'w').close()\n\
                  try: os.chmod('a', 0o600)\nexcept PermissionError: print('refused')\n";
    let outcome = run(&sandbox!(policy), source);
    assert_eq!(text(&outcome), "refused\n", "{outcome}");
    assert_eq!(denied(&outcome), ["chmod"], "{outcome}");
}

// ---- many of them ----

#[test]
fn a_storm_of_changes_is_no_denial_and_other_runs_go_on() {
    let sandbox = sandbox!(python().wall_clock(seconds(60)));
    let storm = guest(
        &r"
make('file')
def work():
    for n in range(TIMES): os.chmod('file', 0o600 + n % 64)
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
print('begun', flush=True)
for t in threads: t.join()
"
        .replace("TIMES", &times(2000).to_string()),
    );
    let mut child = sandbox.spawn(Command::python(storm)).unwrap();
    for n in 0..3 {
        let outcome = run(
            &sandbox,
            &guest(&format!(
                "make('file'); os.chmod('file', 0o60{n}); print(mode('file'))"
            )),
        );
        assert_clean(&outcome);
        assert_eq!(text(&outcome), format!("0o60{n}\n"));
    }
    let outcome = child.wait().unwrap();
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "begun\n");
}

#[test]
fn a_run_that_ends_amid_changes_leaves_nothing() {
    let sandbox = sandbox!(python().wall_clock(std::time::Duration::from_millis(700)));
    let source = guest(
        r"
make('file')
def work():
    while True: os.chmod('file', 0o600); os.utime('file')
for _ in range(8): threading.Thread(target=work).start()
",
    );
    for _ in 0..3 {
        let outcome = run(&sandbox, &source);
        assert_killed(&outcome, &Cause::WallClock);
        assert!(outcome.denials.iter().next().is_none(), "{outcome}");
    }
    // By itself, while its threads are in calls.
    let source = source + "\nimport time; time.sleep(0.05); os._exit(0)\n";
    let outcome = run(&sandbox!(python()), &source);
    assert_clean(&outcome);
}
