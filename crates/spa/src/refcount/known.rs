//! The state of the BRT and the DDT in memory, while the pool is open.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{Object, Zap};
use cenote_format::brt::BrtVdevPhys;
use cenote_format::ddt::{CLASSES, DdtKey, DdtPhys, DdtStat, TYPES};
use cenote_format::dsl::pool_directory;
use cenote_format::enums::Checksum;
use cenote_format::ids::VdevId;

use crate::{SpaError, View};

/// The reference counts of cloned and deduplicated blocks, as far as their tables have been read.
pub(crate) struct SharedBlocks {
    pub(super) clones: Option<Clones>,
    pub(super) dedup: Dedup,
    /// Bytes that sharing saves, as datasets count them.
    pub(crate) saved_bytes: u64,
}

impl SharedBlocks {
    /// Of a pool without any.
    pub(crate) fn none() -> Self {
        Self { clones: None, dedup: Dedup::default(), saved_bytes: 0 }
    }

    pub(crate) async fn open(pool: &View) -> Result<Self, SpaError> {
        let saved_bytes = pool.dedup().await?.saved_bytes().saturating_add(pool.cloning().await?.saved_bytes);
        Ok(Self { saved_bytes, ..Self::none() })
    }
}

/// The tables of all vdevs.
pub(super) struct Clones(pub(super) BTreeMap<VdevId, CloneTable>);

pub(super) struct CloneTable {
    /// Has the regions' counts, and the figures as its bonus.
    pub(super) object: Object,
    pub(super) entries: Zap,
    pub(super) phys: BrtVdevPhys,
    /// Entries of each region.
    pub(super) regions: Vec<u16>,
    pub(super) changed_regions: BTreeSet<usize>,
    pub(super) is_changed: bool,
}

impl CloneTable {
    /// Whether a block that begins here can have an entry.
    pub(super) fn region_of(&self, offset_bytes: u64) -> Option<usize> {
        let region = usize::try_from(offset_bytes / self.phys.region_size_bytes).ok()?;
        self.regions.get(region).is_some_and(|count| *count > 0).then_some(region)
    }
}

/// The tables of all checksums that were asked for.
#[derive(Default)]
pub(super) struct Dedup(pub(super) BTreeMap<u8, Option<Tables>>);

/// The tables of a checksum.
pub(super) struct Tables {
    pub(super) checksum: Checksum,
    /// Where they are listed: a directory of their own, or the pool's.
    pub(super) directory: Object,
    pub(super) has_directory: bool,
    pub(super) classes: [Option<Class>; CLASSES.len()],
    pub(super) is_changed: bool,
}

pub(super) struct Class {
    pub(super) entries: Zap,
    pub(super) histogram: Vec<DdtStat>,
}

/// An entry with the class of the table that has it, if one has.
pub(super) struct Entry {
    pub(super) key: DdtKey,
    pub(super) phys: DdtPhys,
    pub(super) class: Option<usize>,
}

impl Dedup {
    #[cfg(test)]
    pub(super) fn enter(&mut self, tables: Tables) {
        self.0.insert(tables.checksum.number(), Some(tables));
    }
}

impl Tables {
    /// Without any entry.
    pub(super) fn new(checksum: Checksum, directory: Object) -> Self {
        let classes = [const { None }; CLASSES.len()];
        Self { checksum, directory, has_directory: false, classes, is_changed: false }
    }

    pub(super) fn name(&self, class: usize) -> String {
        pool_directory::ddt(self.checksum.name(), TYPES[0], CLASSES[class])
    }

    pub(super) fn log_name(&self, index: u32) -> String {
        pool_directory::ddt_log(self.checksum.name(), index)
    }
}
