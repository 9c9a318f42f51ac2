//! Python's standard library, under the preset `python`.

use std::path::Path;

use varek_core::{Command, Policy, Sandbox};

use crate::support::{bounded, denied, run, text};
use crate::{assert_honest, patient, program_or_return, sandbox, support};

/// Runs source that prints this, without a denied call but for these.
#[track_caller]
fn prints(sandbox: &Sandbox, source: &str, expected: &str, denied: &[&str]) {
    let outcome = run(sandbox, source);
    assert_honest(&outcome, expected, denied);
    assert_eq!(outcome.stderr.to_text(), "");
}

#[test]
fn every_module_of_the_standard_library_can_be_imported() {
    let sandbox = sandbox!(patient(Policy::python()));
    // One opens a browser, one prints a poem, the rest are programs or for other systems. What the distribution left out
    // is not this library's to bring.
    prints(
        &sandbox,
        r"
import importlib, sys, warnings
warnings.simplefilter('ignore')
skipped = {'antigravity', 'this', '__main__', 'idlelib', 'msilib', 'nt', 'ntpath', 'winreg', 'winsound', '_winapi', '_scproxy',
           'msvcrt'}
names = sys.stdlib_module_names - skipped if hasattr(sys, 'stdlib_module_names') else {'ssl', 'sqlite3', 'ctypes'}
failed, done = [], 0
for name in sorted(names):
    try: importlib.import_module(name); done += 1
    except ModuleNotFoundError: pass
    except BaseException as e: failed.append((name, repr(e)))
print(done > 200 or len(names) < 10, failed)
",
        "True []\n",
        &[],
    );
}

#[test]
fn a_write_ahead_log_is_shared_by_threads_and_children() {
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import os, sqlite3, threading
def connect():
    db = sqlite3.connect('d.db', timeout=60); db.execute('pragma journal_mode=wal'); return db
connect().execute('create table t (n)')
def work(n):
    db = connect()
    for _ in range(10):
        with db: db.execute('insert into t values (?)', (n,))
    db.close()
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for t in threads: t.start()
for t in threads: t.join()
children = []
for n in range(3, 5):
    child = os.fork()
    if child == 0: work(n); os._exit(0)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
db = connect()
print(db.execute('select count(*), sum(n) from t').fetchone(), db.execute('pragma integrity_check').fetchone()[0])
copy = sqlite3.connect('copy.db'); db.backup(copy); print(copy.execute('select count(*) from t').fetchone()[0])
print(db.execute('pragma wal_checkpoint(truncate)').fetchone()[0], os.path.getsize('d.db-wal'))
",
        "[0, 0]\n(50, 100) ok\n50\n0 0\n",
        &[],
    );
}

#[test]
fn files_mappings_and_temporary_files_work() {
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import fcntl, glob, io, lzma, mmap, os, pathlib, shutil, tarfile, tempfile, zipfile
with tempfile.TemporaryFile() as f, tempfile.SpooledTemporaryFile(4) as s, tempfile.TemporaryDirectory() as d:
    f.write(b'x'); s.write(b'12345'); s.rollover()
    pathlib.Path(d, 'in').write_text('x'); print(os.listdir(d))
handle, name = tempfile.mkstemp(); os.close(handle); os.unlink(name)
shared = mmap.mmap(-1, 8192); shared[:3] = b'abc'
if os.fork() == 0: shared[0:1] = b'A'; os._exit(0)
os.wait(); print(shared[:3])
with open('m', 'w+b') as f:
    f.truncate(8192)
    with mmap.mmap(f.fileno(), 0) as m: m[5:6] = b'z'; m.flush(); m.madvise(mmap.MADV_DONTNEED); m.resize(16384)
    f.seek(5); print(f.read(1), os.path.getsize('m'))
with open('l', 'w') as f: fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_UN); os.posix_fallocate(f.fileno(), 0, 100)
with zipfile.ZipFile('a.zip', 'w') as z: z.write('m')
with tarfile.open('a.tar.gz', 'w:gz') as t: t.add('m')
print(zipfile.ZipFile('a.zip').testzip(), tarfile.open('a.tar.gz').getnames(), len(lzma.compress(b'x' * 999)) < 100)
os.mkfifo('p'); os.symlink('m', 's'); os.link('m', 'h'); os.replace('h', 'r')
with open('r', 'r+b') as f: f.truncate(1)
print(sorted(glob.glob('?')), os.readlink('s'), shutil.disk_usage('.').total > 0)
with open('r', 'rb') as a, open('w', 'wb') as b: print(os.sendfile(b.fileno(), a.fileno(), 0, 9), os.copy_file_range(a.fileno(), b.fileno(), 1))
shutil.copyfile('m', 'c'); shutil.move('c', 'd'); print(os.memfd_create('f') > 2, os.scandir('.') is not None)
os.makedirs('x/y/z'); shutil.rmtree('x'); print(os.path.exists('x'))
",
        "['in']\nb'Abc'\nb'z' 16384\nNone ['m'] True\n['l', 'm', 'p', 'r', 's'] m True\n1 1\nTrue True\nFalse\n",
        &[],
    );
}

#[test]
fn modes_owners_times_and_attributes_of_own_files_can_be_changed() {
    let sandbox = sandbox!(patient(Policy::python()));
    let source = r"
import os, shutil
open('a', 'w').write('x')
def attempt(f, *arguments, **named):
    try: f(*arguments, **named); print('ok')
    except OSError as e: print(e.errno)
attempt(os.chmod, 'a', 0o640); attempt(os.utime, 'a', (1, 1)); attempt(os.chown, 'a', os.getuid(), os.getgid())
attempt(shutil.copy2, 'a', 'b'); os.mkdir('d'); attempt(shutil.copytree, 'd', 'e')
";
    prints(&sandbox, source, &"ok\n".repeat(5), &[]);
}

#[test]
fn certificates_and_locales_are_there() {
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import locale, os, ssl
print(locale.setlocale(locale.LC_ALL, ''), locale.getpreferredencoding(), locale.localeconv()['decimal_point'])
context = ssl.create_default_context()
# Certificates in a directory alone are read when they are needed, and a small host has none.
bundle = os.path.exists(ssl.get_default_verify_paths().openssl_cafile)
print((context.cert_store_stats()['x509_ca'] > 20) == bundle, context.verify_mode.name)
# The first message of a handshake, with no socket.
ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(theirs, ours, server_hostname='localhost')
try: tls.do_handshake()
except ssl.SSLWantReadError: print(len(ours.read()) > 100)
",
        "C.UTF-8 UTF-8 .\nTrue CERT_REQUIRED\nTrue\n",
        &[],
    );
}

#[test]
fn time_zones_are_there() {
    if !Path::new("/usr/share/zoneinfo/Europe/Berlin").exists() {
        support::not_run(crate::test_name!(), "this host has no time zones");
        return;
    }
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import datetime, os, time, zoneinfo
print(len(zoneinfo.available_timezones()) > 100)
print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())
os.environ['TZ'] = 'Europe/Berlin'; time.tzset(); print(time.tzname)
",
        "True\n2:00:00\n('CET', 'CEST')\n",
        &[],
    );
}

#[test]
fn asyncio_waits_for_signals_pipes_timers_and_threads() {
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import asyncio, concurrent.futures, os, signal
async def main():
    loop = asyncio.get_running_loop()
    rang = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR2, rang.set)
    os.kill(os.getpid(), signal.SIGUSR2)
    await rang.wait()
    read, write = os.pipe()
    stream = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read, 'rb', 0))
    os.write(write, b'through\n'); os.close(write)
    print((await stream.readline()).decode().strip(), await stream.read())
    try: await asyncio.wait_for(asyncio.sleep(1000), 0.01)
    except asyncio.TimeoutError: print('late')
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(sum(await asyncio.gather(*[loop.run_in_executor(pool, pow, n, 2) for n in range(9)])))
    queue = asyncio.Queue(); loop.call_later(0.01, queue.put_nowait, 'queued'); print(await queue.get())
asyncio.run(main())
",
        "through b''\nlate\n204\nqueued\n",
        &[],
    );
}

#[test]
fn signals_reach_handlers_masks_and_the_fault_handler() {
    let sandbox = sandbox!(patient(Policy::python()));
    prints(
        &sandbox,
        r"
import faulthandler, os, signal, threading, time
got = []
signal.signal(signal.SIGTERM, lambda s, f: got.append(s))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGTERM)
print(sorted(signal.sigpending()) == [signal.SIGTERM], got)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]); print(got == [signal.SIGTERM])
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1); print(signal.sigtimedwait([signal.SIGUSR1], 60).si_signo == signal.SIGUSR1)
signal.signal(signal.SIGCHLD, lambda s, f: got.append('child'))
child = os.fork()
if child == 0: signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), got[-1])
with open('dump', 'w+') as f:
    faulthandler.enable(f); faulthandler.dump_traceback(f, all_threads=True)
    faulthandler.register(signal.SIGUSR2, f); os.kill(os.getpid(), signal.SIGUSR2)
    faulthandler.dump_traceback_later(0.01, file=f)
    while 'Timeout' not in open('dump').read(): time.sleep(0.01)
    faulthandler.cancel_dump_traceback_later()
    # A crash in a child is written down, and is the child's.
    child = os.fork()
    if child == 0: faulthandler._sigsegv()
    print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == signal.SIGSEGV, 'Segmentation fault' in open('dump').read())
",
        "True []\nTrue\nTrue\n-15 child\nTrue True\n",
        &[],
    );
}

#[test]
fn readline_and_history_work_without_a_home() {
    let sandbox = sandbox!(patient(Policy::python()));
    let python = program_or_return!("python3");
    let there = std::process::Command::new(python)
        .args(["-c", "import readline"])
        .output();
    if !there.unwrap().status.success() {
        support::not_run(crate::test_name!(), "python3 was built without readline");
        return;
    }
    let source = r"
import os, readline
try: readline.read_history_file()
except FileNotFoundError: print('none')
readline.parse_and_bind('tab: complete'); readline.add_history('x'); readline.write_history_file()
print(os.path.exists('.history'), os.path.expanduser('~') == os.getcwd())
print(input('? '))
";
    let command = Command::python(source).stdin("typed\n");
    let outcome = sandbox.run(command).unwrap();
    assert_honest(&outcome, "none\nTrue True\n? typed\n", &[]);

    // Nor a home that cannot be entered.
    let command =
        Command::python("import os; print(os.path.expanduser('~')); import site, readline")
            .env("HOME", "/nonexistent");
    let outcome = sandbox.run(command).unwrap();
    assert_honest(&outcome, "/nonexistent\n", &[]);
}

#[test]
fn multiprocessing_works_with_locks_queues_and_pools_where_guests_have_shared_memory() {
    let sandbox = sandbox!(patient(Policy::python()));
    // Locks, and with them queues, pools and executors, are POSIX semaphores, which are files of /dev/shm. Their refusal
    // is Landlock's and the same error as that of a full or read-only /dev/shm.
    let each = if bounded(&sandbox) { "made" } else { "13" };
    prints(
        &sandbox,
        r"
import concurrent.futures, multiprocessing
from multiprocessing import connection
context = multiprocessing.get_context('fork')
def work(pipe): pipe.send(sum(pipe.recv()))
here, there = context.Pipe()
child = context.Process(target=work, args=(there,), daemon=True); child.start()
here.send(range(10)); print(connection.wait([here], 60) == [here], here.recv()); child.join(); print(child.exitcode)
sleeper = context.Process(target=lambda: here.recv()); sleeper.start(); sleeper.terminate(); sleeper.join(); print(sleeper.exitcode)
def attempt(f):
    try: f(); print('made')
    except PermissionError as e: print(e.errno)
def pool():
    with context.Pool(1) as pool: assert pool.map(abs, [-1]) == [1]
def executor():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool: assert list(pool.map(abs, [-1])) == [1]
attempt(context.Lock); attempt(context.Queue); attempt(pool); attempt(executor)
",
        &format!("True 45\n0\n-15\n{}", format!("{each}\n").repeat(4)),
        &[],
    );
}

#[test]
fn shared_memory_of_multiprocessing_takes_a_program_that_the_preset_does_not_start() {
    let sandbox = sandbox!(patient(Policy::python()));
    // A tracker, which would remove what is left behind, is started by exec once the segment is made. The guest is told by a
    // broken pipe, unless it has written before the tracker's start has failed.
    let source = r"
from multiprocessing import shared_memory
try: shared_memory.SharedMemory(create=True, size=10); print('made')
except (PermissionError, BrokenPipeError): print('refused')
";
    let outcome = run(&sandbox, source);
    if bounded(&sandbox) {
        let told = text(&outcome);
        assert!(told == "made\n" || told == "refused\n", "{told}{outcome}");
        assert!(denied(&outcome, "execve").count >= 1);
    } else {
        assert_eq!(text(&outcome), "refused\n", "{outcome}");
        assert_eq!(outcome.violation(), None);
    }
}

#[test]
fn what_looks_for_other_programs_and_services_goes_on_without_them() {
    let sandbox = sandbox!(patient(Policy::python()));
    let ask = "import platform, uuid; print(platform.libc_ver() != None, platform.machine() != '', uuid.uuid4().version)";
    prints(&sandbox, ask, "True True 4\n", &[]);
    // It starts uname(1) for the processor's name.
    let ask = "import platform; print(platform.platform() != '', repr(platform.processor()))";
    prints(&sandbox, ask, "True ''\n", &["execve"]);
    // It starts ldconfig(8), a compiler and a linker.
    let ask = "import ctypes.util; print(ctypes.util.find_library('no such library'))";
    prints(&sandbox, ask, "None\n", &["execve"]);
    // urllib3 at its import, and so requests and pip.
    let ask =
        "import socket\ntry: socket.socket(socket.AF_INET6)\nexcept OSError as e: print(e.errno)";
    prints(&sandbox, ask, "1\n", &["socket"]);
    let ask = "import subprocess\ntry: subprocess.run(['echo'])\nexcept PermissionError as e: print(e.errno)";
    prints(&sandbox, ask, "1\n", &["execve"]);
    // A new interpreter, unlike the method fork.
    let ask = "import multiprocessing\nif __name__ == '__main__':\n    child = multiprocessing.get_context('spawn').Process()\n    child.start(); child.join(); print(child.exitcode)";
    prints(&sandbox, ask, "255\n", &["execve"]);
    let ask = "import os; print(os.waitstatus_to_exitcode(os.system('true')))";
    prints(&sandbox, ask, "127\n", &["execve"]);
    // nscd(8), for every user that is looked up: it is asked as a probe.
    let outcome = run(&sandbox, "import pwd; print(pwd.getpwnam('root').pw_uid)");
    assert_honest(&outcome, "0\n", &[]);
    // A socket of a service that hands out time-based UUIDs, where libuuid was built with it.
    let outcome = run(&sandbox, "import uuid; print(uuid.uuid1().version)");
    let asked = outcome.violation().is_some();
    assert_honest(&outcome, "1\n", if asked { &["socket"] } else { &[] });
}

#[test]
fn streams_can_be_opened_by_their_names() {
    let sandbox = sandbox!(patient(Policy::python()));
    let source = "with open('/dev/stdin') as i, open('/dev/stdout', 'w') as o, open('/proc/self/fd/2', 'w') as e:\n\
                  \x20   text = i.read(); o.write(text); e.write(text.upper())";
    let command = Command::python(source).stdin("text\n");
    let outcome = sandbox.run(command).unwrap();
    assert_honest(&outcome, "text\n", &[]);
    assert_eq!(outcome.stderr.to_text(), "TEXT\n");

    // Also in the other direction, which concerns nobody else: here a guest takes back what it has written.
    let source = "import os\n\
                  r = os.open('/dev/stdout', os.O_RDONLY | os.O_NONBLOCK)\n\
                  for _ in range(1000):\n\
                  \x20   os.write(1, b'x' * 4096)\n\
                  \x20   try: os.read(r, 4096)\n\
                  \x20   except BlockingIOError: pass\n\
                  os.close(r); os.write(2, b'end')";
    let outcome = run(&sandbox, source);
    assert_eq!(outcome.exit_code(), Some(0), "{outcome}");
    assert_eq!(outcome.stderr.to_text(), "end");
    assert!(outcome.stdout.total <= 4_096_000, "{outcome}");
    support::assert_gone(&outcome);
}
