//! What is said of an effect that was asked for.

use idem_testkit::provider::{Answer, Behaviour};

use super::*;

fn word(reconciled: Reconciled) -> &'static str {
    match reconciled {
        Reconciled::Happened { .. } => "happened",
        Reconciled::DidNotHappen => "did not happen",
        Reconciled::Refused { .. } => "refused",
        Reconciled::Unknown => "unknown",
        Reconciled::Unsupported => "unsupported",
    }
}

#[track_caller]
fn happened(reconciled: Reconciled) -> Option<String> {
    match reconciled {
        Reconciled::Happened { reference } => reference,
        other => panic!("it has happened: {other:?}"),
    }
}

fn known(reference: &str) -> Call {
    Call { reference: Some(reference.to_owned()), ..call("k") }
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_a_question() {
    let counting = start().await;
    let http = built(to(counting.url()).reconcile_by_key(counting.url_by_key()));
    counting.next([Behaviour::ResetBefore, Behaviour::ResetAfter]);
    unknown(deliver(&http, &call("a")).await);
    assert_eq!(word(reconcile(&http, &call("a")).await), "did not happen");
    unknown(deliver(&http, &call("b")).await);
    assert_eq!(happened(reconcile(&http, &call("b")).await).as_deref(), Some("ref-1"));
    assert_eq!((counting.done("a"), counting.done("b"), counting.requests().len()), (0, 1, 2));
}

#[tokio::test]
async fn what_was_accepted_is_asked_for_by_its_reference() {
    let counting = start().await;
    let by_reference = to(counting.url()).reconcile_by_reference(counting.url_by_reference());
    let http = built(by_reference.clone().ask_after(Duration::from_secs(3)));
    counting.next([Behaviour::Accept { act_after: None }]);
    let Delivery::Accepted { reference: Some(reference), ask_after } = deliver(&http, &call("k")).await
    else {
        panic!("it is accepted, with a reference");
    };
    assert_eq!(ask_after, Duration::from_secs(3));
    assert_eq!(word(reconcile(&http, &known(&reference)).await), "unknown");
    counting.keep_promises();
    assert_eq!(happened(reconcile(&http, &known(&reference)).await), Some(reference.clone()));
    assert_eq!(counting.questions(), [format!("/reference/{reference}"), format!("/reference/{reference}")]);

    // Without a reference it is asked for by the key, where that is possible.
    assert_eq!(word(reconcile(&http, &call("k")).await), "unsupported");
    let both = built(by_reference.reconcile_by_key(counting.url_by_key()));
    assert_eq!(happened(reconcile(&both, &call("k")).await), Some(reference));
    assert_eq!(counting.until_asked(3).await, "/key/k");
}

#[tokio::test]
async fn each_status_of_a_question_means_what_it_proves() {
    let counting = start().await;
    let http = built(
        HttpProvider::builder(counting.url())
            .allow_private_targets()
            .reconcile_by_reference(counting.url_by_reference()),
    );
    for status in (200..=599).chain([999]) {
        let expected = match status {
            200 | 201 | 204 => "happened",
            404 | 410 => "did not happen",
            202 | 401 | 403 | 407 | 408 | 409 | 425 | 429 | 500..=599 => "unknown",
            _ => "unsupported",
        };
        counting.answer_questions(Answer::status(status).header("Location", "/effects"));
        assert_eq!(word(reconcile(&http, &known("r")).await), expected, "{status}");
    }
    assert!(counting.questions().iter().all(|path| path == "/reference/r"), "no redirect is followed");
    counting.answer_questions(Answer::status(200));
    assert_eq!(happened(reconcile(&http, &known("r")).await).as_deref(), Some("r"), "as it was known");
}

#[tokio::test]
async fn an_answer_that_is_not_read_whole_proves_nothing() {
    let counting = start().await;
    let http = built(to(counting.url()).response_limit(20).reconcile_by_key(counting.url_by_key()));
    let body = r#"{"reference":"a-long-reference"}"#;
    counting.answer_questions(Answer::status(200).body(body).broken_off());
    assert_eq!(word(reconcile(&http, &call("k")).await), "unknown");
    counting.answer_questions(Answer::status(200).body(body));
    assert_eq!(word(reconcile(&http, &call("k")).await), "unsupported");
}

#[tokio::test]
async fn a_reference_cannot_lead_a_question_elsewhere() {
    let counting = start().await;
    let http = built(to(counting.url()).reconcile_by_reference(counting.url_by_reference()));
    for reference in ["..", ".", ""] {
        assert_eq!(word(reconcile(&http, &known(reference)).await), "unsupported", "{reference:?}");
    }
    assert_eq!(counting.questions().len(), 0);
    reconcile(&http, &known("../key/k?x#y")).await;
    assert_eq!(counting.until_asked(1).await, "/reference/..%2Fkey%2Fk%3Fx%23y");
}

#[tokio::test]
async fn where_nothing_answers_it_stays_unknown() {
    let http = built(to("http://127.0.0.1:9/").reconcile_by_key("http://127.0.0.1:9/{key}"));
    assert_eq!(word(reconcile(&http, &call("k")).await), "unknown");
    let counting = start().await;
    let http = built(to(counting.url()).reconcile_by_key(counting.url_by_key()));
    let late = Call { deadline: Instant::now(), ..call("k") };
    assert_eq!(word(reconcile(&http, &late).await), "unknown");
    assert_eq!(counting.connections(), 0);
    assert_eq!(word(reconcile(&built(to(counting.url())), &call("k")).await), "unsupported");
}
