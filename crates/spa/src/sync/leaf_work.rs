//! Initialize and trim, where they begin and end: changes of a txg, and what is told of them.

use std::sync::Arc;

use cenote_format::ids::{Guid, VdevId};
use cenote_vdev::config::VdevConfig;

use super::Syncer;
use super::space::Space;
use crate::jobs::leaf::{LeafKey, LeafRecord, LeafWorkKind, LeafWorkState, Seat};
use crate::{Refusal, SpaError};

/// A change of the work on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafAction {
    /// It begins, or goes on where it was suspended.
    Start {
        /// Bytes a second at most; 0 for no limit.
        rate_bytes: u64,
    },
    /// It waits (`-s`).
    Suspend,
    /// It is given up (`-c`).
    Cancel,
    /// All that is recorded of it is taken away (`zpool initialize -u`).
    Forget,
}

/// A worker that is to be begun.
pub(crate) struct LeafPlan {
    pub(crate) key: LeafKey,
    pub(crate) vdev: VdevId,
    pub(crate) record: LeafRecord,
    pub(crate) round: u64,
    pub(crate) space: Arc<Space>,
    pub(crate) seat: Seat,
}

/// The state of a device that is used, in an event (`VDEV_STATE_HEALTHY`).
const HEALTHY: u64 = 7;

impl Syncer {
    /// Changes the work on a leaf in the open txg. The worker that is to be begun when that is on disk.
    ///
    /// # Errors
    /// It is no device that is in use, or there is (no) such work already.
    pub(crate) async fn change_leaf_work(
        &mut self,
        guid: Guid,
        kind: LeafWorkKind,
        action: LeafAction,
    ) -> Result<Option<LeafPlan>, SpaError> {
        let (leaf, vdev, _) = self.device(guid).await?;
        if !self.devices.root_vdev.disks.contains_key(&guid) || !self.devices.tree.is_leaf_online(guid) {
            return Err(SpaError::refused(Refusal::NotThere, "device is not in use"));
        }
        if leaf.leaf_zap.0 == 0 {
            return Err(SpaError::unsupported("work on a leaf without a table for it".to_owned()));
        }
        let starts = matches!(action, LeafAction::Start { .. });
        if starts && self.devices.tree.parts_of_leaf(vdev, guid, 0..1 << 20).is_none() {
            let what = "its raidz is being expanded: wait for the end ('zpool wait -t raidz_expand')";
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        // The copies of its blocks are elsewhere soon, and it goes.
        if starts && self.jobs.evacuation.is_of(vdev) {
            let what = "its vdev is being removed: wait for the end ('zpool wait -t remove'), or give it up ('zpool remove -s')";
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        let object = self.mos.objset.object(leaf.leaf_zap).await?;
        let key = (guid, kind);
        let mut record = LeafRecord::read(&object, kind).await?;
        let is_active = record.state == LeafWorkState::Active;
        let none = match kind {
            LeafWorkKind::Initialize => "there is no active initialization",
            LeafWorkKind::Trim => "there is no active trim",
        };
        let busy = match kind {
            LeafWorkKind::Initialize => "currently initializing",
            LeafWorkKind::Trim => "currently trimming",
        };
        let time_s = self.in_txg().time_s();
        let (state, word, event) = match action {
            LeafAction::Start { .. } if is_active => return Err(SpaError::refused(Refusal::Busy, busy)),
            LeafAction::Forget if is_active => return Err(SpaError::refused(Refusal::Busy, busy)),
            LeafAction::Suspend if !is_active => return Err(SpaError::refused(Refusal::NotThere, none)),
            LeafAction::Cancel if !is_active && record.state != LeafWorkState::Suspended => {
                return Err(SpaError::refused(Refusal::NotThere, none));
            }
            LeafAction::Start { .. } if record.state == LeafWorkState::Suspended => {
                (LeafWorkState::Active, "activated", Some("resume"))
            }
            LeafAction::Start { .. } => {
                record = LeafRecord { time_s, ..LeafRecord::default() };
                (LeafWorkState::Active, "activated", Some("start"))
            }
            LeafAction::Suspend => (LeafWorkState::Suspended, "suspended", Some("suspend")),
            LeafAction::Cancel => (LeafWorkState::Canceled, "canceled", Some("cancel")),
            LeafAction::Forget => (LeafWorkState::None, "uninitialized", None),
        };
        if let LeafAction::Start { rate_bytes } = action {
            record.rate_bytes = if rate_bytes == 0 { record.rate_bytes } else { rate_bytes };
        }
        if let Some(reached) = self.jobs.leaf_work.end(key) {
            record.offset_bytes = reached.offset_bytes;
        }
        if action == LeafAction::Cancel {
            record.time_s = time_s;
        }
        record.state = state;
        let kept = (action != LeafAction::Forget).then_some(&record);
        LeafRecord::write(&self.in_txg(), &object, kind, kept).await?;
        self.record_event(kind.word(), &format!("vdev={} {word}", leaf.display_name()), None).await?;
        if let Some(event) = event {
            let name = format!("{}_{event}", kind.word());
            self.blocks.space.events.sysevent(&name, Some((guid, HEALTHY)));
        }
        Ok((state == LeafWorkState::Active).then(|| self.begin_leaf_work(key, vdev, record)))
    }

    fn begin_leaf_work(&mut self, key: LeafKey, vdev: VdevId, record: LeafRecord) -> LeafPlan {
        let asize = self.devices.root_vdev.top_of(key.0).map_or(0, |(_, top)| top.asize_bytes);
        // A child of a draid has parts in the second half of the vdev, too.
        let parts = self.devices.tree.parts_of_leaf(vdev, key.0, asize / 2..asize);
        let end = parts.and_then(|parts| parts.last().map(|last| last.end)).unwrap_or(0);
        let round = self.jobs.leaf_work.begin(key, vdev, record, end);
        let now = self.handle.now();
        self.jobs.leaf_work.note_begun(now);
        let (space, seat) = (self.blocks.space.clone(), self.jobs.leaf_work.seat.clone());
        LeafPlan { key, vdev, record, round, space, seat }
    }

    /// The work that is recorded as active: its workers are to be begun.
    pub(crate) async fn active_leaf_work(&mut self) -> Result<Vec<LeafPlan>, SpaError> {
        let leaves: Vec<VdevConfig> =
            self.devices.root_vdev.config.leaves().into_iter().filter(|leaf| leaf.leaf_zap.0 != 0).cloned().collect();
        let mut plans = Vec::new();
        for leaf in leaves {
            let Some((vdev, _)) = self.devices.root_vdev.top_of(leaf.guid) else { continue };
            let object = self.mos.objset.object(leaf.leaf_zap).await?;
            for kind in [LeafWorkKind::Initialize, LeafWorkKind::Trim] {
                let record = LeafRecord::read(&object, kind).await?;
                if record.state == LeafWorkState::Active {
                    plans.push(self.begin_leaf_work((leaf.guid, kind), vdev, record));
                }
            }
        }
        Ok(plans)
    }

    /// Takes what workers on leaves have reported.
    pub(super) async fn settle_leaf_work(&mut self) -> Result<(), SpaError> {
        if !self.jobs.leaf_work.is_any_active() {
            return Ok(());
        }
        let (rooms, jobs) = self.in_txg_with_jobs();
        for ended in jobs.leaf_work.settle(&rooms).await? {
            let (guid, kind) = ended.key;
            let name = self.devices.root_vdev.vdev(guid).map(|(_, leaf)| leaf.display_name()).unwrap_or_default();
            let word = if ended.is_complete { "complete" } else { "canceled" };
            self.record_event(kind.word(), &format!("vdev={name} {word}"), None).await?;
            let event = if ended.is_complete { "finish" } else { "cancel" };
            self.blocks.space.events.sysevent(&format!("{}_{event}", kind.word()), Some((guid, HEALTHY)));
            if let Some(reason) = ended.reason {
                self.blocks
                    .space
                    .troubles
                    .tell(format!("{} of {name} ends: its device cannot do that ({reason})", kind.word()));
            }
        }
        Ok(())
    }

    /// Work of this kind is under way on this leaf.
    #[must_use]
    pub fn is_leaf_worked_on(&self, leaf: Guid, kind: LeafWorkKind) -> bool {
        self.jobs.leaf_work.is_active_as((leaf, kind))
    }

    /// Work of this kind is under way on some leaf.
    #[must_use]
    pub fn is_worked_on(&self, kind: LeafWorkKind) -> bool {
        self.jobs.leaf_work.is_active(kind)
    }
}
