//! Which database, at run time. This is all that the choice costs: the handler and the stream are written once.

use std::path::Path;

use anyhow::Context as _;
use idem_runtime::{Outcome, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::args::Target;
use crate::booking::{Booked, BookingError};
use crate::event::Delivery;
use crate::report::Figures;
use crate::sqlite;

/// A store whose tables and the handler's are there. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(idem_runtime::PgStore),
}

impl Database {
    /// Opens the database that was asked for, or makes a new one and says where.
    pub(crate) async fn open(target: Option<&Target>) -> anyhow::Result<Self> {
        match target {
            None => {
                let (_, path) = tempfile::Builder::new()
                    .prefix("quickstart-")
                    .suffix(".sqlite3")
                    .tempfile()
                    .and_then(|file| Ok(file.keep()?))
                    .context("making a new database")?;
                eprintln!("database: {}", path.display());
                Self::sqlite(&path).await
            }
            Some(Target::Sqlite(path)) => Self::sqlite(path).await,
            #[cfg(feature = "postgres")]
            Some(Target::Postgres(url)) => Self::postgres(url).await,
        }
    }

    async fn sqlite(path: &Path) -> anyhow::Result<Self> {
        let opening = || format!("opening the database {}", path.display());
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let store = SqliteStore::connect(options.clone()).await.with_context(opening)?;
        store.migrate().await.with_context(opening)?;
        let mut conn = options.connect().await.with_context(opening)?;
        sqlite::ledger::create_tables(&mut conn).await.context("creating the ledger's tables")?;
        conn.close().await?;
        Ok(Self::Sqlite(store))
    }

    #[cfg(feature = "postgres")]
    async fn postgres(url: &str) -> anyhow::Result<Self> {
        use crate::postgres::ledger;

        let store = idem_runtime::PgStore::connect(url).await.context("opening the database")?;
        store.migrate().await.context("preparing the database")?;
        let mut conn = sqlx::PgConnection::connect(url).await.context("opening the database")?;
        // `IF NOT EXISTS` alone fails where two processes create one table at the same moment.
        let mut lock = conn.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtext('quickstart'))").execute(&mut *lock).await?;
        ledger::create_tables(&mut lock).await.context("creating the ledger's tables")?;
        lock.commit().await?;
        conn.close().await?;
        Ok(Self::Postgres(store))
    }

    /// Calls the handler: where its body has the transaction, the caller gives the store.
    pub(crate) async fn invoice_paid(&self, delivery: &Delivery) -> Result<Outcome<Booked>, BookingError> {
        let Delivery { source, event } = delivery;
        match self {
            Self::Sqlite(store) => sqlite::handler::invoice_paid(store, source, event).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => crate::postgres::handler::invoice_paid(store, source, event).await,
        }
    }

    /// What the ledger and the accounts hold now.
    pub(crate) async fn figures(&self) -> anyhow::Result<Figures> {
        match self {
            Self::Sqlite(store) => sqlite::ledger::figures(store.readers()).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => crate::postgres::ledger::figures(store.pool()).await,
        }
        .context("reading the ledger")
    }
}
