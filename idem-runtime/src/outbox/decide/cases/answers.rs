//! What becomes of a row whose attempt was answered, in time or late.

use super::*;

#[test]
fn delivered_is_delivered_and_keeps_what_the_provider_calls_it() {
    let named = |name: &str| Some(name.to_owned());
    for (known, told, kept) in [
        (None, None, None),
        (None, named("b"), named("b")),
        (named("a"), None, named("a")),
        (named("a"), named("b"), named("b")),
    ] {
        let row = Row { reference: known, last_error: Some("boom".into()), ..unknown(noon()) };
        let delivery = Delivery::Delivered { reference: told };
        let after = row_after(&row, Event::Answered(delivery), noon());
        assert_eq!(after, Row { state: State::Delivered, reference: kept, last_error: None, ..row });
    }
}

#[test]
fn accepted_waits_to_be_asked_and_a_provider_cannot_put_it_off_for_ever() {
    for (ask_after, wait) in [(HOUR, HOUR), (Duration::MAX, DAY * 7)] {
        let delivery = Delivery::Accepted { reference: Some("a".into()), ask_after };
        let row = row_after(&tried(noon()), Event::Answered(delivery), noon() + secs(1));
        assert_eq!((row.state, row.maybe_sent), (State::Accepted, true));
        assert_eq!((row.due_at, row.reference.as_deref()), (noon() + secs(1) + wait, Some("a")));
        assert_eq!(row.first_attempt_at, Some(noon()));
    }
}

#[test]
fn a_first_try_that_was_not_sent_leaves_no_trace_of_a_request() {
    let row = row_after(&tried(noon()), not_sent(), noon() + secs(1));
    assert_eq!((row.state, row.maybe_sent, row.attempts), (State::Pending, false, 1));
    assert_eq!((row.first_attempt_at, row.last_deadline), (None, None));
    assert_eq!((row.due_at, row.last_error.as_deref()), (noon() + secs(2), Some("boom")));
}

#[test]
fn a_later_try_that_was_not_sent_says_nothing_about_the_one_before() {
    let later = noon() + secs(60);
    let row = Row { attempts: 2, last_deadline: Some(later + CALL), ..unknown(noon()) };
    let after = row_after(&row, not_sent(), later);
    assert!(after.maybe_sent);
    assert_eq!((after.first_attempt_at, after.last_deadline), (Some(noon()), Some(later + CALL)));
}

#[test]
fn no_answer_means_that_it_may_have_happened() {
    let row = row_after(&tried(noon()), no_answer(), noon() + CALL);
    assert_eq!((row.state, row.maybe_sent), (State::Pending, true));
    assert_eq!((row.first_attempt_at, row.last_deadline), (Some(noon()), Some(noon() + CALL)));
    assert_eq!(row.due_at, noon() + CALL + secs(1));
}

#[test]
fn the_backoff_doubles_to_its_longest_and_does_not_overflow() {
    let policy = Policy { max_attempts: u32::MAX, ..Policy::default() };
    let terms = Terms { window: KeyWindow::Forever, longest_flight: FLIGHT };
    for (attempts, wait) in [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 4),
        (10, 512),
        (15, 16_384),
        (16, 21_600),
        (64, 21_600),
        (u32::MAX - 1, 21_600),
    ] {
        for event in [not_sent(), no_answer(), Event::Crashed] {
            let row = Row { attempts, ..unknown(noon()) };
            match next(&row, event, noon(), terms, &policy) {
                Step::Become(row) => assert_eq!(row.due_at, noon() + secs(wait), "{attempts}"),
                step => panic!("{step:?}"),
            }
        }
    }
}

#[test]
fn the_provider_may_ask_for_a_longer_wait_but_not_a_shorter_one_nor_one_without_end() {
    let row = Row { attempts: 5, ..unknown(noon()) };
    for (asked, wait) in [(secs(1), secs(16)), (HOUR, HOUR), (Duration::MAX, DAY * 7)] {
        for delivery in [
            Delivery::NotSent { retry_after: Some(asked), error: why() },
            Delivery::Unknown { retry_after: Some(asked), error: why() },
        ] {
            assert_eq!(row_after(&row, Event::Answered(delivery), noon()).due_at, noon() + wait);
        }
    }
}

#[test]
fn the_twentieth_failure_asks_a_person_at_once() {
    for (event, maybe_sent) in [(not_sent(), false), (no_answer(), true)] {
        let row = row_after(&Row { attempts: 20, ..tried(noon()) }, event, noon());
        assert_eq!((row.state, row.maybe_sent), (State::Review, maybe_sent));
        assert_eq!(row.last_error.as_deref(), Some("20 attempts: boom"));
    }
    for event in [not_sent(), no_answer()] {
        assert_eq!(row_after(&Row { attempts: 19, ..tried(noon()) }, event, noon()).state, State::Pending);
    }
}

#[test]
fn a_failure_seven_days_after_the_first_attempt_asks_a_person() {
    for (age, state) in [(DAY * 7 - MICRO, State::Pending), (DAY * 7, State::Review)] {
        assert_eq!(row_after(&unknown(noon()), no_answer(), noon() + age).state, state);
        assert_eq!(row_after(&unknown(noon()), not_sent(), noon() + age).state, state);
    }
}

#[test]
fn a_refusal_is_final_only_if_nothing_may_have_been_sent_before() {
    let row = row_after(&tried(noon()), rejected(), noon());
    assert_eq!((row.state, row.maybe_sent), (State::Rejected, false));
    assert_eq!((row.first_attempt_at, row.last_error.as_deref()), (None, Some("boom")));
}

#[test]
fn a_refusal_after_a_try_that_may_have_happened_is_asked_about_and_not_sent_again() {
    let row = row_after(&unknown(noon()), rejected(), noon() + secs(1));
    assert_eq!((row.state, row.maybe_sent, row.window_closed), (State::Pending, true, true));
    assert_eq!(row.due_at, noon() + CALL + FLIGHT);
    for window in WINDOWS {
        assert_eq!(on(window, &row, Event::Take, row.due_at), Step::Ask, "{window:?}");
    }
    // Written late: not due before it was written.
    assert_eq!(row_after(&unknown(noon()), rejected(), noon() + DAY).due_at, noon() + DAY);
}

#[test]
fn a_refusal_after_a_crash_is_not_final() {
    let crashed = row_after(&tried(noon()), Event::Crashed, noon() + secs(60));
    assert_eq!(row_after(&crashed, rejected(), noon() + secs(61)).state, State::Pending);
}

#[test]
fn an_answer_that_proves_nothing_goes_to_a_person_as_perhaps_sent() {
    let delivery = Delivery::Review { error: why() };
    let row = row_after(&tried(noon()), Event::Answered(delivery), noon());
    assert_eq!((row.state, row.maybe_sent, row.last_error.as_deref()), (State::Review, true, Some("boom")));
}

#[test]
fn wrong_credentials_are_no_verdict_on_the_effect() {
    let row = row_after(&Row { attempts: 20, ..tried(noon()) }, halted(), noon() + secs(1));
    assert_eq!((row.state, row.attempts, row.maybe_sent), (State::Pending, 19, false));
    assert_eq!((row.due_at, row.first_attempt_at, row.last_deadline), (noon() + secs(1), None, None));
    assert_eq!(step(&row, Event::Take, noon() + DAY * 99), Step::Send { before: None });

    let row = row_after(&Row { attempts: 2, ..unknown(noon()) }, halted(), noon() + secs(1));
    assert_eq!((row.maybe_sent, row.attempts, row.first_attempt_at), (true, 1, Some(noon())));
    assert_eq!(row_after(&Row { attempts: 0, ..tried(noon()) }, halted(), noon()).attempts, 0);
}

#[test]
fn a_late_delivered_settles_what_waits_or_is_in_review() {
    for state in [State::Pending, State::Accepted, State::Review] {
        let row = Row { state, window_closed: true, ..unknown(noon()) };
        let delivery = Delivery::Delivered { reference: Some("a".into()) };
        let after = row_after(&row, Event::Late { delivery, leased: false }, noon() + HOUR);
        assert_eq!((after.state, after.reference.as_deref()), (State::Delivered, Some("a")));
    }
}

#[test]
fn a_late_delivered_under_anothers_lease_is_evidence_only() {
    for state in State::ALL {
        let row = Row { state, ..unknown(noon()) };
        let late = Event::Late { delivery: delivered(), leased: true };
        assert_eq!(step(&row, late, noon()), Step::Keep, "{state:?}");
    }
}

#[test]
fn a_late_answer_changes_nothing_that_is_finished() {
    for state in State::ALL.into_iter().filter(|state| state.is_finished()) {
        for delivery in answers() {
            let late = Event::Late { delivery, leased: false };
            assert_eq!(step(&Row { state, ..unknown(noon()) }, late, noon()), Step::Keep, "{state:?}");
        }
    }
}

#[test]
fn a_late_answer_that_is_not_delivered_is_evidence_only() {
    for state in State::ALL {
        for delivery in answers().into_iter().skip(1) {
            let late = Event::Late { delivery, leased: false };
            assert_eq!(step(&Row { state, ..unknown(noon()) }, late, noon()), Step::Keep, "{state:?}");
        }
    }
}

#[test]
fn a_worker_whose_lease_ran_out_does_not_reopen_what_a_late_answer_has_settled() {
    for state in State::ALL.into_iter().filter(|state| state.is_finished()) {
        let row = Row { state, crashes: 2, attempts: 19, ..unknown(noon()) };
        let asked = [
            Reconciled::Happened { reference: None },
            Reconciled::DidNotHappen,
            refused(),
            Reconciled::Unknown,
            Reconciled::Unsupported,
        ];
        let events = answers()
            .map(Event::Answered)
            .into_iter()
            .chain(asked.map(|answer| Event::Asked(noon() + DAY, answer)))
            .chain([Event::Crashed, Event::Undecodable("boom".into())]);
        for event in events {
            assert_eq!(step(&row, event, noon() + DAY * 7), Step::Keep, "{state:?}");
        }
    }
}
