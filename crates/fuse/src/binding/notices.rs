//! Notices: the kernel is told without having asked.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::server::{Client, NodeId};
use crate::wire::reply::{forget_inode, forget_name};

/// The way to the kernel's memory, once it has shaken hands.
#[derive(Clone)]
pub(super) struct Notices(Arc<OwnedFd>);

impl Notices {
    pub(super) fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    /// False where the kernel could not be told: it does not know the node or directory, and so keeps nothing of it.
    fn tell(&self, notice: &[u8]) -> bool {
        rustix::io::write(&*self.0, notice).is_ok()
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
}

impl Client for Notices {
    fn forget_name(&self, parent: NodeId, name: &[u8]) {
        self.tell(&forget_name(parent.0, name));
    }

    fn forget_content(&self, node: NodeId) {
        self.drop_data(node);
    }
}
