//! Who a guest is.

use serde::{Deserialize, Serialize};

use crate::error::Problem;

mod pool;

pub(crate) use pool::{Lease, UidPool};

/// The uid and gid of a guest.
///
/// In TOML: `identity = { own = { first = 1879048192, count = 4096 } }`, or `identity = "embedder"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Identity {
    /// A uid of the range for each run, and the gid of the same number: no other running guest has it, it
    /// owns nothing, is in no group and has no capability. Needs an embedder that is root in its user
    /// namespace, with the range mapped there.
    ///
    /// A number goes to the next run when its run is over. Files that a guest made in a `write` grant
    /// outside of its scratch directory stay its uid's, which a later guest then is.
    Own(UidRange),
    /// The embedder's own, for embedders that are not root; a root embedder is refused.
    ///
    /// This is weaker: file permissions then do not tell guest and embedder apart, and Landlock does not
    /// decide about chmod(2), chown(2), utimensat(2) and setxattr(2), so that the guest can change the mode
    /// and times of whatever the embedder owns, by path. The policy must therefore name
    /// [`Layer::Identity`](crate::Layer::Identity) in `best_effort`; and the host must scope
    /// signals (Landlock ABI 6, Linux 6.12), without which the guest could kill the embedder.
    Embedder,
}

impl Default for Identity {
    /// [`Identity::Own`] with the default range.
    fn default() -> Self {
        Self::Own(UidRange::default())
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
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let Self::Own(range) = self else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        let mut need = |ok: bool, field, message: String| {
            if !ok {
                problems.push(Problem { field, message });
            }
        };
        let UidRange { first, count } = *range;
        need(
            (1..=65_536).contains(&count),
            "identity.own.count",
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
                "identity.own.first",
                format!("makes a range with {uid} in it, which is {whose}; choose another"),
            );
        }
        need(
            end <= u64::from(u32::MAX) + 1,
            "identity.own.first",
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
        let own: Holder =
            toml::from_str("identity = { own = { first = 1879048192, count = 4096 } }").unwrap();
        assert_eq!(own.identity, Identity::default());
        let embedder: Holder = toml::from_str("identity = \"embedder\"").unwrap();
        assert_eq!(embedder.identity, Identity::Embedder);
        for holder in [own, embedder] {
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
        assert_eq!(Identity::Embedder.problems(), []);
    }
}
