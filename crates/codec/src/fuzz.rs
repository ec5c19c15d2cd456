//! Bodies of the fuzz targets: each takes arbitrary bytes and must return.

use cenote_format::Endian;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::Guid;

use crate::checksum::embedded::{seal_embedded, verify_embedded};
use crate::checksum::fletcher::{Fletcher4, Kernel};
use crate::compress;
use crate::crypt::{self, BlockLayout, BlockParams, CryptSuite, DatasetKey};

/// Largest block a fuzz body decodes into; large enough for every path, small enough to be fast.
const TARGET_MAX_BYTES: usize = (1 << 17) + 1;

/// First byte: algorithm. Next three: the logical size. The rest: the compressed block.
pub fn decompress(input: &[u8]) {
    let Some(([kind, s0, s1, s2], source)) = input.split_first_chunk() else { return };
    let Some(kind) = Compress::from_number(kind % 17) else { return };
    let len = u32::from_be_bytes([0, *s0, *s1, *s2]) as usize % TARGET_MAX_BYTES;
    let mut target = vec![0; len];
    let _ = compress::decompress(kind, source, &mut target);
}

/// First byte: algorithm. Second: level. The rest: a block, which must survive the way there and back.
pub fn compress_round_trip(input: &[u8]) {
    let Some(([kind, level], source)) = input.split_first_chunk() else { return };
    let Some(kind) = Compress::from_number(kind % 17) else { return };
    let Some(packed) = compress::compress(kind, compress::CompressLevel(*level), source, source.len()) else { return };
    let mut target = vec![0; source.len()];
    compress::decompress(kind, &packed, &mut target).expect("what was compressed decompresses");
    assert!(target == source, "what was compressed comes back");
}

/// First byte: layout, suite and order. The rest: a block, which is walked and refused, or sealed and opened again.
pub fn crypt_block(input: &[u8]) {
    let Some((selector, block)) = input.split_first() else { return };
    let layout = [BlockLayout::Normal, BlockLayout::Dnode, BlockLayout::IntentLog][usize::from(selector % 3)];
    let suite = CryptSuite::ALL[usize::from(selector / 3 % 6)];
    let order = if selector & 0x80 == 0 { Endian::Little } else { Endian::Big };
    let key = fuzz_key(suite);
    let salt_and_iv = ([1; crypt::SALT_BYTES], [2; crypt::IV_BYTES]);
    let params = BlockParams { salt: salt_and_iv.0, iv: salt_and_iv.1, ..BlockParams::default() };
    let opened = key.decrypt(layout, order, &params, &mut block.to_vec());
    assert!(opened.is_err(), "arbitrary bytes do not authenticate");

    let mut sealed = block.to_vec();
    let Ok(mac) = key.encrypt(layout, order, &params.salt, &params.iv, &mut sealed) else { return };
    let once = sealed.clone();
    key.decrypt(layout, order, &BlockParams { mac, ..params }, &mut sealed).expect("what was sealed opens");
    assert!(key.encrypt(layout, order, &params.salt, &params.iv, &mut sealed) == Ok(mac), "sealing is a function");
    assert!(sealed == once, "sealing is a function");
}

/// First byte: order. The rest: an objset block, and then an indirect one.
pub fn crypt_tree(input: &[u8]) {
    let Some((selector, block)) = input.split_first() else { return };
    let order = if selector & 1 == 0 { Endian::Little } else { Endian::Big };
    let key = fuzz_key(CryptSuite::Aes256Gcm);
    let mut objset = block.to_vec();
    if key.seal_objset(&mut objset, order).is_ok() {
        key.verify_objset(&objset, order).expect("what was sealed verifies");
    }
    let mac = crypt::indirect_mac(block, order);
    crypt::verify_indirect_mac(block, order, &mac).expect("what was summed verifies");
}

/// First byte: embedded kind, order, whether encrypted. The rest: a block, which is verified as it is, then sealed and
/// verified again; and summed by every kernel.
pub fn checksum_block(input: &[u8]) {
    let Some((selector, block)) = input.split_first() else { return };
    let kind = [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2][usize::from(selector % 4)];
    let order = if selector & 0x80 == 0 { Endian::Little } else { Endian::Big };
    let encrypted = selector & 0x40 != 0;
    let verifier = [1, 2, 3, u64::from(*selector)];
    let _ = verify_embedded(kind, block, verifier, encrypted);
    let mut sealed = block.to_vec();
    if seal_embedded(kind, &mut sealed, verifier, order, encrypted.then_some([5, 6])).is_ok() {
        assert_eq!(verify_embedded(kind, &sealed, verifier, encrypted), Ok(order), "what was sealed verifies");
    }
    let mut sums = Kernel::available().into_iter().map(|kernel| {
        let mut state = Fletcher4::new();
        state.update_with(kernel, block, None, order);
        state.finish()
    });
    let first = sums.next();
    assert!(sums.all(|other| Some(other) == first), "kernels agree");
}

fn fuzz_key(suite: CryptSuite) -> DatasetKey {
    DatasetKey::generate(suite, Guid(1), &mut |bytes| bytes.fill(3)).expect("every suite has keys")
}
