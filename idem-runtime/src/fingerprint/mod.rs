//! The normalized fingerprint of a request: which material fields it had, and a hash over their canonical form. Two
//! requests that mean the same have equal fingerprints, whatever the order of their fields or the white space of
//! their JSON. The bytes are stored for years, so they never change within a version.

pub(crate) mod canonical;
mod key_text;

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Error;

const LABELS: std::ops::Range<usize> = 1..5;
const LENGTH: usize = 1 + 4 + 32;

/// The version that is written today. A record may have been written under an older one, so a [`Fingerprint`] holds
/// a digest for each version that is still supported; there is one so far.
const VERSION: u8 = 1;

/// A digest of the material fields of a request.
///
/// ```
/// use idem_runtime::Fingerprint;
///
/// let a = Fingerprint::builder("pay").field("amount", &100)?.field("currency", "EUR")?.build();
/// let b = Fingerprint::builder("pay").field("currency", "EUR")?.field("amount", &100.0)?.build();
/// assert_eq!(a, b);
/// # Ok::<(), idem_runtime::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    digests: [[u8; LENGTH]; 1],
}

/// How a request compares with the one that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same material fields with the same values.
    Equal,
    /// The same material fields with other values: another request under one key.
    Different,
    /// Other material fields, or a version that is not supported any more: nothing can be said.
    Incomparable,
}

impl Fingerprint {
    /// Starts an empty fingerprint; `operation` is only for error messages.
    pub fn builder(operation: &str) -> FingerprintBuilder<'_> {
        FingerprintBuilder { operation, fields: Vec::new() }
    }

    /// What is stored: version byte, four bytes of a digest of the labels, 32 bytes of hash.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.digests[0].to_vec()
    }

    /// Compares with what [`to_bytes`](Self::to_bytes) gave when the record was written.
    pub fn compare(&self, stored: &[u8]) -> Comparison {
        let same_fields = |ours: &&[u8; LENGTH]| {
            stored.len() == LENGTH && stored[0] == ours[0] && stored[LABELS] == ours[LABELS]
        };
        match self.digests.iter().find(same_fields) {
            None => Comparison::Incomparable,
            Some(ours) if stored == ours => Comparison::Equal,
            Some(_) => Comparison::Different,
        }
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(")?;
        self.digests[0].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Collects the material fields of one request.
#[derive(Debug)]
pub struct FingerprintBuilder<'a> {
    operation: &'a str,
    fields: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> FingerprintBuilder<'a> {
    /// Adds a material field. The order of the calls does not matter.
    ///
    /// # Errors
    /// [`Error::InvalidFingerprint`] for a repeated label, and for a value without a canonical form: NaN,
    /// infinities, and maps whose keys are neither text, integers, `char` nor `bool`.
    pub fn field<T: Serialize + ?Sized>(mut self, label: &'a str, value: &T) -> Result<Self, Error> {
        let invalid = |reason: String| Error::InvalidFingerprint {
            operation: self.operation.to_owned(),
            label: label.to_owned(),
            reason,
        };
        if self.fields.iter().any(|(known, _)| *known == label) {
            return Err(invalid("the label is used twice".to_owned()));
        }
        let encoded = canonical::canonical(value).map_err(|e| invalid(e.to_string()))?;
        self.fields.push((label, encoded));
        Ok(self)
    }

    /// The fingerprint of the fields so far.
    pub fn build(mut self) -> Fingerprint {
        self.fields.sort_unstable_by_key(|(label, _)| *label);
        let (mut labels, mut all) = (Sha256::new(), Sha256::new());
        for (label, value) in &self.fields {
            for hash in [&mut labels, &mut all] {
                hash.update((label.len() as u64).to_le_bytes());
                hash.update(label);
            }
            all.update(value);
        }
        let mut digest = [0; LENGTH];
        digest[0] = VERSION;
        digest[LABELS].copy_from_slice(&labels.finalize()[..4]);
        digest[LABELS.end..].copy_from_slice(&all.finalize());
        Fingerprint { digests: [digest] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: Serialize + ?Sized>(value: &T) -> Fingerprint {
        Fingerprint::builder("op").field("v", value).expect("canonical").build()
    }

    fn json(text: &str) -> Fingerprint {
        of(&serde_json::from_str::<serde_json::Value>(text).expect("JSON"))
    }

    #[test]
    fn labels_and_values_have_unambiguous_boundaries() {
        let two = |a: &str, b: &str| {
            Fingerprint::builder("op").field("x", a).and_then(|f| f.field("y", b)).expect("ok").build()
        };
        assert_ne!(two("ab", "c"), two("a", "bc"));
        let labels = |a: &'static str, b: &'static str| {
            Fingerprint::builder("op").field(a, &1).and_then(|f| f.field(b, &1)).expect("ok").build()
        };
        let compared = labels("ab", "c").compare(&labels("a", "bc").to_bytes());
        assert_eq!(compared, Comparison::Incomparable);
        assert_ne!(of(&("ab", "c")), of(&("a", "bc")));
        assert_ne!(of(&[["a"], ["b"]]), of(&[vec!["a", "b"], vec![]]));
        // Text that holds what begins a text.
        assert_ne!(of(&["a", "b"]), of(&["asb"]));
        assert_ne!(of(&Ok::<_, u8>(1_u8)), of(&Err::<u8, _>(1_u8)));
    }

    #[test]
    fn labels_have_no_order_and_a_map_has_none() {
        let of_both = |first: &'static str, second: &'static str| {
            let one = Fingerprint::builder("op").field(first, &first);
            one.and_then(|f| f.field(second, &second)).expect("ok").build()
        };
        assert_eq!(of_both("x", "y"), of_both("y", "x"));
        let pairs = [("x", 1), ("y", 2)];
        let mut turned = pairs;
        turned.reverse();
        let map = |pairs: [(&'static str, u8); 2]| of(&Pairs(pairs));
        assert_eq!(map(pairs), map(turned));
        assert_eq!(map(pairs), json(r#"{"y":2,"x":1}"#));
    }

    /// A map in the order of its entries, as a hash map has them.
    struct Pairs([(&'static str, u8); 2]);

    impl Serialize for Pairs {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0)
        }
    }

    #[test]
    fn numbers_are_exact_and_have_one_form() {
        assert_ne!(json("9007199254740993"), json("9007199254740992"));
        assert_ne!(of(&100), of(&101));
        assert_eq!(json("1"), json("1.0"));
        assert_eq!(json("0"), json("-0.0"));
        assert_eq!(of(&1e3), of(&1000_u16));
        assert_ne!(of(&u128::MAX), of(&(u128::MAX - 1)));
        assert_ne!(of(&i128::MIN), of(&(i128::MIN + 1)));
        assert_eq!(of(&5_i8), of(&5_u128));
        assert_eq!(of(&2_f64.powi(127)), of(&(1_u128 << 127)));
        assert_ne!(of(&2_f64.powi(128)), of(&u128::MAX));
        assert_eq!(of(&0.1_f32), json("0.1"));
        assert_ne!(json("1"), json("\"1\""));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Fingerprint::builder("op").field("v", &bad).expect_err("no canonical form");
            assert!(matches!(error, Error::InvalidFingerprint { .. }));
        }
    }

    #[test]
    fn order_of_fields_is_no_difference_and_order_of_elements_is() {
        assert_eq!(json(r#"{"a":1,"b":[1,2]}"#), json(" { \"b\" : [1.0, 2], \"a\" : 1 } "));
        assert_ne!(json("[1,2]"), json("[2,1]"));
        assert_ne!(json(r#"{"a":null}"#), json("{}"));
        assert_ne!(json(r#"{"a":null}"#), json(r#"{"a":""}"#));
        assert_ne!(json("\"\u{e9}\""), json("\"e\u{301}\""));
    }

    #[test]
    fn the_tail_of_a_long_value_counts() {
        let long = "x".repeat(1 << 20);
        assert_ne!(of(&format!("{long}a")), of(&format!("{long}b")));
    }

    #[test]
    fn other_labels_cannot_be_compared() {
        let a = Fingerprint::builder("op").field("amount", &1).expect("ok").build();
        let renamed = Fingerprint::builder("op").field("sum", &1).expect("ok").build();
        let other = Fingerprint::builder("op").field("amount", &2).expect("ok").build();
        assert_eq!(a.compare(&a.to_bytes()), Comparison::Equal);
        assert_eq!(a.compare(&other.to_bytes()), Comparison::Different);
        assert_eq!(a.compare(&renamed.to_bytes()), Comparison::Incomparable);
        assert_eq!(a.compare(&[]), Comparison::Incomparable);
        let mut later = a.to_bytes();
        later[0] = 9;
        assert_eq!(a.compare(&later), Comparison::Incomparable);
    }

    #[test]
    fn a_label_used_twice_is_refused() {
        let twice = Fingerprint::builder("op").field("id", &1).and_then(|f| f.field("id", &1));
        assert!(matches!(twice, Err(Error::InvalidFingerprint { .. })));
    }
}
