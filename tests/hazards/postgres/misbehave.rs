//! What a body and an operator can do to a run on Postgres.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::db::{Db, Tx};
use super::race::effect;
use crate::handler::Fail;

pub async fn misbehave(tx: &mut Tx, how: u64) -> Result<(), Fail> {
    const SHORT: Duration = Duration::from_micros(300);
    match how {
        1 => drop(tx.begin().await?),
        2 => {
            let mut savepoint = tx.begin().await?;
            effect(&mut savepoint, "undone").await?;
            savepoint.rollback().await?;
        }
        3 => drop(tokio::time::timeout(SHORT, tx.begin()).await),
        4 => {
            let asked = sqlx::query("SELECT pg_sleep(0.002)").execute(&mut **tx);
            drop(tokio::time::timeout(SHORT, asked).await);
        }
        5 => tokio::task::block_in_place(|| std::thread::sleep(SHORT)),
        6 => drop(sqlx::query("SELECT 1 / 0").execute(&mut **tx).await),
        _ => {}
    }
    Ok(())
}

/// Terminates a session about every 60 ms.
pub async fn end_sessions(db: Arc<Db>, until: Instant) {
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let any = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";
        // It may be one of this pool.
        let _ = sqlx::raw_sql(any).execute(&db.pool).await;
    }
}
