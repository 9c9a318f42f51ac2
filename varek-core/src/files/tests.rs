use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::Duration;

use super::*;

struct Place {
    base: tempfile::TempDir,
    directory: Arc<OwnedFd>,
    gate: Arc<Gate>,
}

impl Place {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let within = base.path().join("scratch");
        std::fs::create_dir(&within).unwrap();
        std::fs::write(base.path().join("secret"), "secret").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&within, flags, Mode::empty()).unwrap();
        Self {
            base,
            directory: Arc::new(directory),
            gate: Arc::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join("scratch").join(name)
    }

    fn files(&self) -> Files {
        Files::new(&self.directory, self.gate.clone(), None)
    }
}

fn is(kind: FileKind, wanted: FileKind) -> FileError {
    FileError::Kind { kind, wanted }
}

#[test]
fn what_is_put_is_got_and_listed() {
    let place = Place::new();
    let files = place.files();
    std::fs::create_dir(place.path("d")).unwrap();
    files.put("./d/a", "one").unwrap();
    assert_eq!(files.get("d/./a", 3).unwrap(), b"one");
    files.put("d/a", "longer").unwrap();
    assert_eq!(files.get("d/a", 6).unwrap(), b"longer");
    let mode = std::fs::metadata(place.path("d/a")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    files.put("b", "").unwrap();
    let names = |path: &str| -> Vec<_> {
        let listed = files.list(path, 2).unwrap();
        listed
            .into_iter()
            .map(|entry| (entry.name.into_string().unwrap(), entry.kind, entry.size))
            .collect()
    };
    assert_eq!(names("d"), [("a".to_owned(), FileKind::File, 6)]);
    assert_eq!(
        names("."),
        [
            ("b".to_owned(), FileKind::File, 0),
            ("d".to_owned(), FileKind::Directory, 0)
        ]
    );
    assert_eq!(names(""), names("."));
}

#[test]
fn paths_that_lead_out_are_refused() {
    let place = Place::new();
    let files = place.files();
    assert_eq!(std::fs::read(place.path("../secret")).unwrap(), b"secret");
    let absolute = place.path("../secret").canonicalize().unwrap();
    for path in [
        Path::new("../secret"),
        Path::new("a/../../secret"),
        &absolute,
        Path::new("a\0"),
    ] {
        assert_eq!(files.get(path, 9), Err(FileError::Path));
        assert_eq!(files.put(path, "x"), Err(FileError::Path));
        assert_eq!(files.list(path, 9), Err(FileError::Path));
    }
    assert_eq!(files.put(".", "x"), Err(FileError::Path));
    assert_eq!(std::fs::read(absolute).unwrap(), b"secret");
}

#[test]
fn links_lead_nowhere() {
    let place = Place::new();
    let files = place.files();
    let secret = place.base.path().join("secret");
    symlink(&secret, place.path("file")).unwrap();
    symlink(place.base.path(), place.path("above")).unwrap();
    symlink("..", place.path("up")).unwrap();
    symlink("/proc/self/fd/0", place.path("magic")).unwrap();
    // They lead there where nobody takes care.
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"secret");
    assert_eq!(std::fs::read(place.path("up/secret")).unwrap(), b"secret");

    let link = is(FileKind::Link, FileKind::File);
    assert_eq!(files.get("file", 100), Err(link.clone()));
    assert_eq!(files.get("magic", 100), Err(link));
    for path in ["above/secret", "up/secret"] {
        assert_eq!(files.get(path, 100), Err(FileError::Link), "{path}");
        assert_eq!(files.put(path, "x"), Err(FileError::Link), "{path}");
    }
    assert_eq!(files.list("above", 100), Err(FileError::Link));
    // In the place of the link, not through it.
    files.put("file", "mine").unwrap();
    assert_eq!(files.get("file", 100).unwrap(), b"mine");
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(place.base.path()).unwrap().count(), 2);
}

#[test]
fn fifos_sockets_directories_and_devices_are_neither_read_nor_waited_for() {
    let place = Place::new();
    let files = place.files();
    let fifo = || {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path("fifo"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
    };
    fifo().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    std::fs::create_dir(place.path("d")).unwrap();
    for name in ["fifo", "socket"] {
        let other = is(FileKind::Other, FileKind::File);
        assert_eq!(files.get(name, 100), Err(other), "{name}");
    }
    let directory = is(FileKind::Directory, FileKind::File);
    assert_eq!(files.get("d", 100), Err(directory.clone()));
    assert_eq!(files.put("d", "x"), Err(directory));
    assert_eq!(
        files.list("fifo", 1),
        Err(is(FileKind::File, FileKind::Directory))
    );
    // Replaced, not written into.
    files.put("fifo", "x").unwrap();
    assert_eq!(files.get("fifo", 100).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(place.path(".")).unwrap().count(), 3);
}

#[test]
fn a_file_is_read_up_to_its_bound_and_a_huge_one_not_at_all() {
    let place = Place::new();
    let files = place.files();
    files.put("ten", "0123456789").unwrap();
    assert_eq!(files.get("ten", 10).unwrap().len(), 10);
    let large = |size, bound| Err(FileError::TooLarge { size, bound });
    assert_eq!(files.get("ten", 9), large(10, 9));
    let sparse = File::create(place.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert_eq!(files.get("sparse", 1 << 20), large(1 << 40, 1 << 20));
    assert_eq!(files.list(".", 1), Err(FileError::TooMany { most: 1 }));
    assert_eq!(files.get("none", 1), Err(FileError::NotFound));
}

#[test]
fn a_file_that_no_memory_holds_is_too_large_whatever_the_bound() {
    let place = Place::new();
    let files = place.files();
    files.put("small", "all of it").unwrap();
    assert_eq!(files.get("small", u64::MAX).unwrap(), b"all of it");
    // No memory at all is taken for it: the embedder would be aborted.
    let sparse = File::create(place.path("sparse")).unwrap();
    sparse.set_len(8 << 40).unwrap();
    let (size, bound) = (8 << 40, 4 << 30);
    let large = Err(FileError::TooLarge { size, bound });
    assert_eq!(files.get("sparse", u64::MAX), large);
    assert_eq!(files.get("sparse", 9 << 40), large);
}

#[test]
fn a_second_name_of_somebody_else_s_file_shows_nothing() {
    let place = Place::new();
    let secret = place.base.path().join("secret");
    let own = std::fs::metadata(&secret).unwrap().uid();
    std::fs::hard_link(&secret, place.path("name")).unwrap();
    // The guest's own file of two names.
    let guest = |uid| Files::new(&place.directory, place.gate.clone(), Some((uid, uid)));
    assert_eq!(guest(own).get("name", 100).unwrap(), b"secret");
    assert_eq!(guest(own + 1).get("name", 100), Err(FileError::Foreign));
    // What the embedder put there has one name.
    std::fs::write(place.path("own"), "x").unwrap();
    assert_eq!(guest(own + 1).get("own", 100).unwrap(), b"x");
}

#[test]
fn nothing_is_kept_alive_and_nothing_is_done_once_the_gate_is_closed() {
    let place = Place::new();
    let files = place.files();
    files.put("a", "x").unwrap();
    place.gate.close();
    assert_eq!(files.get("a", 9), Err(FileError::Gone));
    assert_eq!(files.put("b", "x"), Err(FileError::Gone));

    let place = Place::new();
    let files = place.files();
    let Place {
        directory,
        base: _base,
        ..
    } = place;
    assert_eq!(Arc::strong_count(&directory), 1);
    drop(directory);
    assert_eq!(files.list(".", 9), Err(FileError::Gone));
}

#[test]
fn a_look_up_that_races_with_swaps_never_leaves_the_directory() {
    let place = Place::new();
    let files = place.files();
    std::fs::create_dir(place.path("real")).unwrap();
    std::fs::write(place.path("real/secret"), "mine").unwrap();
    symlink("..", place.path("link")).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = {
        let (stop, at) = (stop.clone(), place.path("now"));
        let (real, link) = (place.path("real"), place.path("link"));
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for from in [&real, &link] {
                    let _ = std::fs::rename(from, &at);
                    let _ = std::fs::rename(&at, from);
                }
            }
        })
    };
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let (mut got, mut tries) = (0, 0);
    while (got < 50 || tries < 5000) && std::time::Instant::now() < until {
        tries += 1;
        match files.get("now/secret", 100) {
            Ok(contents) => {
                assert_eq!(contents, b"mine");
                got += 1;
            }
            Err(error) => assert!(!matches!(error, FileError::Path), "{error}"),
        }
        let _ = files.put("now/put", "x");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(got > 0, "the race never had the directory in place");
    let outside: Vec<_> = std::fs::read_dir(place.base.path()).unwrap().collect();
    assert_eq!(outside.len(), 2, "{outside:?}");
}
