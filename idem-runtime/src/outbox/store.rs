//! Which stores have an outbox.

use std::sync::Arc;

use super::queue::Queue;

/// A store of this crate, with its outbox. Sealed.
pub trait OutboxStore: sealed::Sealed {}

pub(crate) mod sealed {
    use super::{Arc, Queue};

    #[derive(Debug)]
    pub struct Outbox(pub(crate) Arc<dyn Queue>);

    pub trait Sealed {
        fn outbox(self) -> Outbox;
    }
}

macro_rules! outbox_stores {
    ($($feature:literal: $store:path;)*) => {$(
        #[cfg(feature = $feature)]
        impl OutboxStore for $store {}
        #[cfg(feature = $feature)]
        impl sealed::Sealed for $store {
            fn outbox(self) -> sealed::Outbox {
                sealed::Outbox(Arc::new(self))
            }
        }
        #[cfg(feature = $feature)]
        impl OutboxStore for &$store {}
        #[cfg(feature = $feature)]
        impl sealed::Sealed for &$store {
            fn outbox(self) -> sealed::Outbox {
                self.clone().outbox()
            }
        }
    )*};
}
outbox_stores! {
    "postgres": crate::PgStore;
    "sqlite": crate::SqliteStore;
}
