//! The features of a stream, which its receiver must know: from the request and the dataset.

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::ObjsetType;
use cenote_format::stream::Features;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::View;

use super::error::SenderError;
use super::{SendFlags, source::Source};

/// The first version of file systems with system attributes, which may have spill blocks.
const ZPL_VERSION_SA: u64 = 5;

const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
const LONGNAME: &str = "org.zfsonlinux:longname";
const LARGE_MICROZAP: &str = "com.klarasystems:large_microzap";
const ZSTD: &str = "org.freebsd:zstd_compress";
const LZ4: &str = "org.illumos:lz4_compress";
const EMBEDDED_DATA: &str = "com.delphix:embedded_data";

/// The features of a stream of `source` with `flags`.
pub(super) async fn features(pool: &View, source: &Source, flags: SendFlags) -> Result<Features, SenderError> {
    let mut features = Features::empty();
    if has_spills(source).await? {
        features |= Features::SA_SPILL;
    }
    let has = async |guid| Ok::<_, SenderError>(pool.dsl().has_noted(source.dataset.object, guid).await?);
    let is_active = async |guid: &str| -> Result<bool, SenderError> {
        for entry in [pool_directory::FEATURES_FOR_READ, pool_directory::FEATURES_FOR_WRITE] {
            if pool.feature_counts(entry).await?.get(guid).is_some_and(|count| *count > 0) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let is_raw = flags.raw && source.is_encrypted;
    if (flags.large_blocks || flags.raw) && has(LARGE_BLOCKS).await? {
        features |= Features::LARGE_BLOCKS;
    }
    // An encrypted dataset has no data in block pointers.
    if (flags.embedded || flags.raw) && !source.is_encrypted && is_active(EMBEDDED_DATA).await? {
        features |= Features::EMBED_DATA;
    }
    if flags.compressed || flags.raw {
        features |= Features::COMPRESSED;
    }
    if is_raw {
        features |= Features::RAW;
    }
    if features.intersects(Features::EMBED_DATA | Features::COMPRESSED | Features::RAW) && is_active(LZ4).await? {
        features |= Features::LZ4;
    }
    // Not for embedded data alone: a receiver without zstd gets that decompressed.
    if features.intersects(Features::COMPRESSED | Features::RAW) && has(ZSTD).await? {
        features |= Features::ZSTD;
    }
    if has(LARGE_DNODE).await? {
        features |= Features::LARGE_DNODE;
    }
    if has(LONGNAME).await? {
        features |= Features::LONGNAME;
    }
    if has(LARGE_MICROZAP).await? {
        if !features.contains(Features::LARGE_BLOCKS) {
            return Err(SenderError::LargeMicrozap);
        }
        features |= Features::LARGE_MICROZAP;
    }
    Ok(features)
}

/// True if files may have spill blocks.
async fn has_spills(source: &Source) -> Result<bool, SenderError> {
    Ok(source.objset_type == ObjsetType::Zfs && zpl_version(source).await? >= ZPL_VERSION_SA)
}

/// The version of a file system. Its master node is not encrypted.
async fn zpl_version(source: &Source) -> Result<u64, SenderError> {
    let invalid = || SenderError::Invalid { dataset: source.name(), what: "a file system without a version" };
    let master = source.objset.object(MASTER_NODE).await?;
    let version = Zap::open(master).await?.find_u64(master_node::VERSION).await?;
    version.ok_or_else(invalid)
}
