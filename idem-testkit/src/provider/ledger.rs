//! What the provider knows and has done. All of it changes under one lock; nothing here does I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::{Answer, Behaviour, Window};

/// A POST as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Its number, from 1.
    pub number: usize,
    /// The path, with the query.
    pub path: String,
    /// The key, without the quotes of a structured field.
    pub key: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// All headers; the names in lower case.
    pub headers: Vec<(String, String)>,
    /// The exact bytes of the body.
    pub body: Vec<u8>,
    /// When its last byte was there.
    pub at: Instant,
}

impl Received {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Something that the provider did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Act {
    /// Under which key. Empty where the request had none.
    pub key: String,
    /// What the provider calls it.
    pub reference: String,
    /// The exact bytes of the request that it acted on.
    pub body: Vec<u8>,
    /// Their content type.
    pub content_type: Option<String>,
    /// When.
    pub at: Instant,
}

/// What there is to say about a key or a reference.
pub(super) enum Standing {
    Done(String),
    /// It will be done, or is being worked on.
    Later(Option<String>),
    Unheard,
}

pub(super) struct Ledger {
    pub(super) window: Window,
    pub(super) key_header: String,
    pub(super) received: Vec<Received>,
    pub(super) questions: Vec<String>,
    pub(super) acts: Vec<Act>,
    pub(super) gone: usize,
    pub(super) connections: usize,
    /// Counts the calls of `release`: who hangs waits for the next one.
    pub(super) releases: u64,
    pub(super) queue: VecDeque<Behaviour>,
    pub(super) rule: Box<dyn FnMut(&Received) -> Behaviour + Send>,
    pub(super) questions_get: Option<Answer>,
    /// Where in `acts` a key was last acted for, if it is still known.
    known: HashMap<String, usize>,
    promises: Vec<Act>,
    working: HashSet<String>,
    references: usize,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            window: Window::default(),
            key_header: "idempotency-key".to_owned(),
            received: Vec::new(),
            questions: Vec::new(),
            acts: Vec::new(),
            gone: 0,
            connections: 0,
            releases: 0,
            queue: VecDeque::new(),
            rule: Box::new(|_| Behaviour::Act),
            questions_get: None,
            known: HashMap::new(),
            promises: Vec::new(),
            working: HashSet::new(),
            references: 0,
        }
    }
}

impl Ledger {
    pub(super) fn behaviour(&mut self, request: &Received) -> Behaviour {
        self.queue.pop_front().unwrap_or_else(|| (self.rule)(request))
    }

    /// Begins to work on the key; false if another request does.
    pub(super) fn begin(&mut self, key: &str) -> bool {
        self.window == Window::None || self.working.insert(key.to_owned())
    }

    pub(super) fn end(&mut self, key: &str) {
        self.working.remove(key);
    }

    /// Acts, unless it has done so for this key or promised to.
    pub(super) fn act(&mut self, request: &Received) -> Standing {
        match self.standing_of(request) {
            Standing::Unheard => {
                let act = self.act_for(request);
                Standing::Done(self.carry_out(act))
            }
            standing => standing,
        }
    }

    /// Promises to act, unless it has done so for this key or promised to.
    pub(super) fn promise(&mut self, request: &Received) -> Standing {
        match self.standing_of(request) {
            Standing::Unheard => {
                let act = self.act_for(request);
                let reference = act.reference.clone();
                self.promises.push(act);
                Standing::Later(Some(reference))
            }
            standing => standing,
        }
    }

    /// Keeps one promise, by its reference, or all.
    pub(super) fn keep(&mut self, reference: Option<&str>) -> usize {
        let (kept, open) = std::mem::take(&mut self.promises)
            .into_iter()
            .partition(|act| reference.is_none_or(|reference| act.reference == reference));
        self.promises = open;
        let kept: Vec<Act> = kept;
        let count = kept.len();
        for act in kept {
            self.carry_out(act);
        }
        count
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    pub(super) fn by_key(&self, key: &str) -> Standing {
        if let Some(act) = self.acts.iter().rev().find(|act| act.key == key) {
            Standing::Done(act.reference.clone())
        } else if let Some(promise) = self.promises.iter().find(|act| act.key == key) {
            Standing::Later(Some(promise.reference.clone()))
        } else if self.working.contains(key) {
            Standing::Later(None)
        } else {
            Standing::Unheard
        }
    }

    pub(super) fn by_reference(&self, reference: &str) -> Standing {
        let is_it = |act: &&Act| act.reference == reference;
        if let Some(act) = self.acts.iter().find(is_it) {
            Standing::Done(act.reference.clone())
        } else if let Some(promise) = self.promises.iter().find(is_it) {
            Standing::Later(Some(promise.reference.clone()))
        } else {
            Standing::Unheard
        }
    }

    /// What the window lets it remember about a request's key.
    fn standing_of(&self, request: &Received) -> Standing {
        let Some(key) = request.key.as_deref().filter(|_| self.window != Window::None) else {
            return Standing::Unheard;
        };
        if let Some(act) = self.known.get(key).map(|place| &self.acts[*place])
            && !self.is_over(act.at.elapsed())
        {
            return Standing::Done(act.reference.clone());
        }
        match self.promises.iter().find(|act| act.key == key) {
            Some(promise) => Standing::Later(Some(promise.reference.clone())),
            None => Standing::Unheard,
        }
    }

    fn is_over(&self, age: Duration) -> bool {
        matches!(self.window, Window::For(window) if age >= window)
    }

    fn act_for(&mut self, request: &Received) -> Act {
        self.references += 1;
        Act {
            key: request.key.clone().unwrap_or_default(),
            reference: format!("ref-{}", self.references),
            body: request.body.clone(),
            content_type: request.content_type.clone(),
            at: Instant::now(),
        }
    }

    fn carry_out(&mut self, act: Act) -> String {
        let reference = act.reference.clone();
        self.known.insert(act.key.clone(), self.acts.len());
        self.acts.push(Act { at: Instant::now(), ..act });
        reference
    }
}
