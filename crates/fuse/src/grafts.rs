//! The datasets nested in a mount, resolved against the file systems that they stand in.
//!
//! Resolved once, when the mount is made: each directory on the way to a dataset is looked up in the file system around
//! it. From then on a look-up costs one search of a map to learn that no dataset stands in this directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_spa::View;
use cenote_zpl::FileKind;

use crate::layout::{Placed, Trie};
use crate::node::Place;
use crate::server::NodeId;
use crate::slots::Slots;
use crate::volume::{OpenError, Volume};

/// A directory in which, or at which, datasets stand.
#[derive(Debug)]
pub(crate) struct Graft {
    /// Its node.
    pub(crate) node: NodeId,
    /// The directory above.
    pub(crate) above: NodeId,
    /// What stands in it, by name: indices of grafts.
    pub(crate) children: BTreeMap<Vec<u8>, u32>,
}

/// All grafts of a mount. Index 0 is the mount's root.
#[derive(Debug, Default)]
pub(crate) struct Grafts {
    all: Vec<Graft>,
    by_node: BTreeMap<NodeId, u32>,
}

/// What covers a directory while the trie is walked.
enum Around {
    Directory(Arc<Volume>, cenote_format::ids::ObjectId),
    Nothing,
}

impl Grafts {
    /// Gives each dataset of `placed` a slot and finds the directories around them. Slot 0 must have been fixed.
    pub(crate) async fn resolve(
        pool: &View,
        slots: &Slots,
        placed: &[Placed],
        note: &mut (dyn FnMut(String) + Send),
    ) -> Result<Self, OpenError> {
        let trie = Trie::new(placed);
        let mut grafts = Self::default();
        if placed.is_empty() {
            return Ok(grafts);
        }
        let mut around: Vec<Around> = Vec::with_capacity(trie.nodes.len());
        // A node's parent always comes before it.
        for (index, node) in trie.nodes.iter().enumerate() {
            let above = grafts.all.get(node.parent as usize).map_or(NodeId::ROOT, |graft| graft.node);
            let own_name = trie.nodes[node.parent as usize]
                .children
                .iter()
                .find(|(_, child)| **child as usize == index)
                .map(|(name, _)| name.as_slice())
                .unwrap_or_default();
            let mut place = None;
            let mut covers = Around::Nothing;
            if index == 0 {
                let slot = slots.at(0).ok_or_else(|| OpenError::Empty(pool.name().to_owned()))?;
                let volume = slots.open(pool, &slot).await?;
                let root = volume.filesystem.root();
                (place, covers) = (Some(NodeId::ROOT), Around::Directory(volume, root));
            } else if let Some(dataset) = node.dataset {
                let dataset = placed[dataset].dataset.clone();
                let name = dataset.name();
                let node_of = |slot| Place::Root { slot }.node().unwrap_or(NodeId::ROOT);
                match slots.fix(dataset, node_of, above) {
                    None => note(format!("'{name}' is left out: too many datasets")),
                    Some(slot) => {
                        place = Some(slot.root);
                        // Datasets with nothing in them stay closed until somebody looks.
                        if !node.children.is_empty() {
                            match slots.open(pool, &slot).await {
                                Ok(volume) => {
                                    let root = volume.filesystem.root();
                                    covers = Around::Directory(volume, root);
                                }
                                Err(error) => note(error.to_string()),
                            }
                        }
                    }
                }
            } else if let Around::Directory(volume, directory) = &around[node.parent as usize]
                && let Ok(object) = volume.filesystem.lookup(*directory, own_name).await
                && let Ok(attributes) = volume.filesystem.attributes(object).await
                && attributes.kind == FileKind::Directory
            {
                place = volume.place(object).node();
                covers = Around::Directory(Arc::clone(volume), object);
            }
            // Where the file system around has no such directory, or the dataset has no slot, one is made.
            let made = || Place::Virtual { index: index as u32 }.node().unwrap_or(NodeId::ROOT);
            let place = place.unwrap_or_else(made);
            grafts.by_node.insert(place, index as u32);
            grafts.all.push(Graft { node: place, above, children: node.children.clone() });
            around.push(covers);
        }
        Ok(grafts)
    }

    /// The graft at a directory.
    pub(crate) fn at(&self, node: NodeId) -> Option<&Graft> {
        self.by_node.get(&node).and_then(|index| self.all.get(*index as usize))
    }

    /// The graft of a number.
    pub(crate) fn get(&self, index: u32) -> Option<&Graft> {
        self.all.get(index as usize)
    }
}
