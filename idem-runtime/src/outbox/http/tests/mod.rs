//! The provider of effects against a real one that counts.

mod configured;
mod delivered;
mod reconciled;

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use idem_testkit::provider::CountingProvider;
use serde::{Deserialize, Serialize};

use super::{HttpProvider, HttpProviderBuilder};
use crate::EffectKey;
use crate::outbox::{Call, Delivery, Effect, KeyWindow, Provider, Reconciled};

#[derive(Serialize, Deserialize)]
struct Pay {
    to: String,
}

impl Effect for Pay {
    const NAME: &'static str = "pay";
}

/// The staged bytes: not what a serializer of today would write.
const STAGED: &[u8] = br#"{ "to" :"ann@example.com","old":  1.50}"#;

fn call(key: &str) -> Call {
    Call {
        effect_key: EffectKey::stored(key.to_owned()),
        payload: Bytes::from_static(STAGED),
        content_type: "application/json".to_owned(),
        attempt: 1,
        created_at: SystemTime::now(),
        first_attempt_at: None,
        deadline: Instant::now() + Duration::from_secs(60),
        reference: None,
    }
}

async fn start() -> CountingProvider {
    CountingProvider::start().await.expect("a provider")
}

/// To this URL, with a provider that knows keys for ever.
fn to(url: impl Into<String>) -> HttpProviderBuilder {
    HttpProvider::builder(url)
        .allow_private_targets()
        .key_window(KeyWindow::Forever)
        .reference_at("/reference")
}

fn built(builder: HttpProviderBuilder) -> HttpProvider {
    builder.build().expect("a valid configuration")
}

async fn deliver(provider: &HttpProvider, call: &Call) -> Delivery {
    provider.deliver(&Pay { to: String::new() }, call).await
}

async fn reconcile(provider: &HttpProvider, call: &Call) -> Reconciled {
    provider.reconcile(&Pay { to: String::new() }, call).await
}

#[track_caller]
fn delivered(delivery: Delivery) -> Option<String> {
    match delivery {
        Delivery::Delivered { reference } => reference,
        other => panic!("not delivered: {other:?}"),
    }
}

#[track_caller]
fn not_sent(delivery: Delivery) -> String {
    match delivery {
        Delivery::NotSent { error, .. } => error.to_string(),
        other => panic!("it cannot have been sent: {other:?}"),
    }
}

#[track_caller]
fn unknown(delivery: Delivery) -> String {
    match delivery {
        Delivery::Unknown { error, .. } => error.to_string(),
        other => panic!("it is not known: {other:?}"),
    }
}
