//! The private server for real: it starts, restarts, and never outlives the process that started it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use idem_testkit::postgres::{Postgres, TestDatabase};
use idem_testkit::process::{self, Victim};
use idem_testkit::wait;
use sqlx::{Connection, PgConnection};

const LONG: Duration = Duration::from_secs(30);

fn alive(id: u32) -> bool {
    use nix::sys::signal::kill;
    kill(nix::unistd::Pid::from_raw(id.cast_signed()), None).is_ok()
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("connect")
}

#[tokio::test]
async fn an_answered_commit_survives_restart_and_kill() {
    let server = Postgres::start().expect("start");
    let url = server.create_database("kept").await.expect("create");
    let mut connection = connect(&url).await;
    sqlx::raw_sql("CREATE TABLE t (n int)").execute(&mut connection).await.expect("table");

    for (n, restart) in [
        (1, Postgres::restart_immediate as fn(&Postgres) -> _),
        (2, |server| server.kill9().and_then(|()| server.start_again())),
        (3, |server| server.stop().and_then(|()| server.start_again())),
    ] {
        sqlx::query("INSERT INTO t VALUES ($1)").bind(n).execute(&mut connection).await.expect("insert");
        let id = server.id();
        restart(&server).expect("restart");
        assert_ne!(server.id(), id);
        sqlx::query("SELECT 1").execute(&mut connection).await.expect_err("the session is gone");
        connection = connect(&url).await;
        let rows: i64 =
            sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connection).await.expect("count");
        assert_eq!(rows, i64::from(n));
    }
    let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut connection).await.expect("show");
    assert_eq!(fsync, "on");
    assert!(server.log().contains("immediate shutdown request"), "{}", server.log());
}

#[tokio::test]
async fn a_password_is_checked_where_there_is_one() {
    let server = Postgres::builder().fsync(false).setting("work_mem", "5MB").start().expect("start");
    connect(&server.password_url("correct", "postgres")).await;
    let refused = PgConnection::connect(&server.password_url("wrong", "postgres")).await.expect_err("wrong");
    assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("28P01"));
    let mut connection = connect(&server.url("postgres")).await;
    let value: String = sqlx::query_scalar("SHOW work_mem").fetch_one(&mut connection).await.expect("show");
    assert_eq!(value, "5MB");
}

#[test]
fn a_dropped_server_leaves_nothing() {
    let server = Postgres::builder().fsync(false).start().expect("start");
    let (id, address) = (server.id().expect("runs"), server.address());
    let panicked = std::thread::spawn(move || {
        let _server = server;
        panic!("as a failed test does");
    })
    .join();
    assert!(panicked.is_err());
    assert!(!alive(id), "the drop waits for the end");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn the_server_ends_when_its_process_is_killed() {
    if process::role().as_deref() == Some("owner") {
        let server = Postgres::start().expect("start");
        let mut output = std::io::stdout();
        writeln!(output, "\nid {}", server.id().expect("runs")).expect("write");
        output.flush().expect("flush");
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    open_to_all(folder.path());
    let mut command =
        process::this_test("the_server_ends_when_its_process_is_killed", "owner").expect("command");
    let mut owner =
        Victim::spawn(command.stdout(Stdio::piped()).env("TMPDIR", folder.path())).expect("start");
    let output = BufReader::new(owner.child().stdout.take().expect("piped"));
    let id = output
        .lines()
        .find_map(|line| line.ok()?.strip_prefix("id ")?.parse().ok())
        .expect("the owner tells the server's id");
    let left = || -> Vec<PathBuf> {
        std::fs::read_dir(folder.path()).expect("list").map(|entry| entry.expect("entry").path()).collect()
    };
    assert!(alive(id));
    let in_folder = left().len();

    owner.kill9().expect("kill");
    wait::until(LONG, || (!alive(id)).then_some(())).expect("the server ends");
    if in_folder > 0 {
        wait::until(LONG, || left().is_empty().then_some(())).expect("its folder is removed");
    }
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    // As a common temporary folder: the server may run as another user.
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o1777)).expect("open the folder");
}

#[tokio::test]
async fn each_test_has_its_own_database_and_leaves_none() {
    let (one, two) = tokio::join!(TestDatabase::create(), TestDatabase::create());
    assert_ne!(one.name(), two.name());
    let mut connection = connect(one.url()).await;
    let name: String =
        sqlx::query_scalar("SELECT current_database()").fetch_one(&mut connection).await.expect("name");
    assert_eq!(name, one.name());

    let server = one.server_url().to_owned();
    drop(one);
    let mut admin = connect(&server).await;
    let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut admin)
        .await
        .expect("look");
    assert!(!there, "dropped, though a session was still in it");
}
