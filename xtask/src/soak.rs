//! `cargo xtask soak`: the test of that name at full size. It starts its own server.

use std::process::Command;

use crate::{Result, install, say};

pub(crate) fn run() -> Result {
    install::postgres()?;
    say("building the soak, then some minutes of kills and restarts");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["test", "--package", "idem-tests", "--test", "hazards", "postgres::soak::soak"])
        .args(["--", "--exact", "--nocapture"])
        .env("SOAK", "full")
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the soak failed ({status}); SOAK_SEED=<its seed> repeats it").into())
}
