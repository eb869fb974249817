//! How the key of an effect comes about. The invariant: it is a function of the run and of nothing else, so that a run
//! which is repeated after a lost commit stages the same effects again.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::{EffectKey, Identity};

/// Which run of an identity it is, where there can be more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// A second run is impossible.
    Only,
    /// So many times `remember` after 1970 it began: two runs of one identity are further apart than one of them.
    Period(u128),
    /// A person had it run, under this label.
    Label(Arc<str>),
}

impl EffectKey {
    /// Of the `ordinal`-th effect called `effect` that a run stages.
    pub(crate) fn staged(identity: &Identity, generation: &Generation, effect: &str, ordinal: u32) -> Self {
        Self::derive("stage", identity, generation, &[effect.as_bytes(), &ordinal.to_be_bytes()])
    }

    /// Of a call that a body makes by itself.
    pub(crate) fn called(identity: &Identity, generation: &Generation, effect: &str) -> Self {
        Self::derive("call", identity, generation, &[effect.as_bytes()])
    }

    /// Of an effect that a person wants sent under another key.
    pub(crate) fn renewed(&self, version: i64) -> Self {
        Self::of(&[b"renew", self.0.as_bytes(), &version.to_be_bytes()])
    }

    /// A key as it was stored.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    fn derive(kind: &str, identity: &Identity, generation: &Generation, rest: &[&[u8]]) -> Self {
        let (tag, number) = match generation {
            Generation::Only => ("only", Vec::new()),
            Generation::Period(number) => ("period", number.to_be_bytes().to_vec()),
            Generation::Label(label) => ("label", label.as_bytes().to_vec()),
        };
        let head = [kind, identity.operation(), identity.scope(), identity.key(), tag];
        let parts: Vec<&[u8]> =
            head.iter().map(|part| part.as_bytes()).chain([&*number]).chain(rest.iter().copied()).collect();
        Self::of(&parts)
    }

    /// Each part with its length before it, so that no two lists of parts give the same bytes.
    fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(base64url(&hash.finalize()))
    }
}

/// RFC 4648, section 5, without padding: fits where a provider takes 45 characters, and needs no quoting anywhere.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Verified;

    fn identity(operation: &str, scope: &str, key: &str) -> Identity {
        Identity::new(operation, &Verified::vouch(scope), key).expect("valid")
    }

    #[test]
    fn the_text_is_base64url() {
        // RFC 4648, section 10.
        let coded = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64url(text.as_bytes()));
        assert_eq!(coded, ["", "Zg", "Zm8", "Zm9v", "Zm9vYg", "Zm9vYmE", "Zm9vYmFy"]);
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn a_key_is_the_same_for_the_same_run_and_stays_so_in_later_versions() {
        let key = EffectKey::staged(&identity("op", "s", "k"), &Generation::Only, "mail", 0);
        assert_eq!(key, EffectKey::staged(&identity("op", "s", "k"), &Generation::Only, "mail", 0));
        assert_eq!(key.as_str().len(), 43);
        // A staged effect that is delivered by the next version of the program must keep its key.
        assert_eq!(key.as_str(), "GWjOG2slGOD-einZpk66QlcAtZY_PNQvkl-2pdcCVpo");
    }

    #[test]
    fn no_two_effects_share_a_key() {
        let mut keys = HashSet::new();
        let mut count = 0;
        for identity in [
            identity("op", "s", "k"),
            identity("ops", "s", "k"),
            identity("op", "sk", "x"),
            identity("op", "s", "kx"),
        ] {
            for generation in [
                Generation::Only,
                Generation::Period(0),
                Generation::Period(1),
                Generation::Label("".into()),
                Generation::Label("0".into()),
            ] {
                for effect in ["mail", "mail2", "m"] {
                    for ordinal in [0, 1, 256] {
                        keys.insert(EffectKey::staged(&identity, &generation, effect, ordinal));
                        count += 1;
                    }
                    keys.insert(EffectKey::called(&identity, &generation, effect));
                    count += 1;
                }
            }
        }
        for key in keys.clone() {
            keys.insert(key.renewed(1));
            keys.insert(key.renewed(2));
            count += 2;
        }
        assert_eq!(keys.len(), count);
    }
}
