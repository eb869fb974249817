//! The statement that takes an identity: an insert that sets the bound of its own wait, waits on the unique index for a
//! run that is going on, and gives the session's own setting back with the row. It is prepared, since a statement that is
//! sent as text is planned on each call.

use std::time::Duration;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::postgres::types::PgInterval;
use sqlx::{Arguments as _, Row};
use uuid::Uuid;

use super::PgStore;
use super::connection::PgHandle;
use super::record::{Micros, Stored, Tid};
use crate::options::Taken;
use crate::time::{duration_micros, from_micros, to_micros};
use crate::{Claim, Fingerprint};

/// What Postgres takes at most, in milliseconds.
const LONGEST_TIMEOUT: u128 = i32::MAX as u128;

/// Inserts the identity, or does what the last argument says with the record that is there; what is kept is counted
/// from the first.
///
/// The bound of the wait is set before the row is written, and the session's own is given back with it: kept in a setting
/// of ours, unless it has none (a setting that was local reads as the empty text afterwards). For the body
/// hold an idle timeout, unless the session has a shorter one, and a commit that survives a crash. A NULL duration makes
/// the sum NULL: for ever.
macro_rules! claim {
    ($since:literal, $on_conflict:literal, $now:literal) => {
        concat!(
            "INSERT INTO idem.inbox AS record
                 (operation, scope, key, fingerprint, claim_token, outcome_until, expires_at)
             SELECT $1::text, $2::text, $3::text, $4::bytea, $5::uuid, ",
            $since,
            " + $6::interval, ",
            $since,
            " + $7::interval
              WHERE CASE WHEN current_setting('lock_timeout') = '0' THEN set_config('lock_timeout', $8::text, true)
                         WHEN set_config('idem.lock_timeout', current_setting('lock_timeout'), true) IS NOT NULL
                         THEN set_config('lock_timeout', $8::text, true) END IS NOT NULL
             ON CONFLICT (operation, scope, key) DO ",
            $on_conflict,
            " RETURNING tidsend(ctid), claimed_at, ",
            $now,
            ",
                set_config('lock_timeout', coalesce(nullif(current_setting('idem.lock_timeout', true), ''), '0'), true),
                CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0' OR extract(epoch FROM
                        current_setting('idle_in_transaction_session_timeout')::interval) * 1000 > $9::text::int
                     THEN set_config('idle_in_transaction_session_timeout', $9::text, true) END,
                CASE WHEN current_setting('synchronous_commit') = 'off' AND $10::boolean
                     THEN set_config('synchronous_commit', 'on', true) END"
        )
    };
}

/// Nothing is judged by the clock.
const INSERT: &str = claim!("now()", "NOTHING", "NULL");

/// Where the message has a time of its own, which is judged by the clock after the wait.
const INSERT_DATED: &str = claim!("greatest(now(), $11::timestamptz)", "NOTHING", "clock_timestamp()");

/// Fenced by the token of the record that was judged: another claim may have taken it over meanwhile.
const TAKE_OVER: &str = claim!(
    "greatest(now(), $11::timestamptz)",
    "UPDATE SET fingerprint = excluded.fingerprint, outcome = NULL, claim_token = excluded.claim_token,
                claimed_at = excluded.claimed_at, processed_at = NULL, outcome_until = excluded.outcome_until,
                expires_at = excluded.expires_at
      WHERE record.claim_token = $12::uuid",
    "clock_timestamp()"
);

impl PgStore {
    /// Inserts the identity, or takes over the record `over`, after `wait` at most for each lock. Answers when, if that
    /// succeeded. Nothing in its transaction may have set the lock timeout: it takes the one
    /// that it finds for the session's own.
    pub(super) async fn write(
        &self,
        handle: &mut PgHandle,
        claim: &Claim,
        token: Uuid,
        over: Option<&Stored>,
        wait: Duration,
    ) -> Result<Option<Taken>, sqlx::Error> {
        let arguments = self.arguments(claim, token, over, wait).map_err(sqlx::Error::Encode)?;
        let statement = match (over, claim.occurred_at) {
            (Some(_), _) => TAKE_OVER,
            (None, Some(_)) => INSERT_DATED,
            (None, None) => INSERT,
        };
        let query = sqlx::query_with(statement, arguments);
        let row = query.persistent(handle.persistent).fetch_optional(&mut **handle).await?;
        let Some(row) = row else { return Ok(None) };
        handle.row = Some(Tid::new(row.try_get(0)?)?);
        let (Micros(claimed_at), now) = (row.try_get(1)?, row.try_get::<Option<Micros>, _>(2)?);
        let now = now.map_or(claimed_at, |Micros(now)| now);
        Ok(Some(Taken { now: from_micros(now), claimed_at: from_micros(claimed_at) }))
    }

    fn arguments(
        &self,
        claim: &Claim,
        token: Uuid,
        over: Option<&Stored>,
        wait: Duration,
    ) -> Result<PgArguments, BoxDynError> {
        let millis = |duration: Duration| duration.as_millis().clamp(1, LONGEST_TIMEOUT).to_string();
        // Zero is none, as it is in Postgres; the longest one is as good.
        let idle_timeout = if self.idle_timeout.is_zero() { Duration::MAX } else { self.idle_timeout };
        let mut arguments = PgArguments::default();
        arguments.reserve(12, 512);
        arguments.add(claim.identity.operation())?;
        arguments.add(claim.identity.scope())?;
        arguments.add(claim.identity.key())?;
        arguments.add(claim.fingerprint.as_ref().map(Fingerprint::to_bytes))?;
        arguments.add(token)?;
        arguments.add(claim.outcome_kept_for().map(interval))?;
        arguments.add(claim.identity_kept_for().map(interval))?;
        arguments.add(millis(wait))?;
        arguments.add(millis(idle_timeout))?;
        arguments.add(!self.session_commit)?;
        if over.is_some() || claim.occurred_at.is_some() {
            arguments.add(claim.occurred_at.map(|at| Micros(to_micros(at))))?;
        }
        if let Some(stored) = over {
            arguments.add(stored.token)?;
        }
        Ok(arguments)
    }
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: duration_micros(duration) }
}
