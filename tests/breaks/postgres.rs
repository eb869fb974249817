//! On Postgres.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::{Concurrent, Error, Outcome, PgStore, PgTx, Store as _};
use idem_testkit::postgres::Postgres;
use idem_testkit::wait::eventually;
use tokio::task::JoinSet;

use crate::handler::{Fail, claim, run};
use crate::pg::{Db, pool};

async fn effect(tx: &mut PgTx, key: &str) -> Result<(), Fail> {
    sqlx::query("INSERT INTO effect (key) VALUES ($1)").bind(key.to_owned()).execute(&mut **tx).await?;
    Ok(())
}

async fn apply(store: &PgStore, key: &str) -> Result<Outcome<()>, Fail> {
    run(store, claim(key), async |tx| effect(tx, key).await).await
}

/// `concurrent = reject`: nobody else runs the key, but the pool was busy for longer than the short wait, and the
/// insert takes a few milliseconds.
#[tokio::test(flavor = "multi_thread")]
async fn reject_is_not_in_progress_because_the_pool_was_busy() {
    let db = Db::fresh().await;
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.004); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE INSERT ON idem.inbox FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    .await;
    let store = db.store_of(1);
    apply(&store, "first").await.expect("ready");
    let in_use = store.pool().acquire().await.expect("the only one");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { run(&store, claim("k").with_concurrent(Concurrent::Reject), async |_| Ok(())).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(in_use);
    waiting.await.expect("no panic").expect("nobody else runs it");
}

/// Callers that time out on a pool that is in use do not open connections beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_opens_no_connections_beside_it() {
    let db = Db::fresh().await;
    let server = Postgres::builder().fsync(false).setting("log_connections", "on").start().expect("server");
    let store = PgStore::new(pool(&server.url("postgres"), 2)).with_claim_wait(Duration::from_millis(300));
    store.migrate().await.expect("migrated");
    store.check().await.expect("ok");
    let before = server.log().matches("connection authorized").count();
    let _a = store.claim(claim("a")).await.expect("claimed");
    let _b = store.claim(claim("b")).await.expect("claimed");
    let mut tasks = JoinSet::new();
    for n in 0..400 {
        let store = store.clone();
        tasks.spawn(async move { store.claim(claim(&format!("k{n}"))).await.map(drop) });
    }
    let errors: Vec<_> = tasks.join_all().await.into_iter().filter_map(Result::err).collect();
    let busy = errors.iter().filter(|e| matches!(e, Error::Busy { .. })).count();
    let log = server.log();
    let opened = log.matches("connection authorized").count() - before;
    let refused = log.matches("too many clients").count() + log.matches("remaining connection slots").count();
    let other = errors.iter().find(|e| !matches!(e, Error::Busy { .. })).map(|e| e.to_string());
    drop(db);
    assert!(
        opened <= 8 && refused == 0,
        "opened {opened} beside the pool of 2, refused {refused}, busy {busy}, {other:?}"
    );
}

/// Cancelled claims that wait for another process leave the server alone soon.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiters_do_not_pile_up_on_the_server() {
    let db = Db::fresh().await;
    let holder = db.store().await;
    let mut held = Vec::new();
    for n in 0..4 {
        held.push(holder.claim(claim(&format!("k{n}"))).await.expect("claimed"));
    }
    let store = db.store_of(4);
    store.check().await.expect("ok");
    let mut most = 0;
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let calls = (0..4).map(|n| {
            let store = store.clone();
            async move {
                tokio::time::timeout(Duration::from_millis(50), store.claim(claim(&format!("k{n}"))))
                    .await
                    .is_ok()
            }
        });
        futures_util::future::join_all(calls).await;
        most = most.max(db.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").await);
    }
    assert!(most <= 8, "{most} sessions of a pool of 4 wait on the server");
}

/// Timeouts of callers under overload: what still gets through.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_time_out_under_overload_do_not_starve_the_rest() {
    let db = Db::fresh().await;
    let goodput = |shielded: bool| {
        let url = db.url().to_owned();
        async move {
            let pool = pool(&url, 2);
            let store = PgStore::new(pool.clone());
            store.check().await.expect("ok");
            let until = Instant::now() + Duration::from_secs(4);
            let done = Arc::new(AtomicU64::new(0));
            let mut tasks = JoinSet::new();
            static N: AtomicU64 = AtomicU64::new(0);
            for _ in 0..200 {
                let (store, done, pool) = (store.clone(), done.clone(), pool.clone());
                tasks.spawn(async move {
                    while Instant::now() < until {
                        let key = format!("o{}", N.fetch_add(1, Ordering::Relaxed));
                        let ok = if shielded {
                            tokio::time::timeout(Duration::from_millis(30), apply(&store, &key))
                                .await
                                .is_ok_and(|r| r.is_ok())
                        } else {
                            let bare = async {
                                let mut tx = pool.begin().await?;
                                sqlx::query("INSERT INTO named VALUES ($1)")
                                    .bind(&key)
                                    .execute(&mut *tx)
                                    .await?;
                                sqlx::query("INSERT INTO effect (key) VALUES ($1)")
                                    .bind(&key)
                                    .execute(&mut *tx)
                                    .await?;
                                tx.commit().await
                            };
                            tokio::time::timeout(Duration::from_millis(30), bare)
                                .await
                                .is_ok_and(|r: Result<(), sqlx::Error>| r.is_ok())
                        };
                        done.fetch_add(u64::from(ok), Ordering::Relaxed);
                    }
                });
            }
            tasks.join_all().await;
            done.load(Ordering::Relaxed)
        }
    };
    let bare = goodput(false).await;
    let ours = goodput(true).await;
    assert!(ours * 10 > bare, "{ours} calls got through, in a bare transaction {bare}");
}

/// REINDEX CONCURRENTLY of the primary key under duplicates of two processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_reindex_leaks_no_unique_violation() {
    let db = Db::fresh().await;
    let stores = [db.store().await, db.store().await];
    let stop = Arc::new(AtomicBool::new(false));
    let reindex = tokio::spawn({
        let (pool, stop) = (db.pool.clone(), stop.clone());
        async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                sqlx::raw_sql("REINDEX INDEX CONCURRENTLY idem.inbox_pkey")
                    .execute(&pool)
                    .await
                    .expect("reindexed");
                n += 1;
            }
            n
        }
    });
    let mut wrong = Vec::new();
    let until = Instant::now() + Duration::from_secs(15);
    let mut rounds = 0;
    while Instant::now() < until {
        rounds += 1;
        let calls = (0..12).map(|n| {
            let (store, key) = (stores[n % 2].clone(), format!("r{rounds}-{}", n / 4));
            tokio::spawn(async move { apply(&store, &key).await })
        });
        for r in futures_util::future::join_all(calls).await {
            if let Err(e) = r.expect("no panic") {
                wrong.push(e.to_string());
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let reindexed = reindex.await.expect("ok");
    let double =
        db.count("SELECT count(*) FROM (SELECT key FROM effect GROUP BY key HAVING count(*) > 1) x").await;
    assert!(
        wrong.is_empty() && double == 0,
        "{rounds} rounds, {reindexed} reindexed: {double} double; {} errors, {:?}",
        wrong.len(),
        wrong.first()
    );
}

/// An inbox that a crash empties.
#[tokio::test(flavor = "multi_thread")]
async fn an_unlogged_inbox_is_refused() {
    let db = Db::fresh().await;
    db.execute("ALTER TABLE idem.inbox SET UNLOGGED").await;
    let r = db.store().await.check().await;
    assert!(r.is_err(), "records vanish in a crash, effects do not");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_that_is_no_key_is_refused() {
    for index in [
        "CREATE UNIQUE INDEX ON idem.inbox (operation, scope) INCLUDE (key)",
        "CREATE UNIQUE INDEX ON idem.inbox (operation, scope, key, lower(key))",
    ] {
        let db = Db::fresh().await;
        db.execute("ALTER TABLE idem.inbox DROP CONSTRAINT inbox_pkey").await;
        db.execute(index).await;
        let r = db.store().await.check().await;
        let claimed = apply(&db.store().await, "k").await;
        assert!(r.is_err(), "{index}: {claimed:?}");
    }
}

/// A body that is idle for longer than the idle timeout has done nothing, and may be tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_ended_because_it_was_idle_can_be_retried() {
    let db = Db::fresh().await;
    let store = db.store().await.with_idle_timeout(Duration::from_millis(300));
    let body = run(&store, claim("k"), async |tx: &mut PgTx| {
        effect(tx, "k").await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?;
        eventually("the server ends the idle session", Duration::from_secs(20), async || {
            db.count(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}")).await == 0
        })
        .await;
        Ok(())
    });
    let error = body.await.expect_err("ended").idem();
    assert!(error.is_retryable(), "{error:?}");
}

/// A body that throws the session's prepared statements away spoils one call, not the connection for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_lost_its_statements_is_replaced() {
    let db = Db::fresh().await;
    let store = db.store_of(1);
    apply(&store, "before").await.expect("applied");
    let body = run(&store, claim("k"), async |tx: &mut PgTx| {
        sqlx::raw_sql("DEALLOCATE ALL").execute(&mut **tx).await?;
        Ok(())
    });
    assert!(body.await.expect_err("the outcome's statement has gone too").idem().is_retryable());
    if let Err(error) = apply(&store, "first").await {
        assert!(error.idem().is_retryable());
    }
    apply(&store, "second").await.expect("on another connection");
    apply(&store, "k").await.expect("it was rolled back");
}

/// What pgbouncer does when its server connection breaks after `COMMIT` was forwarded: a FATAL error to the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_error_from_a_pooler_in_place_of_the_answer_is_in_doubt() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let db = Db::fresh().await;
    let rest = db.url().split_once('@').expect("user").1.to_owned();
    let address = rest.split('/').next().expect("host").to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let fired = Arc::new(AtomicBool::new(false));
    tokio::spawn({
        let fired = fired.clone();
        async move {
            loop {
                let (mut client, _) = listener.accept().await.expect("accepted");
                let (address, fired) = (address.clone(), fired.clone());
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(address).await.expect("connected");
                    let (mut up, mut down) = ([0u8; 65536], [0u8; 65536]);
                    let mut swallow = false;
                    loop {
                        tokio::select! {
                            n = client.read(&mut up) => {
                                let n = n.unwrap_or(0);
                                if n == 0 { return; }
                                if up[..n].windows(6).any(|w| w == b"COMMIT") && !fired.swap(true, Ordering::SeqCst) { swallow = true; }
                                server.write_all(&up[..n]).await.expect("written");
                            }
                            n = server.read(&mut down) => {
                                let n = n.unwrap_or(0);
                                if n == 0 { return; }
                                if swallow {
                                    let body = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0";
                                    let mut message = vec![b'E'];
                                    message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
                                    message.extend_from_slice(body);
                                    client.write_all(&message).await.expect("written");
                                    return;
                                }
                                client.write_all(&down[..n]).await.expect("written");
                            }
                        }
                    }
                });
            }
        }
    });
    let (user, path) =
        (db.url().split_once('@').expect("user").0, rest.split_once('/').expect("path").1.to_owned());
    let store = PgStore::new(pool(&format!("{user}@127.0.0.1:{port}/{path}"), 2));
    store.check().await.expect("ok");
    let r = apply(&store, "k").await;
    assert!(fired.load(Ordering::SeqCst));
    let effects = db.count("SELECT count(*) FROM effect").await;
    assert!(
        matches!(r, Ok(Outcome::Applied(()))) && effects == 1,
        "{effects} effects, and the caller hears {r:?}"
    );
}

/// Everything at once: random time-outs, duplicates, two stores, terminated backends.
#[tokio::test(flavor = "multi_thread")]
async fn storm() {
    let db = Db::fresh().await;
    let stores = [db.store_of(3), db.store_of(1)];
    let until = Instant::now() + Duration::from_secs(15);
    let killer = tokio::spawn({
        let pool = db.pool.clone();
        async move {
            let mut n = 0u64;
            while Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(60)).await;
                n += 1;
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'keep' ORDER BY random() LIMIT 1";
                let _ = sqlx::raw_sql(sql).execute(&pool).await;
            }
            n
        }
    });
    let ok = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let mut tasks = JoinSet::new();
    for worker in 0..24u64 {
        let (stores, ok) = (stores.clone(), ok.clone());
        tasks.spawn(async move {
            let mut x = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut calls = 0u64;
            while Instant::now() < until {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let key = format!("s{}", x % 997);
                let wait = Duration::from_micros(x % 6000);
                let how = x % 11;
                let store = &stores[(x >> 20) as usize % 2];
                calls += 1;
                let call = run(store, claim(&key), async |tx: &mut PgTx| {
                    effect(tx, &key).await?;
                    match how {
                        0 => return Err(Fail::Told),
                        1 => {
                            let sp = tx.begin().await?;
                            drop(sp);
                        }
                        2 => {
                            let mut sp = tx.begin().await?;
                            effect(&mut sp, "sp").await?;
                            sp.rollback().await?;
                        }
                        3 => {
                            drop(tokio::time::timeout(Duration::from_micros(300), tx.begin()).await);
                        }
                        4 => {
                            drop(
                                tokio::time::timeout(
                                    Duration::from_micros(300),
                                    sqlx::query("SELECT pg_sleep(0.002)").execute(&mut **tx),
                                )
                                .await,
                            );
                        }
                        5 => {
                            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_micros(300)));
                        }
                        _ => {}
                    }
                    Ok(())
                });
                match if how == 7 { Ok(call.await) } else { tokio::time::timeout(wait, call).await } {
                    Ok(Ok(_)) => {
                        ok.lock().expect("no panic").insert(key);
                    }
                    Ok(Err(Fail::Idem(e))) if !e.is_retryable() => panic!("{key} {how}: {e:?}"),
                    _ => {}
                }
            }
            calls
        });
    }
    let calls: u64 = tasks.join_all().await.into_iter().sum();
    let kills = killer.await.expect("ok");
    let db2 = sqlx::PgPool::connect(db.url()).await.expect("again");
    let count =
        async |sql: &'static str| sqlx::query_scalar::<_, i64>(sql).fetch_one(&db2).await.expect("counted");
    eventually("what was cancelled has come to its end", Duration::from_secs(30), async || {
        count(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND pid <> pg_backend_pid() AND state <> 'idle'",
        )
        .await
            == 0
    })
    .await;
    let answered = ok.lock().expect("ok").clone();
    let keys: Vec<String> = sqlx::query_scalar("SELECT key FROM effect").fetch_all(&db2).await.expect("read");
    let distinct: std::collections::HashSet<_> = keys.iter().cloned().collect();
    let records = count("SELECT count(*) FROM idem.inbox").await;
    let open = count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'").await;
    eprintln!(
        "{calls} calls, {kills} kills, answered {}, effects {}, distinct {}, records {records}, open {open}, {:?}",
        answered.len(),
        keys.len(),
        distinct.len(),
        stores[0].pool()
    );
    assert!(
        keys.len() == distinct.len()
            && records as usize == distinct.len()
            && answered.is_subset(&distinct)
            && open == 0
    );
    for store in &stores {
        // A connection in the pool may have been terminated.
        let mut tries = 0;
        while let Err(error) = apply(store, "last").await {
            tries += 1;
            assert!(error.idem().is_retryable() && tries < 5);
        }
    }
}
