//! Where a walk begins: the objsets and their intent logs.

use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::objset::ObjsetPhys;
use cenote_spa::View;
use cenote_vdev::queue::QueueClass;
use cenote_zil::Chain;
use cenote_zio::{Bookmark, ReadContext};

use crate::resume::Resume;
use crate::visit::{Item, Origin};

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
pub(crate) async fn objsets(pool: &View, problems: &mut Vec<String>) -> Vec<Root> {
    let mos = pool.mos();
    let mut roots =
        vec![Root { item: root(mos.root(), ObjsetId(0), Txg(0), None, None), has_blocks: true, has_log: false }];
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
            match dnode.bonus(DslDatasetPhys::parse) {
                Ok(phys) if phys.bp.is_hole() => {}
                Ok(phys) => {
                    let key = pool.dsl().loaded_key_of_dir(phys.dir).await.ok().flatten();
                    let item = root(phys.bp, ObjsetId(object.0), phys.prev_snapshot_txg, key, None);
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

/// The root of an objset.
pub(crate) fn root(
    bp: Blkptr,
    objset: ObjsetId,
    min_txg: Txg,
    key: Option<Arc<cenote_codec::crypt::DatasetKey>>,
    resume: Option<Resume>,
) -> Item {
    Item { bp, bookmark: Bookmark::objset(objset), origin: Arc::new(Origin { objset, key, min_txg, resume }) }
}

/// The log blocks of a head's intent log that are part of the pool's state, and the data blocks that claimed records
/// point to. A chain simply ends where the next block is not there.
pub(crate) async fn intent_log(pool: &View, item: &Item) -> Vec<Blkptr> {
    let mut found = Vec::new();
    let context = ReadContext::new(item.bookmark, item.origin.key.as_deref()).of_class(QueueClass::Scrub);
    let Ok(block) = pool.dmu().read(&item.bp, context).await else { return found };
    let Ok(phys) = ObjsetPhys::parse(&block, item.bp.byte_order()) else { return found };
    let header = phys.zil_header;
    let is_claimed = header.claim_txg.0 != 0;
    let mut chain = Chain::new(pool.dmu().zio(), header);
    while let Some(link) = chain.next().await {
        if found.len() >= LOG_BLOCKS_MAX || !(is_claimed || link.pointer.birth() <= pool.txg()) {
            break;
        }
        found.extend(chain.new_blocks(&link));
    }
    found
}

/// A bookmark for blocks that belong to no object.
pub(crate) fn loose(level: i8) -> Bookmark {
    Bookmark { objset: ObjsetId(u64::MAX), object: ObjectId(0), level, block: BlockId(0) }
}
