//! The delete queue: objects without a name, freed when nobody has them open any more, large ones in steps.

use cenote_dmu::DmuErrorKind;
use cenote_dmu::tx::Cost;
use cenote_dmu::write::{Object, ZapLook, ZapMut};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::{ZapValue, int_key, int_key_name};
use cenote_format::znode::ZnodeFlags;

use super::listing::word;
use super::node::Node;
use super::txgs::Bill;
use super::{LiveFileSystem, steps};
use crate::ZplError;

/// Entries looked at, or taken out, at a time.
const BATCH: usize = 64;

/// The name of an object's entry in the queue.
pub(super) fn entry_name(id: ObjectId) -> String {
    int_key_name(id.0)
}

/// Its value.
pub(super) fn entry_value(id: ObjectId) -> ZapValue {
    ZapValue::from_u64(id.0)
}

impl LiveFileSystem {
    /// Notes that a node in the queue can be freed.
    pub(super) fn is_garbage(&self, id: ObjectId) {
        self.shared.garbage.lock().insert(id);
        self.shared.garbage_came.one();
    }

    /// Returns once there may be garbage: for a task that reaps in the background.
    pub async fn garbage(&self) {
        loop {
            let came = self.shared.garbage_came.wait();
            if *self.shared.sweeps.lock() || !self.shared.garbage.lock().is_empty() {
                return;
            }
            came.await;
        }
    }

    /// Frees what is in the delete queue and in nobody's use: what the last user of the file system left, and what has been
    /// removed since. The number of objects freed comes back. Takes txgs as it needs them.
    ///
    /// # Errors
    /// Something cannot be read or written; what is left stays in the queue.
    pub async fn reap(&self) -> Result<u64, ZplError> {
        let _turn = self.shared.reaping.lock().await;
        let mut count = 0;
        if std::mem::take(&mut *self.shared.sweeps.lock()) {
            count += self.sweep().await?;
        }
        loop {
            let next = self.shared.garbage.lock().pop_first();
            let Some(id) = next else { return Ok(count) };
            count += u64::from(self.destroy(id).await?);
        }
    }

    /// Frees everything in the queue that is in nobody's use.
    async fn sweep(&self) -> Result<u64, ZplError> {
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut after = None;
        let mut count = 0;
        loop {
            let found = {
                let _turn = self.shared.queue_lock.lock().await;
                ZapLook::open(&queue).await?.list(after, BATCH).await?
            };
            let Some(last) = found.last() else { return Ok(count) };
            after = Some((last.hash, last.cd));
            for entry in found {
                if let Some(id) = int_key(entry.name()) {
                    count += u64::from(self.destroy(ObjectId(id)).await?);
                }
            }
        }
    }

    /// Frees an object of the queue; whether it was to be freed.
    async fn destroy(&self, id: ObjectId) -> Result<bool, ZplError> {
        let node = match self.node(id).await {
            Ok(node) => node,
            Err(ZplError::Dmu(error)) if matches!(error.kind, DmuErrorKind::NoSuchObject) => {
                self.forget(id).await?;
                return Ok(false);
            }
            Err(ZplError::Stale) => return Ok(false),
            Err(error) => return Err(error),
        };
        let _lock = node.lock.write().await;
        let links = node.with(|record| record.u64(ZplAttribute::Links));
        if node.check_there().is_err() || node.opens() > 0 || links > 0 {
            return Ok(false);
        }
        if node.with(|record| record.flags()).contains(ZnodeFlags::XATTR) && node.is_directory() {
            self.purge(&node.object).await?;
        }
        let hidden = node.with(|record| record.u64(ZplAttribute::Xattr));
        let mut xattrs = None;
        if hidden != 0
            && let Ok(object) = self.shared.objset.object(ObjectId(hidden)).await
        {
            self.purge(&object).await?;
            self.free_pieces(&object).await?;
            xattrs = Some(object);
        }
        self.free_pieces(&node.object).await?;
        self.finish(&node, xattrs).await?;
        Ok(true)
    }

    /// Frees an object's blocks until few are left.
    async fn free_pieces(&self, object: &Object) -> Result<(), ZplError> {
        while let Some(piece) = self.last_piece(object, 0..u64::MAX).await?.filter(|piece| piece.start > 0) {
            let weight = steps::weight(object, piece.end - piece.start);
            let held = self.begin_piece(Cost::default().with_objects(1), weight).await?;
            object.free_blocks(held.txg(), piece.start..u64::MAX);
        }
        Ok(())
    }

    async fn finish(&self, node: &Node, xattrs: Option<Object>) -> Result<(), ZplError> {
        let _turn = self.shared.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut zap = ZapMut::open(queue).await?;
        let name = entry_name(node.id);
        if zap.lookup(name.as_bytes()).await?.is_some() {
            zap.remove(name.as_bytes()).await?;
        }
        let weight = steps::weight(&node.object, 1);
        let held = self.begin_piece(Cost::default().with_entries(1).with_objects(2), weight).await?;
        zap.flush(held.txg()).await?;
        if let Some(xattrs) = xattrs {
            xattrs.free(held.txg());
        }
        node.set_gone();
        node.object.free(held.txg());
        Ok(())
    }

    /// Takes an entry out whose object is not there.
    async fn forget(&self, id: ObjectId) -> Result<(), ZplError> {
        let _turn = self.shared.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.shared.queue).await?;
        let mut zap = ZapMut::open(queue).await?;
        let name = entry_name(id);
        if zap.lookup(name.as_bytes()).await?.is_none() {
            return Ok(());
        }
        zap.remove(name.as_bytes()).await?;
        let held = self.source().begin(Cost::default().with_entries(1).that_frees()).await?;
        Ok(zap.flush(held.txg()).await?)
    }

    /// Empties a hidden directory whose owner is locked, freeing what its entries lead to.
    async fn purge(&self, directory: &Object) -> Result<(), ZplError> {
        loop {
            let found = ZapLook::open(directory).await?.list(None, BATCH).await?;
            if found.is_empty() {
                return Ok(());
            }
            let mut zap = ZapMut::open(directory.clone()).await?;
            let mut objects = Vec::new();
            for entry in &found {
                zap.remove(entry.name()).await?;
                let id = word(directory.id(), &entry.value)?.object;
                if let Ok(object) = self.shared.objset.object(id).await {
                    if !steps::is_small(&object) {
                        self.free_pieces(&object).await?;
                    }
                    objects.push(object);
                }
            }
            let weight = objects.iter().map(|object| steps::weight(object, 1)).sum();
            let held = self.begin_piece(Cost::default().with_entries(objects.len() as u64), weight).await?;
            zap.flush(held.txg()).await?;
            objects.iter().for_each(|object| object.free(held.txg()));
        }
    }
}
