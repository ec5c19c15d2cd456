//! The space that changes may still use, for each DSL directory.
//!
//! ```text
//!   root: usable - used  ◄── parent: quota - used  ◄── dataset's directory: quota - used; reserved - used
//! ```
//! While more space is left than three txgs can dirty, nothing is counted. Otherwise the account sums the worst-case sizes of admitted
//! changes by txg, and drops the sum of a txg that is on disk, since then the space really used is known.
//!
//! Most changes take far less than their worst case: a write of 4 KiB may dirty a block of dnodes and indirect blocks on three
//! levels, but the writes before it have dirtied them already. So when the worst cases of the open txg do not leave room for one
//! more, the account looks at what the txg has really made dirty, and goes on from there ([`Account::recount`]). So a nearly full pool
//! admits as many changes into a txg as fit, and only then makes changes wait for a sync. Txgs that are not open keep their count: what
//! is dirty of them grows less as it is written, before the figures of the last sync know of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_format::ids::Txg;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;

use super::{Cost, TXGS, TxError, slot};

/// There is no limit here.
const UNLIMITED: u64 = u64::MAX;

/// One directory's space.
#[derive(Debug)]
pub struct Account {
    /// The dataset's name; nothing for the whole pool.
    name: Option<String>,
    parent: Option<Arc<Account>>,
    /// Bytes that may be used beyond those used as of the last sync.
    left_bytes: AtomicU64,
    /// The same for changes that free space.
    left_to_free_bytes: AtomicU64,
    /// Of the bytes used here, those that do not count above since they are reserved there.
    cushion_bytes: AtomicU64,
    data_percent: AtomicU64,
    metadata_percent: AtomicU64,
    /// Whether changes are counted.
    is_tight: AtomicBool,
    /// Whether space that was freed comes back with the next txgs.
    has_deferred: AtomicBool,
    admitted_bytes: [AtomicU64; TXGS],
    /// Held while the open txg is counted again: two callers would take the same surplus back twice.
    recounting: Mutex<()>,
}

/// The space that a directory has left as of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes that may be used beyond what is used; `None` is no limit.
    pub bytes: Option<u64>,
    /// The same for changes that free space.
    pub to_free_bytes: Option<u64>,
    /// Of the bytes used from now on, those that do not count above, since they are reserved there.
    pub cushion_bytes: u64,
    /// The worst-case space of a logical byte of this dataset's data, in per cent.
    pub data_percent: u64,
    /// The same of metadata.
    pub metadata_percent: u64,
    /// Whether there will be more when the next txgs are on disk, since freed space is kept back for some.
    pub has_deferred: bool,
}

impl Default for Left {
    /// No limit, and bytes that are what they are.
    fn default() -> Self {
        Self {
            bytes: None,
            to_free_bytes: None,
            cushion_bytes: 0,
            data_percent: 100,
            metadata_percent: 100,
            has_deferred: false,
        }
    }
}

/// How a change fares with an account.
pub(super) enum Verdict {
    /// It may come in.
    Admitted,
    /// When what was let in before is on disk it will be known.
    Later,
    /// Nothing is on its way, but some of what was freed comes back with the next txgs.
    Deferred,
    /// It may not.
    Refused(TxError),
}

impl Account {
    /// An account without a limit, below another: of the dataset with this name, or of the pool if there is none.
    #[must_use]
    pub fn new(name: Option<String>, parent: Option<Arc<Self>>) -> Self {
        Self {
            name,
            parent,
            left_bytes: AtomicU64::new(UNLIMITED),
            left_to_free_bytes: AtomicU64::new(UNLIMITED),
            cushion_bytes: AtomicU64::new(0),
            data_percent: AtomicU64::new(100),
            metadata_percent: AtomicU64::new(100),
            is_tight: AtomicBool::new(false),
            has_deferred: AtomicBool::new(false),
            admitted_bytes: [const { AtomicU64::new(0) }; TXGS],
            recounting: Mutex::new(()),
        }
    }

    /// Takes over what is left as of the sync of `txg`. Changes are counted from now on if less is left than `margin_bytes`.
    /// `uncounted_bytes` gives the bytes of a later txg that were let in uncounted, those of changes that are still being made
    /// included ([`super::Transactions::coming_bytes`]).
    pub fn set(&self, txg: Txg, left: &Left, margin_bytes: u64, uncounted_bytes: impl Fn(Txg) -> u64) {
        assert!(
            left.to_free_bytes.is_none_or(|to_free| left.bytes.is_some_and(|bytes| bytes <= to_free)),
            "what frees space has no less left than what takes it"
        );
        self.admitted_bytes[slot(txg)].store(0, Ordering::Relaxed);
        self.left_bytes.store(left.bytes.unwrap_or(UNLIMITED), Ordering::Relaxed);
        self.left_to_free_bytes.store(left.to_free_bytes.unwrap_or(UNLIMITED), Ordering::Relaxed);
        self.cushion_bytes.store(left.cushion_bytes, Ordering::Relaxed);
        self.data_percent.store(left.data_percent, Ordering::Relaxed);
        self.metadata_percent.store(left.metadata_percent, Ordering::Relaxed);
        self.has_deferred.store(left.has_deferred, Ordering::Relaxed);
        let is_tight = left.bytes.is_some_and(|left| left < margin_bytes) || left.cushion_bytes > 0;
        if !is_tight {
            self.is_tight.store(false, Ordering::SeqCst);
            self.admitted_bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        } else if !self.is_tight.load(Ordering::Acquire) {
            let later = [Txg(txg.0 + 1), Txg(txg.0 + 2)];
            let before = later.map(&uncounted_bytes);
            for (later, bytes) in later.into_iter().zip(before) {
                self.admitted_bytes[slot(later)].store(bytes, Ordering::Relaxed);
            }
            self.is_tight.store(true, Ordering::SeqCst);
            // And changes that came in between, and did not see that the account is tight.
            for (later, before) in later.into_iter().zip(before) {
                let more = uncounted_bytes(later).saturating_sub(before);
                self.admitted_bytes[slot(later)].fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Asks this account and all above it for what a change of the open txg costs at worst. The change holds the txg.
    /// `coming_bytes` gives the bytes that the txg has made dirty and may still ([`super::Transactions::coming_bytes`]), this change
    /// included.
    /// `unit_bytes` is what the pool allocates at a time.
    pub(super) fn reserve(&self, txg: Txg, cost: &Cost, unit_bytes: u64, coming_bytes: impl Fn() -> u64) -> Verdict {
        let mut at = Some(self);
        let share = |bytes: u64, percent: &AtomicU64| bytes.saturating_mul(percent.load(Ordering::Relaxed)) / 100;
        let data_bytes = share(cost.data_bytes(unit_bytes), &self.data_percent);
        let mut wanted = data_bytes.saturating_add(share(cost.metadata_bytes(), &self.metadata_percent));
        let mut taken: Vec<(&Self, u64)> = Vec::new();
        while let Some(account) = at {
            if account.is_tight.load(Ordering::SeqCst) {
                match account.take_or_recount(txg, wanted, cost.frees, &coming_bytes) {
                    Ok(above) => {
                        taken.push((account, wanted));
                        wanted = above;
                    }
                    Err(verdict) => {
                        for (account, bytes) in taken {
                            account.admitted_bytes[slot(txg)].fetch_sub(bytes, Ordering::Relaxed);
                        }
                        return verdict;
                    }
                }
            }
            at = account.parent.as_deref();
        }
        Verdict::Admitted
    }

    /// As [`Account::take`]; where there seems to be no room, looks again at what the txg really takes.
    fn take_or_recount(
        &self,
        txg: Txg,
        bytes: u64,
        frees: bool,
        coming_bytes: impl Fn() -> u64,
    ) -> Result<u64, Verdict> {
        match self.take(txg, bytes, frees) {
            Err(Verdict::Later) if self.recount(txg, bytes, coming_bytes) => self.take(txg, bytes, frees),
            result => result,
        }
    }

    /// Takes back what the open txg was counted for too much. True if there was any. `asked_bytes`: what the caller, whose change is among
    /// the ones that are coming, has not been counted for.
    fn recount(&self, txg: Txg, asked_bytes: u64, coming_bytes: impl Fn() -> u64) -> bool {
        let _alone = self.recounting.lock();
        let admitted = &self.admitted_bytes[slot(txg)];
        // In this order: a change that is counted here has said before that it is coming (`Coming::new`), so it is in the other sum
        // as well; one that is counted later stays counted.
        let counted = admitted.load(Ordering::SeqCst);
        let percent = self.data_percent.load(Ordering::Relaxed).max(self.metadata_percent.load(Ordering::Relaxed));
        let worst = coming_bytes().saturating_mul(percent).div_ceil(100).saturating_sub(asked_bytes);
        let surplus = counted.saturating_sub(worst);
        let before = admitted.fetch_sub(surplus, Ordering::SeqCst);
        assert!(before >= surplus, "no more is taken back than was counted");
        surplus > 0
    }

    /// Takes bytes here; returns those that count in the accounts above.
    fn take(&self, txg: Txg, bytes: u64, frees: bool) -> Result<u64, Verdict> {
        // A sum that does not fit (costs without a bound, or one given back that `set` has forgotten already) is too much.
        let admitted =
            || self.admitted_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(bytes.load(Ordering::Relaxed)));
        self.admitted_bytes[slot(txg)].fetch_add(bytes, Ordering::SeqCst);
        let before = admitted().saturating_sub(bytes);
        let left = if frees { &self.left_to_free_bytes } else { &self.left_bytes }.load(Ordering::Relaxed);
        let is_quota = self.name.is_some() && self.parent.is_some();
        if is_quota && mutant::is(Mutant::QuotaIgnored) {
            return Ok(bytes);
        }
        if left != UNLIMITED && before.saturating_add(bytes) > left {
            self.admitted_bytes[slot(txg)].fetch_sub(bytes, Ordering::Relaxed);
            // The worst case may not have come, or something was freed meanwhile: the sync will tell.
            if before > 0 {
                return Err(Verdict::Later);
            }
            if self.has_deferred.load(Ordering::Relaxed) {
                return Err(Verdict::Deferred);
            }
            return Err(Verdict::Refused(match &self.name {
                Some(name) if self.parent.is_some() => TxError::Quota(name.clone()),
                _ => TxError::NoSpace,
            }));
        }
        let cushion = self.cushion_bytes.load(Ordering::Relaxed);
        let above = before.saturating_add(bytes).saturating_sub(cushion) - before.saturating_sub(cushion);
        assert!(above <= bytes, "no more counts above than is taken here");
        Ok(above)
    }
}
