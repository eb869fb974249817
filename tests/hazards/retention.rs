//! Records that expire, and messages older than the records can prove.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use idem_runtime::{Claim, Error, Older, Override, Retain, Store as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::db::{Db, INBOX, Store, in_seconds};
use super::race::effect;
use crate::handler::{Fail, claim, fingerprint, identity, run};

const HOUR: Duration = Duration::from_secs(3_600);

fn hours(n: u32) -> Retain {
    Retain::For(HOUR * n)
}

fn ago(age: Duration) -> SystemTime {
    SystemTime::now() - age
}

async fn ran(store: &Store, claim: Claim) -> Result<bool, Error> {
    let key = claim.identity.key().to_owned();
    let outcome = run(store, claim, async |tx| effect(tx, &key).await).await;
    outcome.map(|outcome| !outcome.is_replay()).map_err(Fail::idem)
}

async fn expire(db: &Db) {
    let past = in_seconds(-1);
    db.execute(&format!("UPDATE {INBOX} SET expires_at = {past}, outcome_until = {past}")).await;
}

#[tokio::test]
async fn expired_but_not_swept_behaves_as_swept() {
    // C28
    let db = Db::fresh().await;
    let store = db.store().await;
    let refuse = || claim("refuse").with_retain(hours(1)).with_occurred_at(ago(2 * HOUR));
    let runs = || claim("run").with_retain(hours(1)).with_older(Older::Run);
    // `refuse` gets its record under an override: it is beyond the horizon from the start.
    let person = Override::new("ticket-1", "ops").beyond_horizon();
    assert!(ran(&store.overriding(person), refuse()).await.expect("runs"));
    assert!(ran(&store, runs()).await.expect("runs"));
    assert!(!ran(&store, refuse()).await.expect("an unexpired record proves it"));
    expire(&db).await;
    for swept in [false, true] {
        if swept {
            db.execute(&format!("DELETE FROM {INBOX}")).await;
        }
        let error = ran(&store, refuse()).await.expect_err("older than the records prove");
        assert!(matches!(error, Error::BeyondHorizon { .. }), "{error:?}");
        assert!(ran(&store, runs()).await.expect("taken over"));
        assert!(!ran(&store, runs()).await.expect("replays"));
    }
    assert_eq!(db.count("SELECT count(*) FROM effect WHERE key = 'refuse'").await, 1);
    assert_eq!(db.count("SELECT count(*) FROM effect WHERE key = 'run'").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_record_is_taken_over_once_by_many_at_once() {
    // C1, C3, C28: over three stores, as three processes have them, and the first two winners fail.
    let db = Db::fresh().await;
    let stores = [db.store().await, db.store().await, db.store().await];
    let takeable = || claim("k").with_retain(hours(1)).with_older(Older::Run);
    assert!(ran(&stores[0], takeable()).await.expect("runs"));
    expire(&db).await;
    let failures = Arc::new(AtomicU32::new(0));
    let barrier = Arc::new(Barrier::new(12));
    let mut tasks = JoinSet::new();
    for n in 0..12 {
        let (store, failures, barrier) =
            (stores[n % stores.len()].clone(), Arc::clone(&failures), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            run(&store, takeable(), async |tx| {
                effect(tx, "k").await?;
                if failures.fetch_add(1, Ordering::SeqCst) < 2 { Err(Fail::Told) } else { Ok(()) }
            })
            .await
        });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|r| matches!(r, Err(Fail::Told))).count(), 2);
    assert_eq!(results.iter().flatten().filter(|o| o.is_replay()).count(), 9, "{results:?}");
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 2);
}

#[tokio::test]
async fn a_takeover_resets_every_column() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let claim = || claim("k").with_retain(hours(1)).with_remember(hours(2)).with_older(Older::Run);
    run(&store, claim(), async |_| Ok(1)).await.expect("runs");
    expire(&db).await;
    db.execute(&format!("UPDATE {INBOX} SET claimed_at = {}", in_seconds(-3_600))).await;
    let old = store.find(&identity("k")).await.expect("asked").expect("there");
    let other = claim().with_fingerprint(fingerprint(2));
    assert_eq!(run(&store, other.clone(), async |_| Ok(2)).await.expect("taken over").into_inner(), 2);
    let new = store.find(&identity("k")).await.expect("asked").expect("there");
    assert_eq!(new.outcome.as_deref(), Some("2"));
    assert_eq!(new.fingerprint, Some(fingerprint(2).to_bytes()));
    assert!(new.claimed_at > old.claimed_at && new.processed_at > old.processed_at);
    assert!(new.expires_at > old.expires_at && new.outcome_until > old.outcome_until);
    // A takeover that fails leaves the old record as it was.
    expire(&db).await;
    let before = store.find(&identity("k")).await.expect("asked");
    run::<_, (), _>(&store, claim(), async |_| Err(Fail::Told)).await.expect_err("told to");
    assert_eq!(store.find(&identity("k")).await.expect("asked"), before);
}

#[tokio::test]
async fn a_message_beyond_the_horizon_does_not_run_unless_somebody_decided_so() {
    // C29
    let db = Db::fresh().await;
    let store = db.store().await;
    let late = || claim("k").with_retain(hours(1)).with_occurred_at(ago(HOUR + Duration::from_secs(5)));
    let error = ran(&store, late()).await.expect_err("beyond the horizon");
    assert!(matches!(error, Error::BeyondHorizon { .. }), "{error:?}");
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    assert!(ran(&store, late().with_older(Older::Run)).await.expect("runs"));
    // In time, by a little.
    let in_time =
        claim("in time").with_retain(hours(1)).with_occurred_at(ago(HOUR - Duration::from_secs(30)));
    assert!(ran(&store, in_time).await.expect("runs"));
}

#[tokio::test]
async fn between_retain_and_remember_it_is_known_but_no_longer_answered() {
    // C29: the fingerprint is checked first.
    let db = Db::fresh().await;
    let store = db.store().await;
    let kept =
        || claim("k").with_retain(hours(1)).with_remember(hours(2)).with_occurred_at(ago(Duration::ZERO));
    assert!(ran(&store, kept()).await.expect("runs"));
    let record = store.find(&identity("k")).await.expect("asked").expect("there");
    let between = record.expires_at.expect("finite").duration_since(record.outcome_until.expect("finite"));
    assert_eq!(between.expect("later"), HOUR);
    for forget in [
        format!("UPDATE {INBOX} SET outcome_until = {}", in_seconds(-1)),
        // The sweep drops the outcome.
        format!("UPDATE {INBOX} SET outcome = NULL"),
    ] {
        db.execute(&forget).await;
        let other = ran(&store, kept().with_fingerprint(fingerprint(2))).await.expect_err("another request");
        assert!(matches!(other, Error::Mismatch { .. }), "{other:?}");
        let error = ran(&store, kept()).await.expect_err("no longer answered");
        assert!(matches!(error, Error::Expired { .. }), "{error:?}");
    }
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test]
async fn a_senders_clock_that_is_ahead_keeps_the_record_longer() {
    // C29b
    let db = Db::fresh().await;
    let store = db.store().await;
    let ahead = SystemTime::now() + 2 * HOUR;
    assert!(ran(&store, claim("k").with_retain(hours(1)).with_occurred_at(ahead)).await.expect("runs"));
    let record = store.find(&identity("k")).await.expect("asked").expect("there");
    let expires_at = record.expires_at.expect("finite");
    let expected = ahead + HOUR;
    let difference = expires_at.duration_since(expected).unwrap_or_else(|e| e.duration());
    assert!(difference < Duration::from_millis(1), "{difference:?}");
    // A takeover likewise.
    expire(&db).await;
    let again = claim("k").with_retain(hours(1)).with_occurred_at(ahead).with_older(Older::Run);
    assert!(ran(&store, again).await.expect("taken over"));
    let record = store.find(&identity("k")).await.expect("asked").expect("there");
    assert_eq!((record.expires_at, record.outcome_until), (Some(expires_at), None));
    // One that is behind does not shorten it: the redelivery at the edge finds the record or is refused.
    let behind = claim("b").with_retain(hours(1)).with_occurred_at(ago(HOUR - Duration::from_secs(60)));
    assert!(ran(&store, behind).await.expect("runs"));
    let record = store.find(&identity("b")).await.expect("asked").expect("there");
    assert!(record.expires_at.expect("finite") > SystemTime::now() + HOUR - Duration::from_secs(60));
}

#[tokio::test]
async fn an_event_from_the_far_future_is_refused_also_as_a_duplicate() {
    // C29c
    let db = Db::fresh().await;
    let store = db.store().await;
    let at = |hours: u32| {
        claim("k").with_retain(Retain::For(HOUR)).with_occurred_at(SystemTime::now() + hours * HOUR)
    };
    for far in [at(25), claim("k").with_occurred_at(SystemTime::now() + Duration::from_secs(u64::MAX >> 3))] {
        let error = ran(&store, far).await.expect_err("too far ahead");
        assert!(matches!(error, Error::InvalidOccurredAt { .. }), "{error:?}");
    }
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    assert!(ran(&store, at(23)).await.expect("runs"));
    let error = ran(&store, at(25)).await.expect_err("too far ahead");
    assert!(matches!(error, Error::InvalidOccurredAt { .. }), "{error:?}");
    // Before 1970 and before the year 1 are times too.
    let ancient = SystemTime::UNIX_EPOCH - Duration::from_secs(63_000_000_000);
    let error = ran(&store, claim("old").with_retain(hours(1)).with_occurred_at(ancient)).await;
    assert!(matches!(error, Err(Error::BeyondHorizon { .. })), "{error:?}");
}

#[tokio::test]
async fn without_a_time_a_record_under_refuse_is_kept_for_ever() {
    // C29c
    let db = Db::fresh().await;
    let store = db.store().await;
    assert!(ran(&store, claim("k").with_retain(hours(1))).await.expect("runs"));
    let record = store.find(&identity("k")).await.expect("asked").expect("there");
    assert_eq!(record.expires_at, None);
    assert!(record.outcome_until.is_some());
    assert!(ran(&store, claim("run").with_retain(hours(1)).with_older(Older::Run)).await.expect("runs"));
    let record = store.find(&identity("run")).await.expect("asked").expect("there");
    assert!(record.expires_at.is_some());
    assert_eq!(record.outcome_until, None, "as long as the record");
    let long = claim("long").with_retain(Retain::For(Duration::MAX)).with_older(Older::Run);
    assert!(ran(&store, long).await.expect("runs"));
    assert_eq!(store.find(&identity("long")).await.expect("asked").expect("there").expires_at, None);
}

#[tokio::test]
async fn an_override_runs_again_and_a_mismatch_stays_a_mismatch() {
    let db = Db::fresh().await;
    let store = db.store().await;
    assert!(ran(&store, claim("k")).await.expect("runs"));
    let again = store.overriding(Override::new("ticket-2", "ops").run_again());
    assert!(ran(&again, claim("k")).await.expect("runs again"));
    let error = ran(&again, claim("k").with_fingerprint(fingerprint(2))).await.expect_err("another request");
    assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
    assert!(!ran(&store, claim("k")).await.expect("replays"));
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 2);
    // An override that allows nothing changes nothing.
    let nothing = store.overriding(Override::new("ticket-3", "ops"));
    assert!(!ran(&nothing, claim("k")).await.expect("replays"));
}
