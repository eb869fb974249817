//! The handler's own tables, and what they hold at the end. No key in the ledger forbids a second row for an event: if
//! a body ever ran twice, the figures would show it.

use super::{Connection, Pool};
use crate::report::Figures;

/// The same text for both databases. The CHECK is for SQLite, where a sum beyond 64 bits would become a float;
/// Postgres refuses it by itself.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ledger (
        source text NOT NULL,
        event_id text NOT NULL,
        invoice text NOT NULL,
        amount_minor bigint NOT NULL,
        currency text NOT NULL,
        destination text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS account (
        source text NOT NULL,
        currency text NOT NULL,
        balance bigint NOT NULL CHECK (balance BETWEEN -9223372036854775807 AND 9223372036854775807),
        PRIMARY KEY (source, currency)
    )";

/// Creates the tables where there are none, on a connection of its own: the store's are for the handlers.
pub(crate) async fn create_tables(conn: &mut Connection) -> sqlx::Result<()> {
    sqlx::raw_sql(TABLES).execute(conn).await?;
    Ok(())
}

/// Counts what is there.
pub(crate) async fn figures(pool: &Pool) -> sqlx::Result<Figures> {
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(pool).await?;
    let balances: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT source, currency, balance FROM account").fetch_all(pool).await?;
    let balances = balances
        .into_iter()
        .map(|(source, currency, balance)| (format!("{source} {currency}"), balance))
        .collect();
    Ok(Figures { ledger_rows: rows, balances })
}
