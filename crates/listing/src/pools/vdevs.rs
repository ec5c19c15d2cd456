//! The tree of vdevs to show.

use std::collections::BTreeMap;

use crate::error::Result;
use cenote_format::ids::{Guid, VdevId};
use cenote_metaslab::{PoolSpace, class_fragmentation};
use cenote_spa::{FoundPool, SpareUse, View};
use cenote_taskq::boxed;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::dtl::Dtl;
use cenote_vdev::fault::ErrorTotals;
use cenote_vdev::layout::draid::{self, Draid};
use cenote_vdev::tree::{CoarseSectors, VdevState, VdevStatus};
use serde_json::{Map, Value, json};

use super::{Facts, Names};
use crate::Json;

/// Bytes of a device for labels and boot block, which are not the vdev's.
pub(super) const LABEL_BYTES: u64 = (4 << 20) + (512 << 10);
/// A leaf's size is a multiple of a label's.
const LABEL_ALIGNMENT: u64 = 256 << 10;

/// The reason of a vdev's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its device was not found.
    CannotOpen,
    /// Its device is too small for its part of the pool.
    TooSmall,
    /// Too many of its children cannot be used.
    NoReplicas,
    /// It was faulted by the administrator.
    External,
    /// It gave too many errors.
    Exceeded,
    /// No label that was found describes it.
    Missing,
    /// It is a spare in use.
    Spared,
    /// Its device's sectors are larger than its vdev's.
    Sectors(CoarseSectors),
    /// Of a pool: its root cannot be read.
    Corrupt,
    /// Of a pool: it uses unknown features.
    Features,
    /// Of a pool: its version is unknown.
    Version,
    /// Of a pool: another system has it.
    Active,
}

impl Reason {
    /// Its text.
    pub(crate) fn text(self) -> String {
        let words = match self {
            Self::CannotOpen => "cannot open",
            Self::TooSmall => "device is too small",
            Self::NoReplicas => "insufficient replicas",
            Self::External => "external device fault",
            Self::Exceeded => "too many errors",
            Self::Missing => "missing device",
            Self::Spared | Self::Active => "currently in use",
            Self::Corrupt => "corrupted data",
            Self::Features => "unsupported feature(s)",
            Self::Version => "newer version",
            Self::Sectors(sectors) => return format!("cannot open: {sectors}"),
        };
        words.to_owned()
    }

    /// Its word in JSON.
    const fn word(self) -> &'static str {
        match self {
            Self::CannotOpen => "OPEN_FAILED",
            Self::TooSmall => "TOO_SMALL",
            Self::NoReplicas => "NO_REPLICAS",
            Self::External => "EXTERNAL",
            Self::Exceeded => "ERR_EXCEEDED",
            Self::Missing => "BAD_GUID_SUM",
            Self::Spared => "SPARED",
            Self::Corrupt => "CORRUPT_DATA",
            Self::Features => "UNSUP_FEAT",
            Self::Version => "VERSION_NEWER",
            Self::Active => "ACTIVE",
            // These are OpenZFS's words.
            Self::Sectors(_) => "BAD_LABEL",
        }
    }
}

/// Sizes of a vdev; 0 for those that it does not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Bytes of its metaslabs.
    pub space: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Those of them that only the checkpoint holds.
    pub checkpoint: u64,
    /// The same space in the units of datasets.
    pub deflated: u64,
    /// Bytes that it would gain by using its devices completely.
    pub expandable: u64,
    /// The minimum size of a replacement, in bytes.
    pub replacement: u64,
    /// Bytes of its device.
    pub device: u64,
    /// Fragmentation of its free space in per cent.
    pub fragmentation: Option<u64>,
}

/// A vdev.
#[derive(Clone, Debug)]
pub struct Vdev {
    /// Its name as shown.
    pub name: String,
    /// Its type's name in the configuration.
    pub kind: &'static str,
    /// Its guid.
    pub guid: Guid,
    /// The path at which a leaf was found, else its last path.
    pub path: Option<String>,
    /// Its physical path in the configuration.
    pub phys_path: Option<String>,
    /// Its device id in the configuration.
    pub devid: Option<String>,
    /// Its allocation class, or another purpose.
    pub class: &'static str,
    /// The text of its state.
    pub state: &'static str,
    /// The reason of its state.
    pub reason: Option<Reason>,
    /// The txgs that a leaf has missed, or that too many children of a top-level vdev have missed; empty unless it is readable.
    pub missed: Dtl,
    /// Its earlier path, if it was not found at import.
    pub was: Option<String>,
    /// Errors since the pool was opened.
    pub errors: ErrorTotals,
    /// Of a leaf: slow I/Os since the pool was opened.
    pub slow_ios: u64,
    /// It waits for the end of a resilver that began before it was there.
    pub awaits_resilver: bool,
    /// A leaf that is rebuilt sequentially, and has not everything yet.
    pub is_rebuilt: bool,
    /// It is being removed.
    pub is_removing: bool,
    /// Space is allocated from it.
    pub is_allocating: bool,
    /// Its sizes.
    pub sizes: Sizes,
    /// Its parts.
    pub children: Vec<Vdev>,
    /// A hole, or a removed vdev: not shown.
    pub is_placeholder: bool,
    /// A hot spare in the list of spares.
    pub is_listed_spare: bool,
    /// The other pool that has taken this spare.
    pub user: Option<String>,
}

/// The vdevs of a pool to show.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The pool itself.
    pub root: Vdev,
    /// Cache devices.
    pub caches: Vec<Vdev>,
    /// Hot spares.
    pub spares: Vec<Vdev>,
}

impl Tree {
    /// The width of names with their indentation.
    pub(crate) fn name_width(&self) -> usize {
        fn of(vdev: &Vdev, depth: usize) -> usize {
            let below = vdev.children.iter().map(|child| of(child, depth + 2)).max().unwrap_or(0);
            below.max(depth + vdev.name.chars().count())
        }
        let beside = self.caches.iter().chain(&self.spares).map(|vdev| of(vdev, 2)).max().unwrap_or(0);
        of(&self.root, 0).max(beside)
    }

    /// The top-level vdevs that are listed first, without a heading.
    pub(super) fn plain(&self) -> impl Iterator<Item = &Vdev> {
        self.root.children.iter().filter(|top| !top.is_placeholder && top.heading().is_none())
    }

    /// The classes with headings of their own that have members, with these.
    pub(super) fn classes(&self) -> impl Iterator<Item = (&'static str, Vec<&Vdev>)> {
        let of_class = |class: &str| {
            let is_in = |top: &&Vdev| !top.is_placeholder && top.heading() == Some(class);
            self.root.children.iter().filter(is_in).collect::<Vec<_>>()
        };
        [DEDUP, SPECIAL, LOGS]
            .map(|class| (class, of_class(class)))
            .into_iter()
            .filter(|(_, members)| !members.is_empty())
    }
}

/// The classes with headings of their own, in an order that depends on the command: for deduplication tables.
pub const DEDUP: &str = "dedup";
/// For metadata and small blocks.
pub const SPECIAL: &str = "special";
/// For intent logs.
pub const LOGS: &str = "logs";

/// The word for an allocation class.
pub(super) const fn class_of(class: AllocationClass) -> &'static str {
    match class {
        AllocationClass::Log => "log",
        AllocationClass::Special => SPECIAL,
        AllocationClass::Dedup => DEDUP,
        AllocationClass::Normal => "normal",
    }
}

impl Vdev {
    /// The class under whose heading it is listed; `None` if it is listed first.
    pub(crate) fn heading(&self) -> Option<&'static str> {
        match self.class {
            "log" => Some(LOGS),
            SPECIAL => Some(SPECIAL),
            DEDUP => Some(DEDUP),
            _ => None,
        }
    }

    /// Whether it is a distributed spare: that has no device of its own to be trimmed.
    pub(super) fn is_distributed(&self) -> bool {
        self.kind == "dspare"
    }

    /// Whether `zpool list -v` has a row of it: a removed vdev has one, a hole has none.
    pub(super) fn is_listed(&self) -> bool {
        !self.is_placeholder || self.kind == "indirect"
    }

    /// True if it, or a vdev below it, has a problem. `with_slow`: slow I/Os are one.
    pub(crate) fn is_unhealthy(&self, with_slow: bool) -> bool {
        let has_errors = self.errors.read + self.errors.write + self.errors.checksum > 0;
        let is_slow = with_slow && self.slow_ios > 0;
        let is_well = matches!(self.state, "ONLINE" | "AVAIL" | "INUSE");
        (self.children.is_empty() && (has_errors || is_slow || !is_well))
            || self.children.iter().any(|child| child.is_unhealthy(with_slow))
    }

    /// The remark after its errors: the reason of its state.
    pub(crate) fn remark(&self) -> Option<String> {
        let reason = || match &self.user {
            Some(pool) => Some(format!("in use by pool '{pool}'")),
            None => self.reason.map(Reason::text),
        };
        let missed = || match self.children.is_empty() {
            _ if self.missed.is_empty() => None,
            true => Some(format!("missed txgs {}", self.missed)),
            false => Some(format!("txgs {} may be lost", self.missed)),
        };
        reason().or_else(missed)
    }

    /// The beginning of its object in JSON.
    pub(crate) fn json(&self, json: Json) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("vdev_type".into(), json!(self.kind));
        map.insert("guid".into(), json.number(self.guid.0));
        for (key, value) in [("path", &self.path), ("phys_path", &self.phys_path), ("devid", &self.devid)] {
            if let Some(value) = value {
                map.insert(key.into(), json!(value));
            }
        }
        map.insert("class".into(), json!(self.class));
        map.insert("state".into(), json!(json_state(self.state)));
        map
    }

    /// The reason's word in JSON.
    pub(crate) fn reason_word(&self) -> Option<&'static str> {
        self.reason.map(Reason::word)
    }
}

/// A state in JSON, with the kernel's words for missing and faulted devices.
pub(super) fn json_state(state: &'static str) -> &'static str {
    match state {
        "UNAVAIL" => "CANT_OPEN",
        "AVAIL" => "ONLINE",
        other => other,
    }
}

struct Builder<'a> {
    found: &'a FoundPool,
    names: Names,
    /// The pool and its space, if it is open.
    open: Option<(&'a View, &'a PoolSpace)>,
    too_small: BTreeMap<Guid, String>,
}

/// Devices in addition to a pool's vdevs.
pub(super) struct Auxiliary {
    caches: Vec<VdevConfig>,
    spares: Vec<VdevConfig>,
    /// The use of each spare that has a device.
    uses: BTreeMap<Guid, SpareUse>,
}

impl Facts {
    /// The tree of this pool.
    ///
    /// # Errors
    /// Space maps, caches or spares cannot be read.
    #[boxed]
    pub async fn tree(&self, names: Names) -> Result<Tree> {
        let read = self.auxiliary().await?;
        Ok(self.tree_of(&read, names, &self.devices()))
    }

    /// Reads the parts of the tree: space maps, and auxiliary devices.
    pub(super) async fn auxiliary(&self) -> Result<Auxiliary> {
        self.space().await?;
        let (caches, spares) = (self.pool.cache_devices().await?, self.pool.spares().await?);
        let mut uses = BTreeMap::new();
        // By the labels as they are now: other pools may list these spares, too.
        for spare in spares.iter().filter(|spare| matches!(spare.kind, VdevKind::Disk | VdevKind::File)) {
            uses.insert(spare.guid, self.pool.spare_use(spare).await);
        }
        Ok(Auxiliary { caches, spares, uses })
    }

    /// The tree, from parts that were read, with its devices in these states.
    pub(super) fn tree_of(&self, read: &Auxiliary, names: Names, status: &VdevStatus) -> Tree {
        let Auxiliary { caches, spares, uses } = read;
        let (pool, space) = (&self.pool, self.space.get_or_init(PoolSpace::default));
        let too_small = pool.found().too_small();
        let builder = Builder { found: pool.found(), names, open: Some((pool, space)), too_small };
        let mut root = builder.root(pool.name(), pool.vdevs(), status);
        let shown = root.children.iter().filter(|top| top.class != "log");
        let sum = |of: fn(&Sizes) -> u64| shown.clone().map(|top| of(&top.sizes)).sum();
        root.sizes = Sizes {
            space: sum(|sizes| sizes.space),
            allocated: sum(|sizes| sizes.allocated),
            deflated: sum(|sizes| sizes.deflated),
            ..Sizes::default()
        };
        let mut in_use = Vec::new();
        pool.vdevs().walk(&mut |vdev| {
            if vdev.kind == VdevKind::Spare {
                in_use.extend(vdev.children.iter().skip(1).map(|child| child.guid));
            }
            // One that stays in the place of a device that was detached.
            if matches!(vdev.kind, VdevKind::DraidSpare { .. }) {
                in_use.push(vdev.guid);
            }
        });
        let shelves = pool.dmu().zio().shelves();
        let caches = caches.iter().map(|config| {
            let mut cache = builder.auxiliary(config, "l2cache", "ONLINE");
            // Only a process that has the pool in use knows more.
            if let Some(shelf) = shelves.iter().find(|shelf| shelf.guid == config.guid) {
                (cache.state, cache.errors) = (shelf.state.name(), shelf.errors);
                cache.reason = (shelf.state == VdevState::Faulted).then_some(Reason::Exceeded);
                cache.sizes.allocated = shelf.allocated_bytes;
            }
            cache
        });
        let caches = caches.collect();
        let spares = spares.iter().map(|config| {
            let is_used = in_use.contains(&config.guid);
            let (state, user) = match uses.get(&config.guid).filter(|_| !is_used) {
                None if is_used => ("INUSE", None),
                None | Some(SpareUse::Free) => ("AVAIL", None),
                Some(SpareUse::UsedBy(pool)) => ("INUSE", Some(pool.clone())),
                Some(SpareUse::Gone) => ("UNAVAIL", None),
            };
            Vdev { user, ..builder.auxiliary(config, "spare", state) }
        });
        Tree { root, caches, spares: spares.collect() }
    }
}

/// The tree of a pool that was found but is not open, from its labels.
pub(super) fn found_tree(found: &FoundPool, name: &str, names: Names) -> Option<Tree> {
    let (config, status) = (found.vdevs().ok()?, found.status().ok()?);
    let builder = Builder { found, names, open: None, too_small: found.too_small() };
    Some(Tree { root: builder.root(name, &config, &status), caches: Vec::new(), spares: Vec::new() })
}

impl Builder<'_> {
    fn root(&self, name: &str, config: &VdevConfig, status: &VdevStatus) -> Vdev {
        let mut root = self.vdev(config, status, None);
        name.clone_into(&mut root.name);
        root
    }

    fn vdev(&self, config: &VdevConfig, status: &VdevStatus, top: Option<&VdevConfig>) -> Vdev {
        let is_leaf = config.kind.is_leaf();
        let is_small = self.too_small.contains_key(&config.guid);
        let is_missing = is_leaf && status.state == VdevState::Unavailable && status.coarse.is_none() && !is_small;
        let recorded = config.path.as_deref().map(str::to_owned);
        let disk = self.found.leaves.get(&config.guid).map(|leaf| &leaf.disk);
        let path = disk.map(|disk| disk.path().to_string()).or_else(|| recorded.clone());
        let class = match (top.unwrap_or(config).class, &config.kind) {
            (_, VdevKind::Hole) => "hole",
            _ if config.is_spare => "spare",
            (class, _) => class_of(class),
        };
        let reason = match status.state {
            VdevState::Unavailable if config.kind == VdevKind::Missing => Some(Reason::Missing),
            VdevState::Unavailable if disk.is_some() && self.too_small.contains_key(&config.guid) => {
                Some(Reason::TooSmall)
            }
            VdevState::Unavailable if is_leaf => Some(status.coarse.map_or(Reason::CannotOpen, Reason::Sectors)),
            VdevState::Unavailable => Some(Reason::NoReplicas),
            VdevState::Faulted if config.state.faulted => Some(Reason::External),
            VdevState::Faulted => Some(Reason::Exceeded),
            VdevState::Degraded if is_leaf && (config.state.degraded || status.missed.is_empty()) => {
                Some(Reason::Exceeded)
            }
            _ => None,
        };
        let is_top = top.is_some_and(|top| top.guid == config.guid);
        let shows_missed = status.state.is_readable() && (is_leaf || is_top);
        let next = |child| match config.kind {
            VdevKind::Root => Some(child),
            _ => top,
        };
        let children: Vec<Vdev> = config
            .children
            .iter()
            .zip(&status.children)
            .map(|(child, status)| self.vdev(child, status, next(child)))
            .collect();
        let is_removed_place = matches!(config.kind, VdevKind::Hole | VdevKind::Indirect(_));
        let mut vdev = Vdev {
            name: self.names.of(config, path.as_deref(), is_missing),
            kind: config.kind.name(),
            guid: config.guid,
            was: (is_missing && self.names.hides_missing()).then(|| recorded.clone().unwrap_or_default()),
            path,
            phys_path: config.phys_path.as_deref().map(str::to_owned),
            devid: config.devid.as_deref().map(str::to_owned),
            class,
            state: status.state.name(),
            reason,
            missed: if shows_missed { status.missed.clone() } else { Dtl::new() },
            errors: status.errors,
            slow_ios: status.slow_ios,
            awaits_resilver: config.resilver_deferred,
            is_rebuilt: config.rebuild_txg.is_some(),
            is_removing: config.removing,
            is_allocating: !config.non_allocating,
            sizes: Sizes::default(),
            children,
            is_placeholder: is_removed_place,
            is_listed_spare: false,
            user: None,
        };
        if let Some(disk) = disk {
            // It may have got room since it was opened.
            let bytes = disk.grown().ok().flatten().map_or(disk.size_bytes(), |grown| grown.size_bytes());
            vdev.sizes.device = bytes / LABEL_ALIGNMENT * LABEL_ALIGNMENT;
        }
        if let VdevKind::DraidSpare { top_guid, .. } = config.kind {
            vdev.sizes.device = self.distributed_spare_bytes(top_guid);
        }
        if is_top && !is_removed_place {
            self.size(&mut vdev, config);
        }
        vdev
    }

    /// Sets the sizes of a top-level vdev and of the vdevs below it.
    fn size(&self, vdev: &mut Vdev, config: &VdevConfig) {
        let Ok(id) = u32::try_from(config.id).map(VdevId) else { return };
        if let Some((pool, space)) = self.open
            && let Some(space) = space.vdev(id)
        {
            let figures = space.figures();
            vdev.sizes.space = figures.size_bytes;
            vdev.sizes.allocated = figures.allocated_bytes;
            vdev.sizes.checkpoint = figures.checkpoint_bytes;
            vdev.sizes.deflated = pool.deflated_bytes(id, figures.size_bytes);
            vdev.sizes.fragmentation = class_fragmentation(std::iter::once(space));
        }
        let metaslab = 1_u64.checked_shl(config.metaslab_shift).unwrap_or(1);
        let aligned = |bytes: u64| bytes / metaslab * metaslab;
        let most = most_bytes(vdev, config);
        // The space of a further child is there when its expansion has ended.
        let is_expanding = matches!(config.kind, VdevKind::Raidz { expanding: true, .. });
        if most > 0 && !is_expanding {
            vdev.sizes.expandable = aligned(most.saturating_sub(config.asize_bytes));
        }
        replacements(vdev, config, aligned(config.asize_bytes));
    }

    /// The size of a distributed spare: that of its draid's smallest disk.
    fn distributed_spare_bytes(&self, draid: Guid) -> u64 {
        let Some((pool, _)) = self.open else { return 0 };
        let Some(top) = pool.vdevs().children.iter().find(|top| top.guid == draid) else { return 0 };
        let mut least: Option<u64> = None;
        top.walk(&mut |vdev| {
            if let Some(leaf) = self.found.leaves.get(&vdev.guid) {
                let bytes = leaf.disk.size_bytes() / LABEL_ALIGNMENT * LABEL_ALIGNMENT;
                least = Some(least.map_or(bytes, |least| least.min(bytes)));
            }
        });
        least.unwrap_or(0)
    }

    fn auxiliary(&self, config: &VdevConfig, class: &'static str, state: &'static str) -> Vdev {
        // A spare in use has the label of a leaf.
        let leaf = self.found.leaves.get(&config.guid).map(|leaf| &leaf.disk);
        let disk = self.found.auxiliaries.get(&config.guid).map(|found| &found.disk).or(leaf);
        let draid = match config.kind {
            VdevKind::DraidSpare { top_guid, .. } => Some(top_guid),
            _ => None,
        };
        // Of a spare it is known.
        let is_missing = state == "UNAVAIL" || class != "spare" && disk.is_none() && draid.is_none();
        let recorded = config.path.as_deref().map(str::to_owned);
        let path = disk.map(|disk| disk.path().to_string()).or(recorded);
        let device = match draid {
            Some(top) => self.distributed_spare_bytes(top),
            None => disk.map_or(0, |disk| disk.size_bytes() / LABEL_ALIGNMENT * LABEL_ALIGNMENT),
        };
        let names = self.names.with_paths();
        let is_spare = class == "spare";
        // Without a process that has the pool in use, nobody knows how much of a cache device is used.
        let sizes = match is_spare {
            true => Sizes { device, ..Sizes::default() },
            false => Sizes {
                space: device.saturating_sub(LABEL_BYTES),
                device,
                replacement: device,
                fragmentation: Some(0),
                ..Sizes::default()
            },
        };
        Vdev {
            name: names.of(config, path.as_deref(), is_missing),
            kind: config.kind.name(),
            guid: config.guid,
            path,
            phys_path: config.phys_path.as_deref().map(str::to_owned),
            devid: config.devid.as_deref().map(str::to_owned),
            class,
            state: if is_missing { "UNAVAIL" } else { state },
            reason: match state {
                _ if is_missing => Some(Reason::CannotOpen),
                "INUSE" => Some(Reason::Spared),
                _ => None,
            },
            missed: Dtl::new(),
            was: None,
            errors: ErrorTotals::default(),
            slow_ios: 0,
            awaits_resilver: false,
            is_rebuilt: false,
            is_removing: false,
            is_allocating: true,
            sizes,
            children: Vec::new(),
            is_placeholder: false,
            is_listed_spare: is_spare,
            user: None,
        }
    }
}

/// The size that a vdev could have on its devices; 0 if none of them was found.
fn most_bytes(vdev: &Vdev, config: &VdevConfig) -> u64 {
    if vdev.children.is_empty() {
        return vdev.sizes.device.saturating_sub(LABEL_BYTES);
    }
    let children = vdev.children.iter().zip(&config.children);
    let sizes = children.map(|(child, config)| most_bytes(child, config)).filter(|bytes| *bytes > 0);
    let least = sizes.min().unwrap_or(0);
    match &config.kind {
        VdevKind::Raidz { .. } => least.saturating_mul(config.children.len() as u64),
        VdevKind::Draid { parity, data, spares, groups } => {
            Draid::new(config.ashift, *parity, *data, *spares, *groups, config.children.len())
                .map_or(0, |draid| draid.asize_bytes(least))
        }
        _ => least,
    }
}

/// Sets the minimum sizes of replacements, from the top down.
fn replacements(vdev: &mut Vdev, config: &VdevConfig, bytes: u64) {
    let count = config.children.len() as u64;
    vdev.sizes.replacement = if vdev.children.is_empty() { bytes.saturating_add(LABEL_BYTES) } else { bytes };
    let each = match &config.kind {
        VdevKind::Raidz { .. } => bytes.div_ceil(count.max(1)),
        VdevKind::Draid { spares, .. } => {
            bytes.div_ceil(count.saturating_sub(*spares).max(1)).saturating_add(draid::RESERVE_BYTES)
        }
        _ => bytes,
    };
    for (child, config) in vdev.children.iter_mut().zip(&config.children) {
        replacements(child, config, each);
    }
}
