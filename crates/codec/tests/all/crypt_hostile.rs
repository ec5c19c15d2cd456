//! No bytes upset the walks over encrypted blocks, whether random, or sound ones altered.

use cenote_codec::fuzz;
use proptest::prelude::*;

const BLOCKS: &[u8] = include_bytes!("../data/golden_crypt.bin");
const LOG: &[u8] = include_bytes!("../data/golden_crypt_log.bin");
/// Where the objset and a block of dnodes lie in [`BLOCKS`].
const OBJSET: std::ops::Range<usize> = 0..4096;
const DNODES: std::ops::Range<usize> = 6 * 4096 + 16384..6 * 4096 + 2 * 16384;

fn with_selector(selector: u8, block: &[u8]) -> Vec<u8> {
    let mut input = vec![selector];
    input.extend_from_slice(block);
    input
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes(input in prop::collection::vec(any::<u8>(), 0..5000)) {
        fuzz::crypt_block(&input);
        fuzz::crypt_tree(&input);
    }

    #[test]
    fn altered_blocks(
        selector in any::<u8>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        // Most alterations should hit what the walks read: the first bytes of dnodes and records.
        places in prop::collection::vec((0_usize..32, 0_usize..16, any::<u8>()), 0..3),
    ) {
        for source in [&BLOCKS[OBJSET], &BLOCKS[DNODES], &LOG[..4096]] {
            let mut block = source.to_vec();
            for (index, value) in &changes {
                let len = block.len();
                block[index.index(len)] = *value;
            }
            for (slot, at, value) in &places {
                if let Some(byte) = block.get_mut(slot * 512 + at) {
                    *byte = *value;
                }
            }
            fuzz::crypt_block(&with_selector(selector, &block));
            fuzz::crypt_tree(&with_selector(selector, &block));
        }
    }
}
