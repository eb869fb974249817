//! The traits that generated code asks for, each with the message that tells an author the way out. The marker
//! parameters `M` exist for the messages: beside an implementation that never applies, rustc reports the trait that
//! was asked for, with its notes, and not the bound behind it.

use std::fmt::Display;
use std::time::SystemTime;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Identity, Outcome, Record, decode, encode};

/// Applies to nothing.
pub trait Never {}
/// Marks the implementation that applies to nothing.
#[derive(Debug)]
pub struct Nothing;
/// Marks the implementation for a value itself.
#[derive(Debug)]
pub struct Itself;
/// Marks the implementation for an `Option` of a value.
#[derive(Debug)]
pub struct Optional;

/// What a handler returns, by whatever name: the return type of the generated function is [`Self::Wrapped`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Result`",
    label = "a handler returns `Result<V, E>`, or an alias of it",
    note = "write `Result<V, E>`, where `V` can be stored and `E: From<idem_runtime::Error>`"
)]
pub trait HandlerResult {
    /// What the generated function returns.
    type Wrapped;
}

impl<V, E> HandlerResult for Result<V, E> {
    type Wrapped = Result<Outcome<V>, E>;
}

/// What the generated function returns. Where a return type is called `Result`, its first argument has been wrapped
/// by syntax, and this is the proof that it was the right one: [`Self::Run`] must be what the body gives.
#[diagnostic::on_unimplemented(
    message = "this `Result` is an alias, and its first argument is not the outcome",
    label = "only the first argument of a type called `Result` can be the outcome",
    note = "write `std::result::Result<V, E>`, or give the alias another name than `Result`"
)]
pub trait Answer {
    /// What the body gives.
    type Run;
    /// What is stored.
    type Value;
    /// What a failed run answers.
    type Error;
    /// After the body, and after the commit if it succeeded.
    fn of_run(run: Self::Run) -> Self;
    /// The value, of a body that succeeded.
    fn value(run: &Self::Run) -> Option<&Self::Value>;
    /// A replay, or why there is none.
    fn of_replay(replay: Result<Outcome<Self::Value>, Self::Error>) -> Self;
}

impl<V, E> Answer for Result<Outcome<V>, E> {
    type Run = Result<V, E>;
    type Value = V;
    type Error = E;

    fn of_run(run: Result<V, E>) -> Self {
        run.map(Outcome::Applied)
    }

    fn value(run: &Result<V, E>) -> Option<&V> {
        run.as_ref().ok()
    }

    fn of_replay(replay: Self) -> Self {
        replay
    }
}

/// The outcome of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as an outcome",
    label = "an outcome must be `Serialize` and `DeserializeOwned`, so that a redelivery gets it back",
    note = "for a type of your own: `#[derive(serde::Serialize, serde::Deserialize)]`",
    note = "or return only what a redelivery must be told, for example an id; `()` where it is nothing"
)]
pub trait Stored<M>: Sized {
    /// As [`crate::encode`].
    fn to_json(identity: &Identity, value: &Self) -> Result<String, Error>;
    /// As [`crate::decode`].
    fn from_record(record: &Record) -> Result<Outcome<Self>, Error>;
}

impl<V: Serialize + DeserializeOwned> Stored<Itself> for V {
    fn to_json(identity: &Identity, value: &Self) -> Result<String, Error> {
        encode(identity, value)
    }

    fn from_record(record: &Record) -> Result<Outcome<Self>, Error> {
        decode(record)
    }
}

impl<V: Never> Stored<Nothing> for V {
    fn to_json(_: &Identity, _: &Self) -> Result<String, Error> {
        unreachable!("`Never` applies to nothing")
    }

    fn from_record(_: &Record) -> Result<Outcome<Self>, Error> {
        unreachable!("`Never` applies to nothing")
    }
}

/// The error of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold the errors of the store",
    label = "the error of a handler must be `From<idem_runtime::Error>`",
    note = "add a variant to your own error type, with thiserror: `#[error(transparent)] Idem(#[from] idem_runtime::Error)`",
    note = "or return `anyhow::Result<_>`; `String`, tuples and the error types of other crates cannot have the conversion"
)]
pub trait HandlerError<M>: Sized {
    /// The conversion.
    fn from_store(error: Error) -> Self;
}

impl<E: From<Error>> HandlerError<Itself> for E {
    fn from_store(error: Error) -> Self {
        error.into()
    }
}

impl<E: Never> HandlerError<Nothing> for E {
    fn from_store(_: Error) -> Self {
        unreachable!("`Never` applies to nothing")
    }
}

/// A value in a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key",
    label = "a key part must implement `Display`",
    note = "an `Option` has no text: decide what its absence means, for example refuse it, `key = cmd.id.ok_or(MyError::NoId)?`",
    note = "for a type of your own implement `Display`, or name a field of it that has it"
)]
pub trait KeyPart<M> {
    /// Its text.
    fn text(&self) -> String;
}

impl<T: Display + ?Sized> KeyPart<Itself> for T {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl<T: Never + ?Sized> KeyPart<Nothing> for T {
    fn text(&self) -> String {
        String::new()
    }
}

/// A value in the order key of an effect.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of an order key",
    label = "a part of an order key must implement `Display`",
    note = "an `Option` has no text: where its absence means that any order will do, write `impl Effect`, and `None` for it in its `order_key`",
    note = "for a type of your own implement `Display`, or name a field of it that has it"
)]
pub trait OrderPart<M> {
    /// Its text.
    fn text(&self) -> String;
}

impl<T: Display + ?Sized> OrderPart<Itself> for T {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl<T: Never + ?Sized> OrderPart<Nothing> for T {
    fn text(&self) -> String {
        String::new()
    }
}

/// What a type parameter of an effect must be, or an associated type of one, where a field stores it.
pub trait Payload: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Payload for T {}

/// The event's own time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a point in time",
    label = "`occurred_at` must be `Into<SystemTime>`, or an `Option` of it",
    note = "convert it: `occurred_at = SystemTime::UNIX_EPOCH + Duration::from_secs(event.seconds)`"
)]
pub trait EventTime<M> {
    /// The time, if there is one.
    fn to_time(&self) -> Option<SystemTime>;
}

impl<T: Into<SystemTime> + Clone> EventTime<Itself> for T {
    fn to_time(&self) -> Option<SystemTime> {
        Some(self.clone().into())
    }
}

impl<T: Into<SystemTime> + Clone> EventTime<Optional> for Option<T> {
    fn to_time(&self) -> Option<SystemTime> {
        self.clone().map(Into::into)
    }
}

impl<T: Never> EventTime<Nothing> for T {
    fn to_time(&self) -> Option<SystemTime> {
        None
    }
}
