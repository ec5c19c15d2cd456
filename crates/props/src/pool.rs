//! The properties of pools.

use crate::Attribute::{Default, Once, ReadOnly};
use crate::kinds::{index, number, text};
use crate::words::{BOOLEAN, FAILMODE};
use crate::{Attribute, Kind, Property, Types};

const fn p(name: &'static str, column: &'static str, kind: Kind, attribute: Attribute) -> Property {
    Property::new(name, column, kind, attribute, Types::POOL)
}

/// All of them, in the order of `zpool get all`.
pub const PROPERTIES: &[Property] = &[
    p("name", "NAME", text(None), ReadOnly).hidden(),
    p("size", "SIZE", number(0), ReadOnly),
    p("capacity", "CAP", number(0), ReadOnly),
    p("altroot", "ALTROOT", text(None), Default),
    p("health", "HEALTH", number(0), ReadOnly),
    p("guid", "GUID", number(0), ReadOnly),
    p("version", "VERSION", number(5000), Default),
    p("bootfs", "BOOTFS", text(None), Default),
    p("delegation", "DELEGATION", index(BOOLEAN, 1), Default),
    p("autoreplace", "REPLACE", index(BOOLEAN, 0), Default),
    p("cachefile", "CACHEFILE", text(None), Default),
    p("failmode", "FAILMODE", index(FAILMODE, 0), Default),
    p("listsnapshots", "LISTSNAPS", index(BOOLEAN, 0), Default),
    p("autoexpand", "EXPAND", index(BOOLEAN, 0), Default),
    p("dedupditto", "DEDUPDITTO", number(0), Default).hidden(),
    p("dedupratio", "DEDUP", number(0), ReadOnly),
    p("free", "FREE", number(0), ReadOnly),
    p("allocated", "ALLOC", number(0), ReadOnly),
    p("readonly", "RDONLY", index(BOOLEAN, 0), Default),
    p("ashift", "ASHIFT", number(0), Default),
    p("comment", "COMMENT", text(None), Default),
    p("expandsize", "EXPANDSZ", number(0), ReadOnly),
    p("freeing", "FREEING", number(0), ReadOnly),
    p("fragmentation", "FRAG", number(0), ReadOnly),
    p("leaked", "LEAKED", number(0), ReadOnly),
    p("maxblocksize", "MAXBLOCKSIZE", number(0), ReadOnly).hidden(),
    p("tname", "TNAME", text(None), Once).hidden(),
    p("maxdnodesize", "MAXDNODESIZE", number(0), ReadOnly).hidden(),
    p("multihost", "MULTIHOST", index(BOOLEAN, 0), Default),
    p("checkpoint", "CKPOINT", number(0), ReadOnly),
    p("load_guid", "LOAD_GUID", number(0), ReadOnly),
    p("autotrim", "AUTOTRIM", index(BOOLEAN, 0), Default),
    p("compatibility", "COMPATIBILITY", text(Some("off")), Default),
    p("bcloneused", "BCLONE_USED", number(0), ReadOnly),
    p("bclonesaved", "BCLONE_SAVED", number(0), ReadOnly),
    p("bcloneratio", "BCLONE_RATIO", number(0), ReadOnly),
    p("dedup_table_size", "DDTSIZE", number(0), ReadOnly),
    p("dedup_table_quota", "DDTQUOTA", number(u64::MAX), Default),
    p("last_scrubbed_txg", "LAST_SCRUBBED_TXG", number(0), ReadOnly),
];

/// The property of this name or column.
#[must_use]
pub fn find(name: &str) -> Option<&'static Property> {
    crate::find(PROPERTIES, name)
}

/// The prefix under which features are shown, as `feature@name`.
pub const FEATURE_PREFIX: &str = "feature@";
/// The prefix under which features that are not known are shown.
pub const UNSUPPORTED_PREFIX: &str = "unsupported@";
