//! Two handlers that one `macro_rules!` call makes, with one operation. Before any store can be used, this is found:
//! so it is a program of its own.

#![allow(unreachable_pub, dead_code, reason = "a test binary has no outside")]

#[path = "../hazards/handler.rs"]
mod handler;
#[path = "../hazards/db/sqlite.rs"]
mod lite;

use idem_runtime::{SqliteTx, idempotent};

use crate::handler::Fail;
use crate::lite::Db;

macro_rules! handlers {
    ($($name:ident => $text:literal),* $(,)?) => {$(
        #[idempotent(operation = "same.line", key = key, scope = constant("s"), fingerprint(none))]
        async fn $name(tx: &mut SqliteTx, key: &str) -> Result<String, Fail> {
            sqlx::query("INSERT INTO effect (key) VALUES ($1)").bind($text).execute(&mut **tx).await?;
            Ok($text.to_owned())
        }
    )*};
}
handlers!(credit => "credit", debit => "debit");

/// Two handlers of one `macro_rules!` call stand at one line.
#[tokio::test]
async fn two_handlers_of_one_macro_call_with_one_operation_are_refused() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let a = credit(&store, "k").await;
    let b = debit(&store, "k").await;
    assert!(a.is_err() && b.is_err(), "debit answers {b:?}");
}
