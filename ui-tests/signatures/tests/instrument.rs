//! Where `#[tracing::instrument]` stands decides what its span covers: above the attribute the body alone, below it
//! the whole call.
#![deny(warnings)]

use std::fmt;
use std::sync::{Arc, Mutex};

use idem_runtime::idempotent;
use idem_ui_tests::{ApproveError, MemoryStore, MyTx};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[idempotent(key = id, scope = global, fingerprint(none))]
#[tracing::instrument]
async fn below(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
    tx.apply("done");
    Ok(())
}

#[tracing::instrument]
#[idempotent(key = id, scope = global, fingerprint(none))]
async fn above(tx: &mut MyTx, id: u64) -> Result<(), ApproveError> {
    tx.apply("done");
    Ok(())
}

/// Collects the name and the field names of every new span.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Names(String);

impl Visit for Names {
    fn record_debug(&mut self, field: &Field, _: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {}", field.name()));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut names = Names(span.metadata().name().to_owned());
        span.record(&mut names);
        self.0.lock().expect("not poisoned").push(names.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn above_covers_the_body_alone_and_below_the_whole_call() {
    let (store, spans) = (MemoryStore::new(), Spans::default());
    let _guard = tracing::subscriber::set_default(spans.clone());
    let taken = || std::mem::take(&mut *spans.0.lock().expect("not poisoned"));

    assert!(!below(&store, 1).await.expect("runs").is_replay());
    assert_eq!(taken(), ["below store id"]);
    assert!(below(&store, 1).await.expect("replays").is_replay());
    assert_eq!(taken(), ["below store id"]);

    assert!(!above(&store, 1).await.expect("runs").is_replay());
    assert_eq!(taken(), ["above tx id"]);
    assert!(above(&store, 1).await.expect("replays").is_replay());
    assert!(taken().is_empty());
}
