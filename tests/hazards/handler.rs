//! The handler that the tests run: what the attribute generates, written out over the storage trait, so that a test
//! can give it any claim and any body.

use idem_runtime::{Claim, Claimed, Error, Fingerprint, Identity, Inside, Outcome, Store, Verified};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, thiserror::Error)]
pub enum Fail {
    #[error(transparent)]
    Idem(#[from] Error),
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("the body was told to fail")]
    Told,
}

impl Fail {
    pub fn idem(self) -> Error {
        match self {
            Self::Idem(error) => error,
            other => panic!("an error of the library was expected, not {other:?}"),
        }
    }
}

pub fn identity(key: &str) -> Identity {
    Identity::new("effect.apply", &Verified::vouch("acme"), key).expect("valid")
}

pub fn fingerprint(amount: i64) -> Fingerprint {
    Fingerprint::builder("effect.apply").field("amount", &amount).expect("canonical").build()
}

pub fn claim(key: &str) -> Claim {
    Claim::new(identity(key)).with_fingerprint(fingerprint(1))
}

pub async fn run<S, V, B>(store: &S, claim: Claim, body: B) -> Result<Outcome<V>, Fail>
where
    S: Store,
    V: Serialize + DeserializeOwned,
    B: AsyncFnOnce(&mut S::Tx) -> Result<V, Fail>,
{
    let identity = claim.identity.clone();
    let mut tx = match store.claim(claim).await? {
        Claimed::Done(record) => return Ok(idem_runtime::decode(&record)?),
        Claimed::Fresh(tx) => tx,
    };
    let inside = Inside::new(&tx, identity.clone());
    match inside.run(body(&mut tx)).await {
        Ok(value) => {
            let text = match idem_runtime::encode(&identity, &value) {
                Ok(text) => text,
                Err(error) => {
                    let _ = store.release(tx).await;
                    return Err(error.into());
                }
            };
            store.complete(tx, text).await?;
            Ok(Outcome::Applied(value))
        }
        Err(error) => {
            let _ = store.release(tx).await;
            Err(error)
        }
    }
}
