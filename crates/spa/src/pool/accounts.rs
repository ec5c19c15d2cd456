//! Available space: after each sync the accounts of DSL directories get the space that each has left, and each open dataset gets its used
//! and available bytes as `df` shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::tx::{Account, Left};
use cenote_format::dsl::DslDirPhys;
use cenote_format::ids::{ObjectId, Txg};

use crate::SpaError;
use crate::inuse::HeadSpace;
use crate::pool::head::LiveHead;
use crate::pool::shared::Shared;
use crate::sync::Syncer;
use crate::sync::log_room::Split;
use crate::sync::usable::Usable;

/// A quota may be exceeded by what frees space by this much, as the root may by half of what is kept back.
const FREEING_BYTES: u64 = 16 << 20;
/// Directories in a chain at most.
const DEPTH_MAX: usize = 256;

impl Shared {
    /// The account of the directory of a dataset with this name, made with those above it.
    pub(super) async fn account_of(
        &self,
        writer: &Syncer,
        name: &str,
        dataset: ObjectId,
    ) -> Result<Arc<Account>, SpaError> {
        let mut chain = Vec::new();
        let mut at = writer.mos.dsl.dataset_phys(dataset).await?.dir;
        while at.0 != 0 && chain.len() < DEPTH_MAX {
            chain.push(at);
            at = writer.mos.dsl.dir_phys(at).await?.parent;
        }
        let mut accounts = self.accounts.lock();
        let mut above: Option<Arc<Account>> = None;
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        for (dir, end) in chain.iter().rev().zip(ends) {
            let name = above.is_some().then(|| name[..end].to_owned());
            let account = accounts.entry(*dir).or_insert_with(|| Arc::new(Account::new(name, above.clone())));
            above = Some(account.clone());
        }
        above.ok_or_else(|| SpaError::contradiction("a dataset without a directory"))
    }

    /// Forgets accounts without users: their directories may be gone.
    fn forget_unused(&self) {
        let mut accounts = self.accounts.lock();
        // Those below keep those above.
        while let before = accounts.len()
            && {
                accounts.retain(|_, account| Arc::strong_count(account) > 1);
                accounts.len() < before
            }
        {}
    }

    /// Tells all accounts what is left as of the last sync.
    pub(super) async fn update_accounts(&self, writer: &Syncer) -> Result<(), SpaError> {
        self.forget_unused();
        let accounts: BTreeMap<ObjectId, Arc<Account>> = self.accounts.lock().clone();
        let txg = Txg(writer.txg().0.saturating_sub(1));
        let usable = writer.usable();
        let (data_percent, metadata_percent) = writer.inflation_percent();
        let dirty = self.txgs.dirty();
        dirty.set_unit_bytes(writer.unit_bytes());
        let worst = |bytes: u64| bytes.saturating_mul(data_percent.max(metadata_percent)) / 100;
        let margin_bytes = (dirty.max_bytes().saturating_mul(data_percent) / 100).saturating_mul(2);
        let mut dirs = BTreeMap::new();
        let mut shown_bytes = usable.shown_bytes;
        for (dir, account) in accounts {
            let phys = writer.mos.dsl.dir_phys(dir).await?;
            let mut left = left_of(&phys);
            if phys.parent.0 == 0 {
                let left_bytes = usable.bytes.saturating_sub(phys.used_bytes);
                let split = share_with_logs(writer, &usable, left_bytes, margin_bytes);
                // Blocks of logs are no dataset's; what is kept back makes up for those of a log in use.
                let taken_by_logs = left_bytes.saturating_add(usable.slop_bytes).saturating_sub(usable.free_bytes);
                shown_bytes = usable.shown_bytes.saturating_sub(taken_by_logs.saturating_sub(usable.slop_bytes / 2));
                left.bytes = Some(split.data_bytes);
                left.to_free_bytes = Some(split.frees_bytes);
                // Space that logs have comes back with the next txgs too.
                left.has_deferred = usable.has_deferred || split.data_bytes < left_bytes.min(margin_bytes);
            }
            (left.data_percent, left.metadata_percent) = (data_percent, metadata_percent);
            account.set(txg, &left, margin_bytes, |later| worst(self.txgs.coming_bytes(later)));
            dirs.insert(dir, phys);
        }
        self.update_figures(writer, &dirs, shown_bytes).await
    }

    /// Takes over the used and available bytes of datasets. `dirs` are their directories and all above these.
    async fn update_figures(
        &self,
        writer: &Syncer,
        dirs: &BTreeMap<ObjectId, DslDirPhys>,
        usable_bytes: u64,
    ) -> Result<(), SpaError> {
        for dataset in self.in_use.owned() {
            let phys = writer.mos.dsl.dataset_phys(dataset).await?;
            let space = HeadSpace {
                referenced_bytes: phys.referenced_bytes,
                available_bytes: available_bytes(dirs, phys.dir, usable_bytes),
                objects: phys.bp.fill(),
            };
            self.in_use.set_space(dataset, space);
        }
        Ok(())
    }
}

impl LiveHead {
    /// The space that the dataset uses and may still use, as of the last sync.
    #[must_use]
    pub fn space(&self) -> HeadSpace {
        self.pool.shared.in_use.space(self.head.dataset)
    }
}

/// Shares the free space between data and intent logs until the next sync.
fn share_with_logs(writer: &Syncer, usable: &Usable, left_bytes: u64, dirty_max_bytes: u64) -> Split {
    let mut room = writer.blocks.space.log_room().lock();
    let scaled = |bytes: u64, of: u64, to: u64| match of {
        0 => 0,
        of => u64::try_from(u128::from(bytes) * u128::from(to) / u128::from(of)).unwrap_or(u64::MAX),
    };
    let unsynced = scaled(room.unsynced_bytes(), usable.free_raw_bytes, usable.free_bytes);
    let free_bytes = usable.free_bytes.saturating_sub(unsynced);
    let split = Split::of(free_bytes, usable.slop_bytes, left_bytes, dirty_max_bytes);
    room.share(scaled(split.log_bytes, usable.free_bytes, usable.free_raw_bytes));
    split
}

/// The bytes that the dataset of a directory may use beyond those it uses: the least that any directory up to the root leaves it.
fn available_bytes(dirs: &BTreeMap<ObjectId, DslDirPhys>, dir: ObjectId, usable_bytes: u64) -> u64 {
    let mut chain = Vec::new();
    let mut at = dir;
    while let Some(phys) = dirs.get(&at).filter(|_| chain.len() < DEPTH_MAX) {
        chain.push(phys);
        at = phys.parent;
    }
    let mut above = None;
    for phys in chain.iter().rev() {
        let quota = if phys.quota_bytes == 0 { u64::MAX } else { phys.quota_bytes };
        above = Some(match above {
            // The root's quota is the pool.
            None => quota.min(usable_bytes).saturating_sub(phys.used_bytes),
            // Bytes that are reserved but not used count as used above.
            Some(above) => {
                let reserved = phys.reserved_bytes.saturating_sub(phys.used_bytes);
                u64::saturating_add(above, reserved).min(quota.saturating_sub(phys.used_bytes))
            }
        });
    }
    // Bytes that are reserved for the head alone count as used in its own directory.
    let reserved = chain.first().map_or(0, |phys| phys.used_breakdown_bytes[4]);
    above.unwrap_or(0).saturating_add(reserved)
}

fn left_of(phys: &DslDirPhys) -> Left {
    let bytes = (phys.quota_bytes != 0).then(|| phys.quota_bytes.saturating_sub(phys.used_bytes));
    // Bytes that are reserved for the head count as used here and above already.
    let [.., refreserved_bytes] = phys.used_breakdown_bytes;
    let bytes = bytes.map(|bytes| bytes.saturating_add(refreserved_bytes));
    Left {
        bytes,
        to_free_bytes: bytes.map(|bytes| bytes.max(FREEING_BYTES)),
        cushion_bytes: refreserved_bytes.saturating_add(phys.reserved_bytes.saturating_sub(phys.used_bytes)),
        ..Left::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frees_space_has_no_less_left_than_what_takes_it() {
        let phys = DslDirPhys::parse(&[0; DslDirPhys::SIZE_BYTES], cenote_zio::ORDER).unwrap();
        // Most of what is used is reserved for the head, and not used by it.
        let used_breakdown_bytes = [1 << 30, 0, 0, 0, 9 << 30];
        let phys = DslDirPhys { quota_bytes: 10 << 30, used_bytes: 10 << 30, used_breakdown_bytes, ..phys };
        let left = left_of(&phys);
        assert_eq!(left.bytes, Some(9 << 30));
        assert_eq!(left.to_free_bytes, Some(9 << 30));
    }
}
