//! The proxy for real: sqlx on one side, Postgres on the other.

use std::time::{Duration, Instant};

use idem_testkit::postgres::TestDatabase;
use idem_testkit::proxy::{Proxy, Trigger};
use idem_testkit::wait::eventually;
use sqlx::{Connection, PgConnection};

const LONG: Duration = Duration::from_secs(30);

struct Setup {
    database: TestDatabase,
    proxy: Proxy,
}

impl Setup {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let mut direct = PgConnection::connect(database.url()).await.expect("connect");
        sqlx::raw_sql("CREATE TABLE t (n int)").execute(&mut direct).await.expect("table");
        let proxy = Proxy::in_front_of(database.url()).expect("proxy");
        Self { database, proxy }
    }

    async fn connect(&self) -> PgConnection {
        let url = self.proxy.url(self.database.url()).expect("url");
        PgConnection::connect(&url).await.expect("connect by way of the proxy")
    }

    async fn direct(&self) -> PgConnection {
        PgConnection::connect(self.database.url()).await.expect("connect")
    }

    async fn rows(&self) -> i64 {
        count(&mut self.direct().await).await
    }

    /// Waits until the server has no session in this database but the one that looks.
    async fn sessions_end(&self) {
        let mut direct = self.direct().await;
        eventually("the sessions to end", LONG, async || {
            let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                          AND pid <> pg_backend_pid()";
            sqlx::query_scalar::<_, i64>(others).fetch_one(&mut direct).await.expect("look") == 0
        })
        .await;
    }
}

async fn count(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(connection).await.expect("count")
}

/// One insert in a transaction.
async fn insert(connection: &mut PgConnection) -> sqlx::Result<()> {
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO t VALUES ($1)").bind(1).execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::test]
async fn round_trips_are_counted_exactly() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    let proxy = &setup.proxy;
    assert_eq!((proxy.round_trips(), proxy.connections()), (0, 1), "the start of a session is none");

    sqlx::raw_sql("SELECT 1").execute(&mut connection).await.expect("simple");
    assert_eq!(proxy.round_trips(), 1);
    sqlx::raw_sql("SELECT 1; SELECT 2; SELECT 3").execute(&mut connection).await.expect("simple");
    assert_eq!(proxy.round_trips(), 2);

    for expected in [4, 3, 3] {
        proxy.reset();
        let mut transaction = connection.begin().await.expect("begin");
        assert_eq!(proxy.round_trips(), 1, "BEGIN");
        sqlx::query("SELECT $1").bind(1).execute(&mut *transaction).await.expect("select");
        assert_eq!(proxy.round_trips(), expected - 1, "prepared once, then run at each time");
        transaction.commit().await.expect("commit");
        assert_eq!(proxy.round_trips(), expected, "COMMIT");
    }

    proxy.reset();
    connection.close().await.expect("close");
    eventually("the connection to end", LONG, async || proxy.open_connections() == 0).await;
    assert_eq!(proxy.round_trips(), 0);
}

#[tokio::test]
async fn a_cut_before_commit_rolls_back() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    setup.proxy.cut_on(Trigger::before_statement("commit"));
    insert(&mut connection).await.expect_err("cut");
    assert!(setup.proxy.fired());
    setup.sessions_end().await;
    assert_eq!(setup.rows().await, 0);

    let mut connection = setup.connect().await;
    insert(&mut connection).await.expect("the fault fires once");
    assert_eq!(setup.rows().await, 1);
}

#[tokio::test]
async fn a_cut_after_the_answer_to_commit_leaves_it_committed() {
    let setup = Setup::new().await;
    for rows in 1..=20 {
        let mut connection = setup.connect().await;
        setup.proxy.heal();
        setup.proxy.cut_on(Trigger::answered_statement("COMMIT"));
        insert(&mut connection).await.expect_err("cut");
        assert!(setup.proxy.fired());
        assert_eq!(setup.rows().await, rows, "the server had answered");
    }
}

#[tokio::test]
async fn a_commit_into_silence_is_carried_out() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    setup.proxy.silence_on(Trigger::forwarded_statement("COMMIT"));
    let insert = insert(&mut connection);
    tokio::pin!(insert);
    tokio::select! {
        _ = &mut insert => panic!("no answer can come"),
        () = eventually("the row", LONG, async || setup.rows().await == 1) => {}
    }
    assert!(setup.proxy.fired());
    assert_eq!(setup.proxy.open_connections(), 1);
    setup.proxy.cut_all();
    insert.await.expect_err("silent, then cut");
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_its_transaction_open() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    setup.proxy.silence_on(Trigger::before_statement("COMMIT"));
    {
        let insert = insert(&mut connection);
        tokio::pin!(insert);
        tokio::select! {
            _ = &mut insert => panic!("no answer can come"),
            () = eventually("the silence", LONG, async || setup.proxy.fired()) => {}
        }
    }
    drop(connection);

    let mut direct = setup.direct().await;
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state = 'idle in transaction'";
    let sessions: i64 = sqlx::query_scalar(idle).fetch_one(&mut direct).await.expect("look");
    assert_eq!(sessions, 1, "the server does not know that its client has gone");
    drop(direct);
    setup.proxy.cut_all();
    setup.sessions_end().await;
    assert_eq!(setup.rows().await, 0);
}

/// A cut and an orderly close at each message: whatever the client was told is true.
#[tokio::test]
async fn every_message_can_be_the_last() {
    let setup = Setup::new().await;
    let arm: [fn(&Proxy, Trigger); 2] = [Proxy::cut_on, Proxy::close_on];
    for arm in arm {
        let mut messages = 0;
        loop {
            let mut connection = setup.connect().await;
            let before = setup.rows().await;
            setup.proxy.heal();
            arm(&setup.proxy, Trigger::message(messages + 1));
            let result = insert(&mut connection).await;
            if !setup.proxy.fired() {
                result.expect("no fault, no error");
                break;
            }
            result.expect_err("the last answer did not come");
            drop(connection);
            setup.sessions_end().await;
            assert!([before, before + 1].contains(&setup.rows().await));
            messages += 1;
        }
        // BEGIN and COMMIT: 3 each. Prepare: 3 and 4 or 5. Run: 3 and 3.
        assert!((18..30).contains(&messages), "{messages}");
    }
}

#[tokio::test]
async fn a_fault_on_every_connection_is_a_network_that_is_down() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    let url = setup.proxy.url(setup.database.url()).expect("url");
    setup.proxy.cut_on(Trigger::message(1).every_connection());
    insert(&mut connection).await.expect_err("cut");
    for _ in 0..3 {
        PgConnection::connect(&url).await.expect_err("cut");
    }
    setup.proxy.heal();
    insert(&mut setup.connect().await).await.expect("healed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_delay_is_never_short_and_messages_overlap() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    let each_way = Duration::from_millis(20);
    setup.proxy.set_delay(each_way);
    setup.proxy.reset();
    let begun = Instant::now();
    sqlx::raw_sql("SELECT 1").execute(&mut connection).await.expect("select");
    assert!(begun.elapsed() >= 2 * each_way);

    // Thousands of messages on their way at once: far less than one delay for each.
    let begun = Instant::now();
    sqlx::raw_sql("SELECT n FROM generate_series(1, 5000) n").execute(&mut connection).await.expect("rows");
    assert!(begun.elapsed() >= 2 * each_way);
    assert!(begun.elapsed() < 100 * each_way, "{:?}", begun.elapsed());
    assert_eq!(setup.proxy.round_trips(), 2);
}

#[tokio::test]
async fn large_values_pass_unchanged_both_ways() {
    let setup = Setup::new().await;
    let mut connection = setup.connect().await;
    let text = "ab\u{e9}\u{1f600}".repeat(400_000);
    let back: String =
        sqlx::query_scalar("SELECT $1").bind(&text).fetch_one(&mut connection).await.expect("echo");
    assert!(back == text);
}

#[tokio::test]
async fn a_server_that_is_not_there_ends_the_connection() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("port");
    let proxy = Proxy::start(nobody).expect("proxy");
    let url = proxy.url("postgres://idem@database.example:5433/postgres?sslmode=disable").expect("url");
    assert_eq!(url, format!("postgres://idem@127.0.0.1:{}/postgres?sslmode=disable", proxy.address().port()));
    PgConnection::connect(&url).await.expect_err("nobody there");
}
