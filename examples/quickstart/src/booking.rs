//! What a booking gives: an outcome that is stored and replayed, or an error that leaves no trace.

use serde::{Deserialize, Serialize};

/// The outcome. It is stored with the booking, so a redelivery is answered by what the first delivery saw.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Booked {
    /// The balance of the account after this booking.
    pub(crate) balance: i64,
}

/// Why nothing was booked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BookingError {
    /// What the store has to say: a mismatch, a database that is away.
    #[error(transparent)]
    Idem(#[from] idem_runtime::Error),
    /// A statement of the handler failed, and the whole run was rolled back.
    #[error("a statement of the handler failed")]
    Sql(#[from] sqlx::Error),
}

impl BookingError {
    /// Whether the same delivery may succeed a little later.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Idem(error) => error.is_retryable(),
            Self::Sql(sqlx::Error::Io(_)) => true,
            // Postgres: the transaction lost against another one, or the server is being shut down.
            Self::Sql(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| code.starts_with("40") || code.starts_with("57P"))
            }
            Self::Sql(_) => false,
        }
    }
}
