//! Every signature that `#[idempotent]` supports, and every type that `#[derive(Effect)]` does. That it compiles without a warning, and that every future is
//! `Send`, is one half of the test; what the handlers do is the other, in `tests`.
#![deny(warnings, clippy::pedantic)]
#![allow(missing_docs, clippy::missing_errors_doc)]

pub mod attributes;
pub mod effects;
pub mod free;
pub mod methods;
pub mod options;
pub mod results;

pub use idem_runtime as runtime;

/// Compiles for futures that are `Send`.
pub fn is_send<F: Future + Send>(future: F) -> F {
    future
}
