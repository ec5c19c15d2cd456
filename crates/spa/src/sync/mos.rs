//! The meta-objset of a pool that is written, and the layers in it.
//!
//! All that is here is changed by the holder of the syncer's slot alone, in the txg that is synced next; the MOS is written after the datasets
//! of its txg, in passes ([`crate::sync`]).
//!
//! **Invariants.**
//! 1. The directory, the configuration and the ZAPs of features are objects of this objset (asserted by `audit`).
//! 2. The counts of features are those on disk between two txgs (asserted by `audit`).
//! 3. A head in `headers_only` is open, and nothing of it is dirty but its intent log's header (asserted where it is closed).

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{Object, Objset, SpaceDelta, Zap};
use cenote_dsl::{Dsl, EmptyRefs, LivelistLimits, UsedBy};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::needs::Needs;

use super::features::FeatureCounts;
use crate::SpaError;
use crate::tunables::LivelistTunables;

/// The meta-objset and the layers in it.
pub(crate) struct Mos {
    pub(crate) objset: Objset,
    /// The object directory, which names the others.
    pub(crate) directory: Object,
    /// The packed configuration.
    pub(crate) config: Object,
    /// The datasets.
    pub(crate) dsl: Dsl,
    /// Counts of uses, written when they change.
    pub(crate) features: FeatureCounts,
    /// For each dataset, the features that are known to be recorded in its ZAP already.
    pub(crate) used_features: BTreeMap<ObjectId, Needs>,
    /// Open heads of which nothing but the header of the intent log may change. They are closed when their txg is on disk.
    pub(crate) headers_only: BTreeSet<ObjectId>,
    /// How long clones' livelists get.
    pub(crate) livelist_limits: LivelistLimits,
    /// `filesystem_limit` and `snapshot_limit` apply to changes of the pool.
    pub(crate) obeys_limits: bool,
}

impl Mos {
    /// As it is when a pool is opened or made.
    pub(crate) fn new(objset: Objset, directory: Object, config: Object, dsl: Dsl, features: FeatureCounts) -> Self {
        Self {
            objset,
            directory,
            config,
            dsl,
            features,
            used_features: BTreeMap::new(),
            headers_only: BTreeSet::new(),
            livelist_limits: LivelistTunables::default().limits(),
            obeys_limits: false,
        }
    }

    /// The directory `$FREE`, to which all that is still to be freed counts.
    pub(crate) async fn free_dir(&self) -> Result<ObjectId, SpaError> {
        let root = self.dsl.root_dir().await?;
        let dir = self.dsl.child(&root, pool_directory::FREE_DIR).await?;
        let none = || SpaError::contradiction(format!("there is no directory '{}'", pool_directory::FREE_DIR));
        Ok(dir.ok_or_else(none)?.object)
    }

    /// Adds to what is still to be freed.
    pub(crate) async fn charge_free_dir(&self, txg: Txg, space: SpaceDelta) -> Result<(), SpaError> {
        let free_dir = self.free_dir().await?;
        Ok(self.dsl.charge(txg, free_dir, UsedBy::Head, space).await?)
    }

    /// Has a clone keep no livelist any more, if it keeps one. It is destroyed by its tree then.
    pub(crate) async fn drop_livelist(&mut self, txg: Txg, dir: ObjectId) -> Result<(), SpaError> {
        let mut refs = EmptyRefs::default();
        let dropped = self.dsl.drop_livelist(txg, dir, &mut refs).await?;
        self.features.change("livelist", -i64::from(dropped));
        self.count_empty_refs(txg, refs).await
    }

    /// Counts references to that list; it goes with the last.
    pub(crate) async fn count_empty_refs(&mut self, txg: Txg, refs: EmptyRefs) -> Result<(), SpaError> {
        self.features.change("empty_bpobj", i64::try_from(refs.taken).unwrap_or(i64::MAX));
        self.release_empty_bpobj(txg, refs.released).await
    }

    /// Frees the pool's one empty bpobj (`empty_bpobj`) when nothing refers to it any more.
    pub(crate) async fn release_empty_bpobj(&mut self, txg: Txg, count: u64) -> Result<(), SpaError> {
        if count == 0 {
            return Ok(());
        }
        self.features.change("empty_bpobj", -(count as i64));
        if self.features.count("empty_bpobj") == 0
            && let Some(object) = self.dsl.take_empty_bpobj()
        {
            assert_ne!(object, ObjectId(0), "the list that stands for empty ones is an object");
            Zap::put_entry(&self.directory, txg, pool_directory::EMPTY_BPOBJ, None).await?;
            self.objset.object(object).await?.free(txg);
        }
        Ok(())
    }
}
