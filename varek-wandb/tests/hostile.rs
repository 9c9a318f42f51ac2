//! A server that means harm: it ends nothing but its own run's upload, gets nothing that is not for it, and costs no record.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use varek_wandb::{
    AlertLevel, Artifact, Environment, Mode, Report, Run, SavePolicy, SyncOptions, sync,
};

use support::server::{API_KEY, Server, diff};

/// How long a hostile server is tried.
const PATIENCE: Duration = Duration::from_secs(3);
/// Long enough that only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

/// A request as it came.
#[derive(Clone, Debug)]
struct Request {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn query(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["query"].as_str().unwrap_or_default().to_owned()
    }

    fn has_key(&self) -> bool {
        self.headers
            .iter()
            .any(|header| header.to_lowercase().starts_with("authorization:"))
    }
}

/// Answers each request by a function that writes what it likes.
struct Hostile {
    port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Hostile {
    fn start(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, record) = (Arc::new(answer), seen.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, record) = (answer.clone(), record.clone());
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    // One that does not read may not hold up a writer here for ever.
                    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
                    while let Some(request) = read_request(&stream) {
                        record.lock().unwrap().push(request.clone());
                        answer(&request, &mut stream);
                    }
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, seen }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let headers = lines.split_off(1);
    let length = headers.iter().find_map(|header| {
        let (name, value) = header.split_once(':')?;
        let wanted = name.eq_ignore_ascii_case("content-length");
        wanted.then(|| value.trim().parse::<u64>().ok()).flatten()
    });
    let mut body = Vec::new();
    reader
        .take(length.unwrap_or(0))
        .read_to_end(&mut body)
        .ok()?;
    let line = lines.pop()?;
    Some(Request {
        line,
        headers,
        body,
    })
}

/// Writes an answer. That the other side is gone is what some of these tests want.
fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

fn ok(stream: &mut TcpStream, data: &Value) {
    let body = json!({ "data": data }).to_string();
    answer(stream, "200 OK", "", body.as_bytes());
}

/// A run of some kinds of records, and its directory.
fn logged(mode: Mode, url: Option<&str>) -> (TempDir, Run) {
    let directory = tempfile::tempdir().unwrap();
    let mut builder = Run::builder()
        .environment(Environment::default())
        .project("varek-demo")
        .id("hostile1")
        .dir(directory.path())
        .mode(mode);
    if let Some(url) = url {
        builder = builder.base_url(url).api_key(API_KEY);
    }
    let run = builder.start().unwrap();
    for step in 0..5 {
        run.log(json!({ "step": step })).unwrap();
    }
    let artifact = Artifact::new("manifest", "verification").bytes("a.json", "{}");
    run.log_artifact(&artifact).unwrap();
    run.alert("title", "text", AlertLevel::Warn, Duration::from_secs(60))
        .unwrap();
    run.save_bytes("notes.txt", "text", SavePolicy::Now)
        .unwrap();
    (directory, run)
}

fn offline() -> (TempDir, PathBuf) {
    let (kept, run) = logged(Mode::Offline, None);
    run.finish(0, BOUND).unwrap();
    let own = run.directory().unwrap().to_owned();
    (kept, own)
}

fn options(url: &str, within: Duration) -> SyncOptions {
    SyncOptions::new()
        .environment(Environment::default())
        .base_url(url)
        .api_key(API_KEY)
        .pauses(Duration::from_millis(20), Duration::from_millis(200))
        .within(within)
}

/// A sync that has to end by itself, with a fault that a person can read.
fn tried(run: &Path, url: &str, case: &str) -> Report {
    let began = Instant::now();
    let report = sync(run, &options(url, PATIENCE)).unwrap();
    assert!(began.elapsed() < BOUND, "{case}: {:?}", began.elapsed());
    assert!(!report.is_complete(), "{case}: {report:?}");
    let fault = report.fault.clone().unwrap_or_default();
    assert!(fault.len() < 2_000, "{case}: {} bytes", fault.len());
    assert!(!fault.contains(API_KEY), "{case}: {fault}");
    report
}

/// What a server has of the run that was never anywhere else.
fn undisturbed() -> Server {
    let (_kept, run) = offline();
    let server = Server::start();
    let report = sync(&run, &options(&server.url(), BOUND)).unwrap();
    assert!(report.is_complete(), "{report:?}");
    server
}

/// Everything is still there for a server that means well.
fn nothing_is_lost(run: &Path, expected: &Server, case: &str) {
    let server = Server::start();
    let report = sync(run, &options(&server.url(), BOUND)).unwrap();
    assert!(report.is_complete(), "{case}: {report:?}");
    diff(expected, &server).unwrap_or_else(|lines| panic!("{case}:\n{lines}"));
    assert_eq!(server.violations(), [""; 0], "{case}");
}

type Harm = fn(&Request, &mut TcpStream);

/// What a first answer can be.
const HARM: [(&str, Harm); 14] = [
    ("nested too deeply", |_, stream| {
        answer(stream, "200 OK", "", "[".repeat(1_000_000).as_bytes());
    }),
    ("too large", |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let piece = [b' '; 65_536];
        while stream.write_all(&piece).is_ok() {}
    }),
    ("chunks without an end", |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        while stream.write_all(b"1\r\n \r\n").is_ok() {}
    }),
    ("a chunk of a size that is none", |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}";
        let _ = stream.write_all(head.as_bytes());
    }),
    ("headers without an end", |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"x-header: and another one\r\n").is_ok() {}
    }),
    ("informational answers without an end", |_, stream| {
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {}
    }),
    ("a byte now and then", |_, stream| {
        for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
            .iter()
            .cycle()
            .take(400)
        {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }),
    ("no HTTP at all", |_, stream| {
        let _ = stream.write_all(&[0xff, 0, 13, 10, 0x80].repeat(1000));
        let _ = stream.shutdown(Shutdown::Both);
    }),
    ("lengths that contradict each other", |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 900\r\n\r\n{}";
        let _ = stream.write_all(head.as_bytes());
    }),
    ("a pause of centuries", |_, stream| {
        answer(stream, "429 Slow down", "retry-after: 1e300\r\n", b"");
    }),
    ("a limit that is never over", |_, stream| {
        let headers = "ratelimit-remaining: 0\r\nratelimit-reset: 99999999999\r\n";
        answer(stream, "200 OK", headers, b"half");
    }),
    ("an error of megabytes", |_, stream| {
        let message = "\u{202e}x".repeat(1_000_000);
        let body = json!({ "errors": [{ "message": message }] }).to_string();
        answer(stream, "200 OK", "", body.as_bytes());
    }),
    ("other types than were asked for", |_, stream| {
        ok(
            stream,
            &json!({ "model": [7], "upsertBucket": { "bucket": { "name": 7, "project": "p" } } }),
        );
    }),
    ("more rows than numbers", |_, stream| {
        let bucket = json!({ "historyLineCount": 18_446_744_073_709_551_615_u64 });
        ok(stream, &json!({ "model": { "bucket": bucket } }));
    }),
];

#[test]
fn no_answer_of_a_hostile_server_hangs_a_sync_or_costs_a_record() {
    let expected = undisturbed();
    thread::scope(|scope| {
        for (case, harm) in HARM {
            let expected = &expected;
            scope.spawn(move || {
                let (_kept, run) = offline();
                let hostile = Hostile::start(harm);
                let report = tried(&run, &hostile.url(), case);
                assert!(report.pending > 0, "{case}: {report:?}");
                assert!(!hostile.seen().is_empty(), "{case}");
                nothing_is_lost(&run, expected, case);
            });
        }
    });
}

#[test]
fn a_run_whose_server_is_hostile_ends_in_time_and_is_whole() {
    let expected = undisturbed();
    thread::scope(|scope| {
        for (case, harm) in [HARM[1], HARM[6], HARM[9]] {
            let expected = &expected;
            scope.spawn(move || {
                let hostile = Hostile::start(harm);
                let (_kept, run) = logged(Mode::Online, Some(&hostile.url()));
                let began = Instant::now();
                let report = run.finish(0, PATIENCE).unwrap();
                assert!(
                    began.elapsed() < PATIENCE + Duration::from_secs(20),
                    "{case}"
                );
                assert!(report.pending > 0, "{case}: {report:?}");
                // The threads of that upload end with the request that they are at.
                let own = run.directory().unwrap().to_owned();
                drop(run);
                nothing_is_lost(&own, expected, case);
            });
        }
    });
}

#[test]
fn a_redirect_of_the_api_takes_the_key_nowhere() {
    for status in [
        "301 Moved",
        "302 Found",
        "303 Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        let (_kept, run) = offline();
        let elsewhere = Hostile::start(|_, stream| ok(stream, &json!({})));
        let location = format!("location: {}/graphql\r\n", elsewhere.url());
        let hostile = Hostile::start(move |_, stream| answer(stream, status, &location, b""));
        let report = tried(&run, &hostile.url(), status);
        assert!(report.fault.unwrap().contains("redirect"), "{status}");
        assert!(hostile.seen()[0].has_key(), "{status}");
        assert_eq!(elsewhere.seen().len(), 0, "{status}");
    }
}

/// An API that gives these names and this address of storage, and takes everything.
fn api(name: &'static str, storage: String) -> Hostile {
    Hostile::start(move |request, stream| {
        let query = request.query();
        let url = json!(storage);
        let answered = if request.line.contains("/file_stream") {
            return answer(stream, "200 OK", "", b"{}");
        } else if query.contains("RunResumeStatus") {
            json!({ "model": null })
        } else if query.contains("UpsertBucket") {
            let project = json!({ "name": name, "entity": { "name": name } });
            json!({ "upsertBucket": { "bucket": { "id": "i", "name": name, "displayName": "d", "project": project }, "inserted": true } })
        } else if query.contains("CreateArtifactManifest") {
            let file = json!({ "id": "f", "uploadUrl": url, "uploadHeaders": ["X-A:b", "bad", "Bad Name: x", "X-B: c\r\nX-C: d"] });
            json!({ "createArtifactManifest": { "artifactManifest": { "id": "m", "file": file } } })
        } else if query.contains("CreateArtifactFiles") {
            let node = json!({ "uploadUrl": url, "uploadHeaders": [7, "X-A:b"], "artifact": { "id": "a" } });
            json!({ "createArtifactFiles": { "files": { "edges": [{ "node": node }] } } })
        } else if query.contains("CreateArtifact(") {
            json!({ "createArtifact": { "artifact": { "id": "a", "state": "PENDING" } } })
        } else if query.contains("CreateRunFiles") {
            json!({ "createRunFiles": { "runID": "i", "uploadHeaders": [], "files": [{ "name": "n", "uploadUrl": url }] } })
        } else {
            json!({ "commitArtifact": {}, "notifyScriptableRunAlert": { "success": true } })
        };
        ok(stream, &answered);
    })
}

#[test]
fn storage_gets_the_files_and_never_the_key() {
    let (_kept, run) = offline();
    let storage = Hostile::start(|_, stream| answer(stream, "200 OK", "", b""));
    let hostile = api("name", format!("{}/put", storage.url()));
    let report = sync(&run, &options(&hostile.url(), BOUND)).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert!(hostile.seen().iter().all(Request::has_key));
    let stored = storage.seen();
    assert!(
        stored.iter().any(|request| request.body == b"{}"),
        "{stored:?}"
    );
    assert!(stored.iter().any(|request| request.body == b"text"));
    for request in &stored {
        assert!(request.line.starts_with("PUT /put "), "{}", request.line);
        let text = format!(
            "{:?}{}",
            request.headers,
            String::from_utf8_lossy(&request.body)
        );
        assert!(!request.has_key() && !text.contains(API_KEY), "{text}");
        // A header of the server's that is none does not become two.
        assert!(!text.to_lowercase().contains("x-c"), "{text}");
    }
}

#[test]
fn names_that_a_server_gives_a_run_stay_names() {
    let (_kept, run) = offline();
    let storage = Hostile::start(|_, stream| answer(stream, "200 OK", "", b""));
    let hostile = api(
        "../../graphql?a=b#\r\nx: y/",
        format!("{}/put", storage.url()),
    );
    let report = sync(&run, &options(&hostile.url(), BOUND)).unwrap();
    assert!(report.is_complete(), "{report:?}");
    let requests = hostile.seen();
    let streamed: Vec<&str> = requests
        .iter()
        .map(|request| request.line.as_str())
        .filter(|line| line.contains("file_stream"))
        .collect();
    assert!(!streamed.is_empty());
    let part = "..%2F..%2Fgraphql%3Fa%3Db%23%0D%0Ax%3A%20y%2F";
    let expected = format!("POST /files/{part}/{part}/{part}/file_stream HTTP/1.1");
    assert!(
        streamed.iter().all(|line| *line == expected),
        "{streamed:?}"
    );
    let split = requests
        .iter()
        .flat_map(|request| &request.headers)
        .any(|header| header.starts_with("x: y"));
    assert!(!split);
}

#[test]
fn addresses_of_storage_that_are_none_lose_the_file_alone() {
    let expected = undisturbed();
    let addresses = [
        "file:///etc/passwd",
        "http://[",
        "",
        "gopher://127.0.0.1/",
        "//127.0.0.1/x",
    ];
    thread::scope(|scope| {
        for storage in addresses {
            let expected = &expected;
            scope.spawn(move || {
                let (_kept, run) = offline();
                let hostile = api("name", storage.to_owned());
                let report = tried(&run, &hostile.url(), storage);
                let fault = report.fault.unwrap();
                assert!(
                    fault.contains("an address that is none"),
                    "{storage}: {fault}"
                );
                // The artifact and the files; what comes behind them is there.
                assert!(report.dropped > 0 && report.pending == 0, "{storage}");
                let alerts = hostile.seen();
                let alerts = alerts
                    .iter()
                    .filter(|request| request.query().contains("notifyScriptableRunAlert"));
                assert_eq!(alerts.count(), 1, "{storage}");
                // The run is that server's now, unless somebody says otherwise.
                fs::remove_file(run.join("varek/acknowledged.jsonl")).unwrap();
                nothing_is_lost(&run, expected, storage);
            });
        }
    });
}

#[test]
fn two_syncs_of_one_directory_are_one() {
    let expected = undisturbed();
    let (_kept, run) = offline();
    let server = Server::faulty(&["on=graphql,do=slow:0.3,times=4"]);
    let options = options(&server.url(), BOUND);
    let results: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| sync(&run, &options)))
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let complete = |result: &Result<Report, _>| result.as_ref().is_ok_and(Report::is_complete);
    assert!(results.iter().any(complete), "{results:?}");
    diff(&expected, &server).unwrap_or_else(|lines| panic!("{lines}"));
    assert_eq!(server.violations(), [""; 0]);
}
