//! From whatever serde serializes to a [`Value`].

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde::ser::{
    self, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::Value;

/// Why something is no value.
#[derive(Debug)]
pub(super) struct Refused(pub(super) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// Maps of more entries get an index by key, so that finding a key that comes twice costs no time.
const FEW: usize = 16;

pub(super) struct ToValue;

/// A list, or a variant's one.
pub(super) struct Items {
    items: Vec<Value>,
    variant: Option<&'static str>,
}

/// A map, or a variant's one.
#[derive(Default)]
pub(super) struct Entries {
    list: Vec<(String, Value)>,
    places: HashMap<String, usize>,
    key: Option<String>,
    variant: Option<&'static str>,
}

impl Entries {
    fn put(&mut self, key: String, value: Value) {
        let place = if self.list.len() <= FEW {
            self.list.iter().position(|(other, _)| *other == key)
        } else {
            if self.places.is_empty() {
                let keys = self.list.iter().enumerate();
                self.places = keys.map(|(at, (key, _))| (key.clone(), at)).collect();
            }
            self.places.get(&key).copied()
        };
        if let Some(entry) = place.and_then(|at| self.list.get_mut(at)) {
            entry.1 = value;
        } else {
            if !self.places.is_empty() {
                self.places.insert(key.clone(), self.list.len());
            }
            self.list.push((key, value));
        }
    }
}

fn of_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(name) => Value::Map(vec![(name.to_owned(), value)]),
        None => value,
    }
}

macro_rules! integers {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<Value, Refused> {
            Ok(Value::Integer(value.into()))
        }
    )*};
}

impl Serializer for ToValue {
    type Ok = Value;
    type Error = Refused;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Entries;

    integers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    }

    fn serialize_u128(self, value: u128) -> Result<Value, Refused> {
        match value.try_into() {
            Ok(value) => Ok(Value::Integer(value)),
            Err(_) => Err(Refused(format!(
                "{value} is larger than the largest whole number, {}",
                i128::MAX
            ))),
        }
    }

    fn serialize_bool(self, value: bool) -> Result<Value, Refused> {
        Ok(Value::Bool(value))
    }

    fn serialize_f32(self, value: f32) -> Result<Value, Refused> {
        // The shortest text, and not the digits that the wider type has for it.
        Ok(Value::Float(
            value.to_string().parse().unwrap_or(f64::from(value)),
        ))
    }

    fn serialize_f64(self, value: f64) -> Result<Value, Refused> {
        Ok(Value::Float(value))
    }

    fn serialize_char(self, value: char) -> Result<Value, Refused> {
        Ok(Value::Text(value.to_string()))
    }

    fn serialize_str(self, value: &str) -> Result<Value, Refused> {
        Ok(Value::Text(value.to_owned()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Value, Refused> {
        Ok(Value::List(
            value.iter().copied().map(Value::from).collect(),
        ))
    }

    fn serialize_none(self) -> Result<Value, Refused> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Refused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Refused> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<Value, Refused> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<Value, Refused> {
        Ok(Value::Text(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<Value, Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Refused> {
        Ok(of_variant(Some(variant), value.serialize(self)?))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Items, Refused> {
        // What a type says of its length is no reason to reserve as much.
        let items = Vec::with_capacity(length.unwrap_or_default().min(4096));
        Ok(Items {
            items,
            variant: None,
        })
    }

    fn serialize_tuple(self, length: usize) -> Result<Items, Refused> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _name: &'static str, length: usize) -> Result<Items, Refused> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Items, Refused> {
        let mut items = self.serialize_seq(Some(length))?;
        items.variant = Some(variant);
        Ok(items)
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Entries, Refused> {
        Ok(Entries::default())
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Entries, Refused> {
        Ok(Entries::default())
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Entries, Refused> {
        let variant = Some(variant);
        Ok(Entries {
            variant,
            ..Entries::default()
        })
    }
}

impl SerializeSeq for Items {
    type Ok = Value;
    type Error = Refused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        self.items.push(value.serialize(ToValue)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Refused> {
        Ok(of_variant(self.variant, Value::List(self.items)))
    }
}

macro_rules! as_list {
    ($($kind:ident: $method:ident),*) => {$(
        impl $kind for Items {
            type Ok = Value;
            type Error = Refused;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
                self.serialize_element(value)
            }

            fn end(self) -> Result<Value, Refused> {
                SerializeSeq::end(self)
            }
        }
    )*};
}

// `SerializeTuple` has a method of the same name as the list's.
impl SerializeTuple for Items {
    type Ok = Value;
    type Error = Refused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<Value, Refused> {
        SerializeSeq::end(self)
    }
}

impl Items {
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        SerializeSeq::serialize_element(self, value)
    }
}

as_list!(SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field);

impl SerializeMap for Entries {
    type Ok = Value;
    type Error = Refused;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refused> {
        self.key = Some(match key.serialize(ToValue)? {
            Value::Text(key) => key,
            Value::Integer(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            other => {
                return Err(Refused(format!(
                    "the key of a map is {}, and not a text",
                    other.kind()
                )));
            }
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        let key = self
            .key
            .take()
            .ok_or_else(|| Refused("a map has a value without a key".into()))?;
        self.put(key, value.serialize(ToValue)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Refused> {
        Ok(of_variant(self.variant, Value::Map(self.list)))
    }
}

macro_rules! as_map {
    ($($kind:ident),*) => {$(
        impl $kind for Entries {
            type Ok = Value;
            type Error = Refused;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Refused> {
                self.put(key.to_owned(), value.serialize(ToValue)?);
                Ok(())
            }

            fn end(self) -> Result<Value, Refused> {
                SerializeMap::end(self)
            }
        }
    )*};
}

as_map!(SerializeStruct, SerializeStructVariant);
