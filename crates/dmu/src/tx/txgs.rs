//! The states of txgs: open, quiescing, syncing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::ids::Txg;
use cenote_kstat::Snapshot;
use cenote_taskq::sync::{Mutex, MutexGuard};
use cenote_taskq::{Group, Handle, Instant, Notify, boxed, thread_shard};

use super::account::Verdict;
use super::{Account, Cost, Dirty, TXGS, Tx, TxError, TxTunables, TxgFailure, UNWRITTEN_TXGS_MAX, slot};

/// Syncs that one change waits for at most until it is known whether there is space for it, while others come in between, again
/// and again where all of them overwrite in a pool that is nearly full.
const RETRIES_MAX: u32 = 100;
/// Of those, syncs for what was freed to come back: it is kept back for two. Every sync frees something of its own, so there is
/// always some, and a full pool would never be called full.
const DEFERRED_MAX: u32 = 3;

/// A worker's shard of the open txg, padded to its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Open>, Arc<UnderWay>);

/// Bytes that changes admitted through one worker's shard may still dirty, by txg: their worst case, until they end. Alone on its
/// cache lines, as is the count of its references, so that a change touches no line of another core.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct UnderWay([AtomicU64; TXGS]);

/// One change's part of [`UnderWay`]. By the time it is dropped the change has counted its bytes as dirty.
#[derive(Debug)]
pub(super) struct Coming {
    under_way: Arc<UnderWay>,
    txg: Txg,
    bytes: u64,
}

impl Coming {
    fn new(under_way: &Arc<UnderWay>, txg: Txg, bytes: u64) -> Self {
        // Before the account is looked at (`Account::reserve`): a thread that makes it tight later sees these bytes.
        under_way.0[slot(txg)].fetch_add(bytes, Ordering::SeqCst);
        Self { under_way: under_way.clone(), txg, bytes }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.under_way.0[slot(self.txg)].fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[derive(Clone, Debug)]
struct Open {
    txg: Txg,
    holders: Group,
    /// A change has come in by this shard.
    is_used: bool,
    /// This txg is the last, and is not assigned any more.
    is_shut: bool,
}

/// The state of the txgs that are no longer open. Locked a few times for each txg.
#[derive(Debug)]
struct State {
    /// Quiesced, and not being synced yet.
    quiesced: Option<Txg>,
    /// The last txg on disk.
    synced: Txg,
    /// Somebody waits for this txg to be on disk.
    wanted: Txg,
    /// No change is let in any more; what came in is still written.
    is_closed: bool,
    /// Why nothing can be written any more.
    failure: Option<TxgFailure>,
    opened_at: Instant,
}

impl State {
    /// A txg has no holders left (it is quiesced): it can be synced.
    fn quiesce(&mut self, txg: Txg) {
        assert!(self.quiesced.is_none(), "a txg quiesces when the one before is being synced");
        assert!(txg > self.synced, "a txg quiesces before it is on disk");
        self.quiesced = Some(txg);
    }
}

/// The txgs of a pool that is written by many at once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Transactions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handle: Handle,
    shards: Box<[Shard]>,
    dirty: Arc<Dirty>,
    state: Mutex<State>,
    /// A txg has passed from one state to the next, or is wanted to.
    passed: Notify,
}

impl Transactions {
    /// The txgs from `first` on, which is open.
    #[must_use]
    pub fn new(handle: &Handle, first: Txg, tunables: TxTunables) -> Self {
        assert!(first > Txg(0), "a txg comes after another");
        let open = Open { txg: first, holders: handle.group(), is_used: false, is_shut: false };
        let count = handle.parallelism().max(1).next_power_of_two();
        let before = Txg(first.0.saturating_sub(1));
        let state = State {
            quiesced: None,
            synced: before,
            wanted: before,
            is_closed: false,
            failure: None,
            opened_at: handle.now(),
        };
        Self {
            shared: Arc::new(Shared {
                handle: handle.clone(),
                shards: (0..count).map(|_| Shard(Mutex::new(open.clone()), Arc::default())).collect(),
                dirty: Arc::new(Dirty::new(handle.clone(), tunables)),
                state: Mutex::new(state),
                passed: Notify::new(),
            }),
        }
    }

    /// Bytes that are dirty: layers of objects are counted here.
    #[must_use]
    pub fn dirty(&self) -> &Arc<Dirty> {
        &self.shared.dirty
    }

    /// Enters statistics of changes into a snapshot.
    pub fn kstat(&self, snapshot: &mut Snapshot) {
        self.shared.dirty.counts.kstat(snapshot);
    }

    /// Replaces the tunables of txgs from now on.
    pub fn set_tunables(&self, tunables: TxTunables) {
        self.shared.dirty.set_tunables(tunables);
        self.shared.passed.all();
    }

    /// The txg that changes go to now.
    #[must_use]
    pub fn open_txg(&self) -> Txg {
        self.shared.shards[0].0.lock().txg
    }

    /// The last txg that is on disk.
    #[must_use]
    pub fn synced_txg(&self) -> Txg {
        self.shared.state.lock().synced
    }

    fn is_over(&self) -> bool {
        let state = self.shared.state.lock();
        state.is_closed || state.failure.is_some()
    }

    /// Assigns a change to the open txg (OpenZFS's `dmu_tx_assign`). Waits while too much is dirty, and while a sync has to show whether
    /// there is space. `account` is that of the changed dataset.
    ///
    /// # Errors
    /// There is no space for it, or the pool is closed or suspended.
    pub async fn assign(&self, cost: Cost, account: Option<&Account>) -> Result<Tx, TxError> {
        let assigned = self.assign_uncounted(cost, account).await;
        self.shared.dirty.counts.ended(&assigned);
        assigned
    }

    async fn assign_uncounted(&self, cost: Cost, account: Option<&Account>) -> Result<Tx, TxError> {
        let (mut retries, mut deferred) = (0, 0);
        loop {
            self.shared.dirty.admit(|| self.is_over()).await;
            let tx = self.enter_with(&cost)?;
            let Some(account) = account else { return Ok(tx) };
            match account.reserve(tx.txg, &cost, self.shared.dirty.unit_bytes(), || self.coming_bytes(tx.txg)) {
                Verdict::Admitted => return Ok(tx),
                Verdict::Refused(error) => return Err(error),
                Verdict::Later => retries += 1,
                Verdict::Deferred => deferred += 1,
            }
            if retries > RETRIES_MAX || deferred > DEFERRED_MAX {
                return Err(TxError::NoSpace);
            }
            let txg = tx.txg;
            drop(tx);
            self.wait_synced(txg).await?;
        }
    }

    /// Holds the open txg, whatever is dirty.
    ///
    /// # Errors
    /// The pool is closed or suspended.
    pub fn enter(&self) -> Result<Tx, TxError> {
        self.enter_with(&Cost::default())
    }

    /// Bytes of a txg that are dirty, and those that changes which are being made may still dirty at worst. A change that was assigned
    /// before this call is in one sum or in both; one that is assigned meanwhile may be in neither.
    #[must_use]
    pub fn coming_bytes(&self, txg: Txg) -> u64 {
        // In this order: a change that has ended in between is found among the dirty bytes.
        let under_way = self.shared.shards.iter().map(|shard| shard.1.0[slot(txg)].load(Ordering::SeqCst));
        let under_way = under_way.fold(0, u64::saturating_add);
        under_way.saturating_add(self.shared.dirty.txg_bytes(txg))
    }

    /// Bytes that are dirty, and those that may still become so, in all txgs that are not on disk.
    #[must_use]
    pub fn unsynced_bytes(&self) -> u64 {
        let (synced, open) = (self.synced_txg(), self.open_txg());
        (synced.0 + 1..=open.0).map(|txg| self.coming_bytes(Txg(txg))).fold(0, u64::saturating_add)
    }

    /// Bytes that a change may make dirty at worst.
    fn worst_bytes(&self, cost: &Cost) -> u64 {
        cost.data_bytes(self.shared.dirty.unit_bytes()).saturating_add(cost.metadata_bytes())
    }

    fn enter_with(&self, cost: &Cost) -> Result<Tx, TxError> {
        let shard = &self.shared.shards[thread_shard() & (self.shared.shards.len() - 1)];
        {
            let mut open = shard.0.lock();
            if !open.is_shut
                && let Ok(hold) = open.holders.enter()
            {
                open.is_used = true;
                let coming = Coming::new(&shard.1, open.txg, self.worst_bytes(cost));
                return Ok(Tx { txg: open.txg, _coming: coming, _hold: hold });
            }
        }
        let failure = self.shared.state.lock().failure.clone();
        Err(failure.map_or(TxError::Closed, TxError::from))
    }

    /// Waits until a txg is on disk, and has it written soon.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), TxError> {
        loop {
            let passed = self.shared.passed.wait();
            let is_news = {
                let mut state = self.shared.state.lock();
                if state.synced >= txg {
                    return Ok(());
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.clone().into());
                }
                let is_news = state.wanted < txg;
                state.wanted = state.wanted.max(txg);
                is_news
            };
            if is_news {
                self.shared.passed.all();
                self.shared.dirty.wake();
            }
            passed.await;
        }
    }

    /// Has a txg written soon, without waiting for it.
    pub fn want(&self, txg: Txg) {
        let is_news = {
            let mut state = self.shared.state.lock();
            let is_news = state.wanted < txg;
            state.wanted = state.wanted.max(txg);
            is_news
        };
        if is_news {
            self.shared.passed.all();
            self.shared.dirty.wake();
        }
    }

    /// Waits until all that has been changed up to now is on disk.
    ///
    /// # Errors
    /// It could not be written.
    #[boxed]
    pub async fn sync(&self) -> Result<Txg, TxError> {
        let txg = self.open_txg();
        self.wait_synced(txg).await.map(|()| txg)
    }

    /// Closes the open txg, to be written soon, and opens the next one; returns its number as soon as it is open.
    ///
    /// # Errors
    /// The pool is closed, or nothing can be written any more.
    #[boxed]
    pub async fn open_another(&self) -> Result<Txg, TxError> {
        let before = self.open_txg();
        loop {
            let passed = self.shared.passed.wait();
            let open = self.open_txg();
            if open > before {
                return Ok(open);
            }
            let is_news = {
                let mut state = self.shared.state.lock();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone().into());
                }
                if state.is_closed {
                    return Err(TxError::Closed);
                }
                let is_news = state.wanted < before;
                state.wanted = state.wanted.max(before);
                is_news
            };
            if is_news {
                self.shared.passed.all();
                self.shared.dirty.wake();
            }
            passed.await;
        }
    }

    /// Whether this txg, which [`Transactions::next`] gave, is the last that there will be.
    #[must_use]
    pub fn is_last(&self, txg: Txg) -> bool {
        let open = self.shared.shards[0].0.lock();
        open.is_shut && open.txg == txg
    }

    /// Nothing can be written any more: changes that are not on disk are lost, and everybody that waits is told.
    pub fn fail(&self, why: TxgFailure) {
        self.shared.state.lock().failure.get_or_insert(why);
        self.close_last();
        self.shared.passed.all();
        self.shared.dirty.wake();
    }

    /// The next txg to be synced, quiesced: it is not changed any more. `None` once all is closed and written. For one caller, which calls
    /// [`Transactions::done`] before calling this again.
    #[boxed]
    pub async fn next(&self) -> Option<Txg> {
        loop {
            let passed = self.shared.passed.wait();
            {
                let mut state = self.shared.state.lock();
                // The one before may be what failed, and then none is written after it.
                if state.failure.is_some() {
                    return None;
                }
                if let Some(txg) = state.quiesced.take() {
                    assert_eq!(txg.0, state.synced.0 + 1, "a txg is synced when the one before is done");
                    drop(state);
                    self.shared.passed.all();
                    return Some(txg);
                }
                let open = self.shared.shards[0].0.lock().txg;
                if state.is_closed && state.synced >= open {
                    return None;
                }
            }
            passed.await;
        }
    }

    /// A txg that [`Transactions::next`] gave is on disk, or cannot be written, after which nothing can.
    pub fn done(&self, txg: Txg, result: Result<(), TxgFailure>) {
        let failed = {
            let mut state = self.shared.state.lock();
            assert!(state.quiesced != Some(txg), "a txg is done after it was handed to the sync");
            match result {
                Ok(()) => {
                    assert_eq!(txg.0, state.synced.0 + 1, "txgs are written in order, each once");
                    state.synced = txg;
                }
                Err(failure) => state.failure = Some(failure),
            }
            state.failure.is_some()
        };
        if failed {
            self.close_last();
        }
        self.shared.dirty.synced(txg);
        self.shared.passed.all();
    }

    /// Admits no more changes. Those admitted before are written: [`Transactions::next`] gives out their txgs, and then `None`.
    pub fn close(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.passed.all();
        self.shared.dirty.wake();
    }

    /// Opens the next txg whenever it is time to, until all is closed. Run by one task.
    #[boxed]
    pub async fn quiesce(&self) {
        while self.is_time().await {
            let before = self.open_next();
            before.holders.close().await;
            self.shared.state.lock().quiesce(before.txg);
            self.shared.passed.all();
        }
        // The last txg has nobody after it, and is written too.
        let last = self.close_last();
        last.holders.close().await;
        let mut state = self.shared.state.lock();
        if state.failure.is_none() {
            state.quiesce(last.txg);
        }
        drop(state);
        self.shared.passed.all();
    }

    /// Waits until a txg should be quiesced; whether one should at all.
    async fn is_time(&self) -> bool {
        let shared = &self.shared;
        loop {
            let (passed, moved) = (shared.passed.wait(), shared.dirty.moved());
            let wait = {
                let state = shared.state.lock();
                let is_free = state.quiesced.is_none();
                if state.failure.is_some() || (state.is_closed && is_free) {
                    return false;
                }
                let open = shared.shards[0].0.lock().txg;
                assert!(state.synced < open, "no txg that is open is on disk");
                let at = state.opened_at + shared.dirty.tunables().timeout();
                if is_free && (state.wanted >= open || shared.dirty.wants_sync(open)) {
                    return true;
                }
                let now = shared.handle.now();
                match is_free {
                    true if now < at => Some(at - now),
                    true if self.is_used() => return true,
                    true => Some(shared.dirty.tunables().timeout()),
                    false => None,
                }
            };
            let either = cenote_taskq::race(passed, moved);
            match wait {
                Some(wait) => drop(shared.handle.timeout(wait, either).await),
                None => drop(either.await),
            }
        }
    }

    fn is_used(&self) -> bool {
        self.shared.shards.iter().any(|shard| shard.0.lock().is_used)
    }

    /// All shards, in order, so that nobody holds one and waits for another.
    fn lock_all(&self) -> Vec<MutexGuard<'_, Open>> {
        self.shared.shards.iter().map(|shard| shard.0.lock()).collect()
    }

    /// Opens the next txg; returns the one before.
    fn open_next(&self) -> Open {
        let next = self.shared.handle.group();
        let mut shards = self.lock_all();
        let before = shards[0].clone();
        let txg = Txg(before.txg.0 + 1);
        for shard in &mut shards {
            assert_eq!(shard.txg, before.txg, "one txg is open, whatever the shard");
            assert_eq!(shard.is_shut, before.is_shut, "a txg is the last in all shards or in none");
            **shard = Open { txg, holders: next.clone(), is_used: false, is_shut: before.is_shut };
        }
        drop(shards);
        let mut state = self.shared.state.lock();
        let unwritten = txg.0 - state.synced.0;
        assert!(unwritten <= UNWRITTEN_TXGS_MAX as u64, "{unwritten} txgs have changes that are not on disk");
        state.opened_at = self.shared.handle.now();
        before
    }

    /// Makes the open txg the last, which is not assigned any more. Returns it.
    fn close_last(&self) -> Open {
        let mut shards = self.lock_all();
        shards.iter_mut().for_each(|shard| shard.is_shut = true);
        shards[0].clone()
    }
}
