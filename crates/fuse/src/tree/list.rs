//! Listings: the entries that a mount adds to a directory, and the directory's own.

use cenote_taskq::map_concurrent;
use cenote_zpl::{Cursor, DirEntry, Listed};

use super::{Found, Tree};
use crate::grafts::Graft;
use crate::layout::CONTROL_NAME;
use crate::listing::{AFTER_ABOVE, AFTER_CONTROL, AFTER_SELF, Position};
use crate::node::Place;
use crate::server::{DirItem, Errno, NodeId, Pin};

/// Attributes fetched at once for one listing.
const STATS_AT_ONCE: usize = 16;

impl Tree {
    /// The entries that come before a directory's own, from `position` on; of a directory that no dataset has, all entries.
    pub(super) async fn items_before(
        &self,
        node: NodeId,
        position: u64,
        count_max: usize,
    ) -> Result<Vec<DirItem>, Errno> {
        let mut items = self.head_items(node, position).await?;
        match Place::of(node) {
            Place::Control { slot } => items.extend(self.control_items(slot, position)),
            Place::Snapshots { slot } => items.extend(self.snapshot_items(slot, position, count_max).await?),
            _ => {
                if let Some(graft) = self.graft_at(node) {
                    items.extend(self.added_items(node, &graft, position).await?);
                }
            }
        }
        items.truncate(count_max.max(1));
        Ok(items)
    }

    async fn head_items(&self, node: NodeId, position: u64) -> Result<Vec<DirItem>, Errno> {
        let mut items = Vec::new();
        if position >= AFTER_CONTROL {
            return Ok(items);
        }
        let (ino, above, control) = self.around(node).await?;
        if position < AFTER_SELF {
            items.push(self.directory_item(b".".to_vec(), NodeId(ino), AFTER_SELF));
        }
        if position < AFTER_ABOVE {
            items.push(self.directory_item(b"..".to_vec(), above, AFTER_ABOVE));
        }
        if let Some(control) = control {
            items.push(self.directory_item(CONTROL_NAME.to_vec(), control, AFTER_CONTROL));
        }
        Ok(items)
    }

    /// A directory's inode number, the node above it, and its `.zfs` if that is listed.
    async fn around(&self, node: NodeId) -> Result<(u64, NodeId, Option<NodeId>), Errno> {
        match Place::of(node) {
            Place::Control { slot } => Ok((node.0, self.at(slot).await?.slot.root, None)),
            Place::Shares { slot } | Place::Snapshots { slot } => {
                Ok((node.0, Place::Control { slot }.node().unwrap_or(NodeId::ROOT), None))
            }
            Place::Virtual { .. } => {
                let above = self.graft_at(node).map_or(NodeId::ROOT, |graft| graft.above);
                Ok((node.0, above, None))
            }
            Place::Root { .. } | Place::SnapshotRoot { .. } | Place::Object { .. } => {
                let found = self.object(node, Errno::NOTDIR).await?;
                let (_, ino) = self.node_of(&found, found.object)?;
                if node == found.slot.root {
                    let control = Place::Control { slot: found.slot.index }.node();
                    let above = if node == NodeId::ROOT { NodeId(ino) } else { found.slot.above() };
                    return Ok((ino, above, control.filter(|_| found.zfsvfs.lists_control())));
                }
                let attributes = found.zfsvfs.filesystem.attributes(found.object).await;
                let attributes = attributes.map_err(|error| self.zpl("listing", node, &error))?;
                let above = self.node_of(&found, attributes.parent);
                Ok((ino, above.map_or(NodeId(attributes.parent.0), |(_, ino)| NodeId(ino)), None))
            }
        }
    }

    /// Datasets that stand in a directory under names that it does not have itself, after `position`, which is that of a graft's number.
    async fn added_items(&self, node: NodeId, graft: &Graft, position: u64) -> Result<Vec<DirItem>, Errno> {
        let found = self.find(node).await?;
        let mut items = Vec::new();
        for (number, name, child) in self.grafts().children(graft) {
            let next = AFTER_CONTROL + 1 + u64::from(number);
            if next <= position {
                continue;
            }
            if let Some(found) = &found
                && found.zfsvfs.filesystem.lookup(found.object, &name).await.is_ok()
            {
                continue;
            }
            items.push(self.directory_item(name, child, next));
        }
        Ok(items)
    }

    /// A directory's own entries after `position`.
    pub(super) async fn own_items(
        &self,
        node: NodeId,
        position: Position,
        count_max: usize,
        with_entries: bool,
    ) -> Result<Vec<DirItem>, Errno> {
        let mut cursor = match position {
            Position::Head(_) => Cursor::START,
            Position::Zap(cursor) => cursor,
        };
        let found = self.object(node, Errno::NOTDIR).await?;
        let graft = self.graft_at(node);
        loop {
            let listed = found.zfsvfs.filesystem.list_with_odd(found.object, cursor, count_max).await;
            let Listed { entries, odd } = listed.map_err(|error| self.zpl("listing", node, &error))?;
            if let Some(odd) = odd {
                self.note(format!("listing of inode {:#x}: {odd}", node.0));
            }
            let Some(last) = entries.last() else { return Ok(Vec::new()) };
            cursor = last.next;
            let items = map_concurrent(STATS_AT_ONCE, entries, |entry| {
                let covered = graft.as_ref().and_then(|graft| graft.children.get(&entry.name)).copied();
                self.own_item(node, &found, entry, covered, with_entries)
            });
            let items: Vec<_> = items.await.into_iter().collect::<Result<_, _>>()?;
            let items: Vec<_> = items.into_iter().flatten().collect();
            // No items would mean the end.
            if !items.is_empty() {
                return Ok(items);
            }
        }
    }

    async fn own_item(
        &self,
        directory: NodeId,
        found: &Found<'_>,
        entry: DirEntry,
        covered: Option<NodeId>,
        with_entry: bool,
    ) -> Result<Option<DirItem>, Errno> {
        let Some(next) = Position::number(entry.next) else {
            let what = "too many names of one hash: those beyond are not listed";
            self.failed("listing", directory, &what, Errno::UCLEAN);
            return Ok(None);
        };
        if let Some(node) = covered {
            return Ok(Some(self.directory_item(entry.name, node, next)));
        }
        // An object that no file can be is listed by its number, so that it does not hide the others; looking it up says what is wrong.
        let (node, ino) = match Self::may_be_file(found, entry.object) {
            true => self.node_of(found, entry.object)?,
            false => {
                let ino = entry.object.0.max(1);
                let kind = entry.kind;
                return Ok(Some(DirItem { name: entry.name, ino, kind, next, entry: None, pin: Pin::NONE }));
            }
        };
        let mut item = DirItem { name: entry.name, ino, kind: entry.kind, next, entry: None, pin: Pin::NONE };
        if with_entry || item.kind.is_none() {
            // A name whose object cannot be read, or was removed meanwhile, is listed all the same; looking it up says what is wrong.
            if let Ok(attributes) = found.zfsvfs.filesystem.attributes(entry.object).await {
                item.kind = Some(attributes.kind);
                item.entry = if with_entry { self.entry(found, &attributes).ok() } else { None };
            }
            if with_entry && item.entry.is_none() {
                item.pin = self.shared.slots.pin(node);
            }
        }
        Ok(Some(item))
    }
}
