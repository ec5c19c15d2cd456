//! The dedup tables, where deduplicated blocks are given up.
//!
//! The structures are those of `cenote_format::ddt`. For each checksum there are up to three tables by class: an entry is in
//! `duplicate` while its block is referred to more than once, in `unique` with one reference; `ditto` is from former times.
//! Beside each table stands its histogram, in the pool's statistics. With the last entry of a checksum all its objects go, and
//! with fast dedup its directory and one use of the feature.

use cenote_codec::compress::{CompressLevel, compress, decompress};
use cenote_dmu::Zap;
use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::ddt::{
    CLASSES, DdtCopies, DdtKey, DdtPacked, DdtPhys, DdtStat, directory, emit_histogram, parse_histogram,
};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::endian::Endian;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use thiserror::Error;

use crate::SpaError;
use crate::refcount::known::{Class, Entry, Tables};
use crate::sync::rooms::InTxg;

const FEATURE: &str = "fast_dedup";
/// The only version of a checksum's directory.
const DIRECTORY_VERSION: u64 = 1;
/// Flags of a directory.
const FLAG_FLAT: u64 = 1;
const FLAG_LOG: u64 = 2;
/// Classes, as indices into [`CLASSES`].
const DUPLICATE: usize = 1;
const UNIQUE: usize = 2;
/// The traditional form's set that is for former times' extra copies.
const DITTO_SET: usize = 0;
/// Size of a new table's blocks, as a power of two (`ddt_zap_default_bs`, `ddt_zap_default_ibs`).
const BLOCK_SHIFT: u8 = 15;
const BUCKETS: usize = 64;

/// The sets of a value, each with what it is.
fn sets(phys: &mut DdtPhys) -> Vec<(&mut DdtCopies, bool)> {
    match phys {
        DdtPhys::Traditional(sets) => sets.iter_mut().enumerate().map(|(at, set)| (set, at == DITTO_SET)).collect(),
        DdtPhys::Flat { copies, .. } => vec![(copies, false)],
    }
}

/// Why a value of a table cannot be read.
#[derive(Debug, Error)]
enum DdtValueError {
    /// It consists of larger words.
    #[error("a value that is not bytes")]
    NotBytes,
    /// It is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It has the size of neither form.
    #[error("a value of neither form")]
    NeitherForm,
}

/// Reads a value as a table has it.
fn unpack(value: &ZapValue) -> Result<DdtPhys, DdtValueError> {
    let packed = DdtPacked::parse(value.as_bytes().ok_or(DdtValueError::NotBytes)?)?;
    let sizes = [DdtPhys::TRADITIONAL_SIZE_BYTES, DdtPhys::FLAT_SIZE_BYTES];
    if packed.compress_number != Compress::Zle.number() {
        return Ok(DdtPhys::parse(packed.payload, packed.endian)?);
    }
    for size in sizes {
        let mut bytes = vec![0; size];
        if decompress(Compress::Zle, packed.payload, &mut bytes).is_ok() {
            return Ok(DdtPhys::parse(&bytes, packed.endian)?);
        }
    }
    Err(DdtValueError::NeitherForm)
}

/// A value as a table has it.
fn pack(phys: &DdtPhys) -> ZapValue {
    let bytes = phys.emit(Endian::Little);
    let packed = compress(Compress::Zle, CompressLevel::INHERIT, &bytes, bytes.len());
    let (compress, payload) = match &packed {
        Some(packed) => (Compress::Zle, &packed[..]),
        None => (Compress::Off, &bytes[..]),
    };
    let packed = DdtPacked { compress_number: compress.number(), endian: Endian::Little, payload };
    let value = ZapValue::from_bytes(&packed.emit());
    debug_assert!(unpack(&value).is_ok_and(|again| again == *phys), "what is packed can be unpacked");
    value
}

impl InTxg<'_> {
    /// Takes away a reference to a deduplicated block: what is free then. Nothing if no table has the block.
    pub(super) async fn give_up_deduplicated(
        &mut self,
        txg: Txg,
        bp: &Blkptr,
    ) -> Result<Option<Vec<Blkptr>>, SpaError> {
        let Some(checksum) = bp.checksum() else { return Ok(None) };
        let mut freed = Vec::new();
        let mut tables = match self.blocks.shared.dedup.0.remove(&checksum.number()) {
            Some(tables) => tables,
            None => self.load_tables(txg, checksum, &mut freed).await?,
        };
        let result = match &mut tables {
            Some(tables) => self.give_up_in_tables(txg, tables, bp, &mut freed).await,
            None => Ok(false),
        };
        let before = self.blocks.shared.dedup.0.insert(checksum.number(), tables);
        assert!(before.is_none(), "the dedup tables of a checksum are in one place");
        if !result? {
            // Others may have come free with the log.
            if freed.is_empty() {
                return Ok(None);
            }
            let mut bp = *bp;
            bp.set_dedup(false);
            freed.push(bp);
        }
        Ok(Some(freed))
    }

    async fn give_up_in_tables(
        &mut self,
        txg: Txg,
        tables: &mut Tables,
        bp: &Blkptr,
        freed: &mut Vec<Blkptr>,
    ) -> Result<bool, SpaError> {
        let key = DdtKey::of(bp);
        let Some(mut entry) = self.find_entry(tables, &key).await? else { return Ok(false) };
        let before = self.statistics_of(tables.checksum, &key, &mut entry.phys);
        let mut is_known = false;
        for (set, _) in sets(&mut entry.phys) {
            if !is_known && set.are_of(bp) {
                let left = set.reference_count.checked_sub(1);
                set.reference_count =
                    left.ok_or_else(|| SpaError::contradiction("a dedup table has a block without references"))?;
                is_known = true;
            }
        }
        if !is_known {
            return Ok(false);
        }
        if let Some(class) = entry.class.and_then(|class| tables.classes[class].as_mut()) {
            count(&mut class.histogram, &before, DdtStat::subtract);
            self.saved_changed(-saved(&before).cast_signed());
        }
        self.put(txg, tables, entry, freed).await?;
        Ok(true)
    }

    async fn find_entry(&self, tables: &mut Tables, key: &DdtKey) -> Result<Option<Entry>, SpaError> {
        for (index, class) in tables.classes.iter_mut().enumerate() {
            let Some(class) = class else { continue };
            let found = class.entries.lookup_words(&key.words()).await?;
            if let Some(value) = found {
                let phys = unpack(&value).map_err(|error| SpaError::contradiction(format!("dedup table: {error}")))?;
                return Ok(Some(Entry { key: *key, phys, class: Some(index) }));
            }
        }
        Ok(None)
    }

    /// Puts a changed entry into the table where it belongs now, and takes it out of the one that had it. It is not counted in
    /// a histogram at this point.
    pub(super) async fn put(
        &mut self,
        txg: Txg,
        tables: &mut Tables,
        mut entry: Entry,
        freed: &mut Vec<Blkptr>,
    ) -> Result<(), SpaError> {
        let (key, checksum) = (entry.key, tables.checksum);
        let mut references = 0_u64;
        for (set, is_ditto) in sets(&mut entry.phys) {
            if set.physical_birth.0 == 0 {
                continue;
            }
            if is_ditto || set.reference_count == 0 {
                freed.push(set.blkptr(&key, checksum));
                *set = DdtCopies::default();
            }
            references = references.saturating_add(set.reference_count);
        }
        let class = if references > 1 { DUPLICATE } else { UNIQUE };
        if let Some(before) = entry.class.filter(|before| *before != class || references == 0) {
            let Some(table) = &mut tables.classes[before] else {
                return Err(SpaError::contradiction("a dedup log has an entry of a table that there is not"));
            };
            table.entries.remove_words(&key.words()).await?;
            self.trim(txg, &mut table.entries).await?;
        }
        tables.is_changed = true;
        if references == 0 {
            return Ok(());
        }
        if entry.class != Some(class)
            && let DdtPhys::Flat { class_start, .. } = &mut entry.phys
        {
            *class_start = self.time_s();
        }
        let statistics = self.statistics_of(checksum, &key, &mut entry.phys);
        self.saved_changed(saved(&statistics).cast_signed());
        if tables.classes[class].is_none() {
            tables.classes[class] = Some(self.make_class(txg, tables, class).await?);
        }
        let Some(table) = &mut tables.classes[class] else { return Ok(()) };
        count(&mut table.histogram, &statistics, DdtStat::add);
        table.entries.set_words(&key.words(), &pack(&entry.phys)).await?;
        self.trim(txg, &mut table.entries).await
    }

    /// The contribution of an entry to a histogram.
    fn statistics_of(&self, checksum: Checksum, key: &DdtKey, phys: &mut DdtPhys) -> DdtStat {
        let (lsize, psize) = (key.lsize_bytes(), key.psize_bytes());
        let mut sum = DdtStat::NOTHING;
        for (set, _) in sets(phys) {
            if set.physical_birth.0 == 0 {
                continue;
            }
            let (dsize, references) = (self.used_bytes(&set.blkptr(key, checksum)), set.reference_count);
            sum.add(&DdtStat {
                block_count: 1,
                lsize_bytes: lsize,
                psize_bytes: psize,
                dsize_bytes: dsize,
                reference_count: references,
                referenced_lsize_bytes: lsize.saturating_mul(references),
                referenced_psize_bytes: psize.saturating_mul(references),
                referenced_dsize_bytes: dsize.saturating_mul(references),
            });
        }
        sum
    }

    async fn load_tables(
        &mut self,
        txg: Txg,
        checksum: Checksum,
        freed: &mut Vec<Blkptr>,
    ) -> Result<Option<Tables>, SpaError> {
        let mut pool_directory_zap = Zap::open(self.mos.directory.clone()).await?;
        let own = self.number_in(&mut pool_directory_zap, &pool_directory::ddt_dir(checksum.name())).await?;
        let (directory, mut flags) = match own {
            Some(own) => (self.mos.objset.object(ObjectId(own)).await?, FLAG_FLAT),
            None => (self.mos.directory.clone(), 0),
        };
        let mut listing = Zap::open(directory.clone()).await?;
        if own.is_some() {
            let version = self.number_in(&mut listing, directory::VERSION).await?;
            flags = self.number_in(&mut listing, directory::FLAGS).await?.unwrap_or(0);
            if version != Some(DIRECTORY_VERSION) || flags & !(FLAG_FLAT | FLAG_LOG) != 0 {
                return SpaError::unwritable(format!("dedup tables of version {version:?} with flags {flags}"));
            }
        }
        let mut tables = Tables { has_directory: own.is_some(), ..Tables::new(checksum, directory) };
        let statistics = self.number_in(&mut pool_directory_zap, pool_directory::DDT_STATISTICS).await?;
        for class in 0..CLASSES.len() {
            let name = tables.name(class);
            let Some(object) = self.number_in(&mut listing, &name).await? else { continue };
            let mut histogram = vec![DdtStat::NOTHING; BUCKETS];
            if let Some(statistics) = statistics {
                let statistics = self.zap_at(ObjectId(statistics)).await?;
                let value = statistics.lookup(name.as_bytes()).await?;
                if let Some(value) = value {
                    let words: Vec<u64> = value.integers().collect();
                    histogram = parse_histogram(&words)?;
                }
            }
            tables.classes[class] = Some(Class { entries: self.zap_at(ObjectId(object)).await?, histogram });
        }
        if !tables.has_directory && tables.classes.iter().all(Option::is_none) {
            return Ok(None);
        }
        if flags & FLAG_LOG != 0 {
            self.flush_logs(txg, &mut tables, freed).await?;
        }
        Ok(Some(tables))
    }

    async fn make_class(&self, txg: Txg, tables: &Tables, class: usize) -> Result<Class, SpaError> {
        // Of checksums that OpenZFS trusts with dedup the first word is the hash.
        let entries = self.make_table(txg, DmuType::DDT_ZAP, BLOCK_SHIFT, tables.checksum != Checksum::Edonr)?;
        let object = ZapValue::from_u64(entries.object().id().0);
        Zap::put_entry(&tables.directory, txg, &tables.name(class), Some(&object)).await?;
        Ok(Class { entries, histogram: vec![DdtStat::NOTHING; BUCKETS] })
    }

    /// Writes the tables that have changed with their statistics, and does away with those of a checksum that has no entries
    /// any more.
    pub(super) async fn save_dedup(&mut self, txg: Txg) -> Result<(), SpaError> {
        let mut dedup = std::mem::take(&mut self.blocks.shared.dedup);
        for tables in dedup.0.values_mut() {
            if !tables.as_ref().is_some_and(|tables| tables.is_changed) {
                continue;
            }
            let Some(mut changed) = tables.take() else { continue };
            if self.save_tables(txg, &mut changed).await? {
                *tables = Some(changed);
            }
        }
        assert!(self.blocks.shared.dedup.0.is_empty(), "nothing reads dedup tables while they are written");
        debug_assert!(
            dedup.0.values().flatten().all(|tables| !tables.is_changed),
            "the dedup tables are on disk with their txg"
        );
        self.blocks.shared.dedup = dedup;
        Ok(())
    }

    /// False if the tables are gone.
    async fn save_tables(&mut self, txg: Txg, tables: &mut Tables) -> Result<bool, SpaError> {
        let mut directory = Zap::open(self.mos.directory.clone()).await?;
        let statistics = self.number_in(&mut directory, pool_directory::DDT_STATISTICS).await?;
        let statistics =
            statistics.ok_or_else(|| SpaError::contradiction("there are dedup tables without statistics"))?;
        let statistics = self.mos.objset.object(ObjectId(statistics)).await?;
        let counts = tables.classes.iter().flatten().map(|class| class.entries.entry_count());
        let count = counts.sum::<Result<u64, _>>()?;
        for index in 0..CLASSES.len() {
            let name = tables.name(index);
            if count == 0 {
                let Some(class) = tables.classes[index].take() else { continue };
                class.entries.object().free(txg);
                Zap::put_entry(&tables.directory, txg, &name, None).await?;
                Zap::put_entry(&statistics, txg, &name, None).await?;
            } else if let Some(class) = &mut tables.classes[index] {
                class.entries.flush(txg).await?;
                let value = ZapValue::from_u64s(&emit_histogram(&class.histogram));
                Zap::put_entry(&statistics, txg, &name, Some(&value)).await?;
            }
        }
        tables.is_changed = false;
        if count > 0 {
            return Ok(true);
        }
        if tables.has_directory {
            self.free_logs(txg, tables).await?;
            let name = pool_directory::ddt_dir(tables.checksum.name());
            Zap::put_entry(&self.mos.directory, txg, &name, None).await?;
            tables.directory.free(txg);
            self.mos.features.change(FEATURE, -1);
        }
        Ok(false)
    }
}

/// Enters an entry into the bucket of its references, or takes it out.
fn count(histogram: &mut [DdtStat], statistics: &DdtStat, how: impl Fn(&mut DdtStat, &DdtStat)) {
    if let Some(bucket) = statistics.reference_count.checked_ilog2()
        && let Some(bucket) = histogram.get_mut(bucket as usize)
    {
        how(bucket, statistics);
    }
}

/// Bytes that sharing an entry's blocks saves.
fn saved(statistics: &DdtStat) -> u64 {
    statistics.referenced_dsize_bytes.saturating_sub(statistics.dsize_bytes)
}
