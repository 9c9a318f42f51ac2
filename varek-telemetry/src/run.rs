//! The name of one run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The name of one run: 128 random bits, written as 32 hexadecimal digits.
///
/// Every event of a run carries it, the run's groups are named by it, and two runs never share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(u128);

impl RunId {
    /// A fresh name from the kernel's random number generator (getrandom(2)).
    ///
    /// # Errors
    ///
    /// When the host refuses getrandom(2), which no supported kernel does after boot.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
        Ok(Self(u128::from_ne_bytes(bytes)))
    }

    /// The name made of these bits; for tests and for readers of logs.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits of the name.
    pub const fn to_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl FromStr for RunId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::RunId;

    #[test]
    fn a_run_id_round_trips_through_its_text() {
        let id = RunId::random().unwrap();
        assert_eq!(id.to_string().parse::<RunId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json.len(), 34);
        assert_eq!(serde_json::from_str::<RunId>(&json).unwrap(), id);
    }

    #[test]
    fn two_run_ids_differ() {
        assert_ne!(RunId::random().unwrap(), RunId::random().unwrap());
    }
}
