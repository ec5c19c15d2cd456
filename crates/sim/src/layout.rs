//! Layouts of pools.

use cenote_spa::TopKind;

/// A pool's layout: the kinds of its top-level vdevs with their numbers of disks.
pub type Layout = &'static [(TopKind, usize)];

/// One disk.
pub const SINGLE: Layout = &[(TopKind::Single, 1)];

/// Layouts of every kind.
pub const LAYOUTS: &[Layout] = &[
    SINGLE,
    &[(TopKind::Single, 1), (TopKind::Single, 1), (TopKind::Single, 1)],
    &[(TopKind::Mirror, 3)],
    &[(TopKind::Raidz { parity: 1 }, 3)],
    &[(TopKind::Raidz { parity: 2 }, 5)],
    &[(TopKind::Raidz { parity: 3 }, 4), (TopKind::Mirror, 2)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)],
    &[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 2 }, 7)],
];
