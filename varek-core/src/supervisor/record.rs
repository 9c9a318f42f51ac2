//! What is recorded of a run: every event goes into the outcome and then to the sink.
//!
//! A storm of one denied call is taken together: of each call the first few of a moment are events of their own, and the rest
//! is one event with a count. So a guest that does nothing but make denied calls costs the supervisor their
//! answers and the sink next to nothing, until the denial budget ends it; and no call is missing in the counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use varek_telemetry::{Answer, Denial, Event, EventKind, Sink as _};

use super::run::Run;
#[cfg(feature = "test-hooks")]
use crate::outcome::Outcome;
use crate::sandbox::Sealed;

/// How long calls are taken together.
const MOMENT: Duration = Duration::from_millis(100);
/// Events of one call in a moment before the rest of them are taken together.
const SINGLE: u64 = 64;
/// Different calls of a moment that are told apart: a guest can make up numbers.
const MOST_CALLS: usize = 512;

/// The denied calls of this moment.
#[derive(Debug, Default)]
pub(super) struct Storm {
    ends: Option<Instant>,
    /// How many there were, by ABI, number and answer, and those that are not recorded yet.
    calls: BTreeMap<(String, u32, i32), (u64, Option<Denial>)>,
}

/// What is taken together. One call has several answers where it is told by its arguments.
fn kind(denial: &Denial) -> (String, u32, i32) {
    let answer = match denial.answer {
        Answer::Errno(errno) => errno,
        _ => 0,
    };
    (denial.abi.clone(), denial.number, answer)
}

impl Storm {
    /// What is to be recorded now of a call that was denied, besides what [`Storm::over`] gives first.
    fn take(&mut self, denial: Denial) -> Option<Denial> {
        let (seen, held) = self.calls.entry(kind(&denial)).or_default();
        *seen += denial.count;
        if *seen <= SINGLE {
            return Some(denial);
        }
        match held {
            Some(other) => other.count += denial.count,
            None => *held = Some(denial),
        }
        None
    }

    /// Whether a call that is denied now has its own registers in an event.
    pub(super) fn shows(&self, denial: &Denial, now: Instant) -> bool {
        let before = self.calls.get(&kind(denial)).filter(|_| !self.is_over(now));
        before.is_none_or(|(seen, held)| *seen < SINGLE || held.is_none())
    }

    fn is_over(&self, now: Instant) -> bool {
        self.calls.len() >= MOST_CALLS || self.ends.is_none_or(|ends| now >= ends)
    }

    /// Everything that is not recorded yet.
    fn held(&mut self) -> Vec<Denial> {
        let held = self.calls.values_mut();
        held.filter_map(|(_, held)| held.take()).collect()
    }

    /// Begins a new moment where the last one is over; gives what is left of that.
    fn over(&mut self, now: Instant) -> Vec<Denial> {
        if !self.is_over(now) {
            return Vec::new();
        }
        let held = self.held();
        self.calls.clear();
        self.ends = Some(now + MOMENT);
        held
    }

    /// When what is held is to be recorded at the latest.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let holds = self.calls.values().any(|(_, held)| held.is_some());
        self.ends.filter(|_| holds)
    }
}

impl Run {
    /// Records an event: into the outcome, then to the sink. What is seen after the last event, of a tree that
    /// died late, is nobody's.
    pub(super) fn emit(&mut self, kind: EventKind, sealed: &Sealed) {
        // What was seen before is said before.
        for denial in self.storm.held() {
            self.write(EventKind::SyscallDenied(denial), sealed);
        }
        self.write(kind, sealed);
    }

    /// Records a denied call, now or with others like it.
    pub(super) fn denied(&mut self, denial: Denial, sealed: &Sealed) {
        self.storm_passes(Instant::now(), sealed);
        if let Some(denial) = self.storm.take(denial) {
            self.write(EventKind::SyscallDenied(denial), sealed);
        }
    }

    /// Records what was held of a moment that is over.
    pub(super) fn storm_passes(&mut self, now: Instant, sealed: &Sealed) {
        for denial in self.storm.over(now) {
            self.write(EventKind::SyscallDenied(denial), sealed);
        }
    }

    fn write(&mut self, kind: EventKind, sealed: &Sealed) {
        if self.told {
            return;
        }
        self.told = matches!(kind, EventKind::RunFinished { .. });
        self.outcome.apply(&kind);
        #[cfg(feature = "test-hooks")]
        self.events.push(kind.clone());
        if let Some(sink) = &sealed.sink {
            sink.record(&Event {
                run: self.plan.run,
                sequence: self.sequence,
                time: SystemTime::now(),
                elapsed: self.began.elapsed(),
                kind,
            });
        }
        self.sequence += 1;
    }

    pub(super) fn fault(&mut self, what: &str, error: &dyn std::fmt::Display, sealed: &Sealed) {
        self.emit(
            EventKind::MonitorFault {
                fault: format!("{what}: {error}"),
            },
            sealed,
        );
    }

    /// For tests: whatever the run, its outcome is what its events come to, but for the output, which is in none.
    #[cfg(feature = "test-hooks")]
    pub(super) fn compare_with_events(&self) {
        let mut again = Outcome::new(self.plan.run);
        for event in &self.events {
            again.apply(event);
        }
        again.stdout = self.outcome.stdout.clone();
        again.stderr = self.outcome.stderr.clone();
        assert_eq!(
            again, self.outcome,
            "the fold of the run's events, and its outcome"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(number: u32, answer: Answer) -> Denial {
        Denial {
            syscall: None,
            number,
            abi: "x86_64".into(),
            arguments: [0; 6],
            thread: 1,
            answer,
            count: 1,
            unverified: Vec::new(),
        }
    }

    /// What is recorded of these calls at these milliseconds, as numbers and counts.
    fn recorded(calls: impl IntoIterator<Item = (u64, u32, Answer)>) -> Vec<(u32, u64)> {
        let (mut storm, start, mut all) = (Storm::default(), Instant::now(), Vec::new());
        for (at, number, answer) in calls {
            all.extend(storm.over(start + Duration::from_millis(at)));
            all.extend(storm.take(denial(number, answer)));
        }
        all.extend(storm.held());
        all.iter()
            .map(|denial| (denial.number, denial.count))
            .collect()
    }

    const REFUSED: Answer = Answer::Errno(1);

    #[test]
    fn a_storm_of_one_call_is_few_events_with_its_whole_count() {
        let storm = (0..100_000).map(|_| (0, 41, REFUSED));
        let events = recorded(storm);
        assert_eq!(events.len(), 65);
        assert_eq!(events.iter().map(|(_, count)| count).sum::<u64>(), 100_000);
        assert_eq!(events.last(), Some(&(41, 100_000 - 64)));
    }

    #[test]
    fn calls_are_said_to_be_shown_exactly_where_their_registers_will_be() {
        let (mut storm, now) = (Storm::default(), Instant::now());
        for n in 0..200 {
            let mut call = denial(41, REFUSED);
            call.thread = n;
            let shown = storm.shows(&call, now);
            assert!(storm.over(now).is_empty());
            let recorded = storm.take(call).is_some();
            // One that is held stands for those that come after it.
            assert_eq!(shown, recorded || n == 64, "{n}");
        }
        assert!(storm.shows(&denial(42, REFUSED), now));
        assert!(storm.shows(&denial(41, Answer::Probe), now));
        assert!(storm.shows(&denial(41, REFUSED), now + MOMENT));
        assert_eq!(storm.held().first().map(|held| held.thread), Some(64));
        assert!(storm.shows(&denial(41, REFUSED), now));
    }

    #[test]
    fn every_moment_has_events_of_its_own() {
        let storm = (0..10).flat_map(|moment| (0..100).map(move |_| (moment * 100, 41, REFUSED)));
        let events = recorded(storm);
        assert_eq!(events.len(), 10 * 65);
        assert_eq!(events.iter().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    #[test]
    fn calls_and_answers_are_not_mixed_and_made_up_numbers_are_bounded() {
        let mixed = (0..400).map(|n| {
            let answer = if n % 2 == 0 { REFUSED } else { Answer::Probe };
            (0, 41, answer)
        });
        let events = recorded(mixed);
        assert_eq!(events.len(), 2 * 65);
        assert_eq!(events.iter().map(|(_, count)| count).sum::<u64>(), 400);
        let many = recorded((0..50_000).map(|n| (0, n, REFUSED)));
        assert_eq!(many.len(), 50_000);
        let mut storm = Storm::default();
        for number in 0..50_000 {
            drop(storm.over(Instant::now()));
            storm.take(denial(number, REFUSED));
            assert!(storm.calls.len() <= MOST_CALLS);
        }
    }
}
