//! Types of every kind that derive `Effect`.

use std::fmt::{self, Display};
use std::marker::PhantomData;

use idem_runtime::Effect;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "receipt.email", order = "{self.invoice}")]
pub struct EmailReceipt {
    pub invoice: i64,
    pub to: String,
}

#[derive(Serialize, Deserialize)]
pub struct Account {
    pub bank: String,
    pub r#type: char,
}

/// Several placeholders, of fields of fields; the trait's path is given.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "payout", order = "acct {self.0.bank}/{self.0.r#type}/{self.1}", crate = crate::runtime)]
pub struct Payout(pub Account, pub u32);

#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "cache.flush")]
pub struct Flush;

/// In any order.
#[derive(Debug, PartialEq, Serialize, Deserialize, Effect)]
#[effect(name = "search.index")]
pub enum Index {
    Put { id: u64 },
    Delete(u64),
    Refresh,
}

/// Ordered by its own text; two attributes.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "ledger.post")]
#[effect(order = "{self}")]
pub enum Post {
    Debit { account: u32, cents: u64 },
    Credit { account: u32, cents: u64 },
}

impl Display for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debit { account, .. } | Self::Credit { account, .. } => write!(f, "{account}"),
        }
    }
}

/// A parameter that is stored, one that is not and has no bound, a constant, and a default.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "notice", order = "{self.about}")]
pub struct Notice<T, Marker = NotStored, const N: usize = 2>
where
    T: Display,
{
    pub about: T,
    pub others: Vec<Option<T>>,
    pub marker: PhantomData<Marker>,
}

pub struct NotStored;

pub trait Entity {
    type Id;
}

pub struct Invoice;

impl Entity for Invoice {
    type Id = u64;
}

/// Only an associated type is stored, not the parameter that it belongs to.
#[derive(Serialize, Deserialize, Effect)]
#[effect(name = "changed")]
pub enum Changed<E: Entity> {
    One(E::Id),
    Many { ids: [E::Id; 2], entity: PhantomData<E> },
}

pub trait Body: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl Body for String {}

/// Bounds of its own, which serde is told to leave as they are.
#[derive(Serialize, Deserialize, Effect)]
#[serde(bound = "")]
#[effect(name = "message", order = "{self.line}")]
pub struct Message<B: Body> {
    pub line: String,
    pub body: B,
}

macro_rules! effects {
    ($($name:literal $type:ident { $field:ident: $of:ty } $order:expr;)*) => {$(
        #[derive(Serialize, Deserialize, Effect)]
        #[effect(name = $name, order = $order)]
        pub struct $type {
            pub $field: $of,
        }
    )*};
}

effects! {
    "made.by.macro" Made { id: u64 } "{self.id}";
}
