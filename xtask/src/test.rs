//! `cargo xtask test`: one private server for all tests, then tests and doctests, all features on.

use std::process::Command;

use idem_testkit::postgres::Postgres;

use crate::install::{self, works};
use crate::{Result, say};

/// With the features that `.ci/run` gives to clippy, so that dependencies are not built twice.
const SCOPE: [&str; 2] = ["--workspace", "--all-features"];

pub(crate) fn run(arguments: &[&str]) -> Result {
    install::postgres()?;
    // Held to the end: dropping it stops the server.
    let (_server, url) = match std::env::var("DATABASE_URL") {
        Ok(url) => {
            say("using the server that DATABASE_URL names");
            (None, url)
        }
        Err(_) => {
            let server = Postgres::builder().fsync(false).start()?;
            let url = server.url("postgres");
            say(&format!("a private Postgres listens on {}", server.address()));
            (Some(server), url)
        }
    };
    let tests: &[&str] = if works(&cargo(), &["nextest", "--version"]) {
        &["nextest", "run"]
    } else {
        say("cargo-nextest is not installed: running the tests with `cargo test`");
        // The targets that nextest takes too: neither doctests nor benchmarks.
        &["test", "--lib", "--bins", "--tests", "--examples"]
    };
    cargo_with(&url, tests, arguments)?;
    // A filter is for tests: whoever gives one does not wait for the doctests.
    if arguments.is_empty() {
        cargo_with(&url, &["test", "--doc"], &[])?;
        with_features_of_serde_json()?;
    }
    Ok(())
}

/// A package of its own, since its features would otherwise be those of all tests.
fn with_features_of_serde_json() -> Result {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/json-features/Cargo.toml");
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| target.into());
    let mut command = Command::new(cargo());
    command.args(["test", "--locked", "--manifest-path", manifest, "--target-dir"]).arg(target);
    succeed(command, "test --manifest-path tests/json-features/Cargo.toml")
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn cargo_with(url: &str, command: &[&str], arguments: &[&str]) -> Result {
    let mut cargo = Command::new(cargo());
    cargo.args(command).args(SCOPE).args(arguments).env("DATABASE_URL", url);
    succeed(cargo, &command.join(" "))
}

fn succeed(mut command: Command, name: &str) -> Result {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("`cargo {name}` failed ({status})").into())
}
