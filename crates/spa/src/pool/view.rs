//! A pool in use, read as of a txg.
//!
//! # Theory
//!
//! **Need.** A command that checks, lists, copies or compares a pool needs one state of it for as long as the work lasts, and the pool is
//! to be written meanwhile. To hold the sync up for that (as this crate once did) stops every writer.
//!
//! **Structure.** A [`View`] like one that was imported, whose root is the last that is on disk. It is read through the devices and the
//! block cache that are in use: nothing is opened again, and no label is read. The root's blocks stay as they are, since its txg is
//! *pinned* ([`crate::pins`]): space freed after it is not used again while the view lives.
//!
//! **Life of one.** [`Pool::view`] has what was changed written first, so that the caller sees its own changes; it takes the last
//! root and pins its txg, and opens the MOS. None of it waits in the sync, or keeps the sync waiting. The view ends when it is
//! dropped.
//!
//! **Bounds.** Blocks kept for views are at most a quarter of what is not allocated; then the oldest view is given up, and
//! [`View::check`] says so. An export waits for views, for 20 seconds at most.
//!
//! **Invariants.**
//! 1. A root that is offered to views has its devices open: it is withdrawn when the sync ends. It is that of the last txg (asserted in
//!    `background`), and has what the caller has changed (asserted here).
//! 2. No block of a view's txg is allocated again before the view is dropped or given up (asserted by `ExtentCheck`).
//!
//! **Crash.** Pins are in memory alone, and so is what is kept for them: on disk those blocks are free.

use std::sync::Arc;

use cenote_dmu::Dmu;
use cenote_dmu::tx::TxError;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::boxed;

use crate::import::in_use;
use crate::pins::Pin;
use crate::pool::Pool;
use crate::pool::root::Root;
use crate::{ImportOptions, SpaError, View};

/// A txg that is kept for as long as this is there, or until too much would have to be.
pub struct KeptTxg {
    root: Uberblock,
    pin: Arc<Pin>,
}

impl KeptTxg {
    /// Its root.
    #[must_use]
    pub const fn root(&self) -> &Uberblock {
        &self.root
    }

    /// True if all of it was kept until now.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.pin.is_given_up()
    }
}

impl Pool {
    /// The pool as of its last txg, with all that was changed before the call. `options`: the alternate root is obeyed, and nothing
    /// else.
    ///
    /// # Errors
    /// The changes could not be written; the pool is closed or suspended; its MOS cannot be read.
    #[boxed]
    pub async fn view(&self, options: &ImportOptions) -> Result<View, SpaError> {
        let (Root { uberblock, zio, cache, found, leaves }, pin) = self.pinned(true).await?;
        let zio = zio.while_kept(pin.clone());
        // Its detached work (prefetch and the like) ends with it.
        let dmu = Dmu::new(self.shared.handle.clone(), zio, cache);
        in_use(dmu, &found, self.name(), options, &uberblock, leaves, pin).await
    }

    /// Keeps the pool's last txg, with all that was changed before the call, for a reader that opens the devices itself.
    ///
    /// # Errors
    /// As [`Self::view`].
    #[boxed]
    pub async fn keep(&self) -> Result<KeptTxg, SpaError> {
        let (root, pin) = self.pinned(false).await?;
        Ok(KeptTxg { root: root.uberblock, pin })
    }

    async fn pinned(&self, has_devices: bool) -> Result<(Root, Arc<Pin>), SpaError> {
        let txg = self.sync().await?;
        let closed = || self.fail(&TxError::Closed);
        let root = self.shared.root.lock();
        let root = root.as_ref().ok_or_else(closed)?;
        assert!(root.txg() >= txg, "a view has what was changed before it");
        let pin = self.shared.pins.pin(root.uberblock.txg, has_devices).ok_or_else(closed)?;
        Ok((root.clone(), pin))
    }
}
