//! Figures of an open pool that its MOS keeps: dedup, cloning, scans, checkpoint, spares; and the space that datasets may
//! use.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cenote_dmu::{DmuError, Object, Objset, Zap};
use cenote_format::bpobj::BpobjPhys;
use cenote_format::brt::BrtVdevPhys;
use cenote_format::ddt::{self, DdtStat, parse_histogram};
use cenote_format::dsl::{ErrorScrubPhys, RebuildPhys, RebuildState, ScanFunction, ScanPhys, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::nvlist::NvList;
use cenote_metaslab::PoolSpace;
use cenote_taskq::boxed;
use cenote_vdev::config::{AllocationClass, VdevConfig};

use crate::auxiliary::spare_use;
use crate::view::packed_list;
use crate::{SpaError, SpareUse, View};

/// Checksums that a dedup table can have, as its objects' names have them.
const DDT_CHECKSUMS: [&str; 5] = ["sha256", "sha512", "skein", "edonr", "blake3"];
/// A psize by which the allocation overhead of a vdev is measured.
pub(crate) const DEFLATE_PSIZE_BYTES: u64 = 128 << 10;
/// Metaslabs from which on a vdev gives one to the intent log (`zfs_embedded_slog_min_ms`).
pub(crate) const EMBEDDED_LOG_METASLABS: u64 = 64;
/// The share of a pool that is never given to datasets: one part in `1 << 5` (`spa_slop_shift`),
const SLOP_SHIFT: u32 = 5;
/// at least this (but never more than half the pool),
const SLOP_MIN_BYTES: u64 = 128 << 20;
/// and at most this.
const SLOP_MAX_BYTES: u64 = 128 << 30;

/// The slop space: bytes kept back so that the pool can always be written. `normal` counts the bytes that data blocks can have,
/// `embedded_log` the part of them that is set aside for the intent log.
pub(crate) fn slop_bytes(normal: u64, embedded_log: u64) -> u64 {
    let slop = (normal >> SLOP_SHIFT).min(SLOP_MAX_BYTES);
    let kept = (slop - embedded_log.min(slop >> 1)).max(SLOP_MIN_BYTES.min(normal >> 1));
    assert!(kept <= normal >> 1, "half of a pool can be used");
    kept
}

/// Dedup statistics of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupFigures {
    /// Blocks by their number of references: bucket `n` is of about `2^n`. Empty where there are no tables.
    pub histogram: Vec<DdtStat>,
    /// Bytes on disk of the tables and logs.
    pub table_bytes: u64,
    /// Bytes that they would take in memory: of all their blocks, not compressed.
    pub table_lsize_bytes: u64,
    /// Entries in the tables.
    pub entry_count: u64,
}

impl DedupFigures {
    /// All buckets together.
    #[must_use]
    pub fn total(&self) -> DdtStat {
        self.histogram.iter().fold(DdtStat::NOTHING, |mut sum, stat| {
            sum.add(stat);
            sum
        })
    }

    /// How much larger the pool's deduplicated data would be without: in hundredths.
    #[must_use]
    pub fn ratio_hundredths(&self) -> u64 {
        let total = self.total();
        let ratio = u128::from(total.referenced_dsize_bytes) * 100;
        ratio.checked_div(u128::from(total.dsize_bytes)).map_or(100, |ratio| u64::try_from(ratio).unwrap_or(u64::MAX))
    }

    /// Bytes on disk saved.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        let total = self.total();
        total.referenced_dsize_bytes.saturating_sub(total.dsize_bytes)
    }
}

/// Block cloning statistics of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneFigures {
    /// Bytes of cloned blocks, once each.
    pub used_bytes: u64,
    /// Bytes saved by sharing them.
    pub saved_bytes: u64,
}

impl CloneFigures {
    /// How much larger cloned data would be without: in hundredths.
    #[must_use]
    pub fn ratio_hundredths(&self) -> u64 {
        let all = (u128::from(self.used_bytes) + u128::from(self.saved_bytes)) * 100;
        all.checked_div(u128::from(self.used_bytes)).map_or(100, |ratio| u64::try_from(ratio).unwrap_or(u64::MAX))
    }
}

/// A pool's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The txg that it keeps.
    pub txg: Txg,
    /// When it was taken, in seconds since 1970.
    pub time_s: u64,
}

/// The record of a top-level vdev's last rebuild; none where there was none, or it cannot be read.
pub(crate) async fn rebuild_of(mos: &Objset, top: &VdevConfig) -> Option<RebuildPhys> {
    if top.top_zap == ObjectId(0) {
        return None;
    }
    let zap = Zap::open(mos.object(top.top_zap).await.ok()?).await.ok()?;
    let words: Vec<u64> = zap.lookup(RebuildPhys::ENTRY.as_bytes()).await.ok()??.integers().collect();
    RebuildPhys::from_words(&words).ok().filter(|phys| phys.state != RebuildState::NONE)
}

impl View {
    async fn entry(&self, name: &str) -> Result<Option<Object>, SpaError> {
        self.directory_object(name).await
    }

    fn checked<T>(&self, result: Result<T, DmuError>) -> Result<T, SpaError> {
        result.map_err(|error| self.error(error))
    }

    /// The nvlist in the object that an entry of the MOS's directory names.
    #[boxed]
    pub(crate) async fn packed(&self, name: &str) -> Result<Option<NvList>, SpaError> {
        match self.entry(name).await? {
            Some(dnode) => Ok(Some(self.checked(packed_list(&dnode).await)?)),
            None => Ok(None),
        }
    }

    /// The hot spares. None where their list cannot be read: no block of the pool is on them ([`Self::auxiliary_faults`]).
    #[boxed]
    pub async fn spares(&self) -> Result<Vec<VdevConfig>, SpaError> {
        self.auxiliary(pool_directory::SPARES).await
    }

    /// The use of a hot spare that this pool has not taken.
    #[boxed]
    pub async fn spare_use(&self, spare: &VdevConfig) -> SpareUse {
        let found = self.found().auxiliaries.get(&spare.guid).map(|found| found.disk.device().path().to_owned());
        let recorded = spare.path.as_deref().map(PathBuf::from);
        for path in recorded.into_iter().chain(found) {
            match spare_use(self.dmu().handle(), &path, spare.guid, self.guid()).await {
                SpareUse::Gone => {}
                known => return known,
            }
        }
        SpareUse::Gone
    }

    /// The cache devices; none where their list cannot be read.
    #[boxed]
    pub async fn cache_devices(&self) -> Result<Vec<VdevConfig>, SpaError> {
        self.auxiliary(pool_directory::L2CACHE).await
    }

    /// The guids of spares and cache devices.
    #[boxed]
    pub async fn auxiliary_guids(&self) -> Result<BTreeSet<Guid>, SpaError> {
        let (spares, caches) = (self.spares().await?, self.cache_devices().await?);
        Ok(spares.iter().chain(&caches).map(|device| device.guid).collect())
    }

    /// The lists of spares and cache devices that cannot be read, each with the reason.
    #[boxed]
    pub(crate) async fn auxiliary_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, what) in [(pool_directory::SPARES, "hot spares"), (pool_directory::L2CACHE, "cache devices")] {
            if let Err(error) = self.packed(name).await {
                faults.push(format!("the pool's list of {what} cannot be read, and none is used: {error}"));
            }
        }
        faults
    }

    /// Devices listed beside the tree: the object's nvlist has them under the entry's own name.
    async fn auxiliary(&self, name: &str) -> Result<Vec<VdevConfig>, SpaError> {
        // As in OpenZFS a pool is not refused for it.
        let Ok(Some(list)) = self.packed(name).await else { return Ok(Vec::new()) };
        let lists = list.lists(name).unwrap_or_default();
        Ok(lists.iter().filter_map(|list| VdevConfig::parse(list).ok()).collect())
    }

    /// The last scrub or resilver, if there was one.
    #[boxed]
    pub async fn scan(&self) -> Result<Option<ScanPhys>, SpaError> {
        let value = self.checked(self.directory().lookup(pool_directory::SCAN.as_bytes()).await)?;
        let Some(value) = value else { return Ok(None) };
        let words: Vec<u64> = value.integers().collect();
        let scan = ScanPhys::from_words(&words);
        scan.map(Some).map_err(|error| self.error(error))
    }

    /// The last sequential rebuilds of top-level vdevs, where there were some.
    #[boxed]
    pub async fn rebuilds(&self) -> Vec<(&VdevConfig, RebuildPhys)> {
        let mut found = Vec::new();
        for top in &self.vdevs().children {
            found.extend(rebuild_of(self.mos(), top).await.map(|phys| (top, phys)));
        }
        found
    }

    /// The last scrub of errors, if there was one.
    #[boxed]
    pub async fn error_scrub(&self) -> Result<Option<ErrorScrubPhys>, SpaError> {
        let value = self.checked(self.directory().lookup(pool_directory::ERROR_SCRUB.as_bytes()).await)?;
        let Some(value) = value else { return Ok(None) };
        let words: Vec<u64> = value.integers().collect();
        let scrub = ErrorScrubPhys::from_words(&words).map_err(|error| self.error(error))?;
        Ok(Some(scrub).filter(|scrub| scrub.function == ScanFunction::ERROR_SCRUB))
    }

    /// The words of the record of scrubs and resilvers, as many as there are.
    #[boxed]
    pub(crate) async fn scan_words(&self) -> Result<Vec<u64>, SpaError> {
        let value = self.checked(self.directory().lookup(pool_directory::SCAN.as_bytes()).await)?;
        Ok(value.iter().flat_map(|value| value.integers()).collect())
    }

    /// A number in the MOS's directory.
    #[boxed]
    pub async fn directory_number(&self, name: &str) -> Result<Option<u64>, SpaError> {
        self.checked(self.directory().find_u64(name).await)
    }

    /// The checkpoint, if there is one.
    #[boxed]
    pub async fn checkpoint(&self) -> Result<Option<Checkpoint>, SpaError> {
        let value = self.checked(self.directory().lookup(pool_directory::CHECKPOINT.as_bytes()).await)?;
        let Some(value) = value else { return Ok(None) };
        // The uberblock's words: magic, version, txg, guid sum, timestamp.
        let words: Vec<u64> = value.integers().collect();
        match words[..] {
            [_, _, txg, _, time_s, ..] => Ok(Some(Checkpoint { txg: Txg(txg), time_s })),
            _ => Err(self.corrupt("its checkpoint has no uberblock")),
        }
    }

    /// True while what a discarded checkpoint has left is being freed: its feature is in use, and there is none.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn is_discarding(&self) -> Result<bool, SpaError> {
        let counts = self.feature_counts(pool_directory::FEATURES_FOR_WRITE).await?;
        let guid = crate::features::by_name("zpool_checkpoint").map_or("", |feature| feature.guid);
        Ok(counts.get(guid).is_some_and(|count| *count > 0) && self.checkpoint().await?.is_none())
    }

    /// The dedup statistics, from those kept with the tables.
    #[boxed]
    pub async fn dedup(&self) -> Result<DedupFigures, SpaError> {
        let mut figures = DedupFigures::default();
        let Some(statistics) = self.entry(pool_directory::DDT_STATISTICS).await? else { return Ok(figures) };
        let statistics = self.checked(Zap::open(statistics).await)?;
        for checksum in DDT_CHECKSUMS {
            // With fast dedup a checksum's tables are listed in a directory of their own.
            let dir = match self.entry(&pool_directory::ddt_dir(checksum)).await? {
                Some(dnode) => self.checked(Zap::open(dnode).await)?,
                None => self.directory().clone(),
            };
            let mut names = Vec::new();
            for table_type in ddt::TYPES {
                names.extend(ddt::CLASSES.map(|class| pool_directory::ddt(checksum, table_type, class)));
            }
            for name in &names {
                let Some(id) = self.checked(dir.find_u64(name).await)? else { continue };
                self.add_table(&mut figures, ObjectId(id)).await?;
                let Some(value) = self.checked(statistics.lookup(name.as_bytes()).await)? else { continue };
                let words: Vec<u64> = value.integers().collect();
                let histogram = parse_histogram(&words).map_err(|error| self.error(error))?;
                figures.histogram.resize(histogram.len().max(figures.histogram.len()), DdtStat::NOTHING);
                for (sum, stat) in figures.histogram.iter_mut().zip(&histogram) {
                    figures.entry_count = figures.entry_count.saturating_add(stat.block_count);
                    sum.add(stat);
                }
            }
            for index in 0..2 {
                if let Some(id) = self.checked(dir.find_u64(&pool_directory::ddt_log(checksum, index)).await)? {
                    self.add_table(&mut figures, ObjectId(id)).await?;
                }
            }
        }
        Ok(figures)
    }

    async fn add_table(&self, figures: &mut DedupFigures, id: ObjectId) -> Result<(), SpaError> {
        let dnode = self.checked(self.mos().object(id).await)?;
        figures.table_bytes = figures.table_bytes.saturating_add(dnode.phys().used_bytes());
        let phys = dnode.phys();
        let blocks = phys.blkptrs().iter().filter(|bp| !bp.is_hole()).map(|bp| bp.fill());
        let lsize_bytes = blocks.fold(0, u64::saturating_add).saturating_mul(dnode.block_bytes());
        figures.table_lsize_bytes = figures.table_lsize_bytes.saturating_add(lsize_bytes);
        Ok(())
    }

    /// The block cloning statistics.
    #[boxed]
    pub async fn cloning(&self) -> Result<CloneFigures, SpaError> {
        let mut figures = CloneFigures::default();
        for top in &self.vdevs().children {
            let Ok(id) = u32::try_from(top.id) else { continue };
            let Some(dnode) = self.entry(&pool_directory::brt(id)).await? else { continue };
            let phys = dnode.bonus(BrtVdevPhys::parse).map_err(|error| self.error(error))?;
            figures.used_bytes = figures.used_bytes.saturating_add(phys.used_bytes);
            figures.saved_bytes = figures.saved_bytes.saturating_add(phys.saved_bytes);
        }
        Ok(figures)
    }

    /// Bytes of a vdev as datasets count them: less what parity and padding take of a large block.
    #[must_use]
    pub fn deflated_bytes(&self, vdev: cenote_format::ids::VdevId, bytes: u64) -> u64 {
        const SECTOR_SHIFT: u32 = 9;
        let asize = self.tree().psize_to_asize(vdev, DEFLATE_PSIZE_BYTES, Txg(0)).unwrap_or(DEFLATE_PSIZE_BYTES);
        let ratio = DEFLATE_PSIZE_BYTES / (asize >> SECTOR_SHIFT).max(1);
        (bytes >> SECTOR_SHIFT).saturating_mul(ratio)
    }

    /// Bytes that the root dataset and all below may use together, what they use now included: the pool's size as
    /// datasets count it, less what is kept back so that the pool can always be written.
    #[boxed]
    pub async fn usable_bytes(&self, space: &PoolSpace) -> Result<u64, SpaError> {
        let (mut normal, mut embedded_log, mut checkpoint, mut shared) = (0_u64, 0_u64, 0_u64, 0_u64);
        for vdev in &space.vdevs {
            let maps = &vdev.maps;
            let deflated = |bytes| self.deflated_bytes(maps.vdev, bytes);
            let metaslab = deflated(1_u64.checked_shl(maps.metaslab_shift).unwrap_or(0));
            checkpoint = checkpoint.saturating_add(deflated(vdev.checkpoint.total()));
            let config = self.vdevs().children.iter().find(|top| top.id == u64::from(maps.vdev.0));
            let is_allocating = config.is_none_or(|top| !top.non_allocating && !top.removing);
            match maps.class {
                AllocationClass::Normal if is_allocating => {
                    // Draid cuts each metaslab to whole rows.
                    let size = match maps.granule_bytes {
                        0 | 1 => metaslab.saturating_mul(maps.metaslab_count()),
                        _ => (0..maps.metaslab_count())
                            .map(|index| maps.metaslab_range(index))
                            .fold(0_u64, |sum, range| sum.saturating_add(deflated(range.end - range.start))),
                    };
                    let log = if maps.metaslab_count() > EMBEDDED_LOG_METASLABS { metaslab } else { 0 };
                    normal = normal.saturating_add(size.saturating_sub(log));
                    embedded_log = embedded_log.saturating_add(log);
                }
                AllocationClass::Special | AllocationClass::Dedup => {
                    shared = shared.saturating_add(deflated(vdev.allocated.total()));
                }
                AllocationClass::Normal | AllocationClass::Log => {}
            }
        }
        let saved = self.dedup().await?.saved_bytes().saturating_add(self.cloning().await?.saved_bytes);
        let deferred = match self.entry(pool_directory::SYNC_BPOBJ).await? {
            Some(dnode) => dnode.bonus(BpobjPhys::parse).map_or(0, |phys| phys.bytes),
            None => 0,
        };
        let slop = slop_bytes(normal, embedded_log);
        let size = normal.saturating_add(shared).saturating_add(saved);
        Ok(size.saturating_sub(checkpoint).saturating_sub(deferred).saturating_sub(slop))
    }
}
