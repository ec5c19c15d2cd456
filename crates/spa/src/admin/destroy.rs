//! Destroying a file system or a volume: the txg that takes its name away leaves its blocks to the background
//! (`jobs/async_destroy`, or of a clone with a livelist `jobs/deleted_clones`). A pool without the feature `async_destroy` has no place
//! for that: there the blocks are freed at once.

use std::collections::BTreeMap;

use cenote_dmu::{KeyAccess, Objset};
use cenote_dsl::Dataset;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::dnodes_in_block;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::zil::ZilHeader;
use cenote_taskq::boxed;
use cenote_zio::{Bookmark, ReadContext};

use crate::features::FEATURES;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// Destroys a file system or volume that has neither snapshots nor datasets below it.
    ///
    /// # Errors
    /// There is none of this name, it has what depends on it, or something that cannot be freed yet.
    #[boxed]
    pub async fn destroy_dataset(&mut self, name: &str) -> Result<(), SpaError> {
        self.destroy_with_origin(name).await.map(drop)
    }

    /// As [`Self::destroy_dataset`]. The name of the snapshot that went with a clone comes back: its origin, where that was to be destroyed
    /// with the last of its clones and holds.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn destroy_with_origin(&mut self, name: &str) -> Result<Option<String>, SpaError> {
        let dataset = self.check_destroy(name, false).await?;
        let goes = self.check_origins_go(std::slice::from_ref(&dataset)).await?.pop();
        let txg = self.txg;
        assert!(!self.has_log_in_use(dataset.object), "a dataset is destroyed when nobody changes it");
        // Its blocks are not in the tree of the dataset.
        if let Some((objset, header)) = self.log_of(&dataset).await? {
            self.in_txg().free_log(txg, &objset, &header).await?;
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        let is_taken = jobs.deleted_clones.take_livelist(&mut rooms, &dataset).await?
            || jobs.async_destroy.take_blocks(&mut rooms, &dataset).await?;
        if !is_taken {
            let (root, born_after) = (dataset.phys.bp, dataset.phys.prev_snapshot_txg);
            self.free_objset(txg, dataset.objset_id(), root, born_after).await?;
        }
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            // Asked of the open txg: one may have been noted in it.
            let used = self.mos.dsl.has_noted(dataset.object, feature.guid).await;
            if used? {
                self.mos.features.change(feature.name, -1);
            }
        }
        self.mos.used_features.remove(&dataset.object);
        let gone = self.mos.dsl.destroy_dataset(txg, &dataset.dir).await?;
        self.mos.features.change("extensible_dataset", -(gone.zapified as i64));
        self.count_bookmarks(&gone.bookmarks);
        self.mos.headers_only.remove(&dataset.object);
        self.in_txg().forget_errors_of(txg, dataset.object).await;
        self.mos.release_empty_bpobj(txg, gone.shared_empty).await?;
        self.mos.dsl.retain_heads(|head| head.dataset != dataset.object);
        self.clear_bootfs(dataset.object).await?;
        self.record_event("destroy", "", Some((name, dataset.object))).await?;
        if let Some(origin) = &goes {
            self.destroy_snapshot(origin, false).await?;
        }
        Ok(goes)
    }

    /// The names of the snapshots that go when all of these datasets do: origins of clones that were to be destroyed with the last of their
    /// clones and holds.
    ///
    /// # Errors
    /// One would go, and cannot be destroyed; or the MOS cannot be read.
    #[boxed]
    pub async fn check_origins_go(&self, datasets: &[Dataset]) -> Result<Vec<String>, SpaError> {
        let mut clones: BTreeMap<ObjectId, u64> = BTreeMap::new();
        for dataset in datasets {
            *clones.entry(dataset.dir.phys.origin).or_default() += 1;
        }
        let mut going = Vec::new();
        for (origin, count) in clones {
            if origin.0 != 0 && origin != self.mos.dsl.origin() {
                going.extend(self.check_last_goes(origin, count).await?);
            }
        }
        Ok(going)
    }

    /// The dataset, if [`Self::destroy_dataset`] would destroy it; `is_recursive`: after those below it.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn check_destroy(&mut self, name: &str, is_recursive: bool) -> Result<Dataset, SpaError> {
        let view = self.dsl().clone();
        let dataset = view.dataset(name).await?;
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot destroy '{name}': {why}")));
        let refuse = |what: &str| Err(SpaError::unsupported(format!("{what} ('{name}')")));
        if dataset.is_snapshot() {
            return refuse("destroying snapshots");
        }
        if dataset.dir.phys.parent.0 == 0 {
            return cannot(
                Refusal::Invalid,
                "operation does not apply to pools\nuse 'zpool destroy' to destroy the pool itself",
            );
        }
        if !is_recursive {
            self.check_childless(&dataset).await?;
        }
        if self.is_long_held(dataset.object) {
            return cannot(Refusal::Busy, "dataset is busy");
        }
        if dataset.dir.phys.reserved_bytes != 0 {
            return refuse("destroying a dataset with a reservation");
        }
        if dataset.phys.user_refs.0 != 0 || dataset.phys.properties.0 != 0 {
            return refuse("destroying a dataset with holds");
        }
        self.check_delegated(&view, &dataset.dir).await?;
        Ok(dataset)
    }

    /// Refuses a dataset that has snapshots or datasets below it, by the names of all of them.
    ///
    /// # Errors
    /// It has some, or the MOS cannot be read.
    #[boxed]
    pub async fn check_childless(&self, dataset: &Dataset) -> Result<(), SpaError> {
        let view = self.dsl();
        let children = view.children(&dataset.dir, true).await?;
        let snapshots = view.snapshots(dataset).await?;
        if children.is_empty() && snapshots.is_empty() {
            return Ok(());
        }
        let kind = view.kind(dataset).await?;
        let kind = if kind == ObjsetType::Zvol { "volume" } else { "filesystem" };
        let mut why = format!("{kind} has children\nuse '-r' to destroy the following datasets:");
        for dir in view.tree(dataset.dir.clone(), false).await? {
            let Some(head) = view.head(&dir).await? else { continue };
            for snapshot in view.snapshots(&head).await? {
                why.push_str(&format!("\n{}", snapshot.name()));
            }
            if dir.object != dataset.dir.object {
                why.push_str(&format!("\n{}", dir.name));
            }
        }
        Err(SpaError::refused(Refusal::Busy, format!("cannot destroy '{}': {why}", dataset.name())))
    }

    /// The header of a dataset's intent log, as the open txg has it, and the objset as it is on disk.
    pub(crate) async fn log_of(&self, dataset: &Dataset) -> Result<Option<(Objset, ZilHeader)>, SpaError> {
        if dataset.phys.bp.is_hole() {
            return Ok(None);
        }
        let dmu = self.blocks.writer.dmu().clone();
        let objset = Objset::open(dmu, dataset.objset_id(), dataset.phys.bp, KeyAccess::None).await?;
        let open = self.mos.dsl.open_head(dataset.object);
        let header = open.map_or_else(|| objset.zil_header(), |open| open.objset.zil_header());
        Ok((!header.log.is_hole()).then_some((objset, header)))
    }

    /// Frees a head's blocks at once, but those that its last snapshot has: a clone shares them with its origin.
    pub(crate) async fn free_objset(
        &mut self,
        txg: Txg,
        objset: ObjsetId,
        root: Blkptr,
        born_after: Txg,
    ) -> Result<(), SpaError> {
        if root.is_hole() {
            return Ok(());
        }
        let dmu = self.blocks.writer.dmu().clone();
        let objset = Objset::open(dmu, objset, root, KeyAccess::None).await?;
        let phys = objset.phys();
        for dnode in [&phys.userused_dnode, &phys.groupused_dnode, &phys.projectused_dnode].into_iter().flatten() {
            for bp in dnode.blkptrs() {
                self.free_tree(txg, *bp, born_after, None).await?;
            }
        }
        for bp in phys.meta_dnode.blkptrs() {
            self.free_tree(txg, *bp, born_after, Some(DmuType::DNODE)).await?;
        }
        if root.logical_birth() <= born_after {
            return Ok(());
        }
        self.in_txg().free_blocks(txg, &[root]).await
    }

    /// Frees a block and all below it that was born after a txg; of the meta-dnode's tree also what its dnodes lead to. A block is at least as
    /// young as all below it.
    #[boxed]
    async fn free_tree(
        &mut self,
        txg: Txg,
        bp: Blkptr,
        born_after: Txg,
        meta: Option<DmuType>,
    ) -> Result<(), SpaError> {
        if bp.is_hole() || bp.is_redacted() || bp.logical_birth() <= born_after {
            return Ok(());
        }
        let leads_on = bp.level() > 0 || meta.is_some();
        if leads_on {
            let context = ReadContext::new(Bookmark::objset(cenote_format::ids::ObjsetId(0)), None);
            let read = self.blocks.writer.dmu().read_structure(&bp, context).await;
            let bytes =
                read.map_err(|error| SpaError::contradiction(format!("what is to be freed cannot be read: {error}")))?;
            let order = bp.byte_order();
            if bp.level() > 0 {
                for child in Blkptr::array(&bytes, order) {
                    if !child.is_hole() && child.level() + 1 != bp.level() {
                        return Err(SpaError::contradiction("a tree whose levels do not go down cannot be freed"));
                    }
                    self.free_tree(txg, child, born_after, meta).await?;
                }
            } else {
                for (_, dnode) in dnodes_in_block(&bytes, order) {
                    let dnode = dnode?.to_value();
                    for child in dnode.blkptrs().iter().chain(&dnode.spill) {
                        self.free_tree(txg, *child, born_after, None).await?;
                    }
                }
            }
        }
        self.in_txg().free_blocks(txg, &[bp]).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cenote_dmu::{ObjectSpec, Objset, ObjsetPolicy};
    use cenote_format::dmu_type::DmuType;
    use cenote_format::dsl::pool_directory;
    use cenote_format::enums::ObjsetType;
    use cenote_format::ids::ObjsetId;
    use cenote_taskq::Runtime;

    use crate::config::PoolState;

    use crate::refcount::tests::{add_disk, made};

    #[test]
    fn a_destroyed_dataset_does_not_keep_an_exported_pool_in_memory() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        add_disk(&runtime, "/destroyed");
        runtime.block_on(async {
            let mut writer = made(&handle, "/destroyed").await;
            writer.sync().await.unwrap();
            let head = writer.create_dataset("shared/a", ObjsetType::Zfs).await.unwrap();
            head.objset.create_object(writer.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 512)).unwrap();
            drop(head);
            writer.sync().await.unwrap();
            writer.destroy_dataset("shared/a").await.unwrap();
            writer.sync().await.unwrap();
            let tree = Arc::downgrade(writer.tree());
            writer.end(PoolState::Exported).await.unwrap();
            assert!(tree.upgrade().is_none(), "what has the devices open is still there");
        });
    }

    #[test]
    fn an_objset_that_was_opened_and_not_kept_keeps_no_pool_in_memory() {
        let runtime = Runtime::simulated(2);
        let handle = runtime.handle();
        add_disk(&runtime, "/opened");
        runtime.block_on(async {
            let mut writer = made(&handle, "/opened").await;
            writer.sync().await.unwrap();
            // As an opening does that fails after it.
            let (root, policy) = (writer.mos.objset.root(), ObjsetPolicy::new(3));
            let again = Objset::own(writer.blocks.writer.dmu().clone(), ObjsetId(0), root, policy).await.unwrap();
            let directory = again.object(pool_directory::OBJECT).await.unwrap();
            assert_eq!(directory.objset_id(), ObjsetId(0));
            drop((again, directory));
            let tree = Arc::downgrade(writer.tree());
            writer.end(PoolState::Exported).await.unwrap();
            assert!(tree.upgrade().is_none(), "what has the devices open is still there");
        });
    }
}
