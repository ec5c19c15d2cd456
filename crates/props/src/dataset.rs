//! The properties of file systems, volumes, snapshots and bookmarks.

use crate::Attribute::{Default, Inherit, Once, OnceDefault, ReadOnly};
use crate::kinds::{index, number, text};
use crate::words::*;
use crate::{Attribute, Kind, Property, Types};

const F: Types = Types::FILESYSTEM;
const V: Types = Types::VOLUME;
const S: Types = Types::SNAPSHOT;
const DATA: Types = Types::DATASET;
const ANY: Types = Types::DATASET.union(Types::BOOKMARK);

const fn p(name: &'static str, column: &'static str, kind: Kind, attribute: Attribute, types: Types) -> Property {
    Property::new(name, column, kind, attribute, types)
}

/// All of them, in the order of `zfs get all`.
pub const PROPERTIES: &[Property] = &[
    p("type", "TYPE", text(None), ReadOnly, ANY),
    p("creation", "CREATION", number(0), ReadOnly, ANY).flexible(),
    p("used", "USED", number(0), ReadOnly, DATA),
    p("available", "AVAIL", number(0), ReadOnly, F.union(V)),
    p("referenced", "REFER", number(0), ReadOnly, ANY),
    p("compressratio", "RATIO", number(0), ReadOnly, ANY),
    p("mounted", "MOUNTED", index(BOOLEAN, 0), ReadOnly, F),
    p("origin", "ORIGIN", text(None), ReadOnly, F.union(V)),
    p("quota", "QUOTA", number(0), Default, F),
    p("reservation", "RESERV", number(0), Default, F.union(V)),
    p("volsize", "VOLSIZE", number(0), Default, V.union(S)),
    p("volblocksize", "VOLBLOCK", number(16 << 10), Once, V),
    p("recordsize", "RECSIZE", number(128 << 10), Inherit, F),
    p("mountpoint", "MOUNTPOINT", text(Some("/")), Inherit, F),
    p("sharenfs", "SHARENFS", text(Some("off")), Inherit, F),
    p("checksum", "CHECKSUM", index(CHECKSUM, 1), Inherit, F.union(V)),
    p("compression", "COMPRESS", index(COMPRESS, 1), Inherit, F.union(V)),
    p("atime", "ATIME", index(BOOLEAN, 1), Inherit, F),
    p("devices", "DEVICES", index(BOOLEAN, 1), Inherit, F.union(S)),
    p("exec", "EXEC", index(BOOLEAN, 1), Inherit, F.union(S)),
    p("setuid", "SETUID", index(BOOLEAN, 1), Inherit, F.union(S)),
    p("readonly", "RDONLY", index(BOOLEAN, 0), Inherit, F.union(V)),
    p("zoned", "ZONED", index(BOOLEAN, 0), Inherit, F),
    p("snapdir", "SNAPDIR", index(SNAPDIR, 0), Inherit, F),
    p("aclmode", "ACLMODE", index(ACL_MODE, 0), Inherit, F),
    p("aclinherit", "ACLINHERIT", index(ACL_INHERIT, 4), Inherit, F),
    p("createtxg", "CREATETXG", number(0), ReadOnly, ANY),
    p("name", "NAME", text(None), ReadOnly, ANY).hidden(),
    p("canmount", "CANMOUNT", index(CANMOUNT, 1), Default, F),
    p("iscsioptions", "ISCSIOPTIONS", text(None), Inherit, V).hidden(),
    p("xattr", "XATTR", index(XATTR, 2), Inherit, F.union(S)),
    p("numclones", "NUMCLONES", number(0), ReadOnly, S).hidden(),
    p("copies", "COPIES", index(COPIES, 1), Inherit, F.union(V)),
    p("version", "VERSION", index(VERSION, 0), Default, F.union(S)),
    p("utf8only", "UTF8ONLY", index(BOOLEAN, 0), Once, F.union(S)),
    p("normalization", "NORMALIZATION", index(NORMALIZE, 0), Once, F.union(S)),
    p("casesensitivity", "CASE", index(CASE, 0), Once, F.union(S)),
    p("vscan", "VSCAN", index(BOOLEAN, 0), Inherit, F),
    p("nbmand", "NBMAND", index(BOOLEAN, 0), Inherit, F.union(S)),
    p("sharesmb", "SHARESMB", text(Some("off")), Inherit, F),
    p("refquota", "REFQUOTA", number(0), Default, F),
    p("refreservation", "REFRESERV", number(0), Default, F.union(V)),
    p("guid", "GUID", number(0), ReadOnly, ANY),
    p("primarycache", "PRIMARYCACHE", index(CACHE, 2), Inherit, DATA),
    p("secondarycache", "SECONDARYCACHE", index(CACHE, 2), Inherit, DATA),
    p("usedbysnapshots", "USEDSNAP", number(0), ReadOnly, F.union(V)),
    p("usedbydataset", "USEDDS", number(0), ReadOnly, F.union(V)),
    p("usedbychildren", "USEDCHILD", number(0), ReadOnly, F.union(V)),
    p("usedbyrefreservation", "USEDREFRESERV", number(0), ReadOnly, F.union(V)),
    p("useraccounting", "USERACCOUNTING", number(0), ReadOnly, DATA).hidden(),
    p("stmf_sbd_lu", "STMF_SBD_LU", text(None), Inherit, V).hidden(),
    p("defer_destroy", "DEFER_DESTROY", index(BOOLEAN, 0), ReadOnly, S),
    p("userrefs", "USERREFS", number(0), ReadOnly, S),
    p("logbias", "LOGBIAS", index(LOGBIAS, 0), Inherit, F.union(V)),
    p("unique", "UNIQUE", number(0), ReadOnly, DATA).hidden(),
    p("objsetid", "OBJSETID", number(0), ReadOnly, DATA),
    p("dedup", "DEDUP", index(DEDUP, 2), Inherit, F.union(V)),
    p("mlslabel", "MLSLABEL", text(Some("none")), Inherit, DATA),
    p("sync", "SYNC", index(SYNC, 0), Inherit, F.union(V)),
    p("dnodesize", "DNSIZE", index(DNSIZE, 0), Inherit, F),
    p("refcompressratio", "REFRATIO", number(0), ReadOnly, DATA),
    p("written", "WRITTEN", number(0), ReadOnly, DATA),
    p("clones", "CLONES", text(None), ReadOnly, S),
    p("logicalused", "LUSED", number(0), ReadOnly, F.union(V)),
    p("logicalreferenced", "LREFER", number(0), ReadOnly, ANY),
    p("inconsistent", "INCONSISTENT", number(0), ReadOnly, DATA).hidden(),
    p("volmode", "VOLMODE", index(VOLMODE, 0), Inherit, F.union(V)),
    p("filesystem_limit", "FSLIMIT", number(u64::MAX), Default, F),
    p("snapshot_limit", "SSLIMIT", number(u64::MAX), Default, F.union(V)),
    p("filesystem_count", "FSCOUNT", number(u64::MAX), ReadOnly, F),
    p("snapshot_count", "SSCOUNT", number(u64::MAX), ReadOnly, F.union(V)),
    p("snapdev", "SNAPDEV", index(SNAPDEV, 0), Inherit, F.union(V)),
    p("acltype", "ACLTYPE", index(ACLTYPE, 0), Inherit, F.union(S)),
    p("context", "CONTEXT", text(Some("none")), Default, DATA),
    p("fscontext", "FSCONTEXT", text(Some("none")), Default, DATA),
    p("defcontext", "DEFCONTEXT", text(Some("none")), Default, DATA),
    p("rootcontext", "ROOTCONTEXT", text(Some("none")), Default, DATA),
    p("relatime", "RELATIME", index(BOOLEAN, 1), Inherit, F),
    p("redundant_metadata", "REDUND_MD", index(REDUNDANT_METADATA, 0), Inherit, F.union(V)),
    p("overlay", "OVERLAY", index(BOOLEAN, 1), Inherit, F),
    p("prevsnap", "PREVSNAP", text(None), ReadOnly, F.union(V)).hidden(),
    p("receive_resume_token", "RESUMETOK", text(None), ReadOnly, F.union(V)),
    p("encryption", "ENCRYPTION", index(CRYPTO, 2), Once, DATA),
    p("keylocation", "KEYLOCATION", text(Some("none")), Default, F.union(V)),
    p("keyformat", "KEYFORMAT", index(KEYFORMAT, 0), OnceDefault, F.union(V)),
    p("pbkdf2salt", "PBKDF2SALT", number(0), OnceDefault, F.union(V)).hidden(),
    p("pbkdf2iters", "PBKDF2ITERS", number(0), OnceDefault, F.union(V)),
    p("encryptionroot", "ENCROOT", text(None), ReadOnly, DATA),
    p("keyguid", "KEYGUID", number(0), ReadOnly, DATA).hidden(),
    p("keystatus", "KEYSTATUS", index(KEYSTATUS, 0), ReadOnly, DATA),
    p("remaptxg", "REMAPTXG", number(0), ReadOnly, DATA).hidden(),
    p("special_small_blocks", "SPECIAL_SMALL_BLOCKS", number(0), Inherit, F),
    p("ivsetguid", "IVSETGUID", number(0), ReadOnly, ANY).hidden(),
    p("redacted", "REDACTED", number(0), ReadOnly, DATA).hidden(),
    p("redact_snaps", "RSNAPS", text(None), ReadOnly, ANY),
    p("snapshots_changed", "SNAPSHOTS_CHANGED", number(0), ReadOnly, F.union(V)).flexible(),
    p("prefetch", "PREFETCH", index(PREFETCH, 2), Inherit, DATA),
    p("volthreading", "VOLTHREAD", index(BOOLEAN, 1), Default, V),
    p("direct", "DIRECT", index(DIRECT, 1), Inherit, F),
    p("longname", "LONGNAME", index(BOOLEAN, 0), Inherit, F),
];

/// Prefixes of properties that exist for each user, group and project: `userused@alice`.
pub const SPACE_PREFIXES: [&str; 12] = [
    "userused@",
    "userquota@",
    "groupused@",
    "groupquota@",
    "userobjused@",
    "userobjquota@",
    "groupobjused@",
    "groupobjquota@",
    "projectused@",
    "projectquota@",
    "projectobjused@",
    "projectobjquota@",
];

/// The property of this name or column.
#[must_use]
pub fn find(name: &str) -> Option<&'static Property> {
    crate::find(PROPERTIES, name)
}
