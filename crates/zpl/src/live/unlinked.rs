//! The delete queue (OpenZFS's unlinked set): objects without a name, freed when nobody has them open any more, large ones in steps.
//!
//! # Theory
//!
//! **Need.** `unlink` returns as soon as the name is gone, however large the file is; the space comes back soon, and other operations
//! do not wait for that.
//!
//! **Life of a large file's end.**
//! 1. `unlink`, or a rename over it, removes the name and enters the object's number into the queue, in one txg, and returns.
//! 2. If nobody has it open, or when its last handle is dropped, it is *garbage*: noted in memory, and the pool is told that space
//!    is about to be freed ([`TxgSource::frees_begin`](cenote_dmu::tx::TxgSource::frees_begin)).
//! 3. The reaper, one task, frees it piece by piece from its end, in each txg its share (`steps`). While it waits for a txg it holds
//!    no lock but the file's own; it takes the queue's lock only to remove the entry together with the last piece.
//! 4. Changes for which there is no space wait as long as pieces are freed.
//!
//! **Invariants.**
//! 1. An object in the queue has no name.
//! 2. No task waits for a txg to be written while it holds the queue's lock, except as every change waits when the pool is full or
//!    too much is dirty.
//!
//! **Crash, or the end of use.** The queue is on disk, and freed pieces are holes, so the next user goes on where this one stopped. At
//! the end of a mount a little is freed, and the rest is left.
//!
//! **Rejected.** *Freeing before the answer*: one `unlink` would take as long as all before it. *Several files at a time*: they would
//! share the same txgs' shares.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::tx::{Cost, PendingFrees};
use cenote_dmu::{DmuErrorKind, Object, Zap};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::{ZapValue, int_key, int_key_name};
use cenote_format::znode::ZnodeFlags;

use super::listing::word;
use super::node::Node;
use super::{LiveFileSystem, steps};
use crate::{FileKind, ZplError};

/// Entries looked at, or taken out, at a time.
const BATCH: usize = 64;
/// Objects noted in memory at most, so that many small files that are removed faster than they are freed do not fill it.
const IDS_MAX: usize = 64 << 10;
/// Blocks that are freed at the end of a file system's use, so that little is left to the next user.
const LAST_BLOCKS: u64 = 16 << 10;

/// The part of the delete queue that is known in memory.
pub(super) struct Garbage {
    /// Objects in it that nobody has open.
    ids: BTreeSet<ObjectId>,
    /// The queue may have others: those that the last user of the file system left there, or more than are noted here.
    is_unseen: bool,
    /// Nothing more is to be begun.
    is_stopped: bool,
    /// The pool has been told that something is freed.
    pending: Option<Box<dyn PendingFrees>>,
}

impl Default for Garbage {
    fn default() -> Self {
        Self { ids: BTreeSet::new(), is_unseen: true, is_stopped: false, pending: None }
    }
}

impl Garbage {
    /// Notes an object of the queue that nobody has open. Where too many are noted the queue, which has them all, is looked
    /// through again.
    fn note(&mut self, id: ObjectId) {
        if self.ids.len() < IDS_MAX {
            self.ids.insert(id);
        } else {
            self.is_unseen = true;
        }
    }
}

/// How much one call frees at most.
struct Budget {
    blocks: u64,
    /// It ends when the file system's use does.
    is_stopped: bool,
}

/// The outcome of freeing an object of the queue.
enum Freed {
    Whole,
    /// It is in use, or was not there.
    Not,
    /// The budget is used up.
    InPart,
}

/// True if an error would meet every other object of the queue too: there is no space now, or the pool is not written any more.
const fn ends(error: &ZplError) -> bool {
    matches!(error, ZplError::NoSpace | ZplError::Quota(_) | ZplError::Closed(_))
}

/// The name of an object's entry in the queue.
pub(super) fn entry_name(id: ObjectId) -> String {
    int_key_name(id.0)
}

/// Its value.
pub(super) fn entry_value(id: ObjectId) -> ZapValue {
    ZapValue::from_u64(id.0)
}

impl LiveFileSystem {
    /// True for a node that is to be there after its last name is gone, though it is not open: the user of the file system says
    /// when it forgets it.
    pub(super) fn is_kept(&self, node: &Node) -> bool {
        let kind = FileKind::of_mode(u64::from(node.mode()));
        self.shared.kept.is_some() && !matches!(kind, Some(FileKind::File | FileKind::Symlink))
    }

    /// Keeps a node that went to the queue until it is forgotten.
    pub(super) fn keep(&self, node: &Arc<Node>) {
        let Some(kept) = &self.shared.kept else { return };
        node.count_open(true);
        if kept.lock().insert(node.id, Arc::clone(node)).is_some() {
            node.count_open(false);
        }
    }

    /// The user of the file system has forgotten a node: if that has no name any more it can be freed.
    pub fn forgotten(&self, id: ObjectId) {
        let Some(kept) = &self.shared.kept else { return };
        let node = kept.lock().remove(&id);
        if let Some(node) = node
            && node.count_open(false)
        {
            self.is_garbage(id);
        }
    }

    /// The user of the file system has forgotten all nodes.
    pub fn all_forgotten(&self) {
        let Some(kept) = &self.shared.kept else { return };
        let ids: Vec<ObjectId> = kept.lock().keys().copied().collect();
        ids.into_iter().for_each(|id| self.forgotten(id));
    }

    /// Notes that a node in the queue can be freed.
    pub(super) fn is_garbage(&self, id: ObjectId) {
        {
            let mut garbage = self.shared.garbage.lock();
            garbage.note(id);
            garbage.pending = garbage.pending.take().or_else(|| self.source().frees_begin());
        }
        self.shared.garbage_came.all();
    }

    /// Returns once there may be garbage, for a task that reaps in the background; `false` after [`Self::stop_reaping`].
    pub async fn garbage(&self) -> bool {
        loop {
            let came = self.shared.garbage_came.wait();
            {
                let garbage = self.shared.garbage.lock();
                if garbage.is_stopped {
                    return false;
                }
                if garbage.is_unseen || !garbage.ids.is_empty() {
                    return true;
                }
            }
            came.await;
        }
    }

    /// Stops the reaper at its next piece; the rest stays in the queue for the next user of the file system.
    pub fn stop_reaping(&self) {
        self.shared.garbage.lock().is_stopped = true;
        self.shared.garbage_came.all();
    }

    /// Frees what is in the delete queue and in nobody's use: what the last user of the file system left, and what has been
    /// removed since. The number of objects freed comes back. Takes txgs as it needs them.
    ///
    /// # Errors
    /// Something cannot be read or written: that stays in the queue until the file system is opened again, and all else is freed.
    /// There is no space, or the pool is closed: all that is left can be tried again.
    pub async fn reap(&self) -> Result<u64, ZplError> {
        self.reap_within(&mut Budget { blocks: u64::MAX, is_stopped: true }).await
    }

    /// The same at the end of the file system's use, where others wait for that: some blocks, and no more.
    ///
    /// # Errors
    /// As [`LiveFileSystem::reap`].
    pub async fn reap_little(&self) -> Result<u64, ZplError> {
        self.reap_within(&mut Budget { blocks: LAST_BLOCKS, is_stopped: false }).await
    }

    async fn reap_within(&self, budget: &mut Budget) -> Result<u64, ZplError> {
        let _turn = self.shared.reaping.lock().await;
        let pending = {
            let mut garbage = self.shared.garbage.lock();
            let is_any = garbage.is_unseen || !garbage.ids.is_empty();
            garbage.pending.take().or_else(|| is_any.then(|| self.source().frees_begin()).flatten())
        };
        let reaped = self.reap_all(budget, pending.as_deref()).await;
        drop(pending);
        reaped
    }

    async fn reap_all(&self, budget: &mut Budget, pending: Option<&dyn PendingFrees>) -> Result<u64, ZplError> {
        let (mut count, mut failure) = (0, None);
        // Taken first: an object that is removed meanwhile, and not noted, may stand where the sweep has been.
        if std::mem::take(&mut self.shared.garbage.lock().is_unseen) {
            let swept = self.sweep(budget, pending, &mut count, &mut failure).await;
            if !matches!(swept, Ok(true)) {
                self.shared.garbage.lock().is_unseen = true;
                return swept.map(|_| count);
            }
        }
        loop {
            let next = self.shared.garbage.lock().ids.pop_first();
            let Some(id) = next else { return failure.map_or(Ok(count), Err) };
            match self.destroy(id, budget, pending).await {
                Ok(Freed::Whole) => count += 1,
                Ok(Freed::Not) => {}
                Ok(Freed::InPart) => {
                    self.shared.garbage.lock().note(id);
                    return Ok(count);
                }
                Err(error) if ends(&error) => {
                    self.shared.garbage.lock().note(id);
                    return Err(error);
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
    }

    /// Takes blocks from the budget; false if it does not allow them.
    fn may_free(&self, budget: &mut Budget, blocks: u64) -> bool {
        let is_over = (budget.is_stopped && self.shared.garbage.lock().is_stopped) || budget.blocks < blocks;
        budget.blocks = if is_over { 0 } else { budget.blocks - blocks };
        !is_over
    }

    /// Frees everything in the queue that is not in use, and returns true if the whole queue was seen. Objects that cannot be freed
    /// stay in it, and the first reason is kept in `failure`.
    async fn sweep(
        &self,
        budget: &mut Budget,
        pending: Option<&dyn PendingFrees>,
        count: &mut u64,
        failure: &mut Option<ZplError>,
    ) -> Result<bool, ZplError> {
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut after = None;
        loop {
            let found = {
                let _turn = self.shared.queue_lock.lock().await;
                Zap::open(queue.clone()).await?.list(after, BATCH).await?
            };
            let Some(last) = found.last() else { return Ok(true) };
            after = Some((last.hash, last.cd));
            for entry in found {
                let Some(id) = int_key(entry.name()) else { continue };
                match self.destroy(ObjectId(id), budget, pending).await {
                    Ok(Freed::Whole) => *count += 1,
                    Ok(Freed::Not) => {}
                    Ok(Freed::InPart) => return Ok(false),
                    Err(error) if ends(&error) => return Err(error),
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                }
            }
        }
    }

    /// Frees an object of the queue, if it is to be freed.
    async fn destroy(
        &self,
        id: ObjectId,
        budget: &mut Budget,
        pending: Option<&dyn PendingFrees>,
    ) -> Result<Freed, ZplError> {
        let node = match self.node(id).await {
            Ok(node) => node,
            Err(ZplError::Dmu(error)) if matches!(error.kind, DmuErrorKind::NoSuchObject) => {
                self.forget(id).await?;
                return Ok(Freed::Not);
            }
            Err(ZplError::Stale) => return Ok(Freed::Not),
            Err(error) => return Err(error),
        };
        let _lock = node.lock.write().await;
        let links = node.with(|record| record.u64(ZplAttribute::Links));
        if node.check_there().is_err() || node.opens() > 0 || links > 0 {
            return Ok(Freed::Not);
        }
        if !self.may_free(budget, 1) {
            return Ok(Freed::InPart);
        }
        if node.with(|record| record.flags()).contains(ZnodeFlags::XATTR) && node.is_directory() {
            self.purge(&node.object, pending).await?;
        }
        let hidden = node.with(|record| record.u64(ZplAttribute::Xattr));
        let mut xattrs = None;
        if hidden != 0
            && let Ok(object) = self.shared.objset.object(ObjectId(hidden)).await
        {
            self.purge(&object, pending).await?;
            if !self.free_pieces(&object, budget, pending).await? {
                return Ok(Freed::InPart);
            }
            xattrs = Some(object);
        }
        if !self.free_pieces(&node.object, budget, pending).await? {
            return Ok(Freed::InPart);
        }
        self.finish(&node, xattrs).await?;
        Ok(Freed::Whole)
    }

    /// Frees an object's blocks until few are left; whether the budget allowed it.
    async fn free_pieces(
        &self,
        object: &Object,
        budget: &mut Budget,
        pending: Option<&dyn PendingFrees>,
    ) -> Result<bool, ZplError> {
        let mut end = u64::MAX;
        while let Some(piece) = self.last_piece(object, 0..end).await?.filter(|piece| piece.start > 0) {
            let weight = steps::weight(object, piece.end - piece.start);
            if !self.may_free(budget, weight) {
                return Ok(false);
            }
            let tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
            object.free_blocks(tx.txg(), piece.start..u64::MAX);
            end = piece.start;
            if let Some(pending) = pending {
                pending.went_on();
            }
        }
        Ok(true)
    }

    async fn finish(&self, node: &Node, xattrs: Option<Object>) -> Result<(), ZplError> {
        let weight = steps::weight(&node.object, 1);
        // The last piece, before the queue is locked: this may wait for the next txg's share, which must hold up nobody else.
        let tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
        node.object.free_blocks(tx.txg(), 0..u64::MAX);
        drop(tx);
        let _turn = self.shared.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut zap = Zap::open(queue).await?;
        let name = entry_name(node.id);
        if zap.lookup(name.as_bytes()).await?.is_some() {
            zap.remove(name.as_bytes()).await?;
        }
        let tx = self.source().begin(Cost::default().with_entries(1).with_objects(2).that_frees()).await?;
        zap.flush(tx.txg()).await?;
        if let Some(xattrs) = xattrs {
            xattrs.free(tx.txg());
        }
        node.set_gone();
        node.object.free(tx.txg());
        Ok(())
    }

    /// Takes an entry out whose object is not there.
    async fn forget(&self, id: ObjectId) -> Result<(), ZplError> {
        let _turn = self.shared.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut zap = Zap::open(queue).await?;
        let name = entry_name(id);
        if zap.lookup(name.as_bytes()).await?.is_none() {
            return Ok(());
        }
        zap.remove(name.as_bytes()).await?;
        let tx = self.source().begin(Cost::default().with_entries(1).that_frees()).await?;
        Ok(zap.flush(tx.txg()).await?)
    }

    /// Empties a hidden directory whose owner is locked, freeing what its entries lead to.
    async fn purge(&self, directory: &Object, pending: Option<&dyn PendingFrees>) -> Result<(), ZplError> {
        // Its entries were extended attributes, which are small.
        let mut budget = Budget { blocks: u64::MAX, is_stopped: false };
        loop {
            let found = Zap::open(directory.clone()).await?.list(None, BATCH).await?;
            if found.is_empty() {
                return Ok(());
            }
            let mut zap = Zap::open(directory.clone()).await?;
            let mut objects = Vec::new();
            for entry in &found {
                zap.remove(entry.name()).await?;
                let id = word(directory.id(), &entry.value)?.object;
                if let Ok(object) = self.shared.objset.object(id).await {
                    if !steps::is_small(&object) {
                        self.free_pieces(&object, &mut budget, pending).await?;
                    }
                    objects.push(object);
                }
            }
            let weight = objects.iter().map(|object| steps::weight(object, 1)).sum();
            let tx = self.begin_piece(Cost::default().with_entries(objects.len() as u64), weight).await?;
            zap.flush(tx.txg()).await?;
            objects.iter().for_each(|object| object.free(tx.txg()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_garbage_than_is_noted_is_left_to_a_look_through_the_queue() {
        let mut garbage = Garbage { is_unseen: false, ..Garbage::default() };
        (0..IDS_MAX as u64).for_each(|id| garbage.note(ObjectId(id)));
        assert!(!garbage.is_unseen);
        garbage.note(ObjectId(u64::MAX));
        assert!(garbage.is_unseen);
        assert_eq!(garbage.ids.len(), IDS_MAX);
    }
}
