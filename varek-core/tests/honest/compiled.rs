//! Compiled programs, under the preset `native`: C with each library there is, Rust's standard library, Go.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command as Compiler;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, thread};

use varek_core::{Command, Outcome, Policy};

use crate::support::{self, open_directory, text};
use crate::{assert_honest, patient, program_or_return, sandbox};

/// What C programs use of their library: threads, children, pipes, signals, timers, files, users, time.
const C: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int total;
static volatile sig_atomic_t rang;
static void ring(int signal) { rang++; }
static void *add(void *n) {
    pthread_mutex_lock(&lock); total += *(int *)n; pthread_cond_signal(&changed); pthread_mutex_unlock(&lock);
    return 0;
}
int main(void) {
    pthread_t threads[4]; int numbers[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++) if (pthread_create(&threads[i], 0, add, &numbers[i])) return 1;
    pthread_mutex_lock(&lock); while (total < 10) pthread_cond_wait(&changed, &lock); pthread_mutex_unlock(&lock);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%d\n", total);
    int ends[2]; char text[32] = {0};
    if (pipe(ends)) return 2;
    pid_t child = fork();
    if (child == 0) { write(ends[1], "piped", 5); _exit(7); }
    struct pollfd wait = {ends[0], POLLIN, 0}; poll(&wait, 1, -1); read(ends[0], text, 5);
    int status; waitpid(child, &status, 0); printf("%s %d\n", text, WEXITSTATUS(status));
    struct sigaction action = {0}; action.sa_handler = ring; sigaction(SIGALRM, &action, 0);
    timer_t timer; struct itimerspec soon = {{0, 0}, {0, 1000000}};
    struct sigevent event = {0}; event.sigev_notify = SIGEV_SIGNAL; event.sigev_signo = SIGALRM;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return 3;
    sigset_t alarm, before; sigemptyset(&alarm); sigaddset(&alarm, SIGALRM); sigprocmask(SIG_BLOCK, &alarm, &before);
    timer_settime(timer, 0, &soon, 0); while (!rang) sigsuspend(&before); printf("rang %d\n", (int)rang);
    int tick = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), poller = epoll_create1(0), counter = eventfd(1, 0);
    timerfd_settime(tick, 0, &soon, 0);
    struct epoll_event ready = {.events = EPOLLIN}; epoll_ctl(poller, EPOLL_CTL_ADD, tick, &ready);
    printf("%d %d\n", epoll_wait(poller, &ready, 1, -1), counter >= 0);
    char name[] = "file-XXXXXX"; int file = mkstemp(name); if (file < 0 || ftruncate(file, 4096)) return 4;
    char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); memcpy(map, "mapped", 6); msync(map, 4096, MS_SYNC);
    pread(file, text, 6, 0); DIR *here = opendir("."); int entries = 0; while (readdir(here)) entries++; closedir(here);
    struct stat seen; stat(name, &seen); printf("%s %d %ld\n", text, entries, (long)seen.st_size); unlink(name);
    struct passwd *user = getpwuid(0); printf("%s\n", user ? user->pw_name : "nobody");
    time_t zero = 0; char when[32]; setenv("TZ", "CET-1", 1); tzset(); strftime(when, 32, "%H:%M", localtime(&zero)); puts(when);
    int pair[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, pair); send(pair[0], "sent", 4, 0); recv(pair[1], text, 5, 0);
    unsigned random; struct rlimit files; getrlimit(RLIMIT_NOFILE, &files);
    printf("%.4s %d %d %d\n", text, getrandom(&random, sizeof random, 0) == sizeof random, sysconf(_SC_NPROCESSORS_ONLN) > 0,
           files.rlim_cur > 3);
    char *large = malloc(64 << 20); memset(large, 1, 64 << 20); large = realloc(large, 96 << 20); free(large);
    FILE *stream = tmpfile(); fprintf(stream ? stream : stderr, "x"); puts(stream ? "temporary" : "none");
    return 0;
}
"#;

/// tmpfile(3) of musl and glibc wants `/tmp`, which no preset grants, and says so by its result.
const C_PRINTED: &str = "10\npiped 7\nrang 1\n1 1\nmapped 4 4096\nroot\n01:00\nsent 1 1 1\nnone\n";

fn compiled(
    test: &str,
    compiler: &str,
    options: &[&str],
    directory: &Path,
    source: &str,
) -> Option<PathBuf> {
    let (text, program) = (directory.join("main.c"), directory.join("main"));
    fs::write(&text, source).unwrap();
    let made = Compiler::new(compiler)
        .args(["-O1", "-w", "-pthread"])
        .args(options)
        .arg("-o")
        .args([&program, &text])
        .output();
    match made {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{compiler}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            support::not_run(test, &format!("{compiler}: {error}"));
            None
        }
    }
}

/// Compiles and runs the program; `None`, which is said, where that cannot be done here.
fn run_c(test: &str, compiler: &str, options: &[&str], source: &str) -> Option<Outcome> {
    let directory = open_directory();
    let program = compiled(test, compiler, options, directory.path(), source)?;
    let sandbox = support::sandbox_or_not_run(test, patient(Policy::native()))?;
    let command = Command::new("./main").executable("main", fs::read(program).unwrap());
    Some(sandbox.run(command).unwrap())
}

#[test]
fn c_programs_work_with_the_systems_library() {
    if let Some(outcome) = run_c(crate::test_name!(), "cc", &[], C) {
        assert_c(&outcome);
    }
}

#[test]
fn static_c_programs_work() {
    if let Some(outcome) = run_c(crate::test_name!(), "cc", &["-static"], C) {
        assert_c(&outcome);
    }
}

#[test]
fn c_programs_work_with_musl() {
    if let Some(outcome) = run_c(crate::test_name!(), "musl-gcc", &["-static"], C) {
        assert_c(&outcome);
    }
}

/// Looks up a user that nobody has.
const USER: &str = "#include <pwd.h>\n#include <stdio.h>\n\
                    int main(void) { puts(getpwuid(4000000000u) ? \"known\" : \"unknown\"); return 0; }\n";

#[test]
fn users_that_are_not_in_the_machines_file_are_unknown() {
    // glibc and musl ask nscd(8) through a socket. The library knows the call of the first by its flags; that of musl is
    // the same as any program's own. A static program of glibc's would load its modules for it, and often fails to.
    let libraries = [
        ("cc", None, &[][..]),
        ("musl-gcc", Some("-static"), &["socket"]),
    ];
    for (compiler, option, denied) in libraries {
        if let Some(outcome) = run_c(crate::test_name!(), compiler, option.as_slice(), USER) {
            assert_honest(&outcome, "unknown\n", denied);
        }
    }
}

#[track_caller]
fn assert_c(outcome: &Outcome) {
    assert_honest(outcome, C_PRINTED, &[]);
    assert_eq!(outcome.stderr.to_text(), "x");
}

/// Set in the process that is the guest of the test below.
const GUEST: &str = "VAREK_TEST_HONEST_GUEST";

#[test]
fn the_standard_library_of_rust_works() {
    if env::var_os(GUEST).is_some() {
        guest();
        return;
    }
    let sandbox = sandbox!(patient(Policy::native()));
    // This program is one of Rust's itself: it runs this test once more, as a guest.
    let image = fs::read(env::current_exe().unwrap()).unwrap();
    let command = Command::new("./guest")
        .executable("guest", image)
        .args([
            crate::test_name!().split_once("::").unwrap().1,
            "--exact",
            "--nocapture",
        ])
        .env(GUEST, "1")
        .env("RUST_BACKTRACE", "1")
        .stdin("line\n");
    let outcome = sandbox.run(command).unwrap();
    support::assert_clean(&outcome);
    assert!(
        text(&outcome).contains("guest: all of it\n"),
        "{outcome}\n{}",
        text(&outcome)
    );
    assert!(
        outcome.stderr.to_text().contains("caught on purpose"),
        "{outcome}"
    );
    assert!(outcome.denials.is_empty(), "{outcome}");
}

/// What programs use of Rust's standard library.
fn guest() {
    let barrier = Arc::new(Barrier::new(4));
    let total = Arc::new(Mutex::new(0));
    let (send, receive) = mpsc::channel();
    let threads = (0..4).map(|n| {
        let (barrier, total, send) = (barrier.clone(), total.clone(), send.clone());
        thread::Builder::new()
            .name(format!("worker {n}"))
            .spawn(move || {
                barrier.wait();
                *total.lock().unwrap() += n;
                send.send(n).unwrap();
            })
    });
    let threads: Vec<_> = threads.map(Result::unwrap).collect();
    drop(send);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(
        (*total.lock().unwrap(), receive.iter().sum::<i32>()),
        (6, 6)
    );
    assert_eq!(
        receive.recv_timeout(Duration::from_millis(1)),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );

    let begin = Instant::now();
    thread::park_timeout(Duration::from_millis(1));
    assert!(begin.elapsed() > Duration::ZERO && SystemTime::now() > SystemTime::UNIX_EPOCH);
    assert!(thread::available_parallelism().unwrap().get() > 0);

    let directory = env::temp_dir().join("made");
    fs::create_dir_all(directory.join("deep")).unwrap();
    let path = directory.join("file");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"text").unwrap();
    file.sync_all().unwrap();
    fs::rename(&path, directory.join("renamed")).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    assert_eq!(
        fs::read_to_string(directory.join("renamed")).unwrap(),
        "text"
    );
    std::os::unix::fs::symlink("renamed", directory.join("link")).unwrap();
    assert!(
        directory
            .join("link")
            .canonicalize()
            .unwrap()
            .ends_with("renamed")
    );
    fs::remove_dir_all(&directory).unwrap();

    let map: std::collections::HashMap<_, _> = env::vars_os().collect();
    assert!(map.contains_key(std::ffi::OsStr::new("HOME")));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "line\n");
    // With a backtrace, for which the program reads its own image and map.
    assert!(std::panic::catch_unwind(|| panic!("caught on purpose")).is_err());
    println!("guest: all of it");
}

/// Goroutines, and one that only preemption takes the processor from: the runtime signals its own threads.
const GO: &str = r#"
package main

import (
	"bytes"; "compress/gzip"; "crypto/sha256"; "fmt"; "io"; "os"; "os/exec"; "os/signal"; "path/filepath"; "runtime"; "sync"
	"syscall"; "time"
)

func spin(n int) int { s := 0; for i := 0; i < n; i++ { s += i ^ s<<1 }; return s }

func main() {
	var wg sync.WaitGroup; var mu sync.Mutex; total := 0
	for i := 0; i < 50; i++ { wg.Add(1); go func(i int) { defer wg.Done(); mu.Lock(); total += i; mu.Unlock() }(i) }
	wg.Wait(); fmt.Println(total)
	runtime.GOMAXPROCS(1); done := make(chan int); go func() { done <- spin(1 << 27) }()
	ticker := time.NewTicker(time.Millisecond); ticks := 0
	for spinning := true; spinning; { select { case <-ticker.C: ticks++; case <-done: spinning = false } }
	fmt.Println(ticks > 0); runtime.GOMAXPROCS(runtime.NumCPU())
	for i := 0; i < 100; i++ { _ = make([]byte, 1<<20) }; runtime.GC()
	d, err := os.MkdirTemp("", "x"); if err != nil { panic(err) }
	if err := os.WriteFile(filepath.Join(d, "f"), []byte("x"), 0o644); err != nil { panic(err) }
	fmt.Printf("%.4x\n", sha256.Sum256(nil))
	c := make(chan os.Signal, 1); signal.Notify(c, syscall.SIGUSR1); syscall.Kill(os.Getpid(), syscall.SIGUSR1); fmt.Println(<-c)
	var b bytes.Buffer; w := gzip.NewWriter(&b); w.Write([]byte("zipped")); w.Close()
	r, _ := gzip.NewReader(&b); s, _ := io.ReadAll(r); fmt.Println(string(s))
	in, out, _ := os.Pipe(); go func() { out.Write([]byte("piped")); out.Close() }(); s, _ = io.ReadAll(in); fmt.Println(string(s))
	if len(os.Args) > 1 { fmt.Println(exec.Command("/bin/echo").Run()) }
}
"#;

#[test]
fn go_preempts_its_goroutines_and_collects() {
    let compiler = program_or_return!("go");
    let directory = open_directory();
    let (source, program) = (
        directory.path().join("main.go"),
        directory.path().join("main"),
    );
    fs::write(&source, GO).unwrap();
    let made = Compiler::new(compiler)
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOCACHE", directory.path().join("cache"))
        .env("GO111MODULE", "off")
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let sandbox = sandbox!(patient(Policy::native()));
    let image = fs::read(program).unwrap();
    let printed = "1225\ntrue\ne3b0c442\nuser defined signal 1\nzipped\npiped\n";
    let command = |image: &[u8]| Command::new("./main").executable("main", image);
    let outcome = sandbox.run(command(&image)).unwrap();
    assert_honest(&outcome, printed, &[]);

    let outcome = sandbox.run(command(&image).arg("child")).unwrap();
    let refused = "fork/exec /bin/echo: operation not permitted\n";
    assert_eq!(text(&outcome), format!("{printed}{refused}"));
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("execve")
    );
}
