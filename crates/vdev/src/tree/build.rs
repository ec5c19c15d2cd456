//! Making a topology of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::{Guid, VdevId};
use cenote_taskq::Handle;

use super::node::{Kind, Leaf, LeafState, Node, NodeIndex};
use super::topology::{Common, Top, Topology};
use crate::config::{AllocationClass, RecordedState, VdevConfig, VdevKind};
use crate::disk::Disk;
use crate::error::VdevError;
use crate::fault::{Evidence, Fault, FaultKind};
use crate::iostat::{Slow, SlowIo};
use crate::layout::draid::Draid;
use crate::layout::raidz::Raidz;
use crate::layout::{ASHIFT_MIN, LayoutError, MAX_CHILDREN};
use crate::mirror::Load;
use crate::queue::{LeafQueue, Limits, SharedQueue};
use crate::tunables::{Policy, Tunables};

fn bad(guid: Guid, reason: impl Into<String>) -> VdevError {
    VdevError::BadConfig { guid: Some(guid), reason: reason.into() }
}

fn new_node(config: &VdevConfig, kind: Kind, top: VdevId, path: Arc<str>) -> Node {
    Node {
        kind,
        guid: config.guid,
        path,
        top,
        children: Vec::new(),
        errors: Arc::default(),
        missed: Arc::default(),
        is_replacing: matches!(config.kind, VdevKind::Replacing | VdevKind::Spare),
        load: Arc::new(Load::new(false, 1)),
        shared: None,
    }
}

/// Makes nodes of a configuration.
struct Builder<'a> {
    nodes: Vec<Node>,
    by_guid: BTreeMap<Guid, NodeIndex>,
    disks: BTreeMap<Guid, Disk>,
    /// Distributed spares and the draids that they name.
    spares: Vec<(NodeIndex, Guid)>,
    /// Draids and numbers of the distributed spares that were met.
    spares_seen: BTreeSet<(Guid, u64)>,
    common: &'a Arc<Common>,
    tunables: &'a Tunables,
    clock: Option<&'a Handle>,
    /// The topology that the new one follows, if there is one.
    before: Option<&'a Topology>,
}

impl Builder<'_> {
    /// The queue in which reads of a mirror wait for all of its children together: where these are leaves, one of them has a head,
    /// and no older policy was asked for.
    fn shared_queue(&self, mirror: NodeIndex, children: &[NodeIndex]) -> Option<Arc<SharedQueue>> {
        let node = &self.nodes[mirror.0 as usize];
        if !matches!(node.kind, Kind::Mirror)
            || children.len() > SharedQueue::CHILDREN_MAX
            || self.tunables.zfs_vdev_mirror_policy != Policy::Adaptive
        {
            return None;
        }
        let mut members = Vec::new();
        let mut has_head = false;
        for (position, child) in children.iter().enumerate() {
            let child = &self.nodes[child.0 as usize];
            let Kind::Leaf(leaf) = &child.kind else { return None };
            // One that was not found is not asked.
            let Some(queue) = &leaf.queue else { continue };
            has_head |= child.load.is_rotational();
            members.push((position, Arc::clone(queue), Arc::clone(&child.load)));
        }
        if !has_head || members.len() < 2 {
            return None;
        }
        let before = self.before.and_then(|before| before.lookup(node.guid));
        match before.and_then(|before| before.shared.as_ref()) {
            Some(shared) if shared.has_children(&members) => Some(Arc::clone(shared)),
            // A leaf's queue knows one mirror for good: of a mirror that has changed, reads are bound to a child as they come.
            _ if self.takes_over(children) => None,
            _ => Some(SharedQueue::new(members)),
        }
    }

    /// Whether a child was there before.
    fn takes_over(&self, children: &[NodeIndex]) -> bool {
        let guid = |child: &NodeIndex| self.nodes[child.0 as usize].guid;
        self.before.is_some_and(|before| children.iter().any(|child| before.lookup(guid(child)).is_some()))
    }

    /// The leaf as it was before, unless it is given a disk now, or is not to be used: then its device is closed.
    fn leaf_before(&self, config: &VdevConfig) -> Option<(Arc<Leaf>, Arc<str>)> {
        let RecordedState { offline, faulted, lost, .. } = config.state;
        if offline || faulted || lost || self.disks.contains_key(&config.guid) {
            return None;
        }
        let node = self.before?.lookup(config.guid)?;
        match &node.kind {
            Kind::Leaf(leaf) if leaf.disk.is_some() => Some((Arc::clone(leaf), Arc::clone(&node.path))),
            _ => None,
        }
    }

    /// A leaf that is new, or has its disk now.
    fn new_leaf(&mut self, config: &VdevConfig, ashift: u32) -> Leaf {
        let disk = self.disks.remove(&config.guid);
        let slow = |path: &Arc<str>| {
            let (common, guid, path) = (self.common.clone(), config.guid, path.clone());
            let tell = Box::new(move |io: SlowIo| {
                let kind = FaultKind::Slow { is_write: io.is_write, took: io.took };
                let (address_bytes, size_bytes) = (io.address_bytes, io.size_bytes);
                let fault = Fault { guid, path: path.clone(), address_bytes, size_bytes, kind, class: None };
                common.faults.tell(&fault, Evidence::default());
            });
            Slow { after: Duration::from_millis(self.tunables.zio_slow_io_ms), tell }
        };
        disk.iter().for_each(|disk| disk.count(self.clock, || slow(disk.path())));
        let state = match config.state {
            state if state.faulted => LeafState::Faulted,
            state if state.offline => LeafState::Offline,
            state if state.degraded => LeafState::Degraded,
            _ => LeafState::Online,
        };
        let queue = disk.as_ref().map(|disk| Limits::new(self.tunables, disk.device().is_rotational()));
        Leaf::new(disk, queue.map(|limits| Arc::new(LeafQueue::new(limits))), state, ashift)
    }

    /// Whether a distributed spare stands where one can: in a child of its own draid, below mirrors only (`spare`,
    /// `replacing`), and nowhere else. One that does not is as good as absent.
    ///
    /// So at any address each child of a draid is stood for by at most one spare in one place, and the ways from spare to
    /// child to spare are chains. Without this, a mirror of a hundred spares of the draid that it is a child of has
    /// 100^depth of them.
    fn spare_is_in_place(&mut self, draid: Guid, spare_id: u64, draid_above: Option<Guid>) -> bool {
        draid_above == Some(draid) && self.spares_seen.insert((draid, spare_id))
    }

    /// Adds a vdev and what is below it. Recursion is as deep as the configuration, which is bounded. `draid_above` is the
    /// draid in one of whose children it is, below mirrors only.
    fn add(
        &mut self,
        config: &VdevConfig,
        top: VdevId,
        ashift: u32,
        draid_above: Option<Guid>,
    ) -> Result<NodeIndex, VdevError> {
        let child_count = config.children.len();
        if child_count > MAX_CHILDREN {
            return Err(bad(config.guid, "too many children"));
        }
        let layout_error = |source: LayoutError| bad(config.guid, source.to_string());
        let mut path: Arc<str> = config.display_name().into();
        let kind = match &config.kind {
            VdevKind::Disk | VdevKind::File => {
                if let Some((leaf, known_as)) = self.leaf_before(config) {
                    path = known_as;
                    Kind::Leaf(leaf)
                } else {
                    let leaf = self.new_leaf(config, ashift);
                    if let Some(disk) = &leaf.disk {
                        path = disk.path().clone();
                    }
                    Kind::Leaf(Arc::new(leaf))
                }
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Kind::Mirror,
            VdevKind::Raidz { parity, expanding, expand_txgs } => {
                Kind::Raidz(Raidz::new(ashift, *parity, child_count, expand_txgs, *expanding).map_err(layout_error)?)
            }
            VdevKind::Draid { parity, data, spares, groups } => {
                Kind::Draid(Draid::new(ashift, *parity, *data, *spares, *groups, child_count).map_err(layout_error)?)
            }
            VdevKind::DraidSpare { spare_id, .. } => Kind::DraidSpare { draid: None, spare_id: *spare_id },
            VdevKind::Indirect(_) => Kind::Indirect,
            VdevKind::Hole => Kind::Hole,
            VdevKind::Missing => Kind::Missing,
            VdevKind::Root => return Err(bad(config.guid, "a root below the root")),
        };
        let index = NodeIndex(u32::try_from(self.nodes.len()).map_err(|_| bad(config.guid, "too many vdevs"))?);
        if let VdevKind::DraidSpare { top_guid, spare_id } = config.kind
            && self.spare_is_in_place(top_guid, spare_id, draid_above)
        {
            self.spares.push((index, top_guid));
        }
        let draid_above = match kind {
            Kind::Draid(_) => Some(config.guid),
            Kind::Mirror => draid_above,
            _ => None,
        };
        let mut node = new_node(config, kind, top, path);
        let disk = if let Kind::Leaf(leaf) = &node.kind { leaf.disk.as_ref() } else { None };
        if let Some(disk) = disk {
            node.load = Arc::new(Load::new(disk.device().is_rotational(), disk.device().size_bytes()));
        }
        let before = self.before.and_then(|before| before.lookup(config.guid));
        if before.is_none() {
            node.missed.set_rebuilding(config.rebuild_txg.is_some());
        }
        if let Some(before) = before {
            (node.errors, node.missed) = (before.errors.clone(), before.missed.clone());
            // How another device answered says nothing of this one.
            let is_same = match (&node.kind, &before.kind) {
                (Kind::Leaf(now), Kind::Leaf(then)) => Arc::ptr_eq(now, then),
                (Kind::Leaf(_), _) | (_, Kind::Leaf(_)) => false,
                _ => true,
            };
            if is_same {
                node.load = before.load.clone();
            }
        }
        self.nodes.push(node);
        let is_placeholder = matches!(config.kind, VdevKind::Hole | VdevKind::Missing);
        if !is_placeholder && self.by_guid.insert(config.guid, index).is_some() {
            return Err(bad(config.guid, "two vdevs with one guid"));
        }
        let mut children = Vec::with_capacity(child_count);
        for child in &config.children {
            children.push(self.add(child, top, ashift, draid_above)?);
        }
        assert!(children.iter().all(|child| child.0 > index.0), "a vdev comes before those below it");
        assert_eq!(children.len(), child_count, "a layout has as many children as its vdev");
        self.nodes[index.0 as usize].shared = self.shared_queue(index, &children);
        self.nodes[index.0 as usize].children = children;
        Ok(index)
    }
}

impl Topology {
    /// Makes the topology of a configuration of type `root`. A vdev of the topology `before` it keeps its state; a leaf that is new
    /// there, or was there without a disk, has the disk that is given for it.
    pub(super) fn new(
        config: &VdevConfig,
        disks: impl IntoIterator<Item = (Guid, Disk)>,
        common: &Arc<Common>,
        before: Option<&Self>,
    ) -> Result<Self, VdevError> {
        if config.kind != VdevKind::Root {
            return Err(bad(config.guid, "the vdev tree does not start with a root"));
        }
        let mut builder = Builder {
            nodes: Vec::new(),
            by_guid: BTreeMap::new(),
            disks: disks.into_iter().collect(),
            spares: Vec::new(),
            spares_seen: BTreeSet::new(),
            common,
            tunables: &common.tunables,
            clock: common.clock.as_ref(),
            before,
        };
        let mut tops = Vec::with_capacity(config.children.len());
        for (position, top) in config.children.iter().enumerate() {
            let id = u32::try_from(position).map_err(|_| bad(config.guid, "too many top-level vdevs"))?;
            let is_placeholder = matches!(top.kind, VdevKind::Hole | VdevKind::Missing);
            if top.id != u64::from(id) && !is_placeholder {
                return Err(bad(top.guid, format!("top-level vdev {id} says that it is {}", top.id)));
            }
            let ashift = top.ashift.max(ASHIFT_MIN);
            let is_log = top.class == AllocationClass::Log;
            tops.push(Top { node: builder.add(top, VdevId(id), ashift, None)?, ashift, is_log });
        }
        let Builder { mut nodes, by_guid, spares, .. } = builder;
        // Distributed spares name their draid by guid, which may come after them.
        for (spare, draid_guid) in spares {
            let is_draid = |target: &NodeIndex| matches!(nodes[target.0 as usize].kind, Kind::Draid(_));
            let target = by_guid.get(&draid_guid).copied().filter(is_draid);
            if let Kind::DraidSpare { draid, .. } = &mut nodes[spare.0 as usize].kind {
                *draid = target;
            }
        }
        let this = Self { common: common.clone(), nodes: nodes.into(), tops: tops.into(), by_guid: Arc::new(by_guid) };
        this.check(before);
        match before {
            Some(before) => this.keeps_ids_of(before).map(|()| this),
            None => Ok(this),
        }
    }

    /// Checks that the top-level vdevs of the topology before are in their places, as themselves or with one of their leaves; or gone, with a hole
    /// there, or with a mapping of what they had.
    fn keeps_ids_of(&self, before: &Self) -> Result<(), VdevError> {
        for (id, top) in before.tops.iter().enumerate() {
            let old = before.node(top.node);
            let is_in_place = self.tops.get(id).is_some_and(|now| {
                let new = self.node(now.node);
                match new.kind {
                    Kind::Hole => !self.has_top(old.guid),
                    Kind::Indirect if new.guid != old.guid => now.ashift == top.ashift && !self.has_top(old.guid),
                    _ => now.ashift == top.ashift && (new.guid == old.guid || self.has_leaf_of(new, before, old)),
                }
            });
            if !matches!(old.kind, Kind::Hole | Kind::Missing) && !is_in_place {
                return Err(bad(old.guid, format!("top-level vdev {id} is another one, or none, after a change")));
            }
        }
        Ok(())
    }

    /// Whether a vdev has a leaf that a vdev of the topology before had: a mirror was put above it, or taken away.
    fn has_leaf_of(&self, new: &Node, before: &Self, old: &Node) -> bool {
        let is_stripe = |node: &Node| matches!(node.kind, Kind::Raidz(_) | Kind::Draid(_));
        let (mut now, mut then) = (BTreeSet::new(), BTreeSet::new());
        self.leaf_guids(new, &mut now);
        before.leaf_guids(old, &mut then);
        // The leaves of a stripe are not leaves of a mirror.
        is_stripe(new) == is_stripe(old) && !now.is_disjoint(&then)
    }

    fn leaf_guids(&self, node: &Node, into: &mut BTreeSet<Guid>) {
        if matches!(node.kind, Kind::Leaf(_)) {
            into.insert(node.guid);
        }
        node.children.iter().for_each(|child| self.leaf_guids(self.node(*child), into));
    }

    fn has_top(&self, guid: Guid) -> bool {
        self.tops.iter().any(|top| self.node(top.node).guid == guid)
    }
}
