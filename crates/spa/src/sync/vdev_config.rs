//! The vdevs of a pool that is written: their configuration as it stands in the MOS, and the disks behind them.
//!
//! The tree of name-value lists is kept as it was found, so that what this version does not know of stays; typed fields
//! are parsed from it. A label has the part of its top-level vdev, without the objects of the MOS that hold the vdevs'
//! attributes.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::uberblock::Uberblock;
use cenote_vdev::commit::LeafCommit;
use cenote_vdev::config::{AllocationClass, RecordedState, VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::error::VdevError;

/// Fields of a vdev that only the MOS's configuration has.
const MOS_ONLY: [&str; 3] = ["com.delphix:vdev_zap_leaf", "com.delphix:vdev_zap_top", "com.klarasystems:vdev_zap_root"];

/// The object with the root's attributes.
const ROOT_ZAP: &str = MOS_ONLY[2];

/// The place of a log device that was removed, as OpenZFS writes it.
fn hole(vdev: VdevId) -> NvList {
    let mut list = NvList::new();
    list.push("type", "hole");
    list.push("id", u64::from(vdev.0));
    for name in ["guid", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"] {
        list.push(name, 0_u64);
    }
    list
}

/// The vdevs of a pool that is written.
#[derive(Clone)]
pub(crate) struct RootVdev {
    pub(super) tree: NvList,
    /// The same, typed.
    pub(crate) config: VdevConfig,
    /// The sum of all guids, the pool's included, as uberblocks have it.
    pub(crate) guid_sum: u64,
    /// The disks of the leaves that are written.
    pub(crate) disks: BTreeMap<Guid, Disk>,
    /// The labels as they were when the pool was opened.
    pub(crate) labels: BTreeMap<Guid, NvList>,
    /// The allocation classes of top-level vdevs. Those of special and dedup vdevs are in the vdevs' own ZAPs, not in the tree.
    pub(super) classes: BTreeMap<Guid, AllocationClass>,
    /// States of leaves that are not in the tree: they last until the pool is closed (`zpool offline -t`).
    pub(super) states: BTreeMap<Guid, RecordedState>,
    /// Txgs that leaves have missed, as their dirty time logs say.
    pub(crate) missed: BTreeMap<Guid, Dtl>,
    /// And those that are not in their logs yet: the next txg's sync notes them.
    pub(crate) unnoted: BTreeMap<Guid, Dtl>,
    /// Until the first commit after an opening: the uberblock that the pool was opened at, and leaves that lack it alone.
    pub(crate) late: Option<(Uberblock, BTreeSet<Guid>)>,
}

/// Puts a value into a list, in the place of another if there is one.
pub(crate) fn set(list: &mut NvList, name: &str, value: impl Into<NvValue>) {
    list.remove(name);
    list.push(name, value);
}

/// Looks at each vdev of a tree.
fn walk(list: &NvList, look: &mut dyn FnMut(&NvList)) {
    look(list);
    // As deep as `VdevConfig::parse` let it become.
    list.lists("children").unwrap_or_default().iter().for_each(|child| walk(child, look));
}

/// A vdev tree with a change made to each vdev.
pub(super) fn changed(list: &NvList, change: &mut dyn FnMut(&mut NvList)) -> NvList {
    let mut list = list.clone();
    change(&mut list);
    if let Some(children) = list.lists("children") {
        // As deep as `VdevConfig::parse` let it become.
        let children = children.iter().map(|child| changed(child, change)).collect();
        set(&mut list, "children", NvValue::NvlistArray(children));
    }
    list
}

/// The tree, typed, with what top-level vdevs are for.
fn parse(
    tree: &NvList,
    classes: &BTreeMap<Guid, AllocationClass>,
    states: &BTreeMap<Guid, RecordedState>,
) -> Result<VdevConfig, VdevError> {
    let mut config = VdevConfig::parse(tree)?;
    for top in &mut config.children {
        if let Some(class) = classes.get(&top.guid) {
            top.class = *class;
        }
        apply(top, states);
    }
    Ok(config)
}

/// Adds the states that the tree does not record.
fn apply(vdev: &mut VdevConfig, states: &BTreeMap<Guid, RecordedState>) {
    if let Some(state) = states.get(&vdev.guid) {
        vdev.state.offline |= state.offline;
        vdev.state.faulted |= state.faulted;
        vdev.state.lost |= state.lost;
    }
    // As deep as `VdevConfig::parse` let it become.
    vdev.children.iter_mut().for_each(|child| apply(child, states));
}

pub(crate) fn guid_sum(config: &VdevConfig) -> u64 {
    let mut sum = 0_u64;
    config.walk(&mut |vdev| sum = sum.wrapping_add(vdev.guid.0));
    sum
}

impl RootVdev {
    /// From the tree that the MOS has, or will have.
    pub(crate) fn new(
        tree: NvList,
        disks: BTreeMap<Guid, Disk>,
        classes: BTreeMap<Guid, AllocationClass>,
    ) -> Result<Self, VdevError> {
        let config = parse(&tree, &classes, &BTreeMap::new())?;
        Ok(Self {
            tree,
            guid_sum: guid_sum(&config),
            config,
            disks,
            classes,
            states: BTreeMap::new(),
            labels: BTreeMap::new(),
            missed: BTreeMap::new(),
            unnoted: BTreeMap::new(),
            late: None,
        })
    }

    /// The list that goes to disk and the tree that is worked with say the same.
    pub(crate) fn assert_typed(&self) {
        debug_assert!(
            self.parsed().is_ok_and(|again| again.children == self.config.children),
            "the vdevs in memory are those of the configuration"
        );
    }

    /// The list, typed.
    pub(super) fn parsed(&self) -> Result<VdevConfig, VdevError> {
        parse(&self.tree, &self.classes, &self.states)
    }

    /// The whole tree.
    pub(crate) const fn tree(&self) -> &NvList {
        &self.tree
    }

    /// Whether the root has a table of attributes.
    pub(crate) fn has_root_zap(&self) -> bool {
        self.tree.u64(ROOT_ZAP).is_some_and(|object| object != 0)
    }

    /// Gives it one.
    pub(crate) fn set_root_zap(&mut self, object: ObjectId) {
        assert!(!self.has_root_zap() && object != ObjectId(0), "the root gets one table");
        set(&mut self.tree, ROOT_ZAP, object.0);
    }

    /// Gives the root, which is the pool, another guid.
    pub(crate) fn set_guid(&mut self, guid: Guid) -> Result<(), VdevError> {
        let before = guid_sum(&self.config);
        set(&mut self.tree, "guid", guid.0);
        self.config = self.parsed()?;
        assert_eq!(self.config.guid, guid, "the root's guid is the pool's");
        // The uberblock's sum is trusted for the other vdevs: only the difference is added.
        self.guid_sum = self.guid_sum.wrapping_add(guid_sum(&self.config).wrapping_sub(before));
        Ok(())
    }

    /// A top-level vdev.
    pub(crate) fn top(&self, vdev: VdevId) -> Option<&VdevConfig> {
        self.config.children.get(vdev.0 as usize)
    }

    /// Top-level vdevs that have devices.
    pub(crate) fn tops(&self) -> impl Iterator<Item = (VdevId, &VdevConfig)> {
        let placeholder =
            |top: &VdevConfig| matches!(top.kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_));
        let tops = self.config.children.iter().enumerate().filter(move |(_, top)| !placeholder(top));
        tops.map(|(id, top)| (VdevId(id as u32), top))
    }

    /// Ids of places where a log device was removed.
    pub(crate) fn holes(&self) -> Vec<u64> {
        let holes = self.config.children.iter().enumerate().filter(|(_, top)| matches!(top.kind, VdevKind::Hole));
        holes.map(|(id, _)| id as u64).collect()
    }

    /// Leaves that should have everything and are not written.
    pub(crate) fn lost(&self) -> BTreeSet<Guid> {
        let leaves = self.config.leaves().into_iter().filter(|leaf| !matches!(leaf.kind, VdevKind::DraidSpare { .. }));
        leaves.map(|leaf| leaf.guid).filter(|guid| !self.disks.contains_key(guid)).collect()
    }

    /// Whether a leaf is of a log device.
    pub(crate) fn is_of_log(&self, guid: Guid) -> bool {
        let mut logs = self.tops().filter(|(_, top)| top.class == AllocationClass::Log);
        logs.any(|(_, top)| top.leaves().iter().any(|leaf| leaf.guid == guid))
    }

    /// Leaves that have missed a part of a txg, as far as that is noted.
    pub(crate) fn behind(&self, txg: Txg) -> impl Iterator<Item = Guid> {
        self.missed.iter().filter(move |(_, missed)| missed.contains(txg)).map(|(guid, _)| *guid)
    }

    /// The first top-level vdev that has lost too much to be written to, given what is lost.
    pub(crate) fn unwritable(&self, lost: &BTreeSet<Guid>) -> Option<&VdevConfig> {
        let mut tops = self.tops().map(|(_, top)| top).filter(|top| top.class != AllocationClass::Log);
        tops.find(|top| !is_writable(top, lost))
    }

    /// True if a field of a vdev has this text.
    pub(super) fn is_recorded(&self, guid: Guid, name: &str, text: &str) -> bool {
        let mut is_it = false;
        walk(&self.tree, &mut |list| is_it |= list.u64("guid") == Some(guid.0) && list.str(name) == Some(text));
        is_it
    }

    /// Changes the field of one vdev.
    pub(crate) fn set_field(&mut self, guid: Guid, name: &str, value: impl Into<NvValue>) -> Result<(), VdevError> {
        let value = value.into();
        self.change_vdev(guid, &mut |list| set(list, name, value.clone()))
    }

    /// Changes fields of one vdev.
    pub(super) fn change_vdev(&mut self, guid: Guid, change: &mut dyn FnMut(&mut NvList)) -> Result<(), VdevError> {
        let mut is_found = false;
        self.tree = changed(&self.tree, &mut |list| {
            if list.u64("guid") == Some(guid.0) {
                is_found = true;
                change(list);
            }
        });
        assert!(is_found, "a field is set of a vdev that is there");
        let before = guid_sum(&self.config);
        self.config = self.parsed()?;
        assert_eq!(guid_sum(&self.config), before, "a field that is set is no guid");
        Ok(())
    }

    /// Puts new top-level vdevs behind those that are there.
    pub(crate) fn add(
        &mut self,
        tops: Vec<NvList>,
        disks: impl IntoIterator<Item = (Guid, Disk)>,
        classes: impl IntoIterator<Item = (Guid, AllocationClass)>,
    ) -> Result<(), VdevError> {
        let mut children = self.tree.lists("children").unwrap_or_default().to_vec();
        let added = tops.len();
        children.extend(tops);
        set(&mut self.tree, "children", NvValue::NvlistArray(children));
        self.classes.extend(classes);
        let before = guid_sum(&self.config);
        let count = self.config.children.len() + added;
        self.config = self.parsed()?;
        assert_eq!(self.config.children.len(), count, "new vdevs stand behind those that were there");
        // The uberblock's sum is trusted for the other vdevs: only the difference is added.
        self.guid_sum = self.guid_sum.wrapping_add(guid_sum(&self.config).wrapping_sub(before));
        self.disks.extend(disks);
        Ok(())
    }

    /// Leaves a hole in the place of a top-level vdev.
    pub(crate) fn remove(&mut self, vdev: VdevId) -> Result<(), VdevError> {
        let top = self.top(vdev).expect("a vdev that is removed is there").clone();
        assert_eq!(top.class, AllocationClass::Log, "only log devices leave holes");
        let mut children = self.tree.lists("children").unwrap_or_default().to_vec();
        let old = children.get_mut(vdev.0 as usize).expect("the list has what the tree has");
        *old = hole(vdev);
        set(&mut self.tree, "children", NvValue::NvlistArray(children));
        self.classes.remove(&top.guid);
        let (before, count) = (guid_sum(&self.config), self.config.children.len());
        self.config = self.parsed()?;
        assert_eq!(self.config.children.len(), count, "vdevs stay in their places when another goes");
        self.guid_sum = self.guid_sum.wrapping_add(guid_sum(&self.config).wrapping_sub(before));
        top.leaves().into_iter().for_each(|leaf| self.forget(leaf.guid));
        Ok(())
    }

    /// Puts an indirect vdev in the place of one that was evacuated. Its devices are the pool's no more.
    pub(crate) fn become_indirect(&mut self, vdev: VdevId, indirect: NvList) -> Result<(), VdevError> {
        let top = self.top(vdev).expect("a vdev that was evacuated is there").clone();
        assert_eq!(indirect.str("type"), Some("indirect"), "what is left of a removed vdev is its mapping");
        let mut children = self.tree.lists("children").unwrap_or_default().to_vec();
        let guid = Guid(indirect.u64("guid").expect("an indirect vdev has a guid"));
        assert_ne!(guid, top.guid, "an indirect vdev is another one");
        *children.get_mut(vdev.0 as usize).expect("the list has what the tree has") = indirect;
        set(&mut self.tree, "children", NvValue::NvlistArray(children));
        if let Some(class) = self.classes.remove(&top.guid) {
            self.classes.insert(guid, class);
        }
        let (before, count) = (guid_sum(&self.config), self.config.children.len());
        self.config = self.parsed()?;
        assert_eq!(self.config.children.len(), count, "vdevs stay in their places when another goes");
        self.guid_sum = self.guid_sum.wrapping_add(guid_sum(&self.config).wrapping_sub(before));
        top.leaves().into_iter().for_each(|leaf| self.forget(leaf.guid));
        Ok(())
    }

    /// Forgets all of a leaf that is not part of the pool any more.
    pub(super) fn forget(&mut self, leaf: Guid) {
        self.disks.remove(&leaf);
        self.labels.remove(&leaf);
        self.missed.remove(&leaf);
        self.unnoted.remove(&leaf);
        self.states.remove(&leaf);
        if let Some((_, late)) = &mut self.late {
            late.remove(&leaf);
        }
    }

    /// A leaf's part in a commit; `label` makes what a leaf's labels say of what they said, if they are to be written.
    pub(crate) fn leaf_commits(&self, label: Option<&dyn Fn(NvList) -> NvList>) -> Vec<LeafCommit> {
        let mut all = Vec::new();
        for (vdev, top) in self.tops() {
            for leaf in top.leaves() {
                let Some(disk) = self.disks.get(&leaf.guid) else { continue };
                let config = label.map(|label| {
                    let mut list = label(self.labels.get(&leaf.guid).cloned().unwrap_or_default());
                    set(&mut list, "top_guid", top.guid.0);
                    set(&mut list, "guid", leaf.guid.0);
                    if top.class == AllocationClass::Log {
                        set(&mut list, "is_log", 1_u64);
                    }
                    set(&mut list, "vdev_tree", self.label_tree(vdev));
                    list
                });
                all.push(LeafCommit {
                    guid: leaf.guid,
                    disk: disk.clone(),
                    // A pool goes on without a log device.
                    top: (top.class != AllocationClass::Log).then_some(vdev),
                    ashift: top.ashift,
                    config,
                    takes_uberblock: true,
                });
            }
        }
        all
    }

    /// The configuration of a top-level vdev, as labels have it.
    fn label_tree(&self, vdev: VdevId) -> NvList {
        let top = self.tree.lists("children").and_then(|tops| tops.get(vdev.0 as usize)).cloned().unwrap_or_default();
        debug_assert_eq!(
            top.u64("guid"),
            self.top(vdev).map(|top| top.guid.0),
            "a top-level vdev has one place in the list and in the tree"
        );
        changed(&top, &mut |list| {
            for name in MOS_ONLY {
                list.remove(name);
            }
        })
    }
}

/// Whether a block can be written below this vdev so that it can be read again.
fn is_writable(vdev: &VdevConfig, lost: &BTreeSet<Guid>) -> bool {
    let failed = || vdev.children.iter().filter(|child| !is_writable(child, lost)).count() as u64;
    match vdev.kind {
        VdevKind::Disk | VdevKind::File => !lost.contains(&vdev.guid),
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => failed() < vdev.children.len() as u64,
        VdevKind::Raidz { parity, .. } | VdevKind::Draid { parity, .. } => failed() <= parity,
        // It lies on the draid's other disks, which are counted where they stand: a row loses one column with each of them at most.
        VdevKind::DraidSpare { .. } => !lost.contains(&vdev.guid),
        VdevKind::Missing => false,
        // Nothing is written to these.
        VdevKind::Root | VdevKind::Hole | VdevKind::Indirect(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.push("type", kind);
        list.push("id", 0_u64);
        list.push("guid", guid);
        list.push("future:field", 7_u64);
        list.push("com.delphix:vdev_zap_leaf", 99_u64);
        if kind == "raidz" {
            list.push("nparity", 1_u64);
        }
        if !children.is_empty() {
            list.push("children", NvValue::NvlistArray(children));
        }
        list
    }

    fn root_vdev() -> RootVdev {
        let mirror = vdev("mirror", 10, vec![vdev("file", 11, vec![]), vdev("file", 12, vec![])]);
        let leaves = [21, 22, 23].map(|guid| vdev("file", guid, vec![]));
        let raidz = vdev("raidz", 20, leaves.to_vec());
        RootVdev::new(vdev("root", 1, vec![mirror, raidz, vdev("hole", 0, vec![])]), BTreeMap::new(), BTreeMap::new())
            .unwrap()
    }

    #[test]
    fn what_redundancy_makes_up_for_can_be_written() {
        let root_vdev = root_vdev();
        let bad = |lost: &[u64]| root_vdev.unwritable(&lost.iter().copied().map(Guid).collect()).map(|top| top.guid.0);
        assert_eq!(bad(&[]), None);
        assert_eq!(bad(&[11, 22]), None);
        assert_eq!(bad(&[11, 12]), Some(10));
        assert_eq!(bad(&[12, 21, 23]), Some(20));
        assert_eq!(root_vdev.lost().len(), 5);
        assert_eq!(root_vdev.holes(), [2]);
        assert_eq!(root_vdev.guid_sum, 1 + 10 + 11 + 12 + 20 + 21 + 22 + 23);
    }

    #[test]
    fn unknown_fields_stay_and_labels_name_no_objects() {
        let mut root_vdev = root_vdev();
        root_vdev.set_field(Guid(12), "DTL", 77).unwrap();
        let leaf = |tree: &NvList| tree.lists("children").unwrap()[1].clone();
        let in_mos = leaf(&root_vdev.tree().lists("children").unwrap()[0]);
        assert_eq!((in_mos.u64("DTL"), in_mos.u64("com.delphix:vdev_zap_leaf")), (Some(77), Some(99)));
        let in_label = leaf(&root_vdev.label_tree(VdevId(0)));
        assert_eq!((in_label.u64("DTL"), in_label.u64("future:field")), (Some(77), Some(7)));
        assert!(!in_label.has("com.delphix:vdev_zap_leaf"));
        assert_eq!(root_vdev.top(VdevId(0)).unwrap().children[1].dtl, ObjectId(77));
    }

    /// The tree was parsed anew when a leaf got its log of missed txgs, and what a vdev is for went with the old one.
    #[test]
    fn what_a_vdev_is_for_stays_when_the_tree_changes() {
        let mut root_vdev = root_vdev();
        let sum = root_vdev.guid_sum;
        let special = vdev("mirror", 30, vec![vdev("file", 31, vec![]), vdev("file", 32, vec![])]);
        root_vdev.add(vec![special], [], [(Guid(30), AllocationClass::Special)]).unwrap();
        assert_eq!(root_vdev.guid_sum, sum + 30 + 31 + 32);
        let class = |root_vdev: &RootVdev| root_vdev.config.children.iter().map(|top| top.class).collect::<Vec<_>>();
        let classes = class(&root_vdev);
        assert_eq!(classes[3], AllocationClass::Special);
        root_vdev.set_field(Guid(31), "DTL", 77).unwrap();
        assert_eq!(class(&root_vdev), classes);
    }
}
