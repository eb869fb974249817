//! The command line. What is wrong with it is said by clap, with exit code 2, before anything is touched.

use std::path::PathBuf;

use clap::Parser;

/// Books an at-least-once stream of CloudEvents, each event once.
///
/// Kill it whenever you like, and run it again on the same database: the ledger and the balances come out the same.
#[derive(Debug, Parser)]
#[command(
    name = "quickstart",
    after_help = "Exit code: 0 if the stream was read to its end, also if some of its lines were no valid events; \
                  1 if it was not; 2 for a wrong command line."
)]
pub(crate) struct Args {
    /// The stream, one JSON document a line; `-` is standard input [default: 5,171 deliveries that come with it]
    pub(crate) file: Option<PathBuf>,

    /// An SQLite file, made where there is none, or the URL of a Postgres database (with the feature `postgres`)
    /// [default: a new file in the folder for temporary files]
    #[arg(long, value_name = "PATH|URL", value_parser = Target::parse)]
    pub(crate) database: Option<Target>,

    /// How many events are handled at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,

    /// Print the figures as JSON, and nothing else, on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the ledger and the store's own tables are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Sqlite(PathBuf),
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl Target {
    fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Self::postgres(text);
        }
        let path = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:")).unwrap_or(text);
        if path.is_empty() {
            return Err("name a file".to_owned());
        }
        if let Some((scheme, _)) = path.split_once("://") {
            return Err(format!("`{scheme}` is no database of this program: give a file, or postgres://.."));
        }
        Ok(Self::Sqlite(path.into()))
    }

    #[cfg(feature = "postgres")]
    fn postgres(url: &str) -> Result<Self, String> {
        Ok(Self::Postgres(url.to_owned()))
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres(_: &str) -> Result<Self, String> {
        Err("this program was built without Postgres; \
             build it with: cargo run -p quickstart --features postgres -- --database postgres://.."
            .to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn a_database_is_a_file_or_a_url_that_is_known() {
        for text in ["a.sqlite3", "sqlite:a.sqlite3", "sqlite://a.sqlite3"] {
            assert_eq!(Target::parse(text), Ok(Target::Sqlite("a.sqlite3".into())));
        }
        for text in ["", "sqlite:", "mysql://localhost/app"] {
            assert!(Target::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Target::parse("postgres://localhost/app").is_ok(), cfg!(feature = "postgres"));
    }
}
