//! Handlers in a module where the names of the standard library mean something else, and with parameters that are
//! called as the locals of the generated code: it must not meet either.
#![deny(warnings)]
#![allow(missing_docs, non_upper_case_globals, non_camel_case_types, dead_code, unused_macros)]

pub mod handlers {
    use idem_runtime::{idempotent, Effect, Scope, Transaction};
    use idem_ui_tests::{ApproveError, MyTx};

    // What generated code could mean by mistake.
    pub mod core {}
    pub mod std {}
    pub mod alloc {}
    pub mod serde {}
    pub mod inventory {}
    pub struct Result;
    pub struct Option;
    pub struct String;
    pub struct Box;
    pub struct Vec;
    pub struct Cow;
    pub struct Duration;
    pub struct Retain;
    pub struct Claim;
    pub struct Claimed;
    pub struct Outcome;
    pub struct Error;
    pub struct Identity;
    pub struct Fingerprint;
    pub struct Store;
    pub struct Older;
    pub struct Start;
    pub struct Material;
    pub struct Template;
    pub struct Some;
    pub struct None;
    pub struct Ok;
    pub struct Err;
    pub trait Send {}
    pub trait Sync {}
    pub trait Sized {}
    pub trait From {}
    pub trait Into {}
    pub trait Clone {}
    pub trait Iterator {}
    pub trait Future {}
    pub trait Drop {}
    pub trait Display {}
    pub trait Serialize {}
    pub trait Payload {}
    pub fn drop() {}
    pub fn key() {}
    pub fn scope() {}
    pub fn handler() {}
    pub fn constant() {}
    pub const witness: () = ();
    pub struct str;
    pub struct u64;
    pub struct u32;
    pub struct bool;
    macro_rules! file {
        () => {
            compile_error!("another `file!`")
        };
    }
    macro_rules! line {
        () => {
            compile_error!("another `line!`")
        };
    }
    macro_rules! submit {
        () => {
            compile_error!("another `submit!`")
        };
    }

    /// Methods on every type, called as those of the generated code.
    pub trait Meddles {
        fn start(&self) {}
        fn finish(&self) {}
        fn run(&self) {}
        fn enter(&self) {}
        fn map(&self) {}
        fn claim(&self) {}
        fn complete(&self) {}
        fn scope(&self) {}
        fn key(&self) {}
        fn field(&self) {}
        fn with_retain(&self) {}
        fn order(&self) {}
        fn literal(&self) {}
        fn order_key(&self) {}
    }
    impl<T: ?::core::marker::Sized> Meddles for T {}

    pub type Answer<V> = ::std::result::Result<V, ApproveError>;

    #[derive(Scope)]
    pub struct Tenant(pub ::std::string::String);

    // The derives of serde meet another `str`: `stored` does their part.
    #[derive(Effect)]
    #[effect(name = "receipt.email", order = "{self.order}/{self.name}")]
    pub struct Receipt<T>
    where
        T: ::std::fmt::Display,
    {
        pub order: T,
        pub name: ::std::string::String,
    }

    #[allow(clippy::too_many_arguments)]
    #[idempotent(
        key = "{key}/{claim}",
        scope = "{scope}",
        fingerprint(store, claim, tx_, identity, outcome, fingerprint, operation = handler, run, inside, answer, never),
        retain = "1d",
        remember = "2d",
        occurred_at = occurred_at,
        older = run,
        concurrent = reject
    )]
    pub async fn locals(
        tx: &mut MyTx,
        store: ::core::primitive::u64,
        claim: ::core::primitive::u64,
        tx_: ::core::primitive::u64,
        identity: ::core::primitive::u64,
        outcome: ::core::primitive::u64,
        fingerprint: ::core::primitive::u64,
        handler: ::core::primitive::u64,
        run: ::core::primitive::u64,
        inside: ::core::primitive::u64,
        answer: ::core::primitive::u64,
        never: ::core::primitive::u64,
        result: ::core::primitive::u64,
        key: ::core::primitive::u64,
        scope: Tenant,
        occurred_at: ::std::time::SystemTime,
    ) -> Answer<::core::primitive::u64> {
        tx.apply("summed");
        let sum = store + claim + tx_ + identity + outcome + fingerprint + handler + run + inside + answer;
        let _ = (&scope, occurred_at);
        ::core::result::Result::Ok(sum + never + result + key)
    }

    pub struct Request {
        pub store: ::core::primitive::u64,
        pub claim: ::core::primitive::u64,
        pub note: (),
    }

    /// The transaction may be called as the parameter that replaces it.
    #[idempotent(key = claim.store, scope = tenant, fingerprint(claim { store, claim, note: _ }))]
    pub async fn transaction_called_store<tx_: Transaction>(
        store: &mut tx_,
        tenant: &Tenant,
        claim: &Request,
    ) -> Answer<::core::primitive::u64> {
        let _: &mut tx_ = store;
        ::core::result::Result::Ok(claim.store + claim.claim)
    }

    pub struct Service;

    impl Service {
        #[idempotent(operation = "service.handle", key = key, scope = global, fingerprint(none))]
        pub async fn start(&self, tx: &mut MyTx, key: ::core::primitive::u64) -> Answer<()> {
            tx.apply("started");
            let _ = (self, key);
            ::core::result::Result::Ok(())
        }
    }
}

mod stored {
    use std::fmt::Display;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::handlers::Receipt;

    impl<T: Serialize + Display> Serialize for Receipt<T> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            (&self.order, &self.name).serialize(to)
        }
    }

    impl<'de, T: Deserialize<'de> + Display> Deserialize<'de> for Receipt<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let (order, name) = Deserialize::deserialize(from)?;
            Ok(Receipt { order, name })
        }
    }
}
