use super::*;

#[test]
fn swap_that_the_kernel_does_not_bound_is_said() {
    let enforced = |detail: &str| LayerStatus::Enforced {
        detail: detail.into(),
    };
    let mut enforcement = Enforcement::default();
    enforcement.record(Layer::Memory, enforced("5 bytes"));
    let there = [Unenforced::OomGroup {
        path: "/group".into(),
    }];
    note_unenforced(&there, &mut enforcement);
    assert_eq!(
        enforcement.status(Layer::Memory),
        Some(&enforced("5 bytes"))
    );
    let swap = |group: &str| Unenforced::Swap {
        path: format!("/{group}/memory.swap.max").into(),
    };
    note_unenforced(&[swap("run"), swap("all")], &mut enforcement);
    let said = "5 bytes; swap is not bounded: this kernel has no memory.swap.max";
    assert_eq!(enforcement.status(Layer::Memory), Some(&enforced(said)));
}

#[test]
fn a_policy_that_contradicts_itself_is_an_error_whatever_uid_guests_have() {
    let wrong = SyscallPolicy::python().allow(["ptrace"]);
    let right = SyscallPolicy::python();
    let shared = |landlock| Uid::Shared { landlock };
    for uid in [Uid::Own, shared(2), shared(SIGNAL_SCOPE)] {
        for notify in [true, false] {
            let error = programs(&wrong, uid, notify).map(drop).unwrap_err();
            let Error::Syscalls { source } = error else {
                panic!("{uid:?}: {error}");
            };
            assert!(source.to_string().contains("ptrace"), "{uid:?}: {source}");
            assert!(programs(&right, uid, notify).is_ok(), "{uid:?}");
        }
    }
}
