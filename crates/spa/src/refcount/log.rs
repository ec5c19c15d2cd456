//! The logs of fast dedup: what stands in them is newer than the tables, so it is put there before anything is given up.
//!
//! Of a checksum's two logs one is appended to and the other is on its way into the tables, up to its checkpoint. An entry is
//! as its last record in the former says, else as in the latter. Afterwards both are empty, which OpenZFS finds after its own
//! flush too.

use std::collections::BTreeMap;

use cenote_dmu::{Object, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::ddt::{CLASSES, DdtKey, DdtLogHeader, DdtLogRecord, DdtLogRecords};
use cenote_format::ids::{BlockId, ObjectId, Txg};

use crate::SpaError;
use crate::refcount::known::{Entry, Tables};
use crate::sync::rooms::InTxg;

/// The only version.
const VERSION: u8 = 1;
/// Entries of the logs of a checksum at most: they are all in memory for a moment, in about 200 bytes each.
const ENTRIES_MAX: usize = 1 << 20;
/// Flags that stand in a header's `info`, above the version.
const FLAG_CHECKPOINT: u64 = 2 << 8;

impl InTxg<'_> {
    /// Puts all that the logs have into the tables, and empties them.
    pub(super) async fn flush_logs(
        &mut self,
        txg: Txg,
        tables: &mut Tables,
        freed: &mut Vec<Blkptr>,
    ) -> Result<(), SpaError> {
        let mut logs = Vec::new();
        for object in self.logs(tables).await? {
            let header = DdtLogHeader::parse(&object.phys().bonus, cenote_zio::ORDER)?;
            if header.version() != VERSION {
                return SpaError::unwritable(format!("a dedup log of version {}", header.version()));
            }
            if header.length_bytes > 0 {
                logs.push((object, header));
            }
        }
        // The older one first: what the newer one has stands over it.
        logs.sort_by_key(|(_, header)| !header.is_flushing());
        let mut latest = BTreeMap::new();
        for (object, header) in &logs {
            self.read_log(object, header, &mut latest).await?;
        }
        for record in latest.into_values() {
            let class = Some(usize::from(record.class)).filter(|class| *class < CLASSES.len());
            let entry = Entry { key: record.key, phys: record.phys, class };
            self.put(txg, tables, entry, freed).await?;
        }
        for (object, mut header) in logs {
            object.truncate(txg);
            header.info &= !FLAG_CHECKPOINT;
            header.length_bytes = 0;
            header.checkpoint = DdtKey::default();
            object.set_bonus(txg, &header.emit(cenote_zio::ORDER))?;
        }
        Ok(())
    }

    async fn read_log(
        &self,
        object: &Object,
        header: &DdtLogHeader,
        latest: &mut BTreeMap<DdtKey, DdtLogRecord>,
    ) -> Result<(), SpaError> {
        let checkpoint = header.checkpoint();
        let blocks = header.length_bytes.div_ceil(object.block_bytes().max(1));
        for block in 0..blocks {
            // A log that is longer than its object is not one that anybody wrote.
            let bytes = object.block(BlockId(block)).await?;
            let (bytes, order) = bytes.ok_or_else(|| SpaError::contradiction("a dedup log has a hole"))?;
            for record in DdtLogRecords::new(&bytes, order)? {
                let record = record?;
                if checkpoint.is_none_or(|flushed| record.key > flushed) {
                    latest.insert(record.key, record);
                }
            }
            if latest.len() > ENTRIES_MAX {
                let what = "freeing deduplicated blocks while the dedup log has more than a million entries; import the pool with \
                            OpenZFS and let it flush them first";
                return SpaError::unwritable(what);
            }
        }
        Ok(())
    }

    async fn logs(&self, tables: &Tables) -> Result<Vec<Object>, SpaError> {
        let mut listing = Zap::open(tables.directory.clone()).await?;
        let mut logs = Vec::new();
        for index in 0..2 {
            if let Some(log) = self.number_in(&mut listing, &tables.log_name(index)).await? {
                logs.push(self.mos.objset.object(ObjectId(log)).await?);
            }
        }
        Ok(logs)
    }

    /// Does away with the logs, which are empty.
    pub(super) async fn free_logs(&self, txg: Txg, tables: &Tables) -> Result<(), SpaError> {
        for log in self.logs(tables).await? {
            log.free(txg);
        }
        for index in 0..2 {
            Zap::put_entry(&tables.directory, txg, &tables.log_name(index), None).await?;
        }
        Ok(())
    }
}
