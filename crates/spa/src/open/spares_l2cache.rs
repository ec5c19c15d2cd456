//! Spares and cache devices: disks that no block of the pool depends on.
//!
//! ```text
//!   MOS directory ── spares ───► packed list {spares:  [{type, guid, path, is_spare, ashift}, …]}
//!                 └─ l2cache ──► packed list {l2cache: [{type, guid, path, ashift}, …]}
//!   the disks                    labels with a state (spare 3, cache 4) and a guid, which name no pool
//! ```
//! Nothing of them is in the vdev tree, nor in the sum of guids. A distributed spare has no disk: it is an entry in the list of spares that
//! names its draid. The earlier contents of a cache device are void: their header is cleared.
//!
//! **Crash.** A disk is labelled before the txg that lists it. Until then it is a spare, or a cache, of no pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::{DmuError, DmuErrorKind, Object, ObjectSpec, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::label::START_BYTES;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::Buf;
use cenote_taskq::{Rng, join_all};
use cenote_vdev::commit::initialize;
use cenote_vdev::leaf::probe;

use crate::auxiliary::free_spare_of;
use crate::config::{CONFIG_BLOCK_BYTES, PoolState, VERSION};
use crate::error::LabelError;
use crate::open::vdevs::{DiskSpec, MadeTop, MadeVdevs, TopKind, ashift_of};
use crate::{FoundAuxiliary, SpaError};

/// The header of a cache device takes a sector, of whatever size.
const CACHE_HEADER_BYTES: usize = 64 << 10;
/// A list of devices at most: some thousand of them.
const LIST_MAX_BYTES: u64 = 4 << 20;

/// Disks beside the vdevs.
#[derive(Clone, Debug, Default)]
pub struct AuxSpec {
    /// Hot spares.
    pub spares: Vec<DiskSpec>,
    /// Cache devices.
    pub caches: Vec<DiskSpec>,
}

impl AuxSpec {
    /// Whether there are none.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.spares.is_empty() && self.caches.is_empty()
    }
}

struct MadeDisk {
    guid: Guid,
    spec: DiskSpec,
    ashift: u32,
    /// It has its labels.
    is_labelled: bool,
}

/// Spares and cache devices that are made.
pub(crate) struct MadeAux {
    spares: Vec<MadeDisk>,
    caches: Vec<MadeDisk>,
    distributed: Vec<NvList>,
}

/// The configuration of a draid's spare.
fn distributed_spare(draid: &MadeTop, id: u64, parity: u64, spare: u64, guid: Guid) -> NvList {
    let mut list = NvList::new();
    list.push("type", "dspare");
    list.push("guid", guid.0);
    list.push("path", format!("draid{parity}-{id}-{spare}").as_str());
    list.push("top_guid", draid.guid.0);
    list.push("spareid", spare);
    list.push("whole_disk", 1_u64);
    list.push("is_spare", 1_u64);
    list.push("ashift", u64::from(draid.ashift));
    list
}

impl MadeDisk {
    fn new(spec: DiskSpec, ashift: Option<u32>, rng: &mut Rng) -> Result<Self, SpaError> {
        spec.allocatable_bytes()?;
        let ashift = ashift_of(std::slice::from_ref(&spec), ashift)?;
        Ok(Self { guid: Guid(rng.next_u64() | 1), spec, ashift, is_labelled: false })
    }

    fn config(&self, is_spare: bool) -> NvList {
        let mut list = NvList::new();
        list.push("type", if self.spec.is_file { "file" } else { "disk" });
        list.push("guid", self.guid.0);
        list.push("path", self.spec.path.as_str());
        if !self.spec.is_file {
            list.push("whole_disk", 0_u64);
        }
        if is_spare {
            list.push("is_spare", 1_u64);
        }
        list.push("ashift", u64::from(self.ashift));
        list
    }

    fn label(&self, state: PoolState) -> NvList {
        assert!(
            matches!(state, PoolState::Spare | PoolState::L2Cache),
            "a disk beside the vdevs is a spare or a cache"
        );
        let mut list = NvList::new();
        list.push("version", VERSION);
        list.push("state", state.number());
        list.push("guid", self.guid.0);
        if state == PoolState::L2Cache {
            list.push("ashift", u64::from(self.ashift));
        }
        list.push("path", self.spec.path.as_str());
        list
    }

    /// Writes labels; what a cache held is void. Stable when this is done.
    async fn initialize(&self, state: PoolState) -> Result<(), LabelError> {
        let path = &self.spec.path;
        if state == PoolState::L2Cache {
            let header = Buf::zeroed(CACHE_HEADER_BYTES).freeze();
            self.spec.disk.write(START_BYTES, header).await.map_err(|error| LabelError::new(path, error))?;
        }
        initialize(&self.spec.disk, &self.label(state)).await.map_err(|error| LabelError::new(path, error))
    }
}

/// The labels of a spare that is in use no more, by its entry in the list.
pub(crate) fn spare_label(listed: &NvList) -> NvList {
    let mut list = NvList::new();
    list.push("version", VERSION);
    list.push("state", PoolState::Spare.number());
    list.push("guid", listed.u64("guid").unwrap_or(0));
    list.push("path", listed.str("path").unwrap_or("-"));
    list
}

impl MadeAux {
    /// Gives what is asked for identities, and the new draids their spares. A device that is a spare already stays the same one: another pool may
    /// have it in its list, and each sees by the labels whether it is in use.
    pub(crate) async fn new(
        spec: AuxSpec,
        ashift: Option<u32>,
        vdevs: &MadeVdevs,
        rng: &mut Rng,
    ) -> Result<Self, SpaError> {
        let mut make = |specs: Vec<DiskSpec>| {
            specs.into_iter().map(|spec| MadeDisk::new(spec, ashift, rng)).collect::<Result<Vec<_>, _>>()
        };
        let (mut spares, caches) = (make(spec.spares)?, make(spec.caches)?);
        let mut guids = BTreeSet::new();
        for spare in &mut spares {
            let before = free_spare_of(&probe(&spare.spec.disk).await);
            // A copy of one that is among them already becomes a spare of its own.
            if let Some((guid, is_labelled)) = before.filter(|(guid, _)| guids.insert(*guid)) {
                (spare.guid, spare.is_labelled) = (guid, is_labelled);
            }
        }
        let mut distributed = Vec::new();
        for (id, top) in (vdevs.first_id..).zip(&vdevs.tops) {
            if let TopKind::Draid { parity, spares, .. } = top.kind {
                let spares =
                    (0..spares).map(|spare| distributed_spare(top, id, parity, spare, Guid(rng.next_u64() | 1)));
                distributed.extend(spares);
            }
        }
        Ok(Self { spares, caches, distributed })
    }

    /// The spares that have disks.
    pub(crate) fn spare_guids(&self) -> Vec<Guid> {
        self.spares.iter().map(|spare| spare.guid).collect()
    }

    /// A spare that is in this list of the pool already.
    pub(crate) fn listed_in(&self, listed: &[NvList]) -> Option<&str> {
        let is_listed = |spare: &&MadeDisk| listed.iter().any(|other| other.u64("guid") == Some(spare.guid.0));
        self.spares.iter().find(is_listed).map(|spare| spare.spec.path.as_str())
    }

    /// Labels the disks. Nothing is written to a spare that has its labels: another pool may rely on them.
    pub(crate) async fn initialize(&self) -> Result<(), LabelError> {
        let spares = self.spares.iter().filter(|disk| !disk.is_labelled).map(|disk| (disk, PoolState::Spare));
        let caches = self.caches.iter().map(|disk| (disk, PoolState::L2Cache));
        let made = join_all(spares.chain(caches).map(|(disk, state)| disk.initialize(state))).await;
        made.into_iter().collect()
    }

    /// These and those that were found before.
    pub(crate) fn found_with(
        &self,
        before: &Arc<BTreeMap<Guid, FoundAuxiliary>>,
    ) -> Arc<BTreeMap<Guid, FoundAuxiliary>> {
        let spares = self.spares.iter().map(|disk| (disk, PoolState::Spare));
        let caches = self.caches.iter().map(|disk| (disk, PoolState::L2Cache));
        let found = spares
            .chain(caches)
            .map(|(made, state)| (made.guid, FoundAuxiliary { guid: made.guid, disk: made.spec.disk.clone(), state }));
        match self.spares.is_empty() && self.caches.is_empty() {
            true => before.clone(),
            false => Arc::new(before.iter().map(|(guid, found)| (*guid, found.clone())).chain(found).collect()),
        }
    }

    /// Enters them into the MOS, behind those that are there.
    pub(crate) async fn enter(&self, mos: &Objset, directory: &mut Zap, txg: Txg) -> Result<(), DmuError> {
        let spares = self.spares.iter().map(|disk| disk.config(true)).chain(self.distributed.iter().cloned());
        add(mos, directory, txg, pool_directory::SPARES, spares.collect()).await?;
        let caches = self.caches.iter().map(|disk| disk.config(false));
        add(mos, directory, txg, pool_directory::L2CACHE, caches.collect()).await
    }
}

/// Puts devices at the end of a list, which is named as its entry in the directory.
async fn add(mos: &Objset, directory: &mut Zap, txg: Txg, name: &str, devices: Vec<NvList>) -> Result<(), DmuError> {
    if devices.is_empty() {
        return Ok(());
    }
    let found = directory.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64());
    let (object, mut all) = match found {
        Some(object) => {
            let object = mos.object(ObjectId(object)).await?;
            // One that cannot be read begins anew in its place.
            let devices = read_list(&object).await.ok();
            let devices = devices.and_then(|list| list.lists(name).map(<[NvList]>::to_vec)).unwrap_or_default();
            (object, devices)
        }
        None => {
            let spec = ObjectSpec::new(DmuType::PACKED_NVLIST, CONFIG_BLOCK_BYTES)
                .with_bonus(DmuType::PACKED_NVLIST_SIZE, vec![0; 8]);
            let object = mos.create_object(txg, &spec)?;
            directory.insert_u64(name, object.id().0).await?;
            (object, Vec::new())
        }
    };
    all.extend(devices);
    let mut list = NvList::new();
    list.push(name, NvValue::NvlistArray(all));
    write_list(&object, txg, &list).await
}

/// A list of devices beside the vdevs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuxKind {
    Spare,
    Cache,
}

impl AuxKind {
    /// The list's name: in the directory, and within itself.
    const fn list(self) -> &'static str {
        match self {
            Self::Spare => pool_directory::SPARES,
            Self::Cache => pool_directory::L2CACHE,
        }
    }

    /// The kind of vdev, as the pool's history has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Cache => "l2cache",
        }
    }
}

/// The object of a list, if there is one.
async fn list_object(mos: &Objset, directory: &Object, kind: AuxKind) -> Result<Option<Object>, DmuError> {
    let directory = Zap::open(directory.clone()).await?;
    let found = directory.lookup(kind.list().as_bytes()).await?.and_then(|value| value.as_u64());
    match found {
        Some(object) => Ok(Some(mos.object(ObjectId(object)).await?)),
        None => Ok(None),
    }
}

/// The entries of a list; none of one that cannot be read, which the pool's opening has told.
pub(crate) async fn listed(mos: &Objset, directory: &Object, kind: AuxKind) -> Result<Vec<NvList>, DmuError> {
    let Some(object) = list_object(mos, directory, kind).await? else { return Ok(Vec::new()) };
    let list = read_list(&object).await.unwrap_or_default();
    Ok(list.lists(kind.list()).unwrap_or_default().to_vec())
}

/// Takes a device out of a list, and gives its entry; the others stay in their order.
pub(crate) async fn remove_listed(
    mos: &Objset,
    directory: &Object,
    txg: Txg,
    kind: AuxKind,
    guid: Guid,
) -> Result<Option<NvList>, DmuError> {
    let Some(object) = list_object(mos, directory, kind).await? else { return Ok(None) };
    let mut list = read_list(&object).await.unwrap_or_default();
    let mut devices = list.lists(kind.list()).unwrap_or_default().to_vec();
    let Some(at) = devices.iter().position(|device| device.u64("guid") == Some(guid.0)) else { return Ok(None) };
    let removed = devices.remove(at);
    list.remove(kind.list());
    list.push(kind.list(), NvValue::NvlistArray(devices));
    write_list(&object, txg, &list).await?;
    Ok(Some(removed))
}

/// Has a list name the paths at which some of its devices are now.
pub(crate) async fn set_listed_paths(
    mos: &Objset,
    directory: &Object,
    txg: Txg,
    kind: AuxKind,
    paths: &BTreeMap<Guid, String>,
) -> Result<(), DmuError> {
    assert!(!paths.is_empty(), "a list is written where it changes");
    let Some(object) = list_object(mos, directory, kind).await? else { return Ok(()) };
    let mut list = read_list(&object).await.unwrap_or_default();
    let mut devices = list.lists(kind.list()).unwrap_or_default().to_vec();
    for device in &mut devices {
        if let Some(path) = device.u64("guid").and_then(|guid| paths.get(&Guid(guid))) {
            device.remove("path");
            device.push("path", path.as_str());
            // They name the place where it was.
            device.remove("devid");
            device.remove("phys_path");
        }
    }
    list.remove(kind.list());
    list.push(kind.list(), NvValue::NvlistArray(devices));
    write_list(&object, txg, &list).await
}

/// Reads a packed list.
pub(crate) async fn read_list(object: &Object) -> Result<NvList, DmuError> {
    let (objset, id) = (object.objset_id(), object.id());
    let corrupt = |what: String| DmuError::new(objset, id, DmuErrorKind::Corrupt(what));
    let size = object.bonus_word();
    let size = size.filter(|size| *size <= LIST_MAX_BYTES);
    let size = size.ok_or_else(|| corrupt("a packed list without its size, or too long".into()))?;
    let bytes = object.read(0, size as usize).await?;
    NvList::parse(&bytes).map_err(|error| corrupt(error.to_string()))
}

/// Writes a packed list over what was there.
pub(crate) async fn write_list(object: &Object, txg: Txg, list: &NvList) -> Result<(), DmuError> {
    let bytes = list.emit_xdr();
    let block = object.block_bytes().max(512) as usize;
    for (at, part) in bytes.chunks(block).enumerate() {
        let mut data = Buf::zeroed(block);
        data[..part.len()].copy_from_slice(part);
        object.write_block(txg, at as u64, data.freeze());
    }
    object.set_bonus(txg, &(bytes.len() as u64).to_le_bytes())
}
