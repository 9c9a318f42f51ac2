//! Who a guest is.

use serde::{Deserialize, Serialize};

use crate::error::Problem;

mod pool;

pub(crate) use pool::{Lease, UidPool};

/// Under which uid and gid a guest runs, and so what keeps it from the embedder's other processes and files.
///
/// In TOML: `identity = { separate = { first = 1879048192, count = 4096 } }`, or `own` in the place of `separate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Identity {
    /// As [`Identity::Own`] where the embedder is root in its user namespace. Any other embedder cannot become
    /// another user, so the guest has its uid, gid and groups, and is kept apart by other means:
    ///
    /// - Landlock (required then, whatever `best_effort` says; Linux 5.13) closes every path that is not granted, and
    ///   tracing: so `/proc/PID/environ`, `mem` and `fd` of other processes, whose `/proc` entries are no grant either.
    /// - Signals stay within the run: by Landlock's scope (ABI 6, Linux 6.12); before that the calls that send
    ///   them are refused, except that the supervisor performs `kill`, `tgkill` and `tkill` on processes of the run
    ///   where the host reports denied calls (Linux 5.19).
    /// - What Landlock does not mediate is refused whatever the policy allows: see
    ///   [`SyscallPolicy::sharing_uid`](crate::SyscallPolicy::sharing_uid). So truncate(2) fails before Landlock ABI 3
    ///   (Linux 6.2).
    /// - Modes, times and attributes (`user.`) are changed beneath the run's scratch directory and nowhere else: the embedder
    ///   makes those calls for files that it finds beneath its own descriptor of the directory, where the host reports
    ///   denied calls (Linux 5.19); otherwise they fail there too. They fail for set-uid and set-gid bits, through links
    ///   whose text begins with `/`, and by path where `kernel.yama.ptrace_scope` is 2 or 3. Owners and
    ///   groups stay as they are, and access control lists get EOPNOTSUPP.
    ///
    /// What gets round it: the guest can stat(2) whatever the embedder can, and its processes count towards the
    /// embedder's per-user limits (RLIMIT_NPROC, inotify instances, the pages of pipes). Where
    /// `/proc` is granted, it can list which descriptors other processes of the uid have open. A file with a name beneath scratch has its mode and
    /// times changed under all its names, as its content is: hard links in a directory of the embedder's, and what
    /// the guest moves or links there from a directory that is granted for writing.
    Separate(UidRange),
    /// A uid of the range for each run, and the gid of the same number: no other running guest has it, it
    /// owns nothing, is in no group and has no capability. Needs an embedder that is root in its user
    /// namespace, with the range mapped there.
    ///
    /// A number goes to the next run when its run is over. Files that a guest made in a `write` grant
    /// outside of its scratch directory stay its uid's, which a later guest then is.
    ///
    /// Where the embedder is not root, the policy is refused, or with [`Layer::Identity`](crate::Layer::Identity) in
    /// `best_effort` runs as [`Identity::Separate`] says, and every outcome lists the layer as missing.
    Own(UidRange),
}

impl Default for Identity {
    /// [`Identity::Separate`] with the default range.
    fn default() -> Self {
        Self::Separate(UidRange::default())
    }
}

/// Uids, and gids of the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UidRange {
    /// The first, not 0.
    pub first: u32,
    /// How many, 1 to 65,536: as many guests can run at a time on a machine.
    pub count: u32,
}

impl UidRange {
    /// This range; whether it can be used is checked when a `Sandbox` is made.
    pub const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }
}

impl Default for UidRange {
    /// 1,879,048,192 to 1,879,052,287 (0x7000_0000, 4,096 uids).
    ///
    /// The systemd project's table of uids (<https://systemd.io/UIDS-GIDS/>) has this part as unused: it is
    /// above dynamic service users (61,184 to 65,519) and containers (524,288 to 1,879,048,191), and below
    /// foreign images (from 2,147,352,576) and the numbers that some programs take for negative. It is also
    /// above what shadow's useradd(8) gives to users as subordinate uids (100,000 to 600,100,000).
    fn default() -> Self {
        Self {
            first: 0x7000_0000,
            count: 4096,
        }
    }
}

impl Identity {
    /// The range for embedders that are root.
    pub(crate) const fn range(&self) -> UidRange {
        let (Self::Separate(range) | Self::Own(range)) = self;
        *range
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut need = |ok: bool, field, message: String| {
            if !ok {
                problems.push(Problem { field, message });
            }
        };
        let UidRange { first, count } = self.range();
        need(
            (1..=65_536).contains(&count),
            "identity.count",
            format!("is {count}; it must be 1 to 65536"),
        );
        let (first, end) = (u64::from(first), u64::from(first) + u64::from(count));
        for (uid, whose) in [
            (0, "root"),
            (65_534, "nobody"),
            (65_535, "the 16-bit \"no uid\""),
            (u64::from(u32::MAX), "the 32-bit \"no uid\""),
        ] {
            need(
                !(first..end).contains(&uid),
                "identity.first",
                format!("makes a range with {uid} in it, which is {whose}; choose another"),
            );
        }
        need(
            end <= u64::from(u32::MAX) + 1,
            "identity.first",
            format!("is {first}; with {count} uids the range ends above the last uid there is"),
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        identity: Identity,
    }

    #[test]
    fn the_documented_toml_is_what_is_read() {
        let separate: Holder =
            toml::from_str("identity = { separate = { first = 1879048192, count = 4096 } }")
                .unwrap();
        assert_eq!(separate.identity, Identity::default());
        let own: Holder =
            toml::from_str("identity = { own = { first = 70000, count = 1 } }").unwrap();
        assert_eq!(own.identity, Identity::Own(UidRange::new(70_000, 1)));
        for holder in [own, separate] {
            let text = toml::to_string(&holder).unwrap();
            assert_eq!(toml::from_str::<Holder>(&text).unwrap(), holder);
        }
        assert!(
            toml::from_str::<Holder>("identity = { own = { first = 1, count = 1, gid = 3 } }")
                .is_err()
        );
    }

    #[test]
    fn ranges_with_somebody_elses_uid_in_them_are_problems() {
        for (first, count, problems) in [
            (0, 1, 1),
            (60_000, 6_000, 2),
            (65_535, 1, 1),
            (u32::MAX, 1, 1),
            (5, 0, 1),
            (70_000, 65_537, 1),
            (u32::MAX - 1, 5, 2),
        ] {
            let found = Identity::Own(UidRange::new(first, count)).problems();
            assert_eq!(found.len(), problems, "{first} {count}: {found:?}");
        }
        for range in [
            UidRange::default(),
            UidRange::new(1, 1),
            UidRange::new(u32::MAX - 1, 1),
        ] {
            assert_eq!(Identity::Own(range).problems(), []);
        }
        assert_eq!(Identity::default().problems(), []);
    }
}
