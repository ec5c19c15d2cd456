//! Clones of snapshots, and heads that go back to their last snapshot.

use cenote_dsl::name::{NAME_MAX_BYTES, NameError, check_no_received, parent_and_last};
use cenote_dsl::{Birth, Bookmark, Dataset, EmptyRefs, Promotion};
use cenote_format::dsl::{DatasetFlags, dir_field};
use cenote_format::ids::ObjectId;
use cenote_format::zil::ZilHeader;
use cenote_taskq::{Rng, boxed};

use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// The snapshot of this name, if a dataset with another name can be made as a clone of it.
    ///
    /// # Errors
    /// There is no such snapshot; the name cannot be had; or it cannot be cloned yet.
    #[boxed]
    pub async fn check_clone(&self, origin: &str, name: &str) -> Result<Dataset, SpaError> {
        let dsl = self.dsl().clone();
        let snapshot = dsl.dataset(origin).await?;
        if !snapshot.is_snapshot() {
            return Err(SpaError::refused(
                Refusal::Invalid,
                format!("cannot create '{name}': '{origin}' is no snapshot"),
            ));
        }
        self.check_create(name).await?;
        let head = dsl.head(&snapshot.dir).await?;
        if snapshot.is_inconsistent() || head.is_none_or(|head| head.is_inconsistent()) {
            return Err(SpaError::refused(Refusal::Busy, format!("cannot create '{name}': dataset is busy")));
        }
        let encrypted = dsl.dir_field(&snapshot.dir, dir_field::CRYPTO_KEY_OBJECT).await;
        if encrypted?.is_some() {
            return SpaError::unwritable(format!("cloning snapshots of encrypted datasets ('{origin}')"));
        }
        Ok(snapshot)
    }

    /// Makes a dataset as a clone of a snapshot, of which [`Self::check_clone`] has said that it can be.
    ///
    /// # Errors
    /// As there, or the MOS cannot be changed.
    #[boxed]
    pub async fn clone_dataset(&mut self, origin: &str, name: &str) -> Result<(), SpaError> {
        let snapshot = self.check_clone(origin, name).await?;
        let (above, last) = parent_and_last(name).expect("checked: it is below another");
        let parent = self.mos.dsl.dir(above).await?;
        let birth = Birth { time_s: self.time_s(), txg: self.txg };
        let mut rng = Rng::new(self.handle.random_u64());
        let mut refs = EmptyRefs::default();
        self.share_empty_bpobj().await?;
        let dir = self.mos.dsl.create_dir(Some(parent.object), last, ObjectId(0), birth).await?;
        self.count_new_dir(dir).await?;
        let head = self.mos.dsl.create_clone(dir, snapshot.object, birth, &mut rng, &mut refs).await?;
        self.mos.count_empty_refs(self.txg, refs).await?;
        self.add_livelist(dir).await?;
        self.hand_down_features(snapshot.object, head).await?;
        self.record_event("clone", &format!("origin={origin} ({})", snapshot.object), Some((name, head))).await?;
        self.clear_log_header(name).await
    }

    /// The root of a snapshot has the header of the intent log that its head had then, and whose blocks are not this dataset's.
    pub(crate) async fn clear_log_header(&mut self, name: &str) -> Result<(), SpaError> {
        let txg = self.txg;
        let dataset = self.mos.dsl.dataset(name).await?;
        if self.log_of(&dataset).await?.is_none() {
            return Ok(());
        }
        let head = self.open_header(name).await?;
        self.mos.headers_only.insert(head.dataset);
        head.objset.change_zil_header(txg, |header| *header = ZilHeader::default());
        Ok(())
    }

    /// The head of a snapshot, if the head can be rolled back to it: the head is not open, the snapshot is its last, and no bookmark is
    /// newer (or newer ones are destroyed before).
    ///
    /// # Errors
    /// There is no such snapshot, it is not the last, or the dataset cannot be changed yet.
    #[boxed]
    pub async fn check_rollback(&self, name: &str, bookmarks_go: bool) -> Result<Dataset, SpaError> {
        let dsl = self.dsl().clone();
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot rollback to '{name}': {why}")));
        let snapshot = dsl.dataset(name).await?;
        if !snapshot.is_snapshot() {
            return cannot(Refusal::Invalid, "it is no snapshot");
        }
        let head = dsl.head(&snapshot.dir).await?;
        let Some(head) = head else { return cannot(Refusal::Invalid, "its dataset has no head") };
        if head.is_inconsistent() || snapshot.is_inconsistent() {
            return cannot(Refusal::Busy, "dataset is busy");
        }
        let bookmarks = dsl.bookmarks(&head).await?;
        let is_newer = |bookmark: &Bookmark| bookmark.phys.creation_txg > snapshot.phys.creation_txg;
        let are_newer = !bookmarks_go && bookmarks.iter().any(is_newer);
        if head.phys.prev_snapshot != snapshot.object || are_newer {
            return cannot(Refusal::Busy, "more recent snapshots or bookmarks exist");
        }
        Ok(head)
    }

    /// Rolls a head back to its last snapshot, if [`Self::check_rollback`] allows it. The blocks born since the snapshot are freed in the
    /// background, or at once in a pool without that feature.
    ///
    /// # Errors
    /// As there, or the MOS cannot be changed.
    #[boxed]
    pub async fn rollback_dataset(&mut self, name: &str) -> Result<(), SpaError> {
        let head = self.check_rollback(name, false).await?;
        let txg = self.txg;
        assert!(!self.has_log_in_use(head.object), "a dataset is rolled back when nobody changes it");
        if let Some((objset, header)) = self.log_of(&head).await? {
            self.in_txg().free_log(txg, &objset, &header).await?;
        }
        self.mos.dsl.retain_heads(|open| open.dataset != head.object);
        self.mos.drop_livelist(self.txg, head.dir.object).await?;
        let mut refs = EmptyRefs::default();
        self.share_empty_bpobj().await?;
        let left = self.mos.dsl.rollback_head(txg, head.object, &mut refs).await?;
        self.mos.count_empty_refs(self.txg, refs).await?;
        self.take_back_features(head.object, head.phys.prev_snapshot).await?;
        // A head without changes since has nothing of its own.
        if !left.root.is_hole() && left.root.logical_birth() > left.born_after {
            match self.mos.features.has("async_destroy") {
                true => {
                    let (mut rooms, jobs) = self.in_txg_with_jobs();
                    jobs.async_destroy.take_tree(&mut rooms, &left).await?;
                }
                false => self.free_objset(txg, head.objset_id(), left.root, left.born_after).await?,
            }
        }
        self.record_event("rollback", &format!("-> {name}"), Some((&head.dir.name, head.object))).await?;
        self.clear_log_header(&head.dir.name.clone()).await
    }

    /// The plan of promoting a clone, of which [`Self::promote_dataset`] then makes the change.
    ///
    /// # Errors
    /// There is no such dataset, it is no clone of another's snapshot, a name is there twice, or there is no room for what moves.
    #[boxed]
    pub async fn check_promote(&self, name: &str) -> Result<Promotion, SpaError> {
        let dsl = self.dsl().clone();
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot promote '{name}': {why}")));
        let clone = dsl.dataset(name).await?;
        let origin = clone.dir.phys.origin;
        if clone.is_snapshot() {
            return cannot(Refusal::Invalid, "snapshots can not be promoted");
        }
        if let Err(reason) = check_no_received(name) {
            return cannot(Refusal::Invalid, &reason.to_string());
        }
        if clone.is_inconsistent() {
            return cannot(Refusal::Busy, "dataset is busy");
        }
        if origin.0 == 0 || origin == dsl.origin() {
            return cannot(Refusal::Invalid, "not a cloned filesystem");
        }
        if clone.phys.flags.contains(DatasetFlags::NO_PROMOTE) {
            return cannot(Refusal::Invalid, "the dataset must not be promoted");
        }
        let origin_dir = dsl.dataset_phys(origin).await?.dir;
        let origin_head = dsl.dir_phys(origin_dir).await?.head_dataset;
        let origin_name = dsl.dataset_name(origin_head).await?;
        let origin_head = dsl.dataset(&origin_name).await?;
        for head in [&clone, &origin_head] {
            self.check_remapped(&dsl, head).await?;
            let encrypted = dsl.dir_field(&head.dir, dir_field::CRYPTO_KEY_OBJECT).await;
            if encrypted?.is_some() {
                return SpaError::unwritable(format!("promoting clones of encrypted datasets ('{}')", head.dir.name));
            }
        }
        let plan = dsl.plan_promotion(&clone).await?;
        if let Some(name) = plan.conflicts.first() {
            let parent = dsl.dataset_name(origin).await?;
            return cannot(Refusal::Exists, &format!("conflicting snapshot '{name}' from parent '{parent}'"));
        }
        // The origin's snapshots and bookmarks get longer names with a longer one before them.
        if name.len() + 1 + plan.longest_name_bytes > NAME_MAX_BYTES {
            return cannot(Refusal::Invalid, &NameError::TooLong.to_string());
        }
        if let Some(name) = plan.bookmark_conflicts.first() {
            return cannot(
                Refusal::Exists,
                &format!("bookmark name '#{name}' from origin conflicts with '#{name}' from target"),
            );
        }
        // Where both have one directory above, the bytes count there already.
        let is_beside = clone.dir.phys.parent == origin_head.dir.phys.parent && clone.dir.phys.quota_bytes == 0;
        if !is_beside && plan.moved_bytes() > self.available_bytes(&dsl, &clone.dir).await? {
            return cannot(Refusal::NoSpace, "out of space");
        }
        if !self.may_move(&origin_head.dir, &clone.dir, 0, plan.snapshot_count()).await? {
            return cannot(Refusal::NoSpace, "out of space");
        }
        Ok(plan)
    }

    /// Has a clone and its origin change places.
    ///
    /// # Errors
    /// As [`Self::check_promote`], or the MOS cannot be changed.
    #[boxed]
    pub async fn promote_dataset(&mut self, name: &str) -> Result<(), SpaError> {
        let plan = self.check_promote(name).await?;
        let clone = self.mos.dsl.dataset(name).await?;
        // Lists of blocks since an origin are of no use with another.
        for dir in [clone.dir.object, plan.origin_dir()] {
            self.mos.drop_livelist(self.txg, dir).await?;
        }
        let counts = self.mos.dsl.promote(self.txg, plan).await?;
        self.count_bookmarks(&counts);
        self.record_event("promote", "", Some((name, clone.object))).await
    }

    /// Has a clone that was made in this txg keep a livelist, if the pool has the feature.
    pub(crate) async fn add_livelist(&mut self, dir: ObjectId) -> Result<(), SpaError> {
        if !self.mos.features.has("livelist") {
            return Ok(());
        }
        let zapified = self.mos.dsl.add_livelist(self.txg, dir).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        self.mos.features.change("livelist", 1);
        Ok(())
    }

    /// Refuses a clone whose livelist cannot be kept up.
    pub(crate) async fn check_livelist(&self, dataset: &Dataset) -> Result<(), SpaError> {
        let livelist = self.mos.dsl.livelist(dataset.object).await?;
        let Some(livelist) = livelist else { return Ok(()) };
        let checked = self.mos.dsl.check_livelist(livelist.object).await;
        checked.or_else(|error| {
            SpaError::unwritable(format!("changing a clone whose livelist is damaged ('{}': {error})", dataset.name()))
        })
    }

    /// Finds out whether a hold can be taken off a snapshot that has it. The name of the snapshot comes back where it goes with the hold.
    ///
    /// # Errors
    /// There is none of this name, or it would go and cannot be destroyed.
    #[boxed]
    pub async fn check_release(&self, name: &str) -> Result<Option<String>, SpaError> {
        let snapshot = self.mos.dsl.dataset(name).await?;
        self.check_last_goes(snapshot.object, 1).await
    }

    /// Puts a hold on a snapshot.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn hold_snapshot(&mut self, name: &str, tag: &str) -> Result<(), SpaError> {
        let snapshot = self.mos.dsl.dataset(name).await?;
        self.mos.dsl.add_hold(self.txg, snapshot.object, tag, self.time_s()).await?;
        let text = format!("tag={tag} temp=0 refs={}", self.hold_count(snapshot.object).await?);
        self.record_event("hold", &text, Some((name, snapshot.object))).await
    }

    /// The number of holds on a snapshot.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub(crate) async fn hold_count(&self, snapshot: ObjectId) -> Result<u64, SpaError> {
        Ok(self.mos.dsl.hold_count(snapshot).await?)
    }

    /// Takes a hold off a snapshot. One that was to be destroyed goes with the last of its holds and clones.
    ///
    /// # Errors
    /// There is no such hold, or the MOS cannot be changed.
    #[boxed]
    pub async fn release_snapshot(&mut self, name: &str, tag: &str) -> Result<(), SpaError> {
        let snapshot = self.mos.dsl.dataset(name).await?;
        let goes = self.check_last_goes(snapshot.object, 1).await?;
        self.mos.dsl.release_hold(self.txg, snapshot.object, tag).await?;
        let text = format!("tag={tag} refs={}", self.hold_count(snapshot.object).await?);
        self.record_event("release", &text, Some((name, snapshot.object))).await?;
        match goes {
            Some(name) => self.destroy_snapshot(&name, false).await,
            None => Ok(()),
        }
    }
}
