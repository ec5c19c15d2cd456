//! Committing a txg: writing labels and uberblocks.
//!
//! A txg's blocks are written to free space, so nothing sees them until an uberblock says that they are the pool. That
//! uberblock, and a configuration that fits it, go to the labels in an order that leaves a good pool behind whenever the
//! power goes:
//!
//! ```text
//! flush                     the txg's blocks are stable
//! labels 0 and 2, flush     the new configuration; labels 1 and 3 still have the old one, and the old uberblock
//! uberblocks, flush         the txg is the pool's newest from here on
//! labels 1 and 3, flush     all labels agree again
//! ```
//!
//! Only top-level vdevs whose configuration changed have their labels written, and only some leaves need to take the
//! uberblock: the caller chooses, and takes all where the configuration changed. A step succeeds if, for each top-level vdev that it
//! writes to, at least one leaf accepted the write; the uberblock step succeeds if one leaf of the pool accepted it.
//!
//! Before the first commit after an opening, labels by which a leaf would not be found are written ([`mend_labels`]), and leaves that
//! lack the last uberblock alone get it ([`repeat`]): else power that goes twice could cost a leaf all its labels, or make it look older
//! than it is.
//!
//! A leaf that did not accept a step is reported ([`Refusal`]), and the next txg enters the missed one into the leaf's DTL: if only this
//! leaf were present, an import would find an older txg.

use std::collections::BTreeMap;
use std::io;

use cenote_format::ids::{Guid, VdevId};
use cenote_format::label::{
    BOOT_ENV_OFFSET, BootEnv, LABEL_BYTES, LABEL_COUNT, RING_OFFSET, VDEV_PHYS_BYTES, VDEV_PHYS_OFFSET, emit_vdev_phys,
};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::buf::Buf;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{boxed, join_all};

use crate::disk::Disk;
use crate::leaf::{LabelCopy, LabelReport, probe};
use crate::ring::{Ring, layout, sealed, write_slot};

/// A leaf's part in a commit.
#[derive(Clone, Debug)]
pub struct LeafCommit {
    /// The leaf.
    pub guid: Guid,
    /// Its disk.
    pub disk: Disk,
    /// The top-level vdev that it belongs to; none for spares, cache and log devices, which the pool does not depend on.
    pub top: Option<VdevId>,
    /// The top-level vdev's sector size as a power of two: the ring's slots follow from it.
    pub ashift: u32,
    /// The new configuration for its labels; none if it did not change.
    pub config: Option<NvList>,
    /// Whether it takes the uberblock.
    pub takes_uberblock: bool,
}

/// A leaf that did not take its labels or the uberblock of a commit that got through.
#[derive(Debug)]
pub struct Refusal {
    /// The leaf.
    pub guid: Guid,
    /// The first error of its disk.
    pub error: io::Error,
}

/// A commit that did not get through. Up to the uberblocks the pool on disk is the old one, whole; after, the new one.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A configuration does not fit a label.
    #[error("the configuration does not fit a label: {0}")]
    TooLarge(#[from] cenote_format::FormatError),
    /// No leaf of a top-level vdev took its labels.
    #[error("no device of vdev {vdev} could be labelled: {source}")]
    Label {
        /// The top-level vdev.
        vdev: VdevId,
        /// The error of the last of its leaves.
        source: io::Error,
    },
    /// No leaf took the uberblock.
    #[error("no device took the uberblock of txg {txg}: {source}")]
    Uberblock {
        /// The txg.
        txg: u64,
        /// The error of the last leaf.
        source: io::Error,
    },
}

impl CommitError {
    /// Whether devices failed: done again once they work, it may get through.
    #[must_use]
    pub const fn is_of_devices(&self) -> bool {
        !matches!(self, Self::TooLarge(_))
    }
}

/// Makes `uberblock` the newest of the pool; see the module comment. The txg's blocks are stable already. Returns the
/// leaves that failed while others sufficed, each once. `ring` says which slots the uberblock goes to, and learns where it stands.
///
/// # Errors
/// [`CommitError`] says how far it got.
#[boxed]
pub async fn commit(
    leaves: &[LeafCommit],
    uberblock: &Uberblock,
    ring: &mut Ring,
) -> Result<Vec<Refusal>, CommitError> {
    let mut configs = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        configs.push(leaf.config.as_ref().map(emit_vdev_phys).transpose()?);
    }
    assert_eq!(configs.len(), leaves.len(), "each leaf has a configuration or none");
    let first: &[usize] = if mutant::is(Mutant::LabelsAtOnce) { &[0, 1, 2, 3] } else { &[0, 2] };
    let mut failed = label(leaves, &configs, first).await?;

    let takers = || leaves.iter().filter(|leaf| leaf.takes_uberblock);
    let slots = &*ring;
    let writes = takers().map(|leaf| async move { (leaf, write_uberblock(leaf, uberblock, slots).await) });
    let (mut good, mut refused) = (0, Vec::new());
    for (leaf, result) in join_all(writes).await {
        match result {
            Ok(()) => good += 1,
            Err(error) => refused.push(Refusal { guid: leaf.guid, error }),
        }
    }
    if good == 0 {
        let last = refused.pop().map(|refusal| refusal.error);
        let source = last.unwrap_or_else(|| io::Error::other("no device was chosen to take it"));
        return Err(CommitError::Uberblock { txg: uberblock.txg.0, source });
    }
    ring.committed(uberblock.txg.0, takers().map(|leaf| leaf.ashift));
    failed.append(&mut refused);
    failed.extend(label(leaves, &configs, &[1, 3]).await?);
    // Stable: the first error of each stays.
    failed.sort_by_key(|refusal| refusal.guid);
    failed.dedup_by_key(|refusal| refusal.guid);
    assert!(failed.len() <= leaves.len(), "a leaf is named once");
    Ok(failed)
}

/// Writes the newest uberblock once more, to leaves that did not take it. A leaf that lacks the last one alone is known to have all its
/// blocks. If the next one was torn there too, nobody could tell it from an older copy, which is to be resilvered. Failures are left to
/// the next commit.
pub async fn repeat(leaves: impl Iterator<Item = &LeafCommit>, uberblock: &Uberblock, ring: &Ring) {
    drop(join_all(leaves.map(|leaf| write_uberblock(leaf, uberblock, ring))).await);
}

/// Writes the labels by which a leaf would not be found, of all leaves whose labels are to be written, and makes them stable: before the
/// first commit after an opening. Power that went while labels 1 and 3 were written may have torn these, or left them as they were when
/// the vdev was added (txg 0); if it went again while 0 and 2 were written, no label would be left, and nothing could tell whose device
/// it is. Failures are left to the commit. Returns the bytes that were written to each leaf for labels that were damaged.
#[boxed]
pub async fn mend_labels(leaves: &[LeafCommit]) -> Vec<(Guid, u64)> {
    let mends = leaves.iter().filter_map(|leaf| {
        let config = emit_vdev_phys(leaf.config.as_ref()?).ok()?;
        Some(async move {
            let labels = probe(&leaf.disk).await.labels;
            let is_bad = |label: &&LabelCopy| label.config.as_ref().map_or(true, |config| config.u64("txg") == Some(0));
            let bad: Vec<usize> = labels.iter().filter(is_bad).map(|label| label.index).collect();
            // If none is good there is none to be kept.
            if bad.is_empty() || bad.len() == LABEL_COUNT {
                return None;
            }
            // A device that does not take them will not take the commit.
            write_configs(&leaf.disk, &config, &bad).await.ok()?;
            let damaged = labels.iter().filter(|label| label.config.is_err()).count();
            Some((leaf.guid, (damaged * VDEV_PHYS_BYTES) as u64))
        })
    });
    join_all(mends).await.into_iter().flatten().filter(|(_, bytes)| *bytes > 0).collect()
}

/// Writes two of the labels of all leaves whose configuration changed, and makes them stable.
async fn label(
    leaves: &[LeafCommit],
    configs: &[Option<Vec<u8>>],
    indexes: &[usize],
) -> Result<Vec<Refusal>, CommitError> {
    let writes = leaves.iter().zip(configs).filter_map(|(leaf, config)| {
        let config = config.as_deref()?;
        Some(async move { (leaf, write_configs(&leaf.disk, config, indexes).await) })
    });
    let mut failed = Vec::new();
    // Of each top-level vdev: whether a leaf took it, and the last that did not, as an index of `failed`.
    let mut tops = BTreeMap::<VdevId, (bool, Option<usize>)>::new();
    for (leaf, result) in join_all(writes).await {
        let is_good = result.is_ok();
        let entry = leaf.top.map(|top| tops.entry(top).or_default());
        if let Some(entry) = entry {
            entry.0 |= is_good;
            if !is_good {
                entry.1 = Some(failed.len());
            }
        }
        if let Err(error) = result {
            failed.push(Refusal { guid: leaf.guid, error });
        }
    }
    match tops.into_iter().find_map(|(vdev, (is_good, last))| last.filter(|_| !is_good).map(|last| (vdev, last))) {
        Some((vdev, last)) => Err(CommitError::Label { vdev, source: failed.swap_remove(last).error }),
        None => Ok(failed),
    }
}

/// Puts a configuration into some of a disk's labels, and makes them stable.
async fn write_configs(disk: &Disk, config: &[u8], indexes: &[usize]) -> io::Result<()> {
    assert_eq!(config.len(), VDEV_PHYS_BYTES, "a configuration fills its part of a label");
    let layout = layout(disk)?;
    let writes = indexes.iter().map(|&index| {
        let address = layout.label_offset(index) + VDEV_PHYS_OFFSET as u64;
        disk.write(address, sealed(config.to_vec(), address))
    });
    first_error(join_all(writes).await)?;
    disk.flush().await
}

/// Puts an uberblock into its slot of all of a disk's rings, and makes it stable.
async fn write_uberblock(leaf: &LeafCommit, uberblock: &Uberblock, ring: &Ring) -> io::Result<()> {
    let txg = if mutant::is(Mutant::UberblockOneSlot) { 0 } else { uberblock.txg.0 };
    let slot = ring.slot(txg, leaf.ashift);
    write_slot(&leaf.disk, leaf.ashift, slot, 0..LABEL_COUNT, uberblock).await?;
    if mutant::is(Mutant::UberblockUnflushed) {
        return Ok(());
    }
    leaf.disk.flush().await
}

/// Prepares a disk for a pool: four labels with `config`, an empty boot environment and a ring without uberblocks. The previous contents of
/// the labels are lost. The labels are stable when this is done.
///
/// # Errors
/// The disk's, or that it is too small for labels.
#[boxed]
pub async fn initialize(disk: &Disk, config: &NvList) -> Result<(), InitializeError> {
    let config = emit_vdev_phys(config)?;
    let boot_env = BootEnv::Raw(Vec::new()).emit()?;
    let layout = layout(disk)?;
    let writes = layout.label_offsets().map(|label| {
        let mut bytes = Buf::zeroed(LABEL_BYTES);
        for (offset, part) in [(BOOT_ENV_OFFSET, &boot_env), (VDEV_PHYS_OFFSET, &config)] {
            assert!(offset + part.len() <= RING_OFFSET, "the ring of a new label is empty");
            bytes[offset..offset + part.len()].copy_from_slice(&sealed(part.clone(), label + offset as u64));
        }
        disk.write(label, bytes.freeze())
    });
    first_error(join_all(writes).await)?;
    Ok(disk.flush().await?)
}

/// Clears a disk's labels, so that it belongs to no pool (`zpool labelclear`): those that are some, by what was read of them. The places of others
/// may have something else by now. Stable when this is done.
///
/// # Errors
/// The disk's, or that it is too small for labels.
#[boxed]
pub async fn clear(disk: &Disk, report: &LabelReport) -> io::Result<()> {
    let layout = layout(disk)?;
    let zeros = Buf::zeroed(LABEL_BYTES).freeze();
    let has_uberblock = |index| report.uberblocks.iter().any(|copy| copy.label == index);
    let ours = report.labels.iter().filter(|label| label.config.is_ok() || has_uberblock(label.index));
    let writes = ours.map(|label| disk.write(layout.label_offset(label.index), zeros.clone()));
    first_error(join_all(writes).await)?;
    disk.flush().await
}

/// Why a disk could not be prepared for a pool.
#[derive(Debug, thiserror::Error)]
pub enum InitializeError {
    /// The configuration does not fit a label.
    #[error("the configuration does not fit a label: {0}")]
    TooLarge(#[from] cenote_format::FormatError),
    /// The disk failed, or is too small.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn first_error(results: impl IntoIterator<Item = io::Result<()>>) -> io::Result<()> {
    results.into_iter().collect()
}
