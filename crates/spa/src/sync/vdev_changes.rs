//! Changes of the vdevs below the root: leaves that are used or not, a vdev that is put above a leaf, and one that is taken away.
//!
//! ```text
//!   attach, root      disk A            ─►  mirror M [A, B]          the fields of the top-level vdev go to M, with its id
//!   attach, mirror    mirror M [A, B]   ─►  mirror M [A, B, C]
//!   replace           x [.., A, ..]     ─►  x [.., replacing R [A, B], ..]
//!   spare in use      x [.., A, ..]     ─►  x [.., spare S [A, B], ..]
//!   detach            M [A, B, C]       ─►  M [A, C]
//!                     M [A, B]          ─►  A                        in M's place, with the fields of a top-level vdev if M was one
//! ```
//! **Invariants.** 1. The list and the typed tree say the same, and the sum of guids is that of the tree. 2. A leaf keeps its guid. OpenZFS gives
//! the last child of a mirror at the top the guid of the mirror; then a disk has two names while labels are written, and a power cut between
//! them leaves one that no configuration knows. OpenZFS does not look at the guid of a top-level vdev that is a leaf beyond that, so a leaf
//! keeps its own here.

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::config::{RecordedState, VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::error::VdevError;

use super::vdev_config::{RootVdev, guid_sum, set};

/// Fields that a vdev has for being top-level.
const TOP_FIELDS: [&str; 12] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "removing",
    "non_allocating",
    "alloc_bias",
    "min_alloc",
    "com.delphix:vdev_zap_top",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
];

/// Fields of a leaf that say that it is not used, and why.
const USE_FIELDS: [&str; 5] = ["offline", "faulted", "degraded", "removed", "aux_state"];

/// The use of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafUse {
    /// It is used if its device is there.
    Online,
    /// Not used (`zpool offline`).
    Offline,
    /// Not used, as if it had failed (`zpool offline -f`).
    Faulted,
}

/// A tree with the vdev of this guid replaced.
fn with_vdev(list: &NvList, guid: Guid, edit: &mut dyn FnMut(&NvList) -> NvList) -> NvList {
    if list.u64("guid") == Some(guid.0) {
        return edit(list);
    }
    let mut list = list.clone();
    if let Some(children) = list.lists("children") {
        // As deep as `VdevConfig::parse` let it become.
        let children = children.iter().map(|child| with_vdev(child, guid, edit)).collect();
        set(&mut list, "children", NvValue::NvlistArray(children));
    }
    list
}

/// Gives a vdev these children, numbered.
fn set_children(list: &mut NvList, children: Vec<NvList>) {
    let numbered = (0_u64..).zip(children).map(|(id, mut child)| {
        set(&mut child, "id", id);
        child
    });
    set(list, "children", NvValue::NvlistArray(numbered.collect()));
}

/// Moves the fields of a top-level vdev from one list to another.
fn move_top_fields(from: &mut NvList, to: &mut NvList) {
    for name in TOP_FIELDS {
        if let Some(value) = from.value(name).cloned() {
            from.remove(name);
            set(to, name, value);
        }
    }
}

impl RootVdev {
    /// A vdev, and the way to it: the vdevs above it, the root first.
    pub(crate) fn vdev(&self, guid: Guid) -> Option<(Vec<&VdevConfig>, &VdevConfig)> {
        fn find<'a>(at: &'a VdevConfig, guid: Guid, above: &mut Vec<&'a VdevConfig>) -> Option<&'a VdevConfig> {
            if at.guid == guid && at.kind != VdevKind::Root {
                return Some(at);
            }
            above.push(at);
            let found = at.children.iter().find_map(|child| find(child, guid, above));
            if found.is_none() {
                above.pop();
            }
            found
        }
        let mut above = Vec::new();
        let found = find(&self.config, guid, &mut above)?;
        Some((above, found))
    }

    /// The top-level vdev that a vdev is, or is below.
    pub(crate) fn top_of(&self, guid: Guid) -> Option<(VdevId, &VdevConfig)> {
        self.tops().find(|(_, top)| {
            let mut is_in = false;
            top.walk(&mut |vdev| is_in |= vdev.guid == guid);
            is_in
        })
    }

    /// Takes a field of a vdev away.
    pub(crate) fn clear_field(&mut self, guid: Guid, name: &str) -> Result<(), VdevError> {
        self.change_vdev(guid, &mut |list| {
            list.remove(name);
        })
    }

    /// The vdevs that have a field, whatever its value.
    pub(crate) fn with_field(&self, name: &str) -> BTreeSet<Guid> {
        fn find(list: &NvList, name: &str, found: &mut BTreeSet<Guid>) {
            found.extend(list.u64("guid").filter(|_| list.has(name)).map(Guid));
            list.lists("children").into_iter().flatten().for_each(|child| find(child, name, found));
        }
        let mut found = BTreeSet::new();
        find(&self.tree, name, &mut found);
        found
    }

    /// True if a vdev has a field that is set.
    pub(crate) fn has_flag(&self, guid: Guid, name: &str) -> bool {
        fn find(list: &NvList, guid: Guid, name: &str) -> bool {
            let is_it = list.u64("guid") == Some(guid.0) && list.u64(name).is_some_and(|value| value != 0);
            is_it || list.lists("children").is_some_and(|children| children.iter().any(|child| find(child, guid, name)))
        }
        find(&self.tree, guid, name)
    }

    /// Has a spare in use, whose device is gone, be a device of the pool. While others are next to it, it stays when they go.
    pub(crate) fn keep_spare(&mut self, guid: Guid) -> Result<(), VdevError> {
        let is_below_spare =
            self.vdev(guid).and_then(|(above, _)| above.last().map(|above| above.kind == VdevKind::Spare));
        self.change_vdev(guid, &mut |list| {
            list.remove("is_spare");
            if is_below_spare == Some(true) {
                set(list, "unspare", 1_u64);
            }
        })
    }

    /// Records that a device is back for which a spare stands: the spare goes when the device has everything.
    pub(crate) fn unspare(&mut self, guid: Guid) -> Result<(), VdevError> {
        let above = self.vdev(guid).and_then(|(above, _)| above.last().copied());
        let has_spare = above.is_some_and(|above| above.kind == VdevKind::Spare && above.children[0].guid == guid);
        if has_spare { self.set_field(guid, "unspare", 1_u64) } else { Ok(()) }
    }

    /// Records the use of a leaf; with `is_temporary` until the pool is closed.
    pub(crate) fn set_use(&mut self, guid: Guid, how: LeafUse, is_temporary: bool) -> Result<(), VdevError> {
        self.states.remove(&guid);
        if is_temporary && how != LeafUse::Online {
            let (offline, faulted) = (how == LeafUse::Offline, how == LeafUse::Faulted);
            self.states.insert(guid, RecordedState { offline, faulted, ..RecordedState::default() });
        }
        self.change_vdev(guid, &mut |list| {
            for name in USE_FIELDS {
                list.remove(name);
            }
            match how {
                _ if is_temporary => {}
                LeafUse::Online => {}
                LeafUse::Offline => list.push("offline", 1_u64),
                LeafUse::Faulted => {
                    list.push("faulted", 1_u64);
                    list.push("aux_state", "external");
                }
            }
        })
    }

    /// Notes that a leaf's device is gone, until the pool is closed or the device is back.
    pub(crate) fn lose_leaf(&mut self, guid: Guid) -> Result<(), VdevError> {
        self.states.insert(guid, RecordedState { lost: true, ..RecordedState::default() });
        self.change_vdev(guid, &mut |_| {})
    }

    /// Puts a new leaf next to an old one: below its parent, or below a new vdev of the type and guid in `above`, which takes the old one's
    /// place.
    pub(crate) fn attach(
        &mut self,
        old: Guid,
        above: Option<(&str, Guid)>,
        leaf: &NvList,
        disk: Option<Disk>,
    ) -> Result<(), VdevError> {
        let guid = Guid(leaf.u64("guid").expect("a new leaf has a guid"));
        assert!(self.vdev(guid).is_none(), "a new leaf is not part of the pool yet");
        let (ancestors, _) = self.vdev(old).expect("a device is attached to one that is there");
        let parent = ancestors.last().expect("a leaf is below the root").guid;
        let tree = match above {
            Some((kind, above)) => with_vdev(&self.tree, old, &mut |old| {
                let (mut made, mut old) = (NvList::new(), old.clone());
                made.push("type", kind);
                made.push("id", old.u64("id").unwrap_or(0));
                made.push("guid", above.0);
                move_top_fields(&mut old, &mut made);
                if let Some(txg) = old.u64("create_txg") {
                    made.push("create_txg", txg);
                }
                set_children(&mut made, vec![old, leaf.clone()]);
                made
            }),
            None => with_vdev(&self.tree, parent, &mut |parent| {
                let mut parent = parent.clone();
                let mut children = parent.lists("children").unwrap_or_default().to_vec();
                children.push(leaf.clone());
                set_children(&mut parent, children);
                parent
            }),
        };
        self.set_tree(tree)?;
        self.disks.extend(disk.map(|disk| (guid, disk)));
        assert!(self.vdev(guid).is_some() && self.vdev(old).is_some(), "both are part of the pool now");
        Ok(())
    }

    /// Gives a raidz a further child, and a field that says so.
    pub(crate) fn widen(&mut self, raidz: Guid, leaf: &NvList, disk: Disk, field: &str) -> Result<(), VdevError> {
        let guid = Guid(leaf.u64("guid").expect("a new leaf has a guid"));
        assert!(self.vdev(guid).is_none(), "a new leaf is not part of the pool yet");
        let tree = with_vdev(&self.tree, raidz, &mut |raidz| {
            let mut raidz = raidz.clone();
            let mut children = raidz.lists("children").unwrap_or_default().to_vec();
            children.push(leaf.clone());
            set_children(&mut raidz, children);
            set(&mut raidz, field, NvValue::Boolean);
            raidz
        });
        self.set_tree(tree)?;
        self.disks.insert(guid, disk);
        assert!(self.vdev(guid).is_some(), "the child is part of the pool now");
        Ok(())
    }

    /// Takes a leaf away. A vdev above it that has one child left goes too.
    pub(crate) fn detach(&mut self, guid: Guid) -> Result<(), VdevError> {
        let (ancestors, _) = self.vdev(guid).expect("a leaf that is detached is there");
        let parent = ancestors.last().expect("a leaf is below the root");
        let is_mirror = matches!(parent.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare);
        assert!(is_mirror && parent.children.len() > 1, "what is detached has a sibling with the same contents");
        let (is_top, is_spare) = (ancestors.len() == 2, parent.kind == VdevKind::Spare);
        let tree = with_vdev(&self.tree, parent.guid, &mut |parent| {
            let mut parent = parent.clone();
            let mut children = parent.lists("children").unwrap_or_default().to_vec();
            children.retain(|child| child.u64("guid") != Some(guid.0));
            if children.len() > 1 {
                set_children(&mut parent, children);
                return parent;
            }
            let mut only = children.remove(0);
            set(&mut only, "id", parent.u64("id").unwrap_or(0));
            if is_top {
                move_top_fields(&mut parent, &mut only);
            }
            if is_spare {
                only.remove("unspare");
            }
            only
        });
        self.set_tree(tree)?;
        self.forget(guid);
        assert!(self.vdev(guid).is_none(), "a leaf that was detached is not part of the pool");
        Ok(())
    }

    /// Has one leg of each mirror stand in its place, and forgets the others, which are returned.
    pub(crate) fn keep_legs(&mut self, legs: &BTreeSet<Guid>) -> Result<Vec<VdevConfig>, VdevError> {
        let mut tops = self.tree.lists("children").unwrap_or_default().to_vec();
        let is_kept = |leg: &NvList| leg.u64("guid").is_some_and(|guid| legs.contains(&Guid(guid)));
        for mirror in &mut tops {
            let kept = mirror.lists("children").unwrap_or_default().iter().find(|leg| is_kept(leg)).cloned();
            let Some(mut leg) = kept else { continue };
            set(&mut leg, "id", mirror.u64("id").unwrap_or(0));
            move_top_fields(mirror, &mut leg);
            *mirror = leg;
        }
        let before: Vec<VdevConfig> = self.config.leaves().into_iter().cloned().collect();
        let mut tree = self.tree.clone();
        set(&mut tree, "children", NvValue::NvlistArray(tops));
        self.set_tree(tree)?;
        let others: Vec<VdevConfig> = before.into_iter().filter(|leaf| self.vdev(leaf.guid).is_none()).collect();
        others.iter().for_each(|leaf| self.forget(leaf.guid));
        assert!(legs.iter().all(|leg| self.vdev(*leg).is_some()), "the legs are all that is left of mirrors");
        Ok(others)
    }

    /// Has another tree, with the same top-level vdevs, or others in their places.
    fn set_tree(&mut self, tree: NvList) -> Result<(), VdevError> {
        let guids = |tree: &NvList| -> Vec<Guid> {
            tree.lists("children").unwrap_or_default().iter().map(|top| Guid(top.u64("guid").unwrap_or(0))).collect()
        };
        let (old, new) = (guids(&self.tree), guids(&tree));
        assert_eq!(old.len(), new.len(), "top-level vdevs keep their places");
        let mut next = Self { tree, ..self.clone() };
        for (old, new) in old.into_iter().zip(new).filter(|(old, new)| old != new) {
            if let Some(class) = next.classes.remove(&old) {
                next.classes.insert(new, class);
            }
        }
        next.config = next.parsed()?;
        // The uberblock's sum is trusted for the other vdevs: only the difference is added.
        next.guid_sum = self.guid_sum.wrapping_add(guid_sum(&next.config).wrapping_sub(guid_sum(&self.config)));
        *self = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cenote_vdev::config::AllocationClass;

    use super::*;

    fn vdev(kind: &str, guid: u64) -> NvList {
        let mut list = NvList::new();
        list.push("type", kind);
        list.push("id", 0_u64);
        list.push("guid", guid);
        list.push("create_txg", 4_u64);
        list
    }

    fn top(mut list: NvList) -> NvList {
        list.push("metaslab_array", 50_u64);
        list.push("metaslab_shift", 24_u64);
        list.push("ashift", 12_u64);
        list.push("asize", 1_u64 << 30);
        list.push("is_log", 0_u64);
        list.push("com.delphix:vdev_zap_top", 60_u64);
        list
    }

    fn root(list: NvList) -> RootVdev {
        let mut root = vdev("root", 1);
        set_children(&mut root, vec![list]);
        RootVdev::new(root, BTreeMap::new(), BTreeMap::from([(Guid(11), AllocationClass::Special)])).unwrap()
    }

    fn shape(vdev: &VdevConfig) -> String {
        let children: Vec<String> = vdev.children.iter().map(shape).collect();
        let name = if vdev.kind.is_leaf() { vdev.guid.to_string() } else { vdev.kind.name().to_owned() };
        let name = format!("{}{name}", if vdev.ashift != 0 { "*" } else { "" });
        if children.is_empty() { name } else { format!("{name}[{}]", children.join(" ")) }
    }

    #[test]
    fn a_mirror_is_put_above_a_disk_and_taken_away_with_all_that_makes_it_top_level() {
        let mut pool = root(top(vdev("file", 11)));
        let (sum, tree) = (pool.guid_sum, pool.tree.clone());
        let is_special = |pool: &RootVdev| pool.config.children[0].class == AllocationClass::Special;
        pool.attach(Guid(11), Some(("mirror", Guid(10))), &vdev("file", 12), None).unwrap();
        assert_eq!((shape(&pool.config.children[0]), pool.guid_sum), ("*mirror[11 12]".into(), sum + 10 + 12));
        assert!(is_special(&pool), "a class is the top-level vdev's, whichever that is");
        assert_eq!(pool.config.children[0].top_zap.0, 60);
        pool.attach(Guid(12), Some(("replacing", Guid(20))), &vdev("file", 13), None).unwrap();
        pool.attach(Guid(11), None, &vdev("file", 14), None).unwrap();
        assert_eq!(shape(&pool.config.children[0]), "*mirror[11 replacing[12 13] 14]");
        pool.detach(Guid(12)).unwrap();
        assert_eq!(shape(&pool.config.children[0]), "*mirror[11 13 14]");
        assert_eq!(pool.config.children[0].children.iter().map(|leaf| leaf.id).collect::<Vec<_>>(), [0, 1, 2]);
        pool.detach(Guid(13)).unwrap();
        pool.detach(Guid(14)).unwrap();
        assert_eq!((shape(&pool.config.children[0]), pool.guid_sum), ("*11".into(), sum));
        assert!(is_special(&pool));
        let sorted = |list: &NvList| {
            let mut fields: Vec<String> = list.iter().map(|field| format!("{field:?}")).collect();
            fields.sort();
            fields
        };
        let first = |tree: &NvList| sorted(&tree.lists("children").unwrap()[0]);
        assert_eq!(first(&pool.tree), first(&tree), "nothing is left of what was there meanwhile");
    }

    #[test]
    fn a_state_that_lasts_until_the_pool_is_closed_is_in_no_list() {
        let mut pool = root(top(vdev("file", 11)));
        let tree = pool.tree.clone();
        pool.set_use(Guid(11), LeafUse::Offline, true).unwrap();
        assert!(pool.config.children[0].state.offline && pool.tree == tree);
        pool.set_use(Guid(11), LeafUse::Faulted, false).unwrap();
        assert!(pool.config.children[0].state.faulted && !pool.config.children[0].state.offline);
        pool.set_use(Guid(11), LeafUse::Online, false).unwrap();
        assert_eq!((pool.config.children[0].state, &pool.tree), (RecordedState::default(), &tree));
    }
}
