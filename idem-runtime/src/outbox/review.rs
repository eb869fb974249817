//! What waits for a person, with the evidence, and the person's decision. A decision names the version that was seen: of
//! two at once, or of one on an old page, the stale one loses and is told. Both are in the log.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::decide::{Decision, Event, Row, State, Step, Terms, next};
use super::queue::{Change, Current, Note, Queue};
use super::{EffectKey, KeyWindow, OutboxStore, Policy};
use crate::Error;

/// Effects for a person to look at, and to decide about.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(store: idem_runtime::PgStore) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::outbox::{Filter, Review};
///
/// let review = Review::new(store);
/// for item in review.list(&Filter::default()).await? {
///     println!("{} {}: {:?}", item.id, item.effect, item.last_error);
///     // The provider's own records show that it has not happened: send it.
///     review.retry(item.id, item.version, "ann@example.com", "not in their list", false).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Review {
    queue: Arc<dyn Queue>,
}

/// Which effects to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// In this state. Default: [`State::Review`].
    pub state: State,
    /// Of this name; `None` (the default): of all.
    pub effect: Option<String>,
    /// Staged after this one: where the page before ended. Default: 0.
    pub after: i64,
    /// At most so many. Default: 100.
    pub limit: u32,
}

impl Default for Filter {
    fn default() -> Self {
        Self { state: State::Review, effect: None, after: 0, limit: 100 }
    }
}

/// An effect as a person sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Item {
    /// Its number.
    pub id: i64,
    /// The name of the effect.
    pub effect: String,
    /// The key under which the provider knows it.
    pub effect_key: EffectKey,
    /// Of the run that staged it.
    pub operation: String,
    /// Of the run that staged it.
    pub scope: String,
    /// Of the run that staged it.
    pub key: String,
    /// Where it is.
    pub state: State,
    /// Changes with everything that happens to it; a decision names it.
    pub version: i64,
    /// Whether a request may have reached the provider.
    pub maybe_sent: bool,
    /// How often it was tried.
    pub attempts: u32,
    /// How many workers ended during an attempt.
    pub crashes: u32,
    /// What the provider calls it.
    pub reference: Option<String>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When it was staged, by the database's clock.
    pub created_at: SystemTime,
    /// When it is tried next, where it is.
    pub due_at: SystemTime,
    /// What the payload is.
    pub content_type: String,
    /// The bytes as they were staged.
    pub payload: Bytes,
}

/// A try of an effect, or a question about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tried {
    /// The number of the attempt; of a question, of the one before it.
    pub attempt: u32,
    /// When it began, by the database's clock.
    pub started_at: SystemTime,
    /// After it, nothing was sent.
    pub deadline: SystemTime,
    /// When its result was written; `None`: there is none yet.
    pub ended_at: Option<SystemTime>,
    /// What came of it, for example `delivered`, `unknown`, `crashed`, `asked: happened`.
    pub result: Option<String>,
    /// What the provider said.
    pub detail: Option<String>,
}

/// A decision about an effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Logged {
    /// The version that was decided about.
    pub version: i64,
    /// `delivered`, `retry` or `abandon`.
    pub decision: String,
    /// Who.
    pub by: String,
    /// Why.
    pub note: String,
    /// When, by the database's clock.
    pub at: SystemTime,
    /// Whether it was carried out.
    pub won: bool,
}

/// An effect with everything that is known about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shown {
    /// The effect.
    pub item: Item,
    /// What was tried, in order.
    pub tried: Vec<Tried>,
    /// What was decided, in order.
    pub decisions: Vec<Logged>,
}

/// Why a decision was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// There is no effect with this number.
    #[error("there is no effect {id}")]
    NotFound {
        /// The number.
        id: i64,
    },
    /// Something has happened to it since it was looked at. Look again.
    #[error("effect {id} has changed since you looked at it (it is {state}, in version {version}): look again", state = state.as_str())]
    Stale {
        /// The number.
        id: i64,
        /// Where it is now.
        state: State,
        /// Its version now.
        version: i64,
    },
    /// Nothing is decided about an effect in this state.
    #[error("effect {id} is {state}, and this is decided about what is in review only (a retry: also about what was rejected)", state = state.as_str())]
    NotOpen {
        /// The number.
        id: i64,
        /// Where it is.
        state: State,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Review {
    /// Of a store.
    pub fn new(store: impl OutboxStore) -> Self {
        Self { queue: store.outbox().0 }
    }

    /// Effects in the order of staging.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Schema`].
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Item>, Error> {
        self.queue.list(filter).await
    }

    /// One effect with its evidence; `None` if there is none with this number.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Schema`].
    pub async fn show(&self, id: i64) -> Result<Option<Shown>, Error> {
        let shown = self.queue.show(id).await?;
        Ok(shown.map(|(item, tried, decisions)| Shown { item, tried, decisions }))
    }

    /// It has happened. `reference` is what the provider calls it.
    ///
    /// # Errors
    /// [`DecisionError`]; nothing was changed.
    pub async fn delivered(
        &self,
        id: i64,
        version: i64,
        by: &str,
        note: &str,
        reference: Option<String>,
    ) -> Result<(), DecisionError> {
        self.decide(id, version, ("delivered", Decision::Delivered { reference }), (by, note), false).await
    }

    /// It has **not** happened, for which the person vouches: it is sent again, with all its tries. `new_key`: under
    /// another key, where the provider remembers a failure under the old one.
    ///
    /// # Errors
    /// [`DecisionError`]; nothing was changed.
    pub async fn retry(
        &self,
        id: i64,
        version: i64,
        by: &str,
        note: &str,
        new_key: bool,
    ) -> Result<(), DecisionError> {
        self.decide(id, version, ("retry", Decision::Retry), (by, note), new_key).await
    }

    /// It is given up.
    ///
    /// # Errors
    /// [`DecisionError`]; nothing was changed.
    pub async fn abandon(&self, id: i64, version: i64, by: &str, note: &str) -> Result<(), DecisionError> {
        self.decide(id, version, ("abandon", Decision::Abandon), (by, note), false).await
    }

    async fn decide(
        &self,
        id: i64,
        version: i64,
        (name, decision): (&'static str, Decision),
        (by, note): (&str, &str),
        new_key: bool,
    ) -> Result<(), DecisionError> {
        let mut lost = None;
        let decide = |current: &Current| {
            let row = if current.version == version { decided(current, decision) } else { None };
            let won = row.is_some();
            let state = current.row.state;
            if current.version != version {
                lost = Some(DecisionError::Stale { id, state, version: current.version });
            } else if !won {
                lost = Some(DecisionError::NotOpen { id, state });
            }
            let effect_key = (won && new_key).then(|| current.effect_key.renewed(version));
            let (by, note) = (by.to_owned(), note.to_owned());
            Change { row, effect_key, note: Note::Decision { version, decision: name, by, note, won } }
        };
        let found = self.queue.change(id, Box::new(decide)).await?;
        tracing::info!(effect = id, version, decision = name, by, won = found && lost.is_none(), "decided");
        match lost {
            _ if !found => Err(DecisionError::NotFound { id }),
            Some(lost) => Err(lost),
            None => Ok(()),
        }
    }
}

fn decided(current: &Current, decision: Decision) -> Option<Row> {
    // What the provider and the worker have to say does not count here.
    let terms = Terms { window: KeyWindow::Unknown, longest_flight: std::time::Duration::ZERO };
    match next(&current.row, Event::Decided(decision), current.now, terms, &Policy::default()) {
        Step::Become(row) => Some(row),
        _ => None,
    }
}
