//! Orphans that fall to the embedder.
//!
//! Where the embedder is PID 1 of its namespace or a child subreaper, the processes of a killed tree
//! become its children when their parents die, and stay zombies until it reaps them. VAREK reaps those
//! of its runs, each by its pid, and never with `waitpid(-1)`, which would take the embedder's own.

use std::fs;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Reaps the embedder's zombie children that are in the group of this name; says how many it saw.
///
/// A zombie still shows its group in `/proc/PID/cgroup` (cgroups(7)).
pub(super) fn reap(group: &str) -> usize {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let mut seen = 0;
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in children.split_ascii_whitespace() {
            let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            if !membership.lines().any(|line| line.contains(group)) {
                continue;
            }
            seen += 1;
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                // Not dead yet, or reaped by the embedder meanwhile: both are fine.
                let _ = waitid(
                    WaitId::Pid(pid),
                    WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                );
            }
        }
    }
    seen
}
