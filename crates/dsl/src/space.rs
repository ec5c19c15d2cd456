//! Space figures of datasets: used, available, and written since a snapshot or bookmark.

use cenote_dmu::Zap;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{BookmarkPhys, DeadlistPhys, dataset_field};
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::boxed;

use crate::{Bookmark, DEPTH_MAX, Dataset, Dir, Dsl, DslError};

/// Ranges of a deadlist at most: one for each snapshot.
const RANGES_MAX: usize = 1 << 24;
/// Snapshots in a chain at most, as a bound on a walk.
const CHAIN_MAX: usize = 1 << 24;

/// The size of a set of blocks in three ways. Sums wrap: a part may be negative while a sum is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Allocated.
    pub used_bytes: u64,
    /// Before allocation overhead.
    pub compressed_bytes: u64,
    /// Before compression.
    pub uncompressed_bytes: u64,
}

impl Sizes {
    /// All that a dataset references.
    #[must_use]
    pub const fn referenced_by(dataset: &Dataset) -> Self {
        let phys = &dataset.phys;
        Self {
            used_bytes: phys.referenced_bytes,
            compressed_bytes: phys.compressed_bytes,
            uncompressed_bytes: phys.uncompressed_bytes,
        }
    }

    /// All that a bookmark's snapshot referenced.
    #[must_use]
    pub const fn referenced_by_bookmark(phys: &BookmarkPhys) -> Self {
        Self {
            used_bytes: phys.referenced_bytes,
            compressed_bytes: phys.compressed_bytes,
            uncompressed_bytes: phys.uncompressed_bytes,
        }
    }

    /// Those of them that were freed before the next snapshot.
    #[must_use]
    pub const fn freed_after_bookmark(phys: &BookmarkPhys) -> Self {
        Self {
            used_bytes: phys.referenced_freed_bytes,
            compressed_bytes: phys.compressed_freed_bytes,
            uncompressed_bytes: phys.uncompressed_freed_bytes,
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            used_bytes: self.used_bytes.wrapping_add(other.used_bytes),
            compressed_bytes: self.compressed_bytes.wrapping_add(other.compressed_bytes),
            uncompressed_bytes: self.uncompressed_bytes.wrapping_add(other.uncompressed_bytes),
        }
    }

    const fn less(self, other: Self) -> Self {
        Self {
            used_bytes: self.used_bytes.wrapping_sub(other.used_bytes),
            compressed_bytes: self.compressed_bytes.wrapping_sub(other.compressed_bytes),
            uncompressed_bytes: self.uncompressed_bytes.wrapping_sub(other.uncompressed_bytes),
        }
    }
}

impl Dsl {
    /// Bytes that a directory and those below it may use in addition: the pool's space within its quota and those above, plus its unused
    /// reservation. `usable_bytes` is the limit of the root.
    #[boxed]
    pub async fn dir_available_bytes(&self, dir: &Dir, usable_bytes: u64) -> Result<u64, DslError> {
        let mut chain = vec![dir.clone()];
        while let Some(parent) = self.parent(&chain[chain.len() - 1]).await? {
            chain.push(parent);
            if chain.len() > DEPTH_MAX {
                let what = "its parents form a cycle".to_owned();
                return Err(DslError::Corrupt { object: dir.object.0, what });
            }
        }
        let mut above = None;
        for dir in chain.into_iter().rev() {
            let phys = &dir.phys;
            let quota = if phys.quota_bytes == 0 { u64::MAX } else { phys.quota_bytes };
            let limit = if above.is_none() { quota.min(usable_bytes) } else { quota };
            let own = limit.saturating_sub(phys.used_bytes);
            // Reserved space that is not used counts as used above.
            let reserved = phys.reserved_bytes.saturating_sub(phys.used_bytes);
            above = Some(match above {
                Some(_) if phys.used_bytes > limit => 0,
                Some(above) => own.min(u64::saturating_add(above, reserved)),
                None => own,
            });
        }
        Ok(above.unwrap_or(0))
    }

    /// Bytes that a dataset may use in addition.
    #[boxed]
    pub async fn available_bytes(&self, head: &Dataset, usable_bytes: u64) -> Result<u64, DslError> {
        let mut available = self.dir_available_bytes(&head.dir, usable_bytes).await?;
        let number = async |name| -> Result<u64, DslError> {
            let property = self.property(&head.dir, name, false).await?;
            Ok(property.and_then(|property| property.value.number()).unwrap_or(0))
        };
        let reserved = number("refreservation").await?;
        available = available.saturating_add(reserved.saturating_sub(head.phys.unique_bytes));
        let quota = number("refquota").await?;
        if quota != 0 {
            available = available.min(quota.saturating_sub(head.phys.referenced_bytes));
        }
        Ok(available)
    }

    /// Bytes written since the previous snapshot; `None` if there is none (not even the pool's origin).
    #[boxed]
    pub async fn written_bytes(&self, dataset: &Dataset) -> Result<Option<u64>, DslError> {
        if dataset.phys.prev_snapshot.0 == 0 {
            return Ok(None);
        }
        let previous = self.dataset_object(dataset.phys.prev_snapshot, dataset.dir.clone(), None).await?;
        self.written_since_bytes(dataset, previous.phys.creation_txg, previous.phys.referenced_bytes).await.map(Some)
    }

    /// Bytes written since a snapshot before this dataset (or its origin) that was taken in `txg` and referenced
    /// `referenced_bytes`.
    #[boxed]
    pub async fn written_since_bytes(
        &self,
        dataset: &Dataset,
        txg: Txg,
        referenced_bytes: u64,
    ) -> Result<u64, DslError> {
        let referenced = Sizes { used_bytes: referenced_bytes, ..Sizes::default() };
        Ok(self.written_since(dataset, txg, referenced, None).await?.used_bytes)
    }

    /// Bytes written since a bookmark of this dataset or its origin. The bookmark must record sizes, as newer ones do (its flag says so).
    #[boxed]
    pub async fn written_since_bookmark_bytes(&self, dataset: &Dataset, bookmark: &Bookmark) -> Result<u64, DslError> {
        let since = &bookmark.phys;
        let written = self.written_since(
            dataset,
            since.creation_txg,
            Sizes::referenced_by_bookmark(since),
            Some(Sizes::freed_after_bookmark(since)),
        );
        Ok(written.await?.used_bytes)
    }

    /// Sizes of the blocks written since a snapshot before this dataset (or its origin) that was taken in `txg` and referenced `referenced`.
    /// `freed`: the part of that freed before the next snapshot, as a bookmark of a destroyed snapshot records it; `None` if the snapshot
    /// exists.
    #[boxed]
    pub async fn written_since(
        &self,
        dataset: &Dataset,
        txg: Txg,
        referenced: Sizes,
        freed: Option<Sizes>,
    ) -> Result<Sizes, DslError> {
        let mut written = Sizes::referenced_by(dataset).less(referenced);
        let mut at = dataset.clone();
        for _ in 0..CHAIN_MAX {
            // Blocks that existed then and died since: all of the first deadlist after the snapshot, and of the later ones those born no later.
            if at.phys.prev_snapshot_txg <= txg {
                let first = match freed {
                    Some(freed) => freed,
                    None => self.deadlist_sizes(at.phys.deadlist, None).await?,
                };
                return Ok(written.plus(first));
            }
            written = written.plus(self.deadlist_sizes(at.phys.deadlist, Some(txg)).await?);
            let previous = self.dataset_object(at.phys.prev_snapshot, at.dir.clone(), None).await?;
            // Each was taken before the next one, so the chain ends, and never meets a dataset twice.
            if previous.phys.prev_snapshot_txg >= at.phys.prev_snapshot_txg {
                break;
            }
            at = previous;
        }
        Err(DslError::Corrupt { object: dataset.object.0, what: "its snapshots form a cycle".into() })
    }

    /// Bytes that destroying all snapshots from one to another of the same dataset would free: those that only they have.
    #[boxed]
    pub async fn would_free_bytes(&self, first: &Dataset, last: &Dataset) -> Result<u64, DslError> {
        let (mut bytes, mut at) = (0_u64, first.clone());
        for _ in 0..CHAIN_MAX {
            let next = self.dataset_object(at.phys.next_snapshot, at.dir.clone(), None).await?;
            let dead = self.deadlist_bytes_since(next.phys.deadlist, first.phys.prev_snapshot_txg).await?;
            bytes = bytes.saturating_add(dead);
            if at.object == last.object || next.phys.next_snapshot.0 == 0 {
                return Ok(bytes);
            }
            at = next;
        }
        Err(DslError::Corrupt { object: first.object.0, what: "its snapshots form a cycle".into() })
    }

    /// Bytes of the ranges of a deadlist that begin at a txg or later.
    async fn deadlist_bytes_since(&self, object: ObjectId, since: Txg) -> Result<u64, DslError> {
        let all = self.deadlist_sizes(object, None).await?.used_bytes;
        Ok(all.saturating_sub(self.deadlist_sizes(object, Some(since)).await?.used_bytes))
    }

    /// True if `earlier` is a snapshot before `later`: of the same dataset, or of its origins.
    #[boxed]
    pub async fn is_before(&self, earlier: &Dataset, later: &Dataset) -> Result<bool, DslError> {
        let mut at = later.phys.prev_snapshot;
        for _ in 0..CHAIN_MAX {
            if at == earlier.object {
                return Ok(true);
            }
            if at.0 == 0 {
                return Ok(false);
            }
            let snapshot = self.dataset_object(at, later.dir.clone(), None).await?;
            if snapshot.phys.creation_txg < earlier.phys.creation_txg {
                return Ok(false);
            }
            at = snapshot.phys.prev_snapshot;
        }
        Err(DslError::Corrupt { object: later.object.0, what: "its snapshots form a cycle".into() })
    }

    /// Sizes of a deadlist: of all blocks, or of those in ranges that begin before `limit`.
    pub(crate) async fn deadlist_sizes(&self, object: ObjectId, limit: Option<Txg>) -> Result<Sizes, DslError> {
        if object.0 == 0 {
            return Ok(Sizes::default());
        }
        let of_bpobj = |phys: &BpobjPhys| {
            // The oldest lists record only used bytes.
            let [compressed_bytes, uncompressed_bytes] = phys.compressed.unwrap_or([phys.bytes; 2]);
            Sizes { used_bytes: phys.bytes, compressed_bytes, uncompressed_bytes }
        };
        let dnode = self.mos_object(object).await?;
        if dnode.phys().object_type == DmuType::BPOBJ {
            let phys = dnode.bonus(BpobjPhys::parse).map_err(|error| dnode.error(error))?;
            return match limit {
                None => Ok(of_bpobj(&phys)),
                Some(_) => Err(DslError::Unsupported("sums over deadlists of pools before version 26".into())),
            };
        }
        let Some(limit) = limit else {
            let phys = dnode.bonus(DeadlistPhys::parse).map_err(|error| dnode.error(error))?;
            let (used_bytes, compressed_bytes) = (phys.used_bytes, phys.compressed_bytes);
            return Ok(Sizes { used_bytes, compressed_bytes, uncompressed_bytes: phys.uncompressed_bytes });
        };
        let mut sizes = Sizes::default();
        for entry in Zap::open(dnode).await?.entries(RANGES_MAX).await? {
            let start = std::str::from_utf8(entry.name()).ok().and_then(|name| u64::from_str_radix(name, 16).ok());
            let (Some(start), Some(bpobj)) = (start, entry.value.as_u64()) else { continue };
            if start < limit.0 {
                let dnode = self.mos_object(ObjectId(bpobj)).await?;
                let phys = dnode.bonus(BpobjPhys::parse).map_err(|error| dnode.error(error))?;
                sizes = sizes.plus(of_bpobj(&phys));
            }
        }
        Ok(sizes)
    }

    /// The guids of the snapshots with respect to which a dataset was redacted; `None` if it was not.
    #[boxed]
    pub async fn redaction_snapshots(&self, dataset: &Dataset) -> Result<Option<Vec<u64>>, DslError> {
        self.redaction_of(dataset.object).await
    }

    /// The same for a dataset given by its object.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn redaction_of(&self, dataset: ObjectId) -> Result<Option<Vec<u64>>, DslError> {
        let value = self.object_value(dataset, dataset_field::REDACTED_DATASETS).await?;
        Ok(value.map(|value| value.integers().collect()))
    }

    /// A field of a zapified dataset, of any form.
    #[boxed]
    pub async fn dataset_value(
        &self,
        dataset: &Dataset,
        field: &str,
    ) -> Result<Option<cenote_format::zap::ZapValue>, DslError> {
        self.object_value(dataset.object, field).await
    }

    /// A field of a zapified directory, of any form.
    #[boxed]
    pub async fn dir_value(&self, dir: &Dir, field: &str) -> Result<Option<cenote_format::zap::ZapValue>, DslError> {
        self.object_value(dir.object, field).await
    }

    async fn object_value(
        &self,
        object: ObjectId,
        field: &str,
    ) -> Result<Option<cenote_format::zap::ZapValue>, DslError> {
        let dnode = self.mos_object(object).await?;
        if !dnode.phys().object_type.is_zap() {
            return Ok(None);
        }
        Ok(Zap::open(dnode).await?.lookup(field.as_bytes()).await?)
    }
}
