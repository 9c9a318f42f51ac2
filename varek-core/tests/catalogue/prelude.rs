//! What the programs have in common.

use std::fmt::Write as _;

/// `attempt(NAME, f, ...)` says what came of f; `call(NAME, ...)` makes a system call by name, and `reach(NAME, CALL, ...)` says of one
/// whether it got to the kernel: whether anything but the policy's errno came back, which such entries set to EPROTO.
pub(crate) const PYTHON: &str = r"
import ctypes, errno, os, signal, socket, struct, sys
ARG = sys.argv[1] if len(sys.argv) > 1 else ''
SCENE, SECRET, GRANTED, SERVICE, ABSTRACT = (os.environ.get(n, '') for n in ('SCENE', 'SECRET', 'GRANTED', 'SERVICE', 'ABSTRACT'))
VICTIM, EMBEDDER, PORT = (int(os.environ.get(n, '0')) for n in ('VICTIM', 'EMBEDDER', 'PORT'))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(name, *arguments):
    number = NR[name] if isinstance(name, str) else name
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    arguments += [ctypes.c_long(0)] * (6 - len(arguments))
    got = libc.syscall(ctypes.c_long(number), *arguments)
    if got == -1: raise OSError(ctypes.get_errno(), 'call')
    return got
def say(name, answer):
    os.write(1, f'{name}: {answer}\n'.encode())
def attempt(name, what, *arguments):
    try: got = what(*arguments)
    except OSError as e: say(name, errno.errorcode.get(e.errno, e.errno))
    except (ValueError, MemoryError) as e: say(name, type(e).__name__)
    else: say(name, 'nothing' if got is False else 'won')
def reach(name, number, *arguments):
    try: call(number, *arguments)
    except OSError as e: say(name, 'EPROTO' if e.errno == errno.EPROTO else 'reached')
    else: say(name, 'reached')
def read(path, length=1):
    with open(path, 'rb') as f: return f.read(length)
def write(path):
    os.close(os.open(path, os.O_WRONLY))
def in_child(what, *arguments):
    # What a child does; its answer is that of the parent.
    pid = os.fork()
    if pid == 0:
        try: what(*arguments)
        except OSError as e: os._exit(e.errno)
        except BaseException: os._exit(255)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    if code > 0: raise OSError(code, 'child')
    return code == 0
";

/// The end of a program of Python, by which it is known to have got there.
pub(crate) const PYTHON_END: &str = "\nos.write(1, b'end\\n')\n";

/// `say` writes what came of an attempt: a result, or -errno.
pub(crate) const C: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
static void say(const char *name, long got) {
    char line[256];
    int length = got >= 0 ? snprintf(line, sizeof line, "%s: won\n", name)
                          : snprintf(line, sizeof line, "%s: %s\n", name, strerrorname_np((int)-got));
    write(1, line, length);
}
static long tried(long got) { return got == -1 ? -errno : got; }
/* Whether a call got to the kernel: what came back is not the answer of a filter. */
static long reached(long got) { got = tried(got); return got == -EPERM || got == -ENOSYS ? got : 0; }
static long number_of(const char *name) { const char *text = getenv(name); return text ? atol(text) : 0; }
"#;

pub(crate) const C_MAIN: &str = r#"
int main(int count, char **arguments) {
    attack(count > 1 ? arguments[1] : "");
    write(1, "end\n", 4);
    return 0;
}
"#;

/// The numbers of this machine's calls, as a dictionary.
pub(crate) fn numbers() -> String {
    let mut text = String::from("NR = {");
    let arch = varek_seccomp::Arch::native().unwrap();
    for (number, name) in arch.calls() {
        let _ = write!(text, "'{name}':{number},");
    }
    text + "}\n"
}
