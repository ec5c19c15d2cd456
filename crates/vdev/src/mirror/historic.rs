//! OpenZFS's earlier and present policies: kept for comparison with `adaptive`, and for users who rely on one of them.

use super::{Ask, Candidates, ReadPolicy};
use crate::tunables::Tunables;

/// Size of a region as a power of two.
const REGION_SHIFT: u32 = 21;

/// By regions of the address space, whatever the load: OpenZFS's policy until 2013.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offset;

/// OpenZFS looks at what its queue has passed on to the device, ten reads at most. So busy children are equals, and what is said
/// of equals is what places their reads.
fn passed_on(load: &super::Load) -> u64 {
    u64::from(load.passed_on())
}

fn region(address_bytes: u64, count: usize) -> usize {
    ((address_bytes >> REGION_SHIFT) % count.max(1) as u64) as usize
}

impl ReadPolicy for Offset {
    fn name(&self) -> &'static str {
        "offset"
    }

    fn choose(&self, ask: &Ask, candidates: &Candidates<'_>) -> usize {
        if candidates.is_replacing() { 0 } else { region(ask.address_bytes, candidates.len()) }
    }
}

/// Fewest outstanding; of several equals the same one for a while. OpenZFS from 2013 to 2016.
///
/// The while is as long as the elevator of its day kept a rotating disk plugged, so that neighbours still met there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    switch_us: u64,
}

impl Pending {
    /// By `zfs_vdev_mirror_switch_us`.
    #[must_use]
    pub(crate) fn new(tunables: &Tunables) -> Self {
        Self { switch_us: tunables.zfs_vdev_mirror_switch_us.max(1) }
    }
}

impl ReadPolicy for Pending {
    fn name(&self) -> &'static str {
        "pending"
    }

    fn choose(&self, ask: &Ask, candidates: &Candidates<'_>) -> usize {
        if candidates.is_replacing() {
            return 0;
        }
        let turn = ask.now.as_ns() / 1000 / self.switch_us;
        candidates.cheapest(|_, child| passed_on(child.load), |equals| (turn % equals as u64) as usize)
    }
}

/// Fewest outstanding, plus a price for what does not follow the latest read. OpenZFS since 2016.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locality {
    rotating: u64,
    rotating_seek: u64,
    near_bytes: u64,
    solid: u64,
    solid_seek: u64,
}

impl Locality {
    /// By the `zfs_vdev_mirror_…_inc` tunables.
    #[must_use]
    pub(crate) fn new(tunables: &Tunables) -> Self {
        Self {
            rotating: tunables.zfs_vdev_mirror_rotating_inc,
            rotating_seek: tunables.zfs_vdev_mirror_rotating_seek_inc,
            near_bytes: tunables.zfs_vdev_mirror_rotating_seek_offset,
            solid: tunables.zfs_vdev_mirror_non_rotating_inc,
            solid_seek: tunables.zfs_vdev_mirror_non_rotating_seek_inc,
        }
    }
}

impl ReadPolicy for Locality {
    fn name(&self) -> &'static str {
        "locality"
    }

    fn choose(&self, ask: &Ask, candidates: &Candidates<'_>) -> usize {
        let cost = |_: usize, child: &super::Candidate<'_>| {
            let distance = child.load.next_address().abs_diff(ask.address_bytes);
            let price = match (child.load.is_rotational(), distance) {
                (true, 0) => self.rotating,
                (true, near) if near < self.near_bytes => self.rotating_seek / 2,
                (true, _) => self.rotating_seek,
                (false, 0) => self.solid,
                (false, _) => self.solid_seek,
            };
            passed_on(child.load) + price
        };
        candidates.cheapest(cost, |equals| region(ask.address_bytes, equals))
    }
}
