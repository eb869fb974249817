//! The request that all variants serve, and what they answer. Every variant gets the same values, and a fresh key
//! costs each of them the same.

use idem_runtime::Scope;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How many accounts there are. Workers use different ones: a row that two wait for would hide what is measured.
pub const ACCOUNTS: usize = 1024;

/// The tenant of an authenticated caller.
#[derive(Clone, Debug, Scope)]
pub struct Tenant(String);

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose keys these are.
    pub tenant: Tenant,
}

impl Caller {
    /// The only one here.
    pub fn acme() -> Self {
        Self { tenant: Tenant("acme".to_owned()) }
    }
}

impl Tenant {
    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A payment to be booked.
#[derive(Clone, Debug, Serialize)]
pub struct Payment {
    /// What makes two deliveries the same.
    pub operation_key: String,
    /// Which account pays.
    pub account: i64,
    /// In hundredths.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
    /// Who is paid.
    pub destination: String,
    /// Not material.
    pub note: String,
}

impl Payment {
    /// One with a key that was never used.
    pub fn fresh(account: usize) -> Self {
        Self::of(Uuid::new_v4().to_string(), account)
    }

    /// One with this key; equal keys and accounts make equal requests.
    pub fn of(operation_key: String, account: usize) -> Self {
        Self {
            operation_key,
            account: (account % ACCOUNTS) as i64,
            amount: 1250,
            currency: "EUR".to_owned(),
            destination: "DE02120300000000202051".to_owned(),
            note: "as agreed".to_owned(),
        }
    }
}

/// What a booked payment is answered with.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Receipt {
    /// The key of the request.
    pub operation_key: String,
    /// In hundredths.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
}

impl Receipt {
    /// The receipt of this payment.
    pub fn of(payment: &Payment) -> Self {
        Self {
            operation_key: payment.operation_key.clone(),
            amount: payment.amount,
            currency: payment.currency.clone(),
        }
    }
}
