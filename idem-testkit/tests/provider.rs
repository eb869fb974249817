//! Each behaviour of the counting provider, as a client sees it on the wire.
#![cfg(feature = "provider")]

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_testkit::provider::{Answer, Behaviour, CountingProvider, Window, mix};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A client without any cleverness: one connection per request.
struct Client {
    stream: TcpStream,
}

/// Status, head and body, or how the connection ended.
type Answered = std::io::Result<(u16, String, String)>;

impl Client {
    async fn send(provider: &CountingProvider, request: String) -> Self {
        let mut stream = TcpStream::connect(provider.address()).await.expect("connect");
        stream.write_all(request.as_bytes()).await.expect("write");
        Self { stream }
    }

    async fn post(provider: &CountingProvider, key: &str) -> Self {
        let head = "POST /effects HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
        let request = format!("{head}\r\nidempotency-key: {key}\r\ncontent-length: 8\r\n\r\n{{\"n\": 1}}");
        Self::send(provider, request).await
    }

    async fn answer(mut self) -> Answered {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).await?;
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        Ok((status, head.to_lowercase(), body.to_owned()))
    }
}

async fn post(provider: &CountingProvider, key: &str) -> Answered {
    Client::post(provider, key).await.answer().await
}

async fn status(provider: &CountingProvider, key: &str) -> u16 {
    post(provider, key).await.expect("an answer").0
}

async fn ask(provider: &CountingProvider, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let (status, _, body) = Client::send(provider, request).await.answer().await.expect("an answer");
    (status, body)
}

async fn start() -> CountingProvider {
    CountingProvider::start().await.expect("a provider")
}

#[tokio::test]
async fn it_acts_once_per_key_and_gives_the_same_reference_again() {
    let provider = start().await;
    let first = post(&provider, "a").await.expect("an answer");
    assert_eq!((first.0, first.2.as_str()), (200, r#"{"reference":"ref-1"}"#));
    assert_eq!(post(&provider, "\"a\"").await.expect("an answer").2, first.2, "quoted, it is the same key");
    assert_ne!(post(&provider, "b").await.expect("an answer").2, first.2);

    assert_eq!((provider.done("a"), provider.done("b"), provider.done_total()), (1, 1, 2));
    assert!(provider.done_twice().is_empty());
    let requests = provider.requests_with("a");
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|it| it.body == br#"{"n": 1}"#));
    assert_eq!(requests[0].content_type.as_deref(), Some("application/json"));
    assert_eq!(requests[0].header("Host"), Some("x"));
    assert_eq!((requests[0].path.as_str(), requests[1].number), ("/effects", 2));
    assert_eq!(provider.acts()[0].body, br#"{"n": 1}"#);
}

#[tokio::test]
async fn questions_are_answered_by_key_and_by_reference() {
    let provider = start().await;
    assert_eq!(ask(&provider, "/key/a%2Fb").await.0, 404);
    assert_eq!(status(&provider, "a/b").await, 200);
    assert_eq!(ask(&provider, "/key/a%2Fb").await, (200, r#"{"reference":"ref-1"}"#.to_owned()));
    assert_eq!(ask(&provider, "/reference/ref-1").await.0, 200);
    assert_eq!(ask(&provider, "/reference/ref-2").await.0, 404);
    provider.answer_questions(Answer::status(503));
    assert_eq!(ask(&provider, "/key/a%2Fb").await.0, 503);
    provider.answer_questions(None);
    assert_eq!(ask(&provider, "/key/a%2Fb").await.0, 200);
    assert_eq!(provider.questions().len(), 6);
    assert_eq!(provider.until_asked(6).await, "/key/a%2Fb");
}

#[tokio::test]
async fn a_key_is_forgotten_when_its_window_is_over() {
    let provider = start().await;
    provider.set_window(Window::For(Duration::from_secs(3600)));
    for _ in 0..2 {
        status(&provider, "a").await;
    }
    assert_eq!(provider.done("a"), 1);
    provider.forget_keys();
    status(&provider, "a").await;
    assert_eq!((provider.done("a"), provider.done_twice()), (2, vec!["a".to_owned()]));
    provider.set_window(Window::For(Duration::ZERO));
    status(&provider, "a").await;
    assert_eq!(provider.done("a"), 3);
    provider.set_window(Window::None);
    status(&provider, "a").await;
    assert_eq!(provider.done("a"), 4);
}

#[tokio::test]
async fn the_header_of_the_key_can_have_another_name() {
    let provider = start().await;
    provider.set_key_header("X-Request-Id");
    assert_eq!(status(&provider, "a").await, 400, "no key under this name");
    let request =
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: k\r\ncontent-length: 0\r\n\r\n";
    let answer = Client::send(&provider, request.to_owned()).await.answer().await.expect("an answer");
    assert_eq!((answer.0, provider.done("k"), provider.done_total()), (200, 1, 1));
}

#[tokio::test]
async fn what_is_accepted_is_done_when_told_or_after_its_time() {
    let provider = start().await;
    provider.always(Behaviour::Accept { act_after: None });
    for _ in 0..2 {
        let answer = post(&provider, "a").await.expect("an answer");
        assert_eq!((answer.0, answer.2.as_str()), (202, r#"{"reference":"ref-1"}"#));
    }
    assert_eq!(ask(&provider, "/key/a").await.0, 202);
    assert_eq!(ask(&provider, "/reference/ref-1").await.0, 202);
    assert_eq!((provider.done("a"), provider.keep_promises(), provider.keep_promises()), (0, 1, 0));
    assert_eq!(ask(&provider, "/reference/ref-1").await.0, 200);
    assert_eq!(status(&provider, "a").await, 200, "done: it is known again");
    assert_eq!(provider.done("a"), 1);

    provider.always(Behaviour::Accept { act_after: Some(Duration::from_millis(20)) });
    let sent = Instant::now();
    assert_eq!(status(&provider, "b").await, 202);
    let act = provider.until_done(2).await;
    assert_eq!((act.key.as_str(), act.reference.as_str()), ("b", "ref-2"));
    assert!(act.at - sent >= Duration::from_millis(20));
}

#[tokio::test]
async fn one_that_hangs_before_acting_acts_when_released_and_not_when_its_client_goes() {
    let provider = start().await;
    provider.always(Behaviour::HangBefore);
    let client = Client::post(&provider, "a").await;
    provider.until_received(1).await;
    assert_eq!(ask(&provider, "/key/a").await.0, 202, "it is being worked on");
    assert_eq!(status(&provider, "a").await, 409, "it is being worked on");
    provider.release();
    assert_eq!(client.answer().await.expect("an answer").0, 200);
    assert_eq!(provider.done("a"), 1);

    let client = Client::post(&provider, "b").await;
    provider.until_received(3).await;
    drop(client);
    provider.until_gone(1).await;
    provider.release();
    assert_eq!(ask(&provider, "/key/b").await.0, 404);
    assert_eq!(provider.done("b"), 0);
    provider.always(Behaviour::Act);
    assert_eq!(status(&provider, "b").await, 200, "nobody works on it any more");
}

#[tokio::test]
async fn one_that_hangs_after_acting_has_acted() {
    let provider = start().await;
    provider.next([Behaviour::HangAfter, Behaviour::HangAfter]);
    let client = Client::post(&provider, "a").await;
    provider.until_done(1).await;
    drop(client);
    provider.until_gone(1).await;
    assert_eq!(ask(&provider, "/key/a").await.0, 200);

    let client = Client::post(&provider, "b").await;
    provider.until_done(2).await;
    provider.release();
    assert_eq!(client.answer().await.expect("an answer").0, 200);
    assert_eq!((provider.done("a"), provider.done("b"), provider.gone()), (1, 1, 1));
}

#[tokio::test]
async fn a_request_can_land_after_its_client_has_gone() {
    const LATE: Duration = Duration::from_millis(30);
    let provider = start().await;
    provider.next([Behaviour::ActAfterGone(LATE)]);
    let client = Client::post(&provider, "a").await;
    provider.until_received(1).await;
    assert_eq!(ask(&provider, "/key/a").await.0, 404, "on its way: nobody knows of it");
    let dropped = Instant::now();
    drop(client);
    let act = provider.until_done(1).await;
    assert!(act.at - dropped >= LATE);
    assert_eq!((act.key.as_str(), provider.gone()), ("a", 1));

    // One that overtakes it makes it a duplicate, where keys are known, and only there.
    for (key, window, times, total) in [("b", Window::Forever, 1, 3), ("c", Window::None, 2, 6)] {
        provider.set_window(window);
        provider.next([Behaviour::ActAfterGone(Duration::ZERO)]);
        let (received, gone) = (provider.requests().len() + 1, provider.gone() + 1);
        let late = Client::post(&provider, key).await;
        provider.until_received(received).await;
        assert_eq!(status(&provider, key).await, 200);
        drop(late);
        provider.until_gone(gone).await;
        // What is due later on the provider's one thread is done later.
        provider.next([Behaviour::Accept { act_after: Some(Duration::from_millis(5)) }]);
        assert_eq!(status(&provider, &format!("after {key}")).await, 202);
        provider.until_done(total).await;
        assert_eq!(provider.done(key), times, "{key}");
    }
}

#[tokio::test]
async fn a_connection_is_reset_before_or_after_it_acts() {
    let provider = start().await;
    provider.next([Behaviour::ResetBefore, Behaviour::ResetAfter]);
    for times in [0, 1] {
        let ended = post(&provider, "a").await.expect_err("no answer");
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset, "RST, not an orderly end");
        assert_eq!(provider.done("a"), times);
    }
    assert_eq!(provider.gone(), 0, "it was not the client");
    assert_eq!(provider.connections(), 2);
}

#[tokio::test]
async fn answers_are_given_with_or_without_acting() {
    let provider = start().await;
    for (refused, acted) in [(500, 500), (400, 201), (401, 204), (409, 503)] {
        let key = format!("{refused}");
        provider.next([Behaviour::refuse(refused), Behaviour::act_then(acted)]);
        assert_eq!((status(&provider, &key).await, provider.done(&key)), (refused, 0));
        assert_eq!((status(&provider, &key).await, provider.done(&key)), (acted, 1));
    }
    provider.next([Behaviour::too_many(2)]);
    let (status, head, _) = post(&provider, "b").await.expect("an answer");
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 2"), "{head}");
    provider.next([Behaviour::Refuse(Answer::status(418).header("X-A", "b").body("short and stout"))]);
    let (status, head, body) = post(&provider, "b").await.expect("an answer");
    assert_eq!((status, body.as_str(), provider.done("b")), (418, "short and stout", 0));
    assert!(head.contains("x-a: b"), "{head}");
}

#[tokio::test]
async fn an_answer_can_break_off_in_its_body() {
    let provider = start().await;
    provider.next([Behaviour::ActThen(Answer::status(200).body("0123456789").broken_off())]);
    let (status, head, body) = post(&provider, "a").await.expect("the head and a part");
    assert_eq!((status, body.as_str()), (200, "01234"));
    assert!(head.contains("content-length: 10"), "{head}");
}

#[tokio::test]
async fn what_is_done_can_depend_on_the_request_or_on_a_seed() {
    let provider = start().await;
    provider.behave(|request| match request.key.as_deref() {
        Some("bad") => Behaviour::refuse(400),
        _ => Behaviour::Act,
    });
    provider.next([Behaviour::refuse(500)]);
    assert_eq!(status(&provider, "good").await, 500, "the queue comes first");
    assert_eq!(status(&provider, "good").await, 200);
    assert_eq!(status(&provider, "bad").await, 400);

    let mut drawn = Vec::new();
    for _ in 0..2 {
        let provider = start().await;
        provider
            .behave(mix(7, [(3, Behaviour::Act), (0, Behaviour::HangBefore), (1, Behaviour::act_then(500))]));
        let mut statuses = Vec::new();
        for key in 0..100 {
            statuses.push(status(&provider, &key.to_string()).await);
        }
        let failed = statuses.iter().filter(|it| **it == 500).count();
        assert!((10..45).contains(&failed), "a quarter or so: {failed}");
        drawn.push(statuses);
    }
    assert_eq!(drawn[0], drawn[1], "the same for the same seed");
}

#[tokio::test]
async fn two_with_one_key_at_once_are_one_act() {
    let provider = Arc::new(start().await);
    let client = |_| {
        let provider = provider.clone();
        tokio::spawn(async move { status(&provider, "a").await })
    };
    let clients: Vec<_> = (0..20).map(client).collect();
    for client in clients {
        let status = client.await.expect("no panic");
        assert!(matches!(status, 200 | 409), "{status}");
    }
    assert_eq!(provider.done("a"), 1);
}

#[tokio::test]
async fn nothing_is_left_when_it_is_dropped() {
    let provider = start().await;
    provider.always(Behaviour::HangBefore);
    let address = provider.address();
    let client = Client::post(&provider, "a").await;
    provider.until_received(1).await;
    drop(provider);
    _ = client.answer().await.expect_err("the connection has ended");
    TcpStream::connect(address).await.expect_err("nobody listens");
}

#[tokio::test(start_paused = true)]
async fn it_works_under_a_paused_clock() {
    let provider = start().await;
    let client = async { status(&provider, "a").await };
    let (status, received) = tokio::join!(client, provider.until_received(1));
    assert_eq!((status, received.number, provider.done("a")), (200, 1, 1));
}
