//! Suspends and resumes a file system of a mount while its dataset is rolled back, or becomes as it was received (OpenZFS's `zfs_suspend_fs`
//! and `zfs_resume_fs`).
//!
//! # Theory
//!
//! **Need.** OpenZFS rolls a mounted file system back: programs that use it wait for a moment and then see the snapshot's state. A rollback
//! frees blocks that the open head refers to, so the head must not be in use ([`cenote_spa::Pool::is_used`]). So the file system is closed and
//! opened again. Its users notice a pause, and that files have changed. The end of a receive into a mounted file system does the same: the head
//! gets the blocks of the dataset that was received beside it.
//!
//! **In memory.** Each slot has its file system, or none while it is suspended. A request takes a reference to it when it begins; a request that
//! finds none waits. [`SuspendedFs`] keeps what resuming needs: the files that programs have open, and [`Changes`].
//!
//! **Life.**
//! ```text
//! suspend       takes the file system out of its slot, waits for the requests that have a reference, and closes it
//! note_changes  compares the head on disk with the snapshot, or with what was received: what the client has cached and must forget
//! (the head is rolled back or gets what was received, or that is refused)
//! resume        opens the file system again, with the files that programs have open, before the delete queue is freed; resumes
//!               requests; tells the client what to forget; then the command ends
//! ```
//! The client is told after requests have resumed: to forget a page or a name it waits for its own requests there.
//!
//! **Files that have changed identity.** An object is the same file if it has the same kind and generation; programs that have it open go on
//! with it. Other object numbers are *stale*: requests for them fail with `ESTALE`, until a look-up or a create hands the number out again. From
//! then on the kernel distinguishes the old inode from the new one by the generation, and fails operations on the old one with `EIO`. Releases
//! of stale files are counted separately, so that they close no other file. A write that waited during the rollback is carried out afterwards,
//! in the snapshot's state of the file, as in OpenZFS.
//!
//! **Invariants.** 1. No request has a reference to a file system that is being closed. 2. Open files that are still the same are open again
//! before the delete queue is freed. 3. Files that are gone are stale before any request resumes. 4. Dropping a [`SuspendedFs`] resumes its file system.
//!
//! **Power cut.** The rollback, or the end of the receive, is one sync task in one txg. A pool that is opened afterwards has the old head with its
//! intent log, which is replayed, or the new state without a log. Closing the file system syncs everything that its log has, and nothing is logged before it
//! resumes. Later writes are in later txgs, or in a log of the head after the rollback.
//!
//! **Rejected.** *Having the client forget everything*: FUSE has no message for that, and this crate keeps no list of what the client knows.
//! *Refusing while files are open*, as an unmount would: OpenZFS does not refuse.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Patience, unused};
use cenote_taskq::{Class, Handle, boxed, oneshot};

use super::Tree;
use super::changes::{self, Changes};
use crate::live::OpenFile;
use crate::node::Place;
use crate::server::NodeId;
use crate::slots::{Slot, Slots};

/// A suspended file system of a mount. [`Self::resume`], or dropping this, resumes it.
pub struct SuspendedFs {
    inner: Option<Inner>,
}

struct Inner {
    tree: Tree,
    slot: Arc<Slot>,
    /// It was open before.
    was_open: bool,
    /// The handles that programs have open.
    files: Vec<OpenFile>,
    changes: Option<Changes>,
}

impl Tree {
    /// Suspends the file system of a dataset, if this tree shows it: waits for requests that are being served, and has others wait. The head
    /// is not open afterwards.
    #[boxed]
    pub async fn suspend(&self, dataset: &str) -> Option<SuspendedFs> {
        if self.shared.source.is_frozen() {
            return None;
        }
        let slot = if self.dataset() == dataset {
            Arc::clone(&self.shared.slot)
        } else {
            self.shared.slots.within(dataset).into_iter().find(|slot| slot.dataset().name() == dataset)?
        };
        // Changes that programs have made by mappings until now belong to the state before.
        self.hand_over().await;
        let (sender, answer) = oneshot::channel();
        let tree = self.clone();
        // In a task of its own: closing must finish even if the caller is dropped meanwhile.
        self.shared.source.handle().detach(Class::Issue, async move {
            // If the caller is gone, dropping the value resumes the file system.
            drop(sender.send(tree.begin_suspend(slot).await));
        });
        answer.await.ok()
    }

    async fn begin_suspend(self, slot: Arc<Slot>) -> SuspendedFs {
        let opened = slot.suspend().await;
        let handle = self.shared.source.handle().clone();
        let mut inner = Inner { tree: self, slot, was_open: opened.is_some(), files: Vec::new(), changes: None };
        if let Some(zfsvfs) = opened {
            unused(&handle, &zfsvfs).await;
            if let Some(live) = zfsvfs.as_live() {
                inner.files = live.close(true).await;
            }
        }
        SuspendedFs { inner: Some(inner) }
    }
}

impl SuspendedFs {
    /// Finds out what the client must forget when the head becomes as another dataset is: a snapshot of it, or one that was received. All changes
    /// of the head must be on disk.
    #[boxed]
    pub async fn note_changes(&mut self, head: &Dataset, other: &Dataset) -> Result<(), OpenError> {
        let Some(inner) = &mut self.inner else { return Ok(()) };
        inner.changes = Some(changes::between(&inner.tree.shared.source, head, other).await?);
        Ok(())
    }

    /// Resumes requests, with the state that the head has now. The client has forgotten what has changed when this returns.
    ///
    /// # Errors
    /// The file system cannot be opened: requests fail from now on.
    pub async fn resume(mut self) -> Result<(), OpenError> {
        let Some(inner) = self.inner.take() else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: resuming must finish even if the caller is dropped meanwhile.
        inner.handle().detach(Class::Issue, async move { drop(sender.send(inner.resume().await)) });
        answer.await.unwrap_or(Ok(()))
    }
}

impl Drop for SuspendedFs {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.handle().detach(Class::Issue, async move {
                let tree = inner.tree.clone();
                if let Err(error) = inner.resume().await {
                    tree.note(error.to_string());
                }
            });
        }
    }
}

impl Inner {
    fn handle(&self) -> Handle {
        self.tree.shared.source.handle().clone()
    }

    async fn resume(self) -> Result<(), OpenError> {
        let Self { tree, slot, was_open, files, changes } = self;
        let shared = &*tree.shared;
        let changes = changes.unwrap_or_default();
        let is_top = Slots::is_lasting(slot.index);
        let node = |object| Place::Object { slot: slot.index, object }.node();
        let open = async || {
            let before = slot.dataset();
            let now = shared.source.dsl()?.dataset_object(before.object, before.dir.clone(), None).await?;
            let opened = match (is_top, was_open) {
                (true, _) => Some(shared.source.open_top(&now, &files).await?),
                (false, true) => Some(shared.source.open(&now, &files).await?),
                (false, false) => None,
            };
            slot.set_dataset(now);
            Ok::<_, OpenError>(opened.map(Arc::new))
        };
        let patience = Patience::new(shared.source.handle());
        let opened = loop {
            match open().await {
                Err(error) if patience.allows(&error).await => {}
                opened => break opened,
            }
        };
        let stale = match &opened {
            Ok(Some(zfsvfs)) => changes.stale(&zfsvfs.filesystem).await,
            _ => BTreeSet::new(),
        };
        let stale: Vec<NodeId> = stale.into_iter().filter_map(node).collect();
        tree.set_stale(&stale);
        let mut contents = Vec::new();
        for object in changes.objects {
            let at = match &opened {
                Ok(Some(zfsvfs)) if object == zfsvfs.filesystem.root() => Some(slot.root),
                _ => node(object),
            };
            if let Some(at) = at {
                shared.files.forget(at);
                contents.push(at);
            }
        }
        let root = opened.as_ref().ok().and_then(|opened| Some(opened.as_ref()?.filesystem.root()));
        let place = |object: ObjectId| if Some(object) == root { Some(slot.root) } else { node(object) };
        let names = changes.names.into_iter().filter_map(|(directory, name)| Some((place(directory)?, name))).collect();
        let result = match opened {
            Ok(opened) => {
                slot.resume(opened);
                Ok(())
            }
            Err(error) => {
                slot.resume(None);
                Err(error)
            }
        };
        tree.tell(names, contents).await;
        result
    }
}

impl Tree {
    /// Makes requests for these nodes fail until the numbers are handed out again.
    fn set_stale(&self, nodes: &[NodeId]) {
        self.shared.stale.write().extend(nodes);
    }

    /// Whether a rollback has removed the file of this node.
    pub(super) fn is_stale(&self, node: NodeId) -> bool {
        let stale = self.shared.stale.read();
        !stale.is_empty() && stale.contains(&node)
    }

    /// Notes that a node is handed out again, as another file.
    pub(super) fn is_fresh(&self, node: NodeId) {
        if self.is_stale(node) {
            self.shared.stale.write().remove(&node);
        }
    }
}
