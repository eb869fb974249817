//! Storing the outcome and committing. The statement that stores it must find the record of this very run, which a
//! transaction that has ended does not hold any more. A commit that failed half-way is settled by the record itself,
//! read on another connection.

use sqlx::Sqlite;

use super::connection::{COMMIT_REFUSED, CONSTRAINT, code, primary_code};
use super::record::now;
use super::{SqliteStore, store_error};
use crate::tx::{Open, sealed::Sealed};
use crate::{BoxError, Error};

impl SqliteStore {
    pub(super) async fn finish(self, mut open: Open<Sqlite>, outcome: String) -> Result<(), Error> {
        if let Err(error) = self.core.may_complete(&open, &outcome) {
            return roll_back(open, error).await;
        }
        match write_outcome(&mut open, &outcome).await {
            Ok(true) => {}
            Ok(false) => {
                let error = Error::TransactionEnded { identity: open.identity.clone(), source: None };
                return roll_back(open, error).await;
            }
            // The statement ran in no transaction, so the hook refused its commit.
            Err(error) if code(&error) == COMMIT_REFUSED => {
                let identity = open.identity.clone();
                return roll_back(open, Error::TransactionEnded { identity, source: Some(error.into()) })
                    .await;
            }
            Err(error) => {
                let error = store_error(Some(&open.identity), error);
                return roll_back(open, error).await;
            }
        }
        match open.handle.commit().await {
            Ok(()) => {
                self.core.completed(&open.identity, &open.staging);
                Ok(())
            }
            // A deferred constraint: refused, and still open.
            Err(error) if primary_code(&error) == CONSTRAINT => {
                let error = store_error(Some(&open.identity), error);
                roll_back(open, error).await
            }
            Err(error) => self.settle(open, error).await,
        }
    }

    /// Finds out whether a commit that failed half-way has happened.
    async fn settle(&self, open: Open<Sqlite>, failed: sqlx::Error) -> Result<(), Error> {
        let Open { handle, identity, token, seat, .. } = open;
        drop(handle);
        let settled = match self.read(&identity).await {
            Ok(Some(stored)) if stored.token == token && stored.record.processed_at.is_some() => Ok(()),
            Ok(_) => Err(store_error(Some(&identity), failed)),
            Err(error) => {
                tracing::warn!(%identity, %error, "COMMIT failed, and the record could not be read");
                Err(Error::Unconfirmed { identity, source: Some(BoxError::from(failed)) })
            }
        };
        drop(seat);
        settled
    }
}

/// Whether the record of this run was there to be written.
async fn write_outcome(open: &mut Open<Sqlite>, outcome: &str) -> Result<bool, sqlx::Error> {
    let written = sqlx::query(concat!(
        "UPDATE idem_inbox SET outcome = ?5, processed_at = ",
        now!(),
        " WHERE operation = ?1 AND scope = ?2 AND key = ?3 AND claim_token = ?4"
    ))
    .bind(open.identity.operation())
    .bind(open.identity.scope())
    .bind(open.identity.key())
    .bind(open.token)
    .bind(outcome)
    .execute(&mut *open.handle)
    .await?;
    Ok(written.rows_affected() == 1)
}

/// Rolls back, and answers `error` whatever comes of it.
async fn roll_back(open: Open<Sqlite>, error: Error) -> Result<(), Error> {
    let Open { handle, identity, seat, .. } = open;
    if let Err(rollback) = Sqlite::roll_back(handle).await {
        tracing::debug!(%identity, %rollback, "the writer connection was replaced instead of rolled back");
    }
    drop(seat);
    Err(error)
}
