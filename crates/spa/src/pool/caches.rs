//! Cache devices of a pool in use.
//!
//! ```text
//! MOS list ─┐
//! disks ────┴─► wanted ─► compared with those in use: new ones are opened and looked through in the background, others let go
//! ```
//! A pool that is written by hand, for one command, has none in use; neither has one that is opened to be read. A removal takes the device out of use
//! first. `offline` and `online` are remembered until the pool is closed, as with `-t`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_arc::Cache;
use cenote_format::ids::Guid;
use cenote_l2arc::{CacheSpec, L2arc};
use cenote_taskq::{Class, boxed};
use cenote_vdev::tree::{LeafIo, VdevState};
use cenote_zio::{Shelves as _, ZioError};

use super::Pool;
use super::shared::Shared;
use crate::SpaError;
use crate::config::PoolState;
use crate::open::spares_l2cache::AuxKind;
use crate::sync::Syncer;

/// A sector's size where the list has none.
const ASHIFT_DEFAULT: u64 = 12;

/// The second level of a pool's cache, without devices yet.
pub(super) fn second_level(syncer: &Syncer, cache: &Arc<Cache<ZioError>>) -> Arc<L2arc> {
    let space = &syncer.blocks.space;
    let (troubles, lent) = (space.troubles.clone(), cache.clone());
    let tell = Box::new(move |_: Guid, what: String| troubles.tell(what));
    let charge = Box::new(move |bytes| lent.set_lent_bytes(bytes));
    let tunables = space.cache_tunables.get().copied().unwrap_or_default();
    let cache_bytes = usize::try_from(cache.stats().limit_bytes).unwrap_or(usize::MAX);
    let caches = L2arc::new(&syncer.handle, cache_bytes, tunables, tell, charge);
    syncer.blocks.writer.dmu().zio().set_shelves(caches.clone());
    caches
}

impl Shared {
    /// Has the cache devices be used that the pool has, and no others. In the background alone.
    #[boxed]
    pub(super) async fn use_caches(self: &Arc<Self>) -> Result<(), SpaError> {
        if !self.is_background.load(Ordering::Acquire) {
            return Ok(());
        }
        let wanted = self.clone().make(None, |syncer| {
            Box::pin(async move {
                let mut wanted = BTreeMap::new();
                for listed in syncer.listed(AuxKind::Cache).await? {
                    let guid = Guid(listed.u64("guid").unwrap_or(0));
                    let Some(found) = syncer.devices.found.auxiliaries.get(&guid) else { continue };
                    let ashift = listed.u64("ashift").unwrap_or(ASHIFT_DEFAULT).clamp(9, 16) as u32;
                    let spec = CacheSpec { pool: syncer.guid(), guid, disk: found.disk.clone(), ashift };
                    wanted.insert(guid, spec);
                }
                Ok::<_, SpaError>(wanted)
            })
        });
        let (_, wanted) = wanted.await?;
        for guid in self.caches.guids() {
            if !wanted.contains_key(&guid) {
                self.caches.remove(guid).await;
            }
        }
        for (guid, spec) in wanted {
            let path = spec.disk.path().clone();
            if !self.caches.knows(guid) && !self.caches.add(spec) {
                self.troubles.tell(format!("the cache device {path} is too small to be used"));
            }
        }
        Ok(())
    }

    /// The same, as the pool begins to be used.
    pub(super) fn begin_caches(self: &Arc<Self>, syncer: &Syncer) {
        let found = &syncer.devices.found.auxiliaries;
        if !found.values().any(|auxiliary| auxiliary.state == PoolState::L2Cache) {
            return;
        }
        let shared = Arc::downgrade(self);
        self.handle.detach(Class::Background, async move {
            let Some(shared) = shared.upgrade() else { return };
            if let Err(error) = shared.use_caches().await {
                shared.troubles.tell(format!("cache devices are not used: {error}"));
            }
        });
    }
}

impl Pool {
    /// The requests of each leaf and of each cache device.
    #[must_use]
    pub fn leaf_io(&self) -> Vec<(Guid, LeafIo)> {
        let mut all = self.tree().map(|tree| tree.leaf_io()).unwrap_or_default();
        all.extend(self.shared.caches.states().into_iter().map(|state| (state.guid, state.io)));
        all
    }

    /// Takes a cache device out of use, until it is taken online or the pool is closed. False if it is none that is known here.
    #[boxed]
    pub(crate) async fn offline_cache(&self, guid: Guid) -> bool {
        self.shared.caches.offline(guid).await
    }

    /// Uses a cache device again. False if it is none that is known here.
    #[boxed]
    pub(crate) async fn online_cache(&self, guid: Guid) -> bool {
        self.shared.caches.online(guid).await
    }

    /// Whether a person has taken a cache device offline.
    pub(crate) fn is_cache_offline(&self, guid: Guid) -> bool {
        let mut states = self.shared.caches.states().into_iter();
        states.any(|state| state.guid == guid && state.state == VdevState::Offline)
    }

    /// Uses a cache device no more: it is about to be removed, or gone.
    #[boxed]
    pub(crate) async fn leave_cache(&self, guid: Guid) {
        self.shared.caches.remove(guid).await;
    }

    /// Forgets the errors of cache devices, of one or of all, and uses those again that were given up. False if none is known here.
    #[boxed]
    pub(crate) async fn clear_caches(&self, guid: Option<Guid>) -> bool {
        let caches = &self.shared.caches;
        let all: Vec<Guid> =
            caches.guids().into_iter().filter(|known| guid.is_none_or(|guid| guid == *known)).collect();
        for guid in &all {
            caches.revive(*guid).await;
        }
        !all.is_empty()
    }

    /// Has the cache devices be used that the pool has now.
    ///
    /// # Errors
    /// Their list cannot be read; the pool is closed, suspended, or has failed.
    pub(crate) async fn use_caches(&self) -> Result<(), SpaError> {
        self.shared.use_caches().await
    }
}
