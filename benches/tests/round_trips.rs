//! The round trips that design.md, section 8, allows: exact numbers, so a test and not a measurement.

use idem_benches::round_trips::{Trips, count};
use idem_testkit::postgres::TestDatabase;

#[tokio::test]
async fn the_macro_adds_at_most_two_round_trips_and_a_replay_is_answered_after_at_most_three() {
    let database = TestDatabase::create().await;
    let counts = count(database.url()).await.expect("counted");

    assert_eq!(counts.pool, Trips { answer: 0, after: 1 }, "the pool's own ping, and no test on the way out");
    assert_eq!(counts.bare, Trips { answer: 4, after: 1 }, "BEGIN, UPDATE, INSERT, COMMIT");
    assert_eq!(counts.by_hand, Trips { answer: 6, after: 1 });
    assert_eq!(counts.replay_by_hand, Trips { answer: 3, after: 1 });

    assert!(counts.added() <= 2, "{counts:?}");
    assert!(counts.replay.answer <= 3, "{counts:?}");
    // Nothing but the pool's ping follows, with which a rollback may travel.
    for trips in [counts.annotated, counts.annotated_unit, counts.replay] {
        assert_eq!(trips.after, counts.pool.after, "{counts:?}");
    }
    assert_eq!(counts.more_connections, 0, "neither takes a second connection");
}
