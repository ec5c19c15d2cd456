//! Whether vdevs have the redundancy of the rest of their pool: a pool is lost with any of them, so the weakest decides.
//!
//! OpenZFS's rules: log devices do not count; a raidz or draid goes with a mirror that survives as many failures; else kind,
//! parity and number of devices are to be the same, devices in one vdev of one size and all of them files, or none.

use std::path::Path;

use cenote_spa::TopKind;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};

use crate::HostError;
use crate::layout::{Layout, Top};

/// Devices' sizes may differ by this much.
const SIZE_FUZZ_BYTES: u64 = 16 << 20;

/// The fields of a vdev that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    kind: &'static str,
    parity: u64,
    children: u64,
}

impl Level {
    /// Of a vdev of a pool; nothing for what does not count.
    fn of_config(top: &VdevConfig) -> Option<Self> {
        if top.class == AllocationClass::Log {
            return None;
        }
        let parity = match top.kind {
            VdevKind::Raidz { parity, .. } | VdevKind::Draid { parity, .. } => parity,
            VdevKind::Hole | VdevKind::Indirect(_) | VdevKind::Missing => return None,
            _ => 0,
        };
        Some(Self { kind: top.kind.name(), parity, children: top.children.len().max(1) as u64 })
    }

    fn of_top(top: &Top, is_file: impl Fn(&Path) -> bool) -> Option<Self> {
        if top.class == AllocationClass::Log {
            return None;
        }
        let (kind, parity) = match top.kind {
            TopKind::Single if top.paths.iter().all(|path| is_file(path)) => ("file", 0),
            TopKind::Single => ("disk", 0),
            TopKind::Mirror => ("mirror", 0),
            TopKind::Raidz { parity } => ("raidz", parity),
            TopKind::Draid { parity, .. } => ("draid", parity),
        };
        Some(Self { kind, parity, children: top.paths.len() as u64 })
    }

    const fn is_stripe(&self) -> bool {
        self.parity > 0
    }

    /// How many devices may fail.
    fn failures(&self) -> u64 {
        if self.kind == "mirror" { self.children - 1 } else { self.parity }
    }

    /// Whether kinds that differ may stand beside each other, if they survive as many failures.
    fn is_comparable(&self, other: &Self) -> bool {
        let goes = |a: &Self, b: &Self| a.is_stripe() && (b.kind == "mirror" || b.is_stripe());
        self.kind != other.kind && (goes(self, other) || goes(other, self))
    }

    /// The objection to both in one specification.
    fn differs(&self, other: &Self) -> Option<String> {
        if self.is_comparable(other) {
            let differ = self.failures() != other.failures();
            return differ.then(|| {
                format!(
                    "{} and {} vdevs with different redundancy, {} vs. {} are present",
                    self.kind,
                    other.kind,
                    self.failures(),
                    other.failures()
                )
            });
        }
        if self.kind != other.kind {
            return Some(format!("both {} and {} vdevs are present", self.kind, other.kind));
        }
        if self.parity != other.parity {
            let kind = self.kind;
            return Some(format!("both {} and {} device parity {kind} vdevs are present", self.parity, other.parity));
        }
        (self.children != other.children)
            .then(|| format!("both {}-way and {}-way {} vdevs are present", self.children, other.children, self.kind))
    }

    /// The objection to adding this one to a pool that has the other.
    fn differs_from_pool(&self, pool: &Self) -> Option<String> {
        if self.is_comparable(pool) {
            let differ = self.failures() != pool.failures();
            return differ.then(|| {
                format!(
                    "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {}",
                    pool.kind,
                    self.kind,
                    pool.failures(),
                    self.failures()
                )
            });
        }
        if self.kind != pool.kind {
            return Some(format!("pool uses {} and new vdev is {}", pool.kind, self.kind));
        }
        if self.parity != pool.parity {
            return Some(format!("pool uses {} device parity and new vdev uses {}", pool.parity, self.parity));
        }
        (self.children != pool.children).then(|| {
            format!(
                "pool uses {}-way {} and new vdev uses {}-way {}",
                pool.children, pool.kind, self.children, self.kind
            )
        })
    }
}

/// A device before it is opened: whether it is (or will be) a file, and its size if it is there.
fn look(path: &Path) -> (bool, Option<u64>) {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => (true, Some(meta.len())),
        Ok(_) => (false, None),
        Err(_) => (true, None),
    }
}

/// The objection to the vdevs of a new pool, or to vdevs added to those of a pool; `look` says what devices are.
fn mismatch(pool: Option<&VdevConfig>, tops: &[Top], look: impl Fn(&Path) -> (bool, Option<u64>)) -> Option<String> {
    let said = |what: String| Some(format!("mismatched replication level: {what}"));
    // A pool that is mixed already is not made worse.
    let mut old: Option<Level> = None;
    for level in pool.into_iter().flat_map(|pool| &pool.children).filter_map(Level::of_config) {
        if old.is_some_and(|old| old.differs(&level).is_some()) {
            return None;
        }
        old = Some(level);
    }
    let mut last: Option<Level> = None;
    for top in tops {
        let Some(level) = Level::of_top(top, |path| look(path).0) else { continue };
        let kinds = || top.paths.iter().map(|path| look(path).0);
        if top.paths.len() > 1 && kinds().any(|is_file| is_file) && !kinds().all(|is_file| is_file) {
            return said(format!("{} contains both files and devices", level.kind));
        }
        let sizes = || top.paths.iter().filter_map(|path| look(path).1).filter(|size| *size > 0);
        if let (Some(least), Some(most)) = (sizes().min(), sizes().max())
            && most - least > SIZE_FUZZ_BYTES
        {
            return Some(format!("{} contains devices of different sizes", level.kind));
        }
        if let Some(what) = last.and_then(|last| last.differs(&level)) {
            return said(what);
        }
        last = Some(level);
    }
    match (old, last) {
        (Some(old), Some(new)) => new.differs_from_pool(&old).and_then(said),
        _ => None,
    }
}

/// Refuses vdevs that are not as redundant as the rest.
pub fn refuse_mismatch(pool: Option<&VdevConfig>, layout: &Layout) -> Result<(), HostError> {
    match mismatch(pool, &layout.tops, look) {
        Some(what) => Err(HostError::Overridable(what)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::parse_layout;

    fn check(line: &str) -> Option<String> {
        let layout = parse_layout(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
        // Names tell: `d` is a device, `big` larger than the rest.
        mismatch(None, &layout.tops, |path| {
            let name = path.display().to_string();
            (!name.contains("/d"), Some(if name.contains("big") { 200 << 20 } else { 100 << 20 }))
        })
    }

    #[test]
    fn what_is_as_redundant_as_the_rest_may_be_beside_it() {
        for line in [
            "/a /b",
            "mirror /a /b mirror /c /e log /f",
            "mirror /a /b special mirror /c /e",
            "raidz2 /a /b /c /e mirror /f /g /h",
            "raidz1 /a /b /c draid1:2d /e /f /g",
            "mirror /a /b raidz /c /e /f",
        ] {
            assert_eq!(check(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_not_is_named_in_openzfs_words() {
        for (line, what) in [
            ("/a mirror /b /c", "both file and mirror vdevs are present"),
            ("mirror /a /b special /c", "both mirror and file vdevs are present"),
            ("mirror /a /b mirror /c /e /f", "both 2-way and 3-way mirror vdevs are present"),
            ("raidz1 /a /b /c raidz2 /e /f /g", "both 1 and 2 device parity raidz vdevs are present"),
            (
                "raidz1 /a /b /c mirror /e /f /g",
                "raidz and mirror vdevs with different redundancy, 1 vs. 2 are present",
            ),
            ("mirror /a /d", "mirror contains both files and devices"),
            ("mirror /a /big", "mirror contains devices of different sizes"),
        ] {
            let found = check(line).unwrap_or_default();
            assert!(found.contains(what), "{line}: {found}");
        }
    }

    #[test]
    fn a_pool_gets_what_it_has() {
        let mut mirror = cenote_format::nvlist::NvList::new();
        let leaf = |guid: u64| {
            let mut list = cenote_format::nvlist::NvList::new();
            list.push("type", "file");
            list.push("id", 0_u64);
            list.push("guid", guid);
            list
        };
        mirror.push("type", "mirror");
        mirror.push("id", 0_u64);
        mirror.push("guid", 5_u64);
        mirror.push("children", cenote_format::nvlist::NvValue::NvlistArray(vec![leaf(6), leaf(7)]));
        let mut root = cenote_format::nvlist::NvList::new();
        root.push("type", "root");
        root.push("id", 0_u64);
        root.push("guid", 1_u64);
        root.push("children", cenote_format::nvlist::NvValue::NvlistArray(vec![mirror]));
        let pool = VdevConfig::parse(&root).unwrap();
        let add = |line: &str| {
            let layout = parse_layout(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
            mismatch(Some(&pool), &layout.tops, |_| (true, None))
        };
        assert_eq!(add("mirror /a /b"), None);
        assert_eq!(add("log /a"), None);
        assert_eq!(add("spare /a"), None);
        assert_eq!(add("raidz1 /a /b /c"), None);
        assert!(add("/a").unwrap().contains("pool uses mirror and new vdev is file"));
        assert!(add("mirror /a /b /c").unwrap().contains("pool uses 2-way mirror and new vdev uses 3-way mirror"));
        assert!(add("raidz2 /a /b /c").unwrap().contains("different redundancy, mirror and raidz vdevs, 1 vs. 2"));
    }
}
