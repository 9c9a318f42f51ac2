//! Values as JSON text.

use std::fmt::Write as _;

use super::Value;

/// How JSON is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without spaces.
    Compact,
    /// As Python's `json.dumps` does by default, byte by byte: digests are over these bytes.
    Python,
}

pub(super) fn value(text: &mut String, value: &Value, style: Style) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        // A string takes everything.
        Value::Integer(number) => {
            let _ = write!(text, "{number}");
        }
        Value::Float(number) => float(text, *number),
        Value::Text(content) => string(text, content, style),
        Value::List(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                separate(text, index, style);
                self::value(text, item, style);
            }
            text.push(']');
        }
        Value::Map(entries) => {
            text.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                separate(text, index, style);
                string(text, key, style);
                text.push_str(if style == Style::Python { ": " } else { ":" });
                self::value(text, item, style);
            }
            text.push('}');
        }
    }
}

fn separate(text: &mut String, index: usize, style: Style) {
    if index > 0 {
        text.push_str(if style == Style::Python { ", " } else { "," });
    }
}

/// The shortest text that reads back to the same number, in the form that Python gives it: with an exponent below 1e-4 and
/// from 1e16 on, and never without a point or an exponent.
fn float(text: &mut String, number: f64) {
    if number.is_nan() {
        return text.push_str("NaN");
    }
    if number.is_infinite() {
        return text.push_str(if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        });
    }
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let _ = write!(text, "{number:?}");
        return;
    }
    let form = format!("{number:e}");
    let (digits, exponent) = form.split_once('e').unwrap_or((&form, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    let _ = write!(text, "{digits}e{sign}{exponent:0>2}");
}

fn string(text: &mut String, content: &str, style: Style) {
    text.push('"');
    let mut plain = 0;
    for (index, character) in content.char_indices() {
        let as_it_is = match character {
            '"' | '\\' | '\0'..='\u{1f}' => false,
            ' '..='\u{7f}' => true,
            _ => style == Style::Compact,
        };
        if as_it_is {
            continue;
        }
        text.push_str(content.get(plain..index).unwrap_or_default());
        plain = index + character.len_utf8();
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text.push_str(content.get(plain..).unwrap_or_default());
    text.push('"');
}
