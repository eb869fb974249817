//! What is staged, and the key under which a provider knows it.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Something to be done outside of the database, after the commit: a mail, a payment order, a call of another service.
///
/// Its name is stored, and so are its bytes: an effect that was staged by an older version of the program is sent as it
/// was staged, and must still decode. Give a new field a default.
///
/// ```
/// use idem_runtime::Effect;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Effect)]
/// #[effect(name = "receipt.email", order = "{self.invoice}")]
/// struct EmailReceipt { invoice: i64, to: String }
///
/// let receipt = EmailReceipt { invoice: 7, to: "a@example.com".to_owned() };
/// assert_eq!(EmailReceipt::NAME, "receipt.email");
/// assert_eq!(receipt.order_key().as_deref(), Some("7"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an effect",
    label = "an effect has a stored name, and is `Serialize` and `DeserializeOwned`",
    note = "for a type of your own: `#[derive(serde::Serialize, serde::Deserialize, idem_runtime::Effect)]` and `#[effect(name = \"receipt.email\")]`"
)]
pub trait Effect: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stable name: what the worker finds its provider by. At most 128 bytes.
    const NAME: &'static str;

    /// Effects of one name, scope and order key are delivered in the order in which their handlers committed, one after
    /// the other. `None` (the default): in any order. At most 1,024 bytes.
    ///
    /// Staging one serializes the handlers of that order key until they commit.
    fn order_key(&self) -> Option<String> {
        None
    }
}

/// The key under which a provider can tell that two calls are one: 43 characters of `A-Z a-z 0-9 - _`.
///
/// It is derived from the identity of the run, its generation, the effect's name and how many of that name were staged
/// before it, so it is the same when the run is repeated after a crash, and another one for every other effect.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectKey(pub(crate) String);

impl EffectKey {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EffectKey({})", self.0)
    }
}

impl AsRef<str> for EffectKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<EffectKey> for String {
    fn from(key: EffectKey) -> Self {
        key.0
    }
}
