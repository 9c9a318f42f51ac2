//! What arrives behind the facades.
#![cfg(any(feature = "metrics", feature = "tracing"))]

#[path = "support/facades.rs"]
mod facades;
mod support;

use support::{event, samples};
use varek_telemetry::{EventKind, Sink};

#[cfg(feature = "metrics")]
#[test]
fn events_are_counted_by_kind_call_and_cause_and_a_guest_cannot_invent_labels() {
    let counts = facades::counts::Counts::default();
    let total = samples().len() as u64;
    metrics::with_local_recorder(&counts, || {
        let sink = varek_telemetry::Metrics::new();
        for (_, kind) in samples() {
            sink.record(&event(0, kind));
        }
        // Numbers without a name: one series, whatever the guest asks for.
        for number in 0..100 {
            let mut denial = support::denial(None, [0; 6], varek_telemetry::Answer::Probe);
            denial.number = 100_000 + number;
            sink.record(&event(0, EventKind::SyscallDenied(denial)));
        }
    });
    let all = counts.all();
    let count = |name: &str| {
        *all.get(name)
            .unwrap_or_else(|| panic!("{name} in {all:#?}"))
    };
    assert_eq!(
        count("varek_denied_calls_total{call=socket,answer=errno}"),
        9_937
    );
    assert_eq!(
        count("varek_denied_calls_total{call=unknown,answer=probe}"),
        101
    );
    assert_eq!(count("varek_kills_total{cause=syscall}"), 1);
    assert_eq!(count("varek_limits_hit_total{resource=memory}"), 1);
    assert_eq!(
        count("varek_runs_finished_total{termination=killed,cause=wall_clock}"),
        1
    );
    assert_eq!(count("varek_events_dropped_total{}"), 4);
    assert_eq!(count("varek_run_wall_clock_seconds{}"), 4);
    let kinds: u64 = all
        .iter()
        .filter(|(name, _)| name.starts_with("varek_events_total"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(kinds, total + 100);
}

#[cfg(feature = "tracing")]
#[test]
fn every_kind_is_an_event_with_its_fields_and_what_a_guest_chose_is_escaped() {
    let lines = facades::trace::Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let sink = varek_telemetry::Tracing::new();
        for (_, kind) in samples() {
            sink.record(&event(3, kind));
        }
        let mut kind = support::started(varek_telemetry::Arguments::None { count: 0 });
        if let EventKind::RunStarted { program, .. } = &mut kind {
            *program = "/tmp/x\nERROR message=forged".into();
        }
        sink.record(&event(3, kind));
    });
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), samples().len() + 1);
    for ((name, kind), line) in samples().iter().zip(lines.iter()) {
        assert!(
            line.contains(&format!("message={}", kind.name())),
            "{name}: {line}"
        );
        assert!(line.contains("sequence=3"), "{line}");
    }
    assert!(lines.iter().all(|line| !line.contains('\n')));
    let denied = lines
        .iter()
        .find(|line| line.contains("syscall=\"socket\""));
    assert!(denied.unwrap().starts_with("WARN "));
}
