//! Rules: calls that are allowed only with certain argument values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much of an argument register a condition looks at.
///
/// The kernel passes 64-bit registers to the filter, yet most calls take 32-bit arguments (`int`, flags,
/// descriptors, commands) and ignore the upper half. Such an argument must be compared at 32 bits: garbage
/// above would otherwise make an allowed call fail, or a masked test miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// The lower half only.
    Bits32,
    /// The whole register: pointers, sizes, offsets.
    Bits64,
}

/// How a condition compares.
///
/// There is no ordering: ordered comparisons of 64-bit values were wrong in past releases of libseccomp,
/// and lists of values or bits say the same for the arguments that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Op {
    /// The argument is the value.
    Equal,
    /// The argument's bits under the mask are the value.
    MaskedEqual,
}

/// One test of one argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    index: u8,
    #[serde(with = "width")]
    width: Width,
    op: Op,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "optional_word"
    )]
    mask: Option<u64>,
    #[serde(with = "word")]
    value: u64,
}

impl Condition {
    /// Argument `index`, counted from 0, is `value`.
    pub const fn equal(index: u8, width: Width, value: u64) -> Self {
        Self {
            index,
            width,
            op: Op::Equal,
            mask: None,
            value,
        }
    }

    /// The bits of argument `index` under `mask` are `value`.
    pub const fn masked_equal(index: u8, width: Width, mask: u64, value: u64) -> Self {
        Self {
            index,
            width,
            op: Op::MaskedEqual,
            mask: Some(mask),
            value,
        }
    }

    /// Which argument, counted from 0.
    pub const fn index(&self) -> u8 {
        self.index
    }

    /// How much of the register is compared.
    pub const fn width(&self) -> Width {
        self.width
    }

    /// How it is compared.
    pub const fn op(&self) -> Op {
        self.op
    }

    /// The mask of [`Op::MaskedEqual`].
    pub const fn mask(&self) -> Option<u64> {
        self.mask
    }

    /// The value that must be found.
    pub const fn value(&self) -> u64 {
        self.value
    }

    /// Whether these arguments meet the condition.
    pub fn holds(&self, args: &[u64; 6]) -> bool {
        let all = match self.width {
            Width::Bits32 => u64::from(u32::MAX),
            Width::Bits64 => u64::MAX,
        };
        let mask = self.mask.unwrap_or(u64::MAX) & all;
        args.get(usize::from(self.index))
            .is_some_and(|argument| argument & mask == self.value)
    }

    /// What makes the condition meaningless, if anything does.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let wide = |value: u64| self.width == Width::Bits32 && value > u64::from(u32::MAX);
        match (self.op, self.mask) {
            _ if self.index > 5 => Some("a call has six arguments, with indexes 0 to 5"),
            (Op::Equal, Some(_)) => Some("a mask belongs to the op masked_equal"),
            (Op::MaskedEqual, None) => Some("the op masked_equal needs a mask"),
            (Op::MaskedEqual, Some(0)) => Some("a mask of 0 tests nothing"),
            (_, mask) if wide(self.value) || mask.is_some_and(wide) => {
                Some("the value or mask does not fit the width of 32 bits")
            }
            (_, Some(mask)) if self.value & !mask != 0 => {
                Some("the value has bits outside the mask, so it never matches")
            }
            _ => None,
        }
    }

    pub(crate) fn test(&self) -> Test {
        let all = match self.width {
            Width::Bits32 => u64::from(u32::MAX),
            Width::Bits64 => u64::MAX,
        };
        Test {
            index: self.index,
            mask: self.mask.unwrap_or(all) & all,
            value: self.value,
        }
    }
}

/// A call, and the conditions under which it is allowed.
///
/// All conditions of one rule must hold; several rules on one call are alternatives.
///
/// A filter sees registers only. A condition on a pointer compares the address, never what is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    call: String,
    arguments: Vec<Condition>,
}

impl Rule {
    /// A rule on this call, still without conditions.
    pub fn on(call: impl Into<String>) -> Self {
        Self {
            call: call.into(),
            arguments: Vec::new(),
        }
    }

    /// Adds a condition that must hold as well.
    #[must_use]
    pub fn and(mut self, condition: Condition) -> Self {
        self.arguments.push(condition);
        self
    }

    /// Adds: argument `index`, compared at 32 bits, is `value`.
    #[must_use]
    pub fn int(self, index: u8, value: u32) -> Self {
        self.and(Condition::equal(index, Width::Bits32, u64::from(value)))
    }

    /// The call's name.
    pub fn call(&self) -> &str {
        &self.call
    }

    /// The conditions.
    pub fn arguments(&self) -> &[Condition] {
        &self.arguments
    }
}

/// A condition in the one form that is compiled: the argument's bits under the mask are the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) index: u8,
    pub(crate) mask: u64,
    pub(crate) value: u64,
}

impl Test {
    /// Low and high half as mask, value and whether it is the high one; a half without mask bits is left out.
    pub(crate) fn halves(self) -> impl Iterator<Item = Half> {
        [false, true].into_iter().filter_map(move |high| {
            let shift = if high { 32 } else { 0 };
            let half = |word: u64| u32::try_from((word >> shift) & 0xffff_ffff).unwrap_or(0);
            let half = Half {
                index: self.index,
                high,
                mask: half(self.mask),
                value: half(self.value),
            };
            (half.mask != 0).then_some(half)
        })
    }
}

/// Half a [`Test`], the most that one BPF comparison does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Half {
    pub(crate) index: u8,
    pub(crate) high: bool,
    pub(crate) mask: u32,
    pub(crate) value: u32,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, mask, value } = self;
        match *mask {
            u64::MAX => write!(f, "argument {index} is {value:#x}"),
            0xffff_ffff => write!(f, "argument {index} is {value:#x} (32 bits)"),
            _ => write!(f, "argument {index} & {mask:#x} is {value:#x}"),
        }
    }
}

/// Widths are the numbers 32 and 64 in a policy file.
mod width {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Width;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes fields by reference"
    )]
    pub(super) fn serialize<S: Serializer>(
        width: &Width,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(match width {
            Width::Bits32 => 32,
            Width::Bits64 => 64,
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Width, D::Error> {
        match u8::deserialize(d)? {
            32 => Ok(Width::Bits32),
            64 => Ok(Width::Bits64),
            other => Err(de::Error::custom(format!(
                "width {other}: an argument has 32 or 64 bits"
            ))),
        }
    }
}

/// 64-bit words: TOML integers end at 2^63 - 1, so larger ones are strings such as "0x8000000000000000".
mod word {
    use serde::{Deserializer, Serializer, de};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes fields by reference"
    )]
    pub(super) fn serialize<S: Serializer>(word: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*word) {
            Ok(small) => serializer.serialize_i64(small),
            Err(_) => serializer.serialize_str(&format!("{word:#x}")),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = u64;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an unsigned number, or a string such as \"0xffff0000\"")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
                Ok(value)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
                u64::try_from(value).map_err(|_| {
                    E::custom(format!(
                        "{value} is negative; write the bits, such as 0xffffffff"
                    ))
                })
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
                let digits = value.strip_prefix("0x");
                digits
                    .map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16))
                    .map_err(|_| E::custom(format!("{value:?} is not a 64-bit number")))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

mod optional_word {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Word(#[serde(with = "super::word")] u64);

    #[expect(clippy::ref_option, reason = "serde passes fields by reference")]
    pub(super) fn serialize<S: Serializer>(word: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        match word {
            Some(word) => super::word::serialize(word, s),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        Word::deserialize(d).map(|word| Some(word.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_at_their_width() {
        let args = [0xdead_beef_0000_0007, 0, 0, 0, 0, 0];
        assert!(Condition::equal(0, Width::Bits32, 7).holds(&args));
        assert!(!Condition::equal(0, Width::Bits64, 7).holds(&args));
        assert!(Condition::masked_equal(0, Width::Bits32, 0b11, 0b11).holds(&args));
        assert!(!Condition::masked_equal(0, Width::Bits64, 1 << 63, 0).holds(&args));
    }

    #[test]
    fn meaningless_conditions_are_faults() {
        let fault = |condition: Condition| condition.fault().unwrap_or("");
        assert!(fault(Condition::equal(6, Width::Bits64, 0)).contains("six arguments"));
        assert!(fault(Condition::equal(0, Width::Bits32, 1 << 32)).contains("fit the width"));
        assert!(fault(Condition::masked_equal(0, Width::Bits64, 0, 0)).contains("tests nothing"));
        assert!(fault(Condition::masked_equal(0, Width::Bits64, 1, 2)).contains("never matches"));
        assert_eq!(
            Condition::masked_equal(5, Width::Bits64, 3, 2).fault(),
            None
        );
    }
}
