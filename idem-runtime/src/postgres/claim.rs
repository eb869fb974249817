//! Taking an identity. `BEGIN` carries the settings that the claim needs; the insert waits on the unique index for a
//! run that is going on; the record is read in a second statement, since a statement does not see what was committed
//! while it waited. The claim wait is one deadline over all of it, and the body gets the session's own timeouts back
//! with the insert.

use std::time::{Duration, SystemTime};

use sqlx::{AssertSqlSafe, Database, Postgres, Row};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{PgHandle, code};
use super::record::{self, Stored};
use super::{PgStore, PgTx, store_error};
use crate::flight::{Seat, Seen};
use crate::options::Boarding;
use crate::time::{duration_micros, from_micros, to_micros};
use crate::tx::Open;
use crate::{Claim, Claimed, Concurrent, Error, Identity, Judgement};

/// How much later than the server's own timeout the client gives up: only where the server does not answer.
const UNANSWERED: Duration = Duration::from_secs(1);

/// How long a duplicate that does not want to wait still waits for a lock in the database, where the first run may
/// be another process's: long enough for locks that are held for a moment only. (As the timeout of a lock: a slow
/// database, or one that is far away, is no run in progress.)
const REJECT_WAIT: Duration = Duration::from_millis(20);

/// What the body gets back of the session's own, wherever the claim succeeds, and the clock at that moment.
macro_rules! returning {
    () => {
        " RETURNING set_config('lock_timeout', current_setting('idem.lock_timeout'), true),
                    set_config('statement_timeout', current_setting('idem.statement_timeout'), true),
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// `greatest` passes over NULL, and a NULL duration makes the sum NULL: for ever.
macro_rules! until {
    ($duration:literal) => {
        concat!(
            "greatest(now(), 'epoch'::timestamptz + $6 * interval '1 microsecond') + $",
            $duration,
            " * interval '1 microsecond'"
        )
    };
}

const INSERT: &str = concat!(
    "INSERT INTO idem.inbox (operation, scope, key, fingerprint, claim_token, outcome_until, expires_at)
     VALUES ($1, $2, $3, $4, $5, ",
    until!("7"),
    ", ",
    until!("8"),
    ")
     ON CONFLICT (operation, scope, key) DO NOTHING",
    returning!()
);

/// Fenced by the token of the record that was judged: another claim may have taken it over meanwhile.
const TAKE_OVER: &str = concat!(
    "UPDATE idem.inbox
        SET fingerprint = $4, outcome = NULL, claim_token = $5, claimed_at = now(), processed_at = NULL,
            outcome_until = ",
    until!("7"),
    ", expires_at = ",
    until!("8"),
    "
      WHERE operation = $1 AND scope = $2 AND key = $3 AND claim_token = $9",
    returning!()
);

/// How one transaction of the claim ended.
enum Round {
    Taken {
        handle: PgHandle,
        token: Uuid,
        now: SystemTime,
    },
    Recorded(Seen),
    /// Serialization failure or deadlock: nothing has happened, and the next round may succeed.
    Again(sqlx::Error),
}

impl PgStore {
    pub(super) async fn take(self, claim: Claim, deadline: Instant) -> Result<Claimed<PgTx>, Error> {
        let started = Instant::now();
        let identity = &claim.identity;
        match tokio::time::timeout_at(deadline, self.checked()).await {
            Ok(checked) => checked?,
            Err(_) => return Err(Error::Busy { identity: identity.clone(), waited: started.elapsed() }),
        }
        let seat = match self.core.board(&claim, deadline).await? {
            Boarding::Done(record) => return Ok(Claimed::Done(record)),
            Boarding::Go(seat) => seat,
        };
        let mut handle = self.acquire(identity, deadline).await?;
        loop {
            match self.round(handle, &claim, deadline).await? {
                Round::Taken { handle, token, now } => {
                    if let Err(error) = claim.judge_absent(now) {
                        handle.give_back();
                        return Err(error);
                    }
                    seat.as_ref().map(Seat::running);
                    let open = Open::new(handle, identity.clone(), token, self.core.id, seat);
                    return Ok(Claimed::Fresh(PgTx::new(open)));
                }
                Round::Recorded(seen) => {
                    let record = seen.record.clone();
                    let verdict = claim.judge(&record, seen.now());
                    if let Some(seat) = seat {
                        seat.landed(seen);
                    }
                    return verdict.map(|_| Claimed::Done(record));
                }
                Round::Again(error) if Instant::now() >= deadline => {
                    return Err(store_error(Some(identity), error));
                }
                Round::Again(_) => handle = self.acquire(identity, deadline).await?,
            }
        }
    }

    /// One transaction: taken, or recorded, or to be tried again.
    async fn round(&self, mut handle: PgHandle, claim: &Claim, last: Instant) -> Result<Round, Error> {
        let started = Instant::now();
        let identity = &claim.identity;
        let lock_wait = match claim.concurrent {
            Concurrent::Wait => None,
            Concurrent::Reject => Some(REJECT_WAIT),
        };
        self.begin(&mut handle, identity, last, lock_wait).await?;
        let token = Uuid::new_v4();
        loop {
            let taken = match within(last, write(&mut handle, claim, token, None)).await {
                Ok(Some(now)) => return Ok(Round::Taken { handle, token, now }),
                Ok(None) => self.read_or_take_over(&mut handle, claim, token, last).await,
                Err(error) => Err(error),
            };
            match taken {
                Ok(Found::Record(seen)) => {
                    handle.give_back();
                    return Ok(Round::Recorded(seen));
                }
                Ok(Found::TakenOver(now)) => return Ok(Round::Taken { handle, token, now }),
                // Taken over or swept meanwhile. The server's statements bound themselves, this loop does not.
                Ok(Found::Nothing) if Instant::now() < last => {}
                Ok(Found::Nothing) => {
                    handle.give_back();
                    return Err(Error::InProgress { identity: identity.clone(), waited: started.elapsed() });
                }
                Err(error) => {
                    let retry = matches!(code(&error), "40001" | "40P01");
                    let timed_out = match code(&error) {
                        // Ours, as the server's clock had it; anybody else who cancels statements does not wait
                        // for this.
                        "57014" => Instant::now() + CLOCK_SLACK >= last,
                        // The table's own lock is held since `BEGIN`: it waited for the key.
                        "55P03" => lock_wait.is_some(),
                        _ => false,
                    };
                    if super::connection::server_error(&error).is_some() {
                        handle.give_back();
                    }
                    return match (retry, timed_out) {
                        (true, _) => Ok(Round::Again(error)),
                        (_, true) => {
                            Err(Error::InProgress { identity: identity.clone(), waited: started.elapsed() })
                        }
                        _ => Err(store_error(Some(identity), error)),
                    };
                }
            }
        }
    }

    async fn read_or_take_over(
        &self,
        handle: &mut PgHandle,
        claim: &Claim,
        token: Uuid,
        last: Instant,
    ) -> Result<Found, sqlx::Error> {
        let Some(stored) = within(last, record::read(handle, &claim.identity)).await? else {
            return Ok(Found::Nothing);
        };
        // The caller judges again what it is given; here only a record that no longer counts is of interest.
        if !matches!(claim.judge(&stored.record, stored.now), Ok(Judgement::TakeOver)) {
            return Ok(Found::Record(Seen::new(stored.record, stored.now)));
        }
        let taken = within(last, write(handle, claim, token, Some(&stored))).await?;
        Ok(taken.map_or(Found::Nothing, Found::TakenOver))
    }

    /// `BEGIN`, and in the same message what the claim needs. Every setting is local to the transaction. `lock_wait`
    /// bounds each wait for a lock; without it only `last` does.
    pub(super) async fn begin(
        &self,
        handle: &mut PgHandle,
        identity: &Identity,
        last: Instant,
        lock_wait: Option<Duration>,
    ) -> Result<(), Error> {
        let wait = last.saturating_duration_since(Instant::now()).as_millis().clamp(1, i32::MAX as u128);
        let lock_wait = lock_wait.map_or(0, |wait| wait.as_millis());
        let idle = self.idle_timeout.as_millis().clamp(1, i32::MAX as u128);
        let durable = if self.session_commit {
            ""
        } else {
            ", set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                ELSE current_setting('synchronous_commit') END, true)"
        };
        let begin = format!(
            "BEGIN; SELECT set_config('idem.lock_timeout', current_setting('lock_timeout'), true),
                set_config('idem.statement_timeout', current_setting('statement_timeout'), true),
                set_config('lock_timeout', '{lock_wait}', true), set_config('statement_timeout', '{wait}', true),
                set_config('idle_in_transaction_session_timeout', CASE WHEN extract(epoch FROM
                    current_setting('idle_in_transaction_session_timeout')::interval) * 1000 BETWEEN 1 AND {idle}
                    THEN current_setting('idle_in_transaction_session_timeout') ELSE '{idle}' END, true){durable};
             LOCK TABLE idem.inbox IN ROW EXCLUSIVE MODE"
        );
        type Manager = <Postgres as Database>::TransactionManager;
        let begin = Manager::begin(handle, Some(sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(begin))));
        within(last, begin).await.map_err(|e| store_error(Some(identity), e))
    }
}

enum Found {
    Record(Seen),
    TakenOver(SystemTime),
    /// The record has gone or changed since.
    Nothing,
}

/// How far the server's timeout may come before the client's clock says so.
const CLOCK_SLACK: Duration = Duration::from_millis(50);

/// The server ends a statement of the claim by itself; a server that does not answer is given up a little later.
async fn within<T>(
    last: Instant,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout_at(last + UNANSWERED, statement)
        .await
        .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}

/// Inserts the identity, or takes over the record `over`. Answers the database's clock if that succeeded.
pub(super) async fn write(
    handle: &mut PgHandle,
    claim: &Claim,
    token: Uuid,
    over: Option<&Stored>,
) -> Result<Option<SystemTime>, sqlx::Error> {
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
    row.map(|row| row.try_get(2).map(from_micros)).transpose()
}
