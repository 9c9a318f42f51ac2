//! Keeps the events of runs until their response is written.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use varek_core::{Event, EventKind, RunId, Sink};

/// Events kept of one run; what is over is counted. A guest can make many more denied calls than that.
const MOST_EVENTS: usize = 10_000;

/// Runs kept. More than run at a time: a run that never got as far as a response leaves its events
/// behind, and those are the oldest.
const MOST_RUNS: usize = 4_096;

/// The events of the runs of one sandbox.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    runs: HashMap<RunId, Kept>,
    order: VecDeque<RunId>,
}

/// The events of one run.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) events: Vec<Event>,
    pub(super) omitted: u64,
}

impl EventLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is there of a run.
    pub(super) fn take(&self, run: RunId) -> Kept {
        let mut state = self.state();
        state.order.retain(|other| *other != run);
        state.runs.remove(&run).unwrap_or_default()
    }
}

impl Sink for EventLog {
    fn record(&self, event: &Event) {
        let mut state = self.state();
        if !state.runs.contains_key(&event.run) {
            state.order.push_back(event.run);
            if state.order.len() > MOST_RUNS
                && let Some(oldest) = state.order.pop_front()
            {
                state.runs.remove(&oldest);
            }
        }
        let kept = state.runs.entry(event.run).or_default();
        if kept.events.len() < MOST_EVENTS || matches!(event.kind, EventKind::RunFinished { .. }) {
            kept.events.push(event.clone());
        } else {
            kept.omitted += 1;
        }
        if let EventKind::EventsDropped { count } = event.kind {
            kept.omitted += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn event(run: u128, sequence: u64) -> Event {
        Event {
            run: RunId::from_bits(run),
            sequence,
            time: SystemTime::UNIX_EPOCH,
            elapsed: Duration::ZERO,
            kind: EventKind::GuestStarted { pid: 7 },
        }
    }

    #[test]
    fn each_run_gets_its_own_events_once() {
        let log = EventLog::default();
        for (run, sequence) in [(1, 0), (2, 0), (1, 1)] {
            log.record(&event(run, sequence));
        }
        let kept = log.take(RunId::from_bits(1));
        assert_eq!(
            kept.events
                .iter()
                .map(|event| event.sequence)
                .collect::<Vec<_>>(),
            [0, 1]
        );
        assert!(log.take(RunId::from_bits(1)).events.is_empty());
        assert_eq!(log.take(RunId::from_bits(2)).events.len(), 1);
    }

    #[test]
    fn what_a_run_has_too_many_of_is_counted() {
        let log = EventLog::default();
        let most = MOST_EVENTS as u64;
        (0..most + 3).for_each(|sequence| log.record(&event(1, sequence)));
        let kept = log.take(RunId::from_bits(1));
        assert_eq!((kept.events.len(), kept.omitted), (MOST_EVENTS, 3));
    }

    #[test]
    fn runs_that_nobody_asks_for_do_not_pile_up() {
        let log = EventLog::default();
        let most = MOST_RUNS as u128;
        (0..most + 5).for_each(|run| log.record(&event(run, 0)));
        assert!(log.take(RunId::from_bits(4)).events.is_empty());
        assert_eq!(log.take(RunId::from_bits(5)).events.len(), 1);
        assert_eq!(log.state().runs.len(), MOST_RUNS - 1);
    }
}
