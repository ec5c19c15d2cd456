//! The last root of a pool in use, for those that read the pool as of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_arc::Cache;
use cenote_format::ids::Txg;
use cenote_format::uberblock::Uberblock;
use cenote_zio::{Zio, ZioError};

use crate::FoundPool;
use crate::import::Leaves;
use crate::sync::Syncer;

/// The last root on disk, and all that it takes to read it.
#[derive(Clone)]
pub(super) struct Root {
    pub(super) uberblock: Uberblock,
    pub(super) zio: Zio,
    pub(super) cache: Arc<Cache<ZioError>>,
    pub(super) found: FoundPool,
    pub(super) leaves: Leaves,
}

impl Root {
    /// Its txg.
    pub(super) fn txg(&self) -> Txg {
        self.uberblock.txg
    }

    /// That of the txg that the writer has just synced.
    pub(super) fn of(writer: &Syncer) -> Option<Self> {
        assert!(writer.devices.synced.is_none_or(|root| root.txg < writer.txg()), "a root is of a txg that is on disk");
        let root_vdev = &writer.devices.root_vdev;
        let (missed, unnoted) = (root_vdev.missed.clone(), root_vdev.unnoted.clone());
        let dmu = writer.blocks.writer.dmu();
        Some(Self {
            uberblock: writer.devices.synced?,
            zio: dmu.zio().clone(),
            cache: dmu.shared_cache(),
            found: writer.devices.found.clone(),
            leaves: Leaves { missed, unnoted, late: BTreeSet::new() },
        })
    }
}
