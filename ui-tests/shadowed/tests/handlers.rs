//! The handlers beside shadowed names do what all handlers do.

use std::future::Future;
use std::time::SystemTime;

use idem_runtime::Effect;
use idem_shadowed::handlers::{locals, transaction_called_store, Receipt, Request, Service, Tenant};
use idem_ui_tests::MemoryStore;

fn is_send<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn parameters_called_as_the_generated_locals_keep_their_values() {
    let store = MemoryStore::new();
    let tenant = || Tenant("acme".to_owned());
    let now = SystemTime::now();
    for replay in [false, true] {
        let future = is_send(locals(&store, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, tenant(), now));
        let outcome = future.await.expect("runs");
        assert_eq!((outcome.is_replay(), outcome.into_inner()), (replay, 91));
    }
    assert_eq!(store.identities(), [r#"locals "acme" "13/2""#]);
    assert_eq!(store.effects(), ["summed"]);
}

#[tokio::test]
async fn names_of_the_standard_library_are_not_met() {
    let store = MemoryStore::new();
    let request = Request { store: 1, claim: 2, note: () };
    for replay in [false, true] {
        let outcome =
            transaction_called_store(&store, &Tenant("acme".to_owned()), &request).await.expect("runs");
        assert_eq!((outcome.is_replay(), outcome.into_inner()), (replay, 3));
        assert_eq!(Service.start(&store, 1).await.expect("runs").is_replay(), replay);
    }
}

#[test]
fn an_effect_has_its_name_and_its_order_key() {
    let receipt = Receipt { order: 7, name: "a/b".to_owned() };
    assert_eq!(Receipt::<i64>::NAME, "receipt.email");
    assert_eq!(Effect::order_key(&receipt).as_deref(), Some("7/a%2Fb"));
}
