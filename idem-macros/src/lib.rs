//! The `#[idempotent]` attribute and `#[derive(Scope)]` of `idem-runtime`, which re-exports both.
