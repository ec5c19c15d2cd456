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
    /// Data is gathered, to be read in the order of places.
    pub(crate) gathers: bool,
}

impl ScanReader for ScanReads {
    fn wants(&self, view: &View, item: &Item) -> bool {
        !self.is_gathered(item) && self.wants_block(view, &item.bp)
    }

    #[boxed]
    async fn visit(&self, view: &View, item: &Item) -> Visited {
        if self.is_gathered(item) && self.wants_block(view, &item.bp) {
            return Visited::unread(None);
        }
        let context = ReadContext::new(item.bookmark, item.origin.key.as_deref()).of_class(QueueClass::Scrub);
        let mut visited = self.visit_block(view, &item.bp, context).await;
        let is_tree = is_tree(item);
        if visited.error.is_none() && (is_tree || is_read_again(&item.bookmark)) {
            self.visit_pointers(view, item, context, &mut visited).await;
        }
        let birth = item.bp.physical_birth();
        if is_tree && visited.error.is_some() && birth > self.min_txg {
            // Blocks below it, of its txg and of earlier ones, were not visited.
            visited.scanned.unmended.absorb(&Dtl::of(self.min_txg.0 + 1..birth.0.saturating_add(1)));
        }
        visited
    }
}

impl ScanReads {
    async fn visit_pointers(&self, view: &View, item: &Item, context: ReadContext<'_>, visited: &mut Visited) {
        // The block is read once more for its pointers, mostly from memory: the copies were compared as they are on disk.
        match view.dmu().zio().read_physical(&item.bp, context).await {
            Ok(physical) if is_tree(item) => pointers(view, item, &physical, visited),
            Ok(_) => {}
            Err(error) => visited.error = Some(error.into()),
        }
    }

    /// Whether a block is of those that are gathered, if the scan wants them: data, in one piece.
    fn is_gathered(&self, item: &Item) -> bool {
        self.gathers && !is_tree(item) && !is_read_again(&item.bookmark) && !item.bp.is_gang() && !item.bp.is_embedded()
    }

    /// Whether a block that was visited is still to be read.
    pub(super) fn is_to_be_read(&self, view: &View, item: &Item, visited: &Visited) -> bool {
        visited.error.is_none() && self.is_gathered(item) && self.wants_block(view, &item.bp)
    }

    fn wants_block(&self, view: &View, bp: &Blkptr) -> bool {
        let birth = bp.physical_birth();
        // A block of a removed vdev was copied to where it is in a txg that the pointer does not name.
        let is_moved = is_moved(view, bp);
        if (birth <= self.min_txg && !is_moved) || birth > self.max_txg {
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
        let scrubbed = match self.function == ScanFunction::RESILVER {
            true => zio.resilver_block(bp, context).await,
            false => zio.scrub_block(bp, context).await,
        };
        match scrubbed {
            Ok(scrubbed) => {
                report.processed_bytes = scrubbed.mended.healed_bytes();
                visited.is_refused = scrubbed.is_refused();
                if !scrubbed.mended.left.is_empty() && is_moved(view, bp) {
                    report.unmended.absorb(&Dtl::of(0..self.max_txg.0.saturating_add(1)));
                }
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

/// Whether a copy of a block is on a removed vdev.
fn is_moved(view: &View, bp: &Blkptr) -> bool {
    bp.dvas().any(|dva| view.tree().is_removed(dva.vdev))
}
