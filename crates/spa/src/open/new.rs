//! Making a pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_arc::{Cache, buffer_pool_bytes};
use cenote_dmu::{Dmu, ObjectSpec, Objset, ObjsetPolicy, Writer, Zap};
use cenote_dsl::{Birth, Dsl};
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_metaslab::{Allocator, SpaceError, SpaceFeatures, Tunables};
use cenote_taskq::{Handle, Rng, boxed, buf, join_all};
use cenote_vdev::commit::initialize;
use cenote_vdev::config::{AllocationClass, VdevConfig};
use cenote_vdev::disk::Disk;
use cenote_vdev::tree::VdevTree;
use cenote_zio::{AllocationUnits, Zio};

use crate::config::{CONFIG_BLOCK_BYTES, VERSION};
use crate::error::LabelError;
use crate::failmode::FailMode;
use crate::indirect::Mappings;
use crate::jobs::Jobs;
use crate::multihost::Settings;
use crate::open::spares_l2cache::{AuxSpec, MadeAux};
use crate::open::vdevs::{METASLABS_MIN, MadeTop, MadeVdevs, TopSpec, refuse};
use crate::pool::Pool;
use crate::refcount::known::SharedBlocks;
use crate::space::{ALLOCATION_BIAS, vdev_maps_of};
use crate::sync::blocks::Blocks;
use crate::sync::devices::Devices;
use crate::sync::features::{FeatureCounts, obeying, of_new_pool};
use crate::sync::mos::Mos;
use crate::sync::multihost::Multihost;
use crate::sync::space::{Space, vdev_setup};
use crate::sync::vdev_config::RootVdev;
use crate::sync::{Clock, Host, MOS_COPIES, Opened, Syncer, history};
use crate::{FoundLeaf, FoundPool, NamePool as _, Refusal, SpaError};
use cenote_dsl::Head;

/// Blocks of the list of deferred frees.
const SYNC_BPOBJ_BLOCK_BYTES: u32 = 16 << 10;

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The name.
    pub name: String,
    /// The top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// Spares and cache devices.
    pub auxiliaries: AuxSpec,
    /// Sector size as a power of two; as the devices say if not given.
    pub ashift: Option<u32>,
    /// Features that are not enabled; all others that OpenZFS 2.3 knows are.
    pub disabled_features: Vec<String>,
    /// Pool properties to be set, by name: words as they are kept.
    pub properties: Vec<(String, u64)>,
    /// The seed of guids, salts and the like; drawn by the machine if not given.
    pub seed: Option<u64>,
    /// Where time comes from.
    pub clock: Clock,
    /// The host that creates it.
    pub host: Host,
    /// The command line, for the history.
    pub command: String,
    /// The user, for the history.
    pub user: u64,
    /// Memory of the block cache.
    pub cache_bytes: usize,
    /// Keep an `ExtentCheck`, which checks every allocation, free and device write.
    pub check: bool,
}

/// Makes a pool in memory, and labels its devices, whose previous contents are lost. The pool exists once its first txg is synced: the
/// contents of that txg (the root file system) are written before.
///
/// # Errors
/// The options do not describe a valid pool, or the devices cannot be written.
#[boxed]
pub async fn create(handle: &Handle, options: CreateOptions) -> Result<Pool, SpaError> {
    create_with_metaslabs(handle, options, METASLABS_MIN).await
}

/// As [`create`], with so many metaslabs to a vdev at least, as far as each holds a block of the largest size
/// (`zfs_vdev_min_ms_count`; 16 otherwise).
///
/// # Errors
/// As [`create`].
#[boxed]
pub async fn create_with_metaslabs(
    handle: &Handle,
    options: CreateOptions,
    metaslabs_min: u64,
) -> Result<Pool, SpaError> {
    let name = options.name.clone();
    let created = create_syncer(handle, options, metaslabs_min).await;
    created.map(Pool::new).map_err(|error| error.named(&name))
}

/// As [`create_with_metaslabs`], but without a handle.
pub(crate) async fn create_syncer(
    handle: &Handle,
    options: CreateOptions,
    metaslabs_min: u64,
) -> Result<Syncer, SpaError> {
    let CreateOptions { name, tops, auxiliaries, host, clock, .. } = options;
    check_name(&name)?;
    let txg = Txg::INITIAL;
    let mut rng = Rng::new(options.seed.unwrap_or_else(|| handle.random_u64()));
    let guid = Guid(rng.next_u64() | 1);
    let enabled = of_new_pool(&options.disabled_features)?;
    if !tops.iter().any(|top| top.class == AllocationClass::Normal) {
        return Err(refuse(
            "invalid vdev specification: at least one toplevel vdev that takes everything must be named",
        ));
    }
    let mut vdevs = MadeVdevs::new(tops, options.ashift, metaslabs_min, txg, &mut rng)?;
    vdevs.check_features(|name| enabled.iter().any(|feature| feature.name == name), false)?;
    let auxiliaries = MadeAux::new(auxiliaries, options.ashift, &vdevs, &mut rng).await?;

    let disks: BTreeMap<_, _> = vdevs.leaves().map(|leaf| (leaf.guid, leaf.spec.disk.clone())).collect();
    let root_vdev = |vdevs: &MadeVdevs| RootVdev::new(vdevs.tree(guid), disks.clone(), vdevs.classes().collect());
    let config = root_vdev(&vdevs)?.config;
    let tree = VdevTree::open(&config, disks.clone())?;
    let zio = Zio::new(tree.clone());
    let mut salt = [0; 32];
    rng.fill(&mut salt);
    zio.set_salt(&salt);
    buf::set_buffer_pool_limit_bytes(buffer_pool_bytes(options.cache_bytes).max(1 << 20));
    let dmu = Dmu::new(handle.clone(), zio, Arc::new(Cache::new(options.cache_bytes)));
    let has = |name: &str| enabled.iter().any(|feature| feature.name == name);
    let space_features =
        SpaceFeatures { spacemap_v2: has("spacemap_v2"), log_spacemap: has("log_spacemap") && has("spacemap_v2") };
    let mappings = Arc::new(Mappings::new(BTreeMap::new()));
    tree.set_indirect_map(mappings.clone());
    let space = new_space(handle, clock, &config, &tree, space_features, &vdevs, options.check, mappings);
    let space = Arc::new(space?);
    let writer = Writer::new(dmu.clone(), space.clone());

    let policy = obeying(has, ObjsetPolicy::new(MOS_COPIES));
    let mos = Objset::create(dmu, ObjsetId(0), ObjsetType::Meta, policy);
    space.set_mos(&mos);
    let time_s = match clock {
        Clock::Now => handle.unix_time().as_secs(),
        Clock::Fixed(time) => time,
    };
    let birth = Birth { time_s, txg };

    let directory_object =
        mos.create_at(txg, pool_directory::OBJECT, &ObjectSpec::new(DmuType::OBJECT_DIRECTORY, 512))?;
    let mut directory = Zap::create(directory_object.clone())?;
    let mut features = FeatureCounts::create(&mos, &mut directory, &enabled, txg).await?;
    let dsl = Dsl::create(name.clone(), &mos, &writer, birth, &mut rng).await?;
    let dataset = dsl.create_dataset(dsl.root_object(), birth, &mut rng).await?;

    let zaps = Zap::create_object(&mos, txg, DmuType::ZAP_METADATA, &[]).await?;
    directory.insert_u64(pool_directory::VDEV_ZAP_MAP, zaps.id().0).await?;
    let mut zaps = Zap::create(zaps)?;
    if has("vdev_zaps_v2") {
        vdevs.root_zap = Zap::create_object(&mos, txg, DmuType::ZAP_METADATA, &[]).await?.id();
        let root = vdevs.root_zap.0;
        zaps.insert_u64(&int_key_name(root), root).await?;
    }
    vdevs.make_zaps(&mos, &mut zaps, txg).await?;
    for (feature, count) in vdevs.uses() {
        features.change(feature, count);
    }
    auxiliaries.enter(&mos, &mut directory, txg).await?;
    let spec =
        ObjectSpec::new(DmuType::PACKED_NVLIST, CONFIG_BLOCK_BYTES).with_bonus(DmuType::PACKED_NVLIST_SIZE, vec![0; 8]);
    let root_vdev = root_vdev(&vdevs)?;
    assert_eq!(root_vdev.config.children.len(), vdevs.tops.len(), "a new pool has the vdevs that were asked for");
    assert!(root_vdev.lost().is_empty(), "a new pool has all of its devices");
    let config = mos.create_object(txg, &spec)?;
    let deferred = BpobjPhys { compressed: Some([0; 2]), children: Some((ObjectId(0), 0)), ..BpobjPhys::default() };
    let mut spec = ObjectSpec::new(DmuType::BPOBJ, SYNC_BPOBJ_BLOCK_BYTES)
        .with_bonus(DmuType::BPOBJ_HDR, deferred.emit(cenote_zio::ORDER));
    spec.uncompressed = true;
    let deferred = mos.create_object(txg, &spec)?;
    let failmode = options.properties.iter().find(|(name, _)| name == "failmode").cloned();
    let settings = Settings::of(&cenote_kstat::Settings::default());
    let multihost = Multihost::new(handle, settings, false);
    let properties: Vec<(&str, ZapValue)> =
        options.properties.iter().map(|(name, word)| (name.as_str(), ZapValue::from_u64(*word))).collect();
    let properties = Zap::create_object(&mos, txg, DmuType::POOL_PROPS, &properties).await?;
    let text = format!("pool version {VERSION}; software version cenote {}", env!("CARGO_PKG_VERSION"));
    let records = [
        history::event(time_s, txg, &host.name, "create", &text),
        history::command(time_s, &host.name, options.user, &options.command),
    ];
    let bytes: u64 = vdevs.tops.iter().map(|top| top.asize_bytes).sum();
    let history = history::create(&mos, txg, bytes, &records).await?;
    for (entry, object) in [
        (pool_directory::ROOT_DATASET, dsl.root_object()),
        (pool_directory::FREE_BPOBJ, dsl.free_bpobj()),
        (pool_directory::CONFIG, config.id()),
        (pool_directory::SYNC_BPOBJ, deferred.id()),
        (pool_directory::PROPERTIES, properties.id()),
        (pool_directory::HISTORY, history.id()),
        (pool_directory::DEFLATE, ObjectId(1)),
        (pool_directory::CREATION_VERSION, ObjectId(VERSION)),
    ] {
        directory.insert_u64(entry, object.0).await?;
    }
    let salt = ZapValue::from_bytes(&salt);
    directory.insert(pool_directory::CHECKSUM_SALT.as_bytes(), &salt).await?;
    directory.flush(txg).await?;

    let leaf = |(guid, disk): (&Guid, &Disk)| {
        let (guid, disk, config) = (*guid, disk.clone(), Arc::new(NvList::new()));
        (guid, FoundLeaf { guid, disk, config, txg, uberblocks: Vec::new(), bad_labels: 0 })
    };
    let leaves = disks.iter().map(leaf).collect();
    let found = FoundPool { leaves, ..FoundPool::of_leaves(guid, []) };
    let pool = Syncer::new(Opened {
        handle: handle.clone(),
        name: name.clone(),
        guid,
        host,
        clock,
        devices: Devices::new(root_vdev, &tree, multihost, found),
        blocks: Blocks::new(space, writer, SharedBlocks::none()),
        mos: Mos::new(mos, directory_object, config, dsl, features),
        jobs: Jobs::default(),
        txg,
        failmode: FailMode::of_number(failmode.map_or(0, |(_, number)| number)),
        notes: Vec::new(),
    });
    let objset = pool.new_objset(txg, dataset, ObjsetType::Zfs, ObjsetPolicy { copies: 1, ..policy });
    pool.mos.dsl.add_head(Head { dataset, objset });
    pool.initialize_labels().await?;
    auxiliaries.initialize().await?;
    Ok(pool)
}

/// Refuses names that no new pool can have.
fn check_name(name: &str) -> Result<(), SpaError> {
    let cannot = |reason| SpaError::refused(Refusal::Invalid, format!("cannot create '{name}': {reason}"));
    cenote_dsl::name::check_new_pool(name).map_err(cannot)
}

/// The allocator over new vdevs.
#[allow(clippy::too_many_arguments, reason = "what a pool is made of")]
fn new_space(
    handle: &Handle,
    clock: Clock,
    vdevs: &VdevConfig,
    tree: &Arc<VdevTree>,
    features: SpaceFeatures,
    made: &MadeVdevs,
    check: bool,
    mappings: Arc<Mappings>,
) -> Result<Space, SpaceError> {
    let mut allocator = Allocator::new(features, Tunables::default(), check);
    let mut sector_bytes = u64::MAX;
    for (id, top) in vdevs.children.iter().enumerate() {
        let maps = vdev_maps_of(VdevId(id as u32), top);
        let is_rotational = made.tops.get(id).is_some_and(MadeTop::is_rotational);
        let setup = vdev_setup(tree, top, maps, is_rotational);
        allocator.add_vdev(setup, true)?;
        if top.class != AllocationClass::Log {
            sector_bytes = sector_bytes.min(1 << top.ashift);
        }
    }
    // A vdev with larger sectors pads a block when it stores it.
    let units = AllocationUnits { min_bytes: sector_bytes, step_bytes: sector_bytes };
    Ok(Space::new(handle.clone(), clock, units, allocator, mappings))
}

impl MadeVdevs {
    /// Makes the ZAPs of tops and leaves, which it enters into the list of all, and the arrays of metaslabs.
    pub(crate) async fn make_zaps(
        &mut self,
        mos: &Objset,
        all: &mut Zap,
        txg: Txg,
    ) -> Result<(), cenote_dmu::DmuError> {
        for top in &mut self.tops {
            assert!(top.zap.0 == 0 && top.metaslab_array.0 == 0, "a new vdev gets its objects once");
            let bias = top.class.name().map(|name| (ALLOCATION_BIAS, ZapValue::from_text(name)));
            top.zap = Zap::create_object(mos, txg, DmuType::ZAP_METADATA, bias.as_slice()).await?.id();
            all.insert_u64(&int_key_name(top.zap.0), top.zap.0).await?;
            for leaf in &mut top.leaves {
                leaf.zap = Zap::create_object(mos, txg, DmuType::ZAP_METADATA, &[]).await?.id();
                all.insert_u64(&int_key_name(leaf.zap.0), leaf.zap.0).await?;
            }
            top.metaslab_array = mos.create_object(txg, &ObjectSpec::new(DmuType::OBJECT_ARRAY, 512))?.id();
        }
        all.flush(txg).await
    }
}

impl Syncer {
    /// Gives every device labels of this pool, with rings that are empty.
    async fn initialize_labels(&self) -> Result<(), SpaError> {
        assert!(self.devices.synced.is_none(), "labels that no uberblock goes with come before the first");
        let leaves = self.leaf_commits(Txg(0), true);
        debug_assert_eq!(leaves.len(), self.devices.root_vdev.disks.len(), "each device of a new pool is labelled");
        let made = join_all(leaves.iter().map(async |leaf| match &leaf.config {
            Some(config) => {
                initialize(&leaf.disk, config).await.map_err(|error| LabelError::new(leaf.disk.path(), error))
            }
            None => Ok(()),
        }));
        for result in made.await {
            result?;
        }
        Ok(())
    }
}
