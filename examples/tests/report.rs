//! The page and the summary of a log whose guest chose its words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use varek_core::{
    Answer, Arguments, Cause, Denial, Enforcement, Event, EventKind, RunId, Termination,
};

const HOSTILE: &str = "/tmp/</code><script>alert(document.domain)</script><img src=x onerror=alert(2)>'\"\u{1b}[31m\u{202e}";

fn event(run: u128, sequence: u64, kind: EventKind) -> String {
    let event = Event {
        run: RunId::from_bits(run),
        sequence,
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + sequence),
        elapsed: Duration::from_millis(10 * sequence),
        kind,
    };
    format!("{}\n", serde_json::to_string(&event).unwrap())
}

fn log(denials: u64) -> String {
    let mut log = event(
        7,
        0,
        EventKind::RunStarted {
            traceparent: None,
            program: HOSTILE.into(),
            interpreter: None,
            arguments: Arguments::None { count: 2 },
            policy: HOSTILE.into(),
            enforcement: Enforcement::default(),
        },
    );
    for sequence in 1..=denials {
        let denial = Denial {
            syscall: Some(
                if sequence % 2 == 0 {
                    "socket"
                } else {
                    "ptrace"
                }
                .into(),
            ),
            number: 41,
            abi: HOSTILE.into(),
            arguments: [2, 1, 0, 0, 0, 0],
            thread: 1,
            answer: Answer::Errno(1),
            count: 1,
            unverified: Vec::new(),
        };
        log += &event(7, sequence, EventKind::SyscallDenied(denial));
    }
    let fault = HOSTILE.into();
    log += &event(7, denials + 1, EventKind::MonitorFault { fault });
    let cause = Cause::Syscall {
        name: HOSTILE.into(),
    };
    log += &event(
        7,
        denials + 2,
        EventKind::GuestExited {
            termination: Termination::Killed(cause),
        },
    );
    log
}

fn report(log: &str) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    fs::write(&path, log).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_report"))
        .arg(&path)
        .output()
        .unwrap();
    let page = fs::read_to_string(directory.path().join("log.jsonl.html")).unwrap();
    (output, page)
}

#[test]
fn a_guest_that_chooses_its_name_puts_no_markup_on_the_page_and_no_escape_on_the_terminal() {
    let (output, page) = report(&log(2));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
    assert!(!page.contains("<img") && !page.contains('\u{1b}'));
    assert!(page.contains("&lt;script&gt;alert(document.domain)"));
    let text = String::from_utf8(output.stdout).unwrap();
    for letter in ['\u{1b}', '\u{202e}'] {
        assert!(!text.contains(letter) && !page.contains(letter));
    }
}

#[test]
fn the_page_loads_nothing_and_runs_its_own_script_alone() {
    let (_, page) = report(&log(2));
    assert!(page.contains("default-src 'none'; style-src 'sha256-"));
    for wrong in ["src=", "http://", "https://", "url(", "@import", "unsafe-"] {
        let plain = page.replace("<img src=x", "").replace("&lt;img src=x", "");
        assert!(!plain.contains(wrong), "{wrong}");
    }
}

#[test]
fn a_storm_of_denials_is_counted_and_not_shown_one_by_one() {
    let (output, page) = report(&log(5_000));
    assert!(output.status.success());
    assert!(
        page.contains("<b>5000</b> denied calls"),
        "{}",
        &page[..3_000]
    );
    assert!(page.contains("<td class=\"n\">2500</td>"));
    assert!(page.len() < 500_000, "{}", page.len());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("2500 × socket refused"), "{text}");
}

#[test]
fn what_cannot_be_read_is_said_and_the_rest_is_shown() {
    let newer = r#"{"v":1,"event":"guest_teleported"}"#;
    let (output, page) = report(&format!("{}{newer}\n<b>nonsense\n{{\"v\":1", log(1)));
    assert_eq!(output.status.code(), Some(1));
    assert!(page.contains("<b>1</b> records of newer kinds"));
    assert!(page.contains("line 6 is no record") && page.contains("line 7, the last, is torn"));
    assert!(page.contains("&lt;script&gt;alert"));
}
