//! Where a walk begins: the objsets, and what is freed but not yet returned.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::{DmuError, Dnode};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::{self, BpobjPhys};
use cenote_format::bptree::{BptreeEntry, BptreePhys};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DslDatasetPhys, pool_directory};
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::objset::ObjsetPhys;
use cenote_format::zil::{ChainLayout, LogBlock, Tx, ZilHeader};
use cenote_spa::Pool;
use cenote_zio::{Bookmark, ReadContext};

use crate::visit::{Item, Origin};

/// Bytes of a list of pointers read at a time.
const CHUNK_BYTES: u64 = 128 << 10;
/// Lists below one list at most; the real depth is small.
const LISTS_MAX: usize = 1 << 20;
/// Blocks of one intent log at most: a chain that long took more than a txg to write.
const LOG_BLOCKS_MAX: usize = 1 << 20;

/// An objset to walk.
pub(crate) struct Root {
    pub(crate) item: Item,
    /// Whether it has blocks of its own.
    pub(crate) has_blocks: bool,
    /// A head's intent log is in use; what a snapshot's header says of one is history.
    pub(crate) has_log: bool,
}

/// The objsets to walk: the MOS first, then every dataset that the MOS has as an object.
pub(crate) async fn objsets(pool: &Pool, problems: &mut Vec<String>) -> Vec<Root> {
    let mos = pool.mos();
    let mut roots = vec![Root { item: root(*mos.root(), ObjsetId(0), Txg(0), None), has_blocks: true, has_log: false }];
    let mut from = ObjectId(0);
    loop {
        let batch = match mos.next_objects(from).await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                problems.push(format!("looking for datasets: {error}"));
                break;
            }
        };
        from = batch.next;
        for (object, dnode) in batch.objects {
            let Ok(dnode) = dnode else { continue }; // reported by the walk of the MOS
            if dnode.phys().bonus_type != DmuType::DSL_DATASET {
                continue;
            }
            match DslDatasetPhys::parse(dnode.bonus(), dnode.byte_order()) {
                Ok(phys) if phys.bp.is_hole() => {}
                Ok(phys) => {
                    let key = pool.dsl().loaded_key_of_dir(phys.dir).await.ok().flatten();
                    let item = root(phys.bp, ObjsetId(object.0), phys.prev_snapshot_txg, key);
                    // Where nothing was written since the snapshot all blocks, the root included, are the snapshot's.
                    let has_blocks = phys.bp.birth() > phys.prev_snapshot_txg;
                    roots.push(Root { item, has_blocks, has_log: !phys.is_snapshot() });
                }
                Err(error) => problems.push(format!("dataset object {object}: {error}")),
            }
        }
    }
    roots
}

fn root(bp: Blkptr, objset: ObjsetId, min_txg: Txg, key: Option<Arc<cenote_codec::crypt::DatasetKey>>) -> Item {
    Item { bp, bookmark: Bookmark::objset(objset), origin: Arc::new(Origin { objset, key, min_txg }) }
}

/// The log blocks of a head's intent log that are part of the pool's state, and the data blocks that claimed records
/// point to. A chain simply ends where the next block is not there.
pub(crate) async fn intent_log(pool: &Pool, item: &Item) -> Vec<Blkptr> {
    let mut found = Vec::new();
    let context = ReadContext { bookmark: item.bookmark, key: item.origin.key.as_deref() };
    let Ok(block) = pool.dmu().read(&item.bp, context).await else { return found };
    let Ok(phys) = ObjsetPhys::parse(&block, item.bp.byte_order()) else { return found };
    let header = phys.zil_header;
    let is_claimed = header.claim_txg.0 != 0;
    let last_block = if is_claimed { header.claim_block_seq } else { u64::MAX };
    let last_record = if is_claimed && header.flags & ZilHeader::CLAIM_RECORD_SEQ_VALID != 0 {
        header.claim_record_seq
    } else {
        u64::MAX
    };
    let mut pointer = header.log;
    let mut record_seq = 0;
    'chain: while !pointer.is_hole() && found.len() < LOG_BLOCKS_MAX {
        let [.., sequence] = pointer.checksum_words();
        let is_stable = is_claimed || pointer.birth() <= pool.txg();
        if sequence > last_block || !is_stable {
            break;
        }
        found.push(pointer);
        if sequence == last_block && record_seq == last_record {
            break;
        }
        let Some(bytes) = pool.dmu().zio().read_speculative(&pointer).await else { break };
        let Some(layout) = pointer.checksum().and_then(ChainLayout::of) else { break };
        let Ok(log) = LogBlock::parse(&bytes, layout, pointer.byte_order()) else { break };
        for record in log.records() {
            let Ok(record) = record else { break };
            if record.sequence > last_record {
                break 'chain;
            }
            record_seq = record.sequence;
            if let Tx::Write(write) = &record.tx
                && is_claimed
                && !write.pointer.is_hole()
                && write.pointer.birth() >= header.claim_txg
            {
                found.push(write.pointer);
            }
        }
        if !log.continues(&pointer) {
            break;
        }
        pointer = log.chain.next;
    }
    found
}

/// Pointers to blocks that are freed and not yet returned to the space maps, in batches: deferred frees, the free list.
pub(crate) async fn freed(pool: &Pool, problems: &mut Vec<String>, mut visit: impl AsyncFnMut(Vec<Blkptr>)) {
    for name in [pool_directory::SYNC_BPOBJ, pool_directory::FREE_BPOBJ] {
        let list = match pool.directory_object(name).await {
            Ok(Some(list)) => list,
            Ok(None) => continue,
            Err(error) => {
                problems.push(format!("{name}: {error}"));
                continue;
            }
        };
        if let Err(error) = list_of_pointers(pool, list, &mut visit).await {
            problems.push(format!("{name}: {error}"));
        }
    }
}

async fn list_of_pointers(pool: &Pool, list: Dnode, visit: &mut impl AsyncFnMut(Vec<Blkptr>)) -> Result<(), DmuError> {
    let mut pending = vec![list];
    let mut seen = BTreeSet::new();
    while let Some(list) = pending.pop() {
        if !seen.insert(list.id()) || seen.len() > LISTS_MAX {
            continue;
        }
        let order = list.byte_order();
        let phys = BpobjPhys::parse(list.bonus(), order).map_err(|error| list.error(error))?;
        let size = phys.blkptr_count.saturating_mul(Blkptr::SIZE as u64);
        let stored = (list.last_block().0 + 1).saturating_mul(list.data_block_size_bytes());
        let mut at = 0;
        while at < size.min(stored) {
            let len = CHUNK_BYTES.min(size - at);
            let bytes = list.read(at, len as usize).await?;
            visit(bpobj::blkptrs(&bytes, order).collect()).await;
            at += len;
        }
        let Some((object, count)) = phys.children.filter(|(_, count)| *count > 0) else { continue };
        let array = pool.mos().object(object).await?;
        let size = count.min(LISTS_MAX as u64) * 8;
        let bytes = array.read(0, size as usize).await?;
        for child in bpobj::children(&bytes, array.byte_order()) {
            pending.push(pool.mos().object(child).await?);
        }
    }
    Ok(())
}

/// The trees of destroyed datasets whose blocks are still being freed.
pub(crate) async fn destroyed(pool: &Pool, problems: &mut Vec<String>) -> Vec<Item> {
    let mut roots = Vec::new();
    let tree = match pool.directory_object(pool_directory::BPTREE).await {
        Ok(Some(tree)) => tree,
        Ok(None) => return roots,
        Err(error) => {
            problems.push(format!("destroyed datasets: {error}"));
            return roots;
        }
    };
    let order = tree.byte_order();
    let Ok(phys) = BptreePhys::parse(tree.bonus(), order) else {
        problems.push("destroyed datasets: their list has no header".into());
        return roots;
    };
    for index in phys.begin..phys.end.min(phys.begin.saturating_add(LISTS_MAX as u64)) {
        let at = index.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
        let entry = match tree.read(at, BptreeEntry::SIZE_BYTES).await {
            Ok(bytes) => BptreeEntry::parse(&bytes, order).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match entry {
            Ok(entry) if entry.bookmark != Default::default() => problems.push(format!(
                "not supported yet: a destroy that is part-way (entry {index}); its space is reported as leaked"
            )),
            Ok(entry) => roots.push(root(entry.bp, ObjsetId(u64::MAX), entry.birth_txg, None)),
            Err(error) => problems.push(format!("destroyed datasets: {error}")),
        }
    }
    roots
}

/// A bookmark for blocks that belong to no object.
pub(crate) fn loose(level: i8) -> Bookmark {
    Bookmark { objset: ObjsetId(u64::MAX), object: ObjectId(0), level, block: BlockId(0) }
}
