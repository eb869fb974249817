//! Storing the outcome and committing. The statement that stores it must find the record of this very run, written in
//! this very transaction: that exposes a transaction that the server has aborted (sqlx reports the `COMMIT` of one as
//! success) and one that the body ended. A `COMMIT` without an answer is settled by the record itself.

use std::time::Duration;

use sqlx::postgres::PgSeverity;
use sqlx::{Connection as _, Database, Postgres};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{PgHandle, code, server_error};
use super::record::{self, JsonText};
use super::{PgStore, store_error};
use crate::tx::Open;
use crate::{BoxError, Claim, Error, Identity};

type Manager = <Postgres as Database>::TransactionManager;

/// How long to wait before a server that refused a connection is asked again.
const RECONNECT: Duration = Duration::from_millis(50);

/// Where the claim wrote the record, so that the index is not asked again; a row version that another transaction has
/// put there has another token. Without the condition on `xmin`, a raw `COMMIT` in the body would not be noticed.
const OUTCOME: &str = "UPDATE idem.inbox SET outcome = $3, processed_at = clock_timestamp()
    WHERE ctid = $1 AND claim_token = $2 AND xmin = pg_current_xact_id()::xid";

/// Where it is not there any more: the run itself may have updated it, by a trigger for example. And where statements have
/// no name: sqlx looks the type `tid` up with another one, which takes an unnamed one away.
const OUTCOME_MOVED: &str = "UPDATE idem.inbox SET outcome = $5, processed_at = clock_timestamp()
    WHERE operation = $1 AND scope = $2 AND key = $3 AND claim_token = $4 AND xmin = pg_current_xact_id()::xid";

impl PgStore {
    pub(super) async fn finish(self, mut open: Open<Postgres>, outcome: String) -> Result<(), Error> {
        if let Err(error) = self.core.may_complete(&open, &outcome) {
            return roll_back(open, error).await;
        }
        let ended = |source: Option<sqlx::Error>, identity: &Identity| Error::TransactionEnded {
            identity: identity.clone(),
            source: source.map(BoxError::from),
        };
        let mut committing = false;
        let error = match self.in_time(write_and_commit(&mut open, outcome, &mut committing)).await {
            Ok(true) => {
                self.core.completed(&open.identity, &open.staging);
                open.handle.give_back();
                return Ok(());
            }
            Ok(false) => {
                let error = ended(None, &open.identity);
                return roll_back(open, error).await;
            }
            // `COMMIT` was not sent, so nothing is in doubt.
            Err(error) if !committing => {
                let error = match code(&error) {
                    "25P02" => ended(Some(error), &open.identity),
                    _ => store_error(Some(&open.identity), error),
                };
                return roll_back(open, error).await;
            }
            Err(error) => error,
        };
        match server_error(&error).map(|e| e.severity()) {
            // A session that is ended while it commits may have committed.
            None | Some(PgSeverity::Fatal | PgSeverity::Panic) => {
                // The broken connection goes first: the pool may hold only one.
                let Open { handle, identity, token, seat, .. } = open;
                drop(handle);
                let settled = Box::pin(self.settle(&identity, token, error)).await;
                drop(seat);
                settled
            }
            // An answer, and so decided.
            Some(_) => {
                let error = store_error(Some(&open.identity), error);
                roll_back(open, error).await
            }
        }
    }

    async fn in_time<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        tokio::time::timeout(self.settle_timeout, statement)
            .await
            .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
    }

    /// Finds out whether the run `token` committed: claims its identity anew, which blocks until the transaction in
    /// doubt is decided. (Not by `pg_xact_status`: after a crash a transaction id is used again.)
    async fn settle(&self, identity: &Identity, token: Uuid, lost: sqlx::Error) -> Result<(), Error> {
        let deadline = Instant::now() + self.settle_timeout;
        loop {
            let looked = tokio::time::timeout_at(deadline, self.look(identity, token, deadline)).await;
            match looked {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => return Err(Error::store(Some(identity), true, lost)),
                Ok(Err(error)) if Instant::now() < deadline => {
                    tracing::debug!(%identity, %error, "the record could not be read yet");
                    tokio::time::sleep_until((Instant::now() + RECONNECT).min(deadline)).await;
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(%identity, "the answer to COMMIT was lost, and the record could not be read");
                    let source = Some(BoxError::from(lost));
                    return Err(Error::Unconfirmed { identity: identity.clone(), source });
                }
            }
        }
    }

    /// Whether the run committed.
    async fn look(&self, identity: &Identity, token: Uuid, deadline: Instant) -> Result<bool, Error> {
        let mut handle = self.acquire(identity, deadline).await?;
        self.begin(&mut handle, identity).await?;
        let committed = self.ask(&mut handle, identity, token, deadline).await;
        let committed = committed.map_err(|e| store_error(Some(identity), e))?;
        handle.give_back();
        Ok(committed)
    }

    async fn ask(
        &self,
        handle: &mut PgHandle,
        identity: &Identity,
        token: Uuid,
        deadline: Instant,
    ) -> Result<bool, sqlx::Error> {
        loop {
            let claim = Claim::new(identity.clone());
            let left = deadline.saturating_duration_since(Instant::now());
            if self.write(handle, &claim, Uuid::new_v4(), None, left).await?.is_some() {
                return Ok(false);
            }
            // Else it was swept between the two statements.
            if let Some(stored) = record::read(handle, identity).await? {
                return Ok(stored.token == token);
            }
        }
    }
}

/// Whether there was a record of this run, and `COMMIT` succeeded; `committing` tells that it was sent.
async fn write_and_commit(
    open: &mut Open<Postgres>,
    outcome: String,
    committing: &mut bool,
) -> Result<bool, sqlx::Error> {
    let handle = &mut open.handle;
    let outcome = JsonText(outcome);
    let mut written = 0;
    if handle.persistent {
        let in_place = sqlx::query(OUTCOME).bind(handle.row).bind(open.token).bind(&outcome);
        written = in_place.execute(&mut **handle).await?.rows_affected();
    }
    if written == 0 {
        let moved = sqlx::query(OUTCOME_MOVED)
            .bind(open.identity.operation())
            .bind(open.identity.scope())
            .bind(open.identity.key())
            .bind(open.token)
            .bind(&outcome);
        written = moved.persistent(handle.persistent).execute(&mut **handle).await?.rows_affected();
    }
    if written != 1 {
        return Ok(false);
    }
    *committing = true;
    // Savepoints that the body left open are part of its run.
    while handle.is_in_transaction() {
        Manager::commit(handle).await?;
    }
    Ok(true)
}

/// Rolls back, and answers `error` whatever comes of it.
async fn roll_back(open: Open<Postgres>, error: Error) -> Result<(), Error> {
    let identity = open.identity.clone();
    if let Err(rollback) = open.roll_back().await {
        tracing::debug!(%identity, %rollback, "the connection was closed instead of rolled back");
    }
    Err(error)
}
