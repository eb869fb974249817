//! What becomes of a row that is due.

use super::*;

fn reviewed(row: &Row, now: SystemTime) -> String {
    let row = row_after(row, Event::Take, now);
    assert_eq!(row.state, State::Review);
    row.last_error.expect("says why")
}

#[test]
fn what_was_never_sent_is_sent_whatever_the_window() {
    for window in WINDOWS {
        assert_eq!(on(window, &fresh(), Event::Take, noon()), Step::Send { before: None }, "{window:?}");
    }
}

#[test]
fn what_is_finished_or_with_a_person_is_not_touched_by_a_worker() {
    for state in State::ALL.into_iter().filter(|state| state.is_finished() || *state == State::Review) {
        let row = Row { state, attempts: 99, crashes: 99, ..unknown(noon() - DAY * 99) };
        assert_eq!(step(&row, Event::Take, noon()), Step::Keep, "{state:?}");
    }
}

#[test]
fn the_window_is_judged_at_the_take_to_the_microsecond() {
    let row = unknown(noon());
    let last = noon() + HOUR - CALL - FLIGHT;
    assert_eq!(step(&row, Event::Take, last - MICRO), Step::Send { before: Some(last) });
    assert_eq!(step(&row, Event::Take, last), Step::Ask);
    assert_eq!(step(&row, Event::Take, last + DAY), Step::Ask);
}

#[test]
fn tries_that_were_not_sent_do_not_prolong_the_window() {
    let mut row = unknown(noon());
    for minute in 1..=10 {
        let now = noon() + secs(60 * minute);
        row = row_after(&Row { attempts: row.attempts + 1, ..row }, not_sent(), now);
    }
    let last = noon() + HOUR - CALL - FLIGHT;
    assert_eq!(step(&row, Event::Take, last - MICRO), Step::Send { before: Some(last) });
    assert_eq!(step(&row, Event::Take, last), Step::Ask);
}

#[test]
fn a_row_that_comes_due_after_the_window_because_no_worker_ran_is_not_sent() {
    for row in [unknown(noon()), Row { window_closed: true, ..unknown(noon()) }] {
        assert_eq!(step(&row, Event::Take, noon() + DAY), Step::Ask);
    }
}

#[test]
fn without_a_window_what_may_have_been_sent_is_never_sent_again() {
    let row = unknown(noon());
    for window in [KeyWindow::None, KeyWindow::Unknown, KeyWindow::AtLeast(Duration::ZERO)] {
        for seconds in [0, 1, 60, 149] {
            let waits = Row { window_closed: true, due_at: noon() + CALL + FLIGHT, ..row.clone() };
            assert_eq!(on(window, &row, Event::Take, noon() + secs(seconds)), Step::Become(waits));
        }
        assert_eq!(on(window, &row, Event::Take, noon() + secs(150)), Step::Ask);
    }
}

#[test]
fn a_window_shorter_than_a_call_and_its_flight_is_none() {
    let just = CALL + FLIGHT;
    let row = unknown(noon());
    assert!(matches!(on(KeyWindow::AtLeast(just), &row, Event::Take, noon()), Step::Become(_)));
    let longer = on(KeyWindow::AtLeast(just + MICRO), &row, Event::Take, noon());
    assert_eq!(longer, Step::Send { before: Some(noon() + MICRO) });
}

#[test]
fn a_window_without_end_never_closes_by_itself() {
    let row = unknown(noon());
    for window in [KeyWindow::Forever, KeyWindow::AtLeast(Duration::MAX)] {
        assert_eq!(on(window, &row, Event::Take, noon() + DAY * 6), Step::Send { before: None });
        let closed = Row { window_closed: true, ..row.clone() };
        assert_eq!(on(window, &closed, Event::Take, noon() + DAY * 6), Step::Ask);
    }
}

#[test]
fn a_row_that_may_have_been_sent_at_an_unknown_time_counts_as_sent_long_ago() {
    let row = Row { first_attempt_at: None, last_deadline: None, ..unknown(noon()) };
    assert_eq!(step(&row, Event::Take, noon()), Step::Ask);
}

#[test]
fn nothing_is_asked_while_a_request_may_still_be_on_its_way() {
    let row = Row { window_closed: true, ..unknown(noon()) };
    let landed = noon() + CALL + FLIGHT;
    let waits = Row { due_at: landed, ..row.clone() };
    assert_eq!(step(&row, Event::Take, noon()), Step::Become(waits.clone()));
    assert_eq!(step(&row, Event::Take, landed - MICRO), Step::Become(waits));
    assert_eq!(step(&row, Event::Take, landed), Step::Ask);
}

#[test]
fn a_retry_that_was_decided_while_a_request_could_be_on_its_way_goes_back_to_the_person() {
    let landed = noon() + CALL + FLIGHT;
    let decided = |due_at| Row { maybe_sent: false, first_attempt_at: None, due_at, ..unknown(noon()) };
    for window in WINDOWS {
        // However late it is taken.
        for now in [landed - MICRO, landed, landed + DAY] {
            let Step::Become(row) = on(window, &decided(landed - MICRO), Event::Take, now) else {
                panic!("review")
            };
            assert_eq!((row.state, row.maybe_sent), (State::Review, true));
        }
        assert_eq!(on(window, &decided(landed), Event::Take, landed), Step::Send { before: None });
    }
}

#[test]
fn inside_the_window_the_next_try_does_not_wait_for_the_one_before_to_land() {
    assert!(matches!(step(&unknown(noon()), Event::Take, noon() + secs(1)), Step::Send { before: Some(_) }));
}

#[test]
fn what_was_accepted_is_asked_for_and_never_sent_again() {
    for window in WINDOWS {
        for window_closed in [false, true] {
            for attempts in [1, 20] {
                let row = Row { state: State::Accepted, window_closed, attempts, ..unknown(noon()) };
                assert_eq!(on(window, &row, Event::Take, noon()), Step::Ask);
                assert_eq!(on(window, &row, Event::Take, noon() + DAY), Step::Ask);
            }
        }
    }
}

#[test]
fn twenty_attempts_are_enough() {
    let after = |attempts| Row { attempts, last_error: Some("boom".into()), ..fresh() };
    assert_eq!(step(&after(19), Event::Take, noon()), Step::Send { before: None });
    assert_eq!(reviewed(&after(20), noon()), "20 attempts: boom");
}

#[test]
fn three_crashes_are_enough_in_every_state_that_goes_on() {
    for state in [State::Pending, State::Accepted] {
        let after = |crashes| Row { state, crashes, window_closed: true, ..unknown(noon()) };
        assert_eq!(step(&after(2), Event::Take, noon() + DAY), Step::Ask);
        assert!(reviewed(&after(3), noon() + DAY).contains("3 workers"));
    }
}

#[test]
fn seven_days_are_enough_in_every_state_that_goes_on() {
    for state in [State::Pending, State::Accepted] {
        let row = Row { state, window_closed: true, ..unknown(noon()) };
        assert_eq!(step(&row, Event::Take, noon() + DAY * 7 - MICRO), Step::Ask);
        assert!(reviewed(&row, noon() + DAY * 7).contains("since the first attempt"));
    }
    // What was never tried does not age: no worker may have run.
    assert_eq!(step(&fresh(), Event::Take, noon() + DAY * 99), Step::Send { before: None });
}

#[test]
fn a_process_that_dies_in_an_attempt_counts_and_has_perhaps_sent() {
    let row = row_after(&tried(noon()), Event::Crashed, noon() + secs(60));
    assert_eq!((row.state, row.maybe_sent, row.crashes), (State::Pending, true, 1));
    assert_eq!((row.first_attempt_at, row.last_deadline), (Some(noon()), Some(noon() + CALL)));
    assert_eq!(row.due_at, noon() + secs(61));
    let third = row_after(&Row { crashes: 2, ..tried(noon()) }, Event::Crashed, noon());
    assert_eq!((third.state, third.maybe_sent, third.crashes), (State::Review, true, 3));
}

#[test]
fn bytes_that_no_longer_decode_go_to_a_person_as_they_are() {
    for row in [fresh(), unknown(noon()), Row { state: State::Accepted, ..unknown(noon()) }] {
        let after = row_after(&row, Event::Undecodable("missing field `to`".into()), noon());
        let last_error = Some("missing field `to`".to_owned());
        assert_eq!(after, Row { state: State::Review, last_error, ..row });
    }
}
