//! The server of the tests is tested itself: by Python, and through what tests in Rust have of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use support::server::{API_KEY, Options, Server};
use support::{here, python};

#[test]
fn the_server_and_the_judge_do_what_they_say() {
    let output = python("python3".as_ref())
        .args(["-m", "unittest", "test_server"])
        .current_dir(here("server"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let ran = text.lines().find_map(|line| line.strip_prefix("Ran "));
    let count = ran.and_then(|rest| rest.split_once(' ')).unwrap().0;
    assert!(count.parse::<u32>().unwrap() > 30, "{text}");
}

/// The status of a request with the key, or none where the connection was closed without an answer.
fn status(server: &Server) -> Option<String> {
    let body = r#"{"query": "{ viewer { entity } }"}"#;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).ok()?;
    let request = format!(
        "POST /graphql HTTP/1.1\r\nHost: localhost\r\nwandb-api-key: {API_KEY}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1).map(str::to_owned)
}

#[test]
fn faults_come_and_go_while_a_server_runs_and_are_counted() {
    let server = Server::faulty(&["on=graphql,do=503"]);
    assert_eq!(status(&server).as_deref(), Some("503"));
    assert_eq!(status(&server).as_deref(), Some("200"));
    server.fault("on=graphql,do=500,times=inf");
    assert_eq!(status(&server).as_deref(), Some("500"));
    let rules = server.faults();
    assert_eq!(
        (&rules[0]["seen"], &rules[0]["done"]),
        (&3.into(), &1.into())
    );
    server.clear();
    assert_eq!(status(&server).as_deref(), Some("200"));
    server.down(Duration::from_secs(3600));
    assert_eq!(status(&server), None);
    server.clear();
    assert_eq!(status(&server).as_deref(), Some("200"));
    assert_eq!(server.violations(), [""; 0]);
    assert!(server.events().len() >= 6);
}

#[test]
fn a_server_that_was_killed_comes_back_on_its_port() {
    let mut server = Server::start();
    let port = server.port();
    assert_eq!(status(&server).as_deref(), Some("200"));
    server.interrupt();
    assert_eq!(status(&server), None);
    server.resume();
    assert_eq!(server.port(), port);
    assert_eq!(status(&server).as_deref(), Some("200"));
}

#[test]
fn a_server_with_tls_has_a_certificate_that_can_be_a_root() {
    let server = Server::with(Options {
        tls: true,
        ..Options::default()
    });
    assert!(server.url().starts_with("https://127.0.0.1:"));
    let check = "import ssl, sys, urllib.request\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        print(urllib.request.urlopen(sys.argv[1], context=context).status)";
    let fetch = |arguments: &[&std::ffi::OsStr]| {
        python("python3".as_ref())
            .args(["-c", check])
            .args(arguments)
            .output()
            .unwrap()
    };
    let url = server.url();
    let output = fetch(&[url.as_ref(), server.certificate().as_ref()]);
    assert_eq!(support::succeeded(&output), "200\n");
    // Another server's certificate is no root of this one.
    let other = Server::with(Options {
        tls: true,
        ..Options::default()
    });
    let output = fetch(&[url.as_ref(), other.certificate().as_ref()]);
    assert!(!output.status.success());
    // The paths that a test steers by are there without TLS.
    server.fault("on=graphql,do=500");
}
