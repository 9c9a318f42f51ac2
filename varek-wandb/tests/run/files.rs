//! Artifacts and saved files: what cannot be copied is refused and leaves nothing, and nothing leads out of the run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use tempfile::TempDir;
use varek_wandb::{Artifact, Error, Run, SavePolicy, sync};

use crate::support::server::Server;
use crate::{BOUND, held, is_complete, log_of, offline, options, tree};

/// Files of every kind to copy from.
struct Sources {
    directory: TempDir,
    _socket: UnixListener,
}

impl Sources {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        fs::write(place.join("plain"), "plain").unwrap();
        fs::create_dir(place.join("sub")).unwrap();
        fs::write(place.join("sub/inner"), "inner").unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, place.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        symlink("plain", place.join("link")).unwrap();
        symlink("nowhere", place.join("dangling")).unwrap();
        symlink("loop", place.join("loop")).unwrap();
        symlink("sub", place.join("link to sub")).unwrap();
        symlink("fifo", place.join("link to fifo")).unwrap();
        let socket = UnixListener::bind(place.join("socket")).unwrap();
        Self {
            directory,
            _socket: socket,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A directory with one good file, and another one of this name, made by this.
    fn directory_with(&self, number: usize, make: impl FnOnce(&Path)) -> PathBuf {
        let directory = self.path(&format!("with {number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("a good one"), "good").unwrap();
        make(&directory);
        directory
    }
}

fn artifact() -> Artifact {
    Artifact::new("manifest", "verification").bytes("first", "a file that was copied before")
}

/// Whether every one of these is refused as it should be, with nothing left of it.
fn refused<C>(
    run: &Run,
    cases: Vec<(String, C)>,
    mut call: impl FnMut(&C) -> Result<(), Error>,
    kind: impl Fn(&Error) -> bool,
) {
    let own = run.directory().unwrap();
    let before = tree(own);
    for (name, case) in cases {
        match call(&case) {
            Err(error) if kind(&error) => {}
            other => panic!("{name}: {other:?}"),
        }
        let after = tree(own);
        let changed: Vec<_> = after
            .keys()
            .chain(before.keys())
            .filter(|path| before.get(*path) != after.get(*path))
            .collect();
        assert!(changed.is_empty(), "{name}: {changed:?}");
    }
}

#[test]
fn an_artifact_with_what_cannot_be_copied_is_refused_and_leaves_nothing() {
    let sources = Sources::new();
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    // The directories of copies are there from here on.
    run.log_artifact(&Artifact::new("other", "verification").bytes("a", "b"))
        .unwrap();
    let log = |artifact: &Artifact| run.log_artifact(artifact).map(|_| ());

    let file = |name: &str| {
        (
            name.to_owned(),
            artifact().file("second", sources.path(name)),
        )
    };
    let mut cases: Vec<_> = ["fifo", "socket", "sub", "link to sub", "link to fifo"]
        .map(file)
        .into();
    cases.push((
        "a device".to_owned(),
        artifact().file("second", "/dev/null"),
    ));
    let special = [
        sources.directory_with(0, |at| symlink("/dev/null", at.join("b")).unwrap()),
        sources.directory_with(1, |at| {
            rustix::fs::mknodat(CWD, at.join("b"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        }),
        sources.directory_with(2, |at| drop(UnixListener::bind(at.join("b")).unwrap())),
        sources.directory_with(3, |at| {
            fs::create_dir(at.join("c")).unwrap();
            symlink("c", at.join("b")).unwrap();
        }),
    ];
    let directory = |path: &PathBuf| {
        (
            path.display().to_string(),
            artifact().directory("second", path),
        )
    };
    cases.extend(special[1..].iter().map(directory));
    refused(&run, cases, log, |error| {
        matches!(error, Error::NotAFile { .. })
    });

    let leads_out = [
        special[0].clone(),
        sources.directory_with(4, |at| symlink("../plain", at.join("b")).unwrap()),
        sources.directory_with(5, |at| {
            symlink(sources.path("plain"), at.join("b")).unwrap();
        }),
    ];
    let cases = leads_out.iter().map(directory).collect();
    refused(&run, cases, log, |error| {
        matches!(error, Error::LeadsOut { .. })
    });

    let mut cases: Vec<_> = ["missing", "dangling", "loop", "plain/below"]
        .map(file)
        .into();
    let missing = [
        sources.path("missing"),
        sources.path("plain"),
        sources.path("fifo"),
    ];
    cases.extend(missing.iter().map(directory));
    // A regular file that opens and cannot be read.
    cases.push((
        "unreadable".to_owned(),
        artifact().file("second", "/proc/self/mem"),
    ));
    cases.push(("nothing".to_owned(), artifact().file("second", "")));
    refused(&run, cases, log, |error| matches!(error, Error::Io { .. }));

    // What is good is there, and a link that the embedder named is followed.
    let good = sources.directory_with(6, |at| symlink("a good one", at.join("b")).unwrap());
    let good = artifact()
        .file("second", sources.path("link"))
        .directory("third", good);
    run.log_artifact(&good).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    let artifacts = held["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), 2);
    let found = artifacts
        .iter()
        .find(|one| one["name"] == "manifest")
        .unwrap();
    assert_eq!(found["state"], "COMMITTED");
    let texts: BTreeMap<&str, &Value> = found["files"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, file)| (name.as_str(), &file["text"]))
        .collect();
    let expected = [
        ("first", "a file that was copied before"),
        ("second", "plain"),
        ("third/a good one", "good"),
        ("third/b", "good"),
    ];
    assert_eq!(texts.len(), expected.len(), "{texts:?}");
    for (name, text) in expected {
        assert_eq!(*texts[name], text, "{name}");
    }
}

#[test]
fn a_file_that_may_not_be_read_is_refused_by_name() {
    let sources = Sources::new();
    let path = sources.path("plain");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // The privilege to read everything is this thread's alone to give up.
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.remove(
        rustix::thread::CapabilitySet::DAC_OVERRIDE
            | rustix::thread::CapabilitySet::DAC_READ_SEARCH,
    );
    rustix::thread::set_capabilities(None, sets).unwrap();
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    run.save_bytes("first", "x", SavePolicy::Now).unwrap();
    let cases = [
        ("a file", artifact().file("second", &path)),
        (
            "a directory",
            artifact().directory(
                "second",
                sources.directory_with(0, |at| {
                    fs::write(at.join("b"), "x").unwrap();
                    fs::set_permissions(at.join("b"), fs::Permissions::from_mode(0o000)).unwrap();
                }),
            ),
        ),
    ]
    .map(|(name, case)| (name.to_owned(), case));
    // The directories of copies are there from here on.
    run.log_artifact(&Artifact::new("other", "verification").bytes("a", "b"))
        .unwrap();
    let denied = |error: &Error| matches!(error, Error::Io { operation: "open", source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied);
    refused(
        &run,
        cases.into(),
        |artifact| run.log_artifact(artifact).map(|_| ()),
        denied,
    );
    let saved = vec![("saved".to_owned(), ())];
    refused(
        &run,
        saved,
        |()| run.save_file("second", &path, SavePolicy::Now),
        denied,
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    run.save_file("second", &path, SavePolicy::Now).unwrap();
    run.log_artifact(&artifact().file("second", &path)).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    assert_eq!(held["runs"][0]["files"]["second"]["text"], "plain");
    assert_eq!(held["artifacts"].as_array().unwrap().len(), 2);
}

/// Names that are no paths of files beneath a directory.
const BAD_NAMES: [&str; 15] = [
    "",
    "..",
    ".",
    "../x",
    "a/../../x",
    "a/..",
    "/x",
    "/",
    "a//x",
    "a/",
    "./a",
    "a\\b",
    "C:x",
    "a\0b",
    "a\nb",
];

#[test]
fn names_in_an_artifact_that_lead_elsewhere_or_come_twice_are_refused() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    run.log_artifact(&Artifact::new("other", "verification").bytes("a", "b"))
        .unwrap();
    let log = |artifact: &Artifact| run.log_artifact(artifact).map(|_| ());
    let source = tempfile::tempdir().unwrap();
    let (place, x) = (source.path(), source.path().join("x"));
    fs::write(&x, "x").unwrap();
    let is_name = |error: &Error| matches!(error, Error::Name { .. });
    for kind in ["bytes", "file", "reference", "directory"] {
        let of = |name: &&str| {
            let artifact = match kind {
                "bytes" => artifact().bytes(*name, "x"),
                "file" => artifact().file(*name, &x),
                "reference" => artifact().reference(*name, "https://example.com/x"),
                _ => artifact().directory(*name, place),
            };
            (format!("{kind} {name:?}"), artifact)
        };
        // A directory without a prefix is one whose files have their own names.
        let names = BAD_NAMES
            .iter()
            .filter(|name| kind != "directory" || !name.is_empty());
        refused(&run, names.map(of).collect(), log, is_name);
    }
    let to = "https://example.com/x";
    let twice = [
        artifact().bytes("x", "1").bytes("x", "1"),
        artifact().bytes("x", "1").file("x", &x),
        artifact().bytes("x", "1").directory("", place),
        artifact().directory("", place).directory("", place),
        artifact().bytes("x", "1").reference("x", to),
        artifact()
            .reference("x", to)
            .reference("x", "https://example.com/y"),
    ];
    let numbered = |(index, one)| (format!("twice {index}"), one);
    let cases = twice.into_iter().enumerate().map(numbered).collect();
    refused(
        &run,
        cases,
        log,
        |error| matches!(error, Error::Twice { name, .. } if name == "x"),
    );
    let uris = [
        "",
        "x",
        "/etc/passwd",
        "http:",
        ":x",
        "1http://x",
        "ht tp://x",
        "http://x\n",
    ];
    let of = |uri: &&str| (format!("{uri:?}"), artifact().reference("second", *uri));
    refused(&run, uris.iter().map(of).collect(), log, is_name);
    let no_digest = artifact().reference_with_digest("second", to, "");
    refused(
        &run,
        vec![("no digest".to_owned(), no_digest)],
        log,
        is_name,
    );

    let good = artifact()
        .directory("", place)
        .bytes("a..b/c:d/.hidden/ü ", "1")
        .reference("image", "s3://bucket/image.png")
        .reference_with_digest("other image", "https://example.com/x?y#z", "etag-1");
    run.log_artifact(&good).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    let artifacts = held["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), 2);
    let found = artifacts
        .iter()
        .find(|one| one["name"] == "manifest")
        .unwrap();
    assert_eq!(found["files"]["x"]["text"], "x");
    assert_eq!(found["files"]["a..b/c:d/.hidden/ü "]["text"], "1");
    let contents = &found["manifest"]["contents"];
    for (name, uri, digest) in [
        ("image", "s3://bucket/image.png", "s3://bucket/image.png"),
        ("other image", "https://example.com/x?y#z", "etag-1"),
    ] {
        assert_eq!(
            (&contents[name]["ref"], &contents[name]["digest"]),
            (&json!(uri), &json!(digest))
        );
    }
}

#[test]
fn names_of_saved_files_that_lead_elsewhere_or_are_taken_are_refused() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    run.save_bytes("kept/a.txt", "a", SavePolicy::Now).unwrap();
    let source = tempfile::tempdir().unwrap();
    let from = source.path().join("x");
    fs::write(&from, "x").unwrap();
    let generated = [
        "config.yaml",
        "wandb-metadata.json",
        "wandb-summary.json",
        "output.log",
        "requirements.txt",
        "media/x",
    ];
    let named = |name: &&'static str| (format!("save {name:?}"), *name);
    let cases: Vec<_> = BAD_NAMES.iter().chain(&generated).map(named).collect();
    let bytes = |name: &&str| run.save_bytes(name, "x", SavePolicy::Now);
    let is_name = |error: &Error| matches!(error, Error::Name { .. });
    refused(&run, cases.clone(), bytes, is_name);
    refused(
        &run,
        cases,
        |name| run.save_file(name, &from, SavePolicy::End),
        is_name,
    );
    // A name of a directory, or below a file, is another's already.
    let taken = ["kept", "kept/a.txt/b"].iter().map(named).collect();
    refused(&run, taken, bytes, |error| {
        matches!(error, Error::Io { .. })
    });

    run.save_bytes("..kept/.b ü", "b", SavePolicy::Now).unwrap();
    // Again, with another content.
    run.save_file("kept/a.txt", &from, SavePolicy::End).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    assert_eq!(held["runs"][0]["files"]["..kept/.b ü"]["text"], "b");
    assert_eq!(held["runs"][0]["files"]["kept/a.txt"]["text"], "x");
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_uploaded_as_it_was_copied() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("changing");
    let whole = |byte: u8| vec![byte; 3 * 1024 * 1024];
    fs::write(&path, whole(b'0')).unwrap();
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut changes = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let byte = b'0' + u8::try_from(changes % 10).unwrap();
                // Shorter, longer, and another content.
                fs::write(&path, &whole(byte)[..1024 * 1024]).unwrap();
                fs::write(&path, whole(byte)).unwrap();
                changes += 1;
            }
            changes
        });
        for number in 0..8 {
            let artifact =
                Artifact::new(format!("changing-{number}"), "verification").file("a", &path);
            run.log_artifact(&artifact).unwrap();
            run.save_file(&format!("changing-{number}"), &path, SavePolicy::Now)
                .unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(changes.join().unwrap() > 0);
    });
    fs::remove_file(&path).unwrap();
    run.finish(0, BOUND).unwrap();
    // Digests that are not those of the contents are violations.
    let held = held(&own);
    let artifacts = held["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), 8);
    assert!(artifacts.iter().all(|one| one["state"] == "COMMITTED"));
    let files = held["runs"][0]["files"].as_object().unwrap();
    assert_eq!(
        files
            .keys()
            .filter(|name| name.starts_with("changing-"))
            .count(),
        8
    );
}

#[test]
fn a_saved_file_never_leaves_the_runs_files_through_a_planted_link() {
    let (_kept, run) = offline();
    let own = run.directory().unwrap().to_owned();
    let files = own.join("files");
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("target"), "untouched").unwrap();
    run.save_bytes("sub/a.txt", "a", SavePolicy::Now).unwrap();
    symlink(elsewhere.path(), files.join("out")).unwrap();
    symlink("sub", files.join("within")).unwrap();
    symlink(elsewhere.path(), files.join("sub/out")).unwrap();
    symlink(elsewhere.path().join("target"), files.join("last")).unwrap();
    let before = tree(elsewhere.path());
    let names = [
        "out/x",
        "out/target",
        "out/deep/x",
        "sub/out/x",
        "within/../out/x",
    ];
    let cases = names.map(|name| (name.to_owned(), name));
    refused(
        &run,
        cases.into(),
        |name| run.save_bytes(name, "planted", SavePolicy::Now),
        |error| matches!(error, Error::LeadsOut { .. } | Error::Name { .. }),
    );
    // A link in the file's own place is replaced, and not followed.
    run.save_bytes("last", "b", SavePolicy::Now).unwrap();
    assert_eq!(tree(elsewhere.path()), before);
    assert!(fs::symlink_metadata(files.join("last")).unwrap().is_file());

    // The directory itself.
    let moved = own.join("moved");
    fs::rename(&files, &moved).unwrap();
    symlink(elsewhere.path(), &files).unwrap();
    let cases = ["x", "target", "deep/x"].map(|name| (name.to_owned(), name));
    refused(
        &run,
        cases.into(),
        |name| run.save_bytes(name, "planted", SavePolicy::Now),
        |error| matches!(error, Error::LeadsOut { .. }),
    );
    assert_eq!(tree(elsewhere.path()), before);
    fs::remove_file(&files).unwrap();
    fs::rename(&moved, &files).unwrap();
    for link in ["out", "within", "sub/out"] {
        fs::remove_file(files.join(link)).unwrap();
    }
    run.save_bytes("out/x", "c", SavePolicy::Now).unwrap();
    run.finish(0, BOUND).unwrap();
    let held = held(&own);
    let found = &held["runs"][0]["files"];
    for (name, text) in [("sub/a.txt", "a"), ("last", "b"), ("out/x", "c")] {
        assert_eq!(found[name]["text"], text, "{name}");
    }
}

#[test]
fn refused_calls_between_good_ones_leave_a_log_that_is_sent_whole() {
    let sources = Sources::new();
    let with = |bad: bool| {
        let (kept, run) = offline();
        let bad = |call: &dyn Fn() -> bool| {
            if bad {
                let before = fs::read(log_of(run.directory().unwrap())).unwrap();
                assert!(call());
                assert_eq!(fs::read(log_of(run.directory().unwrap())).unwrap(), before);
            }
        };
        run.log(json!({ "a": 1 })).unwrap();
        bad(&|| {
            run.log_artifact(&artifact().file("b", sources.path("fifo")))
                .is_err()
        });
        run.log_artifact(&artifact().file("b", sources.path("plain")))
            .unwrap();
        bad(&|| {
            run.log_artifact(&artifact().file("c", sources.path("missing")))
                .is_err()
        });
        bad(&|| {
            run.save_file("x", sources.path("socket"), SavePolicy::Now)
                .is_err()
        });
        bad(&|| run.log(json!({ "_step": 1 })).is_err());
        run.save_file("x", sources.path("plain"), SavePolicy::Now)
            .unwrap();
        bad(&|| run.log_at(0, json!({ "a": 3 })).is_err());
        run.log_artifact(&artifact().file("b", sources.path("sub/inner")))
            .unwrap();
        run.log(json!({ "a": 2 })).unwrap();
        run.finish(0, BOUND).unwrap();
        let own = run.directory().unwrap().to_owned();
        let server = Server::start();
        is_complete(&sync(&own, &options(&server)).unwrap());
        (kept, server)
    };
    let ((_one, good), (_other, mixed)) = (with(false), with(true));
    crate::support::server::diff(&good, &mixed).unwrap();
    assert_eq!(mixed.violations(), [""; 0]);
}
