//! Writes the JSON Schema of policy files: `cargo run -p varek-core --example policy_schema > policy.schema.json`.

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    writeln!(io::stdout(), "{}", varek_core::Policy::json_schema())
}
