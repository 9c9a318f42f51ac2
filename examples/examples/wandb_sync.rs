//! The binary `wandb_sync` as an example of cargo's: `cargo run --example wandb_sync -- DIRECTORY...`.

#[path = "../src/bin/wandb_sync.rs"]
mod wandb_sync;

fn main() -> anyhow::Result<std::process::ExitCode> {
    wandb_sync::main()
}
