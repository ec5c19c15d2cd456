//! A pool as of one txg: what an import gives, and what a pool in use gives to those that read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_arc::Cache;
use cenote_dmu::{Dmu, Object, Objset, Zap};
use cenote_dsl::Dsl;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::boxed;
use cenote_vdev::config::VdevConfig;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::tree::VdevTree;
use cenote_zio::ZioError;

use crate::features::{FEATURES, Feature, FeatureState};
use crate::indirect::Mappings;
use crate::pins::Pin;
use crate::{FoundPool, NamePool as _, PoolError, SpaError};

/// Entries of the feature ZAPs and of the pool's properties at most.
const ENTRIES_MAX: usize = 1 << 12;
/// A configuration's size at most: what OpenZFS writes for thousands of vdevs is a few MiB.
const CONFIG_MAX_BYTES: u64 = 64 << 20;

/// A pool as of one txg, to be read. Cheap to clone.
#[derive(Clone)]
pub struct View {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) uberblock: Uberblock,
    pub(crate) config: NvList,
    pub(crate) vdevs: VdevConfig,
    pub(crate) tree: Arc<VdevTree>,
    pub(crate) dmu: Dmu,
    pub(crate) mos: Objset,
    pub(crate) directory: Zap,
    pub(crate) dsl: Dsl,
    pub(crate) found: FoundPool,
    pub(crate) mappings: Mappings,
    /// Those by which the tree reads, of a pool that was imported.
    pub(crate) tree_mappings: Arc<Mappings>,
    pub(crate) altroot: Option<String>,
    pub(crate) is_checkpoint_view: bool,
    /// The txg is kept by a pool in use, whose devices these are: they go on when this is closed.
    pub(crate) pin: Option<Arc<Pin>>,
    pub(crate) missed: BTreeMap<Guid, Dtl>,
    pub(crate) unnoted: BTreeMap<Guid, Dtl>,
    pub(crate) late: BTreeSet<Guid>,
    pub(crate) notes: Vec<String>,
}

impl View {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.shared.guid
    }

    /// The root that it was opened at.
    #[must_use]
    pub fn uberblock(&self) -> &Uberblock {
        &self.shared.uberblock
    }

    /// The txg of that.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.shared.uberblock.txg
    }

    /// The configuration of the MOS.
    #[must_use]
    pub fn config(&self) -> &NvList {
        &self.shared.config
    }

    /// The tree of vdevs as configured.
    #[must_use]
    pub fn vdevs(&self) -> &VdevConfig {
        &self.shared.vdevs
    }

    /// Ends what goes on by itself: refuses new detached work (reading ahead, parts of long reads, reads of devices that nobody waits
    /// for any more) from now on, and resolves
    /// when none is left. The devices are then read by nobody but callers that are still in a call; such reads may fail.
    #[boxed]
    pub async fn close(&self) {
        self.shared.dmu.detached().close().await;
        if let Some(left) = self.shared.tree.left().filter(|_| self.shared.pin.is_none()) {
            left.close().await;
        }
    }

    /// Fails unless all that was read until now was of the view's txg. To be asked when the work is done, and where a read fails. A
    /// view of a pool that nothing writes never fails.
    ///
    /// # Errors
    /// So much was freed meanwhile that the pool in use gave the view up.
    pub fn check(&self) -> Result<(), SpaError> {
        match self.shared.pin.as_ref().is_some_and(|pin| pin.is_given_up()) {
            false => Ok(()),
            true => Err(SpaError::ViewGivenUp { pool: self.name().to_owned(), txg: self.txg() }),
        }
    }

    /// The open vdevs, with their health and error counts.
    #[must_use]
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.shared.tree
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        &self.shared.dmu
    }

    /// The block cache.
    #[must_use]
    pub fn cache(&self) -> &Cache<ZioError> {
        self.shared.dmu.cache()
    }

    /// The meta objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        &self.shared.mos
    }

    /// The MOS's directory of objects.
    #[must_use]
    pub fn directory(&self) -> &Zap {
        &self.shared.directory
    }

    /// The datasets.
    #[must_use]
    pub fn dsl(&self) -> &Dsl {
        &self.shared.dsl
    }

    /// The devices that it was put together from.
    #[must_use]
    pub fn found(&self) -> &FoundPool {
        &self.shared.found
    }

    /// The alternate root for mount points, if one was given.
    #[must_use]
    pub fn altroot(&self) -> Option<&str> {
        self.shared.altroot.as_deref()
    }

    /// Whether this is the pool as of its checkpoint.
    #[must_use]
    pub(crate) fn is_checkpoint_view(&self) -> bool {
        self.shared.is_checkpoint_view
    }

    /// The txgs that leaves have missed, by their dirty time logs.
    pub(crate) fn dtls(&self) -> &BTreeMap<Guid, Dtl> {
        &self.shared.missed
    }

    /// Txgs that leaves have missed and that no dirty time log has: by their labels, or all up to now where a log cannot be read.
    pub(crate) fn unnoted_txgs(&self) -> &BTreeMap<Guid, Dtl> {
        &self.shared.unnoted
    }

    /// Leaves that did not take the last commit and have all blocks of it.
    pub(crate) fn late_leaves(&self) -> &BTreeSet<Guid> {
        &self.shared.late
    }

    /// Remarkable events of the import: a rewind, a missing log, ... Each is a sentence.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.shared.notes
    }

    pub(crate) fn error(&self, error: impl Into<PoolError>) -> SpaError {
        SpaError::from(error.into()).named(self.name())
    }

    pub(crate) fn corrupt(&self, what: impl Into<String>) -> SpaError {
        self.error(PoolError::Contradiction(what.into()))
    }

    /// The object that an entry of the MOS's directory names.
    #[boxed]
    pub async fn directory_object(&self, name: &str) -> Result<Option<Object>, SpaError> {
        let id = self.directory().find_u64(name).await.map_err(|error| self.error(error))?;
        match id {
            Some(id) => Ok(Some(self.mos().object(ObjectId(id)).await.map_err(|error| self.error(error))?)),
            None => Ok(None),
        }
    }

    /// Every known feature with its state, and unknown ones by guid.
    #[boxed]
    pub async fn features(&self) -> Result<Vec<(FeatureName, FeatureState)>, SpaError> {
        let mut counts = self.feature_counts(pool_directory::FEATURES_FOR_READ).await?;
        counts.append(&mut self.feature_counts(pool_directory::FEATURES_FOR_WRITE).await?);
        let state = |count: Option<u64>| match count {
            None => FeatureState::Disabled,
            Some(0) => FeatureState::Enabled,
            Some(_) => FeatureState::Active,
        };
        let mut found: Vec<_> =
            FEATURES.iter().map(|feature| (FeatureName::Known(feature), state(counts.remove(feature.guid)))).collect();
        found.extend(counts.into_iter().map(|(guid, count)| (FeatureName::Unknown(guid), state(Some(count)))));
        Ok(found)
    }

    /// Reference counts of the features in one of the two ZAPs.
    #[boxed]
    pub async fn feature_counts(&self, entry: &str) -> Result<BTreeMap<String, u64>, SpaError> {
        let Some(dnode) = self.directory_object(entry).await? else { return Ok(BTreeMap::new()) };
        let counts = feature_counts(dnode).await;
        counts.map_err(|error| self.error(error))
    }

    /// The properties of a vdev that are set, by name. It may have other entries, of jobs, whose names have colons.
    #[boxed]
    pub async fn vdev_properties(
        &self,
        vdev: &VdevConfig,
    ) -> Result<BTreeMap<String, cenote_dsl::property::Value>, SpaError> {
        let object = [vdev.root_zap, vdev.top_zap, vdev.leaf_zap].into_iter().find(|object| *object != ObjectId(0));
        let Some(object) = object else { return Ok(BTreeMap::new()) };
        let object = self.mos().object(object).await.map_err(|error| self.error(error))?;
        self.values_of(object).await
    }

    /// The pool's own properties that are set, by name: numbers as decimal text.
    #[boxed]
    pub async fn properties(&self) -> Result<BTreeMap<String, cenote_dsl::property::Value>, SpaError> {
        let Some(dnode) = self.directory_object(pool_directory::PROPERTIES).await? else { return Ok(BTreeMap::new()) };
        self.values_of(dnode).await
    }

    async fn values_of(&self, dnode: Object) -> Result<BTreeMap<String, cenote_dsl::property::Value>, SpaError> {
        use cenote_dsl::property::Value;
        let mut found = BTreeMap::new();
        let zap = Zap::open(dnode).await.map_err(|error| self.error(error))?;
        for entry in zap.entries(ENTRIES_MAX).await.map_err(|error| self.error(error))? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let value = match (entry.value.as_u64(), entry.value.as_text()) {
                (Some(number), _) => Value::Number(number),
                (None, Some(text)) => Value::Text(text.to_owned()),
                (None, None) => continue,
            };
            found.insert(name, value);
        }
        Ok(found)
    }
}

/// A feature by its registration, or by guid alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureName {
    /// A feature of [`FEATURES`].
    Known(&'static Feature),
    /// A guid that is not registered here.
    Unknown(String),
}

pub(crate) async fn feature_counts(dnode: Object) -> Result<BTreeMap<String, u64>, cenote_dmu::DmuError> {
    let zap = Zap::open(dnode).await?;
    let entries = zap.entries(ENTRIES_MAX).await?;
    Ok(entries
        .into_iter()
        .filter_map(|entry| Some((String::from_utf8_lossy(entry.name()).into_owned(), entry.value.as_u64()?)))
        .collect())
}

/// Reads an nvlist that an object holds: its size is the bonus, its bytes the data.
pub(crate) async fn packed_list(dnode: &Object) -> Result<NvList, cenote_dmu::DmuError> {
    let corrupt = |what: String| dnode.error(cenote_dmu::DmuErrorKind::Corrupt(what));
    let size = dnode.bonus_word();
    let size = size.ok_or_else(|| corrupt("a packed nvlist without its size".into()))?;
    if size > CONFIG_MAX_BYTES {
        return Err(corrupt(format!("a packed nvlist of {size} bytes")));
    }
    let bytes = dnode.read(0, size as usize).await?;
    NvList::parse(&bytes).map_err(|error| dnode.error(error))
}
