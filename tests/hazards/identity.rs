//! Whose key it is, and what is the same request.

use std::time::Duration;

use idem_runtime::{Claim, Error, Fingerprint, Identity, Store as _, Verified};
use serde_json::{Value, json};

use super::db::{Db, INBOX, Store, Tx};
use super::race::effect;
use crate::handler::{Fail, claim, fingerprint, identity, run};

fn of(operation: &str, scope: &str, key: &str) -> Claim {
    Claim::new(Identity::new(operation, &Verified::vouch(scope), key).expect("valid"))
}

#[tokio::test]
async fn one_key_of_two_tenants_or_two_operations_is_two_records() {
    // C17, C19
    let db = Db::fresh().await;
    let store = db.store().await;
    let identities =
        [("pay", "a", "k"), ("pay", "b", "k"), ("ship", "a", "k"), ("pay", "a", "K"), ("pay", "a", " k")];
    for (operation, scope, key) in identities {
        let outcome = run(&store, of(operation, scope, key), async |tx| effect(tx, "k").await).await;
        assert!(!outcome.expect("runs").is_replay(), "{operation} {scope} {key}");
    }
    assert_eq!(db.count(&format!("SELECT count(*) FROM {INBOX}")).await, 5);
}

#[tokio::test]
async fn the_longest_identity_fits_the_index() {
    // C19, with text that does not compress and four bytes a character.
    let db = Db::fresh().await;
    let store = db.store().await;
    let long = |bytes: usize| -> String {
        let mut state = 7_u32;
        let mut text = String::new();
        while text.len() < bytes {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push(char::from_u32(0x10000 + (state >> 8) % 0x8000).expect("a character"));
        }
        text
    };
    for replay in [false, true] {
        let outcome = run(&store, of(&long(128), &long(256), &long(1024)), async |_| Ok(())).await;
        assert_eq!(outcome.expect("runs").is_replay(), replay);
    }
}

#[tokio::test]
async fn the_same_identity_inside_itself_is_nested_at_once() {
    // C21
    let db = Db::fresh().await;
    let store = db.store().await;
    let inner = run(&store, claim("k"), async |_: &mut Tx| {
        let started = std::time::Instant::now();
        let nested = run(&store, claim("k"), async |_| Ok(())).await;
        assert!(started.elapsed() < Duration::from_secs(5), "at once");
        Ok(matches!(nested, Err(Fail::Idem(Error::Nested { running, .. })) if running == identity("k")))
    });
    assert!(inner.await.expect("applied").into_inner());
    // Outside of the body it is a duplicate as any other.
    assert!(run(&store, claim("k"), async |_| Ok(false)).await.expect("replayed").is_replay());
}

#[tokio::test]
async fn the_same_identity_in_another_database_is_not_nested() {
    let (db, other) = (Db::fresh().await, Db::fresh().await);
    let (store, other) = (db.store().await, other.store().await);
    let outer = run(&store, claim("k"), async |_: &mut Tx| {
        Ok(run(&other, claim("k"), async |_| Ok(())).await?.is_replay())
    });
    assert!(!outer.await.expect("both run").into_inner());
}

async fn with_fingerprint(store: &Store, key: &str, value: &Value) -> Result<bool, Fail> {
    let fingerprint = Fingerprint::builder("op").field("v", value)?.build();
    let claim = claim(key).with_fingerprint(fingerprint);
    run(store, claim, async |_| Ok(())).await.map(|outcome| outcome.is_replay())
}

#[tokio::test]
async fn equal_requests_replay_and_others_are_refused() {
    // C23, C24
    let db = Db::fresh().await;
    let store = db.store().await;
    let first = json!({"amount": 9_007_199_254_740_993_u64, "to": ["a", "b"], "n": 1});
    assert!(!with_fingerprint(&store, "k", &first).await.expect("runs"));
    let text = " { \"n\":1.0, \"to\" :[\"a\",\"b\"],\n\"amount\":9007199254740993 } ";
    let same: Value = serde_json::from_str(text).expect("JSON");
    assert!(with_fingerprint(&store, "k", &same).await.expect("replays"));
    for other in [
        json!({"amount": 9_007_199_254_740_992_u64, "to": ["a", "b"], "n": 1}),
        json!({"amount": 9_007_199_254_740_993_u64, "to": ["b", "a"], "n": 1}),
        json!({"amount": 9_007_199_254_740_993_u64, "to": ["a", "b"], "n": "1"}),
        json!({"amount": 9_007_199_254_740_993_u64, "to": ["a", "b"], "n": null}),
        json!({"amount": 9_007_199_254_740_993_u64, "to": ["a", "b"]}),
    ] {
        let error = with_fingerprint(&store, "k", &other).await.expect_err("another request").idem();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn records_of_another_list_of_material_fields_replay_or_are_refused_where_that_is_wanted() {
    // C25b: a field added, a field renamed, none before, none now.
    let db = Db::fresh().await;
    let store = db.store().await;
    let strict = store.clone().with_strict_fingerprints(true);
    let of = |fields: &[&str]| -> Option<Fingerprint> {
        let empty = Some(Fingerprint::builder("op"));
        let builder = fields.iter().fold(empty, |b, label| b.and_then(|b| b.field(label, &1).ok()));
        builder.filter(|_| !fields.is_empty()).map(idem_runtime::FingerprintBuilder::build)
    };
    for (n, (old, new)) in [(&["a"][..], &["a", "b"][..]), (&["a"], &["b"]), (&[], &["a"]), (&["a"], &[])]
        .into_iter()
        .enumerate()
    {
        let key = format!("k{n}");
        let run = |store: Store, fields: &[&str]| {
            let claim = claim(&key).with_fingerprint(of(fields));
            async move { run(&store, claim, async |_| Ok(())).await }
        };
        assert!(!run(store.clone(), old).await.expect("runs").is_replay());
        assert!(run(store.clone(), new).await.expect("replays").is_replay());
        let error = run(strict.clone(), new).await.expect_err("strict").idem();
        assert!(matches!(error, Error::FingerprintChanged { .. }), "{error:?}");
        assert!(run(strict.clone(), old).await.expect("replays").is_replay());
    }
}

#[tokio::test]
async fn a_request_that_is_refused_leaves_the_key_unused() {
    // C26: before anything is written.
    let db = Db::fresh().await;
    let store = db.store().await;
    let nan = Fingerprint::builder("op").field("v", &f64::NAN).expect_err("no canonical form");
    assert!(matches!(nan, Error::InvalidFingerprint { .. }));
    assert!(Identity::new("op", &Verified::vouch("s"), "").is_err());
    assert!(store.find(&identity("k")).await.expect("asked").is_none());
    let outcome = run(&store, claim("k").with_fingerprint(fingerprint(2)), async |_| Ok(())).await;
    assert!(!outcome.expect("runs").is_replay());
}
