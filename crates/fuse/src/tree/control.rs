//! `.zfs` and what is in it: the snapshots of a dataset, as they are now.

use std::sync::Arc;

use cenote_dmu::Zap;
use cenote_dsl::Dataset;
use cenote_format::dsl::dir_field;
use cenote_format::ids::ObjectId;
use cenote_inuse::OpenError;
use cenote_zpl::{FileKind, Time};

use super::{At, Tree};
use crate::listing::AFTER_CONTROL;
use crate::node::Place;
use crate::server::{DirItem, Entry, Errno, NodeId, Pin, Stat};
use crate::slots::{Slot, Slots};
use crate::zfsvfs::{made_directory, open_errno};

/// Names in the control directory.
const SNAPSHOTS_NAME: &[u8] = b"snapshot";
const SHARES_NAME: &[u8] = b"shares";

impl Tree {
    /// The dataset in a slot, if that has a control directory.
    pub(super) async fn with_control(&self, slot: u16) -> Result<At<'_>, Errno> {
        let at = self.at(slot).await?;
        if at.zfsvfs.has_control() { Ok(at) } else { Err(Errno::NOENT) }
    }

    pub(super) fn dsl(&self) -> Result<cenote_dsl::Dsl, Errno> {
        self.shared.source.dsl().map_err(|error| self.failed("look-up", NodeId::ROOT, &error, Errno::IO))
    }

    /// The snapshot `objset` of the dataset in `slot`, opened.
    pub(super) async fn at_snapshot(&self, slot: u16, objset: u64) -> Result<At<'_>, Errno> {
        let head = self.with_control(slot).await?;
        let dir = head.slot.dataset().dir.clone();
        // The name only serves messages; looking it up would take a walk over all snapshots.
        let name = known_name(&self.shared.slots, objset).unwrap_or_else(|| format!("#{objset}"));
        let found = self.dsl()?.dataset_object(ObjectId(objset), dir, Some(name)).await.map_err(|_| Errno::NOENT)?;
        check_snapshot(&head.slot, &found)?;
        self.snapshot(&head.slot, &found).await
    }

    async fn snapshot(&self, head: &Slot, snapshot: &Dataset) -> Result<At<'_>, Errno> {
        let objset = snapshot.object.0;
        let root = Place::SnapshotRoot { slot: head.index, objset }.node().ok_or(Errno::UCLEAN)?;
        let above = Place::Snapshots { slot: head.index }.node().ok_or(Errno::UCLEAN)?;
        let (slot, pin) = self
            .shared
            .slots
            .of_snapshot(snapshot, root, above)
            .ok_or_else(|| self.failed("opening", root, &"files of too many snapshots are in use", Errno::NFILE))?;
        self.nested(slot, pin).await
    }

    /// The objects and names of its snapshots. One that cannot be read does not hide the others.
    async fn snapshots(&self, slot: &Slot) -> Result<Vec<(ObjectId, String)>, Errno> {
        let found = self.dsl()?.snapshot_names(&slot.dataset()).await;
        found.map_err(|error| self.failed("listing snapshots", slot.root, &error, Errno::IO))
    }

    /// When a snapshot of the dataset was last made or destroyed, if the pool keeps that.
    async fn snapshots_changed(&self, slot: &Slot) -> Option<Time> {
        let dsl = self.shared.source.dsl().ok()?;
        let dir = dsl.mos().object(slot.dataset().dir.object).await.ok()?;
        if !dir.phys().object_type.is_zap() {
            return None;
        }
        let value = Zap::open(dir).await.ok()?.lookup(dir_field::SNAPSHOTS_CHANGED.as_bytes()).await.ok()??;
        let mut words = value.integers();
        Some(Time { seconds: words.next()?.cast_signed(), nanoseconds: words.next()? })
    }

    /// The attributes of the control directory and of the directories in it.
    pub(super) async fn control_stat(&self, node: NodeId) -> Result<Stat, Errno> {
        let at = self.shared.made_at;
        match Place::of(node) {
            Place::Control { slot } => {
                self.with_control(slot).await?;
                Ok(Stat { size_bytes: 0, ..made_directory(node.0, 0o777, 1, at) })
            }
            Place::Shares { slot } => {
                self.with_control(slot).await?;
                Ok(made_directory(node.0, 0o777, 2, at))
            }
            Place::Snapshots { slot } => {
                let head = self.with_control(slot).await?;
                let snapshots = self.snapshots(&head.slot).await?;
                let link_count = 2 + snapshots.len() as u64;
                // As OpenZFS has it: the beginning of time where the pool does not say.
                let changed = self.snapshots_changed(&head.slot).await.unwrap_or_default();
                Ok(Stat { link_count, modified: changed, changed, ..made_directory(node.0, 0o777, 2, at) })
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// Names of snapshots and listings that the client has to forget, because they changed since it was told. The slots of destroyed
    /// snapshots are given up.
    pub(super) async fn changed_snapshots(&self, heads: &[Arc<Slot>]) -> (Vec<(NodeId, Vec<u8>)>, Vec<NodeId>) {
        let mut names = Vec::new();
        for slot in self.shared.slots.snapshots() {
            let (snapshot, Place::SnapshotRoot { slot: head, .. }) = (slot.dataset(), Place::of(slot.root)) else {
                continue;
            };
            let (Some(head), Ok(dsl), Some(name)) =
                (self.shared.slots.at(head), self.shared.source.dsl(), snapshot.snapshot.as_deref())
            else {
                continue;
            };
            let dir = head.dataset().dir.clone();
            let is_it = |found: &Dataset| {
                // One that has become the snapshot of another head is not here any more.
                found.object == snapshot.object
                    && found.phys.guid == snapshot.phys.guid
                    && found.phys.dir == snapshot.phys.dir
            };
            let named = dsl.dataset(&format!("{}@{name}", dir.name)).await;
            if named.as_ref().is_ok_and(is_it) {
                continue;
            }
            names.push((slot.above(), name.as_bytes().to_vec()));
            if !dsl.dataset_object(snapshot.object, dir, None).await.as_ref().is_ok_and(is_it) {
                slot.destroyed();
            }
        }
        let listed = heads.iter().filter(|head| head.take_snapshots_listed());
        (names, listed.filter_map(|head| Place::Snapshots { slot: head.index }.node()).collect())
    }

    pub(super) async fn lookup_in_control(&self, slot: u16, name: &[u8]) -> Result<Entry, Errno> {
        self.with_control(slot).await?;
        let place = match name {
            SNAPSHOTS_NAME => Place::Snapshots { slot },
            SHARES_NAME => Place::Shares { slot },
            _ => return Err(Errno::NOENT),
        };
        self.entry_of_node(place.node().ok_or(Errno::NOENT)?).await
    }

    pub(super) async fn lookup_snapshot(&self, slot: u16, name: &[u8]) -> Result<Entry, Errno> {
        let head = self.with_control(slot).await?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        if name.contains(['@', '#', '/']) {
            return Err(Errno::NOENT);
        }
        let full = format!("{}@{name}", head.slot.dataset().dir.name);
        let found = self.dsl()?.dataset(&full).await.map_err(|error| {
            let error = OpenError::from(error);
            self.failed("look-up", head.slot.root, &error, open_errno(&error))
        })?;
        check_snapshot(&head.slot, &found)?;
        let at = self.snapshot(&head.slot, &found).await?;
        let filesystem = &at.zfsvfs.filesystem;
        let attributes = filesystem.attributes(filesystem.root()).await;
        self.entry(&at, &attributes.map_err(|error| self.zpl("attributes", at.slot.root, &error))?)
    }

    /// The entries of the control directory after `position`.
    pub(super) fn control_items(&self, slot: u16, position: u64) -> Vec<DirItem> {
        let all = [
            (AFTER_CONTROL + 1, SNAPSHOTS_NAME, Place::Snapshots { slot }),
            (AFTER_CONTROL + 2, SHARES_NAME, Place::Shares { slot }),
        ];
        let item = |(next, name, place): (u64, &[u8], Place)| {
            let node = place.node().filter(|_| position < next)?;
            Some(self.directory_item(name.to_vec(), node, next))
        };
        all.into_iter().filter_map(item).collect()
    }

    /// The snapshots of a dataset after `position`, which is that of a snapshot's object.
    pub(super) async fn snapshot_items(
        &self,
        slot: u16,
        position: u64,
        count_max: usize,
    ) -> Result<Vec<DirItem>, Errno> {
        let head = self.with_control(slot).await?;
        head.slot.snapshots_listed();
        let mut snapshots = self.snapshots(&head.slot).await?;
        snapshots.sort_unstable();
        let item = |(object, name): (ObjectId, String)| {
            let next = AFTER_CONTROL.checked_add(object.0).filter(|next| *next > position)?;
            let node = Place::SnapshotRoot { slot, objset: object.0 }.node()?;
            Some(self.directory_item(name.into_bytes(), node, next))
        };
        Ok(snapshots.into_iter().filter_map(item).take(count_max).collect())
    }

    /// An item of a listing for a directory that is named without being looked up.
    pub(super) fn directory_item(&self, name: Vec<u8>, node: NodeId, next: u64) -> DirItem {
        let pin = if matches!(&name[..], b"." | b"..") { Pin::NONE } else { self.shared.slots.pin(node) };
        DirItem { name, ino: node.0, kind: Some(FileKind::Directory), next, entry: None, pin }
    }
}

/// The name by which a snapshot was looked up.
fn known_name(slots: &Slots, objset: u64) -> Option<String> {
    slots.known(ObjectId(objset)).and_then(|slot| slot.dataset().snapshot.clone())
}

/// That a dataset is a snapshot of a head, as its number or name claims.
fn check_snapshot(head: &Slot, found: &Dataset) -> Result<(), Errno> {
    let head = head.dataset();
    if found.phys.dir != head.dir.object || found.object == head.object {
        return Err(Errno::NOENT);
    }
    Ok(())
}
