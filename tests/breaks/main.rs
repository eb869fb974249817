//! Attacks on the promises: each test is the smallest reproduction of something that did not hold.

#![allow(unreachable_pub, dead_code, reason = "a test binary has no outside")]

#[path = "../hazards/handler.rs"]
mod handler;

#[path = "../hazards/db/sqlite.rs"]
mod lite;
#[path = "../hazards/db/postgres.rs"]
mod pg;

mod postgres;
mod sqlite;
