//! The blocks of a pool that is written: their places, their references, and the way back of what is freed.
//!
//! **Life of a block.** [`Writer`] writes it where the allocator ([`Space`]) has placed it. A block that is killed loses its references in the
//! BRT and DDT ([`SharedBlocks`]); the last one frees it. Frees go to the allocator in tasks beside the sync, and can be allocated again two
//! txgs later.
//!
//! **Invariants.**
//! 1. The allocator has all frees of a txg when its sync ends: no task is left (asserted in `txg`).
//! 2. The MOS's own bytes are in the accounts when its sync ends (asserted in `txg`).
//! 3. A block that the checkpoint has is not freed while there is one (`free`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cenote_dmu::{SpaceDelta, Writer};
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::indirect::Removing;
use cenote_taskq::Join;

use super::space::Space;
use crate::SpaError;
use crate::refcount::known::SharedBlocks;

/// The blocks of a pool.
pub(crate) struct Blocks {
    /// The allocator.
    pub(crate) space: Arc<Space>,
    /// For each top-level vdev, the object with its metaslabs' unflushed txgs, where there is one.
    pub(crate) unflushed_txgs: BTreeMap<VdevId, ObjectId>,
    /// A task loads metaslabs before they are asked for.
    pub(crate) preloading: Arc<AtomicBool>,
    pub(crate) writer: Writer,
    /// References of cloned and deduplicated blocks.
    pub(crate) shared: SharedBlocks,
    /// Blocks given up since the pool was opened,
    pub(crate) given_up: u64,
    /// and up to the end of the last txg.
    pub(crate) given_up_before: u64,
    /// The txg of the checkpoint: what was born up to it is kept.
    pub(crate) checkpoint: Option<Txg>,
    /// The tasks that pass frees of given-up blocks to the allocator.
    pub(crate) free_tasks: Vec<Join<Result<(), SpaError>>>,
    /// The state of the last removal of a vdev that had blocks, as the directory has it.
    pub(crate) removing: Option<Removing>,
    /// Copies of an evacuated vdev's blocks that are on their way to devices.
    pub(crate) copies: Vec<Join<Result<Vec<Guid>, SpaError>>>,
    /// The MOS's own bytes that are not in the accounts yet.
    pub(crate) mos_delta: SpaceDelta,
    /// How many times the txg that syncs has entered what it took and freed.
    pub(crate) space_pass: u32,
}

impl Blocks {
    /// As they are when a pool is opened or made.
    pub(crate) fn new(space: Arc<Space>, writer: Writer, shared: SharedBlocks) -> Self {
        Self {
            space,
            unflushed_txgs: BTreeMap::new(),
            preloading: Arc::default(),
            writer,
            shared,
            given_up: 0,
            given_up_before: 0,
            checkpoint: None,
            free_tasks: Vec::new(),
            removing: None,
            copies: Vec::new(),
            mos_delta: SpaceDelta::default(),
            space_pass: 0,
        }
    }
}
