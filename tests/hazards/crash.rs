//! Handlers that die: by an error, a panic, or because nobody waits for them any more.

use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::{Error, Store as _};
use idem_testkit::cancel::{self, at_every_poll, at_every_wake};

use super::db::{Db, INBOX, Store, Tx};
use super::race::effect;
use crate::handler::{Fail, claim, identity, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_body_leaves_no_trace_and_the_next_delivery_runs() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let failed = run::<_, (), _>(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        Err(Fail::Told)
    });
    assert!(matches!(failed.await, Err(Fail::Told)));
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 0);
    assert!(!run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_rolls_back_and_goes_on_as_a_panic() {
    // C12
    let db = Db::fresh().await;
    let store = db.store().await;
    let panicking = run::<_, (), _>(&store, claim("k"), async |tx: &mut Tx| {
        effect(tx, "k").await?;
        panic!("told to");
    });
    let panic = std::panic::AssertUnwindSafe(panicking).catch_unwind().await.expect_err("goes on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"told to"));
    assert!(!run(&store, claim("k"), async |tx| effect(tx, "k").await).await.expect("runs").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
    db.assert_no_open_transaction().await;
}

/// After a cancelled run: nothing, or record and effect. A retry brings exactly one.
async fn assert_all_or_nothing(db: &Db, store: &Store, key: &str) {
    let before = db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await;
    assert!(before <= 1);
    let outcome = run(store, claim(key), async |tx| effect(tx, key).await).await.expect("settles");
    let after = db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await;
    assert_eq!(after, 1, "effect without record, or record without effect (replay: {})", outcome.is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_dropped_at_every_poll_has_happened_or_has_not() {
    // C9
    let db = Db::fresh().await;
    let store = db.store().await;
    let (make_store, check_store) = (store.clone(), store.clone());
    let handler = async move |n: usize| {
        let key = format!("poll-{n}");
        run(&make_store, claim(&key), async |tx: &mut Tx| {
            effect(tx, &key).await?;
            let mut part = tx.begin().await?;
            sqlx::query("INSERT INTO named (name) VALUES ($1)")
                .bind(key.clone())
                .execute(&mut **part)
                .await?;
            part.commit().await?;
            Ok(())
        })
        .await
    };
    let polls = at_every_poll(handler, async |n, _| {
        assert_all_or_nothing(&db, &check_store, &format!("poll-{n}")).await;
    })
    .await;
    // How many there are depends on how soon the answers come.
    assert!(polls > 0);
    db.assert_no_open_transaction().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_dropped_when_it_is_woken_has_happened_or_has_not() {
    // C9: with the answer there, but unread.
    let db = Db::fresh().await;
    let store = db.store().await;
    let (make_store, check_store) = (store.clone(), store.clone());
    let handler = async move |n: usize| {
        let key = format!("wake-{n}");
        run(&make_store, claim(&key), async |tx: &mut Tx| effect(tx, &key).await).await
    };
    at_every_wake(handler, async |n, _| {
        assert_all_or_nothing(&db, &check_store, &format!("wake-{n}")).await;
    })
    .await;
    db.assert_no_open_transaction().await;
}

/// The two ways to be dropped at the `n`-th poll: with the question on its way, or with the answer there but unread.
#[derive(Clone, Copy, Debug)]
enum DropAt {
    Poll,
    Wake,
}

impl DropAt {
    fn the<F: Future>(self, n: usize, future: F) -> cancel::DropAt<F> {
        match self {
            Self::Poll => cancel::drop_at_poll(n, future),
            Self::Wake => cancel::drop_at_wake(n, future),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_dropped_at_every_poll_leaves_the_run_whole() {
    // C9, inside a body that goes on: a part that was cancelled is not in the run, and the run is.
    let db = Db::fresh().await;
    let store = db.store().await;
    for drop_at in [DropAt::Poll, DropAt::Wake] {
        let (mut n, mut finished) = (0, false);
        while !finished {
            let key = format!("{drop_at:?}-{n}");
            let ended = run(&store, claim(&key), async |tx: &mut Tx| {
                effect(tx, &key).await?;
                let part = drop_at.the(n, async {
                    let mut part = tx.begin().await?;
                    sqlx::query("INSERT INTO named (name) VALUES ($1)")
                        .bind(key.clone())
                        .execute(&mut **part)
                        .await?;
                    Ok::<_, Fail>(part.rollback().await?)
                });
                let through = part.await.transpose()?.is_some();
                effect(tx, &key).await?;
                Ok(through)
            })
            .await;
            finished = ended.expect("the run itself is not cancelled").into_inner();
            assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 2);
            assert_eq!(db.count("SELECT count(*) FROM named").await, 0);
            n += 1;
        }
    }
    assert_eq!(db.count(&format!("SELECT count(*) FROM {INBOX} WHERE processed_at IS NULL")).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_whose_commit_is_dropped_is_with_the_run_or_the_run_is_not() {
    let db = Db::fresh().await;
    let store = db.store().await;
    for drop_at in [DropAt::Poll, DropAt::Wake] {
        let (mut n, mut finished) = (0, false);
        while !finished {
            let key = format!("{drop_at:?}-{n}");
            let body = run(&store, claim(&key), async |tx: &mut Tx| {
                effect(tx, &key).await?;
                let part = drop_at.the(n, async {
                    let mut part = tx.begin().await?;
                    sqlx::query("INSERT INTO named (name) VALUES ($1)")
                        .bind(key.clone())
                        .execute(&mut **part)
                        .await?;
                    Ok::<_, Fail>(part.commit().await?)
                });
                Ok(part.await.transpose()?.is_some())
            });
            let ended = std::panic::AssertUnwindSafe(body).catch_unwind().await;
            let runs = db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await;
            let parts = db.count(&format!("SELECT count(*) FROM named WHERE name = '{key}'")).await;
            match ended {
                Ok(Ok(through)) => {
                    finished = through.into_inner();
                    assert_eq!((runs, parts), (1, i64::from(finished)), "{key}");
                }
                Ok(Err(_)) | Err(_) => assert_eq!((runs, parts), (0, 0), "{key}"),
            }
            n += 1;
        }
    }
}

/// Cancels a query that takes a while, so that what is asked next has no answer when it is dropped too.
async fn keep_busy(tx: &mut Tx) {
    let slow = sqlx::query(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n",
    );
    assert!(cancel::drop_at_poll(1, slow.execute(&mut **tx)).await.is_none(), "it takes a while");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_whose_commit_is_dropped_behind_a_slow_query_takes_the_run_with_it() {
    // C9: the database still gets the commit of the part, and the body takes it for cancelled.
    let db = Db::fresh().await;
    let store = db.store().await;
    let ended = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut part = tx.begin().await?;
        sqlx::query("INSERT INTO named (name) VALUES ('part')").execute(&mut **part).await?;
        keep_busy(&mut part).await;
        assert!(cancel::drop_at_poll(1, part.commit()).await.is_none());
        Ok(())
    });
    let error = ended.await.expect_err("nobody knows what is in the run").idem();
    assert!(matches!(error, Error::TransactionEnded { .. }), "{error:?}");
    assert_eq!(db.count("SELECT count(*) FROM named").await, 0);
    // Nor does anything of it stay with the connection.
    let next = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut part = tx.begin().await?;
        sqlx::query("INSERT INTO named (name) VALUES ('next')").execute(&mut **part).await?;
        drop(part);
        effect(tx, "k").await
    });
    assert!(!next.await.expect("runs").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM named").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_after_one_whose_rollback_was_dropped_is_rolled_back_too() {
    // C9
    let db = Db::fresh().await;
    let store = db.store().await;
    let outcome = run(&store, claim("k"), async |tx: &mut Tx| {
        let mut first = tx.begin().await?;
        sqlx::query("INSERT INTO named (name) VALUES ('first')").execute(&mut **first).await?;
        keep_busy(&mut first).await;
        assert!(cancel::drop_at_poll(1, first.rollback()).await.is_none());
        let mut second = tx.begin().await?;
        sqlx::query("INSERT INTO named (name) VALUES ('second')").execute(&mut **second).await?;
        drop(second);
        effect(tx, "k").await
    });
    assert!(!outcome.await.expect("applied").is_replay());
    assert_eq!(db.count("SELECT count(*) FROM named").await, 0);
    assert_eq!(db.count("SELECT count(*) FROM effect").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_own_begin_dropped_at_every_poll_never_leaves_an_effect_without_a_record() {
    // C9: sqlx rolls everything back then, and would go on in autocommit, or begin a transaction instead of a part.
    let db = Db::fresh().await;
    let store = db.store().await;
    for (drop_at, in_a_part) in
        [(DropAt::Poll, false), (DropAt::Wake, false), (DropAt::Poll, true), (DropAt::Wake, true)]
    {
        let (mut n, mut finished) = (0, false);
        while !finished {
            let key = format!("{drop_at:?}-{in_a_part}-{n}");
            let body = run(&store, claim(&key), async |tx: &mut Tx| {
                let begun =
                    drop_at.the(n, async { sqlx::Connection::begin(&mut **tx).await?.commit().await });
                let through = begun.await.transpose()?.is_some();
                if in_a_part {
                    let mut part = tx.begin().await?;
                    effect(&mut part, &key).await?;
                    part.commit().await?;
                } else {
                    effect(tx, &key).await?;
                }
                Ok(through)
            });
            let ended = std::panic::AssertUnwindSafe(body).catch_unwind().await;
            let effects = db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await;
            match ended {
                Ok(Ok(through)) => {
                    finished = through.into_inner();
                    assert_eq!(effects, 1, "{key}");
                }
                Ok(Err(_)) | Err(_) => assert_eq!(effects, 0, "{key}"),
            }
            let retried = run(&store, claim(&key), async |tx| effect(tx, &key).await.map(|()| true)).await;
            retried.expect("the next delivery is fine");
            assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
            n += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_dropped_inside_the_body_does_not_end_the_run() {
    // C9: the answer of the cancelled query is still on its way when the next one is sent.
    let db = Db::fresh().await;
    let store = db.store().await;
    for n in 0..4 {
        let key = format!("query-{n}");
        let outcome = run(&store, claim(&key), async |tx: &mut Tx| {
            cancel::drop_at_poll(n, sqlx::query("SELECT count(*) FROM effect").execute(&mut **tx))
                .await
                .transpose()?;
            effect(tx, &key).await
        });
        outcome.await.expect("applied");
        assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
    }
}

#[test]
fn a_transaction_dropped_outside_a_runtime_rolls_back_without_a_panic() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let (db, store) = runtime.block_on(async {
        let db = Db::fresh().await;
        let store = db.store().await;
        (db, store)
    });
    let claimed = runtime.block_on(store.claim(claim("k"))).expect("claimed");
    drop(claimed);
    runtime.block_on(async {
        let again = tokio::time::timeout(Duration::from_secs(20), run(&store, claim("k"), async |_| Ok(())));
        assert!(!again.await.expect("in time").expect("runs").is_replay());
        drop((store, db));
    });
}

#[test]
fn a_runtime_that_ends_with_a_transaction_open_frees_the_key() {
    let other = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let db = runtime.block_on(Db::fresh());
    let claimed = other.block_on(async {
        let store = db.store().await;
        store.claim(claim("k")).await.expect("claimed")
    });
    drop(other);
    drop(claimed);
    runtime.block_on(async {
        let store = db.store().await;
        assert!(!run(&store, claim("k"), async |_| Ok(())).await.expect("runs").is_replay());
        drop((store, db));
    });
}
