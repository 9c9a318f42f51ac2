//! A group that cannot be finished leaves nothing. The only test of its process: it takes descriptors away.
#![cfg(target_os = "linux")]

mod common;

use common::{MIB, name, prepared, traces};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use varek_cgroup::{Controller, Limits};

#[test]
fn a_creation_that_fails_at_any_step_leaves_nothing() {
    let test = "a_creation_that_fails_at_any_step_leaves_nothing";
    let all = [Controller::Memory, Controller::Pids, Controller::Cpu];
    let Some(subtree) = prepared(test, &all, &Limits::default()) else {
        return;
    };
    let limits = Limits {
        memory: Some(64 * MIB),
        pids: Some(8),
        cpu: None,
    };
    let before = traces(&name(&subtree));
    let whole = getrlimit(Resource::Nofile);
    let first = std::fs::File::open("/dev/null").unwrap();
    let first = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&first)).unwrap();
    let (mut failed, mut made) = (0, false);
    // With n descriptors left, creation fails at the step that needs one more.
    for left in 0..40 {
        let few = Rlimit {
            current: Some(first + left),
            maximum: whole.maximum,
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let group = subtree.create("run", &limits);
        setrlimit(Resource::Nofile, whole).unwrap();
        match group {
            Ok(group) => {
                made = group.unenforced().len() < 3;
                drop(group);
                assert_eq!(traces(&name(&subtree)), before);
                break;
            }
            Err(error) => {
                failed += 1;
                assert_eq!(traces(&name(&subtree)), before, "{error}");
            }
        }
    }
    assert!(failed >= 4 && made, "{failed} steps failed");
}
