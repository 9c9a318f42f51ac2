//! Values of rows, summaries and tables: JSON, and the numbers that it lacks.

mod serializer;
mod text;

use serde::Serialize;
use serde::ser::{SerializeMap as _, SerializeSeq as _, Serializer};

use crate::Error;

pub(crate) use self::text::Style;

/// A value: what JSON has, with whole numbers kept exactly and with NaN and the infinities, which `serde_json` turns into null.
///
/// Whatever is [`Serialize`] becomes one by itself where a method of this crate takes it. Structs, maps and struct variants become
/// maps, options their content or null, enum variants their name or a map from it, an `f32` the number that its
/// shortest text says, bytes a list of numbers. The keys of a map may be texts, whole numbers, booleans or characters; where a key
/// comes twice, the last one counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number, NaN and the infinities among them.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// An object, in the order in which it was written; no key is there twice.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// What a value of another type amounts to.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] where a map has keys of another kind, or the type's own serialization fails.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        value
            .serialize(serializer::ToValue)
            .map_err(|refused| Error::Value { reason: refused.0 })
    }

    /// The same, where it is a map.
    pub(crate) fn map_of<T: Serialize + ?Sized>(
        value: &T,
        what: &'static str,
    ) -> Result<Vec<(String, Self)>, Error> {
        match Self::of(value)? {
            Self::Map(entries) => Ok(entries),
            // An absent or empty one: `()` and `None`.
            Self::Null => Ok(Vec::new()),
            other => Err(Error::NotAMap {
                what,
                found: other.kind(),
            }),
        }
    }

    /// Its kind, in a word.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// Whether JSON has no word for it, or for something in it.
    pub(crate) fn lacks_json(&self) -> bool {
        match self {
            Self::Float(number) => !number.is_finite(),
            Self::List(items) => items.iter().any(Self::lacks_json),
            Self::Map(entries) => entries.iter().any(|(_, value)| value.lacks_json()),
            _ => false,
        }
    }

    /// As JSON text, with `NaN`, `Infinity` and `-Infinity` bare.
    pub(crate) fn json(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, Style::Compact);
        text
    }

    pub(crate) fn write(&self, text: &mut String, style: Style) {
        text::value(text, self, style);
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => {
                if let Ok(value) = i64::try_from(*value) {
                    serializer.serialize_i64(value)
                } else if let Ok(value) = u64::try_from(*value) {
                    serializer.serialize_u64(value)
                } else {
                    serializer.serialize_i128(*value)
                }
            }
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

macro_rules! from {
    ($($from:ty => $to:expr),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                $to(value.into())
            }
        }
    )*};
}

from! {
    bool => Self::Bool, i8 => Self::Integer, i16 => Self::Integer, i32 => Self::Integer, i64 => Self::Integer,
    u8 => Self::Integer, u16 => Self::Integer, u32 => Self::Integer, u64 => Self::Integer, f64 => Self::Float,
    &str => Self::Text, String => Self::Text, Vec<Value> => Self::List,
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    fn json(value: impl Serialize) -> String {
        Value::of(&value).unwrap().json()
    }

    #[test]
    fn numbers_that_json_lacks_and_large_ones_are_kept() {
        assert_eq!(
            json([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
            "[NaN,Infinity,-Infinity]"
        );
        assert_eq!(
            json((u64::MAX, i64::MIN)),
            "[18446744073709551615,-9223372036854775808]"
        );
        assert_eq!(json(i128::MAX), i128::MAX.to_string());
        assert!(Value::of(&u128::MAX).is_err());
        assert_eq!(json((0.1_f32, 1.0_f64, -0.0_f64)), "[0.1,1.0,-0.0]");
    }

    #[test]
    fn numbers_are_written_as_the_official_client_writes_them() {
        for (number, text) in [
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (5e-324, "5e-324"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
            (123.456, "123.456"),
            (1e100, "1e+100"),
            (1.5e-7, "1.5e-07"),
        ] {
            assert_eq!(json(number), text);
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), f64::to_bits(number));
        }
    }

    #[test]
    fn what_serde_knows_becomes_a_value() {
        #[derive(Serialize)]
        struct Unit;
        #[derive(Serialize)]
        struct Wrapped(u8);
        #[derive(Serialize)]
        enum Kind {
            Plain,
            One(i32),
            Two(i32, char),
            Named { a: Option<bool> },
        }
        #[derive(Serialize)]
        struct All {
            none: Option<u8>,
            unit: Unit,
            wrapped: Wrapped,
            kinds: Vec<Kind>,
            #[serde(flatten)]
            more: BTreeMap<String, u8>,
        }
        let all = All {
            none: None,
            unit: Unit,
            wrapped: Wrapped(3),
            kinds: vec![
                Kind::Plain,
                Kind::One(1),
                Kind::Two(2, 'ü'),
                Kind::Named { a: Some(true) },
            ],
            more: BTreeMap::from([("none".to_owned(), 9), ("z/y".to_owned(), 1)]),
        };
        assert_eq!(
            json(all),
            r#"{"none":9,"unit":null,"wrapped":3,"kinds":["Plain",{"One":1},{"Two":[2,"ü"]},{"Named":{"a":true}}],"z/y":1}"#
        );
        assert_eq!(json(BTreeMap::from([(1, 'a')])), r#"{"1":"a"}"#);
        assert!(Value::of(&BTreeMap::from([([1], 'a')])).is_err());
    }

    #[test]
    fn texts_are_escaped_in_both_styles() {
        let text = "ü☃\u{7f}\u{1}/\"\\😀\u{2028}\n\t\r\u{8}\u{c}";
        let value = Value::of(text).unwrap();
        let back: String = serde_json::from_str(&value.json()).unwrap();
        assert_eq!(back, text);
        let mut python = String::new();
        value.write(&mut python, Style::Python);
        assert_eq!(
            python,
            "\"\\u00fc\\u2603\u{7f}\\u0001/\\\"\\\\\\ud83d\\ude00\\u2028\\n\\t\\r\\b\\f\""
        );
    }

    #[test]
    fn a_value_is_its_own_value() {
        let value = Value::of(&(1, "x", [Some(2.5), None], f64::INFINITY, u64::MAX)).unwrap();
        assert_eq!(Value::of(&value).unwrap(), value);
    }
}
