//! Storing the outcome and committing, in one message: its first statement fails by itself unless the record is this
//! run's and was written in this very transaction. That exposes a transaction that the server has aborted (sqlx
//! reports the `COMMIT` of one as success) and one that the body ended. A `COMMIT` without an answer is settled by
//! the record itself.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgSeverity;
use sqlx::{AssertSqlSafe, Either, Executor as _, Postgres};
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{PgHandle, code, server_error};
use super::{PgStore, claim, record, store_error};
use crate::tx::Open;
use crate::{BoxError, Claim, Error, Identity};

/// How long to wait before a server that refused a connection is asked again.
const RECONNECT: Duration = Duration::from_millis(50);

/// What is known after the last message.
enum End {
    Committed,
    /// The outcome could not be written, and nothing is committed.
    Refused(sqlx::Error),
    /// The server has answered `COMMIT` with an error.
    Failed(sqlx::Error),
    /// No answer.
    InDoubt(sqlx::Error),
}

impl PgStore {
    pub(super) async fn finish(self, mut open: Open<Postgres>, outcome: String) -> Result<(), Error> {
        if let Err(error) = self.core.check_outcome(&open.identity, &outcome) {
            return roll_back(open, error).await;
        }
        if !open.is_intact() {
            let error = Error::TransactionEnded { identity: open.identity.clone(), source: None };
            return roll_back(open, error).await;
        }
        let message = last_message(&open.identity, open.token, &outcome);
        match self.send(&mut open.handle, message).await {
            End::Committed => {
                open.handle.give_back();
                Ok(())
            }
            End::Refused(error) if matches!(code(&error), "22012" | "25P02") => {
                let identity = open.identity.clone();
                roll_back(open, Error::TransactionEnded { identity, source: Some(error.into()) }).await
            }
            End::Refused(error) | End::Failed(error) => {
                let error = store_error(Some(&open.identity), error);
                roll_back(open, error).await
            }
            End::InDoubt(error) => {
                // The broken connection goes first: the pool may hold only one.
                let Open { handle, identity, token, seat, .. } = open;
                drop(handle);
                let settled = self.settle(&identity, token, error).await;
                drop(seat);
                settled
            }
        }
    }

    /// Sends the last message, and sorts what comes back.
    async fn send(&self, handle: &mut PgHandle, message: String) -> End {
        let mut written = false;
        let answers = async {
            let mut answers = (&mut **handle).fetch_many(sqlx::raw_sql(AssertSqlSafe(message)));
            while let Some(answer) = answers.try_next().await? {
                // The first statement has ended; what comes after it is the answer to `COMMIT`.
                written |= matches!(answer, Either::Left(_));
            }
            Ok(())
        };
        let error = match tokio::time::timeout(self.settle_timeout, answers).await {
            Ok(Ok(())) => return End::Committed,
            Ok(Err(error)) => error,
            Err(_) => return End::InDoubt(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        };
        match server_error(&error).map(|e| e.severity()) {
            None => End::InDoubt(error),
            // The statements run one after the other: `COMMIT` was never reached.
            Some(_) if !written => End::Refused(error),
            // A session that is ended while it commits may have committed.
            Some(PgSeverity::Fatal | PgSeverity::Panic) => End::InDoubt(error),
            Some(_) => End::Failed(error),
        }
    }

    /// Finds out whether the run `token` committed: claims its identity anew, which blocks until the transaction in
    /// doubt is decided. (Not by `pg_xact_status`: after a crash a transaction id is used again.)
    async fn settle(&self, identity: &Identity, token: Uuid, lost: sqlx::Error) -> Result<(), Error> {
        let deadline = Instant::now() + self.settle_timeout;
        loop {
            match self.look(identity, token, deadline).await {
                Ok(Ruling::Committed) => return Ok(()),
                Ok(Ruling::NotCommitted) => return Err(Error::store(Some(identity), true, lost)),
                Ok(Ruling::Ended) => {
                    let source = Some(BoxError::from(lost));
                    return Err(Error::TransactionEnded { identity: identity.clone(), source });
                }
                Err(error) if Instant::now() >= deadline => {
                    tracing::warn!(%identity, %error, "the answer to COMMIT was lost, and the record could not be read");
                    let source = Some(BoxError::from(lost));
                    return Err(Error::Unconfirmed { identity: identity.clone(), source });
                }
                Err(_) => tokio::time::sleep_until((Instant::now() + RECONNECT).min(deadline)).await,
            }
        }
    }

    async fn look(&self, identity: &Identity, token: Uuid, deadline: Instant) -> Result<Ruling, Error> {
        let mut handle = self.acquire(identity, deadline).await?;
        self.begin(&mut handle, identity, deadline, None).await?;
        let looked = tokio::time::timeout_at(deadline, ask(&mut handle, identity, token)).await;
        match looked {
            Ok(Ok(ruling)) => {
                handle.give_back();
                Ok(ruling)
            }
            Ok(Err(error)) => Err(store_error(Some(identity), error)),
            Err(_) => Err(Error::store(Some(identity), true, "no answer in time")),
        }
    }
}

enum Ruling {
    Committed,
    NotCommitted,
    /// The record is there without an outcome: the body committed by itself.
    Ended,
}

async fn ask(handle: &mut PgHandle, identity: &Identity, token: Uuid) -> Result<Ruling, sqlx::Error> {
    loop {
        let claim = Claim::new(identity.clone());
        if claim::write(handle, &claim, Uuid::new_v4(), None).await?.is_some() {
            return Ok(Ruling::NotCommitted);
        }
        match record::read(handle, identity).await? {
            Some(stored) if stored.token != token => return Ok(Ruling::NotCommitted),
            Some(stored) if stored.record.processed_at.is_none() => return Ok(Ruling::Ended),
            Some(_) => return Ok(Ruling::Committed),
            // Swept between the two statements.
            None => {}
        }
    }
}

/// Rolls back, and answers `error` whatever comes of it.
async fn roll_back(open: Open<Postgres>, error: Error) -> Result<(), Error> {
    let identity = open.identity.clone();
    if let Err(rollback) = open.roll_back().await {
        tracing::debug!(%identity, %rollback, "the connection was closed instead of rolled back");
    }
    Err(error)
}

/// `AND CHAIN` leaves sqlx's count of open transactions right: it falls only by sending an end of its own, which then
/// finds the empty transaction that this began, instead of none (a warning in the server's log). All values are
/// hex-encoded, so that no setting of the session changes how they are read.
fn last_message(identity: &Identity, token: Uuid, outcome: &str) -> String {
    let mut message = String::with_capacity(2 * outcome.len() + 1024);
    message.push_str("WITH run AS (UPDATE idem.inbox SET processed_at = clock_timestamp(), outcome = ");
    push_text(&mut message, outcome);
    message.push_str("::json WHERE operation = ");
    push_text(&mut message, identity.operation());
    message.push_str(" AND scope = ");
    push_text(&mut message, identity.scope());
    message.push_str(" AND key = ");
    push_text(&mut message, identity.key());
    message.push_str(" AND claim_token = '");
    message.push_str(&token.to_string());
    message.push_str(
        "'::uuid AND xmin = pg_current_xact_id()::xid RETURNING 1) \
         SELECT 1 / (SELECT count(*) FROM run); COMMIT AND CHAIN",
    );
    message
}

fn push_text(message: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    message.push_str("convert_from(decode('");
    for byte in text.bytes() {
        message.push(char::from(DIGITS[usize::from(byte >> 4)]));
        message.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    message.push_str("', 'hex'), 'UTF8')");
}
