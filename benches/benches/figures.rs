//! The ratio of `Sandbox::run` to `std::process::Command::output`, interleaved in one run, for embedders
//! with much memory and with many open descriptors. Prints medians; asserts nothing about time.
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot run has nothing to report"
)]

use std::fs::File;
use std::time::{Duration, Instant};

use varek_benches::{Tiny, native};

const ROUNDS: usize = 300;

fn main() {
    // `cargo test --benches` passes this: then it is only shown that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--test") {
        2
    } else {
        ROUNDS
    };
    let tiny = Tiny::build().expect("a static program");
    let sandbox = native().expect("a sandbox");
    println!(
        "{:<42} {:>9} {:>9} {:>9} {:>6}",
        "embedder", "std", "varek", "p99", "ratio"
    );
    let row = |name: &str| {
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let begin = Instant::now();
            tiny.plain().expect("it exits with 0");
            plain.push(begin.elapsed());
            let begin = Instant::now();
            tiny.sandboxed(&sandbox).expect("it exits with 0");
            ours.push(begin.elapsed());
        }
        let (plain, (ours, late)) = (quantile(&mut plain, 50), {
            let median = quantile(&mut ours, 50);
            (median, quantile(&mut ours, 99))
        });
        let ratio = ours.as_secs_f64() / plain.as_secs_f64();
        println!("{name:<42} {plain:>9.1?} {ours:>9.1?} {late:>9.1?} {ratio:>6.2}");
    };
    row("small, 0 more descriptors");
    let memory = vec![1_u8; 1 << 30];
    row("1 GiB touched, 0 more descriptors");
    drop(std::hint::black_box(memory));
    let mut open = Vec::new();
    for count in [1_000, 10_000] {
        open.resize_with(count, || {
            File::open("/dev/null").expect("a descriptor; raise RLIMIT_NOFILE")
        });
        row(&format!("small, {count} more descriptors"));
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times
        .get((times.len() * percent / 100).min(times.len() - 1))
        .copied()
        .unwrap_or_default()
}
