//! `cargo xtask`: what a contributor runs. `test` sets up what the tests need and runs all of them; it
//! touches no server but its own, unless `DATABASE_URL` names one. `bench` measures, `soak` looks
//! for what only shows after long.

mod bench;
mod install;
mod soak;
mod test;

use std::process::ExitCode;

/// An error is a message: nobody handles it, a person reads it.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const HELP: &str = "\
Usage: cargo xtask <command>

Commands:
  test [-- <args>]   Run all tests, with a private Postgres server. Installs Postgres from the system's
                     packages where it is missing. The arguments go to `cargo nextest run`, or to
                     `cargo test` where nextest is not installed.
  postgres           Start a private Postgres and print its URL, for a program of yours. Its data goes when it
                     ends (Ctrl-C).
  bench [options]    Compare the macro with a bare transaction and with hand-written code, on SQLite and on a
                     private Postgres: about a quarter of an hour. `bench --help` says which options.
  soak               Stage 20,000 handlers' effects while workers are killed, the database is restarted and the
                     provider fails, on a private Postgres: some minutes. Prints its seed and the figures.

Environment:
  DATABASE_URL   a Postgres server in which the tests may create databases: used in place of a private one
  SOAK_SEED      the seed that a run of `soak` printed: the same kills, restarts and failures
  IDEM_PG_BIN    the folder with the server programs, where they are in no usual place
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bench", ref rest @ ..] => bench::run(rest),
        ["help" | "--help" | "-h"] | [_, "--help" | "-h"] => {
            print(HELP);
            Ok(())
        }
        ["postgres"] => postgres(),
        ["soak"] => soak::run(),
        ["test"] => test::run(&[]),
        ["test", "--", ref rest @ ..] => test::run(rest),
        ["test", other, ..] => {
            Err(format!("unknown argument {other:?}: put what is for the tests after `--`").into())
        }
        [] => Err(format!("which command?\n\n{HELP}").into()),
        [other, ..] => Err(format!("unknown command {other:?}\n\n{HELP}").into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Until this process ends, and with it the server.
fn postgres() -> Result {
    install::postgres()?;
    let server = idem_testkit::postgres::Postgres::start()?;
    print(&format!("{}\n", server.url("postgres")));
    loop {
        std::thread::park();
    }
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn print(text: &str) {
    print!("{text}");
}

/// Says on standard error what is going on.
fn say(text: &str) {
    eprintln!("xtask: {text}");
}
