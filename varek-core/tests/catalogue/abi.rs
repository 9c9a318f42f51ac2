//! Calls by other tables, with other numbers, and with what the kernel ignores of an argument.

use varek_core::{Policy, SyscallGroup};

use crate::attacks;
use crate::entry::{Ends, Family, OUTSIDE, Program, refused, under};
use crate::scene::{Scene, native};

fn lacks_vsyscall() -> Option<&'static str> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (!maps.contains("[vsyscall]")).then_some("this kernel has no vsyscall page")
}

fn lacks_32_bit() -> Option<&'static str> {
    // It is there where the kernel was built with them.
    let there = std::path::Path::new("/proc/sys/abi/vsyscall32").exists();
    (!there).then_some("this kernel has no 32-bit calls")
}

fn starting(scene: &Scene) -> Policy {
    native(scene).syscalls(|calls| calls.allow_group(SyscallGroup::Exec))
}

fn with_ioctl(scene: &Scene) -> Policy {
    native(scene).syscalls(|calls| calls.allow(["ioctl", "prctl", "personality", "mknodat"]))
}

attacks! {
    Family::Abi;

    calls_of_32_bit_programs_kill:
        program = Program::C(r#"
static char path[] = "made", program[] = "/bin/echo", argument[] = "execve: won";
static uint32_t arguments[3], words[3] = {AF_UNIX, SOCK_STREAM, 0};
static long foreign(long number, long a, long b, long c) {
    long got;
    __asm__ volatile("int $0x80" : "=a"(got) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return got;
}
static void attack(const char *run) {
    arguments[0] = (uintptr_t)program; arguments[1] = (uintptr_t)argument;
    if (!strcmp(run, "mkdir")) say(run, foreign(39, (uintptr_t)path, 0700, 0));
    if (!strcmp(run, "socket")) say(run, foreign(102, 1, (uintptr_t)words, 0));
    if (!strcmp(run, "execve")) foreign(11, (uintptr_t)program, (uintptr_t)arguments, 0);
    if (!strcmp(run, "getpid")) say(run, foreign(20, 0, 0, 0));
    if (!strcmp(run, "deep")) {
        int until[2];
        char byte;
        pipe(until);
        if (fork() == 0) { if (fork() == 0) say(run, foreign(20, 0, 0, 0)); _exit(0); }
        close(until[1]);
        read(until[0], &byte, 1);
    }
}
"#),
        runs = &["mkdir", "socket", "execve", "getpid", "deep"],
        policy = native,
        ends = Ends::Foreign("i386"),
        lacks = lacks_32_bit,
        control = OUTSIDE.run();

    numbers_with_the_bit_of_x32_kill:
        program = Program::C(r#"
static void attack(const char *run) {
    long bit = getenv("PLAIN") ? 0 : 0x40000000;
    if (!strcmp(run, "write")) { syscall(1 | bit, 1, "write: reached\n", 15); }
    if (!strcmp(run, "socket")) say(run, tried(syscall(41 | bit, AF_UNIX, SOCK_STREAM, 0)));
    if (!strcmp(run, "execve")) say(run, tried(syscall(520 | bit, "/bin/true", 0, 0)));
    if (!strcmp(run, "ptrace")) say(run, tried(syscall(521 | bit, 0, 0, 0, 0)));
    if (!strcmp(run, "ioctl")) say(run, tried(syscall(514 | bit, 0, TIOCSTI, "x")));
}
"#),
        runs = &["write", "socket", "execve", "ptrace", "ioctl"],
        policy = native,
        ends = Ends::Foreign("x32"),
        // Few kernels have that table: what is shown is that without the filter the program gets its answer and ends.
        control = OUTSIDE.reached();

    numbers_of_x32_without_its_bit_and_numbers_of_no_table_do_nothing:
        program = Program::C(r#"
static void attack(const char *run) {
    /* Before Linux 5.4 512 to 547 were x32's execve, ptrace, ioctl and others without the bit too. */
    int made = 0;
    for (long number = 512; number <= 547; number++)
        if (syscall(number, "/bin/true", 0, 0, 0, 0, 0) >= 0) made++;
    static const long numbers[] = {400, 423, 600, 1000, 4095, 65535, 0x3fffffff};
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (syscall(numbers[i], 0, 0, 0, 0, 0, 0) >= 0) made++;
    say("unknown", made ? 0 : -errno);
    say("known", getenv("EMBEDDER") && syscall(41, AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : -errno);
}
"#),
        policy = native,
        refused = &[refused("socket", 1)],
        answers = &[("unknown", "ENOSYS"), ("known", "EPERM")],
        control = OUTSIDE.gains(&["known"]);

    a_number_that_is_no_number_kills:
        program = Program::C(r#"
static void attack(const char *run) {
    long number = strtoul(run, 0, 0);
    say("call", tried(syscall(number, 0, 0, 0, 0, 0, 0)));
}
"#),
        runs = &["0xffffffff", "0xfffffffe", "0x7fffffff", "0x80000000", "0xbfffffff", "0xc000003b"],
        policy = native,
        ends = Ends::Foreign("x32"),
        control = OUTSIDE.reached();

    high_bits_of_a_number_make_no_other_call:
        program = Program::C(r#"
static long raw(uint64_t number, uint64_t a, uint64_t b, uint64_t c) {
    long got;
    register uint64_t r10 __asm__("r10") = 0, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(got) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return got;
}
static void attack(const char *run) {
    static const uint64_t high[] = {1ull << 32, 0xdeadbeefull << 32, 0xffffffffull << 32, 0x80000000ull << 32};
    for (int i = 0; i < 4; i++) {
        char *arguments[] = {"true", 0};
        say("socket", raw(high[i] | SYS_socket, AF_UNIX, SOCK_STREAM, 0));
        int child = fork(), status;
        if (child == 0) _exit(-raw(high[i] | SYS_execve, (uintptr_t)"/bin/true", (uintptr_t)arguments, 0) & 127);
        waitpid(child, &status, 0);
        say("execve", -WEXITSTATUS(status));
    }
}
"#),
        policy = native,
        refused = &[refused("socket", 4), refused("execve", 4)],
        answers = &[("socket", "EPERM"), ("execve", "EPERM")],
        control = under(|scene| starting(scene).network(varek_core::Network::Host)).gains(&["execve"]);

    high_bits_of_an_argument_meet_the_same_condition:
        program = Program::C(r#"
static void attack(const char *run) {
    const uint64_t high = 0xdeadbeefull << 32;
    say("typing", reached(syscall(SYS_ioctl, 0, high | TIOCSTI, "x")));
    say("typing on a console", reached(syscall(SYS_ioctl, 0, high | TIOCLINUX, "x")));
    say("owner", reached(syscall(SYS_ioctl, 1, high | 0x8901, "x")));
    say("dumpable", reached(syscall(SYS_prctl, high | PR_SET_DUMPABLE, 0, 0, 0, 0)));
    say("parent's death", reached(syscall(SYS_prctl, high | PR_SET_PDEATHSIG, 0, 0, 0, 0)));
    say("subreaper", reached(syscall(SYS_prctl, high | PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)));
    say("layout", reached(syscall(SYS_personality, high | 0x0040000)));
    say("datagrams", reached(syscall(SYS_socketpair, high | AF_UNIX, high | SOCK_DGRAM, 0, (int[2]){0})));
    say("device", reached(syscall(SYS_mknodat, AT_FDCWD, "device", high | S_IFCHR | 0600, 0x103)));
    int child = syscall(SYS_clone, high | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    say("sibling", tried(child));
}
"#),
        policy = native,
        refused = &[refused("ioctl", 3), refused("prctl", 3), refused("personality", 1), refused("socketpair", 1), refused("mknodat", 1), refused("clone", 1)],
        control = under(with_ioctl).gains(&["dumpable", "parent's death", "subreaper", "layout"]);

    denied_calls_by_the_vsyscall_page_are_denied:
        program = Program::C(r#"
static void attack(const char *run) {
    struct { long seconds, rest; } now = {0, 0};
    long got = ((long (*)(void *, void *))0xffffffffff600000)(&now, 0);
    say("gettimeofday", got == 0 && now.seconds > 0 ? 0 : got);
    got = ((long (*)(void *))0xffffffffff600400)(0);
    say("time", got > 0 ? 0 : got);
}
"#),
        policy = |scene| native(scene).syscalls(|calls| calls.deny(["time", "gettimeofday"])),
        refused = &[refused("time", 1), refused("gettimeofday", 1)],
        answers = &[("time", "EPERM"), ("gettimeofday", "EPERM")],
        lacks = lacks_vsyscall,
        control = under(native);
}
