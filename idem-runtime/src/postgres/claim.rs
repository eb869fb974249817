//! Taking an identity, in as many transactions as it takes. The record is read in a second statement, since a statement
//! does not see what was committed while it waited. The claim wait is one deadline over all of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Database, Postgres, SqlSafeStr as _};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{PgHandle, code, server_error};
use super::record::{self, Stored};
use super::{PgStore, PgTx, store_error};
use crate::flight::{Seat, Seen};
use crate::options::{Boarding, Taken};
use crate::tx::Open;
use crate::{Claim, Claimed, Concurrent, Error, Identity, Judgement, Record};

type Manager = <Postgres as Database>::TransactionManager;

const BEGIN: &str = "BEGIN";

/// Takes the table's lock, so that what the insert waits for is the key; and without waiting, since nothing bounds a
/// wait yet. It costs a claim 2 %, and so goes only where there is a reason.
const BEGIN_WITH_LOCK: &str = "BEGIN; LOCK TABLE idem.inbox IN ROW EXCLUSIVE MODE NOWAIT";

/// Likewise for what only reads.
const BEGIN_TO_LOOK: &str = "BEGIN; LOCK TABLE idem.inbox IN ACCESS SHARE MODE NOWAIT";

/// How long to wait before a table that is locked (a migration, a vacuum) is tried again.
const TABLE_LOCKED: Duration = Duration::from_millis(20);

/// How much later than the server's own timeout the client gives up. A lock timeout counts for each wait anew, and one
/// insert waits several times where winners fail one after the other.
const LATER: Duration = Duration::from_millis(250);

/// How long a duplicate that does not want to wait still waits for a lock in the database, where the first run may be
/// another process's: long enough for locks that are held for a moment only.
const REJECT_WAIT: Duration = Duration::from_millis(20);

/// How long one insert waits before it is sent again: a claim whose caller has gone leaves a session behind for so
/// long, since a server does not look at its client while it waits.
const TURN: Duration = Duration::from_secs(1);

/// For how long nothing happens between two rounds.
const PAUSE: Duration = Duration::from_millis(2);

/// How far the server's timeout may come before the client's clock says so.
const CLOCK_SLACK: Duration = Duration::from_millis(5);

/// A claim that has come to its turn.
pub(super) enum Ready {
    Done(Record),
    Go(Option<Seat>, PgHandle),
}

/// How one transaction of the claim ended.
enum Round {
    Taken(PgHandle, Taken),
    Recorded(Box<Judged>),
    /// The record no longer counts: to be taken over.
    Expired(PgHandle, Box<Stored>),
    /// The first run is still going on.
    InProgress,
    /// A turn of the wait for the key is over.
    Waited(PgHandle),
    /// Nothing has happened, and the next round may succeed.
    Again(PgHandle, sqlx::Error),
    /// Likewise, if it comes a little later.
    Later(PgHandle, sqlx::Error),
    /// It waited for the key or for the table: the next round takes the table's lock first.
    Unclear(PgHandle),
    /// A record that was likely to be there is not.
    Unknown(PgHandle),
}

/// What a round does.
#[derive(Clone, Copy)]
struct Plan {
    /// Only look for the record.
    look: bool,
    /// Take the table's lock first.
    lock: bool,
}

impl Plan {
    fn begin(self) -> &'static str {
        match (self.look, self.lock) {
            (_, false) => BEGIN,
            (true, true) => BEGIN_TO_LOOK,
            (false, true) => BEGIN_WITH_LOCK,
        }
    }
}

/// A record that stays, and what it means for this claim.
struct Judged {
    seen: Seen,
    verdict: Result<(), Error>,
}

impl PgStore {
    /// Waits for the claim's turn: for the start-up check, for others of this process at the same identity, and for a
    /// connection. A caller that goes leaves the queue at once.
    pub(super) async fn ready(&self, claim: &Claim, deadline: Instant) -> Result<Ready, Error> {
        let identity = &claim.identity;
        if !self.core.checked.initialized() {
            let started = Instant::now();
            let checked = Box::pin(self.checked(identity, deadline));
            tokio::time::timeout_at(deadline + LATER, checked)
                .await
                .map_err(|_| Error::Busy { identity: identity.clone(), waited: started.elapsed() })??;
        }
        match self.core.board(claim, deadline).await? {
            Boarding::Done(record) => Ok(Ready::Done(record)),
            Boarding::Go(seat) => Ok(Ready::Go(seat, self.acquire(identity, deadline).await?)),
        }
    }

    /// Takes the identity, or answers with the record. `started` is when the claim began.
    pub(super) async fn take(
        self,
        claim: Claim,
        seat: Option<Seat>,
        mut handle: PgHandle,
        (started, deadline): (Instant, Instant),
    ) -> Result<Claimed<PgTx>, Error> {
        let identity = &claim.identity;
        let in_progress = || Error::InProgress { identity: identity.clone(), waited: started.elapsed() };
        let token = Uuid::new_v4();
        let mut over = None;
        let mut plan = Plan {
            look: self.core.recorded.is_likely(identity),
            lock: self.shared.unanswered.load(Ordering::Relaxed),
        };
        seat.as_ref().map(Seat::asking);
        loop {
            let round = self.round(handle, &claim, token, over.take(), plan, deadline);
            // A server that does not answer in time is given up with its connection. It waits for no key then: it
            // would have said so.
            let round = tokio::time::timeout_at(deadline + LATER, round).await;
            let round = round.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
            handle = match round.map_err(|e| store_error(Some(identity), e))? {
                Round::Taken(handle, taken) => {
                    if let Err(error) = claim.judge_absent(taken.now) {
                        handle.give_back();
                        return Err(error);
                    }
                    seat.as_ref().map(Seat::running);
                    let staging = self.core.staging(&claim, taken.claimed_at);
                    let open = Open::new(handle, identity.clone(), token, self.core.id, seat, staging);
                    return Ok(Claimed::Fresh(PgTx::new(open)));
                }
                Round::Recorded(judged) => {
                    self.core.recorded.note(identity);
                    let Judged { seen, verdict } = *judged;
                    let record = seen.record.clone();
                    if let Some(seat) = seat {
                        seat.landed(seen);
                    }
                    return verdict.map(|()| Claimed::Done(record));
                }
                Round::Expired(handle, stored) => {
                    over = Some(stored);
                    plan.look = false;
                    handle
                }
                Round::InProgress => return Err(in_progress()),
                Round::Unclear(handle) => {
                    plan.lock = true;
                    handle
                }
                Round::Unknown(handle) => {
                    plan.look = false;
                    handle
                }
                Round::Waited(_) if Instant::now() >= deadline => return Err(in_progress()),
                Round::Again(_, error) | Round::Later(_, error) if Instant::now() >= deadline => {
                    return Err(store_error(Some(identity), error));
                }
                Round::Waited(handle) | Round::Again(handle, _) => {
                    tokio::time::sleep(PAUSE).await;
                    handle
                }
                Round::Later(handle, _) => {
                    tokio::time::sleep(TABLE_LOCKED).await;
                    handle
                }
            };
        }
    }

    /// One transaction of the claim. After an error the connection is closed, unless it was given back.
    async fn round(
        &self,
        mut handle: PgHandle,
        claim: &Claim,
        token: Uuid,
        over: Option<Box<Stored>>,
        plan: Plan,
        last: Instant,
    ) -> Result<Round, sqlx::Error> {
        if let Err(error) = Manager::begin(&mut handle, Some(plan.begin().into_sql_str())).await {
            if server_error(&error).is_none() {
                return Err(error);
            }
            // sqlx does not count a transaction that failed to begin.
            sqlx::raw_sql("ROLLBACK").execute(&mut *handle).await?;
            return match code(&error) {
                "55P03" => Ok(Round::Later(handle, error)),
                // Of somebody else, who gave it back to the pool as it was; it is rolled back by now.
                "25P02" => Ok(Round::Again(handle, error)),
                _ => {
                    handle.give_back();
                    Err(error)
                }
            };
        }
        if plan.lock {
            self.shared.unanswered.store(false, Ordering::Relaxed);
        }
        let asked = Asked { unanswered: &self.shared.unanswered, answered: false };
        let found = self.write_or_read(&mut handle, claim, token, over.as_deref(), plan, last).await;
        asked.answered();
        match found {
            Ok(Found::Taken(taken)) => Ok(Round::Taken(handle, taken)),
            Ok(Found::Recorded(stored)) => {
                match Judgement::unless_taken_over(claim.judge(&stored.record, stored.now)) {
                    None => {
                        handle.start_over();
                        Ok(Round::Expired(handle, Box::new(stored)))
                    }
                    Some(verdict) => {
                        handle.give_back();
                        let seen = Seen::new(stored.record, stored.now);
                        Ok(Round::Recorded(Box::new(Judged { seen, verdict })))
                    }
                }
            }
            Ok(Found::Unknown) => {
                handle.start_over();
                Ok(Round::Unknown(handle))
            }
            Ok(Found::Waited) => {
                handle.start_over();
                Ok(Round::Waited(handle))
            }
            Ok(Found::Nothing) => {
                handle.start_over();
                let message =
                    "the record was neither written nor found: does a trigger or a policy refuse it?";
                Ok(Round::Again(handle, sqlx::Error::Protocol(message.to_owned())))
            }
            Ok(Found::Unclear) => {
                handle.start_over();
                Ok(Round::Unclear(handle))
            }
            Ok(Found::InProgress) => {
                handle.give_back();
                Ok(Round::InProgress)
            }
            Err(error) => match code(&error) {
                // Serialization failure, deadlock, a unique index that is being rebuilt: nothing has happened.
                "40001" | "40P01" | "23505" => {
                    handle.start_over();
                    Ok(Round::Again(handle, error))
                }
                // The session's own limit of a statement, which is not the claim's; or a person's order.
                "57014" => {
                    handle.start_over();
                    if !has_statement_timeout(&mut handle).await? {
                        handle.give_back();
                        return Err(error);
                    }
                    Ok(if plan.lock { Round::Waited(handle) } else { Round::Unclear(handle) })
                }
                // What a body left in the session may be the cause.
                _ => Err(error),
            },
        }
    }

    async fn write_or_read(
        &self,
        handle: &mut PgHandle,
        claim: &Claim,
        token: Uuid,
        over: Option<&Stored>,
        plan: Plan,
        last: Instant,
    ) -> Result<Found, sqlx::Error> {
        if plan.look {
            match record::read(handle, &claim.identity).await {
                Ok(Some(stored)) => return Ok(Found::Recorded(stored)),
                // The lock that lets it write is another one.
                Ok(None) if plan.lock => return Ok(Found::Unknown),
                Ok(None) => {}
                // By the session's own limit.
                Err(error) if code(&error) == "55P03" && !plan.lock => return Ok(Found::Unclear),
                Err(error) => return Err(error),
            }
        }
        let started = Instant::now();
        let wait = last.saturating_duration_since(started).min(match claim.concurrent {
            Concurrent::Wait => TURN,
            Concurrent::Reject => REJECT_WAIT,
        });
        match self.write(handle, claim, token, over, wait).await {
            Ok(Some(taken)) => Ok(Found::Taken(taken)),
            Ok(None) if over.is_some() => Ok(Found::Nothing),
            Ok(None) => {
                let stored = record::read(handle, &claim.identity).await?;
                Ok(stored.map_or(Found::Nothing, Found::Recorded))
            }
            Err(error) if code(&error) == "55P03" && !plan.lock => Ok(Found::Unclear),
            // Our bound of the wait. The table's lock is held since `BEGIN`, so it was for the key.
            Err(error) if code(&error) == "55P03" && started.elapsed() + CLOCK_SLACK >= wait => {
                let goes_on = claim.concurrent == Concurrent::Wait && Instant::now() < last;
                Ok(if goes_on { Found::Waited } else { Found::InProgress })
            }
            Err(error) => Err(error),
        }
    }

    /// `BEGIN` for the one who looks whether a run has committed.
    pub(super) async fn begin(&self, handle: &mut PgHandle, identity: &Identity) -> Result<(), Error> {
        let begun = Manager::begin(handle, Some(BEGIN_WITH_LOCK.into_sql_str())).await;
        begun.map_err(|e| store_error(Some(identity), e))
    }
}

/// Tells later claims when one was given up, by its caller or by the clock, before the server had answered: where the
/// table is locked, each of them would leave a session behind that waits for it.
struct Asked<'a> {
    unanswered: &'a AtomicBool,
    answered: bool,
}

impl Asked<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.unanswered.store(true, Ordering::Relaxed);
        }
    }
}

enum Found {
    Taken(Taken),
    Recorded(Stored),
    /// The first run is still going on.
    InProgress,
    /// A lock was waited for, which may have been the table's.
    Unclear,
    /// A turn of the wait for the key is over.
    Waited,
    /// There is none, and the next round writes it.
    Unknown,
    /// The record was taken over or swept meanwhile.
    Nothing,
}

/// In a transaction of its own, as everything that is prepared.
async fn has_statement_timeout(handle: &mut PgHandle) -> Result<bool, sqlx::Error> {
    handle.begin_to_read().await?;
    let limit = sqlx::query_scalar("SELECT current_setting('statement_timeout')");
    let limit: String = limit.persistent(handle.persistent).fetch_one(&mut **handle).await?;
    handle.start_over();
    Ok(limit != "0")
}
