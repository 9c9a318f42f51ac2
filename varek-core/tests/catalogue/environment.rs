//! What a guest knows of its embedder, and what it can be.

use varek_core::{Policy, SyscallGroup};

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, distinct, native, python, shell, with};

/// Programs that change their own users and groups.
fn credentials(scene: &Scene) -> Policy {
    native(scene).syscalls(|calls| {
        calls
            .allow_group(SyscallGroup::Credentials)
            .allow(["prctl"])
    })
}

/// Programs that confine themselves.
fn confining(scene: &Scene) -> Policy {
    native(scene).syscalls(|calls| {
        calls
            .allow_group(SyscallGroup::Confinement)
            .allow(["prctl"])
    })
}

const IDS: [&str; 10] = [
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
    "setfsuid",
    "setfsgid",
    "capset",
];

attacks! {
    Family::Environment;

    the_embedders_variables_are_nowhere:
        program = Program::Python(r"
NAME = 'CARGO_MANIFEST' + '_DIR'
attempt('environment', lambda: NAME in os.environ)
attempt('own file', lambda: NAME.encode() in open('/proc/self/environ', 'rb').read())
for name, pid in (('parent', os.getppid()), ('embedder', EMBEDDER), ('victim', VICTIM)):
    attempt(name, lambda: NAME.encode() in open(f'/proc/{pid}/environ', 'rb').read())
"),
        policy = |scene| python(scene).read("/proc"),
        lacks = || std::env::var_os("CARGO_MANIFEST_DIR").is_none().then_some("this program was not started by cargo"),
        control = OUTSIDE.gains(&["environment", "own file", "embedder", "victim"]);

    no_memory_of_the_embedders_is_in_the_guests:
        program = Program::C(r#"
static void attack(const char *run) {
    /* The child shared the embedder's memory until its exec. A piece of its environment, put together here so as not to be found
       in this program itself. */
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s_%s_%s", "CARGO", "MANIFEST", "DIR=");
    FILE *maps = fopen("/proc/self/maps", "r");
    int memory = open("/proc/self/mem", O_RDONLY), found = 0;
    unsigned long from, to;
    char line[512], access[8];
    if (!maps || memory < 0) { say("memory", -errno); return; }
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3 || access[0] != 'r' || strstr(line, "[v")) continue;
        char *copy = malloc(to - from);
        ssize_t length = pread(memory, copy, to - from, from);
        char *end = copy + (length < 0 ? 0 : length), *at = copy;
        for (; (at = memmem(at, end - at, wanted, strlen(wanted))) && at + 32 < end; at++)
            if (at[strlen(wanted)] == '/') found = 1;
        free(copy);
    }
    say("memory", found ? 0 : -ENOENT);
}
"#),
        policy = native,
        answers = &[("memory", "ENOENT")],
        lacks = || std::env::var_os("CARGO_MANIFEST_DIR").is_none().then_some("this program was not started by cargo"),
        control = OUTSIDE;

    options_that_change_what_a_process_is_are_refused:
        program = Program::Python(r"
for name, *arguments in [('dumpable', 4, 0), ('keep capabilities', 8, 1), ('death signal', 1, 9), ('time stamps', 26, 2), ('own filter', 22, 2, 0),
                         ('secure bits', 28, 0), ('bounding set', 24, 0), ('ambient set', 47, 4, 0, 0, 0), ('map', 35, 1, 0, 0, 0), ('tracer', 0x59616d61, -1),
                         ('reaper', 36, 1), ('early kill', 33, 1, 1, 0, 0), ('speculation', 53, 0, 2, 0, 0), ('dispatch', 59, 0, 0, 0, 0),
                         ('core', 62, 0, 0, 0, 0), ('huge pages', 41, 1), ('flusher', 57, 0), ('write or execute', 65, 0, 0, 0, 0), ('strict', 22, 1)]:
    reach(name, 'prctl', *arguments)
"),
        policy = |_| distinct(&[]),
        refused = &[refused("prctl", 19)],
        answers = &[("dumpable", "EPROTO"), ("secure bits", "EPROTO"), ("strict", "EPROTO"), ("map", "EPROTO")],
        // But for the last: it ends whatever makes another call.
        control = under(|_| with(&["prctl"])).gains(&["dumpable", "secure bits", "reaper", "map"]);

    nobody_becomes_another_user:
        program = Program::Python(r"
for name, *arguments in [('setuid', 0), ('setgid', 0), ('setreuid', 0, 0), ('setregid', 0, 0), ('setresuid', 0, 0, 0), ('setresgid', 0, 0, 0),
                         ('setgroups', 1, bytes(4)), ('setfsuid', 0), ('setfsgid', 0), ('capset', struct.pack('Ii', 0x20080522, 0), bytes(24))]:
    reach(name, name, *arguments)
"),
        policy = |_| distinct(&[]),
        refused = &[refused("setuid", 1), refused("setgid", 1), refused("setreuid", 1), refused("setregid", 1), refused("setresuid", 1), refused("setresgid", 1),
            refused("setgroups", 1), refused("setfsuid", 1), refused("setfsgid", 1), refused("capset", 1)],
        answers = &[("setuid", "EPROTO"), ("capset", "EPROTO")],
        control = under(|_| with(&IDS));

    the_calls_of_su_gain_nothing_where_they_are_allowed:
        program = Program::C(r#"
#include <sys/fsuid.h>
#include <grp.h>
struct head { uint32_t version; int pid; };
struct data { uint32_t effective, permitted, inheritable; };
static long all(void) {
    struct head head = {0x20080522, 0};
    struct data data[2] = {{~0u, ~0u, ~0u}, {0x1ff, 0x1ff, 0x1ff}};
    return tried(syscall(SYS_capset, &head, data));
}
static void attack(const char *run) {
    gid_t group = 0;
    if (geteuid() != 0) {
        say("user", tried(setresuid(0, 0, 0)));
        say("effective user", tried(setreuid(-1, 0)));
        say("group", tried(setresgid(0, 0, 0)));
    }
    setfsuid(0);
    say("user of files", setfsuid(-1) == 0 ? 0 : -EPERM);
    say("groups", tried(setgroups(1, &group)));
    say("capabilities", all());
    say("ambient", tried(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0)));
    say("bounding", tried(prctl(PR_CAPBSET_DROP, 0, 0, 0, 0)));
    say("secure bits", tried(prctl(PR_SET_SECUREBITS, 0, 0, 0, 0)));
    say("privileges", tried(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)));
}
"#),
        policy = credentials,
        control = OUTSIDE.gains(&["user of files", "groups", "bounding"]).needs(Needs::Root);

    a_filter_of_the_guests_own_allows_nothing_more:
        program = Program::C(r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
static long install(unsigned flags, unsigned answer) {
    /* For that call alone: without a tracer SECCOMP_RET_TRACE refuses. */
    struct sock_filter steps[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_socket}, {0x06, 0, 0, answer}, {0x06, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {4, steps};
    return tried(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}
static void attack(const char *run) {
    install(0, SECCOMP_RET_ALLOW);
    say("socket", tried(socket(AF_UNIX, SOCK_STREAM, 0)));
    install(0, SECCOMP_RET_LOG);
    say("socket again", tried(socket(AF_UNIX, SOCK_STREAM, 0)));
    install(0, SECCOMP_RET_TRACE);
    say("socket traced", tried(socket(AF_UNIX, SOCK_STREAM, 0)));
    say("secret", tried(open(getenv("SECRET"), O_RDONLY)));
}
"#),
        policy = confining,
        refused = &[refused("socket", 3)],
        answers = &[("socket", "EPERM"), ("socket again", "EPERM")],
        control = under(|scene| scene.reading_all(confining(scene)).network(varek_core::Network::Host)).gains(&["socket", "socket again"]).needs(Needs::Root);

    a_listener_of_the_guests_own_is_not_had:
        program = Program::C(r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
static void attack(const char *run) {
    /* Whoever has a listener answers in the kernel's place, or lets a call go on. */
    struct sock_filter steps[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_socket}, {0x06, 0, 0, SECCOMP_RET_USER_NOTIF}, {0x06, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {4, steps};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    for (int child = 0; child < 2; child++) {
        int pid = child ? fork() : 0, status;
        if (pid == 0) {
            long fd = tried(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
            if (!child) { say("listener", fd); continue; }
            _exit(fd < 0 ? -fd : 0);
        }
        waitpid(pid, &status, 0);
        if (run[0] == 0) say("listener of a child", -WEXITSTATUS(status));
    }
}
"#),
        policy = confining,
        answers = &[("listener", "EBUSY"), ("listener of a child", "EBUSY")],
        lacks = || varek_core::Host::probe().outer_listener.then_some("a filter around this program has the listener"),
        control = OUTSIDE.gains(&["listener"]);

    a_ruleset_of_the_guests_own_opens_nothing:
        program = Program::C(r#"
static void attack(const char *run) {
    uint64_t all = 0x1fff, rules[1] = {all};
    int set = syscall(444, rules, sizeof rules, 0);
    struct { uint64_t access; int parent; } __attribute__((packed)) beneath = {all, open("/", O_PATH)};
    syscall(445, set, 1, &beneath, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(446, set, 0);
    say("secret", tried(open(getenv("SECRET"), O_RDONLY)));
    say("list", tried(open(getenv("SCENE"), O_RDONLY | O_DIRECTORY)));
    say("make", tried(mkdir("/tmp/varek-catalogue", 0700)));
}
"#),
        policy = confining,
        answers = &[("secret", "EACCES"), ("list", "EACCES")],
        control = under(|scene| scene.reading_all(confining(scene))).gains(&["secret", "list"]);

    homes_and_what_is_kept_in_them_are_closed:
        program = Program::Shell(r#"
look() { if "${@:2}" >/dev/null 2>&1; then echo "$1: won"; else echo "$1: refused"; fi; }
home=$(getent passwd "${EMBEDDER_UID:-0}" | cut -d: -f6)
look 'home of the owner' ls "$(dirname "$SECRET")"
look 'home' ls "${home:-/root}"
look 'homes' ls /home
look 'temporary files' ls /tmp
look 'spool' ls /var/spool
look 'logs' ls /var/log
look 'passwords' cat /etc/shadow
look 'private keys' ls /etc/ssl/private
look 'secret' cat "$SECRET"
look 'sockets' ls /run
look 'processes' ps -e
"#),
        policy = shell,
        control = OUTSIDE.gains(&["home of the owner", "homes", "temporary files", "secret", "sockets"]);

    variables_of_the_loader_bring_no_privilege:
        program = Program::Python(r"
import subprocess
# A library of the guest's own, in a program that runs with its owner's rights.
env = {'LD_PRELOAD': os.getcwd() + '/own.so', 'LD_LIBRARY_PATH': os.getcwd(), 'LD_AUDIT': 'own.so', 'GCONV_PATH': '.', 'PYTHONPATH': '.'}
if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
attempt('owned', lambda: subprocess.run([SCENE + '/owned', '-u'], env=env, capture_output=True).stdout == b'0\n')
"),
        policy = |scene| scene.owned(python(scene).syscalls(|calls| calls.allow_group(SyscallGroup::Exec))),
        control = OUTSIDE.needs(Needs::Root);
}
