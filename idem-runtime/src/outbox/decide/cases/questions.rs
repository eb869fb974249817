//! What becomes of a row that was asked about, and what a person decides.

use super::*;

/// When everything that was sent at noon has landed.
fn landed() -> SystemTime {
    noon() + CALL + FLIGHT
}

/// Sent at noon, and not to be sent again.
fn closed() -> Row {
    Row { window_closed: true, attempts: 3, reference: Some("a".into()), ..unknown(noon()) }
}

/// Asked at this time and written a second later.
fn told(row: &Row, asked_at: SystemTime, answer: Reconciled) -> Row {
    row_after(row, Event::Asked(asked_at, answer), asked_at + secs(1))
}

fn decide(state: State, decision: Decision) -> Step {
    step(
        &Row { state, crashes: 3, last_error: Some("boom".into()), ..closed() },
        Event::Decided(decision),
        noon(),
    )
}

#[test]
fn what_has_happened_is_delivered_however_early_it_was_asked() {
    for state in [State::Pending, State::Accepted] {
        let row = Row { state, ..closed() };
        let after = told(&row, noon(), Reconciled::Happened { reference: Some("b".into()) });
        assert_eq!((after.state, after.reference.as_deref()), (State::Delivered, Some("b")));
    }
}

#[test]
fn what_certainly_did_not_happen_is_sent_as_if_for_the_first_time() {
    for state in [State::Pending, State::Accepted] {
        let row = told(&Row { state, ..closed() }, landed(), Reconciled::DidNotHappen);
        assert_eq!((row.state, row.maybe_sent, row.window_closed), (State::Pending, false, false));
        assert_eq!((row.first_attempt_at, row.reference.clone()), (None, None));
        assert_eq!((row.due_at, row.attempts), (landed() + secs(1), 3));
        for window in WINDOWS {
            assert_eq!(on(window, &row, Event::Take, row.due_at), Step::Send { before: None });
        }
    }
}

#[test]
fn what_the_provider_has_refused_is_rejected() {
    for state in [State::Pending, State::Accepted] {
        let row = told(&Row { state, ..closed() }, landed(), refused());
        assert_eq!((row.state, row.maybe_sent), (State::Rejected, false));
        assert_eq!(row.last_error.as_deref(), Some("boom"));
    }
}

#[test]
fn a_no_before_everything_has_landed_is_not_known() {
    // By when it was asked, not by when the answer is written.
    let asked_at = landed() - MICRO;
    for state in [State::Pending, State::Accepted] {
        for answer in [Reconciled::DidNotHappen, refused()] {
            let row = Row { state, ..closed() };
            let after = told(&row, asked_at, answer);
            assert_eq!(after, Row { due_at: after.due_at, ..row });
            assert!(after.due_at >= landed());
        }
    }
}

#[test]
fn what_the_provider_cannot_say_now_is_asked_again_less_and_less_often() {
    // A quarter of the time since the first attempt.
    for (age, wait) in [(secs(0), secs(1)), (secs(148), secs(37)), (HOUR, secs(900)), (DAY * 2, secs(21_600))]
    {
        let now = noon() + age;
        let row = row_after(&closed(), Event::Asked(now, Reconciled::Unknown), now);
        assert_eq!((row.state, row.due_at), (State::Pending, now + wait), "{age:?}");
        assert!(row.maybe_sent && row.window_closed);
    }
    let row = Row { first_attempt_at: None, last_deadline: None, ..closed() };
    assert_eq!(row_after(&row, Event::Asked(noon(), Reconciled::Unknown), noon()).due_at, noon() + secs(1));
}

#[test]
fn the_wait_between_questions_may_be_set_to_anything() {
    let terms = Terms { window: KeyWindow::None, longest_flight: FLIGHT };
    // Not a panic of `clamp`, where the longest is shorter than the shortest.
    let policy = Policy { shortest_backoff: HOUR, longest_backoff: secs(1), ..Policy::default() };
    let now = noon() + DAY;
    match next(&closed(), Event::Asked(now, Reconciled::Unknown), now, terms, &policy) {
        Step::Become(row) => assert_eq!(row.due_at, now + secs(1)),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_provider_that_cannot_be_asked_leaves_it_to_a_person() {
    for state in [State::Pending, State::Accepted] {
        let row = told(&Row { state, ..closed() }, landed(), Reconciled::Unsupported);
        assert_eq!((row.state, row.maybe_sent), (State::Review, true));
    }
}

#[test]
fn a_person_decides_what_is_in_review_and_nothing_else() {
    for state in State::ALL {
        let reviewed = state == State::Review;
        let changed = |step: Step| match step {
            Step::Become(row) => Some(row.state),
            _ => None,
        };
        let delivered = decide(state, Decision::Delivered { reference: None });
        assert_eq!(changed(delivered), reviewed.then_some(State::Delivered), "{state:?}");
        let abandoned = decide(state, Decision::Abandon);
        assert_eq!(changed(abandoned), reviewed.then_some(State::Abandoned), "{state:?}");
        let again = reviewed || state == State::Rejected;
        assert_eq!(changed(decide(state, Decision::Retry)), again.then_some(State::Pending), "{state:?}");
    }
}

#[test]
fn a_persons_retry_begins_anew_but_still_waits_for_what_is_on_its_way() {
    for state in [State::Review, State::Rejected] {
        let Step::Become(row) = decide(state, Decision::Retry) else { panic!("{state:?}") };
        assert_eq!(row, Row { last_deadline: Some(noon() + CALL), ..fresh() });
    }
}

#[test]
fn a_persons_delivered_carries_the_reference() {
    for (given, kept) in [(None, "a"), (Some("b".to_owned()), "b")] {
        let Step::Become(row) = decide(State::Review, Decision::Delivered { reference: given }) else {
            panic!("kept");
        };
        assert_eq!((row.reference.as_deref(), row.last_error), (Some(kept), None));
    }
}
