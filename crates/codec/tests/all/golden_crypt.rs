//! Encrypted datasets of a pool written by OpenZFS 2.3.2 (golden theme `encryption_gcm`): their keys open, and from one
//! dataset's objset block every kind of protected block on the way down to a file's bytes verifies and decrypts.
//!
//! `data/golden_crypt.bin` holds the blocks one after another, as they lie on the disk, in the order of [`EXTENTS`].

use cenote_codec::compress::decompress;
use cenote_codec::crypt::{
    BlockLayout, BlockParams, CryptError, CryptSuite, DatasetKey, KeyFormat, WrappedKey, WrappingKey,
    verify_indirect_mac,
};
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::enums::Compress;
use cenote_format::ids::Guid;
use sha2::{Digest, Sha256};

const DATA: &[u8] = include_bytes!("../data/golden_crypt.bin");

/// Offsets (as DVAs count them) and lengths of the blocks in the file: the objset, the meta-dnode's levels 5 to 1, two
/// dnode blocks, the master node, and object 135's spill block and data.
const EXTENTS: [(u64, usize); 11] = [
    (0x336_0000, 4096),
    (0x335_6000, 4096),
    (0x335_3000, 4096),
    (0x335_0000, 4096),
    (0x334_d000, 4096),
    (0x334_a000, 4096),
    (0x6e_a000, 16384),
    (0x301_0000, 16384),
    (0x68_9000, 512),
    (0x300_b000, 1536),
    (0x77_0000, 12288),
];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn wrapped(guid: i64, iv: &str, mac: &str, master_key: &str, hmac_key: &str) -> WrappedKey {
    WrappedKey {
        suite: CryptSuite::from_number(8).unwrap(),
        guid: Guid(guid as u64),
        version: 1,
        iv: hex(iv).try_into().unwrap(),
        mac: hex(mac).try_into().unwrap(),
        master_key: hex(master_key).try_into().unwrap(),
        hmac_key: hex(hmac_key).try_into().unwrap(),
    }
}

fn raw_dataset_key() -> WrappedKey {
    wrapped(
        6_849_984_208_321_342_119,
        "6f0af07f0f3fd576223a6452",
        "936c95a5d78c570fd8b0c0eed0ed7681",
        "e07580dad2cd0a82efd66e19ea649921c6454c95504b4ef5c848c9e6532b812e",
        "a9bdedc32945fbb721632ccef89d62b37bc65398d5416e5a78885380f37d4485\
         3d1aac09e1225bd1910a6e7c478de341e9c7c8190bd01e680dc1dfb7d58b7fcf",
    )
}

fn open_raw_dataset() -> DatasetKey {
    let material = hex("4c790ec193d6df4c9c3ce4b5508f8bc8854839e216cadc18746e72ece2294ea9");
    let wrapping = WrappingKey::from_material(KeyFormat::Raw, &material, 0, 0).unwrap();
    raw_dataset_key().unwrap(&wrapping).unwrap()
}

#[test]
fn keys_of_all_three_formats_open() {
    open_raw_dataset();
    let hex_key = wrapped(
        -8_218_484_553_033_551_892,
        "9b4d1f0470958b6ebc53694e",
        "1b3cc0e3c7f8e0f74c84ae2093f42cec",
        "79e20d01ce114561fa0591c90cc36013aa338d408cfcad53be140c38f1d3397e",
        "f51e53c5177970a65e10aeac14d7615c5662ea6f8ef00ff3aa2c7473b6bfd12c\
         b468ff9ef2b897958795fad8d92c364bdd0328d358ed93f453f83e6fad2f415c",
    );
    let material = b"d506e3476400b13dfb0011ffe2c5fec135f353d0604d3e3b3ab2a8f7b0a135ac\n";
    let wrapping = WrappingKey::from_material(KeyFormat::Hex, material, 0, 0).unwrap();
    hex_key.unwrap(&wrapping).unwrap();
    assert_eq!(raw_dataset_key().unwrap(&wrapping).err(), Some(CryptError::WrongKey));

    let passphrase_key = wrapped(
        -5_118_173_026_640_380_257,
        "49b2dbaf2c61cafb41c192f4",
        "7839e2ab87bcc344a2b672e9365c7897",
        "94cbe70802d9396c6b99a7cdba63e7a35b093688222fdc7f2755f48401f5a6ee",
        "495cc9132646ff9f997874a7228551ad2f4d0fba2c66db8ec7e9286dd581deb9\
         93ca58cfe92eb40158588a4db7b1567ced54ad7ad04f2f3bf669e54044ddfc21",
    );
    let material = b"pass phrase 84a9027e68c1e10d28ed";
    let wrapping =
        WrappingKey::from_material(KeyFormat::Passphrase, material, 1_291_622_637_093_012_016, 350_000).unwrap();
    passphrase_key.unwrap(&wrapping).unwrap();
}

/// A block as it lies on the disk.
fn stored(offset_bytes: u64) -> Vec<u8> {
    let mut start = 0;
    for (at, len) in EXTENTS {
        if at == offset_bytes {
            return DATA[start..start + len].to_vec();
        }
        start += len;
    }
    panic!("no block at {offset_bytes:#x}");
}

/// Reads a block through its pointer: verified, decrypted, decompressed.
fn read(key: &DatasetKey, blkptr: &Blkptr) -> Vec<u8> {
    assert!(blkptr.uses_crypt());
    let order = blkptr.byte_order();
    let mut block = stored(blkptr.dva(0).unwrap().offset_bytes);
    block.truncate(blkptr.psize_bytes() as usize);
    if let Some(params) = blkptr.crypt_params() {
        let layout = BlockLayout::of_object_type(blkptr.object_type());
        let raw = BlockParams::from_blkptr(&blkptr.emit(Endian::Little), Endian::Little);
        let params = BlockParams::from(params);
        assert_eq!(params, raw);
        let mut altered = block.clone();
        altered[1000] ^= 1;
        assert_eq!(key.decrypt(layout, order, &params, &mut altered), Err(CryptError::Authentication));
        let sealed = block.clone();
        key.decrypt(layout, order, &params, &mut block).unwrap();
        let mut again = block.clone();
        assert_eq!(key.encrypt(layout, order, &params.salt, &params.iv, &mut again), Ok(params.mac));
        assert!(again == sealed);
    } else if blkptr.is_authenticated() {
        key.verify_mac(&block, &blkptr.mac().unwrap()).unwrap();
    }
    if let Some(kind) = blkptr.compress().filter(|kind| *kind != Compress::Off) {
        let mut plain = vec![0; blkptr.lsize_bytes() as usize];
        decompress(kind, &block, &mut plain).unwrap();
        block = plain;
    }
    if blkptr.has_indirect_mac() {
        verify_indirect_mac(&block, order, &blkptr.mac().unwrap()).unwrap();
        let altered = Blkptr::from_array(block.first_chunk().unwrap(), order).mac().unwrap();
        assert_ne!(altered, blkptr.mac().unwrap());
        block[48] ^= 1;
        assert_eq!(verify_indirect_mac(&block, order, &blkptr.mac().unwrap()), Err(CryptError::Authentication));
        block[48] ^= 1;
    }
    block
}

fn pointer_at(block: &[u8], at: usize) -> Blkptr {
    Blkptr::parse(&block[at..at + Blkptr::SIZE], Endian::Little).unwrap()
}

#[test]
fn from_the_objset_down_to_a_files_bytes_everything_verifies_and_decrypts() {
    let key = open_raw_dataset();
    let objset = stored(EXTENTS[0].0);
    key.verify_objset(&objset, Endian::Little).unwrap();
    for at in [0, 64 + 112, 704, 712, 1024 + 16, 1536 + 64 + 112] {
        let mut altered = objset.clone();
        altered[at] ^= 2;
        assert_eq!(key.verify_objset(&altered, Endian::Little), Err(CryptError::Authentication), "byte {at}");
    }
    let mut sealed_again = objset.clone();
    sealed_again[720..784].fill(0);
    key.seal_objset(&mut sealed_again, Endian::Little).unwrap();
    assert!(sealed_again == objset);

    let mut pointer = pointer_at(&objset, 64);
    for level in (1..=5).rev() {
        assert_eq!(pointer.level(), level);
        let block = read(&key, &pointer);
        pointer = pointer_at(&block, 0);
        if level == 1 {
            let dnodes = read(&key, &pointer);
            // Object 1, the master node: authenticated, not encrypted.
            let master_node = pointer_at(&dnodes, 512 + 64);
            assert!(master_node.is_authenticated());
            assert!(read(&key, &master_node).windows(11).any(|window| window == b"casesensiti"));

            // Object 135 lies in the fifth block of dnodes.
            let dnodes = read(&key, &pointer_at(&block, 4 * Blkptr::SIZE));
            let dnode = &dnodes[(135 - 128) * 512..][..512];
            // The bonus buffer starts with the magic number of system attributes.
            assert_eq!(dnode[192..196], 0x002f_505a_u32.to_le_bytes());
            let spill = read(&key, &pointer_at(dnode, 384));
            assert_eq!(spill[..4], 0x002f_505a_u32.to_le_bytes());
            assert!(spill.windows(9).any(|window| window == b"user.kazi"));
            let contents = read(&key, &pointer_at(dnode, 64));
            assert_eq!(
                Sha256::digest(&contents[..65537]).as_slice(),
                hex("a1e298dfcdd17714614beb5c81250b596d4a526863aab4a4024d63b94a699376")
            );
        }
    }
}

/// Three blocks of the intent log of an encrypted dataset (golden theme `zil`), one after another.
const LOG: &[u8] = include_bytes!("../data/golden_crypt_log.bin");

#[test]
fn an_encrypted_intent_log_decrypts_block_by_block() {
    let material = hex("fd2d202e5cc126d303a4c62429d19dfde0aa8743ee9be61aae64c9273ea1a142");
    let key = wrapped(
        830_236_110_284_790_651,
        "4acaafdf4a3399bc83e69d7f",
        "124aa49d6a378c76c6ea14320bc542c6",
        "40de91efab620a38a765bf38db3c64c4d8baa18cbc9dfadc7e470ab17acce14a",
        "d4c88f3f69ac5971342bc604584892aa9aebf666700a002f7160c241d0c74708\
         1a43c084926d1ad1fb67e6a6cd0b573f630d73c5b06760eb9e911cc48abe35f8",
    )
    .unwrap(&WrappingKey::from_raw(&material).unwrap())
    .unwrap();

    // Of the first block's pointer, which lies in the objset; the next ones lie in the blocks.
    let mut params = BlockParams { salt: 0x6cea_9ace_df24_1ff1_u64.to_le_bytes(), ..BlockParams::default() };
    params.iv[..8].copy_from_slice(&0xa548_a2bc_00b0_5e6c_u64.to_le_bytes());
    params.iv[8..].copy_from_slice(&0x8827_3690_u32.to_le_bytes());
    for (stored, name, data) in [
        (&LOG[..4096], &b"secret\0"[..], &b"encrypted log record"[..]),
        (&LOG[4096..8192], b"secret2\0", b""),
        (&LOG[8192..], b"commit\0", b"commit"),
    ] {
        let contains = |block: &[u8], part: &[u8]| part.is_empty() || block.windows(part.len()).any(|at| at == part);
        assert!(!contains(stored, name));
        let mut altered = stored.to_vec();
        altered[300] ^= 1;
        let result = key.decrypt(BlockLayout::IntentLog, Endian::Little, &params, &mut altered);
        assert_eq!(result, Err(CryptError::Authentication));

        let mut block = stored.to_vec();
        key.decrypt(BlockLayout::IntentLog, Endian::Little, &params, &mut block).unwrap();
        assert!(contains(&block, name) && contains(&block, data));

        let mut again = block.clone();
        key.encrypt(BlockLayout::IntentLog, Endian::Little, &params.salt, &params.iv, &mut again).unwrap();
        assert!(again == stored);

        let next = pointer_at(stored, 8).crypt_params().unwrap();
        params = next.into();
    }
}
