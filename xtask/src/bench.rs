//! `cargo xtask bench`: builds the benchmark with the bench profile and runs it. It starts its own servers.

use std::process::Command;

use crate::{Result, install, say};

pub(crate) fn run(arguments: &[&str]) -> Result {
    let server = !arguments.contains(&"sqlite") && !arguments.contains(&"--help");
    if server {
        install::postgres()?;
    }
    say("building the benchmark");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--profile", "bench", "--package", "idem-benches", "--"])
        .args(arguments)
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the benchmark failed ({status})").into())
}
