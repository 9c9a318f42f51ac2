//! A group is not emptied into a leaf while a child of somebody is on its way from it into its own.
//!
//! Alone in its program: the processes of a group are moved once.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{not_run, without_subject};
use rustix::fs::{FlockOperation, flock};
use varek_cgroup::{Controller, Error, Layout, Limits, Subtree};

#[test]
fn a_group_is_emptied_only_when_no_child_is_on_its_way_out_of_it() {
    let name = "a_group_is_emptied_only_when_no_child_is_on_its_way_out_of_it";
    let prepare = |controllers: &[Controller]| {
        let layout = Layout::probe()?;
        let subtree = Subtree::prepare(&layout, controllers, &Limits::default())?;
        Ok::<_, Error>((layout, subtree))
    };
    // Without controllers nothing has to be moved.
    let (layout, first) = match prepare(&[]) {
        Ok(made) => made,
        Err(error) => return not_run(name, &error.to_string()),
    };
    let lock = first.settling().unwrap();
    flock(&lock, FlockOperation::NonBlockingLockShared).unwrap();
    match prepare(&[Controller::Pids]) {
        // A group above may have room.
        Ok(_) => {}
        Err(Error::InternalProcesses { reason, .. }) => {
            assert!(reason.contains("are being started"), "{reason}");
        }
        Err(error) => return not_run(name, &error.to_string()),
    }
    let own = || Layout::probe().unwrap().own_group().to_owned();
    assert_eq!(own(), layout.own_group());
    flock(&lock, FlockOperation::Unlock).unwrap();
    // The control: nothing else was in the way.
    let _second = prepare(&[Controller::Pids]).unwrap();
    if own() == layout.own_group() {
        return without_subject(name, "no process has to be moved here");
    }
    assert!(own().starts_with(layout.own_group()));
}
