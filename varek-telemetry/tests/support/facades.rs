//! What the embedder installs behind the facades, in the smallest.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

/// Metrics by name and labels.
#[cfg(feature = "metrics")]
pub mod counts {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    #[derive(Default)]
    pub struct Counts {
        counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    }

    impl Counts {
        pub fn all(&self) -> BTreeMap<String, u64> {
            let counters = self.counters.lock().unwrap();
            counters
                .iter()
                .map(|(key, count)| (key.clone(), count.load(Ordering::Relaxed)))
                .collect()
        }

        fn of(&self, key: &Key) -> Arc<AtomicU64> {
            let labels: Vec<_> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            self.counters
                .lock()
                .unwrap()
                .entry(name)
                .or_default()
                .clone()
        }
    }

    impl Recorder for Counts {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            // How often is enough.
            struct Times(Arc<AtomicU64>);
            impl metrics::HistogramFn for Times {
                fn record(&self, _: f64) {
                    self.0.fetch_add(1, Ordering::Relaxed);
                }
            }
            Histogram::from_arc(Arc::new(Times(self.of(key))))
        }
    }
}

/// Events as lines: level, then fields.
#[cfg(feature = "tracing")]
pub mod trace {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    #[derive(Clone, Default)]
    pub struct Lines(pub Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "varek"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}
