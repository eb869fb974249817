//! What can go wrong while a test's surroundings are set up. None of it is about the code under
//! test, so every message says what to do on this machine.

use std::path::PathBuf;

/// Why the surroundings of a test could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Postgres server programs on this machine.
    #[error(
        "no Postgres server programs found (looked at IDEM_PG_BIN, PATH and the usual folders): \
         run `cargo xtask test`, which installs them, or set DATABASE_URL to a server that tests may use"
    )]
    NoPrograms,

    /// `IDEM_PG_BIN` is set, but the server programs are not there.
    #[error("IDEM_PG_BIN is {}, but `postgres` and `initdb` are not there", .0.display())]
    WrongPrograms(PathBuf),

    /// Postgres refuses to run as root, and there is no system user to run it as.
    #[error("Postgres does not run as root, and there is no system user `postgres` to run it as")]
    NoAccount,

    /// No temporary folder that the system user `postgres` can reach.
    #[error("the system user `postgres` cannot reach the temporary folder {}: set TMPDIR", .0.display())]
    Unreachable(PathBuf),

    /// A server program ended with an error.
    #[error("{program} failed: {output}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// What it wrote.
        output: String,
    },

    /// The server did not come up in time; with the end of its log.
    #[error("Postgres did not start: {reason}; its log ends with:\n{log}")]
    NotStarted {
        /// What was seen.
        reason: String,
        /// The last lines of its log.
        log: String,
    },

    /// A URL that names no server that could be reached by TCP.
    #[error("not the URL of a database with a host: {0}")]
    Url(String),

    /// The database answered with an error.
    #[cfg(feature = "full")]
    #[error("the test database: {0}")]
    Database(#[from] sqlx::Error),

    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { what, source }
    }
}
