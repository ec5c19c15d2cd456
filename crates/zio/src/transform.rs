//! From physical to logical bytes: MACs, decryption, decompression.

use cenote_codec::compress;
use cenote_codec::crypt;
use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_taskq::buf::{Block, Buf};

use crate::{ReadContext, ZioErrorKind};

/// Whether the block is an objset's own block, whose MACs lie inside it.
pub(crate) fn is_objset(bp: &Blkptr) -> bool {
    bp.dmu_type() == DmuType::OBJSET
}

/// Whether the block can only be used with the dataset's key: level 0 of an encrypted dataset. (Indirect blocks have a
/// hash of the MACs below, which needs no key.)
pub(crate) fn needs_key(bp: &Blkptr) -> bool {
    bp.is_encrypted()
}

/// The data of an embedded pointer.
pub(crate) fn embedded(bp: &Blkptr) -> Result<Block, ZioErrorKind> {
    bp.verify()?;
    let payload = bp.embedded_payload().ok_or(ZioErrorKind::Redacted)?;
    decompress(bp, &payload)
}

/// Authenticates, decrypts and decompresses the verified physical bytes of `bp`.
pub(crate) fn to_logical(bp: &Blkptr, context: ReadContext<'_>, physical: Buf) -> Result<Block, ZioErrorKind> {
    if bp.level() > 0 {
        let logical = plain(bp, physical)?;
        if bp.uses_crypt() {
            let mac = bp.mac().ok_or_else(no_mac)?;
            crypt::verify_indirect_mac(&logical, bp.byte_order(), &mac).map_err(authentication)?;
        }
        return Ok(logical);
    }
    plain(bp, opened(bp, context, physical)?)
}

/// As [`to_logical`], of bytes that somebody else keeps.
pub(crate) fn logical_of(bp: &Blkptr, context: ReadContext<'_>, physical: &Block) -> Result<Block, ZioErrorKind> {
    match bp.compress() {
        _ if bp.uses_crypt() => to_logical(bp, context, Buf::copied_from(physical)),
        Some(Compress::Off) => Ok(physical.clone()),
        _ => decompress(bp, physical),
    }
}

/// Authenticates and decrypts the verified physical bytes of a block of level 0, which stay compressed.
pub(crate) fn opened(bp: &Blkptr, context: ReadContext<'_>, physical: Buf) -> Result<Buf, ZioErrorKind> {
    assert_eq!(bp.level(), 0, "an indirect block's MAC is that of the blocks below it, not of its bytes");
    if !bp.uses_crypt() {
        return Ok(physical);
    }
    if bp.is_authenticated() {
        // Without the key the data can be read (it is not secret), only not authenticated; OpenZFS does the same when it
        // walks a pool with keys unloaded.
        if let Some(key) = context.key {
            if is_objset(bp) {
                key.verify_objset(&physical, bp.byte_order()).map_err(authentication)?;
            } else {
                key.verify_mac(&physical, &bp.mac().ok_or_else(no_mac)?).map_err(authentication)?;
            }
        }
        return Ok(physical);
    }
    let Some(key) = context.key else { return Err(ZioErrorKind::KeyNotLoaded) };
    let Some(stored) = bp.crypt_params() else {
        return Err(FormatError::malformed("blkptr", 0, "an encrypted block without encryption parameters").into());
    };
    let params = crypt::BlockParams { salt: stored.salt_bytes, iv: stored.iv, mac: stored.mac };
    let layout = crypt::BlockLayout::of_object_type(bp.object_type());
    let mut physical = physical;
    key.decrypt(layout, bp.byte_order(), &params, &mut physical).map_err(authentication)?;
    Ok(physical)
}

fn authentication(error: crypt::CryptError) -> ZioErrorKind {
    ZioErrorKind::Authentication(error.to_string())
}

fn no_mac() -> FormatError {
    FormatError::malformed("blkptr", 0, "an authenticated block without a MAC")
}

fn plain(bp: &Blkptr, physical: Buf) -> Result<Block, ZioErrorKind> {
    if bp.compress() == Some(Compress::Off) {
        return Ok(physical.freeze());
    }
    decompress(bp, &physical)
}

fn decompress(bp: &Blkptr, source: &[u8]) -> Result<Block, ZioErrorKind> {
    let kind =
        bp.compress().ok_or(ZioErrorKind::UnknownAlgorithm { what: "compression", number: bp.compress_number() })?;
    let mut target = Buf::zeroed(usize::try_from(bp.lsize_bytes()).unwrap_or(usize::MAX));
    if kind == Compress::Off {
        let len = source.len().min(target.len());
        target[..len].copy_from_slice(&source[..len]);
    } else {
        compress::decompress(kind, source, &mut target)?;
    }
    Ok(target.freeze())
}
