//! What a handler answers, and the JSON text under which the first answer is stored. The invariant: an outcome that
//! was stored reads back as the very value that the first caller got, or the first run is refused and leaves nothing.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fingerprint::canonical;
use crate::{Error, Identity, Record};

/// The answer of a handler: from this run, or from the first one.
///
/// ```
/// use idem_runtime::Outcome;
///
/// let outcome = Outcome::Replayed(7);
/// assert!(outcome.is_replay());
/// assert_eq!(outcome.map(|n| n + 1).into_inner(), 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome<T> {
    /// The body ran in this call, and its effect is committed.
    Applied(T),
    /// The body ran in an earlier call; this is what it answered then.
    Replayed(T),
}

impl<T> Outcome<T> {
    /// Whether the body ran in an earlier call.
    pub fn is_replay(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }

    /// The answer itself.
    pub fn into_inner(self) -> T {
        match self {
            Self::Applied(value) | Self::Replayed(value) => value,
        }
    }

    /// The answer by reference.
    pub fn as_ref(&self) -> Outcome<&T> {
        match self {
            Self::Applied(value) => Outcome::Applied(value),
            Self::Replayed(value) => Outcome::Replayed(value),
        }
    }

    /// Turns the answer into another, and keeps which of the two it was.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Applied(value) => Outcome::Applied(f(value)),
            Self::Replayed(value) => Outcome::Replayed(f(value)),
        }
    }
}

/// The JSON text of `value`, after proof that it reads back as `value`.
///
/// JSON turns `Some(None)` and NaN into `null`, and a type whose `Deserialize` does not match its `Serialize` would
/// be unreadable for every redelivery. So the text is read back here, in the run that can still be undone.
///
/// # Errors
/// [`Error::OutcomeRejected`].
pub fn encode<V: Serialize + DeserializeOwned>(identity: &Identity, value: &V) -> Result<String, Error> {
    let rejected = |reason: String| Error::OutcomeRejected { identity: identity.clone(), reason };
    let text = serde_json::to_string(value).map_err(|e| rejected(format!("it does not serialize: {e}")))?;
    let back: V =
        serde_json::from_str(&text).map_err(|e| rejected(format!("its JSON does not deserialize: {e}")))?;
    let exact = |v: &V| canonical::exact(v).map_err(|e| rejected(e.to_string()));
    if exact(value)? != exact(&back)? {
        return Err(rejected("its JSON reads back as another value".to_owned()));
    }
    Ok(text)
}

/// The outcome that `record` holds, as a replay.
///
/// # Errors
/// [`Error::OutcomeUnreadable`] if the stored text is missing or no longer deserializes. The body must not run then.
pub fn decode<V: DeserializeOwned>(record: &Record) -> Result<Outcome<V>, Error> {
    let unreadable = |source| Error::OutcomeUnreadable { identity: record.identity.clone(), source };
    let text = record.outcome.as_deref().ok_or_else(|| unreadable(None))?;
    serde_json::from_str(text).map(Outcome::Replayed).map_err(|e| unreadable(Some(e)))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::Verified;

    #[test]
    fn no_outcome_is_not_the_outcome_null() {
        let identity = Identity::new("op", &Verified::vouch("s"), "k").expect("valid");
        let mut record = Record::new(identity, SystemTime::UNIX_EPOCH);
        let error = decode::<()>(&record).expect_err("none is there");
        assert!(matches!(error, Error::OutcomeUnreadable { source: None, .. }), "{error:?}");
        record.outcome = Some("null".to_owned());
        assert_eq!(decode(&record).expect("it is"), Outcome::Replayed(()));
    }

    #[test]
    fn what_json_makes_equal_is_told_apart_before_it_is_stored() {
        fn exact<T: Serialize>(value: T) -> Vec<u8> {
            canonical::exact(&value).expect("canonical")
        }
        assert_ne!(exact(Some(None::<u8>)), exact(None::<Option<u8>>));
        assert_ne!(exact(-0.0_f64), exact(0.0_f64));
        assert_ne!(exact(1.0_f64), exact(1_u8));
        assert_eq!(exact([1, 2]), exact([2, 1]), "a hash set comes back in another order");
    }
}
