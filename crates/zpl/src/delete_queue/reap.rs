//! Freeing what is in the delete queue.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{Cost, PendingFrees, TxgSource};
use cenote_dmu::{DmuErrorKind, Object, Zap};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::{ZapValue, int_key, int_key_name};
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::DirEntry as Word;
use cenote_taskq::boxed;

use super::share::{is_small, weight};
use crate::dir::word;
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::xattr::{directory_of, there};
use crate::{FileKind, ZplError};

/// Entries looked at, or taken out, at a time.
const BATCH: usize = 64;
/// Blocks that are freed at the end of a file system's use, so that little is left to the next user.
const LAST_BLOCKS: u64 = 16 << 10;

/// Pause before freeing is tried again where it failed.
const REAP_AGAIN: Duration = Duration::from_secs(1);

/// How much one call frees at most.
struct Budget {
    blocks: u64,
    /// It ends when the file system's use does.
    is_stopped: bool,
}

/// Whether a node is what another says that it has hidden: a directory of extended attributes, or a file there.
fn is_hidden_in(node: &Node, owner: ObjectId) -> bool {
    node.with(|record| record.flags()).contains(ZnodeFlags::XATTR) || node.word(ZplAttribute::Parent) == owner.0
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
pub(crate) fn entry_name(id: ObjectId) -> String {
    int_key_name(id.0)
}

/// Its value.
pub(crate) fn entry_value(id: ObjectId) -> ZapValue {
    ZapValue::from_u64(id.0)
}

impl FileSystem {
    /// True for a node that is to be there after its last name is gone, though it is not open: the user of the file system says
    /// when it forgets it.
    pub(crate) fn is_kept(&self, node: &Node) -> bool {
        let kept = self.in_use().ok().and_then(|in_use| in_use.kept.get());
        kept.is_some() && !matches!(node.kind(), Some(FileKind::File | FileKind::Symlink))
    }

    /// Keeps a node that went to the queue until it is forgotten.
    pub(crate) fn keep(&self, node: &Arc<Node>) {
        let Some(kept) = self.in_use().ok().and_then(|in_use| in_use.kept.get()) else { return };
        debug_assert!(self.is_kept(node), "files and links are there only while they are open");
        debug_assert_eq!(node.word(ZplAttribute::Links), 0, "what has a name is there by that");
        node.count_open(true);
        if kept.lock().insert(node.id, Arc::clone(node)).is_some() {
            node.count_open(false);
        }
    }

    /// The user of the file system has forgotten a node: if that has no name any more it can be freed.
    pub fn forgotten(&self, id: ObjectId) {
        let Some(kept) = self.in_use().ok().and_then(|in_use| in_use.kept.get()) else { return };
        let node = kept.lock().remove(&id);
        if let Some(node) = node
            && node.count_open(false)
        {
            self.note_garbage(id);
        }
    }

    /// The user of the file system has forgotten all nodes.
    pub fn all_forgotten(&self) {
        let Some(kept) = self.in_use().ok().and_then(|in_use| in_use.kept.get()) else { return };
        let ids: Vec<ObjectId> = kept.lock().keys().copied().collect();
        ids.into_iter().for_each(|id| self.forgotten(id));
    }

    /// Notes that a node in the queue can be freed.
    pub(crate) fn note_garbage(&self, id: ObjectId) {
        let Ok(in_use) = self.in_use() else { return };
        {
            let mut garbage = in_use.garbage.lock();
            garbage.note(id);
            garbage.pending = garbage.pending.take().or_else(|| in_use.log().frees_begin());
        }
        in_use.garbage_came.all();
    }

    /// Returns once there may be garbage, for a task that reaps in the background; `false` after [`Self::stop_reaping`], and where
    /// nothing is changed.
    #[boxed]
    pub async fn garbage(&self) -> bool {
        let Ok(in_use) = self.in_use() else { return false };
        loop {
            let came = in_use.garbage_came.wait();
            {
                let garbage = in_use.garbage.lock();
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

    /// Frees the delete queue in the background, until [`Self::stop_reaping`]. `report` is told when the outcome changes: the error that
    /// keeps space from being freed, and `None` once it is freed again.
    pub async fn reap_until_stopped(&self, mut report: impl FnMut(Option<ZplError>) + Send) {
        let handle = self.shared.objset.dmu().handle().clone();
        let mut told: Option<String> = None;
        while self.garbage().await {
            let error = self.reap().await.err();
            let (now, failed) = (error.as_ref().map(ToString::to_string), error.is_some());
            if now != told {
                report(error);
                told = now;
            }
            if failed {
                // A full pool has space again some time; one that is not written any more is closed soon.
                handle.sleep(REAP_AGAIN).await;
            }
        }
    }

    /// Stops the reaper at its next piece; the rest stays in the queue for the next user of the file system.
    pub fn stop_reaping(&self) {
        if let Ok(in_use) = self.in_use() {
            in_use.garbage.lock().is_stopped = true;
            in_use.garbage_came.all();
        }
    }

    /// Frees what is in the delete queue and in nobody's use: what the last user of the file system left, and what has been
    /// removed since. Returns the number of objects freed. Takes txgs as it needs them.
    ///
    /// # Errors
    /// Something cannot be read or written: that stays in the queue until the file system is opened again, and all else is freed.
    /// There is no space, or the pool is closed: all that is left can be tried again.
    #[boxed]
    pub async fn reap(&self) -> Result<u64, ZplError> {
        self.reap_within(&mut Budget { blocks: u64::MAX, is_stopped: true }).await
    }

    /// The same at the end of the file system's use, where others wait for that: some blocks, and no more.
    ///
    /// # Errors
    /// As [`FileSystem::reap`].
    #[boxed]
    pub async fn reap_little(&self) -> Result<u64, ZplError> {
        self.reap_within(&mut Budget { blocks: LAST_BLOCKS, is_stopped: false }).await
    }

    async fn reap_within(&self, budget: &mut Budget) -> Result<u64, ZplError> {
        let in_use = self.in_use()?;
        let _turn = in_use.reaping.lock().await;
        let pending = {
            let mut garbage = in_use.garbage.lock();
            let is_any = garbage.is_unseen || !garbage.ids.is_empty();
            garbage.pending.take().or_else(|| is_any.then(|| in_use.log().frees_begin()).flatten())
        };
        let reaped = self.reap_all(budget, pending.as_deref()).await;
        drop(pending);
        reaped
    }

    async fn reap_all(&self, budget: &mut Budget, pending: Option<&dyn PendingFrees>) -> Result<u64, ZplError> {
        let in_use = self.in_use()?;
        let (mut count, mut failure) = (0, None);
        // Taken first: an object that is removed meanwhile, and not noted, may stand where the sweep has been.
        if std::mem::take(&mut in_use.garbage.lock().is_unseen) {
            let swept = self.sweep(budget, pending, &mut count, &mut failure).await;
            if !matches!(swept, Ok(true)) {
                in_use.garbage.lock().is_unseen = true;
                return swept.map(|_| count);
            }
        }
        loop {
            let next = in_use.garbage.lock().ids.pop_first();
            let Some(id) = next else { return failure.map_or(Ok(count), Err) };
            match self.destroy(id, budget, pending).await {
                Ok(Freed::Whole) => count += 1,
                Ok(Freed::Not) => {}
                Ok(Freed::InPart) => {
                    assert_eq!(budget.blocks, 0, "what is freed in part has used up the budget");
                    in_use.garbage.lock().note(id);
                    return Ok(count);
                }
                Err(error) if ends(&error) => {
                    in_use.garbage.lock().note(id);
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
        let is_over = (budget.is_stopped && self.in_use().is_ok_and(|in_use| in_use.garbage.lock().is_stopped))
            || budget.blocks < blocks;
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
        let queue = self.shared.objset.object(self.in_use()?.queue).await?;
        let mut after = None;
        loop {
            let found = {
                let _turn = self.in_use()?.queue_lock.lock().await;
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
        let _lock = node.in_use()?.lock.write().await;
        let links = node.word(ZplAttribute::Links);
        if node.check_there().is_err() || node.opens() > 0 || links > 0 {
            return Ok(Freed::Not);
        }
        if !self.may_free(budget, 1) {
            return Ok(Freed::InPart);
        }
        if node.with(|record| record.flags()).contains(ZnodeFlags::XATTR) && node.is_directory() {
            self.purge(&node.object, pending).await?;
        }
        let mut xattrs = None;
        if let Some(object) = self.own_hidden_dir(&node).await? {
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

    /// The hidden directory that goes with a node. An object number that a damaged file names as its own, and that is something else, is
    /// left alone: it may be another file's, or a directory that is in use.
    async fn own_hidden_dir(&self, node: &Node) -> Result<Option<Object>, ZplError> {
        let Some(id) = node.with(directory_of) else { return Ok(None) };
        let Some(hidden) = there(self.node(id).await)? else { return Ok(None) };
        Ok((hidden.is_directory() && is_hidden_in(&hidden, node.id)).then(|| hidden.object.clone()))
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
            assert!(piece.start < end, "an object is freed from its end on");
            let weight = weight(object, piece.end - piece.start);
            if !self.may_free(budget, weight) {
                return Ok(false);
            }
            let mut tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
            tx.needs_no_record();
            object.free_blocks(tx.txg(), piece.start..u64::MAX);
            end = piece.start;
            if let Some(pending) = pending {
                pending.went_on();
            }
        }
        Ok(true)
    }

    async fn finish(&self, node: &Node, xattrs: Option<Object>) -> Result<(), ZplError> {
        assert_eq!(node.word(ZplAttribute::Links), 0, "an object in the queue has no name");
        assert_eq!(node.opens(), 0, "nobody has an object open that is freed");
        let weight = weight(&node.object, 1);
        // The last piece, before the queue is locked: this may wait for the next txg's share, and must not block other tasks meanwhile.
        let mut tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
        tx.needs_no_record();
        node.object.free_blocks(tx.txg(), 0..u64::MAX);
        drop(tx);
        let _turn = self.in_use()?.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.in_use()?.queue).await?;
        let mut zap = Zap::open(queue).await?;
        let name = entry_name(node.id);
        if zap.lookup(name.as_bytes()).await?.is_some() {
            zap.remove(name.as_bytes()).await?;
        }
        let mut tx = self.begin(Cost::default().with_entries(1).with_objects(2).that_frees()).await?;
        tx.needs_no_record();
        zap.flush(tx.txg()).await?;
        if let Some(xattrs) = xattrs {
            xattrs.free(tx.txg());
        }
        debug_assert_eq!(node.opens(), 0, "a node that nothing leads to was not opened meanwhile");
        node.set_gone();
        node.object.free(tx.txg());
        self.shared.objset.count(|stats| stats.unlinked(0, 1));
        Ok(())
    }

    /// Takes an entry out whose object is not there.
    async fn forget(&self, id: ObjectId) -> Result<(), ZplError> {
        let _turn = self.in_use()?.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.in_use()?.queue).await?;
        let mut zap = Zap::open(queue).await?;
        let name = entry_name(id);
        if zap.lookup(name.as_bytes()).await?.is_none() {
            return Ok(());
        }
        zap.remove(name.as_bytes()).await?;
        let mut tx = self.begin(Cost::default().with_entries(1).that_frees()).await?;
        tx.needs_no_record();
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
                let Ok(Word { object: id, .. }) = word(directory.id(), &entry.value) else { continue };
                if let Ok(file) = self.node(id).await
                    && is_hidden_in(&file, directory.id())
                {
                    let object = file.object.clone();
                    if !is_small(&object) {
                        self.free_pieces(&object, &mut budget, pending).await?;
                    }
                    objects.push(object);
                }
            }
            let weight = objects.iter().map(|object| weight(object, 1)).sum();
            let mut tx = self.begin_piece(Cost::default().with_entries(objects.len() as u64), weight).await?;
            tx.needs_no_record();
            zap.flush(tx.txg()).await?;
            objects.iter().for_each(|object| object.free(tx.txg()));
        }
    }
}
