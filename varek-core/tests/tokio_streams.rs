//! With the feature `tokio`, a guest's streams are tokio's.
#![cfg(feature = "tokio")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::io::ErrorKind;

use support::{assert_clean, assert_killed, python, seconds};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use varek_core::{Cause, Child, Command, Input, Output};

fn piped(source: &str) -> Command {
    Command::python(source)
        .stdin(Input::piped())
        .stdout(Output::piped())
        .stderr(Output::piped())
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future);
}

#[test]
fn a_conversation_by_lines_on_one_thread() {
    let sandbox = sandbox!(python());
    block_on(async {
        let source = "import sys
for line in sys.stdin: print(line.strip().upper(), flush=True)
sys.stderr.write('eof')";
        let mut child = sandbox.spawn(piped(source)).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for word in ["one", "two", "three"] {
            stdin
                .write_all(format!("{word}\n").as_bytes())
                .await
                .unwrap();
            stdin.flush().await.unwrap();
            assert_eq!(
                lines.next_line().await.unwrap().unwrap(),
                word.to_uppercase()
            );
        }
        stdin.shutdown().await.unwrap();
        let late = stdin.write(b"x").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        assert_eq!(lines.next_line().await.unwrap(), None);
        let mut rest = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut rest)
            .await
            .unwrap();
        assert_eq!(rest, "eof");
        assert_clean(&child.await.unwrap());
    });
}

#[test]
fn megabytes_go_through_both_ways_at_once_on_one_thread() {
    let sandbox = sandbox!(python().wall_clock(seconds(30)));
    block_on(async {
        let source =
            "import sys, shutil\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer, 5000)";
        let mut child: Child = sandbox.spawn(piped(source)).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let data: Vec<u8> = (0..3_000_000_u32)
            .map(|n| (n / 7).to_le_bytes()[0])
            .collect();
        let mut back = Vec::new();
        let write = async {
            stdin.write_all(&data).await.unwrap();
            stdin.shutdown().await.unwrap();
        };
        let ((), read) = tokio::join!(write, stdout.read_to_end(&mut back));
        assert_eq!(read.unwrap(), data.len());
        assert!(back == data);
        assert_clean(&child.await.unwrap());
    });
}

#[test]
fn a_guest_that_never_reads_ends_its_writer_s_wait_at_the_deadline() {
    let sandbox = sandbox!(python().wall_clock(seconds(1)));
    block_on(async {
        let mut child = sandbox.spawn(piped("while True: pass")).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let written = stdin.write_all(&vec![0; 4 << 20]).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(
            stdin.flush().await.unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
        assert_killed(&child.await.unwrap(), &Cause::WallClock);
    });
}

#[test]
fn a_reader_that_was_dropped_mid_wait_loses_nothing() {
    let sandbox = sandbox!(python());
    block_on(async {
        let mut child = sandbox.spawn(piped("print(input())")).unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut buffer = [0; 16];
        tokio::select! {
            biased;
            _ = stdout.read(&mut buffer) => panic!("nothing was written yet"),
            () = std::future::ready(()) => {}
        }
        child
            .stdin
            .take()
            .unwrap()
            .write_all(b"late\n")
            .await
            .unwrap();
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "late\n");
        assert_clean(&child.await.unwrap());
    });
}
