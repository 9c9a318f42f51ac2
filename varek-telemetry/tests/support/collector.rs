//! A collector of spans on a loopback address.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// One request.
#[derive(Debug)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn decoded(&self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(&self.body[..]).unwrap()
    }

    /// The spans, all of one resource and scope.
    pub fn spans(&self) -> Vec<Span> {
        let decoded = self.decoded();
        assert_eq!(decoded.resource_spans.len(), 1);
        assert_eq!(decoded.resource_spans[0].scope_spans.len(), 1);
        decoded.resource_spans[0].scope_spans[0].spans.clone()
    }
}

/// Attributes as text.
pub fn attributes(list: &[KeyValue]) -> HashMap<String, String> {
    list.iter()
        .map(|pair| {
            let value = match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
                Value::StringValue(text) => text.clone(),
                Value::IntValue(number) => number.to_string(),
                Value::DoubleValue(number) => number.to_string(),
                other => panic!("{other:?}"),
            };
            (pair.key.clone(), value)
        })
        .collect()
}

/// Where spans go, and what came.
pub struct Collector {
    pub url: String,
    requests: Receiver<Request>,
}

impl Collector {
    /// Answers one request after the other with these statuses, and the last of them for good.
    pub fn answering(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/otel/v1/traces", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let status = statuses[index.min(statuses.len() - 1)];
                let Some(request) = stream.ok().and_then(|stream| serve(&stream, status)) else {
                    continue;
                };
                if sender.send(request).is_err() {
                    return;
                }
            }
        });
        Self { url, requests }
    }

    /// The next request.
    pub fn next(&self) -> Request {
        self.requests.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    /// Whether no more requests came than were taken.
    pub fn is_quiet(&self) -> bool {
        self.requests.try_recv().is_err()
    }
}

fn serve(stream: &TcpStream, status: u16) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut stream = stream;
    let answer = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nLocation: /elsewhere\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).ok()?;
    Some(Request {
        path,
        headers,
        body,
    })
}
