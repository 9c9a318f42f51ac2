//! A catalogue of attacks: hostile programs as data, each with the policy that it is run under, what must come of it, what the
//! outcome must say, and a control: where the very same program succeeds.
//!
//! Wherever it is run, no attempt of a program wins, nothing outside changes and nothing is left behind. The verdict is looked
//! at where denied calls are reported to this program.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "../support/mod.rs"]
mod support;

mod entry;
mod play;
mod prelude;
mod scene;

#[cfg(target_arch = "x86_64")]
mod abi;
mod descriptors;
mod environment;
mod exec;
mod filesystem;
mod kernel;
mod namespaces;
mod network;
mod proc;
mod resources;
mod signals;

use std::collections::{BTreeMap, BTreeSet};

use entry::{Attack, Family, Place, Program};

/// Every attack of the catalogue.
fn all() -> impl Iterator<Item = &'static Attack> {
    let families = [
        exec::ATTACKS,
        #[cfg(target_arch = "x86_64")]
        abi::ATTACKS,
        network::ATTACKS,
        namespaces::ATTACKS,
        proc::ATTACKS,
        filesystem::ATTACKS,
        signals::ATTACKS,
        resources::ATTACKS,
        kernel::ATTACKS,
        descriptors::ATTACKS,
        environment::ATTACKS,
    ];
    families.into_iter().flatten()
}

#[test]
fn the_catalogue_has_sixty_programs_of_all_families_and_each_has_a_control() {
    let mut sources = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut families: BTreeMap<Family, usize> = BTreeMap::new();
    for attack in all() {
        let (Program::Python(source) | Program::C(source) | Program::Shell(source)) =
            attack.program;
        assert!(!source.trim().is_empty(), "{}", attack.name);
        sources.insert(source);
        assert!(names.insert(attack.name), "{} twice", attack.name);
        assert!(!attack.runs.is_empty(), "{}", attack.name);
        assert!(
            !matches!(attack.control.place, Place::None),
            "{} has no control",
            attack.name
        );
        *families.entry(attack.family).or_default() += 1;
    }
    assert!(sources.len() >= 60, "{}", sources.len());
    let least = families.values().min().copied();
    assert!(least >= Some(4), "{families:?}");
    #[cfg(target_arch = "x86_64")]
    assert_eq!(families.len(), 11, "{families:?}");
}
