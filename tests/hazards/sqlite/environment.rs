//! What others do to the file and the readers: other processes, options of the user's, readers in use.

use std::time::{Duration, Instant};

use idem_runtime::{Claim, Error, Older, Retain, Store as _};

use super::db::{Db, Tx};
use super::race::{apply, effect};
use crate::handler::{claim, run};

fn takeable(key: &str) -> Claim {
    claim(key).with_retain(Retain::For(Duration::from_secs(3600))).with_older(Older::Run)
}

/// The readers are public. Who knows of no record takes the writer, who knows of one waits for a reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_record_does_not_need_a_reader_while_the_writer_is_free() {
    let db = Db::fresh().await;
    let store = db.store().await.with_claim_wait(Duration::from_secs(1));
    apply(&store, "k").await.expect("applied");
    let mut reports = Vec::new();
    for _ in 0..4 {
        reports.push(store.readers().acquire().await.expect("a reader"));
    }
    apply(&store, "fresh").await.expect("the writer is free");
    let known = apply(&store, "k").await.map(|o| o.is_replay());
    // What has been swept could run, too.
    db.execute("DELETE FROM idem_inbox").await;
    let swept = apply(&store, "k").await.map(|o| o.is_replay());
    assert!(matches!(known, Ok(true)) && matches!(swept, Ok(false)), "{known:?} {swept:?}");
}

/// A look for a record that fails must not fail the claim that waits for the writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_fails_does_not_fail_the_claim() {
    let db = Db::fresh().await;
    let store = db.store().await;
    apply(&store, "warm").await.expect("applied");
    let held = store.claim(claim("other")).await.expect("claimed");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { apply(&store, "k").await.map(|o| o.is_replay()) }
    });
    store.readers().close().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    store
        .release(match held {
            idem_runtime::Claimed::Fresh(tx) => tx,
            idem_runtime::Claimed::Done(_) => panic!("fresh"),
        })
        .await
        .expect("released");
    let waiting = waiting.await.expect("no panic");
    assert!(matches!(waiting, Ok(false)), "{waiting:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_of_one_that_waits_for_the_writer_is_busy_and_not_in_progress() {
    let db = Db::fresh().await;
    let store = db.store().await;
    let held = store.claim(claim("other")).await.expect("claimed");
    let first = tokio::spawn({
        let store = store.clone().with_claim_wait(Duration::from_secs(2));
        async move { run(&store, claim("k"), async |_| Ok(())).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let hurried = store.with_claim_wait(Duration::from_millis(300));
    let error = run(&hurried, claim("k"), async |_| Ok(())).await.expect_err("no writer").idem();
    let first = first.await.expect("no panic").expect_err("no writer").idem();
    assert!(matches!(first, Error::Busy { .. }), "{first:?}");
    assert!(matches!(error, Error::Busy { .. }), "nobody runs `k`: {error:?}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_kept_until_the_end_of_all_integers_is_not_run_again() {
    let db = Db::fresh().await;
    let store = db.store().await;
    run(&store, takeable("k"), async |tx: &mut Tx| effect(tx, "k").await).await.expect("runs");
    db.execute("UPDATE idem_inbox SET expires_at = 9223372036854775807").await;
    assert!(
        run(&store, takeable("k"), async |tx: &mut Tx| effect(tx, "k").await)
            .await
            .expect("known")
            .is_replay()
    );
}

/// Another process holds the file for long.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_that_holds_the_file_does_not_hold_a_replay_nor_a_claim_beyond_its_wait() {
    let db = Db::fresh().await;
    let store = db.store().await.with_claim_wait(Duration::from_millis(300));
    apply(&store, "k").await.expect("applied");
    // The writer is replaced.
    let _ = run(&store, claim("broken"), async |tx: &mut Tx| {
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await;
        Ok(())
    })
    .await;
    let mut other = db.pool.acquire().await.expect("acquired");
    sqlx::raw_sql("BEGIN EXCLUSIVE; INSERT INTO effect (key) VALUES ('x')")
        .execute(&mut *other)
        .await
        .expect("held");
    let unknown = db.store().await.with_claim_wait(Duration::from_millis(300));
    unknown.check().await.expect("ready");
    for store in [&store, &unknown] {
        let started = Instant::now();
        assert!(apply(store, "k").await.expect("it can be read").is_replay());
        let fresh = apply(store, "fresh").await.expect_err("the file is held").idem();
        assert!(matches!(fresh, Error::Busy { .. }), "{fresh:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut *other).await.expect("done");
    apply(&store, "fresh").await.expect("runs");
}

/// The answer is there, and another process's body (of another key) has the writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_does_not_wait_for_the_body_of_another_key_in_another_process() {
    let db = Db::fresh().await;
    let other = db.store().await;
    apply(&other, "k").await.expect("applied");
    let store = db.store().await.with_claim_wait(Duration::from_secs(1));
    store.check().await.expect("ready");
    let held = other.claim(claim("long")).await.expect("claimed");
    assert!(apply(&other, "k").await.expect("known there").is_replay());
    let replay = apply(&store, "k").await.map(|o| o.is_replay());
    drop(held);
    assert!(matches!(replay, Ok(true)), "it is recorded, and could be read: {replay:?}");
}

/// Options of the user's: a shared cache, whose readers see what is not committed. While a decided second run goes on,
/// a duplicate is told that it has been applied and cannot be read, and the run is then rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_may_read_uncommitted_is_not_believed() {
    let db = Db::fresh().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(db.url())
        .shared_cache(true)
        .pragma("read_uncommitted", "1");
    let store = idem_runtime::SqliteStore::connect(options).await.expect("opened");
    apply(&store, "k").await.expect("applied");
    let again = store.overriding(idem_runtime::Override::new("why", "who").run_again());
    let held = again.claim(claim("k")).await.expect("claimed");
    assert!(matches!(held, idem_runtime::Claimed::Fresh(_)));
    let seen = apply(&store, "k").await.map(|o| o.is_replay());
    drop(held);
    assert!(matches!(seen, Ok(true)), "{seen:?}");
}

/// The same, as it is by default in a shared cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_cache_does_not_make_claims_fail() {
    let db = Db::fresh().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(db.url()).shared_cache(true);
    let store = idem_runtime::SqliteStore::connect(options).await.expect("opened");
    let store = store.with_claim_wait(Duration::from_secs(2));
    apply(&store, "k").await.expect("applied");
    let held = store.claim(claim("long")).await.expect("claimed");
    let known = apply(&store, "k").await.map(|o| o.is_replay());
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { apply(&store, "fresh").await.map(|o| o.is_replay()) }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(held);
    let fresh = waiting.await.expect("no panic");
    assert!(matches!((&known, &fresh), (Ok(true), Ok(false))), "{known:?} {fresh:?}");
}
