//! The properties of vdevs.

use crate::Attribute::{Default, ReadOnly};
use crate::kinds::{index, number, text};
use crate::words::{BOOLEAN, BOOLEAN_INHERIT};
use crate::{Attribute, Kind, Property, Types};

const fn p(name: &'static str, column: &'static str, kind: Kind, attribute: Attribute) -> Property {
    Property::new(name, column, kind, attribute, Types::VDEV)
}

/// All of them, in the order of `zpool get all`.
pub const PROPERTIES: &[Property] = &[
    p("name", "NAME", text(None), ReadOnly).hidden(),
    p("capacity", "CAP", number(0), ReadOnly),
    p("state", "STATE", number(0), ReadOnly),
    p("guid", "GUID", number(0), ReadOnly),
    p("asize", "ASIZE", number(0), ReadOnly),
    p("psize", "PSIZE", number(0), ReadOnly),
    p("ashift", "ASHIFT", number(0), ReadOnly),
    p("size", "SIZE", number(0), ReadOnly),
    p("free", "FREE", number(0), ReadOnly),
    p("allocated", "ALLOC", number(0), ReadOnly),
    p("comment", "COMMENT", text(None), Default),
    p("expandsize", "EXPANDSZ", number(0), ReadOnly),
    p("fragmentation", "FRAG", number(0), ReadOnly),
    p("bootsize", "BOOTSIZE", number(0), ReadOnly),
    p("parity", "PARITY", number(0), ReadOnly),
    p("path", "PATH", text(None), Default),
    p("devid", "DEVID", text(None), ReadOnly),
    p("physpath", "PHYSPATH", text(None), ReadOnly),
    p("encpath", "ENCPATH", text(None), ReadOnly),
    p("fru", "FRU", text(None), ReadOnly),
    p("parent", "PARENT", text(None), ReadOnly),
    p("children", "CHILDREN", text(None), ReadOnly),
    p("numchildren", "NUMCHILD", number(0), ReadOnly),
    p("read_errors", "RDERR", number(0), ReadOnly),
    p("write_errors", "WRERR", number(0), ReadOnly),
    p("checksum_errors", "CKERR", number(0), ReadOnly),
    p("initialize_errors", "INITERR", number(0), ReadOnly),
    p("null_ops", "NULLOP", number(0), ReadOnly),
    p("read_ops", "READOP", number(0), ReadOnly),
    p("write_ops", "WRITEOP", number(0), ReadOnly),
    p("free_ops", "FREEOP", number(0), ReadOnly),
    p("claim_ops", "CLAIMOP", number(0), ReadOnly),
    p("trim_ops", "TRIMOP", number(0), ReadOnly),
    p("null_bytes", "NULLBYTE", number(0), ReadOnly),
    p("read_bytes", "READBYTE", number(0), ReadOnly),
    p("write_bytes", "WRITEBYTE", number(0), ReadOnly),
    p("free_bytes", "FREEBYTE", number(0), ReadOnly),
    p("claim_bytes", "CLAIMBYTE", number(0), ReadOnly),
    p("trim_bytes", "TRIMBYTE", number(0), ReadOnly),
    p("removing", "REMOVING", index(BOOLEAN, 0), ReadOnly),
    p("allocating", "ALLOCATING", index(BOOLEAN, 1), Default),
    p("failfast", "FAILFAST", index(BOOLEAN_INHERIT, 0), Default),
    p("checksum_n", "CKSUM_N", number(u64::MAX), Default),
    p("checksum_t", "CKSUM_T", number(u64::MAX), Default),
    p("io_n", "IO_N", number(u64::MAX), Default),
    p("io_t", "IO_T", number(u64::MAX), Default),
    p("raidz_expanding", "RAIDZ_EXPANDING", index(BOOLEAN, 0), ReadOnly),
    p("slow_io_n", "SLOW_IO_N", number(u64::MAX), Default),
    p("slow_io_t", "SLOW_IO_T", number(u64::MAX), Default),
    p("trim_support", "TRIMSUP", index(BOOLEAN, 0), ReadOnly),
    p("trim_errors", "TRIMERR", number(0), ReadOnly),
    p("slow_ios", "SLOW", number(0), ReadOnly),
];

/// The property of this name or column.
#[must_use]
pub fn find(name: &str) -> Option<&'static Property> {
    crate::find(PROPERTIES, name)
}
