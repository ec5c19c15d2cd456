//! The places of datasets in the mount, and which of them are open.
//!
//! A pool in use changes by commands of this process alone. So a command that creates, destroys, renames or sets properties of datasets
//! calls [`Tree::refresh`], and the kernel is told exactly which names have changed; it need not look them up again from time to time.
//! Datasets that are to be destroyed leave the mount before ([`Tree::release_datasets`]), as OpenZFS unmounts them; if one of them is in
//! use, the mount keeps all of them.
//!
//! A pool may have thousands of datasets, and their properties are read between two changes of the pool. So a command names those that it
//! has changed, and no others are read again; the places of all are then worked out in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_dsl::name::is_at_or_below;
use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Why};
use cenote_taskq::boxed;
use cenote_zpl::Forbidden;

use super::Tree;
use crate::grafts::Named;
use crate::layout::{CONTROL_NAME, Part, Placed, arranged};
use crate::node::Place;
use crate::server::NodeId;
use crate::slots::{LIVE_MAX, Slot};

/// How long the client may take to say that it has forgotten what it was told to forget.
const FORGET_TIME_MAX: Duration = Duration::from_secs(2);
/// How long it may take to hand over what programs have changed by mappings. A disk may be slow; a pool that is full or suspended may never
/// take it.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const FORGET_POLL: Duration = Duration::from_millis(10);

impl Tree {
    /// Shows datasets where they are now, and obeys their properties as they are now. `changed` are the datasets that were made, set,
    /// renamed (the name before, and the name now) or destroyed; they and those below them are looked at again, and no others.
    ///
    /// # Errors
    /// The mounted dataset is gone, or the datasets cannot be read: all is shown as before.
    #[boxed]
    pub async fn refresh(&self, changed: &[String]) -> Result<(), OpenError> {
        let _turn = self.shared.placing.lock().await;
        self.place(&Part::below(changed), &[]).await
    }

    /// Places all datasets for the first time.
    pub(super) async fn show_all(&self) -> Result<(), OpenError> {
        let _turn = self.shared.placing.lock().await;
        self.place(&Part::All, &[]).await
    }

    /// Has datasets and those below them leave the mount, so that they can be destroyed; [`Self::refresh`] shows those that are
    /// there still. If one of them is in use, all stay, and its name is returned: the mounted dataset itself is in use for as long as it is
    /// mounted.
    #[boxed]
    pub async fn release_datasets(&self, names: &[String]) -> Result<Option<String>, OpenError> {
        let _turn = self.shared.placing.lock().await;
        if self.shared.source.is_frozen() {
            return Ok(None);
        }
        let top = self.dataset();
        if names.iter().any(|name| is_at_or_below(&top, name)) {
            return Ok(Some(top));
        }
        let slots: Vec<_> = names.iter().flat_map(|name| self.shared.slots.within(name)).collect();
        if slots.is_empty() {
            return Ok(None);
        }
        let unchanged = Part::below(&[]);
        self.place(&unchanged, names).await?;
        let handle = self.shared.source.handle();
        let begun = handle.now();
        let mut used = slots;
        loop {
            let mut still = Vec::new();
            for slot in used {
                if !slot.close_unused().await {
                    still.push(slot);
                }
            }
            // A dataset that is in use holds those around it.
            let Some(innermost) =
                still.iter().map(|slot| slot.dataset().name()).max_by_key(|name| name.matches('/').count())
            else {
                return Ok(None);
            };
            if handle.now() - begun > FORGET_TIME_MAX {
                self.place(&unchanged, &[]).await?;
                return Ok(Some(innermost));
            }
            used = still;
            handle.sleep(FORGET_POLL).await;
        }
    }

    /// Releases snapshots that are about to be destroyed, as far as they are not in use. The kernel is told to forget its nodes of them,
    /// which may take a moment: call this again until they are released.
    #[boxed]
    pub async fn let_go(&self, snapshots: &BTreeSet<ObjectId>) {
        let mut slots = self.shared.slots.snapshots();
        slots.retain(|slot| snapshots.contains(&slot.dataset().object) && !slot.has_open_file());
        let name = |slot: &Arc<Slot>| Some((slot.above(), slot.dataset().snapshot.clone()?.into_bytes()));
        self.tell(slots.iter().filter_map(name).collect(), Vec::new()).await;
        for slot in slots {
            slot.let_go().await;
        }
    }

    /// The datasets as they are now, of which those of a part have changed: the mounted one, and all that are nested in it.
    async fn surveyed(&self, changed: &Part) -> Result<(Placed, Vec<Placed>), OpenError> {
        let shared = &*self.shared;
        // If this fails, or its caller gives up, all datasets are looked at the next time.
        let known = shared.known.lock().take();
        // A property that is set above the mounted dataset may move all others.
        let (mut all, changed) = match known {
            Some(known) if !changed.has(&self.dataset()) => (known, changed),
            _ => (Vec::new(), &Part::All),
        };
        let mut survey = shared.source.survey(&shared.slot.dataset(), shared.layout, changed).await?;
        survey.notes.drain(..).for_each(|text| self.note(text));
        all.retain(|placed| !changed.has(&placed.dataset.dir.name));
        all.append(&mut survey.below);
        *shared.known.lock() = Some(all.clone());
        Ok((survey.top, all))
    }

    /// Places the datasets as they are now, of which those of a part have changed, but those at and below `without`.
    async fn place(&self, changed: &Part, without: &[String]) -> Result<(), OpenError> {
        let shared = &*self.shared;
        let (top, mut below) = self.surveyed(changed).await?;
        below.retain(|placed| !without.iter().any(|name| is_at_or_below(&placed.dataset.dir.name, name)));
        let below = arranged(below, |text| self.note(text));
        let mut forbidden = top.properties.forbidden;
        for placed in &below {
            // Each of them says for itself whether it may be written; the kernel has one set of the other flags for the mount.
            forbidden = forbidden.or(Forbidden { write: false, ..placed.properties.forbidden });
        }
        *shared.forbidden.lock() = forbidden;
        let before = self.grafts();
        // If the dataset is suspended this waits.
        let mounted = shared.slot.moving().await;
        let mounted = mounted.ok_or_else(|| OpenError::Refused(self.dataset(), Why::Lost))?;
        let now = before.resolved(&shared.source, &shared.slots, &mounted, &below, &mut |text| self.note(text)).await;
        let changed: Vec<Named> = before.named().symmetric_difference(&now.named()).cloned().collect();
        let placed: BTreeSet<u16> = now.named().iter().filter_map(|(.., node)| root_slot(*node)).collect();
        *shared.grafts.write() = now.into();
        shared.slots.retire_others(&placed);
        if shared.source.is_frozen() {
            return Ok(());
        }
        let properties: BTreeMap<_, _> =
            std::iter::once(&top).chain(&below).map(|placed| (placed.dataset.object, placed.properties)).collect();
        shared.slot.set_dataset(top.dataset);
        // Roots whose `.zfs` came, went, or is listed otherwise.
        let mut roots = Vec::new();
        if mounted.obey(top.properties) {
            roots.push(NodeId::ROOT);
        }
        drop(mounted);
        for index in placed {
            let Some(slot) = shared.slots.at(index) else { continue };
            if let (Some(zfsvfs), Some(properties)) = (slot.opened(), properties.get(&slot.dataset().object))
                && zfsvfs.obey(*properties)
            {
                roots.push(slot.root);
            }
        }
        for slot in shared.slots.snapshots() {
            if let (Some(zfsvfs), Place::SnapshotRoot { slot: head, .. }) = (slot.opened(), Place::of(slot.root))
                && let Some(head) = shared.slots.at(head)
                && let Some(properties) = properties.get(&head.dataset().object)
            {
                zfsvfs.obey(*properties);
            }
        }
        let heads: Vec<_> = std::iter::once(Arc::clone(&shared.slot)).chain(self.placed_slots()).collect();
        let (mut names, mut listings) = self.changed_snapshots(&heads).await;
        listings.extend(changed.iter().map(|(parent, ..)| *parent).collect::<BTreeSet<_>>());
        names.extend(changed.into_iter().map(|(parent, name, _)| (parent, name)));
        names.extend(roots.iter().map(|root| (*root, CONTROL_NAME.to_vec())));
        listings.extend(roots);
        self.tell(names, listings).await;
        self.open_some().await;
        Ok(())
    }

    /// The datasets that are shown nested in the mounted one, and the directories that lead to them from there.
    #[must_use]
    pub fn nested_datasets(&self) -> Vec<(String, PathBuf)> {
        let known = self.shared.known.lock().clone().unwrap_or_default();
        let path = |placed: &Placed| placed.path.iter().map(|part| OsStr::from_bytes(part)).collect();
        arranged(known, |_| ()).iter().map(|placed| (placed.dataset.name(), path(placed))).collect()
    }

    /// Checks that what is known of the datasets is what a look at all of them finds. For tests: no command goes on meanwhile.
    ///
    /// # Errors
    /// They cannot be read.
    ///
    /// # Panics
    /// A dataset is shown at another place than its own, or by other properties.
    #[boxed]
    pub async fn audit(&self) -> Result<(), OpenError> {
        let shared = &*self.shared;
        let _turn = shared.placing.lock().await;
        let Some(known) = shared.known.lock().clone() else { return Ok(()) };
        let all = shared.source.survey(&shared.slot.dataset(), shared.layout, &Part::All).await?;
        let facts = |placed: Vec<Placed>| {
            let placed = arranged(placed, |_| ()).into_iter();
            let fact = |Placed { dataset, path, properties }: Placed| {
                format!("{} (object {}) at {path:?} with {properties:?}", dataset.name(), dataset.object.0)
            };
            placed.map(fact).collect::<Vec<_>>()
        };
        let names = |placed: &[Placed]| placed.iter().map(|placed| placed.dataset.name()).collect::<BTreeSet<_>>();
        assert_eq!(names(&known), names(&all.below), "the datasets that are known are those that there are");
        for (known, found) in facts(known).into_iter().zip(facts(all.below)) {
            assert_eq!(known, found, "a dataset is known as it is");
        }
        Ok(())
    }

    /// Reports a remark, unless it was.
    pub(crate) fn note(&self, text: String) {
        if !self.shared.noted.lock().contains(&text) {
            (self.shared.report)(&text);
            self.shared.noted.lock().insert(text);
        }
    }

    /// Has the client forget names that lead elsewhere now, and listings.
    pub(super) async fn tell(&self, names: Vec<(NodeId, Vec<u8>)>, listings: Vec<NodeId>) {
        let Some(client) = self.shared.client.get().cloned() else { return };
        if names.is_empty() && listings.is_empty() {
            return;
        }
        let told = self.shared.source.handle().spawn_blocking(move || {
            names.iter().for_each(|(parent, name)| client.forget_name(*parent, name));
            listings.into_iter().for_each(|directory| client.forget_content(directory));
        });
        drop(told.await);
    }

    /// All that was changed until now is on disk: the client asks anew for the space of files that it was told of meanwhile.
    #[boxed]
    pub async fn synced(&self) {
        let passing = std::mem::take(&mut *self.shared.passing.lock());
        let Some(client) = self.shared.client.get().cloned().filter(|_| !passing.is_empty()) else { return };
        let told = self.shared.source.handle().spawn_blocking(move || {
            passing.into_iter().for_each(|node| client.forget_attributes(node));
        });
        drop(told.await);
    }

    /// Has the client hand over what programs have changed by mappings; it is given up on after a moment, where a pool takes no writes.
    pub(crate) async fn hand_over(&self) {
        let Some(client) = self.shared.client.get().cloned() else { return };
        if !self.shared.source.is_frozen() {
            let handle = self.shared.source.handle();
            drop(handle.timeout(HAND_OVER_TIME_MAX, handle.spawn_blocking(move || client.hand_over())).await);
        }
    }

    /// Opens the nested datasets, as far as so many are kept open: so a dataset that cannot be changed is reported now, and not at the
    /// first look-up. Datasets that are not placed any more are closed if they are not in use.
    async fn open_some(&self) {
        let shared = &*self.shared;
        let slots: Vec<_> = self.placed_slots();
        for slot in slots.iter().take(LIVE_MAX) {
            if let Err(error) = shared.slots.open(&shared.source, slot).await {
                self.note(error.to_string());
            }
        }
        for (slot, zfsvfs) in shared.slots.live() {
            drop(zfsvfs);
            if slot.is_gone() {
                slot.close_unused().await;
            }
        }
    }

    fn placed_slots(&self) -> Vec<Arc<Slot>> {
        let named = self.grafts().named();
        named.iter().filter_map(|(.., node)| self.shared.slots.at(root_slot(*node)?)).collect()
    }
}

fn root_slot(node: NodeId) -> Option<u16> {
    match Place::of(node) {
        Place::Root { slot } => Some(slot),
        _ => None,
    }
}
