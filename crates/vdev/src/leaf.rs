//! Probing a device: reading its labels and uberblocks, damaged or not.
//!
//! A device identifies itself by four labels, two at each end, each with a configuration and a ring of uberblocks.
//! [`probe`] reads all four and tells what each says, or what is wrong with it; one good label is enough to use the
//! device, and one good slot to have an uberblock. [`probe_device`] also looks into the partitions of an image of a
//! whole disk.
//!
//! Data with a wrong checksum is not used. The failures stay in the report, for `inspect`.

use std::fmt;
use std::sync::Arc;

use cenote_codec::checksum::embedded::LabelCopies;
use cenote_format::FormatError;
use cenote_format::ids::{Guid, Txg};
use cenote_format::label::{
    self, BOOT_ENV_OFFSET, BootEnv, DeviceLayout, LABEL_BYTES, LABEL_COUNT, VDEV_PHYS_OFFSET, VdevLabel,
};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::{MAGIC, Uberblock};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Device, boxed, join_all};

use crate::disk::Disk;
use crate::fault::IoCause;
use crate::partition::{self, Partition, TABLE_BYTES};

/// Slot sizes that a ring can have, by ashift.
const RING_ASHIFTS: std::ops::RangeInclusive<u32> = 10..=13;

/// The contents of a disk's labels.
#[derive(Clone, Debug)]
pub struct LabelReport {
    /// The disk.
    pub disk: Disk,
    /// Each label, in order.
    pub labels: [LabelCopy; LABEL_COUNT],
    /// Every uberblock with a right checksum, by label, then by slot.
    pub uberblocks: Vec<UberblockCopy>,
}

/// One of a disk's labels.
#[derive(Clone, Debug)]
pub struct LabelCopy {
    /// Which: 0 to 3.
    pub index: usize,
    /// Where it stands on the disk; absent when the disk is too small for labels.
    pub address_bytes: Option<u64>,
    /// All its bytes, unchecked, if they could be read.
    pub bytes: Option<Block>,
    /// Its configuration, verified.
    pub config: Result<Arc<NvList>, LabelProblem>,
    /// Its boot environment, verified.
    pub boot_env: Result<BootEnv, LabelProblem>,
    /// Slots that begin like an uberblock but fail their checksum.
    pub bad_slots: Vec<usize>,
}

/// An uberblock found on a disk, its checksum verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UberblockCopy {
    /// The label that it stands in.
    pub label: usize,
    /// Its slot in the ring.
    pub slot: usize,
    /// The size of the ring's slots as a power of two.
    pub slot_shift: u32,
    /// Its contents.
    pub uberblock: Uberblock,
}

/// Why a part of a label cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelProblem {
    /// The disk is too small to have labels.
    TooSmall,
    /// The device failed the read.
    Read(IoCause),
    /// Nothing was ever written there.
    Empty,
    /// Something stands there, but not what was written.
    Checksum,
    /// The checksum is right, but the contents are not what they should be.
    Format(FormatError),
}

impl fmt::Display for LabelProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => f.write_str("the device is too small for labels"),
            Self::Read(cause) => write!(f, "read error: {cause}"),
            Self::Empty => f.write_str("empty"),
            Self::Checksum => f.write_str("checksum error"),
            Self::Format(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LabelProblem {}

impl LabelCopy {
    /// The txg of the configuration, if it has one: labels of spares and cache devices do not.
    #[must_use]
    pub fn txg(&self) -> Option<Txg> {
        self.config.as_ref().ok()?.u64("txg").map(Txg)
    }

    /// The configuration without regard to its checksum, for the inspector.
    #[must_use]
    pub fn unverified_config(&self) -> Option<NvList> {
        VdevLabel::new(self.bytes.as_deref()?).ok()?.config().ok()
    }
}

impl LabelReport {
    /// The best configuration: that of the highest txg, the first label's among equals.
    #[must_use]
    pub fn best_config(&self) -> Option<&Arc<NvList>> {
        let mut best: Option<&LabelCopy> = None;
        for label in self.labels.iter().filter(|label| label.config.is_ok()) {
            if best.is_none_or(|best| label.txg() > best.txg()) {
                best = Some(label);
            }
        }
        best?.config.as_ref().ok()
    }

    /// The youngest uberblock.
    #[must_use]
    pub fn best_uberblock(&self) -> Option<&UberblockCopy> {
        self.uberblocks.iter().max_by(|a, b| a.uberblock.cmp_age(&b.uberblock))
    }

    /// The identity of the leaf that the disk is.
    #[must_use]
    pub fn guid(&self) -> Option<Guid> {
        self.best_config()?.u64("guid").map(Guid)
    }

    /// The identity of the pool that the disk belongs to. Spares and cache devices belong to none in particular.
    #[must_use]
    pub fn pool_guid(&self) -> Option<Guid> {
        self.best_config()?.u64("pool_guid").map(Guid)
    }

    /// How many labels have a usable configuration.
    #[must_use]
    pub fn good_labels(&self) -> usize {
        self.labels.iter().filter(|label| label.config.is_ok()).count()
    }
}

/// The labels found on a device and on its partitions.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// The device taken as a whole.
    pub whole: LabelReport,
    /// Its partitions, those of a ZFS type first. Empty where there is no partition table.
    pub partitions: Vec<(Partition, LabelReport)>,
}

impl DeviceReport {
    /// The disks that carry a label: the whole device, then its partitions.
    pub fn labelled(&self) -> impl Iterator<Item = &LabelReport> {
        let all = std::iter::once(&self.whole).chain(self.partitions.iter().map(|(_, report)| report));
        all.filter(|report| report.good_labels() != 0)
    }
}

/// Reads a disk's labels.
#[boxed]
pub async fn probe(disk: &Disk) -> LabelReport {
    let layout = DeviceLayout::new(disk.size_bytes());
    let addresses: [Option<u64>; LABEL_COUNT] =
        std::array::from_fn(|index| layout.map(|layout| layout.label_offset(index)));
    let reads = addresses.iter().map(|address| read_label(disk, *address));
    let contents = join_all(reads).await;
    let mut uberblocks = Vec::new();
    let (mut configs, mut boot_envs) = (LabelCopies::default(), LabelCopies::default());
    let labels = std::array::from_fn(|index| {
        label_copy(index, addresses[index], &contents[index], &mut configs, &mut boot_envs)
    });
    // The ring's slot size follows from the ashift, which any label may tell; without one, whatever fits.
    let known: Option<u32> = labels.iter().filter_map(|label| label.config.as_ref().ok()).find_map(config_ashift);
    let mut report = LabelReport { disk: disk.clone(), labels, uberblocks: Vec::new() };
    let mut shifts: Vec<u32> = known.map(label::slot_shift).into_iter().collect();
    shifts.extend(RING_ASHIFTS.filter(|shift| Some(*shift) != known.map(label::slot_shift)));
    for shift in shifts {
        let bad_slots = scan_rings(&report.labels, shift, &mut uberblocks);
        let is_right_size = !uberblocks.is_empty() || known.map(label::slot_shift) == Some(shift);
        if is_right_size {
            for (label, bad) in report.labels.iter_mut().zip(bad_slots) {
                label.bad_slots = bad;
            }
        }
        if !uberblocks.is_empty() {
            break;
        }
    }
    report.uberblocks = uberblocks;
    report
}

/// Reads the labels of a device, and of its partitions if it has a partition table.
#[boxed]
pub async fn probe_device(device: &Device) -> DeviceReport {
    let whole = probe(&Disk::whole(device.clone())).await;
    let mut partitions = Vec::new();
    for partition in read_partitions(device).await {
        let report = probe(&Disk::partition(device.clone(), &partition)).await;
        partitions.push((partition, report));
    }
    DeviceReport { whole, partitions }
}

/// The partitions of a device; none where there is no table that can be read.
#[boxed]
pub(crate) async fn read_partitions(device: &Device) -> Vec<Partition> {
    let size = device.size_bytes();
    let len = size.min(TABLE_BYTES as u64);
    let (front, front_bytes) = device.read(0, Buf::unfilled(len as usize)).await;
    if front.is_err() {
        return Vec::new();
    }
    let (back, back_bytes) = device.read(size - len, Buf::unfilled(len as usize)).await;
    let back_bytes = if back.is_ok() { &back_bytes[..] } else { &[] };
    partition::partitions(&front_bytes, back_bytes, size)
}

async fn read_label(disk: &Disk, address: Option<u64>) -> Result<Block, LabelProblem> {
    let address = address.ok_or(LabelProblem::TooSmall)?;
    let (result, buf) = disk.read(address, Buf::unfilled(LABEL_BYTES)).await;
    match result {
        Ok(()) => Ok(buf.freeze()),
        Err(error) => Err(LabelProblem::Read(IoCause::from(&error))),
    }
}

/// Parses a label. `configs` and `boot_envs` have the hashes of the disk's other labels, which are mostly the same.
fn label_copy<'a>(
    index: usize,
    address_bytes: Option<u64>,
    content: &'a Result<Block, LabelProblem>,
    configs: &mut LabelCopies<'a>,
    boot_envs: &mut LabelCopies<'a>,
) -> LabelCopy {
    let (bytes, problem) = match content {
        Ok(bytes) => (Some(bytes), None),
        Err(problem) => (None, Some(problem)),
    };
    let view = bytes.and_then(|bytes| VdevLabel::new(bytes).ok()).zip(address_bytes);
    let problem = problem.cloned().unwrap_or(LabelProblem::TooSmall);
    let config = view.map_or_else(
        || Err(problem.clone()),
        |(view, address)| {
            verify(configs, view.vdev_phys(), address + VDEV_PHYS_OFFSET as u64)?;
            view.config().map(Arc::new).map_err(LabelProblem::Format)
        },
    );
    let boot_env = view.map_or_else(
        || Err(problem.clone()),
        |(view, address)| {
            verify(boot_envs, view.boot_env_block(), address + BOOT_ENV_OFFSET as u64)?;
            view.boot_env().map_err(LabelProblem::Format)
        },
    );
    let bytes = bytes.cloned();
    LabelCopy { index, address_bytes, bytes, config, boot_env, bad_slots: Vec::new() }
}

fn verify<'a>(copies: &mut LabelCopies<'a>, block: &'a [u8], address: u64) -> Result<(), LabelProblem> {
    match copies.verify(block, address) {
        Ok(_) => Ok(()),
        Err(_) if block.iter().all(|byte| *byte == 0) => Err(LabelProblem::Empty),
        Err(_) => Err(LabelProblem::Checksum),
    }
}

/// The ashift that a label's configuration tells.
fn config_ashift(config: &Arc<NvList>) -> Option<u32> {
    config.list("vdev_tree")?.u64("ashift").and_then(|ashift| u32::try_from(ashift).ok())
}

/// Adds the uberblocks of all rings to `found`, taking their slots to be `1 << shift` long. Returns for each label the slots that are bad.
fn scan_rings(labels: &[LabelCopy], shift: u32, found: &mut Vec<UberblockCopy>) -> [Vec<usize>; LABEL_COUNT] {
    let mut bad: [Vec<usize>; LABEL_COUNT] = Default::default();
    // One for each slot number: the labels mostly have the same uberblock in it.
    let mut copies: Vec<LabelCopies<'_>> = Vec::new();
    for label in labels {
        let (Some(bytes), Some(address)) = (&label.bytes, label.address_bytes) else { continue };
        let Ok(view) = VdevLabel::new(bytes) else { continue };
        for slot in view.slots(shift) {
            let magic = slot.bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            if magic != Some(MAGIC) && magic != Some(MAGIC.swap_bytes()) {
                continue;
            }
            debug_assert!(slot.index < label::slot_count(shift), "a slot is within its ring");
            if copies.len() <= slot.index {
                copies.resize_with(slot.index + 1, LabelCopies::default);
            }
            let verified = copies[slot.index].verify(slot.bytes, address + slot.label_offset as u64).is_ok();
            match slot.uberblock() {
                Ok(uberblock) if verified => {
                    found.push(UberblockCopy { label: label.index, slot: slot.index, slot_shift: shift, uberblock });
                }
                _ => bad[label.index].push(slot.index),
            }
        }
    }
    bad
}
