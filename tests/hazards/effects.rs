//! Effects are staged with the run or not at all, under a key that is a function of the run (C32, C33, C43b, C43d).

use std::collections::HashSet;
use std::time::Duration;

use idem_runtime::{Effect, EffectKey, Error, Older, Override, Retain};
use idem_testkit::wait::eventually;
use serde::{Deserialize, Serialize};

use super::db::{Db, INBOX, OUTBOX, Store, Tx};
use super::race::effect;
use super::worker::work_until;
use crate::handler::{Fail, claim, run};
use crate::provider::{InLine, Mail, Scripted, mail};

async fn staging(store: &Store, key: &str) -> Result<String, Fail> {
    let outcome = run(store, claim(key), async |tx: &mut Tx| {
        effect(tx, key).await?;
        Ok(tx.stage(mail(key)).await?.to_string())
    });
    outcome.await.map(idem_runtime::Outcome::into_inner)
}

impl Db {
    pub async fn staged(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM {OUTBOX}")).await
    }

    pub async fn in_state(&self, state: &str) -> i64 {
        self.count(&format!("SELECT count(*) FROM {OUTBOX} WHERE state = '{state}'")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_run_staged_is_never_sent_and_what_a_committed_one_staged_is() {
    // C32
    let db = Db::fresh().await;
    let store = db.store().await;
    let failed = run::<_, (), _>(&store, claim("failed"), async |tx: &mut Tx| {
        tx.stage(mail("failed")).await?;
        Err(Fail::Told)
    });
    assert!(matches!(failed.await, Err(Fail::Told)));
    let undone = run(&store, claim("undone"), async |tx: &mut Tx| {
        let mut savepoint = tx.begin().await?;
        savepoint.stage(mail("undone")).await?;
        savepoint.rollback().await?;
        tx.stage(mail("kept")).await?;
        Ok(())
    });
    undone.await.expect("runs");
    staging(&store, "ok").await.expect("runs");
    drop(store);

    // As after a crash right after the commit: nobody was told.
    let provider = Scripted::reliable();
    work_until::<Mail>(&db.store().await, provider.clone(), async || db.in_state("delivered").await == 2)
        .await;
    let mut sent: Vec<_> =
        provider.calls().iter().map(|call| String::from_utf8_lossy(&call.payload).into_owned()).collect();
    sent.sort();
    assert_eq!(sent, [r#"{"to":"kept"}"#, r#"{"to":"ok"}"#]);
    assert_eq!(db.staged().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_repeated_after_a_lost_commit_stages_under_the_same_key() {
    // C43b: a failover has lost the commit, and the message comes again.
    let db = Db::fresh().await;
    let store = db.store().await;
    let first = staging(&store, "k").await.expect("runs");
    db.execute(&format!("DELETE FROM {OUTBOX}; DELETE FROM {INBOX}; DELETE FROM effect")).await;
    assert_eq!(staging(&store, "k").await.expect("runs"), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_after_the_identity_expired_stages_under_another_key() {
    // C43b
    let db = Db::fresh().await;
    let store = db.store().await;
    let mut keys = HashSet::new();
    let short = || {
        let claim = claim("k").with_retain(Retain::For(Duration::from_millis(20)));
        claim.with_older(Older::Run)
    };
    eventually("it runs three times", Duration::from_secs(20), async || {
        let outcome =
            run(&store, short(), async |tx: &mut Tx| Ok(tx.stage(mail("again")).await?.to_string()));
        keys.insert(outcome.await.expect("each run has a key of its own").into_inner());
        keys.len() == 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_second_run_stages_under_another_key() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let first = staging(&store, "k").await.expect("runs");
    let forced = store.overriding(Override::new("restore", "ops").run_again());
    let second = staging(&forced, "k").await.expect("runs again");
    assert_ne!(first, second);
    // Its label is its generation: the same decision carried out twice is one effect.
    let error = staging(&forced, "k").await.expect_err("staged before").idem();
    assert!(matches!(error, Error::EffectKeyTaken { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_whose_key_is_taken_rolls_the_run_back_also_where_the_body_goes_on() {
    // C43d
    let db = Db::fresh().await;
    let store = db.store().await;
    staging(&store, "k").await.expect("runs");
    db.execute(&format!("DELETE FROM {INBOX}")).await;
    // Not known to this process.
    let store = db.store().await;
    let error = staging(&store, "k").await.expect_err("staged before").idem();
    assert!(matches!(&error, Error::EffectKeyTaken { effect: "mail", .. }), "{error:?}");
    assert!(!error.is_retryable() && error.to_string().contains("override"), "{error}");
    let swallowed = run(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        let _ = tx.stage(mail("k")).await;
        Ok(())
    });
    let error = swallowed.await.expect_err("half of it is not what was meant").idem();
    assert!(matches!(error, Error::EffectKeyTaken { .. }), "{error:?}");
    assert_eq!((db.staged().await, db.count("SELECT count(*) FROM effect").await), (1, 1));
}

/// Serializes to what it cannot read.
#[derive(Debug, Serialize, Deserialize)]
struct Unreadable {
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "only read back, which fails")]
    needed: u8,
}

impl Effect for Unreadable {
    const NAME: &'static str = "unreadable";
}

#[derive(Debug, Serialize, Deserialize)]
struct NoJson(#[serde(serialize_with = "refuse")] u8);

fn refuse<S: serde::Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("told to"))
}

impl Effect for NoJson {
    const NAME: &'static str = "no json";
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_that_cannot_be_staged_rolls_the_run_back_and_leaves_the_key() {
    let db = Db::fresh().await;
    let store = db.store().await.with_max_effect_bytes(100);
    async fn staged<E: Effect>(db: &Db, store: &Store, effect_: E) -> Error {
        let mut effect_ = Some(effect_);
        let body = run(store, claim("k"), async |tx: &mut Tx| {
            effect(tx, "k").await?;
            drop(tx.stage(effect_.take().expect("once")).await);
            Ok(())
        });
        let error = body.await.expect_err("rolled back").idem();
        assert_eq!((db.staged().await, db.count("SELECT count(*) FROM effect").await), (0, 0));
        assert!(!error.is_retryable() && matches!(error, Error::EffectRejected { .. }), "{error:?}");
        error
    }
    let line = |line: String| InLine { line, number: 1 };
    for (error, reason) in [
        (staged(&db, &store, mail(&"x".repeat(100))).await, "100 is the store's limit"),
        (staged(&db, &store, Unreadable { needed: 1 }).await, "missing field `needed`"),
        (staged(&db, &store, NoJson(1)).await, "told to"),
        (
            staged(&db, &store.clone().with_max_effect_bytes(5_000), line("x".repeat(1_025))).await,
            "order key",
        ),
        (staged(&db, &store, line("a\0b".to_owned())).await, "order key"),
    ] {
        assert!(error.to_string().contains(reason), "{error}");
    }
    let fits = run(&store, claim("k"), async |tx: &mut Tx| {
        Ok(tx.stage(mail(&"x".repeat(100 - r#"{"to":""}"#.len()))).await?.to_string())
    });
    fits.await.expect("exactly the limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_of_one_run_have_keys_of_their_own_and_a_call_of_the_body_another() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let keys = async |store: &Store| {
        let body = run(store, claim("k"), async |tx: &mut Tx| {
            let mut keys: Vec<EffectKey> = vec![tx.effect_key("mail"), tx.effect_key("other")];
            for to in ["a", "a", "b"] {
                keys.push(tx.stage(mail(to)).await?);
            }
            keys.push(tx.stage(InLine { line: String::new(), number: 1 }).await?);
            assert_eq!(tx.effect_key("mail"), keys[0], "it is the same however often it is asked for");
            Ok(keys.iter().map(ToString::to_string).collect::<Vec<_>>())
        });
        body.await.expect("runs").into_inner()
    };
    let first = keys(&store).await;
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 6);
    assert_eq!(keys(&store).await, first, "the outcome is replayed");
    assert_eq!(db.staged().await, 4);
}
