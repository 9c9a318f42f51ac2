//! What it costs to ask what the host offers: the first time in a process, and after it.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use varek_core::Host;

fn probe(criterion: &mut Criterion) {
    let begin = Instant::now();
    let host = Host::probe();
    println!(
        "Host::probe, the first time: {:.1?} (user namespaces: {})",
        begin.elapsed(),
        host.user_namespaces
    );
    let mut group = criterion.benchmark_group("what the host offers");
    group.measurement_time(Duration::from_secs(3));
    group.bench_function("Host::probe, after the first", |bencher| {
        bencher.iter(Host::probe);
    });
    group.finish();
}

criterion_group!(benches, probe);
criterion_main!(benches);
