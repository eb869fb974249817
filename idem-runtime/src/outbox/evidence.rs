//! What is written down about a try, in words.

use super::{Delivery, Reconciled};

/// The result of an attempt, and what the provider said.
pub(super) fn describe(delivery: &Delivery) -> (&'static str, Option<String>) {
    match delivery {
        Delivery::Delivered { reference } => ("delivered", reference.clone()),
        Delivery::Accepted { reference, .. } => ("accepted", reference.clone()),
        Delivery::NotSent { error, .. } => ("not sent", Some(error.to_string())),
        Delivery::Rejected { error } => ("rejected", Some(error.to_string())),
        Delivery::Unknown { error, .. } => ("unknown", Some(error.to_string())),
        Delivery::Review { error } => ("review", Some(error.to_string())),
        Delivery::Halt { error } => ("halt", Some(error.to_string())),
    }
}

/// The result of a question.
pub(super) fn describe_answer(answer: &Reconciled) -> (&'static str, Option<String>) {
    match answer {
        Reconciled::Happened { reference } => ("asked: happened", reference.clone()),
        Reconciled::DidNotHappen => ("asked: did not happen", None),
        Reconciled::Refused { error } => ("asked: refused", Some(error.to_string())),
        Reconciled::Unknown => ("asked: unknown", None),
        Reconciled::Unsupported => ("asked: cannot say", None),
    }
}
