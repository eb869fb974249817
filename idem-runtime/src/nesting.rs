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

/// Runs a body as the run of `identity` in the transaction `tx`, so that a store recognizes a call made inside it.
///
/// The attribute does this by itself; code without the macro wraps its body in it. Tasks that the body spawns are
/// not inside of it.
pub fn inside_body<T: Transaction, F: Future>(
    tx: &T,
    identity: Identity,
    body: F,
) -> impl Future<Output = F::Output> + use<T, F> {
    Inside::new(tx, identity).run(body)
}

/// The inside of a body that is about to run: what [`inside_body`] does in one step, in two, so that the body may
/// borrow the transaction.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Inside(Arc<Frame>);

impl Inside {
    pub(crate) fn new<T: Transaction>(tx: &T, identity: Identity) -> Self {
        let outer = INSIDE.try_with(Arc::clone).ok();
        Self(Arc::new(Frame { store: tx.__store_id(), identity, outer }))
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Runs the body.
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
