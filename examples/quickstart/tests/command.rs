//! The command: where it reads from, what it says where, and how it ends.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_testkit::wait;
use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

const GOOD: &str = r#"{"specversion":"1.0","id":"1","source":"/billing/eu","type":"invoice.paid","data":{"invoice":"I","amount_minor":9007199254740993,"currency":"EUR","destination":"D"}}"#;

/// Runs it in `folder`, which is also its folder for temporary files.
fn quickstart(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_quickstart"))
        .args(arguments)
        .current_dir(folder)
        .env("TMPDIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // It may end without reading it.
    _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("it ends")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn without_arguments_it_makes_a_new_file_and_prints_a_table() {
    let folder = folder();
    let output = quickstart(folder.path(), &[], b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let path =
        text(&output.stderr).lines().find_map(|line| line.strip_prefix("database: ")).expect("its path");
    assert!(Path::new(path).starts_with(folder.path()) && Path::new(path).exists());
    let table = text(&output.stdout);
    for (name, figure) in [
        ("applied", "2039"),
        ("replayed", "3060"),
        ("mismatched", "40"),
        ("refused_source", "16"),
        ("invalid", "16"),
        ("ledger rows", "2039"),
        ("/billing/us USD", "9007199329352256"),
    ] {
        let line = table.lines().find(|line| line.trim().starts_with(name)).expect(name);
        assert!(line.ends_with(&format!(" {figure}")), "{line}");
    }
}

#[test]
fn it_reads_standard_input_and_a_file() {
    let folder = folder();
    // Without a line end at the end, as some senders leave it.
    let stream = format!("{GOOD}\r\n{GOOD}");
    let output = quickstart(folder.path(), &["-", "--json", "--database", "a.sqlite3"], stream.as_bytes());
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures alone on standard output");
    assert_eq!(
        (&figures["deliveries"], &figures["applied"], &figures["replayed"]),
        (&2.into(), &1.into(), &1.into())
    );
    assert_eq!(figures["balances"]["/billing/eu EUR"], 9_007_199_254_740_993_i64);

    std::fs::write(folder.path().join("stream.jsonl"), &stream).expect("written");
    let output =
        quickstart(folder.path(), &["stream.jsonl", "--json", "--database", "sqlite:a.sqlite3"], b"");
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures");
    assert_eq!((&figures["applied"], &figures["replayed"]), (&0.into(), &2.into()));

    let output = quickstart(folder.path(), &["-", "--json"], b"");
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures of an empty stream");
    assert_eq!(figures["deliveries"], 0);
}

#[test]
fn a_line_that_is_no_event_is_reported_with_its_number_and_the_stream_goes_on() {
    let folder = folder();
    let long_id = GOOD.replace(r#""id":"1""#, &format!(r#""id":"{}""#, "x".repeat(2000)));
    let other_amount = GOOD.replace("9007199254740993", "9007199254740992");
    let refused = GOOD.replace("/billing/eu", "/billing/EU");
    let stream = [&GOOD[..80], GOOD, "", &long_id, &other_amount, &refused, GOOD].join("\n");
    let output = quickstart(folder.path(), &["-", "--json"], stream.as_bytes());
    assert!(output.status.success());
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures alone on standard output");
    for (name, count) in [
        ("deliveries", 7),
        ("applied", 1),
        ("replayed", 1),
        ("mismatched", 1),
        ("refused_source", 1),
        ("invalid", 3),
        ("ledger_rows", 1),
    ] {
        assert_eq!(figures[name], count, "{name}");
    }
    let said = Vec::from_iter(text(&output.stderr).lines().filter(|line| line.starts_with("line ")));
    for (said, start) in said.iter().zip([
        "line 1: invalid: EOF while parsing",
        "line 3: invalid: not a JSON object",
        "line 4: invalid: invoice.paid: the key is not valid: it has 2000 bytes",
        r#"line 5: mismatched: invoice.paid "/billing/eu" "1": "#,
        r#"line 6: refused: "/billing/EU" may not send here"#,
    ]) {
        assert!(said.starts_with(start), "{said}");
    }
    assert_eq!(said.len(), 5);
}

#[test]
fn of_contradicting_deliveries_the_first_line_wins_however_many_workers_there_are() {
    let folder = folder();
    let delivery = |id: u32, amount: u32| {
        let line = GOOD.replace(r#""id":"1""#, &format!(r#""id":"{id}""#));
        line.replace("9007199254740993", &amount.to_string()) + "\n"
    };
    // Side by side, so that workers which took any line would race.
    let stream =
        String::from_iter((0..300).flat_map(|id| [delivery(id, 1), delivery(id, 1000), delivery(id, 1)]));
    let output = quickstart(folder.path(), &["-", "--json", "--workers", "16"], stream.as_bytes());
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures");
    for name in ["applied", "mismatched", "replayed", "ledger_rows"] {
        assert_eq!(figures[name], 300, "{name}");
    }
    assert_eq!(figures["balances"]["/billing/eu EUR"], 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_reads_at_most_300_lines_ahead() {
    const LINES: usize = 2000;
    const LENGTH: usize = 1000;
    // What a pipe and a reader's buffer hold.
    const BUFFERED: usize = 100 * 1024;

    let folder = folder();
    let mut child = Command::new(env!("CARGO_BIN_EXE_quickstart"))
        .args(["-", "--json", "--database", "a.sqlite3"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    writeln!(input, "{GOOD}").expect("written");

    // It has started when its first line is booked. Then nobody else can write.
    let options = SqliteConnectOptions::new().filename(folder.path().join("a.sqlite3"));
    wait::eventually("a line is booked", Duration::from_secs(60), async || {
        let Ok(mut reader) = options.clone().read_only(true).connect().await else { return false };
        let rows: sqlx::Result<i64> =
            sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(&mut reader).await;
        rows.is_ok_and(|rows| rows == 1)
    })
    .await;
    let mut other = options.connect().await.expect("opened");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.expect("the lock");

    let taken = Arc::new(AtomicUsize::new(0));
    let writer = std::thread::spawn({
        let taken = Arc::clone(&taken);
        move || {
            let next = GOOD.replace(r#""id":"1""#, r#""id":"2""#);
            for line in 0..LINES {
                let text = if line == 0 { &next } else { "no event" };
                writeln!(input, "{text:<LENGTH$}").expect("it reads on");
                taken.fetch_add(1, Ordering::SeqCst);
            }
        }
    });

    // The first of these lines waits for the database, so reading comes to an end.
    let started =
        wait::until(Duration::from_secs(60), || (taken.load(Ordering::SeqCst) >= 300).then_some(()));
    started.expect("it reads ahead");
    let too_many = wait::until(Duration::from_secs(2), || {
        Some(taken.load(Ordering::SeqCst)).filter(|ahead| *ahead > 300 + BUFFERED / LENGTH)
    });
    assert_eq!(too_many, None, "lines were taken");

    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.expect("free again");
    writer.join().expect("all is taken");
    let output = child.wait_with_output().expect("it ends");
    let figures: Value = serde_json::from_slice(&output.stdout).expect("figures");
    assert_eq!((&figures["deliveries"], &figures["applied"]), (&(1 + LINES).into(), &2.into()));
}

#[test]
fn a_wrong_command_line_is_refused_before_anything_is_touched() {
    let folder = folder();
    for arguments in [
        &["--workers", "0"][..],
        &["--workers", "many"],
        &["--databse", "x"],
        &["--database", ""],
        &["--database", "mysql://localhost/app"],
        &["one", "two"],
    ] {
        let output = quickstart(folder.path(), arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && text(&output.stderr).starts_with("error: "), "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 0);

    let output = quickstart(folder.path(), &["--help"], b"");
    assert!(output.status.success());
    for option in ["--database", "--workers", "--json"] {
        assert!(text(&output.stdout).contains(option));
    }
}

#[cfg(not(feature = "postgres"))]
#[test]
fn a_postgres_url_without_the_feature_says_how_to_get_it() {
    let output = quickstart(folder().path(), &["--database", "postgres://localhost/app"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--features postgres"));
}

#[test]
fn what_cannot_be_opened_is_named_and_ends_it() {
    let folder = folder();
    for (arguments, named) in [
        (&["missing.jsonl"][..], "missing.jsonl"),
        (&["."], "."),
        (&["--database", "missing/a.sqlite3"], "missing/a.sqlite3"),
        (&["--database", ":memory:"], ":memory:"),
        #[cfg(feature = "postgres")]
        (&["--database", "postgres://nobody:secret@127.0.0.1:1/app"], "Connection refused"),
    ] {
        let output = quickstart(folder.path(), arguments, b"");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains("quickstart: ") && said.contains(named) && !said.contains("secret"), "{said}");
        assert!(output.stdout.is_empty());
    }
}
