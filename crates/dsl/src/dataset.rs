//! Datasets: heads and snapshots.

use std::collections::BTreeMap;

use cenote_dmu::{Caching, KeyAccess, Kinds, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DatasetFlags, DslDatasetPhys};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_taskq::{boxed, map_concurrent};

use crate::dir::Names;
use crate::name::{NameError, Tail};
use crate::{Dir, Dsl, DslError};

/// Snapshots of one dataset at most, as a bound on memory.
const SNAPSHOTS_MAX: usize = 1 << 24;
/// Snapshots of one dataset that are read concurrently.
const SNAPSHOTS_AHEAD: usize = 32;
/// Clones of one snapshot at most: each is a directory.
const CLONES_MAX: usize = 1 << 22;
/// Holds of one snapshot at most.
const HOLDS_MAX: usize = 1 << 20;

/// A file system, volume, or snapshot of one.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its object in the MOS, which is also its objset's number.
    pub object: ObjectId,
    /// The directory it belongs to.
    pub dir: Dir,
    /// The part after `@`, for snapshots.
    pub snapshot: Option<String>,
    /// Its fields.
    pub phys: DslDatasetPhys,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The tag.
    pub tag: String,
    /// When it was placed, in seconds since 1970.
    pub time_s: u64,
}

impl Dataset {
    /// The full name.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.dir.name),
            None => self.dir.name.clone(),
        }
    }

    /// Its objset's number.
    #[must_use]
    pub fn objset_id(&self) -> ObjsetId {
        ObjsetId(self.object.0)
    }

    /// True for a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// True while it is half received or half destroyed.
    #[must_use]
    pub fn is_inconsistent(&self) -> bool {
        self.phys.flags.contains(DatasetFlags::INCONSISTENT)
    }

    /// Refuses a dataset that is half received or half destroyed. All code that reads or changes a dataset's contents calls this, except its
    /// receiver and reports on what is on disk.
    ///
    /// # Errors
    /// [`DslError::Inconsistent`].
    pub fn check_whole(&self) -> Result<(), DslError> {
        match self.is_inconsistent() {
            true => Err(DslError::Inconsistent(self.name())),
            false => Ok(()),
        }
    }
}

impl Dsl {
    /// The head dataset of a directory; `None` for directories that have none (`$MOS`, `$FREE`).
    #[boxed]
    pub async fn head(&self, dir: &Dir) -> Result<Option<Dataset>, DslError> {
        if dir.phys.head_dataset.0 == 0 {
            return Ok(None);
        }
        self.dataset_object(dir.phys.head_dataset, dir.clone(), None).await.map(Some)
    }

    /// Reads the dataset in `object`.
    #[boxed]
    pub async fn dataset_object(
        &self,
        object: ObjectId,
        dir: Dir,
        snapshot: Option<String>,
    ) -> Result<Dataset, DslError> {
        let dnode = self.mos_object(object).await?;
        if dnode.phys().bonus_type != DmuType::DSL_DATASET {
            return Err(DslError::Corrupt { object: object.0, what: "not a DSL dataset".into() });
        }
        let phys = dnode.bonus(DslDatasetPhys::parse).map_err(|error| DslError::Format { object: object.0, error })?;
        Ok(Dataset { object, dir, snapshot, phys })
    }

    /// The dataset with this full name: a head or a snapshot. If there is none, a head whose own name contains a delimiter (other software's
    /// rules for names allow that).
    #[boxed]
    pub async fn dataset(&self, name: &str) -> Result<Dataset, DslError> {
        match self.dataset_by_rules(name).await {
            Err(problem @ (DslError::NoSuchDataset(_) | DslError::BadName { .. })) => {
                let Some(dir) = self.find_dir(name).await? else { return Err(problem) };
                self.head(&dir).await?.ok_or(problem)
            }
            found => found,
        }
    }

    async fn dataset_by_rules(&self, name: &str) -> Result<Dataset, DslError> {
        let absent = || DslError::NoSuchDataset(name.into());
        let (dir, tail) = self.resolve(name).await?;
        let head = self.head(&dir).await?.ok_or_else(absent)?;
        match tail {
            Tail::Head => Ok(head),
            Tail::Snapshot(snapshot) => {
                let zap = Zap::open(self.mos_object(head.phys.snapshot_names).await?).await?;
                let object = zap.find_u64(snapshot).await?.ok_or_else(absent)?;
                self.dataset_object(ObjectId(object), dir, Some(snapshot.into())).await
            }
            Tail::Bookmark(_) => Err(DslError::BadName { name: name.into(), reason: NameError::NoContents }),
        }
    }

    /// The object of a head's snapshot with this name, if it exists.
    #[boxed]
    pub async fn snapshot_object(&self, head: &Dataset, name: &str) -> Result<Option<ObjectId>, DslError> {
        if head.phys.snapshot_names.0 == 0 {
            return Ok(None);
        }
        let zap = Zap::open(self.mos_object(head.phys.snapshot_names).await?).await?;
        Ok(zap.find_u64(name).await?.map(ObjectId))
    }

    /// The snapshots of a head, oldest first.
    #[boxed]
    pub async fn snapshots(&self, head: &Dataset) -> Result<Vec<Dataset>, DslError> {
        let mut found = Vec::new();
        let named = self.snapshot_names(head).await?;
        // Each may be in a block of its own: snapshots taken together are neighbours, but those of one dataset are not.
        for some in named.chunks(SNAPSHOTS_AHEAD) {
            let read = map_concurrent(SNAPSHOTS_AHEAD, some, |(object, name)| {
                self.dataset_object(*object, head.dir.clone(), Some(name.clone()))
            });
            for snapshot in read.await {
                found.push(snapshot?);
            }
        }
        found.sort_by(|a, b| {
            (a.phys.creation_txg, a.object, &a.snapshot).cmp(&(b.phys.creation_txg, b.object, &b.snapshot))
        });
        Ok(found)
    }

    /// The objects and names of a head's snapshots, without reading the snapshots.
    ///
    /// # Errors
    /// The list of names cannot be read.
    #[boxed]
    pub async fn snapshot_names(&self, head: &Dataset) -> Result<Vec<(ObjectId, String)>, DslError> {
        let mut named = Vec::new();
        if head.phys.snapshot_names.0 == 0 {
            return Ok(named);
        }
        let zap = Zap::open(self.mos_object(head.phys.snapshot_names).await?).await?;
        for entry in zap.entries(SNAPSHOTS_MAX).await? {
            let Some(object) = entry.value.as_u64() else { continue };
            named.push((ObjectId(object), String::from_utf8_lossy(entry.name()).into_owned()));
        }
        Ok(named)
    }

    /// The names of the heads in these objects, by object. Each directory's list of children is read only once. Heads that cannot be read are
    /// left out.
    #[boxed]
    pub async fn head_names(&self, heads: &[ObjectId]) -> BTreeMap<ObjectId, String> {
        let (mut names, mut found) = (Names::default(), BTreeMap::new());
        let Ok(root) = self.root_dir().await else { return found };
        for head in heads {
            let nameless = Dir { object: ObjectId(0), name: String::new(), phys: root.phys.clone() };
            let Ok(dataset) = self.dataset_object(*head, nameless, None).await else { continue };
            if let Ok(name) = names.dir_name(self, dataset.phys.dir).await {
                found.insert(*head, name);
            }
        }
        found
    }

    /// The full name of the dataset in `object`. A snapshot's is found in its head's list.
    #[boxed]
    pub async fn dataset_name(&self, object: ObjectId) -> Result<String, DslError> {
        let nameless = Dir { object: ObjectId(0), name: String::new(), phys: self.root_dir().await?.phys };
        let dataset = self.dataset_object(object, nameless, None).await?;
        let name = self.dir_name(dataset.phys.dir).await?;
        let dir = self.dir_object(dataset.phys.dir, name).await?;
        if dir.phys.head_dataset == object {
            return Ok(dir.name);
        }
        let head = self.head(&dir).await?;
        let head =
            head.ok_or_else(|| DslError::Corrupt { object: object.0, what: "its directory has no head".into() })?;
        let zap = Zap::open(self.mos_object(head.phys.snapshot_names).await?).await?;
        let mut listing = zap.listing();
        while let Some(batch) = listing.next().await? {
            if let Some(entry) = batch.iter().find(|entry| entry.value.as_u64() == Some(object.0)) {
                return Ok(format!("{}@{}", dir.name, String::from_utf8_lossy(entry.name())));
            }
        }
        Err(DslError::Corrupt { object: object.0, what: "no snapshot list names it".into() })
    }

    /// Holds on a snapshot, by tag.
    #[boxed]
    pub async fn holds(&self, dataset: &Dataset) -> Result<Vec<Hold>, DslError> {
        if dataset.phys.user_refs.0 == 0 {
            return Ok(Vec::new());
        }
        let zap = Zap::open(self.mos_object(dataset.phys.user_refs).await?).await?;
        let mut holds: Vec<_> = zap
            .entries(HOLDS_MAX)
            .await?
            .into_iter()
            .filter_map(|entry| {
                let tag = String::from_utf8_lossy(entry.name()).into_owned();
                Some(Hold { tag, time_s: entry.value.as_u64()? })
            })
            .collect();
        holds.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(holds)
    }

    /// Names of the clones of a snapshot, sorted.
    #[boxed]
    pub async fn clones(&self, dataset: &Dataset) -> Result<Vec<String>, DslError> {
        let mut clones = Vec::new();
        let mut names = Names::default();
        if dataset.phys.next_clones.0 != 0 {
            let nameless = Dir { object: ObjectId(0), name: String::new(), phys: self.root_dir().await?.phys };
            let zap = Zap::open(self.mos_object(dataset.phys.next_clones).await?).await?;
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                for object in batch.iter().filter_map(|entry| entry.value.as_u64()) {
                    // The first dataset after the snapshot: the clone, or the oldest snapshot of it.
                    let first = self.dataset_object(ObjectId(object), nameless.clone(), None).await?;
                    clones.push(names.dir_name(self, first.phys.dir).await?);
                    if clones.len() > CLONES_MAX {
                        let what = format!("more than {CLONES_MAX} clones");
                        return Err(DslError::Corrupt { object: dataset.object.0, what });
                    }
                }
            }
        }
        clones.sort();
        clones.dedup();
        Ok(clones)
    }

    /// A numeric field of a zapified dataset.
    #[boxed]
    pub async fn dataset_field(&self, dataset: &Dataset, field: &str) -> Result<Option<u64>, DslError> {
        self.object_field(dataset.object, field).await
    }

    /// Opens the dataset's objset, with its key if that is loaded. `None` if it has no objset yet. A dataset that is open for changes is opened
    /// as of the last sync, or as it is now if it was never synced. One that is half received or half destroyed is refused.
    #[boxed]
    pub async fn open(&self, dataset: &Dataset) -> Result<Option<Objset>, DslError> {
        dataset.check_whole()?;
        self.open_as_is(dataset).await
    }

    /// Like [`Dsl::open`], but opens also a dataset that is half received or half destroyed: for reports on what is on disk.
    #[boxed]
    pub async fn open_as_is(&self, dataset: &Dataset) -> Result<Option<Objset>, DslError> {
        if dataset.phys.bp.is_hole() {
            return Ok(self.open_head(dataset.object).map(|head| head.objset));
        }
        let key = match self.key_object(&dataset.dir).await? {
            None => KeyAccess::None,
            Some(object) => match self.loaded_key(object) {
                Some(key) => KeyAccess::Loaded(key),
                None => KeyAccess::None,
            },
        };
        Ok(Some(Objset::open(self.dmu().clone(), dataset.objset_id(), dataset.phys.bp, key).await?))
    }

    /// Like [`Dsl::open`], for clients that read files or volumes: the dataset's `primarycache`, `secondarycache` and `prefetch` apply.
    #[boxed]
    pub async fn open_for_clients(&self, dataset: &Dataset) -> Result<Option<Objset>, DslError> {
        let Some(objset) = self.open(dataset).await? else { return Ok(None) };
        let kinds = async |name| {
            let found = self.property(&dataset.dir, name, true).await?;
            let kinds = found.and_then(|found| found.value.number()).and_then(Kinds::from_property);
            Ok::<_, DslError>(kinds.unwrap_or_default())
        };
        let (primary, prefetch) = (kinds("primarycache").await?, kinds("prefetch").await?);
        objset.set_caching(Caching { primary, prefetch, secondary: kinds("secondarycache").await? });
        Ok(Some(objset))
    }

    /// The kind of the dataset, from its objset block (which is never encrypted).
    #[boxed]
    pub async fn kind(&self, dataset: &Dataset) -> Result<ObjsetType, DslError> {
        let objset = self.open_as_is(dataset).await?;
        Ok(objset.and_then(|objset| objset.phys().objset_type()).unwrap_or(ObjsetType::None))
    }
}
