//! Logs that are written, in the sync of a txg: chains are begun, and blocks that no crash needs any more are freed.

use std::time::Duration;

use cenote_dsl::Head;
use cenote_format::blkptr::Blkptr;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zil::ZilHeader;
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::dtl::Dtl;

use crate::SpaError;
use crate::features::by_name;
use crate::sync::Syncer;
use crate::sync::mos::Mos;

/// The sync of a txg waits no longer than this for blocks of logs.
const LANDING_TIME_MAX: Duration = Duration::from_secs(10);

/// The feature of logs with records of extended attributes.
const XATTR_RECORDS: &str = "zilsaxattr";

impl Syncer {
    /// Whether a dataset's log has blocks that its user has left, or a user: see [`crate::Pool::wait_logs_freed`].
    #[must_use]
    pub fn has_log_in_use(&self, dataset: ObjectId) -> bool {
        self.zil.logs.as_ref().is_some_and(|logs| logs.holds(dataset))
    }

    /// Before datasets are written, since their headers change.
    pub(crate) async fn sync_logs(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(logs) = self.zil.logs.clone() else { return Ok(()) };
        // A device that hangs is not waited for: if the power goes then, a block of a log may be lost space.
        let _ = self.handle.timeout(LANDING_TIME_MAX, logs.landed(txg)).await;
        for (leaf, (first, last)) in logs.take_missed(txg) {
            let txgs = Dtl::of(first.0..last.0.saturating_add(1));
            self.note_dtls(txg, 1, [(leaf, txgs)].into()).await?;
        }
        self.in_txg().free_blocks(txg, &logs.take_passed(txg)).await?;
        for head in self.mos.dsl.heads() {
            let Some((writer, retired)) = logs.retire(head.dataset, txg) else { continue };
            let header = head.objset.zil_header();
            let (mut first, mut is_ours) = (retired.first, retired.is_ours);
            // One that is to be replayed goes first.
            if retired.wants_chain && header.claim_txg == Txg(0) {
                if !is_ours {
                    // A crash has left its first block, which was allocated and never written.
                    self.in_txg().free_log(txg, &head.objset, &header).await?;
                }
                is_ours = true;
                let has_xattrs = self.mos.use_xattr_records(txg, &head).await?;
                first = logs.begin_chain(&writer, txg, has_xattrs).await.unwrap_or(Blkptr::HOLE);
            }
            self.in_txg().free_blocks(txg, &retired.free).await?;
            if is_ours && header.log != first && (header.log.is_hole() || !mutant::is(Mutant::LogHeaderKept)) {
                head.objset.change_zil_header(txg, |header| *header = ZilHeader { log: first, ..ZilHeader::default() });
            }
            if retired.is_over && is_ours {
                self.mos.forget_xattr_records(txg, head.dataset).await?;
            }
        }
        Ok(())
    }
}

impl Mos {
    /// Notes that the log of a file system may have records of extended attributes, as it has to be on disk before the first. Whether it
    /// may.
    async fn use_xattr_records(&mut self, txg: Txg, head: &Head) -> Result<bool, SpaError> {
        let Some(feature) = by_name(XATTR_RECORDS).filter(|feature| self.features.has(feature.name)) else {
            return Ok(false);
        };
        if head.objset.phys().type_number != u64::from(ObjsetType::Zfs.number()) {
            return Ok(false);
        }
        let noted = self.dsl.note_feature(txg, head.dataset, feature.guid).await?;
        self.features.change("extensible_dataset", i64::from(noted.zapified));
        self.features.change(feature.name, i64::from(noted.is_new));
        Ok(true)
    }

    /// The log of a dataset is gone, and with it such records.
    pub(crate) async fn forget_xattr_records(&mut self, txg: Txg, dataset: ObjectId) -> Result<(), SpaError> {
        let Some(feature) = by_name(XATTR_RECORDS) else { return Ok(()) };
        let was_noted = self.dsl.forget_feature(txg, dataset, feature.guid).await?;
        self.features.change(feature.name, -i64::from(was_noted));
        Ok(())
    }
}
