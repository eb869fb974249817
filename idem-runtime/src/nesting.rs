//! Which bodies the current task is inside of. A call from inside a body that would wait for what this body holds
//! can never get it, so it is refused at once instead of after the claim wait.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Identity, Transaction};

/// Which store: clones of one store share it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(u64);

impl StoreId {
    /// One that no other store of this process has.
    #[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Frame {
    store: Option<StoreId>,
    identity: Identity,
    outer: Option<Arc<Frame>>,
}

tokio::task_local! {
    static INSIDE: Arc<Frame>;
}

/// The inside of a body: a call made while it runs, that would wait for what the body holds, is
/// [`Error::Nested`](crate::Error::Nested) at once instead of an error after the claim wait.
///
/// The attribute does this by itself; code without the macro runs its body in it. Tasks that the body spawns are not
/// inside of it.
///
/// ```
/// use idem_runtime::{Claim, Claimed, Error, Inside, Store};
///
/// async fn without_the_macro<S: Store>(store: &S, claim: Claim) -> Result<(), Error> {
///     let identity = claim.identity.clone();
///     match store.claim(claim).await? {
///         Claimed::Done(record) => idem_runtime::decode::<()>(&record).map(drop),
///         Claimed::Fresh(mut tx) => {
///             let inside = Inside::new(&tx, identity.clone());
///             inside.run(async { /* what it is about, with `&mut tx` */ let _ = &mut tx; }).await;
///             store.complete(tx, idem_runtime::encode(&identity, &())?).await
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Inside(Arc<Frame>);

impl Inside {
    /// Of the run of `identity` in the transaction `tx`.
    pub fn new<T: Transaction>(tx: &T, identity: Identity) -> Self {
        let outer = INSIDE.try_with(Arc::clone).ok();
        Self(Arc::new(Frame { store: tx.__store_id(), identity, outer }))
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Runs the body; the future is as the body's own in all but this.
    pub fn run<F: Future>(self, body: F) -> impl Future<Output = F::Output> + use<F> {
        INSIDE.scope(self.0, body)
    }
}

/// The identity of an enclosing body for which `holds` is true.
#[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
pub(crate) fn enclosing(store: StoreId, holds: impl Fn(&Identity) -> bool) -> Option<Identity> {
    let mut frame = INSIDE.try_with(Arc::clone).ok();
    while let Some(current) = frame {
        if current.store == Some(store) && holds(&current.identity) {
            return Some(current.identity.clone());
        }
        frame = current.outer.clone();
    }
    None
}
