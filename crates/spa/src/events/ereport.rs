//! The members of events, with OpenZFS's names and types.

use std::collections::BTreeMap;

use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId};
use cenote_format::nvlist::{NvList, NvString, NvValue};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::fault::{Evidence, Fault, FaultKind, IoCause};
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{LeafState, VdevTree};

use super::difference::Difference;
use super::limits::Class;
use crate::config::PoolState;
use crate::failmode::FailMode;
use crate::find::FoundPool;

/// The error of a request where the system gave no number.
pub(super) const EIO: i32 = 5;
/// The error of wrong bytes (`ECKSUM`, which is `EBADE` on Linux).
const ECKSUM: i32 = 52;
/// `ETIMEDOUT`.
const ETIMEDOUT: i32 = 110;
/// The kinds of requests (`zio_type`).
const READ: u32 = 1;
const WRITE: u32 = 2;
const FLUSH: u32 = 5;
/// A pool that is open (`POOL_STATE_ACTIVE`).
const ACTIVE: u64 = 0;
/// Nothing is being loaded (`SPA_LOAD_NONE`).
const LOAD_NONE: i32 = 0;

/// The vdevs of a configuration, by guid.
pub(super) type ByGuid<T> = BTreeMap<Guid, T>;

/// Members of a record of the history, and their names in an event.
pub(super) const HISTORY: [(&str, &str); 10] = [
    ("history command", "history_command"),
    ("internal_name", "history_internal_name"),
    ("history zone", "history_zone"),
    ("history hostname", "history_hostname"),
    ("dsname", "history_dsname"),
    ("history internal str", "history_internal_str"),
    ("dsid", "history_dsid"),
    ("history txg", "history_txg"),
    ("history time", "history_time"),
    ("history who", "history_who"),
];

/// The request that an ereport is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    class: Class,
    error: i32,
    kind: u32,
    /// OpenZFS's priorities of requests are numbered as our classes.
    priority: Option<QueueClass>,
    offset_bytes: u64,
    size_bytes: u64,
    took_ns: Option<u64>,
}

impl Place {
    /// Of a device's fault; none of one that is no error of the device.
    pub(super) fn of_fault(fault: &Fault) -> Option<Self> {
        let number = |cause: IoCause| match cause.kind {
            std::io::ErrorKind::TimedOut => ETIMEDOUT,
            _ => cause.errno.unwrap_or(EIO),
        };
        // A flush has no place.
        let change = if fault.size_bytes == 0 { FLUSH } else { WRITE };
        let (class, error, kind) = match fault.kind {
            FaultKind::Unavailable | FaultKind::Stale | FaultKind::Overdue => return None,
            FaultKind::SatOut => (Class::SitOut, 0, READ),
            FaultKind::Checksum => (Class::Checksum, ECKSUM, READ),
            FaultKind::Read(cause) => (Class::Io, number(cause), READ),
            FaultKind::Write(cause) => (Class::Io, number(cause), change),
            FaultKind::Slow { is_write, .. } => (Class::Delay, 0, if is_write { change } else { READ }),
        };
        let (offset_bytes, size_bytes) = (fault.address_bytes, fault.size_bytes);
        let took_ns = match fault.kind {
            FaultKind::Slow { took, .. } => u64::try_from(took.as_nanos()).ok(),
            _ => None,
        };
        Some(Self { class, error, kind, priority: fault.class, offset_bytes, size_bytes, took_ns })
    }

    pub(super) const fn class(&self) -> Class {
        self.class
    }

    /// It was met by a scrub or the like, which repairs what it finds.
    pub(super) const fn is_of_scrub(&self) -> bool {
        matches!(self.priority, Some(QueueClass::Scrub))
    }

    /// Two requests with the same are the same.
    pub(super) const fn key(&self) -> (i32, u32, u64, u64) {
        (self.error, self.kind, self.offset_bytes, self.size_bytes)
    }

    pub(super) fn describe(&self, list: &mut NvList) {
        if matches!(self.class, Class::SitOut) {
            return;
        }
        list.push("zio_err", NvValue::Int32(self.error));
        if let Some(took_ns) = self.took_ns {
            list.push("zio_delay", took_ns);
            list.push("zio_delta", took_ns);
        }
        list.push("zio_type", NvValue::Uint32(self.kind));
        if let Some(class) = self.priority {
            list.push("zio_priority", NvValue::Uint32(class as u32));
        }
        list.push("zio_offset", self.offset_bytes);
        list.push("zio_size", self.size_bytes);
    }
}

/// An error numeric association of format 1: the time, without the processor.
pub(super) const fn ena(now_ns: u64) -> u64 {
    const FORMAT: u64 = 1;
    const TIME_SHIFT: u32 = 20;
    (now_ns << TIME_SHIFT) | FORMAT
}

/// The number of a leaf's state (`vdev_state_t`).
pub(super) const fn state(state: LeafState) -> u64 {
    match state {
        LeafState::Offline => 2,
        LeafState::Unavailable => 4,
        LeafState::Faulted => 5,
        LeafState::Degraded => 6,
        LeafState::Online => 7,
    }
}

/// The first members of an ereport.
pub(super) fn head(class: Class, pool: Guid, vdev: Guid, ena: u64) -> NvList {
    let mut detector = NvList::new();
    detector.push("version", NvValue::Uint8(0));
    detector.push("scheme", "zfs");
    detector.push("pool", pool.0);
    if vdev != Guid(0) {
        detector.push("vdev", vdev.0);
    }
    let mut list = NvList::new();
    list.push("class", format!("ereport.fs.zfs.{}", class.name()).as_str());
    list.push("ena", ena);
    list.push("detector", detector);
    list
}

/// The members of an ereport about the pool.
pub(super) fn pool(list: &mut NvList, name: &str, guid: Guid, failmode: FailMode) {
    list.push("pool", name);
    list.push("pool_guid", guid.0);
    list.push("pool_state", ACTIVE);
    list.push("pool_context", NvValue::Int32(LOAD_NONE));
    list.push(
        "pool_failmode",
        match failmode {
            FailMode::Wait => "wait",
            FailMode::Continue => "continue",
            FailMode::Panic => "panic",
        },
    );
}

/// The first members of an event that is no error.
pub(super) fn resource(class: &str, name: &str, guid: Guid) -> NvList {
    let mut list = NvList::new();
    list.push("version", NvValue::Uint8(0));
    list.push("class", class);
    list.push("pool", name);
    list.push("pool_guid", guid.0);
    list.push("pool_state", ACTIVE);
    list.push("pool_context", NvValue::Int32(LOAD_NONE));
    list
}

/// The block that was read.
pub(super) fn bookmark(list: &mut NvList, objset: ObjsetId, object: ObjectId, level: i64, block: BlockId) {
    list.push("zio_objset", objset.0);
    list.push("zio_object", object.0);
    list.push("zio_level", NvValue::Int64(level));
    list.push("zio_blkid", block.0);
}

/// The checksum that bytes have failed, and how they differ from the right ones, if that is known.
pub(super) fn evidence(list: &mut NvList, evidence: Evidence<'_>) {
    if let Some(about) = evidence.about.filter(|_| evidence.is_by_checksum)
        && let Some(checksum) = about.checksum
    {
        list.push("cksum_algorithm", checksum);
        if about.is_swapped {
            list.push("cksum_byteswap", NvValue::Boolean);
        }
    }
    if evidence.compared.is_empty() {
        return;
    }
    let difference = Difference::of(evidence.compared);
    list.push("bad_ranges", NvValue::Uint32Array(difference.bounds()));
    list.push("bad_ranges_min_gap", NvValue::Uint32(difference.gap_min_bytes()));
    list.push("bad_range_sets", NvValue::Uint32Array(difference.sets()));
    list.push("bad_range_clears", NvValue::Uint32Array(difference.clears()));
    if let Some((set, cleared)) = difference.bits(evidence.compared) {
        list.push("bad_set_bits", NvValue::Uint8Array(set));
        list.push("bad_cleared_bits", NvValue::Uint8Array(cleared));
    }
}

/// The members of events about a vdev.
#[derive(Debug)]
struct Facts {
    kind: &'static str,
    path: Option<String>,
    devid: Option<String>,
    phys_path: Option<String>,
    fru: Option<String>,
    enclosure_path: Option<String>,
    ashift: u32,
    /// Guid, type and path.
    parent: Option<(Guid, &'static str, Option<String>)>,
}

/// The members of events about the vdevs of a pool.
#[derive(Debug, Default)]
pub(super) struct Vdevs {
    by_guid: ByGuid<Facts>,
    spares: Vec<(String, Guid)>,
}

impl Vdevs {
    pub(super) fn new(root: &VdevConfig, found: &FoundPool) -> Self {
        let mut by_guid = ByGuid::new();
        enter(root, None, 0, &mut by_guid);
        let spares = found.auxiliaries.iter().filter(|(_, device)| device.state == PoolState::Spare);
        let spares = spares.map(|(guid, device)| (device.disk.path().to_string(), *guid)).collect();
        Self { by_guid, spares }
    }

    /// The vdev above one.
    pub(super) fn parent(&self, vdev: Guid) -> Option<Guid> {
        self.by_guid.get(&vdev)?.parent.as_ref().map(|(guid, ..)| *guid)
    }

    /// True of a disk or file.
    pub(super) fn is_device(&self, vdev: Guid) -> bool {
        self.by_guid.get(&vdev).is_some_and(|facts| matches!(facts.kind, "disk" | "file"))
    }

    /// The members of an ereport about a vdev, whose counts the tree has.
    pub(super) fn describe(&self, list: &mut NvList, vdev: Guid, tree: Option<&VdevTree>) {
        let Some(facts) = self.by_guid.get(&vdev) else { return };
        let errors = tree.and_then(|tree| tree.error_counts(vdev)).map(|errors| errors.totals()).unwrap_or_default();
        list.push("vdev_guid", vdev.0);
        list.push("vdev_type", facts.kind);
        for (name, text) in [
            ("vdev_path", &facts.path),
            ("vdev_devid", &facts.devid),
            ("vdev_fru", &facts.fru),
            ("vdev_enc_sysfs_path", &facts.enclosure_path),
        ] {
            if let Some(text) = text {
                list.push(name, text.as_str());
            }
        }
        if facts.ashift != 0 {
            list.push("vdev_ashift", u64::from(facts.ashift));
        }
        list.push("vdev_read_errors", errors.read);
        list.push("vdev_write_errors", errors.write);
        list.push("vdev_cksum_errors", errors.checksum);
        list.push("vdev_delays", tree.map_or(0, |tree| tree.slow_ios(vdev)));
        // Writes that go past the cache are copied first: nobody changes them meanwhile.
        list.push("dio_verify_errors", 0_u64);
        if let Some((guid, kind, path)) = &facts.parent {
            list.push("parent_guid", guid.0);
            list.push("parent_type", *kind);
            if let Some(path) = path {
                list.push("parent_path", path.as_str());
            }
        }
        let paths = self.spares.iter().map(|(path, _)| NvString::from(path.as_str())).collect();
        list.push("vdev_spare_paths", NvValue::StringArray(paths));
        list.push("vdev_spare_guids", NvValue::Uint64Array(self.spares.iter().map(|(_, guid)| guid.0).collect()));
    }

    /// The members of another event about a vdev, which is in this state.
    pub(super) fn name(&self, list: &mut NvList, vdev: Guid, state: u64) {
        list.push("vdev_guid", vdev.0);
        list.push("vdev_state", state);
        let Some(facts) = self.by_guid.get(&vdev) else { return };
        for (name, text) in [
            ("vdev_path", &facts.path),
            ("vdev_devid", &facts.devid),
            ("vdev_fru", &facts.fru),
            ("vdev_physpath", &facts.phys_path),
            ("vdev_enc_sysfs_path", &facts.enclosure_path),
        ] {
            if let Some(text) = text {
                list.push(name, text.as_str());
            }
        }
    }
}

/// Enters a vdev and those below it; `ashift` is that of their top-level vdev.
fn enter(vdev: &VdevConfig, parent: Option<&VdevConfig>, ashift: u32, by_guid: &mut ByGuid<Facts>) {
    let ashift = if vdev.ashift == 0 { ashift } else { vdev.ashift };
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
    let facts = Facts {
        kind: vdev.kind.name(),
        path: text(&vdev.path),
        devid: text(&vdev.devid),
        phys_path: text(&vdev.phys_path),
        fru: text(&vdev.fru),
        enclosure_path: text(&vdev.enclosure_path),
        ashift,
        parent: parent.map(|parent| (parent.guid, parent.kind.name(), text(&parent.path))),
    };
    by_guid.insert(vdev.guid, facts);
    // As deep as `VdevConfig::parse` let it become.
    vdev.children.iter().for_each(|child| enter(child, Some(vdev), ashift, by_guid));
}
