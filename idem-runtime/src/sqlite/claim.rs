//! Taking an identity: `BEGIN IMMEDIATE` on the only writer, so nobody else is at the record until the transaction
//! ends. A record that this process knows of, or that is there while another body has the writer, is read on a reader:
//! an answer does not wait for the bodies of other keys. The claim wait is one deadline over all of it.

use std::time::Duration;

use sqlx::Row;
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{BUSY, PAUSE, SqliteHandle, primary_code};
use super::record::{self, Stored, now};
use super::{SqliteStore, SqliteTx, busy, store_error};
use crate::flight::{Seat, Seen};
use crate::options::{Boarding, Taken};
use crate::time::{duration_micros, from_micros, to_micros};
use crate::tx::{Open, sealed::Sealed};
use crate::{Claim, Claimed, Error, Identity, Judgement, Record};

/// `max(x, NULL)` is NULL in SQLite, and a NULL duration makes the sum NULL: for ever.
macro_rules! until {
    ($duration:literal) => {
        concat!("max(", now!(), ", coalesce(?6, ", now!(), ")) + ?", $duration)
    };
}

const INSERT: &str = concat!(
    "INSERT INTO idem_inbox
            (operation, scope, key, fingerprint, claim_token, claimed_at, outcome_until, expires_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ",
    now!(),
    ", ",
    until!("7"),
    ", ",
    until!("8"),
    ")
     ON CONFLICT (operation, scope, key) DO NOTHING RETURNING ",
    now!()
);

const TAKE_OVER: &str = concat!(
    "UPDATE idem_inbox
        SET fingerprint = ?4, outcome = NULL, claim_token = ?5, claimed_at = ",
    now!(),
    ", processed_at = NULL,
            outcome_until = ",
    until!("7"),
    ", expires_at = ",
    until!("8"),
    "
      WHERE operation = ?1 AND scope = ?2 AND key = ?3 AND claim_token = ?9 RETURNING ",
    now!()
);

/// How long a claim waits for the writer before it looks whether there is a record that this process does not know of.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// How long it waits for a reader where it could ask the writer.
const LOOK: Duration = Duration::from_millis(50);

/// A claim that has come to its turn.
pub(super) enum Ready {
    Done(Record),
    Go(Option<Seat>, SqliteHandle),
}

impl SqliteStore {
    /// What a claim waits for before it sends anything: a caller that goes away meanwhile leaves at once, and keeps
    /// nobody else from the writer.
    pub(super) async fn ready(&self, claim: &Claim, deadline: Instant) -> Result<Ready, Error> {
        let started = Instant::now();
        let identity = &claim.identity;
        let in_time = |_| busy(identity, started);
        if !self.core.checked.initialized() {
            tokio::time::timeout_at(deadline, self.checked()).await.map_err(in_time)??;
        }
        let seat = match self.core.board(claim, deadline).await? {
            Boarding::Done(record) => return Ok(Ready::Done(record)),
            Boarding::Go(seat) => seat,
        };
        if self.core.recorded.is_likely(identity)
            && let Ok(Some(judged)) = tokio::time::timeout(LOOK, self.look(claim)).await
        {
            return self.done(judged, seat).map(Ready::Done);
        }
        let failed = |e| failed(identity, started, e);
        let handle = match self.writer.try_acquire().await.map_err(failed)? {
            Some(handle) => handle,
            None => {
                let waited = tokio::time::timeout_at(deadline, self.writer_or_record(claim)).await;
                match waited.map_err(in_time)? {
                    Ok(WriterOrRecord::Writer(handle)) => handle,
                    Ok(WriterOrRecord::Record(judged)) => return self.done(*judged, seat).map(Ready::Done),
                    Err(error) => return Err(failed(error)),
                }
            }
        };
        Ok(Ready::Go(seat, handle))
    }

    /// Waits for the writer, in the order of asking; meanwhile it looks whether there is a record already.
    async fn writer_or_record(&self, claim: &Claim) -> Result<WriterOrRecord, sqlx::Error> {
        let acquire = self.writer.acquire();
        tokio::pin!(acquire);
        let look = async {
            tokio::time::sleep(LOOK_AFTER).await;
            self.look(claim).await
        };
        tokio::select! {
            biased;
            handle = &mut acquire => return handle.map(WriterOrRecord::Writer),
            judged = look => if let Some(judged) = judged {
                return Ok(WriterOrRecord::Record(Box::new(judged)));
            },
        }
        acquire.await.map(WriterOrRecord::Writer)
    }

    /// A record that stays, on a reader. Where that fails there is the writer, which tells why.
    async fn look(&self, claim: &Claim) -> Option<Judged> {
        match self.read(&claim.identity).await {
            Ok(stored) => stored.and_then(|stored| judge(claim, stored).ok()),
            Err(error) => {
                tracing::debug!(identity = %claim.identity, %error, "the record could not be read on a reader");
                None
            }
        }
    }

    pub(super) async fn take(
        self,
        claim: Claim,
        seat: Option<Seat>,
        mut handle: SqliteHandle,
        deadline: Instant,
    ) -> Result<Claimed<SqliteTx>, Error> {
        let started = Instant::now();
        let identity = &claim.identity;
        let failed = |e| failed(identity, started, e);
        while !handle.try_begin().await.map_err(failed)? {
            // Another process has the file, and what is recorded can be read all the same.
            if let Ok(Some(judged)) = tokio::time::timeout(LOOK, self.look(&claim)).await {
                return self.done(judged, seat).map(Claimed::Done);
            }
            if Instant::now() >= deadline {
                return Err(busy(identity, started));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let token = Uuid::new_v4();
        match write_or_read(&mut handle, &claim, token).await {
            Ok(Found::Taken(taken)) => {
                let judged = claim.judge_absent(taken.now);
                if let Err(error) = judged {
                    roll_back(handle).await;
                    return Err(error);
                }
                seat.as_ref().map(Seat::running);
                let staging = self.core.staging(&claim, taken.claimed_at);
                let open = Open::new(handle, identity.clone(), token, self.core.id, seat, staging);
                Ok(Claimed::Fresh(SqliteTx::new(open)))
            }
            Ok(Found::Recorded(judged)) => {
                roll_back(handle).await;
                self.done(*judged, seat).map(Claimed::Done)
            }
            Err(error) => {
                roll_back(handle).await;
                Err(failed(error))
            }
        }
    }

    /// Answers with the record, and for all who wait for it.
    fn done(&self, judged: Judged, seat: Option<Seat>) -> Result<Record, Error> {
        let Judged { stored, verdict } = judged;
        self.core.recorded.note(&stored.record.identity);
        if let Some(seat) = seat {
            seat.landed(Seen::new(stored.record.clone(), stored.now));
        }
        verdict.map(|()| stored.record)
    }
}

/// A record that stays, and what it means for this claim.
struct Judged {
    stored: Stored,
    verdict: Result<(), Error>,
}

/// What came first.
enum WriterOrRecord {
    Writer(SqliteHandle),
    Record(Box<Judged>),
}

enum Found {
    Taken(Taken),
    Recorded(Box<Judged>),
}

async fn write_or_read(handle: &mut SqliteHandle, claim: &Claim, token: Uuid) -> Result<Found, sqlx::Error> {
    if let Some(taken) = write(handle, claim, token, None).await? {
        return Ok(Found::Taken(taken));
    }
    // Nobody else can write meanwhile, so what refused the insert is there, and stays as it is.
    let stored = record::read(handle, &claim.identity).await?.ok_or(sqlx::Error::RowNotFound)?;
    let stored = match judge(claim, stored) {
        Ok(judged) => return Ok(Found::Recorded(Box::new(judged))),
        Err(stored) => stored,
    };
    let taken = write(handle, claim, token, Some(&stored)).await?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Found::Taken(taken))
}

/// `Err` for a record that is taken over.
fn judge(claim: &Claim, stored: Stored) -> Result<Judged, Box<Stored>> {
    match Judgement::unless_taken_over(claim.judge(&stored.record, stored.now)) {
        Some(verdict) => Ok(Judged { stored, verdict }),
        None => Err(Box::new(stored)),
    }
}

fn failed(identity: &Identity, started: Instant, error: sqlx::Error) -> Error {
    match primary_code(&error) {
        // Another process has the file.
        BUSY => busy(identity, started),
        _ => store_error(Some(identity), error),
    }
}

async fn roll_back(handle: SqliteHandle) {
    if let Err(error) = sqlx::Sqlite::roll_back(handle).await {
        tracing::debug!(%error, "the writer connection was replaced instead of rolled back");
    }
}

/// Inserts the identity, or takes over the record `over`. Answers when, if that succeeded.
async fn write(
    handle: &mut SqliteHandle,
    claim: &Claim,
    token: Uuid,
    over: Option<&Stored>,
) -> Result<Option<Taken>, sqlx::Error> {
    let query = sqlx::query(if over.is_some() { TAKE_OVER } else { INSERT })
        .bind(claim.identity.operation())
        .bind(claim.identity.scope())
        .bind(claim.identity.key())
        .bind(claim.fingerprint.as_ref().map(crate::Fingerprint::to_bytes))
        .bind(token)
        .bind(claim.occurred_at.map(to_micros))
        .bind(claim.outcome_kept_for().map(duration_micros))
        .bind(claim.identity_kept_for().map(duration_micros));
    let query = match over {
        Some(stored) => query.bind(stored.token),
        None => query,
    };
    let row = query.fetch_optional(&mut **handle).await?;
    let Some(row) = row else { return Ok(None) };
    // The statement's one clock: that of the record too.
    let now = from_micros(row.try_get(0)?);
    Ok(Some(Taken { now, claimed_at: now }))
}
