//! Learnt policies hold: real programs are watched, and run in a sandbox under what was learnt of them, with no denied call; and without one
//! thing of it they fail.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use varek_core::{Command, Error, Host, Identity, Network, Outcome, Policy, Sandbox, Termination};
use varek_examples::learn;

const LEARN: &str = env!("CARGO_BIN_EXE_learn");

/// Ends the test as not run where calls cannot be reported; with a program, also where guests cannot run or it is not there.
macro_rules! learns_or_return {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        if let Err(error) = learn::supported(&Host::probe()) {
            support::not_run(name, &error.to_string());
            return;
        }
    }};
    ($program:expr) => {{
        learns_or_return!();
        guests_or_return!($program);
    }};
}

/// A program with what is in its scratch directory.
struct Subject<'a> {
    command: &'a [&'a str],
    files: &'a [(&'a str, &'a [u8])],
}

impl Subject<'_> {
    /// Watches it; what was learnt, and what it printed.
    #[track_caller]
    fn learn(&self) -> (Policy, String) {
        let scratch = self.scratch();
        let policy = tempfile::NamedTempFile::new().unwrap();
        let mut program = Program::new(LEARN);
        if let Some(uid) = guests_uid() {
            std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777))
                .unwrap();
            program.args(["--uid", &uid.to_string()]);
        }
        let output = program
            .arg("--scratch")
            .arg(scratch.path())
            .arg("--output")
            .arg(policy.path())
            .args(self.command)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        let text = std::fs::read_to_string(policy.path()).unwrap();
        let policy: Policy = toml::from_str(&text).unwrap();
        assert_eq!(policy.problems(), [], "{text}");
        (policy, String::from_utf8(output.stdout).unwrap())
    }

    fn scratch(&self) -> TempDir {
        let scratch = tempfile::tempdir().unwrap();
        for (name, contents) in self.files {
            let path = scratch.path().join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        scratch
    }

    /// Runs it in a sandbox.
    fn confined(&self, policy: &Policy) -> Result<Outcome, Error> {
        let (program, arguments) = self.command.split_first().unwrap();
        let command = Command::new(program).args(arguments);
        let files = self.files.iter();
        let command = files.fold(command, |command, (name, contents)| {
            command.executable(name, *contents)
        });
        Sandbox::new(policy.clone()).unwrap().run(command)
    }

    /// Whether it does in a sandbox what it did when it was watched.
    fn works(&self, policy: &Policy, printed: &str) -> bool {
        self.confined(policy).is_ok_and(|outcome| {
            outcome.termination == Termination::Exited(0) && outcome.stdout.to_text() == printed
        })
    }

    /// Under what was learnt it works, with no denied call.
    #[track_caller]
    fn holds(&self, policy: &Policy, printed: &str) {
        let outcome = self.confined(policy).unwrap();
        let stderr = outcome.stderr.to_text();
        assert_eq!(
            outcome.termination,
            Termination::Exited(0),
            "{outcome}\n{stderr}"
        );
        assert_eq!(outcome.violation(), None, "{outcome}\n{stderr}");
        assert_eq!(outcome.stdout.to_text(), printed, "{stderr}");
    }

    /// What is learnt is enough, and without this call, or these paths, it is not.
    #[track_caller]
    fn takes(&self, call: &str, path: impl Fn(&Path) -> bool) {
        let (policy, printed) = self.learn();
        assert_ne!(printed, "");
        self.holds(&policy, &printed);

        assert!(policy.syscalls.allows(call), "{call} was not learnt");
        let fewer = policy.clone().syscalls(|calls| calls.deny([call]));
        assert!(!self.works(&fewer, &printed), "{call} was not needed");

        let mut closed = policy.clone();
        let lists = &mut closed.filesystem;
        for list in [&mut lists.read, &mut lists.write, &mut lists.execute] {
            list.retain(|granted| !path(granted));
        }
        assert_ne!(closed, policy, "no such path was learnt");
        assert!(!self.works(&closed, &printed), "the path was not needed");
    }
}

/// One of the uids that root's guests have, which take other ways than root does. The memory of its processes can only be read with
/// CAP_SYS_PTRACE.
fn guests_uid() -> Option<u32> {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
    let reads = rustix::process::geteuid().is_root() && capabilities & CAP_SYS_PTRACE != 0;
    match Policy::python().identity {
        Identity::Separate(range) if reads => Some(range.first + range.count - 1),
        _ => None,
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn real(path: &str) -> PathBuf {
    Path::new(path).canonicalize().unwrap()
}

/// Watches a program without a scratch directory of its own.
fn watch(options: &[&str], command: &[&str]) -> Output {
    Program::new(LEARN)
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The policy on stderr, which begins with the report.
#[track_caller]
fn policy_in(output: &Output) -> Policy {
    let text = String::from_utf8_lossy(&output.stderr);
    let report = text
        .find("# learnt from")
        .unwrap_or_else(|| panic!("{text}"));
    toml::from_str(&text[report..]).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const PYTHON: &str = r"
import json, sqlite3, threading, queue, tempfile, os
answers = queue.Queue()
threads = [threading.Thread(target=lambda n=n: answers.put(n * n)) for n in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
base = sqlite3.connect('base.db')
base.execute('pragma journal_mode=wal'); base.execute('create table t (n)')
base.executemany('insert into t values (?)', [(answers.get(),) for _ in threads]); base.commit()
with tempfile.TemporaryFile('w+') as file:
    json.dump(base.execute('select sum(n) from t').fetchone(), file)
    file.seek(0); print(json.load(file), sorted(os.listdir('.')))
base.close()
";

#[test]
fn python_with_threads_and_a_database_runs_under_what_was_learnt() {
    learns_or_return!("python3");
    let subject = Subject {
        command: &["python3", "main.py"],
        files: &[("main.py", PYTHON.as_bytes())],
    };
    subject.takes("clone", |path| name(path).starts_with("python3."));
}

#[test]
fn a_shell_with_pipelines_runs_under_what_was_learnt() {
    learns_or_return!("bash");
    let script = "printf '%s\\n' c a b | sort | tee list | head -n 2 | tr a-z A-Z\n\
                  (cd /; cat < /etc/passwd | wc -l) && grep -c b list; x=$(seq 5 | tail -n 1); echo $((x * 2))\n\
                  mkdir d && mv list d/ && ls d && rm -r d; trap 'echo caught' USR1; kill -USR1 $$\n";
    let subject = Subject {
        command: &["bash", "main.sh"],
        files: &[("main.sh", script.as_bytes())],
    };
    subject.takes("execve", |path| path == "/etc/passwd");
}

#[test]
fn node_runs_under_what_was_learnt() {
    learns_or_return!("node");
    let source = "const fs = require('node:fs'), { createHash } = require('node:crypto');\n\
                  fs.writeFileSync('a', 'text'); setTimeout(() => console.log(fs.readdirSync('.').join(),\n\
                  createHash('sha256').update(fs.readFileSync('a')).digest('hex').slice(0, 8)), 1);";
    let subject = Subject {
        command: &["node", "main.js"],
        files: &[("main.js", source.as_bytes())],
    };
    subject.takes("epoll_ctl", |path| name(path).starts_with("ld-"));
}

const COMPILED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void *add(void *sum) { __atomic_add_fetch((int *)sum, 21, __ATOMIC_SEQ_CST); return 0; }
int main(void) {
  int sum = 0, status; pthread_t threads[2]; char name[64] = "";
  for (int i = 0; i < 2; i++) if (pthread_create(&threads[i], 0, add, &sum)) return 1;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  FILE *file = fopen("/etc/passwd", "r");
  if (!file || fscanf(file, "%60[^:]", name) != 1) return 2;
  pid_t child = fork();
  if (child < 0) return 3;
  if (!child) _exit(5);
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5) return 4;
  printf("%d %s\n", sum, name);
  return 0;
}
"#;

#[test]
fn a_compiled_program_runs_under_what_was_learnt() {
    learns_or_return!("cc");
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (
        directory.path().join("main.c"),
        directory.path().join("main"),
    );
    std::fs::write(&source, COMPILED).unwrap();
    let compiled = Program::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let image = std::fs::read(program).unwrap();
    let subject = Subject {
        command: &["./main"],
        files: &[("main", &image)],
    };
    subject.takes("wait4", |path| path == "/etc/passwd");
}

#[test]
fn a_client_runs_with_the_port_that_was_learnt_and_with_no_other() {
    learns_or_return!("python3");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || server.incoming().for_each(drop));
    let source =
        format!("import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9))");
    let subject = Subject {
        command: &["python3", "main.py"],
        files: &[("main.py", source.as_bytes())],
    };
    let (policy, printed) = subject.learn();
    assert_eq!(
        (&policy.network, printed.as_str()),
        (&Network::tcp([port], []), "b''\n")
    );
    if let Err(error) = Sandbox::new(policy.clone()) {
        support::not_run(
            "a_client_runs_with_the_port_that_was_learnt_and_with_no_other",
            &error.to_string(),
        );
        return;
    }
    subject.holds(&policy, &printed);
    let other = policy.network(Network::tcp([port.wrapping_add(1).max(1)], []));
    assert!(!subject.works(&other, &printed));
}

#[test]
fn children_threads_and_what_outlives_the_program_are_all_watched() {
    learns_or_return!();
    // The first process ends while another waits for that, which then starts a third.
    let script = "(while kill -0 $$ 2> /dev/null; do :; done; exec cat /etc/nsswitch.conf > /dev/null) & exit 3";
    let output = watch(&["--preset", "shell"], &["bash", "-c", script]);
    assert_eq!(output.status.code(), Some(3));
    let policy = policy_in(&output);
    assert!(policy.filesystem.execute.contains(&real("/usr/bin/cat")));
    assert!(
        policy
            .filesystem
            .read
            .contains(&PathBuf::from("/etc/nsswitch.conf"))
    );
    let calls: Vec<_> = policy.syscalls.calls().collect();
    assert!(
        ["execve", "clone", "kill"]
            .iter()
            .all(|call| calls.contains(call)),
        "{calls:?}"
    );
    // The way without it is learnt.
    assert!(!policy.syscalls.allows("clone3"));
}

#[test]
fn a_vforked_child_is_watched_while_its_parent_is_held_up() {
    learns_or_return!();
    let source = "import os; pid = os.posix_spawn('/bin/uname', ['uname', '-s'], {}); print(os.waitpid(pid, 0)[1])";
    let output = watch(&[], &["python3", "-c", source]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Linux\n0\n");
    assert!(
        policy_in(&output)
            .filesystem
            .execute
            .contains(&real("/bin/uname"))
    );
}

#[test]
fn the_programs_end_is_the_exit_status() {
    learns_or_return!();
    for (script, code) in [("exit 7", 7), ("kill -TERM $$", 128 + 15), ("true", 0)] {
        let output = watch(&[], &["bash", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}");
        policy_in(&output);
    }
}

#[test]
fn what_cannot_be_started_is_an_error() {
    learns_or_return!();
    for (command, reason) in [
        ("/nowhere/program", "cannot start /nowhere/program"),
        ("no-such-program", "there is no no-such-program in"),
        ("/etc/passwd", "cannot start /etc/passwd: Permission denied"),
    ] {
        let output = watch(&[], &[command]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn within_another_listener_nothing_is_learnt_and_the_error_says_so() {
    learns_or_return!();
    let output = watch(&[], &[LEARN, "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("a listener, of which a process has one only"),
        "{text}"
    );
}

#[test]
fn the_programs_own_streams_are_left_alone() {
    learns_or_return!();
    let mut child = Program::new(LEARN)
        .args([
            "bash",
            "-c",
            "read -r line; echo \"got $line\"; echo aside >&2",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got words\n");
    assert!(output.stderr.starts_with(b"aside\n# learnt from"));
}

#[test]
fn signals_reach_the_program_and_what_it_did_is_still_reported() {
    learns_or_return!();
    // Blocked first, so that the signal waits for the program where it comes early.
    let source = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n\
                  print('ready', flush=True); raise SystemExit(signal.sigwait([signal.SIGTERM]))";
    let mut child = Program::new(LEARN)
        .args(["python3", "-c", source])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(15));
    policy_in(&output);
}

#[test]
fn a_signal_ends_the_wait_for_what_the_program_left() {
    learns_or_return!();
    let script = "exec 3<&0; (while kill -0 $$ 2> /dev/null; do :; done; echo left; read -r line <&3) & exit 4";
    let mut child = Program::new(LEARN)
        .args(["bash", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // What is left ends with this.
    let stdin = child.stdin.take();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "left\n");
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    policy_in(&output);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("were still running"), "{text}");
}

#[test]
fn root_learns_as_the_uid_that_it_says_and_nobody_else_can() {
    learns_or_return!();
    let output = watch(&["--uid", "65534"], &["id", "-u"]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n");
        policy_in(&output);
    } else {
        assert_eq!(output.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--uid takes root"));
    }
}

#[test]
fn datagrams_take_the_hosts_network_and_the_note_says_why() {
    learns_or_return!();
    let source =
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('127.0.0.1', 0))";
    let output = watch(&[], &["python3", "-c", source]);
    assert_eq!(policy_in(&output).network, Network::Host);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("bounds nothing, for: socket(0x2, "), "{text}");
}
