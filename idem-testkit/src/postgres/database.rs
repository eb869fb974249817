//! A fresh database for one test, in the server that the tests of a process share. The invariant: two
//! tests never see each other's rows, and the server keeps no database of a test that has ended.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use url::Url;

use super::Postgres;
use crate::Error;

/// How long dropping a database may take at most: a test that has ended should not hang on it.
const DROP: Duration = Duration::from_secs(20);

/// The URL of the server that all tests of this process share: what `DATABASE_URL` names, else a
/// private one (without `fsync`) that ends with the process.
///
/// # Errors
/// If there is no `DATABASE_URL` and no server can be started.
pub fn shared() -> Result<&'static str, &'static Error> {
    static SHARED: OnceLock<Result<(String, Option<Postgres>), Error>> = OnceLock::new();
    SHARED
        .get_or_init(|| match std::env::var("DATABASE_URL") {
            Ok(url) => Ok((url, None)),
            Err(_) => {
                let server = Postgres::builder().fsync(false).start()?;
                Ok((server.url("postgres"), Some(server)))
            }
        })
        .as_ref()
        .map(|(url, _)| url.as_str())
}

/// A database that only one test uses. Dropped, it is removed, with whatever is still connected.
#[derive(Debug)]
pub struct TestDatabase {
    server: String,
    name: String,
    url: String,
}

impl TestDatabase {
    /// A new, empty database in the [`shared`] server.
    ///
    /// # Panics
    /// If there is no server: a test cannot go on, and the message says what to do.
    #[expect(clippy::panic, reason = "the test's own failure, with the message that helps")]
    pub async fn create() -> Self {
        // Starting the server blocks, and a process does it once.
        let server = match tokio::task::spawn_blocking(shared).await {
            Ok(Ok(server)) => server,
            Ok(Err(error)) => panic!("{error}"),
            Err(error) => panic!("{error}"),
        };
        match Self::create_in(server).await {
            Ok(database) => database,
            Err(error) => panic!("cannot make a database in {}: {error}", without_password(server)),
        }
    }

    /// A new, empty database in the server of this URL, by that URL's role.
    ///
    /// # Errors
    /// If the server cannot be reached, or the role may not create databases.
    pub async fn create_in(server: &str) -> Result<Self, Error> {
        let name = fresh_name();
        let url = create(server, &name).await?;
        Ok(Self { server: server.to_owned(), name, url })
    }

    /// The database's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the server's own database, for a session that is not in this one.
    pub fn server_url(&self) -> &str {
        &self.server
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let server = std::mem::take(&mut self.server);
        let statement = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        // On a thread of its own: here may be a runtime that must not be blocked on, or none.
        // Best effort: the server may have been stopped by the test.
        _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async { tokio::time::timeout(DROP, execute(&server, statement)).await.ok() })
        })
        .join();
    }
}

impl Postgres {
    /// Makes an empty database of this name; returns its URL.
    ///
    /// # Errors
    /// If there is one of this name, or the server does not run.
    pub async fn create_database(&self, name: &str) -> Result<String, Error> {
        create(&self.url("postgres"), name).await
    }
}

async fn create(server: &str, name: &str) -> Result<String, Error> {
    let mut url = Url::parse(server).map_err(|_| Error::Url(without_password(server)))?;
    // template0, since a copy fails while anybody is connected to what it copies.
    execute(server, format!("CREATE DATABASE \"{}\" TEMPLATE template0", name.replace('"', "\"\""))).await?;
    url.set_path(name);
    Ok(url.into())
}

async fn execute(url: &str, statement: String) -> Result<(), Error> {
    let url = Url::parse(url).map_err(|_| Error::Url(without_password(url)))?;
    let options = sqlx::postgres::PgConnectOptions::from_url(&url)?;
    let mut connection = PgConnection::connect_with(&options).await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

/// Unlike any other, also of another process or machine that uses the same server.
fn fresh_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(
        "idem_test_{:x}_{:x}_{}",
        time.as_nanos(),
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed)
    )
}

fn without_password(url: &str) -> String {
    match Url::parse(url) {
        Ok(mut url) => {
            _ = url.set_password(None);
            url.into()
        }
        Err(_) => "DATABASE_URL (it does not parse)".to_owned(),
    }
}
