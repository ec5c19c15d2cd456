//! Importing: from found leaves to an open pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_arc::{Cache, buffer_pool_bytes};
use cenote_codec::checksum::Salt;
use cenote_dmu::{Dmu, KeyAccess, Objset, Zap};
use cenote_dsl::Dsl;
use cenote_format::Endian;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::label::LABEL_COUNT;
use cenote_format::nvlist::NvList;
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord, SpaceMapRecords, SpaceMapType};
use cenote_format::uberblock::Uberblock;
use cenote_taskq::{Class, Handle, boxed, buf};
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::layout::raidz::Reflow;
use cenote_vdev::tree::{VdevState, VdevStatus, VdevTree};
use cenote_vdev::tunables::Tunables;
use cenote_zio::{Zio, ZioError};

use crate::behind::{Behind, behind};
use crate::config::{LabelConfig, PoolState, provisional};
use crate::features;
use crate::indirect::{Mappings, mapping_objects, removal_order, removals};
use crate::multihost::{Candidate, Purpose};
use crate::owner::{host_of, last_written};
use crate::pins::Pin;
use crate::small::too_small;
use crate::space::ALLOCATION_BIAS;
use crate::view::{Shared, View, feature_counts, packed_list};
use crate::{FoundPool, ImportOptions, NamePool as _, Rewind, SpaError};

/// Txgs whose frees are still deferred: how far `-F` goes back without risk (`TXG_DEFER_SIZE` and a margin for the txgs
/// in flight).
const RECENT_TXGS: u64 = 3;

/// The least that the pool of buffers is given, however small the cache: it is all readers'.
const BUFFER_POOL_MIN_BYTES: usize = 1 << 20;

/// Opens the pool that was found.
#[boxed]
pub async fn import(handle: &Handle, found: FoundPool, options: &ImportOptions) -> Result<View, SpaError> {
    match import_for(handle, found.clone(), options, Purpose::Read).await {
        // The change that was seen was its user's last.
        Err(error @ SpaError::Active { .. }) => match found.exported_since().await {
            Some(found) => import_for(handle, found, options, Purpose::Read).await,
            None => Err(error),
        },
        imported => imported,
    }
}

/// Opens the pool that was found, to do something with it.
pub(crate) async fn import_for(
    handle: &Handle,
    found: FoundPool,
    options: &ImportOptions,
    purpose: Purpose,
) -> Result<View, SpaError> {
    // A reader is shown them by the program.
    let notes = match purpose {
        Purpose::Read => Vec::new(),
        _ => found.copies.iter().map(ToString::to_string).collect(),
    };
    let name = found.name().to_owned();
    let import = Import { handle, found: &found, options, purpose, name, notes, pin: None };
    import.run().await.map_err(|error| error.named(found.name()))
}

/// The txgs that leaves lack.
#[derive(Clone)]
pub(crate) struct Leaves {
    /// As [`View::dtls`].
    pub(crate) missed: BTreeMap<Guid, Dtl>,
    /// As [`View::unnoted_txgs`].
    pub(crate) unnoted: BTreeMap<Guid, Dtl>,
    /// As [`View::late_leaves`].
    pub(crate) late: BTreeSet<Guid>,
}

/// A pool that this process has in use, as of a root that is on disk: read through the devices and the cache that are in use, without a
/// look at any label. The blocks of that root have to be kept.
pub(crate) async fn in_use(
    dmu: Dmu,
    found: &FoundPool,
    name: &str,
    options: &ImportOptions,
    uberblock: &Uberblock,
    leaves: Leaves,
    pin: Arc<Pin>,
) -> Result<View, SpaError> {
    assert_eq!(pin.txg(), uberblock.txg, "the blocks of a root that is read are kept");
    let handle = dmu.handle().clone();
    let (name, notes) = (name.to_owned(), Vec::new());
    let mut import = Import { handle: &handle, found, options, purpose: Purpose::Read, name, notes, pin: Some(pin) };
    // Removed vdevs' mappings are with the tree already.
    let pool = async {
        let opened = import.open_through(dmu, uberblock, BTreeMap::new(), &[]).await?;
        let vdevs = import.vdevs_of(&opened).await?;
        import.pool(opened, vdevs, leaves).await
    };
    pool.await.map_err(|error: SpaError| error.named(found.name()))
}

/// Whether a top-level vdev can be used, or its place need not be.
fn is_usable(config: &VdevConfig, status: &VdevStatus) -> bool {
    !matches!(status.state, VdevState::Unavailable | VdevState::Faulted | VdevState::Offline)
        || matches!(config.kind, VdevKind::Hole | VdevKind::Indirect(_))
}

struct Import<'a> {
    handle: &'a Handle,
    found: &'a FoundPool,
    options: &'a ImportOptions,
    purpose: Purpose,
    name: String,
    notes: Vec<String>,
    /// Devices and pipeline are those of a pool in use, which keeps the txg for as long.
    pin: Option<Arc<Pin>>,
}

/// A MOS that could be opened, and what it was opened through.
struct Opened {
    uberblock: Uberblock,
    dmu: Dmu,
    mos: Objset,
    mappings: Arc<Mappings>,
    directory: Zap,
    config: NvList,
}

impl Import<'_> {
    async fn run(mut self) -> Result<View, SpaError> {
        // Its activity is checked first: `-f` is not recommended for a pool that is in use.
        let elsewhere = match self.check_state() {
            Err(error @ SpaError::OtherSystem { .. }) => Some(error),
            checked => checked.map(|()| None)?,
        };
        let labels: Vec<_> =
            self.found.leaves.values().map(|leaf| LabelConfig { txg: leaf.txg.0, list: &leaf.config }).collect();
        self.check_label_features(&labels)?;
        let provisional = VdevConfig::parse(&provisional(self.found.guid, &labels))?;
        let uberblocks = self.uberblocks()?;
        let newest = uberblocks[0];
        let Self { handle, found, options, purpose, .. } = self;
        let purpose = if elsewhere.is_some() { Purpose::Read } else { purpose };
        Candidate { handle, found, name: &self.name, newest: &newest, options }.watch(purpose).await?;
        if let Some(error) = elsewhere {
            return Err(error);
        }
        let opened = match self.open_newest(&provisional, &uberblocks).await {
            Ok(opened) => opened,
            Err(error) => return Err(self.missing_devices(&provisional, error)),
        };
        let opened = if self.options.checkpoint { self.open_checkpoint(&provisional, opened).await? } else { opened };
        self.finish(opened).await
    }

    /// Turns an error that missing devices explain into one that names the devices, in place of the blocks that could not be read.
    fn missing_devices(&mut self, vdevs: &VdevConfig, error: SpaError) -> SpaError {
        let disks = self.disks(vdevs);
        let absent = vdevs.leaves().into_iter().filter(|leaf| leaf.kind.is_leaf() && !disks.contains_key(&leaf.guid));
        let absent: Vec<String> = absent.map(|leaf| leaf.display_name()).collect();
        let Ok(tree) = VdevTree::open(vdevs, disks) else { return error };
        let status = tree.status_for_reading();
        if let Err(missing) = self.check_devices(vdevs, &status) {
            return missing;
        }
        match error {
            // Top-level vdevs might be missing, and the root is on one of those.
            SpaError::NoRoot { pool, .. } if !self.unusable(vdevs, &status).is_empty() => {
                SpaError::MissingDevices { pool, missing: self.unusable(vdevs, &status) }
            }
            // The present devices may have missed txgs that the absent ones have.
            SpaError::NoRoot { pool, tried, limit, last } if !absent.is_empty() => {
                let last = format!("{last}; it may be on a device that is missing: {}", absent.join(", "));
                SpaError::NoRoot { pool, tried, limit, last }
            }
            error => error,
        }
    }

    /// The top-level vdevs of data that cannot be used, each with the devices that it lacks.
    fn unusable(&self, vdevs: &VdevConfig, status: &VdevStatus) -> Vec<String> {
        let disks = self.all_disks();
        let too_small = too_small(vdevs, &disks);
        let mut missing = Vec::new();
        for (config, status) in vdevs.children.iter().zip(&status.children) {
            if is_usable(config, status) || config.class == AllocationClass::Log {
                continue;
            }
            let is_absent = |leaf: &&&VdevConfig| leaf.kind.is_leaf() && !disks.contains_key(&leaf.guid);
            let leaves = config.leaves();
            let absent: Vec<String> = leaves.iter().filter(is_absent).map(|leaf| leaf.display_name()).collect();
            missing.push(match config.kind.is_leaf() || absent.is_empty() {
                true => config.display_name(),
                false => format!("{} (missing: {})", config.display_name(), absent.join(", ")),
            });
            missing.extend(leaves.iter().filter_map(|leaf| too_small.get(&leaf.guid)).cloned());
        }
        missing
    }

    fn corrupt(&self, what: impl Into<String>) -> SpaError {
        SpaError::contradiction(what.into()).named(&self.name)
    }

    /// Whether the pool's recorded state lets this system open it.
    fn check_state(&self) -> Result<(), SpaError> {
        let Some(newest) = self.found.newest() else { return Err(SpaError::NoSuchPool(self.name.clone())) };
        let version = newest.config.u64("version").unwrap_or(0);
        if !(1..=28).contains(&version) && version != 5000 {
            return Err(SpaError::UnsupportedVersion { pool: self.name.clone(), version });
        }
        match self.found.state() {
            PoolState::Destroyed if !self.options.destroyed => Err(SpaError::Destroyed(self.name.clone())),
            PoolState::Active if !self.options.force => {
                // May be our own; for writing it has to be known (`owner`).
                if self.found.is_of_here(self.options) || self.found.is_left(self.options) {
                    return Ok(());
                }
                let (hostname, hostid) = host_of(Some(&newest.config));
                Err(SpaError::OtherSystem { pool: self.name.clone(), hostname, hostid, when: last_written(newest) })
            }
            _ => Ok(()),
        }
    }

    /// Features that are needed to read even the MOS are named in the labels.
    fn check_label_features(&self, labels: &[LabelConfig<'_>]) -> Result<(), SpaError> {
        let mut unknown = Vec::new();
        for label in labels {
            let Some(list) = label.list.list("features_for_read") else { continue };
            for (name, _) in list.iter() {
                let guid = String::from_utf8_lossy(name.as_bytes()).into_owned();
                if !features::by_guid(&guid).is_some_and(|feature| feature.readable) && !unknown.contains(&guid) {
                    unknown.push(guid);
                }
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        Err(SpaError::UnsupportedFeatures { pool: self.name.clone(), features: unknown })
    }

    /// All uberblocks found that the options allow, newest first, without repetition.
    fn uberblocks(&self) -> Result<Vec<Uberblock>, SpaError> {
        if let Some(root) = self.options.root {
            return Ok(vec![root]);
        }
        let limit = match self.options.rewind {
            Rewind::ToTxg(txg) => Some(txg),
            _ => None,
        };
        let mut all: Vec<Uberblock> = self
            .found
            .leaves
            .values()
            .flat_map(|leaf| leaf.uberblocks.iter().map(|copy| copy.uberblock))
            .filter(|uberblock| limit.is_none_or(|limit| uberblock.txg <= limit) && uberblock.is_version_supported())
            .collect();
        all.sort_by(|a, b| b.cmp_age(a));
        all.dedup_by(|a, b| a.txg == b.txg && a.rootbp == b.rootbp);
        if all.is_empty() {
            let last = "no valid uberblock on any device".to_owned();
            return Err(SpaError::NoRoot { pool: self.name.clone(), tried: 0, limit: limit.map(|txg| txg.0), last });
        }
        Ok(all)
    }

    fn all_disks(&self) -> BTreeMap<Guid, Disk> {
        self.found.leaves.iter().map(|(guid, leaf)| (*guid, leaf.disk.clone())).collect()
    }

    /// The disks that can be used.
    fn disks(&self, vdevs: &VdevConfig) -> BTreeMap<Guid, Disk> {
        let mut disks = self.all_disks();
        let too_small = too_small(vdevs, &disks);
        disks.retain(|guid, _| !too_small.contains_key(guid));
        disks
    }

    /// Opens the MOS at the newest uberblock that holds, as far back as the options allow.
    async fn open_newest(&mut self, provisional: &VdevConfig, uberblocks: &[Uberblock]) -> Result<Opened, SpaError> {
        let newest = uberblocks[0];
        let mut tried = 0;
        let mut last = String::new();
        for uberblock in uberblocks {
            let is_allowed = match self.options.rewind {
                Rewind::None => tried == 0 || uberblock.txg == newest.txg,
                Rewind::Recent => uberblock.txg.0.saturating_add(RECENT_TXGS) >= newest.txg.0,
                Rewind::Extreme | Rewind::ToTxg(_) => true,
            };
            if !is_allowed {
                break;
            }
            let is_asked_for = matches!(self.options.rewind, Rewind::ToTxg(_));
            if uberblock.raidz_reflow != newest.raidz_reflow && !is_asked_for {
                // Sectors of an expanded raidz have moved since, over those that it leads to.
                last = format!("a raidz vdev was expanded further after txg {}", uberblock.txg);
                continue;
            }
            tried += 1;
            match self.open_mos(provisional, uberblock).await {
                Ok(opened) => {
                    assert!(uberblock.txg <= newest.txg, "rewinding chooses an older uberblock");
                    if uberblock.txg < newest.txg {
                        self.notes.push(format!("rewound from txg {} to txg {}", newest.txg, uberblock.txg));
                    } else if let Rewind::ToTxg(txg) = self.options.rewind {
                        self.notes.push(format!("opened at txg {} (asked for {txg})", uberblock.txg));
                    }
                    return Ok(opened);
                }
                Err(error) => last = error.to_string(),
            }
        }
        let limit = match self.options.rewind {
            Rewind::ToTxg(txg) => Some(txg.0),
            _ => None,
        };
        Err(SpaError::NoRoot { pool: self.name.clone(), tried, limit, last })
    }

    /// Opens the MOS that `uberblock` names: first over the provisional tree, then over the one that the MOS describes.
    async fn open_mos(&self, provisional: &VdevConfig, uberblock: &Uberblock) -> Result<Opened, SpaError> {
        let first = self.open_over(provisional, uberblock).await?;
        let trusted =
            first.config.list("vdev_tree").ok_or_else(|| self.corrupt("its configuration has no vdev tree"))?;
        let trusted = VdevConfig::parse(trusted)?;
        if trusted == *provisional {
            return Ok(first);
        }
        self.open_over(&trusted, uberblock).await
    }

    async fn open_over(&self, vdevs: &VdevConfig, uberblock: &Uberblock) -> Result<Opened, SpaError> {
        let clock = Some(self.handle.clone());
        let tunables = Tunables::default().with(&self.options.tunables);
        let tree = VdevTree::open_with(vdevs, self.disks(vdevs), &tunables, clock)?;
        tree.control().expect("nobody else has a tree that was just opened").set_reflow(Reflow::of(uberblock));
        let zio = Zio::new(tree.clone());
        let cache = Arc::new(Cache::<ZioError>::new(self.options.cache_bytes));
        // The part of the limit that the cache leaves for it. The pool is the process's: with several pools open the last
        // one's limit holds.
        buf::set_buffer_pool_limit_bytes(buffer_pool_bytes(self.options.cache_bytes).max(BUFFER_POOL_MIN_BYTES));
        let dmu = Dmu::new(self.handle.clone(), zio, cache);
        let mappings: BTreeMap<VdevId, ObjectId> = vdevs
            .children
            .iter()
            .filter_map(|top| match top.kind {
                VdevKind::Indirect(indirect) => Some((VdevId(u32::try_from(top.id).ok()?), indirect.mapping)),
                _ => None,
            })
            .collect();
        self.open_through(dmu, uberblock, mappings, &removal_order(&removals(vdevs))).await
    }

    /// Opens the MOS through devices that are open. `mappings` are those of removed vdevs, to be loaded in the order of their removals.
    async fn open_through(
        &self,
        dmu: Dmu,
        uberblock: &Uberblock,
        mappings: BTreeMap<VdevId, ObjectId>,
        order: &[VdevId],
    ) -> Result<Opened, SpaError> {
        let mos = Objset::open(dmu.clone(), ObjsetId(0), uberblock.rootbp, KeyAccess::None).await?;
        let mappings = Arc::new(Mappings::new(mappings));
        dmu.zio().tree().set_indirect_map(mappings.clone());
        // All that is read before lies on vdevs that are there, as in OpenZFS.
        mappings.load(&mos, order).await;
        let directory = mos.object(pool_directory::OBJECT).await?;
        let directory = Zap::open(directory).await?;
        let config = directory.lookup_u64(pool_directory::CONFIG).await?;
        let config = mos.object(ObjectId(config)).await?;
        let config = packed_list(&config).await?;
        Ok(Opened { uberblock: *uberblock, dmu, mos, mappings, directory, config })
    }

    /// The pool as of its checkpoint: the uberblock that the MOS keeps.
    async fn open_checkpoint(&mut self, provisional: &VdevConfig, now: Opened) -> Result<Opened, SpaError> {
        let value = now.directory.lookup(pool_directory::CHECKPOINT.as_bytes()).await?;
        let words: Vec<u64> = value.ok_or_else(|| SpaError::NoCheckpoint(self.name.clone()))?.integers().collect();
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| Endian::Little.bytes64(*word)).collect();
        bytes.resize(bytes.len().max(Uberblock::SIZE), 0);
        let uberblock = Uberblock::parse(&bytes)?;
        self.notes.push(format!("opened at the checkpoint of txg {}", uberblock.txg));
        self.open_mos(provisional, &uberblock).await
    }

    async fn finish(mut self, opened: Opened) -> Result<View, SpaError> {
        let (zio, tree) = (opened.dmu.zio().clone(), opened.dmu.zio().tree().clone());
        let Opened { uberblock, mos, directory, .. } = &opened;
        let vdevs = self.vdevs_of(&opened).await?;
        self.check_devices(&vdevs, &tree.status_for_reading())?;
        self.check_features(mos, directory, &zio).await?;
        if let Some(salt) = directory.lookup(pool_directory::CHECKSUM_SALT.as_bytes()).await? {
            let salt: Option<&[u8; Salt::SIZE]> = salt.as_bytes().and_then(|bytes| bytes.try_into().ok());
            zio.set_salt(salt.ok_or_else(|| self.corrupt("its checksum salt has not 32 bytes"))?);
        }
        let (missed, mut unnoted) = self.load_dtls(mos, &vdevs, uberblock.txg).await;
        let mut late = BTreeSet::new();
        let mut control = tree.control().expect("an import alone has the tree");
        for Behind { guid, missed, is_one_commit } in behind(&vdevs, &self.found.leaves, uberblock.txg) {
            if is_one_commit {
                late.insert(guid);
                let leaf = self.found.leaves.get(&guid);
                let name = leaf.map(|leaf| leaf.disk.path().to_string()).unwrap_or_default();
                self.notes.push(format!("{name} did not take the last commit; the next one writes its labels again"));
                if self.purpose == Purpose::Read && self.found.state() == PoolState::Exported {
                    control.add_dtl(guid, &missed);
                }
            } else {
                unnoted.entry(guid).or_default().absorb(&missed);
            }
        }
        self.note_bad_labels();
        for (guid, txgs) in missed.iter().chain(&unnoted) {
            control.add_dtl(*guid, txgs);
            control.error_counts(*guid).inspect(|counts| counts.forgive_checksums());
        }
        // One that has everything keeps the mark until it is verified.
        let is_whole = |guid| missed.get(&guid).is_some_and(Dtl::is_empty) && !unnoted.contains_key(&guid);
        for leaf in vdevs.leaves().into_iter().filter(|leaf| leaf.rebuild_txg.is_some() && is_whole(leaf.guid)) {
            control.rebuild_ended(leaf.guid);
        }
        drop(control);
        self.note_missed(&vdevs, &tree.status());
        self.pool(opened, vdevs, Leaves { missed, unnoted, late }).await
    }

    /// Tells of devices with damaged labels. The first commit after an opening writes all labels.
    fn note_bad_labels(&mut self) {
        let then = match self.purpose {
            Purpose::Read => "",
            _ => "; the next txg writes them again",
        };
        for leaf in self.found.leaves.values().filter(|leaf| leaf.bad_labels > 0) {
            let (name, bad) = (leaf.disk.path(), leaf.bad_labels);
            self.notes.push(format!("{bad} of the {LABEL_COUNT} labels of {name} are damaged{then}"));
        }
    }

    /// The vdevs as configured, and what they are for.
    async fn vdevs_of(&mut self, opened: &Opened) -> Result<VdevConfig, SpaError> {
        let vdevs = opened.config.list("vdev_tree");
        let vdevs = vdevs.ok_or_else(|| self.corrupt("its configuration has no vdev tree"))?;
        let mut vdevs = VdevConfig::parse(vdevs)?;
        self.load_classes(&opened.mos, &mut vdevs).await;
        Ok(vdevs)
    }

    async fn pool(self, opened: Opened, vdevs: VdevConfig, leaves: Leaves) -> Result<View, SpaError> {
        let Opened { uberblock, dmu, mos, mappings: removed, directory, config } = opened;
        let Leaves { missed, unnoted, late } = leaves;
        let tree = dmu.zio().tree().clone();
        let name = match &self.options.new_name {
            Some(name) => name.clone(),
            None => config.str("name").unwrap_or(&self.name).to_owned(),
        };
        let root = directory.lookup_u64(pool_directory::ROOT_DATASET).await?;
        let dsl = Dsl::new(name.clone(), mos.clone(), ObjectId(root));
        // A vdev being removed has a mapping too, which no read goes through yet.
        let mappings = Mappings::new(mapping_objects(&config));
        mappings.take_from(&removed);
        mappings.load(&mos, &mappings.missing()).await;
        let shared = Shared {
            name,
            mappings,
            tree_mappings: removed,
            guid: self.found.guid,
            uberblock,
            config,
            vdevs,
            tree,
            dmu,
            mos,
            directory,
            dsl,
            found: self.found.clone(),
            altroot: self.options.altroot.clone(),
            is_checkpoint_view: self.options.checkpoint,
            pin: self.pin,
            missed,
            unnoted,
            late,
            notes: self.notes,
        };
        Ok(View { shared: Arc::new(shared) })
    }

    async fn check_features(&self, mos: &Objset, directory: &Zap, zio: &Zio) -> Result<(), SpaError> {
        let entry = directory.find_u64(pool_directory::FEATURES_FOR_READ).await?;
        let Some(object) = entry else { return Ok(()) };
        let dnode = mos.object(ObjectId(object)).await?;
        let counts = feature_counts(dnode).await?;
        let mut unreadable = Vec::new();
        for (guid, count) in counts.iter().filter(|(_, count)| **count > 0) {
            match features::by_guid(guid) {
                Some(feature) if feature.readable => {}
                Some(feature) => unreadable.push(format!("{} ({})", feature.guid, feature.description)),
                None => unreadable.push(format!("{guid} (in use {count} times)")),
            }
        }
        if !unreadable.is_empty() {
            return Err(SpaError::UnsupportedFeatures { pool: self.name.clone(), features: unreadable });
        }
        let is_dynamic = features::by_name("dynamic_gang_header").and_then(|feature| counts.get(feature.guid));
        zio.set_dynamic_gang(is_dynamic.is_some_and(|count| *count > 0));
        Ok(())
    }

    /// Whether every top-level vdev can be used, and what to do about those that cannot.
    fn check_devices(&mut self, vdevs: &VdevConfig, status: &VdevStatus) -> Result<(), SpaError> {
        for (config, status) in vdevs.children.iter().zip(&status.children) {
            if is_usable(config, status) || config.class != AllocationClass::Log {
                continue;
            }
            if config.leaves().iter().all(|leaf| leaf.state.offline) {
                self.notes.push(format!("the log device {} is offline", config.display_name()));
                continue;
            }
            if !self.options.missing_log {
                return Err(SpaError::MissingLog { pool: self.name.clone(), device: config.display_name() });
            }
            self.notes.push(format!("the log device {} is missing", config.display_name()));
        }
        let missing = self.unusable(vdevs, status);
        if missing.is_empty() {
            return Ok(());
        }
        if self.options.missing_tops {
            self.notes.push(format!("missing: {}", missing.join(", ")));
            return Ok(());
        }
        Err(SpaError::MissingDevices { pool: self.name.clone(), missing })
    }

    /// Completes the classes of top-level vdevs: that one is for special blocks or dedup tables stands in its ZAP, not in
    /// the configuration.
    async fn load_classes(&mut self, mos: &Objset, vdevs: &mut VdevConfig) {
        for top in vdevs.children.iter_mut().filter(|top| top.top_zap.0 != 0 && top.class == AllocationClass::Normal) {
            let bias = async {
                let value = Zap::open(mos.object(top.top_zap).await?).await?.lookup(ALLOCATION_BIAS.as_bytes()).await?;
                Ok::<_, cenote_dmu::DmuError>(value.and_then(|value| AllocationClass::from_name(value.as_text()?)))
            };
            match bias.await {
                Ok(class) => top.class = class.unwrap_or_default(),
                Err(error) => {
                    self.notes.push(format!("what {} is used for cannot be read: {error}", top.display_name()));
                }
            }
        }
    }

    /// Reads the dirty time logs: the first map has the txgs that each leaf has missed. A leaf whose log cannot be read is in the
    /// second map: it may have missed anything up to `txg`. Checksums catch stale blocks, but the leaf cannot be counted on.
    async fn load_dtls(
        &mut self,
        mos: &Objset,
        vdevs: &VdevConfig,
        txg: Txg,
    ) -> (BTreeMap<Guid, Dtl>, BTreeMap<Guid, Dtl>) {
        let (mut missed, mut unknown) = (BTreeMap::new(), BTreeMap::new());
        let mut reads = Vec::new();
        for leaf in vdevs.leaves() {
            if leaf.dtl.0 != 0 {
                let (mos, guid, dtl) = (mos.clone(), leaf.guid, leaf.dtl);
                let read = self.handle.spawn(Class::Issue, async move { load_dtl(&mos, dtl).await });
                reads.push((guid, leaf.display_name(), read));
            }
        }
        for (guid, name, read) in reads {
            let error = match read.await {
                Ok(Ok(txgs)) => {
                    missed.insert(guid, txgs);
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            self.notes.push(format!("the dirty time log of {name} cannot be read: {error}"));
            unknown.insert(guid, Dtl::of(0..txg.0.saturating_add(1)));
        }
        (missed, unknown)
    }

    /// Notes which leaves are there and have missed something, and what may be lost by it.
    fn note_missed(&mut self, vdevs: &VdevConfig, status: &VdevStatus) {
        for leaf in status.behind() {
            self.notes.push(format!(
                "{} has missed txgs {} and cannot stand in for other devices until it is resilvered \
                 ('zpool resilver')",
                leaf.name, leaf.missed
            ));
        }
        for top in status.with_outage() {
            let config = vdevs.children.get(top.top.0 as usize);
            let name = config.map(VdevConfig::display_name).unwrap_or_default();
            self.notes
                .push(format!("{name}: what was written in txgs {} may be on no device that is there", top.missed));
        }
    }
}

/// A dirty time log: a space map in units of txgs.
async fn load_dtl(mos: &Objset, object: ObjectId) -> Result<Dtl, cenote_dmu::DmuError> {
    const DTL_MAX_BYTES: u64 = 64 << 20;
    let dnode = mos.object(object).await?;
    let phys = dnode.bonus(SpaceMapPhys::parse).map_err(|error| dnode.error(error))?;
    if phys.length_bytes > DTL_MAX_BYTES {
        let what = format!("a dirty time log of {} bytes", phys.length_bytes);
        return Err(dnode.error(cenote_dmu::DmuErrorKind::Corrupt(what)));
    }
    let mut txgs = Dtl::new();
    let bytes = dnode.read(0, phys.length_bytes as usize).await?;
    for record in SpaceMapRecords::new(&bytes, cenote_dmu::ORDER) {
        let SpaceMapRecord::Entry(entry) = record.map_err(|error| dnode.error(error))? else { continue };
        let range = entry.offset_units..entry.offset_units.saturating_add(entry.run_units);
        match entry.kind {
            SpaceMapType::Alloc => txgs.insert(range),
            SpaceMapType::Free => txgs.remove(range),
        }
    }
    Ok(txgs)
}
