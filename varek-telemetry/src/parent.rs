//! The embedder's own span.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::arguments::{hex, unhex};

/// The span of the embedder that a run belongs to, as the W3C's `traceparent` header writes it:
/// `00-<trace>-<span>-<flags>`.
///
/// It is read from that text, and is one text in JSON:
///
/// ```
/// use varek_telemetry::TraceParent;
///
/// let parent: TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse()?;
/// assert!(parent.sampled());
/// # Ok::<(), varek_telemetry::NotATraceParent>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// The trace's number.
    pub const fn trace(&self) -> &[u8; 16] {
        &self.trace
    }

    /// The span's number.
    pub const fn span(&self) -> &[u8; 8] {
        &self.span
    }

    /// Whether the embedder records this trace.
    pub const fn sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Its flags, of which the lowest is the one of [`TraceParent::sampled`].
    pub const fn flags(&self) -> u8 {
        self.flags
    }
}

/// Why a text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotATraceParent {
    /// A part is missing, or is not made of so many digits.
    #[error(
        "not a traceparent: {part} is missing or not {digits} digits in lower-case hexadecimal; it is 00-<32 digits>-<16 digits>-<2 digits>"
    )]
    Part {
        /// Which: the version, the trace, the span or the flags.
        part: &'static str,
        /// How many digits it has.
        digits: usize,
    },
    /// A number that the W3C keeps for "there is none".
    #[error("not a traceparent: the number of the {part} is zero, which stands for none")]
    Zero {
        /// Which: the trace or the span.
        part: &'static str,
    },
    /// Version `ff`, which is none.
    #[error("not a traceparent: there is no version ff; write 00")]
    Version,
    /// Version 00 with something behind the flags.
    #[error("not a traceparent: nothing follows the flags in version 00")]
    Longer,
}

/// The next part of the header, of this many bytes.
fn part<'a, const N: usize>(
    parts: &mut impl Iterator<Item = &'a str>,
    part: &'static str,
) -> Result<[u8; N], NotATraceParent> {
    let digits = 2 * N;
    let text = parts.next();
    text.and_then(unhex)
        .ok_or(NotATraceParent::Part { part, digits })
}

impl FromStr for TraceParent {
    type Err = NotATraceParent;

    /// Newer versions of the header are read as far as this one goes, as the W3C asks (Trace Context, 3.2.4).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let [version] = part(&mut parts, "the version")?;
        if version == 0xff {
            return Err(NotATraceParent::Version);
        }
        let trace = part(&mut parts, "the trace")?;
        let span = part(&mut parts, "the span")?;
        let [flags] = part(&mut parts, "the byte of flags")?;
        if version == 0 && parts.next().is_some() {
            return Err(NotATraceParent::Longer);
        }
        let zero = |part| Err(NotATraceParent::Zero { part });
        if trace == [0; 16] {
            return zero("trace");
        }
        if span == [0; 8] {
            return zero("span");
        }
        Ok(Self { trace, span, flags })
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{}-{}-{:02x}",
            hex(&self.trace),
            hex(&self.span),
            self.flags
        )
    }
}

#[cfg(test)]
mod tests {
    use super::TraceParent;

    #[test]
    fn a_traceparent_is_read_as_the_w3c_writes_it_and_nothing_else_is() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = text.parse().unwrap();
        assert!(parent.sampled());
        assert_eq!(parent.to_string(), text);
        let newer = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-what-comes";
        assert!(!newer.parse::<TraceParent>().unwrap().sampled());
        let json = serde_json::to_string(&parent).unwrap();
        assert_eq!(json, format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<TraceParent>(&json).unwrap(), parent);
        for (wrong, what) in [
            ("", "the version is missing"),
            (
                "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "the version is",
            ),
            ("00", "the trace is missing"),
            ("00-0af7651916cd43dd8448eb211c80319c", "the span is missing"),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                "the byte of flags is missing",
            ),
            (
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "no version ff",
            ),
            (
                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                "the trace is missing or not 32 digits in lower-case",
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033-01",
                "the span is missing or not 16 digits",
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
                "the byte of flags is missing or not 2 digits",
            ),
            (
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                "the number of the trace is zero",
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                "the number of the span is zero",
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                "nothing follows",
            ),
            (
                " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "the version is",
            ),
        ] {
            let error = wrong.parse::<TraceParent>().unwrap_err().to_string();
            assert!(error.contains(what), "{wrong}: {error}");
            assert!(serde_json::from_str::<TraceParent>(&format!("\"{wrong}\"")).is_err());
        }
    }
}
