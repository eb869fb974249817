//! What the provider does with a request, as data.

use std::time::Duration;

use super::Received;
use crate::random::Random;

/// For how long the provider knows a key again, counted from when it acted. Within it, it acts once per key and
/// gives the same reference again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// It looks at no keys: it acts at every request.
    None,
    /// For so long, or until [`forget_keys`](super::CountingProvider::forget_keys).
    For(Duration),
    /// For ever, or until [`forget_keys`](super::CountingProvider::forget_keys).
    #[default]
    Forever,
}

/// What the provider does with one request.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Behaviour {
    /// It acts and answers 200 with `{"reference": ..}`; 202 where it has promised to act for this key.
    #[default]
    Act,
    /// It answers 202 with `{"reference": ..}` and acts later: after a time, or at
    /// [`keep_promises`](super::CountingProvider::keep_promises).
    Accept {
        /// How long after its answer it acts; `None`: when it is told.
        act_after: Option<Duration>,
    },
    /// It does nothing until it is [released](super::CountingProvider::release); then it acts and answers. It never
    /// acts if the client has gone before that.
    HangBefore,
    /// It acts, and answers only when it is [released](super::CountingProvider::release).
    HangAfter,
    /// It never answers, and acts so long after the client has gone: a request that was still on its way. Until then
    /// nobody knows of it, so a question is answered 404.
    ActAfterGone(Duration),
    /// The connection is reset (RST), and nothing is done.
    ResetBefore,
    /// It acts, and then the connection is reset (RST).
    ResetAfter,
    /// It answers so, and does not act.
    Refuse(Answer),
    /// It acts, and answers so.
    ActThen(Answer),
}

impl Behaviour {
    /// Answers with this status and does not act.
    pub fn refuse(status: u16) -> Self {
        Self::Refuse(Answer::status(status))
    }

    /// Acts and answers with this status.
    pub fn act_then(status: u16) -> Self {
        Self::ActThen(Answer::status(status))
    }

    /// 429 with `Retry-After` in seconds.
    pub fn too_many(retry_after: u64) -> Self {
        Self::Refuse(Answer::status(429).header("Retry-After", retry_after.to_string()))
    }
}

/// An answer that is given as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) broken_off: bool,
}

impl Answer {
    /// This status (100 to 999) with an empty body.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), broken_off: false }
    }

    /// With a header. What is no header is not sent.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With these bytes as body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The connection ends in the middle of the body (after half of its bytes).
    #[must_use]
    pub fn broken_off(mut self) -> Self {
        self.broken_off = true;
        self
    }
}

/// A random mix: each behaviour as often as its weight says, and the same ones in the same order for the same seed.
/// Print the seed where a test fails.
///
/// ```
/// # async fn test() -> Result<(), idem_testkit::Error> {
/// use idem_testkit::provider::{Behaviour, CountingProvider, mix};
///
/// let provider = CountingProvider::start().await?;
/// provider.behave(mix(7, [(3, Behaviour::Act), (1, Behaviour::ResetAfter), (1, Behaviour::act_then(500))]));
/// # Ok(()) }
/// ```
///
/// # Panics
/// If the weights sum up to zero.
pub fn mix(
    seed: u64,
    weighted: impl IntoIterator<Item = (u32, Behaviour)>,
) -> impl FnMut(&Received) -> Behaviour + Send + 'static {
    let weighted: Vec<(u32, Behaviour)> = weighted.into_iter().collect();
    let sum: u64 = weighted.iter().map(|(weight, _)| u64::from(*weight)).sum();
    assert!(sum > 0, "a mix needs at least one behaviour with a weight");
    let mut random = Random::seeded(seed);
    move |_| {
        let mut drawn = random.next() % sum;
        for (weight, behaviour) in &weighted {
            match drawn.checked_sub(u64::from(*weight)) {
                Some(rest) => drawn = rest,
                None => return behaviour.clone(),
            }
        }
        unreachable!("drawn is less than the sum of the weights")
    }
}
