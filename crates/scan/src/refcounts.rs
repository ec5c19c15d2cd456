//! Blocks that may be referred to more than once: the dedup table and the block reference table.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::brt::{BrtVdevPhys, reference_count};
use cenote_format::ddt::{DdtKey, DdtLogHeader, DdtLogRecords, DdtPacked, DdtPhys};
use cenote_format::dsl::pool_directory;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{BlockId, ObjectId, VdevId};
use cenote_format::zap::ZapKeyBuf;
use cenote_spa::View;

use crate::error::TableError;

/// Identity of a block by its first copy.
type Place = (VdevId, u64);

/// One set of copies in the dedup table.
struct Deduped {
    references: u64,
    is_unreferenced: bool,
    /// All copies, which may be more than an old pointer names.
    dvas: Vec<Dva>,
}

/// How often each shared block may be referred to.
#[derive(Default)]
pub(crate) struct SharedBlocks {
    /// Deduplicated blocks.
    deduped: BTreeMap<Place, Deduped>,
    /// Cloned blocks: references beyond the first.
    cloned: BTreeMap<Place, u64>,
    /// Tables that could not be read, in words.
    pub(crate) problems: Vec<String>,
}

/// The kind of a reference to a block, given those before.
pub(crate) enum Reference {
    /// The first: it is to be claimed; with more copies than the pointer names, if the dedup table has more.
    First(Vec<Dva>),
    /// A further one that the dedup table explains.
    Deduped,
    /// A further one that the block reference table explains.
    Cloned,
}

impl SharedBlocks {
    pub(crate) async fn load(pool: &View) -> Self {
        let mut shared = Self::default();
        let vdevs = pool.vdevs().children.len();
        for vdev in 0..vdevs {
            let vdev = VdevId(vdev as u32);
            if let Err(problem) = shared.load_brt(pool, vdev).await {
                shared.problems.push(format!("block reference table of vdev {vdev}: {problem}"));
            }
        }
        for checksum in Checksum::ALL {
            for (table, class) in [("zap", "ditto"), ("zap", "duplicate"), ("zap", "unique")] {
                let name = pool_directory::ddt(checksum.name(), table, class);
                if let Err(problem) = shared.load_ddt(pool, &name, checksum.name()).await {
                    shared.problems.push(format!("dedup table {name}: {problem}"));
                }
            }
            if let Err(problem) = shared.load_ddt_logs(pool, checksum.name()).await {
                shared.problems.push(format!("dedup logs of {}: {problem}", checksum.name()));
            }
        }
        shared
    }

    async fn object_of(pool: &View, name: &str) -> Result<Option<cenote_dmu::Object>, TableError> {
        Ok(pool.directory_object(name).await?)
    }

    async fn load_brt(&mut self, pool: &View, vdev: VdevId) -> Result<(), TableError> {
        let Some(dnode) = Self::object_of(pool, &pool_directory::brt(vdev.0)).await? else { return Ok(()) };
        let phys = dnode.bonus(BrtVdevPhys::parse)?;
        let endian = phys.endian()?;
        if phys.entries.0 == 0 {
            return Ok(());
        }
        let table = phys.entries;
        let zap = Zap::open(pool.mos().object(table).await?).await?;
        let mut listing = zap.listing();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                let ZapKeyBuf::Words(words) = &entry.key else { return Err(TableError::KeyNotWords { table }) };
                let offset = words.first().copied().unwrap_or(0);
                let count = reference_count(&entry.value, endian)?;
                self.cloned.insert((vdev, offset), count);
            }
        }
        Ok(())
    }

    /// The object that holds a table: in the pool's directory, or (fast dedup) in a directory of the checksum's own.
    async fn ddt_object(pool: &View, name: &str, checksum: &str) -> Result<Option<cenote_dmu::Object>, TableError> {
        if let Some(dnode) = Self::object_of(pool, name).await? {
            return Ok(Some(dnode));
        }
        let Some(dir) = Self::object_of(pool, &pool_directory::ddt_dir(checksum)).await? else { return Ok(None) };
        let dir = Zap::open(dir).await?;
        let Some(id) = dir.find_u64(name).await? else { return Ok(None) };
        Ok(Some(pool.mos().object(ObjectId(id)).await?))
    }

    async fn load_ddt(&mut self, pool: &View, name: &str, checksum: &str) -> Result<(), TableError> {
        let Some(dnode) = Self::ddt_object(pool, name, checksum).await? else { return Ok(()) };
        let table = dnode.id();
        let zap = Zap::open(dnode).await?;
        let mut listing = zap.listing();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                let packed = entry.value.as_bytes().ok_or(TableError::ValueNotBytes { table })?;
                let packed = DdtPacked::parse(packed)?;
                let ZapKeyBuf::Words(words) = &entry.key else { return Err(TableError::KeyNotWords { table }) };
                let key = DdtKey::from_words(words)?;
                self.insert(&key, &unpack(&packed)?);
            }
        }
        Ok(())
    }

    /// The logs hold the newest state of entries: each in the order in which they were changed, and the one that is being
    /// flushed, from its checkpoint on, older than the other.
    async fn load_ddt_logs(&mut self, pool: &View, checksum: &str) -> Result<(), TableError> {
        let mut logs = Vec::new();
        for index in 0..2 {
            let name = pool_directory::ddt_log(checksum, index);
            let Some(dnode) = Self::ddt_object(pool, &name, checksum).await? else { continue };
            let header = dnode.bonus(DdtLogHeader::parse)?;
            logs.push((dnode, header));
        }
        logs.sort_by_key(|(_, header)| !header.is_flushing());
        let mut latest = BTreeMap::new();
        for (dnode, header) in logs {
            Self::read_ddt_log(&dnode, &header, &mut latest).await?;
        }
        for (key, phys) in &latest {
            self.insert(key, phys);
        }
        Ok(())
    }

    async fn read_ddt_log(
        dnode: &cenote_dmu::Object,
        header: &DdtLogHeader,
        latest: &mut BTreeMap<DdtKey, DdtPhys>,
    ) -> Result<(), TableError> {
        let checkpoint = header.checkpoint();
        // From data to data: a hostile log can be holes for as long as there are block numbers.
        let mut from = BlockId(0);
        while let Some(block) = dnode.next_data_block(from).await? {
            if let Some((bytes, order)) = dnode.block(block).await? {
                for record in DdtLogRecords::new(&bytes, order)? {
                    let record = record?;
                    if checkpoint.is_none_or(|flushed| record.key > flushed) {
                        latest.insert(record.key, record.phys);
                    }
                }
            }
            let Some(next) = block.0.checked_add(1) else { break };
            from = BlockId(next);
        }
        Ok(())
    }

    fn insert(&mut self, key: &DdtKey, phys: &DdtPhys) {
        let sets = match phys {
            DdtPhys::Traditional(sets) => &sets[..],
            DdtPhys::Flat { copies, .. } => std::slice::from_ref(copies),
        };
        for copies in sets {
            let dvas: Vec<Dva> = copies.dvas(key).collect();
            if let Some(place) = dvas.first().map(|first| (first.vdev, first.offset_bytes)) {
                let references = copies.reference_count;
                let is_unreferenced = references == 0;
                assert!(!dvas.is_empty(), "an entry has its block's place");
                let entry = Deduped { references, is_unreferenced, dvas };
                self.deduped.insert(place, entry);
            }
        }
    }

    /// Copies of deduplicated blocks that nobody refers to any more, and that are freed when the log is flushed.
    pub(crate) fn unreferenced(&self) -> Vec<Dva> {
        let entries = self.deduped.values().filter(|entry| entry.is_unreferenced);
        debug_assert!(entries.clone().all(|entry| !entry.dvas.is_empty()), "an entry has its block's place");
        entries.flat_map(|entry| entry.dvas.iter().copied()).collect()
    }

    /// Blocks for which the tables count more references than were found, in words: such blocks would never become free.
    pub(crate) fn unexplained(&self) -> impl Iterator<Item = String> {
        let words = |table: &'static str| {
            move |((vdev, offset), left): (&Place, u64)| {
                format!("{table} table: vdev {vdev}, offset {offset:#x}: {left} references more than were found")
            }
        };
        let deduped = self.deduped.iter().map(|(place, entry)| (place, entry.references));
        let cloned = self.cloned.iter().map(|(place, left)| (place, *left));
        let cloned = cloned.filter(|(_, left)| *left > 0).map(words("block reference"));
        deduped.filter(|(_, left)| *left > 0).map(words("dedup")).chain(cloned)
    }

    /// Accounts for a reference to `bp`; `is_unclaimed` says whether its first copy is.
    pub(crate) fn refer(&mut self, bp: &Blkptr, is_unclaimed: bool) -> Reference {
        let reference = self.reference(bp, is_unclaimed);
        match &reference {
            Reference::First(dvas) => {
                assert!(dvas.len() >= bp.dvas().count(), "no copy of a pointer is left out");
            }
            Reference::Deduped | Reference::Cloned => assert!(!is_unclaimed, "the first reference claims its block"),
        }
        reference
    }

    fn reference(&mut self, bp: &Blkptr, is_unclaimed: bool) -> Reference {
        let own = || bp.dvas().collect();
        let Some(first) = bp.dvas().next() else { return Reference::First(own()) };
        let place = (first.vdev, first.offset_bytes);
        if bp.dedup()
            && let Some(entry) = self.deduped.get_mut(&place)
        {
            let dvas = if entry.dvas.len() > bp.dvas().count() { entry.dvas.clone() } else { own() };
            if is_unclaimed {
                entry.references = entry.references.saturating_sub(1);
                return Reference::First(dvas);
            }
            if entry.references > 0 {
                entry.references -= 1;
                return Reference::Deduped;
            }
        }
        if !is_unclaimed && let Some(left) = self.cloned.get_mut(&place).filter(|left| **left > 0) {
            *left -= 1;
            return Reference::Cloned;
        }
        Reference::First(own())
    }
}

/// The value of a dedup table's entry, unpacked: both forms are tried by their size.
fn unpack(packed: &DdtPacked<'_>) -> Result<DdtPhys, TableError> {
    let number = packed.compress_number;
    let compress = Compress::from_number(number).ok_or(TableError::UnknownCompression { number })?;
    for size in [DdtPhys::TRADITIONAL_SIZE_BYTES, DdtPhys::FLAT_SIZE_BYTES] {
        if compress == Compress::Off {
            if packed.payload.len() == size {
                return Ok(DdtPhys::parse(packed.payload, packed.endian)?);
            }
            continue;
        }
        let mut bytes = vec![0; size];
        if cenote_codec::compress::decompress(compress, packed.payload, &mut bytes).is_ok() {
            return Ok(DdtPhys::parse(&bytes, packed.endian)?);
        }
    }
    Err(TableError::UnknownForm { size_bytes: packed.payload.len() })
}
