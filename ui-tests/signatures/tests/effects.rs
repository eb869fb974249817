//! Every kind of effect has its name and its order key, and reads back.

use std::marker::PhantomData;

use idem_runtime::Effect;
use idem_signatures::effects::{
    Account, Changed, EmailReceipt, Flush, Index, Invoice, Made, Message, NotStored, Notice, Payout, Post,
};

/// Its name, and its order key before and after it was stored.
fn staged<E: Effect>(effect: &E) -> (&'static str, Option<String>) {
    let stored = serde_json::to_vec(effect).expect("can be stored");
    let read: E = serde_json::from_slice(&stored).expect("reads back");
    assert_eq!(read.order_key(), effect.order_key());
    (E::NAME, effect.order_key())
}

fn ordered(name: &'static str, key: &str) -> (&'static str, Option<String>) {
    (name, Some(key.to_owned()))
}

fn payout(bank: &str, kind: char) -> Payout {
    Payout(Account { bank: bank.to_owned(), r#type: kind }, 3)
}

#[test]
fn structs() {
    let receipt = |to: &str| EmailReceipt { invoice: -7, to: to.to_owned() };
    assert_eq!(staged(&receipt("a@example.com")), ordered("receipt.email", "-7"));
    assert_eq!(staged(&Flush), ("cache.flush", None));
    assert_eq!(staged(&Made { id: 1 }), ordered("made.by.macro", "1"));
}

#[test]
fn several_values_never_run_into_each_other() {
    assert_eq!(staged(&payout("x", 'y')), ordered("payout", "acct x/y/3"));
    // Whatever stands between the values is encoded in them, and so is `%`.
    assert_eq!(staged(&payout("x/y c", '%')), ordered("payout", "acct x%2Fy%20%63/%25/3"));
    assert_ne!(payout("x/y", 'z').order_key(), payout("x", '/').order_key());
}

#[test]
fn an_empty_value_is_a_value() {
    assert_eq!(staged(&payout("", '/')), ordered("payout", "acct /%2F/3"));
    let message = Message { line: String::new(), body: "text".to_owned() };
    assert_eq!(staged(&message), ordered("message", ""));
}

#[test]
fn enums() {
    for index in [Index::Put { id: 1 }, Index::Delete(1), Index::Refresh] {
        assert_eq!(staged(&index), ("search.index", None));
    }
    for post in [Post::Debit { account: 4, cents: 5 }, Post::Credit { account: 4, cents: 6 }] {
        assert_eq!(staged(&post), ordered("ledger.post", "4"));
    }
}

#[test]
fn generics() {
    let notice: Notice<u8, NotStored, 3> =
        Notice { about: 1, others: vec![None, Some(2)], marker: PhantomData };
    assert_eq!(staged(&notice), ordered("notice", "1"));
    let changed = [Changed::<Invoice>::One(1), Changed::Many { ids: [1, 2], entity: PhantomData }];
    for changed in &changed {
        assert_eq!(staged(changed), ("changed", None));
    }
}
