//! What the promises mean, one file per hazard. A file that holds for both databases is compiled once for each, and
//! sees it as `super::db`. `C1` and so on in the comments are the numbered hazards of the contract.

#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::duplicate_mod, reason = "each file of hazards is compiled once for each database")]

mod handler;
mod provider;

#[path = "."]
mod postgres {
    #[path = "db/postgres.rs"]
    mod db;

    mod annotated;
    mod crash;
    mod effects;
    mod identity;
    mod outcome;
    mod processes;
    mod race;
    mod retention;
    mod schema;
    mod soak;
    mod storm;
    mod transaction;
    mod unsettled;
    mod worker;
    mod worker_crash;

    #[path = "postgres/checks.rs"]
    mod checks;
    #[path = "postgres/commit_doubt.rs"]
    mod commit_doubt;
    #[path = "postgres/environment.rs"]
    mod environment;
    #[path = "postgres/misbehave.rs"]
    mod misbehave;
    #[path = "postgres/outbox.rs"]
    mod outbox;
    #[path = "postgres/overload.rs"]
    mod overload;
    #[path = "postgres/pooler.rs"]
    mod pooler;
    #[path = "postgres/reindex.rs"]
    mod reindex;
    #[path = "postgres/restart.rs"]
    mod restart;
    #[path = "postgres/round_trips.rs"]
    mod round_trips;
    #[path = "postgres/session.rs"]
    mod session;
    #[path = "postgres/waiting.rs"]
    mod waiting;
}

#[path = "."]
mod sqlite {
    #[path = "db/sqlite.rs"]
    mod db;

    mod annotated;
    mod crash;
    mod effects;
    mod identity;
    mod outcome;
    mod processes;
    mod race;
    mod retention;
    mod schema;
    mod storm;
    mod transaction;
    mod unsettled;
    mod worker;
    mod worker_crash;

    #[path = "sqlite/environment.rs"]
    mod environment;
    #[path = "sqlite/misbehave.rs"]
    mod misbehave;
    #[path = "sqlite/overload.rs"]
    mod overload;
    #[path = "sqlite/writer.rs"]
    mod writer;
}
