//! The binary `learn` as an example of cargo's: `cargo run --example learn -- PROGRAM ARGUMENTS`.

#[path = "../src/bin/learn.rs"]
mod learn;

fn main() -> std::process::ExitCode {
    learn::main()
}
