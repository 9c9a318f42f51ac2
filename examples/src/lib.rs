//! What the example programs share.
//!
//! The programs are binaries of this package and are run with `cargo run -p varek-examples --bin NAME`:
//!
//! | program | shows |
//! |---|---|
//! | `quick_start` | one sandbox, two guests, two outcomes |
//! | `demo` | what this host offers, and what becomes of real payloads ([`showcase`]) |
//! | `doctor` | what this host offers, what each preset gets of it, what to do ([`doctor`]) |
//! | `learn` | the smallest policy that a trusted program needs ([`learn`]) |
//! | `verification_battery` | five checks as a JSON manifest, for a gate ([`battery`]) |
//! | `regression_suite` | eight payloads with known ends, for a gate ([`suite`]) |
//! | `report` | a log of events as a page for a browser and a summary for the terminal ([`report`]) |
//! | `exec_jsonl` | requests as JSON lines, outcomes as JSON lines, for other languages ([`jsonl`]) |

pub mod battery;
pub mod doctor;
pub mod evidence;
pub mod jsonl;
pub mod learn;
pub mod report;
pub mod showcase;
pub mod suite;
pub mod terminal;
pub mod wandb;
