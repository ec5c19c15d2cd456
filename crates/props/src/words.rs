//! The words of indices and their numbers on disk.

type Words = &'static [(&'static str, u64)];

pub(crate) const BOOLEAN: Words = &[("off", 0), ("on", 1)];
pub(crate) const CHECKSUM: Words = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];
/// In `dedup`, added to a checksum's number: compare the contents too.
const VERIFY: u64 = 1 << 8;
pub(crate) const DEDUP: Words = &[
    ("on", 1),
    ("off", 2),
    ("verify", 1 | VERIFY),
    ("sha256", 8),
    ("sha256,verify", 8 | VERIFY),
    ("sha512", 11),
    ("sha512,verify", 11 | VERIFY),
    ("skein", 12),
    ("skein,verify", 12 | VERIFY),
    ("edonr,verify", 13 | VERIFY),
    ("blake3", 14),
    ("blake3,verify", 14 | VERIFY),
];
/// Zstandard with a level: the level above the seven bits of the algorithm.
const fn zstd(level: u64) -> u64 {
    16 | level << 7
}
/// Zstandard's fast levels begin here.
const FAST: u64 = 102;
pub(crate) const COMPRESS: Words = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-fast", zstd(FAST + 1)),
    ("zstd-1", zstd(1)),
    ("zstd-2", zstd(2)),
    ("zstd-3", zstd(3)),
    ("zstd-4", zstd(4)),
    ("zstd-5", zstd(5)),
    ("zstd-6", zstd(6)),
    ("zstd-7", zstd(7)),
    ("zstd-8", zstd(8)),
    ("zstd-9", zstd(9)),
    ("zstd-10", zstd(10)),
    ("zstd-11", zstd(11)),
    ("zstd-12", zstd(12)),
    ("zstd-13", zstd(13)),
    ("zstd-14", zstd(14)),
    ("zstd-15", zstd(15)),
    ("zstd-16", zstd(16)),
    ("zstd-17", zstd(17)),
    ("zstd-18", zstd(18)),
    ("zstd-19", zstd(19)),
    ("zstd-fast-1", zstd(FAST + 1)),
    ("zstd-fast-2", zstd(FAST + 2)),
    ("zstd-fast-3", zstd(FAST + 3)),
    ("zstd-fast-4", zstd(FAST + 4)),
    ("zstd-fast-5", zstd(FAST + 5)),
    ("zstd-fast-6", zstd(FAST + 6)),
    ("zstd-fast-7", zstd(FAST + 7)),
    ("zstd-fast-8", zstd(FAST + 8)),
    ("zstd-fast-9", zstd(FAST + 9)),
    ("zstd-fast-10", zstd(FAST + 10)),
    ("zstd-fast-20", zstd(FAST + 11)),
    ("zstd-fast-30", zstd(FAST + 12)),
    ("zstd-fast-40", zstd(FAST + 13)),
    ("zstd-fast-50", zstd(FAST + 14)),
    ("zstd-fast-60", zstd(FAST + 15)),
    ("zstd-fast-70", zstd(FAST + 16)),
    ("zstd-fast-80", zstd(FAST + 17)),
    ("zstd-fast-90", zstd(FAST + 18)),
    ("zstd-fast-100", zstd(FAST + 19)),
    ("zstd-fast-500", zstd(FAST + 20)),
    ("zstd-fast-1000", zstd(FAST + 21)),
];
pub(crate) const CRYPTO: Words = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];
pub(crate) const KEYFORMAT: Words = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
pub(crate) const KEYSTATUS: Words = &[("none", 0), ("unavailable", 1), ("available", 2)];
pub(crate) const SNAPDIR: Words = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
pub(crate) const SNAPDEV: Words = &[("hidden", 0), ("visible", 1)];
pub(crate) const ACL_MODE: Words = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
pub(crate) const ACLTYPE: Words =
    &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];
pub(crate) const ACL_INHERIT: Words =
    &[("discard", 0), ("noallow", 1), ("restricted", 4), ("passthrough", 3), ("secure", 4), ("passthrough-x", 5)];
pub(crate) const CASE: Words = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
pub(crate) const COPIES: Words = &[("1", 1), ("2", 2), ("3", 3)];
pub(crate) const NORMALIZE: Words =
    &[("none", 0), ("formD", 0x10), ("formKC", 0x60), ("formC", 0x50), ("formKD", 0x20)];
pub(crate) const VERSION: Words = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];
pub(crate) const LOGBIAS: Words = &[("latency", 0), ("throughput", 1)];
pub(crate) const CANMOUNT: Words = &[("off", 0), ("on", 1), ("noauto", 2)];
pub(crate) const CACHE: Words = &[("none", 0), ("metadata", 1), ("all", 2)];
/// The blocks to read ahead.
pub(crate) const PREFETCH: Words = CACHE;
pub(crate) const SYNC: Words = &[("standard", 0), ("always", 1), ("disabled", 2)];
/// `on` is stored as what it means: as system attributes.
pub(crate) const XATTR: Words = &[("off", 0), ("on", 2), ("sa", 2), ("dir", 1)];
pub(crate) const DNSIZE: Words = &[
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1 << 10),
    ("2k", 2 << 10),
    ("4k", 4 << 10),
    ("8k", 8 << 10),
    ("16k", 16 << 10),
];
pub(crate) const REDUNDANT_METADATA: Words = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
pub(crate) const VOLMODE: Words = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
pub(crate) const DIRECT: Words = &[("disabled", 0), ("standard", 1), ("always", 2)];
pub(crate) const FAILMODE: Words = &[("wait", 0), ("continue", 1), ("panic", 2)];
