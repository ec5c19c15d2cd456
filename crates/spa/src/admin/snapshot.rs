//! Snapshots: taken, destroyed, held.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::Zap;
use cenote_dsl::name::check_new_snapshot;
use cenote_dsl::{Birth, Dataset, DslError, EmptyRefs};
use cenote_format::dsl::{DatasetFlags, dataset_field, dir_field, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, boxed, oneshot};

use crate::admin::command::Command;
use crate::admin::properties::check_text;
use crate::features::FEATURES;
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::sync::late::LateTask;
use crate::{Refusal, SpaError};

/// Bytes that the metadata of a snapshot is taken for: three blocks of 16 KiB (`DST_AVG_BLKSHIFT`).
const SNAPSHOT_BYTES: u64 = 3 << 14;

/// A snapshot that is to be taken.
#[derive(Clone, Debug, Default)]
pub struct NewSnapshot {
    /// Its full name: `pool/dataset@snapshot`.
    pub name: String,
    /// Properties that are set of it, each a name and a text.
    pub properties: Vec<(String, String)>,
    /// The guid of one that was received.
    pub guid: Option<Guid>,
    /// The time of creation of one that was received, in seconds since 1970.
    pub creation_time_s: Option<u64>,
}

/// Snapshots that are asked for together: all are taken, in one txg, or none.
struct TakeSnapshots {
    wanted: Vec<NewSnapshot>,
    command: Option<Arc<Command>>,
    answer: Option<oneshot::Sender<Result<Txg, SpaError>>>,
}

impl LateTask for TakeSnapshots {
    #[boxed]
    async fn run(&mut self, syncer: &mut Syncer) -> Result<bool, SpaError> {
        let answer = match self.check(syncer).await {
            Ok(false) => return Ok(false),
            Ok(true) => {
                // One time for all of them, as of a recursive snapshot in OpenZFS.
                let time_s = syncer.time_s();
                if self.wanted.len() > 1 && mutant::is(Mutant::SnapshotsApart) {
                    let wanted = self.wanted.pop().into_iter().collect();
                    let apart = Self { wanted, command: None, answer: None };
                    syncer.late.push(Txg(syncer.txg().0 + 1), Box::new(apart));
                }
                for wanted in &self.wanted {
                    syncer.take_snapshot(wanted, time_s).await?;
                }
                if let Some(command) = &self.command {
                    command.record(syncer).await?;
                }
                Ok(syncer.txg())
            }
            Err(error) => Err(error),
        };
        if let Some(sender) = self.answer.take() {
            // The caller may have gone.
            drop(sender.send(answer));
        }
        Ok(true)
    }
}

impl TakeSnapshots {
    /// True if they can be taken in this txg.
    async fn check(&self, syncer: &mut Syncer) -> Result<bool, SpaError> {
        check_all(&self.wanted, syncer).await
    }
}

/// True if these snapshots can be taken together in this txg.
async fn check_all(wanted: &[NewSnapshot], syncer: &mut Syncer) -> Result<bool, SpaError> {
    let mut datasets = BTreeSet::new();
    let mut can_be_now = true;
    for wanted in wanted {
        can_be_now &= syncer.check_snapshot(wanted).await?;
        if !datasets.insert(wanted.name.split('@').next()) {
            let why = "cannot create snapshots : multiple snapshots of same fs not allowed";
            return Err(SpaError::refused(Refusal::Invalid, why));
        }
    }
    syncer.check_new_snapshots(wanted.iter().map(|wanted| wanted.name.as_str())).await?;
    syncer.check_room_for_snapshots(wanted).await?;
    Ok(can_be_now)
}

impl Pool {
    /// Takes snapshots, all in one txg, or none. They have all that was written before this is called. The answer comes when they are on
    /// disk; the txg that they are of comes back.
    ///
    /// # Errors
    /// One cannot be taken: there is no such dataset, or there is one of this name, or no space for what is reserved; or the pool is closed,
    /// suspended, or has failed.
    #[boxed]
    pub async fn take_snapshots(&self, wanted: Vec<NewSnapshot>) -> Result<Txg, SpaError> {
        // A refusal need not wait for a txg, nor have one written.
        let asked = wanted.clone();
        let look = self.look(move |syncer| Box::pin(async move { check_all(&asked, syncer).await }));
        look.await?;
        let (sender, mut answer) = oneshot::channel();
        let command = self.command();
        self.push_late(Box::new(TakeSnapshots { wanted, command, answer: Some(sender) })).await?;
        if mutant::is(Mutant::SnapshotEarly) {
            self.next_txg().await?;
            return answer.await.map_err(|_| self.closed())?;
        }
        loop {
            self.sync().await?;
            if let Some(answer) = answer.try_receive().map_err(|_| self.closed())? {
                // The next txg may have taken them, whose sync has not ended.
                if let Ok(txg) = &answer {
                    self.wait_synced(*txg).await?;
                }
                return answer;
            }
        }
    }
}

impl Syncer {
    /// Refuses snapshots that would take of the space that is kept back, so that there is always enough to destroy some. OpenZFS counts alike.
    async fn check_room_for_snapshots(&self, wanted: &[NewSnapshot]) -> Result<(), SpaError> {
        let root = self.dsl().root_dir().await?;
        let needed_bytes = SNAPSHOT_BYTES.saturating_mul(wanted.len() as u64);
        match (wanted.first(), root.phys.used_bytes.saturating_add(needed_bytes) > self.usable().bytes) {
            (Some(first), true) => {
                let why = format!("cannot create snapshot '{}': out of space", first.name);
                Err(SpaError::refused(Refusal::NoSpace, why))
            }
            _ => Ok(()),
        }
    }

    fn birth(&self, time_s: u64) -> Birth {
        Birth { time_s, txg: self.txg }
    }

    /// True if a snapshot of this name can be taken in this txg; of one dataset there is one in a txg.
    async fn check_snapshot(&mut self, wanted: &NewSnapshot) -> Result<bool, SpaError> {
        let name = wanted.name.as_str();
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot create snapshot '{name}': {why}")));
        if let Err(reason) = check_new_snapshot(name) {
            return cannot(Refusal::Invalid, &reason.to_string());
        }
        let dsl = self.dsl().clone();
        let Some((of, snapshot)) = name.split_once('@') else { return cannot(Refusal::Invalid, "it has no '@'") };
        let head = match dsl.dataset(of).await {
            Err(DslError::NoSuchDataset(_)) => return cannot(Refusal::NotThere, "dataset does not exist"),
            found => found?,
        };
        let names = dsl.snapshot_object(&head, snapshot).await;
        if names?.is_some() {
            return cannot(Refusal::Exists, "dataset already exists");
        }
        if head.is_inconsistent() {
            return cannot(Refusal::Busy, "dataset is busy");
        }
        for (property, value) in &wanted.properties {
            if let Err(error) = check_text(property, value) {
                return cannot(Refusal::Invalid, &error.to_string());
            }
        }
        if head.phys.prev_snapshot_txg >= self.txg {
            return Ok(false);
        }
        self.check_remapped(&dsl, &head).await?;
        let reserved = dsl.refreservation_bytes(head.dir.object).await?;
        let wanted = head.phys.unique_bytes.min(reserved);
        if wanted > 0 && wanted > self.available_bytes(&dsl, &head.dir).await? {
            return cannot(Refusal::NoSpace, "out of space");
        }
        Ok(true)
    }

    /// Refuses datasets that keep a list of blocks of removed devices.
    pub(crate) async fn check_remapped(&self, dsl: &cenote_dsl::Dsl, head: &Dataset) -> Result<(), SpaError> {
        let remapped = dsl.dataset_field(head, dataset_field::REMAP_DEADLIST).await;
        if remapped?.is_some() {
            return SpaError::unwritable(format!(
                "snapshots of a dataset with blocks of removed devices ('{}')",
                head.dir.name
            ));
        }
        Ok(())
    }

    async fn take_snapshot(&mut self, wanted: &NewSnapshot, time_s: u64) -> Result<ObjectId, SpaError> {
        let txg = self.txg;
        let (of, name) = wanted.name.split_once('@').expect("checked: it is a snapshot's name");
        let head = self.mos.dsl.dataset(of).await?;
        let birth = self.birth(wanted.creation_time_s.unwrap_or(time_s));
        let mut rng = Rng::new(self.handle.random_u64());
        let mut refs = EmptyRefs::default();
        self.share_empty_bpobj().await?;
        let snapshot = self.mos.dsl.take_snapshot(head.object, name, birth, wanted.guid, &mut rng, &mut refs).await?;
        self.mos.count_empty_refs(self.txg, refs).await?;
        self.hand_down_features(head.object, snapshot).await?;
        let is_encrypted = self.mos.dsl.dir_field(&head.dir, dir_field::CRYPTO_KEY_OBJECT).await;
        if is_encrypted?.is_some() && self.mos.features.has("bookmark_v2") {
            let guid = ZapValue::from_u64(rng.next_u64() | 1);
            let zapified = self.mos.dsl.put_dataset_field(txg, snapshot, dataset_field::IVSET_GUID, &guid).await?;
            self.mos.features.change("extensible_dataset", i64::from(zapified));
        }
        for (property, value) in &wanted.properties {
            self.mos.dsl.set_snapshot_property(txg, snapshot, property, &ZapValue::from_text(value)).await?;
        }
        self.snapshots_changed(head.dir.object).await?;
        self.record_event("snapshot", "", Some((&wanted.name, snapshot))).await?;
        Ok(snapshot)
    }

    /// Notes that snapshots of a directory came or went, where the pool can have such notes.
    pub(crate) async fn snapshots_changed(&mut self, dir: ObjectId) -> Result<(), SpaError> {
        if !self.mos.features.has("extensible_dataset") {
            return Ok(());
        }
        let zapified = self.mos.dsl.note_snapshots_changed(self.txg, dir, self.time_s()).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        Ok(())
    }

    /// A snapshot or a clone uses the features that its head or its origin uses.
    pub(crate) async fn hand_down_features(&mut self, from: ObjectId, to: ObjectId) -> Result<(), SpaError> {
        let txg = self.txg;
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            let noted = self.mos.dsl.copy_feature(txg, from, to, feature.guid).await?;
            self.mos.features.change("extensible_dataset", i64::from(noted.zapified));
            self.mos.features.change(feature.name, i64::from(noted.is_new));
        }
        Ok(())
    }

    /// A head that goes back to a snapshot uses the features that the snapshot uses, and no others.
    pub(crate) async fn take_back_features(&mut self, head: ObjectId, snapshot: ObjectId) -> Result<(), SpaError> {
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            let is_kept = self.mos.dsl.has_noted(snapshot, feature.guid).await;
            if is_kept? {
                continue;
            }
            let forgotten = self.mos.dsl.forget_feature(self.txg, head, feature.guid).await?;
            self.mos.features.change(feature.name, -i64::from(forgotten));
        }
        self.mos.used_features.remove(&head);
        self.hand_down_features(snapshot, head).await
    }

    /// Makes the list that stands for empty ones, where the pool may have it and has not.
    pub(crate) async fn share_empty_bpobj(&mut self) -> Result<(), SpaError> {
        if !self.mos.features.has("empty_bpobj") || self.mos.dsl.empty_bpobj().is_some() {
            return Ok(());
        }
        let list = self.mos.dsl.create_bpobj(self.txg)?;
        let entry = ZapValue::from_u64(list.0);
        Zap::put_entry(&self.mos.directory, self.txg, pool_directory::EMPTY_BPOBJ, Some(&entry)).await?;
        self.mos.dsl.set_empty_bpobj(list);
        Ok(())
    }

    /// The snapshot of this name, if it can be destroyed now. With `is_deferred` one with holds or clones can be too: it goes with the last
    /// of them.
    ///
    /// # Errors
    /// There is none, it has holds or clones, or belongs to something that cannot be kept up yet.
    #[boxed]
    pub async fn check_destroy_snapshot(&self, name: &str, is_deferred: bool) -> Result<Dataset, SpaError> {
        let snapshot = self.check_snapshot_goes(name, is_deferred).await?;
        if !is_deferred && snapshot.phys.child_count > 1 {
            let mut why = "snapshot has dependent clones\nuse '-R' to destroy the following datasets:".to_owned();
            for clone in self.mos.dsl.clones(&snapshot).await? {
                why.push_str(&format!("\n{clone}"));
            }
            return Err(SpaError::refused(Refusal::Busy, format!("cannot destroy '{name}': {why}")));
        }
        Ok(snapshot)
    }

    /// The snapshot of this name, if it can be destroyed once it has no clones.
    ///
    /// # Errors
    /// There is none, it has holds (unless `is_deferred`), or belongs to something that cannot be kept up yet.
    #[boxed]
    pub async fn check_snapshot_goes(&self, name: &str, is_deferred: bool) -> Result<Dataset, SpaError> {
        let dsl = self.dsl().clone();
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot destroy snapshot {name}: {why}")));
        let snapshot = dsl.dataset(name).await?;
        if !snapshot.is_snapshot() {
            return cannot(Refusal::Invalid, "it is no snapshot");
        }
        let head = dsl.head(&snapshot.dir).await?;
        let Some(head) = head else { return cannot(Refusal::Invalid, "its dataset has no head") };
        self.check_remapped(&dsl, &head).await?;
        if self.is_long_held(snapshot.object) {
            return cannot(Refusal::Busy, "dataset is busy");
        }
        if is_deferred {
            return Ok(snapshot);
        }
        if self.hold_count(snapshot.object).await? > 0 {
            return cannot(Refusal::Busy, &format!("it's being held. Run 'zfs holds -r {name}' to see holders."));
        }
        Ok(snapshot)
    }

    /// The name of a snapshot that goes by itself with one thing that keeps it: it was to be destroyed (`destroy -d`), and has
    /// no more than `left` holds and clones. To be asked before the last of them goes.
    ///
    /// # Errors
    /// It would go, and cannot be destroyed; or the MOS cannot be read.
    pub(crate) async fn check_last_goes(&self, snapshot: ObjectId, left: u64) -> Result<Option<String>, SpaError> {
        let phys = self.mos.dsl.dataset_phys(snapshot).await?;
        let kept_by = self.hold_count(snapshot).await? + phys.child_count.saturating_sub(1);
        if !phys.flags.contains(DatasetFlags::DEFER_DESTROY) || kept_by > left {
            return Ok(None);
        }
        let name = self.mos.dsl.dataset_name(snapshot).await?;
        self.check_snapshot_goes(&name, true).await?;
        Ok(Some(name))
    }

    /// Destroys a snapshot of which [`Self::check_destroy_snapshot`] has said that it can be. Its blocks are freed in the background.
    /// Nothing is refused here: a task has changed the pool by now.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn destroy_snapshot(&mut self, name: &str, is_deferred: bool) -> Result<(), SpaError> {
        let snapshot = self.mos.dsl.dataset(name).await?;
        let txg = self.txg;
        let is_kept = snapshot.phys.child_count > 1 || self.hold_count(snapshot.object).await? > 0;
        if is_kept && is_deferred {
            self.mos.dsl.defer_destroy(txg, snapshot.object).await?;
            return self.record_event("defer_destroy", "", Some((name, snapshot.object))).await;
        }
        if is_kept || self.is_long_held(snapshot.object) {
            return Err(SpaError::contradiction(format!(
                "the snapshot '{name}' was to be destroyed, and is kept: no check refused it"
            )));
        }
        self.record_event("destroy", "", Some((name, snapshot.object))).await?;
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            let used = self.mos.dsl.has_noted(snapshot.object, feature.guid).await;
            if used? {
                self.mos.features.change(feature.name, -1);
            }
        }
        let free_dir = self.mos.free_dir().await?;
        let (_, last) = name.split_once('@').expect("a snapshot's name has an '@'");
        let (birth, mut refs) = (self.birth(self.time_s()), EmptyRefs::default());
        let was_zapified = self.mos.dsl.destroy_snapshot(birth, snapshot.object, last, free_dir, &mut refs).await?;
        self.mos.features.change("extensible_dataset", -i64::from(was_zapified));
        self.snapshots_changed(snapshot.dir.object).await?;
        self.mos.count_empty_refs(self.txg, refs).await?;
        self.jobs.free_list.filled();
        self.clear_bootfs(snapshot.object).await
    }

    /// A pool does not boot from what is no more.
    pub(crate) async fn clear_bootfs(&mut self, dataset: ObjectId) -> Result<(), SpaError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let properties = directory.find_u64(pool_directory::PROPERTIES).await?;
        let Some(properties) = properties else { return Ok(()) };
        let object = self.mos.objset.object(ObjectId(properties)).await?;
        let zap = Zap::open(object.clone()).await?;
        if zap.find_u64("bootfs").await? != Some(dataset.0) {
            return Ok(());
        }
        Ok(Zap::put_entry(&object, self.txg, "bootfs", None).await?)
    }
}
