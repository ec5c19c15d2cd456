//! Trimming what was freed, by itself (the property `autotrim`).
//!
//! ```text
//! freed in txg T ─► free from T + 2 on, and noted (`cenote_metaslab`) ─► every `zfs_trim_txg_batch` txgs: held, the devices told, let go
//! ```
//! Ranges that are used again by then are not trimmed: what is told to a device is held, and held is only what is free on disk (as for `zpool trim`,
//! [`crate::jobs::leaf`]). Short ranges are left: `zpool trim` finds them. As in OpenZFS, devices below a `replacing` or a `spare` are left too.
//!
//! **Crash.** What was noted is forgotten.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::atomic::Ordering;
use cenote_taskq::{AsyncMutex, Class, Either, boxed, race};
use cenote_vdev::tree::{FreeWrite, VdevTree};

use super::shared::Shared;
use super::trimmed::Counts;
use crate::sync::Syncer;
use crate::sync::space::Space;
use crate::tunables::TrimTunables;

/// How often it is looked at whether a batch is due.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// A pool's trimming.
struct Autotrim {
    shared: Weak<Shared>,
    space: Weak<Space>,
    tunables: TrimTunables,
    /// Devices that cannot be told.
    deaf: BTreeSet<Guid>,
}

impl Shared {
    /// Trims what is freed from now on, while the property has it so.
    pub(super) fn begin_autotrim(self: &Arc<Self>, syncer: &Syncer) {
        let space = &syncer.blocks.space;
        let tunables = space.trim_tunables.get().copied().unwrap_or_default();
        let autotrim =
            Autotrim { shared: Arc::downgrade(self), space: Arc::downgrade(space), tunables, deaf: BTreeSet::new() };
        let autotrim = Arc::new(AsyncMutex::new(autotrim));
        let (handle, events) = (self.handle.clone(), self.events.clone());
        let _ = space.trim_begins.set(Box::new(move || {
            let (autotrim, events, clock) = (autotrim.clone(), events.clone(), handle.clone());
            handle.detach(Class::Background, async move {
                // One at a time: the next one begins where this one is not wanted any more.
                let mut autotrim = autotrim.lock().await;
                let mut last = Txg(0);
                while let Either::Left(()) = race(clock.sleep(LOOK_AFTER), events.closed()).await {
                    if autotrim.look(&mut last).await != Some(true) {
                        return;
                    }
                }
            });
        }));
        if space.with(|allocator| allocator.notes_freed()) {
            space.set_autotrim(true);
        }
    }
}

impl Autotrim {
    /// Trims if a batch is due. False if it is not wanted any more; none if the pool has gone.
    async fn look(&mut self, last: &mut Txg) -> Option<bool> {
        let (shared, space) = (self.shared.upgrade()?, self.space.upgrade()?);
        if !space.with(|allocator| allocator.notes_freed()) {
            return Some(false);
        }
        let synced = shared.txgs.synced_txg();
        if synced.0 < last.0.saturating_add(self.tunables.zfs_trim_txg_batch) {
            return Some(true);
        }
        assert!(synced >= *last, "txgs go on");
        *last = synced;
        let tree = shared.tree.upgrade()?;
        for (vdev, range) in space.with(|allocator| allocator.take_freed()) {
            if shared.events.is_closed() {
                return None;
            }
            self.trim(&shared, &space, &tree, vdev, range).await;
        }
        Some(true)
    }

    /// Trims what is still free of a range.
    #[boxed]
    async fn trim(
        &mut self,
        shared: &Shared,
        space: &Arc<Space>,
        tree: &Arc<VdevTree>,
        vdev: VdevId,
        range: Range<u64>,
    ) {
        let leaves = leaves_of(tree, vdev);
        let counts = &shared.autotrim;
        if range.end - range.start < self.tunables.zfs_trim_extent_bytes_min {
            counts.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut at = range.start;
        while at < range.end {
            let (piece, held) = match mutant::is(Mutant::AutotrimEarly) {
                true => (range.clone(), None),
                false => match space.hold_free(vdev, at, range.end - at).await {
                    Some(held) => (held.range(), Some(held)),
                    None => return,
                },
            };
            if piece.start >= range.end {
                return;
            }
            assert!(piece.start >= at && piece.end > at, "a piece that is held lies further on");
            for leaf in leaves.iter().filter(|leaf| !self.deaf.contains(leaf)).copied().collect::<Vec<_>>() {
                self.tell(counts, tree, vdev, leaf, piece.clone()).await;
            }
            drop(held);
            at = piece.end;
        }
    }

    /// Tells a device of the part of a piece that it has.
    async fn tell(&mut self, counts: &Counts, tree: &Arc<VdevTree>, vdev: VdevId, leaf: Guid, piece: Range<u64>) {
        // A raidz that is expanded meanwhile has its sectors elsewhere.
        let Some(_kept) = tree.keep_vdevs() else { return };
        for part in tree.parts_of_leaf(vdev, leaf, piece).into_iter().flatten() {
            self.tell_part(counts, tree, leaf, part).await;
        }
    }

    async fn tell_part(&mut self, counts: &Counts, tree: &Arc<VdevTree>, leaf: Guid, part: Range<u64>) {
        if part.end.saturating_sub(part.start) < self.tunables.zfs_trim_extent_bytes_min {
            counts.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut at = part.start;
        while at < part.end {
            let len = (part.end - at).min(self.tunables.zfs_trim_extent_bytes_max);
            assert!(len > 0 && at + len <= part.end, "a device is told of what is held, and of nothing beside it");
            match tree.write_free(leaf, at, FreeWrite::Discard(len)).await {
                Ok(()) => {
                    counts.extents.fetch_add(1, Ordering::Relaxed);
                    counts.bytes.fetch_add(len, Ordering::Relaxed);
                }
                Err(error) => {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                    if error.kind() == io::ErrorKind::Unsupported {
                        self.deaf.insert(leaf);
                    }
                    return;
                }
            }
            at += len;
        }
    }
}

/// The devices of a top-level vdev that are its own children, or itself, and can be written.
fn leaves_of(tree: &VdevTree, vdev: VdevId) -> Vec<Guid> {
    let status = tree.status();
    let Some(top) = status.children.iter().find(|top| top.top == vdev) else { return Vec::new() };
    if top.children.is_empty() {
        return vec![top.guid];
    }
    let leaves = top.children.iter().filter(|child| child.children.is_empty() && child.state.is_readable());
    leaves.map(|leaf| leaf.guid).collect()
}
