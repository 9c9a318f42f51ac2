//! Starting another program.

use varek_core::{Policy, SyscallGroup};

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, native, python};

/// Further programs can be started, those in the scratch directory too.
fn starting(scene: &Scene) -> Policy {
    let mut policy = python(scene).syscalls(|calls| calls.allow_group(SyscallGroup::Exec));
    policy.filesystem.execute_scratch = true;
    policy
}

/// Further programs can be started, but for those that the guest wrote.
fn starting_installed(scene: &Scene) -> Policy {
    python(scene).syscalls(|calls| calls.allow_group(SyscallGroup::Exec))
}

fn native_starting(scene: &Scene) -> Policy {
    native(scene).syscalls(|calls| calls.allow_group(SyscallGroup::Exec))
}

attacks! {
    Family::Exec;

    a_program_is_started_by_no_function_of_libc:
        program = Program::Python(r"
import subprocess
attempt('posix_spawn', lambda: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] == 0)
attempt('vfork', subprocess.run, ['/bin/true'])
attempt('fork', lambda: subprocess.run(['/bin/true'], preexec_fn=lambda: None))
attempt('system', lambda: os.system('true') == 0)
attempt('popen', lambda: os.popen('exit 0').close() is None)
attempt('own image', in_child, os.execv, '/proc/self/exe', ['python3', '-c', ''])
"),
        refused = &[refused("execve", 6)],
        control = under(starting).gains(&["posix_spawn", "vfork", "fork", "system", "popen", "own image"]);

    what_the_guest_wrote_is_started_in_no_form:
        program = Program::Python(r"
def made(name, content):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o700)
    os.write(fd, content); os.close(fd)
    return name
program = open('/bin/true', 'rb').read()
made('script', b'#!/bin/sh\nexit 0\n')
made('nested', b'#!./script\n')
made('program', program)
made('plain', b'exit 0\n')
memory = os.memfd_create('m'); os.write(memory, program)
os.mkfifo('fifo')
for name in ('script', 'nested', 'program'):
    attempt(name, in_child, os.execv, './' + name, [name])
attempt('memory', in_child, os.execve, memory, ['m'], {})
attempt('memory by path', in_child, os.execv, f'/proc/self/fd/{memory}', ['m'])
fd = os.open('program', os.O_RDONLY)
attempt('descriptor', in_child, os.execve, fd, ['m'], {})
attempt('descriptor by path', in_child, os.execv, f'/dev/fd/{fd}', ['m'])
attempt('relative', in_child, lambda: call('execveat', os.open('.', os.O_PATH), b'program', 0, 0, 0))
for name in ('plain', 'fifo', '.'):
    attempt(name, in_child, os.execv, './' + name, [name])
"),
        refused = &[refused("execve", 8), refused("execveat", 3)],
        control = under(starting).gains(&["script", "nested", "program", "memory", "descriptor", "relative"]);

    what_the_guest_wrote_is_not_started_where_installed_programs_are:
        program = Program::Python(r"
import shutil
def attempts(kind, directory):
    path = directory + '/copy'
    try: shutil.copyfile('/bin/true', path); os.close(os.open(path + '2', os.O_WRONLY | os.O_CREAT, 0o700)); shutil.copyfile('/bin/true', path + '2')
    except OSError as e: return say(kind, errno.errorcode[e.errno])
    attempt(kind, in_child, os.execv, path + '2', ['copy'])
    attempt(kind + ' by descriptor', in_child, os.execve, os.open(path + '2', os.O_RDONLY), ['copy'], {})
    try: os.link(path + '2', path + '3'); attempt(kind + ' by link', in_child, os.execv, path + '3', ['copy'])
    except OSError as e: say(kind + ' by link', errno.errorcode[e.errno])
attempts('scratch', '.')
attempts('shared memory', '/dev/shm')
"),
        policy = starting_installed,
        answers = &[("scratch", "EACCES"), ("scratch by descriptor", "EACCES")],
        control = under(starting).gains(&["scratch", "scratch by descriptor", "scratch by link"]);

    no_word_that_the_guest_finds_on_its_stack_opens_exec:
        program = Program::C(r#"
extern char **environ;
static void attack(const char *run) {
    /* The permit of the guest's own start was in the last three registers of the same call. Everything that the kernel
       left on the first stack, three words at a time; and the same word in all registers. */
    char *arguments[] = {"echo", "stack: won", 0};
    uint64_t *words = (uint64_t *)environ;
    unsigned long from, top = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]")) sscanf(line, "%lx-%lx", &from, &top);
    int tries = 0, count = ((uint64_t *)top - words) - 3;
    if (count > 1000) count = 1000;
    for (int i = 0; i < count; i++, tries++)
        if (syscall(SYS_execve, "/bin/echo", arguments, 0, words[i], words[i + 1], words[i + 2]) == 0) break;
    for (int i = 0; i < count; i++, tries++)
        if (syscall(SYS_execve, "/bin/echo", arguments, 0, words[i], words[i], words[i]) == 0) break;
    unsigned char *end = (unsigned char *)words;
    for (int i = 0; i < count * 8; i += 3, tries++) {
        uint64_t at[3];
        memcpy(at, end + i, sizeof at);
        if (syscall(SYS_execve, "/bin/echo", arguments, 0, at[0], at[1], at[2]) == 0) break;
    }
    say("tries", tries >= 200 ? -EPERM : -EIO);
}
"#),
        policy = native,
        refused = &[refused("execve", 200)],
        answers = &[("tries", "EPERM")],
        control = under(native_starting).gains(&["stack"]);

    threads_that_start_programs_at_once_start_none:
        program = Program::C(r#"
static void *start(void *name) {
    char *arguments[] = {"echo", "thread: won", 0};
    for (int i = 0; i < 20; i++) {
        execv("/bin/echo", arguments);
        syscall(SYS_execveat, AT_FDCWD, "/bin/echo", arguments, 0, 0);
    }
    return 0;
}
static void attack(const char *run) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, start, 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
}
"#),
        policy = native,
        refused = &[refused("execve", 160), refused("execveat", 160)],
        control = under(native_starting).gains(&["thread"]);

    a_sharer_of_the_image_starts_no_program_either:
        program = Program::C(r#"
static char stack[65536] __attribute__((aligned(16)));
static int start(void *unused) {
    execl("/bin/true", "true", NULL);
    return errno;
}
static void try(const char *name, int flags) {
    int status = 0;
    int child = clone(start, stack + sizeof stack, flags | SIGCHLD, 0);
    if (child < 0) { say(name, -errno); return; }
    waitpid(child, &status, __WALL);
    say(name, WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR);
}
static void attack(const char *run) {
    try("vfork", CLONE_VM | CLONE_VFORK);
    try("memory", CLONE_VM);
    try("all", CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND);
    try("files", CLONE_FS | CLONE_FILES);
    try("untraced", CLONE_UNTRACED);
}
"#),
        policy = native,
        refused = &[refused("execve", 5)],
        answers = &[("vfork", "EPERM"), ("all", "EPERM"), ("untraced", "EPERM")],
        control = under(native_starting).gains(&["vfork", "memory", "all", "files", "untraced"]);

    a_program_with_the_owners_rights_gives_none:
        program = Program::Python(r"
import subprocess
if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
attempt('owner', lambda: subprocess.run([GRANTED + '/../owned', '-u'], capture_output=True).stdout == b'0\n')
"),
        policy = |scene| scene.owned(starting_installed(scene)),
        control = OUTSIDE.needs(Needs::Root);
}
