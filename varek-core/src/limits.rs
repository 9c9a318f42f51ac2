//! How much a guest may use.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::Problem;

/// 1,024 bytes.
pub const KIB: u64 = 1024;
/// 1,048,576 bytes.
pub const MIB: u64 = 1024 * KIB;
/// 1,073,741,824 bytes.
pub const GIB: u64 = 1024 * MIB;

/// How much a guest may use. `None` leaves a resource unbounded by the policy; in a file it is `"unlimited"`, since TOML has no
/// way to write nothing, and what is left out has its default.
///
/// Memory, CPU share and pids bound the whole tree of processes, through cgroups; file size and open
/// files bound each process, through setrlimit(2), and a lower hard limit of the embedder stays where it has no
/// CAP_SYS_RESOURCE; wall clock and output are bounded by the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Limits {
    /// Memory of the tree in bytes, at least 1 MiB, swap excluded (off). Rounded down to whole pages.
    #[serde(with = "unlimited")]
    pub memory: Option<u64>,
    /// Share of CPU time, such as `50%` of one CPU or `150%` for one and a half. It takes effect
    /// [`Limits::CPU_SHARE_DELAY`] after the start, so that it does not slow down an interpreter's start.
    #[serde(with = "unlimited")]
    pub cpu: Option<CpuShare>,
    /// Processes and threads of the tree together, at least 1.
    #[serde(with = "unlimited")]
    pub pids: Option<u64>,
    /// From the start of the run to its kill, more than zero, at most 366 days. CLOCK_MONOTONIC: time in suspend does
    /// not count.
    #[serde(with = "humantime_serde")]
    pub wall_clock: Duration,
    /// CPU time (user and system) of the whole tree, 10 ms to a hundred years.
    #[serde(with = "unlimited")]
    pub cpu_time: Option<Duration>,
    /// Bytes of captured output that are kept, for each of stdout and stderr, at least 2. See [`Overflow`].
    pub output: u64,
    /// Bytes of all files in the scratch directory together, at least 4 KiB; half of the memory limit where that is less.
    /// Rounded down to whole pages. A write beyond fails with ENOSPC; a directory that is
    /// full at the end is in [`Outcome::limits_hit`](crate::Outcome::limits_hit), one that the guest has made room in again is not.
    ///
    /// The scratch directory is a tmpfs of the run's own (tmpfs(5), Linux 5.2), also mounted as its `/dev/shm`: its files
    /// count against the memory limit. That takes CAP_SYS_ADMIN; where the host gives none and
    /// [`Layer::Scratch`](crate::Layer::Scratch) is best effort, as in the presets, files are on disk, with their number
    /// and total size unbounded. A directory of the embedder's ([`Command::scratch`](crate::Command::scratch)) is never
    /// bounded.
    #[serde(with = "unlimited")]
    pub scratch: Option<u64>,
    /// Files and directories in the scratch directory, 1 to 2^32, where its size is bounded.
    pub scratch_files: u64,
    /// Size of each file that the guest writes, bytes (RLIMIT_FSIZE).
    #[serde(with = "unlimited")]
    pub file_size: Option<u64>,
    /// Descriptors that each process of the guest can have, at least 3 (RLIMIT_NOFILE).
    pub open_files: u64,
}

impl Limits {
    /// How long after its start a guest runs without its CPU share being enforced.
    pub const CPU_SHARE_DELAY: Duration = Duration::from_millis(250);

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let year = Duration::from_secs(366 * 24 * 3600);
        let checks = [
            (
                self.memory.is_none_or(|bytes| bytes >= MIB),
                "limits.memory",
                "is under 1 MiB, in which no program starts",
            ),
            (
                self.pids != Some(0),
                "limits.pids",
                "is 0; the guest itself needs 1",
            ),
            (
                !self.wall_clock.is_zero(),
                "limits.wall_clock",
                "is zero; the guest could not start",
            ),
            (
                self.wall_clock <= year,
                "limits.wall_clock",
                "is over a year; write the limit that you mean",
            ),
            (
                self.cpu_time
                    .is_none_or(|time| time >= Duration::from_millis(10)),
                "limits.cpu_time",
                "is under 10 ms, in which no program starts",
            ),
            (
                self.cpu_time.is_none_or(|time| time <= year * 100),
                "limits.cpu_time",
                "is over a hundred years; leave it out to have none",
            ),
            (
                self.output >= 2,
                "limits.output",
                "is under 2 bytes; head and tail need one each",
            ),
            (
                self.output <= 4 * GIB,
                "limits.output",
                "is over 4 GiB, all of which the embedder would have to keep in memory; stream instead",
            ),
            (
                self.open_files >= 3,
                "limits.open_files",
                "is under 3; stdin, stdout and stderr need as many",
            ),
            (
                self.scratch.is_none_or(|bytes| bytes >= 4 * KIB),
                "limits.scratch",
                "is under 4 KiB, one page; leave it out to have no bound",
            ),
            (
                self.scratch_files <= 1 << 32,
                "limits.scratch_files",
                "is over 4,294,967,296; write the limit that you mean",
            ),
            (
                self.scratch_files > 0,
                "limits.scratch_files",
                "is 0; leave write grants out instead",
            ),
            (
                self.file_size != Some(0),
                "limits.file_size",
                "is 0; leave write grants out instead",
            ),
        ];
        checks
            .into_iter()
            .filter(|(holds, _, _)| !holds)
            .map(|(_, field, message)| Problem {
                field,
                message: message.into(),
            })
            .collect()
    }
}

impl Default for Limits {
    /// 512 MiB, 64 pids, 30 s of wall clock, 1 MiB of each output, 256 MiB in 65,536 files of scratch, files of 256 MiB,
    /// 256 descriptors.
    fn default() -> Self {
        Self {
            memory: Some(512 * MIB),
            cpu: None,
            pids: Some(64),
            wall_clock: Duration::from_secs(30),
            cpu_time: None,
            output: MIB,
            scratch: Some(256 * MIB),
            scratch_files: 65_536,
            file_size: Some(256 * MIB),
            open_files: 256,
        }
    }
}

/// A limit in a file: its value, or `"unlimited"`; null is taken for that too.
pub(crate) mod unlimited {
    use std::fmt;
    use std::marker::PhantomData;
    use std::time::Duration;

    use humantime_serde::re::humantime::{format_duration, parse_duration};
    use serde::{Deserializer, Serialize as _, Serializer, de};

    use super::CpuShare;

    const WORD: &str = "unlimited";

    /// What can be unlimited.
    pub(crate) trait Bound: Sized {
        /// What a file has for it, for people.
        const WHAT: &'static str;
        fn of_number(number: u64) -> Option<Self>;
        fn of_text(text: &str) -> Result<Self, String>;
        fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    }

    impl Bound for u64 {
        const WHAT: &'static str = "a whole number";

        fn of_number(number: u64) -> Option<Self> {
            Some(number)
        }

        fn of_text(text: &str) -> Result<Self, String> {
            Err(format!("{text:?} is neither a whole number nor {WORD:?}"))
        }

        fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.serialize(serializer)
        }
    }

    impl Bound for CpuShare {
        const WHAT: &'static str = "a CPU share such as \"50%\"";

        fn of_number(_: u64) -> Option<Self> {
            None
        }

        fn of_text(text: &str) -> Result<Self, String> {
            text.parse()
                .map_err(|error: super::ParseCpuShareError| error.to_string())
        }

        fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.serialize(serializer)
        }
    }

    impl Bound for Duration {
        const WHAT: &'static str = "a time such as \"5s\"";

        fn of_number(_: u64) -> Option<Self> {
            None
        }

        fn of_text(text: &str) -> Result<Self, String> {
            parse_duration(text)
                .map_err(|error| format!("{text:?} is no time such as \"5s\": {error}"))
        }

        fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(&format_duration(*self))
        }
    }

    #[expect(clippy::ref_option, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<T: Bound, S: Serializer>(
        limit: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match limit {
            Some(limit) => limit.write(serializer),
            None => serializer.serialize_str(WORD),
        }
    }

    struct Visitor<T>(PhantomData<T>);

    impl<T: Bound> de::Visitor<'_> for Visitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} or {WORD:?}", T::WHAT)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<T>, E> {
            let limit = T::of_number(number);
            let unexpected = || E::invalid_type(de::Unexpected::Unsigned(number), &self);
            limit.map(Some).ok_or_else(unexpected)
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<T>, E> {
            match u64::try_from(number) {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
            }
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
            if text == WORD {
                return Ok(None);
            }
            T::of_text(text).map(Some).map_err(E::custom)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }
    }

    pub(crate) fn deserialize<'de, T: Bound, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}

/// What happens when captured output passes its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overflow {
    /// Head and tail are kept, the middle is thrown away and counted; the guest is never blocked.
    #[default]
    Truncate,
    /// The run is killed with [`Cause::OutputLimit`](crate::Cause::OutputLimit).
    Kill,
}

/// A share of CPU time in percent of one CPU, 1 to 100,000. Its text is `50%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuShare(u32);

impl CpuShare {
    /// `percent` of one CPU; `None` unless it is 1 to 100,000.
    pub const fn percent(percent: u32) -> Option<Self> {
        match percent {
            1..=100_000 => Some(Self(percent)),
            _ => None,
        }
    }

    /// Percent of one CPU.
    pub const fn as_percent(self) -> u32 {
        self.0
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// A text that is not a CPU share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a CPU share: write percent of one CPU, 1% to 100000%, such as \"50%\"")]
pub struct ParseCpuShareError {
    text: String,
}

impl FromStr for CpuShare {
    type Err = ParseCpuShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_suffix('%')
            .and_then(|number| number.parse().ok())
            .and_then(Self::percent)
            .ok_or_else(|| ParseCpuShareError {
                text: text.to_owned(),
            })
    }
}

impl Serialize for CpuShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuShare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// How many denied calls a guest may make before it is killed with
/// [`Cause::DenialBudget`](crate::Cause::DenialBudget).
///
/// The defaults are far above what honest programs do (CPython, Node, Go and the JVM make fewer than a
/// hundred at start).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct DenialBudget {
    /// In all, at least 1.
    pub total: u64,
    /// In any one second, at least 1.
    pub per_second: u64,
}

impl DenialBudget {
    /// This many denied calls in all, and in any one second, both at least 1.
    pub const fn new(total: u64, per_second: u64) -> Self {
        Self { total, per_second }
    }
}

impl Default for DenialBudget {
    /// 20,000 in all, 5,000 in a second.
    fn default() -> Self {
        Self {
            total: 20_000,
            per_second: 5_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CpuShare;

    #[test]
    fn a_cpu_share_reads_what_it_writes_and_refuses_the_rest() {
        let share = CpuShare::percent(150).unwrap();
        assert_eq!(share.to_string(), "150%");
        assert_eq!("150%".parse(), Ok(share));
        for wrong in ["", "%", "0%", "50", "-1%", "100001%", "1.5%"] {
            assert!(wrong.parse::<CpuShare>().is_err(), "{wrong}");
        }
    }
}
