//! Opening a pool that exists for writing.
//!
//! ```text
//! import, read-only ──► may it be written to? ──► devices opened for writing, alone ──► import again over them
//!                                                                                          │
//!              next txg ◄── accounts of space: headers, logs replayed ◄── MOS, features, datasets
//! ```
//! The first import finds out what the pool is; up to there no device was opened for writing. The second one sees the devices in a state
//! that no other process can change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cenote_dmu::{Objset, ObjsetPolicy, Writer};
use cenote_dsl::Dsl;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::indirect::Removing;
use cenote_format::uberblock::{Mmp, Uberblock};
use cenote_metaslab::{Allocator, SpaceFeatures, Tunables};
use cenote_taskq::{Handle, boxed};
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::layout::raidz::Reflow;
use cenote_vdev::ring::Ring;
use cenote_vdev::tree::{VdevState, VdevStatus};
use cenote_zil::ZilTunables;
use cenote_zio::AllocationUnits;

use crate::failmode::FailMode;
use crate::import::import_for;
use crate::jobs::Jobs;
use crate::jobs::async_destroy::AsyncDestroy;
use crate::jobs::deferred::Deferred;
use crate::jobs::deleted_clones::DeletedClones;
use crate::jobs::discard::Discard;
use crate::jobs::error_scrub::ErrorScrub;
use crate::jobs::evacuation::{Evacuation, Running};
use crate::jobs::expansion::{self, BYTES_COPIED, Expansion};
use crate::jobs::freeing::FreeList;
use crate::jobs::rebuild::Rebuild;
use crate::jobs::scan::{Scan, ScanOrder};
use crate::multihost::{Candidate, Purpose, Settings};
use crate::owner::KERNEL_POOLS;
use crate::placed::REMOVAL_RUNS;
use crate::pool::Pool;
use crate::refcount::known::SharedBlocks;
use crate::space::MosObjects;
use crate::sync::blocks::Blocks;
use crate::sync::devices::Devices;
use crate::sync::features::{FeatureCounts, obeying};
use crate::sync::mos::Mos;
use crate::sync::multihost::Multihost;
use crate::sync::space::{Space, vdev_setup};
use crate::sync::vdev_config::RootVdev;
use crate::sync::{Clock, Host, MOS_COPIES, Opened, Syncer};
use crate::tunables::{ScanTunables, TrimTunables};
use crate::{Choice, FoundLeaf, FoundPool, ImportOptions, NamePool as _, SpaError, View};

/// How to open a pool for writing.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Where time comes from.
    pub clock: Clock,
    /// The host that writes it.
    pub host: Host,
    /// Keep an `ExtentCheck`, which checks every allocation, free and device write.
    pub check: bool,
}

/// Opens a pool for writing, in the txg after its last. Nothing is written before the first sync, which tells others that the
/// pool is in use.
///
/// # Errors
/// The pool cannot be imported; it was not exported, and nothing says that its last user is gone ([`SpaError::NotExported`]); the kernel's
/// module has it ([`SpaError::InKernel`]); it has something that cannot be written yet ([`PoolError::Unsupported`](crate::PoolError::Unsupported)); too many of its
/// devices are missing, or one that alone has what others missed ([`SpaError::LeftAlone`], unless
/// [`ImportOptions::missing_tops`] says to go on without); one cannot be opened for writing.
#[boxed]
pub async fn open(
    handle: &Handle,
    found: FoundPool,
    how: &ImportOptions,
    options: WriteOptions,
) -> Result<Pool, SpaError> {
    let name = found.name().to_owned();
    let opened = match open_found(handle, found.clone(), how, options.clone()).await {
        // The change that was seen was its user's last.
        Err(error @ SpaError::Active { .. }) => match found.exported_since().await {
            Some(found) => open_found(handle, found, how, options).await,
            None => Err(error),
        },
        opened => opened,
    };
    opened.map_err(|error| error.named(&name))
}

async fn open_found(
    handle: &Handle,
    found: FoundPool,
    how: &ImportOptions,
    options: WriteOptions,
) -> Result<Pool, SpaError> {
    let kernel_pools = Path::new(KERNEL_POOLS);
    found.check_kernel(handle, kernel_pools).await?;
    if let Some(copy) = found.copies.iter().find(|copy| copy.choice == Choice::Any) {
        let (used, other) = (copy.used.display().to_string(), copy.other.display().to_string());
        return Err(SpaError::Copies { pool: found.name().to_owned(), used, other });
    }
    // A pool that is seen in use now is reported as that, not as one that may be in use.
    let refused = found.check_owner(how).err();
    let purpose = if refused.is_some() { Purpose::Read } else { Purpose::Write };
    let imported = import_for(handle, found.clone(), how, purpose).await;
    if let Err(error @ SpaError::Active { .. }) = imported {
        return Err(holder(handle, &found).await.unwrap_or(error));
    }
    if let Some(refused) = refused {
        if let Ok(pool) = imported {
            pool.close().await;
        }
        return Err(refused);
    }
    let pool = imported?;
    // Before anything else is read: the blocks that are read next may be on the missing device alone.
    if !how.missing_tops {
        check_outages(&pool)?;
    }
    pool.check_writable(how.rewind, how.missing_log).await?;
    let used = usable_leaves(&pool);
    let name = pool.name().to_owned();
    let before = last_of(&pool);
    let (auxiliaries, mut notes) = (pool.auxiliary_guids().await?, pool.auxiliary_faults().await);
    pool.close().await;
    drop(pool);
    let watched =
        Candidate { handle, found: &found, name: &name, newest: &before, options: how }.required(Purpose::Write);
    let mut found = found.opened_for_writing(handle, &used).await?;
    notes.extend(found.lock_auxiliaries(handle, &auxiliaries).await);
    // Another may have had it until now.
    found.check_kernel(handle, kernel_pools).await?;
    found.check_owner(how)?;
    let pool = import_for(handle, found, how, Purpose::Watched).await?;
    pool.check_writable(how.rewind, how.missing_log).await?;
    let last = last_of(&pool);
    let candidate = Candidate { handle, found: pool.found(), name: &name, newest: &last, options: how };
    if watched.is_some() {
        candidate.unchanged(&before)?;
    }
    let settings = Settings::of(&how.tunables);
    let mut writer = Opening { handle, pool: &pool, options, settings, watched, candidate }.run().await?;
    writer.notes.extend(notes);
    writer.owner_mark = how.owner_mark;
    writer.zil.tunables = ZilTunables::default().with(&how.tunables);
    let tunables = ScanTunables::default().with(&how.tunables);
    let order = ScanOrder::new(&tunables, how.cache_bytes as u64);
    writer.jobs.tune(&how.tunables);
    // A log that is claimed is a txg already.
    writer.jobs.condensing.is_unopened = true;
    writer.jobs.scan.seat().set_order(order);
    writer.mos.livelist_limits = crate::tunables::LivelistTunables::default().with(&how.tunables).limits();
    if writer.zil.tunables.zil_nocacheflush {
        writer
            .notes
            .push("UNSAFE: zil_nocacheflush is on: a power cut may take what clients were told is on disk".into());
    }
    if pool.is_checkpoint_view() {
        writer.rewind(*pool.uberblock(), last).await?;
    }
    let rewound = Some(pool.uberblock().checkpoint_txg).filter(|txg| txg.0 != 0);
    writer.claim_logs(how.missing_log, rewound).await?;
    writer.settle_split().await?;
    writer.open_condensing().await?;
    Ok(Pool::new(writer))
}

/// Opens some leaves of a pool in use, which does not use them any more, as a pool of its own that is exported with its first txg. Nothing is written
/// before that.
pub(crate) async fn open_split(
    handle: &Handle,
    found: FoundPool,
    how: &ImportOptions,
    options: WriteOptions,
) -> Result<Syncer, SpaError> {
    let pool = import_for(handle, found, how, Purpose::Watched).await?;
    let (name, last) = (pool.name().to_owned(), last_of(&pool));
    let candidate = Candidate { handle, found: pool.found(), name: &name, newest: &last, options: how };
    let settings = Settings::of(&how.tunables);
    Opening { handle, pool: &pool, options, settings, watched: None, candidate }.run().await
}

/// The error that names the user of the pool's devices, if it is a process of this system.
async fn holder(handle: &Handle, found: &FoundPool) -> Option<SpaError> {
    let all = found.leaves.keys().copied().collect();
    let refused = found.opened_for_writing(handle, &all).await.err();
    refused.filter(|error| matches!(error, SpaError::Device { .. }))
}

/// Leaves whose devices are there and are not to be left alone.
fn usable_leaves(pool: &View) -> BTreeSet<Guid> {
    fn collect(status: &VdevStatus, into: &mut BTreeSet<Guid>) {
        if status.children.is_empty() && status.state.is_readable() {
            into.insert(status.guid);
        }
        status.children.iter().for_each(|child| collect(child, into));
    }
    let mut all = BTreeSet::new();
    collect(&pool.tree().status(), &mut all);
    all
}

/// The newest uberblock on disk: that at which the pool is opened, unless that is its checkpoint's.
fn last_of(pool: &View) -> Uberblock {
    let copies = pool.found().leaves.values().flat_map(|leaf| &leaf.uberblocks).map(|copy| copy.uberblock);
    match pool.is_checkpoint_view() {
        true => copies.max_by(Uberblock::cmp_age).unwrap_or(*pool.uberblock()),
        false => *pool.uberblock(),
    }
}

/// Where the newest uberblock stands.
fn ring_of(pool: &View, is_multihost: bool) -> Ring {
    let txg = last_of(pool).txg;
    let copies = pool.found().leaves.values().flat_map(|leaf| &leaf.uberblocks);
    let newest = copies.filter(|copy| copy.uberblock.txg == txg).map(|copy| (copy.slot_shift, copy.slot));
    Ring::new(is_multihost, txg, newest)
}

/// The reasons why leaves of a vdev can be read and not written.
fn reasons(status: &VdevStatus, vdev: &VdevConfig) -> Vec<String> {
    let mut found = Vec::new();
    let is_in = |guid| vdev.leaves().iter().any(|leaf| leaf.guid == guid);
    if let Some(coarse) = status.coarse.filter(|_| is_in(status.guid)) {
        found.push(format!("cannot open {} for writing: {coarse}", status.name));
    }
    found.extend(status.children.iter().flat_map(|child| reasons(child, vdev)));
    found
}

/// Refuses a pool where a missing device may be the only one that has the blocks of some txgs: it has to come back before the pool
/// is written without it. Txgs that stay in an outage even with all devices back are no reason to refuse.
fn check_outages(pool: &View) -> Result<(), SpaError> {
    let there = usable_leaves(pool);
    for (id, top) in (0..).map(VdevId).zip(&pool.vdevs().children) {
        let outage = pool.tree().outage(id, &BTreeSet::new());
        // A vdev without any device gets another error.
        if top.class == AllocationClass::Log || !top.leaves().iter().any(|leaf| there.contains(&leaf.guid)) {
            continue;
        }
        let would_help = |leaf: &&VdevConfig| {
            let mut rest = outage.clone();
            let missed = pool.dtls().get(&leaf.guid);
            missed.iter().flat_map(|missed| missed.ranges()).for_each(|range| rest.remove(range.clone()));
            !rest.is_empty()
        };
        let leaves = top.leaves().into_iter().filter(|leaf| leaf.kind.is_leaf() && !there.contains(&leaf.guid));
        let missing: Vec<String> = leaves.filter(would_help).map(VdevConfig::display_name).collect();
        if !missing.is_empty() {
            return Err(SpaError::LeftAlone { pool: pool.name().to_owned(), missing, txgs: outage.to_string() });
        }
    }
    Ok(())
}

struct Opening<'a> {
    handle: &'a Handle,
    pool: &'a View,
    options: WriteOptions,
    settings: Settings,
    /// The newest uberblock's multihost fields, if the pool had to be watched.
    watched: Option<Mmp>,
    candidate: Candidate<'a>,
}

impl Opening<'_> {
    async fn run(self) -> Result<Syncer, SpaError> {
        let Self { handle, pool, ref options, settings, .. } = self;
        let root_vdev = self.root_vdev()?;
        if let Some(top) = root_vdev.unwritable(&root_vdev.lost()) {
            let mut missing = vec![top.display_name()];
            missing.extend(reasons(&pool.tree().status(), top));
            return Err(SpaError::MissingDevices { pool: pool.name().to_owned(), missing });
        }
        let properties = pool.properties().await?;
        let property = |name: &str| properties.get(name).and_then(|value| value.number()).unwrap_or(0);
        let is_multihost = property("multihost") != 0;
        if is_multihost && options.host.id == 0 {
            return Err(SpaError::NoHostId(pool.name().to_owned()));
        }
        let leaves = root_vdev.leaf_commits(None);
        if let Some(mmp) = self.watched {
            self.candidate.claim(&leaves, &mmp).await?;
        }
        let dmu = pool.dmu().clone();
        let policy = ObjsetPolicy::new(MOS_COPIES);
        let mos = Objset::own(dmu.clone(), ObjsetId(0), pool.uberblock().rootbp, policy).await?;
        let features = FeatureCounts::open(&mos, pool.directory()).await?;
        mos.set_policy(obeying(|name| features.has(name), policy));
        let (space, unflushed_txgs) = self.space(&root_vdev, &features).await?;
        space.set_mos(&mos);
        space.set_autotrim(property("autotrim") != 0);
        let writer = Writer::new(dmu, space.clone());
        let entry = async |name: &str| Ok::<_, SpaError>(ObjectId(self.entry(name).await?));
        let directory = mos.object(pool_directory::OBJECT).await?;
        let config = mos.object(entry(pool_directory::CONFIG).await?).await?;
        let free_bpobj = entry(pool_directory::FREE_BPOBJ).await?;
        let list = mos.object(free_bpobj).await?;
        let list = list.bonus(BpobjPhys::parse)?;
        let free_list = FreeList::open(&list);
        let empty_bpobj = pool.directory().find_u64(pool_directory::EMPTY_BPOBJ).await?;
        let dsl = Dsl::own(&mos, &writer, pool.dsl(), free_bpobj, empty_bpobj.map(ObjectId)).await?;
        let shared = SharedBlocks::open(pool).await?;
        let multihost = Multihost::new(handle, settings, is_multihost);
        multihost.committed(last_of(pool), &leaves);
        if is_multihost {
            multihost.start(options.clock);
        }
        let missing = root_vdev.lost();
        let missing = root_vdev.config.leaves().into_iter().filter(|leaf| missing.contains(&leaf.guid));
        let unwritten: Vec<String> = missing
            .map(|leaf| {
                format!(
                    "{} is not written: it lacks what is written from now on, until it is back and resilvered",
                    leaf.display_name()
                )
            })
            .collect();
        let without_uberblocks = |leaf: &FoundLeaf| FoundLeaf { uberblocks: Vec::new(), ..leaf.clone() };
        let leaves = pool.found().leaves.iter().map(|(guid, leaf)| (*guid, without_uberblocks(leaf))).collect();
        let checkpoint = pool.checkpoint().await?.map(|checkpoint| checkpoint.txg);
        let mut blocks = Blocks { unflushed_txgs, checkpoint, ..Blocks::new(space, writer, shared) };
        let found = FoundPool { leaves, ..pool.found().clone() };
        let expansion = self.expansion().await?;
        let devices = Devices {
            old_config: pool.config().clone(),
            ring: ring_of(pool, is_multihost),
            // Of no meaning where no vdev is expanded.
            raidz_reflow: if expansion.running.is_some() { pool.uberblock().raidz_reflow } else { 0 },
            ..Devices::new(root_vdev, pool.tree(), multihost, found)
        };
        let (removing, evacuation) = self.evacuation(&mos, &blocks.space).await?;
        blocks.removing = removing;
        let scan = Scan::open(pool.directory(), &mos, pool.txg()).await?;
        let discard = Discard::open(pool.directory(), features.count("zpool_checkpoint"), &blocks.space).await?;
        let rebuild = Rebuild::open(&mos, &pool.vdevs().children, (pool.txg(), self.handle.now())).await;
        let jobs = Jobs {
            evacuation,
            expansion,
            rebuild,
            discard,
            deferred: Deferred::open(pool.directory()).await?,
            async_destroy: AsyncDestroy::open(pool.directory()).await?,
            free_list,
            deleted_clones: DeletedClones::open(pool.directory()).await?,
            error_scrub: ErrorScrub::open(pool.directory(), scan.seat(), scan.is_running()).await?,
            scan,
            ..Jobs::default()
        };
        Ok(Syncer::new(Opened {
            handle: handle.clone(),
            name: pool.name().to_owned(),
            guid: pool.guid(),
            host: options.host.clone(),
            clock: options.clock,
            devices,
            blocks,
            mos: Mos::new(mos, directory, config, dsl, features),
            jobs,
            txg: Txg(last_of(pool).txg.0 + 1),
            failmode: FailMode::of_number(property("failmode")),
            notes: pool.notes().iter().cloned().chain(unwritten).collect(),
        }))
    }

    /// Removed vdevs, and one that is being evacuated, are known to the space accounts from now on.
    async fn evacuation(&self, mos: &Objset, space: &Space) -> Result<(Option<Removing>, Evacuation), SpaError> {
        let pool = self.pool;
        for (vdev, top) in (0..).map(VdevId).zip(&pool.vdevs().children) {
            match top.kind {
                VdevKind::Indirect(_) => space.removed.add(vdev),
                _ if top.removing => space.close(vdev),
                _ if top.non_allocating => space.set_passive(vdev, true),
                _ => {}
            }
        }
        let removing = pool.removal().await?;
        let Some((removing, vdev)) = removing
            .filter(|removing| removing.state == REMOVAL_RUNS)
            .and_then(|removing| Some((removing, removing.removing_vdev?)))
        else {
            return Ok((removing, Evacuation::default()));
        };
        let config = pool.config().list("vdev_tree").and_then(|tree| tree.lists("children")).unwrap_or_default();
        let top = config.get(vdev.0 as usize);
        let object = |name: &str| top.and_then(|top| top.u64(name)).filter(|object| *object != 0).map(ObjectId);
        let objects = object("com.delphix:indirect_object").zip(object("com.delphix:indirect_births"));
        let (mapping, births) =
            objects.ok_or_else(|| pool.corrupt("a vdev that is being removed has no mapping in its configuration"))?;
        let (running, mapping) = Running::open(mos, vdev, mapping, births).await?;
        space.removed.mappings.put(vdev, Arc::new(mapping));
        space.removed.set_evacuated(Some(running.evacuated()));
        let left_bytes = removing.to_copy_bytes.saturating_sub(removing.copied_bytes);
        space.with(|allocator| allocator.set_left_to_copy(vdev, Some(left_bytes)));
        Ok((Some(removing), Evacuation::open(running, &removing)))
    }

    /// The vdev that is being expanded.
    async fn expansion(&self) -> Result<Expansion, SpaError> {
        let pool = self.pool;
        for (vdev, top) in (0..).map(VdevId).zip(&pool.vdevs().children) {
            if !matches!(top.kind, VdevKind::Raidz { expanding: true, .. }) {
                continue;
            }
            let copied_bytes = match pool.vdev_properties(top).await?.get(BYTES_COPIED) {
                Some(cenote_dsl::property::Value::Number(bytes)) => *bytes,
                _ => 0,
            };
            let running = expansion::Running::new(vdev, top, Reflow::of(pool.uberblock()), copied_bytes)?;
            return Ok(Expansion::open(running));
        }
        Ok(Expansion::default())
    }

    async fn entry(&self, name: &str) -> Result<u64, SpaError> {
        Ok(self.pool.directory().lookup_u64(name).await?)
    }

    /// The vdevs with the disks that are ours.
    fn root_vdev(&self) -> Result<RootVdev, SpaError> {
        let pool = self.pool;
        let tree = pool.config().list("vdev_tree").ok_or_else(|| pool.corrupt("its configuration has no vdev tree"))?;
        let usable = usable_leaves(pool);
        let found = &pool.found().leaves;
        let disks = found.iter().filter(|(guid, _)| usable.contains(guid));
        let disks = disks.map(|(guid, leaf)| (*guid, leaf.disk.clone())).collect();
        // The allocation class of a special vdev is in its own ZAP, which the import has read.
        let classes = pool.vdevs().children.iter().map(|top| (top.guid, top.class)).collect();
        let mut root_vdev = RootVdev::new(tree.clone(), disks, classes)?;
        root_vdev.labels = found.iter().map(|(guid, leaf)| (*guid, leaf.config.as_ref().clone())).collect();
        root_vdev.guid_sum = pool.uberblock().guid_sum;
        root_vdev.missed = pool.dtls().clone();
        root_vdev.unnoted = pool.unnoted_txgs().clone();
        root_vdev.late = Some((*pool.uberblock(), pool.late_leaves().clone()));
        Ok(root_vdev)
    }

    /// The allocator as of the last txg, and the objects with metaslabs' unflushed txgs.
    async fn space(
        &self,
        root_vdev: &RootVdev,
        features: &FeatureCounts,
    ) -> Result<(Arc<Space>, BTreeMap<VdevId, ObjectId>), SpaError> {
        let Self { handle, pool, options, candidate, .. } = self;
        let has = |name| features.has(name);
        let kinds =
            SpaceFeatures { spacemap_v2: has("spacemap_v2"), log_spacemap: has("log_spacemap") && has("spacemap_v2") };
        let mut allocator = Allocator::new(kinds, Tunables::default().with(&candidate.options.tunables), options.check);
        let (mut setups, mut sector_bytes, mut unflushed) = (Vec::new(), u64::MAX, BTreeMap::new());
        for maps in pool.vdev_maps().await? {
            let Some(top) = root_vdev.top(maps.vdev) else { continue };
            if top.class != AllocationClass::Log {
                sector_bytes = sector_bytes.min(1 << top.ashift);
            }
            unflushed.extend(maps.unflushed_txgs.map(|object| (maps.vdev, object)));
            let disks = top.leaves().into_iter().filter_map(|leaf| root_vdev.disks.get(&leaf.guid));
            let is_rotational = disks.into_iter().any(|disk| disk.device().is_rotational());
            setups.push(vdev_setup(pool.tree(), top, maps, is_rotational));
        }
        if sector_bytes == u64::MAX {
            return Err(pool.corrupt("it has no vdev for anything but its log"));
        }
        // A log device may be missing.
        let status = pool.tree().status();
        let is_there = |vdev: VdevId| {
            status
                .children
                .iter()
                .any(|top| top.top == vdev && matches!(top.state, VdevState::Online | VdevState::Degraded))
        };
        let logs = setups.iter().filter(|setup| setup.maps.class == AllocationClass::Log).map(|setup| setup.maps.vdev);
        let lost: Vec<VdevId> = logs.filter(|vdev| !is_there(*vdev)).collect();
        let (objects, logs) = (Arc::new(MosObjects(pool.mos().clone())), pool.log_space_maps().await?);
        let opened = cenote_metaslab::open(handle, &mut allocator, objects, setups, logs, pool.txg()).await;
        opened.map_err(|problem| pool.corrupt(format!("{problem}; 'verify' says more")))?;
        for vdev in lost {
            allocator.set_allocatable(vdev, false);
        }
        if options.check {
            let space = pool.space().await?;
            for vdev in &space.vdevs {
                let entered = allocator.check_opened(vdev.maps.vdev, vdev.allocated.iter());
                entered.map_err(|error| pool.corrupt(error.to_string()))?;
            }
        }
        let units = AllocationUnits { min_bytes: sector_bytes, step_bytes: sector_bytes };
        let space = Space::new((*handle).clone(), options.clock, units, allocator, pool.shared.tree_mappings.clone());
        let _ = space.trim_tunables.set(TrimTunables::default().with(&candidate.options.tunables));
        let _ = space.cache_tunables.set(cenote_l2arc::Tunables::default().with(&candidate.options.tunables));
        space.events.tune(&candidate.options.tunables);
        Ok((Arc::new(space), unflushed))
    }
}
