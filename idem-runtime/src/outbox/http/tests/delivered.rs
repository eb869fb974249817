//! What is said of a request that was, may have been or was not sent.

use idem_testkit::provider::{Answer, Behaviour, Window};
use tokio::net::TcpListener;

use super::*;

/// Long enough for a request to arrive, and then in vain.
const SHORT: Duration = Duration::from_millis(500);

/// The word, the wait and the error's text.
fn told(delivery: Delivery) -> (&'static str, Option<u64>, String) {
    let told = |word, wait: Option<Duration>, text: String| (word, wait.map(|wait| wait.as_secs()), text);
    match delivery {
        Delivery::Delivered { reference } => told("delivered", None, reference.unwrap_or_default()),
        Delivery::Accepted { reference, ask_after } => {
            told("accepted", Some(ask_after), reference.unwrap_or_default())
        }
        Delivery::NotSent { retry_after, error } => told("not sent", retry_after, error.to_string()),
        Delivery::Rejected { error } => told("rejected", None, error.to_string()),
        Delivery::Unknown { retry_after, error } => told("unknown", retry_after, error.to_string()),
        Delivery::Review { error } => told("review", None, error.to_string()),
        Delivery::Halt { error } => told("halt", None, error.to_string()),
    }
}

#[tokio::test]
async fn each_status_means_what_it_proves() {
    let counting = start().await;
    let http = built(to(counting.url()));
    for status in (200..=599).chain([600, 799, 999]) {
        let word = match status {
            202 => "accepted",
            200..=299 => "delivered",
            408 | 409 | 500..=599 => "unknown",
            425 | 429 => "not sent",
            401 | 403 | 407 => "halt",
            404 => "review",
            400..=499 => "rejected",
            _ => "review",
        };
        // With the wait that the provider names, and without.
        let named = Answer::status(status).header("Retry-After", "77").header("Location", "/elsewhere");
        counting.next([Behaviour::Refuse(named), Behaviour::refuse(status)]);
        let (told_word, wait, text) = told(deliver(&http, &call("k")).await);
        let waits = matches!(word, "accepted" | "unknown" | "not sent");
        assert_eq!((told_word, wait), (word, waits.then_some(77)), "{status}");
        assert!(matches!(word, "accepted" | "delivered") || text.contains(&status.to_string()), "{text}");
        let default = match status {
            202 => Some(30),
            409 => Some(5),
            _ => None,
        };
        let (told_word, wait, _) = told(deliver(&http, &call("k")).await);
        assert_eq!((told_word, wait), (word, default), "{status}");
    }
    assert!(counting.requests().iter().all(|request| request.path == "/effects"), "no redirect is followed");
    assert_eq!(counting.done_total(), 0);
}

#[tokio::test]
async fn the_staged_bytes_go_under_their_type_and_key() {
    let counting = start().await;
    let http =
        built(to(counting.url()).header("Authorization", "Bearer t").header("x-a", "1").header("x-a", "2"));
    let staged = Call { content_type: "application/cloudevents+json".to_owned(), ..call("key_1-x") };
    assert_eq!(delivered(deliver(&http, &staged).await).as_deref(), Some("ref-1"));
    assert_eq!(delivered(deliver(&http, &staged).await).as_deref(), Some("ref-1"));
    for request in counting.requests_with("key_1-x") {
        assert_eq!(request.body, STAGED);
        assert_eq!(request.content_type.as_deref(), Some("application/cloudevents+json"));
        assert_eq!(request.header("idempotency-key"), Some("key_1-x"));
        assert_eq!(request.header("content-length"), Some(&*STAGED.len().to_string()));
        assert_eq!(request.header("authorization"), Some("Bearer t"));
        assert_eq!(request.headers.iter().filter(|(name, _)| name == "x-a").count(), 2);
        assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("idem-runtime/")));
    }
    assert_eq!((counting.done("key_1-x"), counting.connections()), (1, 1));

    counting.set_key_header("X-Request-Id");
    let other = built(to(counting.url()).key_header("x-request-id").quoted_key());
    delivered(deliver(&other, &call("k2")).await);
    let request = counting.until_received(3).await;
    assert_eq!((request.header("x-request-id"), request.header("idempotency-key")), (Some("\"k2\""), None));
}

#[tokio::test]
async fn an_answer_that_is_lost_is_unknown_and_the_same_key_settles_it() {
    let counting = start().await;
    let http = built(to(counting.url()));
    for (key, behaviour, done) in [
        ("reset-before", Behaviour::ResetBefore, 0),
        ("reset-after", Behaviour::ResetAfter, 1),
        ("hang-before", Behaviour::HangBefore, 0),
        ("hang-after", Behaviour::HangAfter, 1),
        ("500-before", Behaviour::refuse(500), 0),
        ("500-after", Behaviour::act_then(500), 1),
    ] {
        counting.next([behaviour]);
        let gone = counting.gone();
        let mut first = call(key);
        if key.starts_with("hang") {
            first.deadline = Instant::now() + SHORT;
        }
        let text = unknown(deliver(&http, &first).await);
        assert!(!text.contains("ann@"), "{text}");
        assert_eq!(counting.done(key), done, "{key}: {text}");
        if key.starts_with("hang") {
            counting.until_gone(gone + 1).await;
        }
        delivered(deliver(&http, &call(key)).await);
        assert_eq!(counting.done(key), 1, "{key}");
        assert!(counting.requests_with(key).iter().all(|request| request.body == STAGED));
    }
}

#[tokio::test]
async fn a_reset_of_a_connection_that_was_used_before_is_unknown() {
    let counting = start().await;
    let http = built(to(counting.url()));
    delivered(deliver(&http, &call("first")).await);
    for (key, behaviour, done) in [("before", Behaviour::ResetBefore, 0), ("after", Behaviour::ResetAfter, 1)]
    {
        let connections = counting.connections();
        counting.next([behaviour]);
        let text = unknown(deliver(&http, &call(key)).await);
        assert!(text.starts_with("maybe sent"), "{text}");
        assert_eq!(counting.connections(), connections, "the connection was used again");
        assert_eq!(
            (counting.done(key), counting.requests_with(key).len()),
            (done, 1),
            "it is not sent twice"
        );
        delivered(deliver(&http, &call("again")).await);
    }
}

#[tokio::test]
async fn where_keys_are_not_known_again_no_connection_is_used_twice() {
    let counting = start().await;
    let http = built(to(counting.url()).key_window(KeyWindow::None));
    for key in ["a", "b"] {
        delivered(deliver(&http, &call(key)).await);
    }
    assert_eq!(counting.connections(), 2);
}

#[tokio::test]
async fn a_request_that_lands_late_was_unknown() {
    let counting = start().await;
    counting.set_window(Window::None);
    counting.next([Behaviour::ActAfterGone(Duration::from_millis(20))]);
    let http = built(to(counting.url()));
    let soon = Call { deadline: Instant::now() + SHORT, ..call("k") };
    unknown(deliver(&http, &soon).await);
    assert!(Instant::now() >= soon.deadline, "the deadline is shorter than the timeout");
    assert_eq!(counting.until_done(1).await.body, STAGED);
}

#[tokio::test]
async fn nothing_is_sent_after_the_deadline() {
    let counting = start().await;
    let http = built(to(counting.url()));
    let late = Call { deadline: Instant::now(), ..call("k") };
    let text = not_sent(deliver(&http, &late).await);
    assert!(text.contains("deadline"), "{text}");
    assert_eq!(counting.connections(), 0);
}

#[tokio::test]
async fn where_there_is_no_connection_nothing_was_sent() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let http = built(to(format!("http://{closed}/")));
    for payload in [Bytes::from_static(STAGED), Bytes::new()] {
        let text = not_sent(deliver(&http, &Call { payload, ..call("k") }).await);
        assert!(text.contains("refused"), "with its cause: {text}");
    }
    let nowhere = built(to("http://no-such-host.invalid/"));
    let text = not_sent(deliver(&nowhere, &call("k")).await);
    assert!(!text.contains("no-such-host.invalid/"), "no URL in errors: {text}");
}

/// A TLS handshake that is never answered: whichever time ends first, nothing was sent.
#[tokio::test]
async fn a_connection_that_is_not_ready_in_time_has_sent_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}/", silent.local_addr().expect("an address"));
    for builder in [to(&url).connect_timeout(SHORT), to(&url).timeout(SHORT)] {
        let text = not_sent(deliver(&built(builder), &call("k")).await);
        assert!(text.contains("time"), "{text}");
    }
    let soon = Call { deadline: Instant::now() + SHORT, ..call("k") };
    not_sent(deliver(&built(to(&url)), &soon).await);
}

#[tokio::test]
async fn a_target_without_good_tls_gets_nothing() {
    let counting = start().await;
    let http = built(to(counting.url().replace("http://", "https://")));
    not_sent(deliver(&http, &call("k")).await);
    assert_eq!(counting.requests().len(), 0);
}

#[tokio::test]
async fn a_name_that_leads_into_the_own_network_is_refused() {
    let counting = start().await;
    let url = format!("http://localhost:{}/", counting.address().port());
    let text = not_sent(deliver(&built(HttpProvider::builder(&url)), &call("k")).await);
    assert!(text.contains("localhost") && text.contains("allow_private_targets"), "{text}");
    assert_eq!(counting.connections(), 0);
    delivered(deliver(&built(HttpProvider::builder(&url).allow_private_targets()), &call("k")).await);
}

#[tokio::test]
async fn a_2xx_is_delivered_whatever_becomes_of_its_body() {
    let counting = start().await;
    let http = built(to(counting.url()).response_limit(100).timeout(Duration::from_secs(5)));
    let long = format!(r#"{{"reference":"r","filler":"{}"}}"#, "x".repeat(1 << 20));
    for answer in [
        Answer::status(200).body(long.clone()),
        Answer::status(200).body(long.clone()).broken_off(),
        Answer::status(201).body(r#"{"reference":"r"}"#).broken_off(),
        Answer::status(200).body("<html>"),
    ] {
        counting.next([Behaviour::ActThen(answer)]);
        counting.forget_keys();
        assert_eq!(delivered(deliver(&http, &call("k")).await), None);
    }
    counting.next([Behaviour::Refuse(Answer::status(202).body(long))]);
    assert!(matches!(deliver(&http, &call("k")).await, Delivery::Accepted { reference: None, .. }));
    let exact = format!(r#"{{"reference":"{}"}}"#, "r".repeat(84));
    assert_eq!(exact.len(), 100);
    counting.next([Behaviour::Refuse(Answer::status(200).body(exact))]);
    assert!(delivered(deliver(&http, &call("k")).await).is_some(), "as long as the limit");
}

#[tokio::test]
async fn an_empty_payload_is_sent_too() {
    let counting = start().await;
    let http = built(to(counting.url()));
    let empty = Call { payload: Bytes::new(), ..call("k") };
    counting.next([Behaviour::ResetAfter]);
    unknown(deliver(&http, &empty).await);
    delivered(deliver(&http, &empty).await);
    assert_eq!((counting.done("k"), counting.requests().len()), (1, 2));
}

#[tokio::test]
async fn what_cannot_be_a_header_is_not_sent() {
    let counting = start().await;
    let http = built(to(counting.url()));
    not_sent(deliver(&http, &Call { content_type: "a\r\nx-b: c".to_owned(), ..call("k") }).await);
    not_sent(deliver(&http, &call("a\nb")).await);
    assert_eq!(counting.connections(), 0);
}

#[tokio::test]
async fn errors_have_a_piece_of_the_answer_and_nothing_of_the_request() {
    let counting = start().await;
    counting.behave(|request| {
        let mut body = b"no such payee: ".to_vec();
        body.extend_from_slice(&request.body);
        Behaviour::Refuse(Answer::status(422).body(body))
    });
    let (_, _, text) = told(deliver(&built(to(counting.url())), &call("k")).await);
    assert!(text.starts_with("answered 422 Unprocessable Entity: no such payee:"), "{text}");
    assert!(!text.contains("ann@example.com"), "{text}");
    let (_, _, text) = told(deliver(&built(to(counting.url()).hide_answers()), &call("k")).await);
    assert_eq!(text, "answered 422 Unprocessable Entity");
}
