//! What this host offers, what is enforced, and what becomes of real payloads:
//! `cargo run -p varek-examples --bin demo`.
//!
//! Exits with 1 where one row is not as it should be.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use varek_core::{Host, MIB, Sandbox};
use varek_examples::evidence;
use varek_examples::showcase::{Secret, Shown, payloads, policy};
use varek_examples::terminal::{Cell, Column, Style, progress, table};

const COLUMNS: [Column<'static>; 8] = [
    Column::text("payload"),
    Column::text("tries"),
    Column::text("as expected"),
    Column::text("termination"),
    Column::text("evidence"),
    Column::whole("wall"),
    Column::whole("cpu"),
    Column::whole("memory peak"),
];

fn main() -> anyhow::Result<ExitCode> {
    let host = Host::probe();
    println!("This host\n\n{host}\n");
    let sandbox = Sandbox::builder(policy())
        .host(host.clone())
        .build()
        .context("this host cannot run the demo; the `doctor` example says what to do")?;
    println!("What is enforced\n\n{}\n", sandbox.enforcement());

    let secret = Secret::make().context("cannot make the file that the guest must not read")?;
    let payloads = payloads(&secret);
    let bar = progress(payloads.len());
    let mut rows = Vec::with_capacity(payloads.len());
    let mut wrong = 0;
    for payload in &payloads {
        bar.set_message(format!("{}: {}", payload.name, payload.tries));
        let shown = payload
            .run(&sandbox, &host)
            .with_context(|| format!("payload {:?} could not be run", payload.name))?;
        wrong += usize::from(shown.judged.is_err());
        rows.push(row(payload.name, payload.tries, &shown));
        bar.inc(1);
    }
    bar.finish_and_clear();

    println!("{}", table(Style::stdout(), &COLUMNS, rows));
    let right = payloads.len() - wrong;
    println!(
        "\n{right} of {} payloads ended as expected, each with its evidence.",
        payloads.len()
    );
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn row(name: &str, tries: &str, shown: &Shown) -> Vec<Cell> {
    let outcome = &shown.outcome;
    let usage = &outcome.usage;
    let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
    let evidence = match &shown.judged {
        Ok(evidence) => evidence.clone(),
        Err(instead) => format!("{instead} [{}]", evidence::violation(outcome)),
    };
    vec![
        Cell::new(name),
        Cell::new(tries),
        Cell::verdict(
            shown.judged.is_ok(),
            if shown.judged.is_ok() { "yes" } else { "NO" },
        ),
        Cell::new(outcome.termination.to_string()),
        Cell::new(evidence),
        Cell::new(seconds(usage.wall_clock)),
        Cell::new(seconds(usage.cpu_user + usage.cpu_system)),
        Cell::new(usage.memory_peak.map(mib).unwrap_or_default()),
    ]
}

fn mib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let mib = bytes as f64 / MIB as f64;
    format!("{mib:.1} MiB")
}
