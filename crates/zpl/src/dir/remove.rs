//! Links, and taking names away.

use std::sync::Arc;

use cenote_dmu::Zap;
use cenote_dmu::tx::Cost;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_format::zil::Tx as Record;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::DirEntry;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{AsyncMutexGuard, AsyncWriteGuard, boxed};

use super::entry::{check_name, entry_value};
use crate::delete_queue::{entry_name, entry_value as queue_value, is_small};
use crate::filesystem::FileSystem;
use crate::names::missing;
use crate::node::Node;
use crate::record::{changed, touch};
use crate::{Attributes, Time, ZplError};

/// Nodes sorted for locking, each once.
pub(crate) fn in_order(nodes: &[&Arc<Node>]) -> Vec<Arc<Node>> {
    let mut nodes: Vec<Arc<Node>> = nodes.iter().map(|node| Arc::clone(node)).collect();
    nodes.sort_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    nodes
}

/// Locks nodes, which are in order.
///
/// # Errors
/// The file system is open to be read only.
pub(super) async fn lock_all(nodes: &[Arc<Node>]) -> Result<Vec<AsyncWriteGuard<'_, ()>>, ZplError> {
    assert!(nodes.is_sorted_by(|one, next| one.id < next.id), "nodes are locked in the order of their numbers");
    let mut guards = Vec::with_capacity(nodes.len());
    for node in nodes {
        guards.push(node.in_use()?.lock.write().await);
    }
    Ok(guards)
}

/// The fate of a node that loses a name.
pub(crate) enum Fate<'a> {
    /// It has others.
    Stays,
    /// It is freed at once.
    Goes,
    /// It goes to the delete queue, whose changed ZAP this is.
    Queued(Box<Zap>, AsyncMutexGuard<'a, ()>),
}

impl FileSystem {
    /// Decides the fate of a locked node that loses a name (a directory: its only one).
    pub(crate) async fn fate(&self, node: &Node) -> Result<Fate<'_>, ZplError> {
        let (links, has_xattrs) =
            node.with(|record| (record.u64(ZplAttribute::Links), record.u64(ZplAttribute::Xattr) != 0));
        if links > 1 && !node.is_directory() {
            return Ok(Fate::Stays);
        }
        if node.opens() == 0 && !has_xattrs && !self.is_kept(node) && is_small(&node.object) {
            return Ok(Fate::Goes);
        }
        let turn = self.in_use()?.queue_lock.lock().await;
        let queue = self.shared.objset.object(self.in_use()?.queue).await?;
        let mut zap = Zap::open(queue).await?;
        if !mutant::is(Mutant::DeleteQueueDropped) {
            zap.set(entry_name(node.id).as_bytes(), &queue_value(node.id)).await?;
        }
        Ok(Fate::Queued(Box::new(zap), turn))
    }

    /// Lets a node meet its fate.
    pub(crate) async fn apply_fate(
        &self,
        fate: Fate<'_>,
        node: &Arc<Node>,
        txg: Txg,
        now: Time,
    ) -> Result<(), ZplError> {
        match fate {
            Fate::Stays => node.update(txg, |record| {
                let links = record.u64(ZplAttribute::Links);
                assert!(links > 1, "a node that stays has another name");
                record.put(ZplAttribute::Links, links - 1)?;
                changed(record, now)
            }),
            Fate::Goes => {
                let has_names = node.with(|record| record.u64(ZplAttribute::Links)) > 1 && !node.is_directory();
                assert!(!has_names, "a node that is freed at once has lost its last name");
                assert_eq!(node.opens(), 0, "nobody has a node open that is freed at once");
                assert!(is_small(&node.object), "what is freed at once is of few pieces");
                node.set_gone();
                node.object.free(txg);
                Ok(())
            }
            Fate::Queued(mut zap, _turn) => {
                zap.flush(txg).await?;
                self.shared.objset.count(|stats| stats.unlinked(1, 0));
                node.update(txg, |record| {
                    record.put(ZplAttribute::Links, 0)?;
                    changed(record, now)
                })?;
                debug_assert_eq!(node.word(ZplAttribute::Links), 0, "what is in the queue has no name");
                if self.is_kept(node) {
                    self.keep(node);
                } else if node.opens() == 0 {
                    self.note_garbage(node.id);
                }
                Ok(())
            }
        }
    }

    /// The node that a name leads to, or nothing if it leads elsewhere by now.
    pub(crate) async fn node_at(
        &self,
        directory: &Node,
        name: &[u8],
        entry: DirEntry,
    ) -> Result<Option<Arc<Node>>, ZplError> {
        match self.node(entry.object).await {
            Ok(node) => Ok(Some(node)),
            Err(error) => match self.entry(directory, name).await? {
                Some(again) if again == entry => Err(error),
                _ => Ok(None),
            },
        }
    }

    /// # Errors
    /// A flag forbids taking away this node's name in this directory.
    pub(crate) fn check_removable(&self, directory: &Node, node: &Node) -> Result<(), ZplError> {
        if !self.obeys_flags() {
            return Ok(());
        }
        let above = directory.with(|record| record.flags());
        let own = node.with(|record| record.flags());
        if own.contains(ZnodeFlags::IMMUTABLE) || above.contains(ZnodeFlags::IMMUTABLE) {
            return Err(ZplError::NotPermitted("immutable, or in an immutable directory"));
        }
        if own.contains(ZnodeFlags::APPEND_ONLY) || above.contains(ZnodeFlags::APPEND_ONLY) {
            return Err(ZplError::NotPermitted("only to be appended to, or in such a directory"));
        }
        if own.contains(ZnodeFlags::NO_UNLINK) {
            return Err(ZplError::NotPermitted("not to be unlinked"));
        }
        Ok(())
    }

    /// # Errors
    /// The directory has entries.
    pub(crate) async fn check_empty(&self, directory: &Node) -> Result<(), ZplError> {
        match Zap::open(directory.object.clone()).await?.entry_count()? {
            0 => Ok(()),
            _ => Err(ZplError::NotEmpty),
        }
    }

    /// Takes away a name of something that is no directory. If it was the last name and the object is not open, the object is freed.
    ///
    /// # Errors
    /// There is no such name, it leads to a directory, or a flag forbids it.
    #[boxed]
    pub async fn unlink(&self, parent: ObjectId, name: &[u8]) -> Result<(), ZplError> {
        self.remove(parent, name, false).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is no such directory, it has entries, or a flag forbids it.
    #[boxed]
    pub async fn rmdir(&self, parent: ObjectId, name: &[u8]) -> Result<(), ZplError> {
        self.remove(parent, name, true).await
    }

    #[boxed]
    async fn remove(&self, parent: ObjectId, name: &[u8], directory: bool) -> Result<(), ZplError> {
        let parent = self.node(parent).await?;
        loop {
            let entry = self.entry(&parent, name).await?.ok_or_else(|| missing(name))?;
            let Some(node) = self.node_at(&parent, name, entry).await? else { continue };
            if node.id == parent.id {
                return Err(ZplError::Invalid("a directory that is its own entry"));
            }
            let nodes = in_order(&[&parent, &node]);
            let _guards = lock_all(&nodes).await?;
            if self.entry(&parent, name).await? != Some(entry) {
                continue;
            }
            return self.remove_locked(&parent, name, &node, directory).await;
        }
    }

    async fn remove_locked(
        &self,
        parent: &Node,
        name: &[u8],
        node: &Arc<Node>,
        is_directory: bool,
    ) -> Result<(), ZplError> {
        assert_ne!(parent.id, node.id, "a directory is not removed from itself");
        node.check_there()?;
        match (is_directory, node.is_directory()) {
            (true, false) => return Err(ZplError::NotDirectory),
            (false, true) => return Err(ZplError::IsDirectory),
            _ => {}
        }
        self.check_removable(parent, node)?;
        if is_directory {
            self.check_empty(node).await?;
        }
        let mut zap = self.in_use()?.zaps.open(&parent.object).await?;
        zap.remove(name).await?;
        let fate = self.fate(node).await?;
        let mut tx = self.begin(Cost::default().with_entries(2).with_objects(1).that_frees()).await?;
        let (txg, now) = (tx.txg(), self.now());
        parent.update(txg, |record| {
            record.put(ZplAttribute::Size, record.u64(ZplAttribute::Size).saturating_sub(1))?;
            let links = record.u64(ZplAttribute::Links).saturating_sub(u64::from(is_directory));
            record.put(ZplAttribute::Links, links)?;
            touch(record, now)
        })?;
        {
            let _entries = parent.in_use()?.entries.write().await;
            zap.flush(txg).await?;
        }
        self.in_use()?.zaps.keep(zap);
        let is_last = !matches!(fate, Fate::Stays);
        self.apply_fate(fate, node, txg, now).await?;
        if is_last {
            tx.forget(node.id);
        }
        let (directory, name) = (parent.id, name.into());
        tx.log(if is_directory { Record::Rmdir { directory, name } } else { Record::Remove { directory, name } });
        Ok(())
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// It is a directory, has no name left, or would get into another project; or the name is there already.
    #[boxed]
    pub async fn link(&self, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<Attributes, ZplError> {
        check_name(name)?;
        let (node, parent) = (self.node(id).await?, self.node(parent).await?);
        if node.is_directory() {
            return Err(ZplError::NotPermitted("a directory"));
        }
        let nodes = in_order(&[&node, &parent]);
        let _guards = lock_all(&nodes).await?;
        node.check_there()?;
        self.check_parent(&parent)?;
        self.check_project(&parent, &node)?;
        let (links, flags) = node.with(|record| (record.u64(ZplAttribute::Links), record.flags()));
        if links == 0 {
            return Err(ZplError::NoEntry);
        }
        if self.obeys_flags() && flags.intersects(ZnodeFlags::IMMUTABLE | ZnodeFlags::APPEND_ONLY) {
            return Err(ZplError::NotPermitted("immutable, or only to be appended to"));
        }
        let mut zap = self.in_use()?.zaps.open(&parent.object).await?;
        if zap.lookup(name).await?.is_some() {
            self.in_use()?.zaps.keep(zap);
            return Err(ZplError::Exists);
        }
        zap.insert(name, &entry_value(node.id, node.mode())?).await?;
        let mut tx = self.begin(Cost::default().with_entries(1).with_objects(1)).await?;
        let (txg, now) = (tx.txg(), self.now());
        node.update(txg, |record| {
            record.put(ZplAttribute::Links, links.saturating_add(1))?;
            record.put(ZplAttribute::Parent, parent.id.0)?;
            changed(record, now)
        })?;
        parent.update(txg, |record| {
            record.put(ZplAttribute::Size, record.u64(ZplAttribute::Size).saturating_add(1))?;
            touch(record, now)
        })?;
        let entries = parent.in_use()?.entries.write().await;
        zap.flush(txg).await?;
        drop(entries);
        self.in_use()?.zaps.keep(zap);
        tx.log(Record::Link { directory: parent.id, object: node.id, name: name.into() });
        node.attributes()
    }

    /// # Errors
    /// Nodes that get into this directory must be of its project, and this node is not.
    pub(crate) fn check_project(&self, directory: &Node, node: &Node) -> Result<(), ZplError> {
        let project = |node: &Node| node.word(ZplAttribute::Projid);
        let inherits = directory.with(|record| record.flags()).contains(ZnodeFlags::PROJECT_INHERIT);
        let is_foreign = self.obeys_flags() && inherits && project(directory) != project(node);
        if is_foreign { Err(ZplError::CrossDevice) } else { Ok(()) }
    }
}

/// Whether a node of this kind counts as a link of its directory.
pub(crate) fn counts(node: &Node) -> u64 {
    u64::from(node.is_directory())
}
