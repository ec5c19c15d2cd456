//! Finding pools: probing paths in parallel and sorting what is found by pool.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg};
use cenote_format::label::LABEL_COUNT;
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::{Class, Handle, Identity, OpenOptions, boxed};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::error::VdevError;
use cenote_vdev::layout::raidz::Reflow;
use cenote_vdev::layout::{ASHIFT_MAX, ASHIFT_MIN};
use cenote_vdev::leaf::{LabelProblem, LabelReport, UberblockCopy, probe, probe_device};
use cenote_vdev::tree::{CoarseSectors, VdevStatus, VdevTree};

use crate::SpaError;
use crate::auxiliary::{FoundAuxiliary, auxiliary_of};
use crate::config::{LabelConfig, PoolState, SPLIT_GUID, provisional};
use crate::small::too_small;

/// Devices probed at once.
const PROBES_MAX: usize = 64;
/// How long a device may be in use by another process before that is an error: one that was killed a moment ago is not gone before
/// its last request is done.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// A leaf of a pool, found on a device.
#[derive(Clone, Debug)]
pub struct FoundLeaf {
    /// Its guid.
    pub guid: Guid,
    /// The device or partition.
    pub disk: Disk,
    /// The newest configuration of its labels.
    pub config: Arc<NvList>,
    /// The txg of that.
    pub txg: Txg,
    /// Every valid uberblock of its rings.
    pub uberblocks: Vec<UberblockCopy>,
    /// How many of its labels are damaged, though another is good.
    pub bad_labels: usize,
}

impl FoundLeaf {
    /// The sectors of its vdev, as a power of two.
    fn ashift(&self) -> u32 {
        let ashift = self.config.list("vdev_tree").and_then(|tree| tree.u64("ashift")).unwrap_or(0);
        u32::try_from(ashift).unwrap_or(0).clamp(ASHIFT_MIN, ASHIFT_MAX)
    }

    /// The same leaf as its device has it now, with its uberblocks, if that is still of this pool.
    pub(crate) async fn looked_at_again(&self, pool: Guid) -> Option<Self> {
        let leaves = leaves_of(&probe(&self.disk).await);
        leaves.into_iter().find(|(of, leaf)| (*of, leaf.guid) == (pool, self.guid)).map(|(_, leaf)| leaf)
    }

    /// Orders devices that claim to be the same leaf. An uberblock is written with each txg, a label only where the configuration
    /// changes: of a pool that was not exported, a copy that was made meanwhile has the same label.
    fn cmp_age(&self, other: &Self) -> Ordering {
        let newest = |leaf: &Self| leaf.uberblocks.iter().map(|copy| copy.uberblock).max_by(Uberblock::cmp_age);
        let uberblocks = match (newest(self), newest(other)) {
            (Some(one), Some(two)) => one.cmp_age(&two),
            (one, two) => one.is_some().cmp(&two.is_some()),
        };
        uberblocks.then(self.txg.cmp(&other.txg))
    }

    /// The txg of its newest uberblock or label.
    pub(crate) fn newest_txg(&self) -> Txg {
        self.uberblocks.iter().map(|copy| copy.uberblock.txg).fold(self.txg, Txg::max)
    }

    /// Its device is where its label says that it is.
    fn is_at_home(&self) -> bool {
        fn names(list: &NvList, guid: u64, path: &str) -> bool {
            let is_it = list.u64("guid") == Some(guid) && list.str("path") == Some(path);
            is_it
                || list.lists("children").is_some_and(|children| children.iter().any(|child| names(child, guid, path)))
        }
        let path = self.disk.path();
        self.config.list("vdev_tree").is_some_and(|tree| names(tree, self.guid.0, path))
    }

    /// The device to be used where both claim to be the same leaf.
    fn is_before(&self, other: &Self) -> bool {
        self.cmp_age(other).then(self.is_at_home().cmp(&other.is_at_home())).is_ge()
    }

    /// The unit in which its device is written: its vdev's sectors, or less where a partition begins amid one.
    fn unit_bytes(&self) -> u32 {
        let of_start = 1_u32 << self.disk.start_bytes().trailing_zeros().min(ASHIFT_MAX);
        of_start.min(1 << self.ashift())
    }
}

/// Leaves that say they are of one pool.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// The pool's guid.
    pub guid: Guid,
    /// Its leaves, by guid. Where two devices claim to be one leaf, the newer one stays: the one with the newer uberblock, then
    /// the newer label, then the path that its label names.
    pub leaves: BTreeMap<Guid, FoundLeaf>,
    /// Other devices that claim to be one of the leaves, and are older.
    pub copies: Vec<CopiedLeaf>,
    /// Every spare and cache device that was found on the way, of this pool or another.
    pub auxiliaries: Arc<BTreeMap<Guid, FoundAuxiliary>>,
    /// Leaves that were found to be another pool's, which was split from this one.
    pub split_off: BTreeSet<Guid>,
}

/// Why one of two devices that claim to be the same leaf is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is newer.
    Newer,
    /// Both are as new, and the label names it.
    Named,
    /// Both are as new, and the label names neither, or it names both.
    Any,
}

/// A device that claims to be a leaf of a pool, and is not used since another one claims it too. (Block devices alike may be one: a disk
/// and its partition. Of them only older ones are told of.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedLeaf {
    /// The leaf.
    pub guid: Guid,
    /// The device that is used.
    pub used: PathBuf,
    /// The other one.
    pub other: PathBuf,
    /// Why not that.
    pub choice: Choice,
}

impl std::fmt::Display for CopiedLeaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, other) = (self.used.display(), self.other.display());
        match self.choice {
            Choice::Newer => {
                write!(f, "'{other}' is an older copy of '{used}' and is not used; -d with names of devices chooses")
            }
            Choice::Named => write!(
                f,
                "'{other}' is a copy of '{used}', as new as that, and is not used: the label names '{used}'; -d with names of devices \
                 chooses"
            ),
            Choice::Any => write!(
                f,
                "'{other}' is a copy of '{used}', as new as that, and is not used; -d with names of devices chooses"
            ),
        }
    }
}

/// A path that was looked at and holds no usable leaf.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// The path.
    pub path: PathBuf,
    /// Why.
    pub reason: SkipReason,
}

/// Why a path holds no usable leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It may not be opened by this user.
    Denied,
    /// It cannot be opened for another reason.
    Failed(String),
    /// It has no label, or none that holds.
    NoLabel,
}

impl FoundPool {
    /// A pool of these leaves, and nothing beside them.
    pub(crate) fn of_leaves(guid: Guid, leaves: impl IntoIterator<Item = FoundLeaf>) -> Self {
        let leaves = leaves.into_iter().map(|leaf| (leaf.guid, leaf)).collect();
        Self { guid, leaves, copies: Vec::new(), auxiliaries: Arc::default(), split_off: BTreeSet::new() }
    }

    /// The newest label's configuration.
    #[must_use]
    pub fn newest(&self) -> Option<&FoundLeaf> {
        self.leaves.values().max_by_key(|leaf| (leaf.txg, leaf.guid))
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.newest().and_then(|leaf| leaf.config.str("name")).unwrap_or("?")
    }

    /// The tree of vdevs that the labels describe, with placeholders for what none of them does.
    pub fn vdevs(&self) -> Result<VdevConfig, VdevError> {
        let labels: Vec<_> =
            self.leaves.values().map(|leaf| LabelConfig { txg: leaf.txg.0, list: &leaf.config }).collect();
        VdevConfig::parse(&provisional(self.guid, &labels))
    }

    /// The health of that tree, by which devices were found.
    pub fn status(&self) -> Result<VdevStatus, VdevError> {
        let too_small = self.too_small();
        let leaves = self.leaves.iter().filter(|(guid, _)| !too_small.contains_key(guid));
        let disks = leaves.map(|(guid, leaf)| (*guid, leaf.disk.clone()));
        Ok(VdevTree::open(&self.vdevs()?, disks)?.status())
    }

    /// Leaves whose devices are too small for what the pool has on them, and are not used, each with what is to be said of it.
    pub fn too_small(&self) -> BTreeMap<Guid, String> {
        let disks = self.leaves.iter().map(|(guid, leaf)| (*guid, leaf.disk.clone())).collect();
        self.vdevs().map_or_else(|_| BTreeMap::new(), |tree| too_small(&tree, &disks))
    }

    /// That tree with the devices that were found: enough to read blocks of a pool that cannot be imported. It lacks the facts that labels
    /// do not record: the mappings of removed vdevs, and the txgs that a leaf has missed.
    pub fn tree_of_labels(&self) -> Result<Arc<VdevTree>, VdevError> {
        let disks = self.leaves.iter().map(|(guid, leaf)| (*guid, leaf.disk.clone()));
        let tree = VdevTree::open(&self.vdevs()?, disks)?;
        let mut control = tree.control().expect("nobody else has a tree that was just opened");
        let newest = self.leaves.values().flat_map(|leaf| &leaf.uberblocks).map(|copy| copy.uberblock);
        if let Some(newest) = newest.max_by(Uberblock::cmp_age) {
            control.set_reflow(Reflow::of(&newest));
        }
        drop(control);
        Ok(tree)
    }

    /// The same leaves with their devices opened for writing, for this process alone, and looked at again: what was read
    /// before may have been changed until the devices were ours.
    pub(crate) async fn opened_for_writing(&self, handle: &Handle, wanted: &BTreeSet<Guid>) -> Result<Self, SpaError> {
        // With the unit in which each is written.
        let mut paths: BTreeMap<PathBuf, u32> = BTreeMap::new();
        for leaf in self.leaves.values().filter(|leaf| wanted.contains(&leaf.guid)) {
            // Partitions of one device share it, unless the kernel has a node for the partition: other partitions of the same disk
            // may be in use by others, and then the whole disk cannot be had.
            let disk = &leaf.disk;
            let whole = disk.device().path();
            let node = match disk.start_bytes() {
                0 => None,
                start => handle.partition_node(whole, start, disk.size_bytes()).await,
            };
            let unit_bytes = paths.entry(node.unwrap_or_else(|| whole.to_owned())).or_insert(u32::MAX);
            *unit_bytes = leaf.unit_bytes().min(*unit_bytes);
        }
        // Those that are never written can be read all the same.
        let is_read_only = |leaf: &FoundLeaf| CoarseSectors::of(&leaf.disk, leaf.ashift()).is_some();
        let read_only = self.leaves.iter().filter(|(guid, leaf)| !wanted.contains(guid) && is_read_only(leaf));
        let leaves = read_only.map(|(guid, leaf)| (*guid, leaf.clone())).collect();
        let mut again = Self { leaves, ..self.clone() };
        for (path, unit_bytes) in paths {
            let fail = |reason: String| SpaError::Device {
                pool: self.name().to_owned(),
                path: path.display().to_string(),
                reason,
            };
            let device = handle
                .open_alone_in(&path, unit_bytes, LOCK_PATIENCE)
                .await
                .map_err(|error| fail(error.to_string()))?;
            let report = probe_device(&device).await;
            let leaves = report.labelled().flat_map(leaves_of).filter(|(pool, _)| *pool == self.guid);
            for (_, leaf) in leaves.filter(|(_, leaf)| wanted.contains(&leaf.guid)) {
                match again.leaves.get(&leaf.guid) {
                    Some(other) if other.is_before(&leaf) => {}
                    _ => drop(again.leaves.insert(leaf.guid, leaf)),
                }
            }
        }
        Ok(again)
    }

    /// Keeps the spares and cache devices that are this pool's. Cache devices are opened for this process alone like leaves, so that nobody makes
    /// something else of them meanwhile. Spares are not, before they are taken: other pools may have them in their lists. Others that were found on
    /// the way are left out. Lines say which cannot be had: the pool needs none of them.
    pub(crate) async fn lock_auxiliaries(&mut self, handle: &Handle, own: &BTreeSet<Guid>) -> Vec<String> {
        let leaves: BTreeSet<PathBuf> = self.leaves.values().map(|leaf| leaf.disk.device().path().to_owned()).collect();
        let (mut kept, mut lines) = (BTreeMap::new(), Vec::new());
        for auxiliary in self.auxiliaries.values().filter(|auxiliary| own.contains(&auxiliary.guid)) {
            let disk = &auxiliary.disk;
            let whole = disk.device().path();
            let node = match disk.start_bytes() {
                0 => None,
                start => handle.partition_node(whole, start, disk.size_bytes()).await,
            };
            let path = node.unwrap_or_else(|| whole.to_owned());
            // A partition of a disk that has a leaf too: the disk is had already.
            if auxiliary.state == PoolState::Spare || leaves.contains(&path) {
                kept.insert(auxiliary.guid, auxiliary.clone());
                continue;
            }
            let line = |why: String| format!("the cache device {} is not used: {why}", path.display());
            match handle.open_alone(&path, LOCK_PATIENCE).await {
                Ok(device) => {
                    let report = probe_device(&device).await;
                    let again = report.labelled().filter_map(auxiliary_of).find(|again| again.guid == auxiliary.guid);
                    match again {
                        Some(again) => drop(kept.insert(again.guid, again)),
                        None => lines.push(line("its label has changed".to_owned())),
                    }
                }
                Err(error) => lines.push(line(error.to_string())),
            }
        }
        self.auxiliaries = Arc::new(kept);
        lines
    }

    /// The pool as its devices have it now, if it was in use when it was found, and its user has exported it since.
    pub(crate) async fn exported_since(&self) -> Option<Self> {
        if self.state() != PoolState::Active {
            return None;
        }
        let mut now = self.clone();
        for leaf in now.leaves.values_mut() {
            if let Some(again) = leaf.looked_at_again(self.guid).await {
                *leaf = again;
            }
        }
        (now.state() == PoolState::Exported).then_some(now)
    }

    /// The state that the newest label records.
    #[must_use]
    pub fn state(&self) -> PoolState {
        PoolState::from_number(self.newest().and_then(|leaf| leaf.config.u64("state")).unwrap_or(u64::MAX))
    }
}

/// Probes `paths` (files and devices; directories are not descended into) and groups what is found by pool. Paths that
/// hold nothing are in the second list with the reason.
#[boxed]
pub async fn find(handle: &Handle, paths: &[PathBuf]) -> (Vec<FoundPool>, Vec<Skipped>) {
    let (pools, skipped, _) = find_all(handle, paths).await;
    (pools, skipped)
}

/// The spares and cache devices that were found, of whatever pool.
type Auxiliaries = Arc<BTreeMap<Guid, FoundAuxiliary>>;

/// The same, with spares and cache devices where no pool was found, too.
pub(crate) async fn find_all(handle: &Handle, paths: &[PathBuf]) -> (Vec<FoundPool>, Vec<Skipped>, Auxiliaries) {
    let mut pools: BTreeMap<Guid, FoundPool> = BTreeMap::new();
    let (mut skipped, mut auxiliaries, mut all) = (Vec::new(), BTreeMap::new(), Vec::new());
    for chunk in paths.chunks(PROBES_MAX) {
        let probes: Vec<_> = chunk
            .iter()
            .map(|path| {
                let (task, path) = (handle.clone(), path.clone());
                handle.spawn(Class::Issue, async move { probe_path(&task, &path).await })
            })
            .collect();
        for (path, probe) in chunk.iter().zip(probes) {
            let found = probe.await.unwrap_or_else(|error| Err(SkipReason::Failed(error.to_string())));
            match found {
                Ok((leaves, found)) => {
                    all.extend(leaves);
                    auxiliaries.extend(found.into_iter().map(|found| (found.guid, found)));
                }
                Err(reason) => skipped.push(Skipped { path: path.clone(), reason }),
            }
        }
    }
    let mut split_off: BTreeMap<Guid, BTreeSet<Guid>> = BTreeMap::new();
    for (pool, leaf) in settled(all) {
        if let Some(first) = leaf.config.u64(SPLIT_GUID).map(Guid).filter(|first| *first != pool) {
            split_off.entry(first).or_default().insert(leaf.guid);
        }
        add(&mut pools, pool, leaf);
    }
    let auxiliaries = Arc::new(auxiliaries);
    let mut found = Vec::with_capacity(pools.len());
    for (_, mut pool) in pools {
        let mut copies = Vec::new();
        for copy in std::mem::take(&mut pool.copies) {
            // Several names of one device are no copies.
            let (used, other) = (handle.identity(&copy.used).await, handle.identity(&copy.other).await);
            let are_files = [&used, &other].iter().all(|it| matches!(it, Some(Identity::Inode { .. })));
            if (used.is_none() || used != other) && (copy.choice == Choice::Newer || are_files) {
                copies.push(copy);
            }
        }
        let split_off = split_off.remove(&pool.guid).unwrap_or_default();
        found.push(FoundPool { copies, auxiliaries: auxiliaries.clone(), split_off, ..pool });
    }
    (found, skipped, auxiliaries)
}

/// Opens the device of a pool's leaf to be written, for this process alone: that at the first of `paths` whose label is the leaf's.
///
/// # Errors
/// There is none, in words that say why for each path.
pub(crate) async fn open_leaf(
    handle: &Handle,
    pool: Guid,
    guid: Guid,
    ashift: u32,
    paths: &[PathBuf],
) -> Result<FoundLeaf, String> {
    let mut why = Vec::new();
    for path in paths {
        let device = match handle.open_alone_in(path, 1 << ashift, LOCK_PATIENCE).await {
            Ok(device) => device,
            Err(error) => {
                why.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let report = probe_device(&device).await;
        let leaf = report.labelled().flat_map(leaves_of).find(|(of, leaf)| (*of, leaf.guid) == (pool, guid));
        match leaf {
            Some((_, leaf)) => return Ok(leaf),
            None => why.push(format!("{}: its label is not that of this device of the pool", path.display())),
        }
    }
    Err(why.join("; "))
}

fn add(pools: &mut BTreeMap<Guid, FoundPool>, pool: Guid, leaf: FoundLeaf) {
    let found = pools.entry(pool).or_insert_with(|| FoundPool::of_leaves(pool, []));
    let Some(first) = found.leaves.remove(&leaf.guid) else {
        found.leaves.insert(leaf.guid, leaf);
        return;
    };
    let (used, other) = if first.is_before(&leaf) { (first, leaf) } else { (leaf, first) };
    debug_assert!(used.is_before(&other), "of two devices that claim to be one the newer is used");
    let path = |leaf: &FoundLeaf| leaf.disk.device().path().to_owned();
    // The one that is used may have been compared with others before.
    found.copies.iter_mut().filter(|copy| copy.guid == used.guid).for_each(|copy| copy.used = path(&used));
    let choice = match (used.newest_txg() > other.newest_txg(), used.is_at_home(), other.is_at_home()) {
        (true, ..) => Choice::Newer,
        (false, true, false) => Choice::Named,
        (false, ..) => Choice::Any,
    };
    found.copies.push(CopiedLeaf { guid: used.guid, used: path(&used), other: path(&other), choice });
    found.leaves.insert(used.guid, used);
}

/// The leaves of each disk of a device, by pool, and its spares and cache devices.
type Probed = (Vec<Vec<(Guid, FoundLeaf)>>, Vec<FoundAuxiliary>);

async fn probe_path(handle: &Handle, path: &Path) -> Result<Probed, SkipReason> {
    let options = OpenOptions::default();
    let device = handle.open(path, options).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => SkipReason::Denied,
        _ => SkipReason::Failed(error.to_string()),
    })?;
    let report = probe_device(&device).await;
    let leaves: Vec<_> = report.labelled().map(leaves_of).filter(|leaves| !leaves.is_empty()).collect();
    let auxiliaries: Vec<_> = report.labelled().filter_map(auxiliary_of).collect();
    if leaves.is_empty() && auxiliaries.is_empty() {
        return Err(SkipReason::NoLabel);
    }
    Ok((leaves, auxiliaries))
}

/// The leaf that a disk is, for each pool that its labels name, the newest label first. There is more than one where the power went
/// while the pool got another guid ([`crate::Pool::reguid`]).
fn leaves_of(report: &LabelReport) -> Vec<(Guid, FoundLeaf)> {
    let Some(best) = report.best_config() else { return Vec::new() };
    // Spares and cache devices have a state and a guid, but belong to no pool's tree.
    if best.list("vdev_tree").is_none() {
        return Vec::new();
    }
    let mut leaves: Vec<(Guid, FoundLeaf)> = Vec::new();
    let configs = report.labels.iter().filter_map(|label| label.config.as_ref().ok());
    for config in std::iter::once(best).chain(configs) {
        let (Some(pool), Some(guid)) = (config.u64("pool_guid").map(Guid), config.u64("guid").map(Guid)) else {
            continue;
        };
        let txg = Txg(config.u64("txg").unwrap_or(0));
        // Labelled for a pool, or for a vdev of one, that no txg has made. Its rings may be those of an earlier life.
        if txg == Txg(0) || config.list("vdev_tree").is_none() {
            continue;
        }
        // A device that has grown has none at its new end yet: nothing is damaged.
        let has_grown = report.labels.iter().enumerate().all(|(index, label)| match index < LABEL_COUNT / 2 {
            true => label.config.is_ok(),
            false => label.config == Err(LabelProblem::Empty),
        });
        let bad_labels = if has_grown { 0 } else { LABEL_COUNT - report.good_labels() };
        let uberblocks = report.uberblocks.clone();
        let leaf = FoundLeaf { guid, disk: report.disk.clone(), config: config.clone(), txg, uberblocks, bad_labels };
        // A label of another leaf is of an earlier life of the device.
        let is_same = leaves.first().is_none_or(|(_, first)| first.guid == guid);
        match leaves.iter_mut().find(|(of, _)| *of == pool) {
            Some((_, other)) if other.txg < txg && is_same => *other = leaf,
            None if is_same => leaves.push((pool, leaf)),
            _ => {}
        }
    }
    leaves.sort_by_key(|(_, leaf)| std::cmp::Reverse(leaf.txg));
    leaves
}

/// One leaf for each disk: that of its newest label, unless no disk has an uberblock with that label's guid as new as the label. Then the
/// txg that gave the pool this guid never became the pool.
fn settled(disks: Vec<Vec<(Guid, FoundLeaf)>>) -> Vec<(Guid, FoundLeaf)> {
    let mut newest: BTreeMap<Guid, Txg> = BTreeMap::new();
    for (pool, leaf) in disks.iter().flatten() {
        let txg = leaf.uberblocks.iter().map(|copy| copy.uberblock.txg).max().unwrap_or_default();
        let of_pool = newest.entry(*pool).or_default();
        *of_pool = txg.max(*of_pool);
    }
    let one = |mut leaves: Vec<(Guid, FoundLeaf)>| {
        let is_made = |(pool, leaf): &(Guid, FoundLeaf)| newest.get(pool).is_some_and(|txg| *txg >= leaf.txg);
        let at = leaves.iter().position(is_made).unwrap_or(0);
        (at < leaves.len()).then(|| leaves.swap_remove(at))
    };
    disks.into_iter().filter_map(one).collect()
}
