//! What the library costs: the macro against the same body in a bare transaction, and against the same pattern
//! written by hand, in one run and in turns. Absolute times are nobody's promise; only ratios of neighbouring blocks
//! are reported, and round trips, which are exact.
//!
//! `cargo xtask bench` runs it. Read [`variants`] first: what is compared stands there side by side.

pub mod measure;
pub mod request;
pub mod round_trips;
pub mod schedule;
pub mod table;
pub mod variants;
pub mod work;
