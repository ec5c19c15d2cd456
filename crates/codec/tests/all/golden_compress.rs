//! Blocks of files written by OpenZFS 2.3.2 under every compression (golden theme `compression`) decode to those files.
//!
//! `data/golden_compress.bin` holds the blocks one after another, as they lie on the disk with their padding, in the order
//! of [`BLOCKS`].

use cenote_codec::compress::{Compression, ZstdHeader, decompress};
use cenote_format::enums::Compress;
use sha2::{Digest, Sha256};

const DATA: &[u8] = include_bytes!("../data/golden_compress.bin");

/// Property, physical and logical size of the block, size of the file and its SHA-256.
const BLOCKS: &[(&str, usize, usize, usize, &str)] = &[
    ("gzip-1", 1536, 131072, 131072, "6ca62aa19f1ce4861ccddb722bfca6474cfbde243596ab3bbc884e418b2eb29a"),
    ("gzip-6", 1024, 131072, 131072, "3a3d37f9bdddb359f686ae88e638a9f73426a83373374dee7a8469b5d0f83329"),
    ("gzip-9", 1024, 131072, 131072, "d2c10c08af99474ae896602f064c62f13bed4b6f3f6bca5b10fb915a5c1f2aa4"),
    ("lz4", 1024, 131072, 131072, "28c0da924e27925de848629485375c49ee54cc8036d2ebd6a3b7ab6acaa3e057"),
    ("lzjb", 4608, 131072, 131072, "1aae014f75c9866e889e05374a3b7e396a88cc61aab31046ffb3ec30a33ff1ae"),
    ("on", 1024, 131072, 131072, "84e9ff783f362e870c9289749e9ed85911d57defd7bfb369aa420c98c4f681e0"),
    ("zstd-1", 512, 131072, 131072, "6de032fe64096cab2ea19af873ab0d7ac209bbbe428ff3470e2c107c969a95ae"),
    ("zstd-19", 512, 131072, 131072, "1e3f7dce902117bcd582cbace034cafa699c7700ece699bbdba4b75846361ab6"),
    ("zstd-3", 1536, 4096, 4096, "48bfcbd4297d3f015d2de956bbc02cdc4f09b1af85959cac7aac6284dc216342"),
    ("zstd-9", 4096, 6144, 6000, "d8e7fc7cd77cf95cd41221114ddfc5d61219c32d841d9233644bb86b6435b300"),
    ("zstd-fast-1", 512, 131072, 131072, "23481ce0c61c4815a071759a55be0a6fcfd08eedaf8672ad6096e5790072e7a8"),
    ("zstd-fast-10", 512, 131072, 131072, "6298840204d9673d3c7fa36d19acee1ae0811934452a228812287d96b5e9420b"),
    ("zstd-fast-1000", 1536, 131072, 131072, "aa390f3c361079d5dc1335718cd9315dc8d6962e240a41b13044436134bb3906"),
    // The third block of a larger file; the digest is that of the block.
    ("zle", 1024, 131072, 131072, "0c6c20cc8cb509f994daee44b2b459ddacb62adf5417fcb19b75ee38fd92973a"),
];

#[test]
fn blocks_of_every_algorithm_decode_to_their_files() {
    let mut rest = DATA;
    for (name, psize, lsize, size, digest) in BLOCKS {
        let (source, tail) = rest.split_at(*psize);
        rest = tail;
        let compression = Compression::from_name(name).unwrap().resolved(true);
        let mut target = vec![0; *lsize];
        decompress(compression.kind, source, &mut target).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found: String = Sha256::digest(&target[..*size]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, *digest, "{name}");
        if compression.kind == Compress::Zstd {
            assert_eq!(ZstdHeader::parse(source).unwrap().level, compression.level, "{name}");
        }
    }
    assert!(rest.is_empty());
}
