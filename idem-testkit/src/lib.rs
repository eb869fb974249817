//! What tests of idempotent code need and cannot get from a mock: a real [`postgres`] server of
//! their own, a [`proxy`] that cuts, delays and counts on the wire, an HTTP [`provider`] that counts what it
//! did and fails as it is told, a canceller that drops a future at [every poll](cancel), and
//! [processes](process) that die by `kill -9`.
//!
//! The invariant of the whole crate: a test touches only what it started itself. The one exception
//! is stated by the user: if `DATABASE_URL` is set, databases are created in (and dropped from) the
//! server that it names.

#[cfg(feature = "full")]
pub mod cancel;
mod error;
pub mod postgres;
#[cfg(feature = "full")]
pub mod process;
#[cfg(feature = "provider")]
pub mod provider;
#[cfg(feature = "full")]
pub mod proxy;
#[cfg(feature = "provider")]
mod random;
pub mod wait;

pub use error::Error;
