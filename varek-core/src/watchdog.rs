//! The decisions of one run: a pure state machine without a clock, a kernel or an allocation.
//!
//! The supervisor tells it what it observed and when; the watchdog says what to do. The first cause wins:
//! once a kill has been decided, no later observation changes why.

use std::time::{Duration, Instant};

use varek_telemetry::Cause;

/// What the supervisor observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// The guest's program runs.
    Started,
    /// A denied call that was answered.
    Denied,
    /// Something for which the run has to end.
    Fatal(Cause),
    /// CPU time of the whole tree so far.
    CpuTime(Duration),
    /// The first process has ended.
    FirstProcessEnded,
    /// No process of the tree is left.
    Empty,
    /// Nothing but time passing.
    Tick,
}

/// What the supervisor has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    None,
    /// Kill the tree, for this cause.
    Kill(Cause),
    /// The first process is gone: kill what it left.
    KillRest,
    /// The tree is dead: account for it and finish.
    Finish,
    /// The tree does not die within the grace: finish all the same, and say so.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SettingUp,
    Running,
    /// The tree is being killed, or what the first process left is.
    Dying {
        since: Instant,
    },
    Done,
}

/// The bounds that the watchdog holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) wall_clock: Duration,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) denials_total: u64,
    pub(crate) denials_per_second: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watchdog {
    bounds: Bounds,
    deadline: Instant,
    state: State,
    dying_since: Option<Instant>,
    first_process_ended: bool,
    denials: u64,
    second: Instant,
    denials_this_second: u64,
}

impl Watchdog {
    pub(crate) fn new(now: Instant, bounds: Bounds) -> Self {
        Self {
            bounds,
            deadline: now + bounds.wall_clock,
            state: State::SettingUp,
            dying_since: None,
            first_process_ended: false,
            denials: 0,
            second: now,
            denials_this_second: 0,
        }
    }

    /// When to call [`Watchdog::on`] with a tick at the latest.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.state {
            State::SettingUp | State::Running => Some(self.deadline),
            State::Dying { since } => Some(since + self.bounds.grace),
            State::Done => None,
        }
    }

    /// Whether a kill was decided, or the first process has ended.
    pub(crate) fn dying(&self) -> bool {
        !matches!(self.state, State::SettingUp | State::Running)
    }

    /// When the tree was killed, or its first process was seen to have ended.
    pub(crate) fn dying_since(&self) -> Option<Instant> {
        self.dying_since
    }

    pub(crate) fn on(&mut self, now: Instant, observation: Observation) -> Action {
        match (self.state, observation) {
            (State::Done, _) => Action::None,
            (State::Dying { .. }, Observation::Empty) => self.finish(Action::Finish),
            (State::Dying { since }, observation) => {
                self.first_process_ended |= observation == Observation::FirstProcessEnded;
                if now >= since + self.bounds.grace {
                    self.finish(Action::GiveUp)
                } else {
                    Action::None
                }
            }
            (_, Observation::Fatal(cause)) => self.kill(now, cause),
            (_, Observation::FirstProcessEnded) => {
                self.first_process_ended = true;
                self.die(now);
                Action::KillRest
            }
            (_, Observation::CpuTime(used))
                if self.bounds.cpu_time.is_some_and(|limit| used >= limit) =>
            {
                self.kill(now, Cause::CpuTime)
            }
            (_, Observation::Denied) if self.over_budget(now) => {
                self.kill(now, Cause::DenialBudget)
            }
            (State::SettingUp, Observation::Started) => {
                self.state = State::Running;
                self.tick(now)
            }
            // An empty group before the first process was seen to end: it has ended, and will be seen.
            _ => self.tick(now),
        }
    }

    fn tick(&mut self, now: Instant) -> Action {
        if now < self.deadline {
            return Action::None;
        }
        let cause = match self.state {
            // The supervisor knows the step.
            State::SettingUp => Cause::SetupTimeout {
                step: String::new(),
            },
            _ => Cause::WallClock,
        };
        self.kill(now, cause)
    }

    fn kill(&mut self, now: Instant, cause: Cause) -> Action {
        self.die(now);
        Action::Kill(cause)
    }

    fn die(&mut self, now: Instant) {
        self.state = State::Dying { since: now };
        self.dying_since = Some(now);
    }

    fn finish(&mut self, action: Action) -> Action {
        self.state = State::Done;
        action
    }

    fn over_budget(&mut self, now: Instant) -> bool {
        self.denials += 1;
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.denials_this_second = 0;
        }
        self.denials_this_second += 1;
        self.denials > self.bounds.denials_total
            || self.denials_this_second > self.bounds.denials_per_second
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        wall_clock: Duration::from_secs(5),
        cpu_time: Some(Duration::from_secs(2)),
        grace: Duration::from_secs(1),
        denials_total: 10,
        denials_per_second: 4,
    };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_deadline_kills_in_set_up_and_while_running_with_different_causes() {
        let start = Instant::now();
        let mut stuck = Watchdog::new(start, BOUNDS);
        assert_eq!(
            stuck.on(start + seconds(4), Observation::Tick),
            Action::None
        );
        assert_eq!(
            stuck.on(start + seconds(5), Observation::Tick),
            Action::Kill(Cause::SetupTimeout {
                step: String::new()
            })
        );
        let mut running = Watchdog::new(start, BOUNDS);
        assert_eq!(running.on(start, Observation::Started), Action::None);
        assert_eq!(
            running.on(start + seconds(5), Observation::Tick),
            Action::Kill(Cause::WallClock)
        );
    }

    #[test]
    fn a_tree_that_does_not_die_is_given_up_after_the_grace() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(start, BOUNDS);
        watchdog.on(start, Observation::Started);
        watchdog.on(start, Observation::Fatal(Cause::Cancelled));
        assert_eq!(watchdog.next_tick(), Some(start + seconds(1)));
        assert_eq!(
            watchdog.on(start + seconds(1), Observation::Tick),
            Action::GiveUp
        );
        assert_eq!(watchdog.next_tick(), None);
    }

    #[test]
    fn denials_are_bounded_in_a_second_and_in_all() {
        let start = Instant::now();
        let mut fast = Watchdog::new(start, BOUNDS);
        fast.on(start, Observation::Started);
        for _ in 0..4 {
            assert_eq!(fast.on(start, Observation::Denied), Action::None);
        }
        assert_eq!(
            fast.on(start, Observation::Denied),
            Action::Kill(Cause::DenialBudget)
        );
        let bounds = Bounds {
            wall_clock: seconds(100),
            ..BOUNDS
        };
        let mut slow = Watchdog::new(start, bounds);
        slow.on(start, Observation::Started);
        for n in 0..10 {
            assert_eq!(
                slow.on(start + seconds(2 * n), Observation::Denied),
                Action::None
            );
        }
        assert_eq!(
            slow.on(start + seconds(20), Observation::Denied),
            Action::Kill(Cause::DenialBudget)
        );
    }

    #[test]
    fn cpu_time_kills_at_its_limit_and_not_before() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(start, BOUNDS);
        watchdog.on(start, Observation::Started);
        let under = Observation::CpuTime(Duration::from_millis(1999));
        assert_eq!(watchdog.on(start, under), Action::None);
        assert_eq!(
            watchdog.on(start, Observation::CpuTime(seconds(2))),
            Action::Kill(Cause::CpuTime)
        );
    }

    fn observation() -> impl Strategy<Value = Observation> {
        prop_oneof![
            Just(Observation::Started),
            Just(Observation::Denied),
            Just(Observation::Fatal(Cause::OutOfMemory)),
            Just(Observation::Fatal(Cause::Dropped)),
            (0_u64..4).prop_map(|n| Observation::CpuTime(seconds(n))),
            Just(Observation::FirstProcessEnded),
            Just(Observation::Empty),
            Just(Observation::Tick),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_one_kill_at_most_and_an_end_within_deadline_and_grace(
            steps in proptest::collection::vec((0_u64..3000, observation()), 0..40),
        ) {
            let start = Instant::now();
            let mut watchdog = Watchdog::new(start, BOUNDS);
            let mut now = start;
            let mut actions = Vec::new();
            for (millis, observation) in steps {
                now += Duration::from_millis(millis);
                actions.push(watchdog.on(now, observation));
            }
            // Time alone brings every run to its end.
            for _ in 0..3 {
                if let Some(tick) = watchdog.next_tick() {
                    prop_assert!(tick <= now.max(start + BOUNDS.wall_clock) + BOUNDS.grace);
                    now = now.max(tick);
                    actions.push(watchdog.on(now, Observation::Tick));
                }
            }
            let deaths = actions.iter().filter(|action| matches!(action, Action::Kill(_) | Action::KillRest));
            prop_assert_eq!(deaths.count(), 1);
            let ends = actions.iter().filter(|action| matches!(action, Action::Finish | Action::GiveUp));
            prop_assert_eq!(ends.count(), 1);
            prop_assert!(watchdog.next_tick().is_none());
        }
    }
}
