//! The embedder's own span.

use std::fmt;
use std::str::FromStr;

use crate::arguments::{hex, unhex};

/// The span of the embedder that a run belongs to, as the W3C's `traceparent` header writes it:
/// `00-<trace>-<span>-<flags>`.
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

    /// Its flags.
    pub(super) const fn flags(&self) -> u8 {
        self.flags
    }
}

/// A text that is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a traceparent: 00-<32 digits>-<16 digits>-<2 digits>, in lower-case hexadecimal, neither number zero"
)]
pub struct NotATraceParent;

impl FromStr for TraceParent {
    type Err = NotATraceParent;

    /// Newer versions of the header are read as far as this one goes, as the W3C asks.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or(NotATraceParent);
        let (version, trace, span, flags) = (part()?, part()?, part()?, part()?);
        let [version] = unhex::<1>(version).ok_or(NotATraceParent)?;
        if version == 0xff || version == 0 && parts.next().is_some() {
            return Err(NotATraceParent);
        }
        let trace = unhex(trace).ok_or(NotATraceParent)?;
        let span = unhex(span).ok_or(NotATraceParent)?;
        let [flags] = unhex(flags).ok_or(NotATraceParent)?;
        if trace == [0; 16] || span == [0; 8] {
            return Err(NotATraceParent);
        }
        Ok(Self { trace, span, flags })
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
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(wrong.parse::<TraceParent>().is_err(), "{wrong}");
        }
    }
}
