//! A store in memory, complete enough to run handlers: claims are exclusive, a dropped transaction rolls back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::{Claim, Claimed, Error, Identity, Judgement, Record, Store, Transaction};

#[derive(Debug, Default)]
struct State {
    records: HashMap<Identity, Record>,
    running: HashSet<Identity>,
    effects: Vec<String>,
}

/// A store in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<State>>);

/// Its transaction. Dropped, it is rolled back.
#[derive(Debug)]
pub struct MyTx {
    state: Arc<Mutex<State>>,
    record: Record,
    effects: Vec<String>,
}

impl Transaction for MyTx {}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MyTx {
    /// An effect, seen after the commit.
    pub fn apply(&mut self, effect: &str) {
        self.effects.push(effect.to_owned());
    }
}

impl Drop for MyTx {
    fn drop(&mut self) {
        lock(&self.state).running.remove(&self.record.identity);
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What has been committed.
    #[must_use]
    pub fn effects(&self) -> Vec<String> {
        lock(&self.0).effects.clone()
    }

    /// The identities that are recorded, as text, sorted.
    #[must_use]
    pub fn identities(&self) -> Vec<String> {
        let mut all: Vec<String> = lock(&self.0).records.keys().map(ToString::to_string).collect();
        all.sort();
        all
    }

    /// How many transactions are open.
    #[must_use]
    pub fn open(&self) -> usize {
        lock(&self.0).running.len()
    }
}

#[async_trait]
impl Store for MemoryStore {
    type Tx = MyTx;

    async fn claim(&self, claim: Claim) -> Result<Claimed<MyTx>, Error> {
        let (now, mut state) = (SystemTime::now(), lock(&self.0));
        if let Some(record) = state.records.get(&claim.identity)
            && claim.judge(record, now)? == Judgement::Replay
        {
            return Ok(Claimed::Done(record.clone()));
        }
        claim.judge_absent(now)?;
        if !state.running.insert(claim.identity.clone()) {
            return Err(Error::InProgress { identity: claim.identity, waited: Duration::ZERO });
        }
        let base = claim.occurred_at.map_or(now, |at| at.max(now));
        let mut record = Record::new(claim.identity.clone(), now);
        record.fingerprint = claim.fingerprint.as_ref().map(idem_runtime::Fingerprint::to_bytes);
        record.expires_at = claim.identity_kept_for().map(|kept| base + kept);
        record.outcome_until = claim.outcome_kept_for().map(|kept| base + kept);
        Ok(Claimed::Fresh(MyTx { state: Arc::clone(&self.0), record, effects: Vec::new() }))
    }

    async fn complete(&self, mut tx: MyTx, outcome: String) -> Result<(), Error> {
        let mut record = tx.record.clone();
        record.outcome = Some(outcome);
        record.processed_at = Some(SystemTime::now());
        let mut state = lock(&self.0);
        state.effects.append(&mut tx.effects);
        state.records.insert(record.identity.clone(), record);
        drop(state);
        Ok(())
    }

    async fn release(&self, _: MyTx) -> Result<(), Error> {
        Ok(())
    }

    async fn find(&self, identity: &Identity) -> Result<Option<Record>, Error> {
        Ok(lock(&self.0).records.get(identity).cloned())
    }
}
