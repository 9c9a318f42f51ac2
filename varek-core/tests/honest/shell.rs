//! Shells and what they start, under the preset `shell`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use varek_core::{Command, Outcome, Policy, Sandbox};

use crate::support::{open_directory, text};
use crate::{assert_honest, patient, program_or_return, sandbox, support};

fn script(sandbox: &Sandbox, shell: &str, source: &str) -> Outcome {
    let command = Command::new(shell).arg("script").file("script", source);
    sandbox.run(command).unwrap()
}

/// Both shells' common language.
const COMMON: &str = r#"
set -eu
printf 'b\na\nc\na\n' > list
sort list | uniq -c | while read -r n word; do echo "$word$n"; done | tr '\n' ' '; echo
cat <<END | sed 's/^/> /'
here $(echo "$((6 * 7))") `echo old`
END
(cd / && pwd); pwd | grep -c "$HOME"
{ echo out; echo err >&2; } 2>&1 | sort | paste -sd, -
for f in *; do case $f in l*) echo "$f";; esac; done
find . -name list -exec wc -l {} + | awk '{print $1}'
echo through > /dev/stderr; echo both | tee /dev/stderr; cat /dev/stdin < list | head -1
mkfifo pipe; (echo from the pipe > pipe) & cat pipe; wait
sleep 1000 & kill $!; wait $! || echo "ended $?"
(exit 3) || echo "left $?"
trap 'echo caught' USR1; kill -USR1 $$
mkdir -p d/e; cp list d/e/copy; mv d/e/copy d/; ln -s d/copy link; cmp list link && rm -r d link
temporary=$(mktemp); test -f "$temporary" && rm "$temporary"
tar -cf a.tar list && tar -tf a.tar; sha256sum < /dev/null | cut -c1-8
date -u -d @0 +%F; expr 6 \* 7; env -i sh -c 'echo "${HOME-none}"'; xargs -n1 echo < list | wc -l
timeout 60 true; nice true; nohup echo up 2> /dev/null; seq 3 | xargs -P2 -I{} sh -c 'exit 0'
ulimit -c; trap 'echo bye' EXIT
"#;

const PRINTED: &str = "a2 b1 c1 \n> here 42 old\n/\n1\nerr,out\nlist\n4\nboth\nb\nfrom the pipe\nended 143\nleft 3\n\
                       caught\nlist\ne3b0c442\n1970-01-01\n42\nnone\n4\nup\n0\nbye\n";

#[test]
fn pipelines_subshells_and_here_documents_work_in_every_shell() {
    let sandbox = sandbox!(patient(Policy::shell()));
    for shell in ["bash", "dash"] {
        if crate::program(crate::test_name!(), shell).is_none() {
            continue;
        }
        let outcome = script(&sandbox, shell, COMMON);
        assert_honest(&outcome, PRINTED, &[]);
        // dash says what became of the job that was killed.
        let stderr = outcome.stderr.to_text().replace("Terminated\n", "");
        assert_eq!(stderr, "through\nboth\n");
    }
}

#[test]
fn bash_has_process_substitution_arrays_and_coprocesses() {
    program_or_return!("bash");
    let sandbox = sandbox!(patient(Policy::shell()));
    let source = r#"
diff <(echo same) <(echo same) && echo same
declare -A map=([k]=v); list=(1 2 3); echo "${map[k]} ${list[@]:1} ${#list[@]}"
true | false | true; echo "${PIPESTATUS[@]}"
coproc cat; echo there >&"${COPROC[1]}"; read -r answer <&"${COPROC[0]}"; echo "$answer"
read -r -t 0.01 nothing < <(sleep 1) || echo late
[[ abc =~ a(.) ]] && echo "${BASH_REMATCH[1]}"; printf '%(%F)T\n' 0; echo {1..3}
"#;
    let outcome = script(&sandbox, "bash", source);
    let expected = "same\nv 2 3 3\n0 1 0\nthere\nlate\nb\n1970-01-01\n1 2 3\n";
    assert_honest(&outcome, expected, &[]);
}

#[test]
fn descriptors_have_names_for_every_program_of_a_script() {
    program_or_return!("bash");
    let sandbox = sandbox!(patient(Policy::shell()));
    let source = r#"
cat <(echo hi); diff <(printf 'a\nb\n') <(printf 'a\nc\n') | tail -1; paste -d- <(seq 2) <(seq 3 4)
echo into > >(tr a-z A-Z); wait $!
exec 3>&1; echo three > /dev/fd/3; sh -c 'echo four >&3; echo five > /dev/fd/3' 3>&3; exec 3>&-
seq 3 > list; exec 4< list; head -1 /dev/fd/4; sort -r /dev/fd/4 | head -1; exec 4<&-
cat /dev/stdin <<< here; seq 20000 > long; cat /dev/stdin <<< "$(cat long)" | wc -l; cat - /dev/fd/5 < list 5< list | wc -l
python3 -c 'print(open("/dev/fd/6").read(), end="")' 6< <(echo python); echo piped | sh -c 'read -r x < /dev/stdin; echo $x'
[[ -p /dev/stdin ]] < <(true) && [[ -e /dev/fd/0 ]] && echo there
"#;
    let outcome = script(&sandbox, "bash", source);
    let expected =
        "hi\n> c\n1-3\n2-4\nINTO\nthree\nfour\nfive\n1\n3\nhere\n20000\n6\npython\npiped\nthere\n";
    // Here documents that are larger than a pipe are files, of which bash sets the mode.
    assert_honest(&outcome, expected, &[]);
    assert_eq!(outcome.stderr.to_text(), "");
}

/// What reads the entries of processes in `/proc`: those of the program itself, of its children and of strangers.
const PROCESSES: &str = r#"
read -r name < /proc/$$/comm && echo "$name"
cat /proc/self/comm || echo closed
(ls /proc/self/fd | grep -c '^[012]$') || echo closed
ps -o comm= -p $$ || echo closed
grep -qa honest /proc/$PPID/cmdline && echo shown || echo closed
cat /proc/$PPID/environ > got && echo environment || echo closed
"#;

#[test]
fn started_programs_see_no_processes_unless_all_of_them_are_granted() {
    program_or_return!("bash");
    program_or_return!("ps");
    let run = |policy| {
        let sandbox = support::sandbox_or_not_run(crate::test_name!(), patient(policy))?;
        let outcome = script(&sandbox, "bash", PROCESSES);
        // A closed file is no refused call.
        assert_eq!(outcome.violation(), None, "{outcome}");
        support::assert_gone(&outcome);
        Some(text(&outcome))
    };
    let Some(closed) = run(Policy::shell()) else {
        return;
    };
    let lines: Vec<_> = closed.lines().collect();
    // The shell itself has its own entry, which is its first process's.
    assert_eq!(lines[0], "bash", "{closed}");
    assert!(
        lines[1..].iter().all(|line| ["closed", "0"].contains(line)),
        "{closed}"
    );
    // With the grant everybody's processes are there, the embedder's too: their command lines, not their environment.
    let open = run(Policy::shell().read("/proc")).unwrap();
    assert_eq!(open, "bash\ncat\n3\nbash\nshown\nclosed\n", "{open}");
}

#[test]
fn jobs_are_controlled_without_a_terminal() {
    program_or_return!("bash");
    let sandbox = sandbox!(patient(Policy::shell()));
    let source = r#"
set -m
sleep 1000 & sleep 2000 &
jobs -r | wc -l
kill %1; wait %1; echo "$?"
kill -STOP %2; until jobs -s > seen; [[ -s seen ]]; do sleep 0.01; done; echo stopped
bg %2 > /dev/null; jobs -r %2 | wc -l; kill %2; wait %2; echo "$?"
(kill -STOP "$BASHPID"; exit 5) & until jobs -s > seen; [[ -s seen ]]; do sleep 0.01; done; fg > /dev/null; echo "$?"
sleep 0 & wait -n; echo "$?"
sleep 1000 & kill -- -$!; wait $!; echo "$?"
sleep 1000 | sleep 1000 & kill %%; wait %%; echo "$?"
sh -c 'kill -TERM $$'; echo "$?"
"#;
    let outcome = script(&sandbox, "bash", source);
    assert_honest(
        &outcome,
        "2\n143\nstopped\n1\n143\n5\n0\n143\n143\n143\n",
        &[],
    );
}

#[test]
fn login_and_interactive_shells_start() {
    program_or_return!("bash");
    let sandbox = sandbox!(patient(Policy::shell()));
    for flags in ["-lc", "-c"] {
        let command = Command::new("bash").args([flags, "echo \"$0 $#\"", "a", "b"]);
        let outcome = sandbox.run(command).unwrap();
        assert_honest(&outcome, "a 1\n", &[]);
        assert_eq!(outcome.stderr.to_text(), "");
    }
}

#[test]
fn scripts_and_programs_that_the_guest_brings_can_be_started() {
    let sandbox = sandbox!(patient(Policy::shell()));
    let command = |policy: &Sandbox| {
        let command = Command::new("sh")
            .args([
                "-c",
                "./hello; cp hello copy; ./copy; cp /bin/echo e; ./e copied",
            ])
            .executable("hello", "#!/bin/sh\necho \"$0\"\n");
        policy.run(command).unwrap()
    };
    assert_honest(&command(&sandbox), "./hello\n./copy\ncopied\n", &[]);

    // Without the grant the kernel takes none of them for a program.
    let mut closed = patient(Policy::shell());
    closed.filesystem.execute_scratch = false;
    let outcome = command(&sandbox!(closed));
    assert_eq!(text(&outcome), "", "{outcome}");
    assert_eq!(outcome.violation(), None);
    support::assert_gone(&outcome);
}

/// Ways to run what cannot be started: as a program, by the loader, by an interpreter.
const ROUTES: [&str; 4] = [
    "\"$1\"/run",
    "$(ls /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 2> /dev/null) \"$1\"/run",
    "sh \"$1\"/script",
    ". \"$1\"/script",
];

#[test]
fn a_file_that_is_not_granted_runs_by_no_route_and_one_that_is_readable_by_most() {
    if !Path::new("/lib64/ld-linux-x86-64.so.2").exists()
        && !Path::new("/lib/ld-linux-aarch64.so.1").exists()
    {
        support::not_run(crate::test_name!(), "this host has no loader of glibc");
        return;
    }
    let place = open_directory();
    fs::copy("/bin/echo", place.path().join("run")).unwrap();
    fs::write(place.path().join("script"), "echo ran\n").unwrap();
    for (file, mode) in [("run", 0o755), ("script", 0o644)] {
        fs::set_permissions(place.path().join(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    let ran = |policy: Policy| -> Option<Vec<bool>> {
        let sandbox = support::sandbox_or_not_run(crate::test_name!(), policy)?;
        let runs = ROUTES.iter().map(|route| {
            let source = format!("{route} ran");
            let command = Command::new("sh")
                .args(["-c", &source, "sh"])
                .arg(place.path());
            let outcome = sandbox.run(command).unwrap();
            support::assert_gone(&outcome);
            outcome.stdout.to_text() == "ran\n"
        });
        Some(runs.collect())
    };
    let Some(closed) = ran(patient(Policy::shell())) else {
        return;
    };
    assert_eq!(closed, [false; 4]);
    // What `execute` does not bound: reading is enough for a loader and an interpreter.
    assert_eq!(
        ran(patient(Policy::shell()).read(place.path())).unwrap(),
        [false, true, true, true]
    );
    assert_eq!(
        ran(patient(Policy::shell()).execute(place.path())).unwrap(),
        [true; 4]
    );
}

#[test]
fn interpreters_start_from_a_shell() {
    let sandbox = sandbox!(patient(Policy::shell()));
    let python = "python3 -c 'import ssl, subprocess; print(subprocess.check_output([\"echo\", \"ran\"]).decode().strip())'";
    let outcome = script(&sandbox, "sh", python);
    assert_honest(&outcome, "ran\n", &[]);
    for (name, source, expected) in [
        ("perl", "perl -MData::Dumper -e 'print `echo ran`'", "ran\n"),
        (
            "node",
            "node -p 'require(\"node:child_process\").execSync(\"echo ran\").toString().trim()'",
            "ran\n",
        ),
        (
            "make",
            "printf 'all:\\n\\t@echo made\\n' | make -f -",
            "made\n",
        ),
    ] {
        if crate::program(crate::test_name!(), name).is_some() {
            assert_honest(&script(&sandbox, "sh", source), expected, &[]);
        }
    }
}

#[test]
fn git_works_without_the_machines_settings() {
    program_or_return!("git");
    let sandbox = sandbox!(patient(Policy::shell()));
    let source = "git init -q . && echo x > f && git add f && git -c user.name=n -c user.email=e@localhost commit -qm first && \
                  git log --format=%s && git status --short script | cut -c1-2";
    assert_honest(&script(&sandbox, "sh", source), "first\n??\n", &[]);
}

#[test]
fn following_a_file_polls_where_it_cannot_be_watched() {
    let sandbox = sandbox!(patient(Policy::shell()));
    let source = "echo line > f; tail -s 0.01 -f f > got & until grep -q line got; do sleep 0.01; done; kill $!; cat got";
    let outcome = script(&sandbox, "sh", source);
    // Watching is refused since it shows what is in directories that Landlock closes; busybox does not try.
    let tried = outcome
        .violation()
        .and_then(|v| v.syscall())
        .map(str::to_owned);
    let tried: Vec<_> = tried.iter().map(String::as_str).collect();
    assert!(
        tried.iter().all(|call| call.starts_with("inotify_init")),
        "{outcome}"
    );
    assert_honest(&outcome, "line\n", &tried);
}
