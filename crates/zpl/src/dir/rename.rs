//! Renaming: within a directory, between directories, over what is there, and two names exchanged.

use std::sync::Arc;

use cenote_dmu::Zap;
use cenote_dmu::tx::Cost;
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zil::{Rename, RenameKind, Tx as Record};
use cenote_taskq::BoxFuture;

use super::create::NewNode;
use super::entry::{check_name, entry_value};
use super::remove::{Fate, counts, in_order, lock_all};
use crate::filesystem::FileSystem;
use crate::names::missing;
use crate::node::Node;
use crate::record::{Origin, changed, touch};
use crate::{FileKind, ZplError};

/// Directories that stand above each other at most, before a loop is supposed.
const DEPTH_MAX: usize = 1 << 20;

/// The treatment of a node that has the new name already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced, if it may be.
    #[default]
    Replace,
    /// There must be none (`RENAME_NOREPLACE`).
    NoReplace,
    /// It gets the old name (`RENAME_EXCHANGE`).
    Exchange,
}

/// The two names, each in its directory.
struct Ends<'a> {
    from: Arc<Node>,
    from_name: &'a [u8],
    to: Arc<Node>,
    to_name: &'a [u8],
}

impl Ends<'_> {
    fn is_one_directory(&self) -> bool {
        self.from.id == self.to.id
    }

    fn record(&self, kind: RenameKind) -> Record<'_> {
        Record::Rename(Rename {
            kind,
            source_directory: self.from.id,
            target_directory: self.to.id,
            source_name: self.from_name.into(),
            target_name: self.to_name.into(),
        })
    }
}

impl FileSystem {
    /// Gives what a name leads to another name.
    ///
    /// # Errors
    /// As POSIX has them: there is no such name, a directory would come to lie below itself, a directory that has entries or
    /// something of another kind would be replaced, and so on.
    pub fn rename<'a>(
        &'a self,
        from: ObjectId,
        from_name: &'a [u8],
        to: ObjectId,
        to_name: &'a [u8],
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<(), ZplError>> {
        self.rename_leaving(from, from_name, to, to_name, mode, None)
    }

    /// As [`Self::rename`], but with a new node (`left`, a whiteout from the intent log) under the old name.
    pub(crate) fn rename_leaving<'a>(
        &'a self,
        from: ObjectId,
        from_name: &'a [u8],
        to: ObjectId,
        to_name: &'a [u8],
        mode: RenameMode,
        left: Option<(NewNode, Origin)>,
    ) -> BoxFuture<'a, Result<(), ZplError>> {
        debug_assert!(left.is_none() || mode == RenameMode::Replace, "a name that is exchanged is in use");
        Box::pin(async move {
            check_name(from_name)?;
            check_name(to_name)?;
            let ends = Ends { from: self.node(from).await?, from_name, to: self.node(to).await?, to_name };
            let mut moves = None;
            loop {
                let entry = self.entry(&ends.from, from_name).await?.ok_or_else(|| missing(from_name))?;
                let other = self.entry(&ends.to, to_name).await?;
                match (mode, other) {
                    (RenameMode::NoReplace, Some(_)) => return Err(ZplError::Exists),
                    (RenameMode::Exchange, None) => return Err(ZplError::NoEntry),
                    // Two names of one file, or the same name twice: nothing is to be done.
                    (_, Some(other)) if other.object == entry.object => return Ok(()),
                    _ => {}
                }
                let Some(node) = self.node_at(&ends.from, from_name, entry).await? else { continue };
                let over = match other {
                    Some(other) => match self.node_at(&ends.to, to_name, other).await? {
                        Some(over) => Some(over),
                        None => continue,
                    },
                    None => None,
                };
                let moves_directory = node.is_directory()
                    || (mode == RenameMode::Exchange && over.as_ref().is_some_and(|over| over.is_directory()));
                if moves_directory && !ends.is_one_directory() && moves.is_none() {
                    moves = Some(self.in_use()?.renames.lock().await);
                    continue;
                }
                let mut all = vec![&ends.from, &ends.to, &node];
                all.extend(&over);
                let all = in_order(&all);
                let _guards = lock_all(&all).await?;
                let again = (self.entry(&ends.from, from_name).await?, self.entry(&ends.to, to_name).await?);
                if again != (Some(entry), other) {
                    continue;
                }
                return match (mode, &over) {
                    (RenameMode::Exchange, Some(over)) => self.exchange(&ends, &node, over).await,
                    _ => self.rename_locked(&ends, &node, over.as_ref(), left.as_ref()).await,
                };
            }
        })
    }

    /// # Errors
    /// The directory `to` is `node` or lies below it.
    async fn check_cycle(&self, node: &Node, to: &Node) -> Result<(), ZplError> {
        if !node.is_directory() {
            return Ok(());
        }
        let mut at = to.id;
        for _ in 0..DEPTH_MAX {
            if at == node.id {
                return Err(ZplError::Invalid("a directory would come to lie below itself"));
            }
            if at == self.root() {
                return Ok(());
            }
            let above = self.node(at).await?.with(|record| record.u64(ZplAttribute::Parent));
            at = ObjectId(above);
        }
        Err(ZplError::Corrupt { object: to.id.0, what: "directories that lie below each other".into() })
    }

    async fn check_ends(&self, ends: &Ends<'_>, node: &Node) -> Result<(), ZplError> {
        node.check_there()?;
        self.check_parent(&ends.from)?;
        self.check_parent(&ends.to)?;
        if node.id == ends.from.id || node.id == ends.to.id {
            return Err(ZplError::Invalid("a directory would come to lie below itself"));
        }
        self.check_removable(&ends.from, node)?;
        self.check_project(&ends.to, node)?;
        if ends.is_one_directory() {
            return Ok(());
        }
        self.check_cycle(node, &ends.to).await
    }

    async fn rename_locked(
        &self,
        ends: &Ends<'_>,
        node: &Node,
        over: Option<&Arc<Node>>,
        left: Option<&(NewNode, Origin)>,
    ) -> Result<(), ZplError> {
        self.check_ends(ends, node).await?;
        let mut fate = None;
        if let Some(over) = over {
            assert_ne!(node.id, over.id, "what is replaced is another node");
            over.check_there()?;
            match (node.is_directory(), over.is_directory()) {
                (true, false) => return Err(ZplError::NotDirectory),
                (false, true) => return Err(ZplError::IsDirectory),
                _ => {}
            }
            if over.id == ends.from.id {
                return Err(ZplError::NotEmpty);
            }
            self.check_removable(&ends.to, over)?;
            if over.is_directory() {
                self.check_empty(over).await?;
            }
            fate = Some(self.fate(over).await?);
        }
        let left = match left {
            Some((new, origin)) => {
                let kind =
                    FileKind::of_mode(u64::from(new.mode)).ok_or(ZplError::Invalid("a mode that names no kind"))?;
                if kind == FileKind::Directory {
                    return Err(ZplError::Invalid("a whiteout is no directory"));
                }
                Some((self.unborn(&ends.from, kind, new, self.now(), Some(*origin)).await?, origin.object))
            }
            None => None,
        };
        let value = entry_value(node.id, node.mode())?;
        let mut from = self.in_use()?.zaps.open(&ends.from.object).await?;
        match &left {
            Some((unborn, object)) => from.set(ends.from_name, &entry_value(*object, unborn.mode())?).await?,
            None => drop(from.remove(ends.from_name).await?),
        }
        let mut to = None;
        if ends.is_one_directory() {
            from.set(ends.to_name, &value).await?;
        } else {
            let mut zap = self.in_use()?.zaps.open(&ends.to.object).await?;
            zap.set(ends.to_name, &value).await?;
            to = Some(zap);
        }
        let mut cost = Cost::default().with_entries(3).with_objects(2);
        if fate.is_some() {
            cost = cost.that_frees();
        }
        let mut tx = self.begin(cost).await?;
        let (txg, now) = (tx.txg(), self.now());
        let entries = (u64::from(left.is_some()), 1);
        if let Some((unborn, _)) = left {
            let object = self.object_of(&unborn, txg)?;
            let attributes = unborn.attributes(&object, txg)?;
            self.in_use()?.nodes.add(object, attributes).await;
        }
        node.update(txg, |record| {
            record.put(ZplAttribute::Parent, ends.to.id.0)?;
            changed(record, now)
        })?;
        let directories = counts(node);
        let replaced = over.map_or((0, 0), |over| (1, counts(over)));
        assert_eq!(over.is_some(), fate.is_some(), "what is replaced has a fate");
        self.adjust(&ends.from, txg, entries, (0, directories)).await?;
        self.adjust(&ends.to, txg, (1, replaced.0), (directories, replaced.1)).await?;
        self.flush(&ends.from, txg, from).await?;
        if let Some(to) = to {
            self.flush(&ends.to, txg, to).await?;
        }
        if let (Some(over), Some(fate)) = (over, fate) {
            let is_last = !matches!(fate, Fate::Stays);
            self.apply_fate(fate, over, txg, now).await?;
            if is_last {
                tx.forget(over.id);
            }
        }
        tx.log_rename(node.id, ends.record(RenameKind::Plain));
        Ok(())
    }

    /// Counts entries and links that a directory has gained and lost.
    async fn adjust(
        &self,
        directory: &Node,
        txg: cenote_format::ids::Txg,
        entries: (u64, u64),
        links: (u64, u64),
    ) -> Result<(), ZplError> {
        let now = self.now();
        directory.update(txg, |record| {
            for (attribute, (more, less)) in [(ZplAttribute::Size, entries), (ZplAttribute::Links, links)] {
                record.put(attribute, record.u64(attribute).saturating_add(more).saturating_sub(less))?;
            }
            touch(record, now)
        })
    }

    async fn flush(&self, directory: &Node, txg: cenote_format::ids::Txg, mut zap: Zap) -> Result<(), ZplError> {
        let entries = directory.in_use()?.entries.write().await;
        zap.flush(txg).await?;
        drop(entries);
        self.in_use()?.zaps.keep(zap);
        Ok(())
    }

    async fn exchange(&self, ends: &Ends<'_>, node: &Node, over: &Node) -> Result<(), ZplError> {
        assert_ne!(node.id, over.id, "what is exchanged are two nodes");
        self.check_ends(ends, node).await?;
        over.check_there()?;
        if over.id == ends.from.id {
            return Err(ZplError::Invalid("a directory would come to lie below itself"));
        }
        self.check_removable(&ends.to, over)?;
        self.check_project(&ends.from, over)?;
        if !ends.is_one_directory() {
            self.check_cycle(over, &ends.from).await?;
        }
        let (first, second) = (entry_value(node.id, node.mode())?, entry_value(over.id, over.mode())?);
        let mut from = self.in_use()?.zaps.open(&ends.from.object).await?;
        from.set(ends.from_name, &second).await?;
        let mut to = None;
        if ends.is_one_directory() {
            from.set(ends.to_name, &first).await?;
        } else {
            let mut zap = self.in_use()?.zaps.open(&ends.to.object).await?;
            zap.set(ends.to_name, &first).await?;
            to = Some(zap);
        }
        let mut tx = self.begin(Cost::default().with_entries(2).with_objects(2)).await?;
        let (txg, now) = (tx.txg(), self.now());
        debug_assert!(node.id != ends.to.id && over.id != ends.from.id, "no directory comes to lie in itself");
        for (moved, directory) in [(node, &ends.to), (over, &ends.from)] {
            moved.update(txg, |record| {
                record.put(ZplAttribute::Parent, directory.id.0)?;
                changed(record, now)
            })?;
        }
        self.adjust(&ends.from, txg, (0, 0), (counts(over), counts(node))).await?;
        self.adjust(&ends.to, txg, (0, 0), (counts(node), counts(over))).await?;
        self.flush(&ends.from, txg, from).await?;
        if let Some(to) = to {
            self.flush(&ends.to, txg, to).await?;
        }
        tx.log_rename(node.id, ends.record(RenameKind::Exchange));
        Ok(())
    }
}
