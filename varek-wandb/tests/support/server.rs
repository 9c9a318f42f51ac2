//! A server on a free port of loopback, and the judge.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{here, python, succeeded, wait_for};

/// A key that occurs in nothing that is logged, 40 characters long as real ones are.
pub const API_KEY: &str = "k3yk3yk3yk3yk3yk3yk3yk3yk3yk3yk3yk3yk3y0";

/// How a server is started.
#[derive(Debug, Default)]
pub struct Options {
    /// Rules of `tests/server/faults.py`.
    pub faults: Vec<String>,
    /// Serve https, with a certificate of its own for `localhost` and `127.0.0.1`.
    pub tls: bool,
    /// Any key is taken, and not only [`API_KEY`].
    pub any_key: bool,
    /// How long an upload URL is worth something; always, where this is not given.
    pub url_lifetime: Option<Duration>,
    /// Bytes that each part of a file but the last must have; 5 MiB where this is not given.
    pub smallest_part: Option<u64>,
}

/// A running server. It is stopped, and what it recorded is removed, when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    options: Options,
    port: u16,
    control: u16,
    other: u16,
    directory: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::with(Options::default())
    }

    /// With these faults from the beginning.
    pub fn faulty(faults: &[&str]) -> Self {
        let faults = faults.iter().map(ToString::to_string).collect();
        Self::with(Options {
            faults,
            ..Options::default()
        })
    }

    pub fn with(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if options.tls {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).unwrap();
            fs::write(directory.path().join("cert.pem"), made.cert.pem()).unwrap();
            let key = made.signing_key.serialize_pem();
            fs::write(directory.path().join("key.pem"), key).unwrap();
        }
        let (child, ports) = launch(&options, directory.path(), 0);
        Self {
            child,
            options,
            port: ports[0],
            control: ports[1],
            other: ports[2],
            directory,
        }
    }

    /// Where the API is, without a slash at its end.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The origin that the fault `redirect` leads to.
    pub fn other_url(&self) -> String {
        let scheme = if self.options.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.other)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The certificate of a server with TLS, which is its own root.
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    pub fn record(&self) -> PathBuf {
        self.directory.path().join("record.jsonl")
    }

    /// What was recorded so far: one value a request, in order.
    pub fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.record()).unwrap();
        // The last line may not be whole yet.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Adds a fault to a running server.
    pub fn fault(&self, rule: &str) {
        self.control("/__fault", Some(&json!({ "rule": rule })));
    }

    /// The rules, with how many requests each was for (`seen`) and how often it was done (`done`).
    pub fn faults(&self) -> Value {
        self.control("/__faults", None)
    }

    /// Takes all faults away.
    pub fn clear(&self) {
        self.control("/__clear", Some(&json!({})));
    }

    /// Closes every connection for so long.
    pub fn down(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.control("/__down", Some(&json!({ "seconds": seconds })));
    }

    /// The user presses stop.
    pub fn stop_run(&self, id: &str) {
        self.control("/__stop", Some(&json!({ "run": id })));
    }

    /// Kills the server; nothing listens on its port until [`Server::resume`].
    pub fn interrupt(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, with all that it held. Faults begin anew.
    pub fn resume(&mut self) {
        let (child, ports) = launch(&self.options, self.directory.path(), self.port);
        self.child = child;
        (self.control, self.other) = (ports[1], ports[2]);
    }

    /// What the server now holds, in the form in which clients are compared.
    pub fn normalized(&self) -> Value {
        self.judged(&["normalize"])
    }

    /// The same, with what differs from client to client.
    pub fn everything(&self) -> Value {
        self.judged(&["normalize", "--all"])
    }

    /// What a good client must not do, and this one did.
    pub fn violations(&self) -> Vec<String> {
        let found = self.normalized()["violations"].take();
        serde_json::from_value(found).unwrap()
    }

    fn judged(&self, arguments: &[&str]) -> Value {
        let mut judge = python("python3".as_ref());
        judge
            .arg(here("server/server.py"))
            .args(arguments)
            .arg(self.record());
        serde_json::from_str(&succeeded(&judge.output().unwrap())).unwrap()
    }

    fn control(&self, path: &str, body: Option<&Value>) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let method = if body.is_some() { "POST" } else { "GET" };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(options: &Options, directory: &Path, port: u16) -> (Child, Vec<u16>) {
    let ports = directory.join("ports");
    let _ = fs::remove_file(&ports);
    let log = fs::File::create(directory.join("log.txt")).unwrap();
    let mut command = python("python3".as_ref());
    command
        .arg(here("server/server.py"))
        .args(["serve", "--keep", "--port", &port.to_string()])
        .arg("--record")
        .arg(directory.join("record.jsonl"))
        .arg("--port-file")
        .arg(&ports);
    if !options.any_key {
        command.args(["--api-key", API_KEY]);
    }
    if options.tls {
        command.arg("--cert").arg(directory.join("cert.pem"));
        command.arg("--key").arg(directory.join("key.pem"));
    }
    if let Some(lifetime) = options.url_lifetime {
        command.arg(format!("--url-lifetime={}", lifetime.as_secs_f64()));
    }
    if let Some(bytes) = options.smallest_part {
        command.arg(format!("--min-part={bytes}"));
    }
    for fault in &options.faults {
        command.args(["--fault", fault]);
    }
    let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let found = wait_for("the server", || {
        if child.try_wait().unwrap().is_some() {
            let log = fs::read_to_string(directory.join("log.txt"));
            panic!("the server has ended: {}", log.unwrap());
        }
        fs::read_to_string(&ports).ok()
    });
    let ports = found.lines().map(|line| line.parse().unwrap()).collect();
    (child, ports)
}

/// `Ok` where both servers hold the same, else the lines in which they differ.
///
/// # Errors
///
/// The difference, as lines that the first has and the second lacks, and the other way round.
pub fn diff(first: &Server, second: &Server) -> Result<(), String> {
    let mut judge = python("python3".as_ref());
    let output = judge
        .arg(here("server/server.py"))
        .arg("diff")
        .args([first.record(), second.record()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        assert_eq!(text.trim(), "same");
        return Ok(());
    }
    Err(text + &String::from_utf8_lossy(&output.stderr))
}
