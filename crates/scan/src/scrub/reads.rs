//! One visit of a scan: reads all copies of a block, and has bad ones written again.

use cenote_format::blkptr::Blkptr;
use cenote_format::dsl::ScanFunction;
use cenote_format::ids::Txg;
use cenote_spa::View;
use cenote_taskq::boxed;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::queue::QueueClass;
use cenote_zio::ReadContext;

use crate::visit::{Item, ScanReader, Visited, is_read_again, is_tree, pointers};

/// The range of blocks that a scan reads.
pub(crate) struct ScanReads {
    pub(crate) function: ScanFunction,
    /// Blocks born after this txg,
    pub(crate) min_txg: Txg,
    /// up to this one.
    pub(crate) max_txg: Txg,
}

impl ScanReader for ScanReads {
    fn wants(&self, view: &View, item: &Item) -> bool {
        self.wants_block(view, &item.bp)
    }

    #[boxed]
    async fn visit(&self, view: &View, item: &Item) -> Visited {
        let context = ReadContext::new(item.bookmark, item.origin.key.as_deref()).of_class(QueueClass::Scrub);
        let mut visited = self.visit_block(view, &item.bp, context).await;
        let is_tree = is_tree(item);
        if !is_tree && !is_read_again(&item.bookmark) || visited.error.is_some() {
            return visited;
        }
        // The block is read once more for its pointers, mostly from memory: the copies were compared as they are on disk.
        match view.dmu().zio().read_physical(&item.bp, context).await {
            Ok(physical) if is_tree => pointers(view, item, &physical, &mut visited),
            Ok(_) => {}
            Err(error) => visited.error = Some(error.into()),
        }
        visited
    }
}

impl ScanReads {
    fn wants_block(&self, view: &View, bp: &Blkptr) -> bool {
        let birth = bp.physical_birth();
        if birth <= self.min_txg || birth > self.max_txg {
            return false;
        }
        // The pieces of a gang lie elsewhere than its header.
        self.function != ScanFunction::RESILVER
            || bp.is_gang()
            || bp.dvas().any(|dva| view.tree().misses(dva.vdev, birth))
    }

    /// Visits a block.
    pub(super) async fn visit_block(&self, view: &View, bp: &Blkptr, context: ReadContext<'_>) -> Visited {
        let mut visited = Visited::unread(None);
        let report = &mut visited.scanned;
        report.examined_bytes = bp.asize_bytes();
        if !self.wants_block(view, bp) {
            report.skipped_bytes = bp.asize_bytes();
            return visited;
        }
        let zio = view.dmu().zio();
        let txgs = Dtl::of(bp.physical_birth().0..bp.physical_birth().0.saturating_add(1));
        match zio.scrub_block(bp, context).await {
            Ok(scrubbed) => {
                report.processed_bytes = scrubbed.mended.healed_bytes();
                for fault in &scrubbed.mended.left {
                    report.unrepaired.entry(fault.guid).or_default().absorb(&txgs);
                }
                // Where nobody could say which leaf is bad, all leaves that missed the txg keep it in their logs.
                if scrubbed.unmended.is_some() && scrubbed.mended.left.is_empty() {
                    report.unmended.absorb(&txgs);
                }
            }
            Err(error) => {
                // No leaf has made up for it: one that is to go may be the last that some day gives the block.
                report.unmended.absorb(&txgs);
                visited.error = Some(error.into());
            }
        }
        visited
    }
}
