//! What several tests need.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, SystemTime};

use varek_telemetry::{
    Answer, Arguments, Cause, Cleanup, Denial, Enforcement, Event, EventKind, GuestText, Layer,
    LayerStatus, LimitHit, Pointee, Resource, RunId, Signal, Stream, Termination, UnknownReason,
    Unverified, Usage,
};

/// An event of one run, always at the same time.
pub fn event(sequence: u64, kind: EventKind) -> Event {
    Event {
        run: RunId::from_bits(0x00ff << 64 | 0xabc),
        sequence,
        time: SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
        elapsed: Duration::new(1, 999_999_999),
        kind,
    }
}

/// The plainest event.
pub fn plain(sequence: u64) -> Event {
    event(sequence, EventKind::GuestStarted { pid: 9 })
}

/// A denied call.
pub fn denial(syscall: Option<&str>, arguments: [u64; 6], answer: Answer) -> Denial {
    Denial {
        syscall: syscall.map(str::to_owned),
        number: 41,
        abi: "x86_64".into(),
        arguments,
        thread: 7,
        answer,
        count: 1,
        unverified: Vec::new(),
    }
}

/// A denied call of which is known what its pointers led to, in the order of the arguments.
pub fn unverified(
    syscall: &str,
    arguments: [u64; 6],
    pointees: impl IntoIterator<Item = Pointee>,
) -> EventKind {
    let first = match syscall {
        "mount" => 0,
        "sendto" => 4,
        _ => 1,
    };
    let unverified = pointees.into_iter().zip(first..);
    EventKind::SyscallDenied(Denial {
        unverified: unverified
            .map(|(pointee, argument)| Unverified { argument, pointee })
            .collect(),
        ..denial(Some(syscall), arguments, Answer::Errno(1))
    })
}

/// The end of a run.
pub fn finished(termination: Termination) -> EventKind {
    // Not made of fields elsewhere than in its crate: more may come.
    let mut usage = Usage::default();
    usage.wall_clock = Duration::new(3, 1);
    usage.cpu_user = Duration::from_millis(20);
    usage.throttled = Some(Duration::from_millis(7));
    usage.memory_peak = Some(u64::MAX);
    EventKind::RunFinished {
        termination,
        usage,
        cleanup: Cleanup::Incomplete {
            pids: vec![1, 2],
            state: "stuck".into(),
        },
    }
}

/// The beginning of a run.
pub fn started(arguments: Arguments) -> EventKind {
    let mut enforcement = Enforcement::default();
    let detail = "5 bytes".into();
    enforcement.record(Layer::Memory, LayerStatus::Enforced { detail });
    enforcement.record(Layer::Cpu, LayerStatus::NotAsked);
    let reason = "the host has none".into();
    enforcement.record(Layer::DenialReports, LayerStatus::Missing { reason });
    EventKind::RunStarted {
        program: "/bin/true".into(),
        interpreter: None,
        arguments,
        policy: "sha256:0".into(),
        enforcement,
        traceparent: None,
    }
}

/// The `traceparent` of the W3C's own examples.
pub const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The beginning of a run that belongs to a span of the embedder's.
pub fn started_beneath(parent: &str) -> EventKind {
    let mut kind = started(Arguments::None { count: 2 });
    if let EventKind::RunStarted { traceparent, .. } = &mut kind {
        *traceparent = Some(parent.parse().unwrap());
    }
    kind
}

/// Every kind, and every word in each, by the name of its golden file.
pub fn samples() -> Vec<(String, EventKind)> {
    let named = |name: &str, kind: EventKind| (name.to_owned(), kind);
    let mut all = vec![
        named("run_started", started(Arguments::None { count: 2 })),
        named(
            "run_started.digest",
            started(Arguments::Digest {
                count: 2,
                digest: "sha256:00".into(),
            }),
        ),
        named(
            "run_started.full",
            started(Arguments::Full {
                text: vec!["-c".into(), "print(\"ü\n\")".into()],
                omitted: 1,
            }),
        ),
        named("run_started.traceparent", started_beneath(PARENT)),
        named("guest_started", EventKind::GuestStarted { pid: 9 }),
        named(
            "syscall_denied",
            EventKind::SyscallDenied(denial(
                Some("socket"),
                [2, 0x8_0001, 0, 1, u64::MAX, 1 << 63],
                Answer::Errno(1),
            )),
        ),
        named(
            "syscall_denied.probe",
            EventKind::SyscallDenied(denial(None, [0; 6], Answer::Probe)),
        ),
        named(
            "syscall_denied.storm",
            EventKind::SyscallDenied(Denial {
                count: 9_936,
                ..denial(Some("socket"), [1, 1, 0, 0, 0, 0], Answer::Errno(1))
            }),
        ),
        named(
            "syscall_denied.kill",
            EventKind::SyscallDenied(denial(Some("ptrace"), [16, 1, 0, 0, 0, 0], Answer::Kill)),
        ),
        named(
            "output_truncated",
            EventKind::OutputTruncated {
                stream: Stream::Stderr,
                limit: 5,
            },
        ),
        named(
            "deadline_passed",
            EventKind::DeadlinePassed {
                limit: Duration::from_secs(30),
            },
        ),
        named(
            "guest_signaled",
            EventKind::GuestSignaled {
                signal: Signal::KILL,
            },
        ),
        named(
            "descendants_killed",
            EventKind::DescendantsKilled { count: 3 },
        ),
        named("events_dropped", EventKind::EventsDropped { count: 4 }),
        named(
            "monitor_fault",
            EventKind::MonitorFault {
                fault: "watch the group: ENOENT".into(),
            },
        ),
    ];
    all.extend(with_pointees());
    all.extend(by_word());
    all
}

fn with_pointees() -> Vec<(String, EventKind)> {
    let named = |name: &str, kind: EventKind| (name.to_owned(), kind);
    vec![
        named(
            "syscall_denied.paths",
            unverified(
                "mount",
                [1, 2, 3, 4096, 0, 0],
                [
                    Pointee::Path(GuestText::new(b"/dev/sda\n<\xff")),
                    Pointee::Path(GuestText::new(&[b'/'; 300])),
                    Pointee::Name(GuestText::new(b"ext4")),
                ],
            ),
        ),
        named(
            "syscall_denied.internet",
            unverified(
                "sendto",
                [3, 0, 0, 0, 5, 28],
                [Pointee::Internet("[::1%2]:443".parse().unwrap())],
            ),
        ),
        named(
            "syscall_denied.unix",
            unverified(
                "connect",
                [3, 5, 110, 0, 0, 0],
                [Pointee::Unix(GuestText::new(b"/run/x.sock"))],
            ),
        ),
        named(
            "syscall_denied.abstract",
            unverified(
                "bind",
                [3, 5, 7, 0, 0, 0],
                [Pointee::Abstract(GuestText::new(b"name"))],
            ),
        ),
    ]
}

fn by_word() -> Vec<(String, EventKind)> {
    let mut all = Vec::new();
    for (word, resource) in [
        ("memory", Resource::Memory),
        ("pids", Resource::Pids),
        ("cpu_share", Resource::CpuShare),
        ("cpu_time", Resource::CpuTime),
        ("wall_clock", Resource::WallClock),
        ("output", Resource::Output),
        ("file_size", Resource::FileSize),
        ("scratch", Resource::Scratch),
        ("scratch_files", Resource::ScratchFiles),
    ] {
        all.push((
            format!("limit_hit.{word}"),
            EventKind::LimitHit(LimitHit {
                resource,
                limit: (word != "memory").then_some(u64::MAX),
                count: 1 << 40,
                evidence: "cpu.stat: nr_throttled".into(),
            }),
        ));
    }
    for (word, cause) in causes() {
        all.push((
            format!("kill_issued.{word}"),
            EventKind::KillIssued { cause },
        ));
    }
    for (word, termination) in [
        ("exited", Termination::Exited(3)),
        ("signaled", Termination::Signaled(Signal::XCPU)),
        ("killed", Termination::Killed(Cause::WallClock)),
        (
            "unknown",
            Termination::Unknown {
                reason: UnknownReason::StillRunning,
            },
        ),
    ] {
        let kind = EventKind::GuestExited {
            termination: termination.clone(),
        };
        all.push((format!("guest_exited.{word}"), kind));
        all.push((format!("run_finished.{word}"), finished(termination)));
    }
    all
}

fn causes() -> Vec<(&'static str, Cause)> {
    vec![
        ("wall_clock", Cause::WallClock),
        ("cpu_time", Cause::CpuTime),
        ("out_of_memory", Cause::OutOfMemory),
        ("host_out_of_memory", Cause::HostOutOfMemory),
        ("output_limit", Cause::OutputLimit),
        (
            "syscall",
            Cause::Syscall {
                name: "ptrace".into(),
            },
        ),
        ("denial_budget", Cause::DenialBudget),
        (
            "setup_timeout",
            Cause::SetupTimeout {
                step: "exec".into(),
            },
        ),
        ("cancelled", Cause::Cancelled),
        ("dropped", Cause::Dropped),
        ("supervisor_fault", Cause::SupervisorFault),
    ]
}
