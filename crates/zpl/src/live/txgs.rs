//! Where operations get the txg from that their changes go to.
//!
//! An operation takes its locks first, then a txg, and lets the txg go before the locks. So of two operations on one
//! object the later has the same txg or a later one, and layers in memory pile up in order; and whoever has a txg waits
//! for nobody but, briefly, for those who have one too, so a txg that closes is soon free of holders.

use std::any::Any;
use std::fmt;

use cenote_dmu::tx::{Cost, TxError};
use cenote_format::ids::Txg;
use cenote_spa::{Durable, LiveHead, PendingFrees};
use cenote_taskq::BoxFuture;

use crate::ZplError;

/// What changing one entry of a directory may write: a leaf that is split, the table that says so, and the header.
const ENTRY_BYTES: u64 = 4 * (16 << 10);
/// A spill block at most.
const SPILL_BYTES: u64 = 128 << 10;

/// Costs of what operations are made of, added up.
pub(super) trait Bill: Sized {
    /// With so many entries of directories (or tables) changed, each in another object.
    fn with_entries(self, count: u64) -> Self;

    /// With so many objects' attributes changed in place.
    fn with_objects(self, count: u64) -> Self;

    /// With attributes of one object packed anew, which may take a block of their own.
    fn with_repack(self) -> Self;

    /// With so many bytes of whole blocks.
    fn with_bytes(self, bytes: u64) -> Self;
}

impl Bill for Cost {
    fn with_entries(self, count: u64) -> Self {
        self.with_objects(count).with_bytes(count.saturating_mul(ENTRY_BYTES))
    }

    fn with_objects(self, count: u64) -> Self {
        self.and(Self::objects(count))
    }

    fn with_repack(self) -> Self {
        self.with_objects(1).with_bytes(SPILL_BYTES)
    }

    fn with_bytes(self, bytes: u64) -> Self {
        self.and(Self { write_bytes: bytes, ..Self::default() })
    }
}

/// An open txg that stays open until this is dropped.
pub struct HeldTxg {
    txg: Txg,
    _held: Box<dyn Any + Send>,
}

impl HeldTxg {
    /// A txg that `held` keeps open.
    #[must_use]
    pub fn new(txg: Txg, held: impl Any + Send) -> Self {
        Self { txg, _held: Box::new(held) }
    }

    /// Its number.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.txg
    }
}

impl fmt::Debug for HeldTxg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldTxg({})", self.txg)
    }
}

/// The pool, as seen by those who change things in it.
pub trait TxgSource: Send + Sync + 'static {
    /// The txg that is open now, once there is room for a change of this cost. Waits where changes come faster than they
    /// can be written.
    ///
    /// # Errors
    /// There is no space ([`ZplError::NoSpace`]), or the pool is not written any more.
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<HeldTxg, ZplError>>;

    /// Waits until a txg later than this one is open. Whoever calls holds none.
    ///
    /// # Errors
    /// The pool is not written any more.
    fn later_than(&self, txg: Txg) -> BoxFuture<'_, Result<(), ZplError>>;

    /// Tells the pool that space is being freed in the background, until the guard is dropped: changes for which there is no space wait
    /// meanwhile. `None` where no pool is behind this source.
    fn frees_begin(&self) -> Option<PendingFrees> {
        None
    }
}

fn refused(error: TxError) -> ZplError {
    match error {
        TxError::NoSpace => ZplError::NoSpace,
        TxError::Quota(name) => ZplError::Quota(name),
        error => ZplError::Closed(error.to_string()),
    }
}

/// A dataset of a pool that is written in the background.
impl TxgSource for LiveHead {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<HeldTxg, ZplError>> {
        Box::pin(async move {
            let tx = LiveHead::begin(self, cost).await.map_err(refused)?;
            Ok(HeldTxg::new(tx.txg(), tx))
        })
    }

    fn later_than(&self, txg: Txg) -> BoxFuture<'_, Result<(), ZplError>> {
        // What was freed is out of memory only once it is written.
        Box::pin(async move { self.pool().wait_synced(txg).await.map_err(|error| ZplError::Closed(error.to_string())) })
    }

    fn frees_begin(&self) -> Option<PendingFrees> {
        Some(LiveHead::frees_begin(self))
    }
}

/// A dataset whose clients ask for their changes to be on disk.
impl TxgSource for Durable {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<HeldTxg, ZplError>> {
        Box::pin(async move {
            let tx = Self::begin(self, cost).await.map_err(refused)?;
            Ok(HeldTxg::new(tx.txg(), tx))
        })
    }

    fn later_than(&self, txg: Txg) -> BoxFuture<'_, Result<(), ZplError>> {
        TxgSource::later_than(self.head(), txg)
    }

    fn frees_begin(&self) -> Option<PendingFrees> {
        TxgSource::frees_begin(self.head())
    }
}
