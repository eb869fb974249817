//! Whose key it is. A scope comes only from values that exist after authorization, so that a tenant name taken
//! straight from a request can never open another tenant's records.

use std::borrow::Cow;
use std::fmt;

/// A value that names whose key an operation key is: a tenant, an account, an authenticated sender.
///
/// It is deliberately not implemented for `String`, `&str`, numbers or `Uuid`: those may come from the request as
/// it was sent. Implement it by `#[derive(Scope)]` on the newtype that your authentication layer builds, or check a
/// value with [`Verified::check`].
///
/// At most 256 bytes, not empty, no NUL; compared as bytes.
///
/// ```
/// use idem_runtime::Scope;
///
/// /// Built by the authentication layer only.
/// struct TenantId(String);
///
/// impl Scope for TenantId {
///     fn scope(&self) -> std::borrow::Cow<'_, str> {
///         self.0.as_str().into()
///     }
/// }
/// assert_eq!(TenantId("acme".into()).scope(), "acme");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an authorized scope",
    label = "this value may come from the request as it was sent",
    note = "a scope must exist only after authorization: `#[derive(Scope)]` on the newtype that your authentication builds,",
    note = "or check the value: `Verified::check(value, |v| caller.may_use(v))?`; `Verified::vouch(value)` where the code itself is the authority"
)]
pub trait Scope {
    /// The text of the scope.
    fn scope(&self) -> Cow<'_, str>;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<T: Scope + ?Sized> Scope for $pointer {
            fn scope(&self) -> Cow<'_, str> {
                (**self).scope()
            }
        }
    )*};
}
forward!(&T, std::sync::Arc<T>, Box<T>);

/// A value that has been checked against what the caller may use.
///
/// ```
/// use idem_runtime::{Scope, Verified};
///
/// struct Caller { accounts: Vec<String> }
///
/// let caller = Caller { accounts: vec!["acct_1".into()] };
/// let account = Verified::check("acct_1".to_owned(), |a| caller.accounts.contains(a))?;
/// assert_eq!(account.scope(), "acct_1");
/// assert!(Verified::check("acct_2".to_owned(), |a| caller.accounts.contains(a)).is_err());
/// # Ok::<(), idem_runtime::NotAuthorized>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// Lets `value` through if `allowed` says that the caller may use it.
    ///
    /// # Errors
    /// [`NotAuthorized`] if `allowed` answers `false`; nothing else is known about the value then.
    pub fn check(value: T, allowed: impl FnOnce(&T) -> bool) -> Result<Self, NotAuthorized> {
        if allowed(&value) { Ok(Self(value)) } else { Err(NotAuthorized) }
    }

    /// Takes `value` as authorized because the code that calls this is itself the authority (a constant, a row of
    /// your own database, a configured endpoint). Never for a value from a request.
    pub fn vouch(value: T) -> Self {
        Self(value)
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The value, by itself.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T: fmt::Display> Scope for Verified<T> {
    fn scope(&self) -> Cow<'_, str> {
        Cow::Owned(self.0.to_string())
    }
}

/// The caller may not use the scope that was asked for. In HTTP: 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller is not authorized for this scope")]
pub struct NotAuthorized;
