//! The text of a map key. JSON has only text there, and serde_json writes integers and `bool`s as text; everything else
//! has no canonical form as a key.

use serde::ser::{self, Serialize};

use super::canonical::Reason;

/// Serializes a map key, or any text, into its text.
pub(super) struct KeyText;

macro_rules! refuse {
    ($($name:ident($($argument:ty),*) -> $ok:ty),*) => {$(
        fn $name(self, $(_: $argument),*) -> Result<$ok, Reason> {
            Err(no_key())
        }
    )*};
}

macro_rules! key_by_display {
    ($($name:ident($kind:ty)),*) => {$(
        fn $name(self, v: $kind) -> Result<String, Reason> {
            Ok(v.to_string())
        }
    )*};
}

impl ser::Serializer for KeyText {
    type Ok = String;
    type Error = Reason;
    type SerializeSeq = ser::Impossible<String, Reason>;
    type SerializeTuple = ser::Impossible<String, Reason>;
    type SerializeTupleStruct = ser::Impossible<String, Reason>;
    type SerializeTupleVariant = ser::Impossible<String, Reason>;
    type SerializeMap = ser::Impossible<String, Reason>;
    type SerializeStruct = ser::Impossible<String, Reason>;
    type SerializeStructVariant = ser::Impossible<String, Reason>;

    key_by_display!(
        serialize_bool(bool),
        serialize_char(char),
        serialize_str(&str),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128)
    );

    fn serialize_unit_variant(self, _: &'static str, _: u32, v: &'static str) -> Result<String, Reason> {
        Ok(v.to_owned())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<String, Reason> {
        value.serialize(self)
    }
    refuse!(
        serialize_f32(f32) -> String, serialize_f64(f64) -> String, serialize_bytes(&[u8]) -> String,
        serialize_none() -> String, serialize_unit() -> String, serialize_unit_struct(&'static str) -> String,
        serialize_seq(Option<usize>) -> Self::SerializeSeq, serialize_tuple(usize) -> Self::SerializeTuple,
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant,
        serialize_map(Option<usize>) -> Self::SerializeMap,
        serialize_struct(&'static str, usize) -> Self::SerializeStruct,
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant
    );

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<String, Reason> {
        Err(no_key())
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String, Reason> {
        Err(no_key())
    }
}

fn no_key() -> Reason {
    Reason("a map key is neither text, an integer, a char nor a bool".to_owned())
}
