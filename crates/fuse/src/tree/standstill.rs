//! A file system of a mount that stands still while its dataset becomes another state of itself (`zfs rollback`).
//!
//! # Theory
//!
//! **Need.** OpenZFS rolls a mounted file system back: programs that use it wait for a moment and go on in what it was. A head that goes
//! back must be in nobody's use ([`cenote_spa::Pool::is_used`]): the blocks that its open state refers to are freed. So its file
//! system is closed and opened again, and nobody sees more of that than a pause, and files that are others now.
//!
//! **In memory.** Each slot has its file system, or none while it stands still. Requests take a share of it when they begin; those that find
//! none wait. [`Still`] has what is to be known afterwards: which files programs have open, and [`Changes`].
//!
//! **Life.**
//! ```text
//! stand_still   the slot's file system is taken out of it; requests that have a share end; the file system is closed
//! note_changes  what the client knows that will not be so any more, from the blocks that differ; all is on disk by now
//! (the head goes back, or is refused that)
//! go_on         the file system is opened again, with the files that programs have open, before anything is freed; requests go on;
//!               the client is told what to forget, and only then does the command end
//! ```
//! The client is told after requests go on: to forget a page or a name it waits for the requests that it has going there.
//!
//! **Files that are others now.** An object is the same file if its generation is the same. A program goes on with one that is. Others are
//! *stale*: what is asked of their numbers fails with `ESTALE`. That is so until the number is handed out again in an answer to a look-up
//! or as a new file: from then on the kernel itself tells the old inode from the new one, by the generation, and fails what is asked of the old
//! one with `EIO`. A release that comes for a stale file is counted off apart, so that it closes no other one. Writes that a program began
//! before are done after: they may change the file as it was, as in OpenZFS.
//!
//! **Invariants.** 1. No request has a share of a file system that is being closed. 2. What was open, and is the same, is open again before
//! the delete queue is freed. 3. What is gone is stale before any request goes on. 4. A [`Still`] that is dropped goes on all the same.
//!
//! **Power cut.** The rollback is one sync task in one txg: a pool that is opened afterwards has the head as it was before, with its intent log
//! to be replayed, or as the snapshot is, with no log. In between nothing was written: closing the file system has its log settled by a txg.
//! What programs wrote after they went on is in later txgs, or in a log of the head as it is then.
//!
//! **Rejected.** *Having the client forget everything*: it has no word for that, and no list of what it knows is kept here. *Refusing while
//! files are open*, as an unmount would: OpenZFS does not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_dsl::Dataset;
use cenote_format::ids::ObjectId;
use cenote_taskq::{Class, Handle, oneshot};

use super::Tree;
use super::changes::{self, Changes};
use crate::live::OpenFile;
use crate::node::Place;
use crate::server::NodeId;
use crate::slots::{Slot, Slots};
use crate::zfsvfs::OpenError;

/// How often it is looked whether requests have ended.
const REQUESTS_POLL: Duration = Duration::from_millis(2);

/// A file system of a mount that stands still, until [`Self::go_on`], or until this is dropped.
pub struct Still {
    inner: Option<Inner>,
}

struct Inner {
    tree: Tree,
    slot: Arc<Slot>,
    /// It was open before.
    was_open: bool,
    /// What programs have open.
    files: Vec<OpenFile>,
    changes: Option<Changes>,
}

impl Tree {
    /// Has the file system of a dataset stand still, if this tree shows it: requests that are being served end, others wait. Nobody has its
    /// head open then.
    pub async fn stand_still(&self, dataset: &str) -> Option<Still> {
        if self.shared.source.is_frozen() {
            return None;
        }
        let slot = if self.dataset() == dataset {
            Arc::clone(&self.shared.slot)
        } else {
            self.shared.slots.within(dataset).into_iter().find(|slot| slot.dataset().name() == dataset)?
        };
        let (sender, answer) = oneshot::channel();
        let tree = self.clone();
        // In a task of its own: who asks may go away meanwhile, and a file system is closed whole.
        self.shared.source.handle().detach(Class::Issue, async move {
            // A still one that nobody takes goes on.
            drop(sender.send(tree.begin_still(slot).await));
        });
        answer.await.ok()
    }

    async fn begin_still(self, slot: Arc<Slot>) -> Still {
        let opened = slot.stand_still().await;
        let handle = self.shared.source.handle().clone();
        let mut inner = Inner { tree: self, slot, was_open: opened.is_some(), files: Vec::new(), changes: None };
        if let Some(zfsvfs) = opened {
            while Arc::strong_count(&zfsvfs) > 1 {
                handle.sleep(REQUESTS_POLL).await;
            }
            if let Some(live) = zfsvfs.as_live() {
                inner.files = live.open_files().await;
                live.close(false).await;
            }
        }
        Still { inner: Some(inner) }
    }
}

impl Still {
    /// Finds out what the client has to forget when the head is as a snapshot of it is. All that was changed in the head is on disk.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub async fn note_changes(&mut self, head: &Dataset, snapshot: &Dataset) -> Result<(), OpenError> {
        let Some(inner) = &mut self.inner else { return Ok(()) };
        inner.changes = Some(changes::back_to(&inner.tree.shared.source, head, snapshot).await?);
        Ok(())
    }

    /// Requests go on, with what the head is now, and the client has forgotten what is not so any more.
    ///
    /// # Errors
    /// The file system cannot be opened: requests fail from now on.
    pub async fn go_on(mut self) -> Result<(), OpenError> {
        let Some(inner) = self.inner.take() else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: it goes on also where who asked goes away.
        inner.handle().detach(Class::Issue, async move { drop(sender.send(inner.go_on().await)) });
        answer.await.unwrap_or(Ok(()))
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.handle().detach(Class::Issue, async move {
                let tree = inner.tree.clone();
                if let Err(error) = inner.go_on().await {
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

    async fn go_on(self) -> Result<(), OpenError> {
        let Self { tree, slot, was_open, files, changes } = self;
        let shared = &*tree.shared;
        let changes = changes.unwrap_or_default();
        let is_top = Slots::is_lasting(slot.index);
        let node = |object| Place::Object { slot: slot.index, object }.node();
        let opened = async {
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
        let opened = opened.await;
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
                slot.go_on(opened);
                Ok(())
            }
            Err(error) => {
                slot.go_on(None);
                Err(error)
            }
        };
        tree.tell(names, contents).await;
        result
    }
}

impl Tree {
    /// What is asked of these nodes fails until they are handed out again.
    fn set_stale(&self, nodes: &[NodeId]) {
        self.shared.stale.write().extend(nodes);
    }

    /// Whether a node is that of a file that is not there any more.
    pub(super) fn is_stale(&self, node: NodeId) -> bool {
        let stale = self.shared.stale.read();
        !stale.is_empty() && stale.contains(&node)
    }

    /// A node is handed out, as that of another file.
    pub(super) fn is_fresh(&self, node: NodeId) {
        if self.is_stale(node) {
            self.shared.stale.write().remove(&node);
        }
    }
}
