//! Namespaces, mounts and roots of one's own.

use varek_core::Policy;

use crate::attacks;
use crate::entry::{Ends, Family, Needs, OUTSIDE, Program, refused, under, unshared};
use crate::scene::{Scene, distinct, native, with};

/// What kills under the presets.
const MOUNTING: [&str; 12] = [
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "unshare",
];

fn unsharing(scene: &Scene) -> Policy {
    let calls = ["unshare", "setns"];
    native(scene).syscalls(|policy| policy.spare(calls).allow(calls))
}

attacks! {
    Family::Namespaces;

    leaving_the_hosts_namespaces_kills:
        program = Program::C(r#"
static void attack(const char *run) {
    static const struct { const char *name; int flag; } kinds[] = {
        {"mount", 0x20000}, {"cgroup", 0x2000000}, {"uts", 0x4000000}, {"ipc", 0x8000000}, {"user", 0x10000000},
        {"pid", 0x20000000}, {"net", 0x40000000}, {"time", 0x80}, {"files", 0x400}, {"directory", 0x200}, {"all", 0x7e020000},
    };
    const char *wanted = getenv("KIND");
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int child = fork(), status;
        if (child == 0) {
            int got = unshare(kinds[i].flag);
            if (got == 0) say(run, 0);
            _exit(0);
        }
        waitpid(child, &status, 0);
    }
}
"#),
        runs = &["unshare"],
        policy = native,
        ends = Ends::Forbidden,
        control = under(unsharing).run();

    each_kind_of_namespace_is_refused_where_asking_does_not_kill:
        program = Program::C(r#"
static void attack(const char *run) {
    static const struct { const char *name; int flag; } kinds[] = {
        {"mount", 0x20000}, {"cgroup", 0x2000000}, {"uts", 0x4000000}, {"ipc", 0x8000000}, {"user", 0x10000000},
        {"pid", 0x20000000}, {"net", 0x40000000}, {"time", 0x80}, {"all", 0x7e020000},
    };
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int child = fork(), status;
        if (child == 0) _exit(unshare(kinds[i].flag) ? errno : 0);
        waitpid(child, &status, 0);
        say(kinds[i].name, -WEXITSTATUS(status));
    }
}
"#),
        policy = |scene| native(scene).syscalls(|calls| calls.spare(["unshare"])),
        refused = &[refused("unshare", 9)],
        answers = &[("user", "EPERM"), ("mount", "EPERM"), ("time", "EPERM")],
        control = OUTSIDE.gains(&["mount", "uts", "ipc", "user", "pid", "net"]).needs(Needs::Root);

    clone3_makes_no_namespace_and_no_sibling:
        program = Program::C(r#"
static void attack(const char *run) {
    static const struct { const char *name; uint64_t flag; } kinds[] = {
        {"none", 0}, {"mount", 0x20000}, {"user", 0x10000000}, {"pid", 0x20000000}, {"net", 0x40000000}, {"time", 0x80},
        {"parent", 0x8000}, {"group", 0x200000000ull}, {"untraced", 0x800000},
    };
    /* So that a sibling is this program's child. */
    if (fork() > 0) { while (wait(0) > 0); return; }
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t arguments[11] = {kinds[i].flag};
        arguments[4] = kinds[i].flag & 0x8000 ? 0 : SIGCHLD;
        long child = syscall(SYS_clone3, arguments, sizeof arguments);
        if (child == 0) _exit(0);
        long error = tried(child);
        if (child > 0) waitpid(child, 0, 0);
        say(kinds[i].name, error);
    }
    _exit(0);
}
"#),
        policy = native,
        answers = &[("none", "ENOSYS"), ("user", "ENOSYS"), ("group", "ENOSYS")],
        lacks = || (!varek_core::Host::probe().clone3).then_some("this host has no clone3, so there is no control"),
        control = OUTSIDE.gains(&["none", "mount", "user", "pid", "net"]).needs(Needs::Root);

    clone_with_flags_that_hide_in_others_makes_no_namespace:
        program = Program::C(r#"
static void try(const char *name, unsigned long flags) {
    long child = syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    long error = tried(child);
    if (child > 0) waitpid(child, 0, __WALL);
    say(name, error);
}
static void attack(const char *run) {
    try("user", 0x10000000 | SIGCHLD);
    try("user without a signal", 0x10000000);
    try("user and mount", 0x10020000 | SIGCHLD);
    try("user with high bits", 0xffffffff10000000ul | SIGCHLD);
    try("user, files and directory", 0x10000000 | CLONE_FILES | SIGCHLD);
    try("net with a pidfd's bit", 0x40000000 | SIGCHLD | 0x1000);
    try("pid and untraced", 0x20000000 | CLONE_UNTRACED | SIGCHLD);
    try("ipc and shared semaphores", 0x08000000 | SIGCHLD);
    try("traced", CLONE_PTRACE | SIGCHLD);
}
"#),
        policy = native,
        refused = &[refused("clone", 9)],
        answers = &[("user", "EPERM"), ("user with high bits", "EPERM"), ("traced", "EPERM")],
        control = OUTSIDE.gains(&["user", "user and mount", "user with high bits", "pid and untraced", "traced"]).needs(Needs::Root);

    entering_another_namespace_kills:
        program = Program::C(r#"
static void attack(const char *run) {
    /* Of a process, by a descriptor of it; and of its own, by its file. */
    int fd = syscall(SYS_pidfd_open, getenv("EMBEDDER") ? number_of("VICTIM") : 1, 0);
    int own = open("/proc/self/ns/uts", O_RDONLY);
    if (syscall(SYS_setns, own, 0) == 0 || syscall(SYS_setns, fd, 0x4000000) == 0) say(run, 0);
}
"#),
        runs = &["setns"],
        policy = native,
        ends = Ends::Forbidden,
        control = OUTSIDE.run().needs(Needs::Root);

    mounting_by_any_call_kills:
        program = Program::C(r#"
#include <sys/mount.h>
static void attack(const char *run) {
    long got = -1;
    if (!strcmp(run, "mount")) got = mount("none", ".", "tmpfs", 0, 0);
    if (!strcmp(run, "umount2")) got = umount2(".", MNT_DETACH);
    if (!strcmp(run, "pivot_root")) got = syscall(SYS_pivot_root, ".", ".");
    if (!strcmp(run, "chroot")) got = chroot(".");
    if (!strcmp(run, "open_tree")) got = syscall(428, AT_FDCWD, ".", 1);
    if (!strcmp(run, "move_mount")) got = syscall(429, -1, "", AT_FDCWD, ".", 4);
    if (!strcmp(run, "mount_setattr")) got = syscall(442, AT_FDCWD, ".", 0, 0, 0);
    if (!strcmp(run, "fsopen")) got = syscall(430, "tmpfs", 0);
    if (!strcmp(run, "fsmount")) got = syscall(432, -1, 0, 0);
    if (!strcmp(run, "fsconfig")) got = syscall(431, -1, 6, 0, 0, 0);
    if (!strcmp(run, "fspick")) got = syscall(433, AT_FDCWD, "/proc", 0);
    /* The kernel's own answer is not that of a filter: the call was made. */
    say(run, reached(got));
}
"#),
        runs = &["mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "mount_setattr", "fsopen", "fsmount", "fsconfig", "fspick"],
        policy = native,
        ends = Ends::Forbidden,
        control = unshared(&["--mount"]).run().needs(Needs::Root);

    mounting_is_refused_where_it_does_not_kill:
        program = Program::Python(r"
reach('mount', 'mount', b'none', b'.', b'tmpfs', 0, 0)
reach('umount2', 'umount2', b'.', 2)
reach('pivot_root', 'pivot_root', b'.', b'.')
reach('chroot', 'chroot', b'.')
reach('open_tree', 'open_tree', -100, b'.', 1)
reach('move_mount', 'move_mount', -1, b'', -100, b'.', 4)
reach('mount_setattr', 'mount_setattr', -100, b'.', 0, 0, 0)
reach('fsopen', 'fsopen', b'tmpfs', 0)
reach('fsmount', 'fsmount', -1, 0, 0)
reach('fsconfig', 'fsconfig', -1, 6, 0, 0, 0)
reach('fspick', 'fspick', -100, b'/proc', 0)
reach('unshare', 'unshare', 0)
"),
        policy = |_| distinct(&MOUNTING),
        refused = &[refused("mount", 1), refused("umount2", 1), refused("pivot_root", 1), refused("chroot", 1), refused("open_tree", 1),
            refused("move_mount", 1), refused("mount_setattr", 1), refused("fsopen", 1), refused("fsmount", 1), refused("fsconfig", 1),
            refused("fspick", 1), refused("unshare", 1)],
        answers = &[("mount", "EPROTO"), ("unshare", "EPROTO")],
        control = under(|_| with(&MOUNTING));

    a_user_namespace_that_a_policy_allows_mounts_nothing_and_opens_nothing:
        program = Program::C(r#"
#include <sys/mount.h>
static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd >= 0) { write(fd, text, strlen(text)); close(fd); }
}
static void attack(const char *run) {
    char map[64];
    snprintf(map, sizeof map, "0 %d 1", (int)geteuid());
    if (unshare(0x10000000 | 0x20000) != 0) { say("none", -errno); return; }
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", map);
    mkdir("at", 0700);
    say("bind", tried(mount("/", "at", 0, MS_BIND | MS_REC, 0)));
    say("tmpfs", tried(mount("none", "at", "tmpfs", 0, 0)));
    say("propagation", tried(mount("none", "/", 0, MS_REC | MS_PRIVATE, 0)));
    say("pivot", tried(syscall(SYS_pivot_root, ".", ".")) == -EPERM ? -EPERM : -EINVAL);
    say("detach", tried(umount2(".", MNT_DETACH)) == 0 ? 0 : -EPERM);
    say("secret", tried(open(getenv("SECRET"), O_RDONLY)));
}
"#),
        policy = |scene| {
            let calls = ["unshare", "mount", "umount2", "pivot_root", "chroot"];
            native(scene).syscalls(|policy| policy.spare(calls).allow(calls))
        },
        // Landlock closes mounts to whom it holds, whatever capabilities that one has.
        control = OUTSIDE.gains(&["bind", "secret"]).needs(Needs::UserNamespaces);
}
