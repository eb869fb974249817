//! What a body can do to a run on SQLite.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_testkit::cancel::drop_at_poll;
use sqlx::Connection as _;

use super::db::{Db, Tx};
use super::race::effect;
use crate::handler::Fail;

pub async fn misbehave(tx: &mut Tx, how: u64) -> Result<(), Fail> {
    const SHORT: Duration = Duration::from_micros(50);
    // A statement that must come to nothing, since the transaction is over.
    const STRAY: &str = "INSERT INTO effect (key) VALUES ('stray')";
    match how {
        1 => drop(tx.begin().await?),
        2 => {
            let mut savepoint = tx.begin().await?;
            effect(&mut savepoint, "undone").await?;
            savepoint.rollback().await?;
        }
        3 => drop(tokio::time::timeout(SHORT, tx.begin()).await),
        4 => {
            let asked = sqlx::query("INSERT INTO effect (key) SELECT 'late' WHERE 0").execute(&mut **tx);
            drop(tokio::time::timeout(SHORT, asked).await);
        }
        5 => {
            drop(sqlx::query("INSERT OR ROLLBACK INTO named VALUES ('n'), ('n')").execute(&mut **tx).await);
            drop(sqlx::query(STRAY).execute(&mut **tx).await);
        }
        6 => {
            drop(sqlx::raw_sql("COMMIT; INSERT INTO effect (key) VALUES ('stray')").execute(&mut **tx).await)
        }
        8 => {
            let connection = &mut **tx;
            drop(drop_at_poll(1, connection.begin()).await);
            drop(sqlx::query(STRAY).execute(connection).await);
            return Err(Fail::Told);
        }
        _ => {}
    }
    Ok(())
}

/// SQLite has no sessions that another one could end.
pub async fn end_sessions(_: Arc<Db>, _: Instant) {}
