//! What makes two deliveries the same: operation, scope and key. An [`Identity`] is checked when it is built, so
//! that no store ever sees one that another store would refuse.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use crate::{Error, Scope};

/// Operation, scope and key: what makes two deliveries the same one.
///
/// Compared byte by byte: case, spaces and normalization forms of Unicode are significant. Cheap to clone.
///
/// ```
/// use idem_runtime::{Identity, Verified};
///
/// let identity = Identity::new("invoice.approve", &Verified::vouch("acme"), "key-1")?;
/// assert_eq!(identity.to_string(), r#"invoice.approve "acme" "key-1""#);
/// assert!(Identity::new("invoice.approve", &Verified::vouch("acme"), "").is_err());
/// # Ok::<(), idem_runtime::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(Arc<Parts>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Parts {
    operation: Box<str>,
    scope: Box<str>,
    key: Box<str>,
    /// Of the three, keyed for this process: a claim is looked up in several maps.
    hash: u64,
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Identity {
    /// The longest operation, in bytes.
    pub const MAX_OPERATION_BYTES: usize = 128;
    /// The longest scope, in bytes.
    pub const MAX_SCOPE_BYTES: usize = 256;
    /// The longest key, in bytes. With the other two it stays below the 2,704 bytes of a Postgres index row.
    pub const MAX_KEY_BYTES: usize = 1024;

    /// Checks and joins the three parts.
    ///
    /// # Errors
    /// [`Error::InvalidIdentity`] if a part is empty, longer than its limit, or holds a NUL character.
    pub fn new(operation: &str, scope: &(impl Scope + ?Sized), key: &str) -> Result<Self, Error> {
        let scope = scope.scope();
        check(operation, "operation", operation, Self::MAX_OPERATION_BYTES)?;
        check(operation, "scope", &scope, Self::MAX_SCOPE_BYTES)?;
        check(operation, "key", key, Self::MAX_KEY_BYTES)?;
        let hash = HASHER.hash_one((operation, &*scope, key));
        Ok(Self(Arc::new(Parts { operation: operation.into(), scope: scope.into(), key: key.into(), hash })))
    }

    /// The stable name of the effect, for example `invoice.approve`.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// Whose key it is.
    pub fn scope(&self) -> &str {
        &self.0.scope
    }

    /// The key within the scope.
    pub fn key(&self) -> &str {
        &self.0.key
    }
}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

/// Scope and key are quoted and escaped: they may hold anything, also a line break that would forge a log entry.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.0.operation, self.0.scope, self.0.key)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("operation", &self.operation())
            .field("scope", &self.scope())
            .field("key", &self.key())
            .finish()
    }
}

fn check(operation: &str, part: &'static str, text: &str, limit: usize) -> Result<(), Error> {
    let reason = if text.is_empty() {
        "it is empty".to_owned()
    } else if text.len() > limit {
        format!("it has {} bytes, and {limit} is the limit", text.len())
    } else if text.contains('\0') {
        "it holds a NUL character".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::InvalidIdentity { operation: operation.into(), part, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verified;

    fn with_key(key: &str) -> Result<Identity, Error> {
        Identity::new("op", &Verified::vouch("s"), key)
    }

    #[test]
    fn limits_are_in_bytes_and_inclusive() {
        assert!(with_key(&"k".repeat(1024)).is_ok());
        assert!(with_key(&"k".repeat(1025)).is_err());
        assert!(with_key(&"é".repeat(512)).is_ok());
        assert!(with_key(&"é".repeat(513)).is_err());
        assert!(Identity::new(&"o".repeat(128), &Verified::vouch("s".repeat(256)), "k").is_ok());
        assert!(Identity::new(&"o".repeat(129), &Verified::vouch("s"), "k").is_err());
        assert!(Identity::new("o", &Verified::vouch("s".repeat(257)), "k").is_err());
    }

    #[test]
    fn nul_and_empty_are_refused_and_case_and_spaces_are_kept_apart() {
        for bad in ["", "\0", "a\0b"] {
            let error = with_key(bad).expect_err("must be refused");
            assert!(matches!(error, Error::InvalidIdentity { part: "key", .. }));
        }
        let keys = ["ABC", "abc", " abc"].map(|k| with_key(k).expect("valid"));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }
}
