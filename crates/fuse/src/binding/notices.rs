//! Notices: the kernel is told without having asked.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::mapped::{Mapped, place};

use crate::server::{Client, NodeId};
use crate::wire::reply::{forget_inode, forget_name};

/// The way to the kernel's memory, once it has shaken hands.
#[derive(Clone)]
pub(super) struct Notices {
    device: Arc<OwnedFd>,
    mapped: Arc<Mapped>,
}

impl Notices {
    pub(super) fn new(device: Arc<OwnedFd>) -> Self {
        Self { device, mapped: Arc::default() }
    }

    /// The files of which the kernel may hold dirty pages.
    pub(super) fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    /// False where the kernel could not be told: it does not know the node or directory, and so keeps nothing of it.
    fn tell(&self, notice: &[u8]) -> bool {
        rustix::io::write(&*self.device, notice).is_ok()
    }

    /// Has the kernel ask for a node's attributes before it uses them again; its data stays. From within a request for that node this
    /// waits for nothing: it takes no lock of the node.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        const NO_DATA: i64 = -1;
        self.tell(&forget_inode(node.0, NO_DATA, 0));
    }

    /// Has the kernel drop a node's attributes and data. True where it did.
    pub(super) fn drop_data(&self, node: NodeId) -> bool {
        self.tell(&forget_inode(node.0, 0, 0))
    }

    /// Has the kernel drop the data of a part of a file; it hands over dirty pages there first.
    pub(super) fn drop_part(&self, node: NodeId, range: &Range<u64>) {
        let (offset, len) = place(range);
        self.tell(&forget_inode(node.0, offset, len));
    }
}

impl Client for Notices {
    fn forget_name(&self, parent: NodeId, name: &[u8]) {
        self.tell(&forget_name(parent.0, name));
    }

    fn forget_content(&self, node: NodeId) {
        self.drop_data(node);
    }

    fn forget_attributes(&self, node: NodeId) {
        self.attributes_changed(node);
    }

    fn hand_over(&self) {
        self.mapped.all().into_iter().for_each(|node| self.forget_content(node));
    }
}
