//! The datasets nested in a mount, resolved against the file systems that they stand in.
//!
//! Resolved when the mount is made, and again when datasets of a pool in use have come, gone or moved: each directory on the way to a
//! dataset is looked up in the file system around it. From then on a look-up costs one search of a map to learn that no dataset stands
//! in this directory. The names of grafts are in use, as a mount point is: they are neither removed nor renamed nor made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_format::ids::ObjectId;
use cenote_zpl::FileKind;

use crate::layout::{Placed, Trie};
use crate::node::Place;
use crate::server::NodeId;
use crate::slots::Slots;
use crate::source::Source;
use crate::zfsvfs::Zfsvfs;

/// A directory in which, or at which, datasets stand.
#[derive(Debug)]
pub(crate) struct Graft {
    /// The directory above.
    pub(crate) above: NodeId,
    /// The grafts in it: nodes by name.
    pub(crate) children: BTreeMap<Vec<u8>, NodeId>,
    /// Its number among the mount's grafts, which it keeps for as long as it is one.
    pub(crate) number: u32,
}

/// All grafts of a mount, by their nodes. The mount's root is one, unless there are none.
#[derive(Debug, Default)]
pub(crate) struct Grafts {
    by_node: BTreeMap<NodeId, Arc<Graft>>,
    /// The number of the next new one.
    next: u32,
}

/// A graft by the directory that it stands in, its name there, and its node.
pub(crate) type Named = (NodeId, Vec<u8>, NodeId);

/// The directory of a file system that a node of the trie stands at, while the trie is walked.
enum Around {
    Directory(Arc<Zfsvfs>, u16, ObjectId),
    Nothing,
}

impl Grafts {
    /// Gives each dataset of `placed` a slot and finds the directories around them. A graft that stands where it stood keeps its
    /// node and number.
    pub(crate) async fn resolved(
        &self,
        source: &Source,
        slots: &Slots,
        top: &Arc<Zfsvfs>,
        placed: &[Placed],
        note: &mut (dyn FnMut(String) + Send),
    ) -> Self {
        let mut grafts = Self { by_node: BTreeMap::new(), next: self.next };
        if placed.is_empty() {
            return grafts;
        }
        let trie = Trie::new(placed);
        let mut around: Vec<Around> = Vec::with_capacity(trie.nodes.len());
        let mut nodes: Vec<NodeId> = Vec::with_capacity(trie.nodes.len());
        let mut made: Vec<(NodeId, u32)> = Vec::with_capacity(trie.nodes.len());
        // A node's parent always comes before it.
        for (index, node) in trie.nodes.iter().enumerate() {
            let above = nodes.get(node.parent as usize).copied().unwrap_or(NodeId::ROOT);
            let mut place = None;
            let mut covers = Around::Nothing;
            if index == 0 {
                (place, covers) = (Some(NodeId::ROOT), Around::Directory(Arc::clone(top), 0, top.filesystem.root()));
            } else if let Some(dataset) = node.dataset {
                let dataset = &placed[dataset].dataset;
                match slots.place(dataset, above) {
                    None => note(format!("'{}' is left out: too many datasets", dataset.name())),
                    Some(slot) => {
                        place = Some(slot.root);
                        // Datasets with nothing in them stay closed until somebody looks.
                        if !node.children.is_empty() {
                            match slots.open(source, &slot).await {
                                Ok(zfsvfs) => {
                                    let root = zfsvfs.filesystem.root();
                                    covers = Around::Directory(zfsvfs, slot.index, root);
                                }
                                Err(error) => note(error.to_string()),
                            }
                        }
                    }
                }
            } else if let Around::Directory(zfsvfs, slot, directory) = &around[node.parent as usize]
                && let Ok(found) = zfsvfs.filesystem.find(*directory, &node.name).await
                && found.kind == FileKind::Directory
            {
                place = Place::Object { slot: *slot, object: found.object }.node();
                covers = Around::Directory(Arc::clone(zfsvfs), *slot, found.object);
            }
            // Where the file system around has no such directory, or the dataset has no slot, one is made.
            let place = place
                .or_else(|| self.made_at(above, &node.name))
                .unwrap_or_else(|| Place::Virtual { index: grafts.next }.node().unwrap_or(NodeId::ROOT));
            let number = self.by_node.get(&place).map_or_else(|| grafts.new_number(), |before| before.number);
            nodes.push(place);
            made.push((above, number));
            around.push(covers);
        }
        for (index, (above, number)) in made.into_iter().enumerate() {
            let children = &trie.nodes[index].children;
            let children = children.iter().map(|(name, child)| (name.clone(), nodes[*child as usize])).collect();
            grafts.by_node.insert(nodes[index], Arc::new(Graft { above, children, number }));
        }
        grafts
    }

    fn new_number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The made directory of a name in a directory.
    fn made_at(&self, above: NodeId, name: &[u8]) -> Option<NodeId> {
        let node = *self.by_node.get(&above)?.children.get(name)?;
        matches!(Place::of(node), Place::Virtual { .. }).then_some(node)
    }

    /// The graft at a directory.
    pub(crate) fn at(&self, node: NodeId) -> Option<Arc<Graft>> {
        self.by_node.get(&node).cloned()
    }

    /// The grafts in a directory: number, name and node, in the order of numbers.
    pub(crate) fn children(&self, graft: &Graft) -> Vec<(u32, Vec<u8>, NodeId)> {
        let numbered = |(name, node): (&Vec<u8>, &NodeId)| Some((self.by_node.get(node)?.number, name.clone(), *node));
        let mut children: Vec<_> = graft.children.iter().filter_map(numbered).collect();
        children.sort_unstable();
        children
    }

    /// All of them but the root.
    pub(crate) fn named(&self) -> BTreeSet<Named> {
        let children = |(parent, graft): (&NodeId, &Arc<Graft>)| {
            let parent = *parent;
            let named = graft.children.iter().map(|(name, node)| (parent, name.clone(), *node));
            named.collect::<Vec<_>>()
        };
        self.by_node.iter().flat_map(children).collect()
    }
}
