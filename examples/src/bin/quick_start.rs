//! One sandbox, two guests: `cargo run -p varek-examples --bin quick_start`.

use varek_core::{Command, Policy, Sandbox};

fn main() -> anyhow::Result<()> {
    let sandbox = Sandbox::new(Policy::python())?;

    let outcome = sandbox.run(Command::python("print(2 + 2)"))?;
    println!("{outcome}");
    println!("  stdout: {}", outcome.stdout.to_text().trim_end());

    let outcome = sandbox.run(Command::python("import os; os.system('id')"))?;
    println!("{outcome}");
    println!(
        "  violation: {}",
        outcome
            .violation()
            .map_or("none".into(), ToString::to_string)
    );
    Ok(())
}
