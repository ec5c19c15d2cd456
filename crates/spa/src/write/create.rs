//! Making a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_arc::{Cache, pool_bytes};
use cenote_dmu::Dmu;
use cenote_dmu::write::{ObjectSpec, ObjsetMut, ObjsetPolicy, SpaceDelta, Writer, ZapMut, create_zap};
use cenote_dsl::write::{Birth, DslMut};
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_metaslab::{Allocator, SpaceFeatures, Tunables};
use cenote_taskq::{Handle, Rng, buf, join_all};
use cenote_vdev::commit::initialize;
use cenote_vdev::config::VdevConfig;
use cenote_vdev::tree::VdevTree;
use cenote_zio::{AllocationUnits, Zio};

use super::config::{CONFIG_BLOCK_BYTES, VERSION};
use super::features::{FeatureCounts, of_new_pool};
use super::members::Members;
use super::space::{Space, vdev_setup};
use super::vdevs::{MadeVdevs, TopSpec};
use super::{Clock, Head, Host, MOS_COPIES, PoolWriter, history};
use crate::SpaError;
use crate::config::PoolState;
use crate::space::vdev_maps_of;

/// Blocks of the list of deferred frees.
const SYNC_BPOBJ_BLOCK_BYTES: u32 = 16 << 10;

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The name.
    pub name: String,
    /// The top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// Sector size as a power of two; as the devices say if not given.
    pub ashift: Option<u32>,
    /// Features that are not enabled; all others that OpenZFS 2.3 knows are.
    pub disabled_features: Vec<String>,
    /// Pool properties to be set, by name: words as they are kept.
    pub properties: Vec<(String, u64)>,
    /// What guids, salts and the like follow from; drawn by the machine if not given.
    pub seed: Option<u64>,
    /// Where time comes from.
    pub clock: Clock,
    /// Who makes it.
    pub host: Host,
    /// The command line, for the history.
    pub command: String,
    /// The user, for the history.
    pub user: u64,
    /// Memory of the block cache.
    pub cache_bytes: usize,
    /// Keep a second book of extents, which every allocation, free and device write is checked against.
    pub check: bool,
}

/// Makes a pool in memory, and labels on its devices. It is a pool when its first txg is synced: what belongs into that (the
/// root file system) is written before. Whatever was on the devices is lost.
///
/// # Errors
/// What is asked for is no pool, or the devices cannot be written.
pub async fn create(handle: &Handle, options: CreateOptions) -> Result<PoolWriter, SpaError> {
    let CreateOptions { name, tops, host, clock, .. } = options;
    check_name(&name)?;
    let txg = Txg::INITIAL;
    let mut rng = Rng::new(options.seed.unwrap_or_else(|| handle.random_u64()));
    let guid = Guid(rng.next_u64() | 1);
    let enabled = of_new_pool(&options.disabled_features)?;
    let mut vdevs = MadeVdevs::new(tops, options.ashift, txg, &mut rng)?;

    let failed = |error: String| SpaError::Write { pool: name.clone(), what: error };
    let config = VdevConfig::parse(&vdevs.tree(guid)).map_err(|error| failed(error.to_string()))?;
    let disks: BTreeMap<_, _> = vdevs.leaves().map(|(_, leaf)| (leaf.guid, leaf.spec.disk.clone())).collect();
    let tree = Arc::new(VdevTree::open(&config, disks.clone()).map_err(|error| failed(error.to_string()))?);
    let zio = Zio::new(tree.clone());
    let mut salt = [0; 32];
    rng.fill(&mut salt);
    zio.set_salt(&salt);
    buf::set_pool_limit_bytes(pool_bytes(options.cache_bytes).max(1 << 20));
    let dmu = Dmu::new(handle.clone(), zio, Arc::new(Cache::new(options.cache_bytes)));
    let has = |name: &str| enabled.iter().any(|feature| feature.name == name);
    let space_features =
        SpaceFeatures { spacemap_v2: has("spacemap_v2"), log_spacemap: has("log_spacemap") && has("spacemap_v2") };
    let space =
        Arc::new(new_space(handle, clock, &config, &tree, space_features, &vdevs, options.check).map_err(failed)?);
    let writer = Writer::new(dmu.clone(), space.clone());

    let policy = ObjsetPolicy {
        may_embed: has("embedded_data"),
        holes_have_births: has("hole_birth"),
        ..ObjsetPolicy::new(MOS_COPIES)
    };
    let mos = ObjsetMut::create(dmu, ObjsetId(0), ObjsetType::Meta, policy);
    space.set_mos(&mos);
    let time_s = match clock {
        Clock::Now => handle.unix_time().as_secs(),
        Clock::Fixed(time) => time,
    };
    let birth = Birth { time_s, txg };
    let dmu_failed = |error| SpaError::Dmu { pool: name.clone(), error };
    let dsl_failed = |error: cenote_dsl::DslError| SpaError::Write { pool: name.clone(), what: error.to_string() };

    let object = mos.create_at(txg, pool_directory::OBJECT, &ObjectSpec::new(DmuType::OBJECT_DIRECTORY, 512));
    let directory_object = object.map_err(dmu_failed)?;
    let mut directory = ZapMut::create(directory_object.clone()).map_err(dmu_failed)?;
    let mut features = FeatureCounts::create(&mos, &mut directory, &enabled, txg).await.map_err(dmu_failed)?;
    let dsl = DslMut::create(&mos, &writer, birth, &mut rng).await.map_err(dsl_failed)?;
    let dataset = dsl.create_dataset(dsl.root_dir, birth, &mut rng).await.map_err(dsl_failed)?;

    vdevs.make_zaps(&mos, &mut directory, txg).await.map_err(dmu_failed)?;
    if vdevs.has_draid() {
        features.change("draid", 1);
    }
    let spec =
        ObjectSpec::new(DmuType::PACKED_NVLIST, CONFIG_BLOCK_BYTES).with_bonus(DmuType::PACKED_NVLIST_SIZE, vec![0; 8]);
    let members = Members::new(vdevs.tree(guid), disks).map_err(|error| failed(error.to_string()))?;
    let config = mos.create_object(txg, &spec).map_err(dmu_failed)?;
    let deferred = BpobjPhys { compressed: Some([0; 2]), children: Some((ObjectId(0), 0)), ..BpobjPhys::default() };
    let mut spec = ObjectSpec::new(DmuType::BPOBJ, SYNC_BPOBJ_BLOCK_BYTES)
        .with_bonus(DmuType::BPOBJ_HDR, deferred.emit(cenote_zio::ORDER));
    spec.uncompressed = true;
    let deferred = mos.create_object(txg, &spec).map_err(dmu_failed)?;
    let properties: Vec<(&str, ZapValue)> =
        options.properties.iter().map(|(name, word)| (name.as_str(), ZapValue::from_u64(*word))).collect();
    let properties = create_zap(&mos, txg, DmuType::POOL_PROPS, &properties).await.map_err(dmu_failed)?;
    let text = format!("pool version {VERSION}; software version cenote {}", env!("CARGO_PKG_VERSION"));
    let records = [
        history::event(time_s, txg, &host.name, "create", &text),
        history::command(time_s, &host.name, options.user, &options.command),
    ];
    let bytes: u64 = vdevs.tops.iter().map(|top| top.asize_bytes).sum();
    let history = history::create(&mos, txg, bytes, &records).await.map_err(dmu_failed)?;
    for (entry, object) in [
        (pool_directory::ROOT_DATASET, dsl.root_dir),
        (pool_directory::FREE_BPOBJ, dsl.free_bpobj),
        (pool_directory::CONFIG, config.id()),
        (pool_directory::SYNC_BPOBJ, deferred.id()),
        (pool_directory::PROPERTIES, properties.id()),
        (pool_directory::HISTORY, history.id()),
        (pool_directory::DEFLATE, ObjectId(1)),
        (pool_directory::CREATION_VERSION, ObjectId(VERSION)),
    ] {
        directory.insert_u64(entry, object.0).await.map_err(dmu_failed)?;
    }
    let salt = ZapValue::from_bytes(&salt);
    directory.insert(pool_directory::CHECKSUM_SALT.as_bytes(), &salt).await.map_err(dmu_failed)?;
    directory.flush(txg).await.map_err(dmu_failed)?;

    let root = ObjsetMut::create(
        mos.dmu().clone(),
        ObjsetId(dataset.0),
        ObjsetType::Zfs,
        ObjsetPolicy { copies: 1, ..policy },
    );
    let pool = PoolWriter {
        handle: handle.clone(),
        name: name.clone(),
        guid,
        host,
        clock,
        members,
        old_config: NvList::new(),
        raidz_reflow: 0,
        tree,
        space,
        writer,
        mos,
        directory: directory_object,
        config,
        dsl,
        features,
        used_features: BTreeSet::new(),
        datasets: vec![Head { dataset, objset: root }],
        txg,
        state: PoolState::Active,
        config_changed: true,
        mos_delta: SpaceDelta::default(),
        passes: 0,
        phases: Vec::new(),
        is_live: false,
    };
    pool.initialize_labels().await?;
    Ok(pool)
}

/// Refuses names that no pool can have, or that would be taken for a kind of vdev.
fn check_name(name: &str) -> Result<(), SpaError> {
    let refuse = |reason: &str| Err(SpaError::CannotCreate(format!("cannot create '{name}': {reason}")));
    if name.contains(['/', '@', '#']) {
        return refuse("a pool's name is one component");
    }
    if let Err(error) = cenote_dsl::name::Name::parse(name) {
        return refuse(&error.to_string());
    }
    let reserved = ["mirror", "raidz", "draid", "spare"].iter().any(|word| name.starts_with(word));
    if reserved || name == "log" {
        return refuse("name is reserved");
    }
    Ok(())
}

/// The allocator over new vdevs.
fn new_space(
    handle: &Handle,
    clock: Clock,
    vdevs: &VdevConfig,
    tree: &Arc<VdevTree>,
    features: SpaceFeatures,
    made: &MadeVdevs,
    check: bool,
) -> Result<Space, String> {
    let mut allocator = Allocator::new(features, Tunables::default(), check);
    let mut sector_bytes = u64::MAX;
    for (id, top) in vdevs.children.iter().enumerate() {
        let maps = vdev_maps_of(VdevId(id as u32), top);
        let leaves = made.tops.get(id).into_iter().flat_map(|top| &top.leaves);
        let is_rotational = leaves.into_iter().any(|leaf| leaf.spec.disk.device().is_rotational());
        let setup = vdev_setup(tree, top, maps, Txg::INITIAL, is_rotational);
        allocator.add_vdev(setup, true).map_err(|error| error.to_string())?;
        sector_bytes = sector_bytes.min(1 << top.ashift);
    }
    // What a larger sector needs beyond is padded when it is stored.
    let units = AllocationUnits { min_bytes: sector_bytes, step_bytes: sector_bytes };
    Ok(Space::new(handle.clone(), clock, units, allocator))
}

impl MadeVdevs {
    fn has_draid(&self) -> bool {
        self.tops.iter().any(|top| matches!(top.kind, super::TopKind::Draid { .. }))
    }

    /// Makes the ZAPs of root, tops and leaves, and the arrays of metaslabs.
    async fn make_zaps(
        &mut self,
        mos: &ObjsetMut,
        directory: &mut ZapMut,
        txg: Txg,
    ) -> Result<(), cenote_dmu::DmuError> {
        let mut all = Vec::new();
        let mut made = Vec::new();
        let count = 1 + self.tops.iter().map(|top| 1 + top.leaves.len()).sum::<usize>();
        for _ in 0..count {
            made.push(create_zap(mos, txg, DmuType::ZAP_METADATA, &[]).await?.id());
        }
        let mut next = made.into_iter();
        let mut take = || {
            let id = next.next().unwrap_or(ObjectId(0));
            all.push(id);
            id
        };
        self.root_zap = take();
        for top in &mut self.tops {
            top.zap = take();
            top.leaves.iter_mut().for_each(|leaf| leaf.zap = take());
        }
        for top in &mut self.tops {
            top.metaslab_array = mos.create_object(txg, &ObjectSpec::new(DmuType::OBJECT_ARRAY, 512))?.id();
        }
        let names: Vec<(String, ZapValue)> =
            all.iter().map(|id| (int_key_name(id.0), ZapValue::from_u64(id.0))).collect();
        let entries: Vec<(&str, ZapValue)> = names.iter().map(|(name, id)| (name.as_str(), id.clone())).collect();
        let map = create_zap(mos, txg, DmuType::ZAP_METADATA, &entries).await?;
        directory.insert_u64(pool_directory::VDEV_ZAP_MAP, map.id().0).await
    }
}

impl PoolWriter {
    /// Gives every device labels of this pool, with rings that are empty.
    async fn initialize_labels(&self) -> Result<(), SpaError> {
        let leaves = self.leaf_commits(Txg(0), true);
        let made = join_all(leaves.iter().map(async |leaf| match &leaf.config {
            Some(config) => initialize(&leaf.disk, config).await.map_err(|error| (leaf.disk.path().clone(), error)),
            None => Ok(()),
        }));
        for result in made.await {
            result.map_err(|(path, error)| self.fail(format!("{path}: {error}")))?;
        }
        Ok(())
    }
}
