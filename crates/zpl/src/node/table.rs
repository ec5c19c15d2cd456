//! The nodes of a file system that is changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use cenote_dmu::sa::{SaHandle, SaTables};
use cenote_dmu::{Object, Objset};
use cenote_format::ids::ObjectId;
use cenote_taskq::AsyncMutex;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU8, Ordering};

use super::Node;
use crate::ZplError;
use crate::filesystem::options::AccessTimes;

/// Directories kept for a while: some 5 KiB each.
const KEPT_MAX: usize = 1024;
/// Up to this number, slots without a user are not looked for.
const SLOTS_MIN: usize = 1024;

/// Nodes in use, by object, and the last [`KEPT_MAX`] directories that were read or made, in use or not: every name is looked up in
/// one. Others are let go with their last user: to free much later what a walk over many files has read once costs more than to read
/// again what is used again.
pub(crate) struct NodeTable {
    nodes: Mutex<Slots>,
    kept: Mutex<VecDeque<Arc<Node>>>,
    /// When reading changes a node's access time, where every read finds it.
    access_times: AtomicU8,
}

#[derive(Default)]
struct Slots {
    map: BTreeMap<ObjectId, Arc<Slot>>,
    /// Slots at which those without a user are looked for.
    full_at: usize,
}

/// The place of a node: one task loads it, exclusively.
#[derive(Default)]
struct Slot {
    node: AsyncMutex<Weak<Node>>,
}

impl NodeTable {
    /// An empty one.
    pub(crate) fn new(rule: AccessTimes) -> Self {
        let access_times = AtomicU8::new(rule as u8);
        Self { nodes: Mutex::default(), kept: Mutex::default(), access_times }
    }

    /// When reading changes a node's access time.
    pub(crate) fn access_times(&self) -> AccessTimes {
        const NEVER: u8 = AccessTimes::Never as u8;
        const ALWAYS: u8 = AccessTimes::Always as u8;
        match self.access_times.load(Ordering::Relaxed) {
            NEVER => AccessTimes::Never,
            ALWAYS => AccessTimes::Always,
            _ => AccessTimes::Relative,
        }
    }

    /// Another rule for access times, from the next read on.
    pub(crate) fn set_access_times(&self, rule: AccessTimes) {
        self.access_times.store(rule as u8, Ordering::Relaxed);
    }

    fn slot(&self, id: ObjectId) -> Arc<Slot> {
        let mut slots = self.nodes.lock();
        if slots.map.len() >= slots.full_at.max(SLOTS_MIN) {
            let is_used = |slot: &Arc<Slot>| {
                let is_alone = Arc::strong_count(slot) == 1;
                !is_alone || slot.node.try_lock().is_none_or(|node| node.strong_count() > 0)
            };
            slots.map.retain(|_, slot| is_used(slot));
            slots.full_at = slots.map.len() * 2;
        }
        slots.map.entry(id).or_default().clone()
    }

    /// The node of an object.
    pub(crate) async fn node(&self, objset: &Objset, tables: &SaTables, id: ObjectId) -> Result<Arc<Node>, ZplError> {
        let slot = self.slot(id);
        let mut place = slot.node.lock().await;
        if let Some(node) = place.upgrade().filter(|node| is_there(node)) {
            assert_eq!(node.id, id, "a node is found by its own number");
            return Ok(node);
        }
        let object = objset.object(id).await?;
        let node = Arc::new(Node::load(object, tables).await?);
        *place = Arc::downgrade(&node);
        self.keep(&node);
        Ok(node)
    }

    fn keep(&self, node: &Arc<Node>) {
        if !node.is_directory() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.push_back(Arc::clone(node));
        let oldest = if kept.len() > KEPT_MAX { kept.pop_front() } else { None };
        drop(kept);
        drop(oldest);
    }

    /// Adds a new object's node; returns the node of the object, which another task may have loaded first.
    pub(crate) async fn add(&self, object: Object, attributes: SaHandle) -> Arc<Node> {
        let slot = self.slot(object.id());
        let mut place = slot.node.lock().await;
        // The name is in its directory by now: somebody may have looked it up and loaded the node, with the same attributes.
        if let Some(node) = place.upgrade().filter(|node| is_there(node)) {
            assert!(node.object.is_same(&object), "the number of a new object is no other node's");
            return node;
        }
        let node = Arc::new(Node::new(object, attributes));
        *place = Arc::downgrade(&node);
        self.keep(&node);
        node
    }
}

/// Whether a node is that of its number. Objects that belong to another file (hidden directories, and extended attributes in them) are
/// freed with that file, and their nodes are not told.
fn is_there(node: &Node) -> bool {
    node.check_there().is_ok() && !node.object.is_removed()
}
