//! The rooms of a pool as the changes of one txg see them.
//!
//! A function of a room takes that room. Some touch two: a block that is given up changes the tables of references, which are objects of the MOS,
//! and the allocator. Those are functions of [`InTxg`], which may change the MOS and the blocks and may look at the devices; so do the slices of
//! jobs. What changes the devices, or says which txg is next, is a function of [`Syncer`](super::Syncer).

use cenote_format::ids::Txg;
use cenote_taskq::Handle;

use super::blocks::Blocks;
use super::clock::Clock;
use super::devices::Devices;
use super::mos::Mos;

/// The rooms that changes of a txg may touch, and those that they may look at.
pub(crate) struct InTxg<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) clock: Clock,
    /// The txg that syncs, or the open one before its sync.
    pub(crate) txg: Txg,
    pub(crate) mos: &'a mut Mos,
    pub(crate) blocks: &'a mut Blocks,
    pub(crate) devices: &'a Devices,
}

impl InTxg<'_> {
    /// Now, in seconds since 1970, as it is written down.
    pub(crate) fn time_s(&self) -> u64 {
        self.clock.now_s(self.handle)
    }
}
