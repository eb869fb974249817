//! The same answer for every delivery, and never a second run because the first answer cannot be read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use idem_runtime::{Claimed, Error, Store as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::db::{Db, INBOX, Store};
use super::race::effect;
use crate::handler::{Fail, claim, identity, run};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Nested {
    Unit,
    Tuple(u8, Box<Nested>),
    Struct { inner: Option<Vec<Nested>>, map: BTreeMap<String, f64> },
}

async fn round_trip<V>(store: &Store, key: &str, value: V)
where
    V: Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let first = run(store, claim(key), async |_| Ok(value.clone())).await.expect("stored");
    assert!(!first.is_replay(), "C16");
    let again = run(store, claim(key), async |_| panic!("the body must not run again")).await;
    let again: idem_runtime::Outcome<V> = again.expect("replayed");
    assert!(again.is_replay(), "C16");
    assert_eq!(again.into_inner(), value);
}

#[tokio::test]
async fn every_outcome_reads_back_as_it_was() {
    // C14
    let db = Db::fresh().await;
    let store = db.store().await;
    round_trip(&store, "unit", ()).await;
    round_trip(&store, "zero", 0).await;
    round_trip(&store, "false", false).await;
    round_trip(&store, "empty text", String::new()).await;
    round_trip(&store, "empty list", Vec::<u8>::new()).await;
    round_trip(&store, "none", None::<u8>).await;
    round_trip(&store, "some", Some(1)).await;
    round_trip(&store, "least", i64::MIN).await;
    round_trip(&store, "most", u64::MAX).await;
    round_trip(&store, "wide", u128::MAX).await;
    round_trip(&store, "nul", "a\0b \u{1F980} \" \\ ' \u{2028}".to_owned()).await;
    round_trip(&store, "long", "x".repeat(200 * 1024)).await;
    round_trip(&store, "set", HashSet::from(["a".to_owned(), "b".to_owned(), "c".to_owned()])).await;
    round_trip(&store, "map", HashMap::from([(1, 'a'), (2, 'b'), (3, 'c')])).await;
    round_trip(&store, "floats", vec![0.1, 1e300, 5e-324, 123_456_789.123_456_79, f64::MAX]).await;
    let nested = Nested::Struct {
        inner: Some(vec![Nested::Unit, Nested::Tuple(1, Box::new(Nested::Unit))]),
        map: BTreeMap::from([("k".to_owned(), 1.5)]),
    };
    round_trip(&store, "nested", nested).await;
    round_trip(&store, "json", serde_json::json!({"b": [1, 2.5, null], "a": {"z": 1, "y": 2}})).await;

    run(&store, claim("minus"), async |_| Ok(-0.0_f64)).await.expect("stored");
    let minus: f64 = run(&store, claim("minus"), async |_| Ok(1.0)).await.expect("replayed").into_inner();
    assert!(minus == 0.0 && minus.is_sign_negative());
}

async fn rejected<V: Clone + Serialize + DeserializeOwned>(db: &Db, store: &Store, key: &str, value: V) {
    let error = run(store, claim(key), async |tx| {
        effect(tx, key).await?;
        Ok(value.clone())
    });
    let error = error.await.map(drop).expect_err("cannot be stored").idem();
    assert!(matches!(error, Error::OutcomeRejected { .. }), "{error:?}");
    assert!(!error.is_retryable());
    assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 0);
    assert!(store.find(&identity(key)).await.expect("asked").is_none());
    // The cause is mended: it runs once.
    for replay in [false, true] {
        let outcome = run(store, claim(key), async |tx| effect(tx, key).await).await.expect("stored");
        assert_eq!(outcome.is_replay(), replay);
    }
    assert_eq!(db.count(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await, 1);
}

/// Loses a field on the way.
#[derive(Clone)]
struct Lossy(u8);

impl Serialize for Lossy {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (self.0 / 2).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u8::deserialize(d).map(Self)
    }
}

/// Does not serialize.
#[derive(Clone, Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("told to"))
    }
}

#[tokio::test]
async fn what_json_would_not_give_back_is_rejected_in_the_first_run() {
    // C13, C14
    let db = Db::fresh().await;
    let store = db.store().await;
    rejected(&db, &store, "some none", Some(None::<u8>)).await;
    rejected(&db, &store, "some unit", Some(())).await;
    rejected(&db, &store, "nan", f64::NAN).await;
    rejected(&db, &store, "inf", vec![f32::INFINITY]).await;
    rejected(&db, &store, "lossy", Lossy(5)).await;
    rejected(&db, &store, "unwritable", Unwritable).await;
    rejected(&db, &store.clone().with_max_outcome_bytes(100), "large", "x".repeat(99)).await;
    db.assert_no_open_transaction().await;
}

#[tokio::test]
async fn a_text_that_is_no_json_is_rejected_on_every_store() {
    let db = Db::fresh().await;
    let store = db.store().await;
    for text in ["", "no JSON", "1 2", "{\"a\":}"] {
        let Claimed::Fresh(tx) = store.claim(claim("k")).await.expect("claimed") else {
            panic!("it is fresh")
        };
        let error = store.complete(tx, text.to_owned()).await.expect_err("no JSON");
        assert!(matches!(error, Error::OutcomeRejected { .. }), "{error:?}");
    }
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
}

#[tokio::test]
async fn a_stored_outcome_that_cannot_be_read_is_an_error_and_no_second_run() {
    // C15
    let db = Db::fresh().await;
    let store = db.store().await;
    run(&store, claim("k"), async |_| Ok("text".to_owned())).await.expect("stored");
    let error = run::<_, u32, _>(&store, claim("k"), async |_| panic!("must not run")).await;
    let error = error.expect_err("another type").idem();
    assert!(matches!(&error, Error::OutcomeUnreadable { source: Some(_), .. }), "{error:?}");
    assert_eq!(error.identity(), Some(&identity("k")));
    assert!(error.to_string().starts_with("effect.apply \"acme\" \"k\":"));

    // A body that committed by itself has left a record without an outcome.
    db.execute(&format!("UPDATE {INBOX} SET outcome = NULL, processed_at = NULL")).await;
    let error = run::<_, String, _>(&store, claim("k"), async |_| panic!("must not run")).await;
    let error = error.expect_err("no outcome").idem();
    assert!(matches!(&error, Error::OutcomeUnreadable { source: None, .. }), "{error:?}");
}

#[tokio::test]
async fn find_shows_the_record() {
    let db = Db::fresh().await;
    let store = db.store().await;
    assert_eq!(store.find(&identity("k")).await.expect("asked"), None);
    run(&store, claim("k"), async |_| Ok::<_, Fail>(vec![1, 2])).await.expect("stored");
    let record = store.find(&identity("k")).await.expect("asked").expect("there");
    assert_eq!(record.outcome.as_deref(), Some("[1,2]"));
    assert_eq!(record.fingerprint, Some(crate::handler::fingerprint(1).to_bytes()));
    assert!(record.processed_at >= Some(record.claimed_at));
    assert_eq!((record.outcome_until, record.expires_at), (None, None));
}
