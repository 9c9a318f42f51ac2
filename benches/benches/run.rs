//! One run from call to outcome: a plain spawn and the sandbox, side by side.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot run has nothing to report"
)]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use varek_benches::{Tiny, native};
use varek_core::{Command, Policy, Sandbox};

fn tiny(criterion: &mut Criterion) {
    let tiny = Tiny::build().expect("a static program");
    let sandbox = native().expect("a sandbox");
    let mut group = criterion.benchmark_group("tiny static program");
    group.measurement_time(Duration::from_secs(4));
    group.bench_function("std::process::Command::output", |bencher| {
        bencher.iter(|| tiny.plain().expect("it exits with 0"));
    });
    group.bench_function("Sandbox::run", |bencher| {
        bencher.iter(|| tiny.sandboxed(&sandbox).expect("it exits with 0"));
    });
    group.finish();
}

fn python(criterion: &mut Criterion) {
    let sandbox = Sandbox::new(Policy::python()).expect("a sandbox");
    let mut group = criterion.benchmark_group("python3 -I -c 'print(2 + 2)'");
    group
        .measurement_time(Duration::from_secs(4))
        .sample_size(50);
    group.bench_function("std::process::Command::output", |bencher| {
        bencher.iter(|| {
            let mut command = std::process::Command::new("/usr/bin/python3");
            let output = command
                .args(["-I", "-c", "print(2 + 2)"])
                .output()
                .expect("it starts");
            assert_eq!(output.stdout, b"4\n");
        });
    });
    group.bench_function("Sandbox::run", |bencher| {
        bencher.iter(|| {
            let command = Command::new("/usr/bin/python3").args(["-I", "-c", "print(2 + 2)"]);
            let outcome = sandbox.run(command).expect("it starts");
            assert_eq!(outcome.stdout.bytes, b"4\n");
        });
    });
    group.finish();
}

fn prepare(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("once for a policy");
    group.bench_function("Sandbox::new", |bencher| {
        bencher.iter(|| Sandbox::new(Policy::native()).expect("a sandbox"));
    });
    group.finish();
}

criterion_group!(benches, tiny, python, prepare);
criterion_main!(benches);
