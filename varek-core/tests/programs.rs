//! The list of programs: what is on it starts, and nothing else becomes a program by any route. The control of every route is
//! the same attack under a policy that allows it.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use support::{
    assert_clean, assert_gone, bounded, compiled, not_run, open_directory, seconds, text,
};
use varek_core::{Command, Error, Host, Layer, MountSupport, Outcome, Output, Policy, Sandbox};

/// Tries each way to start a program, and prints of each what became of it: the error's number, or 1000 and the program's status.
/// `attack OTHER LOADER LISTED`: a program that is not on the list, the loader, one that is on the list.
const ATTACK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void attempt(const char *name, int descriptor, char **v) {
    int p[2], e = 0, status;
    if (pipe2(p, O_CLOEXEC)) exit(9);
    if (fork() == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1); dup2(null, 2);
        if (descriptor >= 0) syscall(SYS_execveat, descriptor, "", v, environ, AT_EMPTY_PATH);
        else execv(v[0], v);
        e = errno; write(p[1], &e, sizeof e); _exit(1);
    }
    close(p[1]);
    int failed = read(p[0], &e, sizeof e) == sizeof e;
    close(p[0]); wait(&status);
    printf("%s %d\n", name, failed ? e : 1000 + WEXITSTATUS(status));
    fflush(stdout);
}
#define TRY(name, ...) attempt(name, -1, (char *[]){__VA_ARGS__, 0})
int main(int n, char **v) {
    char *other = v[1], *loader = v[2], *listed = v[3], path[64], buffer[65536];
    TRY("listed", listed);
    TRY("listed by the loader", loader, listed);
    TRY("other", other);
    TRY("other by the loader", loader, other);
    int file = open(other, O_RDONLY);
    printf("other read %d\n", file < 0 ? errno : 0);
    // Of what the embedder opened: its stdin is the program that is not on the list.
    sprintf(path, "/proc/%d/fd/0", getpid());
    attempt("stream by its descriptor", 0, (char *[]){"s", 0});
    TRY("stream by the loader", loader, path);
    chmod("copy", 0700); chmod("script", 0700);
    TRY("copy", "./copy");
    TRY("copy by the loader", loader, "./copy");
    TRY("copy in shared memory by the loader", loader, "/dev/shm/copy");
    TRY("script", "./script");
    int copy = open("copy", O_RDONLY);
    struct stat s; fstat(copy, &s);
    void *m = mmap(0, s.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, copy, 0);
    printf("copy mapped %d\n", m == MAP_FAILED ? errno : 0);
    m = mmap(0, s.st_size, PROT_READ, MAP_PRIVATE, copy, 0);
    printf("copy made executable %d\n", mprotect(m, s.st_size, PROT_READ | PROT_EXEC) ? errno : 0);
    int memory = syscall(SYS_memfd_create, "m", 0);
    printf("memory %d\n", memory < 0 ? errno : 0);
    if (memory >= 0) {
        ssize_t got;
        while ((got = read(copy, buffer, sizeof buffer)) > 0) write(memory, buffer, got);
        sprintf(path, "/proc/%d/fd/%d", getpid(), memory);
        attempt("memory by its descriptor", memory, (char *[]){"m", 0});
        TRY("memory by its link", path);
        TRY("memory by the loader", loader, path);
    }
    return 0;
}
"#;

/// What the attack said, by name.
type Said = BTreeMap<String, i32>;

struct Attack {
    program: PathBuf,
    loader: PathBuf,
    _place: tempfile::TempDir,
}

const OTHER: &str = "/usr/bin/id";
const LISTED: &str = "/usr/bin/true";
const RAN: i32 = 1000;

impl Attack {
    fn new(test: &str) -> Option<Self> {
        let place = open_directory();
        let program = compiled(test, place.path(), "attack", ATTACK, &[])?;
        let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
        let found = loaders.iter().map(PathBuf::from).find(|path| path.exists());
        let Some(loader) =
            found.filter(|_| Path::new(OTHER).exists() && Path::new(LISTED).exists())
        else {
            not_run(
                test,
                "this host has no loader of glibc, or no /usr/bin/id and true",
            );
            return None;
        };
        Some(Self {
            program,
            loader,
            _place: place,
        })
    }

    /// The strict policy, with the attack itself on the list.
    fn strict(&self) -> Policy {
        patient(Policy::only([self.program.as_path(), Path::new(LISTED)]))
    }

    /// `open`: the copy and the script may be brought as programs. Otherwise the guest makes them executable, where it may.
    fn run(&self, sandbox: &Sandbox, open: bool) -> (Said, Outcome) {
        let command = Command::new(&self.program)
            .arg(OTHER)
            .arg(&self.loader)
            .arg(LISTED)
            .stdin(File::open(OTHER).unwrap());
        let (copy, script) = (fs::read(OTHER).unwrap(), "#!/usr/bin/true\n");
        let command = if open {
            command
                .executable("copy", copy)
                .executable("script", script)
        } else {
            command.file("copy", copy).file("script", script)
        };
        let outcome = sandbox.run(command).unwrap();
        let output = text(&outcome);
        assert_eq!(outcome.exit_code(), Some(0), "{outcome}\n{output}");
        assert_gone(&outcome);
        let said = output.lines().map(|line| {
            let (name, number) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), number.parse().unwrap())
        });
        (said.collect(), outcome)
    }
}

fn patient(policy: Policy) -> Policy {
    policy.wall_clock(seconds(20)).grace(seconds(2))
}

/// A sandbox for a strict policy. Where this program may not mount, its scratch directories are made in `/dev/shm`, if that is mounted
/// without the right to execute.
fn strict(test: &str, policy: Policy) -> Option<Sandbox> {
    match Sandbox::new(policy.clone()) {
        Err(Error::Unsupported { missing })
            if missing.iter().all(|m| m.layer == Layer::Scratch) =>
        {
            match Sandbox::builder(policy).scratch_base("/dev/shm").build() {
                Ok(sandbox) => Some(sandbox),
                Err(error) => {
                    not_run(test, &error.to_string());
                    None
                }
            }
        }
        _ => support::sandbox_or_not_run(test, policy),
    }
}

#[test]
fn what_is_on_the_list_starts_and_nothing_else_by_any_route() {
    let test = "what_is_on_the_list_starts_and_nothing_else_by_any_route";
    let Some(attack) = Attack::new(test) else {
        return;
    };
    // The control: every route works where a policy lets programs be started and says no more.
    let open = patient(Policy::shell()).execute(attack.program.parent().unwrap());
    let sandbox = sandbox!(open);
    let (said, _) = attack.run(&sandbox, true);
    for (name, number) in &said {
        let plain = [
            "other read",
            "copy mapped",
            "copy made executable",
            "memory",
        ];
        let shared = name.contains("shared memory") && !bounded(&sandbox);
        let expected = if plain.contains(&name.as_str()) {
            0
        } else {
            RAN
        };
        assert!(shared || *number == expected, "{name} {said:?}");
    }
    assert_eq!(said.len(), 17);

    let Some(sandbox) = strict(test, attack.strict()) else {
        return;
    };
    let (said, outcome) = attack.run(&sandbox, false);
    assert_eq!((said["listed"], said["listed by the loader"]), (RAN, RAN));
    let [perm, access] = [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error);
    for (name, answer) in [
        ("other", access),
        ("other read", access),
        ("stream by its descriptor", access),
        ("copy", access),
        ("script", access),
        // The loader starts, since it must, and finds nothing that it may read or map.
        ("other by the loader", RAN + 127),
        ("stream by the loader", RAN + 127),
        ("copy by the loader", RAN + 127),
        ("copy in shared memory by the loader", RAN + 127),
        ("copy mapped", perm),
        ("copy made executable", access),
        ("memory", perm),
    ] {
        assert_eq!(said[name], answer, "{name} {said:?}");
    }
    assert_eq!(said.len(), 14);
    let violation = outcome.violation().unwrap();
    // A guest under this program's uid may not set modes, either.
    let calls = [Some("memfd_create"), Some("chmod"), Some("fchmodat")];
    assert!(calls.contains(&violation.syscall()), "{outcome}");
}

#[test]
fn one_directory_and_one_program_are_all_that_there_is() {
    let test = "one_directory_and_one_program_are_all_that_there_is";
    let data = open_directory();
    let names = data.path().join("names");
    for (name, contents) in [("names", "b\na\n"), ("secret", "secret\n")] {
        let place = data.path().join(name);
        fs::write(&place, contents).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let policy = patient(Policy::only(["/usr/bin/sort"]));
    let Some(sandbox) = strict(test, policy.clone().read(&names)) else {
        return;
    };
    let sort =
        |sandbox: &Sandbox, file: &Path| sandbox.run(Command::new("sort").arg(file)).unwrap();
    let outcome = sort(&sandbox, &names);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "a\nb\n");
    for closed in [
        data.path().join("secret"),
        "/etc/fstab".into(),
        "/usr/bin/id".into(),
    ] {
        assert_eq!(sort(&sandbox, &closed).exit_code(), Some(2), "{closed:?}");
    }
    // It is started as such, and nothing else is.
    match sandbox.run(Command::new("cat").arg(&names)) {
        Err(error @ Error::Program { .. }) => {
            assert!(error.to_string().contains("filesystem.programs"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The control: the directory as a whole.
    let sandbox = strict(test, policy.read(data.path())).unwrap();
    let outcome = sort(&sandbox, &data.path().join("secret"));
    assert_eq!(text(&outcome), "secret\n", "{outcome}");
}

#[test]
fn a_program_that_is_readable_is_run_by_the_loader_as_the_documentation_says() {
    let test = "a_program_that_is_readable_is_run_by_the_loader_as_the_documentation_says";
    let Some(attack) = Attack::new(test) else {
        return;
    };
    let said = |policy: Policy| Some(attack.run(&strict(test, policy)?, false).0);
    let Some(closed) = said(attack.strict()) else {
        return;
    };
    // Its libraries are those of another program on the list.
    let open = said(attack.strict().read(OTHER).read("/usr/lib").read("/lib")).unwrap();
    let name = "other by the loader";
    assert_eq!((closed[name], open[name]), (RAN + 127, RAN));
    assert_eq!(open["other"], Errno::ACCESS.raw_os_error());
}

#[test]
fn a_script_on_the_list_starts_by_its_interpreter() {
    let test = "a_script_on_the_list_starts_by_its_interpreter";
    let place = open_directory();
    let script = place.path().join("script");
    fs::write(&script, "#!/bin/sh\necho \"$1\"; id\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |policy: Policy| {
        let outcome = strict(test, patient(policy))?.run(Command::new(&script).arg("ran"));
        Some(outcome.unwrap())
    };
    let Some(outcome) = run(Policy::only([&script])) else {
        return;
    };
    assert_eq!(
        (text(&outcome).as_str(), outcome.exit_code()),
        ("ran\n", Some(126)),
        "{outcome}"
    );
    // The control: with the command on the list.
    let outcome = run(Policy::only([script.clone(), OTHER.into()])).unwrap();
    assert!(
        text(&outcome).starts_with("ran\nuid="),
        "{outcome}\n{}",
        outcome.stderr.to_text()
    );
}

#[test]
fn commands_that_bring_what_could_be_executed_are_refused() {
    let test = "commands_that_bring_what_could_be_executed_are_refused";
    let Some(sandbox) = strict(test, patient(Policy::only([LISTED]))) else {
        return;
    };
    let loose = sandbox!(patient(Policy::shell()));
    let given = open_directory();
    let memory = || File::from(rustix::fs::memfd_create("m", MemfdFlags::CLOEXEC).unwrap());
    let command = || Command::new(LISTED);
    let refused: [(&str, &dyn Fn() -> Command); 4] = [
        ("the file tool", &|| command().executable("tool", "x")),
        ("the scratch directory", &|| command().scratch(given.path())),
        ("a memory file", &|| command().stdin(memory())),
        ("a memory file", &|| {
            command().stdout(Output::file(memory()))
        }),
    ];
    for (what, made) in refused {
        match sandbox.run(made()) {
            Err(error @ Error::Command { .. }) => {
                assert!(error.to_string().starts_with(what), "{error}");
            }
            other => panic!("{what}: {other:?}"),
        }
        // The control: it is the list that refuses them.
        assert_clean(&loose.run(made()).unwrap());
    }
    // What has a path is held by the rules.
    let file = File::create(given.path().join("output")).unwrap();
    let command = command().file("data", "x").stdout(Output::file(file));
    assert_clean(&sandbox.run(command).unwrap());
}

#[test]
fn hosts_and_grants_that_let_what_was_written_be_executed_are_refused() {
    let place = open_directory();
    if mounts_noexec(place.path()) {
        not_run(
            "hosts_and_grants_that_let_what_was_written_be_executed_are_refused",
            "directories for temporary files are mounted noexec here",
        );
        return;
    }
    let policy = patient(Policy::only([LISTED]));
    // As an ordinary user's program has it.
    let mut host = Host::probe();
    host.mounts = MountSupport::Refused(Errno::PERM.raw_os_error());
    let build = |policy: Policy| {
        let builder = Sandbox::builder(policy).host(host.clone());
        builder.scratch_base(place.path()).build()
    };
    drop(sandbox!(patient(Policy::shell())));
    match build(policy.clone()) {
        Err(Error::Unsupported { missing }) => {
            assert_eq!(missing.len(), 1);
            assert_eq!(missing[0].layer, Layer::Scratch);
            assert!(missing[0].remedy.contains("noexec"), "{missing:?}");
        }
        other => panic!("{other:?}"),
    }
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    for written in [place.path(), &file] {
        match build(policy.clone().write(written)) {
            Err(Error::Policy { problems }) => assert_eq!(problems[0].field, "filesystem.write"),
            other => panic!("{other:?}"),
        }
    }
    // The control: without a list both are accepted.
    let beside = open_directory();
    build(patient(Policy::shell()).write(beside.path()).write(&file)).unwrap();
    // A name that is none of a program is a mistake, and one that is not there is said.
    match build(patient(Policy::only(["/usr"]))) {
        Err(Error::Policy { problems }) => assert_eq!(problems[0].field, "filesystem.programs"),
        other => panic!("{other:?}"),
    }
}

/// Whether nothing on the file system at this path can be executed.
fn mounts_noexec(path: &Path) -> bool {
    let flags = rustix::fs::statvfs(path).unwrap().f_flag;
    flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC)
}

#[test]
fn a_base_that_is_mounted_noexec_does_where_nothing_may_be_mounted() {
    const BASE: &str = "VAREK_TEST_NOEXEC_BASE";
    /// What a test program exits with that has failed.
    const FAILED: i32 = 101;
    let test = "a_base_that_is_mounted_noexec_does_where_nothing_may_be_mounted";
    let Some(attack) = Attack::new(test) else {
        return;
    };
    let Some(base) = std::env::var_os(BASE) else {
        // Again, with such a place that only that process sees.
        let place = open_directory();
        let mount = "mount -t tmpfs -o noexec,mode=1777 none \"$0\" && exec \"$@\"";
        let mut again = std::process::Command::new("unshare");
        again.args(["--mount", "sh", "-c", mount]).arg(place.path());
        again.arg(std::env::current_exe().unwrap());
        again.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        match again.env(BASE, place.path()).status().unwrap().code() {
            Some(0) => {}
            Some(FAILED) => panic!("it has failed there"),
            _ => not_run(test, "this program may make no mount for it"),
        }
        return;
    };
    let mut host = Host::probe();
    host.mounts = MountSupport::Refused(Errno::PERM.raw_os_error());
    let builder = Sandbox::builder(attack.strict()).host(host);
    let sandbox = match builder.scratch_base(&base).build() {
        Ok(sandbox) => sandbox,
        Err(error @ Error::Unsupported { .. }) => return not_run(test, &error.to_string()),
        Err(error) => panic!("{error}"),
    };
    assert!(!bounded(&sandbox));
    let (said, _) = attack.run(&sandbox, false);
    assert_eq!(said["listed"], RAN);
    assert_eq!(said["copy"], Errno::ACCESS.raw_os_error());
    assert_eq!(said["copy by the loader"], RAN + 127);
    assert_eq!(said["copy mapped"], Errno::PERM.raw_os_error());
    assert_eq!(said["copy made executable"], Errno::ACCESS.raw_os_error());
    // And as a directory of the embedder's.
    let given = Path::new(&base).join("given");
    fs::create_dir(&given).unwrap();
    let command = Command::new(LISTED).scratch(&given);
    assert_clean(&sandbox.run(command).unwrap());
}

#[test]
fn what_is_mounted_beneath_a_writable_directory_and_elsewhere_is_looked_at_too() {
    const PLACE: &str = "VAREK_TEST_NOEXEC_PLACE";
    /// What a test program exits with that has failed.
    const FAILED: i32 = 101;
    let test = "what_is_mounted_beneath_a_writable_directory_and_elsewhere_is_looked_at_too";
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        // Again, with such places that only that process sees.
        let place = open_directory();
        let mount = "set -e; mount -t tmpfs -o noexec,mode=1777 none \"$0\"; cd \"$0\"; mkdir plain \"with an\" \"with an/inner\" other other/there bound
                     mount -t tmpfs -o mode=1777 none \"with an/inner\"; mount -t tmpfs -o mode=1777 none other; mkdir other/there
                     mount --bind other/there bound; mount -o remount,bind,noexec bound; exec \"$@\"";
        let mut again = std::process::Command::new("unshare");
        again.args(["--mount", "sh", "-c", mount]).arg(place.path());
        again.arg(std::env::current_exe().unwrap());
        again.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        match again.env(PLACE, place.path()).status().unwrap().code() {
            Some(0) => {}
            Some(FAILED) => panic!("it has failed there"),
            _ => not_run(test, "this program may make no mounts for it"),
        }
        return;
    };
    let Some(attack) = Attack::new(test) else {
        return;
    };
    let [plain, with, bound] = ["plain", "with an", "bound"].map(|name| place.join(name));
    for written in [&place, &with, &bound] {
        match Sandbox::new(attack.strict().write(written)) {
            Err(Error::Policy { problems }) => assert_eq!(problems[0].field, "filesystem.write"),
            other => panic!("{other:?}"),
        }
    }
    let Some(sandbox) = strict(test, attack.strict().write(&plain)) else {
        return;
    };
    for given in [&with, &bound] {
        match sandbox.run(Command::new(LISTED).scratch(given)) {
            Err(error @ Error::Command { .. }) => assert!(error.to_string().contains("noexec")),
            other => panic!("{other:?}"),
        }
    }
    assert_clean(&sandbox.run(Command::new(LISTED).scratch(&plain)).unwrap());
    // What it would come to: the loader runs what is there.
    let copy = with.join("inner/copy");
    fs::copy(OTHER, &copy).unwrap();
    let loader = std::process::Command::new(&attack.loader)
        .arg(&copy)
        .output();
    assert!(loader.unwrap().status.success());
}
