//! A serde serializer into canonical bytes, without a detour over a JSON value (which would lose large integers and
//! turn NaN into null). Every item begins with a tag and ends by its length or an end tag, so that no two different
//! values have the same bytes; the entries of maps and structs are sorted.
//!
//! Two readings of a value share it. [`canonical`] is for fingerprints: what JSON calls equal is equal. [`exact`] is
//! for the proof that an outcome survives its JSON: it also tells `Some(None)` from `None` and `-0.0` from `0`.

use std::fmt;

use serde::ser::{self, Serialize};

use super::key_text::KeyText;

/// The names under which serde_json passes numbers and raw text through other serializers.
const JSON_NUMBER: &str = "$serde_json::private::Number";
const JSON_RAW: &str = "$serde_json::private::RawValue";

/// The bytes for a fingerprint.
pub(crate) fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Reason> {
    encode(value, Reading::Canonical)
}

/// The bytes for the comparison of a value with what its JSON reads back as. Sequences count as multisets, since a
/// hash set comes back in another order.
pub(crate) fn exact<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Reason> {
    encode(value, Reading::Exact)
}

fn encode<T: Serialize + ?Sized>(value: &T, reading: Reading) -> Result<Vec<u8>, Reason> {
    let mut encoder = Encoder { out: Vec::with_capacity(256), reading };
    value.serialize(&mut encoder)?;
    Ok(encoder.out)
}

/// Why a value has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Reason(pub(super) String);

impl ser::Error for Reason {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reading {
    Canonical,
    Exact,
}

struct Encoder {
    out: Vec<u8>,
    reading: Reading,
}

impl Encoder {
    fn integer(&mut self, value: i128) {
        self.out.push(b'i');
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn unsigned(&mut self, value: u128) {
        match i128::try_from(value) {
            Ok(value) => self.integer(value),
            Err(_) => {
                self.out.push(b'u');
                self.out.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn float(&mut self, value: f64) -> Result<(), Reason> {
        if !value.is_finite() {
            return Err(Reason(format!("{value} is not a number that JSON can hold")));
        }
        if self.reading == Reading::Canonical && value.fract() == 0.0 {
            // Both bounds are powers of two, so that the comparison and the casts are exact.
            if value.abs() < i128::MAX as f64 {
                self.integer(value as i128);
                return Ok(());
            }
            if value > 0.0 && value < u128::MAX as f64 {
                self.unsigned(value as u128);
                return Ok(());
            }
        }
        self.out.push(b'd');
        self.out.extend_from_slice(&value.to_bits().to_le_bytes());
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push(b's');
        self.out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    /// A number of serde_json with `arbitrary_precision`, read as serde_json reads it without.
    fn json_number(&mut self, text: &str) -> Result<(), Reason> {
        if let Ok(value) = text.parse::<i64>() {
            self.integer(value.into());
            Ok(())
        } else if let Ok(value) = text.parse::<u64>() {
            self.integer(value.into());
            Ok(())
        } else {
            let value = text.parse().map_err(|_| Reason(format!("`{text}` is not a number")))?;
            self.float(value)
        }
    }

    /// Opens a group: `[` keeps the order of the items where it counts; `{` sorts them.
    fn group(&mut self, open: u8) -> Group<'_> {
        let sorted = open == b'{' || self.reading == Reading::Exact;
        self.out.push(open);
        Group { first: self.out.len(), encoder: self, sorted, ends: Vec::new(), of_json: None }
    }

    /// `{"Variant": content}`, as JSON has it: the tag of a map with one entry, and the content follows.
    fn variant(&mut self, name: &str) {
        self.out.push(b'{');
        self.text(name);
    }
}

/// The items of a sequence, map or struct, put in order at its end.
struct Group<'a> {
    encoder: &'a mut Encoder,
    sorted: bool,
    /// Where the first item begins, and where each ends.
    first: usize,
    ends: Vec<usize>,
    /// A value of serde_json that passes as a struct with one text field.
    of_json: Option<&'static str>,
}

impl Group<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Reason> {
        value.serialize(&mut *self.encoder)?;
        self.ends.push(self.encoder.out.len());
        Ok(())
    }

    fn entry<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Reason> {
        if let Some(kind) = self.of_json {
            let text = value.serialize(KeyText)?;
            return match kind {
                JSON_NUMBER => self.encoder.json_number(&text),
                _ => serde_json::from_str::<serde_json::Value>(&text)
                    .map_err(ser::Error::custom)?
                    .serialize(&mut *self.encoder),
            };
        }
        self.encoder.text(key);
        self.item(value)
    }

    fn close(self) {
        let Self { encoder, sorted, first, ends, of_json } = self;
        if of_json.is_some() {
            return;
        }
        let out = &mut encoder.out;
        if sorted {
            let starts = std::iter::once(first).chain(ends.iter().copied());
            let mut items: Vec<&[u8]> = starts.zip(&ends).map(|(start, end)| &out[start..*end]).collect();
            if !items.is_sorted() {
                items.sort_unstable();
                let ordered = items.concat();
                out.truncate(first);
                out.extend_from_slice(&ordered);
            }
        }
        let open = out[first - 1];
        out.push(if open == b'[' { b']' } else { b'}' });
    }
}

/// Integers have one form, whatever their width.
macro_rules! integers {
    ($($name:ident($kind:ty)),*) => {$(
        fn $name(self, v: $kind) -> Result<(), Reason> {
            self.serialize_i128(v.into())
        }
    )*};
}

impl<'a> ser::Serializer for &'a mut Encoder {
    type Ok = ();
    type Error = Reason;
    type SerializeSeq = Group<'a>;
    type SerializeTuple = Group<'a>;
    type SerializeTupleStruct = Group<'a>;
    type SerializeTupleVariant = Variant<'a>;
    type SerializeMap = Group<'a>;
    type SerializeStruct = Group<'a>;
    type SerializeStructVariant = Variant<'a>;

    fn serialize_bool(self, v: bool) -> Result<(), Reason> {
        self.out.push(if v { b't' } else { b'f' });
        Ok(())
    }
    integers!(
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64)
    );
    fn serialize_i128(self, v: i128) -> Result<(), Reason> {
        self.integer(v);
        Ok(())
    }
    fn serialize_u128(self, v: u128) -> Result<(), Reason> {
        self.unsigned(v);
        Ok(())
    }
    fn serialize_f32(self, v: f32) -> Result<(), Reason> {
        // As JSON has it: the shortest text that reads back as this f32, which is not `f64::from(v)`.
        if !v.is_finite() {
            return self.float(v.into());
        }
        self.float(v.to_string().parse().map_err(ser::Error::custom)?)
    }
    fn serialize_f64(self, v: f64) -> Result<(), Reason> {
        self.float(v)
    }
    fn serialize_char(self, v: char) -> Result<(), Reason> {
        self.text(v.encode_utf8(&mut [0; 4]));
        Ok(())
    }
    fn serialize_str(self, v: &str) -> Result<(), Reason> {
        self.text(v);
        Ok(())
    }
    fn serialize_bytes(self, v: &[u8]) -> Result<(), Reason> {
        // As JSON has it: an array of numbers.
        v.serialize(self)
    }
    fn serialize_none(self) -> Result<(), Reason> {
        self.serialize_unit()
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Reason> {
        if self.reading == Reading::Exact {
            self.out.push(b'S');
        }
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), Reason> {
        self.out.push(b'n');
        Ok(())
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Reason> {
        self.serialize_unit()
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, v: &'static str) -> Result<(), Reason> {
        self.serialize_str(v)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Reason> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Reason> {
        self.variant(variant);
        value.serialize(&mut *self)?;
        self.out.push(b'}');
        Ok(())
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Group<'a>, Reason> {
        Ok(self.group(b'['))
    }
    fn serialize_tuple(self, _: usize) -> Result<Group<'a>, Reason> {
        Ok(self.group(b'['))
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Group<'a>, Reason> {
        Ok(self.group(b'['))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Variant<'a>, Reason> {
        self.variant(variant);
        Ok(Variant(self.group(b'[')))
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Group<'a>, Reason> {
        Ok(self.group(b'{'))
    }
    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Group<'a>, Reason> {
        let of_json = match self.reading {
            _ if name == JSON_NUMBER => Some(JSON_NUMBER),
            Reading::Canonical if name == JSON_RAW => Some(JSON_RAW),
            _ => return Ok(self.group(b'{')),
        };
        Ok(Group { first: self.out.len(), encoder: self, sorted: false, ends: Vec::new(), of_json })
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Variant<'a>, Reason> {
        self.variant(variant);
        Ok(Variant(self.group(b'{')))
    }
}

/// The three kinds of sequences are one.
macro_rules! sequences {
    ($($kind:ident::$item:ident),*) => {$(
        impl ser::$kind for Group<'_> {
            type Ok = ();
            type Error = Reason;
            fn $item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Reason> {
                self.item(value)
            }
            fn end(self) -> Result<(), Reason> {
                self.close();
                Ok(())
            }
        }
    )*};
}
sequences!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field
);

impl ser::SerializeMap for Group<'_> {
    type Ok = ();
    type Error = Reason;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Reason> {
        let key = key.serialize(KeyText)?;
        self.encoder.text(&key);
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Reason> {
        self.item(value)
    }
    fn end(self) -> Result<(), Reason> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStruct for Group<'_> {
    type Ok = ();
    type Error = Reason;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Reason> {
        self.entry(key, value)
    }
    fn end(self) -> Result<(), Reason> {
        self.close();
        Ok(())
    }
}

/// A group inside the map of its enum variant.
struct Variant<'a>(Group<'a>);

impl Variant<'_> {
    fn close(self) {
        let Self(Group { encoder, sorted, first, ends, of_json }) = self;
        Group { encoder: &mut *encoder, sorted, first, ends, of_json }.close();
        encoder.out.push(b'}');
    }
}

impl ser::SerializeTupleVariant for Variant<'_> {
    type Ok = ();
    type Error = Reason;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Reason> {
        self.0.item(value)
    }
    fn end(self) -> Result<(), Reason> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Variant<'_> {
    type Ok = ();
    type Error = Reason;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Reason> {
        self.0.entry(key, value)
    }
    fn end(self) -> Result<(), Reason> {
        self.close();
        Ok(())
    }
}
